/* Calls inside a function of machine code: what lies behind the target, up to the next target, may be written. */
#include <stdlib.h>
#include <string.h>

#include "audit/sass.h"
#include "audit/sass_text.h"
#include "base/mem.h"

typedef struct callee {
    int32_t at;
    bool calls;
    bool written[LS_SASS_REGISTERS];
} callee;

static bool is_call(const ls_ptx_instruction *in) { return ls_sass_is_op(in->op, "CALL"); }

static int by_callee_name(const void *a, const void *b) {
    const ls_ptx_label *x = a, *y = b;
    return ls_ptx_compare(x->name, y->name);
}

static int by_place(const void *a, const void *b) {
    const callee *x = a, *y = b;
    return (x->at > y->at) - (x->at < y->at);
}

static callee *find_callee(callee *all, int64_t n, int32_t at) {
    int64_t low = 0, high = n;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (all[middle].at < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low < n && all[low].at == at ? &all[low] : NULL;
}

/* Fills what stands between a target and the next. */
static void scan_callee(const ls_ptx_function *f, callee *c, int64_t end) {
    for (int64_t i = c->at; i < end; i++) {
        const ls_ptx_instruction *in = &f->instructions[i];
        if (is_call(in)) c->calls = true;
        if (ls_ptx_is(in->op, "bra") || ls_ptx_is(in->op, "exit")) continue;
        for (int32_t o = in->first; o < in->first + in->n; o++) {
            if (o > in->first && !f->operands[o].is_tail) break;
            if (f->operands[o].kind == LS_PTX_REG) c->written[f->operands[o].reg] = true;
        }
    }
}

static ls_status add_results(ls_ptx_function *f, ls_ptx_instruction *in, const callee *c, const bool *all,
                             ls_error *err) {
    const int32_t first = (int32_t)f->n_operands;
    for (int32_t reg = 0; reg < LS_SASS_REGISTERS; reg++) {
        const bool written = c == NULL ? reg != LS_SASS_UNSEEN : c->calls ? all[reg] : c->written[reg];
        if (!written) continue;
        LS_TRY(ls_array_grow((void **)&f->operands, &f->cap_operands, f->n_operands + 1, sizeof *f->operands,
                             "operands", err));
        f->operands[f->n_operands] = (ls_ptx_operand){.kind = LS_PTX_REG, .reg = reg, .is_tail = f->n_operands > first};
        f->n_operands++;
    }
    in->first = first;
    in->n = (int32_t)(f->n_operands - first);
    return LS_OK;
}

/* The instruction that a call goes to, -1 where it leaves the function. */
static int32_t target_of(const ls_ptx_function *f, const ls_ptx_label *sorted, const ls_ptx_instruction *in) {
    const ls_ptx_operand *o = in->n > 0 ? &f->operands[in->first] : NULL;
    if (o == NULL || o->kind != LS_PTX_SYMBOL || f->n_labels == 0) return -1;
    const ls_ptx_label key = {o->name, 0, 0, 0};
    const ls_ptx_label *found = bsearch(&key, sorted, (size_t)f->n_labels, sizeof *sorted, by_callee_name);
    return found == NULL || found->at >= f->n_instructions ? -1 : found->at;
}

ls_status ls_sass_calls(ls_ptx_function *f, ls_error *err) {
    ls_status status = LS_OK;
    ls_ptx_label *sorted = NULL;
    callee *callees = NULL;
    int64_t n = 0, n_calls = 0, n_different = 0;
    bool all[LS_SASS_REGISTERS] = {false};
    for (int64_t i = 0; i < f->n_instructions; i++) n_calls += is_call(&f->instructions[i]);
    if (n_calls == 0) return LS_OK;
    if (n_calls > 10000) return LS_FAIL(err, LS_ERR_FORMAT, "a function makes more than 10000 calls");
    LS_TRY_DONE(ls_array_alloc((void **)&sorted, f->n_labels + 1, sizeof *sorted, "labels", err));
    LS_TRY_DONE(ls_array_alloc((void **)&callees, n_calls, sizeof *callees, "calls", err));
    if (f->n_labels > 0) memcpy(sorted, f->labels, sizeof *sorted * (size_t)f->n_labels);
    qsort(sorted, (size_t)f->n_labels, sizeof *sorted, by_callee_name);
    for (int64_t i = 0; i < f->n_instructions; i++) {
        const int32_t at = is_call(&f->instructions[i]) ? target_of(f, sorted, &f->instructions[i]) : -1;
        if (at >= 0) callees[n++].at = at;
    }
    qsort(callees, (size_t)n, sizeof *callees, by_place);
    for (int64_t i = 0; i < n; i++)
        if (n_different == 0 || callees[n_different - 1].at != callees[i].at) callees[n_different++].at = callees[i].at;
    for (int64_t i = 0; i < n_different; i++) {
        scan_callee(f, &callees[i], i + 1 < n_different ? callees[i + 1].at : f->n_instructions);
        for (int32_t reg = 0; reg < LS_SASS_REGISTERS; reg++) all[reg] = all[reg] || callees[i].written[reg];
    }
    for (int64_t i = 0; i < f->n_instructions; i++) {
        ls_ptx_instruction *in = &f->instructions[i];
        if (!is_call(in)) continue;
        const int32_t at = target_of(f, sorted, in);
        LS_TRY_DONE(add_results(f, in, at < 0 ? NULL : find_callee(callees, n_different, at), all, err));
    }
done:
    free(sorted), free(callees);
    return status;
}
