/* The binary counter of partial sums. Buffers change places by pointer; only additions touch elements. */
#include "train/gradient.h"

#include <stdlib.h>

#include "base/mem.h"
#include "op/elementwise.h"

#define LEVELS_MAX 63
/* Elements of a row of an addition, which is what threads share; carries no bits. */
#define ADD_COLUMNS 4096

struct ls_gradient {
    ls_device *device;
    int64_t n_elements, n_leaves, n_levels;
    float *leaf;               /* of the next leaf */
    float *levels[LEVELS_MAX]; /* [n_levels]; in use where the bit of n_leaves is set */
};

static int64_t levels_of(int64_t leaves_max) {
    int64_t n = 1;
    while (n < LEVELS_MAX && (leaves_max >> n) != 0) n++;
    return n;
}

int64_t ls_gradient_bytes(int64_t n_elements, int64_t leaves_max) {
    return (levels_of(leaves_max) + 1) * n_elements * (int64_t)sizeof(float);
}

ls_status ls_gradient_create(ls_gradient **out, ls_device *device, int64_t n_elements, int64_t leaves_max,
                             ls_error *err) {
    ls_gradient *g = calloc(1, sizeof *g);
    ls_status status;
    *out = NULL;
    if (g == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "gradient");
    LS_ASSERT(n_elements > 0 && leaves_max > 0, "%lld elements, %lld leaves", (long long)n_elements,
              (long long)leaves_max);
    g->device = device;
    g->n_elements = n_elements;
    g->n_levels = levels_of(leaves_max);
    LS_TRY_DONE(ls_memory_alloc(device, (void **)&g->leaf, n_elements, sizeof(float), "gradient", err));
    for (int64_t i = 0; i < g->n_levels; i++)
        LS_TRY_DONE(ls_memory_alloc(device, (void **)&g->levels[i], n_elements, sizeof(float), "gradient", err));
    *out = g;
    g = NULL;
done:
    ls_gradient_free(g);
    return status;
}

void ls_gradient_free(ls_gradient *g) {
    if (g == NULL) return;
    for (int64_t i = 0; i < g->n_levels; i++) ls_memory_free(g->device, g->levels[i]);
    ls_memory_free(g->device, g->leaf);
    free(g);
}

void ls_gradient_begin(ls_gradient *g) { g->n_leaves = 0; }
int64_t ls_gradient_leaves(const ls_gradient *g) { return g->n_leaves; }

ls_status ls_gradient_leaf(ls_gradient *g, bool zero, float **out, ls_error *err) {
    *out = g->leaf;
    return zero ? ls_memory_fill(g->device, g->leaf, 0, g->n_elements * (int64_t)sizeof(float), err) : LS_OK;
}

/* left += right: whole rows, then what is left of them. */
static ls_status add(const ls_gradient *g, float *left, const float *right, ls_error *err) {
    const int64_t rows = g->n_elements / ADD_COLUMNS, rest = g->n_elements % ADD_COLUMNS, at = rows * ADD_COLUMNS;
    const ls_residual_args whole = {.h = left, .y = right, .rows = rows, .dim = ADD_COLUMNS};
    const ls_residual_args tail = {.h = left + at, .y = right + at, .rows = 1, .dim = rest};
    if (rows > 0) LS_TRY(ls_residual(g->device, &whole, err));
    if (rest > 0) LS_TRY(ls_residual(g->device, &tail, err));
    return LS_OK;
}

static void swap(float **a, float **b) {
    float *kept = *a;
    *a = *b;
    *b = kept;
}

/* The node in g->leaf takes the one of this level as its left neighbour: the sum is in g->leaf. */
static ls_status join(ls_gradient *g, int64_t level, ls_error *err) {
    const ls_status status = add(g, g->levels[level], g->leaf, err);
    swap(&g->levels[level], &g->leaf);
    return status;
}

ls_status ls_gradient_fold(ls_gradient *g, ls_error *err) {
    int64_t level = 0;
    for (; (g->n_leaves >> level & 1) != 0; level++) LS_TRY(join(g, level, err));
    LS_ASSERT(level < g->n_levels, "leaf %lld of a tree of %lld levels", (long long)g->n_leaves,
              (long long)g->n_levels);
    swap(&g->levels[level], &g->leaf);
    g->n_leaves++;
    return LS_OK;
}

ls_status ls_gradient_root(ls_gradient *g, float **out, ls_error *err) {
    bool is_first = true;
    LS_ASSERT(g->n_leaves > 0, "a tree of %lld leaves", (long long)g->n_leaves);
    for (int64_t level = 0; level < g->n_levels; level++) {
        if ((g->n_leaves >> level & 1) == 0) continue;
        if (is_first)
            swap(&g->levels[level], &g->leaf);
        else
            LS_TRY(join(g, level, err));
        is_first = false;
    }
    swap(&g->levels[0], &g->leaf);
    g->n_leaves = 1;
    *out = g->levels[0];
    return LS_OK;
}

int64_t ls_gradient_share(int64_t n_leaves, int64_t n_ranks) {
    int64_t share = 1;
    while (share < n_leaves && (n_leaves - 1) / share >= n_ranks) share *= 2;
    return share;
}
