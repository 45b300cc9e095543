/*
 * session.h - a client's session: bytes in, bytes out, and no socket.
 *
 * What a session is
 * -----------------
 * One backend slot of the segment, one state of a transaction, and the statements and portals that
 * its client prepared.  Bytes are put in with gw_session_input(); gw_session_run() goes on until it
 * has no whole message left, or has to wait; what it has to say stands in `out`.
 *
 *   block     NONE    no transaction block.  An implicit transaction may be open all the same: from
 *                     the first statement of a Query to its last, from the first message of an
 *                     extended batch to its Sync.
 *             OPEN    BEGIN was said.
 *             FAILED  and a statement failed: only the end is accepted, or ROLLBACK TO.
 *
 *   activity  what is under way.  Anything but IDLE may be interrupted: a commit whose lock or room
 *             another process has (never waited for, since other clients share the thread: it is
 *             tried again), pg_sleep(), and a slot that could not be claimed yet.  Such a session
 *             reads no further message until that is over; gw_session_wake_at() says when to run it
 *             again.  READYING waits for the client alone, which has to take what comes before
 *             ReadyForQuery.
 *
 * When notifications are sent
 * ---------------------------
 * Outside of any transaction only, implicit ones included; before ReadyForQuery, or at any time
 * when the session is idle.  What comes in between mutes the slot, so that no process sends signals
 * for what cannot be passed on; it pins the queue as a backend of PostgreSQL does in a transaction.
 * A client that does not read pins it likewise: behind GW_OUT_MAX bytes no more is read for it.
 */
#ifndef PN_GATEWAY_SESSION_H
#define PN_GATEWAY_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "arena.h"
#include "values.h"
#include "guc.h"
#include "peer.h"
#include "pynotify.h"
#include "tree.h"
#include "wire.h"

enum { GW_OUT_MAX = 256 * 1024, GW_SCRIPTS = 512, GW_TAG_SIZE = 64 };
enum { GW_RESULT_MAX = 1 << 26, GW_HELD_MAX = 1 << 27 }; /* bytes */

/* pids of clients begin above any process of Linux (PID_MAX_LIMIT). */
#define GW_FIRST_PID (1U << 22)

struct gw_session;

/* Of a request to signal a client. */
enum gw_signaled { GW_SIGNALED, GW_NO_CLIENT, GW_NOT_ALLOWED };

/* What all sessions of a gateway share. */
struct gw_shared {
    pn_engine *engine;
    pn_options options;
    char version[64];
    /* The segment's name of a database that clients ask for; NULL: it is not served. */
    const char *(*database)(void *server, const char *name);
    void (*cancel)(void *server, uint32_t pid, uint32_t secret);
    enum gw_signaled (*terminate)(void *server, uint32_t by_uid, uint32_t pid, bool session);
    void *server;
    const char *served;  /* for people: the databases that there are */
    const char *log_dir; /* latency logs, or NULL */
    struct gw_script *script[GW_SCRIPTS];
    uint64_t key[GW_SCRIPTS];
    pn_batch *batch;
    /* Notifications to and from clients, and those that are no text; connections refused. */
    uint64_t sent, received, unreadable, refused;
    uint64_t listens; /* now, of all clients */
    double usage;     /* of the queue, when it was last seen */
    bool gone;        /* a session found the segment removed */
};

/* For a counter that one thread writes, and any may read. */
static inline void gw_count(uint64_t *counter, uint64_t by)
{
    __atomic_store_n(counter, *counter + by, __ATOMIC_RELAXED);
}

enum gw_block { GW_BLOCK_NONE, GW_BLOCK_OPEN, GW_BLOCK_FAILED };

enum gw_activity {
    GW_STARTUP,
    GW_CONNECT, /* the slot could not be claimed yet */
    GW_IDLE,
    GW_QUERY,
    GW_EXECUTE,
    GW_SYNC,
    GW_READYING, /* ReadyForQuery comes when notifications are sent up to the commit `owed` */
    GW_CLOSING   /* nothing but `out` is left */
};

struct gw_prepared {
    struct gw_prepared *next;
    char *name;
    struct gw_script *script;
};

struct gw_portal {
    struct gw_portal *next;
    char *name;
    struct gw_script *script;
    struct gw_arena arena; /* its parameters */
    struct gw_value *args;
    uint16_t *format; /* of its columns; one, or one each */
    size_t nformats;
    bool ran, finished;
    bool doomed;           /* its transaction ended while it ran */
    struct gw_buffer rows; /* DataRows not sent yet */
};

struct gw_savepoint {
    char *name;
    int level; /* of pn_txn_savepoint() */
};

struct gw_session {
    struct gw_shared *shared;
    pn_conn *conn;
    pn_txn *txn;
    struct gw_buffer in, out;
    struct gw_settings *settings;
    struct gw_arena arena; /* of one statement */
    char *user, *database;
    struct gw_peer peer; /* its uid: or (uid_t) -1 */
    char known_as[64];   /* in the segment's statistics */
    bool refused;        /* the peer may not connect */
    enum gw_block block;
    enum gw_activity activity;
    bool batch;        /* between the first message of an extended batch and its Sync */
    bool pipelined;    /* and a statement of it has been executed */
    bool skip_to_sync; /* and one of them failed */
    struct gw_savepoint *savepoint;
    size_t nsavepoints;
    struct gw_prepared *prepared;
    struct gw_portal *portals;
    uint32_t nprepared, nportals;

    /* What is under way. */
    struct gw_script *script;
    size_t next;           /* statement */
    bool ran;              /* it has, and is to be committed */
    char tag[GW_TAG_SIZE]; /* and this is to be said then */
    struct gw_portal *portal;
    uint32_t max_rows;
    bool query_failed;
    bool slept;
    size_t work;      /* of the Query or Execute */
    bool failed_late; /* in a function: rows were begun */
    bool canceled, terminated;
    int64_t now;
    int64_t wake_at;    /* CLOCK_MONOTONIC ns; 0: it waits for nothing but input */
    int64_t give_up_at; /* on a commit; 0: it has not been tried */
    int64_t deadline;   /* statement_timeout; 0: none */
    int64_t pause;

    uint64_t owed;
    uint64_t listens;    /* channels, as of the last commit */
    bool listens_change; /* with the next one */
    bool muted;
    uint32_t pid, secret;
    int64_t warned_at;
    struct gw_error error;
};

/* NULL: no memory.  `peer` and `refused`: what peer authentication says. */
struct gw_session *gw_session_new(struct gw_shared *shared, const struct gw_peer *peer,
                                  bool refused, uint32_t secret);
/* An open transaction is rolled back. */
void gw_session_free(struct gw_session *session);

void gw_session_input(struct gw_session *session, const void *bytes, size_t len);
/* `now`: CLOCK_MONOTONIC ns. */
void gw_session_run(struct gw_session *session, int64_t now);
/* Pass on what is owed, if this is the time; called when the slot's descriptor is readable. */
void gw_session_deliver(struct gw_session *session, int64_t now);
/* Whether more input would be read at all: what waits does not read. */
bool gw_session_reads(const struct gw_session *session);
void gw_session_terminate(struct gw_session *session, const char *message);
/* It ends before it has begun.  `hint`: or NULL. */
void gw_session_refuse(struct gw_session *session, const char *code, const char *message,
                       const char *hint);

#endif
