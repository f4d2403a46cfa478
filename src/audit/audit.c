/* One function after the other: the checks that lie on the way to an address, what becomes of them in the ranges, and
 * the accesses behind them. */
#include "audit/audit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "audit/describe.h"
#include "audit/ptx_calls.h"
#include "audit/sass_lower.h"
#include "audit/sass_text.h"
#include "audit/work.h"
#include "base/mem.h"

enum { FINDINGS_MAX = 100000 };

typedef struct state {
    bool is_machine; /* compilers compute addresses in front of the guards of their accesses there */
    ls_work w;
    ls_flow flow;
    uint8_t *wanted; /* [values] */
    uint8_t *states; /* [values] ls_state */
    int32_t *blames; /* [values] the check that decides, -1 */
    int32_t *stack;
    int32_t *uses;     /* [values] the block below which every access lies that it reaches, -1 */
    int32_t *accesses; /* operands with addresses */
    int64_t cap_wanted, cap_states, cap_blames, cap_stack, cap_uses, cap_accesses, n_accesses;
} state;

/* Whether an instruction with an address touches global or shared memory, or some of them by a generic address. */
static bool is_access(ls_ptx_name op) {
    if (ls_ptx_has(op, ".param") || ls_ptx_has(op, ".local") || ls_ptx_has(op, ".const")) return false;
    static const char *const known[] = {"ld.",      "ldu.",          "st.",      "atom.",    "red.",
                                        "cp.",      "ldmatrix",      "stmatrix", "prefetch", "multimem",
                                        "mbarrier", "applypriority", "discard"};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (ls_ptx_begins(op, known[i])) return true;
    return false;
}

static ls_status collect_checks(state *s, ls_error *err) {
    const ls_ptx_function *f = s->w.f;
    s->n_accesses = 0;
    for (int64_t i = 0; i < s->flow.n_order; i++) {
        const ls_flow_block *k = &s->flow.blocks[s->flow.order[i]];
        for (int32_t at = k->first; at < k->first + k->n; at++) {
            const ls_ptx_instruction *in = &f->instructions[at];
            if (!is_access(in->op)) continue;
            for (int32_t o = in->first; o < in->first + in->n; o++) {
                if (f->operands[o].kind != LS_PTX_ADDRESS) continue;
                LS_TRY(ls_array_grow((void **)&s->accesses, &s->cap_accesses, s->n_accesses + 2, sizeof *s->accesses,
                                     "accesses", err));
                s->accesses[s->n_accesses++] = o;
                s->accesses[s->n_accesses++] = at;
            }
        }
    }
    return LS_OK;
}

/* Calls visit for every definition that value is made of, with the block over which it comes: of a join, the way in. */
static void each_operand(const state *s, int32_t value, void (*visit)(void *context, int32_t operand, int32_t block),
                         void *context) {
    const ls_flow_value *v = &s->flow.values[value];
    if (!s->w.cells[value].through) return;
    if (v->kind == LS_FLOW_PHI) {
        const ls_flow_block *k = &s->flow.blocks[v->block];
        for (int32_t e = 0; e < k->n_from; e++)
            if (s->flow.joined[v->first_from + e] >= 0)
                visit(context, s->flow.joined[v->first_from + e], s->flow.edges[k->first_from + e]);
        return;
    }
    const ls_ptx_instruction *in = &s->w.f->instructions[v->at];
    for (int32_t o = in->first + ls_flow_defines(s->w.f, in); o < in->first + in->n; o++)
        if (s->flow.reads[o] >= 0) visit(context, s->flow.reads[o], s->uses[value]);
    if (v->old >= 0) visit(context, v->old, s->uses[value]);
}

typedef struct push {
    state *s;
    int64_t n, steps;
} push;

/* The block above both. */
static int32_t common_dominator(const ls_flow *flow, int32_t a, int32_t b) {
    while (a != b) {
        const bool lower = flow->blocks[a].depth >= flow->blocks[b].depth;
        if (lower)
            a = flow->blocks[a].above;
        else
            b = flow->blocks[b].above;
        if (a < 0 || b < 0) return 0;
    }
    return a;
}

/* wanted: 1 has been seen, 2 waits on the stack. A definition comes again when its block moves up. */
static void push_wanted(void *context, int32_t value, int32_t block) {
    push *p = context;
    state *s = p->s;
    if (s->flow.blocks[block].order < 0) block = s->flow.values[value].block;
    const int32_t before = s->uses[value];
    int32_t now = before < 0 ? block : common_dominator(&s->flow, before, block);
    if (p->steps++ > 64 * s->flow.n_values + 100000) now = s->flow.values[value].block; /* as far up as it goes */
    s->uses[value] = now;
    if (s->wanted[value] == 2 || (s->wanted[value] == 1 && now == before)) return;
    s->wanted[value] = 2;
    s->stack[p->n++] = value;
}

