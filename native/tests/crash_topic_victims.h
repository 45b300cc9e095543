/*
 * crash_topic_victims.h - the processes of test_crash_topic.c: who consumes, who is killed, and the
 * journal: what was about to be published, returned, answered, and what was.  Included once.
 *
 * Topic "work" has the channels a and b, which survivors consume; "own" has x and y, which only
 * mortals consume, and the judge at the end.  A message is named by its serial number.
 */
#ifndef PN_CRASH_TOPIC_VICTIMS_H
#define PN_CRASH_TOPIC_VICTIMS_H

enum writer { NOBODY = 0, VICTIM = 1, HELPER = 2, PARENT = 3, CONSUMER = 4 /* and above */ };
static bool mortal(uint32_t who)
{
    return who == VICTIM || who == HELPER;
}

/* ---- the journal ----------------------------------------------------------------------------- */

enum fate { UNUSED, ABOUT, PUBLISHED, ABORTED };
enum answered { OPEN, ABOUT_FINISH, FINISHED, ABOUT_DEAD, DEAD };

/* A message in one of its topic's two channels. */
struct entry {
    _Atomic(uint32_t) holder, answered, answerer;
    _Atomic(uint32_t) claims; /* how often it was returned by a get */
    _Atomic(uint32_t) dead;   /* copies in the dead-letter topic */
    _Atomic(uint32_t) loose;  /* its attempts are not certain */
};

struct message_log {
    _Atomic(uint32_t) fate;
    uint32_t writer, topic, group; /* group: the first of those published together */
    _Atomic(uint32_t) optional; /* it may be gone without having been finished */
    struct entry in[2];
};

/* A transaction: publishes `first` .. `first` + `n` - 1, answers `answered` in x. */
struct txn_log {
    _Atomic(uint32_t) fate;
    uint32_t first, n, answered, heard;
};

enum topic_no { WORK, OWN, DEAD_LETTERS };
struct body {
    uint32_t magic, serial, kind, pad;
};
enum kind { PLAIN = 1, PING, PING_B, QUIT };
enum { MAGIC = 0x70696373 };

static struct shared {
    _Atomic(uint32_t) next, next_txn, stop, deaths, doubts;
    struct message_log m[MAX_MESSAGES];
    struct txn_log txn[MAX_TXNS];
} * j;

/* ---- a case ---------------------------------------------------------------------------------- */

typedef void scenario(void);

static struct crash_case {
    const char *label;
    uint32_t nth;
    scenario *victim;
    int action;
    uint32_t recoverers;
} now;

static const char *segment;
static pn_engine *engine;
static pn_conn *mine;
static pn_ref work, work_a, work_b;
static int heard_from[2][2]; /* pipes: from the consumers of a, of b */
static pid_t consumers[3], victim_pid;

static const char *const action_names[] = {"", "killed", "stopped", "exited"};

#define REQUIRE(cond, ...)                                                                         \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "%s, hit %u, %s: ", now.label, now.nth, action_names[now.action]);     \
            FAIL(__VA_ARGS__);                                                                     \
        }                                                                                          \
    } while (0)

static bool going_on(void)
{
    return atomic_load(&j->stop) == 0;
}

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

