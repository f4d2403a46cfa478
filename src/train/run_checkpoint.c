/* Writing, finding and reading checkpoints. Owns the lock on the run and the small files of its model. */
#define _POSIX_C_SOURCE 200809L
#include "train/run_checkpoint.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/durable.h"
#include "base/file.h"
#include "base/fnv.h"
#include "base/mem.h"
#include "base/thread.h"
#include "load/adapter_chain.h"
#include "load/model_files.h"
#include "load/safetensors_write.h"
#include "train/saved_tensors.h"

#define STATE_FORMAT 2 /* 2: digests of the model's files and of this file */
#define STATE_BYTES_MAX (1 << 20)
#define STEP_PREFIX "step-"

/* One checkpoint on its way to its name. */
typedef struct saving {
    char path[LS_SAVES_PATH_MAX], fresh[LS_SAVES_PATH_MAX]; /* what it will be called, and what it is called so far */
    int64_t keep;
    bool is_there; /* this step's checkpoint: nothing is to be written */
    bool is_made;  /* by this process, under its first name */
    char *state;   /* state.json, of the writer; released with free() */
    int64_t state_bytes;
} saving;

/* A checkpoint that is written while the run goes on. */
typedef struct writer {
    ls_saved *saved; /* with room for a copy */
    saving now;
    bool is_under_way;
    pthread_t thread;
    atomic_bool stop, is_written;
    ls_status status; /* of the thread, once it has been joined */
    ls_error err;
} writer;

struct ls_saves {
    char directory[LS_SAVES_PATH_MAX];
    int lock; /* -1: not a writer */
    char *files[LS_MODEL_FILES];
    int64_t file_bytes[LS_MODEL_FILES];
    writer *writer; /* NULL: the run waits for its checkpoints */
};

/* The step of "step-N", or -1. */
static int64_t step_of(const char *name) {
    const size_t prefix = strlen(STEP_PREFIX);
    char *end;
    long long step;
    if (strncmp(name, STEP_PREFIX, prefix) != 0 || name[prefix] < '0' || name[prefix] > '9') return -1;
    step = strtoll(name + prefix, &end, 10);
    return *end == '\0' && step < INT64_MAX ? step : -1;
}

/* ---- the directory ---- */

/* What a process that was killed left: ".step-...". */
static ls_status remove_leftovers(const ls_saves *run, ls_error *err) {
    char **names, path[LS_SAVES_PATH_MAX];
    int64_t n;
    ls_status status;
    LS_TRY_DONE(ls_directory_list(&names, &n, run->directory, err));
    for (int64_t i = 0; status == LS_OK && i < n; i++) {
        if (strncmp(names[i], "." STEP_PREFIX, strlen("." STEP_PREFIX)) != 0) continue;
        status = ls_path_join(path, sizeof path, run->directory, names[i], err);
        if (status == LS_OK) status = ls_directory_remove(path, err);
    }
    ls_names_free(names, n);
done:
    return status;
}

ls_status ls_saves_open(ls_saves **out, const char *directory, bool is_writer, ls_error *err) {
    ls_saves *run = NULL;
    char longest[LS_SAVES_PATH_MAX];
    ls_status status;
    *out = NULL;
    LS_TRY_DONE(ls_array_alloc((void **)&run, 1, sizeof *run, "run", err));
    run->lock = -1;
    LS_TRY_DONE(
        ls_path_join(longest, sizeof longest, directory, ".step-1234567890123456789.new/special_tokens_map.json", err));
    snprintf(run->directory, sizeof run->directory, "%s", directory);
    if (is_writer) {
        LS_TRY_DONE(ls_directory_make(directory, err));
        LS_TRY_DONE(ls_directory_lock(&run->lock, directory, err));
        LS_TRY_DONE(remove_leftovers(run, err));
    }
    *out = run;
    run = NULL;
done:
    ls_saves_close(run);
    return status;
}

static void close_writer(writer *b);

void ls_saves_close(ls_saves *run) {
    if (run == NULL) return;
    close_writer(run->writer);
    for (int i = 0; i < LS_MODEL_FILES; i++) free(run->files[i]);
    ls_directory_unlock(run->lock);
    free(run);
}

/* Whether this directory is a checkpoint, rather than something else of such a name. */
static ls_status look_inside(bool *is_complete, const char *directory, ls_error *err) {
    char state[LS_SAVES_PATH_MAX];
    const ls_status status = ls_path_join(state, sizeof state, directory, "state.json", err);
    *is_complete = status == LS_OK && ls_file_exists(state);
    return status;
}

