/* CPU kernels: every *_cpu.c file of this folder is compiled once for each instruction set, with its kernels named
 * through LS_KERNEL(). Vector width carries no bits because vector lanes run over outputs, and every reduction has its
 * order written in the op's header. */
#ifndef LS_OP_CPU_KERNELS_H
#define LS_OP_CPU_KERNELS_H

#include "dev/device.h"
#include "dev/workers.h"

#ifndef LS_ISA_SUFFIX
#define LS_ISA_SUFFIX generic
#endif
#define LS_KERNEL_JOIN2(name, suffix) name##_##suffix
#define LS_KERNEL_JOIN(name, suffix) LS_KERNEL_JOIN2(name, suffix)
#define LS_KERNEL(name) LS_KERNEL_JOIN(name, LS_ISA_SUFFIX)

/* Computes items [begin, end) of the op; what an item is, the op's .c file says. scratch is the thread's own. */
typedef void (*ls_kernel)(const void *args, int64_t begin, int64_t end, float *scratch);

/* Declares kernel `name` for all instruction sets and name_table[LS_ISA_COUNT]. Sets that are not built for this
 * architecture are NULL; ls_isa_available() never selects them. */
#define LS_KERNEL_DECLARE(name, isa) void LS_KERNEL_JOIN2(name, isa)(const void *, int64_t, int64_t, float *)
#if defined(__x86_64__)
#define LS_KERNEL_TABLE(name)         \
    LS_KERNEL_DECLARE(name, generic); \
    LS_KERNEL_DECLARE(name, avx2);    \
    LS_KERNEL_DECLARE(name, avx512);  \
    static const ls_kernel name##_table[LS_ISA_COUNT] = {name##_generic, name##_avx2, name##_avx512}
#else
#define LS_KERNEL_TABLE(name)         \
    LS_KERNEL_DECLARE(name, generic); \
    static const ls_kernel name##_table[LS_ISA_COUNT] = {name##_generic, NULL, NULL}
#endif

/* The same for kernels that need a struct of their own: `type name_ISA` objects and a table of pointers to them. */
#if defined(__x86_64__)
#define LS_KERNEL_TABLE_OF(type, name)                            \
    extern const type name##_generic, name##_avx2, name##_avx512; \
    static const type *const name##_table[LS_ISA_COUNT] = {&name##_generic, &name##_avx2, &name##_avx512}
#else
#define LS_KERNEL_TABLE_OF(type, name) \
    extern const type name##_generic;  \
    static const type *const name##_table[LS_ISA_COUNT] = {&name##_generic, NULL, NULL}
#endif

/* Opens the definition of a kernel in a *_cpu.c file. */
#define LS_KERNEL_DEFINE(name)                                                             \
    void LS_KERNEL(name)(const void *context, int64_t begin, int64_t end, float *scratch); \
    void LS_KERNEL(name)(const void *context, int64_t begin, int64_t end, float *scratch)

/* What a kernel is given that works in the caller's workspace: the op's arguments, and the workspace past its head. */
typedef struct ls_workspace_call {
    const void *args;
    float *floats;
} ls_workspace_call;

static inline float *ls_workspace_floats(void *workspace) {
    return (float *)(void *)((uint8_t *)workspace + LS_WORKSPACE_HEAD);
}

/* Runs table[workers->isa] over n_items, split over the workers. item_ops is about how many scalar operations an
 * item takes: parts too small to be worth waking a thread for are kept together. */
void ls_kernel_run(ls_workers *workers, const ls_kernel *table, const void *args, int64_t n_items, int64_t item_ops);

/* A kernel over a matrix of outputs: rows [row_begin, row_end), columns [col_begin, col_end), which begin at multiples
 * of the units and end at such or with the matrix. scratch is the calling thread's own. */
typedef struct ls_grid_kernel {
    int64_t row_unit, col_unit;
    void (*run)(const void *args, int64_t row_begin, int64_t row_end, int64_t col_begin, int64_t col_end,
                float *scratch);
} ls_grid_kernel;

/* A matrix of outputs, at least 1 x 1, and how it is cut into blocks for threads. Carries no bits. */
typedef struct ls_grid {
    int64_t rows, cols;
    double operations; /* of all outputs */
    double part_min;   /* operations that are worth waking a thread for */
    bool cols_first;   /* cut columns in preference to rows */
} ls_grid;

void ls_grid_run(ls_workers *workers, const ls_grid_kernel *const *table, const void *args, const ls_grid *grid);

#endif
