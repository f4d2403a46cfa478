/* scan on the GPU: which of three kernels runs a call. A channel's states stay in registers for the whole span; what
 * works on (token, channel) and not on states, softplus and gate, is done once. The choice is one of speed and carries
 * no bits: each kernel is an implementation of op/scan.h. */
#include "dev/device.h"
#include "op/cuda/cuda_ops.h"
#include "op/cuda/scan_decode_cuda.h"
#include "op/cuda/scan_pipeline_cuda.h"
#include "op/cuda/scan_wide_cuda.h"

typedef struct scan_kernel {
    const void *entry;
    int64_t threads, channels, shared_bytes; /* of a block */
} scan_kernel;

template <int GROUP, bool FULL, bool VECTORS, int IN>
static scan_kernel pipeline_of(ls_dtype out) {
    const scan_kernel kernel = {.entry = out == LS_F32
                                             ? (const void *)pipeline_kernel<GROUP, FULL, VECTORS, IN, LS_F32>
                                             : (const void *)pipeline_kernel<GROUP, FULL, VECTORS, IN, LS_BF16>,
                                .threads = 32 * (WALKERS + HELPERS),
                                .channels = CHANNELS,
                                .shared_bytes = (int64_t)sizeof(tiles<GROUP>)};
    return kernel;
}

template <int GROUP, bool FULL, int IN>
static scan_kernel decode_of(ls_dtype out) {
    const scan_kernel kernel = {.entry = out == LS_F32 ? (const void *)decode_kernel<GROUP, FULL, IN, LS_F32>
                                                       : (const void *)decode_kernel<GROUP, FULL, IN, LS_BF16>,
                                .threads = 32 * DECODE_WARPS(GROUP),
                                .channels = 32 * DECODE_WARPS(GROUP),
                                .shared_bytes = 0};
    return kernel;
}

template <int GROUP, bool FULL, bool VECTORS>
static scan_kernel kernel_of(bool decode, ls_dtype in, ls_dtype out) {
    if (decode) return in == LS_F32 ? decode_of<GROUP, FULL, LS_F32>(out) : decode_of<GROUP, FULL, LS_BF16>(out);
    return in == LS_F32 ? pipeline_of<GROUP, FULL, VECTORS, LS_F32>(out)
                        : pipeline_of<GROUP, FULL, VECTORS, LS_BF16>(out);
}

template <int THREADS, bool VECTORS, int IN>
static scan_kernel wide_of(ls_dtype out) {
    const scan_kernel kernel = {.entry = out == LS_F32 ? (const void *)wide_kernel<THREADS, VECTORS, IN, LS_F32>
                                                       : (const void *)wide_kernel<THREADS, VECTORS, IN, LS_BF16>,
                                .threads = 32,
                                .channels = 32 / THREADS,
                                .shared_bytes = 0};
    return kernel;
}

template <int THREADS>
static scan_kernel wide_kernel_of(bool vectors, ls_dtype in, ls_dtype out) {
    if (vectors) return in == LS_F32 ? wide_of<THREADS, true, LS_F32>(out) : wide_of<THREADS, true, LS_BF16>(out);
    return in == LS_F32 ? wide_of<THREADS, false, LS_F32>(out) : wide_of<THREADS, false, LS_BF16>(out);
}

/* Registers for as many states as a group has; 16 states, the published size, know it at compile time and have a kernel
 * for each amount of work: `schedulers` warps run at once. */
static scan_kernel pick_kernel(const ls_scan_args *a, bool decode, int64_t schedulers) {
    const int64_t per = (a->n_states + 3) / 4, elem = ls_dtype_bytes(a->in_dtype);
    const ls_dtype in = a->in_dtype, out = a->out_dtype;
    const bool vectors = (uint64_t)a->b % 16 == 0 && (uint64_t)a->cc % 16 == 0 && a->b_stride * elem % 16 == 0 &&
                         a->c_stride * elem % 16 == 0;
    const double warps = (double)a->n_spans * (double)a->dim / 32.0;
    if (a->n_states == WIDE_STATES && !decode && warps >= 8.0 * (double)schedulers)
        return wide_kernel_of<1>(vectors, in, out);
    if (a->n_states == WIDE_STATES && !decode && warps >= (double)schedulers)
        return wide_kernel_of<2>(vectors, in, out);
    if (a->n_states == 16)
        return vectors ? kernel_of<4, true, true>(decode, in, out) : kernel_of<4, true, false>(decode, in, out);
    if (per <= 2) return kernel_of<2, false, false>(decode, in, out);
    if (per <= 4) return kernel_of<4, false, false>(decode, in, out);
    if (per <= 8) return kernel_of<8, false, false>(decode, in, out);
    if (per <= 16) return kernel_of<16, false, false>(decode, in, out);
    return in == LS_F32 ? pipeline_of<64, false, false, LS_F32>(out) : pipeline_of<64, false, false, LS_BF16>(out);
}

