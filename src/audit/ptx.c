/* The reader of PTX text: statements, scopes. Owns the function that it hands out. */
#include "audit/ptx.h"

#include <stdlib.h>
#include <string.h>

#include "audit/ptx_token.h"
#include "base/fnv.h"
#include "base/mem.h"

/* Registers ------------------------------------------------------------------------------------------------------- */

static ls_status read_ptx_type(const ls_ptx_reader *r, ls_ptx_name name, ls_ptx_type *out, int64_t *bytes,
                               ls_error *err) {
    static const struct {
        const char *name;
        ls_ptx_type type;
    } types[] = {{".pred", LS_PTX_PRED},  {".b8", LS_PTX_B8},          {".u8", LS_PTX_B8},      {".s8", LS_PTX_B8},
                 {".b16", LS_PTX_B16},    {".u16", LS_PTX_B16},        {".s16", LS_PTX_B16},    {".f16", LS_PTX_B16},
                 {".bf16", LS_PTX_B16},   {".b32", LS_PTX_B32},        {".u32", LS_PTX_B32},    {".s32", LS_PTX_B32},
                 {".f32", LS_PTX_B32},    {".f16x2", LS_PTX_B32},      {".bf16x2", LS_PTX_B32}, {".b64", LS_PTX_B64},
                 {".u64", LS_PTX_B64},    {".s64", LS_PTX_B64},        {".f64", LS_PTX_B64},    {".b128", LS_PTX_B128},
                 {".texref", LS_PTX_B64}, {".samplerref", LS_PTX_B64}, {".surfref", LS_PTX_B64}};
    static const int64_t sizes[] = {1, 1, 2, 4, 8, 16};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (!ls_ptx_is(name, types[i].name)) continue;
        *out = types[i].type;
        *bytes = sizes[*out];
        return LS_OK;
    }
    return ls_ptx_fail_at(r, r->line, err, "not a type", name);
}

/* The prefix of a name that ends in a number, and the number; false where it has none. */
static bool split_number(ls_ptx_name name, ls_ptx_name *prefix, int64_t *number) {
    int32_t n = name.bytes;
    while (n > 0 && ls_ptx_is_digit(name.text[n - 1])) n--;
    if (n == name.bytes || name.bytes - n > 12) return false;
    *number = 0;
    for (int32_t i = n; i < name.bytes; i++) *number = *number * 10 + (name.text[i] - '0');
    *prefix = (ls_ptx_name){name.text, n};
    return true;
}

/* The declaration that covers a name: the innermost, NULL for none. */
static const ls_ptx_declaration *find_declaration(const ls_ptx_reader *r, ls_ptx_name name) {
    ls_ptx_name prefix = {NULL, 0};
    int64_t number = 0;
    const bool split = split_number(name, &prefix, &number);
    for (int64_t i = r->n_declared - 1; i >= 0; i--) {
        const ls_ptx_declaration *d = &r->declared[i];
        if (d->count < 0 ? ls_ptx_same(d->prefix, name) : split && ls_ptx_same(d->prefix, prefix) && number < d->count)
            return d;
    }
    return NULL;
}

