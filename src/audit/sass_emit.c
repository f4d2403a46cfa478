/* Writing of the function that is analysed: registers, instructions, the operands of the machine ready to be read. */
#include "audit/sass_emit.h"

#include <string.h>

#include "audit/sass_text.h"
#include "base/mem.h"

typedef ls_sass_lowering lowering;
typedef ls_ptx_operand operand;
typedef ls_sass_sources sources;

ls_status ls_sass_new_register(lowering *l, ls_ptx_type type, int32_t *reg, ls_error *err) {
    ls_ptx_function *g = &l->out;
    LS_TRY(ls_array_grow((void **)&g->registers, &g->cap_registers, g->n_registers + 1, sizeof *g->registers,
                         "registers", err));
    *reg = (int32_t)g->n_registers;
    g->registers[g->n_registers++] = (ls_ptx_register){{"R", 1}, type};
    return LS_OK;
}

/* Writes an instruction in the name of one of the machine's. */
ls_status ls_sass_emit(lowering *l, const ls_ptx_instruction *by, const char *op, const operand *operands, int32_t n,
                       ls_error *err) {
    ls_ptx_function *g = &l->out;
    const ls_ptx_instruction in = {.op = ls_sass_name_of(op),
                                   .guard = -1,
                                   .first = (int32_t)g->n_operands,
                                   .n = n,
                                   .line = by->line,
                                   .shown = by->shown.text != NULL ? by->shown : by->op};
    LS_TRY(ls_array_grow((void **)&g->operands, &g->cap_operands, g->n_operands + n, sizeof *g->operands, "operands",
                         err));
    memcpy(g->operands + g->n_operands, operands, sizeof *operands * (size_t)n);
    g->n_operands += n;
    if (g->n_instructions == INT32_MAX / 2) return LS_FAIL(err, LS_ERR_FORMAT, "%s: a function is too long", l->name);
    LS_TRY(ls_array_grow((void **)&g->instructions, &g->cap_instructions, g->n_instructions + 1,
                         sizeof *g->instructions, "instructions", err));
    g->instructions[g->n_instructions++] = in;
    return LS_OK;
}

/* The same into a new register. */
ls_status ls_sass_emit_new(lowering *l, const ls_ptx_instruction *by, const char *op, ls_ptx_type type, operand *out,
                           const operand *from, int32_t n, ls_error *err) {
    operand all[6];
    int32_t reg;
    LS_TRY(ls_sass_new_register(l, type, &reg, err));
    all[0] = *out = ls_sass_register_of(reg);
    for (int32_t i = 0; i < n; i++) all[i + 1] = from[i];
    return ls_sass_emit(l, by, op, all, n + 1, err);
}

/* An offset of bank 0 as what the launch gives there. */
ls_status ls_sass_emit_bank(lowering *l, const ls_ptx_instruction *by, int64_t place, int32_t bits, operand *out,
                            ls_error *err) {
    static const char *const axes[] = {"%ntid.x", "%ntid.y", "%ntid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z"};
    const ls_sass_bank *bank = &l->from->bank;
    const int64_t offset = place & 0xFFFFFFFF;
    const ls_ptx_type type = bits == 64 ? LS_PTX_B64 : LS_PTX_B32;
    operand from;
    for (int i = 0; i < 6 && place >> 32 == 0 && bits == 32; i++) {
        from = ls_sass_symbol_of(axes[i]);
        if (offset == (i < 3 ? bank->blocks : bank->grids) + 4 * (i % 3))
            return ls_sass_emit_new(l, by, "mov.u32", type, out, &from, 1, err);
    }
    const char *op = bits == 64   ? "ld.param.u64"
                     : bits == 16 ? "ld.param.u16"
                     : bits == 8  ? "ld.param.u8"
                                  : "ld.param.u32";
    from = (operand){.kind = LS_PTX_ADDRESS, .reg = -1};
    for (int64_t i = 0; i < l->f->n_parameters && place >> 32 == 0; i++) {
        const int64_t inside = offset - bank->parameters - l->from->offsets[i];
        if (inside < 0 || inside >= l->f->parameters[i].bytes) continue;
        from.name = l->f->parameters[i].name;
        from.value = inside;
        return ls_sass_emit_new(l, by, op, type, out, &from, 1, err);
    }
    from = ls_sass_symbol_of("%envreg"); /* a constant of the compiler or the machine */
    if (bits == 64) return ls_sass_emit_new(l, by, "cvt.u64.f64", type, out, &from, 1, err);
    return ls_sass_emit_new(l, by, "mov.u32", type, out, &from, 1, err);
}

