/* Borders to lines and back. A log that was read owns the lists of its steps. */
#define _POSIX_C_SOURCE 200809L
#include "rl/borders.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/durable.h"
#include "base/file.h"
#include "base/fnv.h"
#include "base/mem.h"
#include "json/json_node.h"

enum { FORMAT = 1, DIGEST_DIGITS = 16 };
static const int64_t bytes_max = INT64_C(1) << 30;

void ls_step_borders_deinit(ls_step_borders *b) {
    free(b->ends);
    free(b->list);
    *b = (ls_step_borders){0};
}

void ls_borders_free(ls_borders *b) {
    if (b == NULL) return;
    for (int64_t i = 0; i < b->n; i++) ls_step_borders_deinit(&b->steps[i]);
    free(b->steps);
    free(b);
}

const ls_step_borders *ls_borders_of(const ls_borders *b, int64_t step) {
    return b != NULL && step >= 1 && step <= b->n ? &b->steps[step - 1] : NULL;
}

int64_t ls_borders_version(const ls_step_borders *b, int64_t i, int64_t token) {
    int64_t k = b->ends[i];
    while (k + 1 < b->ends[i + 1] && b->list[k + 1].token <= token) k++;
    return b->list[k].version;
}

int64_t ls_borders_next(const ls_step_borders *b, int64_t i, int64_t token, int64_t end) {
    for (int64_t k = b->ends[i]; k < b->ends[i + 1]; k++)
        if (b->list[k].token > token) return b->list[k].token < end ? b->list[k].token : end;
    return end;
}

/* ---- reading ---- */

static ls_status read_digest(ls_step_borders *out, const ls_node *root, ls_error *err) {
    ls_node child;
    const char *text;
    out->has_digest = ls_node_get(root, "digest", &child);
    if (!out->has_digest) return LS_OK;
    LS_TRY(ls_node_string(&child, &text, err));
    if (strlen(text) != DIGEST_DIGITS || strspn(text, "0123456789abcdef") != DIGEST_DIGITS)
        return ls_node_fail(&child, LS_ERR_FORMAT, err, "'%.60s' is not of 16 hexadecimal digits", text);
    out->digest = strtoull(text, NULL, 16);
    return LS_OK;
}

/* [token, version], behind `before` of the same episode, which may be NULL. */
static ls_status read_border(ls_border *out, const ls_node *pair, const ls_border *before, int64_t step,
                             const ls_borders_limits *limits, ls_error *err) {
    const int64_t oldest = step - 1 - limits->lag;
    ls_node child;
    LS_TRY(ls_node_expect(pair, LS_NODE_ARRAY, err));
    if (ls_node_count(pair) != 2) return ls_node_fail(pair, LS_ERR_FORMAT, err, "is not a token and a version");
    child = ls_node_at(pair, 0);
    LS_TRY(ls_node_int(&child, before != NULL ? before->token + 1 : 1, limits->length - 1, &out->token, err));
    child = ls_node_at(pair, 1);
    return ls_node_int(&child,
                       before != NULL ? before->version + 1
                       : oldest > 0   ? oldest
                                      : 0,
                       step - 1, &out->version, err);
}

static ls_status read_episode(ls_step_borders *out, int64_t i, const ls_node *pairs, int64_t step,
                              const ls_borders_limits *limits, ls_error *err) {
    ls_border *at = out->list + out->ends[i];
    for (int64_t k = 0; k < out->ends[i + 1] - out->ends[i]; k++) {
        const ls_node pair = ls_node_at(pairs, k);
        LS_TRY(read_border(&at[k], &pair, k > 0 ? &at[k - 1] : NULL, step, limits, err));
    }
    return LS_OK;
}

/* How many borders each episode has. */
static ls_status count_borders(ls_step_borders *out, const ls_node *list, const ls_borders_limits *limits,
                               ls_error *err) {
    for (int64_t i = 0; i < out->n; i++) {
        const ls_node pairs = ls_node_at(list, i);
        const int64_t n = ls_node_count(&pairs), most = limits->lag + 1;
        LS_TRY(ls_node_expect(&pairs, LS_NODE_ARRAY, err));
        if (n < 1 || n > most)
            return ls_node_fail(&pairs, LS_ERR_FORMAT, err, "%lld borders; 1 to %lld are possible", (long long)n,
                                (long long)most);
        out->ends[i + 1] = out->ends[i] + n;
    }
    return LS_OK;
}