/* A name that has a step's number but is not written as this program writes it, of a directory that is a checkpoint:
 * somebody renamed or copied one, and which of several was meant nobody could tell. */
static ls_status check_name(const char *name, int64_t step, const char *path, ls_error *err) {
    char expected[64];
    snprintf(expected, sizeof expected, STEP_PREFIX "%08lld", (long long)step);
    if (strcmp(name, expected) == 0) return LS_OK;
    return LS_FAIL(err, LS_ERR_FORMAT, "%s: a checkpoint that is not named %s; rename it or move it away", path,
                   expected);
}

/* Steps of the complete checkpoints, ascending; released with free(). */
static ls_status list_steps(const ls_saves *run, int64_t **steps, int64_t *n, ls_error *err) {
    char **names = NULL, path[LS_SAVES_PATH_MAX];
    int64_t n_names = 0;
    bool is_complete;
    ls_status status;
    *steps = NULL;
    *n = 0;
    LS_TRY_DONE(ls_directory_list(&names, &n_names, run->directory, err));
    LS_TRY_DONE(ls_array_alloc((void **)steps, n_names, sizeof **steps, "checkpoints", err));
    for (int64_t i = 0; i < n_names; i++) {
        const int64_t step = step_of(names[i]);
        int64_t at = *n;
        if (step < 0) continue;
        LS_TRY_DONE(ls_path_join(path, sizeof path, run->directory, names[i], err));
        LS_TRY_DONE(look_inside(&is_complete, path, err));
        if (!is_complete) continue;
        LS_TRY_DONE(check_name(names[i], step, path, err));
        for (; at > 0 && (*steps)[at - 1] > step; at--) (*steps)[at] = (*steps)[at - 1];
        (*steps)[at] = step;
        ++*n;
    }
done:
    ls_names_free(names, n_names);
    if (status != LS_OK) {
        free(*steps);
        *steps = NULL;
    }
    return status;
}

static ls_status step_path(const ls_saves *run, int64_t step, char path[LS_SAVES_PATH_MAX], ls_error *err) {
    char name[64];
    snprintf(name, sizeof name, STEP_PREFIX "%08lld", (long long)step);
    return ls_path_join(path, LS_SAVES_PATH_MAX, run->directory, name, err);
}

ls_status ls_saves_newest(const ls_saves *run, int64_t *step, char path[LS_SAVES_PATH_MAX], ls_error *err) {
    int64_t *steps = NULL, n;
    ls_status status;
    *step = -1;
    path[0] = '\0';
    if (!ls_file_exists(run->directory)) return LS_OK; /* its writer has not come yet */
    LS_TRY_DONE(list_steps(run, &steps, &n, err));
    if (n > 0) {
        *step = steps[n - 1];
        status = step_path(run, *step, path, err);
    }
done:
    free(steps);
    return status;
}

ls_status ls_saves_keep_files(ls_saves *run, const char *model_directory, ls_error *err) {
    char path[LS_SAVES_PATH_MAX], *home = NULL;
    ls_status status;
    LS_TRY_DONE(ls_adapter_home(&home, model_directory, err)); /* of an adapter, the model that it is of */
    for (int i = 0; i < LS_MODEL_FILES; i++) {
        LS_TRY_DONE(ls_path_join(path, sizeof path, home, ls_model_files[i], err));
        free(run->files[i]);
        run->files[i] = NULL;
        if (ls_file_exists(path))
            LS_TRY_DONE(ls_file_read(&run->files[i], &run->file_bytes[i], path, LS_MODEL_FILE_BYTES_MAX, err));
    }
done:
    free(home);
    return status;
}

/* ---- saving ---- */

static ls_status save_weights(const char *path, const ls_parameters *p, ls_error *err) {
    ls_saved_weights weights;
    ls_status status = ls_saved_weights_open(&weights, p, err);
    if (status == LS_OK)
        status = ls_safetensors_write(path, weights.tensors, p->n_tensors, ls_saved_weights_fetch, &weights, err);
    ls_saved_weights_close(&weights);
    return status;
}

static void write_hex(ls_json_out *json, const char *key, uint64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)value);
    ls_json_string(json, key, text);
}

/* ---- digests ---- */

