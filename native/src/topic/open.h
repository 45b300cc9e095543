/* open.h - making the topics of a segment ready, without the writer lock. */
#ifndef PN_OPEN_H
#define PN_OPEN_H

#include "topic/area.h"

int pn_topics_make_ready(struct pn_segment *seg); /* with what durable ones of before have */
int pn_topics_wake(struct pn_segment *seg);       /* durable ones of an earlier segment are there */
int pn_topics_await(struct pn_segment *seg);      /* until neither lock is held by another */

#endif
