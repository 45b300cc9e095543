/* topic_life_model.c - topics and channels of the model: made, emptied, deleted. */
#include "topic_model.h"

void tm_open_topic(struct topic_model *m, int topic, uint32_t overflow, uint64_t max_depth)
{
    bool ephemeral = m->topic[topic].ephemeral;
    uint64_t generation = m->topic[topic].generation + 1;
    m->topic[topic] = (struct tm_topic) {.exists = true,
                                         .ephemeral = ephemeral,
                                         .generation = generation,
                                         .overflow = overflow,
                                         .max_depth = max_depth,
                                         .channel[TM_OWN] = {.exists = true, .next_order = 1}};
}

void tm_open_channel(struct topic_model *m, int topic, int channel)
{
    m->topic[topic].channel[channel] = (struct tm_channel) {.exists = true, .next_order = 1};
    tm_pump(m, topic);
}

void tm_empty(struct topic_model *m, int topic, int channel)
{
    if (channel == TM_OWN)
        m->topic[topic].ndisk = 0;
    for (int i = 0; i < TM_DELIVERIES; i++) {
        struct tm_delivery *d = &m->delivery[i];
        if (d->kind == TM_NONE || d->kind == TM_STAGED || d->topic != topic ||
            d->channel != channel)
            continue;
        if (d->kind == TM_HELD)
            d->emptied = true;
        else
            tm_end(m, i);
    }
}

static void remove_channel(struct topic_model *m, int topic, int channel)
{
    m->topic[topic].channel[channel].exists = false;
    for (int i = 0; i < TM_CONSUMERS; i++)
        if (tm_is_member(&m->consumer[i], topic, channel))
            m->consumer[i].attached = false;
    tm_empty(m, topic, channel);
    for (int i = 0; i < TM_DELIVERIES; i++)
        if (m->delivery[i].topic == topic && m->delivery[i].channel == channel)
            m->delivery[i].gone = true; /* not one of the next channel of that name */
}

void tm_delete_channel(struct topic_model *m, int topic, int channel)
{
    remove_channel(m, topic, channel);
    if (m->topic[topic].ephemeral && tm_channels_of(m, topic) == 0)
        tm_delete_topic(m, topic);
}

void tm_delete_topic(struct topic_model *m, int topic)
{
    for (int c = 0; c <= TM_CHANNELS; c++)
        remove_channel(m, topic, c);
    m->topic[topic].exists = false;
}
