/*
 * What other threads, the program and other processes do between two steps of what looks at a
 * segment's files, or passes a signal on: the steps are functions that this program wraps
 * (CMakeLists.txt).
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "children.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "backend/backend.h"
#include "base/os.h"
#include "segment/liveness_files.h"
#include "wakeup/send.h"

void *__real_mmap(void *address, size_t size, int prot, int flags, int fd, off_t offset);
void *__wrap_mmap(void *address, size_t size, int prot, int flags, int fd, off_t offset);
int32_t __real_pn_os_lock_holder(int fd, int64_t first, int64_t len, int64_t *start, int64_t *span);
int32_t __wrap_pn_os_lock_holder(int fd, int64_t first, int64_t len, int64_t *start, int64_t *span);

static void (*after_mmap)(void *base, size_t size);
static void (*before_query)(int fd, int64_t byte), (*after_query)(int fd, int64_t byte);

void *__wrap_mmap(void *address, size_t size, int prot, int flags, int fd, off_t offset)
{
    void *base = __real_mmap(address, size, prot, flags, fd, offset);
    if (after_mmap != NULL && fd >= 0 && base != MAP_FAILED)
        after_mmap(base, size);
    return base;
}

int32_t __wrap_pn_os_lock_holder(int fd, int64_t first, int64_t len, int64_t *start, int64_t *span)
{
    if (before_query != NULL)
        before_query(fd, first);
    int32_t holder = __real_pn_os_lock_holder(fd, first, len, start, span);
    if (after_query != NULL)
        after_query(fd, first);
    return holder;
}

static void connected(void *arg)
{
    (void) arg;
    pn_conn *conn = test_connect(engine);
    test_tell(up);
    test_hear(down);
    pn_conn_close(conn);
}

/* ---- the header is overwritten while it is being mapped -------------------------------------- */

static size_t spoiled_at, spoiled_size, mapped_size;
static unsigned char good[8];
static void *mapped;

static void spoil(void *base, size_t size)
{
    after_mmap = NULL;
    mapped = base;
    mapped_size = size;
    memcpy(good, (char *) base + spoiled_at, spoiled_size);
    memset((char *) base + spoiled_at, 0xff, spoiled_size);
}

static void repair(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    CHECK_EQ(pwrite(fd, good, spoiled_size, (off_t) spoiled_at), spoiled_size);
    close(fd);
}

static bool is_mapped(void *base)
{
    unsigned char present;
    return mincore(base, 1, &present) == 0;
}

static void test_nothing_of_a_header_that_changes_is_believed(void)
{
#define FIELD(field)                                                                               \
    {                                                                                              \
        offsetof(struct pn_header, field), sizeof((struct pn_header *) 0)->field                   \
    }
    static const size_t fields[][2] = {FIELD(magic),       FIELD(layout_hash),  FIELD(total_size),
                                       FIELD(control_off), FIELD(backends_off), FIELD(lock_ino_off),
                                       FIELD(topics_off),  FIELD(max_backends), FIELD(queue_pages)};
    char path[128];
    const char *name = test_segment_name();
    pn_options o = test_options();
    CHECK_OK(pn_create(name, &o));
    snprintf(path, sizeof path, "/dev/shm/pynotify.%u.%s", (unsigned) geteuid(), name);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        spoiled_at = fields[i][0];
        spoiled_size = fields[i][1];
        after_mmap = spoil;
        CHECK_EQ(pn_attach(fd, name, &engine), -PN_ECORRUPT);
        CHECK(strstr(pn_error_message(), "is being changed") != NULL);
        CHECK(!is_mapped(mapped));
        CHECK(!is_mapped((char *) mapped + mapped_size - 1 - (mapped_size - 1) % 4096));
        repair(path);
    }
    CHECK_OK(pn_attach(fd, name, &engine));
    close(fd);
    CHECK_ENGINE(engine);
    pn_engine_close(engine);
}

/* ---- the holders of locks are asked for while another thread connects ------------------------ */

static pn_conn *second;

static void *connects(void *arg)
{
    (void) arg;
    second = test_connect(engine);
    return NULL;
}

static uint32_t references(void)
{
    pn_process_lock();
    uint32_t n = test_inside()->refs;
    pn_process_unlock();
    return n;
}

/* The thread takes its locks now, through a descriptor of its own if it finds none. */
static void let_it_claim(int fd, int64_t byte)
{
    (void) fd, (void) byte;
    before_query = NULL;
    struct pn_segment *seg = test_inside();
    pn_lock_release(seg);
    CHECK_SOON(pn_load_acquire(&seg->backend[1].state) == PN_SLOT_CLAIMED);
}

