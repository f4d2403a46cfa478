/* The prefix cache behind the engine: a hit is a miss in bits, whatever its depth; verification finds what is not what
 * it was; the modes of a run. */
#include "engine_case.h"

static const char *const names[] = {"jamba-odd",     "jamba-dense",      "qwen2-window",
                                    "mamba2-small",  "nemotron-h-small", "bamba-small",
                                    "qwen3.5-small", "qwen3-next-small", "granite-moe-small"};
enum { NAMES = sizeof names / sizeof names[0] };

static int64_t hits_of(const ls_engine *e) {
    ls_engine_stats stats;
    ls_engine_get_stats(e, &stats);
    return stats.prefix.hits;
}

static void a_hit_is_a_miss_at_every_depth(void **state) {
    (void)state;
    for (int i = 0; i < 2 * NAMES; i++) {
        bench b;
        int32_t completion[3];
        float logprob[3];
        bench_open(&b, names[i / 2], i % 2 == 0 ? LS_F32 : LS_BF16);
        alone_complete(&b.alone, b.v.model[0], b.prompt[0], PROMPT_TOKENS, &b.distribution, 0, 0, 3, completion,
                       logprob);
        for (int64_t depth = 1; depth < PROMPT_TOKENS; depth++)
            for (int verify = 0; verify < 2; verify++) {
                ls_levers l = plain_levers(2);
                ls_engine *e;
                job part, whole;
                ls_engine_stats stats;
                l.prefix = LS_PREFIX_ON;
                l.verify = verify;
                e = engine_of(&b, &l);
                /* the snapshot stands before the last token, which is computed to be drawn behind */
                submit(e, (job_init(&part, b.prompt[0], depth + 1, 1, 0, 0), &part));
                run_dry(e);
                assert_string_equal(ls_finish_name(part.request.finish), "length");
                submit(e, (job_init(&whole, b.prompt[0], PROMPT_TOKENS, 0, 0, 3), &whole));
                run_dry(e);
                assert_int_equal(whole.request.n_hit, verify ? 0 : depth);
                assert_memory_equal(whole.completion, completion, sizeof completion);
                assert_same_bits(whole.logprob, logprob, 3);
                ls_engine_get_stats(e, &stats);
                assert_int_equal(stats.verified, verify);
                assert_int_equal(stats.prefix.hits, 1);
                engine_end(e);
            }
        bench_close(&b);
    }
}

/* Engines for the cuts: one finds nothing, the others what a first request left. */
enum { CUT_ENGINES = 4, CUT_PROMPT = 20, CUTS_EACH = 4 };
typedef struct cutting {
    bench b;
    ls_engine *cold[2], *warm[CUT_ENGINES];
    uint64_t random;
} cutting;

static int64_t pick(cutting *c, int64_t n) { return (int64_t)(test_random(&c->random) % (uint64_t)n); }

static ls_engine *cut_engine(const bench *b, ls_prefix_mode prefix, int64_t chunk, int64_t state_every) {
    ls_levers l = plain_levers(1);
    l.prefix = prefix;
    l.chunk = chunk;
    l.state_every = state_every;
    l.guards = false;
    return engine_of(b, &l);
}

static void cutting_open(cutting *c, const char *name, ls_dtype dtype) {
    static const int64_t chunks[CUT_ENGINES] = {5, 1, 1, 3}, every[CUT_ENGINES] = {1, 4, 8, 5};
    bench_open(&c->b, name, dtype);
    c->random = 17;
    c->cold[0] = cut_engine(&c->b, LS_PREFIX_OFF, 5, 1);
    c->cold[1] = cut_engine(&c->b, LS_PREFIX_OFF, 1, 3);
    for (int i = 0; i < CUT_ENGINES; i++) c->warm[i] = cut_engine(&c->b, LS_PREFIX_ON, chunks[i], every[i]);
}

static void cutting_close(cutting *c) {
    for (int i = 0; i < 2; i++) engine_end(c->cold[i]);
    for (int i = 0; i < CUT_ENGINES; i++) engine_end(c->warm[i]);
    bench_close(&c->b);
}

