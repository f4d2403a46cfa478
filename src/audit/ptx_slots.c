/* Places in parameters of calls and in local memory that every access names by a constant: registers in their stead.
 * A variable whose address goes anywhere else, or whose places overlap, stays memory. */
#include <stdlib.h>
#include <string.h>

#include "audit/ptx_calls.h"
#include "base/fnv.h"
#include "base/mem.h"

enum { BUCKETS = 1024 };

typedef struct variable {
    ls_ptx_name name;
    int32_t instance, next;
    bool is_local, is_kept; /* kept: it stays memory */
} variable;

/* Bytes [offset, offset + bytes) of a variable. */
typedef struct slot {
    int32_t variable, next, bytes, reg;
    int64_t offset;
} slot;

/* What a register holds, where that is an address in a variable. */
typedef struct place {
    int32_t variable; /* -1: none */
    int64_t offset;
} place;

typedef struct slots {
    const ls_ptx_function *f;
    ls_ptx_function *out;
    variable *variables;
    int64_t n_variables, cap_variables;
    slot *slots;
    int64_t n_slots, cap_slots;
    place *places;    /* [registers] */
    int32_t *defined; /* [registers]: the only instruction that sets it, -1 none, -2 several */
    int32_t variable_buckets[BUCKETS], slot_buckets[BUCKETS];
} slots;

static bool is_parameter(const ls_ptx_function *f, ls_ptx_name name) {
    for (int64_t i = 0; i < f->n_parameters; i++)
        if (ls_ptx_same(f->parameters[i].name, name)) return true;
    return false;
}

static ls_status find_variable(slots *s, const ls_ptx_operand *o, int32_t *id, ls_error *err) {
    const uint64_t hash = ls_fnv_mix(LS_FNV_START, o->name.text, o->name.bytes) + (uint64_t)(uint32_t)o->instance * 31;
    int32_t *bucket = &s->variable_buckets[hash % BUCKETS];
    for (*id = *bucket; *id >= 0; *id = s->variables[*id].next)
        if (s->variables[*id].instance == o->instance && ls_ptx_same(s->variables[*id].name, o->name)) return LS_OK;
    LS_TRY(ls_array_grow((void **)&s->variables, &s->cap_variables, s->n_variables + 1, sizeof *s->variables,
                         "variables", err));
    *id = (int32_t)s->n_variables;
    s->variables[s->n_variables++] = (variable){o->name, o->instance, *bucket, false, false};
    *bucket = *id;
    return LS_OK;
}

/* Bytes of the type at the end of an opcode, 0 where it says none. */
static int32_t bytes_of(ls_ptx_name op) {
    int32_t at = op.bytes, bits = 0, scale = 1;
    while (at > 0 && op.text[at - 1] >= '0' && op.text[at - 1] <= '9' && scale <= 1000) {
        bits += (op.text[--at] - '0') * scale;
        scale *= 10;
    }
    return bits / 8;
}

static bool is_move(ls_ptx_name op) { return ls_ptx_begins(op, "ld.") || ls_ptx_begins(op, "st."); }

/* The operand of a load or a store that may name a slot: of a parameter that is not the function's, or in local memory
 * or a generic one, by a register. -1 for none. */
static int32_t address_of(const ls_ptx_function *f, const ls_ptx_instruction *in) {
    if (!is_move(in->op)) return -1;
    for (int32_t i = in->first; i < in->first + in->n; i++) {
        const ls_ptx_operand *o = &f->operands[i];
        if (o->kind != LS_PTX_ADDRESS) continue;
        if (ls_ptx_has(in->op, ".param"))
            return o->reg < 0 && o->name.text != NULL && !is_parameter(f, o->name) ? i : -1;
        const bool other =
            ls_ptx_has(in->op, ".global") || ls_ptx_has(in->op, ".shared") || ls_ptx_has(in->op, ".const");
        return other ? -1 : i;
    }
    return -1;
}

/* The variable and the place in it that an address names; variable -1 for none. */
static ls_status place_of(slots *s, const ls_ptx_instruction *in, int32_t operand, place *out, ls_error *err) {
    const ls_ptx_operand *o = &s->f->operands[operand];
    *out = (place){-1, 0};
    if (o->reg >= 0) {
        *out = s->places[o->reg];
        out->offset += o->value;
    } else if (o->name.text != NULL && (ls_ptx_has(in->op, ".param") || ls_ptx_has(in->op, ".local"))) {
        LS_TRY(find_variable(s, o, &out->variable, err));
        out->offset = o->value;
        if (ls_ptx_has(in->op, ".local")) s->variables[out->variable].is_local = true;
    }
    return LS_OK;
}

