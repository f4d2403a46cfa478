/* Unfolds calls, one level of them after the other. */
#include "audit/ptx_calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { DEPTH_MAX = 32, INSTANCES_MAX = 4096, UNFOLDED_MAX = 400000, REASON_BYTES = 256 };

typedef struct callee {
    ls_ptx_name name;
    ls_ptx_place place;
    bool is_called;
} callee;

/* One unfolded call. */
typedef struct instance {
    int32_t callee, above; /* the instance in which the call stands, 0: the function itself */
} instance;

struct ls_ptx_calls {
    ls_ptx_reader *reader;
    callee *callees; /* by module and name */
    int64_t n_callees, cap_callees;
    instance *instances; /* from 1 */
    int64_t n_instances, cap_instances, n_unfolded;
    ls_ptx_function now, next, slots;
    char reason[REASON_BYTES];
};

static int by_function_name(const void *a, const void *b) {
    const callee *x = a, *y = b;
    if (x->place.module != y->place.module) return x->place.module < y->place.module ? -1 : 1;
    return ls_ptx_compare(x->name, y->name);
}

static callee *find_callee(const ls_ptx_calls *c, ls_ptx_name name, int32_t module) {
    const callee key = {.name = name, .place = {.module = module}};
    if (c->n_callees == 0 || name.text == NULL) return NULL;
    return bsearch(&key, c->callees, (size_t)c->n_callees, sizeof key, by_function_name);
}

static bool is_call(const ls_ptx_instruction *in) {
    return ls_ptx_is(in->op, "call") || ls_ptx_begins(in->op, "call.");
}

/* What a call says: what it calls by name, what comes back, what it gives. */
typedef struct call {
    int32_t function, result, arguments, n_arguments; /* operands; -1 for no result */
} call;

/* False where it calls through a register, or passes registers. */
static bool read_call(const ls_ptx_function *f, const ls_ptx_instruction *in, call *out) {
    const ls_ptx_operand *o = f->operands;
    int32_t at = in->first;
    const int32_t end = in->first + in->n;
    *out = (call){.function = at, .result = -1};
    if (in->n == 0 || o[at].kind != LS_PTX_SYMBOL) return false;
    /* (result), function, (arguments): both first names are no tails, and so is the first argument */
    int32_t heads = 0, marks[4] = {0};
    for (int32_t i = at; i < end; i++) {
        if (o[i].kind != LS_PTX_SYMBOL) return false;
        if (!o[i].is_tail && heads < 4) marks[heads] = i;
        heads += !o[i].is_tail;
    }
    if (heads > 3) return false;
    out->arguments = out->function + 1;
    if (heads == 3) {
        if (marks[1] != at + 1) return false; /* several results */
        out->result = at;
        out->function = marks[1];
        out->arguments = marks[2];
    }
    out->n_arguments = heads == 1 ? 0 : end - out->arguments;
    return true;
}

/* (result), function alone and function, (argument) have two heads each: the one whose name is a function's counts. */
static callee *called(const ls_ptx_calls *c, const ls_ptx_function *f, const ls_ptx_instruction *in, int32_t module,
                      call *out) {
    if (!is_call(in) || !read_call(f, in, out)) return NULL;
    callee *found = find_callee(c, f->operands[out->function].name, module);
    if (found != NULL || out->result >= 0 || out->n_arguments != 1) return found;
    found = find_callee(c, f->operands[out->arguments].name, module);
    if (found == NULL) return NULL;
    *out = (call){.function = out->arguments, .result = out->function, .arguments = out->arguments + 1};
    return found;
}

static ls_status mark_called(ls_ptx_calls *c, ls_error *err) {
    const ls_ptx_function *f;
    for (;;) {
        LS_TRY(ls_ptx_next(c->reader, &f, err));
        if (f == NULL) return LS_OK;
        for (int64_t i = 0; i < f->n_instructions; i++) {
            call how;
            callee *found = called(c, f, &f->instructions[i], ls_ptx_tell(c->reader).module, &how);
            if (found != NULL) found->is_called = true;
        }
    }
}

static ls_status find_callees(ls_ptx_calls *c, ls_error *err) {
    const ls_ptx_function *f;
    for (;;) {
        LS_TRY(ls_ptx_next(c->reader, &f, err));
        if (f == NULL) break;
        if (f->is_entry) continue;
        LS_TRY(ls_array_grow((void **)&c->callees, &c->cap_callees, c->n_callees + 1, sizeof *c->callees, "functions",
                             err));
        c->callees[c->n_callees++] = (callee){.name = f->name, .place = ls_ptx_tell(c->reader)};
    }
    if (c->n_callees > 0) qsort(c->callees, (size_t)c->n_callees, sizeof *c->callees, by_function_name);
    return LS_OK;
}

