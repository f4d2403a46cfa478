/* Names, expressions, levers. */
#define _GNU_SOURCE
#include "audit/describe.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct text {
    char *out;
    size_t at, bytes;
} text;

static void __attribute__((format(printf, 2, 3))) put(text *t, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(t->out + t->at, t->bytes - t->at, format, args);
    va_end(args);
    if (n > 0) t->at = t->at + (size_t)n < t->bytes ? t->at + (size_t)n : t->bytes - 1;
}

static void put_sum(text *t, const ls_work *w, const ls_sum *sum, int depth);

static void put_result(text *t, const ls_work *w, const ls_symbol *s, int depth) {
    static const char *const signs[] = {[LS_RULE_QUOTIENT] = " / ", [LS_RULE_REST] = " % ", [LS_RULE_AND] = " & ",
                                        [LS_RULE_OR] = " | ",       [LS_RULE_XOR] = " ^ ",  [LS_RULE_SAME] = NULL};
    ls_sum a, b;
    if (depth == 0 || s->rule == LS_RULE_TYPE || s->rule == LS_RULE_SAME || s->a.n < 0) {
        put(t, "value@%lld", (long long)s->line);
        return;
    }
    ls_work_sum(w, &a, s->a);
    ls_work_sum(w, &b, s->b);
    if (s->rule == LS_RULE_POWER) {
        put(t, "(1 << ");
        put_sum(t, w, &a, depth - 1);
        put(t, ")");
    } else if (s->rule == LS_RULE_MIN || s->rule == LS_RULE_MAX || s->rule == LS_RULE_ABS || s->rule == LS_RULE_HIGH) {
        put(t, s->rule == LS_RULE_MIN   ? "min("
               : s->rule == LS_RULE_MAX ? "max("
               : s->rule == LS_RULE_ABS ? "abs("
                                        : "mulhi(");
        put_sum(t, w, &a, depth - 1);
        if (s->rule != LS_RULE_ABS) put(t, ", "), put_sum(t, w, &b, depth - 1);
        put(t, ")");
    } else {
        put(t, "((");
        put_sum(t, w, &a, depth - 1);
        put(t, ")%s", signs[s->rule]);
        put_sum(t, w, &b, depth - 1);
        put(t, ")");
    }
}

static void put_symbol(text *t, const ls_work *w, int32_t id, int depth) {
    static const char *const axes[] = {[LS_SYMBOL_TID] = "threadIdx",
                                       [LS_SYMBOL_CTAID] = "blockIdx",
                                       [LS_SYMBOL_NTID] = "blockDim",
                                       [LS_SYMBOL_NCTAID] = "gridDim"};
    const ls_symbol *s = &w->symbols[id];
    switch ((ls_symbol_kind)s->kind) {
        case LS_SYMBOL_PARAMETER:
            if (s->name != NULL)
                put(t, "%s", s->name);
            else if (s->parameter < 0)
                put(t, "param@%lld", (long long)s->line);
            else if (s->offset != 0)
                put(t, "param%d+%lld", s->parameter, (long long)s->offset);
            else
                put(t, "param%d", s->parameter);
            break;
        case LS_SYMBOL_TID:
        case LS_SYMBOL_CTAID:
        case LS_SYMBOL_NTID:
        case LS_SYMBOL_NCTAID: put(t, "%s.%c", axes[s->kind], 'x' + s->axis); break;
        case LS_SYMBOL_LOADED:
            if (s->name != NULL)
                put(t, "%s", s->name);
            else if (s->parameter < 0)
                put(t, "load@%lld", (long long)s->line);
            else if (s->offset != 0)
                put(t, "param%d+%lld[]", s->parameter, (long long)s->offset);
            else
                put(t, "param%d[]", s->parameter);
            break;
        case LS_SYMBOL_VARIABLE: put(t, "variable@%lld", (long long)s->line); break;
        case LS_SYMBOL_RESULT: put_result(t, w, s, depth); break;
        case LS_SYMBOL_JOIN: {
            ls_sum a, b;
            if (depth == 0) {
                put(t, "either@%lld", (long long)s->line);
                break;
            }
            ls_work_sum(w, &a, s->a);
            ls_work_sum(w, &b, s->b);
            put(t, "either(");
            put_sum(t, w, &a, depth - 1);
            put(t, ", ");
            put_sum(t, w, &b, depth - 1);
            put(t, ")");
            break;
        }
        case LS_SYMBOL_LOOP: put(t, "loop@%lld", (long long)s->line); break;
        case LS_SYMBOL_TURN: put(t, "turn@%lld", (long long)s->line); break;
    }
}

