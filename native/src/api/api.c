/*
 * api.c - the C API: the hooks that tie the floors together, and segments.  In the files of this
 * folder arguments are checked, objects made and freed, and the work is handed to the module that
 * does it; nothing else.  The contract of each function is in pynotify.h.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "api/api_conn.h"
#include "backend/backend.h"
#include "base/os.h"
#include "commit/bridge.h"
#include "queue/spill.h"
#include "receive/wait.h"
#include "recovery/rebuild_topics.h"
#include "recovery/recover.h"
#include "recovery/recover_topics.h"
#include "segment/identity.h"
#include "segment/lock.h"
#include "segment/liveness_files.h"
#include "topic/attach.h"
#include "topic/consume.h"
#include "topic/consumers.h"
#include "topic/durable.h"
#include "topic/on_disk.h"
#include "wakeup/send.h"
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

static void close_conn_files(struct pn_conn *conn)
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
                                                  .consumers_watch = pn_consumers_watch,
                                                  .close_conn_files = close_conn_files};
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
