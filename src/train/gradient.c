/* The binary counter of partial sums. Buffers change places by pointer; only additions touch elements. */
#include "train/gradient.h"

#include <stdlib.h>

#include "base/mem.h"
#include "op/elementwise.h"

#define LEVELS_MAX 63
/* Elements of a row of an addition, which is what threads share; carries no bits. */
#define ADD_COLUMNS 4096
/* Elements of a host's node that are on the device at a time, at most. */
#define PIECE ((int64_t)4096 * ADD_COLUMNS)
/* The same where the device has room for little else. */
#define SMALL_PIECE ((int64_t)256 * ADD_COLUMNS)

struct ls_gradient {
    ls_device *device;
    int64_t n_elements, n_leaves;
    int64_t n_levels;           /* of nodes that may wait */
    int64_t n_device_levels;    /* the lower ones wait in the device's memory, the others in the host's */
    bool on_host;               /* all of them, and the newest */
    int64_t n_buffers;          /* of the device, or with on_host of the host */
    int64_t n_spare;            /* of them hold nothing */
    float *spare[LEVELS_MAX];   /* [n_spare] */
    float *waiting[LEVELS_MAX]; /* [n_levels]; above the device's levels the host's memory of each */
    /* The newest node, which need not wait yet, or the next leaf while it is made. NULL before the first leaf. */
    float *newest;
    int64_t newest_level; /* negative: a leaf is being made */
    float *pieces[2]; /* [n_piece]: of a node that waits on the host; of the newest, with on_host. NULL where the host
                       * holds nothing */
    int64_t n_piece;
};

/* The most bits that a number below n has among its lowest `bits`. */
static int64_t most_bits(int64_t n, int64_t bits) {
    int64_t most = 0, above = 0;
    for (int64_t k = LEVELS_MAX - 1; k >= 0 && n > 1; k--) {
        const int64_t lower = k < bits ? k : bits;
        if (((n - 1) >> k & 1) == 0) continue;
        if (above + lower > most) most = above + lower; /* this bit cleared, all below it set */
        above += k < bits;
    }
    return above > most ? above : most;
}

/* Levels on which a node may wait for its right neighbour: those of the bits of all numbers below leaves_max. */
static int64_t levels_of(int64_t leaves_max) {
    int64_t n = 0;
    while (n < LEVELS_MAX && ((leaves_max - 1) >> n) != 0) n++;
    return n;
}

int64_t ls_gradient_nodes(int64_t leaves_max) { return most_bits(leaves_max, LEVELS_MAX) + 1; }

/* As many of the lower levels as leave room for the leaf that is being made. */
static int64_t device_levels_of(int64_t leaves_max, int64_t device_nodes) {
    int64_t n = levels_of(leaves_max);
    while (n > 0 && most_bits(leaves_max, n) + 1 > device_nodes) n--;
    return n;
}

static int64_t bytes_of(const ls_gradient *g) { return g->n_elements * (int64_t)sizeof(float); }

static ls_status pin_node(const ls_gradient *g, float **out, ls_error *err) {
    return ls_memory_pin(g->device, (void **)out, g->n_elements, sizeof(float), "gradient on the host", err);
}

ls_status ls_gradient_create(ls_gradient **out, ls_device *device, int64_t n_elements, int64_t leaves_max,
                             int64_t device_nodes, ls_error *err) {
    ls_gradient *g = NULL;
    ls_status status;
    *out = NULL;
    LS_ASSERT(n_elements > 0 && leaves_max > 0 && device_nodes >= 0, "%lld elements, %lld leaves, %lld nodes",
              (long long)n_elements, (long long)leaves_max, (long long)device_nodes);
    LS_TRY_DONE(ls_array_alloc((void **)&g, 1, sizeof *g, "gradient", err));
    g->device = device;
    g->n_elements = n_elements;
    g->n_levels = levels_of(leaves_max);
    g->n_device_levels = device_levels_of(leaves_max, device_nodes);
    g->n_buffers = most_bits(leaves_max, g->n_device_levels) + 1;
    g->on_host = device_nodes == 0;
    g->n_piece = g->on_host ? SMALL_PIECE : PIECE;
    if (g->n_piece > n_elements) g->n_piece = n_elements;
    for (; g->n_spare < g->n_buffers; g->n_spare++)
        LS_TRY_DONE(g->on_host ? pin_node(g, &g->spare[g->n_spare], err)
                               : ls_memory_alloc(device, (void **)&g->spare[g->n_spare], n_elements, sizeof(float),
                                                 "gradient", err));
    for (int64_t k = g->n_device_levels; k < g->n_levels; k++) LS_TRY_DONE(pin_node(g, &g->waiting[k], err));
    for (int i = 0; i < (g->on_host ? 2 : g->n_device_levels < g->n_levels ? 1 : 0); i++)
        LS_TRY_DONE(ls_memory_alloc(device, (void **)&g->pieces[i], g->n_piece, sizeof(float), "gradient", err));
    *out = g;
    g = NULL;
done:
    ls_gradient_free(g);
    return status;
}

