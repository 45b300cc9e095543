/*
 * topic_log_model.h - topics, channels and messages as the records of a log tell them.
 *
 * 1. Only headers of messages are kept; a message that no channel has to get is forgotten at once.
 * 2. What speaks of what is not known is passed.  FINISHED without its message says nothing; a
 *    message without its FINISHED is delivered again.
 * 3. Numbers of topics and channels are those of the segment that wrote them: OPENED of another
 *    instance unbinds them all, and names are what stays.
 * 4. DROPPED ends what is not said in the file that it names or since: it was not carried over.
 *    Where something of that file or since is damaged, what was carried may be, too, and all that
 *    is left counts: a power cut may leave DROPPED without what stands before it, and then the
 *    older files are there still.  Or some of them, when they are being removed, in any subset: so
 *    what is missing before a file's first record is missing in the file before it.
 */
#ifndef PN_TOPIC_LOG_MODEL_H
#define PN_TOPIC_LOG_MODEL_H

#include "files/topic_log.h"

struct pn_logmodel_channel {
    struct pn_log_channel what;
    struct pn_log_defaults defaults;
    char *name;
    uint64_t file; /* that it was last described in */
    bool exists, bound;
    uint32_t emptied; /* how often; deliveries of before are void */
};

struct pn_logmodel_delivery {
    uint32_t channel,
        emptied; /* index into the topic's channels; PN_LOGMODEL_NONE: it is done with */
    uint32_t attempts;
    int64_t due;
    uint64_t file; /* that said so */
};
enum { PN_LOGMODEL_NONE = UINT32_MAX };

struct pn_logmodel_message {
    struct pn_logmodel_message *next; /* of its bucket */
    struct pn_log_message what;
    uint64_t file, at;
    uint32_t topic, n; /* index; deliveries */
    struct pn_logmodel_delivery *delivery;
};

struct pn_logmodel_topic {
    struct pn_log_topic what;
    struct pn_log_limits limits;
    char *names; /* database, name */
    uint64_t file;
    bool exists, bound;
    struct pn_logmodel_channel *channel;
    uint32_t channels;
    uint64_t *own; /* ids of its own messages, and of some that were since it was emptied */
    size_t owns;
};

struct pn_logmodel {
    struct pn_logmodel_topic *topic;
    uint32_t topics;
    struct pn_logmodel_message **bucket;
    size_t buckets, messages;
    uint64_t instance, file, at;
    uint64_t batch_end;    /* number of the record behind the batch that is being read */
    bool torn;             /* something of that cannot be read */
    uint64_t damaged;      /* records that were lost */
    uint64_t damaged_file; /* the last in which some were; 0: none */
    uint64_t dropped;      /* what stands before that file is over; 0: nothing was said to be */
    uint64_t nameless;     /* messages of topics that are not known */
};

/* What a record says; 0, or no memory. */
int pn_logmodel_note(struct pn_logmodel *m, const struct pn_record_out *record);

/* NULL: it is not known, or is over. */
struct pn_logmodel_message *pn_logmodel_find(const struct pn_logmodel *m, uint64_t id);
bool pn_logmodel_is_live(const struct pn_logmodel_topic *t, const struct pn_logmodel_delivery *d);
/* Whether a channel has still to get it, or it has not come to channels yet. */
bool pn_logmodel_wants(const struct pn_logmodel *m, const struct pn_logmodel_message *msg);

int pn_logmodel_no_memory(void);
void pn_logmodel_free(struct pn_logmodel *m);

#endif
