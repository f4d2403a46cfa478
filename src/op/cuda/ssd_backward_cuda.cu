/* Gradient of ssd on the GPU: a walk forwards, a walk backwards, then scalars a piece at a time, and two sums in their
 * fixed order. The walks here take any shape; ssd_backward_sm90a_cuda.cu has those of heads that models have. */
#include "dev/device.h"
#include "op/cuda/cuda_ops.h"
#include "op/cuda/ssd_backward_cuda.h"

#define THREADS 256
#define SUM_THREADS 128

/* ---- any shape: a block is a block of heads of one span, one head after another, its state in shared memory ---- */

/* 16 chains by halves. */
static __device__ __forceinline__ float join_chains(float chain[LS_SSD_FOLD]) {
#pragma unroll
    for (int half = LS_SSD_FOLD / 2; half > 0; half /= 2)
#pragma unroll
        for (int i = 0; i < half; i++) chain[i] = ls_add(chain[i], chain[i + half]);
    return chain[0];
}

/* The fold over p of x[p] * y[p]; of x[p] where y is NULL. */
static __device__ __forceinline__ float fold_channels(const float *x, const float *y, int64_t dim) {
    float chain[LS_SSD_FOLD];
#pragma unroll
    for (int i = 0; i < LS_SSD_FOLD; i++) chain[i] = 0.0f;
    for (int64_t base = 0; base < dim; base += LS_SSD_FOLD)
#pragma unroll
        for (int i = 0; i < LS_SSD_FOLD; i++)
            if (base + i < dim)
                chain[i] = y == NULL ? ls_add(chain[i], x[base + i]) : ls_fma(x[base + i], y[base + i], chain[i]);
    return join_chains(chain);
}

/* A token's inputs and what is folded of it. */
typedef struct token {
    float *x, *dy, *drive, *u; /* [dim] */
    float *b, *cc, *fold;      /* [states] */
    float *own;                /* K */
} token;

static __device__ token token_of(float *memory, int64_t dim, int64_t states) {
    token t;
    t.x = memory, t.dy = t.x + dim, t.drive = t.dy + dim, t.u = t.drive + dim;
    t.b = t.u + dim, t.cc = t.b + states, t.fold = t.cc + states, t.own = t.fold + states;
    return t;
}

template <int IN>
static __device__ void load_token(const token *t, const ls_ssd_backward_args *a, int64_t row, int64_t head,
                                  int64_t group) {
    for (int64_t p = threadIdx.x; p < a->head_dim; p += THREADS) {
        t->x[p] = ls_load_one<IN>(a->x, row * a->x_stride + head * a->head_dim + p);
        t->dy[p] = a->dout[row * a->dout_stride + head * a->head_dim + p];
    }
    for (int64_t n = threadIdx.x; n < a->n_states; n += THREADS) {
        t->b[n] = ls_load_one<IN>(a->b, row * a->b_stride + group * a->n_states + n);
        t->cc[n] = ls_load_one<IN>(a->cc, row * a->c_stride + group * a->n_states + n);
    }
}

template <int IN>
static __device__ __forceinline__ float dt_of(const ls_ssd_backward_args *a, int64_t row, int64_t head) {
    return ls_ssd_dt<IN>(a->dt_raw, row * a->dt_stride + head, a->dt_bias[head], a->dt_min, a->dt_max);
}

/* The share of a head in its block's sums, the first head's on its own. */
static __device__ __forceinline__ void add_share(float *sum, float factor, float fold, bool first) {
    *sum = ls_fma(factor, fold, first ? 0.0f : *sum);
}

/* A head's state of a span; +0 where there are none. */
static __device__ void load_state(float *s, const float *states, const ssd_back_params *p, int64_t span_i,
                                  int64_t head) {
    const int64_t from = ls_ssd_state_at(p, span_i, head);
    for (int64_t i = threadIdx.x; i < p->a.n_states * p->a.head_dim; i += THREADS)
        s[i] = states != NULL ? states[from + i] : 0.0f;
}

/* T of every channel, of the state's gradient g and the state s, into t->u; then every thread may read it. */
static __device__ void border_channels(const ssd_back_params *p, const float *g, const float *s, const token *t) {
    const int64_t dim = p->a.head_dim;
    __syncthreads();
    for (int64_t c = threadIdx.x; c < dim; c += THREADS)
        t->u[c] = ls_ssd_fold_states(g + c, dim, s + c, dim, p->a.n_states);
    __syncthreads();
}

