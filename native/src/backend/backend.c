/*
 * backend.c - backend slots: claiming, liveness, reaping of dead processes.
 *
 * 1. A slot belongs to one connection of one process.  That the process is alive is proved by the
 *    kernel: it holds an fcntl lock on byte <slot> and an OFD lock on byte 2^20 + <slot> of a lock
 *    file (rules L1 to L6).  The fcntl lock goes at exit and exec and is not inherited by fork; the
 *    OFD lock tells a process that lost the first one by an open+close of the file anywhere in it
 *    from one that is gone.  A pid, a start time or a heartbeat prove nothing.
 * 2. Claim: locks first, identity next, `state` last.  Release and reap: subscriptions first,
 *    `state` last.  A process killed in between leaves a slot that is free, or claimed by the
 *    dead and so reaped.
 * 3. Reaping is done by a process that needs what the dead hold: a slot (claim), room (queue.c), an
 *    exact answer (statistics), and by recovery.  While topics are closed no slot is freed, since
 *    its consumers would have to be taken out of lists that are being built: a process that needs
 *    one helps to open them.
 * 4. What the consumers of a dead process had in flight goes back in bounded holds, and the slot is
 *    free after the last of them (topic/consumers.c 4): the process that began goes on after its
 *    release (PN_REAP), and until then the slot is that of a dead process as before.
 */
#define _GNU_SOURCE
#include "backend/backend.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "backend/channel.h"
#include "backend/upstream.h"
#include "base/crashpoint.h"
#include "base/os.h"
#include "segment/identity.h"
#include "segment/lock.h"
#include "segment/liveness_files.h"

#define PN_KEEP_ALIVE_NS 50000000LL /* how often a busy sleeper takes its liveness locks again */

void pn_room_wake(struct pn_segment *seg)
{
    pn_fence_seq_cst(); /* pairs with the one in arm_wait() */
    if (pn_load_relaxed(&seg->ctl->room_waiters) != 0) {
        pn_store_relaxed(&seg->ctl->room_waiters, 0);
        pn_fetch_add_relaxed(&seg->ctl->room_seq, 1);
        PN_CRASH("block:woken");
        pn_futex_wake_all(&seg->ctl->room_seq);
    }
}

/* ---- databases --------------------------------------------------------------------------- */

static bool database_in_use(struct pn_segment *seg, uint32_t row)
{
    for (uint32_t i = 0; i < seg->max_backends; i++)
        if (pn_load_relaxed(&seg->backend[i].state) == PN_SLOT_CLAIMED &&
            seg->backend[i].database == row)
            return true;
    return false;
}

/*
 * There are at least as many rows as slots, so one is free or unused; but a database that has
 * counters keeps its row.  UINT32_MAX when there is none.
 */
static uint32_t find_database(struct pn_segment *seg, const char *name, uint32_t len)
{
    uint32_t row = UINT32_MAX;
    for (uint32_t i = 0; i < seg->max_databases; i++) {
        struct pn_database *db = &seg->database[i];
        if (db->dboid == 0)
            row = row == UINT32_MAX ? i : row;
        else if (db->name_len == len && memcmp(db->name, name, len) == 0)
            return i;
    }
    for (uint32_t i = 0; row == UINT32_MAX && i < seg->max_databases; i++)
        if (seg->database[i].kept == 0 && !database_in_use(seg, i))
            row = i;
    if (row == UINT32_MAX)
        return row;
    struct pn_database *db = &seg->database[row];
    db->dboid = 0;
    db->kept = 0;
    memcpy(db->name, name, len);
    db->name[len] = '\0';
    db->name_len = len;
    /* a new number: old entries do not belong to it */
    db->dboid = seg->ctl->last_dboid = seg->ctl->last_dboid % (PN_PATTERN - 1) + 1;
    return row;
}

uint32_t pn_database_of_locked(struct pn_segment *seg, const char *name, uint32_t len)
{
    pn_assert_held(seg);
    uint32_t row = len <= PN_NAME_MAX ? find_database(seg, name, len) : UINT32_MAX;
    return row == UINT32_MAX ? 0 : seg->database[row].dboid;
}

