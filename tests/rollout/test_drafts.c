/* Drafts change no bit: whatever is drafted, and however much of it stays, a request has what it has without. What the
 * look-up finds, and when it stops. Schedules of drafts beside everything else are in test_schedules. */
#include "base/mem.h"
#include "engine_case.h"

#define TOKENS 40
#define TOP 3
#define PROMPT_ROWS 24
#define REQUESTS 9

/* A request with all that it can be told. */
typedef struct told {
    ls_request request;
    int32_t prompt[PROMPT_ROWS], completion[TOKENS], kept[TOKENS], top_id[TOKENS * TOP];
    float logprob[TOKENS], log_mass[TOKENS], of_all[TOKENS], of_kept[TOKENS], top_logprob[TOKENS * TOP];
    float prompt_logprob[PROMPT_ROWS];
    uint64_t weights[TOKENS], rows[PROMPT_ROWS + TOKENS]; /* hashes of what it was shown, by position */
    int64_t stop_at, n_shown;
} told;

static const char *const names[] = {"llama-odd",  "qwen2-window",     "jamba-odd",   "mamba-odd",
                                    "mamba2-odd", "nemotron-h-small", "qwen3.5-odd", "jamba-moe"};
static const ls_sampling cut = {.temperature = 0.8f, .top_k = 25, .top_p = 0.9f, .seed = 4};
static const ls_penalties penalties = {1.2f, 0.3f, 0.5f};

static bool stop_at(void *context, const int32_t *completion, int64_t n) {
    const told *t = context;
    return completion == t->completion && n == t->stop_at;
}

static uint64_t hash_row(uint64_t hash, const float *row, int64_t n) {
    for (int64_t i = 0; row != NULL && i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &row[i], sizeof bits);
        hash = (hash ^ bits) * UINT64_C(0x100000001B3);
    }
    return hash;
}

static void see(void *context, int64_t position, int32_t token, const float *logits, const float *processed,
                int64_t vocab) {
    told *t = context;
    t->rows[position] = hash_row(hash_row((uint64_t)token, logits, vocab), processed, vocab);
    t->n_shown++;
}

/* Requests of all kinds. */
static void requests_make(told *t, int32_t vocab) {
    static const int64_t lengths[REQUESTS] = {9, 5, 17, 11, 3, 8, 1, 9, 24};
    uint64_t random = 12;
    memset(t, 0, REQUESTS * sizeof *t);
    for (int64_t i = 0; i < REQUESTS; i++) {
        told *x = &t[i];
        for (int64_t k = 0; k < PROMPT_ROWS; k++) x->prompt[k] = (int32_t)(test_random(&random) % (uint64_t)vocab);
        if (i == 7) memcpy(x->prompt, t[0].prompt, sizeof x->prompt); /* another sample */
        x->request = (ls_request){.prompt = x->prompt,
                                  .n_prompt = lengths[i],
                                  .prompt_i = i == 7 ? 0 : (uint32_t)i,
                                  .sample_i = i == 7,
                                  .max_tokens = i == 4   ? 5
                                                : i == 6 ? 2
                                                         : TOKENS,
                                  .completion = x->completion,
                                  .logprob = x->logprob,
                                  .weights = x->weights,
                                  .top_id = x->top_id,
                                  .top_logprob = x->top_logprob};
    }
    t[1].request.sampling = &cut;
    t[1].request.kept = t[1].kept;
    t[1].request.log_mass = t[1].log_mass;
    t[1].request.of_all = t[1].of_all;
    t[1].request.of_kept = t[1].of_kept;
    t[2].request.stop = stop_at;
    t[2].request.stop_context = &t[2];
    t[2].stop_at = 22;
    t[3].request.see = see;
    t[3].request.see_context = &t[3];
    t[3].request.sees_processed = true;
    t[3].request.prompt_logprob = t[3].prompt_logprob;
    t[5].request.penalties = &penalties;
    t[5].request.see = see;
    t[5].request.see_context = &t[5];
    t[5].request.sees_processed = true; /* which penalties change */
    t[8].request.max_tokens = TOKENS;   /* cancelled on its way */
}

