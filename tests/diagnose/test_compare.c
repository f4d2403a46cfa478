/* The comparison: measures against values computed with NumPy in float64, alignment rules, refusals, exit codes. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "diagnose/compare/compare.h"
#include "harness.h"

static ls_record *parse(const char *text, const char *name, int64_t *n) {
    ls_record *records;
    ls_error err;
    assert_ok(ls_records_parse(&records, n, text, (int64_t)strlen(text), name, LS_RECORD_LOGPROB, &err), err);
    return records;
}

typedef struct both {
    ls_record *a, *b;
    int64_t n_a, n_b;
    ls_comparison c;
} both;

static both compare(const char *text_a, const char *text_b, int64_t worst_max) {
    both s;
    ls_error err;
    s.a = parse(text_a, "A", &s.n_a);
    s.b = parse(text_b, "B", &s.n_b);
    assert_ok(ls_compare(&s.c, &(ls_compared){s.a, s.n_a, "A"}, &(ls_compared){s.b, s.n_b, "B"}, worst_max, &err), err);
    return s;
}

static void release(both *s) {
    ls_comparison_deinit(&s->c);
    ls_records_free(s->a, s->n_a);
    ls_records_free(s->b, s->n_b);
}

static void refused(const char *text_a, const char *text_b, const char *word) {
    int64_t n_a, n_b;
    ls_record *a = parse(text_a, "A", &n_a), *b = parse(text_b, "B", &n_b);
    ls_comparison c;
    ls_error err;
    check_failed(ls_compare(&c, &(ls_compared){a, n_a, "A"}, &(ls_compared){b, n_b, "B"}, 3, &err), &err, word);
    ls_records_free(a, n_a);
    ls_records_free(b, n_b);
}

static void assert_near(double value, double expected) {
    if (!(fabs(value - expected) <= 1e-12 * (1.0 + fabs(expected)))) fail_msg("%.17g is not %.17g", value, expected);
}

#define SIDE_A                                                                                              \
    "{\"id\":\"s0\",\"completion_ids\":[10,11,12,13,14,15],\"logprobs\":[-0.5,-1.25,-3,-0.0625,-2.5,-7]}\n" \
    "{\"id\":\"s1\",\"completion_ids\":[20,21,22,23],\"logprobs\":[-0.125,-4,null,-1]}\n"                   \
    "{\"id\":\"s2\",\"completion_ids\":[30],\"logprobs\":[-10]}\n"
/* In another order: alignment is by id. */
#define SIDE_B                                                                                                 \
    "{\"id\":\"s2\",\"completion_ids\":[30],\"logprobs\":[-9]}\n"                                              \
    "{\"id\":\"s0\",\"completion_ids\":[10,11,12,13,14,15],\"logprobs\":[-0.5,-1.5,-2.875,-0.0625,null,-6]}\n" \
    "{\"id\":\"s1\",\"completion_ids\":[20,21,22,23],\"logprobs\":[-0.25,-4,-2,-0.75]}\n"