const char *pn_database_name_locked(const struct pn_segment *seg, uint32_t dboid)
{
    pn_assert_held(seg);
    for (uint32_t row = 0; row < seg->max_databases; row++)
        if (seg->database[row].dboid == dboid)
            return seg->database[row].name;
    return "";
}

/* ---- claim and release ------------------------------------------------------------------- */

/* Both locks of a slot; -EAGAIN while a dead owner's memory is still being torn down (L6). */
static int take_locks(struct pn_segment *seg, uint32_t slot)
{
    int fd = pn_segment_make_lock_file(seg, slot);
    if (fd >= 0)
        fd = pn_segment_true_lock_file(seg, slot);
    int rc = fd < 0 ? fd : 0;
    if (fd >= 0) {
        rc = pn_os_lock_take(fd, slot);
        if (rc == 0) {
            rc = pn_os_lock_take_ofd(fd, PN_OFD_BYTE + slot);
            if (rc != 0)
                pn_os_lock_drop(fd, slot);
        }
    }
    if (rc == -PN_EGONE)
        return pn_fail(PN_EGONE, "the liveness lock file of slot %u was removed or replaced", slot);
    return rc == -EACCES ? -EAGAIN : rc;
}

static void drop_locks(struct pn_segment *seg, uint32_t slot)
{
    int fd = pn_load_relaxed(&seg->lock_fd[slot / PN_SLOTS_PER_LOCK_FILE]);
    if (fd >= 0 && pn_is_lock_file(seg, slot / PN_SLOTS_PER_LOCK_FILE, fd)) {
        pn_os_lock_drop_ofd(fd, PN_OFD_BYTE + slot);
        pn_os_lock_drop(fd, slot);
    }
}

static void note_use(struct pn_segment *seg)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    pn_store_relaxed(&seg->ctl->used_ns,
                     (uint64_t) now.tv_sec * 1000000000 + (uint64_t) now.tv_nsec);
}

static int claim_slot(struct pn_conn *conn, uint32_t slot)
{
    struct pn_segment *seg = conn->seg;
    struct QueueBackendStatus *me = &seg->backend[slot];
    int rc = take_locks(seg, slot);
    if (rc != 0)
        return rc;
    PN_CRASH("claim:bytes");
    uint32_t row = find_database(seg, conn->database, (uint32_t) strlen(conn->database));
    if (row == UINT32_MAX) {
        drop_locks(seg, slot);
        return pn_fail(PN_EGENERATIONS,
                       "too many databases with generation counters\n"
                       "All %u rows for databases are taken; a larger max_backends gives more.",
                       seg->max_databases);
    }
    pn_store_release(&me->generation, pn_load_relaxed(&me->generation) + 1);
    /* senders read it last: one that sees the new pid or signo then sees the new generation; pairs
     * with the acquires in try_to_send(), send_deferred() and signal_if_there() */
    pn_fence_release();
    pn_store_relaxed(&me->pid, pn_my_pid);
    me->database = row;
    me->dboid = seg->database[row].dboid;
    pn_store_relaxed(&me->signo, conn->signo);
    me->firstSub = 0;
    me->numSubs = 0;
    me->reserved = 0;
    me->application_name[0] = '\0';
    uint32_t generation = pn_load_relaxed(&me->generation);
    pn_store_relaxed(&me->in_transaction, pn_owned(generation, 0));
    pn_store_relaxed(&me->watches, pn_owned(generation, 0));
    pn_store_relaxed(&me->bridge, 0);
    pn_store_relaxed(&me->want, 0);
    pn_store_relaxed(&me->from, 0);
    pn_store_relaxed(&me->signalled_at, 0);
    pn_store_relaxed(&me->caught_at, 0);
    for (int i = 0; i < NUM_PROCSIGNALS; i++)
        pn_store_relaxed(&me->pss_signalFlags[i], 0);
    pn_fetch_and(&seg->owed[slot / 64], ~(1ULL << (slot % 64)));
    pn_fetch_and(&seg->deferred[slot / 64], ~(1ULL << (slot % 64)));
    pn_store_release(&me->pos, pn_load_relaxed(&seg->ctl->head) | PN_ASLEEP);
    pn_store_release(&me->state, PN_SLOT_CLAIMED);
    PN_CRASH("claim:published");
    conn->me = me;
    conn->slot = slot;
    conn->generation = generation;
    conn->src_pid = conn->pid;
    conn->src_generation = conn->generation;
    conn->dboid = me->dboid;
    seg->ctl->slot_hint = slot + 1;
    note_use(seg);
    pn_watch_lengthened_locked(seg);
    return 0;
}

