/* A model of Mamba layers alone: time a token and state a sequence do not grow with length. Times are this thread's
 * processor time, median of five, within factors that a quadratic cost (16 for four times the length) cannot meet. */
#define _POSIX_C_SOURCE 200809L
#include <malloc.h>
#include <time.h>

#include "invariance.h"

static double thread_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_score_seconds(const ls_jamba *model, ls_queue *queue, int64_t n, int64_t chunk) {
    const ls_score_opts opts = {LS_F32, 1, chunk, 64};
    int32_t *tokens = test_alloc(n, sizeof *tokens);
    ls_score_item item = {.tokens = tokens, .n_tokens = n, .logprob = test_alloc(n, sizeof(float))};
    double seconds[5];
    uint64_t random = 8;
    ls_error err;
    for (int64_t t = 0; t < n; t++) tokens[t] = (int32_t)(test_random(&random) % (uint64_t)model->config.vocab);
    for (int i = 0; i < 5; i++) {
        const double start = thread_seconds();
        assert_ok(ls_score(model, queue, &opts, &item, 1, &err), err);
        seconds[i] = thread_seconds() - start;
    }
    qsort(seconds, 5, sizeof seconds[0], compare_doubles);
    free(item.logprob);
    free(tokens);
    return seconds[2];
}

static void time_is_linear(void **state) {
    const int64_t chunks[] = {WHOLE, 64};
    ls_queue *queue = test_queue(1, ls_isa_best());
    fixture f;
    (void)state;
    fixture_open(&f, "jamba-nobias");
    for (int32_t i = 0; i < f.model->config.n_layers; i++) assert_false(f.model->config.is_attention[i]);
    for (int c = 0; c < 2; c++) {
        const double one = median_score_seconds(f.model, queue, 1024, chunks[c]);
        const double four = median_score_seconds(f.model, queue, 4096, chunks[c]);
        print_message("chunk %lld: 1,024 tokens %.2f ms, 4,096 tokens %.2f ms, ratio %.2f\n", (long long)chunks[c],
                      1e3 * one, 1e3 * four, four / one);
        assert_true(four > 2.5 * one && four < 7.0 * one);
    }
    fixture_close(&f);
    ls_queue_free(queue);
}

/* Bytes that a slot must have by the formula in jamba.h, for the dimensions that every published Jamba of 3 billion
 * parameters has: 5,120 channels, 16 states, 4 taps. */
static void state_size_is_the_formula(void **state) {
    ls_jamba_config c = {.n_layers = 1, .d_inner = 5120, .d_state = 16, .d_conv = 4, .positions_max = 1};
    int64_t bytes;
    (void)state;
    bytes = ls_slot_bytes(&c, LS_BF16);
    assert_int_equal(bytes, 3 * 5120 * 2 + 5120 * 16 * 4);
    assert_int_equal(bytes / 4, 89600);
    assert_int_equal(ls_slot_ssm_offset(&c, LS_BF16), 3 * 5120 * 2);
    c.positions_max = INT64_MAX; /* no length enters */
    assert_int_equal(ls_slot_bytes(&c, LS_BF16), bytes);
    assert_true(ls_slot_bytes(&c, LS_F32) > bytes);
}

/* Bytes that malloc has given out. */
static int64_t bytes_in_use(void) {
    const struct mallinfo2 info = mallinfo2();
    return (int64_t)(info.uordblks + info.hblkhd);
}

static void note_bytes(void *context, int64_t n_done, int64_t n_requests, int64_t n_tokens) {
    (void)n_done;
    (void)n_requests;
    (void)n_tokens;
    *(int64_t *)context = bytes_in_use();
}

/* What the engine holds while it runs one request that may grow to max_tokens. */
static int64_t engine_bytes(const fixture *f, ls_queue *queue, int64_t max_tokens) {
    const int64_t vocab = f->model->config.vocab;
    int32_t *stop = test_alloc(vocab, sizeof *stop);
    request_set set;
    int64_t before, during = 0;
    ls_engine_opts opts = {.dtype = LS_F32,
                           .batch = 1,
                           .chunk = 16,
                           .page_tokens = 64,
                           .sampling = plain_sampling.sampling,
                           .stop = stop,
                           .n_stop = vocab,
                           .progress = note_bytes,
                           .progress_context = &during};
    ls_error err;
    for (int64_t i = 0; i < vocab; i++) stop[i] = (int32_t)i; /* one token, then the end */
    set_make(&set, (int32_t)vocab, 1, 1, PROMPT_MAX, max_tokens, 5, 0);
    before = bytes_in_use();
    assert_ok(ls_engine_run(f->model, queue, &opts, set.requests, 1, &err), err);
    assert_int_equal(set.requests[0].n_completion, 1);
    set_free(&set);
    free(stop);
    return during - before;
}

static void memory_does_not_follow_length(void **state) {
    const int64_t few = 64, many = 64 * 4096;
    ls_queue *queue = test_queue(1, ls_isa_best());
    int64_t bytes_few, bytes_many;
    void *probe;
    fixture f;
    (void)state;
    bytes_few = bytes_in_use();
    probe = test_alloc(1, 4096);
    bytes_many = bytes_in_use();
    free(probe);
    if (bytes_many - bytes_few < 4096) {
        ls_queue_free(queue);
        print_message("this malloc does not count what it gives out\n");
        skip();
    }
    fixture_open(&f, "jamba-nobias");
    bytes_few = engine_bytes(&f, queue, few);
    bytes_many = engine_bytes(&f, queue, many);
    print_message("engine: %lld bytes for %lld tokens, %lld bytes for %lld\n", (long long)bytes_few, (long long)few,
                  (long long)bytes_many, (long long)many);
    assert_true(bytes_few > 3 * ls_slot_bytes(&f.model->config, LS_F32));
    /* a page id for every 64 positions is all that may be added */
    assert_in_range((uintmax_t)(bytes_many - bytes_few), 0, (many / 64 + 64) * (int64_t)sizeof(int32_t));
    fixture_close(&f);
    ls_queue_free(queue);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(time_is_linear),
        cmocka_unit_test(state_size_is_the_formula),
        cmocka_unit_test(memory_does_not_follow_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
