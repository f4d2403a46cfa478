/* Explanations by the model: other prompts than were sent, other formulas, other weights, states that are lost. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "diagnose/explain/explanations.h"

/* |d| of nine tenths from which on another token in every prompt is looked for: less it does not do. */
#define INSERTED_LEAST 1e-2
/* |d| of a record that is right where prompts are read as something else, at least. */
#define EXPLAIN_RIGHT 1e-4

/* ---- one change ---- */

/* Once it is, what was not tried might have been the cause. */
static bool past(const explainer *x) {
    const bool is_past = ls_clock_seconds() > x->end;
    if (is_past) x->q->f->out_of_time = true;
    return is_past;
}

/* Token k and those that were found before it, the newest first. */
static int64_t put_inserted(const explainer *x, int64_t at, int64_t k) {
    x->changed[at++] = (int32_t)k;
    for (int64_t i = x->n_inserted - 1; i >= 0; i--) x->changed[at++] = x->inserted[i];
    return at;
}

/* The text as it is read, into x->changed. Its completion begins at *n_prompt. False: it reads the same. */
static bool read_as(const explainer *x, const text *t, hypothesis r, int64_t k, int64_t *n, int64_t *n_prompt) {
    const ls_model_config *c = x->q->config;
    const int32_t eos = c->n_eos > 0 ? c->eos[0] : -1;
    int64_t at = 0, from = 0, to = t->n_prompt;
    if ((r == WITH_BOS || r == DOUBLED_BOS) && c->bos < 0) return false;
    if (r == WITH_BOS || (r == DOUBLED_BOS && t->tokens[0] == c->bos)) x->changed[at++] = c->bos;
    if (r == FIRST_AGAIN) x->changed[at++] = t->tokens[0];
    if (r == WITHOUT_FIRST && to > 1) from = 1;
    if (r == STRIPPED_BOS && to > 1 && t->tokens[0] == c->bos) from = 1;
    if (r == WITHOUT_LAST && to > 1) to--;
    if (r == LAST_TOKENS && to > k) from = to - k;
    if (r == FIRST_TOKENS && to > k) to = k;
    if (r == INSERTED_FIRST) at = put_inserted(x, at, k);
    for (int64_t i = from; i < to; i++) {
        const int32_t token = r == BACKWARDS ? t->tokens[to - 1 - i] : t->tokens[i];
        if (r == STRIPPED_EOS && token == eos && to > 1) continue;
        if (r == STRIPPED_SPECIAL && (token == eos || token == c->bos || token == c->pad) && to > 1) continue;
        if (r == IDS_LOST && token < k) continue;
        x->changed[at++] = token;
    }
    if (at == 0) x->changed[at++] = t->tokens[0];
    if (r == LAST_AGAIN) x->changed[at++] = t->tokens[t->n_prompt - 1];
    if (r == INSERTED_LAST) at = put_inserted(x, at, k);
    if (r == WITH_EOS && eos >= 0) x->changed[at++] = eos;
    *n_prompt = at;
    for (int64_t i = t->n_prompt; i < t->n; i++) x->changed[at++] = t->tokens[i];
    for (int64_t i = 0; i < *n_prompt && r == IDS_MOVED; i++)
        x->changed[i] = (int32_t)(((int64_t)x->changed[i] + k + c->vocab) % c->vocab);
    for (int64_t i = 0; i < *n_prompt && r == IDS_FLIPPED; i++)
        if (x->changed[i] >= x->kept && (x->changed[i] ^ k) < c->vocab) x->changed[i] ^= (int32_t)k;
    for (int64_t i = 0; i < *n_prompt && r == IDS_UNKNOWN; i++)
        if (x->changed[i] >= k) x->changed[i] = x->unknown;
    for (int64_t i = 0; i < (k > 0 ? *n_prompt : at) && (r == IDS_MODULO || r == IDS_AT_MOST); i++) {
        const int32_t end = (int32_t)llabs(k);
        x->changed[i] = r == IDS_MODULO ? x->changed[i] % end : x->changed[i] < end ? x->changed[i] : end - 1;
    }
    *n = at;
    return !(at == t->n && memcmp(x->changed, t->tokens, (size_t)at * sizeof *x->changed) == 0) || r == AS_GIVEN;
}

/* Errors of the texts [0, n_texts) under a changed model that reads changed prompts. cut: 0 none, 1 within the prompt,
 * 2 where decoding begins, 3 at every token that is decoded. */
ls_status ls_explain_changed(explainer *x, ls_edit e, int cut, hypothesis r, int64_t k, int64_t n_texts,
                             ls_explanation *out, ls_error *err) {
    ls_explain_begin(x);
    for (int64_t i = 0; i < n_texts; i++) {
        const text *t = &x->texts[i];
        text other = *t;
        const double *rows = x->rows;
        if (cut == 1) e.cut_before = t->n_prompt;
        if (cut >= 2) e.cut_every = 1, e.cut_from = t->n_prompt, e.cut_before = cut == 2 ? t->n_prompt + 1 : 0;
        e.n_prompt = t->n_prompt;
        if (read_as(x, t, r, k, &other.n, &other.n_prompt)) {
            e.n_prompt = other.n_prompt;
            LS_TRY(ls_reference_logits(x->q->reference, &e, x->changed, other.n, x->rows, err));
            other.tokens = x->changed;
        } else {
            rows = t->rows;
        }
        ls_explain_errors(x, &other, rows, (how){PLAIN, 0.0, 0});
    }
    ls_explain_finish(x, out);
    return LS_OK;
}

