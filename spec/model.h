/* The model: its sizes, its weights, and how they are read: model/model.h, load/rope_fields.h.
 *
 * What a layer is, its tensors say. The configuration says only what their shapes do not. */
#ifndef SPEC_MODEL_H
#define SPEC_MODEL_H

#include "products.h"

enum { POSITIONS = 4096, LAYERS = 256, EXPERTS = 1024, HEAD = 512 };

typedef struct attention_part {
    matrix q, k, v, o;
    float *q_bias, *k_bias, *v_bias, *o_bias, *q_norm, *k_norm;
    bool has_gates; /* behind each head of q lies its gate */
    int64_t window; /* 0: none */
    /* Of the sequence that is on its way: [positions][G * P], rounded. */
    float *keys, *values;
} attention_part;

/* The convolution of a mixer and its last inputs. */
typedef struct convolution {
    int64_t channels, taps;
    float *w, *bias; /* [channels][1][taps], [channels] or NULL */
    float *past;     /* [taps - 1][channels]: inputs, oldest first, rounded */
} convolution;

typedef struct mamba_part {
    convolution conv;
    matrix in, x, dt, out;
    float *in_bias, *out_bias, *dt_bias, *d, *a2, *dt_norm, *b_norm, *c_norm;
    float *state; /* [D][S] */
} mamba_part;

typedef struct mamba2_part {
    convolution conv;
    matrix in, out;
    float *in_bias, *out_bias, *dt_bias, *d, *a, *norm;
    int64_t heads, dim, groups, states; /* dim: channels of a head */
    float dt_min, dt_max;
    float *state, *scale; /* [heads][states][dim], [heads] */
} mamba2_part;

typedef struct delta_part {
    convolution conv;
    matrix qkv, z, b, a, qkvz, ba, out; /* the first four, or by head qkvz and ba */
    float *norm, *dt_bias, *rate;
    int64_t heads, dim, key_heads, key_dim; /* dim: columns of a value head */
    float *state, *scale;                   /* [heads][key_dim][dim], [heads] */
} delta_part;

typedef struct expert {
    matrix gate, up, down; /* ungated: no gate */
} expert;

typedef struct ffn_part {
    matrix router, shared_gate;
    float *router_bias; /* of routing by sigmoids */
    expert *experts, shared;
    int n_experts;
} ffn_part;

/* Of parts that are not there all is zero. */
typedef struct layer {
    float *input_norm, *ffn_norm;
    attention_part attention;
    mamba_part mamba;
    mamba2_part mamba2;
    delta_part delta;
    ffn_part ffn;
} layer;

static struct {
    int64_t n_layers, hidden, vocab, heads, kv_heads, head_dim, picks;
    bool reweighs, adds_one, normalises; /* normalises: dt, B and C of Mamba-1 */
    float eps, inner_eps, attention_scale;
    float embed_factor, added_factor, logit_factor; /* Granite's; 1 without */
    int64_t half;                                   /* columns that rotate, halved */
    float inv_freq[HEAD / 2], rope_scale;
    float *embed, *final_norm;
    matrix head;
    layer *layers;
} m;

/* ---- what a sequence leaves for its next token ---- */

static struct {
    float *x, first;
    int64_t n;
} kept[4 * LAYERS];
static int n_kept;

/* n floats, which begin as `first` in each sequence. */
static float *keep(int64_t n, float first) {
    if (n_kept == 4 * LAYERS) fail("too many layers", "keep");
    kept[n_kept].x = floats((size_t)n);
    kept[n_kept].n = n;
    kept[n_kept].first = first;
    return kept[n_kept++].x;
}

static void begin_sequence(void) {
    for (int i = 0; i < n_kept; i++)
        for (int64_t j = 0; j < kept[i].n; j++) kept[i].x[j] = kept[i].first;
}

/* ---- rotation: load/rope_fields.h ---- */

#define PI 3.14159265358979323846

/* A parameter of the rotation. */
static double turn(const char *name, double otherwise) {
    return figure(field(config, "rope_parameters"), name, otherwise);
}

static double original_length(void) {
    return turn("original_max_position_embeddings", figure(config, "max_position_embeddings", 0));
}

