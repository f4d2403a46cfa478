/* One parser for every value: what JSON gave is checked for its type and goes on as text. */
#define _POSIX_C_SOURCE 200809L
#include "train/config.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/closest.h"
#include "base/file.h"
#include "base/fnv.h"
#include "base/mem.h"
#include "base/url.h"
#include "base/utf8.h"
#include "json/json_comments.h"

#define CONFIG_BYTES_MAX (1 << 20)

void ls_config_add(ls_config *config, ls_option_table table) {
    LS_ASSERT(config->n < LS_CONFIG_TABLES_MAX, "%lld tables", (long long)config->n);
    config->tables[config->n++] = table;
}

static void *option_value(const ls_option_table *table, const ls_option *o) {
    return (uint8_t *)table->values + o->offset;
}

static const ls_option *find_option(const ls_config *config, const char *name, size_t n, void **value) {
    for (int64_t t = 0; t < config->n; t++)
        for (int64_t i = 0; i < config->tables[t].n; i++) {
            const ls_option *o = &config->tables[t].options[i];
            if (strlen(o->name) != n || memcmp(o->name, name, n) != 0) continue;
            *value = option_value(&config->tables[t], o);
            return o;
        }
    return NULL;
}

static bool has_option(const ls_config *config, const char *name) {
    void *value;
    return find_option(config, name, strlen(name), &value) != NULL;
}

/* "; did you mean rate?": of the word that other trainers have for it, or of a near one; else where all are. */
static const char *hint(char out[LS_CLOSEST_HINT_MAX], const ls_config *config, const char *name, size_t n) {
    static const char *const words[][2] = {{"lr", "rate"},
                                           {"learning_rate", "rate"},
                                           {"lr_scheduler_type", "schedule"},
                                           {"warmup_steps", "warmup"},
                                           {"weight_decay", "decay"},
                                           {"max_grad_norm", "clip"},
                                           {"batch_size", "batch"},
                                           {"per_device_train_batch_size", "batch"},
                                           {"num_train_epochs", "epochs"},
                                           {"max_steps", "steps"},
                                           {"num_generations", "samples"},
                                           {"max_completion_length", "max_tokens"},
                                           {"max_new_tokens", "max_tokens"},
                                           {"reward_funcs", "reward"},
                                           {"template", "data_template"}};
    ls_closest closest = {0};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strlen(words[i][0]) == n && memcmp(words[i][0], name, n) == 0 && has_option(config, words[i][1]))
            closest.name = words[i][1];
    if (closest.name != NULL) return ls_closest_hint(out, &closest, "");
    for (int64_t t = 0; t < config->n; t++)
        for (int64_t i = 0; i < config->tables[t].n; i++)
            ls_closest_try(&closest, name, (int64_t)n, config->tables[t].options[i].name);
    if (closest.name == NULL) {
        snprintf(out, LS_CLOSEST_HINT_MAX, "; --keys lists all");
        return out;
    }
    return ls_closest_hint(out, &closest, "");
}

/* ---- from text; sentences begin with the option's name ---- */

static ls_status set_int(int64_t *value, const ls_option *o, const char *text, ls_error *err) {
    char *end;
    long long number;
    errno = 0;
    number = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || (double)number < o->low || (double)number > o->high)
        return LS_FAIL(err, LS_ERR_ARG, "%s: '%.100s' is not an integer in %.0f..%.0f", o->name, text, o->low, o->high);
    *value = number;
    return LS_OK;
}

static ls_status set_seed(uint64_t *value, const ls_option *o, const char *text, ls_error *err) {
    char *end;
    unsigned long long number;
    errno = 0;
    number = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0)
        return LS_FAIL(err, LS_ERR_ARG, "%s: '%.100s' is not an integer in 0..2^64-1", o->name, text);
    *value = number;
    return LS_OK;
}

static ls_status set_number(double *value, const ls_option *o, const char *text, ls_error *err) {
    char *end;
    const double number = strtod(text, &end);
    if (end == text || *end != '\0' || !(number >= o->low && number <= o->high))
        return LS_FAIL(err, LS_ERR_ARG, "%s: '%.100s' is not a number in %g..%g", o->name, text, o->low, o->high);
    *value = number + 0.0; /* -0 is 0: JSON writes both alike */
    return LS_OK;
}

static ls_status set_switch(bool *value, const ls_option *o, const char *text, ls_error *err) {
    const bool on = strcmp(text, "true") == 0;
    if (!on && strcmp(text, "false") != 0)
        return LS_FAIL(err, LS_ERR_ARG, "%s: '%.100s' is not true or false", o->name, text);
    *value = on;
    return LS_OK;
}

