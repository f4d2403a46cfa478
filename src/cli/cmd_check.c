/* lockstep check: generate, score with the training forward, compare every bit. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cli/job.h"
#include "cli/progress.h"

typedef struct verdict {
    int64_t n_tokens, n_tokens_different, n_bits_different;
    int64_t first_request, first_token; /* -1: none */
    float first_generated, first_scored;
    double seconds; /* of scoring */
} verdict;

/* Where the second half is computed: where the first was or, with --against, on a device of its own. */
typedef struct scorer {
    ls_device *device; /* NULL: the job's */
    ls_device_choice choice;
    ls_model *model;
} scorer;

static ls_status open_scorer(scorer *s, const ls_run_options *o, ls_error *err) {
    if (o->against == NULL) return LS_OK;
    LS_TRY(ls_cli_device_open(&s->device, &s->choice, o->against, &o->levers, err));
    LS_TRY(ls_model_open(&s->model, s->device, o->model, err));
    LS_TRY(ls_model_set_profile(s->model, o->profile, o->dtype, err));
    s->model->ablation = o->levers.ablation;
    return LS_OK;
}

static void close_scorer(scorer *s) {
    ls_model_close(s->model);
    ls_device_close(s->device);
}

static void compare_bits(verdict *v, const ls_request *r, int64_t request_i, const float *scored) {
    for (int64_t t = 0; t < r->n_completion; t++) {
        uint32_t a, b;
        memcpy(&a, &r->logprob[t], sizeof a);
        memcpy(&b, &scored[r->n_prompt - 1 + t], sizeof b);
        v->n_tokens++;
        if (a == b && !isnan(scored[r->n_prompt - 1 + t])) continue; /* no NaN agrees with anything */
        v->n_bits_different += __builtin_popcount(a ^ b);
        if (v->n_tokens_different++ > 0) continue;
        v->first_request = request_i;
        v->first_token = t;
        v->first_generated = r->logprob[t];
        v->first_scored = scored[r->n_prompt - 1 + t];
    }
}

static ls_status score_and_compare(verdict *v, const ls_job *job, const scorer *s, const ls_run_options *o,
                                   ls_error *err) {
    ls_device *device = s->device != NULL ? s->device : job->device;
    ls_model *model = s->device != NULL ? s->model : job->model;
    const ls_score_opts opts = {
        .dtype = o->dtype, .batch = o->score_batch, .chunk = o->score_chunk, .page_tokens = o->levers.page_tokens};
    ls_score_item *items = NULL;
    int32_t *tokens = NULL;
    float *logprobs = NULL;
    int64_t total = 0, at = 0;
    double start;
    ls_status status;
    for (int64_t i = 0; i < job->n_requests; i++) total += job->requests[i].n_prompt + job->requests[i].n_completion;
    LS_TRY_DONE(ls_array_alloc((void **)&items, job->n_requests, sizeof *items, "score items", err));
    LS_TRY_DONE(ls_array_alloc((void **)&tokens, total, sizeof *tokens, "tokens", err));
    LS_TRY_DONE(ls_array_alloc((void **)&logprobs, total, sizeof *logprobs, "log-probabilities", err));
    for (int64_t i = 0; i < job->n_requests; i++) {
        const ls_request *r = &job->requests[i];
        ls_score_item *item = &items[i];
        memcpy(tokens + at, r->prompt, (size_t)r->n_prompt * sizeof *tokens);
        memcpy(tokens + at + r->n_prompt, r->completion, (size_t)r->n_completion * sizeof *tokens);
        item->tokens = tokens + at;
        item->n_tokens = r->n_prompt + r->n_completion;
        item->of = o->logprob_of;
        item->sampling = o->sampling;
        item->logprob = logprobs + at;
        at += item->n_tokens;
    }
    start = ls_clock_seconds();
    ls_progress_begin("scoring", "sequences");
    LS_TRY_DONE(ls_score_watched(model, device, &opts, items, job->n_requests, ls_job_scored, NULL, err));
    ls_progress_end();
    v->seconds = ls_clock_seconds() - start;
    v->first_request = v->first_token = -1;
    for (int64_t i = 0; i < job->n_requests; i++) compare_bits(v, &job->requests[i], i, items[i].logprob);
done:
    free(logprobs);
    free(tokens);
    free(items);
    return status;
}

