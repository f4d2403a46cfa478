/* One instruction of the machine after the other: accesses, arithmetic, predicates. */
#include <string.h>

#include "audit/sass_emit.h"
#include "audit/sass_text.h"
#include "base/mem.h"

typedef ls_sass_lowering lowering;
typedef ls_ptx_operand operand;
typedef ls_sass_sources sources;

/* The last instruction takes the guard of the machine's. */
static void ls_sass_guard_last(lowering *l, const ls_ptx_instruction *by, int64_t from) {
    for (int64_t i = from; i < l->out.n_instructions; i++) {
        l->out.instructions[i].guard = by->guard;
        l->out.instructions[i].guard_not = by->guard_not;
    }
}

/* Accesses -------------------------------------------------------------------------------------------------------- */

static const char *load_name(ls_ptx_name op, bool shared, int32_t width) {
    static const char *const sizes[] = {".U8", ".S8", ".U16", ".S16"};
    static const char *const global[] = {"ld.global.u8", "ld.global.s8", "ld.global.u16", "ld.global.s16"};
    static const char *const inner[] = {"ld.shared.u8", "ld.shared.s8", "ld.shared.u16", "ld.shared.s16"};
    for (int i = 0; i < 4 && width == 1; i++)
        if (ls_ptx_has(op, sizes[i])) return shared ? inner[i] : global[i];
    if (width > 1) return shared ? "ld.shared.v2.u32" : "ld.global.v2.u32";
    return shared ? "ld.shared.u32" : "ld.global.u32";
}

static bool is_shared(ls_ptx_name op) {
    return ls_ptx_begins(op, "LDS") || ls_ptx_begins(op, "STS") || ls_ptx_begins(op, "ATOMS") ||
           ls_ptx_begins(op, "SYNCS") || ls_ptx_begins(op, "REDS");
}

/* An access, its registers first where it reads. Every address of the instruction is one access. */
static ls_status lower_access(lowering *l, const ls_ptx_instruction *in, ls_error *err) {
    const sources s = ls_sass_sources_of(l, in);
    const bool loads = ls_ptx_begins(in->op, "LD") && !ls_ptx_begins(in->op, "LDGSTS");
    const bool copies = ls_ptx_begins(in->op, "LDGSTS");
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
        LS_TRY(ls_sass_take_address(l, in, o, &all[n], &known, err));
        if (!known) {
            operand bad;
            LS_TRY(ls_sass_emit_new(l, in, "unknown.b64.pair", LS_PTX_B64, &bad, NULL, 0, err));
            all[n].reg = bad.reg;
        }
        if (n_addresses++ == 0 && loads)
            LS_TRY(ls_sass_emit(l, in, load_name(in->op, shared, n_registers), all, n + 1, err));
        else
            LS_TRY(ls_sass_emit(l, in, shared ? "st.shared.u32" : "st.global.u32", &all[n], 1, err));
    }
    if (loads && n_addresses > 0) return LS_OK;
    for (int32_t i = 0; i < n; i++) { /* what an atomic operation gives back */
        if (all[i].kind != LS_PTX_REG) continue;
        all[i].is_tail = false;
        const operand given[] = {all[i], ls_sass_number_of(0)};
        LS_TRY(ls_sass_emit(l, in, all[i].reg < LS_SASS_PREDICATE ? "given.b32" : "carry", given, 1, err));
    }
    return LS_OK;
}

/* Arithmetic ------------------------------------------------------------------------------------------------------ */

static ls_status lower_add(lowering *l, const ls_ptx_instruction *in, int32_t n, ls_error *err) {
    operand s[3], sum;
    const operand out = l->f->operands[in->first];
    if (out.kind != LS_PTX_REG) return ls_sass_forget(l, in, 1, "addc.u32", err);
    LS_TRY(ls_sass_take_sources(l, in, s, n, err));
    if (n == 3 && !(s[2].kind == LS_PTX_INT && s[2].value == 0)) {
        LS_TRY(ls_sass_emit_new(l, in, "add.s32", LS_PTX_B32, &sum, s, 2, err));
        s[0] = sum, s[1] = s[2];
    }
    const operand all[] = {out, s[0], s[1]};
    LS_TRY(ls_sass_emit(l, in, "add.s32", all, 3, err));
    return ls_sass_forget(l, in, 1, "addc.u32", err);
}

