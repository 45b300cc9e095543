/*
 * What other threads, the program and other processes do between two steps of what looks at a
 * segment's files, passes a signal on, or commits: the steps are functions that this program wraps
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
#include "commit/room.h"
#include "segment/liveness_files.h"
#include "topic/consume.h"
#include "topics.h"
#include "wakeup/send.h"

#if defined(__SANITIZE_THREAD__)
enum { UNDER_TSAN = 1 };
#else
enum { UNDER_TSAN = 0 };
#endif

void *__real_mmap(void *address, size_t size, int prot, int flags, int fd, off_t offset);
void *__wrap_mmap(void *address, size_t size, int prot, int flags, int fd, off_t offset);
int32_t __real_pn_os_lock_holder(int fd, int64_t first, int64_t len, int64_t *start, int64_t *span);
int32_t __wrap_pn_os_lock_holder(int fd, int64_t first, int64_t len, int64_t *start, int64_t *span);

bool __real_pn_procsignal_try_to_pass_on(struct pn_segment *seg, int already);
bool __wrap_pn_procsignal_try_to_pass_on(struct pn_segment *seg, int already);

int __real_pn_queue_make_room_locked(struct pn_conn *conn, QueuePosition end, uint64_t reserved,
                                     struct pn_room_wait *wait);
int __wrap_pn_queue_make_room_locked(struct pn_conn *conn, QueuePosition end, uint64_t reserved,
                                     struct pn_room_wait *wait);

int __real_sched_yield(void);
int __wrap_sched_yield(void);

static pn_atomic_u32 yields; /* what waits for a handler does so */
static void (*after_mmap)(void *base, size_t size);
static void (*before_query)(int fd, int64_t byte), (*after_query)(int fd, int64_t byte);
/* volatile: raise() is declared not to come back into this file. */
static bool (*volatile instead_of_passing_on)(void);
static void (*after_making_room)(struct pn_segment *seg);

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

bool __wrap_pn_procsignal_try_to_pass_on(struct pn_segment *seg, int already)
{
    bool (*instead)(void) = instead_of_passing_on;
    return instead != NULL ? instead() : __real_pn_procsignal_try_to_pass_on(seg, already);
}

int __wrap_pn_queue_make_room_locked(struct pn_conn *conn, QueuePosition end, uint64_t reserved,
                                     struct pn_room_wait *wait)
{
    int rc = __real_pn_queue_make_room_locked(conn, end, reserved, wait);
    if (after_making_room != NULL)
        after_making_room(conn->seg);
    return rc;
}

