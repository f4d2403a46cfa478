/* The faults that sit in ops. Not armed, each leaves every bit alone; armed, it changes what its description says and
 * nothing else, which is checked against sound calls that mean what the fault does. Raw bits throughout. With
 * LS_TEST_DEVICE the cases of the generic instruction set run on that device instead, but for the one whose pool is
 * 25 GB of addresses. */
#define _GNU_SOURCE
#include "device.h"
#include "faults/faults.h"
#include "op/backend.h"
#include "op/conv1d.h"
#include "op/op_case.h"
#include "op/op_sparse.h"
#include "op/scan.h"

enum { SLOTS = 6, ROWS = 12, DIM = 70, STATES = 5, D_CONV = 4, PAST = D_CONV - 1 };

/* What a call leaves: its rows, and the pool with what was there before. */
typedef struct result {
    op_array out;
    op_pool pool;
} result;

static void result_free(result *r) {
    op_array_free(&r->out);
    op_pool_free(&r->pool);
}

/* Rows not written, and slots that some sequence has used. */
static result result_make(int64_t state_floats) {
    const result r = {op_array_make(LS_F32, ROWS, DIM, 1), op_pool_make(SLOTS, state_floats * 4, 24)};
    uint64_t seed = 77;
    op_guard(&r.out);
    for (int32_t slot = 0; slot < SLOTS; slot++)
        for (int64_t i = 0; i < state_floats; i++) ((float *)ls_pool_at(&r.pool.view, slot))[i] = op_plain(&seed);
    return r;
}

static bool same_rows(const result *a, const result *b, int64_t row, int64_t n) {
    const int64_t floats = (n - 1) * a->out.stride + a->out.cols;
    return memcmp(op_at(&a->out, row, 0), op_at(&b->out, row, 0), (size_t)floats * 4) == 0;
}
static bool same_slot(const result *a, const result *b, int32_t slot) {
    return memcmp(ls_pool_at(&a->pool.view, slot), ls_pool_at(&b->pool.view, slot), (size_t)a->pool.entry_bytes) == 0;
}
static bool same(const result *a, const result *b) {
    return same_rows(a, b, 0, ROWS) && memcmp(a->pool.view.base, b->pool.view.base, (size_t)a->pool.bytes) == 0;
}

/* ---- memory of a call ---- */

enum { PLACED_MAX = 12 };

/* Copies on a device that does not reach the host's memory; elsewhere the host's memory itself. */
typedef struct placed {
    ls_device *device;
    int64_t n;
    struct {
        void *host, *memory; /* host: where it goes back to; NULL: nowhere */
        int64_t bytes;
    } of[PLACED_MAX];
} placed;

static void *place(placed *p, const void *host, int64_t bytes, bool comes_back) {
    void *here = (void *)(uintptr_t)host, *memory;
    if (!test_defers() || host == NULL) return here;
    assert_true(p->n < PLACED_MAX);
    memory = to_device(p->device, host, bytes);
    p->of[p->n].host = comes_back ? here : NULL;
    p->of[p->n].memory = memory;
    p->of[p->n++].bytes = bytes;
    return memory;
}

static void *place_array(placed *p, const op_array *a, bool comes_back) {
    return place(p, a->data, a->bytes, comes_back);
}

static ls_pool_view place_pool(placed *p, const ls_pool_view *pool) {
    ls_pool_view there = *pool;
    there.base = place(p, pool->base, pool->n_entries * pool->stride, true);
    return there;
}

static void take_back(placed *p) {
    for (int64_t i = 0; i < p->n; i++) {
        if (p->of[i].host != NULL) from_device(p->device, p->of[i].host, p->of[i].memory, p->of[i].bytes);
        ls_memory_free(p->device, p->of[i].memory);
    }
}

/* ---- the ops, with inputs of their own ---- */

static op_array filled(int64_t rows, int64_t cols, op_maker make, uint64_t seed) {
    const op_array a = op_array_make(LS_F32, rows, cols, 0);
    op_fill(&a, make, &seed);
    return a;
}

typedef struct scan_inputs {
    int64_t dim, states;
    op_array u, dt, b, cc, z, a2, bias, d;
    bool dt_activated; /* dt needs neither bias nor softplus */
} scan_inputs;

static float rate(uint64_t *seed) { return test_uniform(seed, -4.0f, -0.01f); }