/* ---- drafts of a known quality ---- */

/* Drafts what is to come up to a token that is wrong, at another place each time; every ninth time nothing. */
typedef struct teller {
    const told *known;
    int64_t vocab, calls, right; /* drafts that were right, of all calls */
    int64_t due[REQUESTS];       /* tokens that a request must have by now */
    int64_t met[LS_DRAFTS_MAX + 1];
} teller;

static int64_t tell(void *context, const ls_request *r, int64_t most, int32_t *out) {
    teller *t = context;
    const int64_t i = (int64_t)r->prompt_i + (r->sample_i > 0 ? 7 : 0), n = r->n_completion;
    const int64_t right = t->calls++ % (LS_DRAFTS_MAX + 2);
    assert_in_range(most, 1, LS_DRAFTS_MAX);
    assert_true(n + most < r->max_tokens);
    assert_true(n >= t->due[i]);
    if (right > LS_DRAFTS_MAX) return 0;
    for (int64_t k = 0; k < most; k++) {
        out[k] = t->known[i].completion[n + k];
        if (k >= right) out[k] = (int32_t)((out[k] + 1 + k) % t->vocab);
    }
    t->due[i] = n + 1 + ls_min_i64(right, most);
    if (i == 2 && t->due[i] > t->known[i].stop_at) t->due[i] = t->known[i].stop_at;
    t->met[ls_min_i64(right, most)]++;
    t->right += ls_min_i64(right, most);
    return most;
}

static ls_engine *open_engine(const ls_model *model, ls_device *device, ls_dtype dtype, const ls_levers *l) {
    const ls_engine_opts opts = {.dtype = dtype,
                                 .levers = *l,
                                 .length_max = PROMPT_ROWS + TOKENS,
                                 .logprob_of = LS_LOGPROB_RAW,
                                 .sampling = {.temperature = 1.0f, .top_p = 1.0f, .seed = 3},
                                 .weighs = true,
                                 .penalizes = true,
                                 .top = TOP};
    ls_engine *e;
    ls_error err;
    assert_ok(ls_engine_create(&e, model, device, &opts, &err), err);
    return e;
}

/* What runs has one slot, and pages for its tokens and none more. */
static void holds_no_more(const ls_engine *e) {
    assert_int_equal(ls_ids_available(e->slots), e->plan.slots - e->n_running);
    for (int64_t i = 0; i < e->n_running; i++)
        assert_true(e->running[i]->n_pages <= ls_engine_pages(e, ls_entry_total(e->running[i])));
}

static void run_all(ls_engine *e, told *t, bool cancels) {
    ls_error err;
    for (int64_t i = 0; i < REQUESTS; i++) assert_ok(ls_engine_submit(e, &t[i].request, &err), err);
    while (ls_engine_unfinished(e) > 0) {
        tick(e, 1);
        holds_no_more(e);
        if (cancels && t[8].request.finish == LS_FINISH_NONE && t[8].request.n_completion >= 12)
            assert_ok(ls_engine_cancel(e, &t[8].request, &err), err);
    }
}

#define SAME(field, n) assert_memory_equal(got->field, want->field, (size_t)(n) * sizeof got->field[0])

static void has_the_same(const told *got, const told *want) {
    const int64_t n = got->request.n_completion;
    if (got->request.finish != LS_FINISH_CANCEL) {
        assert_int_equal(n, want->request.n_completion);
        assert_int_equal(got->request.finish, want->request.finish);
    }
    SAME(completion, n);
    SAME(logprob, n);
    SAME(weights, n);
    SAME(top_id, n * TOP);
    SAME(top_logprob, n * TOP);
    SAME(kept, n);
    SAME(log_mass, n);
    SAME(of_all, n);
    SAME(of_kept, n);
    SAME(prompt_logprob, PROMPT_ROWS);
    if (got->request.see != NULL) SAME(rows, PROMPT_ROWS + TOKENS);
}

