/* lockstep inspect: what a checkpoint is and what it costs: configuration, tensors, memory per sequence, and the first
 * pool entry whose offset no longer fits 32 bits. */
#include <argp.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "json/json_out.h"
#include "model/cache.h"
#include "model/model.h"
#include "op/choice.h"

typedef struct inspect_options {
    const char *model;
    bool json, tensors;
    ls_dtype dtype;
    ls_status status;
    ls_error *err;
} inspect_options;

/* A pooled tensor, its stride in the elements a kernel would count in, and where 32-bit products first wrap. */
typedef struct pool_row {
    char name[32];
    const char *element;
    int64_t stride_bytes, element_bytes;
} pool_row;

static int64_t first_bad(int64_t stride_elements, int32_t bits) {
    return ((int64_t)1 << bits) / stride_elements + 1 - (((int64_t)1 << bits) % stride_elements == 0);
}

typedef struct summary {
    const ls_model_config *config;
    const ls_checkpoint *checkpoint;
    int64_t n_parameters, tensor_bytes;
    int64_t n_attention, n_mamba, n_moe, n_windowed, window_max;
    ls_slot_layout slot;
    int64_t state_bytes, kv_token_bytes;
    pool_row pools[LS_STATE_TENSORS_MAX + 1];
    int64_t n_pools; /* without pages where the architecture has no attention */
} summary;

static void summarise(summary *s, const ls_model_config *c, const ls_checkpoint *checkpoint, ls_dtype dtype) {
    memset(s, 0, sizeof *s);
    s->config = c;
    s->checkpoint = checkpoint;
    for (int64_t i = 0; i < ls_checkpoint_count(checkpoint); i++) {
        const ls_tensor_view *view = ls_checkpoint_at(checkpoint, i);
        const bool duplicate = c->tied && strcmp(view->name, c->names->head) == 0;
        if (!duplicate) s->n_parameters += view->n_elements;
        s->tensor_bytes += view->bytes;
    }
    for (int32_t i = 0; i < c->n_layers; i++) {
        s->n_attention += c->is_attention[i];
        s->n_windowed += c->window[i] > 0;
        if (c->window[i] > s->window_max) s->window_max = c->window[i];
        s->n_moe += c->is_moe[i];
    }
    for (int32_t i = 0; i < c->n_layers; i++) s->n_mamba += ls_config_has_slots(c, i);
    ls_slot_layout_make(&s->slot, c, dtype, 1);
    s->state_bytes = s->slot.bytes * s->n_mamba;
    s->kv_token_bytes = ls_page_bytes(c, dtype, 1) * s->n_attention;
    for (int64_t i = s->slot.n - 1; i >= 0 && s->n_mamba > 0; i--) {
        const ls_state_tensor *t = &s->slot.tensor[i];
        pool_row *row = &s->pools[s->n_pools++];
        snprintf(row->name, sizeof row->name, "Mamba %s state", t->name);
        row->element = ls_dtype_name(t->dtype);
        row->stride_bytes = s->slot.bytes;
        row->element_bytes = ls_dtype_bytes(t->dtype);
    }
    if (c->n_heads > 0)
        s->pools[s->n_pools++] =
            (pool_row){"KV pages of 16", ls_dtype_name(dtype), ls_page_bytes(c, dtype, 16), ls_dtype_bytes(dtype)};
}

static void print_dims(const ls_tensor_view *view) {
    putchar('[');
    for (int32_t d = 0; d < view->n_dims; d++) printf("%s%lld", d > 0 ? ", " : "", (long long)view->dims[d]);
    putchar(']');
}

static bool is_delta(const ls_model_config *c) { return ls_config_recurrence(c) == LS_RECURRENCE_DELTA; }

static const char *layer_kind(const ls_model_config *c, int32_t i) {
    static const char *const names[3][2] = {{"M", "Me"}, {"A", "Ae"}, {"D", "De"}};
    const int mixer = c->is_attention[i] ? 1 : is_delta(c) ? 2 : 0;
    return c->no_mixer[i] ? "F" : names[mixer][c->is_moe[i]];
}

