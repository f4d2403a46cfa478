/* Changes from outside: nothing of them is used before all of them have been looked at, and the result only when every
 * tensor has its digest. Owns the list of tensors and the open file. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/fnv.h"
#include "base/mem.h"
#include "json/json_node.h"
#include "load/changes.h"

enum { PATH_BYTES_MAX = 4096, LIST_BYTES_MAX = LS_ST_HEADER_MAX };
#define LIST_NAME "changes.json"
#define DATA_NAME "changes.safetensors"

/* A tensor of the result. */
typedef struct result {
    ls_tensor_view is; /* name, which is owned, type, shape, elements and bytes */
    uint64_t base, digest;
    const ls_tensor_view *gaps, *values; /* NULL where it did not change */
} result;

struct ls_changes {
    char *name;      /* of the directory, in errors */
    result *results; /* [n], by name */
    int64_t n;
    ls_safetensors *data;
};

/* ---- the list ---- */

static ls_status read_digest(uint64_t *out, const ls_node *tensor, const char *key, ls_error *err) {
    ls_node node;
    const char *text;
    LS_TRY(ls_node_need(tensor, key, &node, err));
    LS_TRY(ls_node_string(&node, &text, err));
    if (strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
        return ls_node_fail(&node, LS_ERR_FORMAT, err, "it is not 16 hexadecimal digits");
    *out = strtoull(text, NULL, 16);
    return LS_OK;
}

static ls_status read_dims(ls_tensor_view *t, const ls_node *tensor, ls_error *err) {
    ls_node shape;
    LS_TRY(ls_node_need_kind(tensor, "shape", LS_NODE_ARRAY, &shape, err));
    if (ls_node_count(&shape) > LS_TENSOR_DIMS_MAX)
        return ls_node_fail(&shape, LS_ERR_UNSUPPORTED, err, "more than %d dimensions", LS_TENSOR_DIMS_MAX);
    t->n_dims = (int32_t)ls_node_count(&shape);
    t->n_elements = 1;
    for (int32_t i = 0; i < t->n_dims; i++) {
        const ls_node dim = ls_node_at(&shape, i);
        LS_TRY(ls_node_int(&dim, 0, INT64_MAX, &t->dims[i], err));
        if (!ls_mul_i64(t->n_elements, t->dims[i], &t->n_elements))
            return ls_node_fail(&shape, LS_ERR_CAPACITY, err, "the tensor is too large");
    }
    if (!ls_mul_i64(t->n_elements, ls_st_dtype_bytes(t->dtype), &t->bytes))
        return ls_node_fail(&shape, LS_ERR_CAPACITY, err, "the tensor is too large");
    return LS_OK;
}

static ls_status read_result(result *r, const ls_node *tensor, ls_error *err) {
    static const char *const keys[] = {"dtype", "shape", "base", "digest", NULL};
    ls_node node;
    const char *type;
    char *name;
    LS_TRY(ls_node_expect(tensor, LS_NODE_OBJECT, err));
    LS_TRY(ls_node_only(tensor, keys, err));
    LS_TRY(ls_text_copy(&name, tensor->key, (int64_t)strlen(tensor->key), err));
    r->is.name = name;
    LS_TRY(ls_node_need(tensor, "dtype", &node, err));
    LS_TRY(ls_node_string(&node, &type, err));
    if (!ls_st_dtype_parse(&r->is.dtype, type) || ls_st_dtype_bytes(r->is.dtype) == 0)
        return ls_node_fail(&node, LS_ERR_UNSUPPORTED, err, "'%.60s' is not supported", type);
    LS_TRY(read_dims(&r->is, tensor, err));
    LS_TRY(read_digest(&r->base, tensor, "base", err));
    return read_digest(&r->digest, tensor, "digest", err);
}

static int by_name(const void *a, const void *b) {
    const result *x = a, *y = b;
    return strcmp(x->is.name, y->is.name);
}

static int by_key(const void *key, const void *item) {
    const result *r = item;
    return strcmp(key, r->is.name);
}

static result *find_result(const ls_changes *c, const char *name) {
    return bsearch(name, c->results, (size_t)c->n, sizeof *c->results, by_key);
}

static ls_status read_list(ls_changes *c, const char *text, int64_t bytes, const char *name, ls_error *err) {
    static const char *const keys[] = {"format", "tensors", NULL};
    ls_json_doc *doc = NULL;
    ls_node root, node, tensor;
    void *iterator = NULL;
    int64_t format;
    ls_status status;
    LS_TRY_DONE(ls_json_doc_open(&doc, text, bytes, name, err));
    root = ls_json_root(doc);
    LS_TRY_DONE(ls_node_need(&root, "format", &node, err));
    LS_TRY_DONE(ls_node_int(&node, 1, 1, &format, err));
    LS_TRY_DONE(ls_node_only(&root, keys, err));
    LS_TRY_DONE(ls_node_need_kind(&root, "tensors", LS_NODE_OBJECT, &node, err));
    LS_TRY_DONE(ls_array_alloc((void **)&c->results, ls_node_count(&node), sizeof *c->results, "changes", err));
    while (ls_node_next(&node, &iterator, &tensor)) LS_TRY_DONE(read_result(&c->results[c->n++], &tensor, err));
    qsort(c->results, (size_t)c->n, sizeof *c->results, by_name);
done:
    ls_json_doc_free(doc);
    return status;
}

/* ---- gaps ---- */

/* Every change lies within the tensor, each has one value, and no gap is left over. */
static ls_status check_gaps(const result *r, const uint8_t *gaps, ls_error *err) {
    int64_t at = 0, n = 0;
    for (int64_t i = 0; i < r->gaps->bytes; i++) {
        at += gaps[i];
        if (at > r->is.n_elements || (gaps[i] < 255 && at == r->is.n_elements))
            return LS_FAIL(err, LS_ERR_FORMAT, "%s: gap %lld leads to element %lld of %lld", r->gaps->name,
                           (long long)i, (long long)at, (long long)r->is.n_elements);
        if (gaps[i] == 255) continue;
        at++;
        n++;
    }
    if (gaps[r->gaps->bytes - 1] == 255)
        return LS_FAIL(err, LS_ERR_FORMAT, "%s: no change follows the last gap", r->gaps->name);
    if (n != r->values->n_elements)
        return LS_FAIL(err, LS_ERR_FORMAT, "%s: %lld values for %lld changes", r->values->name,
                       (long long)r->values->n_elements, (long long)n);
    return LS_OK;
}

/* A gap stands for an element at least: so their memory is bounded by the tensor's as well as by the file. */
static ls_status read_gaps(uint8_t **out, const result *r, ls_error *err) {
    *out = NULL;
    if (r->gaps->bytes > r->is.n_elements)
        return LS_FAIL(err, LS_ERR_FORMAT, "%s: %lld gaps for %lld elements", r->gaps->name, (long long)r->gaps->bytes,
                       (long long)r->is.n_elements);
    LS_TRY(ls_array_alloc((void **)out, r->gaps->bytes, 1, "changes", err));
    LS_TRY(ls_tensor_read(*out, r->gaps, err));
    return check_gaps(r, *out, err);
}

static ls_status check_result(const result *r, ls_error *err) {
    uint8_t *gaps;
    ls_status status;
    if (r->gaps == NULL && r->values == NULL) {
        if (r->base == r->digest) return LS_OK;
        return LS_FAIL(err, LS_ERR_FORMAT, "tensor '%.200s' is to change, and its changes are missing", r->is.name);
    }
    if (r->gaps == NULL || r->values == NULL)
        return LS_FAIL(err, LS_ERR_FORMAT, "tensor '%.200s': its %s are missing", r->is.name,
                       r->gaps == NULL ? "gaps" : "values");
    if (r->gaps->dtype != LS_ST_U8 || r->gaps->n_dims != 1 || r->gaps->bytes == 0)
        return LS_FAIL(err, LS_ERR_FORMAT, "%s: it is not a list of U8", r->gaps->name);
    if (r->values->dtype != r->is.dtype || r->values->n_dims != 1)
        return LS_FAIL(err, LS_ERR_FORMAT, "%s: it is not a list of %s", r->values->name,
                       ls_st_dtype_name(r->is.dtype));
    status = read_gaps(&gaps, r, err);
    free(gaps);
    return status;
}

/* ---- opening ---- */

/* Which tensors of the file are gaps and values of which tensor. */
static ls_status place_parts(ls_changes *c, ls_error *err) {
    for (int64_t i = 0; i < ls_safetensors_count(c->data); i++) {
        const ls_tensor_view *view = ls_safetensors_at(c->data, i);
        const bool is_gaps = strncmp(view->name, "gaps.", 5) == 0, is_values = strncmp(view->name, "values.", 7) == 0;
        result *r = is_gaps || is_values ? find_result(c, view->name + (is_gaps ? 5 : 7)) : NULL;
        if (r == NULL)
            return LS_FAIL(err, LS_ERR_FORMAT, "'%.200s' is of no tensor that " LIST_NAME " has", view->name);
        *(is_gaps ? &r->gaps : &r->values) = view;
    }
    for (int64_t i = 0; i < c->n; i++) LS_TRY(check_result(&c->results[i], err));
    return LS_OK;
}

static ls_status create_changes(ls_changes **out, const char *name, ls_error *err) {
    ls_changes *c = NULL;
    ls_status status;
    *out = NULL;
    LS_TRY_DONE(ls_array_alloc((void **)&c, 1, sizeof *c, "changes", err));
    LS_TRY_DONE(ls_text_copy(&c->name, name, (int64_t)strlen(name), err));
    *out = c;
    c = NULL;
done:
    ls_changes_close(c);
    return status;
}

static ls_status finish_opening(ls_changes *c, ls_error *err) {
    const ls_status status = place_parts(c, err);
    if (status != LS_OK && err != NULL) ls_error_prefix(err, "%s: " DATA_NAME, c->name);
    return status;
}

ls_status ls_changes_parse(ls_changes **out, const char *text, int64_t text_bytes, const uint8_t *bytes,
                           int64_t n_bytes, const char *name, ls_error *err) {
    ls_changes *c = NULL;
    ls_status status;
    *out = NULL;
    LS_TRY_DONE(create_changes(&c, name, err));
    LS_TRY_DONE(read_list(c, text, text_bytes, name, err));
    LS_TRY_DONE(ls_safetensors_parse(&c->data, bytes, n_bytes, name, err));
    LS_TRY_DONE(finish_opening(c, err));
    *out = c;
    c = NULL;
done:
    ls_changes_close(c);
    return status;
}

static bool has_file(const char *directory, const char *name) {
    char path[PATH_BYTES_MAX];
    return ls_path_join(path, sizeof path, directory, name, NULL) == LS_OK && ls_file_exists(path);
}

bool ls_changes_are_in(const char *directory) {
    return has_file(directory, LIST_NAME) || has_file(directory, DATA_NAME);
}

ls_status ls_changes_open(ls_changes **out, const char *directory, ls_error *err) {
    static const char *const whole[] = {"model.safetensors", "model.safetensors.index.json",
                                        "adapter_model.safetensors"};
    char path[PATH_BYTES_MAX], *text = NULL;
    int64_t bytes;
    ls_changes *c = NULL;
    ls_status status;
    *out = NULL;
    for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++)
        if (has_file(directory, whole[i]))
            return LS_FAIL(err, LS_ERR_FORMAT, "%s: has %s beside changes; a directory has one of them", directory,
                           whole[i]);
    LS_TRY_DONE(create_changes(&c, directory, err));
    LS_TRY_DONE(ls_path_join(path, sizeof path, directory, LIST_NAME, err));
    LS_TRY_DONE(ls_file_read(&text, &bytes, path, LIST_BYTES_MAX, err));
    LS_TRY_DONE(read_list(c, text, bytes, path, err));
    LS_TRY_DONE(ls_path_join(path, sizeof path, directory, DATA_NAME, err));
    LS_TRY_DONE(ls_safetensors_open(&c->data, path, err));
    LS_TRY_DONE(finish_opening(c, err));
    *out = c;
    c = NULL;
done:
    free(text);
    ls_changes_close(c);
    return status;
}

