/* adapter_config.json of PEFT, as far as an adapter is a low-rank product for whole matrices. */
#ifndef LS_LOAD_ADAPTER_CONFIG_H
#define LS_LOAD_ADAPTER_CONFIG_H

#include "base/status.h"

typedef struct ls_adapter_config {
    int64_t rank;
    double alpha;
    float scale; /* alpha / rank, or by use_rslora alpha / sqrt(rank), rounded once */
    char *base;  /* base_model_name_or_path, or NULL; released with free() */
} ls_adapter_config;

/* Of DIRECTORY/adapter_config.json. A field that would make another law of it is refused by name. */
ls_status ls_adapter_config_open(ls_adapter_config *out, const char *directory, ls_error *err);
/* The same of text; name stands for the file. */
ls_status ls_adapter_config_parse(ls_adapter_config *out, const char *json, int64_t bytes, const char *name,
                                  ls_error *err);

#endif
