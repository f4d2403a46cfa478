/* Sequences with state: a problem and its results by the CPU contract, the cut of its sequences into spans, and calls
 * that run them on the back end under test.
 *
 * All that a call may touch beside the pool of states lies in one block of device memory, its image: spans, parameters,
 * inputs, output, with NaN between them. After the call the whole image must be what it was, but for the output rows of
 * tokens, which must be those of the contract. So one comparison covers results, padding rows, gaps and inputs. The
 * pool is compared as a whole too.
 *
 * The payload of a float32 NaN is open in outputs and states; every other bit is compared. */
#ifndef LS_TESTS_BACKEND_SPANS_H
#define LS_TESTS_BACKEND_SPANS_H

#include "backend.h"
#include "num/round.h"

#define SEQS_MAX 64
#define INPUTS_MAX 5
#define PARAMS_MAX 3
#define WHY_MAX 400
#define POISON 0xFF /* NaN in every type */

/* A row for each token; the tokens of all sequences lie one after another. */
typedef struct tensor {
    const char *name;
    ls_dtype dtype;
    int64_t cols;
    uint8_t *data; /* NULL: the op is called without it */
} tensor;

typedef struct param {
    const char *name;
    int64_t n;
    float *data; /* NULL: the op is called without it */
} param;

/* Memory of one call. */
typedef struct operands {
    const void *in[INPUTS_MAX];
    int64_t in_stride[INPUTS_MAX];
    const float *param[PARAMS_MAX];
    void *out;
    int64_t out_stride, rows;
    const ls_span *spans;
    int64_t n_spans, span_rows_max;
    ls_pool_view pool;
} operands;

typedef struct problem problem;
struct problem {
    char name[120];
    int64_t n_seqs, length[SEQS_MAX], first[SEQS_MAX]; /* first: row of a sequence's first token */
    int64_t tokens;
    tensor in[INPUTS_MAX], out; /* out is expected */
    param param[PARAMS_MAX];
    int64_t dim, width; /* width: states of a channel, or taps */
    bool activated;
    ls_dtype state_dtype;
    int64_t state_bytes, state_align; /* of a pool entry */
    uint8_t *state;                   /* [n_seqs][state_stride], expected after the last token */
    int64_t state_stride, token_work;
    ls_status (*call)(const ls_exec *exec, const problem *p, const operands *o, ls_error *err);
    int64_t (*workspace)(const problem *p, const operands *o);
    /* Of an op whose states may lack tokens: behind the state an entry then has held_bytes, from held_at on. */
    int64_t every, held_at, held_bytes;
    ls_status (*write_held)(const ls_exec *exec, const problem *p, const operands *o, ls_error *err);
};

static inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* Every float32 NaN becomes the same one. */
static inline void canon(void *row, ls_dtype dtype, int64_t n) {
    float *x = row;
    for (int64_t i = 0; i < n && dtype == LS_F32; i++) x[i] = ls_canonical(x[i]);
}

static inline int64_t row_bytes(const tensor *t) { return t->cols * ls_dtype_bytes(t->dtype); }

/* ---- the contract ---- */

/* Tokens [0, n) of sequence s in one span, alone, on the reference. out [n][cols] may be NULL; state is an entry. */
static inline void reference_run(bk_run *run, const problem *p, int64_t s, int64_t n, uint8_t *out, uint8_t *state) {
    const ls_span span = {0, n, 0, 0, 0};
    operands o;
    ls_exec *exec;
    memset(&o, 0, sizeof o);
    for (int64_t i = 0; i < INPUTS_MAX; i++) {
        o.in[i] = p->in[i].data == NULL ? NULL : p->in[i].data + p->first[s] * row_bytes(&p->in[i]);
        o.in_stride[i] = p->in[i].cols;
    }
    for (int64_t i = 0; i < PARAMS_MAX; i++) o.param[i] = p->param[i].data;
    o.out = out != NULL ? out : bk_alloc(n * row_bytes(&p->out));
    o.out_stride = p->out.cols;
    o.rows = n;
    o.spans = &span;
    o.n_spans = 1;
    o.pool = (ls_pool_view){state, p->state_stride, 1};
    exec = bk_reference(run, p->workspace(p, &o), n * p->token_work);
    bk_reference_done(run, p->name, p->call(exec, p, &o, &run->err));
    canon(o.out, p->out.dtype, n * p->out.cols);
    canon(state, p->state_dtype, p->state_bytes / ls_dtype_bytes(p->state_dtype));
    if (out == NULL) free(o.out);
}