template <int IN>
static __device__ void forwards(const ssd_back_params *p, int64_t span_i, int64_t block, int64_t head, bool first,
                                float *s, const token *t) {
    const ls_ssd_backward_args *a = &p->a;
    const ls_span *span = &a->spans[span_i];
    const int64_t dim = a->head_dim, states = a->n_states, each = dim * states, group = head / p->group_heads;
    const int64_t entry = ls_ssd_entry(span, span_i);
    float scale = ls_ssd_first_scale(p, span_i, head);
    load_state(s, a->initial, p, span_i, head);
    for (int64_t at = 0; at < span->n_rows; at++) {
        const int64_t row = span->row + at;
        const ls_ssd_step step = ls_ssd_step_of(scale, dt_of<IN>(a, row, head), a->a[head]);
        scale = step.scale;
        __syncthreads();
        load_token<IN>(t, a, row, head, group);
        if (step.rescaled)
            for (int64_t i = threadIdx.x; i < each; i += THREADS) s[i] = ls_mul(s[i], step.product);
        __syncthreads();
        if (at % LS_SSD_PIECE == 0 && (at > 0 || a->initial != NULL)) {
            float *kept = ls_ssd_kept(p, entry + at / LS_SSD_PIECE, head);
            for (int64_t i = threadIdx.x; i < each; i += THREADS) kept[i] = s[i];
            if (threadIdx.x == 0) p->work[p->plan.first + (entry + at / LS_SSD_PIECE) * a->n_heads + head] = scale;
        }
        for (int64_t n = threadIdx.x; n < states; n += THREADS) {
            t->fold[n] = fold_channels(t->dy, s + n * dim, dim);
            add_share(ls_ssd_share(p, block, row, 1) + n, scale, t->fold[n], first);
        }
        for (int64_t c = threadIdx.x; c < dim; c += THREADS) t->drive[c] = ls_mul(step.w, t->x[c]);
        __syncthreads();
        if (threadIdx.x == 0)
            p->work[p->plan.e + row * a->n_heads + head] =
                ls_mul(scale, ls_ssd_fold_states(t->cc, 1, t->fold, 1, states));
        if (threadIdx.x == 32) p->work[p->plan.y + row * a->n_heads + head] = fold_channels(t->dy, t->x, dim);
        if (threadIdx.x == 64 && head % p->group_heads == 0)
            p->work[p->plan.k + row * a->n_groups + group] = ls_ssd_fold_states(t->b, 1, t->cc, 1, states);
        for (int64_t i = threadIdx.x; i < each; i += THREADS) s[i] = ls_fma(t->drive[i % dim], t->b[i / dim], s[i]);
    }
    if (a->dfinal != NULL) {
        border_channels(p, a->dfinal + ls_ssd_state_at(p, span_i, head), s, t);
        if (threadIdx.x == 0)
            p->work[p->plan.last + span_i * a->n_heads + head] = ls_mul(scale, fold_channels(t->u, NULL, dim));
    }
    __syncthreads();
}

/* W of the first token of a piece; every thread calls it, the first returns it. */
static __device__ float first_w(const ssd_back_params *p, const float *g, const token *t, int64_t entry, int64_t head,
                                float scale) {
    border_channels(p, g, ls_ssd_kept(p, entry, head), t);
    if (threadIdx.x != 0) return 0.0f;
    return ls_mul(ls_mul(p->work[p->plan.first + entry * p->a.n_heads + head], scale),
                  fold_channels(t->u, NULL, p->a.head_dim));
}

