/* answer.h - finish, requeue, touch, dead letter. */
#ifndef PN_ANSWER_H
#define PN_ANSWER_H

#include "topic/area.h"

/* What a program answers with. */
struct pn_handle {
    uint64_t id;
    uint32_t delivery, tag;
};

/* An answer as it stands in a transaction; resolved again when that commits. */
struct pn_pending_answer {
    struct pn_handle handle;
    int answer;
    int64_t delay_ns;
    size_t reason_off;
    uint32_t reason_len;
};

/* 0, -PN_ENOTINFLIGHT or -PN_ENOTOWNER.  `held`: it may be held, by our own prepared transaction */
int pn_answer_check_locked(struct pn_conn *conn, const struct pn_handle *h, bool held);
int pn_answer_check_kind(int answer, bool in_transaction);
int64_t pn_answer_delay(int64_t delay_ns);

/* What an answer comes to, once the limit of attempts is looked at. */
enum pn_outcome { PN_OUTCOME_END, PN_OUTCOME_BACK, PN_OUTCOME_DEAD };
enum pn_outcome pn_answer_outcome_locked(struct pn_segment *seg, uint32_t delivery, int answer);
/* The counters of it; before the delivery has changed. */
void pn_answer_count_locked(struct pn_segment *seg, uint32_t delivery, int answer,
                            enum pn_outcome outcome, int64_t now);

int pn_answer(struct pn_conn *conn, const struct pn_handle *h, int answer, int64_t delay_ns,
              const char *reason, size_t reason_len);
int pn_answer_deadline(struct pn_conn *conn, const struct pn_handle *h, int64_t *deadline);

#endif
