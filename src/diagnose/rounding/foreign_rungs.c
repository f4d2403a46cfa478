/* The rungs of a stack that promises no bits: requests and settings. The baseline of all is a request alone in its
 * process, its prompt in one piece, nothing used twice. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "diagnose/rounding/foreign.h"

#define LEVER(name) lever_bit(name)

static const struct {
    const char *name, *text;
} rungs[LS_RUNGS] = {
    [LS_RUNG_ALONE_A] = {"alone-a", "a prompt of 6 tokens, alone in its process, in one piece"},
    [LS_RUNG_ALONE_B] = {"alone-b", "a prompt of 7 tokens, likewise"},
    [LS_RUNG_ALONE_C] = {"alone-c", "a prompt of 5 tokens, likewise"},
    [LS_RUNG_ALONE_LONG] = {"alone-long", "a prompt of 41 tokens, likewise"},
    [LS_RUNG_AGAIN] = {"again", "the long prompt once more"},
    [LS_RUNG_LENGTHS] = {"lengths", "prompts of 1 to 130 tokens, one at a time, no slot used twice"},
    [LS_RUNG_SEQUENCE] = {"sequence", "one at a time, one slot for all"},
    [LS_RUNG_FRESH] = {"fresh", "the same, no slot used twice"},
    [LS_RUNG_SINGLE] = {"single-token", "prompts of one token, one slot for all"},
    [LS_RUNG_TURNS] = {"turns", "two at a time, of equal length, in two slots for all"},
    [LS_RUNG_PAIR] = {"pair", "two at a time, of equal length"},
    [LS_RUNG_BATCH] = {"batch", "eight at a time, of equal length"},
    [LS_RUNG_UNEQUAL] = {"unequal", "four at a time, of unequal lengths"},
    [LS_RUNG_MIXED] = {"mixed", "four at a time in chunks of 5 tokens, so that some begin while others decode"},
    [LS_RUNG_CHUNK1] = {"chunk-1", "prompts in chunks of 1 token"},
    [LS_RUNG_CHUNK2] = {"chunk-2", "prompts in chunks of 2 tokens"},
    [LS_RUNG_CHUNK3] = {"chunk-3", "prompts in chunks of 3 tokens"},
    [LS_RUNG_CHUNK5] = {"chunk-5", "prompts in chunks of 5 tokens"},
    [LS_RUNG_CHUNK8] = {"chunk-8", "prompts in chunks of 8 tokens"},
    [LS_RUNG_CHUNK16] = {"chunk-16", "prompts in chunks of 16 tokens"},
    [LS_RUNG_CACHED_SAME] = {"cached-same", "each of four prompts three times, prefix cache on"},
    [LS_RUNG_CACHED_SHARED] = {"cached-shared", "prompts with a common beginning, prefix cache on"},
    [LS_RUNG_CACHED_TAIL] = {"cached-tail", "prompts with a common end and other beginnings, prefix cache on"},
    [LS_RUNG_CACHED_LENGTH] = {"cached-length", "prompts alike in length alone, prefix cache on"},
    [LS_RUNG_CACHED_ORDER] = {"cached-order", "the same tokens in another order, prefix cache on"},
    [LS_RUNG_CACHED_CROSSED] = {"cached-crossed", "pieces of two prompts put together crosswise, prefix cache on"},
    [LS_RUNG_CACHED_POINTS] = {"cached-points", "prompts that differ in one token, prefix cache on"},
    [LS_RUNG_CACHED_ROUNDS] = {"cached-rounds", "two rounds of ten prompts, prefix cache on"},
    [LS_RUNG_CACHED_BATCH] = {"cached-batch", "two rounds, four at a time, prefix cache on"},
    [LS_RUNG_CACHED_CHUNK] = {"cached-chunk", "two rounds in chunks of 8 tokens, prefix cache on"},
    [LS_RUNG_CACHED_EXTENDED] = {"cached-extended",
                                 "a prompt, longer ones that begin with it, and it again, prefix cache on"},
    [LS_RUNG_CACHED_TWINS] = {"cached-twins", "prompts with the same beginning at the same time, prefix cache on"},
    [LS_RUNG_CACHED_TWINS_WHOLE] = {"cached-twins-whole", "the same, prompts in one piece"},
    [LS_RUNG_PROCESSED] = {"processed", "processed log-probabilities, temperature 0.7"},
    [LS_RUNG_RAW] = {"raw", "raw log-probabilities, temperature 0.7"},
    [LS_RUNG_PROCESSED_ONE] = {"processed-one", "processed log-probabilities, temperature 1"},
    [LS_RUNG_PROCESSED_HOT] = {"processed-hot", "processed log-probabilities, temperature 4"},
    [LS_RUNG_COLD] = {"cold", "raw log-probabilities, temperature 1"},
    [LS_RUNG_EOS] = {"eos", "an end-of-sequence token inside and at the end of prompts"},
    [LS_RUNG_BOS] = {"bos", "a begin-of-sequence token at the front and inside of prompts"},
    [LS_RUNG_PAD] = {"pad", "the padding token inside and at the end of prompts"},
    [LS_RUNG_PAGE4] = {"page-4", "KV pages of 4 tokens"},
    [LS_RUNG_PAGE64] = {"page-64", "KV pages of 64 tokens"},
    [LS_RUNG_SLOT] = {"slot", "64 slots, the one with number 63"},
    [LS_RUNG_FAR_SLOT] = {"far-slot", "2048 slots, the last one"},
    [LS_RUNG_FARTHER_SLOT] = {"farther-slot", "69776 slots, the last one"},
    [LS_RUNG_FORK] = {"fork", "four samples that share a prefill"},
    [LS_RUNG_RECOMPUTE] = {"preempt-recompute", "preemption every third tick, computed again"},
    [LS_RUNG_SWAP] = {"preempt-swap", "preemption every third tick, swapped out"},
    [LS_RUNG_SLEEP] = {"sleep", "memory given back every fourth tick"},
    [LS_RUNG_TOP_K] = {"top-k", "draws from the 5 likeliest"},
    [LS_RUNG_TOP_P] = {"top-p", "draws from the likeliest of total probability 0.8"},
    [LS_RUNG_GREEDY] = {"greedy", "temperature 0"},
    [LS_RUNG_STAGGERED] = {"staggered", "requests that begin while others run"},
    [LS_RUNG_LEAVERS] = {"leavers", "requests behind others whose clients went away"},
    [LS_RUNG_LOAD] = {"load", "requests beside 16 long ones"},
    [LS_RUNG_CACHED_RESET] = {"cached-reset", "two rounds, the prefix cache emptied between them"},
    [LS_RUNG_LONG] = {"long", "prompts of 255 to 1,025 tokens"},
    [LS_RUNG_TEXT] = {"text", "prompts as text"},
    [LS_RUNG_CROWD] = {"crowd", "72 short prompts at once, each in a slot of its own"},
    [LS_RUNG_MANY] = {"many", "72 prompts of all lengths, 16 at a time, 16 slots"},
    [LS_RUNG_CACHED_MANY] = {"cached-many", "72 prompts that share pieces, twice, prefix cache on"},
};

const char *ls_rung_name(ls_rung rung) { return rungs[rung].name; }
const char *ls_rung_text(ls_rung rung) { return rungs[rung].text; }

bool ls_rung_is_of_servers(ls_rung rung) { return rung >= LS_RUNG_TOP_K && rung <= LS_RUNG_TEXT; }

const char *ls_look_name(ls_look look) {
    return look == LS_LOOK_UNTRIED ? "not tried" : look == LS_LOOK_CLEAN ? "clean" : "differs";
}

static uint64_t lever_bit(const char *name) {
    const int64_t i = ls_lever_find(name);
    return i >= 0 ? (uint64_t)1 << i : 0;
}

/* ---- requests ---- */

