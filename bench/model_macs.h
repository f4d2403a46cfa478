/* Multiply-adds of a model's dense products, which its fma bound counts. */
#ifndef LS_BENCH_MODEL_MACS_H
#define LS_BENCH_MODEL_MACS_H

#include "model/model.h"

static inline double gemm_macs(const ls_gemm_weight *w) { return (double)w->n * (double)w->k; }

/* For one row, head included. */
static inline double model_macs(const ls_model *m) {
    double macs = gemm_macs(&m->head);
    for (int32_t i = 0; i < m->config.n_layers; i++) {
        const ls_layer *l = &m->layers[i];
        const ls_ffn_weights *f = l->expert;
        const double experts = l->n_experts > 1 ? m->config.top_k : 1;
        if (m->config.is_attention[i])
            macs += gemm_macs(&l->attention.q) + gemm_macs(&l->attention.k) + gemm_macs(&l->attention.v) +
                    gemm_macs(&l->attention.o);
        else
            macs += gemm_macs(&l->mamba.in_proj) + gemm_macs(&l->mamba.x_proj) + gemm_macs(&l->mamba.dt_proj) +
                    gemm_macs(&l->mamba.out_proj);
        if (f != NULL) macs += experts * (gemm_macs(&f->gate) + gemm_macs(&f->up) + gemm_macs(&f->down));
    }
    return macs;
}

#endif
