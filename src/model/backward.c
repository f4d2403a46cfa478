/* The backward of one leaf, straight up: read it beside forward.c; what sublayers do is in part_*.c. */
#include <string.h>

#include "model/layer_buffer.h"
#include "model/parts.h"
#include "model/tape_state.h"
#include "num/mma16.h"
#include "op/elementwise.h"
#include "op/elementwise_backward.h"
#include "op/gemm_backward.h"
#include "op/logprob.h"
#include "op/rmsnorm_backward.h"

/* ---- sublayers ---- */

/* The same activations from a row on; picks are not rows, and are laid out anew for every leaf. */
static ls_activations from_row(ls_activations a, const ls_model_config *c, int64_t row, bool picks) {
    ls_rows *const rows[] = {&a.x,          &a.y,      &a.q,       &a.k,        &a.v,       &a.heads,
                             &a.uz,         &a.u,      &a.dt,      &a.u_in,     &a.dt_in,   &a.scanned,
                             &a.narrow_raw, &a.narrow, &a.router,  &a.qkv_raw,  &a.log_sum, &a.zxbcdt,
                             &a.xbc,        &a.ssd,    &a.q_gates, &a.q_raw,    &a.kv_raw,  &a.gated_heads,
                             &a.qkv,        &a.z,      &a.ba,      &a.qkv_conv, &a.delta,   &a.normed};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) *rows[i] = ls_rows_from(*rows[i], row);
    if (picks) {
        a.expert += row * c->top_k;
        a.expert_weight += row * c->top_k;
        return a;
    }
    a.gate = ls_rows_from(a.gate, row);
    a.up = ls_rows_from(a.up, row);
    a.gated = ls_rows_from(a.gated, row);
    return a;
}

/* Sets l->h and l->ws to what a sublayer computed for the leaf, running it again where it was not kept. */
static ls_status recall(ls_leaf *l, int64_t sublayer_i, ls_error *err) {
    const ls_tape *t = l->tape;
    const ls_layer *layer = &l->model->layers[sublayer_i / 2];
    const ls_part *part = sublayer_i % 2 == LS_SUBLAYER_MIXER ? layer->mixer : layer->ffn;
    const ls_rows h = {t->h[sublayer_i], LS_F32, l->model->config.hidden};
    ls_forward f;
    l->h = ls_rows_from(h, l->row);
    l->ws = *t->ws[sublayer_i];
    l->ws.a.rope = ls_rows_from(t->shared->a.rope, l->row); /* of the tape's forward, whatever runs again */
    f = (ls_forward){l->model, t->cache, &l->ws, l->batch, l->h.data, 0, true};
    if (ls_tape_recomputes(t, sublayer_i))
        return ls_model_sublayer_output(&f, sublayer_i / 2, (ls_sublayer)(sublayer_i % 2), err);
    l->ws.a = from_row(l->ws.a, &l->model->config, l->row, part->picks);
    return part->again == NULL ? LS_OK : part->again(&f, sublayer_i / 2, err);
}

/* l->dy of l->dh. */
static ls_status output_gradient(ls_leaf *l, ls_error *err) {
    const ls_model_config *c = &l->model->config;
    const ls_scale_args scale = {l->dh.data, l->tape->dy, l->rows * c->hidden, c->residual_scale};
    l->dy = l->dh;
    if (c->residual_scale == 0.0f) return LS_OK;
    l->dy.data = l->tape->dy;
    return ls_scale(l->device, &scale, err);
}

static ls_status sublayer_backward(ls_leaf *l, int64_t sublayer_i, ls_error *err) {
    const ls_layer *layer = &l->model->layers[sublayer_i / 2];
    const bool mixes = sublayer_i % 2 == 0;
    if (!ls_model_has_sublayer(l->model, sublayer_i / 2, (ls_sublayer)(sublayer_i % 2))) return LS_OK;
    LS_TRY(ls_model_need(l->model, sublayer_i / 2, err));
    LS_TRY(recall(l, sublayer_i, err));
    LS_TRY(output_gradient(l, err));
    LS_TRY((mixes ? layer->mixer : layer->ffn)->backward(l, sublayer_i / 2, err));
    return ls_leaf_through_norm(l, mixes ? layer->input_norm : layer->ffn_norm, l->h, l->dx, l->dh, true,
                                l->model->config.hidden, err);
}