static void measures_are_those_of_numpy(void **state) {
    both s = compare(SIDE_A, SIDE_B, 3);
    const ls_comparison *c = &s.c;
    const double quantiles[] = {0.125, 1.0, 1.0, 1.0};
    const double lags[] = {-0.659911168316473, -0.69057880294182, 0.997459962737481, -0.804474166908645,
                           -0.649195086720802};
    (void)state;
    assert_int_equal(c->n_sequences, 3);
    assert_int_equal(c->n_sequences_different, 3);
    assert_int_equal(c->n_sequences_without_ids, 0);
    assert_int_equal(c->n_compared, 9);
    assert_int_equal(c->measures.n, 9);
    assert_int_equal(c->n_equal, 3);
    assert_int_equal(c->n_different, 6);
    assert_int_equal(c->missing_a, 1);
    assert_int_equal(c->missing_b, 1);
    assert_int_equal(c->missing_both, 0);
    assert_int_equal(c->unaligned, 0);
    assert_near(c->measures.equal_fraction, 3.0 / 9.0);
    assert_near(c->measures.abs_mean, 0.305555555555556);
    assert_near(c->measures.abs_std, 0.405581715290246);
    assert_near(c->measures.abs_min, 0.0);
    assert_near(c->measures.abs_max, 1.0);
    for (int i = 0; i < LS_QUANTILES; i++) assert_near(c->measures.abs_quantiles[i], quantiles[i]);
    assert_near(c->measures.signed_mean, 0.222222222222222);
    assert_near(c->measures.k1, -0.222222222222222);
    assert_near(c->measures.k2, 0.119791666666667);
    assert_near(c->measures.k3, 0.168337245814295);
    assert_near(c->measures.k3_reverse, 0.0904700486392725);
    assert_near(c->measures.rho_mean, 1.39055946803652);
    assert_near(c->measures.rho_geometric, 1.24884886900168);
    assert_near(c->measures.rho_min, 0.778800783071405);
    assert_near(c->measures.rho_max, 2.71828182845905);
    assert_near(c->measures.rho_std, 0.765938119295481);
    assert_near(c->measures.chi2_token, 1.45513225867036);
    assert_near(c->measures.effective_fraction, 0.787597339132038);
    assert_near(c->measures.mult_error, 1.47454571071414);
    assert_near(c->measures.prob_mean, 0.031092424335097);
    assert_near(c->measures.prob_std, 0.0461418226195257);
    assert_near(c->measures.prob_max, 0.104487111569572);
    assert_near(c->measures.prob_correlation, 0.989139283291522);
    assert_near(c->measures.sequence_abs_mean, 0.466666666666667);
    assert_near(c->measures.sequence_abs_max, 1.0);
    assert_string_equal(c->sequence_worst, "s2");
    assert_near(c->measures.slope, 0.882432554362537);
    assert_near(c->measures.intercept, -0.12966367409546);
    assert_near(c->measures.residual, 0.206028028549093);
    assert_near(c->measures.position_slope, 0.100694444444444);
    assert_near(c->measures.position_abs_slope, 0.0694444444444445);
    for (int i = 0; i < LS_LAGS; i++) assert_near(c->measures.lag_correlation[i], lags[i]);
    assert_false(ls_comparison_same(c));
    release(&s);
}

static void worst_tokens_come_first(void **state) {
    both s = compare(SIDE_A, SIDE_B, 3);
    (void)state;
    assert_int_equal(s.c.n_worst, 3);
    assert_string_equal(s.c.worst[0].id, "s0");
    assert_int_equal(s.c.worst[0].position, 5);
    assert_int_equal(s.c.worst[0].token, 15);
    assert_true(s.c.worst[0].a == -7.0f && s.c.worst[0].b == -6.0f);
    assert_int_equal(s.c.worst[0].ulps, 1 << 21); /* both in [4, 8), where a step is 2^-21 */
    assert_string_equal(s.c.worst[1].id, "s2");   /* the same difference, later in A */
    assert_int_equal(s.c.worst[1].ulps, 1 << 20);
    assert_string_equal(s.c.worst[2].id, "s0");
    assert_int_equal(s.c.worst[2].position, 1);
    release(&s);
    s = compare(SIDE_A, SIDE_B, 0);
    assert_int_equal(s.c.n_worst, 0);
    release(&s);
    s = compare(SIDE_A, SIDE_B, LS_WORST_MAX);
    assert_int_equal(s.c.n_worst, 6);
    release(&s);
}

static void equal_files_are_the_same(void **state) {
    both s = compare(SIDE_A, SIDE_A, 3);
    (void)state;
    assert_true(ls_comparison_same(&s.c));
    assert_int_equal(s.c.missing_both, 1);
    assert_int_equal(s.c.n_sequences_different, 0);
    assert_near(s.c.measures.slope, 1.0);
    assert_near(s.c.measures.rho_mean, 1.0);
    assert_near(s.c.measures.k3, 0.0);
    assert_near(s.c.measures.prob_correlation, 1.0);
    release(&s);
}

static void a_value_on_one_side_only_is_a_difference(void **state) {
    both s = compare("{\"id\":\"a\",\"logprobs\":[-1,-2]}", "{\"id\":\"a\",\"logprobs\":[-1,null]}", 3);
    (void)state;
    assert_int_equal(s.c.n_different, 0);
    assert_int_equal(s.c.missing_b, 1);
    assert_int_equal(s.c.n_sequences_different, 1);
    assert_int_equal(s.c.n_sequences_without_ids, 1);
    assert_false(ls_comparison_same(&s.c));
    release(&s);
}

