/* Jamba's config.json. Owns the tables of fields: what is honoured, what has one supported value, what is inert. */
#define _POSIX_C_SOURCE 200809L
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "load/json_read.h"
#include "load/model_config.h"

#define LS_CONFIG_BYTES_MAX 16000000

/* Fields as they stand in the file, before anything is derived from them. */
typedef struct raw_config {
    int64_t vocab_size, hidden_size, intermediate_size, n_layers, n_heads, n_kv_heads, head_dim;
    int64_t n_experts, n_local_experts, top_k, expert_period, expert_offset, attn_period, attn_offset;
    int64_t d_state, d_conv, expand, dt_rank, positions_max;
    int64_t bos, pad;
    int64_t tied, conv_bias, proj_bias;
} raw_config;

#define ABSENT (-1) /* of a count that is derived from others when it is not given */

/* Honoured integers. null counts as absent only where the field may be absent without a default of its own. */
static const struct {
    const char *name;
    size_t offset;
    int64_t value; /* default */
    int64_t low, high;
    bool null_is_absent;
} integers[] = {
    {"vocab_size", offsetof(raw_config, vocab_size), 65536, 1, INT32_MAX, false},
    {"hidden_size", offsetof(raw_config, hidden_size), 4096, 1, INT32_MAX, false},
    {"intermediate_size", offsetof(raw_config, intermediate_size), 14336, 1, INT32_MAX, false},
    {"num_hidden_layers", offsetof(raw_config, n_layers), 32, 1, LS_LAYERS_MAX, false},
    {"num_attention_heads", offsetof(raw_config, n_heads), 32, 1, INT32_MAX, false},
    {"num_key_value_heads", offsetof(raw_config, n_kv_heads), 8, 1, INT32_MAX, true},
    {"head_dim", offsetof(raw_config, head_dim), ABSENT, 1, INT32_MAX, true},
    {"num_experts", offsetof(raw_config, n_experts), ABSENT, 1, INT32_MAX, false},
    {"num_local_experts", offsetof(raw_config, n_local_experts), ABSENT, 1, INT32_MAX, true},
    {"num_experts_per_tok", offsetof(raw_config, top_k), 2, 1, INT32_MAX, false},
    {"expert_layer_period", offsetof(raw_config, expert_period), 2, 1, INT32_MAX, false},
    {"expert_layer_offset", offsetof(raw_config, expert_offset), 1, 0, INT32_MAX, false},
    {"attn_layer_period", offsetof(raw_config, attn_period), 8, 1, INT32_MAX, false},
    {"attn_layer_offset", offsetof(raw_config, attn_offset), 4, 0, INT32_MAX, false},
    {"mamba_d_state", offsetof(raw_config, d_state), 16, 1, INT32_MAX, false},
    {"mamba_d_conv", offsetof(raw_config, d_conv), 4, 1, INT32_MAX, false},
    {"mamba_expand", offsetof(raw_config, expand), 2, 1, INT32_MAX, false},
    {"max_position_embeddings", offsetof(raw_config, positions_max), 262144, 1, INT64_MAX, false},
    {"bos_token_id", offsetof(raw_config, bos), 1, 0, INT32_MAX, true},
    {"pad_token_id", offsetof(raw_config, pad), 0, 0, INT32_MAX, true},
};

/* Honoured switches. */
static const struct {
    const char *name;
    size_t offset;
    bool value; /* default */
} switches[] = {
    {"tie_word_embeddings", offsetof(raw_config, tied), false},
    {"mamba_conv_bias", offsetof(raw_config, conv_bias), true},
    {"mamba_proj_bias", offsetof(raw_config, proj_bias), false},
};

/* Honoured, each read by a function of its own. */
static const char *const special[] = {
    "model_type", "architectures", "rms_norm_eps", "mamba_dt_rank",
    "dtype",      "torch_dtype",   "eos_token_id", "layers_block_type",
};

/* Fields that would change the arithmetic if they had another value than the one that is built. */
static const struct {
    const char *name;
    const char *json;
} fixed[] = {
    {"hidden_act", "\"silu\""},
    {"mamba_inner_layernorms", "true"},
    {"chunk_size_feed_forward", "0"},
    {"pruned_heads", "{}"},
};

