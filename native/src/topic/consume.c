/*
 * consume.c - a consumer as its own process sees it: fetching, handing over, sleeping.
 *
 * 1. A fetch claims several messages at once, no more than the consumer may have in flight (also
 *    for want of memory: waiting.c) and no more than its share of what is ready.  What the caller
 *    has not got yet waits in `ahead`, and counts as in flight.  Its deadline runs from when the
 *    caller gets it: a hand-over later than a part of msg_timeout after the fetch takes the lock
 *    and stores a new one.  What has not been handed over goes back when a msg_timeout has passed
 *    without a fetch or such a hand-over (delivery.c 4): the caller hangs; what went back is passed
 *    over.  If the channel is paused meanwhile it goes back, when the caller comes for it.
 * 2. Bodies are read without the lock.  While a delivery is in flight with us no process touches
 *    its message, so a state word that is the same before and after says that what was copied in
 *    between is the message.  No consumer can see the same word of a later claim: only this one
 *    claims for itself, under `mutex`, and it fetches only when `ahead` is used up.
 * 3. `handed` in the consumer's slot is the number of the last claim that the caller has seen, and
 *    the generation that it is of: a process that was taken for dead cannot change its successor's.
 * 4. Sleeping: drain the latch; under the lock look, and say WAITING; block on the latch.  The
 *    process that notifies us holds the lock, and its signal comes after it; so the latch is
 *    written after we drained it.  After every sleep we look once and return, -EINTR if there was
 *    nothing: what ended it may have been a signal of ours and one of the program's at once
 *    (wait.c 2).
 * 5. With a descriptor the consumer stays WAITING when a look finds nothing, and the descriptor is
 *    readable from the notification, or the next thing due, on, until the next look; a look that
 *    leaves something sets the latch itself.
 * 6. The slow timer looks now and then without reason, ever more rarely: a notifier may have died
 *    with no watcher left to see it, or another consumer was notified and is stopped.
 */
#define _GNU_SOURCE
#include "topic/consume.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "backend/backend.h"
#include "base/crashpoint.h"
#include "base/grow.h"
#include "segment/arena_body.h"
#include "segment/identity.h"
#include "segment/lock.h"
#include "topic/area.h"
#include "topic/consumers.h"
#include "topic/delivery.h"
#include "topic/end.h"
#include "topic/latency.h"
#include "topic/message.h"
#include "topic/pump.h"
#include "topic/returns.h"
#include "topic/waiting.h"
#include "wakeup/latch.h"
#include "wakeup/lost.h"
#include "wakeup/procsignal.h"
#include "wakeup/watch.h"

#define PN_SLOW_MAX_NS    60000000000LL
#define PN_LATE           64 /* later than this part of msg_timeout a new deadline is stored */
#define PN_POLLED_NS      4000000LL  /* one that cannot be signalled looks so often, */
#define PN_POLLED_BACK_NS 50000000LL /* and returns so often */

int64_t pn_consumer_slow_ns = 500000000;

struct pn_conn *pn_consume_conn(const struct pn_consumer *consumer)
{
    return consumer->conn;
}

pn_ref pn_consume_ref(const struct pn_consumer *consumer)
{
    return pn_ref_make(consumer->ci, consumer->generation);
}

/* ---- what is ahead --------------------------------------------------------------------------- */

/*
 * The arena cannot be followed while it is rebuilt (rebuild_topics.c), though nothing of the
 * message changes.  When topics are open again it can, or it is broken indeed.  1, 0 as in
 * copy_out.
 */
static int copy_again(struct pn_consumer *c, const struct pn_delivery *d, uint64_t word,
                      uint64_t bytes)
{
    struct pn_hold hold;
    struct pn_segment *seg = c->conn->seg;
    int rc = pn_lock_topics_wait(seg, &hold, PN_LOCK_TIMEOUT_NS, c);
    if (rc != 0)
        return rc;
    if (pn_load_relaxed(&d->state) == word) {
        bool read = pn_arena_read(&seg->topics.arena, d->message, sizeof(struct pn_message), 0,
                                  c->buf, bytes);
        rc = read ? 1 : pn_segment_poison(seg, "the body of message %u is broken", d->message);
    }
    pn_lock_release(seg);
    return rc;
}

