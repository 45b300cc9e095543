/*
 * api.c - the C API, nothing else: arguments are checked, objects made and freed, and the work
 * is handed to the module that does it.  The contract of each function is in pynotify.h.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "api/engine.h"
#include "backend/backend.h"
#include "backend/channel.h"
#include "backend/generation.h"
#include "base/glob.h"
#include "base/os.h"
#include "commit/async.h"
#include "commit/bridge.h"
#include "queue/queue.h"
#include "queue/spill.h"
#include "receive/receive.h"
#include "recovery/rebuild_topics.h"
#include "recovery/recover.h"
#include "recovery/recover_topics.h"
#include "segment/identity.h"
#include "segment/lock.h"
#include "segment/lockfile.h"
#include "topic/attach.h"
#include "topic/consume.h"
#include "topic/consumers.h"
#include "topic/durable.h"
#include "topic/on_disk.h"
#include "wakeup/group.h"
#include "wakeup/latch.h"
#include "wakeup/procsignal.h"
#include "wakeup/unsent.h"
#include "wakeup/watch.h"

static void after_release(struct pn_segment *seg, struct pn_hold *hold)
{
    if ((hold->at_end & PN_RESIGNAL) != 0)
        pn_watch_resignal(seg);
    if ((hold->at_end & PN_TELL_BRIDGES) != 0)
        pn_bridge_tell(seg);
    if ((hold->at_end & PN_TELL_WATCHERS) != 0)
        for (uint32_t i = 0; i < hold->nlengthened; i++)
            pn_watch_tell(seg, hold->lengthened[i]);
    if ((hold->at_end & PN_WAKE_CONSUMERS) != 0)
        pn_consumers_signal(seg, hold->wake, hold->nwakes);
    if ((hold->at_end & PN_SYNC_LOG) != 0)
        pn_durable_sync(seg, &hold->sync);
    if ((hold->at_end & PN_REMOVE_FILES) != 0)
        pn_spill_remove(seg, hold->files_end);
    if ((hold->at_end & PN_REAP) != 0)
        pn_backend_reap_rest(seg);
    if ((hold->at_end & PN_REPAIR) != 0)
        pn_topics_repair(seg);
}

static void close_inherited(struct pn_conn *conn)
{
    pn_consumers_close_inherited(conn);
    pn_receive_close_files(conn);
}

__attribute__((constructor)) static void register_hooks(void)
{
    pn_segment_hooks = (struct pn_segment_hooks) {.recover = pn_recover_locked,
                                                  .repair = pn_topics_rebuild_step_locked,
                                                  .released = after_release,
                                                  .close_files = pn_durable_close,
                                                  .slot_freed = pn_consumers_reap_locked,
                                                  .signal_owed = pn_consumers_signal_owed,
                                                  .consumers_woken = pn_consumers_woken,
                                                  .consumers_intact = pn_consumers_intact,
                                                  .consumers_forget = pn_consumers_forget,
                                                  .close_inherited = close_inherited};
}

/* ---- segments -------------------------------------------------------------------------------- */

PN_API void pn_options_default(pn_options *opts)
{
    *opts = (pn_options) {.queue_pages = 1024,
                          .max_backends = 1024,
                          .max_channels = 4096,
                          .max_subscriptions = 16384,
                          .max_generations = 1024,
                          .max_payload = 7999,
                          .max_channel_name = 63,
                          .on_full = PN_FULL_ERROR,
                          .signaling = PN_SIGNAL_TARGETED,
                          .full_timeout_ns = 5000000000ULL,
                          .topic_memory = 16ULL << 20,
                          .max_body = 1U << 20,
                          .max_topics = 256,
                          .max_topic_channels = 1024,
                          .max_consumers = 1024};
}

static int check_name(const char *name)
{
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
    size_t len = strlen(name);
    if (len < 1 || len > 100 || name[0] == '.' || strspn(name, allowed) != len)
        return pn_fail(EINVAL,
                       "bad segment name\n"
                       "A name has 1 to 100 of A-Z a-z 0-9 _ . - and does not begin with a dot.");
    return 0;
}

PN_API int pn_create(const char *name, const pn_options *opts)
{
    int rc = check_name(name);
    return rc != 0 ? rc : pn_segment_create(name, opts);
}

PN_API int pn_attach(int fd, const char *name, pn_engine **out)
{
    pn_engine *engine = malloc(sizeof *engine);
    if (engine == NULL)
        return pn_fail(ENOMEM, "out of memory");
    int rc = check_name(name);
    if (rc == 0)
        rc = pn_segment_attach(fd, name, &engine->seg);
    if (rc != 0) {
        free(engine);
        return rc;
    }
    engine->euid = geteuid();
    *out = engine;
    return 0;
}

