/* What the properties of the catalogue share: the models they are tried on, requests with the results they must have,
 * engines and bare forwards with a fault armed, and states that sound arithmetic computes from scratch.
 *
 * A property says whether it holds; where it does not, `note` tells the first difference. Everything is compared as raw
 * bits. The oracle is one sequence alone, computed whole, without levers and without faults. */
#ifndef LS_TESTS_CATALOGUE_H
#define LS_TESTS_CATALOGUE_H

#include "faults/faults.h"
#include "model/fixture.h"
#include "rollout/engine.h"
#include "rollout/engine_state.h"

#define COUNT(array) ((int64_t)(sizeof(array) / sizeof((array)[0])))

enum { TEXT = 72, COMPLETION = 5, PAGE = 8, TICKS_MAX = 2000 };

static char note[512];

static inline bool __attribute__((format(printf, 1, 2))) refuted(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(note, sizeof note, format, args);
    va_end(args);
    return false;
}

static inline bool same_bits(float a, float b) { return memcmp(&a, &b, sizeof a) == 0; }

static ls_device *machine;

/* ---- bare forwards ---- */

/* Sequences without an engine: slots as asked for, and pages for some sequences of TEXT tokens. */
typedef struct track {
    const ls_model *model;
    ls_dtype dtype;
    ls_cache *cache;
    ls_workspace *ws;
    ls_batch *batch;
    float *h;
    int64_t page_tokens, n_pages; /* of one sequence */
    int32_t *pages;               /* [n_sequences][n_pages] */
} track;

static inline void track_open(track *t, const ls_model *model, ls_dtype dtype, int64_t n_slots, int64_t n_sequences,
                              int64_t page_tokens) {
    const int64_t n_pages = (TEXT + page_tokens - 1) / page_tokens;
    const ls_cache_opts opts = {
        .dtype = dtype, .n_slots = n_slots, .n_pages = n_sequences * n_pages, .page_tokens = page_tokens};
    ls_error err;
    *t = (track){.model = model, .dtype = dtype, .page_tokens = page_tokens, .n_pages = n_pages};
    assert_ok(ls_cache_create(&t->cache, machine, &model->config, &opts, &err), err);
    assert_ok(ls_workspace_create(&t->ws, machine, model, dtype, 2 * TEXT, false, &err), err);
    assert_ok(ls_batch_create(&t->batch, machine, 2 * TEXT, TEXT, opts.n_pages, &err), err);
    t->h = to_device(machine, NULL, 2 * TEXT * model->config.hidden * (int64_t)sizeof *t->h);
    t->pages = malloc((size_t)opts.n_pages * sizeof *t->pages);
    assert_non_null(t->pages);
    for (int64_t i = 0; i < opts.n_pages; i++) t->pages[i] = (int32_t)i;
    for (int32_t i = 0; i < n_slots; i++) assert_ok(ls_cache_poison_slot(t->cache, i, &err), err);
    for (int32_t i = 0; i < opts.n_pages; i++) assert_ok(ls_cache_poison_page(t->cache, i, &err), err);
}

static inline void track_close(track *t) {
    free(t->pages);
    ls_memory_free(machine, t->h);
    ls_batch_free(t->batch);
    ls_workspace_free(t->ws);
    ls_cache_free(t->cache);
}

static inline const int32_t *track_pages(const track *t, int64_t sequence) { return t->pages + sequence * t->n_pages; }

/* Where a sequence's page numbers begin in the tables of a forward. */
static inline int64_t track_table(const track *t, int64_t sequence) { return sequence * t->n_pages; }

static inline void track_forward(track *t, ls_inject fault, const int32_t *tokens, const ls_span *spans, int64_t n) {
    const ls_forward f = {t->model, t->cache, t->ws, t->batch, t->h, 0, false};
    ls_error err;
    assert_ok(ls_batch_write(t->batch, tokens, spans, n, t->pages, t->cache->n_pages, &err), err);
    assert_ok(FAULTS_CALL(fault, machine, ls_model_forward(&f, NULL, NULL, &err), &err), err);
}