/* Registers that hold the address of a variable and a constant: mov, add, cvta. */
static ls_status derive(slots *s, const ls_ptx_instruction *in, bool *derives, ls_error *err) {
    const ls_ptx_operand *o = &s->f->operands[in->first];
    *derives = false;
    if (in->n < 2 || in->guard >= 0 || o[0].kind != LS_PTX_REG || s->defined[o[0].reg] < 0) return LS_OK;
    place from = {-1, 0};
    const bool moves = (ls_ptx_begins(in->op, "mov.") || ls_ptx_begins(in->op, "cvta.")) && in->n == 2;
    const bool adds = ls_ptx_begins(in->op, "add.") && in->n == 3 && o[2].kind == LS_PTX_INT;
    if (!moves && !adds) return LS_OK;
    if (o[1].kind == LS_PTX_REG) {
        from = s->places[o[1].reg];
    } else if (moves && o[1].kind == LS_PTX_SYMBOL && o[1].name.text[0] != '%' && ls_ptx_has(in->op, "64")) {
        LS_TRY(find_variable(s, &o[1], &from.variable, err));
        from.offset = o[1].value;
    }
    if (from.variable < 0) return LS_OK;
    if (adds && __builtin_add_overflow(from.offset, o[2].value, &from.offset)) return LS_OK;
    if (ls_ptx_begins(in->op, "cvta.local") || ls_ptx_begins(in->op, "cvta.to.local"))
        s->variables[from.variable].is_local = true;
    else if (ls_ptx_begins(in->op, "cvta."))
        return LS_OK;
    s->places[o[0].reg] = from;
    *derives = true;
    return LS_OK;
}

/* Every other mention of a register that holds such an address lets it go. */
static void forget(slots *s, const ls_ptx_instruction *in, int32_t except) {
    for (int32_t i = in->first; i < in->first + in->n; i++) {
        const ls_ptx_operand *o = &s->f->operands[i];
        if (i == except || o->reg < 0 || s->places[o->reg].variable < 0) continue;
        s->variables[s->places[o->reg].variable].is_kept = true;
    }
}

static int32_t *slot_bucket(slots *s, int32_t of, int64_t offset) {
    return &s->slot_buckets[((uint64_t)(uint32_t)of * 2654435761u + (uint64_t)offset) % BUCKETS];
}

static slot *find_slot(slots *s, int32_t of, int64_t offset) {
    for (int32_t i = *slot_bucket(s, of, offset); i >= 0; i = s->slots[i].next)
        if (s->slots[i].variable == of && s->slots[i].offset == offset) return &s->slots[i];
    return NULL;
}

/* The values of a load or a store stand at [*first, *first + *n). */
static void values_of(const ls_ptx_function *f, const ls_ptx_instruction *in, int32_t address, int32_t *first,
                      int32_t *n) {
    const bool loads = ls_ptx_begins(in->op, "ld.");
    (void)f;
    *first = loads ? in->first : address + 1;
    *n = loads ? address - in->first : in->first + in->n - *first;
}

static ls_status add_slots(slots *s, const ls_ptx_instruction *in, int32_t address, place at, ls_error *err) {
    const int32_t bytes = bytes_of(in->op);
    variable *v = &s->variables[at.variable];
    int32_t first, n;
    values_of(s->f, in, address, &first, &n);
    const bool fits = (bytes == 4 || bytes == 8) && n > 0 && at.offset >= 0 && at.offset < INT32_MAX;
    if (!fits) return v->is_kept = true, LS_OK;
    for (int32_t i = 0; i < n; i++) {
        const ls_ptx_operand *o = &s->f->operands[first + i];
        const ls_ptx_type wanted = bytes == 4 ? LS_PTX_B32 : LS_PTX_B64;
        if (o->reg >= 0 ? s->f->registers[o->reg].type != wanted : o->kind == LS_PTX_SYMBOL)
            return v->is_kept = true, LS_OK;
        const int64_t offset = at.offset + (int64_t)bytes * i;
        const slot *found = find_slot(s, at.variable, offset);
        if (found != NULL) {
            v->is_kept = v->is_kept || found->bytes != bytes;
            continue;
        }
        LS_TRY(ls_array_grow((void **)&s->slots, &s->cap_slots, s->n_slots + 1, sizeof *s->slots, "places", err));
        int32_t *bucket = slot_bucket(s, at.variable, offset);
        s->slots[s->n_slots] = (slot){at.variable, *bucket, bytes, -1, offset};
        *bucket = (int32_t)s->n_slots++;
    }
    return LS_OK;
}

