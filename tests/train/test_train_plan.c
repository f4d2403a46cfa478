/* Plans: a device on paper counts what a device holds; a plan that was chosen runs on a device that has no more memory
 * than it was made for, one that was refused does not; what a plan chooses carries no bit; the leaf that follows from
 * the configuration. */
#include "op/planned.h"
#include "train/train_options.h"
#include "train/training.h"

static const char *const names[] = {"jamba-nobias",      "jamba-odd",          "jamba-moe",    "mamba-odd",
                                    "qwen3-small",       "falcon-mamba-small", "mamba2-small", "qwen3.5-small",
                                    "qwen3.5-moe-small", "granite-moe-small"};

enum { LONGEST = 14, SEQUENCES = 15 };

/* A fixture and what is learnt from it, for plans. */
typedef struct setting {
    char directory[512];
    ls_trainer_opts opts;
    int64_t longest, steps; /* tokens of a sequence, at most; of a run */
} setting;

static setting make_setting(const char *name, int64_t leaf) {
    setting s = {.opts = usual_opts(), .longest = LONGEST, .steps = 3};
    snprintf(s.directory, sizeof s.directory, "%s", fixture_path(name));
    s.opts.leaf = leaf;
    s.opts.leaf_rows_max = leaf * LONGEST;
    s.opts.sequences_max = SEQUENCES;
    return s;
}

static ls_trainer_opts with_plan(const setting *s, const ls_train_plan *plan) {
    ls_trainer_opts opts = s->opts;
    opts.rows_max = plan->rows;
    opts.spans_max = plan->spans;
    opts.moments_on_host = plan->moments_on_host;
    opts.recompute = plan->recompute;
    opts.gradients = plan->gradients;
    return opts;
}

/* ls_train_rehearse. */
static ls_status rehearse(void *context, ls_device *device, ls_train_plan *plan, ls_train_outlook *out,
                          void (*look)(void *looker, const ls_device *device), void *looker, ls_error *err) {
    const setting *s = context;
    const ls_trainer_opts opts = with_plan(s, plan);
    ls_model *model = NULL;
    ls_trainer *trainer = NULL;
    ls_status status;
    LS_TRY_DONE(ls_model_open(&model, device, s->directory, err));
    LS_TRY_DONE(ls_trainer_create(&trainer, model, s->directory, device, &opts, err));
    LS_TRY_DONE(ls_trainer_rehearse(trainer, s->longest, err));
    plan->workspace = device->exec.workspace_bytes;
    plan->gradients = ls_trainer_device_gradients(trainer);
    *out = ls_trainer_outlook(trainer);
    look(looker, device);
done:
    ls_trainer_free(trainer);
    ls_model_close(model);
    return status;
}

static ls_train_wish make_wish(const setting *s) {
    return (ls_train_wish){.moments_on_host = -1,
                           .recompute = -1,
                           .sequences = s->opts.sequences_max,
                           .longest = s->longest,
                           .leaf = s->opts.leaf};
}

/* A run of steps with the plan on a device of `limit` bytes, 0: as many as are asked for; *used: the most that it held.
 * LS_ERR_NOMEM where it does not fit. */
static ls_status run(const setting *s, const ls_train_plan *plan, int64_t limit, uint64_t *bits, int64_t *used,
                     ls_error *err) {
    const ls_trainer_opts opts = with_plan(s, plan);
    training t = {0};
    ls_status status;
    LS_TRY_DONE(test_defers() ? ls_device_open_deferred(&t.device, 1, ls_isa_best(), err)
                              : ls_device_open_cpu(&t.device, 1, ls_isa_best(), err)); /* with a ledger of its own */
    ls_device_limit(t.device, limit);
    LS_TRY_DONE(ls_device_prepare(t.device, plan->workspace, err));
    LS_TRY_DONE(ls_model_open(&t.model, t.device, s->directory, err));
    LS_TRY_DONE(ls_trainer_create(&t.trainer, t.model, s->directory, t.device, &opts, err));
    t.state = ls_trainer_state(t.trainer);
    for (int64_t step = 1; step <= s->steps; step++) {
        batch b = batch_make(s->opts.sequences_max, s->longest, t.model->config.vocab, (uint64_t)step);
        const ls_train_batch view = batch_view(&b);
        ls_train_stats stats;
        status = ls_trainer_step(t.trainer, &view, &stats, err);
        batch_free(&b);
        if (status != LS_OK) goto done;
    }
    *bits = state_bits(t.state);
    *used = t.device->ledger.used_max;
done:
    ls_trainer_free(t.trainer);
    ls_model_close(t.model);
    ls_device_close(t.device);
    return status;
}

