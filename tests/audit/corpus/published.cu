/* The first fourteen published cases of 32-bit index overflow, restated from the descriptions in their threads; no
 * line is copied. Each has the form that wraps and the form that was or would be the repair. corpus.ranges has the
 * ranges, the test what must be found. Compiled by `nvcc -ptx -arch=compute_90`. */
typedef long long i64;
#define LANE ((int)threadIdx.x) /* an index that stays signed */
#define HEAD ((int)blockIdx.y)
#define BLOCK ((int)blockIdx.x)

/* 1: vLLM pull 35275, selective scan: int slot times unsigned slot stride. */
struct scan_params {
    int dim, length;
    unsigned batch_stride, slot_stride, d_stride;
    const int *slots;
    float *states;
    const float *u;
};
extern "C" __global__ void c01_bad(scan_params p) {
    const int slot = p.slots[blockIdx.x];
    float *state = p.states + slot * p.slot_stride + blockIdx.y * p.d_stride;
    state[threadIdx.x] = p.u[threadIdx.x];
}
extern "C" __global__ void c01_fixed(scan_params p) {
    const int slot = p.slots[blockIdx.x];
    float *state = p.states + (i64)slot * p.slot_stride + blockIdx.y * p.d_stride;
    state[threadIdx.x] = p.u[threadIdx.x];
}

/* 2: vLLM 20938, causal convolution: int slot times int stride. */
extern "C" __global__ void c02_bad(const int *slots, float *window, int stride, int dim) {
    const int slot = slots[blockIdx.x], feature = blockIdx.y * blockDim.x + threadIdx.x;
    if (feature < dim) window[slot * stride + feature * 3] = 0.0f;
}
extern "C" __global__ void c02_fixed(const int *slots, float *window, int stride, int dim) {
    const int slot = slots[blockIdx.x], feature = blockIdx.y * blockDim.x + threadIdx.x;
    if (feature < dim) window[(i64)slot * stride + feature * 3] = 0.0f;
}

/* 3: vLLM 20016, state update: pointer plus slot times stride, then heads. */
extern "C" __global__ void c03_bad(const int *slots, float *state, int slot_stride, int head_stride, const float *x) {
    float *p = state + slots[blockIdx.x] * slot_stride;
    p += blockIdx.y * head_stride;
    p[threadIdx.x] = p[threadIdx.x] * x[threadIdx.x];
}
extern "C" __global__ void c03_fixed(const int *slots, float *state, int slot_stride, int head_stride, const float *x) {
    float *p = state + (i64)slots[blockIdx.x] * slot_stride;
    p += blockIdx.y * head_stride;
    p[threadIdx.x] = p[threadIdx.x] * x[threadIdx.x];
}

/* 6: vLLM 53131, norms: unsigned row times width. */
extern "C" __global__ void c06_bad(float *out, const float *in, unsigned width) {
    for (unsigned i = threadIdx.x; i < width; i += blockDim.x)
        out[blockIdx.x * width + i] = in[blockIdx.x * width + i] * 2.0f;
}
extern "C" __global__ void c06_fixed(float *out, const float *in, unsigned width) {
    for (unsigned i = threadIdx.x; i < width; i += blockDim.x)
        out[(i64)blockIdx.x * width + i] = in[(i64)blockIdx.x * width + i] * 2.0f;
}

/* 12: PyTorch 185262, FlexAttention: token times the stride of the KV pool. */
extern "C" __global__ void c12_bad(const float *kv, float *out, const int *pages, int page_size, int token_stride) {
    const int token = pages[BLOCK] * page_size + HEAD;
    out[BLOCK * 128 + LANE] = kv[token * token_stride + LANE];
}
extern "C" __global__ void c12_fixed(const float *kv, float *out, const int *pages, int page_size, int token_stride) {
    const i64 token = (i64)pages[BLOCK] * page_size + HEAD;
    out[(i64)BLOCK * 128 + LANE] = kv[token * token_stride + LANE];
}

/* 18: FlashInfer 3136, latent attention: int page times unsigned page stride. */
extern "C" __global__ void c18_bad(const int *pages, const unsigned short *kv, float *out, unsigned page_stride) {
    const unsigned short *page = kv + pages[blockIdx.x] * page_stride;
    out[threadIdx.x] = page[threadIdx.x * 8];
}
extern "C" __global__ void c18_fixed(const int *pages, const unsigned short *kv, float *out, unsigned page_stride) {
    const unsigned short *page = kv + (unsigned long long)pages[blockIdx.x] * page_stride;
    out[threadIdx.x] = page[threadIdx.x * 8];
}

