/* prepared.c - the statements that a client has prepared, and its portals. */
#include <stdlib.h>
#include <string.h>

#include "parse.h"
#include "work.h"

struct gw_prepared *gw_find_prepared(const struct gw_session *session, const char *name)
{
    for (struct gw_prepared *prepared = session->prepared; prepared != NULL;
         prepared = prepared->next)
        if (strcmp(prepared->name, name) == 0)
            return prepared;
    return NULL;
}

bool gw_drop_prepared(struct gw_session *session, const char *name)
{
    bool found = false;
    for (struct gw_prepared **at = &session->prepared; *at != NULL;) {
        struct gw_prepared *prepared = *at;
        if (name != NULL && strcmp(prepared->name, name) != 0) {
            at = &prepared->next;
            continue;
        }
        *at = prepared->next;
        gw_script_let_go(prepared->script);
        free(prepared->name);
        free(prepared);
        session->nprepared--;
        found = true;
    }
    return found;
}

struct gw_portal *gw_find_portal(const struct gw_session *session, const char *name)
{
    for (struct gw_portal *portal = session->portals; portal != NULL; portal = portal->next)
        if (strcmp(portal->name, name) == 0)
            return portal;
    return NULL;
}

void gw_free_portal(struct gw_portal *portal)
{
    gw_script_let_go(portal->script);
    gw_arena_free(&portal->arena);
    gw_buffer_free(&portal->rows);
    free(portal->name);
    free(portal);
}

void gw_drop_portal(struct gw_session *session, const char *name)
{
    for (struct gw_portal **at = &session->portals; *at != NULL; at = &(*at)->next)
        if (strcmp((*at)->name, name) == 0) {
            struct gw_portal *portal = *at;
            *at = portal->next;
            gw_free_portal(portal);
            session->nportals--;
            return;
        }
}

/* The one that runs, a COMMIT for instance, goes when it has ended. */
void gw_drop_portals(struct gw_session *session)
{
    for (struct gw_portal **at = &session->portals; *at != NULL;) {
        struct gw_portal *portal = *at;
        if (portal == session->portal) {
            portal->doomed = true;
            at = &portal->next;
            continue;
        }
        *at = portal->next;
        gw_free_portal(portal);
        session->nportals--;
    }
}