/* p[j]: the quotient in float32, the power in binary64. */
static float power_of_theta(int64_t j) {
    return (float)pow(turn("rope_theta", NAN), (float)(2 * j) / (float)(2 * m.half));
}

static float llama3_frequency(float f) {
    const double low = turn("low_freq_factor", NAN), high = turn("high_freq_factor", NAN), original = original_length();
    const float factor = (float)turn("factor", NAN), length = (float)(2.0 * PI) / f;
    if (length > (float)(original / low)) return f / factor;
    if (length < (float)(original / high)) return f;
    const float s = ((float)original / length - (float)low) / (float)(high - low);
    return ((1.0f - s) * f) / factor + s * f;
}

/* The number of the frequency whose wave turns so often in the original length. */
static double yarn_border(double turns) {
    return (double)(2 * m.half) * log(original_length() / (turns * 2.0 * PI)) / (2.0 * log(turn("rope_theta", NAN)));
}

static double yarn_scale(double factor, double mscale) {
    return factor <= 1.0 ? 1.0 : 0.1 * mscale * log(factor) + 1.0;
}

static void scale_yarn(void) {
    const double factor = turn("factor", figure(config, "max_position_embeddings", 0) / original_length());
    const double mscale = turn("mscale", 0), of_all = turn("mscale_all_dim", 0);
    const value *truncate = field(field(config, "rope_parameters"), "truncate");
    double low = yarn_border(turn("beta_fast", 32.0)), high = yarn_border(turn("beta_slow", 1.0)), scale;
    if (truncate == NULL || truncate->kind == 't') low = floor(low), high = ceil(high);
    low = fmax(low, 0.0);
    high = fmin(high, (double)(2 * m.half - 1));
    if (low == high) high += 0.001;
    for (int64_t j = 0; j < m.half; j++) {
        const float p = power_of_theta(j), ramp = ((float)j - (float)low) / (float)(high - low);
        const float k = 1.0f - fminf(fmaxf(ramp, 0.0f), 1.0f);
        m.inv_freq[j] = (1.0f / ((float)factor * p)) * (1.0f - k) + (1.0f / p) * k;
    }
    scale = mscale > 0 && of_all > 0 ? yarn_scale(factor, mscale) / yarn_scale(factor, of_all) : yarn_scale(factor, 1);
    m.rope_scale = (float)turn("attention_factor", scale);
}

static void read_rotation(void) {
    const value *parameters = field(config, "rope_parameters"), *kind = field(config, "position_embedding_type");
    if (parameters == NULL && field(config, "rope_theta|rope_scaling") != NULL) fail("no", "rope_parameters");
    if (is_kind("granitemoehybrid") && (kind == NULL || strcmp(kind->text, "rope") != 0)) return;
    if (parameters == NULL) return; /* attention knows no positions */
    const value *named_type = field(parameters, "rope_type|type");
    const char *type = named_type != NULL ? named_type->text : "default";
    const double share = turn("partial_rotary_factor", is_kind("bamba") ? 0.5 : 1.0);
    m.half = (int64_t)((double)m.head_dim * share) / 2;
    m.rope_scale = 1.0f;
    for (int64_t j = 0; j < m.half; j++) {
        m.inv_freq[j] = 1.0f / power_of_theta(j);
        if (strcmp(type, "linear") == 0) m.inv_freq[j] = m.inv_freq[j] / (float)turn("factor", NAN);
        if (strcmp(type, "llama3") == 0) m.inv_freq[j] = llama3_frequency(m.inv_freq[j]);
    }
    if (strcmp(type, "yarn") == 0) scale_yarn();
    if (!is_among(type, "default|linear|llama3|yarn")) fail("no such rotation", type);
}

/* ---- parts ---- */

/* Names stay as long as the program does. */
static const char *named(const char *format, const char *prefix, int i) {
    char *text = take(256, 1);
    snprintf(text, 256, format, prefix, i);
    return text;
}

/* Some models store what a norm's weight has above 1: one rounding. */
static float *norm_of(const char *prefix, const char *names) {
    const tensor *t = find(prefix, names);
    float *w = vector(prefix, names);
    for (int64_t i = 0; w != NULL && m.adds_one && i < t->n; i++) w[i] = 1.0f + w[i];
    return w;
}

