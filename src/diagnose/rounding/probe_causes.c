/* What the rungs mean where the suspect is a server. Its trials share one process: what came before is a lever of its
 * own. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/sort.h"
#include "diagnose/compare/compare_causes.h"
#include "diagnose/rounding/foreign.h"

/* ---- requests alone ---- */

/* Answers that are about other tokens than those that were sent. */
static void decide_oddities(ls_inquiry *q) {
    const ls_server_oddities *o = q->runner->door->subject->odd;
    ls_foreign *f = q->f;
    if (o->n_longer + o->n_shorter >= 2 && 10 * (o->n_longer + o->n_shorter) > o->n_answers) {
        ls_foreign_find(f, LS_CAUSE_OTHER_TOKENS, LS_RUNG_ALONE_C, 0.97,
                        "%" PRId64 " of %" PRId64
                        " answers say that the prompt has another number of tokens than was "
                        "sent%s; the last one by %" PRId64,
                        o->n_longer + o->n_shorter, o->n_answers, o->n_longer > 0 ? ", most of them more" : ", fewer",
                        o->longer_by);
        f->found.of[0].settled = true;
    } else if (o->n_other >= 2) {
        const bool all = 2 * o->n_other > o->n_answers;
        ls_foreign_find(f, all ? LS_CAUSE_OTHER_TOKENS : LS_CAUSE_CACHE_CROSSED,
                        all ? LS_RUNG_ALONE_C : LS_RUNG_CACHED_LENGTH, 0.95,
                        "%" PRId64 " of %" PRId64
                        " answers are about other tokens than those that were sent, as many of them",
                        o->n_other, o->n_answers);
        f->found.of[0].settled = true;
    }
}

/* Requests that were never answered. What is off beside them may be theirs, so nothing else is decided when they are
 * several. One that was given more than it could do in the time says nothing. */
static void decide_hangs(ls_inquiry *q) {
    const ls_server_oddities *o = q->runner->door->subject->odd;
    const int64_t n = o->failures.n[LS_FAILURE_TIMED_OUT] + o->failures.n[LS_FAILURE_DIED];
    ls_rung rung = LS_RUNG_ALONE_LONG;
    int64_t n_slow = 0;
    if (n == 0) return;
    for (int r = LS_RUNGS - 1; r >= 0; r--) {
        if (q->f->seen[r].first_hung < 0) continue;
        rung = (ls_rung)r;
        if (ls_foreign_is_slow(q, rung)) n_slow += q->f->seen[r].failures.n[LS_FAILURE_TIMED_OUT];
    }
    ls_foreign_find(q->f, LS_CAUSE_NO_ANSWER, rung, n - n_slow >= 2 ? 0.95 : 0.5,
                    "%" PRId64 " of %" PRId64 " requests were never answered: %" PRId64
                    " had no answer after %g s, %" PRId64 " broke off%s",
                    n, o->n_requests, o->failures.n[LS_FAILURE_TIMED_OUT], q->runner->door->limits.timeout,
                    o->failures.n[LS_FAILURE_DIED],
                    n_slow > 0 ? "; some were given more than they could do in the time" : "");
    q->f->found.of[0].settled = true;
}

bool ls_probe_is_odd(const ls_inquiry *q) {
    const ls_server_oddities *o = q->runner->door->subject->odd;
    return o->n_longer + o->n_shorter >= 2 && 10 * (o->n_longer + o->n_shorter) > o->n_answers;
}

static const ls_rung alone[] = {LS_RUNG_ALONE_A, LS_RUNG_ALONE_B, LS_RUNG_ALONE_C, LS_RUNG_ALONE_LONG, LS_RUNG_LENGTHS};
enum { ALONE = 5, ALONE_MOST = 64 };

