/*
 * soak_worker.c - one process of `make soak`: random calls until it is told to end, or is killed.
 *
 *     soak_worker SEGMENT DIRECTORY NUMBER PLACE SEED FD CRASH PARENT
 *
 * 1. It has two connections.  Each has a number that no other one ever has, and writes a journal
 *    of its own (soak_journal.h) into DIRECTORY.  tests/soak/judge.py compares the journals.
 * 2. A connection listens to a channel of its own, "me.<number>", and every transaction that says
 *    LISTEN or UNLISTEN notifies there: from what it receives the judge knows exactly where in
 *    the order of commits the LISTEN stands.
 * 3. The end is two messages on channel "end".  After the first nothing new is begun, and a byte
 *    goes to FD; the second comes after everything else, so a process that has it has everything.
 * 4. With CRASH it ends or stops itself at a random crash point, in the middle of the engine,
 *    where signals from outside seldom hit.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "pynotify.h"
#include "soak_journal.h"

enum { CONNECTIONS = 2, NUMBERS = 16, WORKERS = 64, MAX_EVENTS = 24, MAX_ACTIONS = 12, LEVELS = 3 };
enum { DONE_NOTHING, END_BEGUN, END_COMPLETE };

/* What an open transaction will have done if it commits. */
struct plan {
    uint32_t nevents, nactions;
    struct {
        uint16_t channel, index;
        uint32_t length;
    } event[MAX_EVENTS];
    struct {
        uint8_t kind;
        uint16_t channel;
    } action[MAX_ACTIONS];
    uint16_t next_index, bumps;
};

struct connection {
    pn_conn *conn;
    pn_batch *batch;
    pn_txn *txn;
    int journal, end;
    uint32_t number, txn_number;
    int level;
    bool prepared;
    struct plan plan, saved[LEVELS];
};

static struct {
    const char *directory;
    uint32_t number, used, place;
    uint64_t seed;
    int told;
    bool hermit; /* listens to itself only, and sleeps long: the tail passes it by */
    pn_engine *engine;
    uint32_t counter[WORKERS]; /* of each worker's place */
    uint32_t max_payload;
    struct connection connection[CONNECTIONS];
} self;

static struct journal_record pages[8192]; /* what is not yet written of one journal */
static size_t pending;
static uint8_t payload[1 << 16];

/* ---- small things ------------------------------------------------------------------------- */

static uint64_t draw(void)
{
    uint64_t z = self.seed += 0x9e3779b97f4a7c15ULL;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ z >> 27) * 0x94d049bb133111ebULL;
    return z ^ z >> 31;
}

static uint32_t below(uint32_t n)
{
    return (uint32_t) (draw() % n);
}

static bool chance(uint32_t percent)
{
    return below(100) < percent;
}

static int64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t) ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static void flush(struct connection *c)
{
    const char *from = (const char *) pages;
    size_t left = pending * sizeof pages[0];
    while (left > 0) {
        ssize_t n = write(c->journal, from, left);
        if (n < 0 && errno != EINTR) {
            perror("soak_worker: journal");
            exit(3);
        }
        from += n > 0 ? n : 0;
        left -= n > 0 ? (size_t) n : 0;
    }
    pending = 0;
}

static struct journal_record *record(struct connection *c, enum journal_kind kind)
{
    if (pending == sizeof pages / sizeof pages[0])
        flush(c);
    struct journal_record *r = &pages[pending++];
    *r = (struct journal_record) {
        .kind = (uint8_t) kind, .connection = c->number, .txn = c->txn_number};
    return r;
}

/* An error that must not be: the judge counts it, a person reads the text. */
static void unexpected(struct connection *c, const char *what, int64_t rc)
{
    fprintf(stderr, "connection %u: %s: %lld: %s\n", c->number, what, (long long) rc,
            pn_error_message());
    record(c, JOURNAL_ERROR)->seq = (uint64_t) -rc;
    flush(c);
}

