/* lockstep score: the training forward's log-probabilities of given sequences. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli/job.h"
#include "cli/progress.h"

typedef struct score_run {
    ls_model *model;
    ls_device *device;
    ls_device_choice choice;
    ls_record *records;
    int64_t n_records, n_tokens;
    ls_score_item *items;
    int32_t *tokens;
    float *logprobs;
} score_run;

/* What a record's log-probabilities are of: its own meta if it has one, else the options. */
static ls_status set_distribution(ls_score_item *item, const ls_record *r, const ls_run_options *o, const char *path,
                                  ls_error *err) {
    item->of = o->logprob_of;
    item->sampling = o->sampling;
    if (r->has_meta && r->logprob_of != NULL) {
        if (strcmp(r->logprob_of, "raw") != 0 && strcmp(r->logprob_of, "processed") != 0)
            return LS_FAIL(err, LS_ERR_FORMAT, "%s: line %lld: meta.logprob_of: '%s' is not raw or processed", path,
                           (long long)r->line, r->logprob_of);
        item->of = strcmp(r->logprob_of, "raw") == 0 ? LS_LOGPROB_RAW : LS_LOGPROB_PROCESSED;
    }
    if (r->has_meta && item->of == LS_LOGPROB_PROCESSED) {
        if (!isnan(r->temperature)) item->sampling.temperature = (float)r->temperature;
        if (!isnan(r->top_p)) item->sampling.top_p = (float)r->top_p;
        if (!isnan(r->min_p)) item->sampling.min_p = (float)r->min_p;
        if (r->top_k >= 0) item->sampling.top_k = r->top_k;
        if (ls_sampling_check(&item->sampling, err) != LS_OK) {
            ls_error_prefix(err, "%s: line %lld: meta", path, (long long)r->line);
            return err->status;
        }
    }
    return LS_OK;
}

/* Conversations become sequences of tokens, without what would begin a further answer. */
static ls_status encode_chats(score_run *run, const ls_run_options *o, const char *path, ls_error *err) {
    ls_chat *chat = NULL;
    ls_tokenizer *tokenizer = NULL;
    ls_status status = LS_OK;
    for (int64_t i = 0; i < run->n_records; i++) {
        ls_record *r = &run->records[i];
        if (r->chat == NULL) continue;
        LS_TRY_DONE(ls_chat_ids(&chat, &tokenizer, o->model, path, r, false, err));
        r->is_tokens = true;
        if (r->n_completion > 0) continue;
        status = LS_FAIL(err, LS_ERR_FORMAT, "%s: line %lld: messages: render to no token", path, (long long)r->line);
        goto done;
    }
done:
    ls_chat_free(chat);
    ls_tokenizer_free(tokenizer);
    return status;
}

/* Which weights drew token i of the completion; -1: nothing is said. */
static int64_t version_of(const ls_record *r, int64_t i) {
    return r->token_weights != NULL ? r->token_weights[i] : r->weights;
}

static bool is_named(const ls_run_options *o, int64_t version) {
    for (int64_t k = 0; k < o->n_versions; k++)
        if (o->versions[k].version == version) return true;
    return false;
}

static ls_status check_versions(const score_run *run, const ls_run_options *o, const char *path, ls_error *err) {
    for (int64_t k = 0; o->n_versions > 0 && k < run->n_records; k++) {
        const ls_record *r = &run->records[k];
        for (int64_t i = 0; i < r->n_completion; i++) {
            const int64_t version = version_of(r, i);
            if (version >= 0 && !is_named(o, version))
                return LS_FAIL(err, LS_ERR_ARG,
                               "%s: line %lld: weights: version %lld drew token %lld; no --weights "
                               "names it",
                               path, (long long)r->line, (long long)version, (long long)i);
        }
    }
    return LS_OK;
}

static ls_status lay_out_items(score_run *run, const ls_run_options *o, const char *path, ls_error *err) {
    const int32_t vocab = run->model->config.vocab;
    const int64_t length_max = o->max_length > 0 ? o->max_length : run->model->config.positions_max;
    int64_t at = 0;
    for (int64_t i = 0; i < run->n_records; i++)
        run->n_tokens += run->records[i].n_prompt + run->records[i].n_completion;
    LS_TRY(ls_array_alloc((void **)&run->items, run->n_records, sizeof *run->items, "score items", err));
    LS_TRY(ls_array_alloc((void **)&run->tokens, run->n_tokens, sizeof *run->tokens, "tokens", err));
    LS_TRY(ls_array_alloc((void **)&run->logprobs, run->n_tokens, sizeof *run->logprobs, "log-probabilities", err));
    for (int64_t i = 0; i < run->n_records; i++) {
        const ls_record *r = &run->records[i];
        ls_score_item *item = &run->items[i];
        item->n_tokens = r->n_prompt + r->n_completion;
        if (item->n_tokens > length_max)
            return LS_FAIL(err, LS_ERR_CAPACITY, "%s: line %lld: %lld tokens exceed the limit of %lld (--max-length)",
                           path, (long long)r->line, (long long)item->n_tokens, (long long)length_max);
        LS_TRY(ls_ids_check(path, r, "prompt_ids", r->prompt_ids, r->n_prompt, vocab, err));
        LS_TRY(ls_ids_check(path, r, r->is_tokens ? "token_ids" : "completion_ids", r->completion_ids, r->n_completion,
                            vocab, err));
        LS_TRY(set_distribution(item, r, o, path, err));
        if (r->n_prompt > 0) memcpy(run->tokens + at, r->prompt_ids, (size_t)r->n_prompt * sizeof(int32_t));
        if (r->n_completion > 0)
            memcpy(run->tokens + at + r->n_prompt, r->completion_ids, (size_t)r->n_completion * sizeof(int32_t));
        item->tokens = run->tokens + at;
        item->logprob = run->logprobs + at;
        at += item->n_tokens;
    }
    return LS_OK;
}

