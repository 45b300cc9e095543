/* upstream_payload.c - what PostgreSQL does not take (bridge.c 3). */
#include "commit/upstream_payload.h"

#include "segment/lock.h"

/* How many bytes the character at p has, of n; 0: none. */
static size_t character(const unsigned char *p, size_t n)
{
    static const struct {
        unsigned char mask, lead;
        uint32_t least;
    } form[] = {{0x80, 0, 1}, {0xe0, 0xc0, 0x80}, {0xf0, 0xe0, 0x800}, {0xf8, 0xf0, 0x10000}};
    for (size_t more = 0; more < 4; more++) {
        if ((p[0] & form[more].mask) != form[more].lead)
            continue;
        uint32_t code = (uint32_t) p[0] & (unsigned char) ~form[more].mask;
        for (size_t i = 1; i <= more; i++) {
            if (i >= n || (p[i] & 0xc0) != 0x80)
                return 0;
            code = code << 6 | (p[i] & 0x3f);
        }
        bool surrogate = code >= 0xd800 && code <= 0xdfff;
        return code < form[more].least || code > 0x10ffff || surrogate ? 0 : more + 1;
    }
    return 0;
}

/* Where it ceases to be text; `len` when it is all text. */
static size_t text_until(const unsigned char *text, size_t len)
{
    size_t at = 0;
    while (at < len) {
        size_t bytes = character(text + at, len - at);
        if (bytes == 0)
            break;
        at += bytes;
    }
    return at;
}

/* Bounded: of what is too long nothing is read. */
int pn_upstream_check_payload(const char *channel, size_t channel_len, const void *payload,
                              size_t len)
{
    if (len > PN_UPSTREAM_PAYLOAD)
        return pn_fail(PN_EPAYLOAD,
                       "payload string too long\n"
                       "It has %zu bytes; channel \"%.*s\" goes to a PostgreSQL, which takes %u. "
                       "Send it as an object of a PubSub, which cuts it.",
                       len, (int) channel_len, channel, PN_UPSTREAM_PAYLOAD);
    size_t at = text_until(payload, len);
    if (at == len)
        return 0;
    return pn_fail(PN_EENCODING,
                   "invalid byte sequence for encoding \"UTF8\": 0x%02x\n"
                   "Channel \"%.*s\" goes to a PostgreSQL, which takes text only. Send it as an "
                   "object of a PubSub, which makes text of it.",
                   ((const unsigned char *) payload)[at], (int) channel_len, channel);
}

int pn_upstream_check_locked(const struct pn_commit *c)
{
    pn_assert_held(c->conn->seg);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < c->nevents; i++) {
        const struct pn_pending_event *event = &c->events[i];
        const struct pn_pending_channel *ch = &c->channels[event->channel];
        if (ch->heard && ch->entry->upstream != 0)
            rc = pn_upstream_check_payload(ch->name, ch->name_len, c->arena + event->payload_off,
                                           event->payload_len);
    }
    return rc;
}