/* First on few texts: most explanations fail there. */
static ls_status try_changed(explainer *x, const ls_edit *e, int cut, hypothesis r, int64_t k, ls_explanation what,
                             ls_error *err) {
    const int64_t few = x->n_few;
    if (past(x)) return LS_OK;
    /* One short text is enough for most: what is worse there than without the change is not it. */
    LS_TRY(ls_explain_changed(x, *e, cut, r, k, 1, &what, err));
    if (what.median + what.q90 > 1.05 * (x->first_before.median + x->first_before.q90)) return LS_OK;
    LS_TRY(ls_explain_changed(x, *e, cut, r, k, few, &what, err));
    if (what.median + what.q90 > 0.7 * (x->few_before.median + x->few_before.q90)) return LS_OK;
    if (few < x->n_texts) LS_TRY(ls_explain_changed(x, *e, cut, r, k, x->n_texts, &what, err));
    if ((what.harmless || what.cause == LS_CAUSE_COARSE_WEIGHTS) && what.median < 0.7 * x->q->f->before.median)
        x->q->f->coarser = true;
    ls_explain_offer(x, what);
    return LS_OK;
}

static ls_status try_edit(explainer *x, ls_edit e, ls_explanation what, ls_error *err) {
    return try_changed(x, &e, 0, AS_GIVEN, 0, what, err);
}

static ls_explanation searched(ls_explanation e) {
    e.n_free = 1;
    return e;
}

/* ---- other prompts ---- */

/* Ids from one on that a vocabulary does not have, read as one and the same. From which one on, the texts tell: it is
 * above all ids of prompts that are right, and each prompt that is off has one as large. A few in between are tried. */
enum { MOVED_MOST = 8, UNKNOWN_FIRST = 8, UNKNOWN_TRIED = 9 };

static ls_status try_unknown(explainer *x, ls_error *err) {
    const ls_edit same = {.layer = -1};
    const ls_model_config *c = x->q->config;
    const int32_t special[] = {c->n_eos > 0 ? c->eos[0] : -1, c->bos, c->pad};
    const double right = fmax(EXPLAIN_RIGHT, 0.05 * x->q->f->before.median);
    int64_t low = 1, high = c->vocab;
    for (int64_t t = 0; t < x->n_texts; t++) {
        const text *one = &x->texts[t];
        int64_t most = 0;
        bool is_right = true;
        for (int64_t i = 0; i < one->n_prompt; i++) most = one->tokens[i] > most ? one->tokens[i] : most;
        for (int64_t i = 0; i < one->n_recorded; i++)
            is_right = is_right && fabs((double)one->recorded[i] - (double)one->scored[i]) <= right;
        if (is_right && most >= low) low = most + 1;
        if (!is_right && most < high) high = most;
    }
    for (int64_t i = 0; i < UNKNOWN_TRIED && low <= high; i++)
        for (int32_t id = 0; id < UNKNOWN_FIRST + 3; id++) {
            const int64_t from = low + (high - low) * i / (UNKNOWN_TRIED - 1);
            x->unknown = id < UNKNOWN_FIRST ? id : special[id - UNKNOWN_FIRST];
            if (x->unknown < (id < UNKNOWN_FIRST ? 0 : UNKNOWN_FIRST) || x->unknown >= c->vocab) continue;
            LS_TRY(try_changed(
                x, &same, 0, IDS_UNKNOWN, from,
                searched(ls_explain_named(LS_CAUSE_OTHER_TOKENS, "ids of prompts from %lld on are read as %d",
                                          (long long)from, x->unknown)),
                err));
        }
    return LS_OK;
}

/* Ids with one other bit, but for the first ones, which are special in most vocabularies; and those first ones lost, as
 * decoding to text and encoding it again without special tokens does. */
enum { FIRST_IDS_MOST = 16 };

static ls_status try_first_ids(explainer *x, ls_error *err) {
    const ls_edit same = {.layer = -1};
    for (int32_t bit = 1; bit < x->q->config->vocab; bit *= 2)
        for (x->kept = 0; x->kept <= FIRST_IDS_MOST; x->kept = x->kept == 0 ? 1 : 2 * x->kept)
            LS_TRY(try_changed(
                x, &same, 0, IDS_FLIPPED, bit,
                searched(ls_explain_named(LS_CAUSE_OTHER_TOKENS, "ids of prompts from %d on have the bit of %d flipped",
                                          x->kept, bit)),
                err));
    for (int64_t end = 1; end <= FIRST_IDS_MOST; end++)
        LS_TRY(try_changed(x, &same, 0, IDS_LOST, end,
                           searched(ls_explain_named(LS_CAUSE_OTHER_TOKENS, "ids below %lld are taken out of prompts",
                                                     (long long)end)),
                           err));
    return LS_OK;
}

