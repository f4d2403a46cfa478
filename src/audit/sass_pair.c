/* Which two registers are one number of 64 bits, and what it is made of. */
#include <stdlib.h>
#include <string.h>

#include "audit/sass_lower.h"
#include "audit/sass_text.h"
#include "base/mem.h"

enum { PAIRS_MAX = 4000000, COPIES_MAX = 32, PRODUCTS_MAX = 8, STEPS_MAX = 200000000 };

static const ls_register_half none = {LS_REGISTER_HALF_NONE, -1}, zero = {LS_REGISTER_HALF_NUMBER, 0};

static bool same(ls_register_half a, ls_register_half b) {
    return a.kind == b.kind && a.value == b.value && a.kind != LS_REGISTER_HALF_NONE;
}
static bool is_number(ls_register_half h, int32_t number) {
    return h.kind == LS_REGISTER_HALF_NUMBER && h.value == number;
}

/* The instruction that defines a half, NULL for none. */
static const ls_ptx_instruction *definition(const ls_sass_lowering *l, ls_register_half h) {
    if (h.kind != LS_REGISTER_HALF_VALUE || l->flow.values[h.value].kind != LS_FLOW_INSTRUCTION) return NULL;
    return &l->f->instructions[l->flow.values[h.value].at];
}

/* Whether it may not be done where somebody looks. */
static bool is_guarded(const ls_sass_lowering *l, const ls_ptx_instruction *in) {
    if (in == NULL || in->guard < 0) return false;
    const int32_t guard = l->flow.guards[in - l->f->instructions];
    return guard < 0 || guard != l->guard || in->guard_not != l->guard_not;
}

void ls_sass_enter(ls_sass_lowering *l, int32_t at) {
    const ls_flow_block *k = &l->flow.blocks[l->flow.block_of[at]];
    l->guard = k->condition;
    l->guard_not = k->condition >= 0 && k->condition_not;
}

static int32_t first_source(const ls_sass_lowering *l, const ls_ptx_instruction *in) {
    const ls_ptx_operand *o = &l->f->operands[in->first];
    if (in->n > 0 && o->kind == LS_PTX_SINK) {
        int32_t n = 1;
        while (n < in->n && o[n].is_tail) n++;
        return in->first + n;
    }
    return in->first + ls_flow_defines(l->f, in);
}

static const ls_ptx_operand *source(const ls_sass_lowering *l, const ls_ptx_instruction *in, int32_t i) {
    static const ls_ptx_operand nothing = {.kind = LS_PTX_FLOAT, .reg = -1};
    const int32_t at = first_source(l, in) + i;
    return at < in->first + in->n ? &l->f->operands[at] : &nothing;
}

static ls_register_half plain_half(const ls_sass_lowering *l, int32_t operand) {
    const ls_ptx_operand *o = &l->f->operands[operand];
    if (o->kind == LS_PTX_INT)
        return (ls_register_half){LS_REGISTER_HALF_NUMBER, (int32_t)(uint32_t)(uint64_t)o->value};
    if (o->kind == LS_PTX_BANK && o->reg < 0 && o->value < 0x7FFFFFFF)
        return (ls_register_half){LS_REGISTER_HALF_BANK, (int32_t)o->value};
    if (o->reg < 0 || l->flow.reads[operand] < 0) return none;
    return (ls_register_half){LS_REGISTER_HALF_VALUE, l->flow.reads[operand]};
}

/* Whether the operand of the instruction is 0. */
static bool is_zero(const ls_sass_lowering *l, const ls_ptx_instruction *in, int32_t i) {
    const ls_ptx_operand *o = source(l, in, i);
    return o->kind == LS_PTX_INT && o->value == 0;
}

/* The operand that the instruction copies, -1 where it does more. */
static int32_t copied(const ls_sass_lowering *l, const ls_ptx_instruction *in) {
    const int32_t first = first_source(l, in), n = in->first + in->n - first;
    int32_t at = -1;
    if (is_guarded(l, in) || n < 1) return -1;
    if ((ls_sass_is_op(in->op, "MOV") || ls_ptx_begins(in->op, "R2UR")) && first - in->first == 1) at = first;
    if (ls_sass_is_op(in->op, "LDC") && n == 1 && l->f->operands[first].kind == LS_PTX_BANK) at = first;
    if (ls_sass_is_op(in->op, "IMAD") && n == 3 && !ls_ptx_has(in->op, ".HI") && !ls_ptx_has(in->op, ".X") &&
        (is_zero(l, in, 0) || is_zero(l, in, 1)))
        at = first + 2;
    if (ls_sass_is_op(in->op, "IADD3") && n == 3 && !ls_ptx_has(in->op, ".X")) {
        int32_t others = 0;
        for (int32_t i = 0; i < 3; i++)
            if (!is_zero(l, in, i)) at = first + i, others++;
        if (others > 1) at = -1;
        if (others == 0) at = first;
    }
    if (at < 0 || l->f->operands[at].is_minus || l->f->operands[at].is_not) return -1;
    return at;
}

