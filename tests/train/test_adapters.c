/* Adapters: merged weights and their gradients against a dense reference in float64 and against differences of the
 * loss; one result for every instruction set and number of threads; what is drawn at first; PEFT's names;
 * what has no adapters. */
#define _GNU_SOURCE
#include <math.h>

#include "device.h"
#include "model/adapters.h"
#include "model/tape.h"
#include "model/trained.h"
#include "num/half.h"
#include "op/lora.h"

/* ---- the ops ---- */

typedef struct problem {
    int64_t n, k, rank;
    ls_dtype dtype;
} problem;

static float *random_floats(int64_t n, uint64_t seed) {
    float *x = malloc((size_t)n * sizeof *x);
    seed = seed * 2 + 1;
    for (int64_t i = 0; i < n; i++) x[i] = test_uniform(&seed, -1.0f, 1.0f);
    return x;
}

static float widened(const void *x, ls_dtype dtype, int64_t i) {
    if (dtype == LS_F32) return ((const float *)x)[i];
    return dtype == LS_BF16 ? ls_bf16_to_f32(((const uint16_t *)x)[i]) : ls_f16_to_f32(((const uint16_t *)x)[i]);
}

typedef struct outcome {
    uint8_t *merged;
    float *da, *db;
} outcome;

static outcome compute(const problem *p, const void *w0, const float *a, const float *b, const float *dw,
                       int32_t threads, ls_isa isa) {
    ls_device *device = test_device(threads, isa);
    const int64_t elem = ls_dtype_bytes(p->dtype), bytes = p->n * p->k * elem;
    void *there = to_device(device, w0, bytes), *out = to_device(device, NULL, bytes);
    float *da = to_device(device, NULL, p->rank * p->k * 4), *db = to_device(device, NULL, p->n * p->rank * 4);
    float *a_there = to_device(device, a, p->rank * p->k * 4), *b_there = to_device(device, b, p->n * p->rank * 4);
    float *dw_there = to_device(device, dw, p->n * p->k * 4);
    const ls_lora_merge_args merge = {there, a_there, b_there, out, p->dtype, p->n, p->k, p->rank, 0.75f};
    const ls_lora_backward_args backward = {dw_there, a_there, b_there, da, db, p->n, p->k, p->rank, 0.75f};
    const outcome o = {malloc((size_t)bytes), malloc((size_t)(p->rank * p->k) * 4),
                       malloc((size_t)(p->n * p->rank) * 4)};
    void *const arrays[] = {there, out, da, db, a_there, b_there, dw_there};
    ls_error err;
    assert_ok(ls_lora_merge(device, &merge, &err), err);
    assert_ok(ls_lora_backward(device, &backward, &err), err);
    from_device(device, o.merged, out, bytes);
    from_device(device, o.da, da, p->rank * p->k * 4);
    from_device(device, o.db, db, p->n * p->rank * 4);
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) ls_memory_free(device, arrays[i]);
    test_device_close(device);
    return o;
}

static void outcome_free(outcome *o) {
    free(o->merged);
    free(o->da);
    free(o->db);
}

static void check_reference(const problem *p, const outcome *o, const void *w0, const float *a, const float *b,
                            const float *dw) {
    const double rounding = p->dtype == LS_F32 ? 1e-6 : p->dtype == LS_F16 ? 2e-3 : 1e-2;
    for (int64_t n = 0; n < p->n; n++)
        for (int64_t k = 0; k < p->k; k++) {
            double sum = 0;
            for (int64_t j = 0; j < p->rank; j++) sum += (double)b[n * p->rank + j] * (double)a[j * p->k + k];
            sum = (double)widened(w0, p->dtype, n * p->k + k) + 0.75 * sum;
            assert_true(fabs((double)widened(o->merged, p->dtype, n * p->k + k) - sum) <=
                        rounding * (1 + fabs(sum)) * sqrt((double)p->rank));
        }
    for (int64_t j = 0; j < p->rank; j++) {
        for (int64_t k = 0; k < p->k; k++) {
            double sum = 0;
            for (int64_t n = 0; n < p->n; n++) sum += (double)b[n * p->rank + j] * (double)dw[n * p->k + k];
            assert_true(fabs((double)o->da[j * p->k + k] - 0.75 * sum) < 1e-6 * (double)(p->n + 1));
        }
        for (int64_t n = 0; n < p->n; n++) {
            double sum = 0;
            for (int64_t k = 0; k < p->k; k++) sum += (double)dw[n * p->k + k] * (double)a[j * p->k + k];
            assert_true(fabs((double)o->db[n * p->rank + j] - 0.75 * sum) < 1e-6 * (double)(p->k + 1));
        }
    }
}