/* Of the files that make weights a model: names, lengths and bytes of those that are there. */
static uint64_t digest_files(char *const *files, const int64_t *file_bytes) {
    uint64_t hash = LS_FNV_START;
    for (int i = 0; i < LS_MODEL_FILES; i++) {
        if (files[i] == NULL) continue;
        hash = ls_fnv_mix(hash, ls_model_files[i], (int64_t)strlen(ls_model_files[i]) + 1);
        hash = ls_fnv_mix(hash, &file_bytes[i], (int64_t)sizeof file_bytes[i]);
        hash = ls_fnv_mix(hash, files[i], file_bytes[i]);
    }
    return hash;
}

/* Of what tells where the run stands. */
static uint64_t digest_place(int64_t step, const ls_saves_description *d) {
    uint64_t hash = ls_fnv_mix(LS_FNV_START, &step, (int64_t)sizeof step);
    for (int64_t i = 0; i < d->n_positions; i++) {
        hash = ls_fnv_mix(hash, d->positions[i].name, (int64_t)strlen(d->positions[i].name) + 1);
        hash = ls_fnv_mix(hash, &d->positions[i].value, (int64_t)sizeof d->positions[i].value);
    }
    return hash;
}

/* The text of state.json, with the digests of what the device holds now. */
static ls_status describe_state(saving *now, const ls_saves *run, const ls_train_state *s,
                                const ls_saves_description *d, ls_error *err) {
    uint64_t weights, optimizer;
    size_t bytes = 0;
    FILE *file;
    ls_json_out json;
    ls_status status;
    LS_TRY(ls_parameters_digest(s->weights, &weights, err));
    LS_TRY(ls_train_state_digest(s, &optimizer, err));
    file = open_memstream(&now->state, &bytes);
    if (file == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "checkpoint");
    ls_json_init(&json, file);
    ls_json_begin_object(&json, NULL);
    ls_json_int(&json, "format", STATE_FORMAT);
    ls_json_string(&json, "kind", d->kind);
    ls_json_int(&json, "step", s->step);
    ls_json_string(&json, "numerics", d->numerics);
    write_hex(&json, "weights", weights);
    write_hex(&json, "optimizer", optimizer);
    write_hex(&json, "data", d->data);
    write_hex(&json, "model", digest_files(run->files, run->file_bytes));
    write_hex(&json, "place", digest_place(s->step, d));
    ls_json_begin_object(&json, "positions");
    for (int64_t i = 0; i < d->n_positions; i++) ls_json_int(&json, d->positions[i].name, d->positions[i].value);
    ls_json_end_object(&json);
    ls_json_begin_object(&json, "options");
    ls_config_write(&json, d->config);
    ls_json_end_object(&json);
    ls_json_end_object(&json);
    ls_json_newline(&json);
    status = ferror(file) != 0 ? LS_FAIL(err, LS_ERR_NOMEM, "checkpoint") : LS_OK;
    if (fclose(file) != 0 && status == LS_OK) status = LS_FAIL(err, LS_ERR_NOMEM, "checkpoint");
    now->state_bytes = (int64_t)bytes;
    return status;
}

static ls_status save_files(const ls_saves *run, const char *directory, ls_error *err) {
    char path[LS_SAVES_PATH_MAX];
    for (int i = 0; i < LS_MODEL_FILES; i++) {
        if (run->files[i] == NULL) continue;
        LS_TRY(ls_path_join(path, sizeof path, directory, ls_model_files[i], err));
        LS_TRY(ls_durable_file(path, run->files[i], run->file_bytes[i], err));
    }
    return LS_OK;
}

ls_status ls_saves_save_model(const ls_saves *run, const char *directory, const ls_parameters *parameters,
                              ls_error *err) {
    char path[LS_SAVES_PATH_MAX];
    LS_TRY(save_files(run, directory, err));
    LS_TRY(ls_path_join(path, sizeof path, directory, "model.safetensors", err));
    return save_weights(path, parameters, err);
}

/* ---- adapters, as PEFT reads them ---- */

/* Whole names: the last parts alone could name modules that have no adapter, too. */
static void write_targets(ls_json_out *json, const ls_adapters *s) {
    ls_json_begin_array(json, "target_modules");
    for (int64_t i = 0; i < s->n; i++) ls_json_string(json, NULL, s->adapters[i].module);
    ls_json_end_array(json);
}