/* What the numbers themselves look like: another temperature, a cut distribution. */
static ls_status explain_numbers(ls_inquiry *q, ls_error *err) {
    ls_compare_sequence sequences[ALONE_MOST];
    ls_record *records = NULL;
    ls_mismatch_pair *pairs = NULL;
    const ls_finding *named;
    ls_compare_causes causes;
    int64_t n = 0, n_sequences = 0, most = 0;
    ls_status status;
    for (int r = 0; r < ALONE; r++)
        for (int64_t s = 0; s < q->f->seen[alone[r]].outcomes.n; s++) most += q->f->seen[alone[r]].outcomes.of[s].n;
    LS_TRY_DONE(ls_array_alloc((void **)&pairs, most, sizeof *pairs, "tokens", err));
    LS_TRY_DONE(ls_array_alloc((void **)&records, ALONE_MOST, sizeof *records, "records", err));
    for (int r = 0; r < ALONE; r++)
        for (int64_t s = 0; s < q->f->seen[alone[r]].outcomes.n && n_sequences < ALONE_MOST; s++) {
            const ls_outcome *c = &q->f->seen[alone[r]].outcomes.of[s];
            ls_record *record = &records[n_sequences];
            const int64_t from = n;
            ls_record_init(record);
            record->prompt_ids = (int32_t *)(uintptr_t)c->prompt;
            record->n_prompt = c->n_prompt;
            record->completion_ids = c->completion;
            record->n_completion = record->n_logprobs = c->n;
            for (int64_t i = 0; i < c->n; i++)
                if (isfinite(c->logprob[i]) && isfinite(c->scored[i]))
                    pairs[n++] = (ls_mismatch_pair){(double)c->logprob[i], (double)c->scored[i], n_sequences, i};
            sequences[n_sequences++] = (ls_compare_sequence){record, record, from, n, c->n};
        }
    LS_TRY_DONE(ls_compare_explain(&causes, pairs, n, sequences, n_sequences, err));
    named = ls_compare_named(&causes);
    if (named != NULL && ls_cause_of(named->cause)->family == LS_FAMILY_SAMPLING)
        ls_foreign_find(q->f, named->cause, LS_RUNG_ALONE_LONG, named->confidence,
                        "requests alone: with A what is recorded and B the prompt's values, %s", named->evidence);
done:
    free(records);
    free(pairs);
    return status;
}

/* What decode may read in place of the prompt. */
typedef enum reading { WITH_BOS = 0, WITHOUT_FIRST, FIRST_AGAIN, WITHOUT_LAST, WITH_EOS, READINGS } reading;

static int64_t read_as(const ls_model_config *c, reading how, const ls_outcome *one, int32_t *out) {
    const int64_t n = one->n_prompt;
    int64_t at = 0;
    if ((how == WITH_BOS && c->bos < 0) || (how == WITH_EOS && c->n_eos == 0)) return 0;
    if ((how == WITHOUT_FIRST || how == WITHOUT_LAST) && n < 2) return 0;
    if (how == WITH_BOS) out[at++] = c->bos;
    if (how == FIRST_AGAIN) out[at++] = one->prompt[0];
    for (int64_t i = how == WITHOUT_FIRST; i < n - (how == WITHOUT_LAST); i++) out[at++] = one->prompt[i];
    if (how == WITH_EOS) out[at++] = c->eos[0];
    return at;
}