/* What the given values were made with, where that is not what the new ones are made with: said once, on standard
 * error. */
static void tell_others(const score_run *run, const ls_run_options *o, const char *path) {
    char digest[LS_NUMERICS_BYTES], shown[2 * LS_NUMERICS_BYTES];
    const char *other = NULL;
    int64_t n_other = 0, n_weights = 0, weights = 0;
    ls_numerics_text(digest, o->profile, o->dtype);
    for (int64_t i = 0; i < run->n_records; i++) {
        const ls_record *r = &run->records[i];
        if (r->has_logprobs && r->digest != NULL && strcmp(r->digest, digest) != 0) {
            if (other == NULL) other = r->digest;
            n_other++;
        }
        if (r->weights > 0) weights = r->weights, n_weights++;
    }
    if (n_other > 0) {
        snprintf(shown, sizeof shown, "%s", other);
        ls_cli_clean(shown);
        fprintf(stderr,
                "note: %lld of %lld records of %s have log-probabilities of the numerics %s; these here are of %s, and "
                "compare will not call them the same\n",
                (long long)n_other, (long long)run->n_records, path, shown, digest);
    }
    if (n_weights > 0 && o->n_versions == 0)
        fprintf(stderr,
                "note: %lld of %lld records of %s were drawn from weights of later versions (one says %lld); they are "
                "scored with those in %s, whichever they are\n",
                (long long)n_weights, (long long)run->n_records, path, (long long)weights, o->model);
}

static ls_score_opts score_opts(const ls_run_options *o) {
    return (ls_score_opts){
        .dtype = o->dtype, .batch = o->levers.batch, .chunk = o->levers.chunk, .page_tokens = o->levers.page_tokens};
}

/* Weights that drew some tokens, and the values of all tokens up to the last of these. */
typedef struct score_part {
    ls_score_item *items; /* [n] */
    int64_t *owners;      /* [n] the record of each */
    int64_t n;
    float *logprobs;
} score_part;

/* Sequences of which a version drew a token, each up to the last one. */
static ls_status lay_out_part(score_part *part, const score_run *run, int64_t version, ls_error *err) {
    float *at;
    LS_TRY(ls_array_alloc((void **)&part->items, run->n_records, sizeof *part->items, "score items", err));
    LS_TRY(ls_array_alloc((void **)&part->owners, run->n_records, sizeof *part->owners, "score items", err));
    LS_TRY(ls_array_alloc((void **)&part->logprobs, run->n_tokens, sizeof *part->logprobs, "log-probabilities", err));
    at = part->logprobs;
    for (int64_t k = 0; k < run->n_records; k++) {
        const ls_record *r = &run->records[k];
        int64_t n = r->n_completion;
        while (n > 0 && version_of(r, n - 1) != version) n--;
        if (n == 0) continue;
        part->items[part->n] = run->items[k];
        part->items[part->n].n_tokens = r->n_prompt + n;
        part->items[part->n].logprob = at;
        part->owners[part->n++] = k;
        at += r->n_prompt + n;
    }
    return LS_OK;
}

static void take_part(const score_run *run, const score_part *part, int64_t version) {
    for (int64_t k = 0; k < part->n; k++) {
        const ls_record *r = &run->records[part->owners[k]];
        float *out = run->items[part->owners[k]].logprob;
        for (int64_t i = r->n_prompt > 0 ? 0 : 1; i < r->n_completion; i++)
            if (version_of(r, i) == version) out[r->n_prompt - 1 + i] = part->items[k].logprob[r->n_prompt - 1 + i];
    }
}

static ls_status open_version(ls_model **out, const score_run *run, const ls_run_options *o, const char *path,
                              ls_error *err) {
    LS_TRY(ls_model_open(out, run->device, path, err));
    if ((*out)->config.vocab != run->model->config.vocab)
        return LS_FAIL(err, LS_ERR_ARG, "--weights: %s has a vocabulary of %d tokens, %s of %d", path,
                       (*out)->config.vocab, o->model, run->model->config.vocab);
    LS_TRY(ls_model_set_profile(*out, o->profile, o->dtype, err));
    (*out)->ablation = o->levers.ablation;
    return LS_OK;
}

/* The weights in a directory score what a version drew, from the beginning of each sequence: that is what the engine
 * has computed when weights arrive in the middle of one. */
