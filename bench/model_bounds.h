/* What a model's dense products cost at least on this machine: its fma peak and read bandwidth. */
#ifndef LS_BENCH_MODEL_BOUNDS_H
#define LS_BENCH_MODEL_BOUNDS_H

#include <string.h>

#include "base/mem.h"
#include "bounds.h"
#include "model_macs.h"

#define REPS 9

typedef struct model_bounds {
    double peak, bandwidth; /* flop/s, bytes/s */
} model_bounds;

static inline model_bounds measure_bounds(const ls_device *device) {
    const int32_t threads = ls_pool_threads(device->exec.workers->pool);
    double fma_time[REPS], stream_time[REPS];
    bounds_job job = {.isa = device->exec.workers->isa};
    model_bounds bounds;
    float *stream;
    ls_error err;
    LS_ASSERT(ls_array_alloc((void **)&stream, STREAM_BYTES, 1, "stream", &err) == LS_OK, "%s", err.text);
    memset(stream, 1, (size_t)STREAM_BYTES);
    job.stream = stream;
    for (int r = 0; r < REPS; r++) {
        double start = now();
        ls_parallel_for(device->exec.workers->pool, threads, 1, fma_part, &job);
        fma_time[r] = now() - start;
        start = now();
        ls_parallel_for(device->exec.workers->pool, STREAM_BYTES / 4, 1024, stream_part, &job);
        stream_time[r] = now() - start;
    }
    bounds.peak = fma_flops(device->exec.workers->isa, threads) / median(fma_time, REPS);
    bounds.bandwidth = (double)STREAM_BYTES / median(stream_time, REPS);
    free(stream);
    return bounds;
}

#endif
