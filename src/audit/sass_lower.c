/* Writes the function that is analysed: one instruction of the machine after the other, and the pairs where they come
 * into being. */
#include "audit/sass_lower.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "audit/sass_text.h"
#include "base/mem.h"

enum { DEPTH_MAX = 400 };

typedef ls_sass_lowering lowering;
typedef ls_ptx_operand operand;

static ls_ptx_name name_of(const char *text) { return (ls_ptx_name){text, (int32_t)strlen(text)}; }
static operand register_of(int32_t reg) { return (operand){.kind = LS_PTX_REG, .reg = reg}; }
static operand number_of(int64_t value) { return (operand){.kind = LS_PTX_INT, .reg = -1, .value = value}; }
static operand symbol_of(const char *text) {
    return (operand){.kind = LS_PTX_SYMBOL, .reg = -1, .name = name_of(text)};
}

/* Writing --------------------------------------------------------------------------------------------------------- */

static ls_status new_register(lowering *l, ls_ptx_type type, int32_t *reg, ls_error *err) {
    ls_ptx_function *g = &l->out;
    LS_TRY(ls_array_grow((void **)&g->registers, &g->cap_registers, g->n_registers + 1, sizeof *g->registers,
                         "registers", err));
    *reg = (int32_t)g->n_registers;
    g->registers[g->n_registers++] = (ls_ptx_register){{"R", 1}, type};
    return LS_OK;
}

