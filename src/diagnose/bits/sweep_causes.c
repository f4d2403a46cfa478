/* The table of causes, and how well each agrees with what was seen. */
#include <string.h>

#include "diagnose/bits/sweep.h"

#define IN(name) ((uint64_t)1 << LS_TRY_##name)
#define EVERYTHING (((uint64_t)1 << LS_EXPERIMENTS) - 1)

/* Experiments in which several requests share a prefill or take part of it from a cache. */
#define CACHED (IN(REPEATS_CACHED) | IN(SHARED_CACHED) | IN(ROUNDS_CACHED) | IN(UPDATE_CACHED) | IN(FORK))
#define PREEMPTED (IN(RECOMPUTE) | IN(SWAP))
#define FAR_ALL (IN(FAR) | IN(FAR_HALF) | IN(FAR_ATTENTION) | IN(FAR_CHUNK1) | IN(FAR_PAGES))

/* What is in none of the sets must be clean. The prompts as given are never in one: they are the user's. */
static const ls_cause causes[] = {
    {.name = "32-bit slot offset",
     .text =
         "the scan over several tokens writes its state at slot * stride computed in 32 bits: beyond the threshold it "
         "lands in another place of the same pool",
     .look = "the prefill kernel's state address: widen the slot id before it multiplies",
     .large = IN(FAR),
     .any = IN(FAR_HALF) | IN(FAR_CHUNK1)},
    {.name = "32-bit page offset",
     .text = "attention finds KV pages at page * stride computed in 32 bits: beyond the threshold it reads or writes "
             "another "
             "page",
     .look = "the attention kernel's page address: widen the page id before it multiplies",
     .large = IN(FAR_PAGES)},
    {.name = "stale state of a reused slot",
     .text =
         "a sequence whose first chunk has one token is taken for a decoding one and continues from the state that the "
         "slot's last owner left",
     .look = "what decides between prefill and decode: it must be the position, not the number of tokens",
     .large = IN(CHUNK1) | IN(CHUNK1_POISON) | IN(SINGLE),
     .any = CACHED | PREEMPTED | IN(FAR_CHUNK1)},
    {.name = "prefix snapshot at the wrong token",
     .text = "the recurrent state that a prefix hit restores does not belong to the last token of the prefix",
     .look = "when the snapshot is taken: behind the last token of the prefix and before the next",
     .large = IN(REPEATS_CACHED) | IN(ROUNDS_CACHED),
     .any = CACHED | PREEMPTED},
    {.name = "prefix hit across different prompts",
     .text = "a prompt is given the cached state of another one: the key of the cache does not cover all tokens",
     .look = "the lookup: compare tokens, or hash all of them with what came before",
     .large = IN(SHARED_CACHED),
     .any = IN(UPDATE_CACHED) | IN(FORK)},
    {.name = "convolution window lost in short chunks",
     .text = "a chunk of fewer tokens than the convolution looks back loses the inputs that came before it",
     .look = "the convolution's state update for chunks shorter than d_conv - 1",
     .large = IN(CHUNK2) | IN(CHUNK2_FIRST),
     /* Decoding is chunks of one token: where that goes wrong too, only the first token tells chunks of 2 from 3. */
     .any = EVERYTHING & ~(IN(FIRST) | IN(SOLO_ATTENTION) | IN(BATCH_ATTENTION) | IN(FAR_ATTENTION))},
    {.name = "no reset between packed sequences",
     .text = "a sequence that begins behind another one in the same forward begins with that one's state",
     .look = "the sequence boundaries that scan and convolution are given",
     .large = IN(PAIR) | IN(BATCH),
     .any = CACHED | PREEMPTED},
    {.name = "prefix cache outlives the weights",
     .text = "after a weight update prompts continue from states that the old weights computed",
     .look = "the key of the prefix cache: it must hold the version of the weights",
     .large = IN(UPDATE_CACHED)},
    {.name = "temperature on one side only",
     .text = "log-probabilities recorded as processed are of temperature 1",
     .look = "where the record is taken: behind the division by the temperature",
     .large = IN(TEMPERATURE)},
    {.name = "order of sums follows the batch",
     .text = "dense products choose another order of addition from a number of rows on",
     .look = "split-K and tile selection of the matrix product",
     .small = IN(WHOLE) | IN(BATCH) | IN(BATCH_ATTENTION),
     .any = IN(FORK) | PREEMPTED},
    {.name = "other arithmetic in decode",
     .text = "tokens that are decoded one by one go through another formula than those of a longer chunk, in the Mamba "
             "layers",
     .look = "scalar functions of the decode kernel: softplus, exp, silu",
     .small = IN(SOLO) | IN(AGAIN) | IN(WHOLE) | IN(CHUNK1) | IN(CHUNK1_FRESH) | IN(CHUNK2) | IN(SINGLE) | IN(PAIR) |
              IN(BATCH) | IN(SLOTS) | IN(PAGE) | IN(THREADS) | IN(ISA),
     .any = IN(CHUNK1_POISON) | IN(POISON) | IN(REPEATS) | IN(SHARED) | IN(UPDATE) | CACHED | PREEMPTED |
            IN(PROCESSED) | IN(TEMPERATURE_RAW) | IN(TEMPERATURE) | (FAR_ALL & ~IN(FAR_ATTENTION))},
    {.name = "draws follow the slot",
     .text = "records agree with the trainer, but which tokens are drawn depends on the slot that a sequence was given",
     .look = "what addresses the random numbers: prompt and sample, never slot or batch",
     .moved = IN(SLOTS),
     .any = IN(CHUNK1_FRESH) | IN(CHUNK1_POISON) | IN(PAIR) | IN(BATCH) | CACHED | PREEMPTED | FAR_ALL},
    {.name = "records one token late",
     .text = "each token is recorded with the log-probability of the one before it",
     .look = "the index that pairs drawn tokens with rows of logits",
     .large = IN(SOLO) | IN(AGAIN) | IN(WHOLE) | IN(CHUNK1) | IN(CHUNK2) | IN(SINGLE) | IN(PAIR) | IN(BATCH) |
              IN(SOLO_ATTENTION) | IN(BATCH_ATTENTION),
     .any = EVERYTHING,
     .sign = LS_SIGN_LATE},
    {.name = "not repeatable",
     .text = "the same trial twice gives two results",
     .look = "races, atomics on floats, uninitialised memory",
     .any = EVERYTHING,
     .sign = LS_SIGN_UNREPEATABLE},
    {.name = "free memory is read",
     .text = "what lies in free slots or pages reaches a result",
     .look = "first use of slots and pages, and the tails of the last page",
     .large = IN(POISON),
     .any = IN(CHUNK1_POISON)},
    {.name = "page size matters",
     .text = "attention depends on the number of tokens in a KV page",
     .look = "page boundaries of the attention kernel",
     .large = IN(PAGE)},
    {.name = "fork is not a copy",
     .text = "samples that share a prefill differ from samples that each have their own",
     .look = "the copy of state slot and last page at a fork",
     .large = IN(FORK)},
    {.name = "preempted sequences come back wrong",
     .text = "a sequence that was taken out goes on from another state",
     .look = "what is saved and what is computed again, and at which position",
     .large = PREEMPTED},
    {.name = "swapped sequences come back wrong",
     .text = "a sequence that was swapped out goes on from another state; computing it again is right",
     .look = "what swap saves: convolution window, scan state, last page",
     .large = IN(SWAP)},
};
enum { N_CAUSES = sizeof causes / sizeof causes[0] };