static ls_status set_choice(int32_t *value, const ls_option *o, const char *text, ls_error *err) {
    char list[256] = "";
    size_t used = 0;
    for (int32_t i = 0; o->choices[i] != NULL; i++)
        if (strcmp(o->choices[i], text) == 0) {
            *value = i;
            return LS_OK;
        }
    for (int32_t i = 0; o->choices[i] != NULL && used < sizeof list; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i == 0 ? "" : ", ", o->choices[i]);
    return LS_FAIL(err, LS_ERR_ARG, "%s: '%.100s' is not one of %s", o->name, text, list);
}

static ls_status set_text(char *value, const ls_option *o, const char *text, ls_error *err) {
    const size_t n = strlen(text);
    if (n >= LS_OPTION_TEXT_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "%s: a text of %zu bytes; the limit is %d", o->name, n, LS_OPTION_TEXT_MAX - 1);
    if (!ls_utf8_valid((const uint8_t *)text, (int64_t)n))
        return LS_FAIL(err, LS_ERR_ARG, "%s: the text is not UTF-8", o->name);
    memcpy(value, text, n + 1);
    return LS_OK;
}

static ls_status set(void *value, const ls_option *o, const char *text, ls_error *err) {
    switch (o->kind) {
        case LS_OPTION_INT: return set_int(value, o, text, err);
        case LS_OPTION_SEED: return set_seed(value, o, text, err);
        case LS_OPTION_NUMBER: return set_number(value, o, text, err);
        case LS_OPTION_SWITCH: return set_switch(value, o, text, err);
        case LS_OPTION_CHOICE: return set_choice(value, o, text, err);
        case LS_OPTION_TEXT:
        case LS_OPTION_VALUE: return set_text(value, o, text, err);
    }
    return LS_FAIL(err, LS_ERR_ARG, "%s: an option of no kind", o->name);
}

ls_status ls_config_set(const ls_config *config, const char *assignment, ls_error *err) {
    const char *equals = strchr(assignment, '=');
    char near[LS_CLOSEST_HINT_MAX];
    const ls_option *o;
    void *value;
    if (equals == NULL) return LS_FAIL(err, LS_ERR_ARG, "'%.100s' is not key=value", assignment);
    o = find_option(config, assignment, (size_t)(equals - assignment), &value);
    if (o == NULL)
        return LS_FAIL(err, LS_ERR_ARG, "'%.*s' is no option of this run%s",
                       (int)(equals - assignment > 100 ? 100 : equals - assignment), assignment,
                       hint(near, config, assignment, (size_t)(equals - assignment)));
    return set(value, o, equals + 1, err);
}

/* ---- from JSON ---- */

/* A choice that is true or false, or something else, takes JSON's own two as well. */
static bool takes_bool(const ls_option *o) {
    for (int i = 0; o->choices[i] != NULL; i++)
        if (strcmp(o->choices[i], "true") == 0) return true;
    return false;
}

static bool fits_kind(const ls_option *o, ls_node_kind found) {
    switch (o->kind) {
        case LS_OPTION_INT: return found == LS_NODE_INT;
        case LS_OPTION_SEED: return found == LS_NODE_INT || found == LS_NODE_TEXT;
        case LS_OPTION_NUMBER: return found == LS_NODE_INT || found == LS_NODE_REAL;
        case LS_OPTION_SWITCH: return found == LS_NODE_BOOL;
        case LS_OPTION_CHOICE: return found == LS_NODE_TEXT || (found == LS_NODE_BOOL && takes_bool(o));
        case LS_OPTION_TEXT: return found == LS_NODE_TEXT;
        case LS_OPTION_VALUE: return found == LS_NODE_INT || found == LS_NODE_REAL || found == LS_NODE_TEXT;
    }
    return false;
}

static const char *kind_name(ls_option_kind kind) {
    static const char *const names[] = {"an integer", "an integer",          "a number", "true or false", "a string",
                                        "a string",   "a string or a number"};
    return names[kind];
}

