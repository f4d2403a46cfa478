/* The head. Owns its block. */
#include "model/head.h"

#include <stdlib.h>

#include "op/gather.h"
#include "op/logprob.h"
#include "op/support.h"
#include "op/top.h"

#define BLOCK_MIN 64

static ls_status own_memory(ls_head *h, void *out, int64_t elem_bytes, bool wanted, ls_error *err) {
    return wanted ? ls_memory_alloc(h->device, out, h->opts.rows_max, elem_bytes, "head", err) : LS_OK;
}

/* What ls_head_top takes of a row. */
static int64_t top_bytes(int64_t vocab, int64_t top) {
    const int64_t leaves = ls_logprob_leaves(vocab) * (int64_t)sizeof(ls_logprob_leaf);
    return top > 0
               ? leaves + top * (int64_t)(sizeof(int32_t) + sizeof(float)) + (int64_t)(sizeof(int64_t) + sizeof(float))
               : 0;
}

static ls_status make_top(ls_head *h, ls_error *err) {
    const int64_t top = h->opts.top, f32 = (int64_t)sizeof(float);
    LS_TRY(own_memory(h, &h->top_id, top * (int64_t)sizeof *h->top_id, top > 0, err));
    LS_TRY(own_memory(h, &h->top_logprob, top * f32, top > 0, err));
    LS_TRY(own_memory(h, &h->leaves, ls_logprob_leaves(h->vocab) * (int64_t)sizeof *h->leaves, top > 0, err));
    LS_TRY(own_memory(h, &h->first, (int64_t)sizeof *h->first, top > 0, err));
    return own_memory(h, &h->first_z, f32, top > 0, err);
}

static ls_status make_arrays(ls_head *h, const ls_model_config *c, ls_error *err) {
    const ls_head_opts *o = &h->opts;
    const int64_t i64 = (int64_t)sizeof(int64_t), f32 = (int64_t)sizeof(float), row = h->vocab * f32;
    h->x = (ls_rows){NULL, o->dtype, c->hidden};
    LS_TRY(own_memory(h, &h->index, i64, true, err));
    LS_TRY(own_memory(h, &h->targets, i64, true, err));
    LS_TRY(own_memory(h, &h->x.data, c->hidden * ls_dtype_bytes(o->dtype), true, err));
    LS_TRY(own_memory(h, &h->logits, row, true, err));
    LS_TRY(own_memory(h, &h->logprob, f32, true, err));
    LS_TRY(own_memory(h, &h->lse, f32, o->trains, err));
    LS_TRY(own_memory(h, &h->entropy, f32, o->trains, err));
    LS_TRY(own_memory(h, &h->temperature, f32, o->temperature != 1.0f, err));
    h->processed = h->logits;
    LS_TRY(make_top(h, err));
    if (!o->samples) return LS_OK;
    LS_TRY(own_memory(h, &h->processed, row, o->keeps_logits, err));
    LS_TRY(own_memory(h, &h->sort_space, 2 * row, true, err));
    LS_TRY(own_memory(h, &h->sampling, (int64_t)sizeof *h->sampling, true, err));
    LS_TRY(own_memory(h, &h->mask, 1, true, err));
    LS_TRY(own_memory(h, &h->draws, (int64_t)sizeof *h->draws, true, err));
    LS_TRY(own_memory(h, &h->of_all, f32, o->weighs, err));
    LS_TRY(own_memory(h, &h->of_kept, f32, o->weighs, err));
    LS_TRY(own_memory(h, &h->draw_temperature, f32, o->weighs, err));
    LS_TRY(own_memory(h, &h->of_model, f32, o->weighs && o->weighs_model, err));
    return own_memory(h, &h->kept, i64, true, err);
}

int64_t ls_head_block_rows(const ls_device *device, int64_t vocab, bool trains) {
    const int64_t bytes = trains ? device->table->gradient_block_bytes : device->table->block_bytes;
    const int64_t rows = bytes / (vocab * (int64_t)sizeof(float));
    return rows < BLOCK_MIN ? BLOCK_MIN : rows > LS_HEAD_BLOCK_MAX ? LS_HEAD_BLOCK_MAX : rows;
}

int64_t ls_head_bytes(const ls_model_config *c, const ls_head_opts *o) {
    int64_t row = (int64_t)c->vocab * 4 + c->hidden * ls_dtype_bytes(o->dtype) + 2 * (int64_t)sizeof(int64_t) +
                  (int64_t)sizeof(float);
    if (o->trains) row += 2 * (int64_t)sizeof(float);
    if (o->temperature != 1.0f) row += (int64_t)sizeof(float);
    if (o->samples)
        row += (int64_t)c->vocab * (o->keeps_logits ? 12 : 8) + (int64_t)sizeof(ls_sampling) + 1 +
               (int64_t)sizeof(ls_draw) + (int64_t)sizeof(int64_t);
    if (o->weighs) row += (o->weighs_model ? 4 : 3) * (int64_t)sizeof(float);
    return o->rows_max * (row + top_bytes(c->vocab, o->top));
}

