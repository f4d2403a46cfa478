/* The reader of machine code: lines, operands, what each instruction writes. Owns the function that it hands out. */
#define _GNU_SOURCE /* memmem */
#include "audit/sass.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "audit/sass_text.h"
#include "base/fnv.h"
#include "base/mem.h"

enum { LINE_MAX_BYTES = 65536, PARAMETERS_MAX = 1024, BUCKETS = 4096, BARRIERS = 16, OPERANDS_MAX = 24 };

/* What .nv.info says of one kernel; its parameters lie in a chain. */
typedef struct kernel_info {
    ls_ptx_name name;
    int32_t next, first; /* of the bucket; its parameters */
    int32_t max_threads[3], base;
} kernel_info;

typedef struct kernel_parameter {
    int32_t ordinal, offset, bytes, next;
} kernel_parameter;

struct ls_sass_reader {
    const char *text, *name;
    int64_t bytes, at, line;
    int32_t arch;
    kernel_info *infos;
    int64_t n_infos, cap_infos;
    kernel_parameter *parameters;
    int64_t n_parameters, cap_parameters;
    int32_t info;      /* the kernel whose section is read, -1 */
    int32_t attribute; /* of the entry that is read */
    int64_t numbers[16];
    int32_t n_numbers;
    ls_ptx_name begun; /* a function whose head has been read */
    bool has_begun;
    ls_sass_function out;
    int32_t offsets[PARAMETERS_MAX];
    char parameter_names[PARAMETERS_MAX][12];
    int64_t *addresses; /* [instructions] of the machine */
    int64_t cap_addresses;
    ls_ptx_operand reconverges[BARRIERS]; /* the targets of BSSY */
    int64_t last_address;
    int32_t buckets[BUCKETS];
};

enum { ATTRIBUTE_NONE, ATTRIBUTE_PARAMETER, ATTRIBUTE_BANK, ATTRIBUTE_THREADS };

static ls_status fail_at(const ls_sass_reader *r, ls_error *err, const char *sentence, ls_ptx_name name) {
    const int shown = name.bytes > 80 ? 80 : name.bytes;
    char clean[81];
    if (name.text == NULL) return LS_FAIL(err, LS_ERR_FORMAT, "%s:%lld: %s", r->name, (long long)r->line, sentence);
    for (int i = 0; i < shown; i++) clean[i] = name.text[i] >= ' ' && name.text[i] < 127 ? name.text[i] : '?';
    clean[shown] = 0;
    return LS_FAIL(err, LS_ERR_FORMAT, "%s:%lld: %s: '%s'", r->name, (long long)r->line, sentence, clean);
}

/* The next line without its end and the white space around it; false at the end of the text. */
static ls_status next_line(ls_sass_reader *r, ls_ptx_name *line, bool *any, ls_error *err) {
    *any = r->at < r->bytes;
    if (!*any) return LS_OK;
    const char *end = memchr(r->text + r->at, '\n', (size_t)(r->bytes - r->at));
    const int64_t stop = end == NULL ? r->bytes : end - r->text;
    r->line++;
    if (stop - r->at > LINE_MAX_BYTES) return fail_at(r, err, "a line is longer than 65536 bytes", (ls_ptx_name){0});
    *line = ls_sass_trim((ls_ptx_name){r->text + r->at, (int32_t)(stop - r->at)});
    r->at = end == NULL ? r->bytes : stop + 1;
    return LS_OK;
}

/* .nv.info -------------------------------------------------------------------------------------------------------- */

static uint64_t label_bucket(ls_ptx_name name) { return ls_fnv_mix(LS_FNV_START, name.text, name.bytes) % BUCKETS; }

static int32_t find_info(const ls_sass_reader *r, ls_ptx_name name) {
    for (int32_t i = r->buckets[label_bucket(name)]; i >= 0; i = r->infos[i].next)
        if (ls_ptx_same(r->infos[i].name, name)) return i;
    return -1;
}

static ls_status open_info(ls_sass_reader *r, ls_ptx_name name, ls_error *err) {
    const uint64_t bucket = label_bucket(name);
    if (r->n_infos == 1000000) return fail_at(r, err, "more than a million kernels", (ls_ptx_name){0});
    LS_TRY(ls_array_grow((void **)&r->infos, &r->cap_infos, r->n_infos + 1, sizeof *r->infos, "kernels", err));
    r->info = (int32_t)r->n_infos++;
    r->infos[r->info] = (kernel_info){.name = name, .next = r->buckets[bucket], .first = -1, .base = -1};
    r->buckets[bucket] = r->info;
    return LS_OK;
}

