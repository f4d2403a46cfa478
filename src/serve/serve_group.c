/* Groups and their samples. */
#define _POSIX_C_SOURCE 200809L
#include "serve/serve_group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/rng.h"

/* ---- what the engine calls ---- */

/* Ends of a completion that are the request's own: its tokens, its texts. */
static bool should_stop(void *context, const int32_t *completion, int64_t n) {
    ls_completion *s = context;
    const ls_group_shop *o = s->group->shop;
    const ls_ask *a = s->group->ask;
    const int32_t token = completion[n - 1];
    s->ended_by_id = s->ended_by_eos = true;
    s->stop_id = token;
    for (int64_t i = 0; i < o->n_eos && !a->ignore_eos; i++)
        if (o->eos[i] == token) return true;
    s->ended_by_eos = false;
    for (int64_t i = 0; i < a->n_stop_ids; i++)
        if (a->stop_ids[i] == token) return true;
    s->ended_by_id = false;
    s->stop_id = -1;
    return s->group->stop != NULL && ls_stop_reached(&s->stop_state, completion, n);
}

static void look_at_logits(void *context, int64_t position, int32_t token, const float *logits, const float *processed,
                           int64_t vocab) {
    ls_completion *s = context;
    const ls_group_shop *o = s->group->shop;
    const int64_t n = s->request.n_prompt;
    const bool in_prompt = position < n;
    ls_logit_stats *stats = in_prompt ? &s->prompt_stats : &s->stats;
    (void)vocab;
    if (s->look_error.status != LS_OK || stats->n_rows == 0) return;
    s->look_error.status =
        ls_logit_stats_take(stats, o->tools, in_prompt ? position - 1 : position - n, token, logits, processed,
                            in_prompt || o->logprob_of == LS_LOGPROB_RAW ? logits : processed, &s->look_error);
}

/* ---- what it costs ---- */

enum {
    TOKEN_TEXT = 24,    /* of a token's text and id in a reply */
    TOKEN_ENTRY = 96,   /* of a log-probability with its token */
    TOKEN_OWN = 24,     /* of the member `lockstep` */
    TOKEN_WEIGHED = 128 /* of distributions in it */
};

int64_t ls_ask_samples(const ls_ask *a) { return a->n_prompts * (a->n > 0 ? a->n : 1); }

static bool sees(const ls_ask *a) { return a->top > 0 || a->mask || (a->top == 0 && a->kind == LS_ASK_TOKENS); }

/* Ranks and alternatives, or a mask alone. */
static int64_t stats_top(const ls_ask *a) { return sees(a) ? a->top : -1; }

static int64_t result_bytes(const ls_ask *a) {
    return (int64_t)(sizeof(int32_t) + sizeof(float) + sizeof(uint64_t)) +
           ls_logit_stats_row_bytes(stats_top(a), a->mask) + (a->distributions ? 4 * (int64_t)sizeof(float) : 0);
}

static int64_t sent_bytes(const ls_ask *a) {
    int64_t bytes = TOKEN_TEXT;
    if (a->top >= 0) bytes += (1 + a->top) * TOKEN_ENTRY;
    if (a->lockstep) bytes += TOKEN_OWN + (a->distributions ? TOKEN_WEIGHED : 0);
    if (a->mask) bytes += 8 * (a->sampling.top_k < LS_STATS_MASK_MAX ? a->sampling.top_k : LS_STATS_MASK_MAX);
    return bytes;
}

/* A stream is told as it comes; but in this dialect all of it each time. */
static bool tells_at_end(const ls_ask *a) { return !a->stream || a->kind == LS_ASK_SGLANG; }

/* Of a prompt's token in each of its samples. */
static int64_t prompt_bytes(const ls_ask *a) {
    if (a->prompt_top < 0) return 0;
    return (int64_t)sizeof(float) + (1 + a->prompt_top) * TOKEN_ENTRY + ls_logit_stats_row_bytes(a->prompt_top, false);
}

int64_t ls_group_reply_bytes(const ls_group *g, int64_t n_tokens) {
    int64_t bytes = n_tokens * sent_bytes(g->ask);
    if (g->ask->prompt_top >= 0 && g->is_finished)
        for (int64_t i = 0; i < g->n_samples; i++)
            bytes += g->samples[i].request.n_prompt * (1 + g->ask->prompt_top) * TOKEN_ENTRY;
    return bytes;
}

/* What is there before anything runs, and what is sure to come: prompts that are told, and completions whose length the
 * request says are held to the limit of one request now. */
