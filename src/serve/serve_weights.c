/* Weights from disk. They are opened beside the engine, on a device of their own, while decoding goes on; the engine
 * takes them between two ticks. Which are served stands in the state file, written whole under another name and
 * renamed, and they are kept beside it (serve_kept.h), before the first token of the new version is drawn: whenever the
 * process is killed, the next start serves one complete version, this or the one before. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/durable.h"
#include "base/file.h"
#include "base/hub.h"
#include "base/mem.h"
#include "json/json_node.h"
#include "json/json_out.h"
#include "load/adapter_chain.h"
#include "load/changes.h"
#include "load/model_files.h"
#include "serve/serve_kept.h"
#include "serve/serve_state.h"

/* ---- the state file ---- */

/* What the state file says: whence the weights came, where they lie. */
typedef struct state {
    char path[LS_SERVE_PATH_MAX], kept[LS_SERVE_PATH_MAX];
    uint64_t version;
} state;

static ls_status read_path(char out[LS_SERVE_PATH_MAX], const ls_node *node, ls_error *err) {
    const char *value;
    LS_TRY(ls_node_string(node, &value, err));
    if (strlen(value) >= LS_SERVE_PATH_MAX) return ls_node_fail(node, LS_ERR_CAPACITY, err, "the path is too long");
    strcpy(out, value);
    return LS_OK;
}

static ls_status read_state(state *out, const char *file, ls_error *err) {
    static const char *const keys[] = {"path", "kept", "version", "files", NULL};
    char *text = NULL;
    int64_t bytes, number;
    ls_json_doc *doc = NULL;
    ls_node root, node;
    ls_status status;
    LS_TRY_DONE(ls_file_read(&text, &bytes, file, 1 << 20, err));
    LS_TRY_DONE(ls_json_doc_open(&doc, text, bytes, file, err));
    root = ls_json_root(doc);
    LS_TRY_DONE(ls_node_only(&root, keys, err));
    LS_TRY_DONE(ls_node_need(&root, "version", &node, err));
    LS_TRY_DONE(ls_node_int(&node, 0, INT64_MAX, &number, err));
    out->version = (uint64_t)number;
    LS_TRY_DONE(ls_node_need(&root, "path", &node, err));
    LS_TRY_DONE(read_path(out->path, &node, err));
    strcpy(out->kept, out->path); /* of an older file, which kept nothing */
    if (ls_node_get_some(&root, "kept", &node)) LS_TRY_DONE(read_path(out->kept, &node, err));
    if (access(out->kept, R_OK) != 0) {
        status = LS_FAIL(
            err, LS_ERR_IO,
            "%s: version %llu of the weights lies in %.300s, which is gone; without this file --model is served", file,
            (unsigned long long)out->version, out->kept);
        goto done;
    }
    if (ls_node_get_some(&root, "files", &node) && (status = ls_kept_check(&node, out->kept, err)) != LS_OK)
        ls_error_prefix(err, "%s: version %llu of the weights", file, (unsigned long long)out->version);
done:
    ls_json_doc_free(doc);
    free(text);
    return status;
}

/* Without a state it is --model, version 0. */
static ls_status first_state(state *out, const ls_serve_opts *o, ls_error *err) {
    if (strlen(o->model_dir) >= LS_SERVE_PATH_MAX) return LS_FAIL(err, LS_ERR_ARG, "--model: the path is too long");
    strcpy(out->path, o->model_dir);
    strcpy(out->kept, o->model_dir);
    out->version = 0;
    return o->state_file == NULL || !ls_file_exists(o->state_file) ? LS_OK : read_state(out, o->state_file, err);
}

ls_status ls_serve_first_weights(const ls_serve_opts *o, char *path, uint64_t *version, ls_error *err) {
    state first;
    LS_TRY(first_state(&first, o, err));
    strcpy(path, first.kept);
    *version = first.version;
    return LS_OK;
}

ls_status ls_weights_begin(ls_server *s, uint64_t *version, ls_error *err) {
    state first;
    LS_TRY(first_state(&first, &s->opts, err));
    strcpy(s->path, first.path);
    strcpy(s->kept, first.kept);
    *version = first.version;
    return LS_OK;
}