static pn_consumer *consumer_of(pn_conn *conn, pn_ref channel, uint32_t max_in_flight,
                                int64_t msg_timeout_ns)
{
    pn_consumer *consumer;
    pn_consumer_options o = {.max_in_flight = max_in_flight,
                             .msg_timeout_ns = msg_timeout_ns,
                             .dead_letter = "dead",
                             .dead_letter_len = 4};
    CHECK_OK(pn_consumer_open(conn, channel, &o, &consumer));
    return consumer;
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
    static char body[BIG];
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

static int send_many(pn_conn *conn, pn_txn *txn, pn_ref topic, uint32_t first, uint32_t n)
{
    static char bodies[4 * 100];
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
    struct entry *entry;
};

/* What a get has returned: it was published, nobody else has it, and it was not finished. */
static void was_returned(struct held *h, uint32_t me, int which, enum topic_no topic)
{
    struct body b;
    CHECK(h->out.body_len >= sizeof b);
    memcpy(&b, h->out.body, sizeof b);
    REQUIRE(b.magic == MAGIC && b.serial < atomic_load(&j->next), "a damaged message");
    h->serial = b.serial;
    h->kind = b.kind;
    struct message_log *m = &j->m[b.serial];
    struct entry *e = h->entry = &m->in[which];
    REQUIRE(m->topic == topic, "message %u of another topic", b.serial);
    REQUIRE(atomic_load(&m->fate) != ABORTED, "message %u was never published", b.serial);
    uint32_t before = atomic_exchange(&e->holder, me);
    REQUIRE(before == NOBODY || mortal(before), "message %u is with %u and with %u", b.serial,
            before, me);
    uint32_t answered = atomic_load(&e->answered);
    REQUIRE(answered == OPEN || (mortal(atomic_load(&e->answerer)) &&
                                 (answered == ABOUT_FINISH || answered == ABOUT_DEAD)),
            "message %u was finished and came again", b.serial);
    atomic_store(&e->answered, OPEN);
    uint32_t attempts = atomic_fetch_add(&e->claims, 1) + 1;
    if (h->out.attempts == attempts + 1 && before != me && atomic_load(&e->loose) == 0) {
        atomic_fetch_add(&e->claims, 1); /* whoever died in the get: returned, and not noted */
        REQUIRE(atomic_fetch_add(&j->doubts, 1) < atomic_load(&j->deaths) + 1,
                "message %u: attempt %u is the %u.", b.serial, h->out.attempts, attempts);
    } else {
        REQUIRE(h->out.attempts == attempts || atomic_load(&e->loose) != 0,
                "message %u: attempt %u is the %u.", b.serial, h->out.attempts, attempts);
    }
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
        FAIL("%s, hit %u: get: %d: %s", now.label, now.nth, rc, pn_error_message());
    if (rc == 1)
        was_returned(h, me, which, topic);
    return rc == 1;
}

static void about_to_answer(struct held *h, uint32_t me, uint32_t how)
{
    atomic_store(&h->entry->answerer, me);
    atomic_store(&h->entry->answered, how);
    atomic_store(&h->entry->holder, NOBODY);
}

static int answer(pn_conn *conn, struct held *h, int how, int64_t delay_ns)
{
    return pn_message_answer(conn, NULL, h->out.delivery, h->out.tag, h->out.id, how, delay_ns,
                             "because", 7);
}

static void finish(pn_conn *conn, struct held *h, uint32_t me)
{
    about_to_answer(h, me, ABOUT_FINISH);
    CHECK_OK(answer(conn, h, PN_ANSWER_FINISH, 0));
    atomic_store(&h->entry->answered, FINISHED);
}

static void survivor(void *arg)
{
    uint32_t me = (uint32_t)(uintptr_t)arg, quits = 0;
    int which = me == CONSUMER + 2;
    pn_conn *conn = connect_with(0);
    pn_consumer *consumer = consumer_of(conn, which == 0 ? work_a : work_b, 1 + me % 2, 0);
    struct held h;
    CHECK_EQ(write(heard_from[which][1], "r", 1), 1);
    while (quits < (which == 0 ? 1U : 2U)) { /* each of the two goes to one of a, and to b */
        REQUIRE(take(consumer, me, WORK, which, -1, &h), "get(-1) returned nothing");
        quits += h.kind == QUIT;
        finish(conn, &h, me);
        if (h.kind == PING || (h.kind == PING_B && which == 1))
            CHECK_EQ(write(heard_from[which][1], "p", 1), 1);
    }
    CHECK_OK(pn_consumer_close(consumer));
    pn_conn_close(conn);
    pn_engine_close(engine);
}

/* n bytes; false if they do not come in time. */
static bool hear(int which, int n, int ms)
{
    int64_t until = test_now_ns() + ms * INT64_C(1000000);
    struct pollfd p = {.fd = heard_from[which][0], .events = POLLIN};
    char c[8];
    while (n > 0) {
        int64_t left = (until - test_now_ns()) / 1000000;
        if (left < 0 || (poll(&p, 1, (int)left + 1) < 1 && errno != EINTR))
            return false;
        ssize_t k = p.revents != 0 ? read(p.fd, c, (size_t)n) : 0;
        n -= (int)k;
    }
    return true;
}

/* ---- a mortal's day -------------------------------------------------------------------------- */

enum { MS = 1000000 };

struct mortal {
    uint32_t me;
    pn_conn *conn;
    pn_ref own, x, y, work;
    pn_consumer *cx, *cy;
};

static void open_mortal(struct mortal *v, uint32_t me)
{
    v->me = me;
    v->conn = connect_with(0);
    v->own = topic_named(v->conn, "own");
    v->x = channel_named(v->conn, v->own, "x");
    v->y = channel_named(v->conn, v->own, "y");
    v->work = topic_named(v->conn, "work");
    v->cx = consumer_of(v->conn, v->x, 3, 0);
    v->cy = consumer_of(v->conn, v->y, 2, 1 * MS);
}

/* More than the room for all topics: nothing of it is published. */
static void too_much(struct mortal *v)
{
    static char bodies[5 << 20];
    const uint32_t mib = 1 << 20, lens[5] = {mib, mib, mib, mib, mib};
    uint64_t id;
    CHECK_EQ(pn_topic_publish_many(v->conn, NULL, v->own, bodies, lens, 5, NULL, &id),
             -PN_ETOPICFULL);
}

static void publishing(struct mortal *v)
{
    too_much(v);
    publish(v->conn, v->me, WORK, v->work, &(struct manner){.size = 40});
    publish(v->conn, v->me, OWN, v->own, &(struct manner){.size = 200});
    publish(v->conn, v->me, OWN, v->own, &(struct manner){.size = BIG});
    publish(v->conn, v->me, OWN, v->own, &(struct manner){.size = 700});
    publish_many(v->conn, v->me, WORK, v->work, 3);
    publish_many(v->conn, v->me, OWN, v->own, 3);
}

/* Too late, perhaps: then it is open still. */
static void finish_perhaps(struct mortal *v, struct held *h)
{
    about_to_answer(h, v->me, ABOUT_FINISH);
    int rc = answer(v->conn, h, PN_ANSWER_FINISH, 0);
    REQUIRE(rc == 0 || rc == -PN_ENOTINFLIGHT || rc == -PN_ENOTOWNER, "finish: %d: %s", rc,
            pn_error_message());
    atomic_store(&h->entry->answered, rc == 0 ? FINISHED : OPEN);
}

static void timing(struct mortal *v)
{
    struct held h, again;
    publish(v->conn, v->me, OWN, v->own, &(struct manner){.size = 40, .delay_ns = MS});
    publish(v->conn, v->me, OWN, v->own,
            &(struct manner){.size = 40, .ttl_ns = MS, .optional = true});
    uint64_t id = publish(v->conn, v->me, OWN, v->own,
                          &(struct manner){.size = 40, .delay_ns = 200 * MS, .optional = true});
    CHECK_OK(pn_topic_cancel(v->conn, NULL, v->own, id));
    while (take(v->cy, v->me, OWN, 1, 0, &h)) { /* it times out while it is in hand, perhaps */
        bool same = false;
        if (h.out.attempts < 2 && take(v->cy, v->me, OWN, 1, 3 * MS, &again)) {
            same = again.serial == h.serial;
            finish_perhaps(v, &again);
        }
        if (!same)
            finish_perhaps(v, &h);
    }
}

/* Each answer once, of what stands in x. */
static void answering(struct mortal *v)
{
    static const int how[] = {PN_ANSWER_REQUEUE, PN_ANSWER_TOUCH, PN_ANSWER_REQUEUE,
                              PN_ANSWER_DEAD_LETTER, PN_ANSWER_RELEASE, PN_ANSWER_FINISH};
    struct held h;
    for (int i = 0; i < 6; i++) {
        if (!take(v->cx, v->me, OWN, 0, 20 * MS, &h))
            return;
        if (how[i] == PN_ANSWER_RELEASE)
            atomic_store(&h.entry->loose, 1);
        if (how[i] == PN_ANSWER_DEAD_LETTER)
            about_to_answer(&h, v->me, ABOUT_DEAD);
        else if (how[i] != PN_ANSWER_FINISH)
            atomic_store(&h.entry->holder, v->me);
        if (how[i] != PN_ANSWER_FINISH)
            CHECK_OK(answer(v->conn, &h, how[i], i == 2 ? MS : 0));
        if (how[i] == PN_ANSWER_DEAD_LETTER)
            atomic_store(&h.entry->answered, DEAD);
        if (how[i] == PN_ANSWER_FINISH || how[i] == PN_ANSWER_TOUCH)
            finish(v->conn, &h, v->me);
    }
}

/* ---- transactions ---------------------------------------------------------------------------- */

enum end_of_txn { COMMIT, ABORT, PREPARE_COMMIT, PREPARE_ABORT };

static int end_txn(pn_txn *txn, enum end_of_txn end)
{
    int rc = end >= PREPARE_COMMIT ? pn_txn_prepare(txn) : 0;
    if (rc == 0 && (end == COMMIT || end == PREPARE_COMMIT))
        return pn_txn_commit(txn);
    pn_txn_abort(txn);
    return rc != 0 ? rc : 1;
}

/* Two messages to work, two to own, one of x finished, and a notification with its number. */
static void in_transaction(struct mortal *v, enum end_of_txn end)
{
    struct held h;
    pn_txn *txn;
    uint64_t id;
    uint32_t t = atomic_fetch_add(&j->next_txn, 1) + 1;
    CHECK(t < MAX_TXNS);
    struct txn_log *log = &j->txn[t];
    bool got = take(v->cx, v->me, OWN, 0, 0, &h);
    CHECK_OK(pn_txn_begin(v->conn, &txn));
    uint32_t first = about_to_publish(v->me, WORK, 4);
    j->m[first + 2].topic = j->m[first + 3].topic = OWN;
    log->first = first;
    log->n = 4;
    log->answered = got ? h.serial + 1 : 0;
    CHECK_OK(send_many(v->conn, txn, v->work, first, 2));
    CHECK_OK(send_one(v->conn, txn, v->own, first + 2, &(struct manner){.size = 300}, &id));
    CHECK_OK(send_one(v->conn, txn, v->own, first + 3, &(struct manner){.size = 40, .delay_ns = MS},
                      &id));
    atomic_store(&log->fate, ABOUT);
    if (got) {
        about_to_answer(&h, v->me, ABOUT_FINISH);
        CHECK_OK(pn_message_answer(v->conn, txn, h.out.delivery, h.out.tag, h.out.id,
                                   PN_ANSWER_FINISH, 0, NULL, 0));
    }
    CHECK_OK(pn_txn_notify(txn, "news", 4, &t, sizeof t));
    int rc = end_txn(txn, end);
    if (rc < 0)
        FAIL("%s, hit %u: transaction %u: %d: %s", now.label, now.nth, t, rc, pn_error_message());
    if (got && rc == 1) { /* in flight with us again, as if nothing had been */
        atomic_store(&h.entry->answered, OPEN);
        atomic_store(&h.entry->holder, v->me);
    }
    for (uint32_t i = first; i < first + 4; i++)
        atomic_store(&j->m[i].fate, rc == 1 ? ABORTED : PUBLISHED);
    atomic_store(&log->fate, rc == 1 ? ABORTED : PUBLISHED);
    if (got && rc == 0)
        atomic_store(&h.entry->answered, FINISHED);
    else if (got)
        finish(v->conn, &h, v->me);
}

/* ---- tables, and topics of its own ----------------------------------------------------------- */

static void pausing(struct mortal *v)
{
    CHECK_OK(pn_topic_pause(v->conn, v->own, 1));
    publish(v->conn, v->me, OWN, v->own, &(struct manner){.size = 40});
    publish(v->conn, v->me, OWN, v->own, &(struct manner){.size = 40, .delay_ns = 2 * MS});
    publish_many(v->conn, v->me, OWN, v->own, 2);
    CHECK_OK(pn_topic_pause(v->conn, v->own, 0));
    CHECK_OK(pn_topic_channel_pause(v->conn, v->x, 1));
    CHECK_OK(pn_topic_channel_pause(v->conn, v->x, 0));
    CHECK_OK(pn_consumer_pause(v->cx, 1));
    CHECK_OK(pn_consumer_pause(v->cx, -1));
}

static void throw_away(pn_conn *conn, pn_ref topic, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t id;
        pn_message_in in = {.body = "thrown away", .body_len = 11,
                            .ttl_ns = i % 2 == 0 ? 1000 * (int64_t)MS : 0};
        CHECK_OK(pn_topic_publish(conn, NULL, topic, &in, &id));
    }
}

