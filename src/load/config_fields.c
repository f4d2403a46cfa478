/* The tools by which architectures read config.json. Owns the tables of fields that every such file may have. */
#include "load/config_fields.h"

#include <float.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "json/json_read.h"

#define COUNT(array) ((int64_t)(sizeof(array) / sizeof(array)[0]))

/* Read by model_config.c and by calls of this file. */
static const char *const shared_special[] = {
    "model_type", "architectures", "dtype", "torch_dtype", "eos_token_id", NULL,
};

static const ls_field_fixed shared_fixed[] = {
    {"chunk_size_feed_forward", "0"}, {"pretraining_tp", "1"}, {"pruned_heads", "{}"}, {NULL, NULL}};

/* How tokens are drawn where nobody says otherwise, which transformers 4 wrote here: no log-probability needs it. */
static const char *const drawing[] = {
    "bad_words_ids",
    "begin_suppress_tokens",
    "cache_implementation",
    "constraints",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "epsilon_cutoff",
    "eta_cutoff",
    "exponential_decay_length_penalty",
    "force_words_ids",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "guidance_scale",
    "length_penalty",
    "max_length",
    "max_new_tokens",
    "min_length",
    "min_new_tokens",
    "min_p",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_logits",
    "output_scores",
    "penalty_alpha",
    "remove_invalid_values",
    "renormalize_logits",
    "repetition_penalty",
    "sequence_bias",
    "suppress_tokens",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    NULL,
};

/* Training, choice of kernels, labels and bookkeeping. */
static const char *const shared_inert[] = {
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_attn_implementation_internal",
    "_commit_hash",
    "_name_or_path",
    "attn_implementation",
    "auto_map",
    "finetuning_task",
    "gradient_checkpointing",
    "id2label",
    "initializer_range",
    "is_decoder",
    "label2id",
    "num_labels",
    "output_attentions",
    "output_hidden_states",
    "prefix",
    "problem_type",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "task_specific_params",
    "tokenizer_class",
    "torchscript",
    "transformers_version",
    "unsloth_fixed",
    "unsloth_version",
    "use_cache",
    NULL,
};

static ls_status fail_value(ls_error *err, ls_status status, const char *field, const json_t *value,
                            const char *expected) {
    char shown[LS_JSON_SHOW_MAX];
    return LS_FAIL(err, status, "%.200s: %s, expected %s", field, ls_json_show(value, shown), expected);
}

/* ---- tables ---- */

static bool is_listed(const char *const *names, const char *name) {
    for (int64_t i = 0; names[i] != NULL; i++)
        if (strcmp(names[i], name) == 0) return true;
    return false;
}

/* Whether the name is in the table; then its value must be one of those there. */
static ls_status check_fixed(bool *listed, const ls_field_fixed *fixed, const char *name, const json_t *value,
                             ls_error *err) {
    const char *expected = NULL;
    for (int64_t i = 0; fixed[i].name != NULL; i++) {
        json_t *wanted;
        bool same;
        if (strcmp(fixed[i].name, name) != 0) continue;
        wanted = json_loads(fixed[i].json, JSON_DECODE_ANY, NULL);
        if (wanted == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "%s: cannot build the value to compare with", name);
        same = json_equal(value, wanted) != 0;
        json_decref(wanted);
        if (expected == NULL) expected = fixed[i].json;
        if (same) {
            *listed = true;
            return LS_OK;
        }
    }
    return expected == NULL ? LS_OK : fail_value(err, LS_ERR_UNSUPPORTED, name, value, expected);
}

