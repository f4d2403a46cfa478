/* Working memory of a forward: which activations share memory, and the batch. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/parts.h"

static bool has_experts(const ls_model_config *c) { return c->n_experts > 1; }

/* Columns of feed-forwards for each row. */
static int64_t ffn_columns(const ls_model_config *c) {
    return ls_max_i64((has_experts(c) ? c->top_k : 1) * (int64_t)c->ffn, c->shared_ffn);
}

/* Whether what x_proj and dt_proj read is rounded first. Outside of training both lie in the memory of the scan's
 * output: the first has been read when the second is written, and the second when the scan runs. */
static bool rounds(const ls_model *model) { return model->profile == LS_PROFILE_MMA16; }

/* Only Mamba-1 has these products. */
static bool narrow_products(const ls_model_config *c) { return ls_config_recurrence(c) == LS_RECURRENCE_SCAN; }

/* Matrices that are in use together lie in one region, each with all its rows behind the one before. Bytes that a
 * column's row takes there: every matrix begins at a multiple of 64. */
static int64_t block_bytes(ls_dtype dtype, int64_t columns) { return (columns * ls_dtype_bytes(dtype) + 63) / 64 * 64; }

typedef struct region {
    uint8_t *at;
    int64_t rows;
} region;

static ls_rows next_block(region *r, ls_dtype dtype, int64_t columns) {
    const ls_rows rows = {r->at, dtype, columns};
    r->at += r->rows * block_bytes(dtype, columns);
    return rows;
}

/* Bytes of one row of each region of memory. Sublayers take turns, so what only one of them computes may lie in
 * the memory of what only the other does. */
typedef struct layout {
    int64_t q, kv, narrow, picks; /* columns; rows of experts for each row */
    int64_t conv, zxbcdt;         /* columns of Mamba-2; 0 without */
    int64_t qkv, values, ba;      /* columns of the delta rule; 0 without */
    int64_t first, second,
        last; /* what enters the sublayer's middle op: uz, q|k|v, gate; u|dt, up; and what leaves it */
} layout;

static layout layout_of(const ls_model *model, ls_dtype dtype) {
    const ls_model_config *c = &model->config;
    const int64_t elem = ls_dtype_bytes(dtype), f32 = (int64_t)sizeof(float), dim = c->d_inner;
    layout l = {.q = (int64_t)c->n_heads * c->head_dim,
                .kv = (int64_t)c->n_kv_heads * c->head_dim,
                .narrow = narrow_products(c) ? c->dt_rank + 2 * (int64_t)c->d_state : 0,
                .picks = has_experts(c) ? c->top_k : 1};
    if (c->ssd_heads > 0) {
        l.conv = ls_config_conv_dim(c);
        l.zxbcdt = dim + l.conv + c->ssd_heads;
    }
    if (c->delta_heads > 0) {
        l.qkv = ls_config_conv_dim(c);
        l.values = dim;
        l.ba = 2 * (int64_t)c->delta_heads;
    }
    l.first =
        ls_max_i64(ls_max_i64(ls_max_i64(2 * dim, l.zxbcdt) * f32, (l.q + 2 * l.kv) * elem), ffn_columns(c) * f32);
    l.second = ls_max_i64(ls_max_i64(2 * dim, c->ssd_heads > 0 ? l.conv + dim : 0) * f32, ffn_columns(c) * f32);
    if (!ls_attention_is_bare(c)) l.second = ls_max_i64(l.second, (l.q + 2 * l.kv) * f32);
    l.last = ls_max_i64(ls_max_i64(dim, l.q), ffn_columns(c)) * elem;
    if (c->head_gates) {
        l.second = ls_max_i64(l.second,
                              block_bytes(LS_F32, 2 * l.q) + block_bytes(LS_F32, l.q) + block_bytes(LS_F32, 2 * l.kv));
        l.last = ls_max_i64(l.last, 2 * block_bytes(dtype, l.q));
    }
    if (c->delta_heads > 0) {
        l.first =
            ls_max_i64(l.first, block_bytes(LS_F32, l.qkv) + block_bytes(LS_F32, l.values) + block_bytes(LS_F32, l.ba));
        l.second = ls_max_i64(l.second, block_bytes(LS_F32, l.qkv) + 2 * block_bytes(LS_F32, l.values));
    }
    if (rounds(model)) l.last = ls_max_i64(l.last, c->dt_rank * (int64_t)sizeof(uint16_t));
    return l;
}

