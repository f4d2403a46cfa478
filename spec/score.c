/* The law, read once more: log-probabilities of given tokens, one token after the other, in plain C.
 *
 * This program was written from NUMERICS.md and the comments on top of the headers in src/op and src/num, and shares no
 * line with what it is compared with. It is slow and has no options; each function stands below the words of the law
 * that it follows. Read it beside them.
 *
 *   cc -std=c11 -O2 -o score spec/score.c -lm
 *   score DIRECTORY f32|bf16 exact|mma16 < sequences
 *
 * DIRECTORY holds config.json and safetensors of a Jamba or Mamba model. A line of the input is the tokens of a
 * sequence, as numbers; a line of the output has the bits of the log-probability of each but the first, in hexadecimal.
 *
 * A model that the engine would refuse is no subject here: it is expected to be sound. */
#include <dirent.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(const char *what, const char *name) {
    fprintf(stderr, "score: %s: %s\n", what, name);
    exit(2);
}

static void *take(size_t n, size_t bytes) {
    void *memory = calloc(n > 0 ? n : 1, bytes);
    if (memory == NULL) fail("out of memory", "calloc");
    return memory;
}

static float *floats(size_t n) { return take(n, sizeof(float)); }

/* ---- JSON: values as a tree ---- */

typedef struct value {
    char kind;  /* '{', '[', '"', '0' for numbers, 't', 'f', 'n' */
    char *text; /* of a string */
    double number;
    char *name; /* of a member */
    struct value *first, *next;
} value;

static const char *skip(const char *s) { return s + strspn(s, " \t\r\n,:"); }

/* Escapes do not occur in names and values that matter here; they are kept as they are. */
static char *parse_text(const char **s) {
    const char *begin = ++*s;
    char *text;
    while (**s != '"') *s += **s == '\\' ? 2 : 1;
    text = take((size_t)(*s - begin) + 1, 1);
    memcpy(text, begin, (size_t)(*s - begin));
    ++*s;
    return text;
}

static value *parse(const char **s) {
    value *v = take(1, sizeof *v), **end = &v->first;
    *s = skip(*s);
    v->kind = **s;
    if (v->kind == '{' || v->kind == '[') {
        for (*s = skip(*s + 1); **s != '}' && **s != ']'; *s = skip(*s)) {
            char *name = v->kind == '{' ? parse_text(s) : NULL;
            *end = parse(s);
            (*end)->name = name;
            end = &(*end)->next;
        }
        ++*s;
    } else if (v->kind == '"') {
        v->text = parse_text(s);
    } else if (v->kind == 't' || v->kind == 'f' || v->kind == 'n') {
        *s += strcspn(*s, ",}] \n");
    } else {
        char *after;
        v->kind = '0';
        v->number = strtod(*s, &after);
        if (after == *s) fail("no JSON", *s);
        *s = after;
    }
    return v;
}

static const value *member(const value *object, const char *name) {
    for (const value *v = object->first; v != NULL; v = v->next)
        if (v->name != NULL && strcmp(v->name, name) == 0) return v;
    return NULL;
}

static double number(const value *object, const char *name, double otherwise) {
    const value *v = member(object, name);
    return v != NULL && v->kind == '0' ? v->number : otherwise;
}

static bool is_true(const value *object, const char *name, bool otherwise) {
    const value *v = member(object, name);
    return v == NULL || v->kind == 'n' ? otherwise : v->kind == 't';
}

static char *read_file(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    char *data;
    long size;
    if (file == NULL) fail("cannot open", path);
    fseek(file, 0, SEEK_END);
    size = ftell(file);
    rewind(file);
    data = take((size_t)size + 1, 1);
    if (fread(data, 1, (size_t)size, file) != (size_t)size) fail("cannot read", path);
    fclose(file);
    *bytes = (size_t)size;
    return data;
}

/* ---- types: bits, bf16, fp16 ---- */

static uint32_t bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float from_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* "Narrowing rounds to nearest even, keeps subnormals and maps every NaN to one pattern." */
static float round_bf16(float x) {
    const uint32_t u = bits(x);
    if (isnan(x)) return from_bits(0x7FC00000u);
    return from_bits((u + 0x7FFFu + (u >> 16 & 1u)) & 0xFFFF0000u);
}

/* "Widening is exact." */
static float widen_f16(uint16_t h) {
    const int exponent = h >> 10 & 31, fraction = h & 1023;
    const float magnitude = exponent == 31 ? (fraction != 0 ? from_bits(0x7FC00000u) : INFINITY)
                            : exponent > 0 ? ldexpf((float)(1024 + fraction), exponent - 25)
                                           : ldexpf((float)fraction, -24);
    return h >> 15 != 0 ? -magnitude : magnitude;
}

/* ---- scalars: NUMERICS.md, "Scalars" ---- */

#define LOG2E 0x1.715476p+0f
#define LN2 0x1.62e430p-1f
#define LN2_LO -0x1.05c610p-29f
#define MAGIC 12582912.0f

/* 2^n, n an integer from -126 to 127. */
static float power_of_two(float n) { return from_bits((uint32_t)((int32_t)n + 127) << 23); }

/* Horner's rule, one fma for each coefficient after the highest, c[0]. */
static float horner(float f, int n, const float *c) {
    float p = c[0];
    for (int i = 1; i < n; i++) p = fmaf(p, f, c[i]);
    return p;
}

