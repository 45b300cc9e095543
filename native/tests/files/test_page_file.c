/*
 * Files of pages: what was written is read, what is damaged is found and costs no more than it
 * must, a full disk and a squatted name are errors that say so, and nothing else is touched.
 * test_crash_pages.c kills the writer.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "data_dirs.h"

#include <sched.h>
#include <stdatomic.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "files/data_file.h"

static struct pn_data_dir dir;
static char path[512];

#define CHECK_SAYS(text)                                                                           \
    do {                                                                                           \
        if (strstr(pn_error_message(), text) == NULL)                                              \
            FAIL("the error is \"%s\", without \"%s\"", pn_error_message(),                        \
                 (const char *) (text));                                                           \
    } while (0)

static void start(void)
{
    data_dir_empty();
    CHECK_EQ(chmod(data_dir, 0700), 0);
    CHECK_OK(pn_data_dir_init(&dir, data_dir, geteuid(), "seg", INSTANCE, 'q'));
}

/* ---- what is written is read ----------------------------------------------------------------- */

static void test_pages_come_back_as_they_were_written(void)
{
    start();
    for (uint64_t number = 0; number < 3; number++)
        for (uint32_t first = 0, n; first < PAGES; first += n) {
            n = number == 0 ? 1 : number == 1 ? PAGES : 5;
            n = first + n > PAGES ? PAGES - first : n;
            CHECK_OK(write_pages(&dir, number, first, n));
        }
    for (uint64_t number = 0; number < 3; number++) {
        CHECK_OK(read_pages(&dir, number, 0, PAGES));
        CHECK_OK(read_pages(&dir, number, 31, 1));
        CHECK_OK(read_pages(&dir, number, 7, 11));
        CHECK_OK(read_pages(&dir, number, 32, 0));
        for (uint32_t i = 0; i < PAGES; i++) {
            CHECK_EQ(pn_pages_find(&dir, number, 0, tag_of(number, i)), i);
            CHECK_EQ(pn_pages_find(&dir, number, i + 1, tag_of(number, i)), PAGES);
        }
    }
    CHECK_EQ(files_in(data_dir), 3);
    CHECK_EQ(read_pages(&dir, 3, 0, 1), -ENOENT);
    CHECK_EQ(pn_pages_find(&dir, 3, 0, 1), -ENOENT);
}

static void test_a_file_grows_and_begins_anywhere(void)
{
    enum { NUMBER = 123456789 };
    start();
    CHECK_OK(write_pages(&dir, NUMBER, 4, 4));
    CHECK_EQ(read_pages(&dir, NUMBER, 3, 1), -EBADMSG);
    CHECK_EQ(read_pages(&dir, NUMBER, 8, 1), -EBADMSG);
    CHECK_EQ(read_pages(&dir, NUMBER, 4, 5), -EBADMSG);
    CHECK_OK(write_pages(&dir, NUMBER, 10, 2)); /* a hole is no page */
    CHECK_EQ(read_pages(&dir, NUMBER, 9, 1), -EBADMSG);
    CHECK_EQ(pn_pages_find(&dir, NUMBER, 8, tag_of(NUMBER, 11)), 11);
    CHECK_OK(read_pages(&dir, NUMBER, 10, 2));
    CHECK_OK(read_pages(&dir, NUMBER, 4, 4));
}

/* The process that wrote them died before it told others, and its successor writes less. */
static void test_what_no_process_was_told_of_is_gone(void)
{
    start();
    CHECK_OK(write_pages(&dir, 5, 0, 8));
    CHECK_OK(write_pages(&dir, 5, 4, 1));
    CHECK_OK(read_pages(&dir, 5, 0, 5));
    CHECK_EQ(read_pages(&dir, 5, 5, 1), -EBADMSG);
    CHECK_OK(write_pages(&dir, 5, 0, 1));
    CHECK_OK(read_pages(&dir, 5, 0, 1));
    CHECK_EQ(read_pages(&dir, 5, 1, 1), -EBADMSG);
}

