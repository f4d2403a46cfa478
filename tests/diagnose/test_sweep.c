/* The parts of a sweep on data made for them: shrinking, thresholds, features, causes, series, reports. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>

#include "base/html_out.h"
#include "diagnose/bits/bits_trials.h"
#include "diagnose/trial/ddmin.h"
#include "harness.h"

/* ---- shrinking ---- */

/* Fails when it holds all of `needed`; an error when tests run out. */
typedef struct needs {
    int64_t needed[8], n, n_tests, error_at;
} needs;

static ls_status holds_needed(void *context, const int64_t *items, int64_t n, bool *fails, ls_error *err) {
    needs *s = context;
    int64_t found = 0;
    if (++s->n_tests == s->error_at) return LS_FAIL(err, LS_ERR_IO, "the test broke");
    for (int64_t i = 0; i < n; i++) {
        if (i > 0) assert_true(items[i] > items[i - 1]); /* order is kept */
        for (int64_t k = 0; k < s->n; k++) found += items[i] == s->needed[k];
    }
    *fails = found == s->n;
    return LS_OK;
}

static void ddmin_finds_what_is_needed(void **state) {
    static const needs cases[] = {
        {{0}, 1, 0, 0}, {{99}, 1, 0, 0}, {{3, 4}, 2, 0, 0}, {{0, 99}, 2, 0, 0}, {{1, 13, 50, 51, 97}, 5, 0, 0}};
    ls_error err;
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        needs s = cases[c];
        int64_t items[100], n = 100, n_tests;
        for (int64_t i = 0; i < n; i++) items[i] = i;
        assert_ok(ls_ddmin(items, &n, holds_needed, &s, 10000, &n_tests, &err), err);
        assert_int_equal(n, s.n);
        for (int64_t i = 0; i < n; i++) assert_int_equal(items[i], s.needed[i]);
        assert_int_equal(n_tests, s.n_tests);
        assert_true(n_tests < 400); /* of 100 items; trying all subsets of 5 would take 75 million */
    }
}

/* Whatever it is stopped by, what it leaves fails. */
static void ddmin_stops(void **state) {
    ls_error err;
    (void)state;
    for (int64_t most = 0; most < 30; most++) {
        needs s = {{7, 60}, 2, 0, 0};
        int64_t items[100], n = 100;
        bool fails;
        for (int64_t i = 0; i < n; i++) items[i] = i;
        assert_ok(ls_ddmin(items, &n, holds_needed, &s, most, NULL, &err), err);
        assert_true(s.n_tests <= most);
        assert_ok(holds_needed(&s, items, n, &fails, &err), err);
        assert_true(fails);

        s = (needs){{7, 60}, 2, 0, most + 1};
        n = 100;
        for (int64_t i = 0; i < n; i++) items[i] = i;
        if (ls_ddmin(items, &n, holds_needed, &s, 10000, NULL, &err) == LS_OK) continue;
        assert_int_equal(err.status, LS_ERR_IO);
        assert_ok(holds_needed(&s, items, n, &fails, &err), err);
        assert_true(fails);
    }
}

static ls_status from_threshold(void *context, int64_t value, bool *fails, ls_error *err) {
    (void)err;
    *fails = value >= *(int64_t *)context;
    return LS_OK;
}

static void bisection_is_exact(void **state) {
    ls_error err;
    (void)state;
    for (int64_t threshold = 0; threshold <= 40; threshold++) {
        int64_t value;
        assert_ok(ls_bisect(&value, 0, 40, from_threshold, &threshold, &err), err);
        assert_int_equal(value, threshold);
    }
}

/* ---- thresholds ---- */

static const ls_pooled_tensor pools[] = {{"state", LS_BOUNDED_SLOT, 358400, 4, 69776},
                                         {"window", LS_BOUNDED_SLOT, 358400, 2, 69776},
                                         {"pages", LS_BOUNDED_PAGE, 4096, 4, 1 << 21}};

static const ls_wrap *wrap_of(const ls_wrap *wraps, int64_t n, const char *tensor, bool in_bytes, bool is_signed) {
    for (int64_t i = 0; i < n; i++)
        if (strcmp(wraps[i].tensor->name, tensor) == 0 && wraps[i].in_bytes == in_bytes &&
            wraps[i].is_signed == is_signed)
            return &wraps[i];
    fail_msg("no expression on %s", tensor);
    return NULL;
}