/* Fills out and state of a problem whose inputs are there. */
static inline void problem_solve(bk_run *run, problem *p) {
    p->state_stride = round_up(p->state_bytes, 16) + 16;
    p->out.data = bk_alloc(p->tokens * row_bytes(&p->out));
    p->state = bk_alloc(p->n_seqs * p->state_stride);
    memset(p->state, POISON, (size_t)(p->n_seqs * p->state_stride));
    for (int64_t s = 0; s < p->n_seqs; s++)
        reference_run(run, p, s, p->length[s], p->out.data + p->first[s] * row_bytes(&p->out),
                      p->state + s * p->state_stride);
}

static inline void problem_free(problem *p) {
    for (int64_t i = 0; i < INPUTS_MAX; i++) free(p->in[i].data);
    for (int64_t i = 0; i < PARAMS_MAX; i++) free(p->param[i].data);
    free(p->out.data);
    free(p->state);
}

/* ---- cuts ---- */

/* How a problem becomes calls. */
typedef struct cut {
    int64_t chunk; /* tokens of a span; WHOLE: all that are left, RANDOM: 1 to 70 */
    enum { PACKED, ALONE } packing;
    enum { BOUND_EXACT, BOUND_LOOSE, BOUND_OPEN } bound; /* of span_rows_max; exact with chunk 1 is the decode kernel */
    bool watch;                                          /* compare the pool after every call, not only at the end */
    bool record;  /* faults go to a record; else every call waits for its check */
    int64_t keep; /* tokens of each sequence that are left for later */
} cut;
enum { WHOLE = 0, RANDOM = -1 };

static const cut cuts[] = {
    {WHOLE, PACKED, BOUND_EXACT, false, false, 0}, {1, PACKED, BOUND_EXACT, true, false, 0},
    {1, PACKED, BOUND_OPEN, false, true, 0},       {2, PACKED, BOUND_EXACT, true, true, 0},
    {3, PACKED, BOUND_LOOSE, true, false, 0},      {5, PACKED, BOUND_OPEN, true, true, 0},
    {15, PACKED, BOUND_EXACT, false, false, 0},    {16, PACKED, BOUND_EXACT, false, true, 0},
    {17, PACKED, BOUND_LOOSE, false, false, 0},    {64, PACKED, BOUND_EXACT, false, true, 0},
    {RANDOM, PACKED, BOUND_EXACT, true, false, 0}, {RANDOM, PACKED, BOUND_OPEN, false, true, 0},
    {WHOLE, ALONE, BOUND_OPEN, false, true, 0},    {1, ALONE, BOUND_EXACT, false, false, 0},
    {RANDOM, ALONE, BOUND_LOOSE, false, true, 0},
};

static inline const char *cut_name(const cut *c, char *text, size_t text_n) {
    char chunk[24];
    snprintf(chunk, sizeof chunk, "%lld", (long long)c->chunk);
    snprintf(text, text_n, "chunk %s, %s, bound %s, %s",
             c->chunk == WHOLE ? "whole"
             : c->chunk < 0    ? "random"
                               : chunk,
             c->packing == PACKED ? "packed" : "alone",
             c->bound == BOUND_EXACT   ? "exact"
             : c->bound == BOUND_LOOSE ? "loose"
                                       : "open",
             c->record ? "record" : "waiting");
    return text;
}

