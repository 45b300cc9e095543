/* pair.h - an engine and two connections to it, in one process. */
#ifndef PN_TESTS_PAIR_H
#define PN_TESTS_PAIR_H

#include "engine.h"

static pn_engine *engine;
static pn_conn *a, *b;

static inline void two_connections_of(const pn_options *o)
{
    engine = test_engine(o);
    a = test_connect(engine);
    b = test_connect(engine);
}

static inline void two_connections(void)
{
    two_connections_of(NULL);
}

static inline void done(void)
{
    CHECK_ENGINE(engine);
    pn_conn_close(a);
    pn_conn_close(b);
    const pn_stat s = test_stat(engine);
    CHECK_EQ(s.backends, 0);
    CHECK_EQ(s.subscriptions, 0);
    CHECK_EQ(s.patterns, 0);
    CHECK_ENGINE(engine);
    pn_engine_close(engine);
}

#endif
