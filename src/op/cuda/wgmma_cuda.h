/* wgmma of sm_90a in C: m64nNk16, bf16 operands, float32 accumulators, for every width N = 8, 16, .., 256.
 *
 * A warpgroup of 128 threads holds 64 x N accumulators, N / 2 a thread: d[4 j + i] of thread t is row
 * 16 (t / 32) + t % 32 / 4 + 8 (i / 2), column 8 j + 2 (t % 4) + i % 2. Each call adds one step of num/mma16.h to every
 * accumulator. Compiles to nothing but for sm_90a. */
#ifndef LS_OP_WGMMA_CUDA_H
#define LS_OP_WGMMA_CUDA_H

#include <stdint.h>

/* Accumulators and their numbers in the text of an instruction, four for each eight columns. */
#define LS_WG_C(i) "+f"(d[4 * (i)]), "+f"(d[4 * (i) + 1]), "+f"(d[4 * (i) + 2]), "+f"(d[4 * (i) + 3])
/* clang-format off */
#define LS_WG_C1 LS_WG_C(0)
#define LS_WG_T1 "%0, %1, %2, %3"
#define LS_WG_C2 LS_WG_C1, LS_WG_C(1)
#define LS_WG_T2 LS_WG_T1 ", %4, %5, %6, %7"
#define LS_WG_C3 LS_WG_C2, LS_WG_C(2)
#define LS_WG_T3 LS_WG_T2 ", %8, %9, %10, %11"
#define LS_WG_C4 LS_WG_C3, LS_WG_C(3)
#define LS_WG_T4 LS_WG_T3 ", %12, %13, %14, %15"
#define LS_WG_C5 LS_WG_C4, LS_WG_C(4)
#define LS_WG_T5 LS_WG_T4 ", %16, %17, %18, %19"
#define LS_WG_C6 LS_WG_C5, LS_WG_C(5)
#define LS_WG_T6 LS_WG_T5 ", %20, %21, %22, %23"
#define LS_WG_C7 LS_WG_C6, LS_WG_C(6)
#define LS_WG_T7 LS_WG_T6 ", %24, %25, %26, %27"
#define LS_WG_C8 LS_WG_C7, LS_WG_C(7)
#define LS_WG_T8 LS_WG_T7 ", %28, %29, %30, %31"
#define LS_WG_C9 LS_WG_C8, LS_WG_C(8)
#define LS_WG_T9 LS_WG_T8 ", %32, %33, %34, %35"
#define LS_WG_C10 LS_WG_C9, LS_WG_C(9)
#define LS_WG_T10 LS_WG_T9 ", %36, %37, %38, %39"
#define LS_WG_C11 LS_WG_C10, LS_WG_C(10)
#define LS_WG_T11 LS_WG_T10 ", %40, %41, %42, %43"
#define LS_WG_C12 LS_WG_C11, LS_WG_C(11)
#define LS_WG_T12 LS_WG_T11 ", %44, %45, %46, %47"
#define LS_WG_C13 LS_WG_C12, LS_WG_C(12)
#define LS_WG_T13 LS_WG_T12 ", %48, %49, %50, %51"
#define LS_WG_C14 LS_WG_C13, LS_WG_C(13)
#define LS_WG_T14 LS_WG_T13 ", %52, %53, %54, %55"
#define LS_WG_C15 LS_WG_C14, LS_WG_C(14)
#define LS_WG_T15 LS_WG_T14 ", %56, %57, %58, %59"
#define LS_WG_C16 LS_WG_C15, LS_WG_C(15)
#define LS_WG_T16 LS_WG_T15 ", %60, %61, %62, %63"
#define LS_WG_C17 LS_WG_C16, LS_WG_C(16)
#define LS_WG_T17 LS_WG_T16 ", %64, %65, %66, %67"
#define LS_WG_C18 LS_WG_C17, LS_WG_C(17)
#define LS_WG_T18 LS_WG_T17 ", %68, %69, %70, %71"
#define LS_WG_C19 LS_WG_C18, LS_WG_C(18)
#define LS_WG_T19 LS_WG_T18 ", %72, %73, %74, %75"
#define LS_WG_C20 LS_WG_C19, LS_WG_C(19)
#define LS_WG_T20 LS_WG_T19 ", %76, %77, %78, %79"
#define LS_WG_C21 LS_WG_C20, LS_WG_C(20)
#define LS_WG_T21 LS_WG_T20 ", %80, %81, %82, %83"
#define LS_WG_C22 LS_WG_C21, LS_WG_C(21)
#define LS_WG_T22 LS_WG_T21 ", %84, %85, %86, %87"
#define LS_WG_C23 LS_WG_C22, LS_WG_C(22)
#define LS_WG_T23 LS_WG_T22 ", %88, %89, %90, %91"
#define LS_WG_C24 LS_WG_C23, LS_WG_C(23)
#define LS_WG_T24 LS_WG_T23 ", %92, %93, %94, %95"
#define LS_WG_C25 LS_WG_C24, LS_WG_C(24)
#define LS_WG_T25 LS_WG_T24 ", %96, %97, %98, %99"
#define LS_WG_C26 LS_WG_C25, LS_WG_C(25)
#define LS_WG_T26 LS_WG_T25 ", %100, %101, %102, %103"
#define LS_WG_C27 LS_WG_C26, LS_WG_C(26)
#define LS_WG_T27 LS_WG_T26 ", %104, %105, %106, %107"
#define LS_WG_C28 LS_WG_C27, LS_WG_C(27)
#define LS_WG_T28 LS_WG_T27 ", %108, %109, %110, %111"
#define LS_WG_C29 LS_WG_C28, LS_WG_C(28)
#define LS_WG_T29 LS_WG_T28 ", %112, %113, %114, %115"
#define LS_WG_C30 LS_WG_C29, LS_WG_C(29)
#define LS_WG_T30 LS_WG_T29 ", %116, %117, %118, %119"
#define LS_WG_C31 LS_WG_C30, LS_WG_C(30)
#define LS_WG_T31 LS_WG_T30 ", %120, %121, %122, %123"
#define LS_WG_C32 LS_WG_C31, LS_WG_C(31)
#define LS_WG_T32 LS_WG_T31 ", %124, %125, %126, %127"