void ls_gradient_free(ls_gradient *g) {
    if (g == NULL) return;
    ls_gradient_begin(g);
    for (int64_t i = 0; i < g->n_spare; i++)
        if (g->on_host)
            ls_memory_unpin(g->device, g->spare[i], bytes_of(g));
        else
            ls_memory_free(g->device, g->spare[i]);
    for (int64_t k = g->n_device_levels; k < g->n_levels; k++) ls_memory_unpin(g->device, g->waiting[k], bytes_of(g));
    for (int i = 0; i < 2; i++) ls_memory_free(g->device, g->pieces[i]);
    free(g);
}

void ls_gradient_sleep(ls_gradient *g) {
    if (g->on_host) return;
    ls_gradient_begin(g);
    while (g->n_spare > 0) ls_memory_free(g->device, g->spare[--g->n_spare]);
}

ls_status ls_gradient_wake(ls_gradient *g, ls_error *err) {
    const bool rests = g->n_spare == 0 && g->n_leaves == 0 && g->newest == NULL;
    for (; rests && g->n_spare < g->n_buffers; g->n_spare++)
        LS_TRY(
            ls_memory_alloc(g->device, (void **)&g->spare[g->n_spare], g->n_elements, sizeof(float), "gradient", err));
    return LS_OK;
}

int64_t ls_gradient_device_nodes(const ls_gradient *g) { return g->on_host ? 0 : g->n_buffers; }
int64_t ls_gradient_bytes(const ls_gradient *g) {
    return g->on_host ? 2 * g->n_piece * (int64_t)sizeof(float) : g->n_buffers * bytes_of(g);
}
int64_t ls_gradient_host_bytes(const ls_gradient *g) {
    return (g->n_levels - g->n_device_levels + (g->on_host ? g->n_buffers : 0)) * bytes_of(g);
}

/* ---- nodes that wait ---- */

static bool waits(const ls_gradient *g, int64_t level) {
    return (g->n_leaves >> level & 1) != 0 && !(g->newest != NULL && g->newest_level == level);
}

static void give_back(ls_gradient *g, float *buffer) { g->spare[g->n_spare++] = buffer; }

static float *take_node(ls_gradient *g) {
    LS_ASSERT(g->n_spare > 0, "no buffer for leaf %lld", (long long)g->n_leaves);
    return g->spare[--g->n_spare];
}

/* The newest node waits for its right neighbour. */
static ls_status put_away(ls_gradient *g, ls_error *err) {
    float *node = g->newest;
    if (node == NULL) return LS_OK;
    LS_ASSERT(g->newest_level < g->n_levels, "leaf %lld of a tree of %lld levels", (long long)g->n_leaves,
              (long long)g->n_levels);
    g->newest = NULL;
    if (g->newest_level < 0) {
        give_back(g, node); /* a leaf that was never folded */
    } else if (g->newest_level < g->n_device_levels) {
        g->waiting[g->newest_level] = node;
    } else if (g->on_host) {
        give_back(g, g->waiting[g->newest_level]);
        g->waiting[g->newest_level] = node;
    } else {
        give_back(g, node);
        return ls_memory_copy(g->device, g->waiting[g->newest_level], node, bytes_of(g), err);
    }
    return LS_OK;
}

void ls_gradient_begin(ls_gradient *g) {
    for (int64_t k = 0; k < g->n_device_levels; k++)
        if (waits(g, k)) give_back(g, g->waiting[k]);
    if (g->newest != NULL) give_back(g, g->newest);
    g->newest = NULL;
    g->n_leaves = 0;
}

int64_t ls_gradient_leaves(const ls_gradient *g) { return g->n_leaves; }

/* ---- the tree ---- */

