/* Chat templates of models. Owns the templates, the files' text and the special tokens. */
#define _POSIX_C_SOURCE 200809L
#include "template/chat.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/hub.h"
#include "base/mem.h"
#include "load/adapter_chain.h"
#include "template/chat_parts.h"

enum { PATH_BYTES = 4096, VARIABLES_MAX = 256, TOKENS_MAX = 128 };
#define CONFIG_BYTES_MAX ((int64_t)1 << 26)
#define ADDITIONAL "additional_chat_templates"

static const char *const token_names[] = {"bos_token", "eos_token", "unk_token",  "sep_token",
                                          "pad_token", "cls_token", "mask_token", NULL};
/* Objects of tokens that have names of their own, the second as transformers 5 writes the first. */
static const char *const token_objects[] = {"extra_special_tokens", "model_specific_special_tokens", NULL};

typedef struct named_token {
    char *name, *text;
} named_token;

struct ls_chat {
    ls_template *usual, *with_tools; /* with_tools NULL: usual */
    named_token *tokens;
    int64_t n_tokens, tokens_cap;
    ls_call_format calls; /* that the template of tools, else the usual one, writes */
    bool has_files;       /* templates that are files of their own: those of tokenizer_config.json don't count */
    int64_t now;
};

ls_call_format ls_chat_calls(const ls_chat *chat) { return chat->calls; }

const char *ls_chat_name(const ls_chat *chat, bool has_tools) {
    return ls_template_name(has_tools && chat->with_tools != NULL ? chat->with_tools : chat->usual);
}

void ls_chat_free(ls_chat *chat) {
    if (chat == NULL) return;
    ls_template_free(chat->usual);
    ls_template_free(chat->with_tools);
    for (int64_t i = 0; i < chat->n_tokens; i++) {
        free(chat->tokens[i].name);
        free(chat->tokens[i].text);
    }
    free(chat->tokens);
    free(chat);
}

/* ---- opening ---- */

/* A token is a text or an object with its content. */
static ls_status read_token(const char **out, const ls_node *value, ls_error *err) {
    ls_node content;
    if (ls_node_kind_of(value) != LS_NODE_OBJECT) return ls_node_string(value, out, err);
    LS_TRY(ls_node_need(value, "content", &content, err));
    return ls_node_string(&content, out, err);
}

/* The first that has a name keeps it. */
static ls_status add_token(ls_chat *chat, const ls_node *value, ls_error *err) {
    static const char *const taken[] = {"messages", "tools", "documents", "add_generation_prompt", NULL};
    const char *text = NULL;
    named_token *token;
    for (int i = 0; taken[i] != NULL; i++)
        if (strcmp(taken[i], value->key) == 0)
            return ls_node_fail(value, LS_ERR_UNSUPPORTED, err, "a token with a name that templates need otherwise");
    for (int64_t i = 0; i < chat->n_tokens; i++)
        if (strcmp(chat->tokens[i].name, value->key) == 0) return LS_OK;
    if (chat->n_tokens == TOKENS_MAX)
        return ls_node_fail(value, LS_ERR_CAPACITY, err, "more than %d special tokens with names", TOKENS_MAX);
    LS_TRY(read_token(&text, value, err));
    LS_TRY(ls_array_grow((void **)&chat->tokens, &chat->tokens_cap, chat->n_tokens + 1, sizeof *chat->tokens,
                         "special tokens", err));
    token = &chat->tokens[chat->n_tokens++];
    *token = (named_token){0};
    LS_TRY(ls_text_copy(&token->name, value->key, (int64_t)strlen(value->key), err));
    return ls_text_copy(&token->text, text, (int64_t)strlen(text), err);
}

/* Of a model's own: every member "..._token" that can be one. */
static bool is_token(const ls_node *member) {
    static const char end[] = "_token";
    const size_t n = strlen(member->key), m = sizeof end - 1;
    const char *text;
    return n > m && strcmp(member->key + n - m, end) == 0 && read_token(&text, member, NULL) == LS_OK;
}

