/*
 * topic_day.h - what a mortal does in the life of topics: each call once, or more often, and noted
 * in the journal (topic_journal.h).  Included once.
 */
#ifndef PN_TOPIC_DAY_H
#define PN_TOPIC_DAY_H

/* ---- a mortal -------------------------------------------------------------------------- */

struct mortal {
    uint32_t me;
    pn_conn *conn;
    pn_ref own, x, y, work;
    pn_consumer *cx, *cy;
    int sleeps_on; /* a or b */
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
    v->sleeps_on = 0;
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
    if (!many)
        too_much(v);
    publish(v->conn, v->me, WORK, v->work, &(struct manner) {.size = 40});
    publish(v->conn, v->me, OWN, v->own, &(struct manner) {.size = 200});
    publish(v->conn, v->me, OWN, v->own, &(struct manner) {.size = BIG});
    publish(v->conn, v->me, OWN, v->own, &(struct manner) {.size = 700});
    publish_many(v->conn, v->me, WORK, v->work, 3);
    publish_many(v->conn, v->me, OWN, v->own, 3);
}

static void timing(struct mortal *v)
{
    struct held h, again;
    publish(v->conn, v->me, OWN, v->own, &(struct manner) {.size = 40, .delay_ns = MS});
    publish(v->conn, v->me, OWN, v->own,
            &(struct manner) {.size = 40, .ttl_ns = MS, .optional = true});
    publish_and_cancel(v->conn, v->me, v->own, 200 * MS);
    while (take(v->cy, v->me, OWN, 1, 0, &h)) { /* it times out while it is in hand, perhaps */
        bool same = false;
        usleep(100); /* what is ahead gets a new deadline: more than a 64th of it is over */
        if (h.out.attempts < 2 && take(v->cy, v->me, OWN, 1, 3 * MS, &again)) {
            same = again.serial == h.serial;
            finish_perhaps(v->conn, &again, v->me);
        }
        if (!same)
            finish_perhaps(v->conn, &h, v->me);
    }
}

/* Each answer once, of what stands in x. */
static void answering(struct mortal *v)
{
    static const int how[] = {PN_ANSWER_REQUEUE,     PN_ANSWER_TOUCH,   PN_ANSWER_REQUEUE,
                              PN_ANSWER_DEAD_LETTER, PN_ANSWER_RELEASE, PN_ANSWER_FINISH};
    struct held h;
    for (int i = 0; i < 6; i++) {
        if (!take(v->cx, v->me, OWN, 0, 20 * MS, &h))
            return;
        if (how[i] == PN_ANSWER_RELEASE)
            atomic_store(&h.entry->loose, 1);
        if (how[i] == PN_ANSWER_DEAD_LETTER)
            about_to_answer(&h, v->me, how[i]);
        else if (how[i] == PN_ANSWER_REQUEUE || how[i] == PN_ANSWER_RELEASE)
            atomic_store(&h.entry->holder, NO_WRITER);
        if (how[i] != PN_ANSWER_FINISH)
            CHECK_OK(answer(v->conn, &h, how[i], i == 2 ? MS : 0));
        if (how[i] == PN_ANSWER_DEAD_LETTER)
            was_answered(&h, v->me, how[i]);
        if (how[i] == PN_ANSWER_FINISH || how[i] == PN_ANSWER_TOUCH)
            finish(v->conn, &h, v->me);
    }
}

/* ---- transactions ---------------------------------------------------------------------------- */

enum end_of_txn { COMMIT, ABORT, PREPARE_COMMIT, PREPARE_ABORT };