/* Accepted with any value: training, choice of kernels, labels and bookkeeping. None reaches a logit. */
static const char *const inert[] = {
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_attn_implementation_internal",
    "_commit_hash",
    "_name_or_path",
    "attention_dropout",
    "attn_implementation",
    "auto_map",
    "calc_logits_for_entire_prompt",
    "finetuning_task",
    "id2label",
    "initializer_range",
    "label2id",
    "num_labels",
    "num_logits_to_keep",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "prefix",
    "problem_type",
    "return_dict",
    "return_dict_in_generate",
    "router_aux_loss_coef",
    "sep_token_id",
    "task_specific_params",
    "tokenizer_class",
    "torchscript",
    "transformers_version",
    "unsloth_fixed",
    "unsloth_version",
    "use_associative_scan",
    "use_cache",
    "use_mamba_kernels",
    "use_mambapy",
};

#define COUNT(array) ((int64_t)(sizeof(array) / sizeof(array)[0]))

static int64_t *raw_at(raw_config *raw, size_t offset) { return (int64_t *)(void *)((char *)raw + offset); }

static ls_status fail_value(ls_error *err, ls_status status, const char *field, const json_t *value,
                            const char *expected) {
    char shown[LS_JSON_SHOW_MAX];
    return LS_FAIL(err, status, "%.200s: %s, expected %s", field, ls_json_show(value, shown), expected);
}

static ls_status check_fixed(const char *name, const json_t *value, const char *json, ls_error *err) {
    json_t *wanted = json_loads(json, JSON_DECODE_ANY, NULL);
    bool same;
    if (wanted == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "%s: cannot build the value to compare with", name);
    same = json_equal(value, wanted) != 0;
    json_decref(wanted);
    return same ? LS_OK : fail_value(err, LS_ERR_UNSUPPORTED, name, value, json);
}

static ls_status check_known(json_t *config, ls_error *err) {
    const char *name;
    json_t *value;
    json_object_foreach(config, name, value) {
        bool known = json_is_null(value) || json_is_false(value);
        ls_status status;
        for (int64_t i = 0; i < COUNT(fixed); i++)
            if (strcmp(name, fixed[i].name) == 0) {
                if ((status = check_fixed(name, value, fixed[i].json, err)) != LS_OK) return status;
                known = true;
            }
        for (int64_t i = 0; i < COUNT(integers) && !known; i++) known = strcmp(name, integers[i].name) == 0;
        for (int64_t i = 0; i < COUNT(switches) && !known; i++) known = strcmp(name, switches[i].name) == 0;
        for (int64_t i = 0; i < COUNT(special) && !known; i++) known = strcmp(name, special[i]) == 0;
        for (int64_t i = 0; i < COUNT(inert) && !known; i++) known = strcmp(name, inert[i]) == 0;
        if (!known) return fail_value(err, LS_ERR_UNSUPPORTED, name, value, "no such field, null or false");
    }
    return LS_OK;
}

static ls_status read_integer(int64_t *out, const char *name, const json_t *value, int64_t low, int64_t high,
                              ls_error *err) {
    char expected[80];
    if (json_is_integer(value) && json_integer_value(value) >= low && json_integer_value(value) <= high) {
        *out = json_integer_value(value);
        return LS_OK;
    }
    snprintf(expected, sizeof expected, "an integer in %lld..%lld", (long long)low, (long long)high);
    return fail_value(err, LS_ERR_FORMAT, name, value, expected);
}

static ls_status read_raw(raw_config *raw, const json_t *config, ls_error *err) {
    ls_status status = LS_OK;
    for (int64_t i = 0; i < COUNT(integers); i++) {
        const json_t *value = json_object_get(config, integers[i].name);
        int64_t *field = raw_at(raw, integers[i].offset);
        *field = integers[i].value;
        if (value == NULL) continue;
        if (json_is_null(value) && integers[i].null_is_absent) {
            *field = ABSENT;
            continue;
        }
        LS_TRY(read_integer(field, integers[i].name, value, integers[i].low, integers[i].high, err));
    }
    for (int64_t i = 0; i < COUNT(switches); i++) {
        const json_t *value = json_object_get(config, switches[i].name);
        int64_t *field = raw_at(raw, switches[i].offset);
        *field = value == NULL ? switches[i].value : json_is_true(value);
        if (value != NULL && !json_is_boolean(value)) {
            status = fail_value(err, LS_ERR_FORMAT, switches[i].name, value, "true or false");
            goto done;
        }
    }
done:
    return status;
}