static ls_status multiprocessors(int *out, ls_error *err) {
    int device;
    LS_CUDA_TRY(ls_cuda_status(cudaGetDevice(&device), "scan", err));
    return ls_cuda_status(cudaDeviceGetAttribute(out, cudaDevAttrMultiProcessorCount, device), "scan", err);
}

/* Decode: spans of a warp, so that warps fill the GPU once, or a whole number of times where a warp takes no more. */
static int64_t decode_steps(int64_t n_spans, int64_t blocks, int64_t processors) {
    const int64_t runs = DECODE_BLOCKS * processors / blocks < 1 ? 1 : DECODE_BLOCKS * processors / blocks;
    const int64_t waves = (n_spans - 1) / (runs * DECODE_SPANS_MAX) + 1;
    return (n_spans - 1) / (runs * waves) + 1;
}

ls_status ls_cuda_scan(const ls_exec *exec, const ls_scan_args *a, ls_error *err) {
    const int64_t elem = ls_dtype_bytes(a->in_dtype);
    const ls_cuda_operand operands[] = {{"u", a->u, elem, false},
                                        {"dt_raw", a->dt_raw, elem, false},
                                        {"b", a->b, elem, false},
                                        {"cc", a->cc, elem, false},
                                        {"z", a->z, elem, true},
                                        {"out", a->out, ls_dtype_bytes(a->out_dtype), false},
                                        {"a2", a->a2, 16, false},
                                        {"dt_bias", a->dt_bias, 4, true},
                                        {"d", a->d, 4, true},
                                        {"state", a->state.base, 16, a->state.n_entries == 0},
                                        {"spans", a->spans, 8, a->n_spans == 0}};
    const int64_t most = ls_spans_most(a->span_rows_max, a->rows);
    const bool decode = a->span_rows_max == 1 && a->n_states <= 4 * LS_SCAN_FAST_GROUP;
    int processors;
    LS_CUDA_TRY(ls_cuda_check("scan", exec, operands, (int64_t)(sizeof operands / sizeof operands[0]),
                              ls_op_scan_workspace(a), err));
    if (a->n_spans == 0) return LS_OK;
    LS_CUDA_TRY(multiprocessors(&processors, err));
    const scan_kernel kernel = pick_kernel(a, decode, 4 * (int64_t)processors);
    scan_params p;
    p.a = *a;
    p.blocks = (a->dim + kernel.channels - 1) / kernel.channels;
    p.span_steps = decode ? decode_steps(a->n_spans, p.blocks, processors) : 1;
    const ls_index index[] = {
        {LS_WIDTH_I64, {{{"row", a->rows}, {"u stride", a->u_stride}, {"element", elem}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"dt stride", a->dt_stride}, {"element", elem}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"z stride", a->z != NULL ? a->z_stride : 0}, {"element", elem}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"b stride", a->b_stride}, {"element", elem}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"c stride", a->c_stride}, {"element", elem}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"out stride", a->out_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"slot", a->state.n_entries}, {"state stride in bytes", a->state.stride}}}},
        {LS_WIDTH_I64, {{{"channel", a->dim}, {"states", a->n_states}, {"element", 4}}}}};
    const ls_launch launch = {decode ? "scan decode" : "scan",
                              {ls_launch_blocks((a->n_spans - 1) / p.span_steps + 1, p.blocks, 1), 1, 1},
                              kernel.threads,
                              kernel.shared_bytes,
                              index,
                              (int64_t)(sizeof index / sizeof index[0])};
    ls_fault *fault;
    LS_CUDA_TRY(ls_launch_check(&launch, LS_CUDA_SHARED_MAX, err));
    LS_CUDA_TRY(ls_cuda_fault_begin("scan", exec, &fault, err));
    ls_span_check check = ls_span_check_of(a, most, a->state.n_entries, fault);
    p.fault = fault;
    p.check = check;
    p.checks = decode && !a->spans_checked && a->n_spans <= DECODE_CHECK_SPANS;
    if (!p.checks) {
        LS_CUDA_TRY(a->spans_checked ? ls_cuda_checked_before("scan", exec, err)
                                     : ls_cuda_check_spans("scan", exec, &check, err));
        return ls_cuda_launch(exec, &launch, kernel.entry, &p, err);
    }
    LS_CUDA_TRY(ls_cuda_launch(exec, &launch, kernel.entry, &p, err));
    return ls_cuda_fault_end("scan", exec, fault, err);
}
