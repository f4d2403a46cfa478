/* Finding, checking and moving the tensors of a checkpoint. */
#include "model/stored.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/architectures.h"
#include "model/merge.h"

/* More threads than this do not read a file in memory faster. */
#define READERS_MAX 8
/* Bytes that one thread reads at least. */
#define READ_GRAIN ((int64_t)1 << 20)
/* A checkpoint below this size is read before threads have started. */
#define THREADED_BYTES ((int64_t)64 << 20)

static ls_model_watcher watcher_of_runs;
static void *watcher_of_runs_context;

void ls_model_watch(ls_model_watcher watcher, void *context) {
    watcher_of_runs = watcher;
    watcher_of_runs_context = context;
}

static void tell_stored(const ls_stored *s) {
    if (s->watcher != NULL) s->watcher(s->watcher_context, s->directory, s->done, s->total);
}

static int32_t readers_of(const ls_model_loading *how, int64_t total) {
    const int32_t n = ls_cpu_count();
    if (how != NULL && how->n_threads > 0) return how->n_threads;
    if (total < THREADED_BYTES) return 1;
    return n < READERS_MAX ? n : READERS_MAX;
}

static bool is_unread(const ls_stored *s, const ls_tensor_view *view) {
    for (const char *const *begin = s->names->unread; begin != NULL && *begin != NULL; begin++)
        if (strncmp(view->name, *begin, strlen(*begin)) == 0) return true;
    return false;
}

ls_status ls_stored_open(ls_stored *out, const char *directory, const ls_tensor_names *names,
                         const ls_model_loading *how, ls_error *err) {
    *out = (ls_stored){.directory = directory,
                       .names = names,
                       .piece_bytes = how != NULL && how->piece_bytes > 0 ? how->piece_bytes : LS_PIECE_BYTES,
                       .watcher = watcher_of_runs,
                       .watcher_context = watcher_of_runs_context};
    LS_TRY(ls_adapter_chain_open(&out->chain, directory, err));
    LS_TRY(ls_checkpoint_open(&out->checkpoint, out->chain.home, err));
    if (out->chain.n > 0) LS_TRY(ls_merging_open(&out->merging, &out->chain, out->checkpoint, err));
    for (int64_t i = 0; i < ls_checkpoint_count(out->checkpoint); i++) {
        const ls_tensor_view *view = ls_checkpoint_at(out->checkpoint, i);
        if (!is_unread(out, view)) out->total += view->bytes;
    }
    LS_TRY(ls_array_alloc((void **)&out->used, ls_checkpoint_count(out->checkpoint), sizeof(const ls_tensor_view *),
                          "tensors", err));
    return ls_pool_create(&out->pool, readers_of(how, out->total), err);
}

void ls_stored_close(ls_stored *s) {
    free((void *)s->used);
    ls_merging_close(s->merging);
    ls_adapter_chain_deinit(&s->chain);
    ls_checkpoint_close(s->checkpoint);
    ls_pool_free(s->pool);
    *s = (ls_stored){0};
}

static void format_shape(char *text, size_t bytes, const int64_t *dims, int32_t n_dims) {
    size_t used = 0;
    text[0] = '\0';
    for (int32_t i = 0; i < n_dims && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%lld", i > 0 ? ", " : "", (long long)dims[i]);
}

static ls_status check_shape(const ls_tensor_view *view, const ls_weight_slot *slot, ls_error *err) {
    char want[96], got[256];
    const ls_slot_tensor *tensor = &slot->tensor;
    bool same = view->n_dims == tensor->n_dims;
    for (int32_t i = 0; same && i < tensor->n_dims; i++) same = view->dims[i] == tensor->dims[i];
    if (same) return LS_OK;
    format_shape(want, sizeof want, tensor->dims, tensor->n_dims);
    format_shape(got, sizeof got, view->dims, view->n_dims);
    return LS_FAIL(err, LS_ERR_FORMAT, "%s: %s: shape is [%s], the configuration calls for [%s]", view->file,
                   slot->name, got, want);
}

ls_status ls_stored_find(ls_stored *s, const ls_tensor_view **out, ls_dtype *dtype, const ls_weight_slot *slot,
                         ls_error *err) {
    const ls_tensor_view *view = ls_checkpoint_find(s->checkpoint, slot->name);
    if (view == NULL) return LS_FAIL(err, LS_ERR_FORMAT, "%s: missing tensor %s", s->directory, slot->name);
    LS_TRY(check_shape(view, slot, err));
    if (view->dtype == LS_ST_F32)
        *dtype = LS_F32;
    else if (view->dtype == LS_ST_BF16)
        *dtype = LS_BF16;
    else if (view->dtype == LS_ST_F16)
        *dtype = LS_F16;
    else
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: %s: data type %s%s; weights must be F32, BF16 or F16", view->file,
                       slot->name, ls_st_dtype_name(view->dtype),
                       ls_st_dtype_bits(view->dtype) <= 8 ? ", so the weights are quantised" : "");
    *out = view;
    if (slot->tensor.at > 0) return LS_OK; /* its first slot has counted it */
    LS_ASSERT(s->n_used < ls_checkpoint_count(s->checkpoint), "%s: asked for twice", slot->name);
    s->used[s->n_used++] = view;
    return LS_OK;
}

/* ---- bytes ---- */

/* A piece that is read by several threads, and the first failure of each. */
typedef struct piece_load {
    const ls_tensor_view *view;
    uint8_t *host;
    int64_t at; /* of host[0] in the tensor */
    ls_status status[LS_THREADS_MAX];
    ls_error err[LS_THREADS_MAX];
} piece_load;