static int end_txn(pn_txn *txn, enum end_of_txn end)
{
    int rc = end >= PREPARE_COMMIT ? pn_txn_prepare(txn) : 0;
    if (rc >= 0 && (end == COMMIT || end == PREPARE_COMMIT)) {
        rc = pn_txn_commit(txn);
        return rc < 0 ? rc : 0; /* there may be a notice: the queue is half full */
    }
    pn_txn_abort(txn);
    return rc < 0 ? rc : 1;
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
    log->answered = got ? h.serial + 1 : 0;
    CHECK_OK(send_many(v->conn, txn, v->work, first, 2));
    CHECK_OK(send_one(v->conn, txn, v->own, first + 2, &(struct manner) {.size = 300}, &id));
    CHECK_OK(send_one(v->conn, txn, v->own, first + 3,
                      &(struct manner) {.size = 40, .delay_ns = MS}, &id));
    const struct manner later = {.size = 40, .delay_ns = 20 * MS, .optional = true};
    uint64_t deferred = publish(v->conn, v->me, OWN, v->own, &later);
    CHECK_OK(pn_topic_cancel(v->conn, txn, v->own, deferred));
    atomic_store(&log->fate, ABOUT);
    if (got) {
        about_to_answer(&h, v->me, PN_ANSWER_FINISH);
        CHECK_OK(pn_message_answer(v->conn, txn, h.out.delivery, h.out.tag, h.out.id,
                                   PN_ANSWER_FINISH, 0, NULL, 0));
    }
    CHECK_OK(pn_txn_notify(txn, "news", 4, &t, sizeof t));
    int rc = end_txn(txn, end);
    if (rc < 0)
        REQUIRE(false, "transaction %u: %d: %s", t, rc, pn_error_message());
    if (got && rc == 1) { /* in flight with us again, as if nothing had been */
        atomic_store(&j->intent[v->me].serial, 0);
        atomic_store(&h.entry->holder, v->me);
    }
    for (uint32_t i = first; i < first + 4; i++)
        atomic_store(&j->m[i].fate, rc == 1 ? ABORTED : PUBLISHED);
    atomic_store(&log->fate, rc == 1 ? ABORTED : PUBLISHED);
    if (got && rc == 0)
        was_answered(&h, v->me, PN_ANSWER_FINISH);
    else if (got)
        finish(v->conn, &h, v->me);
}

/* One that is refused, since the message is finished meanwhile: nothing of it happens. */
static void refused_transaction(struct mortal *v)
{
    struct held h;
    pn_txn *txn;
    uint64_t id;
    if (!take(v->cx, v->me, OWN, 0, 0, &h))
        return;
    uint32_t serial = about_to_publish(v->me, WORK, 1);
    CHECK_OK(pn_txn_begin(v->conn, &txn));
    CHECK_OK(send_one(v->conn, txn, v->work, serial, &(struct manner) {.size = 40}, &id));
    CHECK_OK(pn_message_answer(v->conn, txn, h.out.delivery, h.out.tag, h.out.id, PN_ANSWER_FINISH,
                               0, NULL, 0));
    finish(v->conn, &h, v->me);
    /* The delivery is free, and perhaps that of the same message to the other channel by now: its
     * tag tells them apart, since each claim of a delivery has the next one. */
    int rc = pn_txn_commit(txn);
    REQUIRE(rc == -PN_ENOTINFLIGHT || rc == -PN_ENOTOWNER, "commit: %d: %s", rc,
            pn_error_message());
    atomic_store(&j->m[serial].fate, ABORTED);
}

/* ---- tables, and topics of its own ----------------------------------------------------------- */

static void pausing(struct mortal *v)
{
    struct held h;
    CHECK_OK(pn_topic_pause(v->conn, v->own, 1));
    publish(v->conn, v->me, OWN, v->own, &(struct manner) {.size = 40});
    publish(v->conn, v->me, OWN, v->own, &(struct manner) {.size = 40, .delay_ns = 2 * MS});
    publish_many(v->conn, v->me, OWN, v->own, 2);
    CHECK_OK(pn_topic_pause(v->conn, v->own, 0));
    if (take(v->cx, v->me, OWN, 0, 0, &h)) /* and has more, which it is not returned */
        finish(v->conn, &h, v->me);
    CHECK_OK(pn_topic_channel_pause(v->conn, v->x, 1));
    if (take(v->cx, v->me, OWN, 0, 0, &h)) { /* another one has ended the pause */
        REQUIRE(many, "a paused channel returned message %u", h.serial);
        finish(v->conn, &h, v->me);
    }
    CHECK_OK(pn_topic_channel_pause(v->conn, v->x, 0));
    if (take(v->cx, v->me, OWN, 0, 0, &h))
        finish(v->conn, &h, v->me);
    CHECK_OK(pn_consumer_pause(v->cx, 0));
    CHECK_OK(pn_consumer_pause(v->cx, 1));
    CHECK_OK(pn_consumer_pause(v->cx, -1));
}

