/*
 * spill.c - pages that the ring has no room for.
 *
 * 1. The queue is [tail, head); the ring holds [mem_tail, head) of it and files the rest, up to
 *    max_queue_pages together.  Positions do not change when a page moves: page p stands in file
 *    p / 32 as its page p % 32, in the directory that the segment's creator named (page_file.h).
 * 2. A notifier that needs room in the ring moves the oldest pages to a file itself, under the
 *    lock, a file's worth at a time:
 *
 *        notifier (lock held)                      reader, at p
 *          end_file = number + 1                     m = mem_tail           (acquire)
 *          write pages and checksums                 p < m: read the file
 *          mem_tail = end           (release)        else copy from the ring
 *          --- fence (release) ---                   --- fence (acquire) ---
 *          overwrite the ring                        p < mem_tail now: the copy is void
 *
 *    (Stored before the pages are written, mem_tail sends readers to a file that is not there;
 *    stored after the ring is overwritten, it lets them take the new bytes for the old ones.)
 * 3. mem_tail is always the start of an entry: one that is larger than a page stands whole in
 *    files or whole in the ring.  Only whole pages below head are moved, and head stays where it
 *    is; so what is committed next has the ring but for one page.
 * 4. Files that may exist have the numbers [first_file, end_file).  end_file is stored before a
 *    file is made and first_file after one was removed, so a SIGKILL in between leaves a file that
 *    a later scan will remove, or a number without a file, which is the same.
 * 5. Files below the tail are removed when the tail was moved; all of them, when nothing is left in
 *    files.  A reader that has left a file sees to that (receive.c).  No slot pins what is below
 *    the tail, so only an evicted reader misses them, and it looks at `floor` again (copy.c).
 *    The thread that moved the tail removes them after it has released the lock, since each takes
 *    some 30 us:
 *
 *        thread (lock held)                    the same, without the lock
 *          tail = least                          unlink file first_file, first_file + 1 ...
 *          remove the file of the tail itself,   first_file = max(first_file, number + 1)
 *            if nothing is left in files           after each
 *
 *    However late one of these is, it removes no file that was made since: positions only grow, so
 *    a page below the tail is never written again, and neither is a file that ends below it.  Only
 *    the file in which the tail stands can be made once more, so that one is removed under the
 *    lock, where it would be made.  Two threads that remove the same do no harm.  A SIGKILL before
 *    the last leaves first_file where it was, for the next move of the tail; the end of the
 *    killed backend is one (queue.h).
 * 6. A disk that is full is an error of the commit that needed room, before its commit point:
 *    nothing has moved.  A reservation includes its room in the ring (I12), so a prepared commit
 *    never writes a file.
 * 7. A file that cannot be read back, or holds what cannot be, is one listener's loss and not the
 *    segment's end: it gets a Gap to the next position where an entry is known to begin.
 */
#define _GNU_SOURCE
#include "queue/spill.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "base/crashpoint.h"
#include "base/err.h"
#include "queue/queue.h"
#include "segment/lock.h"

_Static_assert(PN_FILE_PAGE_SIZE == PN_QUEUE_PAGE, "a page of the ring is one of a file");

/* Of a page: does an entry begin with its first byte?  0 is what a page that is not there has. */
enum { TAG_ENTRY = 1, TAG_INSIDE = 2 };

enum {
    PN_SPILL_REMOVE = 1024, /* files that are removed after one hold of the lock, at the most */
    PN_SPILL_LAST = 16      /* and in one hold: there is one, but after a failure or a death */
};

static int directory_of(const struct pn_segment *seg, struct pn_data_dir *dir)
{
    return pn_data_dir_init(dir, seg->data_dir, seg->uid, seg->name, seg->instance, 'q');
}

/* ---- writing ------------------------------------------------------------------------------ */

/*
 * How far to move: whole entries from mem_tail on, up to the end of its file or, if the last of
 * them is larger than a page, of that one.  *end is mem_tail itself when head is in the way.
 */
static int end_of_move(struct pn_segment *seg, QueuePosition mem_tail, QueuePosition *end)
{
    QueuePosition head = pn_load_relaxed(&seg->ctl->head), at = mem_tail;
    QueuePosition stop = (mem_tail / PN_SPILL_FILE + 1) * PN_SPILL_FILE;
    while (at < stop && at < head) {
        QueuePosition next = pn_queue_next_page(seg, at, head);
        if (next == 0)
            return -PN_ECORRUPT;
        if (next > head || QUEUE_POS_OFFSET(next) != 0)
            break;
        at = next;
    }
    *end = at;
    return 0;
}