static void thresholds_are_inverted(void **state) {
    ls_wrap wraps[LS_WRAPS_MAX];
    const int64_t n = ls_threshold_invert(wraps, pools, 3, LS_BOUNDED_SLOT, 47935);
    char text[64];
    (void)state;
    assert_int_equal(n, 12);
    assert_string_equal(wraps[0].tensor->name, "state");
    assert_true(wraps[0].fits && !wraps[0].in_bytes && !wraps[0].is_signed);
    assert_int_equal(wraps[0].first_bad, 47935);
    assert_int_equal((int)(wraps[0].share * 1000.0 + 0.5), 313);
    for (int64_t i = 1; i < n; i++) assert_false(wraps[i].fits);
    ls_wrap_describe(text, sizeof text, &wraps[0]);
    assert_string_equal(text, "uint32 slot * stride in elements");

    assert_int_equal(wrap_of(wraps, n, "state", false, true)->first_bad, 23968);
    assert_int_equal(wrap_of(wraps, n, "state", true, false)->first_bad, 11984);
    assert_int_equal(wrap_of(wraps, n, "state", true, true)->first_bad, 5992);
    assert_int_equal(wrap_of(wraps, n, "window", false, false)->first_bad, 23968);
    assert_int_equal(wrap_of(wraps, n, "pages", false, false)->first_bad, (int64_t)1 << 22);
    assert_true(wrap_of(wraps, n, "pages", false, false)->share == 0.0); /* beyond the pool */
    assert_true(wrap_of(wraps, n, "pages", true, false)->share == 0.5);

    /* An id of another pool does not fit, whatever the number. */
    assert_false(
        wrap_of(wraps, ls_threshold_invert(wraps, pools, 3, LS_BOUNDED_PAGE, 47935), "state", false, false)->fits);
    assert_true(
        wrap_of(wraps, ls_threshold_invert(wraps, pools, 3, LS_BOUNDED_PAGE, 1 << 20), "pages", true, false)->fits);
}

static void pools_follow_the_layers(void **state) {
    ls_model_config c = {.n_layers = 3};
    ls_pooled_tensor out[LS_POOLED_MAX];
    (void)state;
    assert_int_equal(ls_pooled_tensors(out, &c, LS_BF16, 358400, 10, 4096, 20), 2);
    assert_int_equal(out[0].elem_bytes, 4);
    assert_int_equal(out[1].elem_bytes, 2);
    c.is_attention[1] = 1;
    assert_int_equal(ls_pooled_tensors(out, &c, LS_F32, 358400, 10, 4096, 20), 3);
    assert_string_equal(ls_bounded_name(out[2].id), "page");
    assert_int_equal(out[2].n, 20);
    c.is_attention[0] = c.is_attention[2] = 1;
    assert_int_equal(ls_pooled_tensors(out, &c, LS_F32, 358400, 10, 4096, 20), 1);
}

/* ---- features ---- */

enum { SEQUENCES = 4, TOKENS = 5 };

typedef struct made {
    ls_outcome of[SEQUENCES];
    int32_t completion[SEQUENCES][TOKENS];
    float logprob[SEQUENCES][TOKENS], scored[SEQUENCES][TOKENS];
    ls_outcomes all;
} made;

static void make(made *m) {
    memset(m, 0, sizeof *m);
    m->all = (ls_outcomes){.of = m->of, .n = SEQUENCES};
    for (int s = 0; s < SEQUENCES; s++) {
        m->of[s] = (ls_outcome){.completion = m->completion[s],
                                .logprob = m->logprob[s],
                                .scored = m->scored[s],
                                .n = TOKENS,
                                .slot = -1,
                                .n_hit = -1,
                                .n_preempted = -1};
        for (int t = 0; t < TOKENS; t++) {
            m->completion[s][t] = 10 * s + t;
            m->logprob[s][t] = m->scored[s][t] = -0.25f * (float)(1 + s) - 0.5f * (float)((3 * t + s) % TOKENS);
        }
    }
}

static ls_observation observe(const made *m, const made *baseline) {
    ls_observation o;
    ls_observe(&o, &m->all, baseline != NULL ? &baseline->all : NULL, 1e-3);
    return o;
}

static void must_say(const ls_observation *o, const char *words) {
    char text[LS_NOTE_BYTES + 64];
    ls_observation_describe(text, sizeof text, o);
    if (strstr(text, words) == NULL) fail_msg("'%s' does not say '%s'", text, words);
}