/* Weights of fewer bits, by whatever method: the one sentence for all. */
static ls_status refuse_quantised(const json_t *config, ls_error *err) {
    static const char *const names[] = {"quantization_config", "compression_config"};
    char shown[LS_JSON_SHOW_MAX];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const json_t *value = json_object_get(config, names[i]), *method = json_object_get(value, "quant_method");
        if (value == NULL || json_is_null(value) || json_is_false(value)) continue;
        return LS_FAIL(err, LS_ERR_UNSUPPORTED,
                       "%s: %s%s%.60s: the weights are quantised; F32, BF16 and F16 are read: take the model that was "
                       "quantised, or: python3 -c \"from transformers import AutoModelForCausalLM as M; "
                       "M.from_pretrained('DIRECTORY').dequantize().save_pretrained('OUT')\"",
                       names[i], ls_json_show(value, shown), json_is_string(method) ? ", quant_method " : "",
                       json_is_string(method) ? json_string_value(method) : "");
    }
    return LS_OK;
}

static bool is_honoured(const ls_field_tables *fields, const char *name) {
    for (int64_t i = 0; fields->integers[i].name != NULL; i++)
        if (strcmp(fields->integers[i].name, name) == 0) return true;
    for (int64_t i = 0; fields->switches[i].name != NULL; i++)
        if (strcmp(fields->switches[i].name, name) == 0) return true;
    return is_listed(fields->special, name) || is_listed(shared_special, name);
}