/*
 * Pages [from, to), which are of one file.  *large: how many bytes of an entry that began on an
 * earlier page are still to come; what comes before `begin` is not ours to look at.
 */
static int write_pages(const struct pn_segment *seg, const struct pn_data_dir *dir,
                       QueuePosition begin, QueuePosition from, QueuePosition to, uint64_t *large)
{
    const void *pages[PN_FILE_PAGES];
    uint32_t tags[PN_FILE_PAGES], n = 0;
    for (QueuePosition at = from; at < to; at += PN_QUEUE_PAGE, n++) {
        const AsyncQueueEntry *qe = (const void *) pn_ring_at(seg, at);
        pages[n] = qe;
        tags[n] = *large == 0 && at >= begin ? TAG_ENTRY : TAG_INSIDE;
        if (tags[n] == TAG_ENTRY && qe->length > PN_QUEUE_PAGE)
            *large = qe->length;
        *large -= *large < PN_QUEUE_PAGE ? *large : PN_QUEUE_PAGE;
    }
    uint32_t first = (uint32_t) (from % PN_SPILL_FILE / PN_QUEUE_PAGE);
    return pn_pages_write(dir, from / PN_SPILL_FILE, first, pages, tags, n);
}

static int move_locked(struct pn_segment *seg, const struct pn_data_dir *dir, QueuePosition begin,
                       QueuePosition end)
{
    pn_assert_held(seg);
    struct AsyncQueueControl *ctl = seg->ctl;
    QueuePosition from = begin & ~(QueuePosition) (PN_QUEUE_PAGE - 1);
    uint64_t first = from / PN_SPILL_FILE, large = 0;
    if (pn_load_relaxed(&ctl->first_file) >= ctl->end_file) {
        ctl->end_file = first;
        pn_store_relaxed(&ctl->first_file, first); /* and no thread raises it beyond the tail's */
    }
    while (from < end) {
        QueuePosition stop = (from / PN_SPILL_FILE + 1) * PN_SPILL_FILE;
        stop = stop < end ? stop : end;
        if (ctl->end_file <= from / PN_SPILL_FILE)
            ctl->end_file = from / PN_SPILL_FILE + 1;
        PN_CRASH("spill:file");
        int rc = write_pages(seg, dir, begin, from, stop, &large);
        if (rc != 0)
            return rc;
        PN_CRASH("spill:written");
        from = stop;
    }
    pn_invariant(seg, "I19", end >= begin && end <= pn_load_relaxed(&ctl->head));
    pn_store_release(&ctl->mem_tail, end); /* pairs with the acquire in pn_copy_fetch() */
    PN_CRASH("spill:mem-tail");
    pn_store_relaxed(&ctl->locked.spilled_pages,
                     pn_load_relaxed(&ctl->locked.spilled_pages) +
                         (end - begin + PN_QUEUE_PAGE - 1) / PN_QUEUE_PAGE);
    return 0;
}

int pn_spill_locked(struct pn_segment *seg, QueuePosition end)
{
    pn_assert_held(seg);
    struct pn_data_dir dir;
    int rc = directory_of(seg, &dir);
    while (rc == 0) {
        QueuePosition begin = pn_load_relaxed(&seg->ctl->mem_tail);
        if (end <= begin + seg->ring_bytes)
            break;
        QueuePosition to;
        rc = end_of_move(seg, begin, &to);
        if (rc == 0)
            rc = to == begin ? -EAGAIN : move_locked(seg, &dir, begin, to);
    }
    pn_fence_release(); /* before the ring is overwritten: pairs with still_there() */
    return rc;
}

/* ---- removing ----------------------------------------------------------------------------- */

/* Files that end below the tail: no other will have their numbers. */
static uint64_t end_of_old(const struct pn_segment *seg)
{
    uint64_t end = pn_load_relaxed(&seg->ctl->tail) / PN_SPILL_FILE;
    return end < seg->ctl->end_file ? end : seg->ctl->end_file;
}

