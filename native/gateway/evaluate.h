/*
 * evaluate.h - what an expression is worth.  It has been analysed; what a function does to the
 * session is left to gw_env.call().
 */
#ifndef PN_GATEWAY_EVALUATE_H
#define PN_GATEWAY_EVALUATE_H

#include "values.h"

bool gw_evaluate(struct gw_env *env, const struct gw_node *node, struct gw_value *out,
                 struct gw_error *error);

#endif
