/*
 * data_file.h - files in a directory that others may not write to: opening, writing, reading.
 *
 * `path` is that of the directory, `dirfd` a descriptor of it (data_dir.h); both only for one call.
 * 0 or -errno, with a sentence but for reading and writing.
 */
#ifndef PN_DATA_FILE_H
#define PN_DATA_FILE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/uio.h>

/* "could not <what> <directory>/<name>: <why>"; returns -error. */
int pn_data_file_failed(const char *path, const char *name, const char *what, int error);

/* openat() of a file that should be there; a squatted name is refused.  Its descriptor. */
int pn_data_file_open(const char *path, int dirfd, const char *name, int flags, struct stat *st);

/* A new file with mode 0600 under any umask, or the one of ours that is there.  Its descriptor. */
int pn_data_file_make(const char *path, int dirfd, const char *name, struct stat *st);

/* All of it, or -errno: -EFBIG for RLIMIT_FSIZE and never its signal.  Changes iov. */
int pn_data_file_write(int fd, struct iovec *iov, int n, off_t at);

/*
 * Close it; while the thread holds the writer lock, when it has released that: the last close of a
 * file that was removed frees its blocks and what memory has of it, milliseconds for one of 64 MiB.
 * So a file that is removed under the lock is opened before (pn_data_dir_remove()).  The names are
 * gone at once, and in their order; a SIGKILL closes the rest.  A full disk does not wait: what
 * finds no room closes them first.  A list has room for PN_CLOSE_LATER; what is beyond is closed
 * at once.
 */
enum { PN_CLOSE_LATER = 16 };
void pn_data_file_close(int fd);
/* And cut it before, with the blocks that were reserved behind that. */
void pn_data_file_cut_and_close(int fd, off_t length);
/* May one more be closed later? */
bool pn_data_files_wait(void);
/* lock.c: the thread has the lock; it has released it. */
void pn_data_files_hold(void);
void pn_data_files_release(void);

/* Blocks for [at, at + n), also beyond the file's end, whose length stays: writing there needs no
 * room any more.  -EOPNOTSUPP: not on this file system. */
int pn_data_file_reserve(int fd, uint64_t at, uint64_t n);

/* All of it; -ENODATA: the file ends before.  Changes iov. */
int pn_data_file_read(int fd, struct iovec *iov, int n, off_t at);

#endif
