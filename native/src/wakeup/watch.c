/*
 * watch.c - detecting the death of a notifier without a timer.
 *
 * 1. A notifier may be killed between its commit and its signal.  The listeners that it should have
 *    woken then sleep on, and no process is left that knows.  So sleepers watch others.  The slots
 *    form a ring.  A listener that goes to sleep walks it from its own slot and watches, by pidfd,
 *    every process that it meets, up to and including the PN_WATCHERS-th that watches, too.  A
 *    backend that does not listen never sleeps here, so it is watched but ends no walk.  Every slot
 *    is thus watched by PN_WATCHERS sleepers, if there are as many: one may be stopped, or busy for
 *    an hour.
 * 2. `watches` of a slot says that its walk was completed since it listens.  Only then may the slot
 *    end another slot's walk: until then the slots behind it are watched only by those in front of
 *    it.
 * 3. `members` in shared memory counts what lengthens walks: a claim, and a watcher that goes
 *    (close, UNLISTEN of everything, or its slot is reaped while its process lives: it has lost its
 *    locks, and its pidfd tells nothing).  The process that brings that about adds one under the
 *    lock, and after it signals the nearest watchers in front of its slot, PN_WATCHERS processes of
 *    them: PROCSIG_NEIGHBOUR.  A slot that does not watch yet is not signalled (there may be
 *    thousands): when it sets `watches` for the first time it compares `members`, and walks again
 *    if they have changed since its walk began.
 *
 *        a process that lengthens walks           a slot that walks for the first time
 *          members++                                s = members, walk
 *          --- full fence ---                       watches = 1
 *          w = watches                              --- full fence ---
 *          if w: tell it                            if members != s: walk again
 *
 *    Every sleeper compares `members` before it blocks, also those that cannot be signalled.  A
 *    newcomer that is killed before it told a watcher has committed nothing.
 * 4. Walk first, then look whether something is unread, then block.
 * 5. Takeover.  A watched process that dies makes the descriptor readable.  The watcher takes the
 *    writer lock (a dead holder is recovered there), reaps the dead one's slots, releases the lock
 *    and signals every slot that is owed a signal.  The lock has to be held once after that death:
 *    its present holder may be a process that is in no slot yet, is just recovering, and may die,
 *    too.  If it cannot be had in PN_TAKEOVER_NS it is tried again, ever more rarely, and until
 *    then the descriptor is not readable.  A watched process that died is taken over even if its
 *    slot is gone by now, and a dead process in a slot even if it was not watched yet.
 * 6. What a watcher does may be done by several, and again: a watcher that is killed in here is
 *    watched itself, and its death is handled in the same way.  watch.pml has the protocol, with
 *    the rules broken one by one.
 * 7. A connection watches for itself, not the process for all of its connections: one may sleep
 *    while the others are busy or listen to nothing.  It costs a connection that listens and sleeps
 *    an epoll descriptor, one more to block on (latch.c 2), and a pidfd for each neighbour, at most
 *    PN_NEIGHBOURS.  With more of them, or without descriptors, `complete` is false and the slow
 *    timer stays at its shortest.
 * 8. A process may have a thousand connections.  PN_SEATS of them in a segment watch, the first to
 *    sleep; the others take a seat when one is free as they go to sleep.  Without one a connection
 *    is to all others as one that has not slept yet: its `watches` is 0, so it ends no walk and is
 *    not told.  A takeover signals every slot that is owed a signal, also those of connections
 *    without a seat.  One shared set would not do: the kernel lets 500 sets have it, and 100 if
 *    they are in an event loop's set in turn.
 * 9. A pidfd that the program closes leaves the set, and tells nothing more.  So they are looked at
 *    before a sleep, at most every PN_CHECK_NS, and at each walk; one that is not what it was is
 *    forgotten, not closed, and opened again, if the set is known to be ours still.  When it was
 *    closed is not known: its process may be dead by now, which the walk finds by pidfd_open() or
 *    the liveness byte.  Of one that is watched alone, where there is no epoll_pwait2(), nothing
 *    proves that, and it is left; so another watcher or the slow timer stands in.
 */