/* splitmix64. */
static uint64_t mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static bool is_special(const ls_model_config *c, int32_t token) {
    if (token == c->bos || token == c->pad) return true;
    for (int32_t i = 0; i < c->n_eos; i++)
        if (token == c->eos[i]) return true;
    return false;
}

int32_t ls_plain_token(const ls_inquiry *q, int64_t text, int64_t i) {
    const ls_sweep_opts *o = &q->runner->sweep->opts;
    const uint64_t n = o->ids != NULL ? (uint64_t)o->n_ids : (uint64_t)q->config->vocab;
    for (uint64_t k = 0;; k++) {
        const uint64_t drawn = mix(mix(q->seed ^ mix((uint64_t)text)) + (uint64_t)i * 64 + k) % n;
        const int32_t token = o->ids != NULL ? o->ids[drawn] : (int32_t)drawn;
        if (k == 63 || !is_special(q->config, token)) return token;
    }
}

ls_status ls_requests_add(ls_requests *out, const int32_t *ids, int64_t n, ls_error *err) {
    const int32_t *before = out->ids;
    LS_ASSERT(out->n < (int64_t)(sizeof out->of / sizeof out->of[0]), "%lld requests", (long long)out->n);
    LS_TRY(ls_array_grow((void **)&out->ids, &out->cap, out->n_ids + n, sizeof *out->ids, "prompts", err));
    for (int64_t i = 0; before != out->ids && i < out->n; i++) /* they moved */
        out->of[i].ids = out->ids + (out->of[i].ids - before);
    memcpy(out->ids + out->n_ids, ids, (size_t)n * sizeof *ids);
    out->of[out->n++] = (ls_prompt){out->ids + out->n_ids, n};
    out->n_ids += n;
    return LS_OK;
}