static ls_status count_group(ls_group *g, bool *is_own, ls_error *err) {
    const ls_ask *a = g->ask;
    const int64_t each = a->n > 0 ? a->n : 1;
    int64_t bytes = (int64_t)(sizeof *g + sizeof *a) + g->n_samples * (int64_t)sizeof *g->samples, sure = 0;
    for (int64_t i = 0; i < a->n_prompts; i++) {
        bytes += a->prompts[i].n * (int64_t)sizeof(int32_t);
        sure += a->prompts[i].n * each * prompt_bytes(a);
    }
    for (int64_t i = 0; i < a->n_stop; i++) bytes += (int64_t)strlen(a->stop[i]) * (1 + LS_STOP_NODE_BYTES);
    bytes += sure;
    if (a->max_tokens > 0 &&
        (!ls_mul_i64(a->max_tokens * g->token_bytes, g->n_samples, &sure) || sure > g->holding.quota->request_max)) {
        *is_own = true;
        return LS_FAIL(err, LS_ERR_CAPACITY,
                       "request: max_tokens: %lld completions of %lld tokens with what is told of each are %lld bytes; "
                       "%lld are the most (--request-bytes)",
                       (long long)g->n_samples, (long long)a->max_tokens, (long long)sure,
                       (long long)g->holding.quota->request_max);
    }
    return ls_holding_take(&g->holding, bytes, is_own, err);
}

/* The quota is told of so many at a time, or of so many bytes. */
enum { COUNT_TOKENS = 256, COUNT_BYTES = 65536 };

void ls_sample_count(ls_completion *s) {
    ls_group *g = s->group;
    bool is_own;
    int64_t n = 1 + COUNT_BYTES / g->token_bytes;
    if (s->request.n_completion <= s->n_counted || g->excess.status != LS_OK) return;
    if (n > COUNT_TOKENS) n = COUNT_TOKENS;
    if (n > s->request.max_tokens - s->n_counted) n = s->request.max_tokens - s->n_counted;
    if (ls_holding_take(&g->holding, n * g->token_bytes, &is_own, &g->excess) == LS_OK)
        s->n_counted += n;
    else if (!is_own)
        g->excess.status = LS_ERR_DEVICE; /* it may be tried again */
}

/* ---- memory ---- */

static void sample_deinit(ls_completion *s) {
    ls_logit_stats_deinit(&s->stats);
    ls_logit_stats_deinit(&s->prompt_stats);
    ls_sparse_free(&s->memory);
}

void ls_group_free(ls_group *g) {
    if (g == NULL) return;
    for (int64_t i = 0; g->samples != NULL && i < g->n_samples; i++) sample_deinit(&g->samples[i]);
    ls_holding_give(&g->holding, g->holding.bytes);
    free(g->samples);
    ls_stop_free(g->stop);
    ls_ask_free(g->ask);
    free(g);
}

/* The next `count` elements of `bytes` each; wider ones come first. */
static void *part(char **at, int64_t count, size_t bytes) {
    void *begin = *at;
    *at += count * (int64_t)bytes;
    return begin;
}

static ls_status open_results(ls_completion *s, int64_t room, ls_error *err) {
    const ls_ask *a = s->group->ask;
    const bool of_model = a->distributions && s->group->shop->logprob_of != LS_LOGPROB_RAW;
    const int64_t n_prompt = a->prompt_top >= 0 ? s->request.n_prompt : 0;
    char *at;
    LS_TRY(ls_sparse_alloc(&s->memory, room * 32 + n_prompt * (int64_t)sizeof(float), "completion", err));
    at = s->memory.data;
    s->weights = part(&at, room, sizeof *s->weights);
    s->completion = part(&at, room, sizeof *s->completion);
    s->logprob = part(&at, room, sizeof *s->logprob);
    if (n_prompt > 0) s->prompt_logprob = part(&at, n_prompt, sizeof *s->prompt_logprob);
    if (!a->distributions) return LS_OK;
    s->kept = part(&at, room, sizeof *s->kept);
    s->of_all = part(&at, room, sizeof *s->of_all);
    s->of_kept = part(&at, room, sizeof *s->of_kept);
    if (of_model) s->of_model = part(&at, room, sizeof *s->of_model);
    return LS_OK;
}

