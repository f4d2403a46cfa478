/* Stopping a run from outside: a signal asks, and the run ends behind the step that it is at, saved. */
#ifndef LS_TRAIN_STOPPING_H
#define LS_TRAIN_STOPPING_H

#include <stdio.h>

#include "train/comm.h"

/* Whether this process, or any that shares the step, was asked to stop (base/interrupt.h); the same on all of them.
 * comm is NULL for one process. */
ls_status ls_stop_asked(bool *out, ls_comm *comm, ls_error *err);
/* What people are told; file NULL: nobody. */
void ls_stop_tell(FILE *file, int64_t step, const char *run);
/* That a run that goes on has nothing left to do. */
void ls_stop_tell_done(FILE *file, int64_t step, int64_t steps);

#endif