static void look(void *looker, const ls_device *device) { *(int64_t *)looker = device->ledger.used_max; }

/* ---- what is counted ---- */

static void paper_counts_what_is_held(void **state) {
    (void)state;
    for (size_t m = 0; m < sizeof names / sizeof names[0]; m++)
        for (int i = test_looks() ? 5 : 0; i < 8; i++) {
            const setting s = make_setting(names[m], i % 2 == 0 ? 2 : 5);
            const ls_planned_opts paper = {.title = "paper"};
            ls_train_plan plan = {.rows = i < 4 ? 64 : 20,
                                  .spans = i % 4 < 2 ? 64 : 3,
                                  .moments_on_host = i % 3 == 1,
                                  .recompute = i % 3 == 2 ? i : 0};
            ls_train_outlook outlook;
            ls_device *device;
            ls_error err;
            int64_t counted, held;
            uint64_t bits;
            assert_ok(ls_device_open_planned(&device, &paper, &err), err);
            assert_ok(rehearse((void *)(uintptr_t)&s, device, &plan, &outlook, look, &counted, &err), err);
            ls_device_close(device);
            assert_ok(run(&s, &plan, 0, &bits, &held, &err), err);
            if (counted != held)
                fail_msg("%s, plan %d: %lld bytes on paper, %lld held", names[m], i, (long long)counted,
                         (long long)held);
        }
}

/* ---- what is chosen ---- */

static const ls_card processor = {"cpu", "a processor", 0, 100e9, 1e12, 50e9, false};

/* Over limits from too little to plenty: whatever is chosen runs within them, with one result; where nothing is, the
 * smallest does not run. */
static void plans_run_and_refusals_would_not(void **state) {
    (void)state;
    for (size_t m = 0; m < sizeof names / sizeof names[0]; m += test_looks() ? 3 : 1) {
        const setting s = make_setting(names[m], 5);
        const ls_train_wish wish = make_wish(&s);
        const ls_train_plan plenty = ls_train_plan_plain(&wish, 4096);
        const ls_train_plan smallest = {
            .rows = LONGEST, .spans = 64, .moments_on_host = true, .recompute = LS_RECOMPUTE_ALL};
        int64_t most, least, n_run = 0, n_refused = 0, n_kinds[2] = {0};
        uint64_t want, bits;
        ls_error err;
        assert_ok(run(&s, &plenty, 0, &want, &most, &err), err);
        assert_ok(run(&s, &smallest, 0, &bits, &least, &err), err);
        assert_true(bits == want && least < most);
        for (int64_t i = 0; i <= 24; i++) {
            const int64_t limit =
                (int64_t)((double)least * 0.7 * pow(1.5 * (double)most / (double)least, (double)i / 24));
            ls_train_planned planned;
            int64_t used;
            const ls_status status =
                ls_train_plan_make(&planned, &processor, limit, 0, &wish, rehearse, (void *)(uintptr_t)&s, &err);
            if (status == LS_OK) {
                assert_ok(run(&s, &planned.plan, limit, &bits, &used, &err), err);
                assert_true(bits == want && used <= limit && used == planned.used);
                n_kinds[planned.plan.moments_on_host || planned.plan.recompute > 0]++;
                n_run++;
            } else {
                assert_int_equal(status, LS_ERR_CAPACITY);
                assert_non_null(strstr(err.text, "the smallest plan needs"));
                assert_int_equal(run(&s, &smallest, limit, &bits, &used, &err), LS_ERR_NOMEM);
                n_refused++;
            }
        }
        if (n_run < 4 || n_refused < 2 || n_kinds[0] == 0 || n_kinds[1] == 0)
            fail_msg("%s: %lld run, %lld refused, %lld with all on the device and kept, %lld not", names[m],
                     (long long)n_run, (long long)n_refused, (long long)n_kinds[0], (long long)n_kinds[1]);
    }
}