/* Few rows take more of a workspace than many. */
int64_t ls_head_workspace_bytes(const ls_model_config *c, const ls_head_opts *o) {
    const ls_logprob_args args = {.rows = o->rows_max < LS_LOGPROB_SPLIT_ROWS ? o->rows_max : LS_LOGPROB_SPLIT_ROWS,
                                  .vocab = c->vocab};
    const ls_logprob_shard_args shard = {.rows = args.rows, .vocab = c->vocab};
    const int64_t whole = ls_op_logprob_workspace(&args), leaves = ls_op_logprob_shard_workspace(&shard);
    return o->top > 0 && leaves > whole ? leaves : whole;
}

static ls_status write_temperature(ls_head *h, ls_error *err) {
    for (int64_t i = 0; h->temperature != NULL && i < h->opts.rows_max; i++)
        LS_TRY(ls_memory_write(h->device, &h->temperature[i], &h->opts.temperature, sizeof(float), err));
    return LS_OK;
}

ls_status ls_head_create(ls_head **out, ls_device *device, const ls_model_config *config, const ls_head_opts *opts,
                         ls_error *err) {
    ls_head *h = calloc(1, sizeof *h);
    ls_status status;
    *out = NULL;
    if (h == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "head");
    h->device = device;
    h->opts = *opts;
    h->vocab = config->vocab;
    LS_TRY_DONE(make_arrays(h, config, err));
    LS_TRY_DONE(ls_device_prepare(device, ls_head_workspace_bytes(config, opts), err));
    LS_TRY_DONE(write_temperature(h, err));
    *out = h;
    h = NULL;
done:
    ls_head_free(h);
    return status;
}

void ls_head_free(ls_head *h) {
    if (h == NULL) return;
    {
        void *const arrays[] = {h->index,
                                h->targets,
                                h->x.data,
                                h->logits,
                                h->processed == h->logits ? NULL : h->processed,
                                h->mask,
                                h->sampling,
                                h->draws,
                                h->kept,
                                h->sort_space,
                                h->lse,
                                h->entropy,
                                h->logprob,
                                h->temperature,
                                h->of_all,
                                h->of_kept,
                                h->draw_temperature,
                                h->of_model,
                                h->top_id,
                                h->top_logprob,
                                h->leaves,
                                h->first,
                                h->first_z};
        for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) ls_memory_free(h->device, arrays[i]);
    }
    free(h);
}

#define LS_HEAD_WRITE 64

/* From row i on. */
static ls_status write_temperatures(ls_head *h, const ls_sampling *sampling, int64_t i, int64_t n, ls_error *err) {
    float t[LS_HEAD_WRITE];
    int64_t k = 0;
    for (; k < LS_HEAD_WRITE && i + k < n; k++)
        t[k] = sampling[i + k].temperature > 0.0f ? sampling[i + k].temperature : 1.0f;
    return ls_memory_write(h->device, h->draw_temperature + i, t, k * (int64_t)sizeof *t, err);
}

ls_status ls_head_write(ls_head *h, const int64_t *index, const ls_sampling *sampling, const ls_draw *draws, int64_t n,
                        ls_error *err) {
    LS_ASSERT(n <= h->opts.rows_max, "%lld rows of %lld", (long long)n, (long long)h->opts.rows_max);
    LS_TRY(ls_memory_write(h->device, h->index, index, n * (int64_t)sizeof *index, err));
    LS_TRY(ls_memory_write(h->device, h->sampling, sampling, n * (int64_t)sizeof *sampling, err));
    for (int64_t i = 0; h->opts.weighs && i < n; i += LS_HEAD_WRITE) LS_TRY(write_temperatures(h, sampling, i, n, err));
    return ls_memory_write(h->device, h->draws, draws, n * (int64_t)sizeof *draws, err);
}

