/* The experiments of a stack that promises no bits: requests and settings. The baseline of all is a request alone in
 * its process, its prompt in one piece, nothing used twice. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "diagnose/rounding/inquiry.h"

const char *ls_look_name(ls_look look) {
    return look == LS_LOOK_UNTRIED ? "not tried" : look == LS_LOOK_CLEAN ? "clean" : "differs";
}

/* ---- requests ---- */

/* splitmix64. */
static uint64_t mix_seed(uint64_t x) {
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
        const uint64_t drawn = mix_seed(mix_seed(q->seed ^ mix_seed((uint64_t)text)) + (uint64_t)i * 64 + k) % n;
        const int32_t token = o->ids != NULL ? o->ids[drawn] : (int32_t)drawn;
        if (k == 63 || !is_special(q->config, token)) return token;
    }
}

static bool is_plain(const ls_inquiry *q, int32_t token) {
    const ls_sweep_opts *o = &q->runner->sweep->opts;
    bool allowed = o->ids == NULL;
    for (int64_t i = 0; i < o->n_ids && !allowed; i++) allowed = o->ids[i] == token;
    return allowed && (q->config->vocab == 0 || token < q->config->vocab) && !is_special(q->config, token);
}

int32_t ls_other_bit(const ls_inquiry *q, int32_t token, bool highest) {
    int32_t bit = 1;
    while (highest && 2 * bit < q->config->vocab) bit *= 2;
    return is_plain(q, token ^ bit) ? token ^ bit : token;
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
static ls_status add_prompt_text(ls_inquiry *q, ls_stack_experiment experiment, int64_t front, int64_t head,
                                 int64_t text, int64_t n, ls_error *err) {
    int32_t ids[LS_PLAIN_MOST];
    for (int64_t i = 0; i < n; i++) ids[i] = ls_plain_token(q, i < head ? front : text, i);
    return ls_requests_add(&q->requests[experiment], ids, n, err);
}

static ls_status add_plain(ls_inquiry *q, ls_stack_experiment experiment, int64_t text, int64_t n, ls_error *err) {
    return ls_requests_plain(q, &q->requests[experiment], text, n, err);
}

static ls_status add_with(ls_inquiry *q, ls_stack_experiment experiment, int64_t text, int64_t n, int32_t token,
                          int64_t at, ls_error *err) {
    ls_requests *r = &q->requests[experiment];
    LS_TRY(add_plain(q, experiment, text, n, err));
    if (token >= 0 && token < q->config->vocab) r->ids[r->n_ids - n + at] = token;
    return LS_OK;
}

static ls_status add_special(ls_inquiry *q, ls_stack_experiment experiment, ls_error *err) {
    const int32_t token = ls_stack_special_token(q, experiment);
    LS_TRY(add_with(q, experiment, 500, 9, token, 4, err));
    LS_TRY(add_with(q, experiment, 501, 9, token, 8, err));
    LS_TRY(add_with(q, experiment, 502, 9, token, 0, err));
    LS_TRY(add_plain(q, experiment, 503, 9, err));
    return add_with(q, experiment, 504, 12, token, 6, err);
}

/* Pieces of two prompts put together crosswise: a key that leaves out what stands in front of a piece takes one for
 * another. */
static ls_status add_crossed(ls_inquiry *q, ls_stack_experiment experiment, ls_error *err) {
    static const int from[5][2] = {{0, 1}, {2, 3}, {0, 3}, {2, 1}, {1, 0}};
    int32_t ids[LS_PLAIN_MOST];
    for (int64_t piece = 16; piece <= 32; piece += 16)
        for (int64_t p = 0; p < 5; p++) {
            for (int64_t i = 0; i < 2 * piece; i++)
                ids[i] = ls_plain_token(q, 670 + piece + from[p][i / piece], i % piece);
            for (int64_t i = 0; i < 5; i++) ids[2 * piece + i] = ls_plain_token(q, 680 + piece + p, i);
            LS_TRY(ls_requests_add(&q->requests[experiment], ids, 2 * piece + 5, err));
        }
    return LS_OK;
}

/* A beginning, a piece and a long rest, and the same without the piece; some of blocks of 16, the last the other way
 * round: what is kept of the rest stood behind other tokens, and at other positions. */
static ls_status add_moved(ls_inquiry *q, ls_stack_experiment experiment, ls_error *err) {
    enum { GROUPS = 5, REST = 48 };
    int32_t ids[LS_PLAIN_MOST];
    for (int64_t g = 0; g < GROUPS; g++)
        for (int64_t p = 0; p < 2; p++) {
            const int64_t front = g % 2 == 0 ? 16 : 12,
                          piece = (p == 0) == (g < GROUPS - 1) ? (g % 2 == 0 ? 16 : 9) : 0;
            const int64_t n = front + piece + REST + 3;
            for (int64_t i = 0; i < n; i++)
                ids[i] = i < front           ? ls_plain_token(q, 1600 + 3 * g, i)
                         : i < front + piece ? ls_plain_token(q, 1601 + 3 * g, i)
                                             : ls_plain_token(q, 1602 + 3 * g, i - piece);
            LS_TRY(ls_requests_add(&q->requests[experiment], ids, n, err));
        }
    return LS_OK;
}

/* One prompt, and others that differ from it in one token each. */
static ls_status add_points(ls_inquiry *q, ls_stack_experiment experiment, ls_error *err) {
    static const int64_t places[] = {-1, 0, 3, 7, 11, 15, 16, 23, 30, 31, 37};
    int32_t ids[LS_PLAIN_MOST];
    for (size_t p = 0; p < sizeof places / sizeof places[0]; p++) {
        for (int64_t i = 0; i < 40; i++) ids[i] = ls_plain_token(q, i == places[p] ? 731 : 730, i);
        LS_TRY(ls_requests_add(&q->requests[experiment], ids, 40, err));
    }
    return LS_OK;
}

/* A prompt, longer ones that begin with it, and it again: who writes into what the cache holds? */
static ls_status add_extended(ls_inquiry *q, ls_stack_experiment experiment, ls_error *err) {
    static const struct {
        int64_t text, n;
    } of[] = {{740, 33}, {741, 34}, {742, 36}, {740, 33}, {743, 41},
              {743, 49}, {741, 34}, {740, 35}, {744, 34}, {740, 33}};
    for (size_t p = 0; p < sizeof of / sizeof of[0]; p++)
        LS_TRY(add_prompt_text(q, experiment, 740, 32, of[p].text, of[p].n, err));
    return LS_OK;
}

/* Four at a time with a common beginning, of which two are equal. */
static ls_status add_twins(ls_inquiry *q, ls_stack_experiment experiment, ls_error *err) {
    for (int64_t p = 0; p < 12; p++) {
        const int64_t front = 750 + 10 * (p / 4), own = front + (p % 4 < 2 ? 1 : p % 4);
        LS_TRY(add_prompt_text(q, experiment, front, p < 4 ? 36 : p < 8 ? 33 : 17, own, 41 - p % 4 / 2 * 3, err));
    }
    return LS_OK;
}

/* Token i of n of prompt number p of a group whose common text is `first`. */
static int32_t alike_token(const ls_inquiry *q, ls_alike alike, int64_t first, int64_t p, int64_t n, int64_t i) {
    const int64_t own = first + p, shared = n < 20 ? 6 : 20;
    switch (alike) {
        case LS_ALIKE_LENGTH: return ls_plain_token(q, own, i);
        case LS_ALIKE_WHOLE: return ls_plain_token(q, first, i);
        case LS_ALIKE_BEGINNING: /* the last two part right behind the first token, or a block of 16 */
            return ls_plain_token(q, i < (p < 3 ? shared : p == 3 ? 1 : n - 9) ? first : own, i);
        case LS_ALIKE_END: return ls_plain_token(q, i < n - 30 || i < n / 3 ? own : first, i);
        case LS_ALIKE_TOKENS:
            /* Of a server every second one has neighbours exchanged: blocks of it have the same tokens as well. */
            if (q->runner->door->subject->is_server && p % 2 == 1) return ls_plain_token(q, first, ls_exchanged(i, n));
            return ls_plain_token(q, first, i < n - 1 ? (i + p) % (n - 1) : i);
    }
    return 0;
}

/* Prompts for a prefix cache: short ones and ones of several blocks of 16. */
static ls_status add_cached(ls_inquiry *q, ls_stack_experiment experiment, ls_error *err) {
    static const int64_t lengths[4] = {12, 41, 32, 64}; /* 32 and 64 end where a block does */
    const ls_alike alike = ls_stack_experiment_of(experiment)->alike;
    const bool whole = alike == LS_ALIKE_WHOLE;
    int32_t ids[LS_PLAIN_MOST];
    for (int64_t k = 0; k < (whole ? 4 : 2); k++)
        for (int64_t p = 0; p < (whole ? 3 : 5); p++) {
            for (int64_t i = 0; i < lengths[k]; i++) ids[i] = alike_token(q, alike, 600 + 10 * k, p, lengths[k], i);
            LS_TRY(ls_requests_add(&q->requests[experiment], ids, lengths[k], err));
        }
    return LS_OK;
}

enum { MANY = 72 };

static ls_status add_crowd(ls_inquiry *q, ls_stack_experiment experiment, ls_error *err) {
    for (int64_t p = 0; p < MANY; p++) LS_TRY(add_plain(q, experiment, 700 + p, 4, err));
    return LS_OK;
}

static ls_status add_many(ls_inquiry *q, ls_stack_experiment experiment, ls_error *err) {
    for (int64_t p = 0; p < MANY; p++) LS_TRY(add_plain(q, experiment, 800 + p, 1 + (7 * p) % 23, err));
    return LS_OK;
}

/* As those that stand beside "load", which nobody looks at there. */
enum { PRESSED = 16, PRESSED_LENGTH = 96 };
static ls_status add_pressed(ls_inquiry *q, ls_stack_experiment experiment, ls_error *err) {
    for (int64_t p = 0; p < PRESSED; p++) LS_TRY(add_plain(q, experiment, 1500 + p, PRESSED_LENGTH, err));
    return LS_OK;
}

static ls_status add_sharing(ls_inquiry *q, ls_stack_experiment experiment, ls_error *err) {
    for (int64_t p = 0; p < MANY; p++)
        LS_TRY(add_prompt_text(q, experiment, 900 + p % 6, 16 * (1 + p % 2) + 1, 910 + p % 36, 36, err));
    return LS_OK;
}

static ls_status add_lengths(ls_inquiry *q, ls_stack_experiment experiment, ls_error *err) {
    static const int64_t lengths[] = {1,  2,  3,  4,  5,  6,  8,  9,  11, 13, 15, 16, 17, 18, 21,  24,  27,
                                      31, 32, 33, 34, 37, 42, 47, 48, 49, 56, 63, 64, 65, 80, 100, 129, 130};
    const size_t n = sizeof lengths / sizeof lengths[0];
    /* Short and long ones in turn, so that "from a length on" is not "from a request on". 13 has no part in 34. */
    for (size_t i = 0; i < n; i++) LS_TRY(add_plain(q, experiment, 100 + (int64_t)i, lengths[i * 13 % n], err));
    return LS_OK;
}

static ls_status add_long(ls_inquiry *q, ls_stack_experiment experiment, ls_error *err) {
    static const int64_t lengths[] = {255, 256, 257, 511, 512, 513, 1023, 1025};
    const int64_t most = q->runner->sweep->opts.length_max;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        if (most == 0 || lengths[i] + 8 <= most || i == 0)
            LS_TRY(add_plain(q, experiment, 1200 + (int64_t)i, lengths[i], err));
    return LS_OK;
}

/* A text of two blocks and a little; it with one token changed, at the end of its first block or at its beginning;
 * other texts, and the blocks of all crosswise. Where such a block ends, blocks of 16, 32 and 64 do. Four of each, so
 * that three rounds tell them from chance. */
static ls_status add_blocks(ls_inquiry *q, ls_stack_experiment experiment, ls_error *err) {
    const int64_t block = experiment == LS_STACK_CACHED_LONGER ? 512 : 128, n = 2 * block + 9;
    const struct {
        int64_t front, back, changed; /* texts of the first block and of what is behind it; a place, or -1 */
    } of[] = {{0, 0, -1},   {0, 0, block - 1}, {0, 0, block - 2}, {0, 0, block - 3}, {0, 0, block - 4},
              {0, 0, 0},    {0, 0, 1},         {0, 0, 2},         {0, 0, 3},         {1, 1, -1},
              {20, 20, -1}, {1, 0, -1},        {0, 1, -1},        {20, 0, -1},       {0, 20, -1}};
    int32_t ids[LS_PLAIN_MOST];
    for (size_t p = 0; p < sizeof of / sizeof of[0]; p++) {
        for (int64_t i = 0; i < n; i++) {
            const int64_t text = i < block ? of[p].front : of[p].back;
            ids[i] = ls_plain_token(q, 1300 + (i == of[p].changed ? 2 + (int64_t)p : text), i);
        }
        LS_TRY(ls_requests_add(&q->requests[experiment], ids, n, err));
    }
    return LS_OK;
}

/* Two texts of two blocks and a little, and them and their blocks crosswise with another bit in each token: a key that
 * leaves out the last one or the first one takes the one for the other. */
static ls_status add_bits(ls_inquiry *q, ls_stack_experiment experiment, ls_error *err) {
    enum { BLOCK = 128, N = 2 * BLOCK + 9 };
    static const int64_t of[4][2] = {{0, 0}, {1, 1}, {0, 1}, {1, 0}}; /* of the first block, of what is behind it */
    int32_t ids[N];
    for (int64_t p = 0; p < 2; p++) LS_TRY(add_plain(q, experiment, 1400 + p, N, err));
    for (int highest = 0; highest < 2; highest++)
        for (int p = 0; p < 4; p++) {
            for (int64_t i = 0; i < N; i++)
                ids[i] = ls_other_bit(q, ls_plain_token(q, 1400 + of[p][i / BLOCK > 0], i), highest == 1);
            LS_TRY(ls_requests_add(&q->requests[experiment], ids, N, err));
        }
    return LS_OK;
}

static ls_status add_texts(ls_inquiry *q, ls_stack_experiment experiment, ls_error *err) {
    const ls_sweep_opts *o = &q->runner->sweep->opts;
    for (int64_t i = 0, at = 0; i < o->n_texts; at += o->text_n[i++])
        LS_TRY(ls_requests_add(&q->requests[experiment], o->text_ids + at, o->text_n[i], err));
    return LS_OK;
}

/* ---- the rows ---- */

#define MIXED_LENGTHS \
    { 9, 12, 5, 14, 7, 9, 3, 10 }
#define EQUAL_LENGTHS \
    { 9, 9, 9, 9, 9, 9, 9, 9 }
#define OVER_CHUNKS \
    { 7, 18, 33, 40 }
#define OVER_PAGES \
    { 9, 21, 5, 38, 7, 18, 3, 34 }
#define NO_LEVER "a server's client has no such lever"
#define NOT_SAID "requests do not say which log-probabilities they want"

static const ls_stack_row rows[LS_STACK_EXPERIMENTS] = {
#define LS_STACK_ROW(name, ...) [LS_STACK_##name] = {__VA_ARGS__},
#include "diagnose/experiment.def"
};

const ls_stack_row *ls_stack_experiment_of(ls_stack_experiment experiment) { return &rows[experiment]; }
const char *ls_stack_experiment_name(ls_stack_experiment experiment) { return rows[experiment].name; }
const char *ls_stack_experiment_text(ls_stack_experiment experiment, bool is_server) {
    const ls_stack_row *row = &rows[experiment];
    return is_server && row->text_of_server != NULL ? row->text_of_server : row->text;
}
bool ls_stack_is_of_servers(ls_stack_experiment experiment) { return rows[experiment].is_of_servers; }
int64_t ls_slot_of(ls_stack_experiment experiment) { return rows[experiment].slot > 0 ? rows[experiment].slot : -1; }

int32_t ls_stack_special_token(const ls_inquiry *q, ls_stack_experiment experiment) {
    const ls_model_config *c = q->config;
    switch (rows[experiment].special) {
        case LS_SPECIAL_NONE: return -1;
        case LS_SPECIAL_EOS: return c->n_eos > 0 ? c->eos[0] : -1;
        case LS_SPECIAL_BOS: return c->bos;
        case LS_SPECIAL_PAD: return c->pad;
    }
    return -1;
}

ls_status ls_stack_requests(ls_inquiry *q, ls_stack_experiment experiment, ls_error *err) {
    const ls_stack_row *row = &rows[experiment];
    if (q->requests[experiment].n > 0) return LS_OK;
    if (row->add != NULL) return row->add(q, experiment, err);
    for (int64_t p = 0; p < LS_STACK_LENGTHS_MOST && row->lengths[p] > 0; p++)
        LS_TRY(add_plain(q, experiment, row->first_text + p, row->lengths[p], err));
    return LS_OK;
}

/* ---- settings ---- */

static void plain_trial(const ls_inquiry *q, ls_trial *out) {
    const ls_sweep_opts *o = &q->runner->sweep->opts;
    ls_levers *l = &out->levers;
    memset(out, 0, sizeof *out);
    ls_bits_trials_numerics(out, q->runner->trials, o->dtype);
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

static uint64_t lever_bit(const char *name) {
    const int64_t i = ls_lever_find(name);
    return i >= 0 ? (uint64_t)1 << i : 0;
}

const char *ls_stack_refused(const ls_inquiry *q, ls_stack_experiment experiment) {
    const ls_subject *s = q->runner->door->subject;
    const ls_stack_row *row = &rows[experiment];
    ls_trial trial;
    uint64_t needs;
    if (!s->is_server) return row->is_of_servers ? "of servers alone" : NULL;
    ls_stack_trial(q, experiment, &trial, &needs);
    if ((needs & ~s->obeys) != 0) return NO_LEVER;
    if ((trial.outside & ~s->does) != 0)
        return experiment == LS_STACK_TEXT ? "it takes no text" : "it does not let a client do this";
    if (row->special != LS_SPECIAL_NONE && ls_stack_special_token(q, experiment) < 0)
        return "no such token is known; --model DIR tells it";
    if (experiment == LS_STACK_COLD && q->runner->sweep->opts.temperature == 1.0)
        return "all others have this temperature";
    if (experiment == LS_STACK_PRESSED && s->scores_by_token) return "each value of a long completion costs a request";
    return row->not_of_servers;
}

void ls_ask_for_slot(ls_trial *out, int way, int64_t at, int64_t slots, uint64_t *needs) {
    ls_levers *l = &out->levers;
    const bool as_last = way == LS_SLOT_WAYS - 1;
    l->slots = as_last ? at + 1 : slots;
    l->slot_base = as_last ? 0 : at;
    l->policy = as_last ? LS_POLICY_HIGHEST : way == 0 ? LS_POLICY_LOWEST : LS_POLICY_FIFO;
    *needs = lever_bit("slots") | lever_bit(as_last ? "policy" : "slot-base");
}

void ls_stack_trial(const ls_inquiry *q, ls_stack_experiment experiment, ls_trial *out, uint64_t *needs) {
    const ls_stack_row *row = &rows[experiment];
    uint64_t own = 0;
    plain_trial(q, out);
    for (int i = 0; i < 2 && row->needs[i] != NULL; i++) own |= lever_bit(row->needs[i]);
    if (row->moves.cache) {
        out->levers.prefix = LS_PREFIX_ON;
        out->levers.prefix_bytes = (int64_t)1 << 28;
    }
    ls_moves_apply(out, &row->moves);
    /* A server's prompts of n tokens stand beside its prompts of n and what came. Were that a multiple of 8 tokens,
     * both would be filled up alike. */
    if (q->runner->door->subject->is_server && out->max_tokens == 8) out->max_tokens--;
    /* One request of several samples has as many rows as its control, which are several requests. */
    if (q->runner->door->subject->is_server && out->levers.samples > 1) out->levers.batch = 1;
    if (row->slot > 0) ls_ask_for_slot(out, q->slot_way, row->slot, row->slot + 1, &own);
    if (needs != NULL) *needs = own;
}
