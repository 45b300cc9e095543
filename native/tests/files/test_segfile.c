/*
 * Files of pages: what was written is read, what is damaged is found and costs no more than it
 * must, a full disk and a squatted name are errors that say so, and nothing else is touched.
 * test_crash_segfile.c kills the writer.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "segfiles.h"

#include <sched.h>
#include <stdatomic.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "files/datafile.h"

static struct pn_segfile_dir dir;
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
    CHECK_OK(pn_segfile_open_dir(&dir, data_dir, geteuid(), "seg", INSTANCE, 'q'));
}

static int open_file(uint64_t number)
{
    int fd = pn_segfile_open_read(&dir, number);
    CHECK_OK(fd);
    return fd;
}

/* ---- what is written is read ----------------------------------------------------------------- */

static void test_pages_come_back_as_they_were_written(void)
{
    uint32_t tags[PAGES];
    start();
    for (uint64_t number = 0; number < 3; number++)
        for (uint32_t first = 0, n; first < PAGES; first += n) {
            n = number == 0 ? 1 : number == 1 ? PAGES : 5;
            n = first + n > PAGES ? PAGES - first : n;
            CHECK_OK(write_pages(&dir, number, first, n));
        }
    for (uint64_t number = 0; number < 3; number++) {
        int fd = open_file(number);
        CHECK_OK(read_pages(fd, number, 0, PAGES));
        CHECK_OK(read_pages(fd, number, 31, 1));
        CHECK_OK(read_pages(fd, number, 7, 11));
        CHECK_OK(read_pages(fd, number, 32, 0));
        CHECK_OK(pn_segfile_tags(fd, tags));
        for (uint32_t i = 0; i < PAGES; i++)
            CHECK_EQ(tags[i], tag_of(number, i));
        close(fd);
    }
    CHECK_EQ(files_in(data_dir), 3);
    CHECK_EQ(pn_segfile_open_read(&dir, 3), -ENOENT);
}

static void test_a_file_is_read_while_it_grows(void)
{
    uint32_t tags[PAGES];
    start();
    CHECK_OK(write_pages(&dir, UINT64_MAX / 3, 0, 4));
    int fd = open_file(UINT64_MAX / 3);
    CHECK_EQ(read_pages(fd, UINT64_MAX / 3, 4, 1), -EBADMSG);
    CHECK_EQ(read_pages(fd, UINT64_MAX / 3, 0, 5), -EBADMSG);
    CHECK_SAYS("it ends before page 5");
    CHECK_OK(write_pages(&dir, UINT64_MAX / 3, 6, 2)); /* a hole is no page */
    CHECK_EQ(read_pages(fd, UINT64_MAX / 3, 5, 1), -EBADMSG);
    CHECK_OK(pn_segfile_tags(fd, tags));
    CHECK_EQ(tags[5], 0);
    CHECK_OK(read_pages(fd, UINT64_MAX / 3, 6, 2));
    CHECK_OK(write_pages(&dir, UINT64_MAX / 3, 4, 2));
    CHECK_OK(read_pages(fd, UINT64_MAX / 3, 0, 8));
    close(fd);
}

static void test_pages_that_no_file_has_are_refused(void)
{
    start();
    CHECK_OK(write_pages(&dir, 1, 0, 1));
    int fd = open_file(1);
    const void *none[1] = {NULL};
    CHECK_EQ(pn_segfile_write(&dir, 1, 0, none, NULL, 0), -EINVAL);
    CHECK_EQ(pn_segfile_write(&dir, 1, 32, none, NULL, 1), -EINVAL);
    CHECK_EQ(pn_segfile_write(&dir, 1, 1, none, NULL, 32), -EINVAL);
    CHECK_EQ(pn_segfile_write(&dir, 1, UINT32_MAX, none, NULL, 1), -EINVAL);
    CHECK_EQ(pn_segfile_read(fd, 1, 0, 33, NULL), -EINVAL);
    CHECK_EQ(pn_segfile_read(fd, 1, UINT32_MAX, 2, NULL), -EINVAL);
    close(fd);
}

static void test_a_descriptor_that_was_taken_away_is_noticed(void)
{
    uint32_t tags[PAGES];
    start();
    CHECK_OK(write_pages(&dir, 1, 0, 2));
    CHECK_OK(write_pages(&dir, 2, 0, 2));
    int fd = open_file(1), other = open_file(2), null = open("/dev/null", O_RDONLY);
    CHECK_EQ(read_pages(other, 1, 0, 1), -EBADF);
    CHECK_EQ(dup2(null, fd), fd);
    CHECK_EQ(read_pages(fd, 1, 0, 1), -EBADF);
    CHECK_EQ(pn_segfile_tags(fd, tags), -EBADF);
    close(null);
    close(fd);
    CHECK_EQ(read_pages(fd, 1, 0, 1), -EBADF);
    close(other);
}

