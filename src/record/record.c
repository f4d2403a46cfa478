/* JSONL records. Owns the growing list while a file is read; everything inside a record belongs to that record. */
#define _POSIX_C_SOURCE 200809L
#include "record/record.h"

#include <errno.h>
#include <float.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "json/json_read.h"
#include "json/json_words.h"
#include "record/source.h"

typedef struct record_list {
    ls_record *records;
    int64_t n, cap;
    bool by_order; /* ids are the numbers of the records, from 0 */
} record_list;

void ls_record_init(ls_record *record) {
    memset(record, 0, sizeof *record);
    record->sample = -1;
    record->top_k = -1;
    record->temperature = record->top_p = record->min_p = (double)NAN;
    record->presence_penalty = record->frequency_penalty = record->repetition_penalty = (double)NAN;
    record->weights = record->slot = record->cache_hit = record->preemptions = -1;
}

void ls_record_deinit(ls_record *record) {
    free(record->id);
    free(record->prompt);
    free(record->chat);
    free(record->prompt_ids);
    free(record->completion_ids);
    free(record->logprobs);
    free(record->logprob_missing);
    free(record->finish);
    free(record->text);
    free(record->logprob_of);
    free(record->digest);
    free(record->error);
    free(record->token_weights);
    for (int64_t i = 0; i < record->n_levers; i++) {
        free(record->levers[i].name);
        free(record->levers[i].value);
    }
    free(record->levers);
    ls_record_init(record);
}

void ls_records_free(ls_record *records, int64_t n) {
    if (records == NULL) return;
    for (int64_t i = 0; i < n; i++) ls_record_deinit(&records[i]);
    free(records);
}

/* NULL for a member that is absent or null. */
static const json_t *member(const json_t *object, const char *field) {
    const json_t *value = json_object_get(object, field);
    return json_is_null(value) ? NULL : value;
}

static ls_status fail_value(ls_error *err, const char *field, const json_t *value, const char *expected) {
    char shown[LS_JSON_SHOW_MAX];
    return LS_FAIL(err, LS_ERR_FORMAT, "%s: %s, expected %s", field, ls_json_show(value, shown), expected);
}

/* A string that may contain NUL. */
static ls_status read_text(char **out, int64_t *bytes, const json_t *line, const char *field, ls_error *err) {
    const json_t *value = member(line, field);
    if (value == NULL) return LS_OK;
    if (!json_is_string(value)) return fail_value(err, field, value, "a string");
    *bytes = (int64_t)json_string_length(value);
    return ls_text_copy(out, json_string_value(value), *bytes, err);
}

/* A string that must not. */
static ls_status read_name(char **out, const json_t *line, const char *field, ls_error *err) {
    int64_t bytes = 0;
    LS_TRY(read_text(out, &bytes, line, field, err));
    if (*out != NULL && (int64_t)strlen(*out) != bytes)
        return LS_FAIL(err, LS_ERR_FORMAT, "%s: contains a NUL at byte %zu", field, strlen(*out));
    return LS_OK;
}

static ls_status read_ids(int32_t **out, int64_t *n, const json_t *line, const char *field, ls_error *err) {
    const json_t *list = member(line, field);
    if (list == NULL) return LS_OK;
    if (!json_is_array(list)) return fail_value(err, field, list, "a list of token ids");
    *n = (int64_t)json_array_size(list);
    LS_TRY(ls_array_alloc((void **)out, *n, sizeof **out, field, err));
    for (int64_t i = 0; i < *n; i++) {
        const json_t *id = json_array_get(list, (size_t)i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX) {
            char shown[LS_JSON_SHOW_MAX];
            return LS_FAIL(err, LS_ERR_FORMAT, "%s: item %lld is %s, expected an integer in 0..%d", field, (long long)i,
                           ls_json_show(id, shown), INT32_MAX);
        }
        (*out)[i] = (int32_t)json_integer_value(id);
    }
    return LS_OK;
}