ls_status ls_requests_plain(const ls_inquiry *q, ls_requests *out, int64_t text, int64_t n, ls_error *err) {
    int32_t ids[LS_PLAIN_MOST];
    LS_ASSERT(n <= LS_PLAIN_MOST, "%lld tokens", (long long)n);
    for (int64_t i = 0; i < n; i++) ids[i] = ls_plain_token(q, text, i);
    return ls_requests_add(out, ids, n, err);
}

/* A text of n tokens, of which the first `head` are those of text `front`. */
static ls_status add_text(ls_inquiry *q, ls_rung rung, int64_t front, int64_t head, int64_t text, int64_t n,
                          ls_error *err) {
    int32_t ids[LS_PLAIN_MOST];
    for (int64_t i = 0; i < n; i++) ids[i] = ls_plain_token(q, i < head ? front : text, i);
    return ls_requests_add(&q->requests[rung], ids, n, err);
}

static ls_status add_plain(ls_inquiry *q, ls_rung rung, int64_t text, int64_t n, ls_error *err) {
    return ls_requests_plain(q, &q->requests[rung], text, n, err);
}

static ls_status add_with(ls_inquiry *q, ls_rung rung, int64_t text, int64_t n, int32_t token, int64_t at,
                          ls_error *err) {
    ls_requests *r = &q->requests[rung];
    LS_TRY(add_plain(q, rung, text, n, err));
    if (token >= 0 && token < q->config->vocab) r->ids[r->n_ids - n + at] = token;
    return LS_OK;
}

static ls_status add_special(ls_inquiry *q, ls_rung rung, int32_t token, ls_error *err) {
    LS_TRY(add_with(q, rung, 500, 9, token, 4, err));
    LS_TRY(add_with(q, rung, 501, 9, token, 8, err));
    LS_TRY(add_with(q, rung, 502, 9, token, 0, err));
    LS_TRY(add_plain(q, rung, 503, 9, err));
    return add_with(q, rung, 504, 12, token, 6, err);
}

/* Pieces of two prompts put together crosswise: a key that leaves out what stands in front of a piece takes one for
 * another. */
