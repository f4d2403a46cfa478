/* Models of the interface: a device, the weights on it, and scoring with them. */
#include <stdlib.h>
#include <string.h>

#include "api/api_state.h"
#include "base/mem.h"
#include "model/score.h"

static const ls_api_struct options_struct = {"lockstep_model_options", sizeof(lockstep_model_options),
                                             sizeof(lockstep_model_options)};
static const ls_api_struct info_struct = {"lockstep_model_info", sizeof(lockstep_model_info),
                                          sizeof(lockstep_model_info)};
static const ls_api_struct score_struct = {"lockstep_score_options", sizeof(lockstep_score_options),
                                           sizeof(lockstep_score_options)};
static const lockstep_model_options option_defaults = {.size = sizeof(lockstep_model_options), .trains = 1};
static const lockstep_score_options score_defaults = {
    .size = sizeof(lockstep_score_options), .temperature = 1.0f, .top_p = 1.0f, .batch = 16};

void lockstep_model_options_init(lockstep_model_options *options, size_t size) {
    ls_api_init(options, size, &option_defaults, &options_struct);
}

void lockstep_score_options_init(lockstep_score_options *options, size_t size) {
    ls_api_init(options, size, &score_defaults, &score_struct);
}

/* ---- opening ---- */

static ls_status open_device(lockstep_model *m, const lockstep_model_options *o, ls_error *err) {
    ls_device_wish wish = {.name = o->device == NULL ? LS_DEVICE_AUTO : o->device,
                           .n_threads = o->threads == 0 ? ls_cpu_count() : o->threads,
                           .isa = ls_isa_best()};
    if (o->threads < 0 || o->threads > LS_THREADS_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "threads: %d is not in 0..%d", o->threads, LS_THREADS_MAX);
    if (o->isa != NULL && !ls_isa_parse(&wish.isa, o->isa))
        return LS_FAIL(err, LS_ERR_ARG, "isa: '%.40s' is not generic, avx2 or avx512", o->isa);
    if (!ls_isa_available(wish.isa))
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "isa: this processor has no %s", ls_isa_name(wish.isa));
    if (ls_device_name_check(wish.name, err) != LS_OK) {
        ls_error_prefix(err, "device");
        return LS_ERR_ARG;
    }
    return ls_device_open_wished(&m->device, &m->choice, &wish, err);
}

static ls_status set_profile(lockstep_model *m, const lockstep_model_options *o, ls_error *err) {
    ls_profile profile = ls_model_default_profile(m->model, m->dtype);
    if (o->profile != NULL && strcmp(o->profile, "auto") != 0 && !ls_profile_parse(&profile, o->profile))
        return LS_FAIL(err, LS_ERR_ARG, "profile: '%.40s' is not auto, exact or mma16", o->profile);
    LS_TRY(ls_model_set_profile(m->model, profile, m->dtype, err));
    ls_numerics_text(m->numerics, profile, m->dtype);
    return LS_OK;
}

static ls_status open_api_model(lockstep_model **out, const char *directory, const lockstep_model_options *theirs,
                                ls_error *err) {
    lockstep_model_options o = option_defaults;
    lockstep_model *m = NULL;
    ls_status status;
    if (out == NULL || directory == NULL) return LS_FAIL(err, LS_ERR_ARG, "model: out or directory is NULL");
    LS_TRY(ls_api_read(&o, theirs, &options_struct, err));
    if (o.reserved != 0) return LS_FAIL(err, LS_ERR_ARG, "model: reserved is %d, not 0", o.reserved);
    if (o.dtype != LS_F32 && o.dtype != LS_BF16)
        return LS_FAIL(err, LS_ERR_ARG, "dtype: %d is not LS_F32 or LS_BF16", o.dtype);
    LS_TRY(ls_array_alloc((void **)&m, 1, sizeof *m, "model", err));
    m->n_holders = 1;
    m->dtype = (ls_dtype)o.dtype;
    LS_TRY_DONE(ls_text_copy(&m->directory, directory, (int64_t)strlen(directory), err));
    LS_TRY_DONE(open_device(m, &o, err));
    LS_TRY_DONE(ls_model_open(&m->model, m->device, directory, err));
    LS_TRY_DONE(set_profile(m, &o, err));
    *out = m;
    m = NULL;
done:
    ls_api_model_release(m);
    return status;
}

