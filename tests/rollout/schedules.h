/* Random schedules of the engine: levers and a sequence of operations, both drawn from a seed, run on a small fixture
 * and judged by the oracle in raw bits. Used by the property test and by the soak program. */
#ifndef LS_TESTS_SCHEDULES_H
#define LS_TESTS_SCHEDULES_H

#include "base/rng.h"
#include "oracle.h"
#include "rollout/engine_state.h"

#define FIXTURES 14
#define HEAD_STATES 9 /* the first fixture whose states are of heads; so are all behind it */
#define PROMPTS 16
#define PROMPT_MAX 12
#define SAMPLES 4
#define TOKENS_MAX 6 /* of a completion */
#define LENGTH_MAX (PROMPT_MAX + TOKENS_MAX)
#define DISTRIBUTIONS 4
#define NODES 1093       /* of a ternary tree: sequences of 0 to TOKENS_MAX versions; 3 n + 1 + v continues n with v */
#define TICKS_MAX 100000 /* no schedule takes nearly as many */

static const char *const fixture_names[FIXTURES] = {
    "jamba-odd",        "jamba-nobias", "jamba-moe",    "jamba-dense",        "mamba-odd",
    "llama-odd",        "qwen3-small",  "qwen2-window", "falcon-mamba-small", "mamba2-odd",
    "nemotron-h-small", "bamba-small",  "qwen3.5-odd",  "granite-moe-small"};

static const distribution distributions[DISTRIBUTIONS] = {
    {{.temperature = 1.0f, .top_p = 1.0f, .seed = 31}, LS_LOGPROB_RAW, {.repetition = 0}},
    {{.temperature = 0.7f, .top_k = 20, .top_p = 0.9f, .min_p = 0.01f, .seed = 32},
     LS_LOGPROB_PROCESSED,
     {.repetition = 0}},
    {{.temperature = 0.0f, .top_p = 1.0f}, LS_LOGPROB_RAW, {.repetition = 0}},
    {{.temperature = 0.9f, .top_k = 30, .top_p = 0.95f, .seed = 33}, LS_LOGPROB_RAW, {1.3f, 0.4f, 0.7f}},
};

/* ---- what schedules are run with ---- */

/* Token behind a prompt and the tokens that earlier versions drew. */
typedef struct known {
    int32_t token; /* -1: not computed yet */
    float logprob;
} known;

typedef struct prompt {
    int32_t token[PROMPT_MAX];
    int64_t n;
} prompt;

typedef struct laboratory {
    ls_device *device, *generic; /* the engine's, by the isa lever; the oracle has the first */
    versions model[FIXTURES];
    alone alone[FIXTURES][2]; /* by activation type */
    prompt prompts[PROMPTS];
    known *known;                 /* [FIXTURES][2][DISTRIBUTIONS][PROMPTS][SAMPLES][NODES] */
    int64_t (*allocations)(void); /* so far; NULL: nobody counts */
    /* Negative controls: the oracle's log-probability of this prompt's second token is another one; or, instead, its
     * submission ends the process. -1: none. */
    int planted_prompt;
    bool planted_abort;
} laboratory;

/* Seeded draws one after the other. */
typedef struct dice {
    uint64_t seed;
    uint32_t n;
} dice;

static inline int64_t roll(dice *d, int64_t sides) {
    return (int64_t)(ls_philox_draw(d->seed, d->n++, 0x5C4ED, 0, 0).word[0] % (uint64_t)sides);
}

/* A family: prompts 0 and 1 are one token, 2 is another, 5 repeats 4, and the others continue or leave what comes
 * before them, so that prefixes of all lengths are shared. */