/* The elements of a host's node that piece number `at` / n_piece holds. */
static int64_t piece_at(const ls_gradient *g, int64_t at) {
    return g->n_elements - at < g->n_piece ? g->n_elements - at : g->n_piece;
}

ls_status ls_gradient_zero(ls_gradient *g, ls_error *err) {
    LS_ASSERT(g->newest != NULL && g->newest_level < 0, "leaf %lld was not begun", (long long)g->n_leaves);
    if (!g->on_host) return ls_memory_fill(g->device, g->newest, 0, bytes_of(g), err);
    LS_TRY(ls_memory_fill(g->device, g->pieces[0], 0, g->n_piece * (int64_t)sizeof(float), err));
    for (int64_t at = 0; at < g->n_elements; at += g->n_piece)
        LS_TRY(ls_memory_copy(g->device, g->newest + at, g->pieces[0], piece_at(g, at) * (int64_t)sizeof(float), err));
    return LS_OK;
}

ls_status ls_gradient_leaf(ls_gradient *g, bool zero, float **out, ls_error *err) {
    LS_TRY(put_away(g, err));
    *out = g->newest = take_node(g);
    g->newest_level = -1;
    return zero ? ls_gradient_zero(g, err) : LS_OK;
}

/* Whole rows, then what is left of them. */
ls_status ls_gradient_add(ls_device *device, float *out, float *left, const float *right, int64_t n, ls_error *err) {
    const int64_t rows = n / ADD_COLUMNS, rest = n % ADD_COLUMNS, at = rows * ADD_COLUMNS;
    const ls_residual_args whole = {.h = left, .y = right, .rows = rows, .dim = ADD_COLUMNS, .out = out};
    const ls_residual_args tail = {.h = left + at, .y = right + at, .rows = 1, .dim = rest, .out = out + at};
    if (rows > 0) LS_TRY(ls_residual(device, &whole, err));
    if (rest > 0) LS_TRY(ls_residual(device, &tail, err));
    return LS_OK;
}

/* The newest node takes the one that waits on this level as its left neighbour, and is the sum. */
static ls_status join_nodes(ls_gradient *g, int64_t level, ls_error *err) {
    float *left = g->waiting[level];
    if (level < g->n_device_levels) {
        LS_TRY(ls_gradient_add(g->device, left, left, g->newest, g->n_elements, err));
        give_back(g, g->newest);
        g->newest = left;
        return LS_OK;
    }
    for (int64_t at = 0; at < g->n_elements; at += g->n_piece) {
        const int64_t n = piece_at(g, at), bytes = n * (int64_t)sizeof(float);
        float *sum = g->on_host ? g->pieces[1] : g->newest + at;
        LS_TRY(ls_memory_copy(g->device, g->pieces[0], left + at, bytes, err));
        if (g->on_host) LS_TRY(ls_memory_copy(g->device, sum, g->newest + at, bytes, err));
        LS_TRY(ls_gradient_add(g->device, sum, g->pieces[0], sum, n, err));
        if (g->on_host) LS_TRY(ls_memory_copy(g->device, g->newest + at, sum, bytes, err));
    }
    return LS_OK;
}

ls_status ls_gradient_fold(ls_gradient *g, ls_error *err) {
    int64_t level = 0;
    LS_ASSERT(g->newest != NULL && g->newest_level < 0, "leaf %lld was not begun", (long long)g->n_leaves);
    for (; (g->n_leaves >> level & 1) != 0; level++) LS_TRY(join_nodes(g, level, err));
    g->newest_level = level;
    g->n_leaves++;
    return LS_OK;
}

/* The newest node is that of the lowest level: all others are its left neighbours, in the order of their levels. */
ls_status ls_gradient_root(ls_gradient *g, float **out, ls_error *err) {
    LS_ASSERT(g->n_leaves > 0 && g->newest != NULL && g->newest_level >= 0, "a tree of %lld leaves",
              (long long)g->n_leaves);
    for (int64_t level = g->newest_level + 1; level < g->n_levels; level++)
        if (waits(g, level)) LS_TRY(join_nodes(g, level, err));
    g->n_leaves = 1;
    g->newest_level = 0;
    *out = g->newest;
    return LS_OK;
}

int64_t ls_gradient_share(int64_t n_leaves, int64_t n_ranks) {
    int64_t share = 1;
    while (share < n_leaves && (n_leaves - 1) / share >= n_ranks) share *= 2;
    return share;
}
