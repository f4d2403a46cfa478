/* Dense products of the profile mma16 by cuBLASLt, where it has been shown to give the profile's bits.
 *
 * The library is looked for at run time; without it the project's own kernels compute everything. It is asked for
 * algorithms that do not split the depth; one is admitted for one problem (device, sizes, layouts, types) after its
 * result on random data equalled that of ls_product_mma16_plain in every bit. Of those admitted the fastest is used,
 * where it is faster than the project's own kernel: which one computes carries no bits. What was found is kept for
 * the life of the process. NaN is what the contract cannot have from it: its pattern is the library's, so it
 * is used only for calls that leave that open. */
#include <cublasLt.h>
#include <dlfcn.h>
#include <stdio.h>

#include <mutex>

#include "op/cuda/product_cuda.h"
#include "op/gemm_cuda.h"

#define ENTRIES_MAX 4096
#define ALGORITHMS_MAX 16
#define TIMED_RUNS 5 /* the shortest counts */
/* What is written between them, so that weights come from memory as they do between other products. */
#define COLD_BYTES ((size_t)128 << 20)
#define REASON_MAX 200

/* ---- the library ---- */

/* clang-format off */
#define LT_FUNCTIONS(X) \
    X(cublasLtCreate) X(cublasLtMatmul) \
    X(cublasLtMatmulAlgoGetHeuristic) X(cublasLtMatmulDescCreate) \
    X(cublasLtMatmulAlgoConfigSetAttribute) X(cublasLtMatmulDescDestroy) \
    X(cublasLtMatmulDescSetAttribute) X(cublasLtMatrixLayoutCreate) \
    X(cublasLtMatrixLayoutDestroy) X(cublasLtMatrixLayoutSetAttribute) \
    X(cublasLtMatmulPreferenceCreate) \
    X(cublasLtMatmulPreferenceDestroy) X(cublasLtMatmulPreferenceSetAttribute)
/* clang-format on */

typedef struct lt_library {
    bool tried, there;
    char reason[REASON_MAX]; /* where it is not */
    cublasLtHandle_t handle;
#define LT_MEMBER(name) decltype(&name) name##_;
    LT_FUNCTIONS(LT_MEMBER)
} lt_library;

static lt_library lt;
static std::mutex lt_lock;

static void library_find(void) {
    void *library = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) library = dlopen("libcublasLt.so", RTLD_NOW | RTLD_LOCAL);
    lt.tried = true;
    if (library == NULL) {
        snprintf(lt.reason, sizeof lt.reason, "%s", dlerror());
        return;
    }
#define LT_FIND(name)                                                       \
    lt.name##_ = (decltype(&name))dlsym(library, #name);                    \
    if (lt.name##_ == NULL) {                                               \
        snprintf(lt.reason, sizeof lt.reason, "libcublasLt has no " #name); \
        return;                                                             \
    }
    LT_FUNCTIONS(LT_FIND)
    if (lt.cublasLtCreate_(&lt.handle) != CUBLAS_STATUS_SUCCESS) {
        snprintf(lt.reason, sizeof lt.reason, "cublasLtCreate fails");
        return;
    }
    lt.there = true;
}

/* ---- what was found ---- */

/* What tells one problem from another; strides and types are part of it. */
typedef struct problem_key {
    int64_t device, rows, cols, depth, a_stride, b_stride, out_stride;
    int64_t a_side, b_side, out_dtype, pair;
} problem_key;

typedef struct entry {
    problem_key key;
    bool admitted, faster;   /* than the project's own kernel */
    char reason[REASON_MAX]; /* of a refusal */
    cublasLtMatmulAlgo_t algorithm;
} entry;

static entry *entries[ENTRIES_MAX];
static int64_t n_entries;

