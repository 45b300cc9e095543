/*
 * data_dir.h - a directory that others may not write to, and the numbered files in it.
 *
 * The name of a file is a prefix and its number, in 16 hexadecimal digits.  The prefix of those of
 * a segment is pynotify.<uid>.<segment>.<instance>.<kind>. with as many digits for the instance.
 *
 * 0 or -errno, with a sentence in pn_error_message() that names the file, or the directory.
 */
#ifndef PN_DATA_DIR_H
#define PN_DATA_DIR_H

#include <stdbool.h>
#include <stdint.h>

#define PN_DATA_DIR_MAX 511U /* bytes of a directory's path at the most */

/* What names a sequence of files.  No descriptor: programs close those that are not theirs. */
struct pn_data_dir {
    char path[PN_DATA_DIR_MAX + 1];
    char prefix[192]; /* of the files' names: all but the number */
    uint64_t instance;
    char kind;
    bool read_only; /* for looking: files are opened for reading, and stay as they are */
    bool whole;     /* what is appended to a file needs all that stands before it */
};
enum { PN_DATA_FILE_NAME = sizeof(((struct pn_data_dir *) 0)->prefix) + 17 };

/*
 * A descriptor of the directory, or -errno: it has to be absolute, a directory and no symbolic
 * link, belong to the effective user, and not be writable by any other.
 */
int pn_data_dir_open(const char *path);

/* Would that open it? */
int pn_data_dir_check(const char *path);

/* The same, and fill in *dir (nothing to be closed).  `uid` is for the name; `kind`: a letter. */
int pn_data_dir_init(struct pn_data_dir *dir, const char *path, uint32_t uid, const char *segment,
                     uint64_t instance, char kind);

void pn_data_dir_name(const struct pn_data_dir *dir, uint64_t number, char name[PN_DATA_FILE_NAME]);

/* "could not <what> <directory>/<name>: <why>"; returns -error. */
int pn_data_dir_failed(const struct pn_data_dir *dir, uint64_t number, const char *what, int error);

/* That the files of the directory are there after a reboot. */
int pn_data_dir_sync(const struct pn_data_dir *dir);

/* Bytes that a file in that directory may still get; UINT64_MAX: not known. */
uint64_t pn_data_dir_room(const char *path);

/* 16 hexadecimal digits, as names have them; they need not be the end. */
bool pn_data_dir_digits(const char *text, uint64_t *value);

/*
 * Call found(arg, dirfd, name, what follows the prefix) for each name that begins with it, in no
 * order.  What it returns but 0 ends that, and is returned.
 */
int pn_data_dir_each(const char *path, const char *prefix,
                     int (*found)(void *arg, int dirfd, const char *name, const char *rest),
                     void *arg);

/* Call found(arg, number) for each file of dir; in no order.  What it returns but 0 ends that. */
int pn_data_dir_list(const struct pn_data_dir *dir, int (*found)(void *arg, uint64_t number),
                     void *arg);

/* Remove the file; 0 if there is none. */
int pn_data_dir_remove(const struct pn_data_dir *dir, uint64_t number);

/* Remove all files of that segment, instance and kind; how many, or -errno. */
int pn_data_dir_remove_own(const struct pn_data_dir *dir);

/*
 * Remove the files of a segment, of every kind and of every instance but `except` (0: of all);
 * how many, or -errno.  Safe to call again, and while others do.
 */
int pn_data_dir_remove_all(const char *path, uint32_t uid, const char *segment, uint64_t except);

#endif
