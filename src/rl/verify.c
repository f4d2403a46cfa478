/* Reading answers out of texts, and comparing them. Owns pattern and schema. */
#include "rl/verify.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "json/json_node.h"
#include "rl/number.h"
#include "rl/reward_source.h"
#include "text/json_schema.h"
#include "text/regex.h"

#define SCHEMA_BYTES_MAX (1 << 20)

struct ls_verify {
    ls_verify_kind kind;
    ls_regex *regex;        /* of the run, or NULL */
    ls_json_schema *schema; /* of the run, or NULL */
};

static const ls_reply nothing = {NULL, 0};

static bool is_letter(char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }
static bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }

static ls_reply trim(ls_reply r) {
    while (r.bytes > 0 && ls_is_space(r.text[0])) r = (ls_reply){r.text + 1, r.bytes - 1};
    while (r.bytes > 0 && ls_is_space(r.text[r.bytes - 1])) r.bytes--;
    return r;
}

static bool same(ls_reply a, ls_reply b) {
    return a.bytes == b.bytes && (a.bytes == 0 || memcmp(a.text, b.text, (size_t)a.bytes) == 0);
}

/* What stands behind the last place of a word, or nothing. */
static ls_reply behind_last(ls_reply r, const char *word, bool any_case) {
    const int64_t n = (int64_t)strlen(word);
    for (int64_t at = r.bytes - n; at >= 0; at--) {
        int64_t i = 0;
        while (i < n && (r.text[at + i] == word[i] || (any_case && (r.text[at + i] | 32) == word[i]))) i++;
        if (i == n) return (ls_reply){r.text + at + n, r.bytes - at - n};
    }
    return nothing;
}

/* ---- numbers ---- */

/* Up to the end of the line. */
static ls_reply first_line(ls_reply r) {
    const char *newline = r.bytes > 0 ? memchr(r.text, '\n', (size_t)r.bytes) : NULL;
    return newline != NULL ? (ls_reply){r.text, newline - r.text} : r;
}

/* Up to the brace that closes; all of it where none does. */
static ls_reply inside_braces(ls_reply r) {
    int64_t depth = 1;
    for (int64_t i = 0; i < r.bytes; i++) {
        depth += r.text[i] == '{' ? 1 : r.text[i] == '}' ? -1 : 0;
        if (depth == 0) return (ls_reply){r.text, i};
    }
    return r;
}

/* The number that an answer is, all of it, behind its mark where it has one. */
static bool answer_number(ls_number *out, ls_reply r) {
    const ls_reply marked = behind_last(r, "####", false), boxed = behind_last(r, "\\boxed{", false);
    if (marked.text != NULL) {
        const ls_reply line = first_line(marked);
        return ls_number_read(out, line.text, line.bytes);
    }
    if (boxed.text != NULL) r = inside_braces(boxed);
    return ls_number_read(out, r.text, r.bytes);
}

/* The number of a completion; none where its mark holds no single number. */
static bool completion_number(ls_number *out, ls_reply r) {
    const ls_reply marked = behind_last(r, "####", false), boxed = behind_last(r, "\\boxed{", false);
    if (marked.text != NULL) {
        const ls_reply line = trim(first_line(trim(marked)));
        if (line.bytes > 0)
            return ls_number_first(out, line.text, line.bytes) || ls_number_last(out, line.text, line.bytes);
    }
    if (boxed.text != NULL) {
        const ls_reply inside = inside_braces(boxed);
        return ls_number_read(out, inside.text, inside.bytes);
    }
    return ls_number_last(out, r.text, r.bytes);
}

static bool same_number(ls_reply completion, ls_reply answer) {
    ls_number a, b;
    return completion_number(&a, completion) && answer_number(&b, answer) && ls_number_equal(&a, &b);
}

/* ---- letters ---- */

