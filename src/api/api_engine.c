/* The engine of the interface: requests that it owns, and their results in the order in which they ended. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "api/api_state.h"
#include "base/mem.h"
#include "rollout/engine.h"

/* A request and its result. */
typedef struct job {
    ls_request request; /* first: the engine's view of it */
    ls_penalties penalties;
    int64_t ticket;
    int32_t *prompt;
    struct job *next;
} job;

typedef struct job_list {
    job *first, **end;
} job_list;

struct lockstep_engine {
    lockstep_model *model;
    ls_engine *engine;
    uint64_t version;   /* of the weights that it computes with */
    int64_t length_max; /* of a request */
    int64_t n_tickets;
    job_list live, done; /* by ticket; by end */
    job *taken;          /* whose arrays the caller may look at */
};

static const ls_api_struct options_struct = {"lockstep_engine_options", sizeof(lockstep_engine_options),
                                             sizeof(lockstep_engine_options)};
static const ls_api_struct request_struct = {"lockstep_request", sizeof(lockstep_request),
                                             offsetof(lockstep_request, repetition_penalty)};
static const ls_api_struct result_struct = {"lockstep_result", sizeof(lockstep_result), sizeof(lockstep_result)};
static const lockstep_engine_options option_defaults = {
    .size = sizeof(lockstep_engine_options), .length_max = 2048, .temperature = 1.0f, .top_p = 1.0f};
static const lockstep_request request_defaults = {
    .size = sizeof(lockstep_request), .max_tokens = 128, .repetition_penalty = 1.0f};

void lockstep_engine_options_init(lockstep_engine_options *options, size_t size) {
    ls_api_init(options, size, &option_defaults, &options_struct);
}

void lockstep_request_init(lockstep_request *request, size_t size) {
    ls_api_init(request, size, &request_defaults, &request_struct);
}

/* ---- requests ---- */

static void list_init(job_list *list) {
    list->first = NULL;
    list->end = &list->first;
}

static void list_append(job_list *list, job *x) {
    x->next = NULL;
    *list->end = x;
    list->end = &x->next;
}

/* Takes *at, a link of the list, out of it. */
static job *list_remove(job_list *list, job **at) {
    job *x = *at;
    *at = x->next;
    if (list->end == &x->next) list->end = at;
    return x;
}

static void job_free(job *x) {
    if (x == NULL) return;
    free(x->prompt);
    free(x->request.completion);
    free(x->request.logprob);
    free(x->request.weights);
    free(x);
}

static void list_free(job_list *list) {
    while (list->first != NULL) job_free(list_remove(list, &list->first));
}

/* The engine sets how a request ended within a tick or a cancellation. */
static void collect_finished(lockstep_engine *e) {
    for (job **at = &e->live.first; *at != NULL;) {
        if ((*at)->request.finish == LS_FINISH_NONE)
            at = &(*at)->next;
        else
            list_append(&e->done, list_remove(&e->live, at));
    }
}

/* ---- opening ---- */

/* Levers that are settings of the model's device, or of a run over a list of prompts. */
static bool is_elsewhere(const char *name) {
    static const char *const names[] = {"threads", "isa", "ablation", "samples", "shuffle"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(names[i], name) == 0) return true;
    return false;
}

static ls_status set_lever(ls_levers *levers, const char *text, ls_error *err) {
    char name[40];
    const char *equals = text == NULL ? NULL : strchr(text, '=');
    if (equals == NULL || (size_t)(equals - text) >= sizeof name)
        return LS_FAIL(err, LS_ERR_ARG, "levers: '%.60s' is not NAME=VALUE", text == NULL ? "NULL" : text);
    memcpy(name, text, (size_t)(equals - text));
    name[equals - text] = '\0';
    const int64_t lever_i = ls_lever_find(name);
    if (lever_i < 0) return LS_FAIL(err, LS_ERR_ARG, "levers: '%s' is no lever", name);
    if (is_elsewhere(name))
        return LS_FAIL(err, LS_ERR_ARG, "levers: %s is no setting of an engine that is given its requests", name);
    return ls_lever_parse(levers, lever_i, equals + 1, err);
}

