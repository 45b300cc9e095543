/*
 * page_file.h - files of 32 pages in a directory: where a queue goes that is larger than memory.
 *
 * File `number` holds the pages [number * 32, number * 32 + 32) of a sequence that `dir` names.  A
 * page is a record of record_file.c, of which all are equally long, so that each has its place:
 *
 *     rc = pn_pages_write(&dir, page / 32, page % 32, pages, tags, n);   one writer at a time
 *     rc = pn_pages_read(&dir, page / 32, page % 32, n, out);            any number of readers
 *
 * That a page is there is said by a position that the caller keeps, and moves after we have
 * returned.  So what a SIGKILL leaves is a page beyond that position, and the successor writes it
 * once more, whatever part of it is there.  Nothing is synced, since a segment does not outlive a
 * reboot either.  No descriptor is kept: opening the file costs little beside its pages.
 *
 * Functions return 0 or -errno, and leave a sentence in pn_error_message(), which names the file.
 */
#ifndef PN_PAGE_FILE_H
#define PN_PAGE_FILE_H

#include <stdint.h>

#include "files/data_dir.h"

#define PN_FILE_PAGE_SIZE 8192U /* bytes: PN_QUEUE_PAGE */
#define PN_FILE_PAGES     32U   /* SLRU_PAGES_PER_SEGMENT */

/*
 * Write n pages from first_page on, each with a tag below 2^31.  When it fails the file has gained
 * nothing (a new one is gone again), and pages written before are as they were.  What stood from
 * first_page on is gone: it was told to no process.  -ENOSPC, -EDQUOT, -EIO, -EFBIG for
 * RLIMIT_FSIZE (never its signal); -EACCES for a file of that name that is not ours.
 */
int pn_pages_write(const struct pn_data_dir *dir, uint64_t number, uint32_t first_page,
                   const void *const pages[], const uint32_t tags[], uint32_t n);

/*
 * Copy n pages to `out`, each verified by its checksum.  -EBADMSG: one of them is damaged (read
 * them one by one to learn which); `out` is not to be used then.  -ENOENT: no such file; -EACCES:
 * it is not ours.
 */
int pn_pages_read(const struct pn_data_dir *dir, uint64_t number, uint32_t first_page, uint32_t n,
                  void *out);

/* The first page from first_page on that has the tag; PN_FILE_PAGES: none has.  Or -errno. */
int pn_pages_find(const struct pn_data_dir *dir, uint64_t number, uint32_t first_page,
                  uint32_t tag);

#endif
