/*
 * attach.c - a consumer comes, pauses and goes: its slot in shared memory and its place in the
 * connection's list.
 *
 * 1. The slot's `state` is stored last when it is taken, and first when it is given up; the lists
 *    and counters of the channel follow, under `topics_dirty`.
 * 2. A consumer that comes reaps the dead among the channel's others first: so what they had in
 *    flight stands in its old place before the first look.
 * 3. Closing gives back what is in flight in bounded steps, and is no use of the limit of attempts
 *    for what was only fetched ahead.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/backend.h"
#include "base/crashpoint.h"
#include "segment/identity.h"
#include "segment/lock.h"
#include "segment/process.h"
#include "topic/attach.h"
#include "topic/area.h"
#include "topic/consume.h"
#include "topic/consumers.h"
#include "topic/end.h"
#include "topic/latency.h"
#include "topic/settings.h"
#include "topic/tables.h"
#include "topic/waiting.h"
#include "wakeup/handlers.h"
#include "wakeup/procsignal.h"
#include "wakeup/watch.h"

/* ---- opening --------------------------------------------------------------------------------- */

static int check_options(const pn_consumer_options *o)
{
    if (o->max_in_flight > 65535)
        return pn_fail(EINVAL, "max_in_flight must be between 1 and 65535");
    if (o->sample_rate > 99)
        return pn_fail(EINVAL, "sample_rate must be between 1 and 99");
    if (o->msg_timeout_ns < 0 || o->max_msg_timeout_ns < 0)
        return pn_fail(EINVAL, "msg_timeout and max_msg_timeout must be positive");
    return o->dead_letter == NULL
               ? 0
               : pn_topic_check_name("dead-letter topic", o->dead_letter, o->dead_letter_len);
}

/* A time, and that from then on, is one that can be said. */
static int64_t at_most(int64_t ns)
{
    const int64_t longest = INT64_MAX / 4; /* 73 years */
    return ns < longest ? ns : longest;
}

static int64_t msg_timeout(const struct pn_topic_channel *ch, const pn_consumer_options *o)
{
    const struct pn_channel_defaults *d = pn_channel_defaults(ch);
    if ((o->fallback & d->given & PN_CHANNEL_MSG_TIMEOUT) != 0 && d->msg_timeout > 0)
        return d->msg_timeout;
    return o->msg_timeout_ns == 0 ? 60000000000LL : o->msg_timeout_ns;
}

static void fill_slot(struct pn_consumer_slot *c, struct pn_conn *conn, struct pn_topic_channel *ch,
                      const pn_consumer_options *o)
{
    uint32_t generation = c->generation + 1;
    memset((char *) c + sizeof c->state, 0, sizeof *c - sizeof c->state);
    c->generation = generation;
    pn_store_relaxed(&c->handed, pn_handed(generation, 0));
    c->channel = pn_topic_channel_index(conn->seg, ch);
    c->channel_generation = ch->generation;
    c->slot = conn->slot;
    c->slot_generation = conn->generation;
    c->pid = conn->pid;
    c->max_in_flight = c->level = o->max_in_flight == 0 ? 1 : o->max_in_flight;
    c->max_attempts = o->max_attempts;
    c->sample_rate = o->sample_rate;
    c->fallback = o->fallback;
    c->msg_timeout = at_most(msg_timeout(ch, o));
    c->max_msg_timeout =
        at_most(o->max_msg_timeout_ns == 0 ? 900000000000LL : o->max_msg_timeout_ns);
    if (c->max_msg_timeout < c->msg_timeout)
        c->max_msg_timeout = c->msg_timeout;
    c->dead_letter_len = o->dead_letter == NULL ? 0 : (uint32_t) o->dead_letter_len;
    if (c->dead_letter_len != 0)
        memcpy(c->dead_letter, o->dead_letter, c->dead_letter_len);
}

