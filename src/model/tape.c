/* The forward that keeps what a gradient needs. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/layer_buffer.h"
#include "model/parts.h"
#include "model/tape_state.h"
#include "op/rmsnorm.h"

#define PAGE_TOKENS 16               /* as boxes of attention are (op/cuda/attention_mma16_sm90a_cuda.cu) */
#define CUT_BYTES ((int64_t)1 << 30) /* four sequences of 2,048 tokens of Nemotron-H: they fill a GPU, one does not */
#define LS_TRUNCATED_BLOCK 64        /* rows of a block that is not made smaller */

static ls_status floats(const ls_tape *t, float **out, int64_t rows, int64_t columns, ls_error *err) {
    return ls_memory_alloc(t->device, (void **)out, rows, columns * (int64_t)sizeof(float), "training workspace", err);
}

static ls_status make_backward(ls_tape *t, const ls_model_config *c, ls_error *err) {
    const int64_t rows = t->opts.rows_max, q = (int64_t)c->n_heads * c->head_dim;
    const int64_t block = t->head->opts.rows_max;
    const int64_t normed = c->head_norms ? (int64_t)c->n_heads + c->n_kv_heads : 0;
    const int64_t scales = ls_max_i64(ls_max_i64(ls_max_i64(LS_NORM_PARTS, c->ssd_groups), c->delta_heads),
                                      normed + c->n_kv_heads);        /* of the heads of v there is room as well */
    const bool scans = ls_config_recurrence(c) == LS_RECURRENCE_SCAN; /* the narrow products are Mamba-1's */
    const int64_t picks = c->n_experts > 1 ? c->top_k : 1, narrow = scans ? c->dt_rank + 2 * (int64_t)c->d_state : 0;
    const int64_t states = scans ? c->d_state : 0, dt = scans ? c->d_inner : 0;
    const int64_t inner = ls_max_i64(2 * (int64_t)c->d_inner,
                                     c->d_inner + ls_config_conv_dim(c) + c->ssd_heads + 2 * (int64_t)c->delta_heads);
    /* q | k | v, and with gates each head of q and its gate besides */
    const int64_t heads = (c->head_gates ? 3 : 1) * q + 2 * (int64_t)c->n_kv_heads * c->head_dim;
    const int64_t wide = ls_max_i64(ls_max_i64(inner, ls_max_i64(picks * c->ffn, c->shared_ffn)), heads);
    const struct {
        float **out;
        int64_t rows, columns;
    } arrays[] = {{&t->dh, rows, c->hidden},
                  {&t->dy, c->residual_scale == 0.0f ? 0 : rows, c->hidden},
                  {&t->dx, rows, c->hidden},
                  {&t->da, rows, wide},
                  {&t->db, rows, wide},
                  {&t->dnarrow, rows, narrow},
                  {&t->dnarrow_raw, rows, narrow},
                  {&t->db_state, rows, states},
                  {&t->dc_state, rows, states},
                  {&t->du, rows, c->d_inner},
                  {&t->ddt, rows, dt},
                  {&t->scale, rows, scales},
                  {&t->dhead_norms, c->n_layers, normed * c->head_dim},
                  {&t->dweight, rows, picks},
                  {&t->drouter, rows, c->n_experts},
                  {&t->picked_dweight, rows, picks},
                  {&t->picked_dx, c->n_experts > 1 ? rows : 0, picks * c->hidden},
                  {&t->d_logprob, block, 1},
                  {&t->d_entropy, block, 1}};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        LS_TRY(floats(t, arrays[i].out, arrays[i].rows, arrays[i].columns, err));
    if (c->tied)
        LS_TRY(ls_memory_alloc(t->device, (void **)&t->leaf_tokens, t->opts.leaf_rows_max, sizeof *t->leaf_tokens,
                               "training workspace", err));
    if (!scans)
        LS_TRY(ls_memory_alloc(t->device, (void **)&t->cut_spans, t->opts.spans_max, sizeof *t->cut_spans,
                               "training workspace", err));
    if (t->model->profile != LS_PROFILE_MMA16) return LS_OK;
    return ls_memory_alloc(t->device, (void **)&t->rounded, rows, ls_max_i64(wide, picks * c->hidden) * 2,
                           "training workspace", err);
}