static void equal_outcomes_are_clean(void **state) {
    made a, b;
    ls_observation o;
    (void)state;
    make(&a);
    make(&b);
    o = observe(&a, NULL);
    assert_int_equal(o.verdict, LS_CLEAN);
    assert_int_equal(o.n_moved, -1);
    assert_int_equal(o.n_tokens, SEQUENCES * TOKENS);
    assert_true(o.abs_mean == 0.0 && fabs(o.slope - 1.0) < 1e-12);
    must_say(&o, "");
    o = observe(&a, &b);
    assert_int_equal(o.verdict, LS_CLEAN);
    assert_int_equal(o.n_moved, 0);
    b.completion[2][4]++;
    o = observe(&a, &b);
    assert_int_equal(o.verdict, LS_MOVED);
    must_say(&o, "other tokens in 1 of 4 sequences");
    b.completion[2][4]--;
    b.logprob[0][0] = b.scored[0][0] = -9.0f; /* the same tokens with other records */
    o = observe(&a, &b);
    assert_int_equal(o.verdict, LS_CLEAN);
    assert_int_equal(o.n_changed, 1);
}

static void differences_have_sizes_and_places(void **state) {
    made m;
    ls_observation o;
    (void)state;
    make(&m);
    m.logprob[1][2] = nextafterf(m.logprob[1][2], 0.0f);
    o = observe(&m, NULL);
    assert_int_equal(o.verdict, LS_SMALL);
    assert_int_equal(o.n_sequences_different, 1);
    assert_int_equal(o.first_sequence, 1);
    assert_int_equal(o.first_position, 2);
    assert_int_equal(o.n_different, 1);
    must_say(&o, "1 of 4 sequences, from completion token 3 on");

    m.logprob[3][1] -= 2.0f;
    m.of[3].n_hit = 7;
    m.of[1].n_hit = 5;
    m.of[0].n_hit = m.of[2].n_hit = 0;
    o = observe(&m, NULL);
    assert_int_equal(o.verdict, LS_LARGE);
    assert_true(fabs(o.abs_max - 2.0) < 1e-6);
    assert_true(fabs(o.position_abs[1] - 0.5) < 1e-6 && o.position_n[1] == 4);
    must_say(&o, "exactly those with a cache hit");
    m.of[2].n_hit = 3;
    o = observe(&m, NULL);
    must_say(&o, "none without a cache hit");
    m.of[1].n_hit = 0;
    o = observe(&m, NULL);
    assert_int_equal(o.n_hits_different, 1);

    make(&m);
    m.logprob[0][0] = (float)NAN;
    o = observe(&m, NULL);
    assert_int_equal(o.verdict, LS_LARGE);
    assert_int_equal(o.n_not_finite, 1);
    make(&m);
    m.of[2].failure = LS_FAILURE_GAVE_UP;
    m.of[2].n = 0;
    o = observe(&m, NULL);
    assert_int_equal(o.verdict, LS_LARGE);
    must_say(&o, "1 given up");
    make(&m);
    m.logprob[0][0] = 0.0f;
    m.scored[0][0] = -0.0f;
    assert_int_equal(observe(&m, NULL).verdict, LS_SMALL);
}

static void late_records_and_slopes_are_seen(void **state) {
    made m;
    ls_observation o;
    (void)state;
    make(&m);
    for (int s = 0; s < SEQUENCES; s++)
        for (int t = TOKENS - 1; t > 0; t--) m.logprob[s][t] = m.scored[s][t - 1];
    o = observe(&m, NULL);
    assert_int_equal(o.lag_tokens, SEQUENCES * (TOKENS - 1));
    assert_int_equal(o.lag_equal, o.lag_tokens);
    must_say(&o, "each record is the value of the token before");
    make(&m);
    for (int s = 0; s < SEQUENCES; s++)
        for (int t = 0; t < TOKENS; t++) m.scored[s][t] = 1.5f * m.logprob[s][t];
    o = observe(&m, NULL);
    assert_true(fabs(o.slope - 1.5) < 1e-6);
    must_say(&o, "slope 1.5");
}