/* Bytes of a row of everything. */
static int64_t row_bytes(const ls_model *model, ls_dtype dtype, bool for_training) {
    const ls_model_config *c = &model->config;
    const layout l = layout_of(model, dtype);
    const int64_t elem = ls_dtype_bytes(dtype), f32 = (int64_t)sizeof(float), h = c->hidden;
    int64_t bytes = h * (f32 + elem) + l.first + l.second + l.last + l.narrow * f32 * (for_training ? 2 : 1) +
                    2 * c->rope.half * f32;
    if (rounds(model) && for_training)
        bytes += (narrow_products(c) ? c->d_inner + c->dt_rank : 0) * (int64_t)sizeof(uint16_t) + c->n_heads * f32;
    if (has_experts(c))
        bytes += c->n_experts * f32 + c->top_k * (int64_t)(sizeof(int32_t) + sizeof(float)) +
                 l.picks * (3 * (int64_t)sizeof(int64_t) + h * (f32 + elem) + f32) +
                 (c->shared_ffn > 0 ? (h + 1) * f32 : 0);
    return bytes;
}

/* Norms without weight: the longest of them. */
static int64_t n_ones(const ls_model_config *c) {
    return c->inner_norms && !c->inner_weights ? ls_max_i64(c->dt_rank, c->d_state) : 0;
}

int64_t ls_workspace_bytes(const ls_model *model, ls_dtype dtype, int64_t rows_max, bool for_training) {
    const int64_t offsets = has_experts(&model->config) ? (model->config.n_experts + 1) * (int64_t)sizeof(int64_t) : 0;
    const int64_t constants = (model->config.rope.half + n_ones(&model->config)) * (int64_t)sizeof(float);
    int64_t bytes;
    if (!ls_mul_i64(rows_max, row_bytes(model, dtype, for_training), &bytes)) return -1;
    return ls_add_i64(bytes, offsets + constants, &bytes) ? bytes : -1;
}

static ls_status own_rows_of(ls_workspace *ws, void **out, int64_t rows, int64_t bytes, ls_error *err) {
    const ls_status status = ls_memory_alloc(ws->device, out, rows, bytes, "workspace", err);
    LS_ASSERT(ws->n_owned < (int64_t)(sizeof ws->owned / sizeof ws->owned[0]), "%lld arrays", (long long)ws->n_owned);
    if (status == LS_OK) ws->owned[ws->n_owned++] = *out;
    return status;
}

static ls_status own_rows(ls_workspace *ws, ls_rows *out, int64_t rows, ls_dtype dtype, int64_t columns,
                          ls_error *err) {
    *out = (ls_rows){NULL, dtype, columns};
    return own_rows_of(ws, &out->data, rows, columns * ls_dtype_bytes(dtype), err);
}

static ls_status make_experts(ls_workspace *ws, const ls_model_config *c, ls_error *err) {
    const int64_t rows = ws->rows_max, picks = rows * c->top_k, i64 = (int64_t)sizeof(int64_t);
    ls_activations *a = &ws->a;
    LS_TRY(own_rows(ws, &a->router, rows, LS_F32, c->n_experts, err));
    LS_TRY(own_rows_of(ws, (void **)&a->expert, rows, c->top_k * (int64_t)sizeof(int32_t), err));
    LS_TRY(own_rows_of(ws, (void **)&a->expert_weight, rows, c->top_k * (int64_t)sizeof(float), err));
    LS_TRY(own_rows_of(ws, (void **)&a->pick, picks, i64, err));
    LS_TRY(own_rows_of(ws, (void **)&a->pick_row, picks, i64, err));
    LS_TRY(own_rows_of(ws, (void **)&a->place, picks, i64, err));
    LS_TRY(own_rows_of(ws, (void **)&a->expert_offsets, c->n_experts + 1, i64, err));
    LS_TRY(own_rows(ws, &a->picked_x, picks, ws->dtype, c->hidden, err));
    LS_TRY(own_rows(ws, &a->picked_y, picks, LS_F32, c->hidden, err));
    if (c->shared_ffn > 0) {
        LS_TRY(own_rows(ws, &a->shared, rows, LS_F32, c->hidden, err));
        LS_TRY(own_rows(ws, &a->shared_gate, rows, LS_F32, 1, err));
    }
    return own_rows_of(ws, (void **)&a->picked_weight, picks, (int64_t)sizeof(float), err);
}