static ls_status read_step(ls_step_borders *out, const ls_node *root, int64_t step, const ls_borders_limits *limits,
                           ls_error *err) {
    static const char *const keys[] = {"format", "step", "digest", "borders", NULL};
    ls_node child;
    int64_t value;
    LS_TRY(ls_node_only(root, keys, err));
    LS_TRY(ls_node_need(root, "format", &child, err));
    LS_TRY(ls_node_int(&child, 1, FORMAT, &value, err));
    LS_TRY(ls_node_need(root, "step", &child, err));
    LS_TRY(ls_node_int(&child, step, step, &value, err));
    LS_TRY(read_digest(out, root, err));
    LS_TRY(ls_node_need_kind(root, "borders", LS_NODE_ARRAY, &child, err));
    out->n = ls_node_count(&child);
    if (out->n != limits->episodes)
        return ls_node_fail(&child, LS_ERR_FORMAT, err, "%lld episodes; a step has %lld", (long long)out->n,
                            (long long)limits->episodes);
    LS_TRY(ls_array_alloc((void **)&out->ends, out->n + 1, sizeof *out->ends, "borders", err));
    LS_TRY(count_borders(out, &child, limits, err));
    LS_TRY(ls_array_alloc((void **)&out->list, out->ends[out->n], sizeof *out->list, "borders", err));
    for (int64_t i = 0; i < out->n; i++) {
        const ls_node pairs = ls_node_at(&child, i);
        LS_TRY(read_episode(out, i, &pairs, step, limits, err));
    }
    return LS_OK;
}

static ls_status read_step_line(ls_borders *b, const char *text, int64_t bytes, const ls_borders_limits *limits,
                                const char *name, ls_error *err) {
    const int64_t step = b->n + 1;
    char place[1500];
    ls_json_doc *doc = NULL;
    ls_node root;
    ls_status status;
    snprintf(place, sizeof place, "%.1400s: line %lld", name, (long long)step);
    LS_TRY_DONE(ls_json_doc_open(&doc, text, bytes, place, err));
    LS_TRY_DONE(ls_array_grow((void **)&b->steps, &b->cap, step, sizeof *b->steps, "borders", err));
    b->steps[b->n++] = (ls_step_borders){0};
    root = ls_json_root(doc);
    status = read_step(&b->steps[step - 1], &root, step, limits, err);
done:
    ls_json_doc_free(doc);
    return status;
}

ls_status ls_borders_parse(ls_borders **out, const char *text, int64_t bytes, const ls_borders_limits *limits,
                           const char *name, ls_error *err) {
    ls_borders *b = NULL;
    const char *end;
    ls_status status;
    *out = NULL;
    LS_TRY_DONE(ls_array_alloc((void **)&b, 1, sizeof *b, "borders", err));
    while (b->bytes < bytes && (end = memchr(text + b->bytes, '\n', (size_t)(bytes - b->bytes))) != NULL) {
        LS_TRY_DONE(read_step_line(b, text + b->bytes, end - text - b->bytes, limits, name, err));
        b->bytes = end + 1 - text;
    }
    *out = b;
    b = NULL;
done:
    ls_borders_free(b);
    return status;
}

ls_status ls_borders_read(ls_borders **out, const char *path, const ls_borders_limits *limits, ls_error *err) {
    char *text = NULL;
    int64_t bytes;
    ls_status status;
    *out = NULL;
    LS_TRY(ls_file_read(&text, &bytes, path, bytes_max, err));
    status = ls_borders_parse(out, text, bytes, limits, path, err);
    free(text);
    return status;
}

/* ---- of episodes ---- */

static uint64_t digest_episodes(const ls_episodes *e) {
    uint64_t hash = LS_FNV_START;
    for (int64_t i = 0; i < e->n; i++) {
        const ls_episode *x = &e->list[i];
        hash = ls_fnv_mix(hash, x->tokens, x->n * (int64_t)sizeof *x->tokens);
        for (int64_t t = 0; t < x->n; t++)
            if (x->drawn[t] != 0) hash = ls_fnv_mix(hash, &x->logprob[t], (int64_t)sizeof x->logprob[t]);
    }
    return hash;
}

/* Where versions change among the drawn tokens of x: their number; list may be NULL. */
static int64_t find_changes(ls_border *list, const ls_episode *x) {
    int64_t n = 0, version = -1;
    for (int64_t t = x->n_prompt; t < x->n; t++) {
        if (x->drawn[t] == 0 || (int64_t)x->version[t] == version) continue;
        version = (int64_t)x->version[t];
        if (list != NULL) list[n] = (ls_border){t, version};
        n++;
    }
    return n;
}