ls_status ls_sample_open(ls_group *g, int64_t i, ls_error *err) {
    const ls_ask *a = g->ask;
    const int64_t n = a->n > 0 ? a->n : 1;
    ls_completion *s = &g->samples[i];
    ls_request *r = &s->request;
    const int64_t room = r->max_tokens;
    LS_TRY(open_results(s, room, err));
    if (sees(a)) LS_TRY(ls_logit_stats_init(&s->stats, room, stats_top(a), a->mask, err));
    if (a->prompt_top >= 0 && a->kind != LS_ASK_SCORE && a->kind != LS_ASK_SGLANG)
        LS_TRY(ls_logit_stats_init(&s->prompt_stats, r->n_prompt - 1, a->prompt_top, false, err));
    r->prompt_i = a->first_prompt + (uint32_t)(i / n);
    r->sample_i = a->first_sample + (uint32_t)(i % n);
    r->owner = g->number;
    r->salt = a->salt;
    r->sampling = &g->sampling;
    r->penalties = ls_penalties_act(&a->penalties) ? &a->penalties : NULL;
    r->priority = a->priority;
    r->stop = should_stop;
    r->stop_context = s;
    r->completion = s->completion;
    r->logprob = s->logprob;
    r->weights = s->weights;
    r->prompt_logprob = s->prompt_logprob;
    r->kept = s->kept;
    r->of_all = s->of_all;
    r->of_kept = s->of_kept;
    r->of_model = s->of_model;
    r->see = s->stats.n_rows > 0 || s->prompt_stats.n_rows > 0 ? look_at_logits : NULL;
    r->see_context = s;
    r->sees_processed = s->stats.n_rows > 0 && (a->mask || (a->top > 0 && g->shop->logprob_of != LS_LOGPROB_RAW));
    if (g->stop != NULL) ls_stop_begin(&s->stop_state, g->stop);
    return LS_OK;
}

static ls_status make_samples(ls_group *g, const ls_ask_limits *limits, ls_error *err) {
    const ls_ask *a = g->ask;
    const int64_t n = a->n > 0 ? a->n : 1;
    LS_TRY(ls_array_alloc((void **)&g->samples, g->n_samples, sizeof *g->samples, "request", err));
    for (int64_t i = 0; i < g->n_samples; i++) {
        ls_completion *s = &g->samples[i];
        s->group = g;
        s->request.prompt = a->prompts[i / n].ids;
        s->request.n_prompt = a->prompts[i / n].n;
        s->request.max_tokens = ls_ask_room(a, limits, i / n);
        s->request.slot = -1;
        s->request.prompt_i = a->first_prompt + (uint32_t)(i / n);
        s->request.sample_i = a->first_sample + (uint32_t)(i % n);
    }
    return LS_OK;
}

ls_status ls_group_create(ls_group **out, const ls_group_shop *shop, ls_client *client, uint64_t number, ls_ask *ask,
                          const ls_ask_limits *limits, bool *is_own, ls_error *err) {
    ls_group *g = calloc(1, sizeof *g);
    ls_status status;
    *out = NULL;
    *is_own = true;
    if (g == NULL) {
        ls_ask_free(ask);
        return LS_FAIL(err, LS_ERR_NOMEM, "request");
    }
    g->shop = shop;
    g->ask = ask;
    g->client = client;
    g->holding = (ls_holding){shop->quota, client->key != NULL ? &client->account : NULL, 0};
    g->n_samples = ls_ask_samples(ask);
    g->born_s = ls_clock_seconds();
    g->created = (int64_t)time(NULL);
    g->number = number;
    g->sampling = ask->sampling;
    g->token_bytes = result_bytes(ask) + (tells_at_end(ask) ? sent_bytes(ask) : 0);
    if (!ask->has_seed) {
        const ls_philox draw = ls_philox_draw(shop->seed, 7, 0, (uint32_t)(number >> 32), (uint32_t)number);
        g->sampling.seed = ((uint64_t)draw.word[0] << 32 | draw.word[1]) >> 1; /* one that JSON readers have */
    }
    snprintf(g->name, sizeof g->name, "%s-%016llx%08llx", ask->kind == LS_ASK_CHAT ? "chatcmpl" : "cmpl",
             (unsigned long long)shop->seed, (unsigned long long)number);
    LS_TRY_DONE(count_group(g, is_own, err));
    *is_own = true;
    if (ask->n_stop > 0 && shop->stop_tokens == NULL) {
        if (err != NULL) *err = shop->stop_error;
        status = shop->stop_error.status;
        goto done;
    }
    if (ask->n_stop > 0)
        LS_TRY_DONE(ls_stop_create_with(&g->stop, shop->stop_tokens, (const char *const *)ask->stop, ask->n_stop, err));
    LS_TRY_DONE(make_samples(g, limits, err));
    *out = g;
    g = NULL;
done:
    ls_group_free(g);
    return status;
}
