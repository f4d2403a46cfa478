/* Frequencies of rotations from config.json. */
#include "load/rope_fields.h"

#include <jansson.h>
#include <string.h>

#include "json/json_read.h"
#include "num/exp64.h"
#include "num/round.h"

#define PI_64 3.14159265358979323846

/* One source of parameters: the file itself for rope_theta, or the object of a field. */
typedef struct rope_source {
    const json_t *config, *object; /* object: NULL where there is none */
    const char *field;             /* its name */
} rope_source;

static ls_status fail_field(const rope_source *s, const char *key, const json_t *value, const char *expected,
                            ls_error *err) {
    char shown[LS_JSON_SHOW_MAX];
    return LS_FAIL(err, LS_ERR_FORMAT, "%s.%s: %s, expected %s", s->field, key,
                   value == NULL ? "missing" : ls_json_show(value, shown), expected);
}

static const json_t *some(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return value == NULL || json_is_null(value) ? NULL : value;
}

/* A number of the object, low <= it <= high; by_default where it is absent, NaN: it must be there. */
static ls_status read_rope_number(double *out, const rope_source *s, const char *key, double by_default, double low,
                                  double high, ls_error *err) {
    const json_t *value = some(s->object, key);
    char expected[64];
    *out = by_default;
    if (value == NULL && by_default == by_default) return LS_OK;
    if (value != NULL && json_is_number(value)) {
        *out = json_number_value(value);
        if (*out >= low && *out <= high) return LS_OK;
    }
    snprintf(expected, sizeof expected, "a number in %g..%g", low, high);
    return fail_field(s, key, value, expected, err);
}

#define NEEDED ((double)NAN)

static bool is_among(const char *key, const char *const *list) {
    for (; list != NULL && *list != NULL; list++)
        if (strcmp(key, *list) == 0) return true;
    return false;
}

/* inert: keys that the architecture knows besides; NULL: none. */
static ls_status check_keys(const rope_source *s, const char *const *inert, ls_error *err) {
    static const char *const keys[] = {
        "rope_type",        "type",           "rope_theta", "factor",           "partial_rotary_factor",
        "low_freq_factor",  "beta_fast",      "beta_slow",  "mscale",           "original_max_position_embeddings",
        "high_freq_factor", "mscale_all_dim", "truncate",   "attention_factor", NULL};
    void *i;
    for (i = json_object_iter((json_t *)s->object); i != NULL; i = json_object_iter_next((json_t *)s->object, i)) {
        const char *key = json_object_iter_key(i);
        if (!is_among(key, keys) && !is_among(key, inert))
            return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: %.80s is no parameter of a rotation that is built", s->field,
                           key);
    }
    return LS_OK;
}

/* Both fields may stand in one file, as transformers wrote it at a time; then they agree. */
static ls_status find_source(rope_source *out, const json_t *config, ls_error *err) {
    const json_t *older = some(config, "rope_scaling"), *newer = some(config, "rope_parameters");
    char shown[LS_JSON_SHOW_MAX];
    *out = (rope_source){config, newer != NULL ? newer : older, newer != NULL ? "rope_parameters" : "rope_scaling"};
    if (out->object == NULL) return LS_OK;
    if (!json_is_object(out->object))
        return LS_FAIL(err, LS_ERR_FORMAT, "%s: %s, expected an object", out->field, ls_json_show(out->object, shown));
    return LS_OK;
}

/* ---- frequencies, in float32 as transformers computes them ---- */

/* base^(2j/dim). */
static float power_of(double base, int64_t j, int64_t dim) {
    return (float)ls_exp64((double)ls_div((float)(2 * j), (float)dim) * ls_log64(base));
}

static ls_status scale_linear(ls_rope_config *out, const rope_source *s, ls_error *err) {
    double factor;
    LS_TRY(read_rope_number(&factor, s, "factor", NEEDED, 1.0, 1e6, err));
    for (int32_t j = 0; j < out->half; j++) out->inv_freq[j] = ls_div(out->inv_freq[j], (float)factor);
    return LS_OK;
}

