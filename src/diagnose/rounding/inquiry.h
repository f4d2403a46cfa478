/* Diagnosis of a suspect that promises no bits: another stack, whose sums have another order, so that every value is a
 * little off and none says anything by itself. Bits are not compared here. What rounding does is measured first, on
 * requests that run alone; an effect is what stands above it, in units of it.
 *
 * Words: floor, the median abs d of requests alone; limit, the abs d above which a token is off; experiment, a trial
 * with a purpose; explanation, a change of the model or of the record after which the float64 forward (reference.h)
 * gives what the suspect recorded. */
#ifndef LS_DIAGNOSE_ROUNDING_INQUIRY_H
#define LS_DIAGNOSE_ROUNDING_INQUIRY_H

#include "diagnose/bits/bits_trials.h"
#include "diagnose/explain/reference.h"
#include "diagnose/finding.h"

typedef enum ls_look { LS_LOOK_UNTRIED = 0, LS_LOOK_CLEAN, LS_LOOK_OFF } ls_look;

/* What came of one experiment. */
typedef struct ls_seen {
    ls_look look;
    char note[LS_NOTE_BYTES]; /* for people: why untried, or what it failed with */
    ls_failures failures;
    ls_outcomes outcomes; /* kept; none when it failed */
    int64_t n_sequences, n_sequences_off, n_tokens, n_off;
    int64_t n_failed;           /* requests given up, values that are no numbers */
    double abs_median, abs_max; /* of finite d */
    bool spread;                /* no token stands out, all are off a little: the median is above the floor */
    int64_t first_off;          /* sequence; -1 */
    int64_t first_hung;         /* sequence that was never answered; -1 */
    double seconds;             /* that the trial took */
} ls_seen;

/* Likelier tokens than this are nearly sure, whatever the weights. */
#define LS_SURE_TOKEN -0.05

/* An explanation that was tried on records alone. */
typedef struct ls_explanation {
    char what[120];
    ls_cause cause;     /* NONE: nothing is changed */
    bool harmless;      /* a source of rounding, no fault */
    bool fitted;        /* with a number that was made to fit: it must leave less */
    int n_free;         /* numbers that were looked for */
    double median, q90; /* abs d under it */
    double mean;        /* of those up to 1 */
} ls_explanation;

enum { LS_EXPLANATIONS_KEPT = 6 };

/* How a server came to a value that is held against the same token's in a prompt: each has a floor of its own. */
typedef enum ls_path { LS_PATH_PREFILL = 0, LS_PATH_DECODE, LS_PATH_HIT, LS_PATHS } ls_path;

/* |d| of a path where nothing is moved. */
typedef struct ls_path_floor {
    int64_t n;
    double median, q90, most;
} ls_path_floor;

/* What a checkpoint says of a server: how far orders of addition in bf16 move our own values of its tokens, and how far
 * its values of prompts are from ours in float32. */
typedef struct ls_expected {
    int64_t n; /* tokens that are not nearly sure; 0: no checkpoint */
    double median, most, apart;
    double decoded, records; /* of decoded tokens alone: the prompt's values from ours, and the records */
} ls_expected;

typedef struct ls_foreign {
    ls_seen seen[LS_STACK_EXPERIMENTS];
    ls_path_floor paths[LS_PATHS]; /* of a server */
    ls_expected expected;
    char convention[LS_NOTE_BYTES];            /* of a server's records, which is no fault; "": none */
    double floor, floor_q90, floor_max, limit; /* abs d */
    double deepest;                            /* of a server: the largest size of a value of requests alone */
    double repeat;                             /* largest abs difference of two equal trials; -1: not compared */
    int64_t floor_tokens;
    bool constant; /* requests alone are off as a whole */
    bool fine;     /* a server's prefill is of float32; false: of another type, or nothing says it */
    bool is_server;
    ls_findings found;
    ls_cause rival;   /* another cause that fits as well as the first, so that none is named; or NONE */
    double strength;  /* of the suspect's rounding: its floor as a share of what bf16 activations do; 0: not known */
    bool coarser;     /* a coarser format explains a third of what requests alone are off by, or more */
    double bf16_size; /* median abs d that bf16 weights, activations and keys would make; 0: not known */
    ls_explanation before, best[LS_EXPLANATIONS_KEPT]; /* of requests alone */
    int64_t n_best;
    char no_reference[LS_NOTE_BYTES]; /* why there is no third opinion; "" when there is */
    ls_stack_experiment repro_of;
    bool repro_shown;           /* the smallest requests were run again and were off again */
    int64_t n_tried, n_untried; /* experiments that were run; that were not, for want of time or of requests */
    bool out_of_time;
    bool undecided; /* a trial that tells causes apart was not to be had in time */
} ls_foreign;