/* What is in them is nobody's, and only pn_check() says whether it is in order. */
static void deleting(struct mortal *v, int round)
{
    char name[24];
    pn_ref topic, channel, ephemeral;
    pn_message_out out;
    pn_topic_options o = {.given = PN_TOPIC_OVERFLOW | PN_TOPIC_MAX_DEPTH,
                          .overflow = PN_OVERFLOW_DROP_OLDEST,
                          .max_depth = 4};
    int len = snprintf(name, sizeof name, "temp%u.%d", v->me, round);
    CHECK_OK(pn_topic_open(v->conn, name, (size_t)len, &o, &topic));
    throw_away(v->conn, topic, 6);
    CHECK_OK(pn_topic_empty(v->conn, topic));
    throw_away(v->conn, topic, 2);
    channel = channel_named(v->conn, topic, "c");
    ephemeral = channel_named(v->conn, topic, "e#ephemeral");
    pn_consumer *consumer = consumer_of(v->conn, channel, 2, 0);
    pn_consumer *passing = consumer_of(v->conn, ephemeral, 2, 0);
    throw_away(v->conn, topic, 5);
    CHECK_EQ(pn_consumer_get(consumer, 0, &out), 1);
    CHECK_OK(pn_topic_channel_empty(v->conn, channel));
    throw_away(v->conn, topic, 2);
    CHECK_EQ(pn_consumer_get(consumer, 0, &out), 1);
    CHECK_OK(pn_message_answer(v->conn, NULL, out.delivery, out.tag, out.id, PN_ANSWER_FINISH, 0,
                               NULL, 0));
    CHECK_EQ(pn_consumer_get(consumer, 0, &out), 1);
    CHECK_OK(pn_consumer_close(passing));
    if (round % 2 == 0)
        CHECK_OK(pn_topic_channel_delete(v->conn, channel));
    CHECK_OK(pn_topic_delete(v->conn, topic));
    CHECK_OK(pn_consumer_close(consumer));
}

