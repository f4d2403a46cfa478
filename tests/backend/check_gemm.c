/* Dense products on the GPU, forward and backward, in both profiles: the bits of the CPU for every shape, type, layout,
 * batch size and repetition; what is refused; faults in sequences. */
#include <pthread.h>

#include "backend.h"
#include "num/half.h"
#include "num/mma16_oracle.h"
#include "op/backend.h"
#include "op/gemm.h"
#include "op/gemm_cuda.h"

/* Whose products are the reference. */
static ls_device *cpu;

/* Values: plain; the classes of the profile's oracle; those without infinities and NaN. */
typedef enum values { PLAIN, CLASSES, FINITE } values;

static float value_of(values v, uint64_t *seed) {
    const uint64_t r = test_random(seed);
    if (v == PLAIN || r % 4 == 0) return test_uniform(seed, -1.0f, 1.0f);
    return ls_bf16_to_f32(mma_operand((int)(r >> 8) % (v == CLASSES ? MMA_CLASSES : MMA_HUGE), test_random(seed)));
}

static void put(void *array, ls_dtype dtype, int64_t i, float x) {
    if (dtype == LS_F32)
        ((float *)array)[i] = x;
    else
        ((uint16_t *)array)[i] = dtype == LS_BF16 ? ls_f32_to_bf16(x) : ls_f32_to_f16(x);
}

/* [rows][stride], what lies between rows being NaN. */
static void *matrix(ls_dtype dtype, int64_t rows, int64_t cols, int64_t stride, values v, uint64_t *seed) {
    void *m = bk_alloc(rows * stride * ls_dtype_bytes(dtype));
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < stride; j++)
            put(m, dtype, i * stride + j, j < cols ? value_of(v, seed) : ls_from_bits(0x7FC00000u));
    return m;
}

static void refused(const char *what, const ls_error *err) {
    printf("FAILED: the reference refuses %s: %s\n", what, err->text);
    exit(1);
}

/* ---- forward ---- */

typedef struct forward {
    int64_t m, n, k, x_pad, out_pad;
    ls_dtype x_dtype, w_dtype, out_dtype;
    bool biased, tiles;
    ls_profile profile;
    values v;
    int64_t offset; /* bytes by which x and out are off their alignment, a multiple of 4 */
} forward;

/* Device arrays of a case, so that rows may vary over one weight. */
typedef struct forward_data {
    void *x, *w, *bias, *expected, *out;
    void *dx, *dw, *dtiles, *dbias;
    int64_t out_bytes;
} forward_data;

static forward_data forward_make(bk_run *run, const forward *f, uint64_t seed) {
    const int64_t x_stride = f->k + f->x_pad, out_stride = f->n + f->out_pad;
    ls_gemm_weight weight;
    forward_data d;
    memset(&d, 0, sizeof d);
    d.x = matrix(f->x_dtype, f->m, f->k, x_stride, f->v, &seed);
    d.w = matrix(f->w_dtype, f->n, f->k, f->k, f->v, &seed);
    d.bias = matrix(LS_F32, 1, f->n, f->n, PLAIN, &seed);
    d.out_bytes = f->m * out_stride * ls_dtype_bytes(f->out_dtype);
    d.expected = bk_alloc(d.out_bytes);
    d.out = bk_alloc(d.out_bytes);
    memset(d.expected, BK_PATTERN, (size_t)d.out_bytes);
    if (ls_gemm_pack(cpu, &weight, d.w, f->w_dtype, f->n, f->k, &run->err) != LS_OK) refused("a weight", &run->err);
    {
        const ls_gemm_args args = {
            d.x,        f->x_dtype,   x_stride,   &weight, f->biased ? (const float *)d.bias : NULL,
            d.expected, f->out_dtype, out_stride, f->m,    f->profile,
            NULL,       false};
        if (ls_gemm(cpu, &args, &run->err) != LS_OK) refused("a product", &run->err);
    }
    ls_gemm_weight_free(cpu, &weight);
    d.dx = bk_put(run, "x", d.x, f->m * x_stride * ls_dtype_bytes(f->x_dtype), f->offset);
    d.dw = bk_put(run, "w", d.w, f->n * f->k * ls_dtype_bytes(f->w_dtype), 0);
    d.dbias = f->biased ? bk_put(run, "bias", d.bias, f->n * 4, 0) : NULL;
    if (f->tiles) {
        d.dtiles = bk_new(run, "tiles", ls_cuda_gemm_tiles_bytes(f->n, f->k), 0);
        bk_before_call(run, LS_WORKSPACE_HEAD);
        if (ls_cuda_gemm_pack(&run->exec, d.dtiles, d.dw, f->n, f->k, &run->err) != LS_OK) bk_die(run, "pack");
    }
    return d;
}

