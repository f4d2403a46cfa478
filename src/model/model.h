/* A language model: its configuration, its weights, its layers. docs/guide/adding-a-model.md tells how to add one.
 *
 * Shapes: V vocabulary, H hidden, F feed-forward, E experts, D d_inner, S d_state, W d_conv, R dt_rank, A heads, G KV
 * heads, P head_dim; of the delta rule M key heads of K = S rows, and C = 2MK + D columns of q | k | v.
 *
 * A layer is two sublayers, a mixer and a feed-forward; a model without feed-forward (F = 0) has layers of one
 * sublayer, and a model may have layers of either sublayer alone.
 *
 *   h = embed[token]
 *   per layer:   h = h + mixer(x), x = R(rms(h; input_norm));  h = h + ffn(x), x = R(rms(h; ffn_norm))
 *   output:      logits = head . R(rms(h; final_norm))
 *
 *   mixer, attention:  q, k, v = R(Wq x), R(Wk x), R(Wv x)
 *                      Wo R(attention(q, k, v)), scale 1/sqrt(P)
 *                      With positions, biases or norms of heads what a product gives is float32, and op/rope.h makes
 *                      q, k and v of it in one go: bias, norm of each head of q and k, their rotation, R
 *                      With output gates Wq gives each head of q and its gate: Wo R(R(attention(q, k, v)) *
 *                      sigmoid(gate)), op/sigmoid_gate.h
 *   mixer, Mamba-1:    u|z = Win x;  u = conv1d(R(u));  dt|B|C = Wx u;  each rms-normalised where the model has
 *                      inner norms, with weights or without;  dt = Wdt dt;  Wout R(scan(u, dt, B, C, z))
 *   mixer, Mamba-2:    z|x|B|C|dt = Win x;  x|B|C = conv1d(R(x|B|C));  Wout R(norm(ssd(x, dt, B, C), z)): op/ssd.h with
 *                      heads and groups of B and C, op/gated_norm.h over as many groups
 *   mixer, delta rule: q|k|v = Wqkv x, z = Wz x, b = Wb x, a = Wa x;  q|k|v = conv1d(R(q|k|v));
 *                      Wout R(silu(z) * rms(delta(q, k, v, a, b); norm)), the norm over each head: op/delta.h
 *                      By head (delta_by_head) one product gives q, k, v and z of every key head in turn, another b and
 *                      a, and op/regroup.h parts them
 *   ffn, dense:        Wdown R(silu(Wgate x) * (Wup x))
 *   ffn, ungated:      Wdown R(relu2(Wup x))
 *   ffn, MoE:          sum over the chosen experts of p_e * ffn_e(x), in ascending order of e;  where there is a shared
 *                      expert, then + ffn_shared(x), or + sigmoid(Wg x) * ffn_shared(x) where it has a gate,
 *                      op/sigmoid_gate.h. Weights p are those of op/moe.h or, with router groups, op/moe_sigmoid.h
 *
 * Granite's factors, where the configuration has them: h = embed[token] * embed_scale, what a sublayer gives is
 * multiplied by residual_scale before it is added, logits by logit_scale, and attention_scale stands in place of
 * 1/sqrt(P): op/elementwise.h.
 *
 * The activation type (f32 or bf16) is the type of what enters a large matrix product (rms outputs, attention and scan
 * outputs, gated feed-forward) and of what is cached (keys, values, convolution inputs). R() above is that one
 * rounding. Everything else is float32: residual stream, what is added to it, u, z, dt, B, C, gates, router, logits.
 *
 * The profile says how the dense products are summed: every W above but the router's, which is a chain of float32 in
 * both. In mma16 a product takes bf16 only, so what enters one and is float32 above is rounded once, and whoever else
 * reads it goes on with the float32:  dt|B|C = Wx R(u);  dt = Wdt R(dt), R of the norm where the model has inner norms,
 * else of what Wx gave. */
#ifndef LS_MODEL_MODEL_H
#define LS_MODEL_MODEL_H

#include "load/model_config.h"
#include "load/safetensors.h"
#include "op/backend.h"

