/* Renders conversations as they grow. Owns nothing but what it makes on the way; an episode owns its last rendering. */
#define _POSIX_C_SOURCE 200809L
#include "rl/dialogue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "json/json_node.h"
#include "json/json_out.h"

/* Stands for a completion where it is asked whether the template is to blame. */
static const char plain_words[] = "Some words, 12 of them.";

static bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

static bool begins(const char *text, int64_t bytes, const char *with, int64_t n) {
    return n <= bytes && memcmp(text, with, (size_t)n) == 0;
}

/* ---- messages ---- */

ls_status ls_dialogue_messages(char **out, const char *conversation, ls_error *err) {
    ls_json_doc *doc = NULL;
    ls_node root, messages;
    ls_status status;
    *out = NULL;
    LS_TRY_DONE(ls_json_doc_open(&doc, conversation, (int64_t)strlen(conversation), "conversation", err));
    root = ls_json_root(doc);
    LS_TRY_DONE(ls_node_need_kind(&root, "messages", LS_NODE_ARRAY, &messages, err));
    status = ls_node_dump(&messages, out, err);
done:
    ls_json_doc_free(doc);
    return status;
}

/* Members of an object but for one that `other` has. */
static ls_status write_others(ls_json_out *json, const ls_node *object, const ls_node *other, ls_error *err) {
    void *iterator = NULL;
    ls_node member, same;
    while (ls_node_next(object, &iterator, &member)) {
        char *text = NULL;
        if (other != NULL && ls_node_get(other, member.key, &same)) continue;
        LS_TRY(ls_node_dump(&member, &text, err));
        ls_json_raw(json, member.key, text);
        free(text);
    }
    return LS_OK;
}

ls_status ls_dialogue_replace(char **out, const char *conversation, const char *said, ls_error *err) {
    ls_json_doc *whole = NULL, *own = NULL;
    ls_node root, own_root;
    size_t bytes = 0;
    ls_json_out json;
    FILE *stream = NULL;
    ls_status status;
    *out = NULL;
    LS_TRY_DONE(ls_json_doc_open(&whole, conversation, (int64_t)strlen(conversation), "conversation", err));
    LS_TRY_DONE(ls_json_doc_open(&own, said, (int64_t)strlen(said), "messages", err));
    root = ls_json_root(whole);
    own_root = ls_json_root(own);
    if ((stream = open_memstream(out, &bytes)) == NULL) {
        status = LS_FAIL(err, LS_ERR_NOMEM, "conversation");
        goto done;
    }
    ls_json_init(&json, stream);
    ls_json_begin_object(&json, NULL);
    LS_TRY_DONE(write_others(&json, &own_root, NULL, err));
    LS_TRY_DONE(write_others(&json, &root, &own_root, err));
    ls_json_end_object(&json);
done:
    if (stream != NULL && fclose(stream) != 0 && status == LS_OK) status = LS_FAIL(err, LS_ERR_NOMEM, "conversation");
    if (status != LS_OK) {
        free(*out);
        *out = NULL;
    }
    ls_json_doc_free(whole);
    ls_json_doc_free(own);
    return status;
}

static int64_t stop_bytes(const ls_world *w) { return w->stop_text == NULL ? 0 : (int64_t)strlen(w->stop_text); }

/* A completion as the content of a message: without the stop text that ended it. */
static ls_reply content_of(const ls_world *w, const ls_reply *reply) {
    const int64_t n = stop_bytes(w);
    ls_reply out = *reply;
    if (n > 0 && n <= out.bytes && memcmp(out.text + out.bytes - n, w->stop_text, (size_t)n) == 0) out.bytes -= n;
    return out;
}

/* Every message of a list as an item of the array that is open. */
static ls_status write_list(ls_json_out *json, const ls_node *list, ls_error *err) {
    for (int64_t i = 0; i < ls_node_count(list); i++) {
        const ls_node message = ls_node_at(list, i);
        char *text = NULL;
        LS_TRY(ls_node_dump(&message, &text, err));
        ls_json_raw(json, NULL, text);
        free(text);
    }
    return LS_OK;
}

static ls_status write_observed(ls_json_out *json, const char *conversation, ls_error *err) {
    ls_json_doc *doc = NULL;
    ls_node root, messages;
    ls_status status;
    LS_TRY_DONE(ls_json_doc_open(&doc, conversation, (int64_t)strlen(conversation), "messages", err));
    root = ls_json_root(doc);
    LS_TRY_DONE(ls_node_need_kind(&root, "messages", LS_NODE_ARRAY, &messages, err));
    status = write_list(json, &messages, err);
done:
    ls_json_doc_free(doc);
    return status;
}