/* Goes back over copies. */
static ls_register_half original(const ls_sass_lowering *l, ls_register_half h) {
    for (int i = 0; i < COPIES_MAX; i++) {
        const ls_ptx_instruction *in = definition(l, h);
        if (in == NULL) return h;
        const int32_t part = l->flow.values[h.value].part;
        if (ls_ptx_begins(in->op, "CS2R") && !is_guarded(l, in) && ls_ptx_has(source(l, in, 0)->name, "SRZ"))
            return zero;
        const int32_t at = copied(l, in);
        if (at < 0) return h;
        ls_register_half next = plain_half(l, at);
        if (next.kind == LS_REGISTER_HALF_NONE) return h;
        if (part > 0 && next.kind != LS_REGISTER_HALF_BANK) return h;
        if (next.kind == LS_REGISTER_HALF_BANK) next.value += 4 * part;
        h = next;
    }
    return h;
}

ls_register_half ls_sass_half_of(const ls_sass_lowering *l, int32_t operand) {
    return original(l, plain_half(l, operand));
}

static ls_register_half source_half(const ls_sass_lowering *l, const ls_ptx_instruction *in, int32_t i) {
    const int32_t at = first_source(l, in) + i;
    return at < in->first + in->n ? ls_sass_half_of(l, at) : none;
}

/* Whether the half is another shifted left by a number of bits that is known. */
static bool is_shifted(const ls_sass_lowering *l, ls_register_half h, ls_register_half *what, int32_t *bits) {
    const ls_ptx_instruction *in = definition(l, h);
    if (in == NULL || is_guarded(l, in)) return false;
    const ls_register_half by = source_half(l, in, 1);
    if (by.kind != LS_REGISTER_HALF_NUMBER || source(l, in, 0)->is_minus) return false;
    *what = source_half(l, in, 0);
    if (ls_sass_is_op(in->op, "SHF") && ls_ptx_has(in->op, ".L") && !ls_ptx_has(in->op, ".HI")) {
        *bits = by.value;
        return by.value > 0 && by.value < 32;
    }
    if (!ls_sass_is_op(in->op, "IMAD") || ls_ptx_has(in->op, ".X") || ls_ptx_has(in->op, ".HI") ||
        ls_ptx_has(in->op, ".WIDE") || !is_zero(l, in, 2) || by.value < 2 || (by.value & (by.value - 1)) != 0)
        return false;
    *bits = __builtin_ctz((unsigned)by.value);
    return true;
}

/* Pairs ----------------------------------------------------------------------------------------------------------- */

static uint32_t pair_bucket(const ls_sass_lowering *l, ls_register_half low, ls_register_half high) {
    uint64_t h = (uint64_t)(uint32_t)low.value * 0x9E3779B97F4A7C15u + (uint64_t)(uint32_t)high.value;
    h = (h ^ (uint64_t)low.kind << 8 ^ (uint64_t)high.kind << 12 ^ (uint64_t)(uint32_t)l->guard << 16 ^
         (uint64_t)l->guard_not) *
        0xC2B2AE3D27D4EB4Fu;
    return (uint32_t)(h >> 40) % LS_PAIR_BUCKETS;
}

int32_t ls_sass_pair_of(const ls_sass_lowering *l, ls_register_half low, ls_register_half high) {
    for (int32_t i = l->buckets[pair_bucket(l, low, high)]; i >= 0; i = l->pairs[i].next) {
        const ls_register_pair *p = &l->pairs[i];
        if (same(p->low, low) && same(p->high, high) && p->guard == l->guard && p->guard_not == l->guard_not) return i;
    }
    return -1;
}

/* The pair of two halves, to be found out later if it is new; -1 where a half is none. */
static ls_status want(ls_sass_lowering *l, ls_register_half low, ls_register_half high, int32_t by, int32_t *out,
                      ls_error *err) {
    *out = -1;
    if (low.kind == LS_REGISTER_HALF_NONE || high.kind == LS_REGISTER_HALF_NONE) return LS_OK;
    *out = ls_sass_pair_of(l, low, high);
    if (*out >= 0) return LS_OK;
    const uint32_t bucket = pair_bucket(l, low, high);
    if (l->n_pairs == PAIRS_MAX) return LS_FAIL(err, LS_ERR_FORMAT, "%s: a function has too many pairs", l->name);
    LS_TRY(ls_array_grow((void **)&l->pairs, &l->cap_pairs, l->n_pairs + 1, sizeof *l->pairs, "pairs", err));
    *out = (int32_t)l->n_pairs++;
    l->pairs[*out] = (ls_register_pair){.low = low,
                                        .high = high,
                                        .guard = l->guard,
                                        .guard_not = l->guard_not,
                                        .next = l->buckets[bucket],
                                        .by = by,
                                        .at = by,
                                        .chained = -1,
                                        .reg = -1,
                                        .inner = -1};
    l->buckets[bucket] = *out;
    return LS_OK;
}

