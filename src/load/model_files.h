/* The files of a model directory beside its weights. */
#ifndef LS_LOAD_MODEL_FILES_H
#define LS_LOAD_MODEL_FILES_H

enum { LS_MODEL_FILES = 10, LS_MODEL_FILE_BYTES_MAX = 1 << 28 };

/* What readers of models look for; none but the first, config.json, need be there. */
extern const char *const ls_model_files[LS_MODEL_FILES];

#endif