/* The calls in a text, in the form of OpenAI's messages: nothing where there are none. */
static ls_status write_calls(ls_json_out *json, ls_call_format format, const ls_reply *content, ls_error *err) {
    ls_tool_calls calls;
    if (format == LS_CALLS_NONE) return LS_OK;
    LS_TRY(ls_tool_calls_find(&calls, format, content->text, content->bytes, err));
    if (calls.n > 0) ls_json_begin_array(json, "tool_calls");
    for (int64_t i = 0; i < calls.n; i++) {
        ls_json_begin_object(json, NULL);
        ls_json_string(json, "type", "function");
        ls_json_begin_object(json, "function");
        ls_json_string(json, "name", calls.items[i].name);
        ls_json_raw(json, "arguments", calls.items[i].arguments);
        ls_json_end_object(json);
        ls_json_end_object(json);
    }
    if (calls.n > 0) ls_json_end_array(json);
    ls_tool_calls_deinit(&calls);
    return LS_OK;
}

/* format: of the calls that are told beside the content. */
static ls_status write_message(ls_json_out *json, const char *role, const ls_reply *content, ls_call_format format,
                               ls_error *err) {
    ls_status status;
    ls_json_begin_object(json, NULL);
    ls_json_string(json, "role", role);
    ls_json_text(json, "content", content->text, content->bytes);
    status = write_calls(json, format, content, err);
    ls_json_end_object(json);
    return status;
}

/* Of the first n turns. */
typedef struct said {
    int64_t n;
    bool plain;            /* completions are the plain words */
    ls_call_format format; /* of the calls that are told */
} said;

static ls_status write_turns(ls_json_out *json, const ls_world *w, const ls_episode *x, const said *s, ls_error *err) {
    for (int64_t k = 0; k < s->n; k++) {
        const ls_reply words = {plain_words, (int64_t)sizeof plain_words - 1};
        const ls_reply reply = s->plain ? words : content_of(w, &x->replies[k]);
        LS_TRY(write_message(json, "assistant", &reply, s->format, err));
        if (x->observations[k].text == NULL) continue;
        if (x->are_messages[k])
            LS_TRY(write_observed(json, x->observations[k].text, err));
        else
            LS_TRY(write_message(json, "user", &x->observations[k], LS_CALLS_NONE, err));
    }
    return LS_OK;
}

ls_status ls_dialogue_said(char **out, const ls_world *w, const ls_episode *x, ls_error *err) {
    const said all = {x->n_replies, false, w->chat != NULL ? ls_chat_calls(w->chat) : LS_CALLS_NONE};
    size_t bytes = 0;
    ls_json_out json;
    ls_status status;
    FILE *stream = open_memstream(out, &bytes);
    if (stream == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "conversation");
    ls_json_init(&json, stream);
    ls_json_begin_array(&json, NULL);
    status = write_turns(&json, w, x, &all, err);
    ls_json_end_array(&json);
    if (fclose(stream) != 0 && status == LS_OK) status = LS_FAIL(err, LS_ERR_NOMEM, "conversation");
    if (status != LS_OK) {
        free(*out);
        *out = NULL;
    }
    return status;
}

/* The problem's conversation with the first n turns behind it, as JSON. */
static ls_status write_all(char **out, size_t *bytes, const ls_world *w, const ls_episode *x, int64_t n, bool plain,
                           ls_error *err) {
    const char *conversation = x->question.chat;
    const said turns = {n, plain, LS_CALLS_NONE}; /* the template finds calls in the text, where it looks for any */
    ls_json_doc *doc = NULL;
    ls_node root, member;
    void *iterator = NULL;
    ls_json_out json;
    FILE *stream = NULL;
    ls_status status;
    LS_TRY_DONE(ls_json_doc_open(&doc, conversation, (int64_t)strlen(conversation), "conversation", err));
    root = ls_json_root(doc);
    if ((stream = open_memstream(out, bytes)) == NULL) {
        status = LS_FAIL(err, LS_ERR_NOMEM, "conversation");
        goto done;
    }
    ls_json_init(&json, stream);
    ls_json_begin_object(&json, NULL);
    while (ls_node_next(&root, &iterator, &member)) {
        char *text = NULL;
        if (strcmp(member.key, "messages") == 0) {
            ls_json_begin_array(&json, "messages");
            LS_TRY_DONE(write_list(&json, &member, err));
            LS_TRY_DONE(write_turns(&json, w, x, &turns, err));
            ls_json_end_array(&json);
            continue;
        }
        LS_TRY_DONE(ls_node_dump(&member, &text, err));
        ls_json_raw(&json, member.key, text);
        free(text);
    }
    ls_json_end_object(&json);
done:
    if (stream != NULL && fclose(stream) != 0 && status == LS_OK) status = LS_FAIL(err, LS_ERR_NOMEM, "conversation");
    ls_json_doc_free(doc);
    return status;
}

/* ---- renderings ---- */

