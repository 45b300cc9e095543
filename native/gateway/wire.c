/* wire.c - see wire.h. */
#include "wire.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arena.h"

/* ---- what is sent --------------------------------------------------------------------------- */

enum { BUFFER_MIN = 512, BUFFER_KEPT = 16384 };

void gw_buffer_free(struct gw_buffer *out)
{
    free(out->data);
    *out = (struct gw_buffer) {0};
}

size_t gw_buffer_size(const struct gw_buffer *out)
{
    return out->end - out->begin;
}

void gw_buffer_sent(struct gw_buffer *out, size_t n)
{
    out->begin += n;
    if (out->begin != out->end)
        return;
    out->begin = out->end = 0;
    if (out->cap > BUFFER_KEPT) { /* a thousand idle clients keep little */
        free(out->data);
        out->data = NULL;
        out->cap = 0;
    }
}

void gw_buffer_rewind(struct gw_buffer *out, size_t size)
{
    out->end = out->begin + size;
}

/* Room for `len` bytes more. */
static char *reserve(struct gw_buffer *out, size_t len)
{
    if (out->failed)
        return NULL;
    if (out->cap - out->end >= len)
        return out->data + out->end;
    if (out->begin > 0) {
        memmove(out->data, out->data + out->begin, out->end - out->begin);
        out->end -= out->begin;
        out->begin = 0;
        if (out->cap - out->end >= len)
            return out->data + out->end;
    }
    size_t cap = out->cap < BUFFER_MIN ? BUFFER_MIN : out->cap * 2;
    if (cap - out->end < len)
        cap = out->end + len;
    char *data = realloc(out->data, cap);
    if (data == NULL) {
        out->failed = true;
        return NULL;
    }
    out->data = data;
    out->cap = cap;
    return data + out->end;
}

void gw_put(struct gw_buffer *out, const void *bytes, size_t len)
{
    char *at = len > 0 ? reserve(out, len) : NULL;
    if (at == NULL)
        return;
    memcpy(at, bytes, len);
    out->end += len;
}

static void big_endian(char *at, uint64_t value, size_t len)
{
    for (size_t i = 0; i < len; i++)
        at[i] = (char) (value >> (8 * (len - 1 - i)));
}

static void put_number(struct gw_buffer *out, uint64_t value, size_t len)
{
    char *at = reserve(out, len);
    if (at == NULL)
        return;
    big_endian(at, value, len);
    out->end += len;
}

void gw_put8(struct gw_buffer *out, uint8_t value)
{
    put_number(out, value, 1);
}

void gw_put16(struct gw_buffer *out, uint16_t value)
{
    put_number(out, value, 2);
}

void gw_put32(struct gw_buffer *out, uint32_t value)
{
    put_number(out, value, 4);
}

void gw_put_text(struct gw_buffer *out, const char *text, size_t len)
{
    gw_put(out, text, len);
    gw_put8(out, 0);
}

/* A place is kept as its distance from `begin`, since reserve() moves what is there. */
size_t gw_begin(struct gw_buffer *out, char type)
{
    gw_put8(out, (uint8_t) type);
    size_t message = gw_buffer_size(out);
    gw_put32(out, 0);
    return message;
}

void gw_end(struct gw_buffer *out, size_t message)
{
    if (!out->failed)
        big_endian(out->data + out->begin + message, gw_buffer_size(out) - message, 4);
}

void gw_send_empty(struct gw_buffer *out, char type)
{
    gw_end(out, gw_begin(out, type));
}

void gw_send_complete(struct gw_buffer *out, const char *tag)
{
    size_t message = gw_begin(out, 'C');
    gw_put_text(out, tag, strlen(tag));
    gw_end(out, message);
}

void gw_send_ready(struct gw_buffer *out, char status)
{
    size_t message = gw_begin(out, 'Z');
    gw_put8(out, (uint8_t) status);
    gw_end(out, message);
}

void gw_send_parameter(struct gw_buffer *out, const char *name, const char *value)
{
    size_t message = gw_begin(out, 'S');
    gw_put_text(out, name, strlen(name));
    gw_put_text(out, value, strlen(value));
    gw_end(out, message);
}

void gw_send_key(struct gw_buffer *out, uint32_t pid, uint32_t secret)
{
    size_t message = gw_begin(out, 'K');
    gw_put32(out, pid);
    gw_put32(out, secret);
    gw_end(out, message);
}

