/* Reading answers of reward sources. Owns the parsed document while it reads. */
#include "record/reward_json.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "json/json_node.h"

/* The length of a number that Python writes and JSON lacks, at text[0..bytes), or 0. */
static size_t odd_number(const char *text, size_t bytes) {
    static const char *const words[] = {"NaN", "Infinity", "-Infinity"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        const size_t n = strlen(words[i]);
        if (bytes >= n && memcmp(text, words[i], n) == 0) return n;
    }
    return 0;
}

/* A copy with such numbers as strings, which the errors then quote. NULL when there are none, or no memory. */
static char *quote_odd_numbers(const char *text, int64_t bytes, int64_t *copy_bytes) {
    const size_t n = bytes > 0 ? (size_t)bytes : 0;
    char *copy = malloc(2 * n + 1);
    size_t at = 0, used = 0;
    bool in_string = false, found = false;
    if (copy == NULL) return NULL;
    while (at < n) {
        const size_t odd = in_string ? 0 : odd_number(text + at, n - at);
        if (odd > 0) {
            copy[used++] = '"';
            memcpy(copy + used, text + at, odd);
            used += odd;
            copy[used++] = '"';
            at += odd;
            found = true;
            continue;
        }
        if (text[at] == '"') in_string = !in_string;
        if (in_string && text[at] == '\\' && at + 1 < n) copy[used++] = text[at++];
        copy[used++] = text[at++];
    }
    if (!found) {
        free(copy);
        return NULL;
    }
    *copy_bytes = (int64_t)used;
    return copy;
}

static ls_status open_doc(ls_json_doc **out, const char *text, int64_t bytes, const char *name, ls_error *err) {
    const ls_status status = ls_json_doc_open_exact(out, text, bytes, name, err);
    ls_status again = status;
    int64_t copy_bytes;
    char *copy;
    if (status == LS_OK || (copy = quote_odd_numbers(text, bytes, &copy_bytes)) == NULL) return status;
    again = ls_json_doc_open_exact(out, copy, copy_bytes, name, NULL);
    free(copy);
    return again == LS_OK ? LS_OK : status;
}

static ls_status read_id(int64_t *out, const ls_node *answer, ls_error *err) {
    ls_node id;
    const char *text;
    int64_t bytes;
    *out = -1;
    if (!ls_node_get_some(answer, "id", &id)) return LS_OK;
    if (ls_node_kind_of(&id) == LS_NODE_INT) return ls_node_int(&id, 0, INT64_MAX, out, err);
    LS_TRY(ls_node_text(&id, &text, &bytes, err));
    if (bytes < 1 || bytes > 18 || strspn(text, "0123456789") != (size_t)bytes)
        return ls_node_fail(&id, LS_ERR_FORMAT, err, "\"%.40s\" is not one of the ids that were given", text);
    *out = strtoll(text, NULL, 10);
    return LS_OK;
}

/* Texts from outside go into messages of one line. */
static void copy_line(char out[LS_REWARD_ERROR_MAX], const char *text, int64_t bytes) {
    const size_t n = bytes < LS_REWARD_ERROR_MAX - 1 ? (size_t)bytes : LS_REWARD_ERROR_MAX - 1;
    for (size_t i = 0; i < n; i++) out[i] = (unsigned char)text[i] < 0x20 ? ' ' : text[i];
    out[n] = '\0';
}

static void call_broken(ls_reward_answer *out, const char *words) {
    if (out->is_broken) return;
    out->is_broken = true;
    out->broken = words;
}

static bool are_messages(const ls_node *list) {
    const char *text;
    if (ls_node_kind_of(list) != LS_NODE_ARRAY || ls_node_count(list) == 0) return false;
    for (int64_t i = 0; i < ls_node_count(list); i++) {
        const ls_node message = ls_node_at(list, i);
        ls_node role;
        if (ls_node_kind_of(&message) != LS_NODE_OBJECT || !ls_node_get_some(&message, "role", &role) ||
            ls_node_string(&role, &text, NULL) != LS_OK)
            return false;
    }
    return true;
}

/* Messages, and tools with them, as one object. */
static ls_status read_messages(ls_reward_answer *out, const ls_node *answer, const ls_node *messages, ls_error *err) {
    char *list = NULL, *tools = NULL;
    ls_node value;
    int64_t bytes;
    ls_status status;
    if (!are_messages(messages)) {
        call_broken(out, "messages is no list of messages that have a role");
        return LS_OK;
    }
    if (ls_node_get_some(answer, "tools", &value) && ls_node_kind_of(&value) != LS_NODE_ARRAY) {
        call_broken(out, "tools is no list");
        return LS_OK;
    }
    LS_TRY_DONE(ls_node_dump(messages, &list, err));
    if (ls_node_get_some(answer, "tools", &value)) LS_TRY_DONE(ls_node_dump(&value, &tools, err));
    bytes = (int64_t)(strlen(list) + (tools != NULL ? strlen(tools) : 0)) + 32;
    LS_TRY_DONE(ls_array_alloc((void **)&out->text, bytes, 1, "messages", err));
    out->text_bytes = snprintf(out->text, (size_t)bytes, "{\"messages\":%s%s%s}", list,
                               tools != NULL ? ",\"tools\":" : "", tools != NULL ? tools : "");
    out->are_messages = true;
done:
    free(list);
    free(tools);
    return status;
}