/* Writes an instruction in the name of one of the machine's. */
static ls_status emit(lowering *l, const ls_ptx_instruction *by, const char *op, const operand *operands, int32_t n,
                      ls_error *err) {
    ls_ptx_function *g = &l->out;
    const ls_ptx_instruction in = {.op = name_of(op),
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
static ls_status emit_new(lowering *l, const ls_ptx_instruction *by, const char *op, ls_ptx_type type, operand *out,
                          const operand *sources, int32_t n, ls_error *err) {
    operand all[6];
    int32_t reg;
    LS_TRY(new_register(l, type, &reg, err));
    all[0] = *out = register_of(reg);
    for (int32_t i = 0; i < n; i++) all[i + 1] = sources[i];
    return emit(l, by, op, all, n + 1, err);
}

/* The last instruction takes the guard of the machine's. */
static void guard_last(lowering *l, const ls_ptx_instruction *by, int64_t from) {
    for (int64_t i = from; i < l->out.n_instructions; i++) {
        l->out.instructions[i].guard = by->guard;
        l->out.instructions[i].guard_not = by->guard_not;
    }
}

/* Operands -------------------------------------------------------------------------------------------------------- */

/* An offset of bank 0 as what the launch gives there. */
static ls_status emit_bank(lowering *l, const ls_ptx_instruction *by, int64_t place, int32_t bits, operand *out,
                           ls_error *err) {
    static const char *const axes[] = {"%ntid.x", "%ntid.y", "%ntid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z"};
    const ls_sass_bank *bank = &l->from->bank;
    const int64_t offset = place & 0xFFFFFFFF;
    const ls_ptx_type type = bits == 64 ? LS_PTX_B64 : LS_PTX_B32;
    operand from;
    for (int i = 0; i < 6 && place >> 32 == 0 && bits == 32; i++) {
        from = symbol_of(axes[i]);
        if (offset == (i < 3 ? bank->blocks : bank->grids) + 4 * (i % 3))
            return emit_new(l, by, "mov.u32", type, out, &from, 1, err);
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
        return emit_new(l, by, op, type, out, &from, 1, err);
    }
    from = symbol_of("%envreg"); /* a constant of the compiler or the machine */
    if (bits == 64) return emit_new(l, by, "cvt.u64.f64", type, out, &from, 1, err);
    return emit_new(l, by, "mov.u32", type, out, &from, 1, err);
}

/* A source of 32 bits, ready to be read. */
static ls_status take_source(lowering *l, const ls_ptx_instruction *by, int32_t at, operand *out, ls_error *err) {
    const operand *o = &l->f->operands[at];
    *out = *o;
    out->is_tail = out->is_minus = out->is_not = out->is_wide = false;
    out->scale = 0;
    if (o->kind == LS_PTX_INT) {
        *out = number_of((int32_t)(uint32_t)(uint64_t)o->value);
        if (o->is_minus || o->is_not) out->value = o->is_not ? ~out->value : -out->value;
        return LS_OK;
    }
    if (o->kind == LS_PTX_BANK) {
        operand read;
        if (o->reg >= 0) return emit_new(l, by, "unknown.b32", LS_PTX_B32, out, NULL, 0, err);
        LS_TRY(emit_bank(l, by, o->value, 32, &read, err));
        *out = read;
    }
    if (out->kind == LS_PTX_REG && (o->is_minus || o->is_not)) {
        const operand before = *out;
        return emit_new(l, by, o->is_not ? "not.b32" : "neg.s32", LS_PTX_B32, out, &before, 1, err);
    }
    return LS_OK;
}

typedef struct sources {
    int32_t first, n;  /* in the machine's operands */
    int32_t n_results; /* in front of them */
} sources;

static sources sources_of(const lowering *l, const ls_ptx_instruction *in) {
    int32_t results = 0;
    const operand *o = &l->f->operands[in->first];
    if (in->n > 0 && (o->kind == LS_PTX_REG || o->kind == LS_PTX_SINK)) {
        results = 1;
        while (results < in->n && o[results].is_tail) results++;
    }
    return (sources){in->first + results, in->n - results, results};
}

static ls_status take_sources(lowering *l, const ls_ptx_instruction *in, operand *out, int32_t n, ls_error *err) {
    const sources s = sources_of(l, in);
    for (int32_t i = 0; i < n; i++) {
        out[i] = (operand){.kind = LS_PTX_FLOAT, .reg = -1};
        if (i < s.n) LS_TRY(take_source(l, in, s.first + i, &out[i], err));
    }
    return LS_OK;
}

/* Pairs ----------------------------------------------------------------------------------------------------------- */

static ls_status snapshot(lowering *l, const ls_ptx_instruction *by, ls_half h, operand *out, ls_error *err) {
    if (h.kind == LS_HALF_NUMBER) return *out = number_of(h.value), LS_OK;
    if (h.kind == LS_HALF_BANK) return emit_bank(l, by, h.value, 32, out, err);
    *out = register_of(h.kind == LS_HALF_VALUE ? l->snapshots[h.value] : -1);
    if (out->reg < 0) *out = (operand){.kind = LS_PTX_FLOAT, .reg = -1};
    return LS_OK;
}

static operand pair_register(const lowering *l, int32_t pair) {
    if (pair < 0) return (operand){.kind = LS_PTX_FLOAT, .reg = -1};
    return register_of(l->pairs[pair].reg);
}

static ls_status emit_sum(lowering *l, const ls_pair *p, const ls_ptx_instruction *by, ls_error *err) {
    operand sum = number_of(0);
    for (int32_t i = 0; i < p->n; i++) {
        const ls_pair_part part = l->parts[p->first + i];
        const operand all[] = {pair_register(l, part.pair), number_of(part.factor), sum};
        LS_TRY(emit_new(l, by, "mad.lo.s64", LS_PTX_B64, &sum, all, 3, err));
    }
    const operand last[] = {register_of(p->reg), sum};
    return emit(l, by, "mov.b64", last, 2, err);
}

static ls_status emit_wide(lowering *l, const ls_pair *p, const ls_ptx_instruction *in, ls_error *err) {
    operand s[3];
    LS_TRY(take_sources(l, in, s, 2, err));
    s[2] = pair_register(l, l->parts[p->first].pair);
    const operand all[] = {register_of(p->reg), s[0], s[1], s[2]};
    return emit(l, in, p->is_signed ? "mad.wide.s32" : "mad.wide.u32", all, 4, err);
}

/* An access' address: *out is [register + number]; false in *known where its form is not understood. */
static ls_status take_address(lowering *l, const ls_ptx_instruction *in, int32_t at, operand *out, bool *known,
                              ls_error *err);

static ls_status emit_loaded(lowering *l, const ls_pair *p, const ls_ptx_instruction *in, ls_error *err) {
    const sources s = sources_of(l, in);
    operand all[2] = {register_of(p->reg)};
    bool known = false;
    ls_sass_enter(l, p->at);
    for (int32_t o = s.first; o < s.first + s.n && !known; o++)
        if (l->f->operands[o].kind == LS_PTX_ADDRESS) LS_TRY(take_address(l, in, o, &all[1], &known, err));
    if (!known) return emit(l, in, "cvt.u64.f64", all, 1, err);
    all[1].value += 4 * p->number;
    return emit(l, in, "ldw.global.u64", all, 2, err);
}

static ls_status emit_by_rule(lowering *l, const ls_pair *p, ls_error *err) {
    const ls_ptx_instruction *by = &l->f->instructions[p->by], *at = &l->f->instructions[p->at];
    operand all[4] = {register_of(p->reg)};
    const ls_pair_part *parts = p->n > 0 ? l->parts + p->first : NULL;
    switch ((ls_pair_rule)p->rule) {
        case LS_PAIR_NUMBER: return all[1] = number_of(p->number), emit(l, by, "mov.b64", all, 2, err);
        case LS_PAIR_BANK:
            LS_TRY(emit_bank(l, by, p->low.value, 64, &all[1], err));
            return emit(l, by, "mov.b64", all, 2, err);
        case LS_PAIR_ZERO:
        case LS_PAIR_SIGN:
            LS_TRY(snapshot(l, by, p->low, &all[1], err));
            return emit(l, by, p->rule == LS_PAIR_ZERO ? "cvt.u64.u32" : "cvt.s64.s32", all, 2, err);
        case LS_PAIR_WIDE: return emit_wide(l, p, at, err);
        case LS_PAIR_LOAD: return emit_loaded(l, p, at, err);
        case LS_PAIR_GIVEN: return all[1] = number_of(0), emit(l, at, "cvt.u64.f64", all, 2, err);
        case LS_PAIR_SUM: return emit_sum(l, p, at, err);
        case LS_PAIR_PRODUCT:
            for (int i = 0; i < 3; i++) all[1 + i] = pair_register(l, parts[i].pair);
            return emit(l, at, "mad.lo.s64", all, 4, err);
        case LS_PAIR_JOIN: return all[1] = register_of(p->inner), emit(l, at, "mov.b64", all, 2, err);
        case LS_PAIR_EITHER:
            for (int i = 0; i < 2; i++) all[1 + i] = pair_register(l, parts[i].pair);
            all[3] = register_of(LS_SASS_UNSEEN);
            return emit(l, at, "selp.b64", all, 4, err);
        case LS_PAIR_RIGHT:
            all[1] = pair_register(l, parts[0].pair);
            all[2] = number_of(p->number);
            return emit(l, at, p->is_signed ? "shr.s64" : "shr.u64", all, 3, err);
        case LS_PAIR_AND:
            all[1] = pair_register(l, parts[0].pair);
            all[2] = number_of(p->number);
            return emit(l, at, "and.b64", all, 3, err);
        case LS_PAIR_PARTS: break;
    }
    return emit(l, by, "unknown.b64.pair", all, 1, err);
}

/* Pairs that are set at one place may be made of each other: parts come first. */
static ls_status emit_pair(lowering *l, int32_t id, int32_t depth, ls_error *err) {
    ls_pair *p = &l->pairs[id];
    if (p->is_emitted || p->is_emitting) return LS_OK;
    if (depth == DEPTH_MAX) return LS_FAIL(err, LS_ERR_FORMAT, "%s: sums of pairs are too deep", l->name);
    p->is_emitting = true;
    for (int32_t i = 0; i < p->n && p->rule != LS_PAIR_JOIN; i++) {
        const int32_t part = l->parts[p->first + i].pair;
        if (part < 0) continue;
        const ls_pair *other = &l->pairs[part];
        if (other->block == p->block && other->behind == p->behind) LS_TRY(emit_pair(l, part, depth + 1, err));
    }
    LS_TRY(emit_by_rule(l, p, err));
    l->pairs[id].is_emitted = true;
    return LS_OK;
}

static ls_status emit_chain(lowering *l, int32_t first, bool in_front, ls_error *err) {
    for (int32_t i = first; i >= 0; i = l->pairs[i].chained) {
        const bool reads = l->pairs[i].rule == LS_PAIR_WIDE || l->pairs[i].rule == LS_PAIR_LOAD;
        if (reads == in_front || !in_front) LS_TRY(emit_pair(l, i, 0, err));
    }
    return LS_OK;
}

/* Accesses -------------------------------------------------------------------------------------------------------- */

static ls_status take_address(lowering *l, const ls_ptx_instruction *in, int32_t at, operand *out, bool *known,
                              ls_error *err) {
    const operand *o = &l->f->operands[at];
    const operand *uniform = at + 2 < in->first + in->n && o[2].is_tail && o[2].kind == LS_PTX_REG ? &o[2] : NULL;
    *out = (operand){.kind = LS_PTX_ADDRESS, .reg = -1, .value = o->value};
    *known = o->reg != LS_SASS_UNSEEN;
    if (!*known || o->reg < 0) return LS_OK;
    if (o->is_wide || o->is_not) {
        const ls_half high = o->is_wide ? ls_sass_half_of(l, at + 1) : (ls_half){LS_HALF_NUMBER, 0};
        const int32_t pair = ls_sass_pair_of(l, ls_sass_half_of(l, at), high);
        out->reg = pair < 0 ? -1 : l->pairs[pair].reg;
        *known = pair >= 0 && (uniform == NULL || uniform->is_wide);
        if (!*known || uniform == NULL) return LS_OK;
        const int32_t base = ls_sass_pair_of(l, ls_sass_half_of(l, at + 2), ls_sass_half_of(l, at + 3));
        const operand both[] = {register_of(out->reg), pair_register(l, base)};
        operand sum;
        *known = base >= 0;
        if (!*known) return LS_OK;
        LS_TRY(emit_new(l, in, "add.s64", LS_PTX_B64, &sum, both, 2, err));
        out->reg = sum.reg;
        return LS_OK;
    }
    operand sum = register_of(o->reg);
    if (o->scale > 1) {
        const operand by[] = {sum, number_of(o->scale)};
        LS_TRY(emit_new(l, in, "mul.lo.s32", LS_PTX_B32, &sum, by, 2, err));
    }
    if (uniform != NULL) {
        const operand both[] = {sum, register_of(uniform->reg)};
        LS_TRY(emit_new(l, in, "add.s32", LS_PTX_B32, &sum, both, 2, err));
    }
    out->reg = sum.reg;
    return LS_OK;
}

static const char *load_name(ls_ptx_name op, bool shared, int32_t width) {
    static const char *const sizes[] = {".U8", ".S8", ".U16", ".S16"};
    static const char *const global[] = {"ld.global.u8", "ld.global.s8", "ld.global.u16", "ld.global.s16"};
    static const char *const inner[] = {"ld.shared.u8", "ld.shared.s8", "ld.shared.u16", "ld.shared.s16"};
    for (int i = 0; i < 4 && width == 1; i++)
        if (ls_sass_has(op, sizes[i])) return shared ? inner[i] : global[i];
    if (width > 1) return shared ? "ld.shared.v2.u32" : "ld.global.v2.u32";
    return shared ? "ld.shared.u32" : "ld.global.u32";
}

static bool is_shared(ls_ptx_name op) {
    return ls_sass_begins(op, "LDS") || ls_sass_begins(op, "STS") || ls_sass_begins(op, "ATOMS") ||
           ls_sass_begins(op, "SYNCS") || ls_sass_begins(op, "REDS");
}

/* An access, its registers first where it reads. Every address of the instruction is one access. */
static ls_status lower_access(lowering *l, const ls_ptx_instruction *in, ls_error *err) {
    const sources s = sources_of(l, in);
    const bool loads = ls_sass_begins(in->op, "LD") && !ls_sass_begins(in->op, "LDGSTS");
    const bool copies = ls_sass_begins(in->op, "LDGSTS");
    operand all[16];
    int32_t n_registers = 0, n = 0, n_addresses = 0;
    for (int32_t i = 0; i < s.n_results && i < 12; i++) {
        all[n] = l->f->operands[in->first + i];
        if (all[n].kind == LS_PTX_SINK || all[n].reg < LS_SASS_PREDICATE) n_registers++;
        if (n++ > 0) all[n - 1].is_tail = true;
    }
    for (int32_t o = s.first; o < s.first + s.n; o++) {
        if (l->f->operands[o].kind != LS_PTX_ADDRESS) continue;
        bool known;
        const bool shared = copies ? n_addresses == 0 : is_shared(in->op);
        LS_TRY(take_address(l, in, o, &all[n], &known, err));
        if (!known) {
            operand bad;
            LS_TRY(emit_new(l, in, "unknown.b64.pair", LS_PTX_B64, &bad, NULL, 0, err));
            all[n].reg = bad.reg;
        }
        if (n_addresses++ == 0 && loads)
            LS_TRY(emit(l, in, load_name(in->op, shared, n_registers), all, n + 1, err));
        else
            LS_TRY(emit(l, in, shared ? "st.shared.u32" : "st.global.u32", &all[n], 1, err));
    }
    if (loads && n_addresses > 0) return LS_OK;
    for (int32_t i = 0; i < n; i++) { /* what an atomic operation gives back */
        if (all[i].kind != LS_PTX_REG) continue;
        all[i].is_tail = false;
        const operand given[] = {all[i], number_of(0)};
        LS_TRY(emit(l, in, all[i].reg < LS_SASS_PREDICATE ? "given.b32" : "carry", given, 1, err));
    }
    return LS_OK;
}

/* Arithmetic ------------------------------------------------------------------------------------------------------ */

/* Predicates behind the register of a result say nothing; neither do halves above another. */
static ls_status forget(lowering *l, const ls_ptx_instruction *in, int32_t from, const char *op, ls_error *err) {
    const sources s = sources_of(l, in);
    for (int32_t i = from; i < s.n_results; i++) {
        operand o = l->f->operands[in->first + i];
        if (o.kind != LS_PTX_REG) continue;
        o.is_tail = false;
        LS_TRY(emit(l, in, o.reg < LS_SASS_PREDICATE ? op : "carry", &o, 1, err));
    }
    return LS_OK;
}

/* op with the first sources into the first result; the other results are forgotten. */
static ls_status simple(lowering *l, const ls_ptx_instruction *in, const char *op, int32_t n, ls_error *err) {
    operand all[6] = {l->f->operands[in->first]};
    if (all[0].kind == LS_PTX_REG) {
        LS_TRY(take_sources(l, in, all + 1, n, err));
        LS_TRY(emit(l, in, op, all, n + 1, err));
    }
    return forget(l, in, 1, "addc.u32", err);
}

static ls_status lower_add(lowering *l, const ls_ptx_instruction *in, int32_t n, ls_error *err) {
    operand s[3], sum;
    const operand out = l->f->operands[in->first];
    if (out.kind != LS_PTX_REG) return forget(l, in, 1, "addc.u32", err);
    LS_TRY(take_sources(l, in, s, n, err));
    if (n == 3 && !(s[2].kind == LS_PTX_INT && s[2].value == 0)) {
        LS_TRY(emit_new(l, in, "add.s32", LS_PTX_B32, &sum, s, 2, err));
        s[0] = sum, s[1] = s[2];
    }
    const operand all[] = {out, s[0], s[1]};
    LS_TRY(emit(l, in, "add.s32", all, 3, err));
    return forget(l, in, 1, "addc.u32", err);
}

static ls_status lower_multiply(lowering *l, const ls_ptx_instruction *in, ls_error *err) {
    const sources s = sources_of(l, in);
    const operand *o = &l->f->operands[s.first];
    if (ls_sass_has(in->op, ".X")) return forget(l, in, 0, "addc.u32", err);
    if (ls_sass_has(in->op, ".HI")) {
        if (s.n < 3 || o[2].kind != LS_PTX_INT || o[2].value != 0) return forget(l, in, 0, "addc.u32", err);
        return simple(l, in, ls_sass_has(in->op, ".U32") ? "mul.hi.u32" : "mul.hi.s32", 2, err);
    }
    if (s.n >= 3 && ((o[0].kind == LS_PTX_INT && o[0].value == 0) || (o[1].kind == LS_PTX_INT && o[1].value == 0))) {
        operand all[] = {l->f->operands[in->first], {0}};
        if (all[0].kind != LS_PTX_REG) return LS_OK;
        LS_TRY(take_source(l, in, s.first + 2, &all[1], err));
        LS_TRY(emit(l, in, "mov.b32", all, 2, err));
        return forget(l, in, 1, "addc.u32", err);
    }
    return simple(l, in, "mad.lo.s32", 3, err);
}

/* The wide product's registers, from the pair where somebody takes it as one. */
static ls_status lower_wide(lowering *l, const ls_ptx_instruction *in, int32_t at, ls_error *err) {
    for (int32_t i = l->behind[at]; i >= 0; i = l->pairs[i].chained) {
        if (l->pairs[i].rule != LS_PAIR_WIDE || !l->pairs[i].is_emitted) continue;
        const operand all[] = {l->f->operands[in->first], l->f->operands[in->first + 1], register_of(l->pairs[i].reg)};
        LS_TRY(emit(l, in, "mov.b64", all, 3, err));
        return forget(l, in, 2, "addc.u32", err);
    }
    if (ls_sass_has(in->op, ".X")) return forget(l, in, 0, "addc.u32", err);
    return simple(l, in, "mad.lo.s32", 3, err);
}

static ls_status lower_lea(lowering *l, const ls_ptx_instruction *in, ls_error *err) {
    const sources s = sources_of(l, in);
    const bool high = ls_sass_has(in->op, ".HI"), sign = ls_sass_has(in->op, ".SX32");
    const int32_t last = high && !sign ? 3 : 2;
    const operand *by = &l->f->operands[s.first + last];
    operand a[2], b, shifted;
    const operand out = l->f->operands[in->first];
    const bool known = s.n > last && by->kind == LS_PTX_INT && by->value >= 0 && by->value < 32 &&
                       !ls_sass_has(in->op, ".X") && out.kind == LS_PTX_REG;
    if (!known || (high && !sign && (l->f->operands[s.first + 2].kind != LS_PTX_INT || by->value == 0)))
        return forget(l, in, 0, "addc.u32", err);
    LS_TRY(take_source(l, in, s.first, &a[0], err));
    LS_TRY(take_source(l, in, s.first + 1, &b, err));
    a[1] = number_of(high ? 32 - by->value : by->value);
    LS_TRY(emit_new(l, in, sign ? "shr.s32" : high ? "shr.u32" : "shl.b32", LS_PTX_B32, &shifted, a, 2, err));
    const operand all[] = {out, shifted, b};
    LS_TRY(emit(l, in, "add.s32", all, 3, err));
    return forget(l, in, 1, "addc.u32", err);
}

static ls_status lower_shift(lowering *l, const ls_ptx_instruction *in, ls_error *err) {
    const sources s = sources_of(l, in);
    const operand out = l->f->operands[in->first];
    const operand *o = &l->f->operands[s.first];
    const bool left = ls_sass_has(in->op, ".L"), high = ls_sass_has(in->op, ".HI"), wide = ls_sass_has(in->op, "64");
    const int32_t what = left ? 0 : 2, nothing = left ? 2 : 0;
    const bool plain = s.n >= 3 && out.kind == LS_PTX_REG && !wide && high != left && o[nothing].kind == LS_PTX_INT &&
                       o[nothing].value == 0;
    if (!plain) return forget(l, in, 0, "addc.u32", err);
    operand all[3] = {out};
    LS_TRY(take_source(l, in, s.first + what, &all[1], err));
    LS_TRY(take_source(l, in, s.first + 1, &all[2], err));
    return emit(l, in, left ? "shl.b32" : ls_sass_has(in->op, ".S32") ? "shr.s32" : "shr.u32", all, 3, err);
}

static ls_status lower_minimum(lowering *l, const ls_ptx_instruction *in, ls_error *err) {
    const sources s = sources_of(l, in);
    const operand *choice = &l->f->operands[s.first + 2];
    const bool is_unsigned = ls_sass_has(in->op, ".U32");
    if (s.n < 3 || choice->kind != LS_PTX_INT) return forget(l, in, 0, "unknown.b32", err);
    if (choice->value != 0) return simple(l, in, is_unsigned ? "min.u32" : "min.s32", 2, err);
    return simple(l, in, is_unsigned ? "max.u32" : "max.s32", 2, err);
}

static ls_status lower_select(lowering *l, const ls_ptx_instruction *in, ls_error *err) {
    const sources s = sources_of(l, in);
    operand all[4] = {l->f->operands[in->first]};
    if (s.n < 3 || all[0].kind != LS_PTX_REG) return forget(l, in, 0, "addc.u32", err);
    LS_TRY(take_sources(l, in, all + 1, 2, err));
    const operand choice = l->f->operands[s.first + 2];
    if (choice.kind == LS_PTX_INT) {
        if (choice.value == 0) all[1] = all[2];
        return emit(l, in, "mov.b32", all, 2, err);
    }
    all[3] = register_of(choice.reg);
    return emit(l, in, "selp.b32", all, 4, err);
}

/* Predicates ------------------------------------------------------------------------------------------------------ */

/* Names of comparisons: relation, with what it is joined, type. */
static const char *compare_name(ls_ptx_name op, const char *join, bool wide) {
    static const char *const relations[] = {".LT", ".LE", ".GT", ".GE", ".EQ", ".NE"};
#define NAMES(r, j) \
    { "setp." r j ".u32", "setp." r j ".s32", "setp." r j ".u64", "setp." r j ".s64" }
#define ALL(j) \
    { NAMES("lt", j), NAMES("le", j), NAMES("gt", j), NAMES("ge", j), NAMES("eq", j), NAMES("ne", j) }
    static const char *const names[4][6][4] = {ALL(""), ALL(".and"), ALL(".or"), ALL(".xor")};
#undef ALL
#undef NAMES
    const int how = join[0] == '\0' ? 0 : join[0] == 'A' ? 1 : join[0] == 'O' ? 2 : 3;
    for (int i = 0; i < 6; i++)
        if (ls_sass_has(op, relations[i])) return names[how][i][(ls_sass_has(op, ".U32") ? 0 : 1) + (wide ? 2 : 0)];
    return NULL;
}

/* What the comparison is joined with; "" where that changes nothing. */
static const char *join_of(ls_ptx_name op, const operand *with) {
    const bool both = ls_sass_has(op, ".AND"), some = ls_sass_has(op, ".OR");
    if (with->kind == LS_PTX_INT && ((both && with->value != 0) || (some && with->value == 0))) return "";
    if (with->kind != LS_PTX_REG) return NULL;
    return both ? "AND" : some ? "OR" : "XOR";
}

static ls_status lower_compare(lowering *l, const ls_ptx_instruction *in, int32_t at, ls_error *err) {
    const sources s = sources_of(l, in);
    const bool extended = ls_sass_has(in->op, ".EX");
    const int32_t lower = ls_sass_lower_compare(l, at);
    const operand out = l->f->operands[in->first];
    const char *join = s.n >= 3 ? join_of(in->op, &l->f->operands[s.first + 2]) : NULL;
    const char *op = join == NULL ? NULL : compare_name(in->op, join, extended);
    operand all[4] = {out};
    bool known = op != NULL && out.kind == LS_PTX_REG && (!extended || lower >= 0);
    if (!known) return forget(l, in, 0, "addc.u32", err);
    for (int32_t i = 0; i < 2; i++) {
        if (!extended) {
            LS_TRY(take_source(l, in, s.first + i, &all[1 + i], err));
            continue;
        }
        const int32_t low = sources_of(l, &l->f->instructions[lower]).first + i;
        const int32_t pair = ls_sass_pair_of(l, ls_sass_half_of(l, low), ls_sass_half_of(l, s.first + i));
        known = known && pair >= 0;
        all[1 + i] = pair_register(l, pair);
    }
    if (!known) return forget(l, in, 0, "addc.u32", err);
    all[3] = l->f->operands[s.first + 2];
    LS_TRY(emit(l, in, op, all, join[0] == '\0' ? 3 : 4, err));
    return forget(l, in, 1, "addc.u32", err);
}

/* Whether the table of three inputs is that of all (or any) of the literals. */
static bool is_table(int64_t table, const bool *negated, const bool *taken, bool all) {
    for (int i = 0; i < 8; i++) {
        bool value = all;
        for (int k = 0; k < 3; k++) {
            const bool input = ((i >> (2 - k)) & 1) != negated[k];
            if (taken[k]) value = all ? value && input : value || input;
        }
        if (value != ((table >> i & 1) != 0)) return false;
    }
    return true;
}

static ls_status lower_logic(lowering *l, const ls_ptx_instruction *in, ls_error *err) {
    const sources s = sources_of(l, in);
    const operand *o = &l->f->operands[s.first], out = l->f->operands[in->first];
    operand all[4] = {out};
    if (s.n < 4 || o[3].kind != LS_PTX_INT || out.kind != LS_PTX_REG) return forget(l, in, 0, "addc.u32", err);
    int64_t table = 0;
    for (int i = 0; i < 8; i++) { /* constants and negations go into the table */
        int at = 0;
        for (int k = 0; k < 3; k++) {
            const bool input = o[k].kind == LS_PTX_INT ? o[k].value != 0 : ((i >> (2 - k)) & 1) != (int)o[k].is_not;
            at = at * 2 + input;
        }
        table |= (o[3].value >> at & 1) << i;
    }
    for (int way = 1; way < 64; way++) {
        const bool taken[] = {way & 1, way & 2, way & 4}, negated[] = {way & 8, way & 16, way & 32};
        bool fits = true;
        int32_t n = 1;
        for (int k = 0; k < 3; k++) fits = fits && (!taken[k] ? !negated[k] : o[k].kind == LS_PTX_REG);
        const bool both = fits && is_table(table, negated, taken, true);
        if (!both && !(fits && is_table(table, negated, taken, false))) continue;
        for (int k = 0; k < 3; k++)
            if (taken[k]) all[n] = register_of(o[k].reg), all[n++].is_not = negated[k];
        if (n == 1) break;
        LS_TRY(emit(l, in, both ? "and.pred" : "or.pred", all, n, err));
        return forget(l, in, 1, "addc.u32", err);
    }
    return forget(l, in, 0, "addc.u32", err);
}

/* Others ---------------------------------------------------------------------------------------------------------- */

static ls_status lower_special(lowering *l, const ls_ptx_instruction *in, ls_error *err) {
    static const char *const known[][2] = {{"SR_TID.X", "%tid.x"},       {"SR_TID.Y", "%tid.y"},
                                           {"SR_TID.Z", "%tid.z"},       {"SR_CTAID.X", "%ctaid.x"},
                                           {"SR_CTAID.Y", "%ctaid.y"},   {"SR_CTAID.Z", "%ctaid.z"},
                                           {"SR_NTID.X", "%ntid.x"},     {"SR_NTID.Y", "%ntid.y"},
                                           {"SR_NTID.Z", "%ntid.z"},     {"SR_NCTAID.X", "%nctaid.x"},
                                           {"SR_NCTAID.Y", "%nctaid.y"}, {"SR_NCTAID.Z", "%nctaid.z"},
                                           {"SR_LANEID", "%laneid"},     {"SR_CgaCtaId", "%cluster_ctarank"}};
    const sources s = sources_of(l, in);
    operand all[] = {l->f->operands[in->first], symbol_of("%envreg")};
    if (all[0].kind != LS_PTX_REG) return LS_OK;
    for (size_t i = 0; i < sizeof known / sizeof known[0] && s.n > 0; i++)
        if (ls_ptx_is(l->f->operands[s.first].name, known[i][0])) all[1].name = name_of(known[i][1]);
    return emit(l, in, "mov.u32", all, 2, err);
}

static ls_status lower_clock(lowering *l, const ls_ptx_instruction *in, ls_error *err) {
    const sources s = sources_of(l, in);
    if (s.n < 1 || !ls_sass_has(l->f->operands[s.first].name, "SRZ")) return forget(l, in, 0, "given.b32", err);
    for (int32_t i = 0; i < s.n_results; i++) {
        operand all[] = {l->f->operands[in->first + i], number_of(0)};
        all[0].is_tail = false;
        if (all[0].kind == LS_PTX_REG) LS_TRY(emit(l, in, "mov.b32", all, 2, err));
    }
    return LS_OK;
}

static ls_status lower_constant(lowering *l, const ls_ptx_instruction *in, ls_error *err) {
    const sources s = sources_of(l, in);
    const int32_t bits = ls_sass_has(in->op, ".U8") || ls_sass_has(in->op, ".S8")     ? 8
                         : ls_sass_has(in->op, ".U16") || ls_sass_has(in->op, ".S16") ? 16
                                                                                      : 32;
    if (s.n < 1) return forget(l, in, 0, "unknown.b32", err);
    const operand from = l->f->operands[s.first];
    for (int32_t i = 0; i < s.n_results; i++) {
        operand all[2] = {l->f->operands[in->first + i]};
        all[0].is_tail = false;
        if (all[0].kind != LS_PTX_REG) continue;
        if (from.kind != LS_PTX_BANK || from.reg >= 0 || from.value >> 32 != 0) { /* a table: any value */
            all[1] = number_of(0);
            LS_TRY(emit(l, in, "given.b32", all, 1, err));
            continue;
        }
        LS_TRY(emit_bank(l, in, from.value + 4 * i, bits, &all[1], err));
        LS_TRY(emit(l, in, "mov.b32", all, 2, err));
    }
    return LS_OK;
}

static bool is_any(ls_ptx_name op, const char *const *names, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (ls_sass_is_op(op, names[i])) return true;
    return false;
}

/* Results that are whatever they are: of floats, of other threads, of local memory, of functions that are called. */
static ls_status lower_given(lowering *l, const ls_ptx_instruction *in, ls_error *err) {
    static const char *const given[] = {"F2I",   "F2IP", "I2F",  "I2FP",  "F2F",  "F2FP", "MUFU",        "FRND",
                                        "LDL",   "CALL", "VOTE", "MATCH", "P2R",  "LEPC", "GETLMEMBASE", "B2R",
                                        "TEX",   "TLD",  "SHFL", "REDUX", "TLD4", "SULD", "TXQ",         "S2UR",
                                        "ELECT", "BMSK", "SGXT", "FLO",   "BREV"};
    const char first = in->op.text[0], second = in->op.bytes > 1 ? in->op.text[1] : ' ';
    const bool is_float = ((first == 'F' || first == 'H' || first == 'D') && !ls_sass_is_op(in->op, "FLO")) ||
                          (first == 'U' && second == 'F' && !ls_sass_is_op(in->op, "FLO")) ||
                          ls_sass_has(in->op, "MMA");
    const bool any = is_float || is_any(in->op, given, sizeof given / sizeof given[0]);
    return forget(l, in, 0, any ? "given.b32" : "unknown.b32", err);
}

typedef enum way { WAY_SIMPLE, WAY_ADD } way;

static ls_status lower_plain(lowering *l, const ls_ptx_instruction *in, int32_t at, ls_error *err) {
    static const struct {
        const char *name, *op;
        int32_t n;
    } simple_ones[] = {{"MOV", "mov.b32", 1},   {"R2UR", "mov.b32", 1},  {"IABS", "abs.s32", 1},
                       {"POPC", "popc.b32", 1}, {"PRMT", "prmt.b32", 3}, {"LOP3", "lop3.b32", 4}};
    const ls_ptx_name op = in->op;
    for (size_t i = 0; i < sizeof simple_ones / sizeof simple_ones[0]; i++) {
        if (!ls_sass_is_op(op, simple_ones[i].name) && !ls_sass_begins(op, simple_ones[i].name)) continue;
        if (i == 5 && !ls_sass_has(op, ".LUT")) break;
        if (i == 4) { /* a, selector, b */
            operand all[4] = {l->f->operands[in->first]};
            if (all[0].kind != LS_PTX_REG) return LS_OK;
            LS_TRY(take_sources(l, in, all + 1, 3, err));
            const operand selector = all[2];
            all[2] = all[3], all[3] = selector;
            return emit(l, in, "prmt.b32", all, 4, err);
        }
        return simple(l, in, simple_ones[i].op, simple_ones[i].n, err);
    }
    if (ls_sass_is_op(op, "IADD3") || ls_sass_is_op(op, "VIADD") || ls_sass_is_op(op, "IADD")) {
        if (ls_sass_has(op, ".X")) return forget(l, in, 0, "addc.u32", err);
        return lower_add(l, in, ls_sass_is_op(op, "IADD3") ? 3 : 2, err);
    }
    if (ls_sass_has(op, "MAD.WIDE")) return lower_wide(l, in, at, err);
    if (ls_sass_is_op(op, "IMAD")) return lower_multiply(l, in, err);
    if (ls_sass_is_op(op, "LEA")) return lower_lea(l, in, err);
    if (ls_sass_is_op(op, "SHF")) return lower_shift(l, in, err);
    if (ls_sass_is_op(op, "IMNMX") || ls_sass_is_op(op, "VIMNMX")) return lower_minimum(l, in, err);
    if (ls_sass_is_op(op, "SEL")) return lower_select(l, in, err);
    if (ls_sass_is_op(op, "ISETP")) return lower_compare(l, in, at, err);
    if (ls_sass_is_op(op, "PLOP3")) return lower_logic(l, in, err);
    if (ls_sass_begins(op, "S2R") || ls_sass_begins(op, "S2UR")) return lower_special(l, in, err);
    if (ls_sass_begins(op, "CS2R")) return lower_clock(l, in, err);
    if (ls_sass_is_op(op, "LDC")) return lower_constant(l, in, err);
    return lower_given(l, in, err);
}

static ls_status lower_instruction(lowering *l, int32_t at, ls_error *err) {
    const ls_ptx_instruction *in = &l->f->instructions[at];
    const int64_t from = l->out.n_instructions;
    ls_sass_enter(l, at);
    if (ls_ptx_is(in->op, "bra") || ls_ptx_is(in->op, "exit")) {
        LS_TRY(emit(l, in, ls_ptx_is(in->op, "bra") ? "bra" : "exit", &l->f->operands[in->first], in->n, err));
    } else if (ls_sass_is_access(in->op)) {
        LS_TRY(lower_access(l, in, err));
    } else {
        LS_TRY(lower_plain(l, in, at, err));
    }
    guard_last(l, in, from);
    return LS_OK;
}

/* The function ---------------------------------------------------------------------------------------------------- */

static ls_status keep(lowering *l, const ls_ptx_instruction *by, int32_t value, ls_error *err) {
    const operand all[] = {register_of(l->snapshots[value]), register_of(l->flow.values[value].reg)};
    return all[0].reg < 0 ? LS_OK : emit(l, by, "mov.b32", all, 2, err);
}

/* What the ways in set for the joins of the blocks behind: once through a register of its own, since one join may be a
 * part of another. */
static ls_status emit_ways(lowering *l, int32_t block, const ls_ptx_instruction *by, ls_error *err) {
    const ls_flow_block *k = &l->flow.blocks[block];
    for (int32_t t = 0; t < k->n_to; t++) {
        const int32_t to = l->flow.edges[k->first_to + t];
        const ls_flow_block *target = &l->flow.blocks[to];
        for (int32_t e = 0; e < target->n_from; e++) {
            if (l->flow.edges[target->first_from + e] != block) continue;
            for (int32_t i = l->starts[to]; i >= 0; i = l->pairs[i].chained) {
                const ls_pair *p = &l->pairs[i];
                const int32_t part = p->rule == LS_PAIR_JOIN ? l->parts[p->first + e].pair : -1;
                const operand all[] = {register_of(p->inner), pair_register(l, part)};
                if (part >= 0) LS_TRY(emit(l, by, "mov.b64", all, 2, err));
            }
        }
    }
    return LS_OK;
}

static ls_status lower_block(lowering *l, int32_t block, ls_error *err) {
    const ls_flow_block *k = &l->flow.blocks[block];
    if (k->n == 0 || k->order < 0) return LS_OK;
    l->places[k->first] = (int32_t)l->out.n_instructions;
    const ls_ptx_instruction *first = &l->f->instructions[k->first];
    for (int32_t v = l->kept[block]; v >= 0; v = l->kept_next[v]) LS_TRY(keep(l, first, v, err));
    LS_TRY(emit_chain(l, l->starts[block], false, err));
    for (int32_t at = k->first; at < k->first + k->n; at++) {
        const ls_ptx_instruction *in = &l->f->instructions[at];
        const bool ends = at + 1 == k->first + k->n;
        const bool leaves = ls_ptx_is(in->op, "bra") || ls_ptx_is(in->op, "exit");
        if (at > k->first) l->places[at] = (int32_t)l->out.n_instructions;
        if (ends && leaves) LS_TRY(emit_ways(l, block, in, err));
        LS_TRY(emit_chain(l, l->behind[at], true, err));
        LS_TRY(lower_instruction(l, at, err));
        for (int32_t o = in->first, n = ls_flow_defines(l->f, in); o < in->first + n; o++)
            if (l->flow.writes[o] >= 0) LS_TRY(keep(l, in, l->flow.writes[o], err));
        LS_TRY(emit_chain(l, l->behind[at], false, err));
        if (ends && !leaves) LS_TRY(emit_ways(l, block, in, err));
    }
    return LS_OK;
}

static ls_status want_snapshot(lowering *l, ls_half h, ls_error *err) {
    if (h.kind != LS_HALF_VALUE || l->snapshots[h.value] >= 0) return LS_OK;
    const ls_flow_value *v = &l->flow.values[h.value];
    if (v->kind == LS_FLOW_NOTHING) return LS_OK;
    LS_TRY(new_register(l, LS_PTX_B32, &l->snapshots[h.value], err));
    if (v->kind != LS_FLOW_PHI) return LS_OK;
    l->kept_next[h.value] = l->kept[v->block];
    l->kept[v->block] = h.value;
    return LS_OK;
}

/* Registers of pairs, and the chains of what is set where. */
static ls_status place_pairs(lowering *l, ls_error *err) {
    for (int32_t i = 0; i < l->n_pairs; i++) {
        ls_pair *p = &l->pairs[i];
        int32_t *chain = p->behind < 0 ? &l->starts[p->block] : &l->behind[p->behind];
        p->chained = *chain;
        *chain = i;
        LS_TRY(new_register(l, LS_PTX_B64, &p->reg, err));
        if (p->rule == LS_PAIR_JOIN) LS_TRY(new_register(l, LS_PTX_B64, &p->inner, err));
        if (p->rule == LS_PAIR_ZERO || p->rule == LS_PAIR_SIGN) LS_TRY(want_snapshot(l, p->low, err));
    }
    return LS_OK;
}

static ls_status prepare(lowering *l, ls_error *err) {
    const int64_t n = l->f->n_instructions + 1, n_values = l->flow.n_values + 1, n_blocks = l->flow.n_blocks + 1;
    ls_ptx_function *g = &l->out;
    LS_TRY(ls_array_grow((void **)&l->snapshots, &l->cap_snapshots, n_values, sizeof *l->snapshots, "values", err));
    LS_TRY(ls_array_grow((void **)&l->kept_next, &l->cap_kept_next, n_values, sizeof *l->kept_next, "values", err));
    LS_TRY(ls_array_grow((void **)&l->behind, &l->cap_behind, n, sizeof *l->behind, "instructions", err));
    LS_TRY(ls_array_grow((void **)&l->places, &l->cap_places, n, sizeof *l->places, "instructions", err));
    LS_TRY(ls_array_grow((void **)&l->starts, &l->cap_starts, n_blocks, sizeof *l->starts, "blocks", err));
    LS_TRY(ls_array_grow((void **)&l->kept, &l->cap_kept, n_blocks, sizeof *l->kept, "blocks", err));
    memset(l->snapshots, -1, sizeof *l->snapshots * (size_t)n_values);
    memset(l->behind, -1, sizeof *l->behind * (size_t)n);
    memset(l->places, -1, sizeof *l->places * (size_t)n);
    memset(l->starts, -1, sizeof *l->starts * (size_t)n_blocks);
    memset(l->kept, -1, sizeof *l->kept * (size_t)n_blocks);
    g->name = l->f->name;
    g->is_entry = true;
    g->line = l->f->line;
    memcpy(g->max_threads, l->f->max_threads, sizeof g->max_threads);
    g->n_instructions = g->n_operands = g->n_labels = g->n_registers = 0;
    g->parameters = l->f->parameters; /* the reader's */
    g->n_parameters = l->f->n_parameters;
    g->scopes = l->f->scopes;
    g->n_scopes = l->f->n_scopes;
    LS_TRY(ls_array_grow((void **)&g->registers, &g->cap_registers, l->f->n_registers, sizeof *g->registers,
                         "registers", err));
    LS_TRY(ls_array_grow((void **)&g->operands, &g->cap_operands, 16, sizeof *g->operands, "operands", err));
    memcpy(g->registers, l->f->registers, sizeof *g->registers * (size_t)l->f->n_registers);
    g->n_registers = l->f->n_registers;
    return LS_OK;
}

/* Labels that jumps in the written part go to. */
static ls_status copy_labels(lowering *l, ls_error *err) {
    ls_ptx_function *g = &l->out;
    int32_t next = (int32_t)g->n_instructions;
    l->places[l->f->n_instructions] = next;
    for (int64_t i = l->f->n_instructions; i >= 0; i--) {
        if (l->places[i] < 0) l->places[i] = next;
        next = l->places[i];
    }
    for (int64_t i = 0; i < l->f->n_labels; i++) {
        const ls_ptx_label *from = &l->f->labels[i];
        LS_TRY(ls_array_grow((void **)&g->labels, &g->cap_labels, g->n_labels + 1, sizeof *g->labels, "labels", err));
        g->labels[g->n_labels++] = (ls_ptx_label){from->name, l->places[from->at], 0, from->line};
    }
    return LS_OK;
}

ls_status ls_sass_lower(lowering *l, const ls_sass_function *function, const char *name, ls_error *err) {
    l->from = function;
    l->f = &function->f;
    l->name = name;
    LS_TRY(ls_flow_build(&l->flow, l->f, name, err));
    LS_TRY(ls_sass_find_pairs(l, err));
    LS_TRY(prepare(l, err));
    LS_TRY(place_pairs(l, err));
    for (int32_t b = 0; b < l->flow.n_blocks; b++) LS_TRY(lower_block(l, b, err));
    return copy_labels(l, err);
}

void ls_sass_lowering_deinit(lowering *l) {
    ls_flow_deinit(&l->flow);
    free(l->out.registers), free(l->out.instructions), free(l->out.operands), free(l->out.labels);
    free(l->pairs), free(l->parts), free(l->snapshots), free(l->behind), free(l->starts), free(l->kept);
    free(l->kept_next), free(l->places);
    *l = (ls_sass_lowering){0};
}