typedef struct ls_mamba_weights {
    ls_gemm_weight in_proj;           /* [2D][H] */
    ls_gemm_weight x_proj;            /* [R+2S][D] */
    ls_gemm_weight dt_proj;           /* [D][R] */
    ls_gemm_weight out_proj;          /* [H][D] */
    float *in_bias, *out_bias;        /* [2D], [H]; NULL without projection bias */
    float *conv_w, *conv_bias;        /* [W][D]; [D] or NULL */
    float *dt_norm, *b_norm, *c_norm; /* [R], [S], [S]; NULL without such weights */
    float *dt_bias, *d;               /* [D] */
    float *a2;                        /* [D][S]: -exp(A_log) * LOG2E, two roundings */
} ls_mamba_weights;

typedef struct ls_mamba2_weights {
    ls_gemm_weight in_proj;    /* [2D + 2GS + heads][H]: z | x | B | C | dt */
    ls_gemm_weight out_proj;   /* [H][D] */
    float *in_bias, *out_bias; /* [2D + 2GS + heads], [H]; NULL without projection bias */
    float *conv_w, *conv_bias; /* [W][D + 2GS]; [D + 2GS] or NULL */
    float *norm;               /* [D] */
    float *dt_bias, *d, *a;    /* [heads]; a = -exp(A_log) */
} ls_mamba2_weights;

typedef struct ls_delta_weights {
    ls_gemm_weight qkv, z;   /* [C][H]: q | k | v; [D][H] */
    ls_gemm_weight b, a;     /* [heads][H] each */
    ls_gemm_weight qkvz, ba; /* by head, in place of those four: [C + D][H], [2 heads][H] */
    ls_gemm_weight out_proj; /* [H][D] */
    float *conv_w;           /* [W][C] */
    float *norm;             /* [D / heads] */
    float *dt_bias, *rate;   /* [heads]; rate = -exp(A_log) */
} ls_delta_weights;

typedef struct ls_attention_weights {
    ls_gemm_weight q, k, v, o; /* [A*P][H], [G*P][H], [G*P][H], [H][A*P]; with gates q [A][2][P][H]: head, its gate */
    float *q_bias, *k_bias, *v_bias, *o_bias; /* [A*P], [G*P], [G*P], [H]; NULL without */
    float *q_norm, *k_norm;                   /* [P] each; NULL without norms of heads */
} ls_attention_weights;

typedef struct ls_ffn_weights {
    ls_gemm_weight gate, up, down; /* [F][H], [F][H], [H][F]; no gate where the model is ungated */
} ls_ffn_weights;

/* What a sublayer is: its arithmetic forward and backward, and its tensors. parts.h. */
typedef struct ls_part ls_part;

typedef struct ls_layer {
    const ls_part *mixer, *ffn;   /* NULL where there is none; one there is */
    float *input_norm, *ffn_norm; /* [H]; NULL without the sublayer */
    ls_attention_weights attention;
    ls_mamba_weights mamba;
    ls_mamba2_weights mamba2;
    ls_delta_weights delta;
    ls_gemm_weight router;  /* [E][H], MoE only */
    float *router_bias;     /* [E] of routing by sigmoids; no gradient reaches it */
    ls_ffn_weights *expert; /* [n_experts] */
    ls_ffn_weights
        shared; /* of shared_ffn columns, MoE with a shared expert only, and its gate [1][H] where it has one */
    ls_gemm_weight shared_gate;
    int64_t n_experts; /* 1 for a dense feed-forward, 0 for none */
} ls_layer;

/* Which mixers take part: an experiment's lever. A layer that is left out adds nothing before its feed-forward. */
typedef enum ls_ablation { LS_ABLATE_NONE = 0, LS_ATTENTION_ONLY, LS_MAMBA_ONLY, LS_ABLATION_COUNT } ls_ablation;
const char *ls_ablation_name(ls_ablation ablation); /* "none", "attention-only", "mamba-only" */
bool ls_ablation_parse(ls_ablation *out, const char *name);

bool ls_profile_parse(ls_profile *out, const char *name); /* "exact", "mma16": ls_profile_name of lockstep.h */
/* Where none is asked for: mma16 on a device that prefers it where activations are bf16, else exact. */
ls_profile ls_profile_default(bool device_prefers_mma16, ls_dtype activations);
/* The numerical digest of what is computed so: "exact/2/f32", "mma16/4/bf16". */
#define LS_NUMERICS_BYTES 32
void ls_numerics_text(char text[LS_NUMERICS_BYTES], ls_profile profile, ls_dtype activations);