/* Asleep on channel a, until one of several messages comes to us. */
static void sleeping(struct mortal *v)
{
    struct held h;
    pn_consumer *consumer = consumer_of(v->conn, work_a, 1, 0);
    for (int i = 0; i < 4; i++) {
        publish(v->conn, v->me, WORK, v->work, &(struct manner){.size = 40});
        if (take(consumer, v->me, WORK, 0, 2 * MS, &h))
            finish(v->conn, &h, v->me);
    }
    CHECK_OK(pn_consumer_close(consumer));
}

static void close_mortal(struct mortal *v)
{
    struct held h;
    take(v->cx, v->me, OWN, 0, 0, &h); /* in flight when it is closed */
    CHECK_OK(pn_consumer_close(v->cx));
    CHECK_OK(pn_consumer_close(v->cy));
    pn_conn_close(v->conn);
}

static void a_day(uint32_t me, int round)
{
    struct mortal v;
    open_mortal(&v, me);
    publishing(&v);
    answering(&v);
    timing(&v);
    for (int end = COMMIT; end <= PREPARE_ABORT && getenv("TXN") != NULL; end++) /* XXX */
        in_transaction(&v, (enum end_of_txn)end);
    pausing(&v);
    deleting(&v, round);
    sleeping(&v);
    close_mortal(&v);
}

