/* process.c - see process.h. */
#include "segment/process.h"

static pthread_mutex_t process_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct pn_segment *segments; /* all mapped segments of the process */

void pn_process_lock(void)
{
    pthread_mutex_lock(&process_mutex);
}

void pn_process_unlock(void)
{
    pthread_mutex_unlock(&process_mutex);
}

void pn_process_lock_reset(void)
{
    pthread_mutex_init(&process_mutex, NULL);
}

struct pn_segment *pn_first_segment(void)
{
    return segments;
}

void pn_process_add(struct pn_segment *seg)
{
    seg->next = segments;
    segments = seg;
}

void pn_process_remove(struct pn_segment *seg)
{
    struct pn_segment **link = &segments;
    while (*link != seg)
        link = &(*link)->next;
    *link = seg->next;
}