static bool read_bits(float *out, const json_t *item) {
    const char *text = json_string_value(item);
    uint32_t bits = 0;
    if (text == NULL || json_string_length(item) != 8) return false;
    for (int i = 0; i < 8; i++) {
        const char c = text[i];
        uint32_t digit;
        if (c >= '0' && c <= '9') {
            digit = (uint32_t)(c - '0');
        } else if (c >= 'a' && c <= 'f') {
            digit = (uint32_t)(c - 'a') + 10;
        } else if (c >= 'A' && c <= 'F') {
            digit = (uint32_t)(c - 'A') + 10;
        } else {
            return false;
        }
        bits = bits << 4 | digit;
    }
    memcpy(out, &bits, sizeof *out);
    return true;
}

static bool read_record_number(float *out, const json_t *item) {
    const double value = json_number_value(item);
    if (!json_is_number(item) || !(fabs(value) <= (double)FLT_MAX)) return false;
    *out = (float)value;
    return true;
}

/* The value beside its bits, both being there: null is how JSON says what is not finite. Some writers round what is for
 * people. */
static bool contradicts(const json_t *value, const json_t *bits) {
    float shown, meant;
    if (json_is_null(bits)) return !json_is_null(value);
    if (!read_bits(&meant, bits)) return false; /* told when the bits are read */
    if (json_is_null(value)) return isfinite(meant);
    return read_record_number(&shown, value) &&
           (!isfinite(meant) || fabs((double)shown - (double)meant) > 1e-4 * fabs((double)meant) + 1e-6);
}

static ls_status check_agreement(const ls_record *record, const json_t *values, const json_t *bits, ls_error *err) {
    for (int64_t i = 0; i < record->n_logprobs; i++) {
        const json_t *value = json_array_get(values, (size_t)i), *meant = json_array_get(bits, (size_t)i);
        char shown[LS_JSON_SHOW_MAX], shown_bits[LS_JSON_SHOW_MAX];
        if (contradicts(value, meant))
            return LS_FAIL(
                err, LS_ERR_FORMAT,
                "logprobs: item %lld is %s, and %s in logprob_bits, which must be the same value; change both, or "
                "leave logprob_bits out",
                (long long)i, ls_json_show(value, shown), ls_json_show(meant, shown_bits));
    }
    return LS_OK;
}

/* Fills the record from one of the two lists; the second call, for the bits, overwrites the first. */
static ls_status read_logprob_list(ls_record *record, const json_t *list, const char *field, ls_record_kind kind,
                                   ls_error *err) {
    const bool is_bits = strcmp(field, "logprob_bits") == 0;
    if (json_array_size(list) != (size_t)record->n_logprobs)
        return LS_FAIL(err, LS_ERR_FORMAT, "%s: %zu entries, expected %lld", field, json_array_size(list),
                       (long long)record->n_logprobs);
    for (int64_t i = 0; i < record->n_logprobs; i++) {
        const json_t *item = json_array_get(list, (size_t)i);
        char shown[LS_JSON_SHOW_MAX];
        record->logprobs[i] = 0.0f;
        record->logprob_missing[i] = json_is_null(item);
        if (json_is_null(item)) continue;
        if (!(is_bits ? read_bits(&record->logprobs[i], item) : read_record_number(&record->logprobs[i], item)))
            return LS_FAIL(err, LS_ERR_FORMAT, "%s: item %lld is %s, expected %s or null", field, (long long)i,
                           ls_json_show(item, shown), is_bits ? "8 hex digits" : "a float32 number");
        if (kind != LS_RECORD_VALUE && isfinite(record->logprobs[i]) && record->logprobs[i] > LS_LOGPROB_MAX)
            return LS_FAIL(err, LS_ERR_FORMAT, "%s: item %lld is %.9g; a log-probability is at most 0", field,
                           (long long)i, (double)record->logprobs[i]);
    }
    return LS_OK;
}