/* What is left open of a random run is chosen by its plan; what is not is forced. */
static setting random_setting(uint64_t *seed, ls_train_wish *wish) {
    setting s = make_setting(names[test_random(seed) % (sizeof names / sizeof names[0])], 1);
    s.longest = 2 + (int64_t)(test_random(seed) % 29);
    s.steps = 1;
    s.opts.sequences_max = 1 + (int64_t)(test_random(seed) % 16);
    s.opts.leaf = 1 + (int64_t)(test_random(seed) % 8);
    if (s.opts.leaf > s.opts.sequences_max) s.opts.leaf = s.opts.sequences_max;
    s.opts.leaf_rows_max = s.opts.leaf * s.longest;
    s.opts.moments = test_random(seed) % 2 == 0 ? LS_F32 : LS_BF16;
    s.opts.entropy = test_random(seed) % 2 == 0;
    if (test_random(seed) % 4 == 0)
        s.opts.adapters = (ls_adapters_opts){1 + (int64_t)(test_random(seed) % 4), 8, "all-linear", 1};
    *wish = make_wish(&s);
    if (test_random(seed) % 4 == 0) wish->moments_on_host = (int32_t)(test_random(seed) % 2);
    if (test_random(seed) % 4 == 0) wish->recompute = (int64_t)(test_random(seed) % 5);
    if (test_random(seed) % 4 == 0) wish->rows = s.longest + (int64_t)(test_random(seed) % 40);
    if (test_random(seed) % 4 == 0) wish->gradients = 1 + (int64_t)(test_random(seed) % 3);
    return s;
}

/* The choice with the least memory. */
static ls_train_plan smallest_plan(const setting *s, const ls_train_wish *wish) {
    return (ls_train_plan){.rows = wish->rows > 0 ? wish->rows : s->longest,
                           .spans = 64,
                           .moments_on_host = wish->moments_on_host != 0,
                           .recompute = wish->recompute < 0 ? LS_RECOMPUTE_ALL : wish->recompute,
                           .gradients = wish->gradients};
}

static ls_train_plan plenty_plan(const setting *s, const ls_train_wish *wish) {
    return (ls_train_plan){.rows = wish->rows > 0 ? wish->rows : s->opts.leaf * s->longest,
                           .spans = 64,
                           .moments_on_host = wish->moments_on_host == 1,
                           .recompute = wish->recompute < 0 ? 0 : wish->recompute,
                           .gradients = wish->gradients};
}

/* What ops need besides for the worst batch of the plan, which a random one may fall short of. */
static int64_t most_workspace(const setting *s, const ls_train_wish *wish, const ls_train_plan *plan) {
    ls_train_wish only = *wish;
    ls_train_planned planned;
    ls_error err;
    only.rows = plan->rows;
    only.moments_on_host = plan->moments_on_host;
    if (only.recompute < 0) only.recompute = plan->recompute;
    assert_ok(ls_train_plan_make(&planned, &processor, 0, 0, &only, rehearse, (void *)(uintptr_t)s, &err), err);
    return planned.plan.workspace;
}

/* 200 random runs on devices that have more or less than they need: one that is planned runs, holds to the byte what
 * its plan said and has the bits of a run with plenty; one that is refused runs out of memory when it is forced. */
static void random_runs_hold_what_is_planned(void **state) {
    uint64_t seed = 44;
    const int64_t n = test_looks() ? 30 : 200;
    int64_t n_run = 0, n_refused = 0;
    (void)state;
    for (int64_t i = 0; i < n; i++) {
        ls_train_wish wish;
        const setting s = random_setting(&seed, &wish);
        const ls_train_plan plenty = plenty_plan(&s, &wish), smallest = smallest_plan(&s, &wish);
        ls_train_planned planned;
        int64_t most, least, used, limit;
        uint64_t want, bits;
        ls_status status;
        ls_error err;
        assert_ok(run(&s, &plenty, 0, &want, &most, &err), err);
        assert_ok(run(&s, &smallest, 0, &bits, &least, &err), err);
        assert_true(bits == want);
        limit = (int64_t)(0.9 * (double)least +
                          (1.1 * (double)most - 0.9 * (double)least) * (double)(test_random(&seed) % 1024) / 1024.0);
        status = ls_train_plan_make(&planned, &processor, limit, 0, &wish, rehearse, (void *)(uintptr_t)&s, &err);
        if (status == LS_OK) {
            assert_ok(run(&s, &planned.plan, limit, &bits, &used, &err), err);
            if (bits != want || used != planned.used)
                fail_msg("run %d: %s; %lld bytes planned, %lld held", i, bits == want ? "same bits" : "other bits",
                         (long long)planned.used, (long long)used);
            n_run++;
        } else {
            ls_train_plan forced = smallest;
            assert_int_equal(status, LS_ERR_CAPACITY);
            forced.workspace = most_workspace(&s, &wish, &smallest);
            assert_int_equal(run(&s, &forced, limit, &bits, &used, &err), LS_ERR_NOMEM);
            n_refused++;
        }
    }
    assert_true(n_run > n * 2 / 5 && n_refused > n / 10);
}

