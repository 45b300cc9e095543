/* Making, opening, refusing and removing segments. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "engine.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>

#include "backend/channel.h"
#include "segment/process.h"

static int up[2], down[2];

static void path_of(const char *name, char *path, size_t cap)
{
    snprintf(path, cap, "/dev/shm/pynotify.%u.%s", (unsigned) geteuid(), name);
}

static int shm_of(const char *name)
{
    char path[160];
    path_of(name, path, sizeof path);
    return open(path, O_RDWR | O_CLOEXEC);
}

static int try_attach(const char *name)
{
    pn_engine *engine;
    int fd = shm_of(name);
    CHECK(fd >= 0);
    int rc = pn_attach(fd, name, &engine);
    close(fd);
    if (rc == 0)
        pn_engine_close(engine);
    return rc;
}

/* Files in /dev/shm whose name has `part` in it. */
static int files_like(const char *part)
{
    int n = 0;
    DIR *dir = opendir("/dev/shm");
    CHECK(dir != NULL);
    for (struct dirent *d; (d = readdir(dir)) != NULL;)
        n += strstr(d->d_name, part) != NULL;
    closedir(dir);
    return n;
}

/* ---- creating -------------------------------------------------------------------------------- */

static const char *race_name;

static void racer(void *arg)
{
    pn_engine *engine;
    pn_options o = test_options();
    char c;
    (void) arg;
    close(down[1]);
    test_tell(up);
    CHECK_EQ(read(down[0], &c, 1), 0); /* the end of the pipe is the start of the race */
    CHECK_OK(pn_open(race_name, &o, &engine));
    pn_conn *conn = test_connect(engine);
    test_listen(conn, "c");
    CHECK_OK(test_notify(conn, "c", "x"));
    test_tell(up);
    pn_batch *batch = pn_batch_new();
    for (int64_t got = 0; got == 0 || batch->n > 0;) {
        int64_t n = pn_poll(conn, batch, 0);
        CHECK_OK(n);
        got += n;
    }
    pn_batch_free(batch);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static void test_sixteen_create_at_once(void)
{
    enum { N = 16 };
    for (int round = 0; round < 5; round++) {
        pid_t pid[N];
        pn_engine *engine;
        race_name = test_segment_name();
        CHECK_EQ(pipe(up), 0);
        CHECK_EQ(pipe(down), 0);
        for (int i = 0; i < N; i++)
            pid[i] = spawn(racer, NULL);
        close(down[0]);
        for (int i = 0; i < N; i++)
            test_hear(up);
        close(down[1]);
        for (int i = 0; i < N; i++)
            CHECK_CHILD(pid[i], 0);
        CHECK_OK(pn_open(race_name, NULL, &engine));
        CHECK_EQ(test_stat(engine).commits, 2 * N); /* all were in the same segment */
        CHECK_EQ(test_stat(engine).backends, 0);
        CHECK_ENGINE(engine);
        pn_engine_close(engine);
        close(up[0]);
        close(up[1]);
    }
}

static char doomed[160];

static void remove_the_doomed(int signo)
{
    (void) signo;
    unlink(doomed);
}

/* A process that unlinks marks the segment first, and removes the name then. */
static void test_open_waits_for_the_end_of_an_unlink(void)
{
    const char *name = test_segment_name();
    const struct itimerval soon = {.it_value = {.tv_usec = 20000}};
    pn_engine *engine, *next;
    CHECK_OK(pn_open(name, NULL, &engine));
    CHECK_OK(pn_announce_gone(engine));
    path_of(name, doomed, sizeof doomed);
    signal(SIGALRM, remove_the_doomed);
    CHECK_EQ(setitimer(ITIMER_REAL, &soon, NULL), 0);
    CHECK_OK(pn_open(name, NULL, &next));
    CHECK(!pn_engine_gone(next));
    CHECK(pn_engine_created_ns(next) != pn_engine_created_ns(engine));
    signal(SIGALRM, SIG_DFL);
    pn_engine_close(next);
    pn_engine_close(engine);
}

static void test_create_and_open(void)
{
    const char *name = test_segment_name();
    pn_options o = test_options(), got;
    pn_engine *engine, *again;
    char path[160];
    struct stat st;
    mode_t before = umask(0777);
    CHECK_OK(pn_create(name, &o));
    umask(before);
    CHECK_EQ(pn_create(name, &o), -EEXIST);
    path_of(name, path, sizeof path);
    CHECK_EQ(stat(path, &st), 0);
    CHECK_EQ(st.st_mode & 07777, 0600);
    CHECK_OK(pn_open(name, NULL, &engine)); /* the options of its maker */
    /* allocated, so that no process gets a SIGBUS; but for the topics, which are not used yet */
    CHECK((uint64_t) st.st_blocks * 512 >= test_inside()->topics.offset);
    CHECK((uint64_t) st.st_blocks * 512 < (uint64_t) st.st_size);
    pn_engine_options(engine, &got);
    CHECK_EQ(got.queue_pages, o.queue_pages);
    CHECK_EQ(got.max_backends, o.max_backends);
    CHECK_EQ(pn_engine_size(engine), st.st_size);
    CHECK_EQ(pn_engine_owner_euid(engine), geteuid());
    CHECK(pn_engine_created_ns(engine) > 1500000000LL * 1000000000);
    int next = dup(0), after;
    close(next);
    CHECK_OK(pn_open(name, NULL, &again)); /* the same mapping */
    after = dup(0);
    close(after);
    CHECK_EQ(after, next); /* and no descriptor more */
    pn_conn *a = test_connect(engine), *b = test_connect(again);
    test_listen(a, "c");
    CHECK_OK(test_notify(b, "c", "x"));
    CHECK_POLL(a, "x");
    CHECK_EQ(pn_first_segment()->refs, 4);
    pn_engine_close(engine);
    pn_engine_close(again);
    CHECK_OK(test_notify(b, "c", "y"));
    CHECK_POLL(a, "y");
    pn_conn_close(a);
    pn_conn_close(b);
    CHECK(pn_first_segment() == NULL); /* unmapped with the last of them */
    umask(0);
    const char *open_umask = test_segment_name();
    CHECK_OK(pn_create(open_umask, &o));
    path_of(open_umask, path, sizeof path);
    CHECK_EQ(stat(path, &st), 0);
    CHECK_EQ(st.st_mode & 07777, 0600);
    umask(before);
}

static void test_bad_names_and_options(void)
{
    static const char *const names[] = {"", ".hidden", "a/b", "a b", "\xc3\xa4", "a\nb"};
    char longest[102];
    pn_options o = test_options();
    pn_engine *engine;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        CHECK_EQ(pn_create(names[i], &o), -EINVAL);
        CHECK_EQ(pn_open(names[i], &o, &engine), -EINVAL);
        CHECK_EQ(pn_live_pids(names[i], NULL, 0), -EINVAL);
        CHECK_EQ(pn_remove_lock_files(names[i]), -EINVAL);
    }
    memset(longest, 'x', sizeof longest);
    longest[101] = '\0';
    CHECK_EQ(pn_create(longest, &o), -EINVAL);
#define REFUSED(field, value)                                                                      \
    do {                                                                                           \
        o = test_options();                                                                        \
        o.field = (value);                                                                         \
        CHECK_EQ(pn_create("ctest.never", &o), -EINVAL);                                           \
    } while (0)
    REFUSED(queue_pages, 63);
    REFUSED(queue_pages, (1U << 24) + 1);
    REFUSED(max_backends, 0);
    REFUSED(max_backends, 65537);
    REFUSED(max_channels, 0);
    REFUSED(max_subscriptions, 0);
    REFUSED(max_payload, 0);
    REFUSED(max_payload, 63 * 8192 / 2 + 1);
    REFUSED(max_channel_name, 0);
    REFUSED(max_channel_name, 256);
    REFUSED(on_full, 0);
    REFUSED(signaling, 7);
#undef REFUSED
    CHECK_EQ(files_like("ctest.never"), 0);
}