/* ls_exp2_poly(f) = 1 + f (c1 + f (c2 + ..)) */
static float exp2_poly(float f) {
    const float c[] = {0x1.5bdf2cp-10f, 0x1.3ceabep-7f, 0x1.c6b6c6p-5f, 0x1.ebf9bap-3f, 0x1.62e42ap-1f, 1.0f};
    return horner(f, 6, c);
}

/* p(f) with bits(r) << 23 added to its bits. */
static float exp2_scale(float p, float r) { return from_bits(bits(p) + (bits(r) << 23)); }

/* Steps 1 to 4 of ls_exp: m and n. */
static float exp_parts(float x, float *n) {
    const float b = fminf(fmaxf(x, -120.0f), 89.0f), r = fmaf(b, LOG2E, MAGIC);
    *n = r - MAGIC;
    const float g = fmaf(*n, -LN2, b), f = fmaf(*n, -(LN2_LO), g), f_low = fmaf(*n, -(LN2_LO), g - f);
    const float s = 1.0f + f, s_low = f - (s - 1.0f);
    const float c[] = {0x1.6a5056p-10f, 0x1.123976p-7f, 0x1.5558acp-5f, 0x1.555492p-3f, 0x1.fffffcp-2f};
    return s + fmaf(f * f, horner(f, 5, c), s_low + f_low);
}

/* Step 5: the first product is exact. */
static float scale_twice(float m, float n) {
    return (m * power_of_two(floorf(n / 2.0f))) * power_of_two(ceilf(n / 2.0f));
}

static float exp_law(float x) {
    float n;
    const float m = exp_parts(x, &n);
    return isnan(x) ? from_bits(0x7FC00000u) : scale_twice(m, n);
}

/* u = 2^k (1 + f): step 2 of ls_log. */
static void log_split(float u, float *k, float *f) {
    const uint32_t t = bits(u) - 0x3F2AAAABu + (150u << 23);
    *k = (float)(int32_t)(t >> 23) - 150.0f;
    *f = from_bits((t & 0x7FFFFFu) + 0x3F2AAAABu) - 1.0f;
}

/* Steps 3 to 5. */
static float log_join(float k, float f, float f_low) {
    const float s = fmaf(k, LN2, f), s_low = fmaf(k, LN2, -s) + f;
    const float c[] = {-0x1.07c894p-3f, 0x1.1e678cp-3f,  -0x1.f332f8p-4f, 0x1.1ed662p-3f, -0x1.559c44p-3f,
                       0x1.99d044p-3f,  -0x1.fffefcp-3f, 0x1.555506p-2f,  -0.5f};
    return s + fmaf(f * f, horner(f, 9, c), s_low + fmaf(k, LN2_LO, f_low));
}

/* Of x in [1, 2): the only ones that are asked for here. */
static float log_law(float x) {
    float k, f;
    log_split(x, &k, &f);
    return log_join(k, f, 0.0f);
}

/* ls_softplus: x above 20, else ls_log1p of e^x, which is never below -1 nor infinite. */
static float softplus(float x) {
    if (isnan(x)) return from_bits(0x7FC00000u);
    if (x > 20.0f) return x;
    const float e = exp_law(x), u = 1.0f + e, low = fminf(e, 1.0f) - (u - fmaxf(e, 1.0f));
    float k, f;
    log_split(u, &k, &f);
    const float scale = u < 0x1p100f ? power_of_two(-k) : 0.0f;
    float joined = fmaf(low, scale, f), joined_low = fmaf(low, scale, f - joined);
    if (k == 0.0f) {
        joined = e; /* "f' = x where k = 0"; the low part is step 3's */
        joined_low = fmaf(low, scale, f - joined);
    }
    return fabsf(e) < 0x1p-25f ? e : log_join(k, joined, joined_low);
}

/* ls_sigmoid and ls_silu, steps 1 to 4: q and q_low; n of the exponential for -|x|. */
static float silu(float x) {
    float n;
    const float m = exp_parts(-fabsf(x), &n), e = scale_twice(m, n);
    const float d = 1.0f + e, d_low = e - (d - 1.0f), top = x >= 0.0f ? 1.0f : m, q = top / d;
    const float rest = fmaf(-q, d_low, fmaf(-q, d, top)), q_low = rest * fmaf(e, -0.5f, 1.0f);
    const float b = fmaxf(x, -120.0f), y = fmaf(b, q, b * q_low);
    if (isnan(x)) return from_bits(0x7FC00000u);
    if (x > 20.0f) return x;
    return x < 0.0f ? scale_twice(y, n) : y;
}

/* ---- sums: NUMERICS.md, "Sums" ---- */

/* Chains fold within each run of 8, then over the 32 runs by halves. */
static float fold(const float *chain) {
    float c[256];
    memcpy(c, chain, sizeof c);
    for (int run = 0; run < 256; run += 8)
        for (int half = 4; half >= 1; half /= 2)
            for (int j = 0; j < half; j++) c[run + j] = c[run + j] + c[run + j + half];
    for (int half = 16; half >= 1; half /= 2)
        for (int run = 0; run < half; run++) c[8 * run] = c[8 * run] + c[8 * (run + half)];
    return c[0];
}

/* ---- dense products: op/gemm.h; NUMERICS.md, "mma16" ---- */

typedef struct matrix {
    int64_t rows, columns;
    float *w; /* widened, exactly */
} matrix;