int64_t ls_causes_count(void) { return N_CAUSES; }
const ls_cause *ls_cause_get(int64_t cause_i) { return &causes[cause_i]; }

static ls_verdict expected(const ls_cause *cause, uint64_t bit) {
    if (cause->large & bit) return LS_LARGE;
    if (cause->small & bit) return LS_SMALL;
    if (cause->moved & bit) return LS_MOVED;
    if ((cause->any | IN(GIVEN)) & bit) return LS_UNTRIED;
    return LS_CLEAN;
}

/* Whether values are recorded one late: so is then every one behind the first of every completion. */
static bool is_late(const ls_observation *o) {
    return o->verdict == LS_LARGE && o->lag_tokens > 0 && o->lag_equal == o->lag_tokens;
}

static bool has_sign(const ls_cause *cause, const ls_observation *seen) {
    switch (cause->sign) {
        case LS_SIGN_NONE: return true;
        case LS_SIGN_LATE: return is_late(&seen[LS_TRY_SOLO]) && is_late(&seen[LS_TRY_BATCH]);
        case LS_SIGN_UNREPEATABLE: return seen[LS_TRY_AGAIN].n_changed > 0;
    }
    return false;
}

static double share(int64_t part, int64_t whole) { return whole > 0 ? (double)part / (double)whole : 0.0; }

static ls_ranked judge(const ls_cause *cause, const ls_observation *seen) {
    int64_t met[2] = {0, 0}, asked[2] = {0, 0}; /* clean ones, others */
    ls_ranked r = {.cause = cause};
    for (int i = 0; i < LS_EXPERIMENTS; i++) {
        const uint64_t bit = (uint64_t)1 << i;
        const ls_verdict want = expected(cause, bit);
        const int kind = want != LS_CLEAN;
        if (want == LS_UNTRIED || seen[i].verdict == LS_UNTRIED) continue;
        asked[kind]++;
        if (seen[i].verdict == want) {
            met[kind]++;
            r.met |= bit;
        } else {
            r.missed |= bit;
        }
    }
    if (cause->sign != LS_SIGN_NONE) {
        asked[1]++;
        met[1] += has_sign(cause, seen);
    }
    r.fits = met[1] == asked[1] && met[0] == asked[0] && met[1] > 0;
    /* A cause that expects nothing clean is judged by differences alone. */
    r.score = asked[0] > 0 ? 0.5 * share(met[0], asked[0]) + 0.5 * share(met[1], asked[1]) : share(met[1], asked[1]);
    if (met[1] == 0 || !has_sign(cause, seen)) r.score = 0.0;
    return r;
}

static bool better(const ls_ranked *a, const ls_ranked *b) {
    if (a->fits != b->fits) return a->fits;
    if (a->score != b->score) return a->score > b->score;
    /* Of two that agree as well, the one that says more. */
    return __builtin_popcountll(a->met) > __builtin_popcountll(b->met);
}

void ls_causes_rank(ls_ranked *out, const ls_observation seen[LS_EXPERIMENTS]) {
    for (int64_t i = 0; i < N_CAUSES; i++) {
        const ls_ranked r = judge(&causes[i], seen);
        int64_t at = i;
        for (; at > 0 && better(&r, &out[at - 1]); at--) out[at] = out[at - 1];
        out[at] = r;
    }
}
