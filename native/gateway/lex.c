/* lex.c - see lex.h. */
#include "lex.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SELF      ",()[].;:+-*/%^<>="
#define OPERATORS "~!@#^&|`?+-*/%<>="

/* ---- errors --------------------------------------------------------------------------------- */

void gw_give_up(struct gw_source *source)
{
    longjmp(*source->out, 1);
}

void gw_no_memory(struct gw_source *source)
{
    gw_fail(source->error, "53200", "out of memory");
    gw_give_up(source);
}

void *gw_need(struct gw_source *source, size_t size)
{
    void *memory = gw_alloc(source->arena, size);
    if (memory == NULL)
        gw_no_memory(source);
    return memory;
}

size_t gw_position(const struct gw_source *source, size_t at)
{
    return source->placeless ? 0 : gw_utf8_length(source->text, at) + 1;
}

/* `message` at or near [start, end) of the source. */
static void __attribute__((noreturn)) syntax_error_at(struct gw_source *source, const char *message,
                                                      size_t start, size_t end)
{
    while (end < source->len && ((unsigned char) source->text[end] & 0xc0) == 0x80)
        end++; /* PostgreSQL cuts a character that follows a number; then that is no UTF-8 */
    if (start >= source->len)
        gw_fail(source->error, "42601", "%s at end of input", message);
    else
        gw_fail(source->error, "42601", "%s at or near \"%.*s\"", message, (int) (end - start),
                source->text + start);
    source->error->position = gw_position(source, start);
    gw_give_up(source);
}

void gw_syntax_error(struct gw_source *source, const struct gw_token *token)
{
    syntax_error_at(source, "syntax error", token->start, token->end);
}

/* ---- characters ------------------------------------------------------------------------------ */

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool begins_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (unsigned char) c >= 128;
}

static bool in_name(char c)
{
    return begins_name(c) || is_digit(c) || c == '$';
}

static bool in_set(char c, const char *set)
{
    return c != '\0' && strchr(set, c) != NULL;
}

/* The byte at `at`, NUL behind the end. */
static char byte(const struct gw_source *source, size_t at)
{
    return at < source->len ? source->text[at] : '\0';
}

