/* See the header. */
#define _GNU_SOURCE
#include "serve/serve_kept.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/durable.h"
#include "base/file.h"
#include "base/mem.h"
#include "load/model_files.h"

enum { PIECE_BYTES = 1 << 20 };

static ls_status join_path(char **out, const char *directory, const char *name, ls_error *err) {
    const size_t room = strlen(directory) + strlen(name) + 2;
    LS_TRY(ls_array_alloc((void **)out, (int64_t)room, 1, "path", err));
    snprintf(*out, room, "%s/%s", directory, name);
    return LS_OK;
}

static bool is_of_weights(const char *name) {
    const size_t n = strlen(name);
    return (n > 12 && strcmp(name + n - 12, ".safetensors") == 0) || strcmp(name, "model.safetensors.index.json") == 0;
}

/* Files that a model is opened from. */
static bool is_of_model(const char *name) {
    if (is_of_weights(name) || strcmp(name, "adapter_config.json") == 0) return true;
    for (int i = 0; i < LS_MODEL_FILES; i++)
        if (strcmp(name, ls_model_files[i]) == 0) return true;
    return false;
}

static bool is_regular(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

/* ---- making ---- */

static ls_status copy_file(const char *from, const char *to, ls_error *err) {
    ls_durable out = {-1, to};
    ls_file_id before;
    uint8_t *piece = NULL;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&piece, PIECE_BYTES, 1, "weights to be kept", err));
    LS_TRY_DONE(ls_file_identify(&before, from, err));
    LS_TRY_DONE(ls_durable_create(&out, to, err));
    for (int64_t at = 0; at < before.bytes && status == LS_OK; at += PIECE_BYTES) {
        const int64_t n = before.bytes - at < PIECE_BYTES ? before.bytes - at : PIECE_BYTES;
        status = ls_file_read_at(piece, from, at, n, err);
        if (status == LS_OK) status = ls_durable_write(&out, piece, n, err);
    }
    status = ls_durable_close(&out, status, err);
    if (status == LS_OK) status = ls_file_check(&before, from, err);
done:
    free(piece);
    return status;
}

/* A link where there can be one; what the name is a symbolic link to, not the link. */
static ls_status keep_file(const char *from, const char *to, ls_error *err) {
    if (linkat(AT_FDCWD, from, AT_FDCWD, to, AT_SYMLINK_FOLLOW) == 0) return LS_OK;
    if (errno != EXDEV && errno != EPERM && errno != EMLINK && errno != ENOTSUP)
        return LS_FAIL(err, LS_ERR_IO, "%.300s: cannot link: %s", to, strerror(errno));
    return copy_file(from, to, err);
}

static ls_status fill_directory(const char *kept, const char *directory, bool with_weights, ls_error *err) {
    char **names = NULL, *from = NULL, *to = NULL;
    int64_t n = 0;
    ls_status status;
    LS_TRY_DONE(ls_directory_list(&names, &n, directory, err));
    for (int64_t i = 0; i < n; i++) {
        if (!is_of_model(names[i]) || (is_of_weights(names[i]) && !with_weights)) continue;
        LS_TRY_DONE(join_path(&from, directory, names[i], err));
        LS_TRY_DONE(join_path(&to, kept, names[i], err));
        if (is_regular(from)) LS_TRY_DONE(keep_file(from, to, err));
        free(from);
        free(to);
        from = to = NULL;
    }
    status = ls_directory_sync(kept, err);
done:
    free(from);
    free(to);
    ls_names_free(names, n);
    return status;
}

ls_status ls_kept_others(const char *kept, const char *directory, ls_error *err) {
    return fill_directory(kept, directory, false, err);
}

static ls_status home_of(char **out, const char *state_file, ls_error *err) {
    const size_t room = strlen(state_file) + sizeof ".weights";
    LS_TRY(ls_array_alloc((void **)out, (int64_t)room, 1, "path", err));
    snprintf(*out, room, "%s.weights", state_file);
    return LS_OK;
}

