/* Words and operands of machine code, and the forms of its opcodes. Owns nothing. */
#define _GNU_SOURCE /* memmem */
#include "audit/sass_text.h"

#include <stdlib.h>
#include <string.h>

#include "audit/sass.h"

static bool is_gap(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\0'; }

ls_ptx_name ls_sass_trim(ls_ptx_name t) {
    while (t.bytes > 0 && is_gap(t.text[0])) t.text++, t.bytes--;
    while (t.bytes > 0 && is_gap(t.text[t.bytes - 1])) t.bytes--;
    return t;
}

bool ls_sass_ends(ls_ptx_name name, const char *text) {
    const size_t n = strlen(text);
    return (size_t)name.bytes >= n && memcmp(name.text + (size_t)name.bytes - n, text, n) == 0;
}

bool ls_sass_is_op(ls_ptx_name op, const char *base) {
    const int32_t n = (int32_t)strlen(base);
    if (op.bytes > 1 && op.text[0] == 'U' && base[0] != 'U') op.text++, op.bytes--;
    return ls_ptx_begins(op, base) && (op.bytes == n || op.text[n] == '.');
}

bool ls_sass_split(ls_ptx_name *text, char at, ls_ptx_name *token) {
    int32_t n = 0, depth = 0;
    if (text->bytes == 0) return false;
    for (; n < text->bytes; n++) {
        const char c = text->text[n];
        if (c == '[' || c == '(') depth++;
        if ((c == ']' || c == ')') && depth > 0) depth--;
        if (c == at && depth == 0) break;
    }
    *token = ls_sass_trim((ls_ptx_name){text->text, n});
    n += n < text->bytes;
    *text = ls_sass_trim((ls_ptx_name){text->text + n, text->bytes - n});
    return true;
}

int32_t ls_sass_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c = (char)(c | 32);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool ls_sass_integer(ls_ptx_name t, int64_t *value) {
    bool negative = false;
    uint64_t sum = 0, base = 10;
    if (t.bytes > 0 && (t.text[0] == '-' || t.text[0] == '+')) negative = t.text[0] == '-', t.text++, t.bytes--;
    if (ls_ptx_begins(t, "0x")) base = 16, t.text += 2, t.bytes -= 2;
    if (t.bytes == 0) return false;
    for (int32_t i = 0; i < t.bytes; i++) {
        const int32_t digit = ls_sass_digit(t.text[i]);
        if (digit < 0 || (uint64_t)digit >= base) return false;
        if (__builtin_mul_overflow(sum, base, &sum) || __builtin_add_overflow(sum, (uint64_t)digit, &sum)) return false;
    }
    *value = (int64_t)(negative ? 0 - sum : sum);
    return true;
}

bool ls_sass_half(ls_ptx_name t, uint32_t *bits) {
    char copy[64];
    char *end;
    if (t.bytes == 0 || t.bytes >= (int32_t)sizeof copy) return false;
    memcpy(copy, t.text, (size_t)t.bytes);
    copy[t.bytes] = '\0';
    double v = strtod(copy, &end);
    if (*end != '\0') return false;
    const uint32_t sign = copy[0] == '-' ? 0x8000 : 0;
    if (v < 0) v = -v;
    if (!(v < 65536.0)) return false;
    int32_t exponent = 1; /* of the smallest numbers: v = fraction * 2^-24 */
    double scaled = v * 16777216.0;
    while (scaled >= 2048.0) scaled /= 2, exponent++;
    const uint32_t fraction = (uint32_t)scaled;
    if ((double)fraction != scaled) return false;
    *bits = sign | (fraction < 1024 ? fraction : (uint32_t)exponent << 10 | (fraction - 1024));
    return true;
}

/* Operands -------------------------------------------------------------------------------------------------------- */

/* A register or its constant, with what stands behind a dot in *suffix; false where the word is none. */
static bool read_register(ls_ptx_name t, ls_ptx_operand *out, ls_ptx_name *suffix) {
    const bool uniform = t.bytes > 1 && t.text[0] == 'U';
    int64_t number;
    int32_t n = 0;
    while (n < t.bytes && t.text[n] != '.') n++;
    *suffix = (ls_ptx_name){t.text + n, t.bytes - n};
    t.bytes = n;
    if (uniform) t.text++, t.bytes--;
    if (t.bytes < 2 || (t.text[0] != 'R' && t.text[0] != 'P')) return false;
    const bool predicate = t.text[0] == 'P';
    if (t.bytes == 2 && t.text[1] == (predicate ? 'T' : 'Z')) {
        *out = (ls_ptx_operand){.kind = LS_PTX_INT, .reg = -1, .value = predicate, .scale = predicate ? 1 : 2};
        return true;
    }
    t.text++, t.bytes--;
    if (t.bytes > 3 || t.text[0] < '0' || t.text[0] > '9' || !ls_sass_integer(t, &number)) return false;
    if (number >= (predicate ? 7 : uniform ? 64 : 256)) return false;
    const int32_t first = predicate ? uniform ? LS_SASS_UPREDICATE : LS_SASS_PREDICATE : uniform ? LS_SASS_UNIFORM : 0;
    *out = (ls_ptx_operand){.kind = LS_PTX_REG, .reg = first + (int32_t)number};
    return true;
}

/* c[0x0][0x210], c[0x0][R2+0x210]; any other bank is opaque. */
static void read_bank(ls_ptx_name t, ls_ptx_operand *out) {
    int64_t bank, offset = 0, part;
    ls_ptx_name inner, token, suffix;
    const char *middle = memmem(t.text, (size_t)t.bytes, "][", 2);
    *out = (ls_ptx_operand){.kind = LS_PTX_FLOAT, .reg = -1};
    if (!ls_ptx_begins(t, "c[") || middle == NULL || t.text[t.bytes - 1] != ']') return;
    if (!ls_sass_integer((ls_ptx_name){t.text + 2, (int32_t)(middle - t.text - 2)}, &bank)) return;
    ls_ptx_operand o = {.kind = LS_PTX_BANK, .reg = -1};
    inner = (ls_ptx_name){middle + 2, (int32_t)(t.text + t.bytes - 1 - (middle + 2))};
    while (ls_sass_split(&inner, '+', &token)) {
        ls_ptx_operand reg;
        if (read_register(token, &reg, &suffix)) {
            if (reg.kind != LS_PTX_REG) continue; /* RZ */
            if (o.reg >= 0) return;
            o.reg = reg.reg;
        } else if (ls_sass_integer(token, &part)) {
            offset += part & 0xFFFFFFF;
        } else {
            return;
        }
    }
    if (bank < 0 || bank > 31 || offset < 0 || offset > 0xFFFFFFF) return;
    o.value = bank << 32 | offset;
    *out = o;
}

static uint8_t scale_of(ls_ptx_name suffix) {
    if (ls_ptx_has(suffix, ".X16")) return 16;
    return ls_ptx_has(suffix, ".X8") ? 8 : ls_ptx_has(suffix, ".X4") ? 4 : 0;
}

/* Inside of [ ]: a register, perhaps of 64 bits or scaled, a uniform one, a number. */
static bool read_address(ls_ptx_name t, ls_ptx_operand *out, ls_ptx_operand *uniform, bool *has_uniform) {
    ls_ptx_name token, suffix;
    *out = (ls_ptx_operand){.kind = LS_PTX_ADDRESS, .reg = -1};
    while (ls_sass_split(&t, '+', &token)) {
        ls_ptx_operand o;
        int64_t part;
        if (ls_sass_integer(token, &part)) {
            if (part < -INT64_C(0x100000000) || part > INT64_C(0x100000000)) return false;
            out->value += part;
            continue;
        }
        if (!read_register(token, &o, &suffix)) return false;
        const bool wide = ls_ptx_has(suffix, ".64");
        if (o.kind != LS_PTX_REG) { /* RZ adds nothing; its width says that of the address */
            out->is_wide = out->is_wide || wide;
            continue;
        }
        if (o.reg >= LS_SASS_UNIFORM && o.reg < LS_SASS_PREDICATE && !*has_uniform && out->reg >= 0) {
            *uniform = o;
            uniform->is_wide = wide;
            uniform->is_tail = *has_uniform = true;
            continue;
        }
        if (out->reg >= 0 || o.reg >= LS_SASS_PREDICATE) return false;
        out->reg = o.reg;
        out->scale = scale_of(suffix);
        out->is_wide = out->is_wide || wide;
        out->is_not = ls_ptx_has(suffix, ".U32"); /* zeros above, in front of a uniform 64-bit base */
    }
    return true;
}

bool ls_sass_operand(ls_ptx_name t, ls_ptx_operand *out, ls_ptx_operand *uniform, bool *has_uniform) {
    ls_ptx_name suffix = {NULL, 0}, whole = t;
    static const char *const matrices[] = {"gdesc[", "idesc[", "tmem["}; /* what the matrix units address */
    bool minus = false, inverse = false, magnitude = false;
    *has_uniform = false;
    *out = (ls_ptx_operand){.kind = LS_PTX_FLOAT, .reg = -1, .name = t};
    if (t.bytes == 0) return false;
    if (ls_ptx_begins(t, "desc[")) {
        const char *end = memchr(t.text, ']', (size_t)t.bytes);
        if (end == NULL) return false;
        if (end + 1 == t.text + t.bytes) return true; /* how a cache is to keep what a tensor's copy brings */
        if (end[1] != '[') return false;
        t = (ls_ptx_name){end + 1, (int32_t)(t.text + t.bytes - end - 1)};
    }
    if (ls_ptx_begins(t, "gsb")) return true; /* a group of products that are waited for together */
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++)
        if (ls_ptx_begins(t, matrices[i])) return memchr(t.text, ']', (size_t)t.bytes) != NULL;
    if (t.text[0] == '[') {
        const char *end = memchr(t.text, ']', (size_t)t.bytes);
        if (end == NULL) return false;
        const ls_ptx_name inner = {t.text + 1, (int32_t)(end - t.text - 1)};
        if (!read_address(inner, out, uniform, has_uniform)) { /* an address of a form that is not known */
            *has_uniform = false;
            *out = (ls_ptx_operand){.kind = LS_PTX_ADDRESS, .reg = LS_SASS_UNSEEN};
        }
        return true;
    }
    if (t.text[0] == '`') {
        const char *end = memrchr(t.text, ')', (size_t)t.bytes);
        if (t.bytes < 4 || t.text[1] != '(' || end == NULL) return false;
        *out = (ls_ptx_operand){
            .kind = LS_PTX_SYMBOL, .reg = -1, .scale = 1, .name = {t.text + 2, (int32_t)(end - t.text - 2)}};
        return out->name.bytes > 0;
    }
    if (ls_sass_integer(t, &out->value)) {
        out->kind = LS_PTX_INT;
        return true;
    }
    while (t.bytes > 1 && (t.text[0] == '-' || t.text[0] == '~' || t.text[0] == '!' || t.text[0] == '|')) {
        minus = minus || t.text[0] == '-';
        inverse = inverse || t.text[0] == '~' || t.text[0] == '!';
        magnitude = magnitude || t.text[0] == '|';
        t.text++, t.bytes--;
    }
    if (ls_ptx_begins(t, "c[") || ls_ptx_begins(t, "cx[")) {
        read_bank(t, out);
    } else if (read_register(t, out, &suffix)) {
        const bool part = ls_ptx_has(suffix, ".H") || ls_ptx_has(suffix, ".B");
        if (part || magnitude) *out = (ls_ptx_operand){.kind = LS_PTX_FLOAT, .reg = -1};
        if (out->kind == LS_PTX_INT && out->scale == 1 && inverse) out->value = 0, inverse = false;
    } else if ((t.text[0] >= 'A' && t.text[0] <= 'Z') || t.text[0] == '.' || t.text[0] == '$' || t.text[0] == '_') {
        *out = (ls_ptx_operand){.kind = LS_PTX_SYMBOL, .reg = -1, .name = t, .scale = t.text[0] == '.'};
        return true;
    } else if (memchr("(+.0123456789", t.text[0], 13) == NULL) { /* +INF, fractions, notes */
        return false;
    }
    if (out->kind == LS_PTX_FLOAT) out->name = whole;
    out->is_minus = minus;
    out->is_not = inverse;
    return true;
}