static ls_status add_parameter(ls_sass_reader *r, kernel_parameter parameter, ls_error *err) {
    kernel_info *info = &r->infos[r->info];
    if (parameter.ordinal >= PARAMETERS_MAX) return LS_OK; /* such a kernel's are one block */
    if (r->n_parameters == 16000000) return fail_at(r, err, "too many parameters", (ls_ptx_name){0});
    LS_TRY(ls_array_grow((void **)&r->parameters, &r->cap_parameters, r->n_parameters + 1, sizeof *r->parameters,
                         "parameters", err));
    parameter.next = info->first;
    info->first = (int32_t)r->n_parameters;
    r->parameters[r->n_parameters++] = parameter;
    return LS_OK;
}

/* Takes what the entry says once its numbers are there: format and attribute stand in front. */
static ls_status take_entry(ls_sass_reader *r, ls_error *err) {
    const int64_t *n = r->numbers;
    if (r->attribute == ATTRIBUTE_PARAMETER && r->n_numbers == 9) {
        const uint64_t word =
            (uint64_t)(n[5] & 255) | (uint64_t)(n[6] & 255) << 8 | (uint64_t)(n[7] & 255) << 16 | (uint64_t)n[8] << 24;
        r->attribute = ATTRIBUTE_NONE;
        return add_parameter(r,
                             (kernel_parameter){.ordinal = (int32_t)(n[3] & 0xFFFF),
                                                .offset = (int32_t)(n[4] & 0xFFFF),
                                                .bytes = (int32_t)((word >> 18) & 0x3FFF)},
                             err);
    }
    if (r->attribute == ATTRIBUTE_BANK && r->n_numbers == 4) r->infos[r->info].base = (int32_t)(n[2] & 0xFFFF);
    if (r->attribute == ATTRIBUTE_THREADS && r->n_numbers == 5)
        for (int i = 0; i < 3; i++)
            if (n[2 + i] >= 1 && n[2 + i] <= 1024) r->infos[r->info].max_threads[i] = (int32_t)n[2 + i];
    return LS_OK;
}

/* The numbers of a line of data; names and differences are passed over. */
static ls_status read_data(ls_sass_reader *r, ls_ptx_name line, ls_error *err) {
    ls_ptx_name token;
    const int32_t skip = ls_ptx_begins(line, ".byte") ? 5 : ls_ptx_begins(line, ".short") ? 6 : 5;
    line = ls_sass_trim((ls_ptx_name){line.text + skip, line.bytes - skip});
    while (ls_sass_split(&line, ',', &token)) {
        int64_t value;
        if (!ls_sass_integer(token, &value) || r->n_numbers == 16) continue;
        r->numbers[r->n_numbers++] = value;
        LS_TRY(take_entry(r, err));
    }
    return LS_OK;
}

static void begin_attribute(ls_sass_reader *r, ls_ptx_name line) {
    static const struct {
        const char *name;
        int32_t attribute;
    } known[] = {{"EIATTR_KPARAM_INFO", ATTRIBUTE_PARAMETER},
                 {"EIATTR_PARAM_CBANK", ATTRIBUTE_BANK},
                 {"EIATTR_MAX_THREADS", ATTRIBUTE_THREADS},
                 {"EIATTR_REQNTID", ATTRIBUTE_THREADS}};
    r->attribute = ATTRIBUTE_NONE;
    r->n_numbers = 0;
    for (size_t i = 0; i < sizeof known / sizeof known[0] && r->info >= 0; i++)
        if (ls_sass_ends(line, known[i].name)) r->attribute = known[i].attribute;
}

/* Functions ------------------------------------------------------------------------------------------------------- */

static ls_sass_bank bank_of(int32_t arch) {
    if (arch >= 100) return (ls_sass_bank){0x380, 0x360, 0x370};
    return (ls_sass_bank){arch >= 90 ? 0x210 : 0x160, 0, 0xC};
}

static ls_status push_parameter(ls_sass_reader *r, int32_t offset, int32_t bytes, ls_error *err) {
    ls_ptx_function *f = &r->out.f;
    char *name = r->parameter_names[f->n_parameters];
    LS_TRY(ls_array_grow((void **)&f->parameters, &f->cap_parameters, f->n_parameters + 1, sizeof *f->parameters,
                         "parameters", err));
    const int n = snprintf(name, sizeof r->parameter_names[0], "param%lld", (long long)f->n_parameters);
    r->offsets[f->n_parameters] = offset;
    f->parameters[f->n_parameters++] = (ls_ptx_parameter){{name, n}, bytes, bytes > 8};
    return LS_OK;
}