bool ls_stack_is_of_servers(ls_stack_experiment experiment);
const char *ls_stack_experiment_name(ls_stack_experiment experiment);
/* What it moves, of a server or of a program. */
const char *ls_stack_experiment_text(ls_stack_experiment experiment, bool is_server);
const char *ls_look_name(ls_look look);

/* Fills sweep->foreign, different, bounds and repro. */
ls_status ls_foreign_run(const ls_runner *runner, const char *directory, ls_error *err);
void ls_foreign_free(ls_foreign *foreign);
/* So few experiments were run that no difference says nothing of the suspect: fewer than were not for want of time. */
bool ls_foreign_is_incomplete(const ls_foreign *foreign);
/* The best finding when it is sure enough; else NULL. */
const ls_finding *ls_foreign_named(const ls_foreign *foreign);

void ls_foreign_print(FILE *file, const ls_sweep *sweep);
void ls_foreign_write(ls_json_out *json, const ls_sweep *sweep);
void ls_foreign_html(FILE *file, const ls_sweep *sweep);

/* ---- for the files of this part alone ---- */

enum { LS_FOREIGN_PROMPTS = 80, LS_REFERENCE_PARAMETERS = 8000000 /* that the reference forward takes */ };

/* Prompts of one experiment; ids are owned. */
typedef struct ls_requests {
    ls_prompt of[LS_FOREIGN_PROMPTS + 400];
    int64_t n;
    int32_t *ids;
    int64_t n_ids, cap;
} ls_requests;

/* How far a text is from itself when others have been there, and when it comes again at once. */
typedef struct ls_drift {
    int64_t n_moved, n;
    double most, at_once;
} ls_drift;

/* Records of different tokens of one text, drawn at LS_SLOPE_AT, against the prompt's values of them: a line of one
 * slope for all texts, and a height for each, since a text has one normalisation. */
#define LS_SLOPE_AT 2.0 /* so high that draws of one text are of several tokens */
#define LS_ON_LINE 0.05 /* left_mean of what is on a line, of spread */
enum { LS_STEPS = 3 };
typedef struct ls_slope {
    int64_t n, n_texts;
    double slope, left, left_mean; /* the largest |distance| from the line, and the root of the mean square */
    double spread;                 /* root of the mean square of records about their text's mean */
    double height;                 /* the largest |height| of a text's line at 0 */
    double lowest, highest;        /* height */
    double cut_least, cut_most;    /* likeliest tokens above the prompt's; 0: unlikelier ones are not so by less */
    int64_t n_steps; /* pairs of tokens; how many are apart as logits of a narrow type are, of 1/2048, 1/4096 .. */
    int64_t on_step[LS_STEPS], scored_on_step[LS_STEPS];
} ls_slope;

typedef struct ls_inquiry {
    const ls_runner *runner;
    ls_foreign *f;
    const ls_model_config *config;
    ls_reference *reference; /* NULL: none */
    uint64_t seed;
    int slot_way;       /* of asking for a slot, that the suspect is known to understand */
    bool records_solo;  /* explanations are of records, not of the model */
    bool decode_solo;   /* first tokens are right: they are of records and of what decoding is handed */
    bool of_pattern;    /* of a server: requests alone are within the limit, and it may be the fault that made that */
    ls_look solo_again; /* of a server: requests alone that were off, with other texts */
    int64_t long_text;  /* tokens of a request that may be off for the one in front; 0: none that is long */
    int64_t filler;     /* tokens of requests in front of those that are looked at; 0: a few */
    ls_drift drift;     /* of a server */
    ls_slope slope;     /* of a server, once it was measured */
    ls_slope slope_at_one;               /* the same of draws at temperature 1 */
    bool company_decided, cache_decided; /* of a server, before all experiments were run */
    bool talk_decided, lengths_decided;  /* .. likewise */
    int64_t beside;                      /* requests at once, in trials of what company does */
    int64_t longer;                      /* tokens more of the longer ones, in trials of unlike lengths */
    bool refuses_samples;                /* a server that is asked for several of a request */
    int64_t draw;                        /* number of a draw of one text, where no seed is sent */
    bool rows_choose;                    /* a kernel, in a coarse type: copies of one text move with their number */
    bool other_texts;                    /* of a trial that comes again */
    bool asked_for_keys;                 /* of 8 bits, on both sides of a server */
    bool has_coarse_keys;                /* .. it has such */
    int64_t known_length;                /* from which on requests are off; 0: not known */
    ls_stack_experiment left;            /* of a server: off again with other texts; ALONE_A: none */
    double climb_end;                    /* of ls_clock_seconds, after which no experiment is begun */
    ls_requests requests[LS_STACK_EXPERIMENTS];
    ls_error *err;
} ls_inquiry;

/* The token that an experiment puts into its prompts. */
typedef enum ls_special { LS_SPECIAL_NONE = 0, LS_SPECIAL_EOS, LS_SPECIAL_BOS, LS_SPECIAL_PAD } ls_special;

