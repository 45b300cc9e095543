/* Patterns: examples, a naive matcher that says the same, and what an adversary would take. */
#include "harness.h"

#include <stdbool.h>

#include "base/glob.h"

#define MATCHES(pattern, name) pn_glob_matches(pattern, sizeof(pattern) - 1, name, sizeof(name) - 1)
#define YES(pattern, name)     CHECK(MATCHES(pattern, name))
#define NO(pattern, name)      CHECK(!MATCHES(pattern, name))

static void test_examples(void)
{
    YES("", "");
    NO("", "a");
    NO("a", "");
    YES("*", "");
    YES("**", "abc");
    YES("orders.*", "orders.");
    YES("orders.*", "orders.eu.1");
    NO("orders.*", "orders");
    NO("orders.*", "Orders.1");
    YES("*.eu.*", "orders.eu.1");
    YES("a*b*c", "abbbcbc");
    NO("a*b*c", "abbbcb");
    YES("h?llo", "hello");
    NO("h?llo", "hllo");
    YES("h[ae]llo", "hallo");
    NO("h[ae]llo", "hillo");
    YES("h[^e]llo", "hallo");
    NO("h[^e]llo", "hello");
    NO("h[^e]llo", "hllo");
    YES("h[a-b]llo", "hbllo");
    YES("h[b-a]llo", "hbllo");
    NO("h[a-b]llo", "hcllo");
}

static void test_characters(void)
{
    YES("?", "\xc3\xa9");
    YES("caf?", "caf\xc3\xa9");
    NO("caf??", "caf\xc3\xa9");
    YES("[\xc3\xa0-\xc3\xb6]", "\xc3\xa9");
    NO("[\xc3\xa0-\xc3\xa8]", "\xc3\xa9");
    NO("[^\xc3\xa9]", "\xc3\xa9");
    YES("?*?", "\xf0\x9f\x90\x98\xf0\x9f\x90\x98");
    NO("?*?", "\xf0\x9f\x90\x98");
}

static void test_bytes_that_are_no_character(void)
{
    YES("?", "\xc3");                /* what should follow is not there */
    YES("??", "\xc3(");              /* or is something else */
    YES("??", "\xc0\xaf");           /* overlong */
    YES("???", "\xed\xa0\x80");      /* a surrogate */
    YES("????", "\xf4\x90\x80\x80"); /* beyond Unicode */
    YES("\xff", "\xff");
    NO("\xff", "\xfe");
    NO("[\xc3\xbf-\xc4\x80]", "\xff"); /* U+00FF is another thing than the byte */
    NO("\xc3\xbf", "\xff");
}

static void test_every_pattern_has_a_meaning(void)
{
    YES("\\*", "*");
    NO("\\*", "a");
    YES("\\\\", "\\");
    YES("a\\", "a\\");
    YES("[a", "a");
    NO("[a", "[a");
    NO("[", "[");
    NO("[]", "a");
    YES("[^]", "a");
    NO("[^]", "");
    YES("[\\]]", "]");
    YES("[\\^]", "^");
    YES("[a-]", "-");
    YES("[-a]", "-");
    YES("[a-", "-");
    YES("[a\\-z]", "-");
    NO("[a\\-z]", "b");
    YES("[\\", "\\");
    YES("]", "]");
}

/* As it would be defined: by recursion, on characters. */
struct naive {
    uint32_t at[64];
    size_t n;
};