/* One span: tokens [n] at positions from pos on. */
static inline void track_run(track *t, ls_inject fault, const int32_t *tokens, int64_t pos, int64_t n, int32_t slot,
                             int64_t sequence) {
    const ls_span span = {0, n, pos, slot, track_table(t, sequence)};
    track_forward(t, fault, tokens, &span, 1);
}

static inline int64_t row_bytes(const track *t) { return t->model->config.hidden * ls_dtype_bytes(t->dtype); }

/* Outputs of the last forward, rows [row, row + n), as stored. */
static inline void track_rows(const track *t, int64_t row, int64_t n, void *out) {
    from_device(machine, out, ls_rows_from(t->ws->a.x, row).data, n * row_bytes(t));
}

/* The first layer in which two slots differ, or -1; of two pages likewise. */
static inline int64_t slot_differs(const ls_cache *a, int32_t slot_a, const ls_cache *b, int32_t slot_b) {
    int64_t layer;
    ls_error err;
    assert_ok(ls_cache_slot_differs(&layer, a, slot_a, b, slot_b, &err), err);
    return layer;
}
static inline int64_t page_differs(const ls_cache *a, int32_t page_a, const ls_cache *b, int32_t page_b, int64_t n) {
    int64_t layer;
    ls_error err;
    assert_ok(ls_cache_page_differs(&layer, a, page_a, b, page_b, n, &err), err);
    return layer;
}
static inline void copy_slot(const ls_cache *to, int32_t to_slot, const ls_cache *from, int32_t from_slot) {
    ls_error err;
    assert_ok(ls_cache_copy_slot(to, to_slot, from, from_slot, &err), err);
}
static inline void copy_page(const ls_cache *to, int32_t to_page, const ls_cache *from, int32_t from_page) {
    ls_error err;
    assert_ok(ls_cache_copy_page(to, to_page, from, from_page, &err), err);
}

/* What a sequence of n tokens holds: the slot, and the positions up to n of its pages. */
static inline bool same_state(const ls_cache *a, int32_t slot_a, const int32_t *pages_a, const ls_cache *b,
                              int32_t slot_b, const int32_t *pages_b, int64_t n) {
    int64_t layer = slot_differs(a, slot_a, b, slot_b);
    if (layer >= 0) return refuted("the state behind %lld tokens, layer %lld", (long long)n, (long long)layer);
    for (int64_t p = 0; p * a->page_tokens < n; p++) {
        const int64_t rest = n - p * a->page_tokens;
        layer = page_differs(a, pages_a[p], b, pages_b[p], rest < a->page_tokens ? rest : a->page_tokens);
        if (layer >= 0)
            return refuted("page %lld of %lld tokens, layer %lld", (long long)p, (long long)n, (long long)layer);
    }
    return true;
}

static inline void copy_state(const ls_cache *to, int32_t to_slot, const int32_t *to_pages, const ls_cache *from,
                              int32_t from_slot, const int32_t *from_pages, int64_t n_pages) {
    copy_slot(to, to_slot, from, from_slot);
    for (int64_t p = 0; p < n_pages; p++) copy_page(to, to_pages[p], from, from_pages[p]);
}

/* ---- models ---- */

/* A text with all its states: slot n of `at` is the one behind n tokens, each computed in one span from the beginning;
 * the pages of sequence 0 hold all keys and values; rows are the outputs. */
typedef struct subject {
    const char *fixture;
    ls_dtype dtype;
    ls_model *model, *other; /* other: the same but for some weights */
    int32_t text[TEXT];
    track at;
    uint8_t *rows;
} subject;

static subject subjects[] = {{.fixture = "jamba-dense", .dtype = LS_F32},
                             {.fixture = "jamba-odd", .dtype = LS_BF16},
                             {.fixture = "jamba-nobias", .dtype = LS_F32},
                             {.fixture = "jamba-moe", .dtype = LS_BF16},
                             {.fixture = "mamba-odd", .dtype = LS_F32}};

static inline void random_tokens(const subject *s, int32_t *tokens, int64_t n, uint64_t seed) {
    seed = (seed + 1) * UINT64_C(0x9E3779B97F4A7C15);
    for (int64_t i = 0; i < n; i++)
        tokens[i] = (int32_t)((test_random(&seed) >> 33) % (uint64_t)s->model->config.vocab);
}