/* -PN_EGONE: another process is about to remove the name, or has done so since it was opened. */
static int attach_named(int fd, const char *name, pn_engine **out)
{
    int rc = pn_attach(fd, name, out);
    if (rc != 0 || !pn_segment_unlinked((*out)->seg))
        return rc;
    pn_engine_close(*out);
    return -PN_EGONE;
}

PN_API int pn_open(const char *name, const pn_options *opts, pn_engine **out)
{
    char shm_name[160];
    pn_options defaults;
    int rc = check_name(name);
    if (rc != 0)
        return rc;
    if (opts == NULL) {
        pn_options_default(&defaults);
        opts = &defaults;
    }
    snprintf(shm_name, sizeof shm_name, "/pynotify.%u.%s", (unsigned) geteuid(), name);
    const int64_t until = pn_now_ns() + PN_OPEN_PATIENCE_S * INT64_C(1000000000);
    do {
        int fd = shm_open(shm_name, O_RDWR | O_CLOEXEC, 0);
        if (fd >= 0) {
            rc = attach_named(fd, name, out);
            close(fd);
            if (rc != -PN_EGONE)
                return rc;
            nanosleep(&(const struct timespec) {.tv_nsec = 1000000}, NULL);
        } else if (errno != ENOENT) {
            return pn_fail(errno, "could not open segment \"%s\": %s", name, strerror(errno));
        } else {
            rc = pn_create(name, opts);
            if (rc != 0 && rc != -EEXIST)
                return rc;
        }
    } while (pn_now_ns() < until);
    return pn_fail(EAGAIN,
                   "segment \"%s\" was created and unlinked again all the time\n"
                   "See which processes unlink it.",
                   name);
}

PN_API void pn_engine_close(pn_engine *engine)
{
    pn_segment_release(engine->seg);
    free(engine);
}

PN_API void pn_engine_drop(pn_engine **owner, pn_engine *engine)
{
    (void) engine;
    pn_engine *mine = *owner;
    *owner = NULL;
    if (mine != NULL)
        pn_engine_close(mine);
}

PN_API void pn_engine_options(const pn_engine *engine, pn_options *out)
{
    const struct pn_segment *seg = engine->seg;
    *out = (pn_options) {.queue_pages = (uint32_t) (seg->ring_bytes / PN_QUEUE_PAGE),
                         .max_backends = seg->max_backends,
                         .max_channels = seg->max_channels,
                         .max_subscriptions = seg->max_subscriptions,
                         .max_generations = seg->max_generations,
                         .max_payload = seg->max_payload,
                         .max_channel_name = seg->max_channel_name,
                         .on_full = seg->on_full,
                         .signaling = seg->signaling,
                         .full_timeout_ns = seg->full_timeout_ns,
                         .max_queue_pages = (uint32_t) (seg->capacity / PN_QUEUE_PAGE),
                         .topic_memory = seg->topics.memory,
                         .max_body = seg->topics.max_body,
                         .max_topics = seg->topics.max_topics,
                         .max_topic_channels = seg->topics.max_channels - seg->topics.max_topics,
                         .max_consumers = seg->topics.max_consumers};
    memcpy(out->data_dir, seg->data_dir, sizeof out->data_dir);
}

PN_API uint64_t pn_engine_size(const pn_engine *engine)
{
    return engine->seg->size;
}

PN_API int64_t pn_engine_created_ns(const pn_engine *engine)
{
    return engine->seg->created_ns;
}

PN_API int64_t pn_engine_used_ns(const pn_engine *engine)
{
    uint64_t used = pn_load_relaxed(&engine->seg->ctl->used_ns);
    return used != 0 ? (int64_t) used : engine->seg->created_ns;
}

PN_API int pn_engine_owner_euid(const pn_engine *engine)
{
    return (int) engine->euid;
}

PN_API int pn_engine_gone(const pn_engine *engine)
{
    return pn_segment_unlinked(engine->seg);
}

PN_API int pn_live_pids(const char *name, int32_t *pids, size_t cap)
{
    int rc = check_name(name);
    return rc != 0 ? rc : pn_lock_file_pids(name, pids, cap);
}

PN_API int pn_announce_gone(pn_engine *engine)
{
    struct pn_segment *seg = engine->seg;
    pn_store_release(&seg->hdr->state, PN_STATE_GONE);
    pn_fetch_add_relaxed(&seg->ctl->room_seq, 1);
    pn_futex_wake_all(&seg->ctl->room_seq);
    for (uint32_t slot = 0; slot < seg->max_backends; slot++)
        pn_procsignal_send(seg, slot, PROCSIG_SEGMENT_GONE);
    return 0;
}

