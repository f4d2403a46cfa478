/* What a kernel may do before it waits for the one ahead of it (dev/cuda.h): ask for memory that it will read, at
 * addresses of which it is sure. Where one of them depends on what lies in memory, it may be read there once for this,
 * checked, and read again behind the wait. */
#ifndef LS_OP_CUDA_EXPECT_CUDA_H
#define LS_OP_CUDA_EXPECT_CUDA_H

/* Puts the line at an address of device memory on its way into the second-level cache: harmless whatever is written
 * there meanwhile, since loads behind the wait find what was. */
static __device__ __forceinline__ void ls_cuda_expect(const void *address) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address) : "memory");
}

#endif