static ls_status write_state(const ls_server *s, const char *path, const char *kept, uint64_t version, ls_error *err) {
    ls_output *output;
    ls_json_out json;
    ls_status status;
    if (s->opts.state_file == NULL) return LS_OK;
    LS_TRY(ls_output_open(&output, s->opts.state_file, err));
    ls_json_init(&json, ls_output_stream(output));
    ls_json_begin_object(&json, NULL);
    ls_json_uint(&json, "version", version);
    ls_json_string(&json, "path", path);
    ls_json_string(&json, "kept", kept);
    if ((status = ls_kept_write(&json, "files", kept, err)) != LS_OK) {
        ls_output_abandon(output);
        return status;
    }
    ls_json_end_object(&json);
    ls_json_newline(&json);
    return ls_output_commit(output, err);
}

/* ---- opening ---- */

static bool is_weights(const char *name) {
    const size_t n = strlen(name);
    return (n > 12 && strcmp(name + n - 12, ".safetensors") == 0) || strcmp(name, "model.safetensors.index.json") == 0;
}

static ls_status join_path(char out[LS_SERVE_PATH_MAX], const char *directory, const char *name, ls_error *err) {
    if (snprintf(out, LS_SERVE_PATH_MAX, "%s/%s", directory, name) >= LS_SERVE_PATH_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "%.200s: the path is too long", directory);
    return LS_OK;
}

/* Links to the directory's weights and to the served model's other files that a model is read from. */
static ls_status link_files(const char *staging, const char *directory, const char *model, ls_error *err) {
    char from[LS_SERVE_PATH_MAX], to[LS_SERVE_PATH_MAX], *full = realpath(directory, NULL), **names = NULL;
    char *base = NULL, *home = NULL, hint[LS_HUB_HINT_MAX];
    int64_t n = 0;
    ls_status status;
    LS_TRY_DONE(ls_adapter_home(&home, model, err)); /* of an adapter, the model that it is of */
    base = realpath(home, NULL);
    if (full == NULL || base == NULL) {
        status = LS_FAIL(err, LS_ERR_IO, "%.300s: %s%s", full == NULL ? directory : model, strerror(errno),
                         ls_hub_hint(hint, full == NULL ? directory : model));
        goto done;
    }
    LS_TRY_DONE(ls_directory_list(&names, &n, full, err));
    for (int64_t i = 0; i < n; i++) {
        if (!is_weights(names[i])) continue;
        LS_TRY_DONE(join_path(from, full, names[i], err));
        LS_TRY_DONE(join_path(to, staging, names[i], err));
        if (symlink(from, to) != 0) status = LS_FAIL(err, LS_ERR_IO, "%.300s: %s", to, strerror(errno));
        if (status != LS_OK) goto done;
    }
    for (int i = 0; i < LS_MODEL_FILES; i++) {
        LS_TRY_DONE(join_path(from, base, ls_model_files[i], err));
        LS_TRY_DONE(join_path(to, staging, ls_model_files[i], err));
        if (!ls_file_exists(from) || is_weights(ls_model_files[i])) continue;
        if (symlink(from, to) != 0 && errno != EEXIST)
            status = LS_FAIL(err, LS_ERR_IO, "%.300s: %s", to, strerror(errno));
        if (status != LS_OK) goto done;
    }
done:
    ls_names_free(names, n);
    free(base);
    free(home);
    free(full);
    return status;
}

/* What is done with a directory that is a whole model. */
typedef ls_status (*user)(void *context, const char *directory, ls_error *err);

/* Weights alone, as some trainers write them, become a model by the files of another one: links to both. */
static ls_status with_model(const char *directory, const char *model, user use, void *context, ls_error *err) {
    char staging[] = "/tmp/lockstep-weights-XXXXXX", config[LS_SERVE_PATH_MAX];
    ls_status status;
    LS_TRY(join_path(config, directory, "config.json", err));
    if (ls_file_exists(config)) return use(context, directory, err);
    LS_TRY(join_path(config, directory, "adapter_config.json", err));
    if (ls_file_exists(config)) return use(context, directory, err);
    if (mkdtemp(staging) == NULL) return LS_FAIL(err, LS_ERR_IO, "%s: %s", staging, strerror(errno));
    status = link_files(staging, directory, model, err);
    if (status == LS_OK && (status = use(context, staging, err)) != LS_OK) ls_error_prefix(err, "%.300s", directory);
    (void)ls_directory_remove(staging, NULL);
    return status;
}

