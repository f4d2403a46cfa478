/* Lines of problems; owns what it hands out until it is freed. */
#define _POSIX_C_SOURCE 200809L
#include "record/data_lines.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/fnv.h"
#include "base/mem.h"
#include "json/json_node.h"

enum { LINE_MAX_BYTES = 1 << 28, DEPTH_MAX = 8, NAME_BYTES_MAX = 256 };

static const char *const prompt_names[] = {"prompt", "question", "problem", "input", "instruction", NULL};
static const char *const answer_names[] = {
    "answer", "completion", "solution", "output", "target", "label", "ground_truth", "reward_model.ground_truth", NULL};
static const char *const id_names[] = {"id", "task_id", "unique_id", NULL};

static void line_deinit(ls_data_line *line) {
    free(line->id);
    free(line->prompt);
    free(line->chat);
    free(line->answer);
    free(line->whole);
}

void ls_data_lines_free(ls_data_line *lines, int64_t n) {
    for (int64_t i = 0; i < n; i++) line_deinit(&lines[i]);
    free(lines);
}

/* ---- fields ---- */

/* A member by its name or, where the object has none of that name, by a path; nodes[] hold the way to it. The names of
 * the way stay in `parts`. */
static bool find_path(const ls_node *root, const char *name, char parts[NAME_BYTES_MAX], ls_node nodes[DEPTH_MAX],
                      ls_node *out) {
    const ls_node *at = root;
    char *part = parts;
    if (ls_node_get_some(root, name, out)) return true;
    if (strchr(name, '.') == NULL || strlen(name) >= NAME_BYTES_MAX) return false;
    memcpy(parts, name, strlen(name) + 1);
    for (int depth = 0; depth < DEPTH_MAX; depth++) {
        char *dot = strchr(part, '.');
        if (dot != NULL) *dot = '\0';
        if (ls_node_kind_of(at) != LS_NODE_OBJECT || !ls_node_get_some(at, part, &nodes[depth])) return false;
        at = &nodes[depth];
        if (dot == NULL) {
            *out = nodes[depth];
            return true;
        }
        part = dot + 1;
    }
    return false;
}

typedef struct found_field {
    char parts[NAME_BYTES_MAX];
    ls_node nodes[DEPTH_MAX], node;
} found_field;

/* The named field, or the first of the usual ones that is there. */
static bool find_field(found_field *out, const ls_node *root, const char *name, const char *const *usual) {
    if (name != NULL && name[0] != '\0') return find_path(root, name, out->parts, out->nodes, &out->node);
    for (int i = 0; usual[i] != NULL; i++)
        if (find_path(root, usual[i], out->parts, out->nodes, &out->node)) return true;
    return false;
}

/* Rows of Alpaca's form: `input` is what the instruction is about, and neither is the prompt alone. An empty input is
 * none. */
static ls_status find_instruction(found_field *out, const ls_node *root, bool *found, ls_error *err) {
    static const char *const whole_names[] = {"prompt", "question", "problem", NULL};
    ls_node input;
    const char *text;
    int64_t bytes = 0;
    *found = false;
    if (find_field(out, root, NULL, whole_names) || !ls_node_get_some(root, "instruction", &out->node)) return LS_OK;
    if (ls_node_get_some(root, "input", &input)) {
        LS_TRY(ls_node_text(&input, &text, &bytes, err));
        if (bytes > 0)
            return ls_node_fail(&input, LS_ERR_UNSUPPORTED, err,
                                "stands beside 'instruction': two names of a prompt in one line; write both into "
                                "'prompt', or say with data_prompt which one counts");
    }
    *found = true;
    return LS_OK;
}

/* Whether the last message is the assistant's. */
static bool is_answered(const ls_node *messages) {
    const int64_t n = ls_node_count(messages);
    const char *role;
    ls_node last, node;
    if (n == 0) return false;
    last = ls_node_at(messages, n - 1);
    return ls_node_kind_of(&last) == LS_NODE_OBJECT && ls_node_get_some(&last, "role", &node) &&
           ls_node_string(&node, &role, NULL) == LS_OK && strcmp(role, "assistant") == 0;
}

