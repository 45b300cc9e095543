/*
 * soak_journal.h - what a process of the soak test writes down; tests/soak/journal.py reads it.
 *
 * A file for each connection, of records of 32 bytes, written with write(2): what was written is
 * there after a SIGKILL, and a record is never half there (pages are a multiple of it).  Before a
 * commit its intent is written, one record for the commit and one for each of its parts, and its
 * outcome afterwards.  An intent without an outcome may have happened or not, but as a whole.
 */
#ifndef PN_TESTS_SOAK_JOURNAL_H
#define PN_TESTS_SOAK_JOURNAL_H

#include <stdint.h>

enum journal_kind {
    JOURNAL_INTENT = 'B',   /* txn, count: how many parts follow; time: before the call */
    JOURNAL_EVENT = 'E',    /* channel, index: a notification */
    JOURNAL_LISTEN = 'L',   /* channel */
    JOURNAL_UNLISTEN = 'U', /* channel */
    JOURNAL_UNLISTEN_ALL = 'A',
    JOURNAL_BUMP = 'G',      /* index: whose counter, count: how often */
    JOURNAL_COMMITTED = 'C', /* time: after the call */
    JOURNAL_FAILED = 'F',    /* seq: the error; nothing has happened */
    JOURNAL_RECEIVED = 'R',  /* connection, txn, index: the sender's; seq, time: sent_ns */
    JOURNAL_DRAINED = 'D',   /* everything is received that was committed before `time` */
    JOURNAL_GAP = 'Y',       /* seq: the bytes missed */
    JOURNAL_CLOSED = 'Q',
    JOURNAL_ENDED = 'Z', /* the supervisor's last message has been received */
    JOURNAL_ERROR = 'X', /* seq: an error that must not be */
};

/* flag of JOURNAL_RECEIVED */
enum journal_flaw { FLAW_CONTENT = 1, FLAW_CHANNEL = 2, FLAW_COUNTER = 4 };

struct journal_record {
    uint8_t kind, flag;
    uint16_t channel;
    uint32_t connection, txn;
    uint16_t index, count;
    uint64_t seq;
    int64_t time; /* CLOCK_MONOTONIC */
};
_Static_assert(sizeof(struct journal_record) == 32, "a page holds a whole number of them");

/* Channels: "c0" to "c7" are for all, "end" is the supervisor's, "me.<number>" one's own. */
enum { SHARED_CHANNELS = 8, CHANNEL_END = 100, CHANNEL_OWN = 200 };

/* The front of each payload; the rest follows from `sum`. */
struct soak_payload {
    uint32_t connection, txn;
    uint16_t index, channel;
    uint32_t length;  /* of the whole payload */
    uint64_t counter; /* what the sender's counter is at least when this is read */
    uint32_t owner;   /* the number of that counter */
    uint32_t sum;     /* of the above */
};
_Static_assert(sizeof(struct soak_payload) == 32, "no padding");

#endif
