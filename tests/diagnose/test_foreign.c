/* The diagnosis of stacks that promise no bits, on a suspect made of this engine: its records are moved by a small
 * noise and, in some, by a fault. The laboratory of whole engines is tests/stacks with script/stacks-table. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "diagnose/rounding/inquiry.h"
#include "harness.h"

typedef enum fault {
    SOUND = 0,
    SHIFTED,
    SCALED,
    NEIGHBOURS,
    SECOND_IN_SLOT,
    LONG,
    UNITS,
    UNITS_BELOW,
    UNITS_ABOVE,
    RACE,
    ONE_SLOT
} fault;

typedef struct stack {
    ls_engine_subject engine;
    ls_subject inner;
    fault fault;
    int64_t n_runs;
} stack;

/* In [-1, 1], the same for the same record. */
static float noise(float value, int64_t place) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits = (bits ^ (uint32_t)place * 2654435761u) * 2246822519u;
    bits ^= bits >> 15;
    bits *= 3266489917u;
    return (float)(bits >> 8) / 8388608.0f - 1.0f;
}

static ls_status run(void *context, const ls_trial *trial, const ls_prompt *prompts, int64_t n_prompts,
                     ls_outcomes *out, ls_error *err) {
    stack *s = context;
    LS_TRY(s->inner.run(s->inner.context, trial, prompts, n_prompts, out, err));
    out->promises_nothing = true;
    s->n_runs++;
    for (int64_t k = 0; k < out->n; k++) {
        ls_outcome *c = &out->of[k];
        for (int64_t i = 0; s->fault == SHIFTED && i + 1 < c->n; i++) c->logprob[i] = c->logprob[i + 1];
        for (int64_t i = 0; i < c->n; i++) {
            c->logprob[i] += 3e-6f * noise(c->logprob[i], i);
            if (s->fault == SCALED) c->logprob[i] *= 0.5f;
            if (s->fault == NEIGHBOURS && trial->levers.batch > 4 && out->n > 4)
                c->logprob[i] += 0.05f * noise(c->logprob[i], 99);
            if (s->fault == SECOND_IN_SLOT && trial->levers.slots == 1 && k > 0)
                c->logprob[i] += 0.05f * noise(c->logprob[i], 98);
            if (s->fault == UNITS) c->logprob[i] = rintf(c->logprob[i] * 48.0f) / 48.0f;
            if (s->fault == UNITS_BELOW) c->logprob[i] = floorf(c->logprob[i] * 48.0f) / 48.0f;
            if (s->fault == UNITS_ABOVE) c->logprob[i] = ceilf(c->logprob[i] * 100.0f) / 100.0f;
            if (s->fault == RACE) c->logprob[i] += 1e-3f * noise(c->logprob[i], s->n_runs);
            if (s->fault == ONE_SLOT) c->slot = 0;
            if (s->fault == LONG && c->n_prompt + i > 43) c->logprob[i] += 0.02f * noise(c->logprob[i], 97);
        }
    }
    return LS_OK;
}

typedef struct row {
    fault fault;
    const char *cause; /* NULL: none */
    const char *lever;
    int64_t value;
} row;