/* Opcodes --------------------------------------------------------------------------------------------------------- */

int32_t ls_sass_width(ls_ptx_name op) {
    return ls_ptx_has(op, ".128") ? 4 : ls_ptx_has(op, ".96") ? 3 : ls_ptx_has(op, ".64") ? 2 : 1;
}

bool ls_sass_is_access(ls_ptx_name op) {
    static const char *const known[] = {"LD",    "LDG", "LDS",  "ST",   "STG",  "STS",  "ATOM",   "ATOMG",
                                        "ATOMS", "RED", "REDG", "REDS", "LDSM", "STSM", "LDGSTS", "SYNCS"};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (ls_ptx_begins(op, known[i])) {
            const int32_t n = (int32_t)strlen(known[i]);
            if (op.bytes == n || op.text[n] == '.') return true;
        }
    return false;
}

/* The number behind the first such word of an opcode, 128 behind ".64x" in HGMMA.64x128x16.F32; 0 for none. */
static int32_t size_behind(ls_ptx_name op, const char *word, int32_t most) {
    const size_t n = strlen(word);
    const char *at = memmem(op.text, (size_t)op.bytes, word, n), *end = op.text + op.bytes;
    int32_t size = 0;
    if (at == NULL) return 0;
    for (at += n; at < end && *at >= '0' && *at <= '9' && size <= most; at++) size = 10 * size + (*at - '0');
    return size < most ? size : most;
}