static bool is_alone(ls_reply r, int64_t at) {
    const unsigned char before = at > 0 ? (unsigned char)r.text[at - 1] : ' ';
    const unsigned char behind = at + 1 < r.bytes ? (unsigned char)r.text[at + 1] : ' ';
    if (before >= 128 || behind >= 128 || before == '\'' || behind == '\'') return false;
    return !is_letter((char)before) && !ls_is_digit((char)before) && !is_letter((char)behind) &&
           !ls_is_digit((char)behind);
}

/* 'A' to 'Z', or 0. */
static char letter_of(ls_reply r) {
    const ls_reply tail = behind_last(r, "answer", true);
    int64_t letters = 0, at_letter = 0;
    for (int64_t i = 0; i < r.bytes; i++)
        if ((unsigned char)r.text[i] >= 128 || is_letter(r.text[i]) || ls_is_digit(r.text[i])) {
            letters++;
            at_letter = i;
        }
    if (letters == 1 && is_letter(r.text[at_letter])) return (char)(r.text[at_letter] & ~32);
    for (int64_t i = 0; i < tail.bytes; i++)
        if (is_upper(tail.text[i]) && is_alone(tail, i)) return tail.text[i];
    for (int64_t i = r.bytes; i-- > 0;)
        if (is_upper(r.text[i]) && is_alone(r, i)) return r.text[i];
    return 0;
}

/* ---- patterns and schemas ---- */

/* 1, 0, or -1 with a sentence where the pattern gives up. */
static int has_pattern(const ls_regex *regex, ls_reply completion, ls_reply answer, bool compare, ls_error *err) {
    ls_regex_search *search = NULL; /* each call its own: several threads may judge */
    int64_t begin, end;
    bool found = false;
    int result = -1;
    if (ls_regex_search_create(&search, regex, err) == LS_OK &&
        ls_regex_find(search, completion.text, completion.bytes, 0, &found, &begin, &end, err) == LS_OK) {
        result = found;
        if (found && compare && ls_regex_group(search, 1, &begin, &end))
            result = same(trim((ls_reply){completion.text + begin, end - begin}), trim(answer));
    }
    ls_regex_search_free(search);
    return result;
}

static int has_own_pattern(ls_reply completion, ls_reply answer, ls_error *err) {
    ls_regex *regex = NULL;
    int result = -1;
    if (ls_regex_compile_plain(&regex, answer.text, answer.bytes, err) == LS_OK)
        result = has_pattern(regex, completion, answer, false, err);
    ls_regex_free(regex);
    return result;
}

/* What stands between the first two lines that begin with ```, or all of it. */
static ls_reply without_fence(ls_reply r) {
    const char *open = NULL, *end = r.text + r.bytes;
    for (const char *line = r.text; line < end;) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        const char *next = newline != NULL ? newline + 1 : end;
        if (end - line >= 3 && memcmp(line, "```", 3) == 0) {
            if (open != NULL) return (ls_reply){open, line - open};
            open = next;
        }
        line = next;
    }
    return r;
}

static int is_of_form(const ls_verify *v, ls_reply completion, ls_reply answer, ls_error *err) {
    const ls_reply value = trim(without_fence(completion));
    ls_json_schema *own = NULL;
    int result = -1;
    if (v->schema != NULL) return ls_json_schema_accepts(v->schema, value.text, value.bytes, NULL);
    if (ls_json_schema_parse(&own, answer.text, answer.bytes, "answer", err) == LS_OK)
        result = ls_json_schema_accepts(own, value.text, value.bytes, NULL);
    ls_json_schema_free(own);
    return result;
}

/* ---- verifiers ---- */