static int claim_any(struct pn_conn *conn)
{
    struct pn_segment *seg = conn->seg;
    for (uint32_t i = 0; i < seg->max_backends; i++) {
        uint32_t slot = (seg->ctl->slot_hint + i) % seg->max_backends;
        if (pn_load_relaxed(&seg->backend[slot].state) != PN_SLOT_FREE)
            continue;
        int rc = claim_slot(conn, slot);
        if (rc != -EAGAIN)
            return rc;
    }
    return -PN_EBACKENDS;
}

int pn_backend_claim(struct pn_conn *conn)
{
    struct pn_hold hold;
    struct pn_segment *seg = conn->seg;
    int rc = pn_lock_wait(seg, &hold, PN_LOCK_TIMEOUT_NS, seg);
    if (rc != 0)
        return rc;
    rc = claim_any(conn);
    if (rc == -PN_EBACKENDS) {
        pn_lock_release(seg);
        rc = pn_backend_reap_and_lock(seg, &hold);
        if (rc != 0)
            return rc;
        rc = claim_any(conn);
    }
    if (rc == -PN_EBACKENDS)
        pn_fail(PN_EBACKENDS,
                "sorry, too many clients already\n"
                "All %u backend slots of segment \"%s\" are taken. Close some connections, or "
                "create the segment with a larger max_backends.",
                seg->max_backends, seg->name);
    pn_lock_release(seg);
    return rc;
}

static void free_slot_locked(struct pn_segment *seg, uint32_t slot)
{
    pn_assert_held(seg);
    struct QueueBackendStatus *backend = &seg->backend[slot];
    pn_unlisten_all_locked(seg, slot);
    pn_bridge_end_locked(seg, slot);
    seg->ctl->reserved -= backend->reserved;
    backend->reserved = 0;
    pn_store_release(&backend->pos, pn_load_relaxed(&seg->ctl->head) | PN_ASLEEP);
    pn_fetch_and(&seg->owed[slot / 64], ~(1ULL << (slot % 64)));
    pn_store_relaxed(&backend->in_transaction, 0);
    pn_store_relaxed(&backend->watches, 0);
    note_use(seg);
}

bool pn_backend_release_locked(struct pn_conn *conn)
{
    pn_assert_held(conn->seg);
    struct pn_segment *seg = conn->seg;
    if (!pn_segment_hooks.slot_freed(seg, conn->slot))
        return false;
    if (pn_slot_watches(conn->me))
        pn_watch_lengthened_locked(seg);
    free_slot_locked(seg, conn->slot);
    PN_CRASH("release:bits");
    pn_store_release(&conn->me->state, PN_SLOT_FREE);
    PN_CRASH("release:freed");
    drop_locks(seg, conn->slot);
    if (conn->slot < seg->ctl->slot_hint)
        seg->ctl->slot_hint = conn->slot;
    pn_room_wake(seg);
    return true;
}

void pn_backend_abandon(struct pn_conn *conn)
{
    if (pn_load_relaxed(&conn->me->generation) == conn->generation)
        drop_locks(conn->seg, conn->slot);
}

/* ---- liveness ---------------------------------------------------------------------------- */

enum bytes {
    NOT_KNOWN, /* the file is gone, or cannot be had */
    BOTH_FREE,
    HELD,     /* the fcntl lock, by a process that may be of another pid namespace */
    OFD_HELD, /* only the OFD lock: of a process that lost the other one, or of a child of it */
};