/* What the prompts of an experiment for the prefix cache have in common. */
typedef enum ls_alike {
    LS_ALIKE_LENGTH = 0,
    LS_ALIKE_WHOLE,
    LS_ALIKE_BEGINNING,
    LS_ALIKE_END,
    LS_ALIKE_TOKENS /* in another order */
} ls_alike;

/* The lever of an experiment that a control has where the baseline has it; NONE: it has none. */
typedef enum ls_control {
    LS_CONTROL_NONE = 0,
    LS_CONTROL_COMPANY, /* one at a time, in a slot of its own */
    LS_CONTROL_CHUNK,
    LS_CONTROL_CACHE,
    LS_CONTROL_LEVERS, /* all others, and what draws are made with */
    LS_CONTROL_DRAWS   /* likewise, where a server is the suspect; else its rules look at parts of them */
} ls_control;

enum { LS_STACK_LENGTHS_MOST = 12 };

typedef struct ls_stack_row {
    const char *name, *text;
    const char *text_of_server; /* what is moved there, where it is not what text says */
    ls_status (*add)(ls_inquiry *q, ls_stack_experiment experiment,
                     ls_error *err);                    /* its requests; NULL: plain ones of these lengths */
    int64_t first_text, lengths[LS_STACK_LENGTHS_MOST]; /* texts from this number on; 0: no more */
    ls_alike alike;
    ls_special special;
    int64_t slot; /* that it is about; 0: none */
    ls_moves moves;
    const char *needs[2]; /* levers that it is about */
    ls_control control;
    bool is_of_servers;         /* nobody else has it */
    const char *not_of_servers; /* why a server cannot be tried on it; NULL: it can */
} ls_stack_row;

const ls_stack_row *ls_stack_experiment_of(ls_stack_experiment experiment);
/* The id of its special token; -1: none. */
int32_t ls_stack_special_token(const ls_inquiry *q, ls_stack_experiment experiment);
/* Lays out the requests and settings of an experiment. Needs: the levers it is about, by bit of their number; NULL: not
 * asked. */
ls_status ls_stack_requests(ls_inquiry *q, ls_stack_experiment experiment, ls_error *err);
/* Why a server cannot be tried on it, or NULL. */
const char *ls_stack_refused(const ls_inquiry *q, ls_stack_experiment experiment);
void ls_stack_trial(const ls_inquiry *q, ls_stack_experiment experiment, ls_trial *out, uint64_t *needs);
/* Whether a server is asked for several samples of a request. */
bool ls_probe_takes_samples(const ls_inquiry *q);
/* The slot that an experiment is about; -1: none. */
int64_t ls_slot_of(ls_stack_experiment experiment);
/* Asks for slot `at` of so many. Engines differ in which slot they take for the first, so there are several ways; what
 * their records say of slots tells which one they understand. */
enum { LS_SLOT_WAYS = 3 };
void ls_ask_for_slot(ls_trial *out, int way, int64_t at, int64_t slots, uint64_t *needs);
ls_status ls_requests_add(ls_requests *out, const int32_t *ids, int64_t n, ls_error *err);
/* Token `i` of an endless text without special tokens, other for each `text`. */
int32_t ls_plain_token(const ls_inquiry *q, int64_t text, int64_t i);
/* The token with another last bit, or with another of the highest one that ids of the vocabulary have; itself where
 * that is no plain token. */
int32_t ls_other_bit(const ls_inquiry *q, int32_t token, bool highest);
/* A request of its first n tokens, LS_PLAIN_MOST at most. */
enum { LS_PLAIN_MOST = 1088 };
ls_status ls_requests_plain(const ls_inquiry *q, ls_requests *out, int64_t text, int64_t n, ls_error *err);
/* Place i of n tokens of which neighbours are exchanged, but for the last one. */
static inline int64_t ls_exchanged(int64_t i, int64_t n) { return (i ^ 1) < n - 1 && i < n - 1 ? i ^ 1 : i; }
/* part / whole, 0 of nothing. */
static inline double ls_portion(int64_t part, int64_t whole) { return whole > 0 ? (double)part / (double)whole : 0.0; }

/* One trial, scored; outcomes go to *seen, which the caller empties with ls_seen_deinit. */
ls_status ls_foreign_try(ls_inquiry *q, const ls_trial *trial, uint64_t needs, const ls_prompt *prompts, int64_t n,
                         ls_seen *seen, ls_error *err);
/* The same of an experiment's own requests, with whatever of its trial was changed. */
ls_status ls_foreign_try_experiment(ls_inquiry *q, ls_stack_experiment experiment, const ls_trial *trial, ls_seen *seen,
                                    ls_error *err);
