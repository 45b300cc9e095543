/* clients.h - the clients of a gateway's loop: their sockets, their slots and their turns. */
#ifndef PN_GATEWAY_CLIENTS_H
#define PN_GATEWAY_CLIENTS_H

#include "server.h"

/* A descriptor in the loop's set: `data` is what its events name; `slot`: a client's slot. */
bool gw_watch(const pn_gateway *gateway, int operation, int fd, uint32_t events, void *data,
              bool slot);
/* Whether the loop looks at the client's times. */
void gw_client_set_timed(pn_gateway *gateway, struct gw_client *client, bool timed);
/* Goes on until the session waits for input, time, or its client. */
void gw_client_serve(pn_gateway *gateway, struct gw_client *client, int64_t now);
void gw_client_input(pn_gateway *gateway, struct gw_client *client, int64_t now);
/* Of its slot, or of its socket. */
void gw_client_event(pn_gateway *gateway, struct gw_client *client, uint32_t events, bool slot,
                     int64_t now);
/* With its last words, as far as its socket takes them. */
void gw_client_refuse(pn_gateway *gateway, struct gw_client *client, const char *code,
                      const char *message, const char *hint);
/* Out of the loop; its memory goes with gw_clients_free_dead(), at the end of the round. */
void gw_client_drop(pn_gateway *gateway, struct gw_client *client);
void gw_clients_free_dead(pn_gateway *gateway);
/* Clients are told; what they do not take soon they do not get. */
void gw_clients_say_goodbye(pn_gateway *gateway);

/* What clients ask of one another: `struct gw_shared` has these.  `server`: the gateway. */
void gw_clients_cancel(void *server, uint32_t pid, uint32_t secret);
enum gw_signaled gw_clients_terminate(void *server, uint32_t by_uid, uint32_t pid,
                                      bool whole_session);

#endif