bool pn_consumers_reap_dead_locked(struct pn_segment *seg, struct pn_topic_channel *ch)
{
    pn_assert_topics_held(seg);
    uint32_t steps = 0, reaped = 0, n = seg->topics.max_consumers;
    for (uint32_t i = ch->first_consumer, next; i != 0 && reaped <= n; i = next) {
        if (!pn_list_goes_on(seg, steps++, n, "consumers"))
            break;
        uint32_t slot = *(volatile const uint32_t *) &pn_consumer_at(seg, i - 1)->slot;
        next = pn_consumer_at(seg, i - 1)->next;
        if (slot >= seg->max_backends || pn_backend_is_ours(seg, slot) ||
            pn_backend_verdict(seg, slot) != PN_DEAD)
            continue;
        if (!pn_backend_reap_locked(seg, slot))
            break; /* the caller comes again */
        reaped++;
        next = ch->first_consumer; /* others of that slot's have gone with it */
        steps = 0;
    }
    return reaped != 0;
}

static int attach_locked(struct pn_consumer *consumer, pn_ref ref, const pn_consumer_options *o)
{
    pn_assert_held(consumer->conn->seg);
    struct pn_conn *conn = consumer->conn;
    struct pn_segment *seg = conn->seg;
    struct pn_topic_channel *ch = pn_topic_channel_resolve_locked(conn, ref);
    uint32_t i = seg->topics.ctl->consumer_hint;
    int rc = pn_conn_check_slot(conn); /* its consumers are woken, and die, with it */
    if (rc != 0)
        return rc;
    if (ch == NULL)
        return -PN_ETOPICDELETED;
    rc = pn_dead_letter_check_locked(seg, pn_topic_of(seg, ch), o->dead_letter, o->dead_letter_len);
    if (rc != 0)
        return rc;
    pn_consumers_reap_dead_locked(seg, ch);
    if ((pn_hold_of(seg)->at_end & PN_REAP) != 0)
        return -EAGAIN; /* the rest of it at the release */
    if (ch->max_consumers != 0 && ch->consumers >= ch->max_consumers)
        return pn_fail(PN_ECONSUMERS, "consumers for %.*s:%.*s exceeds limit of %u",
                       (int) pn_topic_of(seg, ch)->name_len, pn_topic_of(seg, ch)->name,
                       (int) ch->name_len, ch->name, ch->max_consumers);
    while (i < seg->topics.max_consumers &&
           pn_load_relaxed(&seg->topics.consumer[i].state) != PN_RECORD_FREE)
        i++;
    if (i >= seg->topics.max_consumers)
        return pn_fail(PN_ETOPICS,
                       "too many consumers (max_consumers is %u)\n"
                       "Close some, or create the segment with a larger max_consumers.",
                       seg->topics.max_consumers);
    seg->topics.ctl->consumer_hint = i + 1;
    struct pn_consumer_slot *c = &seg->topics.consumer[i];
    fill_slot(c, conn, ch, o);
    pn_fetch_or(&seg->consuming[conn->slot / 64], 1ULL << (conn->slot % 64));
    PN_CRASH("topic:consumer-entry");
    pn_store_release(&c->state, PN_RECORD_USED);
    PN_CRASH("topic:consumer-used");
    pn_consumer_link(seg, ch, i);
    consumer->me = c;
    consumer->ci = i;
    consumer->generation = c->generation;
    consumer->name_len = pn_log_channel_name(seg, ch, consumer->name);
    return 0;
}

/* Into the connection's list, which its signal handler walks. */
static void register_consumer(struct pn_consumer *c)
{
    struct pn_conn *conn = c->conn;
    pn_process_lock();
    pn_store_relaxed(&c->next, pn_load_relaxed(&conn->consumers));
    pn_store_release(&conn->consumers, c);
    pn_fetch_add_relaxed(&conn->nconsumers, 1);
    pn_process_unlock();
}

