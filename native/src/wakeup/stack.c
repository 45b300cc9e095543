/* stack.c - see stack.h. */
#include "wakeup/stack.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/err.h"

typedef void stack_printer(int signo);
static _Atomic(stack_printer *) printer;
static pn_atomic_i32 printer_signo;
static struct sigaction kept_disposition; /* between the two calls that set the printer */

void pn_stack_print(void)
{
    static const char nothing[] = "pynotify: asked for the stack, but nothing here can print it\n";
    stack_printer *print = pn_load_acquire(&printer);
    if (print != NULL)
        print(pn_load_relaxed(&printer_signo));
    else if (write(STDERR_FILENO, nothing, sizeof nothing - 1) < 0)
        return;
}

int pn_stack_keep_disposition(int signo)
{
    if (sigaction(signo, NULL, &kept_disposition) != 0)
        return pn_fail(errno, "signal %d: %s", signo, strerror(errno));
    return 0;
}

int pn_stack_adopt_printer(int signo)
{
    struct sigaction current;
    if (sigaction(signo, &kept_disposition, &current) != 0)
        return pn_fail(errno, "signal %d: %s", signo, strerror(errno));
    pn_store_relaxed(&printer_signo, signo);
    pn_store_release(&printer, current.sa_handler);
    return 0;
}