/* The median |d| of the short requests alone, were their prompts read so; infinite where they cannot be. */
static ls_status measure_reading(ls_inquiry *q, reading how, double *median, ls_error *err) {
    double list[3 * 16];
    int64_t n = 0;
    *median = (double)INFINITY;
    for (int r = 0; r < 3; r++) {
        const ls_outcomes *seen = &q->f->seen[alone[r]].outcomes;
        int32_t ids[64];
        ls_outcomes o = {0};
        ls_prompt prompt = {ids, 0};
        ls_trial trial;
        ls_status status;
        if (seen->n != 1 || seen->of[0].n_prompt > 60 || seen->of[0].n > 16) return LS_OK;
        prompt.n = read_as(q->config, how, &seen->of[0], ids);
        if (prompt.n == 0) return LS_OK;
        ls_rung_trial(q, alone[r], &trial, NULL);
        status = ls_outcomes_create(&o, &trial, &prompt, 1, err);
        if (status == LS_OK) {
            o.of[0].n = seen->of[0].n;
            memcpy(o.of[0].completion, seen->of[0].completion, (size_t)o.of[0].n * sizeof *o.of[0].completion);
            status = ls_sweep_trainer_score(q->runner->door->trainer, &trial, &o, err);
            for (int64_t i = 0; status == LS_OK && i < o.of[0].n; i++)
                list[n++] = fabs((double)seen->of[0].logprob[i] - (double)o.of[0].scored[i]);
        }
        ls_outcomes_deinit(&o);
        LS_TRY(status);
    }
    ls_sort(list, n);
    if (n > 0) *median = list[n / 2];
    return LS_OK;
}

static ls_status explain_readings(ls_inquiry *q, ls_error *err) {
    static const char *const words[READINGS] = {"a begin-of-sequence token in front of the prompt",
                                                "the prompt without its first token", "the prompt's first token twice",
                                                "the prompt without its last token",
                                                "an end-of-sequence token behind the prompt"};
    double least = (double)INFINITY;
    int best = 0;
    for (int how = 0; how < READINGS; how++) {
        double median;
        LS_TRY(measure_reading(q, (reading)how, &median, err));
        if (median < least) least = median, best = how;
    }
    if (least < 0.1 * q->f->floor)
        ls_foreign_find(q->f, LS_CAUSE_OTHER_TOKENS, LS_RUNG_ALONE_C, 0.96,
                        "decode reads %s: with that the median |d| is %.2g in place of %.2g", words[best], least,
                        q->f->floor);
    return LS_OK;
}

/* Requests alone are off as a whole, and nothing explains it: decode and prefill of one server part. */
static ls_status decide_alone(ls_inquiry *q, bool *done, ls_error *err) {
    ls_foreign *f = q->f;
    bool moves = false;
    *done = true;
    if (f->repeat > f->limit) {
        LS_TRY(ls_foreign_repeat(q, LS_RUNG_AGAIN, &moves, err));
        if (moves) return LS_OK;
    }
    if (f->constant) {
        LS_TRY(explain_readings(q, err));
        LS_TRY(explain_numbers(q, err));
        if (f->found.n > 0 && f->found.of[0].confidence >= LS_NAMED) {
            f->found.of[0].settled = true;
            return LS_OK;
        }
        ls_foreign_find(f, LS_CAUSE_WEIGHTS, LS_RUNG_ALONE_LONG, 0.7,
                        "requests alone are off by a median of %.2g between decode and prompt, and nothing that was "
                        "tried takes it away",
                        f->floor);
        return LS_OK;
    }
    *done = false;
    return LS_OK;
}

static void find_if(ls_inquiry *q, ls_rung rung, ls_cause cause, double confidence, const char *what) {
    const ls_seen *s = &q->f->seen[rung];
    if (!ls_rung_off(q, rung)) return;
    ls_foreign_find(q->f, cause, rung, confidence, "%s: %" PRId64 " of %" PRId64 " sequences are off", what,
                    s->n_sequences_off, s->n_sequences);
}

/* What draws are made with must not change what is recorded of them, which is the model's own. */
static void decide_draws(ls_inquiry *q) {
    const bool cold = ls_rung_off(q, LS_RUNG_RAW) || ls_rung_off(q, LS_RUNG_COLD);
    find_if(q, LS_RUNG_RAW, LS_CAUSE_TEMPERATURE, 0.93, "at temperature 0.7");
    if (!ls_rung_off(q, LS_RUNG_RAW)) find_if(q, LS_RUNG_COLD, LS_CAUSE_TEMPERATURE, 0.85, "at temperature 1");
    if (!cold) find_if(q, LS_RUNG_GREEDY, LS_CAUSE_TEMPERATURE, 0.7, "at temperature 0 alone");
    find_if(q, LS_RUNG_TOP_K, LS_CAUSE_CUT, cold ? 0.75 : 0.93, "with top-k 5");
    if (!ls_rung_off(q, LS_RUNG_TOP_K)) find_if(q, LS_RUNG_TOP_P, LS_CAUSE_CUT, cold ? 0.75 : 0.93, "with top-p 0.8");
}