static size_t channel_name(char *name, size_t cap, const struct connection *c, uint16_t channel)
{
    if (channel == CHANNEL_OWN)
        return (size_t) snprintf(name, cap, "me.%u", c->number);
    if (channel == CHANNEL_END)
        return (size_t) snprintf(name, cap, "end");
    return (size_t) snprintf(name, cap, "c%u", channel);
}

/* ---- payloads ------------------------------------------------------------------------------ */

static uint32_t sum_of(const struct soak_payload *p)
{
    uint32_t words[sizeof *p / 4], sum = 2166136261U;
    memcpy(words, p, sizeof words);
    for (size_t i = 0; i + 1 < sizeof words / 4; i++)
        sum = (sum ^ words[i]) * 16777619U;
    return sum;
}

/* What follows the front of a payload: bytes by which garbage is told from a message. */
static uint8_t filler(uint32_t sum, size_t i)
{
    return (uint8_t) ((sum >> (i % 4 * 8)) + i);
}

static void compose(struct connection *c, uint16_t channel, uint16_t index, uint32_t length)
{
    struct soak_payload p = {.connection = c->number,
                             .txn = c->txn_number,
                             .index = index,
                             .channel = channel,
                             .length = length,
                             .owner = self.place};
    if (c->plan.bumps > 0)
        p.counter = pn_generation_value(self.engine, self.counter[self.place]) + c->plan.bumps;
    p.sum = sum_of(&p);
    memcpy(payload, &p, sizeof p);
    for (size_t i = sizeof p; i < length; i++)
        payload[i] = filler(p.sum, i);
}

static uint32_t some_length(void)
{
    uint32_t most = chance(1) ? self.max_payload : chance(10) ? 3000 : 120;
    return (uint32_t) sizeof(struct soak_payload) + below(most - 32);
}

/* ---- receiving ----------------------------------------------------------------------------- */

static void note_received(struct connection *c, size_t i)
{
    const pn_batch *b = c->batch;
    const uint8_t *data = b->data + b->offset[i];
    size_t len = (size_t) (b->offset[i + 1] - b->offset[i]), name_len = 0;
    const char *name = pn_conn_channel(c->conn, b->channel[i], &name_len);
    struct journal_record *r = record(c, JOURNAL_RECEIVED);
    struct soak_payload p = {0};
    char expected[64];

    r->seq = b->seq[i];
    r->time = b->sent_ns[i];
    if (len >= sizeof p)
        memcpy(&p, data, sizeof p);
    r->connection = p.connection;
    r->txn = p.txn;
    r->index = p.index;
    r->channel = p.channel;
    if (len < sizeof p || p.length != len || p.sum != sum_of(&p))
        r->flag |= FLAW_CONTENT;
    for (size_t k = sizeof p; k < len && r->flag == 0; k++)
        if (data[k] != filler(p.sum, k))
            r->flag |= FLAW_CONTENT;
    if (name == NULL || channel_name(expected, sizeof expected, c, p.channel) != name_len ||
        memcmp(name, expected, name_len) != 0)
        r->flag |= FLAW_CHANNEL;
    if (r->flag == 0 && p.owner < WORKERS && p.counter > 0 &&
        pn_generation_value(self.engine, self.counter[p.owner]) < p.counter)
        r->flag |= FLAW_COUNTER;
    if (p.channel == CHANNEL_END && r->flag == 0)
        c->end = p.index == 0 && c->end == DONE_NOTHING ? END_BEGUN
                 : p.index != 0                         ? END_COMPLETE
                                                        : c->end;
}

static void receive(struct connection *c, uint64_t max)
{
    int64_t before = now_ns();
    int64_t n = pn_poll(c->conn, c->batch, max);
    if (n < 0) {
        unexpected(c, "poll", n);
        return;
    }
    const pn_batch *b = c->batch;
    for (size_t i = 0, gap = 0; i <= b->n; i++) {
        for (; gap < b->ngaps && b->gap[gap].before == i; gap++)
            record(c, JOURNAL_GAP)->seq = b->gap[gap].missed_bytes;
        if (i < b->n)
            note_received(c, i);
    }
    if (max == 0 || b->n + b->ngaps < max)
        record(c, JOURNAL_DRAINED)->time = before;
    flush(c);
}