/* 1: copied; 0: it is not ours any more. */
static int copy_out(struct pn_consumer *c, uint32_t ref, uint64_t word, pn_message_out *out)
{
    struct pn_segment *seg = c->conn->seg;
    const struct pn_arena *mem = &seg->topics.arena;
    struct pn_delivery *d = pn_delivery_at(seg, ref);
    if (pn_load_acquire(&d->state) != word)
        return 0;
    uint32_t at = d->message;
    const struct pn_message *m = pn_message_at(seg, at);
    const struct pn_lengths length = pn_message_lengths(m);
    *out = (pn_message_out) {.id = m->id,
                             .delivery = ref,
                             .tag = pn_state_tag(word),
                             .attempts = pn_state_attempts(word),
                             .published_ns = m->published_ns,
                             .expires_ns = m->expires,
                             .body_len = length.body,
                             .headers_len = length.headers};
    c->published_mono = m->published_mono;
    pn_fence_acquire(); /* pairs with pn_arena_take_locked() */
    if (pn_load_relaxed(&d->state) != word)
        return 0;
    uint64_t bytes = length.both;
    int rc = bytes <= seg->topics.memory
                 ? PN_GROW(c->buf, c->cap, 1024, bytes)
                 : pn_segment_poison(seg, "message %u is longer than all memory of topics", at);
    if (rc != 0)
        return rc;
    PN_CRASH("claim:copying");
    bool read = pn_arena_read(mem, at, sizeof *m, 0, c->buf, bytes);
    pn_fence_acquire(); /* pairs with pn_arena_take_locked() */
    if (pn_load_relaxed(&d->state) != word)
        return 0;
    rc = read ? 1 : copy_again(c, d, word, bytes);
    out->headers = c->buf;
    out->body = c->buf + out->headers_len;
    return rc;
}

static int expire_ahead(struct pn_consumer *c);

static int taken_away(void)
{
    return pn_fail(PN_EREAPED, "the consumer was taken from this process\n"
                               "It had lost its liveness locks; close and connect again.");
}

/*
 * The next of those ahead was seen.  Without the lock the slot may be another consumer's by now,
 * whose number this must not change: its generation is in the word.
 */
static int count_handed(struct pn_consumer *c)
{
    uint64_t was = pn_load_relaxed(&c->me->handed);
    if (was >> 32 != c->generation)
        return taken_away();
    uint64_t next = pn_handed(c->generation, (uint32_t) was + 1);
    return pn_cas_u64(&c->me->handed, &was, next) ? 0 : taken_away();
}

void pn_consume_give_back_locked(struct pn_consumer *c)
{
    pn_assert_held(c->conn->seg);
    struct pn_segment *seg = c->conn->seg;
    while (c->nprefetched > c->at) {
        uint32_t ref = c->prefetched[--c->nprefetched].ref;
        struct pn_delivery *d = pn_delivery_at(seg, ref);
        if (pn_load_relaxed(&d->state) == c->prefetched[c->nprefetched].word)
            pn_delivery_return_locked(seg, ref, PN_BACK_HEAD);
    }
    PN_CRASH("topic:ahead-returned");
    /* what comes next is counted from here */
    pn_store_release(&c->me->handed, pn_handed(c->generation, c->me->claims));
}

