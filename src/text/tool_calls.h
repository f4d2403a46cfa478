/* Tool calls in what a model wrote: the formats that chat templates of published models teach.
 *
 *   hermes       <tool_call>{"name": .., "arguments": {..}}</tool_call>, as often as wanted (Hermes, Qwen)
 *   llama3_json  {"name": .., "parameters": {..}}, several with ; between, as the whole text or behind <|python_tag|>
 *   mistral      [TOOL_CALLS][{"name": .., "arguments": {..}}, ..], or [TOOL_CALLS]NAME{..} for each call, or
 *                [TOOL_CALLS]NAME[ARGS]{..}
 *   jamba        <tool_calls>[{"name": .., "arguments": {..}}, ..]</tool_calls>
 *
 * All or nothing: where one call is not as its format has it, there are no calls and the text is content. Text beside
 * the calls stays content; white space alone between and behind them does not. Works on bytes that a model chose. */
#ifndef LS_TEXT_TOOL_CALLS_H
#define LS_TEXT_TOOL_CALLS_H

#include "base/status.h"

typedef enum ls_call_format {
    LS_CALLS_NONE,
    LS_CALLS_HERMES,
    LS_CALLS_LLAMA,
    LS_CALLS_MISTRAL,
    LS_CALLS_JAMBA
} ls_call_format;

/* By its name in the list above, or "off". */
bool ls_call_format_parse(ls_call_format *out, const char *name);
const char *ls_call_format_name(ls_call_format format);
/* The format that a chat template's text has the marks of; LS_CALLS_NONE where it has none that is known. */
ls_call_format ls_call_format_guess(const char *template_text, int64_t bytes);

typedef struct ls_tool_call {
    char *name, *arguments; /* arguments: a JSON object as the model wrote it */
} ls_tool_call;

typedef struct ls_tool_calls {
    ls_tool_call *items; /* [n] */
    int64_t n, cap;
    char *content; /* NUL-terminated; where n is 0, the whole text */
    int64_t content_bytes, content_cap;
} ls_tool_calls;

/* Calls in a text that is complete. */
ls_status ls_tool_calls_find(ls_tool_calls *out, ls_call_format format, const char *text, int64_t bytes, ls_error *err);
void ls_tool_calls_deinit(ls_tool_calls *calls);

/* How many bytes of a text that still grows are content whatever follows: those before what begins a call, or may begin
 * one. is_start: the text is seen from its start. *begins: a call has begun, as far as can be told. */
int64_t ls_tool_calls_final(ls_call_format format, const char *text, int64_t bytes, bool is_start, bool *begins);

#endif
