/* Which sequences of a batch become which leaves, where leaves are to have about as much to do each.
 *
 * Sequences, longest first, equal ones by number, are dealt down the leaf tree (train/gradient.h). A node of more than
 * one leaf has two children: the left one has room for leaf 2^k sequences, k the largest with which something is left
 * for the right one, and the right one for the rest. Each sequence in turn goes to the child that has fewer tokens for
 * its room so far, to the left one where both have as many, and where one is full to the other. Those of a leaf
 * stand in it by their numbers.
 *
 * So every node of a level has nearly as many tokens as the others, and a node is what a process computes. The order
 * follows from the lengths and `leaf` alone, not from how many processes there are: the gradient's bits do not depend
 * on that, as they do not with leaves by number. They are other bits than those, for other sequences add up first. */
#ifndef LS_TRAIN_BALANCE_H
#define LS_TRAIN_BALANCE_H

#include "base/status.h"

/* *order: [n], the number of the sequence at each place; places [j leaf, (j + 1) leaf) are leaf j. lengths: [n], at
 * least 0, their sum times n below 2^63. */
ls_status ls_balance(int64_t *order, const int64_t *lengths, int64_t n, int64_t leaf, ls_error *err);

#endif
