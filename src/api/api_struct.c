/* Structs of the interface, read and written by their sizes, and what callers pass in. */
#include <string.h>

#include "api/api_state.h"
#include "base/mem.h"

const char *lockstep_version(void) { return LS_VERSION; }
int32_t lockstep_abi(void) { return LOCKSTEP_ABI; }

void ls_api_init(void *out, size_t size, const void *defaults, const ls_api_struct *of) {
    if (out == NULL || size < sizeof size) return;
    memset(out, 0, size);
    memcpy(out, defaults, size < of->size ? size : of->size);
    memcpy(out, &size, sizeof size);
}

static ls_status check_size(size_t size, const ls_api_struct *of, ls_error *err) {
    if (size >= of->first_size && size <= 65536) return LS_OK;
    return LS_FAIL(err, LS_ERR_ARG, "%s: size is %zu, and the struct has %zu bytes; set it by its _init or by sizeof",
                   of->name, size, of->size);
}

ls_status ls_api_read(void *own, const void *theirs, const ls_api_struct *of, ls_error *err) {
    const uint8_t *bytes = theirs;
    size_t size;
    if (theirs == NULL) return LS_OK;
    memcpy(&size, theirs, sizeof size);
    LS_TRY(check_size(size, of, err));
    for (size_t i = of->size; i < size; i++)
        if (bytes[i] != 0)
            return LS_FAIL(err, LS_ERR_UNSUPPORTED,
                           "%s: of a newer version with %zu bytes, and it sets a member that lockstep %s does not have",
                           of->name, size, LS_VERSION);
    memcpy(own, theirs, size < of->size ? size : of->size);
    return LS_OK;
}

ls_status ls_api_write(void *theirs, const void *own, const ls_api_struct *of, ls_error *err) {
    size_t size;
    if (theirs == NULL) return LS_OK;
    memcpy(&size, theirs, sizeof size);
    LS_TRY(check_size(size, of, err));
    memcpy((uint8_t *)theirs + sizeof size, (const uint8_t *)own + sizeof size,
           (size < of->size ? size : of->size) - sizeof size);
    return LS_OK;
}

ls_status ls_api_check_sequences(const lockstep_model *model, const int32_t *tokens, const int64_t *offsets, int64_t n,
                                 int64_t shortest, ls_error *err) {
    const int32_t vocab = model->model->config.vocab;
    if (tokens == NULL || offsets == NULL || n < 1)
        return LS_FAIL(err, LS_ERR_ARG, "sequences: tokens or offsets are NULL, or n is %lld", (long long)n);
    if (offsets[0] != 0)
        return LS_FAIL(err, LS_ERR_ARG, "offsets[0] is %lld; offsets ascend from 0", (long long)offsets[0]);
    for (int64_t i = 0; i < n; i++) {
        if (offsets[i + 1] < offsets[i] || offsets[i + 1] - offsets[i] < shortest)
            return LS_FAIL(err, LS_ERR_ARG, "sequence %lld is tokens %lld to %lld; it needs %lld at least",
                           (long long)i, (long long)offsets[i], (long long)offsets[i + 1], (long long)shortest);
        for (int64_t t = offsets[i]; t < offsets[i + 1]; t++)
            if (tokens[t] < 0 || tokens[t] >= vocab)
                return LS_FAIL(err, LS_ERR_ARG, "sequence %lld: token %lld is %d, the vocabulary is 0..%d",
                               (long long)i, (long long)(t - offsets[i]), tokens[t], vocab - 1);
    }
    return LS_OK;
}

ls_status ls_api_sampling(ls_sampling *out, float temperature, int64_t top_k, float top_p, float min_p, uint64_t seed,
                          ls_error *err) {
    *out = (ls_sampling){.temperature = temperature, .top_k = top_k, .top_p = top_p, .min_p = min_p, .seed = seed};
    return ls_sampling_check(out, err);
}

ls_status ls_api_check_choice(const char *what, int32_t value, int32_t n, ls_error *err) {
    if (value >= 0 && value < n) return LS_OK;
    return LS_FAIL(err, LS_ERR_ARG, "%s: %d is none of 0..%d", what, value, n - 1);
}
