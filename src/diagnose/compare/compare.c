/* Alignment of two record lists and the measures of their difference. Owns the list of finite pairs meanwhile. */
#include "diagnose/compare/compare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* The tokens that are finite on both sides. */
typedef struct pair_list {
    ls_mismatch_pair *pairs;
    int64_t n, cap;
} pair_list;

/* ---- alignment ---- */

typedef enum line_form { FORM_COMPLETION, FORM_FULL, FORM_BARE } line_form;

static line_form form_of(const ls_record *record) {
    if (record->completion_ids == NULL) return FORM_BARE;
    return record->is_tokens ? FORM_FULL : FORM_COMPLETION;
}

static ls_status fail_ids(ls_error *err, const ls_record *a, const char *what, int64_t position, int32_t id_a,
                          int32_t id_b) {
    return LS_FAIL(err, LS_ERR_FORMAT, "id '%.200s': %s %lld is %d in the first file and %d in the second", a->id, what,
                   (long long)position, id_a, id_b);
}

static ls_status check_same_ids(const ls_record *a, const char *what, const int32_t *ids_a, int64_t n_a,
                                const int32_t *ids_b, int64_t n_b, ls_error *err) {
    for (int64_t i = 0; i < n_a && i < n_b; i++)
        if (ids_a[i] != ids_b[i]) return fail_ids(err, a, what, i, ids_a[i], ids_b[i]);
    if (n_a != n_b)
        return LS_FAIL(err, LS_ERR_FORMAT, "id '%.200s': %lld of %s in the first file and %lld in the second", a->id,
                       (long long)n_a, what, (long long)n_b);
    return LS_OK;
}

/* full holds a whole sequence, part a completion and perhaps its prompt; a_is_full says which of them is of A. */
static ls_status check_tail_ids(const ls_record *full, const ls_record *part, bool a_is_full, ls_error *err) {
    const int64_t skip = full->n_completion - part->n_completion;
    if (skip < 0 || (part->prompt_ids != NULL && skip != part->n_prompt))
        return LS_FAIL(err, LS_ERR_FORMAT,
                       "id '%.200s': %lld token_ids against %lld prompt_ids and %lld completion_ids", full->id,
                       (long long)full->n_completion, (long long)part->n_prompt, (long long)part->n_completion);
    for (int64_t i = 0; i < full->n_completion; i++) {
        const int32_t id = full->completion_ids[i];
        int32_t other;
        if (i < skip && part->prompt_ids == NULL) continue;
        other = i < skip ? part->prompt_ids[i] : part->completion_ids[i - skip];
        if (id != other) return fail_ids(err, full, "token", i, a_is_full ? id : other, a_is_full ? other : id);
    }
    return LS_OK;
}

static ls_status check_tokens(const ls_record *a, const ls_record *b, ls_error *err) {
    const line_form form_a = form_of(a), form_b = form_of(b);
    if (form_a == FORM_BARE || form_b == FORM_BARE) return LS_OK;
    if (form_a == FORM_FULL && form_b == FORM_COMPLETION) return check_tail_ids(a, b, true, err);
    if (form_a == FORM_COMPLETION && form_b == FORM_FULL) return check_tail_ids(b, a, false, err);
    if (a->prompt_ids != NULL && b->prompt_ids != NULL)
        LS_TRY(check_same_ids(a, "prompt_ids", a->prompt_ids, a->n_prompt, b->prompt_ids, b->n_prompt, err));
    return check_same_ids(a, form_a == FORM_FULL ? "token_ids" : "completion_ids", a->completion_ids, a->n_completion,
                          b->completion_ids, b->n_completion, err);
}

/* Other draws give other tokens: where the records say so, the refusal does. */
static ls_status check_draws(const ls_record *a, const ls_record *b, ls_error *err) {
    const ls_status status = check_tokens(a, b, err);
    if (status == LS_OK) return LS_OK;
    if (a->has_seed && b->has_seed && a->seed != b->seed)
        ls_error_prefix(err, "drawn with the seeds %llu and %llu", (unsigned long long)a->seed,
                        (unsigned long long)b->seed);
    if (a->temperature < b->temperature || a->temperature > b->temperature)
        ls_error_prefix(err, "drawn at the temperatures %g and %g", a->temperature, b->temperature);
    return status;
}

