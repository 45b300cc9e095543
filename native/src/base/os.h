/*
 * os.h - what the engine asks of Linux: identity, clock, eventfd, pidfd, record locks.
 *
 * The one place for system calls that other modules need, so that they read as algorithms.
 */
#ifndef PN_OS_H
#define PN_OS_H

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#define PN_SHM_DIR "/dev/shm"

/*
 * Of a _Thread_local that a signal handler or a thread at its end reads: there from the thread's
 * start, where the C library would else malloc it at the first use.  musl never does, and refuses
 * such a module in dlopen().
 */
#if defined(__GLIBC__)
#define PN_TLS_AT_START __attribute__((tls_model("initial-exec")))
#else
#define PN_TLS_AT_START
#endif

/* CLOCK_MONOTONIC in ns; the coarse one lags by up to a tick and costs a third. */
int64_t pn_now_ns(void);
int64_t pn_now_coarse_ns(void);

/* How long ago that was; any number, where shared memory says when and was scribbled over. */
static inline int64_t pn_since(int64_t now, uint64_t then)
{
    return (int64_t) ((uint64_t) now - then);
}

/* When `ns` from now on is, ns >= 0: no later than the last moment there is. */
static inline int64_t pn_after(int64_t now, int64_t ns)
{
    return ns > INT64_MAX - now ? INT64_MAX : now + ns;
}

/* getpid() without the system call; refreshed in forked children by procsignal.c. */
extern int32_t pn_my_pid;
void pn_os_know_ourselves(void); /* at load, and in a forked child */

/* Fill in the boot id (16 bytes) and the inode of our pid namespace.  0 or -errno. */
int pn_os_boot_id(uint8_t boot_id[16]);
/* Which namespace of a kind ("pid", "time") this process is in. */
int pn_os_namespace(const char *kind, uint64_t *ino);

/* Processors this process may run on, as of the last refresh (an affinity may change). */
int pn_os_cpus(void);
void pn_os_refresh_cpus(void);

uint64_t pn_os_random(void);

/* Record locks.  All queries are F_OFD_GETLK, which sees this process's own fcntl locks too. */
enum pn_lock_query { PN_LOCK_FREE = 0, PN_LOCK_OFD = -1 };
int pn_os_lock_take(int fd, int64_t byte);     /* fcntl, this process's; 0 or -errno */
int pn_os_lock_take_ofd(int fd, int64_t byte); /* of the open file description */
int pn_os_lock_drop(int fd, int64_t byte);
int pn_os_lock_drop_ofd(int fd, int64_t byte);

/* The holder of a lock in [first, first + len): pid, PN_LOCK_OFD, PN_LOCK_FREE, or -errno - 1. */
int32_t pn_os_lock_holder(int fd, int64_t first, int64_t len, int64_t *start, int64_t *span);

/* pidfd, or -errno. */
int pn_os_pidfd_open(int32_t pid);
/* What tells its process from all others; 0: it is no pidfd, or of Linux before 6.9. */
uint64_t pn_os_pidfd_id(int pidfd);
bool pn_os_pidfd_dead(int pidfd);
/* Send with SI_QUEUE and our magic.  0 or -errno. */
int pn_os_pidfd_signal(int pidfd, int signo, uint64_t value);

/* Does the process catch the signal?  1, 0, or -errno.  Async-signal-safe, as is all of pidfd. */
int pn_os_catches(int32_t pid, int signo);

/* pthread_mutex_lock that gives up at `deadline` of CLOCK_MONOTONIC: ETIMEDOUT. */
int pn_os_lock_until(pthread_mutex_t *mutex, int64_t deadline);

/* 0, or -errno: a robust mutex of a thread that is killed is given to no other here. */
int pn_os_robust(void);

int pn_futex_wait(const void *word, uint32_t expected, int64_t timeout_ns);
void pn_futex_wake_all(const void *word);

#endif
