/* Any bytes as a safetensors file. A file that is accepted must keep every promise of the header. */
#include <stdlib.h>
#include <string.h>

#include "load/safetensors.h"
#include "load/tensor_names.h"

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

/* Every view of the settled names is part of the file. */
static void settle(const ls_safetensors *file, const uint8_t *begin, const uint8_t *end) {
    const int64_t n = ls_safetensors_count(file);
    const ls_tensor_view **views = calloc((size_t)n + 1, sizeof *views);
    ls_tensor_names_own own = {0};
    ls_error err;
    if (views == NULL) return;
    for (int64_t i = 0; i < n; i++) views[i] = ls_safetensors_at(file, i);
    if (ls_tensor_names_resolve(&own, views, n, &err) == LS_OK)
        for (int64_t i = 0; i < own.n; i++) {
            const uint8_t *data = own.views[i].data;
            if (own.views[i].name != own.names[i] || strlen(own.names[i]) > (size_t)(end - begin) + 64) abort();
            if (own.views[i].bytes == 0) continue;
            if (data < begin || own.views[i].bytes > end - data) abort();
            sink = (uint8_t)(sink ^ data[0] ^ data[own.views[i].bytes - 1]);
        }
    ls_tensor_names_deinit(&own);
    free(views);
}

static void parse(const uint8_t *bytes, int64_t n_bytes) {
    ls_safetensors *file;
    ls_error err;
    if (ls_safetensors_parse(&file, bytes, n_bytes, "input", &err) == LS_OK) {
        check(file, bytes + n_bytes, n_bytes);
        settle(file, bytes, bytes + n_bytes);
        ls_safetensors_close(file);
    } else if (strstr(err.text, "input") != err.text) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    const size_t prefix = 8;
    uint8_t *copy;
    /* malloc aligns to 16 and lets the sanitizer see the end. */
    copy = malloc(n_bytes > 0 ? n_bytes : 1);
    if (copy == NULL) return 0;
    if (n_bytes > 0) memcpy(copy, data, n_bytes);
    parse(copy, (int64_t)n_bytes);
    free(copy);
    if (n_bytes <= prefix) return 0;
    /* Once more with a header length that is right, or a mutation that lengthens the JSON gets no further than it:
     * the first byte says how many data bytes follow the JSON, which ends the input. */
    copy = calloc(1, n_bytes + data[0]);
    if (copy == NULL) return 0;
    memcpy(copy + prefix, data + prefix, n_bytes - prefix);
    for (size_t i = 0; i < prefix; i++) copy[i] = (uint8_t)((uint64_t)(n_bytes - prefix) >> 8 * i);
    parse(copy, (int64_t)(n_bytes + data[0]));
    free(copy);
    return 0;
}
