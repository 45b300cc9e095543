/*
 * After a death in the middle of an operation on topics these are closed, and opened again in
 * steps: how much one hold of the lock does, and what goes on meanwhile; deaths in each step; and
 * what the log says if everything ends in between.  test_crash_topic_sleepers.c has which process
 * does the steps.
 *
 * Work is counted, never timed.
 */
#include "crash_topic_repair.h"

#include "recovery/rebuild_topics.h"

/* The process that finds the death goes no further: it could have died right after its release. */
static void find_the_death(void)
{
    struct pn_hold hold;
    struct pn_segment *seg = conn->seg;
    CHECK_OK(pn_lock_acquire(seg, &hold, PN_LOCK_TIMEOUT_NS));
    CHECK(is_closed());
    hold.at_end &= ~(uint32_t) PN_REPAIR;
    pn_lock_release(seg);
}

/* ---- what one hold does ---------------------------------------------------------------------- */

/* Rows of tables and pages of the arena are weighed, so a step may have a little more. */
static const uint32_t MOST = PN_REBUILD_UNITS + 3 * PN_REBUILD_UNITS / 2;

static void bystander(bool with_log)
{
    durable = with_log;
    open_with(MANY);
    CHECK_KILLED(spawn(die_with_the_lock, NULL), SIGKILL);
    find_the_death();
    uint64_t steps = repair()->steps, first = steps;
    int notified = 0;
    for (; is_closed(); notified++) {
        CHECK(notified < 10000);
        CHECK_OK(pn_notify(conn, "x", 1, "y", 1));
        CHECK(repair()->steps <= steps + 1);
        steps = repair()->steps;
    }
    /* two kinds of cells, looked at again and again, and a list that is merged */
    CHECK(steps - first > 8 * (uint64_t) MANY / PN_REBUILD_UNITS);
    CHECK((uint64_t) notified >= steps - first);
    CHECK(repair()->most <= MOST);
    CHECK_ENGINE(engine);
    check_all_there(MANY);
    close_all();
}

static void notified_beside_a_repair(void)
{
    bystander(false);
}

static void notified_beside_a_repair_with_a_log(void)
{
    bystander(true);
}

/* Topics are another process's. */
static void make_and_die(void *arg)
{
    attach();
    publish_all(FEW);
    die_with_the_lock(arg);
}

/* A process that has no file of the log open, and wants nothing of topics. */
static void a_notifier_opens_no_log(void)
{
    pn_options o = test_options();
    durable = true;
    data_dir_empty();
    name = test_segment_name();
    snprintf(o.data_dir, sizeof o.data_dir, "%s", data_dir);
    o.topic_memory = 16 << 20;
    CHECK_OK(pn_open(name, &o, &engine));
    conn = test_connect(engine);
    CHECK_KILLED(spawn(make_and_die, NULL), SIGKILL);
    find_the_death();
    for (int i = 0; i < 5000; i++)
        CHECK_OK(pn_notify(conn, "x", 1, "y", 1));
    CHECK(is_closed());
    CHECK(conn->seg->topics.durable == NULL);
    pn_conn_close(conn); /* it frees its slot, and so has to wait until they are open */
    pn_engine_close(engine);
    attach();
    CHECK(!is_closed());
    check_all_there(FEW);
    close_all();
}

/* Calls on topics go on to the end, and those that must not wait say so. */
static void calls_meanwhile(void)
{
    uint64_t id;
    durable = true;
    open_with(FEW);
    for (int i = 0; i < 6; i++) {
        CHECK_KILLED(spawn(die_with_the_lock, NULL), SIGKILL);
        find_the_death();
        if (i == 0) {
            pn_set_never_wait(1);
            CHECK_EQ(publish_in(conn, NULL, topic, "0600", 0, 0, &id), -PN_ELOCKBUSY);
            pn_set_never_wait(0);
            CHECK(is_closed());
        } else if (i == 1) {
            CHECK_EQ(topic_stat(conn, topic).depth + channel_stat(conn, channel).depth, FEW);
        } else if (i == 2) {
            CHECK_EQ(channel_of(conn, topic, "c"), channel);
        } else if (i == 3) {
            CHECK_ENGINE(engine);
        } else if (i == 4) {
            pn_conn_close(test_connect(engine));
        } else {
            publish(conn, topic, "0600");
        }
        CHECK(i == 0 || !is_closed());
        CHECK_ENGINE(engine);
    }
    check_all_there(FEW + 1);
    close_all();
}