template <int IN>
static __device__ void backwards(const ssd_back_params *p, int64_t span_i, int64_t block, int64_t head, bool first,
                                 float *g, const token *t) {
    const ls_ssd_backward_args *a = &p->a;
    const ls_span *span = &a->spans[span_i];
    const int64_t dim = a->head_dim, states = a->n_states, each = dim * states, group = head / p->group_heads;
    const int64_t entry = ls_ssd_entry(span, span_i);
    float scale = 1.0f, decay = 1.0f;
    load_state(g, a->dfinal, p, span_i, head);
    for (int64_t at = span->n_rows - 1; at >= 0; at--) {
        const int64_t row = span->row + at, piece = entry + at / LS_SSD_PIECE;
        const float dt = dt_of<IN>(a, row, head), product = ls_mul(scale, decay);
        const bool rescaled = product < LS_SSD_SCALE_MIN;
        scale = rescaled ? 1.0f : product;
        decay = ls_exp(ls_mul(dt, a->a[head]));
        __syncthreads();
        load_token<IN>(t, a, row, head, group);
        if (rescaled)
            for (int64_t i = threadIdx.x; i < each; i += THREADS) g[i] = ls_mul(g[i], product);
        __syncthreads();
        /* Another block may be the one that writes the group's in the workspace. */
        if (threadIdx.x == 0) t->own[0] = ls_ssd_fold_states(t->b, 1, t->cc, 1, states);
        for (int64_t n = threadIdx.x; n < states; n += THREADS)
            add_share(ls_ssd_share(p, block, row, 0) + n, ls_mul(dt, scale), fold_channels(t->x, g + n * dim, dim),
                      first);
        __syncthreads();
        for (int64_t c = threadIdx.x; c < dim; c += THREADS) {
            const float u = ls_mul(scale, ls_ssd_fold_states(t->b, 1, g + c, dim, states));
            t->u[c] = u;
            t->drive[c] = ls_mul(ls_div(1.0f, scale), t->dy[c]);
            a->dx[row * a->dx_stride + head * dim + c] =
                ls_fma(a->d[head], t->dy[c], ls_mul(dt, ls_fma(t->own[0], t->dy[c], u)));
        }
        __syncthreads();
        if (threadIdx.x == 0) p->work[p->plan.x + row * a->n_heads + head] = fold_channels(t->x, t->u, dim);
        for (int64_t i = threadIdx.x; i < each; i += THREADS) g[i] = ls_fma(t->drive[i % dim], t->cc[i / dim], g[i]);
        if (at % LS_SSD_PIECE == 0) {
            const float w = at == 0 && a->initial == NULL ? 0.0f : first_w(p, g, t, piece, head, scale);
            if (threadIdx.x == 0) p->work[p->plan.first + piece * a->n_heads + head] = w;
        }
    }
    for (int64_t i = threadIdx.x; i < each && a->dinitial != NULL && span->n_rows > 0; i += THREADS)
        a->dinitial[ls_ssd_state_at(p, span_i, head) + i] = ls_mul(ls_mul(scale, decay), g[i]);
    __syncthreads();
}

template <int IN>
static __global__ void __launch_bounds__(THREADS) walks_kernel(const __grid_constant__ ssd_back_params p) {
    ls_cuda_begin();
    extern __shared__ __align__(16) float memory[];
    const ls_ssd_backward_args *a = &p.a;
    const int64_t span_i = blockIdx.x / p.plan.n_blocks, block = blockIdx.x % p.plan.n_blocks;
    const int64_t in_group = block % p.plan.group_blocks * LS_SSD_SUM_HEADS, left = p.group_heads - in_group;
    const int64_t first = block / p.plan.group_blocks * p.group_heads + in_group;
    const ls_span *span = &a->spans[span_i];
    const token t = token_of(memory + a->n_states * a->head_dim, a->head_dim, a->n_states);
    if (p.fault->code != LS_FAULT_NONE || span->slot < 0) return;
    for (int64_t h = first; h < first + (left < LS_SSD_SUM_HEADS ? left : LS_SSD_SUM_HEADS); h++) {
        forwards<IN>(&p, span_i, block, h, h == first, memory, &t);
        backwards<IN>(&p, span_i, block, h, h == first, memory, &t);
    }
}

/* ---- what follows the walks ---- */