/* A tmpfs of 1 MiB as /dev/shm, seen by this process only. */
static void without_room(void *arg)
{
    pn_options o = test_options();
    pn_engine *engine;
    (void) arg;
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=1m") != 0)
        _exit(77);
    o.queue_pages = 1024;
    CHECK_EQ(pn_create("ctest.full", &o), -ENOSPC);
    CHECK(strstr(pn_error_message(), "/dev/shm") != NULL);
    CHECK_EQ(files_like("pynotify"), 0);
    CHECK_EQ(pn_open("ctest.full", &o, &engine), -ENOSPC);
    o.queue_pages = 64;
    CHECK_OK(pn_open("ctest.full", &o, &engine)); /* all of it was given back */
    pn_conn *conn = test_connect(engine);
    test_listen(conn, "c");
    CHECK_OK(test_notify(conn, "c", "x"));
    CHECK_POLL(conn, "x");
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static void over_the_limit(void *arg)
{
    const struct rlimit limit = {100000, 100000};
    pn_options o = test_options();
    (void) arg;
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    CHECK(pn_create("ctest.limit", &o) < 0);
    CHECK_EQ(files_like("ctest.limit"), 0);
}

static void test_no_room(void)
{
    int status = reap(spawn(without_room, NULL));
    if (status == W_EXITCODE(77, 0))
        printf("# no mount namespaces here (not root?): ENOSPC skipped\n");
    else
        CHECK_EQ(status, 0);
    CHECK_CHILD(spawn(over_the_limit, NULL), 0);
}

/* ---- refusing -------------------------------------------------------------------------------- */

/* A header in which one field is changed; perhaps with a checksum that is right for it. */
static int attach_changed(size_t at, const void *bytes, size_t n, bool with_checksum)
{
    const char *name = test_segment_name();
    pn_options o = test_options();
    struct pn_header h;
    CHECK_OK(pn_create(name, &o));
    int fd = shm_of(name);
    CHECK(fd >= 0);
    CHECK_EQ(pread(fd, &h, sizeof h, 0), sizeof h);
    memcpy((char *) &h + at, bytes, n);
    if (with_checksum) {
        h.checksum = 0;
        h.checksum = pn_channel_hash(0, (const char *) &h, offsetof(struct pn_header, state));
    }
    CHECK_EQ(pwrite(fd, &h, sizeof h, 0), sizeof h);
    close(fd);
    int rc = try_attach(name);
    test_segment_remove(name);
    test_segments.n--;
    return rc;
}

#define FIELD(field) (((struct pn_header *) 0)->field)
#define CHANGED(field, value)                                                                      \
    attach_changed(offsetof(struct pn_header, field), &(__typeof__(FIELD(field))) {value},         \
                   sizeof FIELD(field), true)

static void test_foreign_and_scribbled_headers(void)
{
    static const uint8_t zero[16];
    CHECK_EQ(CHANGED(magic, 1), -PN_ELAYOUT);
    CHECK_EQ(CHANGED(layout_hash, 1), -PN_ELAYOUT);
    CHECK(strstr(pn_error_message(), "0000000000000001") != NULL); /* both sides */
    CHECK_EQ(CHANGED(pidns_ino, 1), -PN_ELAYOUT);
    CHECK_EQ(CHANGED(timens_ino, 1), -PN_ELAYOUT);
    CHECK_EQ(attach_changed(offsetof(struct pn_header, boot_id), zero, 16, true), -PN_ESTALE);
    CHECK_EQ(CHANGED(uid, 12345), -PN_ECORRUPT);
    CHECK_EQ(CHANGED(total_size, 1ULL << 60), -PN_ECORRUPT);
    CHECK_EQ(CHANGED(queue_pages, 65), -PN_ECORRUPT);
    CHECK_EQ(CHANGED(queue_pages, 0), -PN_ECORRUPT);
    CHECK_EQ(CHANGED(max_backends, 17), -PN_ECORRUPT);
    CHECK_EQ(CHANGED(max_backends, 0xffffffff), -PN_ECORRUPT);
    CHECK_EQ(CHANGED(max_channels, 0x7fffffff), -PN_ECORRUPT);
    CHECK_EQ(CHANGED(max_subscriptions, 0), -PN_ECORRUPT);
    CHECK_EQ(CHANGED(max_channel_name, 300), -PN_ECORRUPT);
    CHECK_EQ(CHANGED(ring_off, 0), -PN_ECORRUPT);
    CHECK_EQ(CHANGED(ring_off, 1ULL << 63), -PN_ECORRUPT);
    CHECK_EQ(CHANGED(control_off, 4), -PN_ECORRUPT);
    CHECK_EQ(CHANGED(subscriptions_off, 0), -PN_ECORRUPT);
    CHECK_EQ(CHANGED(buckets, 3), -PN_ECORRUPT);
    CHECK_EQ(CHANGED(channel_entry_size, 0), -PN_ECORRUPT);
    CHECK(pn_first_segment() == NULL);
}

/* No bit of the header may be turned unseen. */
static void test_every_bit_of_the_header_counts(void)
{
    struct pn_header h;
    const char *name = test_segment_name();
    pn_options o = test_options();
    CHECK_OK(pn_create(name, &o));
    int fd = shm_of(name);
    CHECK_EQ(pread(fd, &h, sizeof h, 0), sizeof h);
    for (off_t at = 0; at < (off_t) offsetof(struct pn_header, state); at++) {
        unsigned char was = ((unsigned char *) &h)[at];
        unsigned char turned = was ^ (unsigned char) (1 << at % 8);
        CHECK_EQ(pwrite(fd, &turned, 1, at), 1);
        if (try_attach(name) == 0)
            FAIL("byte %d of the header may be anything", (int) at);
        CHECK_EQ(pwrite(fd, &was, 1, at), 1);
    }
    close(fd);
    CHECK_OK(try_attach(name));
}

static void test_files_that_are_no_segments(void)
{
    static const off_t sizes[] = {0, 1, 100, 4095, 4096, 8192, 100000};
    const char *name = test_segment_name();
    char path[160], other[170];
    path_of(name, path, sizeof path);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        CHECK(fd >= 0);
        CHECK_EQ(ftruncate(fd, sizes[i]), 0);
        close(fd);
        CHECK_EQ(try_attach(name), -PN_ELAYOUT);
    }
    unlink(path);
    pn_options o = test_options();
    CHECK_OK(pn_create(name, &o));
    CHECK_EQ(truncate(path, 8192), 0); /* cut off: refused, never a SIGBUS */
    CHECK_EQ(try_attach(name), -PN_ECORRUPT);
    unlink(path);
    CHECK_OK(pn_create(name, &o));
    CHECK_EQ(chmod(path, 0666), 0);
    CHECK_EQ(try_attach(name), -EACCES);
    CHECK_EQ(chmod(path, 0600), 0);
    snprintf(other, sizeof other, "%s.hard", path);
    CHECK_EQ(link(path, other), 0);
    CHECK_EQ(try_attach(name), -PN_ELAYOUT);
    unlink(other);
    CHECK_OK(try_attach(name));
    if (geteuid() == 0) {
        CHECK_EQ(chown(path, 12345, (gid_t) -1), 0);
        CHECK_EQ(try_attach(name), -EACCES);
        CHECK(strstr(pn_error_message(), "belongs to user 12345") != NULL);
        CHECK_EQ(chown(path, 0, (gid_t) -1), 0);
    }
    unlink(path);
    CHECK_EQ(mkdir(path, 0700), 0);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    pn_engine *engine;
    CHECK(pn_attach(fd, name, &engine) < 0);
    close(fd);
    rmdir(path);
}