static void a_stack_with_noise_is_told_from_one_with_a_fault(void **state) {
    static const row rows[] = {{SOUND, NULL, NULL, 0},
                               {SHIFTED, "records shifted", NULL, 0},
                               {SCALED, "log-probabilities scaled", NULL, 0},
                               {NEIGHBOURS, "order of sums follows the batch", "batch", 5},
                               {SECOND_IN_SLOT, "stale state of a reused slot", NULL, 0},
                               {LONG, "wrong from a length on", "length", 44},
                               {UNITS, "log-probabilities in low precision", NULL, 0},
                               {UNITS_BELOW, "log-probabilities in low precision", NULL, 0},
                               {UNITS_ABOVE, "log-probabilities in low precision", NULL, 0},
                               {RACE, "not repeatable", NULL, 0},
                               {ONE_SLOT, NULL, NULL, 0}};
    static const int32_t ids[] = {5, 9, 14, 33, 7, 21};
    const ls_prompt prompt = {ids, 6};
    ls_device *device = NULL;
    ls_sweep_trainer *trainer = NULL;
    ls_error err;
    (void)state;
    assert_ok(ls_device_open_cpu(&device, 1, ls_isa_best(), &err), err);
    assert_ok(ls_sweep_trainer_create(&trainer, LS_FIXTURES "/jamba-nobias", device, &err), err);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i += SANITIZED ? 3 : 1) {
        ls_sweep *s = calloc(1, sizeof *s);
        stack foreign = {.engine = {.trainer = trainer, .device = device, .threads = 1, .isa = ls_isa_best()}};
        ls_sweep_opts opts = {.model = LS_FIXTURES "/jamba-nobias",
                              .prompts = &prompt,
                              .n_prompts = 1,
                              .samples = 1,
                              .max_tokens = 4,
                              .dtype = LS_F32,
                              .threads = 1,
                              .isa = ls_isa_best(),
                              .far_slots = 64,
                              .far_words = 1600};
        ls_subject subject = {.context = &foreign, .run = run, .is_program = true};
        const ls_finding *named;
        ls_door door;
        bool found = rows[i].lever == NULL;
        assert_non_null(s);
        foreign.fault = rows[i].fault;
        foreign.inner = ls_subject_engine(&foreign.engine);
        door = (ls_door){.subject = &subject, .trainer = trainer};
        assert_ok(ls_sweep_run(s, &opts, &door, &err), err);
        assert_non_null(s->foreign);
        named = ls_foreign_named(s->foreign);
        assert_int_equal(s->different, rows[i].cause != NULL);
        if (rows[i].cause == NULL)
            assert_null(named);
        else
            assert_string_equal(named != NULL ? ls_cause_name(named->cause) : "none", rows[i].cause);
        for (int64_t b = 0; b < s->n_bounds && !found; b++)
            found =
                strcmp(ls_bounded_name(s->bounds[b].lever), rows[i].lever) == 0 && s->bounds[b].value == rows[i].value;
        assert_true(found);
        if (rows[i].fault == SOUND || rows[i].fault == ONE_SLOT) /* far slots are clean only where one was reached */
            assert_int_equal(s->foreign->seen[LS_STACK_FAR_SLOT].look,
                             rows[i].fault == SOUND ? LS_LOOK_CLEAN : LS_LOOK_UNTRIED);
        if (s->different) assert_true(s->foreign->repro_shown && s->n_repro > 0);
        ls_sweep_deinit(s);
        free(s);
    }
    ls_sweep_trainer_free(trainer);
    ls_device_close(device);
}

/* The door closes while causes are told apart: what was not asked for by then names none. */
static void without_time_to_decide_nothing_is_named(void **state) {
    static const int32_t ids[] = {5, 9, 14, 33, 7, 21};
    const ls_prompt prompt = {ids, 6};
    const ls_trial trial = {.levers = {.samples = 1}, .max_tokens = 2, .rounds = 1};
    const ls_subject subject = {.is_program = true}; /* that nothing is asked of */
    ls_door door = {.subject = &subject, .opened = 1.0, .seconds = 1.0};
    ls_foreign *f = calloc(1, sizeof *f);
    ls_sweep *sweep = calloc(1, sizeof *sweep);
    ls_inquiry *q = calloc(1, sizeof *q);
    const ls_runner runner = {.sweep = sweep, .door = &door};
    ls_seen seen;
    ls_error err;
    (void)state;
    assert_true(f != NULL && sweep != NULL && q != NULL);
    q->runner = &runner;
    q->f = f;
    ls_foreign_find(f, LS_CAUSE_ORDER_BY_BATCH, LS_STACK_PAIR, 0.92, "off with two at once");
    assert_int_equal(ls_foreign_named(f)->cause, LS_CAUSE_ORDER_BY_BATCH);
    f->found.n = 0;
    ls_door_limit(&door);
    assert_ok(ls_foreign_try(q, &trial, 0, &prompt, 1, &seen, &err), err);
    assert_int_equal(seen.look, LS_LOOK_UNTRIED);
    assert_int_equal(seen.failures.whole, LS_FAILURE_NO_TIME);
    assert_int_equal(sweep->n_trials, 0);
    ls_seen_deinit(&seen);
    ls_foreign_find(f, LS_CAUSE_ORDER_BY_BATCH, LS_STACK_PAIR, 0.92, "off with two at once");
    assert_null(ls_foreign_named(f));
    assert_int_equal(f->found.n, 1);
    assert_ok(ls_foreign_bound(q, LS_BOUNDED_BATCH, 5, false, 3), err);
    assert_int_equal(sweep->n_bounds, 0);
    free(q);
    free(sweep);
    free(f);
}

