/* Operations on bits: shifts, masks, tables and selectors. */
#include "audit/bits.h"
#include "audit/step.h"

ls_status ls_step_shift_left(ls_step *s, ls_error *err) {
    int64_t k;
    if (ls_sum_is_constant(&s->b, &k)) {
        const bool gone = k < 0 || k >= s->t.bits;
        ls_sum_constant(&s->out, 0);
        if (!gone && k < 63) ls_sum_add(&s->out, &s->a, (int64_t)1 << k);
        if (!gone && k == 63) s->out.is_lost = true;
        return LS_OK;
    }
    ls_sum kept;
    ls_sum_copy(&kept, &s->a);
    ls_sum_copy(&s->a, &s->b);
    LS_TRY(ls_step_result(s, LS_RULE_POWER, ls_range_of(1, (ls_wide)1 << (s->t.bits - 1)), false, err));
    ls_sum power;
    ls_sum_copy(&power, &s->out);
    ls_sum_multiply(&s->out, &kept, &power);
    return LS_OK;
}

ls_status ls_step_shift_right(ls_step *s, ls_error *err) {
    int64_t k;
    const ls_ptx_instruction *from = ls_step_definition(s->w, s->a_value);
    if (!ls_sum_is_constant(&s->b, &k) || k < 0 || k >= s->t.bits) return ls_step_plain_result(s, true, err);
    if (k == 32 && s->t.bits == 64 && from != NULL && ls_ptx_begins(from->op, "shl.b64") && from->n == 3 &&
        s->w->f->operands[from->first + 2].kind == LS_PTX_INT && s->w->f->operands[from->first + 2].value == 32) {
        const int32_t inner = s->w->flow->reads[from->first + 1];
        if (inner >= 0) { /* the low half, extended */
            ls_work_sum(s->w, &s->out, s->w->cells[inner].sum);
            return ls_step_check(s, &s->out, inner, ls_step_type_range(32, s->t.is_signed), err);
        }
    }
    if (s->t.bits == 32) /* bits that are shifted out are the same for a negative number and its unsigned reading */
        LS_TRY(ls_step_check(s, &s->a, s->a_value,
                             s->t.is_signed ? ls_step_type_range(32, true) : ls_range_of(-2147483648LL, 4294967295LL),
                             err));
    ls_sum_constant(&s->b, k < 62 ? (int64_t)1 << k : INT64_MAX);
    return ls_step_result(s, LS_RULE_QUOTIENT, ls_step_type_range(s->t.bits, s->t.is_signed), false, err);
}

ls_status ls_step_or(ls_step *s, ls_error *err) {
    if (ls_work_aligned(&s->a, ls_work_bits(s->w, &s->b)) || ls_work_aligned(&s->b, ls_work_bits(s->w, &s->a))) {
        ls_step_sum_of(s, 1); /* no bit stands in both */
        return LS_OK;
    }
    LS_TRY(ls_step_check_number(s, &s->a, s->a_value, false, err));
    LS_TRY(ls_step_check_number(s, &s->b, s->b_value, false, err));
    return ls_step_result(s, LS_RULE_OR, ls_step_type_range(s->t.bits, false), false, err);
}

ls_status ls_step_and(ls_step *s, ls_error *err) {
    int64_t mask;
    if (ls_sum_is_constant(&s->a, &mask) && !ls_sum_is_constant(&s->b, &mask)) {
        ls_sum kept;
        ls_sum_copy(&kept, &s->a);
        ls_sum_copy(&s->a, &s->b);
        ls_sum_copy(&s->b, &kept);
        s->a_value = s->b_value;
    }
    if (s->t.bits == 64 && ls_sum_is_constant(&s->b, &mask) && mask == 0xFFFFFFFFLL) {
        ls_sum_copy(&s->out, &s->a);
        return ls_step_check(s, &s->a, s->a_value, ls_step_type_range(32, false), err);
    }
    return ls_step_result(s, LS_RULE_AND, ls_step_type_range(s->t.bits, false), false, err);
}

