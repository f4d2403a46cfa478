/* The sum of every definition, as the source means it: sums and products of 32 bits are kept exact, since they are
 * right modulo 2^32 whatever happens on the way. Where such bits become a wider number, or are taken as one (a
 * quotient, a minimum), a check says which window the exact sum must lie in. What is no sum becomes a symbol with a
 * rule. */
#include <stdlib.h>
#include <string.h>

#include "audit/step.h"
#include "base/mem.h"

/* One definition. */
static ls_status define(ls_step *s, int32_t operand, int32_t results, int32_t part, ls_error *err) {
    ls_work *w = s->w;
    const ls_ptx_name op = s->in->op;
    const int32_t value = w->flow->writes[operand];
    const ls_ptx_type reg = w->f->registers[w->f->operands[operand].reg].type;
    ls_cell *cell = &w->cells[value];
    s->t = ls_step_type_of(op);
    s->out.is_lost = true;
    s->out.n = 0;
    s->check = -1;
    if (reg == LS_PTX_PRED) {
        cell->compare = s->at;
        return LS_OK;
    }
    const bool is_load = ls_ptx_begins(op, "ld.") || ls_ptx_begins(op, "ldu.") || ls_ptx_begins(op, "ldw.") ||
                         ls_ptx_begins(op, "atom.");
    if (is_load && !s->t.is_float && s->in->n > results) {
        const ls_ptx_operand *from = &w->f->operands[s->in->first + results];
        if (ls_ptx_begins(op, "ld.param"))
            LS_TRY(ls_step_parameter(s, from, s->in->first + results, part, err));
        else
            LS_TRY(ls_step_load(s, from, s->in->first + results, part, err));
    } else if (!is_load && reg != LS_PTX_B128) {
        LS_TRY(ls_step_read_operands(s, results, err));
        LS_TRY(ls_step_compute(s, results, part, err));
        cell->through = 1;
        if (s->out.is_lost && !s->t.is_float && s->t.bits >= 32 && !ls_ptx_begins(op, "mma.") &&
            !ls_ptx_begins(op, "wgmma"))
            LS_TRY(ls_step_plain_result(s, true, err));
    }
    const int32_t old = w->flow->values[value].old;
    if (old >= 0 && s->in->guard >= 0) {
        ls_sum before, now;
        ls_work_sum(w, &before, w->cells[old].sum);
        ls_sum_copy(&now, &s->out);
        LS_TRY(ls_step_either(s, &now, &before, err));
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
static ls_status join_ways(ls_step *s, int32_t value, ls_error *err) {
    ls_work *w = s->w;
    const ls_flow_value *phi = &w->flow->values[value];
    const ls_flow_block *block = &w->flow->blocks[phi->block];
    const ls_ptx_type reg = w->f->registers[phi->reg].type;
    bool any = false, open = block->is_loop;
    ls_sum all = {.is_lost = true}, one;
    if (reg == LS_PTX_PRED || reg == LS_PTX_B128) return LS_OK;
    s->in = NULL;
    s->block = phi->block;
    s->t = (ls_step_type){bits_of_type(reg), false, false};
    for (int32_t e = 0; e < block->n_from && !open; e++) {
        const int32_t from = w->flow->joined[phi->first_from + e];
        if (from >= 0 && w->flow->blocks[w->flow->edges[block->first_from + e]].order >= block->order) open = true;
        if (from < 0 || open) continue;
        ls_work_sum(w, &one, w->cells[from].sum);
        s->b_block = w->flow->edges[block->first_from + e];
        if (any)
            LS_TRY(ls_step_either(s, &all, &one, err));
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
                                  .type = ls_step_type_range(s->t.bits, s->t.bits == 64),
                                  .is_vague = true};
        int32_t id;
        LS_TRY(ls_step_add_symbol(w, &symbol, &id, err));
        ls_sum_symbol(&all, id);
    }
    return ls_work_keep(w, &w->cells[value].sum, &all, err);
}

/* The joins of a block are no list of their own: they are found by their block. */
static ls_status join_all(ls_step *s, int32_t *first, const int32_t *next, int32_t block, ls_error *err) {
    for (int32_t v = first[block]; v >= 0; v = next[v]) LS_TRY(join_ways(s, v, err));
    return LS_OK;
}

static ls_status evaluate_block(ls_step *s, int32_t block, ls_error *err) {
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

static ls_status prepare_work(ls_work *w, ls_error *err) {
    w->n_terms = w->n_symbols = w->n_checks = w->n_facts = 0;
    LS_TRY(
        ls_array_grow((void **)&w->cells, &w->cap_cells, w->flow->n_values + 1, sizeof *w->cells, "definitions", err));
    for (int64_t i = 0; i < w->flow->n_values; i++) w->cells[i] = (ls_cell){{0, -1}, -1, -1, 0};
    for (int k = 0; k < 4; k++)
        for (int axis = 0; axis < 3; axis++) w->axis[k][axis] = -1;
    for (int axis = 0; axis < 3; axis++) {
        w->threads[axis] = ls_range_of(1, 2147483648LL);
        const ls_declared found = ls_ranges_find(w->ranges, &(ls_range_query){.kernel = w->f->name.text,
                                                                              .kernel_bytes = w->f->name.bytes,
                                                                              .subject = LS_SUBJECT_THREADS,
                                                                              .index = axis});
        if (found.has_range) w->threads[axis] = found.range;
    }
    return LS_OK;
}

ls_status ls_work_evaluate(ls_work *w, ls_error *err) {
    ls_status status = LS_OK;
    ls_step *s = NULL;
    int32_t *first = NULL, *next = NULL;
    LS_TRY_DONE(prepare_work(w, err));
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