/* `state` changes under the lock that a claim of a slot takes, and looks at it with. */
PN_API int pn_retire(pn_engine *engine)
{
    struct pn_hold hold;
    struct pn_segment *seg = engine->seg;
    bool used = false;
    int rc = pn_backend_reap_and_lock(seg, &hold);
    if (rc != 0)
        return rc;
    for (uint32_t slot = 0; !used && slot < seg->max_backends; slot++)
        used = pn_load_relaxed(&seg->backend[slot].state) == PN_SLOT_CLAIMED;
    if (!used)
        pn_store_release(&seg->hdr->state, PN_STATE_GONE);
    pn_lock_release(seg);
    return used ? pn_fail(EBUSY, "segment \"%s\" is in use", seg->name) : 0;
}

PN_API int pn_remove_lock_files(const char *name)
{
    int rc = check_name(name);
    return rc != 0 ? rc : pn_lock_files_unlink(name);
}

PN_API void pn_remove_spill_files(pn_engine *engine)
{
    pn_spill_remove_all(engine->seg);
    pn_topics_remove_files(engine->seg);
}

PN_API int pn_set_never_wait(int never)
{
    int before = pn_never_wait;
    pn_never_wait = never != 0;
    return before;
}

PN_API int64_t pn_set_lock_timeout(int64_t timeout_ns)
{
    int64_t before = pn_lock_timeout_ns;
    pn_lock_timeout_ns = timeout_ns < 0 ? PN_LOCK_TIMEOUT_NS : timeout_ns;
    return before;
}

PN_API void pn_set_interruptible(int interruptible)
{
    pn_interruptible = interruptible != 0;
}

PN_API void pn_forget_wait(void)
{
    pn_lock_forget();
}

/* ---- connections ----------------------------------------------------------------------------- */

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
                     "system; it was written again from memory\n"
                     "Nothing is lost.  Keep whatever cleans up there away from it.",
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
    pn_procsignal_disown(conn);
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
    pn_procsignal_unregister(conn); /* last: until here a signal may be on its way */
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
    pthread_mutex_lock(&seg->signal_mutex);
    pn_spare_fill(seg);
    pn_unsent_probe(seg);
    pthread_mutex_unlock(&seg->signal_mutex);
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

/* ---- receiving ------------------------------------------------------------------------------- */

PN_API pn_batch *pn_batch_new(void)
{
    return calloc(1, sizeof(pn_batch));
}

PN_API void pn_batch_free(pn_batch *batch)
{
    if (batch == NULL)
        return;
    free(batch->seq);
    free(batch->sent_ns);
    free(batch->pid);
    free(batch->backend_id);
    free(batch->sender);
    free(batch->channel);
    free(batch->pattern);
    free(batch->headers_offset);
    free(batch->headers);
    free(batch->routes);
    free(batch->offset);
    free(batch->data);
    free(batch->gap);
    pn_local_free_batch(batch);
    free(batch);
}

PN_API int64_t pn_poll(pn_conn *conn, pn_batch *batch, uint64_t max)
{
    return pn_receive_poll(conn, batch, max);
}

PN_API uint64_t pn_conn_unread(pn_conn *conn)
{
    return pn_receive_unread(conn);
}

PN_API int pn_wait(pn_conn *conn, int64_t timeout_ns)
{
    return pn_receive_wait(conn, timeout_ns);
}

PN_API void pn_set_wakeup_fd(int fd, uint32_t id)
{
    pn_latch_set_wakeup_fd(fd, id);
}

PN_API int pn_sleep(int64_t timeout_ns)
{
    return pn_latch_sleep(timeout_ns);
}

PN_API void pn_conn_mark_readable(pn_conn *conn)
{
    pn_receive_mark_readable(conn);
}

PN_API int pn_conn_mute_fd(pn_conn *conn)
{
    return pn_receive_mute_fd(conn);
}

PN_API void pn_conn_interrupt_wait(pn_conn *conn)
{
    if (conn != &pn_conn_that_is_closed)
        pn_receive_interrupt_wait(conn);
}

PN_API void pn_conn_interrupt(pn_conn *conn)
{
    if (conn != &pn_conn_that_is_closed)
        pn_receive_interrupt(conn);
}

PN_API int pn_fileno(pn_conn *conn)
{
    return pn_receive_fileno(conn);
}

PN_API int pn_group_open(pn_group **out)
{
    return pn_group_make(out);
}

PN_API int pn_group_fileno(const pn_group *group)
{
    return pn_group_latch(group);
}

