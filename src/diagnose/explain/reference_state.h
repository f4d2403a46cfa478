/* The weights of the float64 forward: what reference_weights.c reads and reference.c computes with. */
#ifndef LS_DIAGNOSE_EXPLAIN_REFERENCE_STATE_H
#define LS_DIAGNOSE_EXPLAIN_REFERENCE_STATE_H

#include "diagnose/explain/reference.h"
#include "load/safetensors.h"

enum {
    INPUT_NORM = 0,
    FFN_NORM,
    IN_PROJ,
    IN_BIAS,
    CONV,
    CONV_BIAS,
    X_PROJ,
    DT_NORM,
    B_NORM,
    C_NORM,
    DT_PROJ,
    DT_BIAS,
    A_LOG,
    SKIP,
    OUT_PROJ,
    OUT_BIAS,
    WQ,
    WK,
    WV,
    WO,
    Q_BIAS,
    K_BIAS,
    V_BIAS,
    O_BIAS,
    Q_NORM,
    K_NORM,
    GATED_NORM,
    HEAD_BIAS,
    IN_QKV,
    IN_Z,
    IN_B,
    IN_A,
    IN_QKVZ,
    IN_BA,
    SHARED_GATE,
    ROUTER,
    ROUTER_BIAS,
    TENSORS
};

typedef struct matrix {
    double *at; /* NULL: absent */
    int64_t rows, columns;
} matrix;

typedef struct layer {
    matrix of[TENSORS];
    matrix *expert; /* [n_experts][3]: gate, up, down */
    matrix shared[3];
} layer;

struct ls_reference {
    ls_model_config config;
    ls_checkpoint *checkpoint;
    matrix embed, head, final_norm;
    layer *layers;
    int64_t n_owned;
    double *owned[1 << 14]; /* all arrays above */
};

#endif