/* What x_proj and dt_proj read; the rest of the Mamba sublayer is there, and `last` is the memory of the scan's output.
 *  */
static ls_status make_rounded(ls_workspace *ws, const ls_model *model, void *last, bool for_training, ls_error *err) {
    const ls_model_config *c = &model->config;
    ls_activations *a = &ws->a;
    a->u_in = a->u;
    a->dt_in = c->inner_norms ? a->narrow : a->narrow_raw;
    if (!rounds(model) || !narrow_products(c)) return LS_OK;
    a->u_in = (ls_rows){last, LS_BF16, c->d_inner};
    a->dt_in = (ls_rows){last, LS_BF16, c->dt_rank};
    if (!for_training) return LS_OK;
    LS_TRY(own_rows(ws, &a->u_in, ws->rows_max, LS_BF16, c->d_inner, err));
    return own_rows(ws, &a->dt_in, ws->rows_max, LS_BF16, c->dt_rank, err);
}

/* Rotations of the rows' positions, which the sublayers of a whole forward read. */
static ls_status make_positions(ls_workspace *ws, const ls_rope_config *rope, ls_error *err) {
    const int64_t bytes = rope->half * (int64_t)sizeof *rope->inv_freq;
    if (rope->half == 0) return LS_OK;
    LS_TRY(own_rows(ws, &ws->a.rope, ws->rows_max, LS_F32, 2 * (int64_t)rope->half, err));
    LS_TRY(own_rows_of(ws, (void **)&ws->inv_freq, 1, bytes, err));
    return ls_memory_write(ws->device, ws->inv_freq, rope->inv_freq, bytes, err);
}

static ls_status make_ones(ls_workspace *ws, const ls_model_config *c, ls_error *err) {
    const int64_t n = n_ones(c), size = (int64_t)sizeof(float);
    float *ones = NULL;
    ls_status status = LS_OK;
    if (n == 0) return LS_OK;
    LS_TRY_DONE(ls_array_alloc((void **)&ones, n, size, "workspace", err));
    for (int64_t i = 0; i < n; i++) ones[i] = 1.0f;
    LS_TRY_DONE(own_rows_of(ws, (void **)&ws->ones, n, size, err));
    LS_TRY_DONE(ls_memory_write(ws->device, ws->ones, ones, n * size, err));
done:
    free(ones);
    return status;
}

/* Of the delta rule and of attention with output gates. */
static void place_blocks(ls_workspace *ws, const layout *l, void *first, void *second, void *last) {
    ls_activations *a = &ws->a;
    region one = {first, ws->rows_max}, two = {second, ws->rows_max}, three = {last, ws->rows_max};
    a->qkv = next_block(&one, LS_F32, l->qkv);
    a->z = next_block(&one, LS_F32, l->values);
    a->ba = next_block(&one, LS_F32, l->ba);
    a->qkv_conv = next_block(&two, LS_F32, l->qkv);
    a->delta = next_block(&two, LS_F32, l->values);
    a->normed = next_block(&two, LS_F32, l->values);
    two.at = second;
    a->by_head = next_block(&two, LS_F32, l->qkv + l->values);
    two.at = second;
    a->q_gates = next_block(&two, LS_F32, 2 * l->q);
    a->q_raw = next_block(&two, LS_F32, l->q);
    a->kv_raw = next_block(&two, LS_F32, 2 * l->kv);
    a->heads = next_block(&three, ws->dtype, l->q);
    a->gated_heads = next_block(&three, ws->dtype, l->q);
}

