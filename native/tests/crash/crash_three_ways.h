/*
 * crash_three_ways.h - a topic that overflows to disk, and a victim that dies with it at each label
 * of some modules, at its first and at later hits: of a topic in memory, of a durable one whose log
 * is compacted, and of one whose segment goes with the victim.  Some cases run beside each other,
 * in workers with a data directory each, since most of their time is waiting.
 */
#ifndef PN_TESTS_CRASH_THREE_WAYS_H
#define PN_TESTS_CRASH_THREE_WAYS_H

#include "crash_stream.h"

enum how { IN_MEMORY, DURABLE, GONE };
enum { WORKERS = 4, NOT_REACHED = 77, SLOWEST = 64 };

/* Times what a victim defers: a case whose label was not reached is played again with more, since
 * on a busy machine things fall due before memory is full. */
static int64_t slowness;

struct scene {
    enum how how;
    pn_options options;
    pn_engine *engine;
    pn_conn *conn;
    pn_ref topic;
};

static inline struct scene scene_open(enum how how, const pn_options *options, uint64_t max_depth)
{
    const pn_topic_options to = {.given = PN_TOPIC_DURABLE | PN_TOPIC_FSYNC | PN_TOPIC_OVERFLOW |
                                          (max_depth != 0 ? PN_TOPIC_MAX_DEPTH : 0),
                                 .durable = how != IN_MEMORY,
                                 .fsync = PN_FSYNC_NONE,
                                 .overflow = PN_OVERFLOW_DISK,
                                 .max_depth = max_depth};
    struct scene s = {.how = how, .options = *options};
    segment = test_segment_name();
    snprintf(s.options.data_dir, sizeof s.options.data_dir, "%s", data_dir);
    CHECK_OK(pn_open(segment, &s.options, &s.engine));
    s.conn = test_connect(s.engine);
    CHECK_OK(pn_topic_open(s.conn, "t", 1, &to, &s.topic));
    if (how != IN_MEMORY)
        test_inside()->topics.ctl->log.compact_from = 1000;
    return s;
}

/* The victim has died at the label, and its segment too if that is the case. */
static inline void scene_dies(struct scene *s, void (*victim)(void *))
{
    int status = reap(spawn(victim, NULL));
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) {
        CHECK_EQ(status, 0);
        if (slowness >= SLOWEST)
            FAIL("%s was not reached %u times", label, nth);
        test_segment_remove(segment);
        _exit(NOT_REACHED);
    }
    if (s->how == GONE) {
        test_segment_remove(segment);
        pn_conn_close(s->conn);
        pn_engine_close(s->engine);
        CHECK_OK(pn_open(segment, &s->options, &s->engine));
        s->conn = test_connect(s->engine);
        s->topic = topic_of(s->conn, "t");
    }
    CHECK_ENGINE(s->engine);
}

static inline void scene_close(struct scene *s)
{
    CHECK_ENGINE(s->engine);
    CHECK_EQ(topic_stat(s->conn, s->topic).corrupt, 0);
    CHECK_OK(pn_topic_delete(s->conn, s->topic));
    CHECK_EQ(files_in(data_dir), s->how != IN_MEMORY);
    pn_conn_close(s->conn);
    pn_engine_close(s->engine);
}

struct cases {
    const char *const *modules; /* what their labels begin with; the last is NULL */
    const uint32_t *hits;       /* the last is 0 */
    const char *rare;           /* a label that is not reached a second time */
    void (*set_up)(void);       /* of a worker */
    void (*run)(void *how);
};

/* The share of one worker; how many cases there are for all. */
static inline unsigned run_cases(const struct cases *c, unsigned worker)
{
    unsigned n = 0;
    for (int i = 0; i < pn_crash_label_count(); i++) {
        bool ours = false;
        label = pn_crash_label(i);
        for (const char *const *module = c->modules; *module != NULL; module++)
            ours |= strncmp(label, *module, strlen(*module)) == 0;
        for (const uint32_t *hit = c->hits; ours && *hit != 0; hit++)
            for (enum how how = IN_MEMORY; how <= GONE; how++) {
                nth = *hit;
                if (nth > 1 && strcmp(label, c->rare) == 0)
                    continue;
                if (n++ % WORKERS != worker)
                    continue;
                int status = W_EXITCODE(NOT_REACHED, 0);
                for (slowness = 1; status == W_EXITCODE(NOT_REACHED, 0); slowness *= 4) {
                    data_dir_empty();
                    status = reap(spawn(c->run, &how));
                }
                CHECK_EQ(status, 0);
            }
    }
    return n;
}

struct share {
    const struct cases *cases;
    unsigned worker, at_least;
};

static void work_on_share(void *arg)
{
    const struct share *s = arg;
    data_dir_make();
    s->cases->set_up();
    unsigned n = run_cases(s->cases, s->worker);
    CHECK(n >= s->at_least);
    if (s->worker == 0)
        printf("%u cases\n", n);
    data_dir_remove();
}

static inline int crash_three_ways(const struct cases *cases, unsigned at_least)
{
    pid_t worker[WORKERS];
    test_watchdog(110);
    for (unsigned i = 0; i < WORKERS; i++) {
        struct share share = {cases, i, at_least};
        worker[i] = spawn(work_on_share, &share);
    }
    for (unsigned i = 0; i < WORKERS; i++)
        reap_worker(worker[i]);
    return 0;
}

#endif