static void ops_are_the_dense_products(void **state) {
    static const problem problems[] = {{1, 1, 1, LS_F32},      {3, 65, 2, LS_BF16}, {17, 64, 9, LS_F32},
                                       {40, 200, 16, LS_BF16}, {64, 33, 5, LS_F16}, {5, 130, 24, LS_F32}};
    (void)state;
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) {
        const problem *p = &problems[i];
        float *w = random_floats(p->n * p->k, i), *a = random_floats(p->rank * p->k, i + 10);
        float *b = random_floats(p->n * p->rank, i + 20), *dw = random_floats(p->n * p->k, i + 30);
        uint8_t *w0 = malloc((size_t)(p->n * p->k) * 4);
        outcome first;
        for (int64_t e = 0; e < p->n * p->k; e++) {
            if (p->dtype == LS_F32) ((float *)(void *)w0)[e] = w[e];
            if (p->dtype == LS_BF16) ((uint16_t *)(void *)w0)[e] = ls_f32_to_bf16(w[e]);
            if (p->dtype == LS_F16) ((uint16_t *)(void *)w0)[e] = ls_f32_to_f16(w[e]);
        }
        first = compute(p, w0, a, b, dw, 1, LS_ISA_GENERIC);
        check_reference(p, &first, w0, a, b, dw);
        for (int isa = 0; isa < LS_ISA_COUNT; isa++)
            for (int32_t threads = 1; threads <= 3; threads += 2) {
                outcome other;
                if (!ls_isa_available((ls_isa)isa)) continue;
                other = compute(p, w0, a, b, dw, threads, (ls_isa)isa);
                assert_memory_equal(first.merged, other.merged, (size_t)(p->n * p->k * ls_dtype_bytes(p->dtype)));
                assert_memory_equal(first.da, other.da, (size_t)(p->rank * p->k) * 4);
                assert_memory_equal(first.db, other.db, (size_t)(p->n * p->rank) * 4);
                outcome_free(&other);
            }
        outcome_free(&first);
        free(w0);
        free(w);
        free(a);
        free(b);
        free(dw);
    }
}

/* ---- a model ---- */

typedef struct learner {
    ls_model *model;
    ls_parameters *base;
    ls_adapters *adapters;
    ls_tape *tape;
    batch b;
} learner;

enum { ROWS = 21 };

static void learner_open(learner *l, const char *name, const char *targets) {
    const ls_adapters_opts opts = {3, 6.0, targets, 7};
    const ls_tape_opts tape = {LS_F32, ROWS, 2, LS_RECOMPUTE_ALL, 1.0f, 0, NULL, NULL, 0, 0};
    const int64_t lengths[] = {13, 8};
    char directory[400];
    ls_error err;
    snprintf(directory, sizeof directory, "%s/%s", LS_FIXTURES, name);
    assert_ok(ls_model_open(&l->model, test_home(), directory, &err), err);
    assert_ok(ls_parameters_open_share(&l->base, l->model, test_home(), directory, 1, 1, &err), err);
    assert_int_equal(l->base->end - l->base->begin, 0);
    assert_ok(ls_adapters_open(&l->adapters, l->base, directory, &opts, &err), err);
    assert_ok(ls_tape_create(&l->tape, l->base, test_home(), &tape, &err), err);
    batch_make(&l->b, l->model, lengths, 2, 5);
}