ls_status ls_borders_find(ls_step_borders *out, const ls_episodes *e, ls_error *err) {
    ls_step_borders b = {.has_digest = true, .digest = digest_episodes(e), .n = e->n};
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&b.ends, b.n + 1, sizeof *b.ends, "borders", err));
    for (int64_t i = 0; i < b.n; i++) b.ends[i + 1] = b.ends[i] + find_changes(NULL, &e->list[i]);
    LS_TRY_DONE(ls_array_alloc((void **)&b.list, b.ends[b.n], sizeof *b.list, "borders", err));
    for (int64_t i = 0; i < b.n; i++) (void)find_changes(b.list + b.ends[i], &e->list[i]);
    *out = b;
    b = (ls_step_borders){0};
done:
    ls_step_borders_deinit(&b);
    return status;
}

ls_status ls_borders_agree(const ls_step_borders *drawn, const ls_step_borders *logged, ls_error *err) {
    for (int64_t i = 0; i < drawn->n; i++) {
        const int64_t n = drawn->ends[i + 1] - drawn->ends[i];
        if (n == logged->ends[i + 1] - logged->ends[i] &&
            memcmp(drawn->list + drawn->ends[i], logged->list + logged->ends[i], (size_t)n * sizeof *drawn->list) == 0)
            continue;
        return LS_FAIL(err, LS_ERR_FORMAT, "episode %lld has no such borders as the log gives it", (long long)i);
    }
    if (!logged->has_digest || drawn->digest == logged->digest) return LS_OK;
    return LS_FAIL(
        err, LS_ERR_FORMAT,
        "drawn along the log, episodes have the digest %016llx, in the log %016llx: it is of another run, or "
        "a bit moved",
        (unsigned long long)drawn->digest, (unsigned long long)logged->digest);
}

/* ---- writing ---- */

static void write_step(FILE *file, int64_t step, const ls_step_borders *b) {
    char digest[DIGEST_DIGITS + 1];
    ls_json_out json;
    ls_json_init(&json, file);
    ls_json_begin_object(&json, NULL);
    ls_json_int(&json, "format", FORMAT);
    ls_json_int(&json, "step", step);
    snprintf(digest, sizeof digest, "%016llx", (unsigned long long)b->digest);
    ls_json_string(&json, "digest", digest);
    ls_json_begin_array(&json, "borders");
    for (int64_t i = 0; i < b->n; i++) {
        ls_json_begin_array(&json, NULL);
        for (int64_t k = b->ends[i]; k < b->ends[i + 1]; k++) {
            ls_json_begin_array(&json, NULL);
            ls_json_int(&json, NULL, b->list[k].token);
            ls_json_int(&json, NULL, b->list[k].version);
            ls_json_end_array(&json);
        }
        ls_json_end_array(&json);
    }
    ls_json_end_array(&json);
    ls_json_end_object(&json);
    ls_json_newline(&json);
}

ls_status ls_borders_begin(const char *path, int64_t bytes, ls_error *err) {
    if (!ls_file_exists(path)) {
        LS_TRY(ls_durable_file(path, "", 0, err));
        return ls_entry_sync(path, err);
    }
    if (truncate(path, (off_t)bytes) == 0) return LS_OK;
    return LS_FAIL(err, LS_ERR_IO, "%s: cannot cut it off behind byte %lld: %s", path, (long long)bytes,
                   strerror(errno));
}

ls_status ls_borders_add(const char *path, int64_t *bytes, int64_t step, const ls_step_borders *b, ls_error *err) {
    ls_durable file;
    char *text = NULL;
    size_t n = 0;
    FILE *memory = open_memstream(&text, &n);
    ls_status status = LS_OK;
    if (memory == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "borders");
    write_step(memory, step, b);
    if (fclose(memory) != 0) {
        status = LS_FAIL(err, LS_ERR_NOMEM, "borders");
        goto done;
    }
    LS_TRY_DONE(ls_durable_open(&file, path, err));
    status = ls_durable_write_at(&file, text, (int64_t)n, *bytes, err);
    LS_TRY_DONE(ls_durable_close(&file, status, err));
    *bytes += (int64_t)n;
done:
    free(text);
    return status;
}
