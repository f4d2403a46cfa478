/* Answers and dumps of other programs as records. Owns the growing list while it reads. */
#define _POSIX_C_SOURCE 200809L
#include "record/answers.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "json/json_node.h"
#include "json/json_words.h"
#include "record/source.h"

#define SENTINEL (-9000.0)
#define FILE_BYTES_MAX ((int64_t)1 << 32)

const char *const ls_answer_format_names[] = {"vllm", "vllm-prompt", "sglang",   "sglang-prompt", "llama.cpp", "trl",
                                              "verl", "slime",       "openrlhf", "prime-rl",      "nemo-rl",   NULL};

typedef struct reader {
    ls_record *records;
    int64_t n, cap;
    ls_answer_format format;
    bool of_trainer, by_order, of_suspect;
    int64_t line; /* of the object that is being read */
} reader;

/* ---- records ---- */

/* A record with room for n values; its id is the holder's, with "/I" where several share it. */
static ls_status add_record(reader *r, ls_record **out, const char *id, int64_t part, int64_t n_parts, int64_t n,
                            ls_error *err) {
    char text[300];
    ls_record *one;
    LS_TRY(ls_array_grow((void **)&r->records, &r->cap, r->n + 1, sizeof *r->records, "records", err));
    one = &r->records[r->n];
    ls_record_init(one);
    r->n++;
    one->line = r->line;
    if (id == NULL || r->by_order)
        snprintf(text, sizeof text, "%" PRId64, r->n - 1);
    else if (n_parts > 1)
        snprintf(text, sizeof text, "%.250s/%" PRId64, id, part);
    else
        snprintf(text, sizeof text, "%.290s", id);
    LS_TRY(ls_text_copy(&one->id, text, (int64_t)strlen(text), err));
    LS_TRY(ls_array_alloc((void **)&one->logprobs, n > 0 ? n : 1, sizeof *one->logprobs, "logprobs", err));
    LS_TRY(ls_array_alloc((void **)&one->logprob_missing, n > 0 ? n : 1, 1, "logprobs", err));
    one->n_logprobs = n;
    one->has_logprobs = true;
    one->of_suspect = r->of_suspect;
    *out = one;
    return LS_OK;
}

static ls_status read_answer_value(ls_record *one, int64_t i, const ls_node *item, ls_error *err) {
    const ls_node_kind kind = ls_node_kind_of(item);
    double value;
    one->logprobs[i] = 0.0f;
    one->logprob_missing[i] = 1;
    if (kind == LS_NODE_NULL) return LS_OK;
    if (kind != LS_NODE_REAL && kind != LS_NODE_INT)
        return ls_node_fail(item, LS_ERR_FORMAT, err, "a number or null is required");
    value = ls_node_number(item);
    if (!(fabs(value) <= (double)FLT_MAX)) return ls_node_fail(item, LS_ERR_FORMAT, err, "%g is beyond float32", value);
    if (value > (double)LS_LOGPROB_MAX && !one->of_suspect)
        return ls_node_fail(item, LS_ERR_FORMAT, err, "%g is no log-probability, which is at most 0", value);
    if (value <= SENTINEL) return LS_OK;
    one->logprobs[i] = (float)value;
    one->logprob_missing[i] = 0;
    return LS_OK;
}

static ls_status read_answer_id(int32_t *out, const ls_node *item, ls_error *err) {
    int64_t id = 0;
    LS_TRY(ls_node_int(item, 0, INT32_MAX, &id, err));
    *out = (int32_t)id;
    return LS_OK;
}

/* Items [from, to) of a list of ids. */
static ls_status read_answer_ids(int32_t **out, int64_t *n, const ls_node *list, int64_t from, int64_t to,
                                 ls_error *err) {
    *n = to - from;
    LS_TRY(ls_array_alloc((void **)out, *n > 0 ? *n : 1, sizeof **out, "token ids", err));
    for (int64_t i = from; i < to; i++) {
        const ls_node item = ls_node_at(list, i);
        LS_TRY(read_answer_id(&(*out)[i - from], &item, err));
    }
    return LS_OK;
}

static ls_status need_list(const ls_node *object, const char *key, ls_node *list, ls_error *err) {
    return ls_node_need_kind(object, key, LS_NODE_ARRAY, list, err);
}

/* A list, or null, which has no items and is not to be asked for any. */
static ls_status expect_list_or_null(const ls_node *list, int64_t *n, ls_error *err) {
    *n = 0;
    if (ls_node_kind_of(list) == LS_NODE_NULL) return LS_OK;
    LS_TRY(ls_node_expect(list, LS_NODE_ARRAY, err));
    *n = ls_node_count(list);
    return LS_OK;
}

/* A member that must be there, and may be null. */
static ls_status need_or_null(const ls_node *object, const char *key, ls_node *out, ls_error *err) {
    return ls_node_get(object, key, out) ? LS_OK : ls_node_need(object, key, out, err);
}

static ls_status need_list_or_null(const ls_node *object, const char *key, ls_node *list, int64_t *n, ls_error *err) {
    LS_TRY(need_or_null(object, key, list, err));
    return expect_list_or_null(list, n, err);
}

static ls_status need_count(const ls_node *list, int64_t n, ls_error *err) {
    if (ls_node_count(list) == n) return LS_OK;
    return ls_node_fail(list, LS_ERR_FORMAT, err, "%" PRId64 " items, expected %" PRId64, ls_node_count(list), n);
}

