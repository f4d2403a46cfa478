/* The forward pass, straight down: read it beside the formulas in model.h. */
#include "model/forward.h"

#include <string.h>

#include "model/layer_buffer.h"
#include "model/parts.h"
#include "op/elementwise.h"
#include "op/rmsnorm.h"

static const char *const ablations[LS_ABLATION_COUNT] = {"none", "attention-only", "mamba-only"};

const char *ls_ablation_name(ls_ablation ablation) {
    return (unsigned)ablation < LS_ABLATION_COUNT ? ablations[ablation] : "unknown";
}

bool ls_ablation_parse(ls_ablation *out, const char *name) {
    for (int i = 0; i < LS_ABLATION_COUNT; i++)
        if (strcmp(ablations[i], name) == 0) {
            *out = (ls_ablation)i;
            return true;
        }
    return false;
}

/* x = rms(h): what a mixer, a feed-forward or the head reads. */
static ls_status normalise_h(const ls_forward *f, ls_rows x, const float *w, ls_error *err) {
    const ls_rows h = {f->h, LS_F32, f->model->config.hidden};
    return ls_part_norm(f, x, h, w, h.stride, err);
}

/* ---- steps ---- */

bool ls_model_has_sublayer(const ls_model *model, int64_t layer_i, ls_sublayer sublayer) {
    const ls_layer *layer = &model->layers[layer_i];
    if (sublayer == LS_SUBLAYER_FFN) return layer->ffn != NULL;
    if (layer->mixer == NULL) return false;
    return model->ablation == LS_ABLATE_NONE ||
           (layer->mixer == &ls_part_attention) == (model->ablation == LS_ATTENTION_ONLY);
}

ls_status ls_model_embed(const ls_forward *f, ls_error *err) {
    const ls_model *model = f->model;
    const ls_embed_args embed = {
        model->embed, model->embed_dtype, model->config.vocab, model->config.hidden, f->batch->tokens, f->h,
        LS_F32,       f->batch->n_rows};
    LS_TRY(ls_embed(f->ws->device, &embed, err));
    LS_TRY(ls_part_scale(f->ws->device, f->h, f->batch->n_rows * model->config.hidden, model->config.embed_scale, err));
    return ls_part_positions(f, err);
}

static const float *norm_of(const ls_model *model, int64_t layer_i, ls_sublayer sublayer) {
    const ls_layer *layer = &model->layers[layer_i];
    return sublayer == LS_SUBLAYER_MIXER ? layer->input_norm : layer->ffn_norm;
}

static ls_status run_sublayer(const ls_forward *f, int64_t layer_i, ls_sublayer sublayer, ls_error *err) {
    const ls_layer *layer = &f->model->layers[layer_i];
    return (sublayer == LS_SUBLAYER_MIXER ? layer->mixer : layer->ffn)->forward(f, layer_i, err);
}

ls_status ls_model_sublayer_output(const ls_forward *f, int64_t layer_i, ls_sublayer sublayer, ls_error *err) {
    LS_TRY(ls_model_need(f->model, layer_i, err));
    LS_TRY(normalise_h(f, f->ws->a.x, norm_of(f->model, layer_i, sublayer), err));
    return run_sublayer(f, layer_i, sublayer, err);
}

int64_t ls_model_next_sublayer(const ls_model *model, int64_t i) {
    const int64_t n = 2 * (int64_t)model->config.n_layers;
    while (i < n && !ls_model_has_sublayer(model, i / 2, (ls_sublayer)(i % 2))) i++;
    return i;
}

/* The weight of the norm that sublayer i, or the head, reads through. */
static const float *norm_before(const ls_model *model, int64_t i) {
    return i < 2 * (int64_t)model->config.n_layers ? norm_of(model, i / 2, (ls_sublayer)(i % 2)) : model->final_norm;
}

/* The layer of sublayer i, unless that is the head. */
static ls_status need_sublayer(const ls_model *model, int64_t i, ls_error *err) {
    return i < 2 * (int64_t)model->config.n_layers ? ls_model_need(model, i / 2, err) : LS_OK;
}

ls_status ls_model_first_norm(const ls_forward *f, ls_rows x, ls_error *err) {
    const int64_t first = ls_model_next_sublayer(f->model, 0);
    LS_TRY(need_sublayer(f->model, first, err));
    return normalise_h(f, x, norm_before(f->model, first), err);
}

