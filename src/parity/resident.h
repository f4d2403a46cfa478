/* What a resident program says, a line of JSON each (docs/diagnosis.md): a greeting, then an answer to each request. */
#ifndef LS_PARITY_RESIDENT_H
#define LS_PARITY_RESIDENT_H

#include "base/status.h"

/* {"lockstep": 1}. `program` begins the error sentence. */
ls_status ls_resident_greeting(const char *line, const char *program, ls_error *err);

/* {"ok": true} is LS_OK; {"ok": false, "error": ".."} LS_ERR_UNSUPPORTED with its words; another line LS_ERR_FORMAT. */
ls_status ls_resident_answer(const char *line, const char *program, ls_error *err);

#endif
