/* What the parts of a policy-gradient run share. Private to src/rl.
 *
 *   grpo.c          the run: opening, going on, evaluating, saving, closing
 *   grpo_step.c     one step: advantages, gate, updates
 *   grpo_draws.c    a step's episodes: draws and rewards
 *   grpo_ahead.c    the same by a thread of its own, steps ahead of the trainer (lag)
 *   grpo_weights.c  whether weights arrived where episodes are drawn
 *   grpo_flight.c   draws whose weights change on the way (updates=in_flight), and their log
 *   grpo_rollout.c  who draws: the engine, or servers
 *   grpo_push.c     weights on their way to these servers
 *   grpo_ranks.c    episodes from process to process
 *   grpo_report.c   what is told of a step: metrics, progress, the bundle of a mismatch */
#ifndef LS_RL_GRPO_STATE_H
#define LS_RL_GRPO_STATE_H

#include <stdatomic.h>

#include "measure/mismatch.h"
#include "model/score.h"
#include "rl/borders.h"
#include "rl/grpo.h"
#include "rl/rollout.h"
#include "run/run.h"

/* The rows of a step's episodes, one behind the other: row i of an episode predicts its token i + 1. An episode has a
 * number, that of ls_episodes, and a place among the rows, within those of the update that learns from it; arrays [n]
 * are by place but where said otherwise. */
typedef struct grpo_rows {
    int64_t n;        /* episodes */
    int64_t *order;   /* [n]: the number of the episode at each place */
    int64_t *places;  /* [n]: the place of each number */
    int64_t *lengths; /* [n]: rows of each number */
    uint8_t *moved;   /* [n][sizeof(float)]: scratch */
    int32_t *tokens;
    int64_t *offsets; /* [n + 1] */
    int64_t *targets; /* -1 where the token was given */
    uint8_t *mask;
    float *recorded, *trainer; /* log-probabilities of targets: of the rollout, of the step's beginning */
    float *checked;            /* with a lag: by the weights that drew, where is_checked; else NULL */
    uint8_t *is_checked;
    float *reference, *weights; /* NULL without KL, without correction */
    ls_supports *supports;      /* NULL without truncation */
    float *rewards;             /* [n], by number */
    uint8_t *failed;            /* [n], by number */
    float *advantages;
    uint8_t *keep, *overlong;
    ls_loss_sums *sums; /* [n] of the last epoch */
} grpo_rows;

/* The episodes of one step, and how they came about. */
typedef struct grpo_draws {
    ls_episodes *episodes;
    ls_feed *feed; /* of theirs; or NULL */
    int64_t step;
    int64_t behind;                      /* their weights are those behind this step, or later ones in flight: step - 1
                                            without a lag */
    int64_t newest;                      /* and up to those behind this one: in flight it may be later */
    int64_t n_borders;                   /* in flight: how often weights changed within an episode */
    int64_t n_batches;                   /* how often it drew */
    uint8_t *equal;                      /* [groups] those whose rewards are all equal */
    float *rewards;                      /* [n], by number */
    double rollout, reward, check, idle; /* seconds */
    /* With a lag: what the weights that drew give each episode's tokens, by number; of [n][length] row i is that of
     * token i + 1. */
    float *logprob;
    uint8_t *is_checked;   /* [n] */
    ls_supports *supports; /* rows as of logprob, of drawn tokens, where it was checked; NULL without truncation */
} grpo_draws;

typedef struct grpo_ahead grpo_ahead;
typedef struct grpo_flight grpo_flight;
typedef struct grpo_push grpo_push;

/* Seconds of the parts of a step. */
typedef struct grpo_times {
    double rollout, reward, reference, gate, update, eval;
    double wait; /* for episodes that a thread draws */
} grpo_times;

/* Episodes [begin, end): what one update learns from. */
typedef struct grpo_part {
    int64_t begin, end;
    bool is_first; /* of the step: its forward is the gate's */
    ls_loss_totals totals;
} grpo_part;