static ls_status lower_multiply(lowering *l, const ls_ptx_instruction *in, ls_error *err) {
    const sources s = ls_sass_sources_of(l, in);
    const operand *o = &l->f->operands[s.first];
    if (ls_ptx_has(in->op, ".X")) return ls_sass_forget(l, in, 0, "addc.u32", err);
    if (ls_ptx_has(in->op, ".HI")) {
        if (s.n < 3 || o[2].kind != LS_PTX_INT || o[2].value != 0) return ls_sass_forget(l, in, 0, "addc.u32", err);
        return ls_sass_simple(l, in, ls_ptx_has(in->op, ".U32") ? "mul.hi.u32" : "mul.hi.s32", 2, err);
    }
    if (s.n >= 3 && ((o[0].kind == LS_PTX_INT && o[0].value == 0) || (o[1].kind == LS_PTX_INT && o[1].value == 0))) {
        operand all[] = {l->f->operands[in->first], {0}};
        if (all[0].kind != LS_PTX_REG) return LS_OK;
        LS_TRY(ls_sass_take_source(l, in, s.first + 2, &all[1], err));
        LS_TRY(ls_sass_emit(l, in, "mov.b32", all, 2, err));
        return ls_sass_forget(l, in, 1, "addc.u32", err);
    }
    return ls_sass_simple(l, in, "mad.lo.s32", 3, err);
}

/* The wide product's registers, from the pair where somebody takes it as one. */
static ls_status lower_wide(lowering *l, const ls_ptx_instruction *in, int32_t at, ls_error *err) {
    for (int32_t i = l->behind[at]; i >= 0; i = l->pairs[i].chained) {
        if (l->pairs[i].rule != LS_PAIR_WIDE || !l->pairs[i].is_emitted) continue;
        const operand all[] = {l->f->operands[in->first], l->f->operands[in->first + 1],
                               ls_sass_register_of(l->pairs[i].reg)};
        LS_TRY(ls_sass_emit(l, in, "mov.b64", all, 3, err));
        return ls_sass_forget(l, in, 2, "addc.u32", err);
    }
    if (ls_ptx_has(in->op, ".X")) return ls_sass_forget(l, in, 0, "addc.u32", err);
    return ls_sass_simple(l, in, "mad.lo.s32", 3, err);
}

static ls_status lower_lea(lowering *l, const ls_ptx_instruction *in, ls_error *err) {
    const sources s = ls_sass_sources_of(l, in);
    const bool high = ls_ptx_has(in->op, ".HI"), sign = ls_ptx_has(in->op, ".SX32");
    const int32_t last = high && !sign ? 3 : 2;
    const operand *by = &l->f->operands[s.first + last];
    operand a[2], b, shifted;
    const operand out = l->f->operands[in->first];
    const bool known = s.n > last && by->kind == LS_PTX_INT && by->value >= 0 && by->value < 32 &&
                       !ls_ptx_has(in->op, ".X") && out.kind == LS_PTX_REG;
    if (!known || (high && !sign && (l->f->operands[s.first + 2].kind != LS_PTX_INT || by->value == 0)))
        return ls_sass_forget(l, in, 0, "addc.u32", err);
    LS_TRY(ls_sass_take_source(l, in, s.first, &a[0], err));
    LS_TRY(ls_sass_take_source(l, in, s.first + 1, &b, err));
    a[1] = ls_sass_number_of(high ? 32 - by->value : by->value);
    LS_TRY(ls_sass_emit_new(l, in, sign ? "shr.s32" : high ? "shr.u32" : "shl.b32", LS_PTX_B32, &shifted, a, 2, err));
    const operand all[] = {out, shifted, b};
    LS_TRY(ls_sass_emit(l, in, "add.s32", all, 3, err));
    return ls_sass_forget(l, in, 1, "addc.u32", err);
}

