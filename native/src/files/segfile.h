/*
 * segfile.h - files of 32 pages in a directory: where a queue goes that is larger than memory.
 *
 * One format for all: a file has a number, and holds pages [number * 32, number * 32 + 32) of a
 * sequence of pages that is told by segment, instance and kind.  segfile.c has format and rules.
 *
 *     struct pn_segfile_dir dir;
 *     rc = pn_segfile_open_dir(&dir, "/var/tmp/me", uid, "jobs", instance, 'q');
 *     rc = pn_segfile_write(&dir, page / 32, page % 32, pages, tags, n);   one writer at a time
 *     fd = pn_segfile_open_read(&dir, page / 32);                          any number of readers
 *     rc = pn_segfile_read(fd, page / 32, page % 32, n, out);
 *
 * Functions return 0 or -errno, and leave a sentence in pn_error_message(), which names the file
 * wherever a directory was given.
 */
#ifndef PN_SEGFILE_H
#define PN_SEGFILE_H

#include <stdbool.h>
#include <stdint.h>

#include "files/datafile.h"

#define PN_SEGFILE_PAGE   8192U /* bytes: PN_QUEUE_PAGE */
#define PN_SEGFILE_PAGES  32U   /* SLRU_PAGES_PER_SEGMENT */
#define PN_SEGFILE_HEADER 4096U

/* What names a sequence of files.  No descriptor: programs close those that are not theirs. */
struct pn_segfile_dir {
    char path[PN_DATA_DIR_MAX + 1];
    char prefix[192]; /* of the files' names: all but the number */
    uint64_t instance;
    char kind;
    bool read_only; /* for looking: files are opened for reading, and stay as they are */
};

/*
 * May `path` hold our files?  It has to be absolute, a directory and no symbolic link, belong to
 * the effective user, and not be writable by any other.
 */
int pn_segfile_check_dir(const char *path);

/* The same, and fill in *dir (nothing to be closed).  `uid` is for the name; `kind`: a letter. */
int pn_segfile_open_dir(struct pn_segfile_dir *dir, const char *path, uint32_t uid,
                        const char *segment, uint64_t instance, char kind);

/*
 * Write n pages from first_page on, each with a tag (NULL: all 0).  When it fails the file has
 * gained nothing (a new one is gone again), and pages written before are as they were.  Pages that
 * a killed process has written before are written again.  -ENOSPC, -EDQUOT, -EIO, -EFBIG for
 * RLIMIT_FSIZE (never its signal); -EACCES for a file of that name that is not ours.
 */
int pn_segfile_write(const struct pn_segfile_dir *dir, uint64_t number, uint32_t first_page,
                     const void *const pages[], const uint32_t tags[], uint32_t n);

/*
 * A descriptor for the next two, to be closed by the caller.  -ENOENT: no such file; -EBADMSG: its
 * header is damaged; -EACCES: it is not ours.
 */
int pn_segfile_open_read(const struct pn_segfile_dir *dir, uint64_t number);

/*
 * Copy n pages to `out`, each verified by its checksum.  -EBADMSG: one of them is damaged (read
 * them one by one to learn which); `out` is not to be used then.  -EBADF: the descriptor is not
 * that file: the program has closed and reused it, the file was removed and perhaps made again
 * under its number, or its header was damaged since; open it again.
 */
int pn_segfile_read(int fd, uint64_t number, uint32_t first_page, uint32_t n, void *out);

/* The tags of all pages; 0 for those that were not written, or whose tag is damaged.  -EBADF. */
int pn_segfile_tags(int fd, uint32_t tags[PN_SEGFILE_PAGES]);

/* Remove the file; 0 if there is none. */
int pn_segfile_remove(const struct pn_segfile_dir *dir, uint64_t number);

/* Remove all files of that segment, instance and kind; how many, or -errno. */
int pn_segfile_remove_own(const struct pn_segfile_dir *dir);

/*
 * Remove the files of a segment, of every kind and of every instance but `except` (0: of all);
 * how many, or -errno.  Safe to call again, and while others do.
 */
int pn_segfile_remove_all(const char *path, uint32_t uid, const char *segment, uint64_t except);

#endif
