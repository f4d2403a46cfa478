/* Checks of what lies in device memory, run on the device before an op writes; shared by the CUDA ops. */
#ifndef LS_OP_CUDA_CHECK_CUDA_H
#define LS_OP_CUDA_CHECK_CUDA_H

#include "dev/cuda.h"
#include "op/logprob.h"

/* The rows of a log-probability call. temperature and mask may be NULL. */
typedef struct ls_row_check {
    const int64_t *targets;
    const uint8_t *mask;
    const float *temperature;
    int64_t rows, vocab, ignore_index;
    ls_fault *fault;
} ls_row_check;

/* Of an op's arguments. */
template <typename ARGS>
static ls_row_check ls_row_check_of(const ARGS *a, const float *temperature, int64_t vocab, ls_fault *fault) {
    return {.targets = a->targets,
            .mask = a->mask,
            .temperature = temperature,
            .rows = a->rows,
            .vocab = vocab,
            .ignore_index = a->ignore_index,
            .fault = fault};
}

/* The spans of an op with state. */
typedef struct ls_span_check {
    const ls_span *spans;
    int64_t n_spans, rows, span_rows_max; /* span_rows_max > 0 */
    int64_t n_entries;                    /* of the pool; INT64_MAX where there is none */
    bool ascending;                       /* rows, as gradients take them */
    bool whole;                           /* pos 0 only */
    ls_fault *fault;
} ls_span_check;

/* Of an op's arguments, whose spans have at most span_rows_max rows each. */
template <typename ARGS>
static ls_span_check ls_span_check_of(const ARGS *a, int64_t span_rows_max, int64_t n_entries, ls_fault *fault) {
    return {.spans = a->spans,
            .n_spans = a->n_spans,
            .rows = a->rows,
            .span_rows_max = span_rows_max,
            .n_entries = n_entries,
            .ascending = false,
            .whole = false,
            .fault = fault};
}

/* Of a gradient's. */
template <typename ARGS>
static ls_span_check ls_span_check_back(const ARGS *a, int64_t span_rows_max, bool whole, ls_fault *fault) {
    ls_span_check check = ls_span_check_of(a, span_rows_max, INT64_MAX, fault);
    check.ascending = true;
    check.whole = whole;
    return check;
}

/* Keys of spans that have been checked: key_rows[i] is the first row of span i's. */
typedef struct ls_key_check {
    const ls_span *spans;
    const int64_t *key_rows;
    int64_t n_spans, rows, keys_max; /* rows: of keys */
    ls_fault *fault;
} ls_key_check;

typedef struct ls_offset_check {
    const int64_t *offsets; /* [n + 1] */
    int64_t n, rows;
    ls_fault *fault;
} ls_offset_check;

/* Each runs as one small kernel: the lowest bad index goes to the record, unless it holds an earlier fault. */
ls_status ls_cuda_check_rows(const char *op, const ls_exec *exec, ls_row_check *check, ls_error *err);
ls_status ls_cuda_check_spans(const char *op, const ls_exec *exec, ls_span_check *check, ls_error *err);
ls_status ls_cuda_check_keys(const char *op, const ls_exec *exec, ls_key_check *check, ls_error *err);
/* What a call whose spans have been checked must have: the record. */
ls_status ls_cuda_checked_before(const char *op, const ls_exec *exec, ls_error *err);
ls_status ls_cuda_check_offsets(const char *op, const ls_exec *exec, ls_offset_check *check, ls_error *err);

static __device__ __forceinline__ ls_fault ls_fault_at(const ls_row_check *c, int64_t row) {
    ls_fault fault = {.code = LS_FAULT_NONE, .index = row, .value = 0, .limit = 0};
    if (!ls_logprob_keeps(c->targets, c->ignore_index, c->mask, row)) return fault;
    fault.value = c->targets[row];
    fault.limit = c->vocab;
    if (fault.value < 0 || fault.value >= c->vocab) {
        fault.code = LS_FAULT_TARGET;
    } else if (c->temperature != NULL) {
        const float t = c->temperature[row];
        fault.value = (int64_t)__float_as_uint(t);
        if (!(t > 0.0f && t <= 3.402823466e38f)) fault.code = LS_FAULT_TEMPERATURE;
    }
    return fault;
}

