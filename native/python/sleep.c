/*
 * sleep.c - sleeps that a signal of the program's always ends.
 *
 * 1. Python's C handler only notes a signal; its handlers run at the main thread's next bytecode.
 *    A signal that is noted after the interpreter's last look, and before the kernel has put the
 *    thread to sleep, interrupts nothing: its handlers would run when the sleep has ended for
 *    something else.  To block signals meanwhile does not help: another thread notes them then.
 * 2. But the C handler also writes to the wakeup fd, if there is one (signal.set_wakeup_fd()).
 *    While the main thread sleeps that is a FIFO of ours, the bell, and the core sleeps on it, too
 *    (latch.c 8).  First the bell is emptied and set, then the handlers of what was noted before
 *    run; whatever comes afterwards rings.
 * 3. The program may have a wakeup fd, as asyncio has where it handles signals.  It is set again
 *    when the sleep is over, and gets what the bell got.  One that a handler has set meanwhile is
 *    left as it is.
 * 4. A FIFO that is opened once for both directions takes single bytes, which an eventfd does not,
 *    and never raises SIGPIPE.  The program may have closed it: before each sleep its inode is
 *    looked at, since a file under that number must not get what the C handler writes.
 * 5. A handler that runs in (2) may sleep in here itself, and fork.  So after the handlers have run
 *    all is looked at again.  In the child of a fork, also of another thread's while the main
 *    thread sleeps, the bell is closed, and what the program had is set (after_fork()).
 * 6. That costs 1 us before a sleep.  So in a stream of messages the main thread does without, for
 *    no longer than HASTY_NS: where the last sleep has ended sooner, this one probably will, too.
 *    If it does not, the thread sleeps on with the bell.  A signal of (1) is late by that time at
 *    most.  It is longer than a tick of the kernel: a timer that is due before that costs 3 us.
 * 7. That a program wants no warning when its wakeup fd is full cannot be asked for, and is
 *    forgotten.  Without /proc, and without a free descriptor, a sleep is what it is in Python:
 *    signals of (1) come late.
 * 8. A thread that waits for another of the process, and not in the core (pynotify/_leader.py), is
 *    called by a flag of its waiter, and the bell is rung for it by a zero, which is no signal.
 *    Between the last look at the flag and the sleep no Python code runs, and only the main thread
 *    takes out of the FIFO what is in it, so no call is missed.
 *
 * All of it is changed with the GIL held, by the main thread or in the child of a fork.
 */
#define _GNU_SOURCE
#include "hot.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define HASTY_NS 20000000

enum { FAILED = -2 }; /* none at all was set */

static PyObject *wakeup_setter; /* signal.set_wakeup_fd */
static unsigned long main_thread;

static struct {
    int fd;        /* -1: there is none */
    uint32_t id;   /* one more for each that is made */
    uint32_t turn; /* one more for each time that it is set */
    dev_t dev;
    ino_t ino;
    int programs;   /* the wakeup fd that the program has; -1: none */
    bool is_futile; /* there can be no bell here */
    bool hasty;     /* the last sleep was short (6) */
} bell = {.fd = -1, .programs = -1};

/* ---- the bell -------------------------------------------------------------------------------- */

/* The one before; -1: none.  No Python code runs. */
static int set_wakeup_fd(int fd)
{
    PyObject *number = PyLong_FromLong(fd), *before = NULL;
    if (number != NULL)
        before = PyObject_CallFunctionObjArgs(wakeup_setter, number, NULL);
    long was = before == NULL ? FAILED : PyLong_AsLong(before);
    if (before == NULL)
        PyErr_Clear();
    Py_XDECREF(number);
    Py_XDECREF(before);
    return (int) was;
}

static bool is_intact(void)
{
    struct stat st;
    return bell.fd >= 0 && fstat(bell.fd, &st) == 0 && S_ISFIFO(st.st_mode) &&
           st.st_dev == bell.dev && st.st_ino == bell.ino;
}

static int open_fifo(void)
{
    int ends[2];
    char path[40];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return -1;
    snprintf(path, sizeof path, "/proc/self/fd/%d", ends[0]);
    int fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    int error = errno;
    close(ends[0]);
    close(ends[1]);
    errno = error;
    return fd;
}