static inline void draw_prompts(prompt *p, int32_t vocab) {
    dice d = {7, 0};
    for (int i = 0; i < PROMPTS; i++) {
        const prompt *from = i > 2 ? &p[3 + roll(&d, i > 3 ? i - 3 : 1)] : &p[0];
        int64_t n = i < 3 ? 1 : 2 + roll(&d, PROMPT_MAX - 1), kept = i > 3 ? roll(&d, from->n + 1) : 0;
        if (i == 4) n = 9, kept = 0;
        for (int64_t t = 0; t < n; t++) p[i].token[t] = t < kept ? from->token[t] : (int32_t)roll(&d, vocab);
        p[i].n = n;
    }
    p[1] = p[0];
    p[5] = p[4];
}

/* weights: whose to read too; NULL opens them. */
static inline void laboratory_open(laboratory *lab, int32_t threads, const laboratory *weights) {
    int64_t n = (int64_t)FIXTURES * 2 * DISTRIBUTIONS * PROMPTS * SAMPLES * NODES;
    int32_t vocab = INT32_MAX;
    *lab = (laboratory){.planted_prompt = -1};
    lab->device = test_device(threads, ls_isa_best());
    lab->generic = test_device(1, LS_ISA_GENERIC);
    for (int f = 0; f < FIXTURES; f++) {
        const ls_model *model;
        if (weights != NULL)
            lab->model[f] = weights->model[f];
        else
            versions_open(&lab->model[f], fixture_names[f]);
        model = lab->model[f].model[0];
        if (model->config.vocab < vocab) vocab = model->config.vocab;
        alone_open(&lab->alone[f][0], model, lab->device, LS_F32, LENGTH_MAX);
        alone_open(&lab->alone[f][1], model, lab->device, LS_BF16, LENGTH_MAX);
    }
    draw_prompts(lab->prompts, vocab);
    lab->known = malloc((size_t)n * sizeof *lab->known);
    for (int64_t i = 0; i < n; i++) lab->known[i].token = -1;
}

static inline void laboratory_close(laboratory *lab, bool weights) {
    free(lab->known);
    for (int f = 0; f < FIXTURES; f++) {
        alone_close(&lab->alone[f][0]);
        alone_close(&lab->alone[f][1]);
        if (weights) versions_close(&lab->model[f]);
    }
    test_device_close(lab->generic);
    test_device_close(lab->device);
}

/* ---- a schedule ---- */

typedef enum op_kind { OP_SUBMIT = 0, OP_TICK, OP_CANCEL, OP_PREEMPT, OP_WEIGHTS, OP_SLEEP } op_kind;

typedef struct operation {
    op_kind kind;
    int32_t prompt, sample;      /* submit, cancel */
    int32_t max_tokens, stop_at; /* submit: stop_at > 0 ends it by callback at that length */
    int32_t priority;            /* submit */
    int32_t n;                   /* ticks; how to preempt; version of the weights */
} operation;

typedef struct schedule {
    uint64_t seed;
    int fixture, distribution;
    ls_dtype dtype;
    bool generic;
    int64_t length_max;
    int32_t n_stop, stop_first; /* tokens stop_first.. end a completion */
    ls_levers levers;
    bool foretold;  /* drafts are what the oracle knows, with mistakes; else they are looked up */
    bool unmakable; /* its engine is refused: never, of those that are drawn */
    operation *ops;
    int64_t n_ops;
} schedule;

static inline bool one_in(dice *d, int64_t n) { return roll(d, n) == 0; }

/* Every second schedule has drafts, half of these on any fixture. */
static inline void draw_drafts(schedule *s, int64_t *drafts) {
    dice d = {s->seed, 1 << 20};
    *drafts = 0;
    if (one_in(&d, 2)) return;
    *drafts = 1 + roll(&d, LS_DRAFTS_MAX);
    s->foretold = !one_in(&d, 3);
    if (one_in(&d, 2)) s->fixture = (int)roll(&d, FIXTURES);
}

/* Half of those that write states late do so on a fixture that can. */
static inline void draw_state_every(schedule *s, int64_t *every) {
    static const int64_t all[] = {0, 1, 2, 4, 8, LS_STATE_EVERY_MAX};
    dice d = {s->seed, 1 << 21};
    *every = all[roll(&d, 6)];
    if (*every > 1 && one_in(&d, 2)) s->fixture = HEAD_STATES + (int)roll(&d, FIXTURES - HEAD_STATES);
}