static ls_status try_hypotheses(explainer *x, ls_error *err) {
    static const char *const words[] = {"",
                                        "a begin-of-sequence token is put in front of every prompt",
                                        "a begin-of-sequence token is put in front of prompts that have one",
                                        "an end-of-sequence token is put behind every prompt",
                                        "the first token of prompts is dropped",
                                        "the last token of prompts is dropped",
                                        "end-of-sequence tokens are taken out of prompts",
                                        "a begin-of-sequence token at the front is taken away",
                                        "",
                                        "the first token of prompts is read twice",
                                        "",
                                        "",
                                        "",
                                        "the last token of prompts is read twice",
                                        "special tokens are taken out of prompts",
                                        "prompts are read backwards"};
    const ls_edit same = {.layer = -1};
    int64_t longest = 0;
    for (int r = WITH_BOS; r <= BACKWARDS; r++)
        if (words[r][0] != '\0')
            LS_TRY(try_changed(x, &same, 0, (hypothesis)r, 0, ls_explain_named(LS_CAUSE_OTHER_TOKENS, "%s", words[r]),
                               err));
    for (int64_t t = 0; t < x->n_texts; t++) longest = x->texts[t].n_prompt > longest ? x->texts[t].n_prompt : longest;
    for (int64_t k = 1; k < longest && k < 160; k++) {
        LS_TRY(try_changed(x, &same, 0, LAST_TOKENS, k,
                           searched(ls_explain_named(LS_CAUSE_OTHER_TOKENS,
                                                     "only the last %lld tokens of a prompt are read", (long long)k)),
                           err));
        LS_TRY(try_changed(x, &same, 0, FIRST_TOKENS, k,
                           searched(ls_explain_named(LS_CAUSE_OTHER_TOKENS,
                                                     "only the first %lld tokens of a prompt are read", (long long)k)),
                           err));
    }
    for (int64_t end = 16; end < x->q->config->vocab; end *= 2)
        for (int all = 0; all < 2; all++) {
            const int64_t k = all ? -end : end;
            const char *of = all ? "all tokens" : "prompts";
            LS_TRY(try_changed(x, &same, 0, IDS_MODULO, k,
                               searched(ls_explain_named(LS_CAUSE_OTHER_TOKENS, "ids of %s are taken modulo %lld", of,
                                                         (long long)end)),
                               err));
            LS_TRY(try_changed(x, &same, 0, IDS_AT_MOST, k,
                               searched(ls_explain_named(LS_CAUSE_OTHER_TOKENS, "ids of %s are %lld at most", of,
                                                         (long long)(end - 1))),
                               err));
        }
    for (int64_t by = -MOVED_MOST; by <= MOVED_MOST; by++)
        if (by != 0)
            LS_TRY(try_changed(
                x, &same, 0, IDS_MOVED, by,
                searched(ls_explain_named(LS_CAUSE_OTHER_TOKENS, "ids of prompts are moved by %lld", (long long)by)),
                err));
    LS_TRY(try_first_ids(x, err));
    return try_unknown(x, err);
}

/* Tokens of any kind, put in front of every prompt or behind it: a template, a line's end. Looked for on the shortest
 * texts, one after the other, the one that is nearest to what is recorded first. */
enum { INSERTED_TEXTS = 4, INSERTED_CANDIDATES = 64 };

/* Copies of the shortest texts, in place of the first n. */
static void put_shortest(explainer *x, int64_t n) {
    text shortest[INSERTED_TEXTS];
    int64_t found = 0;
    for (int64_t length = 1; found < n && length <= x->longest; length++)
        for (int64_t t = 0; t < x->n_texts && found < n; t++)
            if (x->texts[t].n == length) shortest[found++] = x->texts[t];
    memcpy(x->texts, shortest, (size_t)found * sizeof *shortest);
}

typedef struct candidate {
    int64_t token;
    double mean;
} candidate;

/* The token that is nearest to what is recorded: all are tried on the shortest text, the better ones on n_short. */
static ls_status find_inserted(explainer *x, hypothesis r, int64_t n_short, int64_t *best, double *least,
                               ls_error *err) {
    const ls_edit same = {.layer = -1};
    candidate kept[INSERTED_CANDIDATES];
    int64_t n = 0;
    ls_explanation e;
    for (int64_t v = 0; v < x->q->config->vocab && !past(x); v++) {
        int64_t at = n < INSERTED_CANDIDATES ? n++ : n;
        LS_TRY(ls_explain_changed(x, same, 0, r, v, 1, &e, err));
        for (; at > 0 && kept[at - 1].mean > e.mean; at--)
            if (at < n) kept[at] = kept[at - 1];
        if (at < n) kept[at] = (candidate){v, e.mean};
    }
    for (int64_t i = 0; i < n && !past(x); i++) {
        LS_TRY(ls_explain_changed(x, same, 0, r, kept[i].token, n_short, &e, err));
        if (e.mean < *least) *least = e.mean, *best = kept[i].token;
    }
    return LS_OK;
}

