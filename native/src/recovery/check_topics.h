/* check_topics.h - do the topics hold together?  Part of check.c. */
#ifndef PN_CHECK_TOPIC_H
#define PN_CHECK_TOPIC_H

#include "topic/area.h"

/* Every invariant of layout_topic.h; each problem is told.  Lock held. */
void pn_check_topics_locked(struct pn_segment *seg, void (*problem)(void *arg, const char *text),
                            void *arg);

#endif