typedef enum grpo_awake { GRPO_ENGINE = 0, GRPO_TRAINER } grpo_awake;

typedef struct grpo {
    ls_grpo_options *o; /* their profile is chosen when the model is open */
    const ls_config *config;
    FILE *progress; /* NULL: none */
    FILE *notes;    /* the same, of every process: progress is of rank 0 */
    ls_grpo_result *result;

    char checkpoints[LS_SAVES_PATH_MAX]; /* RUN/checkpoints */
    ls_saves *saves;
    ls_run *records;               /* NULL but on rank 0 */
    char begin[LS_SAVES_PATH_MAX]; /* directory that the model is opened from */
    int64_t begin_update;          /* 0, or the checkpoint's */
    ls_device *device;
    ls_device_choice choice; /* which one it is */
    ls_model *model, *reference;
    ls_comm *comm;
    ls_trainer *trainer;
    int64_t rows_max;         /* of its forwards */
    ls_train_planned planned; /* of a device whose memory is limited, with card and wish */
    const ls_card *card;
    ls_train_wish wish;
    ls_train_plan plan;
    grpo_awake awake;       /* with plan.sleeps */
    bool on_paper;          /* only to see what it takes: there are no other processes */
    ls_engine *engine;      /* NULL: servers draw, or the engine of `ahead` */
    ls_rollout *rollout;    /* NULL: an engine does */
    int64_t published;      /* the update whose weights the servers have; -1: none */
    grpo_push *push;        /* NULL: they get whole weights */
    _Atomic int64_t pushed; /* bytes that were written for them since the last record */
    grpo_ahead *ahead;      /* NULL without a lag */
    ls_engine_opts engine_opts;
    ls_task *task;
    ls_tokenizer *tokenizer;
    ls_stop *stop;
    ls_chat *chat; /* of an environment; NULL: the model has no template */
    ls_reward *environment;
    ls_judge judges[LS_JUDGES_MAX]; /* sources are of rank 0 */
    ls_data *problems;              /* NULL: a task makes them */
    int64_t eval_n;
    ls_world world;
    grpo_draws own_draws;  /* without a lag */
    grpo_draws *draws;     /* of the step */
    ls_episodes *episodes; /* of draws */
    ls_episodes *held_out;
    ls_loss_options loss;
    ls_advantage_options advantages;
    ls_correction correction;
    uint64_t data; /* digest of what is learnt from */

    /* One step. */
    int64_t step;
    grpo_rows rows;
    grpo_part part;
    ls_gate gate;
    grpo_times times;
    double overlong_penalty; /* the mean of what length cost */
    ls_advantage_metrics advantage_metrics;
    ls_correction_metrics correction_metrics;
    ls_loss_metrics first_loss, last_loss; /* of the first update, over the last epoch */
    ls_train_stats stats;                  /* of the last update */
    int64_t n_updates;
    bool any_differ;                 /* some step of this process had a group whose rewards differ */
    double eval_reward, eval_length; /* NaN: there was no evaluation */
} grpo;

static inline bool ls_grpo_writes(const grpo *g) { return g->o->train.own_rank.rank == 0; }
/* Whether the step's episodes were drawn with the weights that it begins with: the trainer's own forward is their
 * check. */
static inline bool ls_grpo_is_fresh(const grpo *g) { return g->draws->behind == g->step - 1; }
static inline bool ls_grpo_stops(const grpo *g) { return g->gate.n_differing > 0 && g->o->gate == LS_GATE_STOP; }

/* The episode at a place. */
static inline const ls_episode *ls_grpo_at(const grpo *g, int64_t place) {
    return &g->episodes->list[g->rows.order[place]];
}

/* How a step's episodes are scored by weights other than the trainer's: by forwards of at most 64 sequences of 1,024
 * tokens, or as many tokens of longer ones. */
