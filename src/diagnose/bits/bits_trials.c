/* The experiments as trials: prompts made from the given ones, and the settings of every experiment. The baseline is as
 * small as can
 * be: one sequence at a time, chunks as short as the convolution's memory, one slot, no cache, raw log-probabilities.
 */
#include "diagnose/bits/bits_trials.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* Probes draw from a flat distribution: a model that is sure of its next token would draw the same one whatever is
 * wrong with its state, with a log-probability near 0. Raw records are of temperature 1 all the same. */
#define PROBE_TEMPERATURE 4.0f

ls_prompt_set ls_experiment_set(ls_experiment experiment) { return ls_experiment_of(experiment)->set; }
ls_experiment ls_experiment_baseline(ls_experiment experiment) {
    const ls_experiment baseline = ls_experiment_of(experiment)->baseline;
    return baseline == LS_TRY_GIVEN ? LS_EXPERIMENTS : baseline;
}

/* float32 agrees to about 1e-6 however sums are ordered, bf16 activations to about 1e-2; both with room. */
double ls_bits_noise(ls_dtype dtype) { return dtype == LS_F32 ? 1e-3 : 0.25; }

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

ls_status ls_bits_trials_create(ls_bits_trials *out, const ls_sweep_opts *opts, const ls_model_config *config,
                                ls_error *err) {
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
    if (status != LS_OK) ls_bits_trials_deinit(out);
    return status;
}

void ls_bits_trials_deinit(ls_bits_trials *trials) {
    for (int set = 0; set < LS_SETS; set++) free(trials->set[set]);
    free(trials->tokens);
    memset(trials, 0, sizeof *trials);
}

/* ---- settings ---- */

/* The cache is large enough that nothing is evicted. */
static void use_cache(ls_levers *l, const ls_bits_trials *trials) {
    int64_t slot = 0;
    for (int32_t i = 0; i < trials->config->n_layers; i++)
        if (ls_config_has_slots(trials->config, i))
            slot += ls_slot_bytes(trials->config, trials->opts->dtype, l->state_every);
    l->prefix = LS_PREFIX_ON;
    l->prefix_bytes = 64 * slot;
    l->pages = 256;
}

static void use_far_slots(ls_levers *l, const ls_bits_trials *trials) {
    l->slots = trials->opts->far_slots;
    l->slot_words = trials->opts->far_words;
    l->pages = 256; /* enough of them in half the memory too */
    l->policy = LS_POLICY_HIGHEST;
}

void ls_bits_trials_numerics(ls_trial *trial, const ls_bits_trials *trials, ls_dtype dtype) {
    trial->dtype = dtype;
    trial->profile = dtype == LS_F32 ? LS_PROFILE_EXACT : trials->opts->profile;
}

void ls_bits_trials_of(ls_trial *out, const ls_bits_trials *trials, ls_experiment experiment) {
    const ls_sweep_opts *o = trials->opts;
    const ls_moves *moves = &ls_experiment_of(experiment)->moves;
    ls_levers *l = &out->levers;
    memset(out, 0, sizeof *out);
    ls_bits_trials_numerics(out, trials, o->dtype);
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
    l->chunk = trials->config->d_conv > 4 ? trials->config->d_conv - 1 : 3;
    l->tick_tokens = 512;
    l->prefix = LS_PREFIX_OFF;
    l->fork = false;
    if (moves->cache) use_cache(l, trials);
    if (moves->far_slots) use_far_slots(l, trials);
    if (moves->far_pages) {
        l->pages = trials->far_pages;
        l->policy = LS_POLICY_HIGHEST;
    }
    if (moves->other_threads) l->threads = o->threads == 1 ? 2 : 1;
    ls_moves_apply(out, moves);
}
