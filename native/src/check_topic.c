/* check_topic.c - see check_topic.h. */
#include "check_topic.h"

void pn_check_topics_locked(struct pn_segment *seg, void (*problem)(void *arg, const char *text),
                            void *arg)
{
    if (!pn_topics_ready(seg))
        return;
    if (pn_load_relaxed(&seg->ctl->topics_dirty) != 0)
        problem(arg, "the topics are marked as being changed");
    pn_arena_check(&seg->topics.arena, problem, arg);
}