/* -exp(A_log) */
static float *rate_of(const char *prefix) {
    float *a = vector(prefix, "A_log");
    for (int64_t i = 0; i < find(prefix, "A_log")->n; i++) a[i] = -exp_law(a[i]);
    return a;
}

/* Some layers have a window: those that layer_types names, or those from max_window_layers on, or all. */
static int64_t window_of(int64_t layer_i) {
    const value *types = field(config, "layer_types"), *type = types != NULL ? types->first : NULL;
    if (!is_true("use_sliding_window", is_kind("mistral|mixtral"))) return 0;
    for (int64_t i = 0; type != NULL && i < layer_i; i++) type = type->next;
    if (type != NULL && strcmp(type->text, "sliding_attention") != 0) return 0;
    if (type == NULL && is_kind("qwen2|qwen3") && layer_i < count("max_window_layers", 28)) return 0;
    return count("sliding_window", 0);
}

static void read_attention(attention_part *a, const char *prefix, int64_t i) {
    a->q = matrix_of(prefix, "q_proj.weight");
    a->k = matrix_of(prefix, "k_proj.weight");
    a->v = matrix_of(prefix, "v_proj.weight");
    a->o = matrix_of(prefix, "o_proj.weight");
    a->q_bias = vector(prefix, "q_proj.bias");
    a->k_bias = vector(prefix, "k_proj.bias");
    a->v_bias = vector(prefix, "v_proj.bias");
    a->o_bias = vector(prefix, "o_proj.bias");
    a->q_norm = norm_of(prefix, "q_norm.weight");
    a->k_norm = norm_of(prefix, "k_norm.weight");
    a->has_gates = a->q.rows == 2 * m.heads * m.head_dim;
    a->window = window_of(i);
    a->keys = floats((size_t)(POSITIONS * a->k.rows));
    a->values = floats((size_t)(POSITIONS * a->v.rows));
}

static convolution conv_of(const char *prefix) {
    const tensor *t = find(prefix, "conv1d.weight");
    return (convolution){t->shape[0], t->shape[2], vector(prefix, "conv1d.weight"), vector(prefix, "conv1d.bias"),
                         keep((t->shape[2] - 1) * t->shape[0], 0.0f)};
}

static void read_mamba(mamba_part *p, const char *prefix) {
    const tensor *t = find(prefix, "A_log");
    p->conv = conv_of(prefix);
    p->in = matrix_of(prefix, "in_proj.weight");
    p->x = matrix_of(prefix, "x_proj.weight");
    p->dt = matrix_of(prefix, "dt_proj.weight");
    p->out = matrix_of(prefix, "out_proj.weight");
    p->in_bias = vector(prefix, "in_proj.bias");
    p->out_bias = vector(prefix, "out_proj.bias");
    p->dt_bias = vector(prefix, "dt_proj.bias");
    p->d = vector(prefix, "D");
    p->dt_norm = vector(prefix, "dt_layernorm.weight");
    p->b_norm = vector(prefix, "b_layernorm.weight");
    p->c_norm = vector(prefix, "c_layernorm.weight");
    /* A2 = (-exp(A_log)) * LOG2E, two roundings */
    p->a2 = rate_of(prefix);
    for (int64_t i = 0; i < t->n; i++) p->a2[i] = p->a2[i] * LOG2E;
    p->state = keep(t->n, 0.0f);
}

static void read_mamba2(mamba2_part *p, const char *prefix) {
    const value *limit = field(config, "time_step_limit");
    const int64_t inner = find(prefix, "norm.weight")->n;
    p->conv = conv_of(prefix);
    p->in = matrix_of(prefix, "in_proj.weight");
    p->out = matrix_of(prefix, "out_proj.weight");
    p->in_bias = vector(prefix, "in_proj.bias");
    p->out_bias = vector(prefix, "out_proj.bias");
    p->dt_bias = vector(prefix, "dt_bias");
    p->d = vector(prefix, "D");
    p->a = rate_of(prefix);
    p->norm = vector(prefix, "norm.weight");
    p->heads = find(prefix, "A_log")->n;
    p->dim = inner / p->heads;
    p->groups = count("n_groups|mamba_n_groups", NAN);
    p->states = (p->conv.channels - inner) / (2 * p->groups);
    p->dt_min = is_kind("nemotron_h") ? (float)figure(config, "time_step_min", NAN) : (float)number(limit->first);
    p->dt_max = is_kind("nemotron_h") ? INFINITY : (float)number(limit->first->next);
    p->state = keep(inner * p->states, 0.0f);
    p->scale = keep(p->heads, 1.0f);
}

