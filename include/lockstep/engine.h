/* Lockstep inside another program: models, the rollout engine and scoring. lockstep/train.h has the trainer. What
 * engine, scoring and trainer say of the same tokens and weights has the same bits.
 *
 *   lockstep_model_open     a checkpoint directory on a device
 *   lockstep_engine_open    an engine over it;  _submit requests,  _tick until they are done,  _take results
 *   lockstep_score          log-probabilities of given sequences by the training forward
 *   lockstep_changes_write  what differs between the weights of two directories, for a server
 *
 * Sequences lie end to end: sequence i is tokens [offsets[i], offsets[i + 1]). An array [tokens] beside them has an
 * entry for each token: what it says is of that token given those before it in its sequence.
 *
 * Structs begin with their own size, so that later versions may append members: `lockstep_NAME_init(&x, sizeof x)`
 * writes it and the defaults. A struct of an older program is taken with defaults for what it lacks. One of a newer
 * program is refused where it sets a member that this library does not know.
 *
 * Memory: what a caller passes in is copied or read during the call, and stays the caller's. Strings that are handed
 * out live as long as the handle they came from. Handles are released by their own _close, which accepts NULL; a model
 * lives on until its engines and trainers are closed as well.
 *
 * Errors: see lockstep/lockstep.h. Every call fills its own ls_error, so that threads share none. A handle and the
 * handles opened on it are used by one thread at a time; models of their own may be used at the same time. */
#ifndef LOCKSTEP_ENGINE_H
#define LOCKSTEP_ENGINE_H

#include "lockstep/lockstep.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Raised when a program that was built with an older header can no longer run with the library. */
#define LOCKSTEP_ABI 1

const char *lockstep_version(void); /* of the library: LS_VERSION of its header */
int32_t lockstep_abi(void);         /* of the library: LOCKSTEP_ABI of its header */

/* ---- models ---- */

typedef struct lockstep_model lockstep_model;

typedef struct lockstep_model_options {
    size_t size;
    const char *device;  /* "cpu", "cuda", "cuda:N" or "auto", a GPU where one can be used; NULL: auto */
    const char *profile; /* "exact", "mma16" or "auto" (NUMERICS.md); NULL: auto */
    const char *isa;     /* of the CPU: "generic", "avx2", "avx512" or, NULL, the best one here */
    int32_t threads;     /* of the CPU; 0: all processors */
    int32_t dtype;       /* of activations: LS_F32, the default, or LS_BF16 */
    int32_t trains;   /* whether a trainer will be opened; default 1. Every profile has a gradient: nothing follows */
    int32_t reserved; /* 0 */
} lockstep_model_options;

typedef struct lockstep_model_info {
    size_t size;
    int64_t vocab, hidden, layers, parameters;
    int64_t positions_max; /* what the model was trained for; INT64_MAX where it does not say */
    int64_t weight_bytes;  /* on the device */
    int64_t n_eos;
    const int32_t *eos;   /* [n_eos] end-of-sequence tokens, the model's */
    const char *device;   /* for people: "cpu, avx512, 2 threads" */
    const char *numerics; /* "exact/2/f32": results of two runs can be equal where this is */
    uint64_t version;     /* of the weights: 0 as opened, then the trainer's step */
} lockstep_model_info;

void lockstep_model_options_init(lockstep_model_options *options, size_t size);
/* directory: config.json and safetensors. options may be NULL. */
ls_status lockstep_model_open(lockstep_model **out, const char *directory, const lockstep_model_options *options,
                              ls_error *err);
void lockstep_model_close(lockstep_model *model);
/* Writes the members that info->size has room for; the caller sets info->size. */
ls_status lockstep_model_describe(const lockstep_model *model, lockstep_model_info *info, ls_error *err);

/* ---- scoring ---- */

/* Of which distribution a log-probability is. */
typedef enum lockstep_logprobs {
    LOCKSTEP_RAW = 0,      /* the model's own: temperature 1, all tokens */
    LOCKSTEP_PROCESSED = 1 /* the one that is sampled from: temperature, top_k, top_p and min_p applied */
} lockstep_logprobs;

typedef struct lockstep_score_options {
    size_t size;
    int32_t logprobs;   /* lockstep_logprobs */
    float temperature;  /* of LOCKSTEP_PROCESSED, as the four below; 0 is greedy; default 1 */
    int64_t top_k;      /* 0: all */
    float top_p, min_p; /* (0, 1], default 1; [0, 1], default 0 */
    int64_t batch;      /* sequences of one forward, default 16; carries no bit */
    int64_t chunk;      /* tokens of a sequence in one forward; 0, the default: all; carries no bit */
} lockstep_score_options;

void lockstep_score_options_init(lockstep_score_options *options, size_t size);
/* logprob [offsets[n]]: written; +0 for the first token of a sequence. offsets [n + 1] ascend from 0, no sequence is
 * empty. options may be NULL. */
ls_status lockstep_score(lockstep_model *model, const int32_t *tokens, const int64_t *offsets, int64_t n,
                         const lockstep_score_options *options, float *logprob, ls_error *err);

/* ---- the engine ---- */

typedef struct lockstep_engine lockstep_engine;