/* ---- removing -------------------------------------------------------------------------------- */

static void attached(void *arg)
{
    pn_engine *engine;
    CHECK_OK(pn_open(arg, NULL, &engine));
    pn_conn *conn = test_connect(engine);
    test_listen(conn, "c");
    CHECK_POLL(conn, "");
    test_tell(up);
    int rc;
    while ((rc = pn_wait(conn, -1)) == -EINTR || rc >= 0)
        ;
    CHECK_EQ(rc, -PN_EGONE);
    CHECK_EQ(pn_notify(conn, "c", 1, "x", 1), -PN_EGONE);
    pn_batch *batch = pn_batch_new();
    CHECK_EQ(pn_poll(conn, batch, 0), -PN_EGONE);
    pn_batch_free(batch);
    CHECK_EQ(pn_engine_gone(engine), 1);
    pn_conn *another;
    CHECK_EQ(pn_connect(engine, "db", 2, 0, NULL, &another), -PN_EGONE);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

/* Unlinked while a process sleeps in it: announced, it knows at once; not announced (rm), soon. */
static void test_unlink_under_a_sleeper(void)
{
    CHECK_EQ(pipe(up), 0);
    for (int announced = 0; announced < 2; announced++) {
        const char *name = test_segment_name();
        pn_options o = test_options();
        pn_engine *engine, *fresh;
        CHECK_OK(pn_open(name, &o, &engine));
        pid_t pid = spawn(attached, (void *) (uintptr_t) name);
        test_hear(up);
        const struct pn_segment *seg = test_inside();
        CHECK_SOON((pn_load_acquire(&seg->backend[0].pos) & PN_ASLEEP) != 0);
        CHECK_EQ(pn_engine_gone(engine), 0);
        int64_t start = test_now_ns();
        if (announced)
            CHECK_OK(pn_announce_gone(engine));
        test_segment_remove(name);
        CHECK_CHILD(pid, 0);
        CHECK(!announced || test_now_ns() - start < 700000000);
        CHECK_EQ(pn_engine_gone(engine), 1);
        CHECK_OK(pn_open(name, &o, &fresh)); /* another segment of that name */
        pn_conn *conn = test_connect(fresh);
        CHECK_EQ(pn_engine_gone(fresh), 0);
        pn_engine_close(engine);
        test_listen(conn, "c");
        CHECK_OK(test_notify(conn, "c", "x"));
        CHECK_POLL(conn, "x");
        pn_conn_close(conn);
        pn_engine_close(fresh);
    }
    close(up[0]);
    close(up[1]);
}

static void connected(void *arg)
{
    pn_engine *engine;
    CHECK_OK(pn_open(arg, NULL, &engine));
    pn_conn *conn[3];
    for (int i = 0; i < 3; i++)
        conn[i] = test_connect(engine);
    test_tell(up);
    test_hear(down);
    for (int i = 0; i < 3; i++)
        pn_conn_close(conn[i]);
    test_tell(up);
    for (;;)
        pause();
}

static bool contains(const int32_t *pids, int n, pid_t pid)
{
    for (int i = 0; i < n; i++)
        if (pids[i] == pid)
            return true;
    return false;
}

static void test_live_pids(void)
{
    const char *name = test_segment_name();
    pn_options o = test_options();
    pn_engine *engine;
    int32_t pids[8];
    o.max_backends = 200; /* four lock files */
    CHECK_EQ(pipe(up), 0);
    CHECK_EQ(pipe(down), 0);
    CHECK_EQ(pn_live_pids(name, pids, 8), 0);
    CHECK_OK(pn_open(name, &o, &engine));
    CHECK_EQ(pn_live_pids(name, pids, 8), 0);
    pn_conn *mine[70];
    for (int i = 0; i < 70; i++)
        mine[i] = test_connect(engine);
    CHECK_EQ(files_like(name), 3); /* the segment, and a lock file for each 64 slots in use */
    CHECK_EQ(pn_live_pids(name, pids, 8), 1);
    CHECK(contains(pids, 1, getpid()));
    pid_t a = spawn(connected, (void *) (uintptr_t) name);
    test_hear(up);
    pid_t b = spawn(connected, (void *) (uintptr_t) name);
    test_hear(up);
    CHECK_EQ(pn_live_pids(name, pids, 8), 3);
    CHECK(contains(pids, 3, a) && contains(pids, 3, b) && contains(pids, 3, getpid()));
    CHECK_EQ(pn_live_pids(name, pids, 1), 3);
    CHECK_EQ(pn_live_pids(name, NULL, 0) >= 3, 1);
    for (int i = 0; i < 70; i++) /* and asking did not cost us our locks */
        CHECK_OK(pn_wait(mine[i], 0));
    CHECK_EQ(test_stat(engine).backends, 76);
    test_tell(down);
    test_hear(up);
    test_tell(down);
    test_hear(up);
    CHECK_EQ(pn_live_pids(name, pids, 8), 1); /* closed: not counted, though they live */
    kill(a, SIGKILL);
    kill(b, SIGKILL);
    CHECK_KILLED(a, SIGKILL);
    CHECK_KILLED(b, SIGKILL);
    for (int i = 0; i < 70; i++)
        pn_conn_close(mine[i]);
    CHECK_EQ(pn_live_pids(name, pids, 8), 0);
    pn_engine_close(engine);
    CHECK_OK(pn_remove_lock_files(name));
    CHECK_EQ(files_like(name), 1);
    close(up[0]);
    close(up[1]);
    close(down[0]);
    close(down[1]);
}

/* Names that begin alike are not confused. */
static void test_lock_files_of_others_stay(void)
{
    const char *name = test_segment_name();
    char longer[80];
    pn_engine *one, *two;
    pn_options o = test_options();
    int32_t pids[4];
    snprintf(longer, sizeof longer, "%s.0123456789abcdef", name);
    CHECK_OK(pn_open(name, &o, &one));
    CHECK_OK(pn_open(longer, &o, &two));
    pn_conn *conn = test_connect(two);
    CHECK_EQ(pn_live_pids(name, pids, 4), 0);
    CHECK_EQ(pn_live_pids(longer, pids, 4), 1);
    CHECK_OK(pn_remove_lock_files(name));
    CHECK_EQ(pn_live_pids(longer, pids, 4), 1);
    pn_conn_close(conn);
    pn_engine_close(one);
    pn_engine_close(two);
    test_segment_remove(longer);
}

/* Slots: used up, by the living an error, by the dead reaped. */
static void take_all_slots(void *arg)
{
    pn_engine *engine;
    CHECK_OK(pn_open(arg, NULL, &engine));
    for (int i = 0; i < 15; i++)
        test_connect(engine);
    test_tell(up);
    for (;;)
        pause();
}

static void test_slots_run_out_and_are_reaped(void)
{
    const char *name = test_segment_name();
    pn_options o = test_options();
    pn_engine *engine;
    pn_conn *conn, *none;
    CHECK_EQ(pipe(up), 0);
    CHECK_OK(pn_open(name, &o, &engine));
    conn = test_connect(engine);
    pid_t pid = spawn(take_all_slots, (void *) (uintptr_t) name);
    test_hear(up);
    CHECK_EQ(pn_connect(engine, "db", 2, 0, NULL, &none), -PN_EBACKENDS);
    CHECK(strstr(pn_error_message(), "16") != NULL);
    kill(pid, SIGKILL);
    CHECK_KILLED(pid, SIGKILL);
    pn_conn *more[15];
    for (int i = 0; i < 15; i++)
        more[i] = test_connect(engine);
    CHECK_EQ(pn_connect(engine, "db", 2, 0, NULL, &none), -PN_EBACKENDS);
    for (int i = 0; i < 15; i++)
        pn_conn_close(more[i]);
    CHECK_EQ(pn_connect(engine, "", 0, 0, NULL, &none), -PN_ECHANNELNAME);
    CHECK_EQ(pn_connect(engine, "a\0b", 3, 0, NULL, &none), -PN_ECHANNELNAME);
    CHECK_EQ(pn_connect(engine, "db", 2, SIGTERM, NULL, &none), -EINVAL);
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_engine_close(engine);
    close(up[0]);
    close(up[1]);
}

/* More names of databases than rows in the table, over time; and a hole in it. */
static void test_database_rows_are_used_again(void)
{
    pn_options o = test_options();
    pn_engine *engine = test_engine(&o);
    struct pn_segment *seg = test_inside();
    pn_conn *first, *second;
    char text[32];
    CHECK_OK(pn_connect(engine, "stays", 5, 0, NULL, &first));
    for (int i = 0; i < 300; i++) {
        pn_conn *conn;
        int len = snprintf(text, sizeof text, "db%d", i);
        CHECK_OK(pn_connect(engine, text, (size_t) len, 0, NULL, &conn));
        pn_conn_close(conn);
    }
    pn_conn *before;
    CHECK_OK(pn_connect(engine, "before", 6, 0, NULL, &before));
    CHECK_OK(pn_connect(engine, "last", 4, 0, NULL, &second));
    CHECK_EQ(second->dboid, seg->database[2].dboid);
    pn_conn_close(before);
    CHECK(seg->database[0].dboid != 0 && first->dboid == seg->database[0].dboid);
    seg->database[1].dboid = 0; /* a process died while it used row 1 again */
    pn_conn *third;
    CHECK_OK(pn_connect(engine, "last", 4, 0, NULL, &third));
    CHECK_EQ(third->dboid, second->dboid);
    CHECK_ENGINE(engine);
    pn_conn_close(first);
    pn_conn_close(second);
    pn_conn_close(third);
    pn_engine_close(engine);
}

int main(void)
{
    test_watchdog(110);
    RUN(test_open_waits_for_the_end_of_an_unlink);
    RUN(test_create_and_open);
    RUN(test_sixteen_create_at_once);
    RUN(test_bad_names_and_options);
    RUN(test_no_room);
    RUN(test_foreign_and_scribbled_headers);
    RUN(test_every_bit_of_the_header_counts);
    RUN(test_files_that_are_no_segments);
    RUN(test_unlink_under_a_sleeper);
    RUN(test_live_pids);
    RUN(test_lock_files_of_others_stay);
    RUN(test_slots_run_out_and_are_reaped);
    RUN(test_database_rows_are_used_again);
    return tests_done();
}
