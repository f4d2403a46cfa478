/* What a server is asked, and its JSON in each dialect. */
#ifndef LS_DIAGNOSE_TRIAL_PROBE_ASK_H
#define LS_DIAGNOSE_TRIAL_PROBE_ASK_H

#include "diagnose/trial/probe_server.h"

/* One request. */
typedef struct ls_probe_ask {
    const int32_t *ids;
    int64_t n;
    const char *text;         /* in place of ids; or NULL */
    const ls_sampling *draws; /* NULL: one token, whichever */
    int64_t samples, n_new;
    bool scores;     /* the prompt's values are wanted */
    int32_t forced;  /* llama.cpp: the token that must come; -1: none */
    uint64_t salt;   /* of the prefix cache; 0: none */
    bool cache;      /* llama.cpp: what a slot holds may be used */
    int64_t slot_id; /* llama.cpp; -1: any */
    bool marked;     /* with penalties and a bias, which are nobody else's */
    int32_t n_stops; /* vLLM, SGLang: every second id below it ends the completion; 0: none does */
} ls_probe_ask;

/* Its JSON, released with free(). Allocates. */
ls_status ls_probe_ask_write(char **out, int64_t *bytes, const ls_probe_server *server, const ls_probe_ask *ask,
                             ls_error *err);
#endif