/* ---- gradients of layers: they wait on the host while other layers are on the device ---- */

static int64_t float_bytes(int64_t n) { return n * (int64_t)sizeof(float); }

static int64_t layer_bytes(const ls_leaf *l) {
    const int64_t *begins = l->tape->layer_gradients.begins;
    return float_bytes(begins[l->layer_i + 1] - begins[l->layer_i]);
}

/* The layer's gradient comes: what the leaf's earlier parts left. */
static ls_status load_layer_gradient(const ls_leaf *l, ls_error *err) {
    const ls_layer_gradients *w = &l->tape->layer_gradients;
    if (w->layer == NULL) return LS_OK;
    if (l->gradient_is_zero) return ls_memory_fill(l->device, w->layer, 0, layer_bytes(l), err);
    return ls_memory_copy(l->device, w->layer, l->gradient + w->begins[l->layer_i], layer_bytes(l), err);
}

static ls_status store_layer_gradient(const ls_leaf *l, ls_error *err) {
    const ls_layer_gradients *w = &l->tape->layer_gradients;
    if (w->layer == NULL) return LS_OK;
    return ls_memory_copy(l->device, l->gradient + w->begins[l->layer_i], w->layer, layer_bytes(l), err);
}

/* What belongs to no layer stays from the leaf's first part to its end. */
static ls_status load_ends(const ls_leaf *l, ls_error *err) {
    const ls_layer_gradients *w = &l->tape->layer_gradients;
    if (w->layer == NULL || !l->gradient_is_zero) return LS_OK;
    return ls_memory_fill(l->device, w->ends, 0, float_bytes(w->begin + w->n - w->end), err);
}

static ls_status store_ends(const ls_leaf *l, ls_error *err) {
    const ls_layer_gradients *w = &l->tape->layer_gradients;
    if (w->layer == NULL) return LS_OK;
    LS_TRY(ls_memory_copy(l->device, l->gradient, w->ends, float_bytes(w->begin), err));
    if (w->end == w->n) return LS_OK;
    return ls_memory_copy(l->device, l->gradient + w->end, w->ends + w->begin, float_bytes(w->n - w->end), err);
}

/* What a sublayer has left to do with its gradients when the leaf has had all its rows. */
static ls_status sublayer_finish(const ls_leaf *l, ls_sublayer sublayer, ls_error *err) {
    const ls_layer *layer = &l->model->layers[l->layer_i];
    const ls_part *part = sublayer == LS_SUBLAYER_MIXER ? layer->mixer : layer->ffn;
    if (!ls_model_has_sublayer(l->model, l->layer_i, sublayer) || part->finish == NULL) return LS_OK;
    return part->finish(l, l->layer_i, err);
}

static ls_status layer_backward(ls_leaf *l, int64_t layer_i, bool is_last, ls_error *err) {
    l->layer_i = layer_i;
    LS_TRY(load_layer_gradient(l, err));
    for (int sublayer = LS_SUBLAYER_FFN; sublayer >= LS_SUBLAYER_MIXER; sublayer--)
        LS_TRY(sublayer_backward(l, 2 * layer_i + sublayer, err));
    for (int sublayer = LS_SUBLAYER_FFN; is_last && sublayer >= LS_SUBLAYER_MIXER; sublayer--)
        LS_TRY(sublayer_finish(l, (ls_sublayer)sublayer, err));
    return store_layer_gradient(l, err);
}

/* ---- head, embedding ---- */

/* A full block ends where the sum over its last sequence's rows may be cut, a multiple of 16 of them from its first in
 * the block: blocks carry no bit in the profile mma16 either. Writes where the sequences of the block's n rows begin
 * and end; the first begins at such a place itself. Returns how many of the rows the block takes. */