/* Tokens agree; may the two lists of entries be of different length? */
static ls_status check_lengths(const ls_record *a, const ls_record *b, ls_error *err) {
    if (a->n_logprobs == b->n_logprobs || form_of(a) != form_of(b)) return LS_OK;
    return LS_FAIL(err, LS_ERR_FORMAT, "id '%.200s': %lld logprobs in the first file and %lld in the second", a->id,
                   (long long)a->n_logprobs, (long long)b->n_logprobs);
}

static ls_status check_distribution(const ls_record *a, const ls_record *b, ls_error *err) {
    if (a->logprob_of == NULL || b->logprob_of == NULL || strcmp(a->logprob_of, b->logprob_of) == 0) return LS_OK;
    return LS_FAIL(err, LS_ERR_FORMAT, "id '%.200s': meta.logprob_of: %s in the first file and %s in the second", a->id,
                   a->logprob_of, b->logprob_of);
}

/* ---- one token ---- */

/* What is no log-probability at all is no agreement either. */
static bool same_bits(float a, float b) {
    return memcmp(&a, &b, sizeof a) == 0 && !isnan(a) && !(isinf(a) && a > 0.0f);
}

/* Maps float bits to integers in the order of the numbers, both zeros to neighbours: -0.0 to -1, 0.0 to 0. */
static int64_t ordered(float value) {
    int32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits >= 0 ? (int64_t)bits : -1 - ((int64_t)bits - INT32_MIN);
}

static int64_t ulp_distance(float a, float b) {
    if (isnan(a) || isnan(b)) return -1;
    return llabs(ordered(a) - ordered(b));
}

static void count_special(ls_special_counts *counts, float value) {
    counts->nan += isnan(value) != 0;
    counts->plus_infinity += isinf(value) && value > 0.0f;
    counts->minus_infinity += isinf(value) && value < 0.0f;
    counts->positive += value > 0.0f && !isinf(value);
    counts->zero += value == 0.0f;
}

static double badness(const ls_worst_token *token) {
    if (!isfinite(token->a) || !isfinite(token->b)) return (double)INFINITY;
    return fabs((double)token->b - (double)token->a);
}

/* Keeps the list sorted; of equal ones the first seen stays in front. */
static void add_worst(ls_comparison *out, int64_t worst_max, ls_worst_token token) {
    const double bad = badness(&token);
    int64_t at = out->n_worst;
    if (worst_max == 0 || (at == worst_max && badness(&out->worst[at - 1]) >= bad)) return;
    if (at == worst_max)
        at--;
    else
        out->n_worst++;
    while (at > 0 && badness(&out->worst[at - 1]) < bad) {
        out->worst[at] = out->worst[at - 1];
        at--;
    }
    out->worst[at] = token;
}

static int32_t token_at(const ls_record *record, int64_t from_end) {
    if (record->completion_ids == NULL || from_end > record->n_completion) return -1;
    return record->completion_ids[record->n_completion - from_end];
}

static ls_status add_compared_sequence(ls_comparison *out, pair_list *list, const ls_record *a, const ls_record *b,
                                       int64_t sequence_i, int64_t worst_max, ls_error *err) {
    const int64_t n = a->n_logprobs < b->n_logprobs ? a->n_logprobs : b->n_logprobs;
    const int64_t skip_a = a->n_logprobs - n, skip_b = b->n_logprobs - n;
    bool different = false;
    int64_t need;
    out->unaligned += skip_a + skip_b;
    out->n_sequences_without_ids += a->completion_ids == NULL || b->completion_ids == NULL;
    if (!ls_add_i64(list->n, n, &need)) return LS_FAIL(err, LS_ERR_NOMEM, "tokens do not fit 64-bit arithmetic");
    LS_TRY(ls_array_grow((void **)&list->pairs, &list->cap, need, sizeof *list->pairs, "tokens", err));
    for (int64_t i = 0; i < n; i++) {
        const bool no_a = a->logprob_missing[skip_a + i] != 0, no_b = b->logprob_missing[skip_b + i] != 0;
        const float r = a->logprobs[skip_a + i], t = b->logprobs[skip_b + i];
        out->missing_both += no_a && no_b;
        out->missing_a += no_a && !no_b;
        out->missing_b += no_b && !no_a;
        different = different || no_a != no_b;
        if (no_a || no_b) continue;
        out->n_compared++;
        count_special(&out->special_a, r);
        count_special(&out->special_b, t);
        if (same_bits(r, t)) {
            out->n_equal++;
        } else {
            int32_t token = token_at(a, n - i);
            if (token < 0) token = token_at(b, n - i);
            different = true;
            out->n_different++;
            add_worst(out, worst_max, (ls_worst_token){a->id, sequence_i, i, token, r, t, ulp_distance(r, t)});
        }
        if (isfinite(r) && isfinite(t))
            list->pairs[list->n++] = (ls_mismatch_pair){(double)r, (double)t, sequence_i, i};
    }
    out->n_sequences_different += different;
    return LS_OK;
}