/* ---- deaths in it ---------------------------------------------------------------------------- */

/* Every so many-th of all labels that a repair passes, until one has nothing left to do. */
static void die_everywhere(const char *label, uint32_t stride, bool with_log)
{
    durable = with_log;
    pn_rebuild_units = 200;
    open_with(FEW);
    uint32_t died = 0;
    for (uint32_t nth = 1;; nth += stride) {
        struct death at = {label, nth};
        CHECK_KILLED(spawn(die_with_the_lock, NULL), SIGKILL);
        find_the_death();
        int status = reap(spawn(repair_and_die, &at));
        if (WIFEXITED(status)) {
            CHECK_EQ(WEXITSTATUS(status), 0);
            break;
        }
        CHECK_EQ(WTERMSIG(status), SIGKILL);
        died++;
        CHECK_ENGINE(engine);
        CHECK(!is_closed());
        CHECK_DEPTHS(conn, channel, FEW, 0, 0);
    }
    CHECK(died >= 3);
    check_all_there(FEW);
    pn_rebuild_units = PN_REBUILD_UNITS;
    close_all();
}

static void killed_in_steps(void)
{
    die_everywhere("topic-recover:step", 7, false);
    die_everywhere("topic-recover:stepped", 5, false);
    die_everywhere("topic-recover:waiting", 9, true);
    die_everywhere("topic-recover:step", 9, true);
    die_everywhere("topiclog:carried", 2, true);
    die_everywhere("durable:step", 1, true);
}

/* A step that ended is not made again; one that did not is, with all before it. */
static void goes_on_where_it_stopped(void)
{
    struct death at = {"topic-recover:waiting", 10};
    durable = false;
    pn_rebuild_units = 1000;
    open_with(FEW);
    CHECK_KILLED(spawn(die_with_the_lock, NULL), SIGKILL);
    find_the_death();
    CHECK_KILLED(spawn(repair_and_die, &at), SIGKILL);
    uint32_t phase = repair()->phase;
    CHECK_EQ(repair()->steps, 11); /* one when it connected */
    CHECK(phase != 0);
    CHECK_OK(pn_notify(conn, "x", 1, "y", 1));
    CHECK(repair()->phase >= phase);
    CHECK_EQ(repair()->steps, 12);
    CHECK_EQ(repair()->rebuilds, 1);
    at = (struct death) {"topic-recover:step", 5};
    CHECK_KILLED(spawn(repair_and_die, &at), SIGKILL);
    find_the_death();
    CHECK_EQ(repair()->phase, 0);
    pn_rebuild_units = PN_REBUILD_UNITS;
    check_all_there(FEW);
    close_all();
}

/* ---- everything ends in the middle ----------------------------------------------------------- */

static void lose_all_at(uint32_t nth)
{
    struct death at = {"topiclog:carried", nth};
    durable = true;
    open_with(FEW);
    pn_consumer *consumer = consumer_of(conn, channel, 1);
    pn_message_out m;
    GET(consumer, &m, "0000");
    FINISH(conn, &m);
    CHECK_OK(pn_consumer_close(consumer));
    CHECK_KILLED(spawn(die_with_the_lock, NULL), SIGKILL);
    find_the_death();
    CHECK_KILLED(spawn(repair_and_die, &at), SIGKILL);
    pn_engine *old_engine = engine;
    pn_conn *old_conn = conn;
    test_segment_remove(name);
    attach();
    CHECK_DEPTHS(conn, channel, FEW - 1, 0, 0);
    consumer = consumer_of(conn, channel, 1);
    for (int i = 1; i < FEW; i++) {
        CHECK_EQ(pn_consumer_get(consumer, 0, &m), 1);
        CHECK_EQ(number_in(&m), i);
        FINISH(conn, &m);
    }
    NOTHING(consumer);
    CHECK_OK(pn_consumer_close(consumer));
    close_all();
    pn_conn_close(old_conn);
    pn_engine_close(old_engine);
}

