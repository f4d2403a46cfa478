/* Dumps of other trainers. Owns the growing arrays while it reads. */
#define _POSIX_C_SOURCE 200809L
#include "record/dump.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "json/json_node.h"
#include "json/json_words.h"
#include "record/record.h"
#include "record/source.h"

#define SENTINEL (-9000.0)
#define SCHEMA_VERSION 1 /* of prime-rl's exports */

const char *const ls_dump_format_names[] = {"prime-rl", "nemo-rl", NULL};

/* Where a format keeps what; NULL where it has no such member. */
static const struct format_keys {
    const char *mask, *rollout, *trainer, *sample_mask, *length;
} formats[] = {
    {"loss_mask", "inference_logprobs", "trainer_logprobs", NULL, NULL},
    {"token_loss_mask", "generation_logprobs", "prev_logprobs", "sample_loss_mask", "input_lengths"},
};

void ls_dump_deinit(ls_dump *dump) {
    free(dump->offsets);
    free(dump->lines);
    free(dump->rewards);
    free(dump->token_ids);
    free(dump->mask);
    free(dump->rollout);
    free(dump->trainer);
    free(dump->advantages);
    *dump = (ls_dump){0};
}

/* Grows several arrays that share one capacity. */
typedef struct column {
    void **array;
    int64_t bytes;
} column;

static ls_status grow(const column *columns, int n, int64_t *cap, int64_t need, const char *what, ls_error *err) {
    int64_t after = *cap;
    for (int i = 0; i < n; i++) {
        int64_t each = *cap;
        LS_TRY(ls_array_grow(columns[i].array, &each, need, columns[i].bytes, what, err));
        if (i == 0 || each < after) after = each;
    }
    *cap = after;
    return LS_OK;
}

static ls_status grow_sequences(ls_dump *dump, ls_error *err) {
    const column columns[] = {{(void **)&dump->offsets, sizeof *dump->offsets},
                              {(void **)&dump->lines, sizeof *dump->lines},
                              {(void **)&dump->rewards, sizeof *dump->rewards}};
    return grow(columns, 3, &dump->cap_sequences, dump->n_sequences + 2, "sequences", err);
}

static ls_status grow_tokens(ls_dump *dump, int64_t more, ls_error *err) {
    const column columns[] = {{(void **)&dump->token_ids, sizeof *dump->token_ids},
                              {(void **)&dump->mask, 1},
                              {(void **)&dump->rollout, sizeof *dump->rollout},
                              {(void **)&dump->trainer, sizeof *dump->trainer},
                              {(void **)&dump->advantages, sizeof *dump->advantages}};
    int64_t need;
    if (!ls_add_i64(dump->n_tokens, more, &need)) return LS_FAIL(err, LS_ERR_NOMEM, "tokens do not fit 64 bits");
    if (need == 0) need = 1; /* a sequence of no tokens has its place in the columns, too */
    return grow(columns, 5, &dump->cap_tokens, need, "tokens", err);
}

/* ---- values ---- */

static ls_status read_dump_value(float *out, const ls_node *item, ls_error *err) {
    const ls_node_kind kind = ls_node_kind_of(item);
    double value;
    *out = NAN;
    if (kind == LS_NODE_NULL) return LS_OK;
    if (kind != LS_NODE_REAL && kind != LS_NODE_INT)
        return ls_node_fail(item, LS_ERR_FORMAT, err, "a number or null is required");
    value = ls_node_number(item);
    if (!(fabs(value) <= (double)FLT_MAX)) return ls_node_fail(item, LS_ERR_FORMAT, err, "%g is beyond float32", value);
    *out = (float)value;
    return LS_OK;
}