static void write_adapter_config(ls_json_out *json, const ls_adapters *s) {
    ls_json_begin_object(json, NULL);
    ls_json_string(json, "peft_type", "LORA");
    ls_json_string(json, "task_type", "CAUSAL_LM");
    ls_json_string(json, "base_model_name_or_path", s->directory);
    ls_json_int(json, "r", s->rank);
    ls_json_double(json, "lora_alpha", s->alpha);
    write_targets(json, s);
    ls_json_double(json, "lora_dropout", 0.0);
    ls_json_string(json, "bias", "none");
    ls_json_bool(json, "fan_in_fan_out", false);
    ls_json_bool(json, "inference_mode", true);
    ls_json_bool(json, "use_rslora", false);
    ls_json_bool(json, "use_dora", false);
    ls_json_end_object(json);
    ls_json_newline(json);
}

static ls_status save_adapter_config(const char *directory, const ls_adapters *s, ls_error *err) {
    char path[LS_SAVES_PATH_MAX], *text = NULL;
    size_t bytes = 0;
    ls_json_out json;
    FILE *file = NULL;
    ls_status status;
    LS_TRY_DONE(ls_path_join(path, sizeof path, directory, "adapter_config.json", err));
    file = open_memstream(&text, &bytes);
    if (file == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "checkpoint");
    ls_json_init(&json, file);
    write_adapter_config(&json, s);
    status = ferror(file) != 0 ? LS_FAIL(err, LS_ERR_NOMEM, "checkpoint") : LS_OK;
    if (fclose(file) != 0 && status == LS_OK) status = LS_FAIL(err, LS_ERR_NOMEM, "checkpoint");
    if (status == LS_OK) status = ls_durable_file(path, text, (int64_t)bytes, err);
done:
    free(text);
    return status;
}

/* Takes the name away before the content, so that no half of a checkpoint has a checkpoint's name. */
static ls_status remove_old(const ls_saves *run, int64_t keep, ls_error *err) {
    char path[LS_SAVES_PATH_MAX], old[LS_SAVES_PATH_MAX], name[64];
    int64_t *steps = NULL, n;
    ls_status status = LS_OK;
    if (keep == 0) return LS_OK;
    LS_TRY_DONE(list_steps(run, &steps, &n, err));
    for (int64_t i = 0; i < n - keep; i++) {
        LS_TRY_DONE(step_path(run, steps[i], path, err));
        snprintf(name, sizeof name, "." STEP_PREFIX "%08lld.old", (long long)steps[i]);
        LS_TRY_DONE(ls_path_join(old, sizeof old, run->directory, name, err));
        LS_TRY_DONE(ls_path_rename(path, old, err));
        LS_TRY_DONE(ls_directory_remove(old, err));
    }
done:
    free(steps);
    return status;
}

/* ---- one checkpoint, of all processes ---- */

static bool writes(const ls_train_state *s) { return s->comm == NULL || ls_comm_rank(s->comm) == 0; }

static ls_status checkpoint_barrier(const ls_train_state *s, ls_error *err) {
    return s->comm == NULL ? LS_OK : ls_comm_barrier(s->comm, "the checkpoint", err);
}

/* Its names, on every process; the writer says whether it is there. */
static ls_status name_it(saving *now, const ls_saves *run, const ls_train_state *s, ls_error *err) {
    char name[64];
    uint8_t reported = 0;
    LS_TRY(step_path(run, s->step, now->path, err));
    snprintf(name, sizeof name, "." STEP_PREFIX "%08lld.new", (long long)s->step);
    LS_TRY(ls_path_join(now->fresh, sizeof now->fresh, run->directory, name, err));
    if (writes(s)) {
        LS_ASSERT(run->lock >= 0, "run %s is not open for writing", run->directory);
        LS_TRY(look_inside(&now->is_there, now->path, err)); /* after a save that failed behind the renaming */
        if (!now->is_there && ls_file_exists(now->path))
            return LS_FAIL(err, LS_ERR_FORMAT,
                           "%s: in the way of this step's checkpoint: it has the name of one and no state.json; move "
                           "it away",
                           now->path);
        reported = now->is_there;
    }
    if (s->comm != NULL) LS_TRY(ls_comm_tell(s->comm, 0, &reported, 1, "the checkpoint", err));
    now->is_there = reported != 0;
    return LS_OK;
}

