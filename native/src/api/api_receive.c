/* api_receive.c - the C API: receiving, waiting, groups, and what a connection listens to. */
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "backend/conn.h"
#include "backend/local.h"
#include "base/glob.h"
#include "base/hash.h"
#include "base/os.h"
#include "receive/receive.h"
#include "receive/wait.h"
#include "wakeup/group.h"
#include "wakeup/latch.h"

PN_API pn_batch *pn_batch_new(void)
{
    return calloc(1, sizeof(pn_batch));
}

PN_API void pn_batch_free(pn_batch *batch)
{
    if (batch == NULL)
        return;
    free(batch->seq);
    free(batch->sent_ns);
    free(batch->pid);
    free(batch->backend_id);
    free(batch->sender);
    free(batch->channel);
    free(batch->pattern);
    free(batch->headers_offset);
    free(batch->headers);
    free(batch->routes);
    free(batch->offset);
    free(batch->data);
    free(batch->gap);
    pn_local_free_batch(batch);
    free(batch);
}

PN_API int64_t pn_poll(pn_conn *conn, pn_batch *batch, uint64_t max)
{
    return pn_receive_poll(conn, batch, max);
}

PN_API uint64_t pn_conn_unread(pn_conn *conn)
{
    return pn_receive_unread(conn);
}

PN_API int pn_wait(pn_conn *conn, int64_t timeout_ns)
{
    return pn_receive_wait(conn, timeout_ns);
}

PN_API void pn_set_wakeup_fd(int fd, uint32_t id)
{
    pn_latch_set_wakeup_fd(fd, id);
}

PN_API int pn_sleep(int64_t timeout_ns)
{
    return pn_latch_sleep(timeout_ns);
}

PN_API void pn_conn_mark_readable(pn_conn *conn)
{
    pn_receive_mark_readable(conn);
}

PN_API int pn_conn_mute_fd(pn_conn *conn)
{
    return pn_receive_mute_fd(conn);
}

PN_API void pn_conn_interrupt_wait(pn_conn *conn)
{
    if (conn != &pn_conn_that_is_closed)
        pn_receive_interrupt_wait(conn);
}

PN_API void pn_conn_interrupt(pn_conn *conn)
{
    if (conn != &pn_conn_that_is_closed)
        pn_receive_interrupt(conn);
}

PN_API int pn_fileno(pn_conn *conn)
{
    return pn_receive_fileno(conn);
}

PN_API int pn_group_open(pn_group **out)
{
    return pn_group_make(out);
}

PN_API int pn_group_fileno(const pn_group *group)
{
    return pn_group_latch(group);
}

PN_API int pn_conn_join(pn_conn *conn, pn_group *group, void *user)
{
    int rc = pn_conn_check(conn);
    return rc != 0 ? rc : pn_group_join(conn, group, user);
}

PN_API void pn_group_begin(pn_group *group)
{
    pn_group_take(group);
}

PN_API void *pn_group_next(pn_group *group)
{
    return pn_group_each(group);
}

PN_API void pn_group_close(pn_group *group)
{
    if (group != NULL)
        pn_group_free(group);
}

PN_API const char *pn_conn_channel(pn_conn *conn, uint32_t channel, size_t *len)
{
    const char *name = NULL;
    if (conn->pid != pn_my_pid)
        return NULL;                       /* a thread of the parent may have held the mutex */
    pthread_mutex_lock(&conn->recv_mutex); /* the array may be growing */
    if (channel < conn->local.n) {
        name = conn->local.at[channel].name;
        if (len != NULL && name != NULL)
            *len = conn->local.at[channel].len;
    }
    pthread_mutex_unlock(&conn->recv_mutex);
    return name;
}

static bool is_listened_to(const struct pn_local_channel *c)
{
    return (c->routes & 1U << PN_ROUTE_LISTEN) != 0;
}

/* Append a name and its NUL, if both fit; where the next one goes. */
static size_t put_name(const struct pn_local_channel *c, char *names, size_t used, size_t cap)
{
    if (used + c->len + 1 <= cap)
        memcpy(names + used, c->name, c->len + 1);
    return used + c->len + 1;
}

PN_API int pn_conn_listening(pn_conn *conn, uint32_t *channels, size_t cap)
{
    int rc = pn_conn_check(conn);
    if (rc != 0)
        return rc;
    uint32_t n = 0;
    pthread_mutex_lock(&conn->recv_mutex);
    for (uint32_t i = 0; i < conn->local.n; i++)
        if (is_listened_to(&conn->local.at[i]) && !conn->local.at[i].pattern) {
            if (n < cap)
                channels[n] = i;
            n++;
        }
    pthread_mutex_unlock(&conn->recv_mutex);
    return (int) n;
}

PN_API int64_t pn_conn_listening_names(pn_conn *conn, char *names, size_t cap)
{
    int rc = pn_conn_check(conn);
    if (rc != 0)
        return rc;
    size_t used = 0;
    pthread_mutex_lock(&conn->recv_mutex);
    for (uint32_t i = 0; i < conn->local.n; i++) {
        const struct pn_local_channel *c = &conn->local.at[i];
        if (is_listened_to(c) && !c->pattern)
            used = put_name(c, names, used, cap);
    }
    pthread_mutex_unlock(&conn->recv_mutex);
    return (int64_t) used;
}

PN_API int64_t pn_conn_listening_patterns(pn_conn *conn, char *names, size_t cap)
{
    int rc = pn_conn_check(conn);
    if (rc != 0)
        return rc;
    size_t used = 0;
    const struct pn_local_channels *l = &conn->local;
    pthread_mutex_lock(&conn->recv_mutex);
    for (uint32_t i = 0; i < l->npatterns; i++)
        if (is_listened_to(&l->at[l->pattern[i]]))
            used = put_name(&l->at[l->pattern[i]], names, used, cap);
    pthread_mutex_unlock(&conn->recv_mutex);
    return (int64_t) used;
}

/* recv_mutex held. */
static bool owes(const struct pn_local_channel *c, uint64_t seq)
{
    return c != NULL && is_listened_to(c) && c->since_xid[PN_ROUTE_LISTEN] < seq;
}

PN_API int pn_conn_owes(pn_conn *conn, const char *channel, size_t len, uint64_t seq)
{
    int rc = pn_conn_check(conn);
    if (rc != 0)
        return rc;
    const struct pn_local_channels *l = &conn->local;
    uint64_t hash = pn_channel_hash(conn->dboid, channel, len);
    pthread_mutex_lock(&conn->recv_mutex);
    bool owed = owes(pn_local_find(l, hash, channel, len, false), seq);
    for (uint32_t i = 0; !owed && i < l->npatterns; i++) {
        const struct pn_local_channel *c = &l->at[l->pattern[i]];
        owed = owes(c, seq) && pn_glob_matches(c->name, c->len, channel, len);
    }
    pthread_mutex_unlock(&conn->recv_mutex);
    return owed;
}

PN_API int pn_pattern_matches(const char *pattern, size_t pattern_len, const char *name,
                              size_t name_len)
{
    return pn_glob_matches(pattern, pattern_len, name, name_len);
}
