/* What a probe says that has the checkpoint of a server, on a server that is a function. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "faulty_server.h"

/* The checkpoint's own values; in bf16 each is moved by what rounding makes of this context. */
static ls_status score_checkpoint(void *context, const ls_trial *trial, const ls_scored *list, int64_t n,
                                  ls_error *err) {
    static server sound; /* without a fault */
    (void)context;
    LS_TRY(score(&sound, trial, list, n, err));
    for (int64_t k = 0; k < n && trial->dtype == LS_BF16; k++)
        for (int64_t i = 1; i < list[k].n; i++)
            list[k].values[i - 1] += 0.02f * (float)(unit(hash_of(list[k].tokens, i)) - 0.5);
    return LS_OK;
}

/* Below what any order of addition makes, other weights are told from rounding, which is drawn anew. */
static void other_weights_are_told_from_rounding(void **state) {
    static const fault faults[] = {OTHER_HEAD, COARSE};
    (void)state;
    for (int k = 0; k < 2; k++) {
        server *s = start(faults[k]);
        bool found;
        ls_error err;
        assert_ok(ls_sweep_trainer_create_by(&s->sweep.opts.checkpoint, (ls_scorer){s, score_checkpoint}, &err), err);
        s->foreign.expected = (ls_expected){.n = 100, .median = 0.005, .most = 0.02, .apart = 0.025};
        s->foreign.limit = 0.05;
        assert_ok(ls_probe_decide_checkpoint(&s->inquiry, &found, &err), err);
        check_cause(s, found, k == 0 ? LS_CAUSE_WEIGHTS : LS_CAUSE_NONE);
        ls_sweep_trainer_free(s->sweep.opts.checkpoint);
        stop(s);
    }
}

/* Two sides that agree as float32 does, and values that are away from the checkpoint's by less than bf16 makes of the
 * whole model: keys of that type make it, and a few other weights. */
static void keys_of_two_bytes_are_no_other_weights(void **state) {
    static const struct {
        fault fault;
        double apart;
        ls_cause cause;
        bool named;
    } rows[] = {{COARSE, 0.013, LS_CAUSE_NONE, false},   {OTHER_HEAD, 0.013, LS_CAUSE_WEIGHTS, true},
                {COARSE, 0.005, LS_CAUSE_NONE, false},   {OTHER_HEAD, 0.05, LS_CAUSE_WEIGHTS, true},
                {COARSE, 0.05, LS_CAUSE_WEIGHTS, false}, /* keys in 8 bits may make it, where nobody can say */
                {COARSE, 0.5, LS_CAUSE_WEIGHTS, true}};
    (void)state;
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        server *s = start(FINE); /* requests alone are of float32 */
        bool found;
        ls_error err;
        run_alone(s);
        for (int64_t i = 0; i < s->foreign.seen[LS_STACK_LENGTHS].outcomes.n; i++)
            for (int64_t t = 0; t < s->foreign.seen[LS_STACK_LENGTHS].outcomes.of[i].n; t++)
                s->foreign.seen[LS_STACK_LENGTHS].outcomes.of[i].logprob[t] += 1e-5f;
        s->fault = rows[k].fault;
        assert_ok(ls_sweep_trainer_create_by(&s->sweep.opts.checkpoint, (ls_scorer){s, score_checkpoint}, &err), err);
        s->foreign.expected = (ls_expected){.n = 100, .median = 0.04, .most = 0.2, .apart = rows[k].apart};
        assert_ok(ls_probe_decide_checkpoint(&s->inquiry, &found, &err), err);
        assert_int_equal(found, rows[k].cause != LS_CAUSE_NONE);
        assert_int_equal(s->foreign.found.n > 0 ? s->foreign.found.of[0].cause : LS_CAUSE_NONE, rows[k].cause);
        assert_int_equal(ls_foreign_named(&s->foreign) != NULL, rows[k].named);
        ls_sweep_trainer_free(s->sweep.opts.checkpoint);
        stop(s);
    }
}

/* Decoded tokens are off: the checkpoint says whether it is their records or their values in prompts. */
static void a_checkpoint_tells_which_side_is_wrong(void **state) {
    static const struct {
        ls_expected expected;
        ls_cause cause;
        double confidence;
    } rows[] = {{{.n = 100, .median = 0.01, .decoded = 0.4, .records = 1e-6}, LS_CAUSE_WEIGHTS, 0.93},
                {{.n = 100, .median = 0.01, .decoded = 1e-6, .records = 0.4}, LS_CAUSE_DECODE_ARITHMETIC, 0.88},
                {{.n = 100, .median = 0.01, .decoded = 0.4, .records = 0.3}, LS_CAUSE_DECODE_ARITHMETIC, 0.85},
                {{.n = 0}, LS_CAUSE_DECODE_ARITHMETIC, 0.85}};
    (void)state;
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        server *s = start(LATER_OFF);
        const ls_finding *named;
        ls_error err;
        run_alone(s);
        s->foreign.constant = true;
        s->foreign.floor = 0.3;
        s->foreign.expected = rows[k].expected;
        assert_ok(ls_probe_decide_solo(&s->inquiry, &err), err);
        named = ls_foreign_named(&s->foreign);
        assert_non_null(named);
        assert_int_equal(named->cause, rows[k].cause);
        assert_true(fabs(named->confidence - rows[k].confidence) < 1e-3);
        stop(s);
    }
}

