/* identity.h - do the numbers that a mapping keeps still mean what they meant: see identity.c. */
#ifndef PN_IDENTITY_H
#define PN_IDENTITY_H

#include "segment/segment.h"

/*
 * The segment's own file: a descriptor that stays open as long as the mapping, or -PN_EGONE when
 * it was closed and the file has no name any more.  Async-signal-safe.
 */
int pn_segment_file(struct pn_segment *seg);

/* Is `fd` a descriptor of it? */
bool pn_is_segment_file(const struct pn_segment *seg, int fd);

/* Close it, if it is still ours. */
void pn_segment_close_file(struct pn_segment *seg);

/* Is `fd` the lock file of that number? */
bool pn_is_lock_file(const struct pn_segment *seg, uint32_t file, int fd);

/* Descriptors without a file, of which the kernel tells the kind only. */
enum pn_fd_kind { PN_KIND_EVENTFD, PN_KIND_EPOLL, PN_KIND_TIMERFD, PN_KIND_PIDFD };
/*
 * May it be one of these still?  False: it is closed, or the number of a file, pipe or socket by
 * now, from which nothing is read and to which nothing is written.  Async-signal-safe.
 */
bool pn_is_anonymous(int fd);
/* Is it of that kind still?  Where /proc is not to be had: may it be?  Async-signal-safe. */
bool pn_is_kind(int fd, enum pn_fd_kind kind);
/*
 * Does the epoll set behind `fd` have `member` in it, with that data?  A set of the program's under
 * the same number has not.  Where /proc is not to be had: may it be a set?
 */
bool pn_is_in_set(int fd, int member, uint64_t data);
/* Close it, if it may be ours still; -1 is allowed.  Async-signal-safe. */
void pn_close_if_ours(int fd, enum pn_fd_kind kind);
/* Still what it was, `id` as pn_os_pidfd_id() said then.  With 0 any pidfd is believed. */
bool pn_is_pidfd(int fd, uint64_t id);
void pn_close_pidfd(int fd, uint64_t id);

/* How often the program was found to have closed what is not its own. */
extern pn_atomic_u32 pn_files_lost;

/* Has the process another effective user than the segment?  Async-signal-safe (identity.c 4). */
bool pn_is_other_user(struct pn_segment *seg);

/* 0, or that this process is in another pid or time namespace than the segment. */
int pn_check_namespaces(const struct pn_header *hdr, const char *name);

/* Do pids mean the same here as in the segment? */
bool pn_same_pid_namespace(const struct pn_segment *seg);

/* Has the segment lost its name?  Marks it GONE if so. */
bool pn_segment_unlinked(struct pn_segment *seg);

/* 0, or -PN_EUSER: the process has another effective user than the segment.  A system call. */
int pn_segment_check_user(struct pn_segment *seg);

#endif
