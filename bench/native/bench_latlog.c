/*
 * bench_latlog.c - what a record of the latency log costs its writer, and logs to measure with.
 *
 * A record is what pn_notify() logs: time stamp, channel id looked up by name, CRC of channel and
 * payload, append.  Every pass starts a new log in /dev/shm (TMPDIR if there is none) and writes
 * RECORDS into it, so first touch of every page, room made for it and new files are in the figure.
 * The engine takes its time stamp anyway; here it is taken for the record alone.
 *
 *     bench_latlog --write DIR RECORDS
 *
 * writes logs for `python -m bench.spark` instead: the same records every time (but for
 * pids, log ids and the clocks' anchors), one process and log for each of SENDERS and RECEIVERS.
 * Message m goes to a channel drawn by its number; half of the receivers listen to each channel.
 * A receiver takes batches with one time stamp each, as pn_poll() does, and stalls now and then,
 * which gives latencies a tail.  Prints one JSON object.
 */
#include "measure.h"

#include "base/crc32c.h"
#include "base/hash.h"
#include "files/latency_log.h"

/* ---- ns a record -------------------------------------------------------------------------- */

#define RECORDS 400000u

static pn_atomic_u64 dropped, recycled; /* of the log that was opened last */

static pn_latlog *open_log(const char *dir, int32_t backend)
{
    pn_latlog *log = NULL;
    int rc = pn_latlog_open(dir, "bench", backend, &log);
    if (rc < 0)
        die("pn_latlog_open %s: %s", dir, strerror(-rc));
    dropped = recycled = 0;
    pn_latlog_count_in(log, &dropped, &recycled);
    return log;
}

static uint32_t channel_id(pn_latlog *log, const char *name)
{
    size_t len = strlen(name);
    uint32_t id = pn_latlog_number(log, pn_channel_hash(1, name, len), 1, name, len);
    if (id == 0)
        die("pn_latlog_number");
    return id;
}

/* ns a record; `whole` adds what the engine does before it appends. */
static double pass(bool stamp, bool whole)
{
    uint8_t payload[PAYLOAD_BYTES];
    pn_latlog *log = open_log(directory, 1);
    uint32_t id = channel_id(log, CHANNEL);
    int64_t begin = now_ns(), now = begin;

    payload_init(payload);
    for (uint64_t i = 0; i < RECORDS; i++) {
        struct pn_latrec rec = {.commit_seq = i, .chan_seq = i, .kind = PN_LAT_SEND, .peer = 1};
        if (stamp)
            now = now_ns();
        rec.ts = (uint64_t) now;
        rec.channel = id;
        if (whole) {
            payload_number(payload, i);
            rec.channel = channel_id(log, CHANNEL);
            rec.aux = pn_crc32c(pn_crc32c(0, CHANNEL, strlen(CHANNEL)), payload, sizeof payload);
        }
        pn_latlog_append(log, &rec);
    }
    int64_t end = now_ns();
    if (dropped != 0)
        die("%llu records were dropped", (unsigned long long) dropped);
    pn_latlog_close(log);
    empty_directory();
    return (double) (end - begin) / RECORDS;
}

static double clock_alone(void)
{
    volatile int64_t last = 0;
    int64_t begin = now_ns();
    for (unsigned i = 0; i < RECORDS; i++)
        last = now_ns();
    return (double) (last - begin) / RECORDS;
}

static void measure_writer(settings s)
{
    double stamped[MAX_PASSES], bare[MAX_PASSES], whole[MAX_PASSES], clock[MAX_PASSES];
    int n = s.quick ? 11 : 51;

    make_directory(access("/dev/shm", W_OK) == 0 ? "/dev/shm" : NULL, "/tmp");
    pin_to_cpu(0);
    pass(true, true);
    for (int i = 0; i < n; i++) {
        stamped[i] = pass(true, false);
        bare[i] = pass(false, false);
        whole[i] = pass(true, true);
        clock[i] = clock_alone();
    }
    print_values("a record and its time stamp", "ns", stamped, n, 20, true);
    print_values("a record whose time stamp was taken already, as the engine's is", "ns", bare, n,
                 20, true);
    print_values("a record, its time stamp, channel and CRC of 100 bytes", "ns", whole, n, 0, true);
    print_values("clock_gettime alone", "ns", clock, n, 0, true);
}

/* ---- logs to measure with ------------------------------------------------------------------ */

enum { SENDERS = 2, RECEIVERS = 6, CHANNELS = 60, BATCH_MAX = 16 };

#define EVERY_NS 500u /* between messages, on the logs' clock */
#define START_NS ((uint64_t) 1000000000000)

/* splitmix64: all that looks random follows from the number of a message or batch. */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

typedef struct message {
    uint64_t number, sequence, at_ns;
    uint32_t channel, sender, crc;
} message;

typedef struct stream {
    uint64_t next, sequence[CHANNELS];
    uint32_t name_crc[CHANNELS];
} stream;

static void channel_name(char name[32], uint32_t channel)
{
    snprintf(name, 32, "bench.%02u", channel);
}

/* Every process walks through all messages: numbers within a channel then agree by themselves. */
static message stream_next(stream *s)
{
    uint64_t number = s->next++, x = mix(number);
    message m = {.number = number,
                 .at_ns = START_NS + number * EVERY_NS + (x >> 32) % EVERY_NS,
                 .channel = (uint32_t) (x % CHANNELS),
                 .sender = (uint32_t) (x >> 16) % SENDERS};
    m.sequence = s->sequence[m.channel]++;
    m.crc = pn_crc32c(s->name_crc[m.channel], &number, sizeof number);
    return m;
}