static ls_status scale_llama3(ls_rope_config *out, const rope_source *s, int64_t positions_max, ls_error *err) {
    double factor, low, high, original;
    LS_TRY(read_rope_number(&factor, s, "factor", NEEDED, 1.0, 1e6, err));
    LS_TRY(read_rope_number(&low, s, "low_freq_factor", NEEDED, 1e-6, 1e6, err));
    LS_TRY(read_rope_number(&high, s, "high_freq_factor", NEEDED, 1e-6, 1e6, err));
    LS_TRY(read_rope_number(&original, s, "original_max_position_embeddings", (double)positions_max, 1.0, 1e18, err));
    if (!(high > low))
        return LS_FAIL(err, LS_ERR_FORMAT, "%s: high_freq_factor %g is not above low_freq_factor %g", s->field, high,
                       low);
    for (int32_t j = 0; j < out->half; j++) {
        const float f = out->inv_freq[j], length = ls_div((float)(2.0 * PI_64), f);
        const bool is_long = length > (float)(original / low), is_short = length < (float)(original / high);
        const float scaled = is_long ? ls_div(f, (float)factor) : f;
        const float smooth = ls_div(ls_sub(ls_div((float)original, length), (float)low), (float)(high - low));
        const float mixed = ls_add(ls_div(ls_mul(ls_sub(1.0f, smooth), scaled), (float)factor), ls_mul(smooth, scaled));
        out->inv_freq[j] = is_long || is_short ? scaled : mixed;
    }
    return LS_OK;
}

/* Of YaRN (Peng et al. 2023, arXiv:2309.00071): the frequency number at which a wave turns so often in `original`. */
static double yarn_border(double turns, double base, double original, int64_t dim) {
    return (double)dim * ls_log64(original / (turns * 2.0 * PI_64)) / (2.0 * ls_log64(base));
}

static double yarn_scale(double factor, double m) { return factor <= 1.0 ? 1.0 : 0.1 * m * ls_log64(factor) + 1.0; }

static ls_status scale_yarn(ls_rope_config *out, const rope_source *s, double base, int64_t positions_max,
                            ls_error *err) {
    const int64_t dim = 2 * (int64_t)out->half;
    const json_t *truncate = some(s->object, "truncate");
    double original, factor, fast, slow, m, m_all, attention, low, high;
    LS_TRY(read_rope_number(&original, s, "original_max_position_embeddings", (double)positions_max, 1.0, 1e18, err));
    LS_TRY(read_rope_number(&factor, s, "factor", (double)positions_max / original, 1.0, 1e6, err));
    LS_TRY(read_rope_number(&fast, s, "beta_fast", 32.0, 1e-6, 1e9, err));
    LS_TRY(read_rope_number(&slow, s, "beta_slow", 1.0, 1e-6, 1e9, err));
    LS_TRY(read_rope_number(&m, s, "mscale", 0.0, 0.0, 1e3, err));
    LS_TRY(read_rope_number(&m_all, s, "mscale_all_dim", 0.0, 0.0, 1e3, err));
    LS_TRY(read_rope_number(
        &attention, s, "attention_factor",
        m > 0.0 && m_all > 0.0 ? yarn_scale(factor, m) / yarn_scale(factor, m_all) : yarn_scale(factor, 1.0), 1e-6, 1e3,
        err));
    if (truncate != NULL && !json_is_boolean(truncate))
        return fail_field(s, "truncate", truncate, "true or false", err);
    low = yarn_border(fast, base, original, dim);
    high = yarn_border(slow, base, original, dim);
    if (truncate == NULL || json_is_true(truncate)) {
        low = floor(low);
        high = ceil(high);
    }
    if (!(low > 0.0)) low = 0.0;
    if (!(high < (double)(dim - 1))) high = (double)(dim - 1);
    if (low == high) high += 0.001;
    for (int32_t j = 0; j < out->half; j++) {
        const float p = power_of(base, j, dim), ramp = ls_div(ls_sub((float)j, (float)low), (float)(high - low));
        const float kept = ls_sub(1.0f, ls_min(ls_max(ramp, 0.0f), 1.0f));
        const float slower = ls_div(1.0f, ls_mul((float)factor, p));
        out->inv_freq[j] = ls_add(ls_mul(slower, ls_sub(1.0f, kept)), ls_mul(ls_div(1.0f, p), kept));
    }
    out->scale = (float)attention;
    return LS_OK;
}

/* ---- the whole ---- */

static ls_status read_theta(double *out, const rope_source *s, double by_default, ls_error *err) {
    const json_t *value = some(s->object, "rope_theta");
    char shown[LS_JSON_SHOW_MAX];
    if (value == NULL) value = some(s->config, "rope_theta");
    *out = value == NULL ? by_default : json_number_value(value);
    if (value != NULL && !(json_is_number(value) && *out > 1.0 && *out <= 1e30))
        return LS_FAIL(err, LS_ERR_FORMAT, "rope_theta: %s, expected a number above 1", ls_json_show(value, shown));
    return LS_OK;
}

static const json_t *share_in(const rope_source *s) {
    const json_t *value = some(s->object, "partial_rotary_factor");
    return value != NULL ? value : some(s->config, "partial_rotary_factor");
}

