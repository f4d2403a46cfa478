/* The server's beginning and end. */
#define _GNU_SOURCE
#include "serve/serve.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/file.h"
#include "base/mem.h"
#include "load/adapter_chain.h"
#include "serve/serve_state.h"

void ls_serve_opts_init(ls_serve_opts *o) {
    *o = (ls_serve_opts){.host = "127.0.0.1",
                         .port = 8000,
                         .queue = 4096,
                         .connections = 16384,
                         .body_bytes = 16 << 20,
                         .idle_seconds = 60,
                         .body_seconds = 60,
                         .drain_seconds = 30,
                         .reply_seconds = 600,
                         .stream_ms = 20,
                         .http_threads = 1,
                         .crew = 2,
                         .request_bytes = 128 << 20,
                         .key_bytes = 256 << 20,
                         .held_bytes = 512 << 20,
                         .tool_calls = "auto"};
}

/* Text is optional: what there is of it is opened, and what is of a kind that is not built is told. */
static ls_status open_text(ls_server *s, ls_error *err) {
    char path[LS_SERVE_PATH_MAX + 32], *home = NULL;
    ls_error why;
    ls_status status;
    LS_TRY(ls_adapter_home(&home, s->opts.model_dir, err));
    snprintf(path, sizeof path, "%s/tokenizer.json", home);
    free(home);
    if (!ls_file_exists(path)) return LS_OK;
    status = ls_tokenizer_open(&s->tokenizer, s->opts.model_dir, &why);
    if (status == LS_ERR_UNSUPPORTED) {
        fprintf(stderr, "lockstep: token ids only: %s\n", why.text);
        return LS_OK;
    }
    if (status != LS_OK) {
        if (err != NULL) *err = why;
        return status;
    }
    if (ls_stop_tokens_create(&s->stop_tokens, s->tokenizer, &s->stop_error) == LS_ERR_NOMEM) {
        if (err != NULL) *err = s->stop_error;
        return LS_ERR_NOMEM;
    }
    if (ls_chat_open(&s->chat, s->opts.model_dir, NULL, &why) != LS_OK)
        fprintf(stderr, "lockstep: no conversations: %s\n", why.text);
    return LS_OK;
}

/* --tool-call-parser, which was checked when it was read; auto is what the chat template writes. */
static ls_call_format calls_of(const ls_server *s) {
    ls_call_format format = LS_CALLS_NONE;
    if (s->chat == NULL) return LS_CALLS_NONE;
    if (strcmp(s->opts.tool_calls, "auto") == 0) return ls_chat_calls(s->chat);
    (void)ls_call_format_parse(&format, s->opts.tool_calls);
    return format;
}

static ls_status start_work(ls_server *s, const ls_serve_engine *engine, uint64_t version, ls_error *err) {
    const ls_model_config *c = &engine->model->config;
    ls_work_opts work = {.model = engine->model,
                         .device = engine->device,
                         .engine = engine->opts,
                         .shop = {.logprob_of = engine->opts.logprob_of,
                                  .tokenizer = s->tokenizer,
                                  .stop_tokens = s->stop_tokens,
                                  .stop_error = s->stop_error,
                                  .n_eos = c->n_eos,
                                  .quota = &s->quota,
                                  .seed = s->opts.seed},
                         .queue_max = s->opts.queue,
                         .stream_seconds = (double)s->opts.stream_ms * 1e-3,
                         .version = version,
                         .one_client = s->n_keys == 0};
    work.engine.weights = version;
    work.engine.penalizes = engine->opts.logprob_of == LS_LOGPROB_RAW;
    work.engine.weighs = true;
    work.engine.weighs_model = engine->opts.logprob_of != LS_LOGPROB_RAW;
    memcpy(work.shop.eos, c->eos, sizeof work.shop.eos);
    if (!s->opts.has_seed && getrandom(&work.shop.seed, sizeof work.shop.seed, 0) != sizeof work.shop.seed)
        return LS_FAIL(err, LS_ERR_IO, "the system gives no random numbers");
    return ls_work_create(&s->work, &work, err);
}