static ls_status read_tokens(ls_chat *chat, const ls_node *root, ls_error *err) {
    void *iterator = NULL;
    ls_node value;
    for (int i = 0; token_names[i] != NULL; i++)
        if (ls_node_get_some(root, token_names[i], &value)) LS_TRY(add_token(chat, &value, err));
    for (int i = 0; token_objects[i] != NULL; i++) {
        ls_node tokens;
        if (!ls_node_get_some(root, token_objects[i], &tokens) || ls_node_kind_of(&tokens) != LS_NODE_OBJECT) continue;
        iterator = NULL;
        while (ls_node_next(&tokens, &iterator, &value)) LS_TRY(add_token(chat, &value, err));
    }
    iterator = NULL;
    while (ls_node_next(root, &iterator, &value))
        if (is_token(&value)) LS_TRY(add_token(chat, &value, err));
    return LS_OK;
}

static ls_status parse_text(ls_chat *chat, ls_template **out, const char *text, int64_t bytes, const char *name,
                            ls_error *err) {
    if (out == &chat->with_tools || chat->with_tools == NULL) chat->calls = ls_call_format_guess(text, bytes);
    return ls_template_parse(out, text, bytes, name, err);
}

static ls_status parse_node(ls_chat *chat, ls_template **out, const ls_node *value, const char *name, ls_error *err) {
    const char *text;
    int64_t bytes;
    LS_TRY(ls_node_text(value, &text, &bytes, err));
    return parse_text(chat, out, text, bytes, name, err);
}

/* [{"name": .., "template": ..}, ..] */
static ls_status read_named(ls_chat *chat, const ls_node *list, const char *path, ls_error *err) {
    for (int64_t i = 0; i < ls_node_count(list); i++) {
        const ls_node item = ls_node_at(list, i);
        ls_node name, text;
        const char *called;
        char place[PATH_BYTES + 100];
        ls_template **to;
        LS_TRY(ls_node_expect(&item, LS_NODE_OBJECT, err));
        LS_TRY(ls_node_need(&item, "name", &name, err));
        LS_TRY(ls_node_string(&name, &called, err));
        LS_TRY(ls_node_need(&item, "template", &text, err));
        to = strcmp(called, "default") == 0 ? &chat->usual : strcmp(called, "tool_use") == 0 ? &chat->with_tools : NULL;
        if (to == NULL || *to != NULL) continue;
        snprintf(place, sizeof place, "%s: chat_template '%.60s'", path, called);
        LS_TRY(parse_node(chat, to, &text, place, err));
    }
    return LS_OK;
}

static ls_status read_chat_config(ls_chat *chat, const ls_node *root, const char *path, ls_error *err) {
    char place[PATH_BYTES + 100];
    ls_node value;
    LS_TRY(read_tokens(chat, root, err));
    if (chat->has_files || !ls_node_get_some(root, "chat_template", &value)) return LS_OK;
    if (ls_node_kind_of(&value) == LS_NODE_ARRAY) return read_named(chat, &value, path, err);
    snprintf(place, sizeof place, "%s: chat_template", path);
    return parse_node(chat, &chat->usual, &value, place, err);
}

/* A JSON file of the directory, if it is there: its special tokens and, of tokenizer_config.json, its template. */
static ls_status read_json_file(ls_chat *chat, const char *directory, const char *file, bool is_config, ls_error *err) {
    char path[PATH_BYTES], *text = NULL;
    int64_t bytes = 0;
    ls_json_doc *doc = NULL;
    ls_node root;
    ls_status status;
    snprintf(path, sizeof path, "%s/%s", directory, file);
    if (!ls_file_exists(path)) return LS_OK;
    LS_TRY_DONE(ls_file_read(&text, &bytes, path, CONFIG_BYTES_MAX, err));
    LS_TRY_DONE(ls_json_doc_open(&doc, text, bytes, path, err));
    root = ls_json_root(doc);
    status = is_config ? read_chat_config(chat, &root, path, err) : read_tokens(chat, &root, err);
done:
    ls_json_doc_free(doc);
    free(text);
    return status;
}