static int64_t cut_block(const ls_tape *t, const int64_t *index, int64_t n, int64_t *sequences, int64_t *n_sequences) {
    int64_t span = 0, count = 0;
    for (int64_t i = 0; i < n; i++) {
        const bool first = i == 0 || index[i] >= t->spans[span].row + t->spans[span].n_rows;
        if (first) sequences[count++] = i;
        while (first && index[i] >= t->spans[span].row + t->spans[span].n_rows) span++;
    }
    if (n == t->head->opts.rows_max) n -= (n - sequences[count - 1]) % LS_MMA16_STEP;
    if (n == sequences[count - 1]) count--;
    sequences[count] = n;
    *n_sequences = count;
    return n;
}

/* Gradients of the rows of a block into the head's weight and into dx; rows counts them from the leaf's first. whole:
 * of each of its sequences a multiple of 16. */
static ls_status block_backward(const ls_leaf *l, int64_t n_sequences, bool whole, bool entropy, ls_error *err) {
    const ls_model *model = l->model;
    const ls_head *head = l->tape->head;
    const int64_t vocab = head->vocab, dim = model->config.hidden;
    const ls_parameter *p = model->config.tied ? ls_parameter_of_embedding(l->tape->parameters)
                                               : ls_parameter_of_matrix(l->tape->parameters, &model->head);
    /* What rounds gradients, and does nothing else with them, reads them rounded: half the bytes, three times. */
    const bool rounds = model->profile == LS_PROFILE_MMA16 && model->config.logit_scale == 0.0f;
    const ls_logprob_backward_args backward = {.logits = head->logits,
                                               .rows = head->n,
                                               .vocab = vocab,
                                               .row_stride = vocab,
                                               .targets = head->targets,
                                               .ignore_index = -1,
                                               .temperature = head->temperature,
                                               .lse = head->lse,
                                               .entropy = entropy ? head->entropy : NULL,
                                               .d_logprob = l->tape->d_logprob,
                                               .d_entropy = entropy ? l->tape->d_entropy : NULL,
                                               .d_logits = head->logits,
                                               .d_stride = rounds ? 2 * vocab : vocab,
                                               .d_bf16 = rounds};
    const ls_gemm_backward_weight_args weight = {.dy = head->logits,
                                                 .dy_stride = vocab,
                                                 .x = head->x.data,
                                                 .x_dtype = head->x.dtype,
                                                 .x_stride = head->x.stride,
                                                 .x_count = head->n,
                                                 .dw = ls_leaf_gradient_of(l, p),
                                                 .m = head->n,
                                                 .n = vocab,
                                                 .k = dim,
                                                 .profile = model->profile,
                                                 .sequences = l->tape->head_sequences,
                                                 .n_sequences = n_sequences,
                                                 .dy_rounded = rounds ? (const uint16_t *)(void *)head->logits : NULL,
                                                 .dy_rounded_stride = 2 * vocab,
                                                 .sequences_whole = whole};
    const ls_gemm_backward_input_args input = {.dy = head->logits,
                                               .dy_stride = vocab,
                                               .w = ls_parameter_value(p),
                                               .w_dtype = p->dtype,
                                               .dx = l->dx.data,
                                               .dx_stride = dim,
                                               .dx_count = l->rows,
                                               .dx_rows = head->index,
                                               .m = head->n,
                                               .n = vocab,
                                               .k = dim,
                                               .profile = model->profile,
                                               .dy_rounded = weight.dy_rounded,
                                               .dy_rounded_stride = weight.dy_rounded_stride};
    LS_TRY(ls_logprob_backward(l->device, &backward, err));
    LS_TRY(ls_part_scale(l->device, head->logits, head->n * vocab, model->config.logit_scale, err));
    LS_TRY(ls_gemm_backward_weight(l->device, &weight, err));
    return ls_gemm_backward_input(l->device, &input, err);
}

static bool are_whole(const int64_t *sequences, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if ((sequences[i + 1] - sequences[i]) % LS_MMA16_STEP != 0) return false;
    return true;
}