/* slot: bytes of a layer's slot. */
static inline void draw_levers(ls_levers *l, const ls_model_config *c, int64_t slot, int64_t length_max, dice *d) {
    int64_t n_mamba = 0, pages;
    for (int32_t i = 0; i < c->n_layers; i++) n_mamba += ls_config_has_slots(c, i);
    l->threads = 1;
    l->batch = 1 + roll(d, 6);
    l->chunk = roll(d, 8);
    if (one_in(d, 3)) l->tick_tokens = l->batch + roll(d, 8);
    l->page_tokens = (int64_t)1 << roll(d, 5);
    pages = (length_max + l->page_tokens - 1) / l->page_tokens;
    if (one_in(d, 3)) l->slots = 1 + roll(d, l->batch + 3);
    if (!one_in(d, 4)) l->pages = pages + (one_in(d, 3) ? 0 : roll(d, pages * l->batch));
    if (one_in(d, 12) && pages > 1) l->pages = pages - 1; /* the longest requests are refused */
    if (one_in(d, 10)) l->pool_share = 0.75;
    l->policy = (ls_policy)roll(d, LS_POLICY_COUNT);
    l->policy_seed = (uint64_t)roll(d, 100);
    if (one_in(d, 3) && l->slots > 0 && l->pool_share == 1.0) l->slot_base = roll(d, l->slots);
    if (one_in(d, 3)) l->slot_permutation = (uint64_t)roll(d, 1000);
    l->prefix = one_in(d, 3) ? LS_PREFIX_OFF : LS_PREFIX_ON;
    if (one_in(d, 2)) l->snapshot_every = 1 + roll(d, 5);
    if (one_in(d, 2)) l->prefix_bytes = (1 + roll(d, 6)) * slot * n_mamba;
    l->verify = one_in(d, 2) ? 0 : one_in(d, 2) ? 1 : 0.5;
    l->fork = !one_in(d, 3);
    if (one_in(d, 3)) l->preempt_every = 1 + roll(d, 4);
    l->preempt_by = (ls_preempt_by)roll(d, 3);
    l->poison = !one_in(d, 4);
    l->guards = !one_in(d, 4);
    if (one_in(d, 6)) l->slot_words = (slot + 64) / 4 + 16 * roll(d, one_in(d, 2) ? 4 : 1000);
}

/* The n-th operation. Few prompts are in play at a time, so that they meet. */
static inline operation draw_operation(dice *d, const operation *before, int64_t n, const int32_t *prompts,
                                       int64_t n_prompts) {
    const int64_t which = roll(d, 100);
    operation op = {OP_SUBMIT, 0, 0, 0, 0, 0, 0};
    if (n == 0 || which < 50) {
        op.prompt = prompts[roll(d, n_prompts)];
        op.sample = (int32_t)roll(d, SAMPLES);
        op.max_tokens = (int32_t)roll(d, TOKENS_MAX + 1);
        if (one_in(d, 8)) op.stop_at = 1 + (int32_t)roll(d, TOKENS_MAX);
        if (one_in(d, 4)) op.priority = (int32_t)roll(d, 4) - 1;
    } else if (which < 80) {
        op.kind = OP_TICK;
        op.n = 1 + (int32_t)roll(d, 4);
    } else if (which < 87) {
        op = before[roll(d, n)]; /* a submission, or else the first one */
        if (op.kind != OP_SUBMIT) op = before[0];
        op.kind = OP_CANCEL;
    } else if (which < 94) {
        op.kind = OP_PREEMPT;
        op.n = (int32_t)roll(d, 3);
    } else if (which < 98) {
        op.kind = OP_WEIGHTS;
        op.n = (int32_t)roll(d, VERSIONS);
    } else {
        op.kind = OP_SLEEP;
    }
    return op;
}

