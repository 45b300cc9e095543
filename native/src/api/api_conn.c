/*
 * api_conn.c - the C API: connections, from pn_connect() to pn_conn_close(), what they are told
 * (pn_conn_notice), and the counters that they share.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/api_conn.h"
#include "backend/backend.h"
#include "backend/generation.h"
#include "base/os.h"
#include "commit/async.h"
#include "commit/pending.h"
#include "files/latency_log.h"
#include "queue/queue.h"
#include "receive/receive.h"
#include "receive/wait.h"
#include "segment/identity.h"
#include "segment/lock.h"
#include "wakeup/group.h"
#include "wakeup/handlers.h"
#include "wakeup/latch.h"
#include "wakeup/procsignal.h"
#include "wakeup/send.h"
#include "wakeup/unsent.h"
#include "wakeup/watch.h"

PN_API int pn_conn_notice(pn_conn *conn, char *buf, size_t cap)
{
    int n = 0;
    if (conn == &pn_conn_that_is_closed)
        return 0;
    if (conn->pid != pn_my_pid)
        return pn_conn_foreign(conn);
    int32_t died = cap > 0 ? pn_exchange(&conn->seg->recovered_from, 0) : 0;
    if (died != 0) {
        n = snprintf(buf, cap,
                     "the process with PID %d died in the middle of a commit; segment \"%s\" was "
                     "repaired",
                     died, conn->seg->name);
        return n < (int) cap ? n : (int) cap - 1;
    }
    uint64_t lost = cap > 0 ? pn_exchange(&conn->seg->log_damaged, 0) : 0;
    if (lost != 0) {
        n = snprintf(buf, cap,
                     "the log of durable topics in %s/%s is damaged: %llu of its records could "
                     "not be read, or go with one that could not\n"
                     "What they said is lost; the rest is there.  `pynotify topics fsck --live %s` "
                     "says where.",
                     conn->seg->data_dir, conn->seg->name, (unsigned long long) lost,
                     conn->seg->data_dir);
        return n < (int) cap ? n : (int) cap - 1;
    }
    if (cap > 0 && pn_exchange(&conn->seg->log_gone, 0) != 0) {
        n = snprintf(buf, cap,
                     "files of the log of durable topics in %s/%s were removed under the running "
                     "system, or replaced, or cut short; it was written again from memory\n"
                     "Nothing is lost that was in memory; TopicStats.corrupt counts what was only "
                     "on disk.  Keep whatever cleans up there away from it.",
                     conn->seg->data_dir, conn->seg->name);
        return n < (int) cap ? n : (int) cap - 1;
    }
    n = pn_unsent_text(conn->seg, buf, cap);
    if (n > 0)
        return n;
    pthread_mutex_lock(&conn->notice_mutex);
    if (pn_load_relaxed(&conn->notices) != 0 && cap > 0) {
        pn_store_relaxed(&conn->notices, 0);
        n = snprintf(buf, cap, "%s", conn->notice);
        n = n < (int) cap ? n : (int) cap - 1;
    }
    pthread_mutex_unlock(&conn->notice_mutex);
    return n;
}

static void free_conn(pn_conn *conn)
{
    pn_receive_close_files(conn);
    pn_receive_free(conn);
    pn_segment_release(conn->seg);
    free(conn);
}

static int open_log(pn_conn *conn, const char *directory)
{
    char name[160];
    /* the instance tells segments of one name apart */
    snprintf(name, sizeof name, "%s.%016llx", conn->seg->name,
             (unsigned long long) conn->seg->instance);
    int rc = pn_latlog_open(directory, name, (int32_t) conn->slot, &conn->log);
    if (rc == -EPERM)
        return pn_fail(EACCES,
                       "could not open a latency log in \"%s\": others may write to it, or made "
                       "the link\n"
                       "The directory must belong to user %u, with no write permission for its "
                       "group and for others.",
                       directory, (unsigned) geteuid());
    if (rc != 0)
        return pn_fail(-rc, "could not open a latency log in \"%s\": %s", directory, strerror(-rc));
    struct pn_free_counters *counters = &conn->seg->ctl->free;
    pn_latlog_count_in(conn->log, &counters->log_dropped, &counters->log_recycled);
    return 0;
}

static int check_signal(int *signo)
{
    if (*signo == 0)
        *signo = SIGUSR1;
    if (*signo == -1 || pn_may_wake(*signo))
        return 0;
    return pn_fail(EINVAL, "wakeup must be SIGUSR1, a real-time signal (%d to %d) or polling",
                   SIGRTMIN, SIGRTMAX);
}

