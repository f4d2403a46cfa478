/* Explanations: what a suspect would record with one thing changed, against what it did record. */
#include "diagnose/explain/explanations.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* Of the time that is left: large models have more changes than time, and experiments need some, too. */
#define EXPLAIN_SHARE 0.7
/* |d| of nine tenths of requests alone below which nothing is there to be explained. */
#define EXPLAIN_LEAST 5e-5
/* Longest prompt of those that check an explanation. */
#define CHECK_LENGTH 24

enum {
    FEW = 3,       /* texts that a change is first tried on */
    BOTH_MOST = 10 /* of one experiment: sequences that are off */
};

/* ---- the whole ---- */

static void close_explainer(explainer *x) {
    for (int64_t t = 0; x->texts != NULL && t < x->n_texts; t++) {
        free(x->texts[t].tokens);
        free(x->texts[t].rows);
    }
    free(x->texts);
    free(x->work);
    free(x->errors);
    free(x->rows);
    free(x->changed);
}

static ls_status open_text(explainer *x, text *t, const ls_outcome *c, ls_error *err) {
    const int64_t vocab = x->q->config->vocab;
    int64_t elements;
    *t = (text){.n = c->n_prompt + c->n,
                .n_prompt = c->n_prompt,
                .n_recorded = c->n,
                .recorded = c->logprob,
                .scored = c->scored};
    if (!ls_mul_i64(t->n, vocab, &elements)) return LS_FAIL(err, LS_ERR_NOMEM, "logits of the reference forward");
    LS_TRY(ls_array_alloc((void **)&t->tokens, t->n, sizeof *t->tokens, "tokens", err));
    memcpy(t->tokens, c->prompt, (size_t)c->n_prompt * sizeof *t->tokens);
    memcpy(t->tokens + c->n_prompt, c->completion, (size_t)c->n * sizeof *t->tokens);
    if (t->n > x->longest) x->longest = t->n;
    x->n_errors += t->n_recorded;
    if (x->q->reference == NULL) return LS_OK;
    LS_TRY(ls_array_alloc((void **)&t->rows, elements, sizeof *t->rows, "logits", err));
    return ls_reference_logits(x->q->reference, NULL, t->tokens, t->n, t->rows, err);
}

static int by_length(const void *a, const void *b) {
    const text *x = a, *y = b;
    return (x->n > y->n) - (x->n < y->n);
}

/* Of one experiment: sequences that are off in front, and about as many that are not. */
static ls_status open_both(explainer *x, const ls_outcomes *o, ls_error *err) {
    int64_t most = BOTH_MOST;
    for (int pass = 0; pass < 2; pass++) {
        int64_t n = 0;
        for (int64_t s = 0; s < o->n && n < most; s++) {
            if (o->of[s].n == 0 || ls_sequence_off(x->q->f, &o->of[s]) != (pass == 0)) continue;
            LS_TRY(open_text(x, &x->texts[x->n_texts++], &o->of[s], err));
            n++;
        }
        if (pass == 0) qsort(x->texts, (size_t)x->n_texts, sizeof *x->texts, by_length);
        most = n + 2;
    }
    return LS_OK;
}

/* checked: with short prompts of the experiment of lengths behind, which an explanation must hold for as well. */
static ls_status open_explainer(explainer *x, ls_inquiry *q, const ls_stack_experiment *experiments,
                                int64_t n_experiments, bool checked, ls_error *err) {
    const int64_t vocab = q->config->vocab;
    ls_trial trial;
    int64_t n = 0;
    memset(x, 0, sizeof *x);
    x->q = q;
    x->end = ls_door_share(q->runner->door, EXPLAIN_SHARE);
    ls_stack_trial(q, experiments[0], &trial, NULL);
    x->temperature = (double)trial.sampling.temperature;
    x->record_temperature = trial.logprob_of == LS_LOGPROB_RAW ? 1.0 : x->temperature;
    for (int64_t r = 0; r < n_experiments; r++) n += q->f->seen[experiments[r]].outcomes.n;
    if (checked) n += q->f->seen[LS_STACK_LENGTHS].outcomes.n;
    LS_TRY(ls_array_alloc((void **)&x->texts, n, sizeof *x->texts, "texts", err));
    if (n_experiments == 1) LS_TRY(open_both(x, &q->f->seen[experiments[0]].outcomes, err));
    for (int64_t r = 0; n_experiments > 1 && r < n_experiments; r++)
        for (int64_t s = 0; s < q->f->seen[experiments[r]].outcomes.n; s++)
            if (q->f->seen[experiments[r]].outcomes.of[s].n > 0)
                LS_TRY(open_text(x, &x->texts[x->n_texts++], &q->f->seen[experiments[r]].outcomes.of[s], err));
    x->n_solo = x->n_texts;
    x->n_few = x->n_texts < FEW ? x->n_texts : FEW;
    for (int64_t s = 0; checked && s < q->f->seen[LS_STACK_LENGTHS].outcomes.n; s++) {
        const ls_outcome *c = &q->f->seen[LS_STACK_LENGTHS].outcomes.of[s];
        if (c->n > 0 && c->n_prompt <= CHECK_LENGTH) LS_TRY(open_text(x, &x->texts[x->n_texts++], c, err));
    }
    LS_TRY(ls_array_alloc((void **)&x->work, vocab, sizeof *x->work, "logits", err));
    LS_TRY(ls_array_alloc((void **)&x->errors, x->n_errors + 1, sizeof *x->errors, "errors", err));
    if (q->reference != NULL)
        LS_TRY(ls_array_alloc((void **)&x->rows, (x->longest + INSERTED_MOST) * vocab, sizeof *x->rows, "logits", err));
    return ls_array_alloc((void **)&x->changed, x->longest + INSERTED_MOST, sizeof *x->changed, "tokens", err);
}