/* Fills s but for ops, which holds n_ops. */
static inline void draw_schedule(schedule *s, const laboratory *lab, uint64_t seed, operation *ops, int64_t n_ops) {
    dice d = {seed, 0};
    const int64_t which = roll(&d, 20), n_prompts = 1 + roll(&d, 5);
    const ls_model_config *c;
    int32_t prompts[5];
    int64_t drafts, every;
    memset(s, 0, sizeof *s);
    s->seed = seed;
    s->fixture = which < 9 ? 0 : which < 17 ? 1 : which < 19 ? 2 : 3;
    s->dtype = one_in(&d, 2) ? LS_F32 : LS_BF16;
    s->distribution = (int)roll(&d, DISTRIBUTIONS);
    s->generic = one_in(&d, 8);
    s->length_max = one_in(&d, 4) ? LENGTH_MAX / 2 + roll(&d, LENGTH_MAX / 2) : LENGTH_MAX;
    if (one_in(&d, 2)) s->n_stop = 1 + (int32_t)roll(&d, 8);
    s->stop_first = (int32_t)roll(&d, 50);
    draw_drafts(s, &drafts);
    draw_state_every(s, &every);
    c = &lab->model[s->fixture].model[0]->config;
    ls_levers_init(&s->levers);
    s->levers.state_every = every;
    every = ls_levers_state_every(&s->levers, c, lab->device);
    draw_levers(&s->levers, c, ls_slot_bytes(c, s->dtype, every), s->length_max, &d);
    s->levers.drafts = drafts;
    for (int64_t i = 0; i < n_prompts; i++) prompts[i] = (int32_t)roll(&d, PROMPTS);
    s->ops = ops;
    s->n_ops = n_ops;
    for (int64_t i = 0; i < n_ops; i++) ops[i] = draw_operation(&d, ops, i, prompts, n_prompts);
}

/* ---- running one ---- */

typedef struct submitted {
    ls_request request;
    int32_t stop_at;
    bool accepted, cancelled;
    int32_t completion[TOKENS_MAX];
    float logprob[TOKENS_MAX];
    uint64_t weights[TOKENS_MAX];
} submitted;

/* What many schedules did together: shows that they met what they are there for. */
typedef struct counts {
    int64_t schedules, submitted, refused, finished, cancelled, stopped, tokens, mixed; /* of several versions */
    int64_t recomputed, swapped, forked, hits, verified, evicted, sleeps, updates;
    int64_t proposed, taken; /* drafts */
} counts;

static inline void add_counts(counts *to, const counts *from) {
    const int64_t *x = (const int64_t *)from;
    int64_t *sum = (int64_t *)to;
    for (size_t i = 0; i < sizeof *to / sizeof *sum; i++) sum[i] += x[i];
}

static inline void print_counts(const counts *t) {
    printf(
        "%lld schedules: %lld requests (%lld refused, %lld cancelled, %lld stopped), %lld tokens, %lld completions of "
        "several versions\n",
        (long long)t->schedules, (long long)t->submitted, (long long)t->refused, (long long)t->cancelled,
        (long long)t->stopped, (long long)t->tokens, (long long)t->mixed);
    printf(
        "%lld recomputed, %lld swapped, %lld forked, %lld hits, %lld verified, %lld evicted, %lld sleeps, %lld "
        "updates, %lld of %lld drafts taken\n",
        (long long)t->recomputed, (long long)t->swapped, (long long)t->forked, (long long)t->hits,
        (long long)t->verified, (long long)t->evicted, (long long)t->sleeps, (long long)t->updates, (long long)t->taken,
        (long long)t->proposed);
}

typedef struct run {
    laboratory *lab;
    const schedule *s;
    ls_engine *engine;
    submitted *requests; /* [n_ops] */
    int64_t n_requests;
    int64_t allocations; /* of the oracle, in a tick */
    char *text;          /* what was wrong first; empty: nothing */
    size_t bytes;
} run;