/* The parameters that .nv.info tells, or all of them as one. */
static ls_status set_parameters(ls_sass_reader *r, ls_error *err) {
    const int32_t found = find_info(r, r->out.f.name);
    const kernel_info *info = found < 0 ? NULL : &r->infos[found];
    int32_t n = 0;
    r->out.f.n_parameters = 0;
    r->out.bank = bank_of(r->arch);
    memset(r->out.f.max_threads, 0, sizeof r->out.f.max_threads);
    if (info == NULL || info->first < 0) return push_parameter(r, 0, 65536, err);
    memcpy(r->out.f.max_threads, info->max_threads, sizeof info->max_threads);
    if (info->base >= 0) r->out.bank.parameters = info->base;
    for (int32_t p = info->first; p >= 0; p = r->parameters[p].next)
        if (r->parameters[p].ordinal >= n) n = r->parameters[p].ordinal + 1;
    for (int32_t i = 0; i < n; i++) LS_TRY(push_parameter(r, INT32_MAX, 0, err));
    for (int32_t p = info->first; p >= 0; p = r->parameters[p].next) {
        const kernel_parameter *k = &r->parameters[p];
        r->offsets[k->ordinal] = k->offset;
        r->out.f.parameters[k->ordinal].bytes = k->bytes;
        r->out.f.parameters[k->ordinal].is_array = k->bytes > 8;
    }
    return LS_OK;
}

static ls_status set_registers(ls_sass_reader *r, ls_error *err) {
    ls_ptx_function *f = &r->out.f;
    LS_TRY(ls_array_grow((void **)&f->registers, &f->cap_registers, LS_SASS_REGISTERS, sizeof *f->registers,
                         "registers", err));
    f->n_registers = LS_SASS_REGISTERS;
    for (int i = 0; i < LS_SASS_REGISTERS; i++)
        f->registers[i] = (ls_ptx_register){{"R", 1}, i < LS_SASS_PREDICATE ? LS_PTX_B32 : LS_PTX_PRED};
    LS_TRY(ls_array_grow((void **)&f->scopes, &f->cap_scopes, 2, sizeof *f->scopes, "scopes", err));
    f->scopes[0] = -1;
    f->n_scopes = 1;
    return LS_OK;
}

static ls_status begin_function(ls_sass_reader *r, ls_error *err) {
    ls_ptx_function *f = &r->out.f;
    f->name = r->begun;
    f->is_entry = true;
    f->line = r->line;
    f->n_instructions = f->n_operands = f->n_labels = 0;
    r->out.refused = NULL;
    r->out.offsets = r->offsets;
    r->last_address = -1;
    for (int i = 0; i < BARRIERS; i++) r->reconverges[i] = (ls_ptx_operand){.kind = LS_PTX_SINK, .reg = -1};
    LS_TRY(ls_array_grow((void **)&f->operands, &f->cap_operands, 16, sizeof *f->operands, "operands", err));
    LS_TRY(set_registers(r, err));
    return set_parameters(r, err);
}

static ls_status push_operand(ls_sass_reader *r, ls_ptx_operand operand, ls_error *err) {
    ls_ptx_function *f = &r->out.f;
    if (f->n_operands > 16 * (int64_t)LS_PTX_INSTRUCTIONS_MAX)
        return fail_at(r, err, "a function has too many operands", (ls_ptx_name){0});
    LS_TRY(ls_array_grow((void **)&f->operands, &f->cap_operands, f->n_operands + 1, sizeof *f->operands, "operands",
                         err));
    f->operands[f->n_operands++] = operand;
    return LS_OK;
}

static ls_status push_instruction(ls_sass_reader *r, ls_ptx_instruction in, ls_error *err) {
    ls_ptx_function *f = &r->out.f;
    if (f->n_instructions == LS_PTX_INSTRUCTIONS_MAX)
        return fail_at(r, err, "a function passes 4000000 instructions", (ls_ptx_name){0});
    LS_TRY(ls_array_grow((void **)&f->instructions, &f->cap_instructions, f->n_instructions + 1,
                         sizeof *f->instructions, "instructions", err));
    LS_TRY(ls_array_grow((void **)&r->addresses, &r->cap_addresses, f->n_instructions + 1, sizeof *r->addresses,
                         "instructions", err));
    r->addresses[f->n_instructions] = r->last_address;
    in.n = (int32_t)(f->n_operands - in.first);
    in.line = r->line;
    f->instructions[f->n_instructions++] = in;
    return LS_OK;
}

static ls_status add_label(ls_sass_reader *r, ls_ptx_name name, int64_t at, ls_error *err) {
    ls_ptx_function *f = &r->out.f;
    LS_TRY(ls_array_grow((void **)&f->labels, &f->cap_labels, f->n_labels + 1, sizeof *f->labels, "labels", err));
    f->labels[f->n_labels++] = (ls_ptx_label){name, (int32_t)at, 0, r->line};
    return LS_OK;
}

static ls_status push_jump(ls_sass_reader *r, ls_ptx_name label, int32_t guard, bool guard_not, ls_ptx_name shown,
                           ls_error *err) {
    const ls_ptx_instruction in = {.op = {"bra", 3},
                                   .guard = guard,
                                   .guard_not = guard_not,
                                   .first = (int32_t)r->out.f.n_operands,
                                   .shown = shown};
    LS_TRY(push_operand(r, (ls_ptx_operand){.kind = LS_PTX_SYMBOL, .reg = -1, .name = label}, err));
    return push_instruction(r, in, err);
}