static void sleep_until_wanted(struct connection *c, int64_t timeout_ns)
{
    if (chance(30)) {
        struct pollfd p = {.fd = pn_fileno(c->conn), .events = POLLIN};
        poll(&p, 1, timeout_ns < 0 ? 1000 : (int) (timeout_ns / 1000000));
    } else {
        int rc = pn_wait(c->conn, timeout_ns);
        if (rc < 0 && rc != -EINTR)
            unexpected(c, "wait", rc);
    }
    receive(c, 0);
}

/* ---- sending -------------------------------------------------------------------------------- */

static void write_intent(struct connection *c)
{
    const struct plan *plan = &c->plan;
    struct journal_record *r = record(c, JOURNAL_INTENT);
    r->count = (uint16_t) (plan->nevents + plan->nactions + (plan->bumps > 0));
    for (uint32_t i = 0; i < plan->nactions; i++) {
        struct journal_record *part = record(c, (enum journal_kind) plan->action[i].kind);
        part->channel = plan->action[i].channel;
    }
    for (uint32_t i = 0; i < plan->nevents; i++) {
        struct journal_record *part = record(c, JOURNAL_EVENT);
        part->channel = plan->event[i].channel;
        part->index = plan->event[i].index;
    }
    if (plan->bumps > 0) {
        struct journal_record *part = record(c, JOURNAL_BUMP);
        part->index = (uint16_t) self.place;
        part->count = plan->bumps;
    }
    r->time = now_ns();
    flush(c);
}

static bool may_fail(int rc)
{
    return rc == -PN_EQUEUEFULL || rc == -PN_ECHANNELS || rc == -PN_ELOCKBUSY ||
           rc == -PN_EROOMBUSY;
}

static void write_outcome(struct connection *c, const char *what, int rc)
{
    struct journal_record *r = record(c, rc < 0 ? JOURNAL_FAILED : JOURNAL_COMMITTED);
    r->time = now_ns();
    r->seq = rc < 0 ? (uint64_t) -rc : 0;
    flush(c);
    if (rc < 0 && !may_fail(rc))
        unexpected(c, what, rc);
    if (rc == -PN_EQUEUEFULL) {
        receive(c, 0); /* it may be on us */
        usleep(below(4000));
    }
}

/* Remember the next notification of the plan; its bytes are in payload[] then. */
static uint32_t plan_event(struct connection *c, uint16_t channel)
{
    struct plan *plan = &c->plan;
    uint32_t i = plan->nevents++;
    plan->event[i].channel = channel;
    plan->event[i].index = plan->next_index++;
    plan->event[i].length = some_length();
    compose(c, channel, plan->event[i].index, plan->event[i].length);
    return plan->event[i].length;
}

static uint16_t some_channel(void)
{
    return chance(20) ? CHANNEL_OWN : (uint16_t) below(SHARED_CHANNELS);
}

static void add_event(struct connection *c, uint16_t channel)
{
    char name[64];
    if (c->plan.nevents >= MAX_EVENTS)
        return;
    size_t name_len = channel_name(name, sizeof name, c, channel);
    uint32_t length = plan_event(c, channel);
    int rc = pn_txn_notify(c->txn, name, name_len, payload, length);
    if (rc == 0 && chance(5)) /* the same once more: it is collapsed */
        rc = pn_txn_notify(c->txn, name, name_len, payload, length);
    if (rc < 0)
        unexpected(c, "notify", rc);
}

static void add_action(struct connection *c, enum journal_kind kind, uint16_t channel)
{
    char name[64];
    size_t len = channel_name(name, sizeof name, c, channel);
    struct plan *plan = &c->plan;
    int rc;
    if (plan->nactions >= MAX_ACTIONS)
        return;
    if (kind == JOURNAL_LISTEN)
        rc = pn_txn_listen(c->txn, name, len);
    else if (kind == JOURNAL_UNLISTEN)
        rc = pn_txn_unlisten(c->txn, name, len);
    else
        rc = pn_txn_unlisten_all(c->txn);
    plan->action[plan->nactions].kind = (uint8_t) kind;
    plan->action[plan->nactions++].channel = channel;
    if (rc < 0)
        unexpected(c, "listen or unlisten", rc);
}

