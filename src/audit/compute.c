/* The sum of one definition by its opcode. */
#include "audit/step.h"
#include "base/mem.h"

static ls_status add_product(ls_step *s, bool adds, bool wide, ls_error *err) {
    if (wide) {
        const ls_range window = ls_step_type_range(s->t.bits, s->t.is_signed);
        if (s->t.bits == 32) {
            LS_TRY(ls_step_check(s, &s->a, s->a_value, window, err));
            LS_TRY(ls_step_check(s, &s->b, s->b_value, window, err));
        }
    }
    ls_sum_multiply(&s->out, &s->a, &s->b);
    if (adds) ls_sum_add(&s->out, &s->c, 1);
    return LS_OK;
}

static ls_status convert(ls_step *s, ls_error *err) {
    int32_t end = s->in->op.bytes;
    const ls_step_type from = ls_step_type_before(s->in->op, &end), to = ls_step_type_before(s->in->op, &end);
    s->t = to;
    if (to.is_float) return LS_OK;
    if (from.is_float || from.bits == 0 || to.bits == 0) return ls_step_plain_result(s, false, err);
    if (from.bits == 32 && to.bits == 64) {
        ls_sum_copy(&s->out, &s->a);
        return ls_step_check(s, &s->a, s->a_value, ls_step_type_range(32, from.is_signed), err);
    }
    if (to.bits >= 32 && from.bits >= 32) {
        ls_sum_copy(&s->out, &s->a);
        return LS_OK;
    }
    s->b.is_lost = true;
    s->b.n = 0;
    return ls_step_result(
        s, LS_RULE_SAME,
        from.bits < to.bits ? ls_step_type_range(from.bits, from.is_signed) : ls_step_type_range(to.bits, to.is_signed),
        false, err);
}

/* mov of a pair: {lo, hi} = wide and wide = {lo, hi}. */
static ls_status move_parts(ls_step *s, int32_t results, int32_t part, ls_error *err) {
    const int32_t sources = s->in->n - results;
    if (results == 1 && sources == 1) {
        ls_sum_copy(&s->out, &s->a);
        return LS_OK;
    }
    if (results == 2 && sources == 1 && part == 0) {
        ls_sum_copy(&s->out, &s->a); /* right modulo 2^32 */
        return LS_OK;
    }
    if (results == 1 && sources == 2) { /* the two halves of one number */
        LS_TRY(ls_step_halves(s, s->in->first + 1, s->in->first + 2, err));
        s->t.bits = 64;
        return s->out.is_lost ? ls_step_plain_result(s, true, err) : LS_OK;
    }
    s->t.bits = 32;
    return ls_step_plain_result(s, true, err);
}

/* What takes a result of this reaches nothing that could be claimed. */
static ls_status not_understood(ls_step *s, ls_error *err) {
    ls_work *w = s->w;
    const bool pair = ls_ptx_has(s->in->op, ".pair");
    ls_check c = {.at = s->at, .block = s->block, .next = s->check, .source = -1, .access = -1};
    c.state = LS_STATE_UNKNOWN;
    c.reason = pair ? "two registers are one address in a way that is not understood" : "is not understood";
    c.sum.n = -1;
    LS_TRY(ls_array_grow((void **)&w->checks, &w->cap_checks, w->n_checks + 1, sizeof *w->checks, "checks", err));
    s->check = (int32_t)w->n_checks;
    w->checks[w->n_checks++] = c;
    s->t.bits = pair ? 64 : 32;
    return ls_step_plain_result(s, true, err);
}

static ls_status divide(ls_step *s, ls_rule rule, ls_error *err) {
    LS_TRY(ls_step_check_number(s, &s->a, s->a_value, s->t.is_signed, err));
    LS_TRY(ls_step_check_number(s, &s->b, s->b_value, s->t.is_signed, err));
    return ls_step_result(s, rule, ls_step_type_range(s->t.bits, s->t.is_signed), false, err);
}