/* Adds a part to the pair that was begun last. */
static ls_status add_part(ls_sass_lowering *l, int32_t pair, int32_t part, int64_t factor, ls_error *err) {
    LS_TRY(ls_array_grow((void **)&l->parts, &l->cap_parts, l->n_parts + 1, sizeof *l->parts, "parts", err));
    l->parts[l->n_parts++] = (ls_pair_part){part, factor};
    l->pairs[pair].n++;
    return LS_OK;
}

static ls_status want_part(ls_sass_lowering *l, int32_t pair, ls_register_half low, ls_register_half high,
                           int64_t factor, ls_error *err) {
    int32_t part;
    LS_TRY(want(l, low, high, l->pairs[pair].at, &part, err));
    return add_part(l, pair, part, factor, err);
}

/* Sums with a carry ----------------------------------------------------------------------------------------------- */

typedef struct term {
    ls_register_half half, base; /* base: of a shift in the upper half, what is below */
    int32_t shift;
    bool is_minus, is_lea, is_sign;
} term;

typedef struct terms {
    int32_t n;
    term all[4];
} terms;

static void add_term(terms *t, ls_register_half half, bool is_minus, int32_t shift) {
    if (is_number(half, 0) && !is_minus) return;
    if (t->n < 4) t->all[t->n++] = (term){.half = half, .is_minus = is_minus, .shift = shift};
}

/* The instruction whose carry another takes, NULL where there is none or a guard stands in front of only one. */
static const ls_ptx_instruction *carry_of(const ls_sass_lowering *l, const ls_ptx_instruction *upper, int32_t *at) {
    for (int32_t o = first_source(l, upper); o < upper->first + upper->n; o++) {
        const ls_ptx_operand *operand = &l->f->operands[o];
        if (operand->kind != LS_PTX_REG || operand->reg < LS_SASS_PREDICATE) continue;
        const int32_t value = l->flow.reads[o];
        if (value < 0 || l->flow.values[value].kind != LS_FLOW_INSTRUCTION) return NULL;
        *at = l->flow.values[value].at;
        const ls_ptx_instruction *in = &l->f->instructions[*at];
        const bool adds = (ls_sass_is_op(in->op, "IADD3") || ls_sass_is_op(in->op, "LEA")) &&
                          !ls_ptx_has(in->op, ".X") && !ls_ptx_has(in->op, ".HI");
        if (!adds || is_guarded(l, in) || is_guarded(l, upper)) return NULL;
        return in;
    }
    return NULL;
}

static bool lower_terms(const ls_sass_lowering *l, const ls_ptx_instruction *in, terms *t) {
    t->n = 0;
    if (ls_sass_is_op(in->op, "LEA")) {
        const ls_register_half by = source_half(l, in, 2);
        if (by.kind != LS_REGISTER_HALF_NUMBER || by.value < 0 || by.value > 31) return false;
        add_term(t, source_half(l, in, 0), source(l, in, 0)->is_minus, by.value);
        add_term(t, source_half(l, in, 1), source(l, in, 1)->is_minus, 0);
        return true;
    }
    for (int32_t i = 0; i < 3; i++) add_term(t, source_half(l, in, i), source(l, in, i)->is_minus, 0);
    return true;
}

static bool upper_terms(const ls_sass_lowering *l, const ls_ptx_instruction *in, terms *t) {
    t->n = 0;
    if (ls_sass_is_op(in->op, "LEA")) {
        const bool sign = ls_ptx_has(in->op, ".SX32");
        const ls_register_half by = source_half(l, in, sign ? 2 : 3);
        if (by.kind != LS_REGISTER_HALF_NUMBER || by.value < 0 || by.value > 31) return false;
        t->all[t->n++] = (term){.half = sign ? none : source_half(l, in, 2),
                                .base = source_half(l, in, 0),
                                .shift = by.value,
                                .is_lea = true,
                                .is_sign = sign};
        add_term(t, source_half(l, in, 1), false, 0);
        return true;
    }
    if (ls_sass_is_op(in->op, "IADD3")) {
        for (int32_t i = 0; i < 3; i++) {
            const ls_ptx_operand *o = source(l, in, i);
            add_term(t, source_half(l, in, i), o->is_minus || o->is_not, 0);
        }
        return true;
    }
    const ls_register_half a = source_half(l, in, 0), b = source_half(l, in, 1);
    if (!is_number(a, 0) && !is_number(b, 0)) {
        if (!is_number(b, 1) && !is_number(b, -1)) return false;
        add_term(t, a, is_number(b, -1) != source(l, in, 0)->is_minus, 0);
    }
    add_term(t, source_half(l, in, 2), source(l, in, 2)->is_minus || source(l, in, 2)->is_not, 0);
    return true;
}

static bool understood(const ls_sass_lowering *l, ls_register_half low, ls_register_half high);