static void learner_close(learner *l) {
    batch_free(&l->b);
    ls_tape_free(l->tape);
    ls_adapters_free(l->adapters);
    ls_parameters_free(l->base);
    ls_model_close(l->model);
}

static double value(learner *l) {
    float logprob[ROWS];
    double sum = 0;
    ls_error err;
    assert_ok(ls_adapters_merge(l->adapters, &err), err);
    assert_ok(ls_tape_forward(l->tape, l->b.tokens, l->b.offsets, 2, &err), err);
    assert_ok(ls_tape_logprob(l->tape, l->b.targets, logprob, NULL, &err), err);
    for (int r = 0; r < ROWS; r++) sum += l->b.targets[r] >= 0 ? (double)l->b.d_logprob[r] * (double)logprob[r] : 0;
    return sum;
}

static void put(const ls_parameter *p, const float *from, const float *along, double step) {
    float *x = malloc((size_t)p->n_elements * 4);
    ls_error err;
    for (int64_t i = 0; i < p->n_elements; i++) x[i] = from[i] + (float)step * along[i];
    assert_ok(ls_memory_write(test_home(), p->master, x, p->n_elements * 4, &err), err);
    assert_ok(ls_device_wait(test_home(), &err), err);
    free(x);
}

/* Along its own gradient, each of A and B; B is another one than the +0 that it begins with. */
static void gradients_are_differences(void **state) {
    learner l;
    float *base, *there, *gradient;
    ls_error err;
    (void)state;
    learner_open(&l, "jamba-dense", "in_proj,x_proj,q_proj,o_proj,gate_proj,down_proj");
    for (int64_t i = 1; i < l.adapters->list->n; i += 2) {
        const ls_parameter *p = &l.adapters->list->list[i];
        float *b = random_floats(p->n_elements, (uint64_t)i);
        for (int64_t k = 0; k < p->n_elements; k++) b[k] *= 0.02f;
        put(p, b, b, 0);
        free(b);
    }
    (void)value(&l);
    base = to_device(test_home(), NULL, l.base->n_elements * 4);
    there = to_device(test_home(), NULL, l.adapters->list->n_elements * 4);
    gradient = malloc((size_t)l.adapters->list->n_elements * 4);
    const ls_leaf_part part = {
        .begin = 0, .end = 2, .targets = l.b.targets, .d_logprob = l.b.d_logprob, .is_first = true, .is_last = true};
    assert_ok(ls_tape_backward(l.tape, &part, base, &err), err);
    assert_ok(ls_adapters_gradient(l.adapters, base, there, &err), err);
    from_device(test_home(), gradient, there, l.adapters->list->n_elements * 4);
    for (int64_t i = 0; i < l.adapters->list->n; i++) {
        const ls_parameter *p = &l.adapters->list->list[i];
        const float *g = gradient + p->offset;
        float *from = malloc((size_t)p->n_elements * 4);
        double squares = 0, difference, step;
        for (int64_t k = 0; k < p->n_elements; k++) squares += (double)g[k] * (double)g[k];
        step = 4e-3 / sqrt(squares);
        from_device(test_home(), from, p->master, p->n_elements * 4);
        put(p, from, g, step);
        difference = value(&l);
        put(p, from, g, -step);
        difference = (difference - value(&l)) / (2 * step);
        put(p, from, g, 0);
        if (fabs(difference - squares) > 0.02 * squares + 1e-4 * sqrt(squares))
            fail_msg("%s: along its gradient %g, by differences %g", p->slot.name, squares, difference);
        free(from);
    }
    free(gradient);
    ls_memory_free(test_home(), base);
    ls_memory_free(test_home(), there);
    learner_close(&l);
}

