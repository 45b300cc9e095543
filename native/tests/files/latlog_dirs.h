/* latlog_dirs.h - latency logs in directories of their own, on a disk and in memory. */
#ifndef PN_TEST_LATLOG_DIRS_H
#define PN_TEST_LATLOG_DIRS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "latlog_view.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static struct pn_latrec a_send(uint32_t channel, uint64_t seq)
{
    return (struct pn_latrec) {.ts = 1000000 + seq,
                               .commit_seq = seq,
                               .chan_seq = seq,
                               .channel = channel,
                               .bytes = 5,
                               .kind = PN_LAT_SEND,
                               .aux = pn_crc32c(0, "jobshello", 9)};
}

static char *a_dir(const char *name)
{
    static char path[128];

    snprintf(path, sizeof(path), "%s/%s", base, name);
    return path;
}

static pn_atomic_u64 dropped, recycled; /* counts of the log that was opened last */

static pn_latlog *open_log(const char *dir, int32_t backend)
{
    pn_latlog *log = NULL;

    CHECK(pn_latlog_open(dir, "seg", backend, &log) == 0);
    dropped = recycled = 0;
    pn_latlog_count_in(log, &dropped, &recycled);
    return log;
}

static void append_many(pn_latlog *log, uint64_t from, uint64_t n)
{
    for (uint64_t i = from; i < from + n; i++) {
        struct pn_latrec r = a_send(0, i);

        errno = 77;
        pn_latlog_append(log, &r);
        CHECK(errno == 77);
    }
}

static int count_entries(const char *dir)
{
    DIR *d = opendir(dir);
    int n = 0;

    while (d != NULL && readdir(d) != NULL)
        n++;
    if (d != NULL)
        closedir(d);
    return n - 2;
}

/* ---- the tests ------------------------------------------------------------------------- */

static bool tests_in(const char *parent, void (*tests)(void))
{
    snprintf(base, sizeof(base), "%.40s/latlog.XXXXXX", parent);
    if (mkdtemp(base) == NULL) {
        perror("mkdtemp");
        return false;
    }
    tests();
    return CHECK(rmdir(base) == 0);
}

/* On a disk and in memory, where room is made in different ways.  For main(). */
static int tests_in_both(void (*tests)(void))
{
    const char *tmp = getenv("TMPDIR");

    if (!tests_in(tmp != NULL ? tmp : "/tmp", tests) ||
        (access("/dev/shm", W_OK) == 0 && !tests_in("/dev/shm", tests)))
        return 1;
    return failures != 0;
}

#endif