/* How well a term of the lower sum and one of the upper fit; -1 for not at all. The pair and its factor come out. */
static int32_t fit_terms(const ls_sass_lowering *l, const term *low, const term *high, ls_register_half out[2],
                         int64_t *factor) {
    ls_register_half what;
    int32_t bits;
    *factor = (int64_t)1 << low->shift;
    out[0] = low->half;
    if (high->is_lea) {
        if (low->is_minus) return -1;
        out[1] = high->is_sign ? (ls_register_half){LS_REGISTER_HALF_SIGN, 0} : high->half;
        if (same(low->half, high->base) && (high->is_sign || low->shift == high->shift)) return 3;
        if (!is_shifted(l, low->half, &what, &bits) || bits != high->shift || !same(what, high->base)) return -1;
        out[0] = what;
        *factor = (int64_t)1 << bits;
        return 3;
    }
    out[1] = high->half;
    if (low->is_minus && !high->is_minus && is_number(high->half, -1)) { /* less a number with zeros above */
        out[1] = zero;
        return low->shift == 0 ? 2 : -1;
    }
    if (low->is_minus != high->is_minus) return -1;
    if (low->shift == 0) return understood(l, out[0], out[1]) ? 2 : 0;
    const ls_ptx_instruction *in = definition(l, high->half);
    if (in == NULL || !ls_sass_is_op(in->op, "SHF") || !ls_ptx_has(in->op, ".L.U64.HI")) return -1;
    if (!same(source_half(l, in, 0), low->half) || !is_number(source_half(l, in, 1), low->shift)) return -1;
    out[1] = source_half(l, in, 2);
    return 3;
}

/* The best way to give every upper term a lower one of its own; best[upper] = lower. */
typedef struct matching {
    const ls_sass_lowering *l;
    terms low, high;
    int32_t choice[4], best[4];
    int32_t best_score; /* -1: none is possible */
} matching;

/* Goes on from upper term `at`, where the lower terms of the mask `used` have given `score`. */
static void match_terms(matching *m, int32_t at, int32_t used, int32_t score) {
    if (at == m->high.n) {
        for (int32_t i = 0; i < m->low.n; i++)
            if (!(used >> i & 1) && m->low.all[i].shift > 0) return;
        if (score <= m->best_score) return;
        memcpy(m->best, m->choice, sizeof m->best);
        m->best_score = score;
        return;
    }
    for (int32_t i = 0; i < m->low.n; i++) {
        ls_register_half pair[2];
        int64_t factor;
        if (used >> i & 1) continue;
        const int32_t one = fit_terms(m->l, &m->low.all[i], &m->high.all[at], pair, &factor);
        if (one < 0) continue;
        m->choice[at] = i;
        match_terms(m, at + 1, used | 1 << i, score + one);
    }
}

/* Whether low and high are a sum and the one that takes its carry; *lower is then the former's instruction. */
static bool is_sum(const ls_sass_lowering *l, ls_register_half low, const ls_ptx_instruction *upper,
                   const ls_ptx_instruction **lower) {
    int32_t at = -1;
    const bool takes =
        ls_ptx_has(upper->op, ".X") &&
        (ls_sass_is_op(upper->op, "IADD3") || ls_sass_is_op(upper->op, "LEA") || ls_sass_is_op(upper->op, "IMAD"));
    if (!takes) return false;
    *lower = carry_of(l, upper, &at);
    if (*lower == NULL) return false;
    if (l->f->operands[(*lower)->first].kind == LS_PTX_SINK) return true;
    return low.kind == LS_REGISTER_HALF_VALUE && l->flow.values[low.value].kind == LS_FLOW_INSTRUCTION &&
           l->flow.values[low.value].at == at && l->flow.values[low.value].part == 0;
}

static ls_status find_sum(ls_sass_lowering *l, int32_t id, const ls_ptx_instruction *lower,
                          const ls_ptx_instruction *upper, ls_error *err) {
    matching m = {.l = l, .best_score = -1};
    const terms *low = &m.low, *high = &m.high;
    int32_t used = 0;
    if (!lower_terms(l, lower, &m.low) || !upper_terms(l, upper, &m.high)) return LS_OK;
    match_terms(&m, 0, 0, 0);
    if (m.best_score < 0) return LS_OK;
    l->pairs[id].rule = LS_PAIR_SUM;
    l->pairs[id].first = (int32_t)l->n_parts;
    for (int32_t i = 0; i < high->n; i++) {
        ls_register_half pair[2];
        int64_t factor;
        fit_terms(l, &low->all[m.best[i]], &high->all[i], pair, &factor);
        used |= 1 << m.best[i];
        LS_TRY(want_part(l, id, pair[0], pair[1], low->all[m.best[i]].is_minus ? -factor : factor, err));
    }
    for (int32_t i = 0; i < low->n; i++) /* what has nothing above it has zeros there */
        if (!(used >> i & 1)) LS_TRY(want_part(l, id, low->all[i].half, zero, low->all[i].is_minus ? -1 : 1, err));
    return LS_OK;
}

