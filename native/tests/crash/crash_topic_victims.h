/*
 * crash_topic_victims.h - the processes of test_crash_topic.c: consumers, and victims.
 * Included once.
 */
#ifndef PN_CRASH_TOPIC_VICTIMS_H
#define PN_CRASH_TOPIC_VICTIMS_H

typedef void scenario(void);

static struct crash_case {
    const char *label;
    uint32_t nth;
    scenario *victim;
    int action;
    uint32_t recoverers;
} now;

static pn_ref work, work_a, work_b;
static int heard_from[2][2]; /* pipes: from the consumers of a, of b */
static pid_t consumers[3], victim_pid;

static const char *const action_names[] = {"", "killed", "stopped", "exited"};

static const char *what_runs(void)
{
    static char text[100];
    snprintf(text, sizeof text, "%s, hit %u, %s", now.label, now.nth, action_names[now.action]);
    return text;
}

static bool going_on(void)
{
    return atomic_load(&j->stop) == 0;
}

static void survivor(void *arg)
{
    uint32_t me = (uint32_t) (uintptr_t) arg, quits = 0;
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
        if (left < 0 || (poll(&p, 1, (int) left + 1) < 1 && errno != EINTR))
            return false;
        ssize_t k = p.revents != 0 ? read(p.fd, c, (size_t) n) : 0;
        n -= (int) k;
    }
    return true;
}

static void a_day(uint32_t me, int round)
{
    struct mortal v;
    open_mortal(&v, me);
    publishing(&v);
    answering(&v);
    timing(&v);
    for (int end = COMMIT; end <= PREPARE_ABORT; end++)
        in_transaction(&v, (enum end_of_txn) end);
    refused_transaction(&v);
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
    CHECK_OK(pn_crash_arm("nothing", 1, PN_CRASH_KILL));
    open_mortal(&v, HELPER + (uint32_t) (uintptr_t) arg);
    publish_many(v.conn, v.me, OWN, v.own, 4);
    CHECK(take(v.cx, v.me, OWN, 0, 20 * MS, &h));
    CHECK(take(v.cx, v.me, OWN, 0, 20 * MS, &h));
    CHECK_OK(pn_txn_begin(v.conn, &txn));
    uint32_t serial = about_to_publish(v.me, WORK, 1);
    CHECK_OK(send_one(v.conn, txn, v.work, serial, &(struct manner) {.size = 40}, &id));
    CHECK_OK(pn_message_answer(v.conn, txn, h.out.delivery, h.out.tag, h.out.id, PN_ANSWER_FINISH,
                               0, NULL, 0));
    CHECK_OK(pn_txn_prepare(txn));
    atomic_store(&j->m[serial].fate, ABORTED);
    raise(SIGKILL);
}

static void reaping(void)
{
    pn_stat stat;
    pn_topic_stats own;
    pn_conn *conn = connect_with(0);
    pn_ref topic = topic_named(conn, "work");
    for (int round = 0; round < 8 && going_on(); round++) {
        atomic_fetch_add(&j->deaths, 1);
        CHECK_KILLED(spawn(dead_consumer, (void *) (uintptr_t) round), SIGKILL);
        if (round % 2 == 0) /* or that topic's statistics alone */
            CHECK_OK(pn_topic_stat(conn, topic_named(conn, "own"), &own));
        CHECK_OK(pn_engine_stat(engine, &stat, NULL, 0));
        publish(conn, VICTIM, WORK, topic, &(struct manner) {.size = 40});
    }
    pn_conn_close(conn);
}

static const char *const holding[] = {"publish:delivery-state",
                                      "publish:after-live",
                                      "publish:one-of-many",
                                      "claim:in-flight",
                                      "answer:back",
                                      "answer:redo-valid",
                                      "topic:pump",
                                      "topic:emptied",
                                      "commit:after-head",
                                      "arena:taken",
                                      "topic:returned",
                                      "prepare:held",
                                      "topic:channel-deleted",
                                      "answer:free",
                                      "commit:after-head",
                                      "publish:live"};
enum { HOLDING = sizeof holding / sizeof holding[0] };

static void check_label(const char *label)
{
    int i = 0;
    while (i < pn_crash_label_count() && strcmp(pn_crash_label(i), label) != 0)
        i++;
    REQUIRE(i < pn_crash_label_count(), "there is no crash label %s", label);
}

static void die_holding_the_lock(void *arg)
{
    uint32_t round = (uint32_t) (uintptr_t) arg;
    CHECK_OK(pn_crash_arm(holding[round % HOLDING], 1 + round / HOLDING, PN_CRASH_KILL));
    for (int i = 0; i < 3; i++)
        a_day(HELPER + round, 1000 * (int) round + i);
}

static void die_in_recovery(void *arg)
{
    static const char *const labels[] = {"recover:begin",       "topic-recover:begin",
                                         "recover:applied",     "topic-recover:deliveries",
                                         "topic-recover:lists", "topic-recover:messages"};
    uint32_t i = (uint32_t) (uintptr_t) arg;
    pn_stat stat;
    CHECK_OK(pn_crash_arm(i % 2 == 0 ? now.label : labels[i / 2 % 6], 1, PN_CRASH_KILL));
    CHECK_OK(pn_engine_stat(engine, &stat, NULL, 0));
}

static void recovering(void)
{
    for (int i = 0; i < HOLDING; i++)
        check_label(holding[i]);
    for (uint32_t round = 0; round < 4 * HOLDING && going_on(); round++) {
        pn_conn *conn = connect_with(0);
        pn_ref topic = topic_named(conn, "work");
        atomic_fetch_add(&j->deaths, 1);
        reap(spawn(die_holding_the_lock, (void *) (uintptr_t) round));
        for (uint32_t i = 0; i < now.recoverers; i++)
            reap(spawn(die_in_recovery, (void *) (uintptr_t) (round + i)));
        publish(conn, VICTIM, WORK, topic, &(struct manner) {.size = 40});
        pn_conn_close(conn);
    }
}

#endif
