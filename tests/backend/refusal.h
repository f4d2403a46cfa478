/* Calls that must be refused before they write: arguments spoiled one at a time, and spans that are wrong in device
 * memory. The sentence must name what is wrong and its value. */
#ifndef LS_TESTS_REFUSAL_H
#define LS_TESTS_REFUSAL_H

#include "spans.h"

typedef ls_status (*any_op)(const ls_exec *exec, const void *args, ls_error *err);

/* A call that is right, and what it must leave alone. */
typedef struct refusal {
    bk_run *run;
    const char *op;
    any_op call;
    const void *args;
    size_t args_bytes;
    int64_t workspace_bytes;
    bool (*untouched)(void *context, char *why);
    void *context;
} refusal;

/* One field set to a value. WORD keeps 8 bytes, TYPE an ls_dtype; SHIFT adds bytes to a pointer; HOST points it at host
 * memory, which only a GPU refuses. */
typedef struct spoil {
    const char *words[2];
    size_t at;
    enum { WORD, TYPE, SHIFT, HOST } kind;
    int64_t value;
} spoil;

#define NOT_NULL(args, field) \
    { {#field, "null"}, offsetof(args, field), WORD, 0 }
#define TWO_62 4611686018427387904
#define FITS(args, name, field) \
    { {name, "4611686018427387904"}, offsetof(args, field), WORD, TWO_62 }

static inline void refusal_check(refusal *r, const char *const *words, ls_status status) {
    char why[WHY_MAX] = "", what[120];
    snprintf(what, sizeof what, "%s that is wrong in '%s' '%s'", r->op, words[0], words[1]);
    bk_call_refused(r->run, what, status, words, 2);
    if (!r->untouched(r->context, why)) bk_fail(r->run, "%s: the refused call wrote: %s", what, why);
}

static inline void check_spoils(refusal *r, const spoil *list, int64_t n) {
    static int64_t host_memory[64];
    uint8_t *args = bk_alloc((int64_t)r->args_bytes);
    for (const spoil *s = list; s < list + n; s++) {
        int64_t value = s->value;
        if (s->kind == HOST && !r->run->cuda) continue;
        memcpy(args, r->args, r->args_bytes);
        if (s->kind == HOST) value = (int64_t)(intptr_t)host_memory;
        if (s->kind == SHIFT) {
            int64_t old;
            memcpy(&old, args + s->at, sizeof old);
            value += old;
        }
        if (s->kind == TYPE) {
            const ls_dtype type = (ls_dtype)value;
            memcpy(args + s->at, &type, sizeof type);
        } else {
            memcpy(args + s->at, &value, sizeof value);
        }
        bk_before_call(r->run, r->workspace_bytes);
        refusal_check(r, s->words, r->call(&r->run->exec, args, &r->run->err));
    }
    free(args);
}

/* A workspace that is not there, or a byte too small. */
static inline void check_workspace(refusal *r) {
    static const char *const words[] = {"workspace", "are needed"};
    bk_before_call(r->run, r->workspace_bytes);
    r->run->exec.workspace_bytes--;
    refusal_check(r, words, r->call(&r->run->exec, r->args, &r->run->err));
    r->run->exec.workspace_bytes++;
    r->run->exec.workspace = NULL;
    refusal_check(r, words, r->call(&r->run->exec, r->args, &r->run->err));
    r->run->exec.workspace = r->run->workspace.data;
}

/* The call of the refusal, whose spans have just become wrong: found by the waiting call, and by the record's. */
static inline void check_fault(refusal *r, ls_fault *record, const char *const *words) {
    bk_run *run = r->run;
    ls_status status;
    bk_before_call(run, r->workspace_bytes);
    refusal_check(r, words, r->call(&run->exec, r->args, &run->err));
    if (!run->cuda) return;
    bk_before_call(run, r->workspace_bytes);
    run->exec.fault = record;
    status = r->call(&run->exec, r->args, &run->err);
    if (status != LS_OK)
        bk_fail(run, "%s: a call with a record does not wait for its check: %s", r->op, run->err.text);
    else
        refusal_check(r, words, ls_fault_take(&run->exec, &run->err));
    run->exec.fault = NULL;
}

#endif
