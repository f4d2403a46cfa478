/* What an inquiry has found so far: causes with their evidence, the surest first, and the smallest requests that show
 * it. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "diagnose/rounding/foreign.h"

static const struct {
    const char *name, *text, *look;
} causes[] = {
    {"stale state of a reused slot", "a request continues from the state that the slot's last owner left",
     "where a slot is given to a new request: clear convolution window, scan state and keys whatever its first chunk "
     "is"},
    {"another sequence's state is read", "sequences that run together take each other's state or rows",
     "the map from rows of the batch to slots, in decode and in prefill"},
    {"no reset between packed sequences",
     "a sequence that begins behind another one in the same forward begins with that "
     "one's state",
     "the sequence boundaries that scan and convolution are given"},
    {"padding leaks into the state",
     "with prompts of unequal length in a batch, padding goes through the recurrent state",
     "the mask of the padding, in front of the convolution and behind it"},
    {"order of sums follows the batch",
     "how many requests run together decides which kernel or precision computes them",
     "what is dispatched by the number of rows"},
    {"slot offset wraps", "from a slot on, its address is that of another slot",
     "the type in which slot times stride is computed"},
    {"prefix hit across different prompts", "a prompt is given the cached state of another one",
     "the key of the prefix cache: it must cover all tokens and what came before them"},
    {"prefix snapshot at the wrong token",
     "the state that a prefix hit restores is not that behind the prefix's last token",
     "when the snapshot is taken and what of it is restored: window, scan state, keys"},
    {"prefix cache returns old entries", "a cached prefix is wrong when it has been used, shared or evicted in between",
     "who may write to what the cache holds"},
    {"convolution window lost in short chunks",
     "a chunk of fewer tokens than the convolution looks back loses the inputs "
     "before it",
     "the convolution's state update for chunks shorter than d_conv - 1"},
    {"convolution window lost between chunks", "a chunk begins without the last inputs of the one before",
     "the convolution's initial state in every chunk but the first"},
    {"state lost between chunks", "a chunk does not continue from what the one before left",
     "initial states and positions of every chunk but the first"},
    {"page size matters", "attention is wrong at a border of its KV pages", "first and last token of a page"},
    {"wrong from a length on", "contexts beyond a length are computed otherwise",
     "what changes at that length: a window, a table's end, a kernel for long contexts"},
    {"other arithmetic in decode", "prompts are right and decoded tokens are not",
     "the decode kernel: its formulas, its precision, the state it is handed"},
    {"state lost between prefill and decode", "decoding does not continue from what the prompt left",
     "what prefill hands to decode: convolution window, scan state, keys"},
    {"fork is not a copy", "samples that share a prefill differ from samples that each have their own",
     "the copy of state slot and last page at a fork"},
    {"preempted sequences come back wrong", "a sequence that was taken out goes on from another state",
     "what is saved, what is computed again, at which position"},
    {"swapped sequences come back wrong", "a sequence that was swapped out goes on from another state",
     "what swap saves: convolution window, scan state, last page"},
    {"memory given back is not restored", "after the pools' memory was given back, sequences go on from another state",
     "what is computed again when memory returns"},
    {"not repeatable", "the same trial twice gives two results", "races, atomics on floats, uninitialised memory"},
    {"temperature on one side only", "recorded log-probabilities are of another temperature than was asked for",
     "where the record is taken: in front of or behind the division by the temperature"},
    {"log-probabilities scaled", "recorded log-probabilities are multiplied by a number",
     "a division of log-probabilities where logits are meant, or another base of the logarithm"},
    {"top-k or top-p on one side only", "log-probabilities are of a distribution that was cut and renormalised",
     "defaults of sampling that nobody asked for; raw or processed records"},
    {"penalty on one side only", "log-probabilities are of logits with a penalty on tokens seen",
     "defaults of sampling that nobody asked for"},
    {"end of sequence masked", "log-probabilities are of a distribution without the end-of-sequence token",
     "how ending is suppressed: it must not change the record"},
    {"end of sequence inside a context", "an end-of-sequence token inside a context changes what follows",
     "what looks at token ids: resets, masks, trimming"},
    {"special token inside a prompt", "a begin-of-sequence or padding token inside a prompt is not read as any other",
     "what looks at token ids: masks made from the padding id, templates"},
    {"records of other tokens", "records are not those of the tokens that were drawn", "the index that gathers them"},
    {"log-probabilities missing", "some tokens have no value: null, NaN, an infinity or a sentinel stands there",
     "what writes the record where there is no value, and what the trainer makes of it"},
    {"records shifted", "each record belongs to a neighbour of its token",
     "the index that pairs drawn tokens with rows of logits"},
    {"log-probabilities in low precision", "recorded log-probabilities are rounded",
     "the type in which they are computed or sent"},
    {"other tokens than were sent", "the model reads other tokens than the request has",
     "begin-of-sequence tokens, templates, truncation"},
    {"head in low precision", "logits are computed or kept in too few bits",
     "the type of the head's product and output"},
    {"weights in low precision", "weights are rounded", "how the checkpoint is loaded"},
    {"one layer has other weights", "one layer does not have the weights of the checkpoint",
     "the map of tensor names, and what was synchronised last"},
    {"activations in low precision", "activations are rounded more than was asked for", "the type of activations"},
    {"keys and values in 8 bits", "the KV cache is quantised", "the type of the KV cache"},
    {"positions or scale of attention", "attention has other positions, another scale or another window",
     "the attention layer's configuration"},
    {"another formula in the model", "a part of the model is computed otherwise", "that part"},
    {"other weights or another formula", "every value is off, alone and in whatever way it is run",
     "digests of the weights; then layer by layer on the smallest request"},
    {"ends without an answer", "the suspect dies, hangs or gives up", "its log; the smallest requests bring it back"},
};

/* What is left when no explanation fits says less when not all of them were tried. */
static bool is_fallback(const char *cause) {
    return strcmp(cause, "other weights or another formula") == 0 || strcmp(cause, "other arithmetic in decode") == 0;
}

