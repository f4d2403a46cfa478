/* CPU kernels: every *_cpu.c file of this folder is compiled once for each instruction set, its functions named
 * through LS_KERNEL(), and collected in one table a set. The bodies state arithmetic; vector width carries no bits
 * because lanes run over outputs. */
#ifndef LS_OP_KERNELS_H
#define LS_OP_KERNELS_H

#ifndef LS_ISA_SUFFIX
#define LS_ISA_SUFFIX generic
#endif
#define LS_KERNEL_JOIN2(name, suffix) name##_##suffix
#define LS_KERNEL_JOIN(name, suffix) LS_KERNEL_JOIN2(name, suffix)
#define LS_KERNEL(name) LS_KERNEL_JOIN(name, LS_ISA_SUFFIX)

/* Declares kernel `name` for all three sets and the table name_table[LS_ISA_COUNT]; entries that are not built for
 * this machine's architecture are NULL and ls_isa_available() never selects them. */
#if defined(__x86_64__)
#define LS_KERNEL_TABLE(type, name) \
    extern const type name##_generic, name##_avx2, name##_avx512; \
    static const type *const name##_table[LS_ISA_COUNT] = {&name##_generic, &name##_avx2, &name##_avx512}
#else
#define LS_KERNEL_TABLE(type, name) \
    extern const type name##_generic; \
    static const type *const name##_table[LS_ISA_COUNT] = {&name##_generic, NULL, NULL}
#endif

#endif
