/* What tests of gradients with state share: whole sequences laid out in one call with padding around them, spans that
 * continue others, a workspace that is poisoned and watched, and gradients against central differences. */
#ifndef LS_TESTS_OP_GRAD_H
#define LS_TESTS_OP_GRAD_H

#include "dev/device.h"
#include "op/op_case.h"

#define GRAD_SEQS_MAX 3
#define GRAD_SPANS_MAX (4 * GRAD_SEQS_MAX)

/* Sequences in ascending rows; with gaps, padding spans, spans without rows and rows of no span lie between them. */
typedef struct grad_layout {
    int64_t rows, n_spans;
    ls_span spans[GRAD_SPANS_MAX];
} grad_layout;

static inline void grad_span(grad_layout *layout, int64_t n_rows, int32_t slot) {
    const ls_span span = {layout->rows, n_rows, 0, slot, 0};
    assert_true(layout->n_spans < GRAD_SPANS_MAX);
    layout->spans[layout->n_spans++] = span;
    layout->rows += n_rows;
}

static inline grad_layout grad_layout_make(int64_t n_seqs, const int64_t *lengths, bool gaps, uint64_t seed) {
    grad_layout layout;
    memset(&layout, 0, sizeof layout);
    for (int64_t s = 0; s < n_seqs; s++) {
        const uint64_t what = test_random(&seed) >> 32;
        if (gaps && what % 2 == 0) grad_span(&layout, 1 + (int64_t)(what / 2 % 40), what / 4 % 2 == 0 ? -1 : INT32_MIN);
        if (gaps && what / 8 % 2 == 0) layout.rows += 1 + (int64_t)(what / 16 % 3);
        if (gaps && what / 64 % 4 == 0) grad_span(&layout, 0, 5);
        grad_span(&layout, lengths[s], (int32_t)s);
    }
    if (gaps) layout.rows += 2;
    return layout;
}

/* Random lengths out of those that blocks and kept states care about. */
static inline grad_layout grad_layout_random(const int64_t *choices, int64_t n_choices, uint64_t *seed) {
    const int64_t n = 1 + (int64_t)(test_random(seed) % GRAD_SEQS_MAX);
    int64_t lengths[GRAD_SEQS_MAX];
    for (int64_t s = 0; s < n; s++) lengths[s] = choices[test_random(seed) % (uint64_t)n_choices];
    return grad_layout_make(n, lengths, test_random(seed) >> 63, test_random(seed));
}

/* Rows of tokens get values; the others keep their poison. */
static inline void grad_fill(const op_array *a, const grad_layout *layout, op_maker make, uint64_t *seed) {
    for (int64_t i = 0; i < layout->n_spans; i++)
        for (int64_t t = 0; t < layout->spans[i].n_rows && layout->spans[i].slot >= 0; t++)
            op_fill_row(a, layout->spans[i].row + t, make, seed);
}

/* A key that tells the layout, too (op_key). */
static inline uint64_t grad_key(uint64_t key, const grad_layout *layout) {
    key = op_key(op_key(key, &layout->rows, sizeof layout->rows), &layout->n_spans, sizeof layout->n_spans);
    for (int64_t i = 0; i < layout->n_spans; i++) {
        const ls_span *span = &layout->spans[i];
        const int64_t place[] = {span->row, span->n_rows, span->pos, span->slot};
        key = op_key(key, place, sizeof place);
    }
    return key;
}

/* op_recall of n gradients, which hold guards. `key` tells what their reference reads; keys [n] are those to keep them
 * under. */
static inline bool grad_recall(uint64_t *keys, uint64_t key, const op_array *of, int n) {
    bool is_known = true;
    for (int i = 0; i < n; i++) {
        keys[i] = op_key_array(op_key(key, &i, sizeof i), &of[i]);
        is_known = is_known && op_recall(keys[i], &of[i]);
    }
    return is_known;
}
static inline void grad_keep(const uint64_t *keys, const op_array *of, int n) {
    for (int i = 0; i < n; i++) op_keep(keys[i], &of[i]);
}

/* Rows of one layout's sequence as a call of their own. */
static inline op_array grad_rows(const op_array *from, const ls_span *span) {
    const op_array to = op_array_make(from->dtype, span->n_rows, from->cols, from->stride - from->cols);
    for (int64_t t = 0; t < span->n_rows; t++)
        memcpy(op_at(&to, t, 0), op_at(from, span->row + t, 0), (size_t)(from->cols * ls_dtype_bytes(from->dtype)));
    return to;
}

/* ---- spans that continue others ---- */

/* A trunk, two spans that continue it, and between them one that continues the first of these. */
#define GRAD_TREE_SPANS 4
#define GRAD_TREE_LEVELS 3
static const int64_t grad_tree_parent[GRAD_TREE_SPANS] = {-1, 0, 1, 0}, grad_tree_level[GRAD_TREE_SPANS] = {0, 1, 2, 1};

static inline grad_layout grad_tree_make(const int64_t *lengths) {
    grad_layout tree;
    memset(&tree, 0, sizeof tree);
    for (int64_t i = 0; i < GRAD_TREE_SPANS; i++) {
        grad_span(&tree, lengths[i], (int32_t)i);
        if (i > 0) tree.spans[i].pos = tree.spans[grad_tree_parent[i]].pos + lengths[grad_tree_parent[i]];
    }
    return tree;
}