/* A slot of 8 bytes and one that begins inside it, at bytes 1 to 7, or one of 4 and one at bytes 1 to 3. */
static void find_overlaps(slots *s) {
    for (int64_t i = 0; i < s->n_slots; i++)
        for (int32_t k = 1; k < s->slots[i].bytes; k++)
            if (find_slot(s, s->slots[i].variable, s->slots[i].offset + k) != NULL)
                s->variables[s->slots[i].variable].is_kept = true;
}

static ls_status scan_function(slots *s, ls_error *err) {
    const ls_ptx_function *f = s->f;
    for (int64_t i = 0; i < f->n_registers; i++) s->places[i] = (place){-1, 0}, s->defined[i] = -1;
    for (int64_t i = 0; i < f->n_instructions; i++) {
        const ls_ptx_operand *o = &f->operands[f->instructions[i].first];
        if (f->instructions[i].n == 0 || ls_ptx_begins(f->instructions[i].op, "st.")) continue;
        for (int32_t k = 0; k < f->instructions[i].n && o[k].kind != LS_PTX_ADDRESS; k++) {
            if (k > 0 && !o[k].is_tail) break;
            if (o[k].reg >= 0) s->defined[o[k].reg] = s->defined[o[k].reg] == -1 ? (int32_t)i : -2;
        }
    }
    for (int64_t i = 0; i < f->n_instructions; i++) {
        const ls_ptx_instruction *in = &f->instructions[i];
        const int32_t address = address_of(f, in);
        bool derives;
        place at = {-1, 0};
        LS_TRY(derive(s, in, &derives, err));
        if (derives) continue;
        if (address >= 0) LS_TRY(place_of(s, in, address, &at, err));
        forget(s, in, at.variable >= 0 ? address : -1);
        if (at.variable >= 0) LS_TRY(add_slots(s, in, address, at, err));
    }
    find_overlaps(s);
    for (int64_t i = 0; i < s->n_slots; i++) {
        const variable *v = &s->variables[s->slots[i].variable];
        if (v->is_kept) continue;
        const int64_t reg = s->out->n_registers;
        LS_TRY(ls_array_grow((void **)&s->out->registers, &s->out->cap_registers, reg + 1, sizeof *s->out->registers,
                             "registers", err));
        s->out->registers[reg] = (ls_ptx_register){v->name, s->slots[i].bytes == 4 ? LS_PTX_B32 : LS_PTX_B64};
        s->slots[i].reg = (int32_t)reg;
        s->out->n_registers++;
    }
    return LS_OK;
}

/* Writing --------------------------------------------------------------------------------------------------------- */

/* One move for every value of the load or store. */
static ls_status write_moves(slots *s, const ls_ptx_instruction *in, int32_t address, place at, ls_error *err) {
    static const ls_ptx_name half = {"mov.b32", 7}, whole = {"mov.b64", 7};
    const int32_t bytes = bytes_of(in->op);
    int32_t first, n;
    values_of(s->f, in, address, &first, &n);
    for (int32_t i = 0; i < n; i++) {
        const slot *k = find_slot(s, at.variable, at.offset + (int64_t)bytes * i);
        ls_ptx_operand value = s->f->operands[first + i];
        const ls_ptx_operand reg = {.kind = LS_PTX_REG, .reg = k->reg};
        value.is_tail = false;
        const bool loads = ls_ptx_begins(in->op, "ld.");
        const ls_ptx_operand all[] = {loads ? value : reg, loads ? reg : value};
        if (all[0].kind != LS_PTX_REG) continue;
        LS_TRY(ls_ptx_append_made(s->out, in, bytes == 4 ? half : whole, all, 2, err));
    }
    return LS_OK;
}

/* The one instruction that sets the operand's register, NULL where there is none such. */
static const ls_ptx_instruction *setter(const slots *s, const ls_ptx_operand *o) {
    if (o->kind != LS_PTX_REG || s->defined[o->reg] < 0) return NULL;
    const ls_ptx_instruction *in = &s->f->instructions[s->defined[o->reg]];
    return in->guard < 0 ? in : NULL;
}

/* The register of 32 bits that a cvt.u64.u32 extends to this operand, NULL. */
static const ls_ptx_operand *extended(const slots *s, const ls_ptx_operand *o) {
    const ls_ptx_instruction *in = setter(s, o);
    if (in == NULL || in->n != 2 || !ls_ptx_begins(in->op, "cvt.u64.u32")) return NULL;
    const ls_ptx_operand *from = &s->f->operands[in->first + 1];
    return from->kind == LS_PTX_REG && s->defined[from->reg] >= 0 ? from : NULL;
}