typedef struct lockstep_engine_options {
    size_t size;
    int64_t length_max;   /* tokens of prompt and completion together; default 2,048, at most the model's positions */
    int64_t requests_max; /* that may be unfinished at once; 0: no limit */
    int32_t logprobs;     /* lockstep_logprobs: what is recorded */
    float temperature;    /* 0 is greedy; default 1 */
    int64_t top_k;        /* 0: all */
    float top_p, min_p;   /* (0, 1], default 1; [0, 1], default 0 */
    uint64_t seed;        /* of all draws */
    const int32_t *stop;  /* [n_stop] tokens that end a completion and are its last one; NULL: the model's eos */
    int64_t n_stop;       /* with stop NULL, -1: none at all */
    /* [n_levers] texts "batch=64", "memory-fraction=0.5": docs/reference/levers.md. They carry no bit. Not those of the
     * model (threads, isa, ablation) or of a whole run (samples, shuffle). */
    const char *const *levers;
    int64_t n_levers;
} lockstep_engine_options;

typedef struct lockstep_request {
    size_t size;
    const int32_t *tokens; /* [n_tokens] the prompt, not empty; copied */
    int64_t n_tokens;
    int64_t max_tokens; /* of the completion; 0: the prompt is only computed and kept for those that share it */
    /* Address of the random draws, unique among unfinished requests: with it, seed and tokens a completion is given,
     * whatever else runs. */
    uint32_t prompt, sample;
    int64_t priority; /* lower runs first; submission decides among equals */
    /* Draws come from logits that are penalised for tokens that were there: repetition (above 0; 1: none) for those
     * of prompt and completion, divided by it where they are positive, else multiplied; then frequency (0: none) for
     * each time that the completion has a token, and presence (0: none) once. Recorded log-probabilities stay the
     * model's own: an engine of LOCKSTEP_PROCESSED refuses them. */
    float repetition_penalty, frequency_penalty, presence_penalty;
    int32_t reserved; /* 0 */
} lockstep_request;

typedef enum lockstep_finish {
    LOCKSTEP_FINISH_STOP = 1, /* a stop token, which is the last one of the completion */
    LOCKSTEP_FINISH_LENGTH = 2,
    LOCKSTEP_FINISH_CANCEL = 3,
    LOCKSTEP_FINISH_ERROR = 4 /* no token could be drawn; error says where */
} lockstep_finish;

typedef struct lockstep_result {
    size_t size;
    int64_t ticket; /* of lockstep_engine_submit */
    uint32_t prompt, sample;
    int32_t finish; /* lockstep_finish */
    int64_t n_tokens;
    const int32_t *tokens;   /* [n_tokens] the completion; these arrays are the engine's until the next take or close */
    const float *logprob;    /* [n_tokens] */
    const uint64_t *weights; /* [n_tokens] version of the weights that drew each token */
    const char *error;       /* "" but for LOCKSTEP_FINISH_ERROR */
} lockstep_result;

void lockstep_engine_options_init(lockstep_engine_options *options, size_t size);
void lockstep_request_init(lockstep_request *request, size_t size);

/* Plans and takes all memory; more than there is is LS_ERR_CAPACITY. options may be NULL. */
ls_status lockstep_engine_open(lockstep_engine **out, lockstep_model *model, const lockstep_engine_options *options,
                               ls_error *err);
void lockstep_engine_close(lockstep_engine *engine);
/* ticket, which may be NULL, counts from 0. A request that can never run is refused; others are not affected. */
ls_status lockstep_engine_submit(lockstep_engine *engine, const lockstep_request *request, int64_t *ticket,
                                 ls_error *err);
/* One forward over all that runs; each sequence whose prompt is computed draws a token. unfinished may be NULL. A
 * failure poisons the engine: every later call returns it. */
ls_status lockstep_engine_tick(lockstep_engine *engine, int64_t *unfinished, ls_error *err);
/* Ticks until nothing is unfinished. */
ls_status lockstep_engine_run(lockstep_engine *engine, ls_error *err);
/* Ends an unfinished request, which becomes a result. */
ls_status lockstep_engine_cancel(lockstep_engine *engine, int64_t ticket, ls_error *err);
/* The next result, in the order in which requests ended, ties by ticket; *taken false: there is none now. The caller
 * sets result->size. */
ls_status lockstep_engine_take(lockstep_engine *engine, lockstep_result *result, bool *taken, ls_error *err);
/* Behind a step of a trainer: the engine goes on with the model's new weights. What it cached is void; running requests
 * keep their tokens. Until then it refuses to submit and to tick. */
ls_status lockstep_engine_update(lockstep_engine *engine, ls_error *err);
/* Gives the memory of the pools back to the device, for a trainer to use; the next tick takes it again. */
ls_status lockstep_engine_sleep(lockstep_engine *engine, ls_error *err);

/* ---- weights for a server ---- */

/* Writes the changes that make the weights of the directory `base` those of `next` (docs/reference/changes.md), which
 * have the same tensors, to a third directory, which is made where it is missing and has neither changes nor weights.
 * A server that serves `base` takes it in the place of `next`. *bytes is the size of what was written; 0 where changes
 * would be no smaller than the weights: then nothing was. */
ls_status lockstep_changes_write(const char *base, const char *next, const char *directory, int64_t *bytes,
                                 ls_error *err);

#ifdef __cplusplus
}
#endif
#endif