/* Nothing is changed at first, names are PEFT's, A lies within its bound and is another one in every matrix. */
static void adapters_begin_as_nothing(void **state) {
    learner l;
    uint64_t before, after;
    float a[2][16];
    ls_error err;
    (void)state;
    learner_open(&l, "jamba-dense", "mamba.in_proj,model.layers.0.feed_forward.down_proj");
    assert_true(l.adapters->n >= 2 && l.adapters->scale == 2.0f);
    for (int64_t i = 0; i < l.adapters->list->n; i++) {
        const ls_parameter *p = &l.adapters->list->list[i];
        float *x = malloc((size_t)p->n_elements * 4);
        const double bound = 1 / sqrt((double)p->slot.dims[1]);
        double largest = 0;
        from_device(test_home(), x, p->master, p->n_elements * 4);
        for (int64_t k = 0; k < p->n_elements; k++) largest = fmax(largest, fabs((double)x[k]));
        if (i % 2 == 0) assert_true(largest <= bound * 1.0000001 && largest > 0.9 * bound && p->slot.dims[0] == 3);
        if (i % 2 == 1) assert_true(largest == 0 && p->slot.dims[1] == 3);
        if (i == 0 || i == 2) memcpy(a[i / 2], x, sizeof a[0]);
        free(x);
    }
    assert_memory_not_equal(a[0], a[1], sizeof a[0]);
    assert_string_equal(l.adapters->list->list[0].slot.name,
                        "base_model.model.model.layers.0.mamba.in_proj.lora_A.weight");
    assert_non_null(strstr(l.adapters->list->list[l.adapters->list->n - 1].slot.name, ".lora_B.weight"));
    assert_ok(ls_parameters_digest(l.base, &before, &err), err);
    assert_ok(ls_adapters_merge(l.adapters, &err), err);
    assert_ok(ls_parameters_digest(l.base, &after, &err), err);
    assert_int_equal(before, after);
    learner_close(&l);
}

/* A mixture of experts has adapters outside of it alone: PEFT would refuse those of routers and pass over those of
 * experts, which are no linear modules in the models that it adapts. */
static void check_mixture(const char *name, const char *const *refused, int64_t n) {
    ls_adapters_opts opts = {3, 6.0, "all-linear", 7};
    ls_model *model;
    ls_parameters *base;
    ls_adapters *adapters;
    char directory[400];
    ls_error err;
    snprintf(directory, sizeof directory, "%s/%s", LS_FIXTURES, name);
    assert_ok(ls_model_open(&model, test_home(), directory, &err), err);
    assert_ok(ls_parameters_open_share(&base, model, test_home(), directory, 1, 1, &err), err);
    assert_ok(ls_adapters_open(&adapters, base, directory, &opts, &err), err);
    assert_true(adapters->n > 0);
    for (int64_t i = 0; i < adapters->n; i++) {
        assert_null(strstr(adapters->adapters[i].module, "router"));
        assert_null(strstr(adapters->adapters[i].module, "experts"));
        assert_null(strstr(adapters->adapters[i].module, "block_sparse_moe"));
    }
    ls_adapters_free(adapters);
    for (int64_t i = 0; i < n; i++) {
        opts.targets = refused[i];
        assert_int_equal(ls_adapters_open(&adapters, base, directory, &opts, &err), LS_ERR_UNSUPPORTED);
        assert_non_null(strstr(err.text, "of a mixture of experts"));
    }
    ls_parameters_free(base);
    ls_model_close(model);
}

static void mixtures_have_no_adapters(void **state) {
    static const char *const jamba[] = {"router", "gate_proj", "in_proj,down_proj", "experts.1.up_proj"};
    static const char *const granite[] = {"layer", "block_sparse_moe.input_linear", "output_linear"};
    (void)state;
    check_mixture("jamba-moe", jamba, 4);
    check_mixture("granite-moe-small", granite, 3);
}