static void mixed(void)
{
    for (int round = 0; round < ROUNDS && going_on(); round++)
        a_day(VICTIM, round);
}

/* ---- victims with company -------------------------------------------------------------------- */

/* Dies with messages in flight, answered in a prepared transaction, and published in it. */
static void dead_consumer(void *arg)
{
    struct mortal v;
    struct held h;
    pn_txn *txn;
    uint64_t id;
    (void)arg;
    CHECK_OK(pn_crash_arm("nothing", 1, PN_CRASH_KILL));
    open_mortal(&v, HELPER);
    publish_many(v.conn, v.me, OWN, v.own, 4);
    CHECK(take(v.cx, v.me, OWN, 0, 20 * MS, &h));
    CHECK(take(v.cx, v.me, OWN, 0, 20 * MS, &h));
    if (getenv("TXN") == NULL) /* XXX */
        raise(SIGKILL);
    CHECK_OK(pn_txn_begin(v.conn, &txn));
    uint32_t serial = about_to_publish(v.me, WORK, 1);
    CHECK_OK(send_one(v.conn, txn, v.work, serial, &(struct manner){.size = 40}, &id));
    CHECK_OK(pn_message_answer(v.conn, txn, h.out.delivery, h.out.tag, h.out.id, PN_ANSWER_FINISH,
                               0, NULL, 0));
    CHECK_OK(pn_txn_prepare(txn));
    atomic_store(&j->m[serial].fate, ABORTED);
    raise(SIGKILL);
}