static void forward_free(forward_data *d) {
    free(d->x);
    free(d->w);
    free(d->bias);
    free(d->expected);
    free(d->out);
}

static ls_cuda_gemm_args forward_args(const forward *f, const forward_data *d, int64_t rows, void *out) {
    const ls_cuda_gemm_args args = {
        d->dx, f->x_dtype,   f->k + f->x_pad,   d->dw, f->w_dtype, d->dtiles, (const float *)d->dbias,
        out,   f->out_dtype, f->n + f->out_pad, rows,  f->n,       f->k,      f->profile,
        false, NULL};
    return args;
}

/* The first `rows` rows: they have the bits that they have among all. */
static void forward_check(bk_run *run, const forward *f, forward_data *d, int64_t rows) {
    const int64_t elem = ls_dtype_bytes(f->out_dtype), bytes = rows * (f->n + f->out_pad) * elem, n = run->n_arrays;
    void *out = bk_new(run, "out", bytes, f->offset);
    const ls_cuda_gemm_args args = forward_args(f, d, rows, out);
    bk_before_call(run, ls_cuda_gemm_workspace(&args));
    if (bk_call_done(run, "gemm", ls_cuda_gemm_stored(&run->exec, &args, &run->err))) {
        bk_download(run, d->out, out, bytes);
        bk_same(run, d->expected, d->out, bytes / elem, elem, "%s m %lld of %lld n %lld k %lld x %s w %s out %s%s%s",
                ls_profile_name(f->profile), (long long)rows, (long long)f->m, (long long)f->n, (long long)f->k,
                ls_dtype_name(f->x_dtype), ls_dtype_name(f->w_dtype), ls_dtype_name(f->out_dtype),
                f->biased ? ", bias" : "", f->tiles ? ", tiles" : "");
    }
    bk_clear_to(run, n);
}

static void forward_case(bk_run *run, const forward *f, uint64_t seed) {
    forward_data d = forward_make(run, f, seed);
    forward_check(run, f, &d, f->m);
    forward_free(&d);
    bk_clear(run);
}

/* Every number of rows, each with all kernels that take it. */
static void every_batch(bk_run *run) {
    const forward list[] = {
        {300, 200, 192, 0, 0, LS_BF16, LS_BF16, LS_F32, false, true, LS_PROFILE_MMA16, PLAIN, 0},
        {300, 96, 1100, 4, 8, LS_BF16, LS_BF16, LS_BF16, true, false, LS_PROFILE_MMA16, CLASSES, 0},
        {300, 67, 90, 0, 0, LS_BF16, LS_BF16, LS_F32, true, false, LS_PROFILE_EXACT, PLAIN, 0},
    };
    for (int64_t i = 0; i < BK_COUNT(list); i++) {
        forward_data d = forward_make(run, &list[i], (uint64_t)i + 1);
        for (int64_t rows = 1; rows <= 300; rows += run->small ? 67 : 1) forward_check(run, &list[i], &d, rows);
        forward_free(&d);
        bk_clear(run);
    }
}

/* Sizes about those of tiles, stages and boxes; layouts that a box cannot describe. */
static void every_shape(bk_run *run) {
    static const int64_t ms[] = {1, 3, 8, 17, 33, 64, 65, 128, 129, 200}, ns[] = {1, 7, 8, 63, 64, 65, 255, 257, 600},
                         ks[] = {1, 8, 15, 16, 17, 64, 72, 129, 512, 1000};
    uint64_t seed = 5;
    for (int64_t i = 0; i < (run->small ? 20 : 160); i++) {
        const uint64_t r = test_random(&seed);
        forward f = {ms[r % 10],
                     ns[r / 10 % 9],
                     ks[r / 100 % 10],
                     (int64_t)(r >> 20) % 3 * 4,
                     (int64_t)(r >> 24) % 3,
                     LS_BF16,
                     LS_BF16,
                     (r >> 28) % 2 ? LS_F32 : LS_BF16,
                     (r >> 29) % 2,
                     (r >> 30) % 2,
                     LS_PROFILE_MMA16,
                     (values)((r >> 32) % 2),
                     (r >> 36) % 4 == 0 ? 4 : 0};
        forward_case(run, &f, seed);
        f.profile = LS_PROFILE_EXACT;
        f.tiles = false;
        f.x_dtype = (r >> 40) % 2 ? LS_F32 : LS_BF16;
        f.w_dtype = (ls_dtype)((r >> 44) % 3);
        forward_case(run, &f, seed);
    }
}