/* From the last one on, so that those before it are still known by their numbers. */
static void remove_last_locked(struct pn_segment *seg, uint64_t first)
{
    pn_assert_held(seg);
    struct AsyncQueueControl *ctl = seg->ctl;
    struct pn_data_dir dir;
    if (first >= ctl->end_file || directory_of(seg, &dir) != 0)
        return; /* the directory is away; so are the files, or they are removed when it is back */
    for (int i = 0; i < PN_SPILL_LAST && first < ctl->end_file; i++) {
        if (pn_data_dir_remove(&dir, ctl->end_file - 1) != 0)
            return;
        PN_CRASH("spill:removed-last");
        ctl->end_file--;
    }
}

void pn_spill_retire_locked(struct pn_segment *seg)
{
    pn_assert_held(seg);
    const struct AsyncQueueControl *ctl = seg->ctl;
    uint64_t end = end_of_old(seg), first = pn_load_relaxed(&ctl->first_file);
    if (pn_load_relaxed(&ctl->tail) >= pn_load_relaxed(&ctl->mem_tail))
        remove_last_locked(seg, end > first ? end : first);
    if (first >= end)
        return;
    struct pn_hold *hold = pn_hold_of(seg);
    hold->files_end = end;
    hold->at_end |= PN_REMOVE_FILES;
}

static void raise_to(pn_atomic_u64 *word, uint64_t value)
{
    uint64_t old = pn_load_relaxed(word);
    while (old < value && !pn_cas_u64(word, &old, value))
        ;
}

void pn_spill_remove(struct pn_segment *seg, uint64_t end)
{
    pn_atomic_u64 *first = &seg->ctl->first_file;
    struct pn_data_dir dir;
    char sentence[512]; /* of what the call has to say, which does not fail by a file that stays */
    snprintf(sentence, sizeof sentence, "%s", pn_error_message());
    PN_CRASH("spill:released");
    int rc = directory_of(seg, &dir);
    for (int i = 0; rc == 0 && i < PN_SPILL_REMOVE; i++) {
        uint64_t number = pn_load_relaxed(first); /* others may have removed some, too */
        if (number >= end)
            break;
        pn_invariant(seg, "I14", (number + 1) * PN_SPILL_FILE <= pn_load_relaxed(&seg->ctl->tail));
        rc = pn_data_dir_remove(&dir, number);
        PN_CRASH("spill:removed");
        if (rc == 0)
            raise_to(first, number + 1);
    }
    if (rc != 0)
        pn_fail(0, "%s", sentence);
}

void pn_spill_remove_all(struct pn_segment *seg)
{
    struct pn_data_dir dir;
    if (seg->spills && directory_of(seg, &dir) == 0)
        pn_data_dir_remove_own(&dir); /* by their names: numbers in the segment may be anything */
}

/* ---- reading ------------------------------------------------------------------------------ */

int pn_spill_read(const struct pn_segment *seg, QueuePosition page, uint32_t n, void *out)
{
    struct pn_data_dir dir;
    int rc = directory_of(seg, &dir);
    dir.read_only = true;
    return rc != 0 ? rc
                   : pn_pages_read(&dir, page / PN_SPILL_FILE,
                                   (uint32_t) (page % PN_SPILL_FILE / PN_QUEUE_PAGE), n, out);
}

QueuePosition pn_spill_boundary(const struct pn_segment *seg, QueuePosition pos,
                                QueuePosition mem_tail)
{
    struct pn_data_dir dir;
    pos = pn_page_up(pos);
    if (pos < mem_tail && mem_tail - pos > seg->capacity)
        return mem_tail; /* I1: files below that are away, or mem_tail was overwritten */
    if (directory_of(seg, &dir) != 0)
        return mem_tail;
    dir.read_only = true;
    while (pos < mem_tail) {
        uint64_t number = pos / PN_SPILL_FILE;
        int page = pn_pages_find(&dir, number, (uint32_t) (pos % PN_SPILL_FILE / PN_QUEUE_PAGE),
                                 TAG_ENTRY);
        pos = number * PN_SPILL_FILE + (page < 0 ? PN_FILE_PAGES : (uint64_t) page) * PN_QUEUE_PAGE;
        if (page >= 0 && page < (int) PN_FILE_PAGES)
            break;
    }
    return pos < mem_tail ? pos : mem_tail;
}
