/* Requests of the engine as requests to servers. Owns the pool and the list of servers. */
#include "rl/rollout.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/url.h"
#include "base/utf8.h"
#include "json/json_out.h"
#include "net/http_pool.h"
#include "record/rollout_json.h"

enum { URL_MAX = 512, KEY_MAX = 4096, REFUSAL_MAX = 300 };

/* What is asked of a server; each has a path. */
typedef enum route { INFO, UPDATE, GENERATE } route;
static const char *const paths[] = {"/server_info", "/update_weights", "/inference/v1/generate"};

typedef struct server {
    char base[URL_MAX], url[URL_MAX + 32]; /* url: of the request that runs */
    char shown[URL_MAX];                   /* base as it may be said */
    ls_rollout_server is;
} server;

struct ls_rollout {
    ls_rollout_model model;
    char numerics[64];
    const char *logprob_of;
    FILE *notes;
    server *servers; /* [n_servers] */
    int64_t n_servers;
    int64_t left[LS_ROLLOUT_SERVERS_MAX], n_left; /* which of them an offer left over */
    ls_rollout_versions versions;
    ls_http_pool *pool;
};

/* Requests that run, of one route. */
typedef struct asking {
    ls_rollout *r;
    route route;
    const char *directory; /* of UPDATE */
    uint64_t wish;
    bool is_offer;        /* may be refused */
    const int64_t *to;    /* [n] servers that are asked; NULL: all in turn */
    ls_request *requests; /* of GENERATE */
    const ls_sampling *sampling;
    bool is_recorded, is_reported;
} asking;

static int64_t number_of_server(const asking *a, int64_t i) { return a->to != NULL ? a->to[i] : i % a->r->n_servers; }
static server *server_of(const asking *a, int64_t i) { return &a->r->servers[number_of_server(a, i)]; }

/* ---- requests ---- */

static const char *url_of(void *context, int64_t i) {
    const asking *a = context;
    server *s = server_of(a, i);
    snprintf(s->url, sizeof s->url, "%s%s", s->base, paths[a->route]);
    return s->url;
}

static void write_sampling(ls_json_out *json, const asking *a, const ls_request *q) {
    const ls_sampling *s = a->sampling;
    ls_json_begin_object(json, "sampling_params");
    ls_json_int(json, "max_tokens", q->max_tokens);
    ls_json_float(json, "temperature", s->temperature);
    ls_json_int(json, "top_k", s->top_k);
    ls_json_float(json, "top_p", s->top_p > 0 ? s->top_p : 1.0f);
    ls_json_float(json, "min_p", s->min_p);
    ls_json_uint(json, "seed", s->seed);
    if (a->r->model.stop[0] != '\0') ls_json_string(json, "stop", a->r->model.stop);
    ls_json_end_object(json);
}

static void write_draw(ls_json_out *json, const asking *a, const ls_request *q) {
    ls_json_begin_array(json, "token_ids");
    for (int64_t i = 0; i < q->n_prompt; i++) ls_json_int(json, NULL, q->prompt[i]);
    ls_json_end_array(json);
    write_sampling(json, a, q);
    ls_json_begin_object(json, "lockstep");
    ls_json_int(json, "prompt", q->prompt_i);
    ls_json_int(json, "sample", q->sample_i);
    ls_json_bool(json, "distributions", a->r->model.weighs && a->is_recorded);
    ls_json_end_object(json);
}

static ls_status write_body(void *context, int64_t i, FILE *body, ls_error *err) {
    const asking *a = context;
    ls_json_out json;
    (void)err;
    ls_json_init(&json, body);
    ls_json_begin_object(&json, NULL);
    if (a->route == UPDATE) {
        ls_json_string(&json, "weight_dir", a->directory);
        ls_json_uint(&json, "weight_version", a->wish);
    } else {
        write_draw(&json, a, &a->requests[i]);
    }
    ls_json_end_object(&json);
    return LS_OK;
}

/* ---- answers ---- */

static ls_status take_draw(const asking *a, int64_t i, const char *text, int64_t bytes, ls_error *err) {
    const ls_rollout *r = a->r;
    ls_request *q = &a->requests[i];
    const ls_rollout_asked asked = {.numerics = r->numerics,
                                    .logprob_of = r->logprob_of,
                                    .seed = a->sampling->seed,
                                    .version = r->versions.of[i % r->n_servers],
                                    .prompt = q->prompt_i,
                                    .sample = q->sample_i,
                                    .max_tokens = q->max_tokens,
                                    .vocab = r->model.vocab,
                                    .is_recorded = a->is_recorded,
                                    .is_weighed = a->is_recorded && r->model.weighs};
    ls_rollout_answer answer = {
        .tokens = q->completion, .logprobs = q->logprob, .kept = q->kept, .log_mass = q->log_mass};
    LS_TRY(ls_rollout_answer_parse(&answer, &asked, text, bytes, server_of(a, i)->shown, err));
    q->n_completion = answer.n;
    q->finish = answer.is_stopped ? LS_FINISH_STOP : LS_FINISH_LENGTH;
    q->slot = answer.slot;
    q->n_hit = answer.hit;
    q->n_preempted = answer.preempted;
    return LS_OK;
}

