/* What a resident program says, a line of JSON each (docs/reference/diagnosis.md): a greeting, then an answer to each
 * request. */
#ifndef LS_DIAGNOSE_TRIAL_RESIDENT_H
#define LS_DIAGNOSE_TRIAL_RESIDENT_H

#include "base/status.h"

/* Versions of the protocol. In the second the lever memory-fraction may be handed over as 'auto'. */
enum { LS_PROTOCOL_FIRST = 1, LS_PROTOCOL_LAST = 2 };

/* {"lockstep": VERSION}. `program` begins the error sentence. */
ls_status ls_resident_greeting(int *version, const char *line, const char *program, ls_error *err);

/* {"ok": true} is LS_OK; {"ok": false, "error": ".."} LS_ERR_UNSUPPORTED with its words; another line LS_ERR_FORMAT. */
ls_status ls_resident_answer(const char *line, const char *program, ls_error *err);

#endif