static ls_status check_kind(const json_t *config, ls_error *err) {
    const json_t *type = json_object_get(config, "model_type");
    const json_t *names = json_object_get(config, "architectures");
    if (type == NULL) return LS_FAIL(err, LS_ERR_FORMAT, "model_type: missing, expected \"jamba\"");
    if (!json_is_string(type) || strcmp(json_string_value(type), "jamba") != 0)
        return fail_value(err, LS_ERR_UNSUPPORTED, "model_type", type, "\"jamba\"");
    if (names == NULL || json_is_null(names)) return LS_OK;
    if (!json_is_array(names)) return fail_value(err, LS_ERR_FORMAT, "architectures", names, "a list");
    for (size_t i = 0; i < json_array_size(names); i++) {
        const json_t *name = json_array_get(names, i);
        if (json_is_string(name) && strcmp(json_string_value(name), "JambaForCausalLM") == 0) return LS_OK;
    }
    if (json_array_size(names) == 0)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "architectures: an empty list, expected \"JambaForCausalLM\"");
    return fail_value(err, LS_ERR_UNSUPPORTED, "architectures", json_array_get(names, 0), "\"JambaForCausalLM\"");
}

static ls_status read_eps(float *out, const json_t *config, ls_error *err) {
    const json_t *value = json_object_get(config, "rms_norm_eps");
    double eps;
    *out = 1e-6f;
    if (value == NULL) return LS_OK;
    /* Comparing before narrowing keeps an out-of-range conversion, which C leaves undefined, from happening. */
    eps = json_number_value(value);
    if (json_is_number(value) && eps > 0.0 && eps <= 1.0) *out = (float)eps;
    if (!json_is_number(value) || !(eps > 0.0 && eps <= 1.0) || *out == 0.0f)
        return fail_value(err, LS_ERR_FORMAT, "rms_norm_eps", value, "a number above 0, at most 1, in float32");
    return LS_OK;
}

static ls_status read_dtype_field(ls_dtype *out, bool *given, const char *field, const json_t *config, ls_error *err) {
    static const struct {
        const char *name;
        ls_dtype dtype;
    } names[] = {{"float32", LS_F32}, {"bfloat16", LS_BF16}, {"float16", LS_F16}};
    const json_t *value = json_object_get(config, field);
    const char *text = json_string_value(value);
    *given = false;
    if (value == NULL || json_is_null(value)) return LS_OK;
    if (text != NULL && strncmp(text, "torch.", 6) == 0) text += 6;
    for (int64_t i = 0; i < COUNT(names) && text != NULL; i++)
        if (strcmp(text, names[i].name) == 0) {
            *out = names[i].dtype;
            *given = true;
            return LS_OK;
        }
    return fail_value(err, LS_ERR_UNSUPPORTED, field, value, "\"float32\", \"bfloat16\" or \"float16\"");
}

/* "dtype" is the newer name of "torch_dtype"; a file may carry either, or both if they agree. */
static ls_status read_dtype(ls_dtype *out, const json_t *config, ls_error *err) {
    ls_status status;
    ls_dtype older = LS_F32, newer = LS_F32;
    bool has_older, has_newer;
    LS_TRY(read_dtype_field(&older, &has_older, "torch_dtype", config, err));
    LS_TRY(read_dtype_field(&newer, &has_newer, "dtype", config, err));
    if (has_older && has_newer && older != newer) {
        status =
            LS_FAIL(err, LS_ERR_FORMAT, "dtype: %s, but torch_dtype is %s", ls_dtype_name(newer), ls_dtype_name(older));
        goto done;
    }
    *out = has_newer ? newer : older;
done:
    return status;
}