static ls_status take_reply(void *context, int64_t i, char *text, int64_t bytes, ls_error *err) {
    const asking *a = context;
    server *s = server_of(a, i);
    switch (a->route) {
        case INFO: return ls_rollout_server_parse(&s->is, text, bytes, s->shown, err);
        case UPDATE:
            return ls_rollout_version_parse(&a->r->versions.of[number_of_server(a, i)], text, bytes, s->shown, err);
        case GENERATE: break;
    }
    return take_draw(a, i, text, bytes, err);
}

/* An offer that the server refuses for its own weights; 409 says that and nothing else. */
static bool leaves_over(const asking *a, int64_t i, int64_t code, const char *refusal) {
    ls_rollout *r = a->r;
    if (!a->is_offer || code != 409) return false;
    r->left[r->n_left++] = i;
    if (r->notes != NULL) {
        fprintf(r->notes, "%s%s: %s; it gets whole weights\n", server_of(a, i)->shown, paths[a->route], refusal);
        fflush(r->notes);
    }
    return true;
}

static ls_status fail_call(void *context, int64_t i, const char *why, const char *text, int64_t bytes, int64_t tries,
                           ls_error *err) {
    const asking *a = context;
    char refusal[REFUSAL_MAX];
    const int64_t code = ls_rollout_refusal(refusal, sizeof refusal, text, bytes);
    if (leaves_over(a, i, code, refusal)) return LS_OK;
    return LS_FAIL(err, LS_ERR_IO, "%s%s: %s%s%s, %lld %s", server_of(a, i)->shown, paths[a->route], why,
                   refusal[0] != '\0' ? ": " : "", refusal, (long long)tries, tries == 1 ? "try" : "tries");
}

static void note_retry(void *context, int64_t i, const char *why) {
    asking *a = context;
    if (a->r->notes == NULL || a->is_reported) return;
    a->is_reported = true;
    fprintf(a->r->notes, "%s%s: %s; it is asked again\n", server_of(a, i)->shown, paths[a->route], why);
    fflush(a->r->notes);
}

static ls_status ask_servers(asking *a, int64_t n, ls_error *err) {
    const ls_http_user user = {.context = a,
                               .url = url_of,
                               .write = a->route == INFO ? NULL : write_body,
                               .take = take_reply,
                               .fail = fail_call,
                               .note = note_retry};
    return ls_http_pool_run(a->r->pool, n, &user, NULL, err);
}

/* ---- opening ---- */

static ls_status add_server(ls_rollout *r, const char *text, size_t n, ls_error *err) {
    server *s = &r->servers[r->n_servers];
    char given[URL_MAX];
    while (n > 0 && text[n - 1] == '/') n--;
    if (n >= URL_MAX) return LS_FAIL(err, LS_ERR_ARG, "a URL of %zu bytes is too long", n);
    memcpy(given, text, n);
    given[n] = '\0';
    ls_url_redact(s->shown, sizeof s->shown, given);
    if (!ls_http_is_url(given))
        return LS_FAIL(err, LS_ERR_ARG, "'%.200s' does not begin with http:// or https://", s->shown);
    LS_TRY(ls_url_complete(s->base, sizeof s->base, given, "rollout_url", err));
    r->n_servers++;
    return LS_OK;
}

static ls_status list_servers(ls_rollout *r, const char *urls, ls_error *err) {
    int64_t n = 1;
    void *servers = NULL;
    for (const char *c = urls; *c != '\0'; c++) n += *c == ',';
    if (n > LS_ROLLOUT_SERVERS_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "%lld servers; %d are the most", (long long)n, LS_ROLLOUT_SERVERS_MAX);
    LS_TRY(ls_array_alloc(&servers, n, sizeof *r->servers, "rollout servers", err));
    r->servers = servers;
    for (const char *at = urls;; at++) {
        const size_t length = strcspn(at, ",");
        LS_TRY(add_server(r, at, length, err));
        at += length;
        if (*at == '\0') return LS_OK;
    }
}