void ls_changes_close(ls_changes *c) {
    if (c == NULL) return;
    for (int64_t i = 0; i < c->n; i++) free((char *)c->results[i].is.name);
    free(c->results);
    ls_safetensors_close(c->data);
    free(c->name);
    free(c);
}

int64_t ls_changes_count(const ls_changes *c) { return c->n; }

bool ls_changes_result(const ls_changes *c, const char *name, uint64_t *digest) {
    const result *r = find_result(c, name);
    if (r != NULL) *digest = r->digest;
    return r != NULL;
}

/* ---- the base ---- */

static ls_status digest_tensor(uint64_t *out, const ls_tensor_view *view, uint8_t *piece, ls_error *err) {
    *out = LS_FNV_START;
    for (int64_t at = 0; at < view->bytes; at += LS_FETCH_BYTES) {
        const int64_t n = ls_min_i64(view->bytes - at, LS_FETCH_BYTES);
        LS_TRY(ls_tensor_read_part(piece, view, at, n, err));
        *out = ls_fnv_mix(*out, piece, n);
    }
    return LS_OK;
}

/* The directory has the tensors that the changes begin with, and no others. */
static ls_status check_base(const ls_changes *c, const ls_checkpoint *base, const ls_changes *made, ls_error *err) {
    uint8_t *piece = NULL;
    uint64_t digest;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&piece, LS_FETCH_BYTES, 1, "changes", err));
    for (int64_t i = 0; i < c->n; i++) {
        const result *r = &c->results[i];
        const ls_tensor_view *view = ls_checkpoint_find(base, r->is.name);
        if (view == NULL || !ls_tensor_is_alike(view, &r->is)) {
            status = LS_FAIL(err, LS_ERR_ARG, "tensor '%.200s' %s", r->is.name,
                             view == NULL ? "is not among the weights that are there"
                                          : "has another type or shape in the weights that are there");
            goto done;
        }
        if (made == NULL || !ls_changes_result(made, r->is.name, &digest))
            LS_TRY_DONE(digest_tensor(&digest, view, piece, err));
        if (digest == r->base) continue;
        status =
            LS_FAIL(err, LS_ERR_ARG, "the changes of tensor '%.200s' begin with digest %016llx, and it has %016llx",
                    r->is.name, (unsigned long long)r->base, (unsigned long long)digest);
        goto done;
    }
    if (ls_checkpoint_count(base) != c->n)
        status = LS_FAIL(err, LS_ERR_ARG, "the changes are of %lld tensors, and %lld are there", (long long)c->n,
                         (long long)ls_checkpoint_count(base));