static ls_status key_of(problem_key *key, const ls_product *p, const ls_product_other *other, ls_error *err) {
    int device;
    LS_CUDA_TRY(ls_cuda_status(cudaGetDevice(&device), p->op, err));
    memset(key, 0, sizeof *key);
    key->device = device;
    key->rows = p->rows;
    key->cols = p->cols;
    key->depth = p->depth;
    key->a_side = p->a_step != 1;
    key->b_side = p->b_step != 1;
    key->a_stride = key->a_side ? p->a_step : p->a_row;
    key->b_stride = key->b_side ? p->b_step : p->b_col;
    key->out_stride = p->out_stride;
    key->out_dtype = p->out_dtype;
    key->pair = other != NULL;
    return LS_OK;
}

static entry *entry_find(const problem_key *key) {
    for (int64_t i = 0; i < n_entries; i++)
        if (memcmp(&entries[i]->key, key, sizeof *key) == 0) return entries[i];
    return NULL;
}

/* ---- one product ---- */

typedef struct lt_problem {
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t w, x, out;
} lt_problem;

static void problem_free(lt_problem *p) {
    if (p->product != NULL) (void)lt.cublasLtMatmulDescDestroy_(p->product);
    if (p->w != NULL) (void)lt.cublasLtMatrixLayoutDestroy_(p->w);
    if (p->x != NULL) (void)lt.cublasLtMatrixLayoutDestroy_(p->x);
    if (p->out != NULL) (void)lt.cublasLtMatrixLayoutDestroy_(p->out);
    memset(p, 0, sizeof *p);
}

/* A pair is a batch of two with one x; strides are in elements. */
static bool layout_pair(cublasLtMatrixLayout_t layout, int64_t stride) {
    const int32_t two = 2;
    return lt.cublasLtMatrixLayoutSetAttribute_(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &two, sizeof two) ==
               CUBLAS_STATUS_SUCCESS &&
           lt.cublasLtMatrixLayoutSetAttribute_(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                                sizeof stride) == CUBLAS_STATUS_SUCCESS;
}

/* Columns first is the library's way: out^T [cols][rows] = b^T a^T, so b is its first operand. Of a pair, the second b
 * and out lie so many elements behind the first. */
static bool problem_make(lt_problem *p, const problem_key *key, int64_t second_b, int64_t second_out) {
    const cublasOperation_t of_b = key->b_side ? CUBLAS_OP_N : CUBLAS_OP_T,
                            of_a = key->a_side ? CUBLAS_OP_T : CUBLAS_OP_N;
    const uint64_t cols = (uint64_t)key->cols, rows = (uint64_t)key->rows, depth = (uint64_t)key->depth;
    memset(p, 0, sizeof *p);
    return lt.cublasLtMatmulDescCreate_(&p->product, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
           lt.cublasLtMatmulDescSetAttribute_(p->product, CUBLASLT_MATMUL_DESC_TRANSA, &of_b, sizeof of_b) ==
               CUBLAS_STATUS_SUCCESS &&
           lt.cublasLtMatmulDescSetAttribute_(p->product, CUBLASLT_MATMUL_DESC_TRANSB, &of_a, sizeof of_a) ==
               CUBLAS_STATUS_SUCCESS &&
           lt.cublasLtMatrixLayoutCreate_(&p->w, CUDA_R_16BF, key->b_side ? cols : depth, key->b_side ? depth : cols,
                                          key->b_stride) == CUBLAS_STATUS_SUCCESS &&
           lt.cublasLtMatrixLayoutCreate_(&p->x, CUDA_R_16BF, key->a_side ? rows : depth, key->a_side ? depth : rows,
                                          key->a_stride) == CUBLAS_STATUS_SUCCESS &&
           lt.cublasLtMatrixLayoutCreate_(&p->out, key->out_dtype == LS_F32 ? CUDA_R_32F : CUDA_R_16BF, cols, rows,
                                          key->out_stride) == CUBLAS_STATUS_SUCCESS &&
           (!key->pair || (layout_pair(p->w, second_b) && layout_pair(p->x, 0) && layout_pair(p->out, second_out)));
}

static cublasStatus_t problem_run(const lt_problem *p, const cublasLtMatmulAlgo_t *algorithm, const void *a,
                                  const void *b, void *out, void *workspace, size_t bytes, cudaStream_t stream) {
    const float one = 1.0f, zero = 0.0f;
    return lt.cublasLtMatmul_(lt.handle, p->product, &one, b, p->w, a, p->x, &zero, out, p->out, out, p->out, algorithm,
                              workspace, bytes, stream);
}

/* Algorithms that take no workspace and do not split the depth, best first by the library's own guess. */
static int algorithms_of(const lt_problem *p, cublasLtMatmulHeuristicResult_t found[ALGORITHMS_MAX]) {
    const uint64_t workspace = 0;
    const uint32_t no_reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
    cublasLtMatmulPreference_t preference = NULL;
    int n = 0;
    if (lt.cublasLtMatmulPreferenceCreate_(&preference) != CUBLAS_STATUS_SUCCESS) return 0;
    if (lt.cublasLtMatmulPreferenceSetAttribute_(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                                 sizeof workspace) != CUBLAS_STATUS_SUCCESS ||
        lt.cublasLtMatmulPreferenceSetAttribute_(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &no_reduction,
                                                 sizeof no_reduction) != CUBLAS_STATUS_SUCCESS ||
        lt.cublasLtMatmulAlgoGetHeuristic_(lt.handle, p->product, p->w, p->x, p->out, p->out, preference,
                                           ALGORITHMS_MAX, found, &n) != CUBLAS_STATUS_SUCCESS)
        n = 0;
    (void)lt.cublasLtMatmulPreferenceDestroy_(preference);
    return n;
}

/* ---- the proof ---- */

#define THREADS 256
#define BLOCKS 512

static __global__ void __launch_bounds__(THREADS) random_kernel(uint16_t *to, int64_t n, uint32_t seed) {
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (int64_t)BLOCKS * THREADS) {
        uint32_t r = (uint32_t)i * 2654435761u + seed;
        r = (r ^ r >> 16) * 0x7FEB352Du;
        r = (r ^ r >> 15) * 0x846CA68Bu;
        r ^= r >> 16;
        to[i] = (uint16_t)((r & 0x8000u) | (118u + (r >> 16) % 10) << 7 | (r & 0x7Fu));
    }
}

