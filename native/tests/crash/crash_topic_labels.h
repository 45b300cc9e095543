/*
 * crash_topic_labels.h - which crash labels are those of topics: test_crash_topic.c tests them, and
 * test_crash.c leaves them to it.
 */
#ifndef PN_CRASH_TOPIC_LABELS_H
#define PN_CRASH_TOPIC_LABELS_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

static inline bool is_topic_label(const char *label)
{
    static const char *const prefixes[] = {
        "topic:",        "topic-recover:", "publish:",        "answer:",         "arena:",
        "prepare:",      "claim:due",      "claim:in-flight", "claim:listed",    "claim:handed",
        "claim:copying", "claim:renewed",  "commit:staged",   "commit:answered", "commit:cancelled",
        "commit:topics", "commit:undone"};
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
        if (strncmp(label, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

/* Those of the engine that a transaction with messages reaches are worth a second look. */
static inline bool is_ours(const char *label)
{
    static const char *const commits[] = {
        "commit:before-head", "commit:after-head", "commit:applied", "commit:before-woken",
        "commit:after-woken", "recover:applied",   "recover:woken"};
    for (size_t i = 0; i < sizeof commits / sizeof commits[0]; i++)
        if (strcmp(label, commits[i]) == 0)
            return true;
    return is_topic_label(label);
}

static inline bool is_first_use(const char *label)
{
    return strcmp(label, "topic:allocated") == 0 || strcmp(label, "topic:formatted") == 0 ||
           strcmp(label, "topic:restored") == 0 || strcmp(label, "topic:ready") == 0;
}

#endif
