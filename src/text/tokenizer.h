/* Text to token ids and back, as the tokenizer.json of a model says.
 *
 * Follows the Hugging Face `tokenizers` library for byte-pair-encoding, unigram and word-level models: normalizer,
 * added tokens, pre-tokenizer, model, post-processor, decoder. A component or setting that is not built is refused when
 * the file is read, with its JSON path, never passed over. `truncation` and `padding` are no part of that: as with
 * transformers they cut and fill up nothing where nobody asks for it.
 *
 * Differences from that library, on purpose:
 * - ill-formed UTF-8 input is accepted: each maximal subpart of an ill-formed sequence becomes U+FFFD before anything
 *   else (what Python's errors="replace" does);
 * - an id without a token is an error in decode, not silently left out;
 * - a file whose added tokens carry other ids than the library would give them is refused;
 * - rewriting rules that grow a text more than 64-fold, and patterns that backtrack without end, are errors;
 * - a vocabulary entry with a NUL character is refused. */
#ifndef LS_TEXT_TOKENIZER_H
#define LS_TEXT_TOKENIZER_H

#include "base/status.h"

typedef struct ls_tokenizer ls_tokenizer;

/* Reads DIRECTORY/tokenizer.json. */
ls_status ls_tokenizer_open(ls_tokenizer **out, const char *directory, ls_error *err);
/* Reads the file's text from memory; `name` stands for the file in errors. */
ls_status ls_tokenizer_parse(ls_tokenizer **out, const char *json, int64_t bytes, const char *name, ls_error *err);
void ls_tokenizer_free(ls_tokenizer *tokenizer);

/* The largest id plus one. */
int64_t ls_tokenizer_size(const ls_tokenizer *tokenizer);

/* A token as the vocabulary writes it, with its length; NULL where the id has none. The tokenizer's. */
const char *ls_tokenizer_token(const ls_tokenizer *tokenizer, int32_t id, int64_t *bytes);

/* Text is any bytes. add_special asks for the tokens that the post-processor puts around the text. *ids is released
 * with free() (a valid pointer even when *n_ids is 0). Any number of threads may share the handle. */
ls_status ls_tokenizer_encode(const ls_tokenizer *tokenizer, const char *text, int64_t bytes, bool add_special,
                              int32_t **ids, int64_t *n_ids, ls_error *err);

/* Bytes that a text of so many tokens has at most, whatever it is, so that longer ones need not be encoded to be found
 * too long. INT64_MAX where the tokenizer may leave text out or take any length of it as one token. */
int64_t ls_tokenizer_bytes_max(const ls_tokenizer *tokenizer, int64_t n_ids);

/* *text is NUL-terminated valid UTF-8 (the NUL is not counted in *bytes; others may occur), released with free(). */
ls_status ls_tokenizer_decode(const ls_tokenizer *tokenizer, const int32_t *ids, int64_t n_ids, bool skip_special,
                              char **text, int64_t *bytes, ls_error *err);

/* The same, but ids without a token have no text: models pad their vocabulary beyond the tokenizer's, and may draw from
 * there. */
ls_status ls_tokenizer_decode_known(const ls_tokenizer *tokenizer, const int32_t *ids, int64_t n_ids, bool skip_special,
                                    char **text, int64_t *bytes, ls_error *err);

#endif