/* A model's widths. */
static void large(bk_run *run) {
    const forward list[] = {
        {150, 192, 1030, 2, 0, LS_BF16, LS_BF16, LS_F32, true, true, LS_PROFILE_MMA16, CLASSES, 0},
        {70, 1024, 256, 0, 0, LS_BF16, LS_BF16, LS_F32, false, true, LS_PROFILE_MMA16, PLAIN, 0},
        {40, 192, 5120, 0, 0, LS_BF16, LS_BF16, LS_F32, false, true, LS_PROFILE_MMA16, PLAIN, 0},
        {64, 2560, 1024, 0, 0, LS_BF16, LS_BF16, LS_BF16, false, true, LS_PROFILE_MMA16, PLAIN, 0},
        {65, 5120, 160, 0, 0, LS_BF16, LS_BF16, LS_F32, false, true, LS_PROFILE_MMA16, PLAIN, 0},
        {128, 10240, 1032, 0, 0, LS_BF16, LS_BF16, LS_BF16, false, true, LS_PROFILE_MMA16, PLAIN, 0},
        {100, 4300, 328, 8, 3, LS_BF16, LS_BF16, LS_F32, true, true, LS_PROFILE_MMA16, CLASSES, 0},
        {127, 8232, 72, 0, 0, LS_BF16, LS_BF16, LS_F32, false, true, LS_PROFILE_MMA16, CLASSES, 0},
        {80, 16640, 136, 0, 8, LS_BF16, LS_BF16, LS_BF16, true, true, LS_PROFILE_MMA16, PLAIN, 0},
        {520, 1030, 2048, 0, 2, LS_BF16, LS_BF16, LS_F32, true, false, LS_PROFILE_MMA16, CLASSES, 0},
        {260, 512, 1024, 0, 0, LS_F32, LS_BF16, LS_F32, false, false, LS_PROFILE_EXACT, PLAIN, 0},
    };
    for (int64_t i = 0; i < (run->small ? 1 : BK_COUNT(list)); i++) forward_case(run, &list[i], (uint64_t)i + 40);
}

/* One case for each tile that the kernel for many rows may cut 132 multiprocessors' work into; tiles inside and on both
 * edges, depths that end amid a stage. */
static void every_tile(bk_run *run) {
    static const int64_t sizes[][3] = {{130, 136, 328},  {130, 2136, 200}, {136, 2824, 192},
                                       {150, 5304, 136}, {170, 3544, 136}, {200, 6352, 72},
                                       {262, 5656, 104}, {262, 7048, 64},  {400, 6352, 72}};
    for (int64_t i = 0; i < (run->small ? 3 : BK_COUNT(sizes)); i++)
        for (int64_t wide = 0; wide < 2; wide++) {
            const forward f = {sizes[i][0],
                               sizes[i][1],
                               sizes[i][2],
                               0,
                               wide ? 4 : 8,
                               LS_BF16,
                               LS_BF16,
                               wide ? LS_F32 : LS_BF16,
                               false,
                               false,
                               LS_PROFILE_MMA16,
                               wide ? CLASSES : PLAIN,
                               0};
            forward_case(run, &f, (uint64_t)(2 * i + wide) + 90);
        }
}

/* ---- backward ---- */

typedef struct backward {
    int64_t n, k, pad;
    int64_t lengths[6];
    ls_profile profile;
    ls_dtype dtype; /* of w and x */
    bool add, continued;
    values v;
    bool rounded; /* dy is given in bf16 besides */
} backward;

