/* Entries of the optimizer: factors in binary64, checks, and one item a block of elements. */
#include "op/adamw.h"

#include <float.h>
#include <math.h>

#include "op/cpu/adamw_kernel.h"
#include "op/operand.h"

LS_KERNEL_TABLE(ls_adamw_kernel);
LS_KERNEL_TABLE(ls_squares_kernel);
LS_KERNEL_TABLE(ls_weight_cast_kernel);

static int64_t blocks_of(int64_t n, int64_t block) { return n / block + (n % block != 0); }

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
    ls_status status;
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
done:
    return status;
}

static ls_status check_arrays(const char *op, const ls_operand *operands, int64_t n_operands, int64_t n,
                              ls_error *err) {
    if (n < 0) return LS_FAIL(err, LS_ERR_ARG, "%s: n %lld is negative", op, (long long)n);
    return ls_operands_check(op, operands, n_operands, err);
}

ls_status ls_adamw(ls_queue *queue, const ls_adamw_args *args, ls_error *err) {
    const int64_t n = args->n;
    const ls_operand operands[] = {
        {"w", args->w, 1, n, n, 4, n == 0},
        {"m", args->m, 1, n, n, 4, n == 0},
        {"v", args->v, 1, n, n, 4, n == 0},
        {"grad", args->grad, 1, n, n, 4, n == 0},
    };
    const ls_status status = check_arrays("adamw", operands, 4, n, err);
    if (status != LS_OK) return status;
    ls_kernel_run(queue, ls_adamw_kernel_table, args, blocks_of(n, LS_ADAMW_BLOCK), 20 * LS_ADAMW_BLOCK);
    return LS_OK;
}

int64_t ls_squares_blocks(int64_t n) { return blocks_of(n, LS_SQUARES_BLOCK); }

ls_status ls_squares(ls_queue *queue, double *squares, const float *x, int64_t n, float *blocks, ls_error *err) {
    const ls_squares_call call = {x, n, blocks};
    const ls_operand operands[] = {
        {"squares", squares, 1, 1, 1, 8, false},
        {"x", x, 1, n, n, 4, n == 0},
        {"blocks", blocks, 1, 1, 1, 4, n == 0},
    };
    const ls_status status = check_arrays("squares", operands, 3, n, err);
    if (status != LS_OK) return status;
    ls_kernel_run(queue, ls_squares_kernel_table, &call, ls_squares_blocks(n), LS_SQUARES_BLOCK);
    for (int64_t i = 0; i < ls_squares_blocks(n); i++) *squares += (double)blocks[i];
    return LS_OK;
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

ls_status ls_weight_cast(ls_queue *queue, void *out, ls_dtype dtype, const float *w, int64_t n, ls_error *err) {
    const ls_weight_cast_call call = {w, n, out, dtype};
    const ls_operand operands[] = {
        {"out", out, 1, n, n, ls_dtype_bytes(dtype), n == 0},
        {"w", w, 1, n, n, 4, n == 0},
    };
    ls_status status;
    if (dtype != LS_F32 && dtype != LS_BF16)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "weight_cast: to %s; f32 and bf16 are built", ls_dtype_name(dtype));
    LS_TRY(check_arrays("weight_cast", operands, 2, n, err));
    ls_kernel_run(queue, ls_weight_cast_kernel_table, &call, blocks_of(n, LS_ADAMW_BLOCK), 4 * LS_ADAMW_BLOCK);
done:
    return status;
}