/* The directory with everything that is no tensor, and files for these. */
static ls_status make_it(saving *now, const ls_saves *run, const ls_train_state *s, const ls_saved *saved,
                         ls_error *err) {
    LS_TRY(ls_directory_make(now->fresh, err));
    now->is_made = true;
    LS_TRY(s->adapters != NULL ? save_adapter_config(now->fresh, s->adapters, err) : save_files(run, now->fresh, err));
    return ls_saved_begin(saved, now->fresh, err);
}

/* Up to where all processes write their tensors. */
static ls_status begin_it(saving *now, const ls_saves *run, const ls_train_state *s, const ls_saved *saved,
                          ls_error *err) {
    LS_TRY(name_it(now, run, s, err));
    if (now->is_there) return LS_OK;
    if (writes(s)) LS_TRY(make_it(now, run, s, saved, err));
    LS_TRY(checkpoint_barrier(s, err));
    if (ls_file_exists(now->fresh)) return LS_OK;
    return LS_FAIL(
        err, LS_ERR_IO,
        "%s: rank %d does not see what rank 0 made there; all ranks write checkpoints, so they need the same "
        "directory of the run",
        now->fresh, s->comm == NULL ? 0 : ls_comm_rank(s->comm));
}

/* What tells that the tensors are these: the device still holds what is saved. */
static ls_status describe_it(saving *now, const ls_saves *run, const ls_train_state *s, const ls_saves_description *d,
                             ls_error *err) {
    uint64_t optimizer;
    return writes(s) ? describe_state(now, run, s, d, err) : ls_train_state_digest(s, &optimizer, err);
}

/* The writer's end of it, behind all processes' tensors. */
static ls_status name_for_good(saving *now, const ls_saves *run, ls_error *err) {
    char path[LS_SAVES_PATH_MAX];
    if (!now->is_there) {
        LS_TRY(ls_path_join(path, sizeof path, now->fresh, "state.json", err));
        LS_TRY(ls_durable_file(path, now->state, now->state_bytes, err));
        LS_TRY(ls_directory_sync(now->fresh, err));
        LS_TRY(ls_path_rename(now->fresh, now->path, err));
        now->is_made = false;
    }
    LS_TRY(ls_directory_sync(run->directory, err));
    return remove_old(run, now->keep, err);
}

static ls_status end_it(saving *now, const ls_saves *run, const ls_train_state *s, ls_error *err) {
    if (!now->is_there) LS_TRY(checkpoint_barrier(s, err));
    return writes(s) ? name_for_good(now, run, err) : LS_OK;
}

/* Behind its end or a failure. */
static void drop_it(saving *now) {
    if (now->is_made) (void)ls_directory_remove(now->fresh, NULL);
    free(now->state);
    *now = (saving){.is_made = false};
}

static ls_status save_now(const ls_saves *run, const ls_train_state *s, const ls_saves_description *d, int64_t keep,
                          ls_error *err) {
    saving now = {.keep = keep};
    ls_saved *saved = NULL;
    ls_status status;
    LS_TRY_DONE(ls_saved_open(&saved, s, err));
    LS_TRY_DONE(begin_it(&now, run, s, saved, err));
    if (!now.is_there) {
        LS_TRY_DONE(ls_saved_write(saved, now.fresh, err));
        LS_TRY_DONE(describe_it(&now, run, s, d, err));
    }
    LS_TRY_DONE(end_it(&now, run, s, err));
done:
    drop_it(&now);
    ls_saved_close(saved);
    return status;
}

/* ---- the same while the run goes on ---- */

ls_status ls_saves_start_writer(ls_saves *run, const ls_train_state *s, ls_error *err) {
    writer *b = NULL;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&b, 1, sizeof *b, "checkpoint", err));
    LS_TRY_DONE(ls_saved_open(&b->saved, s, err));
    LS_TRY_DONE(ls_saved_reserve(b->saved, err));
    run->writer = b;
    b = NULL;
done:
    close_writer(b);
    return status;
}

void ls_saves_tell(FILE *file, const ls_saves *run) {
    if (file == NULL || run->writer == NULL) return;
    fprintf(file, "checkpoints are written while the run goes on, from a copy of %.1f MB on the host\n",
            (double)ls_saved_bytes(run->writer->saved) * 1e-6);
}

static void *write_saved(void *context) {
    writer *b = context;
    b->status = ls_saved_write_copy(b->saved, b->now.fresh, &b->stop, &b->err);
    atomic_store(&b->is_written, true);
    return NULL;
}