/* Of the next of those ahead the deadline runs from now on. */
static int renew_ahead(struct pn_consumer *c, int64_t now)
{
    struct pn_segment *seg = c->conn->seg;
    struct pn_topic_channel *ch;
    struct pn_hold hold;
    int rc = pn_lock_topics(seg, &hold, PN_LOCK_TIMEOUT_NS);
    if (rc != 0)
        return rc;
    pn_topics_begin_locked(seg);
    rc = pn_consume_check_channel(c, &ch);
    struct pn_delivery *d = pn_delivery_at(seg, c->prefetched[c->at].ref);
    if (rc == 0 && pn_load_relaxed(&d->state) == c->prefetched[c->at].word) {
        d->delivered_ns = now;
        pn_delivery_touch_locked(seg, c->prefetched[c->at].ref, now + c->me->msg_timeout);
        c->me->alive = now;
        PN_CRASH("claim:renewed");
    }
    pn_topics_end_locked(seg);
    pn_lock_release(seg);
    return rc;
}

/* 1: *out; 0: nothing is left. */
static int next_ahead(struct pn_consumer *c, pn_message_out *out)
{
    while (c->at < c->nprefetched) {
        const int64_t now = pn_now_ns();
        int late = now - c->fetched_at > c->me->msg_timeout / PN_LATE ? renew_ahead(c, now) : 0;
        if (late != 0)
            return late;
        int rc = copy_out(c, c->prefetched[c->at].ref, c->prefetched[c->at].word, out);
        if (rc == 1 && out->expires_ns != 0 && out->expires_ns <= now) {
            rc = expire_ahead(c);
            if (rc == 0)
                continue;
        }
        if (rc < 0)
            return rc;
        c->at++;
        int counted = count_handed(c);
        PN_CRASH("claim:handed");
        if (counted != 0)
            return counted;
        if (rc == 1)
            return 1;
    }
    return 0;
}

/* ---- fetching (lock held) -------------------------------------------------------------------- */

int pn_consume_check_channel(struct pn_consumer *c, struct pn_topic_channel **ch)
{
    *ch = pn_topic_channel_at(c->conn->seg, c->me->channel);
    if (pn_load_relaxed(&c->me->state) != PN_RECORD_USED || c->me->generation != c->generation)
        return taken_away();
    if (pn_load_relaxed(&(*ch)->state) != PN_RECORD_USED ||
        (*ch)->generation != c->me->channel_generation)
        return pn_fail(PN_ETOPICDELETED, "the channel was deleted");
    return 0;
}

static void fetch_locked(struct pn_consumer *c, struct pn_topic_channel *ch, int64_t now)
{
    pn_assert_held(c->conn->seg);
    struct pn_segment *seg = c->conn->seg;
    uint32_t consumers = *(volatile const uint32_t *) &ch->consumers;
    uint32_t share = consumers == 0 ? 1 : (ch->ready + consumers - 1) / consumers;
    c->nprefetched = c->at = 0;
    c->fetched_at = c->me->alive = now;
    while (c->nprefetched < PN_PREFETCH && c->nprefetched < share && !pn_consumer_full(c->me) &&
           !pn_consumer_throttled(seg, c->me)) {
        uint32_t ref = pn_delivery_claim_locked(seg, c->ci, now);
        if (ref == 0)
            return;
        c->prefetched[c->nprefetched].ref = ref;
        c->prefetched[c->nprefetched++].word = pn_load_relaxed(&pn_delivery_at(seg, ref)->state);
    }
}

/* When to look again if no notification comes. */
static int64_t sleep_until(struct pn_consumer *c, struct pn_topic_channel *ch, int64_t now,
                           int64_t deadline)
{
    int64_t until = deadline, due = pn_topic_channel_next_due_locked(c->conn->seg, ch);
    int64_t slow = now + (c->conn->signo < 0 ? PN_POLLED_NS : c->slow_ns);
    until = due < until ? due : until;
    return slow < until ? slow : until;
}

/* What pn_topic_pump_locked() could not move for want of memory, perhaps. */
static void pump_locked(struct pn_segment *seg, struct pn_topic_channel *ch)
{
    pn_assert_topics_held(seg);
    if (pn_topic_channel_at(seg, ch->topic)->ready != 0 && pn_topic_of(seg, ch)->paused == 0)
        pn_topic_pump_locked(seg, pn_topic_of(seg, ch));
}

