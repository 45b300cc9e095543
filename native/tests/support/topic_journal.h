/*
 * topic_journal.h - what was about to be published, returned and answered, and what was: in memory
 * that outlives SIGKILL, and the judge that compares it with what came.  For test_crash_topic.c and
 * test_topic_stress.c, each of which includes it once.
 *
 * Topic "work" has the channels a and b, topic "own" x and y; "dead" has the dead letters of x.
 * A message is named by its serial number.  A doomed process may die anywhere: what it died in
 * happened to all of it or to nothing.
 */
#ifndef PN_TOPIC_JOURNAL_H
#define PN_TOPIC_JOURNAL_H

enum writer {
    NO_WRITER = 0,
    VICTIM = 1,
    PARENT = 2,
    CONSUMER = 3,
    HELPER = 16 /* and above, both */
};
enum { MS = 1000000, MAX_WRITERS = 4096 };
static bool many;    /* several mortals at a time */
static bool on_disk; /* there is a data_dir */

/* ---- the journal ----------------------------------------------------------------------------- */

enum fate { UNUSED, ABOUT, PUBLISHED, ABORTED };

/* A message in one of its topic's two channels. */
struct entry {
    _Atomic(uint32_t) holder;
    _Atomic(uint32_t) claims;         /* how often it was returned by a get */
    _Atomic(uint32_t) finished, died; /* answers that were taken: finish, dead letter */
    _Atomic(uint32_t) dead;           /* copies in the dead-letter topic */
    _Atomic(uint32_t) loose;          /* its attempts are not certain */
};

struct message_log {
    _Atomic(uint32_t) fate;
    uint32_t writer, topic, group; /* group: the first of those published together */
    _Atomic(uint32_t) optional;    /* it may be gone without having been finished */
    _Atomic(uint32_t) cancelled;   /* it is */
    struct entry in[2];
};

/* Transaction t of a process: publishes `first` and three more, answers `answered` - 1 in x. */
struct txn_log {
    _Atomic(uint32_t) fate;
    uint32_t first, answered, heard;
};

/* What a process is about to answer; it stays there if that is what it dies in. */
struct intent {
    _Atomic(uint32_t) serial; /* + 1; 0: nothing */
    uint32_t which;
    int how;
};

enum topic_no { WORK, OWN };
struct body {
    uint32_t magic, serial, kind, pad;
};
enum kind { PLAIN = 1, PING, PING_B, QUIT };
enum { MAGIC = 0x70696373 };

static struct shared {
    _Atomic(uint32_t) next, next_txn, stop, deaths, doubts;
    _Atomic(uint32_t) doomed[MAX_WRITERS]; /* is or will be dead, by no fault of its own */
    struct intent intent[MAX_WRITERS];
    struct message_log m[MAX_MESSAGES];
    struct txn_log txn[MAX_TXNS];
} *j;

static bool mortal(uint32_t writer)
{
    return writer < MAX_WRITERS && atomic_load(&j->doomed[writer]) != 0;
}

static const char *segment;
static pn_engine *engine;
static pn_conn *mine;

static const char *what_runs(void);

#define REQUIRE(cond, ...)                                                                         \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "%s: ", what_runs());                                                  \
            FAIL(__VA_ARGS__);                                                                     \
        }                                                                                          \
    } while (0)

static pn_conn *connect_with(int signo)
{
    pn_conn *conn;
    CHECK_OK(pn_connect(engine, "db", 2, signo, NULL, &conn));
    return conn;
}

static pn_ref topic_named(pn_conn *conn, const char *name)
{
    pn_ref ref;
    CHECK_OK(pn_topic_open(conn, name, strlen(name), NULL, &ref));
    return ref;
}

static pn_ref channel_named(pn_conn *conn, pn_ref topic, const char *name)
{
    pn_ref ref;
    CHECK_OK(pn_topic_channel_open(conn, topic, name, strlen(name), -1, &ref));
    return ref;
}

