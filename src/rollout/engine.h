/* The rollout engine: continuous batching of prompts into completions with log-probabilities. Owns all KV pages, state
 * slots, snapshots and swap space, plans them at creation and allocates nothing afterwards but the entry of a submitted
 * request, on a device that records calls one recording for each size of a tick that only decodes, and after a sleep
 * the pools again. Its promise:
 * levers, neighbours, order of arrival, slot and page numbers, preemption, forks and prefix hits never change a bit of
 * a request's result.
 *
 * A tick: requests are admitted in order of (priority, submission); every running sequence contributes a span (a chunk
 * of what is not yet cached, or its last token) within the token budget, decoding ones first; one forward runs over all
 * spans; what it computed is committed; sequences that are fully cached draw their next token, and with drafts those
 * behind it as long as they were foreseen: a tick may give a sequence several tokens.
 *
 * Not thread-safe: one caller at a time. */
#ifndef LS_ROLLOUT_ENGINE_H
#define LS_ROLLOUT_ENGINE_H

#include "base/inject.h"
#include "model/head.h"
#include "op/support.h"
#include "op/top.h"
#include "rollout/levers.h"
#include "rollout/prefix.h"

#define LS_BATCH_MAX 1024

typedef enum ls_finish {
    LS_FINISH_NONE = 0, /* waiting or running */
    LS_FINISH_STOP,     /* a stop token or text, which is the end of the completion */
    LS_FINISH_LENGTH,
    LS_FINISH_CANCEL,
    LS_FINISH_ERROR /* its logits held nothing to draw from, or gave no log-probability; error says where */
} ls_finish;
const char *ls_finish_name(ls_finish finish); /* "none", "stop", "length", "cancel", "error" */

/* Caller's memory, until finish is set. */
typedef struct ls_request {
    const int32_t *prompt;
    int64_t n_prompt;
    uint32_t prompt_i, sample_i; /* address the random draws; nothing else about the request does, but for the seed */
    uint64_t owner; /* of no influence: (owner, prompt_i, sample_i) is unique while the request lives, so that
                           several callers can each number their prompts from 0 */
    uint64_t salt;  /* requests of different salts share no prefix, and only those of salt 0 use the prefix cache */
    const ls_sampling *sampling; /* of this request alone, checked at submission; NULL: the engine's */
    /* Of this request, checked at submission; NULL: none. Its draws come from logits that op/support.h has penalised
     * for the tokens of its prompt and completion. Recorded log-probabilities, and what see is shown, stay the
     * model's own: only of an engine that penalizes and records raw ones. Not with kept or log_mass. */
    const ls_penalties *penalties;
    int64_t max_tokens; /* 0: only prefill, which leaves the prompt in the prefix cache */
    int64_t priority;   /* lower runs first; submission decides among equals */
    /* Called after each token with the completion so far: true ends it with LS_FINISH_STOP. Must not allocate, nor call
     * the engine, which is in the middle of a tick. NULL: only the engine's stop ids. */
    bool (*stop)(void *context, const int32_t *completion, int64_t n);
    void *stop_context;
    /* Called with the model's own logits [V] (host memory, valid during the call) of the row that gives sequence
     * position `position`, and the token that is there: before `stop` for each token drawn, and for each of the prompt
     * behind its first where prompt_logprob is wanted. A row may be shown again after a preemption. The same rules as
     * for stop. NULL: logits stay where they are. processed [V] is what a drawn token was drawn from, where
     * sees_processed; else NULL. */
    void (*see)(void *context, int64_t position, int32_t token, const float *logits, const float *processed,
                int64_t vocab);
    void *see_context;
    bool sees_processed;

    /* Result. */
    int32_t *completion; /* [max_tokens], caller's */
    float *logprob;      /* [max_tokens], caller's */
    uint64_t *weights;   /* [max_tokens], caller's, or NULL: version of the weights that drew the token */
    /* What truncation left to draw from, [max_tokens], caller's, or NULL: how many tokens, and the logarithm of their
     * mass at the temperature, of_all - of_kept of ls_head_weigh in float32, +0 where that is positive. Only of an
     * engine that weighs. */
    int32_t *kept;
    float *log_mass;
    /* The log-probabilities behind it, as ls_head_weigh gives them, likewise; of_model of an engine that weighs the
     * model's own. */
    float *of_all, *of_kept, *of_model;
    /* Of the distribution that is recorded, as the engine's `top` says, [max_tokens][top], caller's, or both NULL: the
     * likeliest tokens of the row that each token was drawn from, and their log-probabilities (op/top.h). */
    int32_t *top_id;
    float *top_logprob;
    int64_t n_completion;
    float *prompt_logprob; /* [n_prompt - 1], caller's, or NULL: of prompt[i + 1] by the model itself (raw). The whole
                              prompt is computed for it, whatever is cached */
    ls_finish finish;
    ls_error error; /* for LS_FINISH_ERROR */
    /* How it came about: recorded, of no influence. */
    int32_t slot;  /* the last one it had; -1 before */
    int64_t n_hit; /* tokens of its first admission that came from the prefix cache or a fork */
    int64_t n_preempted;
    int64_t tick_first, tick_last; /* ticks of the first token drawn and of the end */
} ls_request;

