/*
 * copy.c - reading what may be overwritten at the same time.
 *
 * 1. Where the queue only ever fills up (on_full error or block, no files), a reader's position
 *    pins what it reads, and it reads in place.  With on_full=drop-slowest, or when pages move to
 *    files, the bytes may go while it looks at them.  Then a reader copies first, and parses,
 *    filters and delivers from its own memory, after it has seen that the copy is good:
 *
 *        reader, at p                               notifier (lock held)
 *          m = mem_tail; f = floor   (acquire)        floor or mem_tail = ...   (release)
 *          p < f: Gap; p < m: read the file           tail = ...
 *          copy out of the ring      (relaxed)        --- fence (release) ---
 *          --- fence (acquire) ---                    overwrite the ring
 *          p < floor or p < mem_tail now: void
 *
 *    If the copy holds one byte that was written after the notifier's fence, the loads after the
 *    reader's fence see what was stored before it.  (Validated before the copy, or not at all, it
 *    delivers garbage; a length is believed only once its page is validated.)
 * 2. Which of a segment's readers copy is fixed when it is created: the others have no part in
 *    this, and pay nothing.
 * 3. The bytes of a committed position never change, so a validated copy stays good for ever, also
 *    when its positions have been evicted since.  It is kept between calls of poll().
 * 4. The holder never writes a reader's position.  A reader that stands before `floor` was
 *    evicted: at its next look it gets a Gap from where it stood to there, exactly.
 * 5. mem_tail is loaded before floor: a reader that sees a mem_tail that an eviction has raised
 *    then sees its floor as well, and does not look for a file that never was.
 * 6. What is read from a file is verified by its checksum, and believed as little as the rest.
 *    An impossible entry in a validated copy of the ring poisons the segment; a page of a file that
 *    is damaged or not there costs this listener a Gap.
 */
#define _GNU_SOURCE
#include "queue/copy.h"

#include <errno.h>
#include <stdlib.h>

#include "base/crashpoint.h"
#include "queue/queue.h"
#include "queue/spill.h"

#define PN_COPY_KEEP (64U * 1024) /* more than that is given back when the files are behind us */
enum { VOID_COPY = 2 };           /* the bytes have gone since: look again */

static int make_room_for_copy(struct pn_copy *copy, uint64_t need)
{
    copy->start = copy->end = 0;
    if (need <= copy->cap)
        return 0;
    free(copy->bytes);
    copy->bytes = malloc(need);
    copy->cap = copy->bytes == NULL ? 0 : need;
    return copy->bytes != NULL ? 0 : pn_fail(ENOMEM, "out of memory while reading the queue");
}

void pn_copy_free(struct pn_copy *copy)
{
    free(copy->bytes);
    *copy = (struct pn_copy) {0};
}

/* ---- from the ring ------------------------------------------------------------------------ */

/* A writer may be changing these bytes: copy words, each loaded once.  TSan would report it. */
__attribute__((no_sanitize("thread"))) static void copy_words(void *out, const void *in,
                                                              uint64_t bytes)
{
    uint64_t *to = out;
    const pn_atomic_u64 *from = in;
    for (uint64_t i = 0; i < bytes / sizeof *to; i++) {
        if (i == bytes / sizeof *to / 2)
            PN_CRASH("copy:half");
        to[i] = pn_load_relaxed(&from[i]);
    }
}

static bool still_there(const struct pn_segment *seg, QueuePosition at)
{
    pn_fence_acquire(); /* pairs with the release fences in evict_locked() and pn_spill_locked() */
    return pn_load_relaxed(&seg->ctl->mem_tail) <= at && pn_load_relaxed(&seg->ctl->floor) <= at;
}

static uint32_t first_length(const struct pn_copy *copy)
{
    return ((const AsyncQueueEntry *) (const void *) copy->bytes)->length;
}