static ls_status try_inserted(explainer *x, ls_error *err) {
    const ls_edit same = {.layer = -1};
    text kept[INSERTED_TEXTS];
    const int64_t n_short = x->n_texts < INSERTED_TEXTS ? x->n_texts : INSERTED_TEXTS;
    ls_status status = LS_OK;
    if (x->q->f->before.q90 < INSERTED_LEAST) return LS_OK;
    if (x->partly || (x->q->f->n_best > 0 && x->q->f->best[0].q90 < 0.05 * x->q->f->before.q90)) return LS_OK;
    memcpy(kept, x->texts, (size_t)n_short * sizeof *kept);
    for (hypothesis r = INSERTED_FIRST; r <= INSERTED_LAST; r++) {
        double known = (double)INFINITY; /* what the best leaves */
        for (x->n_inserted = 0; x->n_inserted < INSERTED_MOST; x->n_inserted++) {
            double least = (double)INFINITY;
            int64_t best = -1;
            put_shortest(x, n_short);
            status = find_inserted(x, r, n_short, &best, &least, err);
            memcpy(x->texts, kept, (size_t)n_short * sizeof *kept);
            LS_TRY(status);
            if (best < 0 || least > 0.8 * known) break;
            known = least;
            LS_TRY(try_changed(
                x, &same, 0, r, best,
                searched(ls_explain_named(
                    LS_CAUSE_OTHER_TOKENS, "%lld tokens, token %lld first, are put %s every prompt",
                    (long long)x->n_inserted + 1, (long long)best, r == INSERTED_FIRST ? "in front of" : "behind")),
                err));
            x->inserted[x->n_inserted] = (int32_t)best;
        }
    }
    return LS_OK;
}

/* ---- other weights ---- */

static ls_status try_layer(explainer *x, int32_t layer, ls_error *err) {
    static const char *const lost[] = {"the mixer adds nothing",        "the feed-forward adds nothing",
                                       "the input norm has no weights", "the feed-forward's norm has no weights",
                                       "gate and up are exchanged",     "the halves of in_proj are exchanged",
                                       "keys and values are exchanged", "B and C are exchanged",
                                       "each expert is the next one"};
    const ls_model_config *c = x->q->config;
    for (int w = LS_CHANGED_NO_MIXER; w <= LS_CHANGED_EXPERTS_TURNED; w++)
        LS_TRY(try_edit(
            x, (ls_edit){.layer = layer, .weights = (ls_weight_change)w},
            searched(ls_explain_named(LS_CAUSE_ONE_LAYER, "layer %d: %s", layer, lost[w - LS_CHANGED_NO_MIXER])), err));
    for (int32_t one = 0; one < c->n_layers; one++)
        for (int part = 0; part < 3; part++) {
            static const char *const parts[] = {"weights", "feed-forward", "mixer"};
            static const ls_weight_change kinds[] = {LS_CHANGED_OF_LAYER, LS_CHANGED_FFN_OF_LAYER,
                                                     LS_CHANGED_MIXER_OF_LAYER};
            const bool of_mixer = part != 1;
            if (one == layer || (of_mixer && (c->is_attention[one] != c->is_attention[layer] ||
                                              c->no_mixer[one] != c->no_mixer[layer])))
                continue;
            LS_TRY(try_edit(x, (ls_edit){.layer = layer, .weights = kinds[part], .other = one},
                            searched(ls_explain_named(LS_CAUSE_ONE_LAYER, "layer %d has the %s of layer %d", layer,
                                                      parts[part], one)),
                            err));
        }
    for (int32_t a = 0; c->is_moe[layer] && c->n_experts <= 16 && a < c->n_experts; a++)
        for (int32_t b = a + 1; b < c->n_experts; b++)
            LS_TRY(try_edit(
                x,
                (ls_edit){
                    .layer = layer, .weights = LS_CHANGED_EXPERTS_EXCHANGED, .other = (int32_t)(a * c->n_experts + b)},
                searched(
                    ls_explain_named(LS_CAUSE_ONE_LAYER, "layer %d: experts %d and %d are exchanged", layer, a, b)),
                err));
    return LS_OK;
}

/* The same tensors of all layers, or of one. */
static ls_status try_weights(explainer *x, ls_error *err) {
    static const char *const types[] = {"",
                                        "bf16",
                                        "f16",
                                        "fp8, by row",
                                        "fp8, by matrix",
                                        "int8, by row",
                                        "int8, by matrix",
                                        "int4, by row",
                                        "int4, by 32",
                                        "fp8 (e4m3) without a scale",
                                        "fp8 (e5m2) without a scale",
                                        "of three bits of mantissa"};
    static const char *const inputs[] = {"", "bf16", "f16", "e4m3", "e5m2", "int8, by token"};
    const ls_model_config *c = x->q->config;
    for (int w = LS_CHANGED_BF16; w <= LS_CHANGED_WIDE_FP8; w++) {
        const ls_weight_change to = (ls_weight_change)w;
        LS_TRY(try_edit(x, (ls_edit){.layer = -1, .weights = to},
                        ls_explain_named(LS_CAUSE_COARSE_WEIGHTS, "all matrices are %s", types[w]), err));
        LS_TRY(try_edit(x, (ls_edit){.layer = -1, .weights = to, .head_weights = to, .embed_weights = to},
                        ls_explain_named(LS_CAUSE_COARSE_WEIGHTS, "all matrices, embedding and head are %s", types[w]),
                        err));
        if (w <= LS_CHANGED_F16)
            LS_TRY(try_edit(x, (ls_edit){.layer = -1, .weights = to, .everything = true},
                            ls_explain_named(LS_CAUSE_COARSE_WEIGHTS, "all tensors are %s", types[w]), err));
        LS_TRY(try_edit(x, (ls_edit){.layer = -1, .embed_weights = to},
                        ls_explain_named(LS_CAUSE_COARSE_WEIGHTS, "the embedding is %s", types[w]), err));
        LS_TRY(try_edit(x, (ls_edit){.layer = -1, .head_weights = to},
                        ls_explain_named(LS_CAUSE_COARSE_HEAD, "the weights of the head are %s", types[w]), err));
        for (int in = LS_ROUND_BF16; in <= LS_ROUND_INT8; in++)
            LS_TRY(try_edit(
                x, (ls_edit){.layer = -1, .head_weights = to, .head_input = (ls_rounding)in},
                ls_explain_named(LS_CAUSE_COARSE_HEAD, "the head is %s, its input %s", types[w], inputs[in]), err));
        for (int32_t layer = 0; layer < c->n_layers; layer++)
            LS_TRY(try_edit(
                x, (ls_edit){.layer = layer, .weights = to},
                searched(ls_explain_named(LS_CAUSE_ONE_LAYER, "the weights of layer %d are %s", layer, types[w])),
                err));
    }
    for (int32_t layer = 0; layer < c->n_layers; layer++) LS_TRY(try_layer(x, layer, err));
    return LS_OK;
}

