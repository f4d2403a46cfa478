/* The sum of every definition, as the source means it: sums and products of 32 bits are kept exact, since they are
 * right modulo 2^32 whatever happens on the way. Where such bits become a wider number, or are taken as one (a
 * quotient, a minimum), a check says which window the exact sum must lie in. What is no sum becomes a symbol with a
 * rule. */
#include <stdlib.h>
#include <string.h>

#include "audit/bits.h"
#include "audit/work.h"
#include "base/mem.h"

/* A type at the end of an opcode. */
typedef struct type {
    int32_t bits;
    bool is_signed, is_float;
} type;

typedef struct step {
    ls_work *w;
    const ls_ptx_instruction *in;
    int32_t at, block, check;
    ls_sum a, b, c, out; /* operands, result */
    int32_t a_value, b_value, c_value;
    int32_t a_block, b_block; /* of the two ways that meet */
    type t;
} step;

static bool begins(ls_ptx_name name, const char *text) {
    const size_t n = strlen(text);
    return (size_t)name.bytes >= n && memcmp(name.text, text, n) == 0;
}

static bool has(ls_ptx_name name, const char *text) {
    const size_t n = strlen(text);
    for (size_t i = 0; i + n <= (size_t)name.bytes; i++)
        if (memcmp(name.text + i, text, n) == 0) return true;
    return false;
}

/* The type that ends at *end, which goes in front of it; bits 0 where there is none. */
static type type_before(ls_ptx_name op, int32_t *end) {
    int32_t at = *end;
    type t = {0, false, false};
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
    if (wide_float) return (type){32, true, true};
    if (text[0] == 'u' || text[0] == 's' || text[0] == 'b') t = (type){bits, text[0] == 's', false};
    return t;
}

static type type_of(ls_ptx_name op) {
    int32_t end = op.bytes;
    return type_before(op, &end);
}

/* Symbols --------------------------------------------------------------------------------------------------------- */

static ls_range type_range(int32_t bits, bool is_signed) {
    const ls_wide one = 1;
    if (bits <= 0 || bits > 64) return ls_range_of(-LS_WIDE_MAX, LS_WIDE_MAX);
    if (is_signed) return ls_range_of(-(one << (bits - 1)), (one << (bits - 1)) - 1);
    return ls_range_of(0, (one << bits) - 1);
}

/* What an integer of these bits is where nothing is said: a size, an index, not less than 0 and as if it were
 * signed. */
static ls_range plain_range(int32_t bits) { return ls_range_of(0, type_range(bits, true).high); }

static ls_status add_symbol(ls_work *w, const ls_symbol *symbol, int32_t *id, ls_error *err) {
    LS_TRY(ls_array_grow((void **)&w->symbols, &w->cap_symbols, w->n_symbols + 1, sizeof *w->symbols, "symbols", err));
    *id = (int32_t)w->n_symbols;
    w->symbols[w->n_symbols++] = *symbol;
    return LS_OK;
}

static ls_status declare(ls_work *w, ls_symbol *s, ls_subject subject, int32_t index, ls_error *err) {
    const ls_ptx_function *f = w->f;
    ls_declared found;
    ls_ptx_name name = {NULL, 0};
    if (index < 0 && subject != LS_SUBJECT_LOADED) return LS_OK;
    if (index >= 0 && subject <= LS_SUBJECT_LOADED && index < f->n_parameters) name = f->parameters[index].name;
    LS_TRY(ls_ranges_find(w->ranges, &found, f->name.text, f->name.bytes, subject, index, s->offset, name.text,
                          name.bytes, err));
    if (s->bits < 32) found.is_other = false;
    if (found.is_other && s->bits >= 32 && subject <= LS_SUBJECT_LOADED) found.has_range = true;
    s->name = found.name;
    if (!found.has_range) return LS_OK;
    s->is_declared = true;
    s->type = found.range;
    return LS_OK;
}

