/*
 * turn.h - a thread that has waited for the writer lock for long gets it next.
 *
 * 1. The mutex is free as soon as it is released, and a thread that wants it again at once has it
 *    before one that was woken is on its processor.  To the others 1,000 holds of 0.1 ms in a row
 *    would be one of 100 ms.
 * 2. So a thread that has waited for PN_TURN_NS stores a number that it chose (struct pn_turn_word,
 *    beside the mutex).  A thread that then finds the mutex free releases it, and stands back until
 *    the number has changed.
 * 3. It does so for PN_TURN_NS at most, and then clears the number: the thread whose turn it is is
 *    dead, is stopped, or has no processor.  So a kill at any instruction of a turn costs the
 *    others that time, once.
 * 4. A thread that slept for the mutex stands back for no other: it has waited itself, and the
 *    kernel's list of sleepers is in order.  So turns need no queue: there is one at a time, and
 *    a waiter that finds another's asks again later, and less and less often; one whose turn was
 *    taken away, since it had no processor, asks again at once.
 * 5. A turn costs throughput: the lock is free until a thread has woken up.  Holds that are short
 *    keep no waiter for PN_TURN_NS unless there are more threads than processors, and then all wait
 *    for long.  So between two turns there is as much time as well.
 */
#ifndef PN_TURN_H
#define PN_TURN_H

#include "segment/layout.h"

#define PN_TURN_NS 1000000LL

extern int64_t pn_turn_ns; /* PN_TURN_NS; tests make it longer */

/* Of one wait for the lock, on the waiter's stack. */
struct pn_turn {
    struct pn_turn_word *word;
    uint32_t number; /* 0: it is not this thread's turn, as far as it knows */
    int64_t pause_ns, ask_at;
};

static inline struct pn_turn pn_turn_later(struct pn_turn_word *word, int64_t now)
{
    return (struct pn_turn) {.word = word, .pause_ns = pn_turn_ns, .ask_at = now + pn_turn_ns};
}

/* `ask_at` has come: be the next one, if no other thread is.  Sets the next `ask_at`. */
void pn_turn_ask(struct pn_turn *turn, int64_t now);

/* The thread has the lock, or waits no more. */
void pn_turn_end(struct pn_turn *turn);

/* The number of the thread whose turn it is; 0: none. */
static inline uint32_t pn_turn_of(const struct pn_turn_word *word)
{
    return pn_load_relaxed(&word->number);
}

/* Without the lock: until the turn of thread `number` is over. */
void pn_turn_stand_back(struct pn_turn_word *word, uint32_t number);

#endif