/* dy as the profile mma16 rounds it, rows as far apart. */
static const uint16_t *put_rounded(bk_run *run, const float *dy, int64_t n) {
    uint16_t *rounded = bk_alloc(n * 2);
    const uint16_t *there;
    for (int64_t i = 0; i < n; i++) rounded[i] = ls_f32_to_bf16(dy[i]);
    there = bk_put(run, "dy_rounded", rounded, n * 2, 0);
    free(rounded);
    return there;
}

static void backward_case(bk_run *run, const backward *b, uint64_t seed) {
    int64_t sequences[7] = {0}, m = 0;
    bool whole = true;
    for (int64_t s = 0; s < 6; s++) {
        sequences[s + 1] = m += b->lengths[s];
        whole &= b->lengths[s] % 16 == 0;
    }
    const int64_t elem = ls_dtype_bytes(b->dtype), n = b->n, k = b->k, dy_stride = n + b->pad, x_stride = k + b->pad;
    float *dy = matrix(LS_F32, m, n, dy_stride, b->v, &seed), *dx = matrix(LS_F32, m, k, x_stride, b->v, &seed);
    float *dw = matrix(LS_F32, n, k, k, b->v, &seed), *dbias = matrix(LS_F32, 1, n, n, PLAIN, &seed);
    float *got = bk_alloc((m * x_stride + n * k + n) * 4);
    void *w = matrix(b->dtype, n, k, k, b->v, &seed), *x = matrix(b->dtype, m, k, x_stride, b->v, &seed);
    if (!b->continued) memset(dw, 0, (size_t)(n * k) * 4);
    ls_gemm_backward_input_args input = {bk_put(run, "dy", dy, m * dy_stride * 4, 0),
                                         dy_stride,
                                         bk_put(run, "w", w, n * k * elem, 0),
                                         b->dtype,
                                         bk_put(run, "dx", dx, m * x_stride * 4, 0),
                                         x_stride,
                                         m,
                                         NULL,
                                         b->add,
                                         m,
                                         n,
                                         k,
                                         b->profile,
                                         NULL,
                                         b->rounded ? put_rounded(run, dy, m * dy_stride) : NULL,
                                         dy_stride};
    ls_gemm_backward_weight_args weight = {input.dy,
                                           dy_stride,
                                           bk_put(run, "x", x, m * x_stride * elem, 0),
                                           b->dtype,
                                           x_stride,
                                           m,
                                           NULL,
                                           bk_put(run, "dw", dw, n * k * 4, 0),
                                           bk_put(run, "dbias", dbias, n * 4, 0),
                                           m,
                                           n,
                                           k,
                                           b->profile,
                                           bk_put(run, "sequences", sequences, sizeof sequences, 0),
                                           6,
                                           NULL,
                                           input.dy_rounded,
                                           dy_stride,
                                           whole,
                                           !b->continued};
    bk_before_call(run, ls_cuda_gemm_backward_input_workspace(&input));
    if (bk_call_done(run, "dx", ls_cuda_gemm_backward_input(&run->exec, &input, &run->err)))
        bk_download(run, got, input.dx, m * x_stride * 4);
    bk_before_call(run, ls_cuda_gemm_backward_weight_workspace(&weight));
    if (bk_call_done(run, "dw", ls_cuda_gemm_backward_weight(&run->exec, &weight, &run->err))) {
        bk_download(run, got + m * x_stride, weight.dw, n * k * 4);
        bk_download(run, got + m * x_stride + n * k, weight.dbias, n * 4);
    }
    input.dy = weight.dy = dy;
    input.dy_rounded = weight.dy_rounded = NULL;
    input.w = w;
    input.dx = dx;
    weight.x = x;
    weight.dw = dw;
    weight.dbias = dbias;
    weight.sequences = sequences;
    if (ls_gemm_backward_input(cpu, &input, &run->err) != LS_OK ||
        ls_gemm_backward_weight(cpu, &weight, &run->err) != LS_OK)
        refused("a gradient", &run->err);
#define SAME(expected, at, count, name)                                                                       \
    bk_same(run, expected, at, count, 4, "%s %s: m %lld n %lld k %lld %s", ls_profile_name(b->profile), name, \
            (long long)m, (long long)n, (long long)k, ls_dtype_name(b->dtype))
    SAME(dx, got, m * x_stride, "dx");
    SAME(dw, got + m * x_stride, n * k, "dw");
    SAME(dbias, got + m * x_stride + n * k, n, "dbias");
#undef SAME
    free(dy);
    free(dx);
    free(dw);
    free(dbias);
    free(got);
    free(w);
    free(x);
    bk_clear(run);
}

