/* Loops, facts, ranges. A register that moves by the same step each turn of a loop is start + turn * step. A jump that
 * compares tells what holds behind it, as sum <= bound. A range is that of a sum's terms, made tighter by what facts
 * allow to take away. */
#include <stdlib.h>
#include <string.h>

#include "audit/work.h"
#include "base/mem.h"

enum { FACTS_MAX = 48, BUDGET = 600, DEPTH_MAX = 24 };

/* Ranges ---------------------------------------------------------------------------------------------------------- */

/* Before the facts of a block are known, a sum is bounded by its terms alone. */
static ls_range term_range(ls_work *w, const ls_term *t) {
    ls_range out = ls_range_of(t->factor, t->factor);
    bool used[LS_DEGREE_MAX] = {false};
    for (int32_t i = 0; i < t->n; i++) { /* blocks times threads of a block are the threads of the axis */
        const ls_symbol *a = &w->symbols[t->symbols[i]];
        if (used[i]) continue;
        for (int32_t k = 0; k < t->n && (a->kind == LS_SYMBOL_CTAID || a->kind == LS_SYMBOL_NCTAID); k++) {
            const ls_symbol *b = &w->symbols[t->symbols[k]];
            if (used[k] || b->kind != LS_SYMBOL_NTID || b->axis != a->axis || a->is_declared) continue;
            const ls_range all = w->threads[a->axis];
            const bool is_id = a->kind == LS_SYMBOL_CTAID;
            out = ls_range_multiply(out, ls_range_of(is_id ? 0 : 1, is_id ? all.high - b->type.high : all.high));
            used[i] = used[k] = true;
            break;
        }
    }
    for (int32_t i = 0; i < t->n; i++)
        if (!used[i]) out = ls_range_multiply(out, ls_work_symbol_range(w, t->symbols[i]));
    return out;
}

/* The axis of blockIdx * n where threadIdx of the same axis is added and n may be the size of a block: together they
 * number the axis' threads. -1 for any other term. */
static int thread_axis(const ls_work *w, const ls_sum *sum, const ls_term *t) {
    if (t->n != 1 || t->factor < 2 || t->factor > 1024) return -1;
    const ls_symbol *block = &w->symbols[t->symbols[0]];
    if (block->kind != LS_SYMBOL_CTAID || block->is_declared) return -1;
    for (int32_t i = 0; i < sum->n; i++) {
        const ls_symbol *s =
            sum->terms[i].n == 1 && sum->terms[i].factor == 1 ? &w->symbols[sum->terms[i].symbols[0]] : NULL;
        if (s != NULL && s->kind == LS_SYMBOL_TID && s->axis == block->axis) return block->axis;
    }
    return -1;
}

static ls_range plain_range(ls_work *w, const ls_sum *sum) {
    ls_range out = ls_range_of(0, 0);
    if (sum->is_lost) return ls_range_of(-LS_WIDE_MAX, LS_WIDE_MAX);
    for (int32_t i = 0; i < sum->n; i++) {
        ls_range r = term_range(w, &sum->terms[i]);
        const int axis = thread_axis(w, sum, &sum->terms[i]);
        if (axis >= 0 && r.high > w->threads[axis].high - sum->terms[i].factor)
            r.high = w->threads[axis].high - sum->terms[i].factor;
        out = ls_range_add(out, r);
    }
    return out;
}

/* What a quotient or a value whose low bits were cleared leaves over: a - whole lies in 0..rest, whole being symbol
 * times factor. */
static bool leaves_rest(ls_work *w, int32_t id, ls_sum *a, ls_sum *whole, ls_wide *rest) {
    const ls_symbol *s = &w->symbols[id];
    ls_sum b, symbol;
    int64_t mask;
    if (s->kind != LS_SYMBOL_RESULT || (s->rule != LS_RULE_QUOTIENT && s->rule != LS_RULE_AND)) return false;
    ls_work_sum(w, a, s->a);
    ls_work_sum(w, &b, s->b);
    if (a->is_lost || b.is_lost || b.n != 1) return false;
    ls_work_expand(w, a);
    ls_sum_symbol(&symbol, id);
    if (s->rule == LS_RULE_AND) {
        if (!ls_sum_is_constant(&b, &mask) || mask >= 0 || (-mask & (-mask - 1)) != 0) return false;
        ls_sum_copy(whole, &symbol);
        *rest = -mask - 1;
        return true;
    }
    ls_sum_multiply(whole, &symbol, &b);
    *rest = plain_range(w, &b).high - 1;
    return !whole->is_lost && whole->n == 1 && plain_range(w, a).low >= 0 && plain_range(w, &b).low >= 0;
}

/* The range of a sum in which such a pair stands, as far as it is tighter: sum = scale * (a - whole) + the others. */
static ls_wide high_with_rests(ls_work *w, const ls_sum *sum, ls_wide best) {
    for (int32_t i = 0; i < sum->n; i++)
        for (int32_t k = 0; k < sum->terms[i].n; k++) {
            ls_sum a, whole, out;
            ls_term scale;
            ls_wide rest;
            if (!leaves_rest(w, sum->terms[i].symbols[k], &a, &whole, &rest)) continue;
            if (!ls_term_divide(&scale, &sum->terms[i], &whole.terms[0])) continue;
            ls_sum_copy(&out, sum);
            ls_term less = scale;
            less.factor = -less.factor;
            ls_sum_add_product(&out, &less, &whole); /* the whole goes, */
            ls_sum_add_product(&out, &scale, &a);    /* a comes, less the rest */
            if (out.is_lost) continue;
            const ls_range left = ls_range_multiply(term_range(w, &less), ls_range_of(0, rest));
            const ls_wide high = ls_range_add(plain_range(w, &out), left).high;
            if (high < best) best = high;
        }
    return best;
}