#define WRONG(r, ...) (snprintf((r)->text, (r)->bytes, __VA_ARGS__), false)

static inline const known *look_up(const run *r, const submitted *q, int64_t n) {
    laboratory *lab = r->lab;
    const schedule *s = r->s;
    const uint32_t p = q->request.prompt_i, sample = q->request.sample_i;
    const prompt *from = &lab->prompts[p];
    const int64_t setting = (s->fixture * 2 + (s->dtype == LS_BF16)) * DISTRIBUTIONS + s->distribution;
    const int64_t at = (setting * PROMPTS + (int64_t)p) * SAMPLES + (int64_t)sample;
    known *all = lab->known + at * NODES, *found = all;
    int32_t tokens[LENGTH_MAX];
    int64_t node = 0;
    memcpy(tokens, from->token, sizeof from->token);
    for (int64_t t = 0; t <= n; t++) {
        const uint64_t v = q->weights[t];
        const ls_draw draw = {p, sample, (uint32_t)(from->n + t)};
        ls_error err;
        if (v >= VERSIONS) return NULL;
        node = 3 * node + 1 + (int64_t)v;
        found = &all[node];
        if (found->token < 0) {
            const ls_status status = alone_next_behind(
                &lab->alone[s->fixture][s->dtype == LS_BF16], lab->model[s->fixture].model[v], tokens, from->n,
                from->n + t, 0, &distributions[s->distribution], &draw, &found->token, &found->logprob, &err);
            LS_ASSERT(status == LS_OK, "%s", err.text);
        }
        tokens[from->n + t] = found->token;
    }
    return found;
}

/* The tokens that are to come, every fourth of them wrong. */
static inline int64_t foretell(void *context, const ls_request *request, int64_t most, int32_t *out) {
    run *r = context;
    const int64_t before = r->lab->allocations != NULL ? r->lab->allocations() : 0, n = request->n_completion;
    const int32_t vocab = r->engine->model->config.vocab;
    dice d = {r->s->seed, (uint32_t)(2000000 + 1000 * (request->prompt_i * SAMPLES + request->sample_i) + 50 * n)};
    submitted future = {.request = *request};
    if (one_in(&d, 4)) return 0;
    most = 1 + roll(&d, most);
    memcpy(future.weights, request->weights, (size_t)n * sizeof *future.weights);
    for (int64_t i = 0; i < most; i++) {
        future.weights[n + i] = r->engine->key.weights;
        out[i] = (look_up(r, &future, n + i)->token + (one_in(&d, 4) ? 1 : 0)) % vocab;
    }
    if (r->lab->allocations != NULL) r->allocations += r->lab->allocations() - before;
    return most;
}

static inline bool is_end(const schedule *s, const submitted *q, int64_t t) {
    const int32_t token = q->completion[t];
    return (token >= s->stop_first && token < s->stop_first + s->n_stop) || q->stop_at == t + 1;
}

static inline bool check_request(const run *r, const submitted *q, counts *total) {
    const ls_request *x = &q->request;
    const unsigned p = x->prompt_i, sample = x->sample_i;
    const int64_t n = x->n_completion;
    const bool ended = n > 0 && is_end(r->s, q, n - 1);
    bool mixed = false;
    for (int64_t t = 0; t < n; t++) {
        const known *want = look_up(r, q, t);
        float logprob;
        if (want == NULL)
            return WRONG(r, "prompt %u, sample %u: token %lld is of version %llu", p, sample, (long long)t,
                         (unsigned long long)q->weights[t]);
        logprob = want->logprob;
        if (r->lab->planted_prompt == (int)p && t == 1) logprob = -logprob;
        if (q->completion[t] != want->token || memcmp(&q->logprob[t], &logprob, sizeof logprob) != 0)
            return WRONG(r,
                         "prompt %u, sample %u: token %lld is %d with log-probability %a, alone %d with %a (weights "
                         "version %llu)",
                         p, sample, (long long)t, q->completion[t], (double)q->logprob[t], want->token, (double)logprob,
                         (unsigned long long)q->weights[t]);
        if (t < n - 1 && is_end(r->s, q, t))
            return WRONG(r, "prompt %u, sample %u: went on after token %lld", p, sample, (long long)t);
        mixed = mixed || q->weights[t] != q->weights[0];
    }
    if (x->finish != (q->cancelled ? LS_FINISH_CANCEL
                      : ended      ? LS_FINISH_STOP
                                   : LS_FINISH_LENGTH) ||
        (x->finish == LS_FINISH_LENGTH && n != x->max_tokens))
        return WRONG(r, "prompt %u, sample %u: ends with '%s' after %lld of %lld tokens", p, sample,
                     ls_finish_name(x->finish), (long long)n, (long long)x->max_tokens);
    total->tokens += n;
    total->mixed += mixed;
    total->finished++;
    total->stopped += x->finish == LS_FINISH_STOP;
    total->cancelled += x->finish == LS_FINISH_CANCEL;
    return true;
}