static ls_status add_crossed(ls_inquiry *q, ls_rung rung, ls_error *err) {
    static const int from[5][2] = {{0, 1}, {2, 3}, {0, 3}, {2, 1}, {1, 0}};
    int32_t ids[LS_PLAIN_MOST];
    for (int64_t piece = 16; piece <= 32; piece += 16)
        for (int64_t p = 0; p < 5; p++) {
            for (int64_t i = 0; i < 2 * piece; i++)
                ids[i] = ls_plain_token(q, 670 + piece + from[p][i / piece], i % piece);
            for (int64_t i = 0; i < 5; i++) ids[2 * piece + i] = ls_plain_token(q, 680 + piece + p, i);
            LS_TRY(ls_requests_add(&q->requests[rung], ids, 2 * piece + 5, err));
        }
    return LS_OK;
}

/* One prompt, and others that differ from it in one token each. */
static ls_status add_points(ls_inquiry *q, ls_rung rung, ls_error *err) {
    static const int64_t places[] = {-1, 0, 3, 7, 11, 15, 16, 23, 30, 31, 37};
    int32_t ids[LS_PLAIN_MOST];
    for (size_t p = 0; p < sizeof places / sizeof places[0]; p++) {
        for (int64_t i = 0; i < 40; i++) ids[i] = ls_plain_token(q, i == places[p] ? 731 : 730, i);
        LS_TRY(ls_requests_add(&q->requests[rung], ids, 40, err));
    }
    return LS_OK;
}

/* A prompt, longer ones that begin with it, and it again: who writes into what the cache holds? */
static ls_status add_extended(ls_inquiry *q, ls_rung rung, ls_error *err) {
    static const struct {
        int64_t text, n;
    } of[] = {{740, 33}, {741, 34}, {742, 36}, {740, 33}, {743, 41},
              {743, 49}, {741, 34}, {740, 35}, {744, 34}, {740, 33}};
    for (size_t p = 0; p < sizeof of / sizeof of[0]; p++) LS_TRY(add_text(q, rung, 740, 32, of[p].text, of[p].n, err));
    return LS_OK;
}

/* Four at a time with a common beginning, of which two are equal. */
static ls_status add_twins(ls_inquiry *q, ls_rung rung, ls_error *err) {
    for (int64_t p = 0; p < 12; p++) {
        const int64_t front = 750 + 10 * (p / 4), own = front + (p % 4 < 2 ? 1 : p % 4);
        LS_TRY(add_text(q, rung, front, p < 4 ? 36 : p < 8 ? 33 : 17, own, 41 - p % 4 / 2 * 3, err));
    }
    return LS_OK;
}

/* Prompts for a prefix cache: short ones and ones of several blocks of 16. */
static ls_status add_cached(ls_inquiry *q, ls_rung rung, ls_error *err) {
    static const int64_t lengths[4] = {12, 41, 32, 64}, shared[2] = {6, 20}; /* 32 and 64 end where a block does */
    int32_t ids[LS_PLAIN_MOST];
    for (int k = 0; k < (rung == LS_RUNG_CACHED_SAME ? 4 : 2); k++)
        for (int64_t p = 0; p < 5; p++) {
            const int64_t n = lengths[k], own = 600 + 10 * k + p, first = 600 + 10 * k;
            switch (rung) {
                case LS_RUNG_CACHED_SAME:
                    if (p < 3) LS_TRY(add_plain(q, rung, first, n, err));
                    break;
                case LS_RUNG_CACHED_SHARED: /* the last two part right behind the first token, or a block of 16 */
                    LS_TRY(add_text(q, rung, first, p < 3 ? shared[k] : p == 3 ? 1 : n - 9, own, n, err));
                    break;
                case LS_RUNG_CACHED_TAIL:
                    for (int64_t i = 0; i < n; i++)
                        ids[i] = ls_plain_token(q, i < n - 30 || i < n / 3 ? own : first, i);
                    LS_TRY(ls_requests_add(&q->requests[rung], ids, n, err));
                    break;
                case LS_RUNG_CACHED_ORDER:
                    for (int64_t i = 0; i < n; i++)
                        ids[i] = ls_plain_token(q, first, i < n - 1 ? (i + p) % (n - 1) : i);
                    LS_TRY(ls_requests_add(&q->requests[rung], ids, n, err));
                    break;
                default: LS_TRY(add_plain(q, rung, own, n, err)); break;
            }
        }
    return LS_OK;
}