static inline void change_weights(ls_model *model) {
    float *place = model->layers[0].mamba.dt_bias, bias[4096];
    const int64_t n = model->config.d_inner, bytes = n * (int64_t)sizeof *bias;
    ls_error err;
    assert_in_range((uintmax_t)n, 1, 4096);
    from_device(machine, bias, place, bytes);
    for (int64_t c = 0; c < n; c++) bias[c] += 0.5f;
    assert_ok(ls_memory_write(machine, place, bias, bytes, &err), err);
    assert_ok(ls_device_wait(machine, &err), err);
}

static inline void subject_open(subject *s) {
    char path[512];
    ls_error err;
    snprintf(path, sizeof path, "%s/%s", LS_FIXTURES, s->fixture);
    assert_ok(ls_model_open(&s->model, machine, path, &err), err);
    assert_ok(ls_model_open(&s->other, machine, path, &err), err);
    change_weights(s->other);
    random_tokens(s, s->text, TEXT, 4711);
    track_open(&s->at, s->model, s->dtype, TEXT + 1, 1, PAGE);
    for (int32_t n = 1; n <= TEXT; n++) track_run(&s->at, LS_INJECT_NONE, s->text, 0, n, n, 0);
    s->rows = malloc((size_t)(TEXT * row_bytes(&s->at)));
    assert_non_null(s->rows);
    track_rows(&s->at, 0, TEXT, s->rows);
}

static inline void subject_close(subject *s) {
    free(s->rows);
    track_close(&s->at);
    ls_model_close(s->other);
    ls_model_close(s->model);
}

/* The text's state behind n tokens, into a track of the same page size. */
static inline void recall(const subject *s, track *t, int32_t slot, int64_t sequence, int64_t n) {
    copy_state(t->cache, slot, track_pages(t, sequence), s->at.cache, (int32_t)n, s->at.pages, s->at.n_pages);
}

static inline bool recalls(const subject *s, const track *t, int32_t slot, int64_t sequence, int64_t n) {
    return same_state(t->cache, slot, track_pages(t, sequence), s->at.cache, (int32_t)n, s->at.pages, n);
}

/* n rows of a forward, from `row` on, are the text's from pos on. */
static inline bool recalls_rows(const subject *s, const track *t, int64_t row, int64_t pos, int64_t n) {
    const int64_t each = row_bytes(t);
    uint8_t *rows = malloc((size_t)(n * each + 1));
    int64_t i = 0;
    assert_non_null(rows);
    if (n > 0) track_rows(t, row, n, rows);
    while (i < n && memcmp(rows + i * each, s->rows + (pos + i) * each, (size_t)each) == 0) i++;
    free(rows);
    return i == n || refuted("output at position %lld", (long long)(pos + i));
}

/* ---- requests ---- */

typedef struct rollout {
    ls_request request;
    int32_t prompt[TEXT], completion[COMPLETION], want[COMPLETION];
    float logprob[COMPLETION], want_logprob[COMPLETION];
    uint64_t weights[COMPLETION];
} rollout;

/* Its prompt is still to be written. It stays where it is: the request points into it. */
static inline void rollout_init(rollout *r, int64_t n_prompt, uint32_t address) {
    memset(r, 0, sizeof *r);
    r->request = (ls_request){.prompt = r->prompt,
                              .n_prompt = n_prompt,
                              .prompt_i = address,
                              .sample_i = 1,
                              .max_tokens = COMPLETION,
                              .completion = r->completion,
                              .logprob = r->logprob,
                              .weights = r->weights};
}

static inline ls_engine_opts engine_opts(const subject *s) {
    ls_engine_opts opts = {.dtype = s->dtype,
                           .length_max = TEXT,
                           .logprob_of = LS_LOGPROB_RAW,
                           .sampling = {.temperature = 1.0f, .top_p = 1.0f, .seed = 31},
                           .weights = 1};
    ls_levers_init(&opts.levers);
    opts.levers.batch = 4;
    opts.levers.chunk = 0;
    opts.levers.page_tokens = PAGE;
    opts.levers.prefix = LS_PREFIX_OFF;
    opts.levers.fork = false;
    opts.levers.threads = 1;
    return opts;
}

