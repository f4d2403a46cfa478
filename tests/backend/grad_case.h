/* Gradients of ops with state: a problem of state_case.h with the gradient of its output, the gradients by the CPU
 * contract, and calls that run them on the back end under test, packed, padded, in any order, and repeated. */
#ifndef LS_TESTS_GRAD_CASE_H
#define LS_TESTS_GRAD_CASE_H

#include "state_case.h"

#define ROW_GRADS 5

typedef struct grad_operands {
    operands in;
    const void *dout;
    int64_t dout_stride;
    void *row[ROW_GRADS];
    float *param[PARAMS_MAX];
    int64_t row_stride[ROW_GRADS];
} grad_operands;

/* A problem, the gradient of its output, and the gradients of its inputs by the contract. Gradients of parameters
 * depend on which sequences share a call and in which order, so they belong to an arrangement. */
typedef struct grad_problem grad_problem;
struct grad_problem {
    problem p;
    tensor dout, row[ROW_GRADS];
    bool tight; /* rows of gradients have no stride */
    ls_status (*call)(const ls_exec *exec, const problem *p, const grad_operands *o, ls_error *err);
    int64_t (*workspace)(const problem *p, const grad_operands *o);
};

static const char *const param_names[] = {"gradient of parameter 0", "gradient of parameter 1",
                                          "gradient of parameter 2"};

/* ---- arrangements ---- */

/* Sequences that share a call, in order, and their parameters' gradients by the contract. */
typedef struct arrangement {
    int64_t order[SEQS_MAX], n;
    float *param[PARAMS_MAX];
} arrangement;

/* The rows of one call of the arrangement: without seed nothing but its tokens. */
static inline batch arrangement_batch(const problem *p, const arrangement *a, uint64_t seed) {
    batch b = batch_make(p);
    for (int64_t i = 0; i < a->n; i++) {
        const int64_t s = a->order[i];
        if (seed != 0) {
            const uint64_t dice = test_random(&seed);
            if (dice % 2 == 0) batch_span(&b, 1 + (int64_t)(dice / 2 % 3), 0, -1, -1);
            if (dice / 16 % 4 == 0) batch_rows(&b, 2, -1);
            if (dice / 64 % 4 == 0) batch_span(&b, 0, 0, 2, -1);
        }
        batch_span(&b, p->length[s], 0, (int32_t)(seed != 0 ? test_random(&seed) % 1000 : 0), p->first[s]);
    }
    for (int64_t i = 0; i < b.n_spans; i++)
        if (b.spans[i].n_rows > b.longest) b.longest = b.spans[i].n_rows;
    return b;
}

/* Tokens of the arrangement's sequences one after another, from `t` or back to it. */
static inline void gather(const tensor *t, const batch *b, uint8_t *packed, bool back) {
    for (int64_t row = 0; row < b->n_rows; row++) {
        uint8_t *at = t->data + b->source[row] * row_bytes(t), *to = packed + row * row_bytes(t);
        memcpy(back ? at : to, back ? to : at, (size_t)row_bytes(t));
    }
}

/* One call of the reference, without padding: parameters' gradients, and the rows' where asked for. */
static inline void arrangement_solve(bk_run *run, const grad_problem *g, arrangement *a, bool rows_too) {
    const problem *p = &g->p;
    batch b = arrangement_batch(p, a, 0);
    uint8_t *in[INPUTS_MAX] = {NULL}, *dout = bk_alloc(b.n_rows * row_bytes(&g->dout));
    grad_operands o;
    ls_exec *exec;
    memset(&o, 0, sizeof o);
    for (int64_t i = 0; i < INPUTS_MAX; i++) {
        if (p->in[i].data == NULL) continue;
        in[i] = bk_alloc(b.n_rows * row_bytes(&p->in[i]));
        gather(&p->in[i], &b, in[i], false);
        o.in.in[i] = in[i];
        o.in.in_stride[i] = p->in[i].cols;
        o.row[i] = bk_alloc(b.n_rows * row_bytes(&g->row[i]));
        o.row_stride[i] = p->in[i].cols;
    }
    for (int64_t i = 0; i < PARAMS_MAX; i++) {
        o.in.param[i] = p->param[i].data;
        a->param[i] = o.param[i] = p->param[i].data == NULL ? NULL : bk_alloc(p->param[i].n * 4);
    }
    gather(&g->dout, &b, dout, false);
    o.dout = dout;
    o.dout_stride = g->dout.cols;
    o.in.rows = b.n_rows;
    o.in.spans = b.spans;
    o.in.n_spans = b.n_spans;
    exec = bk_reference(run, g->workspace(p, &o), 3 * b.n_rows * p->token_work);
    memset(exec->workspace, POISON, (size_t)exec->workspace_bytes);
    bk_reference_done(run, p->name, g->call(exec, p, &o, &run->err));
    for (int64_t i = 0; i < PARAMS_MAX; i++)
        if (a->param[i] != NULL) canon(a->param[i], LS_F32, p->param[i].n);
    for (int64_t i = 0; i < INPUTS_MAX; i++) {
        if (in[i] == NULL) continue;
        canon(o.row[i], g->row[i].dtype, b.n_rows * g->row[i].cols);
        if (rows_too) gather(&g->row[i], &b, o.row[i], true);
        free(o.row[i]);
        free(in[i]);
    }
    free(dout);
    free(b.source);
}

