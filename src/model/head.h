/* From rows of a forward to log-probabilities: the one head of rollout, scoring and training.
 *
 * Rows are taken in blocks of at most rows_max, so that logits of a long sequence never exist all at once. A block is
 * gathered by row number; what is asked of it follows, all in device memory until the caller reads it. */
#ifndef LS_MODEL_HEAD_H
#define LS_MODEL_HEAD_H

#include "model/forward.h"
#include "op/sample.h"

/* Which distribution a recorded log-probability is of: the model's own (raw, temperature 1, all tokens), or the one
 * that was sampled from (processed: temperature, top-k, top-p and min-p applied). */
typedef enum ls_logprob_of { LS_LOGPROB_RAW = 0, LS_LOGPROB_PROCESSED = 1 } ls_logprob_of;

/* That of which a drawn token's log-probability is what it was drawn with. At temperature 1 and without truncation it
 * is the model's own. */
static inline ls_logprob_of ls_logprob_of_drawn(const ls_sampling *s) {
    return s->temperature == 1.0f && !ls_sampling_truncates(s) ? LS_LOGPROB_RAW : LS_LOGPROB_PROCESSED;
}

typedef struct ls_head_opts {
    ls_dtype dtype; /* of activations */
    int64_t rows_max;
    bool samples;      /* ls_head_process is called; in place, or into `processed` where it is kept apart */
    bool keeps_logits; /* beside the processed ones */
    bool weighs;       /* ls_head_weigh is called; needs both */
    bool weighs_model; /* and gives the model's own log-probability as well */
    bool trains;       /* lse and entropy are wanted */
    int64_t top;       /* ls_head_top gives so many likeliest entries of a row; 0: it is not called */
    float temperature; /* of the log-probabilities; 1 is the model's own */
} ls_head_opts;

/* All arrays are device memory, [rows_max] unless another shape is given. */
typedef struct ls_head {
    ls_device *device;
    ls_head_opts opts;
    int64_t vocab;
    int64_t n;           /* rows of the block */
    int64_t *index;      /* row numbers within what the block was gathered from */
    int64_t *targets;    /* token of each row, or -1 */
    ls_rows x;           /* H */
    float *logits;       /* [rows_max][V] */
    float *processed;    /* [rows_max][V]; logits itself unless they are kept apart; NULL without sampling */
    int32_t *sort_space; /* [rows_max][2 V] */
    ls_sampling *sampling;
    uint8_t *mask;
    ls_draw *draws;
    int64_t *kept;
    float *logprob, *lse, *entropy;
    float *temperature;                         /* NULL for 1 */
    float *of_all, *of_kept, *draw_temperature; /* of ls_head_weigh; NULL without */
    float *of_model;                            /* the same, of weighs_model */
    /* Of ls_head_top; NULL without. */
    int32_t *top_id;         /* [rows_max][top] */
    float *top_logprob;      /* [rows_max][top] */
    ls_logprob_leaf *leaves; /* [rows_max][leaves of V] */
    int64_t *first;          /* a target of every row: 0 */
    float *first_z;
} ls_head;

ls_status ls_head_create(ls_head **out, ls_device *device, const ls_model_config *config, const ls_head_opts *opts,
                         ls_error *err);
void ls_head_free(ls_head *head);
/* Rows of a block where nothing else decides: their logits are what the device likes to have at once. No bit. */
#define LS_HEAD_BLOCK_MAX 4096
int64_t ls_head_block_rows(const ls_device *device, int64_t vocab, bool trains);
/* Bytes of a head, for planning, and of the device's workspace that a head makes sure of. */
int64_t ls_head_bytes(const ls_model_config *config, const ls_head_opts *opts);
int64_t ls_head_workspace_bytes(const ls_model_config *config, const ls_head_opts *opts);

/* What take, process and sample read, host memory, [n] each: row numbers, sampling, draws. */
ls_status ls_head_write(ls_head *head, const int64_t *index, const ls_sampling *sampling, const ls_draw *draws,
                        int64_t n, ls_error *err);
/* The block becomes rows index[0..n) (host memory; NULL: as ls_head_write left them) of x [x_rows][H]: their logits. */
ls_status ls_head_take(ls_head *head, const ls_model *model, ls_rows x, int64_t x_rows, const int64_t *index, int64_t n,
                       ls_error *err);
/* Processed logits, of the rows that mask (host, [n], or NULL) takes; sampling as index above. */
ls_status ls_head_process(ls_head *head, const ls_sampling *sampling, const uint8_t *mask, ls_error *err);
/* What ls_head_process kept of each row, as bits (op/support.h) of [n][words]: `bits` is device memory, `host` the
 * caller's, which has them when the call returns. */
ls_status ls_head_support(ls_head *head, uint32_t *bits, uint32_t *host, ls_error *err);
/* A token of each row into head->targets, -1 where nothing can be drawn; draws as index above. */
ls_status ls_head_sample(ls_head *head, const ls_draw *draws, ls_error *err);
/* What ls_head_process kept: head->of_all and head->of_kept are the log-probabilities of head->targets at the rows' own
 * temperatures, over all tokens and over the kept ones. Their difference is the logarithm of the kept mass. Only where
 * ls_head_write was given the sampling; a greedy row keeps all, at temperature 1. With weighs_model head->of_model is
 * that of all tokens at temperature 1. */
ls_status ls_head_weigh(ls_head *head, ls_error *err);
/* The likeliest entries of each row of `logits`, which is head->logits or head->processed, and their log-probabilities
 * (op/top.h). */
ls_status ls_head_top(ls_head *head, const float *logits, ls_error *err);
/* head->logprob of head->targets (rows with -1 give +0), from `logits`, which is head->logits or head->processed; with
 * lse and entropy where they are wanted. targets (host, [n]) are written first unless NULL. */
ls_status ls_head_logprob(ls_head *head, const float *logits, const int64_t *targets, bool entropy, ls_error *err);

#endif