static ls_status make_states(ls_tape *t, ls_error *err) {
    int64_t bytes = 0, floats_most = 0;
    for (const ls_state_tensor *s = t->cache->slot.tensor; s < t->cache->slot.tensor + t->cache->slot.n; s++) {
        bytes = ls_max_i64(bytes, s->bytes);
        floats_most = ls_max_i64(floats_most, s->bytes / ls_dtype_bytes(s->dtype));
    }
    if (bytes == 0) return LS_OK;
    LS_TRY(ls_memory_alloc(t->device, &t->initial, t->opts.group, bytes, "states between spans", err));
    LS_TRY(floats(t, &t->initial_scale, t->opts.group, t->model->config.ssd_heads + t->model->config.delta_heads, err));
    LS_TRY(floats(t, &t->dinitial, t->opts.group, floats_most, err));
    return floats(t, &t->dfinal, t->opts.group, floats_most, err);
}

static ls_status make_keys(ls_tape *t, ls_error *err) {
    const int64_t columns = 2 * (int64_t)t->model->config.n_kv_heads * t->model->config.head_dim;
    if (columns == 0) return LS_OK;
    LS_TRY(ls_memory_alloc(t->device, &t->keys, t->opts.group * t->opts.longest,
                           columns * ls_dtype_bytes(t->opts.dtype), "keys of spans", err));
    LS_TRY(floats(t, &t->dkeys, t->opts.group * t->opts.longest, columns, err));
    LS_TRY(floats(t, &t->dkv, t->opts.rows_max, columns, err));
    LS_TRY(ls_array_alloc((void **)&t->host_key_rows, t->opts.spans_max, sizeof *t->key_rows, "spans", err));
    return ls_memory_alloc(t->device, (void **)&t->key_rows, t->opts.spans_max, sizeof *t->key_rows, "keys of spans",
                           err);
}

/* Of a model whose weights come by layer. */
static ls_status make_layer_gradients(ls_tape *t, ls_error *err) {
    const ls_parameters *p = t->parameters;
    ls_layer_gradients *w = &t->layer_gradients;
    int64_t layer_i = 0, longest = 0;
    if (t->model->layer_buffer == NULL) return LS_OK;
    LS_TRY(ls_array_alloc((void **)&w->begins, t->model->config.n_layers + 1, sizeof *w->begins, "tape", err));
    for (int64_t i = 0; i < p->n; i++) {
        const ls_parameter *q = &p->list[i];
        for (; layer_i <= q->slot.layer_i; layer_i++) w->begins[layer_i] = q->offset;
        if (q->slot.layer_i >= 0) w->begins[layer_i] = q->offset + q->n_elements;
    }
    for (int64_t i = 0; i < layer_i; i++) longest = ls_max_i64(longest, w->begins[i + 1] - w->begins[i]);
    w->begin = w->begins[0];
    w->end = w->begins[layer_i];
    w->n = p->n_elements;
    LS_TRY(ls_memory_alloc(t->device, (void **)&w->layer, longest, sizeof(float), "gradient of a layer", err));
    return ls_memory_alloc(t->device, (void **)&w->ends, w->begin + w->n - w->end, sizeof(float), "gradient of a layer",
                           err);
}

/* Whether sequences may continue others. */
static bool is_shared(const ls_tape *t) { return t->opts.group > 0; }

/* Pages of all spans, each counted where it begins: a span that continues another has a page more, for what it copies.
 */
static bool pages_max(const ls_tape *t, int64_t *out) {
    return ls_add_i64(t->opts.rows_max / PAGE_TOKENS, (is_shared(t) ? 2 : 1) * t->opts.spans_max, out);
}

/* Page numbers of all spans, each with all before it. */
static int64_t tables_max(const ls_tape *t) {
    return is_shared(t) ? t->opts.spans_max * ((t->opts.longest - 1) / PAGE_TOKENS + 1) : t->cache->n_pages;
}