static enum bytes ask(struct pn_segment *seg, uint32_t slot, int32_t *holder)
{
    for (int tries = 0; tries < 3; tries++) {
        uint32_t before, after;
        int fd = pn_segment_lock_file(seg, slot);
        if (fd < 0)
            break;
        bool settled = pn_lock_files_settled(seg, &before);
        *holder = pn_os_lock_holder(fd, slot, 1, NULL, NULL);
        if (*holder == pn_load_relaxed(&seg->backend[slot].pid))
            return HELD;
        int32_t ofd = pn_os_lock_holder(fd, PN_OFD_BYTE + slot, 1, NULL, NULL);
        /* the file is looked at after the question: it was closed before, or not at all; or it was,
         * and has been opened again under the same number, which is counted */
        if (!pn_is_lock_file(seg, slot / PN_SLOTS_PER_LOCK_FILE, fd)) {
            pn_segment_true_lock_file(seg, slot); /* perhaps under the same number */
            continue;
        }
        if (!settled || !pn_lock_files_settled(seg, &after) || before != after)
            continue;
        if (*holder == PN_LOCK_FREE && ofd == PN_LOCK_FREE)
            return BOTH_FREE;
        if (*holder > 0 || *holder == PN_LOCK_OFD)
            return HELD;
        return ofd == PN_LOCK_OFD ? OFD_HELD : NOT_KNOWN;
    }
    *holder = PN_LOCK_FREE;
    return NOT_KNOWN;
}

/* A connection that had the slot before its present owner may still be open: it does not count. */
bool pn_backend_is_ours(struct pn_segment *seg, uint32_t slot)
{
    pthread_mutex_lock(&seg->signal_mutex); /* it is not freed meanwhile */
    const struct pn_conn *own = seg->own[slot];
    bool ours = own != NULL && pn_owns_slot(own);
    pthread_mutex_unlock(&seg->signal_mutex);
    return ours;
}

enum pn_verdict pn_backend_verdict(struct pn_segment *seg, uint32_t slot)
{
    int32_t pid = pn_load_relaxed(&seg->backend[slot].pid), holder;
    enum bytes bytes = ask(seg, slot, &holder);
    if (bytes == HELD)
        return holder == pid ? PN_ALIVE : PN_LOST;
    if (bytes == BOTH_FREE)
        return pn_backend_is_ours(seg, slot) ? PN_LOST : PN_DEAD;
    if (!pn_same_pid_namespace(seg))
        return PN_LOST; /* the pid names another process here */
    int pidfd = pn_os_pidfd_open(pid);
    if (pidfd < 0)
        return pidfd == -ESRCH ? PN_DEAD : PN_LOST;
    bool dead = pn_os_pidfd_dead(pidfd);
    close(pidfd);
    return dead ? PN_DEAD : PN_LOST;
}

/* Its pidfd tells the death of a process to those whose walks ended there, but not of a slot. */
static void tell_if_it_lives_locked(struct pn_segment *seg, uint32_t slot)
{
    pn_assert_held(seg);
    struct pn_hold *hold = pn_hold_of(seg);
    int pidfd = pn_os_pidfd_open(pn_load_relaxed(&seg->backend[slot].pid));
    bool lives = pidfd >= 0 ? !pn_os_pidfd_dead(pidfd) : pidfd != -ESRCH;
    if (pidfd >= 0)
        close(pidfd);
    if (!lives)
        return;
    pn_watch_lengthened_locked(seg);
    hold->at_end |= PN_TELL_WATCHERS;
    if (hold->nlengthened < PN_LENGTHENED)
        hold->lengthened[hold->nlengthened++] = slot;
}

bool pn_backend_reap_locked(struct pn_segment *seg, uint32_t slot)
{
    pn_assert_held(seg);
    if (pn_topics_closed(seg))
        return false;
    PN_CRASH("reap:begin");
    if (!pn_segment_hooks.slot_freed(seg, slot)) {
        pn_hold_of(seg)->at_end |= PN_REAP;
        return false;
    }
    if (pn_slot_watches(&seg->backend[slot]))
        tell_if_it_lives_locked(seg, slot);
    free_slot_locked(seg, slot);
    PN_CRASH("reap:bits");
    pn_store_release(&seg->backend[slot].state, PN_SLOT_FREE);
    /* before what the slot pinned is overwritten: pairs with the one in pn_conn_impossible() */
    pn_fence_release();
    PN_CRASH("reap:freed");
    pn_room_wake(seg);
    return true;
}

