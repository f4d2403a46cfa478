/* Messages as clients send them, made into messages as templates read them. */
#ifndef LS_TEMPLATE_CHAT_PARTS_H
#define LS_TEMPLATE_CHAT_PARTS_H

#include "json/json_node.h"

/* Content that is a list must hold texts: a text, or an object whose `type` is text, input_text or output_text, with
 * `text`. It becomes one text, its parts joined by line breaks, or where the template reads parts a list of
 * {"type": "text", "text": ..}. Members of a message that are null are left out. A part of another kind is refused
 * by its place and its type. Arguments of a tool call that are JSON text, as OpenAI's clients send them and data of
 * tool calls has them, become the object that templates write: as text they would be escaped once more. reads_parts:
 * the template goes over content. *out is a document with the member `messages`, or NULL where nothing had to
 * change. */
ls_status ls_chat_messages_read(ls_json_doc **out, const ls_node *messages, bool reads_parts, ls_error *err);

#endif