static ls_status read_flag(bool *out, const ls_node *item, ls_error *err) {
    const ls_node_kind kind = ls_node_kind_of(item);
    if (kind == LS_NODE_BOOL) return ls_node_bool(item, out, err);
    *out = (kind == LS_NODE_REAL || kind == LS_NODE_INT) && ls_node_number(item) == 1.0;
    if (*out || kind == LS_NODE_NULL) return LS_OK;
    if ((kind == LS_NODE_REAL || kind == LS_NODE_INT) && ls_node_number(item) == 0.0) return LS_OK;
    if (kind == LS_NODE_REAL || kind == LS_NODE_INT)
        return ls_node_fail(item, LS_ERR_FORMAT, err, "%g is neither 0 nor 1", ls_node_number(item));
    return ls_node_fail(item, LS_ERR_FORMAT, err, "true, false, 0 or 1 is required");
}

/* A line: a batch of sequences, or one with plain lists. */
typedef struct line_view {
    ls_node root;
    bool batch;
    int64_t n; /* sequences */
} line_view;

/* The list of sequence s under key, of n items, or null; in *batch the batch that holds it, which must outlive it. */
static ls_status find_list(ls_node *list, ls_node *batch, const line_view *line, const char *key, int64_t s, int64_t n,
                           ls_error *err) {
    ls_status status;
    if (ls_node_get(&line->root, key, batch) && ls_node_kind_of(batch) == LS_NODE_NULL) {
        *list = *batch;
        return LS_OK;
    }
    LS_TRY_DONE(ls_node_need_kind(&line->root, key, LS_NODE_ARRAY, batch, err));
    if (line->batch && ls_node_count(batch) != line->n) {
        status = ls_node_fail(batch, LS_ERR_FORMAT, err, "%lld sequences, expected %lld",
                              (long long)ls_node_count(batch), (long long)line->n);
        goto done;
    }
    *list = line->batch ? ls_node_at(batch, s) : *batch;
    if (ls_node_kind_of(list) == LS_NODE_NULL) return LS_OK;
    LS_TRY_DONE(ls_node_expect(list, LS_NODE_ARRAY, err));
    if (n >= 0 && ls_node_count(list) != n)
        status = ls_node_fail(list, LS_ERR_FORMAT, err, "%lld items, expected %lld", (long long)ls_node_count(list),
                              (long long)n);
done:
    return status;
}

static ls_status read_floats(float *out, const line_view *line, const char *key, int64_t s, int64_t n, int64_t length,
                             bool is_logprob, ls_error *err) {
    ls_node batch, list;
    ls_status status;
    LS_TRY_DONE(find_list(&list, &batch, line, key, s, n, err));
    for (int64_t i = 0; i < length; i++) out[i] = NAN;
    for (int64_t i = 0; i < length && ls_node_kind_of(&list) != LS_NODE_NULL; i++) {
        const ls_node item = ls_node_at(&list, i);
        LS_TRY_DONE(read_dump_value(&out[i], &item, err));
        if ((double)out[i] <= SENTINEL) out[i] = NAN;
        if (is_logprob && out[i] > LS_LOGPROB_MAX) {
            status =
                ls_node_fail(&item, LS_ERR_FORMAT, err, "%g is no log-probability, which is at most 0", (double)out[i]);
            goto done;
        }
    }
done:
    return status;
}

/* A number of sequence s: that of a list of them, or the member itself. NULL keys and absent members leave *found
 * false. */
static ls_status find_scalar(bool *found, ls_node *item, ls_node *holder, const line_view *line, const char *key,
                             int64_t s, ls_error *err) {
    *found = key != NULL && ls_node_get_some(&line->root, key, holder);
    if (!*found) return LS_OK;
    *item = *holder;
    if (ls_node_kind_of(holder) != LS_NODE_ARRAY) {
        if (line->n > 1) return ls_node_fail(holder, LS_ERR_FORMAT, err, "one value for a batch");
        return LS_OK;
    }
    if (!line->batch) {
        *found = ls_node_count(holder) > 0;
        if (*found) *item = ls_node_at(holder, 0);
        return LS_OK;
    }
    if (ls_node_count(holder) != line->n)
        return ls_node_fail(holder, LS_ERR_FORMAT, err, "%lld values, expected %lld", (long long)ls_node_count(holder),
                            (long long)line->n);
    *item = ls_node_at(holder, s);
    return LS_OK;
}

