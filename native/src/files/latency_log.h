/*
 * latency_log.h -- the latency log: what was sent, received and woken, by which backend, and when.
 *
 * One log per connection; a log is a sequence of files ("segments"), each of a 4096-byte header
 * and 64-byte records, mapped MAP_SHARED, so that what was appended survives kill -9. A reader
 * trusts as many records of a file as `state` counts, each record's own CRC, and nothing else.
 *
 * All of a header is under a CRC, so that no flipped bit passes a listener's loss off as the
 * engine's. What changes while the log is written are words of 64 bits, each with its own in its
 * high half, and anchors: one store replaces a word, and its CRC with it.
 *
 *   <host>.<boot8>.<pid>.<starttime>.<segno>.pynlog      segno is unique within the process
 *
 * The caller serialises calls on one log; different logs may be used by different threads.
 * Appending never waits for a process, never fails the caller and leaves errno alone: a record for
 * which there is no room is counted in `dropped`, which every later header repeats.
 *
 * After fork() the child must not append to an inherited log: it calls pn_latlog_abandon() and
 * opens one of its own.
 *
 * What the fields mean, by kind (a field not named is 0):
 *
 *   SEND      ts commit time; commit_seq, chan_seq, channel; bytes of payload; peer own backend id;
 *             aux low: CRC32C of channel bytes followed by payload bytes
 *   RECV      ts hand-over; ref_ts the sender's commit time; commit_seq, chan_seq, channel; bytes;
 *             peer the sender's backend id; lag; wake; batch; aux low as in SEND
 *   SIGNAL    one per commit: commit_seq; aux low: signals sent
 *   WAKE      ts when the sleep ended, before it looked; flags bit 0: something was found;
 *             batch: messages drained; wake.  Of a consumer of a topic: channel "topic:channel",
 *             and none of a timer that found nothing
 *   LISTEN    channel; chan_seq: the first it is owed; commit_seq
 *   UNLISTEN  channel; chan_seq: the channel's next at that commit; lag: messages left unread
 *   DROP      where a listener is handed a Gap: bytes missed (saturated); no channel
 *   PUBLISH   a message of a topic: channel the topic; commit_seq the message's id; bytes
 *   DELIVER   ts hand-over; ref_ts when it was published; commit_seq, bytes; attempts, this one
 *             included; wake, of the first that a look found; channel "topic:channel" (no name of
 *             either has a colon)
 *   FIN REQ TIMEOUT   what became of it, the same fields; TIMEOUT is written by the process that
 *                     found it
 *   CHANDEF   ceil(length / 32) consecutive records: bytes 0 to 31 hold a piece of the channel's
 *             name; channel: the id it defines; bytes: length of the name; peer: database;
 *             lag: how many records; batch: which of them; aux low: CRC32C of the name
 */
#ifndef PN_LATLOG_H
#define PN_LATLOG_H

#include <stddef.h>
#include <stdint.h>

#include "base/atomic.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "pynlog v2 is little-endian and is written as it lies in memory"
#endif

#define PN_LATLOG_MAGIC      "PYNLOG\0\2"
#define PN_LATLOG_MAGIC_1    "PYNLOG\0\1" /* which is recycled, too; nothing else reads it here */
#define PN_LATLOG_ENDIAN     0x01020304u
#define PN_LATLOG_HEADER     4096u
#define PN_LATLOG_RECORD     64u
#define PN_LATLOG_ANCHORS    16u
#define PN_LATLOG_NAME_PIECE 32u
#define PN_LATLOG_NAME_MAX   4096u

#define PN_LATLOG_REVISION 3u

/* `state`: how many records there are, and, from bit 30 on, how the file ended: not at all, the log
 * was closed, or it goes on in another file. */
#define PN_LATLOG_COUNT   0x3fffffffu
#define PN_LATLOG_CLOSED  0x40000000u
#define PN_LATLOG_ROTATED 0x80000000u