#define _GNU_SOURCE
#include "wakeup/watch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "backend/backend.h"
#include "base/crashpoint.h"
#include "base/os.h"
#include "segment/identity.h"
#include "segment/lock.h"
#include "segment/liveness_files.h"
#include "wakeup/latch.h"
#include "wakeup/send.h"

#define PN_WATCHERS     3U /* processes that watch all others */
#define PN_SPAN_SLOTS   8U /* no walk is longer than that many slots that watch */
#define PN_TAKEOVER_NS  2000000LL
#define PN_RETRY_MIN_NS 5000000LL
#define PN_RETRY_MAX_NS 500000000LL
#define PN_CHECK_NS     50000000LL

/* ---- what is owed ------------------------------------------------------------------------ */

void pn_watch_send_owed(struct pn_segment *seg, int64_t min_age_ns)
{
    int64_t newest = pn_now_ns() - min_age_ns;
    struct pn_send_run run;
    pn_send_begin(&run, seg);
    for (uint32_t word = 0; word < seg->words; word++) {
        uint64_t bits = pn_load_acquire(&seg->owed[word]);
        for (; bits != 0; bits &= bits - 1) {
            uint32_t slot = word * 64 + (uint32_t) __builtin_ctzll(bits);
            if (slot >= seg->max_backends)
                break;
            int64_t at = (int64_t) pn_load_relaxed(&seg->backend[slot].signalled_at);
            if (at <= newest)
                pn_send_add(&run, slot);
        }
    }
    pn_send_end(&run);
    pn_segment_hooks.signal_owed(seg, min_age_ns);
}

void pn_watch_resignal(struct pn_segment *seg)
{
    pn_watch_send_owed(seg, 0);
}

/* ---- telling those in front of us -------------------------------------------------------- */

/* Processes and slots that end a walk, or the search for those to be told, backwards. */
struct span {
    int32_t pid[PN_WATCHERS];
    uint32_t processes, slots;
};

static bool spanned(struct span *span, int32_t pid)
{
    bool known = false;
    for (uint32_t i = 0; i < span->processes; i++)
        known = known || span->pid[i] == pid;
    if (!known)
        span->pid[span->processes++] = pid;
    span->slots++;
    return span->processes == PN_WATCHERS || span->slots == PN_SPAN_SLOTS;
}

/* A slot that does not watch yet sees us when it does. */
void pn_watch_tell(struct pn_segment *seg, uint32_t slot)
{
    struct span span = {.processes = 0};
    pn_fence_seq_cst(); /* between `members` and `watches`: pairs with walk() */
    for (uint32_t i = 1; i < seg->max_backends; i++) {
        uint32_t at = (slot + seg->max_backends - i) % seg->max_backends;
        uint64_t word =
            pn_load_acquire(&seg->listeners[at / 64]) | pn_load_acquire(&seg->consuming[at / 64]);
        if (word == 0) {
            i += at % 64; /* to the end of the word before it, or of the ring */
            continue;
        }
        struct QueueBackendStatus *backend = &seg->backend[at];
        if ((word >> (at % 64) & 1) == 0 || !pn_slot_watches(backend))
            continue;
        int32_t pid = pn_load_relaxed(&backend->pid);
        if (pid == pn_my_pid)
            continue;
        bool told = pn_procsignal_send(seg, at, PROCSIG_NEIGHBOUR);
        PN_CRASH("watch:told");
        if (told && spanned(&span, pid))
            return;
    }
}

/* ---- taking over ------------------------------------------------------------------------- */

static void reap_process_locked(struct pn_segment *seg, int32_t pid)
{
    pn_assert_held(seg);
    for (uint32_t slot = 0; slot < seg->max_backends; slot++) {
        struct QueueBackendStatus *backend = &seg->backend[slot];
        if (pn_load_relaxed(&backend->state) == PN_SLOT_CLAIMED &&
            pn_load_relaxed(&backend->pid) == pid && pn_backend_verdict(seg, slot) == PN_DEAD)
            pn_backend_reap_locked(seg, slot);
    }
}

static bool take_over(struct pn_segment *seg, int32_t pid)
{
    struct pn_hold hold;
    PN_CRASH("watch:dead");
    if (pn_lock_topics(seg, &hold, PN_TAKEOVER_NS) != 0)
        return false;
    PN_CRASH("watch:locked");
    reap_process_locked(seg, pid);
    pn_lock_release(seg); /* what one hold did not do is done here */
    PN_CRASH("watch:unlocked");
    pn_watch_send_owed(seg, 0);
    return true;
}