static inline ls_engine *engine_open(const subject *s, const ls_engine_opts *opts, ls_inject fault) {
    ls_engine_opts faulty = *opts;
    ls_engine *e;
    ls_error err;
    faulty.inject = fault;
    assert_ok(ls_engine_create(&e, s->model, machine, &faulty, &err), err);
    return e;
}

/* Hands `holds` on. Sound engines must be empty and whole when all has gone well. */
static inline bool engine_close(ls_engine *e, ls_inject fault, bool holds) {
    if (holds && fault == LS_INJECT_NONE) ls_engine_check_idle(e);
    ls_engine_free(e);
    return holds;
}

static inline void submit(ls_engine *e, rollout *r) {
    ls_error err;
    assert_ok(ls_engine_submit(e, &r->request, &err), err);
}

static inline bool tick(ls_engine *e) {
    ls_error err;
    return ls_engine_tick(e, &err) == LS_OK || refuted("%s", err.text);
}

static inline bool tick_to_end(ls_engine *e) {
    for (int64_t i = 0; i < TICKS_MAX && ls_engine_unfinished(e) > 0; i++)
        if (!tick(e)) return false;
    return ls_engine_unfinished(e) == 0 || refuted("no end after %d ticks", (int)TICKS_MAX);
}

/* Only puts the prompt into the prefix cache. */
static inline bool warm(ls_engine *e, const int32_t *prompt, int64_t n) {
    ls_request r = {.prompt = prompt, .n_prompt = n, .prompt_i = UINT32_MAX};
    ls_error err;
    assert_ok(ls_engine_submit(e, &r, &err), err);
    return tick_to_end(e);
}

static inline bool is_complete(const rollout *r) {
    const ls_request *q = &r->request;
    if (q->finish == LS_FINISH_LENGTH && q->n_completion == q->max_tokens) return true;
    return refuted("prompt %u ends by %s after %lld tokens: %s", q->prompt_i, ls_finish_name(q->finish),
                   (long long)q->n_completion, q->finish == LS_FINISH_ERROR ? q->error.text : "");
}

/* Results are those that the oracle has. */
static inline bool agree(const rollout *r, int64_t n) {
    for (; n > 0; n--, r++) {
        if (!is_complete(r)) return false;
        for (int64_t i = 0; i < r->request.max_tokens; i++) {
            if (r->completion[i] != r->want[i])
                return refuted("prompt %u, token %lld: %d, alone %d", r->request.prompt_i, (long long)i,
                               r->completion[i], r->want[i]);
            if (!same_bits(r->logprob[i], r->want_logprob[i]))
                return refuted("prompt %u, log-probability %lld: %.9g, alone %.9g", r->request.prompt_i, (long long)i,
                               (double)r->logprob[i], (double)r->want_logprob[i]);
        }
    }
    return true;
}

/* Records from token `from` on are those that scoring the whole sequence gives. */
static inline bool replays(const ls_model *model, const ls_engine_opts *opts, const rollout *r, int64_t from) {
    const ls_score_opts score = {.dtype = opts->dtype, .batch = 1, .chunk = 0, .page_tokens = 16};
    const int64_t n_prompt = r->request.n_prompt, n = r->request.n_completion;
    int32_t tokens[TEXT + COMPLETION];
    float logprob[TEXT + COMPLETION];
    ls_score_item item = {.tokens = tokens,
                          .n_tokens = n_prompt + n,
                          .of = opts->logprob_of,
                          .sampling = opts->sampling,
                          .logprob = logprob};
    ls_error err;
    memcpy(tokens, r->prompt, (size_t)n_prompt * sizeof *tokens);
    memcpy(tokens + n_prompt, r->completion, (size_t)n * sizeof *tokens);
    if (!is_complete(r)) return false;
    assert_ok(ls_score(model, machine, &score, &item, 1, &err), err);
    for (int64_t i = from; i < n; i++)
        if (!same_bits(r->logprob[i], logprob[n_prompt - 1 + i]))
            return refuted("prompt %u, log-probability %lld: %.9g, scored %.9g", r->request.prompt_i, (long long)i,
                           (double)r->logprob[i], (double)logprob[n_prompt - 1 + i]);
    return true;
}