static void special_values_are_counted_as_bits(void **state) {
    /* NaN and the same NaN, NaN and another, +inf and -inf, 0 and -0, a positive value, two ordinary ones. NaN agrees
     * with nothing, itself included. */
    both s = compare(
        "{\"id\":\"a\",\"logprob_bits\":[\"7fc00000\",\"7fc00000\",\"7f800000\",\"00000000\",\"3727c5ac\",\"bf800000\"]"
        "}",
        "{\"id\":\"a\",\"logprob_bits\":[\"7fc00000\",\"7fc00001\",\"ff800000\",\"80000000\",\"3727c5ac\",\"bf800001\"]"
        "}",
        9);
    (void)state;
    assert_int_equal(s.c.n_compared, 6);
    assert_int_equal(s.c.n_equal, 1);
    assert_int_equal(s.c.n_different, 5);
    assert_int_equal(s.c.measures.n, 3);
    assert_int_equal(s.c.special_a.nan, 2);
    assert_int_equal(s.c.special_a.plus_infinity, 1);
    assert_int_equal(s.c.special_b.minus_infinity, 1);
    assert_int_equal(s.c.special_a.zero, 1);
    assert_int_equal(s.c.special_b.zero, 1);
    assert_int_equal(s.c.special_a.positive, 1);
    assert_int_equal(s.c.n_worst, 5);
    assert_int_equal(s.c.worst[0].position, 0); /* pairs that are not finite come first */
    assert_int_equal(s.c.worst[0].ulps, -1);
    assert_int_equal(s.c.worst[1].position, 1);
    assert_int_equal(s.c.worst[1].ulps, -1);
    assert_int_equal(s.c.worst[2].position, 2);
    assert_int_equal(s.c.worst[2].ulps, 2 * (int64_t)0x7f800000 + 1);
    assert_int_equal(s.c.worst[3].position, 5);
    assert_int_equal(s.c.worst[3].ulps, 1);
    assert_int_equal(s.c.worst[4].position, 3);
    assert_int_equal(s.c.worst[4].ulps, 1);
    release(&s);
}

static void other_distributions_are_refused(void **state) {
    refused("{\"id\":\"a\",\"logprobs\":[-1],\"meta\":{\"logprob_of\":\"raw\"}}",
            "{\"id\":\"a\",\"logprobs\":[-1],\"meta\":{\"logprob_of\":\"processed\"}}",
            "logprob_of: raw in the first file");
    (void)state;
}

static void not_a_number_is_never_the_same(void **state) {
    both s = compare("{\"id\":\"a\",\"logprob_bits\":[\"7fc00000\",\"bf800000\"]}",
                     "{\"id\":\"a\",\"logprob_bits\":[\"7fc00000\",\"bf800000\"]}", 3);
    (void)state;
    assert_int_equal(s.c.n_different, 1);
    assert_false(ls_comparison_same(&s.c));
    release(&s);
}

static void nothing_finite_leaves_the_measures_empty(void **state) {
    both s = compare("{\"id\":\"a\",\"logprob_bits\":[\"7fc00000\"]}", "{\"id\":\"a\",\"logprobs\":[-1]}", 3);
    (void)state;
    assert_int_equal(s.c.n_different, 1);
    assert_true(isnan(s.c.measures.abs_mean) && isnan(s.c.measures.k3) && isnan(s.c.measures.lag_correlation[2]));
    assert_null(s.c.sequence_worst);
    release(&s);
}

static void full_and_completion_are_aligned_at_the_end(void **state) {
    const char *full = "{\"id\":\"a\",\"token_ids\":[1,2,3,4],\"logprobs\":[-9,-2,-3]}";
    const char *part = "{\"id\":\"a\",\"prompt_ids\":[1,2],\"completion_ids\":[3,4],\"logprobs\":[-2,-3.5]}";
    both s = compare(full, part, 3);
    (void)state;
    assert_int_equal(s.c.n_compared, 2);
    assert_int_equal(s.c.n_equal, 1);
    assert_int_equal(s.c.unaligned, 1);
    assert_int_equal(s.c.worst[0].position, 1);
    assert_int_equal(s.c.worst[0].token, 4);
    release(&s);
    s = compare(part, full, 3);
    assert_int_equal(s.c.n_equal, 1);
    assert_int_equal(s.c.worst[0].token, 4);
    release(&s);
    s = compare(part, "{\"id\":\"a\",\"logprobs\":[-9,-2,-3]}", 3); /* bare, of the whole sequence */
    assert_int_equal(s.c.n_equal, 1);
    assert_int_equal(s.c.worst[0].token, 4);
    release(&s);
    s = compare("{\"id\":\"a\",\"logprobs\":[-2,-3]}", full, 3); /* bare, of the completion */
    assert_int_equal(s.c.n_equal, 2);
    release(&s);
}