static pn_consumer *consumer_with(pn_conn *conn, pn_ref channel, const pn_consumer_options *o)
{
    pn_consumer *consumer;
    CHECK_OK(pn_consumer_open(conn, channel, o, &consumer));
    return consumer;
}

static pn_consumer *consumer_of(pn_conn *conn, pn_ref channel, uint32_t max_in_flight,
                                int64_t msg_timeout_ns)
{
    const pn_consumer_options o = {.max_in_flight = max_in_flight,
                                   .msg_timeout_ns = msg_timeout_ns,
                                   .dead_letter = "dead",
                                   .dead_letter_len = 4};
    return consumer_with(conn, channel, &o);
}

/* ---- publishing ------------------------------------------------------------------------------ */

static uint32_t about_to_publish(uint32_t me, enum topic_no topic, uint32_t n)
{
    uint32_t first = atomic_fetch_add(&j->next, n);
    CHECK(first + n <= MAX_MESSAGES);
    for (uint32_t i = first; i < first + n; i++) {
        j->m[i].writer = me;
        j->m[i].topic = topic;
        j->m[i].group = first;
        atomic_store(&j->m[i].fate, ABOUT);
    }
    return first;
}

static void was_published(uint32_t first, uint32_t n, int rc)
{
    if (rc < 0)
        FAIL("publish of %u: %d: %s", first, rc, pn_error_message());
    for (uint32_t i = first; i < first + n; i++)
        atomic_store(&j->m[i].fate, PUBLISHED);
}

static void write_body(char *to, uint32_t kind, uint32_t serial)
{
    struct body b = {.magic = MAGIC, .serial = serial, .kind = kind};
    memcpy(to, &b, sizeof b);
}

struct manner {
    size_t size;
    int64_t delay_ns, ttl_ns;
    bool optional;
    uint32_t kind;
};

static int send_one(pn_conn *conn, pn_txn *txn, pn_ref topic, uint32_t serial,
                    const struct manner *how, uint64_t *id)
{
    static _Thread_local char body[BIG];
    pn_message_in in = {.body = body,
                        .body_len = how->size,
                        .headers = "{\"h\":\"v\"}",
                        .headers_len = 9,
                        .delay_ns = how->delay_ns,
                        .ttl_ns = how->ttl_ns};
    atomic_store(&j->m[serial].optional, how->optional);
    write_body(body, how->kind != 0 ? how->kind : PLAIN, serial);
    return pn_topic_publish(conn, txn, topic, &in, id);
}

static uint64_t publish(pn_conn *conn, uint32_t me, enum topic_no no, pn_ref topic,
                        const struct manner *how)
{
    uint64_t id;
    uint32_t serial = about_to_publish(me, no, 1);
    was_published(serial, 1, send_one(conn, NULL, topic, serial, how, &id));
    return id;
}

/* Deferred; cancelled before it was due, if this machine did not sleep. */
static void publish_and_cancel(pn_conn *conn, uint32_t me, pn_ref own, int64_t delay_ns)
{
    uint64_t id;
    uint32_t serial = about_to_publish(me, OWN, 1);
    const struct manner how = {.size = 40, .delay_ns = delay_ns, .optional = true};
    was_published(serial, 1, send_one(conn, NULL, own, serial, &how, &id));
    int rc = pn_topic_cancel(conn, NULL, own, id);
    CHECK_OK(rc);
    if (rc == 1)
        atomic_store(&j->m[serial].cancelled, 1);
}

static int send_many(pn_conn *conn, pn_txn *txn, pn_ref topic, uint32_t first, uint32_t n)
{
    static _Thread_local char bodies[4 * 100];
    uint32_t lens[4];
    uint64_t id;
    CHECK(n <= 4);
    for (uint32_t i = 0; i < n; i++) {
        write_body(bodies + 100 * i, PLAIN, first + i);
        lens[i] = 100;
    }
    return pn_topic_publish_many(conn, txn, topic, bodies, lens, n, NULL, &id);
}

static void publish_many(pn_conn *conn, uint32_t me, enum topic_no no, pn_ref topic, uint32_t n)
{
    uint32_t first = about_to_publish(me, no, n);
    was_published(first, n, send_many(conn, NULL, topic, first, n));
}

