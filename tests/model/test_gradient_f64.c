/* The gradient of the whole model against float64: a second reading of the model (model/model.h, NUMERICS.md) in plain
 * loops and libm, differentiated by central differences. It shares nothing with the ops but the masters, and it reaches
 * what the vectors of autograd do not: entropies, a temperature, leaves of several sequences. */
#include <math.h>

#include "model/tape.h"
#include "trained.h"

enum { ROWS_MAX = 20, WIDTH_MAX = 512, LAYERS_MAX = 8, EXPERTS_MAX = 6, STATES_MAX = 16, LARGEST = 3, ELEMENTS = 6 };

/* Shares of the tensor's norm; the worst measured gradient is off by 3.6e-6, the worst difference by 3.5e-8. Of
 * log-probabilities and entropies 1.2e-5 was measured. GAP is far above the rounding of a float32 probability. */
static const double BOUND = 2e-5, TRUNCATION_BOUND = 1e-7, LOGPROB_BOUND = 1e-4, GAP = 1e-5;

typedef struct reference_layer {
    const double *input_norm, *ffn_norm;
    const double *q, *k, *v, *o;
    const double *in_proj, *in_bias, *conv, *conv_bias, *x_proj, *dt_norm, *b_norm, *c_norm, *dt_proj, *dt_bias, *a_log,
        *d, *out_proj, *out_bias;
    const double *router, *gate[EXPERTS_MAX], *up[EXPERTS_MAX], *down[EXPERTS_MAX];
} reference_layer;

typedef double rows_f64[ROWS_MAX][WIDTH_MAX];

typedef struct reference {
    const ls_model_config *c;
    const ls_parameters *parameters;
    const batch *b;
    double temperature, step; /* step: of the differences */
    double *values;           /* of all parameters, as the masters lie */
    const double *embed, *head, *final_norm;
    reference_layer layers[LAYERS_MAX];
    rows_f64 kept[2 * LAYERS_MAX + 1]; /* the residual stream before every sublayer, of the unmoved parameters */
    rows_f64 h, x, y;
    double logprob[ROWS_MAX], entropy[ROWS_MAX];
    bool chosen[LAYERS_MAX][ROWS_MAX][EXPERTS_MAX];
    bool choosing; /* the choice of experts is being recorded; afterwards it must stay */
    double gap;    /* the least between the last expert taken and the first one left */
} reference;

/* ---- the model ---- */

static double dot(const double *a, const double *b, int64_t n) {
    double sum[4] = {0, 0, 0, 0};
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int64_t j = 0; j < 4; j++) sum[j] += a[i + j] * b[i + j];
    for (; i < n; i++) sum[0] += a[i] * b[i];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* out [n] = w [n][k] . x + bias */
static void product(double *out, const double *w, const double *bias, const double *x, int64_t n, int64_t k) {
    for (int64_t i = 0; i < n; i++) out[i] = dot(w + i * k, x, k) + (bias == NULL ? 0.0 : bias[i]);
}

static void normalise(double *out, const double *x, const double *w, int64_t n, double eps) {
    const double scale = 1.0 / sqrt(dot(x, x, n) / (double)n + eps);
    for (int64_t i = 0; i < n; i++) out[i] = x[i] * scale * w[i];
}

static double silu(double x) { return x / (1.0 + exp(-x)); }

static double softplus(double x) { return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)); }