static scan_inputs scan_make(int64_t rows, int64_t dim, int64_t states) {
    const scan_inputs in = {dim,
                            states,
                            filled(rows, dim, op_plain, 1),
                            filled(rows, dim, op_wide, 2),
                            filled(rows, states, op_plain, 3),
                            filled(rows, states, op_plain, 4),
                            filled(rows, dim, op_wide, 5),
                            filled(dim, states, rate, 6),
                            filled(1, dim, op_plain, 7),
                            filled(1, dim, op_plain, 8),
                            false};
    return in;
}

static void scan_free(scan_inputs *in) {
    op_array *arrays[] = {&in->u, &in->dt, &in->b, &in->cc, &in->z, &in->a2, &in->bias, &in->d};
    for (int64_t i = 0; i < OP_COUNT(arrays); i++) op_array_free(arrays[i]);
}

static void scan_run(const scan_inputs *in, ls_device *device, const ls_span *spans, int64_t n_spans,
                     const op_array *out, const ls_pool_view *pool, ls_inject fault) {
    placed p = {.device = device};
    const ls_scan_args args = {.in_dtype = LS_F32,
                               .out_dtype = LS_F32,
                               .dt_activated = in->dt_activated,
                               .u = place_array(&p, &in->u, false),
                               .dt_raw = place_array(&p, &in->dt, false),
                               .b = place_array(&p, &in->b, false),
                               .cc = place_array(&p, &in->cc, false),
                               .z = place_array(&p, &in->z, false),
                               .out = place_array(&p, out, true),
                               .u_stride = in->u.stride,
                               .dt_stride = in->dt.stride,
                               .b_stride = in->b.stride,
                               .c_stride = in->cc.stride,
                               .z_stride = in->z.stride,
                               .out_stride = out->stride,
                               .a2 = place_array(&p, &in->a2, false),
                               .dt_bias = in->dt_activated ? NULL : place_array(&p, &in->bias, false),
                               .d = place_array(&p, &in->d, false),
                               .rows = out->rows,
                               .dim = in->dim,
                               .n_states = in->states,
                               .state = place_pool(&p, pool),
                               .spans = place(&p, spans, n_spans * (int64_t)sizeof *spans, false),
                               .n_spans = n_spans};
    ls_error err;
    assert_ok(FAULTS_CALL(fault, device, ls_scan(device, &args, &err), &err), err);
    take_back(&p);
}

static result scan_of(const scan_inputs *in, ls_device *device, const ls_span *spans, int64_t n_spans,
                      ls_inject fault) {
    const result r = result_make(DIM * STATES);
    scan_run(in, device, spans, n_spans, &r.out, &r.pool.view, fault);
    return r;
}

static result conv_of(ls_device *device, const ls_span *spans, int64_t n_spans, ls_inject fault) {
    op_array x = filled(ROWS, DIM, op_plain, 11), w = filled(D_CONV, DIM, op_plain, 12);
    const result r = result_make((int64_t)PAST * DIM);
    placed p = {.device = device};
    const ls_conv1d_args args = {.x = place_array(&p, &x, false),
                                 .x_dtype = LS_F32,
                                 .y_dtype = LS_F32,
                                 .state_dtype = LS_F32,
                                 .x_stride = x.stride,
                                 .w = place_array(&p, &w, false),
                                 .y = place_array(&p, &r.out, true),
                                 .y_stride = r.out.stride,
                                 .rows = ROWS,
                                 .dim = DIM,
                                 .d_conv = D_CONV,
                                 .state = place_pool(&p, &r.pool.view),
                                 .spans = place(&p, spans, n_spans * (int64_t)sizeof *spans, false),
                                 .n_spans = n_spans};
    ls_error err;
    assert_ok(FAULTS_CALL(fault, device, ls_conv1d(device, &args, &err), &err), err);
    take_back(&p);
    op_array_free(&x);
    op_array_free(&w);
    return r;
}

/* Products of [m][k] by [n][k] with columns [begin, end) of both. */
typedef struct product {
    int64_t m, n, k;
    op_array x, w, bias;
} product;

static product product_make(int64_t m, int64_t n, int64_t k, ls_dtype dtype) {
    product p = {m, n, k, op_array_make(dtype, m, k, 3), op_array_make(dtype, n, k, 0), filled(1, n, op_plain, 23)};
    uint64_t seed = 21;
    op_fill(&p.x, op_plain, &seed);
    op_fill(&p.w, op_plain, &seed);
    return p;
}