static void same_with_drafts(const ls_model *model, ls_device *device, ls_dtype dtype, const told *known,
                             const ls_levers *l, int64_t met[LS_DRAFTS_MAX + 1]) {
    static told t[REQUESTS];
    teller foreseen = {.known = known, .vocab = model->config.vocab};
    ls_engine *e = open_engine(model, device, dtype, l);
    e->drafter = tell;
    e->drafter_context = &foreseen;
    requests_make(t, model->config.vocab);
    run_all(e, t, true);
    for (int64_t i = 0; i < REQUESTS; i++) has_the_same(&t[i], &known[i]);
    assert_int_equal(t[2].request.n_completion, t[2].stop_at);
    if (l->preempt_every == 0) assert_int_equal(t[3].n_shown, t[3].request.n_prompt - 1 + TOKENS); /* once each */
    assert_true(e->stats.drafts_accepted > 0 && e->stats.drafts_accepted < e->stats.drafts_proposed);
    assert_in_range(e->stats.drafts_accepted, foreseen.right - LS_DRAFTS_MAX, foreseen.right);
    for (int64_t i = 0; i <= LS_DRAFTS_MAX; i++) met[i] += foreseen.met[i];
    engine_end(e);
}

static void no_draft_changes_a_bit(void **state) {
    ls_device *device = test_device(1, ls_isa_best());
    static told known[REQUESTS];
    (void)state;
    for (size_t f = 0; f < sizeof names / sizeof names[0]; f++) {
        const ls_dtype dtype = f % 2 == 0 ? LS_F32 : LS_BF16;
        int64_t met[LS_DRAFTS_MAX + 1] = {0};
        ls_levers l = plain_levers(REQUESTS);
        ls_engine *e;
        fixture x;
        fixture_open(&x, names[f]);
        e = open_engine(x.model, device, dtype, &l);
        requests_make(known, x.model->config.vocab);
        run_all(e, known, false);
        assert_int_equal(e->stats.drafts_proposed, 0);
        engine_end(e);
        l.chunk = 0;
        l.prefix = LS_PREFIX_ON;
        for (int64_t drafts = 1; drafts <= LS_DRAFTS_MAX; drafts += drafts == 1 ? 2 : 5) {
            l.drafts = drafts;
            l.preempt_by = LS_PREEMPT_ALTERNATE;
            l.preempt_every = drafts == 3 ? 3 : 0;
            l.batch = drafts == 1 ? 3 : REQUESTS;
            l.fork = drafts == 8;
            same_with_drafts(x.model, device, dtype, known, &l, met);
        }
        for (int64_t i = 0; i <= LS_DRAFTS_MAX; i++) assert_true(met[i] > 0);
        fixture_close(&x);
    }
    test_device_close(device);
}

/* What penalties count goes back to what it was, with tokens of the prompt and new ones, twice the same among them. */
static void counts_are_taken_back(void **state) {
    static const int32_t prompt[] = {5, 9, 5}, kept[] = {7, 9}, drafts[] = {9, 11, 7, 11, 3, 19, 27, 35};
    ls_token_counts *t, *want;
    ls_error err;
    (void)state;
    assert_ok(ls_token_counts_create(&t, prompt, 3, 12, 100, &penalties, &err), err);
    assert_ok(ls_token_counts_create(&want, prompt, 3, 12, 100, &penalties, &err), err);
    for (int i = 0; i < 2; i++) {
        ls_token_counts_add(t, kept[i]);
        ls_token_counts_add(want, kept[i]);
    }
    for (int64_t n = 1; n <= 8; n++) {
        const int64_t n_items = t->n;
        for (int64_t i = 0; i < n; i++) ls_token_counts_add(t, drafts[i]);
        ls_token_counts_take_back(t, drafts, n, n_items);
        assert_int_equal(t->n, want->n);
        assert_memory_equal(t->items, want->items, (size_t)t->n * sizeof *t->items);
        assert_memory_equal(t->table, want->table, (size_t)t->table_cap * sizeof *t->table);
    }
    ls_token_counts_free(want);
    ls_token_counts_free(t);
}