static ls_status score_version(const score_run *run, const ls_run_options *o, const ls_score_version *v,
                               ls_error *err) {
    const ls_score_opts opts = score_opts(o);
    score_part part = {0};
    ls_model *model = NULL;
    ls_status status;
    LS_TRY_DONE(lay_out_part(&part, run, v->version, err));
    if (part.n == 0) goto done;
    LS_TRY_DONE(v->path == NULL ? LS_OK : open_version(&model, run, o, v->path, err));
    LS_TRY_DONE(ls_score_watched(model != NULL ? model : run->model, run->device, &opts, part.items, part.n,
                                 ls_job_scored, NULL, err));
    take_part(run, &part, v->version);
done:
    ls_model_close(model);
    free(part.logprobs);
    free(part.owners);
    free(part.items);
    return status;
}

static ls_status score(const score_run *run, const ls_run_options *o, ls_error *err) {
    const ls_score_opts opts = score_opts(o);
    const ls_score_version unnamed = {-1, NULL};
    if (o->n_versions == 0)
        return ls_score_watched(run->model, run->device, &opts, run->items, run->n_records, ls_job_scored, NULL, err);
    LS_TRY(score_version(run, o, &unnamed, err));
    for (int64_t k = 0; k < o->n_versions; k++) LS_TRY(score_version(run, o, &o->versions[k], err));
    return LS_OK;
}

/* The input record with its log-probabilities replaced: one entry a completion token, or a token after the first. */
static ls_status write_result(ls_json_out *json, const score_run *run, int64_t i, const ls_run_options *o,
                              ls_error *err) {
    ls_record r = run->records[i];
    const int64_t skip = r.is_tokens ? 0 : r.n_prompt > 0 ? r.n_prompt - 1 : 0;
    const int64_t all = run->items[i].n_tokens - 1;
    char kind[16], digest[LS_NUMERICS_BYTES];
    /* What the new values are: of which distribution, by which numerics. The input's digest is of the input's values.
     */
    snprintf(kind, sizeof kind, "%s", run->items[i].of == LS_LOGPROB_RAW ? "raw" : "processed");
    ls_numerics_text(digest, o->profile, o->dtype);
    r.has_meta = true;
    r.logprob_of = kind;
    r.digest = digest;
    r.has_logprobs = true;
    r.n_logprobs = all > skip ? all - skip : 0;
    r.logprobs = run->items[i].logprob + skip;
    LS_TRY(ls_array_alloc((void **)&r.logprob_missing, r.n_logprobs, 1, "log-probabilities", err));
    if (r.is_tokens) {
        r.completion_ids = NULL; /* the result of a token line is its log-probabilities alone */
        ls_score_write(json, &r);
    } else {
        ls_record_write(json, &r);
    }
    free(r.logprob_missing);
    return LS_OK;
}

int ls_cmd_score(int argc, char **argv) {
    ls_run_options o;
    score_run run = {0};
    ls_output *output = NULL;
    ls_json_out json;
    ls_error err;
    const char *path;
    double start;
    ls_status status;
    LS_TRY_DONE(ls_run_options_parse(&o, LS_COMMAND_SCORE, argc, argv, &err));
    path = o.rollouts != NULL ? o.rollouts : o.tokens;
    LS_TRY_DONE(ls_output_open(&output, o.out, &err));
    LS_TRY_DONE(ls_cli_device_open(&run.device, &run.choice, o.device, &o.levers, &err));
    LS_TRY_DONE(ls_model_open(&run.model, run.device, o.model, &err));
    LS_TRY_DONE(ls_cli_profile_choose(&o, run.model, &err));
    run.model->ablation = o.levers.ablation;
    LS_TRY_DONE(ls_records_read(&run.records, &run.n_records, path, LS_RECORD_SEQUENCE, &err));
    LS_TRY_DONE(encode_chats(&run, &o, path, &err));
    LS_TRY_DONE(check_versions(&run, &o, path, &err));
    LS_TRY_DONE(lay_out_items(&run, &o, path, &err));
    ls_cli_device_tell("device", &run.choice, o.profile);
    tell_others(&run, &o, path);
    start = ls_clock_seconds();
    ls_progress_begin("scoring", "sequences");
    LS_TRY_DONE(score(&run, &o, &err));
    ls_progress_end();
    start = ls_clock_seconds() - start;
    ls_json_init(&json, ls_output_stream(output));
    for (int64_t i = 0; i < run.n_records; i++) {
        LS_TRY_DONE(ls_output_check(output, &err));
        LS_TRY_DONE(write_result(&json, &run, i, &o, &err));
    }
    status = ls_output_commit(output, &err);
    output = NULL;
    if (status == LS_OK) ls_run_summary(&o, run.n_records, run.n_tokens, start, NULL);
done:
    ls_output_abandon(output);
    free(run.logprobs);
    free(run.tokens);
    free(run.items);
    ls_records_free(run.records, run.n_records);
    ls_model_close(run.model);
    ls_device_close(run.device);
    return status == LS_OK ? LS_EXIT_OK : ls_cli_fail(&err);
}