/* Lengths so unlike that in chunks no two begin to decode at the same time, nor end. */
static ls_status add_mixed(ls_inquiry *q, ls_rung rung, ls_error *err) {
    static const int64_t lengths[12] = {3, 23, 9, 17, 5, 31, 2, 13, 7, 27, 4, 11};
    for (int64_t p = 0; p < 12; p++) LS_TRY(add_plain(q, rung, 280 + p, lengths[p], err));
    return LS_OK;
}

static ls_status add_many(ls_inquiry *q, ls_rung rung, ls_error *err) {
    for (int64_t p = 0; p < 72; p++) {
        if (rung == LS_RUNG_CROWD)
            LS_TRY(add_plain(q, rung, 700 + p, 4, err));
        else if (rung == LS_RUNG_MANY)
            LS_TRY(add_plain(q, rung, 800 + p, 1 + (7 * p) % 23, err));
        else
            LS_TRY(add_text(q, rung, 900 + p % 6, 16 * (1 + p % 2) + 1, 910 + p % 36, 36, err));
    }
    return LS_OK;
}

static ls_status add_lengths(ls_inquiry *q, ls_rung rung, ls_error *err) {
    static const int64_t lengths[] = {1,  2,  3,  4,  5,  6,  8,  9,  11, 13, 15, 16, 17, 18, 21,  24,  27,
                                      31, 32, 33, 34, 37, 42, 47, 48, 49, 56, 63, 64, 65, 80, 100, 129, 130};
    const size_t n = sizeof lengths / sizeof lengths[0];
    /* Short and long ones in turn, so that "from a length on" is not "from a request on". 13 has no part in 34. */
    for (size_t i = 0; i < n; i++) LS_TRY(add_plain(q, rung, 100 + (int64_t)i, lengths[i * 13 % n], err));
    return LS_OK;
}

static ls_status add_long(ls_inquiry *q, ls_rung rung, ls_error *err) {
    static const int64_t lengths[] = {255, 256, 257, 511, 512, 513, 1023, 1025};
    const int64_t most = q->runner->sweep->opts.length_max;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        if (most == 0 || lengths[i] + 8 <= most || i == 0)
            LS_TRY(add_plain(q, rung, 1200 + (int64_t)i, lengths[i], err));
    return LS_OK;
}

static ls_status add_texts(ls_inquiry *q, ls_rung rung, ls_error *err) {
    const ls_sweep_opts *o = &q->runner->sweep->opts;
    for (int64_t i = 0, at = 0; i < o->n_texts; at += o->text_n[i++])
        LS_TRY(ls_requests_add(&q->requests[rung], o->text_ids + at, o->text_n[i], err));
    return LS_OK;
}