/* *out stays NULL where the member is absent. A number stands for its digits. */
static ls_status read_name(const ls_node *object, const char *key, char text[32], const char **out, ls_error *err) {
    ls_node node;
    int64_t number;
    *out = NULL;
    if (!ls_node_get_some(object, key, &node)) return LS_OK;
    if (ls_node_kind_of(&node) != LS_NODE_INT) return ls_node_string(&node, out, err);
    LS_TRY(ls_node_int(&node, INT64_MIN, INT64_MAX, &number, err));
    snprintf(text, 32, "%" PRId64, number);
    *out = text;
    return LS_OK;
}

/* ---- vLLM ---- */

/* The id of an item of "content" or of a token's text "token_id:N". *known: it tells one. */
static ls_status read_token(int32_t *out, bool *known, const ls_node *token, ls_error *err) {
    const char *text;
    char *end;
    long long id;
    *known = false;
    if (ls_node_kind_of(token) != LS_NODE_TEXT) return ls_node_expect(token, LS_NODE_TEXT, err);
    LS_TRY(ls_node_string(token, &text, err));
    if (strncmp(text, "token_id:", 9) != 0 || text[9] < '0' || text[9] > '9') return LS_OK;
    id = strtoll(text + 9, &end, 10);
    if (*end != '\0' || id > INT32_MAX) return ls_node_fail(token, LS_ERR_FORMAT, err, "is no token id");
    *out = (int32_t)id;
    *known = true;
    return LS_OK;
}

/* Ids of a completion: of "token_ids", else of the tokens one by one where all of them tell theirs. */
static ls_status read_choice_ids(ls_record *one, const ls_node *choice, const ls_node *tokens, bool is_content,
                                 ls_error *err) {
    ls_node ids;
    if (ls_node_get_some(choice, "token_ids", &ids)) {
        LS_TRY(ls_node_expect(&ids, LS_NODE_ARRAY, err));
        LS_TRY(need_count(&ids, one->n_logprobs, err));
        return read_answer_ids(&one->completion_ids, &one->n_completion, &ids, 0, one->n_logprobs, err);
    }
    LS_TRY(ls_array_alloc((void **)&one->completion_ids, one->n_logprobs > 0 ? one->n_logprobs : 1,
                          sizeof *one->completion_ids, "token ids", err));
    one->n_completion = one->n_logprobs;
    for (int64_t i = 0; i < one->n_logprobs; i++) {
        const ls_node item = ls_node_at(tokens, i);
        ls_node token = item;
        bool known = false;
        if (is_content && ls_node_get_some(&item, "id", &token)) {
            LS_TRY(read_answer_id(&one->completion_ids[i], &token, err));
            known = true;
        } else if (!is_content || ls_node_get_some(&item, "token", &token)) {
            LS_TRY(read_token(&one->completion_ids[i], &known, &token, err));
        }
        if (known) continue;
        free(one->completion_ids); /* texts say nothing about tokens */
        one->completion_ids = NULL;
        one->n_completion = 0;
        return LS_OK;
    }
    return LS_OK;
}

/* A choice that came to nothing: its tokens, if it tells any, have no values. */
static ls_status read_valueless(reader *r, const ls_node *choice, const char *id, int64_t part, int64_t n_parts,
                                ls_error *err) {
    ls_node ids;
    ls_record *one;
    const bool reported = ls_node_get_some(choice, "token_ids", &ids);
    if (reported) LS_TRY(ls_node_expect(&ids, LS_NODE_ARRAY, err));
    LS_TRY(add_record(r, &one, id, part, n_parts, reported ? ls_node_count(&ids) : 0, err));
    memset(one->logprob_missing, 1, (size_t)one->n_logprobs);
    return reported ? read_answer_ids(&one->completion_ids, &one->n_completion, &ids, 0, one->n_logprobs, err) : LS_OK;
}

static ls_status read_choice(reader *r, const ls_node *body, const ls_node *choice, const char *id, int64_t part,
                             int64_t n_parts, ls_error *err) {
    ls_node logprobs, list, tokens, prompt;
    ls_record *one;
    bool is_content;
    LS_TRY(ls_node_expect(choice, LS_NODE_OBJECT, err));
    LS_TRY(need_or_null(choice, "logprobs", &logprobs, err));
    if (ls_node_kind_of(&logprobs) == LS_NODE_NULL) return read_valueless(r, choice, id, part, n_parts, err);
    LS_TRY(ls_node_expect(&logprobs, LS_NODE_OBJECT, err));
    is_content = ls_node_get(&logprobs, "content", &list);
    if (!is_content) LS_TRY(need_or_null(&logprobs, "token_logprobs", &list, err));
    if (ls_node_kind_of(&list) == LS_NODE_NULL) return read_valueless(r, choice, id, part, n_parts, err);
    LS_TRY(ls_node_expect(&list, LS_NODE_ARRAY, err));
    LS_TRY(add_record(r, &one, id, part, n_parts, ls_node_count(&list), err));
    for (int64_t i = 0; i < one->n_logprobs; i++) {
        const ls_node item = ls_node_at(&list, i);
        ls_node value = item;
        if (is_content) {
            LS_TRY(ls_node_expect(&item, LS_NODE_OBJECT, err));
            LS_TRY(ls_node_need(&item, "logprob", &value, err));
        }
        LS_TRY(read_answer_value(one, i, &value, err));
    }
    tokens = list;
    if (!is_content) {
        if (!ls_node_get_some(&logprobs, "tokens", &tokens)) return LS_OK;
        LS_TRY(ls_node_expect(&tokens, LS_NODE_ARRAY, err));
        LS_TRY(need_count(&tokens, one->n_logprobs, err));
    }
    LS_TRY(read_choice_ids(one, choice, &tokens, is_content, err));
    if (one->completion_ids == NULL) return LS_OK;
    if (!ls_node_get_some(choice, "prompt_token_ids", &prompt) && !ls_node_get_some(body, "prompt_token_ids", &prompt))
        return LS_OK;
    LS_TRY(ls_node_expect(&prompt, LS_NODE_ARRAY, err));
    return read_answer_ids(&one->prompt_ids, &one->n_prompt, &prompt, 0, ls_node_count(&prompt), err);
}

