/* Writes the function that is analysed: its blocks in order, and the pairs where they come into being. */
#include <stdlib.h>
#include <string.h>

#include "audit/sass_emit.h"
#include "audit/sass_text.h"
#include "base/mem.h"

enum { DEPTH_MAX = 400 };

typedef ls_sass_lowering lowering;
typedef ls_ptx_operand operand;
typedef ls_sass_sources sources;

/* Pairs ----------------------------------------------------------------------------------------------------------- */

static ls_status snapshot(lowering *l, const ls_ptx_instruction *by, ls_register_half h, operand *out, ls_error *err) {
    if (h.kind == LS_REGISTER_HALF_NUMBER) return *out = ls_sass_number_of(h.value), LS_OK;
    if (h.kind == LS_REGISTER_HALF_BANK) return ls_sass_emit_bank(l, by, h.value, 32, out, err);
    *out = ls_sass_register_of(h.kind == LS_REGISTER_HALF_VALUE ? l->snapshots[h.value] : -1);
    if (out->reg < 0) *out = (operand){.kind = LS_PTX_FLOAT, .reg = -1};
    return LS_OK;
}

static ls_status emit_sum(lowering *l, const ls_register_pair *p, const ls_ptx_instruction *by, ls_error *err) {
    operand sum = ls_sass_number_of(0);
    for (int32_t i = 0; i < p->n; i++) {
        const ls_pair_part part = l->parts[p->first + i];
        const operand all[] = {ls_sass_pair_register(l, part.pair), ls_sass_number_of(part.factor), sum};
        LS_TRY(ls_sass_emit_new(l, by, "mad.lo.s64", LS_PTX_B64, &sum, all, 3, err));
    }
    const operand last[] = {ls_sass_register_of(p->reg), sum};
    return ls_sass_emit(l, by, "mov.b64", last, 2, err);
}

static ls_status emit_wide(lowering *l, const ls_register_pair *p, const ls_ptx_instruction *in, ls_error *err) {
    operand s[3];
    LS_TRY(ls_sass_take_sources(l, in, s, 2, err));
    s[2] = ls_sass_pair_register(l, l->parts[p->first].pair);
    const operand all[] = {ls_sass_register_of(p->reg), s[0], s[1], s[2]};
    return ls_sass_emit(l, in, p->is_signed ? "mad.wide.s32" : "mad.wide.u32", all, 4, err);
}

static ls_status emit_loaded(lowering *l, const ls_register_pair *p, const ls_ptx_instruction *in, ls_error *err) {
    const sources s = ls_sass_sources_of(l, in);
    operand all[2] = {ls_sass_register_of(p->reg)};
    bool known = false;
    ls_sass_enter(l, p->at);
    for (int32_t o = s.first; o < s.first + s.n && !known; o++)
        if (l->f->operands[o].kind == LS_PTX_ADDRESS) LS_TRY(ls_sass_take_address(l, in, o, &all[1], &known, err));
    if (!known) return ls_sass_emit(l, in, "cvt.u64.f64", all, 1, err);
    all[1].value += 4 * p->number;
    return ls_sass_emit(l, in, "ldw.global.u64", all, 2, err);
}

static ls_status emit_by_rule(lowering *l, const ls_register_pair *p, ls_error *err) {
    const ls_ptx_instruction *by = &l->f->instructions[p->by], *at = &l->f->instructions[p->at];
    operand all[4] = {ls_sass_register_of(p->reg)};
    const ls_pair_part *parts = p->n > 0 ? l->parts + p->first : NULL;
    switch ((ls_pair_rule)p->rule) {
        case LS_PAIR_NUMBER: return all[1] = ls_sass_number_of(p->number), ls_sass_emit(l, by, "mov.b64", all, 2, err);
        case LS_PAIR_BANK:
            LS_TRY(ls_sass_emit_bank(l, by, p->low.value, 64, &all[1], err));
            return ls_sass_emit(l, by, "mov.b64", all, 2, err);
        case LS_PAIR_ZERO:
        case LS_PAIR_SIGN:
            LS_TRY(snapshot(l, by, p->low, &all[1], err));
            return ls_sass_emit(l, by, p->rule == LS_PAIR_ZERO ? "cvt.u64.u32" : "cvt.s64.s32", all, 2, err);
        case LS_PAIR_WIDE: return emit_wide(l, p, at, err);
        case LS_PAIR_LOAD: return emit_loaded(l, p, at, err);
        case LS_PAIR_GIVEN: return all[1] = ls_sass_number_of(0), ls_sass_emit(l, at, "cvt.u64.f64", all, 2, err);
        case LS_PAIR_SUM: return emit_sum(l, p, at, err);
        case LS_PAIR_PRODUCT:
            for (int i = 0; i < 3; i++) all[1 + i] = ls_sass_pair_register(l, parts[i].pair);
            return ls_sass_emit(l, at, "mad.lo.s64", all, 4, err);
        case LS_PAIR_JOIN: return all[1] = ls_sass_register_of(p->inner), ls_sass_emit(l, at, "mov.b64", all, 2, err);
        case LS_PAIR_EITHER:
            for (int i = 0; i < 2; i++) all[1 + i] = ls_sass_pair_register(l, parts[i].pair);
            all[3] = ls_sass_register_of(LS_SASS_UNSEEN);
            return ls_sass_emit(l, at, "selp.b64", all, 4, err);
        case LS_PAIR_RIGHT:
            all[1] = ls_sass_pair_register(l, parts[0].pair);
            all[2] = ls_sass_number_of(p->number);
            return ls_sass_emit(l, at, p->is_signed ? "shr.s64" : "shr.u64", all, 3, err);
        case LS_PAIR_AND:
            all[1] = ls_sass_pair_register(l, parts[0].pair);
            all[2] = ls_sass_number_of(p->number);
            return ls_sass_emit(l, at, "and.b64", all, 3, err);
        case LS_PAIR_PARTS: break;
    }
    return ls_sass_emit(l, by, "unknown.b64.pair", all, 1, err);
}

