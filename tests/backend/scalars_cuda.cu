/* The GPU's side of check_scalars. It launches by itself, because a kernel is known to the CUDA runtime of the program
 * or library that it is linked into. */
#include "scalars.h"

#define THREADS 256

/* One sum by each CUDA block, added up in a tree: the order is fixed, although integers would not mind. */
template <int FUNCTION>
static __global__ void sums_kernel(uint64_t *sums, uint32_t step) {
    __shared__ uint64_t partial[THREADS];
    uint64_t sum = 0;
    for (uint32_t j = threadIdx.x; j < SCALARS_BLOCK; j += THREADS)
        sum += scalars_term(scalars_result(FUNCTION, scalars_input(blockIdx.x, j, step)), j);
    partial[threadIdx.x] = sum;
    for (uint32_t half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = partial[0];
}

template <int FUNCTION>
static __global__ void results_kernel(uint32_t *results, uint32_t block, uint32_t step) {
    const uint32_t j = blockIdx.x * THREADS + threadIdx.x;
    results[j] = scalars_result(FUNCTION, scalars_input(block, j, step));
}

typedef struct kernels {
    void (*sums)(uint64_t *sums, uint32_t step);
    void (*results)(uint32_t *results, uint32_t block, uint32_t step);
} kernels;

static const kernels kernels_of[SCALARS_FUNCTIONS] = {
#define KERNELS(id, name, log2_inputs, where, result) {sums_kernel<id>, results_kernel<id>},
    SCALARS_EACH(KERNELS)
#undef KERNELS
};

static ls_status launched(const char *what, ls_error *err) {
    const cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? LS_OK : ls_cuda_status(error, what, err);
}

ls_status scalars_cuda_sums(uint64_t *sums, const ls_exec *exec, int function, int64_t n_blocks, uint32_t step,
                            ls_error *err) {
    kernels_of[function].sums<<<(unsigned)n_blocks, THREADS, 0, (cudaStream_t)exec->stream>>>(sums, step);
    return launched("the sums of a scalar function", err);
}

ls_status scalars_cuda_results(uint32_t *results, const ls_exec *exec, int function, uint32_t block, uint32_t step,
                               ls_error *err) {
    kernels_of[function].results<<<SCALARS_BLOCK / THREADS, THREADS, 0, (cudaStream_t)exec->stream>>>(results, block,
                                                                                                      step);
    return launched("the results of a scalar function", err);
}