static ls_status start_writer(const ls_saves *run, const ls_train_state *s, const ls_saves_description *d, int64_t keep,
                              ls_error *err) {
    writer *b = run->writer;
    int failed;
    b->now = (saving){.keep = keep};
    LS_TRY(begin_it(&b->now, run, s, b->saved, err));
    if (b->now.is_there) return end_it(&b->now, run, s, err);
    LS_TRY(ls_saved_copy(b->saved, err));
    LS_TRY(describe_it(&b->now, run, s, d, err));
    atomic_store(&b->stop, false);
    atomic_store(&b->is_written, false);
    failed = ls_thread_start(&b->thread, write_saved, b);
    if (failed != 0) return LS_FAIL(err, LS_ERR_NOMEM, "checkpoint: no thread: %s", strerror(failed));
    b->is_under_way = true;
    return LS_OK;
}

static ls_status join_thread(writer *b, ls_error *err) {
    (void)pthread_join(b->thread, NULL);
    b->is_under_way = false;
    if (b->status != LS_OK && err != NULL) *err = b->err;
    return b->status;
}

ls_status ls_saves_wait(ls_saves *run, const ls_train_state *s, ls_error *err) {
    writer *b = run->writer;
    ls_status status;
    if (b == NULL || !b->is_under_way) return LS_OK;
    LS_TRY_DONE(join_thread(b, err));
    status = end_it(&b->now, run, s, err);
done:
    drop_it(&b->now);
    return status;
}

/* Whether all processes have written theirs. */
static ls_status all_written(bool *out, writer *b, const ls_train_state *s, ls_error *err) {
    uint8_t written[LS_RANKS_MAX] = {0};
    int64_t begins[LS_RANKS_MAX + 1];
    const int32_t n_ranks = s->comm == NULL ? 1 : ls_comm_ranks(s->comm);
    written[s->comm == NULL ? 0 : ls_comm_rank(s->comm)] = atomic_load(&b->is_written);
    for (int32_t r = 0; r <= n_ranks; r++) begins[r] = r;
    if (s->comm != NULL) LS_TRY(ls_comm_share(s->comm, written, begins, "the checkpoint", err));
    *out = true;
    for (int32_t r = 0; r < n_ranks; r++) *out = *out && written[r] != 0;
    return LS_OK;
}

ls_status ls_saves_look(ls_saves *run, const ls_train_state *s, ls_error *err) {
    bool is_written;
    if (run->writer == NULL || !run->writer->is_under_way) return LS_OK;
    LS_TRY(all_written(&is_written, run->writer, s, err));
    return is_written ? ls_saves_wait(run, s, err) : LS_OK;
}

/* A checkpoint that is not complete is none. */
static void close_writer(writer *b) {
    if (b == NULL) return;
    atomic_store(&b->stop, true);
    if (b->is_under_way) (void)join_thread(b, NULL);
    drop_it(&b->now);
    ls_saved_close(b->saved);
    free(b);
}

ls_status ls_saves_save(ls_saves *run, const ls_train_state *s, const ls_saves_description *d, int64_t keep,
                        ls_error *err) {
    ls_status status;
    if (run->writer == NULL) return save_now(run, s, d, keep, err);
    LS_TRY(ls_saves_wait(run, s, err));
    status = start_writer(run, s, d, keep, err);
    if (!run->writer->is_under_way) drop_it(&run->writer->now);
    return status;
}

/* ---- loading ---- */

static ls_status check_text(const ls_node *state, const char *key, const char *expected, ls_error *err) {
    const char *found;
    ls_node child;
    ls_status status;
    LS_TRY_DONE(ls_node_need(state, key, &child, err));
    LS_TRY_DONE(ls_node_string(&child, &found, err));
    if (strcmp(found, expected) != 0)
        status = ls_node_fail(&child, LS_ERR_ARG, err, "was %.100s and is %.100s now", found, expected);
done:
    return status;
}

static ls_status check_hex(const ls_node *state, const char *key, uint64_t value, ls_error *err) {
    char text[32];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)value);
    return check_text(state, key, text, err);
}

/* Bytes of an array that are read at a time. */
#define ARRAY_PIECE_BYTES (1 << 20)

/* A tensor from a byte of it on. */
typedef struct part_source {
    ls_tensor_view view;
    int64_t at;
} part_source;

/* ls_memory_source of it. */
static ls_status bring_saved(void *context, void *host, int64_t at, int64_t bytes, ls_error *err) {
    const part_source *of = context;
    return ls_tensor_read_part(host, &of->view, of->at + at, bytes, err);
}

