/* Routing by sigmoids with a correction of the choice and groups of experts (DeepSeek-V3, arXiv:2412.19437; Nemotron-H
 * of Hugging Face), and its gradient. Logits are float32.
 *
 * route, for a row: s_e = sigmoid(logit_e) of num/expf.h;  c_e = s_e + bias_e
 *   Experts lie in n_groups equal groups of neighbours. With more than one a group's score is the sum of its largest
 *   and its second largest c; the top_groups groups of the largest scores stay, the lower group first among equals.
 *   Of the experts of groups that stay the top_k largest c are chosen, the lower expert first among equals; they are
 *   listed by ascending expert. A row in which a c is not finite has its lowest top_k experts with weights of NaN.
 *   d = chain(s of the chosen, ascending, from +0) + 1e-20
 *   weight = scale * (s / d) where weights are normalised, else scale * s
 * backward, what was chosen and the bias taken as constant; s, d as above, g_k = d_weight:
 *   normalised: n_k = s_k / d;  S = chain over the chosen, ascending, of fma(n_k, g_k, S) from +0;  t = (g_k - S) / d
 *   else:       t = g_k
 *   dlogits[chosen k] = (scale * t) * (s_k * sigmoid(-logit)), and +0 for the others. No NaN pattern is promised. */
#ifndef LS_OP_MOE_SIGMOID_H
#define LS_OP_MOE_SIGMOID_H

#include "op/moe.h"

ls_status ls_moe_sigmoid_route_check(const ls_moe_sigmoid_route_args *args, ls_error *err);

/* Experts that do not exist or do not ascend within their row are an error before anything is written. */
ls_status ls_moe_sigmoid_route_backward_check(const ls_moe_sigmoid_route_backward_args *args, ls_error *err);

#endif