ls_status ls_model_sublayer(const ls_forward *f, int64_t i, float *sum, ls_rows x, ls_error *err) {
    const int64_t next = ls_model_next_sublayer(f->model, i + 1);
    const ls_add_rmsnorm_args end = {.h = f->h,
                                     .add = f->ws->a.y.data,
                                     .sum = sum,
                                     .w = norm_before(f->model, next),
                                     .eps = f->model->config.rms_eps,
                                     .y = x.data,
                                     .y_dtype = x.dtype,
                                     .y_stride = x.stride,
                                     .rows = f->batch->n_rows,
                                     .dim = f->model->config.hidden};
    LS_TRY(need_sublayer(f->model, i, err));
    LS_TRY(run_sublayer(f, i / 2, (ls_sublayer)(i % 2), err));
    LS_TRY(ls_part_scale(f->ws->device, f->ws->a.y.data, end.rows * end.dim, f->model->config.residual_scale, err));
    LS_TRY(need_sublayer(f->model, next, err));
    return ls_add_rmsnorm(f->ws->device, &end, err);
}

/* ---- the whole ---- */

static ls_status check_batch(const ls_forward *f, ls_error *err) {
    if (f->ws->dtype != f->cache->dtype)
        return LS_FAIL(err, LS_ERR_ARG, "forward: workspace is %s, cache is %s", ls_dtype_name(f->ws->dtype),
                       ls_dtype_name(f->cache->dtype));
    if (f->ws->profile != f->model->profile)
        return LS_FAIL(err, LS_ERR_ARG, "forward: workspace is of the profile %s, the model of %s",
                       ls_profile_name(f->ws->profile), ls_profile_name(f->model->profile));
    if (f->batch->n_rows > f->ws->rows_max)
        return LS_FAIL(err, LS_ERR_CAPACITY, "forward: %lld rows, the workspace holds %lld",
                       (long long)f->batch->n_rows, (long long)f->ws->rows_max);
    return LS_OK;
}

/* Sublayers up to `end` have nothing to add: the stream is behind them what it was. */
static ls_status show_unchanged(const ls_forward *f, int64_t from, int64_t end, ls_forward_observer observer,
                                void *context, ls_error *err) {
    for (int64_t sublayer = from; observer != NULL && sublayer <= end; sublayer++)
        LS_TRY(observer(context, f, sublayer, err));
    return LS_OK;
}

ls_status ls_model_forward(const ls_forward *start, ls_forward_observer observer, void *context, ls_error *err) {
    const int64_t n = 2 * (int64_t)start->model->config.n_layers;
    ls_forward f = *start;
    int64_t i = ls_model_next_sublayer(f.model, 0);
    LS_TRY(check_batch(&f, err));
    ls_model_pass(f.model);
    LS_TRY(ls_model_embed(&f, err));
    LS_TRY(show_unchanged(&f, 0, i, observer, context, err));
    LS_TRY(ls_model_first_norm(&f, f.ws->a.x, err));
    while (i < n) {
        const int64_t next = ls_model_next_sublayer(f.model, i + 1);
        LS_TRY(ls_model_sublayer(&f, i, f.h, f.ws->a.x, err));
        if (i % 2 == LS_SUBLAYER_MIXER)
            f.spans_checked |=
                f.model->layers[i / 2].mixer == &ls_part_attention ? LS_CHECKED_ATTENTION : LS_CHECKED_MAMBA;
        LS_TRY(show_unchanged(&f, i + 1, next, observer, context, err));
        i = next;
    }
    return LS_OK;
}

ls_status ls_model_logits(const ls_model *model, ls_device *device, ls_rows x, int64_t n, float *logits,
                          ls_error *err) {
    const ls_gemm_args args = {.x = x.data,
                               .x_dtype = x.dtype,
                               .x_stride = x.stride,
                               .weight = &model->head,
                               .out = logits,
                               .out_dtype = LS_F32,
                               .out_stride = model->config.vocab,
                               .m = n,
                               .profile = model->profile,
                               .nan_open = true};
    LS_TRY(ls_gemm(device, &args, err));
    return ls_part_scale(device, logits, n * args.out_stride, model->config.logit_scale, err);
}