done:
    free(piece);
    return status;
}

/* ---- applying ---- */

typedef struct applying {
    const ls_changes *changes;
    const ls_checkpoint *base;
    const ls_tensor_out *tensors; /* [changes->n] */
    /* Of the tensor that is written. */
    uint8_t *gaps, *values;
    int64_t gap, value; /* the next ones */
    int64_t element;    /* that the gaps have led to */
    uint64_t digest;
} applying;

static void leave_tensor(applying *a) {
    free(a->gaps);
    free(a->values);
    a->gaps = a->values = NULL;
}

static ls_status begin_tensor(applying *a, const result *r, ls_error *err) {
    leave_tensor(a);
    a->gap = a->value = a->element = 0;
    a->digest = LS_FNV_START;
    if (r->gaps == NULL) return LS_OK;
    LS_TRY(read_gaps(&a->gaps, r, err)); /* once more: the file may have been written over since it was opened */
    LS_TRY(ls_array_alloc((void **)&a->values, r->values->bytes, 1, "changes", err));
    return ls_tensor_read(a->values, r->values, err);
}

/* The changes among elements [first, end), which are in host. */
static void change_elements(applying *a, const result *r, uint8_t *host, int64_t first, int64_t end) {
    const int64_t size = ls_st_dtype_bytes(r->is.dtype);
    while (r->gaps != NULL && a->gap < r->gaps->bytes) {
        const int64_t at = a->element + a->gaps[a->gap];
        if (a->gaps[a->gap] < 255 && at >= end) return;
        a->element = at;
        if (a->gaps[a->gap++] == 255) continue;
        memcpy(host + (at - first) * size, a->values + a->value * size, (size_t)size);
        a->value++;
        a->element++;
    }
}