/* y of rows [begin, end), one sequence. */
static void attention(reference *m, const reference_layer *w, int64_t begin, int64_t end) {
    const int64_t hidden = m->c->hidden, dim = m->c->head_dim, group = m->c->n_heads / m->c->n_kv_heads;
    const int64_t q_dim = m->c->n_heads * dim, kv_dim = m->c->n_kv_heads * dim;
    static rows_f64 q, k, v;
    for (int64_t t = begin; t < end; t++) {
        double out[WIDTH_MAX] = {0};
        product(q[t], w->q, NULL, m->x[t], q_dim, hidden);
        product(k[t], w->k, NULL, m->x[t], kv_dim, hidden);
        product(v[t], w->v, NULL, m->x[t], kv_dim, hidden);
        for (int64_t head = 0; head < m->c->n_heads; head++) {
            const int64_t kv = head / group * dim;
            double score[ROWS_MAX], sum = 0;
            for (int64_t j = begin; j <= t; j++) {
                score[j] = exp(dot(&q[t][head * dim], &k[j][kv], dim) / sqrt((double)dim));
                sum += score[j];
            }
            for (int64_t j = begin; j <= t; j++)
                for (int64_t i = 0; i < dim; i++) out[head * dim + i] += score[j] / sum * v[j][kv + i];
        }
        product(m->y[t], w->o, NULL, out, hidden, q_dim);
    }
}

static void mamba(reference *m, const reference_layer *w, int64_t begin, int64_t end) {
    const int64_t hidden = m->c->hidden, dim = m->c->d_inner, taps = m->c->d_conv, rank = m->c->dt_rank;
    const int64_t states = m->c->d_state;
    const double eps = (double)m->c->rms_eps;
    static rows_f64 uz;
    static double state[WIDTH_MAX][STATES_MAX];
    memset(state, 0, sizeof state);
    for (int64_t t = begin; t < end; t++) {
        double u[WIDTH_MAX], raw[WIDTH_MAX], norm[WIDTH_MAX], dt[WIDTH_MAX], out[WIDTH_MAX];
        const double *b = norm + rank, *c = b + states;
        product(uz[t], w->in_proj, w->in_bias, m->x[t], 2 * dim, hidden);
        for (int64_t i = 0; i < dim; i++) {
            double sum = w->conv_bias == NULL ? 0.0 : w->conv_bias[i];
            for (int64_t k = 0; k < taps; k++)
                if (t - (taps - 1) + k >= begin) sum += w->conv[i * taps + k] * uz[t - (taps - 1) + k][i];
            u[i] = silu(sum);
        }
        product(raw, w->x_proj, NULL, u, rank + 2 * states, dim);
        normalise(norm, raw, w->dt_norm, rank, eps);
        normalise(norm + rank, raw + rank, w->b_norm, states, eps);
        normalise(norm + rank + states, raw + rank + states, w->c_norm, states, eps);
        product(dt, w->dt_proj, w->dt_bias, norm, dim, rank);
        for (int64_t i = 0; i < dim; i++) {
            const double step = softplus(dt[i]);
            double sum = w->d[i] * u[i];
            for (int64_t s = 0; s < states; s++) {
                const double decay = exp(-exp(w->a_log[i * states + s]) * step);
                state[i][s] = decay * state[i][s] + step * b[s] * u[i];
                sum += state[i][s] * c[s];
            }
            out[i] = sum * silu(uz[t][dim + i]);
        }
        product(m->y[t], w->out_proj, w->out_bias, out, hidden, dim);
    }
}

static void add_expert(reference *m, const reference_layer *w, int64_t e, double share, int64_t t) {
    const int64_t hidden = m->c->hidden, ffn = m->c->ffn;
    double gate[WIDTH_MAX], up[WIDTH_MAX], y[WIDTH_MAX];
    product(gate, w->gate[e], NULL, m->x[t], ffn, hidden);
    product(up, w->up[e], NULL, m->x[t], ffn, hidden);
    for (int64_t i = 0; i < ffn; i++) gate[i] = silu(gate[i]) * up[i];
    product(y, w->down[e], NULL, gate, hidden, ffn);
    for (int64_t i = 0; i < hidden; i++) m->y[t][i] += share * y[i];
}