/* clang-format on */

/* first: the step is from nothing, whatever d holds. ss: A and B from shared memory, by descriptor. rs: A from
 * registers, as mma.m16n8k16 has it, 16 rows a warp. TA, TB: the operand lies with its 64 rows (of n) side by side
 * instead of k. */
template <int N>
struct ls_wgmma;

#define LS_WG(n, g, p0, p1, p2, p3, p4, p5)                                                                      \
    template <>                                                                                                  \
    struct ls_wgmma<n> {                                                                                         \
        template <int TA, int TB>                                                                                \
        static __device__ __forceinline__ void ss_first(float (&d)[n / 2], uint64_t a, uint64_t b) {             \
            asm volatile(                                                                                        \
                "{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n"                                                       \
                "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" LS_WG_T##g                          \
                "}, %" #p0 ", %" #p1 ", p, 1, 1, %" #p2 ", %" #p3 ";\n}\n"                                       \
                : LS_WG_C##g                                                                                     \
                : "l"(a), "l"(b), "n"(TA), "n"(TB)                                                               \
                : "memory");                                                                                     \
        }                                                                                                        \
        template <int TB>                                                                                        \
        static __device__ __forceinline__ void rs_first(float (&d)[n / 2], const uint32_t (&a)[4], uint64_t b) { \
            asm volatile(                                                                                        \
                "{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n"                                                       \
                "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" LS_WG_T##g                          \
                "}, {%" #p0 ", %" #p1 ", %" #p2 ", %" #p3 "}, %" #p4 ", p, 1, 1, %" #p5 ";\n}\n"                 \
                : LS_WG_C##g                                                                                     \
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(TB)                                    \
                : "memory");                                                                                     \
        }                                                                                                        \
        template <int TA, int TB>                                                                                \
        static __device__ __forceinline__ void ss(float (&d)[n / 2], uint64_t a, uint64_t b) {                   \
            asm volatile(                                                                                        \
                "{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"                                                       \
                "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" LS_WG_T##g                          \
                "}, %" #p0 ", %" #p1 ", p, 1, 1, %" #p2 ", %" #p3 ";\n}\n"                                       \
                : LS_WG_C##g                                                                                     \
                : "l"(a), "l"(b), "n"(TA), "n"(TB)                                                               \
                : "memory");                                                                                     \
        }                                                                                                        \
        template <int TB>                                                                                        \
        static __device__ __forceinline__ void rs(float (&d)[n / 2], const uint32_t (&a)[4], uint64_t b) {       \
            asm volatile(                                                                                        \
                "{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"                                                       \
                "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" LS_WG_T##g                          \
                "}, {%" #p0 ", %" #p1 ", %" #p2 ", %" #p3 "}, %" #p4 ", p, 1, 1, %" #p5 ";\n}\n"                 \
                : LS_WG_C##g                                                                                     \
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(TB)                                    \
                : "memory");                                                                                     \
        }                                                                                                        \
    }