typedef struct ls_engine_opts {
    ls_dtype dtype; /* of activations */
    ls_levers levers;
    int64_t length_max;   /* tokens of prompt and completion together that a request may have */
    int64_t requests_max; /* that may be unfinished at once; 0: no more than memory holds */
    ls_logprob_of logprob_of;
    ls_sampling sampling;
    bool weighs;       /* requests may ask for kept, log_mass, of_all and of_kept; only ticks in which one does weigh */
    bool weighs_model; /* and for of_model */
    bool penalizes;    /* requests may have penalties */
    int64_t top;       /* likeliest tokens that requests may ask for, LS_TOP_MAX and the vocabulary at most */
    const int32_t *stop; /* [n_stop] token ids that end a completion and are its last token; copied */
    int64_t n_stop;
    uint64_t weights;    /* version of the model's weights */
    ls_inject inject;    /* in builds with LS_FAULTS */
    bool (*stops)(void); /* asked between ticks of ls_engine_run, which then cancels what is unfinished; or NULL */
} ls_engine_opts;

/* What was planned: bytes of each part, and counts. */
typedef struct ls_engine_plan {
    int64_t slots, slot_stride, slot_bytes; /* bytes of one slot, and of all in all layers */
    int64_t pages, page_stride, page_bytes;
    int64_t snapshots, snapshot_bytes;
    int64_t swap_slots, swap_pages, swap_bytes;
    bool swap_on_host; /* pinned there: the device has a memory of its own */
    int64_t rows, workspace_bytes, head_bytes;
    int64_t tick_bytes;                  /* what a forward is told: tokens, spans, page tables */
    int64_t ops_bytes;                   /* the device's workspace for ops */
    int64_t recordings, recording_bytes; /* of ticks, about; 0 where they are memory of the host */
    int64_t weight_bytes;                /* of the model, on the device */
    int64_t before_bytes;                /* of a limited device: held before by anybody, weights included */
    int64_t device_bytes;                /* of a limited device: all that there are; else 0 */
    int64_t
        total_bytes; /* of the engine, on the device; where it is not limited, sparse pools are backed where touched */
} ls_engine_plan;

/* A line of the plan, for people. */
typedef struct ls_memory_part {
    const char *name;
    int64_t count; /* of what the name says; -1: nothing is counted */
    int64_t bytes;
    bool on_host;
} ls_memory_part;
enum { LS_MEMORY_PARTS_MAX = 16 };
/* Weights first, then the parts of the engine; parts of 0 bytes are left out. Returns their number. */
int64_t ls_engine_plan_parts(const ls_engine_plan *plan, ls_memory_part out[LS_MEMORY_PARTS_MAX]);