PN_API int pn_conn_join(pn_conn *conn, pn_group *group, void *user)
{
    int rc = pn_conn_check(conn);
    return rc != 0 ? rc : pn_group_join(conn, group, user);
}

PN_API void pn_group_begin(pn_group *group)
{
    pn_group_take(group);
}

PN_API void *pn_group_next(pn_group *group)
{
    return pn_group_each(group);
}

PN_API void pn_group_close(pn_group *group)
{
    if (group != NULL)
        pn_group_free(group);
}

PN_API const char *pn_conn_channel(pn_conn *conn, uint32_t channel, size_t *len)
{
    const char *name = NULL;
    if (conn->pid != pn_my_pid)
        return NULL;                       /* a thread of the parent may have held the mutex */
    pthread_mutex_lock(&conn->recv_mutex); /* the array may be growing */
    if (channel < conn->local.n) {
        name = conn->local.at[channel].name;
        if (len != NULL && name != NULL)
            *len = conn->local.at[channel].len;
    }
    pthread_mutex_unlock(&conn->recv_mutex);
    return name;
}

static bool is_listened_to(const struct pn_local_channel *c)
{
    return (c->routes & 1U << PN_ROUTE_LISTEN) != 0;
}

/* Append a name and its NUL, if both fit; where the next one goes. */
static size_t put_name(const struct pn_local_channel *c, char *names, size_t used, size_t cap)
{
    if (used + c->len + 1 <= cap)
        memcpy(names + used, c->name, c->len + 1);
    return used + c->len + 1;
}

PN_API int pn_conn_listening(pn_conn *conn, uint32_t *channels, size_t cap)
{
    int rc = pn_conn_check(conn);
    if (rc != 0)
        return rc;
    uint32_t n = 0;
    pthread_mutex_lock(&conn->recv_mutex);
    for (uint32_t i = 0; i < conn->local.n; i++)
        if (is_listened_to(&conn->local.at[i]) && !conn->local.at[i].pattern) {
            if (n < cap)
                channels[n] = i;
            n++;
        }
    pthread_mutex_unlock(&conn->recv_mutex);
    return (int) n;
}

PN_API int64_t pn_conn_listening_names(pn_conn *conn, char *names, size_t cap)
{
    int rc = pn_conn_check(conn);
    if (rc != 0)
        return rc;
    size_t used = 0;
    pthread_mutex_lock(&conn->recv_mutex);
    for (uint32_t i = 0; i < conn->local.n; i++) {
        const struct pn_local_channel *c = &conn->local.at[i];
        if (is_listened_to(c) && !c->pattern)
            used = put_name(c, names, used, cap);
    }
    pthread_mutex_unlock(&conn->recv_mutex);
    return (int64_t) used;
}

PN_API int64_t pn_conn_listening_patterns(pn_conn *conn, char *names, size_t cap)
{
    int rc = pn_conn_check(conn);
    if (rc != 0)
        return rc;
    size_t used = 0;
    const struct pn_local_channels *l = &conn->local;
    pthread_mutex_lock(&conn->recv_mutex);
    for (uint32_t i = 0; i < l->npatterns; i++)
        if (is_listened_to(&l->at[l->pattern[i]]))
            used = put_name(&l->at[l->pattern[i]], names, used, cap);
    pthread_mutex_unlock(&conn->recv_mutex);
    return (int64_t) used;
}

/* recv_mutex held. */
static bool owes(const struct pn_local_channel *c, uint64_t seq)
{
    return c != NULL && is_listened_to(c) && c->since_xid[PN_ROUTE_LISTEN] < seq;
}

PN_API int pn_conn_owes(pn_conn *conn, const char *channel, size_t len, uint64_t seq)
{
    int rc = pn_conn_check(conn);
    if (rc != 0)
        return rc;
    const struct pn_local_channels *l = &conn->local;
    uint64_t hash = pn_channel_hash(conn->dboid, channel, len);
    pthread_mutex_lock(&conn->recv_mutex);
    bool owed = owes(pn_local_find(l, hash, channel, len, false), seq);
    for (uint32_t i = 0; !owed && i < l->npatterns; i++) {
        const struct pn_local_channel *c = &l->at[l->pattern[i]];
        owed = owes(c, seq) && pn_glob_matches(c->name, c->len, channel, len);
    }
    pthread_mutex_unlock(&conn->recv_mutex);
    return owed;
}

PN_API int pn_pattern_matches(const char *pattern, size_t pattern_len, const char *name,
                              size_t name_len)
{
    return pn_glob_matches(pattern, pattern_len, name, name_len);
}