static ls_status read_template_file(ls_chat *chat, ls_template **out, const char *path, ls_error *err) {
    char *text = NULL;
    int64_t bytes = 0;
    ls_status status;
    LS_TRY_DONE(ls_file_read(&text, &bytes, path, LS_TEMPLATE_BYTES_MAX, err));
    ls_template_free(*out);
    *out = NULL;
    chat->has_files = true;
    status = parse_text(chat, out, text, bytes, path, err);
done:
    free(text);
    return status;
}

/* Whether the directory, if there is one, holds a template of any name. */
static bool holds_templates(const char *path) {
    static const char end[] = ".jinja";
    DIR *directory = opendir(path);
    const struct dirent *entry;
    bool found = false;
    if (directory == NULL) return false;
    while (!found && (entry = readdir(directory)) != NULL) {
        const size_t n = strlen(entry->d_name), m = sizeof end - 1;
        found = n >= m && strcmp(entry->d_name + n - m, end) == 0;
    }
    closedir(directory);
    return found;
}

/* chat_template.jinja, and those with names in additional_chat_templates: a default among them counts instead of it. */
static ls_status read_template_files(ls_chat *chat, const char *directory, ls_error *err) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/chat_template.jinja", directory);
    if (ls_file_exists(path)) LS_TRY(read_template_file(chat, &chat->usual, path, err));
    snprintf(path, sizeof path, "%s/" ADDITIONAL, directory);
    chat->has_files = chat->has_files || holds_templates(path);
    snprintf(path, sizeof path, "%s/" ADDITIONAL "/default.jinja", directory);
    if (ls_file_exists(path)) LS_TRY(read_template_file(chat, &chat->usual, path, err));
    snprintf(path, sizeof path, "%s/" ADDITIONAL "/tool_use.jinja", directory);
    if (ls_file_exists(path)) LS_TRY(read_template_file(chat, &chat->with_tools, path, err));
    return LS_OK;
}

/* The time that templates see. */
static ls_status read_time(int64_t *out, ls_error *err) {
    const char *fixed = getenv("SOURCE_DATE_EPOCH");
    char *end;
    *out = (int64_t)time(NULL);
    if (fixed == NULL || fixed[0] == '\0') return LS_OK;
    *out = strtoll(fixed, &end, 10);
    if (*end == '\0' && *out >= 0) return LS_OK;
    return LS_FAIL(err, LS_ERR_ARG, "SOURCE_DATE_EPOCH: '%.60s' is no number of seconds", fixed);
}

ls_status ls_chat_open(ls_chat **out, const char *directory, const char *file, ls_error *err) {
    ls_chat *chat = calloc(1, sizeof *chat);
    char hint[LS_HUB_HINT_MAX], *home = NULL;
    ls_status status;
    *out = NULL;
    if (chat == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "chat template");
    LS_TRY_DONE(ls_adapter_home(&home, directory, err)); /* of an adapter, the model that it is of */
    directory = home;
    LS_TRY_DONE(read_time(&chat->now, err));
    if (file != NULL)
        LS_TRY_DONE(read_template_file(chat, &chat->usual, file, err));
    else
        LS_TRY_DONE(read_template_files(chat, directory, err));
    LS_TRY_DONE(read_json_file(chat, directory, "tokenizer_config.json", true, err));
    LS_TRY_DONE(read_json_file(chat, directory, "special_tokens_map.json", false, err));
    if (chat->usual == NULL) {
        status = LS_FAIL(err, LS_ERR_ARG,
                         "%s: messages need a chat template: no chat_template.jinja, no " ADDITIONAL
                         "/default.jinja, and %s%s",
                         directory,
                         chat->has_files ? "other templates there, beside which that of tokenizer_config.json does "
                                           "not count"
                                         : "no chat_template that is a text or named 'default' in "
                                           "tokenizer_config.json",
                         ls_file_exists(directory) ? "" : ls_hub_hint(hint, directory));
        goto done;
    }
    *out = chat;
    chat = NULL;
done:
    ls_chat_free(chat);
    free(home);
    return status;
}

