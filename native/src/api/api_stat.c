/* api_stat.c - the C API: statistics, checking, and asking others for their stacks. */
#include <stdbool.h>
#include <stddef.h>

#include "api/api_conn.h"
#include "backend/backend.h"
#include "recovery/check.h"
#include "segment/lock.h"
#include "topic/area.h"
#include "topic/notes.h"
#include "topic/open.h"
#include "topic/queues.h"
#include "wakeup/send.h"
#include "wakeup/stack.h"

/* ---- statistics, checking -------------------------------------------------------------------- */

PN_API int pn_engine_stat(pn_engine *engine, pn_stat *out, pn_backend_stat *rows, size_t cap)
{
    struct pn_hold hold;
    int rc = pn_backend_reap_and_lock(engine->seg, &hold);
    if (rc != 0)
        return rc;
    pn_stat_locked(engine->seg, out, rows, cap);
    pn_lock_release(engine->seg);
    return 0;
}

PN_API int32_t pn_engine_lock_holder(const pn_engine *engine)
{
    return pn_load_relaxed(&engine->seg->lock->holder_pid);
}

PN_API int pn_engine_backends(pn_engine *engine)
{
    int n = 0;
    for (uint32_t slot = 0; slot < engine->seg->max_backends; slot++)
        n += pn_load_acquire(&engine->seg->backend[slot].state) == PN_SLOT_CLAIMED &&
             pn_backend_verdict(engine->seg, slot) != PN_DEAD;
    return n;
}

PN_API int64_t pn_engine_messages(pn_engine *engine)
{
    struct pn_hold hold;
    const struct pn_segment *seg = engine->seg;
    int64_t n = 0;
    int rc = pn_lock_topics_wait(engine->seg, &hold, PN_LOCK_TIMEOUT_NS, engine);
    if (rc != 0)
        return rc;
    for (uint32_t i = 0; pn_topics_ready(seg) && i < seg->topics.max_topics; i++) {
        const struct pn_topic *topic = pn_topic_at(seg, i);
        if (pn_load_relaxed(&topic->state) == PN_RECORD_USED && !pn_is_durable(seg, topic))
            n += (int64_t) (topic->messages + pn_topic_waits_on_disk(topic) +
                            pn_topic_waits_later(topic));
    }
    pn_lock_release(engine->seg);
    return n;
}

PN_API int pn_commit_seq(pn_engine *engine, uint64_t *out)
{
    struct pn_hold hold;
    int rc = pn_lock_wait(engine->seg, &hold, PN_LOCK_TIMEOUT_NS, engine);
    if (rc != 0)
        return rc;
    *out = engine->seg->ctl->last_xid;
    pn_lock_release(engine->seg);
    return 0;
}

PN_API int pn_await_lock(pn_engine *engine)
{
    return pn_topics_await(engine->seg);
}

PN_API int pn_queue_usage(pn_engine *engine, double *out)
{
    struct pn_hold hold;
    pn_stat stat;
    int rc = pn_backend_reap_and_lock(engine->seg, &hold);
    if (rc != 0)
        return rc;
    pn_stat_locked(engine->seg, &stat, NULL, 0);
    pn_lock_release(engine->seg);
    *out = stat.queue_usage;
    return 0;
}

PN_API int pn_check(pn_engine *engine, char *buf, size_t cap)
{
    struct pn_hold hold;
    int rc = pn_backend_reap_and_lock(engine->seg, &hold);
    if (rc == 0) {
        pn_lock_release(engine->seg);
        rc = pn_lock_topics_wait(engine->seg, &hold, PN_LOCK_TIMEOUT_NS, engine);
    }
    if (rc != 0)
        return rc;
    rc = pn_check_locked(engine->seg, buf, cap);
    pn_lock_release(engine->seg);
    return rc;
}

/* ---- stacks ---------------------------------------------------------------------------------- */

PN_API int pn_log_stack(pn_engine *engine, int32_t pid)
{
    struct pn_segment *seg = engine->seg;
    int rc = pn_segment_check_state(seg);
    bool sent = false;
    for (uint32_t slot = 0; rc == 0 && !sent && slot < seg->max_backends; slot++)
        sent = pn_load_acquire(&seg->backend[slot].state) == PN_SLOT_CLAIMED &&
               pn_load_relaxed(&seg->backend[slot].pid) == pid &&
               pn_procsignal_send(seg, slot, PROCSIG_LOG_STACK);
    return rc != 0 ? rc : sent;
}

PN_API int pn_keep_disposition(int signo)
{
    return pn_stack_keep_disposition(signo);
}

PN_API int pn_adopt_stack_printer(int signo)
{
    return pn_stack_adopt_printer(signo);
}

PN_API uint32_t pn_heard(const pn_engine *engine)
{
    return pn_load_relaxed(&engine->seg->ctl->heard);
}