/* Words of out that differ, for each block. */
static __global__ void __launch_bounds__(THREADS)
    differ_kernel(const uint16_t *a, const uint16_t *b, int64_t n, uint32_t *differ) {
    int mine = 0;
    __shared__ int all[THREADS];
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (int64_t)BLOCKS * THREADS)
        mine += a[i] != b[i];
    all[threadIdx.x] = mine;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int t = 1; t < THREADS; t++) mine += all[t];
    differ[blockIdx.x] = (uint32_t)mine;
}

/* For algorithms that split, which are only ever planted. */
#define PLANTED_BYTES ((size_t)64 << 20)

/* Memory and stream of a proof; freed together. */
typedef struct bench {
    uint16_t *a, *b;
    uint8_t *ours, *theirs, *workspace; /* workspace: NULL but where a split is planted */
    bool lent;                          /* theirs is the caller's */
    uint8_t *cold;                      /* NULL where there is no room for it */
    uint32_t *differ;
    cudaStream_t stream;
    cudaEvent_t begin, end;
} bench;

static void bench_free(bench *t) {
    void *all[] = {t->a, t->b, t->ours, t->lent ? NULL : t->theirs, t->workspace, t->cold, t->differ};
    for (int i = 0; i < 7; i++)
        if (all[i] != NULL) (void)cudaFree(all[i]);
    if (t->begin != NULL) (void)cudaEventDestroy(t->begin);
    if (t->end != NULL) (void)cudaEventDestroy(t->end);
    if (t->stream != NULL) (void)cudaStreamDestroy(t->stream);
}