/* The CRC of an anchor that is being written.  A process that dies then leaves it behind. */
#define PN_LATLOG_WRITING 0x77726974u

#define PN_LATLOG_SEGMENT_MIN   ((uint64_t) 256 << 10)
#define PN_LATLOG_SEGMENT_MAX   ((uint64_t) 64 << 20)
#define PN_LATLOG_LIMIT_DEFAULT ((uint64_t) 4 << 30)

#define PN_LATREC_USEFUL     1u /* flags of a WAKE */
#define PN_LATREC_UNNUMBERED 2u /* of SEND and RECV: heard by a pattern, chan_seq says nothing */

enum pn_latkind {
    PN_LAT_SEND = 1,
    PN_LAT_RECV = 2,
    PN_LAT_FIN = 3,
    PN_LAT_REQ = 4,
    PN_LAT_TIMEOUT = 5,
    PN_LAT_SIGNAL = 6,
    PN_LAT_WAKE = 7,
    PN_LAT_LISTEN = 8,
    PN_LAT_UNLISTEN = 9,
    PN_LAT_DROP = 10,
    PN_LAT_CHANDEF = 11,
    PN_LAT_PUBLISH = 12,
    PN_LAT_DELIVER = 13
};

/* What ended the sleep before a RECV, WAKE or DELIVER. */
enum pn_latwake {
    PN_LATWAKE_NONE = 0,     /* did not sleep */
    PN_LATWAKE_SIGNAL = 1,   /* a notifier's signal */
    PN_LATWAKE_FD = 2,       /* the caller's own event loop, through fileno() */
    PN_LATWAKE_TIMER = 3,    /* the slow timer, or the caller's time-out */
    PN_LATWAKE_NEIGHBOUR = 4 /* the death of the process it watches */
};

struct pn_latrec {
    uint64_t ts, ref_ts, commit_seq, chan_seq; /* ns CLOCK_MONOTONIC; 0 = unknown */
    uint32_t channel, bytes, peer, lag;        /* channel: of pn_latlog_number(), 0 = none */
    uint8_t kind, wake, attempts, flags;
    uint32_t batch;
    uint64_t aux; /* high half: CRC32C of the 60 bytes before it */
};

/* Three clocks read together; crc covers all that is before it.  All 0: not used yet. */
struct pn_latlog_anchor {
    uint64_t tsc, monotonic_ns, realtime_ns;
    uint32_t number;
    pn_atomic_u32 crc; /* or PN_LATLOG_WRITING */
};

/* W: the writing connection only. R: any process. */
struct pn_latlog_header {
    char magic[8];
    uint32_t endian, header_len, record_len;
    uint32_t schema_id; /* CRC32C of `schema`, to its end */
    uint32_t schema_off, schema_len;
    uint64_t log_id;    /* random; the same in all files of one log */
    uint64_t capacity;  /* records */
    uint64_t starttime; /* of the process, in clock ticks since boot */
    int32_t pid, backend_id;
    uint32_t segno, part; /* part: 0, 1, 2 ... within the log */
    char host[64], boot_id[40], machine_id[40];
    char segment[160]; /* the engine's name, as given to pn_latlog_open */
    uint32_t revision; /* PN_LATLOG_REVISION; below 2: no lock says that the file is written */
    uint32_t reserved_word;
    uint64_t time_namespace; /* inode; 0: the kernel has none */
    uint8_t reserved[116];
    uint32_t header_crc; /* CRC32C of all bytes before it */
    struct pn_latlog_anchor anchors[PN_LATLOG_ANCHORS];
    /* In the low half a number, in the high one the CRC32C of these four bytes, which continues
     * header_crc, of `dropped` ~header_crc: a word of another file, or place, does not match. */
    pn_atomic_u64 state;   /* PN_LATLOG_COUNT; release store after the record's bytes */
    pn_atomic_u64 dropped; /* of this log since it was opened; UINT32_MAX: that, or more */
    uint8_t zeros[112];    /* the line of `state` is written at every record: keep it alone */
    char schema[2944];
};

