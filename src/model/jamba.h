/* The whole data model of a Jamba language model (Lieber et al. 2024, arXiv:2403.19887): configuration, weights, cached
 * state, working memory, one forward function. Shapes: V vocabulary, H hidden, F feed-forward, E experts, D d_inner,
 * S d_state, W d_conv, R dt_rank, A heads, G KV heads, P head_dim.
 *
 * The activation type (f32 or bf16) is the type of what enters a large matrix product (rms outputs, attention and scan
 * outputs, gated feed-forward) and of what is cached (keys, values, convolution inputs). R() below is that one
 * rounding. Everything else is float32: residual stream, what is added to it, u, z, dt, B, C, gates, router, logits.
 *
 * h = embed[token]
 * per layer:  h = h + mixer(x), x = R(rms(h; input_norm));  h = h + ffn(x), x = R(rms(h; ffn_norm))
 * output:     logits = head . R(rms(h; final_norm))
 *
 * mixer, attention:  q, k, v = R(Wq x), R(Wk x), R(Wv x);  Wo R(attention(q, k, v)), scale 1/sqrt(P), no positional
 * signal mixer, Mamba-1:    u|z = Win x;  u = conv1d(R(u));  dt|B|C = Wx u;  each rms-normalised;  dt = Wdt dt; Wout
 * R(scan(u, dt, B, C, z)) ffn, dense:        Wdown R(silu(Wgate x) * (Wup x)) ffn, MoE:          sum over the chosen
 * experts of p_e * ffn_e(x), in ascending order of e */
#ifndef LS_MODEL_JAMBA_H
#define LS_MODEL_JAMBA_H

#include "dev/queue.h"
#include "load/jamba_config.h"
#include "load/safetensors.h"
#include "op/gemm.h"
#include "op/span.h"

typedef struct ls_mamba_weights {
    ls_gemm_weight in_proj;           /* [2D][H] */
    ls_gemm_weight x_proj;            /* [R+2S][D] */
    ls_gemm_weight dt_proj;           /* [D][R] */
    ls_gemm_weight out_proj;          /* [H][D] */
    float *in_bias, *out_bias;        /* [2D], [H]; NULL without projection bias */
    float *conv_w, *conv_bias;        /* [W][D]; [D] or NULL */
    float *dt_norm, *b_norm, *c_norm; /* [R], [S], [S] */
    float *dt_bias, *d;               /* [D] */
    float *a2;                        /* [D][S]: -exp(A_log) * LOG2E, two roundings */
} ls_mamba_weights;

typedef struct ls_attention_weights {
    ls_gemm_weight q, k, v, o; /* [A*P][H], [G*P][H], [G*P][H], [H][A*P] */
} ls_attention_weights;

typedef struct ls_ffn_weights {
    ls_gemm_weight gate, up, down; /* [F][H], [F][H], [H][F] */
} ls_ffn_weights;

typedef struct ls_layer {
    bool is_attention, is_moe;
    float *input_norm, *ffn_norm; /* [H] */
    ls_attention_weights attention;
    ls_mamba_weights mamba;
    ls_gemm_weight router; /* [E][H], MoE only */
    ls_ffn_weights *ffn;   /* [E] for MoE, else [1] */
    int64_t n_ffn;
} ls_layer;

/* Which mixers take part: an experiment's lever. A layer that is left out adds nothing before its feed-forward. */
typedef enum ls_ablation { LS_ABLATE_NONE = 0, LS_ATTENTION_ONLY, LS_MAMBA_ONLY, LS_ABLATION_COUNT } ls_ablation;
const char *ls_ablation_name(ls_ablation ablation); /* "none", "attention-only", "mamba-only" */
bool ls_ablation_parse(ls_ablation *out, const char *name);