static void put_sum(text *t, const ls_work *w, const ls_sum *sum, int depth) {
    if (sum->is_lost)
        put(t, "?");
    else if (sum->n == 0)
        put(t, "0");
    for (int32_t i = 0; i < sum->n && !sum->is_lost; i++) {
        const ls_term *term = &sum->terms[i];
        const int64_t f = term->factor;
        const bool one = (f == 1 || f == -1) && term->n > 0;
        put(t, "%s", i == 0 ? (f < 0 ? "-" : "") : f < 0 ? " - " : " + ");
        for (int32_t k = 0; k < term->n; k++) {
            if (k > 0) put(t, " * ");
            put_symbol(t, w, term->symbols[k], depth);
        }
        if (!one)
            put(t, "%s%llu", term->n > 0 ? " * " : "", f < 0 ? 0ULL - (unsigned long long)f : (unsigned long long)f);
    }
}

/* The first value of a symbol, the others being what they can, with which the sum passes the window; false where it
 * does so with every value, or needs others' help to be higher. */
static bool first_value(ls_work *w, const ls_sum *sum, int32_t block, ls_range window, int32_t id, ls_wide *first) {
    const ls_range all = ls_work_symbol_range(w, id);
    ls_wide low = all.low, high = all.high;
    if (low >= high) return false;
    if (ls_work_high_with(w, sum, block, id, ls_range_of(low, low)) > window.high) return false;
    if (ls_work_high_with(w, sum, block, id, ls_range_of(low, high)) <= window.high) return false;
    while (high - low > 1) {
        const ls_wide middle = low + (high - low) / 2;
        if (ls_work_high_with(w, sum, block, id, ls_range_of(all.low, middle)) > window.high)
            high = middle;
        else
            low = middle;
    }
    *first = high;
    return true;
}

/* What grows with use comes first: ids that are read, blocks, turns, then what is given. */
static int rank_of(const ls_symbol *s) {
    static const int ranks[] = {
        [LS_SYMBOL_PARAMETER] = 3, [LS_SYMBOL_TID] = 1,    [LS_SYMBOL_CTAID] = 6,    [LS_SYMBOL_NTID] = 0,
        [LS_SYMBOL_NCTAID] = 2,    [LS_SYMBOL_LOADED] = 8, [LS_SYMBOL_VARIABLE] = 0, [LS_SYMBOL_RESULT] = 5,
        [LS_SYMBOL_JOIN] = 5,      [LS_SYMBOL_LOOP] = 4,   [LS_SYMBOL_TURN] = 4};
    return ranks[s->kind];
}

static void choose_lever(ls_work *w, const ls_sum *sum, int32_t block, ls_range window, ls_audit_finding *out) {
    int best = -1;
    int32_t lever = -1;
    for (int32_t i = 0; i < sum->n; i++)
        for (int32_t k = 0; k < sum->terms[i].n; k++) {
            const int32_t id = sum->terms[i].symbols[k];
            const int rank = 2 * rank_of(&w->symbols[id]) + (sum->terms[i].n > 1 || sum->terms[i].factor > 1);
            ls_wide first;
            if (rank <= best || !first_value(w, sum, block, window, id, &first)) continue;
            best = rank;
            lever = id;
            out->first = first;
        }
    if (lever < 0) {
        snprintf(out->lever, sizeof out->lever, "(none alone)");
        out->share = 1.0;
        return;
    }
    const ls_range all = ls_work_symbol_range(w, lever);
    text t = {out->lever, 0, sizeof out->lever};
    put_symbol(&t, w, lever, 2);
    out->lever_low = all.low;
    out->lever_high = all.high;
    out->share = (double)(all.high - out->first + 1) / (double)(all.high - all.low + 1);
    for (int32_t i = 0; i < out->n_symbols; i++)
        if (strcmp(out->symbols[i].name, out->lever) == 0) out->lever_symbol = i;
}

