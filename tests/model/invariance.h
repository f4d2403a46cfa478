/* Runs of the engine and of scoring under chosen levers, and the one comparison that judges them. Shared by the
 * programs that show that no lever reaches a bit. */
#ifndef LS_TESTS_INVARIANCE_H
#define LS_TESTS_INVARIANCE_H

#include "fixture.h"
#include "rollout/engine.h"

#define WHOLE 0 /* chunk: the whole prompt or sequence */

/* A case's instruction set is of the CPU; LS_ISA_COUNT stands for the device that is in the CPU's place. */
static inline void skip_elsewhere(ls_isa isa) {
    if (test_defers() != (isa == LS_ISA_COUNT)) {
        print_message(test_defers() ? "instruction sets are the CPU's\n" : "no device is in the CPU's place\n");
        skip();
    }
    if (isa != LS_ISA_COUNT && !ls_isa_available(isa)) {
        print_message("this processor cannot run %s\n", ls_isa_name(isa));
        skip();
    }
}

typedef struct levers {
    int64_t batch, chunk, page_tokens;
    int32_t threads; /* of the CPU: says which of a case's queues runs; on a device 2 is with recordings, 1 without */
    uint64_t order;  /* seed of the admission order; 0 is ascending */
    bool moved;      /* slots are scattered over a larger pool */
    int64_t state_every;
} levers;

/* Requests with the storage of their prompts and results. */
typedef struct request_set {
    ls_request *requests;
    int64_t n, max_tokens;
    int32_t *prompts; /* [n][PROMPT_MAX], NULL when another set owns them */
    int32_t *completions;
    float *logprobs;
} request_set;

#define PROMPT_MAX 48

static inline void *test_alloc(int64_t n, size_t bytes) {
    void *data = calloc((size_t)(n > 0 ? n : 1), bytes);
    assert_non_null(data);
    return data;
}

static inline void set_alloc(request_set *set, int64_t n, int64_t max_tokens) {
    memset(set, 0, sizeof *set);
    set->n = n;
    set->max_tokens = max_tokens;
    set->requests = test_alloc(n, sizeof *set->requests);
    set->completions = test_alloc(n * max_tokens, sizeof *set->completions);
    set->logprobs = test_alloc(n * max_tokens, sizeof *set->logprobs);
    for (int64_t i = 0; i < n; i++) {
        set->requests[i].max_tokens = max_tokens;
        set->requests[i].completion = set->completions + i * max_tokens;
        set->requests[i].logprob = set->logprobs + i * max_tokens;
    }
}

static inline void set_free(request_set *set) {
    free(set->logprobs);
    free(set->completions);
    free(set->prompts);
    free(set->requests);
    memset(set, 0, sizeof *set);
}

/* n_prompts prompts of 1 to longest seeded tokens (the first has 1, the last PROMPT_MAX), samples of each. */
static inline void set_make(request_set *set, int32_t vocab, int64_t n_prompts, int64_t samples, int64_t longest,
                            int64_t max_tokens, uint64_t seed, uint32_t first_prompt) {
    uint64_t random = seed;
    set_alloc(set, n_prompts * samples, max_tokens);
    set->prompts = test_alloc(n_prompts * PROMPT_MAX, sizeof *set->prompts);
    for (int64_t p = 0; p < n_prompts; p++) {
        int32_t *prompt = set->prompts + p * PROMPT_MAX;
        int64_t n_prompt = 1 + (int64_t)(test_random(&random) % (uint64_t)longest);
        if (p == 0) n_prompt = 1;
        if (p == n_prompts - 1) n_prompt = PROMPT_MAX;
        for (int64_t t = 0; t < n_prompt; t++) prompt[t] = (int32_t)(test_random(&random) % (uint64_t)vocab);
        for (int64_t s = 0; s < samples; s++) {
            ls_request *r = &set->requests[p * samples + s];
            r->prompt = prompt;
            r->n_prompt = n_prompt;
            r->prompt_i = first_prompt + (uint32_t)p;
            r->sample_i = (uint32_t)s;
        }
    }
}

/* The same request without its result, in place i of a set with its own storage. */
static inline void set_borrow(request_set *set, int64_t i, const ls_request *from) {
    ls_request *to = &set->requests[i];
    to->prompt = from->prompt;
    to->n_prompt = from->n_prompt;
    to->prompt_i = from->prompt_i;
    to->sample_i = from->sample_i;
}