static ls_status read_logprobs(ls_record *record, const json_t *line, ls_record_kind kind, ls_error *err) {
    const json_t *values = member(line, "logprobs"), *bits = member(line, "logprob_bits");
    if (values == NULL && bits == NULL) return LS_OK;
    if (values != NULL && !json_is_array(values)) return fail_value(err, "logprobs", values, "a list");
    if (bits != NULL && !json_is_array(bits)) return fail_value(err, "logprob_bits", bits, "a list");
    record->has_logprobs = true;
    record->n_logprobs = (int64_t)json_array_size(values != NULL ? values : bits);
    if (record->completion_ids != NULL)
        record->n_logprobs =
            record->is_tokens && record->n_completion > 0 ? record->n_completion - 1 : record->n_completion;
    LS_TRY(ls_array_alloc((void **)&record->logprobs, record->n_logprobs, sizeof *record->logprobs, "logprobs", err));
    LS_TRY(ls_array_alloc((void **)&record->logprob_missing, record->n_logprobs, 1, "logprobs", err));
    if (values != NULL) LS_TRY(read_logprob_list(record, values, "logprobs", kind, err));
    if (bits != NULL) LS_TRY(read_logprob_list(record, bits, "logprob_bits", kind, err));
    if (values != NULL && bits != NULL) LS_TRY(check_agreement(record, values, bits, err));
    return LS_OK;
}

static ls_status read_seed(ls_record *record, const json_t *line, ls_error *err) {
    const json_t *value = member(line, "seed");
    const char *text = json_string_value(value);
    if (value == NULL) return LS_OK;
    record->has_seed = true;
    if (json_is_integer(value) && json_integer_value(value) >= 0) {
        record->seed = (uint64_t)json_integer_value(value);
        return LS_OK;
    }
    if (text != NULL && text[0] >= '0' && text[0] <= '9' && strlen(text) == json_string_length(value)) {
        char *end;
        errno = 0;
        record->seed = strtoull(text, &end, 10);
        if (*end == '\0' && errno == 0) return LS_OK;
    }
    return fail_value(err, "seed", value, "an integer in 0..18446744073709551615");
}

static ls_status read_count(int64_t *out, const json_t *object, const char *field, ls_error *err) {
    const json_t *value = member(object, field);
    if (value == NULL) return LS_OK;
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return fail_value(err, field, value, "a non-negative integer");
    *out = json_integer_value(value);
    return LS_OK;
}

static ls_status read_double(double *out, const json_t *object, const char *field, ls_error *err) {
    const json_t *value = member(object, field);
    if (value == NULL) return LS_OK;
    if (!json_is_number(value)) return fail_value(err, field, value, "a number");
    *out = json_number_value(value);
    return LS_OK;
}

static ls_status read_lever(ls_record_lever *lever, const char *name, const json_t *value, ls_error *err) {
    char number[LS_DOUBLE_TEXT_MAX];
    LS_TRY(ls_text_copy(&lever->name, name, (int64_t)strlen(name), err));
    lever->is_number = json_is_number(value);
    if (json_is_integer(value)) {
        snprintf(number, sizeof number, "%lld", (long long)json_integer_value(value));
    } else if (json_is_real(value)) {
        ls_double_text(number, json_real_value(value) + 0.0); /* there is no integer -0 */
    } else if (!json_is_string(value)) {
        return fail_value(err, name, value, "a string or a number");
    } else if (strlen(json_string_value(value)) != json_string_length(value)) {
        return LS_FAIL(err, LS_ERR_FORMAT, "%.200s: contains a NUL", name);
    }
    {
        const char *text = lever->is_number ? number : json_string_value(value);
        LS_TRY(ls_text_copy(&lever->value, text, (int64_t)strlen(text), err));
    }
    return LS_OK;
}

static ls_status read_levers(ls_record *record, const json_t *meta, ls_error *err) {
    json_t *levers = json_object_get(meta, "levers"), *value;
    const char *name;
    ls_status status;
    if (levers == NULL || json_is_null(levers)) return LS_OK;
    if (!json_is_object(levers)) return fail_value(err, "levers", levers, "an object");
    LS_TRY_DONE(ls_array_alloc((void **)&record->levers, (int64_t)json_object_size(levers), sizeof *record->levers,
                               "levers", err));
    json_object_foreach(levers, name, value) {
        if ((status = read_lever(&record->levers[record->n_levers++], name, value, err)) == LS_OK) continue;
        ls_error_prefix(err, "levers");
        break;
    }
done:
    return status;
}