/* The node's value as set() reads it; *text is released with free(). */
static ls_status text_of(const ls_node *node, const ls_option *o, char **text, ls_error *err) {
    const char *string, *kept = ls_node_kept(node);
    const bool is_long = kept != NULL && strpbrk(kept, ".eE") == NULL; /* a whole number, perhaps a seed */
    *text = NULL;
    if (!fits_kind(o, is_long ? LS_NODE_INT : ls_node_kind_of(node)))
        return ls_node_fail(node, LS_ERR_FORMAT, err, "%s is required", kind_name(o->kind));
    if (is_long) return ls_text_copy(text, kept, (int64_t)strlen(kept), err);
    if (o->kind == LS_OPTION_NUMBER || ls_node_kind_of(node) == LS_NODE_REAL) {
        char number[LS_DOUBLE_TEXT_MAX];
        ls_double_text(number, ls_node_number(node));
        return ls_text_copy(text, number, (int64_t)strlen(number), err);
    }
    if (ls_node_kind_of(node) != LS_NODE_TEXT) return ls_node_dump(node, text, err);
    if (ls_node_string(node, &string, err) != LS_OK) return LS_ERR_FORMAT;
    return ls_text_copy(text, string, (int64_t)strlen(string), err);
}

ls_status ls_config_parse(const ls_config *config, const char *json, int64_t bytes, const char *name, ls_error *err) {
    ls_json_doc *doc = NULL;
    ls_node root, child;
    void *iterator = NULL, *value;
    char *text = NULL, *bare = NULL;
    const int64_t mark = ls_utf8_mark(json, bytes);
    ls_status status;
    json += mark;
    bytes -= mark;
    LS_TRY_DONE(ls_json_without_comments(&bare, json, bytes, name, err));
    LS_TRY_DONE(ls_json_doc_open(&doc, bare, bytes, name, err));
    root = ls_json_root(doc);
    while (ls_node_next(&root, &iterator, &child)) {
        const ls_option *o = find_option(config, child.key, strlen(child.key), &value);
        if (o == NULL) {
            char near[LS_CLOSEST_HINT_MAX];
            status = ls_node_fail(&child, LS_ERR_FORMAT, err, "is no option of this run%s",
                                  hint(near, config, child.key, strlen(child.key)));
            goto done;
        }
        LS_TRY_DONE(text_of(&child, o, &text, err));
        if ((status = set(value, o, text, err)) != LS_OK) {
            ls_error_prefix(err, "%s", name);
            goto done;
        }
        free(text);
        text = NULL;
    }
done:
    free(text);
    free(bare);
    ls_json_doc_free(doc);
    return status;
}

ls_status ls_config_read(const ls_config *config, const char *path, ls_error *err) {
    char *text;
    int64_t bytes;
    ls_status status = ls_file_read(&text, &bytes, path, CONFIG_BYTES_MAX, err);
    if (status != LS_OK) return status;
    status = ls_config_parse(config, text, bytes, path, err);
    free(text);
    return status;
}

/* ---- to text and JSON ---- */

static void format(char text[LS_OPTION_TEXT_MAX], const ls_option *o, const void *value) {
    const int64_t *integer = value;
    const uint64_t *seed = value;
    const double *number = value;
    const int32_t *choice = value;
    const bool *on = value;
    switch (o->kind) {
        case LS_OPTION_INT: snprintf(text, LS_OPTION_TEXT_MAX, "%lld", (long long)*integer); return;
        case LS_OPTION_SEED: snprintf(text, LS_OPTION_TEXT_MAX, "%llu", (unsigned long long)*seed); return;
        case LS_OPTION_NUMBER: ls_double_text(text, *number); return;
        case LS_OPTION_SWITCH: snprintf(text, LS_OPTION_TEXT_MAX, "%s", *on ? "true" : "false"); return;
        case LS_OPTION_CHOICE: snprintf(text, LS_OPTION_TEXT_MAX, "%s", o->choices[*choice]); return;
        case LS_OPTION_TEXT:
        case LS_OPTION_VALUE: ls_url_redact(text, LS_OPTION_TEXT_MAX, value); return; /* it is stored and shown */
    }
}

static void write_option(ls_json_out *json, const ls_option *o, const void *value) {
    char text[LS_OPTION_TEXT_MAX];
    const int64_t *integer = value;
    const double *number = value;
    const bool *on = value;
    format(text, o, value);
    if (o->kind == LS_OPTION_INT)
        ls_json_int(json, o->name, *integer);
    else if (o->kind == LS_OPTION_NUMBER)
        ls_json_double(json, o->name, *number);
    else if (o->kind == LS_OPTION_SWITCH)
        ls_json_bool(json, o->name, *on);
    else
        ls_json_string(json, o->name, text); /* a seed, too: few readers of JSON have its 64 bits */
}

void ls_config_write(ls_json_out *json, const ls_config *config) {
    for (int64_t t = 0; t < config->n; t++)
        for (int64_t i = 0; i < config->tables[t].n; i++) {
            const ls_option *o = &config->tables[t].options[i];
            write_option(json, o, option_value(&config->tables[t], o));
        }
}