static void mark_wanted(state *s) {
    push p = {s, 0, 0};
    for (int64_t i = 0; i < s->n_accesses; i += 2)
        if (s->flow.reads[s->accesses[i]] >= 0)
            push_wanted(&p, s->flow.reads[s->accesses[i]], s->flow.block_of[s->accesses[i + 1]]);
    while (p.n > 0) {
        const int32_t value = s->stack[--p.n];
        s->wanted[value] = 1;
        each_operand(s, value, push_wanted, &p);
    }
}

/* Whether the sum is one value whose bits are what they are: nothing was computed that could have passed them. */
static bool is_given(const ls_work *w, const ls_sum *sum) {
    const int32_t id = ls_sum_single(sum);
    if (id < 0) return false;
    const uint8_t kind = w->symbols[id].kind;
    return kind != LS_SYMBOL_JOIN && kind != LS_SYMBOL_LOOP && kind != LS_SYMBOL_TURN;
}

/* A sum of values that are only added: it passes a type where undeclared ones lie at the very end of theirs. */
static bool is_plain_sum(const ls_sum *sum) {
    for (int32_t i = 0; i < sum->n; i++)
        if (sum->terms[i].n > 1 || (sum->terms[i].n == 1 && (sum->terms[i].factor > 1 || sum->terms[i].factor < -1)))
            return false;
    return true;
}

static void judge_check(ls_work *w, ls_check *check) {
    ls_sum sum;
    ls_work_sum(w, &sum, check->sum);
    check->state = LS_STATE_EXACT;
    if (is_given(w, &sum)) return;
    const ls_range range = ls_work_range(w, &sum, check->block);
    if (ls_range_within(range, check->window)) return;
    ls_work_expand(w, &sum);
    check->state = LS_STATE_UNKNOWN;
    if (range.high <= check->window.high || sum.is_lost || ls_work_is_vague(w, &sum)) return;
    const bool at_the_end = range.high <= check->window.high + check->window.high / 1024;
    if ((is_plain_sum(&sum) || at_the_end) && !ls_work_declared(w, &sum)) return;
    check->state = LS_STATE_WRAPS;
}

typedef struct gather {
    state *s;
    uint8_t worst;
    int32_t blame;
} gather;

static void gather_state(void *context, int32_t value, int32_t block) {
    gather *g = context;
    (void)block;
    if (g->s->states[value] <= g->worst) return;
    g->worst = g->s->states[value];
    g->blame = g->s->blames[value];
}

/* States go from operands to results, round loops until nothing changes; they only rise. */
static void spread(state *s) {
    bool changed = true;
    for (int64_t v = 0; v < s->flow.n_values; v++) {
        s->states[v] = LS_STATE_EXACT;
        s->blames[v] = -1;
        if (!s->wanted[v]) continue;
        for (int32_t c = s->w.cells[v].check; c >= 0; c = s->w.checks[c].next) {
            ls_check *check = &s->w.checks[c];
            if (s->is_machine && s->uses[v] >= 0 && ls_flow_dominates(&s->flow, check->block, s->uses[v]))
                check->block = s->uses[v];
            if (check->state == LS_STATE_NEW) judge_check(&s->w, check);
            if (check->state > s->states[v]) s->states[v] = check->state, s->blames[v] = c;
        }
    }
    while (changed) {
        changed = false;
        for (int32_t v = 0; v < s->flow.n_values; v++) {
            gather g = {s, s->states[v], s->blames[v]};
            if (!s->wanted[v]) continue;
            each_operand(s, v, gather_state, &g);
            if (g.worst == s->states[v]) continue;
            s->states[v] = g.worst;
            s->blames[v] = g.blame;
            changed = true;
        }
    }
}

static void copy_name(char *out, size_t bytes, ls_ptx_name name) {
    const size_t n = (size_t)name.bytes < bytes - 1 ? (size_t)name.bytes : bytes - 1;
    for (size_t i = 0; i < n; i++) out[i] = name.text[i] >= ' ' && name.text[i] < 127 ? name.text[i] : '?';
    out[n] = '\0';
}

static ls_ptx_name shown(const ls_ptx_instruction *in) { return in->shown.text != NULL ? in->shown : in->op; }