/* Time-outs that this hold of the lock notices go into the log of a connection that has one. */
static void take_notes_locked(const struct pn_consumer *c, struct pn_topic_notes *notes)
{
    pn_assert_held(c->conn->seg);
    notes->n = 0;
    pn_topics_hold(c->conn->seg)->notes = c->conn->log != NULL ? notes : NULL;
}

static void release_and_log(const struct pn_consumer *c, struct pn_topic_notes *notes)
{
    pn_lock_release(c->conn->seg);
    if (__builtin_expect(c->conn->log != NULL, 0))
        pn_log_notes(c->conn, notes);
}

/* For the log: a sleep has ended, of this thread or of the caller's event loop. */
static void note_sleep(struct pn_consumer *c, uint8_t why)
{
    c->woken_by = why;
    c->woke_at = pn_now_ns();
}

/* After the look, which tells whether it was of use.  A timer that was of none is no news. */
static void log_sleep(struct pn_consumer *c, bool useful)
{
    uint8_t why = c->woken_by;
    c->woken_by = PN_LATWAKE_NONE;
    c->last_wake = useful ? why : PN_LATWAKE_NONE;
    if (why == PN_LATWAKE_TIMER && !useful)
        return;
    struct pn_topic_note note = {.rec = {.ts = (uint64_t) c->woke_at,
                                         .batch = useful ? c->nprefetched : 0,
                                         .kind = PN_LAT_WAKE,
                                         .wake = why,
                                         .flags = useful ? PN_LATREC_USEFUL : 0},
                                 .len = c->name_len};
    memcpy(note.name, c->name, c->name_len);
    pn_log_note(c->conn, &note);
}

enum taking { TAKING_FOUND = 1, TAKING_AGAIN = 2, TAKING_SLEEP = 3 };

/* One look, under the lock.  `sleep`: stay WAITING if there is nothing; *until then; `inside`: the
 * caller sleeps. */
static int take_or_register(struct pn_consumer *c, bool sleep, bool inside, int64_t deadline,
                            int64_t *until)
{
    struct pn_hold hold;
    struct pn_segment *seg = c->conn->seg;
    struct pn_topic_channel *ch;
    int rc = pn_lock_topics_wait(seg, &hold, PN_LOCK_TIMEOUT_NS, c);
    if (rc != 0)
        return rc;
    rc = pn_consume_check_channel(c, &ch);
    if (rc != 0) {
        pn_lock_release(seg);
        return rc;
    }
    int64_t now = pn_now_ns();
    struct pn_topic_notes notes;
    take_notes_locked(c, &notes);
    pn_topics_begin_locked(seg);
    if (pn_load_relaxed(&c->me->wait) != PN_CONSUMER_BUSY)
        pn_consumer_set_wait_locked(seg, c->ci, PN_CONSUMER_BUSY);
    if (c->at < c->nprefetched) /* the channel was paused */
        pn_consume_give_back_locked(c);
    pump_locked(seg, ch);
    bool more = pn_topic_channel_tick_locked(seg, ch, now);
    if (pn_consumers_leave_locked(seg, ch))
        more = true;
    else
        fetch_locked(c, ch, now);
    rc = c->nprefetched != 0 ? TAKING_FOUND : more ? TAKING_AGAIN : TAKING_SLEEP;
    if (rc == TAKING_SLEEP && sleep) {
        *until = c->me->armed = sleep_until(c, ch, now, deadline);
        pn_store_relaxed(&c->me->inside, inside);
        pn_consumer_set_wait_locked(seg, c->ci,
                                    pn_consumer_full(c->me)             ? PN_CONSUMER_BLOCKED
                                    : pn_consumer_throttled(seg, c->me) ? PN_CONSUMER_THROTTLED
                                                                        : PN_CONSUMER_WAITING);
    }
    pn_topic_channel_settle_locked(seg, ch);
    seg->topics.ctl->refill_next = ch->topic; /* it comes first */
    pn_topics_end_locked(seg);
    pn_lock_release(seg);
    if (__builtin_expect(c->conn->log != NULL, 0)) {
        if (c->woken_by != PN_LATWAKE_NONE && rc != TAKING_AGAIN)
            log_sleep(c, rc == TAKING_FOUND);
        pn_log_notes(c->conn, &notes);
    }
    return rc;
}