/* ---- matching by id ---- */

static int compare_records(const void *a, const void *b) {
    const ls_record *const *x = a, *const *y = b;
    return strcmp((*x)->id, (*y)->id);
}

static int compare_id(const void *key, const void *item) {
    const ls_record *const *record = item;
    return strcmp(key, (*record)->id);
}

/* sorted[i] are the records of one file by id. */
static ls_status sort_records(const ls_record ***sorted, const ls_compared *of, ls_error *err) {
    LS_TRY(ls_array_alloc((void **)sorted, of->n, sizeof **sorted, "ids", err));
    for (int64_t i = 0; i < of->n; i++) (*sorted)[i] = &of->records[i];
    qsort(*sorted, (size_t)of->n, sizeof **sorted, compare_records);
    return LS_OK;
}

static const ls_record *find_record(const ls_record *const *sorted, int64_t n, const char *id) {
    const ls_record *const *found = bsearch(id, sorted, (size_t)n, sizeof *sorted, compare_id);
    return found != NULL ? *found : NULL;
}

/* A sequence of both files. */
typedef struct common {
    const ls_record *a, *b;
} common;

static ls_status find_common(common *out, ls_comparison *c, const ls_compared *a, const ls_compared *b,
                             const ls_record *const *sorted_b, ls_error *err) {
    for (int64_t i = 0; i < a->n; i++) {
        const ls_record *other = find_record(sorted_b, b->n, a->records[i].id);
        if (other != NULL) out[c->n_sequences++] = (common){&a->records[i], other};
    }
    c->n_only_a = a->n - c->n_sequences;
    c->n_only_b = b->n - c->n_sequences;
    if (c->n_sequences > 0) return LS_OK;
    return LS_FAIL(err, LS_ERR_FORMAT,
                   "%s line %lld: id '%.200s' is not in %s, nor is any other of its %lld; --by-order matches sequences "
                   "by their places",
                   a->name, (long long)a->records[0].line, a->records[0].id, b->name, (long long)a->n);
}

static bool says_error(const ls_record *r) { return r->finish != NULL && strcmp(r->finish, "error") == 0; }

/* What makes records of the same tokens others than they seem. */
static void count_circumstances(ls_comparison *out, const ls_record *a, const ls_record *b) {
    out->n_error_a += says_error(a);
    out->n_error_b += says_error(b);
    out->n_seeds_differ += a->has_seed && b->has_seed && a->seed != b->seed;
    out->n_temperatures_differ += !isnan(a->temperature) && !isnan(b->temperature) && a->temperature != b->temperature;
}