static bool have_bell(void)
{
    if (is_intact())
        return true;
    struct stat st;
    bell.fd = bell.is_futile ? -1 : open_fifo();
    if (bell.fd < 0) {
        bell.is_futile = bell.is_futile || !(errno == EMFILE || errno == ENFILE);
        return false;
    }
    bell.id++;
    if (fstat(bell.fd, &st) != 0)
        return false;
    bell.dev = st.st_dev;
    bell.ino = st.st_ino;
    return true;
}

/* What the bell got goes to the program's wakeup fd, but for zeros, which are ours (8). */
static void pass_on(const char *rung, ssize_t n)
{
    for (ssize_t i = 0; i < n; i++)
        if (rung[i] != 0 && write(bell.programs, &rung[i], 1) < 0)
            return; /* full: so it is readable */
}

/* The program's is set again; one that a handler has set stays. */
static void restore(void)
{
    int now = set_wakeup_fd(bell.programs);
    if (now == FAILED)
        now = -1; /* the program has closed it */
    if (now != bell.fd)
        set_wakeup_fd(bell.programs = now);
}

/* A byte that is left would hide the next one: the core is told when it becomes readable. */
static void drain(int programs)
{
    char bytes[256];
    ssize_t n;
    while ((n = read(bell.fd, bytes, sizeof bytes)) > 0)
        if (programs >= 0)
            pass_on(bytes, n);
}

/* The end of a sleep.  `rung`: the bell may have been. */
static void put_back(bool rung)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback); /* of a handler; no other exception may be set */
    restore();
    PyErr_Restore(type, value, traceback);
    if ((rung || bell.programs >= 0) && is_intact())
        drain(bell.programs);
}

/* 1: the bell is set; 0: it cannot be; -1 with an exception of a handler. */
static int begin_sleep(void)
{
    while (have_bell()) {
        uint32_t turn = ++bell.turn;
        drain(
            bell.programs); /* what came between two sleeps; the flags of (8) are looked at later */
        int before = set_wakeup_fd(bell.fd);
        if (before == FAILED)
            return 0;
        if (before != bell.fd)
            bell.programs = before;
        int rc = Py_MakePendingCalls();  /* signal handlers; and what finalizer.c has left */
        bool undone = bell.turn != turn; /* 5 */
        if (rc == 0 && !undone) {
            pn_set_wakeup_fd(bell.fd, bell.id);
            return 1;
        }
        if (rc < 0 && !undone)
            put_back(true);
        if (rc < 0)
            return -1;
    }
    return 0;
}