/* Judges by the floor again. */
void ls_foreign_judge(const ls_foreign *f, ls_seen *seen);
/* The same, and excuses tokens where rounding moves values by much. */
ls_status ls_foreign_excuse(ls_inquiry *q, ls_seen *seen, ls_error *err);
void ls_seen_deinit(ls_seen *seen);
bool ls_token_off(const ls_foreign *f, const ls_outcome *c, int64_t i);
bool ls_sequence_off(const ls_foreign *f, const ls_outcome *c);

/* Explanations of the tokens of these experiments, best first in f->best, each better than f->before. */
ls_status ls_explain(ls_inquiry *q, const ls_stack_experiment *experiments, int64_t n_experiments, ls_error *err);
/* Of the best of them. */
double ls_explained_confidence(const ls_foreign *f);
typedef ls_status (*ls_lay)(ls_inquiry *q, int64_t value, ls_trial *trial, ls_requests *requests, ls_error *err);
/* One trial of what `lay` makes; its outcomes have no prompts. */
ls_status ls_foreign_try_laid(ls_inquiry *q, ls_lay lay, int64_t value, ls_seen *seen, ls_error *err);
/* Finds the smallest value in (low, high] at which `lay` makes a trial that is off, where high is known to be and low
 * not to be, and adds it to the sweep's bounds. */
ls_status ls_foreign_bisect(ls_inquiry *q, ls_bounded lever, int64_t low, int64_t high, ls_lay lay, int64_t *value,
                            ls_error *err);
ls_status ls_foreign_bound(ls_inquiry *q, ls_bounded lever, int64_t value, bool from_above, int64_t trials);

/* How far each completion token's value moves when activations are rounded to bf16, at least. */
ls_status ls_sensitivity(ls_inquiry *q, const ls_outcome *c, double *out, ls_error *err);
/* out [n_edits][n]: log-probabilities of the first n completion tokens under each edit of the reference. */
ls_status ls_values_of_edits(ls_inquiry *q, const ls_outcome *c, int64_t n, const ls_edit *edits, int64_t n_edits,
                             double *out, ls_error *err);
/* By how much bf16 weights, activations and keys move the first n of them. */
ls_status ls_rounding_of(ls_inquiry *q, const ls_outcome *c, int64_t n, double *out, ls_error *err);

/* Spearman's, of 96 values at most. */
double ls_rank_correlation(const double *a, const double *b, int64_t n);
/* By how much the first token's value moves when at every multiple of `every` in the prompt the window is lost, the
 * state, the keys. */
enum { LS_LOST_KINDS = 3 };
ls_status ls_cut_effects(ls_inquiry *q, const ls_outcome *c, int64_t every, double *out, ls_error *err);
/* Explains an experiment by what is lost at cuts: `every` tokens. *lost: set of LS_LOSE_..; 0: none fits. */
ls_status ls_explain_cuts(ls_inquiry *q, ls_stack_experiment experiment, int64_t every, int32_t *lost, ls_error *err);

void ls_foreign_find(ls_foreign *f, ls_cause cause, ls_stack_experiment experiment, double confidence,
                     const char *format, ...) __attribute__((format(printf, 5, 6)));
/* Runs what causes rest on again beside its control, with other texts, and makes their confidence of it. */
ls_status ls_foreign_weigh(ls_inquiry *q, ls_error *err);
/* ---- a server, whose trials share one process and whose levers are others ---- */

/* Floors of paths, experiments, causes, the smallest requests: what ls_foreign_run does of a program. */
ls_status ls_probe_inquire(ls_inquiry *q, ls_error *err);
/* What was seen, as causes. */
ls_status ls_probe_decide(ls_inquiry *q, ls_error *err);
/* Company and pairs of requests, as soon as they are off. */
ls_status ls_probe_decide_early(ls_inquiry *q, ls_stack_experiment next, bool *named, ls_error *err);
/* Fills f->expected; nothing without a checkpoint. */
ls_status ls_probe_expect(ls_inquiry *q, ls_error *err);
/* Whether a server that is of float32 has the checkpoint's values with keys in 8 bits: then what one of them makes is
 * within the limit. */
ls_status ls_probe_ask_for_keys(ls_inquiry *q, ls_error *err);
/* Whether both sides of the server are alike and not as the checkpoint has it. */
ls_status ls_probe_decide_checkpoint(ls_inquiry *q, bool *found, ls_error *err);
/* Whether values of prompts are as near as float32 makes them, in forwards of other sizes. */
ls_status ls_probe_prefill_is_fine(ls_inquiry *q, bool *fine, ls_error *err);
/* Whether what is off hangs on which tokens stand in the prompt. */
ls_status ls_probe_decide_rows(ls_inquiry *q, bool *found, ls_error *err);
/* What requests alone say: the server's values of one text, told by what came before it and by its length. */
ls_status ls_probe_decide_solo(ls_inquiry *q, ls_error *err);
/* The same of requests alone that are within the limit: a fault of all of them is a floor, and has a pattern that
 * rounding has not. */
