/*
 * fuzz_gateway.c - a client of the gateway that says anything, in pieces of any size.
 *
 * An input is a number that says how its messages are cut, then for each message what it is: a
 * Query or one of the extended protocol with fields from the input, or bytes as they are.  What
 * the session answers are whole messages that a server sends; ReadyForQuery comes once for each
 * Query, Sync and FunctionCall at the most; and a notification never inside of a transaction.
 */
#define _GNU_SOURCE
#include <string.h>

#include "fuzz.h"
#include "gateway/session.h"
#include "parse.h"

enum { MAX_MESSAGE = 512, MAX_SENT = 1 << 16 };

static struct {
    pn_engine *engine;
    struct gw_shared shared;
    char sent[MAX_SENT];
    size_t len;
    uint32_t asked; /* messages that ReadyForQuery answers */
    bool at_end;    /* of a block: only ReadyForQuery may follow */
    bool raw;       /* bytes that are perhaps no messages: anything may end it */
    char status;    /* of the last ReadyForQuery */
    uint32_t ready;
} f;

static const char *find_database(void *server, const char *name)
{
    (void) server;
    return strcmp(name, "x") == 0 ? "x" : NULL;
}

static void cancel(void *server, uint32_t pid, uint32_t secret)
{
    (void) server;
    (void) pid;
    (void) secret;
}

static enum gw_signaled terminate(void *server, uint32_t by_uid, uint32_t pid, bool session)
{
    (void) server;
    (void) by_uid;
    (void) session;
    return pid == 1 ? GW_SIGNALED : pid == 2 ? GW_NOT_ALLOWED : GW_NO_CLIENT;
}

static void prepare(void)
{
    pn_options options = fuzz_options();
    fuzz_remove();
    FUZZ_OK(pn_create(fuzz_name(), &options));
    FUZZ_OK(pn_open(fuzz_name(), NULL, &f.engine));
    atexit(fuzz_remove);
    f.shared.engine = f.engine;
    pn_engine_options(f.engine, &f.shared.options);
    strcpy(f.shared.version, "PostgreSQL 15.0");
    f.shared.database = find_database;
    f.shared.cancel = cancel;
    f.shared.terminate = terminate;
    f.shared.served = "x";
    f.shared.batch = pn_batch_new();
    pn_set_never_wait(1);
}

/* ---- what is sent ---------------------------------------------------------------------------- */

static void put(const void *bytes, size_t len)
{
    if (len > MAX_SENT - f.len)
        len = MAX_SENT - f.len;
    memcpy(f.sent + f.len, bytes, len);
    f.len += len;
}

static void put_number(uint32_t value, unsigned bytes)
{
    for (unsigned i = bytes; i > 0; i--) {
        char byte = (char) (value >> (8 * (i - 1)));
        put(&byte, 1);
    }
}

static size_t put_rest(struct fuzz_input *in, size_t most)
{
    size_t len = (size_t) fuzz_take(in, 1);
    len = len > most ? most : len;
    len = len > in->left ? in->left : len;
    put(in->at, len);
    in->at += len;
    in->left -= len;
    return len;
}

/* A name is one of a few, so that messages find what others made. */
static void put_name(struct fuzz_input *in)
{
    static const char *const names[] = {"", "a", "b", "c"};
    const char *name = names[fuzz_take(in, 1) % 4];
    put(name, strlen(name) + 1);
}

static void put_statement(struct fuzz_input *in)
{
    static const char *const texts[] = {"LISTEN a",
                                        "NOTIFY a, 'x'",
                                        "BEGIN",
                                        "COMMIT",
                                        "ROLLBACK",
                                        "SAVEPOINT a",
                                        "ROLLBACK TO a",
                                        "SELECT pg_notify($1, $2)",
                                        "SELECT * FROM pg_listening_channels()",
                                        "DISCARD ALL",
                                        "SELECT s FROM generate_series(1, 9) s",
                                        "SET application_name TO x",
                                        "SELECT 1/0",
                                        "",
                                        "SELECT $1::int4 + 1, $2::bool",
                                        "UNLISTEN *"};
    uint8_t which = (uint8_t) fuzz_take(in, 1);
    if (which < 32)
        put(texts[which % 16], strlen(texts[which % 16]));
    else
        put_rest(in, MAX_MESSAGE);
    put("", 1);
}

static void put_bind(struct fuzz_input *in)
{
    put_name(in);
    put_name(in);
    uint32_t formats = (uint32_t) fuzz_take(in, 1) % 3, n = (uint32_t) fuzz_take(in, 1) % 4;
    put_number(formats, 2);
    for (uint32_t i = 0; i < formats; i++)
        put_number((uint32_t) fuzz_take(in, 1) % 2, 2);
    put_number(n, 2);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t len = (uint32_t) fuzz_take(in, 1) % 12;
        put_number(len == 11 ? UINT32_MAX : len, 4);
        for (uint32_t j = 0; len < 11 && j < len; j++)
            put_number((uint32_t) fuzz_take(in, 1), 1);
    }
    formats = (uint32_t) fuzz_take(in, 1) % 3;
    put_number(formats, 2);
    for (uint32_t i = 0; i < formats; i++)
        put_number((uint32_t) fuzz_take(in, 1) % 2, 2);
}