static void end_sleep(int begun, int rc)
{
    if (begun == 0)
        return;
    pn_set_wakeup_fd(-1, 0);
    put_back(rc == -EINTR);
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

int pn_py_sleep(int (*once)(void *arg, int64_t timeout_ns), void *arg, int64_t timeout_ns, int *rc)
{
    *rc = 0;
    bool is_short = timeout_ns >= 0 && timeout_ns <= HASTY_NS;
    if (is_short || PyThread_get_thread_ident() != main_thread) {
        *rc = once(arg, timeout_ns);
        return 0;
    }
    if (bell.hasty) {
        *rc = once(arg, HASTY_NS);
        if (*rc != 0)
            return 0;
        bell.hasty = false;
        timeout_ns -= timeout_ns > 0 ? HASTY_NS : 0;
    }
    int begun = begin_sleep();
    if (begun < 0)
        return -1;
    int64_t began = now_ns();
    *rc = once(arg, timeout_ns);
    bell.hasty = *rc > 0 && now_ns() - began < HASTY_NS;
    end_sleep(begun, *rc);
    return 0;
}

static int wait_once(void *arg, int64_t timeout_ns)
{
    struct pn_py_port *port = arg;
    PyObject *native = Py_XNewRef(port->native); /* another thread may close it meanwhile */
    pn_conn *conn = port->conn;
    int rc;
    Py_BEGIN_ALLOW_THREADS;
    rc = pn_wait(conn, timeout_ns);
    Py_END_ALLOW_THREADS;
    Py_XDECREF(native);
    return rc;
}

int pn_py_wait(struct pn_py_port *port, int64_t timeout_ns, int *rc)
{
    return pn_py_sleep(wait_once, port, timeout_ns, rc);
}

/* ---- what is called -------------------------------------------------------------------------- */

/* wait(handle, timeout_ns): pn_wait(). */
static PyObject *wait_in_core(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    (void) self;
    if (n != 2) {
        PyErr_SetString(PyExc_TypeError, "wait() takes a handle and a number");
        return NULL;
    }
    struct pn_py_port *port = pn_py_port_of(args[0]);
    long long ns = port == NULL ? 0 : PyLong_AsLongLong(args[1]);
    if (port == NULL || (ns == -1 && PyErr_Occurred()))
        return NULL;
    int rc;
    return pn_py_wait(port, ns, &rc) < 0 ? NULL : PyLong_FromLong(rc);
}

/* Whether a flag of the waiter is set: a slot, so no Python code runs.  -1 with an exception. */
static int has(PyObject *waiter, const char *flag)
{
    PyObject *value = PyObject_GetAttrString(waiter, flag);
    int is_set = value == NULL ? -1 : PyObject_IsTrue(value);
    Py_XDECREF(value);
    return is_set;
}

/*
 * sleep_until_called(waiter, timeout_ns): sleep until the waiter is `woken` or `called` and the
 * bell rung, or a signal comes, or the time is over; -1: no limit.  False: there is no bell for
 * this thread.
 */
static PyObject *sleep_until_called(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    (void) self;
    if (n != 2) {
        PyErr_SetString(PyExc_TypeError, "sleep_until_called() takes a waiter and a number");
        return NULL;
    }
    long long ns = PyLong_AsLongLong(args[1]);
    if (ns == -1 && PyErr_Occurred())
        return NULL;
    int begun = PyThread_get_thread_ident() == main_thread ? begin_sleep() : 0, rc = -EINTR;
    if (begun <= 0)
        return begun < 0 ? NULL : Py_NewRef(Py_False);
    int called = has(args[0], "woken");
    if (called == 0)
        called = has(args[0], "called");
    if (called == 0) {
        Py_BEGIN_ALLOW_THREADS;
        rc = pn_sleep(ns);
        Py_END_ALLOW_THREADS;
    }
    end_sleep(begun, rc);
    return called < 0 ? NULL : Py_NewRef(Py_True);
}

static PyObject *ring(PyObject *self, PyObject *unused)
{
    (void) self, (void) unused;
    if (is_intact() && write(bell.fd, "", 1) < 0)
        Py_RETURN_NONE; /* full: so it rings */
    Py_RETURN_NONE;
}

/* begin(ident): of the process's main thread. */
static PyObject *begin(PyObject *self, PyObject *ident)
{
    (void) self;
    main_thread = PyLong_AsUnsignedLong(ident);
    Py_XDECREF(wakeup_setter);
    /* signal has it from there, and imports enum besides: dear for a process that only sends. */
    wakeup_setter = PyErr_Occurred() ? NULL : pn_py_import("_signal", "set_wakeup_fd");
    return wakeup_setter == NULL ? NULL : Py_NewRef(Py_None);
}

static PyObject *after_fork(PyObject *self, PyObject *unused)
{
    (void) self, (void) unused;
    main_thread = PyThread_get_thread_ident();
    pn_set_wakeup_fd(-1, 0);
    bell.turn++;
    if (!is_intact()) {
        bell.fd = -1;
        Py_RETURN_NONE;
    }
    restore();
    close(bell.fd);
    bell.fd = -1;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"wait", (PyCFunction) (void (*)(void)) wait_in_core, METH_FASTCALL, NULL},
    {"sleep_until_called", (PyCFunction) (void (*)(void)) sleep_until_called, METH_FASTCALL, NULL},
    {"ring", ring, METH_NOARGS, NULL},
    {"begin_sleeps", begin, METH_O, NULL},
    {"sleeps_after_fork", after_fork, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int pn_py_add_sleep(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