/* high << 32 | low of two registers of 32 bits: bfi.b64 d, high, low, 32, 32, or shl and or. */
static ls_status write_pair(slots *s, const ls_ptx_instruction *in, bool *done, ls_error *err) {
    static const ls_ptx_name op = {"mov.b64", 7};
    const ls_ptx_operand *o = &s->f->operands[in->first], *low = NULL, *high = NULL;
    *done = false;
    if (ls_ptx_begins(in->op, "bfi.b64") && in->n == 5 && o[3].kind == LS_PTX_INT && o[3].value == 32 &&
        o[4].kind == LS_PTX_INT && o[4].value == 32) {
        high = extended(s, &o[1]);
        low = extended(s, &o[2]);
    }
    for (int32_t turn = 1; turn <= 2 && ls_ptx_begins(in->op, "or.b64") && in->n == 3 && low == NULL; turn++) {
        const ls_ptx_instruction *shift = setter(s, &o[turn]);
        const ls_ptx_operand *by = shift != NULL && shift->n == 3 ? &s->f->operands[shift->first] : NULL;
        if (by == NULL || !ls_ptx_begins(shift->op, "shl.b64") || by[2].kind != LS_PTX_INT || by[2].value != 32)
            continue;
        high = extended(s, &by[1]);
        low = high == NULL ? NULL : extended(s, &o[3 - turn]);
    }
    if (high == NULL || low == NULL) return LS_OK;
    ls_ptx_operand all[] = {o[0], *low, *high};
    all[2].is_tail = true;
    *done = true;
    return ls_ptx_append_made(s->out, in, op, all, 3, err);
}

static ls_status write_all(slots *s, ls_error *err) {
    const ls_ptx_function *f = s->f;
    const ls_ptx_shift same = {0};
    int64_t label = 0;
    for (int64_t i = 0; i < f->n_instructions; i++) {
        const ls_ptx_instruction *in = &f->instructions[i];
        const int32_t address = address_of(f, in);
        place at = {-1, 0};
        bool done = false;
        LS_TRY(ls_ptx_append_labels(s->out, f, &label, i, same, err));
        if (address >= 0) LS_TRY(place_of(s, in, address, &at, err));
        if (at.variable >= 0 && !s->variables[at.variable].is_kept) {
            LS_TRY(write_moves(s, in, address, at, err));
            continue;
        }
        LS_TRY(write_pair(s, in, &done, err));
        if (!done) LS_TRY(ls_ptx_append(s->out, f, in, same, err));
    }
    return ls_ptx_append_labels(s->out, f, &label, f->n_instructions, same, err);
}

/* Global variables are memory that others see. */
static void keep_globals(slots *s) {
    for (int64_t i = 0; i < s->f->n_instructions; i++) {
        const ls_ptx_instruction *in = &s->f->instructions[i];
        const int32_t address = address_of(s->f, in);
        if (address < 0 || ls_ptx_has(in->op, ".param") || ls_ptx_has(in->op, ".local")) continue;
        const int32_t reg = s->f->operands[address].reg;
        const int32_t of = reg >= 0 ? s->places[reg].variable : -1;
        if (of >= 0 && !s->variables[of].is_local) s->variables[of].is_kept = true;
    }
}

ls_status ls_ptx_slots(ls_ptx_function *out, const ls_ptx_function *f, ls_error *err) {
    ls_status status = LS_OK;
    const ls_ptx_shift same = {0};
    slots *s;
    LS_TRY(ls_array_alloc((void **)&s, 1, sizeof *s, "places", err));
    s->f = f;
    s->out = out;
    memset(s->variable_buckets, -1, sizeof s->variable_buckets);
    memset(s->slot_buckets, -1, sizeof s->slot_buckets);
    LS_TRY_DONE(ls_array_alloc((void **)&s->places, f->n_registers + 1, sizeof *s->places, "registers", err));
    LS_TRY_DONE(ls_array_alloc((void **)&s->defined, f->n_registers + 1, sizeof *s->defined, "registers", err));
    LS_TRY_DONE(ls_ptx_begin(out, f, err));
    LS_TRY_DONE(ls_ptx_append_names(out, f, -1, same, err));
    LS_TRY_DONE(scan_function(s, err));
    keep_globals(s);
    LS_TRY_DONE(write_all(s, err));
done:
    free(s->variables), free(s->slots), free(s->places), free(s->defined);
    free(s);
    return status;
}