/* Products of 64 bits --------------------------------------------------------------------------------------------- */

typedef struct product {
    ls_register_half a, b;
} product;

/* Takes a sum apart into products and the upper half of a wide product; false where it is more than that. */
static bool flatten(const ls_sass_lowering *l, ls_register_half h, int32_t wide_at, bool *has_wide, product *out,
                    int32_t *n, int32_t depth) {
    const ls_ptx_instruction *in = definition(l, h);
    if (is_number(h, 0)) return true;
    if (in == NULL || depth == 0 || is_guarded(l, in)) return false;
    const ls_flow_value *v = &l->flow.values[h.value];
    if (v->at == wide_at && v->part == 1 && !*has_wide) return *has_wide = true;
    if (ls_ptx_has(in->op, ".X") || ls_ptx_has(in->op, ".WIDE") || ls_ptx_has(in->op, ".HI")) return false;
    for (int32_t i = 0; i < 3; i++)
        if (source(l, in, i)->is_minus || source(l, in, i)->is_not) return false;
    if (ls_sass_is_op(in->op, "IADD3")) {
        for (int32_t i = 0; i < 3; i++)
            if (!flatten(l, source_half(l, in, i), wide_at, has_wide, out, n, depth - 1)) return false;
        return true;
    }
    if (!ls_sass_is_op(in->op, "IMAD")) return false;
    const ls_register_half a = source_half(l, in, 0), b = source_half(l, in, 1), c = source_half(l, in, 2);
    if (is_number(b, 1)) {
        if (!flatten(l, a, wide_at, has_wide, out, n, depth - 1)) return false;
    } else if (!is_number(a, 0) && !is_number(b, 0)) {
        if (*n == PRODUCTS_MAX) return false;
        out[(*n)++] = (product){a, b};
    }
    return flatten(l, c, wide_at, has_wide, out, n, depth - 1);
}

/* Whether the pair is (x, x') * (y, y') + c, whose lower half a wide product makes. */
static bool is_product(const ls_sass_lowering *l, ls_register_half low, ls_register_half high, ls_register_half *x_high,
                       ls_register_half *y_high) {
    const ls_ptx_instruction *wide = definition(l, low);
    product products[PRODUCTS_MAX];
    int32_t n = 0;
    bool has_wide = false;
    if (wide == NULL || is_guarded(l, wide) || !ls_ptx_has(wide->op, "MAD.WIDE.U32") || ls_ptx_has(wide->op, ".X"))
        return false;
    if (l->flow.values[low.value].part != 0) return false;
    if (!flatten(l, high, l->flow.values[low.value].at, &has_wide, products, &n, 6) || !has_wide || n == 0 || n > 2)
        return false;
    const ls_register_half x = source_half(l, wide, 0), y = source_half(l, wide, 1);
    *x_high = *y_high = zero;
    for (int32_t i = 0; i < n; i++) {
        const product p = products[i];
        if (same(p.b, y) && is_number(*x_high, 0))
            *x_high = p.a;
        else if (same(p.a, y) && is_number(*x_high, 0))
            *x_high = p.b;
        else if (same(p.b, x) && is_number(*y_high, 0))
            *y_high = p.a;
        else if (same(p.a, x) && is_number(*y_high, 0))
            *y_high = p.b;
        else
            return false;
    }
    return true;
}

/* All rules ------------------------------------------------------------------------------------------------------- */

static bool is_sign_of(const ls_sass_lowering *l, ls_register_half high, ls_register_half low) {
    const ls_ptx_instruction *in = definition(l, high);
    if (high.kind == LS_REGISTER_HALF_SIGN) return true;
    return in != NULL && ls_sass_is_op(in->op, "SHF") && ls_ptx_has(in->op, ".R.S32.HI") &&
           is_number(source_half(l, in, 1), 31) && same(source_half(l, in, 2), low);
}

/* Whether both are results of one instruction, or meet in one block, or are guarded alike. */
static bool stand_together(const ls_sass_lowering *l, ls_register_half low, ls_register_half high) {
    if (low.kind != LS_REGISTER_HALF_VALUE || high.kind != LS_REGISTER_HALF_VALUE) return false;
    const ls_flow_value *a = &l->flow.values[low.value], *b = &l->flow.values[high.value];
    if (a->kind != b->kind) return false;
    if (a->kind == LS_FLOW_PHI) return a->block == b->block;
    if (a->kind != LS_FLOW_INSTRUCTION) return false;
    if (a->at == b->at) return b->part == a->part + 1 && a->part % 2 == 0;
    const ls_ptx_instruction *x = &l->f->instructions[a->at], *y = &l->f->instructions[b->at];
    return x->guard >= 0 && y->guard >= 0 && l->flow.guards[a->at] == l->flow.guards[b->at] &&
           x->guard_not == y->guard_not;
}