/* ---- other formulas ---- */

typedef struct formula {
    ls_edit edit;
    ls_cause cause;
    const char *what;
    bool harmless;
} formula;

static ls_status try_list(explainer *x, const formula *list, size_t n, ls_error *err) {
    for (size_t i = 0; i < n; i++) {
        ls_explanation e = ls_explain_named(list[i].cause, "%s", list[i].what);
        e.harmless = list[i].harmless;
        LS_TRY(try_edit(x, list[i].edit, e, err));
    }
    return LS_OK;
}

static ls_status try_precision(explainer *x, ls_error *err) {
    static const formula list[] = {
        {{.layer = -1, .head_input = LS_ROUND_BF16}, LS_CAUSE_COARSE_HEAD, "what enters the head is bf16", false},
        {{.layer = -1, .head_input = LS_ROUND_F16}, LS_CAUSE_COARSE_HEAD, "what enters the head is f16", false},
        {{.layer = -1, .head_input = LS_ROUND_FP8}, LS_CAUSE_COARSE_HEAD, "what enters the head is fp8", false},
        {{.layer = -1, .head_input = LS_ROUND_BF16, .logits = LS_ROUND_BF16},
         LS_CAUSE_COARSE_HEAD,
         "what enters the head and the logits are bf16",
         false},
        {{.layer = -1, .head_input = LS_ROUND_F16, .logits = LS_ROUND_F16},
         LS_CAUSE_COARSE_HEAD,
         "what enters the head and the logits are f16",
         false},
        {{.layer = -1, .head_input = LS_ROUND_BF16, .logits = LS_ROUND_BF16, .head_weights = LS_CHANGED_BF16},
         LS_CAUSE_COARSE_HEAD,
         "the head is bf16 as a whole",
         false},
        {{.layer = -1, .head_input = LS_ROUND_F16, .logits = LS_ROUND_F16, .head_weights = LS_CHANGED_F16},
         LS_CAUSE_COARSE_HEAD,
         "the head is f16 as a whole",
         false},
        {{.layer = -1, .head_input = LS_ROUND_BF16, .head_weights = LS_CHANGED_BF16},
         LS_CAUSE_COARSE_HEAD,
         "weights of the head and what enters it are bf16",
         false},
        {{.layer = -1, .head_input = LS_ROUND_F16, .head_weights = LS_CHANGED_F16},
         LS_CAUSE_COARSE_HEAD,
         "weights of the head and what enters it are f16",
         false},
        {{.layer = -1, .keys = LS_ROUND_F16}, LS_CAUSE_KEYS_F16, "keys and values are f16", true},
        {{.layer = -1, .keys = LS_ROUND_BF16}, LS_CAUSE_KEYS_BF16, "keys and values are bf16", true},
        {{.layer = -1, .keys = LS_ROUND_FP8}, LS_CAUSE_KEYS_8_BITS, "keys and values are fp8 (e4m3)", false},
        {{.layer = -1, .keys = LS_ROUND_E5M2}, LS_CAUSE_KEYS_8_BITS, "keys and values are fp8 (e5m2)", false},
        {{.layer = -1, .keys = LS_ROUND_FP8, .keys_per = 1},
         LS_CAUSE_KEYS_8_BITS,
         "keys and values are fp8, by head",
         false},
        {{.layer = -1, .keys = LS_ROUND_FP8, .keys_per = 2},
         LS_CAUSE_KEYS_8_BITS,
         "keys and values are fp8, by token",
         false},
        {{.layer = -1, .keys = LS_ROUND_INT8, .keys_per = 1},
         LS_CAUSE_KEYS_8_BITS,
         "keys and values are int8, by head",
         false},
        {{.layer = -1, .keys = LS_ROUND_INT8, .keys_per = 2},
         LS_CAUSE_KEYS_8_BITS,
         "keys and values are int8, by token",
         false},
        {{.layer = -1, .keys = LS_ROUND_INT8, .keys_per = 3},
         LS_CAUSE_KEYS_8_BITS,
         "keys and values are int8, by 32",
         false},
        {{.layer = -1, .keys = LS_ROUND_INT4, .keys_per = 1},
         LS_CAUSE_KEYS_8_BITS,
         "keys and values are int4, by head",
         false},
        {{.layer = -1, .keys = LS_ROUND_INT4, .keys_per = 2},
         LS_CAUSE_KEYS_8_BITS,
         "keys and values are int4, by token",
         false},
        {{.layer = -1, .keys = LS_ROUND_INT4, .keys_per = 3},
         LS_CAUSE_KEYS_8_BITS,
         "keys and values are int4, by 32",
         false},
        {{.layer = -1, .activations = LS_ROUND_BF16}, LS_CAUSE_COARSE_ACTIVATIONS, "activations are bf16", true},
        {{.layer = -1, .activations = LS_ROUND_F16}, LS_CAUSE_COARSE_ACTIVATIONS, "activations are f16", true},
    };
    LS_TRY(try_list(x, list, sizeof list / sizeof list[0], err));
    for (int which = 1; which <= 2; which++)
        for (int to = LS_ROUND_FP8; to <= LS_ROUND_INT8; to++)
            for (int per = to == LS_ROUND_INT8; per <= 2; per++)
                LS_TRY(
                    try_edit(x, (ls_edit){.layer = -1, .keys = (ls_rounding)to, .keys_which = which, .keys_per = per},
                             ls_explain_named(LS_CAUSE_KEYS_8_BITS, "%s alone are %s%s", which == 1 ? "keys" : "values",
                                              to == LS_ROUND_FP8    ? "fp8 (e4m3)"
                                              : to == LS_ROUND_E5M2 ? "fp8 (e5m2)"
                                                                    : "int8",
                                              per == 0   ? ""
                                              : per == 1 ? ", by head"
                                                         : ", by token"),
                             err));
    return LS_OK;
}