/* Progress of the sequences; order says which ones take part and how calls arrange them. */
typedef struct plan {
    int64_t done[SEQS_MAX], order[SEQS_MAX], n;
    bool fixed; /* keep this order, without padding; else the order turns and padding lies in between */
    uint64_t seed;
} plan;

/* Rows of one call: tokens, padding spans and rows of no span. */
typedef struct batch {
    int64_t n_rows, n_spans, longest;
    int64_t *source; /* [n_rows]: token, or -1 */
    ls_span spans[3 * SEQS_MAX];
} batch;

static inline plan plan_make(const problem *p, uint64_t seed) {
    plan pl;
    memset(&pl, 0, sizeof pl);
    pl.n = p->n_seqs;
    for (int64_t s = 0; s < p->n_seqs; s++) pl.order[s] = s;
    pl.seed = seed;
    return pl;
}

static inline batch batch_make(const problem *p) {
    batch b;
    memset(&b, 0, sizeof b);
    b.source = bk_alloc((p->tokens + 8 * SEQS_MAX) * (int64_t)sizeof *b.source);
    return b;
}

static inline void batch_rows(batch *b, int64_t n, int64_t source) {
    for (int64_t i = 0; i < n; i++) b->source[b->n_rows++] = source < 0 ? -1 : source + i;
}

static inline void batch_span(batch *b, int64_t n, int64_t pos, int32_t slot, int64_t source) {
    b->spans[b->n_spans++] = (ls_span){b->n_rows, n, pos, slot, 0};
    batch_rows(b, n, source);
}

static inline void batch_padding(batch *b, plan *pl, int64_t most, int32_t idle_slot) {
    const uint64_t dice = test_random(&pl->seed);
    if (dice % 2 == 0) batch_span(b, smaller(1 + (int64_t)(dice / 2 % 3), most), (int64_t)(dice / 8 % 2), -1, -1);
    if (dice / 16 % 4 == 0) batch_rows(b, 2, -1);
    /* A span without rows changes nothing, not even the slot that it names. */
    if (dice / 64 % 2 == 0 && idle_slot >= 0) batch_span(b, 0, (int64_t)(dice / 128 % 2), idle_slot, -1);
}

/* The next call: a span of every sequence that has tokens left. False when there are none. */
static inline bool plan_next(plan *pl, const problem *p, const cut *c, const int32_t *slot, int32_t idle_slot,
                             batch *b) {
    const int64_t turn = pl->fixed ? 0 : (int64_t)(test_random(&pl->seed) % (uint64_t)pl->n);
    int64_t found = 0;
    b->n_rows = b->n_spans = b->longest = 0;
    for (int64_t i = 0; i < pl->n; i++) {
        const int64_t s = pl->order[(i + turn) % pl->n], left = p->length[s] - c->keep - pl->done[s];
        int64_t n = c->chunk > 0 ? c->chunk : left;
        if (left <= 0) continue;
        if (c->chunk == RANDOM) n = 1 + (int64_t)(test_random(&pl->seed) % 70);
        n = smaller(n, left);
        if (!pl->fixed && c->packing == PACKED)
            batch_padding(b, pl, c->chunk > 0 ? c->chunk : n, found == 0 ? idle_slot : -1);
        batch_span(b, n, pl->done[s], slot[s], p->first[s] + pl->done[s]);
        pl->done[s] += n;
        found++;
        if (c->packing == ALONE) break;
    }
    for (int64_t i = 0; i < b->n_spans; i++)
        if (b->spans[i].n_rows > b->longest) b->longest = b->spans[i].n_rows;
    return found > 0;
}

/* ---- images ---- */

typedef struct section {
    const char *name;
    int64_t at, rows, cols, stride, element;  /* at and element in bytes */
    enum { READ, WRITTEN_ROWS, WRITTEN } use; /* WRITTEN_ROWS: those of tokens */
} section;