static void test_pages_that_no_file_has_are_refused(void)
{
    start();
    CHECK_OK(write_pages(&dir, 1, 0, 1));
    const void *none[1] = {NULL};
    const uint32_t tags[1] = {0};
    CHECK_EQ(pn_pages_write(&dir, 1, 0, none, tags, 0), -EINVAL);
    CHECK_EQ(pn_pages_write(&dir, 1, 32, none, tags, 1), -EINVAL);
    CHECK_EQ(pn_pages_write(&dir, 1, 1, none, tags, 32), -EINVAL);
    CHECK_EQ(pn_pages_write(&dir, 1, UINT32_MAX, none, tags, 1), -EINVAL);
    CHECK_EQ(pn_pages_read(&dir, 1, 0, 33, NULL), -EINVAL);
    CHECK_EQ(pn_pages_read(&dir, 1, UINT32_MAX, 2, NULL), -EINVAL);
}

/* Instead of libc's: what comes between a reader's open() and its reading. */
static void (*meanwhile)(int fd);
static bool disk_is_bad;

ssize_t preadv(int fd, const struct iovec *iov, int n, off_t at)
{
    void (*act)(int fd) = meanwhile;
    meanwhile = NULL;
    if (act != NULL)
        act(fd);
    if (disk_is_bad) {
        errno = EIO;
        return -1;
    }
    return syscall(SYS_preadv, fd, iov, n, (unsigned long) at, 0UL);
}

static int taken = -1;

/* As a program does that closes what is not its own, and opens another file. */
static void take_the_descriptor(int fd)
{
    char other[512];
    path_of(&dir, 2, other);
    int new = open(other, O_RDONLY);
    CHECK(new >= 0);
    CHECK_EQ(dup2(new, fd), fd);
    close(new);
    taken = fd;
}

static void close_the_descriptor(int fd)
{
    CHECK_OK(close(fd));
}

static void test_a_descriptor_that_the_program_took_is_opened_again(void)
{
    start();
    CHECK_OK(write_pages(&dir, 1, 0, 2));
    CHECK_OK(write_pages(&dir, 2, 0, 2));
    meanwhile = take_the_descriptor;
    CHECK_OK(read_pages(&dir, 1, 0, 2));
    CHECK(taken >= 0);
    CHECK_OK(close(taken)); /* it is the program's, and open still */
    meanwhile = close_the_descriptor;
    CHECK_OK(read_pages(&dir, 1, 0, 2));
}

/* As the newest, partly used file of a queue that was empty for a moment. */
static void make_it_again(int fd)
{
    (void) fd;
    CHECK_OK(pn_data_dir_remove(&dir, 1));
    CHECK_OK(write_pages(&dir, 1, 2, 2));
}

static void test_a_removed_file_of_the_same_number_is_not_taken_for_the_new_one(void)
{
    static const struct {
        uint32_t first, n;
        int rc;
    } reads[] = {{0, 2, 0}, {2, 1, 0}, {0, 3, -EBADMSG}};
    start();
    for (size_t i = 0; i < sizeof reads / sizeof reads[0]; i++) {
        CHECK_OK(write_pages(&dir, 1, 0, 2));
        meanwhile = make_it_again;
        CHECK_EQ(read_pages(&dir, 1, reads[i].first, reads[i].n), reads[i].rc);
        CHECK(meanwhile == NULL);
        CHECK_OK(read_pages(&dir, 1, 2, 2));
        CHECK_EQ(read_pages(&dir, 1, 0, 1), -EBADMSG);
    }
}

static void with_umask(void *arg)
{
    struct stat st;
    umask((mode_t) (uintptr_t) arg);
    CHECK_OK(write_pages(&dir, (uintptr_t) arg, 0, 1));
    path_of(&dir, (uintptr_t) arg, path);
    CHECK_EQ(lstat(path, &st), 0);
    CHECK_EQ(st.st_mode & 07777, 0600);
}

static void test_files_have_mode_0600_under_any_umask(void)
{
    start();
    path_of(&dir, 0777, path);
    CHECK_CHILD(spawn(with_umask, (void *) 0), 0);
    CHECK_CHILD(spawn(with_umask, (void *) 0777), 0);
    CHECK_EQ(chmod(path, 0644), 0); /* the last one; of whatever history */
    CHECK_CHILD(spawn(with_umask, (void *) 0777), 0);
}

enum { MANY = 40 * PAGES };
static _Atomic(uint32_t) *told; /* so many pages; W: writer */

static void read_what_was_told(void *arg)
{
    (void) arg;
    for (uint32_t at = 0; at < MANY; sched_yield())
        for (uint32_t end = atomic_load(told); at < end; at++) {
            if (at > 0 && at % PAGES == 0)
                CHECK_OK(pn_data_dir_remove(&dir, at / PAGES - 1));
            CHECK_OK(read_pages(&dir, at / PAGES, at % PAGES, 1));
        }
}