/* n requests of a set (a divisor of its size), spread over it, with completions cut to max_tokens. Strides of 7 put
 * prompts of all lengths among the first few. */
static inline void set_pick(request_set *out, const request_set *from, int64_t n, int64_t max_tokens) {
    const int64_t every = from->n / n;
    set_alloc(out, n, max_tokens);
    for (int64_t i = 0; i < n; i++) set_borrow(out, i, &from->requests[7 * i % n * every + i % every]);
}

/* The request of `all` with this address. */
static inline const ls_request *set_find(const request_set *all, const ls_request *r) {
    for (int64_t i = 0; i < all->n; i++)
        if (all->requests[i].prompt_i == r->prompt_i && all->requests[i].sample_i == r->sample_i)
            return &all->requests[i];
    return NULL;
}

/* Gives every request of set the result that it has in `all`. */
static inline void set_fill(request_set *set, const request_set *all) {
    for (int64_t i = 0; i < set->n; i++) {
        ls_request *r = &set->requests[i];
        const ls_request *known = set_find(all, r);
        assert_true(known != NULL && known->n_completion >= r->max_tokens);
        memcpy(r->completion, known->completion, (size_t)r->max_tokens * sizeof *r->completion);
        memcpy(r->logprob, known->logprob, (size_t)r->max_tokens * sizeof *r->logprob);
        r->n_completion = r->max_tokens;
    }
}

typedef struct distribution {
    ls_sampling sampling;
    ls_logprob_of of;
} distribution;

static const distribution plain_sampling = {{.temperature = 1.0f, .top_p = 1.0f, .seed = 20240}, LS_LOGPROB_RAW};

static inline void generate(const ls_model *model, ls_device *device, ls_dtype dtype, const levers *l,
                            const distribution *d, request_set *set) {
    ls_engine_opts opts = {.dtype = dtype, .logprob_of = d->of, .sampling = d->sampling};
    ls_engine *engine;
    ls_error err;
    ls_levers_init(&opts.levers);
    opts.levers.batch = l->batch;
    opts.levers.chunk = l->chunk;
    opts.levers.page_tokens = l->page_tokens;
    opts.levers.shuffle = l->order;
    opts.levers.state_every = l->state_every;
    if (test_defers()) opts.levers.graphs = l->threads == 2;
    if (l->moved) {
        opts.levers.slots = 3 * l->batch + 5;
        opts.levers.slot_permutation = 77;
    }
    for (int64_t i = 0; i < set->n; i++) {
        const int64_t length = set->requests[i].n_prompt + set->requests[i].max_tokens;
        if (length > opts.length_max) opts.length_max = length;
    }
    assert_ok(ls_engine_create(&engine, model, device, &opts, &err), err);
    assert_ok(ls_engine_run(engine, set->requests, set->n, NULL, NULL, &err), err);
    ls_engine_check_idle(engine);
    ls_engine_free(engine);
}

/* Teacher-forced log-probabilities of prompt and first n_completion tokens of each request, [n][row] floats; the caller
 * frees them. n_extra unrelated sequences are packed between them and their results dropped. */
static inline float *score(const ls_model *model, ls_device *device, ls_dtype dtype, const levers *l,
                           const distribution *d, const request_set *set, int64_t n_completion, int64_t n_extra,
                           int64_t *row) {
    const ls_score_opts opts = {.dtype = dtype, .batch = l->batch, .chunk = l->chunk, .page_tokens = l->page_tokens};
    const int64_t length = PROMPT_MAX + n_completion, n = set->n + n_extra;
    int32_t *tokens = test_alloc(n * length, sizeof *tokens);
    float *all = test_alloc(n * length, sizeof *all), *out = test_alloc(set->n * length, sizeof *out);
    ls_score_item *items = test_alloc(n, sizeof *items);
    uint64_t random = 4242;
    int64_t at = 0;
    ls_error err;
    for (int64_t i = 0; i < n; i++) {
        int32_t *sequence = tokens + i * length;
        /* extras first come alternately, so that they sit inside the same packs */
        const bool extra = (i % 2 == 0 && i / 2 < n_extra) || at == set->n;
        items[i] =
            (ls_score_item){.tokens = sequence, .of = d->of, .sampling = d->sampling, .logprob = all + i * length};
        if (extra) {
            items[i].n_tokens = 2 + (int64_t)(test_random(&random) % (uint64_t)(length - 2));
            for (int64_t t = 0; t < items[i].n_tokens; t++)
                sequence[t] = (int32_t)(test_random(&random) % (uint64_t)model->config.vocab);
        } else {
            const ls_request *r = &set->requests[at];
            memcpy(sequence, r->prompt, (size_t)r->n_prompt * sizeof *sequence);
            memcpy(sequence + r->n_prompt, r->completion, (size_t)n_completion * sizeof *sequence);
            items[i].n_tokens = r->n_prompt + n_completion;
            items[i].logprob = out + at++ * length;
        }
    }
    assert_ok(ls_score(model, device, &opts, items, n, &err), err);
    free(items);
    free(all);
    free(tokens);
    *row = length;
    return out;
}