static void add_some_action(struct connection *c)
{
    if (chance(10) && c->plan.nactions + 3 <= MAX_ACTIONS) {
        add_action(c, JOURNAL_UNLISTEN_ALL, 0);
        add_action(c, JOURNAL_LISTEN, CHANNEL_OWN);
        add_action(c, JOURNAL_LISTEN, CHANNEL_END);
        return;
    }
    add_action(c, chance(60) && !self.hermit ? JOURNAL_LISTEN : JOURNAL_UNLISTEN,
               (uint16_t) below(SHARED_CHANNELS));
}

static bool begin(struct connection *c)
{
    int rc = pn_txn_begin(c->conn, &c->txn);
    c->txn_number++;
    c->plan = (struct plan) {0};
    c->level = 0;
    c->prepared = false;
    if (rc != 0)
        unexpected(c, "begin", rc);
    return rc == 0;
}

static void savepoints(struct connection *c)
{
    int rc = 0;
    if (c->level < LEVELS && chance(50)) {
        c->saved[c->level] = c->plan;
        rc = pn_txn_savepoint(c->txn);
        c->level++;
        rc = rc == c->level ? 0 : -EINVAL;
    } else if (c->level > 0 && chance(50)) {
        c->level = (int) below((uint32_t) c->level);
        rc = pn_txn_release(c->txn, c->level + 1);
    } else if (c->level > 0) {
        uint16_t next_index = c->plan.next_index;
        c->level = (int) below((uint32_t) c->level);
        c->plan = c->saved[c->level];
        c->plan.next_index = next_index;
        rc = pn_txn_rollback_to(c->txn, c->level + 1);
    }
    if (rc < 0)
        unexpected(c, "savepoint", rc);
}

/* Every LISTEN says on one's own channel where it stands (2). */
static void round_off(struct connection *c)
{
    if (c->prepared || (c->plan.nactions == 0 && c->plan.nevents > 0 && chance(30)))
        return;
    add_event(c, CHANNEL_OWN);
}

static void commit(struct connection *c)
{
    round_off(c);
    write_intent(c);
    int never = chance(5) ? pn_set_never_wait(1) : 0;
    int rc = pn_txn_commit(c->txn);
    pn_set_never_wait(never);
    if (rc == -PN_ELOCKBUSY || rc == -PN_EROOMBUSY) { /* it goes on */
        write_outcome(c, "commit that does not wait", rc);
        write_intent(c);
        rc = pn_txn_commit(c->txn);
    }
    c->txn = NULL;
    write_outcome(c, "commit", rc);
}

static void abort_txn(struct connection *c)
{
    if (c->txn != NULL)
        pn_txn_abort(c->txn);
    c->txn = NULL;
}

static void prepare(struct connection *c)
{
    round_off(c);
    int rc = pn_txn_prepare(c->txn);
    if (rc == 0)
        c->prepared = true;
    else if (may_fail(rc))
        abort_txn(c);
    else
        unexpected(c, "prepare", rc);
}

static void bump(struct connection *c)
{
    if (c->level != 0) /* so that none is rolled back: payloads have told of it */
        return;
    int rc = pn_txn_bump(c->txn, self.counter[self.place]);
    c->plan.bumps++;
    if (rc < 0)
        unexpected(c, "bump", rc);
}

static void go_on(struct connection *c)
{
    if (c->txn == NULL && !begin(c))
        return;
    uint32_t what = below(100);
    if (c->prepared || what < 35) {
        if (chance(c->prepared ? 15 : 8))
            abort_txn(c);
        else
            commit(c);
    } else if (what < 70) {
        for (uint32_t n = 1 + below(4); n > 0 && c->plan.nevents < MAX_EVENTS - 2; n--)
            add_event(c, some_channel());
    } else if (what < 82) {
        savepoints(c);
    } else if (what < 88) {
        add_some_action(c);
    } else if (what < 94) {
        bump(c);
    } else if (what < 97) {
        prepare(c);
    }
}