static void read_delta(delta_part *p, const char *prefix) {
    p->conv = conv_of(prefix);
    p->qkv = matrix_of(prefix, "in_proj_qkv.weight");
    p->z = matrix_of(prefix, "in_proj_z.weight");
    p->b = matrix_of(prefix, "in_proj_b.weight");
    p->a = matrix_of(prefix, "in_proj_a.weight");
    p->qkvz = matrix_of(prefix, "in_proj_qkvz.weight");
    p->ba = matrix_of(prefix, "in_proj_ba.weight");
    p->out = matrix_of(prefix, "out_proj.weight");
    p->norm = vector(prefix, "norm.weight"); /* this one is stored as it is */
    p->dt_bias = vector(prefix, "dt_bias");
    p->rate = rate_of(prefix);
    p->heads = find(prefix, "A_log")->n;
    p->dim = find(prefix, "norm.weight")->n;
    p->key_heads = count("linear_num_key_heads", NAN);
    p->key_dim = (p->conv.channels - p->heads * p->dim) / (2 * p->key_heads);
    p->state = keep(p->heads * p->key_dim * p->dim, 0.0f);
    p->scale = keep(p->heads, 1.0f);
}

static expert expert_of(const char *prefix) {
    return (expert){matrix_of(prefix, "gate_proj.weight|w1.weight"), matrix_of(prefix, "up_proj.weight|w3.weight"),
                    matrix_of(prefix, "down_proj.weight|w2.weight")};
}

/* n experts of two tensors: gate and up of each behind each other in one, down in the other. */
static void read_joined(expert *out, int n, const char *prefix) {
    const int64_t size = find(prefix, "output_linear.weight")->n / n, width = size / m.hidden;
    float *gate_up = vector(prefix, "input_linear.weight"), *down = vector(prefix, "output_linear.weight");
    for (int e = 0; e < n; e++)
        out[e] = (expert){{width, m.hidden, gate_up + 2 * e * size},
                          {width, m.hidden, gate_up + (2 * e + 1) * size},
                          {m.hidden, width, down + e * size}};
}

/* Granite's: the shared expert is the feed-forward where there is no mixture. */
static void read_granite_ffn(ffn_part *f, const char *prefix) {
    f->experts = take(EXPERTS, sizeof *f->experts);
    f->router = matrix_of(prefix, "block_sparse_moe.router.layer.weight");
    f->n_experts = f->router.w != NULL ? (int)f->router.rows : 1;
    if (f->n_experts > EXPERTS) fail("too many experts", prefix);
    if (f->router.w != NULL) read_joined(f->experts, f->n_experts, named("%sblock_sparse_moe.", prefix, 0));
    read_joined(f->router.w != NULL ? &f->shared : f->experts, 1, named("%sshared_mlp.", prefix, 0));
}

static void read_ffn(ffn_part *f, const char *prefix) {
    f->experts = take(EXPERTS, sizeof *f->experts);
    f->router = matrix_of(prefix, "router.weight|gate.weight");
    f->router_bias = vector(prefix, "gate.e_score_correction_bias");
    f->n_experts = f->router.w != NULL ? (int)f->router.rows : 1;
    if (f->n_experts > EXPERTS) fail("too many experts", prefix);
    if (f->router.w == NULL) f->experts[0] = expert_of(prefix);
    for (int e = 0; f->router.w != NULL && e < f->n_experts; e++)
        f->experts[e] = expert_of(named("%sexperts.%d.", prefix, e));
    f->shared = expert_of(named("%sshared_expert.", prefix, 0));
    if (f->shared.down.w == NULL) f->shared = expert_of(named("%sshared_experts.", prefix, 0));
    f->shared_gate = matrix_of(prefix, "shared_expert_gate.weight");
}