static bool is_right_shift(const ls_sass_lowering *l, const ls_ptx_instruction *x, const ls_ptx_instruction *y) {
    return x != NULL && y != NULL && ls_sass_is_op(x->op, "SHF") && ls_sass_is_op(y->op, "SHF") &&
           (ls_ptx_has(x->op, ".R.U64") || ls_ptx_has(x->op, ".R.S64")) &&
           (ls_ptx_has(y->op, ".R.U32.HI") || ls_ptx_has(y->op, ".R.S32.HI")) &&
           source_half(l, x, 1).kind == LS_REGISTER_HALF_NUMBER && same(source_half(l, x, 1), source_half(l, y, 1)) &&
           same(source_half(l, x, 2), source_half(l, y, 2));
}

static bool is_left_shift(const ls_sass_lowering *l, ls_register_half low, const ls_ptx_instruction *y, int32_t *bits) {
    ls_register_half what;
    return y != NULL && !is_guarded(l, y) && ls_sass_is_op(y->op, "SHF") && ls_ptx_has(y->op, ".L.U64.HI") &&
           is_shifted(l, low, &what, bits) && is_number(source_half(l, y, 1), *bits) &&
           same(source_half(l, y, 0), what);
}

static bool is_selection(const ls_sass_lowering *l, const ls_ptx_instruction *x, const ls_ptx_instruction *y) {
    if (x == NULL || y == NULL || !ls_sass_is_op(x->op, "SEL") || !ls_sass_is_op(y->op, "SEL")) return false;
    const int32_t a = first_source(l, x) + 2, b = first_source(l, y) + 2;
    if (a >= x->first + x->n || b >= y->first + y->n || is_guarded(l, x) || is_guarded(l, y)) return false;
    return l->flow.reads[a] >= 0 && l->flow.reads[a] == l->flow.reads[b] &&
           l->f->operands[a].is_not == l->f->operands[b].is_not;
}

/* a & number, as the machine writes it. */
static bool is_masked(const ls_sass_lowering *l, const ls_ptx_instruction *in, ls_register_half *what, int32_t *mask) {
    if (in == NULL || is_guarded(l, in) || !ls_sass_is_op(in->op, "LOP3") || !is_number(source_half(l, in, 3), 0xC0))
        return false;
    const ls_register_half b = source_half(l, in, 1);
    *what = source_half(l, in, 0);
    *mask = b.value;
    return b.kind == LS_REGISTER_HALF_NUMBER && !source(l, in, 0)->is_not && what->kind != LS_REGISTER_HALF_NONE;
}

static bool is_and(const ls_sass_lowering *l, ls_register_half low, ls_register_half high, ls_register_half out[2],
                   int64_t *mask) {
    int32_t low_mask, high_mask = -1;
    if (!is_masked(l, definition(l, low), &out[0], &low_mask)) return false;
    if (!is_masked(l, definition(l, high), &out[1], &high_mask)) {
        out[1] = high;
        if (low_mask >= 0) return false;
    }
    *mask = (int64_t)((uint64_t)(uint32_t)high_mask << 32 | (uint32_t)low_mask);
    return out[1].kind != LS_REGISTER_HALF_NONE;
}

/* Whether a rule fits, without a look at its parts. */
static bool understood(const ls_sass_lowering *l, ls_register_half low, ls_register_half high) {
    const ls_ptx_instruction *x = definition(l, low), *y = definition(l, high), *lower;
    ls_register_half halves[2];
    int32_t bits;
    int64_t mask;
    if (low.kind == LS_REGISTER_HALF_NONE || high.kind == LS_REGISTER_HALF_NONE) return false;
    if (is_number(high, 0) || is_sign_of(l, high, low) || stand_together(l, low, high)) return true;
    if (low.kind == LS_REGISTER_HALF_NUMBER && high.kind == LS_REGISTER_HALF_NUMBER) return true;
    if (low.kind == LS_REGISTER_HALF_BANK && high.kind == LS_REGISTER_HALF_BANK) return high.value == low.value + 4;
    if (y != NULL && is_sum(l, low, y, &lower)) return true;
    if (is_right_shift(l, x, y) || is_left_shift(l, low, y, &bits) || is_selection(l, x, y)) return true;
    return is_product(l, low, high, &halves[0], &halves[1]) || is_and(l, low, high, halves, &mask);
}

static ls_status find_join(ls_sass_lowering *l, int32_t id, ls_error *err) {
    const ls_flow_value a = l->flow.values[l->pairs[id].low.value], b = l->flow.values[l->pairs[id].high.value];
    const ls_flow_block *block = &l->flow.blocks[a.block];
    l->pairs[id].rule = LS_PAIR_JOIN;
    l->guard = -1; /* the ways in know nothing of it */
    l->guard_not = false;
    for (int32_t e = 0; e < block->n_from; e++) {
        const int32_t low = l->flow.joined[a.first_from + e], high = l->flow.joined[b.first_from + e];
        const bool reached = l->flow.blocks[l->flow.edges[block->first_from + e]].order >= 0;
        const ls_register_half from_low = low < 0 ? none : original(l, (ls_register_half){LS_REGISTER_HALF_VALUE, low});
        const ls_register_half from_high =
            high < 0 ? none : original(l, (ls_register_half){LS_REGISTER_HALF_VALUE, high});
        LS_TRY(want_part(l, id, reached ? from_low : none, from_high, 1, err));
    }
    return LS_OK;
}

