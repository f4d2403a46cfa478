/* The step of num/mma16.h by mma.sync m16n8k16, on any device whose tensor cores compute it. */
#ifndef LS_OP_MMA16_CUDA_H
#define LS_OP_MMA16_CUDA_H

#include <stdint.h>

/* d += one step. Lane t of a warp has d[i] of row t / 4 + i / 2 * 8, column t % 4 * 2 + i % 2; a[i] is two neighbouring
 * depths from t % 4 * 2 + i / 2 * 8 on of row t / 4 + i % 2 * 8, b[i] from t % 4 * 2 + i * 8 on of column t / 4. */
static __device__ __forceinline__ void ls_mma16(float d[4], const uint32_t a[4], const uint32_t b[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#endif