/* Leave the waiting consumers; if this one was notified, another one is to be instead. */
static void leave_waiters(struct pn_consumer *c)
{
    struct pn_hold hold;
    struct pn_segment *seg = c->conn->seg;
    if (pn_load_acquire(&c->me->wait) == PN_CONSUMER_BUSY ||
        pn_lock_topics(seg, &hold, PN_LOCK_TIMEOUT_NS) != 0)
        return;
    struct pn_topic_channel *ch;
    pn_topics_begin_locked(seg);
    if (pn_consume_check_channel(c, &ch) == 0) {
        pn_consumer_set_wait_locked(seg, c->ci, PN_CONSUMER_BUSY);
        pn_topic_channel_settle_locked(seg, ch);
    }
    pn_topics_end_locked(seg);
    pn_lock_release(seg);
}

/* ---- getting --------------------------------------------------------------------------------- */

static int closed(void)
{
    return pn_fail(PN_ECLOSED, "the consumer was closed while a thread was waiting in it");
}

/* What is lost is made again as the caller goes round again. */
static int look_for_lost(const struct pn_consumer *c)
{
    pn_lost_look();
    return pn_consumer_check_fd(c);
}

static int block(struct pn_consumer *c, int64_t until)
{
    int64_t now = pn_now_ns();
    int rc = pn_segment_check_user(c->conn->seg);
    if (rc == 0)
        rc = pn_backend_keep_alive_asleep(c->conn, now);
    if (rc != 0)
        return rc;
    if (pn_lost_due())
        return look_for_lost(c);
    int64_t left = until > now ? until - now : 0;
    struct pn_sleeper sleeper = {.conn = c->conn,
                                 .consumer = c,
                                 .fd = pn_load_relaxed(&c->efd),
                                 .set = &c->sleep_set,
                                 .timeout = {left / 1000000000, left % 1000000000}};
    rc = pn_latch_block(&sleeper);
    if (__builtin_expect(c->conn->log != NULL, 0))
        note_sleep(c, sleeper.neighbour                   ? PN_LATWAKE_NEIGHBOUR
                      : rc == 1 || sleeper.signalled != 0 ? PN_LATWAKE_SIGNAL
                      : rc == 0                           ? PN_LATWAKE_TIMER
                                                          : PN_LATWAKE_NONE);
    if (sleeper.neighbour)
        pn_watch_look(c->conn);
    if ((rc == -EBADF || rc == -EINVAL) && c->failures++ < PN_WAIT_TRIES)
        return look_for_lost(c);
    if (rc < 0 && rc != -EINTR)
        return pn_fail(-rc, "could not wait: %s", strerror(-rc));
    if (rc == 1 || sleeper.signalled != 0)
        c->slow_ns = pn_consumer_slow_ns;
    else if (rc == 0 && c->slow_ns < PN_SLOW_MAX_NS)
        c->slow_ns *= 2;
    return 0;
}

/* Level-triggered: what a look has left, and when the next is due. */
static void arm_descriptor(struct pn_consumer *c, int64_t until)
{
    struct itimerspec timer = {.it_value = {until / 1000000000, until % 1000000000}};
    if (until != INT64_MAX && pn_load_acquire(&c->fd_lost) == 0)
        timerfd_settime(c->tfd, TFD_TIMER_ABSTIME, &timer, NULL);
}