/* {"messages": .., "tools": .. and so on}: what a template needs of the line, in this order. */
static ls_status write_chat(ls_data_line *out, const ls_node *root, const ls_node *messages, ls_error *err) {
    static const char *const names[] = {"messages",          "tools",    "documents", "chat_template_kwargs",
                                        "message_loss_mask", "loss_mask"};
    enum { N_NAMES = sizeof names / sizeof names[0] };
    char *dumps[N_NAMES] = {NULL};
    int64_t total = 2, at = 0;
    ls_status status = LS_OK;
    for (int i = 0; i < N_NAMES; i++) {
        ls_node node = *messages;
        if (i > 0 && !ls_node_get_some(root, names[i], &node)) continue;
        LS_TRY_DONE(ls_node_dump(&node, &dumps[i], err));
        total += (int64_t)(strlen(dumps[i]) + strlen(names[i])) + 4;
    }
    LS_TRY_DONE(ls_array_alloc((void **)&out->prompt, total + 1, 1, "prompt", err));
    for (int i = 0; i < N_NAMES; i++) {
        if (dumps[i] == NULL) continue;
        at += snprintf(out->prompt + at, (size_t)(total + 1 - at), "%c\"%s\":", i == 0 ? '{' : ',', names[i]);
        memcpy(out->prompt + at, dumps[i], strlen(dumps[i]));
        at += (int64_t)strlen(dumps[i]);
    }
    out->prompt[at++] = '}';
    out->prompt_bytes = at;
    out->is_chat = true;
    out->is_answered = is_answered(messages);
done:
    for (int i = 0; i < N_NAMES; i++) free(dumps[i]);
    return status;
}

/* A prompt that is a list of objects. */
static bool are_messages(const ls_node *node) {
    ls_node first;
    if (ls_node_kind_of(node) != LS_NODE_ARRAY || ls_node_count(node) == 0) return false;
    first = ls_node_at(node, 0);
    return ls_node_kind_of(&first) == LS_NODE_OBJECT;
}

/* A conversation that somebody wrote as text: as a prompt the model would see braces and quotes. */
static ls_status check_no_messages(const ls_node *prompt, const char *text, int64_t bytes, ls_error *err) {
    static const char before[] = "{\"messages\":";
    const int64_t n = (int64_t)sizeof before - 1;
    ls_json_doc *doc = NULL;
    char *wrapped = NULL;
    int64_t at = 0;
    bool found = false;
    while (at < bytes && (text[at] == ' ' || text[at] == '\n')) at++;
    if (at == bytes || text[at] != '[') return LS_OK;
    LS_TRY(ls_array_alloc((void **)&wrapped, n + bytes + 1, 1, "prompt", err));
    memcpy(wrapped, before, (size_t)n);
    memcpy(wrapped + n, text, (size_t)bytes);
    wrapped[n + bytes] = '}';
    if (ls_json_doc_open(&doc, wrapped, n + bytes + 1, "prompt", NULL) == LS_OK) {
        const ls_node root = ls_json_root(doc);
        ls_node messages;
        found = ls_node_get_some(&root, "messages", &messages) && are_messages(&messages);
    }
    ls_json_doc_free(doc);
    free(wrapped);
    if (!found) return LS_OK;
    return ls_node_fail(prompt, LS_ERR_FORMAT, err,
                        "is the JSON text of messages; give the list itself, without quotes around it");
}

static ls_status read_prompt(ls_data_line *out, const ls_node *root, const ls_data_fields *fields, ls_error *err) {
    found_field f;
    const char *text;
    const bool is_named = fields->prompt != NULL && fields->prompt[0] != '\0';
    bool found = false;
    if (!is_named && ls_node_get_some(root, "messages", &f.node)) {
        LS_TRY(ls_node_expect(&f.node, LS_NODE_ARRAY, err));
        return write_chat(out, root, &f.node, err);
    }
    if (!is_named) LS_TRY(find_instruction(&f, root, &found, err));
    if (!found && !find_field(&f, root, fields->prompt, prompt_names)) {
        if (fields->prompt != NULL && fields->prompt[0] != '\0')
            return ls_node_fail(root, LS_ERR_FORMAT, err, "'%.60s' is missing", fields->prompt);
        return ls_node_fail(root, LS_ERR_FORMAT, err,
                            "none of prompt, question, problem, input, instruction is there, nor messages; "
                            "data_prompt names another field");
    }
    if (are_messages(&f.node)) return write_chat(out, root, &f.node, err);
    LS_TRY(ls_node_text(&f.node, &text, &out->prompt_bytes, err));
    if (out->prompt_bytes == 0) return ls_node_fail(&f.node, LS_ERR_FORMAT, err, "is empty");
    LS_TRY(check_no_messages(&f.node, text, out->prompt_bytes, err));
    return ls_text_copy(&out->prompt, text, out->prompt_bytes, err);
}