static ls_status read_dt_rank(int64_t *out, const json_t *config, int64_t hidden, ls_error *err) {
    const json_t *value = json_object_get(config, "mamba_dt_rank");
    if (value == NULL || (json_is_string(value) && strcmp(json_string_value(value), "auto") == 0)) {
        *out = (hidden + 15) / 16;
        return LS_OK;
    }
    if (json_is_string(value))
        return fail_value(err, LS_ERR_FORMAT, "mamba_dt_rank", value, "\"auto\" or a positive integer");
    return read_integer(out, "mamba_dt_rank", value, 1, INT32_MAX, err);
}

/* An absent field leaves out as it is; null and an empty list mean that there is no end token. */
static ls_status read_eos(ls_model_config *out, const json_t *config, ls_error *err) {
    const json_t *value = json_object_get(config, "eos_token_id");
    const size_t n = json_is_array(value) ? json_array_size(value) : 1;
    ls_status status = LS_OK;
    if (value == NULL) return LS_OK;
    out->n_eos = 0;
    if (json_is_null(value)) return LS_OK;
    if (n > LS_EOS_MAX)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "eos_token_id: %zu ids, the limit is %d", n, LS_EOS_MAX);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
        int64_t id = 0;
        LS_TRY(read_integer(&id, "eos_token_id", item, 0, out->vocab - 1, err));
        out->eos[out->n_eos++] = (int32_t)id;
    }
done:
    return status;
}

static ls_status read_layers(ls_model_config *out, const raw_config *raw, const json_t *config, ls_error *err) {
    const json_t *types = json_object_get(config, "layers_block_type");
    for (int32_t i = 0; i < out->n_layers; i++) {
        out->is_attention[i] = i % raw->attn_period == raw->attn_offset;
        out->is_moe[i] = out->n_experts > 1 && i % raw->expert_period == raw->expert_offset;
    }
    if (types == NULL || json_is_null(types)) return LS_OK;
    if (!json_is_array(types)) return fail_value(err, LS_ERR_FORMAT, "layers_block_type", types, "a list");
    if (json_array_size(types) != (size_t)out->n_layers)
        return LS_FAIL(err, LS_ERR_FORMAT, "layers_block_type: %zu items for %d layers", json_array_size(types),
                       out->n_layers);
    for (int32_t i = 0; i < out->n_layers; i++) {
        const json_t *type = json_array_get(types, (size_t)i);
        const char *text = json_string_value(type);
        if (text != NULL && strcmp(text, "attention") == 0) {
            out->is_attention[i] = 1;
        } else if (text != NULL && strcmp(text, "mamba") == 0) {
            out->is_attention[i] = 0;
        } else {
            return fail_value(err, LS_ERR_FORMAT, "layers_block_type", type, "\"attention\" or \"mamba\"");
        }
    }
    return LS_OK;
}

/* Rows and sizes of the largest tensors must fit the types that hold them. */
static ls_status check_products(const raw_config *raw, ls_error *err) {
    const int64_t counts[][4] = {
        {raw->vocab_size, raw->hidden_size, 1, 1},
        {raw->n_experts, raw->intermediate_size, raw->hidden_size, 1},
        {2, raw->expand, raw->hidden_size, raw->hidden_size},
        {raw->expand, raw->hidden_size, raw->d_state, 1},
        {raw->expand, raw->hidden_size, raw->d_conv, 1},
        {raw->expand, raw->hidden_size, raw->dt_rank + 2 * raw->d_state, 1},
        {raw->n_heads, raw->head_dim, raw->hidden_size, 1},
    };
    static const char *const names[] = {
        "vocab_size x hidden_size",
        "num_experts x intermediate_size x hidden_size",
        "2 x mamba_expand x hidden_size x hidden_size",
        "mamba_expand x hidden_size x mamba_d_state",
        "mamba_expand x hidden_size x mamba_d_conv",
        "mamba_expand x hidden_size x (mamba_dt_rank + 2 x mamba_d_state)",
        "num_attention_heads x head_dim x hidden_size",
    };
    const int64_t rows[] = {2 * raw->expand * raw->hidden_size, raw->dt_rank + 2 * raw->d_state,
                            raw->n_heads * raw->head_dim};
    static const char *const row_names[] = {"2 x mamba_expand x hidden_size", "mamba_dt_rank + 2 x mamba_d_state",
                                            "num_attention_heads x head_dim"};
    for (int64_t i = 0; i < COUNT(rows); i++)
        if (rows[i] > INT32_MAX)
            return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: %lld exceeds 32 bits", row_names[i], (long long)rows[i]);
    for (int64_t i = 0; i < COUNT(names); i++) {
        int64_t bytes = (int64_t)sizeof(float);
        for (int j = 0; j < 4; j++)
            if (!ls_mul_i64(bytes, counts[i][j], &bytes))
                return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: the bytes overflow 64 bits at factor %lld", names[i],
                               (long long)counts[i][j]);
    }
    return LS_OK;
}

