/* Rollouts of servers (`lockstep serve`) in the engine's place: requests of the engine go out over HTTP, each with the
 * address of its draws, and come back with tokens, the bits of their log-probabilities and the version of the weights
 * behind each. So the tokens are those of one process, whichever server draws them, in whatever order, and however
 * often a request is repeated. Several servers each take every so many-th request.
 *
 * An answer of other numerics, another address or other weights than were asked for is an error. */
#ifndef LS_RL_ROLLOUT_H
#define LS_RL_ROLLOUT_H

#include <stdio.h>

#include "rollout/engine.h"

typedef struct ls_rollout_options {
    const char *urls;     /* "http://HOST:PORT", several with commas between */
    const char *key_file; /* a key on its first line, for `Authorization: Bearer`; NULL or "": none */
    int64_t concurrency;  /* requests at a time, all servers together */
    double timeout_s;     /* of a request, and how long no server may have answered at all */
    FILE *notes;          /* where a line says that a server does not answer; NULL: nowhere */
} ls_rollout_options;

/* What every rollout of a run has. */
typedef struct ls_rollout_model {
    const char *numerics; /* that the trainer computes in; copied */
    int32_t vocab;
    int64_t length; /* tokens of a sequence, at most */
    ls_logprob_of logprob_of;
    bool weighs;      /* requests ask for kept and log_mass */
    const char *stop; /* a text that ends a completion, or ""; borrowed */
} ls_rollout_model;

typedef struct ls_rollout ls_rollout;

/* Asks every server what it is: one that does not answer, computes in other numerics, records other log-probabilities
 * or is made for shorter sequences is refused. */
ls_status ls_rollout_open(ls_rollout **out, const ls_rollout_options *options, const ls_rollout_model *model,
                          ls_error *err);
void ls_rollout_close(ls_rollout *rollout); /* accepts NULL */
/* Every server loads the directory, which it must see under this path, and serves it as version `wish` or, where it has
 * served that much already, a higher one. Answers from then on must be of it. A directory of changes (load/changes.h)
 * is offered: servers that have other weights than these begin with refuse it (409), and *n_left of them are left over.
 * The next model directory is then for them alone. */
ls_status ls_rollout_offer(ls_rollout *rollout, const char *directory, uint64_t wish, int64_t *n_left, ls_error *err);
ls_status ls_rollout_publish(ls_rollout *rollout, const char *directory, uint64_t wish, ls_error *err);
/* The versions that the servers gave the weights: bytes for other processes' ls_rollout_versions_set. */
enum { LS_ROLLOUT_SERVERS_MAX = 256 };
typedef struct ls_rollout_versions {
    uint64_t of[LS_ROLLOUT_SERVERS_MAX];
} ls_rollout_versions;
const ls_rollout_versions *ls_rollout_versions_of(const ls_rollout *rollout);
void ls_rollout_versions_set(ls_rollout *rollout, const ls_rollout_versions *versions);
/* Fills the results of n requests, as ls_engine_run does. Whether a request's own sampling is NULL or not, it is drawn
 * by `sampling`. With is_recorded the log-probabilities are to be learnt from, else they may be of the other kind. */
ls_status ls_rollout_draw(ls_rollout *rollout, ls_request *requests, int64_t n, const ls_sampling *sampling,
                          bool is_recorded, ls_error *err);

#endif