ls_status ls_probe_decide_pattern(ls_inquiry *q, ls_error *err);
/* .. of lengths, which take longer. */
ls_status ls_probe_decide_lengths(ls_inquiry *q, ls_error *err);
/* One text, again and again: whether its values hang on the request in front of it, or on what had its slot before;
 * whether they come and go; whether servers that are not alike take turns. */
ls_status ls_probe_decide_predecessors(ls_inquiry *q, bool *found, ls_error *err);
ls_status ls_probe_decide_repeats(ls_inquiry *q, bool *found, ls_error *err);
/* Early, since what stays of many requests moves less with each; what it means is for the end. */
ls_status ls_probe_measure_drift(ls_inquiry *q, ls_error *err);
void ls_probe_decide_drift(ls_inquiry *q, bool *found);
ls_status ls_probe_decide_turns(ls_inquiry *q, bool *found, ls_error *err);
/* Whether values of prompts of fewer tokens are of float32: many are a little apart, to so many places. A coarse type
 * has equal ones and far ones. */
#define LS_FINE 2e-5
bool ls_probe_is_fine(const ls_outcomes *o, int64_t below);
/* How far a rounding in bf16 that falls on the other side moves a value. In f16, which has three bits more, it is an
 * eighth: a server in float32 may have keys of that type, or sums of one of its kernels. Both are within attention,
 * where no size of logits counts. */
double ls_probe_flip_of_bf16(const ls_foreign *f);
#define LS_FLIP_LEAST 0.05
#define LS_FLIP_OF_F16 (LS_FLIP_LEAST / 8.0)
/* It has a token that is not nearly sure. */
bool ls_probe_could_be_off(const ls_outcome *c);
/* Of what is looked for where all is within the limit: a text in front may not choose a kernel. */
#define LS_LEAST_PATTERN 1e-3
/* What is no rounding of one text's value when it comes again. */
double ls_probe_moved_from(const ls_inquiry *q);
/* More rows than one request's are computed at a time. */
bool ls_probe_has_company(const ls_trial *trial);
/* The server's values, as a prompt, of n tokens behind another prompt than they were drawn behind, or of others. */
ls_status ls_probe_score(ls_inquiry *q, ls_prompt prompt, const int32_t *tokens, int64_t n, float *values,
                         ls_error *err);
/* The largest |d| of one outcome. */
double ls_probe_size(const ls_outcome *c);
/* Whether records of tokens that stood there before are below, and all others above. */
ls_status ls_probe_decide_signs(ls_inquiry *q, bool *found, ls_error *err);
/* Whether records that are off are values of other tokens of their completion: so many places on or back, or
 * anywhere. */
ls_status ls_probe_decide_places(ls_inquiry *q, bool *found, ls_error *err);
/* Whether they are values of other ids at the same place. */
ls_status ls_probe_decide_other_ids(ls_inquiry *q, bool *found, ls_error *err);
/* Whether what is off are answers of fewer tokens than were asked for, whose records are of those that are lost. */
ls_status ls_probe_decide_fewer(ls_inquiry *q, bool *found, ls_error *err);
/* Whether records are a function of the right value alone, other than a multiple. Asks nothing. */
ls_status ls_probe_decide_function(ls_inquiry *q, bool *found, ls_error *err);
/* What records of many draws of one text say: one value for any token, a least one, or a vocabulary that lacks ids. */
ls_status ls_probe_decide_draws(ls_inquiry *q, bool *found, ls_error *err);
/* Whether one side reads other tokens than were sent: some in front, twice, lost, in another order. */
ls_status ls_probe_decide_misread(ls_inquiry *q, bool *found, ls_error *err);
/* Whether records of one token behind one text are two, by the seed alone. */
ls_status ls_probe_decide_two_records(ls_inquiry *q, bool *found, ls_error *err);
/* Where first tokens are right and decoded ones are not: whether they are those of the checkpoint in `directory` with a
 * head in few bits. */
ls_status ls_probe_decide_head_weights(ls_inquiry *q, const char *directory, const ls_model_config *config, bool *found,
                                       ls_error *err);
/* Whether prompts' values are the checkpoint's with keys and values in 8 bits, which is a choice and said as a
 * convention. *asked: of a model that can be asked. */
ls_status ls_probe_has_coarse_keys(ls_inquiry *q, const char *directory, const ls_model_config *config, bool *asked,
                                   bool *has, ls_error *err);
/* Where first tokens are right and all decoded ones are not: whether that dies away, or hangs on draws, and is listed.
 * *asked: a server was that gives both. */