static ls_wide high_of(ls_work *w, const ls_sum *sum, int32_t block, int32_t depth);

/* Tries to take a fact off a sum: sum - scale * fact, whose bound is scale * the fact's bound higher. */
static ls_wide try_fact(ls_work *w, const ls_sum *sum, const ls_fact *fact, int32_t block, int32_t depth,
                        ls_wide best) {
    ls_sum known, left;
    ls_work_sum(w, &known, fact->sum);
    for (int32_t i = 0; i < known.n && !known.is_lost; i++) {
        if (known.terms[i].factor <= 0 || known.terms[i].n == 0) continue;
        for (int32_t k = 0; k < sum->n && w->budget > 0; k++) {
            ls_term scale;
            if (!ls_term_divide(&scale, &sum->terms[k], &known.terms[i]) || scale.factor <= 0) continue;
            w->budget--;
            const ls_range by = term_range(w, &scale);
            if (by.low < 0) continue;
            ls_term less = scale;
            less.factor = -less.factor;
            ls_sum_copy(&left, sum);
            ls_sum_add_product(&left, &less, &known);
            if (left.is_lost) continue;
            const ls_range bound = ls_range_multiply(by, ls_range_of(fact->bound, fact->bound));
            const ls_wide high = ls_range_add(ls_range_of(0, high_of(w, &left, block, depth - 1)), bound).high;
            if (high < best) best = high;
        }
    }
    return best;
}

static ls_wide high_of(ls_work *w, const ls_sum *sum, int32_t block, int32_t depth) {
    ls_wide best = plain_range(w, sum).high;
    int32_t seen = 0;
    if (!sum->is_lost) best = high_with_rests(w, sum, best);
    if (depth == 0 || sum->is_lost || block < 0) return best;
    for (int32_t b = block; b >= 0 && seen < FACTS_MAX; b = w->flow->blocks[b].above)
        for (int32_t f = w->block_facts[b]; f >= 0 && seen < FACTS_MAX && w->budget > 0; f = w->facts[f].next, seen++)
            best = try_fact(w, sum, &w->facts[f], block, depth, best);
    return best;
}

ls_range ls_work_range(ls_work *w, const ls_sum *given, int32_t block) {
    ls_sum sum, minus = {.is_lost = false, .n = 0};
    ls_sum_copy(&sum, given);
    ls_work_expand(w, &sum);
    if (sum.is_lost) ls_sum_copy(&sum, given);
    if (sum.is_lost) return ls_range_of(-LS_WIDE_MAX, LS_WIDE_MAX);
    ls_sum_add(&minus, &sum, -1);
    w->budget = BUDGET;
    const ls_wide high = high_of(w, &sum, block, 2);
    w->budget = BUDGET;
    return ls_range_of(-high_of(w, &minus, block, 2), high);
}