static inline submitted *find_live(const run *r, int32_t p, int32_t sample) {
    for (int64_t i = 0; i < r->n_requests; i++) {
        submitted *q = &r->requests[i];
        if (q->accepted && q->request.finish == LS_FINISH_NONE && q->request.prompt_i == (uint32_t)p &&
            q->request.sample_i == (uint32_t)sample)
            return q;
    }
    return NULL;
}

static inline bool stop_at_length(void *context, const int32_t *completion, int64_t n) {
    const submitted *q = context;
    return completion == q->completion && n == q->stop_at;
}

static inline bool submit(run *r, const operation *op, counts *total) {
    const prompt *from = &r->lab->prompts[op->prompt];
    const int64_t length = from->n + op->max_tokens, each = r->s->levers.page_tokens;
    const ls_penalties *penalties = &distributions[r->s->distribution].penalties;
    submitted *q = &r->requests[r->n_requests++];
    bool fits;
    ls_engine_plan plan;
    ls_error err;
    ls_engine_get_plan(r->engine, &plan);
    fits = length <= r->s->length_max && (length + each - 1) / each <= plan.pages;
    if (r->lab->planted_abort && op->prompt == r->lab->planted_prompt) abort();
    memset(q, 0, sizeof *q);
    q->stop_at = op->stop_at;
    q->request = (ls_request){.prompt = from->token,
                              .n_prompt = from->n,
                              .prompt_i = (uint32_t)op->prompt,
                              .sample_i = (uint32_t)op->sample,
                              .max_tokens = op->max_tokens,
                              .penalties = penalties->repetition > 0 ? penalties : NULL,
                              .priority = op->priority,
                              .stop = op->stop_at > 0 ? stop_at_length : NULL,
                              .stop_context = q,
                              .completion = q->completion,
                              .logprob = q->logprob,
                              .weights = q->weights};
    if (find_live(r, op->prompt, op->sample) != NULL) fits = false;
    q->accepted = ls_engine_submit(r->engine, &q->request, &err) == LS_OK;
    total->submitted++;
    total->refused += !q->accepted;
    if (q->accepted != fits)
        return WRONG(r, "prompt %d, sample %d was %s%s", op->prompt, op->sample,
                     q->accepted ? "accepted" : "refused: ", q->accepted ? "" : err.text);
    return true;
}

static inline bool tick(run *r) {
    const int64_t before = r->lab->allocations != NULL ? r->lab->allocations() : 0;
    ls_error err;
    ls_status status;
    r->allocations = 0;
    status = ls_engine_tick(r->engine, &err);
    if (status != LS_OK) return WRONG(r, "tick: %s", err.text);
    if (r->lab->allocations != NULL && r->lab->allocations() != before + r->allocations)
        return WRONG(r, "%lld allocations in a tick", (long long)(r->lab->allocations() - before - r->allocations));
    if (r->engine->prefix != NULL) ls_prefix_check(r->engine->prefix);
    return true;
}

