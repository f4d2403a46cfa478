/* Mamba-2's scan on this GPU: prompts, their gradient and single tokens.
 *
 *     bench_gpu_ssd [HEADS DIM GROUPS [f32]]
 *
 * 128 states. f32: inputs and outputs are float32, as in a model. Prints microseconds a call, and the issue slots that
 * a state and token take: lane operations, of as many as the GPU's schedulers issue at its highest clock. ssd_peers.py
 * prints mamba_ssm's times on the same machine. */
#include "bench_gpu.h"
#include "op/cuda/cuda_ops.h"
#include "op/ssd.h"

#define STATES 128

typedef struct problem {
    ls_ssd_args forward;
    ls_ssd_backward_args backward;
} problem;

static void run_forward(const void *p) {
    ls_error err;
    check_ls(ls_cuda_ssd(&exec_, &((const problem *)p)->forward, &err), &err);
}
static void run_backward(const void *p) {
    ls_error err;
    check_ls(ls_cuda_ssd_backward(&exec_, &((const problem *)p)->backward, &err), &err);
}

/* Whole sequences where pos is 0, else their next rows. */
static problem problem_make(int64_t n_seqs, int64_t rows_each, int64_t pos, int64_t heads, int64_t dim, int64_t groups,
                            bool wide) {
    const int64_t rows = n_seqs * rows_each, width = heads * dim, bc = groups * STATES;
    ls_span *spans = (ls_span *)calloc((size_t)n_seqs, sizeof *spans);
    ls_span *spans_there = (ls_span *)device_memory(n_seqs * (int64_t)sizeof *spans);
    for (int64_t s = 0; s < n_seqs; s++) spans[s] = ls_span{s * rows_each, rows_each, pos, (int32_t)s, 0};
    check(cudaMemcpy(spans_there, spans, (size_t)n_seqs * sizeof *spans, cudaMemcpyHostToDevice), "spans");
    free(spans);
    problem p;
    memset(&p, 0, sizeof p);
    ls_ssd_args *f = &p.forward;
    f->in_dtype = f->out_dtype = wide ? LS_F32 : LS_BF16;
    f->x = filled(rows * width, 1, wide);
    f->dt_raw = filled(rows * heads, 2, wide);
    f->b = filled(rows * bc, 3, wide);
    f->cc = filled(rows * bc, 4, wide);
    f->out = device_memory(rows * width * (wide ? 4 : 2));
    f->x_stride = f->out_stride = width;
    f->dt_stride = heads;
    f->b_stride = f->c_stride = bc;
    f->a = floats(heads, -16.0f, -1.0f);
    f->dt_bias = floats(heads, -6.0f, -3.0f);
    f->d = floats(heads, 0.5f, 1.5f);
    f->dt_max = INFINITY;
    f->rows = rows;
    f->n_heads = heads;
    f->head_dim = dim;
    f->n_groups = groups;
    f->n_states = STATES;
    f->state = ls_pool_view{(uint8_t *)device_memory(n_seqs * width * STATES * 4), width * STATES * 4, n_seqs};
    f->scale = ls_pool_view{(uint8_t *)floats(n_seqs * heads, 0.5f, 1.0f), heads * 4, n_seqs};
    f->spans = spans_there;
    f->n_spans = n_seqs;
    f->span_rows_max = rows_each;
    f->spans_checked = true;
    exec_.workspace_bytes = ls_op_ssd_workspace(f);
    exec_.workspace = device_memory(exec_.workspace_bytes);
    if (pos > 0) return p;
    ls_ssd_backward_args *b = &p.backward;
    b->in_dtype = b->ddt_dtype = f->in_dtype;
    b->x = f->x, b->dt_raw = f->dt_raw, b->b = f->b, b->cc = f->cc;
    b->x_stride = width, b->dt_stride = heads, b->b_stride = b->c_stride = bc;
    b->a = f->a, b->dt_bias = f->dt_bias, b->d = f->d;
    b->dt_max = INFINITY;
    b->dout = (float *)filled(rows * width, 5, true);
    b->dx = (float *)device_memory(rows * width * 4);
    b->db = (float *)device_memory(rows * bc * 4);
    b->dcc = (float *)device_memory(rows * bc * 4);
    b->ddt = device_memory(rows * heads * 4);
    b->dout_stride = b->dx_stride = width;
    b->db_stride = b->dc_stride = bc;
    b->ddt_stride = heads;
    b->da = floats(heads, 0.0f, 0.0f);
    b->ddt_bias = floats(heads, 0.0f, 0.0f);
    b->dd = floats(heads, 0.0f, 0.0f);
    b->rows = rows;
    b->n_heads = heads;
    b->head_dim = dim;
    b->n_groups = groups;
    b->n_states = STATES;
    b->spans = spans_there;
    b->n_spans = n_seqs;
    b->span_rows_max = rows_each;
    check(cudaFree(exec_.workspace), "free");
    exec_.workspace_bytes = ls_op_ssd_backward_workspace(b);
    exec_.workspace = device_memory(exec_.workspace_bytes);
    return p;
}

static void problem_free(problem *p) {
    const void *all[] = {p->forward.x,          p->forward.dt_raw,     p->forward.b,     p->forward.cc,
                         p->forward.out,        p->forward.state.base, p->forward.spans, p->forward.held.base,
                         p->forward.scale.base, p->backward.dout,      p->backward.dx,   p->backward.db,
                         p->backward.dcc,       p->backward.ddt,       exec_.workspace};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) check(cudaFree((void *)all[i]), "free");
    exec_.workspace = NULL;
}

int main(int argc, char **argv) {
    static const int64_t shapes[][2] = {{1, 2048}, {8, 2048}, {64, 512}}, counts[] = {1, 8, 64, 256},
                         everies[] = {1, 2, 4, 8, 12, 16};
    const long long heads = argc > 3 ? atoi(argv[1]) : 128, dim = argc > 3 ? atoi(argv[2]) : 64,
                    groups = argc > 3 ? atoi(argv[3]) : 8;
    const bool wide = argc > 4 && strcmp(argv[4], "f32") == 0;
    bench_open();
    for (int i = 0; i < 3; i++) {
        const int64_t n = shapes[i][0], length = shapes[i][1];
        problem p = problem_make(n, length, 0, heads, dim, groups, wide);
        const double slot = slot_us((double)(n * length * heads * dim * STATES));
        const double forward = time_of(run_forward, &p), backward = time_of(run_backward, &p);
        printf(
            "%lld x %lld heads, %lld groups, %2lld x %4lld: forward %8.1f us, %.2f slots; gradient %8.1f us, %.2f "
            "slots\n",
            heads, dim, groups, (long long)n, (long long)length, forward, forward / slot, backward, backward / slot);
        fflush(stdout);
        problem_free(&p);
    }
    for (int i = 0; i < 4 * 6; i++) {
        const int64_t n = counts[i / 6], every = everies[i % 6];
        problem p = problem_make(n, 1, 100, heads, dim, groups, wide);
        p.forward.state_every = every;
        p.forward.held = held_pool(ls_ssd_held(&p.forward), n);
        const double bytes = (1.0 + 1.0 / (double)every) * (double)(n * heads * dim * STATES) * 4.0,
                     us = time_of(run_forward, &p);
        printf("%lld x %lld heads, %lld groups, %3lld tokens, states every %2lld: %8.1f us, %5.0f GB/s of states\n",
               heads, dim, groups, (long long)n, (long long)every, us, bytes / us * 1e-3);
        fflush(stdout);
        problem_free(&p);
    }
    return 0;
}