/* Everything that a run is told. */
static bool is_mma16, is_bf16;

/* R: one rounding to the activation type. */
static float activation(float x) { return is_bf16 ? round_bf16(x) : x; }

/* A float as +-s 2^e, s an integer; of a bf16 whose low bits are 0 as well. */
static int64_t integer_of(float x, int *exponent) {
    const uint32_t u = bits(x);
    const int field = (int)(u >> 23 & 255u);
    *exponent = field == 0 ? -126 : field - 127;
    const int64_t s = (int64_t)(u & 0x7FFFFFu) + (field == 0 ? 0 : 0x800000);
    return u >> 31 != 0 ? -s : s;
}

/* s 2^up, cut toward zero. */
static int64_t cut(int64_t s, int up) {
    const int64_t magnitude = s < 0 ? -s : s;
    const int64_t result = up >= 0 ? magnitude << up : up > -63 ? magnitude >> -up : 0;
    return s < 0 ? -result : result;
}

/* sum 2^unit, cut toward zero to float32; what is zero then is +0. */
static float cut_float(int64_t sum, int unit) {
    int64_t magnitude = sum < 0 ? -sum : sum;
    int leading = 0;
    while (leading < 62 && magnitude >> (leading + 1) != 0) leading++;
    int drop = leading - 23;
    if (unit + drop < -149) drop = -149 - unit; /* subnormals are kept */
    magnitude = cut(magnitude, -drop);
    if (magnitude == 0) return 0.0f;
    if (leading + unit >= 128) return sum < 0 ? -INFINITY : INFINITY;
    return ldexpf((float)(sum < 0 ? -magnitude : magnitude), unit + drop);
}

/* One step of 16 products, of which n are there; all operands are finite here. */
static float mma16_step(float c, const float *x, const float *w, int64_t n) {
    int64_t product[16], own, sum;
    int exponent[16], own_exponent, ex, ew, largest = -133;
    own = integer_of(c, &own_exponent);
    if (own != 0 && own_exponent > largest) largest = own_exponent;
    for (int64_t i = 0; i < n; i++) {
        /* bf16: 16 low bits are 0, so s < 256 of the law is s / 2^16 here */
        product[i] = integer_of(x[i], &ex) / 65536 * (integer_of(w[i], &ew) / 65536);
        exponent[i] = ex + ew;
        if (product[i] != 0 && exponent[i] > largest) largest = exponent[i];
    }
    sum = cut(own, own_exponent - 23 - (largest - 25)); /* to multiples of 2^(E - 25) */
    for (int64_t i = 0; i < n; i++) sum += cut(product[i], exponent[i] - 14 - (largest - 25));
    return cut_float(sum, largest - 25);
}

/* exact: one fma chain, k ascending from +0. */
static float chain_exact(const float *x, const float *w, int64_t k) {
    float acc = 0.0f;
    for (int64_t i = 0; i < k; i++) acc = fmaf(x[i], w[i], acc);
    return acc;
}

static float chain_mma16(const float *x, const float *w, int64_t k) {
    float acc = 0.0f;
    for (int64_t i = 0; i < k; i += 16) acc = mma16_step(acc, x + i, w + i, k - i < 16 ? k - i : 16);
    return acc;
}

/* out = x w^T + bias, before R. */
static void product(float *out, const float *x, const matrix *w, const float *bias) {
    for (int64_t n = 0; n < w->rows; n++) {
        const float *row = w->w + n * w->columns;
        const float chain = is_mma16 ? chain_mma16(x, row, w->columns) : chain_exact(x, row, w->columns);
        out[n] = bias != NULL ? chain + bias[n] : chain;
    }
}

/* ---- the norm: op/rmsnorm.h ---- */

static void rmsnorm(float *y, const float *x, const float *w, int64_t dim, float eps, bool rounded) {
    float chain[256] = {0};
    for (int64_t c = 0; c < dim; c++) chain[c % 256] = fmaf(x[c], x[c], chain[c % 256]);
    const float s = 1.0f / sqrtf(fold(chain) / (float)dim + eps);
    for (int64_t c = 0; c < dim; c++) {
        const float v = (x[c] * s) * w[c];
        y[c] = rounded ? round_bf16(v) : v;
    }
}

/* ---- the model: model/model.h ---- */

typedef struct expert {
    matrix gate, up, down;
} expert;

typedef struct layer {
    bool is_attention;
    float *input_norm, *ffn_norm;
    matrix q, k, v, o;
    matrix in_proj, x_proj, dt_proj, out_proj;
    float *in_bias, *out_bias, *conv_w, *conv_bias, *dt_bias, *d, *a2, *dt_norm, *b_norm, *c_norm;
    matrix router;
    expert *experts;
    int n_experts; /* 0: no feed-forward */
    /* Of the sequence that is on its way. */
    float *keys, *values; /* [positions][G*P], rounded */
    float *conv;          /* [W - 1][D]: inputs, oldest first, rounded */
    float *state;         /* [D][S] */
} layer;

typedef struct model {
    int64_t n_layers, hidden, vocab, ffn, heads, kv_heads, head_dim, inner, states, taps, rank, picks;
    float eps;
    float *embed, *final_norm;
    matrix head;
    layer *layers;
} model;

#define POSITIONS 4096

/* ---- tensors ---- */

typedef struct tensor {
    char *name, *type;
    int64_t shape[4], n;
    const unsigned char *data;
} tensor;

