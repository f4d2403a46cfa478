/* --device and what a command says of it. */
#ifndef LS_CLI_DEVICE_OPTION_H
#define LS_CLI_DEVICE_OPTION_H

#include "op/choice.h"
#include "rollout/levers.h"

#define LS_DEVICE_HELP \
    "Where to compute: auto, cpu, cuda or cuda:N (auto: a GPU where this build can use one, else cpu)"

/* Whether text is a name; *out borrows it. The error names the option. */
ls_status ls_cli_device_name(const char **out, const char *option, const char *text, ls_error *err);
/* With the threads and the instruction set of the levers. */
ls_status ls_cli_device_open(ls_device **out, ls_device_choice *choice, const char *name, const ls_levers *levers,
                             ls_error *err);
/* "WHAT: ..; profile .." on standard error. A command says it first of all, once everything is open, so that one that
 * is refused says nothing but why. */
void ls_cli_device_tell(const char *what, const ls_device_choice *choice, ls_profile profile);

#endif