static void notify_alone(struct connection *c)
{
    char name[64];
    uint16_t channel = some_channel();
    size_t name_len = channel_name(name, sizeof name, c, channel);
    if (c->txn != NULL)
        return;
    c->txn_number++;
    c->plan = (struct plan) {0};
    uint32_t length = plan_event(c, channel);
    write_intent(c);
    write_outcome(c, "notify", pn_notify(c->conn, name, name_len, payload, length));
}

static void notify_many(struct connection *c)
{
    static uint8_t all[1 << 16];
    char name[64];
    uint16_t channel = some_channel();
    size_t name_len = channel_name(name, sizeof name, c, channel), used = 0;
    uint32_t lens[MAX_EVENTS], n = 1 + below(MAX_EVENTS);
    uint64_t queued = 0;
    if (c->txn != NULL)
        return;
    c->txn_number++;
    c->plan = (struct plan) {0};
    for (uint32_t i = 0; i < n; i++) {
        lens[i] = plan_event(c, channel);
        if (used + lens[i] > sizeof all) {
            c->plan.nevents--;
            break;
        }
        memcpy(all + used, payload, lens[i]);
        used += lens[i];
    }
    write_intent(c);
    int rc = pn_notify_many(c->conn, NULL, name, name_len, all, lens, c->plan.nevents, chance(50),
                            &queued);
    write_outcome(c, "notify_many", rc);
}

/* ---- connections ----------------------------------------------------------------------------- */

static void find_counters(struct connection *c)
{
    for (uint32_t i = 0; i < WORKERS; i++) {
        char name[16];
        size_t len = (size_t) snprintf(name, sizeof name, "g%u", i);
        int rc = pn_generation(c->conn, name, len, &self.counter[i]);
        if (rc != 0)
            unexpected(c, "counter", rc);
    }
}

static bool open_connection(struct connection *c)
{
    char path[512];
    if (self.used == NUMBERS)
        return false;
    memset(c, 0, sizeof *c);
    c->number = self.number + self.used++;
    snprintf(path, sizeof path, "%s/%u.journal", self.directory, c->number);
    c->journal = open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600);
    c->batch = pn_batch_new();
    if (c->journal < 0 || c->batch == NULL) {
        perror(path);
        exit(3);
    }
    int signo = chance(10) ? -1 : chance(20) ? SIGRTMIN + 1 : 0;
    int rc = pn_connect(self.engine, "soak", 4, signo, NULL, &c->conn);
    if (rc != 0) {
        unexpected(c, "connect", rc);
        exit(3);
    }
    if (self.used == 1)
        find_counters(c);
    if (!begin(c))
        exit(3);
    add_action(c, JOURNAL_LISTEN, CHANNEL_OWN);
    add_action(c, JOURNAL_LISTEN, CHANNEL_END);
    for (uint16_t channel = 0; channel < SHARED_CHANNELS; channel++)
        if (chance(self.hermit ? 0 : 25))
            add_action(c, JOURNAL_LISTEN, channel);
    const struct plan plan = c->plan;
    commit(c);
    while (pn_conn_listening(c->conn, NULL, 0) == 0) { /* the queue was full: once more */
        for (int i = 0; i < CONNECTIONS; i++)
            if (self.connection[i].conn != NULL)
                receive(&self.connection[i], 0); /* it may be on us */
        if (!begin(c))
            exit(3);
        for (uint32_t i = 0; i < plan.nactions; i++)
            add_action(c, (enum journal_kind) plan.action[i].kind, plan.action[i].channel);
        commit(c);
    }
    return true;
}