/* The experts with fewer than top_k above them, each with its share of the softmax over all. */
static void mixture(reference *m, int64_t layer_i, int64_t t) {
    const reference_layer *w = &m->layers[layer_i];
    const int64_t n = m->c->n_experts;
    double p[EXPERTS_MAX], sum = 0, least_taken = 1, most_left = 0;
    product(p, w->router, NULL, m->x[t], n, m->c->hidden);
    for (int64_t e = 0; e < n; e++) sum += p[e] = exp(p[e]);
    for (int64_t e = 0; e < n; e++) p[e] /= sum;
    for (int64_t e = 0; e < n; e++) {
        int64_t above = 0;
        for (int64_t other = 0; other < n; other++) above += p[other] > p[e];
        const bool taken = above < m->c->top_k;
        if (m->choosing) m->chosen[layer_i][t][e] = taken;
        assert_int_equal(taken, m->chosen[layer_i][t][e]);
        if (taken) {
            least_taken = fmin(least_taken, p[e]);
            add_expert(m, w, e, p[e], t);
        } else {
            most_left = fmax(most_left, p[e]);
        }
    }
    m->gap = fmin(m->gap, least_taken - most_left);
}

static void run_sublayer(reference *m, int64_t sublayer) {
    const int64_t layer_i = sublayer / 2, hidden = m->c->hidden, rows = m->b->offsets[m->b->n];
    const reference_layer *w = &m->layers[layer_i];
    memset(m->y, 0, sizeof m->y);
    for (int64_t t = 0; t < rows; t++)
        normalise(m->x[t], m->h[t], sublayer % 2 == 0 ? w->input_norm : w->ffn_norm, hidden, (double)m->c->rms_eps);
    if (sublayer % 2 == 0)
        for (int64_t i = 0; i < m->b->n; i++)
            (m->c->is_attention[layer_i] ? attention : mamba)(m, w, m->b->offsets[i], m->b->offsets[i + 1]);
    else
        for (int64_t t = 0; t < rows; t++)
            if (m->c->is_moe[layer_i])
                mixture(m, layer_i, t);
            else
                add_expert(m, w, 0, 1.0, t);
    for (int64_t t = 0; t < rows; t++)
        for (int64_t i = 0; i < hidden; i++) m->h[t][i] += m->y[t][i];
}

/* The loss that ls_tape_backward differentiates; leaves logprob and entropy of every row with a target. */
static double head_loss(reference *m) {
    const batch *b = m->b;
    const int64_t hidden = m->c->hidden, vocab = m->c->vocab;
    double loss = 0;
    for (int64_t t = 0; t < b->offsets[b->n]; t++) {
        double z[WIDTH_MAX], sum = 0, mean = 0;
        m->logprob[t] = m->entropy[t] = 0;
        if (b->targets[t] < 0) continue;
        normalise(m->x[t], m->h[t], m->final_norm, hidden, (double)m->c->rms_eps);
        product(z, m->head, NULL, m->x[t], vocab, hidden);
        for (int64_t i = 0; i < vocab; i++) z[i] /= m->temperature;
        for (int64_t i = 0; i < vocab; i++) sum += exp(z[i]);
        for (int64_t i = 0; i < vocab; i++) mean += exp(z[i]) / sum * z[i];
        m->logprob[t] = z[b->targets[t]] - log(sum);
        m->entropy[t] = log(sum) - mean;
        loss += (double)b->d_logprob[t] * m->logprob[t] + (double)b->d_entropy[t] * m->entropy[t];
    }
    return loss;
}

/* The loss of the values as they are, when nothing before sublayer `from` was moved. */
static double loss_from(reference *m, int64_t from) {
    const int64_t n_sublayers = 2 * (int64_t)m->c->n_layers;
    memcpy(m->h, m->kept[from], sizeof m->h);
    if (from == 0)
        for (int64_t t = 0; t < m->b->offsets[m->b->n]; t++)
            memcpy(m->h[t], m->embed + m->b->tokens[t] * (int64_t)m->c->hidden, (size_t)m->c->hidden * sizeof **m->h);
    for (int64_t sublayer = from; sublayer < n_sublayers; sublayer++) {
        if (m->choosing) memcpy(m->kept[sublayer], m->h, sizeof m->h);
        run_sublayer(m, sublayer);
    }
    if (m->choosing) memcpy(m->kept[n_sublayers], m->h, sizeof m->h);
    return head_loss(m);
}

/* ---- its parameters, by name ---- */