typedef struct image {
    uint8_t *host, *expect; /* before and after the call */
    uint8_t *device;
    int64_t bytes, capacity, device_bytes;
    section sections[20];
    int64_t n_sections;
} image;

/* Where the tensors of a call start and how far apart their rows lie. */
typedef enum style { TIGHT, WIDE, ODD, ODD_TIGHT } style; /* WIDE: rows at 16 bytes; ODD: aligned to elements only */

static inline void image_clear(image *m) { m->bytes = m->n_sections = 0; }
static inline void image_free(image *m) {
    free(m->host);
    free(m->expect);
}

/* Room for the rows after a gap, `skew` bytes after a multiple of 256; the offset. What is written holds BK_PATTERN,
 * the rest POISON. */
static inline int64_t image_section(image *m, section part, int64_t skew) {
    const int64_t at = round_up(m->bytes + 64, 256) + skew, bytes = part.rows * part.stride * part.element;
    const int64_t end = at + bytes + 64;
    if (end > m->capacity) {
        m->capacity = 2 * end;
        m->host = realloc(m->host, (size_t)m->capacity);
        m->expect = realloc(m->expect, (size_t)m->capacity);
        if (m->host == NULL || m->expect == NULL) abort();
    }
    memset(m->host + m->bytes, POISON, (size_t)(end - m->bytes));
    if (part.use != READ) memset(m->host + at, BK_PATTERN, (size_t)bytes);
    memcpy(m->expect + m->bytes, m->host + m->bytes, (size_t)(end - m->bytes));
    m->bytes = end;
    part.at = at;
    m->sections[m->n_sections++] = part;
    return at;
}

/* A flat array: read, or to be written with these values. */
static inline int64_t image_flat(image *m, const char *name, const void *data, int64_t bytes, bool written,
                                 int64_t skew) {
    const section part = {name, 0, 1, bytes / 4, bytes / 4, 4, written ? WRITTEN : READ};
    const int64_t at = image_section(m, part, skew);
    if (!written) memcpy(m->host + at, data, (size_t)bytes);
    memcpy(m->expect + at, data, (size_t)bytes);
    return at;
}

/* The tensor's rows of a batch: read, or to be written with these values. */
static inline int64_t image_rows(image *m, const tensor *t, const batch *b, bool written, style how, uint64_t *seed,
                                 int64_t *stride) {
    const int64_t element = ls_dtype_bytes(t->dtype), bytes = row_bytes(t);
    const int64_t pad = (int64_t)(test_random(seed) % 5), skew = element * (1 + (int64_t)(test_random(seed) % 7));
    section part = {t->name, 0, b->n_rows, t->cols, t->cols, element, written ? WRITTEN_ROWS : READ};
    int64_t at;
    if (how == WIDE) part.stride = round_up(t->cols, 16 / element) + 16 / element * (pad % 3);
    if (how == ODD) part.stride += pad;
    at = image_section(m, part, how == ODD || how == ODD_TIGHT ? skew : 0);
    for (int64_t row = 0; row < b->n_rows; row++) {
        const int64_t to = at + row * part.stride * element;
        if (b->source[row] < 0) continue;
        if (!written) memcpy(m->host + to, t->data + b->source[row] * bytes, (size_t)bytes);
        memcpy(m->expect + to, t->data + b->source[row] * bytes, (size_t)bytes);
    }
    *stride = part.stride;
    return at;
}

/* Puts the image on the device, where its sections start at the offsets that image_flat and image_rows gave. */
static inline uint8_t *image_upload(bk_run *run, image *m) {
    if (m->device_bytes < m->bytes) {
        m->device_bytes = 2 * m->bytes;
        m->device = bk_new(run, "operands", m->device_bytes, 0);
    }
    bk_upload(run, m->device, m->host, m->bytes);
    return m->device;
}

