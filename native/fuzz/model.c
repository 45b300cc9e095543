/* model.c - see model.h. */
#include "model.h"

#include <stddef.h>
#include <string.h>

void model_open(struct model *m, int c, uint8_t database, int32_t backend)
{
    struct model_connection *conn = &m->connection[c];
    memset(conn, 0, sizeof *conn);
    memset(conn->since, -1, sizeof conn->since);
    conn->open = true;
    conn->database = database;
    conn->backend = backend;
    conn->position = m->nlog;
}

void model_notify(struct model_txn *t, uint8_t channel, struct model_bytes payload,
                  struct model_bytes headers, bool again)
{
    for (uint32_t i = 0; i < t->nitems && !again; i++) {
        const struct model_item *item = &t->item[i];
        if (item->kind == MODEL_NOTIFY && item->channel == channel &&
            item->payload.length == payload.length &&
            (item->payload.content == payload.content || payload.length == 0))
            return;
    }
    t->item[t->nitems++] = (struct model_item) {.kind = MODEL_NOTIFY,
                                                .level = t->level,
                                                .payload = payload,
                                                .headers = headers,
                                                .channel = channel};
}

void model_rollback_to(struct model_txn *t, int level)
{
    while (t->nitems > 0 && t->item[t->nitems - 1].level >= level)
        t->nitems--;
    t->level = level - 1;
}

void model_release(struct model_txn *t, int level)
{
    for (uint32_t i = 0; i < t->nitems; i++)
        if (t->item[i].level >= level)
            t->item[i].level = level - 1;
    t->level = level - 1;
}

void model_fold(struct model *m, int c, struct model_txn *t)
{
    struct model_connection *conn = &m->connection[c];
    if (t->prepared)
        return;
    memset(t->intent, MODEL_NOTHING, sizeof t->intent);
    for (uint32_t i = 0; i < t->nitems; i++) {
        const struct model_item *item = &t->item[i];
        uint8_t *intent = &t->intent[item->route][item->channel];
        if (item->kind == MODEL_LISTENING && item->listen) {
            *intent = MODEL_LISTEN;
            conn->known[item->channel] = true;
        } else if (item->kind == MODEL_LISTENING && conn->known[item->channel]) {
            *intent = MODEL_UNLISTEN;
        }
        for (int ch = 0; item->kind == MODEL_UNLISTEN_ALL && ch < MODEL_CHANNELS; ch++)
            if (t->intent[PN_ROUTE_LISTEN][ch] != MODEL_NOTHING ||
                conn->since[PN_ROUTE_LISTEN][ch] >= 0)
                t->intent[PN_ROUTE_LISTEN][ch] = MODEL_UNLISTEN;
    }
}

static void apply_intents(struct model *m, struct model_connection *conn, const struct model_txn *t)
{
    for (int route = 0; route < PN_ROUTES; route++)
        for (int ch = 0; ch < MODEL_CHANNELS; ch++) {
            int64_t *since = &conn->since[route][ch];
            if (t->intent[route][ch] == MODEL_UNLISTEN)
                *since = -1;
            else if (t->intent[route][ch] == MODEL_LISTEN && *since < 0)
                *since = m->nlog;
        }
}

void model_commit(struct model *m, int c, struct model_txn *t)
{
    struct model_connection *conn = &m->connection[c];
    model_fold(m, c, t);
    apply_intents(m, conn, t);
    m->transactions++;
    for (uint32_t i = 0; i < t->nitems; i++) {
        const struct model_item *item = &t->item[i];
        if (item->kind == MODEL_BUMP)
            m->counter[conn->database][item->counter]++;
        if (item->kind == MODEL_NOTIFY)
            m->log[m->nlog++] = (struct model_event) {.transaction = m->transactions,
                                                      .payload = item->payload,
                                                      .headers = item->headers,
                                                      .backend = conn->backend,
                                                      .database = conn->database,
                                                      .channel = item->channel};
    }
    t->open = false;
}

static uint8_t owed(const struct model_connection *conn, const struct model_event *e, uint32_t at)
{
    uint8_t routes = 0;
    for (int route = 0; route < PN_ROUTES && e->database == conn->database; route++)
        if (conn->since[route][e->channel] >= 0 && conn->since[route][e->channel] <= at)
            routes |= (uint8_t) (1U << route);
    return routes;
}

const struct model_event *model_next(struct model *m, int c, uint8_t *routes)
{
    struct model_connection *conn = &m->connection[c];
    while (conn->position < m->nlog) {
        const struct model_event *e = &m->log[conn->position];
        *routes = owed(conn, e, conn->position++);
        if (*routes != 0)
            return e;
    }
    return NULL;
}

bool model_owes(const struct model *m, int c)
{
    const struct model_connection *conn = &m->connection[c];
    for (uint32_t at = conn->position; at < m->nlog; at++)
        if (owed(conn, &m->log[at], at) != 0)
            return true;
    return false;
}