bool pn_backend_reap_if_dead_locked(struct pn_segment *seg, uint32_t slot)
{
    pn_assert_held(seg);
    return pn_load_relaxed(&seg->backend[slot].state) == PN_SLOT_CLAIMED &&
           pn_backend_verdict(seg, slot) == PN_DEAD && pn_backend_reap_locked(seg, slot);
}

void pn_backend_reap_all_locked(struct pn_segment *seg)
{
    pn_assert_held(seg);
    for (uint32_t slot = 0; slot < seg->max_backends; slot++)
        pn_backend_reap_if_dead_locked(seg, slot);
}

/* A bit for each; NULL: there are none, or no memory for them. */
static uint64_t *find_dead(struct pn_segment *seg)
{
    uint64_t *dead = NULL;
    for (uint32_t slot = 0; slot < seg->max_backends; slot++) {
        if (pn_load_acquire(&seg->backend[slot].state) != PN_SLOT_CLAIMED ||
            pn_backend_verdict(seg, slot) != PN_DEAD)
            continue;
        if (dead == NULL)
            dead = calloc(seg->words, sizeof *dead);
        if (dead == NULL)
            break;
        dead[slot / 64] |= 1ULL << (slot % 64);
    }
    return dead;
}

static void reap_these_locked(struct pn_segment *seg, const uint64_t *dead)
{
    pn_assert_held(seg);
    for (uint32_t word = 0; dead != NULL && word < seg->words; word++)
        for (uint64_t bits = dead[word]; bits != 0; bits &= bits - 1)
            pn_backend_reap_if_dead_locked(seg, word * 64 + (uint32_t) __builtin_ctzll(bits));
}

/* There is more than one hold does: let others in between. */
static bool release_for_rest(struct pn_segment *seg, struct pn_hold *hold)
{
    if ((hold->at_end & PN_REAP) == 0)
        return false;
    hold->at_end &= ~(uint32_t) PN_REAP; /* here */
    pn_lock_release(seg);
    PN_CRASH("topic:reap-between");
    pn_lock_stand_back(0);
    return true;
}

int pn_backend_reap_and_lock(struct pn_segment *seg, struct pn_hold *hold)
{
    uint64_t *dead = find_dead(seg);
    int rc;
    do {
        rc = dead != NULL ? pn_lock_topics_wait(seg, hold, PN_LOCK_TIMEOUT_NS, seg)
                          : pn_lock_wait(seg, hold, PN_LOCK_TIMEOUT_NS, seg);
        if (rc == 0)
            reap_these_locked(seg, dead);
    } while (rc == 0 && release_for_rest(seg, hold));
    free(dead);
    return rc;
}

void pn_backend_reap_rest(struct pn_segment *seg)
{
    struct pn_hold hold;
    bool never_wait = pn_never_wait;
    int rc;
    PN_CRASH("topic:reap-rest");
    pn_never_wait = false; /* others may only come by, and do nothing of it */
    while ((rc = pn_backend_reap_and_lock(seg, &hold)) == -EINTR)
        ; /* a handler may run later */
    pn_never_wait = never_wait;
    if (rc == 0)
        pn_lock_release(seg);
}

int pn_backend_keep_alive(struct pn_conn *conn)
{
    int rc = pn_conn_check_slot(conn);
    if (rc != 0)
        return rc;
    int fd = pn_segment_true_lock_file(conn->seg, conn->slot);
    rc = fd < 0 ? fd : pn_os_lock_take(fd, conn->slot);
    if (rc == 0) /* lost only with the descriptor; another one of ours may have kept it */
        pn_os_lock_take_ofd(fd, PN_OFD_BYTE + conn->slot);
    return rc == 0 ? 0
                   : pn_fail(-rc, "could not keep the liveness lock of backend %u: %s", conn->slot,
                             rc == -PN_EGONE ? "its file was removed" : strerror(-rc));
}

/* Without them we are merely not signalled, and the slow timer is near. */
int pn_backend_keep_alive_asleep(struct pn_conn *conn, int64_t now)
{
    if (now < (int64_t) pn_load_relaxed(&conn->next_keep_ns))
        return 0;
    pn_store_relaxed(&conn->next_keep_ns, (uint64_t) (now + PN_KEEP_ALIVE_NS));
    return pn_backend_keep_alive(conn);
}