/* The connection watches others (watch.c 8), or does so by now: the descriptor shows it. */
static void join_watch(struct pn_consumer *c)
{
    struct epoll_event ev = {.events = EPOLLIN};
    int watched = pn_load_acquire(&c->conn->watch.epfd);
    if (!c->watched && c->epfd >= 0 && watched >= 0)
        c->watched = epoll_ctl(c->epfd, EPOLL_CTL_ADD, watched, &ev) == 0;
}

static int get_slowly(struct pn_consumer *c, int64_t timeout_ns, pn_message_out *out)
{
    int64_t now = pn_now_ns(), deadline = timeout_ns < 0 ? INT64_MAX : 0, until = 0;
    int64_t back_at = c->conn->signo < 0 ? now + PN_POLLED_BACK_NS : now;
    bool has_fd = pn_load_relaxed(&c->has_fd) != 0, over = timeout_ns == 0, back = false;
    c->failures = 0;
    if (has_fd && c->conn->log != NULL && pn_load_relaxed(&c->me->wait) == PN_CONSUMER_NOTIFIED)
        note_sleep(c, PN_LATWAKE_FD);
    if (timeout_ns > 0)
        deadline = pn_after(now, timeout_ns);
    for (;;) {
        int rc = pn_conn_check(c->conn);
        if (rc == 0 && pn_load_acquire(&c->closing) != 0)
            rc = closed();
        if (rc == 0 && !over)
            rc = pn_consumer_check_fd(c);
        if (rc == 0 && !over)
            rc = pn_consumer_latch_open(c);
        if (rc != 0)
            return rc;
        if (!over || has_fd) {
            pn_watch_arm(c->conn);
            pn_consumer_latch_drain(c);
        }
        pn_procsignal_pass_on_posted(c->conn->seg);
        if (has_fd) {
            join_watch(c);
            pn_watch_look(c->conn);
        }
        if (pn_load_acquire(&c->closing) != 0)
            return closed();
        bool stay = !(over || back);
        rc = take_or_register(c, stay || has_fd, stay, over ? INT64_MAX : deadline, &until);
        if (rc == TAKING_FOUND)
            rc = next_ahead(c, out);
        if (rc == TAKING_AGAIN || rc == 0)
            continue;
        if (rc != TAKING_SLEEP)
            return rc;
        if (!stay) {
            if (has_fd)
                arm_descriptor(c, until);
            return over ? 0 : -EINTR;
        }
        rc = block(c, until);
        if (rc != 0) {
            leave_waiters(c);
            return rc;
        }
        now = pn_now_ns();
        over = now >= deadline;
        back = now >= back_at;
    }
}

static int lock_consumer(struct pn_consumer *c, int64_t timeout_ns)
{
    if (pthread_mutex_trylock(&c->mutex) == 0)
        return 1;
    if (timeout_ns == 0)
        return 0;
    if (timeout_ns < 0) {
        pthread_mutex_lock(&c->mutex);
        return 1;
    }
    return pn_os_lock_until(&c->mutex, pn_after(pn_now_ns(), timeout_ns)) == 0;
}

/* How long it took is on one clock only: the wall's may have been set meanwhile. */
static void log_delivery(struct pn_consumer *c, const pn_message_out *out)
{
    struct pn_topic_note note = {
        .rec = {.ts = (uint64_t) pn_now_ns(),
                .ref_ts = (uint64_t) c->published_mono,
                .commit_seq = out->id,
                .bytes = (uint32_t) out->body_len,
                .kind = PN_LAT_DELIVER,
                .wake = c->last_wake,
                .attempts = (uint8_t) (out->attempts < 255 ? out->attempts : 255)},
        .len = c->name_len};
    memcpy(note.name, c->name, c->name_len);
    pn_log_note(c->conn, &note);
    c->last_wake = PN_LATWAKE_NONE;
}