/* lent: where the library's results may go, or NULL. */
static ls_status bench_make(bench *t, int64_t a_elements, int64_t b_elements, int64_t out_bytes, void *lent,
                            const char *op, ls_error *err) {
    memset(t, 0, sizeof *t);
    t->theirs = (uint8_t *)lent;
    t->lent = lent != NULL;
    LS_CUDA_TRY(ls_cuda_status(cudaStreamCreateWithFlags(&t->stream, cudaStreamNonBlocking), op, err));
    LS_CUDA_TRY(ls_cuda_status(cudaEventCreate(&t->begin), op, err));
    LS_CUDA_TRY(ls_cuda_status(cudaEventCreate(&t->end), op, err));
    LS_CUDA_TRY(ls_cuda_status(cudaMalloc((void **)&t->a, (size_t)a_elements * 2), op, err));
    LS_CUDA_TRY(ls_cuda_status(cudaMalloc((void **)&t->b, (size_t)b_elements * 2), op, err));
    LS_CUDA_TRY(ls_cuda_status(cudaMalloc((void **)&t->ours, (size_t)out_bytes), op, err));
    if (!t->lent) LS_CUDA_TRY(ls_cuda_status(cudaMalloc((void **)&t->theirs, (size_t)out_bytes), op, err));
    LS_CUDA_TRY(ls_cuda_status(cudaMalloc((void **)&t->differ, BLOCKS * sizeof *t->differ), op, err));
    LS_CUDA_TRY(ls_cuda_status(cudaMemsetAsync(t->ours, 0, (size_t)out_bytes, t->stream), op, err));
    random_kernel<<<BLOCKS, THREADS, 0, t->stream>>>(t->a, a_elements, 1);
    random_kernel<<<BLOCKS, THREADS, 0, t->stream>>>(t->b, b_elements, 2);
    return ls_cuda_status(cudaGetLastError(), op, err);
}

/* Once results have been compared: one of them makes room for what is written between timed runs. */
static ls_status bench_keep_one(bench *t, const char *op, ls_error *err) {
    LS_CUDA_TRY(ls_cuda_status(cudaFree(t->ours), op, err));
    t->ours = NULL;
    if (cudaMalloc((void **)&t->cold, COLD_BYTES) != cudaSuccess) (void)cudaGetLastError();
    return LS_OK;
}

/* A product as it is computed by somebody. */
typedef struct contender {
    const lt_problem *problem;
    const cublasLtMatmulAlgo_t *algorithm; /* NULL: what is used otherwise */
    const ls_product *ours, *second;       /* second: of a pair, or NULL */
} contender;

static ls_status single_run(const ls_exec *exec, const ls_product *product, bool *taken, ls_error *err);

/* What computes a product where this problem's algorithms do not: the project's own kernel, for each of a pair the
 * library where it has been admitted for one. */
static ls_status otherwise_run(const contender *c, const ls_exec *exec, bool *runs, ls_error *err) {
    if (c->second == NULL) return ls_product_mma16_wgmma(exec, c->ours, runs, err);
    for (int i = 0; i < 2; i++) {
        const ls_product *each = i == 0 ? c->ours : c->second;
        LS_CUDA_TRY(single_run(exec, each, runs, err));
        if (!*runs) LS_CUDA_TRY(ls_product_mma16_wgmma(exec, each, runs, err));
    }
    return LS_OK;
}

/* *runs: false where it does not take the problem. */
static ls_status contender_run(const contender *c, const bench *t, bool *runs, ls_error *err) {
    ls_exec exec = {};
    exec.backend = LS_BACKEND_CUDA;
    exec.stream = t->stream;
    if (c->algorithm == NULL) return otherwise_run(c, &exec, runs, err);
    *runs = problem_run(c->problem, c->algorithm, t->a, t->b, t->theirs, t->workspace,
                        t->workspace != NULL ? PLANTED_BYTES : 0, t->stream) == CUBLAS_STATUS_SUCCESS;
    return LS_OK;
}

/* The shortest of some runs; infinity where it does not take the problem. One that begins far behind `best` is not run
 * again. */
static ls_status contender_time(const contender *c, const bench *t, float best, float *ms, const char *op,
                                ls_error *err) {
    *ms = INFINITY;
    for (int i = 0; i < TIMED_RUNS && (i == 0 || *ms < 1.2f * best); i++) {
        float each;
        bool runs = false;
        if (t->cold != NULL) LS_CUDA_TRY(ls_cuda_status(cudaMemsetAsync(t->cold, i, COLD_BYTES, t->stream), op, err));
        LS_CUDA_TRY(ls_cuda_status(cudaEventRecord(t->begin, t->stream), op, err));
        LS_CUDA_TRY(contender_run(c, t, &runs, err));
        LS_CUDA_TRY(ls_cuda_status(cudaEventRecord(t->end, t->stream), op, err));
        LS_CUDA_TRY(ls_cuda_status(cudaEventSynchronize(t->end), op, err));
        if (!runs) return LS_OK;
        LS_CUDA_TRY(ls_cuda_status(cudaEventElapsedTime(&each, t->begin, t->end), op, err));
        if (each < *ms) *ms = each;
    }
    return LS_OK;
}