static ls_status read_answer(ls_data_line *out, const ls_node *root, const ls_data_fields *fields, ls_error *err) {
    found_field f;
    const char *text;
    if (!find_field(&f, root, fields->answer, answer_names)) {
        if (fields->answer != NULL && fields->answer[0] != '\0')
            return ls_node_fail(root, LS_ERR_FORMAT, err, "'%.60s' is missing", fields->answer);
        return LS_OK;
    }
    if (ls_node_kind_of(&f.node) != LS_NODE_TEXT) {
        LS_TRY(ls_node_dump(&f.node, &out->answer, err));
        out->is_list = ls_node_kind_of(&f.node) == LS_NODE_ARRAY;
        out->answer_bytes = (int64_t)strlen(out->answer);
        return LS_OK;
    }
    LS_TRY(ls_node_text(&f.node, &text, &out->answer_bytes, err));
    return ls_text_copy(&out->answer, text, out->answer_bytes, err);
}

static ls_status read_line_id(ls_data_line *out, const ls_node *root, const ls_data_fields *fields, ls_error *err) {
    found_field f;
    char text[32];
    const char *string;
    int64_t number = 0;
    if (!find_field(&f, root, fields->id, id_names)) {
        const uint64_t digest = ls_fnv_mix(LS_FNV_START, out->prompt, out->prompt_bytes);
        if (fields->id != NULL && fields->id[0] != '\0')
            return ls_node_fail(root, LS_ERR_FORMAT, err, "'%.60s' is missing", fields->id);
        snprintf(text, sizeof text, "%016llx", (unsigned long long)digest);
        return ls_text_copy(&out->id, text, 16, err);
    }
    out->has_id = true;
    if (ls_node_kept(&f.node) != NULL && strpbrk(ls_node_kept(&f.node), ".eE") == NULL) {
        string = ls_node_kept(&f.node); /* a whole number beyond 64 bits */
    } else if (ls_node_kind_of(&f.node) == LS_NODE_INT) {
        LS_TRY(ls_node_int(&f.node, INT64_MIN, INT64_MAX, &number, err));
        snprintf(text, sizeof text, "%lld", (long long)number);
        return ls_text_copy(&out->id, text, (int64_t)strlen(text), err);
    } else {
        LS_TRY(ls_node_string(&f.node, &string, err));
    }
    if (string[0] == '\0' || strlen(string) > LS_DATA_ID_MAX)
        return ls_node_fail(&f.node, LS_ERR_FORMAT, err, "%zu bytes; an id has 1 to %d", strlen(string),
                            LS_DATA_ID_MAX);
    return ls_text_copy(&out->id, string, (int64_t)strlen(string), err);
}

static ls_status read_max_tokens(ls_data_line *out, const ls_node *root, const ls_data_fields *fields, ls_error *err) {
    static const char *const none[] = {NULL};
    found_field f;
    if (!find_field(&f, root, fields->max_tokens, none)) return LS_OK;
    return ls_node_int(&f.node, 1, LS_DATA_TOKENS_MAX, &out->max_tokens, err);
}

/* ---- lines ---- */

typedef struct line_list {
    ls_data_line *lines;
    int64_t n, cap;
} line_list;

/* What other trainers show their models beside the text; here it would be dropped. */
static ls_status check_media(const ls_node *root, ls_error *err) {
    static const char *const names[] = {"images", "image", "videos", "video", "audios", "audio"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        ls_node node;
        if (ls_node_get_some(root, names[i], &node) && ls_node_count(&node) > 0)
            return ls_node_fail(&node, LS_ERR_UNSUPPORTED, err, "the model reads text alone");
    }
    return LS_OK;
}

