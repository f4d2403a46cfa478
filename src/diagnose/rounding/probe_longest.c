/* Whether a text's values hang on how long the request in front of it was, whatever that said: a scale that is of the
 * longest so far. A hit that is given to the wrong prompt hangs on what was said. */
#include <math.h>

#include "diagnose/rounding/inquiry.h"

/* Behind a short one, so that all begin alike: two texts in front, each of two lengths. */
enum { TEXTS = 4, FROM = 4900, SHORT = 5, NEW = 3, SAID = 2, WAYS = 2 * SAID, EACH = 3 };
#define CHANCE 1e-3

static ls_status lay_longest(ls_inquiry *q, int64_t value, ls_trial *trial, ls_requests *r, ls_error *err) {
    const int64_t way = value % WAYS, n = value / WAYS < LS_PLAIN_MOST ? value / WAYS : LS_PLAIN_MOST;
    const int64_t twice = 2 * n < LS_PLAIN_MOST ? 2 * n : LS_PLAIN_MOST;
    ls_stack_trial(q, LS_STACK_SOLO_C, trial, NULL);
    trial->sampling.temperature = 0.0f;
    trial->max_tokens = NEW;
    for (int64_t i = 0; i < TEXTS; i++) {
        LS_TRY(ls_requests_plain(q, r, FROM, SHORT, err));
        LS_TRY(ls_requests_plain(q, r, FROM + 1 + TEXTS * (way % SAID) + i, way < SAID ? twice : n / 2, err));
        LS_TRY(ls_requests_plain(q, r, FROM + 1 + TEXTS * SAID + i, n, err));
    }
    return LS_OK;
}

static int64_t count_moved(const ls_inquiry *q, const ls_seen *a, const ls_seen *b) {
    int64_t n = 0;
    for (int64_t i = EACH - 1; i < a->outcomes.n && i < b->outcomes.n; i += EACH)
        n += ls_probe_apart(&a->outcomes.of[i], &b->outcomes.of[i]) > ls_probe_moved_from(q);
    return n;
}

ls_status ls_probe_measure_longest(ls_inquiry *q, int64_t length, ls_longest *out, ls_error *err) {
    ls_seen of[WAYS] = {0};
    ls_status status = LS_OK;
    *out = (ls_longest){.n = TEXTS * SAID};
    for (int64_t way = 0; way < WAYS && status == LS_OK; way++)
        status = ls_foreign_try_laid(q, lay_longest, WAYS * length + way, &of[way], err);
    for (int k = 0; k < SAID && status == LS_OK; k++) {
        out->by_length += count_moved(q, &of[k], &of[SAID + k]);
        out->by_text += count_moved(q, &of[SAID * k], &of[SAID * k + 1]);
    }
    for (int way = 0; way < WAYS; way++) ls_seen_deinit(&of[way]);
    LS_TRY(status);
    out->chance = ls_probe_chance(out->by_length, out->n, out->by_text, out->n);
    out->hangs = out->by_text == 0 && out->chance <= CHANCE;
    return LS_OK;
}