static inline void arrangement_free(arrangement *a) {
    for (int64_t i = 0; i < PARAMS_MAX; i++) free(a->param[i]);
}

/* All sequences in their order; the one call that g->row comes from. */
static inline arrangement everything(const grad_problem *g) {
    arrangement a;
    memset(&a, 0, sizeof a);
    a.n = g->p.n_seqs;
    for (int64_t s = 0; s < a.n; s++) a.order[s] = s;
    return a;
}

/* ---- problems ---- */

static inline grad_problem grad_finish(bk_run *run, grad_problem g, values kind, uint64_t seed) {
    static const char *const names[] = {"gradient of input 0", "gradient of input 1", "gradient of input 2",
                                        "gradient of input 3", "gradient of input 4"};
    arrangement all = everything(&g);
    seed += 1000;
    g.dout = tensor_make(&g.p, "dout", g.dout.dtype, g.p.dim, -1.0f, 1.0f, kind, &seed);
    for (int64_t i = 0; i < ROW_GRADS; i++) {
        g.row[i] = (tensor){names[i], g.row[i].dtype, g.p.in[i].cols, NULL};
        if (g.p.in[i].data != NULL) g.row[i].data = bk_alloc(g.p.tokens * row_bytes(&g.row[i]));
    }
    arrangement_solve(run, &g, &all, true);
    arrangement_free(&all);
    return g;
}

static inline void grad_problem_free(grad_problem *g) {
    problem_free(&g->p);
    free(g->dout.data);
    for (int64_t i = 0; i < ROW_GRADS; i++) free(g->row[i].data);
}

/* ---- calls ---- */

typedef struct grad_rig {
    bk_run *run;
    const grad_problem *g;
    image image;
    ls_fault *record;
} grad_rig;

static inline grad_rig grad_rig_make(bk_run *run, const grad_problem *g) {
    grad_rig r;
    memset(&r, 0, sizeof r);
    r.run = run;
    r.g = g;
    r.record = record_make(run);
    return r;
}

static inline void grad_rig_free(grad_rig *r) {
    image_free(&r->image);
    bk_clear(r->run);
}

static inline grad_operands grad_prepare(grad_rig *r, const arrangement *a, const batch *b, uint64_t seed) {
    const grad_problem *g = r->g;
    const problem *p = &g->p;
    image *m = &r->image;
    const style how = (style)(test_random(&seed) % 4);
    const style out_how = g->tight ? how == TIGHT || how == WIDE ? TIGHT : ODD_TIGHT : how;
    int64_t row_at[ROW_GRADS] = {0}, param_at[PARAMS_MAX] = {0}, dout_at;
    grad_operands o;
    offsets at;
    memset(&o, 0, sizeof o);
    at = image_inputs(m, p, b, how, &seed, &o.in);
    dout_at = image_rows(m, &g->dout, b, false, how, &seed, &o.dout_stride);
    for (int64_t i = 0; i < ROW_GRADS; i++)
        if (g->row[i].data != NULL) row_at[i] = image_rows(m, &g->row[i], b, true, out_how, &seed, &o.row_stride[i]);
    for (int64_t i = 0; i < PARAMS_MAX; i++)
        if (a->param[i] != NULL)
            param_at[i] = image_flat(m, param_names[i], a->param[i], p->param[i].n * 4, true, 4 * i);
    image_upload(r->run, m);
    image_address(m, p, &at, &o.in);
    o.dout = m->device + dout_at;
    for (int64_t i = 0; i < ROW_GRADS; i++) o.row[i] = g->row[i].data == NULL ? NULL : m->device + row_at[i];
    for (int64_t i = 0; i < PARAMS_MAX; i++)
        o.param[i] = a->param[i] == NULL ? NULL : (float *)(void *)(m->device + param_at[i]);
    return o;
}

