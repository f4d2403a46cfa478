/* Wrappers and fused experts. Owns the new names. */
#include "load/tensor_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

void ls_tensor_names_deinit(ls_tensor_names_own *own) {
    for (int64_t i = 0; i < own->n; i++) free(own->names[i]);
    free(own->names);
    free(own->views);
    *own = (ls_tensor_names_own){0};
}

/* The bytes of a wrapper's part of a name, its point included, that stands here; 0: none does. */
static size_t wrapper_at(const char *part, bool first) {
    static const char *const parts[] = {"_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (strncmp(part, parts[i], strlen(parts[i])) == 0) return strlen(parts[i]);
    return first && strncmp(part, "module.", 7) == 0 ? 7 : 0;
}

/* The name without wrappers, into room for all of it. */
static void unwrap(char *out, const char *name) {
    bool first = true;
    while (*name != '\0') {
        const size_t wrapper = wrapper_at(name, first), bytes = strcspn(name, ".");
        if (wrapper > 0) {
            name += wrapper;
            continue;
        }
        first = false;
        memcpy(out, name, bytes);
        out += bytes;
        name += bytes;
        if (*name == '.') *out++ = *name++;
    }
    *out = '\0';
}

/* The language model of a file that once had layers for images. */
#define OF_LANGUAGE "model.language_model."

static void leave_language(char *name) {
    const size_t skip = strlen("language_model."), kept = strlen("model.");
    if (strncmp(name, OF_LANGUAGE, strlen(OF_LANGUAGE)) == 0)
        memmove(name + kept, name + kept + skip, strlen(name + kept + skip) + 1);
}

/* Granite's mixture: as the module of transformers 5 has it, and as files have it. */
#define OF_MIXTURE ".block_sparse_moe."
static const char *const mixture_names[][2] = {{"experts.gate_up_proj", "input_linear.weight"},
                                               {"experts.down_proj", "output_linear.weight"},
                                               {"router.weight", "router.layer.weight"}};
enum { LONGER_MAX = 6 }; /* what a name grows by at most */

/* Of which of these a name is; NULL: of none. *from: where what is renamed begins. */
static const char *mixture_name(const char *name, size_t *from) {
    const char *part = strstr(name, OF_MIXTURE);
    if (part == NULL) return NULL;
    *from = (size_t)(part - name) + strlen(OF_MIXTURE);
    for (size_t i = 0; i < sizeof mixture_names / sizeof mixture_names[0]; i++)
        if (strcmp(name + *from, mixture_names[i][0]) == 0) return mixture_names[i][1];
    return NULL;
}

static void rename_mixture(char *name) {
    size_t from;
    const char *other = mixture_name(name, &from);
    if (other != NULL) memcpy(name + from, other, strlen(other) + 1);
}

/* Which experts' tensor of a layer this is, by the length of what stands before ".experts."; 0: of none. */
static size_t experts_of(const ls_tensor_view *view, const char *end) {
    const size_t n = strlen(view->name), m = strlen(end);
    if (view->n_dims != 3 || view->n_elements == 0 || view->dims[0] > LS_FUSED_EXPERTS_MAX ||
        ls_st_dtype_bytes(view->dtype) == 0)
        return 0;
    return n > m && strcmp(view->name + n - m, end) == 0 ? n - m : 0;
}

#define GATE_UP ".experts.gate_up_proj"
#define DOWN ".experts.down_proj"

static bool is_fused(const ls_tensor_view *view) {
    return (experts_of(view, GATE_UP) > 0 && view->dims[1] % 2 == 0) || experts_of(view, DOWN) > 0;
}

/* Whether it stands under another name than models are read by. */
static bool is_wrapped(const char *name) {
    size_t from;
    if (strstr(name, OF_LANGUAGE) != NULL || mixture_name(name, &from) != NULL) return true;
    for (const char *part = name;; part++) {
        if (wrapper_at(part, part == name) > 0) return true;
        if ((part = strchr(part, '.')) == NULL) return false;
    }
}

/* One more view; *name has room for `bytes`, the end of the text included. */
static ls_status add_name(ls_tensor_names_own *own, const ls_tensor_view *view, int64_t bytes, char **name,
                          ls_error *err) {
    char *text = NULL;
    if (own->n >= LS_FUSED_TENSORS_MAX)
        return LS_FAIL(err, LS_ERR_CAPACITY, "%s: more than %d tensors of experts", view->file, LS_FUSED_TENSORS_MAX);
    LS_TRY(ls_array_grow((void **)&own->views, &own->views_cap, own->n + 1, sizeof *own->views, "tensors", err));
    LS_TRY(ls_array_grow((void **)&own->names, &own->names_cap, own->n + 1, sizeof *own->names, "tensors", err));
    LS_TRY(ls_array_alloc((void **)&text, bytes, 1, "tensor names", err));
    own->names[own->n] = text;
    own->views[own->n] = *view;
    own->views[own->n].name = text;
    own->n++;
    *name = text;
    return LS_OK;
}

/* Rows [from, from + rows) of expert e under the name of a matrix of its own. */
static ls_status add_expert(ls_tensor_names_own *own, const ls_tensor_view *view, size_t before, int64_t e,
                            const char *which, int64_t from, int64_t rows, ls_error *err) {
    const int64_t row_bytes = view->dims[2] * ls_st_dtype_bytes(view->dtype);
    const int64_t skip = (e * view->dims[1] + from) * row_bytes, bytes = (int64_t)before + 64;
    ls_tensor_view *part;
    char *name = NULL;
    LS_TRY(add_name(own, view, bytes, &name, err));
    snprintf(name, (size_t)bytes, "%.*s.experts.%lld.%s.weight", (int)before, view->name, (long long)e, which);
    part = &own->views[own->n - 1];
    part->n_dims = 2;
    part->dims[0] = rows;
    part->dims[1] = view->dims[2];
    part->n_elements = rows * view->dims[2];
    part->bytes = rows * row_bytes;
    part->at = view->at + skip;
    if (view->data != NULL) part->data = (const uint8_t *)view->data + skip;
    return LS_OK;
}

static ls_status add_experts(ls_tensor_names_own *own, const ls_tensor_view *view, ls_error *err) {
    const size_t gate_up = experts_of(view, GATE_UP), down = experts_of(view, DOWN);
    const int64_t half = view->dims[1] / 2;
    for (int64_t e = 0; e < view->dims[0]; e++) {
        if (down > 0) {
            LS_TRY(add_expert(own, view, down, e, "down_proj", 0, view->dims[1], err));
            continue;
        }
        LS_TRY(add_expert(own, view, gate_up, e, "gate_proj", 0, half, err));
        LS_TRY(add_expert(own, view, gate_up, e, "up_proj", half, half, err));
    }
    return LS_OK;
}

ls_status ls_tensor_names_resolve(ls_tensor_names_own *out, const ls_tensor_view *const *views, int64_t n,
                                  ls_error *err) {
    bool any = false;
    for (int64_t i = 0; i < n && !any; i++) any = is_wrapped(views[i]->name) || is_fused(views[i]);
    for (int64_t i = 0; i < n && any; i++) {
        const int64_t bytes = (int64_t)strlen(views[i]->name) + LONGER_MAX + 1;
        ls_tensor_view view = *views[i];
        char *name = NULL, *plain = NULL;
        ls_status status;
        LS_TRY(ls_array_alloc((void **)&plain, bytes, 1, "tensor names", err));
        unwrap(plain, view.name);
        leave_language(plain);
        rename_mixture(plain);
        view.name = plain;
        if (is_fused(&view))
            status = add_experts(out, &view, err);
        else if ((status = add_name(out, &view, bytes, &name, err)) == LS_OK)
            memcpy(name, plain, strlen(plain) + 1);
        free(plain);
        if (status != LS_OK) return status;
    }
    return LS_OK;
}