/* Pairs that are set at one place may be made of each other: parts come first. */
static ls_status emit_pair(lowering *l, int32_t id, int32_t depth, ls_error *err) {
    ls_register_pair *p = &l->pairs[id];
    if (p->is_emitted || p->is_emitting) return LS_OK;
    if (depth == DEPTH_MAX) return LS_FAIL(err, LS_ERR_FORMAT, "%s: sums of pairs are too deep", l->name);
    p->is_emitting = true;
    for (int32_t i = 0; i < p->n && p->rule != LS_PAIR_JOIN; i++) {
        const int32_t part = l->parts[p->first + i].pair;
        if (part < 0) continue;
        const ls_register_pair *other = &l->pairs[part];
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

/* The function ---------------------------------------------------------------------------------------------------- */

static ls_status keep_instruction(lowering *l, const ls_ptx_instruction *by, int32_t value, ls_error *err) {
    const operand all[] = {ls_sass_register_of(l->snapshots[value]), ls_sass_register_of(l->flow.values[value].reg)};
    return all[0].reg < 0 ? LS_OK : ls_sass_emit(l, by, "mov.b32", all, 2, err);
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
                const ls_register_pair *p = &l->pairs[i];
                const int32_t part = p->rule == LS_PAIR_JOIN ? l->parts[p->first + e].pair : -1;
                const operand all[] = {ls_sass_register_of(p->inner), ls_sass_pair_register(l, part)};
                if (part >= 0) LS_TRY(ls_sass_emit(l, by, "mov.b64", all, 2, err));
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
    for (int32_t v = l->kept[block]; v >= 0; v = l->kept_next[v]) LS_TRY(keep_instruction(l, first, v, err));
    LS_TRY(emit_chain(l, l->starts[block], false, err));
    for (int32_t at = k->first; at < k->first + k->n; at++) {
        const ls_ptx_instruction *in = &l->f->instructions[at];
        const bool ends = at + 1 == k->first + k->n;
        const bool leaves = ls_ptx_is(in->op, "bra") || ls_ptx_is(in->op, "exit");
        if (at > k->first) l->places[at] = (int32_t)l->out.n_instructions;
        if (ends && leaves) LS_TRY(emit_ways(l, block, in, err));
        LS_TRY(emit_chain(l, l->behind[at], true, err));
        LS_TRY(ls_sass_lower_instruction(l, at, err));
        for (int32_t o = in->first, n = ls_flow_defines(l->f, in); o < in->first + n; o++)
            if (l->flow.writes[o] >= 0) LS_TRY(keep_instruction(l, in, l->flow.writes[o], err));
        LS_TRY(emit_chain(l, l->behind[at], false, err));
        if (ends && !leaves) LS_TRY(emit_ways(l, block, in, err));
    }
    return LS_OK;
}

static ls_status want_snapshot(lowering *l, ls_register_half h, ls_error *err) {
    if (h.kind != LS_REGISTER_HALF_VALUE || l->snapshots[h.value] >= 0) return LS_OK;
    const ls_flow_value *v = &l->flow.values[h.value];
    if (v->kind == LS_FLOW_NOTHING) return LS_OK;
    LS_TRY(ls_sass_new_register(l, LS_PTX_B32, &l->snapshots[h.value], err));
    if (v->kind != LS_FLOW_PHI) return LS_OK;
    l->kept_next[h.value] = l->kept[v->block];
    l->kept[v->block] = h.value;
    return LS_OK;
}

/* Registers of pairs, and the chains of what is set where. */
static ls_status place_pairs(lowering *l, ls_error *err) {
    for (int32_t i = 0; i < l->n_pairs; i++) {
        ls_register_pair *p = &l->pairs[i];
        int32_t *chain = p->behind < 0 ? &l->starts[p->block] : &l->behind[p->behind];
        p->chained = *chain;
        *chain = i;
        LS_TRY(ls_sass_new_register(l, LS_PTX_B64, &p->reg, err));
        if (p->rule == LS_PAIR_JOIN) LS_TRY(ls_sass_new_register(l, LS_PTX_B64, &p->inner, err));
        if (p->rule == LS_PAIR_ZERO || p->rule == LS_PAIR_SIGN) LS_TRY(want_snapshot(l, p->low, err));
    }
    return LS_OK;
}

static ls_status prepare_lowering(lowering *l, ls_error *err) {
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
    LS_TRY(prepare_lowering(l, err));
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