/* A thread is a head of a piece: ddt, and the piece's shares of the parameters. */
template <int IN>
static __global__ void __launch_bounds__(SUM_THREADS) pieces_kernel(const __grid_constant__ ssd_back_params p) {
    ls_cuda_begin();
    const ls_ssd_backward_args *a = &p.a;
    const int64_t blocks = (a->n_heads + SUM_THREADS - 1) / SUM_THREADS, span_i = blockIdx.x / blocks % a->n_spans;
    const int64_t j = blockIdx.x / blocks / a->n_spans, head = blockIdx.x % blocks * SUM_THREADS + threadIdx.x;
    const ls_span *span = &a->spans[span_i];
    if (p.fault->code != LS_FAULT_NONE || span->slot < 0 || head >= a->n_heads || j >= ls_ssd_pieces(span)) return;
    const int64_t entry = ls_ssd_entry(span, span_i) + j, begin = span->row + j * LS_SSD_PIECE;
    const int64_t rows = span->row + span->n_rows - begin, end = begin + (rows < LS_SSD_PIECE ? rows : LS_SSD_PIECE);
    const int64_t group = head / p.group_heads;
    float w = rows > LS_SSD_PIECE ? p.work[p.plan.first + (entry + 1) * a->n_heads + head]
              : a->dfinal != NULL ? p.work[p.plan.last + span_i * a->n_heads + head]
                                  : 0.0f;
    float da = 0.0f, dd = 0.0f, ddt_bias = 0.0f;
    for (int64_t row = end - 1; row >= begin; row--) {
        const int64_t at = row * a->n_heads + head;
        const float own = p.work[p.plan.k + row * a->n_groups + group], e = p.work[p.plan.e + at];
        const float x = p.work[p.plan.x + at], y = p.work[p.plan.y + at];
        const float raw = ls_add(ls_load_one<IN>(a->dt_raw, row * a->dt_stride + head), a->dt_bias[head]);
        const float soft = ls_softplus(raw), dt = ls_ssd_clamp(soft, a->dt_min, a->dt_max);
        if (row == begin)
            w = p.work[p.plan.first + entry * a->n_heads + head];
        else
            w = ls_exp(ls_mul(dt, a->a[head])) < LS_SSD_DECAY_MIN ? e : ls_add(w, ls_fma(-dt, x, e));
        float ddt = ls_mul(ls_fma(w, a->a[head], ls_fma(own, y, x)), ls_sigmoid(raw));
        if (soft < a->dt_min || soft > a->dt_max) ddt = 0.0f;
        da = ls_fma(w, dt, da);
        dd = ls_add(dd, y);
        ddt_bias = ls_add(ddt_bias, ddt);
        if (a->ddt_dtype == LS_F32)
            ls_store_one<LS_F32>(a->ddt, row * a->ddt_stride + head, ddt);
        else
            ls_store_one<LS_BF16>(a->ddt, row * a->ddt_stride + head, ddt);
    }
    p.work[p.plan.a + entry * a->n_heads + head] = da;
    p.work[p.plan.d + entry * a->n_heads + head] = dd;
    p.work[p.plan.bias + entry * a->n_heads + head] = ddt_bias;
}

/* J of blocks and rows, which db and dcc of the rows need. */
template <int IN>
static __global__ void __launch_bounds__(SUM_THREADS) own_kernel(const __grid_constant__ ssd_back_params p) {
    ls_cuda_begin();
    const ls_ssd_backward_args *a = &p.a;
    const int64_t i = (int64_t)blockIdx.x * SUM_THREADS + threadIdx.x;
    if (p.fault->code != LS_FAULT_NONE || i >= a->rows * p.plan.n_blocks) return;
    const int64_t row = i / p.plan.n_blocks, block = i % p.plan.n_blocks;
    const int64_t in_group = block % p.plan.group_blocks * LS_SSD_SUM_HEADS, left = p.group_heads - in_group;
    const int64_t first = block / p.plan.group_blocks * p.group_heads + in_group;
    float own = 0.0f;
    for (int64_t h = first; h < first + (left < LS_SSD_SUM_HEADS ? left : LS_SSD_SUM_HEADS); h++)
        own = ls_fma(dt_of<IN>(a, row, h), p.work[p.plan.y + row * a->n_heads + h], own);
    p.work[p.plan.j + i] = own;
}

/* db and dcc: a thread a state of a row and group of a span, blocks in order. */
template <int IN>
static __global__ void __launch_bounds__(SUM_THREADS) heads_kernel(const __grid_constant__ ssd_back_params p) {
    ls_cuda_begin();
    const ls_ssd_backward_args *a = &p.a;
    const int64_t columns = a->n_groups * a->n_states, span_i = blockIdx.x % a->n_spans;
    const int64_t i = blockIdx.x / a->n_spans * SUM_THREADS + threadIdx.x;
    const ls_span *span = &a->spans[span_i];
    if (p.fault->code != LS_FAULT_NONE || span->slot < 0 || i >= span->n_rows * columns) return;
    const int64_t row = span->row + i / columns, group = i % columns / a->n_states, n = i % a->n_states;
    const float b = ls_load_one<IN>(a->b, row * a->b_stride + group * a->n_states + n);
    const float c = ls_load_one<IN>(a->cc, row * a->c_stride + group * a->n_states + n);
    float db = 0.0f, dcc = 0.0f;
#pragma unroll 4
    for (int64_t block = group * p.plan.group_blocks; block < (group + 1) * p.plan.group_blocks; block++) {
        const float own = p.work[p.plan.j + row * p.plan.n_blocks + block];
        db = ls_add(db, ls_fma(own, c, ls_ssd_share(&p, block, row, 0)[n]));
        dcc = ls_add(dcc, ls_fma(own, b, ls_ssd_share(&p, block, row, 1)[n]));
    }
    a->db[row * a->db_stride + group * a->n_states + n] = db;
    a->dcc[row * a->dc_stride + group * a->n_states + n] = dcc;
}