static void product_free(product *p) {
    op_array_free(&p->x);
    op_array_free(&p->w);
    op_array_free(&p->bias);
}

static op_array gemm_of(const product *p, ls_device *device, int64_t begin, int64_t end, bool biased, ls_dtype dtype,
                        ls_inject fault) {
    const op_array out = op_array_make(dtype, p->m, p->n, 2);
    op_array w = op_array_make(p->w.dtype, p->n, end - begin, 0);
    placed there = {.device = device};
    ls_gemm_weight weight;
    ls_error err;
    op_guard(&out);
    for (int64_t n = 0; n < p->n; n++)
        memcpy(op_at(&w, n, 0), op_at(&p->w, n, begin), (size_t)((end - begin) * ls_dtype_bytes(w.dtype)));
    assert_ok(ls_gemm_pack(device, &weight, place_array(&there, &w, false), w.dtype, p->n, end - begin, &err), err);
    {
        const uint8_t *x = place_array(&there, &p->x, false);
        const ls_gemm_args args = {.x = x + begin * ls_dtype_bytes(p->x.dtype),
                                   .x_dtype = p->x.dtype,
                                   .x_stride = p->x.stride,
                                   .weight = &weight,
                                   .bias = biased ? place_array(&there, &p->bias, false) : NULL,
                                   .out = place_array(&there, &out, true),
                                   .out_dtype = dtype,
                                   .out_stride = out.stride,
                                   .m = p->m};
        assert_ok(FAULTS_CALL(fault, device, ls_gemm(device, &args, &err), &err), err);
    }
    take_back(&there);
    ls_gemm_weight_free(device, &weight);
    op_array_free(&w);
    return out;
}

/* ---- one case a fault ---- */

/* The state of a span of several rows lands where 32 bits say; rows and decode are right. Slot 47,935 is the first
 * whose offset wraps. */
static void slot_stride_u32(void **state) {
    enum { GOOD = 47934, BAD = 47935 };
    const ls_isa isa = op_isa(state);
    if (test_defers()) {
        print_message("skipped: the pool is addresses of the host; the catalogue has a device's\n");
        skip();
    }
    const ls_span prefill[] = {{0, 2, 0, GOOD, 0}, {2, 2, 0, BAD, 0}}, decode[] = {{2, 1, 2, BAD, 0}};
    const int64_t bytes = (int64_t)SPARSE_DIM * SPARSE_STATES * 4;
    scan_inputs in = scan_make(4, SPARSE_DIM, SPARSE_STATES);
    op_array out[2] = {op_array_make(LS_F32, 4, SPARSE_DIM, 0), op_array_make(LS_F32, 4, SPARSE_DIM, 0)};
    void *good = op_alloc(bytes), *bad = op_alloc(bytes), *poison = op_alloc(bytes);
    const ls_pool_view pool = sparse_open();
    ls_pool_view view = pool;
    view.base += SPARSE_CONV_BYTES;
    memset(poison, OP_POISON, (size_t)bytes);

    scan_run(&in, op_devices[isa][1], prefill, 2, &out[0], &view, LS_INJECT_NONE);
    memcpy(good, ls_pool_at(&view, GOOD), (size_t)bytes);
    memcpy(bad, ls_pool_at(&view, BAD), (size_t)bytes);
    memset(ls_pool_at(&pool, GOOD), OP_POISON, SPARSE_STRIDE);
    memset(ls_pool_at(&pool, BAD), OP_POISON, SPARSE_STRIDE);
    assert_memory_not_equal(sparse_narrow_at(&view, BAD), bad, (size_t)bytes);

    scan_run(&in, op_devices[isa][1], prefill, 2, &out[1], &view, LS_INJECT_SLOT_STRIDE_U32);
    op_check(&out[0], &out[1], OP_NAN_PINNED, "prefill");
    assert_ptr_equal(sparse_narrow_at(&view, GOOD), ls_pool_at(&view, GOOD));
    assert_memory_equal(ls_pool_at(&view, GOOD), good, (size_t)bytes);
    assert_memory_equal(ls_pool_at(&view, BAD), poison, (size_t)bytes);
    assert_memory_equal(sparse_narrow_at(&view, BAD), bad, (size_t)bytes);

    /* Decode reads and writes the right place, armed or not. */
    memcpy(ls_pool_at(&view, BAD), bad, (size_t)bytes);
    scan_run(&in, op_devices[isa][1], decode, 1, &out[0], &view, LS_INJECT_NONE);
    memcpy(good, ls_pool_at(&view, BAD), (size_t)bytes);
    memcpy(ls_pool_at(&view, BAD), bad, (size_t)bytes);
    scan_run(&in, op_devices[isa][1], decode, 1, &out[1], &view, LS_INJECT_SLOT_STRIDE_U32);
    op_check(&out[0], &out[1], OP_NAN_PINNED, "decode");
    assert_memory_equal(ls_pool_at(&view, BAD), good, (size_t)bytes);

    sparse_close(&pool);
    free(good);
    free(bad);
    free(poison);
    op_array_free(&out[0]);
    op_array_free(&out[1]);
    scan_free(&in);
}