static void test_a_reader_follows_a_writer_without_a_lock(void)
{
    start();
    told = mmap(NULL, sizeof *told, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(told != MAP_FAILED);
    pid_t pid = spawn(read_what_was_told, NULL);
    for (uint32_t at = 0, n; at < MANY; atomic_store(told, at += n)) {
        n = 1 + at % 7;
        n = at % PAGES + n > PAGES ? PAGES - at % PAGES : n;
        CHECK_OK(write_pages(&dir, at / PAGES, at % PAGES, n));
    }
    CHECK_CHILD(pid, 0);
    CHECK_EQ(files_in(data_dir), 1);
    munmap(told, sizeof *told);
}

/* ---- damage ---------------------------------------------------------------------------------- */

static void flip(int fd, off_t at)
{
    unsigned char byte;
    CHECK_EQ(pread(fd, &byte, 1, at), 1);
    byte = (unsigned char) (byte ^ 1U << (at % 8));
    CHECK_EQ(pwrite(fd, &byte, 1, at), 1);
}

/* Which pages can be read?  One bit each. */
static uint32_t readable(uint64_t number)
{
    uint32_t pages = 0;
    for (uint32_t i = 0; i < PAGES; i++) {
        int rc = read_pages(&dir, number, i, 1);
        if (rc == 0) {
            pages |= 1U << i;
            continue;
        }
        CHECK_EQ(rc, -EBADMSG);
        CHECK_SAYS(data_dir);
    }
    return pages;
}

static void test_a_flipped_bit_costs_its_page(void)
{
    start();
    CHECK_OK(write_pages(&dir, 9, 0, PAGES));
    path_of(&dir, 9, path);
    int fd = open(path, O_RDWR);
    for (off_t at = 0; at < PN_RECFILE_START; at++) /* of the file: nothing is read there */
        flip(fd, at);
    CHECK_EQ(readable(9), UINT32_MAX);
    for (uint32_t i = 0; i < PAGES; i++)
        for (off_t part = 0; part < PN_RECORD_HEADER + 4; part++) {
            bool header = part < PN_RECORD_HEADER;
            off_t in_page = PN_RECORD_HEADER + (part - PN_RECORD_HEADER) * (PAGE - 1) / 3;
            off_t at = page_at(i) + (header ? part : in_page);
            flip(fd, at);
            CHECK_EQ(read_pages(&dir, 9, i, 1), -EBADMSG);
            if (i % 8 == 0)
                CHECK_EQ(readable(9), UINT32_MAX & ~(1U << i));
            CHECK_EQ(pn_pages_find(&dir, 9, 0, tag_of(9, i)), header ? PAGES : i);
            flip(fd, at);
        }
    CHECK_EQ(readable(9), UINT32_MAX);
    close(fd);
}

static void test_a_page_that_cannot_be_read_is_an_error_of_its_file(void)
{
    start();
    CHECK_OK(write_pages(&dir, 7, 0, 2));
    disk_is_bad = true;
    CHECK_EQ(read_pages(&dir, 7, 0, 2), -EIO);
    disk_is_bad = false;
    path_of(&dir, 7, path);
    CHECK_SAYS(path);
    CHECK_SAYS(strerror(EIO)); /* each C library has words of its own */
    CHECK_OK(read_pages(&dir, 7, 0, 2));
}

static void test_a_truncated_file_keeps_the_pages_that_are_whole(void)
{
    start();
    CHECK_OK(write_pages(&dir, 9, 0, PAGES));
    path_of(&dir, 9, path);
    for (uint32_t left = PAGES; left-- > 0;) {
        CHECK_EQ(truncate(path, page_at(left + 1) - 1), 0);
        CHECK_EQ(readable(9), (1U << left) - 1);
    }
    for (off_t size = page_at(0) + 64; size >= 0; size -= 8) {
        CHECK_EQ(truncate(path, size), 0);
        CHECK_EQ(readable(9), 0);
    }
}

static void test_a_file_is_valid_under_its_own_name_only(void)
{
    struct pn_data_dir others[3];
    char elsewhere[512];
    start();
    others[0] = others[1] = others[2] = dir;
    CHECK_OK(pn_data_dir_init(&others[1], data_dir, geteuid(), "seg", INSTANCE + 1, 'q'));
    CHECK_OK(pn_data_dir_init(&others[2], data_dir, geteuid(), "seg", INSTANCE, 't'));
    for (int i = 0; i < 3; i++) {
        uint64_t number = i == 0 ? 8 : 9;
        CHECK_OK(write_pages(&dir, 9, 0, 2));
        path_of(&dir, 9, path);
        path_of(&others[i], number, elsewhere);
        CHECK_EQ(rename(path, elsewhere), 0);
        CHECK_EQ(read_pages(&others[i], number, 0, 1), -EBADMSG);
        CHECK_SAYS(elsewhere);
        CHECK_EQ(pn_pages_find(&others[i], number, 0, tag_of(9, 0)), PAGES);
    }
}

static void test_a_page_is_valid_in_its_own_place_only(void)
{
    unsigned char record[2][PAGE_RECORD];
    start();
    CHECK_OK(write_pages(&dir, 9, 0, 4));
    path_of(&dir, 9, path);
    int fd = open(path, O_RDWR);
    for (uint32_t i = 0; i < 2; i++)
        CHECK_EQ(pread(fd, record[i], PAGE_RECORD, page_at(1 + i)), PAGE_RECORD);
    for (uint32_t i = 0; i < 2; i++) /* each with its checksums */
        CHECK_EQ(pwrite(fd, record[i], PAGE_RECORD, page_at(2 - i)), PAGE_RECORD);
    close(fd);
    CHECK_EQ(readable(9), 0x9);
}

/* ---- names that are not ours ----------------------------------------------------------------- */

enum squatter { LINK_TO_FILE, LINK_TO_NOTHING, FIFO, DIRECTORY, SECOND_NAME, FOREIGN, SQUATTERS };

static bool squat(enum squatter kind, const char *elsewhere)
{
    int fd = open(elsewhere, O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0);
    CHECK_EQ(write(fd, "mine", 4), 4);
    close(fd);
    if (kind == LINK_TO_FILE)
        return symlink(elsewhere, path) == 0;
    if (kind == LINK_TO_NOTHING)
        return symlink("/nonexistent/nowhere", path) == 0;
    if (kind == FIFO)
        return mkfifo(path, 0600) == 0;
    if (kind == DIRECTORY)
        return mkdir(path, 0700) == 0;
    if (kind == SECOND_NAME)
        return link(elsewhere, path) == 0;
    CHECK_EQ(mknod(path, S_IFREG | 0666, 0), 0);
    return chown(path, 12345, 12345) == 0; /* for root only */
}

static void test_a_squatted_name_is_refused_and_its_owner_named(void)
{
    static const char *const words[] = {"symbolic link",      "symbolic link", "not a regular file",
                                        "not a regular file", "second name",   "user 12345"};
    char elsewhere[512], owner[32], bytes[8] = "";
    snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", data_dir);
    snprintf(owner, sizeof owner, "user %u", (unsigned) geteuid());
    for (enum squatter kind = 0; kind < SQUATTERS; kind++) {
        start();
        path_of(&dir, 9, path);
        if (!squat(kind, elsewhere))
            continue;
        for (uint32_t first = 0; first < 2; first++) {
            CHECK_EQ(write_pages(&dir, 9, first, 1), -EACCES);
            CHECK_SAYS(words[kind]);
            CHECK_SAYS(path);
            CHECK_SAYS(owner);
        }
        CHECK_EQ(read_pages(&dir, 9, 0, 1), -EACCES);
        CHECK_SAYS(words[kind]);
        int fd = open(elsewhere, O_RDONLY);
        CHECK_EQ(read(fd, bytes, sizeof bytes), 4);
        CHECK_STR(bytes, "mine");
        close(fd);
    }
}

static void test_a_directory_has_to_be_ours_alone(void)
{
    char sub[128], to_sub[128], owner[32];
    start();
    snprintf(sub, sizeof sub, "%s/sub", data_dir);
    snprintf(to_sub, sizeof to_sub, "%s/link", data_dir);
    CHECK_EQ(pn_data_dir_check("relative"), -EINVAL);
    CHECK_EQ(pn_data_dir_check(""), -EINVAL);
    CHECK_EQ(pn_data_dir_check(sub), -ENOENT);
    CHECK_SAYS(sub);
    CHECK_EQ(close(open(sub, O_CREAT | O_WRONLY, 0600)), 0);
    CHECK_EQ(pn_data_dir_check(sub), -ENOTDIR);
    CHECK_EQ(unlink(sub), 0);
    CHECK_EQ(mkdir(sub, 0700), 0);
    CHECK_OK(pn_data_dir_check(sub));
    CHECK_EQ(symlink(sub, to_sub), 0);
    CHECK_EQ(pn_data_dir_check(to_sub), -EACCES);
    CHECK_SAYS("symbolic link");
    for (mode_t bit = 02; bit <= 020; bit *= 8) {
        CHECK_EQ(chmod(sub, 0700 | bit), 0);
        CHECK_EQ(pn_data_dir_check(sub), -EACCES);
        CHECK_SAYS("others may write");
    }
    CHECK_EQ(chmod(sub, 0755), 0);
    CHECK_OK(pn_data_dir_check(sub));
    if (geteuid() == 0 && chown(sub, 12345, 0) == 0) {
        CHECK_EQ(pn_data_dir_check(sub), -EACCES);
        snprintf(owner, sizeof owner, "user %u", 12345U);
        CHECK_SAYS(owner);
    }
}

/* Looked at again at each call: it may be opened up, or replaced, while we use it. */
static void test_a_directory_that_was_opened_to_others_is_used_no_more(void)
{
    start();
    CHECK_OK(write_pages(&dir, 9, 0, 1));
    CHECK_EQ(chmod(data_dir, 0777), 0);
    CHECK_EQ(write_pages(&dir, 9, 1, 1), -EACCES);
    CHECK_EQ(read_pages(&dir, 9, 0, 1), -EACCES);
    CHECK_EQ(pn_data_dir_remove(&dir, 9), -EACCES);
    CHECK_EQ(pn_data_dir_remove_all(data_dir, geteuid(), "seg", 0), -EACCES);
    CHECK_EQ(chmod(data_dir, 0700), 0);
    CHECK_EQ(readable(9), 1);
}

/* ---- no room --------------------------------------------------------------------------------- */

/* What was there is there, a new file is gone again, and it works as soon as there is room. */
static void check_no_room(int error)
{
    CHECK_EQ(write_pages(&dir, 9, 4, PAGES - 4), -error);
    path_of(&dir, 9, path);
    CHECK_SAYS(path);
    CHECK_SAYS(strerror(error));
    CHECK_EQ(readable(9), 0xf);
    CHECK_EQ(write_pages(&dir, 10, 0, PAGES), -error);
    CHECK_EQ(write_pages(&dir, 10, 3, PAGES - 3), -error);
    CHECK_EQ(read_pages(&dir, 10, 3, 1), -ENOENT);
}

static void limited(void *arg)
{
    struct rlimit limit;
    (void) arg;
    CHECK_OK(write_pages(&dir, 9, 0, 4));
    CHECK_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = (rlim_t) page_at(10) + 100;
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    signal(SIGXFSZ, SIG_DFL); /* would kill */
    check_no_room(EFBIG);
    sigset_t pending, blocked;
    CHECK_EQ(sigpending(&pending), 0);
    CHECK_EQ(sigismember(&pending, SIGXFSZ), 0);
    CHECK_EQ(sigprocmask(SIG_BLOCK, NULL, &blocked), 0);
    CHECK_EQ(sigismember(&blocked, SIGXFSZ), 0);
    limit.rlim_cur = limit.rlim_max;
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    CHECK_OK(write_pages(&dir, 9, 4, PAGES - 4));
    CHECK_EQ(readable(9), UINT32_MAX);
}

static void test_a_file_size_limit_is_an_error_and_no_signal(void)
{
    start();
    CHECK_CHILD(spawn(limited, NULL), 0);
}

/* Instead of libc's: another process sends the signal meanwhile. */
static bool signal_comes;
int fallocate(int fd, int mode, off_t at, off_t n)
{
    if (signal_comes)
        raise(SIGXFSZ);
    return (int) syscall(SYS_fallocate, fd, mode, at, n);
}

static volatile sig_atomic_t signals_handled;
static void count_signal(int signo)
{
    (void) signo;
    signals_handled++;
}

static void test_a_foreign_signal_meanwhile_is_the_hosts(void)
{
    start();
    int fd = open(data_dir, O_TMPFILE | O_RDWR, 0600);
    CHECK(fd >= 0);
    signal(SIGXFSZ, count_signal);
    signal_comes = true;
    int rc = pn_data_file_reserve(fd, 0, 4096);
    signal_comes = false;
    CHECK(rc == 0 || rc == -EOPNOTSUPP);
    CHECK_EQ(signals_handled, 1);
    signal(SIGXFSZ, SIG_DFL);
    close(fd);
}

enum { MAY_NOT_MOUNT = 77 };

static void on_a_small_disk(void *arg)
{
    char ballast[160];
    (void) arg;
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", data_dir, "tmpfs", MS_NOSUID | MS_NODEV, "size=400k,mode=0700") != 0)
        _exit(MAY_NOT_MOUNT);
    CHECK_OK(write_pages(&dir, 9, 0, 4));
    snprintf(ballast, sizeof ballast, "%s/ballast", data_dir);
    int fd = open(ballast, O_CREAT | O_WRONLY, 0600);
    CHECK_EQ(posix_fallocate(fd, 0, 300 << 10), 0);
    check_no_room(ENOSPC);
    CHECK_EQ(ftruncate(fd, 0), 0);
    close(fd);
    CHECK_OK(write_pages(&dir, 9, 4, PAGES - 4));
    CHECK_EQ(readable(9), UINT32_MAX);
}

static void test_a_full_disk_loses_nothing(void)
{
    start();
    int status = reap(spawn(on_a_small_disk, NULL));
    if (WIFEXITED(status) && WEXITSTATUS(status) == MAY_NOT_MOUNT)
        printf("not for us: mounting a small disk\n");
    else
        CHECK_EQ(status, 0);
}

/* ---- removing -------------------------------------------------------------------------------- */

static void test_a_removed_file_is_gone_and_removing_it_again_is_no_error(void)
{
    start();
    CHECK_OK(write_pages(&dir, 9, 0, 2));
    CHECK_OK(write_pages(&dir, 10, 0, 2));
    CHECK_OK(pn_data_dir_remove(&dir, 9));
    CHECK_OK(pn_data_dir_remove(&dir, 9));
    CHECK_EQ(read_pages(&dir, 9, 0, 2), -ENOENT);
    CHECK_EQ(readable(10), 3);
}

static void test_remove_all_takes_the_segments_own_files_only(void)
{
    static const char *const kept[] = {"pynotify.%u.seg.0123456789abcdef.q.0123456789abcdef.more",
                                       "pynotify.%u.segment",
                                       "pynotify.%u.seg.x.0123456789abcdef.q.0123456789abcdef",
                                       "pynotify.%u.seg.0123456789abcdeF.q.0123456789abcdef",
                                       "pynotify.%u.seg.0123456789abcdef.qq0123456789abcdef",
                                       "xpynotify.%u.seg.0123456789abcdef.q.0123456789abcdef",
                                       "pynotify.%u.seg."};
    char name[128];
    struct pn_data_dir living;
    start();
    CHECK_OK(pn_data_dir_init(&living, data_dir, geteuid(), "seg", 77, 'q'));
    CHECK_OK(write_pages(&living, 1, 0, 1));
    for (uint64_t number = 0; number < 3; number++)
        CHECK_OK(write_pages(&dir, number, 0, 1));
    int root = open(data_dir, O_RDONLY | O_DIRECTORY);
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++) {
        snprintf(name, sizeof name, kept[i], (unsigned) geteuid());
        CHECK_EQ(close(openat(root, name, O_CREAT | O_EXCL | O_WRONLY, 0600)), 0);
    }
    close(root);
    unsigned others = sizeof kept / sizeof kept[0];
    CHECK_EQ(pn_data_dir_remove_all(data_dir, geteuid() + 1, "seg", 0), 0);
    CHECK_EQ(pn_data_dir_remove_all(data_dir, geteuid(), "se", 0), 0);
    CHECK_EQ(pn_data_dir_remove_all(data_dir, geteuid(), "seg", 77), 3);
    CHECK_EQ(files_in(data_dir), others + 1);
    CHECK_OK(read_pages(&living, 1, 0, 1));
    CHECK_EQ(pn_data_dir_remove_all(data_dir, geteuid(), "seg", 0), 1);
    CHECK_EQ(files_in(data_dir), others);
}