static ls_status lower_shift(lowering *l, const ls_ptx_instruction *in, ls_error *err) {
    const sources s = ls_sass_sources_of(l, in);
    const operand out = l->f->operands[in->first];
    const operand *o = &l->f->operands[s.first];
    const bool left = ls_ptx_has(in->op, ".L"), high = ls_ptx_has(in->op, ".HI"), wide = ls_ptx_has(in->op, "64");
    const int32_t what = left ? 0 : 2, nothing = left ? 2 : 0;
    const bool plain = s.n >= 3 && out.kind == LS_PTX_REG && !wide && high != left && o[nothing].kind == LS_PTX_INT &&
                       o[nothing].value == 0;
    if (!plain) return ls_sass_forget(l, in, 0, "addc.u32", err);
    operand all[3] = {out};
    LS_TRY(ls_sass_take_source(l, in, s.first + what, &all[1], err));
    LS_TRY(ls_sass_take_source(l, in, s.first + 1, &all[2], err));
    return ls_sass_emit(l, in, left ? "shl.b32" : ls_ptx_has(in->op, ".S32") ? "shr.s32" : "shr.u32", all, 3, err);
}

static ls_status lower_minimum(lowering *l, const ls_ptx_instruction *in, ls_error *err) {
    const sources s = ls_sass_sources_of(l, in);
    const operand *choice = &l->f->operands[s.first + 2];
    const bool is_unsigned = ls_ptx_has(in->op, ".U32");
    if (s.n < 3 || choice->kind != LS_PTX_INT) return ls_sass_forget(l, in, 0, "unknown.b32", err);
    if (choice->value != 0) return ls_sass_simple(l, in, is_unsigned ? "min.u32" : "min.s32", 2, err);
    return ls_sass_simple(l, in, is_unsigned ? "max.u32" : "max.s32", 2, err);
}

static ls_status lower_select(lowering *l, const ls_ptx_instruction *in, ls_error *err) {
    const sources s = ls_sass_sources_of(l, in);
    operand all[4] = {l->f->operands[in->first]};
    if (s.n < 3 || all[0].kind != LS_PTX_REG) return ls_sass_forget(l, in, 0, "addc.u32", err);
    LS_TRY(ls_sass_take_sources(l, in, all + 1, 2, err));
    const operand choice = l->f->operands[s.first + 2];
    if (choice.kind == LS_PTX_INT) {
        if (choice.value == 0) all[1] = all[2];
        return ls_sass_emit(l, in, "mov.b32", all, 2, err);
    }
    all[3] = ls_sass_register_of(choice.reg);
    return ls_sass_emit(l, in, "selp.b32", all, 4, err);
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
        if (ls_ptx_has(op, relations[i])) return names[how][i][(ls_ptx_has(op, ".U32") ? 0 : 1) + (wide ? 2 : 0)];
    return NULL;
}

/* What the comparison is joined with; "" where that changes nothing. */
static const char *join_of(ls_ptx_name op, const operand *with) {
    const bool both = ls_ptx_has(op, ".AND"), some = ls_ptx_has(op, ".OR");
    if (with->kind == LS_PTX_INT && ((both && with->value != 0) || (some && with->value == 0))) return "";
    if (with->kind != LS_PTX_REG) return NULL;
    return both ? "AND" : some ? "OR" : "XOR";
}

