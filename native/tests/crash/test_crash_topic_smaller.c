/*
 * A process that opens a durable topic, of one channel or of two, with less memory than it had, so
 * that much of what was given to its channels goes to disk, and then works with it, is killed at
 * each label of restoring and of coming back.  The next one, in the segment or after another
 * reboot, gets for each channel what that has not finished: nothing less, nothing twice, in order,
 * with its attempts.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "topic_smaller.h"

enum { NOT_REACHED = 77 };

static const char *label;
static uint32_t nth;
static int *emptying; /* channel b; in memory that outlives SIGKILL */

static void victim(void *arg)
{
    (void) arg;
    CHECK_OK(pn_crash_arm(label, nth, PN_CRASH_KILL));
    attach(LITTLE);
    finish_some(6);
    others = true;
    for (int i = 1; i <= 3; i++)
        publish_number(LAST + i, 0);
    CHECK_OK(pn_topic_empty(conn, topic)); /* those, and what was given stays */
    finish_some(6);
    test_inside()->topics.ctl->log_behind = 1;
    for (int i = 4; i <= 6; i++)
        publish_number(LAST + i, 0);
    CHECK(topic_stat(conn, topic).on_disk > 8);
    finish_some(20);
    *emptying = 1;
    if (channels > 1)
        CHECK_OK(pn_topic_channel_empty(conn, channel[1]));
    memset(left[1], 0, sizeof left[1]);
    *emptying = 0;
    finish_some(INT32_MAX);
}

/* The segment that fill() has made goes, and no process comes yet. */
static void leave(void)
{
    test_segment_remove(name);
    detach();
}

static void check_left(void)
{
    others = true;
    memcpy(unsure, finishing, sizeof unsure);
    for (int c = 0; c < CHANNELS; c++)
        for (doubtful[c] = 1; doubtful[c] <= LAST; doubtful[c]++)
            if (left[c][doubtful[c]].there && !left[c][doubtful[c]].deferred)
                break;
    int b = 0;
    while (finish_some(1) == 1)
        b += got_last[1] != 0 && got_last[1] <= LAST;
    if (*emptying != 0 && b == 0)
        memset(left[1], 0, sizeof left[1]);
    check_nothing_is_left();
    pn_topic_stats s = topic_stat(conn, topic);
    CHECK_EQ(s.on_disk, 0);
    CHECK_EQ(s.corrupt, 0);
    CHECK_EQ(s.unfinished, count_deferred());
}

/* arg: does the segment go, too? */
static void crash_case(void *arg)
{
    fill(0);
    leave();
    *emptying = 0;
    int status = reap(spawn(victim, NULL));
    bool reached = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (!reached)
        CHECK_EQ(status, 0);
    if (arg != NULL)
        test_segment_remove(name);
    attach(LITTLE);
    CHECK_ENGINE(engine);
    check_left();
    CHECK_ENGINE(engine);
    reboot(LITTLE);
    CHECK_EQ(topic_stat(conn, topic).unfinished, count_deferred());
    CHECK_EQ(topic_stat(conn, topic).on_disk, 0);
    pn_remove_spill_files(engine);
    detach();
    data_dir_empty();
    if (!reached)
        exit(NOT_REACHED);
}

static bool is_ours(void)
{
    static const char *const modules[] = {
        "durable:", "topiclog:", "diskqueue:", "recfile:", "spilled:",
        "refill:",  "publish:",  "topic:",     "rest:"};
    bool ours = false;
    for (size_t k = 0; k < sizeof modules / sizeof modules[0]; k++)
        ours |= strncmp(label, modules[k], strlen(modules[k])) == 0;
    return ours;
}

/* Without these the test would show nothing of what it is for. */
static bool is_needed(void)
{
    return strcmp(label, "rest:cursor") == 0 || strcmp(label, "rest:back-valid") == 0 ||
           strcmp(label, "durable:rewritten") == 0;
}

int main(void)
{
    static const uint32_t hits[] = {1, 3, 12, 40};
    unsigned cases = 0, reached = 0;
    data_dir_make();
    test_watchdog(110);
    make_left();
    emptying =
        mmap(NULL, sizeof *emptying, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(emptying != MAP_FAILED);
    for (int i = 0; i < 2 * pn_crash_label_count(); i++) {
        label = pn_crash_label(i / 2);
        channels = 1 + i % 2;
        bool there = is_ours();
        for (size_t hit = 0; hit < sizeof hits / sizeof hits[0] && there; hit++)
            for (int gone = 0; gone < 2; gone++, cases++) {
                nth = hits[hit];
                int status = reap(spawn(crash_case, gone ? "" : NULL));
                there = status != W_EXITCODE(NOT_REACHED, 0);
                if (there && status != 0)
                    FAIL("%s, hit %u, %s: %x", label, nth, gone ? "reboot" : "same segment",
                         (unsigned) status);
                if (hit == 0 && !there && is_needed())
                    FAIL("%s was not reached", label);
                reached += there;
            }
    }
    printf("%u cases, %u of them reached\n", cases, reached);
    CHECK(reached >= 300);
    return 0;
}