/* ---- files that are closed when the lock is released ----------------------------------------- */

/* Of those that this process has open, how many were removed? */
static unsigned removed_and_open(void)
{
    unsigned n = 0;
    DIR *fds = opendir("/proc/self/fd");
    CHECK(fds != NULL);
    for (struct dirent *d; (d = readdir(fds)) != NULL;) {
        struct stat st;
        n += fstatat(dirfd(fds), d->d_name, &st, 0) == 0 && S_ISREG(st.st_mode) && st.st_nlink == 0;
    }
    closedir(fds);
    return n;
}

/* Freeing the blocks of a file of 64 MiB takes milliseconds; the lock is not held for that. */
static void test_what_is_removed_in_a_hold_is_freed_after_it(void)
{
    enum { MORE = PN_CLOSE_LATER + 3 };
    const unsigned before = removed_and_open();
    for (uint64_t i = 0; i < MORE; i++)
        CHECK_OK(write_pages(&dir, i, 0, 1));
    pn_data_files_hold();
    for (uint64_t i = 0; i < MORE; i++) {
        CHECK_OK(pn_data_dir_remove(&dir, i));
        path_of(&dir, i, path);
        CHECK(access(path, F_OK) != 0); /* the name goes at once */
        CHECK_EQ(removed_and_open(), before + (i + 1 < PN_CLOSE_LATER ? i + 1 : PN_CLOSE_LATER));
    }
    pn_data_files_release();
    CHECK_EQ(removed_and_open(), before);
    CHECK_OK(write_pages(&dir, 1, 0, 1));
    CHECK_OK(pn_data_dir_remove(&dir, 1)); /* without the lock there is nothing to wait for */
    CHECK_EQ(removed_and_open(), before);
}