static void gradients(bk_run *run) {
    static const int64_t sides[] = {1, 8, 33, 64, 130, 200, 264}, lengths[] = {0, 1, 15, 16, 17, 40, 64, 100};
    uint64_t seed = 9;
    for (int64_t i = 0; i < (run->small ? 12 : 120); i++) {
        const uint64_t r = test_random(&seed);
        backward b = {
            sides[r % 7],
            sides[r / 7 % 7],
            (int64_t)(r >> 40) % 2 * 3,
            {1 + (int64_t)(r >> 8) % 40, lengths[r / 49 % 8], 0, lengths[r / 392 % 8], 3, lengths[r >> 33 & 7]},
            i % 3 == 0 ? LS_PROFILE_EXACT : LS_PROFILE_MMA16,
            LS_BF16,
            (r >> 36) % 2,
            (r >> 37) % 2,
            i % 3 == 0 || i % 2 == 0 ? PLAIN : CLASSES,
            i % 3 != 0 && i % 5 < 3};
        if (i % 4 == 1)
            for (int64_t s = 0; s < 6; s++) b.lengths[s] = b.lengths[s] / 16 * 16 + (s == 0 ? 16 : 0);
        /* dbias is a float32 chain, and which NaN a float32 NaN is stays open there. */
        if (b.v == CLASSES) b.v = FINITE;
        if (b.profile == LS_PROFILE_EXACT && i % 2 == 0) b.dtype = LS_F32;
        backward_case(run, &b, seed);
    }
}

static void large_gradients(bk_run *run) {
    const backward list[] = {
        {512, 640, 0, {300, 17, 128, 5, 0, 200}, LS_PROFILE_MMA16, LS_BF16, true, true, PLAIN, false},
        {96, 1024, 0, {1000, 1, 0, 0, 0, 600}, LS_PROFILE_MMA16, LS_BF16, false, false, FINITE, false},
        {192, 640, 0, {512, 256, 0, 0, 0, 256}, LS_PROFILE_MMA16, LS_BF16, false, false, PLAIN, true}};
    for (int64_t i = 0; i < (run->small ? 0 : BK_COUNT(list)); i++) backward_case(run, &list[i], (uint64_t)i + 70);
}

/* The same of operands that lie with their rows side by side: dx has many rows, then dw, which goes on from what is
 * there. */
static void every_tile_of_gradients(bk_run *run) {
    static const int64_t sizes[][2] = {{140, 136}, {150, 2824}, {200, 6352}, {262, 5656}, {400, 6352}};
    for (int64_t i = 0; i < (run->small ? 1 : BK_COUNT(sizes)); i++) {
        const backward dx = {40, sizes[i][1], 0, {sizes[i][0]}, LS_PROFILE_MMA16, LS_BF16, false, false, PLAIN, false};
        const backward dw = {sizes[i][0], sizes[i][1], 0,    {33, 15}, LS_PROFILE_MMA16,
                             LS_BF16,     true,        true, PLAIN,    false};
        backward_case(run, &dx, (uint64_t)i + 110);
        backward_case(run, &dw, (uint64_t)i + 120);
    }
}

/* ---- the rest ---- */

static void repeats_and_graphs(bk_run *run) {
    const forward f = {48, 264, 640, 0, 0, LS_BF16, LS_BF16, LS_F32, false, true, LS_PROFILE_MMA16, PLAIN, 0};
    forward_data d = forward_make(run, &f, 3);
    void *out = bk_new(run, "out", d.out_bytes, 0), *graph;
    ls_cuda_gemm_args args = forward_args(&f, &d, f.m, out);
    ls_exec async = bk_async_exec(run, LS_WORKSPACE_HEAD);
    for (int64_t i = 0; i < (run->small ? 3 : 100); i++) forward_check(run, &f, &d, f.m);
    if (ls_graph_begin(&async, &run->err) != LS_OK || ls_cuda_gemm_stored(&async, &args, &run->err) != LS_OK)
        bk_die(run, "capture");
    args.w_tiles = NULL;
    if (ls_cuda_gemm_stored(&async, &args, &run->err) != LS_OK || ls_graph_end(&async, &graph, &run->err) != LS_OK)
        bk_die(run, "capture");
    for (int64_t i = 0; i < 3; i++) {
        if (ls_device_fill(&async, out, BK_PATTERN, d.out_bytes, &run->err) != LS_OK) bk_die(run, "fill");
        if (ls_graph_launch(&async, graph, &run->err) != LS_OK) bk_die(run, "launch");
        if (ls_device_synchronize(&async, &run->err) != LS_OK) bk_die(run, "synchronize");
        bk_download(run, d.out, out, d.out_bytes);
        bk_same(run, d.expected, d.out, d.out_bytes / 4, 4, "replay %lld", (long long)i);
    }
    ls_graph_free(graph);
    ls_stream_free(LS_BACKEND_CUDA, async.stream);
    forward_free(&d);
}

