/* Changes are collected in memory while the weights pass by, piece by piece, and written at the end. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/durable.h"
#include "base/file.h"
#include "base/fnv.h"
#include "base/mem.h"
#include "json/json_out.h"
#include "load/changes.h"

enum { PATH_BYTES_MAX = 4096 };

/* What is known of a tensor. */
typedef struct changed {
    uint64_t digest;
    int64_t unchanged; /* elements since the last one that changed */
    uint8_t *gaps, *values;
    int64_t n_gaps, gaps_cap, value_bytes, values_cap;
} changed;

struct ls_changes_out {
    const ls_tensor_out *tensors; /* [n] */
    changed *changed;             /* [n] */
    int64_t n;
    int64_t bytes, whole; /* of changes so far; of all that has passed by */
    int64_t limit;        /* bytes of the weights */
    bool has_base;
};

ls_status ls_changes_begin(ls_changes_out **out, const ls_tensor_out *tensors, int64_t n, ls_error *err) {
    ls_changes_out *o = NULL;
    ls_status status;
    *out = NULL;
    LS_TRY_DONE(ls_array_alloc((void **)&o, 1, sizeof *o, "changes", err));
    LS_TRY_DONE(ls_array_alloc((void **)&o->changed, n, sizeof *o->changed, "changes", err));
    o->tensors = tensors;
    o->n = n;
    o->has_base = true;
    for (int64_t i = 0; i < n; i++) {
        int64_t bytes;
        LS_TRY_DONE(ls_tensor_out_bytes(&bytes, &tensors[i], err));
        if (!ls_add_i64(o->limit, bytes, &o->limit)) {
            status = LS_FAIL(err, LS_ERR_ARG, "the weights are too large");
            goto done;
        }
        o->changed[i].digest = LS_FNV_START;
    }
    *out = o;
    o = NULL;
done:
    ls_changes_end(o);
    return status;
}

static void drop_changes(ls_changes_out *o) {
    for (int64_t i = 0; i < o->n; i++) {
        changed *c = &o->changed[i];
        free(c->gaps);
        free(c->values);
        *c = (changed){.digest = c->digest};
    }
}

void ls_changes_end(ls_changes_out *o) {
    if (o == NULL) return;
    if (o->changed != NULL) drop_changes(o);
    free(o->changed);
    free(o);
}

/* ---- collecting ---- */

/* Bytes that are the same at the beginning. */
static int64_t equal_bytes(const uint8_t *a, const uint8_t *b, int64_t n) {
    int64_t i = 0;
    for (uint64_t x, y; i + 8 <= n; i += 8) {
        memcpy(&x, a + i, 8);
        memcpy(&y, b + i, 8);
        if (x != y) break;
    }
    while (i < n && a[i] == b[i]) i++;
    return i;
}

static ls_status add_change(ls_changes_out *o, changed *c, const uint8_t *value, int64_t size, ls_error *err) {
    const int64_t more = c->unchanged / 255;
    LS_TRY(ls_array_grow((void **)&c->gaps, &c->gaps_cap, c->n_gaps + more + 1, 1, "changes", err));
    LS_TRY(ls_array_grow((void **)&c->values, &c->values_cap, c->value_bytes + size, 1, "changes", err));
    memset(c->gaps + c->n_gaps, 255, (size_t)more);
    c->gaps[c->n_gaps + more] = (uint8_t)(c->unchanged % 255);
    memcpy(c->values + c->value_bytes, value, (size_t)size);
    c->n_gaps += more + 1;
    c->value_bytes += size;
    c->unchanged = 0;
    o->bytes += more + 1 + size;
    return LS_OK;
}

ls_status ls_changes_add(ls_changes_out *o, int64_t i, const void *base, const void *next, int64_t bytes,
                         ls_error *err) {
    const uint8_t *before = base, *after = next;
    const int64_t size = ls_st_dtype_bytes(o->tensors[i].dtype);
    changed *c = &o->changed[i];
    LS_ASSERT(size > 0 && bytes % size == 0, "%s: %lld bytes", o->tensors[i].name, (long long)bytes);
    c->digest = ls_fnv_mix(c->digest, next, bytes);
    o->whole += bytes;
    o->has_base = o->has_base && base != NULL;
    if (!o->has_base || o->bytes >= o->limit) return LS_OK;
    for (int64_t at = 0; at < bytes; at += size) {
        const int64_t same = equal_bytes(before + at, after + at, bytes - at) / size;
        c->unchanged += same;
        at += same * size;
        if (at < bytes) LS_TRY(add_change(o, c, after + at, size, err));
    }
    if (o->bytes >= o->limit) drop_changes(o); /* they will not be written */
    return LS_OK;
}

