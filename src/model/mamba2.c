/* Mamba-2 alone (Mamba2ForCausalLM): every layer is one Mamba-2 mixer and has no feed-forward. Absent fields take the
 * defaults that Hugging Face's Mamba2Config gives them. */
#include <math.h>

#include "load/config_fields.h"
#include "model/architectures.h"
#include "model/mamba2_sizes.h"
#include "op/ssd.h"

/* Fields as they stand in the file, before anything is derived from them. */
typedef struct raw_config {
    int64_t vocab_size, hidden_size, n_layers, n_heads, head_dim, d_state, d_conv, expand, n_groups;
    int64_t bos, pad;
    int64_t tied, conv_bias, proj_bias;
} raw_config;

#define COUNT(array) ((int64_t)(sizeof(array) / sizeof(array)[0]))

static const ls_field_integer integers[] = {
    {"vocab_size", offsetof(raw_config, vocab_size), 32768, 1, INT32_MAX, false},
    {"hidden_size", offsetof(raw_config, hidden_size), 4096, 1, INT32_MAX, false},
    {"num_hidden_layers", offsetof(raw_config, n_layers), 64, 1, LS_LAYERS_MAX, false},
    {"num_heads", offsetof(raw_config, n_heads), 128, 1, LS_SSD_HEADS_MAX, false},
    {"head_dim", offsetof(raw_config, head_dim), 64, 1, INT32_MAX, false},
    {"state_size", offsetof(raw_config, d_state), 128, 1, INT32_MAX, false},
    {"conv_kernel", offsetof(raw_config, d_conv), 4, 1, INT32_MAX, false},
    {"expand", offsetof(raw_config, expand), 2, 1, INT32_MAX, false},
    {"n_groups", offsetof(raw_config, n_groups), 8, 1, INT32_MAX, false},
    {"bos_token_id", offsetof(raw_config, bos), 0, 0, INT32_MAX, true},
    {"pad_token_id", offsetof(raw_config, pad), 1, 0, INT32_MAX, true},
    {0},
};

static const ls_field_switch switches[] = {
    {"tie_word_embeddings", offsetof(raw_config, tied), false},
    {"use_conv_bias", offsetof(raw_config, conv_bias), true},
    {"use_bias", offsetof(raw_config, proj_bias), false},
    {0},
};

/* The residual stream is float32 whatever the activations are, and weights are what the file holds. */
static const ls_field_fixed fixed[] = {
    {"hidden_act", "\"silu\""},   {"hidden_act", "\"swish\""},
    {"residual_in_fp32", "true"}, {"rescale_prenorm_residual", "false"},
    {"rms_norm", "true"},         {0},
};

static const char *const special[] = {"layer_norm_epsilon", "time_step_limit", NULL};

/* How new weights are drawn; how far a chunk of the reference's computation goes; and what converted files repeat:
 * expand times hidden_size, and an order of gate and norm that the reference does not read. */
static const char *const inert[] = {
    "chunk_size",    "intermediate_size", "norm_before_gate", "time_step_floor", "time_step_init_scheme",
    "time_step_max", "time_step_min",     "time_step_rank",   "time_step_scale", NULL,
};

static const ls_field_tables fields = {integers, switches, fixed, special, inert};

static const ls_tensor_names tensor_names = {.embed = "backbone.embeddings.weight",
                                             .final_norm = "backbone.norm_f.weight",
                                             .head = "lm_head.weight",
                                             .layers = "backbone.layers.",
                                             .input_norm = "norm.weight",
                                             .mamba = "mixer."};

static ls_status check_mamba2(const raw_config *raw, ls_error *err) {
    const ls_field_product products[] = {{"vocab_size x hidden_size", {raw->vocab_size, raw->hidden_size, 1, 1}}};
    const ls_mamba2_sizes sizes = {.hidden = raw->hidden_size,
                                   .n_heads = raw->n_heads,
                                   .head_dim = raw->head_dim,
                                   .n_groups = raw->n_groups,
                                   .n_states = raw->d_state,
                                   .d_conv = raw->d_conv,
                                   .heads_name = "num_heads",
                                   .head_dim_name = "head_dim",
                                   .states_name = "state_size"};
    if (raw->expand * raw->hidden_size != raw->n_heads * raw->head_dim)
        return LS_FAIL(err, LS_ERR_FORMAT, "num_heads x head_dim: %lld is not expand x hidden_size %lld",
                       (long long)(raw->n_heads * raw->head_dim), (long long)(raw->expand * raw->hidden_size));
    LS_TRY(ls_field_check_products(products, COUNT(products), err));
    return ls_mamba2_check_sizes(&sizes, err);
}

static void take_mamba2(ls_model_config *out, const raw_config *raw) {
    out->names = &tensor_names;
    out->n_layers = (int32_t)raw->n_layers;
    out->hidden = (int32_t)raw->hidden_size;
    out->vocab = (int32_t)raw->vocab_size;
    out->n_experts = 1;
    out->top_k = 1;
    out->d_inner = (int32_t)(raw->n_heads * raw->head_dim);
    out->d_state = (int32_t)raw->d_state;
    out->d_conv = (int32_t)raw->d_conv;
    out->ssd_heads = (int32_t)raw->n_heads;
    out->ssd_groups = (int32_t)raw->n_groups;
    out->dt_min = 0.0f;
    out->dt_max = INFINITY;
    out->positions_max = INT64_MAX;
    out->conv_bias = raw->conv_bias != 0;
    out->proj_bias = raw->proj_bias != 0;
    out->tied = raw->tied != 0;
    out->pad_is_trained = true;
}

static ls_status read_mamba2(ls_model_config *out, struct json_t *config, ls_error *err) {
    raw_config raw = {0};
    LS_TRY(ls_field_read_tables(&raw, config, &fields, err));
    LS_TRY(check_mamba2(&raw, err));
    take_mamba2(out, &raw);
    LS_TRY(ls_field_read_limits(&out->dt_min, &out->dt_max, config, "time_step_limit", err));
    LS_TRY(ls_field_read_eps(&out->rms_eps, config, "layer_norm_epsilon", 1e-5f, err));
    LS_TRY(ls_field_read_dtype(out, config, err));
    return ls_field_read_tokens(out, config, raw.bos, raw.pad, 2, err);
}

const ls_architecture ls_mamba2 = {"mamba2", "Mamba2ForCausalLM", read_mamba2};