ls_status ls_explain(ls_inquiry *q, const ls_stack_experiment *experiments, int64_t n_experiments, ls_error *err) {
    explainer x = {0};
    ls_status status;
    q->f->n_best = 0;
    LS_TRY_DONE(open_explainer(&x, q, experiments, n_experiments, n_experiments > 1, err));
    if (x.n_texts == 0) goto done;
    q->f->before = ls_explain_named(LS_CAUSE_NONE, "nothing is changed");
    ls_explain_measure(&x, (how){PLAIN, 0.0, 0}, &q->f->before);
    x.partly =
        !(n_experiments > 1 && q->f->constant) && q->f->before.median < q->f->limit && q->f->before.q90 > q->f->limit;
    ls_explain_measure_few(&x, (how){PLAIN, 0.0, 0}, x.n_few, &x.few_before);
    ls_explain_measure_few(&x, (how){PLAIN, 0.0, 0}, 1, &x.first_before);
    if (q->reference == NULL) {
        if (q->f->before.q90 >= EXPLAIN_LEAST) ls_explain_values(&x);
        goto done;
    }
    LS_TRY_DONE(ls_explain_bf16(&x, err));
    if (n_experiments > 1) { /* each alone in its process they are as good as equal: what is off needs company */
        ls_explanation solo;
        ls_explain_measure_few(&x, (how){PLAIN, 0.0, 0}, x.n_solo, &solo);
        if (solo.q90 < EXPLAIN_LEAST) goto done;
    }
    ls_explain_records(&x);
    if (!q->records_solo) LS_TRY_DONE(ls_explain_models(&x, err));
done:
    close_explainer(&x);
    return status;
}

/* By what is left unexplained, and by how far the best explanation of another family is behind. One with more numbers
 * to look for that leaves no less is no rival: it holds the simpler one in itself. */
double ls_explained_confidence(const ls_foreign *f) {
    const ls_explanation *best = &f->best[0];
    const double left = best->q90 / fmax(f->before.q90, 1e-12), size = best->median + best->q90;
    double share = 0.0;
    for (int64_t i = 1; i < f->n_best && share == 0.0; i++)
        if (f->best[i].cause != best->cause && !f->best[i].harmless && f->best[i].n_free <= best->n_free)
            share = size / fmax(f->best[i].median + f->best[i].q90, 1e-12);
    /* What is left must be small, or as small as rounding makes it: else something like it is wrong, and not it. */
    if (f->bf16_size > 0.0 && left > 0.05 && best->q90 > 3.0 * f->bf16_size) share = fmax(share, 1.1);
    if (best->cause == LS_CAUSE_UNLISTED) return 0.75;
    return fmax(0.0, 0.99 - 0.35 * left - 0.4 * fmax(0.0, share - 0.5));
}

/* Of nine tenths of |d|, what an explanation leaves that needs no better one. */
#define FITS 0.02

/* The error left when windows, states or keys are lost at cuts; keeps the best. */
static ls_status try_cut(explainer *x, ls_edit e, const ls_explanation *before, ls_explanation *best, int32_t *lost,
                         ls_error *err) {
    ls_explanation one;
    LS_TRY(ls_explain_changed(x, e, 1, AS_GIVEN, 0, x->n_texts, &one, err));
    if (one.q90 >= 0.3 * before->q90 || one.q90 >= best->q90) return LS_OK;
    *best = one;
    *lost = e.lose;
    return LS_OK;
}

ls_status ls_explain_cuts(ls_inquiry *q, ls_stack_experiment experiment, int64_t every, int32_t *lost, ls_error *err) {
    explainer x = {0};
    ls_explanation before = {0}, best = {0};
    ls_edit e = {.layer = -1, .cut_every = every};
    ls_status status;
    *lost = 0;
    if (q->reference == NULL) return LS_OK;
    LS_TRY_DONE(open_explainer(&x, q, &experiment, 1, false, err));
    if (x.n_texts == 0) goto done;
    ls_explain_measure(&x, (how){PLAIN, 0.0, 0}, &before);
    best = before;
    for (; e.layer < q->config->n_layers && best.q90 >= FITS * before.q90; e.layer++) {
        e.window_kept = LS_WINDOW_LOST;
        for (e.lose = 1; e.lose < 8; e.lose++) LS_TRY_DONE(try_cut(&x, e, &before, &best, lost, err));
        e.lose = LS_LOSE_WINDOW;
        for (int kept = LS_WINDOW_TURNED; kept <= LS_WINDOW_OLDEST; kept++)
            for (e.window_by = 1; e.window_by < q->config->d_conv; e.window_by++) {
                e.window_kept = (ls_window_kept)kept;
                LS_TRY_DONE(try_cut(&x, e, &before, &best, lost, err));
            }
    }
done:
    close_explainer(&x);
    return status;
}