static void read_part(void *context, int64_t begin, int64_t end, int32_t thread_i) {
    piece_load *r = context;
    if (r->status[thread_i] != LS_OK) return;
    r->status[thread_i] = ls_tensor_read_part(r->host + begin, r->view, r->at + begin, end - begin, &r->err[thread_i]);
}

ls_status ls_stored_read(const ls_stored *s, void *host, const ls_tensor_view *view, int64_t at, int64_t bytes,
                         ls_error *err) {
    const int32_t n = ls_pool_threads(s->pool);
    piece_load *r = NULL;
    ls_status status;
    if (s->merging != NULL && ls_merging_has(s->merging, view))
        return ls_merging_read(s->merging, host, view, at, bytes, err);
    if (n == 1 || bytes <= READ_GRAIN) return ls_tensor_read_part(host, view, at, bytes, err);
    LS_TRY_DONE(ls_array_alloc((void **)&r, 1, (int64_t)sizeof *r, "tensor", err));
    r->view = view;
    r->host = host;
    r->at = at;
    ls_parallel_for(s->pool, bytes, READ_GRAIN, read_part, r);
    for (int32_t i = 0; i < n && status == LS_OK; i++) {
        status = r->status[i];
        if (status != LS_OK && err != NULL) *err = r->err[i];
    }
done:
    free(r);
    return status;
}

typedef struct source {
    ls_stored *stored;
    const ls_tensor_view *view;
    int64_t begin; /* of what is loaded, in the tensor */
} source;

static ls_status bring_piece(void *context, void *host, int64_t at, int64_t bytes, ls_error *err) {
    const source *s = context;
    LS_TRY(ls_stored_read(s->stored, host, s->view, s->begin + at, bytes, err));
    s->stored->done += bytes;
    tell_stored(s->stored);
    return LS_OK;
}

ls_status ls_stored_load_part(ls_stored *stored, ls_device *device, void *to, const ls_tensor_view *view, int64_t at,
                              int64_t bytes, ls_error *err) {
    source from = {stored, view, at};
    if (stored->done == 0) tell_stored(stored);
    return ls_memory_load(device, to, bytes, stored->piece_bytes, bring_piece, &from, err);
}

ls_status ls_stored_load(ls_stored *stored, ls_device *device, void *to, const ls_tensor_view *view,
                         const ls_weight_slot *slot, ls_error *err) {
    const int64_t size = ls_st_dtype_bytes(view->dtype);
    return ls_stored_load_part(stored, device, to, view, slot->tensor.at * size, ls_slot_elements(slot) * size, err);
}

/* ---- the head of a tied model ---- */

static ls_status compare_heads(ls_stored *s, bool *same, const ls_tensor_view *a, const ls_tensor_view *b,
                               ls_error *err) {
    const int64_t most = a->bytes < s->piece_bytes ? a->bytes : s->piece_bytes;
    uint8_t *x = NULL, *y = NULL;
    ls_status status;
    *same = true;
    LS_TRY_DONE(ls_array_alloc((void **)&x, most, 1, "tensor", err));
    LS_TRY_DONE(ls_array_alloc((void **)&y, most, 1, "tensor", err));
    for (int64_t at = 0; at < a->bytes && *same; at += most) {
        const int64_t n = a->bytes - at < most ? a->bytes - at : most;
        LS_TRY_DONE(ls_stored_read(s, x, a, at, n, err));
        LS_TRY_DONE(ls_stored_read(s, y, b, at, n, err));
        *same = memcmp(x, y, (size_t)n) == 0;
    }
done:
    free(x);
    free(y);
    return status;
}

ls_status ls_stored_check_head(ls_stored *s, const ls_model_config *c, ls_error *err) {
    ls_weight_slot slot = {.tensor = {.n_dims = 2, .dims = {c->vocab, c->hidden}}};
    const ls_tensor_view *head, *embed = ls_checkpoint_find(s->checkpoint, c->names->embed);
    bool same = false;
    ls_dtype dtype;
    if (!c->tied || ls_checkpoint_find(s->checkpoint, c->names->head) == NULL) return LS_OK;
    snprintf(slot.name, sizeof slot.name, "%s", c->names->head);
    LS_TRY(ls_stored_find(s, &head, &dtype, &slot, err));
    if (head->dtype == embed->dtype) LS_TRY(compare_heads(s, &same, head, embed, err));
    if (!same)
        return LS_FAIL(err, LS_ERR_FORMAT, "%s: %s: differs from %s, but tie_word_embeddings is true", head->file,
                       c->names->head, c->names->embed);
    s->done += head->bytes;
    tell_stored(s);
    return LS_OK;
}

/* ---- the end ---- */

static ls_status check_all_used(const ls_stored *s, int32_t n_layers, ls_error *err) {
    const int64_t n = ls_checkpoint_count(s->checkpoint);
    int64_t n_left = n - s->n_used;
    for (int64_t i = 0; i < n; i++) {
        const ls_tensor_view *view = ls_checkpoint_at(s->checkpoint, i);
        bool used = is_unread(s, view);
        n_left -= used;
        for (int64_t j = 0; j < s->n_used && !used; j++) used = s->used[j] == view;
        if (!used)
            return LS_FAIL(err, LS_ERR_FORMAT, "%s: %s: the configuration (%d layers) calls for no such tensor",
                           view->file, view->name, n_layers);
    }
    if (n_left == 0) return LS_OK;
    return LS_FAIL(err, LS_ERR_FORMAT, "%s: a tensor was asked for twice", s->directory);
}

ls_status ls_stored_check(const ls_stored *s, int32_t n_layers, ls_error *err) {
    LS_TRY(check_all_used(s, n_layers, err));
    if (s->merging != NULL) LS_TRY(ls_merging_check(s->merging, err));
    return ls_checkpoint_check(s->checkpoint, err);
}