static ls_status try_formulas(explainer *x, ls_error *err) {
    static const formula list[] = {
        {{.layer = -1, .rope = true}, LS_CAUSE_POSITIONS, "queries and keys are rotated by position, in halves", false},
        {{.layer = -1, .rope_pairs = true},
         LS_CAUSE_POSITIONS,
         "queries and keys are rotated by position, in pairs",
         false},
        {{.layer = -1, .heads_interleaved = true}, LS_CAUSE_POSITIONS, "heads read the keys of other groups", false},
        {{.layer = -1, .sees_ahead = true}, LS_CAUSE_POSITIONS, "attention sees all of the prompt within it", false},
        {{.layer = -1, .sink = true}, LS_CAUSE_POSITIONS, "attention has a sink of logit 0", false},
        {{.layer = -1, .own_unseen = true}, LS_CAUSE_POSITIONS, "attention does not see a token's own key", false},
        {{.layer = -1, .no_inner_norms = true}, LS_CAUSE_FORMULA, "dt, B and C are not normalised", false},
        {{.layer = -1, .router_renormalised = true}, LS_CAUSE_FORMULA, "chosen experts are made to sum to 1", false},
        {{.layer = -1, .experts_more = 1}, LS_CAUSE_FORMULA, "one expert more is chosen", false},
        {{.layer = -1, .experts_more = -1}, LS_CAUSE_FORMULA, "one expert fewer is chosen", false},
        {{.layer = -1, .experts_more = 1, .router_renormalised = true},
         LS_CAUSE_FORMULA,
         "one expert more, renormalised",
         false},
        {{.layer = -1, .experts_more = -1, .router_renormalised = true},
         LS_CAUSE_FORMULA,
         "one expert fewer, renormalised",
         false},
        {{.layer = -1, .no_d = true}, LS_CAUSE_FORMULA, "the scan has no D", false},
        {{.layer = -1, .gelu = true}, LS_CAUSE_FORMULA, "the feed-forward has gelu for silu", false},
        {{.layer = -1, .no_conv_silu = true}, LS_CAUSE_FORMULA, "the convolution has no silu", false},
        {{.layer = -1, .no_conv_bias = true}, LS_CAUSE_FORMULA, "the convolution has no bias", false},
        {{.layer = -1, .turned_taps = true}, LS_CAUSE_FORMULA, "the convolution's taps are turned round", false},
        {{.layer = -1, .no_dt_bias = true}, LS_CAUSE_FORMULA, "dt has no bias", false},
        {{.layer = -1, .no_dt_bias = true, .no_conv_bias = true},
         LS_CAUSE_FORMULA,
         "neither dt nor convolution has a bias",
         false},
        {{.layer = -1, .dt_bias_twice = true}, LS_CAUSE_FORMULA, "dt has its bias twice", false},
        {{.layer = -1, .weights = LS_CHANGED_B_C}, LS_CAUSE_FORMULA, "B and C are exchanged", false},
        {{.layer = -1, .weights = LS_CHANGED_IN_HALVES},
         LS_CAUSE_FORMULA,
         "the halves of in_proj are exchanged",
         false},
        {{.layer = -1, .weights = LS_CHANGED_GATE_UP}, LS_CAUSE_FORMULA, "gate and up are exchanged", false},
        {{.layer = -1, .eps_outside = true}, LS_CAUSE_FORMULA, "norms add epsilon outside of the root", false},
    };
    /* Models in use have these bases beside 10,000. */
    static const double bases[] = {1e3, 1e5, 5e5, 1e6, 1e7};
    for (size_t i = 0; i < sizeof bases / sizeof bases[0]; i++)
        for (int pairs = 0; pairs < 2; pairs++)
            LS_TRY(
                try_edit(x, (ls_edit){.layer = -1, .rope = !pairs, .rope_pairs = pairs, .rope_base = bases[i]},
                         searched(ls_explain_named(LS_CAUSE_POSITIONS,
                                                   "queries and keys are rotated by position, to the base of %g, in %s",
                                                   bases[i], pairs ? "pairs" : "halves")),
                         err));
    return try_list(x, list, sizeof list / sizeof list[0], err);
}