static bool is_paused(const struct pn_consumer *c)
{
    return pn_load_relaxed(&pn_topic_channel_at(c->conn->seg, c->me->channel)->paused) != 0;
}

int pn_consume_get(struct pn_consumer *c, int64_t timeout_ns, pn_message_out *out)
{
    int rc = pn_conn_check(c->conn);
    if (rc != 0)
        return rc;
    if (pn_load_acquire(&c->closing) != 0)
        return closed();
    if (lock_consumer(c, timeout_ns) == 0)
        return 0;
    rc = c->at < c->nprefetched && !is_paused(c) ? next_ahead(c, out) : 0;
    if (rc == 0)
        rc = get_slowly(c, timeout_ns, out);
    if (rc == 1 && __builtin_expect(c->conn->log != NULL, 0))
        log_delivery(c, out);
    if (rc == 1 && pn_load_relaxed(&c->has_fd) != 0)
        pn_consumer_latch_set(c); /* there may be more */
    pthread_mutex_unlock(&c->mutex);
    return rc;
}

/* The first of those ahead has expired since it was fetched: back it goes, to be found so. */
static int expire_ahead(struct pn_consumer *c)
{
    struct pn_hold hold;
    struct pn_segment *seg = c->conn->seg;
    struct pn_topic_channel *ch;
    int rc = pn_lock_topics_wait(seg, &hold, PN_LOCK_TIMEOUT_NS, c);
    if (rc != 0)
        return rc;
    struct pn_topic_notes notes;
    take_notes_locked(c, &notes);
    pn_topics_begin_locked(seg);
    rc = pn_consume_check_channel(c, &ch);
    struct pn_delivery *d = pn_delivery_at(seg, c->prefetched[c->at].ref);
    if (rc == 0 && pn_load_relaxed(&d->state) == c->prefetched[c->at].word) {
        pn_delivery_return_locked(seg, c->prefetched[c->at].ref, PN_BACK_HEAD);
        pn_topic_channel_tick_locked(seg, ch, pn_now_ns());
        pn_topic_channel_settle_locked(seg, ch);
    }
    pn_topics_end_locked(seg);
    release_and_log(c, &notes);
    c->at++;
    int counted = count_handed(c);
    return rc != 0 ? rc : counted;
}

/* ---- one descriptor for any event loop ------------------------------------------------------- */

static int make_descriptor(struct pn_consumer *c)
{
    struct epoll_event ev = {.events = EPOLLIN};
    int epfd = epoll_create1(EPOLL_CLOEXEC);
    int tfd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    pthread_mutex_lock(&c->conn->recv_mutex);
    int rc = pn_watch_open(c->conn);
    pthread_mutex_unlock(&c->conn->recv_mutex);
    if (epfd < 0 || tfd < 0 || rc < 0 ||
        epoll_ctl(epfd, EPOLL_CTL_ADD, pn_load_relaxed(&c->efd), &ev) != 0 ||
        epoll_ctl(epfd, EPOLL_CTL_ADD, tfd, &ev) != 0) {
        int error = errno;
        if (epfd >= 0)
            close(epfd);
        if (tfd >= 0)
            close(tfd);
        return pn_fail(error, "could not create the descriptor to wait on: %s", strerror(error));
    }
    c->epfd = epfd;
    c->tfd = tfd;
    join_watch(c);
    pn_store_release(&c->has_fd, 1);
    pn_consumer_latch_set(c); /* no look has been made yet */
    return 0;
}

int pn_consume_fileno(struct pn_consumer *c)
{
    int rc = pn_conn_check(c->conn);
    if (rc != 0)
        return rc;
    pthread_mutex_lock(&c->mutex);
    rc = pn_consumer_check_fd(c);
    if (rc == 0)
        rc = pn_consumer_latch_open(c);
    if (rc == 0 && c->epfd < 0)
        rc = make_descriptor(c);
    pthread_mutex_unlock(&c->mutex);
    return rc != 0 ? rc : c->epfd;
}