/* Words of an algorithm's result that are not ours; -1 where it does not take the problem. */
static ls_status count_differing(const contender *c, const bench *t, int64_t out_bytes, int64_t *differ, const char *op,
                                 ls_error *err) {
    uint32_t counts[BLOCKS];
    bool runs;
    *differ = -1;
    LS_CUDA_TRY(ls_cuda_status(cudaMemsetAsync(t->theirs, 0, (size_t)out_bytes, t->stream), op, err));
    LS_CUDA_TRY(contender_run(c, t, &runs, err));
    if (!runs) return LS_OK;
    differ_kernel<<<BLOCKS, THREADS, 0, t->stream>>>((const uint16_t *)t->ours, (const uint16_t *)t->theirs,
                                                     out_bytes / 2, t->differ);
    LS_CUDA_TRY(
        ls_cuda_status(cudaMemcpyAsync(counts, t->differ, sizeof counts, cudaMemcpyDeviceToHost, t->stream), op, err));
    LS_CUDA_TRY(ls_cuda_status(cudaStreamSynchronize(t->stream), op, err));
    *differ = 0;
    for (int b = 0; b < BLOCKS; b++) *differ += counts[b];
    return LS_OK;
}

/* The algorithms of a list whose result is ours. */
typedef struct trial {
    bool same[ALGORITHMS_MAX];
    int64_t differ; /* words of the last one's result that are not ours */
} trial;

static ls_status compare_all(trial *out, contender *c, const bench *t, const cublasLtMatmulHeuristicResult_t *found,
                             int n, int64_t out_bytes, const char *op, ls_error *err) {
    for (int i = 0; i < n; i++) {
        c->algorithm = &found[i].algo;
        LS_CUDA_TRY(count_differing(c, t, out_bytes, &out->differ, op, err));
        out->same[i] = out->differ == 0;
    }
    return LS_OK;
}

/* The fastest of them, -1 where there is none, and whether it is faster than what computes the product otherwise. */
static ls_status time_all(const trial *of, contender *c, const bench *t, const cublasLtMatmulHeuristicResult_t *found,
                          int n, int *fastest, bool *faster, const char *op, ls_error *err) {
    float best = INFINITY, ms;
    *fastest = -1;
    for (int i = 0; i < n; i++) {
        if (!of->same[i]) continue;
        c->algorithm = &found[i].algo;
        LS_CUDA_TRY(contender_time(c, t, best, &ms, op, err));
        if (ms >= best) continue;
        best = ms;
        *fastest = i;
    }
    if (*fastest < 0) return LS_OK;
    c->algorithm = NULL;
    LS_CUDA_TRY(contender_time(c, t, best, &ms, op, err));
    *faster = best <= ms;
    return LS_OK;
}

/* Makes every algorithm split the depth in two: what the proof is there to refuse. */
static ls_status plant_split(bench *t, cublasLtMatmulHeuristicResult_t *found, int n, const char *op, ls_error *err) {
    const int32_t split = 2;
    const uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    for (int i = 0; i < n; i++)
        if (lt.cublasLtMatmulAlgoConfigSetAttribute_(&found[i].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split,
                                                     sizeof split) != CUBLAS_STATUS_SUCCESS ||
            lt.cublasLtMatmulAlgoConfigSetAttribute_(&found[i].algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &reduction,
                                                     sizeof reduction) != CUBLAS_STATUS_SUCCESS)
            return LS_FAIL(err, LS_ERR_DEVICE, "%s: cuBLASLt: no split can be planted", op);
    return ls_cuda_status(cudaMalloc((void **)&t->workspace, PLANTED_BYTES), op, err);
}