/* Two results of one instruction, or of two under one guard. */
static ls_status find_together(ls_sass_lowering *l, int32_t id, ls_error *err) {
    const ls_register_pair p = l->pairs[id];
    const ls_flow_value a = l->flow.values[p.low.value], b = l->flow.values[p.high.value];
    const ls_ptx_instruction *in;
    if (a.kind == LS_FLOW_PHI) return find_join(l, id, err);
    in = &l->f->instructions[a.at];
    l->pairs[id].at = a.at;
    if (is_guarded(l, in)) {
        const ls_register_half old_low =
            a.old < 0 ? none : original(l, (ls_register_half){LS_REGISTER_HALF_VALUE, a.old});
        const ls_register_half old_high =
            b.old < 0 ? none : original(l, (ls_register_half){LS_REGISTER_HALF_VALUE, b.old});
        l->pairs[id].rule = LS_PAIR_EITHER;
        LS_TRY(want_part(l, id, old_low, old_high, 1, err));
        if (l->flow.guards[a.at] < 0) return add_part(l, id, -1, 1, err);
        l->guard = l->flow.guards[a.at]; /* as if it were done, copies looked through */
        l->guard_not = in->guard_not;
        return want_part(l, id, original(l, p.low), original(l, p.high), 1, err);
    }
    if (a.at != b.at) return LS_OK;
    l->pairs[id].number = a.part;
    if (ls_ptx_has(in->op, "MAD.WIDE") && !ls_ptx_has(in->op, ".X")) {
        l->pairs[id].rule = LS_PAIR_WIDE;
        l->pairs[id].is_signed = !ls_ptx_has(in->op, ".U32");
        return want_part(l, id, source_half(l, in, 2), source_half(l, in, 3), 1, err);
    }
    l->pairs[id].rule = ls_sass_is_access(in->op) && ls_ptx_begins(in->op, "LD") ? LS_PAIR_LOAD : LS_PAIR_GIVEN;
    return LS_OK;
}

/* Pairs of two instructions. */
static ls_status find_made(ls_sass_lowering *l, int32_t id, ls_error *err) {
    const ls_register_pair p = l->pairs[id];
    const ls_ptx_instruction *x = definition(l, p.low), *y = definition(l, p.high), *lower;
    const bool guarded = is_guarded(l, x) || is_guarded(l, y);
    ls_register_half halves[2];
    int32_t bits;
    int64_t mask;
    if (y != NULL) l->pairs[id].at = l->flow.values[p.high.value].at;
    if (y != NULL && !guarded && is_sum(l, p.low, y, &lower)) return find_sum(l, id, lower, y, err);
    if (guarded) return LS_OK;
    if (is_right_shift(l, x, y)) {
        l->pairs[id].rule = LS_PAIR_RIGHT;
        l->pairs[id].is_signed = ls_ptx_has(y->op, ".S32");
        l->pairs[id].number = source_half(l, x, 1).value;
        return want_part(l, id, source_half(l, x, 0), source_half(l, x, 2), 1, err);
    }
    if (is_left_shift(l, p.low, y, &bits)) {
        l->pairs[id].rule = LS_PAIR_SUM;
        return want_part(l, id, source_half(l, y, 0), source_half(l, y, 2), (int64_t)1 << bits, err);
    }
    if (is_selection(l, x, y)) {
        l->pairs[id].rule = LS_PAIR_EITHER;
        LS_TRY(want_part(l, id, source_half(l, x, 0), source_half(l, y, 0), 1, err));
        return want_part(l, id, source_half(l, x, 1), source_half(l, y, 1), 1, err);
    }
    if (is_product(l, p.low, p.high, &halves[0], &halves[1])) {
        l->pairs[id].rule = LS_PAIR_PRODUCT;
        LS_TRY(want_part(l, id, source_half(l, x, 0), halves[0], 1, err));
        LS_TRY(want_part(l, id, source_half(l, x, 1), halves[1], 1, err));
        return want_part(l, id, source_half(l, x, 2), source_half(l, x, 3), 1, err);
    }
    if (is_and(l, p.low, p.high, halves, &mask)) {
        l->pairs[id].rule = LS_PAIR_AND;
        l->pairs[id].number = mask;
        return want_part(l, id, halves[0], halves[1], 1, err);
    }
    return LS_OK;
}

