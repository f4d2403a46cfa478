/* The ladder: prompts made from the given ones, and the settings of every experiment. The baseline is as small as can
 * be: one sequence at a time, chunks as short as the convolution's memory, one slot, no cache, raw log-probabilities.
 */
#include "diagnose/bits/sweep_ladder.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

typedef struct rung {
    const char *name, *text;
    ls_prompt_set set;
    ls_experiment baseline;
} rung;

#define NONE LS_EXPERIMENTS

/* Probes draw from a flat distribution: a model that is sure of its next token would draw the same one whatever is
 * wrong with its state, with a log-probability near 0. Raw records are of temperature 1 all the same. */
#define PROBE_TEMPERATURE 4.0f

static const rung rungs[LS_EXPERIMENTS] = {
    [LS_TRY_GIVEN] = {"given", "the prompts as given, levers at their defaults", LS_SET_GIVEN, NONE},
    [LS_TRY_SOLO] = {"solo", "baseline: one sequence at a time, short chunks, one slot, no cache", LS_SET_PLAIN, NONE},
    [LS_TRY_AGAIN] = {"again", "the baseline once more", LS_SET_PLAIN, LS_TRY_SOLO},
    [LS_TRY_FIRST] = {"first-token", "completions of one token: nothing is decoded", LS_SET_PLAIN, NONE},
    [LS_TRY_WHOLE] = {"whole", "prompts in one chunk", LS_SET_PLAIN, LS_TRY_SOLO},
    [LS_TRY_CHUNK1] = {"chunk-1", "chunks of one token", LS_SET_PLAIN, LS_TRY_SOLO},
    [LS_TRY_CHUNK1_FRESH] = {"chunk-1-fresh", "chunks of one token, no slot used twice", LS_SET_PLAIN, LS_TRY_SOLO},
    [LS_TRY_CHUNK1_POISON] = {"chunk-1-poison", "chunks of one token, free slots hold NaN", LS_SET_PLAIN, LS_TRY_SOLO},
    [LS_TRY_CHUNK2] = {"chunk-2", "chunks of two tokens", LS_SET_PLAIN, LS_TRY_SOLO},
    [LS_TRY_CHUNK2_FIRST] = {"chunk-2-first-token", "chunks of two tokens, nothing is decoded", LS_SET_PLAIN, NONE},
    [LS_TRY_SINGLE] = {"single-token", "prompts of one token, slot reused", LS_SET_SINGLE, NONE},
    [LS_TRY_PAIR] = {"pair", "two sequences at a time", LS_SET_PLAIN, LS_TRY_SOLO},
    [LS_TRY_BATCH] = {"batch", "eight sequences at a time", LS_SET_PLAIN, LS_TRY_SOLO},
    [LS_TRY_SOLO_ATTENTION] = {"solo-attention", "attention layers only", LS_SET_PLAIN, NONE},
    [LS_TRY_BATCH_ATTENTION] = {"batch-attention", "attention layers only, eight sequences at a time", LS_SET_PLAIN,
                                NONE},
    [LS_TRY_SLOTS] = {"slots", "64 slots, first slot 17", LS_SET_PLAIN, LS_TRY_SOLO},
    [LS_TRY_POISON] = {"poison", "free slots and pages hold NaN, guards behind them", LS_SET_PLAIN, LS_TRY_SOLO},
    [LS_TRY_PAGE] = {"page", "KV pages of one token", LS_SET_PLAIN, LS_TRY_SOLO},
    [LS_TRY_THREADS] = {"threads", "another number of threads", LS_SET_PLAIN, LS_TRY_SOLO},
    [LS_TRY_ISA] = {"isa", "the generic instruction set", LS_SET_PLAIN, LS_TRY_SOLO},
    [LS_TRY_REPEATS] = {"repeats", "every prompt twice, no cache", LS_SET_REPEATS, NONE},
    [LS_TRY_REPEATS_CACHED] = {"repeats-cached", "every prompt twice, prefix cache on", LS_SET_REPEATS, LS_TRY_REPEATS},
    [LS_TRY_SHARED] = {"shared", "prompts with a common beginning, no cache", LS_SET_SHARED, NONE},
    [LS_TRY_SHARED_CACHED] = {"shared-cached", "prompts with a common beginning, prefix cache on", LS_SET_SHARED,
                              LS_TRY_SHARED},
    [LS_TRY_ROUNDS_CACHED] = {"rounds-cached", "two rounds in one engine, prefix cache on", LS_SET_PLAIN, NONE},
    [LS_TRY_UPDATE] = {"update", "new weights before the second round, no cache", LS_SET_PLAIN, NONE},
    [LS_TRY_UPDATE_CACHED] = {"update-cached", "new weights before the second round, prefix cache on", LS_SET_PLAIN,
                              LS_TRY_UPDATE},
    [LS_TRY_FORK] = {"fork", "four samples that share a prefill", LS_SET_PLAIN, NONE},
    [LS_TRY_RECOMPUTE] = {"preempt-recompute", "preemption every third tick, computed again", LS_SET_PLAIN,
                          LS_TRY_SOLO},
    [LS_TRY_SWAP] = {"preempt-swap", "preemption every third tick, swapped out", LS_SET_PLAIN, LS_TRY_SOLO},
    [LS_TRY_PROCESSED] = {"processed", "processed log-probabilities, temperature 1", LS_SET_PLAIN, NONE},
    [LS_TRY_TEMPERATURE_RAW] = {"temperature-raw", "raw log-probabilities, temperature 0.7", LS_SET_PLAIN, NONE},
    [LS_TRY_TEMPERATURE] = {"temperature", "processed log-probabilities, temperature 0.7", LS_SET_PLAIN,
                            LS_TRY_TEMPERATURE_RAW},
    [LS_TRY_FAR] = {"far-slots", "a large pool, its last slot", LS_SET_PLAIN, LS_TRY_SOLO},
    [LS_TRY_FAR_HALF] = {"far-slots-half", "half of that pool, its last slot", LS_SET_PLAIN, LS_TRY_SOLO},
    [LS_TRY_FAR_ATTENTION] = {"far-slots-attention", "the last slot of the large pool, attention layers only",
                              LS_SET_PLAIN, LS_TRY_SOLO_ATTENTION},
    [LS_TRY_FAR_CHUNK1] = {"far-slots-chunk-1", "the last slot of the large pool, chunks of one token", LS_SET_PLAIN,
                           LS_TRY_SOLO},
    [LS_TRY_FAR_PAGES] = {"far-pages", "a large pool of KV pages, its last pages", LS_SET_PLAIN, LS_TRY_SOLO},
};