/* Instructions ---------------------------------------------------------------------------------------------------- */

typedef struct line_operands {
    int32_t n;
    ls_ptx_operand all[OPERANDS_MAX];
} line_operands;

static bool is_predicate(const ls_ptx_operand *o) {
    return (o->kind == LS_PTX_REG && o->reg >= LS_SASS_PREDICATE) || (o->kind == LS_PTX_INT && o->scale == 1);
}

static bool is_register(const ls_ptx_operand *o) {
    return (o->kind == LS_PTX_REG && o->reg < LS_SASS_PREDICATE) ||
           (o->kind == LS_PTX_INT && o->scale == 2); /* RZ, which is the number 0 */
}

static ls_ptx_operand as_result(ls_ptx_operand o, bool is_tail) {
    if (o.kind != LS_PTX_REG) o = (ls_ptx_operand){.kind = LS_PTX_SINK, .reg = -1};
    o.is_tail = is_tail;
    return o;
}

/* The register behind, as the next part of a wide result or summand. */
static ls_ptx_operand operand_part(ls_ptx_operand o, int32_t part, bool is_tail) {
    const int32_t end = o.reg < LS_SASS_UNIFORM ? LS_SASS_UNIFORM : LS_SASS_PREDICATE;
    o.is_tail = is_tail;
    if (o.kind == LS_PTX_BANK) o.value += 4 * part;
    if (o.kind == LS_PTX_INT && o.scale != 2) o.value = o.value < 0 ? -1 : 0;
    if (o.kind != LS_PTX_REG) return o;
    o.reg += part;
    if (part > 0 && o.reg >= end) o = (ls_ptx_operand){.kind = LS_PTX_FLOAT, .reg = -1, .is_tail = is_tail};
    return o;
}

static ls_status push_results(ls_sass_reader *r, const ls_ptx_operand *o, int32_t width, bool *any, ls_error *err) {
    for (int32_t part = 0; part < width; part++) {
        LS_TRY(push_operand(r, as_result(operand_part(*o, part, *any), *any), err));
        *any = true;
    }
    return LS_OK;
}

/* All predicates of threads: what R2P writes. */
static ls_status push_all_predicates(ls_sass_reader *r, ls_error *err) {
    for (int32_t p = LS_SASS_PREDICATE; p < LS_SASS_UPREDICATE - 1; p++)
        LS_TRY(push_operand(r, (ls_ptx_operand){.kind = LS_PTX_REG, .reg = p, .is_tail = p > LS_SASS_PREDICATE}, err));
    return LS_OK;
}

/* Results first: predicates in front, a register, predicates behind it. *at is the first source then. */
static ls_status push_written(ls_sass_reader *r, ls_ptx_name op, const line_operands *all, int32_t *at, ls_error *err) {
    const ls_sass_form form = ls_sass_form_of(op);
    int32_t front = 0, i = 0;
    bool any = false;
    *at = 0;
    if (form.writes_predicates) {
        LS_TRY(push_all_predicates(r, err));
        *at = all->n < 1 ? 0 : 1;
        return LS_OK;
    }
    while (front < all->n && front < form.predicates && is_predicate(&all->all[front])) front++;
    i = front;
    if (form.registers > 0 && i < all->n && is_register(&all->all[i]))
        LS_TRY(push_results(r, &all->all[i++], form.registers, &any, err));
    for (int32_t k = 0; k < front; k++) LS_TRY(push_results(r, &all->all[k], 1, &any, err));
    for (int32_t k = 0; k < form.carries && i < all->n && is_predicate(&all->all[i]); k++)
        LS_TRY(push_results(r, &all->all[i++], 1, &any, err));
    if (!any) LS_TRY(push_operand(r, (ls_ptx_operand){.kind = LS_PTX_SINK, .reg = -1}, err));
    *at = i;
    return LS_OK;
}

static ls_status push_address(ls_sass_reader *r, ls_ptx_operand o, ls_error *err) {
    const int32_t uniform = (int32_t)o.is_tail; /* as ls_sass_operand leaves it: one is behind */
    o.is_tail = false;
    LS_TRY(push_operand(r, o, err));
    if (uniform == 0 && !o.is_wide) return LS_OK;
    ls_ptx_operand upper = {.kind = LS_PTX_INT, .reg = -1, .is_tail = true};
    if (o.is_wide && o.reg >= 0) upper = operand_part((ls_ptx_operand){.kind = LS_PTX_REG, .reg = o.reg}, 1, true);
    return push_operand(r, upper, err);
}