static inline void image_explain(const image *m, const uint8_t *got, char *why) {
    const section *part = &m->sections[0];
    int64_t i = 0, element;
    while (got[i] == m->expect[i]) i++;
    for (int64_t k = 0; k < m->n_sections; k++)
        if (m->sections[k].at <= i) part = &m->sections[k];
    element = (i - part->at) / part->element;
    i = part->at + element * part->element;
    snprintf(why, WHY_MAX, "%s: row %lld column %lld of %lld: expected 0x%0*llx, got 0x%0*llx", part->name,
             (long long)(element / part->stride), (long long)(element % part->stride), (long long)part->cols,
             (int)(2 * part->element), bk_pattern_at(m->expect + i, 0, part->element), (int)(2 * part->element),
             bk_pattern_at(got + i, 0, part->element));
}

/* The image on the device against what it must be now. */
static inline bool image_check(bk_run *run, const image *m, const batch *b, char *why) {
    uint8_t *got = bk_alloc(m->bytes);
    bool same;
    bk_download(run, got, m->device, m->bytes);
    for (int64_t i = 0; i < m->n_sections; i++) {
        const section *part = &m->sections[i];
        const ls_dtype dtype = part->element == 4 ? LS_F32 : LS_BF16;
        for (int64_t row = 0; row < part->rows && part->use != READ; row++)
            if (part->use == WRITTEN || b->source[row] >= 0)
                canon(got + part->at + row * part->stride * part->element, dtype, part->cols);
    }
    same = memcmp(got, m->expect, (size_t)m->bytes) == 0;
    if (!same) image_explain(m, got, why);
    free(got);
    return same;
}

/* ---- rigs ---- */

/* Device memory for a problem: its pool, an image and a fault record. */
typedef struct rig {
    bk_run *run;
    const problem *p;
    ls_pool_view pool;
    int32_t slot[SEQS_MAX], idle_slot;
    uint8_t *expect, *got; /* the pool; NULL where its owner compares it */
    bool written[SEQS_MAX + 8];
    int64_t turned;
    image image;
    ls_fault *record;
    ls_span *whole; /* device memory, one for each entry; NULL: states lack nothing */
} rig;

/* Other slots for all sequences, so that each finds what another one left. */
static inline void rig_turn(rig *r) {
    const int64_t n = r->pool.n_entries;
    r->turned++;
    for (int64_t s = 0; s < r->p->n_seqs; s++) r->slot[s] = (int32_t)((s * 5 + 3 * r->turned) % n);
    r->idle_slot = (int32_t)((r->p->n_seqs * 5 + 3 * r->turned) % n);
}

static inline void rig_poison(rig *r) {
    const int64_t bytes = r->pool.stride * r->pool.n_entries;
    memset(r->expect, POISON, (size_t)bytes);
    memset(r->written, 0, sizeof r->written);
    bk_upload(r->run, r->pool.base, r->expect, bytes);
}

static inline ls_fault *record_make(bk_run *run) {
    ls_fault *record = bk_new(run, "fault record", (int64_t)sizeof *record, 0);
    if (ls_device_fill(&run->exec, record, 0, (int64_t)sizeof *record, &run->err) != LS_OK) bk_die(run, "record");
    return record;
}

/* A rig in a pool of its owner's. */
static inline rig rig_in(bk_run *run, const problem *p, const ls_pool_view *pool) {
    rig r;
    memset(&r, 0, sizeof r);
    r.run = run;
    r.p = p;
    r.pool = *pool;
    r.idle_slot = -1;
    r.record = record_make(run);
    return r;
}

/* A rig with a pool of a few more entries than sequences; entries start and follow each other as close to an alignment
 * fault as the op allows. */