static tensor tensors[4096];
static int n_tensors;

/* A safetensors file: eight bytes of length, JSON, data. */
static void read_safetensors(const char *path) {
    size_t bytes;
    char *data = read_file(path, &bytes), *text;
    uint64_t length = 0;
    const char *s;
    for (int i = 7; i >= 0; i--) length = length << 8 | (unsigned char)data[i];
    text = take((size_t)length + 1, 1);
    memcpy(text, data + 8, (size_t)length);
    s = text;
    for (const value *v = parse(&s)->first; v != NULL; v = v->next) {
        tensor *t = &tensors[n_tensors];
        int dim = 0;
        if (strcmp(v->name, "__metadata__") == 0) continue;
        t->name = v->name;
        t->type = member(v, "dtype")->text;
        t->n = 1;
        for (const value *d = member(v, "shape")->first; d != NULL; d = d->next)
            t->n *= t->shape[dim++] = (int64_t)d->number;
        t->data = (unsigned char *)data + 8 + length + (size_t)member(v, "data_offsets")->first->number;
        if (++n_tensors == 4096) fail("too many tensors", path);
    }
}

static const tensor *find(const char *name) {
    for (int i = 0; i < n_tensors; i++)
        if (strcmp(tensors[i].name, name) == 0) return &tensors[i];
    return NULL;
}

/* Widened to float32; NULL where there is none. */
static float *vector(const char *name) {
    const tensor *t = find(name);
    float *out;
    if (t == NULL) return NULL;
    out = floats((size_t)t->n);
    for (int64_t i = 0; i < t->n; i++) {
        uint32_t word = 0;
        if (strcmp(t->type, "F32") == 0) {
            memcpy(&out[i], t->data + 4 * i, 4);
            continue;
        }
        memcpy(&word, t->data + 2 * i, 2);
        out[i] = strcmp(t->type, "BF16") == 0 ? from_bits(word << 16) : widen_f16((uint16_t)word);
    }
    return out;
}

static matrix matrix_of(const char *name) {
    const tensor *t = find(name);
    if (t == NULL) fail("no tensor", name);
    return (matrix){t->shape[0], t->shape[1], vector(name)};
}

/* Names stay as long as the program does. */
static const char *named(const char *prefix, const char *name) {
    const size_t n = strlen(prefix) + strlen(name) + 1;
    char *text = take(n, 1);
    snprintf(text, n, "%s%s", prefix, name);
    return text;
}

static expert expert_of(const char *prefix) {
    return (expert){matrix_of(named(prefix, "gate_proj.weight")), matrix_of(named(prefix, "up_proj.weight")),
                    matrix_of(named(prefix, "down_proj.weight"))};
}

static void read_ffn(layer *l, const char *prefix, int n_experts) {
    l->n_experts = n_experts;
    l->experts = take((size_t)n_experts, sizeof *l->experts);
    if (n_experts == 1) {
        l->experts[0] = expert_of(prefix);
        return;
    }
    l->router = matrix_of(named(prefix, "router.weight"));
    for (int e = 0; e < n_experts; e++) {
        char name[256];
        snprintf(name, sizeof name, "%sexperts.%d.", prefix, e);
        l->experts[e] = expert_of(name);
    }
}

static void read_mamba(layer *l, const char *prefix) {
    float *a_log = vector(named(prefix, "A_log"));
    const tensor *t = find(named(prefix, "A_log"));
    l->in_proj = matrix_of(named(prefix, "in_proj.weight"));
    l->x_proj = matrix_of(named(prefix, "x_proj.weight"));
    l->dt_proj = matrix_of(named(prefix, "dt_proj.weight"));
    l->out_proj = matrix_of(named(prefix, "out_proj.weight"));
    l->in_bias = vector(named(prefix, "in_proj.bias"));
    l->out_bias = vector(named(prefix, "out_proj.bias"));
    l->conv_w = vector(named(prefix, "conv1d.weight")); /* [D][1][W] */
    l->conv_bias = vector(named(prefix, "conv1d.bias"));
    l->dt_bias = vector(named(prefix, "dt_proj.bias"));
    l->d = vector(named(prefix, "D"));
    l->dt_norm = vector(named(prefix, "dt_layernorm.weight"));
    l->b_norm = vector(named(prefix, "b_layernorm.weight"));
    l->c_norm = vector(named(prefix, "c_layernorm.weight"));
    /* A2 = (-exp(A_log)) * LOG2E, two roundings */
    l->a2 = a_log;
    for (int64_t i = 0; i < t->n; i++) l->a2[i] = -exp_law(a_log[i]) * LOG2E;
}

static void read_attention(layer *l, const char *prefix) {
    l->q = matrix_of(named(prefix, "q_proj.weight"));
    l->k = matrix_of(named(prefix, "k_proj.weight"));
    l->v = matrix_of(named(prefix, "v_proj.weight"));
    l->o = matrix_of(named(prefix, "o_proj.weight"));
}