/* As the newest, partly used file of a queue that was empty for a moment. */
static void test_a_removed_file_of_the_same_number_is_not_taken_for_the_new_one(void)
{
    start();
    CHECK_OK(write_pages(&dir, 1, 0, 2));
    int fd = open_file(1);
    CHECK_OK(pn_segfile_remove(&dir, 1));
    CHECK_OK(write_pages(&dir, 1, 2, 2));
    CHECK_OK(read_pages(fd, 1, 0, 2));
    CHECK_EQ(read_pages(fd, 1, 2, 1), -EBADF);
    CHECK_EQ(read_pages(fd, 1, 0, 3), -EBADF);
    close(fd);
    fd = open_file(1);
    CHECK_OK(read_pages(fd, 1, 2, 2));
    CHECK_EQ(read_pages(fd, 1, 0, 1), -EBADMSG);
    close(fd);
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
    int fd = -1;
    (void) arg;
    for (uint32_t at = 0; at < MANY; sched_yield())
        for (uint32_t end = atomic_load(told); at < end; at++) {
            if (fd >= 0 && at % PAGES == 0) {
                close(fd);
                CHECK_OK(pn_segfile_remove(&dir, at / PAGES - 1));
                fd = -1;
            }
            if (fd < 0)
                fd = open_file(at / PAGES);
            CHECK_OK(read_pages(fd, at / PAGES, at % PAGES, 1));
        }
    close(fd);
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

/* Which pages can be read?  One bit each; 0 if the file cannot be opened, for being damaged. */
static uint32_t readable(uint64_t number)
{
    uint32_t pages = 0;
    int fd = pn_segfile_open_read(&dir, number);
    if (fd < 0) {
        CHECK_EQ(fd, -EBADMSG);
        CHECK_SAYS("damaged");
        CHECK_SAYS(data_dir);
        return 0;
    }
    for (uint32_t i = 0; i < PAGES; i++) {
        int rc = read_pages(fd, number, i, 1);
        if (rc == 0)
            pages |= 1U << i;
        else
            CHECK_EQ(rc, -EBADMSG);
    }
    close(fd);
    return pages;
}

static void test_a_flipped_bit_costs_its_page_and_in_the_header_its_file(void)
{
    start();
    CHECK_OK(write_pages(&dir, 9, 0, PAGES));
    path_of(&dir, 9, path);
    int fd = open(path, O_RDWR);
    for (off_t at = 0; at < 64; at++) {
        flip(fd, at);
        CHECK_EQ(readable(9), 0);
        flip(fd, at);
    }
    for (uint32_t i = 0; i < PAGES; i++)
        for (off_t part = 0; part < 5; part++) {
            off_t in_page = PN_SEGFILE_HEADER + (off_t) i * PAGE;
            off_t at = part == 0 ? 64 + (off_t) i * 12 + 3 : in_page + (part - 1) * (PAGE - 1) / 3;
            flip(fd, at);
            CHECK_EQ(readable(9), UINT32_MAX & ~(1U << i));
            flip(fd, at);
        }
    CHECK_EQ(readable(9), UINT32_MAX);
    close(fd);
}

/* The disk reads headers, and nothing behind them. */
static bool disk_is_bad;

ssize_t pread(int fd, void *out, size_t n, off_t at)
{
    if (disk_is_bad && at > 0) {
        errno = EIO;
        return -1;
    }
    return syscall(SYS_pread64, fd, out, n, at);
}

static void test_a_page_that_cannot_be_read_is_an_error_of_its_file(void)
{
    start();
    CHECK_OK(write_pages(&dir, 7, 0, 2));
    int fd = open_file(7);
    disk_is_bad = true;
    CHECK_EQ(read_pages(fd, 7, 0, 2), -EIO);
    disk_is_bad = false;
    char expected[80];
    snprintf(expected, sizeof expected, "could not read file 7: %s", strerror(EIO));
    CHECK_SAYS(expected); /* each C library has words of its own */
    CHECK_OK(read_pages(fd, 7, 0, 2));
    close(fd);
}

static void test_a_damaged_tag_reads_as_0_and_costs_no_page(void)
{
    uint32_t tags[PAGES];
    start();
    CHECK_OK(write_pages(&dir, 9, 0, PAGES));
    path_of(&dir, 9, path);
    int fd = open(path, O_RDWR);
    for (uint32_t i = 0; i < PAGES; i++)
        for (off_t byte = 4; byte < 12; byte++) {
            flip(fd, 64 + (off_t) i * 12 + byte);
            CHECK_OK(pn_segfile_tags(fd, tags));
            for (uint32_t k = 0; k < PAGES; k++)
                CHECK_EQ(tags[k], k == i ? 0 : tag_of(9, k));
            CHECK_EQ(readable(9), UINT32_MAX);
            flip(fd, 64 + (off_t) i * 12 + byte);
        }
    close(fd);
}

static void test_a_truncated_file_keeps_the_pages_that_are_whole(void)
{
    start();
    CHECK_OK(write_pages(&dir, 9, 0, PAGES));
    path_of(&dir, 9, path);
    for (uint32_t left = PAGES; left-- > 0;) {
        CHECK_EQ(truncate(path, PN_SEGFILE_HEADER + (off_t) (left + 1) * PAGE - 1), 0);
        CHECK_EQ(readable(9), (1U << left) - 1);
    }
    for (off_t size = 448; size >= 0; size -= 64) {
        CHECK_EQ(truncate(path, size), 0);
        int fd = pn_segfile_open_read(&dir, 9);
        CHECK(fd == -EBADMSG || fd >= 0);
        if (fd >= 0) {
            CHECK(read_pages(fd, 9, 0, 1) < 0);
            close(fd);
        }
    }
}

static void test_a_file_is_valid_under_its_own_name_only(void)
{
    struct pn_segfile_dir others[3];
    char elsewhere[512];
    start();
    others[0] = others[1] = others[2] = dir;
    CHECK_OK(pn_segfile_open_dir(&others[1], data_dir, geteuid(), "seg", INSTANCE + 1, 'q'));
    CHECK_OK(pn_segfile_open_dir(&others[2], data_dir, geteuid(), "seg", INSTANCE, 't'));
    for (int i = 0; i < 3; i++) {
        uint64_t number = i == 0 ? 8 : 9;
        CHECK_OK(write_pages(&dir, 9, 0, 2));
        path_of(&dir, 9, path);
        path_of(&others[i], number, elsewhere);
        CHECK_EQ(rename(path, elsewhere), 0);
        CHECK_EQ(pn_segfile_open_read(&others[i], number), -EBADMSG);
        CHECK_SAYS(elsewhere);
    }
}

static void test_a_page_is_valid_in_its_own_place_only(void)
{
    enum { ENTRY = 12 }; /* bytes that the header has for a page */
    unsigned char page[2][PAGE], entry[2][ENTRY];
    start();
    CHECK_OK(write_pages(&dir, 9, 0, 4));
    path_of(&dir, 9, path);
    int fd = open(path, O_RDWR);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(pread(fd, page[i], PAGE, PN_SEGFILE_HEADER + (off_t) (1 + i) * PAGE), PAGE);
        CHECK_EQ(pread(fd, entry[i], ENTRY, 64 + (1 + i) * ENTRY), ENTRY);
    }
    for (int i = 0; i < 2; i++) { /* each with its checksum */
        CHECK_EQ(pwrite(fd, page[i], PAGE, PN_SEGFILE_HEADER + (off_t) (2 - i) * PAGE), PAGE);
        CHECK_EQ(pwrite(fd, entry[i], ENTRY, 64 + (2 - i) * ENTRY), ENTRY);
    }
    close(fd);
    CHECK_EQ(readable(9), 0x9);
}

