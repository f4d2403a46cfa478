/* The CPU back end's workers: threads, the chosen instruction set and per-thread scratch. What is given to them has run
 * when the call returns. The choice of threads and instruction set never changes a bit. */
#ifndef LS_DEV_WORKERS_H
#define LS_DEV_WORKERS_H

#include "base/parallel.h"
#include "base/status.h"
#include "lockstep/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ls_isa { LS_ISA_GENERIC = 0, LS_ISA_AVX2 = 1, LS_ISA_AVX512 = 2, LS_ISA_COUNT = 3 } ls_isa;

const char *ls_isa_name(ls_isa isa); /* "generic", "avx2", "avx512" */
bool ls_isa_parse(ls_isa *out, const char *name);
/* Built into this binary and supported by this processor. Generic always is. */
bool ls_isa_available(ls_isa isa);
ls_isa ls_isa_best(void);

/* Floats of scratch that each thread owns, enough for any op's fixed blocks. */
#define LS_SCRATCH_FLOATS (576 * 1024)

struct ls_workers {
    ls_pool *pool;
    ls_isa isa;
    float *scratch; /* [threads][LS_SCRATCH_FLOATS] */
};

ls_status ls_workers_create(ls_workers **out, int32_t n_threads, ls_isa isa, ls_error *err);
/* The same threads for a second caller (base/parallel.h), with scratch of their own; to be freed before home. */
ls_status ls_workers_create_beside(ls_workers **out, const ls_workers *home, int32_t n_most, ls_error *err);
void ls_workers_free(ls_workers *workers);
/* "TITLE, avx2, 2 threads" */
void ls_workers_describe(const ls_workers *workers, const char *title, char *text, size_t bytes);
/* Scratch of thread thread_i, 64-byte aligned. */
static inline float *ls_workers_scratch(const ls_workers *workers, int32_t thread_i) {
    return workers->scratch + (int64_t)thread_i * LS_SCRATCH_FLOATS;
}

#ifdef __cplusplus
}
#endif
#endif
