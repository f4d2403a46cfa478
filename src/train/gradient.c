/* The binary counter of partial sums. Buffers change places by pointer; only additions touch elements. */
#include "train/gradient.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "num/round.h"

#define LEVELS_MAX 63
#define GRAIN 4096

struct ls_gradient {
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

ls_status ls_gradient_create(ls_gradient **out, int64_t n_elements, int64_t leaves_max, ls_error *err) {
    ls_gradient *g = calloc(1, sizeof *g);
    ls_status status;
    *out = NULL;
    if (g == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "gradient");
    LS_ASSERT(n_elements > 0 && leaves_max > 0, "%lld elements, %lld leaves", (long long)n_elements,
              (long long)leaves_max);
    g->n_elements = n_elements;
    g->n_levels = levels_of(leaves_max);
    LS_TRY(ls_array_alloc((void **)&g->leaf, n_elements, sizeof(float), "gradient", err));
    for (int64_t i = 0; i < g->n_levels; i++)
        LS_TRY(ls_array_alloc((void **)&g->levels[i], n_elements, sizeof(float), "gradient", err));
    *out = g;
    g = NULL;
done:
    ls_gradient_free(g);
    return status;
}

void ls_gradient_free(ls_gradient *g) {
    if (g == NULL) return;
    for (int64_t i = 0; i < g->n_levels; i++) free(g->levels[i]);
    free(g->leaf);
    free(g);
}

void ls_gradient_begin(ls_gradient *g) { g->n_leaves = 0; }
int64_t ls_gradient_leaves(const ls_gradient *g) { return g->n_leaves; }

float *ls_gradient_leaf(ls_gradient *g, bool zero) {
    if (zero) memset(g->leaf, 0, (size_t)g->n_elements * sizeof(float));
    return g->leaf;
}

typedef struct addition {
    float *left;
    const float *right;
} addition;

static void add_part(void *context, int64_t begin, int64_t end, int32_t thread_i) {
    const addition *a = context;
    (void)thread_i;
    for (int64_t i = begin; i < end; i++) a->left[i] = ls_add(a->left[i], a->right[i]);
}

static void swap(float **a, float **b) {
    float *kept = *a;
    *a = *b;
    *b = kept;
}

/* The node in g->leaf takes the one of this level as its left neighbour: the sum is in g->leaf. */
static void join(ls_gradient *g, ls_queue *queue, int64_t level) {
    addition a = {g->levels[level], g->leaf};
    ls_parallel_for(queue->pool, g->n_elements, GRAIN, add_part, &a);
    swap(&g->levels[level], &g->leaf);
}

void ls_gradient_fold(ls_gradient *g, ls_queue *queue) {
    int64_t level = 0;
    for (; (g->n_leaves >> level & 1) != 0; level++) join(g, queue, level);
    LS_ASSERT(level < g->n_levels, "leaf %lld of a tree of %lld levels", (long long)g->n_leaves,
              (long long)g->n_levels);
    swap(&g->levels[level], &g->leaf);
    g->n_leaves++;
}

float *ls_gradient_root(ls_gradient *g, ls_queue *queue) {
    bool is_first = true;
    LS_ASSERT(g->n_leaves > 0, "a tree of %lld leaves", (long long)g->n_leaves);
    for (int64_t level = 0; level < g->n_levels; level++) {
        if ((g->n_leaves >> level & 1) == 0) continue;
        if (is_first)
            swap(&g->levels[level], &g->leaf);
        else
            join(g, queue, level);
        is_first = false;
    }
    swap(&g->levels[0], &g->leaf);
    g->n_leaves = 1;
    return g->levels[0];
}

int64_t ls_gradient_share(int64_t n_leaves, int64_t n_ranks) {
    int64_t share = 1;
    while (share < n_leaves && (n_leaves - 1) / share >= n_ranks) share *= 2;
    return share;
}