/* The call on the back end, from a workspace of NaN. */
static inline bool grad_call(grad_rig *r, const grad_operands *o, bool record, char *why) {
    bk_run *run = r->run;
    ls_status status;
    bk_before_call(run, r->g->workspace(&r->g->p, o));
    if (ls_device_fill(&run->exec, run->exec.workspace, POISON, run->exec.workspace_bytes, &run->err) != LS_OK)
        bk_die(run, "workspace");
    run->exec.fault = record && run->cuda ? r->record : NULL;
    status = r->g->call(&run->exec, &r->g->p, o, &run->err);
    if (status == LS_OK && run->exec.fault != NULL) status = ls_fault_take(&run->exec, &run->err);
    run->exec.fault = NULL;
    if (status != LS_OK) snprintf(why, WHY_MAX, "%s: %.300s", ls_status_name(status), run->err.text);
    bk_after_call(run);
    return status == LS_OK;
}

/* One call of the arrangement; false, and why, where a bit differs from the contract. */
static inline bool grad_drive(grad_rig *r, const arrangement *a, uint64_t seed, char *why) {
    static const cut bounds[] = {{WHOLE, PACKED, BOUND_EXACT, false, false, 0},
                                 {WHOLE, PACKED, BOUND_LOOSE, false, true, 0},
                                 {WHOLE, PACKED, BOUND_OPEN, false, true, 0}};
    const cut *bound = &bounds[seed % BK_COUNT(bounds)];
    batch b = arrangement_batch(&r->g->p, a, seed);
    grad_operands o = grad_prepare(r, a, &b, seed + 1);
    bool good;
    o.in.span_rows_max = bound_of(bound, &b);
    good = grad_call(r, &o, bound->record, why) && image_check(r->run, &r->image, &b, why);
    free(b.source);
    return good;
}

static inline void grad_check(grad_rig *r, arrangement *a, uint64_t seed) {
    char why[WHY_MAX] = "";
    if (a->param[0] == NULL) arrangement_solve(r->run, r->g, a, false);
    if (!grad_drive(r, a, seed, why))
        bk_fail(r->run, "gradients of %s, %lld of %lld sequences, seed %llu: %s", r->g->p.name, (long long)a->n,
                (long long)r->g->p.n_seqs, (unsigned long long)seed, why);
}

/* Packed with and without padding, in another order, in pairs and alone: rows' gradients are those of the one call of
 * everything, parameters' those of the same sequences on the reference. `times` packed runs must be equal. */
static inline void check_packings(bk_run *run, grad_problem *g, int64_t times) {
    grad_rig r = grad_rig_make(run, g);
    arrangement all = everything(g);
    for (int64_t i = 0; i < times; i++) grad_check(&r, &all, (uint64_t)i / 3 + 1);
    arrangement_free(&all);
    all = everything(g);
    for (int64_t s = 0; s < all.n; s++) all.order[s] = all.n - 1 - s;
    grad_check(&r, &all, 40);
    arrangement_free(&all);
    for (int64_t s = 0; s < g->p.n_seqs; s++) {
        arrangement few = everything(g);
        few.order[0] = s;
        few.order[1] = (s + 1) % g->p.n_seqs;
        few.n = g->p.n_seqs > 1 ? 1 + s % 2 : 1;
        grad_check(&r, &few, 50 + (uint64_t)s);
        arrangement_free(&few);
    }
    grad_rig_free(&r);
    grad_problem_free(g);
}

static inline void golden_check(bk_run *run, grad_problem *g, const golden *recorded) {
    golden now = {BK_HASH_START, BK_HASH_START};
    arrangement all = everything(g);
    arrangement_solve(run, g, &all, false);
    for (int64_t i = 0; i < ROW_GRADS; i++)
        if (g->row[i].data != NULL) now.out = bk_hash(now.out, g->row[i].data, g->p.tokens * row_bytes(&g->row[i]));
    for (int64_t i = 0; i < PARAMS_MAX; i++)
        if (all.param[i] != NULL) now.rest = bk_hash(now.rest, all.param[i], g->p.param[i].n * 4);
    golden_compare(run, g->p.name, &now, recorded);
    arrangement_free(&all);
    check_packings(run, g, 3);
}

#endif
