/* Copies of functions of PTX, with other numbers of registers and scopes. */
#include <stdlib.h>
#include <string.h>

#include "audit/ptx_calls.h"
#include "base/mem.h"

ls_status ls_ptx_begin(ls_ptx_function *out, const ls_ptx_function *f, ls_error *err) {
    out->name = f->name;
    out->result = f->result;
    out->is_entry = f->is_entry;
    out->line = f->line;
    memcpy(out->max_threads, f->max_threads, sizeof out->max_threads);
    out->n_registers = out->n_instructions = out->n_operands = out->n_labels = 0;
    out->n_targets = out->n_target_names = out->n_scopes = 0;
    out->n_parameters = f->n_parameters;
    LS_TRY(ls_array_grow((void **)&out->parameters, &out->cap_parameters, f->n_parameters + 1, sizeof *out->parameters,
                         "parameters", err));
    if (f->n_parameters > 0) memcpy(out->parameters, f->parameters, sizeof *f->parameters * (size_t)f->n_parameters);
    return LS_OK;
}

ls_status ls_ptx_append_names(ls_ptx_function *out, const ls_ptx_function *f, int32_t around, ls_ptx_shift shift,
                              ls_error *err) {
    LS_TRY(ls_array_grow((void **)&out->registers, &out->cap_registers, out->n_registers + f->n_registers + 1,
                         sizeof *out->registers, "registers", err));
    for (int64_t i = 0; i < f->n_registers; i++) out->registers[out->n_registers++] = f->registers[i];
    LS_TRY(ls_array_grow((void **)&out->scopes, &out->cap_scopes, out->n_scopes + f->n_scopes + 1, sizeof *out->scopes,
                         "scopes", err));
    for (int64_t i = 0; i < f->n_scopes; i++)
        out->scopes[out->n_scopes++] = f->scopes[i] < 0 ? around : f->scopes[i] + shift.scope;
    const int32_t names = (int32_t)out->n_target_names;
    LS_TRY(ls_array_grow((void **)&out->target_names, &out->cap_target_names, names + f->n_target_names + 1,
                         sizeof *out->target_names, "target names", err));
    for (int64_t i = 0; i < f->n_target_names; i++) out->target_names[out->n_target_names++] = f->target_names[i];
    LS_TRY(ls_array_grow((void **)&out->targets, &out->cap_targets, out->n_targets + f->n_targets + 1,
                         sizeof *out->targets, "targets", err));
    for (int64_t i = 0; i < f->n_targets; i++) {
        ls_ptx_targets t = f->targets[i];
        t.first += names;
        t.scope += shift.scope;
        out->targets[out->n_targets++] = t;
    }
    return LS_OK;
}

static ls_status add_operand(ls_ptx_function *out, const ls_ptx_operand *operand, ls_error *err) {
    if (out->n_operands > 16 * (int64_t)LS_PTX_INSTRUCTIONS_MAX)
        return LS_FAIL(err, LS_ERR_FORMAT, "a function with what it calls has too many operands");
    LS_TRY(ls_array_grow((void **)&out->operands, &out->cap_operands, out->n_operands + 1, sizeof *out->operands,
                         "operands", err));
    out->operands[out->n_operands++] = *operand;
    return LS_OK;
}

static ls_status add_instruction(ls_ptx_function *out, const ls_ptx_instruction *in, ls_error *err) {
    LS_TRY(ls_array_grow((void **)&out->instructions, &out->cap_instructions, out->n_instructions + 1,
                         sizeof *out->instructions, "instructions", err));
    out->instructions[out->n_instructions++] = *in;
    return LS_OK;
}

ls_status ls_ptx_append(ls_ptx_function *out, const ls_ptx_function *f, const ls_ptx_instruction *in,
                        ls_ptx_shift shift, ls_error *err) {
    ls_ptx_instruction copy = *in;
    copy.first = (int32_t)out->n_operands;
    copy.scope += shift.scope;
    if (copy.guard >= 0) copy.guard += shift.reg;
    for (int32_t i = in->first; i < in->first + in->n; i++) {
        ls_ptx_operand o = f->operands[i];
        if (o.reg >= 0) o.reg += shift.reg;
        if (o.instance == 0) o.instance = shift.instance;
        LS_TRY(add_operand(out, &o, err));
    }
    return add_instruction(out, &copy, err);
}

ls_status ls_ptx_append_made(ls_ptx_function *out, const ls_ptx_instruction *by, ls_ptx_name op,
                             const ls_ptx_operand *operands, int32_t n, ls_error *err) {
    ls_ptx_instruction copy = *by;
    copy.op = op;
    copy.first = (int32_t)out->n_operands;
    copy.n = n;
    for (int32_t i = 0; i < n; i++) LS_TRY(add_operand(out, &operands[i], err));
    return add_instruction(out, &copy, err);
}

ls_status ls_ptx_append_label(ls_ptx_function *out, ls_ptx_label label, ls_error *err) {
    LS_TRY(
        ls_array_grow((void **)&out->labels, &out->cap_labels, out->n_labels + 1, sizeof *out->labels, "labels", err));
    label.at = (int32_t)out->n_instructions;
    out->labels[out->n_labels++] = label;
    return LS_OK;
}

ls_status ls_ptx_append_labels(ls_ptx_function *out, const ls_ptx_function *f, int64_t *next, int64_t at,
                               ls_ptx_shift shift, ls_error *err) {
    for (; *next < f->n_labels && f->labels[*next].at <= at; ++*next) {
        ls_ptx_label label = f->labels[*next];
        label.scope += shift.scope;
        LS_TRY(ls_ptx_append_label(out, label, err));
    }
    return LS_OK;
}

void ls_ptx_function_deinit(ls_ptx_function *f) {
    free(f->parameters), free(f->registers), free(f->instructions), free(f->operands);
    free(f->labels), free(f->targets), free(f->target_names), free(f->scopes);
    *f = (ls_ptx_function){0};
}