/* A sequence that begins with a span of one row goes on from its slot; with two rows it begins. */
static void stale_slot(void **state) {
    const ls_isa isa = op_isa(state);
    scan_inputs in = scan_make(ROWS, DIM, STATES);
    for (int op = 0; op < 2; op++)
        for (int64_t rows = 1; rows <= 2; rows++)
            for (int64_t pos = 0; pos <= 3; pos += 3) {
                const ls_span spans[] = {{0, 2, 0, 1, 0}, {4, rows, pos, 3, 0}};
                const ls_span resumed[] = {{0, 2, 0, 1, 0}, {4, rows, 9, 3, 0}};
                ls_device *device = op_devices[isa][1];
                result sound, other, faulty;
                if (op == 0) {
                    sound = scan_of(&in, device, spans, 2, LS_INJECT_NONE);
                    other = scan_of(&in, device, resumed, 2, LS_INJECT_NONE);
                    faulty = scan_of(&in, device, spans, 2, LS_INJECT_STALE_SLOT);
                } else {
                    sound = conv_of(device, spans, 2, LS_INJECT_NONE);
                    other = conv_of(device, resumed, 2, LS_INJECT_NONE);
                    faulty = conv_of(device, spans, 2, LS_INJECT_STALE_SLOT);
                }
                assert_true(same(&faulty, rows == 1 ? &other : &sound));
                assert_int_equal(same(&faulty, &sound), rows > 1 || pos > 0);
                result_free(&sound);
                result_free(&other);
                result_free(&faulty);
            }
    scan_free(&in);
}

/* A span of fewer rows than the window stores zeros for the inputs before it; what it computes is right. */
static void conv_short_chunk(void **state) {
    const ls_isa isa = op_isa(state);
    for (int64_t rows = 1; rows <= D_CONV; rows++)
        for (int64_t pos = 0; pos <= 5; pos += 5) {
            const ls_span spans[] = {{1, 6, 0, 0, 0}, {7, rows, pos, 4, 0}};
            result sound = conv_of(op_devices[isa][1], spans, 2, LS_INJECT_NONE);
            result faulty = conv_of(op_devices[isa][1], spans, 2, LS_INJECT_CONV_SHORT_CHUNK);
            assert_int_equal(same(&sound, &faulty), rows == 1 || rows >= PAST || pos == 0);
            if (rows > 1 && rows < PAST) memset(ls_pool_at(&sound.pool.view, 4), 0, (size_t)((PAST - rows) * DIM * 4));
            assert_true(same(&sound, &faulty));
            result_free(&sound);
            result_free(&faulty);
        }
}

