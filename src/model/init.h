/* Weights to begin a training with.
 *
 * A draw depends on seed, the tensor's name and the place in the tensor, and on nothing else. Everything runs in
 * binary64 with +, -, *, /, square root and num/exp64.h, and is rounded to float32, then to the type that the
 * configuration stores: bits are the same on every machine.
 *
 *   draw i of a tensor  Philox, key seed, counter (i, FNV-1a of the name), each 64 bits as low and high word
 *   normal              (h - 262140) / sqrt(8 (2^32 - 1) / 12), h the sum of the draw's eight 16-bit halves: mean 0,
 *                       variance 1, never beyond 4.9; a sum of eight uniforms is as near to normal as this needs
 *   matrices, taps      deviation x normal; deviation 0 stands for 1 / sqrt(what a sum runs over)
 *   embedding           the same with 1 / sqrt(H), so that tied logits begin with variance 1
 *   A_log [d][s]        log(s + 1)
 *   dt_proj.bias        inverse softplus of exp(u), u uniform in [log 1e-3, log 1e-1) by the draw's first word:
 *                       dt begins between a thousandth and a tenth
 *   norms, D            1
 *   other biases        0 */
#ifndef LS_MODEL_INIT_H
#define LS_MODEL_INIT_H

#include "load/model_config.h"

/* Writes path, a safetensors file that must not exist yet. Values are drawn by n_threads threads while they are
 * written, which carries no bits; no more than LS_FETCH_BYTES of them are in memory at a time. */
ls_status ls_model_init(const char *path, const ls_model_config *config, uint64_t seed, double deviation,
                        int32_t n_threads, ls_error *err);
/* The same file with all weights +0, which takes no room where the file system knows holes: for plans. */
ls_status ls_model_init_empty(const char *path, const ls_model_config *config, ls_error *err);

#endif
