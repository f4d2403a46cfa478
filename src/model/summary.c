/* Reading a directory's tensors without a device. */
#include "model/summary.h"

#include <stdlib.h>

#include "base/fnv.h"
#include "base/mem.h"
#include "model/architectures.h"
#include "model/stored.h"

typedef struct summing {
    ls_stored stored;
    ls_stored_summary *out;
    uint8_t *piece; /* [stored.piece_bytes] */
} summing;

static ls_status sum_slot(void *context, const ls_weight_slot *slot, ls_error *err) {
    summing *s = context;
    uint64_t *hash = &s->out->digest;
    ls_digest_part parts[LS_SLOT_PARTS];
    const ls_tensor_view *view;
    ls_dtype dtype;
    int64_t begin, bytes;
    LS_TRY(ls_stored_find(&s->stored, &view, &dtype, slot, err));
    ls_slot_parts(parts, slot, &dtype);
    for (int i = 0; i < LS_SLOT_PARTS; i++) *hash = ls_fnv_mix(*hash, parts[i].memory, parts[i].bytes);
    begin = slot->tensor.at * ls_dtype_bytes(dtype);
    bytes = ls_slot_elements(slot) * ls_dtype_bytes(dtype);
    for (int64_t at = 0; at < bytes; at += s->stored.piece_bytes) {
        const int64_t left = bytes - at, n = left < s->stored.piece_bytes ? left : s->stored.piece_bytes;
        LS_TRY(ls_stored_read(&s->stored, s->piece, view, begin + at, n, err));
        *hash = ls_fnv_mix(*hash, s->piece, n);
    }
    s->out->n_parameters += ls_slot_elements(slot);
    return LS_OK;
}

ls_status ls_stored_summarize(ls_stored_summary *out, const char *directory, ls_error *err) {
    summing s = {.out = out};
    ls_model_config config;
    ls_model *model = NULL;
    ls_status status;
    *out = (ls_stored_summary){.digest = LS_FNV_START};
    LS_TRY_DONE(ls_model_config_open(&config, directory, err));
    LS_TRY_DONE(ls_model_outline(&model, &config, err));
    LS_TRY_DONE(ls_stored_open(&s.stored, directory, config.names, NULL, err));
    s.stored.watcher = NULL; /* nothing is loaded */
    LS_TRY_DONE(ls_array_alloc((void **)&s.piece, s.stored.piece_bytes, 1, "tensor", err));
    LS_TRY_DONE(ls_model_slots(model, sum_slot, &s, err));
    LS_TRY_DONE(ls_stored_check_head(&s.stored, &config, err));
    LS_TRY_DONE(ls_stored_check(&s.stored, config.n_layers, err));
done:
    free(s.piece);
    ls_stored_close(&s.stored);
    ls_model_close(model);
    return status;
}