/* The share of a head's columns that rotate, which is the architecture's, and may stand in the file. */
static ls_status check_share(const rope_source *s, double share, ls_error *err) {
    const json_t *value = share_in(s);
    char shown[LS_JSON_SHOW_MAX];
    if (value == NULL || (json_is_number(value) && json_number_value(value) == share)) return LS_OK;
    return LS_FAIL(err, LS_ERR_UNSUPPORTED, "partial_rotary_factor: %s, expected %g", ls_json_show(value, shown),
                   share);
}

static ls_status read_rope_type(const char **out, const rope_source *s, ls_error *err) {
    const json_t *value = some(s->object, "rope_type");
    if (value == NULL) value = some(s->object, "type");
    *out = value == NULL ? "default" : json_string_value(value);
    return *out != NULL ? LS_OK : fail_field(s, "rope_type", value, "a name", err);
}

/* head_dim: the columns that rotate. */
static ls_status read_rope(ls_rope_config *out, const rope_source *source, int64_t head_dim, double default_theta,
                           const char *const *inert, int64_t positions_max, ls_error *err) {
    const rope_source s = *source;
    const char *type;
    double theta;
    LS_TRY(read_theta(&theta, &s, default_theta, err));
    LS_TRY(read_rope_type(&type, &s, err));
    if (head_dim % 2 != 0 || head_dim > 2 * LS_ROPE_HALF_MAX)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "head_dim: %lld; heads that rotate are even and at most %d",
                       (long long)head_dim, 2 * LS_ROPE_HALF_MAX);
    *out = (ls_rope_config){.half = (int32_t)(head_dim / 2), .scale = 1.0f};
    for (int32_t j = 0; j < out->half; j++) out->inv_freq[j] = ls_div(1.0f, power_of(theta, j, head_dim));
    if (strcmp(type, "dynamic") == 0 || strcmp(type, "longrope") == 0 || strcmp(type, "su") == 0)
        return LS_FAIL(
            err, LS_ERR_UNSUPPORTED,
            "%s.rope_type: \"%s\": its frequencies change with the length of a sequence, so that cached keys "
            "would be of another rotation; default, linear, llama3 and yarn are built",
            s.field, type);
    if (s.object != NULL) LS_TRY(check_keys(&s, inert, err));
    if (strcmp(type, "default") == 0) return LS_OK;
    if (strcmp(type, "linear") == 0) return scale_linear(out, &s, err);
    if (strcmp(type, "llama3") == 0) return scale_llama3(out, &s, positions_max, err);
    if (strcmp(type, "yarn") == 0) return scale_yarn(out, &s, theta, positions_max, err);
    return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s.rope_type: \"%.40s\"; default, linear, llama3 and yarn are built",
                   s.field, type);
}

ls_status ls_rope_fields_read(ls_rope_config *out, const json_t *config, int64_t head_dim, double default_theta,
                              int64_t positions_max, ls_error *err) {
    rope_source s;
    LS_TRY(find_source(&s, config, err));
    LS_TRY(check_share(&s, 1.0, err));
    return read_rope(out, &s, head_dim, default_theta, NULL, positions_max, err);
}

ls_status ls_rope_fields_read_half(ls_rope_config *out, const json_t *config, int64_t head_dim, double default_theta,
                                   int64_t positions_max, ls_error *err) {
    rope_source s;
    if (head_dim % 4 != 0)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "head_dim: %lld; heads of which half rotates are multiples of 4",
                       (long long)head_dim);
    LS_TRY(find_source(&s, config, err));
    LS_TRY(check_share(&s, 0.5, err));
    return read_rope(out, &s, head_dim / 2, default_theta, NULL, positions_max, err);
}

ls_status ls_rope_fields_read_share(ls_rope_config *out, const json_t *config, int64_t head_dim,
                                    const ls_rope_family *family, int64_t positions_max, ls_error *err) {
    rope_source s;
    const json_t *value;
    double share = family->share;
    int64_t rotated;
    char shown[LS_JSON_SHOW_MAX];
    LS_TRY(find_source(&s, config, err));
    if ((value = share_in(&s)) != NULL) share = json_number_value(value);
    if (value != NULL && !(json_is_number(value) && share > 0.0 && share <= 1.0))
        return LS_FAIL(err, LS_ERR_FORMAT, "partial_rotary_factor: %s, expected a number above 0 and at most 1",
                       ls_json_show(value, shown));
    rotated = (int64_t)((double)head_dim * share);
    if (rotated < 2 || rotated % 2 != 0)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "partial_rotary_factor: %g of head_dim %lld is %lld, expected even",
                       share, (long long)head_dim, (long long)rotated);
    return read_rope(out, &s, rotated, family->theta, family->inert, positions_max, err);
}
