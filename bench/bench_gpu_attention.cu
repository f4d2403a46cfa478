/* Attention of both profiles on this GPU: prompts, their gradient and single tokens.
 *
 *     bench_gpu_attention [prompts | decode]... [heads KV_HEADS]
 *
 * Prints microseconds a call and, for prompts, the rate of the products that the formula has (two forward, five
 * backward, half of the square); for single tokens the share of the time that reading keys and values takes at
 * READ_RATE. attention_peers.py prints torch's on the same machine. */
#include "bench_gpu.h"
#include "op/attention_backward.h"
#include "op/cuda/cuda_ops.h"

#define READ_RATE 3.0e12 /* bytes a second, of a large copy on an H100 */
#define PAGE 16
#define TOKENS 16384

typedef struct problem {
    ls_attention_args forward;
    ls_attention_backward_args backward;
} problem;

static void run_forward(const void *p) {
    ls_error err;
    check_ls(ls_cuda_attention(&exec_, &((const problem *)p)->forward, &err), &err);
}
static void run_backward(const void *p) {
    ls_error err;
    check_ls(ls_cuda_attention_backward(&exec_, &((const problem *)p)->backward, &err), &err);
}

/* Sequences of `length` tokens; the call brings the last `n_rows` of each. */
static problem problem_make(int64_t n_seqs, int64_t length, int64_t n_rows, int64_t heads, int64_t kv_heads,
                            int64_t dim, ls_profile profile) {
    const int64_t rows = n_seqs * n_rows, pages = length / PAGE, q = heads * dim, kv = kv_heads * dim;
    const int64_t page_bytes = ls_kv_page_bytes(kv_heads, dim, PAGE, LS_BF16);
    ls_span *spans = (ls_span *)calloc((size_t)n_seqs, sizeof *spans);
    int32_t *tables = (int32_t *)calloc((size_t)(n_seqs * pages), sizeof *tables);
    ls_span *spans_there = (ls_span *)device_memory(n_seqs * (int64_t)sizeof *spans);
    int32_t *tables_there = (int32_t *)device_memory(n_seqs * pages * (int64_t)sizeof *tables);
    for (int64_t s = 0; s < n_seqs; s++) spans[s] = ls_span{s * n_rows, n_rows, length - n_rows, (int32_t)s, s * pages};
    for (int64_t i = 0; i < n_seqs * pages; i++) tables[i] = (int32_t)i;
    check(cudaMemcpy(spans_there, spans, (size_t)n_seqs * sizeof *spans, cudaMemcpyHostToDevice), "spans");
    check(cudaMemcpy(tables_there, tables, (size_t)(n_seqs * pages) * sizeof *tables, cudaMemcpyHostToDevice),
          "tables");
    problem p;
    memset(&p, 0, sizeof p);
    ls_attention_args *f = &p.forward;
    f->q = filled(rows * q, 1, false);
    f->k = filled(rows * kv, 2, false);
    f->v = filled(rows * kv, 3, false);
    f->out = device_memory(rows * q * 2);
    f->dtype = LS_BF16;
    f->q_stride = f->out_stride = q;
    f->kv_stride = kv;
    f->n_heads = heads;
    f->n_kv_heads = kv_heads;
    f->head_dim = dim;
    f->scale = dim == 64 ? 0.125f : 0.088388348f;
    f->page_tokens = PAGE;
    f->pages = ls_pool_view{(uint8_t *)filled(n_seqs * pages * page_bytes / 2, 4, false), page_bytes, n_seqs * pages};
    f->spans = spans_there;
    f->n_spans = n_seqs;
    f->tables = tables_there;
    f->n_tables = n_seqs * pages;
    f->rows = rows;
    f->spans_checked = true;
    f->profile = profile;
    if (profile == LS_PROFILE_MMA16) f->log_sum = (float *)device_memory(rows * heads * 4);
    f->log_sum_stride = heads;
    ls_attention_backward_args *b = &p.backward;
    b->q = f->q;
    b->k = f->k;
    b->v = f->v;
    b->dtype = LS_BF16;
    b->q_stride = q;
    b->kv_stride = kv;
    b->dout = (float *)filled(rows * q, 5, true);
    b->dout_stride = q;
    b->dq = (float *)device_memory(rows * q * 4);
    b->dk = (float *)device_memory(rows * kv * 4);
    b->dv = (float *)device_memory(rows * kv * 4);
    b->dq_stride = q;
    b->dkv_stride = kv;
    b->rows = rows;
    b->n_heads = heads;
    b->n_kv_heads = kv_heads;
    b->head_dim = dim;
    b->scale = f->scale;
    b->spans = spans_there;
    b->n_spans = n_seqs;
    b->span_rows_max = n_rows;
    b->profile = profile;
    b->out = f->out;
    b->out_stride = q;
    b->log_sum = f->log_sum;
    b->log_sum_stride = heads;
    exec_.workspace_bytes = ls_op_attention_backward_workspace(b);
    exec_.workspace = device_memory(exec_.workspace_bytes);
    free(spans);
    free(tables);
    return p;
}

