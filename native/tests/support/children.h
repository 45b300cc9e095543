/* children.h - an engine, perhaps a connection of this process, and pipes from and to children. */
#ifndef PN_TESTS_CHILDREN_H
#define PN_TESTS_CHILDREN_H

#include "engine.h"

static pn_engine *engine;
static pn_conn *mine; /* NULL: this process has none, or the test makes its own */
static int up[2], down[2];

static inline void begin_with(const pn_options *o)
{
    CHECK_EQ(pipe(up), 0);
    CHECK_EQ(pipe(down), 0);
    engine = test_engine(o);
}

static inline void begin(void)
{
    begin_with(NULL);
}

static inline void begin_connected(void)
{
    begin();
    mine = test_connect(engine);
}

static inline void end(void)
{
    CHECK_ENGINE(engine);
    if (mine != NULL)
        pn_conn_close(mine);
    mine = NULL;
    pn_engine_close(engine);
    for (int i = 0; i < 2; i++) {
        close(up[i]);
        close(down[i]);
    }
}

#endif