/* 19: tokenspeed 501, latent cache: slot times 576. */
extern "C" __global__ void c19_bad(unsigned short *cache, const unsigned short *values, const int *slots) {
    const int slot = slots[blockIdx.x];
    cache[slot * 576 + LANE] = values[LANE];
}
extern "C" __global__ void c19_fixed(unsigned short *cache, const unsigned short *values, const int *slots) {
    const int slot = slots[blockIdx.x];
    cache[(i64)slot * 576 + LANE] = values[LANE];
}

/* 23: mamba 883, the scan's buffer: batch, dim, chunks and states in int. */
extern "C" __global__ void c23_bad(float2 *x, int dim, int n_chunks, int n_states) {
    for (int chunk = 0; chunk < n_chunks; chunk++)
        x[(blockIdx.x * dim + blockIdx.y) * n_chunks * n_states + chunk * n_states + threadIdx.x] = make_float2(1, 2);
}
extern "C" __global__ void c23_fixed(float2 *x, int dim, int n_chunks, int n_states) {
    for (int chunk = 0; chunk < n_chunks; chunk++)
        x[((i64)blockIdx.x * dim + blockIdx.y) * n_chunks * n_states + (i64)chunk * n_states + threadIdx.x] =
            make_float2(1, 2);
}

/* 24: mamba 1015, chunked scan: chunk times strides. */
extern "C" __global__ void c24_bad(const float *x, float *out, int chunk_size, int token_stride, int tokens) {
    const int token = BLOCK * chunk_size + (int)threadIdx.y;
    if (token < tokens) out[LANE] = x[token * token_stride + LANE];
}
extern "C" __global__ void c24_fixed(const float *x, float *out, int chunk_size, int token_stride, int tokens) {
    const int token = BLOCK * chunk_size + (int)threadIdx.y;
    if (token < tokens) out[LANE] = x[(i64)token * token_stride + LANE];
}

/* 26: mamba's decode kernel: slot times a stride of 81,920. */
extern "C" __global__ void c26_bad(const int *slots, float *state, int slot_stride) {
    state[slots[BLOCK] * slot_stride + HEAD * 64 + LANE] = 0.0f;
}
extern "C" __global__ void c26_fixed(const int *slots, float *state, int slot_stride) {
    state[(i64)slots[BLOCK] * slot_stride + HEAD * 64 + LANE] = 0.0f;
}

/* 30: flash-attention 2611: coordinate times outer stride. */
extern "C" __global__ void c30_bad(float *dq, int outer_stride, const int *starts) {
    const int token = starts[HEAD] + BLOCK;
    dq[token * outer_stride + LANE] = 1.0f;
}
extern "C" __global__ void c30_fixed(float *dq, int outer_stride, const int *starts) {
    const int token = starts[HEAD] + BLOCK;
    dq[(i64)token * outer_stride + LANE] = 1.0f;
}

/* 33: SageAttention 386: sequence times three times heads times width, in unsigned. */
extern "C" __global__ void c33_bad(const unsigned short *qkv, signed char *out, unsigned heads, unsigned width) {
    const unsigned short *p = qkv + blockIdx.x * (3u * heads * width) + blockIdx.y * width;
    out[threadIdx.x] = (signed char)p[threadIdx.x];
}
extern "C" __global__ void c33_fixed(const unsigned short *qkv, signed char *out, unsigned heads, unsigned width) {
    const unsigned short *p = qkv + (unsigned long long)blockIdx.x * (3u * heads * width) + blockIdx.y * width;
    out[threadIdx.x] = (signed char)p[threadIdx.x];
}

/* 36: FlagGems 4153: index times the outer stride of a state of shape [24901, 8, 128, 128]. */
extern "C" __global__ void c36_bad(float *state, const int *index, int stride0, int stride1) {
    state[index[BLOCK] * stride0 + HEAD * stride1 + LANE] = 1.0f;
}
extern "C" __global__ void c36_fixed(float *state, const int *index, int stride0, int stride1) {
    state[(i64)index[BLOCK] * stride0 + HEAD * stride1 + LANE] = 1.0f;
}

/* 37: PyTorch 187227, memory-efficient attention: unsigned row times the stride of a bias. */
extern "C" __global__ void c37_bad(const float *bias, float *out, unsigned bias_stride, unsigned rows) {
    const unsigned row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row < rows) out[threadIdx.x] = bias[row * bias_stride + threadIdx.x];
}
extern "C" __global__ void c37_fixed(const float *bias, float *out, unsigned bias_stride, unsigned rows) {
    const unsigned row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row < rows) out[threadIdx.x] = bias[(i64)row * bias_stride + threadIdx.x];
}