static uint32_t read_one(const unsigned char **at, const unsigned char *end)
{
    static const struct {
        unsigned char low, high, second_low, second_high, length;
    } forms[] = {
        {0x00, 0x7f, 0, 0, 1},       {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
        {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
        {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4}};
    const unsigned char *p = *at;
    for (size_t f = 0; f < sizeof forms / sizeof forms[0]; f++) {
        size_t length = forms[f].length;
        if (p[0] < forms[f].low || p[0] > forms[f].high || (size_t) (end - p) < length)
            continue;
        if (length > 1 && (p[1] < forms[f].second_low || p[1] > forms[f].second_high))
            continue;
        bool good = true;
        uint32_t value = length == 1 ? p[0] : p[0] & (0xffU >> (length + 1));
        for (size_t i = 1; i < length; i++) {
            good = good && p[i] >= 0x80 && p[i] <= 0xbf;
            value = value << 6 | (p[i] & 0x3f);
        }
        if (good) {
            *at += length;
            return value;
        }
    }
    ++*at;
    return 0x80000000U | p[0];
}

static struct naive decode(const unsigned char *bytes, size_t len)
{
    struct naive text = {.n = 0};
    for (const unsigned char *at = bytes, *end = bytes + len; at < end;)
        text.at[text.n++] = read_one(&at, end);
    return text;
}

/* Where the set that begins at p[i] ends, and whether it has c. */
static size_t naive_set(const struct naive *p, size_t i, uint32_t c, bool *has)
{
    bool others = i < p->n && p->at[i] == '^', found = false;
    i += others;
    while (i < p->n && p->at[i] != ']') {
        i += p->at[i] == '\\' && i + 1 < p->n;
        uint32_t low = p->at[i++], high = low;
        if (i + 1 < p->n && p->at[i] == '-' && p->at[i + 1] != ']') {
            i++;
            i += p->at[i] == '\\' && i + 1 < p->n;
            high = p->at[i++];
        }
        found |= (c >= low && c <= high) || (c >= high && c <= low);
    }
    *has = found != others;
    return i + (i < p->n);
}

static bool naive_matches(const struct naive *p, size_t i, const struct naive *t, size_t k)
{
    if (i == p->n)
        return k == t->n;
    if (p->at[i] == '*')
        return naive_matches(p, i + 1, t, k) || (k < t->n && naive_matches(p, i, t, k + 1));
    if (k == t->n)
        return false;
    if (p->at[i] == '?')
        return naive_matches(p, i + 1, t, k + 1);
    if (p->at[i] == '[') {
        bool has;
        size_t next = naive_set(p, i + 1, t->at[k], &has);
        return has && naive_matches(p, next, t, k + 1);
    }
    i += p->at[i] == '\\' && i + 1 < p->n;
    return p->at[i] == t->at[k] && naive_matches(p, i + 1, t, k + 1);
}

static uint64_t random_state = 88172645463325252ULL;

static uint32_t random_below(uint32_t n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t) (random_state >> 33) % n;
}

/* Exactly as long as it is, so that a sanitizer sees a byte too much that is read. */
static unsigned char *random_bytes(const char *const *parts, uint32_t nparts, size_t *len)
{
    unsigned char room[64];
    size_t n = 0;
    for (uint32_t left = random_below(10); left > 0; left--) {
        const char *part = parts[random_below(nparts)];
        memcpy(room + n, part, strlen(part));
        n += strlen(part);
    }
    if (n > 0 && random_below(20) == 0)
        room[random_below((uint32_t) n)] = (unsigned char) random_below(256);
    unsigned char *exact = malloc(n == 0 ? 1 : n);
    memcpy(exact, room, n);
    *len = n;
    return exact;
}

static void test_a_naive_matcher_says_the_same(void)
{
    static const char *const of_names[] = {"a", "b", "c", "-", "]", "*", "\\", "\xc3\xa9", "\xc3"};
    static const char *const of_patterns[] = {"a",  "b",     "c",    "*",        "*",
                                              "?",  "[",     "]",    "^",        "-",
                                              "\\", "[a-b]", "[^a]", "\xc3\xa9", "\xa9"};
    uint32_t matched = 0;
    for (int i = 0; i < 300000; i++) {
        size_t pattern_len, name_len;
        unsigned char *pattern = random_bytes(of_patterns, 15, &pattern_len);
        unsigned char *name = random_bytes(of_names, 9, &name_len);
        struct naive p = decode(pattern, pattern_len), t = decode(name, name_len);
        bool is = pn_glob_matches((char *) pattern, pattern_len, (char *) name, name_len);
        if (is != naive_matches(&p, 0, &t, 0))
            FAIL("pattern \"%.*s\", name \"%.*s\": %d", (int) pattern_len, (char *) pattern,
                 (int) name_len, (char *) name, is);
        matched += is;
        free(pattern);
        free(name);
    }
    CHECK(matched > 3000); /* both answers were given */
}

/* With a matcher that goes back to each star this would not end. */
static void test_an_adversary(void)
{
    char pattern[255], name[255];
    memset(name, 'a', sizeof name);
    for (size_t i = 0; i < sizeof pattern; i++)
        pattern[i] = i % 2 == 0 ? 'a' : '*';
    pattern[sizeof pattern - 1] = 'b';
    for (int i = 0; i < 100; i++)
        CHECK(!pn_glob_matches(pattern, sizeof pattern, name, sizeof name));
    name[sizeof name - 1] = 'b';
    CHECK(pn_glob_matches(pattern, sizeof pattern, name, sizeof name));
}

int main(void)
{
    test_watchdog(100);
    RUN(test_examples);
    RUN(test_characters);
    RUN(test_bytes_that_are_no_character);
    RUN(test_every_pattern_has_a_meaning);
    RUN(test_a_naive_matcher_says_the_same);
    RUN(test_an_adversary);
    return tests_done();
}
