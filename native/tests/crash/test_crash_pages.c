/*
 * A process that writes and removes files of pages is killed at each label that it comes by, at
 * its first and at later hits.  Afterwards the pages that others were told of can be read, a
 * successor writes the others once more, and nothing is left that cannot be removed.  The cases run
 * as a user that is not root where that can be had, since nothing is closed to root, and also under
 * umask 0777.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "data_dirs.h"

#include <grp.h>
#include <stdatomic.h>

enum { FILES = 3, STEP = 12, BEGIN = 5, OTHER_USER = 65534 };

static struct pn_data_dir dir;
static _Atomic(uint32_t) *told; /* pages, from BEGIN on; outlives SIGKILL */
static const char *label;
static uint32_t nth;
static mode_t mask;

/* As a spiller does: write, and then tell.  Then remove all but the last file. */
static void write_on(void)
{
    for (uint32_t at; (at = atomic_load(told)) < FILES * PAGES;) {
        uint32_t first = at % PAGES, n = first + STEP > PAGES ? PAGES - first : STEP;
        CHECK_OK(write_pages(&dir, at / PAGES, first, n));
        atomic_store(told, at + n);
    }
}

static void check_told(void)
{
    for (uint32_t page = BEGIN; page < atomic_load(told); page++)
        CHECK_OK(read_pages(&dir, page / PAGES, page % PAGES, 1));
}

static void victim(void *arg)
{
    (void) arg;
    umask(mask);
    CHECK_OK(pn_crash_arm(label, nth, PN_CRASH_KILL));
    write_on();
    for (uint64_t number = 0; number < FILES; number++)
        CHECK_OK(pn_data_dir_remove(&dir, number));
    atomic_store(told, BEGIN);
    write_on();
    atomic_store(told, BEGIN);
    CHECK_EQ(pn_data_dir_remove_all(data_dir, geteuid(), "seg", 0), FILES);
}

static void crash_case(void *arg)
{
    (void) arg;
    if (geteuid() == 0) {
        CHECK_EQ(chown(data_dir, OTHER_USER, OTHER_USER), 0);
        if (setgroups(0, NULL) != 0 || setresgid(OTHER_USER, OTHER_USER, OTHER_USER) != 0 ||
            setresuid(OTHER_USER, OTHER_USER, OTHER_USER) != 0)
            CHECK_EQ(chown(data_dir, geteuid(), getegid()), 0);
    }
    CHECK_OK(pn_data_dir_init(&dir, data_dir, geteuid(), "seg", INSTANCE, 'q'));
    int status = reap(spawn(victim, NULL));
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        FAIL("%s was not reached %u times", label, nth);
    if (strcmp(label, "datadir:removed") != 0)
        check_told();
    else
        atomic_store(told, BEGIN);
    write_on();
    CHECK_EQ(atomic_load(told), FILES * PAGES);
    check_told();
    CHECK_EQ(files_in(data_dir), FILES);
    CHECK_EQ(pn_data_dir_remove_all(data_dir, geteuid(), "seg", 0), FILES);
    CHECK_EQ(files_in(data_dir), 0);
}

int main(void)
{
    unsigned cases = 0;
    data_dir_make();
    test_watchdog(100);
    told = mmap(NULL, sizeof *told, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(told != MAP_FAILED);
    for (int i = 0; i < pn_crash_label_count(); i++) {
        label = pn_crash_label(i);
        if (strncmp(label, "datafile:", 9) != 0 && strncmp(label, "datadir:", 8) != 0 &&
            strncmp(label, "recfile:", 8) != 0)
            continue;
        for (nth = 1; nth <= 4; nth++)
            for (int strange = 0; strange < 2; strange++) {
                mask = strange ? 0777 : 022;
                atomic_store(told, BEGIN);
                CHECK_CHILD(spawn(crash_case, NULL), 0);
                cases++;
            }
    }
    CHECK(cases >= 5 * 4 * 2);
    printf("%u cases\n", cases);
    return 0;
}