static void reaping(void)
{
    pn_stat stat;
    pn_conn *conn = connect_with(0);
    pn_ref topic = topic_named(conn, "work");
    for (int round = 0; round < 8 && going_on(); round++) {
        atomic_fetch_add(&j->deaths, 1);
        CHECK_KILLED(spawn(dead_consumer, NULL), SIGKILL);
        CHECK_OK(pn_engine_stat(engine, &stat, NULL, 0));
        publish(conn, VICTIM, WORK, topic, &(struct manner){.size = 40});
    }
    pn_conn_close(conn);
}

static const char *const holding[] = {
    "publish:delivery-state", "publish:after-live", "publish:redo-valid", "claim:in-flight",
    "answer:back",            "answer:redo-valid",  "topic:pump",         "topic:emptied",
    "commit:after-head",      "arena:taken",        "topic:returned",     "prepare:held",
    "topic:channel-deleted",  "answer:free",        "commit:applied",     "publish:live"};
enum { HOLDING = sizeof holding / sizeof holding[0] };

static void die_holding_the_lock(void *arg)
{
    uint32_t round = (uint32_t)(uintptr_t)arg;
    CHECK_OK(pn_crash_arm(holding[round % HOLDING], 1 + round / HOLDING, PN_CRASH_KILL));
    for (int i = 0; i < 3; i++)
        a_day(HELPER, 1000 * (int)round + i);
}

static void die_in_recovery(void *arg)
{
    static const char *const labels[] = {"recover:begin", "topic-recover:begin", "recover:applied",
                                         "topic-recover:deliveries", "topic-recover:lists",
                                         "topic-recover:messages"};
    uint32_t i = (uint32_t)(uintptr_t)arg;
    pn_stat stat;
    CHECK_OK(pn_crash_arm(i % 2 == 0 ? now.label : labels[i / 2 % 6], 1, PN_CRASH_KILL));
    CHECK_OK(pn_engine_stat(engine, &stat, NULL, 0));
}

static void recovering(void)
{
    for (uint32_t round = 0; round < 4 * HOLDING && going_on(); round++) {
        pn_conn *conn = connect_with(0);
        pn_ref topic = topic_named(conn, "work");
        atomic_fetch_add(&j->deaths, 1);
        reap(spawn(die_holding_the_lock, (void *)(uintptr_t)round));
        for (uint32_t i = 0; i < now.recoverers; i++)
            reap(spawn(die_in_recovery, (void *)(uintptr_t)(round + i)));
        publish(conn, VICTIM, WORK, topic, &(struct manner){.size = 40});
        pn_conn_close(conn);
    }
}

#endif