/* NULL where the checkpoint has none of that name. */
static const double *find(const reference *m, const char *name) {
    for (int64_t i = 0; i < m->parameters->n; i++)
        if (strcmp(m->parameters->list[i].slot.name, name) == 0) return m->values + m->parameters->list[i].offset;
    return NULL;
}

static const double *find_in(const reference *m, int64_t layer_i, const char *rest) {
    char name[LS_TENSOR_NAME_MAX];
    snprintf(name, sizeof name, "model.layers.%lld.%s", (long long)layer_i, rest);
    return find(m, name);
}

static void find_layer(reference *m, int64_t i) {
    const char *const parts[] = {"gate", "up", "down"};
    reference_layer *w = &m->layers[i];
    w->input_norm = find_in(m, i, "input_layernorm.weight");
    w->ffn_norm = find_in(m, i, "pre_ff_layernorm.weight");
    w->q = find_in(m, i, "self_attn.q_proj.weight");
    w->k = find_in(m, i, "self_attn.k_proj.weight");
    w->v = find_in(m, i, "self_attn.v_proj.weight");
    w->o = find_in(m, i, "self_attn.o_proj.weight");
    w->in_proj = find_in(m, i, "mamba.in_proj.weight");
    w->in_bias = find_in(m, i, "mamba.in_proj.bias");
    w->conv = find_in(m, i, "mamba.conv1d.weight");
    w->conv_bias = find_in(m, i, "mamba.conv1d.bias");
    w->x_proj = find_in(m, i, "mamba.x_proj.weight");
    w->dt_norm = find_in(m, i, "mamba.dt_layernorm.weight");
    w->b_norm = find_in(m, i, "mamba.b_layernorm.weight");
    w->c_norm = find_in(m, i, "mamba.c_layernorm.weight");
    w->dt_proj = find_in(m, i, "mamba.dt_proj.weight");
    w->dt_bias = find_in(m, i, "mamba.dt_proj.bias");
    w->a_log = find_in(m, i, "mamba.A_log");
    w->d = find_in(m, i, "mamba.D");
    w->out_proj = find_in(m, i, "mamba.out_proj.weight");
    w->out_bias = find_in(m, i, "mamba.out_proj.bias");
    w->router = find_in(m, i, "feed_forward.router.weight");
    for (int64_t e = 0; e < (m->c->is_moe[i] ? m->c->n_experts : 1); e++)
        for (int64_t part = 0; part < 3; part++) {
            const double **places[] = {&w->gate[e], &w->up[e], &w->down[e]};
            char rest[64];
            if (m->c->is_moe[i])
                snprintf(rest, sizeof rest, "feed_forward.experts.%lld.%s_proj.weight", (long long)e, parts[part]);
            else
                snprintf(rest, sizeof rest, "feed_forward.%s_proj.weight", parts[part]);
            *places[part] = find_in(m, i, rest);
        }
}

/* The first sublayer that this parameter moves. */
static int64_t first_sublayer(const reference *m, const char *name) {
    long long layer_i;
    if (strcmp(name, "model.embed_tokens.weight") == 0) return 0;
    if (sscanf(name, "model.layers.%lld.", &layer_i) != 1) return 2 * (int64_t)m->c->n_layers;
    return 2 * layer_i + (strstr(name, ".feed_forward.") != NULL || strstr(name, ".pre_ff_") != NULL);
}