static void reboot_in_the_middle(void)
{
    const uint32_t writes = FEW / 64; /* and one for the rest */
    lose_all_at(1);
    lose_all_at(writes / 2);
    lose_all_at(writes);
}

/* Those that were finished are gone, and what is published next comes after them all the same. */
static void orders_do_not_go_back(void)
{
    durable = false;
    open_with(BATCH);
    check_all_there(BATCH);
    const struct pn_topic_channel *ch = &conn->seg->topics.channel[(uint32_t) channel - 1];
    uint64_t before = ch->next_order;
    CHECK(before > BATCH);
    CHECK_KILLED(spawn(die_with_the_lock, NULL), SIGKILL);
    publish_all(BATCH);
    CHECK(!is_closed());
    CHECK_EQ(ch->next_order, before + BATCH);
    check_all_there(BATCH);
    close_all();
}

/* ---- overwritten words ----------------------------------------------------------------------- */

/* The segment is poisoned: an answer to every call, and no end of any process. */
static void is_refused(void (*overwrite)(struct pn_topic_repair *), uint32_t after)
{
    struct pn_hold hold;
    struct death at = {"topic-recover:waiting", after};
    durable = false;
    pn_rebuild_units = 50;
    open_with(FEW);
    CHECK_KILLED(spawn(die_with_the_lock, NULL), SIGKILL);
    find_the_death();
    CHECK_KILLED(spawn(repair_and_die, &at), SIGKILL);
    CHECK(is_closed());
    overwrite(&conn->seg->topics.ctl->repair);
    int rc = pn_lock_topics(conn->seg, &hold, PN_LOCK_TIMEOUT_NS);
    CHECK_EQ(rc, -PN_ECORRUPT);
    CHECK_EQ(pn_notify(conn, "x", 1, "y", 1), -PN_ECORRUPT);
    pn_rebuild_units = PN_REBUILD_UNITS;
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static void no_mark(struct pn_topic_repair *at)
{
    (void) at;
    pn_store_relaxed(&conn->seg->ctl->topics_dirty, 6);
}

static void no_phase(struct pn_topic_repair *at)
{
    at->phase = 0x7fffffff;
}

/* Nothing has been built, and it would be opened. */
static void over_already(struct pn_topic_repair *at)
{
    at->phase = 14;
}

static void no_kind(struct pn_topic_repair *at)
{
    at->phase = 10; /* that of sorting */
    at->kind = 0x7fffffff;
}

static void no_level(struct pn_topic_repair *at)
{
    at->phase = 10;
    at->kind = 0;
    at->cursor = 0;
    at->sort.doing = 2; /* a list goes into the level */
    at->sort.level = 0x7fffffff;
}

/* Each message, as if it expired: there is not that much room for what says when. */
static void no_room(struct pn_topic_repair *at)
{
    const struct pn_arena *mem = &conn->seg->topics.arena;
    (void) at;
    for (uint32_t page = mem->first; page < pn_arena_pages_used(mem); page++)
        for (uint64_t left = pn_arena_cells_of(mem, page, PN_PAGE_BODY); left != 0;
             left &= left - 1)
            pn_message_at(conn->seg, page * PN_ARENA_GRANULES + (uint32_t) __builtin_ctzll(left))
                ->expires = INT64_MAX;
    conn->seg->topics.arena.pages = pn_arena_pages_used(mem);
}

static void overwritten(void)
{
    is_refused(no_mark, 3);
    is_refused(no_phase, 3);
    is_refused(over_already, 3);
    is_refused(no_kind, 3);
    is_refused(no_level, 3);
    is_refused(no_room, 3);
}

int main(void)
{
    data_dir_make();
    test_watchdog(110);
    pn_repair_again_ns = INT64_MAX; /* notifiers do one step each, and wake no sleepers */
    notified_beside_a_repair();
    notified_beside_a_repair_with_a_log();
    a_notifier_opens_no_log();
    calls_meanwhile();
    killed_in_steps();
    goes_on_where_it_stopped();
    orders_do_not_go_back();
    reboot_in_the_middle();
    overwritten();
    return 0;
}