/* This process's part of a tensor of the file into device memory. */
static ls_status read_array(const ls_train_state *s, int array, const ls_parameter *p, const ls_tensor_view *view,
                            ls_error *err) {
    part_source of = {*view, (p->slot.tensor.at + p->begin) * ls_dtype_bytes(ls_saved_array_dtype(s, array))};
    const int64_t bytes = (p->end - p->begin) * ls_dtype_bytes(ls_saved_array_dtype(s, array));
    if (bytes == 0) return LS_OK;
    return ls_memory_load(s->parameters->device, ls_saved_array_element(s, array, p, p->begin), bytes,
                          ARRAY_PIECE_BYTES, bring_saved, &of, err);
}

/* A tensor of the file is the array of a parameter; moments of the other type are those of another run. */
static ls_status check_array(const char *path, const ls_train_state *s, int array, const ls_parameter *p,
                             const char *name, const ls_tensor_view *view, ls_error *err) {
    const ls_dtype dtype = ls_saved_array_dtype(s, array), other = dtype == LS_F32 ? LS_BF16 : LS_F32;
    const int64_t n = ls_slot_tensor_elements(&p->slot.tensor);
    const bool fits = view != NULL && view->n_elements == n;
    if (fits && view->dtype == ls_saved_dtype(dtype)) return LS_OK;
    if (fits && array > 0 && view->dtype == ls_saved_dtype(other))
        return LS_FAIL(err, LS_ERR_ARG,
                       "%s: moments: was %s and is %s now; to go on with another value, begin a new run from this "
                       "checkpoint as its model",
                       path, ls_dtype_name(other), ls_dtype_name(dtype));
    return LS_FAIL(err, LS_ERR_FORMAT, "%s: %s: missing, or not %lld elements of %s", path, name, (long long)n,
                   dtype == LS_F32 ? "F32" : "BF16");
}

static ls_status load_optimizer(const char *path, const ls_train_state *s, ls_error *err) {
    const ls_parameters *p = s->parameters;
    ls_safetensors *file = NULL;
    ls_saved_name name;
    ls_status status;
    LS_TRY_DONE(ls_safetensors_open(&file, path, err));
    if (ls_safetensors_count(file) != LS_SAVED_ARRAYS * p->n_tensors) {
        status = LS_FAIL(err, LS_ERR_FORMAT, "%s: %lld tensors; this model needs %lld", path,
                         (long long)ls_safetensors_count(file), (long long)(LS_SAVED_ARRAYS * p->n_tensors));
        goto done;
    }
    for (int array = 0; array < LS_SAVED_ARRAYS; array++)
        for (int64_t i = 0; i < p->n; i++) {
            const ls_parameter *q = &p->list[i];
            const ls_tensor_view *view;
            ls_saved_array_name(name, array, q);
            view = ls_safetensors_find(file, name);
            LS_TRY_DONE(check_array(path, s, array, q, name, view, err));
            LS_TRY_DONE(read_array(s, array, q, view, err));
        }
    status = ls_safetensors_check(file, err);
done:
    ls_safetensors_close(file);
    return status;
}

static ls_status load_place(const ls_node *root, ls_train_state *s, const ls_saves_description *d, ls_error *err) {
    ls_node child, positions, position;
    ls_status status;
    LS_TRY_DONE(ls_node_need(root, "step", &child, err));
    LS_TRY_DONE(ls_node_int(&child, 0, INT64_MAX - 1, &s->step, err));
    LS_TRY_DONE(ls_node_need(root, "positions", &positions, err));
    for (int64_t i = 0; i < d->n_positions; i++) {
        LS_TRY_DONE(ls_node_need(&positions, d->positions[i].name, &position, err));
        LS_TRY_DONE(ls_node_int(&position, 0, INT64_MAX - 1, &d->positions[i].value, err));
    }
    if (check_hex(root, "place", digest_place(s->step, d), NULL) != LS_OK)
        status = ls_node_fail(&positions, LS_ERR_FORMAT, err, "step or positions are not those that were saved");
done:
    return status;
}

