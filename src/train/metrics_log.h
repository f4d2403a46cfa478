/* The measures of a run: one JSON object a line and step, appended as they come. A run that goes on from a checkpoint
 * first drops the lines of steps behind it, which it will write again. */
#ifndef LS_TRAIN_METRICS_LOG_H
#define LS_TRAIN_METRICS_LOG_H

#include "base/json_out.h"

typedef struct ls_metrics_log ls_metrics_log;

/* Keeps the lines of steps up to `step`; whatever else the file holds goes. */
ls_status ls_metrics_log_open(ls_metrics_log **out, const char *path, int64_t step, ls_error *err);
void ls_metrics_log_close(ls_metrics_log *log); /* accepts NULL */
/* Begins the line of a step: an open object that has "step". */
ls_json_out *ls_metrics_log_begin(ls_metrics_log *log, int64_t step);
/* Ends it; it is handed to the system when this returns. */
ls_status ls_metrics_log_end(ls_metrics_log *log, ls_error *err);

#endif