/* A number, or one for each token of the completion. */
static ls_status read_weights(ls_record *record, const json_t *meta, ls_error *err) {
    const json_t *list = member(meta, "weights");
    const int64_t n = record->n_completion;
    if (list == NULL || !json_is_array(list)) return read_count(&record->weights, meta, "weights", err);
    if ((int64_t)json_array_size(list) != n)
        return LS_FAIL(err, LS_ERR_FORMAT, "weights: %lld versions of %lld tokens", (long long)json_array_size(list),
                       (long long)n);
    LS_TRY(ls_array_alloc((void **)&record->token_weights, n, sizeof *record->token_weights, "weights", err));
    for (int64_t i = 0; i < n; i++) {
        const json_t *version = json_array_get(list, (size_t)i);
        if (!json_is_integer(version) || json_integer_value(version) < 0)
            return fail_value(err, "weights", version, "a non-negative integer");
        record->token_weights[i] = json_integer_value(version);
    }
    return LS_OK;
}

static ls_status read_meta(ls_record *record, const json_t *line, ls_error *err) {
    const json_t *meta = member(line, "meta");
    ls_status status;
    if (meta == NULL) return LS_OK;
    if (!json_is_object(meta)) return fail_value(err, "meta", meta, "an object");
    record->has_meta = true;
    LS_TRY_DONE(read_name(&record->logprob_of, meta, "logprob_of", err));
    if (record->logprob_of != NULL && strcmp(record->logprob_of, "raw") != 0 &&
        strcmp(record->logprob_of, "processed") != 0) {
        status = fail_value(err, "logprob_of", member(meta, "logprob_of"), "\"raw\" or \"processed\"");
        goto done;
    }
    LS_TRY_DONE(read_double(&record->temperature, meta, "temperature", err));
    LS_TRY_DONE(read_count(&record->top_k, meta, "top_k", err));
    LS_TRY_DONE(read_double(&record->top_p, meta, "top_p", err));
    LS_TRY_DONE(read_double(&record->min_p, meta, "min_p", err));
    LS_TRY_DONE(read_double(&record->presence_penalty, meta, "presence_penalty", err));
    LS_TRY_DONE(read_double(&record->frequency_penalty, meta, "frequency_penalty", err));
    LS_TRY_DONE(read_double(&record->repetition_penalty, meta, "repetition_penalty", err));
    LS_TRY_DONE(read_name(&record->digest, meta, "digest", err));
    LS_TRY_DONE(read_weights(record, meta, err));
    LS_TRY_DONE(read_count(&record->slot, meta, "slot", err));
    LS_TRY_DONE(read_count(&record->cache_hit, meta, "cache_hit", err));
    LS_TRY_DONE(read_count(&record->preemptions, meta, "preemptions", err));
    LS_TRY_DONE(read_name(&record->error, meta, "error", err));
    LS_TRY_DONE(read_levers(record, meta, err));
done:
    if (status != LS_OK) ls_error_prefix(err, "meta");
    return status;
}

static ls_status read_tokens(ls_record *record, const json_t *line, ls_error *err) {
    ls_status status;
    LS_TRY_DONE(read_ids(&record->prompt_ids, &record->n_prompt, line, "prompt_ids", err));
    LS_TRY_DONE(read_ids(&record->completion_ids, &record->n_completion, line, "completion_ids", err));
    if (member(line, "token_ids") == NULL) goto done;
    if (record->prompt_ids != NULL || record->completion_ids != NULL) {
        status = LS_FAIL(err, LS_ERR_FORMAT, "token_ids: stands beside %s, which say the same tokens another way",
                         record->prompt_ids != NULL ? "prompt_ids" : "completion_ids");
        goto done;
    }
    LS_TRY_DONE(read_ids(&record->completion_ids, &record->n_completion, line, "token_ids", err));
    record->is_tokens = true;
done:
    return status;
}

