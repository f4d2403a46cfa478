/* One safetensors file. Owns the copies of the names and the list of views in two orders. */
#include "load/safetensors.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/other_forms.h"
#include "json/json_read.h"

#define LS_ST_PREFIX_BYTES 8

struct ls_safetensors {
    ls_file_id id; /* bytes 0 when they are the caller's */
    char *name;
    char *names; /* the tensor names, each ending in NUL */
    ls_tensor_view *views;
    const ls_tensor_view **by_name;
    int64_t n;
};

static const struct {
    const char *name;
    int32_t bits;
} dtypes[LS_ST_DTYPES] = {
    [LS_ST_BOOL] = {"BOOL", 8},       [LS_ST_U8] = {"U8", 8},
    [LS_ST_I8] = {"I8", 8},           [LS_ST_U16] = {"U16", 16},
    [LS_ST_I16] = {"I16", 16},        [LS_ST_U32] = {"U32", 32},
    [LS_ST_I32] = {"I32", 32},        [LS_ST_U64] = {"U64", 64},
    [LS_ST_I64] = {"I64", 64},        [LS_ST_F4] = {"F4", 4},
    [LS_ST_F6_E2M3] = {"F6_E2M3", 6}, [LS_ST_F6_E3M2] = {"F6_E3M2", 6},
    [LS_ST_F8_E4M3] = {"F8_E4M3", 8}, [LS_ST_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8},
    [LS_ST_F8_E5M2] = {"F8_E5M2", 8}, [LS_ST_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8},
    [LS_ST_F8_E8M0] = {"F8_E8M0", 8}, [LS_ST_F16] = {"F16", 16},
    [LS_ST_BF16] = {"BF16", 16},      [LS_ST_F32] = {"F32", 32},
    [LS_ST_F64] = {"F64", 64},        [LS_ST_C64] = {"C64", 64},
};

static bool is_dtype(ls_st_dtype dtype) { return (int)dtype >= 0 && dtype < LS_ST_DTYPES; }
const char *ls_st_dtype_name(ls_st_dtype dtype) { return is_dtype(dtype) ? dtypes[dtype].name : "unknown"; }
int32_t ls_st_dtype_bits(ls_st_dtype dtype) { return is_dtype(dtype) ? dtypes[dtype].bits : 0; }
int64_t ls_st_dtype_bytes(ls_st_dtype dtype) { return ls_st_dtype_bits(dtype) / 8; }

bool ls_st_dtype_parse(ls_st_dtype *out, const char *name) {
    for (int i = 0; i < LS_ST_DTYPES; i++) {
        if (strcmp(name, dtypes[i].name) != 0) continue;
        *out = (ls_st_dtype)i;
        return true;
    }
    return false;
}