typedef struct ls_jamba {
    ls_jamba_config config;
    ls_ablation ablation;      /* none when opened; whoever opened it may set it before it runs */
    ls_checkpoint *checkpoint; /* names, shapes and types of the tensors; their files are let go */
    void *embed;               /* [V][H], stored type */
    ls_dtype embed_dtype;
    ls_gemm_weight head;                /* [V][H] */
    float *final_norm;                  /* [H] */
    ls_layer *layers;                   /* [n_layers] */
    int64_t n_parameters, weight_bytes; /* bytes: of all that a forward reads whole, which the embedding is not */
    void **owned;                       /* arrays above */
    int64_t n_owned, owned_cap;
} ls_jamba;

/* Reads DIRECTORY/config.json and its safetensors; every tensor's name, shape and type is checked, and a tensor the
 * configuration does not call for is an error too. */
ls_status ls_jamba_open(ls_jamba **out, const char *directory, ls_error *err);
void ls_jamba_close(ls_jamba *model);

/* Cached state of all sequences. A slot holds one sequence's convolution window [W-1][D] (activation type) and then, at
 * a multiple of 64 bytes, its scan state [D][S] (float32), for one layer; slot ids mean the same sequence in every
 * Mamba layer. Page ids likewise mean the same page_tokens positions in every attention layer. Pools are address space
 * that the system backs where it is touched, zero at first. */
typedef struct ls_cache {
    ls_dtype dtype;
    int64_t n_slots, slot_stride, slot_bytes, ssm_offset; /* bytes; of a slot, slot_bytes are in use .. */
    int64_t conv_bytes, ssm_bytes;                        /* .. and of these, window and state */
    int64_t n_pages, page_tokens, page_stride, page_bytes;
    int64_t n_layers, n_kv_heads;
    bool guards;
    uint8_t is_attention[LS_LAYERS_MAX]; /* a copy of the configuration's: weights may change and their models go */
    uint8_t **layer;                     /* [n_layers]: the layer's slots or pages; NULL where there are none */
} ls_cache;

typedef struct ls_cache_opts {
    ls_dtype dtype;                        /* of activations */
    int64_t n_slots, n_pages, page_tokens; /* either count may be 0 */
    int64_t slot_stride;                   /* bytes, a multiple of 64; 0: the least */
    bool guards;                           /* 64 bytes of a known pattern behind every slot and page */
} ls_cache_opts;

ls_status ls_cache_create(ls_cache **out, const ls_jamba_config *config, const ls_cache_opts *opts, ls_error *err);
void ls_cache_free(ls_cache *cache);
ls_pool_view ls_cache_conv(const ls_cache *cache, int64_t layer_i);
ls_pool_view ls_cache_ssm(const ls_cache *cache, int64_t layer_i);
ls_pool_view ls_cache_pages(const ls_cache *cache, int64_t layer_i);
/* All layers of a slot or page, from one cache to another (or the same) of the same model and type. */
void ls_cache_copy_slot(const ls_cache *to, int32_t to_slot, const ls_cache *from, int32_t from_slot);
void ls_cache_copy_page(const ls_cache *to, int32_t to_page, const ls_cache *from, int32_t from_page);
/* The first layer in which two slots differ, or -1; the same for the first n_tokens positions of two pages. */
int64_t ls_cache_slot_differs(const ls_cache *a, int32_t slot_a, const ls_cache *b, int32_t slot_b);
int64_t ls_cache_page_differs(const ls_cache *a, int32_t page_a, const ls_cache *b, int32_t page_b, int64_t n_tokens);
/* Fills a free slot or page with NaN: whoever reads it shows it. */
void ls_cache_poison_slot(const ls_cache *cache, int32_t slot);
void ls_cache_poison_page(const ls_cache *cache, int32_t page);
/* LS_OK when the pattern behind this slot or page stands; the error names layer, id and byte. */
ls_status ls_cache_guard_slot(const ls_cache *cache, int32_t slot, ls_error *err);
ls_status ls_cache_guard_page(const ls_cache *cache, int32_t page, ls_error *err);
/* Gives a slot's memory back to the system, as far as whole system pages go; it is zero there afterwards. */
void ls_cache_drop_slot(const ls_cache *cache, int32_t slot);
/* The same for all of it, guards written again. */
void ls_cache_drop(const ls_cache *cache);
/* Bytes of the parts of a slot and of a page, for planning. */
int64_t ls_slot_ssm_offset(const ls_jamba_config *config, ls_dtype dtype);
int64_t ls_slot_bytes(const ls_jamba_config *config, ls_dtype dtype);
int64_t ls_page_bytes(const ls_jamba_config *config, ls_dtype dtype, int64_t page_tokens);