/* More memory never takes a slower plan. */
static void more_memory_is_no_slower(void **state) {
    const setting s = make_setting("jamba-odd", 5);
    const ls_train_wish wish = make_wish(&s);
    double before = INFINITY;
    (void)state;
    for (int64_t limit = 1 << 18; limit <= 1 << 26; limit += limit / 4) {
        ls_train_planned planned;
        if (ls_train_plan_make(&planned, &processor, limit, 0, &wish, rehearse, (void *)(uintptr_t)&s, NULL) != LS_OK)
            continue;
        assert_true(planned.seconds <= before);
        before = planned.seconds;
    }
    assert_true(isfinite(before));
}

static void what_is_fixed_stays(void **state) {
    const setting s = make_setting("jamba-nobias", 5);
    ls_train_wish wish = make_wish(&s);
    ls_train_planned planned;
    ls_error err;
    (void)state;
    wish.rows = 31;
    wish.moments_on_host = 1;
    wish.recompute = 0;
    assert_ok(ls_train_plan_make(&planned, &processor, 1 << 28, 0, &wish, rehearse, (void *)(uintptr_t)&s, &err), err);
    assert_int_equal(planned.plan.rows, 31);
    assert_true(planned.plan.moments_on_host && planned.plan.recompute == 0);
    assert_int_equal(planned.n_tried, 1);
}

/* A group that shares what it has in common goes through a forward whole, and is counted with the rows that are left;
 * on paper a trainer of groups takes what it holds. */
static void groups_are_planned_whole(void **state) {
    enum { GROUP = 5, ROWS = 40 };
    const ls_planned_opts paper = {.title = "paper"};
    setting s = make_setting("jamba-nobias", GROUP);
    ls_train_wish wish = make_wish(&s);
    ls_train_planned apart, shared;
    ls_train_plan plan = {.rows = GROUP * LONGEST, .spans = 2 * GROUP};
    ls_train_outlook outlook;
    ls_device *device;
    ls_error err;
    int64_t counted, held;
    uint64_t bits;
    (void)state;
    wish.rows = ROWS;
    assert_ok(ls_train_plan_make(&apart, &processor, 1 << 28, 0, &wish, rehearse, &s, &err), err);
    s.opts.group = wish.group = GROUP;
    s.opts.longest = LONGEST;
    wish.group_rows = ROWS;
    wish.rows = 0;
    assert_ok(ls_train_plan_make(&shared, &processor, 1 << 28, 0, &wish, rehearse, &s, &err), err);
    assert_int_equal(shared.plan.rows, ROWS);
    assert_true(shared.plan.spans >= 2 * GROUP && shared.seconds < apart.seconds);
    assert_int_equal(ls_train_plan_plain(&wish, 20).rows, ROWS);
    assert_ok(ls_device_open_planned(&device, &paper, &err), err);
    assert_ok(rehearse(&s, device, &plan, &outlook, look, &counted, &err), err);
    ls_device_close(device);
    assert_ok(run(&s, &plan, 0, &bits, &held, &err), err);
    assert_int_equal(counted, held);
}

/* ---- cards, leaves ---- */

static void cards_have_names(void **state) {
    const ls_card *card;
    ls_error err;
    (void)state;
    assert_ok(ls_card_find(&card, "h100-80", &err), err);
    assert_true(card->is_gpu && card->bytes > (int64_t)79 << 30);
    check_failed(ls_card_find(&card, "h101", &err), &err, "'h101' is no card that is known: h100-80, ");
}

/* Eight leaves; of a model whose gradients are large fewer, of one that is for several GPUs eight again. */
static void leaves_follow_from_sizes(void **state) {
    static const int64_t cases[][3] = {{64, 1000, 8},
                                       {7, 1000, 1},
                                       {1024, 3029337472, 512},
                                       {1024, 1700000000, 256},
                                       {1024, 1240000000, 128},
                                       {1024, 6000000000, 512},
                                       {1024, 52000000000, 128},
                                       {1, 3029337472, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(ls_train_options_leaf(cases[i][0], cases[i][1]), cases[i][2]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(paper_counts_what_is_held),
                                       cmocka_unit_test(plans_run_and_refusals_would_not),
                                       cmocka_unit_test(random_runs_hold_what_is_planned),
                                       cmocka_unit_test(more_memory_is_no_slower),
                                       cmocka_unit_test(what_is_fixed_stays),
                                       cmocka_unit_test(groups_are_planned_whole),
                                       cmocka_unit_test(cards_have_names),
                                       cmocka_unit_test(leaves_follow_from_sizes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
