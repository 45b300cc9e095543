/*
 * group.c - connections that one thread serves, behind one latch.
 *
 * 1. A process with hundreds of listeners writes, waits for and reads hundreds of latches for one
 *    notification.  Connections of a group have none; what sets a connection's latch puts the
 *    connection on the group's list, and writes the group's latch if the list was empty.
 * 2. `posted` of a connection says that it is on the list, or about to be.  The thread that makes
 *    it 1 pushes it; a handler that interrupts that thread leaves it to it.  `next` is the pusher's
 *    until the push, then the serving thread's, until that stores 0 into `posted`.
 * 3. The flags of the connection (latch.c) go first, `posted` second, the list third, the latch
 *    last.  The serving thread goes the other way: it drains the latch, takes the list, makes
 *    `posted` 0, and then lets poll() look.  So a flag that poll() has not seen finds `posted` 0
 *    and is pushed again; and a list that is not empty has a latch that is readable, or is about to
 *    be.
 * 4. W: `head` any thread and handler, `taken` the serving thread.  A connection is freed by the
 *    serving thread, after it was taken out of the handler's sight; then it leaves both lists.
 *    pn_conn_close() comes before that where something else refers to the connection: it takes the
 *    connection out of the group, so that the caller may free what `user` is, and the group.
 * 5. Of a group too the latch is checked before it is written or read: the program may have closed
 *    it.  Nothing here is in shared memory.
 */
#include "wakeup/group.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "backend/backend.h"
#include "base/os.h"
#include "segment/identity.h"

struct pn_group {
    int latch;
    int32_t pid; /* a child shares the latch, and must not drain it */
    _Atomic(struct pn_conn *) head;
    struct pn_conn *taken;
};

int pn_group_make(struct pn_group **out)
{
    struct pn_group *group = calloc(1, sizeof *group);
    if (group == NULL)
        return pn_fail(ENOMEM, "out of memory");
    group->latch = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (group->latch < 0) {
        int error = errno;
        free(group);
        return pn_fail(error, "could not create an eventfd: %s", strerror(error));
    }
    group->pid = pn_my_pid;
    *out = group;
    return 0;
}

void pn_group_free(struct pn_group *group)
{
    pn_close_if_ours(group->latch, PN_KIND_EVENTFD);
    free(group);
}

int pn_group_latch(const struct pn_group *group)
{
    return group->latch;
}

static void set_latch(const struct pn_group *group)
{
    const uint64_t one = 1;
    if (pn_is_anonymous(group->latch) && write(group->latch, &one, sizeof one) < 0)
        return; /* EAGAIN: the counter is full, so it is readable */
}

void pn_group_post(struct pn_group *group, struct pn_conn *conn)
{
    if (pn_exchange(&conn->in_group.posted, 1) != 0)
        return;
    struct pn_conn *first = pn_load_relaxed(&group->head);
    do
        conn->in_group.next = first;
    while (!pn_cas_weak(&group->head, &first, conn));
    if (first == NULL)
        set_latch(group);
}

void pn_group_take(struct pn_group *group)
{
    uint64_t count;
    if (group->pid != pn_my_pid)
        return;
    if (pn_is_anonymous(group->latch) && read(group->latch, &count, sizeof count) < 0)
        count = 0; /* EAGAIN: what follows is a look in vain, or just in time */
    struct pn_conn **end = &group->taken; /* behind what is left of the last time */
    while (*end != NULL)
        end = &(*end)->in_group.next;
    *end = pn_exchange(&group->head, NULL);
}

void *pn_group_each(struct pn_group *group)
{
    struct pn_conn *conn = group->taken;
    if (conn == NULL || group->pid != pn_my_pid)
        return NULL;
    group->taken = conn->in_group.next;
    pn_store_seq_cst(&conn->in_group.posted, 0);
    return conn->in_group.user;
}

int pn_group_join(struct pn_conn *conn, struct pn_group *group, void *user)
{
    if (pn_load_relaxed(&conn->efd) >= 0 || pn_load_relaxed(&conn->in_group.group) != NULL)
        return pn_fail(EINVAL, "the connection has a latch already: it joins a group before it "
                               "waits and before pn_fileno()");
    conn->in_group.user = user;
    pn_store_seq_cst(&conn->in_group.group, group); /* pairs with pn_latch_set(): flags, group */
    if (pn_load_seq_cst(&conn->fd_flags) != 0)      /* set when it had neither */
        pn_group_post(group, conn);
    return 0;
}

static void take_out(struct pn_conn **list, const struct pn_conn *conn)
{
    for (; *list != NULL; list = &(*list)->in_group.next)
        if (*list == conn) {
            *list = conn->in_group.next;
            return;
        }
}

void pn_group_leave(struct pn_conn *conn, struct pn_group *group)
{
    if (pn_load_relaxed(&conn->in_group.posted) == 0)
        return;
    pn_group_take(group);
    take_out(&group->taken, conn);
    if (group->taken != NULL)
        set_latch(group); /* it was drained */
}