ls_status ls_verify_open(ls_verify **out, ls_verify_kind kind, const char *pattern, const char *schema_path,
                         ls_error *err) {
    ls_verify *v = NULL;
    char *text = NULL;
    int64_t bytes;
    ls_status status;
    *out = NULL;
    LS_TRY_DONE(ls_array_alloc((void **)&v, 1, sizeof *v, "verifier", err));
    v->kind = kind;
    if (kind == LS_VERIFY_REGEX && pattern != NULL && pattern[0] != '\0') {
        if ((status = ls_regex_compile_plain(&v->regex, pattern, (int64_t)strlen(pattern), err)) != LS_OK) {
            ls_error_prefix(err, "reward_pattern");
            goto done;
        }
    }
    if (kind == LS_VERIFY_JSON && schema_path != NULL && schema_path[0] != '\0') {
        LS_TRY_DONE(ls_file_read(&text, &bytes, schema_path, SCHEMA_BYTES_MAX, err));
        LS_TRY_DONE(ls_json_schema_parse(&v->schema, text, bytes, schema_path, err));
    }
    *out = v;
    v = NULL;
done:
    free(text);
    ls_verify_close(v);
    return status;
}

void ls_verify_close(ls_verify *v) {
    if (v == NULL) return;
    ls_regex_free(v->regex);
    ls_json_schema_free(v->schema);
    free(v);
}

static ls_status check_pattern(ls_reply answer, ls_error *err) {
    ls_regex *regex = NULL;
    const ls_status status = ls_regex_compile_plain(&regex, answer.text, answer.bytes, err);
    ls_regex_free(regex);
    return status;
}

static ls_status check_schema(ls_reply answer, ls_error *err) {
    ls_json_schema *schema = NULL;
    const ls_status status = ls_json_schema_parse(&schema, answer.text, answer.bytes, "schema", err);
    ls_json_schema_free(schema);
    return status;
}

static ls_status check_one(const ls_verify *v, ls_reply answer, ls_error *err) {
    ls_number number;
    if (v->schema != NULL) return LS_OK; /* which says it all */
    if (v->regex != NULL && answer.text == NULL) return LS_OK;
    if (answer.text == NULL) return LS_FAIL(err, LS_ERR_FORMAT, "missing");
    switch (v->kind) {
        case LS_VERIFY_EXACT: return trim(answer).bytes > 0 ? LS_OK : LS_FAIL(err, LS_ERR_FORMAT, "is blank");
        case LS_VERIFY_NUMBER:
            return answer_number(&number, answer)
                       ? LS_OK
                       : LS_FAIL(err, LS_ERR_FORMAT,
                                 "'%.*s' is no single number; a formula or a list is judged by a reward of your own",
                                 (int)(answer.bytes < 80 ? answer.bytes : 80), answer.text);
        case LS_VERIFY_CHOICE:
            return letter_of(answer) != 0 ? LS_OK : LS_FAIL(err, LS_ERR_FORMAT, "has no letter that stands alone");
        case LS_VERIFY_REGEX: return v->regex != NULL ? LS_OK : check_pattern(answer, err);
        case LS_VERIFY_JSON: return check_schema(answer, err);
    }
    return LS_FAIL(err, LS_ERR_ARG, "verifier %d", (int)v->kind);
}

static int judge_one(const ls_verify *v, ls_reply completion, ls_reply answer, ls_error *err) {
    switch (v->kind) {
        case LS_VERIFY_EXACT: return same(trim(completion), trim(answer));
        case LS_VERIFY_NUMBER: return same_number(completion, answer);
        case LS_VERIFY_CHOICE: return letter_of(completion) == letter_of(answer);
        case LS_VERIFY_REGEX:
            return v->regex != NULL ? has_pattern(v->regex, completion, answer, answer.text != NULL, err)
                                    : has_own_pattern(completion, answer, err);
        case LS_VERIFY_JSON: return is_of_form(v, completion, answer, err);
    }
    return -1;
}

/* ---- lists of answers ---- */

typedef struct list {
    char *text; /* an object around it, which the reader wants */
    ls_json_doc *doc;
    ls_node list;
    char *number; /* of the item at hand, where it is one */
} list;