/* Whether all of out's bytes are the product's. */
static bool out_is_whole(const ls_product *p, const problem_key *key) {
    return !key->pair && key->out_stride == key->cols && (uintptr_t)p->out % 16 == 0;
}

/* planted: with algorithms that split, for the test that they are refused. in_out: results may go to the product's
 * out, which is large where memory is scarce. */
static ls_status prove(entry *e, const ls_product *product, bool planted, bool in_out, ls_error *err) {
    const problem_key *key = &e->key;
    const int64_t elem = key->out_dtype == LS_F32 ? 4 : 2, of_one = key->rows * key->out_stride;
    const int64_t out_bytes = of_one * elem * (key->pair ? 2 : 1);
    const int64_t a_elements = key->a_stride * (key->a_side ? key->depth : key->rows);
    const int64_t b_elements = key->b_stride * (key->b_side ? key->depth : key->cols);
    cublasLtMatmulHeuristicResult_t found[ALGORITHMS_MAX];
    lt_problem problem;
    ls_product ours = *product, second;
    trial all = {};
    int n, fastest = -1;
    bench t;
    ls_status status = bench_make(&t, a_elements, b_elements * (key->pair ? 2 : 1), out_bytes,
                                  in_out && out_is_whole(product, key) ? product->out : NULL, product->op, err);
    ls_exec exec = {};
    exec.backend = LS_BACKEND_CUDA;
    exec.stream = t.stream;
    ours.a = t.a;
    ours.b = t.b;
    ours.out = t.ours;
    ours.bias = NULL;
    ours.fault = NULL;
    second = ours;
    second.b = t.b + b_elements;
    second.out = t.ours + of_one * elem;
    if (status == LS_OK) status = ls_product_mma16_plain(&exec, &ours, err);
    if (status == LS_OK && key->pair) status = ls_product_mma16_plain(&exec, &second, err);
    if (!problem_make(&problem, key, b_elements, of_one)) {
        snprintf(e->reason, sizeof e->reason, "cuBLASLt does not take the layouts");
    } else if (status == LS_OK && (n = algorithms_of(&problem, found)) == 0) {
        snprintf(e->reason, sizeof e->reason, "cuBLASLt knows no algorithm without split and workspace");
    } else if (status == LS_OK) {
        if (planted) status = plant_split(&t, found, n, product->op, err);
        contender c = {&problem, NULL, &ours, key->pair ? &second : NULL};
        if (status == LS_OK) status = compare_all(&all, &c, &t, found, n, out_bytes, product->op, err);
        if (status == LS_OK) status = bench_keep_one(&t, product->op, err);
        ours.out = t.theirs;
        second.out = t.theirs + of_one * elem;
        if (status == LS_OK) status = time_all(&all, &c, &t, found, n, &fastest, &e->faster, product->op, err);
        e->admitted = status == LS_OK && fastest >= 0;
        if (e->admitted)
            e->algorithm = found[fastest].algo;
        else if (status == LS_OK)
            snprintf(e->reason, sizeof e->reason, "%d algorithms, the last with %lld of %lld words different", n,
                     (long long)all.differ, (long long)(out_bytes / 2));
    }
    problem_free(&problem);
    (void)cudaStreamSynchronize(t.stream);
    bench_free(&t);
    return status;
}

static bool wanted(const ls_product *p) { return p->mode == LS_PRODUCT_STORE && p->bias == NULL && p->fault == NULL; }

