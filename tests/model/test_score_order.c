/* Scoring puts sequences of like length into one forward: fewer steps of the ops that go through a sequence one token
 * after the other, no row more, and the same bits where their items stand. */
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "device.h"
#include "model/score.h"
#include "op/backend.h"

enum { ITEMS = 96, LONGEST = 128, PAGE = 8, BATCH = 16 };

/* What a device was asked for, counted around its table. */
static const ls_backend_table *own;
static ls_backend_table counting;
static struct counts {
    int64_t forwards, rows, rows_max, scans, steps; /* steps: of all scans, each as many as its longest span */
} counts;

static ls_status embed_counted(const ls_exec *exec, const ls_embed_args *args, ls_error *err) {
    counts.forwards++;
    counts.rows += args->rows;
    counts.rows_max = ls_max_i64(counts.rows_max, args->rows);
    return own->embed(exec, args, err);
}

static ls_status scan_counted(const ls_exec *exec, const ls_scan_args *args, ls_error *err) {
    assert_true(args->span_rows_max > 0);
    counts.scans++;
    counts.steps += args->span_rows_max;
    return own->scan(exec, args, err);
}

static ls_device *open_counting(void) {
    ls_device *device;
    ls_error err;
    assert_ok(ls_device_open_cpu(&device, 1, ls_isa_best(), &err), err);
    own = device->table;
    counting = *own;
    counting.embed = embed_counted;
    counting.scan = scan_counted;
    device->table = &counting;
    return device;
}

/* Lengths with a long tail, in no order: a sum of 12 is nearly normal. */
static struct sequences {
    int32_t tokens[ITEMS][LONGEST];
    float logprob[ITEMS][LONGEST];
    ls_score_item items[ITEMS];
    int64_t total;
} of;

static void make_sequences(void) {
    uint64_t random = 7;
    of.total = 0;
    for (int i = 0; i < ITEMS; i++) {
        double sum = -6;
        for (int k = 0; k < 12; k++) sum += (double)(test_random(&random) % 1000) / 1000;
        const int64_t n = i == 40 ? LONGEST : ls_max_i64(2, ls_min_i64(LONGEST, (int64_t)(12 * exp(sum))));
        for (int64_t t = 0; t < n; t++) of.tokens[i][t] = (int32_t)(test_random(&random) % 64);
        of.items[i] = (ls_score_item){.tokens = of.tokens[i], .n_tokens = n, .logprob = of.logprob[i]};
        of.total += n;
    }
}

static void score_all(const ls_model *model, ls_device *device, int64_t batch, int64_t rows, int64_t chunk) {
    const ls_score_opts opts = {.dtype = LS_F32, .batch = batch, .chunk = chunk, .page_tokens = PAGE, .rows = rows};
    ls_error err;
    counts = (struct counts){0};
    memset(of.logprob, 0xFF, sizeof of.logprob);
    assert_ok(ls_score(model, device, &opts, of.items, ITEMS, &err), err);
}

/* Steps of one scan a forward. */
static int64_t steps_of(void) {
    assert_true(counts.forwards > 0 && counts.scans % counts.forwards == 0);
    return counts.steps / (counts.scans / counts.forwards);
}

/* The sum of the longest of each batch, as the items come. */
static int64_t steps_as_they_come(void) {
    int64_t sum = 0;
    for (int i = 0; i < ITEMS; i += BATCH) {
        int64_t longest = 0;
        for (int k = i; k < i + BATCH; k++) longest = ls_max_i64(longest, of.items[k].n_tokens);
        sum += longest;
    }
    return sum;
}

static void like_lengths_go_together(void **state) {
    static float alone[ITEMS][LONGEST];
    ls_device *device = open_counting();
    ls_model *model;
    ls_error err;
    (void)state;
    assert_ok(ls_model_open(&model, device, LS_FIXTURES "/jamba-nobias", &err), err);
    make_sequences();
    score_all(model, device, 1, 0, 0);
    assert_int_equal(counts.forwards, ITEMS);
    assert_int_equal(steps_of(), of.total);
    memcpy(alone, of.logprob, sizeof alone);

    score_all(model, device, BATCH, 0, 0);
    assert_memory_equal(alone, of.logprob, sizeof alone);
    assert_int_equal(counts.rows, of.total);
    assert_int_equal(counts.forwards, ITEMS / BATCH);
    print_message("%lld steps, %lld in the order of the items\n", (long long)steps_of(),
                  (long long)steps_as_they_come());
    assert_true(steps_of() * 3 < steps_as_they_come() * 2);

    for (int64_t rows = 100; rows <= 400; rows *= 2) {
        score_all(model, device, BATCH, rows, 0);
        assert_memory_equal(alone, of.logprob, sizeof alone);
        assert_int_equal(counts.rows, of.total);
        assert_true(counts.rows_max <= ls_max_i64(rows, LONGEST));
        assert_true(counts.forwards >= (of.total - 1) / ls_max_i64(rows, LONGEST) + 1);
        assert_true(counts.forwards < ITEMS / 2);
    }
    score_all(model, device, BATCH, 60, 7);
    assert_memory_equal(alone, of.logprob, sizeof alone);
    assert_int_equal(counts.rows, of.total);
    assert_true(counts.rows_max <= 60);
    ls_model_close(model);
    ls_device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(like_lengths_go_together)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