/* A source of 32 bits, ready to be read. */
ls_status ls_sass_take_source(lowering *l, const ls_ptx_instruction *by, int32_t at, operand *out, ls_error *err) {
    const operand *o = &l->f->operands[at];
    *out = *o;
    out->is_tail = out->is_minus = out->is_not = out->is_wide = false;
    out->scale = 0;
    if (o->kind == LS_PTX_INT) {
        *out = ls_sass_number_of((int32_t)(uint32_t)(uint64_t)o->value);
        if (o->is_minus || o->is_not) out->value = o->is_not ? ~out->value : -out->value;
        return LS_OK;
    }
    if (o->kind == LS_PTX_BANK) {
        operand read;
        if (o->reg >= 0) return ls_sass_emit_new(l, by, "unknown.b32", LS_PTX_B32, out, NULL, 0, err);
        LS_TRY(ls_sass_emit_bank(l, by, o->value, 32, &read, err));
        *out = read;
    }
    if (out->kind == LS_PTX_REG && (o->is_minus || o->is_not)) {
        const operand before = *out;
        return ls_sass_emit_new(l, by, o->is_not ? "not.b32" : "neg.s32", LS_PTX_B32, out, &before, 1, err);
    }
    return LS_OK;
}

sources ls_sass_sources_of(const lowering *l, const ls_ptx_instruction *in) {
    int32_t results = 0;
    const operand *o = &l->f->operands[in->first];
    if (in->n > 0 && (o->kind == LS_PTX_REG || o->kind == LS_PTX_SINK)) {
        results = 1;
        while (results < in->n && o[results].is_tail) results++;
    }
    return (sources){in->first + results, in->n - results, results};
}

ls_status ls_sass_take_sources(lowering *l, const ls_ptx_instruction *in, operand *out, int32_t n, ls_error *err) {
    const sources s = ls_sass_sources_of(l, in);
    for (int32_t i = 0; i < n; i++) {
        out[i] = (operand){.kind = LS_PTX_FLOAT, .reg = -1};
        if (i < s.n) LS_TRY(ls_sass_take_source(l, in, s.first + i, &out[i], err));
    }
    return LS_OK;
}

operand ls_sass_pair_register(const lowering *l, int32_t pair) {
    if (pair < 0) return (operand){.kind = LS_PTX_FLOAT, .reg = -1};
    return ls_sass_register_of(l->pairs[pair].reg);
}

ls_status ls_sass_take_address(lowering *l, const ls_ptx_instruction *in, int32_t at, operand *out, bool *known,
                               ls_error *err) {
    const operand *o = &l->f->operands[at];
    const operand *uniform = at + 2 < in->first + in->n && o[2].is_tail && o[2].kind == LS_PTX_REG ? &o[2] : NULL;
    *out = (operand){.kind = LS_PTX_ADDRESS, .reg = -1, .value = o->value};
    *known = o->reg != LS_SASS_UNSEEN;
    if (!*known || o->reg < 0) return LS_OK;
    if (o->is_wide || o->is_not) {
        const ls_register_half high =
            o->is_wide ? ls_sass_half_of(l, at + 1) : (ls_register_half){LS_REGISTER_HALF_NUMBER, 0};
        const int32_t pair = ls_sass_pair_of(l, ls_sass_half_of(l, at), high);
        out->reg = pair < 0 ? -1 : l->pairs[pair].reg;
        *known = pair >= 0 && (uniform == NULL || uniform->is_wide);
        if (!*known || uniform == NULL) return LS_OK;
        const int32_t base = ls_sass_pair_of(l, ls_sass_half_of(l, at + 2), ls_sass_half_of(l, at + 3));
        const operand both[] = {ls_sass_register_of(out->reg), ls_sass_pair_register(l, base)};
        operand sum;
        *known = base >= 0;
        if (!*known) return LS_OK;
        LS_TRY(ls_sass_emit_new(l, in, "add.s64", LS_PTX_B64, &sum, both, 2, err));
        out->reg = sum.reg;
        return LS_OK;
    }
    operand sum = ls_sass_register_of(o->reg);
    if (o->scale > 1) {
        const operand by[] = {sum, ls_sass_number_of(o->scale)};
        LS_TRY(ls_sass_emit_new(l, in, "mul.lo.s32", LS_PTX_B32, &sum, by, 2, err));
    }
    if (uniform != NULL) {
        const operand both[] = {sum, ls_sass_register_of(uniform->reg)};
        LS_TRY(ls_sass_emit_new(l, in, "add.s32", LS_PTX_B32, &sum, both, 2, err));
    }
    out->reg = sum.reg;
    return LS_OK;
}

/* Predicates behind the register of a result say nothing; neither do halves above another. */
ls_status ls_sass_forget(lowering *l, const ls_ptx_instruction *in, int32_t from, const char *op, ls_error *err) {
    const sources s = ls_sass_sources_of(l, in);
    for (int32_t i = from; i < s.n_results; i++) {
        operand o = l->f->operands[in->first + i];
        if (o.kind != LS_PTX_REG) continue;
        o.is_tail = false;
        LS_TRY(ls_sass_emit(l, in, o.reg < LS_SASS_PREDICATE ? op : "carry", &o, 1, err));
    }
    return LS_OK;
}

/* op with the first sources into the first result; the other results are forgotten. */
ls_status ls_sass_simple(lowering *l, const ls_ptx_instruction *in, const char *op, int32_t n, ls_error *err) {
    operand all[6] = {l->f->operands[in->first]};
    if (all[0].kind == LS_PTX_REG) {
        LS_TRY(ls_sass_take_sources(l, in, all + 1, n, err));
        LS_TRY(ls_sass_emit(l, in, op, all, n + 1, err));
    }
    return ls_sass_forget(l, in, 1, "addc.u32", err);
}