/* Entry i of prompt_logprobs: {"ID": {"logprob": X, ..}, ..}, the prompt's own token among perhaps several. */
static ls_status read_prompt_entry(ls_record *one, int64_t i, const ls_node *entry, bool has_ids, ls_error *err) {
    char key[16];
    ls_node found, value;
    void *iterator = NULL;
    LS_TRY(ls_node_expect(entry, LS_NODE_OBJECT, err));
    if (!has_ids) {
        char *end;
        long long id;
        if (ls_node_count(entry) != 1)
            return ls_node_fail(entry, LS_ERR_FORMAT, err,
                                "%" PRId64 " candidates and no prompt_token_ids that say which of them is the prompt's",
                                ls_node_count(entry));
        (void)ls_node_next(entry, &iterator, &found);
        id = strtoll(found.key, &end, 10);
        if (*end != '\0' || end == found.key || id < 0 || id > INT32_MAX)
            return ls_node_fail(&found, LS_ERR_FORMAT, err, "its name is no token id");
        one->completion_ids[i + 1] = (int32_t)id;
    } else {
        snprintf(key, sizeof key, "%" PRId32, one->completion_ids[i + 1]);
        LS_TRY(ls_node_need(entry, key, &found, err));
    }
    if (ls_node_kind_of(&found) != LS_NODE_OBJECT) return read_answer_value(one, i, &found, err);
    LS_TRY(ls_node_need(&found, "logprob", &value, err));
    return read_answer_value(one, i, &value, err);
}

static ls_status read_prompt_logprobs(reader *r, const ls_node *body, const ls_node *choice, const char *id,
                                      int64_t part, int64_t n_parts, ls_error *err) {
    ls_node list, ids, first;
    ls_record *one;
    int64_t n;
    bool has_ids;
    LS_TRY(ls_node_expect(choice, LS_NODE_OBJECT, err));
    if (!ls_node_get_some(choice, "prompt_logprobs", &list)) LS_TRY(ls_node_need(body, "prompt_logprobs", &list, err));
    LS_TRY(ls_node_expect(&list, LS_NODE_ARRAY, err));
    n = ls_node_count(&list);
    if (n < 2) return ls_node_fail(&list, LS_ERR_FORMAT, err, "%" PRId64 " items; two are the fewest", n);
    first = ls_node_at(&list, 0);
    if (ls_node_kind_of(&first) != LS_NODE_NULL)
        return ls_node_fail(&first, LS_ERR_FORMAT, err, "null is required: the first token has no log-probability");
    LS_TRY(add_record(r, &one, id, part, n_parts, n - 1, err));
    has_ids = ls_node_get_some(choice, "prompt_token_ids", &ids) || ls_node_get_some(body, "prompt_token_ids", &ids);
    if (has_ids) {
        LS_TRY(ls_node_expect(&ids, LS_NODE_ARRAY, err));
        LS_TRY(need_count(&ids, n, err));
        LS_TRY(read_answer_ids(&one->completion_ids, &one->n_completion, &ids, 0, n, err));
        one->is_tokens = true;
    } else {
        LS_TRY(ls_array_alloc((void **)&one->completion_ids, n, sizeof *one->completion_ids, "token ids", err));
        one->n_completion = n;
        memset(one->completion_ids, 0, (size_t)n * sizeof *one->completion_ids);
    }
    for (int64_t i = 1; i < n; i++) {
        const ls_node entry = ls_node_at(&list, i);
        LS_TRY(read_prompt_entry(one, i - 1, &entry, has_ids, err));
    }
    if (has_ids) return LS_OK;
    /* The first token is not told: what follows is a completion behind it. */
    memmove(one->completion_ids, one->completion_ids + 1, (size_t)(n - 1) * sizeof *one->completion_ids);
    one->n_completion = n - 1;
    return LS_OK;
}

static ls_status read_vllm(reader *r, const ls_node *root, ls_error *err) {
    ls_node response, body = *root, choices;
    char digits[32];
    const char *id;
    int64_t n;
    LS_TRY(read_name(root, "custom_id", digits, &id, err));
    if (ls_node_get(root, "response", &response)) {
        if (ls_node_kind_of(&response) == LS_NODE_NULL) return LS_OK;
        LS_TRY(ls_node_expect(&response, LS_NODE_OBJECT, err));
        LS_TRY(ls_node_need_kind(&response, "body", LS_NODE_OBJECT, &body, err));
        if (!ls_node_get(&body, "choices", &choices) && ls_node_get_some(&body, "error", &choices)) return LS_OK;
    }
    LS_TRY(need_list(&body, "choices", &choices, err));
    n = ls_node_count(&choices);
    for (int64_t i = 0; i < n; i++) {
        const ls_node choice = ls_node_at(&choices, i);
        LS_TRY((r->format == LS_ANSWER_VLLM ? read_choice : read_prompt_logprobs)(r, &body, &choice, id, i, n, err));
    }
    return LS_OK;
}

/* ---- SGLang, llama.cpp, TRL ---- */

static ls_status read_count(const ls_node *object, const char *key, int64_t *out, ls_error *err) {
    ls_node node;
    if (!ls_node_get_some(object, key, &node)) return LS_OK;
    return ls_node_int(&node, -1, INT32_MAX, out, err);
}