static void what_does_not_match_up_is_refused(void **state) {
    (void)state;
    refused("{\"id\":\"a\",\"logprobs\":[-1]}\n{\"id\":\"b\",\"logprobs\":[-1]}", "{\"id\":\"c\",\"logprobs\":[-1]}",
            "A line 1: id 'a' is not in B, nor is any other of its 2");
    refused("{\"id\":\"a\",\"logprobs\":[-1]}", "{\"id\":\"a\",\"logprobs\":[-1,-1]}",
            "A line 1, B line 1: id 'a': 1 logprobs in the first file and 2 in the second");
    refused("{\"id\":\"a\",\"logprobs\":[null]}", "{\"id\":\"a\",\"logprobs\":[-1]}", "no token has a log-probability");
    refused("{\"id\":\"a\",\"completion_ids\":[5,6],\"logprobs\":[-1,-1]}",
            "{\"id\":\"a\",\"completion_ids\":[5,7],\"logprobs\":[-1,-1]}",
            "completion_ids 1 is 6 in the first file and 7 in the second");
    refused("{\"id\":\"a\",\"completion_ids\":[5],\"logprobs\":[-1],\"seed\":1,\"meta\":{\"temperature\":1}}",
            "{\"id\":\"a\",\"completion_ids\":[7],\"logprobs\":[-1],\"seed\":2,\"meta\":{\"temperature\":0.5}}",
            "drawn at the temperatures 1 and 0.5: drawn with the seeds 1 and 2: id 'a': completion_ids 0 is 5");
    refused("{\"id\":\"a\",\"prompt_ids\":[1],\"completion_ids\":[5],\"logprobs\":[-1]}",
            "{\"id\":\"a\",\"prompt_ids\":[2],\"completion_ids\":[5],\"logprobs\":[-1]}", "prompt_ids 0 is 1");
    refused("{\"id\":\"a\",\"prompt_ids\":[1],\"completion_ids\":[5],\"logprobs\":[-1]}",
            "{\"id\":\"a\",\"prompt_ids\":[1,1],\"completion_ids\":[5],\"logprobs\":[-1]}", "1 of prompt_ids");
    refused("{\"id\":\"a\",\"token_ids\":[1,2],\"logprobs\":[-1]}",
            "{\"id\":\"a\",\"token_ids\":[1,3],\"logprobs\":[-1]}", "token_ids 1 is 2");
    refused("{\"id\":\"a\",\"token_ids\":[1,2,3],\"logprobs\":[-1,-1]}",
            "{\"id\":\"a\",\"completion_ids\":[4],\"logprobs\":[-1]}",
            "token 2 is 3 in the first file and 4 in the second");
    refused("{\"id\":\"a\",\"prompt_ids\":[1],\"completion_ids\":[3],\"logprobs\":[-1]}",
            "{\"id\":\"a\",\"token_ids\":[1,2,3],\"logprobs\":[-1,-1]}", "3 token_ids against 1 prompt_ids");
    refused("{\"id\":\"a\",\"completion_ids\":[3,3,3],\"logprobs\":[-1,-1,-1]}",
            "{\"id\":\"a\",\"token_ids\":[3,3],\"logprobs\":[-1]}", "2 token_ids against");
}

static char *print(const both *s) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    ls_comparison_print(file, &s->c, "A", "B");
    fclose(file);
    return text;
}