static ls_status lower_compare(lowering *l, const ls_ptx_instruction *in, int32_t at, ls_error *err) {
    const sources s = ls_sass_sources_of(l, in);
    const bool extended = ls_ptx_has(in->op, ".EX");
    const int32_t lower = ls_sass_lower_compare(l, at);
    const operand out = l->f->operands[in->first];
    const char *join = s.n >= 3 ? join_of(in->op, &l->f->operands[s.first + 2]) : NULL;
    const char *op = join == NULL ? NULL : compare_name(in->op, join, extended);
    operand all[4] = {out};
    bool known = op != NULL && out.kind == LS_PTX_REG && (!extended || lower >= 0);
    if (!known) return ls_sass_forget(l, in, 0, "addc.u32", err);
    for (int32_t i = 0; i < 2; i++) {
        if (!extended) {
            LS_TRY(ls_sass_take_source(l, in, s.first + i, &all[1 + i], err));
            continue;
        }
        const int32_t low = ls_sass_sources_of(l, &l->f->instructions[lower]).first + i;
        const int32_t pair = ls_sass_pair_of(l, ls_sass_half_of(l, low), ls_sass_half_of(l, s.first + i));
        known = known && pair >= 0;
        all[1 + i] = ls_sass_pair_register(l, pair);
    }
    if (!known) return ls_sass_forget(l, in, 0, "addc.u32", err);
    all[3] = l->f->operands[s.first + 2];
    LS_TRY(ls_sass_emit(l, in, op, all, join[0] == '\0' ? 3 : 4, err));
    return ls_sass_forget(l, in, 1, "addc.u32", err);
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
    const sources s = ls_sass_sources_of(l, in);
    const operand *o = &l->f->operands[s.first], out = l->f->operands[in->first];
    operand all[4] = {out};
    if (s.n < 4 || o[3].kind != LS_PTX_INT || out.kind != LS_PTX_REG) return ls_sass_forget(l, in, 0, "addc.u32", err);
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
            if (taken[k]) all[n] = ls_sass_register_of(o[k].reg), all[n++].is_not = negated[k];
        if (n == 1) break;
        LS_TRY(ls_sass_emit(l, in, both ? "and.pred" : "or.pred", all, n, err));
        return ls_sass_forget(l, in, 1, "addc.u32", err);
    }
    return ls_sass_forget(l, in, 0, "addc.u32", err);
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
    const sources s = ls_sass_sources_of(l, in);
    operand all[] = {l->f->operands[in->first], ls_sass_symbol_of("%envreg")};
    if (all[0].kind != LS_PTX_REG) return LS_OK;
    for (size_t i = 0; i < sizeof known / sizeof known[0] && s.n > 0; i++)
        if (ls_ptx_is(l->f->operands[s.first].name, known[i][0])) all[1].name = ls_sass_name_of(known[i][1]);
    return ls_sass_emit(l, in, "mov.u32", all, 2, err);
}

static ls_status lower_clock(lowering *l, const ls_ptx_instruction *in, ls_error *err) {
    const sources s = ls_sass_sources_of(l, in);
    if (s.n < 1 || !ls_ptx_has(l->f->operands[s.first].name, "SRZ")) return ls_sass_forget(l, in, 0, "given.b32", err);
    for (int32_t i = 0; i < s.n_results; i++) {
        operand all[] = {l->f->operands[in->first + i], ls_sass_number_of(0)};
        all[0].is_tail = false;
        if (all[0].kind == LS_PTX_REG) LS_TRY(ls_sass_emit(l, in, "mov.b32", all, 2, err));
    }
    return LS_OK;
}

