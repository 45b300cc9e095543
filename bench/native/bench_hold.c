/*
 * bench_hold.c - how long the writer lock is held at the most: nothing else in a segment can commit
 * meanwhile; and how long another process's notify() takes beside that.
 *
 * Each scenario is played by this process; a figure is the longest single hold in it, from the lock
 * taken to the lock released, repairs included.  libpthread's calls are wrapped at link time, so
 * what is timed is the library as it is built for use.  The bar is the promise of
 * docs/guarantees.md on a quiet machine; what the scheduler takes away from the holder is in the
 * figure, too, and so the note says what processor time the longest hold took, by that clock.
 *
 * The bystander is a process that notifies again and again, with a pause in between.  Its holds
 * count as well: while topics are repaired it does a part of that.
 */
#include "hold_queue.h"
#include "hold_rig.h"
#include "hold_topics.h"

static const double BAR_MS = 2, BYSTANDER_MS = 5;

static const struct {
    const char *name;
    struct result (*run)(void);
} scenarios[] = {
    {"unlisten_all of 16,000 channels", unlisten_all},
    {"the first listen of a segment with tables of 1,048,576", first_listen},
    {"connect, and 16,000 listens", connecting},
    {"close of a connection with 16,000 channels", closing},
    {"the end of a dead backend with 16,000 channels", reaping_a_listener},
    {"a death in the middle of a listen, 16,000 channels", recovery_of_the_table},
    {"drop-slowest of 1,000 laggards", eviction},
    {"the tail advances, 1,000 readers", tail_advance},
    {"a death in the middle of a commit, 1,000 sleepers", recovery_of_a_commit},
    {"spilling, a page a transaction", spilling_pages},
    {"spilling, 32 pages a transaction", spilling_much},
    {"a listener leaves that was 1,024 files behind (--quick: 128)", removing_files},
    {"a full queue, 1,000 laggards: notify, queue_usage, stat", full_queue},
    {"the first topic of a segment", first_topic},
    {"publish_many of 1,000 messages of 200 bytes", publishing_in_memory},
    {"the same, durable, fsync none", publishing_durable},
    {"publish_many of 1,000 messages of 200 bytes, memory is full", publishing_on_disk},
    {"the same, durable, fsync none", publishing_durable_on_disk},
    {"the same, not durable, two channels rest", publishing_to_resting},
    {"messages of 200 bytes come back from disk", coming_back_short},
    {"messages of 40,000 bytes come back from disk", coming_back_long},
    {"deferred messages leave memory for some of 400,000 bytes", leaving},
    {"1,000 channels of a topic, of which one is read, memory is full", many_channels_rest},
    {"the same, all messages deferred for 1 to 3 s", many_channels_deferred},
    {"the death of a consumer with 60,000 messages in flight", reaping},
    {"drop-oldest with 60,000 messages in flight", dropping},
    {"publish and finish while the log is compacted", compacting},
    {"a death with the lock, 1,000,000 durable messages (--quick: 100,000)", repairing_many},
    {"the first topic() after a reboot, as many", reopening_many},
};

int main(int argc, char **argv)
{
    settings s = parse_arguments(argc, argv);
    double ms[MAX_PASSES], bystander_ms[MAX_PASSES];
    char names[2][160];
    int n = s.quick ? 2 : 5;
    quick = s.quick;
    segments_owner = getpid();
    shared = shared_memory(sizeof *shared);
    atexit(remove_segments);
    make_directory(NULL, "/tmp");
    for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++) {
        double cpu_ms[MAX_PASSES];
        uint32_t calls = UINT32_MAX;
        for (int pass = 0; pass < n; pass++) {
            struct result r = scenarios[i].run();
            ms[pass] = r.ms;
            bystander_ms[pass] = r.bystander_ms;
            cpu_ms[pass] = r.cpu_ms;
            calls = r.bystander_calls < calls ? r.bystander_calls : calls;
        }
        snprintf(names[0], sizeof names[0], "%.3g to %.3g ms of processor time",
                 spread_of(cpu_ms, n).min, spread_of(cpu_ms, n).max);
        snprintf(names[1], sizeof names[1], "%s: notify() beside it, p99.9", scenarios[i].name);
        figure f = {.name = scenarios[i].name,
                    .unit = "ms",
                    .ours = ms,
                    .n = n,
                    .bar = BAR_MS,
                    .at_most = true,
                    .note = names[0]};
        print_figure(&f);
        f.name = names[1];
        f.ours = bystander_ms;
        f.bar = BYSTANDER_MS;
        /* of fewer than a thousand it is the longest one */
        snprintf(names[0], sizeof names[0], "of %" PRIu32 " calls or more a pass", calls);
        print_figure(&f);
    }
    return 0;
}