static ls_status make_host(ls_tape *t, ls_error *err) {
    LS_TRY(ls_array_alloc((void **)&t->tokens, t->opts.rows_max, sizeof *t->tokens, "tokens", err));
    LS_TRY(ls_array_alloc((void **)&t->spans, t->opts.spans_max, sizeof *t->spans, "spans", err));
    LS_TRY(ls_array_alloc((void **)&t->leaf_spans, t->opts.spans_max, sizeof *t->spans, "spans", err));
    LS_TRY(ls_array_alloc((void **)&t->host_cut, t->opts.spans_max, sizeof *t->spans, "spans", err));
    LS_TRY(ls_array_alloc((void **)&t->leaf_offsets, t->opts.spans_max + 1, sizeof *t->leaf_offsets, "spans", err));
    LS_TRY(ls_array_alloc((void **)&t->pages, tables_max(t), sizeof *t->pages, "pages", err));
    LS_TRY(ls_array_alloc((void **)&t->parents, t->opts.spans_max, sizeof *t->parents, "spans", err));
    LS_TRY(ls_array_alloc((void **)&t->leaf_parents, t->opts.spans_max, sizeof *t->parents, "spans", err));
    LS_TRY(ls_array_alloc((void **)&t->block, 1, sizeof *t->block, "rows of a block", err));
    LS_TRY(ls_array_alloc((void **)&t->h, t->n_sublayers + 1, sizeof *t->h, "tape", err));
    LS_TRY(ls_array_alloc((void **)&t->ws, t->n_sublayers, sizeof *t->ws, "tape", err));
    if (!is_shared(t)) return LS_OK;
    LS_TRY(ls_span_order_create(&t->order, t->opts.spans_max, err));
    return ls_span_order_create(&t->leaf_order, t->opts.spans_max, err);
}

static bool truncates(const ls_tape *t) { return t->opts.truncation != NULL; }

/* Logits twice, and room to sort them: blocks are smaller. */
static int64_t block_rows(const ls_tape *t) {
    const int64_t rows = ls_head_block_rows(t->device, t->model->config.vocab, true);
    return truncates(t) && rows >= 4 * LS_TRUNCATED_BLOCK ? rows / 4 : rows;
}

static ls_status make_support(ls_tape *t, ls_error *err) {
    const int64_t rows = t->head->opts.rows_max;
    const int64_t row_bytes = ls_support_words(t->head->vocab) * (int64_t)sizeof *t->support;
    if (!truncates(t)) return LS_OK;
    LS_TRY(ls_memory_alloc(t->device, (void **)&t->support, rows, row_bytes, "supports", err));
    LS_TRY(ls_array_alloc((void **)&t->host_support, rows, row_bytes, "supports", err));
    for (int64_t i = 0; i < rows; i++)
        LS_TRY(ls_memory_write(t->device, &t->head->sampling[i], &t->truncation, sizeof t->truncation, err));
    return LS_OK;
}

/* Mixers come first: what is kept of them is most, for what it costs to compute it again. */
bool ls_tape_recomputes(const ls_tape *t, int64_t sublayer) {
    return sublayer / 2 + sublayer % 2 * (t->n_sublayers / 2) < t->opts.recompute;
}

/* NULL: the sublayer computes nothing. */
static const ls_part *sublayer_part(const ls_tape *t, int64_t sublayer) {
    const ls_layer *layer = &t->model->layers[sublayer / 2];
    return sublayer % 2 == LS_SUBLAYER_MIXER ? layer->mixer : layer->ffn;
}