static int compare_data(const void *a, const void *b) {
    const ls_tensor_view *x = a, *y = b;
    if (x->at != y->at) return x->at < y->at ? -1 : 1;
    /* An empty tensor sits before the one that starts at the same place; among empty ones the name decides. */
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int compare_names(const void *a, const void *b) {
    const ls_tensor_view *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static int compare_key(const void *key, const void *item) {
    const ls_tensor_view *const *view = item;
    return strcmp(key, (*view)->name);
}

/* The data section: where it begins, its length, and the whole file where it is in memory. */
typedef struct section {
    int64_t at, n_bytes;
    const uint8_t *bytes;
} section;

static ls_status read_dtype(ls_tensor_view *view, const json_t *entry, ls_error *err) {
    char shown[LS_JSON_SHOW_MAX];
    const json_t *value = json_object_get(entry, "dtype");
    if (value == NULL) return LS_FAIL(err, LS_ERR_FORMAT, "dtype is missing");
    if (json_is_string(value) && ls_st_dtype_parse(&view->dtype, json_string_value(value))) return LS_OK;
    return LS_FAIL(err, LS_ERR_FORMAT, "dtype: %s is no dtype of the format", ls_json_show(value, shown));
}

static ls_status read_shape(ls_tensor_view *view, const json_t *entry, ls_error *err) {
    char shown[LS_JSON_SHOW_MAX];
    const json_t *shape = json_object_get(entry, "shape");
    bool empty = false;
    int64_t bits;
    if (!json_is_array(shape))
        return LS_FAIL(err, LS_ERR_FORMAT, "shape: %s, expected a list",
                       shape == NULL ? "missing" : ls_json_show(shape, shown));
    if (json_array_size(shape) > LS_TENSOR_DIMS_MAX)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "shape: %zu dimensions, the limit is %d", json_array_size(shape),
                       LS_TENSOR_DIMS_MAX);
    view->n_dims = (int32_t)json_array_size(shape);
    for (int32_t i = 0; i < view->n_dims; i++) {
        const json_t *dim = json_array_get(shape, (size_t)i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return LS_FAIL(err, LS_ERR_FORMAT, "shape: dimension %d is %s, expected a non-negative integer", i,
                           ls_json_show(dim, shown));
        view->dims[i] = json_integer_value(dim);
        empty = empty || view->dims[i] == 0;
    }
    view->n_elements = empty ? 0 : 1;
    for (int32_t i = 0; i < view->n_dims && !empty; i++)
        if (!ls_mul_i64(view->n_elements, view->dims[i], &view->n_elements))
            return LS_FAIL(err, LS_ERR_FORMAT, "shape: the element count overflows 64 bits at dimension %d (%lld)", i,
                           (long long)view->dims[i]);
    if (!ls_mul_i64(view->n_elements, dtypes[view->dtype].bits, &bits))
        return LS_FAIL(err, LS_ERR_FORMAT, "shape: the size of %lld elements of %s overflows 64 bits",
                       (long long)view->n_elements, dtypes[view->dtype].name);
    if (bits % 8 != 0)
        return LS_FAIL(err, LS_ERR_FORMAT, "shape: %lld elements of %s do not fill whole bytes",
                       (long long)view->n_elements, dtypes[view->dtype].name);
    view->bytes = bits / 8;
    return LS_OK;
}

static ls_status read_offsets(ls_tensor_view *view, const json_t *entry, const section *data, ls_error *err) {
    char shown[LS_JSON_SHOW_MAX];
    const json_t *pair = json_object_get(entry, "data_offsets");
    const int64_t align = ls_st_dtype_bytes(view->dtype);
    int64_t offsets[2];
    if (!json_is_array(pair) || json_array_size(pair) != 2)
        return LS_FAIL(err, LS_ERR_FORMAT, "data_offsets: %s, expected a list of two",
                       pair == NULL ? "missing" : ls_json_show(pair, shown));
    for (size_t i = 0; i < 2; i++) {
        const json_t *value = json_array_get(pair, i);
        if (!json_is_integer(value) || json_integer_value(value) < 0)
            return LS_FAIL(err, LS_ERR_FORMAT, "data_offsets: %s, expected a non-negative integer",
                           ls_json_show(value, shown));
        offsets[i] = json_integer_value(value);
    }
    if (offsets[0] > offsets[1] || offsets[1] > data->n_bytes)
        return LS_FAIL(err, LS_ERR_FORMAT, "data_offsets: [%lld, %lld] is no range of the %lld data bytes",
                       (long long)offsets[0], (long long)offsets[1], (long long)data->n_bytes);
    if (offsets[1] - offsets[0] != view->bytes)
        return LS_FAIL(err, LS_ERR_FORMAT, "data_offsets: [%lld, %lld] holds %lld bytes, %lld elements of %s need %lld",
                       (long long)offsets[0], (long long)offsets[1], (long long)(offsets[1] - offsets[0]),
                       (long long)view->n_elements, dtypes[view->dtype].name, (long long)view->bytes);
    view->at = data->at + offsets[0];
    if (data->bytes != NULL) view->data = data->bytes + view->at;
    if (view->bytes > 0 && align > 1 && view->at % align != 0)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED,
                       "data_offsets: data starts at byte %lld of the data section, which is not aligned to the %lld "
                       "bytes of %s in this file (rewrite the file with a padded header and sorted tensors)",
                       (long long)offsets[0], (long long)align, dtypes[view->dtype].name);
    return LS_OK;
}

static ls_status read_entry(ls_tensor_view *view, const json_t *entry, const section *data, ls_error *err) {
    char shown[LS_JSON_SHOW_MAX];
    if (!json_is_object(entry))
        return LS_FAIL(err, LS_ERR_FORMAT, "%s, expected an object", ls_json_show(entry, shown));
    LS_TRY(read_dtype(view, entry, err));
    LS_TRY(read_shape(view, entry, err));
    LS_TRY(read_offsets(view, entry, data, err));
    /* A member beyond the three may change what the bytes mean. */
    if (json_object_size(entry) != 3)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%zu members, expected only dtype, shape and data_offsets",
                       json_object_size(entry));
    return LS_OK;
}