/* ---- what is drafted ---- */

/* An engine and entries of it that are tokens and nothing else. */
#define LOOKS 8
typedef struct look {
    ls_engine e;
    entry x[LOOKS], *running[LOOKS];
    ls_request r[LOOKS];
    int32_t completion[LOOKS][64];
} look;

static void look_open(look *l, ls_device *device) {
    ls_error err;
    memset(l, 0, sizeof *l);
    l->e.device = device;
    l->e.batch = LOOKS;
    l->e.n_running = 1;
    l->e.running = l->running;
    l->e.opts.length_max = 64;
    l->e.opts.levers.drafts = LS_DRAFTS_MAX;
    assert_ok(ls_draft_allocate(&l->e, &err), err);
    l->e.draft_tick = (ls_draft_tick){.is_open = true, .room = INT64_MAX};
    for (int32_t i = 0; i < LOOKS; i++) {
        l->r[i].completion = l->completion[i];
        l->x[i] = (entry){.request = &l->r[i], .lane = i};
        l->running[i] = &l->x[i];
        ls_draft_begin(&l->x[i]);
        l->x[i].trust.reach = LS_DRAFTS_MAX;
    }
}

static void have(look *l, int i, const char *tokens) {
    for (; *tokens != '\0'; tokens++) l->completion[i][l->r[i].n_completion++] = *tokens;
}

/* What is drafted behind the tokens of entry i. */
static void drafts_are(look *l, int i, int64_t most, const char *want) {
    int32_t out[LS_DRAFTS_MAX];
    const int64_t n = ls_draft_propose(&l->e, &l->x[i], most, out);
    assert_int_equal(n, strlen(want));
    for (int64_t k = 0; k < n; k++) assert_int_equal(out[k], want[k]);
}

static void drafts_are_what_came_behind(void **state) {
    look l;
    (void)state;
    look_open(&l, test_home());
    have(&l, 0, "a");
    drafts_are(&l, 0, 8, "");
    have(&l, 0, "bcd");
    drafts_are(&l, 0, 8, "");
    have(&l, 0, "xab");
    drafts_are(&l, 0, 3, "cdx");
    drafts_are(&l, 0, 8, "cdxabcdx"); /* on into the drafts */
    have(&l, 0, "e");
    drafts_are(&l, 0, 8, "");
    have(&l, 0, "yab");
    drafts_are(&l, 0, 2, "ey"); /* the newest place */
    have(&l, 0, "czzab");
    drafts_are(&l, 0, 1, "c");
    have(&l, 0, "xab");
    drafts_are(&l, 0, 2, "ey"); /* "xab" was behind an older place than "ab" was */
    ls_draft_deallocate(&l.e);
}

/* Another sample of the prompt has it; another prompt's request is not looked into, nor one whose table is not its. */
static void samples_look_into_each_other(void **state) {
    look l;
    (void)state;
    look_open(&l, test_home());
    l.e.n_running = 2;
    have(&l, 1, "hello, world");
    drafts_are(&l, 1, 8, "");
    have(&l, 0, "ello");
    drafts_are(&l, 0, 4, ", wo");
    have(&l, 0, ", wo");
    drafts_are(&l, 0, 8, "rld");
    l.r[1].prompt_i = 1;
    drafts_are(&l, 0, 8, "");
    l.r[1].prompt_i = 0;
    l.r[1].salt = 1;
    drafts_are(&l, 0, 8, "");
    l.r[1].salt = 0;
    l.x[1].n_indexed = 0;
    drafts_are(&l, 0, 8, "");
    ls_draft_deallocate(&l.e);
}

/* Ticks of n in which drafts are made, of which none, all of every second time, or all stay. */
static int64_t ticks_with_drafts(look *l, int64_t n, int64_t company, int64_t in_two) {
    int64_t made = 0;
    for (int64_t i = 0; i < n; i++) {
        int32_t out[LS_DRAFTS_MAX];
        const int64_t n_drafts = ls_draft_propose(&l->e, &l->x[0], LS_DRAFTS_MAX, out);
        if (n_drafts == 0) continue;
        l->e.n_running = company;
        ls_draft_learn(&l->e, &l->x[0], n_drafts, made++ % 2 < in_two ? n_drafts : 0);
        l->e.n_running = 1;
    }
    return made;
}

