/* The leaf tree: how gradients of parts of a batch become the gradient of the batch.
 *
 * The sequences of a batch, in index order, are cut into leaves of `leaf` sequences; the last may be shorter. One
 * leaf's gradient is one ls_tape_backward into zeros. Leaves fold in the aligned binary tree over their numbers: a node
 * of level k is leaves [j 2^k, (j + 1) 2^k), left + right, one rounding for each element; an absent right neighbour
 * leaves the left as it is. Nothing but `leaf` and the batch decides the bits: not how many leaves share a forward, nor
 * who computed which subtree.
 *
 * The fold is a binary counter: level k holds the sum of a complete run of 2^k leaves that waits for its right
 * neighbour. Where the device cannot hold all nodes that may wait at once, those of the highest levels, which are
 * touched least, wait in the host's memory; that carries no bits. Where it can hold none, all of them are the host's,
 * the leaf that is being made as well, and additions go through the device piece by piece. */
#ifndef LS_TRAIN_GRADIENT_H
#define LS_TRAIN_GRADIENT_H

#include "op/backend.h"

typedef struct ls_gradient ls_gradient;

/* Gradients, nodes and the leaf that is being made, that are there at once, at most. */
int64_t ls_gradient_nodes(int64_t leaves_max);
/* leaves_max: of one tree. Gradients are device memory; device_nodes: so many of them at most. 0: what leaf and root
 * give is the host's (ls_memory_pin). */
ls_status ls_gradient_create(ls_gradient **out, ls_device *device, int64_t n_elements, int64_t leaves_max,
                             int64_t device_nodes, ls_error *err);
void ls_gradient_free(ls_gradient *gradient);
/* Between trees: gives the device's gradients back, and takes them again; the host's stay. */
void ls_gradient_sleep(ls_gradient *gradient);
ls_status ls_gradient_wake(ls_gradient *gradient, ls_error *err);
/* Gradients that the device holds. */
int64_t ls_gradient_device_nodes(const ls_gradient *gradient);
/* What it holds of the device's memory and of the host's. */
int64_t ls_gradient_bytes(const ls_gradient *gradient);
int64_t ls_gradient_host_bytes(const ls_gradient *gradient);

/* Begins a tree without leaves. */
void ls_gradient_begin(ls_gradient *gradient);
/* *out: [n_elements] for the next leaf, +0 everywhere where `zero`. */
ls_status ls_gradient_leaf(ls_gradient *gradient, bool zero, float **out, ls_error *err);
/* What ls_gradient_leaf gave becomes +0 everywhere. */
ls_status ls_gradient_zero(ls_gradient *gradient, ls_error *err);
/* What ls_gradient_leaf gave is complete: it joins the tree. */
ls_status ls_gradient_fold(ls_gradient *gradient, ls_error *err);
int64_t ls_gradient_leaves(const ls_gradient *gradient);
/* *out: the root, good until the next leaf; the tree becomes one leaf that holds it. At least one leaf must
 * be there. */
ls_status ls_gradient_root(ls_gradient *gradient, float **out, ls_error *err);

/* The tree's addition: out = left + right, one rounding for each element. out may be one of them. */
ls_status ls_gradient_add(ls_device *device, float *out, float *left, const float *right, int64_t n, ls_error *err);

/* Leaves that each of n_ranks computes: the least power of two with which n_ranks shares cover n_leaves. Rank r has
 * [r s, (r + 1) s) as far as they exist, so that its sum is one node of the tree. */
int64_t ls_gradient_share(int64_t n_leaves, int64_t n_ranks);

#endif