/* One product, again and again in a stream of its own. */
typedef struct repeated {
    ls_cuda_gemm_args args;
    ls_exec exec;
    int64_t n;
    ls_status status;
    ls_error err;
} repeated;

static void *repeat(void *context) {
    repeated *r = context;
    for (int64_t i = 0; r->status == LS_OK && i < r->n; i++) {
        r->status = ls_cuda_gemm_stored(&r->exec, &r->args, &r->err);
        if (r->status == LS_OK && i % 64 == 63) r->status = ls_device_synchronize(&r->exec, &r->err);
    }
    if (r->status == LS_OK) r->status = ls_device_synchronize(&r->exec, &r->err);
    return NULL;
}

/* Two threads launch the same kernel with different amounts of shared memory. */
static void threads_side_by_side(bk_run *run) {
    forward f = {16, 264, 0, 0, 0, LS_BF16, LS_BF16, LS_F32, false, true, LS_PROFILE_MMA16, PLAIN, 0};
    forward_data data[2];
    repeated threads[2];
    pthread_t ids[2];
    memset(threads, 0, sizeof threads);
    for (int i = 0; i < 2; i++) {
        f.k = i == 0 ? 4096 : 512;
        data[i] = forward_make(run, &f, 3);
        threads[i].args = forward_args(&f, &data[i], f.m, bk_new(run, "out", data[i].out_bytes, 0));
        threads[i].exec = bk_async_exec(run, LS_WORKSPACE_HEAD);
        threads[i].n = run->small ? 100 : 20000;
    }
    for (int i = 0; i < 2; i++)
        if (pthread_create(&ids[i], NULL, repeat, &threads[i]) != 0) bk_die(run, "pthread_create");
    for (int i = 0; i < 2; i++) pthread_join(ids[i], NULL);
    for (int i = 0; i < 2; i++) {
        if (threads[i].status != LS_OK) {
            bk_fail(run, "thread %d: %s", i, threads[i].err.text);
        } else {
            bk_download(run, data[i].out, threads[i].args.out, data[i].out_bytes);
            bk_same(run, data[i].expected, data[i].out, data[i].out_bytes / 4, 4, "thread %d", i);
        }
        ls_stream_free(LS_BACKEND_CUDA, threads[i].exec.stream);
        forward_free(&data[i]);
    }
}

/* cuBLASLt gives the bits where the proof admits it, and the proof refuses a planted split. */
static void cublas_under_proof(bk_run *run) {
    const forward f = {192, 512, 2048, 0, 0, LS_BF16, LS_BF16, LS_F32, false, false, LS_PROFILE_MMA16, PLAIN, 0};
    forward_data d = forward_make(run, &f, 3);
    void *out = bk_new(run, "out", d.out_bytes, 0);
    ls_cuda_gemm_args args = forward_args(&f, &d, f.m, out);
    args.nan_open = true;
    if (ls_cuda_gemm_prepare(&args, &run->err) != LS_OK) {
        bk_skip(run, "%s", run->err.text);
    } else {
        bk_before_call(run, ls_cuda_gemm_workspace(&args));
        if (bk_call_done(run, "gemm", ls_cuda_gemm_stored(&run->exec, &args, &run->err))) {
            bk_download(run, d.out, out, d.out_bytes);
            bk_same(run, d.expected, d.out, d.out_bytes / 4, 4, "cuBLASLt");
        }
        if (ls_cuda_gemm_prepare_planted(&args, &run->err) != LS_ERR_UNSUPPORTED ||
            strstr(run->err.text, "words different") == NULL)
            bk_fail(run, "a planted split is not refused for its bits: %s", run->err.text);
        else
            printf("refused, as it should be: %s\n", run->err.text);
    }
    forward_free(&d);
}

