/* topiclog_work.h - batches of random operations on the log of topiclogs.h, and what it says. */
#ifndef PN_TEST_TOPICLOG_WORK_H
#define PN_TEST_TOPICLOG_WORK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "topiclogs.h"

static struct told told;

static void work(unsigned batches)
{
    struct op ops[MOST];
    for (unsigned i = 0; i < batches; i++) {
        size_t n = random_batch(ops);
        CHECK_OK(append_ops(ops, n));
        apply_all(plain, ops, n);
    }
}

static void set_up(void)
{
    for (uint32_t t = 0; t < TOPICS; t++)
        for (uint32_t c = 0; c < CHANNELS; c++) {
            const struct op ops[2] = {{.kind = PN_LOG_TOPIC, .topic = t},
                                      {.kind = PN_LOG_CHANNEL, .topic = t, .channel = c}};
            CHECK_OK(append_ops(ops, 2));
            apply_all(plain, ops, 2);
        }
}

static char path[512];

static off_t log_end(void)
{
    return (off_t) pn_diskqueue_now(&tlog->queue)->write_at;
}

static uint64_t messages_in(const struct plain *p)
{
    uint64_t n = 0;
    for (int i = 0; i < IDS; i++)
        n += p->message[i].there;
    return n;
}

static void remove_log_dir(void)
{
    if (data_dir_owner == getpid())
        log_dir_empty();
}

#endif