/* dh behind the last sublayer, from the log-probabilities of the leaf's rows. */
static ls_status head_backward(ls_leaf *l, const int64_t *targets, const float *d_logprob, const float *d_entropy,
                               ls_error *err) {
    ls_tape *t = l->tape;
    const int64_t dim = l->model->config.hidden, end = l->row + l->rows;
    const ls_rows h = {t->h[t->n_sublayers], LS_F32, dim}, x = ls_rows_from(t->x_last, l->row);
    int64_t *index = t->block->index, *block = t->block->targets, *sequences = t->block->sequences;
    float *d = t->block->values[0], *de = t->block->values[1];
    int64_t row = l->row, n, n_sequences;
    LS_TRY(ls_memory_fill(l->device, l->dx.data, 0, l->rows * dim * (int64_t)sizeof(float), err));
    while ((n = ls_tape_next_rows(t, targets, &row, end, index, block)) > 0) {
        n = cut_block(t, index, n, sequences, &n_sequences);
        row = index[n - 1] + 1;
        for (int64_t i = 0; i < n; i++) {
            d[i] = d_logprob[index[i]];
            de[i] = d_entropy != NULL ? d_entropy[index[i]] : 0.0f;
            index[i] -= l->row;
        }
        LS_TRY(ls_memory_write(l->device, t->head_sequences, sequences, (n_sequences + 1) * (int64_t)sizeof *sequences,
                               err));
        LS_TRY(ls_memory_write(l->device, t->d_logprob, d, n * (int64_t)sizeof *d, err));
        LS_TRY(ls_memory_write(l->device, t->d_entropy, de, n * (int64_t)sizeof *de, err));
        LS_TRY(ls_head_take(t->head, l->model, x, l->rows, index, n, err));
        LS_TRY(ls_tape_restrict(t, index, l->row, n, err));
        LS_TRY(ls_head_logprob(t->head, t->head->logits, block, d_entropy != NULL, err));
        LS_TRY(block_backward(l, n_sequences, are_whole(sequences, n_sequences), d_entropy != NULL, err));
    }
    return ls_leaf_through_norm(l, l->model->final_norm, ls_rows_from(h, l->row), l->dx, l->dh, false, dim, err);
}

static ls_status add_embedding(const ls_leaf *l, const int32_t *tokens, const float *dh, int64_t rows, ls_error *err) {
    const ls_model_config *c = &l->model->config;
    const ls_embed_backward_args embed = {
        .tokens = tokens,
        .dy = dh,
        .dy_stride = c->hidden,
        .dtable = ls_leaf_gradient_of(l, ls_parameter_of_embedding(l->tape->parameters)),
        .vocab = c->vocab,
        .dim = c->hidden,
        .rows = rows,
        .pad = c->pad_is_trained ? -1 : c->pad};
    return ls_embed_backward(l->device, &embed, err);
}

/* The rows of a part go on from those before it. With tied embeddings all of them come behind what the head's products
 * have made of all parts. */
static ls_status embed_backward(ls_leaf *l, bool is_last, ls_error *err) {
    ls_tape *t = l->tape;
    const int64_t dim = l->model->config.hidden, at = t->leaf_rows;
    t->leaf_rows += l->rows;
    LS_TRY(ls_part_scale(l->device, t->dh, l->rows * dim, l->model->config.embed_scale, err));
    if (!l->model->config.tied) return add_embedding(l, t->leaf_batch->tokens, t->dh, l->rows, err);
    LS_TRY(ls_memory_copy(t->device, t->leaf_tokens + at, t->leaf_batch->tokens,
                          l->rows * (int64_t)sizeof *t->leaf_tokens, err));
    if (t->leaf_dh != NULL)
        LS_TRY(ls_memory_copy(t->device, t->leaf_dh + at * dim, t->dh, l->rows * dim * (int64_t)sizeof *t->dh, err));
    if (is_last && t->leaf_dh == NULL) return add_embedding(l, t->leaf_tokens, t->dh, t->leaf_rows, err);
    for (int64_t row = 0, n; is_last && row < t->leaf_rows; row += n) { /* the op's cost grows with the square */
        n = t->leaf_rows - row < t->opts.rows_max ? t->leaf_rows - row : t->opts.rows_max;
        LS_TRY(add_embedding(l, t->leaf_tokens + row, t->leaf_dh + row * dim, n, err));
    }
    return LS_OK;
}

/* ---- the whole ---- */