static void failures_are_told_from_what_was_not_tried(void **state) {
    ls_failures failures = {0};
    ls_observation o;
    ls_error err;
    (void)state;
    LS_FAIL(&err, LS_ERR_CAPACITY, "too many slots");
    ls_failures_end(&failures, LS_FAILURE_NONE, &err);
    assert_int_equal(failures.whole, LS_FAILURE_UNABLE);
    ls_observe_failure(&o, &failures);
    assert_int_equal(o.verdict, LS_UNTRIED);
    must_say(&o, "too many slots");
    LS_FAIL(&err, LS_ERR_DEVICE, "a guard was overwritten");
    failures = (ls_failures){0};
    ls_failures_end(&failures, LS_FAILURE_NONE, &err);
    assert_int_equal(failures.whole, LS_FAILURE_BROKE);
    ls_observe_failure(&o, &failures);
    assert_int_equal(o.verdict, LS_LARGE);
    must_say(&o, "a guard was overwritten");
    ls_failures_end(&failures, LS_FAILURE_TIMED_OUT, &err);
    assert_int_equal(failures.n[LS_FAILURE_TIMED_OUT], 1);
}

/* ---- the door ---- */

/* A suspect that takes no time and says nothing. */
static ls_status count_run(void *context, const ls_trial *trial, const ls_prompt *prompts, int64_t n_prompts,
                           ls_outcomes *out, ls_error *err) {
    (void)prompts, (void)n_prompts, (void)out, (void)err;
    assert_true(trial->limits.timeout == 7.0);
    ++*(int *)context;
    return LS_OK;
}

static ls_status no_scores(void *context, const ls_trial *trial, const ls_scored *list, int64_t n, ls_error *err) {
    (void)context, (void)trial, (void)list, (void)n, (void)err;
    return LS_OK;
}

static void nothing_goes_through_a_closed_door(void **state) {
    static const int32_t ids[] = {1, 2, 3};
    const ls_prompt prompt = {ids, 3};
    const ls_trial trial = {.levers = {.samples = 1}, .max_tokens = 2, .rounds = 1};
    int n_runs = 0;
    const ls_subject subject = {.context = &n_runs, .run = count_run};
    ls_outcomes outcomes;
    ls_door door;
    ls_error err;
    (void)state;
    ls_door_open(&door, 1e-9, 7.0);
    door.subject = &subject;
    assert_ok(ls_sweep_trainer_create_by(&door.trainer, (ls_scorer){NULL, no_scores}, &err), err);
    assert_ok(ls_door_try(&door, &trial, &prompt, 1, &outcomes, &err), err);
    assert_int_equal(outcomes.failures.whole, LS_FAILURE_NONE); /* it is not limited yet */
    assert_int_equal(n_runs, 1);
    ls_outcomes_deinit(&outcomes);
    assert_true(isinf(ls_door_share(&door, 0.5)));
    ls_door_limit(&door);
    assert_true(ls_door_is_closed(&door) && isfinite(ls_door_share(&door, 0.5)));
    assert_ok(ls_door_try(&door, &trial, &prompt, 1, &outcomes, &err), err);
    assert_int_equal(outcomes.failures.whole, LS_FAILURE_NO_TIME);
    assert_int_equal(n_runs, 1);
    ls_outcomes_deinit(&outcomes);
    ls_sweep_trainer_free(door.trainer);
}

/* ---- causes ---- */

/* What would be seen if the cause were true, as it describes itself; what may come out in any way is left out. */
static void imagine(ls_observation seen[LS_EXPERIMENTS], ls_cause named) {
    const ls_bits_pattern *cause = &ls_cause_of(named)->bits;
    memset(seen, 0, LS_EXPERIMENTS * sizeof *seen);
    for (int i = 0; i < LS_EXPERIMENTS; i++) {
        const uint64_t bit = (uint64_t)1 << i;
        if (cause->large & bit)
            seen[i].verdict = LS_LARGE;
        else if (cause->small & bit)
            seen[i].verdict = LS_SMALL;
        else if (cause->moved & bit)
            seen[i].verdict = LS_MOVED;
        else
            seen[i].verdict = cause->any & bit ? LS_UNTRIED : LS_CLEAN;
        if (cause->sign == LS_SIGN_LATE) seen[i].lag_tokens = seen[i].lag_equal = 8;
    }
    if (cause->sign == LS_SIGN_UNREPEATABLE) seen[LS_TRY_AGAIN].n_changed = 1;
}

/* Of every cause something is said to whoever meets it, and no two have one name. */
static void causes_have_words(void **state) {
    (void)state;
    for (int i = LS_CAUSE_NONE + 1; i < LS_CAUSES; i++) {
        const ls_cause_row *row = ls_cause_of((ls_cause)i);
        assert_true(row->name != NULL && row->family != LS_FAMILY_NONE);
        if (ls_cause_is_of_bits((ls_cause)i))
            assert_true(ls_cause_bits_text((ls_cause)i) != NULL && ls_cause_bits_look((ls_cause)i) != NULL);
        if (row->text != NULL) assert_non_null(row->look);
        for (int k = LS_CAUSE_NONE + 1; k < i; k++) assert_string_not_equal(row->name, ls_cause_name((ls_cause)k));
    }
}