static ls_status open_list(list *l, ls_reply answer, ls_error *err) {
    static const char begin[] = "{\"list\":";
    const int64_t n = (int64_t)strlen(begin);
    ls_node root;
    LS_TRY(ls_array_alloc((void **)&l->text, n + answer.bytes + 2, 1, "list of answers", err));
    memcpy(l->text, begin, (size_t)n);
    memcpy(l->text + n, answer.text, (size_t)answer.bytes);
    l->text[n + answer.bytes] = '}';
    LS_TRY(ls_json_doc_open_exact(&l->doc, l->text, n + answer.bytes + 1, "answer", err));
    root = ls_json_root(l->doc);
    if (!ls_node_get(&root, "list", &l->list) || ls_node_kind_of(&l->list) != LS_NODE_ARRAY)
        return LS_FAIL(err, LS_ERR_FORMAT, "no list");
    return ls_node_count(&l->list) > 0 ? LS_OK : LS_FAIL(err, LS_ERR_FORMAT, "an empty list");
}

static void close_list(list *l) {
    free(l->number);
    free(l->text);
    if (l->doc != NULL) ls_json_doc_free(l->doc);
}

/* Item i, good until the next one. */
static ls_status list_item(list *l, int64_t i, ls_reply *out, ls_error *err) {
    const ls_node node = ls_node_at(&l->list, i);
    free(l->number);
    l->number = NULL;
    switch (ls_node_kind_of(&node)) {
        case LS_NODE_TEXT: return ls_node_text(&node, &out->text, &out->bytes, err);
        case LS_NODE_INT:
        case LS_NODE_REAL:
            LS_TRY(ls_node_dump(&node, &l->number, err));
            *out = (ls_reply){l->number, (int64_t)strlen(l->number)};
            return LS_OK;
        default: return LS_FAIL(err, LS_ERR_FORMAT, "[%lld]: a list of answers holds texts and numbers", (long long)i);
    }
}

static bool takes_lists(const ls_verify *v) { return v->kind != LS_VERIFY_JSON; }

ls_status ls_verify_check(const ls_verify *v, ls_reply answer, bool any_of, ls_error *err) {
    list l = {0};
    ls_reply item;
    ls_status status;
    if (!any_of || !takes_lists(v)) return check_one(v, answer, err);
    LS_TRY_DONE(open_list(&l, answer, err));
    for (int64_t i = 0; i < ls_node_count(&l.list); i++) {
        LS_TRY_DONE(list_item(&l, i, &item, err));
        if ((status = check_one(v, item, err)) == LS_OK) continue;
        ls_error_prefix(err, "[%lld]", (long long)i);
        goto done;
    }
done:
    close_list(&l);
    return status;
}

/* 1 where any item is the right one. */
static int judge_list(const ls_verify *v, ls_reply completion, ls_reply answer, ls_error *err) {
    list l = {0};
    ls_reply item;
    int correct = 0;
    if (open_list(&l, answer, err) != LS_OK) correct = -1;
    for (int64_t i = 0; correct == 0 && i < ls_node_count(&l.list); i++)
        correct = list_item(&l, i, &item, err) == LS_OK ? judge_one(v, completion, item, err) : -1;
    close_list(&l);
    return correct;
}

ls_status ls_verify_judge(const ls_verify *v, ls_reply completion, ls_reply answer, bool any_of, ls_reward_result *out,
                          ls_error *err) {
    ls_error why = {LS_OK, ""};
    int correct;
    if (completion.text == NULL) completion = (ls_reply){"", 0};
    if (ls_verify_check(v, answer, any_of, &why) != LS_OK) {
        ls_error_prefix(&why, "answer");
        ls_reward_fail(out, why.text);
        return LS_OK;
    }
    correct =
        any_of && takes_lists(v) ? judge_list(v, completion, answer, &why) : judge_one(v, completion, answer, &why);
    if (why.status == LS_ERR_NOMEM) return LS_FAIL(err, LS_ERR_NOMEM, "%s", why.text);
    if (correct < 0)
        ls_reward_fail(out, why.text);
    else
        *out = (ls_reward_result){.ok = true, .reward = correct};
    return LS_OK;
}