/* A device as the figures name it: of the CPU, which is usual, what it computes with. */
static const char *figure_of(const ls_device_choice *choice) {
    static const char usual[] = "cpu, ";
    return choice->text + (strncmp(choice->text, usual, strlen(usual)) == 0 ? strlen(usual) : 0);
}

static void print_json(const ls_job *job, const scorer *s, const ls_run_options *o, const verdict *v,
                       int64_t n_scored) {
    ls_json_out json;
    char digest[LS_NUMERICS_BYTES];
    ls_numerics_text(digest, o->profile, o->dtype);
    ls_json_init(&json, stdout);
    ls_json_begin_object(&json, NULL);
    ls_json_int(&json, "sequences", job->n_requests);
    ls_json_int(&json, "tokens", v->n_tokens);
    ls_json_int(&json, "differing_tokens", v->n_tokens_different);
    ls_json_int(&json, "differing_bits", v->n_bits_different);
    ls_json_double(&json, "generate_tokens_per_second", (double)job->n_generated / job->seconds);
    ls_json_double(&json, "score_tokens_per_second", (double)n_scored / v->seconds);
    ls_json_string(&json, "isa", ls_isa_name(o->levers.isa));
    ls_json_int(&json, "threads", o->levers.threads);
    ls_json_string(&json, "digest", digest);
    if (s->device != NULL || strcmp(job->choice.name, "cpu") != 0) ls_json_string(&json, "device", job->choice.name);
    if (s->device != NULL) ls_json_string(&json, "against", s->choice.name);
    ls_job_write(&json, job);
    ls_json_end_object(&json);
    ls_json_newline(&json);
}

static void print_text(const ls_job *job, const scorer *s, const ls_run_options *o, const verdict *v,
                       int64_t n_scored) {
    char digest[LS_NUMERICS_BYTES];
    ls_numerics_text(digest, o->profile, o->dtype);
    printf("sequences        %lld\n", (long long)job->n_requests);
    printf("tokens           %lld generated, %lld scored\n", (long long)v->n_tokens, (long long)n_scored);
    printf("tokens/s         %.0f generated, %.0f scored (%s%s%s)\n", (double)job->n_generated / job->seconds,
           (double)n_scored / v->seconds, figure_of(&job->choice), s->device != NULL ? "; scored by " : "",
           s->device != NULL ? s->choice.text : "");
    printf("numerics         %s\n", digest);
    printf("differing tokens %lld\n", (long long)v->n_tokens_different);
    printf("differing bits   %lld\n", (long long)v->n_bits_different);
    if (v->first_request < 0) return;
    {
        const ls_request *r = &job->requests[v->first_request];
        printf("first difference %s/%u, completion token %lld: generated %.9g, scored %.9g\n",
               job->prompts[r->prompt_i].id, r->sample_i, (long long)v->first_token, (double)v->first_generated,
               (double)v->first_scored);
    }
}

int ls_cmd_check(int argc, char **argv) {
    ls_run_options o;
    ls_job job = {0};
    scorer s = {0};
    verdict v = {0};
    int64_t n_scored = 0;
    ls_error err;
    ls_status status;
    LS_TRY_DONE(ls_run_options_parse(&o, LS_COMMAND_CHECK, argc, argv, &err));
    if (o.prompts == NULL) o.ignore_eos = true; /* made-up prompts are for many tokens, not for sentences */
    LS_TRY_DONE(ls_job_init(&job, &o, &err));
    LS_TRY_DONE(open_scorer(&s, &o, &err));
    LS_TRY_DONE(ls_job_generate(&job, &o, &err));
    LS_TRY_DONE(ls_job_check(&job, &err));
    if (s.device != NULL) ls_cli_device_tell("scored on", &s.choice, o.profile);
    LS_TRY_DONE(score_and_compare(&v, &job, &s, &o, &err));
    for (int64_t i = 0; i < job.n_requests; i++) n_scored += job.requests[i].n_prompt + job.requests[i].n_completion;
    if (o.json)
        print_json(&job, &s, &o, &v, n_scored);
    else
        print_text(&job, &s, &o, &v, n_scored);
done:
    close_scorer(&s);
    ls_job_deinit(&job);
    if (status != LS_OK) return ls_cli_fail(&err);
    return v.n_tokens_different == 0 ? LS_EXIT_OK : LS_EXIT_DIFFERENT;
}
