/* os.c - see os.h. */
#define _GNU_SOURCE
#include "base/os.h"

#include "base/atomic.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

/* glibc 2.30 has pthread_mutex_clocklock(), musl has not */
#if defined(__GLIBC__) && !defined(PN_WITHOUT_CLOCKLOCK)
#define WITH_CLOCKLOCK __GLIBC_PREREQ(2, 30)
#else
#define WITH_CLOCKLOCK 0
#endif

int32_t pn_my_pid;
static uid_t my_uid;

void pn_os_know_ourselves(void)
{
    pn_my_pid = getpid();
    my_uid = getuid();
}

int64_t pn_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t) ts.tv_sec * 1000000000 + ts.tv_nsec;
}

int64_t pn_now_coarse_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
    return (int64_t) ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* Read a small /proc file whole; returns its length or -errno. */
static ssize_t read_small(const char *path, char *buf, size_t cap)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    size_t used = 0;
    ssize_t n;
    while (used + 1 < cap && (n = read(fd, buf + used, cap - 1 - used)) > 0)
        used += (size_t) n;
    close(fd);
    buf[used] = '\0';
    return (ssize_t) used;
}

int pn_os_boot_id(uint8_t boot_id[16])
{
    char text[64];
    ssize_t n = read_small("/proc/sys/kernel/random/boot_id", text, sizeof text);
    if (n < 0)
        return (int) n;
    int nibbles = 0;
    memset(boot_id, 0, 16);
    for (const char *p = text; *p != '\0' && nibbles < 32; p++) {
        int digit;
        if (*p >= '0' && *p <= '9')
            digit = *p - '0';
        else if (*p >= 'a' && *p <= 'f')
            digit = *p - 'a' + 10;
        else
            continue;
        boot_id[nibbles / 2] = (uint8_t) (boot_id[nibbles / 2] << 4 | digit);
        nibbles++;
    }
    return nibbles == 32 ? 0 : -EIO;
}

int pn_os_namespace(const char *kind, uint64_t *ino)
{
    struct stat st;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/ns/%s", kind);
    if (stat(path, &st) != 0)
        return -errno;
    *ino = st.st_ino;
    return 0;
}

static pn_atomic_i32 cpus = 1;

int pn_os_cpus(void)
{
    return pn_load_relaxed(&cpus);
}

void pn_os_refresh_cpus(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        pn_store_relaxed(&cpus, CPU_COUNT(&set));
}

uint64_t pn_os_random(void)
{
    uint64_t value = 0;
    if (getrandom(&value, sizeof value, GRND_NONBLOCK) != (ssize_t) sizeof value)
        value = (uint64_t) pn_now_ns() ^ (uint64_t) getpid() << 40;
    return value;
}

static int lock_op(int fd, int cmd, short type, int64_t byte)
{
    struct flock fl = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(fd, cmd, &fl) == 0 ? 0 : -errno;
}

int pn_os_lock_take(int fd, int64_t byte)
{
    return lock_op(fd, F_SETLK, F_WRLCK, byte);
}

int pn_os_lock_take_ofd(int fd, int64_t byte)
{
    return lock_op(fd, F_OFD_SETLK, F_WRLCK, byte);
}

int pn_os_lock_drop(int fd, int64_t byte)
{
    return lock_op(fd, F_SETLK, F_UNLCK, byte);
}

int pn_os_lock_drop_ofd(int fd, int64_t byte)
{
    return lock_op(fd, F_OFD_SETLK, F_UNLCK, byte);
}

int32_t pn_os_lock_holder(int fd, int64_t first, int64_t len, int64_t *start, int64_t *span)
{
    struct flock fl = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = first, .l_len = len};
    if (fcntl(fd, F_OFD_GETLK, &fl) != 0)
        return -errno - 1;
    if (fl.l_type == F_UNLCK)
        return PN_LOCK_FREE;
    if (start != NULL)
        *start = fl.l_start;
    if (span != NULL)
        *span = fl.l_len;
    return fl.l_pid > 0 ? fl.l_pid : PN_LOCK_OFD;
}

int pn_os_pidfd_open(int32_t pid)
{
    long fd = syscall(SYS_pidfd_open, pid, 0);
    return fd >= 0 ? (int) fd : -errno;
}

#define PN_PIDFS_MAGIC 0x50494446 /* <linux/magic.h> of older systems lacks it */

/* The device number of pidfs, as long as the system runs; 0: not seen yet. */
static pn_atomic_u64 pidfs;

uint64_t pn_os_pidfd_id(int pidfd)
{
    struct statfs fs;
    struct stat st;
    if (fstat(pidfd, &st) != 0)
        return 0;
    if (st.st_dev != 0 && st.st_dev == pn_load_relaxed(&pidfs))
        return st.st_ino; /* before each signal: one system call */
    if (fstatfs(pidfd, &fs) != 0 || fs.f_type != PN_PIDFS_MAGIC)
        return 0;
    pn_store_relaxed(&pidfs, st.st_dev);
    return st.st_ino;
}