static int hex(char c)
{
    if (is_digit(c))
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* `digits` hexadecimal ones at `at`; -1: they are not. */
static int64_t hex_number(const struct gw_source *source, size_t at, size_t digits)
{
    int64_t value = 0;
    for (size_t i = 0; i < digits; i++) {
        int digit = hex(byte(source, at + i));
        if (digit < 0)
            return -1;
        value = value << 4 | digit;
    }
    return value;
}

/* ---- white space and comments ---------------------------------------------------------------- */

static size_t skip_line_comment(const struct gw_source *source, size_t at)
{
    while (at < source->len && source->text[at] != '\n' && source->text[at] != '\r')
        at++;
    return at;
}

/* They nest. */
static size_t skip_block_comment(struct gw_source *source, size_t start)
{
    size_t at = start, depth = 0;
    do {
        if (at >= source->len)
            syntax_error_at(source, "unterminated /* comment", start, source->len);
        if (source->text[at] == '/' && byte(source, at + 1) == '*') {
            depth++;
            at += 2;
        } else if (source->text[at] == '*' && byte(source, at + 1) == '/') {
            depth--;
            at += 2;
        } else {
            at++;
        }
    } while (depth > 0);
    return at;
}

static size_t skip_blank(struct gw_source *source, size_t at)
{
    for (;;) {
        if (is_space(byte(source, at)))
            at++;
        else if (byte(source, at) == '-' && byte(source, at + 1) == '-')
            at = skip_line_comment(source, at);
        else if (byte(source, at) == '/' && byte(source, at + 1) == '*')
            at = skip_block_comment(source, at);
        else
            return at;
    }
}

/*
 * Two literals are one when nothing but blanks with a newline among them, and comments to the end
 * of a line, stand between: where the second one's quote is; 0: it is not so.
 */
static size_t find_continuation(const struct gw_source *source, size_t at)
{
    bool newline = false;
    for (;;) {
        char c = byte(source, at);
        if (c == '\n' || c == '\r')
            newline = true;
        if (is_space(c))
            at++;
        else if (c == '-' && byte(source, at + 1) == '-')
            at = skip_line_comment(source, at);
        else
            return newline && c == '\'' ? at : 0;
    }
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static struct gw_token *add_token(struct gw_source *source, enum gw_token_kind kind, size_t start,
                                  size_t end, const char *text, size_t len)
{
    if (source->ntokens == source->room) {
        size_t room = source->room == 0 ? 16 : source->room * 2;
        struct gw_token *token = gw_need(source, room * sizeof *token);
        if (source->ntokens > 0)
            memcpy(token, source->token, source->ntokens * sizeof *token);
        source->token = token;
        source->room = room;
    }
    char *copy = gw_copy(source->arena, text, len);
    if (copy == NULL)
        gw_no_memory(source);
    struct gw_token *token = &source->token[source->ntokens++];
    *token = (struct gw_token) {kind, copy, len, start, end};
    return token;
}

static void cut_name(struct gw_source *source, struct gw_token *token)
{
    enum { AROUND = 64 };
    if (token->len <= GW_NAME_MAX)
        return;
    size_t kept = gw_utf8_clip(token->text, token->len, GW_NAME_MAX);
    size_t size = token->len + kept + AROUND;
    struct gw_cut_name *cut = gw_need(source, sizeof *cut);
    char *text = gw_need(source, size);
    snprintf(text, size, "identifier \"%s\" will be truncated to \"%.*s\"", token->text, (int) kept,
             token->text);
    cut->text = text;
    *source->last_cut_name = cut;
    source->last_cut_name = &cut->next;
    char *name = gw_copy(source->arena, token->text, kept);
    if (name == NULL)
        gw_no_memory(source);
    token->text = name;
    token->len = kept;
}

static size_t lex_word(struct gw_source *source, size_t start)
{
    size_t end = start;
    while (in_name(byte(source, end)))
        end++;
    struct gw_token *token =
        add_token(source, GW_WORD, start, end, source->text + start, end - start);
    char *text = (char *) token->text;
    for (size_t i = 0; i < token->len; i++)
        if (text[i] >= 'A' && text[i] <= 'Z')
            text[i] = (char) (text[i] - 'A' + 'a');
    cut_name(source, token);
    return end;
}

static size_t lex_number(struct gw_source *source, size_t start)
{
    size_t at = start;
    enum gw_token_kind kind = GW_INTEGER;
    while (is_digit(byte(source, at)))
        at++;
    if (byte(source, at) == '.' && !(byte(source, at + 1) == '.')) {
        kind = GW_DECIMAL;
        for (at++; is_digit(byte(source, at));)
            at++;
    }
    if (byte(source, at) == 'e' || byte(source, at) == 'E') {
        size_t digits = at + 1;
        if (byte(source, digits) == '+' || byte(source, digits) == '-')
            digits++;
        if (is_digit(byte(source, digits))) {
            kind = GW_DECIMAL;
            for (at = digits; is_digit(byte(source, at));)
                at++;
        }
    }
    if (begins_name(byte(source, at)))
        syntax_error_at(source, "trailing junk after numeric literal", start, at + 1);
    add_token(source, kind, start, at, source->text + start, at - start);
    return at;
}

static size_t lex_parameter(struct gw_source *source, size_t start)
{
    size_t end = start + 1;
    while (is_digit(byte(source, end)))
        end++;
    if (begins_name(byte(source, end)))
        syntax_error_at(source, "trailing junk after parameter", start, end + 1);
    add_token(source, GW_PARAMETER, start, end, source->text + start + 1, end - start - 1);
    return end;
}

static size_t lex_operator(struct gw_source *source, size_t start)
{
    size_t end = start;
    if (byte(source, start) == ':' && byte(source, start + 1) == ':') {
        add_token(source, GW_OPERATOR, start, start + 2, "::", 2);
        return start + 2;
    }
    /* A comment ends it; none is longer than a name, so that nothing is looked at for ever. */
    while (end - start < GW_NAME_MAX && in_set(byte(source, end), OPERATORS)) {
        if (end > start && ((source->text[end] == '-' && byte(source, end + 1) == '-') ||
                            (source->text[end] == '/' && byte(source, end + 1) == '*')))
            break;
        end++;
    }
    /* One of several characters ends in + or - only if it has one of these. */
    while (end - start > 1 && in_set(source->text[end - 1], "+-")) {
        bool may = false;
        for (size_t i = start; i + 1 < end; i++)
            may |= in_set(source->text[i], "~!@#^&|`?%");
        if (may)
            break;
        end--;
    }
    if (end == start) {
        if (!in_set(source->text[start], SELF))
            syntax_error_at(source, "syntax error", start, start + 1);
        end = start + 1;
    }
    add_token(source, GW_OPERATOR, start, end, source->text + start, end - start);
    return end;
}

/* ---- quotes ---------------------------------------------------------------------------------- */

/* What a literal or identifier is made of; never longer than its source. */
struct value {
    char *text;
    size_t len;
};

static struct value begin_value(const struct gw_source *source)
{
    return (struct value) {source->scratch, 0};
}

static void add_point(struct gw_source *source, struct value *value, int64_t point, size_t at)
{
    char bytes[4];
    size_t len = point < 0 ? 0 : gw_utf8_encode((uint32_t) point, bytes);
    if (len == 0)
        syntax_error_at(source, "invalid Unicode escape value", at,
                        at + 1 < source->len ? at + 2 : source->len);
    memcpy(value->text + value->len, bytes, len);
    value->len += len;
}

/* Two halves of a surrogate pair make one character: the second half, or -1. */
static int64_t join_surrogates(int64_t high, int64_t low)
{
    if (high < 0xD800 || high > 0xDBFF || low < 0xDC00 || low > 0xDFFF)
        return -1;
    return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
}

static const char bad_pair[] = "invalid Unicode surrogate pair";

/* \u0041, \U00000041 in E'...': where it ends. */
static size_t unicode_escape(struct gw_source *source, struct value *value, size_t at)
{
    size_t digits = source->text[at + 1] == 'u' ? 4 : 8, end = at + 2 + digits;
    int64_t point = hex_number(source, at + 2, digits);
    if (point < 0) {
        gw_fail(source->error, "22025", "invalid Unicode escape");
        gw_hint(source->error, "Unicode escapes must be \\uXXXX or \\UXXXXXXXX.");
        source->error->position = gw_position(source, at);
        gw_give_up(source);
    }
    if (point >= 0xDC00 && point <= 0xDFFF)
        syntax_error_at(source, bad_pair, at, end);
    if (point >= 0xD800 && point <= 0xDBFF) {
        bool low = byte(source, end) == '\\' && byte(source, end + 1) == 'u';
        point = join_surrogates(point, low ? hex_number(source, end + 2, 4) : -1);
        if (point < 0)
            syntax_error_at(source, bad_pair, end, low ? end + 6 : end + 1);
        end += 6;
    }
    add_point(source, value, point, at);
    return end;
}

/* What stands behind a backslash in E'...': where it ends. */
static size_t escape(struct gw_source *source, struct value *value, size_t at)
{
    static const char letters[] = "bfnrt", meant[] = "\b\f\n\r\t";
    char c = byte(source, at + 1);
    int code = -1;
    size_t end = at + 2;
    if (c == 'u' || c == 'U')
        return unicode_escape(source, value, at);
    if (c == 'x' && hex(byte(source, end)) >= 0) {
        code = hex(source->text[end++]);
        if (hex(byte(source, end)) >= 0)
            code = code << 4 | hex(source->text[end++]);
    } else if (c >= '0' && c <= '7') {
        code = c - '0';
        for (int i = 0; i < 2 && byte(source, end) >= '0' && byte(source, end) <= '7'; i++)
            code = (code << 3 | (source->text[end++] - '0')) & 0xFF;
    } else if (in_set(c, letters)) {
        code = meant[strchr(letters, c) - letters];
    }
    value->text[value->len++] = (char) (code >= 0 ? code : c);
    return end;
}

/* From behind the first quote to behind the last one. */
static size_t quoted_text(struct gw_source *source, struct value *value, size_t start, size_t at,
                          char quote, bool escapes)
{
    for (;;) {
        if (at >= source->len)
            syntax_error_at(source,
                            quote == '\'' ? "unterminated quoted string"
                                          : "unterminated quoted identifier",
                            start, source->len);
        char c = source->text[at];
        if (c == '\\' && escapes && at + 1 < source->len) {
            at = escape(source, value, at);
            continue;
        }
        if (c == quote && byte(source, at + 1) == quote) {
            at++;
        } else if (c == quote) {
            size_t next = quote == '\'' ? find_continuation(source, at + 1) : 0;
            if (next == 0)
                return at + 1;
            at = next + 1;
            continue;
        }
        value->text[value->len++] = c;
        at++;
    }
}

static void check_text(struct gw_source *source, const struct value *value)
{
    size_t valid = gw_utf8_valid(value->text, value->len);
    if (valid == value->len)
        return;
    gw_not_utf8(source->error, value->text + valid, value->len - valid);
    gw_give_up(source);
}

static size_t lex_string(struct gw_source *source, size_t start, size_t quote, bool escapes)
{
    struct value value = begin_value(source);
    size_t end = quoted_text(source, &value, start, quote + 1, '\'', escapes);
    check_text(source, &value);
    add_token(source, GW_STRING, start, end, value.text, value.len);
    return end;
}

static size_t lex_identifier(struct gw_source *source, size_t start, size_t quote)
{
    struct value value = begin_value(source);
    size_t end = quoted_text(source, &value, start, quote + 1, '"', false);
    if (value.len == 0)
        syntax_error_at(source, "zero-length delimited identifier", start, end);
    cut_name(source, add_token(source, GW_QUOTED, start, end, value.text, value.len));
    return end;
}

static size_t lex_bits(struct gw_source *source, size_t start)
{
    struct value value = begin_value(source);
    size_t end = quoted_text(source, &value, start, start + 2, '\'', false);
    add_token(source, GW_BITS, start, end, value.text, value.len);
    return end;
}

/* $tag$ ... $tag$; the length of the delimiter, 0: it is none. */
static size_t dollar_tag(const struct gw_source *source, size_t at)
{
    size_t end = at + 1;
    if (begins_name(byte(source, end)))
        while (in_name(byte(source, end)) && source->text[end] != '$')
            end++;
    return byte(source, end) == '$' ? end + 1 - at : 0;
}

static size_t lex_dollar(struct gw_source *source, size_t start, size_t tag)
{
    size_t body = start + tag, at = body;
    while (at + tag <= source->len && memcmp(source->text + at, source->text + start, tag) != 0)
        at++;
    if (at + tag > source->len)
        syntax_error_at(source, "unterminated dollar-quoted string", start, source->len);
    add_token(source, GW_STRING, start, at + tag, source->text + body, at - body);
    return at + tag;
}

/* ---- U&'...' and U&"..." --------------------------------------------------------------------- */

/* UESCAPE 'c' behind it: the character, and where it ends in *end. */
static char escape_character(struct gw_source *source, size_t *end)
{
    size_t at = skip_blank(source, *end);
    static const char word[] = "uescape";
    if (at + sizeof word - 1 > source->len ||
        !gw_same_word(source->text + at, sizeof word - 1, word) ||
        in_name(byte(source, at + sizeof word - 1)))
        return '\\';
    size_t quote = skip_blank(source, at + sizeof word - 1);
    if (byte(source, quote) != '\'')
        syntax_error_at(source, "UESCAPE must be followed by a simple string literal", quote,
                        quote + 1);
    char c = '\''; /* is none */
    for (size_t part = quote; part != 0; part = find_continuation(source, at)) {
        bool empty = byte(source, part + 1) == '\'' && byte(source, part + 2) != '\'';
        at = part + (empty ? 2 : 3);
        if (!empty && (c != '\'' || byte(source, part + 2) != '\''))
            syntax_error_at(source, "invalid Unicode escape character", quote, quote + 1);
        c = empty ? c : byte(source, part + 1);
    }
    if (hex(c) >= 0 || in_set(c, "+'\"") || is_space(c))
        syntax_error_at(source, "invalid Unicode escape character", quote, at);
    *end = at;
    return c;
}

/* One escape at value->text[at]: the code point, and its length in *len. */
static int64_t decode_one(const struct value *value, size_t at, char mark, size_t *len)
{
    struct gw_source text = {.text = value->text, .len = value->len};
    bool six = byte(&text, at + 1) == '+';
    if (byte(&text, at) != mark)
        return -1;
    *len = six ? 8 : 5;
    return six ? hex_number(&text, at + 2, 6) : hex_number(&text, at + 1, 4);
}

static void decode_unicode(struct gw_source *source, struct value *value, char mark, size_t start)
{
    struct value decoded = {gw_need(source, value->len + 1), 0};
    for (size_t at = 0; at < value->len;) {
        size_t len = 0, more = 0;
        if (value->text[at] != mark) {
            decoded.text[decoded.len++] = value->text[at++];
            continue;
        }
        if (at + 1 < value->len && value->text[at + 1] == mark) {
            decoded.text[decoded.len++] = mark;
            at += 2;
            continue;
        }
        int64_t point = decode_one(value, at, mark, &len);
        if (point < 0) {
            gw_fail(source->error, "42601", "invalid Unicode escape");
            gw_hint(source->error, "Unicode escapes must be \\XXXX or \\+XXXXXX.");
            source->error->position = gw_position(source, start + sizeof "U&'" - 1 + at);
            gw_give_up(source);
        }
        int64_t joined = join_surrogates(point, decode_one(value, at + len, mark, &more));
        at += joined >= 0 ? len + more : len;
        add_point(source, &decoded, joined >= 0 ? joined : point, start);
    }
    *value = decoded;
}

static size_t lex_unicode(struct gw_source *source, size_t start)
{
    char quote = source->text[start + 2];
    struct value value = begin_value(source);
    size_t end = quoted_text(source, &value, start, start + 3, quote, false);
    char mark = escape_character(source, &end);
    decode_unicode(source, &value, mark, start);
    check_text(source, &value);
    if (quote == '"' && value.len == 0)
        syntax_error_at(source, "zero-length delimited identifier", start, end);
    enum gw_token_kind kind = quote == '"' ? GW_QUOTED : GW_STRING;
    struct gw_token *token = add_token(source, kind, start, end, value.text, value.len);
    if (kind == GW_QUOTED)
        cut_name(source, token);
    return end;
}

/* ---- a text ---------------------------------------------------------------------------------- */

/* Literals with a letter in front; 0: it is none. */
static size_t lex_prefixed(struct gw_source *source, size_t at)
{
    char c = (char) (source->text[at] | 0x20), next = byte(source, at + 1);
    if (c == 'e' && next == '\'')
        return lex_string(source, at, at + 1, true);
    if ((c == 'b' || c == 'x') && next == '\'')
        return lex_bits(source, at);
    if (c == 'u' && next == '&' && (byte(source, at + 2) == '\'' || byte(source, at + 2) == '"'))
        return lex_unicode(source, at);
    return 0;
}

static size_t lex_one(struct gw_source *source, size_t at)
{
    char c = source->text[at];
    size_t end = begins_name(c) ? lex_prefixed(source, at) : 0;
    if (end > 0)
        return end;
    if (begins_name(c))
        return lex_word(source, at);
    if (is_digit(c) || (c == '.' && is_digit(byte(source, at + 1))))
        return lex_number(source, at);
    if (c == '\'')
        return lex_string(source, at, at, false);
    if (c == '"')
        return lex_identifier(source, at, at);
    if (c == '$' && is_digit(byte(source, at + 1)))
        return lex_parameter(source, at);
    size_t tag = c == '$' ? dollar_tag(source, at) : 0;
    return tag > 0 ? lex_dollar(source, at, tag) : lex_operator(source, at);
}

void gw_lex(struct gw_source *source)
{
    source->last_cut_name = &source->cut_names;
    source->scratch = gw_need(source, source->len + 1);
    size_t at = skip_blank(source, 0);
    while (at < source->len)
        at = skip_blank(source, lex_one(source, at));
    add_token(source, GW_END, source->len, source->len, "", 0);
}
