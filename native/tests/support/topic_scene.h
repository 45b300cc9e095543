/* topic_scene.h - an engine and a connection, for topics in one process. */
#ifndef PN_TESTS_TOPIC_SCENE_H
#define PN_TESTS_TOPIC_SCENE_H

#include "topics.h"

static pn_engine *engine;
static pn_conn *conn;

static inline void open_scene(void)
{
    engine = test_engine(NULL);
    conn = test_connect(engine);
}

static inline void close_scene(void)
{
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    CHECK_ENGINE(engine);
    pn_engine_close(engine);
}

#endif