static ls_status make_forward(ls_tape *t, const ls_model_config *c, ls_error *err) {
    const int64_t rows = t->opts.rows_max;
    const ls_head_opts head = {.dtype = t->opts.dtype,
                               .rows_max = block_rows(t),
                               .samples = truncates(t),
                               .keeps_logits = truncates(t),
                               .trains = true,
                               .temperature = t->opts.temperature};
    ls_cache_opts cache = {.dtype = t->opts.dtype, .n_slots = t->opts.spans_max, .page_tokens = PAGE_TOKENS};
    if (!pages_max(t, &cache.n_pages)) return LS_FAIL(err, LS_ERR_NOMEM, "tape: %lld rows", (long long)rows);
    LS_TRY(ls_cache_create(&t->cache, t->device, c, &cache, err));
    LS_TRY(make_host(t, err));
    LS_TRY(ls_batch_create(&t->batch, t->device, rows, t->opts.spans_max, tables_max(t), err));
    LS_TRY(ls_batch_create(&t->leaf_batch, t->device, rows, t->opts.spans_max, tables_max(t), err));
    LS_TRY(ls_head_create(&t->head, t->device, c, &head, err));
    LS_TRY(make_support(t, err));
    LS_TRY(
        ls_memory_alloc(t->device, (void **)&t->sequences, t->opts.spans_max + 1, sizeof *t->sequences, "tape", err));
    LS_TRY(ls_memory_alloc(t->device, (void **)&t->head_sequences, head.rows_max + 1, sizeof *t->head_sequences, "tape",
                           err));
    for (int64_t i = 0; i <= t->n_sublayers; i++) LS_TRY(floats(t, &t->h[i], rows, c->hidden, err));
    LS_TRY(ls_workspace_create(&t->shared, t->device, t->model, t->opts.dtype, rows, true, err));
    for (int64_t i = 0; i < t->n_sublayers; i++) {
        const ls_part *part = sublayer_part(t, i);
        t->ws[i] = t->shared;
        if (part != NULL && !ls_tape_recomputes(t, i))
            LS_TRY(ls_workspace_keep(&t->ws[i], t->shared, t->model, part, err));
    }
    t->x_last = (ls_rows){NULL, t->opts.dtype, c->hidden};
    return ls_memory_alloc(t->device, &t->x_last.data, rows, c->hidden * ls_dtype_bytes(t->opts.dtype), "tape", err);
}

ls_status ls_tape_create(ls_tape **out, const ls_parameters *parameters, ls_device *device, const ls_tape_opts *opts,
                         ls_error *err) {
    const ls_model_config *c = &parameters->model->config;
    ls_tape *t = calloc(1, sizeof *t);
    ls_status status = LS_OK;
    *out = NULL;
    if (t == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "tape");
    t->parameters = parameters;
    t->model = parameters->model;
    t->device = device;
    t->opts = *opts;
    t->opts.leaf_rows_max = ls_max_i64(opts->leaf_rows_max, opts->rows_max);
    if (c->tied && opts->leaf_rows_max > 0) {
        LS_ASSERT(opts->leaf_dh != NULL, "a leaf of %lld rows", (long long)opts->leaf_rows_max);
        t->leaf_dh = opts->leaf_dh;
    }
    t->cut_bytes = CUT_BYTES;
    t->n_sublayers = 2 * (int64_t)c->n_layers;
    if (truncates(t)) {
        t->truncation = *opts->truncation;
        t->truncation.temperature = opts->temperature;
        t->opts.truncation = &t->truncation;
        LS_TRY_DONE(ls_sampling_check(&t->truncation, err));
    }
    if (opts->rows_max < 1 || opts->spans_max < 1 || !(opts->temperature > 0.0f)) {
        status = LS_FAIL(err, LS_ERR_ARG, "tape: %lld rows, %lld sequences, temperature %g", (long long)opts->rows_max,
                         (long long)opts->spans_max, (double)opts->temperature);
        goto done;
    }
    LS_TRY_DONE(make_forward(t, c, err));
    LS_TRY_DONE(make_backward(t, c, err));
    if (is_shared(t)) LS_TRY_DONE(make_states(t, err));
    if (is_shared(t)) LS_TRY_DONE(make_keys(t, err));
    LS_TRY_DONE(make_layer_gradients(t, err));
    *out = t;
    t = NULL;
done:
    ls_tape_free(t);
    return status;
}

