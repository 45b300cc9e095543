/*
 * replay.c - main() of a fuzz target without libFuzzer: the corpus, then what becomes of it.
 *
 *     fuzz_read [-runs=N] [-seconds=N] [-seed=N] CORPUS.txt FILE...
 *
 * The mutations are a function of the seed and the corpus, so a run can be had again.  An input
 * that crashes or takes longer than 20 s is written to crash-input in the working directory.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "fuzz.h"

enum {
    MAX_INPUTS = 4096,
    MAX_SIZE = 4096,
    PATIENCE_S = 20 /* for an input, times PYNOTIFY_TIME_FACTOR */
};

static struct {
    uint8_t *data;
    size_t size;
} inputs[MAX_INPUTS];
static size_t ninputs;
static uint8_t current[MAX_SIZE];
static size_t current_size;
static uint64_t state = 1;

static uint64_t draw(void)
{
    uint64_t z = state += 0x9e3779b97f4a7c15ULL;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ z >> 27) * 0x94d049bb133111ebULL;
    return z ^ z >> 31;
}

static size_t below(size_t n)
{
    return n == 0 ? 0 : (size_t) (draw() % n);
}

static void keep_input(int signo)
{
    static const char late[] = "an input that does not end\n";
    int fd = open("crash-input", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (signo == SIGALRM && write(2, late, sizeof late - 1) < 0)
        signo = SIGABRT;
    if (fd < 0 || write(fd, current, current_size) < 0)
        _exit(2);
    signal(SIGABRT, SIG_DFL);
    abort();
}

static void run(void)
{
    const char *factor = getenv("PYNOTIFY_TIME_FACTOR");
    int times = factor == NULL || atoi(factor) < 1 ? 1 : atoi(factor);
    const struct itimerval patience = {.it_value = {.tv_sec = (time_t) PATIENCE_S * times}};
    setitimer(ITIMER_REAL, &patience, NULL);
    LLVMFuzzerTestOneInput(current, current_size);
}

static void add_input(const uint8_t *data, size_t size)
{
    if (ninputs == MAX_INPUTS || (inputs[ninputs].data = malloc(size + 1)) == NULL) {
        fprintf(stderr, "no room for more than %zu inputs\n", ninputs);
        exit(2);
    }
    memcpy(inputs[ninputs].data, data, size);
    inputs[ninputs++].size = size;
}

static int digit(int c)
{
    const char *digits = "0123456789abcdef", *found = c ? strchr(digits, c) : NULL;
    return found == NULL ? -1 : (int) (found - digits);
}

/* A line of a corpus: a name, a space, the bytes in hexadecimal. */
static void add_line(const char *path, const char *line)
{
    const char *hex = strchr(line, ' ');
    size_t size = 0;
    for (hex = hex == NULL ? "?" : hex + 1; *hex != '\0' && *hex != '\n'; hex += 2) {
        int high = digit(hex[0]), low = high < 0 ? -1 : digit(hex[1]);
        if (low < 0 || size == MAX_SIZE) {
            fprintf(stderr, "%s: not \"NAME HEX\" of at most %d bytes: %s", path, MAX_SIZE, line);
            exit(2);
        }
        current[size++] = (uint8_t) (high << 4 | low);
    }
    add_input(current, size);
}

static void read_corpus(const char *path, FILE *file)
{
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, file) > 0)
        add_line(path, line);
    free(line);
}

static void read_file(const char *path)
{
    size_t length = strlen(path);
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        perror(path);
        exit(2);
    }
    if (length > 4 && strcmp(path + length - 4, ".txt") == 0)
        read_corpus(path, file);
    else
        add_input(current, fread(current, 1, sizeof current, file));
    fclose(file);
}

static void insert(size_t at, size_t n)
{
    if (current_size + n > MAX_SIZE)
        return;
    memmove(current + at + n, current + at, current_size - at);
    for (size_t i = 0; i < n; i++)
        current[at + i] = (uint8_t) draw();
    current_size += n;
}

static void erase(size_t at, size_t n)
{
    if (at + n > current_size)
        n = current_size - at;
    memmove(current + at, current + at + n, current_size - at - n);
    current_size -= n;
}

static void cross_over(size_t at)
{
    if (ninputs == 0)
        return;
    size_t other = below(ninputs), from = below(inputs[other].size);
    size_t n = below(inputs[other].size - from + 1);
    if (at + n > MAX_SIZE)
        n = MAX_SIZE - at;
    memcpy(current + at, inputs[other].data + from, n);
    if (current_size < at + n)
        current_size = at + n;
}

static void mutate(void)
{
    static const uint8_t extremes[] = {0, 1, 7, 8, 0x7f, 0x80, 0xff};
    size_t at = below(current_size);
    switch (current_size == 0 ? 2 : below(6)) {
    case 0:
        current[at] ^= (uint8_t) (1U << below(8));
        break;
    case 1:
        current[at] = extremes[below(sizeof extremes)];
        break;
    case 2:
        insert(at, 1 + below(16));
        break;
    case 3:
        erase(at, 1 + below(16));
        break;
    case 4:
        cross_over(at);
        break;
    default:
        current[at] = (uint8_t) draw();
    }
}

int main(int argc, char **argv)
{
    static const int fatal[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM};
    unsigned long runs = 0, seconds = 0, done = 0;
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "-runs=", 6) == 0)
            runs = strtoul(argv[i] + 6, NULL, 10);
        else if (strncmp(argv[i], "-seconds=", 9) == 0)
            seconds = strtoul(argv[i] + 9, NULL, 10);
        else if (strncmp(argv[i], "-seed=", 6) == 0)
            state = strtoull(argv[i] + 6, NULL, 10);
        else
            read_file(argv[i]);
    }
    for (size_t i = 0; i < sizeof fatal / sizeof fatal[0]; i++)
        signal(fatal[i], keep_input);
    for (size_t i = 0; i < ninputs; i++, done++) {
        memcpy(current, inputs[i].data, inputs[i].size);
        current_size = inputs[i].size;
        run();
    }
    time_t until = time(NULL) + (time_t) seconds;
    for (unsigned long i = 0; i < runs || (seconds > 0 && time(NULL) < until); i++, done++) {
        current_size = 0;
        if (ninputs > 0) {
            size_t from = below(ninputs);
            memcpy(current, inputs[from].data, inputs[from].size);
            current_size = inputs[from].size;
        }
        for (size_t n = 1 + below(8); n > 0; n--)
            mutate();
        run();
    }
    printf("%s: %zu inputs of the corpus, %lu runs\n", argv[0], ninputs, done);
    for (size_t i = 0; i < ninputs; i++)
        free(inputs[i].data);
    return 0;
}