/* Numbers of the model that a stack may have otherwise: the value that fits best is looked for. */
typedef enum knob {
    ATTENTION_SCALE = 0,
    ATTENTION_CAP,
    NORM_EPS,
    NORM_EPS_OUTSIDE,
    EMBED_SCALE,
    MIXER_SCALE,
    FFN_SCALE,
    SKIP_SCALE,
    DECAY_SCALE,
    SLOPE,
    SLOPE_BY_HEAD,
    LENGTH_SCALE,
    KNOBS
} knob;

static double *knob_of(ls_edit *e, knob k) {
    switch (k) {
        case ATTENTION_SCALE: return &e->attention_scale;
        case ATTENTION_CAP: return &e->attention_cap;
        case NORM_EPS:
        case NORM_EPS_OUTSIDE: return &e->norm_eps;
        case EMBED_SCALE: return &e->embed_scale;
        case MIXER_SCALE: return &e->mixer_scale;
        case FFN_SCALE: return &e->ffn_scale;
        case SLOPE:
        case SLOPE_BY_HEAD: return &e->attention_slope;
        case LENGTH_SCALE: return &e->attention_log_base;
        case DECAY_SCALE: return &e->decay_scale;
        default: return &e->skip_scale;
    }
}

/* 1 % from 1 and twice as far each time, on both sides: 2 n of them. */
static double factor_of(int i, int n) {
    const double away = 0.01 * pow(2.0, (double)(i % n));
    return exp(i < n ? -away : away);
}

static ls_status try_knob(explainer *x, knob k, ls_error *err) {
    static const struct {
        double low, high;
        bool of_attention, is_factor; /* a factor is 1 in the model: it is looked for near 1 and far from it */
        const char *what;
    } of[KNOBS] = {{0.02, 16.0, true, true, "the scale of attention is times"},
                   {0.1, 100.0, true, false, "the logits of attention are capped at"},
                   {1e-9, 1e-2, false, false, "norms add"},
                   {1e-6, 1.0, false, false, "norms add outside of the root"},
                   {0.02, 64.0, false, true, "embeddings are times"},
                   {0.1, 10.0, false, true, "what mixers add is times"},
                   {0.1, 10.0, false, true, "what feed-forwards add is times"},
                   {0.1, 10.0, false, true, "D is times"},
                   {0.1, 10.0, false, true, "the decay's exponent is times"},
                   {1e-3, 2.0, true, false, "a key's logit falls with every token of distance by"},
                   {1e-3, 8.0, true, false, "the same, in a geometric series of heads, by up to"},
                   {2.0, 4096.0, true, false, "attention is scaled by the logarithm of the context, to the base of"}};
    enum { STEPS = 14, FACTORS = 10 };
    double low = of[k].low, high = of[k].high, best = 0.0, least = (double)INFINITY;
    ls_edit edit = {.layer = -1, .eps_outside = k == NORM_EPS_OUTSIDE, .slope_by_head = k == SLOPE_BY_HEAD};
    ls_explanation e;
    for (int round = 0; round < 4; round++) {
        const int64_t n_texts = round == 0 ? 1 : x->n_few;
        const ls_explanation *before = round == 0 ? &x->first_before : &x->few_before;
        const bool factors = round == 0 && of[k].is_factor;
        const int steps = factors ? 2 * FACTORS - 1 : round == 0 ? STEPS : 4;
        double ratio = pow(high / low, 1.0 / (double)steps);
        for (int i = 0; i <= steps; i++) {
            const double value = factors ? factor_of(i, FACTORS) : low * pow(ratio, (double)i);
            if (value > of[k].high || value < of[k].low) continue;
            if (past(x)) return LS_OK;
            *knob_of(&edit, k) = value;
            LS_TRY(ls_explain_changed(x, edit, 0, AS_GIVEN, 0, n_texts, &e, err));
            if (e.median + e.q90 < least) least = e.median + e.q90, best = value;
        }
        if (least > 0.9 * (before->median + before->q90)) return LS_OK;
        if (round == 0) least = (double)INFINITY;
        if (factors) ratio = exp(fabs(log(best))); /* to the neighbours' or beyond */
        low = best / ratio;
        high = best * ratio;
    }
    for (int round = 0; round < 6; round++) { /* as sharp as the rest is small */
        const double step = pow(high / low, 1.0 / 4.0);
        for (double value = low; value <= high * 1.0000001; value *= step) {
            if (past(x)) return LS_OK;
            *knob_of(&edit, k) = value;
            LS_TRY(ls_explain_changed(x, edit, 0, AS_GIVEN, 0, x->n_few, &e, err));
            if (e.median + e.q90 < least) least = e.median + e.q90, best = value;
        }
        low = best / sqrt(step);
        high = best * sqrt(step);
    }
    *knob_of(&edit, k) = best;
    e = searched(
        ls_explain_named(of[k].of_attention ? LS_CAUSE_POSITIONS : LS_CAUSE_FORMULA, "%s %.4g", of[k].what, best));
    e.fitted = true;
    return try_edit(x, edit, e, err);
}

static ls_status try_knobs(explainer *x, ls_error *err) {
    for (int k = 0; k < KNOBS; k++) LS_TRY(try_knob(x, (knob)k, err));
    return LS_OK;
}