static ls_status lay_long(ls_inquiry *q, int64_t value, ls_trial *trial, ls_requests *r, ls_error *err) {
    int32_t ids[1088];
    ls_rung_trial(q, LS_RUNG_LONG, trial, NULL);
    for (int64_t i = 0; i < value; i++) ids[i] = ls_plain_token(q, 2500, i);
    return ls_requests_add(r, ids, value, err);
}

static ls_status decide_long(ls_inquiry *q, ls_error *err) {
    const ls_seen *s = &q->f->seen[LS_RUNG_LONG];
    int64_t least = INT64_MAX, clean = 130, value = -1, behind = 0, behind_off = 0;
    if (!ls_rung_off(q, LS_RUNG_LONG)) return LS_OK;
    for (int64_t i = 0; i < s->outcomes.n; i++) {
        const ls_outcome *c = &s->outcomes.of[i];
        if (ls_sequence_off(q->f, c) && c->n_prompt < least) least = c->n_prompt;
    }
    for (int64_t i = 0; i < s->outcomes.n; i++) {
        const ls_outcome *c = &s->outcomes.of[i];
        if (c->n_prompt < least && c->n_prompt > clean) clean = c->n_prompt;
        behind += c->n_prompt >= least;
        behind_off += c->n_prompt >= least && ls_sequence_off(q->f, c);
    }
    LS_TRY(ls_foreign_bisect(q, LS_BOUNDED_LENGTH, clean, least, lay_long, &value, err));
    ls_foreign_find(q->f, LS_CAUSE_FROM_A_LENGTH, LS_RUNG_LONG, value > 0 && behind_off == behind ? 0.9 : 0.7,
                    "prompts of fewer than %" PRId64 " tokens are within rounding; %" PRId64 " of %" PRId64
                    " longer ones are off",
                    value > 0 ? value : least, behind_off, behind);
    return LS_OK;
}

static bool any_off(const ls_inquiry *q, ls_rung from, ls_rung to) {
    for (int r = (int)from; r <= (int)to; r++)
        if (ls_rung_off(q, (ls_rung)r)) return true;
    return false;
}

/* The first rung that is off with one request at a time, whose neighbours are none of chance's. */
static ls_rung off_in_turn(const ls_inquiry *q) {
    for (int r = LS_RUNG_LENGTHS; r < LS_RUNGS; r++) {
        ls_trial trial;
        ls_rung_trial(q, (ls_rung)r, &trial, NULL);
        if (ls_rung_off(q, (ls_rung)r) && trial.levers.batch == 1 && trial.outside == 0) return (ls_rung)r;
    }
    return LS_RUNGS;
}

/* The first rung that is off and in which requests stand behind others. */
static ls_rung off_behind(const ls_inquiry *q) {
    for (int r = LS_RUNG_CACHED_SAME; r <= LS_RUNG_CACHED_BATCH; r++)
        if (ls_rung_off(q, (ls_rung)r)) return (ls_rung)r;
    for (int r = LS_RUNG_LENGTHS; r < LS_RUNGS; r++)
        if (ls_rung_off(q, (ls_rung)r)) return (ls_rung)r;
    return LS_RUNGS;
}

