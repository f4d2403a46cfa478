/* The optimizer: factors in binary64, and what the host can see of a call. */
#include "op/adamw.h"

#include <float.h>
#include <math.h>

#include "op/operand.h"

/* beta^step by squaring. */
static double power(double beta, int64_t step) {
    double p = 1.0;
    for (; step > 0; step /= 2, beta *= beta)
        if (step % 2 != 0) p *= beta;
    return p;
}

static ls_status check_option(const char *name, double value, bool valid, ls_error *err) {
    if (valid) return LS_OK;
    return LS_FAIL(err, LS_ERR_ARG, "adamw: %s %g is out of its range", name, value);
}

static bool is_beta(double beta) { return beta >= 0.0 && beta < 1.0 && (float)beta < 1.0f; }
static bool is_size(double x) { return x >= 0.0 && x <= (double)FLT_MAX; }

ls_status ls_adamw_factors_make(ls_adamw_factors *out, const ls_adamw_options *o, int64_t step, ls_error *err) {
    LS_TRY(check_option("lr", o->lr, is_size(o->lr), err));
    LS_TRY(check_option("beta1", o->beta1, is_beta(o->beta1), err));
    LS_TRY(check_option("beta2", o->beta2, is_beta(o->beta2), err));
    LS_TRY(check_option("eps", o->eps, is_size(o->eps) && (float)o->eps > 0.0f, err));
    LS_TRY(check_option("decay", o->decay, is_size(o->decay), err));
    if (step < 1) return LS_FAIL(err, LS_ERR_ARG, "adamw: step %lld is less than 1", (long long)step);
    out->lr = (float)o->lr;
    out->beta1 = (float)o->beta1;
    out->rest1 = (float)(1.0 - o->beta1);
    out->debias1 = (float)(1.0 / (1.0 - power(o->beta1, step)));
    out->beta2 = (float)o->beta2;
    out->rest2 = (float)(1.0 - o->beta2);
    out->debias2 = (float)(1.0 / sqrt(1.0 - power(o->beta2, step)));
    out->eps = (float)o->eps;
    out->decay = (float)o->decay;
    return LS_OK;
}

static ls_status check_arrays(const char *op, const ls_operand *operands, int64_t n_operands, int64_t n,
                              ls_error *err) {
    if (n < 0) return LS_FAIL(err, LS_ERR_ARG, "%s: n %lld is negative", op, (long long)n);
    return ls_operands_check(op, operands, n_operands, err);
}

static ls_status check_moments(const ls_adamw_args *a, ls_error *err) {
    const ls_adamw_rounding *r = &a->rounding;
    if (a->moments == LS_F32) return LS_OK;
    if (a->moments != LS_BF16)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "adamw: moments of type %s", ls_dtype_name(a->moments));
    if (r->step >= 1 && r->first >= 0 && r->first <= INT64_MAX - a->n) return LS_OK;
    return LS_FAIL(err, LS_ERR_ARG, "adamw: moments are rounded at step %lld, of %lld elements from %lld on",
                   (long long)r->step, (long long)a->n, (long long)r->first);
}

ls_status ls_adamw_check(const ls_adamw_args *args, ls_error *err) {
    const int64_t n = args->n, moment = args->moments == LS_F32 ? 4 : 2;
    const ls_operand operands[] = {
        {"w", args->w, 1, n, n, 4, n == 0},
        {"m", args->m, 1, n, n, moment, n == 0},
        {"v", args->v, 1, n, n, moment, n == 0},
        {"grad", args->grad, 1, n, n, 4, n == 0},
        {"value", args->value, 1, n, n, args->value != NULL ? ls_dtype_bytes(args->value_dtype) : 1, true},
    };
    if (args->value != NULL && ls_dtype_bytes(args->value_dtype) == 0)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "adamw: values of type %s", ls_dtype_name(args->value_dtype));
    if (args->parts != NULL && (args->value != NULL || args->n_parts < (n > 0) || args->n_parts > n))
        return LS_FAIL(err, LS_ERR_ARG, "adamw: %lld parts of %lld elements%s", (long long)args->n_parts, (long long)n,
                       args->value != NULL ? ", and a value beside theirs" : "");
    LS_TRY(check_arrays("adamw", operands, 5, n, err));
    return check_moments(args, err);
}

int64_t ls_squares_blocks(int64_t n) { return n / LS_SQUARES_BLOCK + (n % LS_SQUARES_BLOCK != 0); }

ls_status ls_squares_check(const ls_squares_args *args, ls_error *err) {
    const int64_t n = args->n;
    const ls_operand operands[] = {
        {"x", args->x, 1, n, n, 4, n == 0},
        {"blocks", args->blocks, 1, 1, 1, 4, n == 0},
    };
    if (args->ranges != NULL && args->n_ranges < 0)
        return LS_FAIL(err, LS_ERR_ARG, "squares: n_ranges %lld is negative", (long long)args->n_ranges);
    return check_arrays("squares", operands, 2, n, err);
}

double ls_squares_add(double squares, const float *blocks, int64_t n_blocks) {
    for (int64_t i = 0; i < n_blocks; i++) squares += (double)blocks[i];
    return squares;
}

ls_status ls_gradient_scale(float *scale, double *norm, double squares, double count, double max_norm, ls_error *err) {
    double length;
    if (!(squares >= 0.0) || isinf(squares))
        return LS_FAIL(err, LS_ERR_ARG, "gradient_scale: the sum of squares is %g", squares);
    if (!(count > 0.0) || isinf(count)) return LS_FAIL(err, LS_ERR_ARG, "gradient_scale: count %g", count);
    if (!(max_norm > 0.0)) return LS_FAIL(err, LS_ERR_ARG, "gradient_scale: max_norm %g", max_norm);
    length = sqrt(squares) / count;
    *scale = (float)(length > max_norm ? max_norm / length / count : 1.0 / count);
    if (norm != NULL) *norm = length;
    return LS_OK;
}
