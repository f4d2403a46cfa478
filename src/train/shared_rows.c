/* Trunks and branches of groups, by comparing their tokens. */
#include "train/shared_rows.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static ls_status alloc_rows(void **out, int64_t n, int64_t bytes, ls_error *err) {
    return ls_array_alloc(out, n, bytes, "shared rows", err);
}

ls_status ls_shared_rows_create(ls_shared_rows **out, const ls_shared_opts *opts, ls_error *err) {
    const int64_t rows = opts->rows_max, spans = opts->spans_max;
    ls_shared_rows *s = NULL;
    ls_status status;
    *out = NULL;
    LS_TRY_DONE(alloc_rows((void **)&s, 1, sizeof *s, err));
    s->opts = *opts;
    LS_TRY_DONE(alloc_rows((void **)&s->tokens, rows, sizeof *s->tokens, err));
    LS_TRY_DONE(alloc_rows((void **)&s->targets, rows, sizeof *s->targets, err));
    LS_TRY_DONE(alloc_rows((void **)&s->sources, rows, sizeof *s->sources, err));
    LS_TRY_DONE(alloc_rows((void **)&s->offsets, spans + 1, sizeof *s->offsets, err));
    LS_TRY_DONE(alloc_rows((void **)&s->parents, spans, sizeof *s->parents, err));
    LS_TRY_DONE(alloc_rows((void **)&s->begins, spans + 1, sizeof *s->begins, err));
    LS_TRY_DONE(alloc_rows((void **)&s->rows, opts->whole_rows_max, sizeof *s->rows, err));
    LS_TRY_DONE(alloc_rows((void **)&s->logprob, rows, sizeof(float), err));
    LS_TRY_DONE(alloc_rows((void **)&s->d_logprob, rows, sizeof(float), err));
    if (opts->entropy) {
        LS_TRY_DONE(alloc_rows((void **)&s->entropy, rows, sizeof(float), err));
        LS_TRY_DONE(alloc_rows((void **)&s->d_entropy, rows, sizeof(float), err));
    }
    LS_TRY_DONE(alloc_rows((void **)&s->members, opts->group, sizeof *s->members, err));
    LS_TRY_DONE(alloc_rows((void **)&s->moved, opts->group, sizeof *s->moved, err));
    *out = s;
    s = NULL;
done:
    ls_shared_rows_free(s);
    return status;
}

void ls_shared_rows_free(ls_shared_rows *s) {
    if (s == NULL) return;
    free(s->tokens);
    free(s->targets);
    free(s->sources);
    free(s->offsets);
    free(s->parents);
    free(s->begins);
    free(s->rows);
    free(s->logprob);
    free(s->entropy);
    free(s->d_logprob);
    free(s->d_entropy);
    free(s->members);
    free(s->moved);
    free(s);
}

/* A walk over groups. `counts` alone: nothing is laid out. */
typedef struct walk {
    ls_shared_rows *s;
    const ls_whole_rows *whole;
    int64_t first; /* row of the forward's first sequence */
    bool counts;
} walk;

/* Sequences that agree up to row `from` at least, whose rows before it are laid out up to span `parent`. */
typedef struct set {
    int64_t *members, n, from, parent;
} set;

static const int32_t *sequence_tokens(const walk *w, int64_t sequence) {
    return w->whole->tokens + w->whole->offsets[sequence];
}
static int64_t length_of(const walk *w, int64_t sequence) {
    return w->whole->offsets[sequence + 1] - w->whole->offsets[sequence];
}

/* Row r of the set's first sequence, at `row` here, and the target that any of them has. */
static void put_row(const walk *w, const set *x, int64_t r, int64_t row) {
    ls_shared_rows *s = w->s;
    s->tokens[row] = sequence_tokens(w, x->members[0])[r];
    s->sources[row] = -1;
    for (int64_t i = 0; i < x->n; i++) {
        const int64_t at = w->whole->offsets[x->members[i]] + r;
        s->rows[at - w->first] = row;
        if (s->sources[row] >= 0 || (w->whole->targets[at] == -1 && i + 1 < x->n)) continue;
        s->sources[row] = at - w->first;
        s->targets[row] = w->whole->targets[at];
    }
}