/* ---- consuming ------------------------------------------------------------------------------- */

struct held {
    pn_message_out out;
    uint32_t serial, kind;
    int which;
    struct entry *entry;
};

/* Those of y time out in the hands of the living. */
static bool times_out(enum topic_no topic, int which)
{
    return topic == OWN && which == 1;
}

static void check_attempts(struct held *h, uint32_t before, uint32_t me, bool loose)
{
    struct entry *e = h->entry;
    uint32_t attempts = atomic_fetch_add(&e->claims, 1) + 1;
    if (loose || h->out.attempts == attempts)
        return;
    REQUIRE(h->out.attempts == attempts + 1 && before != me, "message %u: attempt %u is the %u.",
            h->serial, h->out.attempts, attempts);
    atomic_fetch_add(&e->claims, 1); /* its process died in the get: returned, not noted */
    REQUIRE(atomic_fetch_add(&j->doubts, 1) < atomic_load(&j->deaths) + 1,
            "message %u: attempt %u is the %u.", h->serial, h->out.attempts, attempts);
}

/* What a get has returned: it was published, no other has it, and it was not finished. */
static void was_returned(struct held *h, uint32_t me, int which, enum topic_no topic)
{
    struct body b;
    CHECK(h->out.body_len >= sizeof b);
    memcpy(&b, h->out.body, sizeof b);
    REQUIRE(b.magic == MAGIC && b.serial < atomic_load(&j->next), "a damaged message");
    h->serial = b.serial;
    h->kind = b.kind;
    h->which = which;
    struct message_log *m = &j->m[b.serial];
    struct entry *e = h->entry = &m->in[which];
    REQUIRE(m->topic == topic, "message %u of another topic", b.serial);
    REQUIRE(atomic_load(&m->fate) != ABORTED, "message %u was never published", b.serial);
    uint32_t before = atomic_exchange(&e->holder, me);
    REQUIRE(before == NO_WRITER || mortal(before) || times_out(topic, which),
            "message %u is with %u and with %u", b.serial, before, me);
    bool late = many && times_out(topic, which); /* we may have been asleep since the get */
    REQUIRE(late || atomic_load(&e->finished) + atomic_load(&e->died) == 0,
            "message %u was finished and came again", b.serial);
    check_attempts(h, before, me, late || atomic_load(&e->loose) != 0);
}

/* False: nothing in that time. */
static bool take(pn_consumer *consumer, uint32_t me, enum topic_no topic, int which,
                 int64_t timeout_ns, struct held *h)
{
    int rc;
    do
        rc = pn_consumer_get(consumer, timeout_ns, &h->out);
    while (rc == -EINTR);
    if (rc < 0)
        REQUIRE(false, "get: %d: %s", rc, pn_error_message());
    if (rc == 1)
        was_returned(h, me, which, topic);
    return rc == 1;
}

static void about_to_answer(struct held *h, uint32_t me, int how)
{
    struct intent *i = &j->intent[me];
    i->which = (uint32_t) h->which;
    i->how = how;
    atomic_store(&i->serial, h->serial + 1);
    atomic_store(&h->entry->holder, NO_WRITER);
}

static void was_answered(struct held *h, uint32_t me, int how)
{
    REQUIRE(atomic_load(&h->entry->finished) + atomic_load(&h->entry->died) == 0,
            "message %u is finished twice", h->serial);
    atomic_fetch_add(how == PN_ANSWER_DEAD_LETTER ? &h->entry->died : &h->entry->finished, 1);
    atomic_store(&j->intent[me].serial, 0);
}

static int answer(pn_conn *conn, struct held *h, int how, int64_t delay_ns)
{
    return pn_message_answer(conn, NULL, h->out.delivery, h->out.tag, h->out.id, how, delay_ns,
                             "because", 7);
}

