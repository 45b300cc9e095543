/*
 * datafile.h - files in a directory that others may not write to: opening, writing, reading.
 *
 * What segfile.c (pages) and recfile.c (records) have in common.  `path` is that of the directory,
 * `dirfd` a descriptor of it; both only for one call.  0 or -errno, with a sentence.
 */
#ifndef PN_DATAFILE_H
#define PN_DATAFILE_H

#include <stdint.h>
#include <sys/stat.h>
#include <sys/uio.h>

#define PN_DATA_DIR_MAX 511U /* bytes of a directory's path at the most */

/* A descriptor of a directory that is ours alone (see pn_segfile_check_dir), or -errno. */
int pn_data_dir_open(const char *path);

/* "could not <what> <directory>/<name>: <why>"; returns -error. */
int pn_data_file_failed(const char *path, const char *name, const char *what, int error);

/* openat() of a file that should be there; a squatted name is refused.  Its descriptor. */
int pn_data_file_open(const char *path, int dirfd, const char *name, int flags, struct stat *st);

/* A new file with mode 0600 under any umask, or the one of ours that is there.  Its descriptor. */
int pn_data_file_make(const char *path, int dirfd, const char *name, struct stat *st);

/* All of it, or -errno: -EFBIG for RLIMIT_FSIZE and never its signal.  Changes iov. */
int pn_data_file_write(int fd, struct iovec *iov, int n, off_t at);

/* Blocks for [at, at + n), also beyond the file's end, whose length stays: writing there needs no
 * room any more.  -EOPNOTSUPP: not on this file system. */
int pn_data_file_reserve(int fd, uint64_t at, uint64_t n);

/* Bytes that a file in that directory may still get; UINT64_MAX: not known. */
uint64_t pn_data_dir_room(const char *path);

/* All of it; -ENODATA: the file ends before. */
int pn_data_file_read(int fd, void *out, size_t n, off_t at);

#endif
