/* Two registers that are one number of 64 bits: the halves of one, a sum and the sum that takes its carry, the two
 * parts of a wide product, zero or the sign above a number. */
#include "audit/step.h"

enum { DEPTH_MAX = 24, BACK_MAX = 256, STEPS_MAX = 512 };

typedef struct halves {
    int32_t low, high; /* operands */
} halves;

/* The instruction that makes an operand, copies looked through; NULL for what is none. *index is the operand that the
 * last copy reads. */
static const ls_ptx_instruction *maker(const ls_work *w, int32_t *index, int32_t *value) {
    for (int32_t depth = 0; depth < DEPTH_MAX; depth++) {
        const ls_ptx_operand *o = &w->f->operands[*index];
        *value = o->kind == LS_PTX_REG ? w->flow->reads[*index] : -1;
        const ls_ptx_instruction *in = ls_step_definition(w, *value);
        if (in == NULL || in->guard >= 0) return NULL;
        const bool copies = in->n == 2 && ls_ptx_begins(in->op, "mov.") && ls_ptx_has(in->op, "32") &&
                            w->f->operands[in->first + 1].kind != LS_PTX_SYMBOL;
        if (!copies) return in;
        *index = in->first + 1;
    }
    return NULL;
}

/* The operand of 64 bits of which this is a half, -1; its number in *part. */
static int32_t whole_of(const ls_work *w, const ls_ptx_instruction *in, int32_t value, int32_t *part) {
    const ls_ptx_operand *o = w->f->operands;
    if (in == NULL || value < 0) return -1;
    if (ls_ptx_begins(in->op, "mov.b64") && in->n == 3 && o[in->first + 1].is_tail) {
        *part = w->flow->values[value].part;
        return in->first + 2;
    }
    if (!(ls_ptx_begins(in->op, "cvt.u32.u64") || ls_ptx_begins(in->op, "cvt.s32.s64")) || in->n != 2) return -1;
    const ls_ptx_instruction *shift = ls_step_definition(w, w->flow->reads[in->first + 1]);
    *part = 0;
    if (shift == NULL || shift->n != 3 || shift->guard >= 0 || !ls_ptx_begins(shift->op, "shr.")) return in->first + 1;
    const ls_ptx_operand *by = &o[shift->first + 2];
    if (by->kind != LS_PTX_INT || by->value != 32 || !ls_ptx_has(shift->op, "64")) return in->first + 1;
    *part = 1;
    return shift->first + 1;
}

static bool is_carry_user(ls_ptx_name op) {
    return ls_ptx_begins(op, "addc.") || ls_ptx_begins(op, "subc.") || ls_ptx_begins(op, "madc.");
}

/* Whether `upper` takes the carry that `lower` makes: nothing between them makes one, and no way leads in. */
static bool takes_carry(const ls_work *w, const ls_ptx_instruction *lower, const ls_ptx_instruction *upper) {
    const int64_t to = upper - w->f->instructions, from = lower - w->f->instructions;
    if (from >= to || to - from > BACK_MAX || w->flow->block_of[from] != w->flow->block_of[to]) return false;
    for (int64_t i = to - 1; i > from; i--)
        if (ls_ptx_has(w->f->instructions[i].op, ".cc")) return false;
    return ls_ptx_has(lower->op, ".cc") && !is_carry_user(lower->op) && is_carry_user(upper->op);
}

static bool same_operand(const ls_work *w, int32_t a, int32_t b) {
    const ls_ptx_operand *x = &w->f->operands[a], *y = &w->f->operands[b];
    if (x->kind != y->kind) return false;
    if (x->kind == LS_PTX_INT) return x->value == y->value;
    return x->kind == LS_PTX_REG && w->flow->reads[a] >= 0 && w->flow->reads[a] == w->flow->reads[b];
}

static ls_status find_carry(ls_step *s, halves h, int32_t depth, ls_sum *out, ls_error *err);

/* One part above and one below, in the order that fits. */
static ls_status find_sum(ls_step *s, const ls_ptx_instruction *low, const ls_ptx_instruction *high, int32_t depth,
                          ls_sum *out, ls_error *err) {
    const bool minus = ls_ptx_begins(low->op, "sub.");
    ls_sum other;
    for (int32_t turn = 0; turn < (minus ? 1 : 2); turn++) {
        const halves x = {low->first + 1, high->first + 1 + turn}, y = {low->first + 2, high->first + 2 - turn};
        const int32_t checks = s->check;
        LS_TRY(find_carry(s, x, depth + 1, out, err));
        LS_TRY(find_carry(s, y, depth + 1, &other, err));
        if (!out->is_lost && !other.is_lost) {
            ls_sum_add(out, &other, minus ? -1 : 1);
            return LS_OK;
        }
        s->check = checks; /* those of a part are nobody's without the other */
    }
    out->is_lost = true;
    return LS_OK;
}