/* ---- sequences ---- */

static ls_status read_dump_ids(int32_t *out, const ls_node *list, int64_t length, ls_error *err) {
    for (int64_t i = 0; i < length; i++) {
        const ls_node item = ls_node_at(list, i);
        int64_t id = 0;
        LS_TRY(ls_node_int(&item, 0, INT32_MAX, &id, err));
        out[i] = (int32_t)id;
    }
    return LS_OK;
}

static ls_status read_mask(uint8_t *out, const line_view *line, const struct format_keys *keys, int64_t s, int64_t n,
                           int64_t length, ls_error *err) {
    ls_node batch, list, holder, item;
    bool found, sample = true;
    LS_TRY(find_scalar(&found, &item, &holder, line, keys->sample_mask, s, err));
    if (found) LS_TRY(read_flag(&sample, &item, err));
    LS_TRY(find_list(&list, &batch, line, keys->mask, s, n, err));
    for (int64_t i = 0; i < length; i++) {
        ls_node flag;
        bool on = false;
        if (ls_node_kind_of(&list) != LS_NODE_NULL) {
            flag = ls_node_at(&list, i);
            LS_TRY(read_flag(&on, &flag, err));
        }
        out[i] = on && sample;
    }
    return LS_OK;
}

static ls_status read_sequence(ls_dump *dump, const line_view *line, ls_dump_format format, int64_t s, int64_t line_i,
                               ls_error *err) {
    const struct format_keys *keys = &formats[format];
    const int64_t at = dump->n_tokens;
    ls_node batch, list, holder, item;
    bool found;
    int64_t n, length;
    float reward = NAN;
    LS_TRY(find_list(&list, &batch, line, "token_ids", s, -1, err));
    n = length = ls_node_kind_of(&list) != LS_NODE_NULL ? ls_node_count(&list) : 0;
    LS_TRY(find_scalar(&found, &item, &holder, line, keys->length, s, err));
    if (found) LS_TRY(ls_node_int(&item, 0, n, &length, err));
    LS_TRY(find_scalar(&found, &item, &holder, line, "rewards", s, err));
    if (found) LS_TRY(read_dump_value(&reward, &item, err));
    LS_TRY(grow_sequences(dump, err));
    LS_TRY(grow_tokens(dump, length, err));
    LS_TRY(read_dump_ids(dump->token_ids + at, &list, length, err));
    LS_TRY(read_mask(dump->mask + at, line, keys, s, n, length, err));
    LS_TRY(read_floats(dump->rollout + at, line, keys->rollout, s, n, length, true, err));
    LS_TRY(read_floats(dump->trainer + at, line, keys->trainer, s, n, length, true, err));
    for (int64_t i = at; i < at + length; i++) dump->advantages[i] = NAN;
    if (ls_node_get_some(&line->root, "advantages", &holder))
        LS_TRY(read_floats(dump->advantages + at, line, "advantages", s, n, length, false, err));
    if (format == LS_DUMP_NEMO_RL && length > 0) dump->mask[at] = 0;
    for (int64_t i = at; i < at + length; i++) {
        dump->n_masked += dump->mask[i];
        dump->zero_rollout += dump->mask[i] && dump->rollout[i] == 0.0f;
        dump->zero_trainer += dump->mask[i] && dump->trainer[i] == 0.0f;
    }
    dump->rewards[dump->n_sequences] = reward;
    dump->lines[dump->n_sequences] = line_i;
    dump->offsets[dump->n_sequences++] = at;
    dump->n_tokens += length;
    dump->offsets[dump->n_sequences] = dump->n_tokens;
    return LS_OK;
}

/* ---- lines ---- */