static ls_status read_sglang(reader *r, const ls_node *root, ls_error *err) {
    const bool whole = r->format == LS_ANSWER_SGLANG_PROMPT;
    ls_node meta, list;
    ls_record *one;
    int64_t n;
    LS_TRY(ls_node_need_kind(root, "meta_info", LS_NODE_OBJECT, &meta, err));
    LS_TRY(need_list_or_null(&meta, whole ? "input_token_logprobs" : "output_token_logprobs", &list, &n, err));
    if (whole && n < 2) return ls_node_fail(&list, LS_ERR_FORMAT, err, "%" PRId64 " items; two are the fewest", n);
    LS_TRY(add_record(r, &one, NULL, 0, 1, whole ? n - 1 : n, err));
    one->is_tokens = whole;
    LS_TRY(ls_array_alloc((void **)&one->completion_ids, n > 0 ? n : 1, sizeof *one->completion_ids, "ids", err));
    one->n_completion = n;
    for (int64_t i = 0; i < n; i++) {
        const ls_node item = ls_node_at(&list, i);
        ls_node value, id;
        LS_TRY(ls_node_expect(&item, LS_NODE_ARRAY, err));
        if (ls_node_count(&item) < 2) return ls_node_fail(&item, LS_ERR_FORMAT, err, "[value, id, text] is required");
        value = ls_node_at(&item, 0);
        id = ls_node_at(&item, 1);
        LS_TRY(read_answer_id(&one->completion_ids[i], &id, err));
        if (!whole || i > 0) LS_TRY(read_answer_value(one, whole ? i - 1 : i, &value, err));
    }
    one->has_meta = true;
    return read_count(&meta, "cached_tokens", &one->cache_hit, err);
}

static ls_status read_item(const ls_node *item, int32_t *id, ls_node *value, ls_error *err) {
    ls_node node;
    LS_TRY(ls_node_expect(item, LS_NODE_OBJECT, err));
    if (ls_node_get_some(item, "prob", &node))
        return ls_node_fail(&node, LS_ERR_UNSUPPORTED, err,
                            "post_sampling_probs are probabilities of a distribution that was cut");
    LS_TRY(ls_node_need(item, "id", &node, err));
    LS_TRY(ls_node_need(item, "logprob", value, err));
    return read_answer_id(id, &node, err);
}

/* llama.cpp's server leaves out the record of a token that ends within a character: the items stand among the tokens,
 * in their order. late[i]: the last token that item i can be of. */
static ls_status find_late(int64_t *late, const ls_record *one, const ls_node *list, ls_error *err) {
    int64_t at = one->n_completion;
    for (int64_t i = ls_node_count(list) - 1; i >= 0; i--) {
        const ls_node item = ls_node_at(list, i);
        ls_node value;
        int32_t id = 0;
        LS_TRY(read_item(&item, &id, &value, err));
        while (at > 0 && one->completion_ids[at - 1] != id) at--;
        if (at == 0) return ls_node_fail(&item, LS_ERR_FORMAT, err, "is not among 'tokens', in their order");
        late[i] = --at;
    }
    return LS_OK;
}

/* Values whose token is known; the others are missing. */
static ls_status place_values(ls_record *one, const int64_t *late, const ls_node *list, ls_error *err) {
    int64_t at = 0; /* the first token that an item can be of; there is one, since there is a last one */
    memset(one->logprob_missing, 1, (size_t)one->n_logprobs);
    for (int64_t i = 0; i < ls_node_count(list); i++, at++) {
        const ls_node item = ls_node_at(list, i);
        ls_node value;
        int32_t id = 0;
        LS_TRY(read_item(&item, &id, &value, err));
        while (one->completion_ids[at] != id) at++;
        if (at == late[i]) LS_TRY(read_answer_value(one, at, &value, err));
    }
    return LS_OK;
}

/* Without `tokens`, which `return_tokens` asks for, every token must have its item. */
static ls_status read_item_ids(ls_record *one, const ls_node *root, const ls_node *list, ls_error *err) {
    const int64_t n = ls_node_count(list);
    int64_t reported = 0;
    ls_node stop, value;
    const char *why = "";
    LS_TRY(read_count(root, "tokens_predicted", &reported, err));
    if (ls_node_get_some(root, "stop_type", &stop)) LS_TRY(ls_node_string(&stop, &why, err));
    if (reported > n && strcmp(why, "limit") == 0)
        return ls_node_fail(list, LS_ERR_UNSUPPORTED, err,
                            "%" PRId64 " items for %" PRId64 " tokens: with \"return_tokens\": true it is told which",
                            n, reported);
    LS_TRY(ls_array_alloc((void **)&one->completion_ids, n > 0 ? n : 1, sizeof *one->completion_ids, "ids", err));
    one->n_completion = n;
    for (int64_t i = 0; i < n; i++) {
        const ls_node item = ls_node_at(list, i);
        LS_TRY(read_item(&item, &one->completion_ids[i], &value, err));
    }
    return LS_OK;
}

/* Of no token that it generated there is a record, and it was asked for them: then it leaves out the list as well. */
static ls_status has_no_item(const ls_node *root, bool *out, ls_error *err) {
    ls_node settings, unused;
    int64_t asked = 0;
    *out = false;
    if (ls_node_get_some(root, "completion_probabilities", &unused)) return LS_OK;
    if (!ls_node_get_some(root, "generation_settings", &settings)) return LS_OK;
    LS_TRY(ls_node_expect(&settings, LS_NODE_OBJECT, err));
    LS_TRY(read_count(&settings, "n_probs", &asked, err));
    *out = asked > 0;
    return LS_OK;
}