void ls_tape_free(ls_tape *t) {
    if (t == NULL) return;
    if (t->device != NULL)
        (void)ls_device_wait(t->device, NULL); /* a read of a call that failed may end in its arrays */
    {
        float *const arrays[] = {t->dh,        t->dy,          t->dx,        t->da,          t->db,
                                 t->dnarrow,   t->dnarrow_raw, t->db_state,  t->dc_state,    t->du,
                                 t->ddt,       t->scale,       t->dweight,   t->drouter,     t->picked_dweight,
                                 t->picked_dx, t->d_logprob,   t->d_entropy, t->dhead_norms, t->initial_scale,
                                 t->dinitial,  t->dfinal,      t->dkeys,     t->dkv};
        for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) ls_memory_free(t->device, arrays[i]);
    }
    ls_memory_free(t->device, t->initial);
    ls_memory_free(t->device, t->keys);
    ls_memory_free(t->device, t->key_rows);
    free(t->host_key_rows);
    ls_memory_free(t->device, t->leaf_tokens);
    ls_memory_free(t->device, t->cut_spans);
    ls_memory_free(t->device, t->rounded);
    for (int64_t i = 0; t->ws != NULL && i < t->n_sublayers; i++)
        if (t->ws[i] != t->shared) ls_workspace_free(t->ws[i]);
    ls_workspace_free(t->shared);
    for (int64_t i = 0; t->h != NULL && i <= t->n_sublayers; i++) ls_memory_free(t->device, t->h[i]);
    ls_memory_free(t->device, t->head_sequences);
    ls_memory_free(t->device, t->sequences);
    ls_memory_free(t->device, t->x_last.data);
    ls_memory_free(t->device, t->support);
    free(t->host_support);
    ls_head_free(t->head);
    ls_batch_free(t->leaf_batch);
    ls_batch_free(t->batch);
    ls_cache_free(t->cache);
    ls_memory_free(t->device, t->layer_gradients.layer);
    ls_memory_free(t->device, t->layer_gradients.ends);
    free(t->layer_gradients.begins);
    free(t->ws);
    free(t->h);
    free(t->pages);
    free(t->parents);
    free(t->leaf_parents);
    ls_span_order_free(&t->order);
    ls_span_order_free(&t->leaf_order);
    free(t->leaf_offsets);
    free(t->leaf_spans);
    free(t->host_cut);
    free(t->block);
    free(t->spans);
    free(t->tokens);
    free(t);
}

/* A span's page numbers: full pages that the one before it filled, then its own. */
static void lay_out_pages(ls_tape *t, ls_span *span, const ls_span *before, int32_t *n_used) {
    const int64_t shared = span->pos / PAGE_TOKENS, n = (span->pos + span->n_rows + PAGE_TOKENS - 1) / PAGE_TOKENS;
    span->table = t->n_pages;
    for (int64_t p = 0; p < n; p++) t->pages[t->n_pages++] = p < shared ? t->pages[before->table + p] : (*n_used)++;
}

/* Where sequences may continue others: the positions where they begin. */
static ls_status lay_out_trees(ls_tape *t, ls_error *err) {
    int64_t n = 0; /* sequences of the tree that none continues */
    for (int64_t i = 0; i < t->n_spans; i++) {
        const int64_t parent = t->parents[i];
        ls_span *span = &t->spans[i];
        if (parent >= 0) span->pos = t->spans[parent].pos + t->spans[parent].n_rows;
        if (parent < 0) n = 0;
        n += i + 1 == t->n_spans || t->parents[i + 1] != i;
        if (span->pos + span->n_rows > t->opts.longest || n > t->opts.group)
            return LS_FAIL(err, LS_ERR_CAPACITY,
                           "tape: sequence %lld ends behind %lld tokens, %lld of its tree; it holds %lld, and %lld",
                           (long long)i, (long long)(span->pos + span->n_rows), (long long)n,
                           (long long)t->opts.longest, (long long)t->opts.group);
    }
    return LS_OK;
}