/* ---- rendering ---- */

/* A conversation's parts. Nodes point to each other, so it stays where it is. */
typedef struct conversation {
    ls_node messages, tools, documents, more;
    ls_json_doc *read; /* the messages as the template reads them, where these are others */
    ls_node read_root;
    bool has_tools, has_documents;
    ls_template_variable variables[VARIABLES_MAX];
    ls_node values[VARIABLES_MAX]; /* of chat_template_kwargs */
    int64_t n;
} conversation;

static ls_status add_variable(conversation *c, ls_template_variable variable, ls_error *err) {
    if (c->n == VARIABLES_MAX)
        return LS_FAIL(err, LS_ERR_CAPACITY, "more than %d variables of a chat template", VARIABLES_MAX);
    c->variables[c->n++] = variable;
    return LS_OK;
}

static ls_status check_messages(const ls_node *messages, ls_error *err) {
    LS_TRY(ls_node_expect(messages, LS_NODE_ARRAY, err));
    if (ls_node_count(messages) == 0) return ls_node_fail(messages, LS_ERR_FORMAT, err, "is empty");
    for (int64_t i = 0; i < ls_node_count(messages); i++) {
        const ls_node message = ls_node_at(messages, i);
        const char *text;
        ls_node role;
        LS_TRY(ls_node_expect(&message, LS_NODE_OBJECT, err));
        LS_TRY(ls_node_need(&message, "role", &role, err));
        LS_TRY(ls_node_string(&role, &text, err));
    }
    return LS_OK;
}

static ls_status add_more(conversation *c, const ls_node *root, ls_error *err) {
    void *iterator = NULL;
    ls_node child;
    if (!ls_node_get_some(root, "chat_template_kwargs", &c->more)) return LS_OK;
    LS_TRY(ls_node_expect(&c->more, LS_NODE_OBJECT, err));
    while (ls_node_next(&c->more, &iterator, &child)) {
        if (c->n == VARIABLES_MAX) return ls_node_fail(&c->more, LS_ERR_CAPACITY, err, "has too many members");
        c->values[c->n] = child;
        LS_TRY(add_variable(
            c, (ls_template_variable){.name = child.key, .kind = LS_TEMPLATE_NODE, .node = &c->values[c->n]}, err));
    }
    return LS_OK;
}

static const ls_template *template_of(const ls_chat *chat, const conversation *c) {
    return c->has_tools && chat->with_tools != NULL ? chat->with_tools : chat->usual;
}

static ls_status read_messages(conversation *c, const ls_chat *chat, ls_error *err) {
    const bool reads_parts = ls_template_reads_parts(template_of(chat, c));
    LS_TRY(ls_chat_messages_read(&c->read, &c->messages, reads_parts, err));
    if (c->read == NULL) return LS_OK;
    c->read_root = ls_json_root(c->read);
    return ls_node_need(&c->read_root, "messages", &c->messages, err);
}

/* The variables; the first is messages, the second the generation prompt. */
static ls_status gather(conversation *c, const ls_chat *chat, const ls_node *root, ls_error *err) {
    LS_TRY(ls_node_need(root, "messages", &c->messages, err));
    LS_TRY(check_messages(&c->messages, err));
    LS_TRY(add_variable(
        c,
        (ls_template_variable){.name = "messages", .kind = LS_TEMPLATE_NODE, .node = &c->messages, .is_messages = true},
        err));
    LS_TRY(add_variable(c, (ls_template_variable){.name = "add_generation_prompt", .kind = LS_TEMPLATE_BOOL}, err));
    c->has_tools = ls_node_get_some(root, "tools", &c->tools);
    LS_TRY(read_messages(c, chat, err));
    c->has_documents = ls_node_get_some(root, "documents", &c->documents);
    if (c->has_tools) LS_TRY(ls_node_expect(&c->tools, LS_NODE_ARRAY, err));
    if (c->has_documents) LS_TRY(ls_node_expect(&c->documents, LS_NODE_ARRAY, err));
    for (int64_t i = 0; i < chat->n_tokens; i++)
        LS_TRY(add_variable(c,
                            (ls_template_variable){
                                .name = chat->tokens[i].name, .kind = LS_TEMPLATE_TEXT, .text = chat->tokens[i].text},
                            err));
    return add_more(c, root, err);
}