static ls_status read_levers(ls_levers *levers, const lockstep_engine_options *o, ls_error *err) {
    ls_levers_init(levers);
    if (o->n_levers < 0 || (o->n_levers > 0 && o->levers == NULL))
        return LS_FAIL(err, LS_ERR_ARG, "levers: %lld of them, at NULL", (long long)o->n_levers);
    for (int64_t i = 0; i < o->n_levers; i++) LS_TRY(set_lever(levers, o->levers[i], err));
    return ls_levers_check(levers, err);
}

static ls_status read_stops(ls_engine_opts *opts, const lockstep_engine_options *o, const ls_model_config *c,
                            ls_error *err) {
    const bool given = o->stop != NULL;
    if ((given && o->n_stop < 0) || (!given && o->n_stop != 0 && o->n_stop != -1))
        return LS_FAIL(err, LS_ERR_ARG, "stop: %lld tokens, at %s", (long long)o->n_stop, given ? "an array" : "NULL");
    opts->stop = given ? o->stop : c->eos;
    opts->n_stop = given ? o->n_stop : o->n_stop < 0 ? 0 : c->n_eos;
    for (int64_t i = 0; i < opts->n_stop; i++)
        if (opts->stop[i] < 0 || opts->stop[i] >= c->vocab)
            return LS_FAIL(err, LS_ERR_ARG, "stop[%lld]: token %d is not in the vocabulary 0..%d", (long long)i,
                           opts->stop[i], c->vocab - 1);
    return LS_OK;
}

static ls_status read_options(ls_engine_opts *opts, const lockstep_model *m, const lockstep_engine_options *theirs,
                              ls_error *err) {
    const ls_model_config *c = &m->model->config;
    lockstep_engine_options o = option_defaults;
    LS_TRY(ls_api_read(&o, theirs, &options_struct, err));
    LS_TRY(ls_api_check_choice("logprobs", o.logprobs, LOCKSTEP_PROCESSED + 1, err));
    if (o.length_max < 2) return LS_FAIL(err, LS_ERR_ARG, "length_max: %lld is below 2", (long long)o.length_max);
    if (o.requests_max < 0)
        return LS_FAIL(err, LS_ERR_ARG, "requests_max: %lld is negative", (long long)o.requests_max);
    *opts = (ls_engine_opts){.dtype = m->dtype,
                             .length_max = o.length_max < c->positions_max ? o.length_max : c->positions_max,
                             .requests_max = o.requests_max,
                             .logprob_of = (ls_logprob_of)o.logprobs,
                             .penalizes = o.logprobs == LOCKSTEP_RAW,
                             .weights = m->version};
    LS_TRY(read_levers(&opts->levers, &o, err));
    LS_TRY(read_stops(opts, &o, c, err));
    return ls_api_sampling(&opts->sampling, o.temperature, o.top_k, o.top_p, o.min_p, o.seed, err);
}

static ls_status open_engine(lockstep_engine **out, lockstep_model *m, const lockstep_engine_options *theirs,
                             ls_error *err) {
    lockstep_engine *e = NULL;
    ls_engine_opts opts;
    ls_status status;
    if (out == NULL || m == NULL) return LS_FAIL(err, LS_ERR_ARG, "engine: out or model is NULL");
    LS_TRY(read_options(&opts, m, theirs, err));
    LS_TRY_DONE(ls_array_alloc((void **)&e, 1, sizeof *e, "engine", err));
    list_init(&e->live);
    list_init(&e->done);
    e->model = m;
    m->n_holders++;
    e->version = m->version;
    e->length_max = opts.length_max;
    LS_TRY_DONE(ls_engine_create(&e->engine, m->model, m->device, &opts, err));
    *out = e;
    e = NULL;
done:
    lockstep_engine_close(e);
    return status;
}

