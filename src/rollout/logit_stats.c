/* Rows of logits, looked at on the host. */
#include "rollout/logit_stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "op/choice.h"
#include "op/logprob.h"
#include "op/top.h"

struct ls_logit_tools {
    ls_device *device; /* one thread of the CPU */
    int32_t vocab;
    int64_t n_leaves;
    ls_logprob_leaf *leaves;
    float *logits; /* [V] */
    int64_t *target;
    float *target_z;
};

static ls_status own_scratch(ls_logit_tools *t, void *out, int64_t count, int64_t bytes, ls_error *err) {
    return ls_memory_alloc(t->device, out, count, bytes, "row of logits", err);
}

ls_status ls_logit_tools_create(ls_logit_tools **out, int32_t vocab, ls_error *err) {
    ls_logit_tools *t = calloc(1, sizeof *t);
    const ls_logprob_shard_args args = {.rows = 1, .vocab = vocab};
    ls_status status;
    *out = NULL;
    if (t == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "row of logits");
    t->vocab = vocab;
    t->n_leaves = ls_logprob_leaves(vocab);
    LS_TRY_DONE(ls_device_open_named(&t->device, "cpu", 1, ls_isa_best(), err));
    LS_TRY_DONE(ls_device_prepare(t->device, ls_op_logprob_shard_workspace(&args), err));
    LS_TRY_DONE(own_scratch(t, &t->leaves, t->n_leaves, sizeof *t->leaves, err));
    LS_TRY_DONE(own_scratch(t, &t->logits, vocab, sizeof *t->logits, err));
    LS_TRY_DONE(own_scratch(t, &t->target, 1, sizeof *t->target, err));
    LS_TRY_DONE(own_scratch(t, &t->target_z, 1, sizeof *t->target_z, err));
    *out = t;
    t = NULL;
done:
    ls_logit_tools_free(t);
    return status;
}

void ls_logit_tools_free(ls_logit_tools *t) {
    if (t == NULL) return;
    if (t->device != NULL) {
        void *const arrays[] = {t->leaves, t->logits, t->target, t->target_z};
        for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) ls_memory_free(t->device, arrays[i]);
    }
    ls_device_close(t->device);
    free(t);
}

int64_t ls_logit_stats_row_bytes(int64_t wanted_top, bool mask) {
    const int64_t top = wanted_top > 0 ? wanted_top : 0;
    return (wanted_top >= 0 ? (int64_t)sizeof(int64_t) : 0) + top * (int64_t)(sizeof(int32_t) + sizeof(float)) +
           (mask ? LS_STATS_MASK_MAX * (int64_t)sizeof(int32_t) : 0);
}

ls_status ls_logit_stats_init(ls_logit_stats *s, int64_t n_rows, int64_t wanted_top, bool mask, ls_error *err) {
    int64_t bytes;
    char *at;
    *s = (ls_logit_stats){.n_rows = n_rows, .top = wanted_top > 0 ? wanted_top : 0};
    if (!ls_mul_i64(n_rows, ls_logit_stats_row_bytes(wanted_top, mask), &bytes))
        return LS_FAIL(err, LS_ERR_NOMEM, "alternatives of %lld tokens", (long long)n_rows);
    LS_TRY(ls_sparse_alloc(&s->memory, bytes, "alternatives", err));
    at = s->memory.data;
    if (wanted_top >= 0) s->rank = (int64_t *)(void *)at;
    at += wanted_top >= 0 ? n_rows * (int64_t)sizeof *s->rank : 0;
    if (s->top > 0) s->top_id = (int32_t *)(void *)at;
    at += n_rows * s->top * (int64_t)sizeof *s->top_id;
    if (s->top > 0) s->top_logprob = (float *)(void *)at;
    at += n_rows * s->top * (int64_t)sizeof *s->top_logprob;
    if (mask) s->mask = (int32_t *)(void *)at;
    return LS_OK;
}

void ls_logit_stats_deinit(ls_logit_stats *s) {
    ls_sparse_free(&s->memory);
    *s = (ls_logit_stats){0};
}

/* What is told must be a number. */
static ls_status check_value(double value, const char *what, int32_t token, ls_error *err) {
    if (!isnan(value)) return LS_OK;
    return LS_FAIL(err, LS_ERR_FORMAT, "%s of token id %d: " LS_LOGPROB_NAN_TEXT, what, token);
}

static ls_status find_top(ls_logit_stats *s, ls_logit_tools *t, int64_t row, const float *logits, ls_error *err) {
    int32_t *ids = s->top_id + row * s->top;
    const int64_t k = s->top < t->vocab ? s->top : t->vocab;
    const ls_logprob_shard_args shard = {.logits = t->logits,
                                         .dtype = LS_F32,
                                         .rows = 1,
                                         .vocab = t->vocab,
                                         .row_stride = t->vocab,
                                         .total = t->vocab,
                                         .targets = t->target,
                                         .ignore_index = -1,
                                         .leaves = t->leaves,
                                         .leaf_stride = t->n_leaves,
                                         .target_z = t->target_z};
    const ls_top_args args = {t->logits, 1, t->vocab, k, t->leaves, ids, s->top_logprob + row * s->top};
    memcpy(t->logits, logits, (size_t)t->vocab * sizeof *logits);
    *t->target = 0;
    LS_TRY(ls_logprob_shard(t->device, &shard, err));
    LS_TRY(ls_top(t->device, &args, err));
    for (int64_t i = k; i < s->top; i++) ids[i] = -1;
    LS_TRY(ls_device_wait(t->device, err));
    for (int64_t i = 0; i < k; i++)
        if (ids[i] >= 0) LS_TRY(check_value((double)args.logprob[i], "the alternatives", ids[i], err));
    return LS_OK;
}

static void list_mask(ls_logit_stats *s, int64_t row, const float *processed, int32_t vocab) {
    int32_t *ids = s->mask + row * LS_STATS_MASK_MAX;
    int64_t n = 0;
    for (int32_t v = 0; v < vocab && n < LS_STATS_MASK_MAX; v++)
        if (processed[v] > -INFINITY) ids[n++] = v;
    if (n < LS_STATS_MASK_MAX) ids[n] = -1;
}

ls_status ls_logit_stats_take(ls_logit_stats *s, ls_logit_tools *t, int64_t row, int32_t token, const float *logits,
                              const float *processed, const float *recorded, ls_error *err) {
    if (s->rank != NULL) {
        int64_t rank = 1;
        for (int32_t v = 0; v < t->vocab; v++) rank += logits[v] > logits[token];
        s->rank[row] = rank;
    }
    if (s->mask != NULL) list_mask(s, row, processed, t->vocab);
    return s->top > 0 ? find_top(s, t, row, recorded, err) : LS_OK;
}