/* Too late, perhaps: then another process has it, or will. */
static void finish_perhaps(pn_conn *conn, struct held *h, uint32_t me)
{
    about_to_answer(h, me, PN_ANSWER_FINISH);
    int rc = answer(conn, h, PN_ANSWER_FINISH, 0);
    REQUIRE(rc >= 0 || rc == -PN_ENOTINFLIGHT || rc == -PN_ENOTOWNER, "finish: %d: %s", rc,
            pn_error_message());
    if (rc >= 0)
        was_answered(h, me, PN_ANSWER_FINISH);
    else
        atomic_store(&j->intent[me].serial, 0);
}

static void finish(pn_conn *conn, struct held *h, uint32_t me)
{
    about_to_answer(h, me, PN_ANSWER_FINISH);
    CHECK_OK(answer(conn, h, PN_ANSWER_FINISH, 0));
    was_answered(h, me, PN_ANSWER_FINISH);
}

/* ---- the judge ------------------------------------------------------------------------------- */

static bool seen(uint32_t serial, int which)
{
    return atomic_load(&j->m[serial].in[which].claims) != 0;
}

/* How many died in answering it so?  how: 0: any. */
static uint32_t died_answering(uint32_t serial, int which, int how)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < MAX_WRITERS; i++)
        n += atomic_load(&j->intent[i].serial) == serial + 1 && mortal(i) &&
             j->intent[i].which == (uint32_t) which && (how == 0 || j->intent[i].how == how);
    return n;
}

static void check_entry(uint32_t serial, int which)
{
    const struct message_log *m = &j->m[serial];
    const struct entry *e = &m->in[which];
    uint32_t dead = atomic_load(&e->dead);
    uint32_t ended = atomic_load(&e->finished) + atomic_load(&e->died);
    bool doubt = ended == 0 && died_answering(serial, which, 0) != 0;
    REQUIRE(ended == 1 || doubt || atomic_load(&m->optional) != 0 || !seen(serial, which),
            "message %u was returned, and is lost (channel %d)", serial, which);
    REQUIRE(dead == atomic_load(&e->died) ||
                (doubt && dead == 1 && died_answering(serial, which, PN_ANSWER_DEAD_LETTER) != 0),
            "message %u is %u dead letters, %u answers", serial, dead, atomic_load(&e->died));
    REQUIRE(!doubt || dead == 1 || died_answering(serial, which, PN_ANSWER_FINISH) != 0 ||
                atomic_load(&m->optional) != 0, /* it went back, and expired */
            "message %u was to be a dead letter, and is lost", serial);
}

static void check_message(uint32_t serial)
{
    const struct message_log *m = &j->m[serial];
    uint32_t fate = atomic_load(&m->fate);
    bool optional = atomic_load(&m->optional) != 0;
    for (int which = 0; which < 2; which++) {
        bool here = seen(serial, which);
        REQUIRE(fate != PUBLISHED || here || optional, "message %u was published, and is lost",
                serial);
        REQUIRE(atomic_load(&m->cancelled) == 0 || !here, "message %u was cancelled, and arrived",
                serial);
        REQUIRE(fate != ABORTED || !here, "message %u was not published, and arrived", serial);
        REQUIRE(fate != ABOUT || mortal(m->writer), "message %u of a living one is in doubt",
                serial);
        REQUIRE(fate != ABOUT || optional || here == seen(m->group, 0),
                "message %u, of %u and following, is in doubt; in channel %d it is%s", serial,
                m->group, which, here ? "" : " not");
        check_entry(serial, which);
    }
}

static void check_transaction(uint32_t t)
{
    const struct txn_log *log = &j->txn[t];
    uint32_t fate = atomic_load(&log->fate);
    bool happened = fate == PUBLISHED || (fate == ABOUT && seen(log->first, 0));
    REQUIRE(log->heard == happened, "transaction %u: %u notifications, its messages are%s there", t,
            log->heard, happened ? "" : " not");
    if (log->answered == 0 || fate != ABOUT ||
        atomic_load(&j->m[log->answered - 1].optional) != 0 || /* back, it may have expired */
        died_answering(log->answered - 1, 0, 0) > 1) /* back, it was perhaps another's answer */
        return;
    const struct entry *e = &j->m[log->answered - 1].in[0];
    bool answered = atomic_load(&e->finished) + atomic_load(&e->died) == 0;
    REQUIRE(answered == happened, "transaction %u: its messages are%s there, its answer is%s", t,
            happened ? "" : " not", answered ? "" : " not");
}

