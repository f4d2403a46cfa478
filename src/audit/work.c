/* What the parts of the analysis share: sums that are kept, loops' registers written out. */
#include "audit/work.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

ls_status ls_work_keep(ls_work *w, ls_kept *out, const ls_sum *sum, ls_error *err) {
    *out = (ls_kept){0, -1};
    if (sum->is_lost) return LS_OK;
    if (w->n_terms > INT32_MAX - LS_SUM_MAX)
        return LS_FAIL(err, LS_ERR_FORMAT, "%s: a function has too many terms", w->file);
    LS_TRY(ls_array_grow((void **)&w->terms, &w->cap_terms, w->n_terms + sum->n + 1, sizeof *w->terms, "terms", err));
    *out = (ls_kept){(int32_t)w->n_terms, sum->n};
    if (sum->n > 0) memcpy(w->terms + w->n_terms, sum->terms, sizeof *sum->terms * (size_t)sum->n);
    w->n_terms += sum->n;
    return LS_OK;
}

void ls_work_sum(const ls_work *w, ls_sum *out, ls_kept kept) {
    out->is_lost = kept.n < 0;
    out->n = kept.n < 0 ? 0 : kept.n;
    if (out->n > 0) memcpy(out->terms, w->terms + kept.first, sizeof *out->terms * (size_t)kept.n);
}

/* Replaces one occurrence of the symbol in each term by start + turn * step, as often as terms have it. */
static void replace(const ls_work *w, ls_sum *sum, int32_t symbol) {
    const ls_symbol *s = &w->symbols[symbol];
    ls_sum start, step, value, out = {.is_lost = false, .n = 0};
    ls_work_sum(w, &start, s->a);
    ls_work_sum(w, &step, s->b);
    ls_sum_copy(&value, &start);
    const ls_term turn = {.factor = 1, .n = 1, .symbols = {s->turn}};
    ls_sum_add_product(&value, &turn, &step);
    for (int32_t i = 0; i < sum->n && !out.is_lost; i++) {
        if (ls_term_degree(&sum->terms[i], symbol) == 0) {
            ls_sum_add_term(&out, &sum->terms[i], 1);
        } else {
            const ls_term rest = ls_term_without(&sum->terms[i], symbol);
            ls_sum_add_product(&out, &rest, &value);
        }
    }
    ls_sum_copy(sum, &out);
}

void ls_work_expand(const ls_work *w, ls_sum *sum) {
    for (int round = 0; round < 24 && !sum->is_lost; round++) {
        int32_t found = -1;
        for (int32_t i = 0; i < sum->n && found < 0; i++)
            for (int32_t k = 0; k < sum->terms[i].n && found < 0; k++)
                if (w->symbols[sum->terms[i].symbols[k]].is_affine) found = sum->terms[i].symbols[k];
        if (found < 0) return;
        replace(w, sum, found);
    }
}

/* Ranges that the machine gives count as declared: threads of a block. */
bool ls_work_is_declared(const ls_work *w, int32_t id, int depth) {
    const ls_symbol *s = &w->symbols[id];
    ls_sum a;
    switch ((ls_symbol_kind)s->kind) {
        case LS_SYMBOL_PARAMETER:
        case LS_SYMBOL_LOADED:
        case LS_SYMBOL_CTAID:
        case LS_SYMBOL_NCTAID: return s->is_declared;
        case LS_SYMBOL_RESULT:
        case LS_SYMBOL_JOIN:
            if (depth == 0) return false;
            ls_work_sum(w, &a, s->a);
            for (int32_t i = 0; i < a.n; i++)
                for (int32_t k = 0; k < a.terms[i].n; k++)
                    if (!ls_work_is_declared(w, a.terms[i].symbols[k], depth - 1)) return false;
            return true;
        case LS_SYMBOL_TURN: return s->is_declared;
        case LS_SYMBOL_LOOP: return false;
        default: return true;
    }
}

bool ls_work_declared(const ls_work *w, const ls_sum *sum) {
    for (int32_t i = 0; i < sum->n; i++)
        for (int32_t k = 0; k < sum->terms[i].n; k++)
            if (!ls_work_is_declared(w, sum->terms[i].symbols[k], 3)) return false;
    return true;
}

/* Whether a part of the sum is bounded by nothing that is seen, itself or by what it is made of. */
static bool is_vague_within(const ls_work *w, const ls_sum *sum, int depth) {
    for (int32_t i = 0; i < sum->n; i++)
        for (int32_t k = 0; k < sum->terms[i].n; k++) {
            const ls_symbol *s = &w->symbols[sum->terms[i].symbols[k]];
            ls_sum part;
            if (s->is_vague) return true;
            if (depth == 0 || (s->kind != LS_SYMBOL_RESULT && s->kind != LS_SYMBOL_JOIN)) continue;
            const bool bounded = s->rule == LS_RULE_AND || s->rule == LS_RULE_REST || s->rule == LS_RULE_MIN;
            if (s->kind == LS_SYMBOL_RESULT && (bounded || s->rule == LS_RULE_TYPE)) continue;
            ls_work_sum(w, &part, s->a);
            if (is_vague_within(w, &part, depth - 1)) return true;
            if (s->kind != LS_SYMBOL_JOIN) continue;
            ls_work_sum(w, &part, s->b);
            if (is_vague_within(w, &part, depth - 1)) return true;
        }
    return false;
}

bool ls_work_is_vague(const ls_work *w, const ls_sum *sum) { return is_vague_within(w, sum, 4); }

int32_t ls_work_bits(const ls_work *w, const ls_sum *sum) {
    ls_range all = ls_range_of(0, 0);
    if (sum->is_lost) return 64;
    for (int32_t i = 0; i < sum->n; i++) {
        ls_range term = ls_range_of(sum->terms[i].factor, sum->terms[i].factor);
        for (int32_t k = 0; k < sum->terms[i].n; k++) {
            const ls_symbol *symbol = &w->symbols[sum->terms[i].symbols[k]];
            int64_t mask = -1;
            ls_sum b;
            ls_range r = symbol->type;
            if (symbol->kind == LS_SYMBOL_LOOP || symbol->kind == LS_SYMBOL_JOIN) return 64;
            if (symbol->kind == LS_SYMBOL_RESULT && symbol->rule == LS_RULE_AND) {
                ls_work_sum(w, &b, symbol->b);
                if (ls_sum_is_constant(&b, &mask) && mask >= 0) r = ls_range_of(0, mask);
            }
            term = ls_range_multiply(term, r);
        }
        all = ls_range_add(all, term);
    }
    if (all.low < 0) return 64;
    for (int32_t bits = 0; bits < 64; bits++)
        if (all.high < (ls_wide)1 << bits) return bits;
    return 64;
}

bool ls_work_aligned(const ls_sum *sum, int32_t bits) {
    if (sum->is_lost || bits >= 63) return false;
    for (int32_t i = 0; i < sum->n; i++)
        if (sum->terms[i].factor % ((int64_t)1 << bits) != 0) return false;
    return true;
}

void ls_work_deinit(ls_work *w) {
    free(w->terms), free(w->symbols), free(w->cells), free(w->checks), free(w->facts), free(w->block_facts);
    free(w->turns);
    *w = (ls_work){0};
}