/* What a variable that is not there is to templates: None, which is not undefined. */
static ls_status add_absent(conversation *c, ls_json_doc **doc, ls_node *none, ls_error *err) {
    ls_node root;
    LS_TRY(ls_json_doc_open(doc, "{\"none\":null}", 13, "none", err));
    root = ls_json_root(*doc);
    if (!ls_node_get(&root, "none", none)) return LS_FAIL(err, LS_ERR_NOMEM, "none");
    none->parent = NULL;
    LS_TRY(add_variable(
        c, (ls_template_variable){.name = "tools", .kind = LS_TEMPLATE_NODE, .node = c->has_tools ? &c->tools : none},
        err));
    return add_variable(
        c,
        (ls_template_variable){
            .name = "documents", .kind = LS_TEMPLATE_NODE, .node = c->has_documents ? &c->documents : none},
        err);
}

/* A template that wants content where there is none is told with the message. */
static void blame_message(const conversation *c, ls_error *err) {
    ls_error said;
    ls_node content;
    if (err == NULL || strstr(err->text, "'content' is undefined") == NULL) return;
    said = *err;
    for (int64_t i = 0; i < ls_node_count(&c->messages); i++) {
        const ls_node message = ls_node_at(&c->messages, i);
        if (ls_node_get_some(&message, "content", &content)) continue;
        ls_error_set(err, said.status, "%s: messages[%lld] has none", said.text, (long long)i);
        return;
    }
}

/* Renders the first `count` messages (0: all). */
static ls_status render(const ls_chat *chat, conversation *c, int64_t count, bool add_prompt, ls_template_output *out,
                        ls_error *err) {
    ls_status status;
    c->variables[0].first = count;
    c->variables[1].truth = add_prompt;
    status = ls_template_render(template_of(chat, c), c->variables, c->n, chat->now, NULL, out, err);
    if (status != LS_OK) blame_message(c, err);
    return status;
}

static ls_status render_node(const ls_chat *chat, const ls_node *root, bool add_prompt, ls_template_output *out,
                             ls_error *err) {
    conversation *c = calloc(1, sizeof *c);
    ls_json_doc *doc = NULL;
    ls_node none;
    ls_status status;
    memset(out, 0, sizeof *out);
    if (c == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "conversation");
    LS_TRY_DONE(gather(c, chat, root, err));
    LS_TRY_DONE(add_absent(c, &doc, &none, err));
    status = render(chat, c, 0, add_prompt, out, err);
done:
    ls_json_doc_free(doc);
    ls_json_doc_free(c->read);
    free(c);
    return status;
}

ls_status ls_chat_render(const ls_chat *chat, const ls_node *root, bool add_prompt, ls_template_output *out,
                         ls_error *err) {
    return render_node(chat, root, add_prompt, out, err);
}

ls_status ls_chat_render_text(const ls_chat *chat, const char *json, int64_t bytes, const char *name, bool add_prompt,
                              ls_template_output *out, ls_error *err) {
    ls_json_doc *doc = NULL;
    ls_node root;
    ls_status status;
    memset(out, 0, sizeof *out);
    LS_TRY_DONE(ls_json_doc_open(&doc, json, bytes, name, err));
    root = ls_json_root(doc);
    status = render_node(chat, &root, add_prompt, out, err);
done:
    ls_json_doc_free(doc);
    return status;
}

/* ---- what is learnt ---- */

