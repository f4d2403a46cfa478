/* The scalar functions of num/expf.h and num/half.h give the same bits on a GPU as on a CPU, for all 2^32 inputs; so do
 * the GPU's own conversions in op/cuda/vector_cuda.h. On the CPU, code for AVX2 is compared with generic code.
 *
 * Both sides add the results of each 65,536 inputs up to one sum (scalars.h). Where sums differ, the results of the
 * first such block are compared one by one. */
#include "backend.h"
#include "base/parallel.h"
#include "scalars.h"

/* ---- the CPU's side ---- */

/* An instruction set: the results of a block for each function, and their sum. */
typedef struct instruction_set {
    const char *name;
    void (*results[SCALARS_FUNCTIONS])(uint32_t *results, uint32_t block, uint32_t step);
    uint64_t (*sum)(const uint32_t *results);
} instruction_set;

#define RESULTS(isa, target, id, name)                                                                               \
    static target void results_##name##_##isa(uint32_t *results, uint32_t block, uint32_t step) {                    \
        for (uint32_t j = 0; j < SCALARS_BLOCK; j++) results[j] = scalars_result(id, scalars_input(block, j, step)); \
    }
#define SUM(isa, target)                                                                 \
    static target uint64_t sum_##isa(const uint32_t *results) {                          \
        uint64_t sum = 0;                                                                \
        for (uint32_t j = 0; j < SCALARS_BLOCK; j++) sum += scalars_term(results[j], j); \
        return sum;                                                                      \
    }

#define RESULTS_GENERIC(id, name, log2_inputs, where, result) RESULTS(generic, __attribute__((noinline)), id, name)
#define NAME_GENERIC(id, name, log2_inputs, where, result) results_##name##_generic,
SCALARS_EACH(RESULTS_GENERIC)
SUM(generic, __attribute__((noinline)))
static const instruction_set generic = {"generic code", {SCALARS_EACH(NAME_GENERIC)}, sum_generic};

#ifdef __x86_64__
#define AVX2 __attribute__((noinline, target("avx2,fma")))
#define RESULTS_AVX2(id, name, log2_inputs, where, result) RESULTS(avx2, AVX2, id, name)
#define NAME_AVX2(id, name, log2_inputs, where, result) results_##name##_avx2,
SCALARS_EACH(RESULTS_AVX2)
SUM(avx2, AVX2)
static const instruction_set avx2 = {"AVX2", {SCALARS_EACH(NAME_AVX2)}, sum_avx2};
#endif

static const instruction_set *best_isa(void) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &avx2;
#endif
    return &generic;
}

/* ---- comparison ---- */

typedef struct scalar {
    const char *name;
    int log2_inputs;
} scalar;

static const scalar scalars[SCALARS_FUNCTIONS] = {
#define SCALAR(id, name, log2_inputs, where, result) {#name, log2_inputs},
    SCALARS_EACH(SCALAR)
#undef SCALAR
};

#define PLANTED_NOWHERE (-1)

/* The inputs of a comparison: n_blocks blocks. The one with index `planted` gives one ulp more in `isa`. */
typedef struct task {
    const instruction_set *isa;
    int function;
    int64_t n_blocks, planted;
    uint32_t step;
    uint32_t *room; /* a block of results for each thread */
    uint64_t *sums;
} task;

/* At most 2^log2_inputs inputs of the function, spread over its range. */
static task task_make(const instruction_set *isa, int function, int log2_inputs) {
    const int all = scalars[function].log2_inputs, n = log2_inputs < all ? log2_inputs : all;
    task t = {isa, function, ((int64_t)1 << n) / SCALARS_BLOCK, PLANTED_NOWHERE, 1, NULL, NULL};
    /* Indices of pairs have no order: any of them are as good as the first, which hold the edges. */
    if (all == 32 && n < all) t.step = (1u << (all - n)) + 1;
    return t;
}

static void cpu_results(const task *t, uint32_t *results, int64_t block) {
    t->isa->results[t->function](results, (uint32_t)block, t->step);
    if (t->planted != PLANTED_NOWHERE && t->planted / SCALARS_BLOCK == block) results[t->planted % SCALARS_BLOCK]++;
}

static void cpu_sums_part(void *context, int64_t begin, int64_t end, int32_t thread_i) {
    task *t = context;
    uint32_t *results = t->room + (int64_t)thread_i * SCALARS_BLOCK;
    for (int64_t block = begin; block < end; block++) {
        cpu_results(t, results, block);
        t->sums[block] = t->isa->sum(results);
    }
}

/* On all processors. */
static void cpu_sums(bk_run *run, task *t, uint64_t *sums) {
    ls_pool *pool;
    if (ls_pool_create(&pool, ls_cpu_count(), &run->err) != LS_OK) bk_die(run, "threads");
    t->room = bk_alloc((int64_t)ls_pool_threads(pool) * SCALARS_BLOCK * 4);
    t->sums = sums;
    ls_parallel_for(pool, t->n_blocks, 1, cpu_sums_part, t);
    free(t->room);
    ls_pool_free(pool);
}

#ifdef LS_HAVE_CUDA

static void gpu_sums(bk_run *run, const task *t, uint64_t *sums) {
    uint64_t *device = bk_new(run, "sums", t->n_blocks * 8, 0);
    bk_call_done(run, "sums", scalars_cuda_sums(device, &run->exec, t->function, t->n_blocks, t->step, &run->err));
    bk_download(run, sums, device, t->n_blocks * 8);
}