static void decide_company(ls_inquiry *q) {
    const bool together = any_off(q, LS_RUNG_PAIR, LS_RUNG_UNEQUAL) || ls_rung_off(q, LS_RUNG_CROWD);
    const bool in_turn = ls_rung_off(q, LS_RUNG_SEQUENCE) || ls_rung_off(q, LS_RUNG_LENGTHS);
    if (in_turn) {
        find_if(q, LS_RUNG_SEQUENCE, LS_CAUSE_STALE_SLOT, 0.75, "one behind the other");
        return;
    }
    find_if(q, LS_RUNG_LEAVERS, LS_CAUSE_STALE_SLOT, together ? 0.75 : 0.88, "behind clients that left");
    if (together) return;
    find_if(q, LS_RUNG_STAGGERED, LS_CAUSE_OTHERS_STATE, 0.75, "begun while others run");
    find_if(q, LS_RUNG_LOAD, LS_CAUSE_PREEMPTED, 0.75, "beside 16 long ones");
    find_if(q, LS_RUNG_MANY, LS_CAUSE_STALE_SLOT, 0.75, "72 prompts, 16 at a time");
    find_if(q, LS_RUNG_FORK, LS_CAUSE_FORK, 0.88, "four samples of a prompt");
}

static ls_status decide(ls_inquiry *q, ls_error *err) {
    ls_foreign *f = q->f;
    ls_rung rung;
    bool found = false, moves = false, undecided;
    decide_oddities(q);
    decide_hangs(q);
    if (f->found.n > 0 && f->found.of[0].confidence >= LS_NAMED) return LS_OK;
    LS_TRY(decide_alone(q, &found, err));
    if (found) return LS_OK;
    rung = off_behind(q);
    if (rung < LS_RUNGS) {
        LS_TRY(ls_decide_kinship(q, rung, true, &found, err));
        undecided = f->undecided;
        f->undecided = false; /* counts need no trial */
        decide_oddities(q);
        f->undecided = undecided;
        if (found || (f->found.n > 0 && f->found.of[0].confidence >= LS_NAMED)) return LS_OK;
        rung = off_in_turn(q);
        if (rung < LS_RUNGS) LS_TRY(ls_foreign_repeat(q, rung, &moves, err));
        if (moves) return LS_OK;
    }
    if (ls_rung_off(q, LS_RUNG_LENGTHS)) return ls_decide_lengths(q, err);
    LS_TRY(decide_long(q, err));
    LS_TRY(ls_decide_batch(q, err));
    decide_company(q);
    decide_draws(q);
    LS_TRY(ls_decide_tokens(q, err));
    find_if(q, LS_RUNG_CACHED_RESET, LS_CAUSE_CACHE_AGED, 0.75, "with the cache emptied in between");
    find_if(q, LS_RUNG_TEXT, LS_CAUSE_OTHER_TOKENS, 0.75, "prompts as text");
    return ls_decide_failures(q, err);
}

/* Values that are not there. What else is wrong stands in front of it. */
static void decide_missing(ls_inquiry *q) {
    const ls_server_oddities *o = q->runner->door->subject->odd;
    ls_foreign *f = q->f;
    const double confidence = f->found.n > 0 && f->found.of[0].confidence >= LS_NAMED ? 0.81 : 0.97;
    const int64_t before = f->found.n;
    if (o->n_missing == 0 && o->n_missing_again == 0) return;
    ls_foreign_find(f, LS_CAUSE_MISSING, LS_RUNG_ALONE_LONG, confidence,
                    "%" PRId64 " of %" PRId64 " decoded values are null, NaN, an infinity or below -9000, %" PRId64
                    " of them of first tokens; so are %" PRId64 " of %" PRId64
                    " values of prompts. The others were compared",
                    o->n_missing, o->n_values, o->n_missing_first, o->n_missing_again, o->n_again);
    for (int64_t i = 0; i < f->found.n && f->found.n > before; i++)
        if (f->found.of[i].cause == LS_CAUSE_MISSING) f->found.of[i].settled = true;
}

ls_status ls_probe_decide(ls_inquiry *q, ls_error *err) {
    LS_TRY(decide(q, err));
    q->f->undecided = false; /* counts need no trial */
    decide_missing(q);
    return LS_OK;
}