ls_status ls_ptx_calls_open(ls_ptx_calls **out, const char *text, int64_t bytes, const char *name, ls_error *err) {
    ls_status status = LS_OK;
    ls_ptx_calls *c;
    const ls_ptx_place begin = {0, 1, 0};
    LS_TRY(ls_array_alloc((void **)&c, 1, sizeof *c, "functions", err));
    if (ls_ptx_has_text(text, bytes, ".func")) {
        LS_TRY_DONE(ls_ptx_open(&c->reader, text, bytes, name, err));
        LS_TRY_DONE(find_callees(c, err));
        if (c->n_callees > 0) {
            ls_ptx_seek(c->reader, begin);
            LS_TRY_DONE(mark_called(c, err));
        }
    }
    *out = c;
    return LS_OK;
done:
    ls_ptx_calls_close(c);
    return status;
}

void ls_ptx_calls_close(ls_ptx_calls *c) {
    if (c == NULL) return;
    ls_ptx_close(c->reader);
    ls_ptx_function_deinit(&c->now);
    ls_ptx_function_deinit(&c->next);
    ls_ptx_function_deinit(&c->slots);
    free(c->callees), free(c->instances);
    free(c);
}

bool ls_ptx_is_called(const ls_ptx_calls *c, const ls_ptx_function *f, int32_t module) {
    const callee *found = f->is_entry ? NULL : find_callee(c, f->name, module);
    return found != NULL && found->is_called;
}

static bool is_recursive(const ls_ptx_calls *c, int32_t above, int32_t id) {
    for (; above > 0; above = c->instances[above].above)
        if (c->instances[above].callee == id) return true;
    return false;
}

static void refuse_call(ls_ptx_calls *c, const char **refused, const char *sentence, ls_ptx_name name) {
    char clean[128];
    int n = name.bytes < (int)sizeof clean - 1 ? name.bytes : (int)sizeof clean - 1;
    for (int i = 0; i < n; i++) clean[i] = name.text[i] >= ' ' && name.text[i] < 127 ? name.text[i] : '?';
    clean[n] = '\0';
    snprintf(c->reason, sizeof c->reason, "it calls %s, %s", clean, sentence);
    *refused = c->reason;
}

/* Names of the callee's parameters become those of the call. */
static void name_parameters(ls_ptx_function *out, int64_t from, const ls_ptx_function *g, const ls_ptx_operand *caller,
                            const call *how) {
    for (int64_t i = from; i < out->n_operands; i++) {
        ls_ptx_operand *o = &out->operands[i];
        const ls_ptx_operand *with = NULL;
        if (o->reg >= 0 || o->name.text == NULL || (o->kind != LS_PTX_ADDRESS && o->kind != LS_PTX_SYMBOL)) continue;
        if (how->result >= 0 && ls_ptx_same(o->name, g->result)) with = &caller[how->result];
        for (int64_t p = 0; p < g->n_parameters && with == NULL; p++)
            if (ls_ptx_same(o->name, g->parameters[p].name)) with = &caller[how->arguments + p];
        if (with == NULL) continue;
        o->name = with->name;
        o->instance = with->instance;
    }
}

/* The body of g in the place of a call of f. */
static ls_status unfold_call(ls_ptx_function *out, const ls_ptx_function *f, const ls_ptx_instruction *in,
                             const ls_ptx_function *g, const call *how, int32_t id, ls_error *err) {
    static const ls_ptx_name jump = {"bra", 3}, end = {"$the end of a call", 18};
    const ls_ptx_shift shift = {(int32_t)out->n_registers, (int32_t)out->n_scopes, id};
    const ls_ptx_operand target = {.kind = LS_PTX_SYMBOL, .reg = -1, .name = end};
    const int32_t base = (int32_t)out->n_scopes;
    int64_t label = 0;
    LS_TRY(ls_ptx_append_names(out, g, in->scope, shift, err));
    if (in->guard >= 0) { /* passed over where the guard does not hold */
        ls_ptx_instruction over = *in;
        over.guard_not = !in->guard_not;
        over.scope = base;
        LS_TRY(ls_ptx_append_made(out, &over, jump, &target, 1, err));
    }
    for (int64_t i = 0; i < g->n_instructions; i++) {
        const ls_ptx_instruction *k = &g->instructions[i];
        const int64_t from = out->n_operands;
        LS_TRY(ls_ptx_append_labels(out, g, &label, i, shift, err));
        if (ls_ptx_is(k->op, "ret") || ls_ptx_begins(k->op, "ret.")) {
            ls_ptx_instruction leave = *k;
            leave.scope += shift.scope;
            if (leave.guard >= 0) leave.guard += shift.reg;
            LS_TRY(ls_ptx_append_made(out, &leave, jump, &target, 1, err));
            continue;
        }
        LS_TRY(ls_ptx_append(out, g, k, shift, err));
        name_parameters(out, from, g, f->operands, how);
    }
    LS_TRY(ls_ptx_append_labels(out, g, &label, g->n_instructions, shift, err));
    return ls_ptx_append_label(out, (ls_ptx_label){end, 0, base, in->line}, err);
}