ls_status ls_rung_requests(ls_inquiry *q, ls_rung rung, ls_error *err) {
    static const int64_t mixed[8] = {9, 12, 5, 14, 7, 9, 3, 10}, pages[4] = {7, 18, 33, 40};
    static const int64_t over_pages[8] = {9, 21, 5, 38, 7, 18, 3, 34};
    const ls_model_config *c = q->config;
    if (q->requests[rung].n > 0) return LS_OK;
    switch (rung) {
        case LS_RUNG_ALONE_A: return add_plain(q, rung, 1, 6, err);
        case LS_RUNG_ALONE_B: return add_plain(q, rung, 2, 7, err);
        case LS_RUNG_ALONE_C: return add_plain(q, rung, 3, 5, err);
        case LS_RUNG_ALONE_LONG:
        case LS_RUNG_AGAIN: return add_plain(q, rung, 4, 41, err);
        case LS_RUNG_LENGTHS: return add_lengths(q, rung, err);
        case LS_RUNG_EOS: return add_special(q, rung, c->n_eos > 0 ? c->eos[0] : -1, err);
        case LS_RUNG_BOS: return add_special(q, rung, c->bos, err);
        case LS_RUNG_PAD: return add_special(q, rung, c->pad, err);
        case LS_RUNG_CACHED_SAME:
        case LS_RUNG_CACHED_SHARED:
        case LS_RUNG_CACHED_TAIL:
        case LS_RUNG_CACHED_LENGTH:
        case LS_RUNG_CACHED_ORDER:
        case LS_RUNG_CACHED_ROUNDS:
        case LS_RUNG_CACHED_BATCH:
        case LS_RUNG_CACHED_CHUNK: return add_cached(q, rung, err);
        case LS_RUNG_CACHED_CROSSED: return add_crossed(q, rung, err);
        case LS_RUNG_CACHED_POINTS: return add_points(q, rung, err);
        case LS_RUNG_CACHED_EXTENDED: return add_extended(q, rung, err);
        case LS_RUNG_CACHED_TWINS:
        case LS_RUNG_CACHED_TWINS_WHOLE: return add_twins(q, rung, err);
        case LS_RUNG_MIXED: return add_mixed(q, rung, err);
        case LS_RUNG_CACHED_RESET: return add_cached(q, LS_RUNG_CACHED_RESET, err);
        case LS_RUNG_LONG: return add_long(q, rung, err);
        case LS_RUNG_TEXT: return add_texts(q, rung, err);
        case LS_RUNG_CROWD:
        case LS_RUNG_MANY:
        case LS_RUNG_CACHED_MANY: return add_many(q, rung, err);
        default: break;
    }
    for (int64_t p = 0; p < 8; p++) {
        if (rung == LS_RUNG_SINGLE)
            LS_TRY(add_plain(q, rung, 200 + p, 1, err));
        else if (rung == LS_RUNG_TURNS || rung == LS_RUNG_PAIR || rung == LS_RUNG_BATCH)
            LS_TRY(add_plain(q, rung, 220 + p, 9, err));
        else if ((rung >= LS_RUNG_CHUNK1 && rung <= LS_RUNG_CHUNK16) || rung == LS_RUNG_PAGE4 || rung == LS_RUNG_PAGE64)
            LS_TRY(p < 4 ? add_plain(q, rung, 240 + p, pages[p], err) : LS_OK);
        else
            LS_TRY(add_plain(
                q, rung, 260 + p,
                rung == LS_RUNG_RECOMPUTE || rung == LS_RUNG_SWAP || rung == LS_RUNG_SLEEP ? over_pages[p] : mixed[p],
                err));
    }
    return LS_OK;
}

/* ---- settings ---- */

static void plain_trial(const ls_inquiry *q, ls_trial *out) {
    const ls_sweep_opts *o = &q->runner->sweep->opts;
    ls_levers *l = &out->levers;
    memset(out, 0, sizeof *out);
    ls_ladder_numerics(out, q->runner->ladder, o->dtype);
    out->sampling = (ls_sampling){.temperature = 4.0f, .top_p = 1.0f, .seed = o->seed};
    out->max_tokens = 6;
    out->rounds = 1;
    ls_levers_init(l);
    l->threads = o->threads;
    l->isa = o->isa;
    l->batch = 1;
    l->chunk = 0;
    l->tick_tokens = 4096;
    l->prefix = LS_PREFIX_OFF;
    l->fork = false;
    l->slots = 64;
    l->pages = 1024;
    if (q->runner->door->subject->is_server) out->sampling.temperature = (float)o->temperature;
}