static ls_status push_sources(ls_sass_reader *r, ls_ptx_name op, const line_operands *all, int32_t at, ls_error *err) {
    const bool is_wide = ls_ptx_has(op, "MAD.WIDE");
    const int32_t first = at;
    for (; at < all->n; at++) {
        const ls_ptx_operand *o = &all->all[at];
        if (o->kind == LS_PTX_ADDRESS) {
            LS_TRY(push_address(r, *o, err));
            continue;
        }
        LS_TRY(push_operand(r, *o, err));
        if (is_wide && at - first == 2) LS_TRY(push_operand(r, operand_part(*o, 1, true), err));
    }
    return LS_OK;
}

/* HFMA2 with factors of 0 is how a constant of two halves is set. */
static bool is_constant(ls_ptx_name op, line_operands *all) {
    if (!ls_ptx_begins(op, "HFMA2") || all->n != 5 || !is_register(&all->all[0])) return false;
    for (int i = 1; i < 3; i++)
        if (all->all[i].kind != LS_PTX_INT || all->all[i].scale != 2) return false;
    uint32_t upper, lower;
    if (!ls_sass_half(all->all[3].name, &upper) || !ls_sass_half(all->all[4].name, &lower)) return false;
    all->all[1] = (ls_ptx_operand){.kind = LS_PTX_INT, .reg = -1, .value = (int32_t)(upper << 16 | lower)};
    all->n = 2;
    return true;
}

static ls_status read_operands(ls_sass_reader *r, ls_ptx_name text, line_operands *all, ls_error *err) {
    ls_ptx_name token;
    all->n = 0;
    while (ls_sass_split(&text, ',', &token)) {
        if (all->n + 2 > OPERANDS_MAX) return fail_at(r, err, "an instruction has too many operands", token);
        ls_ptx_operand uniform;
        bool has_uniform = false;
        if (!ls_sass_operand(token, &all->all[all->n], &uniform, &has_uniform))
            return fail_at(r, err, "not an operand", token);
        if (all->all[all->n].kind == LS_PTX_ADDRESS) all->all[all->n].is_tail = has_uniform;
        all->n++;
        if (!has_uniform) continue;
        all->all[all->n++] = uniform;
        if (uniform.is_wide) {
            all->all[all->n] = operand_part(uniform, 1, true);
            all->all[all->n++].is_wide = false;
        }
        if (all->n + 2 > OPERANDS_MAX) return fail_at(r, err, "an instruction has too many operands", token);
    }
    return LS_OK;
}

/* Where a jump goes: the first operand that is a label or a number. */
static bool target_of(const line_operands *all, ls_ptx_name *label) {
    for (int32_t i = all->n - 1; i >= 0; i--) {
        const ls_ptx_operand *o = &all->all[i];
        const bool number = o->kind == LS_PTX_INT && o->scale == 0 && o->name.text != NULL;
        if (!number && !(o->kind == LS_PTX_SYMBOL && o->scale == 1)) continue;
        *label = o->name;
        return true;
    }
    return false;
}

static int32_t barrier_of(const line_operands *all) {
    for (int32_t i = 0; i < all->n; i++) {
        const ls_ptx_name name = all->all[i].name;
        int64_t number;
        if (all->all[i].kind != LS_PTX_SYMBOL || name.bytes < 2 || name.text[0] != 'B') continue;
        const ls_ptx_name digits = {name.text + 1, name.bytes - 1};
        if (ls_sass_integer(digits, &number) && number >= 0 && number < BARRIERS) return (int32_t)number;
    }
    return -1;
}

/* A jump through a register: nvdisasm names its targets behind it. */
static ls_status read_table(ls_sass_reader *r, ls_ptx_name text, ls_ptx_name op, ls_error *err) {
    static const char word[] = "BRANCH_TARGETS";
    const char *at = memmem(text.text, (size_t)text.bytes, word, sizeof word - 1);
    ls_ptx_name list = {NULL, 0}, token;
    if (at != NULL) {
        at += sizeof word - 1;
        list = ls_sass_trim((ls_ptx_name){at, (int32_t)(text.text + text.bytes - at)});
    }
    if (list.bytes == 0) {
        r->out.refused = "a jump through a register whose targets are not told";
        return push_instruction(
            r, (ls_ptx_instruction){.op = {"exit", 4}, .guard = -1, .first = (int32_t)r->out.f.n_operands, .shown = op},
            err);
    }
    while (ls_sass_split(&list, ',', &token)) {
        int32_t n = 0;
        while (n < token.bytes && token.text[n] != '"' && token.text[n] != '*' && token.text[n] != ')') n++;
        LS_TRY(push_jump(r, ls_sass_trim((ls_ptx_name){token.text, n}), LS_SASS_UNSEEN, false, op, err));
    }
    r->out.f.instructions[r->out.f.n_instructions - 1].guard = -1;
    return LS_OK;
}

