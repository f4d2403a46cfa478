/* Finding tool calls. */
#define _GNU_SOURCE
#include "text/tool_calls.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "json/json_node.h"

static const struct {
    ls_call_format format;
    const char *name, *mark; /* mark: what begins the calls */
} formats[] = {{LS_CALLS_NONE, "off", NULL},
               {LS_CALLS_HERMES, "hermes", "<tool_call>"},
               {LS_CALLS_LLAMA, "llama3_json", "<|python_tag|>"},
               {LS_CALLS_MISTRAL, "mistral", "[TOOL_CALLS]"},
               {LS_CALLS_JAMBA, "jamba", "<tool_calls>"}};
enum { N_FORMATS = sizeof formats / sizeof formats[0] };

bool ls_call_format_parse(ls_call_format *out, const char *name) {
    for (int i = 0; i < N_FORMATS; i++) {
        if (strcmp(formats[i].name, name) != 0) continue;
        *out = formats[i].format;
        return true;
    }
    return false;
}

const char *ls_call_format_name(ls_call_format format) { return formats[format].name; }

static bool has_text(const char *text, int64_t bytes, const char *what) {
    return memmem(text, (size_t)bytes, what, strlen(what)) != NULL;
}

ls_call_format ls_call_format_guess(const char *text, int64_t bytes) {
    if (has_text(text, bytes, "<function=")) return LS_CALLS_NONE; /* calls that are no JSON */
    if (has_text(text, bytes, "<tool_calls>")) return LS_CALLS_JAMBA;
    if (has_text(text, bytes, "<tool_call>")) return LS_CALLS_HERMES;
    if (has_text(text, bytes, "[TOOL_CALLS]")) return LS_CALLS_MISTRAL;
    if (has_text(text, bytes, "<|python_tag|>") || has_text(text, bytes, "\"parameters\": dictionary of argument name"))
        return LS_CALLS_LLAMA;
    return LS_CALLS_NONE;
}

/* ---- JSON in a text ---- */

/* Where it is in the text. */
typedef struct cursor {
    const char *at, *end;
} cursor;

static void skip_space(cursor *c) {
    while (c->at < c->end && ls_is_space(*c->at)) c->at++;
}

static bool take_text(cursor *c, const char *what) {
    const size_t n = strlen(what);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, what, n) != 0) return false;
    c->at += n;
    return true;
}

/* Behind a text in quotes that begins here. */
static bool skip_string(cursor *c) {
    for (c->at++; c->at < c->end; c->at++) {
        if (*c->at == '\\')
            c->at++;
        else if (*c->at == '"') {
            c->at++;
            return true;
        }
    }
    return false;
}

/* Behind an object or a list that begins here, by its brackets: whether it is JSON is not looked at. */
static bool skip_brackets(cursor *c) {
    int64_t depth = 0;
    while (c->at < c->end) {
        const char x = *c->at;
        if (x == '"') {
            if (!skip_string(c)) return false;
            continue;
        }
        c->at++;
        if (x == '{' || x == '[') depth++;
        if ((x == '}' || x == ']') && --depth == 0) return true;
    }
    return false;
}

/* A value of JSON that is known to be well-formed. */
static bool skip_value(cursor *c) {
    if (c->at < c->end && *c->at == '"') return skip_string(c);
    if (c->at < c->end && (*c->at == '{' || *c->at == '[')) return skip_brackets(c);
    while (c->at < c->end && *c->at != ',' && *c->at != '}' && *c->at != ']' && !ls_is_space(*c->at)) c->at++;
    return true;
}

/* The text of an object's member, in an object that is well-formed JSON without escapes in this key. */
static bool member_text(cursor object, const char *key, cursor *value) {
    object.at++; /* { */
    for (;;) {
        cursor name;
        skip_space(&object);
        if (object.at == object.end || *object.at != '"') return false;
        name.at = object.at + 1;
        if (!skip_string(&object)) return false;
        name.end = object.at - 1;
        skip_space(&object);
        if (!take_text(&object, ":")) return false;
        skip_space(&object);
        value->at = object.at;
        if (!skip_value(&object)) return false;
        value->end = object.at;
        if ((size_t)(name.end - name.at) == strlen(key) && memcmp(name.at, key, strlen(key)) == 0) return true;
        skip_space(&object);
        if (!take_text(&object, ",")) return false;
    }
}

/* ---- calls ---- */

