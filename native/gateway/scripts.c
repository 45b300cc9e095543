/* scripts.c - compiled texts, which all sessions share: a health check costs no parse. */
#include <string.h>

#include "lex.h"
#include "parse.h"
#include "work.h"

enum { CACHED_TEXT = 1024 };

/* FNV-1a; what it finds is compared. */
static uint64_t hash(uint64_t value, const void *bytes, size_t len)
{
    const unsigned char *at = bytes;
    for (size_t i = 0; i < len; i++)
        value = (value ^ at[i]) * 0x100000001b3ULL;
    return value;
}

static bool is_same(const struct gw_script *script, const char *text, size_t len, bool extended,
                    const uint32_t *types, size_t ntypes)
{
    return script != NULL && !script->spoiled && script->len == len &&
           script->extended == extended && script->ngiven == ntypes &&
           memcmp(script->text, text, len) == 0 &&
           (ntypes == 0 || memcmp(script->given, types, ntypes * sizeof *types) == 0);
}

/* Room for the types of all parameters, and those that are given. */
static bool add_types(struct gw_script *script, bool extended, const uint32_t *types, size_t ntypes)
{
    size_t n = extended ? ntypes : 0;
    for (size_t i = 0; extended && i < script->n; i++)
        if (script->statement[i].nparams > n)
            n = script->statement[i].nparams;
    uint32_t *given = gw_alloc(&script->arena, (ntypes + 1) * sizeof *given);
    uint32_t *all = gw_alloc(&script->arena, (n + 1) * sizeof *all);
    if (given == NULL || all == NULL)
        return false;
    if (ntypes > 0) {
        memcpy(given, types, ntypes * sizeof *given);
        memcpy(all, types, ntypes * sizeof *all);
    }
    script->given = given;
    script->ngiven = ntypes;
    script->types = all;
    script->ntypes = n;
    script->extended = extended;
    return true;
}

static struct gw_script *compile(struct gw_session *session, const char *text, size_t len,
                                 bool extended, const uint32_t *types, size_t ntypes)
{
    size_t valid = gw_utf8_valid(text, len);
    if (valid < len) {
        gw_not_utf8(&session->error, text + valid, len - valid);
        return NULL;
    }
    struct gw_script *script = gw_compile(text, len, &session->error);
    if (script == NULL || add_types(script, extended, types, ntypes))
        return script;
    gw_script_let_go(script);
    gw_fail(&session->error, "53200", "out of memory");
    return NULL;
}

struct gw_script *gw_script_of(struct gw_session *session, const char *text, size_t len,
                               bool extended, const uint32_t *types, size_t ntypes)
{
    struct gw_shared *shared = session->shared;
    uint64_t key = hash(hash(extended ? 1 : 2, text, len < CACHED_TEXT ? len : CACHED_TEXT), types,
                        ntypes * sizeof *types);
    struct gw_script **place = &shared->script[(key ^ key >> 32) % GW_SCRIPTS];
    struct gw_script *script;
    if (is_same(*place, text, len, extended, types, ntypes)) {
        script = gw_script_hold(*place);
    } else {
        script = compile(session, text, len, extended, types, ntypes);
        if (script != NULL && len <= CACHED_TEXT && ntypes <= 16) {
            gw_script_let_go(*place);
            *place = gw_script_hold(script);
        }
    }
    for (struct gw_cut_name *cut = script != NULL ? script->notices : NULL; cut != NULL;
         cut = cut->next)
        gw_notice(session, "NOTICE", "42622", cut->text);
    return script;
}