static void close_connection(struct connection *c)
{
    abort_txn(c);
    if (c->end == END_COMPLETE)
        record(c, JOURNAL_ENDED);
    record(c, JOURNAL_CLOSED);
    flush(c);
    pn_conn_close(c->conn);
    pn_batch_free(c->batch);
    close(c->journal);
    c->conn = NULL;
}

/* What may happen next on a connection; false: it was closed for good. */
static bool act(struct connection *c)
{
    uint32_t what = below(1000);
    if (what < 500)
        go_on(c);
    else if (what < 650)
        receive(c, chance(60) ? 0 : 1 + below(20));
    else if (what < 750)
        sleep_until_wanted(c, (int64_t) below(self.hermit ? 200000000 : 5000000));
    else if (what < 850)
        notify_alone(c);
    else if (what < 900)
        notify_many(c);
    else if (what < 910)
        pn_conn_mark_readable(c->conn);
    else if (what < 915)
        pn_conn_interrupt_wait(c->conn);
    else if (what < 920 && pn_conn_mute_fd(c->conn) == 0)
        pn_conn_mark_readable(c->conn);
    else if (what < 930)
        usleep(below(3000));
    else if (what < 932) {
        close_connection(c);
        return open_connection(c);
    }
    return true;
}

static void work(void)
{
    for (;;) {
        bool ended = true;
        for (int i = 0; i < CONNECTIONS; i++)
            ended = ended && self.connection[i].end != DONE_NOTHING;
        if (ended)
            return;
        struct connection *c = &self.connection[below(CONNECTIONS)];
        if (c->end != DONE_NOTHING)
            sleep_until_wanted(c, 1000000); /* what it does not read would hold up the others */
        else if (!act(c)) {
            for (int i = 0; i < CONNECTIONS; i++)
                if (self.connection[i].conn != NULL)
                    close_connection(&self.connection[i]);
            exit(0); /* its numbers are used up: the supervisor starts another one */
        }
    }
}

static void end(void)
{
    for (int i = 0; i < CONNECTIONS; i++) {
        struct connection *c = &self.connection[i];
        if (c->txn != NULL && (c->prepared || chance(50)))
            commit(c);
        abort_txn(c);
    }
    if (write(self.told, ".", 1) != 1)
        exit(3);
    for (int i = 0; i < CONNECTIONS; i++) {
        struct connection *c = &self.connection[i];
        while (c->end != END_COMPLETE)
            sleep_until_wanted(c, -1);
        close_connection(c);
    }
}

static void arm(void)
{
    static const int actions[] = {PN_CRASH_KILL, PN_CRASH_KILL, PN_CRASH_STOP, PN_CRASH_EXIT};
    int labels = pn_crash_label_count();
    if (labels <= 0)
        return;
    const char *label;
    bool commits = chance(50); /* what is reached most, and has most to lose */
    do
        label = pn_crash_label((int) below((uint32_t) labels));
    while (commits && strncmp(label, "commit:", 7) != 0);
    uint32_t nth = 1U << below(11);
    if (pn_crash_arm(label, 1 + below(nth), actions[below(4)]) == 0)
        fprintf(stderr, "armed: %s\n", label);
}

int main(int argc, char **argv)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (argc != 9 || getppid() != atoi(argv[8])) /* died before we asked for it */
        return 2;
    self.directory = argv[2];
    self.number = (uint32_t) strtoul(argv[3], NULL, 10);
    self.place = (uint32_t) strtoul(argv[4], NULL, 10);
    self.seed = strtoull(argv[5], NULL, 10);
    self.told = atoi(argv[6]);
    self.hermit = chance(15);
    int rc = pn_open(argv[1], NULL, &self.engine);
    if (rc != 0) {
        fprintf(stderr, "open: %d: %s\n", rc, pn_error_message());
        return 3;
    }
    pn_options options;
    pn_engine_options(self.engine, &options);
    self.max_payload = options.max_payload;
    if (strcmp(argv[7], "crash") == 0)
        arm();
    for (int i = 0; i < CONNECTIONS; i++)
        open_connection(&self.connection[i]);
    work();
    end();
    pn_engine_close(self.engine);
    return 0;
}