/* What an environment says besides a reward. */
static ls_status read_turn(ls_reward_answer *out, const ls_node *answer, ls_error *err) {
    const char *text;
    ls_node value, other;
    const bool has_messages = ls_node_get_some(answer, "messages", &other);
    const bool has_text = ls_node_get_some(answer, "observation", &value) || ls_node_get_some(answer, "prompt", &value);
    ls_node done;
    if (ls_node_get_some(answer, "done", &done)) {
        out->is_turn = true;
        if (ls_node_bool(&done, &out->done, NULL) != LS_OK) call_broken(out, "done is not true or false");
    }
    if (!has_messages && !has_text) return LS_OK;
    out->is_turn = true;
    if (has_messages && has_text) {
        call_broken(out, "there are messages and a prompt or observation; one of them says what is said");
        return LS_OK;
    }
    if (has_messages) return read_messages(out, answer, &other, err);
    if (ls_node_text(&value, &text, &out->text_bytes, NULL) != LS_OK) {
        call_broken(out, "prompt or observation is no text");
        return LS_OK;
    }
    return ls_text_copy(&out->text, text, out->text_bytes, err);
}

static void read_note(ls_reward_answer *out, const ls_node *answer) {
    const char *text;
    int64_t bytes;
    ls_node note;
    if (ls_node_get_some(answer, "note", &note) && ls_node_kind_of(&note) == LS_NODE_TEXT &&
        ls_node_text(&note, &text, &bytes, NULL) == LS_OK)
        copy_line(out->note, text, bytes);
}

static void read_value(ls_reward_answer *out, const ls_node *answer) {
    ls_node value;
    char *shown = NULL;
    const char *text;
    int64_t bytes;
    if (ls_node_get_some(answer, "error", &value)) {
        out->is_turn = false;
        if (ls_node_kind_of(&value) == LS_NODE_TEXT && ls_node_text(&value, &text, &bytes, NULL) == LS_OK)
            copy_line(out->error, text, bytes);
        if (out->error[0] == '\0') snprintf(out->error, sizeof out->error, "an error without words");
        return;
    }
    if (!ls_node_get(answer, "reward", &value)) {
        snprintf(out->error, sizeof out->error, "the answer has neither reward nor error");
        return;
    }
    if (ls_node_kind_of(&value) == LS_NODE_INT || ls_node_kind_of(&value) == LS_NODE_REAL) {
        const double number = ls_node_number(&value);
        if (isfinite(number) && fabs(number) <= (double)FLT_MAX) {
            out->ok = true;
            out->reward = number;
            return;
        }
        if (isfinite(number)) { /* learning is in float32, where it would be an infinity */
            snprintf(out->error, sizeof out->error, "reward: %.6g is beyond float32", number);
            return;
        }
    }
    out->is_none = ls_node_kind_of(&value) == LS_NODE_NULL;
    if (ls_node_dump(&value, &shown, NULL) != LS_OK) shown = NULL;
    snprintf(out->error, sizeof out->error, "reward: %.60s, expected a finite number", shown != NULL ? shown : "?");
    free(shown);
}

static ls_status read_answer(ls_reward_answer *out, const ls_node *node, ls_error *err) {
    ls_node reward;
    memset(out, 0, sizeof *out);
    LS_TRY(ls_node_expect(node, LS_NODE_OBJECT, err));
    LS_TRY(read_id(&out->id, node, err));
    LS_TRY(read_turn(out, node, err));
    read_value(out, node);
    read_note(out, node);
    if (!out->ok && ls_node_get_some(node, "reward", &reward)) out->is_turn = false; /* it is no number */
    return LS_OK;
}

ls_status ls_reward_answer_parse(ls_reward_answer *out, const char *text, int64_t bytes, const char *name,
                                 ls_error *err) {
    ls_json_doc *doc = NULL;
    ls_node root;
    ls_status status;
    LS_TRY_DONE(open_doc(&doc, text, bytes, name, err));
    root = ls_json_root(doc);
    status = read_answer(out, &root, err);
    if (status != LS_OK) free(out->text);
done:
    ls_json_doc_free(doc);
    return status;
}

ls_status ls_reward_answers_parse(ls_reward_answer *out, int64_t *n, int64_t n_max, const char *text, int64_t bytes,
                                  const char *name, ls_error *err) {
    ls_json_doc *doc = NULL;
    ls_node root, items;
    int64_t n_read = 0;
    ls_status status;
    *n = 0;
    LS_TRY_DONE(open_doc(&doc, text, bytes, name, err));
    root = ls_json_root(doc);
    LS_TRY_DONE(ls_node_need_kind(&root, "items", LS_NODE_ARRAY, &items, err));
    if (ls_node_count(&items) > n_max) {
        status = ls_node_fail(&items, LS_ERR_FORMAT, err, "%lld answers to %lld items",
                              (long long)ls_node_count(&items), (long long)n_max);
        goto done;
    }
    for (int64_t i = 0; i < ls_node_count(&items); i++) {
        const ls_node item = ls_node_at(&items, i);
        n_read = i + 1;
        LS_TRY_DONE(read_answer(&out[i], &item, err));
        if (out[i].id < 0) {
            status = ls_node_fail(&item, LS_ERR_FORMAT, err, "'id' is missing");
            goto done;
        }
    }
    *n = ls_node_count(&items);
done:
    for (int64_t i = 0; status != LS_OK && i < n_read; i++) free(out[i].text);
    ls_json_doc_free(doc);
    return status;
}