static ls_status add_unknown(ls_audit *audit, const state *s, int32_t at, int32_t blame, const char *reason,
                             ls_error *err) {
    audit->n_unknown++;
    if (audit->n_unknowns == FINDINGS_MAX) return LS_OK; /* counted, and said so by whoever writes */
    LS_TRY(ls_array_grow((void **)&audit->unknowns, &audit->cap_unknowns, audit->n_unknowns + 1,
                         sizeof *audit->unknowns, "unknown accesses", err));
    ls_audit_unknown *u = &audit->unknowns[audit->n_unknowns++];
    *u = (ls_audit_unknown){.file = s->w.file, .line = s->w.f->instructions[at].line};
    copy_name(u->kernel, sizeof u->kernel, s->w.f->name);
    copy_name(u->access, sizeof u->access, shown(&s->w.f->instructions[at]));
    if (blame >= 0)
        ls_describe_unknown((ls_work *)&s->w, &s->w.checks[blame], u->reason, sizeof u->reason);
    else
        snprintf(u->reason, sizeof u->reason, "%s", reason != NULL ? reason : "");
    return LS_OK;
}

/* The address of an access as it is known; lost where nothing is. */
static void address_of(const state *s, int32_t operand, ls_sum *out) {
    out->is_lost = true;
    out->n = 0;
    if (s->flow.reads[operand] < 0) return;
    ls_work_sum(&s->w, out, s->w.cells[s->flow.reads[operand]].sum);
    ls_work_expand(&s->w, out);
}

/* Addresses of 32 bits, in shared memory, have nothing to be widened to: the sum itself must fit. */
static bool shared_passes(state *s, int32_t operand, int32_t at, const char **reason) {
    const ls_ptx_instruction *in = &s->w.f->instructions[at];
    ls_sum address;
    if (!ls_ptx_has(in->op, ".shared") || s->flow.reads[operand] < 0) return false;
    if (s->w.f->registers[s->w.f->operands[operand].reg].type != LS_PTX_B32) return false;
    address_of(s, operand, &address);
    if (address.is_lost || is_given(&s->w, &address)) return false;
    const ls_range r = ls_work_range(&s->w, &address, s->flow.block_of[at]);
    if (r.high <= 0xFFFFFFFFLL && r.low >= -2147483648LL) return false;
    *reason = ls_work_is_vague(&s->w, &address) ? "an address in shared memory with a part that nothing bounds"
                                                : "an address in shared memory that only the launch bounds";
    return true;
}

static ls_status add_access(ls_audit *audit, state *s, int32_t operand, int32_t at, ls_error *err) {
    const int32_t value = s->flow.reads[operand];
    const char *reason = NULL;
    audit->n_accesses++;
    if (s->w.f->operands[operand].reg >= 0 && value < 0)
        return add_unknown(audit, s, at, -1, "the address is in a register that nothing sets", err);
    if (value < 0) {
        audit->n_exact++; /* a variable's */
        return LS_OK;
    }
    if (s->states[value] == LS_STATE_WRAPS) {
        ls_check *check = &s->w.checks[s->blames[value]];
        if (check->access < 0) check->access = operand;
        check->n_accesses++;
        audit->n_wraps++;
        return LS_OK;
    }
    if (s->states[value] == LS_STATE_UNKNOWN) return add_unknown(audit, s, at, s->blames[value], NULL, err);
    if (shared_passes(s, operand, at, &reason)) return add_unknown(audit, s, at, -1, reason, err);
    audit->n_exact++;
    return LS_OK;
}

/* Bytes by which the address moves with one of the sum. */
static int64_t scale_of(const ls_sum *address, const ls_sum *sum) {
    for (int32_t i = 0; i < sum->n && !address->is_lost; i++)
        for (int32_t k = 0; k < address->n; k++) {
            ls_term scale;
            if (sum->terms[i].n > 0 && ls_term_divide(&scale, &address->terms[k], &sum->terms[i]) && scale.n == 0)
                return scale.factor;
        }
    return 0;
}

/* The instruction that makes a definition, NULL for a join; copies of machine code are looked through. */
static const ls_ptx_instruction *maker(const state *s, int32_t value) {
    while (value >= 0 && s->flow.values[value].kind == LS_FLOW_INSTRUCTION) {
        const ls_ptx_instruction *in = &s->w.f->instructions[s->flow.values[value].at];
        const bool copies = in->shown.text != NULL && ls_ptx_begins(in->op, "mov.b32") && in->n == 2;
        if (!copies || s->flow.reads[in->first + 1] < 0) return in;
        value = s->flow.reads[in->first + 1];
    }
    return NULL;
}