uint64_t ls_changes_digest(const ls_changes_out *o, int64_t i) { return o->changed[i].digest; }

/* ---- writing ---- */

static void write_digest(ls_json_out *json, const char *key, uint64_t digest) {
    char text[24];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)digest);
    ls_json_string(json, key, text);
}

static void write_tensors(ls_json_out *json, const ls_changes_out *o, const uint64_t *base) {
    ls_json_begin_object(json, "tensors");
    for (int64_t i = 0; i < o->n; i++) {
        const ls_tensor_out *t = &o->tensors[i];
        ls_json_begin_object(json, t->name);
        ls_json_string(json, "dtype", ls_st_dtype_name(t->dtype));
        ls_json_begin_array(json, "shape");
        for (int32_t k = 0; k < t->n_dims; k++) ls_json_int(json, NULL, t->dims[k]);
        ls_json_end_array(json);
        write_digest(json, "base", base[i]);
        write_digest(json, "digest", o->changed[i].digest);
        ls_json_end_object(json);
    }
    ls_json_end_object(json);
}

/* changes.json: *text is released with free(). */
static ls_status make_list(char **text, size_t *bytes, const ls_changes_out *o, const uint64_t *base, ls_error *err) {
    FILE *file = open_memstream(text, bytes);
    ls_json_out json;
    bool failed;
    if (file == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "changes");
    ls_json_init(&json, file);
    ls_json_begin_object(&json, NULL);
    ls_json_int(&json, "format", 1);
    write_tensors(&json, o, base);
    ls_json_end_object(&json);
    ls_json_newline(&json);
    failed = ferror(file) != 0;
    if (fclose(file) != 0 || failed) return LS_FAIL(err, LS_ERR_NOMEM, "changes");
    return LS_OK;
}

/* "gaps.NAME" or "values.NAME", released with free(). */
static ls_status name_part(char **out, const char *part, const char *name, ls_error *err) {
    const size_t room = strlen(part) + strlen(name) + 1;
    LS_TRY(ls_array_alloc((void **)out, (int64_t)room, 1, "changes", err));
    snprintf(*out, room, "%s%s", part, name);
    return LS_OK;
}

static ls_status write_data(const ls_changes_out *o, const char *path, ls_error *err) {
    ls_tensor_out *parts = NULL;
    int64_t *counts = NULL, n = 0; /* counts: the dimension of each part */
    char **names = NULL;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&parts, 2 * o->n, sizeof *parts, "changes", err));
    LS_TRY_DONE(ls_array_alloc((void **)&counts, 2 * o->n, sizeof *counts, "changes", err));
    LS_TRY_DONE(ls_array_alloc((void **)&names, 2 * o->n, sizeof *names, "changes", err));
    for (int64_t i = 0; i < o->n; i++) {
        const changed *c = &o->changed[i];
        if (c->n_gaps == 0) continue;
        LS_TRY_DONE(name_part(&names[n], "gaps.", o->tensors[i].name, err));
        LS_TRY_DONE(name_part(&names[n + 1], "values.", o->tensors[i].name, err));
        counts[n] = c->n_gaps;
        counts[n + 1] = c->value_bytes / ls_st_dtype_bytes(o->tensors[i].dtype);
        parts[n] = (ls_tensor_out){names[n], LS_ST_U8, 1, &counts[n], c->gaps};
        parts[n + 1] = (ls_tensor_out){names[n + 1], o->tensors[i].dtype, 1, &counts[n + 1], c->values};
        n += 2;
    }
    status = ls_safetensors_write(path, parts, n, NULL, NULL, err);
done:
    for (int64_t i = 0; names != NULL && i < 2 * o->n; i++) free(names[i]);
    free(names);
    free(counts);
    free(parts);
    return status;
}

ls_status ls_changes_write(const ls_changes_out *o, const char *directory, const uint64_t *base, int64_t *bytes,
                           ls_error *err) {
    char path[PATH_BYTES_MAX], *text = NULL;
    size_t text_bytes = 0;
    ls_file_id id;
    ls_status status;
    LS_ASSERT(o->has_base && o->whole == o->limit, "%lld of %lld bytes were compared", (long long)o->whole,
              (long long)o->limit);
    *bytes = 0;
    LS_TRY_DONE(make_list(&text, &text_bytes, o, base, err));
    if (o->bytes + (int64_t)text_bytes >= o->limit) goto done;
    LS_TRY_DONE(ls_path_join(path, sizeof path, directory, "changes.safetensors", err));
    LS_TRY_DONE(write_data(o, path, err));
    LS_TRY_DONE(ls_file_identify(&id, path, err));
    LS_TRY_DONE(ls_path_join(path, sizeof path, directory, "changes.json", err));
    LS_TRY_DONE(ls_durable_file(path, text, (int64_t)text_bytes, err));
    *bytes = id.bytes + (int64_t)text_bytes;
done:
    free(text);
    return status;
}