/* ---- what is not read ---- */

static ls_status try_length(explainer *x, int64_t n, ls_error *err) {
    LS_TRY(try_edit(
        x, (ls_edit){.layer = -1, .window = n},
        searched(ls_explain_named(LS_CAUSE_FROM_A_LENGTH, "attention sees the last %lld tokens", (long long)n)), err));
    for (int own = 0; own < 2; own++)
        LS_TRY(try_edit(x, (ls_edit){.layer = -1, .first_keys = n, .own_too = own},
                        searched(ls_explain_named(LS_CAUSE_FROM_A_LENGTH, "attention sees the first %lld tokens%s",
                                                  (long long)n, own ? "" : " and its own")),
                        err));
    return LS_OK;
}

static const char *lost_words(int32_t lose) {
    static const char *const words[8] = {"",
                                         "the convolution window",
                                         "the scan state",
                                         "window and scan state",
                                         "the keys and values",
                                         "window, keys and values",
                                         "scan state, keys and values",
                                         "everything"};
    return words[lose & 7];
}

/* Windows and tables that end, near the length from which on requests are off where it is known. */
static ls_status try_lengths(explainer *x, ls_error *err) {
    const int64_t known = x->q->known_length;
    int64_t longest = 0;
    for (int64_t t = 0; t < x->n_texts; t++) longest = x->texts[t].n > longest ? x->texts[t].n : longest;
    if (known <= 0) {
        for (int64_t n = 1; n < longest && n <= 64; n++) LS_TRY(try_length(x, n, err));
        return LS_OK;
    }
    for (int64_t n = known > 3 ? known - 3 : 1; n <= known + 2; n++) {
        LS_TRY(try_length(x, n, err));
        for (int32_t lose = 1; lose < 8; lose++) {
            const ls_edit e = {.layer = -1, .cut_every = n, .cut_from = n, .cut_before = n + 1, .lose = lose};
            LS_TRY(try_edit(x, e,
                            searched(ls_explain_named(LS_CAUSE_FROM_A_LENGTH, "behind %lld tokens: %s lost",
                                                      (long long)n, lost_words(lose))),
                            err));
        }
    }
    return LS_OK;
}

static ls_status try_pages(explainer *x, ls_error *err) {
    for (int64_t page = 4; page <= 128; page *= 2)
        for (int last = 0; last < 4; last++) {
            const ls_edit e = {
                .layer = -1, .lost_every = page, .lost_at = last % 2 ? page - 1 : 0, .own_too = last / 2};
            LS_TRY(try_edit(x, e,
                            searched(ls_explain_named(LS_CAUSE_PAGE_SIZE, "attention does not see the %s of every %lld",
                                                      last % 2 ? "last" : "first", (long long)page)),
                            err));
        }
    return LS_OK;
}

static ls_status try_handover(explainer *x, ls_error *err) {
    for (int cut = 2; cut <= 3; cut++)
        for (int32_t lose = 1; lose < 8; lose++) {
            const ls_edit e = {.layer = -1, .lose = lose};
            LS_TRY(try_changed(
                x, &e, cut, AS_GIVEN, 0,
                ls_explain_named(LS_CAUSE_STATE_INTO_DECODE, "%s: %s lost",
                                 cut == 2 ? "where decoding begins" : "at every decoded token", lost_words(lose)),
                err));
        }
    if (x->q->config->n_eos > 0) {
        const ls_edit e = {.layer = -1, .reset_token = x->q->config->eos[0] + 1, .lose = 7};
        LS_TRY(try_changed(
            x, &e, 0, AS_GIVEN, 0,
            ls_explain_named(LS_CAUSE_EOS_INSIDE, "nothing is remembered across an end-of-sequence token"), err));
    }
    return LS_OK;
}

/* How much a stack that is bf16 throughout would change these records, as a measure of what is ordinary there. */
ls_status ls_explain_bf16(explainer *x, ls_error *err) {
    const ls_edit e = {.layer = -1, .activations = LS_ROUND_BF16, .weights = LS_CHANGED_BF16, .keys = LS_ROUND_BF16};
    ls_explanation size;
    ls_explain_begin(x);
    for (int64_t t = 0; t < x->n_texts; t++) {
        const text *one = &x->texts[t];
        LS_TRY(ls_reference_logits(x->q->reference, &e, one->tokens, one->n, x->rows, err));
        for (int64_t i = 0; i < one->n_recorded; i++)
            x->errors[x->n_errors++] = fabs(ls_explain_record(x, one, x->rows, i, (how){PLAIN, 0.0, 0}) -
                                            ls_explain_record(x, one, one->rows, i, (how){PLAIN, 0.0, 0}));
    }
    ls_explain_finish(x, &size);
    x->q->f->bf16_size = size.median;
    return LS_OK;
}

ls_status ls_explain_models(explainer *x, ls_error *err) {
    if (x->q->decode_solo) return try_handover(x, err); /* anything else moves first tokens as well */
    LS_TRY(try_hypotheses(x, err));
    LS_TRY(try_precision(x, err));
    LS_TRY(try_formulas(x, err));
    LS_TRY(try_handover(x, err));
    LS_TRY(try_lengths(x, err));
    LS_TRY(try_pages(x, err));
    LS_TRY(try_weights(x, err));
    LS_TRY(try_knobs(x, err));
    return try_inserted(x, err);
}