/* a * b in 64 bits of two factors of 32. */
static ls_status find_product(ls_step *s, const ls_ptx_instruction *in, bool is_signed, ls_sum *out, ls_error *err) {
    ls_sum a, b;
    int32_t a_value, b_value;
    const ls_range window = ls_step_type_range(32, is_signed);
    LS_TRY(ls_step_read_operand(s, in->first + 1, 32, &a, &a_value, err));
    LS_TRY(ls_step_read_operand(s, in->first + 2, 32, &b, &b_value, err));
    LS_TRY(ls_step_check(s, &a, a_value, window, err));
    LS_TRY(ls_step_check(s, &b, b_value, window, err));
    ls_sum_multiply(out, &a, &b);
    return LS_OK;
}

static bool same_factors(const ls_work *w, const ls_ptx_instruction *a, const ls_ptx_instruction *b) {
    return (same_operand(w, a->first + 1, b->first + 1) && same_operand(w, a->first + 2, b->first + 2)) ||
           (same_operand(w, a->first + 1, b->first + 2) && same_operand(w, a->first + 2, b->first + 1));
}

/* The low half with zero or its own sign above it. */
static ls_status extended(ls_step *s, int32_t index, bool is_signed, ls_sum *out, ls_error *err) {
    int32_t value;
    LS_TRY(ls_step_read_operand(s, index, 32, out, &value, err));
    return out->is_lost ? LS_OK : ls_step_check(s, out, value, ls_step_type_range(32, is_signed), err);
}

static ls_status find_carry(ls_step *s, halves h, int32_t depth, ls_sum *out, ls_error *err) {
    const ls_work *w = s->w;
    const ls_ptx_operand *o = w->f->operands;
    int32_t low_value, high_value, low_part = 0, high_part = 0;
    out->is_lost = true;
    out->n = 0;
    if (depth == DEPTH_MAX || s->n_halves++ > STEPS_MAX) return LS_OK;
    const ls_ptx_instruction *low = maker(w, &h.low, &low_value), *high = maker(w, &h.high, &high_value);
    const bool number = o[h.high].kind == LS_PTX_INT;
    if (number && o[h.low].kind == LS_PTX_INT) {
        const uint64_t bits = (uint64_t)(uint32_t)o[h.high].value << 32 | (uint32_t)o[h.low].value;
        ls_sum_constant(out, (int64_t)bits);
        return LS_OK;
    }
    if (number && o[h.high].value == 0) return extended(s, h.low, false, out, err);
    if (high == NULL) return LS_OK;
    if (ls_ptx_begins(high->op, "shr.s32") && high->n == 3 && o[high->first + 2].kind == LS_PTX_INT &&
        o[high->first + 2].value == 31 && same_operand(w, h.low, high->first + 1))
        return extended(s, h.low, true, out, err);
    if (low == NULL) return LS_OK;
    const int32_t whole = whole_of(w, low, low_value, &low_part), other = whole_of(w, high, high_value, &high_part);
    if (whole >= 0 && other >= 0 && low_part == 0 && high_part == 1 && same_operand(w, whole, other)) {
        int32_t value;
        return ls_step_read_operand(s, whole, 64, out, &value, err);
    }
    if (ls_ptx_begins(low->op, "mul.lo.") && ls_ptx_begins(high->op, "mul.hi.") && same_factors(w, low, high))
        return find_product(s, high, ls_ptx_has(high->op, ".s32"), out, err);
    if (!takes_carry(w, low, high)) return LS_OK;
    if (ls_ptx_begins(low->op, "mad.lo.cc") && ls_ptx_begins(high->op, "madc.hi") && low->n == 4 && high->n == 4 &&
        same_factors(w, low, high)) {
        ls_sum summand;
        LS_TRY(find_carry(s, (halves){low->first + 3, high->first + 3}, depth + 1, &summand, err));
        if (summand.is_lost) return LS_OK;
        LS_TRY(find_product(s, high, ls_ptx_has(high->op, ".s32"), out, err));
        if (!out->is_lost) ls_sum_add(out, &summand, 1);
        return LS_OK;
    }
    const bool adds = ls_ptx_begins(low->op, "add.cc") && ls_ptx_begins(high->op, "addc.");
    const bool subtracts = ls_ptx_begins(low->op, "sub.cc") && ls_ptx_begins(high->op, "subc.");
    if ((adds || subtracts) && low->n == 3 && high->n == 3) return find_sum(s, low, high, depth, out, err);
    return LS_OK;
}

ls_status ls_step_halves(ls_step *s, int32_t low, int32_t high, ls_error *err) {
    s->n_halves = 0;
    return find_carry(s, (halves){low, high}, 0, &s->out, err);
}