static void reference_open(reference *m, const trained *t, const batch *b, float temperature, double step) {
    const ls_model_config *c = &t->model->config;
    float *masters;
    assert_true(b->offsets[b->n] <= ROWS_MAX && c->vocab <= WIDTH_MAX && 2 * c->d_inner <= WIDTH_MAX &&
                c->ffn <= WIDTH_MAX && c->d_state <= STATES_MAX && c->n_layers <= LAYERS_MAX &&
                c->n_experts <= EXPERTS_MAX);
    memset(m, 0, sizeof *m);
    m->c = c;
    m->parameters = t->parameters;
    m->b = b;
    m->temperature = (double)temperature;
    m->step = step;
    m->gap = 1;
    m->values = calloc((size_t)t->parameters->n_elements, sizeof *m->values);
    masters = calloc((size_t)t->parameters->n_elements, sizeof *masters);
    from_device(test_home(), masters, t->parameters->masters, t->parameters->n_elements * (int64_t)sizeof *masters);
    for (int64_t i = 0; i < t->parameters->n_elements; i++) m->values[i] = (double)masters[i];
    free(masters);
    m->embed = find(m, "model.embed_tokens.weight");
    m->head = c->tied ? m->embed : find(m, "lm_head.weight");
    m->final_norm = find(m, "model.final_layernorm.weight");
    for (int64_t i = 0; i < c->n_layers; i++) find_layer(m, i);
    m->choosing = true;
    loss_from(m, 0);
    m->choosing = false;
}

/* ---- derivatives ---- */

static double central(reference *m, const ls_parameter *p, const double *direction, double step) {
    const int64_t from = first_sublayer(m, p->slot.name);
    double *values = m->values + p->offset, loss[2];
    for (int64_t side = 0; side < 2; side++) {
        for (int64_t i = 0; i < p->n_elements; i++)
            values[i] = (double)p->master[i] + (side == 0 ? step : -step) * direction[i];
        loss[side] = loss_from(m, from);
    }
    for (int64_t i = 0; i < p->n_elements; i++) values[i] = (double)p->master[i];
    return (loss[0] - loss[1]) / (2 * step);
}

typedef struct worst_errors {
    double gradient, truncation;
    const char *name;
} worst_errors;

/* Along a direction of length 1. A central difference errs by the square of its step, so that of twice the step shows
 * the error. */
static void check_along(worst_errors *worst, reference *m, const ls_parameter *p, const double *direction,
                        const float *gradient, double norm) {
    const double want = central(m, p, direction, m->step), coarse = central(m, p, direction, 2 * m->step);
    double got = 0, error;
    for (int64_t i = 0; i < p->n_elements; i++) got += direction[i] * (double)gradient[i];
    error = fabs(got - want) / norm;
    assert_true(isfinite(error) && isfinite(coarse));
    worst->truncation = fmax(worst->truncation, fabs(coarse - want) / 3 / norm);
    if (!(error <= BOUND)) print_message("%s: %.9g, expected %.9g, norm %.3g\n", p->slot.name, got, want, norm);
    if (error <= worst->gradient) return;
    worst->gradient = error;
    worst->name = p->slot.name;
}

/* The elements with the largest gradients, some others, and one direction over all of them. */
static void check_parameter(worst_errors *worst, reference *m, const ls_parameter *p, const float *gradient,
                            uint64_t *seed) {
    double *direction = calloc((size_t)p->n_elements, sizeof *direction), squares = 0, length = 0, norm;
    int64_t index[ELEMENTS] = {0};
    for (int64_t i = 0; i < p->n_elements; i++) squares += (double)gradient[i] * (double)gradient[i];
    norm = sqrt(squares);
    assert_true(norm > 0 && isfinite(norm)); /* every parameter of these batches takes part */
    for (int64_t k = 0; k < ELEMENTS; k++) {
        double largest = -1;
        index[k] = (int64_t)(test_random(seed) % (uint64_t)p->n_elements);
        for (int64_t i = 0; k < LARGEST && i < p->n_elements; i++) {
            bool taken = false;
            for (int64_t other = 0; other < k; other++) taken = taken || index[other] == i;
            if (taken || fabs((double)gradient[i]) <= largest) continue;
            largest = fabs((double)gradient[i]);
            index[k] = i;
        }
        direction[index[k]] = 1;
        check_along(worst, m, p, direction, gradient, norm);
        direction[index[k]] = 0;
    }
    for (int64_t i = 0; i < p->n_elements; i++) {
        direction[i] = (double)test_uniform(seed, -1.0f, 1.0f);
        length += direction[i] * direction[i];
    }
    for (int64_t i = 0; i < p->n_elements; i++) direction[i] /= sqrt(length);
    check_along(worst, m, p, direction, gradient, norm);
    free(direction);
}