/* Without a change the third opinion is the trainer's, to float32's rounding. */
static void the_reference_agrees_with_the_trainer(void **state) {
    static const char *const models[] = {
        "jamba-nobias",      "jamba-dense",     "jamba-moe",         "jamba-odd",        "llama-odd",
        "qwen3-small",       "qwen3-moe-small", "mixtral-small",     "qwen2-window",     "falcon-mamba-small",
        "mamba2-small",      "mamba2-odd",      "nemotron-h-small",  "nemotron-h-odd",   "bamba-small",
        "qwen3.5-small",     "qwen3.5-odd",     "qwen3.5-moe-small", "qwen3-next-small", "nemotron-h-moe",
        "granite-moe-small", "granite-odd"};
    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        char path[512];
        int32_t tokens[24];
        float scores[23];
        double *rows;
        ls_device *device = NULL;
        ls_model *model = NULL;
        ls_reference *reference = NULL;
        ls_error err;
        ls_score_item item = {.tokens = tokens, .n_tokens = 24, .logprob = scores};
        const ls_score_opts opts = {.dtype = LS_F32, .batch = 1, .page_tokens = 16};
        snprintf(path, sizeof path, "%s/%s", LS_FIXTURES, models[m]);
        for (int i = 0; i < 24; i++) tokens[i] = (i * 37 + 5) % 50;
        assert_ok(ls_device_open_cpu(&device, 1, ls_isa_best(), &err), err);
        assert_ok(ls_model_open(&model, device, path, &err), err);
        assert_ok(ls_reference_create(&reference, path, &model->config, 1 << 24, &err), err);
        assert_ok(ls_score(model, device, &opts, &item, 1, &err), err);
        rows = calloc((size_t)(24 * model->config.vocab), sizeof *rows);
        assert_non_null(rows);
        assert_ok(ls_reference_logits(reference, NULL, tokens, 24, rows, &err), err);
        for (int i = 0; i < 23; i++) {
            const double *line = rows + i * model->config.vocab;
            double most = line[0], sum = 0.0;
            for (int v = 1; v < model->config.vocab; v++) most = fmax(most, line[v]);
            for (int v = 0; v < model->config.vocab; v++) sum += exp(line[v] - most);
            assert_true(fabs(line[tokens[i + 1]] - most - log(sum) - (double)scores[i]) < 2e-4);
        }
        free(rows);
        ls_reference_free(reference);
        assert_int_equal(ls_reference_create(&reference, path, &model->config, 100, &err), LS_ERR_UNSUPPORTED);
        ls_model_close(model);
        ls_device_close(device);
    }
}

/* Largest difference of logits behind tokens [from, to) that an edit makes. */
static double moved(ls_reference *r, ls_edit e, const double *plain, double *rows, int from, int to) {
    static const int32_t tokens[24] = {7,  3,  19, 44, 5, 5,  31, 8,  2,  60, 17, 9,
                                       11, 58, 23, 4,  6, 33, 40, 12, 29, 51, 1,  14};
    const int64_t vocab = ls_reference_config(r)->vocab;
    double most = 0.0;
    ls_error err;
    assert_ok(ls_reference_logits(r, &e, tokens, 24, rows, &err), err);
    for (int64_t i = from * vocab; i < to * vocab; i++) {
        assert_true(isfinite(rows[i]));
        most = fmax(most, fabs(rows[i] - plain[i]));
    }
    return most;
}