static bool is_assistant(const ls_node *messages, int64_t i) {
    const ls_node message = ls_node_at(messages, i);
    const char *text;
    ls_node role;
    return ls_node_get_some(&message, "role", &role) && ls_node_string(&role, &text, NULL) == LS_OK &&
           strcmp(text, "assistant") == 0;
}

/* The length of the rendering of the first `count` messages, which must begin that of all. */
static ls_status measure_messages(const ls_chat *chat, conversation *c, int64_t count, bool add_prompt,
                                  const ls_template_output *whole, int64_t *bytes, ls_error *err) {
    ls_template_output part = {0};
    ls_status status;
    *bytes = 0;
    if (count == 0 && !add_prompt) return LS_OK;
    LS_TRY_DONE(render(chat, c, count, add_prompt, &part, err));
    *bytes = part.bytes;
    if (part.bytes > whole->bytes || memcmp(part.text, whole->text, (size_t)part.bytes) != 0)
        status =
            ls_node_fail(&c->messages, LS_ERR_UNSUPPORTED, err,
                         "the chat template writes the first %lld messages%s otherwise when more follow, and marks "
                         "nothing with {%% generation %%}: what the assistant says cannot be told apart",
                         (long long)count, add_prompt ? " and the generation prompt" : "");
done:
    ls_template_output_deinit(&part);
    return status;
}

static ls_status find_spans(const ls_chat *chat, conversation *c, ls_template_output *whole, ls_error *err) {
    const int64_t n = ls_node_count(&c->messages);
    LS_TRY(ls_array_alloc((void **)&whole->spans, n, sizeof *whole->spans, "spans", err));
    for (int64_t i = 0; i < n; i++) {
        ls_template_span span;
        if (!is_assistant(&c->messages, i)) continue;
        if (i == 0)
            return ls_node_fail(&c->messages, LS_ERR_UNSUPPORTED, err,
                                "the first message is the assistant's, and the "
                                "chat template marks nothing with {%% generation %%}");
        LS_TRY(measure_messages(chat, c, i, true, whole, &span.begin, err));
        LS_TRY(measure_messages(chat, c, i + 1, false, whole, &span.end, err));
        if (span.begin < span.end) whole->spans[whole->n_spans++] = span;
    }
    return LS_OK;
}

/* Spans that a template marked. */
static ls_status check_spans(const ls_node *messages, const ls_template_output *whole, ls_error *err) {
    if (whole->n_spans == 0)
        return ls_node_fail(messages, LS_ERR_FORMAT, err, "the assistant says nothing that could be learnt");
    for (int64_t i = 1; i < whole->n_spans; i++)
        if (whole->spans[i].begin < whole->spans[i - 1].end)
            return ls_node_fail(messages, LS_ERR_UNSUPPORTED, err, "{%% generation %%} blocks lie within each other");
    return LS_OK;
}

static ls_status render_learnt(const ls_chat *chat, conversation *c, ls_template_output *out, ls_error *err) {
    LS_TRY(render(chat, c, 0, false, out, err));
    if (out->n_unplaced > 0)
        return ls_node_fail(&c->messages, LS_ERR_UNSUPPORTED, err,
                            "the chat template has {%% generation %%} within a macro, set or filter: where its text "
                            "comes to stand is not known");
    if (!ls_template_marks_generation(template_of(chat, c))) {
        free(out->spans);
        out->spans = NULL;
        LS_TRY(find_spans(chat, c, out, err));
    }
    return check_spans(&c->messages, out, err);
}

#define REMOVE_IT "remove them, and mark what is learnt in the template, by {%% generation %%}"

/* Marks of other stacks that say what is learnt: nothing here reads them, and learning what they leave out would go
 * unseen. */