static void read_jamba_layer(model *m, const value *config, int64_t i) {
    layer *l = &m->layers[i];
    const int64_t period = (int64_t)number(config, "attn_layer_period", 8),
                  experts = (int64_t)number(config, "num_experts", 16);
    const bool is_moe = experts > 1 && i % (int64_t)number(config, "expert_layer_period", 2) ==
                                           (int64_t)number(config, "expert_layer_offset", 1);
    char prefix[64];
    snprintf(prefix, sizeof prefix, "model.layers.%d.", (int)i);
    l->is_attention = i % period == (int64_t)number(config, "attn_layer_offset", 4);
    l->input_norm = vector(named(prefix, "input_layernorm.weight"));
    l->ffn_norm = vector(named(prefix, "pre_ff_layernorm.weight"));
    if (l->is_attention) read_attention(l, named(prefix, "self_attn."));
    if (!l->is_attention) read_mamba(l, named(prefix, "mamba."));
    read_ffn(l, named(prefix, "feed_forward."), is_moe ? (int)experts : 1);
}

static void read_jamba(model *m, const value *config) {
    m->ffn = (int64_t)number(config, "intermediate_size", 0);
    m->heads = (int64_t)number(config, "num_attention_heads", 0);
    m->kv_heads = (int64_t)number(config, "num_key_value_heads", 0);
    m->head_dim = m->hidden / m->heads;
    m->inner = (int64_t)number(config, "mamba_expand", 2) * m->hidden;
    m->states = (int64_t)number(config, "mamba_d_state", 16);
    m->taps = (int64_t)number(config, "mamba_d_conv", 4);
    m->rank = (int64_t)number(config, "mamba_dt_rank", (double)((m->hidden + 15) / 16)); /* "auto" */
    m->picks = (int64_t)number(config, "num_experts_per_tok", 2);
    m->eps = (float)number(config, "rms_norm_eps", 1e-6);
    m->embed = vector("model.embed_tokens.weight");
    m->final_norm = vector("model.final_layernorm.weight");
    for (int64_t i = 0; i < m->n_layers; i++) read_jamba_layer(m, config, i);
    m->head = matrix_of(is_true(config, "tie_word_embeddings", true) ? "model.embed_tokens.weight" : "lm_head.weight");
}

static void read_mamba_model(model *m, const value *config) {
    m->inner = (int64_t)number(config, "intermediate_size", 2.0 * (double)m->hidden);
    m->states = (int64_t)number(config, "state_size", 16);
    m->taps = (int64_t)number(config, "conv_kernel", 4);
    m->rank = (int64_t)number(config, "time_step_rank", (double)((m->hidden + 15) / 16));
    m->eps = (float)number(config, "layer_norm_epsilon", 1e-5);
    m->embed = vector("backbone.embeddings.weight");
    m->final_norm = vector("backbone.norm_f.weight");
    for (int64_t i = 0; i < m->n_layers; i++) {
        char prefix[64];
        snprintf(prefix, sizeof prefix, "backbone.layers.%d.", (int)i);
        m->layers[i].input_norm = vector(named(prefix, "norm.weight"));
        read_mamba(&m->layers[i], named(prefix, "mixer."));
    }
    m->head = matrix_of(is_true(config, "tie_word_embeddings", true) ? "backbone.embeddings.weight" : "lm_head.weight");
}

static void read_model(model *m, const char *directory) {
    char path[4096];
    size_t bytes;
    const char *text;
    const value *config;
    DIR *entries = opendir(directory);
    if (entries == NULL) fail("cannot open", directory);
    for (const struct dirent *e; (e = readdir(entries)) != NULL;) {
        const char *dot = strrchr(e->d_name, '.');
        if (strncmp(e->d_name, "model", 5) != 0 || dot == NULL || strcmp(dot, ".safetensors") != 0) continue;
        snprintf(path, sizeof path, "%s/%s", directory, e->d_name);
        read_safetensors(path);
    }
    closedir(entries);
    snprintf(path, sizeof path, "%s/config.json", directory);
    text = read_file(path, &bytes);
    config = parse(&text);
    m->n_layers = (int64_t)number(config, "num_hidden_layers", 0);
    m->hidden = (int64_t)number(config, "hidden_size", 0);
    m->vocab = (int64_t)number(config, "vocab_size", 0);
    m->layers = take((size_t)m->n_layers, sizeof *m->layers);
    if (strcmp(member(config, "model_type")->text, "jamba") == 0)
        read_jamba(m, config);
    else
        read_mamba_model(m, config);
    for (int64_t i = 0; i < m->n_layers; i++) {
        layer *l = &m->layers[i];
        l->keys = floats((size_t)(POSITIONS * m->kv_heads * m->head_dim));
        l->values = floats((size_t)(POSITIONS * m->kv_heads * m->head_dim));
        l->conv = floats((size_t)((m->taps - 1) * m->inner));
        l->state = floats((size_t)(m->inner * m->states));
    }
}

/* ---- attention: op/attention.h ---- */

enum { BLOCK = 64, SEGMENT = 1024 };

/* What a segment of keys comes to. */
typedef struct segment {
    float m, l, acc[512];
} segment;