static ls_status add_finding(ls_audit *audit, state *s, const ls_check *check, ls_error *err) {
    const ls_ptx_instruction *in = &s->w.f->instructions[check->at];
    ls_sum sum, address;
    if (audit->n_findings == FINDINGS_MAX) return audit->n_left_out++, LS_OK;
    LS_TRY(ls_array_grow((void **)&audit->findings, &audit->cap_findings, audit->n_findings + 1,
                         sizeof *audit->findings, "findings", err));
    ls_audit_finding *out = &audit->findings[audit->n_findings++];
    *out =
        (ls_audit_finding){.file = s->w.file, .line = in->line, .source = in->source, .n_accesses = check->n_accesses};
    copy_name(out->kernel, sizeof out->kernel, s->w.f->name);
    copy_name(out->op, sizeof out->op, shown(in));
    out->is_signed = check->window.low < 0;
    out->bits = check->window.high >= 0x7FFFFFFF ? 32 : 16;
    for (int64_t i = 0; i < s->n_accesses; i += 2)
        if (s->accesses[i] == check->access) {
            copy_name(out->access, sizeof out->access, shown(&s->w.f->instructions[s->accesses[i + 1]]));
            out->access_line = s->w.f->instructions[s->accesses[i + 1]].line;
        }
    const ls_ptx_instruction *made = maker(s, check->source);
    if (made != NULL) {
        copy_name(out->made_by, sizeof out->made_by, shown(made));
        out->made_line = made->line;
        if (made->source != 0) out->source = made->source;
    }
    ls_work_sum(&s->w, &sum, check->sum);
    ls_work_expand(&s->w, &sum);
    address_of(s, check->access, &address);
    out->scale = scale_of(&address, &sum);
    ls_describe_finding(&s->w, &sum, check->block, check->window, out);
    return LS_OK;
}

static ls_status prepare_state(state *s, ls_error *err) {
    const int64_t n = s->flow.n_values + 1;
    LS_TRY(ls_array_grow((void **)&s->wanted, &s->cap_wanted, n, 1, "marks", err));
    LS_TRY(ls_array_grow((void **)&s->states, &s->cap_states, n, 1, "states", err));
    LS_TRY(ls_array_grow((void **)&s->blames, &s->cap_blames, n, sizeof *s->blames, "reasons", err));
    LS_TRY(ls_array_grow((void **)&s->stack, &s->cap_stack, n, sizeof *s->stack, "stack", err));
    LS_TRY(ls_array_grow((void **)&s->uses, &s->cap_uses, n, sizeof *s->uses, "blocks", err));
    memset(s->uses, -1, sizeof *s->uses * (size_t)n);
    memset(s->wanted, 0, (size_t)n);
    return LS_OK;
}

static ls_status audit_function(ls_audit *audit, state *s, const ls_ptx_function *f, ls_error *err) {
    LS_TRY(ls_flow_build(&s->flow, f, s->w.file, err));
    s->w.f = f;
    s->w.flow = &s->flow;
    LS_TRY(ls_work_evaluate(&s->w, err));
    LS_TRY(ls_work_bound(&s->w, err));
    LS_TRY(prepare_state(s, err));
    LS_TRY(collect_checks(s, err));
    mark_wanted(s);
    spread(s);
    for (int64_t i = 0; i < s->n_accesses; i += 2)
        LS_TRY(add_access(audit, s, s->accesses[i], s->accesses[i + 1], err));
    for (int64_t c = 0; c < s->w.n_checks; c++)
        if (s->w.checks[c].n_accesses > 0) LS_TRY(add_finding(audit, s, &s->w.checks[c], err));
    audit->n_kernels += f->is_entry;
    audit->n_instructions += f->n_instructions;
    if (audit->progress != NULL) audit->progress(audit->n_kernels);
    return LS_OK;
}

static bool is_asked(const ls_audit *audit, const ls_ptx_function *f) {
    return audit->only == NULL || ls_ptx_has(f->name, audit->only);
}

static void deinit(state *s) {
    ls_flow_deinit(&s->flow);
    ls_work_deinit(&s->w);
    free(s->wanted), free(s->states), free(s->blames), free(s->stack), free(s->uses), free(s->accesses);
}

/* Every access of a function whose calls cannot be unfolded is unknown, for that reason. */
static ls_status refuse_function(ls_audit *audit, state *s, const ls_ptx_function *f, const char *reason,
                                 ls_error *err) {
    s->w.f = f;
    for (int64_t i = 0; i < f->n_instructions; i++) {
        const ls_ptx_instruction *in = &f->instructions[i];
        for (int32_t o = in->first; is_access(in->op) && o < in->first + in->n; o++) {
            if (f->operands[o].kind != LS_PTX_ADDRESS) continue;
            audit->n_accesses++;
            LS_TRY(add_unknown(audit, s, (int32_t)i, -1, reason, err));
        }
    }
    audit->n_kernels += f->is_entry;
    audit->n_instructions += f->n_instructions;
    return LS_OK;
}