static ls_status check_marks(const ls_node *root, ls_error *err) {
    static const char *const of_rows[] = {"message_loss_mask", "loss_mask"};
    static const char *const of_messages[] = {"weight",    "train",     "training",
                                              "trainable", "loss_mask", "message_loss_mask"};
    ls_node messages, mark;
    for (size_t i = 0; i < sizeof of_rows / sizeof of_rows[0]; i++)
        if (ls_node_get_some(root, of_rows[i], &mark))
            return ls_node_fail(&mark, LS_ERR_UNSUPPORTED, err,
                                "says which messages are learnt; such marks are not used: " REMOVE_IT);
    if (!ls_node_get_some(root, "messages", &messages) || ls_node_kind_of(&messages) != LS_NODE_ARRAY) return LS_OK;
    for (int64_t m = 0; m < ls_node_count(&messages); m++) {
        const ls_node message = ls_node_at(&messages, m);
        if (ls_node_kind_of(&message) != LS_NODE_OBJECT) continue;
        for (size_t i = 0; i < sizeof of_messages / sizeof of_messages[0]; i++)
            if (ls_node_get_some(&message, of_messages[i], &mark))
                return ls_node_fail(&mark, LS_ERR_UNSUPPORTED, err,
                                    "says whether the message is learnt; such marks are not used: " REMOVE_IT);
    }
    return LS_OK;
}

ls_status ls_chat_render_learnt(const ls_chat *chat, const char *json, int64_t bytes, const char *name,
                                ls_template_output *out, ls_error *err) {
    conversation *c = calloc(1, sizeof *c);
    ls_json_doc *doc = NULL, *none_doc = NULL;
    ls_node root, none;
    ls_status status;
    memset(out, 0, sizeof *out);
    if (c == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "conversation");
    LS_TRY_DONE(ls_json_doc_open(&doc, json, bytes, name, err));
    root = ls_json_root(doc);
    LS_TRY_DONE(check_marks(&root, err));
    LS_TRY_DONE(gather(c, chat, &root, err));
    LS_TRY_DONE(add_absent(c, &none_doc, &none, err));
    status = render_learnt(chat, c, out, err);
done:
    if (status != LS_OK) ls_template_output_deinit(out);
    ls_json_doc_free(none_doc);
    ls_json_doc_free(c->read);
    ls_json_doc_free(doc);
    free(c);
    return status;
}

/* How many tokens of the whole are the text's first `bytes` bytes. */
static ls_status count_tokens(const ls_tokenizer *tokenizer, const char *text, int64_t bytes, const int32_t *ids,
                              int64_t n, int64_t *out, ls_error *err) {
    int32_t *part = NULL;
    int64_t n_part = 0;
    ls_status status;
    *out = 0;
    if (bytes == 0) return LS_OK;
    LS_TRY_DONE(ls_tokenizer_encode(tokenizer, text, bytes, false, &part, &n_part, err));
    *out = n_part;
    if (n_part > n || memcmp(part, ids, (size_t)n_part * sizeof *ids) != 0)
        status = LS_FAIL(err, LS_ERR_UNSUPPORTED,
                         "a token lies across the end of what the assistant says, at byte %lld of the text",
                         (long long)bytes);
done:
    free(part);
    return status;
}

ls_status ls_chat_encode(const ls_tokenizer *tokenizer, const ls_template_output *r, int32_t **ids, uint8_t **learnt,
                         int64_t *n, ls_error *err) {
    ls_status status;
    *ids = NULL;
    *learnt = NULL;
    LS_TRY_DONE(ls_tokenizer_encode(tokenizer, r->text, r->bytes, false, ids, n, err));
    LS_TRY_DONE(ls_array_alloc((void **)learnt, *n, 1, "tokens", err));
    for (int64_t i = 0; i < r->n_spans; i++) {
        int64_t begin, end;
        LS_TRY_DONE(count_tokens(tokenizer, r->text, r->spans[i].begin, *ids, *n, &begin, err));
        LS_TRY_DONE(count_tokens(tokenizer, r->text, r->spans[i].end, *ids, *n, &end, err));
        if (begin < end) memset(*learnt + begin, 1, (size_t)(end - begin));
    }
done:
    if (status != LS_OK) {
        free(*ids);
        free(*learnt);
        *ids = NULL;
        *learnt = NULL;
    }
    return status;
}