static void problem_free(problem *p) {
    const void *all[] = {p->forward.q,          p->forward.k,     p->forward.v,      p->forward.out,
                         p->forward.pages.base, p->forward.spans, p->forward.tables, p->forward.log_sum,
                         p->backward.dout,      p->backward.dq,   p->backward.dk,    p->backward.dv,
                         exec_.workspace};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) check(cudaFree((void *)all[i]), "free");
}

static void prompts(int64_t heads, int64_t kv_heads) {
    static const int64_t dims[] = {64, 128}, lengths[] = {512, 2048, 8192, 16384};
    for (int d = 0; d < 2; d++)
        for (int l = 0; l < 4; l++)
            for (int profile = 1; profile >= (lengths[l] <= 2048 ? 0 : 1); profile--) {
                const int64_t n = TOKENS / lengths[l];
                problem p = problem_make(n, lengths[l], lengths[l], heads, kv_heads, dims[d],
                                         profile == 1 ? LS_PROFILE_MMA16 : LS_PROFILE_EXACT);
                const double square = (double)n * (double)lengths[l] * (double)lengths[l] * (double)(heads * dims[d]);
                const double forward = time_of(run_forward, &p), backward = time_of(run_backward, &p);
                printf(
                    "%s heads %lld/%lld dim %3lld, %2lld x %5lld: forward %9.1f us %6.1f TFLOP/s, backward %9.1f us "
                    "%6.1f TFLOP/s\n",
                    profile == 1 ? "mma16" : "exact", (long long)heads, (long long)kv_heads, (long long)dims[d],
                    (long long)n, (long long)lengths[l], forward, 2 * square / forward * 1e-6, backward,
                    5 * square / backward * 1e-6);
                fflush(stdout);
                problem_free(&p);
            }
}

static void decode(int64_t heads, int64_t kv_heads) {
    static const int64_t dims[] = {64, 128}, counts[] = {1, 8, 64, 256}, lengths[] = {768, 2048};
    for (int d = 0; d < 2; d++)
        for (int c = 0; c < 8; c++)
            for (int profile = 1; profile >= 0; profile--) {
                const int64_t length = lengths[c / 4];
                problem p = problem_make(counts[c % 4], length, 1, heads, kv_heads, dims[d],
                                         profile == 1 ? LS_PROFILE_MMA16 : LS_PROFILE_EXACT);
                const double bytes = (double)(counts[c % 4] * length * kv_heads * dims[d]) * 4,
                             us = time_of(run_forward, &p);
                printf(
                    "%s heads %lld/%lld dim %3lld, %3lld tokens behind %lld: %8.1f us, %6.0f GB/s, %.2f of %.1f TB/s\n",
                    profile == 1 ? "mma16" : "exact", (long long)heads, (long long)kv_heads, (long long)dims[d],
                    (long long)counts[c % 4], (long long)length, us, bytes / us * 1e-3, bytes / us * 1e6 / READ_RATE,
                    READ_RATE * 1e-12);
                fflush(stdout);
                problem_free(&p);
            }
}

int main(int argc, char **argv) {
    int64_t heads = 32, kv_heads = 8;
    bool any = false;
    bench_open();
    if (argc > 2 && atoi(argv[argc - 2]) > 0) {
        heads = atoi(argv[argc - 2]);
        kv_heads = atoi(argv[argc - 1]);
        argc -= 2;
    }
    for (int i = 1; i < argc; i++) {
        any = true;
        if (strcmp(argv[i], "prompts") == 0)
            prompts(heads, kv_heads);
        else if (strcmp(argv[i], "decode") == 0)
            decode(heads, kv_heads);
        else
            return 2;
    }
    if (any) return 0;
    prompts(heads, kv_heads);
    decode(heads, kv_heads);
    return 0;
}