static void test_a_page_is_written_again_where_the_header_was_damaged(void)
{
    start();
    CHECK_OK(write_pages(&dir, 9, 0, 4));
    path_of(&dir, 9, path);
    int fd = open(path, O_RDWR);
    flip(fd, 0);
    close(fd);
    CHECK_OK(write_pages(&dir, 9, 4, 4));
    CHECK_EQ(readable(9), 0xf0);
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
        CHECK_EQ(write_pages(&dir, 9, 0, 1), -EACCES);
        CHECK_SAYS(words[kind]);
        CHECK_SAYS(path);
        CHECK_SAYS(owner);
        CHECK_EQ(pn_segfile_open_read(&dir, 9), -EACCES);
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
    CHECK_EQ(pn_segfile_check_dir("relative"), -EINVAL);
    CHECK_EQ(pn_segfile_check_dir(""), -EINVAL);
    CHECK_EQ(pn_segfile_check_dir(sub), -ENOENT);
    CHECK_SAYS(sub);
    CHECK_EQ(close(open(sub, O_CREAT | O_WRONLY, 0600)), 0);
    CHECK_EQ(pn_segfile_check_dir(sub), -ENOTDIR);
    CHECK_EQ(unlink(sub), 0);
    CHECK_EQ(mkdir(sub, 0700), 0);
    CHECK_OK(pn_segfile_check_dir(sub));
    CHECK_EQ(symlink(sub, to_sub), 0);
    CHECK_EQ(pn_segfile_check_dir(to_sub), -EACCES);
    CHECK_SAYS("symbolic link");
    for (mode_t bit = 02; bit <= 020; bit *= 8) {
        CHECK_EQ(chmod(sub, 0700 | bit), 0);
        CHECK_EQ(pn_segfile_check_dir(sub), -EACCES);
        CHECK_SAYS("others may write");
    }
    CHECK_EQ(chmod(sub, 0755), 0);
    CHECK_OK(pn_segfile_check_dir(sub));
    if (geteuid() == 0 && chown(sub, 12345, 0) == 0) {
        CHECK_EQ(pn_segfile_check_dir(sub), -EACCES);
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
    CHECK_EQ(pn_segfile_open_read(&dir, 9), -EACCES);
    CHECK_EQ(pn_segfile_remove(&dir, 9), -EACCES);
    CHECK_EQ(pn_segfile_remove_all(data_dir, geteuid(), "seg", 0), -EACCES);
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
    CHECK_EQ(pn_segfile_open_read(&dir, 10), -ENOENT);
}

static void limited(void *arg)
{
    struct rlimit limit;
    (void) arg;
    CHECK_OK(write_pages(&dir, 9, 0, 4));
    CHECK_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = PN_SEGFILE_HEADER + 10 * PAGE + 100;
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
    int fd = open_file(9);
    CHECK_OK(pn_segfile_remove(&dir, 9));
    CHECK_OK(pn_segfile_remove(&dir, 9));
    CHECK_EQ(pn_segfile_open_read(&dir, 9), -ENOENT);
    CHECK_OK(read_pages(fd, 9, 0, 2)); /* a process that has it open reads on */
    close(fd);
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
    struct pn_segfile_dir living;
    start();
    CHECK_OK(pn_segfile_open_dir(&living, data_dir, geteuid(), "seg", 77, 'q'));
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
    CHECK_EQ(pn_segfile_remove_all(data_dir, geteuid() + 1, "seg", 0), 0);
    CHECK_EQ(pn_segfile_remove_all(data_dir, geteuid(), "se", 0), 0);
    CHECK_EQ(pn_segfile_remove_all(data_dir, geteuid(), "seg", 77), 3);
    CHECK_EQ(files_in(data_dir), others + 1);
    CHECK_OK(close(pn_segfile_open_read(&living, 1)));
    CHECK_EQ(pn_segfile_remove_all(data_dir, geteuid(), "seg", 0), 1);
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
        CHECK_OK(pn_segfile_remove(&dir, i));
        path_of(&dir, i, path);
        CHECK(access(path, F_OK) != 0); /* the name goes at once */
        CHECK_EQ(removed_and_open(), before + (i + 1 < PN_CLOSE_LATER ? i + 1 : PN_CLOSE_LATER));
    }
    pn_data_files_release();
    CHECK_EQ(removed_and_open(), before);
    CHECK_OK(write_pages(&dir, 1, 0, 1));
    CHECK_OK(pn_segfile_remove(&dir, 1)); /* without the lock there is nothing to wait for */
    CHECK_EQ(removed_and_open(), before);
}

