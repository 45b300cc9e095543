/*
 * kernel.h - what some tests need of the kernel, and an emulator of user programs (qemu-user) does
 * not have: asked here, for RUN_WHERE().
 */
#ifndef PN_TESTS_KERNEL_H
#define PN_TESTS_KERNEL_H

#include "harness.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/os.h"

static inline bool robust_mutexes(void)
{
    return pn_os_robust() == 0;
}

/* An emulator catches itself what would end the program, and /proc shows that. */
static inline bool handlers_in_proc(void)
{
    return pn_os_catches(getpid(), SIGVTALRM) == 0;
}

/* An emulator has other numbers of these for the system, and forgets that siginfo has one, too. */
static inline bool realtime_signals_by_pidfd(void)
{
    const int signo = SIGRTMIN + 3, pidfd = pn_os_pidfd_open(getpid());
    void (*before)(int) = signal(signo, SIG_IGN);
    int rc = pn_os_pidfd_signal(pidfd, signo, 0);
    signal(signo, before);
    close(pidfd);
    return rc == 0;
}

static inline bool seccomp_filters(void)
{
    return prctl(PR_GET_SECCOMP, 0, 0, 0, 0) >= 0;
}

/* From now on, in this process and its children, the system call fails so. */
static inline void refuse_call(uint32_t number, uint32_t error)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    const struct sock_fprog filter = {sizeof code / sizeof code[0], code};
    CHECK_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    CHECK_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
}

#endif