ls_status lockstep_engine_open(lockstep_engine **out, lockstep_model *model, const lockstep_engine_options *options,
                               ls_error *err) {
    LS_API_RETURN(open_engine(out, model, options, err));
}

void lockstep_engine_close(lockstep_engine *e) {
    if (e == NULL) return;
    ls_engine_free(e->engine);
    list_free(&e->live);
    list_free(&e->done);
    job_free(e->taken);
    ls_api_model_release(e->model);
    free(e);
}

/* ---- running ---- */

static ls_status check_engine(const lockstep_engine *e, ls_error *err) {
    if (e == NULL) return LS_FAIL(err, LS_ERR_ARG, "engine: NULL");
    if (e->version == e->model->version) return LS_OK;
    return LS_FAIL(err, LS_ERR_ARG,
                   "engine: the model's weights are version %llu, its own %llu; lockstep_engine_update takes them",
                   (unsigned long long)e->model->version, (unsigned long long)e->version);
}

static ls_status make_job(job **out, const lockstep_request *r, ls_error *err) {
    job *x = NULL;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&x, 1, sizeof *x, "request", err));
    LS_TRY_DONE(ls_array_alloc((void **)&x->prompt, r->n_tokens, sizeof *x->prompt, "prompt", err));
    LS_TRY_DONE(ls_array_alloc((void **)&x->request.completion, r->max_tokens, sizeof(int32_t), "completion", err));
    LS_TRY_DONE(ls_array_alloc((void **)&x->request.logprob, r->max_tokens, sizeof(float), "log-probabilities", err));
    LS_TRY_DONE(ls_array_alloc((void **)&x->request.weights, r->max_tokens, sizeof(uint64_t), "versions", err));
    memcpy(x->prompt, r->tokens, (size_t)r->n_tokens * sizeof *x->prompt);
    x->request.prompt = x->prompt;
    x->request.n_prompt = r->n_tokens;
    x->request.prompt_i = r->prompt;
    x->request.sample_i = r->sample;
    x->request.max_tokens = r->max_tokens;
    x->request.priority = r->priority;
    x->penalties = (ls_penalties){r->repetition_penalty, r->frequency_penalty, r->presence_penalty};
    x->request.penalties = &x->penalties;
    *out = x;
    x = NULL;
done:
    job_free(x);
    return status;
}

static ls_status submit(lockstep_engine *e, const lockstep_request *theirs, int64_t *ticket, ls_error *err) {
    lockstep_request r = request_defaults;
    job *x = NULL;
    ls_status status;
    LS_TRY(check_engine(e, err));
    if (theirs == NULL) return LS_FAIL(err, LS_ERR_ARG, "request: NULL");
    LS_TRY(ls_api_read(&r, theirs, &request_struct, err));
    if (r.tokens == NULL || r.n_tokens < 1 || r.max_tokens < 0)
        return LS_FAIL(err, LS_ERR_ARG, "request: a prompt of %lld tokens%s, a completion of %lld",
                       (long long)r.n_tokens, r.tokens == NULL ? " at NULL" : "", (long long)r.max_tokens);
    if (r.n_tokens > e->length_max || r.max_tokens > e->length_max - r.n_tokens)
        return LS_FAIL(err, LS_ERR_CAPACITY, "request: %lld tokens and a completion of %lld; length_max is %lld",
                       (long long)r.n_tokens, (long long)r.max_tokens, (long long)e->length_max);
    LS_TRY_DONE(make_job(&x, &r, err));
    LS_TRY_DONE(ls_engine_submit(e->engine, &x->request, err));
    x->ticket = e->n_tickets++;
    if (ticket != NULL) *ticket = x->ticket;
    list_append(&e->live, x);
    x = NULL;
done:
    job_free(x);
    return status;
}

static ls_status tick(lockstep_engine *e, int64_t *unfinished, ls_error *err) {
    LS_TRY(check_engine(e, err));
    LS_TRY(ls_engine_tick(e->engine, err));
    collect_finished(e);
    if (unfinished != NULL) *unfinished = ls_engine_unfinished(e->engine);
    return LS_OK;
}