static void put_parse(struct fuzz_input *in)
{
    static const uint32_t types[] = {0, 25, 23, 16, 705, 99999};
    uint32_t n;
    put_name(in);
    put_statement(in);
    n = (uint32_t) fuzz_take(in, 1) % 3;
    put_number(n, 2);
    for (uint32_t i = 0; i < n; i++)
        put_number(types[fuzz_take(in, 1) % 6], 4);
}

static void put_body(struct fuzz_input *in, char type)
{
    switch (type) {
    case 'Q':
        put_statement(in);
        return;
    case 'P':
        put_parse(in);
        return;
    case 'B':
        put_bind(in);
        return;
    case 'D':
    case 'C':
        put(fuzz_take(in, 1) % 2 == 0 ? "S" : "P", 1);
        put_name(in);
        return;
    case 'E':
        put_name(in);
        put_number((uint32_t) fuzz_take(in, 1) % 4, 4);
        return;
    default:
        return;
    }
}

static void put_message(struct fuzz_input *in)
{
    static const char types[] = "QQQPBDESHCSEBPSQ";
    uint8_t what = (uint8_t) fuzz_take(in, 1);
    if (what > 250) {
        f.raw = true;
        put_rest(in, MAX_MESSAGE);
        return;
    }
    char type = what > 240 ? 'F' : types[what % 16];
    size_t start = f.len;
    put(&type, 1);
    put_number(0, 4);
    put_body(in, type);
    uint32_t len = (uint32_t) (f.len - start - 1);
    if (f.len == MAX_SENT) {
        f.len = start;
        return;
    }
    for (int i = 0; i < 4; i++)
        f.sent[start + 1 + (size_t) i] = (char) (len >> (8 * (3 - i)));
    f.asked += type == 'Q' || type == 'S' || type == 'F';
}

/* ---- what is answered ------------------------------------------------------------------------ */

/*
 * In a block, a notification may only be what its end brings: it stands before the ReadyForQuery
 * that says so.
 */
static void check_message(char type, char status)
{
    FUZZ_CHECK(strchr("ACDEIKNRSTZnstv123", type) != NULL, "a message of type %d", type);
    if (f.at_end)
        FUZZ_CHECK(strchr("ASNEZ", type) != NULL, "%c behind notifications in a block", type);
    if (type == 'A' && f.status != 'I')
        f.at_end = true;
    if (type != 'Z')
        return;
    FUZZ_CHECK(!f.at_end || status == 'I', "notifications inside of a block");
    f.at_end = false;
    f.status = status;
    f.ready++;
}

static void check_answers(struct gw_session *session)
{
    struct gw_buffer *out = &session->out;
    while (gw_buffer_size(out) > 0) {
        const char *at = out->data + out->begin;
        FUZZ_CHECK(gw_buffer_size(out) >= 5, "a message without a head");
        size_t len = gw_peek32(at + 1) + (size_t) 1;
        FUZZ_CHECK(len >= 5 && len <= gw_buffer_size(out), "a message of %zu bytes, of %zu", len,
                   gw_buffer_size(out));
        check_message(*at, at[5 < len ? 5 : 0]);
        gw_buffer_sent(out, len);
    }
}

static void send_all(struct gw_session *session, size_t piece)
{
    int64_t now = 1;
    for (size_t at = 0; at < f.len && session->activity != GW_CLOSING; at += piece) {
        size_t len = f.len - at < piece ? f.len - at : piece;
        gw_session_input(session, f.sent + at, len);
        for (int i = 0; i < 100; i++) { /* what sleeps has slept when it is looked at again */
            gw_session_run(session, now);
            check_answers(session);
            gw_session_deliver(session, now);
            check_answers(session);
            if (session->wake_at == 0 && session->activity != GW_READYING)
                break;
            now = session->wake_at;
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char startup[] = "\0\0\0\x1d\0\3\0\0user\0me\0database\0x\0";
    struct fuzz_input in = {data, size};
    if (f.engine == NULL)
        prepare();
    size_t piece = 1 + (size_t) fuzz_take(&in, 1) % 200;
    f.asked = f.ready = 0;
    f.len = 0;
    f.raw = f.at_end = false;
    f.status = 'I';
    put(startup, sizeof startup);
    f.sent[3] = (char) sizeof startup;
    f.asked++;
    while (in.left > 0 && f.len < MAX_SENT)
        put_message(&in);
    const struct gw_peer peer = {.uid = 0};
    struct gw_session *session = gw_session_new(&f.shared, &peer, false, 7);
    FUZZ_CHECK(session != NULL, "no memory");
    send_all(session, piece);
    FUZZ_CHECK(f.ready > 0, "the session did not begin");
    FUZZ_CHECK(f.raw || f.ready <= f.asked, "%u times ready, asked %u times", f.ready, f.asked);
    gw_session_free(session);
    return 0;
}