ls_status ls_probe_decide_decoded(ls_inquiry *q, bool *found, bool *asked, ls_error *err);
/* Whether records are of a distribution without the end of sequence. */
ls_status ls_probe_decide_masked(ls_inquiry *q, bool *found, ls_error *err);
/* Once; what was measured stands for every call. */
ls_status ls_probe_measure_slope(ls_inquiry *q, ls_slope *out, ls_error *err);
/* The same or, of records at the temperature of sampling, that at temperature 1. */
ls_status ls_probe_measure_line(ls_inquiry *q, ls_slope *out, ls_error *err);
/* Whether the height of a text's line is another one for other texts. */
bool ls_probe_hangs_on_text(const ls_slope *slope);
/* Whether records are of logits in a narrow type, and the prompt's values are not. */
ls_status ls_probe_decide_head(ls_inquiry *q, bool *found, ls_error *err);
/* Whether records are of one other temperature, whatever was asked for, or of a distribution that was cut. */
ls_status ls_probe_decide_slope(ls_inquiry *q, bool *found, ls_error *err);
/* Whether the server cuts what it draws from by itself, as draws at temperature 1 say. */
ls_status ls_probe_decide_own_cut(ls_inquiry *q, bool *found, ls_error *err);
/* Whether the tokens that draws of a text give are all that records are normalised over, and no others come. */
ls_status ls_probe_decide_kept(ls_inquiry *q, bool *found, ls_error *err);
/* A cut that was named is listed at 0.6 where draws do not bear it out. */
ls_status ls_probe_check_cut(ls_inquiry *q, ls_error *err);
/* Whether what decode leaves is wrong for a prompt that goes on behind it. */
ls_status ls_probe_decide_talk(ls_inquiry *q, bool *found, ls_error *err);
/* Whether requests are off from a length on, or behind borders of that length. */
ls_status ls_probe_decide_threshold(ls_inquiry *q, bool *found, ls_error *err);
/* Whether prompts are off that end right behind borders, and not those that end farther behind. */
ls_status ls_probe_decide_windows(ls_inquiry *q, bool *found, ls_error *err);
/* Whether a length is what makes longer requests off: of texts somewhat longer hardly any is within `cut`. */
ls_status ls_probe_length_decides(ls_inquiry *q, int64_t length, double cut, bool *decides, ls_error *err);
/* Texts of `length` tokens behind requests of twice and of half of it: how many move with that, and how many with what
 * those in front say. */
typedef struct ls_longest {
    int64_t by_length, by_text, n; /* of as many comparisons each */
    double chance;
    bool hangs; /* with the length alone */
} ls_longest;
ls_status ls_probe_measure_longest(ls_inquiry *q, int64_t length, ls_longest *out, ls_error *err);
/* Whether a text's records move when a longer request comes than all before it, and when no other does. */
ls_status ls_probe_decide_outgrown(ls_inquiry *q, bool *found, ls_error *err);
/* Whether texts of one length are off by which tokens follow each other in them. */
ls_status ls_probe_decide_content(ls_inquiry *q, bool *found, ls_error *err);
/* Whether decoded tokens alone are off from a position of the whole on. */
ls_status ls_probe_decide_positions(ls_inquiry *q, bool *found, ls_error *err);
/* Whether a sequence is off once it has grown beyond a length, wherever its prompt ended. */
ls_status ls_probe_decide_grown(ls_inquiry *q, bool *found, ls_error *err);
/* Whether decoded tokens are off from the first border of a page on, wherever that is. */
ls_status ls_probe_decide_borders(ls_inquiry *q, bool *found, ls_error *err);
/* Whether decoded tokens are off at one place of every page, as those of all experiments say. Asks alone. */
ls_status ls_probe_decide_periods(ls_inquiry *q, bool *found, ls_error *err);
/* Whether copies of one text move with the text that had their slots before, which no number of rows makes. */
ls_status ls_probe_decide_handed(ls_inquiry *q, ls_stack_experiment experiment, bool *found, ls_error *err);
/* Whether rows that fill a batch up make some of the others wrong. */
ls_status ls_probe_decide_filled_up(ls_inquiry *q, ls_stack_experiment experiment, bool *found, ls_error *err);
/* Whether copies of one text are off from a number of them on, most of them or all behind a place of the batch. */
ls_status ls_probe_decide_number(ls_inquiry *q, ls_stack_experiment experiment, bool *found, ls_error *err);
/* Whether long requests at once are off by what the others say, where short ones at once and long ones alone are not.
 */
ls_status ls_probe_decide_long_rows(ls_inquiry *q, ls_stack_experiment experiment, bool *found, ls_error *err);
/* Whether a request is off because another one begins beside it, and not for how many there are. */
ls_status ls_probe_decide_joined(ls_inquiry *q, ls_stack_experiment experiment, bool *found, ls_error *err);
/* Whether records are of another request's distribution, where one of two ends before the other. */
ls_status ls_probe_decide_row_of_other(ls_inquiry *q, ls_stack_experiment experiment, bool *found, ls_error *err);
/* Whether records of requests that run while a long prompt is read are those of other rows. */
ls_status ls_probe_decide_readers(ls_inquiry *q, ls_stack_experiment experiment, bool *found, ls_error *err);
/* *chance: that four at a time are off as often where they are of one length. */
ls_status ls_probe_lengths_matter(ls_inquiry *q, double *chance, ls_error *err);
/* The same of two at a time, where those of one length are off as well: that unlike ones are so more often. */
ls_status ls_probe_unlike_matter(ls_inquiry *q, double *chance, ls_error *err);
/* Whether prompts that were never sent before are right only behind a flush of the cache. */
ls_status ls_probe_decide_flushed(ls_inquiry *q, bool *found, ls_error *err);
/* Whether requests are off that bring no salt of the prefix cache, of texts that were never sent before: all other
 * trials bring one where the server knows them. */