const char *ls_experiment_name(ls_experiment experiment) { return rungs[experiment].name; }
const char *ls_experiment_text(ls_experiment experiment) { return rungs[experiment].text; }
ls_prompt_set ls_ladder_set(ls_experiment experiment) { return rungs[experiment].set; }
ls_experiment ls_ladder_baseline(ls_experiment experiment) { return rungs[experiment].baseline; }

/* float32 agrees to about 1e-6 however sums are ordered, bf16 activations to about 1e-2; both with room. */
double ls_ladder_noise(ls_dtype dtype) { return dtype == LS_F32 ? 1e-3 : 0.25; }

/* ---- prompts ---- */

/* Token number i of the given prompts, one behind the other, again and again. */
static int32_t given_token(const ls_sweep_opts *o, int64_t i) {
    int64_t total = 0;
    for (int64_t p = 0; p < o->n_prompts; p++) total += o->prompts[p].n;
    i %= total;
    for (int64_t p = 0;; p++) {
        if (i < o->prompts[p].n) return o->prompts[p].ids[i];
        i -= o->prompts[p].n;
    }
}

/* A token that none of ids [n] is, near `token`. */
static int32_t unlike(int32_t token, const int32_t *ids, int64_t n, int32_t vocab) {
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] != token) continue;
        token = (token + 1) % vocab;
        i = -1;
    }
    return token;
}

/* [16][32] tokens: different ones in front, then the given ones on. */
static void make_long(int32_t *tokens, const ls_sweep_opts *o, int32_t vocab) {
    int32_t first[LS_LONG_PROMPTS];
    for (int64_t p = 0; p < LS_LONG_PROMPTS; p++) {
        int32_t *row = tokens + p * LS_LONG_TOKENS;
        for (int64_t i = 0; i < LS_LONG_TOKENS; i++) row[i] = given_token(o, p * LS_LONG_TOKENS + i);
        row[0] = first[p] = p < vocab ? unlike(row[0], first, p, vocab) : row[0];
    }
}

