/* What a model computes, as plain numbers, and the way from a config.json to them.
 *
 * An architecture (src/model/architectures.h lists them) says which fields its config.json has: honoured; fixed,
 * whose one supported value is checked; inert, which cannot change a logit. A field that is none of these is refused
 * by name unless it is null or false, because it may change the arithmetic. config_fields.h has the tools for it. */
#ifndef LS_LOAD_MODEL_CONFIG_H
#define LS_LOAD_MODEL_CONFIG_H

#include "base/status.h"

struct json_t;

#define LS_LAYERS_MAX 1024
#define LS_EOS_MAX 16

/* What an architecture calls its tensors. A layer's tensors are called LAYERS NUMBER "." and then, within a part, the
 * part's prefix. */
typedef struct ls_tensor_names {
    const char *embed, *final_norm, *head, *layers, *input_norm, *ffn_norm;
    const char *attention, *mamba, *ffn; /* prefixes of parts */
    /* Within a feed-forward; of experts behind "experts.NUMBER.". */
    const char *router, *gate, *up, *down;
    const char *gate_up; /* in place of gate and up: one tensor, the rows of gate before those of up */
    /* Prefix of the experts of a layer, each of whose tensors is one of three dimensions, an expert behind the other;
     * NULL: each expert has its own. */
    const char *experts;
    const char *router_bias;          /* of routing by sigmoids */
    const char *shared, *shared_gate; /* prefix of the shared expert; its gate, NULL without one */
    /* Beginnings of the names of tensors that files may have and no forward reads; ends with NULL. NULL: there are
     * none. */
    const char *const *unread;
} ls_tensor_names;

/* How heads of q and k rotate by position (op/rope.h). */
enum { LS_ROPE_HALF_MAX = 256 };
typedef struct ls_rope_config {
    int32_t half; /* frequencies: half of the columns of a head that rotate */
    float scale;  /* of cosines and sines */
    float inv_freq[LS_ROPE_HALF_MAX];
} ls_rope_config;

typedef struct ls_model_config {
    const ls_tensor_names *names;
    int32_t n_layers, hidden, vocab;
    int32_t ffn;                           /* 0: layers have no feed-forward */
    bool ungated;                          /* feed-forwards and experts are down relu2(up x), without a gate */
    int32_t n_heads, n_kv_heads, head_dim; /* 0 in an architecture without attention */
    ls_rope_config rope;                   /* half 0: attention knows no positions */
    bool head_norms;                       /* of each head of q and k */
    bool head_gates;                       /* q_proj gives a head of q, then its output gate */
    bool qkv_bias, o_bias;
    int32_t n_experts, top_k; /* top_k is 1 when n_experts is 1 */
    int32_t shared_ffn;       /* width of the expert that every row has besides; 0: none */
    bool reweighs;            /* the chosen experts alone share the weight (op/moe.h, op/moe_sigmoid.h) */
    /* Routing by sigmoids: its groups and those of them that stay, and the scale of weights; 0 groups: by a softmax. */
    int32_t router_groups, router_top_groups;
    float router_scale;
    int32_t d_inner, d_state, d_conv;
    int32_t dt_rank; /* of Mamba-1; 0 with Mamba-2 */
    int32_t ssd_heads,
        ssd_groups;       /* of Mamba-2 (op/ssd.h), whose heads divide d_inner; 0: Mamba layers are Mamba-1's */
    float dt_min, dt_max; /* of Mamba-2's steps */
    /* Of the gated delta rule (op/delta.h): its value heads, of d_inner columns together, and its key heads, of d_state
     * rows each; 0: Mamba layers are Mamba's. */
    int32_t delta_heads, delta_key_heads;
    bool delta_by_head;    /* products give what a key head and its value heads take, head by head (op/regroup.h) */
    int64_t positions_max; /* what the model was trained for, INT64_MAX if it does not say; no limit of arithmetic
                              follows */
    bool conv_bias, proj_bias, tied;
    bool inner_norms;     /* of dt, B and C, with inner_eps */
    bool inner_weights;   /* those norms have weights */
    bool norms_above_one; /* norms of the stream and of heads are stored as what they have above 1 (op/weight.h) */
    float rms_eps, inner_eps;
    /* Granite's factors: of the embedding's rows, of what a sublayer adds to the stream, of logits; 0: none. */
    float embed_scale, residual_scale, logit_scale;
    float attention_scale; /* of products of q and k; 0: 1 / sqrt(head_dim) */
    ls_dtype stored_dtype; /* what the file says of its weights; each tensor's own header decides */
    uint8_t is_attention[LS_LAYERS_MAX];
    int32_t window[LS_LAYERS_MAX]; /* positions that a query of the layer sees (op/attention.h); 0: all */
    uint8_t is_moe[LS_LAYERS_MAX];
    uint8_t no_mixer[LS_LAYERS_MAX],
        no_ffn[LS_LAYERS_MAX]; /* layers of one sublayer; a mixer or a feed-forward there is */
    int32_t bos, pad;          /* -1 when absent */
    bool pad_is_trained;       /* whether the padding token's embedding has a gradient */
    bool has_eos;              /* the files name it, or that there is none */
    int32_t n_eos, eos[LS_EOS_MAX];
} ls_model_config;

