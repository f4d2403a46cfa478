/* The two halves of the reader of tokenizer.json: tokenizer_json.c (whole file, model, added tokens) calls
 * tokenizer_steps.c (normalizer, pre-tokenizer, post-processor, decoder). Each step reader takes the node of its
 * component, which is not null, and adds to the tokenizer; a Sequence adds its parts in order. */
#ifndef LS_TEXT_TOKENIZER_READER_H
#define LS_TEXT_TOKENIZER_READER_H

#include "json/json_node.h"
#include "text/tokenizer_parts.h"

/* Of unigram_json.c: the model's node, which says that it is of that type. */
ls_status ls_read_unigram(ls_tokenizer *tokenizer, const ls_node *model, ls_error *err);
/* Of tokenizer_token.c: one token of any model; two of one id are an error that names node. The text is borrowed. */
ls_status ls_read_token(ls_tokenizer *tokenizer, const ls_node *node, int64_t id, const char *text, int64_t bytes,
                        ls_error *err);

ls_status ls_read_normalizer(ls_tokenizer *tokenizer, const ls_node *node, ls_error *err);
ls_status ls_read_pre_tokenizer(ls_tokenizer *tokenizer, const ls_node *node, ls_error *err);
ls_status ls_read_post_processor(ls_tokenizer *tokenizer, const ls_node *node, ls_error *err);
ls_status ls_read_decoder(ls_tokenizer *tokenizer, const ls_node *node, ls_error *err);

#endif