static ls_status make_halves(ls_workspace *ws, const ls_model *model, bool for_training, ls_error *err) {
    const ls_model_config *c = &model->config;
    const layout l = layout_of(model, ws->dtype);
    const int64_t dim = c->d_inner, rows = ws->rows_max;
    ls_activations *a = &ws->a;
    void *first, *second, *last;
    LS_TRY(own_rows(ws, &a->x, rows, ws->dtype, c->hidden, err));
    LS_TRY(own_rows(ws, &a->y, rows, LS_F32, c->hidden, err));
    LS_TRY(own_rows_of(ws, &first, rows, l.first, err));
    LS_TRY(own_rows_of(ws, &second, rows, l.second, err));
    LS_TRY(own_rows_of(ws, &last, rows, l.last, err));
    LS_TRY(own_rows(ws, &a->narrow_raw, rows, LS_F32, l.narrow, err));
    a->narrow = a->narrow_raw;
    if (for_training) LS_TRY(own_rows(ws, &a->narrow, rows, LS_F32, l.narrow, err));
    a->q = (ls_rows){first, ws->dtype, l.q + 2 * l.kv};
    a->k = ls_rows_column(a->q, l.q);
    a->v = ls_rows_column(a->q, l.q + l.kv);
    if (!ls_attention_is_bare(c)) a->qkv_raw = (ls_rows){second, LS_F32, l.q + 2 * l.kv};
    a->uz = (ls_rows){first, LS_F32, 2 * dim};
    a->gate = (ls_rows){first, LS_F32, c->ffn};
    a->u = (ls_rows){second, LS_F32, 2 * dim};
    a->dt = ls_rows_column(a->u, dim);
    a->up = (ls_rows){second, LS_F32, c->ffn};
    place_blocks(ws, &l, first, second, last);
    if (rounds(model) && for_training) LS_TRY(own_rows(ws, &a->log_sum, rows, LS_F32, c->n_heads, err));
    a->scanned = (ls_rows){last, ws->dtype, dim};
    a->zxbcdt = (ls_rows){first, LS_F32, l.zxbcdt};
    a->xbc = (ls_rows){second, LS_F32, l.conv + dim};
    a->ssd = ls_rows_column(a->xbc, l.conv);
    a->gated = (ls_rows){last, ws->dtype, c->ffn};
    return make_rounded(ws, model, last, for_training, err);
}

ls_status ls_workspace_create(ls_workspace **out, ls_device *device, const ls_model *model, ls_dtype dtype,
                              int64_t rows_max, bool for_training, ls_error *err) {
    ls_workspace *ws = calloc(1, sizeof *ws);
    ls_status status;
    *out = NULL;
    if (ws == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "workspace");
    ws->device = device;
    ws->dtype = dtype;
    ws->profile = model->profile;
    ws->rows_max = rows_max;
    ws->for_training = for_training;
    LS_TRY_DONE(make_positions(ws, &model->config.rope, err));
    LS_TRY_DONE(make_ones(ws, &model->config, err));
    LS_TRY_DONE(make_halves(ws, model, for_training, err));
    if (has_experts(&model->config)) LS_TRY_DONE(make_experts(ws, &model->config, err));
    *out = ws;
    ws = NULL;
done:
    ls_workspace_free(ws);
    return status;
}

/* Rows of its own in place of the shared ones. */
static ls_status keep_rows(ls_workspace *ws, ls_rows *rows, int64_t columns, ls_error *err) {
    return own_rows(ws, rows, ws->rows_max, rows->dtype, columns, err);
}