static ls_status special(step *s, ls_ptx_name name, ls_sum *out, ls_error *err) {
    static const struct {
        const char *name;
        ls_symbol_kind kind;
        ls_subject subject;
    } known[] = {{"%tid.", LS_SYMBOL_TID, LS_SUBJECT_TID},
                 {"%ctaid.", LS_SYMBOL_CTAID, LS_SUBJECT_CTAID},
                 {"%ntid.", LS_SYMBOL_NTID, LS_SUBJECT_NTID},
                 {"%nctaid.", LS_SYMBOL_NCTAID, LS_SUBJECT_NCTAID}};
    static const struct {
        const char *name;
        int64_t high;
    } others[] = {{"%laneid", 31},
                  {"%warpid", 31},
                  {"%nwarpid", 32},
                  {"%smid", 1023},
                  {"%nsmid", 1024},
                  {"%cluster_ctarank", 15},
                  {"%cluster_nctarank", 16},
                  {"%cluster_ctaid", 15},
                  {"%cluster_nctaid", 16},
                  {"%clusterid", 2147483646},
                  {"%nclusterid", 2147483647},
                  {"%dynamic_smem_size", 232448},
                  {"%total_smem_size", 232448}};
    ls_work *w = s->w;
    for (int k = 0; k < 4; k++) {
        if (!begins(name, known[k].name)) continue;
        const int axis = name.text[name.bytes - 1] - 'x';
        if (axis < 0 || axis > 2) break;
        if (w->axis[k][axis] < 0) {
            const int64_t grid = axis == 0 ? 2147483647 : 65535, block = axis == 2 ? 64 : 1024;
            const int64_t threads = w->f->max_threads[axis] > 0 ? w->f->max_threads[axis] : block;
            const ls_range all[] = {{0, threads - 1}, {0, grid - 1}, {1, threads}, {1, grid}};
            ls_symbol symbol = {.kind = (uint8_t)known[k].kind,
                                .bits = 32,
                                .axis = (uint8_t)axis,
                                .block = -1,
                                .value = -1,
                                .parameter = -1,
                                .turn = -1,
                                .type = all[k]};
            LS_TRY(declare(w, &symbol, known[k].subject, axis, err));
            LS_TRY(add_symbol(w, &symbol, &w->axis[k][axis], err));
        }
        ls_sum_symbol(out, w->axis[k][axis]);
        return LS_OK;
    }
    ls_symbol symbol = {.kind = LS_SYMBOL_RESULT,
                        .bits = 32,
                        .block = s->block,
                        .value = -1,
                        .parameter = -1,
                        .turn = -1,
                        .line = s->in->line,
                        .type = plain_range(32)};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (begins(name, others[i].name)) symbol.type = ls_range_of(0, others[i].high);
    int32_t id;
    LS_TRY(add_symbol(w, &symbol, &id, err));
    ls_sum_symbol(out, id);
    return LS_OK;
}

static int32_t parameter_index(const ls_work *w, ls_ptx_name name) {
    for (int32_t i = 0; name.text != NULL && i < w->f->n_parameters; i++)
        if (w->f->parameters[i].name.bytes == name.bytes &&
            memcmp(w->f->parameters[i].name.text, name.text, (size_t)name.bytes) == 0)
            return i;
    return -1;
}

static ls_status variable(step *s, const ls_ptx_operand *o, ls_sum *out, ls_error *err) {
    ls_symbol symbol = {.kind = LS_SYMBOL_VARIABLE,
                        .bits = 64,
                        .block = -1,
                        .value = -1,
                        .parameter = -1,
                        .turn = -1,
                        .line = s->in->line,
                        .type = ls_range_of(0, 232448)};
    int32_t id;
    ls_term offset = {.factor = o->value};
    symbol.parameter = parameter_index(s->w, o->name);
    LS_TRY(add_symbol(s->w, &symbol, &id, err));
    ls_sum_symbol(out, id);
    ls_sum_add_term(out, &offset, 1);
    return LS_OK;
}

/* The same operation on the same operands is the same value: compilers divide on two ways, in 32 bits and in 64. The
 * symbol then belongs to the block above both. */
