/* A checkpoint directory. Owns the open shards and one list of all their tensors by name. */
#define _POSIX_C_SOURCE 200809L
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/other_forms.h"
#include "json/json_read.h"
#include "load/safetensors.h"
#include "load/tensor_names.h"

#define LS_INDEX_BYTES_MAX 100000000

struct ls_checkpoint {
    char **shard_names; /* sorted; plain names inside the directory */
    ls_safetensors **shards;
    int64_t n_shards, shards_cap;
    const ls_tensor_view **views;
    const ls_tensor_view **by_name;
    int64_t n;
    ls_tensor_names_own own; /* of views whose names in the files are others */
};

static int compare_texts(const void *a, const void *b) {
    const char *const *x = a, *const *y = b;
    return strcmp(*x, *y);
}

static int compare_names(const void *a, const void *b) {
    const ls_tensor_view *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static int compare_key(const void *key, const void *item) {
    const ls_tensor_view *const *view = item;
    return strcmp(key, (*view)->name);
}

static ls_status path_join(char **out, const char *dir, const char *name, ls_error *err) {
    const size_t bytes = strlen(dir) + strlen(name) + 2;
    *out = malloc(bytes);
    if (*out == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "path: cannot allocate %zu bytes", bytes);
    snprintf(*out, bytes, "%s/%s", dir, name);
    return LS_OK;
}

/* A path in the index could reach outside the directory, so only a plain name is followed. */
static bool is_plain_name(const char *name) {
    return name[0] != '\0' && strchr(name, '/') == NULL && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

static ls_status add_shard_name(ls_checkpoint *checkpoint, const char *name, ls_error *err) {
    LS_TRY(ls_array_grow((void **)&checkpoint->shard_names, &checkpoint->shards_cap, checkpoint->n_shards + 1,
                         sizeof *checkpoint->shard_names, "shards", err));
    LS_TRY(ls_text_copy(&checkpoint->shard_names[checkpoint->n_shards], name, (int64_t)strlen(name), err));
    checkpoint->n_shards++;
    return LS_OK;
}

/* The distinct shard names of the map, sorted. */
static ls_status collect_shards(ls_checkpoint *checkpoint, json_t *map, ls_error *err) {
    ls_status status;
    const char **names = NULL, *key;
    json_t *value;
    int64_t n = 0;
    char shown[LS_JSON_SHOW_MAX];
    LS_TRY_DONE(ls_array_alloc((void **)&names, (int64_t)json_object_size(map), sizeof *names, "weight_map", err));
    json_object_foreach(map, key, value) {
        if (!json_is_string(value)) {
            status = LS_FAIL(err, LS_ERR_FORMAT, "weight_map: '%.200s': %s, expected a file name", key,
                             ls_json_show(value, shown));
            goto done;
        }
        names[n] = json_string_value(value);
        if (!is_plain_name(names[n])) {
            status =
                LS_FAIL(err, LS_ERR_FORMAT, "weight_map: '%.200s': '%.200s' is not a plain file name", key, names[n]);
            goto done;
        }
        n++;
    }
    qsort(names, (size_t)n, sizeof *names, compare_texts);
    for (int64_t i = 0; i < n; i++) {
        if (i > 0 && strcmp(names[i], names[i - 1]) == 0) continue;
        if (checkpoint->n_shards == LS_SHARDS_MAX) {
            status = LS_FAIL(err, LS_ERR_UNSUPPORTED, "weight_map: more than %d shards", LS_SHARDS_MAX);
            goto done;
        }
        LS_TRY_DONE(add_shard_name(checkpoint, names[i], err));
    }
done:
    free(names);
    return status;
}

static ls_status open_shards(ls_checkpoint *checkpoint, const char *dir, ls_error *err) {
    ls_status status;
    char *path = NULL;
    LS_TRY_DONE(
        ls_array_alloc((void **)&checkpoint->shards, checkpoint->n_shards, sizeof *checkpoint->shards, "shards", err));
    for (int64_t i = 0; i < checkpoint->n_shards; i++) {
        free(path);
        LS_TRY_DONE(path_join(&path, dir, checkpoint->shard_names[i], err));
        LS_TRY_DONE(ls_safetensors_open(&checkpoint->shards[i], path, err));
        checkpoint->n += ls_safetensors_count(checkpoint->shards[i]);
    }
    LS_TRY_DONE(ls_array_alloc((void **)&checkpoint->views, checkpoint->n, sizeof *checkpoint->views, "tensors", err));
    LS_TRY_DONE(
        ls_array_alloc((void **)&checkpoint->by_name, checkpoint->n, sizeof *checkpoint->by_name, "tensors", err));
    for (int64_t i = 0, n = 0; i < checkpoint->n_shards; i++)
        for (int64_t j = 0; j < ls_safetensors_count(checkpoint->shards[i]); j++, n++)
            checkpoint->views[n] = checkpoint->by_name[n] = ls_safetensors_at(checkpoint->shards[i], j);
    qsort(checkpoint->by_name, (size_t)checkpoint->n, sizeof *checkpoint->by_name, compare_names);
done:
    free(path);
    return status;
}

/* Map and shards must agree in both directions. A name that two shards hold fails here too: the map has one of them. */
static ls_status check_map(const ls_checkpoint *checkpoint, json_t *map, const char *index_path, ls_error *err) {
    const char *key;
    json_t *value;
    for (int64_t i = 0; i < checkpoint->n_shards; i++) {
        const ls_safetensors *shard = checkpoint->shards[i];
        for (int64_t j = 0; j < ls_safetensors_count(shard); j++) {
            const ls_tensor_view *view = ls_safetensors_at(shard, j);
            const char *mapped = json_string_value(json_object_get(map, view->name));
            if (mapped == NULL)
                return LS_FAIL(err, LS_ERR_FORMAT, "%s: tensor '%.200s' is absent from the weight_map of %s",
                               view->file, view->name, index_path);
            if (strcmp(mapped, checkpoint->shard_names[i]) != 0)
                return LS_FAIL(err, LS_ERR_FORMAT, "%s: tensor '%.200s' belongs in '%.200s' by the weight_map of %s",
                               view->file, view->name, mapped, index_path);
        }
    }
    json_object_foreach(map, key, value) {
        if (ls_checkpoint_find(checkpoint, key) == NULL)
            return LS_FAIL(err, LS_ERR_FORMAT, "%s: weight_map: tensor '%.200s' is not in its shard '%.200s'",
                           index_path, key, json_string_value(value));
    }
    return LS_OK;
}

static ls_status open_index(ls_checkpoint *checkpoint, const char *dir, const char *index_path, ls_error *err) {
    ls_status status;
    char *text = NULL;
    int64_t bytes;
    json_t *index = NULL, *map;
    LS_TRY_DONE(ls_file_read(&text, &bytes, index_path, LS_INDEX_BYTES_MAX, err));
    LS_TRY_DONE(ls_json_parse(&index, text, bytes, index_path, err));
    map = json_object_get(index, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0) {
        char shown[LS_JSON_SHOW_MAX];
        status = LS_FAIL(err, LS_ERR_FORMAT, "%s: weight_map: %s, expected an object with members", index_path,
                         map == NULL ? "missing" : ls_json_show(map, shown));
        goto done;
    }
    if ((status = collect_shards(checkpoint, map, err)) != LS_OK) {
        ls_error_prefix(err, "%s", index_path);
        goto done;
    }
    LS_TRY_DONE(open_shards(checkpoint, dir, err));
    LS_TRY_DONE(check_map(checkpoint, map, index_path, err));
done:
    ls_json_release(index);
    free(text);
    return status;
}

/* Once names of files and index have been compared. */
static ls_status resolve_names(ls_checkpoint *checkpoint, const char *dir, ls_error *err) {
    const ls_tensor_view **views = NULL, **by_name = NULL;
    LS_TRY(ls_tensor_names_resolve(&checkpoint->own, checkpoint->views, checkpoint->n, err));
    if (checkpoint->own.n == 0) return LS_OK;
    LS_TRY(ls_array_alloc((void **)&views, checkpoint->own.n, sizeof *views, "tensors", err));
    free(checkpoint->views);
    checkpoint->views = views;
    LS_TRY(ls_array_alloc((void **)&by_name, checkpoint->own.n, sizeof *by_name, "tensors", err));
    free(checkpoint->by_name);
    checkpoint->by_name = by_name;
    checkpoint->n = checkpoint->own.n;
    for (int64_t i = 0; i < checkpoint->n; i++) views[i] = by_name[i] = &checkpoint->own.views[i];
    qsort(by_name, (size_t)checkpoint->n, sizeof *by_name, compare_names);
    for (int64_t i = 1; i < checkpoint->n; i++)
        if (strcmp(by_name[i]->name, by_name[i - 1]->name) == 0)
            return LS_FAIL(err, LS_ERR_FORMAT, "%s: two tensors are '%.200s' without wrappers", dir, by_name[i]->name);
    return LS_OK;
}

ls_status ls_checkpoint_open(ls_checkpoint **out, const char *dir, ls_error *err) {
    ls_status status;
    ls_checkpoint *checkpoint = NULL;
    char *single_path = NULL, *index_path = NULL;
    *out = NULL;
    LS_TRY_DONE(ls_array_alloc((void **)&checkpoint, 1, sizeof *checkpoint, "checkpoint", err));
    LS_TRY_DONE(path_join(&single_path, dir, "model.safetensors", err));
    LS_TRY_DONE(path_join(&index_path, dir, "model.safetensors.index.json", err));
    if (ls_file_exists(single_path)) {
        LS_TRY_DONE(add_shard_name(checkpoint, "model.safetensors", err));
        LS_TRY_DONE(open_shards(checkpoint, dir, err));
    } else if (ls_file_exists(index_path)) {
        LS_TRY_DONE(open_index(checkpoint, dir, index_path, err));
    } else {
        LS_TRY_DONE(ls_foreign_directory(dir, LS_WANT_WEIGHTS, err));
        status = LS_FAIL(err, LS_ERR_IO, "%s: holds neither model.safetensors nor model.safetensors.index.json", dir);
        goto done;
    }
    LS_TRY_DONE(resolve_names(checkpoint, dir, err));
    *out = checkpoint;
    checkpoint = NULL;
done:
    ls_checkpoint_close(checkpoint);
    free(single_path);
    free(index_path);
    return status;
}

ls_status ls_checkpoint_check(const ls_checkpoint *checkpoint, ls_error *err) {
    for (int64_t i = 0; i < checkpoint->n_shards; i++) LS_TRY(ls_safetensors_check(checkpoint->shards[i], err));
    return LS_OK;
}

void ls_checkpoint_close(ls_checkpoint *checkpoint) {
    if (checkpoint == NULL) return;
    if (checkpoint->shards != NULL)
        for (int64_t i = 0; i < checkpoint->n_shards; i++) ls_safetensors_close(checkpoint->shards[i]);
    for (int64_t i = 0; i < checkpoint->n_shards; i++) free(checkpoint->shard_names[i]);
    free(checkpoint->shard_names);
    free(checkpoint->shards);
    free(checkpoint->views);
    free(checkpoint->by_name);
    ls_tensor_names_deinit(&checkpoint->own);
    free(checkpoint);
}

int64_t ls_checkpoint_count(const ls_checkpoint *checkpoint) { return checkpoint->n; }

const ls_tensor_view *ls_checkpoint_at(const ls_checkpoint *checkpoint, int64_t i) {
    LS_ASSERT(i >= 0 && i < checkpoint->n, "tensor %lld of %lld", (long long)i, (long long)checkpoint->n);
    return checkpoint->views[i];
}

const ls_tensor_view *ls_checkpoint_find(const ls_checkpoint *checkpoint, const char *name) {
    const ls_tensor_view *const *found =
        bsearch(name, checkpoint->by_name, (size_t)checkpoint->n, sizeof *checkpoint->by_name, compare_key);
    return found != NULL ? *found : NULL;
}
