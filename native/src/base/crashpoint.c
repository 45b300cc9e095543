/* crashpoint.c - arming and reaching crash points; see crashpoint.h. */
#define _GNU_SOURCE
#include "base/crashpoint.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/err.h"

#ifdef PN_CRASHPOINTS

/* The linker's bounds of the section that PN_CRASH fills; a program without any has none. */
extern const struct pn_crashpoint *const __start_pn_crash_labels[] __attribute__((weak));
extern const struct pn_crashpoint *const __stop_pn_crash_labels[] __attribute__((weak));

static char armed[64];
static pn_atomic_u32 hits_left; /* 0: not armed */
static int armed_action;

void pn_crash_reached(const struct pn_crashpoint *point)
{
    if (pn_load_acquire(&hits_left) == 0 || strcmp(point->label, armed) != 0)
        return;
    if (pn_fetch_sub(&hits_left, 1) != 1)
        return;
    if (armed_action == PN_CRASH_EXIT)
        _exit(99);
    kill(getpid(), armed_action == PN_CRASH_STOP ? SIGSTOP : SIGKILL);
}

PN_API int pn_crash_arm(const char *label, uint32_t nth, int action)
{
    if (strlen(label) >= sizeof armed || nth == 0)
        return pn_fail(EINVAL, "bad crash point");
    pn_store_release(&hits_left, 0);
    memcpy(armed, label, strlen(label) + 1);
    armed_action = action;
    pn_store_release(&hits_left, nth);
    return 0;
}

/*
 * Several places may share a label.  Each once, in the order of the first, made at the first use: a
 * test walks through them by their numbers.
 */
static const char *const *labels(int *count)
{
    enum { MAX_LABELS = 1024 };
    static const char *found[MAX_LABELS];
    static int n;
    const struct pn_crashpoint *const *p =
        n == 0 ? __start_pn_crash_labels : __stop_pn_crash_labels;
    for (; p < __stop_pn_crash_labels; p++) {
        int i = 0;
        while (i < n && strcmp(found[i], (*p)->label) != 0)
            i++;
        if (i == MAX_LABELS)
            abort();
        found[i] = (*p)->label;
        n = i == n ? n + 1 : n;
    }
    *count = n;
    return found;
}

PN_API int pn_crash_label_count(void)
{
    int n;
    labels(&n);
    return n;
}

PN_API const char *pn_crash_label(int i)
{
    int n;
    const char *const *found = labels(&n);
    return i >= 0 && i < n ? found[i] : NULL;
}

#else

PN_API int pn_crash_arm(const char *label, uint32_t nth, int action)
{
    (void) label;
    (void) nth;
    (void) action;
    return pn_fail(ENOSYS, "this build has no crash points");
}

PN_API int pn_crash_label_count(void)
{
    return 0;
}

PN_API const char *pn_crash_label(int i)
{
    (void) i;
    return NULL;
}

#endif