static inline ls_score_opts ls_grpo_score_opts(const grpo *g) {
    return (ls_score_opts){.dtype = (ls_dtype)g->o->train.dtype, .batch = 64, .page_tokens = 16, .rows = 64 * 1024};
}

static inline bool ls_grpo_truncates(const grpo *g) { return ls_sampling_truncates(&g->engine_opts.sampling); }

/* The share of n things that this process does: [*begin, *end). Of one process it is all. */
static inline void ls_grpo_share(const grpo *g, int64_t n, int64_t *begin, int64_t *end) {
    const int64_t rank = g->comm == NULL ? 0 : ls_comm_rank(g->comm),
                  ranks = g->comm == NULL ? 1 : ls_comm_ranks(g->comm);
    *begin = rank * n / ranks;
    *end = (rank + 1) * n / ranks;
}

/* grpo_ranks.c: every process has drawn its share of the episodes; afterwards all have all. */
ls_status ls_grpo_gather(const grpo *g, ls_episodes *episodes, ls_error *err);
/* The same of the supports of their rows. */
ls_status ls_grpo_gather_supports(const grpo *g, grpo_draws *draws, ls_error *err);

/* Weights that are drawn with: the model's as the trainer has them, or a copy of an earlier version. */
typedef struct grpo_weights {
    const ls_parameters *list;
    int64_t update; /* that they are behind */
} grpo_weights;

/* grpo_rollout.c: the servers of rollout_url, in the engine's place. */
ls_status ls_grpo_open_rollout(grpo *g, ls_error *err);
/* Who draws, with which weights and sampling: the engine, which has the weights, or, where it is NULL, the servers, who
 * get them. */
typedef struct grpo_drawer {
    ls_engine *engine;
    grpo_weights weights;
    const ls_sampling *sampling;
    bool is_recorded;    /* the episodes are to be learnt from */
    grpo_flight *flight; /* changes the engine's weights on the way; NULL: they stay */
} grpo_drawer;
/* grpo_push.c: of rank 0. The servers load the weights and tell their versions: as changes where g->push has what they
 * had before, else whole. */
ls_status ls_grpo_push_open(grpo_push **out, ls_error *err);
void ls_grpo_push_close(grpo_push *push); /* accepts NULL */
ls_status ls_grpo_push_weights(grpo *g, const grpo_weights *weights, ls_error *err);
/* Draws this process's share of all episodes that were begun. */
ls_status ls_grpo_draw(grpo *g, ls_episodes *episodes, const grpo_drawer *drawer, ls_error *err);

/* grpo_draws.c */
ls_status ls_grpo_draws_create(grpo_draws *draws, const grpo *g, ls_error *err);
void ls_grpo_draws_free(grpo_draws *draws);
/* What precedes them: the problems of the step. */
ls_status ls_grpo_draws_begin(grpo *g, grpo_draws *draws, ls_error *err);
/* This process's share of the episodes of draws->step; with filter_groups all of them, with rewards. */
ls_status ls_grpo_draws_make(grpo *g, grpo_draws *draws, const grpo_drawer *drawer, ls_error *err);
/* The others' episodes, then rewards. Not with filter_groups. */
ls_status ls_grpo_draws_join(grpo *g, grpo_draws *draws, ls_error *err);
/* What went wrong with the episodes, if anything did. */
void ls_grpo_tell_episodes(const grpo *g, int64_t step, const ls_episodes *episodes, const char *what);
/* environment_record: all turns of the episodes, or of the groups that are to be replaced, behind those that the file
 * has. */
ls_status ls_grpo_record_turns(const grpo *g, const grpo_draws *draws, const uint8_t *groups, ls_error *err);

/* grpo_ahead.c: with a lag of k the episodes of step s are drawn with the weights behind step max(0, s - 1 - k), by a
 * thread that has an engine, a share of the processors and copies of the last k + 1 versions. It checks them, too.
 * Meanwhile k + 1 others have a step each judged. */
