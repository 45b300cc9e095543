/*
 * crash_fates.h - what became of each message of a victim, in memory that outlives SIGKILL.  Before
 * it is included MESSAGES and LENGTH are defined: how many, and the bytes of a body, which begins
 * with the message's number.
 */
#ifndef PN_TESTS_CRASH_FATES_H
#define PN_TESTS_CRASH_FATES_H

#include "crash_three_ways.h"

enum { UNTOLD, TELLING, TOLD, FINISHING, FINISHED };

static _Atomic(unsigned char) *fate; /* of each message, in the channel that is read */

static inline void make_fates(void)
{
    fate = mmap(NULL, MESSAGES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(fate != MAP_FAILED);
}

static inline void forget_fates(void)
{
    for (int i = 0; i < MESSAGES; i++)
        atomic_store(&fate[i], UNTOLD);
}

static inline int number_of(const pn_message_out *m)
{
    char text[5] = {0};
    CHECK_EQ(m->body_len, LENGTH);
    memcpy(text, m->body, 4);
    int i = atoi(text);
    CHECK(i >= 0 && i < MESSAGES);
    return i;
}

static inline bool finish_one(pn_conn *conn, pn_consumer *consumer, int64_t timeout)
{
    pn_message_out m;
    int rc = pn_consumer_get(consumer, timeout, &m);
    CHECK(rc >= 0 || rc == -EINTR);
    if (rc != 1)
        return false;
    int i = number_of(&m);
    atomic_store(&fate[i], FINISHING);
    FINISH(conn, &m);
    atomic_store(&fate[i], FINISHED);
    return true;
}

#endif
