/* sockets.c - see sockets.h. */
#define _GNU_SOURCE
#include "sockets.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BACKLOG = 1024 };

int gw_say(char *message, int error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, GW_SAID, format, arguments);
    va_end(arguments);
    return -error;
}

/* Ours, and no other user may put a socket of the same name into it. */
static int check_directory(char *message, const char *directory, bool shared)
{
    struct stat status;
    mode_t mode = shared ? 0755 : 0700;
    bool made = mkdir(directory, mode) == 0;
    if (made)
        chmod(directory, mode); /* whatever the umask is */
    else if (errno != EEXIST)
        return gw_say(message, errno, "directory %s cannot be made: %s", directory,
                      strerror(errno));
    if (lstat(directory, &status) != 0 ||
        (S_ISLNK(status.st_mode) && status.st_uid == geteuid() && stat(directory, &status) != 0))
        return gw_say(message, errno, "directory %s: %s", directory, strerror(errno));
    if (!S_ISDIR(status.st_mode))
        return gw_say(message, ENOTDIR, "%s is no directory", directory);
    if (status.st_uid != geteuid() || (status.st_mode & 022) != 0)
        return gw_say(message, EACCES,
                      "directory %s is not safe: other users may write to it, or it is not ours\n"
                      "Name one that belongs to uid %u with mode 0700 or 0755.",
                      directory, (unsigned) geteuid());
    return 0;
}

static int in_use(struct gw_sockets *sockets, const char *pid)
{
    return gw_say(sockets->message, EADDRINUSE,
                  "a server (pid %s) listens at %s already\nName another directory or port.", pid,
                  sockets->address.sun_path);
}

/* A server that does not know our lock, a PostgreSQL for instance. */
static bool answers(const struct sockaddr_un *address)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool connected =
        fd >= 0 && (connect(fd, (const struct sockaddr *) address, sizeof *address) == 0 ||
                    errno == EAGAIN); /* its backlog is full */
    if (fd >= 0)
        close(fd);
    return connected;
}

/* Whether the lock is on the file of this name still, and not on one that was removed. */
static bool lock_is_there(const struct gw_sockets *sockets)
{
    struct stat ours, named;
    return fstat(sockets->lock_fd, &ours) == 0 && stat(sockets->lock_path, &named) == 0 &&
           ours.st_ino == named.st_ino && ours.st_dev == named.st_dev;
}

static int take_lock(struct gw_sockets *sockets)
{
    char text[64] = "";
    do {
        if (sockets->lock_fd >= 0)
            close(sockets->lock_fd);
        sockets->lock_fd = open(sockets->lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (sockets->lock_fd < 0)
            return gw_say(sockets->message, errno, "%s: %s", sockets->lock_path, strerror(errno));
        if (flock(sockets->lock_fd, LOCK_EX | LOCK_NB) != 0) {
            ssize_t len = read(sockets->lock_fd, text, sizeof text - 1);
            text[len > 0 ? strcspn(text, "\n") : 0] = '\0';
            close(sockets->lock_fd);
            sockets->lock_fd = -1;
            return in_use(sockets, text);
        }
    } while (!lock_is_there(sockets));
    if (answers(&sockets->address)) { /* the lock file is that server's */
        close(sockets->lock_fd);
        sockets->lock_fd = -1;
        return in_use(sockets, "unknown");
    }
    int len = snprintf(text, sizeof text, "%d\n", (int) getpid());
    if (ftruncate(sockets->lock_fd, 0) != 0 ||
        pwrite(sockets->lock_fd, text, (size_t) len, 0) != len)
        return gw_say(sockets->message, errno, "%s: %s", sockets->lock_path, strerror(errno));
    return 0;
}

static int listen_unix(struct gw_sockets *sockets, bool shared)
{
    const struct sockaddr *address = (const struct sockaddr *) &sockets->address;
    unlink(sockets->address.sun_path); /* of a dead gateway: the lock is ours */
    sockets->unix_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (sockets->unix_fd < 0 || bind(sockets->unix_fd, address, sizeof sockets->address) != 0 ||
        chmod(sockets->address.sun_path, shared ? 0666 : 0600) != 0 ||
        listen(sockets->unix_fd, BACKLOG) != 0)
        return gw_say(sockets->message, errno, "%s: %s", sockets->address.sun_path,
                      strerror(errno));
    return 0;
}

static int listen_tcp(struct gw_sockets *sockets, int port)
{
    int on = 1;
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t) port),
                                  .sin_addr = {htonl(INADDR_LOOPBACK)}};
    sockets->tcp_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (sockets->tcp_fd < 0 ||
        setsockopt(sockets->tcp_fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(sockets->tcp_fd, (const struct sockaddr *) &address, sizeof address) != 0 ||
        listen(sockets->tcp_fd, BACKLOG) != 0)
        return gw_say(sockets->message, errno, "127.0.0.1:%d: %s", port, strerror(errno));
    return 0;
}

int gw_sockets_open(struct gw_sockets *sockets, const char *directory, int port, bool tcp,
                    bool shared)
{
    char *path = sockets->address.sun_path;
    size_t size = sizeof sockets->address.sun_path;
    sockets->unix_fd = sockets->tcp_fd = sockets->lock_fd = -1;
    sockets->address.sun_family = AF_UNIX;
    if ((size_t) snprintf(path, size, "%s/.s.PGSQL.%d", directory, port) >= size) {
        path[0] = '\0';
        return gw_say(sockets->message, ENAMETOOLONG,
                      "the path of a socket has at most %zu bytes: %s", size - 1, directory);
    }
    snprintf(sockets->lock_path, sizeof sockets->lock_path, "%s.lock", path);
    int rc = check_directory(sockets->message, directory, shared);
    if (rc == 0)
        rc = take_lock(sockets);
    if (rc == 0)
        rc = listen_unix(sockets, shared);
    if (rc == 0 && tcp)
        rc = listen_tcp(sockets, port);
    if (rc != 0)
        gw_sockets_close(sockets);
    return rc;
}

void gw_sockets_close(struct gw_sockets *sockets)
{
    if (sockets->tcp_fd >= 0)
        close(sockets->tcp_fd);
    if (sockets->unix_fd >= 0) {
        close(sockets->unix_fd);
        unlink(sockets->address.sun_path);
    }
    if (sockets->lock_fd >= 0) {
        unlink(sockets->lock_path);
        close(sockets->lock_fd);
    }
    sockets->unix_fd = sockets->tcp_fd = sockets->lock_fd = -1;
}