static void try_again(struct pn_watch *w)
{
    w->pause_ns = w->pause_ns == 0 ? PN_RETRY_MIN_NS : 2 * w->pause_ns;
    if (w->pause_ns > PN_RETRY_MAX_NS)
        w->pause_ns = PN_RETRY_MAX_NS;
    pn_store_relaxed(&w->retry_at, (uint64_t) (pn_now_ns() + w->pause_ns));
}

/* Those that we watched, and that are dead. */
static void reap_dead(struct pn_conn *conn)
{
    struct pn_watch *w = &conn->watch;
    struct epoll_event dead[PN_NEIGHBOURS];
    int n = epoll_wait(pn_load_relaxed(&w->epfd), dead, PN_NEIGHBOURS, 0);
    for (int i = 0; i < n; i++)
        for (uint32_t k = 0; k < w->n; k++)
            if ((uint64_t) w->neighbour[k].fd == dead[i].data.u64) {
                epoll_ctl(pn_load_relaxed(&w->epfd), EPOLL_CTL_DEL, w->neighbour[k].fd, NULL);
                w->neighbour[k].dead = true;
            }
    for (uint32_t k = 0; k < w->n;) {
        if (!w->neighbour[k].dead) {
            k++;
        } else if (take_over(conn->seg, w->neighbour[k].pid)) {
            pn_close_pidfd(w->neighbour[k].fd, w->neighbour[k].id);
            w->neighbour[k] = w->neighbour[--w->n];
        } else {
            try_again(w);
            return;
        }
    }
}

/* Or consumes: then it may sleep here. */
static bool listens(const struct pn_conn *conn)
{
    return pn_load_relaxed(&conn->nlistening) != 0 || pn_load_relaxed(&conn->nconsumers) != 0;
}

/* ---- the walk ---------------------------------------------------------------------------- */

enum found { LIVES, LIES_DEAD };

/* All of its data, by which the set is known again: `data.fd` alone would leave half of it open. */
static struct epoll_event event_of(int fd)
{
    return (struct epoll_event) {.events = EPOLLIN, .data.u64 = (uint64_t) fd};
}

/* The pidfd is opened before the byte is looked at: then the byte's holder is the pidfd's. */
static enum found watch_process(struct pn_conn *conn, uint32_t slot, int32_t pid)
{
    struct pn_segment *seg = conn->seg;
    struct pn_watch *w = &conn->watch;
    for (uint32_t k = 0; k < w->n; k++)
        if (w->neighbour[k].pid == pid) {
            w->neighbour[k].keep = true;
            return LIVES; /* or is dead, and waits for its takeover */
        }
    if (w->n == PN_NEIGHBOURS) {
        pn_store_relaxed(&w->complete, 0);
        return LIVES;
    }
    int fd = pn_os_pidfd_open(pid);
    if (fd == -ESRCH)
        return LIES_DEAD;
    int bytes = pn_segment_lock_file(seg, slot);
    if (bytes >= 0 && pn_os_lock_holder(bytes, slot, 1, NULL, NULL) != pid &&
        pn_backend_verdict(seg, slot) == PN_DEAD) {
        if (fd >= 0)
            close(fd);
        return LIES_DEAD;
    }
    struct epoll_event event = event_of(fd);
    if (fd < 0 || epoll_ctl(pn_load_relaxed(&w->epfd), EPOLL_CTL_ADD, fd, &event) != 0) {
        if (fd >= 0)
            close(fd);
        pn_store_relaxed(&w->complete, 0);
        return LIVES;
    }
    w->neighbour[w->n++] =
        (struct pn_neighbour) {.pid = pid, .fd = fd, .id = pn_os_pidfd_id(fd), .keep = true};
    return LIVES;
}

/* Dead, taken over, and could not be reaped: the walk passes over it from then on. */
static bool is_passed(const struct pn_watch *w, uint32_t slot, uint32_t generation)
{
    for (uint32_t i = 0; i < PN_PASSED; i++)
        if (w->passed[i].slot == slot + 1 && w->passed[i].generation == generation)
            return true;
    return false;
}

