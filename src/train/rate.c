/* Learning rates by multiplication and addition alone. */
#include "train/rate.h"

#include <math.h>

const char *ls_rate_name(ls_rate_kind kind) {
    static const char *const names[LS_RATE_COUNT] = {"constant", "linear", "cosine"};
    LS_ASSERT((int)kind >= 0 && kind < LS_RATE_COUNT, "rate %d", (int)kind);
    return names[kind];
}

ls_status ls_rate_check(const ls_rate *r, ls_error *err) {
    if (!(r->peak >= 0.0) || isinf(r->peak)) return LS_FAIL(err, LS_ERR_ARG, "learning rate: %g", r->peak);
    if (!(r->floor >= 0.0 && r->floor <= r->peak))
        return LS_FAIL(err, LS_ERR_ARG, "learning rate: the floor %g is not in 0..%g", r->floor, r->peak);
    if (r->warmup < 0) return LS_FAIL(err, LS_ERR_ARG, "learning rate: warm-up of %lld steps", (long long)r->warmup);
    if (r->kind != LS_RATE_CONSTANT && r->total <= r->warmup)
        return LS_FAIL(err, LS_ERR_ARG, "learning rate: %s over %lld steps, %lld of them warm-up",
                       ls_rate_name(r->kind), (long long)r->total, (long long)r->warmup);
    return LS_OK;
}

/* sin(pi u) / 2 for u in [-1/2, 1/2]. */
static double half_sine(double u) {
    static const double pi = 0x1.921fb54442d18p+1;
    const double v = pi * u, w = v * v;
    double factorial = 1.0, a[10], sum;
    for (int i = 0; i < 10; i++) {
        a[i] = (i % 2 == 0 ? 0.5 : -0.5) / factorial;
        factorial *= (2.0 * i + 2.0) * (2.0 * i + 3.0);
    }
    sum = a[9];
    for (int i = 8; i >= 0; i--) sum = a[i] + w * sum;
    return v * sum;
}

double ls_rate_at(const ls_rate *r, int64_t step) {
    double x, c;
    if (step < r->warmup) return r->peak * ((double)step / (double)r->warmup);
    if (step == r->warmup || r->kind == LS_RATE_CONSTANT) return r->peak;
    if (step >= r->total) return r->floor;
    x = (double)(step - r->warmup) / (double)(r->total - r->warmup);
    c = r->kind == LS_RATE_LINEAR ? 1.0 - x : 0.5 - half_sine(x - 0.5);
    return c * r->peak + (1.0 - c) * r->floor;
}
