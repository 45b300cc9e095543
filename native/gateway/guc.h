/*
 * guc.h - the settings of a session (PostgreSQL's Grand Unified Configuration), and how a
 * transaction that is rolled back puts them back.
 *
 * Settings are kept and shown; none but client_min_messages and statement_timeout has an effect.
 */
#ifndef PN_GATEWAY_GUC_H
#define PN_GATEWAY_GUC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire.h"

struct gw_settings;

/* NULL: no memory. */
struct gw_settings *gw_settings_new(const char *server_version, const char *user);
void gw_settings_free(struct gw_settings *settings);

/* NULL: there is none of this name. */
const char *gw_setting(const struct gw_settings *settings, const char *name);
/* As it is written in documentation; NULL: there is none of this name. */
const char *gw_setting_name(const struct gw_settings *settings, const char *name);
/* The i-th, in alphabetical order of those that are known; false: there are not so many. */
bool gw_setting_at(const struct gw_settings *settings, size_t i, const char **name,
                   const char **value);

/* What a client asks for when it connects: its default from then on, too. */
bool gw_setting_start(struct gw_settings *settings, const char *name, const char *value,
                      struct gw_error *error);
/*
 * `value` NULL: the default.  `level` is how deep in subtransactions it happens, 1 is the
 * transaction itself; `local`: until the end of the transaction.
 */
bool gw_setting_set(struct gw_settings *settings, const char *name, const char *value, bool local,
                    uint32_t level, struct gw_error *error);
bool gw_settings_reset(struct gw_settings *settings, uint32_t level, struct gw_error *error);

/* The levels from `level` on are undone, or become part of the one below. */
void gw_settings_rollback(struct gw_settings *settings, uint32_t level);
void gw_settings_release(struct gw_settings *settings, uint32_t level);
void gw_settings_commit(struct gw_settings *settings);

/* ParameterStatus of all that clients are told, or of those that have changed since. */
void gw_settings_report(struct gw_settings *settings, struct gw_buffer *out, bool all);

/* Whether client_min_messages lets a notice of this severity through. */
bool gw_settings_notice(const struct gw_settings *settings, const char *severity);
/* Nanoseconds, 0: none. */
int64_t gw_statement_timeout(const struct gw_settings *settings);

#endif