static void release_slot(pn_conn *conn)
{
    struct pn_hold hold;
    bool watched = pn_owns_slot(conn) && pn_slot_watches(conn->me);
    pn_procsignal_hide(conn);
    bool locked = false, released = false;
    while (!released && (locked = pn_lock_topics(conn->seg, &hold, PN_LOCK_TIMEOUT_NS) == 0)) {
        released = !pn_owns_slot(conn) || pn_backend_release_locked(conn);
        if (released)
            pn_queue_let_go_locked(conn->seg);
        pn_lock_release(conn->seg);
    }
    if (!locked)
        pn_backend_abandon(conn); /* a stopped lock holder, or a segment that is no more */
    else if (watched)
        pn_watch_tell(conn->seg, conn->slot);
    pn_handler_disarm(conn);             /* last: until here a signal may be on its way */
    pn_procsignal_pass_on(conn->seg, 0); /* instead of the handler, which has not found it */
}

/* Descriptors in reserve; and what does not work here, told by the first of a mapping. */
static void probe_host(pn_conn *conn)
{
    pthread_mutex_lock(&conn->seg->signal_mutex);
    pn_spare_fill(conn->seg);
    bool is_first = pn_unsent_probe(conn->seg);
    pthread_mutex_unlock(&conn->seg->signal_mutex);
    int rc = is_first ? pn_os_robust() : 0;
    if (rc != 0)
        pn_conn_add_notice(conn,
                           "the lock of a process that is killed in the middle of a commit is "
                           "given to no other here: set_robust_list: %s\n"
                           "Then every commit fails with LockTimeout. A sandbox that permits it is "
                           "needed; emulators of user programs (qemu-user) do not have it.",
                           strerror(-rc));
}

PN_API int pn_connect(pn_engine *engine, const char *database, size_t database_len, int signo,
                      const char *latency_log, pn_conn **out)
{
    struct pn_segment *seg = engine->seg;
    int rc = pn_segment_check_state(seg);
    if (rc == 0 && pn_segment_unlinked(seg))
        rc = pn_segment_unusable(seg);
    if (rc == 0)
        rc = pn_segment_check_user(seg);
    if (rc == 0)
        rc = pn_check_namespaces(seg->hdr, seg->name); /* those of a fork may have changed */
    if (rc == 0)
        rc = check_signal(&signo);
    if (rc == 0 &&
        (database_len == 0 || database_len > PN_NAME_MAX || database_len > seg->max_channel_name ||
         memchr(database, '\0', database_len) != NULL))
        rc = pn_fail(PN_ECHANNELNAME,
                     "bad database name\n"
                     "A database name has 1 to %u bytes and no NUL.",
                     seg->max_channel_name);
    if (rc != 0)
        return rc;
    pn_conn *conn = calloc(1, sizeof *conn);
    if (conn == NULL)
        return pn_fail(ENOMEM, "out of memory");
    conn->seg = seg;
    conn->pid = pn_my_pid;
    conn->signo = signo;
    pn_store_relaxed(&conn->refs, 1);
    memcpy(conn->database, database, database_len);
    pn_latch_init(conn);
    conn->epfd = conn->tfd = -1;
    pn_store_relaxed(&conn->spin_ns, 4000);
    pn_store_relaxed(&conn->gap_ns, 1000000000);
    pn_store_relaxed(&conn->next_timer_ns, (uint64_t) pn_now_ns() + 1000000000);
    pn_watch_init(conn);
    pthread_mutex_init(&conn->recv_mutex, NULL);
    pthread_mutex_init(&conn->notice_mutex, NULL);
    pthread_mutex_init(&conn->log_mutex, NULL);
    pn_os_refresh_cpus();
    pn_segment_acquire(seg);
    rc = pn_backend_claim(conn);
    if (rc != 0) {
        free_conn(conn);
        return rc;
    }
    rc = pn_procsignal_register(conn);
    if (rc == 0 && latency_log != NULL)
        rc = open_log(conn, latency_log);
    if (rc != 0) {
        release_slot(conn);
        free_conn(conn);
        return rc;
    }
    probe_host(conn);
    pn_watch_tell(seg, conn->slot);
    *out = conn;
    return 0;
}

/* close() unlistens first, so that the log says what each channel still owed. */
static void unlisten_for_log(pn_conn *conn)
{
    pn_txn txn = {.conn = conn, .pending.dboid = conn->dboid};
    if (conn->log == NULL || pn_load_relaxed(&conn->nlistening) == 0)
        return;
    if (pn_pending_action(&txn.pending, PN_ACTION_UNLISTEN_ALL, false, NULL, 0) == 0)
        while (pn_async_commit_held(&txn) == -EINTR)
            ; /* no caller is there to be interrupted */
    pn_pending_free(&txn.pending);
    free(txn.intents);
}