/* The chat, or why there is none. */
static ls_status need_chat(const ls_world *w, ls_error *err) {
    ls_chat *chat = NULL;
    if (w->chat != NULL) return LS_OK;
    LS_TRY(ls_chat_open(&chat, w->model, NULL, err));
    ls_chat_free(chat);
    return LS_FAIL(err, LS_ERR_IO, "%s: the chat template came after the run had begun", w->model);
}

static ls_status render(ls_template_output *out, const ls_world *w, const ls_episode *x, int64_t n, bool plain,
                        ls_error *err) {
    char *json = NULL;
    size_t bytes = 0;
    ls_status status;
    memset(out, 0, sizeof *out);
    LS_TRY_DONE(write_all(&json, &bytes, w, x, n, plain, err));
    status = ls_chat_render_text(w->chat, json, (int64_t)bytes, "conversation", true, out, err);
done:
    free(json);
    return status;
}

ls_status ls_dialogue_begin(ls_reply *prompt, const ls_world *w, const char *conversation, ls_error *err) {
    ls_template_output text;
    LS_TRY(need_chat(w, err));
    LS_TRY(ls_chat_render_text(w->chat, conversation, (int64_t)strlen(conversation), "conversation", true, &text, err));
    free(text.spans);
    *prompt = (ls_reply){text.text, text.bytes};
    return LS_OK;
}

/* Where what the model wrote ends in a rendering that goes on with it at `from`; -1: it does not. Blanks at its ends
 * may be others, or none. */
static int64_t find_end(const ls_template_output *r, int64_t from, const ls_reply *content) {
    const char *text = content->text;
    int64_t n = content->bytes, at = from;
    if (begins(r->text + from, r->bytes - from, text, n)) return from + n;
    for (; n > 0 && is_blank(text[0]); n--) text++;
    while (n > 0 && is_blank(text[n - 1])) n--;
    if (n == 0) return from;
    while (at < r->bytes && is_blank(r->text[at])) at++;
    return begins(r->text + at, r->bytes - at, text, n) ? at + n : -1;
}

/* The content as the template has it: JSON has replaced what is no UTF-8. */
static ls_status sane(char **out, ls_reply *content, ls_error *err) {
    size_t bytes = 0;
    ls_json_out json;
    ls_json_doc *doc = NULL;
    ls_node root, value;
    const char *text;
    char *object = NULL;
    ls_status status;
    FILE *stream = open_memstream(&object, &bytes);
    *out = NULL;
    if (stream == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "completion");
    ls_json_init(&json, stream);
    ls_json_begin_object(&json, NULL);
    ls_json_text(&json, "content", content->text, content->bytes);
    ls_json_end_object(&json);
    if (fclose(stream) != 0) {
        status = LS_FAIL(err, LS_ERR_NOMEM, "completion");
        goto done;
    }
    LS_TRY_DONE(ls_json_doc_open(&doc, object, (int64_t)bytes, "completion", err));
    root = ls_json_root(doc);
    LS_TRY_DONE(ls_node_need(&root, "content", &value, err));
    LS_TRY_DONE(ls_node_text(&value, &text, &content->bytes, err));
    LS_TRY_DONE(ls_text_copy(out, text, content->bytes, err));
    content->text = *out;
done:
    ls_json_doc_free(doc);
    free(object);
    return status;
}

/* Whether the template keeps earlier turns as they were where all that the model says is plain words. */
static ls_status keeps_plain_words(bool *keeps, const ls_world *w, const ls_episode *x, ls_error *err) {
    const ls_reply words = {plain_words, (int64_t)sizeof plain_words - 1};
    ls_template_output before = {0}, whole = {0};
    ls_status status;
    *keeps = false;
    LS_TRY_DONE(render(&before, w, x, x->n_replies - 1, true, err));
    LS_TRY_DONE(render(&whole, w, x, x->n_replies, true, err));
    *keeps = begins(whole.text, whole.bytes, before.text, before.bytes) && find_end(&whole, before.bytes, &words) >= 0;
done:
    ls_template_output_deinit(&before);
    ls_template_output_deinit(&whole);
    return status;
}

/* Number of the first turn that a rendering has otherwise than the one before; 0: the prompt. */
static int64_t first_other(const ls_episode *x, const char *before, int64_t bytes, const ls_template_output *whole) {
    int64_t at = 0, k = 0;
    while (at < bytes && at < whole->bytes && before[at] == whole->text[at]) at++;
    if (at >= bytes) return x->n_replies;
    if (at < x->question.prompt.bytes) return 0;
    while (k + 1 < x->n_replies && at >= x->rendered_ends[k]) k++;
    return k + 1;
}