int __wrap_sched_yield(void)
{
    pn_fetch_add(&yields, 1);
    return __real_sched_yield();
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

/* ---- the end of the queue is overwritten between its check and the entries ------------------- */

enum { NOT_OURS = 0x5a5a5a5a };

/* Here only the first word of a dummy entry would stand in the ring. */
static void end_queue_in_the_last_word(struct pn_segment *seg)
{
    after_making_room = NULL;
    pn_store_relaxed(&seg->ctl->head, seg->ring_bytes - 4);
}

static void commits_at_no_multiple_of_8(void *arg)
{
    (void) arg;
    pn_engine *own = test_engine(NULL);
    pn_conn *conn = test_connect(own);
    const struct pn_segment *seg = test_inside();
    uint32_t *behind = (void *) (seg->ring + seg->ring_bytes);
    test_listen(conn, "c");
    *behind = NOT_OURS;
    after_making_room = end_queue_in_the_last_word;
    pn_notify(conn, "c", 1, "x", 1); /* a build that checks invariants poisons the segment */
    CHECK(after_making_room == NULL);
    CHECK_EQ(*behind, NOT_OURS);
    pn_conn_close(conn);
    pn_engine_close(own);
}

static void test_a_dummy_entry_ends_with_the_ring(void)
{
    CHECK_CHILD(spawn(commits_at_no_multiple_of_8, NULL), 0);
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

/* ---- a thread has looked already when the chain is left to it -------------------------------- */

static pn_consumer *consumer;
static pn_atomic_i32 consuming; /* the thread */

static void *consumes(void *arg)
{
    pn_message_out m;
    (void) arg;
    pn_store_release(&consuming, (int32_t) syscall(SYS_gettid));
    GET(consumer, &m, "end");
    return NULL;
}

static void listens(void *arg)
{
    (void) arg;
    pn_conn *conn = test_connect(engine);
    test_listen(conn, "c"); /* so that it catches the signal */
    test_tell(up);
    test_hear(down);
    pn_conn_close(conn);
}

static bool sleeps_with_nothing_to_look_at(void)
{
    struct pollfd latch = {.fd = pn_load_acquire(&consumer->efd), .events = POLLIN};
    return poll(&latch, 1, 0) == 0 && is_blocked(pn_load_acquire(&consuming));
}

/* In the handler: no descriptor is left, and the thread that was woken has found nothing to do. */
static bool leaves_it_to_the_thread(void)
{
    instead_of_passing_on = NULL;
    CHECK_SOON(sleeps_with_nothing_to_look_at());
    return false;
}

static pid_t next_in_chain;

/* Another process's slot 1, and a consumer of ours. */
static pn_ref begin_a_chain(void)
{
    pn_consumer_slow_ns = INT64_MAX / 4; /* no timer of its own wakes it */
    begin_connected();
    next_in_chain = spawn(listens, NULL);
    test_hear(up);
    test_listen(mine, "c");
    pn_ref topic = topic_of(mine, "t");
    consumer = consumer_of(mine, channel_of(mine, topic, "w"), 1);
    return topic;
}

static void end_the_chain(void)
{
    test_tell(down);
    CHECK_CHILD(next_in_chain, 0);
    end();
}

/* A commit has made slot 1 awake, and signals slot 0 alone, ours.  What had been sent before. */
static uint64_t be_signalled(bool (*instead)(void))
{
    struct pn_segment *seg = test_inside();
    uint64_t before = pn_load_relaxed(&seg->ctl->free.signals_sent);
    pn_fetch_or(&seg->owed[0], 2);
    pn_fetch_or(&seg->deferred[0], 2);
    pn_store_relaxed(&seg->ctl->deferred_at, 1);
    pn_store_release(&mine->me->pss_signalFlags[PROCSIG_NOTIFY_INTERRUPT], 1);
    instead_of_passing_on = instead;
    CHECK_EQ(raise(SIGUSR1), 0);
    CHECK(instead_of_passing_on == NULL);
    return before;
}

/* The handler wakes the consumer for the flag, and once more for the chain. */
static void test_a_consumer_that_has_looked_passes_on(void)
{
    pthread_t thread;
    pn_ref topic = begin_a_chain();
    struct pn_segment *seg = test_inside();
    CHECK_EQ(pthread_create(&thread, NULL, consumes, NULL), 0);
    CHECK_SOON(pn_load_acquire(&consumer->me->wait) == PN_CONSUMER_WAITING &&
               sleeps_with_nothing_to_look_at());
    uint64_t before = be_signalled(leaves_it_to_the_thread);
    CHECK_SOON(pn_load_relaxed(&seg->ctl->free.signals_sent) == before + 1);
    publish(mine, topic, "end");
    CHECK_EQ(pthread_join(thread, NULL), 0);
    pn_consumer_close(consumer);
    end_the_chain();
}

static bool has_no_descriptor(void)
{
    instead_of_passing_on = NULL;
    return false;
}

/* The thread was about to look; it closes instead, and the connection stays. */
static void test_a_consumer_that_is_closed_passes_on(void)
{
    begin_a_chain();
    struct pn_segment *seg = test_inside();
    uint64_t before = be_signalled(has_no_descriptor);
    CHECK_EQ(pn_load_relaxed(&seg->ctl->free.signals_sent), before);
    CHECK_OK(pn_consumer_close(consumer));
    CHECK_EQ(pn_load_relaxed(&seg->ctl->free.signals_sent), before + 1);
    end_the_chain();
}

/* ---- a connection is closed while a handler in another thread has it ------------------------- */

static pthread_t closer;
static pn_conn *closing;

static void *closes(void *arg)
{
    (void) arg;
    pn_conn_close(closing);
    return NULL;
}

/* Freed now, the slot would soon be another process's, and the handler would take its flags. */
static bool keeps_its_slot(void)
{
    const struct QueueBackendStatus *me = closing->me;
    uint32_t before = pn_load_acquire(&yields);
    instead_of_passing_on = NULL;
    CHECK_EQ(pthread_create(&closer, NULL, closes, NULL), 0);
    CHECK_SOON(pn_load_acquire(&yields) > before);
    CHECK_EQ(pn_load_acquire(&me->state), PN_SLOT_CLAIMED);
    return true;
}

static void test_a_slot_is_freed_when_no_handler_has_it(void)
{
    begin_connected();
    struct pn_segment *seg = test_inside();
    closing = test_connect(engine);
    test_listen(closing, "c");
    uint32_t slot = closing->slot;
    pn_store_release(&closing->me->pss_signalFlags[PROCSIG_NOTIFY_INTERRUPT], 1);
    instead_of_passing_on = keeps_its_slot;
    CHECK_EQ(raise(SIGUSR1), 0);
    CHECK(instead_of_passing_on == NULL);
    CHECK_EQ(pthread_join(closer, NULL), 0);
    CHECK_EQ(pn_load_acquire(&seg->backend[slot].state), PN_SLOT_FREE);
    end();
}

/* ---- a process forks while one of its threads closes, and waits for the writer lock ---------- */

enum { MOST = 1024 };

/* Before there was a descriptor of the connection and its consumer. */
static bool open_before[MOST];

static bool is_open(int fd)
{
    return fcntl(fd, F_GETFD) != -1;
}

static void has_inherited_nothing(void *arg)
{
    (void) arg;
    for (int fd = 0; fd < MOST; fd++)
        CHECK_EQ(is_open(fd) && !open_before[fd], false);
}

static void *closes_its_consumer(void *arg)
{
    (void) arg;
    CHECK_OK(pn_consumer_close(consumer));
    return NULL;
}

static bool is_hidden(struct pn_segment *seg, uint32_t slot)
{
    pthread_mutex_lock(&seg->signal_mutex);
    bool hidden = seg->own[slot] == NULL;
    pthread_mutex_unlock(&seg->signal_mutex);
    return hidden;
}

static void test_a_child_has_no_files_of_what_is_being_closed(void)
{
    pthread_t thread;
    begin();
    closing = test_connect(engine); /* and the segment's spare ones, which a child keeps */
    for (int fd = 0; fd < MOST; fd++)
        open_before[fd] = is_open(fd);
    struct pn_segment *seg = test_inside();
    consumer = consumer_of(closing, channel_of(closing, topic_of(closing, "t"), "w"), 1);
    test_listen(closing, "c");
    CHECK(pn_consumer_fileno(consumer) >= 0);
    CHECK(pn_fileno(closing) >= 0);
    CHECK_OK(pn_lock_acquire(seg, &test_hold, PN_LOCK_FOREVER));
    CHECK_EQ(pthread_create(&thread, NULL, closes_its_consumer, NULL), 0);
    CHECK_SOON(pn_load_acquire(&closing->nconsumers) == 0);
    CHECK_CHILD(spawn(has_inherited_nothing, NULL), 0);
    pn_lock_release(seg);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    const uint32_t slot = closing->slot;
    CHECK_OK(pn_lock_acquire(seg, &test_hold, PN_LOCK_FOREVER));
    CHECK_EQ(pthread_create(&thread, NULL, closes, NULL), 0);
    CHECK_SOON(is_hidden(seg, slot));
    CHECK_CHILD(spawn(has_inherited_nothing, NULL), 0);
    pn_lock_release(seg);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    end();
}

int main(void)
{
    test_watchdog(60);
    RUN(test_nothing_of_a_header_that_changes_is_believed);
    RUN(test_a_dummy_entry_ends_with_the_ring);
    RUN(test_a_look_at_live_pids_drops_no_locks);
    RUN(test_a_number_that_was_another_files_proves_no_death);
    RUN(test_the_chain_signals_no_later_owner);
    RUN(test_a_consumer_that_has_looked_passes_on);
    RUN(test_a_consumer_that_is_closed_passes_on);
    RUN(test_a_slot_is_freed_when_no_handler_has_it);
    if (!UNDER_TSAN) /* it does not follow a fork of a process with threads */
        RUN(test_a_child_has_no_files_of_what_is_being_closed);
    return tests_done();
}
