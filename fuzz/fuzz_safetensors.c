/* Any bytes as a safetensors file. A file that is accepted must keep every promise of the header. */
#include <stdlib.h>
#include <string.h>

#include "load/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static uint8_t sink;

static void check(const ls_safetensors *file, const uint8_t *end, int64_t n_bytes) {
    const uint8_t *at = NULL;
    for (int64_t i = 0; i < ls_safetensors_count(file); i++) {
        const ls_tensor_view *view = ls_safetensors_at(file, i);
        const uint8_t *begin = view->data;
        const int64_t align = ls_st_dtype_bytes(view->dtype);
        if (at != NULL && begin != at) abort();
        if (view->bytes < 0 || view->bytes > n_bytes) abort();
        if (view->bytes > 0 && align > 1 && (uintptr_t)begin % (uintptr_t)align != 0) abort();
        if (ls_safetensors_find(file, view->name) != view) abort();
        for (int64_t j = 0; j < view->bytes; j++) sink = (uint8_t)(sink ^ begin[j]);
        at = begin + view->bytes;
    }
    if (at != NULL && at != end) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    ls_safetensors *file;
    ls_error err;
    /* malloc aligns to 16 and lets the sanitizer see the end. */
    uint8_t *copy = malloc(n_bytes > 0 ? n_bytes : 1);
    if (copy == NULL) return 0;
    if (n_bytes > 0) memcpy(copy, data, n_bytes);
    if (ls_safetensors_parse(&file, copy, (int64_t)n_bytes, "input", &err) == LS_OK) {
        check(file, copy + n_bytes, (int64_t)n_bytes);
        ls_safetensors_close(file);
    } else if (strstr(err.text, "input") != err.text) {
        abort();
    }
    free(copy);
    return 0;
}