static void drafts_that_fail_are_left(void **state) {
    look l;
    (void)state;
    look_open(&l, test_home());
    have(&l, 0, "abababab");
    assert_in_range(ticks_with_drafts(&l, 2000, 1, 0), 10, 25);
    assert_int_equal(l.x[0].trust.reach, 1);
    /* They are tried again, and grow where they stay. */
    assert_in_range(ticks_with_drafts(&l, 200, 1, 2), 70, 200);
    assert_int_equal(l.x[0].trust.reach, LS_DRAFTS_MAX);
    assert_int_equal(ticks_with_drafts(&l, 100, 1, 2), 100);
    /* Half of them: enough for a sequence alone, too little beside many. */
    assert_int_equal(ticks_with_drafts(&l, 100, 1, 1), 100);
    assert_in_range(ticks_with_drafts(&l, 1000, 64, 1), 1, 100);
    ls_draft_deallocate(&l.e);
}

/* Ticks of n with drafts, where n_drafting of eight sequences repeat themselves, and all or none of their drafts
 * stay. */
static int64_t open_ticks(ls_device *device, int64_t n, int64_t n_drafting, int64_t drafts, bool stay) {
    int64_t made = 0;
    look l;
    look_open(&l, device);
    l.e.n_running = LOOKS;
    l.e.opts.levers.drafts = drafts;
    l.e.opts.levers.graphs = true;
    for (int i = 0; i < LOOKS; i++) {
        have(&l, i, i < n_drafting ? "abababab" : "abcdefgh");
        l.r[i].prompt_i = (uint32_t)i;
        l.x[i].n_cached = l.r[i].n_completion - 1;
    }
    for (int64_t tick = 0; tick < n; tick++) {
        int64_t rows = 0;
        ls_draft_begin_tick(&l.e);
        for (int i = 0; i < LOOKS; i++) {
            int32_t out[LS_DRAFTS_MAX];
            const int64_t n_drafts = ls_draft_propose(&l.e, &l.x[i], drafts, out);
            if (n_drafts > 0) ls_draft_learn(&l.e, &l.x[i], n_drafts, stay ? n_drafts : 0);
            rows += n_drafts;
        }
        ls_draft_end_tick(&l.e);
        made += rows > 0;
    }
    ls_draft_deallocate(&l.e);
    return made;
}

/* Where ticks are recorded, drafts of one of eight sequences are not worth the recording. Those of two are, and so is
 * one of each, for as long as they stay. */
static void a_lost_recording_is_counted(void **state) {
    ls_device *device = test_device(1, ls_isa_best());
    (void)state;
    if (ls_device_records(device)) {
        assert_int_equal(open_ticks(device, 1000, 1, LS_DRAFTS_MAX, true), 0);
        assert_int_equal(open_ticks(device, 1000, 2, LS_DRAFTS_MAX, true), 1000);
        assert_int_equal(open_ticks(device, 1000, LOOKS, 1, true), 1000);
        assert_in_range(open_ticks(device, 1000, 2, LS_DRAFTS_MAX, false), 2, 12);
        assert_in_range(open_ticks(device, 1000, LOOKS, LS_DRAFTS_MAX, false), 2, 12);
    }
    test_device_close(device);
}

/* ---- with the look-up ---- */