static ls_status read_llama_cpp(reader *r, const ls_node *root, ls_error *err) {
    ls_node list, tokens;
    ls_record *one;
    int64_t *late = NULL, n;
    bool reported = ls_node_get_some(root, "tokens", &tokens), none = false;
    ls_status status;
    if (reported) LS_TRY(ls_node_expect(&tokens, LS_NODE_ARRAY, err));
    reported = reported && ls_node_count(&tokens) > 0;
    if (reported) LS_TRY(has_no_item(root, &none, err));
    if (none) {
        LS_TRY(add_record(r, &one, NULL, 0, 1, ls_node_count(&tokens), err));
        LS_TRY(read_answer_ids(&one->completion_ids, &one->n_completion, &tokens, 0, ls_node_count(&tokens), err));
        memset(one->logprob_missing, 1, (size_t)one->n_logprobs);
        one->has_meta = true;
        return read_count(root, "id_slot", &one->slot, err);
    }
    LS_TRY(need_list(root, "completion_probabilities", &list, err));
    n = ls_node_count(reported ? &tokens : &list);
    LS_TRY(add_record(r, &one, NULL, 0, 1, n, err));
    LS_TRY(reported ? read_answer_ids(&one->completion_ids, &one->n_completion, &tokens, 0, n, err)
                    : read_item_ids(one, root, &list, err));
    LS_TRY(ls_array_alloc((void **)&late, ls_node_count(&list) + 1, sizeof *late, "places", err));
    LS_TRY_DONE(find_late(late, one, &list, err));
    LS_TRY_DONE(place_values(one, late, &list, err));
    one->has_meta = true;
    status = read_count(root, "id_slot", &one->slot, err);
done:
    free(late);
    return status;
}

/* A value, or a list of candidates' values with the ids beside it. */
static ls_status read_candidate(ls_record *one, int64_t i, const ls_node *value, const ls_node *ids, ls_error *err) {
    int64_t at = 0;
    ls_node item;
    if (ls_node_kind_of(value) != LS_NODE_ARRAY) return read_answer_value(one, i, value, err);
    if (ls_node_count(value) == 0) return ls_node_fail(value, LS_ERR_FORMAT, err, "is empty");
    if (ids != NULL && ls_node_kind_of(ids) == LS_NODE_ARRAY) {
        LS_TRY(need_count(ids, ls_node_count(value), err));
        for (at = 0; at < ls_node_count(ids); at++) {
            int32_t id;
            item = ls_node_at(ids, at);
            LS_TRY(read_answer_id(&id, &item, err));
            if (id == one->completion_ids[i]) break;
        }
        if (at == ls_node_count(ids))
            return ls_node_fail(ids, LS_ERR_FORMAT, err, "token %d is not among them", (int)one->completion_ids[i]);
    }
    item = ls_node_at(value, at);
    return read_answer_value(one, i, &item, err);
}

static ls_status read_trl(reader *r, const ls_node *root, ls_error *err) {
    ls_node prompts, completions, values, candidates, one_candidates;
    const bool has_candidates = ls_node_get_some(root, "logprob_token_ids", &candidates);
    int64_t n, n_prompts;
    LS_TRY(need_list(root, "prompt_ids", &prompts, err));
    LS_TRY(need_list(root, "completion_ids", &completions, err));
    LS_TRY(need_list(root, "logprobs", &values, err));
    n = ls_node_count(&completions);
    n_prompts = ls_node_count(&prompts);
    LS_TRY(need_count(&values, n, err));
    if (n_prompts == 0 || n % n_prompts != 0)
        return ls_node_fail(&prompts, LS_ERR_FORMAT, err, "%" PRId64 " prompts for %" PRId64 " completions", n_prompts,
                            n);
    if (has_candidates) {
        LS_TRY(ls_node_expect(&candidates, LS_NODE_ARRAY, err));
        LS_TRY(need_count(&candidates, n, err));
    }
    for (int64_t s = 0; s < n; s++) {
        const ls_node ids = ls_node_at(&completions, s), list = ls_node_at(&values, s),
                      prompt = ls_node_at(&prompts, s / (n / n_prompts));
        ls_record *one;
        int64_t n_ids, n_values;
        LS_TRY(expect_list_or_null(&ids, &n_ids, err));
        LS_TRY(expect_list_or_null(&list, &n_values, err));
        LS_TRY(ls_node_expect(&prompt, LS_NODE_ARRAY, err));
        LS_TRY(add_record(r, &one, NULL, 0, 1, n_ids, err));
        LS_TRY(read_answer_ids(&one->completion_ids, &one->n_completion, &ids, 0, n_ids, err));
        LS_TRY(read_answer_ids(&one->prompt_ids, &one->n_prompt, &prompt, 0, ls_node_count(&prompt), err));
        if (ls_node_kind_of(&list) == LS_NODE_NULL) {
            memset(one->logprob_missing, 1, (size_t)n_ids);
            continue;
        }
        LS_TRY(need_count(&list, n_ids, err));
        if (has_candidates) {
            one_candidates = ls_node_at(&candidates, s);
            LS_TRY(ls_node_expect(&one_candidates, LS_NODE_ARRAY, err));
            LS_TRY(need_count(&one_candidates, one->n_logprobs, err));
        }
        for (int64_t i = 0; i < one->n_logprobs; i++) {
            const ls_node value = ls_node_at(&list, i);
            ls_node of = {0};
            if (has_candidates) of = ls_node_at(&one_candidates, i);
            LS_TRY(read_candidate(one, i, &value, has_candidates ? &of : NULL, err));
        }
    }
    return LS_OK;
}

/* ---- dumps of trainers ---- */

