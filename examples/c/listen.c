/*
 * listen.c - print what is notified on some channels, until Ctrl-C.
 *
 *     listen SEGMENT CHANNEL...
 *
 * Without arguments it shows itself to itself: it listens, notifies, prints, and is done.
 *
 *     cc listen.c -lpynotify -o listen
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pynotify.h"

static volatile sig_atomic_t stop;

static void on_interrupt(int signo)
{
    (void) signo;
    stop = 1; /* pn_wait() returns -EINTR: look at your flags, then call it again */
}

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, pn_error_message()); /* "message\nwhat to do" */
    return 1;
}

/* LISTEN is part of a transaction: it takes effect, with all the others, at the commit. */
static int listen_to(pn_conn *conn, int n, char **channels)
{
    pn_txn *txn;
    int rc = pn_txn_begin(conn, &txn);
    if (rc < 0)
        return rc;
    for (int i = 0; rc >= 0 && i < n; i++)
        rc = pn_txn_listen(txn, channels[i], strlen(channels[i]));
    if (rc < 0) {
        pn_txn_abort(txn);
        return rc;
    }
    return pn_txn_commit(txn); /* frees it, whatever it returns */
}

static void print(pn_conn *conn, const pn_batch *b, size_t i)
{
    printf("%s: %.*s (process %" PRId32 ", commit %" PRIu64 ")\n",
           pn_conn_channel(conn, b->channel[i], NULL), (int) (b->offset[i + 1] - b->offset[i]),
           (const char *) b->data + b->offset[i], b->pid[i], b->seq[i]);
}

/* The right loop: wait, poll, handle.  One batch is used again and again. */
static int serve(pn_conn *conn, int only_one)
{
    int64_t n = 0;
    pn_batch *batch = pn_batch_new();
    if (batch == NULL)
        return -ENOMEM;
    while (!stop && !(only_one && n > 0)) {
        int rc = pn_wait(conn, -1); /* or poll(2), epoll, libuv... on pn_fileno(conn) */
        if (rc < 0 && rc != -EINTR) {
            pn_batch_free(batch);
            return rc;
        }
        n = pn_poll(conn, batch, 0); /* everything that was committed so far; never blocks */
        if (n < 0)
            break;
        for (int64_t i = 0; i < n; i++)
            print(conn, batch, (size_t) i);
        fflush(stdout);
    }
    pn_batch_free(batch);
    return n < 0 ? (int) n : 0;
}

int main(int argc, char **argv)
{
    static char hello[] = "hello", *demo_channels[] = {hello};
    char demo_name[32], path[64];
    int demo = argc < 3, rc;
    pn_engine *engine;
    pn_conn *conn;

    snprintf(demo_name, sizeof demo_name, "example.%d", (int) getpid());
    if (pn_open(demo ? demo_name : argv[1], NULL, &engine) < 0) /* NULL: the default options */
        return failed("open");
    if (pn_connect(engine, "example", 7, 0, NULL, &conn) < 0)
        return failed("connect");

    /* without SA_RESTART or with it: pn_wait() always returns when a handler of yours has run */
    struct sigaction sa = {.sa_handler = on_interrupt};
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);

    rc = demo ? listen_to(conn, 1, demo_channels) : listen_to(conn, argc - 2, argv + 2);
    if (rc >= 0 && demo)
        rc = pn_notify(conn, hello, strlen(hello), "world", 5);
    if (rc >= 0)
        rc = serve(conn, demo);
    if (rc < 0)
        failed("listen");

    pn_conn_close(conn);
    pn_engine_close(engine);
    if (demo) { /* the segment stays until it is removed */
        snprintf(path, sizeof path, "/pynotify.%u.%s", (unsigned) geteuid(), demo_name);
        shm_unlink(path);
        pn_remove_lock_files(demo_name);
    }
    return rc < 0;
}