/* Operations of integers with one result, by the beginning of their names. */
ls_status ls_step_compute(ls_step *s, int32_t results, int32_t part, ls_error *err) {
    const ls_ptx_name op = s->in->op;
    if (ls_ptx_has(op, ".cc") || ls_ptx_begins(op, "addc") || ls_ptx_begins(op, "subc") || ls_ptx_begins(op, "madc"))
        return ls_step_plain_result(s, true, err); /* alone; as the half of a number carry.c reads it */
    if (ls_ptx_begins(op, "unknown.")) return not_understood(s, err);
    if (ls_ptx_begins(op, "given.")) { /* of floats, other threads, tables: any value that is not negative */
        s->a.is_lost = s->b.is_lost = true;
        s->a.n = s->b.n = 0;
        return ls_step_result(s, LS_RULE_TYPE, ls_step_plain_range(32), false, err);
    }
    if (ls_ptx_begins(op, "lop3.")) return ls_step_logic(s, err);
    if (ls_ptx_begins(op, "prmt.")) return ls_step_permute(s, err);
    if (ls_ptx_begins(op, "mov.")) return move_parts(s, results, part, err);
    if (ls_ptx_begins(op, "cvt.")) return convert(s, err);
    if (ls_ptx_begins(op, "cvta.")) return ls_sum_copy(&s->out, &s->a), LS_OK;
    if (ls_ptx_begins(op, "shfl."))
        return s->b.is_lost = true, s->b.n = 0,
               ls_step_result(s, LS_RULE_SAME, ls_step_type_range(32, true), false, err);
    if (ls_ptx_begins(op, "bfe.")) {
        int64_t bits;
        if (ls_sum_is_constant(&s->c, &bits) && bits >= 0 && bits < s->t.bits && !s->t.is_signed)
            s->t.bits = (int32_t)bits + 1;
        const bool exact = s->t.bits < 32;
        if (exact) s->t.bits--;
        s->a.is_lost = s->b.is_lost = true;
        s->a.n = s->b.n = 0;
        return ls_step_result(
            s, LS_RULE_TYPE,
            exact && s->t.bits > 0 ? ls_step_type_range(s->t.bits, false) : ls_step_type_range(32, false), !exact, err);
    }
    if (s->t.is_float || s->t.bits < 32) {
        if (s->t.bits == 0 || s->t.is_float) return LS_OK;
        return s->a.is_lost = true, s->b.is_lost = true, s->a.n = s->b.n = 0,
               ls_step_result(s, LS_RULE_TYPE, ls_step_type_range(s->t.bits, s->t.is_signed), false, err);
    }
    if (ls_ptx_begins(op, "add.")) return ls_step_sum_of(s, 1), LS_OK;
    if (ls_ptx_begins(op, "sub.")) return ls_step_sum_of(s, -1), LS_OK;
    if (ls_ptx_begins(op, "neg.") || ls_ptx_begins(op, "not.")) {
        const ls_term one = {.factor = 1};
        ls_sum_constant(&s->out, 0);
        ls_sum_add(&s->out, &s->a, -1);
        if (op.text[2] == 't') ls_sum_add_term(&s->out, &one, -1);
        return LS_OK;
    }
    if (ls_ptx_begins(op, "mul.hi")) {
        LS_TRY(ls_step_check_number(s, &s->a, s->a_value, s->t.is_signed, err));
        int64_t m;
        if (s->t.bits == 32 && ls_sum_is_constant(&s->b, &m) && m < 0 && !s->t.is_signed)
            ls_sum_constant(&s->b, m + ((int64_t)1 << 32));
        return ls_step_result(s, LS_RULE_HIGH, ls_step_type_range(s->t.bits, s->t.is_signed), false, err);
    }
    if (ls_ptx_begins(op, "mul.") || ls_ptx_begins(op, "mul24."))
        return add_product(s, false, ls_ptx_has(op, ".wide"), err);
    if (ls_ptx_begins(op, "mad.lo") || ls_ptx_begins(op, "mad.wide") || ls_ptx_begins(op, "mad24.lo"))
        return add_product(s, true, ls_ptx_has(op, ".wide"), err);
    if (ls_ptx_begins(op, "shl.")) return ls_step_shift_left(s, err);
    if (ls_ptx_begins(op, "shr.")) return ls_step_shift_right(s, err);
    if (ls_ptx_begins(op, "div.")) return divide(s, LS_RULE_QUOTIENT, err);
    if (ls_ptx_begins(op, "rem.")) return divide(s, LS_RULE_REST, err);
    if (ls_ptx_begins(op, "min.")) return divide(s, LS_RULE_MIN, err);
    if (ls_ptx_begins(op, "max.")) return divide(s, LS_RULE_MAX, err);
    if (ls_ptx_begins(op, "abs.")) return divide(s, LS_RULE_ABS, err);
    if (ls_ptx_begins(op, "and.")) return ls_step_and(s, err);
    if (ls_ptx_begins(op, "or.")) return ls_step_or(s, err);
    if (ls_ptx_begins(op, "xor."))
        return ls_step_result(s, LS_RULE_XOR, ls_step_type_range(s->t.bits, false), false, err);
    if (ls_ptx_begins(op, "selp.")) {
        ls_sum a, b;
        ls_sum_copy(&a, &s->a);
        ls_sum_copy(&b, &s->b);
        return ls_step_either(s, &a, &b, err);
    }
    if (ls_ptx_begins(op, "popc.") || ls_ptx_begins(op, "clz.") || ls_ptx_begins(op, "brev.") ||
        ls_ptx_begins(op, "bfind.")) {
        const bool small = op.text[0] == 'p' || op.text[0] == 'c';
        s->a.is_lost = s->b.is_lost = true;
        s->a.n = s->b.n = 0;
        return ls_step_result(s, LS_RULE_TYPE, small ? ls_range_of(0, 64) : ls_step_type_range(32, false), !small, err);
    }
    return ls_step_plain_result(s, true, err);
}