ls_status ls_head_take(ls_head *h, const ls_model *model, ls_rows x, int64_t x_rows, const int64_t *index, int64_t n,
                       ls_error *err) {
    const int64_t elem = ls_dtype_bytes(x.dtype), row_bytes = model->config.hidden * elem;
    const ls_gather_args gather = {x.data, h->index, h->x.data, x_rows, x.stride * elem, n, row_bytes, row_bytes};
    LS_ASSERT(n <= h->opts.rows_max, "%lld rows of %lld", (long long)n, (long long)h->opts.rows_max);
    h->n = n;
    if (index != NULL) LS_TRY(ls_memory_write(h->device, h->index, index, n * (int64_t)sizeof *index, err));
    LS_TRY(ls_gather(h->device, &gather, err));
    return ls_model_logits(model, h->device, h->x, n, h->logits, err);
}

ls_status ls_head_process(ls_head *h, const ls_sampling *sampling, const uint8_t *mask, ls_error *err) {
    const ls_process_args args = {.logits = h->logits,
                                  .rows = h->n,
                                  .vocab = h->vocab,
                                  .sampling = h->sampling,
                                  .mask = mask == NULL ? NULL : h->mask,
                                  .out = h->processed,
                                  .kept = h->kept,
                                  .sort_space = h->sort_space};
    if (sampling != NULL)
        LS_TRY(ls_memory_write(h->device, h->sampling, sampling, h->n * (int64_t)sizeof *sampling, err));
    if (mask != NULL) LS_TRY(ls_memory_write(h->device, h->mask, mask, h->n, err));
    return ls_process(h->device, &args, err);
}

ls_status ls_head_support(ls_head *h, uint32_t *bits, uint32_t *host, ls_error *err) {
    const ls_support_args find = {h->processed, h->n, h->vocab, bits, false};
    LS_TRY(ls_support(h->device, &find, err));
    LS_TRY(ls_memory_read(h->device, host, bits, h->n * ls_support_words(h->vocab) * (int64_t)sizeof *bits, err));
    return ls_device_wait(h->device, err);
}

ls_status ls_head_sample(ls_head *h, const ls_draw *draws, ls_error *err) {
    const ls_sample_args args = {.processed = h->processed,
                                 .rows = h->n,
                                 .vocab = h->vocab,
                                 .kept = h->kept,
                                 .sampling = h->sampling,
                                 .draws = h->draws,
                                 .token = h->targets};
    if (draws != NULL) LS_TRY(ls_memory_write(h->device, h->draws, draws, h->n * (int64_t)sizeof *draws, err));
    return ls_sample(h->device, &args, err);
}

/* The block's rows of these logits, their tokens' values into `logprob`. */
static ls_logprob_args logprob_args(const ls_head *h, const float *logits, const float *temperature, float *logprob) {
    return (ls_logprob_args){.logits = logits,
                             .dtype = LS_F32,
                             .rows = h->n,
                             .vocab = h->vocab,
                             .row_stride = h->vocab,
                             .targets = h->targets,
                             .ignore_index = -1,
                             .temperature = temperature,
                             .logprob = logprob};
}

ls_status ls_head_weigh(ls_head *h, ls_error *err) {
    const ls_logprob_args of_all = logprob_args(h, h->logits, h->draw_temperature, h->of_all),
                          of_kept = logprob_args(h, h->processed, NULL, h->of_kept);
    LS_TRY(ls_logprob(h->device, &of_all, err));
    if (h->of_model != NULL) {
        const ls_logprob_args of_model = logprob_args(h, h->logits, NULL, h->of_model);
        LS_TRY(ls_logprob(h->device, &of_model, err));
    }
    return ls_logprob(h->device, &of_kept, err);
}

ls_status ls_head_top(ls_head *h, const float *logits, ls_error *err) {
    const int64_t n_leaves = ls_logprob_leaves(h->vocab);
    const ls_logprob_shard_args shard = {.logits = logits,
                                         .dtype = LS_F32,
                                         .rows = h->n,
                                         .vocab = h->vocab,
                                         .row_stride = h->vocab,
                                         .total = h->vocab,
                                         .targets = h->first,
                                         .ignore_index = -1,
                                         .leaves = h->leaves,
                                         .leaf_stride = n_leaves,
                                         .target_z = h->first_z};
    const ls_top_args top = {logits, h->n, h->vocab, h->opts.top, h->leaves, h->top_id, h->top_logprob};
    LS_TRY(ls_logprob_shard(h->device, &shard, err));
    return ls_top(h->device, &top, err);
}

ls_status ls_head_logprob(ls_head *h, const float *logits, const int64_t *targets, bool entropy, ls_error *err) {
    ls_logprob_args args = logprob_args(h, logits, h->temperature, h->logprob);
    args.lse = h->lse;
    args.entropy = entropy ? h->entropy : NULL;
    if (targets != NULL) LS_TRY(ls_memory_write(h->device, h->targets, targets, h->n * (int64_t)sizeof *targets, err));
    return ls_logprob(h->device, &args, err);
}