static void every_cause_is_told_from_all_others(void **state) {
    ls_ranked ranked[LS_CAUSES];
    ls_observation seen[LS_EXPERIMENTS];
    (void)state;
    for (int i = LS_CAUSE_NONE + 1; i < LS_CAUSES; i++) {
        const ls_cause cause = (ls_cause)i;
        if (!ls_cause_is_of_bits(cause)) continue;
        imagine(seen, cause);
        ls_causes_rank(ranked, seen);
        if (ranked[0].cause != cause)
            fail_msg("%s is taken for %s", ls_cause_name(cause), ls_cause_name(ranked[0].cause));
        assert_true(ranked[0].fits && ranked[0].score == 1.0);
        if (ranked[1].fits) fail_msg("%s fits what %s shows", ls_cause_name(ranked[1].cause), ls_cause_name(cause));
    }
}

static void a_cause_must_meet_everything_to_fit(void **state) {
    ls_ranked ranked[LS_CAUSES];
    int64_t n;
    ls_observation seen[LS_EXPERIMENTS];
    (void)state;
    for (int i = LS_CAUSE_NONE + 1; i < LS_CAUSES; i++) {
        const ls_cause cause = (ls_cause)i;
        if (!ls_cause_is_of_bits(cause)) continue;
        for (int e = LS_TRY_GIVEN + 1; e < LS_EXPERIMENTS; e++) {
            imagine(seen, cause);
            if (seen[e].verdict == LS_UNTRIED) continue;
            seen[e].verdict = seen[e].verdict == LS_LARGE ? LS_SMALL : LS_LARGE;
            n = ls_causes_rank(ranked, seen);
            for (int64_t k = 0; k < n; k++)
                if (ranked[k].cause == cause && ranked[k].fits)
                    fail_msg("%s fits though %s is not as it should be", ls_cause_name(cause),
                             ls_experiment_name((ls_experiment)e));
        }
    }
    for (int e = 0; e < LS_EXPERIMENTS; e++) seen[e] = (ls_observation){.verdict = LS_CLEAN};
    ls_causes_rank(ranked, seen);
    assert_true(ranked[0].score == 0.0 && !ranked[0].fits);
}

static void experiments_have_names_and_baselines(void **state) {
    (void)state;
    for (int i = 0; i < LS_EXPERIMENTS; i++) {
        const ls_experiment e = (ls_experiment)i, baseline = ls_experiment_baseline(e);
        assert_non_null(ls_experiment_name(e));
        assert_non_null(ls_experiment_text(e));
        for (int k = 0; k < i; k++)
            assert_string_not_equal(ls_experiment_name((ls_experiment)k), ls_experiment_name(e));
        if (baseline == LS_EXPERIMENTS) continue;
        assert_true(baseline < e);
        assert_int_equal(ls_experiment_set(baseline), ls_experiment_set(e));
    }
}

/* Levers that a trial leaves alone are the baseline's, and each trial is one that the engine takes. */
static void trials_are_possible(void **state) {
    static const int32_t few[] = {1, 1, 1};
    const ls_prompt prompt = {few, 3};
    const ls_sweep_opts opts = {.model = "",
                                .prompts = &prompt,
                                .n_prompts = 1,
                                .samples = 2,
                                .max_tokens = 9,
                                .threads = 1,
                                .far_slots = 1000,
                                .far_words = 1600};
    ls_model_config config = {
        .n_layers = 2, .vocab = 16, .d_conv = 4, .d_inner = 8, .d_state = 4, .n_kv_heads = 1, .head_dim = 4};
    ls_bits_trials trials;
    ls_error err;
    (void)state;
    config.is_attention[1] = 1;
    assert_ok(ls_bits_trials_create(&trials, &opts, &config, &err), err);
    for (int i = 0; i < LS_EXPERIMENTS; i++) {
        ls_trial trial;
        ls_bits_trials_of(&trial, &trials, (ls_experiment)i);
        assert_ok(ls_levers_check(&trial.levers, &err), err);
        assert_true(trial.rounds >= 1 && trial.max_tokens >= 1);
    }
    /* Of one token in the given prompts, prompts are made whose beginnings differ. */
    for (int64_t i = 0; i < 8; i++)
        for (int64_t k = 0; k < i; k++) {
            assert_true(trials.set[LS_SET_PLAIN][i].ids[0] != trials.set[LS_SET_PLAIN][k].ids[0]);
            assert_memory_equal(trials.set[LS_SET_SHARED][i].ids, trials.set[LS_SET_SHARED][k].ids, 6 * 4);
            assert_true(trials.set[LS_SET_SHARED][i].ids[6] != trials.set[LS_SET_SHARED][k].ids[6]);
        }
    assert_true(trials.far_pages * ls_page_bytes(&config, LS_F32, 64) / 4 > (int64_t)1 << 32);
    ls_bits_trials_deinit(&trials);
}