static ls_status lower_constant(lowering *l, const ls_ptx_instruction *in, ls_error *err) {
    const sources s = ls_sass_sources_of(l, in);
    const int32_t bits = ls_ptx_has(in->op, ".U8") || ls_ptx_has(in->op, ".S8")     ? 8
                         : ls_ptx_has(in->op, ".U16") || ls_ptx_has(in->op, ".S16") ? 16
                                                                                    : 32;
    if (s.n < 1) return ls_sass_forget(l, in, 0, "unknown.b32", err);
    const operand from = l->f->operands[s.first];
    for (int32_t i = 0; i < s.n_results; i++) {
        operand all[2] = {l->f->operands[in->first + i]};
        all[0].is_tail = false;
        if (all[0].kind != LS_PTX_REG) continue;
        if (from.kind != LS_PTX_BANK || from.reg >= 0 || from.value >> 32 != 0) { /* a table: any value */
            all[1] = ls_sass_number_of(0);
            LS_TRY(ls_sass_emit(l, in, "given.b32", all, 1, err));
            continue;
        }
        LS_TRY(ls_sass_emit_bank(l, in, from.value + 4 * i, bits, &all[1], err));
        LS_TRY(ls_sass_emit(l, in, "mov.b32", all, 2, err));
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
    static const char *const given[] = {"F2I",  "F2IP", "I2F",   "I2FP",  "F2F",  "F2FP", "MUFU",        "FRND",
                                        "LDL",  "CALL", "VOTE",  "MATCH", "P2R",  "LEPC", "GETLMEMBASE", "B2R",
                                        "TEX",  "TLD",  "REDUX", "TLD4",  "SULD", "TXQ",  "S2UR",        "ELECT",
                                        "BMSK", "SGXT", "FLO",   "BREV",  "LDTM"};
    const char first = in->op.text[0], second = in->op.bytes > 1 ? in->op.text[1] : ' ';
    const bool is_float = ((first == 'F' || first == 'H' || first == 'D') && !ls_sass_is_op(in->op, "FLO")) ||
                          (first == 'U' && second == 'F' && !ls_sass_is_op(in->op, "FLO")) || ls_ptx_has(in->op, "MMA");
    const bool any = is_float || is_any(in->op, given, sizeof given / sizeof given[0]);
    return ls_sass_forget(l, in, 0, any ? "given.b32" : "unknown.b32", err);
}

typedef enum way { WAY_SIMPLE, WAY_ADD } way;

static ls_status lower_plain(lowering *l, const ls_ptx_instruction *in, int32_t at, ls_error *err) {
    static const struct {
        const char *name, *op;
        int32_t n;
    } simple_ones[] = {{"MOV", "mov.b32", 1},   {"R2UR", "mov.b32", 1},  {"IABS", "abs.s32", 1},
                       {"POPC", "popc.b32", 1}, {"PRMT", "prmt.b32", 3}, {"LOP3", "lop3.b32", 4},
                       {"SHFL", "shfl.b32", 1}};
    const ls_ptx_name op = in->op;
    for (size_t i = 0; i < sizeof simple_ones / sizeof simple_ones[0]; i++) {
        if (!ls_sass_is_op(op, simple_ones[i].name) && !ls_ptx_begins(op, simple_ones[i].name)) continue;
        if (i == 5 && !ls_ptx_has(op, ".LUT")) break;
        if (i == 4) { /* a, selector, b */
            operand all[4] = {l->f->operands[in->first]};
            if (all[0].kind != LS_PTX_REG) return LS_OK;
            LS_TRY(ls_sass_take_sources(l, in, all + 1, 3, err));
            const operand selector = all[2];
            all[2] = all[3], all[3] = selector;
            return ls_sass_emit(l, in, "prmt.b32", all, 4, err);
        }
        return ls_sass_simple(l, in, simple_ones[i].op, simple_ones[i].n, err);
    }
    if (ls_sass_is_op(op, "IADD3") || ls_sass_is_op(op, "VIADD") || ls_sass_is_op(op, "IADD")) {
        if (ls_ptx_has(op, ".X")) return ls_sass_forget(l, in, 0, "addc.u32", err);
        return lower_add(l, in, ls_sass_is_op(op, "IADD3") ? 3 : 2, err);
    }
    if (ls_ptx_has(op, "MAD.WIDE")) return lower_wide(l, in, at, err);
    if (ls_sass_is_op(op, "IMAD")) return lower_multiply(l, in, err);
    if (ls_sass_is_op(op, "LEA")) return lower_lea(l, in, err);
    if (ls_sass_is_op(op, "SHF")) return lower_shift(l, in, err);
    if (ls_sass_is_op(op, "IMNMX") || ls_sass_is_op(op, "VIMNMX")) return lower_minimum(l, in, err);
    if (ls_sass_is_op(op, "SEL")) return lower_select(l, in, err);
    if (ls_sass_is_op(op, "ISETP")) return lower_compare(l, in, at, err);
    if (ls_sass_is_op(op, "PLOP3")) return lower_logic(l, in, err);
    if (ls_ptx_begins(op, "S2R") || ls_ptx_begins(op, "S2UR")) return lower_special(l, in, err);
    if (ls_ptx_begins(op, "CS2R")) return lower_clock(l, in, err);
    if (ls_sass_is_op(op, "LDC")) return lower_constant(l, in, err);
    return lower_given(l, in, err);
}

ls_status ls_sass_lower_instruction(lowering *l, int32_t at, ls_error *err) {
    const ls_ptx_instruction *in = &l->f->instructions[at];
    const int64_t from = l->out.n_instructions;
    ls_sass_enter(l, at);
    if (ls_ptx_is(in->op, "bra") || ls_ptx_is(in->op, "exit")) {
        LS_TRY(ls_sass_emit(l, in, ls_ptx_is(in->op, "bra") ? "bra" : "exit", &l->f->operands[in->first], in->n, err));
    } else if (ls_sass_is_access(in->op)) {
        LS_TRY(lower_access(l, in, err));
    } else {
        LS_TRY(lower_plain(l, in, at, err));
    }
    ls_sass_guard_last(l, in, from);
    return LS_OK;
}