/* What a comparison found; first_request -1 when everything agrees. */
typedef struct differences {
    int64_t n_compared, n_tokens, n_logprobs;
    int64_t first_request, first_token;
    uint32_t bits_want, bits_got;
} differences;

static inline void compare_token(differences *d, int64_t request, int64_t t, bool same_token, float want, float got) {
    uint32_t a, b;
    memcpy(&a, &want, sizeof a);
    memcpy(&b, &got, sizeof b);
    d->n_compared++;
    d->n_tokens += !same_token;
    d->n_logprobs += a != b;
    if ((same_token && a == b) || d->first_request >= 0) return;
    d->first_request = request;
    d->first_token = t;
    d->bits_want = a;
    d->bits_got = b;
}

/* Tokens and log-probability bits of got against the same requests in want, whose completions may be longer. */
static inline differences compare_sets(const request_set *want, const request_set *got) {
    differences d = {.first_request = -1};
    for (int64_t i = 0; i < got->n; i++) {
        const ls_request *b = &got->requests[i], *a = set_find(want, b);
        if (a == NULL) continue; /* a neighbour, not one of the requests that are watched */
        assert_int_equal(b->n_completion, b->max_tokens);
        assert_true(b->n_completion <= a->n_completion);
        for (int64_t t = 0; t < b->n_completion; t++)
            compare_token(&d, i, t, a->completion[t] == b->completion[t], a->logprob[t], b->logprob[t]);
    }
    return d;
}

/* Scores [n][row] against what generation recorded for the completions of set. */
static inline differences compare_scores(const request_set *set, const float *scores, int64_t row,
                                         int64_t n_completion) {
    differences d = {.first_request = -1};
    for (int64_t i = 0; i < set->n; i++)
        for (int64_t t = 0; t < n_completion; t++)
            compare_token(&d, i, t, true, set->requests[i].logprob[t],
                          scores[i * row + set->requests[i].n_prompt - 1 + t]);
    return d;
}

static inline void describe(char *text, size_t bytes, const levers *l) {
    char chunk[24];
    snprintf(chunk, sizeof chunk, "%lld", (long long)l->chunk);
    snprintf(text, bytes, "batch %lld, chunk %s, %d threads, pages of %lld, states every %lld%s%s", (long long)l->batch,
             l->chunk == WHOLE ? "whole" : chunk, l->threads, (long long)l->page_tokens, (long long)l->state_every,
             l->order != 0 ? ", shuffled admission" : "", l->moved ? ", scattered slots" : "");
}

static inline void must_agree(const differences *d, int64_t n_expected, const char *what, const levers *l) {
    char text[160];
    describe(text, sizeof text, l);
    if (d->n_compared != n_expected)
        fail_msg("%s, %s: compared %lld tokens, expected %lld", what, text, (long long)d->n_compared,
                 (long long)n_expected);
    if (d->first_request >= 0)
        fail_msg(
            "%s, %s: %lld of %lld tokens and %lld log-probabilities differ, first in request %lld, completion token "
            "%lld:"
            " %08x, expected %08x",
            what, text, (long long)d->n_tokens, (long long)d->n_compared, (long long)d->n_logprobs,
            (long long)d->first_request, (long long)d->first_token, d->bits_got, d->bits_want);
}

#endif