ls_status lockstep_model_open(lockstep_model **out, const char *directory, const lockstep_model_options *options,
                              ls_error *err) {
    LS_API_RETURN(open_api_model(out, directory, options, err));
}

void ls_api_model_release(lockstep_model *m) {
    if (m == NULL || --m->n_holders > 0) return;
    ls_model_close(m->model);
    ls_device_close(m->device);
    free(m->directory);
    free(m);
}

void lockstep_model_close(lockstep_model *model) { ls_api_model_release(model); }

ls_status lockstep_model_describe(const lockstep_model *m, lockstep_model_info *info, ls_error *err) {
    if (m == NULL || info == NULL) return LS_FAIL(err, LS_ERR_ARG, "describe: model or info is NULL");
    const ls_model_config *c = &m->model->config;
    const lockstep_model_info own = {.vocab = c->vocab,
                                     .hidden = c->hidden,
                                     .layers = c->n_layers,
                                     .parameters = m->model->n_parameters,
                                     .positions_max = c->positions_max,
                                     .weight_bytes = m->model->device_bytes,
                                     .n_eos = c->n_eos,
                                     .eos = c->eos,
                                     .device = m->choice.text,
                                     .numerics = m->numerics,
                                     .version = m->version};
    return ls_api_write(info, &own, &info_struct, err);
}

/* ---- scoring ---- */

static ls_status read_score_options(lockstep_score_options *o, ls_sampling *sampling,
                                    const lockstep_score_options *theirs, ls_error *err) {
    *o = score_defaults;
    LS_TRY(ls_api_read(o, theirs, &score_struct, err));
    LS_TRY(ls_api_check_choice("logprobs", o->logprobs, LOCKSTEP_PROCESSED + 1, err));
    if (o->batch < 1 || o->batch > 1024)
        return LS_FAIL(err, LS_ERR_ARG, "batch: %lld is not in 1..1024", (long long)o->batch);
    if (o->chunk < 0) return LS_FAIL(err, LS_ERR_ARG, "chunk: %lld is negative", (long long)o->chunk);
    return ls_api_sampling(sampling, o->temperature, o->top_k, o->top_p, o->min_p, 0, err);
}

static ls_status score_sequences(lockstep_model *m, const int32_t *tokens, const int64_t *offsets, int64_t n,
                                 const lockstep_score_options *theirs, float *logprob, ls_error *err) {
    lockstep_score_options o;
    ls_sampling sampling;
    ls_score_item *items = NULL;
    ls_status status;
    if (m == NULL || logprob == NULL) return LS_FAIL(err, LS_ERR_ARG, "score: model or logprob is NULL");
    LS_TRY(read_score_options(&o, &sampling, theirs, err));
    LS_TRY(ls_api_check_sequences(m, tokens, offsets, n, 1, err));
    LS_TRY_DONE(ls_array_alloc((void **)&items, n, sizeof *items, "score items", err));
    for (int64_t i = 0; i < n; i++) {
        logprob[offsets[i]] = 0.0f;
        items[i] = (ls_score_item){.tokens = tokens + offsets[i],
                                   .n_tokens = offsets[i + 1] - offsets[i],
                                   .of = (ls_logprob_of)o.logprobs,
                                   .sampling = sampling,
                                   .logprob = logprob + offsets[i] + 1};
    }
    {
        const ls_score_opts opts = {.dtype = m->dtype, .batch = o.batch, .chunk = o.chunk, .page_tokens = 16};
        LS_TRY_DONE(ls_score(m->model, m->device, &opts, items, n, err));
    }
done:
    free(items);
    return status;
}

ls_status lockstep_score(lockstep_model *model, const int32_t *tokens, const int64_t *offsets, int64_t n,
                         const lockstep_score_options *options, float *logprob, ls_error *err) {
    LS_API_RETURN(score_sequences(model, tokens, offsets, n, options, logprob, err));
}