static void end_conn(pn_conn *conn)
{
    if (conn->pid != pn_my_pid) { /* a forked child: everything in it is the parent's */
        pn_latlog_abandon(conn->log);
        free_conn(conn);
        return;
    }
    unlisten_for_log(conn);
    release_slot(conn);
    pn_latlog_close(conn->log);
    free_conn(conn);
}

void pn_conn_let_go(pn_conn *conn)
{
    if (pn_fetch_sub_acq_rel(&conn->refs, 1) == 1)
        end_conn(conn);
}

static void leave_group(struct pn_conn *conn)
{
    pthread_mutex_lock(&conn->seg->signal_mutex); /* threads that set its latch have it */
    struct pn_group *group = pn_exchange(&conn->in_group.group, NULL);
    pthread_mutex_unlock(&conn->seg->signal_mutex);
    pn_procsignal_quiesce(); /* a handler in another thread may still be at it */
    pn_group_leave(conn, group);
}

PN_API void pn_conn_close(pn_conn *conn)
{
    pn_store_release(&conn->closing, 1);
    if (pn_load_relaxed(&conn->in_group.group) != NULL && conn->pid == pn_my_pid)
        leave_group(conn);
    pn_conn_let_go(conn);
}

PN_API pn_conn *pn_closed_conn(void)
{
    return &pn_conn_that_is_closed;
}

PN_API void pn_conn_drop(pn_conn **owner, pn_conn *conn)
{
    (void) conn;
    pn_conn *mine = *owner;
    *owner = NULL;
    if (mine != NULL)
        pn_conn_close(mine);
}

PN_API int32_t pn_conn_pid(const pn_conn *conn)
{
    return conn->pid;
}

PN_API int32_t pn_conn_backend_id(const pn_conn *conn)
{
    return (int32_t) conn->slot;
}

/* Not in the middle of a character of UTF-8. */
static size_t cut(const char *text, size_t len, size_t most)
{
    if (len <= most)
        return len;
    while (most > 0 && ((unsigned char) text[most] & 0xC0) == 0x80)
        most--;
    return most;
}

PN_API int pn_conn_set_application_name(pn_conn *conn, const char *name, size_t len)
{
    struct pn_hold hold;
    int rc = pn_conn_check(conn);
    if (rc == 0)
        rc = pn_lock_wait(conn->seg, &hold, PN_LOCK_TIMEOUT_NS, conn);
    if (rc != 0)
        return rc;
    rc = pn_conn_check_slot(conn);
    if (rc == 0) {
        size_t n = cut(name, len, PN_APPLICATION_NAME - 1);
        memcpy(conn->me->application_name, name, n);
        memset(conn->me->application_name + n, 0, PN_APPLICATION_NAME - n);
    }
    pn_lock_release(conn->seg);
    return rc;
}

PN_API int pn_conn_limit_log(pn_conn *conn, uint64_t bytes)
{
    int rc = pn_conn_check(conn);
    if (rc != 0)
        return rc;
    if (conn->log == NULL)
        return pn_fail(EINVAL, "the connection writes no latency log");
    pthread_mutex_lock(&conn->log_mutex);
    pn_latlog_limit(conn->log, bytes);
    pthread_mutex_unlock(&conn->log_mutex);
    return 0;
}

PN_API uint32_t pn_conn_claim(const pn_conn *conn)
{
    return conn->generation;
}

/* ---- shared generation counters -------------------------------------------------------------- */

PN_API int pn_generation(pn_conn *conn, const char *name, size_t len, uint32_t *index)
{
    int rc = pn_conn_check(conn);
    if (rc == 0)
        rc = pn_check_name(conn, "counter", name, len);
    return rc != 0 ? rc : pn_generation_get(conn, name, len, index);
}

PN_API uint64_t pn_generation_value(const pn_engine *engine, uint32_t index)
{
    const struct pn_segment *seg = engine->seg;
    if (__builtin_expect(index >= seg->max_generations, 0))
        return 0;
    /* pairs with store_counters_locked() */
    return pn_load_acquire(&pn_generation_at(seg, index)->value);
}

PN_API int64_t pn_generation_changed_ns(const pn_engine *engine, uint32_t index)
{
    const struct pn_segment *seg = engine->seg;
    if (index >= seg->max_generations)
        return 0;
    return (int64_t) pn_load_acquire(&pn_generation_at(seg, index)->changed_ns);
}

PN_API int pn_bump(pn_conn *conn, uint32_t index)
{
    int rc = pn_conn_check(conn);
    return rc != 0 ? rc : pn_async_bump(conn, index);
}