static bool find_same(const step *s, const ls_symbol *symbol, int32_t *id) {
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
static ls_status result(step *s, ls_rule rule, ls_range known, bool vague, ls_error *err) {
    ls_symbol symbol = {.kind = LS_SYMBOL_RESULT,
                        .rule = (uint8_t)rule,
                        .bits = (uint8_t)s->t.bits,
                        .block = s->block,
                        .value = -1,
                        .parameter = -1,
                        .turn = -1,
                        .line = s->in->line,
                        .type = known,
                        .is_vague = vague};
    int32_t id;
    LS_TRY(ls_work_keep(s->w, &symbol.a, &s->a, err));
    LS_TRY(ls_work_keep(s->w, &symbol.b, &s->b, err));
    if (symbol.a.n < 0 && rule != LS_RULE_TYPE) symbol.rule = LS_RULE_TYPE, symbol.is_vague = true;
    if (rule == LS_RULE_HIGH) symbol.shift = s->t.bits;
    if (symbol.rule == LS_RULE_TYPE || !find_same(s, &symbol, &id)) LS_TRY(add_symbol(s->w, &symbol, &id, err));
    ls_sum_symbol(&s->out, id);
    return LS_OK;
}

static ls_status plain_result(step *s, bool vague, ls_error *err) {
    s->a.is_lost = s->b.is_lost = true;
    s->a.n = s->b.n = 0;
    return result(s, LS_RULE_TYPE, type_range(s->t.bits == 0 ? 32 : s->t.bits, false), vague, err);
}

/* Operands -------------------------------------------------------------------------------------------------------- */

static ls_status read_operand(step *s, int32_t index, int32_t bits, ls_sum *out, int32_t *value, ls_error *err) {
    const ls_ptx_operand *o = &s->w->f->operands[index];
    *value = -1;
    if (o->kind == LS_PTX_INT) {
        ls_sum_constant(out, bits == 32 ? (int64_t)(int32_t)(uint32_t)(uint64_t)o->value : o->value);
        return LS_OK;
    }
    if (o->kind == LS_PTX_SYMBOL)
        return o->name.text[0] == '%' ? special(s, o->name, out, err) : variable(s, o, out, err);
    if (o->reg < 0) {
        out->is_lost = true;
        out->n = 0;
        return LS_OK;
    }
    *value = s->w->flow->reads[index];
    if (*value < 0)
        out->is_lost = true, out->n = 0;
    else
        ls_work_sum(s->w, out, s->w->cells[*value].sum);
    return LS_OK;
}

/* The operands behind the results: a, b, c. */
static ls_status read_operands(step *s, int32_t results, ls_error *err) {
    const int32_t first = s->in->first + results, n = s->in->n - results;
    s->a.is_lost = s->b.is_lost = s->c.is_lost = true;
    s->a.n = s->b.n = s->c.n = 0;
    s->a_value = s->b_value = s->c_value = -1;
    if (n > 0) LS_TRY(read_operand(s, first, s->t.bits, &s->a, &s->a_value, err));
    if (n > 1) LS_TRY(read_operand(s, first + 1, s->t.bits, &s->b, &s->b_value, err));
    if (n > 2) LS_TRY(read_operand(s, first + 2, s->t.bits, &s->c, &s->c_value, err));
    return LS_OK;
}

/* The sum must lie in the window, or what is taken is not what is meant. */
static ls_status check(step *s, const ls_sum *sum, int32_t source, ls_range window, ls_error *err) {
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

static ls_status check_number(step *s, const ls_sum *sum, int32_t source, bool is_signed, ls_error *err) {
    return s->t.bits == 32 ? check(s, sum, source, type_range(32, is_signed), err) : LS_OK;
}

/* The instruction that defines a value, NULL for a join. */
static const ls_ptx_instruction *definition(const ls_work *w, int32_t value) {
    if (value < 0 || w->flow->values[value].kind != LS_FLOW_INSTRUCTION) return NULL;
    return &w->f->instructions[w->flow->values[value].at];
}

/* Operations ------------------------------------------------------------------------------------------------------ */

static void sum_of(step *s, int64_t b_factor) {
    ls_sum_copy(&s->out, &s->a);
    ls_sum_add(&s->out, &s->b, b_factor);
}

static ls_status product(step *s, bool adds, bool wide, ls_error *err) {
    if (wide) {
        const ls_range window = type_range(s->t.bits, s->t.is_signed);
        if (s->t.bits == 32) {
            LS_TRY(check(s, &s->a, s->a_value, window, err));
            LS_TRY(check(s, &s->b, s->b_value, window, err));
        }
    }
    ls_sum_multiply(&s->out, &s->a, &s->b);
    if (adds) ls_sum_add(&s->out, &s->c, 1);
    return LS_OK;
}

static ls_status shift_left(step *s, ls_error *err) {
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
    LS_TRY(result(s, LS_RULE_POWER, ls_range_of(1, (ls_wide)1 << (s->t.bits - 1)), false, err));
    ls_sum power;
    ls_sum_copy(&power, &s->out);
    ls_sum_multiply(&s->out, &kept, &power);
    return LS_OK;
}

static ls_status shift_right(step *s, ls_error *err) {
    int64_t k;
    const ls_ptx_instruction *from = definition(s->w, s->a_value);
    if (!ls_sum_is_constant(&s->b, &k) || k < 0 || k >= s->t.bits) return plain_result(s, true, err);
    if (k == 32 && s->t.bits == 64 && from != NULL && begins(from->op, "shl.b64") && from->n == 3 &&
        s->w->f->operands[from->first + 2].kind == LS_PTX_INT && s->w->f->operands[from->first + 2].value == 32) {
        const int32_t inner = s->w->flow->reads[from->first + 1];
        if (inner >= 0) { /* the low half, extended */
            ls_work_sum(s->w, &s->out, s->w->cells[inner].sum);
            return check(s, &s->out, inner, type_range(32, s->t.is_signed), err);
        }
    }
    if (s->t.bits == 32) /* bits that are shifted out are the same for a negative number and its unsigned reading */
        LS_TRY(check(s, &s->a, s->a_value,
                     s->t.is_signed ? type_range(32, true) : ls_range_of(-2147483648LL, 4294967295LL), err));
    ls_sum_constant(&s->b, k < 62 ? (int64_t)1 << k : INT64_MAX);
    return result(s, LS_RULE_QUOTIENT, type_range(s->t.bits, s->t.is_signed), false, err);
}

static ls_status bitwise_or(step *s, ls_error *err) {
    if (ls_work_aligned(&s->a, ls_work_bits(s->w, &s->b)) || ls_work_aligned(&s->b, ls_work_bits(s->w, &s->a))) {
        sum_of(s, 1); /* no bit stands in both */
        return LS_OK;
    }
    LS_TRY(check_number(s, &s->a, s->a_value, false, err));
    LS_TRY(check_number(s, &s->b, s->b_value, false, err));
    return result(s, LS_RULE_OR, type_range(s->t.bits, false), false, err);
}

static ls_status bitwise_and(step *s, ls_error *err) {
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
        return check(s, &s->a, s->a_value, type_range(32, false), err);
    }
    return result(s, LS_RULE_AND, type_range(s->t.bits, false), false, err);
}

static ls_status either(step *s, const ls_sum *a, const ls_sum *b, ls_error *err) {
    if (ls_sum_equal(a, b)) {
        ls_sum_copy(&s->out, a);
        return LS_OK;
    }
    ls_symbol symbol = {.kind = LS_SYMBOL_JOIN,
                        .bits = (uint8_t)s->t.bits,
                        .block = s->block,
                        .value = -1,
                        .parameter = -1,
                        .turn = -1,
                        .line = s->in == NULL ? 0 : s->in->line,
                        .a_block = s->a_block,
                        .b_block = s->b_block,
                        .type = ls_range_of(-LS_WIDE_MAX, LS_WIDE_MAX)};
    int32_t id;
    if (a->is_lost || b->is_lost) {
        s->out.is_lost = true;
        s->out.n = 0;
        return LS_OK;
    }
    LS_TRY(ls_work_keep(s->w, &symbol.a, a, err));
    LS_TRY(ls_work_keep(s->w, &symbol.b, b, err));
    LS_TRY(add_symbol(s->w, &symbol, &id, err));
    ls_sum_symbol(&s->out, id);
    return LS_OK;
}

static ls_status convert(step *s, ls_error *err) {
    int32_t end = s->in->op.bytes;
    const type from = type_before(s->in->op, &end), to = type_before(s->in->op, &end);
    s->t = to;
    if (to.is_float) return LS_OK;
    if (from.is_float || from.bits == 0 || to.bits == 0) return plain_result(s, false, err);
    if (from.bits == 32 && to.bits == 64) {
        ls_sum_copy(&s->out, &s->a);
        return check(s, &s->a, s->a_value, type_range(32, from.is_signed), err);
    }
    if (to.bits >= 32 && from.bits >= 32) {
        ls_sum_copy(&s->out, &s->a);
        return LS_OK;
    }
    s->b.is_lost = true;
    s->b.n = 0;
    return result(s, LS_RULE_SAME,
                  from.bits < to.bits ? type_range(from.bits, from.is_signed) : type_range(to.bits, to.is_signed),
                  false, err);
}

/* mov of a pair: {lo, hi} = wide and wide = {lo, hi}. */
static ls_status move_parts(step *s, int32_t results, int32_t part, ls_error *err) {
    const int32_t sources = s->in->n - results;
    if (results == 1 && sources == 1) {
        ls_sum_copy(&s->out, &s->a);
        return LS_OK;
    }
    if (results == 2 && sources == 1 && part == 0) {
        ls_sum_copy(&s->out, &s->a); /* right modulo 2^32 */
        return LS_OK;
    }
    int64_t high;
    if (results == 1 && sources == 2 && ls_sum_is_constant(&s->b, &high) && high == 0) {
        ls_sum_copy(&s->out, &s->a);
        return check(s, &s->a, s->a_value, type_range(32, false), err);
    }
    if (results == 1 && sources == 2) { /* the two halves of one number */
        const ls_ptx_instruction *low = definition(s->w, s->a_value), *upper = definition(s->w, s->b_value);
        if (low != NULL && low == upper && begins(low->op, "mov.b64")) {
            ls_sum_copy(&s->out, &s->a);
            return LS_OK;
        }
        s->t.bits = 64;
        return plain_result(s, true, err);
    }
    s->t.bits = 32;
    return plain_result(s, true, err);
}

/* A parameter whose address was taken: its number and the place in it; false where the address is not a plain one. */
static bool parameter_behind(const step *s, const ls_ptx_operand *o, int32_t index, int32_t *parameter,
                             int64_t *offset) {
    const ls_work *w = s->w;
    ls_sum address = {.is_lost = true};
    *parameter = -1;
    if (w->flow->reads[index] >= 0) ls_work_sum(w, &address, w->cells[w->flow->reads[index]].sum);
    if (address.is_lost || address.n < 1 || address.n > 2 || address.terms[0].n != 1 || address.terms[0].factor != 1)
        return false;
    const ls_symbol *base = &w->symbols[address.terms[0].symbols[0]];
    if (base->kind != LS_SYMBOL_VARIABLE || base->parameter < 0 || (address.n == 2 && address.terms[1].n != 0))
        return false;
    *parameter = base->parameter;
    *offset = o->value + (address.n == 2 ? address.terms[1].factor : 0);
    return true;
}

static ls_status parameter(step *s, const ls_ptx_operand *o, int32_t index, int32_t part, ls_error *err) {
    ls_work *w = s->w;
    ls_symbol symbol = {.kind = LS_SYMBOL_PARAMETER,
                        .bits = (uint8_t)s->t.bits,
                        .block = -1,
                        .value = -1,
                        .parameter = -1,
                        .turn = -1,
                        .offset = o->value,
                        .line = s->in->line,
                        .type = plain_range(s->t.bits == 0 ? 32 : s->t.bits)};
    int32_t id;
    if (s->t.bits < 32) symbol.type = type_range(s->t.bits, s->t.is_signed);
    if (o->reg < 0)
        symbol.parameter = parameter_index(w, o->name), symbol.is_vague = symbol.parameter < 0; /* a call's result */
    else
        symbol.is_vague = !parameter_behind(s, o, index, &symbol.parameter, &symbol.offset);
    symbol.offset += part * (s->t.bits / 8); /* of a vector */
    if (symbol.parameter < 0 || symbol.is_vague) LS_TRY(declare(w, &symbol, LS_SUBJECT_LOADED, -1, err));
    if (symbol.parameter >= 0 && !symbol.is_vague) {
        const int64_t last = w->n_symbols < 512 ? 0 : w->n_symbols - 512;
        for (int64_t i = w->n_symbols - 1; i >= last; i--) {
            const ls_symbol *old = &w->symbols[i];
            if (old->kind != LS_SYMBOL_PARAMETER || old->parameter != symbol.parameter ||
                old->offset != symbol.offset || old->bits != symbol.bits)
                continue;
            ls_sum_symbol(&s->out, (int32_t)i);
            return LS_OK;
        }
        LS_TRY(declare(w, &symbol, LS_SUBJECT_PARAMETER, symbol.parameter, err));
    }
    LS_TRY(add_symbol(w, &symbol, &id, err));
    ls_sum_symbol(&s->out, id);
    return LS_OK;
}

/* The parameter whose pointer an address begins with, NULL for none. A pointer that a loop moves began somewhere. */
static const ls_symbol *base_of(const ls_work *w, const ls_sum *address, int32_t depth) {
    for (int32_t i = 0; !address->is_lost && i < address->n; i++) {
        const ls_term *t = &address->terms[i];
        if (t->n != 1 || t->factor != 1) continue;
        const ls_symbol *symbol = &w->symbols[t->symbols[0]];
        if (symbol->kind == LS_SYMBOL_PARAMETER && symbol->bits == 64) return symbol;
        if (symbol->kind != LS_SYMBOL_LOOP || symbol->bits != 64 || depth == 4) continue;
        const ls_flow_value *phi = &w->flow->values[symbol->value];
        for (int32_t e = 0; e < w->flow->blocks[phi->block].n_from; e++) {
            const int32_t from = w->flow->joined[phi->first_from + e];
            ls_sum began;
            if (from < 0) continue;
            ls_work_sum(w, &began, w->cells[from].sum);
            const ls_symbol *found = base_of(w, &began, depth + 1);
            if (found != NULL) return found;
        }
    }
    return NULL;
}

static ls_status load(step *s, const ls_ptx_operand *o, int32_t index, int32_t part, ls_error *err) {
    int32_t of_parameter;
    int64_t at;
    if (o->kind == LS_PTX_ADDRESS && o->reg >= 0 && parameter_behind(s, o, index, &of_parameter, &at))
        return parameter(s, o, index, part, err); /* by a generic address */
    ls_symbol symbol = {.kind = LS_SYMBOL_LOADED,
                        .bits = (uint8_t)s->t.bits,
                        .block = s->block,
                        .value = -1,
                        .parameter = -1,
                        .turn = -1,
                        .line = s->in->line,
                        .type = plain_range(s->t.bits)};
    int32_t id;
    if (s->t.bits < 32) symbol.type = type_range(s->t.bits, s->t.is_signed);
    if (o->kind == LS_PTX_ADDRESS && o->reg >= 0 && s->w->flow->reads[index] >= 0) {
        ls_sum address;
        ls_work_sum(s->w, &address, s->w->cells[s->w->flow->reads[index]].sum);
        const ls_symbol *base = base_of(s->w, &address, 0);
        if (base != NULL) {
            symbol.parameter = base->parameter;
            symbol.offset = base->offset;
        }
    }
    LS_TRY(declare(s->w, &symbol, LS_SUBJECT_LOADED, symbol.parameter, err));
    LS_TRY(add_symbol(s->w, &symbol, &id, err));
    ls_sum_symbol(&s->out, id);
    return LS_OK;
}

/* What takes a result of this reaches nothing that could be claimed. */
static ls_status not_understood(step *s, ls_error *err) {
    ls_work *w = s->w;
    const bool pair = has(s->in->op, ".pair");
    ls_check c = {.at = s->at, .block = s->block, .next = s->check, .source = -1, .access = -1};
    c.state = LS_STATE_UNKNOWN;
    c.reason = pair ? "two registers are one address in a way that is not understood" : "is not understood";
    c.sum.n = -1;
    LS_TRY(ls_array_grow((void **)&w->checks, &w->cap_checks, w->n_checks + 1, sizeof *w->checks, "checks", err));
    s->check = (int32_t)w->n_checks;
    w->checks[w->n_checks++] = c;
    s->t.bits = pair ? 64 : 32;
    return plain_result(s, true, err);
}

/* Operations on bits by tables and selectors ---------------------------------------------------------------------- */

typedef struct inputs {
    ls_sum sums[3];
    int32_t values[3];
} inputs;

/* out = x how y, of the inputs or of what was found before (-1). */
static ls_status combine(step *s, const inputs *in, char how, int32_t x, int32_t y, ls_error *err) {
    if (x < 0) {
        ls_sum_copy(&s->a, &s->out);
        s->a_value = -1;
    } else {
        ls_sum_copy(&s->a, &in->sums[x]);
        s->a_value = in->values[x];
    }
    ls_sum_copy(&s->b, &in->sums[y]);
    s->b_value = in->values[y];
    if (how == '&') return bitwise_and(s, err);
    if (how == '|') return bitwise_or(s, err);
    return result(s, LS_RULE_XOR, type_range(s->t.bits, false), false, err);
}

/* A table of three inputs: as one of them, two of them joined, or the join of two joined with the third. */
static ls_status logic(step *s, ls_error *err) {
    const ls_ptx_operand *table = &s->w->f->operands[s->in->first + s->in->n - 1];
    const ls_term one = {.factor = 1};
    inputs in = {.values = {s->a_value, s->b_value, s->c_value}};
    bool constant[3];
    int64_t values[3] = {0};
    ls_sum_copy(&in.sums[0], &s->a);
    ls_sum_copy(&in.sums[1], &s->b);
    ls_sum_copy(&in.sums[2], &s->c);
    if (table->kind != LS_PTX_INT) return plain_result(s, true, err);
    for (int i = 0; i < 3; i++) constant[i] = ls_sum_is_constant(&in.sums[i], &values[i]);
    const ls_bits_plan plan = ls_bits_table((int32_t)(table->value & 0xFF), constant, values);
    if (plan.n == 0) return plain_result(s, true, err);
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
static ls_status permute(step *s, ls_error *err) {
    int64_t selector, a = -1, b = -1;
    const bool a_zero = ls_sum_is_constant(&s->a, &a) && a == 0, b_zero = ls_sum_is_constant(&s->b, &b) && b == 0;
    if (!ls_sum_is_constant(&s->c, &selector) || s->in->op.bytes != 8) return plain_result(s, true, err);
    const ls_bits_bytes what = ls_bits_permute(selector, a_zero, b_zero);
    if (!what.known) return plain_result(s, true, err);
    if (what.bytes == 0) return ls_sum_constant(&s->out, 0), LS_OK;
    if (what.from == 1) {
        ls_sum_copy(&s->a, &s->b);
        s->a_value = s->b_value;
    }
    if (what.in_place && what.bytes == 4) return ls_sum_copy(&s->out, &s->a), LS_OK;
    ls_sum_constant(&s->b, ((int64_t)1 << (8 * what.bytes)) - 1);
    if (what.in_place) return bitwise_and(s, err);
    s->a.is_lost = s->b.is_lost = true;
    s->a.n = s->b.n = 0;
    return result(s, LS_RULE_TYPE, type_range(8 * what.bytes, false), what.bytes == 4, err);
}

static ls_status divide(step *s, ls_rule rule, ls_error *err) {
    LS_TRY(check_number(s, &s->a, s->a_value, s->t.is_signed, err));
    LS_TRY(check_number(s, &s->b, s->b_value, s->t.is_signed, err));
    return result(s, rule, type_range(s->t.bits, s->t.is_signed), false, err);
}

/* Operations of integers with one result, by the beginning of their names. */
static ls_status compute(step *s, int32_t results, int32_t part, ls_error *err) {
    const ls_ptx_name op = s->in->op;
    const bool carries = has(op, ".cc") || begins(op, "addc") || begins(op, "subc") || begins(op, "madc");
    if (carries) return plain_result(s, true, err);
    if (begins(op, "unknown.")) return not_understood(s, err);
    if (begins(op, "given.")) { /* of floats, other threads, tables: any value that is not negative */
        s->a.is_lost = s->b.is_lost = true;
        s->a.n = s->b.n = 0;
        return result(s, LS_RULE_TYPE, plain_range(32), false, err);
    }
    if (begins(op, "lop3.")) return logic(s, err);
    if (begins(op, "prmt.")) return permute(s, err);
    if (begins(op, "mov.")) return move_parts(s, results, part, err);
    if (begins(op, "cvt.")) return convert(s, err);
    if (begins(op, "cvta.")) return ls_sum_copy(&s->out, &s->a), LS_OK;
    if (begins(op, "shfl."))
        return s->b.is_lost = true, s->b.n = 0, result(s, LS_RULE_SAME, type_range(32, true), false, err);
    if (begins(op, "bfe.")) {
        int64_t bits;
        if (ls_sum_is_constant(&s->c, &bits) && bits >= 0 && bits < s->t.bits && !s->t.is_signed)
            s->t.bits = (int32_t)bits + 1;
        const bool exact = s->t.bits < 32;
        if (exact) s->t.bits--;
        s->a.is_lost = s->b.is_lost = true;
        s->a.n = s->b.n = 0;
        return result(s, LS_RULE_TYPE, exact && s->t.bits > 0 ? type_range(s->t.bits, false) : type_range(32, false),
                      !exact, err);
    }
    if (s->t.is_float || s->t.bits < 32) {
        if (s->t.bits == 0 || s->t.is_float) return LS_OK;
        return s->a.is_lost = true, s->b.is_lost = true, s->a.n = s->b.n = 0,
               result(s, LS_RULE_TYPE, type_range(s->t.bits, s->t.is_signed), false, err);
    }
    if (begins(op, "add.")) return sum_of(s, 1), LS_OK;
    if (begins(op, "sub.")) return sum_of(s, -1), LS_OK;
    if (begins(op, "neg.") || begins(op, "not.")) {
        const ls_term one = {.factor = 1};
        ls_sum_constant(&s->out, 0);
        ls_sum_add(&s->out, &s->a, -1);
        if (op.text[2] == 't') ls_sum_add_term(&s->out, &one, -1);
        return LS_OK;
    }
    if (begins(op, "mul.hi")) {
        LS_TRY(check_number(s, &s->a, s->a_value, s->t.is_signed, err));
        int64_t m;
        if (s->t.bits == 32 && ls_sum_is_constant(&s->b, &m) && m < 0 && !s->t.is_signed)
            ls_sum_constant(&s->b, m + ((int64_t)1 << 32));
        return result(s, LS_RULE_HIGH, type_range(s->t.bits, s->t.is_signed), false, err);
    }
    if (begins(op, "mul.") || begins(op, "mul24.")) return product(s, false, has(op, ".wide"), err);
    if (begins(op, "mad.lo") || begins(op, "mad.wide") || begins(op, "mad24.lo"))
        return product(s, true, has(op, ".wide"), err);
    if (begins(op, "shl.")) return shift_left(s, err);
    if (begins(op, "shr.")) return shift_right(s, err);
    if (begins(op, "div.")) return divide(s, LS_RULE_QUOTIENT, err);
    if (begins(op, "rem.")) return divide(s, LS_RULE_REST, err);
    if (begins(op, "min.")) return divide(s, LS_RULE_MIN, err);
    if (begins(op, "max.")) return divide(s, LS_RULE_MAX, err);
    if (begins(op, "abs.")) return divide(s, LS_RULE_ABS, err);
    if (begins(op, "and.")) return bitwise_and(s, err);
    if (begins(op, "or.")) return bitwise_or(s, err);
    if (begins(op, "xor.")) return result(s, LS_RULE_XOR, type_range(s->t.bits, false), false, err);
    if (begins(op, "selp.")) {
        ls_sum a, b;
        ls_sum_copy(&a, &s->a);
        ls_sum_copy(&b, &s->b);
        return either(s, &a, &b, err);
    }
    if (begins(op, "popc.") || begins(op, "clz.") || begins(op, "brev.") || begins(op, "bfind.")) {
        const bool small = op.text[0] == 'p' || op.text[0] == 'c';
        s->a.is_lost = s->b.is_lost = true;
        s->a.n = s->b.n = 0;
        return result(s, LS_RULE_TYPE, small ? ls_range_of(0, 64) : type_range(32, false), !small, err);
    }
    return plain_result(s, true, err);
}

/* One definition. */
static ls_status define(step *s, int32_t operand, int32_t results, int32_t part, ls_error *err) {
    ls_work *w = s->w;
    const ls_ptx_name op = s->in->op;
    const int32_t value = w->flow->writes[operand];
    const ls_ptx_type reg = w->f->registers[w->f->operands[operand].reg].type;
    ls_cell *cell = &w->cells[value];
    s->t = type_of(op);
    s->out.is_lost = true;
    s->out.n = 0;
    s->check = -1;
    if (reg == LS_PTX_PRED) {
        cell->compare = s->at;
        return LS_OK;
    }
    const bool is_load = begins(op, "ld.") || begins(op, "ldu.") || begins(op, "ldw.") || begins(op, "atom.");
    if (is_load && !s->t.is_float && s->in->n > results) {
        const ls_ptx_operand *from = &w->f->operands[s->in->first + results];
        if (begins(op, "ld.param"))
            LS_TRY(parameter(s, from, s->in->first + results, part, err));
        else
            LS_TRY(load(s, from, s->in->first + results, part, err));
    } else if (!is_load && reg != LS_PTX_B128) {
        LS_TRY(read_operands(s, results, err));
        LS_TRY(compute(s, results, part, err));
        cell->through = 1;
        if (s->out.is_lost && !s->t.is_float && s->t.bits >= 32 && !begins(op, "mma.") && !begins(op, "wgmma"))
            LS_TRY(plain_result(s, true, err));
    }
    const int32_t old = w->flow->values[value].old;
    if (old >= 0 && s->in->guard >= 0) {
        ls_sum before, now;
        ls_work_sum(w, &before, w->cells[old].sum);
        ls_sum_copy(&now, &s->out);
        LS_TRY(either(s, &now, &before, err));
    }
    cell = &w->cells[value];
    cell->check = s->check;
    return ls_work_keep(w, &cell->sum, &s->out, err);
}

static int32_t bits_of_type(ls_ptx_type reg) {
    static const int32_t bits[] = {1, 8, 16, 32, 64, 128};
    return bits[reg];
}

/* What a register holds where ways meet. */
static ls_status join(step *s, int32_t value, ls_error *err) {
    ls_work *w = s->w;
    const ls_flow_value *phi = &w->flow->values[value];
    const ls_flow_block *block = &w->flow->blocks[phi->block];
    const ls_ptx_type reg = w->f->registers[phi->reg].type;
    bool any = false, open = block->is_loop;
    ls_sum all = {.is_lost = true}, one;
    if (reg == LS_PTX_PRED || reg == LS_PTX_B128) return LS_OK;
    s->in = NULL;
    s->block = phi->block;
    s->t = (type){bits_of_type(reg), false, false};
    for (int32_t e = 0; e < block->n_from && !open; e++) {
        const int32_t from = w->flow->joined[phi->first_from + e];
        if (from >= 0 && w->flow->blocks[w->flow->edges[block->first_from + e]].order >= block->order) open = true;
        if (from < 0 || open) continue;
        ls_work_sum(w, &one, w->cells[from].sum);
        s->b_block = w->flow->edges[block->first_from + e];
        if (any)
            LS_TRY(either(s, &all, &one, err));
        else
            ls_sum_copy(&s->out, &one);
        s->a_block = any ? 0 : s->b_block;
        ls_sum_copy(&all, &s->out);
        any = true;
    }
    w->cells[value].through = 1;
    s->a_block = s->b_block = 0;
    if (open) {
        const ls_symbol symbol = {.kind = LS_SYMBOL_LOOP,
                                  .bits = (uint8_t)s->t.bits,
                                  .block = phi->block,
                                  .value = value,
                                  .parameter = -1,
                                  .turn = -1,
                                  .type = type_range(s->t.bits, s->t.bits == 64),
                                  .is_vague = true};
        int32_t id;
        LS_TRY(add_symbol(w, &symbol, &id, err));
        ls_sum_symbol(&all, id);
    }
    return ls_work_keep(w, &w->cells[value].sum, &all, err);
}

/* The joins of a block are no list of their own: they are found by their block. */
static ls_status join_all(step *s, int32_t *first, const int32_t *next, int32_t block, ls_error *err) {
    for (int32_t v = first[block]; v >= 0; v = next[v]) LS_TRY(join(s, v, err));
    return LS_OK;
}

static ls_status evaluate_block(step *s, int32_t block, ls_error *err) {
    ls_work *w = s->w;
    const ls_flow_block *k = &w->flow->blocks[block];
    for (int32_t i = k->first; i < k->first + k->n; i++) {
        s->in = &w->f->instructions[i];
        s->at = i;
        s->block = block;
        const int32_t results = ls_flow_defines(w->f, s->in);
        for (int32_t part = 0; part < results; part++)
            if (w->flow->writes[s->in->first + part] >= 0) LS_TRY(define(s, s->in->first + part, results, part, err));
    }
    return LS_OK;
}

static ls_status prepare(ls_work *w, ls_error *err) {
    w->n_terms = w->n_symbols = w->n_checks = w->n_facts = 0;
    LS_TRY(
        ls_array_grow((void **)&w->cells, &w->cap_cells, w->flow->n_values + 1, sizeof *w->cells, "definitions", err));
    for (int64_t i = 0; i < w->flow->n_values; i++) w->cells[i] = (ls_cell){{0, -1}, -1, -1, 0};
    for (int k = 0; k < 4; k++)
        for (int axis = 0; axis < 3; axis++) w->axis[k][axis] = -1;
    for (int axis = 0; axis < 3; axis++) {
        ls_declared found;
        w->threads[axis] = ls_range_of(1, 2147483648LL);
        LS_TRY(ls_ranges_find(w->ranges, &found, w->f->name.text, w->f->name.bytes, LS_SUBJECT_THREADS, axis, 0, NULL,
                              0, err));
        if (found.has_range) w->threads[axis] = found.range;
    }
    return LS_OK;
}

ls_status ls_work_evaluate(ls_work *w, ls_error *err) {
    ls_status status = LS_OK;
    step *s = NULL;
    int32_t *first = NULL, *next = NULL;
    LS_TRY_DONE(prepare(w, err));
    LS_TRY_DONE(ls_array_alloc((void **)&s, 1, sizeof *s, "step", err));
    LS_TRY_DONE(ls_array_alloc((void **)&first, w->flow->n_blocks, sizeof *first, "joins of blocks", err));
    LS_TRY_DONE(ls_array_alloc((void **)&next, w->flow->n_values, sizeof *next, "joins of blocks", err));
    s->w = w;
    for (int64_t i = 0; i < w->flow->n_blocks; i++) first[i] = -1;
    for (int32_t v = 0; v < w->flow->n_values; v++) {
        if (w->flow->values[v].kind != LS_FLOW_PHI) continue;
        next[v] = first[w->flow->values[v].block];
        first[w->flow->values[v].block] = v;
    }
    for (int64_t i = 0; i < w->flow->n_order; i++) {
        LS_TRY_DONE(join_all(s, first, next, w->flow->order[i], err));
        LS_TRY_DONE(evaluate_block(s, w->flow->order[i], err));
    }
done:
    free(s), free(first), free(next);
    return status;
}