/* Control: jumps, ends, reconvergence. *is_done is false for what is none of them. */
static ls_status read_control(ls_sass_reader *r, ls_ptx_name op, ls_ptx_name text, int32_t guard, bool guard_not,
                              bool *is_done, ls_error *err) {
    line_operands all;
    ls_ptx_name label;
    *is_done = true;
    if (ls_ptx_begins(op, "BRX") || ls_ptx_begins(op, "JMX")) {
        if (guard >= 0) {
            r->out.refused = "a jump through a register under a condition";
            return LS_OK;
        }
        return read_table(r, text, op, err);
    }
    if (ls_sass_is_op(op, "EXIT") || ls_sass_is_op(op, "RET") || ls_sass_is_op(op, "KILL"))
        return push_instruction(r,
                                (ls_ptx_instruction){.op = {"exit", 4},
                                                     .guard = guard,
                                                     .guard_not = guard_not,
                                                     .first = (int32_t)r->out.f.n_operands,
                                                     .shown = op},
                                err);
    const bool jumps = ls_sass_is_op(op, "BRA") || ls_sass_is_op(op, "JMP");
    const bool sets = ls_sass_is_op(op, "BSSY"), joins = ls_sass_is_op(op, "BSYNC");
    *is_done = jumps || sets || joins;
    if (!*is_done) return LS_OK;
    LS_TRY(read_operands(r, text, &all, err));
    const bool has_target = target_of(&all, &label);
    if (jumps && !has_target) {
        r->out.refused = "a jump whose target is not told";
        return LS_OK;
    }
    if (jumps) {
        /* a second predicate, as in BRA.DIV or @P0 BRA !UP0, is not seen */
        const bool second = all.n > 1;
        return push_jump(r, label, second ? LS_SASS_UNSEEN : guard, !second && guard_not, op, err);
    }
    const int32_t barrier = barrier_of(&all);
    if (sets && barrier >= 0 && has_target) r->reconverges[barrier].kind = LS_PTX_SYMBOL;
    if (sets && barrier >= 0 && has_target) r->reconverges[barrier].name = label;
    if (joins && barrier >= 0 && r->reconverges[barrier].kind == LS_PTX_SYMBOL)
        return push_jump(r, r->reconverges[barrier].name, LS_SASS_UNSEEN, false, op, err);
    return LS_OK;
}

/* An access under a predicate becomes one behind a jump: `around` names where it leads. */
static ls_status read_plain(ls_sass_reader *r, ls_ptx_name op, ls_ptx_name text, int32_t guard, bool guard_not,
                            ls_ptx_name around, ls_error *err) {
    line_operands all;
    int32_t at;
    const bool jumps = guard >= 0 && ls_sass_is_access(op);
    LS_TRY(read_operands(r, text, &all, err));
    if (jumps) LS_TRY(push_jump(r, around, guard, !guard_not, op, err));
    ls_ptx_instruction in = {.op = op,
                             .guard = jumps ? -1 : guard,
                             .guard_not = !jumps && guard_not,
                             .first = (int32_t)r->out.f.n_operands,
                             .shown = op};
    if (is_constant(op, &all)) in.op = (ls_ptx_name){"MOV", 3};
    if (ls_sass_is_op(op, "CALL") && target_of(&all, &all.all[0].name)) { /* ls_sass_calls adds what it writes */
        LS_TRY(push_operand(r, (ls_ptx_operand){.kind = LS_PTX_SYMBOL, .reg = -1, .name = all.all[0].name}, err));
        return push_instruction(r, in, err);
    }
    LS_TRY(push_written(r, in.op, &all, &at, err));
    LS_TRY(push_sources(r, in.op, &all, at, err));
    LS_TRY(push_instruction(r, in, err));
    return jumps ? add_label(r, around, r->out.f.n_instructions, err) : LS_OK;
}

static ls_status read_guard(ls_sass_reader *r, ls_ptx_name *text, int32_t *guard, bool *guard_not, bool *never,
                            ls_error *err) {
    ls_ptx_operand o, uniform;
    bool has_uniform;
    int32_t n = 0;
    *guard = -1;
    *guard_not = *never = false;
    if (text->bytes == 0 || text->text[0] != '@') return LS_OK;
    while (n < text->bytes && text->text[n] != ' ' && text->text[n] != '\t') n++;
    if (!ls_sass_operand((ls_ptx_name){text->text + 1, n - 1}, &o, &uniform, &has_uniform) || !is_predicate(&o))
        return fail_at(r, err, "not a predicate", *text);
    if (o.kind == LS_PTX_REG) {
        *guard = o.reg;
        *guard_not = o.is_not;
    } else {
        *never = o.value == 0;
    }
    *text = ls_sass_trim((ls_ptx_name){text->text + n, text->bytes - n});
    return LS_OK;
}