/* The row `back` tokens before a row of span i, in the spans that it continues; -1: there is none. */
static inline int64_t grad_tree_before(const grad_layout *tree, int64_t i, int64_t row, int64_t back) {
    for (; i >= 0; i = grad_tree_parent[i]) {
        if (row - back >= tree->spans[i].row) return row - back;
        back -= row - tree->spans[i].row;
        if (grad_tree_parent[i] >= 0)
            row = tree->spans[grad_tree_parent[i]].row + tree->spans[grad_tree_parent[i]].n_rows;
    }
    return -1;
}

/* Rows of a span of both are the same bits. */
static inline void grad_rows_check(const op_array *expected, const op_array *got, const ls_span *span,
                                   const char *what) {
    op_array left = grad_rows(expected, span), right = grad_rows(got, span);
    op_check(&left, &right, OP_NAN_PINNED, "%s", what);
    op_array_free(&left);
    op_array_free(&right);
}

/* The spans of a level, and where they are in the tree. */
typedef struct grad_level {
    int64_t n, of[GRAD_TREE_SPANS];
    ls_span spans[GRAD_TREE_SPANS];
} grad_level;

static inline grad_level grad_level_make(const grad_layout *tree, int64_t level) {
    grad_level l = {.n = 0};
    for (int64_t i = 0; i < GRAD_TREE_SPANS; i++)
        if (grad_tree_level[i] == level) {
            l.spans[l.n] = tree->spans[i];
            l.of[l.n++] = i;
        }
    return l;
}

/* What the parents of a level's spans have left in their entries, into those of the spans. */
static inline void grad_level_fork(const grad_level *l, void *entries, int64_t bytes) {
    for (int64_t i = 0; i < l->n && grad_tree_parent[l->of[i]] >= 0; i++)
        memcpy((uint8_t *)entries + l->of[i] * bytes, (uint8_t *)entries + grad_tree_parent[l->of[i]] * bytes,
               (size_t)bytes);
}

/* The level's entries of the tree's, side by side. */
static inline void *grad_level_gather(const grad_level *l, const void *entries, int64_t bytes) {
    uint8_t *to = malloc((size_t)(GRAD_TREE_SPANS * bytes + 1));
    assert_non_null(to);
    for (int64_t i = 0; i < l->n; i++)
        memcpy(to + i * bytes, (const uint8_t *)entries + l->of[i] * bytes, (size_t)bytes);
    return to;
}

/* What the spans of a level gave adds to what their parents are given, in index order. */
static inline void grad_level_give(const grad_level *l, const float *dinitial, float *dfinal, int64_t each) {
    for (int64_t i = 0; i < l->n; i++)
        for (int64_t j = 0; j < each; j++) {
            float *to = dfinal + grad_tree_parent[l->of[i]] * each + j;
            *to = ls_add(*to, dinitial[i * each + j]);
        }
}

/* ---- workspace ---- */

/* Lent to a device in place of its own for one call. */

typedef struct grad_workspace {
    uint8_t *bytes;
    int64_t n;
    ls_device *device;
    void *own;
    int64_t own_bytes;
} grad_workspace;

static inline grad_workspace grad_workspace_lend(ls_device *device, int64_t n) {
    grad_workspace w = {NULL, n, device, device->exec.workspace, device->exec.workspace_bytes};
    assert_true(n >= LS_WORKSPACE_HEAD);
    w.bytes = aligned_alloc(256, (size_t)((n + 511) / 256 * 256));
    assert_non_null(w.bytes);
    memset(w.bytes, OP_POISON, (size_t)((n + 511) / 256 * 256));
    device->exec.workspace = w.bytes;
    device->exec.workspace_bytes = n;
    return w;
}

/* The head and what lies behind the workspace are as they were, and the device did not take a larger one. */
static inline void grad_workspace_take_back(grad_workspace *w) {
    assert_ptr_equal(w->device->exec.workspace, w->bytes);
    w->device->exec.workspace = w->own;
    w->device->exec.workspace_bytes = w->own_bytes;
    for (int64_t i = 0; i < (w->n + 511) / 256 * 256; i++)
        if ((i < LS_WORKSPACE_HEAD || i >= w->n) && w->bytes[i] != OP_POISON)
            fail_msg("byte %lld of a workspace of %lld changed", (long long)i, (long long)w->n);
    free(w->bytes);
}

/* ---- central differences ---- */

/* d loss / d x, x being a double of what loss reads. The loss is smooth and of order 1 in x: the difference is good to
 * about 1e-9 of the loss. */
static inline double grad_difference(double (*loss)(const void *), const void *context, double *x) {
    const double at = *x, step = 1e-5;
    double above, below;
    *x = at + step;
    above = loss(context);
    *x = at - step;
    below = loss(context);
    *x = at;
    return (above - below) / (2 * step);
}

/* Largest error of n gradients against the differences of n doubles, relative to the largest gradient. */
static inline double grad_worst(const float *got, double *x, int64_t n, double (*loss)(const void *),
                                const void *context) {
    double worst = 0.0, scale = 0.0;
    for (int64_t i = 0; i < n; i++) {
        const double expected = grad_difference(loss, context, &x[i]);
        scale = fmax(scale, fabs(expected));
        worst = fmax(worst, fabs((double)got[i] - expected));
    }
    assert_true(scale > 0.0);
    return worst / scale;
}

#endif