/* Parameters: a thread a head, pieces in order. */
static __global__ void __launch_bounds__(SUM_THREADS) parameters_kernel(const __grid_constant__ ssd_back_params p) {
    ls_cuda_begin();
    const ls_ssd_backward_args *a = &p.a;
    const int64_t head = (int64_t)blockIdx.x * SUM_THREADS + threadIdx.x;
    if (p.fault->code != LS_FAULT_NONE || head >= a->n_heads) return;
    float da = a->continued ? a->da[head] : 0.0f, dd = a->continued ? a->dd[head] : 0.0f;
    float ddt_bias = a->continued ? a->ddt_bias[head] : 0.0f;
    for (int64_t i = 0; i < a->n_spans; i++) {
        const int64_t pieces = a->spans[i].slot < 0 ? 0 : ls_ssd_pieces(&a->spans[i]);
        const float *share = p.work + ls_ssd_entry(&a->spans[i], i) * a->n_heads + head;
#pragma unroll 4
        for (int64_t j = 0; j < pieces; j++) {
            da = ls_add(da, share[p.plan.a + j * a->n_heads]);
            dd = ls_add(dd, share[p.plan.d + j * a->n_heads]);
            ddt_bias = ls_add(ddt_bias, share[p.plan.bias + j * a->n_heads]);
        }
    }
    a->da[head] = da;
    a->dd[head] = dd;
    a->ddt_bias[head] = ddt_bias;
}

/* ---- launches ---- */

typedef struct launches {
    ls_launch walks, pieces, own, heads, parameters;
} launches;

static int64_t blocks_of(int64_t n) { return n / SUM_THREADS + (n % SUM_THREADS != 0); }

static launches launches_of(const ssd_back_params *p, int64_t most, const ls_index *index, int64_t n_index) {
    const ls_ssd_backward_args *a = &p->a;
    const int64_t shared = (a->n_states * a->head_dim + 4 * a->head_dim + 3 * a->n_states + 1) * 4;
    const int64_t pieces = most / LS_SSD_PIECE + (most % LS_SSD_PIECE != 0);
    const int64_t row_blocks = blocks_of(ls_launch_blocks(most, a->n_groups * a->n_states, 1));
    const launches l = {
        {"ssd_backward", {ls_launch_blocks(a->n_spans, p->plan.n_blocks, 1), 1, 1}, THREADS, shared, index, n_index},
        {"ssd_backward, pieces",
         {ls_launch_blocks(a->n_spans, pieces, blocks_of(a->n_heads)), 1, 1},
         SUM_THREADS,
         0,
         index,
         n_index},
        {"ssd_backward, own",
         {blocks_of(ls_launch_blocks(a->rows, p->plan.n_blocks, 1)), 1, 1},
         SUM_THREADS,
         0,
         index,
         n_index},
        {"ssd_backward, heads", {ls_launch_blocks(a->n_spans, row_blocks, 1), 1, 1}, SUM_THREADS, 0, index, n_index},
        {"ssd_backward, parameters", {blocks_of(a->n_heads), 1, 1}, SUM_THREADS, 0, index, n_index}};
    return l;
}

template <int IN>
static ls_status launch_all(const ls_exec *exec, ssd_back_params *p, const launches *l, ls_error *err) {
    bool taken;
    LS_CUDA_TRY(ls_ssd_back_walks(exec, p, &taken, err));
    if (!taken) LS_CUDA_TRY(ls_cuda_launch(exec, &l->walks, (const void *)walks_kernel<IN>, p, err));
    LS_CUDA_TRY(ls_cuda_launch(exec, &l->pieces, (const void *)pieces_kernel<IN>, p, err));
    LS_CUDA_TRY(ls_cuda_launch(exec, &l->own, (const void *)own_kernel<IN>, p, err));
    return ls_cuda_launch(exec, &l->heads, (const void *)heads_kernel<IN>, p, err);
}