static bool is_special(ls_ptx_name name) {
    static const char *const names[] = {"%tid",        "%ntid",        "%ctaid",    "%nctaid", "%laneid",
                                        "%warpid",     "%nwarpid",     "%smid",     "%nsmid",  "%gridid",
                                        "%clock",      "%clock64",     "%clock_hi", "%pm",     "%envreg",
                                        "%lanemask",   "%globaltimer", "%dynamic",  "%total",  "%cluster",
                                        "%nclusterid", "%is_",         "%current",  "%aggr",   "%reserved"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (ls_ptx_begins(name, names[i])) return true;
    return false;
}

/* The register of a name in *reg, -1 where the name is no register. */
static ls_status find_register(ls_ptx_reader *r, ls_ptx_name name, int32_t *reg, ls_error *err) {
    const uint64_t hash = ls_fnv_mix(LS_FNV_START, name.text, name.bytes);
    const ls_ptx_declaration *d = find_declaration(r, name);
    ls_ptx_function *f = &r->function;
    *reg = -1;
    if (d == NULL) {
        if (name.text[0] == '%' && !is_special(name))
            return ls_ptx_fail_at(r, r->line, err, "a register that is not declared", name);
        return LS_OK;
    }
    for (int32_t i = r->buckets[hash % LS_PTX_BUCKETS]; i >= 0; i = r->known[i].next) {
        if (r->known[i].hash != hash || r->known[i].scope != d->scope) continue;
        if (!ls_ptx_same(f->registers[r->known[i].reg].name, name)) continue;
        *reg = r->known[i].reg;
        return LS_OK;
    }
    LS_TRY(ls_array_grow((void **)&f->registers, &f->cap_registers, f->n_registers + 1, sizeof *f->registers,
                         "registers", err));
    LS_TRY(ls_array_grow((void **)&r->known, &r->cap_known, r->n_known + 1, sizeof *r->known, "register names", err));
    f->registers[f->n_registers] = (ls_ptx_register){name, d->type};
    *reg = (int32_t)f->n_registers;
    r->known[r->n_known] = (ls_ptx_known){hash, *reg, r->buckets[hash % LS_PTX_BUCKETS], d->scope};
    r->buckets[hash % LS_PTX_BUCKETS] = (int32_t)r->n_known;
    f->n_registers++;
    r->n_known++;
    return LS_OK;
}

static ls_status declare(ls_ptx_reader *r, ls_ptx_name name, int64_t count, ls_ptx_type type, ls_error *err) {
    if (r->n_declared == 4096) return ls_ptx_fail(r, err, "more than 4096 declarations of registers hold at once");
    LS_TRY(ls_array_grow((void **)&r->declared, &r->cap_declared, r->n_declared + 1, sizeof *r->declared,
                         "declarations", err));
    r->declared[r->n_declared++] = (ls_ptx_declaration){name, count, type, r->scope};
    return LS_OK;
}

/* Behind .reg: a type, perhaps .v2 or .v4 before it, then names with counts. */
static ls_status read_registers(ls_ptx_reader *r, ls_error *err) {
    ls_ptx_name name;
    ls_ptx_type type = LS_PTX_B64;
    int64_t bytes;
    bool more = true;
    LS_TRY(ls_ptx_read_name(r, &name, err));
    if (ls_ptx_begins(name, ".v")) LS_TRY(ls_ptx_read_name(r, &name, err));
    LS_TRY(read_ptx_type(r, name, &type, &bytes, err));
    while (more) {
        bool counted;
        ls_ptx_operand count = {.value = -1};
        LS_TRY(ls_ptx_read_name(r, &name, err));
        LS_TRY(ls_ptx_take(r, '<', &counted, err));
        if (counted) {
            LS_TRY(ls_ptx_read_number(r, &count, err));
            if (count.kind != LS_PTX_INT || count.value < 0) return ls_ptx_fail(r, err, "not a number of registers");
            LS_TRY(ls_ptx_expect(r, '>', err));
        }
        LS_TRY(declare(r, name, count.value, type, err));
        LS_TRY(ls_ptx_take(r, ',', &more, err));
    }
    return ls_ptx_expect(r, ';', err);
}

/* Scopes ---------------------------------------------------------------------------------------------------------- */

static ls_status open_scope(ls_ptx_reader *r, ls_error *err) {
    if (r->depth == LS_PTX_DEPTH_MAX) return ls_ptx_fail(r, err, "scopes lie deeper than 64 in each other");
    r->scopes[r->depth] = r->scope;
    r->declared_before[r->depth] = r->n_declared;
    r->depth++;
    ls_ptx_function *f = &r->function;
    if (f->n_scopes > LS_PTX_INSTRUCTIONS_MAX) return ls_ptx_fail(r, err, "a function has too many scopes");
    LS_TRY(ls_array_grow((void **)&f->scopes, &f->cap_scopes, f->n_scopes + 2, sizeof *f->scopes, "scopes", err));
    if (f->n_scopes == 0) f->scopes[f->n_scopes++] = -1;
    f->scopes[f->n_scopes] = r->scope;
    r->scope = (int32_t)f->n_scopes++;
    return LS_OK;
}

static void close_scope(ls_ptx_reader *r) {
    r->depth--;
    r->scope = r->scopes[r->depth];
    r->n_declared = r->declared_before[r->depth];
}

/* Operands -------------------------------------------------------------------------------------------------------- */

static ls_status push_operand(ls_ptx_reader *r, const ls_ptx_operand *operand, ls_error *err) {
    ls_ptx_function *f = &r->function;
    if (f->n_operands > 16 * (int64_t)LS_PTX_INSTRUCTIONS_MAX)
        return ls_ptx_fail(r, err, "a function has too many operands");
    LS_TRY(ls_array_grow((void **)&f->operands, &f->cap_operands, f->n_operands + 1, sizeof *f->operands, "operands",
                         err));
    f->operands[f->n_operands++] = *operand;
    return LS_OK;
}

/* A register, a name or a number. */
static ls_status read_simple(ls_ptx_reader *r, ls_ptx_operand *out, ls_error *err) {
    char c;
    *out = (ls_ptx_operand){.reg = -1};
    LS_TRY(ls_ptx_take(r, '!', &out->is_not, err));
    LS_TRY(ls_ptx_peek(r, &c, err));
    if (ls_ptx_is_digit(c) || c == '-') {
        bool negative_name = false;
        if (c == '-' && r->at + 1 < r->bytes && ls_ptx_is_letter(r->text[r->at + 1])) negative_name = true;
        if (!negative_name) return ls_ptx_read_number(r, out, err);
        r->at++;
    }
    LS_TRY(ls_ptx_read_name(r, &out->name, err));
    if (ls_ptx_is(out->name, "_")) {
        out->kind = LS_PTX_SINK;
        return LS_OK;
    }
    LS_TRY(find_register(r, out->name, &out->reg, err));
    out->kind = out->reg >= 0 ? LS_PTX_REG : LS_PTX_SYMBOL;
    if (out->kind == LS_PTX_SYMBOL) {
        bool offset;
        LS_TRY(ls_ptx_take(r, '+', &offset, err)); /* name+8 as a constant */
        if (offset) {
            ls_ptx_operand number = {0};
            LS_TRY(ls_ptx_read_number(r, &number, err));
            out->value = number.value;
        }
    }
    return LS_OK;
}

/* Behind '[': base, + or - a number, and what follows a comma (coordinates of textures and of tensor copies). */
static ls_status read_address(ls_ptx_reader *r, bool tail, ls_error *err) {
    ls_ptx_operand out, number = {0};
    bool plus, comma;
    char c;
    LS_TRY(read_simple(r, &out, err));
    LS_TRY(ls_ptx_peek(r, &c, err));
    LS_TRY(ls_ptx_take(r, '+', &plus, err));
    if (plus || c == '-') {
        LS_TRY(ls_ptx_read_number(r, &number, err));
        if (number.kind != LS_PTX_INT) return ls_ptx_fail(r, err, "an offset that is no integer");
        if (__builtin_add_overflow(out.value, number.value, &out.value))
            return ls_ptx_fail(r, err, "an offset passes 64 bits");
    }
    out.kind = LS_PTX_ADDRESS;
    out.is_tail = tail;
    LS_TRY(push_operand(r, &out, err));
    LS_TRY(ls_ptx_take(r, ',', &comma, err));
    while (comma) {
        bool brace;
        LS_TRY(ls_ptx_take(r, '{', &brace, err));
        do {
            LS_TRY(read_simple(r, &out, err));
            out.is_tail = true;
            LS_TRY(push_operand(r, &out, err));
            LS_TRY(ls_ptx_take(r, ',', &comma, err));
        } while (comma && brace);
        if (brace) {
            LS_TRY(ls_ptx_expect(r, '}', err));
            LS_TRY(ls_ptx_take(r, ',', &comma, err));
        }
    }
    return ls_ptx_expect(r, ']', err);
}

/* Behind an opening brace or parenthesis: simple operands up to the closing one. */
static ls_status read_list(ls_ptx_reader *r, char close, ls_error *err) {
    bool more, closed;
    LS_TRY(ls_ptx_take(r, close, &closed, err));
    for (int64_t n = 0; !closed; n++) {
        ls_ptx_operand out;
        bool brace = false;
        LS_TRY(ls_ptx_take(r, '[', &brace, err)); /* call (ret), f, ([x]) does not occur; tensors' lists do not nest */
        if (brace) return ls_ptx_fail(r, err, "an address inside a list");
        LS_TRY(read_simple(r, &out, err));
        out.is_tail = n > 0;
        LS_TRY(push_operand(r, &out, err));
        LS_TRY(ls_ptx_take(r, ',', &more, err));
        if (!more) {
            LS_TRY(ls_ptx_expect(r, close, err));
            closed = true;
        }
    }
    return LS_OK;
}

static ls_status read_operand(ls_ptx_reader *r, ls_error *err) {
    bool taken;
    ls_ptx_operand out;
    LS_TRY(ls_ptx_take(r, '[', &taken, err));
    if (taken) return read_address(r, false, err);
    LS_TRY(ls_ptx_take(r, '{', &taken, err));
    if (taken) return read_list(r, '}', err);
    LS_TRY(ls_ptx_take(r, '(', &taken, err));
    if (taken) return read_list(r, ')', err);
    LS_TRY(read_simple(r, &out, err));
    LS_TRY(push_operand(r, &out, err));
    LS_TRY(ls_ptx_take(r, '|', &taken, err));
    if (!taken) return LS_OK;
    LS_TRY(read_simple(r, &out, err));
    out.is_tail = true;
    return push_operand(r, &out, err);
}

/* Statements ------------------------------------------------------------------------------------------------------ */

static ls_status read_instruction(ls_ptx_reader *r, ls_ptx_name op, int32_t guard, bool guard_not, ls_error *err) {
    ls_ptx_function *f = &r->function;
    ls_ptx_instruction in = {op, guard, guard_not, (int32_t)f->n_operands, 0, r->line, r->scope, r->source, {NULL, 0}};
    bool more = true;
    char c;
    if (f->n_instructions == LS_PTX_INSTRUCTIONS_MAX)
        return ls_ptx_fail(r, err, "a function passes 4000000 instructions");
    LS_TRY(ls_ptx_peek(r, &c, err));
    while (c != ';' && more) {
        LS_TRY(read_operand(r, err));
        LS_TRY(ls_ptx_take(r, ',', &more, err));
        if (!more) LS_TRY(ls_ptx_peek(r, &c, err));
    }
    LS_TRY(ls_ptx_expect(r, ';', err));
    in.n = (int32_t)f->n_operands - in.first;
    LS_TRY(ls_array_grow((void **)&f->instructions, &f->cap_instructions, f->n_instructions + 1,
                         sizeof *f->instructions, "instructions", err));
    f->instructions[f->n_instructions++] = in;
    return LS_OK;
}

/* Passes over a statement up to its ';', strings and braces included. */
static ls_status skip_statement(ls_ptx_reader *r, ls_error *err) {
    const int64_t began = r->line;
    int64_t depth = 0;
    for (;;) {
        char c;
        LS_TRY(ls_ptx_peek(r, &c, err));
        if (c == '\0') return ls_ptx_fail_at(r, began, err, "a statement does not end", (ls_ptx_name){NULL, 0});
        r->at++;
        if (c == '{') depth++;
        if (c == '}' && --depth < 0) return ls_ptx_fail(r, err, "a '}' without its '{'");
        if (c == ';' && depth == 0) return LS_OK;
        if (c != '"') continue;
        while (r->at < r->bytes && r->text[r->at] != '"' && r->text[r->at] != '\n') r->at++;
        if (r->at == r->bytes || r->text[r->at] != '"') return ls_ptx_fail(r, err, "a string does not end");
        r->at++;
    }
}

/* Directives that take the rest of their line: .loc and .file. */
static ls_status skip_line(ls_ptx_reader *r, ls_error *err) {
    (void)err;
    while (r->at < r->bytes && r->text[r->at] != '\n') r->at++;
    return LS_OK;
}

static ls_status read_loc(ls_ptx_reader *r, ls_error *err) {
    ls_ptx_operand file = {0}, line = {0};
    LS_TRY(ls_ptx_read_number(r, &file, err));
    LS_TRY(ls_ptx_read_number(r, &line, err));
    if (line.kind == LS_PTX_INT && line.value >= 0 && line.value <= INT32_MAX) r->source = (int32_t)line.value;
    return skip_line(r, err);
}

/* Behind ".param": the alignment, the type, the name, the size in brackets. */
static ls_status read_parameter(ls_ptx_reader *r, ls_ptx_parameter *out, ls_error *err) {
    ls_ptx_name name;
    ls_ptx_type type = LS_PTX_B64;
    ls_ptx_operand number = {0};
    int64_t bytes = 0;
    bool array;
    LS_TRY(ls_ptx_read_name(r, &name, err));
    for (;;) {
        if (ls_ptx_is(name, ".align")) {
            LS_TRY(ls_ptx_read_number(r, &number, err));
        } else if (ls_ptx_begins(name, ".b") || ls_ptx_begins(name, ".u") || ls_ptx_begins(name, ".s") ||
                   ls_ptx_begins(name, ".f") || ls_ptx_begins(name, ".pred") || ls_ptx_begins(name, ".texref")) {
            LS_TRY(read_ptx_type(r, name, &type, &bytes, err));
        } else if (name.text[0] != '.') {
            break;
        } /* .ptr and its space */
        LS_TRY(ls_ptx_read_name(r, &name, err));
    }
    *out = (ls_ptx_parameter){name, bytes, false};
    LS_TRY(ls_ptx_take(r, '[', &array, err));
    if (!array) return LS_OK;
    out->is_array = true;
    LS_TRY(ls_ptx_take(r, ']', &array, err));
    if (array) return LS_OK;
    LS_TRY(ls_ptx_read_number(r, &number, err));
    if (number.kind != LS_PTX_INT || !ls_mul_i64(bytes, number.value, &out->bytes))
        return ls_ptx_fail(r, err, "not the size of a parameter");
    return ls_ptx_expect(r, ']', err);
}

static ls_status read_parameters(ls_ptx_reader *r, ls_error *err) {
    ls_ptx_function *f = &r->function;
    bool more;
    char c;
    LS_TRY(ls_ptx_peek(r, &c, err));
    if (c == ')') return ls_ptx_expect(r, ')', err);
    do {
        ls_ptx_name space;
        ls_ptx_parameter parameter;
        LS_TRY(ls_ptx_read_name(r, &space, err));
        if (!ls_ptx_is(space, ".param") && !ls_ptx_is(space, ".reg"))
            return ls_ptx_fail_at(r, r->line, err, "not a parameter", space);
        LS_TRY(read_parameter(r, &parameter, err));
        if (f->n_parameters == 4096) return ls_ptx_fail(r, err, "a function has more than 4096 parameters");
        LS_TRY(ls_array_grow((void **)&f->parameters, &f->cap_parameters, f->n_parameters + 1, sizeof *f->parameters,
                             "parameters", err));
        f->parameters[f->n_parameters++] = parameter;
        LS_TRY(ls_ptx_take(r, ',', &more, err));
    } while (more);
    return ls_ptx_expect(r, ')', err);
}

static ls_status add_label(ls_ptx_reader *r, ls_ptx_name name, ls_error *err) {
    ls_ptx_function *f = &r->function;
    LS_TRY(ls_array_grow((void **)&f->labels, &f->cap_labels, f->n_labels + 1, sizeof *f->labels, "labels", err));
    f->labels[f->n_labels++] = (ls_ptx_label){name, (int32_t)f->n_instructions, r->scope, r->line};
    return LS_OK;
}

/* LABEL: .branchtargets A, B; */
static ls_status read_targets(ls_ptx_reader *r, ls_ptx_name label, ls_error *err) {
    ls_ptx_function *f = &r->function;
    bool more;
    LS_TRY(ls_array_grow((void **)&f->targets, &f->cap_targets, f->n_targets + 1, sizeof *f->targets, "targets", err));
    f->targets[f->n_targets] = (ls_ptx_targets){label, (int32_t)f->n_target_names, 0, r->scope};
    do {
        LS_TRY(ls_array_grow((void **)&f->target_names, &f->cap_target_names, f->n_target_names + 1,
                             sizeof *f->target_names, "target names", err));
        LS_TRY(ls_ptx_read_name(r, &f->target_names[f->n_target_names], err));
        f->n_target_names++;
        LS_TRY(ls_ptx_take(r, ',', &more, err));
    } while (more);
    f->targets[f->n_targets].n = (int32_t)f->n_target_names - f->targets[f->n_targets].first;
    f->n_targets++;
    return ls_ptx_expect(r, ';', err);
}

/* A name at the start of a statement: a label, a directive or an opcode. */
static ls_status read_named(ls_ptx_reader *r, ls_error *err) {
    ls_ptx_name name, next;
    bool colon;
    LS_TRY(ls_ptx_read_name(r, &name, err));
    if (ls_ptx_is(name, ".loc")) return read_loc(r, err);
    if (ls_ptx_is(name, ".file")) return skip_line(r, err);
    if (ls_ptx_is(name, ".reg")) return read_registers(r, err);
    if (name.text[0] == '.') return skip_statement(r, err); /* variables of a scope, pragmas, prototypes */
    LS_TRY(ls_ptx_take(r, ':', &colon, err));
    if (!colon) return read_instruction(r, name, -1, false, err);
    const int64_t at = r->at, line = r->line;
    char c;
    LS_TRY(ls_ptx_peek(r, &c, err));
    if (c == '.') {
        LS_TRY(ls_ptx_read_name(r, &next, err));
        if (ls_ptx_is(next, ".branchtargets")) return read_targets(r, name, err);
        if (ls_ptx_is(next, ".callprototype") || ls_ptx_is(next, ".calltargets")) return skip_statement(r, err);
        r->at = at;
        r->line = line;
    }
    return add_label(r, name, err);
}

static ls_status read_guarded(ls_ptx_reader *r, ls_error *err) {
    ls_ptx_operand guard;
    ls_ptx_name op;
    LS_TRY(read_simple(r, &guard, err));
    if (guard.kind != LS_PTX_REG || r->function.registers[guard.reg].type != LS_PTX_PRED)
        return ls_ptx_fail_at(r, r->line, err, "not a predicate", guard.name);
    LS_TRY(ls_ptx_read_name(r, &op, err));
    return read_instruction(r, op, guard.reg, guard.is_not, err);
}

/* From behind the opening brace to behind the closing one. */
static ls_status read_body(ls_ptx_reader *r, ls_error *err) {
    const int32_t bottom = r->depth;
    LS_TRY(open_scope(r, err));
    while (r->depth > bottom) {
        char c;
        LS_TRY(ls_ptx_peek(r, &c, err));
        if (c == '\0') return ls_ptx_fail_at(r, r->line, err, "the text ends inside a function", r->function.name);
        if (c == '{' || c == '}' || c == '@' || c == ';') r->at++;
        if (c == '{')
            LS_TRY(open_scope(r, err));
        else if (c == '}')
            close_scope(r);
        else if (c == '@')
            LS_TRY(read_guarded(r, err));
        else if (c != ';')
            LS_TRY(read_named(r, err));
    }
    return LS_OK;
}

static void reset_function(ls_ptx_reader *r, ls_ptx_name name) {
    ls_ptx_function *f = &r->function;
    f->name = f->result = name;
    f->n_parameters = f->n_registers = f->n_instructions = f->n_operands = 0;
    f->n_labels = f->n_targets = f->n_target_names = f->n_scopes = 0;
    memset(f->max_threads, 0, sizeof f->max_threads);
    r->n_known = r->n_declared = 0;
    r->scope = r->depth = r->source = 0;
    memset(r->buckets, -1, sizeof r->buckets);
}

/* .maxntid 128, 1, 1 and its like between head and body. */
static ls_status read_threads(ls_ptx_reader *r, ls_error *err) {
    bool more = true;
    for (int i = 0; i < 3 && more; i++) {
        ls_ptx_operand number = {0};
        LS_TRY(ls_ptx_read_number(r, &number, err));
        if (number.kind != LS_PTX_INT || number.value < 1 || number.value > 1024)
            return ls_ptx_fail(r, err, "a block of less than 1 or more than 1024 threads");
        r->function.max_threads[i] = (int32_t)number.value;
        LS_TRY(ls_ptx_take(r, ',', &more, err));
    }
    for (int i = 1; i < 3; i++)
        if (r->function.max_threads[i] == 0) r->function.max_threads[i] = 1;
    return LS_OK;
}

/* The arguments of a directive between head and body: numbers or a name in parentheses, with commas. */
static ls_status skip_numbers(ls_ptx_reader *r, ls_error *err) {
    bool more = true;
    while (more) {
        ls_ptx_operand number = {0};
        char c;
        LS_TRY(ls_ptx_peek(r, &c, err));
        if (!ls_ptx_is_digit(c)) return LS_OK;
        LS_TRY(ls_ptx_read_number(r, &number, err));
        LS_TRY(ls_ptx_take(r, ',', &more, err));
    }
    return LS_OK;
}

/* From behind .entry or .func. *has_body is false for a declaration. */
static ls_status read_function(ls_ptx_reader *r, bool is_entry, bool *has_body, ls_error *err) {
    ls_ptx_name name = {NULL, 0};
    bool taken;
    char c;
    reset_function(r, name);
    r->function.is_entry = is_entry;
    r->function.line = r->line;
    LS_TRY(ls_ptx_take(r, '(', &taken, err));
    if (taken) { /* what it returns */
        LS_TRY(read_parameters(r, err));
        if (r->function.n_parameters == 1) r->function.result = r->function.parameters[0].name;
        r->function.n_parameters = 0;
    }
    LS_TRY(ls_ptx_read_name(r, &r->function.name, err));
    LS_TRY(ls_ptx_take(r, '(', &taken, err));
    if (taken) LS_TRY(read_parameters(r, err));
    for (;;) {
        LS_TRY(ls_ptx_peek(r, &c, err));
        if (c == '{' || c == ';') break;
        LS_TRY(ls_ptx_read_name(r, &name, err));
        if (ls_ptx_is(name, ".maxntid") || ls_ptx_is(name, ".reqntid")) {
            LS_TRY(read_threads(r, err));
        } else if (name.text[0] == '.') {
            LS_TRY(skip_numbers(r, err));
        } else {
            return ls_ptx_fail_at(r, r->line, err, "not a directive of a function", name);
        }
    }
    r->at++;
    *has_body = c == '{';
    return *has_body ? read_body(r, err) : LS_OK;
}

/* Modules --------------------------------------------------------------------------------------------------------- */

/* Goes to the next line that begins with .version; the end of the text where there is none. */
static void find_module(ls_ptx_reader *r) {
    static const char word[] = ".version";
    while (r->at < r->bytes) {
        const int64_t left = r->bytes - r->at;
        if (left >= (int64_t)sizeof word - 1 && memcmp(r->text + r->at, word, sizeof word - 1) == 0) return;
        const char *end = memchr(r->text + r->at, '\n', (size_t)left);
        r->at = end == NULL ? r->bytes : end - r->text + 1;
        r->line += end != NULL;
    }
}

/* .section NAME { ... }: debug data, with no ';' behind it. */
static ls_status skip_section(ls_ptx_reader *r, ls_error *err) {
    const int64_t began = r->line;
    LS_TRY(ls_ptx_skip_space(r, err));
    while (r->at < r->bytes && r->text[r->at] != '}') {
        if (r->text[r->at] == '\n') r->line++;
        r->at++;
    }
    if (r->at == r->bytes) return ls_ptx_fail_at(r, began, err, "a section does not end", (ls_ptx_name){NULL, 0});
    r->at++;
    return LS_OK;
}

/* A directive of the module. *has_body tells of a function. */
static ls_status read_directive(ls_ptx_reader *r, ls_ptx_name name, bool *has_body, ls_error *err) {
    ls_ptx_operand number = {0};
    *has_body = false;
    if (ls_ptx_is(name, ".entry") || ls_ptx_is(name, ".func"))
        return read_function(r, ls_ptx_is(name, ".entry"), has_body, err);
    if (ls_ptx_is(name, ".address_size")) {
        LS_TRY(ls_ptx_read_number(r, &number, err));
        if (number.value != 32 && number.value != 64)
            return ls_ptx_fail(r, err, "an address size other than 32 and 64");
        r->address_bits = (int32_t)number.value;
        return LS_OK;
    }
    r->module += ls_ptx_is(name, ".version");
    if (ls_ptx_is(name, ".version") || ls_ptx_is(name, ".target") || ls_ptx_is(name, ".file") ||
        ls_ptx_is(name, ".loc"))
        return skip_line(r, err);
    if (ls_ptx_is(name, ".visible") || ls_ptx_is(name, ".extern") || ls_ptx_is(name, ".weak") ||
        ls_ptx_is(name, ".common"))
        return LS_OK; /* what follows says of what */
    if (ls_ptx_is(name, ".section")) {
        return skip_section(r, err);
    }
    return skip_statement(r, err); /* .global, .const, .shared, .alias, .pragma */
}

/* What cuobjdump writes in front of each part of a binary, the last of which may hold no PTX. */
static bool is_header(const ls_ptx_reader *r, int64_t at) {
    static const char *const words[] = {"Fatbin ", "====", "member "};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        const size_t n = strlen(words[i]);
        if ((size_t)(r->bytes - at) >= n && memcmp(r->text + at, words[i], n) == 0) return true;
    }
    return false;
}