static void print_state(const summary *s) {
    printf("  state      %lld bytes: %lld layers of ", (long long)s->state_bytes, (long long)s->n_mamba);
    for (int64_t i = 0; i < s->slot.n; i++)
        printf("%s%s %lld", i > 0 ? " + " : "", s->slot.tensor[i].name, (long long)s->slot.tensor[i].bytes);
    printf(" (slot stride %lld bytes, %lld f32 words)\n", (long long)s->slot.bytes, (long long)(s->slot.bytes / 4));
}

static void print_text(const summary *s, const inspect_options *o) {
    const ls_model_config *c = s->config;
    char eps[LS_DOUBLE_TEXT_MAX];
    ls_double_show(eps, ls_float_plain(c->rms_eps));
    printf("model        %s\n", o->model);
    printf("layers       %d: %lld attention, %lld %s, %lld with experts\n            ", c->n_layers,
           (long long)s->n_attention, (long long)s->n_mamba, is_delta(c) ? "delta rule" : "Mamba", (long long)s->n_moe);
    for (int32_t i = 0; i < c->n_layers; i++) printf(" %s", layer_kind(c, i));
    printf("   (%s, A attention, F feed-forward alone, e experts)\n", is_delta(c) ? "D delta rule" : "M Mamba");
    printf("hidden       %d, feed-forward %d, vocabulary %d, head %s, rms eps %s\n", c->hidden, c->ffn, c->vocab,
           c->tied ? "tied to the embedding" : "separate", eps);
    if (c->n_heads > 0)
        printf("attention    %d heads, %d KV heads, head dim %d%s%s%s%s\n", c->n_heads, c->n_kv_heads, c->head_dim,
               c->rope.half > 0 ? ", rotated by position" : "", c->head_norms ? ", heads of q and k normed" : "",
               c->qkv_bias ? ", biases" : "", c->head_gates ? ", output gates" : "");
    if (s->n_windowed > 0)
        printf("windows      %lld layers, of up to %lld positions\n", (long long)s->n_windowed,
               (long long)s->window_max);
    if (s->n_mamba > 0 && is_delta(c))
        printf("delta rule   %d key heads of %d, %d value heads of %d, d_conv %d\n", c->delta_key_heads, c->d_state,
               c->delta_heads, c->d_inner / c->delta_heads, c->d_conv);
    else if (s->n_mamba > 0 && c->ssd_heads > 0)
        printf(
            "Mamba-2      d_inner %d, %d heads, %d groups, d_state %d, d_conv %d, conv bias %s, projection bias %s\n",
            c->d_inner, c->ssd_heads, c->ssd_groups, c->d_state, c->d_conv, c->conv_bias ? "yes" : "no",
            c->proj_bias ? "yes" : "no");
    else if (s->n_mamba > 0)
        printf("Mamba        d_inner %d, d_state %d, d_conv %d, dt_rank %d, conv bias %s, projection bias %s\n",
               c->d_inner, c->d_state, c->d_conv, c->dt_rank, c->conv_bias ? "yes" : "no", c->proj_bias ? "yes" : "no");
    if (c->ffn > 0) printf("experts      %d, top %d\n", c->n_experts, c->top_k);
    printf("tensors      %lld, %lld parameters, %lld bytes\n", (long long)ls_checkpoint_count(s->checkpoint),
           (long long)s->n_parameters, (long long)s->tensor_bytes);
    for (int64_t i = 0; o->tensors && i < ls_checkpoint_count(s->checkpoint); i++) {
        const ls_tensor_view *view = ls_checkpoint_at(s->checkpoint, i);
        printf("  %-4s ", ls_st_dtype_name(view->dtype));
        printf("%s ", view->name);
        print_dims(view);
        putchar('\n');
    }
    printf("\nmemory of one sequence, activations %s\n", ls_dtype_name(o->dtype));
    if (s->n_mamba > 0) print_state(s);
    printf("  KV         %lld bytes a token\n", (long long)s->kv_token_bytes);
    printf("\nfirst entry that 32-bit arithmetic breaks (element offset = entry * stride)\n");
    printf("  %-18s %-7s %12s %14s %14s\n", "pool", "element", "stride", "past 2^31", "past 2^32");
    for (int64_t i = 0; i < s->n_pools; i++) {
        const int64_t stride = s->pools[i].stride_bytes / s->pools[i].element_bytes;
        printf("  %-18s %-7s %12lld %14lld %14lld\n", s->pools[i].name, s->pools[i].element, (long long)stride,
               (long long)first_bad(stride, 31), (long long)first_bad(stride, 32));
    }
}