const char *ls_rung_refused(const ls_inquiry *q, ls_rung rung) {
    const ls_subject *s = q->runner->door->subject;
    const ls_model_config *c = q->config;
    ls_trial trial;
    uint64_t needs;
    if (!s->is_server) return ls_rung_is_of_servers(rung) ? "of servers alone" : NULL;
    ls_rung_trial(q, rung, &trial, &needs);
    if ((needs & ~s->obeys) != 0) return "a server's client has no such lever";
    if ((trial.outside & ~s->does) != 0)
        return rung == LS_RUNG_TEXT ? "it takes no text" : "it does not let a client do this";
    switch (rung) {
        case LS_RUNG_FRESH:
        case LS_RUNG_MIXED:
        case LS_RUNG_CACHED_CHUNK:
        case LS_RUNG_FAR_SLOT:
        case LS_RUNG_FARTHER_SLOT: return "a server's client has no such lever";
        case LS_RUNG_PROCESSED:
        case LS_RUNG_PROCESSED_ONE:
        case LS_RUNG_PROCESSED_HOT: return "requests do not say which log-probabilities they want";
        case LS_RUNG_EOS: return c->n_eos > 0 ? NULL : "no such token is known; --model DIR tells it";
        case LS_RUNG_BOS: return c->bos >= 0 ? NULL : "no such token is known; --model DIR tells it";
        case LS_RUNG_PAD: return c->pad >= 0 ? NULL : "no such token is known; --model DIR tells it";
        case LS_RUNG_COLD: return q->runner->sweep->opts.temperature != 1.0 ? NULL : "all others have this temperature";
        default: return NULL;
    }
}

int64_t ls_slot_of(ls_rung rung) {
    return rung == LS_RUNG_SLOT ? 63 : rung == LS_RUNG_FAR_SLOT ? 2047 : rung == LS_RUNG_FARTHER_SLOT ? 69775 : -1;
}

void ls_ask_for_slot(ls_trial *out, int way, int64_t at, int64_t slots, uint64_t *needs) {
    ls_levers *l = &out->levers;
    const bool as_last = way == LS_SLOT_WAYS - 1;
    l->slots = as_last ? at + 1 : slots;
    l->slot_base = as_last ? 0 : at;
    l->policy = as_last ? LS_POLICY_HIGHEST : way == 0 ? LS_POLICY_LOWEST : LS_POLICY_FIFO;
    *needs = LEVER("slots") | (as_last ? LEVER("policy") : LEVER("slot-base"));
}