/* ---- series ---- */

static void edges_are_found(void **state) {
    uint8_t bad[1000] = {0};
    int64_t first, second;
    (void)state;
    ls_series_edges(bad, 1000, 50, &first, &second);
    assert_true(first == -1 && second == -1);
    for (int i = 300; i < 400; i++) bad[i] = i % 7 != 3; /* short clean stretches belong to a run */
    ls_series_edges(bad, 1000, 50, &first, &second);
    assert_true(first == 300 && second == -1);
    for (int i = 800; i < 900; i++) bad[i] = 1;
    ls_series_edges(bad, 1000, 50, &first, &second);
    assert_true(first == 300 && second == 800);
    bad[0] = 1;
    ls_series_edges(bad, 1000, 50, &first, &second);
    assert_true(first == 0 && second == 300);
}

static void slopes_of_logarithms(void **state) {
    const double x[] = {8, 16, 32, 64, 128};
    double y[5];
    (void)state;
    for (int i = 0; i < 5; i++) y[i] = 94.0 / x[i];
    assert_true(fabs(ls_series_slope(x, y, 5) + 1.0) < 1e-12);
    y[0] = y[1] = (double)NAN;
    assert_true(fabs(ls_series_slope(x, y, 5) + 1.0) < 1e-12);
    y[2] = 0.0;
    assert_true(isnan(ls_series_slope(x, y, 5)));
}

/* ---- reports ---- */

static void charts_stand_alone(void **state) {
    const double x[] = {1, 2, 3}, y[] = {0.5, (double)NAN, 2.0};
    const ls_chart charts[] = {
        {LS_CHART_BARS, "a <b> & \"c\"", "x", "y", x, y, 3, 1, 3, 2, 2, "here", "#000"},
        {LS_CHART_BARS, "bars", "x", "y", x, y, 3, 1, 3, 2, (double)NAN, "", "#000"},
        {LS_CHART_POINTS, "nothing", "x", "y", x, y, 0, 0, 0, 0, (double)NAN, "", "#000"},
    };
    (void)state;
    for (int i = 0; i < 3; i++) {
        char *text = NULL;
        size_t bytes = 0;
        FILE *file = open_memstream(&text, &bytes);
        assert_non_null(file);
        ls_chart_write(file, &charts[i]);
        fclose(file);
        assert_null(strstr(text, "nan"));
        assert_null(strstr(text, "inf"));
        assert_non_null(strstr(text, "</svg>"));
        if (i == 0) assert_non_null(strstr(text, "a &lt;b&gt; &amp; &quot;c&quot;"));
        free(text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ddmin_finds_what_is_needed),
        cmocka_unit_test(ddmin_stops),
        cmocka_unit_test(bisection_is_exact),
        cmocka_unit_test(thresholds_are_inverted),
        cmocka_unit_test(pools_follow_the_layers),
        cmocka_unit_test(equal_outcomes_are_clean),
        cmocka_unit_test(differences_have_sizes_and_places),
        cmocka_unit_test(late_records_and_slopes_are_seen),
        cmocka_unit_test(failures_are_told_from_what_was_not_tried),
        cmocka_unit_test(nothing_goes_through_a_closed_door),
        cmocka_unit_test(causes_have_words),
        cmocka_unit_test(every_cause_is_told_from_all_others),
        cmocka_unit_test(a_cause_must_meet_everything_to_fit),
        cmocka_unit_test(experiments_have_names_and_baselines),
        cmocka_unit_test(trials_are_possible),
        cmocka_unit_test(edges_are_found),
        cmocka_unit_test(slopes_of_logarithms),
        cmocka_unit_test(charts_stand_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