/* What a step found: an error of memory is a status, a text that is no call is not. */
typedef struct found {
    ls_tool_calls *out;
    ls_call_format format;
    bool is_bad;
    ls_error *err;
} found;

static ls_status bad(found *f) {
    f->is_bad = true;
    return LS_OK;
}

static ls_status add_tool_call(found *f, const char *name, cursor arguments) {
    ls_tool_calls *calls = f->out;
    ls_tool_call *call;
    LS_TRY(
        ls_array_grow((void **)&calls->items, &calls->cap, calls->n + 1, sizeof *calls->items, "tool calls", f->err));
    call = &calls->items[calls->n];
    memset(call, 0, sizeof *call);
    calls->n++;
    LS_TRY(ls_text_copy(&call->name, name, (int64_t)strlen(name), f->err));
    return ls_text_copy(&call->arguments, arguments.at, arguments.end - arguments.at, f->err);
}

/* Whether it is the text of a JSON object, in which the reader takes a NUL for white space. */
static ls_json_doc *open_object(cursor object) {
    ls_json_doc *doc = NULL;
    if (object.at == object.end || *object.at != '{') return NULL;
    if (memchr(object.at, '\0', (size_t)(object.end - object.at)) != NULL) return NULL;
    return ls_json_doc_open(&doc, object.at, object.end - object.at, "call", NULL) == LS_OK ? doc : NULL;
}

/* {"name": .., "arguments": {..}} */
static ls_status add_object(found *f, cursor object) {
    static const char *const keys[] = {"arguments", "parameters"};
    const int n_keys = f->format == LS_CALLS_LLAMA ? 2 : 1;
    ls_json_doc *doc = open_object(object);
    const char *text = "";
    cursor arguments = {NULL, NULL};
    ls_node root, name, child;
    bool is_call = false;
    ls_status status = LS_OK;
    if (doc == NULL) return bad(f);
    root = ls_json_root(doc);
    for (int i = 0; i < n_keys && !is_call; i++)
        is_call = ls_node_get_some(&root, keys[i], &child) && ls_node_kind_of(&child) == LS_NODE_OBJECT &&
                  member_text(object, keys[i], &arguments);
    if (!is_call || !ls_node_get_some(&root, "name", &name) || ls_node_string(&name, &text, NULL) != LS_OK ||
        text[0] == '\0')
        status = bad(f);
    else
        status = add_tool_call(f, text, arguments);
    ls_json_doc_free(doc);
    return status;
}

/* An object here. */
static ls_status take_object(found *f, cursor *c) {
    const char *begin = c->at;
    if (c->at == c->end || *c->at != '{' || !skip_brackets(c)) return bad(f);
    return add_object(f, (cursor){begin, c->at});
}

/* [{..}, ..] */
static ls_status take_list(found *f, cursor *c) {
    if (!take_text(c, "[")) return bad(f);
    for (;;) {
        skip_space(c);
        LS_TRY(take_object(f, c));
        if (f->is_bad) return LS_OK;
        skip_space(c);
        if (take_text(c, "]")) return LS_OK;
        if (!take_text(c, ",")) return bad(f);
    }
}

static ls_status take_hermes(found *f, cursor *c) {
    skip_space(c);
    LS_TRY(take_object(f, c));
    if (f->is_bad) return LS_OK;
    skip_space(c);
    return take_text(c, "</tool_call>") || c->at == c->end ? LS_OK : bad(f);
}

static ls_status take_jamba(found *f, cursor *c) {
    skip_space(c);
    LS_TRY(take_list(f, c));
    if (f->is_bad) return LS_OK;
    skip_space(c);
    return take_text(c, "</tool_calls>") || c->at == c->end ? LS_OK : bad(f);
}

static ls_status take_llama(found *f, cursor *c) {
    do {
        skip_space(c);
        LS_TRY(take_object(f, c));
        if (f->is_bad) return LS_OK;
        skip_space(c);
    } while (take_text(c, ";"));
    return c->at == c->end ? LS_OK : bad(f);
}

static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.';
}

static ls_status take_mistral(found *f, cursor *c) {
    char name[256];
    const char *begin;
    cursor object;
    ls_json_doc *doc;
    skip_space(c);
    if (c->at < c->end && *c->at == '[') return take_list(f, c);
    for (begin = c->at; c->at < c->end && is_name(*c->at);) c->at++;
    if (c->at == begin || c->at - begin >= (int64_t)sizeof name) return bad(f);
    memcpy(name, begin, (size_t)(c->at - begin));
    name[c->at - begin] = '\0';
    (void)take_text(c, "[ARGS]");
    skip_space(c);
    object.at = c->at;
    if (c->at == c->end || *c->at != '{' || !skip_brackets(c)) return bad(f);
    object.end = c->at;
    if ((doc = open_object(object)) == NULL) return bad(f);
    ls_json_doc_free(doc);
    return add_tool_call(f, name, object);
}

