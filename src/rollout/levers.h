/* The levers: settings of the engine that must not change a bit of any result. Each is a run option, a field here and a
 * member of meta.levers in every record, so that an experiment can move one and say what it moved. */
#ifndef LS_ROLLOUT_LEVERS_H
#define LS_ROLLOUT_LEVERS_H

#include "base/status.h"
#include "model/model.h"
#include "rollout/ids.h"

#define LS_DRAFTS_MAX 8

typedef enum ls_prefix_mode {
    LS_PREFIX_OFF = 0,
    LS_PREFIX_ON,   /* kept from run to run of one engine */
    LS_PREFIX_COLD, /* emptied before each run */
    LS_PREFIX_WARM  /* each run first prefills its prompts, so that every request is a hit */
} ls_prefix_mode;

typedef enum ls_preempt_by { LS_PREEMPT_RECOMPUTE = 0, LS_PREEMPT_SWAP, LS_PREEMPT_ALTERNATE } ls_preempt_by;

typedef struct ls_levers {
    int64_t samples;        /* rollouts of each prompt */
    int64_t batch;          /* sequences that run at once */
    int64_t chunk;          /* tokens of a sequence in one tick; 0: no limit */
    int64_t tick_tokens;    /* rows of one tick; 0: batch + chunk, or the longest prompt */
    int64_t page_tokens;    /* tokens in a KV page: divides 64 */
    int64_t slots, pages;   /* sizes of the pools; 0: from memory, or what the requests need */
    int64_t memory_bytes;   /* budget of all pools together; 0: none */
    double memory_fraction; /* of the device's memory that may be full, (0, 1]; 0: 0.9 on a GPU, no limit on the CPU */
    double pool_share;      /* of the pools above that are really made, (0, 1] */
    int64_t swap_bytes;     /* of sequences that are swapped out; 0: as many as run at once */
    int64_t slot_words;     /* distance of slots in 4-byte words; 0: the least */
    ls_policy policy;       /* of slots and pages */
    int64_t slot_base;      /* see ls_ids_opts */
    uint64_t slot_permutation;
    uint64_t policy_seed;
    ls_prefix_mode prefix;
    int64_t snapshot_every; /* tokens between snapshots inside a prompt; 0: at its end and at branches only */
    int64_t prefix_bytes;   /* of snapshots; 0: four for each running sequence */
    double verify;          /* share of hits that is recomputed and compared, [0, 1] */
    bool fork;              /* samples of a prompt share its prefill */
    int64_t preempt_every;  /* force a preemption every so many ticks; 0: only when pages or slots run out */
    ls_preempt_by preempt_by;
    int64_t drafts;      /* largest number of drafted tokens of a sequence and tick, [0, LS_DRAFTS_MAX]; 0: none */
    int64_t state_every; /* tokens of decode that write a state of heads once, [0, 64]; 0: as the device has it */
    int64_t sleep_every; /* give the pools' memory back every so many ticks, and take it again; 0: never */
    uint64_t shuffle;    /* seed of the order in which requests are submitted; 0: theirs */
    int32_t threads;
    ls_isa isa;
    ls_ablation ablation;
    bool poison; /* free slots and pages hold NaN */
    bool guards; /* canaries behind every slot and page, checked after every tick */
    bool graphs; /* decoding ticks are recorded once for each size and replayed, where the device can */
} ls_levers;

void ls_levers_init(ls_levers *levers); /* the defaults */
ls_status ls_levers_check(const ls_levers *levers, ls_error *err);
/* The lever state_every with what 0 chooses; 1 of a model without states of heads. Slots whose distance was given have
 * room for no more than states, as far as anybody has said. */
int64_t ls_levers_state_every(const ls_levers *levers, const ls_model_config *config, const ls_device *device);

/* The table behind options, records and sweep: every lever by name ("samples", "batch", .. as the options without --),
 * its value as text and back. */
int64_t ls_levers_count(void);
const char *ls_lever_name(int64_t lever_i);
int64_t ls_lever_find(const char *name); /* -1: none */
const char *ls_lever_help(int64_t lever_i);
const char *ls_lever_value(int64_t lever_i); /* what stands for the value in a list of options: "N", "on|off", .. */
/* Whether the text of this value is a number that JSON readers have: an integer below 2^63, or a share. */
bool ls_lever_is_number(const ls_levers *levers, int64_t lever_i);
/* Whether both have this lever at the same value. */
bool ls_lever_is_same(const ls_levers *a, const ls_levers *b, int64_t lever_i);
void ls_lever_format(char *text, size_t bytes, const ls_levers *levers, int64_t lever_i);
ls_status ls_lever_parse(ls_levers *levers, int64_t lever_i, const char *text, ls_error *err);

#endif