static uint64_t write_sender(pn_latlog *log, const uint32_t *ids, stream *s, uint32_t self,
                             uint64_t messages)
{
    uint64_t written = 0;
    while (s->next < messages) {
        message m = stream_next(s);
        if (m.sender != self)
            continue;
        struct pn_latrec rec = {.ts = m.at_ns,
                                .commit_seq = m.number + 1,
                                .chan_seq = m.sequence,
                                .channel = ids[m.channel],
                                .bytes = sizeof m.number,
                                .peer = self + 1,
                                .kind = PN_LAT_SEND,
                                .aux = m.crc};
        pn_latlog_append(log, &rec);
        written++;
        if (m.number % 64 < 2) {
            struct pn_latrec signals = {.ts = m.at_ns,
                                        .commit_seq = m.number + 1,
                                        .peer = self + 1,
                                        .kind = PN_LAT_SIGNAL,
                                        .aux = RECEIVERS / 2};
            pn_latlog_append(log, &signals);
            written++;
        }
    }
    return written;
}

static void write_batch(pn_latlog *log, const uint32_t *ids, const message *batch, uint32_t n,
                        uint64_t ts)
{
    for (uint32_t i = 0; i < n; i++) {
        struct pn_latrec rec = {.ts = ts,
                                .ref_ts = batch[i].at_ns,
                                .commit_seq = batch[i].number + 1,
                                .chan_seq = batch[i].sequence,
                                .channel = ids[batch[i].channel],
                                .bytes = sizeof batch[i].number,
                                .peer = batch[i].sender + 1,
                                .lag = n - 1 - i,
                                .kind = PN_LAT_RECV,
                                .wake = PN_LATWAKE_SIGNAL,
                                .batch = n,
                                .aux = batch[i].crc};
        pn_latlog_append(log, &rec);
    }
}

static uint64_t write_receiver(pn_latlog *log, const uint32_t *ids, stream *s, uint32_t self,
                               uint64_t messages)
{
    message batch[BATCH_MAX];
    uint64_t written = 0, batches = 0, last_ns = START_NS;
    uint32_t held = 0, wanted = 1;

    for (uint32_t c = self % 2; c < CHANNELS; c += 2) {
        struct pn_latrec rec = {.ts = START_NS, .channel = ids[c], .kind = PN_LAT_LISTEN};
        pn_latlog_append(log, &rec);
        written++;
    }
    while (s->next < messages) {
        message m = stream_next(s);
        if (m.channel % 2 == self % 2)
            batch[held++] = m;
        if (held == 0 || (held < wanted && s->next < messages))
            continue;
        uint64_t x = mix(batches++ * RECEIVERS + self), slow = x % 4096 == 0 ? 20000 : 0;
        uint64_t ts =
            batch[held - 1].at_ns + 1500 + (x >> 12) % 1024 + slow * 1024 / (1 + (x >> 32) % 1024);
        ts = ts > last_ns + 100 ? ts : last_ns + 100;
        if (batches % 8 == 0) {
            struct pn_latrec wake = {.ts = ts - 100,
                                     .batch = held,
                                     .kind = PN_LAT_WAKE,
                                     .wake = PN_LATWAKE_SIGNAL,
                                     .flags = PN_LATREC_USEFUL};
            pn_latlog_append(log, &wake);
            written++;
        }
        write_batch(log, ids, batch, held, ts);
        written += held;
        last_ns = ts;
        held = 0;
        wanted = 1 + (uint32_t) (x >> 48) % BATCH_MAX;
    }
    return written;
}

typedef struct plan {
    const char *dir;
    uint64_t messages;
    uint32_t self; /* senders come first */
} plan;

static void writer_main(int socket, void *arg)
{
    const plan *p = arg;
    stream s = {0};
    uint32_t ids[CHANNELS];
    pn_latlog *log = open_log(p->dir, (int32_t) p->self + 1);
    pn_latlog_limit(log, UINT64_MAX);
    for (uint32_t c = 0; c < CHANNELS; c++) {
        char name[32];
        channel_name(name, c);
        ids[c] = channel_id(log, name);
        s.name_crc[c] = pn_crc32c(0, name, strlen(name));
    }
    uint64_t written = p->self < SENDERS
                           ? write_sender(log, ids, &s, p->self, p->messages)
                           : write_receiver(log, ids, &s, p->self - SENDERS, p->messages);
    if (dropped != 0)
        die("%llu records were dropped: is the disk full?", (unsigned long long) dropped);
    pn_latlog_close(log);
    tell(socket, written);
    hear(socket);
}

/* A message is one SEND and RECEIVERS / 2 RECVs. */
static void write_logs(const char *dir, uint64_t records)
{
    child children[SENDERS + RECEIVERS];
    plan p = {.dir = dir, .messages = records / (1 + RECEIVERS / 2) + 1};
    uint64_t written = 0;

    for (p.self = 0; p.self < SENDERS + RECEIVERS; p.self++)
        children[p.self] = start_child(writer_main, &p);
    for (int i = 0; i < SENDERS + RECEIVERS; i++) {
        written += hear(children[i].socket);
        end_child(children[i]);
    }
    printf("{\"records\": %llu, \"messages\": %llu, \"received\": %llu}\n",
           (unsigned long long) written, (unsigned long long) p.messages,
           (unsigned long long) (p.messages * (RECEIVERS / 2)));
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "--write") == 0) {
        write_logs(argv[2], strtoull(argv[3], NULL, 10));
        return 0;
    }
    measure_writer(parse_arguments(argc, argv));
    return 0;
}