static void read_part(layer *l, const char *prefix, int64_t i) {
    if (find(prefix, "q_proj.weight") != NULL)
        read_attention(&l->attention, prefix, i);
    else if (find(prefix, "x_proj.weight") != NULL)
        read_mamba(&l->mamba, prefix);
    else if (find(prefix, "in_proj.weight") != NULL)
        read_mamba2(&l->mamba2, prefix);
    else if (find(prefix, "in_proj_qkv.weight|in_proj_qkvz.weight") != NULL)
        read_delta(&l->delta, prefix);
    else if (find(prefix, "down_proj.weight|router.weight|gate.weight") != NULL)
        read_ffn(&l->ffn, prefix);
}

static void read_layer(layer *l, const char *stem, int i) {
    static const char *const parts[] = {"%sself_attn.", "%smamba.",        "%slinear_attn.",     "%smixer.",
                                        "%smlp.",       "%sfeed_forward.", "%sblock_sparse_moe."};
    const char *prefix = named("%s%d.", stem, i);
    l->input_norm = norm_of(prefix, "input_layernorm.weight|norm.weight");
    l->ffn_norm = norm_of(prefix, "pre_ff_layernorm.weight|post_attention_layernorm.weight|norm.weight");
    if (find(prefix, "shared_mlp.output_linear.weight") != NULL) read_granite_ffn(&l->ffn, prefix);
    for (int p = 0; p < 7; p++) read_part(l, named(parts[p], prefix, 0), i);
}

static void read_model(const char *directory) {
    static const char *const embeddings = "model.embed_tokens.weight|backbone.embeddings.weight";
    read_directory(directory);
    if (!is_kind("jamba|mamba|falcon_mamba|mamba2|bamba|nemotron_h|llama|mistral|mixtral|qwen2|qwen3|qwen3_moe|"
                 "qwen3_next|qwen3_5_text|qwen3_5_moe_text|granitemoehybrid"))
        fail("no such model", field(config, "model_type")->text);
    m.vocab = find("", embeddings)->shape[0];
    m.hidden = find("", embeddings)->shape[1];
    m.heads = count("num_attention_heads", 1);
    m.kv_heads = count("num_key_value_heads", (double)m.heads);
    m.head_dim = count("head_dim", (double)(m.hidden / m.heads));
    if (m.head_dim > HEAD) fail("heads too wide", directory);
    m.attention_scale = 1.0f / sqrtf((float)m.head_dim);
    if (is_kind("granitemoehybrid")) m.attention_scale = (float)figure(config, "attention_multiplier", 1.0);
    m.embed_factor = (float)figure(config, "embedding_multiplier", 1.0);
    m.added_factor = (float)figure(config, "residual_multiplier", 1.0);
    m.logit_factor = 1.0f / (float)figure(config, "logits_scaling", 1.0);
    m.picks = count("num_experts_per_tok", 0);
    m.eps = (float)figure(config, "rms_norm_eps|layer_norm_epsilon", NAN);
    m.inner_eps = is_kind("falcon_mamba") ? (float)figure(config, "mixer_rms_eps", NAN) : m.eps;
    m.adds_one = is_kind("qwen3_next|qwen3_5_text|qwen3_5_moe_text");
    m.reweighs = is_true("norm_topk_prob", is_kind("mixtral|qwen3_next|qwen3_5_moe_text|nemotron_h|granitemoehybrid"));
    m.normalises = is_kind("jamba|falcon_mamba");
    read_rotation();
    m.embed = vector("", embeddings);
    m.final_norm = norm_of("", "model.norm.weight|model.final_layernorm.weight|backbone.norm_f.weight");
    m.head = matrix_of("", "lm_head.weight");
    if (m.head.w == NULL) m.head = matrix_of("", embeddings);
    m.layers = take(LAYERS, sizeof *m.layers);
    for (const char *stem = find("", "model.embed_tokens.weight") != NULL ? "model.layers." : "backbone.layers.";
         m.n_layers < LAYERS; m.n_layers++) {
        read_layer(&m.layers[m.n_layers], stem, (int)m.n_layers);
        if (m.layers[m.n_layers].input_norm == NULL) break;
    }
}

#endif