ls_status ls_product_cublas_prepare(const ls_product *product, const ls_product_other *other, bool in_out,
                                    bool *admitted, ls_error *err) {
    std::lock_guard<std::mutex> lock(lt_lock);
    problem_key key;
    entry *e;
    ls_status status;
    *admitted = false;
    if (!wanted(product))
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: cuBLASLt is not used with bias, sum or fault record", product->op);
    if (!lt.tried) library_find();
    if (!lt.there) return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: cuBLASLt: %s", product->op, lt.reason);
    LS_CUDA_TRY(key_of(&key, product, other, err));
    e = entry_find(&key);
    if (e == NULL) {
        if (n_entries == ENTRIES_MAX)
            return LS_FAIL(err, LS_ERR_CAPACITY, "%s: cuBLASLt: %d problems are known already", product->op,
                           ENTRIES_MAX);
        e = (entry *)calloc(1, sizeof *e);
        if (e == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "%s: cuBLASLt: no memory for an entry", product->op);
        e->key = key;
        status = prove(e, product, false, in_out, err);
        if (status != LS_OK) {
            free(e);
            return status;
        }
        entries[n_entries++] = e;
    }
    *admitted = e->admitted;
    if (e->admitted) return LS_OK;
    return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: cuBLASLt: %lld x %lld x %lld: %s", product->op, (long long)key.rows,
                   (long long)key.cols, (long long)key.depth, e->reason);
}

bool ls_product_cublas_known(const ls_product *product, const ls_product_other *other) {
    std::lock_guard<std::mutex> lock(lt_lock);
    problem_key key;
    if (!wanted(product) || (lt.tried && !lt.there)) return true;
    return key_of(&key, product, other, NULL) == LS_OK && entry_find(&key) != NULL;
}

ls_status ls_product_cublas_planted(const ls_product *product, bool *admitted, ls_error *err) {
    std::lock_guard<std::mutex> lock(lt_lock);
    entry e = {};
    *admitted = false;
    if (!lt.tried) library_find();
    if (!lt.there) return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: cuBLASLt: %s", product->op, lt.reason);
    LS_CUDA_TRY(key_of(&e.key, product, NULL, err));
    LS_CUDA_TRY(prove(&e, product, true, false, err));
    *admitted = e.admitted;
    if (e.admitted) return LS_OK;
    return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: cuBLASLt: %s", product->op, e.reason);
}

/* The lock is held. */
static ls_status known_run(const ls_exec *exec, const ls_product *product, const ls_product_other *other, bool *taken,
                           ls_error *err) {
    const int64_t elem = ls_dtype_bytes(product->out_dtype);
    const int64_t second_b = other == NULL ? 0 : ((intptr_t)other->b - (intptr_t)product->b) / 2;
    const int64_t second_out = other == NULL ? 0 : ((intptr_t)other->out - (intptr_t)product->out) / elem;
    problem_key key;
    lt_problem problem;
    const entry *e;
    cublasStatus_t status;
    *taken = false;
    if (!lt.there || !wanted(product)) return LS_OK;
    LS_CUDA_TRY(key_of(&key, product, other, err));
    e = entry_find(&key);
    if (e == NULL || !e->admitted || !e->faster) return LS_OK;
    if ((uintptr_t)product->a % 16 != 0 || (uintptr_t)product->b % 16 != 0 || (uintptr_t)product->out % 16 != 0)
        return LS_OK; /* proven with aligned operands */
    if (other != NULL &&
        ((uintptr_t)other->b % 16 != 0 || (uintptr_t)other->out % 16 != 0 || second_b < 0 || second_out < 0))
        return LS_OK; /* and with the second behind the first */
    if (!problem_make(&problem, &key, second_b, second_out))
        return LS_FAIL(err, LS_ERR_DEVICE, "%s: cuBLASLt: no descriptors", product->op);
    status =
        problem_run(&problem, &e->algorithm, product->a, product->b, product->out, NULL, 0, (cudaStream_t)exec->stream);
    problem_free(&problem);
    if (status != CUBLAS_STATUS_SUCCESS)
        return LS_FAIL(err, LS_ERR_DEVICE, "%s: cuBLASLt fails with %d", product->op, (int)status);
    *taken = true;
    return LS_OK;
}

static ls_status single_run(const ls_exec *exec, const ls_product *product, bool *taken, ls_error *err) {
    return known_run(exec, product, NULL, taken, err);
}

ls_status ls_product_mma16_cublas(const ls_exec *exec, const ls_product *product, const ls_product_other *other,
                                  bool *taken, ls_error *err) {
    std::lock_guard<std::mutex> lock(lt_lock);
    return known_run(exec, product, other, taken, err);
}