static inline rig rig_make(bk_run *run, const problem *p) {
    const int64_t n = p->n_seqs + 3 + ((p->n_seqs + 3) % 5 == 0);
    const int64_t bytes = p->every > 1 ? p->held_at + p->held_bytes : p->state_bytes;
    const int64_t stride = round_up(bytes, p->state_align) + 3 * p->state_align;
    const ls_pool_view pool = {bk_new(run, "pool", n * stride, 3 * p->state_align), stride, n};
    rig r = rig_in(run, p, &pool);
    r.expect = bk_alloc(n * stride);
    r.got = bk_alloc(n * stride);
    if (p->every > 1) r.whole = bk_new(run, "slots to write", n * (int64_t)sizeof *r.whole, 0);
    rig_turn(&r);
    rig_poison(&r);
    return r;
}

static inline void rig_free(rig *r) {
    free(r->expect);
    free(r->got);
    image_free(&r->image);
}

/* Inputs and parameters of a batch; o gets their offsets, for image_address(). */
typedef struct offsets {
    int64_t spans, in[INPUTS_MAX], param[PARAMS_MAX];
} offsets;

static inline offsets image_inputs(image *m, const problem *p, const batch *b, style how, uint64_t *seed, operands *o) {
    offsets at;
    memset(&at, 0, sizeof at);
    memset(o, 0, sizeof *o);
    image_clear(m);
    at.spans = image_flat(m, "spans", b->spans, b->n_spans * (int64_t)sizeof b->spans[0], false, 8);
    for (int64_t i = 0; i < PARAMS_MAX; i++)
        if (p->param[i].data != NULL)
            at.param[i] = image_flat(m, p->param[i].name, p->param[i].data, p->param[i].n * 4, false,
                                     how == ODD || how == ODD_TIGHT ? 16 : 0);
    for (int64_t i = 0; i < INPUTS_MAX; i++)
        if (p->in[i].data != NULL) at.in[i] = image_rows(m, &p->in[i], b, false, how, seed, &o->in_stride[i]);
    o->rows = b->n_rows;
    o->n_spans = b->n_spans;
    return at;
}

static inline void image_address(const image *m, const problem *p, const offsets *at, operands *o) {
    for (int64_t i = 0; i < INPUTS_MAX; i++) o->in[i] = p->in[i].data == NULL ? NULL : m->device + at->in[i];
    for (int64_t i = 0; i < PARAMS_MAX; i++)
        o->param[i] = p->param[i].data == NULL ? NULL : (const float *)(void *)(m->device + at->param[i]);
    o->spans = (const ls_span *)(void *)(m->device + at->spans);
}

static inline int64_t bound_of(const cut *c, const batch *b) {
    return c->bound == BOUND_OPEN ? 0 : c->bound == BOUND_EXACT ? b->longest : b->longest + 7;
}

/* Puts a batch into the image and on the device. */
static inline operands rig_prepare(rig *r, image *m, const batch *b, const cut *c, uint64_t seed) {
    const style how = (style)(test_random(&seed) % 4);
    operands o;
    const offsets at = image_inputs(m, r->p, b, how, &seed, &o);
    const int64_t out_at = image_rows(m, &r->p->out, b, true, how, &seed, &o.out_stride);
    o.out = image_upload(r->run, m) + out_at;
    image_address(m, r->p, &at, &o);
    o.span_rows_max = bound_of(c, b);
    o.pool = r->pool;
    return o;
}

/* The state of sequence s after its first `done` tokens, by the contract. */
static inline void expected_state(bk_run *run, const problem *p, int64_t s, int64_t done, uint8_t *state) {
    if (done == p->length[s])
        memcpy(state, p->state + s * p->state_stride, (size_t)p->state_bytes);
    else if (done > 0)
        reference_run(run, p, s, done, NULL, state);
}

