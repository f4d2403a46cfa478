/* What a run chooses by itself, so that it fits its device and is as fast as that allows: none of it carries a bit.
 *
 * A choice is tried by making everything that the run will make, on a device on paper (op/planned.h), and by rehearsing
 * a step there: what the plan says is what the code asks for. Of the choices that fit, that with the fewest seconds a
 * step is taken, by a model of costs (train_plan.c). Nothing of the run's own device is touched before. */
#ifndef LS_TRAIN_TRAIN_PLAN_H
#define LS_TRAIN_TRAIN_PLAN_H

#include <stdio.h>

#include "op/backend.h"

/* A kind of GPU, by what a plan needs to know: rates are what this program reaches on it or, where it was never
 * measured, the datasheet's in the same proportion. */
typedef struct ls_card {
    const char *name, *title; /* "h100-80", "NVIDIA H100 80GB" */
    int64_t bytes;            /* of its memory, as CUDA tells them */
    double bandwidth;         /* of it, bytes/s */
    double rate;              /* dense products of training, operations/s */
    double link;              /* to the host's memory, bytes/s in each direction, both at a time */
    bool is_gpu;              /* false: a processor, whose memory has a limit */
} ls_card;

/* By name; the error lists the names. */
ls_status ls_card_find(const ls_card **out, const char *name, ls_error *err);
/* What a device is planned as: the card whose memory is most like its own, or a processor with a limit. */
const ls_card *ls_card_like(const ls_device *device, int64_t bytes);
/* "h100-80, h200, .." */
const char *ls_card_names(void);
/* What a process takes of a card beside its allocations, in a plan for one that is not here: bytes. */
#define LS_CARD_TAKEN ((int64_t)700 << 20)

/* What a plan is for: a card that may not be here, or a device that is, and how many processes share a step. */
typedef struct ls_train_target {
    const ls_card *card; /* NULL: the device that the options name */
    int64_t n_cards;     /* 0: as the options say */
} ls_train_target;

/* The choice. */
typedef struct ls_train_plan {
    int64_t rows;  /* tokens of a forward, at most */
    int64_t spans; /* sequences of a forward, at most */
    bool moments_on_host;
    bool sleeps; /* engine and trainer sleep in turn: each gives back what it alone needs of the device's memory */
    int64_t recompute;    /* halves that are computed again in the backward, as ls_tape_opts */
    int64_t batch;        /* sequences that the engine decodes at a time; 0: as its levers say */
    int64_t prefix_bytes; /* of its prefix cache; 0: as its levers say */
    int64_t slots, pages; /* of its pools, as they fit; 0: as its levers say */
    int64_t gradients;    /* that the device holds; 0: what fits */
    int64_t workspace;    /* bytes that ops need; made at the start, so that nothing is later */
} ls_train_plan;

/* As many as a step ever needs at a time. */
#define LS_GRADIENTS_ALL INT64_MAX

/* What the options leave open, and what for. */
typedef struct ls_train_wish {
    int64_t rows;               /* 0: open */
    int32_t moments_on_host;    /* 0, 1, or -1: open */
    int32_t sleeps;             /* likewise */
    int64_t recompute;          /* halves, or -1: open */
    int64_t gradients;          /* 0: open */
    int64_t batch;              /* of the engine; 0: open */
    bool has_engine;            /* in this process */
    int64_t sequences, longest; /* of a step on this process; tokens of a sequence, at most */
    int64_t leaf;               /* sequences */
    int64_t group, group_rows;  /* that share what they have in common, and tokens of one, at most; group 0: none do */
    int64_t new_tokens;         /* drawn for a sequence, at most */
    int64_t host_bytes;         /* of the host's memory, for this process; 0: not known */
} ls_train_wish;

/* What a rehearsal told, beside the device's ledger. */
typedef struct ls_train_outlook {
    int64_t parameters, learnt; /* of the model; with moments */
    int64_t moment_bytes;       /* of a learnt one: both */
    int64_t slot_bytes;         /* of a sequence that decodes: its state */
    int64_t host_gradient_bytes;
    int64_t halves; /* of its layers */
} ls_train_outlook;

/* Makes model, engine and trainer on a device on paper as the plan says, rehearses a step, and frees them; *out is what
 * it learnt. LS_ERR_NOMEM or LS_ERR_CAPACITY: it does not fit. Fills in plan's workspace, slots, pages and gradients.
 * `look` is called with the device when most of it is held: once, or once for each that is awake. */
typedef ls_status (*ls_train_rehearse)(void *context, ls_device *device, ls_train_plan *plan, ls_train_outlook *out,
                                       void (*look)(void *looker, const ls_device *device), void *looker,
                                       ls_error *err);

enum { LS_TRAIN_HOLDERS = 12 };

/* A plan with what it costs and who holds what. */
typedef struct ls_train_planned {
    ls_train_plan plan;
    ls_train_outlook outlook;
    int64_t total, taken, used, pinned; /* bytes: of the card; beside allocations; by them; of the host's memory */
    int64_t held;                       /* by them when holders were looked at */
    struct {
        char what[LS_LEDGER_NAME_MAX];
        int64_t bytes;
    } holders[LS_TRAIN_HOLDERS]; /* largest first */
    int64_t n_holders;
    double seconds;                                                   /* a step, by the model of costs */
    double of_moments, of_recompute, of_rows, of_gradients, of_sleep; /* seconds of it that the choices cost */
    int64_t n_tried, n_fit;
    /* The fastest that does not fit: what it would need, and cost; 0: there is none. */
    ls_train_plan missed;
    int64_t missed_used;
    double missed_seconds;
} ls_train_planned;

/* The best choice for a card with `total` bytes of which `taken` are taken. LS_ERR_CAPACITY where none fits: the error
 * says what the smallest needs. */
ls_status ls_train_plan_make(ls_train_planned *out, const ls_card *card, int64_t total, int64_t taken,
                             const ls_train_wish *wish, ls_train_rehearse rehearse, void *context, ls_error *err);
/* Whether any choice fits. */
bool ls_train_plan_fits(const ls_card *card, int64_t total, int64_t taken, const ls_train_wish *wish,
                        ls_train_rehearse rehearse, void *context);
/* Of a device without a limit, which is not planned for. */
ls_train_plan ls_train_plan_plain(const ls_train_wish *wish, int64_t forward_rows);
/* The table, for people. */
void ls_train_plan_tell(FILE *file, const ls_train_planned *planned, const ls_card *card, const ls_train_wish *wish);

#endif