/* Who looks on while a forward runs: called with the residual stream workspace->h behind the embedding (half 0) and
 * behind each half of a layer (half 2 i + 1: the mixer of layer i, 2 i + 2: its feed-forward). */
struct ls_forward;
typedef void (*ls_forward_observer)(void *context, const struct ls_forward *f, int64_t half);

/* Working memory of a forward over at most rows_max rows. */
typedef struct ls_workspace {
    ls_dtype dtype;
    int64_t rows_max;
    ls_forward_observer observer; /* NULL: none */
    void *observer_context;
    float *h, *y;           /* [rows][H]: residual stream, and what is added to it */
    void *x;                /* [rows][H]: normalised h; after a forward, the head's input */
    float *wide_a, *wide_b; /* [rows][widest projection]; attention keeps q, k and v here in the activation type */
    float *narrow_raw;      /* [rows][R+2S]: dt, B, C before their norms */
    float *narrow;          /* the same after them; the same memory unless the workspace is for training */
    void *gated;            /* [rows][widest input of an output projection], activation type */
    float *router, *expert_weight, *moe_y, *picked_weight;
    int32_t *expert;
    int64_t *picked_rows;
    void *picked_x; /* [rows][H] */
} ls_workspace;

/* for_training: nothing that a gradient needs is overwritten within one half of a layer. */
ls_status ls_workspace_create(ls_workspace **out, const ls_jamba_config *config, ls_dtype dtype, int64_t rows_max,
                              bool for_training, ls_error *err);
void ls_workspace_free(ls_workspace *workspace);

/* Runs tokens [rows] through the model. Span i takes rows spans[i].row on (spans cover the rows in order, without
 * gaps), continues its sequence from pos, and leaves the cache ready for pos + n_rows. Result: workspace->x [rows][H].
 * One code path serves prefill, chunks, decode and packed batches; a row's bits depend on its own sequence only. */
ls_status ls_jamba_forward(const ls_jamba *model, ls_queue *queue, const ls_cache *cache, ls_workspace *workspace,
                           const int32_t *tokens, const ls_span *spans, int64_t n_spans, ls_error *err);

/* The steps of a forward, for the trainer, which keeps what each of them computed: the embedding into workspace->h, one
 * half of a layer (h = h + half(rms(h))), the last norm into workspace->x. ls_jamba_forward is these and nothing else.
 */
typedef enum ls_half { LS_HALF_MIXER = 0, LS_HALF_FFN = 1 } ls_half;
typedef struct ls_forward {
    const ls_jamba *model;
    ls_queue *queue;
    const ls_cache *cache;
    ls_workspace *ws;
    const ls_span *spans;
    int64_t n_spans, rows;
} ls_forward;
ls_status ls_jamba_embed(const ls_forward *f, const int32_t *tokens, ls_error *err);
ls_status ls_jamba_half(const ls_forward *f, int64_t layer_i, ls_half half, ls_error *err);
ls_status ls_jamba_last_norm(const ls_forward *f, ls_error *err);
/* One expert's feed-forward: collects the rows of ws->x that chose expert e into ws->picked_x, with ids and weights,
 * and runs it over them into ws->moe_y; *n is their number. */
ls_status ls_jamba_expert(const ls_forward *f, int64_t layer_i, int32_t e, int64_t *n, ls_error *err);

/* logits [n][V] = head . x [n][H], float32. */
ls_status ls_jamba_logits(const ls_jamba *model, ls_queue *queue, const void *x, ls_dtype dtype, int64_t n,
                          float *logits, ls_error *err);

#endif