/* Every state that a sequence has is whole then. What is held behind it is of no account. */
static inline bool rig_write_held(rig *r, const plan *pl, char *why) {
    const problem *p = r->p;
    ls_span spans[SEQS_MAX];
    operands o;
    memset(&o, 0, sizeof o);
    o.pool = r->pool;
    o.spans = r->whole;
    for (int64_t s = 0; s < p->n_seqs; s++)
        if (pl->done[s] > 0) spans[o.n_spans++] = (ls_span){0, 0, pl->done[s], r->slot[s], 0};
    bk_upload(r->run, r->whole, spans, o.n_spans * (int64_t)sizeof spans[0]);
    if (p->write_held(&r->run->exec, p, &o, &r->run->err) == LS_OK) return true;
    snprintf(why, WHY_MAX, "write_held: %.300s", r->run->err.text);
    return false;
}

/* The pool on the device against what it must be now: states of the sequences, and every other byte as it was. */
static inline bool rig_check_pool(rig *r, const plan *pl, char *why) {
    const problem *p = r->p;
    const int64_t bytes = r->pool.stride * r->pool.n_entries,
                  elements = p->state_bytes / ls_dtype_bytes(p->state_dtype);
    uint8_t *state;
    int64_t i = 0;
    if (r->whole != NULL && !rig_write_held(r, pl, why)) return false;
    state = bk_alloc(p->state_stride);
    for (int64_t s = 0; s < p->n_seqs; s++) {
        if (pl->done[s] == 0) continue;
        expected_state(r->run, p, s, pl->done[s], state);
        memcpy(r->expect + r->slot[s] * r->pool.stride, state, (size_t)p->state_bytes);
        r->written[r->slot[s]] = true;
    }
    free(state);
    bk_download(r->run, r->got, r->pool.base, bytes);
    for (int64_t e = 0; e < r->pool.n_entries; e++) {
        const int64_t at = e * r->pool.stride;
        if (r->written[e]) canon(r->got + at, p->state_dtype, elements);
        if (r->written[e] && r->whole != NULL)
            memcpy(r->expect + at + p->held_at, r->got + at + p->held_at, (size_t)p->held_bytes);
    }
    if (memcmp(r->got, r->expect, (size_t)bytes) == 0) return true;
    while (r->got[i] == r->expect[i]) i++;
    snprintf(why, WHY_MAX, "pool: slot %lld byte %lld of %lld (an entry has %lld)", (long long)(i / r->pool.stride),
             (long long)(i % r->pool.stride), (long long)r->pool.stride, (long long)p->state_bytes);
    return false;
}

/* ---- calls ---- */

static inline bool rig_call(rig *r, const operands *o, bool record, char *why) {
    bk_run *run = r->run;
    ls_status status;
    bk_before_call(run, r->p->workspace(r->p, o));
    run->exec.fault = record && run->cuda ? r->record : NULL;
    status = r->p->call(&run->exec, r->p, o, &run->err);
    if (status == LS_OK && run->exec.fault != NULL) status = ls_fault_take(&run->exec, &run->err);
    run->exec.fault = NULL;
    if (status != LS_OK) snprintf(why, WHY_MAX, "%s: %.300s", ls_status_name(status), run->err.text);
    bk_after_call(run);
    return status == LS_OK;
}

/* All sequences of the plan from where they are, in calls after this cut. False, and why, at the first difference. */
static inline bool drive(rig *r, plan *pl, const cut *c, char *why) {
    batch b = batch_make(r->p);
    bool good = true;
    while (good && plan_next(pl, r->p, c, r->slot, r->idle_slot, &b)) {
        const operands o = rig_prepare(r, &r->image, &b, c, test_random(&pl->seed));
        good = rig_call(r, &o, c->record, why) && image_check(r->run, &r->image, &b, why) &&
               (!c->watch || r->expect == NULL || rig_check_pool(r, pl, why));
    }
    free(b.source);
    return good && (r->expect == NULL || rig_check_pool(r, pl, why));
}

/* The same as a check of the case. */
static inline bool drive_check(rig *r, plan *pl, const cut *c) {
    char why[WHY_MAX] = "", name[100];
    if (drive(r, pl, c, why)) return true;
    bk_fail(r->run, "%s, %s: %s", r->p->name, cut_name(c, name, sizeof name), why);
    return false;
}

#endif
