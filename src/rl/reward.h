/* Rewards from outside: a command that is kept running, or a web server. Results stand where their items stand; the
 * order in which answers arrive never shows. A reward that failed is marked and counted and stops nothing else.
 *
 * An item goes out as {"id","problem","prompt","completion","answer","data"} and comes back as {"id","reward"}, or as
 * {"id","error"} where the source could not judge. The id is ours, new for every item of every ask, so that a late
 * answer cannot be taken for another item's; "problem" is the caller's name for it and "answer" and "data", the line
 * that a problem of data came from, are left out where there is none. Of a conversation it has "prompt_messages" and
 * "completion_messages", too. A reward is any finite number. Of several answers to one item the first counts. An
 * answer may have a "note", a sentence that is told with the item's name.
 *
 * Environments (rl/environment.h) are asked in the same way: their items have an op, and their answers may have a text
 * and an end in place of a reward. */
#ifndef LS_RL_REWARD_H
#define LS_RL_REWARD_H

#include <stdatomic.h>

#include "record/reward_json.h"
#include "rl/feed.h"
#include "rl/task.h"

typedef struct ls_reward_item {
    const char *problem;
    ls_reply prompt, completion;
    const char *answer;   /* or NULL */
    int64_t answer_bytes; /* 0: it ends in NUL */
    const char *data;     /* further members as one JSON object, or NULL */
    const char *sample;   /* the caller's name for the item in messages; NULL: the problem */
    /* Of a conversation: its messages, and those since, as JSON lists; or NULL. */
    const char *prompt_messages, *completion_messages;
    const int32_t *completion_ids; /* of sources that want groups; or NULL */
    int64_t n_completion_ids;
    int64_t group, group_n; /* of sources that want groups: its number in the ask, and how many items it has; 0: none */
    /* Of environments; op NULL: an item to judge. "check" with data asks a Python function whether it can judge such a
     * line at all. */
    const char *op, *split, *episode; /* split and episode: or NULL */
    int64_t index;                    /* of the problem in its split */
    const char *turns;                /* what was said so far as JSON, or NULL */
} ls_reward_item;

typedef struct ls_reward_result {
    bool ok;
    double reward; /* NaN unless ok, so that it cannot pass for one; ok and NaN: ls_reward_take_none */
    char error[LS_REWARD_ERROR_MAX];
    /* Of environments: reward may be NaN though it is ok, where the answer has none. */
    bool done;
    bool are_messages; /* the text is an object with messages, perhaps tools (record/reward_json.h) */
    char *text;        /* or NULL; released with free() */
    int64_t text_bytes;
} ls_reward_result;

/* Of one ask, or of all since the source was opened. */
typedef struct ls_reward_counts {
    int64_t asked, ok, failed;
    int64_t retried;                       /* items or requests that were sent again */
    int64_t restarts;                      /* of the command */
    int64_t unreadable;                    /* lines or bodies that are no answer */
    int64_t strays;                        /* answers to no item that waits: second ones, late ones, made-up ids */
    char message[2 * LS_REWARD_ERROR_MAX]; /* the first thing that went wrong in the (last) ask, or "" */
} ls_reward_counts;

typedef struct ls_reward ls_reward;

/* A command for /bin/sh that reads items and writes answers, both as JSON lines, and ends when its input ends. What it
 * writes to standard error is read and forgotten, but for the last words, which errors quote.
 *
 * Items that were with a command that ended or fell silent are asked once more, one at a time, so that only the guilty
 * fail. It is given up for the rest of an ask when that happens 8 times without an answer between, 3 times when there
 * was no answer at all. */
typedef struct ls_reward_command_options {
    const char *command;
    int64_t window;   /* items that it may hold at a time */
    double silence_s; /* how long it may say nothing while items wait */
    /* What every command that is started reads first, at most what a pipe holds, or NULL; borrowed for as long as the
     * source is open. */
    const char *preamble;
    int64_t preamble_bytes;
    bool is_together; /* it takes care of its guilty itself: items are never asked one at a time */
} ls_reward_command_options;

void ls_reward_command_init(ls_reward_command_options *out); /* window 64, silence_s 60 */
ls_status ls_reward_command_open(ls_reward **out, const ls_reward_command_options *options, ls_error *err);

/* A server: POST of one item, answered by one {"reward"}, or, with batch > 1, of {"items":[..]}, answered by
 * {"items":[..]} in any order. Requests that could not be made or ran out of time, and answers 408, 429 and 5xx, are
 * sent again after backoff_s, twice that, and so on up to 10 seconds; any other status that is not 2xx and any text
 * that cannot be read fails the items of its request. */
typedef struct ls_reward_http_options {
    const char *url;
    const char *name;           /* of the option that gave it, for errors; NULL: reward_url */
    const char *const *headers; /* [n_headers] as "Name: value" */
    int64_t n_headers;
    int64_t batch, concurrency, retries;
    double timeout_s, backoff_s;
} ls_reward_http_options;

void ls_reward_http_init(
    ls_reward_http_options *out); /* batch 1, concurrency 8, retries 3, timeout_s 30, backoff_s 0.1 */
ls_status ls_reward_http_open(ls_reward **out, const ls_reward_http_options *options, ls_error *err);

/* Items that come while others are judged. */
typedef struct ls_reward_late {
    ls_feed *feed; /* their indices; it is over when all are there */
    /* Item i is there: makes it whole. Before, its names are. Another thread that asks may call it. */
    ls_status (*complete)(void *context, int64_t i, ls_error *err);
    void *context;
} ls_reward_late;

/* An ask. Several threads may ask a source at a time, at most LS_REWARD_ASKS_MAX: their items are with it together,
 * within its window or concurrency, those of the ask that began first before others. */
#define LS_REWARD_ASKS_MAX 32
typedef struct ls_reward_questions {
    const ls_reward_item *items; /* [n] */
    ls_reward_result *results;   /* [n], every one is filled */
    int64_t n;
    int64_t first_id;           /* of ls_reward_number(reward, n): of asks at a time their order is the caller's */
    const ls_reward_late *late; /* NULL: all items are there. Else of a source that takes them; the ask ends when the
                                   feed does */
    const atomic_bool *is_left; /* looked at some times a second: once it is set nobody waits for the results, and the
                                   ask fails. NULL: it never is */
    ls_reward_counts counts;    /* is filled */
} ls_reward_questions;

/* The next n ids of items: returns the first. */
int64_t ls_reward_number(ls_reward *reward, int64_t n);
/* Returns other than LS_OK only when memory is out, where late items do not come, where nobody waits any more, or where
 * a signal stops the run and the source is silent (ls_interrupt_gave_up). */
ls_status ls_reward_ask_about(ls_reward *reward, ls_reward_questions *questions, ls_error *err);
/* The same of items that are there, with the next ids. */
ls_status ls_reward_ask(ls_reward *reward, ls_reward_result *results, const ls_reward_item *items, int64_t n,
                        ls_error *err);
bool ls_reward_takes_late(const ls_reward *reward);
/* Of all asks that are over; while nobody asks. */
const ls_reward_counts *ls_reward_counts_of(const ls_reward *reward);
/* From here on a reward of null is none and no failure: the result is ok, and NaN. For one judge of several. */
void ls_reward_take_none(ls_reward *reward);
/* Whether items are to say which belong to one problem (group, group_n); whether an environment is asked for beginnings
 * of problems of data, too. */
bool ls_reward_wants_groups(const ls_reward *reward);
bool ls_reward_wants_resets(const ls_reward *reward);
void ls_reward_close(ls_reward *reward); /* NULL is accepted */

#endif