/* Members of another version may mean something else. */
static ls_status check_schema(const ls_node *root, ls_error *err) {
    ls_node version;
    int64_t found;
    ls_status status;
    if (!ls_node_get_some(root, "schema_version", &version)) return LS_OK;
    status = ls_node_int(&version, INT64_MIN, INT64_MAX, &found, err);
    if (status == LS_OK && found != SCHEMA_VERSION)
        status = ls_node_fail(&version, LS_ERR_UNSUPPORTED, err, "version %lld is not known; this program reads %d",
                              (long long)found, SCHEMA_VERSION);
    return status;
}

static ls_status read_line(ls_dump *dump, const char *text, int64_t bytes, ls_dump_format format, const char *name,
                           int64_t line_i, ls_error *err) {
    char place[256], *plain = NULL;
    ls_json_doc *doc = NULL;
    line_view line = {.n = 1};
    ls_node ids;
    int64_t plain_bytes = 0;
    ls_status status = LS_OK;
    if (ls_line_is_blank(text, bytes)) return LS_OK;
    snprintf(place, sizeof place, "%.200s: line %lld", name, (long long)line_i);
    LS_TRY_DONE(ls_json_plain(&plain, &plain_bytes, text, bytes, err));
    LS_TRY_DONE(ls_json_doc_open(&doc, plain, plain_bytes, place, err));
    line.root = ls_json_root(doc);
    LS_TRY_DONE(check_schema(&line.root, err));
    if (!ls_node_get(&line.root, "token_ids", &ids) || ls_node_kind_of(&ids) != LS_NODE_NULL)
        LS_TRY_DONE(ls_node_need_kind(&line.root, "token_ids", LS_NODE_ARRAY, &ids, err));
    for (int64_t i = 0; ls_node_kind_of(&ids) != LS_NODE_NULL && i < ls_node_count(&ids) && !line.batch; i++) {
        const ls_node item = ls_node_at(&ids, i); /* null: of a sequence of a batch that came to nothing */
        line.batch = ls_node_kind_of(&item) == LS_NODE_ARRAY;
        if (ls_node_kind_of(&item) != LS_NODE_NULL) break;
    }
    if (line.batch) line.n = ls_node_count(&ids);
    for (int64_t s = 0; s < line.n; s++) LS_TRY_DONE(read_sequence(dump, &line, format, s, line_i, err));
done:
    ls_json_doc_free(doc);
    free(plain);
    return status;
}

/* Of a source, which it closes, or none if opening it failed with `status`. */
static ls_status read_source(ls_dump *out, ls_source *source, ls_dump_format format, ls_status status, ls_error *err) {
    char *line = NULL;
    int64_t line_cap = 0, bytes = 0;
    *out = (ls_dump){0};
    if (status != LS_OK) return status;
    for (int64_t line_i = 1;; line_i++) {
        bool more = false;
        if ((status = ls_source_line(source, &line, &line_cap, &bytes, LS_LINE_BYTES_MAX, &more, err)) != LS_OK) {
            ls_error_prefix(err, "%s", ls_source_name(source));
            goto done;
        }
        if (!more) break;
        LS_TRY_DONE(read_line(out, line, bytes, format, ls_source_name(source), line_i, err));
    }
    if (out->n_sequences == 0) status = LS_FAIL(err, LS_ERR_FORMAT, "%s: no sequence", ls_source_name(source));
done:
    free(line);
    ls_source_close(source);
    if (status != LS_OK) ls_dump_deinit(out);
    return status;
}

ls_status ls_dump_read(ls_dump *out, const char *path, ls_dump_format format, ls_error *err) {
    ls_source *source = NULL;
    const ls_status status = ls_source_open(&source, path, err);
    return read_source(out, source, format, status, err);
}

ls_status ls_dump_parse(ls_dump *out, const char *text, int64_t bytes, const char *name, ls_dump_format format,
                        ls_error *err) {
    ls_source *source = NULL;
    char *copy = NULL; /* a stream of stdio takes no constant bytes */
    ls_status status = ls_text_copy(&copy, text, bytes, err);
    if (status == LS_OK) status = ls_source_open_bytes(&source, copy, bytes, name, err);
    status = read_source(out, source, format, status, err);
    free(copy);
    return status;
}