/* "Authorization: Bearer KEY", or "". */
static ls_status read_key(char header[KEY_MAX + 32], const char *file, ls_error *err) {
    char *text;
    int64_t bytes;
    header[0] = '\0';
    if (file == NULL || file[0] == '\0') return LS_OK;
    LS_TRY(ls_file_read(&text, &bytes, file, KEY_MAX, err));
    text[strcspn(text, "\r\n")] = '\0';
    snprintf(header, KEY_MAX + 32, "Authorization: Bearer %s", text + ls_utf8_mark(text, bytes));
    free(text);
    return LS_OK;
}

static ls_status open_pool(ls_rollout *r, const ls_rollout_options *o, ls_error *err) {
    char key[KEY_MAX + 32];
    const char *const headers[] = {key};
    ls_http_opts opts = {.headers = headers,
                         .concurrency = o->concurrency,
                         .retries = -1,
                         .timeout_s = o->timeout_s,
                         .backoff_s = 0.1,
                         .patience_s = o->timeout_s};
    LS_TRY(read_key(key, o->key_file, err));
    opts.n_headers = key[0] != '\0';
    return ls_http_pool_open(&r->pool, &opts, err);
}

static ls_status check_server(const ls_rollout *r, const server *s, ls_error *err) {
    if (strcmp(s->is.numerics, r->numerics) != 0)
        return LS_FAIL(err, LS_ERR_ARG,
                       "%s: the server computes in %s, the trainer in %s: start it with the trainer's "
                       "--dtype and --profile",
                       s->shown, s->is.numerics, r->numerics);
    if (strcmp(s->is.logprob_of, r->logprob_of) != 0)
        return LS_FAIL(err, LS_ERR_ARG,
                       "%s: the server records %s log-probabilities, this run learns from %s ones: "
                       "start it with --logprobs %s",
                       s->shown, s->is.logprob_of, r->logprob_of, r->logprob_of);
    if (s->is.length_max < r->model.length)
        return LS_FAIL(err, LS_ERR_ARG,
                       "%s: the server takes %lld tokens, episodes have %lld: start it with "
                       "--max-length %lld",
                       s->shown, (long long)s->is.length_max, (long long)r->model.length, (long long)r->model.length);
    return LS_OK;
}

static ls_status open_all(ls_rollout *r, const ls_rollout_options *o, ls_error *err) {
    asking a = {.r = r, .route = INFO};
    LS_TRY(list_servers(r, o->urls, err));
    LS_TRY(open_pool(r, o, err));
    LS_TRY(ask_servers(&a, r->n_servers, err));
    for (int64_t i = 0; i < r->n_servers; i++) LS_TRY(check_server(r, &r->servers[i], err));
    return LS_OK;
}

ls_status ls_rollout_open(ls_rollout **out, const ls_rollout_options *o, const ls_rollout_model *model, ls_error *err) {
    ls_rollout *r = calloc(1, sizeof *r);
    ls_status status;
    *out = NULL;
    if (r == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "rollout servers");
    r->model = *model;
    r->notes = o->notes;
    r->logprob_of = model->logprob_of == LS_LOGPROB_RAW ? "raw" : "processed";
    snprintf(r->numerics, sizeof r->numerics, "%s", model->numerics);
    if ((status = open_all(r, o, err)) == LS_OK)
        *out = r;
    else
        ls_rollout_close(r);
    return status;
}

void ls_rollout_close(ls_rollout *r) {
    if (r == NULL) return;
    ls_http_pool_close(r->pool);
    free(r->servers);
    free(r);
}

/* ---- runs ---- */

ls_status ls_rollout_publish(ls_rollout *r, const char *directory, uint64_t wish, ls_error *err) {
    asking a = {.r = r, .route = UPDATE, .directory = directory, .wish = wish};
    const int64_t n = r->n_left;
    if (n > 0) a.to = r->left;
    r->n_left = 0;
    return ask_servers(&a, n > 0 ? n : r->n_servers, err);
}

ls_status ls_rollout_offer(ls_rollout *r, const char *directory, uint64_t wish, int64_t *n_left, ls_error *err) {
    asking a = {.r = r, .route = UPDATE, .directory = directory, .wish = wish, .is_offer = true};
    r->n_left = 0;
    LS_TRY(ask_servers(&a, r->n_servers, err));
    *n_left = r->n_left;
    return LS_OK;
}

const ls_rollout_versions *ls_rollout_versions_of(const ls_rollout *r) { return &r->versions; }
void ls_rollout_versions_set(ls_rollout *r, const ls_rollout_versions *versions) { r->versions = *versions; }

ls_status ls_rollout_draw(ls_rollout *r, ls_request *requests, int64_t n, const ls_sampling *sampling, bool is_recorded,
                          ls_error *err) {
    asking a = {.r = r, .route = GENERATE, .requests = requests, .sampling = sampling, .is_recorded = is_recorded};
    return ask_servers(&a, n, err);
}
