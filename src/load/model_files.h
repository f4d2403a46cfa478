/* The files of a model directory beside its weights. */
#ifndef LS_LOAD_MODEL_FILES_H
#define LS_LOAD_MODEL_FILES_H

#include "base/status.h"

enum { LS_MODEL_FILES = 10, LS_MODEL_FILE_BYTES_MAX = 1 << 28 };

/* What readers of models look for; none but the first, config.json, need be there. */
extern const char *const ls_model_files[LS_MODEL_FILES];

/* Those from number `first` on that are in one directory, of an adapter its base's, into another that is there;
 * synced. */
ls_status ls_model_files_copy(const char *to, const char *from, int first, ls_error *err);

#endif