ls_status ls_config_text(char **out, int64_t *bytes, const ls_config *config, ls_error *err) {
    size_t n = 0;
    FILE *stream;
    ls_json_out json;
    *out = NULL;
    stream = open_memstream(out, &n);
    if (stream == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "configuration");
    ls_json_init(&json, stream);
    ls_json_begin_object(&json, NULL);
    ls_config_write(&json, config);
    ls_json_end_object(&json);
    if (fclose(stream) != 0) return LS_FAIL(err, LS_ERR_NOMEM, "configuration");
    *bytes = (int64_t)n;
    return LS_OK;
}

/* Line breaks as people write them. */
static void show_breaks(char text[LS_OPTION_TEXT_MAX]) {
    size_t n = strlen(text);
    for (char *at = text; (at = strchr(at, '\n')) != NULL && n + 2 < LS_OPTION_TEXT_MAX; at += 2, n++) {
        memmove(at + 2, at + 1, n - (size_t)(at - text));
        memcpy(at, "\\n", 2);
    }
}

void ls_config_print(FILE *file, const ls_option_table *table, int64_t i) {
    char text[LS_OPTION_TEXT_MAX];
    const ls_option *o = &table->options[i];
    format(text, o, option_value(table, o));
    if (o->kind == LS_OPTION_NUMBER) ls_double_show(text, *(const double *)option_value(table, o));
    show_breaks(text);
    fprintf(file, "  %-23s %-10s %s%s\n", o->name, text[0] != '\0' ? text : "-", o->help, o->carries_bits ? " *" : "");
}

static bool is_named(const char *const *names, const char *name) {
    for (int64_t i = 0; names != NULL && names[i] != NULL; i++)
        if (strcmp(names[i], name) == 0) return true;
    return false;
}

/* As people write them; no text gets longer. */
static void show_numbers(char *a, char *b) {
    char text[LS_DOUBLE_TEXT_MAX];
    ls_double_show(text, strtod(a, NULL));
    strcpy(a, text);
    ls_double_show(text, strtod(b, NULL));
    strcpy(b, text);
}

/* What was done before there was the option. */
static bool is_off(const ls_option *o, const char *value) {
    switch (o->kind) {
        case LS_OPTION_CHOICE: return strcmp(value, o->choices[0]) == 0;
        case LS_OPTION_SWITCH: return strcmp(value, "false") == 0;
        case LS_OPTION_INT:
        case LS_OPTION_NUMBER: return strcmp(value, "0") == 0;
        default: return false;
    }
}

ls_status ls_config_agree(const ls_config *config, const ls_node *options, const char *const *except, ls_error *err) {
    static const char *const of_schedule[] = {"schedule", "rate", "rate_floor", "warmup", "schedule_steps", NULL};
    char mine[LS_OPTION_TEXT_MAX], *stored = NULL;
    ls_status status = LS_OK;
    for (int64_t t = 0; t < config->n; t++)
        for (int64_t i = 0; i < config->tables[t].n; i++) {
            const ls_option *o = &config->tables[t].options[i];
            ls_node child;
            if (!o->carries_bits || is_named(except, o->name)) continue;
            format(mine, o, option_value(&config->tables[t], o));
            if (is_off(o, mine) && !ls_node_get(options, o->name, &child)) continue;
            LS_TRY_DONE(ls_node_need(options, o->name, &child, err));
            LS_TRY_DONE(text_of(&child, o, &stored, err));
            if (strcmp(stored, mine) != 0) {
                if (o->kind == LS_OPTION_NUMBER) show_numbers(stored, mine);
                status =
                    ls_node_fail(&child, LS_ERR_ARG, err,
                                 is_named(of_schedule, o->name)
                                     ? "was %.100s and is %.100s now; set it as it was to keep the old schedule, or "
                                       "new_schedule=true to go on with another one"
                                     : "was %.100s and is %.100s now; to go on with another value, begin a new run "
                                       "from this checkpoint as its model",
                                 stored, mine);
                goto done;
            }
            free(stored);
            stored = NULL;
        }
done:
    free(stored);
    return status;
}

uint64_t ls_config_digest(const ls_config *config) {
    char text[LS_OPTION_TEXT_MAX];
    uint64_t hash = LS_FNV_START;
    for (int64_t t = 0; t < config->n; t++)
        for (int64_t i = 0; i < config->tables[t].n; i++) {
            const ls_option *o = &config->tables[t].options[i];
            if (!o->carries_bits) continue;
            format(text, o, option_value(&config->tables[t], o));
            hash = ls_fnv_mix(hash, o->name, (int64_t)strlen(o->name) + 1);
            hash = ls_fnv_mix(hash, text, (int64_t)strlen(text) + 1);
        }
    return hash;
}