static ls_status check_metadata(json_t *metadata, ls_error *err) {
    const char *key;
    json_t *value;
    char shown[LS_JSON_SHOW_MAX];
    if (json_is_null(metadata)) return LS_OK; /* the same as absent, as the format's own reader has it */
    if (!json_is_object(metadata))
        return LS_FAIL(err, LS_ERR_FORMAT, "__metadata__: %s, expected an object", ls_json_show(metadata, shown));
    json_object_foreach(metadata, key, value) {
        if (!json_is_string(value))
            return LS_FAIL(err, LS_ERR_FORMAT, "__metadata__: '%.200s': %s, expected a string", key,
                           ls_json_show(value, shown));
    }
    return LS_OK;
}

/* The views are in data order: each must start where the one before it ends. */
static ls_status check_tiling(const ls_safetensors *file, const section *data, ls_error *err) {
    int64_t at = 0;
    for (int64_t i = 0; i < file->n; i++) {
        const ls_tensor_view *view = &file->views[i];
        const int64_t begin = view->at - data->at;
        if (begin < at)
            return LS_FAIL(err, LS_ERR_FORMAT,
                           "tensor '%.200s': starts at data byte %lld inside '%.200s' that ends at %lld", view->name,
                           (long long)begin, view[-1].name, (long long)at);
        if (begin > at)
            return LS_FAIL(err, LS_ERR_FORMAT, "tensor '%.200s': data bytes %lld to %lld before it belong to no tensor",
                           view->name, (long long)at, (long long)begin);
        at = begin + view->bytes;
    }
    if (at != data->n_bytes)
        return LS_FAIL(err, LS_ERR_FORMAT, "%lld data bytes after the last tensor belong to no tensor",
                       (long long)(data->n_bytes - at));
    return LS_OK;
}

static ls_status fill_views(ls_safetensors *file, json_t *header, const section *data, ls_error *err) {
    ls_status status;
    const char *key;
    json_t *entry;
    int64_t names_bytes = 0, n = 0;
    char *name;
    json_object_foreach(header, key, entry) {
        if (strcmp(key, "__metadata__") == 0) continue;
        names_bytes += (int64_t)strlen(key) + 1;
        n++;
    }
    LS_TRY_DONE(ls_array_alloc((void **)&file->names, names_bytes, 1, "tensor names", err));
    LS_TRY_DONE(ls_array_alloc((void **)&file->views, n, sizeof *file->views, "tensors", err));
    LS_TRY_DONE(ls_array_alloc((void **)&file->by_name, n, sizeof *file->by_name, "tensors", err));
    name = file->names;
    json_object_foreach(header, key, entry) {
        ls_tensor_view *view = &file->views[file->n];
        const size_t name_bytes = strlen(key) + 1;
        if (strcmp(key, "__metadata__") == 0) {
            LS_TRY_DONE(check_metadata(entry, err));
            continue;
        }
        memcpy(name, key, name_bytes);
        view->name = name;
        view->file = file->name;
        name += name_bytes;
        if ((status = read_entry(view, entry, data, err)) != LS_OK) {
            ls_error_prefix(err, "tensor '%.200s'", view->name);
            goto done;
        }
        file->n++;
    }
    qsort(file->views, (size_t)n, sizeof *file->views, compare_data);
    for (int64_t i = 0; i < n; i++) file->by_name[i] = &file->views[i];
    qsort(file->by_name, (size_t)n, sizeof *file->by_name, compare_names);
    status = check_tiling(file, data, err);
done:
    return status;
}