static void print_json(const summary *s, const inspect_options *o) {
    const ls_model_config *c = s->config;
    ls_json_out json;
    ls_json_init(&json, stdout);
    ls_json_begin_object(&json, NULL);
    ls_json_string(&json, "model", o->model);
    ls_json_begin_object(&json, "config");
    ls_json_int(&json, "n_layers", c->n_layers);
    ls_json_int(&json, "hidden", c->hidden);
    ls_json_int(&json, "ffn", c->ffn);
    ls_json_int(&json, "vocab", c->vocab);
    ls_json_int(&json, "n_heads", c->n_heads);
    ls_json_int(&json, "n_kv_heads", c->n_kv_heads);
    ls_json_int(&json, "head_dim", c->head_dim);
    ls_json_int(&json, "d_inner", c->d_inner);
    ls_json_int(&json, "d_state", c->d_state);
    ls_json_int(&json, "d_conv", c->d_conv);
    ls_json_int(&json, "dt_rank", c->dt_rank);
    ls_json_int(&json, "ssd_heads", c->ssd_heads);
    ls_json_int(&json, "ssd_groups", c->ssd_groups);
    ls_json_int(&json, "delta_heads", c->delta_heads);
    ls_json_int(&json, "delta_key_heads", c->delta_key_heads);
    ls_json_int(&json, "n_experts", c->n_experts);
    ls_json_int(&json, "top_k", c->top_k);
    ls_json_bool(&json, "conv_bias", c->conv_bias);
    ls_json_bool(&json, "proj_bias", c->proj_bias);
    ls_json_bool(&json, "tied", c->tied);
    ls_json_int(&json, "rotated_dims", 2 * c->rope.half);
    ls_json_bool(&json, "head_norms", c->head_norms);
    ls_json_bool(&json, "head_gates", c->head_gates);
    ls_json_bool(&json, "norms_above_one", c->norms_above_one);
    ls_json_bool(&json, "qkv_bias", c->qkv_bias);
    ls_json_double(&json, "rms_eps", ls_float_plain(c->rms_eps));
    ls_json_begin_array(&json, "layers");
    for (int32_t i = 0; i < c->n_layers; i++) {
        ls_json_begin_object(&json, NULL);
        ls_json_string(&json, "mixer",
                       c->no_mixer[i]       ? "none"
                       : c->is_attention[i] ? "attention"
                       : is_delta(c)        ? "delta"
                                            : "mamba");
        if (c->window[i] > 0) ls_json_int(&json, "window", c->window[i]);
        ls_json_string(&json, "ffn", c->ffn == 0 || c->no_ffn[i] ? "none" : c->is_moe[i] ? "experts" : "dense");
        ls_json_end_object(&json);
    }
    ls_json_end_array(&json);
    ls_json_end_object(&json);
    ls_json_int(&json, "parameters", s->n_parameters);
    ls_json_int(&json, "tensor_bytes", s->tensor_bytes);
    ls_json_begin_array(&json, "tensors");
    for (int64_t i = 0; i < ls_checkpoint_count(s->checkpoint); i++) {
        const ls_tensor_view *view = ls_checkpoint_at(s->checkpoint, i);
        ls_json_begin_object(&json, NULL);
        ls_json_string(&json, "name", view->name);
        ls_json_string(&json, "dtype", ls_st_dtype_name(view->dtype));
        ls_json_begin_array(&json, "shape");
        for (int32_t d = 0; d < view->n_dims; d++) ls_json_int(&json, NULL, view->dims[d]);
        ls_json_end_array(&json);
        ls_json_end_object(&json);
    }
    ls_json_end_array(&json);
    ls_json_begin_object(&json, "sequence");
    ls_json_string(&json, "activations", ls_dtype_name(o->dtype));
    ls_json_int(&json, "state_bytes", s->state_bytes);
    ls_json_int(&json, "slot_stride_bytes", s->slot.bytes);
    ls_json_int(&json, "kv_bytes_per_token", s->kv_token_bytes);
    ls_json_end_object(&json);
    ls_json_begin_array(&json, "pools");
    for (int64_t i = 0; i < s->n_pools; i++) {
        const int64_t stride = s->pools[i].stride_bytes / s->pools[i].element_bytes;
        ls_json_begin_object(&json, NULL);
        ls_json_string(&json, "pool", s->pools[i].name);
        ls_json_string(&json, "element", s->pools[i].element);
        ls_json_int(&json, "stride", stride);
        ls_json_int(&json, "first_past_2_31", first_bad(stride, 31));
        ls_json_int(&json, "first_past_2_32", first_bad(stride, 32));
        ls_json_end_object(&json);
    }
    ls_json_end_array(&json);
    ls_json_end_object(&json);
    ls_json_newline(&json);
}