static void finds_slot_1_alive(void *arg)
{
    (void) arg;
    CHECK_EQ(pn_backend_verdict(test_inside(), 1), PN_ALIVE);
}

static void test_a_look_at_live_pids_drops_no_locks(void)
{
    int32_t pids[4];
    pthread_t thread;
    begin();
    pid_t pid = spawn(connected, NULL); /* makes the file, which this process has not open */
    test_hear(up);
    struct pn_segment *seg = test_inside();
    CHECK_OK(pn_lock_acquire(seg, &test_hold, PN_LOCK_FOREVER));
    CHECK_EQ(pthread_create(&thread, NULL, connects, NULL), 0);
    CHECK_SOON(references() == 2); /* it waits for the writer lock now, or soon */
    before_query = let_it_claim;
    CHECK_OK(pn_live_pids(seg->name, pids, 4));
    CHECK(before_query == NULL);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_CHILD(spawn(finds_slot_1_alive, NULL), 0);
    CHECK_EQ(pn_live_pids(seg->name, pids, 4), 2);
    pn_conn_close(second);
    CHECK_EQ(pn_live_pids(seg->name, pids, 4), 1);
    CHECK_EQ(pids[0], pid);
    test_tell(down);
    CHECK_CHILD(pid, 0);
    end();
}

/* ---- the lock file's number is another file's for a moment ----------------------------------- */

static int foreign;

static void steal(int fd, int64_t byte)
{
    (void) byte;
    before_query = NULL;
    CHECK_EQ(dup2(foreign, fd), fd);
}

/* The program closes its file; and another thread, which needs the lock file, gets the number. */
static void give_back(int fd, int64_t byte)
{
    if (byte < PN_OFD_BYTE)
        return;
    after_query = NULL;
    close(fd);
    CHECK_EQ(pn_segment_true_lock_file(test_inside(), 0), fd);
}

static void test_a_number_that_was_another_files_proves_no_death(void)
{
    begin();
    pid_t pid = spawn(connected, NULL);
    test_hear(up);
    struct pn_segment *seg = test_inside();
    foreign = open(P_tmpdir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    CHECK(foreign >= 0);
    CHECK(pn_segment_lock_file(seg, 0) >= 0);
    before_query = steal;
    after_query = give_back;
    CHECK_EQ(pn_backend_verdict(seg, 0), PN_ALIVE);
    CHECK(before_query == NULL && after_query == NULL);
    test_tell(down);
    CHECK_CHILD(pid, 0);
    close(foreign);
    end();
}

/* ---- slots change hands while a signal is passed on ------------------------------------------ */

static pid_t owner;
static pn_conn *next_owner[2];

static void two_connected(void *arg)
{
    (void) arg;
    pn_conn *conn[2] = {test_connect(engine), test_connect(engine)};
    test_tell(up);
    test_hear(down);
    pn_conn_close(conn[0]);
    pn_conn_close(conn[1]);
}

static void change_hands(int fd, int64_t byte)
{
    (void) fd;
    CHECK_EQ(byte, 0);
    before_query = NULL;
    test_tell(down);
    CHECK_CHILD(owner, 0);
    for (int i = 0; i < 2; i++) {
        next_owner[i] = test_connect(engine);
        CHECK_EQ(next_owner[i]->slot, i);
    }
}

/* Both slots were owed when they were claimed; the second changes hands before it is signalled. */
static void test_the_chain_signals_no_later_owner(void)
{
    begin();
    owner = spawn(two_connected, NULL);
    test_hear(up);
    mine = test_connect(engine);
    test_listen(mine, "c"); /* so that this process catches the signal */
    struct pn_segment *seg = test_inside();
    pn_fetch_or(&seg->owed[0], 3);
    pn_fetch_or(&seg->deferred[0], 3);
    pn_store_relaxed(&seg->ctl->deferred_at, 1);
    uint64_t before = pn_load_relaxed(&seg->ctl->free.signals_sent);
    before_query = change_hands;
    CHECK(pn_procsignal_try_to_pass_on(seg, 0));
    CHECK(before_query == NULL);
    CHECK_EQ(pn_load_relaxed(&seg->ctl->free.signals_sent), before);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(pn_load_relaxed(&next_owner[i]->me->pss_signalFlags[PROCSIG_NOTIFY_INTERRUPT]), 0);
        pn_conn_close(next_owner[i]);
    }
    end();
}

int main(void)
{
    test_watchdog(60);
    RUN(test_nothing_of_a_header_that_changes_is_believed);
    RUN(test_a_look_at_live_pids_drops_no_locks);
    RUN(test_a_number_that_was_another_files_proves_no_death);
    RUN(test_the_chain_signals_no_later_owner);
    return tests_done();
}