ls_status ls_probe_decide_unsalted(ls_inquiry *q, bool *found, ls_error *err);
/* Whether prompts that come back are off when many others came between, and right when they come back at once. */
ls_status ls_probe_decide_evicted(ls_inquiry *q, bool *found, ls_error *err);
/* Whether prompts that go on behind a kept one are off, at whichever lengths of that. */
ls_status ls_probe_decide_continued(ls_inquiry *q, bool *found, ls_error *err);
/* Whether requests are off behind clients that left, more often than behind others. */
ls_status ls_probe_decide_leavers(ls_inquiry *q, bool *found, ls_error *err);
/* The same of several at once, and what of those clients is in it. */
ls_status ls_probe_decide_left(ls_inquiry *q, bool *found, ls_error *err);
/* Records of a narrow type or that end at a least value, which need not lie beyond what rounding makes. */
bool ls_probe_decide_records(ls_inquiry *q);
/* Requests alone: experiments that move nothing. */
enum { LS_PROBE_SOLO = 6 };
extern const ls_stack_experiment ls_probe_solo[LS_PROBE_SOLO];
/* An experiment beside its control, with other texts, until chance is out of question or the trials are used up. */
typedef struct ls_confirmed {
    double chance;                            /* that both are off as often, times the experiments there are */
    int64_t with, n_with, without, n_without; /* sequences that are off, and all: of the experiment, of its control */
    int64_t n_tokens_off, n_tokens;           /* of the experiment */
} ls_confirmed;
ls_status ls_probe_confirm(ls_inquiry *q, ls_stack_experiment experiment, ls_confirmed *out, ls_error *err);
/* The chance of `with` or more among the first, were a + b marks spread over both by lot. */
double ls_probe_chance(int64_t with, int64_t n_with, int64_t without, int64_t n_without);
/* How sure a rule is whose evidence chance makes so often, and of which such a share does not fit. */
double ls_probe_sure(double chance, double unfit);
/* Whether so few tokens are off, and by so little, as ties of a sound stack in a coarse type make. */
bool ls_probe_is_tail(const ls_foreign *f, int64_t n_off, int64_t n_tokens, double most);
/* Whether all that is off is what a key of few bits makes in float32, now and then; it is clean then. */
bool ls_probe_pass_over_keys(ls_foreign *f);
/* Whether a coarse type makes so much when a sum falls on the other side of a rounding. */
bool ls_probe_is_flip(const ls_foreign *f, double most);
/* Of all requests alone together. */
bool ls_probe_solo_is_right(const ls_foreign *f);
/* Whether they are off with other texts as well, or in the middle of all. */
ls_status ls_probe_solo_holds(ls_inquiry *q, bool *holds, ls_error *err);
/* How far two outcomes of one request are apart, each from its tokens' values in a prompt, up to the first token that
 * is another one. */
double ls_probe_apart(const ls_outcome *a, const ls_outcome *b);
/* The same of their records alone: what is there of prompts may come behind the same requests. */
double ls_probe_records_apart(const ls_outcome *a, const ls_outcome *b);
/* Lays out an experiment's control: its requests, with its lever where the baseline has it. */
void ls_foreign_control(const ls_inquiry *q, ls_stack_experiment experiment, const ls_requests *r, ls_trial *out);
void ls_foreign_tell(const ls_inquiry *q, const char *what); /* progress */
ls_status ls_foreign_run_experiment(ls_inquiry *q, ls_stack_experiment experiment, ls_error *err);
/* Decides what needs no experiment from `next` on; *named: nothing else has to be run. */
typedef ls_status ls_early(ls_inquiry *q, ls_stack_experiment next, bool *named, ls_error *err);
/* Whether requests take so long that all of them may need more than half of the time. */
bool ls_probe_lacks_time(const ls_inquiry *q);
/* Of such a server: one experiment of each kind, as far as half of the time goes. */
ls_status ls_foreign_run_kinds(ls_inquiry *q, ls_error *err);
/* What was not tried before. early: NULL: everything is run. */
ls_status ls_foreign_climb(ls_inquiry *q, ls_early *early, ls_error *err);
bool ls_foreign_any_off(const ls_foreign *f);
/* Why the first of the requests alone came to nothing. */
const char *ls_foreign_why_untried(const ls_foreign *f);
/* Whether a request needs another one in front of it: so many of an experiment's that are off, each alone in its
 * process. */
