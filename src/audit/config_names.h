/* The usual names of sizes, with the ranges that a model, a batch, a length and a pool give them. */
#ifndef LS_AUDIT_CONFIG_NAMES_H
#define LS_AUDIT_CONFIG_NAMES_H

#include "audit/ranges.h"

typedef struct ls_config_sizes {
    int64_t batch, length, pool; /* 0: the default */
} ls_config_sizes;

/* path is a Hugging Face config.json; docs/guide/audit.md lists the names. */
ls_status ls_config_names(ls_ranges *ranges, const char *path, const ls_config_sizes *sizes, ls_error *err);

#endif
