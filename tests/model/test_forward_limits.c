/* A model of Mamba layers alone: time a token and state a sequence do not grow with length. Times stay
 * within factors that a quadratic cost (16 for four times the length) cannot meet. */
#define _POSIX_C_SOURCE 200809L
#include <malloc.h>

#include "cost.h"
#include "invariance.h"

/* Tokens of the shorter sequence, of that of the control, and the growth at four times the length that is too much. */
enum { LENGTH = 1024, CONTROL = 256 };
#define STEEPEST 7.0

typedef struct scoring {
    const ls_model *model;
    ls_device *device;
    int64_t chunk;
    int32_t *tokens;
    float *logprob;
} scoring;

static void score_first(void *context, int64_t n) {
    const scoring *s = context;
    const ls_score_opts opts = {.dtype = LS_F32, .batch = 1, .chunk = s->chunk, .page_tokens = 64};
    ls_score_item item = {.tokens = s->tokens, .n_tokens = n, .logprob = s->logprob};
    ls_error err;
    assert_ok(ls_score(s->model, s->device, &opts, &item, 1, &err), err);
}

/* Once for each CONTROL tokens of the sequence: by the same code a quadratic cost. */
static void score_again(void *context, int64_t n) {
    for (int64_t i = 0; i < n; i += CONTROL) score_first(context, n);
}

static void scoring_open(scoring *s, fixture *f) {
    uint64_t random = 8;
    fixture_open(f, "jamba-nobias");
    for (int32_t i = 0; i < f->model->config.n_layers; i++) assert_false(f->model->config.is_attention[i]);
    *s = (scoring){f->model, test_device(1, ls_isa_best()), WHOLE, test_alloc(4 * LENGTH, sizeof *s->tokens),
                   test_alloc(4 * LENGTH, sizeof *s->logprob)};
    for (int64_t t = 0; t < 4 * LENGTH; t++)
        s->tokens[t] = (int32_t)(test_random(&random) % (uint64_t)f->model->config.vocab);
}

static void scoring_close(scoring *s, fixture *f) {
    free(s->tokens);
    free(s->logprob);
    test_device_close(s->device);
    fixture_close(f);
}

/* Without an upper bound: turns go on until the cost is seen to be too steep, not until it happens to look linear. */
static void control_finds_a_quadratic_cost(void **state) {
    scoring s;
    fixture f;
    double ratio;
    (void)state;
    scoring_open(&s, &f);
    ratio = test_growth(score_again, &s, CONTROL, STEEPEST, TEST_NO_BOUND);
    print_message("a quadratic cost: %.2f times\n", ratio);
    assert_true(ratio > STEEPEST);
    scoring_close(&s, &f);
}

static void time_is_linear(void **state) {
    const int64_t chunks[] = {WHOLE, 64};
    scoring s;
    fixture f;
    (void)state;
    scoring_open(&s, &f);
    for (int c = 0; c < 2; c++) {
        double ratio;
        s.chunk = chunks[c];
        ratio = test_growth(score_first, &s, LENGTH, 2.5, STEEPEST);
        print_message("chunk %lld: four times the tokens take %.2f times the time\n", (long long)s.chunk, ratio);
        assert_true(ratio >= 2.5 && ratio <= STEEPEST);
    }
    scoring_close(&s, &f);
}

/* Bytes that a slot must have by the formula in cache.h, for the dimensions that every published Jamba of 3 billion
 * parameters has: 5,120 channels, 16 states, 4 taps. */
static void state_size_is_the_formula(void **state) {
    ls_model_config c = {.n_layers = 1, .d_inner = 5120, .d_state = 16, .d_conv = 4, .positions_max = 1};
    ls_slot_layout layout;
    int64_t bytes;
    (void)state;
    bytes = ls_slot_bytes(&c, LS_BF16, 1);
    assert_int_equal(bytes, 3 * 5120 * 2 + 5120 * 16 * 4);
    assert_int_equal(bytes / 4, 89600);
    ls_slot_layout_make(&layout, &c, LS_BF16, 1);
    assert_int_equal(layout.n, 2);
    assert_string_equal(layout.tensor[0].name, "conv");
    assert_int_equal(layout.tensor[0].offset, 0);
    assert_string_equal(layout.tensor[1].name, "scan");
    assert_int_equal(layout.tensor[1].offset, 3 * 5120 * 2);
    assert_int_equal(layout.tensor[1].bytes, 5120 * 16 * 4);
    c.positions_max = INT64_MAX; /* no length enters */
    assert_int_equal(ls_slot_bytes(&c, LS_BF16, 1), bytes);
    assert_true(ls_slot_bytes(&c, LS_F32, 1) > bytes);
}

/* Bytes that malloc has given out. */
static int64_t bytes_in_use(void) {
    const struct mallinfo2 info = mallinfo2();
    return (int64_t)(info.uordblks + info.hblkhd);
}

/* What an engine plans for one request of this length, and what it holds beside its pools. */
static int64_t engine_bytes(const fixture *f, ls_device *device, int64_t length, ls_engine_plan *plan) {
    ls_engine_opts opts = {.dtype = LS_F32, .length_max = length, .sampling = plain_sampling.sampling};
    const int64_t before = bytes_in_use();
    int64_t during;
    ls_engine *engine;
    ls_error err;
    ls_levers_init(&opts.levers);
    opts.levers.batch = 1;
    opts.levers.chunk = 16;
    opts.levers.page_tokens = 64;
    assert_ok(ls_engine_create(&engine, f->model, device, &opts, &err), err);
    during = bytes_in_use();
    ls_engine_get_plan(engine, plan);
    ls_engine_free(engine);
    return during - before;
}

static void memory_does_not_follow_length(void **state) {
    const int64_t few = 64, many = 64 * 4096;
    ls_device *device = test_device(1, ls_isa_best());
    int64_t bytes_few, bytes_many;
    ls_engine_plan plan_few, plan_many;
    void *probe;
    fixture f;
    (void)state;
    bytes_few = bytes_in_use();
    probe = test_alloc(1, 4096);
    bytes_many = bytes_in_use();
    free(probe);
    if (bytes_many - bytes_few < 4096) {
        test_device_close(device);
        print_message("this malloc does not count what it gives out\n");
        skip();
    }
    fixture_open(&f, "jamba-nobias");
    bytes_few = engine_bytes(&f, device, few, &plan_few);
    bytes_many = engine_bytes(&f, device, many, &plan_many);
    print_message("engine: %lld bytes for %lld tokens, %lld bytes for %lld\n", (long long)bytes_few, (long long)few,
                  (long long)bytes_many, (long long)many);
    assert_true(plan_few.slot_bytes == 3 * ls_slot_bytes(&f.model->config, LS_F32, 1));
    /* Nothing but the page table, whose ids have four bytes. */
    assert_true(plan_many.total_bytes - plan_many.tick_bytes == plan_few.total_bytes - plan_few.tick_bytes);
    assert_in_range((uintmax_t)(plan_many.tick_bytes - plan_few.tick_bytes), 0, (uintmax_t)(many / 64 * 4));
    /* A page's id, its references and its place in the prefix cache, for every 64 positions, is all that may be added.
     */
    assert_in_range((uintmax_t)(bytes_many - bytes_few), 0, (uintmax_t)(2 * many / 64 * 400));
    fixture_close(&f);
    test_device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(control_finds_a_quadratic_cost),
        cmocka_unit_test(time_is_linear),
        cmocka_unit_test(state_size_is_the_formula),
        cmocka_unit_test(memory_does_not_follow_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