static ls_status check_digest(const result *r, uint64_t digest, ls_error *err) {
    if (digest == r->digest) return LS_OK;
    return LS_FAIL(err, LS_ERR_FORMAT, "tensor '%.200s' has digest %016llx with the changes, not %016llx", r->is.name,
                   (unsigned long long)digest, (unsigned long long)r->digest);
}

/* Pieces come in order (ls_tensor_fetch). */
static ls_status bring_changed(void *context, void *host, const ls_tensor_out *tensor, int64_t at, int64_t bytes,
                               ls_error *err) {
    applying *a = context;
    const result *r = &a->changes->results[tensor - a->tensors];
    const int64_t size = ls_st_dtype_bytes(r->is.dtype);
    if (at == 0) LS_TRY(begin_tensor(a, r, err));
    LS_TRY(ls_tensor_read_part(host, ls_checkpoint_find(a->base, r->is.name), at, bytes, err));
    change_elements(a, r, host, at / size, (at + bytes) / size);
    a->digest = ls_fnv_mix(a->digest, host, bytes);
    return at + bytes < r->is.bytes ? LS_OK : check_digest(r, a->digest, err);
}

static ls_status write_result(const ls_changes *c, const ls_checkpoint *base, const char *path, ls_error *err) {
    ls_tensor_out *tensors = NULL;
    applying a = {.changes = c, .base = base};
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&tensors, c->n, sizeof *tensors, "changes", err));
    for (int64_t i = 0; i < c->n; i++) {
        const ls_tensor_view *is = &c->results[i].is;
        tensors[i] = (ls_tensor_out){is->name, is->dtype, is->n_dims, is->dims, NULL};
        if (is->bytes == 0) LS_TRY_DONE(check_digest(&c->results[i], LS_FNV_START, err)); /* no piece of it will come */
    }
    a.tensors = tensors;
    LS_TRY_DONE(ls_safetensors_write(path, tensors, c->n, bring_changed, &a, err));
    LS_TRY_DONE(ls_checkpoint_check(base, err));
    status = ls_safetensors_check(c->data, err);
done:
    leave_tensor(&a);
    free(tensors);
    return status;
}

ls_status ls_changes_apply(const ls_changes *c, const char *directory, const ls_changes *made, const char *path,
                           bool *is_other, ls_error *err) {
    ls_checkpoint *base = NULL;
    ls_status status;
    *is_other = true;
    LS_TRY_DONE(ls_checkpoint_open(&base, directory, err));
    LS_TRY_DONE(check_base(c, base, made, err));
    *is_other = false;
    status = write_result(c, base, path, err);
done:
    if (status != LS_OK && err != NULL) ls_error_prefix(err, "%s", c->name);
    ls_checkpoint_close(base);
    return status;
}