ls_status ls_foreign_off_solo(ls_inquiry *q, ls_stack_experiment experiment, int64_t most, int64_t *n_tried,
                              int64_t *n_off, ls_error *err);
/* So many short requests at once, of equal length. */
ls_status ls_lay_batch(ls_inquiry *q, int64_t value, ls_trial *trial, ls_requests *r, ls_error *err);
/* Why records cannot be log-probabilities of any model, whatever its weights; NULL: nothing says so. */
ls_status ls_foreign_against_records(ls_inquiry *q, const char **why, ls_error *err);
/* Whether what is off is gone behind many drawn tokens, as what came with the prompt is and weights are not. */
ls_status ls_foreign_fades(ls_inquiry *q, bool *fades, ls_error *err);
/* Whether an experiment's requests are right when all of them have the same slot. */
ls_status ls_foreign_right_in_one_slot(ls_inquiry *q, ls_stack_experiment experiment, bool *is_right, ls_error *err);
/* Whether a length from which on requests are off is another one with other pages. */
typedef enum ls_page_moves { LS_PAGE_MOVES_UNKNOWN = 0, LS_PAGE_STAYS, LS_PAGE_MOVES } ls_page_moves;
ls_status ls_foreign_page_moves(ls_inquiry *q, int64_t length, ls_page_moves *out, ls_error *err);
/* How far an experiment's requests that are off move when every second of its requests has another text of the same
 * length; n_off of them are off at all. slots: 0: the experiment's. */
ls_status ls_foreign_others_matter(ls_inquiry *q, ls_stack_experiment experiment, int64_t slots, double *content,
                                   int64_t *n_off, ls_error *err);
/* Whether a request is off for what the one in front of it has in common with it: pairs, one at a time. */
ls_status ls_decide_previous_request(ls_inquiry *q, ls_stack_experiment experiment, bool cached, bool *found,
                                     ls_error *err);
/* Rules that both have. */
/* Whether prompts of a multiple of some number of tokens are right, three quarters with |d| of `right` at most, and
 * others are off by ten times that and by `least`. */
ls_status ls_decide_multiples(ls_inquiry *q, double right, double least, bool *found, ls_error *err);
/* What requests alone say; the best explanation of one experiment, *found when it is named. */
ls_status ls_decide_solo(ls_inquiry *q, ls_error *err);
/* Whether requests alone are off alike wherever they could be; says so in text. */
bool ls_foreign_is_uniform(const ls_foreign *f, char *text, size_t bytes);
/* Whether d of requests alone changes with their first token as rounding does, and not as a wrong weight does. */
ls_status ls_foreign_is_drawn_anew(ls_inquiry *q, bool *is_drawn_anew, ls_error *err);
/* Finds "other weights or another formula" where small differences are no rounding. */
ls_status ls_decide_rounding_or_weights(ls_inquiry *q, ls_error *err);
ls_status ls_explain_experiment(ls_inquiry *q, ls_stack_experiment experiment, double confidence, bool *found,
                                ls_error *err);
/* The same by which token a record belongs to alone. */
ls_status ls_explain_misplaced(ls_inquiry *q, ls_stack_experiment experiment, bool *found, ls_error *err);
/* Finds "not repeatable" where all that requests alone are off by is drawn anew each time. */
ls_status ls_decide_noise(ls_inquiry *q, ls_error *err);
ls_status ls_decide_lengths(ls_inquiry *q, ls_error *err);
/* The size of pages from which on, or up to which, they are off, and the length from which on, among the bounds. */
ls_status ls_bound_page(ls_inquiry *q, ls_error *err);
ls_status ls_bound_length(ls_inquiry *q, ls_error *err);
ls_status ls_decide_batch(ls_inquiry *q, ls_error *err);
ls_status ls_decide_tokens(ls_inquiry *q, ls_error *err);
ls_status ls_decide_failures(ls_inquiry *q, ls_error *err);
/* Runs an experiment that is off a second time and says whether its values move by themselves, which is then found. */
ls_status ls_foreign_repeat(ls_inquiry *q, ls_stack_experiment experiment, bool *moves, ls_error *err);
/* It did not answer in time, and at the pace of other trials it could not have: nothing is known of it. */
bool ls_foreign_is_slow(ls_inquiry *q, ls_stack_experiment experiment);
bool ls_stack_is_off(const ls_inquiry *q, ls_stack_experiment experiment); /* with values that say so */
/* The answers are about other tokens than were sent: nothing else says anything then. */
bool ls_probe_is_odd(const ls_inquiry *q);
/* What was seen, as causes. Runs further trials where two causes look alike. */
ls_status ls_foreign_decide(ls_inquiry *q, ls_error *err);
ls_status ls_foreign_repro(ls_inquiry *q, ls_error *err);

#endif