static ls_wide floor_divide(ls_wide a, ls_wide b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

static ls_range quotient_range(ls_range a, ls_range b, ls_range type) {
    if (b.low < 0) return type;
    if (type.low == 0 && a.low < 0) return ls_range_of(0, b.low > 0 ? type.high / b.low : type.high);
    if (b.low == 0) b.low = 1; /* nobody divides by 0 */
    if (b.high == 0) b.high = 1;
    return ls_range_of(a.low < 0 ? floor_divide(a.low, b.low) : floor_divide(a.low, b.high),
                       a.high < 0 ? floor_divide(a.high, b.high) : floor_divide(a.high, b.low));
}

static ls_range or_range(ls_range a, ls_range b, bool exclusive) {
    ls_wide bits = 1;
    if (a.low < 0 || b.low < 0) return ls_range_of(-LS_WIDE_MAX, LS_WIDE_MAX);
    while (bits <= a.high || bits <= b.high) bits *= 2;
    const ls_wide high = a.high + b.high < bits - 1 ? a.high + b.high : bits - 1;
    return ls_range_of(exclusive ? 0 : a.low > b.low ? a.low : b.low, high);
}

static ls_range rule_range(const ls_symbol *s, ls_range a, ls_range b) {
    const ls_range all = s->type;
    switch ((ls_rule)s->rule) {
        case LS_RULE_TYPE: return all;
        case LS_RULE_QUOTIENT: return quotient_range(a, b, all);
        case LS_RULE_REST:
            if (b.low < 0 || b.high < 1) return all;
            if (a.low < 0) return ls_range_of(all.low < 0 ? 1 - b.high : 0, b.high - 1);
            return ls_range_of(0, a.high < b.high - 1 ? a.high : b.high - 1);
        case LS_RULE_HIGH:
            if (a.low < 0 || b.low < 0) return all;
            return ls_range_of(0, ls_range_multiply(a, b).high >> s->shift);
        case LS_RULE_AND:
            if (b.low >= 0) return ls_range_of(0, a.low >= 0 && a.high < b.high ? a.high : b.high);
            return a.low >= 0 ? ls_range_of(0, a.high) : all;
        case LS_RULE_OR: return or_range(a, b, false);
        case LS_RULE_XOR: return or_range(a, b, true);
        case LS_RULE_MIN: return ls_range_of(a.low < b.low ? a.low : b.low, a.high < b.high ? a.high : b.high);
        case LS_RULE_MAX: return ls_range_of(a.low > b.low ? a.low : b.low, a.high > b.high ? a.high : b.high);
        case LS_RULE_ABS: {
            const ls_wide low = a.low < 0 ? -a.low : a.low, high = a.high < 0 ? -a.high : a.high;
            return ls_range_of(0, low > high ? low : high);
        }
        case LS_RULE_POWER:
            if (a.low < 0 || a.high > 63) return all;
            return ls_range_of((ls_wide)1 << a.low, (ls_wide)1 << a.high);
        case LS_RULE_SAME: return a;
    }
    return all;
}

/* A loop's register without a step: it is taken to stay where it begins, and below, if a turn keeps it there. */
static ls_range loop_range(ls_work *w, int32_t symbol) {
    const ls_flow_value *phi = &w->flow->values[w->symbols[symbol].value];
    const ls_flow_block *head = &w->flow->blocks[phi->block];
    ls_range start = ls_range_of(0, 0), guess;
    bool any = false;
    for (int32_t pass = 0; pass < 2; pass++) {
        for (int32_t e = 0; e < head->n_from; e++) {
            const int32_t from = w->flow->joined[phi->first_from + e], block = w->flow->edges[head->first_from + e];
            const bool turns = ls_flow_dominates(w->flow, phi->block, block);
            ls_sum sum;
            if (from < 0 || turns != (pass == 1)) continue;
            ls_work_sum(w, &sum, w->cells[from].sum);
            if (sum.is_lost) return w->symbols[symbol].type;
            const ls_range r = plain_range(w, &sum);
            if (pass == 1 && !ls_range_within(r, w->symbols[symbol].range)) return w->symbols[symbol].type;
            start = any ? ls_range_join(start, r) : r;
            any = true;
        }
        if (!any) return w->symbols[symbol].type;
        guess = ls_range_join(start, ls_range_of(0, 0));
        if (pass == 0) w->symbols[symbol].range = guess;
    }
    w->symbols[symbol].is_vague = false;
    return w->symbols[symbol].range;
}

ls_range ls_work_symbol_range(ls_work *w, int32_t id) {
    ls_symbol *s = &w->symbols[id];
    ls_sum a, b;
    if (s->is_ranged || s->is_open) return s->is_ranged || s->kind == LS_SYMBOL_LOOP ? s->range : s->type;
    s->range = s->type;
    if (s->is_declared || (s->kind != LS_SYMBOL_RESULT && s->kind != LS_SYMBOL_JOIN && s->kind != LS_SYMBOL_LOOP) ||
        w->depth == DEPTH_MAX)
        return s->type;
    s->is_open = true;
    w->depth++;
    if (s->kind == LS_SYMBOL_LOOP && s->is_affine) {
        ls_sum_symbol(&a, id);
        ls_work_expand(w, &a);
        s->range = plain_range(w, &a);
    } else if (s->kind == LS_SYMBOL_LOOP) {
        w->tentative++;
        const ls_range found = loop_range(w, id);
        w->tentative--;
        w->symbols[id].range = found;
    } else {
        const int64_t budget = w->budget;
        ls_work_sum(w, &a, s->a);
        ls_work_sum(w, &b, s->b);
        const bool one = s->b.n < 0;
        ls_range ra = s->kind == LS_SYMBOL_RESULT && s->rule == LS_RULE_TYPE ? s->type : plain_range(w, &a);
        ls_range rb = one ? ls_range_of(-LS_WIDE_MAX, LS_WIDE_MAX) : plain_range(w, &b);
        s = &w->symbols[id];
        if (s->kind == LS_SYMBOL_RESULT && !a.is_lost && w->block_facts != NULL && w->depth <= 3 && w->tentative == 0) {
            const ls_range tight = ls_work_range(w, &a, s->block);
            if (ls_range_within(tight, ra)) ra = tight;
        }
        if (s->kind == LS_SYMBOL_JOIN && w->block_facts != NULL && w->depth <= 3 && w->tentative == 0) {
            const int32_t from_a = s->a_block, from_b = s->b_block; /* each way in knows what led to it */
            const ls_range tight_a = from_a > 0 ? ls_work_range(w, &a, from_a) : ra;
            const ls_range tight_b = from_b > 0 ? ls_work_range(w, &b, from_b) : rb;
            if (ls_range_within(tight_a, ra)) ra = tight_a;
            if (ls_range_within(tight_b, rb)) rb = tight_b;
            s = &w->symbols[id];
        }
        ls_range found = s->kind == LS_SYMBOL_JOIN ? ls_range_join(ra, rb) : rule_range(s, ra, rb);
        if (s->kind == LS_SYMBOL_RESULT && !ls_range_within(found, s->type)) found = s->type;
        s->range = found;
        w->budget = budget;
    }
    w->depth--;
    s = &w->symbols[id];
    s->is_open = false;
    if (w->tentative == 0) s->is_ranged = true;
    return s->range;
}

ls_wide ls_work_high_with(ls_work *w, const ls_sum *sum, int32_t block, int32_t symbol, ls_range range) {
    const ls_symbol before = w->symbols[symbol];
    w->symbols[symbol].is_ranged = true;
    w->symbols[symbol].is_declared = true;
    w->symbols[symbol].range = w->symbols[symbol].type = range;
    w->tentative++;
    w->budget = BUDGET;
    const ls_wide high = high_of(w, sum, block, 2);
    w->tentative--;
    w->symbols[symbol] = before;
    return high;
}

/* Facts ----------------------------------------------------------------------------------------------------------- */

static ls_status add_fact(ls_work *w, int32_t block, const ls_sum *sum, ls_wide bound, ls_error *err) {
    ls_sum whole;
    ls_fact fact = {.bound = bound, .next = w->block_facts[block]};
    int64_t value;
    ls_sum_copy(&whole, sum);
    ls_work_expand(w, &whole);
    if (whole.is_lost || ls_sum_is_constant(&whole, &value)) return LS_OK;
    for (int32_t i = whole.n - 1; i >= 0; i--) /* the constant goes to the bound */
        if (whole.terms[i].n == 0) {
            fact.bound -= whole.terms[i].factor;
            whole.n--;
        }
    LS_TRY(ls_work_keep(w, &fact.sum, &whole, err));
    LS_TRY(ls_array_grow((void **)&w->facts, &w->cap_facts, w->n_facts + 1, sizeof *w->facts, "facts", err));
    w->block_facts[block] = (int32_t)w->n_facts;
    w->facts[w->n_facts++] = fact;
    return LS_OK;
}

typedef enum relation { LESS, LESS_EQUAL, GREATER, GREATER_EQUAL, EQUAL, UNEQUAL, NO_RELATION } relation;

static relation relation_of(ls_ptx_name op, bool negated) {
    static const struct {
        const char *name;
        relation holds, fails;
    } all[] = {{".lt", LESS, GREATER_EQUAL}, {".le", LESS_EQUAL, GREATER}, {".gt", GREATER, LESS_EQUAL},
               {".ge", GREATER_EQUAL, LESS}, {".lo", LESS, GREATER_EQUAL}, {".ls", LESS_EQUAL, GREATER},
               {".hi", GREATER, LESS_EQUAL}, {".hs", GREATER_EQUAL, LESS}, {".eq", EQUAL, UNEQUAL},
               {".ne", UNEQUAL, EQUAL}};
    if (op.bytes < 8) return NO_RELATION;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (memcmp(op.text + 4, all[i].name, 3) == 0) return negated ? all[i].fails : all[i].holds;
    return NO_RELATION;
}

/* A comparison, ready to use. */
typedef struct compared {
    ls_sum a, b;
    relation how;
    bool is_unsigned;
    int32_t bits;
} compared;

static void operand_sum(const ls_work *w, int32_t index, int32_t bits, ls_sum *out) {
    const ls_ptx_operand *o = &w->f->operands[index];
    out->is_lost = true;
    out->n = 0;
    if (o->kind == LS_PTX_INT)
        ls_sum_constant(out, bits == 32 ? (int64_t)(int32_t)(uint32_t)(uint64_t)o->value : o->value);
    else if (o->reg >= 0 && w->flow->reads[index] >= 0)
        ls_work_sum(w, out, w->cells[w->flow->reads[index]].sum);
    else if (o->kind == LS_PTX_SYMBOL)
        for (int k = 0; k < 4; k++) {
            static const char *const names[] = {"%tid.", "%ctaid.", "%ntid.", "%nctaid."};
            const int axis = o->name.text[o->name.bytes - 1] - 'x';
            if (ls_ptx_begins(o->name, names[k]) && axis >= 0 && axis < 3 && w->axis[k][axis] >= 0)
                ls_sum_symbol(out, w->axis[k][axis]);
        }
}

static bool read_compare(const ls_work *w, const ls_ptx_instruction *in, bool negated, compared *out) {
    const int32_t results = ls_flow_defines(w->f, in);
    out->bits = ls_ptx_has(in->op, "64") ? 64 : ls_ptx_has(in->op, "32") ? 32 : 0;
    out->is_unsigned = ls_ptx_has(in->op, ".u32") || ls_ptx_has(in->op, ".u64") || ls_ptx_has(in->op, ".lo.") ||
                       ls_ptx_has(in->op, ".hi.") || ls_ptx_has(in->op, ".ls.") || ls_ptx_has(in->op, ".hs.");
    out->how = relation_of(in->op, negated);
    if (out->bits == 0 || ls_ptx_has(in->op, ".f32") || ls_ptx_has(in->op, ".f64") || in->n < results + 2) return false;
    operand_sum(w, in->first + results, out->bits, &out->a);
    operand_sum(w, in->first + results + 1, out->bits, &out->b);
    return !out->a.is_lost && !out->b.is_lost && out->how != NO_RELATION;
}

/* Whatever the larger side of a comparison means, as a register it does not pass its type: where its sum may, the
 * end of the type takes its place, which is told. */
static bool clamp_larger(ls_work *w, compared *c, int32_t block) {
    const ls_wide half = (ls_wide)1 << 31;
    if (c->bits != 32 || c->how >= EQUAL) return false;
    ls_sum *large = c->how == LESS || c->how == LESS_EQUAL ? &c->b : &c->a;
    const ls_range window = c->is_unsigned ? ls_range_of(0, 2 * half - 1) : ls_range_of(-half, half - 1);
    if (ls_range_within(ls_work_range(w, large, block), window)) return false;
    ls_sum_constant(large, (int64_t)window.high);
    return true;
}

/* A comparison speaks of bits: it says something about sums where these are what the bits mean. An unsigned one against
 * what is below 2^31 also says that the smaller side is not negative. */
static bool means_sums(ls_work *w, compared *c, int32_t block, bool *not_negative) {
    const ls_wide half = (ls_wide)1 << (c->bits - 1);
    const bool rises = c->how == LESS || c->how == LESS_EQUAL;
    const int32_t counter = ls_sum_single(rises ? &c->a : &c->b);
    *not_negative = false;
    if (c->how < EQUAL && counter >= 0 && w->symbols[counter].is_affine && !c->is_unsigned)
        return true; /* add_loop_fact */
    const ls_range a = ls_work_range(w, &c->a, block), b = ls_work_range(w, &c->b, block);
    *not_negative = false;
    if (c->how == EQUAL || c->how == UNEQUAL) {
        const ls_range s = ls_range_of(-half, half - 1), u = ls_range_of(0, 2 * half - 1);
        if (c->bits == 64) return true;
        return (ls_range_within(a, s) && ls_range_within(b, s)) || (ls_range_within(a, u) && ls_range_within(b, u));
    }
    if (!c->is_unsigned)
        return c->bits == 64 ||
               (ls_range_within(a, ls_range_of(-half, half - 1)) && ls_range_within(b, ls_range_of(-half, half - 1)));
    const ls_range u = ls_range_of(0, 2 * half - 1);
    if (ls_range_within(a, u) && ls_range_within(b, u)) return true;
    const bool a_small = c->how == LESS || c->how == LESS_EQUAL;
    const ls_range small = a_small ? a : b, large = a_small ? b : a;
    *not_negative =
        ls_range_within(large, ls_range_of(0, half)) && ls_range_within(small, ls_range_of(-half, 2 * half - 1));
    return *not_negative;
}

/* sum a - b <= bound, and its like. */
static ls_status add_difference(ls_work *w, int32_t block, const ls_sum *a, const ls_sum *b, ls_wide bound,
                                ls_error *err) {
    ls_sum difference;
    ls_sum_copy(&difference, a);
    ls_sum_add(&difference, b, -1);
    return add_fact(w, block, &difference, bound, err);
}

/* x & 0xFFFFFFFF00000000 = 0 and x >> 32 = 0: every part of x = a | b lies below 2^32. Compilers write it in front of a
 * short division. */
static ls_status add_halves(ls_work *w, int32_t block, const ls_sum *sum, int32_t depth, bool inside, ls_error *err) {
    const int32_t id = ls_sum_single(sum);
    ls_sum a, b;
    int64_t mask;
    const ls_symbol *s = id < 0 ? NULL : &w->symbols[id];
    const bool result = s != NULL && s->kind == LS_SYMBOL_RESULT;
    if (depth == 0) return LS_OK;
    if (result) {
        ls_work_sum(w, &a, s->a);
        ls_work_sum(w, &b, s->b);
    }
    if (result && !inside && s->rule == LS_RULE_AND && ls_sum_is_constant(&b, &mask) && mask == -4294967296LL)
        return add_halves(w, block, &a, depth - 1, true, err);
    if (result && !inside && s->rule == LS_RULE_QUOTIENT && ls_sum_is_constant(&b, &mask) && mask == 4294967296LL)
        return add_halves(w, block, &a, depth - 1, true, err);
    if (!inside) return LS_OK;
    if (result && s->rule == LS_RULE_OR) {
        LS_TRY(add_halves(w, block, &a, depth - 1, true, err));
        return add_halves(w, block, &b, depth - 1, true, err);
    }
    ls_sum zero;
    ls_sum_constant(&zero, 0);
    LS_TRY(add_difference(w, block, sum, &zero, 0xFFFFFFFFLL, err));
    return add_difference(w, block, &zero, sum, 0, err);
}

static ls_status add_compare(ls_work *w, int32_t block, const ls_ptx_instruction *in, bool negated, ls_error *err) {
    compared c;
    bool not_negative;
    int64_t zero;
    if (!read_compare(w, in, negated, &c)) return LS_OK;
    if (c.how == EQUAL && c.bits == 64 && ls_sum_is_constant(&c.b, &zero) && zero == 0)
        LS_TRY(add_halves(w, block, &c.a, 4, false, err));
    clamp_larger(w, &c, block);
    if (c.how == UNEQUAL || !means_sums(w, &c, block, &not_negative)) return LS_OK;
    const bool less = c.how == LESS || c.how == LESS_EQUAL;
    const bool strict = c.how == LESS || c.how == GREATER;
    if (c.how == EQUAL) {
        LS_TRY(add_difference(w, block, &c.a, &c.b, 0, err));
        return add_difference(w, block, &c.b, &c.a, 0, err);
    }
    const ls_sum *small = less ? &c.a : &c.b, *large = less ? &c.b : &c.a;
    LS_TRY(add_difference(w, block, small, large, strict ? -1 : 0, err));
    if (!not_negative) return LS_OK;
    ls_sum none;
    ls_sum_constant(&none, 0);
    return add_difference(w, block, &none, small, 0, err);
}

/* What a predicate that holds, or does not, says in a block. */
static ls_status add_condition(ls_work *w, int32_t block, int32_t predicate, bool negated, int32_t depth,
                               ls_error *err) {
    if (predicate < 0 || depth == 0 || w->cells[predicate].compare < 0) return LS_OK;
    const ls_ptx_instruction *in = &w->f->instructions[w->cells[predicate].compare];
    const int32_t results = ls_flow_defines(w->f, in);
    if (w->flow->values[predicate].part > 0) negated = !negated; /* p|q: q is the opposite */
    if (ls_ptx_begins(in->op, "setp.")) {
        const bool both = ls_ptx_has(in->op, ".and."), some = ls_ptx_has(in->op, ".or.");
        if ((both || some) && in->n > results + 2) {
            if (both == negated) return LS_OK;
            const int32_t last = in->first + in->n - 1;
            LS_TRY(
                add_condition(w, block, w->flow->reads[last], negated != w->f->operands[last].is_not, depth - 1, err));
        } else if (ls_ptx_has(in->op, ".xor.")) {
            return LS_OK;
        }
        return add_compare(w, block, in, negated, err);
    }
    if ((ls_ptx_begins(in->op, "and.pred") && !negated) || (ls_ptx_begins(in->op, "or.pred") && negated) ||
        ls_ptx_begins(in->op, "not.pred") || ls_ptx_begins(in->op, "mov.pred")) {
        const bool flips = ls_ptx_begins(in->op, "not.pred");
        for (int32_t o = in->first + results; o < in->first + in->n; o++)
            LS_TRY(add_condition(w, block, w->flow->reads[o], (negated != flips) != w->f->operands[o].is_not, depth - 1,
                                 err));
    }
    return LS_OK;
}

/* Loops ----------------------------------------------------------------------------------------------------------- */

/* Whether no symbol of the sum comes into being in the loop. */
static bool is_outside(const ls_work *w, const ls_sum *sum, int32_t head) {
    for (int32_t i = 0; i < sum->n; i++)
        for (int32_t k = 0; k < sum->terms[i].n; k++) {
            const int32_t block = w->symbols[sum->terms[i].symbols[k]].block;
            if (block == head || (block >= 0 && !ls_flow_dominates(w->flow, block, head))) return false;
        }
    return !sum->is_lost;
}

static ls_status find_turn(ls_work *w, int32_t head, int32_t *turn, ls_error *err) {
    if (w->turns[head] < 0) {
        const ls_symbol symbol = {
            .kind = LS_SYMBOL_TURN,
            .bits = 64,
            .block = head,
            .value = -1,
            .parameter = -1,
            .turn = -1,
            .type = ls_range_of(0, 2147483647),
            .is_vague = true,
            .line = w->flow->blocks[head].n > 0 ? w->f->instructions[w->flow->blocks[head].first].line : 0};
        LS_TRY(
            ls_array_grow((void **)&w->symbols, &w->cap_symbols, w->n_symbols + 1, sizeof *w->symbols, "symbols", err));
        w->turns[head] = (int32_t)w->n_symbols;
        w->symbols[w->n_symbols++] = symbol;
    }
    *turn = w->turns[head];
    return LS_OK;
}

/* Finds start and step of a loop's register. */
static ls_status find_step(ls_work *w, int32_t id, ls_error *err) {
    const ls_symbol *s = &w->symbols[id];
    const ls_flow_value *phi = &w->flow->values[s->value];
    const ls_flow_block *head = &w->flow->blocks[phi->block];
    ls_sum start = {.is_lost = true}, step = {.is_lost = true};
    bool has_start = false, has_step = false;
    for (int32_t e = 0; e < head->n_from; e++) {
        const int32_t from = w->flow->joined[phi->first_from + e], block = w->flow->edges[head->first_from + e];
        ls_sum sum, own;
        if (w->flow->blocks[block].order < 0) continue;
        if (from < 0) return LS_OK;
        ls_work_sum(w, &sum, w->cells[from].sum);
        if (sum.is_lost) return LS_OK;
        if (ls_flow_dominates(w->flow, phi->block, block)) {
            ls_sum_symbol(&own, id);
            ls_sum_add(&sum, &own, -1);
            if (!is_outside(w, &sum, phi->block) || (has_step && !ls_sum_equal(&sum, &step))) return LS_OK;
            ls_sum_copy(&step, &sum);
            has_step = true;
        } else {
            if (w->flow->blocks[block].order >= head->order || (has_start && !ls_sum_equal(&sum, &start))) return LS_OK;
            ls_sum_copy(&start, &sum);
            has_start = true;
        }
    }
    if (!has_start || !has_step || !is_outside(w, &start, phi->block)) return LS_OK;
    int32_t turn;
    ls_kept a, b;
    LS_TRY(find_turn(w, phi->block, &turn, err));
    LS_TRY(ls_work_keep(w, &a, &start, err));
    LS_TRY(ls_work_keep(w, &b, &step, err));
    ls_symbol *out = &w->symbols[id];
    out->turn = turn;
    out->a = a;
    out->b = b;
    out->is_affine = true;
    out->is_vague = false;
    return LS_OK;
}

/* A sum in which the turn is one less. */
static bool turn_back(const ls_sum *sum, int32_t turn, ls_sum *out) {
    ls_sum_copy(out, sum);
    for (int32_t i = 0; i < sum->n; i++) {
        const int32_t degree = ls_term_degree(&sum->terms[i], turn);
        if (degree == 0) continue;
        if (degree > 1) return false;
        const ls_term less = ls_term_without(&sum->terms[i], turn);
        ls_sum_add_term(out, &less, -1);
    }
    return !out->is_lost;
}

/* sum = rate * turn + rest, the rate a sum without the turn. */
static bool split_turn(const ls_sum *sum, int32_t turn, ls_sum *rate, ls_sum *rest) {
    ls_sum_constant(rate, 0);
    ls_sum_constant(rest, 0);
    for (int32_t i = 0; i < sum->n; i++) {
        const int32_t degree = ls_term_degree(&sum->terms[i], turn);
        const ls_term less = degree > 0 ? ls_term_without(&sum->terms[i], turn) : sum->terms[i];
        if (degree > 1) return false;
        ls_sum_add_term(degree > 0 ? rate : rest, &less, 1);
    }
    return !rate->is_lost && !rest->is_lost && rate->n > 0;
}

/* The last turn that a condition for going on allows, with what a - b is; -1 where it says nothing. */
static ls_wide last_turn(ls_work *w, const compared *c, int32_t turn, int32_t head) {
    ls_sum difference, rate, rest, flipped = {.is_lost = false, .n = 0};
    ls_sum_copy(&difference, &c->a);
    ls_sum_add(&difference, &c->b, -1);
    ls_work_expand(w, &difference);
    if (difference.is_lost || !split_turn(&difference, turn, &rate, &rest)) return -1;
    const ls_range speed = plain_range(w, &rate);
    const bool rises = speed.low >= 1, falls = speed.high <= -1;
    if (!rises && !falls) return -1;
    const bool upward = c->how == LESS || c->how == LESS_EQUAL || (c->how == UNEQUAL && rises);
    if ((upward && !rises) || (!upward && !falls) || c->how == EQUAL || c->how == NO_RELATION) return -1;
    const ls_wide strict = c->how != LESS_EQUAL && c->how != GREATER_EQUAL;
    ls_sum_add(&flipped, &rest, upward ? -1 : 1); /* |rate| * turn <= flipped - strict */
    w->budget = BUDGET;
    const ls_wide room = high_of(w, &flipped, w->flow->blocks[head].above, 2) - strict;
    const ls_wide slowest = rises ? speed.low : -speed.high;
    w->turn_declared = w->turn_declared && ls_work_declared(w, &rest) && ls_work_declared(w, &rate);
    return room < 0 ? 0 : room / slowest;
}

/* The condition under which a block that jumps back to a head does so. */
static int32_t back_condition(const ls_work *w, int32_t from, int32_t head, bool *negated) {
    const ls_flow_block *k = &w->flow->blocks[from];
    if (k->n == 0 || k->n_to != 2) return -1;
    const int32_t last = k->first + k->n - 1;
    const ls_ptx_instruction *in = &w->f->instructions[last];
    if (in->guard < 0 || !ls_ptx_begins(in->op, "bra")) return -1;
    const bool taken = w->flow->edges[k->first_to] == head;
    *negated = in->guard_not == taken;
    return w->flow->guards[last];
}

/* The comparison behind a predicate, looking through and and or where each part is necessary. */
static ls_wide condition_turns(ls_work *w, int32_t predicate, bool negated, int32_t turn, int32_t head, int32_t depth) {
    compared c;
    if (predicate < 0 || depth == 0 || w->cells[predicate].compare < 0) return -1;
    const ls_ptx_instruction *in = &w->f->instructions[w->cells[predicate].compare];
    const int32_t results = ls_flow_defines(w->f, in);
    if (ls_ptx_begins(in->op, "setp.")) {
        if (!read_compare(w, in, negated, &c)) return -1;
        const ls_sum *large = c.how == LESS || c.how == LESS_EQUAL ? &c.b : &c.a;
        const bool vague = ls_work_is_vague(w, large);
        const bool clamped = clamp_larger(w, &c, w->flow->blocks[head].above);
        w->turn_vague = w->turn_vague || clamped || (vague && c.how < EQUAL);
        return last_turn(w, &c, turn, head);
    }
    ls_wide best = -1;
    if (!((ls_ptx_begins(in->op, "and.pred") && !negated) || (ls_ptx_begins(in->op, "or.pred") && negated) ||
          ls_ptx_begins(in->op, "not.pred")))
        return -1;
    const bool flips = ls_ptx_begins(in->op, "not.pred");
    for (int32_t o = in->first + results; o < in->first + in->n; o++) {
        const ls_wide n = condition_turns(w, w->flow->reads[o], (negated != flips) != w->f->operands[o].is_not, turn,
                                          head, depth - 1);
        if (n >= 0 && (best < 0 || n < best)) best = n;
    }
    return best;
}

/* How far the turn of a loop goes: what every way back demands. */
static void bound_turn(ls_work *w, int32_t head) {
    const ls_flow_block *k = &w->flow->blocks[head];
    const int32_t turn = w->turns[head];
    ls_wide most = -1;
    w->turn_declared = true;
    w->turn_vague = false;
    for (int32_t e = 0; e < k->n_from; e++) {
        const int32_t from = w->flow->edges[k->first_from + e];
        bool negated = false;
        if (!ls_flow_dominates(w->flow, head, from)) continue;
        const int32_t back = back_condition(w, from, head, &negated);
        ls_wide n = condition_turns(w, back, negated, turn, head, 4);
        for (int32_t b = from; b >= 0 && b != head; b = w->flow->blocks[b].above) {
            const ls_wide inner =
                condition_turns(w, w->flow->blocks[b].condition, w->flow->blocks[b].condition_not, turn, head, 4);
            if (inner >= 0 && (n < 0 || inner < n)) n = inner;
        }
        if (n < 0) return;
        if (n + 1 > most) most = n + 1;
    }
    if (most < 0) return;
    w->symbols[turn].range = w->symbols[turn].type = ls_range_of(0, most);
    w->symbols[turn].is_vague = w->turn_vague;
    w->symbols[turn].is_declared = w->turn_declared;
}

/* What holds whenever a head is reached: on the way back by its condition, on the way in by what is known there. The
 * counter that is compared is taken not to pass its own type in the step before it is compared: the language says so
 * where it is signed, and where it is not the loop would never end. */
static ls_status add_loop_fact(ls_work *w, int32_t head, ls_error *err) {
    const ls_flow_block *k = &w->flow->blocks[head];
    const int32_t turn = w->turns[head];
    int32_t from = -1, n_back = 0;
    bool negated = false;
    compared c;
    for (int32_t e = 0; e < k->n_from; e++)
        if (ls_flow_dominates(w->flow, head, w->flow->edges[k->first_from + e])) {
            from = w->flow->edges[k->first_from + e];
            n_back++;
        }
    if (n_back != 1 || turn < 0) return LS_OK;
    const int32_t predicate = back_condition(w, from, head, &negated);
    if (predicate < 0 || w->cells[predicate].compare < 0) return LS_OK;
    const ls_ptx_instruction *in = &w->f->instructions[w->cells[predicate].compare];
    if (!ls_ptx_begins(in->op, "setp.") || !read_compare(w, in, negated, &c)) return LS_OK;
    if (c.how == EQUAL || c.how == UNEQUAL) return LS_OK;
    clamp_larger(w, &c, from);
    ls_work_expand(w, &c.a);
    ls_work_expand(w, &c.b);
    if (c.a.is_lost || c.b.is_lost) return LS_OK;
    const bool less = c.how == LESS || c.how == LESS_EQUAL;
    const ls_wide bound = c.how == LESS || c.how == GREATER ? -1 : 0;
    ls_sum difference, back, rate, first;
    ls_sum_copy(&difference, less ? &c.a : &c.b);
    ls_sum_add(&difference, less ? &c.b : &c.a, -1);
    if (difference.is_lost || !turn_back(&difference, turn, &back) || !split_turn(&back, turn, &rate, &first))
        return LS_OK;
    w->budget = BUDGET;
    const ls_wide start = high_of(w, &first, k->above, 2);
    return add_fact(w, head, &back, start > bound ? start : bound, err);
}

/* All of it ------------------------------------------------------------------------------------------------------- */

static ls_status make_facts(ls_work *w, ls_error *err) {
    for (int64_t i = 0; i < w->flow->n_blocks; i++) w->block_facts[i] = -1;
    w->n_facts = 0;
    for (int64_t i = 0; i < w->n_symbols; i++) w->symbols[i].is_ranged = w->symbols[i].is_open = false;
    for (int64_t i = 0; i < w->flow->n_order; i++) {
        const int32_t block = w->flow->order[i];
        const ls_flow_block *k = &w->flow->blocks[block];
        if (k->condition >= 0) LS_TRY(add_condition(w, block, k->condition, k->condition_not, 6, err));
        if (k->is_loop && w->turns[block] >= 0) LS_TRY(add_loop_fact(w, block, err));
    }
    return LS_OK;
}

ls_status ls_work_bound(ls_work *w, ls_error *err) {
    const int64_t n = w->n_symbols;
    LS_TRY(ls_array_grow((void **)&w->block_facts, &w->cap_block_facts, w->flow->n_blocks, sizeof *w->block_facts,
                         "facts of blocks", err));
    LS_TRY(
        ls_array_grow((void **)&w->turns, &w->cap_turns, w->flow->n_blocks, sizeof *w->turns, "turns of loops", err));
    for (int64_t i = 0; i < w->flow->n_blocks; i++) w->turns[i] = -1;
    for (int32_t i = 0; i < n; i++)
        if (w->symbols[i].kind == LS_SYMBOL_LOOP && w->flow->blocks[w->symbols[i].block].is_loop)
            LS_TRY(find_step(w, i, err));
    LS_TRY(make_facts(w, err));
    for (int64_t i = 0; i < w->flow->n_order; i++)
        if (w->turns[w->flow->order[i]] >= 0) bound_turn(w, w->flow->order[i]);
    return make_facts(w, err);
}