typedef struct opening {
    ls_model **out;
    ls_device *device;
} opening;

static ls_status open_at(void *context, const char *directory, ls_error *err) {
    const opening *o = context;
    return ls_model_open(o->out, o->device, directory, err);
}

ls_status ls_serve_open_weights(ls_model **out, ls_device *device, const char *directory, const char *model,
                                ls_error *err) {
    opening o = {out, device};
    return with_model(directory, model, open_at, &o, err);
}

static ls_status summarize_at(void *context, const char *directory, ls_error *err) {
    return ls_stored_summarize(context, directory, err);
}

ls_status ls_weights_summarize(const ls_server *s, ls_stored_summary *out, ls_error *err) {
    return with_model(s->kept, s->opts.model_dir, summarize_at, out, err);
}

void ls_opened_free(ls_opened *opened) {
    ls_model_close(opened->model);
    ls_remade_free(opened->remade);
    opened->model = NULL;
    opened->remade = NULL;
}

static const char *directory_of(const ls_opened *opened) {
    return opened->remade != NULL ? ls_remade_directory(opened->remade) : opened->path;
}

static ls_status open_model(const ls_server *s, ls_opened *out, ls_error *err) {
    LS_TRY(ls_serve_open_weights(&out->model, s->load_device, directory_of(out), s->opts.model_dir, err));
    LS_TRY(ls_model_set_profile(out->model, s->model->profile, s->engine.dtype, err));
    out->model->ablation = s->model->ablation;
    return ls_device_wait(s->load_device, err);
}

ls_status ls_weights_load(ls_server *s, ls_opened *out, const char *directory, ls_error *err) {
    char *full = realpath(directory, NULL);
    ls_status status = LS_OK;
    *out = (ls_opened){0};
    snprintf(out->path, sizeof out->path, "%s", full != NULL ? full : directory); /* opening says what is missing */
    free(full);
    if (ls_changes_are_in(out->path))
        status = ls_remade_make(&out->remade, out->path, s->kept, s->remade, &out->is_other, err);
    if (status == LS_OK) status = open_model(s, out, err);
    if (status != LS_OK) ls_opened_free(out);
    return status;
}

/* The weights of the state file, kept where nobody but this server removes them. */
static ls_status keep_state(const ls_server *s, char **kept, const ls_opened *opened, uint64_t version, ls_error *err) {
    *kept = NULL;
    if (s->opts.state_file == NULL) return LS_OK;
    LS_TRY(ls_kept_make(kept, s->opts.state_file, directory_of(opened), version, err));
    return write_state(s, opened->path, *kept, version, err);
}

/* They are served from here on; those before are let go. */
static void take_over(ls_server *s, ls_opened *opened, const char *kept) {
    ls_opened old = {.model = s->model, .remade = s->remade};
    s->model = opened->model;
    s->remade = opened->remade;
    snprintf(s->path, sizeof s->path, "%s", opened->path);
    snprintf(s->kept, sizeof s->kept, "%s", kept != NULL ? kept : directory_of(opened));
    if (kept != NULL) ls_kept_leave(s->opts.state_file, kept);
    if (kept != NULL && s->remade != NULL) ls_remade_drop_files(s->remade);
    ls_opened_free(&old);
}

ls_status ls_weights_serve(ls_server *s, ls_opened *opened, uint64_t wish, ls_error *err) {
    ls_work_view view;
    const ls_model *old;
    uint64_t version;
    char *kept = NULL;
    ls_status status;
    ls_work_look(s->work, &view);
    version = wish > view.version ? wish : view.version + 1;
    status = keep_state(s, &kept, opened, version, err);
    if (status == LS_OK && (status = ls_work_swap(s->work, opened->model, version, &old, err)) != LS_OK)
        (void)write_state(s, s->path, s->kept, view.version, NULL); /* what it serves stays */
    if (status == LS_OK)
        take_over(s, opened, kept);
    else
        ls_opened_free(opened);
    free(kept);
    return status;
}
