/* Whose memory holds which part of a layer, and the copies from there. */
#include "model/shared_weights.h"

#include <stdlib.h>

#include "base/mem.h"
#include "model/layer_buffer.h"

#define ALIGN_BYTES 256

/* All values of layers lie in one row of bytes, of which every share holds what its elements take: a parameter begins
 * at places[i], and share r has bytes [bytes[r], bytes[r + 1]). Shares begin where a block of elements does, so that
 * every part is aligned. */
struct ls_shared_weights {
    const ls_parameters *parameters;
    int64_t share, n_shares;
    ls_shared *shared; /* [n_shares]: the own memory, and that of the others */
    int64_t *owned;    /* [n_shares + 1]: elements where shares begin */
    int64_t *bytes;    /* [n_shares + 1] */
    int64_t *places;   /* [parameters->n]; of layers alone */
    int64_t *first;    /* [n_layers + 1]: the first parameter of each layer */
};

static int64_t value_bytes(const ls_parameter *p) { return p->n_elements * ls_dtype_bytes(p->dtype); }

/* Where element `at` of all lies, or else the next one of a layer. */
static int64_t byte_of(const ls_shared_weights *g, int64_t at) {
    const ls_parameters *all = g->parameters;
    int64_t end = 0;
    for (int64_t i = 0; i < all->n; i++) {
        const ls_parameter *p = &all->list[i];
        if (ls_parameter_is_whole(all, p)) continue;
        if (at <= p->offset) return g->places[i];
        if (at < p->offset + p->n_elements) return g->places[i] + (at - p->offset) * ls_dtype_bytes(p->dtype);
        end = g->places[i] + (value_bytes(p) + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    }
    return end;
}

static void lay_out_shares(ls_shared_weights *g) {
    const ls_parameters *all = g->parameters;
    int64_t bytes = 0, layer_i = 0;
    for (int64_t i = 0; i < all->n; i++) {
        const ls_parameter *p = &all->list[i];
        if (ls_parameter_is_whole(all, p)) continue;
        for (; layer_i <= p->slot.layer_i; layer_i++) g->first[layer_i] = i;
        g->first[layer_i] = i + 1;
        g->places[i] = bytes;
        bytes += (value_bytes(p) + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    }
    for (int64_t r = 0; r <= g->n_shares; r++) {
        g->owned[r] = ls_parameters_share(all, r, g->n_shares);
        g->bytes[r] = byte_of(g, g->owned[r]);
    }
}

/* Where the elements of parameter i from `begin` on lie in share r's memory. */
static uint8_t *share_part(const ls_shared_weights *g, int64_t r, int64_t i, int64_t begin) {
    const int64_t size = ls_dtype_bytes(g->parameters->list[i].dtype);
    return (uint8_t *)g->shared[r].memory + (g->places[i] + begin * size - g->bytes[r]);
}

ls_status ls_shared_weights_open(ls_shared_weights **out, ls_parameters *p, int64_t share, int64_t n_shares,
                                 ls_error *err) {
    ls_shared_weights *g = NULL;
    ls_status status;
    *out = NULL;
    LS_TRY_DONE(ls_array_alloc((void **)&g, 1, sizeof *g, "weights by layer", err));
    g->parameters = p;
    g->share = share;
    g->n_shares = n_shares;
    LS_TRY_DONE(ls_array_alloc((void **)&g->shared, n_shares, sizeof *g->shared, "weights by layer", err));
    LS_TRY_DONE(ls_array_alloc((void **)&g->owned, n_shares + 1, sizeof *g->owned, "weights by layer", err));
    LS_TRY_DONE(ls_array_alloc((void **)&g->bytes, n_shares + 1, sizeof *g->bytes, "weights by layer", err));
    LS_TRY_DONE(ls_array_alloc((void **)&g->places, p->n, sizeof *g->places, "weights by layer", err));
    LS_TRY_DONE(
        ls_array_alloc((void **)&g->first, p->model->config.n_layers + 1, sizeof *g->first, "weights by layer", err));
    lay_out_shares(g);
    LS_TRY_DONE(
        ls_memory_share(p->device, &g->shared[share], g->bytes[share + 1] - g->bytes[share], "weights by layer", err));
    for (int64_t i = 0; i < p->n; i++)
        if (!ls_parameter_is_whole(p, &p->list[i]) && p->list[i].begin < p->list[i].end)
            p->list[i].part = share_part(g, share, i, p->list[i].begin);
    *out = g;
    g = NULL;
done:
    ls_shared_weights_free(g);
    return status;
}

void ls_shared_weights_free(ls_shared_weights *g) {
    if (g == NULL) return;
    for (int64_t r = 0; g->shared != NULL && r < g->n_shares; r++)
        if (r != g->share) ls_memory_unmap(g->parameters->device, &g->shared[r]);
    if (g->shared != NULL) ls_memory_unshare(g->parameters->device, &g->shared[g->share]);
    free(g->shared);
    free(g->owned);
    free(g->bytes);
    free(g->places);
    free(g->first);
    free(g);
}

const ls_shared_name *ls_shared_weights_name(const ls_shared_weights *g) { return &g->shared[g->share].name; }
int64_t ls_shared_weights_bytes(const ls_shared_weights *g) { return g->shared[g->share].bytes; }

/* One parameter, from all that own some of it. */
static ls_status bring_parameter(const ls_shared_weights *g, int64_t i, ls_error *err) {
    const ls_parameter *p = &g->parameters->list[i];
    const int64_t size = ls_dtype_bytes(p->dtype);
    for (int64_t r = 0; r < g->n_shares; r++) {
        int64_t begin, end;
        ls_parameter_part(p, g->owned[r], g->owned[r + 1], &begin, &end);
        if (begin < end)
            LS_TRY(ls_memory_copy(g->parameters->device, (uint8_t *)ls_parameter_value(p) + begin * size,
                                  share_part(g, r, i, begin), (end - begin) * size, err));
    }
    return ls_parameter_store(g->parameters, p, err);
}

/* ls_layer_source of the layer buffer. */
static ls_status bring_layer(void *context, int64_t layer_i, ls_error *err) {
    const ls_shared_weights *g = context;
    for (int64_t i = g->first[layer_i]; i < g->first[layer_i + 1]; i++) LS_TRY(bring_parameter(g, i, err));
    return LS_OK;
}

ls_status ls_shared_weights_connect(ls_shared_weights *g, const ls_shared_name *names, ls_error *err) {
    for (int64_t r = 0; r < g->n_shares; r++) {
        ls_status status;
        if (r == g->share) continue;
        status = ls_memory_map(g->parameters->device, &g->shared[r], &names[r], err);
        if (status == LS_OK) continue;
        ls_error_prefix(err, "weights=by_layer: rank %lld", (long long)r);
        return status;
    }
    ls_layer_buffer_connect(g->parameters->model, bring_layer, g);
    return LS_OK;
}