static ls_status add_content(found *f, const char *text, int64_t bytes) {
    ls_tool_calls *out = f->out;
    LS_TRY(
        ls_array_grow((void **)&out->content, &out->content_cap, out->content_bytes + bytes + 1, 1, "content", f->err));
    if (bytes > 0) memcpy(out->content + out->content_bytes, text, (size_t)bytes);
    out->content_bytes += bytes;
    out->content[out->content_bytes] = '\0';
    return LS_OK;
}

static bool is_blank(const char *text, const char *end) {
    while (text < end && ls_is_space(*text)) text++;
    return text == end;
}

static ls_status take_calls(found *f, cursor *c) {
    switch (f->format) {
        case LS_CALLS_HERMES: return take_hermes(f, c);
        case LS_CALLS_LLAMA: return take_llama(f, c);
        case LS_CALLS_MISTRAL: return take_mistral(f, c);
        case LS_CALLS_JAMBA: return take_jamba(f, c);
        case LS_CALLS_NONE: break;
    }
    return bad(f);
}

/* Where the calls begin: behind the mark, or where a text of Llama begins with an object. NULL: nowhere. */
static const char *find_begin(ls_call_format format, const char *text, int64_t bytes, const char **behind) {
    const char *mark = formats[format].mark, *at;
    cursor c = {text, text + bytes};
    skip_space(&c);
    if (format == LS_CALLS_LLAMA && c.at < c.end && *c.at == '{') {
        *behind = c.at;
        return text;
    }
    at = memmem(text, (size_t)bytes, mark, strlen(mark));
    if (at != NULL) *behind = at + strlen(mark);
    return at;
}

static ls_status find_all(found *f, const char *text, int64_t bytes) {
    const char *const end = text + bytes;
    const char *at, *behind;
    bool first = true;
    while ((at = find_begin(f->format, text, end - text, &behind)) != NULL) {
        cursor c = {behind, end};
        if (first || !is_blank(text, at)) LS_TRY(add_content(f, text, at - text));
        LS_TRY(take_calls(f, &c));
        if (f->is_bad) return LS_OK;
        text = c.at;
        first = false;
    }
    if (!first && is_blank(text, end)) return LS_OK;
    return add_content(f, text, end - text);
}

static void forget(ls_tool_calls *calls) {
    for (int64_t i = 0; i < calls->n; i++) {
        free(calls->items[i].name);
        free(calls->items[i].arguments);
    }
    calls->n = 0;
    calls->content_bytes = 0;
}

ls_status ls_tool_calls_find(ls_tool_calls *out, ls_call_format format, const char *text, int64_t bytes,
                             ls_error *err) {
    found f = {.out = out, .format = format, .err = err};
    memset(out, 0, sizeof *out);
    if (format != LS_CALLS_NONE) LS_TRY(find_all(&f, text, bytes));
    if (format != LS_CALLS_NONE && !f.is_bad) return LS_OK;
    forget(out);
    return add_content(&f, text, bytes);
}

void ls_tool_calls_deinit(ls_tool_calls *calls) {
    forget(calls);
    free(calls->items);
    free(calls->content);
    memset(calls, 0, sizeof *calls);
}

int64_t ls_tool_calls_final(ls_call_format format, const char *text, int64_t bytes, bool is_start, bool *begins) {
    const char *mark = formats[format].mark, *at;
    const int64_t length = mark != NULL ? (int64_t)strlen(mark) : 0;
    *begins = false;
    if (format == LS_CALLS_NONE) return bytes;
    if (format == LS_CALLS_LLAMA && is_start) {
        cursor c = {text, text + bytes};
        skip_space(&c);
        if (c.at == c.end) return 0;
        *begins = *c.at == '{';
        if (*begins) return 0;
    }
    if ((at = memmem(text, (size_t)bytes, mark, (size_t)length)) != NULL) {
        *begins = true;
        return at - text;
    }
    for (int64_t n = length - 1 < bytes ? length - 1 : bytes; n > 0; n--)
        if (memcmp(text + bytes - n, mark, (size_t)n) == 0) return bytes - n;
    return bytes;
}