/* Where the keys of the leaf's spans lie when a run of them has its own copy of what is before them. */
static ls_status write_key_rows(ls_tape *t, ls_error *err) {
    const ls_span_tree *tree = &t->leaf_order.tree;
    const ls_span_run *last = &tree->runs[tree->n_runs - 1];
    for (const ls_span_run *run = tree->runs; run <= last; run++)
        for (int64_t i = run->begin, keys = 0; i < run->begin + run->n; i++) {
            t->host_key_rows[i] = keys;
            keys += tree->spans[i].pos + tree->spans[i].n_rows;
        }
    return ls_memory_write(t->device, t->key_rows, t->host_key_rows,
                           (last->begin + last->n) * (int64_t)sizeof *t->key_rows, err);
}

/* The same where some of them continue others. */
static ls_status write_tree(ls_tape *t, int64_t begin, int64_t end, ls_error *err) {
    bool continues = false;
    for (int64_t i = begin; i < end; i++) {
        const int64_t parent = t->parents[i];
        LS_ASSERT(parent < 0 || parent >= begin, "sequence %lld continues %lld of another leaf", (long long)i,
                  (long long)parent);
        t->leaf_parents[i - begin] = parent < 0 ? -1 : parent - begin;
        continues = continues || parent >= 0;
    }
    if (!continues) return LS_OK;
    ls_span_order_make(&t->leaf_order, t->leaf_spans, t->leaf_parents, end - begin, t->pages, true);
    LS_TRY(ls_batch_write_tree(t->leaf_batch, &t->leaf_order.tree, err));
    return t->key_rows == NULL ? LS_OK : write_key_rows(t, err);
}

/* The leaf's sequences as a batch of their own. */
static ls_status write_leaf(ls_tape *t, int64_t begin, int64_t end, int64_t row, ls_error *err) {
    for (int64_t i = begin; i < end; i++) {
        t->leaf_spans[i - begin] = t->spans[i];
        t->leaf_spans[i - begin].row -= row;
        t->leaf_offsets[i - begin] = t->spans[i].row - row;
    }
    t->leaf_offsets[end - begin] = t->spans[end - 1].row + t->spans[end - 1].n_rows - row;
    LS_TRY(
        ls_memory_write(t->device, t->sequences, t->leaf_offsets, (end - begin + 1) * (int64_t)sizeof(int64_t), err));
    LS_TRY(ls_batch_write(t->leaf_batch, t->tokens + row, t->leaf_spans, end - begin, t->pages, t->n_pages, err));
    return write_tree(t, begin, end, err);
}

ls_status ls_tape_backward(ls_tape *t, const ls_leaf_part *part, float *gradient, ls_error *err) {
    const int64_t dim = t->model->config.hidden, begin = part->begin, end = part->end;
    ls_leaf l = {.tape = t,
                 .model = t->model,
                 .device = t->device,
                 .batch = t->leaf_batch,
                 .dx = {t->dx, LS_F32, dim},
                 .layer_i = -1,
                 .gradient = gradient,
                 .gradient_is_zero = part->is_first};
    LS_ASSERT(begin >= 0 && begin < end && end <= t->n_spans, "sequences %lld to %lld of %lld", (long long)begin,
              (long long)end, (long long)t->n_spans);
    l.row = t->spans[begin].row;
    l.rows = t->spans[end - 1].row + t->spans[end - 1].n_rows - l.row;
    if (part->is_first) t->leaf_rows = 0;
    LS_ASSERT(l.rows <= t->opts.leaf_rows_max - t->leaf_rows, "%lld rows behind %lld of a leaf of %lld",
              (long long)l.rows, (long long)t->leaf_rows, (long long)t->opts.leaf_rows_max);
    l.dh = (ls_rows){t->dh, LS_F32, dim};
    LS_TRY(write_leaf(t, begin, end, l.row, err));
    l.sequences_whole = are_whole(t->leaf_offsets, end - begin);
    ls_model_pass(t->model);
    LS_TRY(load_ends(&l, err));
    LS_TRY(head_backward(&l, part->targets, part->d_logprob, part->d_entropy, err));
    for (int64_t i = t->n_sublayers / 2 - 1; i >= 0; i--) LS_TRY(layer_backward(&l, i, part->is_last, err));
    l.layer_i = -1;
    LS_TRY(embed_backward(&l, part->is_last, err));
    return part->is_last ? store_ends(&l, err) : LS_OK;
}