/* Causes of what differs. Pairs of a sequence stand together, sequences in their order. */
static ls_status explain_difference(ls_comparison *out, const pair_list *list, const common *both, ls_error *err) {
    const int64_t n_both = out->n_sequences;
    ls_compare_sequence *sequences = NULL;
    int64_t at = 0;
    ls_status status = LS_OK;
    if (out->n_different == 0) return LS_OK;
    LS_TRY_DONE(ls_array_alloc((void **)&sequences, n_both, sizeof *sequences, "sequences", err));
    for (int64_t i = 0; i < n_both; i++) {
        const ls_record *a = both[i].a, *b = both[i].b;
        const int64_t n = a->n_logprobs < b->n_logprobs ? a->n_logprobs : b->n_logprobs, from = at;
        while (at < list->n && list->pairs[at].sequence == i) at++;
        sequences[i] = (ls_compare_sequence){a, b, from, at, n};
    }
    LS_TRY_DONE(ls_compare_explain(&out->causes, list->pairs, list->n, sequences, n_both, err));
    for (int64_t i = 0; i < list->n; i++) {
        const int64_t p =
            list->pairs[i].position < LS_COMPARE_PLACES - 1 ? list->pairs[i].position : LS_COMPARE_PLACES - 1;
        out->place_abs[p] += fabs(list->pairs[i].t - list->pairs[i].r);
        out->place_n[p]++;
    }
    for (int p = 0; p < LS_COMPARE_PLACES; p++)
        if (out->place_n[p] > 0) out->place_abs[p] /= (double)out->place_n[p];
done:
    free(sequences);
    return status;
}

/* The digest that all of them have; NULL: some do not say it, or say another one. */
static const char *digest_of_all(const common *both, int64_t n) {
    const char *digest = n > 0 ? both[0].a->digest : NULL;
    for (int64_t i = 0; i < n && digest != NULL; i++) {
        const char *a = both[i].a->digest, *b = both[i].b->digest;
        if (a == NULL || b == NULL || strcmp(a, digest) != 0 || strcmp(b, digest) != 0) digest = NULL;
    }
    return digest;
}

ls_status ls_compare(ls_comparison *out, const ls_compared *a, const ls_compared *b, int64_t worst_max, ls_error *err) {
    ls_status status;
    ls_comparison result = {0};
    pair_list list = {0};
    const ls_record **sorted_b = NULL;
    common *both = NULL;
    LS_ASSERT(worst_max >= 0 && worst_max <= LS_WORST_MAX, "worst_max %lld", (long long)worst_max);
    LS_TRY_DONE(sort_records(&sorted_b, b, err));
    LS_TRY_DONE(ls_array_alloc((void **)&both, a->n, sizeof *both, "sequences", err));
    LS_TRY_DONE(find_common(both, &result, a, b, sorted_b, err));
    LS_TRY_DONE(ls_array_alloc((void **)&result.worst, worst_max, sizeof *result.worst, "worst tokens", err));
    for (int64_t i = 0; i < result.n_sequences; i++) {
        const ls_record *one = both[i].a, *other = both[i].b;
        if ((status = check_draws(one, other, err)) != LS_OK ||
            (status = check_distribution(one, other, err)) != LS_OK ||
            (status = check_lengths(one, other, err)) != LS_OK) {
            ls_error_prefix(err, "%s line %lld, %s line %lld", a->name, (long long)one->line, b->name,
                            (long long)other->line);
            goto done;
        }
        count_circumstances(&result, one, other);
        LS_TRY_DONE(add_compared_sequence(&result, &list, one, other, i, worst_max, err));
    }
    if (result.n_compared == 0) {
        status = LS_FAIL(err, LS_ERR_FORMAT, "%s and %s: no token has a log-probability in both", a->name, b->name);
        goto done;
    }
    result.digest = digest_of_all(both, result.n_sequences);
    LS_TRY_DONE(explain_difference(&result, &list, both, err));
    LS_TRY_DONE(ls_mismatch_of_pairs(&result.measures, list.pairs, list.n, err));
    result.measures.equal_fraction = (double)result.n_equal / (double)result.n_compared;
    if (result.measures.sequence_worst >= 0) result.sequence_worst = both[result.measures.sequence_worst].a->id;
    *out = result;
    result.worst = NULL;
done:
    free(result.worst);
    free(list.pairs);
    free(both);
    free(sorted_b);
    return status;
}

void ls_comparison_deinit(ls_comparison *comparison) {
    free(comparison->worst);
    comparison->worst = NULL;
    comparison->n_worst = 0;
}

bool ls_comparison_same(const ls_comparison *comparison) {
    return comparison->n_different == 0 && comparison->missing_a == 0 && comparison->missing_b == 0 &&
           comparison->n_only_a == 0 && comparison->n_only_b == 0;
}