static error_t on_inspect_option(int key, char *text, struct argp_state *state) {
    inspect_options *o = state->input;
    switch (key) {
        case 'm': o->model = text; return 0;
        case 'j': o->json = true; return 0;
        case 't': o->tensors = true; return 0;
        case 'd':
            if (strcmp(text, "f32") != 0 && strcmp(text, "bf16") != 0 && o->status == LS_OK)
                o->status = LS_FAIL(o->err, LS_ERR_ARG, "--dtype: '%s' is not f32 or bf16", text);
            o->dtype = strcmp(text, "bf16") == 0 ? LS_BF16 : LS_F32;
            return 0;
        case ARGP_KEY_ARG:
            if (o->model != NULL) ls_cli_wrong(state, "unexpected argument '%s'", text);
            o->model = text;
            return 0;
        default: return ARGP_ERR_UNKNOWN;
    }
}

int ls_cmd_inspect(int argc, char **argv) {
    static const struct argp_option options[] = {
        {"model", 'm', "DIR", 0, "Checkpoint directory", 0},
        {"dtype", 'd', "TYPE", 0, "Type of activations that memory is counted for: f32 or bf16 (bf16)", 0},
        {"tensors", 't', NULL, 0, "List every tensor", 0},
        {"json", 'j', NULL, 0, "Everything as JSON", 0},
        {0}};
    static const struct argp argp = {
        options, on_inspect_option, "[DIR]", "Shows what a checkpoint is and what it costs.", NULL, NULL, NULL};
    ls_error err;
    inspect_options o = {.dtype = LS_BF16, .err = &err};
    ls_device *device = NULL;
    ls_model *model = NULL;
    summary s;
    ls_status status;
    ls_cli_parse(&argp, argc, argv, &o);
    LS_TRY_DONE(o.status);
    if (o.model == NULL) ls_cli_usage(argv[0], "--model is missing; it names the checkpoint directory");
    LS_TRY_DONE(ls_device_open(&device, 1, ls_isa_best(), &err));
    LS_TRY_DONE(
        ls_model_open(&model, device, o.model, &err)); /* the whole check of a checkpoint, not a glance at its header */
    summarise(&s, &model->config, model->checkpoint, o.dtype);
    if (o.json)
        print_json(&s, &o);
    else
        print_text(&s, &o);
done:
    ls_model_close(model);
    ls_device_close(device);
    return status == LS_OK ? LS_EXIT_OK : ls_cli_fail(&err);
}