static ls_status add_line(line_list *list, const char *text, int64_t bytes, const char *name, int64_t number,
                          const ls_data_fields *fields, ls_error *err) {
    char place[1200];
    ls_json_doc *doc = NULL;
    ls_data_line *line;
    ls_node root;
    ls_status status;
    if (number == 1 && bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) { /* a byte order mark */
        text += 3;
        bytes -= 3;
    }
    if (ls_line_is_blank(text, bytes)) return LS_OK;
    snprintf(place, sizeof place, "%.1100s: line %lld", name, (long long)number);
    LS_TRY_DONE(ls_json_doc_open(&doc, text, bytes, place, err));
    root = ls_json_root(doc);
    LS_TRY_DONE(ls_array_grow((void **)&list->lines, &list->cap, list->n + 1, sizeof *list->lines, "lines", err));
    line = &list->lines[list->n++]; /* from here on the list frees it */
    *line = (ls_data_line){.line = number};
    LS_TRY_DONE(check_media(&root, err));
    LS_TRY_DONE(read_prompt(line, &root, fields, err));
    LS_TRY_DONE(read_answer(line, &root, fields, err));
    LS_TRY_DONE(read_line_id(line, &root, fields, err));
    LS_TRY_DONE(read_max_tokens(line, &root, fields, err));
    LS_TRY_DONE(ls_node_dump(&root, &line->whole, err));
done:
    ls_json_doc_free(doc);
    return status;
}

static int compare_ids(const void *a, const void *b) {
    const ls_data_line *const *x = a, *const *y = b;
    const int order = strcmp((*x)->id, (*y)->id);
    if (order != 0) return order;
    return (*x)->line < (*y)->line ? -1 : (*x)->line > (*y)->line;
}

/* Ids that were given are given once; the digest of a prompt may come again with its prompt. */
static ls_status check_ids(const line_list *list, const char *name, ls_error *err) {
    const ls_data_line **sorted = NULL;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&sorted, list->n, sizeof *sorted, "ids", err));
    for (int64_t i = 0; i < list->n; i++) sorted[i] = &list->lines[i];
    qsort((void *)sorted, (size_t)list->n, sizeof *sorted, compare_ids);
    for (int64_t i = 1; i < list->n && status == LS_OK; i++)
        if (sorted[i]->has_id && sorted[i - 1]->has_id && strcmp(sorted[i]->id, sorted[i - 1]->id) == 0)
            status = LS_FAIL(err, LS_ERR_FORMAT, "%s: line %lld: id: '%.200s' is also on line %lld", name,
                             (long long)sorted[i]->line, sorted[i]->id, (long long)sorted[i - 1]->line);
done:
    free((void *)sorted);
    return status;
}

static ls_status finish_lines(line_list *list, ls_data_line **out, int64_t *n, const char *name, ls_error *err) {
    if (list->n == 0) return LS_FAIL(err, LS_ERR_FORMAT, "%s: holds no line", name);
    LS_TRY(check_ids(list, name, err));
    *out = list->lines;
    *n = list->n;
    *list = (line_list){0};
    return LS_OK;
}

ls_status ls_data_lines_read(ls_data_line **out, int64_t *n, const char *path, const ls_data_fields *fields,
                             ls_error *err) {
    FILE *file = NULL;
    char *line = NULL;
    int64_t cap = 0, bytes;
    line_list list = {0};
    bool more = true;
    ls_status status;
    *out = NULL;
    *n = 0;
    if ((status = ls_file_stream(&file, path, err)) != LS_OK) return status;
    for (int64_t number = 1; more; number++) {
        if ((status = ls_line_read(file, &line, &cap, &bytes, LINE_MAX_BYTES, &more, err)) != LS_OK) {
            ls_error_prefix(err, "%s: line %lld", path, (long long)number);
            goto done;
        }
        if (more) LS_TRY_DONE(add_line(&list, line, bytes, path, number, fields, err));
    }
    status = finish_lines(&list, out, n, path, err);
done:
    ls_data_lines_free(list.lines, list.n);
    free(line);
    fclose(file);
    return status;
}

ls_status ls_data_lines_parse(ls_data_line **out, int64_t *n, const char *text, int64_t bytes, const char *name,
                              const ls_data_fields *fields, ls_error *err) {
    line_list list = {0};
    ls_status status = LS_OK;
    *out = NULL;
    *n = 0;
    for (int64_t at = 0, number = 1; at < bytes; number++) {
        const char *newline = memchr(text + at, '\n', (size_t)(bytes - at));
        const int64_t end = newline != NULL ? newline - text : bytes;
        LS_TRY_DONE(add_line(&list, text + at, end - at, name, number, fields, err));
        at = end + 1;
    }
    status = finish_lines(&list, out, n, name, err);
done:
    ls_data_lines_free(list.lines, list.n);
    return status;
}
