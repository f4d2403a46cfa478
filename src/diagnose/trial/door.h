/* The one door through which trials go: to the suspect, and to the trainer behind it. It alone knows how long a
 * diagnosis and one answer may take. After the end nothing is begun: a trial comes back as untried, and one that was
 * on its way ends with what was begun. */
#ifndef LS_DIAGNOSE_TRIAL_DOOR_H
#define LS_DIAGNOSE_TRIAL_DOOR_H

#include "diagnose/trial/trial.h"

/* Of zeros but for the first two it has no limits. */
typedef struct ls_door {
    const ls_subject *subject;
    ls_sweep_trainer *trainer;
    double opened, seconds; /* seconds 0: no limit */
    ls_limits limits;       /* those that a trial is handed; without an end until it is limited */
    bool hurried;           /* what could be left out is left out */
} ls_door;

/* seconds: that a diagnosis may take from now on, once it is limited; timeout: those of one answer. 0: no limit. */
void ls_door_open(ls_door *door, double seconds, double timeout);
/* From here on the seconds count, from when it was opened. */
void ls_door_limit(ls_door *door);
/* The end is over. */
bool ls_door_is_closed(const ls_door *door);
/* The moment when this share of what is left is used up; infinite without a limit, past when it is hurried. */
double ls_door_share(const ls_door *door, double share);
/* Leaves out what can be: a suspect that hangs again and again is not asked for more than what tells causes apart. */
void ls_door_hurry(ls_door *door);
/* Runs and scores; outcomes are the caller's to release, in every case. What the suspect cannot do or fails to do is
 * in out->failures; an error is the trainer's. */
ls_status ls_door_try(ls_door *door, const ls_trial *trial, const ls_prompt *prompts, int64_t n_prompts,
                      ls_outcomes *out, ls_error *err);

#endif