static inline bool apply(run *r, const operation *op, counts *total) {
    submitted *q;
    ls_error err;
    switch (op->kind) {
        case OP_SUBMIT: return submit(r, op, total);
        case OP_TICK:
            for (int32_t i = 0; i < op->n; i++)
                if (!tick(r)) return false;
            return true;
        case OP_CANCEL:
            q = find_live(r, op->prompt, op->sample);
            if (q == NULL) return true;
            q->cancelled = true;
            if (ls_engine_cancel(r->engine, &q->request, &err) != LS_OK) return WRONG(r, "cancel: %s", err.text);
            return true;
        case OP_PREEMPT: ls_engine_preempt(r->engine, (ls_preempt_by)op->n); return true;
        case OP_WEIGHTS:
            total->updates++;
            if (ls_engine_set_weights(r->engine, r->lab->model[r->s->fixture].model[op->n], (uint64_t)op->n, &err) !=
                LS_OK)
                return WRONG(r, "weights: %s", err.text);
            return true;
        case OP_SLEEP:
            total->sleeps++;
            if (ls_engine_sleep(r->engine, &err) != LS_OK) return WRONG(r, "sleep: %s", err.text);
            if (ls_engine_wake(r->engine, &err) != LS_OK) return WRONG(r, "wake: %s", err.text);
            return true;
    }
    return WRONG(r, "operation %d", (int)op->kind);
}

static inline bool run_operations(run *r, counts *total) {
    for (int64_t i = 0; i < r->s->n_ops; i++)
        if (!apply(r, &r->s->ops[i], total)) return false;
    for (int64_t i = 0; ls_engine_unfinished(r->engine) > 0; i++) {
        if (i == TICKS_MAX) return WRONG(r, "no end after %d ticks", TICKS_MAX);
        if (!tick(r)) return false;
    }
    for (int64_t i = 0; i < r->n_requests; i++)
        if (r->requests[i].accepted && !check_request(r, &r->requests[i], total)) return false;
    return true;
}

/* Runs a schedule from nothing to an idle engine; false with what was wrong first. A broken invariant of the engine
 * ends the process. */
static inline bool run_schedule(laboratory *lab, const schedule *s, counts *total, char *text, size_t bytes) {
    run r = {.lab = lab, .s = s, .text = text, .bytes = bytes};
    int32_t stop[8];
    const distribution *d = &distributions[s->distribution];
    const ls_engine_opts opts = {.dtype = s->dtype,
                                 .levers = s->levers,
                                 .length_max = s->length_max,
                                 .logprob_of = d->of,
                                 .sampling = d->sampling,
                                 .penalizes = d->penalties.repetition > 0,
                                 .stop = stop,
                                 .n_stop = s->n_stop};
    ls_engine_stats stats;
    ls_error err;
    bool good;
    for (int32_t i = 0; i < s->n_stop; i++) stop[i] = s->stop_first + i;
    if (ls_engine_create(&r.engine, lab->model[s->fixture].model[0], s->generic ? lab->generic : lab->device, &opts,
                         &err) != LS_OK)
        return WRONG(&r, "engine: %s", err.text);
    if (s->foretold) {
        r.engine->drafter = foretell;
        r.engine->drafter_context = &r;
    }
    r.requests = calloc((size_t)s->n_ops + 1, sizeof *r.requests);
    good = run_operations(&r, total);
    if (good) ls_engine_check_idle(r.engine);
    ls_engine_get_stats(r.engine, &stats);
    total->schedules++;
    total->recomputed += stats.preempted_recompute;
    total->swapped += stats.preempted_swap;
    total->forked += stats.forked;
    total->verified += stats.verified;
    total->hits += stats.prefix.hits;
    total->evicted += stats.prefix.snapshots_evicted;
    total->proposed += stats.drafts_proposed;
    total->taken += stats.drafts_accepted;
    ls_engine_free(r.engine);
    free(r.requests);
    return good;
}

#endif