static int copy_ring(struct pn_segment *seg, struct pn_copy *copy, QueuePosition at,
                     QueuePosition head)
{
    QueuePosition end = (at | (PN_QUEUE_PAGE - 1)) + 1;
    end = end < head ? end : head;
    int rc = make_room_for_copy(copy, PN_QUEUE_PAGE);
    if (rc != 0)
        return rc;
    copy_words(copy->bytes, pn_ring_at(seg, at), end - at);
    PN_CRASH("copy:ring");
    if (!still_there(seg, at))
        return VOID_COPY;
    uint64_t length = first_length(copy);
    if (length > PN_QUEUE_PAGE && QUEUE_POS_OFFSET(at) == 0 && length % PN_QUEUE_PAGE == 0 &&
        length <= head - at && at % seg->ring_bytes + length <= seg->ring_bytes) {
        rc = make_room_for_copy(copy, length);
        if (rc != 0)
            return rc;
        copy_words(copy->bytes, pn_ring_at(seg, at), length);
        PN_CRASH("copy:ring");
        if (!still_there(seg, at))
            return VOID_COPY;
        end = at + length;
    }
    copy->base = copy->start = at;
    copy->end = end;
    copy->from_file = false;
    return 0;
}

/* ---- from files --------------------------------------------------------------------------- */

/* Does it say that the page is bad, rather than that we could not look? */
static bool is_damage(int rc)
{
    return rc == -EBADMSG || rc == -EBADF || rc == -ENOENT || rc == -EIO;
}

/* The end of the last entry that is whole in the pages up to `end`; `at` when the first is not. */
static QueuePosition whole_entries(const struct pn_copy *copy, QueuePosition at, QueuePosition end)
{
    while (at < end) {
        uint64_t step = PN_QUEUE_PAGE - QUEUE_POS_OFFSET(at);
        if (QUEUE_POS_OFFSET(at) == 0) {
            const AsyncQueueEntry *qe = (const void *) (copy->bytes + (at - copy->base));
            if (qe->length > PN_QUEUE_PAGE)
                step = qe->length;
        }
        if (step > end - at)
            break;
        at += step;
    }
    return at;
}

/* An entry of several pages, perhaps of several files. */
static int read_large(const struct pn_segment *seg, struct pn_copy *copy, QueuePosition at,
                      uint64_t length)
{
    int rc = make_room_for_copy(copy, length);
    for (QueuePosition page = at; rc == 0 && page < at + length;) {
        QueuePosition stop = (page / PN_SPILL_FILE + 1) * PN_SPILL_FILE;
        stop = stop < at + length ? stop : at + length;
        rc = pn_spill_read(seg, page, (uint32_t) ((stop - page) / PN_QUEUE_PAGE),
                           copy->bytes + (page - at));
        page = stop;
    }
    return rc;
}

/* *lost: if it is damaged, the position behind what is. */
static int read_files(struct pn_segment *seg, struct pn_copy *copy, QueuePosition at,
                      QueuePosition mem_tail, QueuePosition *lost)
{
    QueuePosition first = at & ~(QueuePosition) (PN_QUEUE_PAGE - 1);
    QueuePosition end = (at / PN_SPILL_FILE + 1) * PN_SPILL_FILE;
    end = end < mem_tail ? end : mem_tail;
    uint32_t n = (uint32_t) (pn_page_up(end - first) / PN_QUEUE_PAGE);
    *lost = first + PN_QUEUE_PAGE;
    int rc = make_room_for_copy(copy, n * PN_QUEUE_PAGE);
    if (rc != 0)
        return rc;
    rc = pn_spill_read(seg, first, n, copy->bytes);
    if (rc == -EBADMSG && n > 1) { /* perhaps another page than the one that we need now */
        end = first + PN_QUEUE_PAGE;
        rc = pn_spill_read(seg, first, 1, copy->bytes);
    }
    if (rc != 0)
        return rc;
    copy->base = first;
    QueuePosition stop = whole_entries(copy, at, end);
    if (stop == at) { /* which is the start of a page */
        uint64_t length = first_length(copy);
        if (length % PN_QUEUE_PAGE != 0 || length > mem_tail - at || length > seg->ring_bytes)
            return -EBADMSG;
        *lost = stop = at + length;
        rc = read_large(seg, copy, at, length);
    }
    copy->start = at;
    copy->end = rc == 0 ? stop : at;
    copy->from_file = true;
    return rc;
}

