/* Stop texts: whether the text of a completion contains one of them, asked after every token.
 *
 * The text is the one ls_tokenizer_decode gives for the completion without special tokens, so a text may begin and end
 * inside tokens, and a character may lie in several. Every token is looked at once: what decides is the state of an
 * automaton over the bytes of the decoded text, kept beside what the decoder may still take back (a character that is
 * not complete and would read as U+FFFD, an end that would be stripped).
 *
 * Decoders are followed token by token in the forms that occur: any of Replace, Strip, Metaspace and BPEDecoder on
 * single tokens, then ByteLevel or ByteFallback, then Fuse, then one Strip of the whole. Others are refused. */
#ifndef LS_TEXT_STOP_H
#define LS_TEXT_STOP_H

#include "text/tokenizer.h"

typedef struct ls_stop ls_stop;

/* Every token's text as the decoder leaves it, which all stop texts of a tokenizer can share. */
typedef struct ls_stop_tokens ls_stop_tokens;
/* The tokenizer must outlive the object; any number of threads may share both. */
ls_status ls_stop_tokens_create(ls_stop_tokens **out, const ls_tokenizer *tokenizer, ls_error *err);
void ls_stop_tokens_free(ls_stop_tokens *tokens); /* accepts NULL */

/* The decoded text up to some token, as far as it matters for what follows. */
typedef struct ls_stop_text {
    int32_t node; /* of the automaton */
    bool found;
    bool begun;                 /* past what is stripped from the start */
    int64_t n_stripped, n_held; /* characters stripped from the start; held because they may be the stripped end */
} ls_stop_text;

typedef struct ls_stop_flow {
    ls_stop_text text;
    uint8_t pending[4]; /* of a character that is not complete */
    int32_t n_pending;
    int64_t n_run;               /* tokens of single bytes since the last other one; text is as before them */
    bool run_valid;              /* so far, as UTF-8 */
    ls_stop_text valid, invalid; /* text and the run as characters; text and one U+FFFD for each byte */
} ls_stop_flow;

/* Where one completion stands: the caller's, by ls_stop_begin for each request. */
typedef struct ls_stop_state {
    const ls_stop *stop;
    int64_t n_seen, n_texts; /* tokens; those of them that have a text */
    int64_t held;            /* token whose text depends on being the last, or -1; flow is before it */
    bool held_first, reached;
    ls_stop_flow flow;
} ls_stop_state;

enum { LS_STOP_NODE_BYTES = 20 };
/* texts are not empty and UTF-8. The tokenizer must outlive the object; any number of threads may share it. */
ls_status ls_stop_create(ls_stop **out, const ls_tokenizer *tokenizer, const char *const *texts, int64_t n_texts,
                         ls_error *err);
/* The same with tokens that are there already and must outlive the object, which then takes LS_STOP_NODE_BYTES for each
 * byte of the texts. */
ls_status ls_stop_create_with(ls_stop **out, const ls_stop_tokens *tokens, const char *const *texts, int64_t n_texts,
                              ls_error *err);
void ls_stop_free(ls_stop *stop);

void ls_stop_begin(ls_stop_state *state, const ls_stop *stop);
/* context is an ls_stop_state, completion what it saw at the last call and more; one that is not longer is taken for a
 * new one. True from the first token on with which the text contains one of the texts. Does not allocate. Ids that the
 * tokenizer does not know have no text. */
bool ls_stop_reached(void *context, const int32_t *completion, int64_t n);

#endif
