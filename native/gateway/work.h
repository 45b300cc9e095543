/*
 * work.h - the parts of a session, each of which calls those before it:
 *
 *   report.c < scripts.c < prepared.c < block.c < run.c < deliver.c < startup.c, extended.c
 *   < session.c
 */
#ifndef PN_GATEWAY_WORK_H
#define PN_GATEWAY_WORK_H

#include "session.h"

enum gw_result { GW_DONE, GW_FAILED, GW_WAITS };

/* ---- report.c ------------------------------------------------------------------------------- */

/* The error of session->error, in session->out. */
void gw_report(struct gw_session *session);
/* FATAL, and the end of the session. */
void gw_end_session(struct gw_session *session, const char *code, const char *message);
void gw_notice(struct gw_session *session, const char *severity, const char *code,
               const char *message);
/* From an error of the core. */
enum gw_result gw_core_error(struct gw_session *session, int rc);
/* Try again what another process had the lock or the room for. */
void gw_try_again(struct gw_session *session);
/* ---- scripts.c ------------------------------------------------------------------------------ */

/* A compiled text; NULL: session->error.  `types`: of parameters, as Parse gave them. */
struct gw_script *gw_script_of(struct gw_session *session, const char *text, size_t len,
                               bool extended, const uint32_t *types, size_t ntypes);

/* ---- prepared.c ----------------------------------------------------------------------------- */

/* NULL: there is none. */
struct gw_prepared *gw_find_prepared(const struct gw_session *session, const char *name);
struct gw_portal *gw_find_portal(const struct gw_session *session, const char *name);
void gw_free_portal(struct gw_portal *portal);
/* NULL name: all.  False: there is none. */
bool gw_drop_prepared(struct gw_session *session, const char *name);
void gw_drop_portal(struct gw_session *session, const char *name);
/* All but the one that runs. */
void gw_drop_portals(struct gw_session *session);

/* ---- block.c: transactions ------------------------------------------------------------------ */

enum gw_result gw_need_transaction(struct gw_session *session);
/* Nothing of what is open remains. */
void gw_rollback(struct gw_session *session);
enum gw_result gw_commit(struct gw_session *session);
/* After an error: a block has failed, an implicit transaction is rolled back. */
void gw_fail_transaction(struct gw_session *session);
enum gw_result gw_run_block_statement(struct gw_session *session,
                                      const struct gw_statement *statement);
/* Of settings: 1 is the transaction, 2 its first savepoint. */
uint32_t gw_level(const struct gw_session *session);
bool gw_ends_block(const struct gw_statement *statement);

/* ---- run.c: statements ---------------------------------------------------------------------- */

/*
 * Run a statement.  Its rows go to `rows`, in the formats of the portal, if there is one; its
 * tag, which is "" for rows, to `tag`.
 */
enum gw_result gw_run_statement(struct gw_session *session, struct gw_statement *statement,
                                const struct gw_portal *portal, bool alone, struct gw_buffer *rows,
                                size_t *nrows, char tag[GW_TAG_SIZE]);
/* What a SELECT says that depends on nothing is evaluated when it is bound, for its errors. */
bool gw_fold(struct gw_session *session, const struct gw_portal *portal);
bool gw_returns_rows(const struct gw_statement *statement);
void gw_send_row_description(struct gw_session *session, const struct gw_statement *statement,
                             const struct gw_portal *portal);

/* ---- extended.c ----------------------------------------------------------------------------- */

void gw_handle_extended(struct gw_session *session, char type, struct gw_reader *in);
void gw_go_on_executing(struct gw_session *session);

/* ---- startup.c ------------------------------------------------------------------------------ */

/* One message of a connection that has not started; false: it is not whole. */
bool gw_startup(struct gw_session *session);
void gw_go_on_connecting(struct gw_session *session);
/* FATAL, with the error of session->error, before there is a slot. */
void gw_refuse(struct gw_session *session);

/* ---- deliver.c ------------------------------------------------------------------------------ */

/* Notifications that are due, changed parameters, ReadyForQuery; when the client takes them. */
void gw_ready(struct gw_session *session);
void gw_go_on_readying(struct gw_session *session);

#endif