/* Behind the address: an instruction up to its ';'. */
static ls_status read_instruction(ls_sass_reader *r, ls_ptx_name text, ls_ptx_name around, int64_t address,
                                  ls_error *err) {
    int32_t guard, n = 0;
    bool guard_not, never, is_done;
    const char *end = memrchr(text.text, ';', (size_t)text.bytes);
    const char *comment = memmem(text.text, (size_t)text.bytes, "/*", 2);
    if (comment != NULL) end = memrchr(text.text, ';', (size_t)(comment - text.text));
    if (end == NULL) return fail_at(r, err, "an instruction without its ';'", text);
    text = ls_sass_trim((ls_ptx_name){text.text, (int32_t)(end - text.text)});
    if (text.bytes > 0 && text.text[0] == '{') text = ls_sass_trim((ls_ptx_name){text.text + 1, text.bytes - 1});
    if (address <= r->last_address) return fail_at(r, err, "addresses of instructions do not rise", around);
    r->last_address = address;
    LS_TRY(read_guard(r, &text, &guard, &guard_not, &never, err));
    while (n < text.bytes && text.text[n] != ' ' && text.text[n] != '\t') n++;
    const ls_ptx_name op = {text.text, n};
    if (n == 0) return fail_at(r, err, "an instruction without a name", around);
    const ls_ptx_name rest = ls_sass_trim((ls_ptx_name){text.text + n, text.bytes - n});
    if (never || ls_sass_is_op(op, "NOP")) return LS_OK;
    LS_TRY(read_control(r, op, rest, guard, guard_not, &is_done, err));
    if (!is_done) LS_TRY(read_plain(r, op, rest, guard, guard_not, around, err));
    return LS_OK;
}

/* Labels of jumps that go to an address, and ends for jumps that leave the function ------------------------------- */