/* With another generation it is another slot: that one was reaped and claimed again. */
static void pass_over(struct pn_watch *w, uint32_t slot, uint32_t generation)
{
    w->passed[w->npassed % PN_PASSED].slot = slot + 1;
    w->passed[w->npassed % PN_PASSED].generation = generation;
    w->npassed++;
}

static void extend_watch(struct pn_conn *conn)
{
    struct pn_segment *seg = conn->seg;
    struct pn_watch *w = &conn->watch;
    struct span span = {.processes = 0};
    for (uint32_t i = 1; i < seg->max_backends; i++) {
        uint32_t slot = (conn->slot + i) % seg->max_backends;
        struct QueueBackendStatus *backend = &seg->backend[slot];
        if (pn_load_acquire(&backend->state) != PN_SLOT_CLAIMED)
            continue;
        uint32_t generation = pn_load_acquire(&backend->generation);
        int32_t pid = pn_load_relaxed(&backend->pid);
        if (pid <= 0 || pid == pn_my_pid || is_passed(w, slot, generation))
            continue;
        if (watch_process(conn, slot, pid) == LIES_DEAD) {
            if (!take_over(seg, pid)) {
                try_again(w);
                return;
            }
            pass_over(w, slot, generation);
            i--; /* it is free, passed, or another process's by now */
        } else if (pn_slot_watches(backend) && spanned(&span, pid)) {
            return;
        }
    }
}

static void forget_others(struct pn_watch *w)
{
    for (uint32_t k = 0; k < w->n;)
        if (w->neighbour[k].keep || w->neighbour[k].dead) {
            k++;
        } else {
            /* a forked child may have a copy, with which it would stay in the set */
            if (epoll_ctl(pn_load_relaxed(&w->epfd), EPOLL_CTL_DEL, w->neighbour[k].fd, NULL) == 0)
                pn_close_pidfd(w->neighbour[k].fd, w->neighbour[k].id);
            w->neighbour[k] = w->neighbour[--w->n];
        }
}

/* Or the host has opened one of the same process by now, under the same number: that is in no set
 * of ours.  What EPOLL_CTL_MOD stores is what is there. */
static bool was_closed(const struct pn_watch *w, const struct pn_neighbour *neighbour)
{
    struct epoll_event event = event_of(neighbour->fd);
    return !neighbour->dead &&
           (!pn_is_pidfd(neighbour->fd, neighbour->id) ||
            epoll_ctl(pn_load_relaxed(&w->epfd), EPOLL_CTL_MOD, neighbour->fd, &event) != 0);
}

static bool any_was_closed(const struct pn_watch *w)
{
    bool any = false;
    for (uint32_t k = 0; k < w->n; k++)
        any = any || was_closed(w, &w->neighbour[k]);
    return any;
}

static bool consumers_watch(struct pn_conn *conn, int set)
{
    pthread_mutex_lock(&conn->seg->signal_mutex); /* none is freed meanwhile */
    bool found = pn_segment_hooks.consumers_watch(conn, set);
    pthread_mutex_unlock(&conn->seg->signal_mutex);
    return found;
}

/* It has a pidfd of ours, or is in a set that is ours. */
static bool set_is_ours(struct pn_conn *conn)
{
    const struct pn_watch *w = &conn->watch;
    int set = pn_load_relaxed(&w->epfd);
    for (uint32_t k = 0; k < w->n; k++)
        if (!w->neighbour[k].dead && !was_closed(w, &w->neighbour[k]))
            return pn_is_in_set(set, w->neighbour[k].fd, (uint64_t) w->neighbour[k].fd);
    return pn_is_kind(set, PN_KIND_EPOLL) &&
           (pn_latch_watches(&conn->sleep_set, set) ||
            (w->in_epfd && pn_is_in_set(conn->epfd, set, 0)) || consumers_watch(conn, set));
}

/* What has the number of one by now is not in the set, or was put there by us. */
static void forget_closed(struct pn_conn *conn)
{
    struct pn_watch *w = &conn->watch;
    if (!any_was_closed(w))
        return;
    if (!set_is_ours(conn)) {
        pn_fetch_add(&pn_files_lost, 1); /* all may be lost: lost.c has to look first */
        return;
    }
    for (uint32_t k = 0; k < w->n;)
        if (was_closed(w, &w->neighbour[k]))
            w->neighbour[k] = w->neighbour[--w->n];
        else
            k++;
}