/* Registers of a thread that a warpgroup's product of 64 rows writes, or a load from the memory of the matrix units. */
static int32_t matrix_registers_of(ls_ptx_name op) {
    if (ls_ptx_begins(op, "LDTM")) {
        const int32_t times = size_behind(op, ".x", 128), each = size_behind(op, "dp", 256);
        const int32_t n = (times > 0 ? times : 1) * (each > 64 ? each / 64 : 1);
        return n < 128 ? n : 128;
    }
    const int32_t columns = size_behind(op, ".64x", 256);
    return ls_ptx_has(op, ".F32") || op.text[0] == 'I' ? columns / 2 : columns / 4;
}

static int32_t registers_of(ls_ptx_name op) {
    if (ls_ptx_begins(op, "LDTM") || ls_ptx_has(op, "GMMA.64x")) return matrix_registers_of(op);
    if (ls_ptx_begins(op, "LDSM")) return ls_sass_ends(op, ".4") ? 4 : ls_sass_ends(op, ".2") ? 2 : 1;
    if (ls_ptx_begins(op, "LD") || ls_ptx_begins(op, "ATOM") || ls_sass_is_op(op, "LDC")) return ls_sass_width(op);
    if (ls_ptx_has(op, "MAD.WIDE")) return 2;
    if (ls_ptx_begins(op, "CS2R")) return ls_ptx_has(op, ".32") ? 1 : 2;
    if (ls_ptx_begins(op, "HMMA") || ls_ptx_begins(op, "IMMA") || ls_ptx_begins(op, "QMMA")) return 4;
    if (ls_ptx_begins(op, "DMMA")) return 4;
    if (ls_ptx_begins(op, "DADD") || ls_ptx_begins(op, "DMUL") || ls_ptx_begins(op, "DFMA")) return 2;
    if (ls_ptx_begins(op, "F2I") || ls_ptx_begins(op, "F2F") || ls_ptx_begins(op, "I2F") || ls_ptx_begins(op, "FRND"))
        return ls_ptx_has(op, "64") && !ls_ptx_has(op, "F32.F64") && !ls_ptx_has(op, "F16.F64") ? 2 : 1;
    if (ls_sass_is_op(op, "MOV") && ls_ptx_has(op, ".64")) return 2;
    return 1;
}