static void server_free(ls_server *s) {
    if (s == NULL) return;
    ls_http_stop(s->http);
    ls_work_free(s->work);
    ls_transfer_shards_free(s->shards);
    ls_transfer_shards_free(s->served_shards);
    ls_transfer_close(s->transfer);
    ls_opened_free(&s->staged);
    ls_model_close(s->model);
    ls_remade_free(s->remade);
    ls_chat_free(s->chat);
    ls_stop_tokens_free(s->stop_tokens);
    ls_tokenizer_free(s->tokenizer);
    ls_keys_free(s);
    ls_quota_deinit(&s->quota);
    pthread_mutex_destroy(&s->count_lock);
    free(s);
}

ls_status ls_server_start(ls_server **out, const ls_serve_opts *opts, const ls_serve_engine *engine, ls_error *err) {
    ls_server *s = calloc(1, sizeof *s);
    uint64_t version;
    ls_status status;
    *out = NULL;
    if (s == NULL) {
        ls_model_close(engine->model);
        return LS_FAIL(err, LS_ERR_NOMEM, "server");
    }
    s->opts = *opts;
    s->model = engine->model;
    s->load_device = engine->load_device;
    s->engine = engine->opts;
    s->routes = ls_routes;
    s->n_routes = ls_n_routes;
    s->anonymous.least_priority = opts->least_priority;
    s->asks_key = opts->api_key_file != NULL;
    s->asks_admin = opts->admin_key_file != NULL;
    pthread_mutex_init(&s->count_lock, NULL);
    ls_quota_init(&s->quota, opts->request_bytes, opts->key_bytes, opts->held_bytes);
    s->started = (int64_t)time(NULL);
    s->n_parameters = engine->model->n_parameters;
    LS_TRY_DONE(ls_weights_begin(s, &version, err));
    if (opts->api_key_file != NULL) LS_TRY_DONE(ls_keys_read(s, opts->api_key_file, false, err));
    if (opts->admin_key_file != NULL) LS_TRY_DONE(ls_keys_read(s, opts->admin_key_file, true, err));
    LS_TRY_DONE(open_text(s, err));
    ls_numerics_text(s->numerics, engine->model->profile, engine->opts.dtype);
    s->about = (ls_reply_about){.model = opts->name != NULL ? opts->name : opts->model_dir,
                                .numerics = s->numerics,
                                .logprob_of = engine->opts.logprob_of,
                                .tokenizer = s->tokenizer};
    s->limits = (ls_ask_limits){.model = s->about.model,
                                .vocab = engine->model->config.vocab,
                                .length_max = engine->opts.length_max,
                                .tokenizer = s->tokenizer,
                                .chat = s->chat,
                                .calls = calls_of(s),
                                .processed = engine->opts.logprob_of != LS_LOGPROB_RAW};
    LS_TRY_DONE(start_work(s, engine, version, err));
    LS_TRY_DONE(ls_http_start(&s->http, s, err));
    *out = s;
    s = NULL;
done:
    server_free(s);
    return status;
}

const char *ls_server_url(const ls_server *s) { return ls_http_url(s->http); }

void ls_server_tell(const ls_server *s, FILE *out) {
    ls_memory_part parts[LS_MEMORY_PARTS_MAX];
    ls_work_view view;
    int64_t n, total = 0;
    ls_work_look(s->work, &view);
    n = ls_engine_plan_parts(&view.plan, parts);
    fprintf(out,
            "lockstep: ready: %s, %lld parameters, %s, tool calls %s, %lld tokens of prompt and completion, %lld "
            "completions at a time\n",
            s->about.model, (long long)s->n_parameters, s->numerics, ls_call_format_name(s->limits.calls),
            (long long)s->limits.length_max, (long long)s->engine.levers.batch);
    fprintf(out, "lockstep: memory:");
    for (int64_t i = 0; i < n; i++) {
        fprintf(out, " %s %.1f MiB%s%s", parts[i].name, (double)parts[i].bytes / 1048576,
                parts[i].on_host ? " (of the host)" : "", i + 1 < n ? "," : ";");
        if (!parts[i].on_host) total += parts[i].bytes;
    }
    fprintf(out, " %.1f MiB in all", (double)total / 1048576);
    if (view.plan.device_bytes > 0) fprintf(out, " of %.1f", (double)view.plan.device_bytes / 1048576);
    fprintf(out, "\n");
}

void ls_server_stop(ls_server *s) { server_free(s); }