static ls_status keep_attention(ls_workspace *ws, const ls_model *model, ls_error *err) {
    const layout l = layout_of(model, ws->dtype);
    ls_activations *a = &ws->a;
    if (rounds(model)) LS_TRY(own_rows(ws, &a->log_sum, ws->rows_max, LS_F32, model->config.n_heads, err));
    if (model->config.head_gates) {
        LS_TRY(keep_rows(ws, &a->q_gates, 2 * l.q, err));
        LS_TRY(keep_rows(ws, &a->kv_raw, 2 * l.kv, err));
        return keep_rows(ws, &a->heads, l.q, err);
    }
    /* The gradient through norms of heads needs what they read, of which q, k and v are made again. */
    if (model->config.head_norms) {
        LS_TRY(keep_rows(ws, &a->qkv_raw, l.q + 2 * l.kv, err));
        return keep_rows(ws, &a->heads, l.q, err);
    }
    LS_TRY(keep_rows(ws, &a->q, l.q + 2 * l.kv, err));
    a->k = ls_rows_column(a->q, l.q);
    a->v = ls_rows_column(a->q, l.q + l.kv);
    return keep_rows(ws, &a->heads, l.q, err);
}

static ls_status keep_mamba(ls_workspace *ws, const ls_model *model, ls_error *err) {
    const ls_model_config *c = &model->config;
    const layout l = layout_of(model, ws->dtype);
    const int64_t dim = c->d_inner;
    ls_activations *a = &ws->a;
    LS_TRY(keep_rows(ws, &a->uz, 2 * dim, err));
    LS_TRY(keep_rows(ws, &a->u, 2 * dim, err));
    a->dt = ls_rows_column(a->u, dim);
    LS_TRY(keep_rows(ws, &a->scanned, dim, err));
    LS_TRY(keep_rows(ws, &a->narrow_raw, l.narrow, err));
    LS_TRY(keep_rows(ws, &a->narrow, l.narrow, err));
    if (rounds(model)) return keep_rows(ws, &a->dt_in, c->dt_rank, err);
    a->u_in = a->u;
    a->dt_in = c->inner_norms ? a->narrow : a->narrow_raw;
    return LS_OK;
}

static ls_status keep_mamba2(ls_workspace *ws, const ls_model *model, ls_error *err) {
    const layout l = layout_of(model, ws->dtype);
    ls_activations *a = &ws->a;
    LS_TRY(keep_rows(ws, &a->zxbcdt, l.zxbcdt, err));
    LS_TRY(keep_rows(ws, &a->xbc, l.conv + model->config.d_inner, err));
    a->ssd = ls_rows_column(a->xbc, l.conv);
    return LS_OK;
}

static ls_status keep_delta(ls_workspace *ws, const ls_model *model, ls_error *err) {
    const layout l = layout_of(model, ws->dtype);
    ls_activations *a = &ws->a;
    LS_TRY(keep_rows(ws, &a->qkv, l.qkv, err));
    LS_TRY(keep_rows(ws, &a->z, l.values, err));
    LS_TRY(keep_rows(ws, &a->ba, l.ba, err));
    LS_TRY(keep_rows(ws, &a->qkv_conv, l.qkv, err));
    return keep_rows(ws, &a->delta, l.values, err);
}

static ls_status keep_experts(ls_workspace *ws, const ls_model *model, ls_error *err) {
    const ls_model_config *c = &model->config;
    ls_activations *a = &ws->a;
    LS_TRY(keep_rows(ws, &a->router, c->n_experts, err));
    LS_TRY(own_rows_of(ws, (void **)&a->expert, ws->rows_max, c->top_k * (int64_t)sizeof(int32_t), err));
    return own_rows_of(ws, (void **)&a->expert_weight, ws->rows_max, c->top_k * (int64_t)sizeof(float), err);
}

static ls_status keep_dense(ls_workspace *ws, const ls_model *model, ls_error *err) {
    if (!model->config.ungated) LS_TRY(keep_rows(ws, &ws->a.gate, model->config.ffn, err));
    return keep_rows(ws, &ws->a.up, model->config.ffn, err);
}

static ls_status keep_activations(ls_workspace *ws, const ls_model *model, const ls_part *part, ls_error *err) {
    LS_TRY(keep_rows(ws, &ws->a.x, model->config.hidden, err));
    if (part == &ls_part_attention) return keep_attention(ws, model, err);
    if (part == &ls_part_delta) return keep_delta(ws, model, err);
    if (part == &ls_part_mamba2) return keep_mamba2(ws, model, err);
    if (part == &ls_part_mamba) return keep_mamba(ws, model, err);
    return part->picks ? keep_experts(ws, model, err) : keep_dense(ws, model, err);
}

