/* What must be found in the corpus. */
#ifndef LS_TESTS_AUDIT_CORPUS_CASES_H
#define LS_TESTS_AUDIT_CORPUS_CASES_H

#include <stdbool.h>
#include <stdint.h>

/* Every case: the product that wraps, its sign, its lever and the first bad value of that. */
static const struct {
    const char *kernel, *part;
    bool is_signed;
    const char *lever;
    int64_t first;
} cases[] = {
    {"c01_bad", "slot_stride * slot", false, "slot", 47935},
    {"c02_bad", "stride * slot", true, "slot", 11984},
    {"c03_bad", "slot_stride * slot", true, "slot", 23968},
    {"c06_bad", "width * blockIdx.x", false, "blockIdx.x", 524288},
    {"c12_bad", "page_size * token_stride * page", true, "page", 32768},
    {"c18_bad", "page_stride * page", false, "page", 1048576},
    {"c19_bad", "slot * 576", true, "slot", 3728270},
    {"c23_bad", "dim * n_chunks * n_states * blockIdx.x", false, "blockIdx.x", 62},
    {"c24_bad", "chunk_size * token_stride * blockIdx.x", true, "blockIdx.x", 205},
    {"c26_bad", "slot_stride * slot", true, "slot", 26215},
    {"c30_bad", "outer_stride * start", true, "start", 220242},
    {"c33_bad", "heads * width * blockIdx.x * 3", false, "blockIdx.x", 199729},
    {"c36_bad", "stride0 * index", true, "index", 16384},
    {"c37_bad", "bias_stride * blockIdx.x * blockDim.y", false, "blockIdx.x", 8192},
    {"n01_bad", "top_k * hidden * blockIdx.x", true, "blockIdx.x", 52429},
    {"n02_bad", "row_stride * row", true, "row", 2048},
    {"n03_bad", "width * token", false, "token", 104858},
    {"n04_bad", "block_stride * block", true, "block", 32768},
    {"n05_bad", "volume * blockIdx.x", true, "blockIdx.x", 32768},
    {"n06_bad", "m * k", true, "m", 32768},
    {"n07_bad", "chunk * stride * blockIdx.y", false, "blockIdx.y", 410},
    {"n08_bad", "t * h * k", true, "blockIdx.x", 256},
    {"n09_bad", "stride * blockIdx.x * blockDim.x * 4", true, "blockIdx.x", 4096},
    {"n10_bad", "stride * turn@", true, "turn@", 8192},
    {"n11_bad", "blockIdx.x * row_stride", true, "blockIdx.x", 37450},
    {"t01_bad", "stride * slot", true, "slot", 23968},
    {"t02_bad", "blockIdx.x * stride", true, "blockIdx.x", 524288},
    {"t03_bad", "chunk_stride * turn@", true, "turn@", 2048},
};

#endif
