/* What a directory's tensors are, without opening the model. */
#ifndef LS_MODEL_SUMMARY_H
#define LS_MODEL_SUMMARY_H

#include "base/status.h"

typedef struct ls_stored_summary {
    int64_t n_parameters;
    uint64_t digest; /* as ls_parameters_digest of the opened model */
} ls_stored_summary;

/* Reads a directory's tensors as ls_model_open does, without a device and with the memory of one piece. */
ls_status ls_stored_summarize(ls_stored_summary *out, const char *directory, ls_error *err);

#endif