/* One block of keys [from, to): online softmax. */
static void attend_block(segment *s, const model *mo, const layer *l, const float *q, int64_t group, int64_t from,
                         int64_t to) {
    const int64_t dim = mo->head_dim, width = mo->kv_heads * dim;
    const float scale = 1.0f / sqrtf((float)dim);
    float score[BLOCK], e[BLOCK] = {0}, largest = s->m;
    for (int64_t j = from; j < to; j++) {
        score[j - from] = scale * chain_exact(q, l->keys + j * width + group * dim, dim);
        largest = fmaxf(largest, score[j - from]);
    }
    const float c = exp_law(s->m - largest);
    for (int64_t j = from; j < to; j++) e[j - from] = exp_law(score[j - from] - largest);
    for (int64_t d = 0; d < dim; d++) {
        float acc = s->acc[d] * c;
        for (int64_t j = from; j < to; j++) acc = fmaf(e[j - from], l->values[j * width + group * dim + d], acc);
        s->acc[d] = acc;
    }
    for (int half = BLOCK / 2; half >= 1; half /= 2)
        for (int j = 0; j < half; j++) e[j] = e[j] + e[j + half];
    s->l = fmaf(s->l, c, e[0]);
    s->m = largest;
}

/* Segments combine in ascending order; the first is taken as it is. */
static void combine(segment *all, const segment *next, int64_t dim) {
    const float largest = fmaxf(all->m, next->m), a = exp_law(all->m - largest), b = exp_law(next->m - largest);
    all->l = fmaf(all->l, a, next->l * b);
    for (int64_t d = 0; d < dim; d++) all->acc[d] = fmaf(all->acc[d], a, next->acc[d] * b);
    all->m = largest;
}

static void attend(float *out, const model *m, const layer *l, const float *q, int64_t position, int64_t group) {
    segment all;
    for (int64_t first = 0; first <= position; first += SEGMENT) {
        segment s = {.m = -INFINITY};
        for (int64_t from = first; from < first + SEGMENT && from <= position; from += BLOCK)
            attend_block(&s, m, l, q, group, from, from + BLOCK <= position ? from + BLOCK : position + 1);
        if (first == 0) all = s;
        if (first > 0) combine(&all, &s, m->head_dim);
    }
    for (int64_t d = 0; d < m->head_dim; d++) out[d] = activation(all.acc[d] / all.l);
}

/* exp2_bounded, or exp2_weight. */
static float power(float x, bool is_weight) {
    const float c[] = {0x1.c2a1d4p-5f, 0x1.f00c42p-3f, 0x1.62f5fap-1f, 1.0f};
    const float b = fminf(fmaxf(x, -126.0f), 127.0f), r = b + MAGIC, f = b - (r - MAGIC);
    return exp2_scale(is_weight ? horner(f, 4, c) : exp2_poly(f), r);
}

/* mma16: l is of the segment, all of those before; acc likewise. */
static void attend_mma16(float *out, const model *m, const layer *l, const float *q, int64_t position, int64_t group) {
    const int64_t dim = m->head_dim, width = m->kv_heads * dim, at = group * dim;
    const float c = 1.0f / sqrtf((float)dim) * LOG2E;
    float top = -INFINITY, total = -INFINITY, sum[8] = {0}, all[8] = {0}, acc[512] = {0}, result[512] = {0};
    for (int64_t first = 0; first <= position; first += 128) {
        float s[128], e[128] = {0}, p[128] = {0}, v[128] = {0}, w = top;
        const int64_t n = position + 1 - first < 128 ? position + 1 - first : 128;
        for (int64_t j = 0; j < n; j++) s[j] = chain_mma16(q, l->keys + (first + j) * width + at, dim);
        for (int64_t j = 0; j < n; j++) top = fmaxf(top, c * s[j]);
        w = power(w - top, false);
        for (int64_t j = 0; j < n; j++) p[j] = round_bf16(e[j] = power(fmaf(s[j], c, -top), true));
        for (int half = 64; half >= 8; half /= 2)
            for (int j = 0; j < half; j++) e[j] = e[j] + e[j + half];
        for (int i = 0; i < 8; i++) sum[i] = fmaf(sum[i], w, e[i]);
        for (int64_t d = 0; d < dim; d++) {
            for (int64_t j = 0; j < n; j++) v[j] = l->values[(first + j) * width + at + d];
            acc[d] = acc[d] * w;
            for (int64_t j = 0; j < n; j += 16) acc[d] = mma16_step(acc[d], p + j, v + j, 16);
        }
        if (first + 128 <= position && (first + 128) % SEGMENT != 0) continue;
        const float most = fmaxf(total, top), a = power(total - most, false), b = power(top - most, false);
        for (int i = 0; i < 8; i++) all[i] = fmaf(all[i], a, sum[i] * b), sum[i] = 0.0f;
        for (int64_t d = 0; d < dim; d++) result[d] = fmaf(result[d], a, acc[d] * b), acc[d] = 0.0f;
        total = most, top = -INFINITY;
    }
    for (int half = 4; half >= 1; half /= 2)
        for (int i = 0; i < half; i++) all[i] = all[i] + all[i + half];
    for (int64_t d = 0; d < dim; d++) out[d] = activation(fmaf(result[d], 1.0f / all[0], 0.0f));
}

static void attention(float *y, const model *m, layer *l, const float *x, int64_t position) {
    const int64_t q_dim = m->heads * m->head_dim, kv_dim = m->kv_heads * m->head_dim;
    float *q = floats((size_t)q_dim), *out = floats((size_t)q_dim);
    float *k = l->keys + position * kv_dim, *v = l->values + position * kv_dim;
    product(q, x, &l->q, NULL);
    product(k, x, &l->k, NULL);
    product(v, x, &l->v, NULL);
    for (int64_t i = 0; i < q_dim; i++) q[i] = activation(q[i]);
    for (int64_t i = 0; i < kv_dim; i++) k[i] = activation(k[i]), v[i] = activation(v[i]);
    for (int64_t a = 0; a < m->heads; a++)
        (is_mma16 ? attend_mma16 : attend)(out + a * m->head_dim, m, l, q + a * m->head_dim, position,
                                           a / (m->heads / m->kv_heads));
    product(y, out, &l->o, NULL);
    free(q);
    free(out);
}