static int copy_file(struct pn_segment *seg, struct pn_copy *copy, QueuePosition at,
                     QueuePosition mem_tail, struct pn_copy_gap *gap)
{
    QueuePosition lost;
    uint64_t file = at / PN_SPILL_FILE;
    copy->left_file = copy->left_file || file != copy->file;
    copy->file = file;
    int rc = read_files(seg, copy, at, mem_tail, &lost);
    if (rc == 0 || !is_damage(rc))
        return rc;
    if (pn_load_acquire(&seg->ctl->floor) > at)
        return VOID_COPY; /* evicted, and the file went with it */
    gap->until = pn_spill_boundary(seg, lost, mem_tail);
    gap->reason = PN_GAP_DAMAGED;
    return 1;
}

/* ---- both --------------------------------------------------------------------------------- */

/* The reader has caught up, and needs less memory. */
static void leave_files(struct pn_copy *copy)
{
    copy->left_file = true;
    copy->from_file = false;
    if (copy->cap > PN_COPY_KEEP) {
        free(copy->bytes);
        copy->bytes = NULL;
        copy->cap = 0;
    }
}

/* The caller knows whether its slot is its own, and so whether that is the segment's fault. */
static int impossible(QueuePosition at)
{
    return pn_fail(ERANGE, "no entry can stand at queue position %llu", (unsigned long long) at);
}

/* I19: they were stored after a head that was no less. */
static bool may_be(const struct pn_segment *seg, QueuePosition mem_tail, QueuePosition floor)
{
    QueuePosition head = pn_load_acquire(&seg->ctl->head);
    return mem_tail <= head && floor <= head && mem_tail % 8 == 0 && floor % 8 == 0;
}

int pn_copy_fetch(struct pn_segment *seg, struct pn_copy *copy, QueuePosition at,
                  QueuePosition head, struct pn_copy_gap *gap)
{
    int rc = VOID_COPY;
    if (at >= copy->start && at < copy->end)
        return 0;
    if (at % 8 != 0)
        return impossible(at);
    while (rc == VOID_COPY) {
        QueuePosition mem_tail = pn_load_acquire(&seg->ctl->mem_tail);
        QueuePosition floor = pn_load_acquire(&seg->ctl->floor);
        if (!may_be(seg, mem_tail, floor))
            return impossible(at);
        if (at < floor) {
            *gap = (struct pn_copy_gap) {.until = floor, .reason = PN_GAP_EVICTED};
            return 1;
        }
        if (head - at > (at < mem_tail ? seg->capacity : seg->ring_bytes))
            return impossible(at); /* I1: it would go round and round */
        if (at >= mem_tail && copy->from_file)
            leave_files(copy);
        rc = at < mem_tail ? copy_file(seg, copy, at, mem_tail, gap)
                           : copy_ring(seg, copy, at, head);
    }
    return rc;
}

int pn_copy_entry(struct pn_segment *seg, struct pn_copy *copy, QueuePosition at,
                  const AsyncQueueEntry **qe, struct pn_entry_extent *extent,
                  struct pn_copy_gap *gap)
{
    *qe = (const void *) (copy->bytes + (at - copy->base));
    if (pn_queue_entry_possible(seg, *qe, at, copy->end, extent) &&
        (!copy->from_file || pn_queue_entry_known(seg, *qe)))
        return 0;
    if (!copy->from_file)
        return pn_segment_poison(seg, "no entry can stand at queue position %llu",
                                 (unsigned long long) at);
    QueuePosition page_end = (at | (PN_QUEUE_PAGE - 1)) + 1;
    gap->until = pn_spill_boundary(seg, page_end, pn_load_acquire(&seg->ctl->mem_tail));
    gap->reason = PN_GAP_DAMAGED;
    copy->start = copy->end = 0;
    return 1;
}