typedef struct ls_engine_stats {
    int64_t ticks, forwards, rows, prefill_tokens, tokens; /* rows of all forwards; of them not drawn tokens; drawn */
    int64_t admitted, finished, preempted_recompute, preempted_swap, forked, verified;
    int64_t drafts_proposed, drafts_accepted;
    int64_t slots_used, slots_used_max, pages_used, pages_used_max;
    int64_t pages_given_back; /* by sequences, in front of a window */
    ls_prefix_stats prefix;
} ls_engine_stats;

typedef struct ls_engine ls_engine;

/* model and device must outlive the engine. An impossible budget, or more than the device has, is LS_ERR_CAPACITY with
 * what is needed, what there is and what would be smaller; nothing has been allocated then. */
ls_status ls_engine_create(ls_engine **out, const ls_model *model, ls_device *device, const ls_engine_opts *opts,
                           ls_error *err);
void ls_engine_free(ls_engine *engine);
void ls_engine_get_plan(const ls_engine *engine, ls_engine_plan *out);
void ls_engine_get_stats(const ls_engine *engine, ls_engine_stats *out);

/* Queues a request. One that can never run (empty, tokens outside the vocabulary, longer than length_max or than the
 * page pool, address of a live request) is refused by name; others are not affected. */
ls_status ls_engine_submit(ls_engine *engine, ls_request *request, ls_error *err);
/* Ends a live request between ticks: finish becomes LS_FINISH_CANCEL, what it held is free. */
ls_status ls_engine_cancel(ls_engine *engine, ls_request *request, ls_error *err);
int64_t ls_engine_unfinished(const ls_engine *engine);
/* One tick. An error (a guard overwritten, a verified hit that differs, an op that refused) poisons the engine: every
 * later call returns it. */
ls_status ls_engine_tick(ls_engine *engine, ls_error *err);

/* New weights of a model that computes alike: same layers, sizes and epsilon. Everything cached is unreachable from
 * here on: running sequences lose their state and compute it again, tokens keep the version that drew them. */
ls_status ls_engine_set_weights(ls_engine *engine, const ls_model *model, uint64_t version, ls_error *err);
/* Empties the prefix cache, between ticks. What runs keeps what it has. */
void ls_engine_flush(ls_engine *engine);
/* Takes a running sequence out, as if pages had run out; it goes on later. by: recompute or swap. False: nothing
 * runs. */
bool ls_engine_preempt(ls_engine *engine, ls_preempt_by by);
/* Takes every sequence out, empties the prefix cache and gives the memory of slots, pages and snapshots back to the
 * device, for somebody else (a trainer) to use. Recordings are forgotten. No request is lost: ls_engine_wake, or the
 * next tick, takes the memory again, at the same or another address, and everything goes on with the same bits. Swap
 * space that is pinned on the host stays. Either one twice changes nothing. A failed wake leaves the engine asleep.
 *
 * The model's weights can leave the device too, while the engine sleeps: ls_model_park, ls_model_unpark. */
ls_status ls_engine_sleep(ls_engine *engine, ls_error *err);
ls_status ls_engine_wake(ls_engine *engine, ls_error *err);
bool ls_engine_sleeps(const ls_engine *engine);

/* Looks on while rows are computed: h [n_rows][H] is the residual stream of a request's positions pos and on, behind
 * `sublayer` sublayers (ls_forward_observer), on the host. NULL ends it. */
typedef void (*ls_engine_observer)(void *context, const ls_request *request, int64_t pos, int64_t n_rows,
                                   int64_t sublayer, const float *h);
ls_status ls_engine_observe(ls_engine *engine, ls_engine_observer observer, void *context, ls_error *err);

/* Submits all in the order of levers.shuffle, ticks to the end. Requests are in the caller's order (prompt, sample),
 * and so are results. progress may be NULL. */
typedef void (*ls_engine_progress)(void *context, int64_t n_done, int64_t n_requests, int64_t n_tokens);
ls_status ls_engine_run(ls_engine *engine, ls_request *requests, int64_t n_requests, ls_engine_progress progress,
                        void *context, ls_error *err);

/* Every slot and page is free, counts add up, guards stand; asserts otherwise. prefix entries are dropped first. For
 * tests, with nothing unfinished. */
void ls_engine_check_idle(ls_engine *engine);

#endif