ls_status ls_ptx_next(ls_ptx_reader *r, const ls_ptx_function **function, ls_error *err) {
    *function = NULL;
    for (;;) {
        ls_ptx_name name;
        bool has_body;
        char c;
        LS_TRY(ls_ptx_peek(r, &c, err));
        if (c == '\0') return LS_OK;
        if (c != '.') { /* between modules: headers of a dump */
            const int64_t line = r->line, at = r->at;
            find_module(r);
            if (r->at < r->bytes || is_header(r, at)) continue;
            return ls_ptx_fail_at(r, line, err, "no directive of PTX begins here", (ls_ptx_name){NULL, 0});
        }
        const ls_ptx_place place = {r->at, r->line, r->module};
        LS_TRY(ls_ptx_read_name(r, &name, err));
        LS_TRY(read_directive(r, name, &has_body, err));
        if (!has_body) continue;
        r->began = place;
        *function = &r->function;
        return LS_OK;
    }
}

ls_ptx_place ls_ptx_tell(const ls_ptx_reader *reader) { return reader->began; }

void ls_ptx_seek(ls_ptx_reader *reader, ls_ptx_place place) {
    reader->at = place.at;
    reader->line = place.line;
    reader->module = place.module;
}

int32_t ls_ptx_address_bits(const ls_ptx_reader *reader) { return reader->address_bits; }

ls_status ls_ptx_open(ls_ptx_reader **out, const char *text, int64_t bytes, const char *name, ls_error *err) {
    ls_ptx_reader *r;
    LS_TRY(ls_array_alloc((void **)&r, 1, sizeof *r, "reader of PTX", err));
    r->text = text;
    r->bytes = bytes;
    r->name = name;
    r->line = 1;
    r->address_bits = 64;
    find_module(r);
    if (r->at == bytes) {
        ls_ptx_close(r);
        return LS_FAIL(err, LS_ERR_FORMAT, "%s: no PTX: no line begins with .version", name);
    }
    *out = r;
    return LS_OK;
}

void ls_ptx_close(ls_ptx_reader *r) {
    if (r == NULL) return;
    ls_ptx_function *f = &r->function;
    free(f->parameters);
    free(f->registers);
    free(f->instructions);
    free(f->operands);
    free(f->labels);
    free(f->targets);
    free(f->target_names);
    free(f->scopes);
    free(r->known);
    free(r->declared);
    free(r);
}