static ls_status derive(raw_config *raw, const json_t *config, ls_error *err) {
    if (raw->n_local_experts != ABSENT && raw->n_experts != ABSENT && raw->n_local_experts != raw->n_experts)
        return LS_FAIL(err, LS_ERR_FORMAT, "num_local_experts: %lld, but num_experts is %lld",
                       (long long)raw->n_local_experts, (long long)raw->n_experts);
    if (raw->n_experts == ABSENT) raw->n_experts = raw->n_local_experts == ABSENT ? 16 : raw->n_local_experts;
    if (raw->n_experts == 1) {
        raw->top_k = 1; /* no router, so what the file says has no effect */
    } else if (raw->top_k > raw->n_experts) {
        return LS_FAIL(err, LS_ERR_FORMAT, "num_experts_per_tok: %lld exceeds num_experts %lld", (long long)raw->top_k,
                       (long long)raw->n_experts);
    }
    if (raw->expert_offset >= raw->expert_period)
        return LS_FAIL(err, LS_ERR_FORMAT, "expert_layer_offset: %lld is not below expert_layer_period %lld",
                       (long long)raw->expert_offset, (long long)raw->expert_period);
    if (raw->attn_offset >= raw->attn_period)
        return LS_FAIL(err, LS_ERR_FORMAT, "attn_layer_offset: %lld is not below attn_layer_period %lld",
                       (long long)raw->attn_offset, (long long)raw->attn_period);
    if (raw->n_kv_heads == ABSENT) raw->n_kv_heads = raw->n_heads;
    if (raw->n_heads % raw->n_kv_heads != 0)
        return LS_FAIL(err, LS_ERR_FORMAT, "num_key_value_heads: %lld does not divide num_attention_heads %lld",
                       (long long)raw->n_kv_heads, (long long)raw->n_heads);
    if (raw->head_dim == ABSENT) {
        if (raw->hidden_size % raw->n_heads != 0)
            return LS_FAIL(err, LS_ERR_FORMAT, "num_attention_heads: %lld does not divide hidden_size %lld",
                           (long long)raw->n_heads, (long long)raw->hidden_size);
        raw->head_dim = raw->hidden_size / raw->n_heads;
    }
    return read_dt_rank(&raw->dt_rank, config, raw->hidden_size, err);
}

static ls_status read_token(int32_t *out, const char *field, int64_t id, int32_t vocab, ls_error *err) {
    if (id >= vocab)
        return LS_FAIL(err, LS_ERR_FORMAT, "%s: %lld is not below vocab_size %d", field, (long long)id, vocab);
    *out = (int32_t)id;
    return LS_OK;
}

static const ls_tensor_names tensor_names = {.embed = "model.embed_tokens.weight",
                                             .final_norm = "model.final_layernorm.weight",
                                             .head = "lm_head.weight",
                                             .layers = "model.layers.",
                                             .input_norm = "input_layernorm.weight",
                                             .ffn_norm = "pre_ff_layernorm.weight",
                                             .attention = "self_attn.",
                                             .mamba = "mamba.",
                                             .ffn = "feed_forward."};