/* The expression's values and terms, for those who compute with it. */
static void copy_terms(ls_work *w, const ls_sum *sum, ls_audit_finding *out) {
    int32_t ids[LS_AUDIT_FACTORS];
    out->lever_symbol = -1;
    if (sum->n > LS_AUDIT_FACTORS) return;
    for (int32_t i = 0; i < sum->n; i++) {
        ls_audit_term *term = &out->terms[i];
        *term = (ls_audit_term){.factor = sum->terms[i].factor, .n = sum->terms[i].n};
        for (int32_t k = 0; k < term->n; k++) {
            const int32_t id = sum->terms[i].symbols[k];
            int32_t at = 0;
            while (at < out->n_symbols && ids[at] != id) at++;
            if (at == LS_AUDIT_FACTORS) {
                out->n_symbols = 0;
                return;
            }
            if (at == out->n_symbols) {
                ls_audit_symbol *symbol = &out->symbols[out->n_symbols++];
                const ls_range r = ls_work_symbol_range(w, id);
                text t = {symbol->name, 0, sizeof symbol->name};
                put_symbol(&t, w, id, 2);
                symbol->low = r.low;
                symbol->high = r.high;
                symbol->is_declared = ls_work_is_declared(w, id, 3);
                ids[at] = id;
            }
            term->symbols[k] = at;
        }
    }
    out->n_terms = sum->n;
}

/* Puts in place of a value that is one of two the one that reaches higher. */
static void take_higher(ls_work *w, ls_sum *sum) {
    for (int round = 0; round < 8 && !sum->is_lost; round++) {
        int32_t id = -1;
        for (int32_t i = 0; i < sum->n && id < 0; i++)
            for (int32_t k = 0; k < sum->terms[i].n && id < 0; k++)
                if (w->symbols[sum->terms[i].symbols[k]].kind == LS_SYMBOL_JOIN) id = sum->terms[i].symbols[k];
        if (id < 0) return;
        ls_sum a, b, out = {.is_lost = false, .n = 0};
        ls_work_sum(w, &a, w->symbols[id].a);
        ls_work_sum(w, &b, w->symbols[id].b);
        const ls_sum *higher = ls_work_range(w, &a, -1).high >= ls_work_range(w, &b, -1).high ? &a : &b;
        for (int32_t i = 0; i < sum->n; i++) {
            if (ls_term_degree(&sum->terms[i], id) == 0) {
                ls_sum_add_term(&out, &sum->terms[i], 1);
            } else {
                const ls_term rest = ls_term_without(&sum->terms[i], id);
                ls_sum_add_product(&out, &rest, higher);
            }
        }
        ls_work_expand(w, &out);
        if (out.is_lost) return;
        ls_sum_copy(sum, &out);
    }
}

void ls_describe_finding(ls_work *w, const ls_sum *given, int32_t block, ls_range window, ls_audit_finding *out) {
    ls_sum higher;
    ls_sum_copy(&higher, given);
    take_higher(w, &higher);
    const ls_sum *sum = ls_work_range(w, &higher, block).high > window.high ? &higher : given;
    text t = {out->expression, 0, sizeof out->expression};
    put_sum(&t, w, sum, 2);
    out->high = ls_work_range(w, sum, block).high;
    out->is_declared = ls_work_declared(w, sum);
    copy_terms(w, sum, out);
    choose_lever(w, sum, block, window, out);
}

void ls_describe_unknown(ls_work *w, const ls_check *check, char *out, size_t bytes) {
    ls_sum sum;
    char expression[256];
    text t = {expression, 0, sizeof expression};
    if (check->reason != NULL) {
        const ls_ptx_instruction *in = &w->f->instructions[check->at];
        const ls_ptx_name op = in->shown.text != NULL ? in->shown : in->op;
        snprintf(out, bytes, "line %lld, %.*s: %s", (long long)in->line, op.bytes > 60 ? 60 : op.bytes, op.text,
                 check->reason);
        return;
    }
    ls_work_sum(w, &sum, check->sum);
    ls_work_expand(w, &sum);
    put_sum(&t, w, &sum, 1);
    const ls_range range = ls_work_range(w, &sum, check->block);
    const char *why = "a sum of values without ranges passes the type only at its very end";
    if (sum.is_lost) why = "the expression is too long";
    for (int32_t i = 0; i < sum.n; i++)
        for (int32_t k = 0; k < sum.terms[i].n; k++)
            if (w->symbols[sum.terms[i].symbols[k]].is_vague) why = "a part of it is bounded by nothing that is seen";
    if (range.high <= check->window.high)
        why = check->window.low < 0
                  ? "it may pass the type downward: no guard that is seen excludes it"
                  : "it may be negative where it is taken without a sign: no guard that is seen excludes it";
    snprintf(out, bytes, "line %lld takes %s: %s", (long long)w->f->instructions[check->at].line, expression, why);
}