/* What one side alone has is counted, and is no agreement. */
static void unequal_sets_are_compared_where_they_meet(void **state) {
    both s = compare(
        "{\"id\":\"x\",\"logprobs\":[-5]}\n{\"id\":\"b\",\"logprobs\":[-1,-2]}\n"
        "{\"id\":\"a\",\"logprobs\":[-1]}",
        "{\"id\":\"a\",\"logprobs\":[-1]}\n{\"id\":\"b\",\"logprobs\":[-1,-3]}\n"
        "{\"id\":\"y\",\"logprobs\":[-1]}\n{\"id\":\"z\",\"logprobs\":[-1]}",
        3);
    char *text = print(&s);
    (void)state;
    assert_true(s.c.n_sequences == 2 && s.c.n_only_a == 1 && s.c.n_only_b == 2);
    assert_true(s.c.n_compared == 3 && s.c.n_different == 1 && s.c.n_sequences_different == 1);
    assert_string_equal(s.c.worst[0].id, "b");
    assert_string_equal(s.c.sequence_worst, "b");
    assert_non_null(strstr(text, "2 in both, which are compared, 1 in A only, 2 in B only\n"));
    free(text);
    release(&s);
    s = compare("{\"id\":\"a\",\"logprobs\":[-1]}\n{\"id\":\"b\",\"logprobs\":[-1]}",
                "{\"id\":\"a\",\"logprobs\":[-1]}", 3);
    assert_true(s.c.n_different == 0 && !ls_comparison_same(&s.c));
    release(&s);
}

static void circumstances_are_told(void **state) {
    both s = compare(
        "{\"id\":\"a\",\"logprobs\":[-1],\"finish\":\"error\",\"seed\":1,\"meta\":{\"temperature\":1}}\n"
        "{\"id\":\"b\",\"logprobs\":[-1],\"seed\":2}",
        "{\"id\":\"a\",\"logprobs\":[-1],\"finish\":\"stop\",\"seed\":2,\"meta\":{\"temperature\":0.5}}\n"
        "{\"id\":\"b\",\"logprobs\":[-1],\"seed\":2}",
        3);
    char *text = print(&s);
    (void)state;
    assert_non_null(strstr(text, "finish is error in 1 sequences of A and 0 of B"));
    assert_non_null(strstr(text, "the seeds of A and B differ in 1 sequences"));
    assert_non_null(strstr(text, "the temperatures of A and B differ in 1 sequences"));
    free(text);
    release(&s);
    s = compare(SIDE_A, SIDE_B, 1);
    text = print(&s);
    assert_null(strstr(text, "note:"));
    free(text);
    release(&s);
}

static void words_of_python_are_missing_values(void **state) {
    both s = compare("{\"id\":\"NaN\",\"logprobs\":[NaN,-1,-Infinity,Infinity]}",
                     "{\"id\":\"NaN\",\"logprobs\":[-1,-1,null,-2]}", 3);
    (void)state;
    assert_true(s.c.n_compared == 1 && s.c.n_equal == 1 && s.c.missing_a == 2 && s.c.missing_both == 1);
    release(&s);
}

/* Records of one digest have equal bits, so that no difference between them is rounding. */
static void one_digest_leaves_no_rounding(void **state) {
    static const char *const digests[][2] = {{"exact/3/f32", "exact/3/f32"}, {"exact/3/f32", "exact/3/bf16"}, {"", ""}};
    (void)state;
    for (int i = 0; i < 3; i++) {
        char a[300], b[300], *text = NULL;
        size_t bytes = 0;
        FILE *file = open_memstream(&text, &bytes);
        const bool same = i == 0;
        both s;
        snprintf(a, sizeof a, "{\"id\":\"x\",\"logprobs\":[-1,-2,-3]%s%s%s}", i < 2 ? ",\"meta\":{\"digest\":\"" : "",
                 digests[i][0], i < 2 ? "\"}" : "");
        snprintf(b, sizeof b, "{\"id\":\"x\",\"logprobs\":[-1,-2.000001,-3]%s%s%s}",
                 i < 2 ? ",\"meta\":{\"digest\":\"" : "", digests[i][1], i < 2 ? "\"}" : "");
        s = compare(a, b, 3);
        ls_comparison_print(file, &s.c, "A", "B");
        fclose(file);
        assert_true((s.c.digest != NULL) == same);
        assert_true((strstr(text, "both sides say exact/3/f32, which promises equal bits") != NULL) == same);
        assert_true((strstr(text, "\nrecords of one digest differ\n") != NULL) == same);
        assert_true((strstr(text, "ordinary rounding") != NULL) == !same);
        free(text);
        release(&s);
    }
}