/* The files beside the weights must be those that the run computed with. */
static ls_status check_files(const ls_node *root, const char *directory, ls_error *err) {
    ls_saves files = {.lock = -1};
    ls_status status = ls_saves_keep_files(&files, directory, err);
    if (status == LS_OK && check_hex(root, "model", digest_files(files.files, files.file_bytes), NULL) != LS_OK)
        status = LS_FAIL(err, LS_ERR_ARG,
                         "%s: config.json or another file of the model is not the one that this run computed with; "
                         "to change the model, begin a new run from this checkpoint",
                         directory);
    for (int i = 0; i < LS_MODEL_FILES; i++) free(files.files[i]);
    return status;
}

static ls_status load_state(const ls_node *root, ls_train_state *s, const ls_saves_description *d, ls_error *err) {
    ls_node child;
    int64_t format;
    LS_TRY(ls_node_need(root, "format", &child, err));
    LS_TRY(ls_node_int(&child, STATE_FORMAT, STATE_FORMAT, &format, err));
    LS_TRY(check_text(root, "kind", d->kind, err));
    LS_TRY(check_text(root, "numerics", d->numerics, err));
    LS_TRY(check_hex(root, "data", d->data, err));
    LS_TRY(ls_node_need(root, "options", &child, err));
    LS_TRY(ls_config_agree(d->config, &child, d->free, err));
    return load_place(root, s, d, err);
}

/* Numerics begin with the profile's name: "mma16/4/bf16". */
static ls_status read_numerics(ls_profile *profile, ls_dtype *dtype, const ls_node *root, ls_error *err) {
    const char *numerics, *type;
    char name[LS_NUMERICS_BYTES];
    ls_node child;
    LS_TRY(ls_node_need(root, "numerics", &child, err));
    LS_TRY(ls_node_string(&child, &numerics, err));
    snprintf(name, sizeof name, "%.*s", (int)strcspn(numerics, "/"), numerics);
    if (!ls_profile_parse(profile, name))
        return ls_node_fail(&child, LS_ERR_FORMAT, err, "'%.60s' names no profile", numerics);
    type = strrchr(numerics, '/');
    *dtype = type != NULL && strcmp(type + 1, ls_dtype_name(LS_BF16)) == 0 ? LS_BF16 : LS_F32;
    if (type == NULL || strcmp(type + 1, ls_dtype_name(*dtype)) != 0)
        return ls_node_fail(&child, LS_ERR_FORMAT, err, "'%.60s' names no type of activations", numerics);
    return LS_OK;
}

/* doc and text are the caller's, also after a failure. */
static ls_status open_state(ls_json_doc **doc, char **text, const char *directory, ls_error *err) {
    char path[LS_SAVES_PATH_MAX];
    int64_t bytes;
    LS_TRY(ls_path_join(path, sizeof path, directory, "state.json", err));
    LS_TRY(ls_file_read(text, &bytes, path, STATE_BYTES_MAX, err));
    return ls_json_doc_open(doc, *text, bytes, path, err);
}

ls_status ls_saves_numerics(ls_profile *profile, ls_dtype *dtype, const char *directory, ls_error *err) {
    char *text = NULL;
    ls_json_doc *doc = NULL;
    ls_node root;
    ls_status status;
    LS_TRY_DONE(open_state(&doc, &text, directory, err));
    root = ls_json_root(doc);
    LS_TRY_DONE(read_numerics(profile, dtype, &root, err));
done:
    ls_json_doc_free(doc);
    free(text);
    return status;
}

ls_status ls_saves_load(const char *directory, ls_train_state *s, const ls_saves_description *d, ls_error *err) {
    char path[LS_SAVES_PATH_MAX], *text = NULL;
    uint64_t digest;
    ls_json_doc *doc = NULL;
    ls_node root;
    ls_status status;
    LS_TRY_DONE(open_state(&doc, &text, directory, err));
    root = ls_json_root(doc);
    LS_TRY_DONE(load_state(&root, s, d, err));
    LS_TRY_DONE(check_files(&root, s->adapters != NULL ? s->adapters->directory : directory, err));
    LS_TRY_DONE(ls_path_join(path, sizeof path, directory, "optimizer.safetensors", err));
    LS_TRY_DONE(load_optimizer(path, s, err));
    LS_TRY_DONE(ls_train_state_digest(s, &digest, err));
    LS_TRY_DONE(check_hex(&root, "optimizer", digest, err));
    LS_TRY_DONE(ls_train_state_publish(s, err));
    LS_TRY_DONE(ls_parameters_digest(s->weights, &digest, err));
    LS_TRY_DONE(check_hex(&root, "weights", digest, err));
done:
    ls_json_doc_free(doc);
    free(text);
    return status;
}