/* A request whose prompt is known up to the cut gives what it gives where nothing is. */
static void cut_one(cutting *c, const job *want, int64_t cut) {
    const ls_request *r = &want->request;
    ls_engine *e = c->warm[pick(c, CUT_ENGINES)];
    job first, second;
    submit(e, (job_init(&first, r->prompt, cut + 1, 1, 0, 0), &first));
    run_dry(e);
    submit(e, (job_init(&second, r->prompt, r->n_prompt, 0, 0, r->max_tokens), &second));
    run_dry(e);
    assert_int_equal(second.request.n_hit, cut);
    assert_int_equal(second.request.n_completion, r->n_completion);
    assert_memory_equal(second.completion, want->completion, (size_t)r->n_completion * sizeof *want->completion);
    assert_same_bits(second.logprob, want->logprob, r->n_completion);
    ls_engine_flush(e);
}

/* Random prompts, random cuts; states are written at other tokens on the two sides. LS_CUTS: how many of each kind. */
static void a_hit_is_a_miss_at_random_cuts(void **state) {
    static const char *const fixtures[] = {"mamba2-small", "nemotron-h-small", "qwen3.5-small", "qwen3-next-small"};
    const char *text = getenv("LS_CUTS");
    const int64_t n = text == NULL ? 1000 : strtoll(text, NULL, 10);
    (void)state;
    assert_true(n > 0);
    for (int f = 0; f < 4; f++) {
        cutting c;
        cutting_open(&c, fixtures[f], f % 2 == 0 ? LS_F32 : LS_BF16);
        for (int64_t done = 0; done < n / 2; done += CUTS_EACH) {
            const int64_t n_prompt = 2 + pick(&c, CUT_PROMPT - 1);
            ls_engine *cold = c.cold[pick(&c, 2)];
            int32_t prompt[CUT_PROMPT];
            job want;
            for (int64_t t = 0; t < n_prompt; t++) prompt[t] = (int32_t)pick(&c, c.b.v.model[0]->config.vocab);
            submit(cold, (job_init(&want, prompt, n_prompt, 0, 0, 4), &want));
            run_dry(cold);
            for (int i = 0; i < CUTS_EACH; i++) cut_one(&c, &want, 1 + pick(&c, n_prompt - 1));
        }
        cutting_close(&c);
    }
}

/* ---- every token of a text that is longer than pages, chunks, windows and blocks of attention ---- */

enum { TEXT = 176, TEXT_MAX = 4096, TEXT_DRAWS = 4, TEXT_CUTS = 40 };
static const char *const trained_by_people[] = {"llama-small",     "mistral-window", "qwen2-small",       "qwen3-small",
                                                "qwen3-moe-small", "mixtral-small",  "falcon-mamba-small"};

typedef struct text {
    bench b;
    int64_t n;
    int32_t token[TEXT_MAX];
    float *rows; /* [n + 1][V]: logits that give a position, by an engine that finds nothing */
    job whole;   /* its completion of all of the text */
    int64_t n_seen;
} text;

static void keep_row(void *context, int64_t position, int32_t token, const float *logits, const float *processed,
                     int64_t vocab) {
    text *t = context;
    (void)token, (void)processed;
    if (position <= t->n) memcpy(t->rows + position * vocab, logits, (size_t)vocab * sizeof *logits);
}

static void same_row(void *context, int64_t position, int32_t token, const float *logits, const float *processed,
                     int64_t vocab) {
    text *t = context;
    (void)token, (void)processed;
    assert_memory_equal(logits, t->rows + position * vocab, (size_t)vocab * sizeof *logits);
    t->n_seen++;
}

static ls_engine *text_engine(const text *t, ls_prefix_mode prefix, int64_t chunk, int64_t page) {
    ls_levers l = plain_levers(1);
    l.prefix = prefix;
    l.chunk = chunk;
    l.page_tokens = page;
    l.guards = false;
    return engine_of(&t->b, &l);
}