ls_status ls_workspace_keep(ls_workspace **out, const ls_workspace *shared, const ls_model *model, const ls_part *part,
                            ls_error *err) {
    ls_workspace *ws = calloc(1, sizeof *ws);
    ls_status status;
    *out = NULL;
    if (ws == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "workspace");
    *ws = *shared;
    ws->n_owned = 0;
    LS_TRY_DONE(keep_activations(ws, model, part, err));
    *out = ws;
    ws = NULL;
done:
    ls_workspace_free(ws);
    return status;
}

void ls_workspace_free(ls_workspace *ws) {
    if (ws == NULL) return;
    while (ws->n_owned > 0) ls_memory_free(ws->device, ws->owned[--ws->n_owned]);
    free(ws);
}

/* ---- batch ---- */

ls_status ls_batch_create(ls_batch **out, ls_device *device, int64_t rows_max, int64_t spans_max, int64_t pages_max,
                          ls_error *err) {
    ls_batch *b = calloc(1, sizeof *b);
    ls_status status;
    *out = NULL;
    if (b == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "batch");
    *b = (ls_batch){.device = device, .rows_max = rows_max, .spans_max = spans_max, .pages_max = pages_max};
    LS_TRY_DONE(ls_memory_alloc(device, (void **)&b->tokens, rows_max, sizeof *b->tokens, "tokens", err));
    LS_TRY_DONE(ls_memory_alloc(device, (void **)&b->spans, spans_max, sizeof *b->spans, "spans", err));
    LS_TRY_DONE(ls_memory_alloc(device, (void **)&b->tables, pages_max, sizeof *b->tables, "page tables", err));
    *out = b;
    b = NULL;
done:
    ls_batch_free(b);
    return status;
}

void ls_batch_free(ls_batch *b) {
    if (b == NULL) return;
    ls_memory_free(b->device, b->tables);
    ls_memory_free(b->device, b->spans);
    ls_memory_free(b->device, b->tokens);
    free(b);
}

ls_status ls_batch_write(ls_batch *b, const int32_t *tokens, const ls_span *spans, int64_t n_spans,
                         const int32_t *tables, int64_t n_tables, ls_error *err) {
    int64_t rows = 0, longest = 0;
    for (int64_t i = 0; i < n_spans; i++) {
        LS_ASSERT(spans[i].row == rows, "span %lld starts at row %lld, expected %lld", (long long)i,
                  (long long)spans[i].row, (long long)rows);
        rows += spans[i].n_rows;
        if (spans[i].n_rows > longest) longest = spans[i].n_rows;
    }
    if (rows > b->rows_max || n_spans > b->spans_max || n_tables > b->pages_max)
        return LS_FAIL(err, LS_ERR_CAPACITY, "batch: %lld rows of %lld, %lld spans of %lld, %lld page numbers of %lld",
                       (long long)rows, (long long)b->rows_max, (long long)n_spans, (long long)b->spans_max,
                       (long long)n_tables, (long long)b->pages_max);
    b->n_rows = rows;
    b->n_spans = n_spans;
    b->n_tables = n_tables;
    b->span_rows_max = longest;
    b->tree = NULL;
    LS_TRY(ls_memory_write(b->device, b->tokens, tokens, rows * (int64_t)sizeof *tokens, err));
    LS_TRY(ls_memory_write(b->device, b->spans, spans, n_spans * (int64_t)sizeof *spans, err));
    return ls_memory_write(b->device, b->tables, tables, n_tables * (int64_t)sizeof *tables, err);
}

ls_status ls_batch_write_tree(ls_batch *b, const ls_span_tree *tree, ls_error *err) {
    b->tree = tree;
    return ls_memory_write(b->device, b->spans, tree->spans, b->n_spans * (int64_t)sizeof *tree->spans, err);
}