static bool to_be_checked(const struct pn_watch *w)
{
    return (uint64_t) pn_now_coarse_ns() >= pn_load_relaxed(&w->check_at);
}

static void look_for_closed(struct pn_watch *w)
{
    if (!to_be_checked(w))
        return;
    pn_store_relaxed(&w->check_at, (uint64_t) (pn_now_coarse_ns() + PN_CHECK_NS));
    if (any_was_closed(w))
        pn_store_seq_cst(&w->stale, 1);
}

/* True: it was the first walk, so processes that came during it have not told us (3). */
static bool walk_once(struct pn_conn *conn)
{
    struct pn_watch *w = &conn->watch;
    uint64_t none = pn_owned(conn->generation, 0);
    bool first = false;
    PN_CRASH("watch:begin");
    pn_exchange(&w->stale, 0);
    pn_store_relaxed(&w->retry_at, 0);
    pn_store_relaxed(&w->seen, pn_load_acquire(&conn->seg->ctl->members));
    reap_dead(conn);
    forget_closed(conn);
    pn_store_relaxed(&w->complete, 1);
    for (uint32_t k = 0; k < w->n; k++)
        w->neighbour[k].keep = false;
    extend_watch(conn);
    if (pn_load_relaxed(&w->retry_at) != 0)
        return false; /* an incomplete walk: keep those that we have */
    w->pause_ns = 0;
    forget_others(w);
    if (listens(conn) && pn_owns_slot(conn)) {
        PN_CRASH("watch:walked");
        first = pn_cas(&conn->me->watches, &none, pn_owned(conn->generation, 1));
    }
    PN_CRASH("watch:armed");
    pn_fence_seq_cst(); /* between `watches` and `members`: pairs with pn_watch_tell() */
    return first && pn_load_acquire(&conn->seg->ctl->members) != pn_load_relaxed(&w->seen);
}

static void walk(struct pn_conn *conn)
{
    while (walk_once(conn))
        ;
}

/* ---- entry points ------------------------------------------------------------------------ */

static bool due(const struct pn_conn *conn)
{
    const struct pn_watch *w = &conn->watch;
    uint64_t retry_at = pn_load_relaxed(&w->retry_at);
    return pn_load_relaxed(&w->stale) != 0 ||
           pn_load_relaxed(&w->seen) != pn_load_acquire(&conn->seg->ctl->members) ||
           (retry_at != 0 && (uint64_t) pn_now_ns() >= retry_at);
}

static bool take_seat(struct pn_segment *seg)
{
    uint32_t taken = pn_load_relaxed(&seg->seats);
    while (taken < PN_SEATS)
        if (pn_cas_weak(&seg->seats, &taken, taken + 1))
            return true;
    return false;
}

/*
 * Does one of those with a seat watch now?  It may have unlistened, or be at work for long; then
 * our slow timer has to stay quick.
 */
static bool others_watch(const struct pn_conn *conn)
{
    struct pn_segment *seg = conn->seg;
    bool found = false;
    pthread_mutex_lock(&seg->signal_mutex);
    for (uint32_t slot = 0; slot < seg->max_backends && !found; slot++) {
        const struct pn_conn *other = seg->own[slot];
        found = other != NULL && other != conn && pn_load_relaxed(&other->watch.epfd) >= 0 &&
                listens(other) &&
                (pn_load_relaxed(&other->has_fd) != 0 ||
                 (pn_load_relaxed(&other->me->pos) & PN_ASLEEP) != 0);
    }
    pthread_mutex_unlock(&seg->signal_mutex);
    return found;
}

int pn_watch_open(struct pn_conn *conn)
{
    if (pn_load_relaxed(&conn->watch.epfd) >= 0)
        return 0;
    if (!take_seat(conn->seg)) {
        pn_store_relaxed(&conn->watch.complete, others_watch(conn));
        return 1;
    }
    int fd = epoll_create1(EPOLL_CLOEXEC), error = errno;
    if (fd < 0)
        pn_fetch_add_relaxed(&conn->seg->seats, (uint32_t) -1);
    pn_store_release(&conn->watch.epfd, fd);
    errno = error;
    return fd < 0 ? -error : 0;
}

