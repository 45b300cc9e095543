/* crashpoint.c - arming and reaching crash points; see crashpoint.h. */
#define _GNU_SOURCE
#include "base/crashpoint.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
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

/* Several places may share a label; each label counts once, at the first of them. */
static int is_first(const struct pn_crashpoint *const *point)
{
    for (const struct pn_crashpoint *const *p = __start_pn_crash_labels; p < point; p++)
        if (strcmp((*p)->label, (*point)->label) == 0)
            return 0;
    return 1;
}

PN_API int pn_crash_label_count(void)
{
    int n = 0;
    for (const struct pn_crashpoint *const *p = __start_pn_crash_labels; p < __stop_pn_crash_labels;
         p++)
        n += is_first(p);
    return n;
}

PN_API const char *pn_crash_label(int i)
{
    for (const struct pn_crashpoint *const *p = __start_pn_crash_labels; p < __stop_pn_crash_labels;
         p++)
        if (is_first(p) && i-- == 0)
            return (*p)->label;
    return NULL;
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