static void throw_away(pn_conn *conn, pn_ref topic, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t id;
        pn_message_in in = {
            .body = "thrown away", .body_len = 11, .ttl_ns = i % 2 == 0 ? 1000 * (int64_t) MS : 0};
        CHECK_OK(pn_topic_publish(conn, NULL, topic, &in, &id));
    }
}

/* Settings of a topic and a channel that are there, more than once. */
static void configuring(struct mortal *v, pn_ref topic, pn_ref channel)
{
    for (int64_t i = 1; i <= 2; i++) {
        const pn_topic_options limits = {.given = PN_TOPIC_DEFAULT_TTL,
                                         .default_ttl_ns = i * 1000 * MS};
        const pn_channel_options defaults = {.given =
                                                 PN_CHANNEL_MAX_ATTEMPTS | PN_CHANNEL_MSG_TIMEOUT,
                                             .max_attempts = i,
                                             .msg_timeout_ns = i * 1000 * MS};
        CHECK_OK(pn_topic_configure(v->conn, topic, &limits));
        CHECK_OK(pn_topic_channel_configure(v->conn, channel, &defaults));
    }
}

/* What is in them is of no process, and only pn_check() says whether it is in order. */
static void deleting(struct mortal *v, int round)
{
    char name[24];
    pn_ref topic, channel, ephemeral;
    pn_message_out out;
    pn_topic_options o = {.given = PN_TOPIC_OVERFLOW | PN_TOPIC_MAX_DEPTH,
                          .overflow = round % 4 < 2 || !on_disk ? PN_OVERFLOW_DROP_OLDEST
                                                                : PN_OVERFLOW_DISK,
                          .max_depth = 4};
    int len = snprintf(name, sizeof name, "temp%u.%d", v->me, round);
    CHECK_OK(pn_topic_open(v->conn, name, (size_t) len, &o, &topic));
    throw_away(v->conn, topic, 6);
    CHECK_OK(pn_topic_empty(v->conn, topic));
    throw_away(v->conn, topic, 2);
    channel = channel_named(v->conn, topic, "c");
    ephemeral = channel_named(v->conn, topic, "e#ephemeral");
    configuring(v, topic, channel);
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

/* Asleep, until one of several messages comes to us. */
static void sleeping(struct mortal *v)
{
    struct held h;
    pn_ref channel = channel_named(v->conn, v->work, v->sleeps_on == 0 ? "a" : "b");
    pn_consumer *consumer = consumer_of(v->conn, channel, 1, 0);
    for (int i = 0; i < 4; i++) {
        publish(v->conn, v->me, WORK, v->work, &(struct manner) {.size = 40});
        if (take(consumer, v->me, WORK, v->sleeps_on, 2 * MS, &h))
            finish(v->conn, &h, v->me);
    }
    CHECK_OK(pn_consumer_close(consumer));
}

static void close_mortal(struct mortal *v)
{
    struct held h;
    if (take(v->cx, v->me, OWN, 0, 0, &h)) /* in flight when it is closed */
        atomic_store(&h.entry->holder, NO_WRITER);
    CHECK_OK(pn_consumer_close(v->cx));
    CHECK_OK(pn_consumer_close(v->cy));
    pn_conn_close(v->conn);
}

#endif