_Static_assert(sizeof(struct pn_latrec) == PN_LATLOG_RECORD, "record");
_Static_assert(sizeof(struct pn_latlog_header) == PN_LATLOG_HEADER, "header");
_Static_assert(offsetof(struct pn_latlog_header, header_crc) == 508, "header crc");
_Static_assert(offsetof(struct pn_latlog_header, revision) == 376, "revision");
_Static_assert(offsetof(struct pn_latlog_header, state) == 1024, "state");
_Static_assert(offsetof(struct pn_latlog_header, dropped) == 1032, "dropped");
_Static_assert(offsetof(struct pn_latlog_anchor, crc) == 28, "anchor crc");
_Static_assert(offsetof(struct pn_latlog_header, schema) == 1152, "schema");
_Static_assert(sizeof(pn_atomic_u64) == 8, "plain 64-bit atomics");

typedef struct pn_latlog pn_latlog;

/* Prepares a log in `dir` (created 0700 when missing, its parent must exist). No file yet: the
 * first record makes it. `segment_name` identifies the engine; audits compare it whole, so a
 * caller whose segments can be recreated under one name appends what tells them apart.
 * 0, -ENOTDIR, -ENOENT, -EACCES, -EROFS, -ENAMETOOLONG, -EINVAL, -ENOMEM, -EMFILE. */
int pn_latlog_open(const char *dir, const char *segment_name, int32_t backend_id, pn_latlog **out);

/* The id under which `name` in database `dboid` is logged; the same every time; 0: no memory.
 * `hash` is pn_channel_hash() of it; `len` is from 1 to PN_LATLOG_NAME_MAX. */
uint32_t pn_latlog_number(pn_latlog *log, uint64_t hash, uint32_t dboid, const char *name,
                          size_t len);
/* CRC32C of the name of channel `id`, for `aux` to continue. */
uint32_t pn_latlog_name_crc(const pn_latlog *log, uint32_t id);

/* A record as it lies in the file, but for its own CRC: that half of `aux` is 0. */
struct pn_latwords {
    uint64_t w[PN_LATLOG_RECORD / 8];
};

/* Inline, so that a caller's record is put together in registers: a load of eight bytes waits
 * until narrower stores to them have left the store buffer. */
static inline struct pn_latwords pn_latrec_words(const struct pn_latrec *rec)
{
    return (struct pn_latwords) {
        {rec->ts, rec->ref_ts, rec->commit_seq, rec->chan_seq,
         rec->channel | (uint64_t) rec->bytes << 32, rec->peer | (uint64_t) rec->lag << 32,
         rec->kind | (uint64_t) rec->wake << 8 | (uint64_t) rec->attempts << 16 |
             (uint64_t) rec->flags << 24 | (uint64_t) rec->batch << 32,
         rec->aux & UINT32_MAX}};
}

void pn_latlog_append_words(pn_latlog *log, const struct pn_latwords *words);

/* Appends *rec with its CRC; writes the channel's CHANDEF first where this file has none.
 * ts must be set: it also paces retries after a full disk. */
static inline void pn_latlog_append(pn_latlog *log, const struct pn_latrec *rec)
{
    const struct pn_latwords words = pn_latrec_words(rec);

    pn_latlog_append_words(log, &words);
}

/* Seals and frees; in another process than the one that opened it: abandons. NULL is allowed. */
void pn_latlog_close(pn_latlog *log);

/* Unmaps and frees without writing a byte: for the child of a fork. NULL is allowed. */
void pn_latlog_abandon(pn_latlog *log);

/* The most bytes that the files of its directory may have together (default 4 GiB): of whatever
 * process, the oldest that no process writes go (latency_room.h). */
void pn_latlog_limit(pn_latlog *log, uint64_t bytes);

/* Counts there too what it drops, and the files that it removes for new ones. */
void pn_latlog_count_in(pn_latlog *log, pn_atomic_u64 *dropped, pn_atomic_u64 *recycled);

#endif