static ls_status mask_out(ls_record *one, const ls_node *mask, int64_t from, ls_error *err) {
    for (int64_t i = 0; i < one->n_logprobs; i++) {
        const ls_node item = ls_node_at(mask, from + i);
        const ls_node_kind kind = ls_node_kind_of(&item);
        bool on = false;
        if (kind == LS_NODE_BOOL)
            LS_TRY(ls_node_bool(&item, &on, err));
        else if ((kind == LS_NODE_INT || kind == LS_NODE_REAL) &&
                 (ls_node_number(&item) == 0.0 || ls_node_number(&item) == 1.0))
            on = ls_node_number(&item) == 1.0;
        else
            return ls_node_fail(&item, LS_ERR_FORMAT, err, "true, false, 0 or 1 is required");
        if (!on) one->logprobs[i] = 0.0f, one->logprob_missing[i] = 1;
    }
    return LS_OK;
}

/* One value for each token, or null for none of them. */
static ls_status read_values(ls_record *one, const ls_node *list, ls_error *err) {
    int64_t n;
    LS_TRY(expect_list_or_null(list, &n, err));
    if (ls_node_kind_of(list) == LS_NODE_NULL) {
        memset(one->logprob_missing, 1, (size_t)one->n_logprobs);
        return LS_OK;
    }
    LS_TRY(need_count(list, one->n_logprobs, err));
    for (int64_t i = 0; i < one->n_logprobs; i++) {
        const ls_node item = ls_node_at(list, i);
        LS_TRY(read_answer_value(one, i, &item, err));
    }
    return LS_OK;
}

/* null masks nothing out. */
static ls_status read_mask(ls_record *one, const ls_node *mask, ls_error *err) {
    int64_t n;
    LS_TRY(expect_list_or_null(mask, &n, err));
    if (ls_node_kind_of(mask) == LS_NODE_NULL) return LS_OK;
    LS_TRY(need_count(mask, one->n_logprobs, err));
    return mask_out(one, mask, 0, err);
}

/* Sequence s of a member that is a list, or a list of lists, and its number of items; either may be null. *list gets a
 * parent of its own in *holder. */
static ls_status pick(const ls_node *root, const char *key, int64_t s, int64_t n, ls_node *holder, ls_node *list,
                      int64_t *n_items, ls_error *err) {
    LS_TRY(need_list_or_null(root, key, holder, n_items, err));
    *list = *holder;
    if (n == 0 || ls_node_kind_of(holder) == LS_NODE_NULL) return LS_OK;
    LS_TRY(need_count(holder, n, err));
    *list = ls_node_at(holder, s);
    return expect_list_or_null(list, n_items, err);
}

/* 0: the member is one list; else the number of lists in it. */
static ls_status count_rows(const ls_node *root, const char *key, int64_t *n, ls_error *err) {
    ls_node list;
    int64_t n_items;
    LS_TRY(need_list_or_null(root, key, &list, &n_items, err));
    *n = 0;
    for (int64_t i = 0; i < n_items; i++) {
        const ls_node item = ls_node_at(&list, i);
        if (ls_node_kind_of(&item) == LS_NODE_ARRAY) *n = n_items;
        if (ls_node_kind_of(&item) != LS_NODE_NULL) break;
    }
    return LS_OK;
}

/* The name of sequence s of a batch of n, or of a line's only one where n is 0; NULL where there is none. */
static ls_status read_uid(const ls_node *root, int64_t s, int64_t n, char digits[32], const char **id, ls_error *err) {
    ls_node uids, uid;
    int64_t number;
    *id = NULL;
    if (!ls_node_get_some(root, "uid", &uids)) return LS_OK;
    if (ls_node_kind_of(&uids) != LS_NODE_ARRAY) return n > 0 ? LS_OK : read_name(root, "uid", digits, id, err);
    LS_TRY(need_count(&uids, n > 0 ? n : 1, err));
    uid = ls_node_at(&uids, s);
    if (ls_node_kind_of(&uid) == LS_NODE_NULL) return LS_OK;
    if (ls_node_kind_of(&uid) != LS_NODE_INT) return ls_node_string(&uid, id, err);
    LS_TRY(ls_node_int(&uid, INT64_MIN, INT64_MAX, &number, err));
    snprintf(digits, 32, "%" PRId64, number);
    *id = digits;
    return LS_OK;
}

static ls_status read_verl(reader *r, const ls_node *root, ls_error *err) {
    const char *const key = r->of_trainer ? "old_log_probs" : "rollout_log_probs";
    int64_t n;
    LS_TRY(count_rows(root, "responses", &n, err));
    for (int64_t s = 0; s < (n > 0 ? n : 1); s++) {
        ls_node held[3], ids, mask, values;
        ls_record *one;
        char digits[32];
        const char *id;
        int64_t n_ids, n_mask, n_values;
        LS_TRY(pick(root, "responses", s, n, &held[0], &ids, &n_ids, err));
        LS_TRY(pick(root, "response_mask", s, n, &held[1], &mask, &n_mask, err));
        LS_TRY(pick(root, key, s, n, &held[2], &values, &n_values, err));
        LS_TRY(read_uid(root, s, n, digits, &id, err));
        LS_TRY(add_record(r, &one, id, 0, 1, n_ids, err));
        LS_TRY(read_answer_ids(&one->completion_ids, &one->n_completion, &ids, 0, n_ids, err));
        LS_TRY(read_values(one, &values, err));
        LS_TRY(read_mask(one, &mask, err));
    }
    return LS_OK;
}