/* The members of a conversation, as an object of their own. */
static ls_status read_chat(ls_record *record, const json_t *line, ls_error *err) {
    static const char *const names[] = {"messages", "tools", "documents", "chat_template_kwargs"};
    const json_t *messages = member(line, "messages");
    json_t *chat;
    if (messages == NULL) return LS_OK;
    if (!json_is_array(messages)) return fail_value(err, "messages", messages, "a list");
    if ((chat = json_object()) == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "messages");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (member(line, names[i]) != NULL) json_object_set(chat, names[i], json_object_get(line, names[i]));
    record->chat = json_dumps(chat, JSON_COMPACT);
    json_decref(chat);
    return record->chat != NULL ? LS_OK : LS_FAIL(err, LS_ERR_NOMEM, "messages");
}

static ls_status check_kind(const ls_record *record, ls_record_kind kind, ls_error *err) {
    switch (kind) {
        case LS_RECORD_PROMPT:
            if (record->chat != NULL && (record->prompt != NULL || record->prompt_ids != NULL))
                return LS_FAIL(err, LS_ERR_FORMAT, "id '%.200s': messages beside prompt or prompt_ids, expected one",
                               record->id);
            if (record->chat != NULL) return LS_OK;
            if (record->prompt == NULL && record->prompt_ids == NULL)
                return LS_FAIL(err, LS_ERR_FORMAT, "id '%.200s': neither prompt nor prompt_ids", record->id);
            if (record->prompt != NULL && record->prompt_ids != NULL)
                return LS_FAIL(err, LS_ERR_FORMAT, "id '%.200s': both prompt and prompt_ids, expected one", record->id);
            if (record->prompt_ids != NULL && record->n_prompt == 0)
                return LS_FAIL(err, LS_ERR_FORMAT, "prompt_ids: an empty list");
            return LS_OK;
        case LS_RECORD_SEQUENCE:
            if (record->chat != NULL && record->completion_ids != NULL)
                return LS_FAIL(err, LS_ERR_FORMAT, "id '%.200s': messages beside ids of tokens, expected one",
                               record->id);
            if (record->chat != NULL) return LS_OK;
            if (record->completion_ids == NULL)
                return LS_FAIL(err, LS_ERR_FORMAT, "id '%.200s': neither token_ids nor completion_ids", record->id);
            if (!record->is_tokens && record->prompt_ids == NULL)
                return LS_FAIL(err, LS_ERR_FORMAT, "prompt_ids: missing beside completion_ids");
            if (record->is_tokens ? record->n_completion == 0 : record->n_prompt == 0)
                return LS_FAIL(err, LS_ERR_FORMAT, "%s: an empty list", record->is_tokens ? "token_ids" : "prompt_ids");
            return LS_OK;
        case LS_RECORD_LOGPROB:
        case LS_RECORD_VALUE:
            if (!record->has_logprobs)
                return LS_FAIL(err, LS_ERR_FORMAT, "id '%.200s': neither logprobs nor logprob_bits", record->id);
            return LS_OK;
    }
    return LS_FAIL(err, LS_ERR_ARG, "record kind %d", (int)kind);
}

/* A name, or an integer, which is the name of its digits. With number > 0 the record is that one of its file, from 1,
 * and its id is what counts from 0. */
static ls_status read_id(ls_record *record, const json_t *line, int64_t number, ls_error *err) {
    const json_t *value = member(line, "id");
    char digits[24];
    if (number == 0 && !json_is_integer(value)) return read_name(&record->id, line, "id", err);
    snprintf(digits, sizeof digits, "%lld", number > 0 ? (long long)number - 1 : (long long)json_integer_value(value));
    return ls_text_copy(&record->id, digits, (int64_t)strlen(digits), err);
}

static ls_status read_record(ls_record *record, const json_t *line, int64_t number, ls_record_kind kind,
                             ls_error *err) {
    LS_TRY(read_id(record, line, number, err));
    if (record->id == NULL) {
        return LS_FAIL(err, LS_ERR_FORMAT, "id: missing");
    }
    LS_TRY(read_text(&record->prompt, &record->prompt_bytes, line, "prompt", err));
    LS_TRY(read_chat(record, line, err));
    LS_TRY(read_tokens(record, line, err));
    LS_TRY(read_logprobs(record, line, kind, err));
    LS_TRY(read_name(&record->finish, line, "finish", err));
    LS_TRY(read_seed(record, line, err));
    LS_TRY(read_count(&record->sample, line, "sample", err));
    LS_TRY(read_text(&record->text, &record->text_bytes, line, "text", err));
    LS_TRY(read_meta(record, line, err));
    return check_kind(record, kind, err);
}

