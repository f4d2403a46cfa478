/* Candidates for a threshold, by exact arithmetic. */
#include "diagnose/bits/threshold.h"

#include <stdio.h>
#include <stdlib.h>

#include "model/cache.h"

const char *ls_bounded_name(ls_bounded what) {
    static const char *const names[] = {"slot", "page", "chunk", "batch", "length", "requests"};
    return names[what];
}

int64_t ls_pooled_tensors(ls_pooled_tensor out[LS_POOLED_MAX], const ls_model_config *c, ls_dtype dtype,
                          int64_t slot_stride, int64_t n_slots, int64_t page_stride, int64_t n_pages) {
    const int64_t elem = ls_dtype_bytes(dtype);
    ls_slot_layout slot;
    bool attention = false, mamba = false;
    int64_t n = 0;
    for (int32_t i = 0; i < c->n_layers; i++) {
        attention = attention || ls_config_has_pages(c, i);
        mamba = mamba || ls_config_has_slots(c, i);
    }
    ls_slot_layout_make(&slot, c, dtype, 1); /* as in slots whose distance is given */
    for (int64_t i = slot.n - 1; i >= 0 && mamba && slot_stride > 0; i--)
        out[n++] = (ls_pooled_tensor){slot.tensor[i].pool, LS_BOUNDED_SLOT, slot_stride,
                                      ls_dtype_bytes(slot.tensor[i].dtype), n_slots};
    if (attention && page_stride > 0)
        out[n++] = (ls_pooled_tensor){"KV pages", LS_BOUNDED_PAGE, page_stride, elem, n_pages};
    return n;
}

static int64_t wrap_distance(const ls_wrap *w, int64_t threshold) { return llabs(w->first_bad - threshold); }

int64_t ls_threshold_invert(ls_wrap out[LS_WRAPS_MAX], const ls_pooled_tensor *tensors, int64_t n_tensors,
                            ls_bounded id, int64_t threshold) {
    int64_t n = 0;
    for (int64_t i = 0; i < n_tensors * 4; i++) {
        const ls_pooled_tensor *t = &tensors[i / 4];
        ls_wrap w = {.tensor = t, .in_bytes = i % 4 >= 2, .is_signed = i % 2 == 1};
        const int64_t limit = w.is_signed ? (int64_t)1 << 31 : (int64_t)1 << 32;
        int64_t at = n++;
        w.stride = w.in_bytes ? t->stride : t->stride / t->elem_bytes;
        if (w.stride < 1) w.stride = 1;
        w.first_bad = (limit + w.stride - 1) / w.stride;
        w.share = w.first_bad < t->n ? (double)(t->n - w.first_bad) / (double)t->n : 0.0;
        w.fits = w.first_bad == threshold && t->id == id;
        for (; at > 0 && wrap_distance(&w, threshold) < wrap_distance(&out[at - 1], threshold); at--)
            out[at] = out[at - 1];
        out[at] = w;
    }
    return n;
}

void ls_wrap_describe(char *text, size_t bytes, const ls_wrap *w) {
    snprintf(text, bytes, "%s %s * stride in %s", w->is_signed ? "int32" : "uint32", ls_bounded_name(w->tensor->id),
             w->in_bytes ? "bytes" : "elements");
}
