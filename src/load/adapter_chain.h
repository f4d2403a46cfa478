/* A directory that is opened as a model and holds an adapter: its base, which may be an adapter itself, and so on to
 * the model that all of them change. */
#ifndef LS_LOAD_ADAPTER_CHAIN_H
#define LS_LOAD_ADAPTER_CHAIN_H

#include "load/adapter_config.h"

enum { LS_ADAPTERS_MAX = 8 };

typedef struct ls_adapter_chain {
    char *home;                       /* the directory of the model: config.json, weights, tokenizer; owned */
    int64_t n;                        /* 0: it is a model as it is */
    char *directory[LS_ADAPTERS_MAX]; /* of adapters, the one that was asked for first; owned */
    ls_adapter_config config[LS_ADAPTERS_MAX];
} ls_adapter_chain;

/* Zeroed by the caller, released by ls_adapter_chain_deinit, also after a failure. */
ls_status ls_adapter_chain_open(ls_adapter_chain *out, const char *directory, ls_error *err);
void ls_adapter_chain_deinit(ls_adapter_chain *chain);
/* Its home alone, released with free(). */
ls_status ls_adapter_home(char **out, const char *directory, ls_error *err);
/* From here on the base of this adapter's directory is `base`, whatever adapter_config.json names, and of others whose
 * base is no directory here. Both are borrowed; set before anything is opened. */
void ls_adapter_base_is(const char *directory, const char *base);

#endif
