/*
 * notify.c - notify a channel: each argument is a message, all of them one transaction.
 *
 *     notify SEGMENT CHANNEL MESSAGE...
 *
 * Every listener gets all of them or none, one after the other, with no other sender's in between;
 * equal messages of one transaction arrive once.
 *
 *     cc notify.c -lpynotify -o notify
 */
#include <stdio.h>
#include <string.h>

#include "pynotify.h"

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, pn_error_message()); /* "message\nwhat to do" */
    return 1;
}

int main(int argc, char **argv)
{
    char text[512];
    pn_engine *engine;
    pn_conn *conn;
    pn_txn *txn;

    if (argc < 4) {
        printf("usage: notify SEGMENT CHANNEL MESSAGE...\n");
        return argc == 1 ? 0 : 2;
    }
    if (pn_open(argv[1], NULL, &engine) < 0)
        return failed("open");
    if (pn_connect(engine, "example", 7, 0, NULL, &conn) < 0)
        return failed("connect");
    if (pn_txn_begin(conn, &txn) < 0)
        return failed("begin");
    for (int i = 3; i < argc; i++)
        if (pn_txn_notify(txn, argv[2], strlen(argv[2]), argv[i], strlen(argv[i])) < 0)
            return failed("notify");

    /*
     * Nothing was visible until now, and after this everything is.  A full queue is an error
     * (-PN_EQUEUEFULL), after which nothing has happened; a single message needs no transaction,
     * pn_notify() is one.
     */
    int rc = pn_txn_commit(txn);
    if (rc < 0)
        return failed("commit");
    if ((rc & PN_NOTICE) != 0)
        while (pn_conn_notice(conn, text, sizeof text) > 0)
            fprintf(stderr, "%s\n", text); /* "NOTIFY queue is 53% full", and its holder */

    pn_conn_close(conn);
    pn_engine_close(engine);
    return 0;
}