static void json_has_every_part(void **state) {
    both s = compare(SIDE_A, SIDE_B, 1);
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    ls_json_out json;
    (void)state;
    ls_json_init(&json, file);
    ls_comparison_write(&json, &s.c, "A", "B");
    fclose(file);
    assert_non_null(strstr(text, "{\"a\":\"A\",\"b\":\"B\",\"same\":false,\"counts\":{\"sequences\":3,"));
    assert_non_null(strstr(text,
                           "\"worst\":[{\"id\":\"s0\",\"position\":5,\"token\":15,\"a\":-7,\"a_bits\":\"c0e00000\","
                           "\"b\":-6,\"b_bits\":\"c0c00000\",\"abs_diff\":1,\"ulps\":2097152}]"));
    assert_non_null(strstr(text, "\"rollout_corr/kl\":-0.2222222222222222"));
    free(text);
    release(&s);
}

static void write_text(const char *dir, const char *name, const char *text) {
    char path[100];
    FILE *file;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

/* ---- causes ---- */

typedef enum planted {
    NOTHING,
    SHIFT,
    SCALE,
    TEMPERATURE,
    TOP_HALF,
    TWO_DECIMALS,
    FAR_SLOTS,
    PREEMPTED,
    HITS,
    DECODED,
    LATE
} planted;

enum { SEQUENCES = 48, LENGTH = 40, VOCAB = 24 };

static double uniform(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return ((double)(*state >> 33) + 0.5) / 2147483648.0;
}

static double normal(uint64_t *state) {
    const double a = uniform(state), b = uniform(state);
    return sqrt(-2.0 * log(a)) * cos(6.283185307179586 * b);
}

static double log_softmax(const double *row, int token, double temperature, double least) {
    double sum = 0.0;
    for (int i = 0; i < VOCAB; i++)
        if (row[i] >= least) sum += exp(row[i] / temperature);
    return row[token] / temperature - log(sum);
}

/* One token: drawn from the row, with the trainer's value and what a rollout of this fault records. */
static int draw(uint64_t *state, planted fault, double *t, double *r) {
    const double temperature = fault == TEMPERATURE ? 0.7 : 1.0;
    double row[VOCAB], best = -1e9, least = -1e9;
    int token = 0;
    for (int i = 0; i < VOCAB; i++) row[i] = 2.0 * normal(state);
    if (fault == TOP_HALF) least = 0.0;
    for (int i = 0; i < VOCAB; i++) {
        const double score = row[i] / temperature - log(-log(uniform(state)));
        if (row[i] >= least && score > best) best = score, token = i;
    }
    *t = log_softmax(row, token, 1.0, -1e9);
    *r = log_softmax(row, token, temperature, least) * (1.0 + 1e-4 * normal(state));
    if (fault == SCALE) *r *= 0.43;
    if (fault == TWO_DECIMALS) *r = rint(*r * 100.0) / 100.0;
    return token;
}

static void write_side(FILE *file, planted fault, bool rollout) {
    uint64_t state = 7;
    for (int s = 0; s < SEQUENCES; s++) {
        double before = 0.0;
        const int slot = s * 5 % SEQUENCES, hit = s % 3 == 0, preempted = s % 4 == 0;
        fprintf(file, "{\"id\":\"s%d\",\"meta\":{\"slot\":%d,\"cache_hit\":%d,\"preemptions\":%d},\"logprobs\":[", s,
                slot, hit, preempted);
        for (int i = 0; i < LENGTH; i++) {
            double t, r, value;
            (void)draw(&state, fault, &t, &r);
            if ((fault == FAR_SLOTS && slot >= 30) || (fault == PREEMPTED && preempted) || (fault == HITS && hit) ||
                (fault == DECODED && i > 0) || (fault == LATE && i >= 25))
                r *= 1.0 + 0.3 * normal(&state);
            else
                (void)normal(&state);
            value = !rollout ? t : fault == SHIFT && i > 0 ? before : r;
            before = r;
            fprintf(file, "%s%.9g", i > 0 ? "," : "", (double)(float)fmin(value, 0.0));
        }
        fputs("]}\n", file);
    }
}

static void causes_are_told_by_structure(void **state) {
    static const struct {
        planted fault;
        const char *cause;
    } rows[] = {
        {NOTHING, NULL},
        {SHIFT, "records shifted"},
        {SCALE, "log-probabilities scaled"},
        {TEMPERATURE, "temperature on one side only"},
        {TOP_HALF, "top-k or top-p on one side only"},
        {TWO_DECIMALS, "log-probabilities in low precision"},
        {FAR_SLOTS, "slot offset wraps"},
        {PREEMPTED, "preempted sequences come back wrong"},
        {HITS, "prefix hits are wrong"},
        {DECODED, "other arithmetic in decode"},
        {LATE, "wrong from a length on"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *a = NULL, *b = NULL, *page = NULL;
        size_t bytes;
        FILE *file = open_memstream(&a, &bytes);
        const ls_finding *named;
        both s;
        write_side(file, rows[i].fault, true);
        fclose(file);
        file = open_memstream(&b, &bytes);
        write_side(file, rows[i].fault, false);
        fclose(file);
        s = compare(a, b, 3);
        named = ls_compare_named(&s.c.causes);
        if (rows[i].cause == NULL)
            assert_true(named == NULL && s.c.causes.rounding);
        else if (named == NULL || strcmp(ls_cause_name(named->cause), rows[i].cause) != 0) {
            for (int64_t k = 0; k < s.c.causes.found.n; k++)
                print_message("%.2f %s: %s\n", s.c.causes.found.of[k].confidence,
                              ls_cause_name(s.c.causes.found.of[k].cause), s.c.causes.found.of[k].evidence);
            fail_msg("%s is not named", rows[i].cause);
        }
        file = open_memstream(&page, &bytes);
        ls_comparison_html(file, &s.c, "A", "B");
        fclose(file);
        assert_non_null(strstr(page, rows[i].cause != NULL ? rows[i].cause : "ordinary rounding"));
        assert_null(strstr(page, "<script"));
        release(&s);
        free(a);
        free(b);
        free(page);
    }
}

static int run(const char *dir, const char *arguments) {
    char command[1000];
    int result;
    snprintf(command, sizeof command, "cd %s && %s compare %s >stdout 2>stderr", dir, LS_PROGRAM, arguments);
    result = system(command);
    assert_true(WIFEXITED(result));
    return WEXITSTATUS(result);
}

static void exit_codes_tell_the_outcome(void **state) {
    char dir[] = "/tmp/ls-test-XXXXXX", command[100];
    (void)state;
    assert_non_null(mkdtemp(dir));
    write_text(dir, "a", SIDE_A);
    write_text(dir, "b", SIDE_B);
    write_text(dir, "c", "{\"id\":\"other\",\"logprobs\":[-1]}\n");
    assert_int_equal(run(dir, "a a"), 0);
    assert_int_equal(run(dir, "a b"), 3);
    assert_int_equal(run(dir, "--json --worst 0 a - <b --out report"), 3);
    assert_int_equal(run(dir, "a b --html page"), 3);
    assert_int_equal(run(dir, "a c"), 2);
    assert_int_equal(run(dir, "a nothing"), 2);
    assert_int_equal(run(dir, "a b --out no/such/place"), 2);
    assert_int_equal(run(dir, "a"), 1);
    assert_int_equal(run(dir, "a b c"), 1);
    assert_int_equal(run(dir, "- -"), 1);
    assert_int_equal(run(dir, "--worst many a b"), 1);
    assert_int_equal(run(dir, "--unknown a b"), 1);
    assert_int_equal(run(dir, "--help"), 0);
    snprintf(command, sizeof command, "grep -q '\"same\":false' %s/report && rm -r %s", dir, dir);
    assert_int_equal(system(command), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(measures_are_those_of_numpy),
        cmocka_unit_test(worst_tokens_come_first),
        cmocka_unit_test(equal_files_are_the_same),
        cmocka_unit_test(a_value_on_one_side_only_is_a_difference),
        cmocka_unit_test(special_values_are_counted_as_bits),
        cmocka_unit_test(other_distributions_are_refused),
        cmocka_unit_test(not_a_number_is_never_the_same),
        cmocka_unit_test(nothing_finite_leaves_the_measures_empty),
        cmocka_unit_test(full_and_completion_are_aligned_at_the_end),
        cmocka_unit_test(what_does_not_match_up_is_refused),
        cmocka_unit_test(unequal_sets_are_compared_where_they_meet),
        cmocka_unit_test(circumstances_are_told),
        cmocka_unit_test(words_of_python_are_missing_values),
        cmocka_unit_test(one_digest_leaves_no_rounding),
        cmocka_unit_test(json_has_every_part),
        cmocka_unit_test(causes_are_told_by_structure),
        cmocka_unit_test(exit_codes_tell_the_outcome),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
