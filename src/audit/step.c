/* What every operation needs while definitions are evaluated: types of opcodes, symbols, checks, other values. */
#include "audit/step.h"

#include <string.h>

#include "base/mem.h"

/* The type that ends at *end, which goes in front of it; bits 0 where there is none. */
ls_step_type ls_step_type_before(ls_ptx_name op, int32_t *end) {
    int32_t at = *end;
    ls_step_type t = {0, false, false};
    while (at > 0 && op.text[at - 1] != '.') at--;
    if (at == 0) return t;
    const char *text = op.text + at;
    const int32_t n = *end - at;
    *end = at - 1;
    const bool wide_float = n > 1 && (text[0] == 'f' || text[0] == 'e' || (n > 2 && text[0] == 'b' && text[1] == 'f') ||
                                      (text[0] == 't' && text[1] == 'f'));
    if (n > 3 && !wide_float) return t;
    int32_t bits = 0; /* no type has more than three digits; names that only look like one may */
    for (int32_t i = 1; i < n && i <= 3 && text[i] >= '0' && text[i] <= '9'; i++) bits = bits * 10 + (text[i] - '0');
    if (wide_float) return (ls_step_type){32, true, true};
    if (text[0] == 'u' || text[0] == 's' || text[0] == 'b') t = (ls_step_type){bits, text[0] == 's', false};
    return t;
}

ls_step_type ls_step_type_of(ls_ptx_name op) {
    int32_t end = op.bytes;
    return ls_step_type_before(op, &end);
}

ls_range ls_step_type_range(int32_t bits, bool is_signed) {
    const ls_wide one = 1;
    if (bits <= 0 || bits > 64) return ls_range_of(-LS_WIDE_MAX, LS_WIDE_MAX);
    if (is_signed) return ls_range_of(-(one << (bits - 1)), (one << (bits - 1)) - 1);
    return ls_range_of(0, (one << bits) - 1);
}

/* What an integer of these bits is where nothing is said: a size, an index, not less than 0 and as if it were
 * signed. */
ls_range ls_step_plain_range(int32_t bits) { return ls_range_of(0, ls_step_type_range(bits, true).high); }

void ls_step_sum_of(ls_step *s, int64_t b_factor) {
    ls_sum_copy(&s->out, &s->a);
    ls_sum_add(&s->out, &s->b, b_factor);
}

ls_symbol ls_step_symbol(const ls_step *s, int kind, ls_range type) {
    const ls_symbol symbol = {.kind = (uint8_t)kind,
                              .bits = (uint8_t)s->t.bits,
                              .block = s->block,
                              .value = -1,
                              .parameter = -1,
                              .turn = -1,
                              .line = s->in == NULL ? 0 : s->in->line,
                              .type = type};
    return symbol;
}

ls_status ls_step_add_symbol(ls_work *w, const ls_symbol *symbol, int32_t *id, ls_error *err) {
    LS_TRY(ls_array_grow((void **)&w->symbols, &w->cap_symbols, w->n_symbols + 1, sizeof *w->symbols, "symbols", err));
    *id = (int32_t)w->n_symbols;
    w->symbols[w->n_symbols++] = *symbol;
    return LS_OK;
}

void ls_step_declare(ls_work *w, ls_symbol *s, ls_range_subject subject, int32_t index) {
    const ls_ptx_function *f = w->f;
    ls_declared found;
    ls_ptx_name name = {NULL, 0};
    if (index < 0 && subject != LS_SUBJECT_LOADED) return;
    if (index >= 0 && subject <= LS_SUBJECT_LOADED && index < f->n_parameters) name = f->parameters[index].name;
    found = ls_ranges_find(w->ranges, &(ls_range_query){.kernel = f->name.text,
                                                        .kernel_bytes = f->name.bytes,
                                                        .subject = subject,
                                                        .index = index,
                                                        .offset = s->offset,
                                                        .parameter_name = name.text,
                                                        .name_bytes = name.bytes});
    if (s->bits < 32) found.is_other = false;
    if (found.is_other && s->bits >= 32 && subject <= LS_SUBJECT_LOADED) found.has_range = true;
    s->name = found.name;
    if (!found.has_range) return;
    s->is_declared = true;
    s->type = found.range;
}

/* The same operation on the same operands is the same value: compilers divide on two ways, in 32 bits and in 64. The
 * symbol then belongs to the block above both. */
