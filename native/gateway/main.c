/* main.c - pynotify-gateway: a gateway for hosts without Python. */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "pynotify_gateway.h"

enum { LISTED = 256 };

static const char usage[] =
    "usage: pynotify-gateway [options] SEGMENT\n"
    "Speak PostgreSQL's wire protocol on a pynotify segment: LISTEN, NOTIFY, and no database.\n"
    "\n"
    "  --directory DIR      of the socket .s.PGSQL.PORT (needed)\n"
    "  --port N             5432\n"
    "  --tcp                also on 127.0.0.1\n"
    "  --database NAME      that clients may ask for, again for more; '*': any (default: default)\n"
    "  --map NAME=DATABASE  what clients call a database of the segment, again for more\n"
    "  --allow-uid N, --allow-gid N   users and groups besides the segment's, again for more\n"
    "  --latency-log DIR    write latency logs\n"
    "  --authentication-timeout SECONDS   for a client to send its startup message (60)\n"
    "  --busy-poll US       microseconds that it looks for statements before it sleeps (50; 0: "
    "none)\n";

struct arguments {
    pn_gateway_options options;
    const char *databases[LISTED], *maps[LISTED];
    uint32_t uids[LISTED], gids[LISTED];
    const char *segment;
};

static pn_gateway *running;

static void stop(int signo)
{
    (void) signo;
    pn_gateway_stop(running);
}

static void fail(const char *what, const char *message)
{
    fprintf(stderr, "pynotify-gateway: %s%s%s\n", what, what[0] != '\0' ? ": " : "", message);
    exit(EXIT_FAILURE);
}

static uint32_t number(const char *text)
{
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || value > UINT32_MAX)
        fail(text, "is no number");
    return (uint32_t) value;
}

static size_t place(size_t *n)
{
    if (*n == LISTED)
        fail("", "too many of one option");
    return (*n)++;
}

static const struct option long_options[] = {
    {"directory", required_argument, NULL, 'd'},
    {"port", required_argument, NULL, 'p'},
    {"tcp", no_argument, NULL, 't'},
    {"database", required_argument, NULL, 'b'},
    {"map", required_argument, NULL, 'm'},
    {"allow-uid", required_argument, NULL, 'u'},
    {"allow-gid", required_argument, NULL, 'g'},
    {"latency-log", required_argument, NULL, 'l'},
    {"authentication-timeout", required_argument, NULL, 'a'},
    {"busy-poll", required_argument, NULL, 'y'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static void take_option(struct arguments *arguments, int option)
{
    pn_gateway_options *options = &arguments->options;
    switch (option) {
    case 'd':
        options->directory = optarg;
        break;
    case 'p':
        options->port = (int) (number(optarg) & INT32_MAX);
        break;
    case 't':
        options->tcp = 1;
        break;
    case 'b':
        arguments->databases[place(&options->ndatabases)] = optarg;
        break;
    case 'm':
        arguments->maps[place(&options->nmaps)] = optarg;
        break;
    case 'u':
        arguments->uids[place(&options->nuids)] = number(optarg);
        break;
    case 'g':
        arguments->gids[place(&options->ngids)] = number(optarg);
        break;
    case 'l':
        options->latency_log = optarg;
        break;
    case 'a':
        options->authentication_timeout = (int) (number(optarg) & INT32_MAX);
        break;
    case 'y':
        options->busy_poll = (int) (number(optarg) & INT32_MAX);
        if (options->busy_poll == 0)
            options->busy_poll = -1;
        break;
    case 'h':
        fputs(usage, stdout);
        exit(EXIT_SUCCESS);
    default:
        fputs(usage, stderr);
        exit(2);
    }
}

static void read_arguments(struct arguments *arguments, int argc, char **argv)
{
    int option;
    arguments->options.databases = arguments->databases;
    arguments->options.maps = arguments->maps;
    arguments->options.uids = arguments->uids;
    arguments->options.gids = arguments->gids;
    while ((option = getopt_long(argc, argv, "", long_options, NULL)) != -1)
        take_option(arguments, option);
    if (optind + 1 != argc || arguments->options.directory == NULL) {
        fputs(usage, stderr);
        exit(2);
    }
    arguments->segment = argv[optind];
}

/* A client takes a socket and the descriptors of its slot. */
static void raise_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

int main(int argc, char **argv)
{
    struct arguments arguments = {0};
    pn_engine *engine;
    char error[1024];
    read_arguments(&arguments, argc, argv);
    raise_limit();
    if (pn_open(arguments.segment, NULL, &engine) < 0)
        fail(arguments.segment, pn_error_message());
    if (pn_gateway_open(engine, &arguments.options, error, sizeof error, &running) < 0)
        fail(arguments.segment, error);
    struct sigaction action = {.sa_handler = stop};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    printf("listening at %s\n", pn_gateway_path(running));
    fflush(stdout);
    int rc = pn_gateway_run(running);
    if (rc < 0)
        fprintf(stderr, "pynotify-gateway: %s\n", pn_gateway_error(running));
    signal(SIGTERM, SIG_IGN); /* they would stop what is freed */
    signal(SIGINT, SIG_IGN);
    pn_gateway_close(running);
    pn_engine_close(engine);
    return rc < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