static ls_status refuse(bool *failed, const ls_world *w, const ls_episode *x, const char *before, int64_t bytes,
                        const ls_template_output *whole, ls_error *err) {
    const int64_t turn = first_other(x, before, bytes, whole);
    char place[48];
    bool keeps;
    LS_TRY(keeps_plain_words(&keeps, w, x, err));
    *failed = keeps;
    if (turn == 0)
        snprintf(place, sizeof place, "the prompt");
    else
        snprintf(place, sizeof place, "turn %lld", (long long)turn);
    return LS_FAIL(err, LS_ERR_UNSUPPORTED,
                   "the chat template %.200s writes %s otherwise when messages follow: what was drawn cannot go on",
                   ls_chat_name(w->chat, strstr(x->question.chat, "\"tools\":") != NULL), place);
}

/* ---- tokens ---- */

/* Ids of the tail. What the model has written of it itself, the end of its turn, is left out. */
static ls_status encode_tail(int32_t **ids, int64_t *n, const ls_world *w, const ls_episode *x, const char *tail,
                             int64_t bytes, ls_error *err) {
    const int32_t last = x->tokens[x->n - 1];
    const int64_t stop = stop_bytes(w);
    const ls_reply *reply = &x->replies[x->n_replies - 1];
    char *text = NULL, *visible = NULL;
    int64_t text_bytes = 0, visible_bytes = 0;
    bool is_special;
    ls_status status;
    *ids = NULL;
    *n = 0;
    LS_TRY_DONE(ls_tokenizer_decode_known(w->tokenizer, &last, 1, false, &text, &text_bytes, err));
    LS_TRY_DONE(ls_tokenizer_decode_known(w->tokenizer, &last, 1, true, &visible, &visible_bytes, err));
    is_special = text_bytes > 0 && visible_bytes == 0 && x->drawn[x->n - 1] != 0;
    if (is_special && begins(tail, bytes, text, text_bytes)) {
        LS_TRY_DONE(ls_tokenizer_encode(w->tokenizer, tail, bytes, false, ids, n, err));
        if (*n > 0 && (*ids)[0] == last) { /* encoded with what stands before it, and without that */
            memmove(*ids, *ids + 1, (size_t)(*n - 1) * sizeof **ids);
            --*n;
            goto done;
        }
        free(*ids);
        *ids = NULL;
        tail += text_bytes;
        bytes -= text_bytes;
    } else if (stop > 0 && content_of(w, reply).bytes < reply->bytes && begins(tail, bytes, w->stop_text, stop)) {
        tail += stop;
        bytes -= stop;
    }
    status = ls_tokenizer_encode(w->tokenizer, tail, bytes, false, ids, n, err);
done:
    free(text);
    free(visible);
    return status;
}

static ls_status check_problem(const ls_world *w, const ls_episode *x, ls_error *err) {
    LS_TRY(need_chat(w, err));
    if (x->question.chat == NULL)
        return LS_FAIL(err, LS_ERR_ARG,
                       "the environment answers with messages, and the problem is a text; give it as messages");
    for (int64_t k = 0; k + 1 < x->n_replies; k++)
        if (x->observations[k].text != NULL && !x->are_messages[k])
            return LS_FAIL(err, LS_ERR_ARG,
                           "the environment answers turn %lld with messages, and answered turn %lld "
                           "with a text; the chat template does not know that text",
                           (long long)x->n_replies, (long long)k + 1);
    return LS_OK;
}

ls_status ls_dialogue_next(int32_t **ids, int64_t *n, bool *failed, const ls_world *w, ls_episode *x, ls_error *err) {
    const char *before = x->rendered != NULL ? x->rendered : x->question.prompt.text;
    const int64_t bytes = x->rendered != NULL ? x->rendered_bytes : x->question.prompt.bytes;
    ls_template_output whole = {0};
    ls_reply content = content_of(w, &x->replies[x->n_replies - 1]);
    char *text = NULL;
    int64_t end = -1;
    ls_status status;
    *ids = NULL;
    *failed = false;
    LS_TRY_DONE(check_problem(w, x, err));
    LS_TRY_DONE(sane(&text, &content, err));
    if ((status = render(&whole, w, x, x->n_replies, false, err)) != LS_OK) {
        ls_error ignored;
        bool keeps = false;
        *failed = status != LS_ERR_NOMEM && keeps_plain_words(&keeps, w, x, &ignored) == LS_OK && keeps;
        goto done;
    }
    if (begins(whole.text, whole.bytes, before, bytes)) end = find_end(&whole, bytes, &content);
    if (end < 0) {
        status = refuse(failed, w, x, before, bytes, &whole, err);
        goto done;
    }
    LS_TRY_DONE(encode_tail(ids, n, w, x, whole.text + end, whole.bytes - end, err));
    free(x->rendered);
    x->rendered = whole.text;
    x->rendered_bytes = x->rendered_ends[x->n_replies - 1] = whole.bytes;
    whole.text = NULL;
done:
    ls_template_output_deinit(&whole);
    free(text);
    return status;
}