static void check_journal(void)
{
    for (uint32_t i = 0; i < atomic_load(&j->next); i++)
        check_message(i);
    for (uint32_t t = 1; t <= atomic_load(&j->next_txn); t++)
        check_transaction(t);
}

static void check_segment(const char *when)
{
    char problems[4096];
    int n = pn_check(engine, problems, sizeof problems);
    if (n < 0)
        REQUIRE(false, "%s: pn_check: %d: %s", when, n, pn_error_message());
    REQUIRE(n == 0, "%s: pn_check finds %d problems:\n%s", when, n, problems);
}

static uint64_t left_in(pn_ref channel)
{
    pn_topic_channel_stats stat;
    CHECK_OK(pn_topic_channel_stat(mine, channel, &stat));
    return stat.depth + stat.in_flight + stat.deferred;
}

/* What mortals left: we finish it. */
static void finish_what_is_left(enum topic_no no, pn_ref topic, const char *name, int which)
{
    struct held h;
    int64_t began = test_now_ns();
    pn_ref channel = channel_named(mine, topic, name);
    CHECK_OK(pn_topic_channel_pause(mine, channel, 0));
    pn_consumer *consumer = consumer_of(mine, channel, 4, 0);
    while (left_in(channel) != 0) {
        REQUIRE(test_now_ns() - began < PROGRESS_MS * INT64_C(1000000), "%llu messages stay in %s",
                (unsigned long long) left_in(channel), name);
        if (take(consumer, PARENT, no, which, 50 * MS, &h))
            finish(mine, &h, PARENT);
    }
    CHECK_OK(pn_consumer_close(consumer));
}

static void read_dead_letters(void)
{
    pn_message_out out;
    struct body b;
    pn_ref topic = topic_named(mine, "dead");
    const pn_consumer_options o = {.max_in_flight = 4};
    pn_consumer *consumer = consumer_with(mine, channel_named(mine, topic, "d"), &o);
    while (pn_consumer_get(consumer, 0, &out) == 1) {
        CHECK(out.body_len >= sizeof b);
        memcpy(&b, out.body, sizeof b);
        REQUIRE(b.magic == MAGIC && b.serial < atomic_load(&j->next), "a damaged dead letter");
        atomic_fetch_add(&j->m[b.serial].in[0].dead, 1);
        CHECK_OK(pn_message_answer(mine, NULL, out.delivery, out.tag, out.id, PN_ANSWER_FINISH, 0,
                                   NULL, 0));
    }
    CHECK_OK(pn_consumer_close(consumer));
}

static void hear_news(void)
{
    pn_batch *batch = pn_batch_new();
    uint32_t t;
    while (pn_poll(mine, batch, 0) > 0)
        for (size_t i = 0; i < batch->n; i++) {
            memcpy(&t, batch->data + batch->offset[i], sizeof t);
            REQUIRE(t < MAX_TXNS, "a damaged notification");
            j->txn[t].heard++;
        }
    pn_batch_free(batch);
}

static void check_nothing_left(pn_ref topic, const char *name)
{
    pn_topic_stats stat;
    pn_consumer_stats rows[4];
    pn_topic_channel_stats channels[4];
    CHECK_OK(pn_topic_stat(mine, topic, &stat));
    REQUIRE(stat.unfinished == 0 && stat.depth == 0 && stat.deferred == 0,
            "%llu messages are left in topic %s", (unsigned long long) stat.unfinished, name);
    int n = pn_topic_channel_list(mine, topic, channels, 4);
    for (int i = 0; i < n; i++)
        REQUIRE(pn_consumer_list(mine, channels[i].ref, rows, 4) == 0,
                "a dead consumer is left in channel %s of %s", channels[i].name, name);
    CHECK_OK(pn_topic_delete(mine, topic));
}

#endif