static ls_status read_slime_sample(reader *r, const ls_node *sample, ls_error *err) {
    const char *const key = r->of_trainer ? "log_probs" : "rollout_log_probs";
    ls_node tokens, length, values, mask;
    ls_record *one;
    char digits[32];
    const char *id;
    int64_t n = 0, n_all;
    LS_TRY(ls_node_expect(sample, LS_NODE_OBJECT, err));
    LS_TRY(need_list_or_null(sample, "tokens", &tokens, &n_all, err));
    LS_TRY(need_or_null(sample, "response_length", &length, err));
    if (ls_node_kind_of(&length) != LS_NODE_NULL) LS_TRY(ls_node_int(&length, 0, n_all, &n, err));
    LS_TRY(need_or_null(sample, key, &values, err));
    LS_TRY(read_name(sample, "index", digits, &id, err));
    if (id == NULL) LS_TRY(read_name(sample, "sample_index", digits, &id, err));
    LS_TRY(add_record(r, &one, id, 0, 1, n, err));
    LS_TRY(read_answer_ids(&one->prompt_ids, &one->n_prompt, &tokens, 0, n_all - n, err));
    LS_TRY(read_answer_ids(&one->completion_ids, &one->n_completion, &tokens, n_all - n, n_all, err));
    LS_TRY(read_values(one, &values, err));
    return ls_node_get_some(sample, "loss_mask", &mask) ? read_mask(one, &mask, err) : LS_OK;
}

static ls_status read_slime(reader *r, const ls_node *root, ls_error *err) {
    ls_node samples;
    if (!ls_node_get_some(root, "samples", &samples)) return read_slime_sample(r, root, err);
    LS_TRY(ls_node_expect(&samples, LS_NODE_ARRAY, err));
    for (int64_t s = 0; s < ls_node_count(&samples); s++) {
        const ls_node sample = ls_node_at(&samples, s);
        LS_TRY(read_slime_sample(r, &sample, err));
    }
    return LS_OK;
}

static ls_status read_openrlhf(reader *r, const ls_node *root, ls_error *err) {
    const char *const key = r->of_trainer ? "action_log_probs" : "rollout_log_probs";
    int64_t n;
    LS_TRY(count_rows(root, "sequences", &n, err));
    for (int64_t s = 0; s < (n > 0 ? n : 1); s++) {
        ls_node held[3], ids, mask, values;
        ls_record *one;
        int64_t n_ids, n_mask, n_values;
        LS_TRY(pick(root, "sequences", s, n, &held[0], &ids, &n_ids, err));
        LS_TRY(pick(root, "action_mask", s, n, &held[1], &mask, &n_mask, err));
        LS_TRY(pick(root, key, s, n, &held[2], &values, &n_values, err));
        if (n_ids < 2 && ls_node_kind_of(&ids) != LS_NODE_NULL)
            return ls_node_fail(&ids, LS_ERR_FORMAT, err, "two tokens are the fewest");
        LS_TRY(add_record(r, &one, NULL, 0, 1, n_ids > 0 ? n_ids - 1 : 0, err));
        one->is_tokens = true;
        LS_TRY(read_answer_ids(&one->completion_ids, &one->n_completion, &ids, 0, n_ids, err));
        LS_TRY(read_values(one, &values, err));
        LS_TRY(read_mask(one, &mask, err));
    }
    return LS_OK;
}

/* ---- objects one behind another ---- */

static ls_status read_object(reader *r, const char *text, int64_t bytes, const char *name, ls_error *err) {
    static ls_status (*const how[])(reader *, const ls_node *, ls_error *) = {
        read_vllm, read_vllm, read_sglang, read_sglang, read_llama_cpp, read_trl, read_verl, read_slime, read_openrlhf};
    char place[300], *plain = NULL;
    ls_json_doc *doc = NULL;
    int64_t n;
    ls_node root;
    ls_status status;
    snprintf(place, sizeof place, "%.200s: line %" PRId64, name, r->line);
    LS_TRY_DONE(ls_json_plain(&plain, &n, text, bytes, err));
    LS_TRY_DONE(ls_json_doc_open(&doc, plain, n, place, err));
    root = ls_json_root(doc);
    status = how[r->format](r, &root, err);
done:
    ls_json_doc_free(doc);
    free(plain);
    return status;
}

/* Behind the object that begins at text[from], by braces outside strings; bytes when it does not end. */
static int64_t end_of(const char *text, int64_t from, int64_t bytes) {
    int64_t depth = 0;
    bool in_string = false;
    for (int64_t i = from; i < bytes; i++) {
        if (in_string) {
            if (text[i] == '\\')
                i++;
            else if (text[i] == '"')
                in_string = false;
        } else if (text[i] == '"') {
            in_string = true;
        } else if (text[i] == '{') {
            depth++;
        } else if (text[i] == '}' && --depth == 0) {
            return i + 1;
        }
    }
    return bytes;
}

static ls_status read_objects(reader *r, const char *text, int64_t bytes, const char *name, ls_error *err) {
    bool in_array = false, ended = false;
    r->line = 1;
    for (int64_t i = 0; i < bytes;) {
        const char c = text[i];
        int64_t end;
        if (c == '\n') r->line++;
        if (c == ' ' || c == '\t' || c == '\r' || c == '\n' || (in_array && !ended && c == ',')) {
            i++;
            continue;
        }
        if (c == '[' && !in_array && r->n == 0) {
            in_array = true;
            i++;
            continue;
        }
        if (c == ']' && in_array && !ended) {
            ended = true;
            i++;
            continue;
        }
        if (c != '{' || ended)
            return LS_FAIL(err, LS_ERR_FORMAT, "%.200s: line %" PRId64 ": an object is required", name, r->line);
        end = end_of(text, i, bytes);
        LS_TRY(read_object(r, text + i, end - i, name, err));
        for (; i < end; i++) r->line += text[i] == '\n';
    }
    return LS_OK;
}

/* ---- prime-rl and NeMo-RL ---- */

