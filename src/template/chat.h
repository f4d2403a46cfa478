/* Conversations as text: the chat template of a model's directory, with what it needs from there, over messages.
 *
 * The template is chat_template.jinja with those of additional_chat_templates, else chat_template of
 * tokenizer_config.json: a text, or a list of templates with names. Of templates with names "tool_use" counts where
 * there are tools and it is there, else "default", which chat_template.jinja is. Templates see messages, of which
 * members that are null are left out, tools, add_generation_prompt, the special tokens that tokenizer_config.json (or,
 * for those it lacks, special_tokens_map.json) names, by a member "..._token" or in extra_special_tokens, and the
 * members of chat_template_kwargs, as with apply_chat_template of Hugging Face transformers 5.24. What comes out holds
 * its special tokens as text: it is encoded without the tokenizer's own, so that none is doubled.
 *
 * A conversation is an object with `messages`, a list that is not empty of objects that have a role, and perhaps
 * `tools`, a list, `documents`, a list, and `chat_template_kwargs`, an object. Content that is a list of parts becomes
 * what the template reads (chat_parts.h); parts that are no text are refused. strftime_now is the time of
 * SOURCE_DATE_EPOCH where the environment has it, else of the clock when the chat was opened. */
#ifndef LS_TEMPLATE_CHAT_H
#define LS_TEMPLATE_CHAT_H

#include "template/template.h"
#include "text/tokenizer.h"
#include "text/tool_calls.h"

typedef struct ls_chat ls_chat;

/* A directory without a template is an error. file: a template that counts instead, or NULL. */
ls_status ls_chat_open(ls_chat **out, const char *directory, const char *file, ls_error *err);
void ls_chat_free(ls_chat *chat); /* accepts NULL */

/* The format in which the template writes tool calls, as far as its text tells. */
ls_call_format ls_chat_calls(const ls_chat *chat);

/* What errors call the template of conversations with or without tools. */
const char *ls_chat_name(const ls_chat *chat, bool has_tools);

/* The text of a conversation; arguments of tool calls that are JSON text become the objects that templates write.
 * add_prompt: with what begins the answer. Released with ls_template_output_deinit. */
ls_status ls_chat_render(const ls_chat *chat, const ls_node *conversation, bool add_prompt, ls_template_output *out,
                         ls_error *err);
/* The same from JSON text of a conversation; `name` stands for it in errors. */
ls_status ls_chat_render_text(const ls_chat *chat, const char *json, int64_t bytes, const char *name, bool add_prompt,
                              ls_template_output *out, ls_error *err);
/* The whole conversation, with spans of what the assistant says: those of {% generation %} where the template has it,
 * else for each of the assistant's messages what its rendering adds to that of the messages before with the generation
 * prompt. A template for which these are not beginnings of the whole is refused. At least one span is demanded.
 * Marks that say what is learnt (message_loss_mask, loss_mask; weight, train, training, trainable of a message) are
 * refused. */
ls_status ls_chat_render_learnt(const ls_chat *chat, const char *json, int64_t bytes, const char *name,
                                ls_template_output *out, ls_error *err);
/* Ids of a rendering, and for each whether it lies in a span. A token that lies across a span's end is an error. Both
 * lists are released with free(). */
ls_status ls_chat_encode(const ls_tokenizer *tokenizer, const ls_template_output *rendering, int32_t **ids,
                         uint8_t **learnt, int64_t *n, ls_error *err);

#endif
