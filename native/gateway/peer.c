/* peer.c - see peer.h. */
#define _GNU_SOURCE
#include "peer.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

bool gw_unix_peer(int fd, struct gw_peer *out)
{
    struct ucred credentials;
    socklen_t len = sizeof credentials;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &len) != 0)
        return false;
    *out = (struct gw_peer) {credentials.uid, credentials.gid, true, credentials.pid, 0};
    return true;
}

struct question {
    struct nlmsghdr head;
    struct inet_diag_req_v2 what;
};

/* Ask the kernel for the one socket that has these addresses. */
static bool ask(int netlink, const struct sockaddr_in *peer, const struct sockaddr_in *own,
                struct gw_peer *out)
{
    struct question question = {
        .head = {.nlmsg_len = sizeof question,
                 .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                 .nlmsg_flags = NLM_F_REQUEST},
        .what = {.sdiag_family = AF_INET, .sdiag_protocol = IPPROTO_TCP, .idiag_states = ~0U},
    };
    union {
        struct nlmsghdr head;
        char bytes[8192];
    } answer;
    question.what.id.idiag_sport = peer->sin_port;
    question.what.id.idiag_dport = own->sin_port;
    question.what.id.idiag_src[0] = peer->sin_addr.s_addr;
    question.what.id.idiag_dst[0] = own->sin_addr.s_addr;
    question.what.id.idiag_cookie[0] = question.what.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
    if (send(netlink, &question, sizeof question, 0) != (ssize_t) sizeof question)
        return false;
    ssize_t len = recv(netlink, &answer, sizeof answer, 0);
    if (len < 0 || !NLMSG_OK(&answer.head, (size_t) len) ||
        answer.head.nlmsg_type != SOCK_DIAG_BY_FAMILY ||
        answer.head.nlmsg_len < NLMSG_LENGTH(sizeof(struct inet_diag_msg)))
        return false;
    const struct inet_diag_msg *found = NLMSG_DATA(&answer.head);
    *out = (struct gw_peer) {.uid = found->idiag_uid, .port = ntohs(peer->sin_port)};
    /* One that was closed has no inode any more, and uid 0, whichever it had. */
    return found->idiag_inode != 0 && found->id.idiag_sport == peer->sin_port &&
           found->id.idiag_dport == own->sin_port;
}

bool gw_tcp_peer(int fd, struct gw_peer *out)
{
    struct sockaddr_in peer, own;
    socklen_t peer_len = sizeof peer, own_len = sizeof own;
    if (getpeername(fd, (struct sockaddr *) &peer, &peer_len) != 0 ||
        getsockname(fd, (struct sockaddr *) &own, &own_len) != 0 || peer.sin_family != AF_INET ||
        own.sin_family != AF_INET)
        return false;
    int netlink = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    if (netlink < 0)
        return false;
    struct timeval patience = {.tv_sec = 1};
    setsockopt(netlink, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    bool found = ask(netlink, &peer, &own, out);
    close(netlink);
    return found;
}