/* A function with what it calls. What kernels call is audited there, unless that cannot be. */
static ls_status audit_with_calls(ls_audit *audit, state *s, ls_ptx_calls *calls, const ls_ptx_function *f,
                                  int32_t module, ls_error *err) {
    const ls_ptx_function *whole;
    const char *refused;
    LS_TRY(ls_ptx_unfold(calls, f, module, &whole, &refused, err));
    if (refused != NULL) return refuse_function(audit, s, f, refused, err);
    if (ls_ptx_is_called(calls, f, module)) return LS_OK;
    return audit_function(audit, s, whole, err);
}

ls_status ls_audit_ptx(ls_audit *audit, const char *text, int64_t bytes, const char *file, const ls_ranges *ranges,
                       ls_error *err) {
    ls_status status;
    ls_ptx_reader *reader = NULL;
    ls_ptx_calls *calls = NULL;
    const ls_ptx_function *f;
    state s = {.w = {.ranges = ranges, .file = file}};
    LS_TRY_DONE(ls_ptx_open(&reader, text, bytes, file, err));
    LS_TRY_DONE(ls_ptx_calls_open(&calls, text, bytes, file, err));
    for (;;) {
        LS_TRY_DONE(ls_ptx_next(reader, &f, err));
        if (f == NULL) break;
        if (ls_ptx_address_bits(reader) != 64) {
            status = LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: addresses of 32 bits: only 64 are audited", file);
            break;
        }
        if (is_asked(audit, f)) LS_TRY_DONE(audit_with_calls(audit, &s, calls, f, ls_ptx_tell(reader).module, err));
    }
    audit->n_files++;
done:
    ls_ptx_calls_close(calls);
    ls_ptx_close(reader);
    deinit(&s);
    return status;
}

/* Accesses of which nothing is said: of a function that is refused, or of code that only calls reach. */
static ls_status pass_over(ls_audit *audit, state *s, const ls_sass_lowering *l, const ls_sass_function *f,
                           ls_error *err) {
    s->w.f = &f->f;
    for (int64_t i = 0; i < f->f.n_instructions; i++) {
        const ls_ptx_instruction *in = &f->f.instructions[i];
        if (!ls_sass_is_access(in->op)) continue;
        if (f->refused == NULL && l->flow.blocks[l->flow.block_of[i]].order >= 0) continue;
        audit->n_accesses++;
        LS_TRY(add_unknown(audit, s, (int32_t)i, -1,
                           f->refused != NULL ? f->refused : "it stands in code that only a call reaches", err));
    }
    return LS_OK;
}

static ls_status audit_machine(ls_audit *audit, state *s, ls_sass_lowering *l, const ls_sass_function *f,
                               ls_error *err) {
    if (f->refused != NULL) {
        audit->n_kernels++;
        audit->n_instructions += f->f.n_instructions;
        return pass_over(audit, s, l, f, err);
    }
    LS_TRY(ls_sass_lower(l, f, s->w.file, err));
    LS_TRY(audit_function(audit, s, &l->out, err));
    audit->n_instructions += f->f.n_instructions - l->out.n_instructions;
    return pass_over(audit, s, l, f, err);
}

ls_status ls_audit_sass(ls_audit *audit, const char *text, int64_t bytes, const char *file, const ls_ranges *ranges,
                        ls_error *err) {
    ls_status status;
    ls_sass_reader *reader = NULL;
    ls_sass_lowering *l = NULL;
    const ls_sass_function *f;
    state s = {.is_machine = true, .w = {.ranges = ranges, .file = file}};
    LS_TRY_DONE(ls_sass_open(&reader, text, bytes, file, err));
    LS_TRY_DONE(ls_array_alloc((void **)&l, 1, sizeof *l, "machine code", err));
    for (;;) {
        LS_TRY_DONE(ls_sass_next(reader, &f, err));
        if (f == NULL) break;
        if (is_asked(audit, &f->f)) LS_TRY_DONE(audit_machine(audit, &s, l, f, err));
    }
    audit->n_files++;
done:
    if (l != NULL) ls_sass_lowering_deinit(l);
    free(l);
    ls_sass_close(reader);
    deinit(&s);
    return status;
}

void ls_audit_deinit(ls_audit *audit) {
    free(audit->findings);
    free(audit->unknowns);
    for (int64_t i = 0; i < audit->n_names; i++) free(audit->names[i]);
    free(audit->names);
    *audit = (ls_audit){0};
}
