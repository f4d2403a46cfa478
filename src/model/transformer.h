/* What models of attention and gated feed-forwards have in common, so that an architecture of this kind (llama.c,
 * mistral.c, mixtral.c, qwen2.c, qwen3.c, qwen3_moe.c) is its table of fields and what it does otherwise. Private to
 * src/model. */
#ifndef LS_MODEL_TRANSFORMER_H
#define LS_MODEL_TRANSFORMER_H

#include "load/config_fields.h"
#include "model/architectures.h"

/* Fields as they stand in the file. Those that a family does not have stay 0. */
typedef struct ls_transformer_raw {
    int64_t vocab_size, hidden_size, intermediate_size, n_layers, n_heads, n_kv_heads, head_dim, positions_max;
    int64_t bos, pad;
    int64_t tied, attention_bias;
    int64_t use_window, max_window_layers; /* "use_sliding_window" and the number of layers that have none */
    int64_t n_experts, n_local_experts, top_k, norm_topk_prob; /* intermediate_size is an expert's then */
} ls_transformer_raw;

/* What a layer's feed-forward is, and what its tensors are called. */
typedef enum ls_experts_kind { LS_EXPERTS_NONE = 0, LS_EXPERTS_QWEN3, LS_EXPERTS_MIXTRAL } ls_experts_kind;

/* Which layers have the window of "sliding_window": all; where "use_sliding_window" says so all, or those from
 * "max_window_layers" on, or those that "layer_types" names. */
typedef enum ls_windows { LS_WINDOWS_NONE = 0, LS_WINDOWS_ALL, LS_WINDOWS_ALL_IF_USED, LS_WINDOWS_BY_LAYER } ls_windows;

typedef struct ls_transformer {
    const ls_field_tables *fields;
    double rope_theta; /* by default */
    ls_windows windows;
    int64_t window; /* of "sliding_window" where the file does not say; LS_FIELD_ABSENT for none */
    int64_t eos;    /* by default; LS_FIELD_ABSENT for none */
    ls_experts_kind experts;
    int64_t n_experts; /* by default */
    const char *dense; /* of a mixture: the type of its dense kin, for the error sentence */
    bool head_norms;   /* of each head of q and k */
    bool qkv_bias;     /* always; else where the file says "attention_bias", which is of all four projections */
} ls_transformer;

/* out is zeroed. */
ls_status ls_transformer_read(ls_model_config *out, struct json_t *config, const ls_transformer *family, ls_error *err);

#define LS_TRANSFORMER_AT(field) offsetof(ls_transformer_raw, field)

#endif