/* step: so small that the differences are good enough, so large that their rounding is too. */
static void check_model(const char *name, const int64_t *lengths, int64_t n, float temperature, double step) {
    static reference m;
    trained t;
    batch b;
    ls_tape *tape;
    ls_error err;
    ls_device *device = test_device(1, ls_isa_best());
    float logprob[ROWS_MAX], entropy[ROWS_MAX], *gradient, *there;
    int64_t bytes;
    double forward = 0;
    worst_errors worst = {0, 0, ""};
    uint64_t seed = 11;
    trained_open(&t, name);
    batch_make(&b, t.model, lengths, n, 5);
    bytes = t.parameters->n_elements * (int64_t)sizeof *gradient;
    gradient = malloc((size_t)bytes);
    there = to_device(device, NULL, bytes);
    reference_open(&m, &t, &b, temperature, step);
    {
        const ls_tape_opts opts = {LS_F32, b.offsets[n], n, 0, temperature, 0, NULL, NULL, 0, 0};
        assert_ok(ls_tape_create(&tape, t.parameters, device, &opts, &err), err);
    }
    assert_ok(ls_tape_forward(tape, b.tokens, b.offsets, n, &err), err);
    assert_ok(ls_tape_logprob(tape, b.targets, logprob, entropy, &err), err);
    const ls_leaf_part part = {.begin = 0,
                               .end = n,
                               .targets = b.targets,
                               .d_logprob = b.d_logprob,
                               .d_entropy = b.d_entropy,
                               .is_first = true,
                               .is_last = true};
    assert_ok(ls_tape_backward(tape, &part, there, &err), err);
    from_device(device, gradient, there, bytes);
    ls_memory_free(device, there);
    for (int64_t r = 0; r < b.offsets[n]; r++) {
        if (b.targets[r] < 0) continue;
        assert_true(isfinite(logprob[r]) && isfinite(entropy[r]) && isfinite(m.logprob[r]) && isfinite(m.entropy[r]));
        forward = fmax(forward, fabs((double)logprob[r] - m.logprob[r]));
        forward = fmax(forward, fabs((double)entropy[r] - m.entropy[r]));
    }
    for (int64_t i = 0; i < t.parameters->n; i++) {
        const ls_parameter *p = &t.parameters->list[i];
        check_parameter(&worst, &m, p, gradient + p->offset, &seed);
    }
    print_message(
        "%s: log-probabilities and entropies within %.2g; gradients within %.2g of the tensor's norm (%s), "
        "differences good to %.2g; gap of experts %.2g\n",
        name, forward, worst.gradient, worst.name, worst.truncation, m.gap);
    assert_true(forward <= LOGPROB_BOUND && worst.gradient <= BOUND && worst.truncation <= TRUNCATION_BOUND);
    assert_true(m.gap >= GAP);
    ls_tape_free(tape);
    free(m.values);
    free(gradient);
    batch_free(&b);
    trained_close(&t);
    test_device_close(device);
}

/* Mamba alone, no convolution bias, tied head, four taps. The first layer's dt, B and C are so small that their norms
 * bend sharply and ask for a small step. */
static void gradients_without_attention(void **state) {
    const int64_t lengths[] = {9, 3, 6};
    (void)state;
    check_model("jamba-nobias", lengths, 3, 1.0f, 0x1p-20);
}

/* Experts, projection biases, one KV head of three query heads, an own head. */
static void gradients_with_experts(void **state) {
    const int64_t lengths[] = {3, 7, 4};
    (void)state;
    check_model("jamba-odd", lengths, 3, 0.75f, 0x1p-18);
}

/* Two KV heads of four query heads, tied head. */
static void gradients_with_grouped_heads(void **state) {
    const int64_t lengths[] = {4, 5};
    (void)state;
    check_model("jamba-dense", lengths, 2, 1.0f, 0x1p-17);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_without_attention),
        cmocka_unit_test(gradients_with_experts),
        cmocka_unit_test(gradients_with_grouped_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
