/* What the host finds out for kernels that fill a ring of boxes: maps of their tensors, and how many processors there
 * are. */
#include "op/cuda/ring_cuda.h"

ls_status ls_is_hopper(bool *out, const char *op, ls_error *err) {
    int device, major;
    LS_CUDA_TRY(ls_cuda_status(cudaGetDevice(&device), op, err));
    LS_CUDA_TRY(ls_cuda_status(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), op, err));
    *out = major == 9;
    return LS_OK;
}

ls_status ls_processors(int *out, const char *op, ls_error *err) {
    int device;
    LS_CUDA_TRY(ls_cuda_status(cudaGetDevice(&device), op, err));
    return ls_cuda_status(cudaDeviceGetAttribute(out, cudaDevAttrMultiProcessorCount, device), op, err);
}

/* A tensor of `rank` dimensions, innermost first; strides in elements from the second on. */
typedef struct tensor {
    ls_dtype dtype;
    const void *base;
    int rank;
    int64_t size[4], stride[3];
} tensor;

/* Its map in boxes, of bf16 swizzled or of float32 as they are. */
static ls_status encode_map(CUtensorMap *map, const char *op, const tensor *t, const int *box, ls_error *err) {
    typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                  const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                                  CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    static encode_fn encode; /* the same pointer, whichever thread finds it */
    const cuuint32_t ones[4] = {1, 1, 1, 1};
    const bool f32 = t->dtype == LS_F32;
    cuuint64_t sizes[4], strides[3];
    cuuint32_t boxes[4];
    for (int i = 0; i < t->rank; i++) {
        sizes[i] = (cuuint64_t)t->size[i];
        boxes[i] = (cuuint32_t)box[i];
        if (i > 0) strides[i - 1] = (cuuint64_t)(t->stride[i - 1] * ls_dtype_bytes(t->dtype));
    }
    if (encode == NULL) {
        void *found = NULL;
        cudaDriverEntryPointQueryResult result;
        LS_CUDA_TRY(ls_cuda_status(
            cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result), op,
            err));
        if (found == NULL) return LS_FAIL(err, LS_ERR_DEVICE, "%s: the driver has no cuTensorMapEncodeTiled", op);
        encode = (encode_fn)found;
    }
    const CUresult result =
        encode(map, f32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, (cuuint32_t)t->rank,
               (void *)t->base, sizes, strides, boxes, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
               f32                ? CU_TENSOR_MAP_SWIZZLE_NONE
               : box[0] * 2 == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                  : CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result == CUDA_SUCCESS) return LS_OK;
    return LS_FAIL(err, LS_ERR_DEVICE, "%s: a map of %d dimensions, the innermost %lld, at %p is refused with %d", op,
                   t->rank, (long long)t->size[0], t->base, (int)result);
}

ls_status ls_box_map(CUtensorMap *map, const char *op, const ls_box_matrix *m, int box_rows, ls_error *err) {
    const tensor t = {LS_BF16, m->base, 2, {m->inner, m->outer}, {m->stride}};
    const int box[2] = {64, box_rows};
    return encode_map(map, op, &t, box, err);
}

ls_status ls_box_map3(CUtensorMap *map, const char *op, const ls_box_matrix *m, int box_rows, int box_chunks,
                      ls_error *err) {
    const tensor t = {LS_BF16, m->base, 3, {64, m->outer, m->inner / 64}, {m->stride, 64}};
    const int box[3] = {64, box_rows, box_chunks};
    return encode_map(map, op, &t, box, err);
}

ls_status ls_box_map_f32(CUtensorMap *map, const char *op, const ls_box_matrix *m, int box_inner, int box_rows,
                         ls_error *err) {
    const tensor t = {LS_F32, m->base, m->outer > 0 ? 2 : 1, {m->inner, m->outer}, {m->stride}};
    const int box[2] = {box_inner, box_rows};
    return encode_map(map, op, &t, box, err);
}

ls_status ls_page_maps(CUtensorMap *keys, CUtensorMap *values, const char *op, const ls_pool_view *pages,
                       int64_t n_kv_heads, int64_t head_dim, ls_error *err) {
    const int64_t rows = n_kv_heads * head_dim, stride = pages->stride / 2;
    const tensor k = {LS_BF16, pages->base, 3, {16, rows, pages->n_entries}, {16, stride}};
    const tensor v = {LS_BF16,
                      (const uint16_t *)pages->base + 16 * rows,
                      4,
                      {head_dim, 16, n_kv_heads, pages->n_entries},
                      {head_dim, 16 * head_dim, stride}};
    const int key_box[3] = {16, (int)head_dim, 1}, value_box[4] = {64, 16, 1, 1};
    LS_CUDA_TRY(encode_map(keys, op, &k, key_box, err));
    return encode_map(values, op, &v, value_box, err);
}

ls_status ls_heads_map(CUtensorMap *map, const char *op, const ls_box_matrix *m, int64_t head_dim, int box_heads,
                       int box_rows, ls_error *err) {
    const tensor t = {LS_BF16, m->base, 3, {head_dim, m->inner / head_dim, m->outer}, {head_dim, m->stride}};
    const int box[3] = {64, box_heads, box_rows};
    return encode_map(map, op, &t, box, err);
}