/* The error sentence lacks the file, which the caller puts in front. */
static ls_status add_line(record_list *list, const char *text, int64_t bytes, int64_t line_i, ls_record_kind kind,
                          ls_error *err) {
    ls_status status;
    json_t *line = NULL;
    char *plain = NULL;
    char place[40];
    ls_record *record;
    if (ls_line_is_blank(text, bytes)) return LS_OK;
    snprintf(place, sizeof place, "line %lld", (long long)line_i);
    if (ls_json_has_words(text, bytes)) {
        LS_TRY_DONE(ls_json_plain(&plain, &bytes, text, bytes, err));
        text = plain;
    }
    LS_TRY_DONE(ls_json_parse_with_nul(&line, text, bytes, place, err));
    LS_TRY_DONE(ls_array_grow((void **)&list->records, &list->cap, list->n + 1, sizeof *list->records, "records", err));
    record = &list->records[list->n++]; /* from here on the list frees it */
    ls_record_init(record);
    record->line = line_i;
    if ((status = read_record(record, line, list->by_order ? list->n : 0, kind, err)) != LS_OK)
        ls_error_prefix(err, "%s", place);
done:
    ls_json_release(line);
    free(plain);
    return status;
}

static int compare_ids(const void *a, const void *b) {
    const ls_record *const *x = a, *const *y = b;
    const int order = strcmp((*x)->id, (*y)->id);
    if (order != 0) return order;
    return (*x)->line < (*y)->line ? -1 : (*x)->line > (*y)->line;
}

/* Names the repetition that comes first in the file. */
static ls_status check_ids(const record_list *list, ls_error *err) {
    ls_status status;
    const ls_record **sorted = NULL, *first = NULL, *again = NULL;
    LS_TRY_DONE(ls_array_alloc((void **)&sorted, list->n, sizeof *sorted, "ids", err));
    for (int64_t i = 0; i < list->n; i++) sorted[i] = &list->records[i];
    qsort(sorted, (size_t)list->n, sizeof *sorted, compare_ids);
    for (int64_t i = 1; i < list->n; i++) {
        if (strcmp(sorted[i]->id, sorted[i - 1]->id) != 0) continue;
        if (again != NULL && again->line < sorted[i]->line) continue;
        first = sorted[i - 1];
        again = sorted[i];
    }
    if (again != NULL)
        status = LS_FAIL(err, LS_ERR_FORMAT, "line %lld: id: '%.200s' is also on line %lld", (long long)again->line,
                         again->id, (long long)first->line);
done:
    free(sorted);
    return status;
}

static ls_status finish_list(record_list *list, ls_record **out, int64_t *n, ls_error *err) {
    if (list->n == 0) return LS_FAIL(err, LS_ERR_FORMAT, "no record");
    LS_TRY(check_ids(list, err));
    *out = list->records;
    *n = list->n;
    list->records = NULL;
    list->n = 0;
    return LS_OK;
}

static ls_status read_file(ls_record **out, int64_t *n, const char *path, ls_record_kind kind, bool by_order,
                           ls_error *err) {
    ls_source *source = NULL;
    record_list list = {.by_order = by_order};
    char *line = NULL;
    int64_t line_cap = 0, bytes, line_i = 0;
    bool more;
    ls_status status;
    *out = NULL;
    *n = 0;
    LS_TRY(ls_source_open(&source, path, err));
    for (;;) {
        line_i++;
        LS_TRY_DONE(ls_source_line(source, &line, &line_cap, &bytes, LS_LINE_BYTES_MAX, &more, err));
        if (!more) break;
        LS_TRY_DONE(add_line(&list, line, bytes, line_i, kind, err));
    }
    LS_TRY_DONE(finish_list(&list, out, n, err));
done:
    if (status != LS_OK) ls_error_prefix(err, "%s", ls_source_name(source));
    ls_records_free(list.records, list.n);
    free(line);
    ls_source_close(source);
    return status;
}