static ls_status lay_out_spans(ls_tape *t, const int64_t *offsets, const int64_t *parents, int64_t n, ls_error *err) {
    int32_t n_used = 0;
    t->n_pages = 0;
    if (n < 1 || n > t->opts.spans_max || offsets[n] - offsets[0] > t->opts.rows_max)
        return LS_FAIL(err, LS_ERR_CAPACITY, "tape: %lld sequences of %lld tokens; it holds %lld of %lld", (long long)n,
                       (long long)(n < 1 ? 0 : offsets[n] - offsets[0]), (long long)t->opts.spans_max,
                       (long long)t->opts.rows_max);
    for (int64_t i = 0; i < n; i++) {
        const int64_t rows = offsets[i + 1] - offsets[i];
        if (rows < 1) return LS_FAIL(err, LS_ERR_ARG, "tape: sequence %lld is empty", (long long)i);
        t->spans[i] = (ls_span){offsets[i] - offsets[0], rows, 0, (int32_t)i, 0};
        t->parents[i] = parents == NULL ? -1 : parents[i];
    }
    t->n_spans = n;
    t->rows = offsets[n] - offsets[0];
    if (parents != NULL) LS_TRY(ls_span_order_check(parents, n, err));
    if (parents != NULL || is_shared(t)) LS_TRY(lay_out_trees(t, err));
    for (int64_t i = 0; i < n; i++)
        lay_out_pages(t, &t->spans[i], t->parents[i] < 0 ? NULL : &t->spans[t->parents[i]], &n_used);
    return LS_OK;
}

/* What sublayer i, or behind the last one the head, reads. */
static ls_rows x_of(const ls_tape *t, int64_t i) { return i < t->n_sublayers ? t->ws[i]->a.x : t->x_last; }

ls_status ls_tape_forward(ls_tape *t, const int32_t *tokens, const int64_t *offsets, int64_t n, ls_error *err) {
    return ls_tape_forward_trees(t, tokens, offsets, NULL, n, err);
}

ls_status ls_tape_forward_trees(ls_tape *t, const int32_t *tokens, const int64_t *offsets, const int64_t *parents,
                                int64_t n, ls_error *err) {
    const int64_t row_bytes = t->model->config.hidden * (int64_t)sizeof(float);
    ls_forward f = {t->model, t->cache, t->ws[0], t->batch, t->h[0], 0, true};
    LS_TRY(lay_out_spans(t, offsets, parents, n, err));
    ls_model_pass(t->model);
    memcpy(t->tokens, tokens + offsets[0], (size_t)t->rows * sizeof *tokens);
    LS_TRY(ls_batch_write(t->batch, t->tokens, t->spans, n, t->pages, t->n_pages, err));
    if (parents != NULL) {
        ls_span_order_make(&t->order, t->spans, t->parents, n, t->pages, false);
        LS_TRY(ls_batch_write_tree(t->batch, &t->order.tree, err));
    }
    LS_TRY(ls_model_embed(&f, err));
    LS_TRY(ls_model_first_norm(&f, x_of(t, ls_model_next_sublayer(t->model, 0)), err));
    for (int64_t i = 0; i < t->n_sublayers; i++) {
        f.ws = t->ws[i];
        f.h = t->h[i];
        if (ls_model_has_sublayer(t->model, i / 2, (ls_sublayer)(i % 2)))
            LS_TRY(ls_model_sublayer(&f, i, t->h[i + 1], x_of(t, ls_model_next_sublayer(t->model, i + 1)), err));
        else
            LS_TRY(ls_memory_copy(t->device, t->h[i + 1], t->h[i], t->rows * row_bytes, err));
    }
    return LS_OK;
}

ls_status ls_tape_residual(const ls_tape *t, int64_t sublayer, int64_t row, int64_t n, float *out, ls_error *err) {
    const int64_t dim = t->model->config.hidden;
    return ls_memory_take(t->device, out, t->h[sublayer] + row * dim, n * dim * (int64_t)sizeof *out, err);
}

