/* The gated delta rule on this GPU: prompts, their gradient and single tokens.
 *
 *     bench_gpu_delta [HEADS KEY_HEADS]
 *
 * States of 128 x 128. Prints microseconds a call, and the issue slots that an element of a state and a token take:
 * lane operations, of as many as the GPU's schedulers issue at its highest clock. delta_peers.py prints
 * flash-linear-attention's times on the same machine. */
#include "bench_gpu.h"
#include "op/cuda/cuda_ops.h"
#include "op/delta.h"

#define DIM 128

typedef struct problem {
    ls_delta_args forward;
    ls_delta_backward_args backward;
} problem;

static void run_forward(const void *p) {
    ls_error err;
    check_ls(ls_cuda_delta(&exec_, &((const problem *)p)->forward, &err), &err);
}
static void run_backward(const void *p) {
    ls_error err;
    check_ls(ls_cuda_delta_backward(&exec_, &((const problem *)p)->backward, &err), &err);
}

static void backward_make(problem *p) {
    const ls_delta_args *f = &p->forward;
    ls_delta_backward_args *b = &p->backward;
    const int64_t rows = f->rows, values = f->n_heads * DIM, keys = f->n_key_heads * DIM;
    b->in_dtype = b->dab_dtype = LS_BF16;
    b->q = f->q, b->k = f->k, b->v = f->v, b->a = f->a, b->b = f->b;
    b->q_stride = b->k_stride = b->dq_stride = b->dk_stride = keys;
    b->v_stride = b->dv_stride = b->dout_stride = values;
    b->a_stride = b->b_stride = b->da_stride = b->db_stride = f->n_heads;
    b->rate = f->rate, b->dt_bias = f->dt_bias;
    b->dout = (float *)filled(rows * values, 5, true);
    b->dq = (float *)device_memory(rows * keys * 4);
    b->dk = (float *)device_memory(rows * keys * 4);
    b->dv = (float *)device_memory(rows * values * 4);
    b->da = device_memory(rows * f->n_heads * 2);
    b->db = device_memory(rows * f->n_heads * 2);
    b->drate = floats(f->n_heads, 0.0f, 0.0f);
    b->ddt_bias = floats(f->n_heads, 0.0f, 0.0f);
    b->rows = rows;
    b->n_heads = f->n_heads;
    b->n_key_heads = f->n_key_heads;
    b->key_dim = b->value_dim = DIM;
    b->spans = f->spans;
    b->n_spans = f->n_spans;
    b->span_rows_max = f->span_rows_max;
}

/* Whole sequences where pos is 0, else their next rows. */
static problem problem_make(int64_t n_seqs, int64_t rows_each, int64_t pos, int64_t heads, int64_t key_heads) {
    const int64_t rows = n_seqs * rows_each, values = heads * DIM, keys = key_heads * DIM;
    ls_span *spans = (ls_span *)calloc((size_t)n_seqs, sizeof *spans);
    ls_span *spans_there = (ls_span *)device_memory(n_seqs * (int64_t)sizeof *spans);
    for (int64_t s = 0; s < n_seqs; s++) spans[s] = ls_span{s * rows_each, rows_each, pos, (int32_t)s, 0};
    check(cudaMemcpy(spans_there, spans, (size_t)n_seqs * sizeof *spans, cudaMemcpyHostToDevice), "spans");
    free(spans);
    problem p;
    memset(&p, 0, sizeof p);
    ls_delta_args *f = &p.forward;
    f->in_dtype = f->out_dtype = LS_BF16;
    f->q = filled(rows * keys, 1, false);
    f->k = filled(rows * keys, 2, false);
    f->v = filled(rows * values, 3, false);
    f->a = filled(rows * heads, 4, false);
    f->b = filled(rows * heads, 6, false);
    f->out = device_memory(rows * values * 2);
    f->q_stride = f->k_stride = keys;
    f->v_stride = f->out_stride = values;
    f->a_stride = f->b_stride = heads;
    f->rate = floats(heads, -1.0f, -0.1f);
    f->dt_bias = floats(heads, -4.0f, -1.0f);
    f->rows = rows;
    f->n_heads = heads;
    f->n_key_heads = key_heads;
    f->key_dim = f->value_dim = DIM;
    f->state = ls_pool_view{(uint8_t *)device_memory(n_seqs * values * DIM * 4), values * DIM * 4, n_seqs};
    f->scale = ls_pool_view{(uint8_t *)floats(n_seqs * heads, 0.5f, 1.0f), heads * 4, n_seqs};
    f->spans = spans_there;
    f->n_spans = n_seqs;
    f->span_rows_max = rows_each;
    f->spans_checked = true;
    if (pos == 0) backward_make(&p);
    exec_.workspace_bytes = pos > 0 ? ls_op_delta_workspace(f) : ls_op_delta_backward_workspace(&p.backward);
    exec_.workspace = device_memory(exec_.workspace_bytes);
    return p;
}

static void problem_free(problem *p) {
    const void *all[] = {p->forward.held.base,  p->forward.q,          p->forward.k,   p->forward.v,
                         p->forward.a,          p->forward.b,          p->forward.out, p->backward.dq,
                         p->forward.state.base, p->forward.scale.base, p->backward.dk, p->backward.dv,
                         p->backward.dout,      p->backward.da,        p->backward.db, exec_.workspace};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) check(cudaFree((void *)all[i]), "free");
    exec_.workspace = NULL;
}

int main(int argc, char **argv) {
    static const int64_t shapes[][2] = {{1, 2048}, {8, 2048}, {64, 512}}, counts[] = {1, 8, 64, 256},
                         everies[] = {1, 2, 4, 8, 12, 16};
    const long long heads = argc > 2 ? atoi(argv[1]) : 32, key_heads = argc > 2 ? atoi(argv[2]) : 16;
    bench_open();
    for (int i = 0; i < 3; i++) {
        const int64_t n = shapes[i][0], length = shapes[i][1];
        problem p = problem_make(n, length, 0, heads, key_heads);
        const double slot = slot_us((double)(n * length * heads * DIM * DIM));
        const double forward = time_of(run_forward, &p), backward = time_of(run_backward, &p);
        printf("%lld over %lld heads, %2lld x %4lld: forward %8.1f us, %.2f slots; gradient %8.1f us, %.2f slots\n",
               heads, key_heads, (long long)n, (long long)length, forward, forward / slot, backward, backward / slot);
        fflush(stdout);
        problem_free(&p);
    }
    for (int i = 0; i < 4 * 6; i++) {
        const int64_t n = counts[i / 6], every = everies[i % 6];
        problem p = problem_make(n, 1, 100, heads, key_heads);
        p.forward.state_every = every;
        p.forward.held = held_pool(ls_delta_held(&p.forward), n);
        const double bytes = (1.0 + 1.0 / (double)every) * (double)(n * heads * DIM * DIM) * 4.0,
                     us = time_of(run_forward, &p);
        printf("%lld over %lld heads, %3lld tokens, states every %2lld: %8.1f us, %5.0f GB/s of states\n", heads,
               key_heads, (long long)n, (long long)every, us, bytes / us * 1e-3);
        fflush(stdout);
        problem_free(&p);
    }
    return 0;
}