static void text_open(text *t, const char *name, ls_dtype dtype, int64_t n) {
    uint64_t random = 21;
    float *prompt_logprob = calloc((size_t)n, sizeof *prompt_logprob);
    ls_engine *e;
    assert_true(n > TEXT_CUTS && n <= TEXT_MAX);
    bench_open(&t->b, name, dtype);
    t->b.length_max = n + TEXT_DRAWS;
    t->n = n;
    t->n_seen = 0;
    t->rows = calloc((size_t)((n + 1) * t->b.v.model[0]->config.vocab), sizeof *t->rows);
    for (int64_t i = 0; i < n; i++)
        t->token[i] = (int32_t)(test_random(&random) % (uint64_t)t->b.v.model[0]->config.vocab);
    e = text_engine(t, LS_PREFIX_OFF, 96, 64);
    job_init(&t->whole, t->token, n, 0, 0, TEXT_DRAWS);
    t->whole.request.prompt_logprob = prompt_logprob;
    t->whole.request.see = keep_row;
    t->whole.request.see_context = t;
    submit(e, &t->whole);
    run_dry(e);
    engine_end(e);
    free(prompt_logprob);
}

/* Each request is one token longer than the last one, whose state it hits: logits behind it are those of a miss. */
static void hits_follow_one_another(text *t) {
    ls_engine *e = text_engine(t, LS_PREFIX_ON, 5, 16);
    for (int64_t n = 2; n <= t->n; n++) {
        job j;
        job_init(&j, t->token, n, 1, 0, 1);
        j.request.see = same_row;
        j.request.see_context = t;
        submit(e, &j);
        run_dry(e);
        assert_int_equal(j.request.n_hit, n == 2 ? 0 : n - 2);
    }
    assert_int_equal(t->n_seen, t->n - 1);
    engine_end(e);
}

/* What was computed up to the cut alone, then all of the text. */
static void the_rest_is_a_miss(text *t, int64_t every) {
    ls_engine *e = text_engine(t, LS_PREFIX_ON, 64, 16);
    for (int64_t cut = every; cut < t->n; cut += every) {
        job first, second;
        submit(e, (job_init(&first, t->token, cut + 1, 1, 0, 0), &first));
        run_dry(e);
        submit(e, (job_init(&second, t->token, t->n, 0, 0, TEXT_DRAWS), &second));
        run_dry(e);
        assert_int_equal(second.request.n_hit, cut);
        assert_memory_equal(second.completion, t->whole.completion, TEXT_DRAWS * sizeof *second.completion);
        assert_same_bits(second.logprob, t->whole.logprob, TEXT_DRAWS);
        ls_engine_flush(e);
    }
    engine_end(e);
}

/* LS_TEXT: tokens of the text (docs/lab/trials.md). */
static void a_hit_is_a_miss_at_every_token_of_a_text(void **state) {
    const char *given = getenv("LS_TEXT");
    static text t;
    (void)state;
    for (int i = 0; i < (int)(sizeof trained_by_people / sizeof trained_by_people[0]); i++) {
        text_open(&t, trained_by_people[i], i % 2 == 0 ? LS_F32 : LS_BF16,
                  given == NULL ? TEXT : strtoll(given, NULL, 10));
        hits_follow_one_another(&t);
        the_rest_is_a_miss(&t, given == NULL ? TEXT_CUTS : TEXT_CUTS / 2);
        if (given != NULL)
            printf("%s, %s: a hit is a miss behind each of %lld tokens\n", trained_by_people[i],
                   ls_dtype_name(t.b.dtype), (long long)t.n);
        free(t.rows);
        bench_close(&t.b);
    }
}