ls_status ls_grpo_ahead_open(grpo *g, ls_error *err);
void ls_grpo_ahead_close(grpo_ahead *ahead); /* waits for what is being drawn; accepts NULL */
/* Waits for the episodes of g->step, which become those of the step. */
ls_status ls_grpo_ahead_take(grpo *g, ls_error *err);
/* Waits until nothing is drawn, nor will be before the next version is published. */
void ls_grpo_ahead_rest(grpo *g);
/* The weights behind g->step, which is over: nobody looks at its episodes any more. */
ls_status ls_grpo_ahead_publish(grpo *g, ls_error *err);
/* Beside a checkpoint of g->step: the versions that draws to come take. */
ls_status ls_grpo_ahead_save(grpo *g, ls_error *err);
/* Checks all episodes of the step, whatever share is checked otherwise. From here on nothing is drawn. */
ls_status ls_grpo_ahead_check_all(grpo *g, ls_error *err);
/* Of the episodes of the step, in flight of the token of the first difference. */
const ls_parameters *ls_grpo_ahead_weights(const grpo *g);
/* The step's versions, with files in RUN/versions; room for lag + 1. */
ls_status ls_grpo_ahead_list(grpo *g, ls_bundle_version *list, int64_t *n, ls_error *err);
const ls_engine *ls_grpo_ahead_engine(const grpo *g); /* NULL: servers draw */

/* grpo_weights.c: the digest of each tensor. */
ls_status ls_grpo_weights_digests(const ls_parameters *weights, uint64_t *digests, ls_error *err);
/* Values that were copied here come into the model, if every tensor has the digest that it was sent with; the first one
 * that has another is named. */
ls_status ls_grpo_weights_arrive(ls_parameters *weights, const uint64_t *sent, ls_error *err);

/* Where draws in flight have weights from. */
typedef struct grpo_versions {
    void *context;
    /* The engine gets this version, which is waited for. */
    ls_status (*use)(void *context, int64_t version, ls_error *err);
    int64_t (*newest)(void *context); /* that there is */
} grpo_versions;
/* grpo_flight.c: opens the log. Draws of a step are between begin and end, which adds them to the log; then
 * draws->behind and draws->n_borders are known. */
ls_status ls_grpo_flight_open(grpo_flight **out, const grpo *g, const grpo_versions *versions, ls_error *err);
void ls_grpo_flight_close(grpo_flight *flight); /* accepts NULL */
void ls_grpo_flight_begin(grpo_flight *flight, grpo_draws *draws);
ls_status ls_grpo_flight_end(grpo_flight *flight, ls_error *err);
/* As ls_engine_run, of requests of the step's episodes; along a log there is no progress. */
ls_status ls_grpo_flight_draw(grpo_flight *flight, ls_engine *engine, ls_request *requests, int64_t n,
                              ls_engine_progress progress, void *context, ls_error *err);

/* grpo_sleep.c: wakes one of engine and trainer, and the other sleeps; does nothing without plan.sleeps. */
ls_status ls_grpo_wake(grpo *g, grpo_awake who, ls_error *err);

/* grpo_step.c: episodes to updates of step g->step. Where the gate stops the run nothing has been learnt, and
 * *stopped. */
ls_status ls_grpo_step(grpo *g, bool *stopped, ls_error *err);
ls_status ls_grpo_rows_create(grpo *g, ls_error *err);
void ls_grpo_rows_free(grpo_rows *rows);
enum { LS_GRPO_METRICS = 16 }; /* of a sequence, for the trainer */

/* grpo_report.c: the record of a step, of one that the gate stops as well; the bundle. */
ls_status ls_grpo_log(grpo *g, double seconds, ls_error *err);
/* The evaluation before the first step, as step 0. */
ls_status ls_grpo_log_beginning(grpo *g, ls_error *err);
ls_status ls_grpo_bundle(grpo *g, ls_error *err);

#endif
