/* Penalties of a tick: lists of the tokens that each row's request has had, one behind the other. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "op/memory.h"
#include "rollout/engine_state.h"

/* Entries of a row that penalties may name: no more than a request has tokens, nor than there are. */
static int64_t items_of_row(const ls_engine *e) {
    const int64_t vocab = e->model->config.vocab;
    return e->opts.length_max < vocab ? e->opts.length_max : vocab;
}

int64_t ls_penalty_bytes(const ls_engine *e) {
    const int64_t row = (int64_t)(sizeof(ls_penalties) + sizeof(int64_t)) +
                        items_of_row(e) * (int64_t)(sizeof(ls_penalty_item) + sizeof(float));
    return e->opts.penalizes ? e->draws_max * row + (int64_t)sizeof(int64_t) : 0;
}

ls_status ls_penalty_allocate(ls_engine *e, ls_error *err) {
    const int64_t n = e->draws_max;
    if (!e->opts.penalizes) return LS_OK;
    if (!ls_mul_i64(n, items_of_row(e), &e->items_max))
        return LS_FAIL(err, LS_ERR_CAPACITY, "batch: penalties of %lld rows", (long long)n);
    LS_TRY(ls_memory_alloc(e->device, (void **)&e->penal.penalties, n, sizeof(ls_penalties), "penalties", err));
    LS_TRY(ls_memory_alloc(e->device, (void **)&e->penal.begins, n + 1, sizeof(int64_t), "penalties", err));
    LS_TRY(
        ls_memory_alloc(e->device, (void **)&e->penal.items, e->items_max, sizeof(ls_penalty_item), "penalties", err));
    LS_TRY(ls_memory_alloc(e->device, (void **)&e->penal.saved, e->items_max, sizeof(float), "penalties", err));
    LS_TRY(ls_array_alloc((void **)&e->penal_host.penalties, n, sizeof(ls_penalties), "penalties", err));
    LS_TRY(ls_array_alloc((void **)&e->penal_host.begins, n + 1, sizeof(int64_t), "penalties", err));
    return ls_array_alloc((void **)&e->penal_host.items, e->items_max, sizeof(ls_penalty_item), "penalties", err);
}

void ls_penalty_deallocate(ls_engine *e) {
    ls_memory_free(e->device, e->penal.penalties);
    ls_memory_free(e->device, e->penal.begins);
    ls_memory_free(e->device, e->penal.items);
    ls_memory_free(e->device, e->penal.saved);
    free(e->penal_host.penalties);
    free(e->penal_host.begins);
    free(e->penal_host.items);
}

ls_status ls_penalty_check(const ls_engine *e, const ls_request *r, ls_error *err) {
    const unsigned p = r->prompt_i, s = r->sample_i;
    if (r->penalties == NULL) return LS_OK;
    if (ls_penalties_check(r->penalties, err) != LS_OK) {
        ls_error_prefix(err, "prompt %u, sample %u", p, s);
        return LS_ERR_ARG;
    }
    if (!ls_penalties_act(r->penalties)) return LS_OK;
    if (!e->opts.penalizes)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "prompt %u, sample %u: penalties in an engine that has none", p, s);
    if (e->opts.logprob_of != LS_LOGPROB_RAW)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED,
                       "prompt %u, sample %u: penalties where processed log-probabilities are recorded", p, s);
    if (ls_request_weighs(r))
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "prompt %u, sample %u: penalties beside the kept mass", p, s);
    return LS_OK;
}

/* The n rows of x (NULL: padding) from row `first` on, whose items begin at `at`; returns their end. A row is for the
 * tokens before it, drafts among them. */
static int64_t write_rows(ls_engine *e, const entry *x, int64_t first, int64_t n, int64_t at) {
    ls_token_counts *t = x != NULL ? x->counts : NULL;
    const int64_t n_items = t != NULL ? t->n : 0;
    const int32_t *drafts = x != NULL ? e->tokens + e->last_row[first] + 1 : NULL;
    for (int64_t i = 0; i < n; i++) {
        if (t != NULL && i > 0) ls_token_counts_add(t, drafts[i - 1]);
        e->penal_host.begins[first + i] = at;
        e->penal_host.penalties[first + i] = t != NULL ? *x->request->penalties : (ls_penalties){1.0f, 0.0f, 0.0f};
        if (t == NULL || t->n == 0) continue;
        memcpy(e->penal_host.items + at, t->items, (size_t)t->n * sizeof *t->items);
        at += t->n;
    }
    if (t != NULL) ls_token_counts_take_back(t, drafts, n - 1, n_items);
    return at;
}

ls_status ls_penalty_write(ls_engine *e, int64_t n, int64_t rows, ls_error *err) {
    int64_t at = 0, n_rows;
    e->tick_penalizes = false;
    if (!e->opts.penalizes) return LS_OK;
    for (int64_t i = 0; i < n && !e->tick_penalizes; i++) e->tick_penalizes = e->drawing[i]->counts != NULL;
    if (!e->tick_penalizes) return LS_OK;
    for (int64_t i = 0; i < rows; i += n_rows) {
        n_rows = i < n ? ls_drawing_rows(e, i, n) : 1;
        at = write_rows(e, i < n ? e->drawing[i] : NULL, i, n_rows, at);
    }
    e->penal_host.begins[rows] = at;
    LS_TRY(ls_memory_write(e->device, e->penal.penalties, e->penal_host.penalties, rows * (int64_t)sizeof(ls_penalties),
                           err));
    LS_TRY(
        ls_memory_write(e->device, e->penal.begins, e->penal_host.begins, (rows + 1) * (int64_t)sizeof(int64_t), err));
    return ls_memory_write(e->device, e->penal.items, e->penal_host.items, at * (int64_t)sizeof(ls_penalty_item), err);
}

ls_status ls_penalty_apply(ls_engine *e, int64_t rows, bool undo, ls_error *err) {
    const ls_penalize_args args = {.logits = e->head->logits,
                                   .rows = rows,
                                   .vocab = e->head->vocab,
                                   .penalties = e->penal.penalties,
                                   .begins = e->penal.begins,
                                   .items = e->penal.items,
                                   .saved = e->penal.saved,
                                   .items_max = e->items_max,
                                   .undo = undo};
    return e->tick_penalizes ? ls_penalize(e->device, &args, err) : LS_OK;
}