/* A prompt that leaves a cached one half way leaves a snapshot there: the next one that does hits it. */
static void branches_are_remembered(void **state) {
    ls_levers l = plain_levers(1);
    bench b;
    ls_engine *e;
    job jobs[3];
    int32_t third[PROMPT_TOKENS];
    (void)state;
    bench_open(&b, "jamba-odd", LS_F32);
    l.prefix = LS_PREFIX_ON;
    e = engine_of(&b, &l);
    memcpy(third, b.prompt[1], sizeof third);
    third[PROMPT_TOKENS / 2] = (b.prompt[1][PROMPT_TOKENS / 2] + 1) % 300;
    if (third[PROMPT_TOKENS / 2] == b.prompt[2][PROMPT_TOKENS / 2]) third[PROMPT_TOKENS / 2]++;
    submit(e, (job_init(&jobs[0], b.prompt[1], PROMPT_TOKENS, 0, 0, 2), &jobs[0]));
    submit(e, (job_init(&jobs[1], b.prompt[2], PROMPT_TOKENS, 1, 0, 2), &jobs[1]));
    submit(e, (job_init(&jobs[2], third, PROMPT_TOKENS, 2, 0, 2), &jobs[2]));
    run_dry(e);
    assert_int_equal(jobs[1].request.n_hit, 0);
    assert_int_equal(jobs[2].request.n_hit, PROMPT_TOKENS / 2);
    for (int i = 0; i < 3; i++) is_complete(&b, &jobs[i]);
    engine_end(e);
    bench_close(&b);
}

/* One bit of a snapshot, or of a cached page, in one layer. */
static void flip(bench *b, uint8_t *device_byte) {
    uint8_t byte;
    ls_error err;
    from_device(b->device, &byte, device_byte, 1);
    byte ^= 0x40;
    assert_ok(ls_memory_write(b->device, device_byte, &byte, 1, &err), err);
}

static void verification_names_the_layer(void **state) {
    bench b;
    (void)state;
    bench_open(&b, "jamba-odd", LS_BF16);
    for (int64_t layer = 0; layer < b.v.model[0]->config.n_layers; layer++)
        for (int verify = 0; verify < 2; verify++) {
            ls_levers l = plain_levers(2);
            const bool attention = b.v.model[0]->config.is_attention[layer];
            ls_engine *e;
            job first, second;
            char word[48];
            ls_prefix_hit hit;
            int32_t pages[PROMPT_TOKENS];
            ls_error err = {.status = LS_OK};
            l.prefix = LS_PREFIX_ON;
            l.verify = verify;
            e = engine_of(&b, &l);
            submit(e, (job_init(&first, b.prompt[0], 14, 0, 0, 1), &first));
            run_dry(e);
            ls_prefix_lookup(e->prefix, b.prompt[0], 14, 13, true, &hit, pages);
            assert_int_equal(hit.n_tokens, 13);
            if (attention)
                flip(&b, &e->cache->layer[layer][pages[1] * e->cache->page_stride + 7]);
            else
                flip(&b, &e->snapshots->layer[layer][hit.snapshot * e->snapshots->slot_stride + 7]);
            for (int p = 0; p < 4; p++) ls_ids_release(e->pages, pages[p]);
            ls_prefix_unpin(e->prefix, hit.node);
            submit(e, (job_init(&second, b.prompt[0], 14, 0, 1, 1), &second));
            while (err.status == LS_OK && ls_engine_unfinished(e) > 0) ls_engine_tick(e, &err);
            snprintf(word, sizeof word, "recomputation in layer %lld", (long long)layer);
            if (verify) {
                check_failed(err.status, &err, word);
                check_failed(err.status, &err, attention ? "keys or values of tokens 4 to 7" : "behind 13 tokens");
                err.text[0] = '\0';
                check_failed(ls_engine_tick(e, &err), &err, word); /* for good */
            } else { /* and without it the bits are wrong: the corruption is one that counts */
                int32_t token;
                float logprob;
                assert_int_equal(err.status, LS_OK);
                alone_complete(&b.alone, b.v.model[0], b.prompt[0], 14, &b.distribution, 0, 1, 1, &token, &logprob);
                assert_true(memcmp(&second.logprob[0], &logprob, sizeof logprob) != 0);
            }
            ls_engine_free(e);
        }
    bench_close(&b);
}

/* 64 prompts that share 32 of their 40 tokens, four at a time, in pools that hold less than four of them: a head of the
 * queue that waits for pages leaves the cache to those who run, so that each prompt is computed from where it parts,
 * but for the first four and the four that find out where that is. */