typedef struct inputs {
    ls_sum sums[3];
    int32_t values[3];
} inputs;

/* out = x how y, of the inputs or of what was found before (-1). */
static ls_status combine(ls_step *s, const inputs *in, char how, int32_t x, int32_t y, ls_error *err) {
    if (x < 0) {
        ls_sum_copy(&s->a, &s->out);
        s->a_value = -1;
    } else {
        ls_sum_copy(&s->a, &in->sums[x]);
        s->a_value = in->values[x];
    }
    ls_sum_copy(&s->b, &in->sums[y]);
    s->b_value = in->values[y];
    if (how == '&') return ls_step_and(s, err);
    if (how == '|') return ls_step_or(s, err);
    return ls_step_result(s, LS_RULE_XOR, ls_step_type_range(s->t.bits, false), false, err);
}

/* A table of three inputs: as one of them, two of them joined, or the join of two joined with the third. */
ls_status ls_step_logic(ls_step *s, ls_error *err) {
    const ls_ptx_operand *table = &s->w->f->operands[s->in->first + s->in->n - 1];
    const ls_term one = {.factor = 1};
    inputs in = {.values = {s->a_value, s->b_value, s->c_value}};
    bool constant[3];
    int64_t values[3] = {0};
    ls_sum_copy(&in.sums[0], &s->a);
    ls_sum_copy(&in.sums[1], &s->b);
    ls_sum_copy(&in.sums[2], &s->c);
    if (table->kind != LS_PTX_INT) return ls_step_plain_result(s, true, err);
    for (int i = 0; i < 3; i++) constant[i] = ls_sum_is_constant(&in.sums[i], &values[i]);
    const ls_bits_plan plan = ls_bits_table((int32_t)(table->value & 0xFF), constant, values);
    if (plan.n == 0) return ls_step_plain_result(s, true, err);
    if (plan.inverted >= 0) ls_sum_constant(&in.sums[plan.inverted], ~values[plan.inverted]);
    if (plan.n > 1) LS_TRY(combine(s, &in, plan.first, plan.x, plan.y, err));
    if (plan.n > 2) return combine(s, &in, plan.second, -1, plan.z, err);
    if (plan.n > 1) return LS_OK;
    ls_sum_constant(&s->out, 0);
    ls_sum_add(&s->out, &in.sums[plan.x], plan.is_not ? -1 : 1);
    if (plan.is_not) ls_sum_add_term(&s->out, &one, -1); /* ~x is -x - 1 */
    return LS_OK;
}

/* Bytes of {b, a} by four digits of the selector: low bytes of one with zeros above are its rest, others at most so
 * many bits. */
ls_status ls_step_permute(ls_step *s, ls_error *err) {
    int64_t selector, a = -1, b = -1;
    const bool a_zero = ls_sum_is_constant(&s->a, &a) && a == 0, b_zero = ls_sum_is_constant(&s->b, &b) && b == 0;
    if (!ls_sum_is_constant(&s->c, &selector) || s->in->op.bytes != 8) return ls_step_plain_result(s, true, err);
    const ls_bits_bytes what = ls_bits_permute(selector, a_zero, b_zero);
    if (!what.known) return ls_step_plain_result(s, true, err);
    if (what.bytes == 0) return ls_sum_constant(&s->out, 0), LS_OK;
    if (what.from == 1) {
        ls_sum_copy(&s->a, &s->b);
        s->a_value = s->b_value;
    }
    if (what.in_place && what.bytes == 4) return ls_sum_copy(&s->out, &s->a), LS_OK;
    ls_sum_constant(&s->b, ((int64_t)1 << (8 * what.bytes)) - 1);
    if (what.in_place) return ls_step_and(s, err);
    s->a.is_lost = s->b.is_lost = true;
    s->a.n = s->b.n = 0;
    return ls_step_result(s, LS_RULE_TYPE, ls_step_type_range(8 * what.bytes, false), what.bytes == 4, err);
}