static void gpu_results(bk_run *run, const task *t, uint32_t *results, int64_t block) {
    uint32_t *device = bk_new(run, "results", SCALARS_BLOCK * 4, 0);
    bk_call_done(run, "results",
                 scalars_cuda_results(device, &run->exec, t->function, (uint32_t)block, t->step, &run->err));
    bk_download(run, results, device, SCALARS_BLOCK * 4);
}

#else /* the back end is not there, and no case comes here */

static void gpu_sums(bk_run *run, const task *t, uint64_t *sums) {
    (void)t, (void)sums;
    bk_die(run, "built without CUDA");
}

static void gpu_results(bk_run *run, const task *t, uint32_t *results, int64_t block) {
    (void)t, (void)results, (void)block;
    bk_die(run, "built without CUDA");
}

#endif

/* How the results of a task differ from those of the other side. */
typedef struct difference {
    int64_t blocks, first_block; /* whose sums differ */
    int64_t inputs, first;       /* whose results differ in that block; the index of the first of all inputs */
    uint32_t here, there;
} difference;

static difference find_difference(bk_run *run, task *t) {
    uint64_t *here = bk_alloc(t->n_blocks * 8), *there = bk_alloc(t->n_blocks * 8);
    uint32_t *results = bk_alloc(SCALARS_BLOCK * 4), *others = bk_alloc(SCALARS_BLOCK * 4);
    task other = *t;
    difference d = {0, 0, 0, 0, 0, 0};
    other.isa = &generic;
    other.planted = PLANTED_NOWHERE;
    if (run->cuda)
        gpu_sums(run, &other, there);
    else
        cpu_sums(run, &other, there);
    cpu_sums(run, t, here);
    d.blocks = bk_differences(here, there, t->n_blocks, 8, &d.first_block);
    if (d.blocks > 0) {
        int64_t j = 0;
        cpu_results(t, results, d.first_block);
        if (run->cuda)
            gpu_results(run, &other, others, d.first_block);
        else
            cpu_results(&other, others, d.first_block);
        d.inputs = bk_differences(results, others, SCALARS_BLOCK, 4, &j);
        d.first = d.first_block * SCALARS_BLOCK + j;
        d.here = results[j];
        d.there = others[j];
    }
    bk_clear(run);
    free(here);
    free(there);
    free(results);
    free(others);
    return d;
}

static void report(bk_run *run, const task *t, const difference *d) {
    const uint32_t x = (uint32_t)d->first * t->step;
    char input[64];
    if (d->inputs == 0) {
        bk_fail(run, "%lld of %lld sums differ, and not one result of block %lld", (long long)d->blocks,
                (long long)t->n_blocks, (long long)d->first_block);
        return;
    }
    if (t->function == SCALARS_EXP2_PRODUCT) {
        const scalars_pair pair = scalars_pair_at(x);
        snprintf(input, sizeof input, "0x%08x, 0x%08x (pair %u)", ls_bits(pair.a), ls_bits(pair.b), x);
    } else {
        snprintf(input, sizeof input, "0x%08x", x);
    }
    bk_fail(run, "%s gives 0x%08x %s and 0x%08x with %s; %lld inputs of %d differ, in %lld of %lld blocks", input,
            d->there, run->cuda ? "on the GPU" : "with generic code", d->here, t->isa->name, (long long)d->inputs,
            SCALARS_BLOCK, (long long)d->blocks, (long long)t->n_blocks);
}

/* ---- cases ---- */

/* Whether there are two sides to compare. */
static bool has_sides(bk_run *run) {
    if (run->cuda || best_isa() != &generic) return true;
    bk_skip(run, "this processor has no AVX2 and FMA to compare with generic code");
    return false;
}

static int log2_inputs(const bk_run *run) { return !run->cuda ? 20 : run->small ? 22 : 32; }

/* The function that the case is called after. */
static void same_bits(bk_run *run) {
    int function = 0;
    task t;
    difference d;
    if (!has_sides(run)) return;
    while (strcmp(scalars[function].name, run->case_name) != 0) function++;
    t = task_make(best_isa(), function, log2_inputs(run));
    d = find_difference(run, &t);
    if (d.blocks > 0) report(run, &t, &d);
}

/* The negative control: one ulp in one result of the CPU, at the start, at the end and within. */
static void one_ulp_in_one_result_is_seen(bk_run *run) {
    if (!has_sides(run)) return;
    for (int function = 0; function < SCALARS_FUNCTIONS; function++) {
        task t = task_make(best_isa(), function, 18);
        const int64_t n = t.n_blocks * SCALARS_BLOCK, places[] = {0, n / 3, n - 1};
        for (int64_t p = 0; p < BK_COUNT(places); p++) {
            difference d;
            t.planted = places[p];
            d = find_difference(run, &t);
            if (d.blocks != 1 || d.inputs != 1 || d.first != places[p] || d.here != d.there + 1)
                bk_fail(run, "%s: one ulp at input %lld: %lld blocks differ, %lld inputs, first %lld: 0x%08x, 0x%08x",
                        scalars[function].name, (long long)places[p], (long long)d.blocks, (long long)d.inputs,
                        (long long)d.first, d.here, d.there);
        }
    }
}

int main(int argc, char **argv) {
    static const bk_case cases[] = {
#define CASE(id, name, log2_inputs, where, result) {#name, same_bits, BK_##where},
        SCALARS_EACH(CASE)
#undef CASE
            {"one_ulp_in_one_result_is_seen", one_ulp_in_one_result_is_seen, BK_ANYWHERE},
    };
    return bk_main(argc, argv, cases, BK_COUNT(cases));
}
