/* Fields of config.json as names for ranges. */
#include "audit/config_names.h"

#include <stdlib.h>

#include "base/file.h"
#include "json/json_node.h"

#define CONFIG_BYTES_MAX 16000000

typedef struct fields {
    const ls_node *root;
    ls_ranges *ranges;
} fields;

/* A whole number of the configuration, or the fallback where it is not there. */
static ls_status field(const fields *f, const char *key, int64_t fallback, int64_t *out, ls_error *err) {
    ls_node node;
    *out = fallback;
    if (!ls_node_get_some(f->root, key, &node)) return LS_OK;
    return ls_node_int(&node, 1, INT64_C(1) << 31, out, err);
}

static ls_status size(const fields *f, const char *name, int64_t value, ls_error *err) {
    return value > 0 ? ls_ranges_name(f->ranges, name, value, value, err) : LS_OK;
}

static ls_status ids(const fields *f, const char *name, int64_t count, ls_error *err) {
    return count > 0 ? ls_ranges_name(f->ranges, name, 0, count - 1, err) : LS_OK;
}

static ls_status attention(const fields *f, int64_t hidden, ls_error *err) {
    int64_t heads, kv_heads, head_dim;
    LS_TRY(field(f, "num_attention_heads", 0, &heads, err));
    LS_TRY(field(f, "num_key_value_heads", heads, &kv_heads, err));
    LS_TRY(field(f, "head_dim", heads > 0 ? hidden / heads : 0, &head_dim, err));
    LS_TRY(size(f, "heads", heads, err));
    LS_TRY(size(f, "kv_heads", kv_heads, err));
    LS_TRY(size(f, "head_dim", head_dim, err));
    LS_TRY(ids(f, "head", heads, err));
    return size(f, "kv_stride", kv_heads * head_dim, err);
}

/* The first of two names that is there, or the fallback. */
static ls_status either(const fields *f, const char *key, const char *other, int64_t fallback, int64_t *out,
                        ls_error *err) {
    LS_TRY(field(f, other, fallback, out, err));
    return field(f, key, *out, out, err);
}

/* Heads of Mamba-2; 0: the layers are Mamba-1's. */
static ls_status mamba2_heads(const fields *f, int64_t *out, ls_error *err) {
    LS_TRY(field(f, "num_heads", 0, out, err));
    LS_TRY(field(f, "mamba_num_heads", *out, out, err));
    return field(f, "mamba_n_heads", *out, out, err);
}

/* Sizes of a mixer with a convolution and a state; heads: those that have a scale each, 0 of Mamba-1. */
static ls_status recurrence(const fields *f, int64_t inner, int64_t states, int64_t conv, int64_t heads, int64_t groups,
                            ls_error *err) {
    /* of Mamba-2 x, B and C, of the delta rule v, q and k */
    const int64_t channels = inner + (heads > 0 ? 2 * groups * states : 0);
    LS_TRY(size(f, "d_inner", inner, err));
    LS_TRY(ids(f, "channel", channels, err));
    LS_TRY(size(f, "d_state", states, err));
    LS_TRY(size(f, "d_conv", conv, err));
    LS_TRY(size(f, "state_stride", inner * states, err));
    LS_TRY(size(f, "conv_stride", channels * (conv - 1), err));
    /* a page with the window in 16 bits, the state in 32 and the scale of each head, in words of 32 bits */
    return size(f, "slot_stride", inner * states + heads + channels * (conv - 1) / 2, err);
}

static ls_status mamba(const fields *f, int64_t hidden, ls_error *err) {
    int64_t expand, states, conv, heads, head_dim, groups;
    LS_TRY(either(f, "mamba_expand", "expand", 0, &expand, err));
    LS_TRY(field(f, "ssm_state_size", 0, &states, err));
    LS_TRY(either(f, "mamba_d_state", "state_size", states, &states, err));
    LS_TRY(either(f, "mamba_d_conv", "conv_kernel", 0, &conv, err));
    LS_TRY(mamba2_heads(f, &heads, err));
    LS_TRY(field(f, "mamba_head_dim", 0, &head_dim, err));
    LS_TRY(either(f, "mamba_n_groups", "n_groups", 1, &groups, err));
    if (expand == 0 || states == 0 || conv == 0) return LS_OK;
    return recurrence(f, head_dim > 0 ? heads * head_dim : expand * hidden, states, conv, heads, groups, err);
}

/* The gated delta rule: a state of its keys' rows for each column of the values. */
static ls_status delta_rule(const fields *f, ls_error *err) {
    int64_t conv, keys, values, key_dim, value_dim;
    LS_TRY(field(f, "linear_conv_kernel_dim", 0, &conv, err));
    LS_TRY(field(f, "linear_num_key_heads", 0, &keys, err));
    LS_TRY(field(f, "linear_num_value_heads", 0, &values, err));
    LS_TRY(field(f, "linear_key_head_dim", 0, &key_dim, err));
    LS_TRY(field(f, "linear_value_head_dim", 0, &value_dim, err));
    if (conv == 0 || keys == 0 || values == 0 || key_dim == 0 || value_dim == 0) return LS_OK;
    return recurrence(f, values * value_dim, key_dim, conv, values, keys, err);
}

static ls_status name_all(const fields *f, const ls_config_sizes *sizes, ls_error *err) {
    int64_t hidden, wide, vocab, longest, experts;
    const int64_t batch = sizes->batch > 0 ? sizes->batch : 256, pool = sizes->pool > 0 ? sizes->pool : 65536;
    LS_TRY(field(f, "hidden_size", 0, &hidden, err));
    LS_TRY(field(f, "intermediate_size", 0, &wide, err));
    LS_TRY(field(f, "vocab_size", 0, &vocab, err));
    LS_TRY(field(f, "max_position_embeddings", 4096, &longest, err));
    LS_TRY(field(f, "num_experts", 0, &experts, err));
    const int64_t length = sizes->length > 0 ? sizes->length : longest;
    LS_TRY(size(f, "hidden", hidden, err));
    LS_TRY(size(f, "intermediate", wide, err));
    LS_TRY(size(f, "vocab", vocab, err));
    LS_TRY(ids(f, "expert", experts, err));
    LS_TRY(size(f, "batch", batch, err));
    LS_TRY(size(f, "length", length, err));
    LS_TRY(size(f, "tokens", batch * length, err));
    LS_TRY(size(f, "pool", pool, err));
    LS_TRY(ids(f, "sequence", batch, err));
    LS_TRY(ids(f, "position", length, err));
    LS_TRY(ids(f, "token", batch * length, err));
    LS_TRY(ids(f, "row", batch * length, err));
    LS_TRY(ids(f, "slot", pool, err));
    LS_TRY(ids(f, "page", pool, err));
    LS_TRY(ids(f, "block", pool, err));
    LS_TRY(attention(f, hidden, err));
    LS_TRY(mamba(f, hidden, err));
    return delta_rule(f, err);
}

ls_status ls_config_names(ls_ranges *ranges, const char *path, const ls_config_sizes *sizes, ls_error *err) {
    ls_status status;
    char *text = NULL;
    int64_t bytes;
    ls_json_doc *doc = NULL;
    LS_TRY_DONE(ls_file_read(&text, &bytes, path, CONFIG_BYTES_MAX, err));
    LS_TRY_DONE(ls_json_doc_open(&doc, text, bytes, path, err));
    const ls_node root = ls_json_root(doc);
    const fields f = {&root, ranges};
    status = name_all(&f, sizes, err);
done:
    ls_json_doc_free(doc);
    free(text);
    return status;
}