LS_WG(8, 1, 4, 5, 6, 7, 8, 9);
LS_WG(16, 2, 8, 9, 10, 11, 12, 13);
LS_WG(24, 3, 12, 13, 14, 15, 16, 17);
LS_WG(32, 4, 16, 17, 18, 19, 20, 21);
LS_WG(40, 5, 20, 21, 22, 23, 24, 25);
LS_WG(48, 6, 24, 25, 26, 27, 28, 29);
LS_WG(56, 7, 28, 29, 30, 31, 32, 33);
LS_WG(64, 8, 32, 33, 34, 35, 36, 37);
LS_WG(72, 9, 36, 37, 38, 39, 40, 41);
LS_WG(80, 10, 40, 41, 42, 43, 44, 45);
LS_WG(88, 11, 44, 45, 46, 47, 48, 49);
LS_WG(96, 12, 48, 49, 50, 51, 52, 53);
LS_WG(104, 13, 52, 53, 54, 55, 56, 57);
LS_WG(112, 14, 56, 57, 58, 59, 60, 61);
LS_WG(120, 15, 60, 61, 62, 63, 64, 65);
LS_WG(128, 16, 64, 65, 66, 67, 68, 69);
LS_WG(136, 17, 68, 69, 70, 71, 72, 73);
LS_WG(144, 18, 72, 73, 74, 75, 76, 77);
LS_WG(152, 19, 76, 77, 78, 79, 80, 81);
LS_WG(160, 20, 80, 81, 82, 83, 84, 85);
LS_WG(168, 21, 84, 85, 86, 87, 88, 89);
LS_WG(176, 22, 88, 89, 90, 91, 92, 93);
LS_WG(184, 23, 92, 93, 94, 95, 96, 97);
LS_WG(192, 24, 96, 97, 98, 99, 100, 101);
LS_WG(200, 25, 100, 101, 102, 103, 104, 105);
LS_WG(208, 26, 104, 105, 106, 107, 108, 109);
LS_WG(216, 27, 108, 109, 110, 111, 112, 113);
LS_WG(224, 28, 112, 113, 114, 115, 116, 117);
LS_WG(232, 29, 116, 117, 118, 119, 120, 121);
LS_WG(240, 30, 120, 121, 122, 123, 124, 125);
LS_WG(248, 31, 124, 125, 126, 127, 128, 129);
LS_WG(256, 32, 128, 129, 130, 131, 132, 133);
#undef LS_WG

static __device__ __forceinline__ void ls_wgmma_fence(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
static __device__ __forceinline__ void ls_wgmma_commit(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int PENDING>
static __device__ __forceinline__ void ls_wgmma_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
/* Keeps the compiler from moving or copying accumulators across asynchronous instructions. */
template <int N>
static __device__ __forceinline__ void ls_wgmma_hold(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

/* Accumulators that a first step writes: nothing is computed for them. */
template <int N>
static __device__ __forceinline__ void ls_wgmma_any(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "=f"(d[i])::"memory");
}

/* How a descriptor says that rows of 128 or 32 bytes are swizzled; 0: 8 x 8 core matrices of 128 bytes. */
#define LS_WG_PLAIN 0ull
#define LS_WG_SWIZZLE_128 1ull
#define LS_WG_SWIZZLE_32 3ull

/* Descriptor of an operand at a shared address. leading and stride in bytes: without swizzle, from one core matrix to
 * the next along k, and along rows. */
static __device__ __forceinline__ uint64_t ls_wgmma_descriptor(uint32_t address, uint32_t leading, uint32_t stride,
                                                               uint64_t swizzle) {
    return (uint64_t)((address & 0x3FFFFu) >> 4) | (uint64_t)(leading >> 4) << 16 | (uint64_t)(stride >> 4) << 32 |
           swizzle << 62;
}

#endif