static ls_status check_known(json_t *config, const ls_field_tables *fields, ls_error *err) {
    const char *name;
    json_t *value;
    LS_TRY(refuse_quantised(config, err));
    json_object_foreach(config, name, value) {
        bool known = json_is_null(value) || json_is_false(value);
        LS_TRY(check_fixed(&known, shared_fixed, name, value, err));
        LS_TRY(check_fixed(&known, fields->fixed, name, value, err));
        known = known || is_honoured(fields, name) || is_listed(shared_inert, name) || is_listed(drawing, name) ||
                is_listed(fields->inert, name);
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
    /* 64.0, as JSON of other languages has it. */
    if (json_is_real(value) && json_real_value(value) >= (double)low && json_real_value(value) <= 0x1p53 &&
        json_real_value(value) <= (double)high && json_real_value(value) == (double)(int64_t)json_real_value(value)) {
        *out = (int64_t)json_real_value(value);
        return LS_OK;
    }
    snprintf(expected, sizeof expected, "an integer in %lld..%lld", (long long)low, (long long)high);
    return fail_value(err, LS_ERR_FORMAT, name, value, expected);
}

static int64_t *raw_at(void *raw, size_t offset) { return (int64_t *)(void *)((char *)raw + offset); }

ls_status ls_field_read_tables(void *raw, json_t *config, const ls_field_tables *fields, ls_error *err) {
    LS_TRY(check_known(config, fields, err));
    for (const ls_field_integer *f = fields->integers; f->name != NULL; f++) {
        const json_t *value = json_object_get(config, f->name);
        int64_t *field = raw_at(raw, f->offset);
        *field = json_is_null(value) && f->null_is_absent ? LS_FIELD_ABSENT : f->value;
        if (value == NULL || (json_is_null(value) && f->null_is_absent)) continue;
        LS_TRY(read_integer(field, f->name, value, f->low, f->high, err));
    }
    for (const ls_field_switch *f = fields->switches; f->name != NULL; f++) {
        const json_t *value = json_object_get(config, f->name);
        *raw_at(raw, f->offset) = value == NULL ? f->value : json_is_true(value);
        if (value != NULL && !json_is_boolean(value))
            return fail_value(err, LS_ERR_FORMAT, f->name, value, "true or false");
    }
    return LS_OK;
}

/* ---- single fields ---- */

/* A number in (0, most], that float32 can hold. */
static ls_status read_positive(float *out, const json_t *config, const char *field, float by_default, double most,
                               const char *expected, ls_error *err) {
    const json_t *value = json_object_get(config, field);
    double number;
    *out = by_default;
    if (value == NULL) return LS_OK;
    /* Comparing before narrowing keeps an out-of-range conversion, which C leaves undefined, from happening. */
    number = json_number_value(value);
    if (json_is_number(value) && number > 0.0 && number <= most) *out = (float)number;
    if (!json_is_number(value) || !(number > 0.0 && number <= most) || *out == 0.0f)
        return fail_value(err, LS_ERR_FORMAT, field, value, expected);
    return LS_OK;
}

ls_status ls_field_read_eps(float *out, const json_t *config, const char *field, float by_default, ls_error *err) {
    return read_positive(out, config, field, by_default, 1.0, "a number above 0, at most 1, in float32", err);
}

ls_status ls_field_read_factor(float *out, const json_t *config, const char *field, float by_default, ls_error *err) {
    return read_positive(out, config, field, by_default, 1e6, "a number above 0, at most 1e6, in float32", err);
}

ls_status ls_field_read_auto(int64_t *out, const json_t *config, const char *field, int64_t by_default, ls_error *err) {
    const json_t *value = json_object_get(config, field);
    if (value == NULL || (json_is_string(value) && strcmp(json_string_value(value), "auto") == 0)) {
        *out = by_default;
        return LS_OK;
    }
    if (json_is_string(value)) return fail_value(err, LS_ERR_FORMAT, field, value, "\"auto\" or a positive integer");
    return read_integer(out, field, value, 1, INT32_MAX, err);
}

ls_status ls_field_read_optional(int64_t *out, const json_t *config, const char *field, int64_t by_default,
                                 ls_error *err) {
    const json_t *value = json_object_get(config, field);
    *out = value == NULL ? by_default : LS_FIELD_ABSENT;
    return value == NULL || json_is_null(value) ? LS_OK : read_integer(out, field, value, 1, INT32_MAX, err);
}

ls_status ls_field_expect_empty(const json_t *config, const char *field, ls_error *err) {
    const json_t *value = json_object_get(config, field);
    const bool is_empty = value == NULL || json_is_null(value) || (json_is_array(value) && json_array_size(value) == 0);
    return is_empty ? LS_OK : fail_value(err, LS_ERR_UNSUPPORTED, field, value, "an empty list");
}

ls_status ls_field_read_pairs(uint8_t *out, int64_t n, const json_t *config, const char *field,
                              const char *const words[2], ls_error *err) {
    const json_t *list = json_object_get(config, field);
    if (list == NULL || json_is_null(list)) return LS_OK;
    if (!json_is_array(list)) return fail_value(err, LS_ERR_FORMAT, field, list, "a list");
    if (json_array_size(list) != (size_t)n)
        return LS_FAIL(err, LS_ERR_FORMAT, "%s: %zu items for %lld layers", field, json_array_size(list), (long long)n);
    for (int64_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(list, (size_t)i);
        const char *text = json_string_value(item);
        const bool first = text != NULL && strcmp(text, words[0]) == 0;
        if (!first && (text == NULL || strcmp(text, words[1]) != 0)) {
            char expected[80];
            snprintf(expected, sizeof expected, "\"%s\" or \"%s\"", words[1], words[0]);
            return fail_value(err, LS_ERR_FORMAT, field, item, expected);
        }
        out[i] = !first;
    }
    return LS_OK;
}

ls_status ls_field_read_word(int64_t *out, const json_t *config, const char *field, const char *const *words,
                             int64_t by_default, ls_error *err) {
    const json_t *value = json_object_get(config, field);
    char expected[80];
    size_t used = 0;
    *out = by_default;
    if (value == NULL || json_is_null(value)) return LS_OK;
    for (int64_t i = 0; words[i] != NULL; i++) {
        if (json_is_string(value) && strcmp(json_string_value(value), words[i]) == 0) {
            *out = i;
            return LS_OK;
        }
        used += (size_t)snprintf(expected + used, sizeof expected - used, "%s\"%s\"", i > 0 ? " or " : "", words[i]);
        LS_ASSERT(used < sizeof expected, "%s: too many words", field);
    }
    return fail_value(err, LS_ERR_UNSUPPORTED, field, value, expected);
}

/* The letter of a word; 0: none. */
static char letter_of(const char *word, const char *letters, const char *const kinds[][3]) {
    for (size_t k = 0; word != NULL && letters[k] != '\0'; k++)
        for (size_t i = 0; kinds[k][i] != NULL; i++)
            if (strcmp(word, kinds[k][i]) == 0) return letters[k];
    return '\0';
}

static ls_status read_pattern(char *out, int64_t n_max, const char *field, const json_t *value, const char *letters,
                              ls_error *err) {
    const char *text = json_string_value(value);
    if (text == NULL || text[0] == '\0' || strlen(text) > (size_t)n_max || text[strspn(text, letters)] != '\0') {
        char expected[80];
        snprintf(expected, sizeof expected, "1 to %lld of the letters %s", (long long)n_max, letters);
        return fail_value(err, LS_ERR_FORMAT, field, value, expected);
    }
    memcpy(out, text, strlen(text) + 1);
    return LS_OK;
}

ls_status ls_field_read_kinds(char *out, int64_t n_max, const json_t *config, const char *field, const char *old,
                              const char *letters, const char *const kinds[][3], ls_error *err) {
    const json_t *list = json_object_get(config, field), *text = json_object_get(config, old);
    const bool has_list = list != NULL && !json_is_null(list), has_text = text != NULL && !json_is_null(text);
    const size_t n = json_array_size(list);
    out[0] = '\0';
    if (has_text) LS_TRY(read_pattern(out, n_max, old, text, letters, err));
    if (!has_list)
        return has_text ? LS_OK : LS_FAIL(err, LS_ERR_FORMAT, "%s: missing, expected a list of layers", field);
    if (!json_is_array(list) || n == 0 || n > (size_t)n_max)
        return fail_value(err, LS_ERR_FORMAT, field, list, "a list of layers");
    if (has_text && strlen(out) != n)
        return LS_FAIL(err, LS_ERR_FORMAT, "%s: %zu layers, but %s has %zu", field, n, old, strlen(out));
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(list, i);
        const char letter = letter_of(json_string_value(item), letters, kinds);
        if (letter == '\0') return fail_value(err, LS_ERR_FORMAT, field, item, "a kind of layer that is built");
        if (has_text && out[i] != letter)
            return LS_FAIL(err, LS_ERR_FORMAT, "%s: layer %zu is '%c', but '%c' in %s", field, i, letter, out[i], old);
        out[i] = letter;
    }
    out[n] = '\0';
    return LS_OK;
}