/* What the file is, where the sentence says only that it is not what it should be. */
static ls_status name_foreign(const ls_safetensors *file, const void *bytes, int64_t n_bytes, ls_status status,
                              ls_error *err) {
    char first[LS_FOREIGN_BYTES];
    const int64_t n = n_bytes < LS_FOREIGN_BYTES ? n_bytes : LS_FOREIGN_BYTES;
    const char *is;
    if (bytes == NULL && ls_file_read_at(first, file->name, 0, n, NULL) != LS_OK) return status;
    is = ls_foreign_bytes(bytes != NULL ? bytes : first, n);
    return is == NULL ? status : LS_FAIL(err, status, "%s: %s", file->name, is);
}

/* The length of the JSON, from the first bytes of a file of n_bytes. */
static ls_status read_length(const ls_safetensors *file, const uint8_t *bytes, int64_t n_bytes, int64_t *out,
                             ls_error *err) {
    uint64_t header_bytes = 0;
    for (int i = 0; i < LS_ST_PREFIX_BYTES; i++) header_bytes |= (uint64_t)bytes[i] << 8 * i;
    if (header_bytes > LS_ST_HEADER_MAX)
        return LS_FAIL(err, LS_ERR_FORMAT, "%s: header length %llu, the format's limit is %d", file->name,
                       (unsigned long long)header_bytes, LS_ST_HEADER_MAX);
    if ((int64_t)header_bytes > n_bytes - LS_ST_PREFIX_BYTES)
        return LS_FAIL(err, LS_ERR_FORMAT, "%s: header length %llu, but only %lld bytes follow it", file->name,
                       (unsigned long long)header_bytes, (long long)(n_bytes - LS_ST_PREFIX_BYTES));
    *out = (int64_t)header_bytes;
    return LS_OK;
}

static ls_status check_length(const ls_safetensors *file, int64_t n_bytes, ls_error *err) {
    if (n_bytes < LS_ST_PREFIX_BYTES)
        return LS_FAIL(err, LS_ERR_FORMAT, "%s: %lld bytes, too short for the 8-byte header length", file->name,
                       (long long)n_bytes);
    return LS_OK;
}

static ls_status read_header(ls_safetensors *file, const char *text, int64_t header_bytes, const section *data,
                             ls_error *err) {
    ls_status status;
    json_t *header = NULL;
    if (header_bytes == 0 || text[0] != '{')
        return LS_FAIL(err, LS_ERR_FORMAT, "%s: the header does not start with '{'", file->name);
    LS_TRY_DONE(ls_json_parse(&header, text, header_bytes, file->name, err));
    if ((status = fill_views(file, header, data, err)) != LS_OK) ls_error_prefix(err, "%s", file->name);
done:
    ls_json_release(header);
    return status;
}

static ls_status create(ls_safetensors **out, const char *name, ls_error *err) {
    ls_status status;
    ls_safetensors *file = NULL;
    LS_TRY_DONE(ls_array_alloc((void **)&file, 1, sizeof *file, "safetensors file", err));
    LS_TRY_DONE(ls_text_copy(&file->name, name, (int64_t)strlen(name), err));
    *out = file;
    file = NULL;
done:
    ls_safetensors_close(file);
    return status;
}

ls_status ls_safetensors_open(ls_safetensors **out, const char *path, ls_error *err) {
    ls_status status;
    ls_safetensors *file = NULL;
    uint8_t prefix[LS_ST_PREFIX_BYTES];
    int64_t header_bytes = 0;
    char *text = NULL;
    section data = {0};
    *out = NULL;
    LS_TRY_DONE(create(&file, path, err));
    LS_TRY_DONE(ls_file_identify(&file->id, path, err));
    LS_TRY_DONE(check_length(file, file->id.bytes, err));
    LS_TRY_DONE(ls_file_read_at(prefix, path, 0, LS_ST_PREFIX_BYTES, err));
    if ((status = read_length(file, prefix, file->id.bytes, &header_bytes, err)) != LS_OK) {
        status = name_foreign(file, NULL, file->id.bytes, status, err);
        goto done;
    }
    LS_TRY_DONE(ls_array_alloc((void **)&text, header_bytes, 1, "header", err));
    LS_TRY_DONE(ls_file_read_at(text, path, LS_ST_PREFIX_BYTES, header_bytes, err));
    data.at = LS_ST_PREFIX_BYTES + header_bytes;
    data.n_bytes = file->id.bytes - data.at;
    if ((status = read_header(file, text, header_bytes, &data, err)) != LS_OK) {
        if (header_bytes == 0 || text[0] != '{') status = name_foreign(file, NULL, file->id.bytes, status, err);
        goto done;
    }
    *out = file;
    file = NULL;
done:
    free(text);
    ls_safetensors_close(file);
    return status;
}