/* Two files have no room beside each other: the one that waits makes room for the other. */
static void in_the_room_of_a_removed_file(void *arg)
{
    (void) arg;
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", data_dir, "tmpfs", MS_NOSUID | MS_NODEV, "size=400k,mode=0700") != 0)
        _exit(77);
    CHECK_OK(write_pages(&dir, 1, 0, PAGES));
    CHECK_EQ(write_pages(&dir, 2, 0, PAGES), -ENOSPC);
    pn_data_files_hold();
    CHECK_OK(pn_segfile_remove(&dir, 1));
    CHECK_EQ(removed_and_open(), 1);
    CHECK_OK(write_pages(&dir, 2, 0, PAGES));
    CHECK_EQ(removed_and_open(), 0);
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
    RUN(test_a_file_is_read_while_it_grows);
    RUN(test_a_reader_follows_a_writer_without_a_lock);
    RUN(test_pages_that_no_file_has_are_refused);
    RUN(test_a_descriptor_that_was_taken_away_is_noticed);
    RUN(test_a_removed_file_of_the_same_number_is_not_taken_for_the_new_one);
    RUN(test_files_have_mode_0600_under_any_umask);
    RUN(test_a_flipped_bit_costs_its_page_and_in_the_header_its_file);
    RUN(test_a_damaged_tag_reads_as_0_and_costs_no_page);
    RUN(test_a_page_that_cannot_be_read_is_an_error_of_its_file);
    RUN(test_a_truncated_file_keeps_the_pages_that_are_whole);
    RUN(test_a_file_is_valid_under_its_own_name_only);
    RUN(test_a_page_is_valid_in_its_own_place_only);
    RUN(test_a_page_is_written_again_where_the_header_was_damaged);
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