/* [8][12] tokens: 6 in common, a different one, then the given ones on. */
static void make_shared(int32_t *tokens, const ls_sweep_opts *o, int32_t vocab) {
    int32_t seventh[8];
    for (int64_t p = 0; p < 8; p++) {
        int32_t *row = tokens + p * LS_PLAIN_TOKENS;
        for (int64_t i = 0; i < LS_PLAIN_TOKENS; i++) row[i] = given_token(o, i < 6 ? i : 8 * p + i);
        row[6] = seventh[p] = p < vocab ? unlike(row[6], seventh, p, vocab) : row[6];
    }
}

ls_status ls_ladder_create(ls_ladder *out, const ls_sweep_opts *opts, const ls_model_config *config, ls_error *err) {
    static const int64_t counts[LS_SETS] = {0, 8, 1, 8, 8, 8, LS_LONG_PROMPTS};
    const int32_t *longs, *shared;
    const int64_t page = ls_page_bytes(config, opts->dtype, 64) / ls_dtype_bytes(opts->dtype);
    ls_status status;
    memset(out, 0, sizeof *out);
    out->opts = opts;
    out->config = config;
    for (int32_t i = 0; i < config->n_layers; i++)
        if (config->is_attention[i]) out->far_pages = ((int64_t)1 << 32) / page + 2;
    LS_TRY_DONE(ls_array_alloc((void **)&out->tokens, LS_LONG_PROMPTS * LS_LONG_TOKENS + 8 * LS_PLAIN_TOKENS,
                               sizeof *out->tokens, "prompts", err));
    make_long(out->tokens, opts, config->vocab);
    longs = out->tokens;
    shared = out->tokens + LS_LONG_PROMPTS * LS_LONG_TOKENS;
    make_shared(out->tokens + LS_LONG_PROMPTS * LS_LONG_TOKENS, opts, config->vocab);
    for (int set = 0; set < LS_SETS; set++) {
        out->n_set[set] = set == LS_SET_GIVEN ? opts->n_prompts : counts[set];
        LS_TRY_DONE(ls_array_alloc((void **)&out->set[set], out->n_set[set], sizeof *out->set[set], "prompts", err));
    }
    memcpy(out->set[LS_SET_GIVEN], opts->prompts, (size_t)opts->n_prompts * sizeof *opts->prompts);
    for (int64_t i = 0; i < LS_LONG_PROMPTS; i++)
        out->set[LS_SET_LONG][i] = (ls_prompt){longs + i * LS_LONG_TOKENS, LS_LONG_TOKENS};
    for (int64_t i = 0; i < 8; i++) {
        out->set[LS_SET_PLAIN][i] = (ls_prompt){longs + i * LS_LONG_TOKENS, LS_PLAIN_TOKENS * (1 + i % 2)};
        out->set[LS_SET_SINGLE][i] = (ls_prompt){longs + i * LS_LONG_TOKENS, 1};
        out->set[LS_SET_REPEATS][i] = (ls_prompt){longs + i % 4 * LS_LONG_TOKENS, LS_PLAIN_TOKENS};
        out->set[LS_SET_SHARED][i] = (ls_prompt){shared + i * LS_PLAIN_TOKENS, LS_PLAIN_TOKENS};
    }
    out->set[LS_SET_ONE][0] = out->set[LS_SET_PLAIN][0];
done:
    if (status != LS_OK) ls_ladder_deinit(out);
    return status;
}

void ls_ladder_deinit(ls_ladder *ladder) {
    for (int set = 0; set < LS_SETS; set++) free(ladder->set[set]);
    free(ladder->tokens);
    memset(ladder, 0, sizeof *ladder);
}

/* ---- settings ---- */

/* The cache is large enough that nothing is evicted. */
static void use_cache(ls_levers *l, const ls_ladder *ladder) {
    int64_t slot = 0;
    for (int32_t i = 0; i < ladder->config->n_layers; i++)
        if (!ladder->config->is_attention[i]) slot += ls_slot_bytes(ladder->config, ladder->opts->dtype);
    l->prefix = LS_PREFIX_ON;
    l->prefix_bytes = 64 * slot;
    l->pages = 256;
}

static void go_far(ls_levers *l, const ls_ladder *ladder) {
    l->slots = ladder->opts->far_slots;
    l->slot_words = ladder->opts->far_words;
    l->pages = 256; /* enough of them in half the memory too */
    l->policy = LS_POLICY_HIGHEST;
}

