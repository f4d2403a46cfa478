/* Mamba-1 alone: every layer is one Mamba mixer and has no feed-forward. Of two architectures of Hugging Face, whose
 * absent fields have the same defaults: MambaForCausalLM has no norms of dt, B and C, FalconMambaForCausalLM has them
 * without weights. */
#include "load/config_fields.h"
#include "model/architectures.h"

/* Fields as they stand in the file, before anything is derived from them. */
typedef struct raw_config {
    int64_t vocab_size, hidden_size, n_layers, d_inner, d_state, d_conv, expand, dt_rank;
    int64_t bos, pad;
    int64_t tied, conv_bias, proj_bias;
} raw_config;

#define COUNT(array) ((int64_t)(sizeof(array) / sizeof(array)[0]))

static const ls_field_integer integers[] = {
    {"vocab_size", offsetof(raw_config, vocab_size), 50280, 1, INT32_MAX, false},
    {"hidden_size", offsetof(raw_config, hidden_size), 768, 1, INT32_MAX, false},
    {"num_hidden_layers", offsetof(raw_config, n_layers), 32, 1, LS_LAYERS_MAX, false},
    {"intermediate_size", offsetof(raw_config, d_inner), LS_FIELD_ABSENT, 1, INT32_MAX, true},
    {"state_size", offsetof(raw_config, d_state), 16, 1, INT32_MAX, false},
    {"conv_kernel", offsetof(raw_config, d_conv), 4, 1, INT32_MAX, false},
    {"expand", offsetof(raw_config, expand), 2, 1, INT32_MAX, false},
    {"bos_token_id", offsetof(raw_config, bos), 0, 0, INT32_MAX, true},
    {"pad_token_id", offsetof(raw_config, pad), 0, 0, INT32_MAX, true},
    {0},
};

static const ls_field_switch switches[] = {
    {"tie_word_embeddings", offsetof(raw_config, tied), true},
    {"use_conv_bias", offsetof(raw_config, conv_bias), true},
    {"use_bias", offsetof(raw_config, proj_bias), false},
    {0},
};

/* The residual stream is float32 whatever the activations are, and weights are what the file holds. rms_norm and
 * ssm_cfg come from the authors' own format, whose files were converted with these fields left in. */
static const ls_field_fixed fixed[] = {
    {"hidden_act", "\"silu\""},
    {"hidden_act", "\"swish\""},
    {"residual_in_fp32", "true"},
    {"rescale_prenorm_residual", "false"},
    {"rms_norm", "true"},
    {"ssm_cfg", "{}"},
    {0},
};

static const char *const special[] = {"layer_norm_epsilon", "time_step_rank", NULL};
static const char *const falcon_special[] = {"layer_norm_epsilon", "time_step_rank", "mixer_rms_eps", NULL};

/* How new weights are drawn; the order of computation; and, from d_inner on, what converted files repeat under the
 * names of the authors' format. Shapes of tensors are checked against the fields above. */
static const char *const inert[] = {
    "time_step_floor",
    "time_step_init_scheme",
    "time_step_max",
    "time_step_min",
    "time_step_scale",
    "use_associative_scan",
    "use_falcon_mambapy",
    "use_mambapy",
    "d_inner",
    "d_model",
    "fused_add_norm",
    "n_layer",
    "pad_vocab_size_multiple",
    NULL,
};

static const ls_field_tables fields = {integers, switches, fixed, special, inert};
static const ls_field_tables falcon_fields = {integers, switches, fixed, falcon_special, inert};

static const ls_tensor_names tensor_names = {.embed = "backbone.embeddings.weight",
                                             .final_norm = "backbone.norm_f.weight",
                                             .head = "lm_head.weight",
                                             .layers = "backbone.layers.",
                                             .input_norm = "norm.weight",
                                             .mamba = "mixer."};

/* Rows and sizes of the largest tensors must fit the types that hold them. */
static ls_status check_mamba(const raw_config *raw, ls_error *err) {
    const int64_t narrow = raw->dt_rank + 2 * raw->d_state;
    const ls_field_rows rows[] = {{"intermediate_size (by default expand x hidden_size), twice", 2 * raw->d_inner},
                                  {"time_step_rank + 2 x state_size", narrow}};
    const ls_field_product products[] = {
        {"vocab_size x hidden_size", {raw->vocab_size, raw->hidden_size, 1, 1}},
        {"2 x intermediate_size x hidden_size", {2, raw->d_inner, raw->hidden_size, 1}},
        {"intermediate_size x state_size", {raw->d_inner, raw->d_state, 1, 1}},
        {"intermediate_size x conv_kernel", {raw->d_inner, raw->d_conv, 1, 1}},
        {"intermediate_size x (time_step_rank + 2 x state_size)", {raw->d_inner, narrow, 1, 1}},
    };
    LS_TRY(ls_field_check_rows(rows, COUNT(rows), err));
    return ls_field_check_products(products, COUNT(products), err);
}

static void take_mamba(ls_model_config *out, const raw_config *raw) {
    out->names = &tensor_names;
    out->n_layers = (int32_t)raw->n_layers;
    out->hidden = (int32_t)raw->hidden_size;
    out->vocab = (int32_t)raw->vocab_size;
    out->n_experts = 1;
    out->top_k = 1;
    out->d_inner = (int32_t)raw->d_inner;
    out->d_state = (int32_t)raw->d_state;
    out->d_conv = (int32_t)raw->d_conv;
    out->dt_rank = (int32_t)raw->dt_rank;
    out->positions_max = INT64_MAX;
    out->conv_bias = raw->conv_bias != 0;
    out->proj_bias = raw->proj_bias != 0;
    out->tied = raw->tied != 0;
    out->pad_is_trained = true;
}

static ls_status read(ls_model_config *out, struct json_t *config, const ls_field_tables *tables, ls_error *err) {
    raw_config raw = {0};
    LS_TRY(ls_field_read_tables(&raw, config, tables, err));
    if (raw.d_inner == LS_FIELD_ABSENT) raw.d_inner = raw.expand * raw.hidden_size;
    LS_TRY(ls_field_read_auto(&raw.dt_rank, config, "time_step_rank", (raw.hidden_size + 15) / 16, err));
    LS_TRY(check_mamba(&raw, err));
    take_mamba(out, &raw);
    LS_TRY(ls_field_read_eps(&out->rms_eps, config, "layer_norm_epsilon", 1e-5f, err));
    LS_TRY(ls_field_read_dtype(out, config, err));
    return ls_field_read_tokens(out, config, raw.bos, raw.pad, 0, err);
}

static ls_status read_mamba(ls_model_config *out, struct json_t *config, ls_error *err) {
    return read(out, config, &fields, err);
}

static ls_status read_falcon_mamba(ls_model_config *out, struct json_t *config, ls_error *err) {
    LS_TRY(read(out, config, &falcon_fields, err));
    out->inner_norms = true;
    return ls_field_read_eps(&out->inner_eps, config, "mixer_rms_eps", 1e-6f, err);
}

const ls_architecture ls_mamba = {"mamba", "MambaForCausalLM", read_mamba};
const ls_architecture ls_falcon_mamba = {"falcon_mamba", "FalconMambaForCausalLM", read_falcon_mamba};