ls_sass_form ls_sass_form_of(ls_ptx_name op) {
    static const char *const nothing[] = {
        "ST",     "STG",    "STS",    "STL",       "RED",       "REDG",   "REDS",         "STSM",    "BAR",
        "B2R",    "BMOV",   "BREAK",  "WARPSYNC",  "NANOSLEEP", "LDGSTS", "CCTL",         "CCTLL",   "CCTLT",
        "MEMBAR", "ERRBAR", "DEPBAR", "LDGDEPBAR", "YIELD",     "BPT",    "PREEXIT",      "ACQBULK", "SUST",
        "STT",    "CALL",   "UBLKCP", "UTMALDG",   "UTMASTG",   "UTMAPF", "UTMACMDFLUSH", "FENCE"};
    for (size_t i = 0; i < sizeof nothing / sizeof nothing[0]; i++) {
        const int32_t n = (int32_t)strlen(nothing[i]);
        if (ls_ptx_begins(op, nothing[i]) && (op.bytes == n || op.text[n] == '.')) return (ls_sass_form){0};
    }
    if (ls_sass_is_op(op, "R2P")) return (ls_sass_form){.writes_predicates = true};
    if (ls_sass_is_op(op, "FCHK") || ls_ptx_begins(op, "FCHK")) return (ls_sass_form){.predicates = 1};
    const bool compares = ls_ptx_has(op, "SETP") || ls_sass_is_op(op, "PLOP3");
    const bool half = ls_ptx_begins(op, "HSETP2") || ls_ptx_begins(op, "BSETP");
    if (compares || half) return (ls_sass_form){.predicates = 2};
    ls_sass_form form = {.predicates = 2, .registers = registers_of(op)};
    if (ls_sass_is_op(op, "IADD3") || ls_sass_is_op(op, "LEA")) form.carries = 2;
    if (ls_sass_is_op(op, "IMAD") || ls_sass_is_op(op, "VOTE") || ls_sass_is_op(op, "MATCH") ||
        ls_sass_is_op(op, "FLO"))
        form.carries = 1;
    return form;
}