static void bad_arguments(bk_run *run) {
    const forward f = {4, 16, 32, 0, 0, LS_BF16, LS_BF16, LS_F32, false, true, LS_PROFILE_MMA16, PLAIN, 0};
    forward_data d = forward_make(run, &f, 3);
    void *out = bk_new(run, "out", d.out_bytes, 0);
    ls_cuda_gemm_args args = forward_args(&f, &d, f.m, out);
    const char *of_type[] = {"profile mma16", "x is f32"}, *of_stride[] = {"x_stride 31", "32"},
               *of_null[] = {"w", "null"}, *of_rows[] = {"sequences", "offsets"}, *of_fault[] = {"offset"};
    int64_t offsets[2] = {0, 9};
    args.x_dtype = LS_F32;
    bk_before_call(run, LS_WORKSPACE_HEAD);
    bk_call_refused(run, "f32", ls_cuda_gemm_stored(&run->exec, &args, &run->err), of_type, 2);
    args = forward_args(&f, &d, f.m, out);
    args.x_stride = 31;
    bk_call_refused(run, "stride", ls_cuda_gemm_stored(&run->exec, &args, &run->err), of_stride, 2);
    args = forward_args(&f, &d, f.m, out);
    args.w = NULL;
    bk_call_refused(run, "null", ls_cuda_gemm_stored(&run->exec, &args, &run->err), of_null, 2);
    {
        float *dw = bk_new(run, "dw", 16 * 32 * 4, 0), *dy = bk_new(run, "dy", 4 * 16 * 4, 0);
        ls_gemm_backward_weight_args weight = {.dy = dy,
                                               .dy_stride = 16,
                                               .x = d.dx,
                                               .x_dtype = LS_BF16,
                                               .x_stride = 32,
                                               .x_count = 4,
                                               .dw = dw,
                                               .m = 4,
                                               .n = 16,
                                               .k = 32,
                                               .profile = LS_PROFILE_MMA16,
                                               .n_sequences = 1};
        bk_before_call(run, ls_cuda_gemm_backward_weight_workspace(&weight));
        bk_call_refused(run, "sequences", ls_cuda_gemm_backward_weight(&run->exec, &weight, &run->err), of_rows, 2);
        weight.sequences = bk_put(run, "sequences", offsets, sizeof offsets, 0);
        bk_before_call(run, ls_cuda_gemm_backward_weight_workspace(&weight));
        bk_call_refused(run, "offsets", ls_cuda_gemm_backward_weight(&run->exec, &weight, &run->err), of_fault, 1);
        if (!bk_untouched(run, dw, 16 * 32 * 4)) bk_fail(run, "dw was written in spite of a fault");
    }
    if (!bk_untouched(run, out, d.out_bytes)) bk_fail(run, "out was written by refused calls");
    forward_free(&d);
}

int main(int argc, char **argv) {
    static const bk_case cases[] = {
        {"bad arguments", bad_arguments, BK_CUDA_ONLY},
        {"every shape", every_shape, BK_CUDA_ONLY},
        {"every batch", every_batch, BK_CUDA_ONLY},
        {"large", large, BK_CUDA_ONLY},
        {"every tile", every_tile, BK_CUDA_ONLY},
        {"gradients", gradients, BK_CUDA_ONLY},
        {"large gradients", large_gradients, BK_CUDA_ONLY},
        {"every tile of gradients", every_tile_of_gradients, BK_CUDA_ONLY},
        {"cublas under proof", cublas_under_proof, BK_CUDA_ONLY},
        {"repeats and graphs", repeats_and_graphs, BK_CUDA_ONLY},
        {"threads side by side", threads_side_by_side, BK_CUDA_ONLY},
    };
    ls_error err;
    if (ls_device_open_cpu(&cpu, 1, ls_isa_best(), &err) != LS_OK) {
        printf("FAILED: %s\n", err.text);
        return 1;
    }
    const int result = bk_main(argc, argv, cases, BK_COUNT(cases));
    ls_device_close(cpu);
    return result;
}
