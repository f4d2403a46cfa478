/* Groups as JSON, in the dialect that they were asked in: whole, or as server-sent events. */
#ifndef LS_SERVE_REPLY_H
#define LS_SERVE_REPLY_H

#include <stdio.h>

#include "model/model.h"
#include "serve/serve_work.h"

/* What all replies of a server tell. */
typedef struct ls_reply_about {
    const char *model;
    const char *numerics; /* "exact/2/f32" */
    ls_logprob_of logprob_of;
    const ls_tokenizer *tokenizer; /* NULL: texts are empty */
} ls_reply_about;

/* How much of one sample a stream has sent. */
typedef struct ls_sent {
    int64_t tokens, bytes;
    int64_t from_token, from_bytes; /* text is decoded from here on: what lies before cannot change any more */
    int64_t offset;                 /* text_offset of the next token */
    uint64_t hash;                  /* of the text that was sent, to be held against the whole at the end */
    bool in_call;                   /* a tool call has begun: the rest is told at the end */
    bool ended;
} ls_sent;

/* A finished group as one JSON object. */
ls_status ls_reply_whole(FILE *out, const ls_reply_about *about, ls_group *group, ls_error *err);
/* Events for what was published since sent, [n_samples], was last brought up to date; `done` when the last has been
 * written. Takes the lock. */
ls_status ls_reply_more(FILE *out, const ls_reply_about *about, ls_group *group, ls_sent *sent, bool *done,
                        ls_error *err);
/* Why a finished group has no answer: what it held, or the first error of its samples. LS_OK where it has. */
ls_status ls_reply_check(const ls_group *group, ls_error *err);
int ls_reply_status(const ls_error *err); /* the HTTP status of an error of a request */
/* {"error": {"message", "type", "code"}}: what every dialect's clients show. */
void ls_reply_error(FILE *out, int http_status, const char *message);

#endif