ls_status ls_safetensors_parse(ls_safetensors **out, const uint8_t *bytes, int64_t n_bytes, const char *name,
                               ls_error *err) {
    ls_status status;
    ls_safetensors *file = NULL;
    int64_t header_bytes = 0;
    section data = {.bytes = bytes};
    *out = NULL;
    LS_ASSERT((uintptr_t)bytes % 8 == 0, "bytes at %p", (const void *)bytes);
    LS_TRY_DONE(create(&file, name, err));
    LS_TRY_DONE(check_length(file, n_bytes, err));
    if ((status = read_length(file, bytes, n_bytes, &header_bytes, err)) != LS_OK) {
        status = name_foreign(file, bytes, n_bytes, status, err);
        goto done;
    }
    data.at = LS_ST_PREFIX_BYTES + header_bytes;
    data.n_bytes = n_bytes - data.at;
    LS_TRY_DONE(read_header(file, (const char *)bytes + LS_ST_PREFIX_BYTES, header_bytes, &data, err));
    *out = file;
    file = NULL;
done:
    ls_safetensors_close(file);
    return status;
}

bool ls_tensor_is_alike(const ls_tensor_view *a, const ls_tensor_view *b) {
    bool same = a->dtype == b->dtype && a->n_dims == b->n_dims;
    for (int32_t i = 0; same && i < a->n_dims; i++) same = a->dims[i] == b->dims[i];
    return same;
}

ls_status ls_tensor_read_part(void *out, const ls_tensor_view *view, int64_t at, int64_t bytes, ls_error *err) {
    ls_status status = LS_OK;
    LS_ASSERT(at >= 0 && bytes >= 0 && bytes <= view->bytes - at, "%s: bytes %lld and on, %lld of them, of %lld",
              view->name, (long long)at, (long long)bytes, (long long)view->bytes);
    if (view->data == NULL)
        status = ls_file_read_at(out, view->file, view->at + at, bytes, err);
    else if (bytes > 0)
        memcpy(out, (const uint8_t *)view->data + at, (size_t)bytes);
    if (status != LS_OK) ls_error_prefix(err, "tensor '%.200s'", view->name);
    return status;
}

ls_status ls_tensor_read(void *out, const ls_tensor_view *view, ls_error *err) {
    return ls_tensor_read_part(out, view, 0, view->bytes, err);
}

ls_status ls_safetensors_check(const ls_safetensors *file, ls_error *err) {
    return file->id.bytes > 0 ? ls_file_check(&file->id, file->name, err) : LS_OK;
}

void ls_safetensors_close(ls_safetensors *file) {
    if (file == NULL) return;
    free(file->by_name);
    free(file->views);
    free(file->names);
    free(file->name);
    free(file);
}

int64_t ls_safetensors_count(const ls_safetensors *file) { return file->n; }

const ls_tensor_view *ls_safetensors_at(const ls_safetensors *file, int64_t i) {
    LS_ASSERT(i >= 0 && i < file->n, "tensor %lld of %lld", (long long)i, (long long)file->n);
    return &file->views[i];
}

const ls_tensor_view *ls_safetensors_find(const ls_safetensors *file, const char *name) {
    const ls_tensor_view *const *found =
        bsearch(name, file->by_name, (size_t)file->n, sizeof *file->by_name, compare_key);
    return found != NULL ? *found : NULL;
}