/* A checkpoint's own values for first tokens, and for those behind them what an edit makes of it. */
static void record_edited(server *s, const char *directory, const ls_model_config *config, ls_edit edit) {
    const ls_edit edits[2] = {{.layer = -1}, edit};
    ls_error err;
    assert_ok(ls_reference_create(&s->inquiry.reference, directory, config, LS_REFERENCE_PARAMETERS, &err), err);
    for (int r = 0; r < LS_PROBE_SOLO; r++) {
        ls_outcomes *o = &s->foreign.seen[ls_probe_solo[r]].outcomes;
        for (int64_t k = 0; k < o->n; k++) {
            ls_outcome *c = &o->of[k];
            double values[2 * 8];
            if (c->n_prompt > 12 || c->n > 8) continue;
            assert_ok(ls_values_of_edits(&s->inquiry, c, c->n, edits, 2, values, &err), err);
            for (int64_t i = 0; i < c->n; i++) {
                c->scored[i] = (float)values[i];
                c->logprob[i] = (float)(i > 0 ? values[c->n + i] : values[i]);
            }
        }
    }
    ls_reference_free(s->inquiry.reference);
    s->inquiry.reference = NULL;
}

/* Other weights, and keys in few bits, are none. */
static void a_head_in_few_bits_is_told_by_the_checkpoint(void **state) {
    static const char directory[] = LS_FIXTURES "/jamba-dense";
    static const struct {
        ls_edit edit;
        ls_cause cause;
    } rows[] = {{{.layer = -1, .head_weights = LS_CHANGED_E5M2}, LS_CAUSE_COARSE_HEAD},
                {{.layer = -1, .head_weights = LS_CHANGED_INT8_TENSOR}, LS_CAUSE_COARSE_HEAD},
                {{.layer = -1, .weights = LS_CHANGED_E5M2}, LS_CAUSE_NONE},
                {{.layer = -1, .keys = LS_ROUND_FP8}, LS_CAUSE_NONE},
                {{.layer = -1}, LS_CAUSE_NONE}};
    ls_device *device = NULL;
    ls_model *model = NULL;
    ls_error err;
    (void)state;
    assert_ok(ls_device_open_cpu(&device, 1, ls_isa_best(), &err), err);
    assert_ok(ls_model_open(&model, device, directory, &err), err);
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        server *s = start(SOUND);
        bool found;
        run_alone(s);
        record_edited(s, directory, &model->config, rows[k].edit);
        assert_ok(ls_probe_decide_head_weights(&s->inquiry, directory, &model->config, &found, &err), err);
        check_cause(s, found, rows[k].cause);
        stop(s);
    }
    ls_model_close(model);
    ls_device_close(device);
}

/* Of both sides: a choice, which is said and named no fault. */
static void keys_in_8_bits_are_told_by_the_checkpoint(void **state) {
    static const char directory[] = LS_FIXTURES "/jamba-dense";
    static const struct {
        ls_edit edit;
        bool has;
    } rows[] = {{{.layer = -1, .keys = LS_ROUND_INT8, .keys_per = 1}, true},
                {{.layer = -1, .keys = LS_ROUND_FP8}, true},
                {{.layer = -1, .keys = LS_ROUND_INT8, .keys_per = 1, .keys_which = 2}, true},
                {{.layer = -1, .keys = LS_ROUND_INT4, .keys_per = 1}, false},
                {{.layer = -1, .weights = LS_CHANGED_E5M2}, false},
                {{.layer = -1}, false}};
    ls_device *device = NULL;
    ls_model *model = NULL;
    ls_error err;
    (void)state;
    assert_ok(ls_device_open_cpu(&device, 1, ls_isa_best(), &err), err);
    assert_ok(ls_model_open(&model, device, directory, &err), err);
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        server *s = start(SOUND);
        bool asked, has;
        run_alone(s);
        record_edited(s, directory, &model->config, rows[k].edit);
        for (int r = 0; r < LS_PROBE_SOLO; r++)
            for (int64_t i = 0; i < s->foreign.seen[ls_probe_solo[r]].outcomes.n; i++) {
                ls_outcome *c = &s->foreign.seen[ls_probe_solo[r]].outcomes.of[i];
                memcpy(c->scored, c->logprob, (size_t)c->n * sizeof *c->scored);
            }
        assert_ok(ls_probe_has_coarse_keys(&s->inquiry, directory, &model->config, &asked, &has, &err), err);
        assert_true(asked);
        assert_int_equal(has, rows[k].has);
        assert_int_equal(s->foreign.convention[0] != '\0', rows[k].has);
        stop(s);
    }
    ls_model_close(model);
    ls_device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(other_weights_are_told_from_rounding),
                                       cmocka_unit_test(keys_of_two_bytes_are_no_other_weights),
                                       cmocka_unit_test(a_checkpoint_tells_which_side_is_wrong),
                                       cmocka_unit_test(a_head_in_few_bits_is_told_by_the_checkpoint),
                                       cmocka_unit_test(keys_in_8_bits_are_told_by_the_checkpoint)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