/* ---- two directories ---- */

typedef struct pair {
    ls_checkpoint *base, *next;
    ls_tensor_out *tensors; /* [n] of next */
    uint64_t *digests;      /* [n] of base */
    int64_t n;
    uint8_t *before, *after; /* [LS_FETCH_BYTES] */
    ls_changes_out *out;
} pair;

static ls_status list_tensors(pair *p, ls_error *err) {
    p->n = ls_checkpoint_count(p->next);
    LS_TRY(ls_array_alloc((void **)&p->tensors, p->n, sizeof *p->tensors, "changes", err));
    LS_TRY(ls_array_alloc((void **)&p->digests, p->n, sizeof *p->digests, "changes", err));
    for (int64_t i = 0; i < p->n; i++) {
        const ls_tensor_view *b = ls_checkpoint_at(p->next, i), *a = ls_checkpoint_find(p->base, b->name);
        if (a == NULL || !ls_tensor_is_alike(a, b))
            return LS_FAIL(err, LS_ERR_FORMAT, "%s: tensor '%.200s' %s", b->file, b->name,
                           a == NULL ? "is not among those that it is compared with"
                                     : "has another type or shape than the one that it is compared with");
        if (ls_st_dtype_bytes(b->dtype) == 0)
            return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: tensor '%.200s': changes of %s are not supported", b->file,
                           b->name, ls_st_dtype_name(b->dtype));
        p->tensors[i] = (ls_tensor_out){b->name, b->dtype, b->n_dims, b->dims, NULL};
        p->digests[i] = LS_FNV_START;
    }
    if (ls_checkpoint_count(p->base) == p->n) return LS_OK;
    return LS_FAIL(err, LS_ERR_FORMAT, "%lld tensors, compared with %lld", (long long)p->n,
                   (long long)ls_checkpoint_count(p->base));
}

static ls_status compare_tensor(pair *p, int64_t i, ls_error *err) {
    const ls_tensor_view *b = ls_checkpoint_at(p->next, i), *a = ls_checkpoint_find(p->base, b->name);
    for (int64_t at = 0; at < b->bytes; at += LS_FETCH_BYTES) {
        const int64_t n = ls_min_i64(b->bytes - at, LS_FETCH_BYTES);
        LS_TRY(ls_tensor_read_part(p->before, a, at, n, err));
        LS_TRY(ls_tensor_read_part(p->after, b, at, n, err));
        p->digests[i] = ls_fnv_mix(p->digests[i], p->before, n);
        LS_TRY(ls_changes_add(p->out, i, p->before, p->after, n, err));
    }
    return LS_OK;
}

ls_status ls_changes_between(const char *base, const char *next, const char *directory, int64_t *bytes, ls_error *err) {
    pair p = {0};
    ls_status status;
    *bytes = 0;
    LS_TRY_DONE(ls_checkpoint_open(&p.base, base, err));
    LS_TRY_DONE(ls_checkpoint_open(&p.next, next, err));
    LS_TRY_DONE(list_tensors(&p, err));
    LS_TRY_DONE(ls_array_alloc((void **)&p.before, LS_FETCH_BYTES, 1, "changes", err));
    LS_TRY_DONE(ls_array_alloc((void **)&p.after, LS_FETCH_BYTES, 1, "changes", err));
    LS_TRY_DONE(ls_changes_begin(&p.out, p.tensors, p.n, err));
    for (int64_t i = 0; i < p.n; i++) LS_TRY_DONE(compare_tensor(&p, i, err));
    LS_TRY_DONE(ls_checkpoint_check(p.base, err));
    LS_TRY_DONE(ls_checkpoint_check(p.next, err));
    status = ls_changes_write(p.out, directory, p.digests, bytes, err);
done:
    ls_changes_end(p.out);
    free(p.after);
    free(p.before);
    free(p.digests);
    free(p.tensors);
    ls_checkpoint_close(p.next);
    ls_checkpoint_close(p.base);
    return status;
}
