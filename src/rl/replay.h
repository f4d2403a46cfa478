/* The replay of a bundle: a differing sequence is drawn again in the smallest surroundings that still show the
 * difference, and the first difference is traced to its place.
 *
 * Surroundings, smallest first; levers are the run's, and the sequence stands in the slot that it had:
 *   alone        it is all that a fresh engine ever did
 *   again        the same engine draws it a second time: state slots have been used, prefixes are cached
 *   cold         a second time with an emptied prefix cache
 *   new-weights  the same engine has first drawn it with other weights
 *   group        all episodes of its prompt
 *   step         all episodes of the step
 * Tokens are drawn again at their addresses, given the recorded ones before them. What the engine records is compared
 * with the trainer's forward (model/tape.h) of the sequence, and the residual stream that the engine computed,
 * row by row, with the tape's: the first row that differs, in it the first sublayer, in it the first element. */
#ifndef LS_RL_REPLAY_H
#define LS_RL_REPLAY_H

#include "rl/bundle.h"
#include "rl/gate.h"
#include "train/run_checkpoint.h"

typedef struct ls_replay_opts {
    int32_t threads; /* 0: the bundle's */
    ls_inject inject;
    const char *device; /* its name (op/choice.h); NULL: auto */
    FILE *notes;        /* where a line says which device it is; NULL: nowhere */
} ls_replay_opts;

typedef struct ls_replay_finding {
    bool differs;
    int64_t sequence; /* that was drawn again: the first, or the first that differs alone */
    char id[LS_EPISODE_ID_MAX];
    const char *surroundings;      /* "alone", ...; NULL where nothing differs */
    int64_t n_tokens, n_differing; /* of the sequence, drawn again */
    bool same_tokens;              /* drawn again, it has the recorded tokens */
    char failure[256];             /* why the engine could not draw it again, or "" */
    int64_t row;                   /* the first that differs in its log-probability; -1 where it failed */
    float rollout, trainer;
    /* The first difference in the residual stream. */
    bool has_place; /* false: it agrees wherever the engine computed it; what differs lies behind it */
    int64_t position, layer, element; /* layer -1: the embedding */
    const char *sublayer;             /* "embedding", "mixer (mamba)", "mixer (attention)", "feed-forward" */
    float engine_value, trainer_value;
    int64_t ulps; /* between these; -1 with NaN */
} ls_replay_finding;

/* directory: of the bundle. */
ls_status ls_replay(ls_replay_finding *out, const char *directory, const ls_replay_opts *opts, ls_error *err);
/* For people, some lines; as JSON, the members of an open object. */
void ls_finding_print(FILE *file, const ls_replay_finding *finding);
void ls_finding_write(ls_json_out *json, const ls_replay_finding *finding);
/* DIRECTORY/finding.json. */
ls_status ls_finding_save(const char *directory, const ls_replay_finding *finding, ls_error *err);

#endif