ls_status ls_kept_make(char **out, const char *state_file, const char *directory, uint64_t version, ls_error *err) {
    char name[40], *home = NULL, *fresh = NULL, *path = NULL, *full;
    bool is_made = false;
    ls_status status;
    *out = NULL;
    LS_TRY_DONE(home_of(&home, state_file, err));
    LS_TRY_DONE(ls_directory_make(home, err));
    LS_TRY_DONE(ls_entry_sync(home, err));
    snprintf(name, sizeof name, ".%llu.new", (unsigned long long)version);
    LS_TRY_DONE(join_path(&fresh, home, name, err));
    LS_TRY_DONE(join_path(&path, home, name + 1, err));
    path[strlen(path) - strlen(".new")] = '\0';
    if (ls_file_exists(fresh)) LS_TRY_DONE(ls_directory_remove(fresh, err));
    LS_TRY_DONE(ls_directory_make(fresh, err));
    is_made = true;
    LS_TRY_DONE(fill_directory(fresh, directory, true, err));
    if (ls_file_exists(path)) LS_TRY_DONE(ls_directory_remove(path, err)); /* of a version that was not served */
    LS_TRY_DONE(ls_path_rename(fresh, path, err));
    is_made = false;
    full = realpath(path, NULL);
    if (full == NULL) status = LS_FAIL(err, LS_ERR_IO, "%.300s: %s", path, strerror(errno));
    *out = full;
done:
    if (is_made) (void)ls_directory_remove(fresh, NULL);
    free(path);
    free(fresh);
    free(home);
    return status;
}

/* ---- what the files are ---- */

ls_status ls_kept_write(ls_json_out *json, const char *key, const char *path, ls_error *err) {
    char **names = NULL, *file = NULL;
    int64_t n = 0;
    ls_file_id id;
    ls_status status;
    ls_json_begin_array(json, key);
    LS_TRY_DONE(ls_directory_list(&names, &n, path, err));
    for (int64_t i = 0; i < n; i++) {
        if (!is_of_model(names[i])) continue;
        LS_TRY_DONE(join_path(&file, path, names[i], err));
        LS_TRY_DONE(ls_file_identify(&id, file, err));
        ls_json_begin_object(json, NULL);
        ls_json_string(json, "name", names[i]);
        ls_json_int(json, "bytes", id.bytes);
        ls_json_int(json, "changed_s", id.changed_s);
        ls_json_int(json, "changed_ns", id.changed_ns);
        ls_json_end_object(json);
        free(file);
        file = NULL;
    }
    ls_json_end_array(json);
done:
    free(file);
    ls_names_free(names, n);
    return status;
}

static ls_status need_int(const ls_node *node, const char *key, int64_t *out, ls_error *err) {
    ls_node child;
    LS_TRY(ls_node_need(node, key, &child, err));
    return ls_node_int(&child, INT64_MIN, INT64_MAX, out, err);
}

static ls_status check_file(const ls_node *item, const char *path, ls_error *err) {
    ls_node node;
    const char *name;
    char *file = NULL;
    ls_file_id was = {0}, is;
    ls_status status;
    LS_TRY_DONE(ls_node_need(item, "name", &node, err));
    LS_TRY_DONE(ls_node_string(&node, &name, err));
    LS_TRY_DONE(need_int(item, "bytes", &was.bytes, err));
    LS_TRY_DONE(need_int(item, "changed_s", &was.changed_s, err));
    LS_TRY_DONE(need_int(item, "changed_ns", &was.changed_ns, err));
    LS_TRY_DONE(join_path(&file, path, name, err));
    LS_TRY_DONE(ls_file_identify(&is, file, err));
    if (is.bytes != was.bytes || is.changed_s != was.changed_s || is.changed_ns != was.changed_ns)
        status = LS_FAIL(err, LS_ERR_IO, "%.300s: was written over since it was served", file);
done:
    free(file);
    return status;
}

ls_status ls_kept_check(const ls_node *files, const char *path, ls_error *err) {
    LS_TRY(ls_node_expect(files, LS_NODE_ARRAY, err));
    for (int64_t i = 0; i < ls_node_count(files); i++) {
        const ls_node item = ls_node_at(files, i);
        LS_TRY(check_file(&item, path, err));
    }
    return LS_OK;
}

void ls_kept_leave(const char *state_file, const char *path) {
    char *home = NULL, **names = NULL, *other = NULL, *full;
    int64_t n = 0;
    if (home_of(&home, state_file, NULL) == LS_OK && ls_directory_list(&names, &n, home, NULL) == LS_OK)
        for (int64_t i = 0; i < n; i++) {
            if (join_path(&other, home, names[i], NULL) != LS_OK) break;
            full = realpath(other, NULL);
            if (full == NULL || strcmp(full, path) != 0) (void)ls_directory_remove(other, NULL);
            free(full);
            free(other);
            other = NULL;
        }
    ls_names_free(names, n);
    free(home);
}