ls_status ls_records_read(ls_record **out, int64_t *n, const char *path, ls_record_kind kind, ls_error *err) {
    return read_file(out, n, path, kind, false, err);
}

ls_status ls_records_read_by_order(ls_record **out, int64_t *n, const char *path, ls_record_kind kind, ls_error *err) {
    return read_file(out, n, path, kind, true, err);
}

ls_status ls_records_parse(ls_record **out, int64_t *n, const char *text, int64_t bytes, const char *name,
                           ls_record_kind kind, ls_error *err) {
    ls_status status = LS_OK;
    record_list list = {0};
    int64_t at = 0, line_i = 0;
    *out = NULL;
    *n = 0;
    while (at < bytes) {
        const char *newline = memchr(text + at, '\n', (size_t)(bytes - at));
        const int64_t end = newline != NULL ? newline - text : bytes;
        line_i++;
        if (end - at > LS_LINE_BYTES_MAX) {
            status = LS_FAIL(err, LS_ERR_FORMAT, "line %lld: line is longer than %d bytes", (long long)line_i,
                             LS_LINE_BYTES_MAX);
            goto done;
        }
        LS_TRY_DONE(add_line(&list, text + at, end - at, line_i, kind, err));
        at = end + 1;
    }
    LS_TRY_DONE(finish_list(&list, out, n, err));
done:
    if (status != LS_OK) ls_error_prefix(err, "%s", name);
    ls_records_free(list.records, list.n);
    return status;
}

static void write_ids(ls_json_out *json, const char *field, const int32_t *ids, int64_t n) {
    if (ids == NULL) return;
    ls_json_begin_array(json, field);
    for (int64_t i = 0; i < n; i++) ls_json_int(json, NULL, ids[i]);
    ls_json_end_array(json);
}

static void write_bits(ls_json_out *json, float value) {
    uint32_t bits;
    char text[9];
    memcpy(&bits, &value, sizeof bits);
    snprintf(text, sizeof text, "%08x", bits);
    ls_json_string(json, NULL, text);
}

static void write_logprobs(ls_json_out *json, const ls_record *record) {
    if (!record->has_logprobs) return;
    ls_json_begin_array(json, "logprobs");
    for (int64_t i = 0; i < record->n_logprobs; i++) {
        if (record->logprob_missing[i]) {
            ls_json_null(json, NULL);
        } else {
            ls_json_float(json, NULL, record->logprobs[i]);
        }
    }
    ls_json_end_array(json);
    ls_json_begin_array(json, "logprob_bits");
    for (int64_t i = 0; i < record->n_logprobs; i++) {
        if (record->logprob_missing[i])
            ls_json_null(json, NULL);
        else
            write_bits(json, record->logprobs[i]);
    }
    ls_json_end_array(json);
}

/* A list for each completion token; `what` is 0 for ids, 1 for log-probabilities, 2 for their bits. */
static void write_top_lists(ls_json_out *json, const char *key, const ls_record *record, int what) {
    ls_json_begin_array(json, key);
    for (int64_t t = 0; t < record->n_completion; t++) {
        ls_json_begin_array(json, NULL);
        for (int64_t k = t * record->n_top; k < (t + 1) * record->n_top; k++) {
            if (what == 0) ls_json_int(json, NULL, record->top_ids[k]);
            if (what == 1) ls_json_float(json, NULL, record->top_logprobs[k]);
            if (what == 2) write_bits(json, record->top_logprobs[k]);
        }
        ls_json_end_array(json);
    }
    ls_json_end_array(json);
}

static void write_top(ls_json_out *json, const ls_record *record) {
    if (record->n_top == 0) return;
    write_top_lists(json, "top_ids", record, 0);
    write_top_lists(json, "top_logprobs", record, 1);
    write_top_lists(json, "top_logprob_bits", record, 2);
}