/* Changes take place where they should, and nowhere in front of it. */
static void edits_move_what_they_are_about(void **state) {
    static const struct {
        ls_edit edit;
        int from; /* first token that may move; 24: none does */
    } of[] = {
        {{.layer = -1, .window = 24}, 24},
        {{.layer = -1, .window = 9}, 9},
        {{.layer = -1, .first_keys = 9}, 10},
        {{.layer = -1, .first_keys = 9, .own_too = true}, 9},
        {{.layer = -1, .first_keys = 24, .own_too = true}, 24},
        {{.layer = -1, .lost_every = 8, .lost_at = 7}, 8},
        {{.layer = -1, .lost_every = 8, .lost_at = 0, .own_too = true}, 0},
        {{.layer = -1, .attention_cap = 0.01}, 1},
        {{.layer = -1, .attention_scale = 3.0}, 1},
        {{.layer = -1, .mixer_scale = 1.0, .ffn_scale = 1.0, .skip_scale = 1.0}, 24},
        {{.layer = 1, .ffn_scale = 0.5}, 0},
        {{.layer = -1, .attention_slope = 0.3}, 1},
        {{.layer = -1, .attention_slope = 0.3, .slope_by_head = true}, 1},
        {{.layer = -1, .attention_log_base = 5.0}, 1},
        {{.layer = -1, .cut_every = 8, .lose = LS_LOSE_WINDOW}, 8},
        {{.layer = -1, .cut_every = 8, .lose = LS_LOSE_WINDOW, .window_kept = LS_WINDOW_TURNED, .window_by = 1}, 8},
        {{.layer = -1, .cut_every = 8, .lose = LS_LOSE_WINDOW, .window_kept = LS_WINDOW_LATE, .window_by = 1}, 8},
        {{.layer = -1, .cut_every = 8, .lose = LS_LOSE_WINDOW, .window_kept = LS_WINDOW_NEWEST, .window_by = 1}, 8},
        {{.layer = -1, .cut_every = 8, .lose = LS_LOSE_WINDOW, .window_kept = LS_WINDOW_OLDEST, .window_by = 1}, 8},
        {{.layer = -1, .cut_every = 8, .lose = LS_LOSE_WINDOW, .window_kept = LS_WINDOW_LATE}, 24},
        {{.layer = 0, .cut_every = 8, .lose = LS_LOSE_STATE}, 8},
        {{.layer = 0, .cut_every = 8, .lose = LS_LOSE_KEYS}, 24}, /* no attention there */
        {{.layer = -1, .sees_ahead = true, .n_prompt = 9}, 0},
        {{.layer = -1, .sees_ahead = true, .n_prompt = 1}, 24},
        {{.layer = -1, .keys = LS_ROUND_E5M2, .keys_which = 1}, 1},
        {{.layer = -1, .keys = LS_ROUND_E5M2, .keys_which = 2}, 0},
        {{.layer = -1, .sink = true}, 0},
        {{.layer = -1, .heads_interleaved = true}, 0},
        {{.layer = -1, .eps_outside = true, .norm_eps = 0.01}, 0},
        {{.layer = 0, .weights = LS_CHANGED_IN_HALVES}, 0},
        {{.layer = 0, .weights = LS_CHANGED_GATE_UP}, 0},
        {{.layer = 0, .weights = LS_CHANGED_B_C}, 0},
        {{.layer = 0, .weights = LS_CHANGED_KEYS_VALUES}, 24}, /* no attention there */
        {{.layer = 0, .weights = LS_CHANGED_EXPERTS_TURNED}, 24},
        {{.layer = 0, .weights = LS_CHANGED_FFN_OF_LAYER, .other = 1}, 0},
        {{.layer = 0, .weights = LS_CHANGED_MIXER_OF_LAYER, .other = 1}, 0},
        {{.layer = -1, .weights = LS_CHANGED_F16, .everything = true}, 0},
        {{.layer = -1, .weights = LS_CHANGED_WIDE_FP8}, 0},
        {{.layer = -1, .embed_weights = LS_CHANGED_INT4_GROUPS}, 0},
        {{.layer = -1, .head_input = LS_ROUND_INT8}, 0},
        {{.layer = -1, .keys = LS_ROUND_INT4, .keys_per = 1}, 0},
        {{.layer = -1, .turned_taps = true, .no_conv_silu = true, .no_dt_bias = true}, 0}};
    ls_device *device = NULL;
    ls_model *model = NULL;
    ls_reference *r = NULL;
    double *plain, *rows;
    ls_error err;
    (void)state;
    assert_ok(ls_device_open_cpu(&device, 1, ls_isa_best(), &err), err);
    assert_ok(ls_model_open(&model, device, LS_FIXTURES "/jamba-dense", &err), err);
    assert_ok(ls_reference_create(&r, LS_FIXTURES "/jamba-dense", &model->config, 1 << 24, &err), err);
    plain = calloc((size_t)(24 * model->config.vocab), sizeof *plain);
    rows = calloc((size_t)(24 * model->config.vocab), sizeof *rows);
    assert_true(plain != NULL && rows != NULL);
    moved(r, (ls_edit){.layer = -1}, rows, plain, 0, 0);
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        assert_true(moved(r, of[i].edit, plain, rows, 0, of[i].from) == 0.0);
        if (of[i].from < 24) assert_true(moved(r, of[i].edit, plain, rows, of[i].from, of[i].from + 1) > 0.0);
    }
    free(plain);
    free(rows);
    ls_reference_free(r);
    ls_model_close(model);
    ls_device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(edits_move_what_they_are_about),
        cmocka_unit_test(the_reference_agrees_with_the_trainer),
        cmocka_unit_test(a_stack_with_noise_is_told_from_one_with_a_fault),
        cmocka_unit_test(without_time_to_decide_nothing_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