static ls_status read_config(ls_model_config *out, json_t *config, ls_error *err) {
    ls_status status;
    raw_config raw = {0};
    /* The kind goes first: fields of another model would otherwise be reported one by one. */
    LS_TRY(check_kind(config, err));
    LS_TRY(check_known(config, err));
    LS_TRY(read_raw(&raw, config, err));
    LS_TRY(derive(&raw, config, err));
    LS_TRY(check_products(&raw, err));
    out->names = &tensor_names;
    out->inner_norms = true;
    out->n_layers = (int32_t)raw.n_layers;
    out->hidden = (int32_t)raw.hidden_size;
    out->vocab = (int32_t)raw.vocab_size;
    out->ffn = (int32_t)raw.intermediate_size;
    out->n_heads = (int32_t)raw.n_heads;
    out->n_kv_heads = (int32_t)raw.n_kv_heads;
    out->head_dim = (int32_t)raw.head_dim;
    out->n_experts = (int32_t)raw.n_experts;
    out->top_k = (int32_t)raw.top_k;
    out->d_inner = (int32_t)(raw.expand * raw.hidden_size);
    out->d_state = (int32_t)raw.d_state;
    out->d_conv = (int32_t)raw.d_conv;
    out->dt_rank = (int32_t)raw.dt_rank;
    out->positions_max = raw.positions_max;
    out->conv_bias = raw.conv_bias != 0;
    out->proj_bias = raw.proj_bias != 0;
    out->tied = raw.tied != 0;
    LS_TRY(read_eps(&out->rms_eps, config, err));
    LS_TRY(read_dtype(&out->stored_dtype, config, err));
    LS_TRY(read_layers(out, &raw, config, err));
    LS_TRY(read_token(&out->bos, "bos_token_id", raw.bos, out->vocab, err));
    LS_TRY(read_token(&out->pad, "pad_token_id", raw.pad, out->vocab, err));
    if (json_object_get(config, "eos_token_id") == NULL) {
        out->n_eos = 1;
        LS_TRY(read_token(&out->eos[0], "eos_token_id (by default)", 2, out->vocab, err));
    }
    LS_TRY(read_eos(out, config, err));
done:
    return status;
}

ls_status ls_model_config_parse(ls_model_config *out, const char *json, int64_t bytes, const char *name,
                                ls_error *err) {
    ls_status status;
    json_t *config = NULL;
    ls_model_config read = {0};
    LS_TRY(ls_json_parse(&config, json, bytes, name, err));
    if ((status = read_config(&read, config, err)) != LS_OK) {
        ls_error_prefix(err, "%s", name);
        goto done;
    }
    *out = read;
done:
    ls_json_release(config);
    return status;
}

ls_status ls_model_config_parse_generation(ls_model_config *config, const char *json, int64_t bytes, const char *name,
                                           ls_error *err) {
    ls_status status;
    json_t *generation = NULL;
    ls_model_config read = *config;
    LS_TRY(ls_json_parse(&generation, json, bytes, name, err));
    if ((status = read_eos(&read, generation, err)) != LS_OK) {
        ls_error_prefix(err, "%s", name);
        goto done;
    }
    *config = read;
done:
    ls_json_release(generation);
    return status;
}

ls_status ls_model_config_open(ls_model_config *out, const char *dir, ls_error *err) {
    ls_status status;
    ls_model_config read;
    char *path = NULL, *text = NULL;
    int64_t bytes;
    const size_t path_bytes = strlen(dir) + sizeof "/generation_config.json";
    LS_TRY(ls_array_alloc((void **)&path, (int64_t)path_bytes, 1, "path", err));
    snprintf(path, path_bytes, "%s/config.json", dir);
    LS_TRY(ls_file_read(&text, &bytes, path, LS_CONFIG_BYTES_MAX, err));
    LS_TRY(ls_model_config_parse(&read, text, bytes, path, err));
    snprintf(path, path_bytes, "%s/generation_config.json", dir);
    if (ls_file_exists(path)) {
        free(text);
        LS_TRY(ls_file_read(&text, &bytes, path, LS_CONFIG_BYTES_MAX, err));
        LS_TRY(ls_model_config_parse_generation(&read, text, bytes, path, err));
    }
    *out = read;
done:
    free(text);
    free(path);
    return status;
}
