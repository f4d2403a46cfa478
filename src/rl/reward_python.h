/* Rewards and environments that are Python functions or classes of the user's: MODULE:NAME or FILE.py:NAME. A python3
 * runs the text of python/lockstep/_worker.py, which this library carries. It is a command (rl/reward.h) with the same
 * items and answers on pipes of its own, and starts the workers that import the module and call it.
 *
 * A function with a parameter `completions` gets all samples of a problem in one call, one with `completion` a sample.
 * A call that takes longer than timeout_s fails, and its worker is killed. A worker that dies is replaced and its call
 * made once more. Where a call with several samples raises, is late or dies twice, each sample is asked for by itself.
 * Neither the number of workers nor who is first shows in what a call gets. */
#ifndef LS_RL_REWARD_PYTHON_H
#define LS_RL_REWARD_PYTHON_H

#include "rl/reward.h"

typedef struct ls_reward_python_options {
    const char *spec;   /* MODULE:NAME or FILE.py:NAME */
    const char *python; /* the interpreter; NULL or "": python3 of PATH */
    const char *option; /* that gave the spec, for errors */
    bool is_environment;
    bool takes_none; /* of a function that is one of several: None is no failure (ls_reward_take_none) */
    int64_t workers;
    double timeout_s; /* of a call */
} ls_reward_python_options;

/* Imports the module in one worker: a module, a name or parameters that are wrong are an error here. */
ls_status ls_reward_python_open(ls_reward **out, const ls_reward_python_options *options, ls_error *err);

/* The text of the program. */
extern const unsigned char ls_python_worker[];
extern const int64_t ls_python_worker_bytes;

#endif