ls_status ls_field_read_marks(uint8_t *out, int64_t n, const json_t *config, const char *field, ls_error *err) {
    const json_t *list = json_object_get(config, field);
    if (list == NULL || json_is_null(list)) return LS_OK;
    if (!json_is_array(list)) return fail_value(err, LS_ERR_FORMAT, field, list, "a list");
    for (size_t i = 0; i < json_array_size(list); i++) {
        int64_t at = 0;
        LS_TRY(read_integer(&at, field, json_array_get(list, i), 0, n - 1, err));
        out[at] = 1;
    }
    return LS_OK;
}

/* Infinity comes as a string (json/json_words.h). */
static bool read_limit(float *out, const json_t *value) {
    const json_t *tagged = json_object_get(value, "__float__");
    const char *word = json_string_value(tagged != NULL ? tagged : value);
    const double x = json_number_value(value);
    if (word != NULL && strcmp(word, "Infinity") == 0) {
        *out = INFINITY;
        return true;
    }
    if (!json_is_number(value) || !(x >= 0.0 && x <= (double)FLT_MAX)) return false;
    *out = (float)x;
    return true;
}

ls_status ls_field_read_limits(float *low, float *high, const json_t *config, const char *field, ls_error *err) {
    const json_t *list = json_object_get(config, field);
    float a, b;
    if (list == NULL) return LS_OK;
    if (json_array_size(list) != 2 || !read_limit(&a, json_array_get(list, 0)) ||
        !read_limit(&b, json_array_get(list, 1)) || !(b > 0.0f && a <= b && a <= FLT_MAX))
        return fail_value(err, LS_ERR_FORMAT, field, list,
                          "two numbers in ascending order, of which the last may be Infinity");
    *low = a;
    *high = b;
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

/* A file may carry either name, or both if they agree. */
ls_status ls_field_read_dtype(ls_model_config *out, const json_t *config, ls_error *err) {
    ls_dtype older = LS_F32, newer = LS_F32;
    bool has_older, has_newer;
    LS_TRY(read_dtype_field(&older, &has_older, "torch_dtype", config, err));
    LS_TRY(read_dtype_field(&newer, &has_newer, "dtype", config, err));
    if (has_older && has_newer && older != newer)
        return LS_FAIL(err, LS_ERR_FORMAT, "dtype: %s, but torch_dtype is %s", ls_dtype_name(newer),
                       ls_dtype_name(older));
    out->stored_dtype = has_newer ? newer : older;
    return LS_OK;
}

ls_status ls_field_read_eos(ls_model_config *out, const json_t *config, ls_error *err) {
    const json_t *value = json_object_get(config, "eos_token_id");
    const size_t n = json_is_array(value) ? json_array_size(value) : 1;
    if (value == NULL) return LS_OK;
    out->has_eos = true;
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
    return LS_OK;
}

static ls_status check_token(int32_t *out, const char *field, int64_t id, int32_t vocab, ls_error *err) {
    if (id >= vocab)
        return LS_FAIL(err, LS_ERR_FORMAT, "%s: %lld is not below vocab_size %d", field, (long long)id, vocab);
    *out = (int32_t)id;
    return LS_OK;
}

ls_status ls_field_read_tokens(ls_model_config *out, const json_t *config, int64_t bos, int64_t pad,
                               int64_t eos_by_default, ls_error *err) {
    LS_TRY(check_token(&out->bos, "bos_token_id", bos, out->vocab, err));
    LS_TRY(check_token(&out->pad, "pad_token_id", pad, out->vocab, err));
    if (json_object_get(config, "eos_token_id") == NULL && eos_by_default != LS_FIELD_ABSENT) {
        out->n_eos = 1;
        LS_TRY(check_token(&out->eos[0], "eos_token_id (by default)", eos_by_default, out->vocab, err));
    }
    return ls_field_read_eos(out, config, err);
}

/* ---- sizes ---- */

ls_status ls_field_derive_heads(int64_t *n_kv_heads, int64_t *head_dim, int64_t n_heads, int64_t hidden,
                                ls_error *err) {
    if (*n_kv_heads == LS_FIELD_ABSENT) *n_kv_heads = n_heads;
    if (n_heads % *n_kv_heads != 0)
        return LS_FAIL(err, LS_ERR_FORMAT, "num_key_value_heads: %lld does not divide num_attention_heads %lld",
                       (long long)*n_kv_heads, (long long)n_heads);
    if (*head_dim != LS_FIELD_ABSENT) return LS_OK;
    if (hidden % n_heads != 0)
        return LS_FAIL(err, LS_ERR_FORMAT, "num_attention_heads: %lld does not divide hidden_size %lld",
                       (long long)n_heads, (long long)hidden);
    *head_dim = hidden / n_heads;
    return LS_OK;
}

ls_status ls_field_check_rows(const ls_field_rows *rows, int64_t n, ls_error *err) {
    for (int64_t i = 0; i < n; i++)
        if (rows[i].rows > INT32_MAX)
            return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: %lld exceeds 32 bits", rows[i].name, (long long)rows[i].rows);
    return LS_OK;
}

ls_status ls_field_check_products(const ls_field_product *products, int64_t n, ls_error *err) {
    for (int64_t i = 0; i < n; i++) {
        int64_t bytes = (int64_t)sizeof(float);
        for (int j = 0; j < 4; j++)
            if (!ls_mul_i64(bytes, products[i].factors[j], &bytes))
                return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: the bytes overflow 64 bits at factor %lld",
                               products[i].name, (long long)products[i].factors[j]);
    }
    return LS_OK;
}