static void close_files(struct pn_consumer *c)
{
    pn_close_if_ours(pn_load_relaxed(&c->sleep_set.fd), PN_KIND_EPOLL);
    pn_close_if_ours(pn_load_relaxed(&c->efd), PN_KIND_EVENTFD);
    pn_close_if_ours(c->epfd, PN_KIND_EPOLL);
    pn_close_if_ours(c->tfd, PN_KIND_TIMERFD);
    pn_store_relaxed(&c->sleep_set.fd, -1);
    pn_store_relaxed(&c->efd, -1);
    c->epfd = c->tfd = -1;
}

static void unregister_consumer(struct pn_consumer *c)
{
    struct pn_conn *conn = c->conn;
    pn_process_lock();
    pthread_mutex_lock(&conn->seg->signal_mutex);
    _Atomic(struct pn_consumer *) *link = &conn->consumers;
    while (pn_load_relaxed(link) != c)
        link = &pn_load_relaxed(link)->next;
    pn_store_release(link, pn_load_relaxed(&c->next));
    pn_fetch_add_relaxed(&conn->nconsumers, (uint32_t) -1);
    pthread_mutex_unlock(&conn->seg->signal_mutex);
    pn_procsignal_quiesce(); /* a handler in another thread may still be at it */
    close_files(c);          /* not after the writer lock: no forked child would find them */
    pn_process_unlock();
    pn_procsignal_pass_on_posted(conn->seg); /* which left it to the thread that was in here */
}

int pn_consume_open(struct pn_conn *conn, pn_ref channel, const pn_consumer_options *options,
                    struct pn_consumer **out)
{
    struct pn_hold hold;
    const pn_consumer_options none = {0};
    struct pn_segment *seg = conn->seg;
    int rc = check_options(options == NULL ? &none : options);
    if (rc == 0)
        rc = pn_segment_check_user(seg);
    if (rc == 0)
        rc = pn_handler_arm(conn);
    if (rc != 0)
        return rc;
    struct pn_consumer *c = calloc(1, sizeof *c);
    if (c == NULL)
        return pn_fail(ENOMEM, "out of memory");
    c->conn = conn;
    c->epfd = c->tfd = -1;
    c->slow_ns = pn_consumer_slow_ns;
    pn_store_relaxed(&c->efd, -1);
    pn_store_relaxed(&c->sleep_set.fd, -1);
    pthread_mutex_init(&c->mutex, NULL);
    do {
        rc = pn_lock_topics_wait(seg, &hold, PN_LOCK_TIMEOUT_NS, conn);
        if (rc == 0 && !pn_topics_ready(seg)) {
            pn_lock_release(seg);
            rc = pn_fail(PN_ETOPICDELETED, "there is no such channel");
        } else if (rc == 0) {
            pn_topics_begin_locked(seg);
            rc = attach_locked(c, channel, options == NULL ? &none : options);
            pn_topics_end_locked(seg);
            pn_lock_release(seg);
        }
    } while (rc == -EAGAIN);
    if (rc != 0) {
        free(c);
        return rc;
    }
    pn_conn_hold(conn);
    register_consumer(c);
    *out = c;
    return 0;
}

/* ---- pausing, closing ------------------------------------------------------------------------ */

int pn_consume_pause(struct pn_consumer *c, int level)
{
    struct pn_hold hold;
    struct pn_segment *seg = c->conn->seg;
    struct pn_topic_channel *ch;
    bool idle = pthread_mutex_trylock(&c->mutex) == 0; /* else it sleeps, with nothing ahead */
    int rc = pn_conn_check(c->conn);
    if (rc == 0)
        rc = pn_lock_topics_wait(seg, &hold, PN_LOCK_TIMEOUT_NS, c);
    if (rc != 0) {
        if (idle)
            pthread_mutex_unlock(&c->mutex);
        return rc;
    }
    rc = pn_consume_check_channel(c, &ch);
    if (rc == 0) {
        uint32_t max = c->me->max_in_flight;
        pn_topics_begin_locked(seg);
        c->me->level = level < 0 || (uint32_t) level > max ? max : (uint32_t) level;
        PN_CRASH("topic:level");
        if (idle && c->me->level == 0)
            pn_consume_give_back_locked(c);
        uint32_t wait = pn_load_relaxed(&c->me->wait);
        if (wait == PN_CONSUMER_BLOCKED && !pn_consumer_full(c->me))
            pn_consumer_set_wait_locked(seg, c->ci, PN_CONSUMER_WAITING);
        else if ((wait == PN_CONSUMER_WAITING || wait == PN_CONSUMER_THROTTLED) &&
                 pn_consumer_full(c->me))
            pn_consumer_set_wait_locked(seg, c->ci, PN_CONSUMER_BLOCKED);
        pn_topic_channel_settle_locked(seg, ch);
        pn_topics_end_locked(seg);
    }
    pn_lock_release(seg);
    if (idle)
        pthread_mutex_unlock(&c->mutex);
    return rc;
}

