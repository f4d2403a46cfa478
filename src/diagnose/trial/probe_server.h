/* A server as both sides of a diagnosis: what it records while it decodes, against what it says of the same tokens when
 * they are a prompt. A dialect writes the requests and reads the answers; everything else is that of any suspect. */
#ifndef LS_DIAGNOSE_TRIAL_PROBE_SERVER_H
#define LS_DIAGNOSE_TRIAL_PROBE_SERVER_H

#include "diagnose/trial/trial.h"
#include "load/model_config.h"
#include "net/http_calls.h"

typedef enum ls_dialect { LS_DIALECT_VLLM = 0, LS_DIALECT_SGLANG, LS_DIALECT_LLAMA_CPP, LS_DIALECTS } ls_dialect;
const char *ls_dialect_name(ls_dialect dialect); /* "vllm", "sglang", "llama.cpp" */

enum { LS_SERVER_TEXTS = 4, LS_SERVER_IDS = 512, LS_FORCED = 4096 };

typedef struct ls_probe_server {
    ls_http *http;
    ls_limits limits; /* of what is asked beside trials */
    const char *url;
    ls_dialect dialect;
    char model[256];      /* the name that requests give; "" : none */
    char who[64];         /* what the server calls itself */
    int64_t length_max;   /* of a sequence; 0: not told */
    int64_t n_slots;      /* llama.cpp's; 0: not told */
    int64_t max_requests; /* that may be sent in all, and tokens, of prompts and completions; 0: no limit */
    int64_t max_tokens;
    int64_t n_requests, n_tokens;
    uint64_t n_salts;
    bool can_reset; /* the prefix cache can be emptied */
    ls_server_oddities odd;
    bool forced[LS_FORCED];          /* llama.cpp: ids that a request was biased to, by their last bits */
    int32_t text_ids[LS_SERVER_IDS]; /* of the texts that the server was given, one behind the other */
    int64_t text_n[LS_SERVER_TEXTS]; /* 0: it takes no texts */
    int32_t pool[LS_SERVER_IDS];     /* ids that prompts may be made of; none: any of the vocabulary */
    int64_t n_pool;
} ls_probe_server;

/* Asks who it is and what it has. dialect: LS_DIALECTS has the server tell. config: vocab 0 where no model's directory
 * told it; filled from what the server says, or left 0 with a pool of ids. */
ls_status ls_probe_server_ask(ls_probe_server *server, ls_dialect dialect, ls_model_config *config, ls_error *err);
/* Generates. Prompts that were made of the server's own texts may be sent as texts. */
ls_subject ls_subject_server(ls_probe_server *server);
/* Its values of whole sequences. */
ls_scorer ls_scorer_server(ls_probe_server *server);
/* The text that is sent as number text_i. */
const char *ls_probe_text(int64_t text_i);
#endif