static __device__ __forceinline__ ls_fault ls_fault_at(const ls_span_check *c, int64_t i) {
    const ls_span *span = &c->spans[i];
    const int64_t most = c->span_rows_max < c->rows ? c->span_rows_max : c->rows;
    ls_fault fault = {.code = LS_FAULT_SPAN_ROWS, .index = i, .value = span->n_rows, .limit = most};
    if (span->n_rows < 0 || span->n_rows > most) return fault;
    fault.value = span->row;
    fault.limit = c->rows;
    if (span->row < 0 || span->row > c->rows - span->n_rows) return fault;
    if (c->ascending && i > 0) {
        fault.code = LS_FAULT_SPAN_ORDER;
        fault.limit = (int64_t)((uint64_t)c->spans[i - 1].row + (uint64_t)c->spans[i - 1].n_rows);
        if (span->row < fault.limit) return fault;
    }
    fault.code = LS_FAULT_SPAN_POS;
    fault.value = span->pos;
    fault.limit = c->whole ? 0 : INT64_MAX;
    if (span->pos < 0 || span->pos > fault.limit) return fault;
    fault.code = LS_FAULT_SLOT;
    fault.value = span->slot;
    fault.limit = c->n_entries;
    if (span->slot >= c->n_entries) return fault;
    fault.code = LS_FAULT_NONE;
    return fault;
}

static __device__ __forceinline__ ls_fault ls_fault_at(const ls_key_check *c, int64_t i) {
    const ls_span *span = &c->spans[i];
    ls_fault fault = {.code = LS_FAULT_SPAN_POS, .index = i, .value = span->pos, .limit = c->keys_max - span->n_rows};
    if (span->pos > fault.limit) return fault;
    fault.code = LS_FAULT_ROW;
    fault.value = c->key_rows[i];
    fault.limit = c->rows - span->pos - span->n_rows + 1;
    if (fault.value < 0 || fault.value >= fault.limit) return fault;
    fault.code = LS_FAULT_ROW_ORDER;
    fault.limit = i > 0 ? c->key_rows[i - 1] + c->spans[i - 1].pos + c->spans[i - 1].n_rows : 0;
    if (fault.value < fault.limit) return fault;
    fault.code = LS_FAULT_NONE;
    return fault;
}

static __device__ __forceinline__ ls_fault ls_fault_at(const ls_offset_check *c, int64_t i) {
    const int64_t from = c->offsets[i], to = c->offsets[i + 1];
    ls_fault fault = {.code = LS_FAULT_OFFSET, .index = i, .value = from, .limit = c->rows};
    if (from < 0 || from > c->rows) return fault;
    fault.value = to;
    if (to < from || to > c->rows) return fault;
    fault.code = LS_FAULT_NONE;
    return fault;
}

/* The lowest bad index of n in all threads of the block, INT64_MAX without one. THREADS is a power of two. */
template <int THREADS, typename CHECK>
static __device__ int64_t ls_first_bad(const CHECK *c, int64_t n) {
    __shared__ int64_t first[THREADS];
    int64_t mine = INT64_MAX;
    for (int64_t i = threadIdx.x; i < n && mine == INT64_MAX; i += THREADS)
        if (ls_fault_at(c, i).code != LS_FAULT_NONE) mine = i;
    if (!__syncthreads_or(mine != INT64_MAX)) return INT64_MAX;
    first[threadIdx.x] = mine;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half && first[threadIdx.x + half] < first[threadIdx.x])
            first[threadIdx.x] = first[threadIdx.x + half];
    }
    __syncthreads();
    return first[0];
}

/* The check inside an op's own kernel, where few things are checked: every block looks at all of them, so that none
 * writes if one is bad. False: return at once. */
template <int THREADS, typename CHECK>
static __device__ bool ls_block_may_write(const CHECK *c, int64_t n) {
    /* Block 0 may write the record while others read it: the block decides as one. */
    if (__syncthreads_or(c->fault->code != LS_FAULT_NONE)) return false;
    const int64_t bad = ls_first_bad<THREADS>(c, n);
    if (bad == INT64_MAX) return true;
    if (blockIdx.x == 0 && threadIdx.x == 0) *c->fault = ls_fault_at(c, bad);
    return false;
}

#endif