/* A sequence that begins behind another span of the call begins with that one's state. */
static void no_reset_packed(void **state) {
    const ls_isa isa = op_isa(state);
    ls_device *device = op_devices[isa][0];
    const ls_span packed[] = {{0, 3, 0, 2, 0}, {3, 2, 0, 5, 0}}, resumed[] = {{3, 2, 1, 5, 0}};
    /* Nothing to take over: one span, spans that go on, padding before the second. */
    const ls_span others[][2] = {
        {{0, 3, 0, 2, 0}, {3, 0, 0, 5, 0}}, {{0, 3, 4, 2, 0}, {3, 2, 9, 5, 0}}, {{0, 3, 0, -1, 0}, {3, 2, 0, 5, 0}}};
    scan_inputs in = scan_make(ROWS, DIM, STATES);
    result sound = scan_of(&in, device, packed, 2, LS_INJECT_NONE);
    result faulty = scan_of(&in, device, packed, 2, LS_INJECT_NO_RESET_PACKED);
    result expected = scan_of(&in, device, packed, 1, LS_INJECT_NONE);
    memcpy(ls_pool_at(&expected.pool.view, 5), ls_pool_at(&expected.pool.view, 2), (size_t)expected.pool.entry_bytes);
    scan_run(&in, device, resumed, 1, &expected.out, &expected.pool.view, LS_INJECT_NONE);
    assert_true(same(&faulty, &expected));
    assert_true(same_rows(&faulty, &sound, 0, 3) && same_slot(&faulty, &sound, 2));
    assert_false(same_rows(&faulty, &sound, 3, 2) || same_slot(&faulty, &sound, 5));
    result_free(&sound);
    result_free(&faulty);
    result_free(&expected);
    for (int64_t i = 0; i < OP_COUNT(others); i++) {
        sound = scan_of(&in, device, others[i], 2, LS_INJECT_NONE);
        faulty = scan_of(&in, device, others[i], 2, LS_INJECT_NO_RESET_PACKED);
        assert_true(same(&faulty, &sound));
        result_free(&sound);
        result_free(&faulty);
    }
    scan_free(&in);
}

/* 8 rows and more of 16 steps and more are the sum of two half chains, whatever the tile; fewer are the chain. */
static void split_k_by_batch(void **state) {
    static const int64_t sizes[][2] = {{1, 33}, {7, 64}, {8, 15}, {8, 16}, {8, 33}, {23, 257}};
    const ls_isa isa = op_isa(state);
    for (int64_t i = 0; i < OP_COUNT(sizes); i++)
        for (int variant = 0; variant < 4; variant++) {
            const int64_t m = sizes[i][0], k = sizes[i][1];
            const bool biased = variant % 2 == 1, split = m >= 8 && k >= 16;
            const ls_dtype dtype = variant < 2 ? LS_F32 : LS_BF16;
            ls_device *device = op_devices[isa][variant % OP_THREADS_MAX];
            product p = product_make(m, 37, k, dtype);
            op_array sound = gemm_of(&p, device, 0, k, biased, dtype, LS_INJECT_NONE);
            op_array faulty = gemm_of(&p, device, 0, k, biased, dtype, LS_INJECT_SPLIT_K);
            if (split) {
                op_array low = gemm_of(&p, device, 0, k / 2, false, LS_F32, LS_INJECT_NONE);
                op_array high = gemm_of(&p, device, k / 2, k, false, LS_F32, LS_INJECT_NONE);
                char text[160];
                if (dtype == LS_F32) assert_true(op_diffs(&sound, &faulty, OP_NAN_PINNED, text) > 0);
                for (int64_t r = 0; r < m; r++)
                    for (int64_t c = 0; c < p.n; c++) {
                        const float sum = ls_add(op_get(&low, r, c), op_get(&high, r, c));
                        op_put(&sound, r, c, biased ? ls_add(sum, op_get(&p.bias, 0, c)) : sum);
                    }
                op_array_free(&low);
                op_array_free(&high);
            }
            op_check(&sound, &faulty, OP_NAN_PINNED, "%lld rows of %lld", (long long)m, (long long)k);
            op_array_free(&sound);
            op_array_free(&faulty);
            product_free(&p);
        }
}

/* Spans of one row take log(exp(x) + 1), longer ones the softplus of the contract. */
static void softplus_naive(void **state) {
    const ls_isa isa = op_isa(state);
    scan_inputs in = scan_make(ROWS, DIM, STATES), naive = scan_make(ROWS, DIM, STATES);
    naive.dt_activated = true;
    for (int64_t r = 0; r < ROWS; r++)
        for (int64_t c = 0; c < DIM; c++) {
            const float x = ls_add(op_get(&in.dt, r, c), op_get(&in.bias, 0, c));
            op_put(&naive.dt, r, c, ls_log(ls_add(ls_exp(x), 1.0f)));
        }
    for (int64_t rows = 1; rows <= 3; rows++) {
        const ls_span spans[] = {{5, rows, 3, 0, 0}};
        result sound = scan_of(&in, op_devices[isa][1], spans, 1, LS_INJECT_NONE);
        result other = scan_of(&naive, op_devices[isa][1], spans, 1, LS_INJECT_NONE);
        result faulty = scan_of(&in, op_devices[isa][1], spans, 1, LS_INJECT_SOFTPLUS_NAIVE);
        assert_true(same(&faulty, rows == 1 ? &other : &sound));
        assert_false(same(&sound, &other));
        result_free(&sound);
        result_free(&other);
        result_free(&faulty);
    }
    scan_free(&in);
    scan_free(&naive);
}