/* The first instruction at an address or behind it; the jump to a NOP goes on to what follows. */
static int64_t find_address(const ls_sass_reader *r, int64_t address) {
    int64_t low = 0, high = r->out.f.n_instructions;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (r->addresses[middle] < address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int by_sass_name(const void *a, const void *b) {
    const ls_ptx_label *x = a, *y = b;
    return ls_ptx_compare(x->name, y->name);
}

static ls_status label_addresses(ls_sass_reader *r, ls_error *err) {
    ls_ptx_function *f = &r->out.f;
    int64_t n = f->n_labels;
    for (int64_t i = 0; i < f->n_instructions; i++) {
        const ls_ptx_instruction *in = &f->instructions[i];
        int64_t address;
        if (!ls_ptx_is(in->op, "bra") && !ls_sass_is_op(in->op, "CALL")) continue;
        const ls_ptx_name name = f->operands[in->first].name;
        if (name.text == NULL || name.text[0] != '0' || !ls_sass_integer(name, &address)) continue;
        LS_TRY(add_label(r, name, find_address(r, address), err));
    }
    if (f->n_labels == n) return LS_OK;
    qsort(f->labels + n, (size_t)(f->n_labels - n), sizeof *f->labels, by_sass_name);
    for (int64_t i = n; i < f->n_labels; i++)
        if (n == i || by_sass_name(&f->labels[n - 1], &f->labels[i]) != 0) f->labels[n++] = f->labels[i];
    f->n_labels = n;
    return LS_OK;
}

/* Sections and lines ---------------------------------------------------------------------------------------------- */

static void begin_section(ls_sass_reader *r, ls_ptx_name line, bool *is_function, ls_error *err, ls_status *status) {
    static const char info[] = ".nv.info.", text[] = ".text.";
    int32_t n = 0;
    line = ls_sass_trim((ls_ptx_name){line.text + 8, line.bytes - 8}); /* behind ".section" */
    while (n < line.bytes && line.text[n] != ',') n++;
    line.bytes = n;
    r->info = -1;
    r->attribute = ATTRIBUTE_NONE;
    *is_function = false;
    if (ls_ptx_begins(line, info))
        *status = open_info(r, (ls_ptx_name){line.text + 9, line.bytes - 9}, err);
    else if (ls_ptx_begins(line, text)) {
        r->begun = (ls_ptx_name){line.text + 6, line.bytes - 6};
        *is_function = true;
    }
}

/* A line that starts a section or a function: *is_head; *is_function where a body may follow. */
static ls_status read_head(ls_sass_reader *r, ls_ptx_name line, bool *is_head, bool *is_function, ls_error *err) {
    static const char word[] = "Function :";
    ls_status status = LS_OK;
    *is_function = false;
    *is_head = true;
    if (ls_ptx_begins(line, ".section") && line.bytes > 8 && (line.text[8] == ' ' || line.text[8] == '\t')) {
        begin_section(r, line, is_function, err, &status);
        return status;
    }
    if (ls_ptx_begins(line, word)) {
        r->begun = ls_sass_trim((ls_ptx_name){line.text + 10, line.bytes - 10});
        *is_function = true;
        return LS_OK;
    }
    *is_head = false;
    const char *arch = memmem(line.text, (size_t)line.bytes, "sm_", 3);
    if (arch != NULL && (ls_ptx_begins(line, ".target") || ls_ptx_begins(line, "code for"))) {
        const char *end = line.text + line.bytes;
        int32_t number = 0;
        for (arch += 3; arch < end && *arch >= '0' && *arch <= '9' && number < 1000; arch++)
            number = number * 10 + (*arch - '0');
        if (number < 70) return fail_at(r, err, "machine code older than sm_70 is not read", line);
        r->arch = number;
    }
    return LS_OK;
}

/* The slash-star address star-slash in front of a line; false where it has none. */
static bool take_address(ls_ptx_name *line, ls_ptx_name *around, int64_t *address) {
    int32_t n = 2;
    int64_t value = 0;
    if (line->bytes < 6 || line->text[0] != '/' || line->text[1] != '*') return false;
    for (; n < line->bytes && n < 14 && ls_sass_digit(line->text[n]) >= 0; n++)
        value = value * 16 + ls_sass_digit(line->text[n]);
    if (n == 2 || n + 2 > line->bytes || line->text[n] != '*' || line->text[n + 1] != '/') return false;
    *address = value;
    *around = (ls_ptx_name){line->text, n};
    *line = ls_sass_trim((ls_ptx_name){line->text + n + 2, line->bytes - n - 2});
    return true;
}

static bool is_data(ls_ptx_name line) {
    return ls_ptx_begins(line, ".byte") || ls_ptx_begins(line, ".short") || ls_ptx_begins(line, ".word");
}

static ls_status read_line(ls_sass_reader *r, ls_ptx_name line, bool inside, ls_error *err) {
    ls_ptx_name around = {NULL, 0};
    int64_t address = 0;
    if (ls_ptx_begins(line, "//-----")) {
        begin_attribute(r, line);
        return LS_OK;
    }
    const bool addressed = take_address(&line, &around, &address);
    if (line.bytes == 0 || ls_ptx_begins(line, "//")) return LS_OK;
    if (is_data(line)) return r->attribute != ATTRIBUTE_NONE ? read_data(r, line, err) : LS_OK;
    if (!inside) return LS_OK;
    if (addressed && !ls_ptx_begins(line, "/*")) return read_instruction(r, line, around, address, err);
    if (!addressed && line.text[line.bytes - 1] == ':')
        return add_label(r, (ls_ptx_name){line.text, line.bytes - 1}, r->out.f.n_instructions, err);
    return LS_OK;
}

ls_status ls_sass_next(ls_sass_reader *r, const ls_sass_function **function, ls_error *err) {
    bool inside = r->has_begun;
    *function = NULL;
    if (inside) LS_TRY(begin_function(r, err));
    r->has_begun = false;
    for (;;) {
        ls_ptx_name line;
        bool any, is_head = false, is_function = false;
        LS_TRY(next_line(r, &line, &any, err));
        if (any && line.bytes == 0) continue;
        if (any) LS_TRY(read_head(r, line, &is_head, &is_function, err));
        if (any && !is_head) {
            LS_TRY(read_line(r, line, inside, err));
            continue;
        }
        const bool has_one = inside && (r->out.f.n_instructions > 0 || r->out.refused != NULL);
        if (has_one) {
            r->has_begun = any && is_function;
            LS_TRY(label_addresses(r, err));
            LS_TRY(ls_sass_calls(&r->out.f, err));
            *function = &r->out;
            return LS_OK;
        }
        if (!any) return LS_OK;
        inside = is_function;
        if (inside) LS_TRY(begin_function(r, err));
    }
}

bool ls_sass_is(const char *text, int64_t bytes) {
    return bytes > 0 && (memmem(text, (size_t)bytes, "Function : ", 11) != NULL ||
                         memmem(text, (size_t)bytes, ".section\t.text.", 15) != NULL);
}

ls_status ls_sass_open(ls_sass_reader **out, const char *text, int64_t bytes, const char *name, ls_error *err) {
    ls_sass_reader *r;
    LS_TRY(ls_array_alloc((void **)&r, 1, sizeof *r, "reader of machine code", err));
    r->text = text;
    r->bytes = bytes;
    r->name = name;
    r->info = -1;
    r->arch = 90;
    memset(r->buckets, -1, sizeof r->buckets);
    *out = r;
    return LS_OK;
}

void ls_sass_close(ls_sass_reader *r) {
    if (r == NULL) return;
    ls_ptx_function *f = &r->out.f;
    free(f->parameters), free(f->registers), free(f->instructions), free(f->operands), free(f->labels);
    free(f->scopes), free(r->infos), free(r->parameters), free(r->addresses), free(r);
}
