/* What benches of single ops on a GPU share: memory with numbers in it, and the time of a call. */
#ifndef LS_BENCH_GPU_H
#define LS_BENCH_GPU_H

#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lockstep/ops.h"
#include "op/held.h"

static cudaStream_t stream;
static ls_exec exec_;

static void check(cudaError_t status, const char *what) {
    if (status == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
    exit(1);
}
static void check_ls(ls_status status, const ls_error *err) {
    if (status == LS_OK) return;
    fprintf(stderr, "%s\n", err->text);
    exit(1);
}

static void *device_memory(int64_t bytes) {
    void *memory;
    check(cudaMalloc(&memory, (size_t)bytes), "memory");
    check(cudaMemset(memory, 0, (size_t)bytes), "memory");
    return memory;
}

/* Numbers of +-[1/16, 2). */
static __global__ void fill_kernel(void *to, int64_t n, uint32_t seed, bool wide) {
    for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < n; i += gridDim.x * 256ll) {
        uint32_t x = (uint32_t)i * 2654435761u + seed;
        x = (x ^ x >> 16) * 0x7FEB352Du;
        x = (x ^ x >> 15) * 0x846CA68Bu;
        x ^= x >> 16;
        x = (x & 0x8000u) | (123u + (x >> 16) % 5) << 7 | (x & 0x7Fu);
        if (wide)
            ((uint32_t *)to)[i] = x << 16;
        else
            ((uint16_t *)to)[i] = (uint16_t)x;
    }
}
static void *filled(int64_t n, uint32_t seed, bool wide) {
    void *to = device_memory(n * (wide ? 4 : 2));
    fill_kernel<<<1024, 256, 0, stream>>>(to, n, seed, wide);
    return to;
}

/* From low to high, again and again. */
static inline float *floats(int64_t n, float low, float high) {
    float *host = (float *)malloc((size_t)n * 4), *there = (float *)device_memory(n * 4);
    for (int64_t i = 0; i < n; i++) host[i] = low + (high - low) * (float)(i * 37 % 101) / 101.0f;
    check(cudaMemcpy(there, host, (size_t)n * 4, cudaMemcpyHostToDevice), "floats");
    free(host);
    return there;
}

static int by_size(const void *a, const void *b) {
    return (*(const float *)a > *(const float *)b) - (*(const float *)a < *(const float *)b);
}

/* Microseconds of one call: the median of some. */
static double time_of(void (*run)(const void *), const void *p) {
    cudaEvent_t begin, end;
    float times[7];
    check(cudaEventCreate(&begin), "event");
    check(cudaEventCreate(&end), "event");
    for (int i = -2; i < 7; i++) {
        check(cudaEventRecord(begin, stream), "record");
        run(p);
        check(cudaEventRecord(end, stream), "record");
        check(cudaStreamSynchronize(stream), "run");
        if (i >= 0) check(cudaEventElapsedTime(&times[i], begin, end), "time");
    }
    qsort(times, 7, sizeof times[0], by_size);
    return (double)times[3] * 1e3;
}

/* The stream and what calls run with. */
static void bench_open(void) {
    check(cudaStreamCreate(&stream), "stream");
    exec_.backend = LS_BACKEND_CUDA;
    exec_.stream = stream;
    exec_.fault = (ls_fault *)device_memory(sizeof(ls_fault));
}

/* Issue slots that one lane operation of every state and token would take, in microseconds. */
static inline double slot_us(double states) {
    int device, processors, kilohertz;
    check(cudaGetDevice(&device), "device");
    check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "processors");
    check(cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, device), "clock");
    return states / ((double)processors * 128.0 * (double)kilohertz * 1e-3);
}

/* A pool of n slots for what states lack that every h.every-th token writes; as in a running batch, slots hold 0 to
 * every - 1 tokens at first. */
static inline ls_pool_view held_pool(const ls_held h, int64_t n) {
    const int64_t bytes = h.total * 4;
    if (bytes == 0) return ls_pool_view{};
    const ls_pool_view pool = {(uint8_t *)device_memory(n * bytes), bytes, n};
    float *entry = (float *)calloc((size_t)h.heads, 4);
    for (int64_t i = 0; i < n; i++) {
        for (int64_t head = 0; head < h.heads; head++) ls_held_set_count(entry, head, i % h.every);
        check(cudaMemcpy(pool.base + i * bytes, entry, (size_t)h.heads * 4, cudaMemcpyHostToDevice), "counts");
    }
    free(entry);
    return pool;
}

#endif
