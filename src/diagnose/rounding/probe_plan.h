/* What a probe is going to send, told before it does. */
#ifndef LS_DIAGNOSE_ROUNDING_PROBE_PLAN_H
#define LS_DIAGNOSE_ROUNDING_PROBE_PLAN_H

#include <stdio.h>

#include "diagnose/bits/bits_run.h"
#include "diagnose/trial/probe_server.h"

/* The experiments with their requests and tokens, those that score included; what cannot be tried, and why. */
ls_status ls_probe_plan(FILE *file, const ls_sweep_opts *opts, const ls_model_config *config, ls_door *door,
                        const ls_probe_server *server, ls_error *err);
/* Fills opts->temperature: 3 where a record does not follow it, so that draws are of all kinds of tokens; else 1, at
 * which raw and processed log-probabilities are the same. */
ls_status ls_probe_temperature(ls_sweep_opts *opts, const ls_model_config *config, ls_door *door, ls_error *err);

#endif