void ls_foreign_find(ls_foreign *f, const char *cause, ls_rung rung, double confidence, const char *format, ...) {
    ls_finding found = {.cause = cause, .text = "", .look = "", .confidence = confidence, .rung = rung};
    int64_t at = f->n_findings;
    va_list args;
    va_start(args, format);
    vsnprintf(found.evidence, sizeof found.evidence, format, args);
    va_end(args);
    for (size_t i = 0; i < sizeof causes / sizeof causes[0]; i++)
        if (strcmp(causes[i].name, cause) == 0) {
            found.cause = causes[i].name;
            found.text = causes[i].text;
            found.look = causes[i].look;
        }
    if (f->out_of_time && is_fallback(cause)) found.confidence = confidence = 0.9 * confidence;
    while (at > 0 && f->findings[at - 1].confidence < confidence) at--;
    if (at == LS_FINDINGS_MAX) return;
    if (f->n_findings < LS_FINDINGS_MAX) f->n_findings++;
    memmove(&f->findings[at + 1], &f->findings[at], (size_t)(f->n_findings - 1 - at) * sizeof *f->findings);
    f->findings[at] = found;
}

/* Values are off. A trial without an answer says nothing of any, but of the failure itself (decide_failures). */
bool ls_rung_off(const ls_inquiry *q, ls_rung r) {
    return q->f->seen[r].look == LS_LOOK_OFF && q->f->seen[r].outcomes.n > 0;
}

/* Runs a rung that is off a second time: values that move by themselves are no evidence of anything else. */
ls_status ls_foreign_repeat(ls_inquiry *q, ls_rung rung, bool *moves, ls_error *err) {
    ls_seen again;
    ls_trial trial;
    uint64_t needs;
    double most = 0.0;
    ls_rung_trial(q, rung, &trial, &needs);
    LS_TRY(ls_foreign_try(q, &trial, 0, q->requests[rung].of, q->requests[rung].n, &again, err));
    for (int64_t s = 0; s < again.outcomes.n && s < q->f->seen[rung].outcomes.n; s++) {
        const ls_outcome *a = &again.outcomes.of[s], *b = &q->f->seen[rung].outcomes.of[s];
        for (int64_t i = 0; i < a->n && i < b->n && a->completion[i] == b->completion[i]; i++)
            if (ls_token_off(q->f, a, i) || ls_token_off(q->f, b, i))
                most = fmax(most, fabs((double)a->logprob[i] - (double)b->logprob[i]));
    }
    *moves = most > q->f->limit;
    if (*moves) {
        if (most > q->f->repeat) q->f->repeat = most;
        ls_foreign_find(q->f, "not repeatable", rung, 0.95,
                        "%s run twice differs by up to %.2g; rounding makes %.2g of a difference to the trainer",
                        ls_rung_name(rung), most, q->f->floor);
    }
    ls_seen_deinit(&again);
    return LS_OK;
}

ls_status ls_foreign_keep_repro(ls_inquiry *q, const ls_prompt *prompts, int64_t n, const ls_trial *trial,
                                ls_error *err) {
    ls_sweep *sweep = q->runner->sweep;
    int64_t total = 0;
    LS_TRY(ls_array_alloc((void **)&sweep->repro, n, sizeof *sweep->repro, "prompts", err));
    for (int64_t i = 0; i < n; i++) total += prompts[i].n;
    LS_TRY(ls_array_alloc((void **)&sweep->repro_ids, total, sizeof *sweep->repro_ids, "prompts", err));
    for (int64_t i = 0, at = 0; i < n; at += prompts[i++].n) {
        memcpy(sweep->repro_ids + at, prompts[i].ids, (size_t)prompts[i].n * sizeof *sweep->repro_ids);
        sweep->repro[i] = (ls_prompt){sweep->repro_ids + at, prompts[i].n};
    }
    sweep->n_repro = n;
    sweep->repro_trial = *trial;
    return LS_OK;
}

void ls_foreign_drop_repro(ls_inquiry *q) {
    ls_sweep *sweep = q->runner->sweep;
    free(sweep->repro);
    free(sweep->repro_ids);
    sweep->repro = NULL;
    sweep->repro_ids = NULL;
    sweep->n_repro = 0;
}