static ls_status take_dump(reader *r, const ls_dump *dump, ls_error *err) {
    const float *values = r->of_trainer ? dump->trainer : dump->rollout;
    for (int64_t s = 0; s < dump->n_sequences; s++) {
        const int64_t from = dump->offsets[s], n = dump->offsets[s + 1] - from;
        ls_record *one;
        r->line = dump->lines[s];
        LS_TRY(add_record(r, &one, NULL, 0, 1, n > 0 ? n - 1 : 0, err));
        one->is_tokens = true;
        LS_TRY(ls_array_alloc((void **)&one->completion_ids, n > 0 ? n : 1, sizeof *one->completion_ids, "ids", err));
        one->n_completion = n;
        if (n > 0) memcpy(one->completion_ids, dump->token_ids + from, (size_t)n * sizeof *one->completion_ids);
        for (int64_t i = 1; i < n; i++) {
            const bool missing = isnan(values[from + i]) || !dump->mask[from + i];
            one->logprobs[i - 1] = missing ? 0.0f : values[from + i];
            one->logprob_missing[i - 1] = missing;
        }
    }
    return LS_OK;
}

/* ---- the whole ---- */

/* By id; those of one id in the order of the file. */
static int by_id(const void *a, const void *b) {
    const ls_record *const *x = a, *const *y = b;
    const int order = strcmp((*x)->id, (*y)->id);
    return order != 0 ? order : (*x > *y) - (*x < *y);
}

static bool same_id(const ls_record *a, const ls_record *b) { return strcmp(a->id, b->id) == 0; }

/* Samples that share the name of their group get numbers behind it. */
static ls_status number_groups(ls_record **sorted, int64_t n, ls_error *err) {
    for (int64_t first = 0, end; first < n; first = end) {
        for (end = first + 1; end < n && same_id(sorted[end], sorted[first]);) end++;
        for (int64_t i = end - first > 1 ? first : end; i < end; i++) {
            char text[340];
            snprintf(text, sizeof text, "%.300s/%" PRId64, sorted[i]->id, i - first);
            free(sorted[i]->id);
            sorted[i]->id = NULL;
            LS_TRY(ls_text_copy(&sorted[i]->id, text, (int64_t)strlen(text), err));
        }
    }
    return LS_OK;
}

static ls_status check_records(const reader *r, const char *name, ls_error *err) {
    ls_record **sorted = NULL;
    bool any = r->of_suspect && r->n > 0;
    ls_status status;
    for (int64_t i = 0; i < r->n && !any; i++)
        for (int64_t k = 0; k < r->records[i].n_logprobs && !any; k++) any = !r->records[i].logprob_missing[k];
    if (!any) return LS_FAIL(err, LS_ERR_FORMAT, "%.200s: no log-probability", name);
    LS_TRY(ls_array_alloc((void **)&sorted, r->n, sizeof *sorted, "ids", err));
    for (int64_t i = 0; i < r->n; i++) sorted[i] = &r->records[i];
    qsort(sorted, (size_t)r->n, sizeof *sorted, by_id);
    status = LS_OK;
    if (r->format == LS_ANSWER_VERL) {
        LS_TRY_DONE(number_groups(sorted, r->n, err));
        qsort(sorted, (size_t)r->n, sizeof *sorted, by_id);
    }
    for (int64_t i = 1; i < r->n && status == LS_OK; i++)
        if (same_id(sorted[i], sorted[i - 1]))
            status = LS_FAIL(err, LS_ERR_FORMAT, "%.200s: line %" PRId64 ": id '%.200s' is there twice", name,
                             sorted[i]->line, sorted[i]->id);
done:
    free(sorted);
    return status;
}

static ls_status parse_answers(reader r, ls_record **out, int64_t *n, const char *text, int64_t bytes, const char *name,
                               ls_error *err) {
    ls_dump dump = {0};
    ls_status status;
    *out = NULL;
    *n = 0;
    if (r.format >= LS_ANSWER_PRIME_RL) {
        LS_TRY_DONE(ls_dump_parse(&dump, text, bytes, name,
                                  r.format == LS_ANSWER_PRIME_RL ? LS_DUMP_PRIME_RL : LS_DUMP_NEMO_RL, err));
        LS_TRY_DONE(take_dump(&r, &dump, err));
    } else {
        LS_TRY_DONE(read_objects(&r, text, bytes, name, err));
    }
    LS_TRY_DONE(check_records(&r, name, err));
    *out = r.records;
    *n = r.n;
    r.records = NULL;
    r.n = 0;
done:
    ls_dump_deinit(&dump);
    ls_records_free(r.records, r.n);
    return status;
}

ls_status ls_answers_parse(ls_record **out, int64_t *n, const char *text, int64_t bytes, const char *name,
                           ls_answer_format format, bool of_trainer, ls_error *err) {
    const reader r = {.format = format, .of_trainer = of_trainer};
    return parse_answers(r, out, n, text, bytes, name, err);
}

ls_status ls_answers_parse_any(ls_record **out, int64_t *n, const char *text, int64_t bytes, const char *name,
                               ls_answer_format format, ls_error *err) {
    const reader r = {.format = format, .of_suspect = true};
    return parse_answers(r, out, n, text, bytes, name, err);
}

ls_status ls_answers_read(ls_record **out, int64_t *n, const char *path, ls_answer_format format, bool of_trainer,
                          bool by_order, ls_error *err) {
    const reader r = {.format = format, .of_trainer = of_trainer, .by_order = by_order};
    char *text = NULL;
    int64_t bytes;
    ls_status status;
    *out = NULL;
    *n = 0;
    LS_TRY(ls_source_read(&text, &bytes, path, FILE_BYTES_MAX, err));
    status = parse_answers(r, out, n, text, bytes, path, err);
    free(text);
    return status;
}