static ls_status run_ticks(lockstep_engine *e, ls_error *err) {
    LS_TRY(check_engine(e, err));
    while (ls_engine_unfinished(e->engine) > 0) LS_TRY(tick(e, NULL, err));
    return LS_OK;
}

static ls_status cancel(lockstep_engine *e, int64_t ticket, ls_error *err) {
    if (e == NULL) return LS_FAIL(err, LS_ERR_ARG, "engine: NULL");
    for (job *x = e->live.first; x != NULL; x = x->next) {
        if (x->ticket != ticket) continue;
        LS_TRY(ls_engine_cancel(e->engine, &x->request, err));
        collect_finished(e);
        return LS_OK;
    }
    return LS_FAIL(err, LS_ERR_ARG, "cancel: ticket %lld is of no unfinished request", (long long)ticket);
}

static ls_status update_engine(lockstep_engine *e, ls_error *err) {
    if (e == NULL) return LS_FAIL(err, LS_ERR_ARG, "engine: NULL");
    LS_TRY(ls_engine_set_weights(e->engine, e->model->model, e->model->version, err));
    e->version = e->model->version;
    return LS_OK;
}

static ls_status sleep_now(lockstep_engine *e, ls_error *err) {
    if (e == NULL) return LS_FAIL(err, LS_ERR_ARG, "engine: NULL");
    return ls_engine_sleep(e->engine, err);
}

ls_status lockstep_engine_submit(lockstep_engine *engine, const lockstep_request *request, int64_t *ticket,
                                 ls_error *err) {
    LS_API_RETURN(submit(engine, request, ticket, err));
}
ls_status lockstep_engine_tick(lockstep_engine *engine, int64_t *unfinished, ls_error *err) {
    LS_API_RETURN(tick(engine, unfinished, err));
}
ls_status lockstep_engine_run(lockstep_engine *engine, ls_error *err) { LS_API_RETURN(run_ticks(engine, err)); }
ls_status lockstep_engine_cancel(lockstep_engine *engine, int64_t ticket, ls_error *err) {
    LS_API_RETURN(cancel(engine, ticket, err));
}
ls_status lockstep_engine_update(lockstep_engine *engine, ls_error *err) { LS_API_RETURN(update_engine(engine, err)); }
ls_status lockstep_engine_sleep(lockstep_engine *engine, ls_error *err) { LS_API_RETURN(sleep_now(engine, err)); }

/* ---- results ---- */

_Static_assert((int)LOCKSTEP_FINISH_STOP == (int)LS_FINISH_STOP && (int)LOCKSTEP_FINISH_LENGTH == LS_FINISH_LENGTH &&
                   (int)LOCKSTEP_FINISH_CANCEL == LS_FINISH_CANCEL && (int)LOCKSTEP_FINISH_ERROR == LS_FINISH_ERROR,
               "ends are numbered alike");

ls_status lockstep_engine_take(lockstep_engine *e, lockstep_result *result, bool *taken, ls_error *err) {
    job *x;
    if (e == NULL || result == NULL || taken == NULL)
        return LS_FAIL(err, LS_ERR_ARG, "take: engine, result or taken is NULL");
    x = e->done.first;
    if (x != NULL) {
        const ls_request *r = &x->request;
        const lockstep_result own = {.ticket = x->ticket,
                                     .prompt = r->prompt_i,
                                     .sample = r->sample_i,
                                     .finish = (int32_t)r->finish,
                                     .n_tokens = r->n_completion,
                                     .tokens = r->completion,
                                     .logprob = r->logprob,
                                     .weights = r->weights,
                                     .error = r->finish == LS_FINISH_ERROR ? r->error.text : ""};
        LS_TRY(ls_api_write(result, &own, &result_struct, err));
        job_free(e->taken);
        e->taken = list_remove(&e->done, &e->done.first);
    }
    *taken = x != NULL;
    return LS_OK;
}