static void a_tight_pool_keeps_what_is_shared(void **state) {
    enum { N = 64, TOKENS = 40, SHARED = 32, EACH = 4, PAGES = TOKENS / EACH, MISSES = 8 };
    static const int64_t pools[] = {PAGES + 1, PAGES + 2, 16, 20, 24, 32, 40, 80};
    static job jobs[N];
    static int32_t prompt[N][TOKENS];
    uint64_t random = 3;
    bench b;
    (void)state;
    bench_open(&b, "jamba-odd", LS_F32);
    for (int i = 0; i < N; i++)
        for (int t = 0; t < TOKENS; t++)
            prompt[i][t] = i > 0 && t < SHARED ? prompt[0][t] : (int32_t)(test_random(&random) % 300);
    for (size_t k = 0; k < sizeof pools / sizeof pools[0]; k++) {
        ls_levers l = plain_levers(4);
        ls_engine_stats stats;
        ls_engine *e;
        l.prefix = LS_PREFIX_ON;
        l.page_tokens = EACH;
        l.pages = pools[k];
        e = engine_of(&b, &l);
        for (uint32_t i = 0; i < N; i++) submit(e, (job_init(&jobs[i], prompt[i], TOKENS, i, 0, 2), &jobs[i]));
        run_dry(e);
        ls_engine_get_stats(e, &stats);
        if (pools[k] > PAGES + 1) { /* else the page that is copied costs the cache its only entry */
            assert_true(stats.prefix.hits >= N - MISSES);
            assert_true(stats.prefill_tokens <= MISSES * (TOKENS - 1) + (N - MISSES) * (TOKENS - 1 - SHARED));
        }
        assert_true(stats.prefill_tokens <= N * (TOKENS - 1)); /* nothing twice */
        assert_int_equal(stats.preempted_recompute, 0);
        for (int i = 0; i < N; i += 16) is_complete(&b, &jobs[i]);
        engine_end(e);
    }
    bench_close(&b);
}

/* on: kept from run to run; cold: emptied before each; warm: every request is a hit from the first run on. */
static void modes_say_what_a_run_finds(void **state) {
    bench b;
    (void)state;
    bench_open(&b, "jamba-odd", LS_F32);
    for (int mode = LS_PREFIX_OFF; mode <= LS_PREFIX_WARM; mode++) {
        ls_levers l = plain_levers(4);
        ls_engine *e;
        int64_t hits = 0;
        l.prefix = (ls_prefix_mode)mode;
        e = engine_of(&b, &l);
        for (int run = 0; run < 2; run++) {
            job jobs[4];
            ls_request requests[4];
            ls_error err;
            int64_t want = 0;
            for (uint32_t i = 0; i < 4; i++) requests[i] = *job_init(&jobs[i], b.prompt[i / 2], 13, i / 2, i % 2, 2);
            assert_ok(ls_engine_run(e, requests, 4, NULL, NULL, &err), err);
            for (int i = 0; i < 4; i++) {
                jobs[i].request = requests[i];
                is_complete(&b, &jobs[i]);
                if (mode == LS_PREFIX_WARM || (mode == LS_PREFIX_ON && run == 1)) want += requests[i].n_hit == 12;
            }
            if (mode == LS_PREFIX_WARM || (mode == LS_PREFIX_ON && run == 1)) assert_int_equal(want, 4);
            if (mode == LS_PREFIX_OFF || mode == LS_PREFIX_COLD || (mode == LS_PREFIX_ON && run == 0))
                assert_int_equal(hits_of(e), hits); /* all run at once: nobody finds what another left */
            hits = hits_of(e);
        }
        engine_end(e);
    }
    bench_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hit_is_a_miss_at_every_depth),
        cmocka_unit_test(branches_are_remembered),
        cmocka_unit_test(verification_names_the_layer),
        cmocka_unit_test(a_tight_pool_keeps_what_is_shared),
        cmocka_unit_test(modes_say_what_a_run_finds),
        cmocka_unit_test(a_hit_is_a_miss_at_random_cuts),
        cmocka_unit_test(a_hit_is_a_miss_at_every_token_of_a_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