int64_t ls_tape_next_rows(const ls_tape *t, const int64_t *targets, int64_t *row, int64_t end, int64_t *index,
                          int64_t *block_targets) {
    int64_t n = 0;
    for (; *row < end && n < t->head->opts.rows_max; (*row)++) {
        if (targets[*row] == -1) continue;
        index[n] = *row;
        block_targets[n++] = targets[*row];
    }
    return n;
}

void ls_tape_support(ls_tape *t, ls_supports *supports, int64_t row, const int64_t *rows) {
    LS_ASSERT(!truncates(t) || (supports != NULL && supports->vocab == t->head->vocab), "a tape that truncates");
    t->supports = supports;
    t->support_row = row;
    t->support_rows = rows;
}

/* Where the supports of a row are. */
static int64_t support_of(const ls_tape *t, int64_t row) {
    return t->support_row + (t->support_rows == NULL ? row : t->support_rows[row]);
}

/* The supports of the block's logits, as they are now, on the host. */
static ls_status find_supports(ls_tape *t, ls_error *err) {
    LS_TRY(ls_head_process(t->head, NULL, NULL, err));
    return ls_head_support(t->head, t->support, t->host_support, err);
}

ls_status ls_tape_restrict(ls_tape *t, const int64_t *index, int64_t base, int64_t n, ls_error *err) {
    const int64_t words = truncates(t) ? ls_support_words(t->head->vocab) : 0;
    const ls_support_args apply = {t->head->logits, n, t->head->vocab, t->support, true};
    bool all_known = true;
    if (!truncates(t)) return LS_OK;
    LS_ASSERT(t->supports != NULL, "a tape that truncates was given no supports");
    for (int64_t i = 0; i < n; i++)
        all_known = all_known && ls_supports_has(t->supports, support_of(t, base + index[i]));
    if (!all_known) LS_TRY(find_supports(t, err));
    for (int64_t i = 0; i < n; i++) {
        const int64_t row = support_of(t, base + index[i]);
        if (ls_supports_has(t->supports, row))
            ls_supports_get(t->supports, row, t->host_support + i * words);
        else
            LS_TRY(ls_supports_put(t->supports, row, t->host_support + i * words, err));
    }
    LS_TRY(ls_memory_write(t->device, t->support, t->host_support, n * words * (int64_t)sizeof *t->support, err));
    return ls_support(t->device, &apply, err);
}

/* The first n rows of the block, whose values go to the host. */
static ls_status read_block(ls_tape *t, int64_t n, bool with_entropy, ls_error *err) {
    ls_tape_block *b = t->block;
    const int64_t bytes = n * (int64_t)sizeof(float);
    LS_TRY(ls_head_take(t->head, t->model, t->x_last, t->rows, b->index, n, err));
    LS_TRY(ls_tape_restrict(t, b->index, 0, n, err));
    LS_TRY(ls_head_logprob(t->head, t->head->logits, b->targets, with_entropy, err));
    LS_TRY(ls_memory_read(t->device, b->values[0], t->head->logprob, bytes, err));
    if (with_entropy) LS_TRY(ls_memory_read(t->device, b->values[1], t->head->entropy, bytes, err));
    return ls_device_wait(t->device, err);
}

ls_status ls_tape_logprob(ls_tape *t, const int64_t *targets, float *logprob, float *entropy, ls_error *err) {
    const ls_tape_block *b = t->block;
    int64_t row = 0, n;
    memset(logprob, 0, (size_t)t->rows * sizeof *logprob);
    if (entropy != NULL) memset(entropy, 0, (size_t)t->rows * sizeof *entropy);
    while ((n = ls_tape_next_rows(t, targets, &row, t->rows, t->block->index, t->block->targets)) > 0) {
        const ls_status status = read_block(t, n, entropy != NULL, err);
        if (status != LS_OK) {
            (void)ls_device_wait(t->device, NULL); /* a read may still end in the block */
            return status;
        }
        for (int64_t i = 0; i < n; i++) {
            logprob[b->index[i]] = b->values[0][i];
            if (entropy != NULL) entropy[b->index[i]] = b->values[1][i];
        }
    }
    return LS_OK;
}