/* All float and void pointers here and in layers are device memory. */
typedef struct ls_model {
    ls_device *device; /* borrowed */
    ls_model_config config;
    ls_ablation ablation;      /* none when opened; whoever opened it may set it before it runs */
    ls_profile profile;        /* exact when opened; ls_model_set_profile */
    ls_checkpoint *checkpoint; /* names, shapes and types of the tensors; nothing of it is read any more */
    void *embed;               /* [V][H], stored type */
    ls_dtype embed_dtype;
    ls_gemm_weight head;                /* [V][H] */
    float *final_norm;                  /* [H] */
    ls_layer *layers;                   /* [n_layers] */
    int64_t n_parameters, weight_bytes; /* bytes: of all that a forward reads whole, which the embedding is not */
    int64_t device_bytes;               /* of the device's memory, as packed */
    void *tiles; /* what products of few rows read of all matrices (ls_model_tiles); NULL: they do without */
    int64_t tiles_bytes;
    struct ls_layer_buffer *layer_buffer; /* of weights of layers while they are used (layer_buffer.h);
                                           * NULL: all of them are on the device */
    uint8_t *parked;                      /* the weights while they are away from the device; NULL: they are there */
    void **owned;                         /* arrays above */
    int64_t n_owned, owned_cap;
} ls_model;

/* Reads DIRECTORY/config.json and its safetensors; every tensor's name, shape and type is checked, and a tensor the
 * configuration does not call for is an error too. The weights go to the device. */
ls_status ls_model_open(ls_model **out, ls_device *device, const char *directory, ls_error *err);
/* How weights are read; no field changes a bit of what is opened. 0 stands for the default everywhere. */
typedef struct ls_model_loading {
    int64_t piece_bytes; /* of a tensor, that are on the host at a time: 16 MB */
    int32_t n_threads;   /* that read a piece: the processors, 8 at most; 1 for small checkpoints */
    bool by_layer; /* weights of layers are not read: there is a buffer for them (layer_buffer.h), and nothing runs
                          * until they have a source (ls_shared_weights_connect) */
    bool no_tiles; /* ls_model_tiles comes later, or never */
} ls_model_loading;
/* how: may be NULL. */
ls_status ls_model_open_with(ls_model **out, ls_device *device, const char *directory, const ls_model_loading *how,
                             ls_error *err);
/* Looks on while any model of this process is opened: bytes of tensors that are loaded, and all. The first call of an
 * opening has done 0, the last done = total. Set before the first run; NULL: nobody. */
typedef void (*ls_model_watcher)(void *context, const char *directory, int64_t done, int64_t total);
void ls_model_watch(ls_model_watcher watcher, void *context);
void ls_model_close(ls_model *model);
/* Makes the copies of the matrices that products of few rows read, or gives their memory back: a model that decodes is
 * faster with them, and one that trains has no use for them. They are there when a model was opened, where the back end
 * has such, and carry no bit. Waits. Nobody may keep an address of a weight: an engine sleeps meanwhile. */
ls_status ls_model_tiles(ls_model *model, bool there, ls_error *err);
/* Takes the weights to the host's memory and gives the device's back. Until ls_model_unpark, which brings them back to
 * the same or to other addresses, nothing may run with the model, and nobody may keep an address of a weight: an engine
 * sleeps meanwhile, a trainer of this model must not be open. Both wait. Either one twice changes nothing; one that
 * fails leaves all as it was. */
ls_status ls_model_park(ls_model *model, ls_error *err);
ls_status ls_model_unpark(ls_model *model, ls_error *err);
/* How the model's dense products are summed, forward and backward; to be set before anything runs or is laid out for
 * it. mma16 is refused by name where the type of activations is not bf16, or a dense weight is not stored as bf16; the
 * router may be stored as anything. */
ls_status ls_model_set_profile(ls_model *model, ls_profile profile, ls_dtype activations, ls_error *err);
/* ls_profile_default on the model's device, but exact for a model that has no mma16: its weights are not bf16. */
ls_profile ls_model_default_profile(const ls_model *model, ls_dtype activations);
/* Multiplies the weights of every layer's input norm: another model, whose every cached state is another one. For
 * experiments. */
ls_status ls_model_scale_inputs(ls_model *model, float factor, ls_error *err);

#endif
