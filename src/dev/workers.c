/* Queue life cycle and the run-time choice of instruction set. */
#include "dev/workers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

const char *ls_isa_name(ls_isa isa) {
    switch (isa) {
        case LS_ISA_GENERIC: return "generic";
        case LS_ISA_AVX2: return "avx2";
        case LS_ISA_AVX512: return "avx512";
        case LS_ISA_COUNT: break;
    }
    return "unknown";
}

bool ls_isa_parse(ls_isa *out, const char *name) {
    for (int isa = 0; isa < LS_ISA_COUNT; isa++)
        if (strcmp(name, ls_isa_name((ls_isa)isa)) == 0) {
            *out = (ls_isa)isa;
            return true;
        }
    return false;
}

bool ls_isa_available(ls_isa isa) {
    switch (isa) {
        case LS_ISA_GENERIC: return true;
#if defined(__x86_64__)
        case LS_ISA_AVX2: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
        case LS_ISA_AVX512:
            return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#else
        case LS_ISA_AVX2:
        case LS_ISA_AVX512: return false;
#endif
        case LS_ISA_COUNT: break;
    }
    return false;
}

ls_isa ls_isa_best(void) {
    if (ls_isa_available(LS_ISA_AVX512)) return LS_ISA_AVX512;
    return ls_isa_available(LS_ISA_AVX2) ? LS_ISA_AVX2 : LS_ISA_GENERIC;
}

/* home: whose threads they are; NULL: they have n_threads of their own. */
static ls_status create(ls_workers **out, const ls_workers *home, int32_t n_threads, ls_isa isa, ls_error *err) {
    ls_workers *workers;
    ls_status status;
    *out = NULL;
    workers = calloc(1, sizeof *workers);
    if (workers == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "workers");
    workers->isa = isa;
    status = home == NULL ? ls_pool_create(&workers->pool, n_threads, err)
                          : ls_pool_create_beside(&workers->pool, home->pool, n_threads, err);
    LS_TRY_DONE(status);
    LS_TRY_DONE(ls_array_alloc((void **)&workers->scratch, ls_pool_threads(workers->pool),
                               LS_SCRATCH_FLOATS * (int64_t)sizeof(float), "thread scratch", err));
    *out = workers;
    workers = NULL;
done:
    ls_workers_free(workers);
    return status;
}

ls_status ls_workers_create(ls_workers **out, int32_t n_threads, ls_isa isa, ls_error *err) {
    *out = NULL;
    if (!ls_isa_available(isa))
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "isa: this processor cannot run %s", ls_isa_name(isa));
    return create(out, NULL, n_threads, isa, err);
}

ls_status ls_workers_create_beside(ls_workers **out, const ls_workers *home, int32_t n_most, ls_error *err) {
    return create(out, home, n_most, home->isa, err);
}

void ls_workers_free(ls_workers *workers) {
    if (workers == NULL) return;
    ls_pool_free(workers->pool);
    free(workers->scratch);
    free(workers);
}

void ls_workers_describe(const ls_workers *workers, const char *title, char *text, size_t bytes) {
    const int32_t threads = ls_pool_threads(workers->pool);
    snprintf(text, bytes, "%s, %s, %d thread%s", title, ls_isa_name(workers->isa), threads, threads == 1 ? "" : "s");
}
