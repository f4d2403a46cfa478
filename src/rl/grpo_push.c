/* Weights on their way to rollout servers: as a model directory, or as the changes since those that the servers had
 * last. For changes rank 0 holds a copy of what it sent last in the host's memory, the size of the weights. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/durable.h"
#include "base/file.h"
#include "base/mem.h"
#include "load/changes.h"
#include "rl/grpo_state.h"
#include "train/saved_tensors.h"

enum { NAME_BYTES = 40, PATH_BYTES = LS_SAVES_PATH_MAX + 64 };

/* What was sent last. */
struct grpo_push {
    uint8_t *held;     /* every tensor, one behind the other; NULL: no memory was taken yet */
    uint64_t *digests; /* [n] */
    bool is_held;      /* else it is of no use */
};

/* ---- the copy ---- */

static ls_status take_memory(grpo_push *u, const ls_saved_weights *w, ls_error *err) {
    const int64_t n = w->parameters->n_tensors;
    int64_t all = 0, bytes;
    if (u->held != NULL) return LS_OK;
    for (int64_t i = 0; i < n; i++) {
        LS_TRY(ls_tensor_out_bytes(&bytes, &w->tensors[i], err));
        if (!ls_add_i64(all, bytes, &all)) return LS_FAIL(err, LS_ERR_ARG, "rollout_push: the weights are too large");
    }
    LS_TRY(ls_array_alloc((void **)&u->digests, n, sizeof *u->digests, "digests of what servers have", err));
    return ls_array_alloc((void **)&u->held, all, 1, "a copy of what servers have (rollout_push)", err);
}

/* Compares the weights with the copy, which they become. */
static ls_status compare_weights(grpo_push *u, ls_changes_out *out, ls_saved_weights *w, ls_error *err) {
    uint8_t *piece = NULL, *held = u->held;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&piece, LS_FETCH_BYTES, 1, "weights", err));
    for (int64_t i = 0; i < w->parameters->n_tensors; i++) {
        int64_t bytes;
        LS_TRY_DONE(ls_tensor_out_bytes(&bytes, &w->tensors[i], err));
        for (int64_t at = 0, n; at < bytes; at += n, held += n) {
            n = ls_min_i64(bytes - at, LS_FETCH_BYTES);
            LS_TRY_DONE(ls_saved_weights_fetch(w, piece, &w->tensors[i], at, n, err));
            LS_TRY_DONE(ls_changes_add(out, i, u->is_held ? held : NULL, piece, n, err));
            memcpy(held, piece, (size_t)n);
        }
    }
done:
    free(piece);
    return status;
}

/* Changes since what was sent last, into a directory that is there; *bytes 0: there are none to send. */
static ls_status write_changes(grpo_push *u, const ls_parameters *weights, const char *directory, int64_t *bytes,
                               ls_error *err) {
    ls_saved_weights w;
    ls_changes_out *out = NULL;
    ls_status status;
    *bytes = 0;
    LS_TRY_DONE(ls_saved_weights_open(&w, weights, err));
    LS_TRY_DONE(take_memory(u, &w, err));
    LS_TRY_DONE(ls_changes_begin(&out, w.tensors, weights->n_tensors, err));
    LS_TRY_DONE(compare_weights(u, out, &w, err));
    if (u->is_held) LS_TRY_DONE(ls_changes_write(out, directory, u->digests, bytes, err));
    for (int64_t i = 0; i < weights->n_tensors; i++) u->digests[i] = ls_changes_digest(out, i);
done:
    u->is_held = status == LS_OK;
    ls_changes_end(out);
    ls_saved_weights_close(&w);
    return status;
}

ls_status ls_grpo_push_open(grpo_push **out, ls_error *err) {
    return ls_array_alloc((void **)out, 1, sizeof **out, "rollout_push", err);
}

void ls_grpo_push_close(grpo_push *u) {
    if (u == NULL) return;
    free(u->held);
    free(u->digests);
    free(u);
}

/* ---- directories ---- */

/* What goes to the servers: RUN/rollout/NAME, whose number is the update's. */
typedef struct parcel {
    char home[LS_SAVES_PATH_MAX], name[NAME_BYTES], fresh[PATH_BYTES], path[PATH_BYTES];
} parcel;