/* ---- all faults ---- */

/* On calls that would show them, faults change their own ops and no other. The pool is too small for wrapped offsets.
 */
static void a_fault_stays_in_its_ops(void **state) {
    enum { SCAN = 1, CONV = 2, GEMM = 4 };
    static const int touched[LS_INJECT_COUNT] = {[LS_INJECT_STALE_SLOT] = SCAN | CONV,
                                                 [LS_INJECT_CONV_SHORT_CHUNK] = CONV,
                                                 [LS_INJECT_NO_RESET_PACKED] = SCAN,
                                                 [LS_INJECT_SPLIT_K] = GEMM,
                                                 [LS_INJECT_SOFTPLUS_NAIVE] = SCAN};
    const ls_isa isa = op_isa(state);
    ls_device *device = op_devices[isa][0];
    const ls_span spans[] = {{0, 3, 0, 1, 0}, {3, 1, 0, 2, 0}, {4, 2, 5, 3, 0}, {6, 6, 2, 4, 0}};
    scan_inputs in = scan_make(ROWS, DIM, STATES);
    product p = product_make(9, 37, 33, LS_F32);
    result scan = scan_of(&in, device, spans, 4, LS_INJECT_NONE), conv = conv_of(device, spans, 4, LS_INJECT_NONE);
    op_array gemm = gemm_of(&p, device, 0, p.k, true, LS_F32, LS_INJECT_NONE);
    for (int fault = 0; fault < LS_INJECT_COUNT; fault++) {
        result faulty_scan = scan_of(&in, device, spans, 4, (ls_inject)fault);
        result faulty_conv = conv_of(device, spans, 4, (ls_inject)fault);
        op_array faulty_gemm = gemm_of(&p, device, 0, p.k, true, LS_F32, (ls_inject)fault);
        char text[160];
        const int seen = (same(&scan, &faulty_scan) ? 0 : SCAN) | (same(&conv, &faulty_conv) ? 0 : CONV) |
                         (op_diffs(&gemm, &faulty_gemm, OP_NAN_PINNED, text) == 0 ? 0 : GEMM);
        if (seen != touched[fault])
            fail_msg("%s: ops %d changed, not %d", ls_inject_name((ls_inject)fault), seen, touched[fault]);
        result_free(&faulty_scan);
        result_free(&faulty_conv);
        op_array_free(&faulty_gemm);
    }
    result_free(&scan);
    result_free(&conv);
    op_array_free(&gemm);
    product_free(&p);
    scan_free(&in);
}

static void names_are_read_back(void **state) {
    ls_inject fault = LS_INJECT_LAG_ONE;
    (void)state;
    for (int i = 0; i < LS_INJECT_COUNT; i++) {
        assert_true(ls_inject_parse(&fault, ls_inject_name((ls_inject)i)));
        assert_int_equal(fault, i);
    }
    assert_false(ls_inject_parse(&fault, "slot-stride"));
    assert_false(ls_inject_parse(&fault, ""));
    assert_int_equal(fault, LS_INJECT_COUNT - 1);
    assert_string_equal(ls_inject_name(LS_INJECT_TEMPERATURE), "temperature-not-mirrored");
}

/* On a device in the CPU's place there is no instruction set to choose: the generic cases are its. */
static int open_devices(void **state) {
    if (!test_defers()) return op_open(state);
    for (int t = 0; t < OP_THREADS_MAX; t++) op_devices[LS_ISA_GENERIC][t] = test_home();
    return 0;
}

static int close_devices(void **state) { return test_defers() ? 0 : op_close(state); }

int main(void) {
    const struct CMUnitTest tests[] = {OP_CASES(slot_stride_u32),          OP_CASES(stale_slot),
                                       OP_CASES(conv_short_chunk),         OP_CASES(no_reset_packed),
                                       OP_CASES(split_k_by_batch),         OP_CASES(softplus_naive),
                                       OP_CASES(a_fault_stays_in_its_ops), cmocka_unit_test(names_are_read_back)};
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