/* ---- Mamba-1: op/conv1d.h, op/scan.h ---- */

/* u in place; the state moves on by one token. */
static void convolve(const model *m, layer *l, float *u) {
    for (int64_t c = 0; c < m->inner; c++) {
        const float now = activation(u[c]), *w = l->conv_w + c * m->taps;
        float a = l->conv_bias != NULL ? l->conv_bias[c] : 0.0f;
        for (int64_t k = 0; k + 1 < m->taps; k++) a = fmaf(w[k], l->conv[k * m->inner + c], a);
        a = fmaf(w[m->taps - 1], now, a);
        for (int64_t k = 0; k + 2 < m->taps; k++) l->conv[k * m->inner + c] = l->conv[(k + 1) * m->inner + c];
        if (m->taps > 1) l->conv[(m->taps - 2) * m->inner + c] = now;
        u[c] = silu(a);
    }
}

/* 2^(dt a2): the product is never rounded but where it says how far it may go. */
static float decay_of(float dt, float a2) {
    const float x = dt * a2, r = fmaf(dt, a2, MAGIC), n = r - MAGIC, f = fmaf(dt, a2, -n);
    if (x > 127.0f) return 0x1p127f;
    return x >= -126.0f ? exp2_scale(exp2_poly(f), r) : 0x1p-126f;
}

/* The four-chain tree over states. */
static float scan_channel(const model *m, const float *a2, float *h, float dt, float v, const float *b,
                          const float *c) {
    const int64_t group = (m->states + 3) / 4;
    float p[4] = {0};
    for (int64_t s = 0; s < m->states; s++) {
        h[s] = fmaf(decay_of(dt, a2[s]), h[s], v * b[s]);
        p[s / group] = fmaf(h[s], c[s], p[s / group]);
    }
    return (p[0] + p[1]) + (p[2] + p[3]);
}

static void mamba(float *y, const model *m, layer *l, const float *x) {
    const int64_t dim = m->inner, rank = m->rank, states = m->states;
    float *uz = floats((size_t)(2 * dim)), *z = uz + dim, *rounded = floats((size_t)dim), *dt = floats((size_t)dim);
    float *narrow = floats((size_t)(rank + 2 * states)), *low = narrow, *b = narrow + rank, *c = b + states;
    product(uz, x, &l->in_proj, l->in_bias);
    convolve(m, l, uz);
    for (int64_t i = 0; i < dim; i++) rounded[i] = is_mma16 ? round_bf16(uz[i]) : uz[i];
    product(narrow, rounded, &l->x_proj, NULL);
    if (l->dt_norm != NULL) {
        rmsnorm(low, low, l->dt_norm, rank, m->eps, is_mma16);
        rmsnorm(b, b, l->b_norm, states, m->eps, false);
        rmsnorm(c, c, l->c_norm, states, m->eps, false);
    }
    for (int64_t i = 0; i < rank; i++) low[i] = is_mma16 ? round_bf16(low[i]) : low[i];
    product(dt, low, &l->dt_proj, NULL);
    for (int64_t i = 0; i < dim; i++) {
        const float step = softplus(l->dt_bias != NULL ? dt[i] + l->dt_bias[i] : dt[i]), u = uz[i];
        float out = scan_channel(m, l->a2 + i * states, l->state + i * states, step, step * u, b, c);
        if (l->d != NULL) out = fmaf(l->d[i], u, out);
        rounded[i] = activation(out * silu(z[i]));
    }
    product(y, rounded, &l->out_proj, l->out_bias);
    free(uz);
    free(rounded);
    free(dt);
    free(narrow);
}

/* ---- feed-forward: op/elementwise.h, op/moe.h ---- */

static void feed_expert(float *y, const expert *e, const float *x) {
    const int64_t n = e->gate.rows;
    float *gate = floats((size_t)n), *up = floats((size_t)n);
    product(gate, x, &e->gate, NULL);
    product(up, x, &e->up, NULL);
    for (int64_t i = 0; i < n; i++) gate[i] = activation(silu(gate[i]) * up[i]);
    product(y, gate, &e->down, NULL);
    free(gate);
    free(up);
}

static bool is_chosen(const float *p, int n, int64_t picks, int e) {
    int64_t before = 0;
    for (int i = 0; i < n; i++) before += p[i] > p[e] || (p[i] == p[e] && i < e);
    return before < picks;
}

static void feed(float *y, const model *m, const layer *l, const float *x) {
    float p[1024], largest = -INFINITY, sum = 0.0f, *part;
    if (l->n_experts == 1) {
        feed_expert(y, &l->experts[0], x);
        return;
    }
    part = floats((size_t)m->hidden);
    for (int e = 0; e < l->n_experts; e++) { /* the router is a float32 chain in both profiles */
        p[e] = chain_exact(x, l->router.w + e * m->hidden, m->hidden);
        largest = fmaxf(largest, p[e]);
    }
    for (int e = 0; e < l->n_experts; e++) sum = sum + (p[e] = exp_law(p[e] - largest));
    for (int e = 0; e < l->n_experts; e++) p[e] = p[e] / sum;
    for (int64_t c = 0; c < m->hidden; c++) y[c] = 0.0f;
    for (int e = 0; e < l->n_experts; e++) {
        if (!is_chosen(p, l->n_experts, m->picks, e)) continue;
        feed_expert(part, &l->experts[e], x);
        for (int64_t c = 0; c < m->hidden; c++) y[c] = fmaf(p[e], part[c], y[c]);
    }
    free(part);
}

