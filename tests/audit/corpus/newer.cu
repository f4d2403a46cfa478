/* Cases published later, restated from the descriptions in their threads; no line is copied. */
typedef long long i64;
#define LANE ((int)threadIdx.x) /* an index that stays signed */
#define HEAD ((int)blockIdx.y)
#define BLOCK ((int)blockIdx.x)

/* vLLM 47281: token times (experts of a token * hidden). */
extern "C" __global__ void n01_bad(const float *in, float *out, int top_k, int hidden) {
    const int token = blockIdx.x;
    for (int i = threadIdx.x; i < hidden; i += blockDim.x) out[i] = in[token * (top_k * hidden) + i];
}
extern "C" __global__ void n01_fixed(const float *in, float *out, int top_k, int hidden) {
    const i64 token = blockIdx.x;
    for (int i = threadIdx.x; i < hidden; i += blockDim.x) out[i] = in[token * (top_k * hidden) + i];
}

/* vLLM 57030: row index times row stride of a table that a million tokens of context make. */
extern "C" __global__ void n02_bad(int *table, const int *rows, int row_stride) {
    const int row = rows[BLOCK];
    table[row * row_stride + LANE] = 7;
}
extern "C" __global__ void n02_fixed(int *table, const int *rows, int row_stride) {
    const int row = rows[BLOCK];
    table[(i64)row * row_stride + LANE] = 7;
}

/* vLLM 53907: int token times unsigned width. */
extern "C" __global__ void n03_bad(float *out, const int *tokens, unsigned width) {
    const int token = tokens[blockIdx.x];
    out[token * width + threadIdx.x] = 1.0f;
}
extern "C" __global__ void n03_fixed(float *out, const int *tokens, unsigned width) {
    const int token = tokens[blockIdx.x];
    out[(unsigned long long)token * width + threadIdx.x] = 1.0f;
}

/* vLLM 43156: block times block stride, both from the cache's shape. */
extern "C" __global__ void n04_bad(const int *blocks, unsigned char *cache, int block_stride, int head_stride) {
    cache[blocks[BLOCK] * block_stride + HEAD * head_stride + LANE] = 0;
}
extern "C" __global__ void n04_fixed(const int *blocks, unsigned char *cache, int block_stride, int head_stride) {
    cache[(i64)blocks[BLOCK] * block_stride + HEAD * head_stride + LANE] = 0;
}

/* FlagGems 6083: program times the volume behind an index. */
extern "C" __global__ void n05_bad(float *out, const float *in, int volume) {
    const int base = blockIdx.x * volume;
    for (int i = threadIdx.x; i < volume; i += blockDim.x) out[base + i] = in[i];
}
extern "C" __global__ void n05_fixed(float *out, const float *in, int volume) {
    const i64 base = (i64)blockIdx.x * volume;
    for (int i = threadIdx.x; i < volume; i += blockDim.x) out[base + i] = in[i];
}

/* cutlass 3269: the packed stride M * K of a batch, in int. */
extern "C" __global__ void n06_bad(const float *a, float *out, int m, int k) {
    const i64 batch_stride = m * k;
    out[threadIdx.x] = a[blockIdx.z * batch_stride + threadIdx.x];
}
extern "C" __global__ void n06_fixed(const float *a, float *out, int m, int k) {
    const i64 batch_stride = (i64)m * k;
    out[threadIdx.x] = a[blockIdx.z * batch_stride + threadIdx.x];
}

/* mamba 987: program times chunk times stride. */
extern "C" __global__ void n07_bad(float *x, int chunk, int stride) {
    x += blockIdx.y * chunk * stride;
    x[threadIdx.x] = 1.0f;
}
extern "C" __global__ void n07_fixed(float *x, int chunk, int stride) {
    x += (i64)blockIdx.y * chunk * stride;
    x[threadIdx.x] = 1.0f;
}

/* fla 1080: ((batch * T) * H + head) * K, first bad at a batch of its own. */
extern "C" __global__ void n08_bad(const float *q, float *o, int t, int h, int k) {
    const int b = BLOCK / h, head = BLOCK % h;
    o[LANE] = q[(b * t * h + head) * k + LANE];
}
extern "C" __global__ void n08_fixed(const float *q, float *o, int t, int h, int k) {
    const int b = BLOCK / h, head = BLOCK % h;
    o[LANE] = q[((i64)b * t * h + head) * k + LANE];
}

/* cumm 36: index times stride times the size of an element, as bytes. */
extern "C" __global__ void n09_bad(char *base, int stride, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) *(float *)(base + i * stride * 4) = 1.0f;
}
extern "C" __global__ void n09_fixed(char *base, int stride, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) *(float *)(base + (i64)i * stride * 4) = 1.0f;
}

/* A loop that carries its offset in 32 bits, as compilers write `offset += stride`; after mamba 1015. */
extern "C" __global__ void n10_bad(float *x, int stride, int n) {
    int offset = 0;
    for (int i = 0; i < n; i++) {
        x[offset + LANE] = 1.0f;
        offset += stride;
    }
}
extern "C" __global__ void n10_fixed(float *x, int stride, int n) {
    i64 offset = 0;
    for (int i = 0; i < n; i++) {
        x[offset + LANE] = 1.0f;
        offset += stride;
    }
}

/* vLLM 39585: a 64-bit product that is cut to 32 bits again. */
extern "C" __global__ void n11_bad(float *x, i64 row_stride) {
    const int offset = (int)(blockIdx.x * row_stride);
    x[offset + (int)threadIdx.x] = 1.0f;
}
extern "C" __global__ void n11_fixed(float *x, i64 row_stride) {
    const i64 offset = blockIdx.x * row_stride;
    x[offset + threadIdx.x] = 1.0f;
}