void ls_rung_trial(const ls_inquiry *q, ls_rung rung, ls_trial *out, uint64_t *needs) {
    static const int64_t chunks[6] = {1, 2, 3, 5, 8, 16};
    ls_levers *l = &out->levers;
    plain_trial(q, out);
    *needs = 0;
    if (rung >= LS_RUNG_CHUNK1 && rung <= LS_RUNG_CHUNK16) {
        l->chunk = chunks[rung - LS_RUNG_CHUNK1];
        *needs = LEVER("chunk");
    }
    if ((rung >= LS_RUNG_CACHED_SAME && rung <= LS_RUNG_CACHED_TWINS_WHOLE) || rung == LS_RUNG_CACHED_MANY ||
        rung == LS_RUNG_CACHED_RESET) {
        l->prefix = LS_PREFIX_ON;
        l->prefix_bytes = (int64_t)1 << 28;
        *needs = LEVER("prefix");
    }
    switch (rung) {
        case LS_RUNG_ALONE_A:
        case LS_RUNG_ALONE_B:
        case LS_RUNG_ALONE_C:
        case LS_RUNG_ALONE_LONG:
        case LS_RUNG_AGAIN: out->max_tokens = 8; break;
        case LS_RUNG_LENGTHS: out->max_tokens = 3; break;
        case LS_RUNG_SEQUENCE:
        case LS_RUNG_SINGLE: l->slots = 1; break;
        case LS_RUNG_TURNS:
            l->batch = l->slots = 2;
            *needs = LEVER("batch") | LEVER("slots");
            break;
        case LS_RUNG_PAIR:
            l->batch = 2;
            *needs = LEVER("batch");
            break;
        case LS_RUNG_BATCH:
            l->batch = 8;
            *needs = LEVER("batch");
            break;
        case LS_RUNG_UNEQUAL:
            l->batch = 4;
            *needs = LEVER("batch");
            break;
        case LS_RUNG_MIXED:
            l->batch = 4;
            l->chunk = 5;
            out->max_tokens = 8;
            *needs = LEVER("batch");
            break;
        case LS_RUNG_CACHED_TWINS:
            l->batch = 4;
            l->chunk = 8;
            break;
        case LS_RUNG_CACHED_TWINS_WHOLE: l->batch = 4; break;
        case LS_RUNG_CACHED_ROUNDS:
        case LS_RUNG_CACHED_MANY: out->rounds = 2; break;
        case LS_RUNG_CACHED_BATCH:
            out->rounds = 2;
            l->batch = 4;
            break;
        case LS_RUNG_CACHED_CHUNK:
            out->rounds = 2;
            l->chunk = 8;
            break;
        case LS_RUNG_PROCESSED: out->logprob_of = LS_LOGPROB_PROCESSED; /* fall through */
        case LS_RUNG_RAW: out->sampling.temperature = 0.7f; break;
        case LS_RUNG_PROCESSED_ONE: out->logprob_of = LS_LOGPROB_PROCESSED; /* fall through */
        case LS_RUNG_COLD: out->sampling.temperature = 1.0f; break;
        case LS_RUNG_PROCESSED_HOT: out->logprob_of = LS_LOGPROB_PROCESSED; break;
        case LS_RUNG_PAGE4:
            l->page_tokens = 4;
            *needs = LEVER("page");
            break;
        case LS_RUNG_PAGE64:
            l->page_tokens = 64;
            *needs = LEVER("page");
            break;
        case LS_RUNG_SLOT:
        case LS_RUNG_FAR_SLOT:
        case LS_RUNG_FARTHER_SLOT:
            ls_ask_for_slot(out, q->slot_way, ls_slot_of(rung), ls_slot_of(rung) + 1, needs);
            break;
        case LS_RUNG_FORK:
            l->samples = l->batch = 4;
            l->fork = true;
            *needs = LEVER("fork") | LEVER("samples");
            break;
        case LS_RUNG_SWAP: l->preempt_by = LS_PREEMPT_SWAP; /* fall through */
        case LS_RUNG_RECOMPUTE:
            l->batch = l->slots = 2; /* so that a slot is given on at once */
            l->preempt_every = 3;
            *needs = LEVER("preempt-every");
            break;
        case LS_RUNG_SLEEP:
            l->batch = 2;
            l->sleep_every = 4;
            *needs = LEVER("sleep-every");
            break;
        case LS_RUNG_TOP_K: out->sampling.top_k = 5; break;
        case LS_RUNG_TOP_P: out->sampling.top_p = 0.8f; break;
        case LS_RUNG_GREEDY: out->sampling.temperature = 0.0f; break;
        case LS_RUNG_STAGGERED:
            out->outside = LS_OUTSIDE_STAGGERED;
            out->max_tokens = 24;
            l->batch = 8;
            break;
        case LS_RUNG_LEAVERS: out->outside = LS_OUTSIDE_LEAVERS; break;
        case LS_RUNG_LOAD:
            out->outside = LS_OUTSIDE_LOAD;
            l->batch = 4;
            break;
        case LS_RUNG_CACHED_RESET:
            out->outside = LS_OUTSIDE_RESET;
            out->rounds = 2;
            break;
        case LS_RUNG_LONG: out->max_tokens = 3; break;
        case LS_RUNG_TEXT: out->outside = LS_OUTSIDE_TEXT; break;
        case LS_RUNG_CROWD:
            l->batch = 72;
            l->slots = 72;
            out->max_tokens = 3;
            *needs = LEVER("batch");
            break;
        case LS_RUNG_MANY:
            l->batch = 16;
            l->slots = 16;
            out->max_tokens = 3;
            *needs = LEVER("batch");
            break;
        default: break;
    }
}