/* Unfolds the calls of f that have bodies; *more is false where there were none. */
static ls_status unfold_level(ls_ptx_calls *c, const ls_ptx_function *f, int32_t module, bool *more,
                              const char **refused, ls_error *err) {
    ls_ptx_function *out = &c->next;
    const ls_ptx_shift same = {0};
    int64_t label = 0;
    *more = false;
    LS_TRY(ls_ptx_begin(out, f, err));
    LS_TRY(ls_ptx_append_names(out, f, -1, same, err));
    for (int64_t i = 0; i < f->n_instructions && *refused == NULL; i++) {
        const ls_ptx_instruction *in = &f->instructions[i];
        const ls_ptx_function *g;
        call how;
        callee *found = called(c, f, in, module, &how);
        LS_TRY(ls_ptx_append_labels(out, f, &label, i, same, err));
        if (found == NULL) {
            LS_TRY(ls_ptx_append(out, f, in, same, err));
            continue;
        }
        const int32_t id = (int32_t)(found - c->callees), above = f->operands[how.function].instance;
        ls_ptx_seek(c->reader, found->place);
        LS_TRY(ls_ptx_next(c->reader, &g, err));
        if (is_recursive(c, above, id)) {
            refuse_call(c, refused, "which calls itself", found->name);
        } else if (g == NULL || g->n_parameters != how.n_arguments) {
            refuse_call(c, refused, "with another number of arguments than it has", found->name);
        } else if (c->n_instances == INSTANCES_MAX || (c->n_unfolded += g->n_instructions) > UNFOLDED_MAX) {
            refuse_call(c, refused, "and its calls unfold to too many", found->name);
        } else {
            LS_TRY(ls_array_grow((void **)&c->instances, &c->cap_instances, c->n_instances + 1, sizeof *c->instances,
                                 "calls", err));
            c->instances[c->n_instances] = (instance){id, above};
            LS_TRY(unfold_call(out, f, in, g, &how, (int32_t)c->n_instances++, err));
            *more = true;
        }
    }
    return *refused != NULL ? LS_OK : ls_ptx_append_labels(out, f, &label, f->n_instructions, same, err);
}

static bool needs_slots(const ls_ptx_function *f) {
    for (int64_t i = 0; i < f->n_instructions; i++) {
        const ls_ptx_name op = f->instructions[i].op;
        if (ls_ptx_begins(op, "st.local") || ls_ptx_begins(op, "cvta.local") || ls_ptx_begins(op, "bfi.b64") ||
            ls_ptx_begins(op, "or.b64"))
            return true;
    }
    return false;
}

ls_status ls_ptx_unfold(ls_ptx_calls *c, const ls_ptx_function *f, int32_t module, const ls_ptx_function **out,
                        const char **refused, ls_error *err) {
    const ls_ptx_function *now = f;
    bool more = c->n_callees > 0;
    *refused = NULL;
    c->n_instances = 1;
    c->n_unfolded = 0;
    for (int32_t depth = 0; more; depth++) {
        LS_TRY(unfold_level(c, now, module, &more, refused, err));
        if (*refused != NULL) return *out = f, LS_OK;
        if (!more) break;
        if (depth == DEPTH_MAX) {
            refuse_call(c, refused, "whose calls lie deeper than 32 in each other", f->name);
            return *out = f, LS_OK;
        }
        const ls_ptx_function swapped = c->now;
        c->now = c->next;
        c->next = swapped;
        now = &c->now;
    }
    *out = now;
    if (now == f && !needs_slots(f)) return LS_OK;
    LS_TRY(ls_ptx_slots(&c->slots, now, err));
    *out = &c->slots;
    return LS_OK;
}