static bool find_same(const ls_step *s, const ls_symbol *symbol, int32_t *id) {
    ls_work *w = s->w;
    ls_sum a, b;
    const int64_t last = w->n_symbols < 96 ? 0 : w->n_symbols - 96;
    for (int64_t i = w->n_symbols - 1; i >= last; i--) {
        ls_symbol *old = &w->symbols[i];
        if (old->kind != LS_SYMBOL_RESULT || old->rule != symbol->rule || old->shift != symbol->shift ||
            old->a.n != symbol->a.n || old->b.n != symbol->b.n || (old->type.low < 0) != (symbol->type.low < 0))
            continue;
        ls_work_sum(w, &a, old->a);
        if (!ls_sum_equal(&a, &s->a)) continue;
        ls_work_sum(w, &b, old->b);
        if (!b.is_lost && !ls_sum_equal(&b, &s->b)) continue;
        while (old->block >= 0 && !ls_flow_dominates(w->flow, old->block, s->block))
            old->block = w->flow->blocks[old->block].above;
        *id = (int32_t)i;
        return true;
    }
    return false;
}

/* An operation's result that is no sum. */
ls_status ls_step_result(ls_step *s, ls_rule rule, ls_range known, bool vague, ls_error *err) {
    ls_symbol symbol = ls_step_symbol(s, LS_SYMBOL_RESULT, known);
    int32_t id;
    symbol.rule = (uint8_t)rule;
    symbol.is_vague = vague;
    LS_TRY(ls_work_keep(s->w, &symbol.a, &s->a, err));
    LS_TRY(ls_work_keep(s->w, &symbol.b, &s->b, err));
    if (symbol.a.n < 0 && rule != LS_RULE_TYPE) symbol.rule = LS_RULE_TYPE, symbol.is_vague = true;
    if (rule == LS_RULE_HIGH) symbol.shift = s->t.bits;
    if (symbol.rule == LS_RULE_TYPE || !find_same(s, &symbol, &id)) LS_TRY(ls_step_add_symbol(s->w, &symbol, &id, err));
    ls_sum_symbol(&s->out, id);
    return LS_OK;
}

ls_status ls_step_plain_result(ls_step *s, bool vague, ls_error *err) {
    s->a.is_lost = s->b.is_lost = true;
    s->a.n = s->b.n = 0;
    return ls_step_result(s, LS_RULE_TYPE, ls_step_type_range(s->t.bits == 0 ? 32 : s->t.bits, false), vague, err);
}

ls_status ls_step_either(ls_step *s, const ls_sum *a, const ls_sum *b, ls_error *err) {
    if (ls_sum_equal(a, b)) {
        ls_sum_copy(&s->out, a);
        return LS_OK;
    }
    ls_symbol symbol = ls_step_symbol(s, LS_SYMBOL_JOIN, ls_range_of(-LS_WIDE_MAX, LS_WIDE_MAX));
    int32_t id;
    symbol.a_block = s->a_block;
    symbol.b_block = s->b_block;
    if (a->is_lost || b->is_lost) {
        s->out.is_lost = true;
        s->out.n = 0;
        return LS_OK;
    }
    LS_TRY(ls_work_keep(s->w, &symbol.a, a, err));
    LS_TRY(ls_work_keep(s->w, &symbol.b, b, err));
    LS_TRY(ls_step_add_symbol(s->w, &symbol, &id, err));
    ls_sum_symbol(&s->out, id);
    return LS_OK;
}

/* The sum must lie in the window, or what is taken is not what is meant. */
ls_status ls_step_check(ls_step *s, const ls_sum *sum, int32_t source, ls_range window, ls_error *err) {
    ls_work *w = s->w;
    int64_t value;
    if (sum->is_lost || (ls_sum_is_constant(sum, &value) && value >= window.low && value <= window.high)) return LS_OK;
    ls_check c = {.at = s->at, .block = s->block, .next = s->check, .source = source, .window = window, .access = -1};
    LS_TRY(ls_work_keep(w, &c.sum, sum, err));
    LS_TRY(ls_array_grow((void **)&w->checks, &w->cap_checks, w->n_checks + 1, sizeof *w->checks, "checks", err));
    s->check = (int32_t)w->n_checks;
    w->checks[w->n_checks++] = c;
    return LS_OK;
}

ls_status ls_step_check_number(ls_step *s, const ls_sum *sum, int32_t source, bool is_signed, ls_error *err) {
    return s->t.bits == 32 ? ls_step_check(s, sum, source, ls_step_type_range(32, is_signed), err) : LS_OK;
}

/* The instruction that defines a value, NULL for a join. */
const ls_ptx_instruction *ls_step_definition(const ls_work *w, int32_t value) {
    if (value < 0 || w->flow->values[value].kind != LS_FLOW_INSTRUCTION) return NULL;
    return &w->f->instructions[w->flow->values[value].at];
}