struct pn_consumer pn_consumer_that_is_closed = {.conn = &pn_conn_that_is_closed,
                                                 .closing = 1,
                                                 .efd = -1,
                                                 .sleep_set = {.fd = -1},
                                                 .epfd = -1,
                                                 .tfd = -1,
                                                 .mutex = PTHREAD_MUTEX_INITIALIZER};

void pn_consume_interrupt(struct pn_consumer *c)
{
    pn_store_release(&c->closing, 1);
    pn_consumer_latch_set(c);
}

/* The last of what made the connection sleep here: watchers whose walk ends at us are told. */
static bool leave_watch_locked(struct pn_conn *conn)
{
    pn_assert_held(conn->seg);
    if (pn_load_relaxed(&conn->nconsumers) != 0 || pn_load_relaxed(&conn->nlistening) != 0 ||
        !pn_slot_watches(conn->me) || !pn_owns_slot(conn))
        return false;
    pn_store_relaxed(&conn->me->watches, pn_owned(conn->generation, 0));
    pn_watch_lengthened_locked(conn->seg);
    return true;
}

static int detach(struct pn_consumer *c)
{
    struct pn_hold hold;
    struct pn_segment *seg = c->conn->seg;
    struct pn_topic_channel *ch;
    bool more = true, leaves = false;
    int rc = 0;
    while (rc == 0 && more) {
        rc = pn_lock_topics(seg, &hold, PN_LOCK_TIMEOUT_NS);
        if (rc != 0)
            break;
        uint32_t steps = pn_return_steps;
        more = false;
        pn_topics_begin_locked(seg);
        if (pn_load_relaxed(&c->me->state) == PN_RECORD_USED &&
            c->me->generation == c->generation) {
            bool there = pn_consume_check_channel(c, &ch) == 0;
            more = there && pn_consumer_drain_locked(seg, c->ci, &steps);
            if (there)
                pn_topic_channel_settle_locked(seg, ch);
            if (!more)
                pn_consumer_free_locked(seg, c->ci);
        }
        pn_topics_end_locked(seg);
        leaves = !more && leave_watch_locked(c->conn);
        pn_lock_release(seg);
        PN_CRASH("topic:detach-between");
    }
    if (leaves)
        pn_watch_tell(seg, c->conn->slot);
    return rc;
}

void pn_consumers_close_inherited(struct pn_conn *conn)
{
    struct pn_consumer *c = pn_load_relaxed(&conn->consumers);
    for (; c != NULL; c = pn_load_relaxed(&c->next))
        close_files(c);
}

static void free_consumer(struct pn_consumer *c)
{
    close_files(c);
    free(c->buf);
    free(c);
}

int pn_consume_close(struct pn_consumer *c)
{
    int rc = 0;
    if (c->conn->pid == pn_my_pid) {
        pn_consume_interrupt(c);
        pthread_mutex_lock(&c->mutex); /* until the thread in it has left */
        pthread_mutex_unlock(&c->mutex);
        unregister_consumer(c);
        if (pn_conn_check_held(c->conn) == 0)
            rc = detach(c);
    }
    free_consumer(c);
    return rc;
}