/* Rows [x->from, end) become a span. */
static void put_span(const walk *w, const set *x, int64_t end) {
    ls_shared_rows *s = w->s;
    if (!w->counts) {
        for (int64_t r = x->from; r < end; r++) put_row(w, x, r, s->n_rows + r - x->from);
        s->parents[s->n_spans] = x->parent;
        s->offsets[s->n_spans + 1] = s->n_rows + end - x->from;
    }
    s->n_spans++;
    s->n_rows += end - x->from;
}

/* The row where two of them differ, or one ends. */
static int64_t agreement_of(const walk *w, const set *x) {
    const int32_t *tokens = sequence_tokens(w, x->members[0]);
    int64_t end = length_of(w, x->members[0]);
    for (int64_t i = 1; i < x->n; i++) {
        const int32_t *other = sequence_tokens(w, x->members[i]);
        int64_t r = x->from;
        end = ls_min_i64(end, length_of(w, x->members[i]));
        while (r < end && other[r] == tokens[r]) r++;
        end = r;
    }
    return end;
}

/* Brings those that go on as the first one does, from row e on, to the front, all in their order; returns how many. */
static int64_t part_off(const walk *w, const set *x, int64_t e) {
    const bool ends = length_of(w, x->members[0]) == e;
    int64_t n = 0, n_others = 0;
    for (int64_t i = 0; i < x->n; i++) {
        const int64_t m = x->members[i];
        const bool same = i == 0 || (!ends && length_of(w, m) > e &&
                                     sequence_tokens(w, m)[e] == sequence_tokens(w, x->members[0])[e]);
        if (same)
            x->members[n++] = m;
        else
            w->s->moved[n_others++] = m;
    }
    memcpy(x->members + n, w->s->moved, (size_t)n_others * sizeof *x->members);
    return n;
}

static void lay_out_set(const walk *w, set x) {
    int64_t end;
    if (x.n == 1) {
        put_span(w, &x, length_of(w, x.members[0]));
        return;
    }
    end = agreement_of(w, &x);
    if (end - 1 - x.from >= LS_TRUNK_LEAST) {
        put_span(w, &x, end - 1);
        x.parent = w->s->n_spans - 1;
        x.from = end - 1;
    }
    while (x.n > 0) {
        set part = x;
        part.n = part_off(w, &x, end);
        lay_out_set(w, part);
        x.members += part.n;
        x.n -= part.n;
    }
}

static void walk_groups(const walk *w, int64_t first, int64_t end) {
    ls_shared_rows *s = w->s;
    int64_t group = 0;
    s->n_spans = s->n_rows = 0;
    for (int64_t at = first; at < end; at += s->opts.group, group++) {
        const set all = {s->members, ls_min_i64(s->opts.group, end - at), 0, -1};
        for (int64_t i = 0; i < all.n; i++) all.members[i] = at + i;
        if (!w->counts) s->begins[group] = s->n_spans;
        lay_out_set(w, all);
    }
    if (!w->counts) s->begins[group] = s->n_spans;
}

void ls_shared_rows_count(ls_shared_rows *s, const ls_whole_rows *whole, int64_t first, int64_t end, int64_t *rows,
                          int64_t *spans) {
    const walk w = {s, whole, whole->offsets[first], true};
    const int64_t n_rows = s->n_rows, n_spans = s->n_spans;
    walk_groups(&w, first, end);
    *rows += s->n_rows;
    *spans += s->n_spans;
    s->n_rows = n_rows;
    s->n_spans = n_spans;
}

void ls_shared_rows_lay_out(ls_shared_rows *s, const ls_whole_rows *whole, int64_t first, int64_t end) {
    const walk w = {s, whole, whole->offsets[first], false};
    s->offsets[0] = 0;
    walk_groups(&w, first, end);
}

void ls_shared_rows_spread(const ls_shared_rows *s, const int64_t *targets, int64_t n, const float *from, float *to) {
    for (int64_t r = 0; r < n; r++) to[r] = targets[r] == -1 ? 0.0f : from[s->rows[r]];
}

void ls_shared_rows_gather(const ls_shared_rows *s, const int64_t *targets, int64_t n, const float *from, float *to) {
    for (int64_t row = 0; row < s->n_rows; row++) to[row] = 0.0f;
    for (int64_t r = 0; r < n; r++)
        if (targets[r] != -1) to[s->rows[r]] += from[r];
}