/* A directory to be filled, under another name than it will have. */
static ls_status begin_parcel(parcel *p, const grpo *g, const char *kind, int64_t update, ls_error *err) {
    snprintf(p->home, sizeof p->home, "%s/rollout", g->o->train.run);
    snprintf(p->name, sizeof p->name, "%s-%08lld", kind, (long long)update);
    snprintf(p->fresh, sizeof p->fresh, "%s/.%s.new", p->home, p->name);
    snprintf(p->path, sizeof p->path, "%s/%s", p->home, p->name);
    LS_TRY(ls_directory_make(p->home, err));
    if (ls_file_exists(p->fresh)) LS_TRY(ls_directory_remove(p->fresh, err));
    return ls_directory_make(p->fresh, err);
}

static ls_status count_bytes(int64_t *bytes, const char *directory, ls_error *err) {
    char path[PATH_BYTES + 256], **names = NULL;
    int64_t n = 0;
    ls_file_id id;
    ls_status status;
    LS_TRY_DONE(ls_directory_list(&names, &n, directory, err));
    for (int64_t i = 0; i < n; i++) {
        LS_TRY_DONE(ls_path_join(path, sizeof path, directory, names[i], err));
        LS_TRY_DONE(ls_file_identify(&id, path, err));
        *bytes += id.bytes;
    }
done:
    ls_names_free(names, n);
    return status;
}

/* It appears under its name, complete. *full: as the servers see it, released with free(). */
static ls_status finish_parcel(char **full, const parcel *p, grpo *g, ls_error *err) {
    int64_t bytes = 0;
    *full = NULL;
    LS_TRY(count_bytes(&bytes, p->fresh, err));
    if (ls_file_exists(p->path)) LS_TRY(ls_directory_remove(p->path, err)); /* of a run that began in this directory */
    LS_TRY(ls_path_rename(p->fresh, p->path, err));
    atomic_fetch_add(&g->pushed, bytes);
    *full = realpath(p->path, NULL);
    return *full != NULL ? LS_OK : LS_FAIL(err, LS_ERR_IO, "%s: %s", p->path, strerror(errno));
}

/* Everything in RUN/rollout but what this update sent: earlier weights, and what a killed process left. */
static ls_status remove_others(const grpo *g, int64_t update, ls_error *err) {
    char home[LS_SAVES_PATH_MAX], path[PATH_BYTES + 256], whole[NAME_BYTES], changes[NAME_BYTES], **names = NULL;
    int64_t n = 0;
    ls_status status;
    snprintf(home, sizeof home, "%s/rollout", g->o->train.run);
    snprintf(whole, sizeof whole, "weights-%08lld", (long long)update);
    snprintf(changes, sizeof changes, "changes-%08lld", (long long)update);
    LS_TRY_DONE(ls_directory_list(&names, &n, home, err));
    for (int64_t i = 0; i < n; i++) {
        if (strcmp(names[i], whole) == 0 || strcmp(names[i], changes) == 0) continue;
        LS_TRY_DONE(ls_path_join(path, sizeof path, home, names[i], err));
        LS_TRY_DONE(ls_directory_remove(path, err));
    }
done:
    ls_names_free(names, n);
    return status;
}

/* ---- sending ---- */

/* *n_left: servers that need whole weights. */
static ls_status offer_changes(grpo *g, const grpo_weights *weights, int64_t *n_left, ls_error *err) {
    parcel p;
    char *full;
    int64_t bytes;
    ls_status status;
    LS_TRY(begin_parcel(&p, g, "changes", weights->update, err));
    LS_TRY(write_changes(g->push, weights->list, p.fresh, &bytes, err));
    if (bytes == 0) return ls_directory_remove(p.fresh, err);
    status = finish_parcel(&full, &p, g, err);
    if (status == LS_OK) status = ls_rollout_offer(g->rollout, full, (uint64_t)weights->update, n_left, err);
    free(full);
    return status;
}

static ls_status send_whole(grpo *g, const grpo_weights *weights, ls_error *err) {
    parcel p;
    char *full;
    ls_status status;
    LS_TRY(begin_parcel(&p, g, "weights", weights->update, err));
    LS_TRY(ls_saves_save_model(g->saves, p.fresh, weights->list, err));
    status = finish_parcel(&full, &p, g, err);
    if (status == LS_OK) status = ls_rollout_publish(g->rollout, full, (uint64_t)weights->update, err);
    free(full);
    return status;
}

ls_status ls_grpo_push_weights(grpo *g, const grpo_weights *weights, ls_error *err) {
    int64_t n_left = 1; /* all, until some have taken changes */
    if (g->push != NULL) LS_TRY(offer_changes(g, weights, &n_left, err));
    if (n_left > 0) LS_TRY(send_whole(g, weights, err));
    return remove_others(g, weights->update, err);
}