/* Gate and up, of one adapter x: what each becomes, and the gradients that come of those of both. */
static void check_joined(const learner *l, const ls_adapter *x) {
    const ls_parameter *a = &l->adapters->list->list[x->a], *b = &l->adapters->list->list[x->b];
    const int64_t n = 18, half = 9, k = 20, rank = 3, n_base = l->base->n_elements;
    float *by_chance = random_floats(n_base, 3), *base = to_device(test_home(), by_chance, n_base * 4);
    float *there = to_device(test_home(), NULL, l->adapters->list->n_elements * 4), *old_b = random_floats(n * rank, 4);
    float av[3 * 20], bv[18 * 3], da[3 * 20], db[18 * 3];
    uint16_t w0[18 * 20], w[18 * 20];
    ls_error err;
    put(b, old_b, old_b, 0);
    assert_ok(ls_adapters_merge(l->adapters, &err), err);
    assert_ok(ls_adapters_gradient(l->adapters, base, there, &err), err);
    from_device(test_home(), av, a->master, (int64_t)sizeof av);
    from_device(test_home(), bv, b->master, (int64_t)sizeof bv);
    from_device(test_home(), da, there + a->offset, (int64_t)sizeof da);
    from_device(test_home(), db, there + b->offset, (int64_t)sizeof db);
    from_device(test_home(), w0, x->w0, (int64_t)sizeof w0);
    for (int i = 0; i < 2; i++)
        from_device(test_home(), w + i * half * k, ls_parameter_value(&x->base[i]), half * k * 2);
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < k; c++) {
            float sum = 0.0f;
            for (int64_t j = 0; j < rank; j++) sum = fmaf(bv[r * rank + j], av[j * k + c], sum);
            assert_int_equal(w[r * k + c], ls_f32_to_bf16(fmaf(2.0f, sum, ls_bf16_to_f32(w0[r * k + c]))));
        }
    for (int64_t j = 0; j < rank; j++)
        for (int64_t r = 0; r < n; r++) {
            const float *dw = by_chance + x->base[r / half].offset + r % half * k;
            double sum = 0;
            for (int64_t c = 0; c < k; c++) sum += (double)dw[c] * (double)av[j * k + c];
            assert_true(fabs((double)db[r * rank + j] - 2 * sum) < 1e-5);
        }
    for (int64_t j = 0; j < rank; j++)
        for (int64_t c = 0; c < k; c++) {
            double sum = 0;
            for (int64_t r = 0; r < n; r++)
                sum += (double)bv[r * rank + j] * (double)by_chance[x->base[r / half].offset + r % half * k + c];
            assert_true(fabs((double)da[j * k + c] - 2 * sum) < 1e-5);
        }
    free(by_chance);
    free(old_b);
    ls_memory_free(test_home(), base);
    ls_memory_free(test_home(), there);
}

/* A tensor that has several matrices of the model has one adapter, with the shape of all of it, as PEFT has it. */
static void joined_matrices_have_one_adapter(void **state) {
    const ls_parameter *a, *b;
    learner l;
    (void)state;
    learner_open(&l, "granite-moe-small", "shared_mlp.input_linear");
    assert_true(l.adapters->n == 2 && l.adapters->list->n == 4);
    assert_string_equal(l.adapters->adapters[1].module, "model.layers.1.shared_mlp.input_linear");
    a = &l.adapters->list->list[0];
    b = &l.adapters->list->list[1];
    assert_string_equal(a->slot.name, "base_model.model.model.layers.0.shared_mlp.input_linear.lora_A.weight");
    assert_true(a->slot.dims[0] == 3 && a->slot.dims[1] == 20 && b->slot.dims[0] == 18 && b->slot.dims[1] == 3);
    check_joined(&l, &l.adapters->adapters[1]);
    learner_close(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ops_are_the_dense_products),       cmocka_unit_test(gradients_are_differences),
        cmocka_unit_test(adapters_begin_as_nothing),        cmocka_unit_test(mixtures_have_no_adapters),
        cmocka_unit_test(joined_matrices_have_one_adapter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