void gw_send_notification(struct gw_buffer *out, uint32_t pid, const char *channel,
                          size_t channel_len, const void *payload, size_t payload_len)
{
    size_t message = gw_begin(out, 'A');
    gw_put32(out, pid);
    gw_put_text(out, channel, channel_len);
    gw_put_text(out, payload, payload_len);
    gw_end(out, message);
}

/* ---- errors and notices ---------------------------------------------------------------------- */

static void format_text(char *into, size_t size, const char *format, va_list arguments)
{
    int len = vsnprintf(into, size, format, arguments);
    if (len < 0)
        into[0] = '\0';
    else if ((size_t) len >= size)
        into[gw_utf8_valid(into, size - 1)] = '\0'; /* no half of a character */
}

bool gw_fail(struct gw_error *error, const char *code, const char *format, ...)
{
    va_list arguments;
    memcpy(error->code, code, sizeof error->code);
    error->detail[0] = error->hint[0] = '\0';
    error->position = 0;
    va_start(arguments, format);
    format_text(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    return false;
}

void gw_hint(struct gw_error *error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    format_text(error->hint, sizeof error->hint, format, arguments);
    va_end(arguments);
}

void gw_detail(struct gw_error *error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    format_text(error->detail, sizeof error->detail, format, arguments);
    va_end(arguments);
}

bool gw_not_utf8(struct gw_error *error, const char *text, size_t len)
{
    const unsigned char *bytes = (const unsigned char *) text;
    size_t size = bytes[0] < 0xC0   ? 1
                  : bytes[0] < 0xE0 ? 2
                  : bytes[0] < 0xF0 ? 3
                  : bytes[0] < 0xF8 ? 4
                                    : 1;
    char shown[32] = "";
    for (size_t i = 0, used = 0; i < size && i < len; i++)
        used += (size_t) snprintf(shown + used, sizeof shown - used, " 0x%02x", bytes[i]);
    return gw_fail(error, "22021", "invalid byte sequence for encoding \"UTF8\":%s", shown);
}

static void put_field(struct gw_buffer *out, char field, const char *text)
{
    if (text[0] == '\0')
        return;
    gw_put8(out, (uint8_t) field);
    gw_put_text(out, text, strlen(text));
}

static void send_report(struct gw_buffer *out, char type, const char *severity,
                        const struct gw_error *report)
{
    char position[24] = "";
    if (report->position > 0)
        snprintf(position, sizeof position, "%zu", report->position);
    size_t message = gw_begin(out, type);
    put_field(out, 'S', severity);
    put_field(out, 'V', severity);
    put_field(out, 'C', report->code);
    put_field(out, 'M', report->message);
    put_field(out, 'D', report->detail);
    put_field(out, 'H', report->hint);
    put_field(out, 'P', position);
    gw_put8(out, 0);
    gw_end(out, message);
}

void gw_send_error(struct gw_buffer *out, const char *severity, const struct gw_error *error)
{
    send_report(out, 'E', severity, error);
}

void gw_send_notice(struct gw_buffer *out, const char *severity, const struct gw_error *notice)
{
    send_report(out, 'N', severity, notice);
}

/* ---- what is received ------------------------------------------------------------------------ */

const char *gw_get(struct gw_reader *in, size_t len)
{
    if ((size_t) (in->end - in->at) < len) {
        in->cut = true;
        in->at = in->end;
        return NULL;
    }
    const char *bytes = in->at;
    in->at += len;
    return bytes;
}

static uint64_t get_number(struct gw_reader *in, size_t len)
{
    const unsigned char *bytes = (const unsigned char *) gw_get(in, len);
    uint64_t value = 0;
    for (size_t i = 0; bytes != NULL && i < len; i++)
        value = value << 8 | bytes[i];
    return value;
}

uint8_t gw_get8(struct gw_reader *in)
{
    return (uint8_t) get_number(in, 1);
}

uint16_t gw_get16(struct gw_reader *in)
{
    return (uint16_t) get_number(in, 2);
}

uint32_t gw_get32(struct gw_reader *in)
{
    return (uint32_t) get_number(in, 4);
}

const char *gw_get_text(struct gw_reader *in, size_t *len)
{
    const char *text = in->at;
    const char *nul = in->at < in->end ? memchr(text, '\0', (size_t) (in->end - in->at)) : NULL;
    *len = 0;
    if (nul == NULL) {
        in->cut = true;
        in->at = in->end;
        return "";
    }
    *len = (size_t) (nul - text);
    in->at = nul + 1;
    return text;
}

uint32_t gw_peek32(const char *bytes)
{
    struct gw_reader in = {bytes, bytes + 4, false};
    return gw_get32(&in);
}