/* Where the later of the halves stands: both stand above whoever takes them. */
static void place_pair(const ls_sass_lowering *l, ls_register_pair *p) {
    const ls_register_half halves[2] = {p->low, p->high};
    p->block = 0;
    p->behind = -1;
    for (int i = 0; i < 2; i++) {
        if (halves[i].kind != LS_REGISTER_HALF_VALUE) continue;
        const ls_flow_value *v = &l->flow.values[halves[i].value];
        const int32_t at = v->kind == LS_FLOW_INSTRUCTION ? v->at : -1;
        const bool later = v->block == p->block ? at > p->behind : ls_flow_dominates(&l->flow, p->block, v->block);
        if (later) p->block = v->block, p->behind = at;
    }
}

static ls_status find_pair(ls_sass_lowering *l, int32_t id, ls_error *err) {
    const ls_register_pair p = l->pairs[id];
    l->guard = p.guard;
    l->guard_not = p.guard_not;
    place_pair(l, &l->pairs[id]);
    l->pairs[id].first = (int32_t)l->n_parts;
    if (p.low.kind == LS_REGISTER_HALF_NUMBER && p.high.kind == LS_REGISTER_HALF_NUMBER) {
        l->pairs[id].rule = LS_PAIR_NUMBER;
        l->pairs[id].number = (int64_t)((uint64_t)(uint32_t)p.high.value << 32 | (uint32_t)p.low.value);
        return LS_OK;
    }
    if (p.low.kind == LS_REGISTER_HALF_BANK && p.high.kind == LS_REGISTER_HALF_BANK &&
        p.high.value == p.low.value + 4) {
        l->pairs[id].rule = LS_PAIR_BANK;
        return LS_OK;
    }
    if (is_number(p.high, 0) || is_sign_of(l, p.high, p.low)) {
        l->pairs[id].rule = is_number(p.high, 0) ? LS_PAIR_ZERO : LS_PAIR_SIGN;
        return LS_OK;
    }
    if (stand_together(l, p.low, p.high)) {
        LS_TRY(find_together(l, id, err));
        if (l->pairs[id].rule != LS_PAIR_PARTS) return LS_OK;
    }
    return find_made(l, id, err);
}

int32_t ls_sass_lower_compare(const ls_sass_lowering *l, int32_t at) {
    const ls_ptx_instruction *in = &l->f->instructions[at];
    const int32_t o = first_source(l, in) + 3;
    if (!ls_sass_is_op(in->op, "ISETP") || !ls_ptx_has(in->op, ".EX") || o >= in->first + in->n) return -1;
    const int32_t value = l->flow.reads[o];
    if (value < 0 || l->flow.values[value].kind != LS_FLOW_INSTRUCTION || l->flow.values[value].part != 0) return -1;
    const int32_t lower = l->flow.values[value].at;
    const ls_ptx_instruction *other = &l->f->instructions[lower];
    return ls_sass_is_op(other->op, "ISETP") && other->guard < 0 ? lower : -1;
}

/* The pairs that an instruction takes. */
static ls_status want_taken(ls_sass_lowering *l, int32_t at, ls_error *err) {
    const ls_ptx_instruction *in = &l->f->instructions[at];
    const int32_t lower = ls_sass_lower_compare(l, at);
    int32_t pair;
    ls_sass_enter(l, at);
    for (int32_t i = 0; i < 2 && lower >= 0; i++)
        LS_TRY(want(l, source_half(l, &l->f->instructions[lower], i), source_half(l, in, i), at, &pair, err));
    if (!ls_sass_is_access(in->op)) return LS_OK;
    for (int32_t o = in->first; o + 1 < in->first + in->n; o++) {
        const ls_ptx_operand *a = &l->f->operands[o];
        if (a->kind == LS_PTX_ADDRESS && a->is_wide && a->reg >= 0)
            LS_TRY(want(l, ls_sass_half_of(l, o), ls_sass_half_of(l, o + 1), at, &pair, err));
        if (a->kind == LS_PTX_ADDRESS && a->is_not && a->reg >= 0)
            LS_TRY(want(l, ls_sass_half_of(l, o), zero, at, &pair, err));
        if (a->kind == LS_PTX_REG && a->is_tail && a->is_wide && a->reg >= LS_SASS_UNIFORM)
            LS_TRY(want(l, ls_sass_half_of(l, o), ls_sass_half_of(l, o + 1), at, &pair, err));
    }
    return LS_OK;
}

ls_status ls_sass_find_pairs(ls_sass_lowering *l, ls_error *err) {
    l->n_pairs = l->n_parts = 0;
    memset(l->buckets, -1, sizeof l->buckets);
    for (int64_t i = 0; i < l->flow.n_order; i++) {
        const ls_flow_block *k = &l->flow.blocks[l->flow.order[i]];
        for (int32_t at = k->first; at < k->first + k->n; at++) LS_TRY(want_taken(l, at, err));
    }
    for (int32_t i = 0; i < l->n_pairs; i++) LS_TRY(find_pair(l, i, err));
    return LS_OK;
}