/* What the mixers that are no attention do with their state. */
typedef enum ls_recurrence { LS_RECURRENCE_SCAN = 0, LS_RECURRENCE_SSD, LS_RECURRENCE_DELTA } ls_recurrence;
static inline ls_recurrence ls_config_recurrence(const ls_model_config *c) {
    return c->delta_heads > 0 ? LS_RECURRENCE_DELTA : c->ssd_heads > 0 ? LS_RECURRENCE_SSD : LS_RECURRENCE_SCAN;
}

/* Columns that a Mamba layer's convolution runs over: of Mamba-2 x, B and C, of the delta rule q, k and v. */
static inline int64_t ls_config_conv_dim(const ls_model_config *c) {
    return c->d_inner + 2 * ((int64_t)c->ssd_groups + c->delta_key_heads) * c->d_state;
}

/* Layers whose state lies in pages, and in slots. */
static inline bool ls_config_has_pages(const ls_model_config *c, int64_t layer_i) {
    return c->is_attention[layer_i] != 0;
}
static inline bool ls_config_has_slots(const ls_model_config *c, int64_t layer_i) {
    return !c->is_attention[layer_i] && !c->no_mixer[layer_i];
}
/* The positions that pages must reach back: the widest window; 0: all, because a layer with pages has none. */
static inline int64_t ls_config_window(const ls_model_config *c) {
    int64_t widest = 0;
    for (int64_t i = 0; i < c->n_layers; i++) {
        if (ls_config_has_pages(c, i) && c->window[i] == 0) return 0;
        if (ls_config_has_pages(c, i) && c->window[i] > widest) widest = c->window[i];
    }
    return widest;
}

/* An architecture. read takes what its file says into *out, which is zeroed; errors start with the field. */
typedef struct ls_architecture {
    const char *model_type; /* "model_type" of its files */
    const char *class_name; /* among "architectures" of its files */
    ls_status (*read)(ls_model_config *out, struct json_t *config, ls_error *err);
} ls_architecture;

/* Reads the text of a config.json as the architecture that it names, out of a list that ends with NULL; `name`
 * starts the error sentence. On failure *out is untouched. */
ls_status ls_architectures_parse(ls_model_config *out, const ls_architecture *const *list, const char *json,
                                 int64_t bytes, const char *name, ls_error *err);
/* The same for DIR/config.json and, where it exists, DIR/generation_config.json, whose eos_token_id then replaces
 * the one of config.json. */
ls_status ls_architectures_open(ls_model_config *out, const ls_architecture *const *list, const char *dir,
                                ls_error *err);
/* Takes eos_token_id from the text of a generation_config.json into a config that is already read; its other fields
 * describe a way of sampling, which is the caller's to choose. */
ls_status ls_model_config_parse_generation(ls_model_config *config, const char *json, int64_t bytes, const char *name,
                                           ls_error *err);

#endif
