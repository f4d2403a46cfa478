/* Values that come from outside the arithmetic: special registers, variables, parameters, what is read from memory. */
#include <string.h>

#include "audit/step.h"

static ls_status special(ls_step *s, ls_ptx_name name, ls_sum *out, ls_error *err) {
    static const struct {
        const char *name;
        ls_symbol_kind kind;
        ls_range_subject subject;
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
        if (!ls_ptx_begins(name, known[k].name)) continue;
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
            ls_step_declare(w, &symbol, known[k].subject, axis);
            LS_TRY(ls_step_add_symbol(w, &symbol, &w->axis[k][axis], err));
        }
        ls_sum_symbol(out, w->axis[k][axis]);
        return LS_OK;
    }
    ls_symbol symbol = ls_step_symbol(s, LS_SYMBOL_RESULT, ls_step_plain_range(32));
    symbol.bits = 32;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (ls_ptx_begins(name, others[i].name)) symbol.type = ls_range_of(0, others[i].high);
    int32_t id;
    LS_TRY(ls_step_add_symbol(w, &symbol, &id, err));
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

static ls_status variable(ls_step *s, const ls_ptx_operand *o, ls_sum *out, ls_error *err) {
    ls_symbol symbol = ls_step_symbol(s, LS_SYMBOL_VARIABLE, ls_range_of(0, 232448));
    int32_t id;
    ls_term offset = {.factor = o->value};
    symbol.bits = 64;
    symbol.block = -1;
    symbol.parameter = parameter_index(s->w, o->name);
    LS_TRY(ls_step_add_symbol(s->w, &symbol, &id, err));
    ls_sum_symbol(out, id);
    ls_sum_add_term(out, &offset, 1);
    return LS_OK;
}

ls_status ls_step_read_operand(ls_step *s, int32_t index, int32_t bits, ls_sum *out, int32_t *value, ls_error *err) {
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
ls_status ls_step_read_operands(ls_step *s, int32_t results, ls_error *err) {
    const int32_t first = s->in->first + results, n = s->in->n - results;
    s->a.is_lost = s->b.is_lost = s->c.is_lost = true;
    s->a.n = s->b.n = s->c.n = 0;
    s->a_value = s->b_value = s->c_value = -1;
    if (n > 0) LS_TRY(ls_step_read_operand(s, first, s->t.bits, &s->a, &s->a_value, err));
    if (n > 1) LS_TRY(ls_step_read_operand(s, first + 1, s->t.bits, &s->b, &s->b_value, err));
    if (n > 2) LS_TRY(ls_step_read_operand(s, first + 2, s->t.bits, &s->c, &s->c_value, err));
    return LS_OK;
}

/* A parameter whose address was taken: its number and the place in it; false where the address is not a plain one. */
static bool parameter_behind(const ls_step *s, const ls_ptx_operand *o, int32_t index, int32_t *parameter,
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

ls_status ls_step_parameter(ls_step *s, const ls_ptx_operand *o, int32_t index, int32_t part, ls_error *err) {
    ls_work *w = s->w;
    ls_symbol symbol = ls_step_symbol(s, LS_SYMBOL_PARAMETER, ls_step_plain_range(s->t.bits == 0 ? 32 : s->t.bits));
    int32_t id;
    symbol.block = -1;
    symbol.offset = o->value;
    if (s->t.bits < 32) symbol.type = ls_step_type_range(s->t.bits, s->t.is_signed);
    if (o->reg < 0)
        symbol.parameter = parameter_index(w, o->name), symbol.is_vague = symbol.parameter < 0; /* a call's result */
    else
        symbol.is_vague = !parameter_behind(s, o, index, &symbol.parameter, &symbol.offset);
    symbol.offset += part * (s->t.bits / 8); /* of a vector */
    if (symbol.parameter < 0 || symbol.is_vague) ls_step_declare(w, &symbol, LS_SUBJECT_LOADED, -1);
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
        ls_step_declare(w, &symbol, LS_SUBJECT_PARAMETER, symbol.parameter);
    }
    LS_TRY(ls_step_add_symbol(w, &symbol, &id, err));
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

ls_status ls_step_load(ls_step *s, const ls_ptx_operand *o, int32_t index, int32_t part, ls_error *err) {
    int32_t of_parameter;
    int64_t at;
    if (o->kind == LS_PTX_ADDRESS && o->reg >= 0 && parameter_behind(s, o, index, &of_parameter, &at))
        return ls_step_parameter(s, o, index, part, err); /* by a generic address */
    ls_symbol symbol = ls_step_symbol(s, LS_SYMBOL_LOADED, ls_step_plain_range(s->t.bits));
    int32_t id;
    if (s->t.bits < 32) symbol.type = ls_step_type_range(s->t.bits, s->t.is_signed);
    if (o->kind == LS_PTX_ADDRESS && o->reg >= 0 && s->w->flow->reads[index] >= 0) {
        ls_sum address;
        ls_work_sum(s->w, &address, s->w->cells[s->w->flow->reads[index]].sum);
        const ls_symbol *base = base_of(s->w, &address, 0);
        if (base != NULL) {
            symbol.parameter = base->parameter;
            symbol.offset = base->offset;
        }
    }
    ls_step_declare(s->w, &symbol, LS_SUBJECT_LOADED, symbol.parameter);
    LS_TRY(ls_step_add_symbol(s->w, &symbol, &id, err));
    ls_sum_symbol(&s->out, id);
    return LS_OK;
}
