/* What a sigmoid lets through: attention behind its output gate, and a shared expert behind its gate of one column, as
 * in Qwen3-Next. One rounding to the stored type.
 *
 * A row has `gates` gates, and neighbouring columns in equal parts share one: W = dim / gates, column c has gate c / W.
 *   y[r][c] = R(x[r][c] * k[r][c / W]),  k = sigmoid(gate) of num/expf.h
 *
 * Backward, dy the gradient of the unrounded y:
 *   dx[r][c] = dy[r][c] * k[r][c / W]
 *   dgate[r][i] = t * (k[r][i] * sigmoid(-gate[r][i])), t the 256-chain tree of num/sum.h over the columns of gate i,
 *     counted from its first, each chain fma(dy, x, chain)
 * dgate is stored as float32 or rounded once to bf16, as products in mma16 read it. A row depends on its own x, gate
 * and dy only. Which NaN a NaN is, is left open. */
#ifndef LS_OP_SIGMOID_GATE_H
#define LS_OP_SIGMOID_GATE_H

#include "base/status.h"
#include "lockstep/ops.h"

ls_status ls_sigmoid_gate_check(const ls_sigmoid_gate_args *args, ls_error *err);

ls_status ls_sigmoid_gate_backward_check(const ls_sigmoid_gate_backward_args *args, ls_error *err);

#endif