/* Likeliest tokens repeat themselves soon: drafts stay, and there are fewer forwards. */
static void repetitive_text_takes_fewer_forwards(void **state) {
    static const ls_sampling greedy = {.temperature = 0.0f, .top_p = 1.0f};
    static const int32_t again[] = {3, 7, 11, 3, 7, 11, 3, 7};
    static told t[2][REQUESTS];
    ls_device *device = test_device(1, ls_isa_best());
    (void)state;
    for (int f = 0; f < 2; f++) {
        int64_t forwards[2];
        fixture x;
        fixture_open(&x, f == 0 ? "mamba-odd" : "qwen3-small");
        for (int way = 0; way < 2; way++) {
            ls_levers l = plain_levers(1);
            ls_engine *e;
            ls_error err;
            l.chunk = 0;
            l.drafts = way * LS_DRAFTS_MAX;
            l.graphs = false; /* what pays is the same on every device */
            e = open_engine(x.model, device, LS_F32, &l);
            requests_make(t[way], x.model->config.vocab);
            memcpy(t[way][0].prompt, again, sizeof again);
            t[way][0].request.n_prompt = sizeof again / sizeof again[0];
            t[way][0].request.sampling = &greedy;
            assert_ok(ls_engine_submit(e, &t[way][0].request, &err), err);
            run_dry(e);
            forwards[way] = e->stats.forwards;
            engine_end(e);
        }
        has_the_same(&t[1][0], &t[0][0]);
        assert_int_equal(forwards[0], TOKENS);
        assert_true(forwards[1] <= (f == 0 ? TOKENS / 2 : TOKENS - 8));
        fixture_close(&x);
    }
    test_device_close(device);
}

/* ---- memory ---- */

static int64_t planned_slots(const char *name, int64_t drafts) {
    bench b;
    ls_levers l = plain_levers(3);
    ls_engine *e;
    int64_t slots;
    bench_open(&b, name, LS_F32);
    l.drafts = drafts;
    e = engine_of(&b, &l);
    slots = e->plan.slots;
    engine_end(e);
    bench_close(&b);
    return slots;
}

static void a_second_slot_is_planned_where_there_is_state(void **state) {
    (void)state;
    assert_int_equal(planned_slots("jamba-odd", 0), 3);
    assert_int_equal(planned_slots("jamba-odd", 1), 6);
    assert_int_equal(planned_slots("llama-odd", 8), 3);
}

/* No slot, row or page is left, or somebody looks on: there are no drafts, and all is as it was. */
static int64_t always(void *context, const ls_request *r, int64_t most, int32_t *out) {
    (void)r;
    *(int64_t *)context += most;
    out[0] = 0;
    return 1;
}

static void watch(void *context, const ls_request *r, int64_t pos, int64_t n_rows, int64_t sublayer, const float *h) {
    (void)context, (void)r, (void)pos, (void)sublayer, (void)h;
    assert_int_equal(n_rows, 1);
}

static void drafts_take_only_what_is_free(void **state) {
    bench b;
    (void)state;
    bench_open(&b, "jamba-odd", LS_F32);
    for (int lack = 0; lack < 5; lack++) {
        ls_levers l = plain_levers(2);
        int64_t asked = 0;
        ls_engine *e;
        ls_error err;
        job j[2];
        l.drafts = 4;
        if (lack == 1) l.slots = 2;
        if (lack == 2) l.tick_tokens = 2;
        if (lack == 3) l.chunk = 1;
        e = engine_of(&b, &l);
        e->drafter = always;
        e->drafter_context = &asked;
        if (lack == 4) assert_ok(ls_engine_observe(e, watch, NULL, &err), err);
        for (uint32_t i = 0; i < 2; i++) submit(e, (job_init(&j[i], b.prompt[i], 1, i, 0, JOB_TOKENS), &j[i]));
        run_dry(e);
        assert_true((asked > 0) == (lack == 0));
        for (int i = 0; i < 2; i++) is_complete(&b, &j[i]);
        engine_end(e);
    }
    bench_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_draft_changes_a_bit),
        cmocka_unit_test(counts_are_taken_back),
        cmocka_unit_test(drafts_are_what_came_behind),
        cmocka_unit_test(samples_look_into_each_other),
        cmocka_unit_test(drafts_that_fail_are_left),
        cmocka_unit_test(a_lost_recording_is_counted),
        cmocka_unit_test(repetitive_text_takes_fewer_forwards),
        cmocka_unit_test(a_second_slot_is_planned_where_there_is_state),
        cmocka_unit_test(drafts_take_only_what_is_free),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
