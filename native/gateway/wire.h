/*
 * wire.h - the framing of PostgreSQL's protocol 3.0: bytes to fields, fields to bytes.
 *
 * A message is a type byte, a length of four bytes that counts itself, and its body; the first
 * message of a connection has no type.  Whatever a client sends may be cut or false: gw_reader
 * notes that a field was not there, and gives zeroes.
 */
#ifndef PN_GATEWAY_WIRE_H
#define PN_GATEWAY_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- what is sent --------------------------------------------------------------------------- */

struct gw_buffer {
    char *data;
    size_t begin, end, cap; /* [begin, end) is not yet sent */
    bool failed;            /* no memory: the client has to go */
};

void gw_buffer_free(struct gw_buffer *out);
size_t gw_buffer_size(const struct gw_buffer *out);
/* Drop `n` bytes of the front. */
void gw_buffer_sent(struct gw_buffer *out, size_t n);
/* Take back what was put behind the first `size` bytes. */
void gw_buffer_rewind(struct gw_buffer *out, size_t size);

/* A message: its place, for gw_end(), which writes its length. */
size_t gw_begin(struct gw_buffer *out, char type);
void gw_end(struct gw_buffer *out, size_t message);
void gw_put(struct gw_buffer *out, const void *bytes, size_t len);
void gw_put8(struct gw_buffer *out, uint8_t value);
void gw_put16(struct gw_buffer *out, uint16_t value);
void gw_put32(struct gw_buffer *out, uint32_t value);
/* With a NUL behind it. */
void gw_put_text(struct gw_buffer *out, const char *text, size_t len);

/* A message without a body. */
void gw_send_empty(struct gw_buffer *out, char type);
void gw_send_complete(struct gw_buffer *out, const char *tag);
void gw_send_ready(struct gw_buffer *out, char status);
void gw_send_parameter(struct gw_buffer *out, const char *name, const char *value);
void gw_send_key(struct gw_buffer *out, uint32_t pid, uint32_t secret);
void gw_send_notification(struct gw_buffer *out, uint32_t pid, const char *channel,
                          size_t channel_len, const void *payload, size_t payload_len);

/* ---- errors and notices ---------------------------------------------------------------------- */

struct gw_error {
    char code[6];
    char message[1024], detail[256], hint[1024];
    size_t position; /* of a character of the query, from 1; 0: none */
};

/* Fills `error` and returns false. */
bool gw_fail(struct gw_error *error, const char *code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* "" takes it away. */
void gw_hint(struct gw_error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));
void gw_detail(struct gw_error *error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* 22021: about the bytes at `text`. */
bool gw_not_utf8(struct gw_error *error, const char *text, size_t len);
/* Severity "ERROR" or "FATAL". */
void gw_send_error(struct gw_buffer *out, const char *severity, const struct gw_error *error);
/* Severity "NOTICE" or "WARNING". */
void gw_send_notice(struct gw_buffer *out, const char *severity, const struct gw_error *notice);

/* ---- what is received ------------------------------------------------------------------------ */

struct gw_reader {
    const char *at, *end;
    bool cut; /* a field was not there */
};

uint8_t gw_get8(struct gw_reader *in);
uint16_t gw_get16(struct gw_reader *in);
uint32_t gw_get32(struct gw_reader *in);
/* `len` bytes where they stand; NULL: there are not so many. */
const char *gw_get(struct gw_reader *in, size_t len);
/* A text that ends in NUL, where it stands; "": there is none. */
const char *gw_get_text(struct gw_reader *in, size_t *len);

/* Of a message that is not taken out of its bytes yet. */
uint32_t gw_peek32(const char *bytes);

#endif