bool pn_os_pidfd_dead(int pidfd)
{
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    return poll(&p, 1, 0) == 1 && (p.revents & (POLLIN | POLLHUP)) != 0;
}

int pn_os_pidfd_signal(int pidfd, int signo, uint64_t value)
{
    siginfo_t info;
    memset(&info, 0, sizeof info);
    info.si_signo = signo;
    info.si_code = SI_QUEUE;
    info.si_pid = pn_my_pid;
    info.si_uid = my_uid; /* for people that look; getuid() would cost half of the send */
    info.si_value.sival_ptr = (void *) (uintptr_t) value;
    return syscall(SYS_pidfd_send_signal, pidfd, signo, &info, 0) == 0 ? 0 : -errno;
}

/* The hexadecimal number after `key`, which begins with a newline, in a file of any length. */
static int find_hex(int fd, const char *key, uint64_t *value)
{
    char text[512]; /* it may be a small stack that we are on */
    size_t matched = 0;
    ssize_t n;
    *value = 0;
    while ((n = read(fd, text, sizeof text)) > 0)
        for (ssize_t i = 0; i < n; i++) {
            char c = text[i];
            if (key[matched] != '\0')
                matched = c == key[matched] ? matched + 1 : c == '\n';
            else if (c >= '0' && c <= '9')
                *value = *value << 4 | (uint64_t) (c - '0');
            else if (c >= 'a' && c <= 'f')
                *value = *value << 4 | (uint64_t) (c - 'a' + 10);
            else if (c == '\n')
                return 0;
        }
    return -EIO;
}

int pn_os_catches(int32_t pid, int signo)
{
    char path[40] = "/proc/", digits[12];
    size_t at = 6, count = 0;
    uint64_t caught;
    for (uint32_t left = (uint32_t) pid; count == 0 || left != 0; left /= 10)
        digits[count++] = (char) ('0' + left % 10);
    while (count > 0)
        path[at++] = digits[--count];
    memcpy(path + at, "/status", sizeof "/status");
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int rc = find_hex(fd, "\nSigCgt:", &caught);
    close(fd);
    return rc != 0 ? rc : (int) (caught >> (signo - 1) & 1);
}

#if defined(__SANITIZE_THREAD__) /* knows EOWNERDEAD from trylock only, and no clocklock */
int pn_os_lock_until(pthread_mutex_t *mutex, int64_t deadline)
{
    const struct timespec pause = {.tv_nsec = 100000};
    int rc;
    while ((rc = pthread_mutex_trylock(mutex)) == EBUSY && pn_now_ns() < deadline)
        nanosleep(&pause, NULL);
    return rc == EBUSY ? ETIMEDOUT : rc;
}
#elif !WITH_CLOCKLOCK /* by the wall clock */
int pn_os_lock_until(pthread_mutex_t *mutex, int64_t deadline)
{
    /* in slices: a clock that is set back lengthens one of them only */
    const int64_t slice = 100000000;
    int rc;
    do {
        int64_t left = deadline - pn_now_ns();
        struct timespec ts;
        clock_gettime(CLOCK_REALTIME, &ts);
        int64_t until = ts.tv_sec * 1000000000 + ts.tv_nsec + (left < slice ? left : slice);
        ts.tv_sec = until / 1000000000;
        ts.tv_nsec = until % 1000000000;
        rc = pthread_mutex_timedlock(mutex, &ts);
    } while (rc == ETIMEDOUT && pn_now_ns() < deadline);
    return rc;
}
#else
int pn_os_lock_until(pthread_mutex_t *mutex, int64_t deadline)
{
    struct timespec ts = {.tv_sec = deadline / 1000000000, .tv_nsec = deadline % 1000000000};
    return pthread_mutex_clocklock(mutex, CLOCK_MONOTONIC, &ts);
}
#endif

/*
 * The kernel looks at the length first: EINVAL says that it has the call, and changes nothing; what
 * takes any length does nothing (an emulator).  musl makes no robust mutex where it cannot ask for
 * the list, either.
 */
int pn_os_robust(void)
{
#if !defined(__GLIBC__)
    void *head;
    size_t len;
    if (syscall(SYS_get_robust_list, 0, &head, &len) != 0)
        return -errno;
#endif
    if (syscall(SYS_set_robust_list, NULL, 0) == 0)
        return -ENOSYS;
    return errno == EINVAL ? 0 : -errno;
}

int pn_futex_wait(const void *word, uint32_t expected, int64_t timeout_ns)
{
    struct timespec ts = {.tv_sec = timeout_ns / 1000000000, .tv_nsec = timeout_ns % 1000000000};
    return syscall(SYS_futex, word, FUTEX_WAIT, expected, &ts, NULL, 0) == 0 ? 0 : -errno;
}

void pn_futex_wake_all(const void *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}