/* ---- log-probability: op/logprob.h ---- */

enum { LEAF = 2048 };

/* S 2^K, and Q of a leaf or of a node. E, which the entropy needs, is not made here. */
typedef struct node {
    float k, s;
} node;

static node leaf_of(const float *z, int64_t n) {
    float m = -INFINITY, chain[256] = {0};
    bool near = true;
    for (int64_t i = 0; i < n; i++) {
        m = fmaxf(m, z[i]);
        near = near && fabsf(z[i]) <= 64.0f;
    }
    if (m < -0x1p20f) return (node){-0x1p24f, 0.0f};
    const float q = fmaf(m, LOG2E, MAGIC) - MAGIC, k = near ? 0.0f : q, low = near ? -64.0f : floorf(m - 80.0f);
    const float shift = MAGIC - k;
    for (int64_t i = 0; i < n; i++) {
        const float x = fmaxf(z[i], low), r = fmaf(x, LOG2E, shift), f = fmaf(x, LOG2E, -(r - shift));
        chain[i % 256] = chain[i % 256] + exp2_scale(exp2_poly(f), r);
    }
    return (node){k, fold(chain)};
}

static float shrink(float d) { return d < -126.0f ? 0.0f : power_of_two(d); }

/* Leaves [first, first + n) of the aligned tree, n a power of two. */
static node tree(const float *z, int64_t vocab, int64_t first, int64_t n) {
    const int64_t at = first * LEAF;
    if (n == 1) return leaf_of(z + at, vocab - at < LEAF ? vocab - at : LEAF);
    const node a = tree(z, vocab, first, n / 2);
    if ((first + n / 2) * LEAF >= vocab) return a;
    const node b = tree(z, vocab, first + n / 2, n / 2);
    const float k = fmaxf(a.k, b.k);
    return (node){k, a.s * shrink(a.k - k) + b.s * shrink(b.k - k)};
}

static float logprob(const float *z, int64_t vocab, int64_t target) {
    int64_t n = 1;
    int exponent;
    while (n * LEAF < vocab) n *= 2;
    const node root = tree(z, vocab, 0, n);
    const float s = 2.0f * frexpf(root.s, &exponent), k = root.k + (float)(exponent - 1);
    const float result = fmaf(fmaf(z[target], LOG2E, -k), LN2, -log_law(s));
    return result > 0.0f ? 0.0f : result;
}

/* ---- sequences ---- */

static void clear(const model *m) {
    for (int64_t i = 0; i < m->n_layers; i++) {
        memset(m->layers[i].conv, 0, (size_t)((m->taps - 1) * m->inner) * sizeof(float));
        memset(m->layers[i].state, 0, (size_t)(m->inner * m->states) * sizeof(float));
    }
}

/* Logits of what follows the token at this position. */
static void step(float *logits, const model *m, int64_t token, int64_t position) {
    const int64_t dim = m->hidden;
    float *h = floats((size_t)dim), *x = floats((size_t)dim), *y = floats((size_t)dim);
    memcpy(h, m->embed + token * dim, (size_t)dim * sizeof *h);
    for (int64_t i = 0; i < m->n_layers; i++) {
        layer *l = &m->layers[i];
        rmsnorm(x, h, l->input_norm, dim, m->eps, is_bf16);
        if (l->is_attention) attention(y, m, l, x, position);
        if (!l->is_attention) mamba(y, m, l, x);
        for (int64_t c = 0; c < dim; c++) h[c] = h[c] + y[c];
        if (l->n_experts == 0) continue;
        rmsnorm(x, h, l->ffn_norm, dim, m->eps, is_bf16);
        feed(y, m, l, x);
        for (int64_t c = 0; c < dim; c++) h[c] = h[c] + y[c];
    }
    rmsnorm(x, h, m->final_norm, dim, m->eps, is_bf16);
    product(logits, x, &m->head, NULL);
    free(h);
    free(x);
    free(y);
}

int main(int argc, char **argv) {
    static char line[1 << 20];
    model m = {0};
    float *logits;
    if (argc != 4) fail("usage", "score DIRECTORY f32|bf16 exact|mma16 < sequences");
    is_bf16 = strcmp(argv[2], "bf16") == 0;
    is_mma16 = strcmp(argv[3], "mma16") == 0;
    read_model(&m, argv[1]);
    logits = floats((size_t)m.vocab);
    while (fgets(line, sizeof line, stdin) != NULL) {
        int64_t position = 0;
        clear(&m);
        for (char *at = line, *after;; at = after) {
            const int64_t token = strtoll(at, &after, 10);
            if (after == at) break;
            if (token < 0 || token >= m.vocab || position == POSITIONS) fail("no such token or position", at);
            if (position > 0)
                printf("%s%08x", position > 1 ? " " : "", (unsigned)bits(logprob(logits, m.vocab, token)));
            step(logits, &m, token, position++);
        }
        printf("\n");
    }
    return 0;
}