/* Two files have no room beside each other: the one that waits makes room for the other. */
static void in_the_room_of_a_removed_file(void *arg)
{
    (void) arg;
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", data_dir, "tmpfs", MS_NOSUID | MS_NODEV, "size=400k,mode=0700") != 0)
        _exit(77);
    const unsigned before = removed_and_open(); /* where the output goes, perhaps */
    CHECK_OK(write_pages(&dir, 1, 0, PAGES));
    CHECK_EQ(write_pages(&dir, 2, 0, PAGES), -ENOSPC);
    pn_data_files_hold();
    CHECK_OK(pn_data_dir_remove(&dir, 1));
    CHECK_EQ(removed_and_open(), before + 1);
    CHECK_OK(write_pages(&dir, 2, 0, PAGES));
    CHECK_EQ(removed_and_open(), before);
    pn_data_files_release();
}

static void test_a_full_disk_does_not_wait_for_the_end_of_a_hold(void)
{
    int status = reap(spawn(in_the_room_of_a_removed_file, NULL));
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        printf("not for us: mounting a small disk\n");
    else
        CHECK_EQ(status, 0);
}

int main(void)
{
    data_dir_make();
    test_watchdog(100);
    RUN(test_pages_come_back_as_they_were_written);
    RUN(test_a_file_grows_and_begins_anywhere);
    RUN(test_what_no_process_was_told_of_is_gone);
    RUN(test_a_reader_follows_a_writer_without_a_lock);
    RUN(test_pages_that_no_file_has_are_refused);
    RUN(test_a_descriptor_that_the_program_took_is_opened_again);
    RUN(test_a_removed_file_of_the_same_number_is_not_taken_for_the_new_one);
    RUN(test_files_have_mode_0600_under_any_umask);
    RUN(test_a_flipped_bit_costs_its_page);
    RUN(test_a_page_that_cannot_be_read_is_an_error_of_its_file);
    RUN(test_a_truncated_file_keeps_the_pages_that_are_whole);
    RUN(test_a_file_is_valid_under_its_own_name_only);
    RUN(test_a_page_is_valid_in_its_own_place_only);
    RUN(test_a_squatted_name_is_refused_and_its_owner_named);
    RUN(test_a_directory_has_to_be_ours_alone);
    RUN(test_a_directory_that_was_opened_to_others_is_used_no_more);
    RUN(test_a_file_size_limit_is_an_error_and_no_signal);
    RUN(test_a_foreign_signal_meanwhile_is_the_hosts);
    RUN(test_a_full_disk_loses_nothing);
    RUN(test_a_removed_file_is_gone_and_removing_it_again_is_no_error);
    RUN(test_remove_all_takes_the_segments_own_files_only);
    RUN(test_what_is_removed_in_a_hold_is_freed_after_it);
    RUN(test_a_full_disk_does_not_wait_for_the_end_of_a_hold);
    return tests_done();
}