ls_status ls_cuda_ssd_backward(const ls_exec *exec, const ls_ssd_backward_args *a, ls_error *err) {
    const int64_t elem = ls_dtype_bytes(a->in_dtype), most = ls_spans_most(a->span_rows_max, a->rows);
    const ls_cuda_operand operands[] = {{"x", a->x, elem, false},
                                        {"dt_raw", a->dt_raw, elem, false},
                                        {"b", a->b, elem, false},
                                        {"cc", a->cc, elem, false},
                                        {"a", a->a, 4, false},
                                        {"dt_bias", a->dt_bias, 4, false},
                                        {"d", a->d, 4, false},
                                        {"dout", a->dout, 4, false},
                                        {"dx", a->dx, 4, false},
                                        {"db", a->db, 4, false},
                                        {"dcc", a->dcc, 4, false},
                                        {"ddt", a->ddt, ls_dtype_bytes(a->ddt_dtype), false},
                                        {"da", a->da, 4, false},
                                        {"ddt_bias", a->ddt_bias, 4, false},
                                        {"dd", a->dd, 4, false},
                                        {"initial", a->initial, 16, true},
                                        {"initial_scale", a->initial_scale, 4, true},
                                        {"dinitial", a->dinitial, 16, true},
                                        {"dfinal", a->dfinal, 16, true},
                                        {"spans", a->spans, 8, a->n_spans == 0}};
    const ls_index index[] = {{LS_WIDTH_I64, {{{"row", a->rows}, {"x stride", a->x_stride}, {"element", 4}}}},
                              {LS_WIDTH_I64, {{{"row", a->rows}, {"dt stride", a->dt_stride}, {"element", 4}}}},
                              {LS_WIDTH_I64, {{{"row", a->rows}, {"b stride", a->b_stride}, {"element", 4}}}},
                              {LS_WIDTH_I64, {{{"row", a->rows}, {"c stride", a->c_stride}, {"element", 4}}}},
                              {LS_WIDTH_I64, {{{"row", a->rows}, {"dout stride", a->dout_stride}, {"element", 4}}}},
                              {LS_WIDTH_I64, {{{"row", a->rows}, {"dx stride", a->dx_stride}, {"element", 4}}}},
                              {LS_WIDTH_I64, {{{"row", a->rows}, {"db stride", a->db_stride}, {"element", 4}}}},
                              {LS_WIDTH_I64, {{{"row", a->rows}, {"dc stride", a->dc_stride}, {"element", 4}}}},
                              {LS_WIDTH_I64, {{{"row", a->rows}, {"ddt stride", a->ddt_stride}, {"element", 4}}}}};
    ssd_back_params p;
    ls_fault *fault;
    LS_CUDA_TRY(ls_cuda_check("ssd_backward", exec, operands, (int64_t)(sizeof operands / sizeof operands[0]),
                              ls_op_ssd_backward_workspace(a), err));
    p.a = *a;
    (void)ls_ssd_backward_plan_make(&p.plan, a);
    p.work = (float *)((char *)exec->workspace + LS_WORKSPACE_HEAD);
    p.group_heads = a->n_heads / a->n_groups;
    p.vectors = ls_eight_fits(a->x, a->x_stride, elem) && ls_eight_fits(a->b, a->b_stride, elem) &&
                ls_eight_fits(a->cc, a->c_stride, elem) && ls_eight_fits(a->dout, a->dout_stride, 4);
    const launches l = launches_of(&p, most, index, (int64_t)(sizeof index / sizeof index[0]));
    const ls_launch *const all[] = {&l.walks, &l.pieces, &l.own, &l.heads};
    const bool any = a->n_spans > 0 && a->rows > 0;
    for (int i = 0; any && i < 4; i++) LS_CUDA_TRY(ls_launch_check(all[i], LS_CUDA_SHARED_MAX, err));
    LS_CUDA_TRY(ls_launch_check(&l.parameters, LS_CUDA_SHARED_MAX, err));
    LS_CUDA_TRY(ls_cuda_fault_begin("ssd_backward", exec, &fault, err));
    ls_span_check check = ls_span_check_back(a, most, a->initial == NULL, fault);
    p.fault = fault;
    LS_CUDA_TRY(ls_cuda_check_spans("ssd_backward", exec, &check, err));
    if (any)
        LS_CUDA_TRY(a->in_dtype == LS_BF16 ? launch_all<LS_BF16>(exec, &p, &l, err)
                                           : launch_all<LS_F32>(exec, &p, &l, err));
    return ls_cuda_launch(exec, &l.parameters, (const void *)parameters_kernel, &p, err);
}