static void write_levers(ls_json_out *json, const ls_record *record) {
    if (record->levers == NULL) return;
    ls_json_begin_object(json, "levers");
    for (int64_t i = 0; i < record->n_levers; i++) {
        const ls_record_lever *lever = &record->levers[i];
        if (!lever->is_number)
            ls_json_string(json, lever->name, lever->value);
        else if (strpbrk(lever->value, ".eE") != NULL)
            ls_json_double(json, lever->name, strtod(lever->value, NULL));
        else
            ls_json_int(json, lever->name, strtoll(lever->value, NULL, 10));
    }
    ls_json_end_object(json);
}

static void write_weights(ls_json_out *json, const ls_record *record) {
    if (record->weights >= 0) ls_json_int(json, "weights", record->weights);
    if (record->token_weights == NULL) return;
    ls_json_begin_array(json, "weights");
    for (int64_t i = 0; i < record->n_completion; i++) ls_json_int(json, NULL, record->token_weights[i]);
    ls_json_end_array(json);
}

static void write_meta(ls_json_out *json, const ls_record *record) {
    if (!record->has_meta) return;
    ls_json_begin_object(json, "meta");
    if (record->logprob_of != NULL) ls_json_string(json, "logprob_of", record->logprob_of);
    if (!isnan(record->temperature)) ls_json_double(json, "temperature", record->temperature);
    if (record->top_k >= 0) ls_json_int(json, "top_k", record->top_k);
    if (!isnan(record->top_p)) ls_json_double(json, "top_p", record->top_p);
    if (!isnan(record->min_p)) ls_json_double(json, "min_p", record->min_p);
    if (!isnan(record->presence_penalty)) ls_json_double(json, "presence_penalty", record->presence_penalty);
    if (!isnan(record->frequency_penalty)) ls_json_double(json, "frequency_penalty", record->frequency_penalty);
    if (!isnan(record->repetition_penalty)) ls_json_double(json, "repetition_penalty", record->repetition_penalty);
    if (record->digest != NULL) ls_json_string(json, "digest", record->digest);
    write_weights(json, record);
    if (record->slot >= 0) ls_json_int(json, "slot", record->slot);
    if (record->cache_hit >= 0) ls_json_int(json, "cache_hit", record->cache_hit);
    if (record->preemptions >= 0) ls_json_int(json, "preemptions", record->preemptions);
    if (record->error != NULL) ls_json_string(json, "error", record->error);
    write_levers(json, record);
    ls_json_end_object(json);
}

static void write_seed(ls_json_out *json, const ls_record *record) {
    if (!record->has_seed) return;
    if (record->seed <= INT64_MAX) {
        ls_json_uint(json, "seed", record->seed);
    } else {
        char text[24];
        snprintf(text, sizeof text, "%llu", (unsigned long long)record->seed);
        ls_json_string(json, "seed", text);
    }
}

void ls_record_write(ls_json_out *json, const ls_record *record) {
    ls_json_begin_object(json, NULL);
    ls_json_string(json, "id", record->id);
    if (record->prompt_ids == NULL && record->prompt != NULL)
        ls_json_text(json, "prompt", record->prompt, record->prompt_bytes);
    write_ids(json, "prompt_ids", record->prompt_ids, record->n_prompt);
    write_ids(json, record->is_tokens ? "token_ids" : "completion_ids", record->completion_ids, record->n_completion);
    write_logprobs(json, record);
    write_top(json, record);
    if (record->finish != NULL) ls_json_string(json, "finish", record->finish);
    write_seed(json, record);
    if (record->sample >= 0) ls_json_int(json, "sample", record->sample);
    if (record->text != NULL) ls_json_text(json, "text", record->text, record->text_bytes);
    write_meta(json, record);
    ls_json_end_object(json);
    ls_json_newline(json);
}

void ls_score_write(ls_json_out *json, const ls_record *record) {
    ls_json_begin_object(json, NULL);
    ls_json_string(json, "id", record->id);
    if (record->is_tokens) write_ids(json, "token_ids", record->completion_ids, record->n_completion);
    write_logprobs(json, record);
    ls_json_end_object(json);
    ls_json_newline(json);
}