/* The set of a connection whose descriptor was made when no seat was free. */
static void join_descriptor(struct pn_conn *conn)
{
    struct epoll_event event = {.events = EPOLLIN};
    if (pn_load_relaxed(&conn->has_fd) != 0 && !conn->watch.in_epfd)
        conn->watch.in_epfd =
            epoll_ctl(conn->epfd, EPOLL_CTL_ADD, pn_load_relaxed(&conn->watch.epfd), &event) == 0;
}

/* Neither it nor the pidfds are closed: their numbers are not ours any more (lost.c). */
static void forget_lost(struct pn_conn *conn)
{
    struct pn_watch *w = &conn->watch;
    if (__builtin_expect(pn_load_acquire(&w->lost) == 0, 1) || pn_exchange(&w->lost, 0) == 0)
        return;
    w->n = 0;
    w->in_epfd = false;
    pn_store_relaxed(&w->complete, 0);
    pn_store_relaxed(&w->retry_at, 0);
    pn_store_seq_cst(&w->stale, 1);
    pn_store_release(&w->epfd, -1);
    pn_fetch_add_relaxed(&conn->seg->seats, (uint32_t) -1);
}

void pn_watch_arm_receiving(struct pn_conn *conn)
{
    forget_lost(conn);
    look_for_closed(&conn->watch);
    if (!listens(conn) || !due(conn) || pn_watch_open(conn) != 0)
        return;
    join_descriptor(conn);
    walk(conn);
}

void pn_watch_arm(struct pn_conn *conn)
{
    if (pn_load_relaxed(&conn->watch.lost) == 0 &&
        (!listens(conn) || (!due(conn) && !to_be_checked(&conn->watch))))
        return;
    pthread_mutex_lock(&conn->recv_mutex);
    pn_watch_arm_receiving(conn);
    pthread_mutex_unlock(&conn->recv_mutex);
}

void pn_watch_look_receiving(struct pn_conn *conn)
{
    struct epoll_event any;
    forget_lost(conn);
    int epfd = pn_load_relaxed(&conn->watch.epfd);
    if (epfd >= 0 && (due(conn) || epoll_wait(epfd, &any, 1, 0) > 0))
        walk(conn);
}

void pn_watch_look(struct pn_conn *conn)
{
    pthread_mutex_lock(&conn->recv_mutex);
    pn_watch_look_receiving(conn);
    pthread_mutex_unlock(&conn->recv_mutex);
}

/*
 * `woken` follows `head` within a commit.  Where it did not from one empty poll() to the next, that
 * commit's process may be dead; while it lives, it holds the lock.
 */
int pn_watch_look_at_commit(struct pn_conn *conn)
{
    struct pn_hold hold;
    struct pn_segment *seg = conn->seg;
    QueuePosition head = pn_load_acquire(&seg->ctl->head);
    QueuePosition before = conn->unannounced;
    if (__builtin_expect(pn_load_relaxed(&seg->ctl->woken) == head, 1))
        return 0;
    conn->unannounced = head;
    if (before != head)
        return 0;
    int rc = pn_lock_try(seg, &hold); /* a dead holder is recovered in here */
    if (rc != 0)
        return rc == -EBUSY ? 0 : rc;
    pn_lock_release(seg);
    return 1;
}

void pn_watch_init(struct pn_conn *conn)
{
    pn_store_relaxed(&conn->watch.epfd, -1);
    pn_store_relaxed(&conn->watch.stale, 1); /* the first sleep walks */
}

void pn_watch_close(struct pn_conn *conn)
{
    struct pn_watch *w = &conn->watch;
    if (conn->pid == pn_my_pid)
        forget_lost(conn);
    for (uint32_t k = 0; k < w->n; k++)
        if (!was_closed(w, &w->neighbour[k]))
            pn_close_pidfd(w->neighbour[k].fd, w->neighbour[k].id);
    w->n = 0;
    int fd = pn_load_relaxed(&w->epfd);
    if (fd < 0)
        return;
    pn_close_if_ours(fd, PN_KIND_EPOLL);
    pn_store_relaxed(&w->epfd, -1);
    if (conn->pid == pn_my_pid)
        pn_fetch_add_relaxed(&conn->seg->seats, (uint32_t) -1);
}
