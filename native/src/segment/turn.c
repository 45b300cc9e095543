/* turn.c - asking for a turn, and standing back for one: see turn.h. */
#include "segment/turn.h"

#include <stdbool.h>

#include "base/crashpoint.h"
#include "base/os.h"

int64_t pn_turn_ns = PN_TURN_NS;

enum { ASK_LATER = 8 }; /* times as long each time */

/* Numbers of two threads may be the same: then a turn ends early, or a little late. */
static uint32_t choose_number(const struct pn_turn *turn, int64_t now)
{
    return ((uint32_t) pn_my_pid << 8 ^ (uint32_t) ((uintptr_t) turn >> 4) ^ (uint32_t) now) | 1;
}

static uint32_t in_us(int64_t ns)
{
    return (uint32_t) (ns / 1000);
}

static void clear(struct pn_turn_word *word, uint32_t number)
{
    if (!pn_cas(&word->number, &number, 0)) /* another has: this thread did not come in time */
        return;
    pn_store_relaxed(&word->over_at, in_us(pn_now_ns()));
    pn_futex_wake_all(&word->number);
}

static bool may_be_asked_for(const struct pn_turn_word *word, int64_t now)
{
    return in_us(now) - pn_load_relaxed(&word->over_at) >= in_us(pn_turn_ns);
}

void pn_turn_ask(struct pn_turn *turn, int64_t now)
{
    uint32_t none = 0, number = choose_number(turn, now);
    if (turn->number != 0 && pn_turn_of(turn->word) != turn->number) { /* taken away */
        turn->number = 0;
        turn->pause_ns = pn_turn_ns / ASK_LATER;
    }
    if (turn->number == 0 && may_be_asked_for(turn->word, now) &&
        pn_cas(&turn->word->number, &none, number)) {
        turn->number = number;
        PN_CRASH("turn:asked");
    }
    turn->pause_ns = turn->number != 0 ? 2 * pn_turn_ns : turn->pause_ns * ASK_LATER;
    turn->ask_at = now + turn->pause_ns;
}

void pn_turn_end(struct pn_turn *turn)
{
    if (turn->number == 0)
        return;
    PN_CRASH("turn:has-come");
    clear(turn->word, turn->number);
    turn->number = 0;
}

void pn_turn_stand_back(struct pn_turn_word *word, uint32_t number)
{
    const int64_t until = pn_now_ns() + pn_turn_ns;
    int64_t left = pn_turn_ns;
    while (left > 0 && pn_turn_of(word) == number) {
        (void) pn_futex_wait(&word->number, number, left); /* signals end it early */
        left = until - pn_now_ns();
    }
    clear(word, number);
}
