/* report.c - errors and notices of a session, from the gateway and from the core. */
#include <errno.h>
#include <string.h>

#include "work.h"

#define PAUSE_MIN_NS 100000LL
#define PAUSE_MAX_NS 5000000LL

void gw_report(struct gw_session *session)
{
    gw_send_error(&session->out, "ERROR", &session->error);
}

void gw_end_session(struct gw_session *session, const char *code, const char *message)
{
    struct gw_error error;
    gw_fail(&error, code, "%s", message);
    gw_send_error(&session->out, "FATAL", &error);
    session->activity = GW_CLOSING;
}

void gw_notice(struct gw_session *session, const char *severity, const char *code,
               const char *message)
{
    struct gw_error notice;
    if (!gw_settings_notice(session->settings, severity))
        return;
    const char *rest = strchr(message, '\n');
    size_t len = rest != NULL ? (size_t) (rest - message) : strlen(message);
    gw_fail(&notice, code, "%.*s", (int) len, message);
    if (rest != NULL)
        gw_hint(&notice, "%s", rest + 1);
    gw_send_notice(&session->out, severity, &notice);
}

static const char *code_of(int rc)
{
    static const struct {
        int rc;
        const char *code;
    } codes[] = {{PN_EQUEUEFULL, "54000"},   {PN_EROOMBUSY, "54000"}, {PN_ETOOBIG, "54000"},
                 {PN_ECHANNELNAME, "22023"}, {PN_EPAYLOAD, "22023"},  {PN_EBACKENDS, "53300"},
                 {PN_ECHANNELS, "53200"},    {PN_EENCODING, "22021"}, {PN_ELOCK, "55P03"},
                 {PN_ELOCKBUSY, "55P03"},    {PN_EGONE, "57P01"},     {PN_EREAPED, "57P01"},
                 {PN_ECLOSED, "57P01"},      {PN_ECORRUPT, "XX001"},  {ENOMEM, "53200"}};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i].rc == -rc)
            return codes[i].code;
    return "58000";
}

/* The core's message up to its newline; what follows says what to do. */
enum gw_result gw_core_error(struct gw_session *session, int rc)
{
    const char *message = pn_error_message(), *rest = strchr(message, '\n');
    size_t len = rest != NULL ? (size_t) (rest - message) : strlen(message);
    gw_fail(&session->error, code_of(rc), "%.*s", (int) len, message);
    if (rest != NULL)
        gw_hint(&session->error, "%s", rest + 1);
    return GW_FAILED;
}

void gw_try_again(struct gw_session *session)
{
    session->pause = session->pause == 0 ? PAUSE_MIN_NS : session->pause * 2;
    if (session->pause > PAUSE_MAX_NS)
        session->pause = PAUSE_MAX_NS;
    session->wake_at = session->now + session->pause;
}