void ls_ladder_numerics(ls_trial *trial, const ls_ladder *ladder, ls_dtype dtype) {
    trial->dtype = dtype;
    trial->profile = dtype == LS_F32 ? LS_PROFILE_EXACT : ladder->opts->profile;
}

void ls_ladder_trial(ls_trial *out, const ls_ladder *ladder, ls_experiment experiment) {
    const ls_sweep_opts *o = ladder->opts;
    ls_levers *l = &out->levers;
    memset(out, 0, sizeof *out);
    ls_ladder_numerics(out, ladder, o->dtype);
    out->sampling = (ls_sampling){.temperature = 1.0f, .top_p = 1.0f, .seed = o->seed};
    out->max_tokens = LS_PROBE_TOKENS;
    out->rounds = 1;
    ls_levers_init(l);
    l->threads = o->threads;
    l->isa = o->isa;
    if (experiment == LS_TRY_GIVEN) {
        l->samples = o->samples;
        out->max_tokens = o->max_tokens;
        return;
    }
    out->sampling.temperature = PROBE_TEMPERATURE;
    l->batch = 1;
    l->chunk = ladder->config->d_conv > 4 ? ladder->config->d_conv - 1 : 3;
    l->tick_tokens = 512;
    l->prefix = LS_PREFIX_OFF;
    l->fork = false;
    switch (experiment) {
        case LS_TRY_FIRST: out->max_tokens = 1; break;
        case LS_TRY_WHOLE: l->chunk = 0; break;
        case LS_TRY_CHUNK1_FRESH: l->slots = 8; /* fall through */
        case LS_TRY_CHUNK1: l->chunk = 1; break;
        case LS_TRY_CHUNK1_POISON:
            l->chunk = 1;
            l->slots = 8;
            l->poison = true;
            break;
        case LS_TRY_CHUNK2_FIRST: out->max_tokens = 1; /* fall through */
        case LS_TRY_CHUNK2: l->chunk = 2; break;
        case LS_TRY_PAIR: l->batch = 2; break;
        case LS_TRY_BATCH_ATTENTION: l->ablation = LS_ATTENTION_ONLY; /* fall through */
        case LS_TRY_BATCH: l->batch = 8; break;
        case LS_TRY_SOLO_ATTENTION: l->ablation = LS_ATTENTION_ONLY; break;
        case LS_TRY_SLOTS:
            l->slots = 64;
            l->slot_base = 17;
            break;
        case LS_TRY_POISON: l->poison = l->guards = true; break;
        case LS_TRY_PAGE: l->page_tokens = 1; break;
        case LS_TRY_THREADS: l->threads = o->threads == 1 ? 2 : 1; break;
        case LS_TRY_ISA: l->isa = LS_ISA_GENERIC; break;
        case LS_TRY_ROUNDS_CACHED: out->rounds = 2; /* fall through */
        case LS_TRY_REPEATS_CACHED:
        case LS_TRY_SHARED_CACHED: use_cache(l, ladder); break;
        case LS_TRY_UPDATE_CACHED: use_cache(l, ladder); /* fall through */
        case LS_TRY_UPDATE:
            out->rounds = 2;
            out->update = true;
            break;
        case LS_TRY_FORK:
            l->batch = l->samples = 4;
            l->fork = true;
            break;
        case LS_TRY_SWAP: l->preempt_by = LS_PREEMPT_SWAP; /* fall through */
        case LS_TRY_RECOMPUTE:
            l->batch = 2;
            l->preempt_every = 3;
            break;
        case LS_TRY_TEMPERATURE: out->logprob_of = LS_LOGPROB_PROCESSED; /* fall through */
        case LS_TRY_TEMPERATURE_RAW: out->sampling.temperature = 0.7f; break;
        case LS_TRY_PROCESSED:
            out->logprob_of = LS_LOGPROB_PROCESSED;
            out->sampling.temperature = 1.0f;
            break;
        case LS_TRY_FAR_HALF: l->pool_share = 0.5; /* fall through */
        case LS_TRY_FAR: go_far(l, ladder); break;
        case LS_TRY_FAR_ATTENTION:
            go_far(l, ladder);
            l->ablation = LS_ATTENTION_ONLY;
            break;
        case LS_TRY_FAR_CHUNK1:
            go_far(l, ladder);
            l->chunk = 1;
            break;
        case LS_TRY_FAR_PAGES:
            l->page_tokens = 64;
            l->pages = ladder->far_pages;
            l->policy = LS_POLICY_HIGHEST;
            break;
        default: break;
    }
}