/* The oracle: what the request gives alone. Scoring must confirm it. */
static inline void expect(const subject *s, const ls_model *model, rollout *r) {
    ls_engine_opts opts = engine_opts(s);
    ls_engine *e;
    ls_error err;
    opts.levers.batch = 1;
    assert_ok(ls_engine_create(&e, model, machine, &opts, &err), err);
    submit(e, r);
    if (!tick_to_end(e) || !replays(model, &opts, r, 0)) fail_msg("%s, alone: %s", s->fixture, note);
    ls_engine_free(e);
    memcpy(r->want, r->completion, sizeof r->want);
    memcpy(r->want_logprob, r->logprob, sizeof r->want_logprob);
}

/* A request of n_prompt random tokens, with its expected result. */
static inline void rollout_make(const subject *s, rollout *r, int64_t n_prompt, uint32_t address) {
    rollout_init(r, n_prompt, address);
    random_tokens(s, r->prompt, n_prompt, address);
    expect(s, s->model, r);
}

static inline void rollouts_make(const subject *s, rollout *r, const int64_t *n_prompt, int64_t n) {
    for (int64_t i = 0; i < n; i++) rollout_make(s, &r[i], n_prompt[i], 100 + (uint32_t)i);
}

/* All together in one engine, to the end. */
static inline bool together(const subject *s, const ls_engine_opts *opts, ls_inject fault, rollout *r, int64_t n) {
    ls_engine *e = engine_open(s, opts, fault);
    for (int64_t i = 0; i < n; i++) submit(e, &r[i]);
    return engine_close(e, fault, tick_to_end(e) && agree(r, n));
}

/* ---- prefix entries ---- */

/* The snapshot behind `depth` tokens, pinned, with references to its pages [TEXT]. */
static inline bool entry_open(ls_engine *e, const int32_t *tokens, int64_t depth, ls_prefix_hit *hit, int32_t *pages) {
    ls_prefix_lookup(e->prefix, tokens, depth, depth, true, hit, pages);
    return hit->node != NULL || refuted("nothing cached behind %lld tokens", (long long)depth);
}

static inline void entry_close(ls_engine *e, const ls_prefix_hit *hit, const int32_t *pages) {
    for (int64_t p = 0; p < ls_engine_pages(e, hit->n_tokens); p++) ls_ids_release(e->pages, pages[p]);
    ls_prefix_unpin(e->prefix, hit->node);
}

/* The snapshot and pages behind `depth` tokens are what computing them alone and whole gives. */
static inline bool entry_is_sound(const subject *s, ls_engine *e, const int32_t *tokens, int64_t depth) {
    ls_prefix_hit hit;
    int32_t pages[TEXT];
    track t;
    bool holds;
    if (!entry_open(e, tokens, depth, &hit, pages)) return false;
    track_open(&t, s->model, s->dtype, 1, 1, e->opts.levers.page_tokens);
    track_run(&t, LS_INJECT_NONE, tokens, 0, depth, 0, 0);
    if (hit.n_tokens != depth)
        holds =
            refuted("the snapshot nearest to %lld tokens is behind %lld", (long long)depth, (long long)hit.n_tokens);
    else
        holds = slot_differs(e->snapshots, hit.snapshot, t.cache, 0) < 0 ||
                refuted("the snapshot behind %lld tokens", (long long)depth);
    for (int64_t p = 0; holds && p * t.page_tokens < depth; p++) {
        const int64_t rest = depth - p * t.page_tokens, n = rest < t.page_tokens ? rest : t.page_tokens;
        holds = page_differs(e->cache, pages[p], t.cache, t.pages[p], n) < 0 ||
                refuted("cached page %lld of %lld tokens", (long long)p, (long long)depth);
    }
    track_close(&t);
    entry_close(e, &hit, pages);
    return holds;
}

#endif
