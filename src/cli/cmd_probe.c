/* lockstep probe: one server against itself. */
#define _POSIX_C_SOURCE 200809L
#include <argp.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/url.h"
#include "base/utf8.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/sweep_reports.h"
#include "diagnose/rounding/probe_plan.h"
#include "diagnose/trial/probe_server.h"
#include "load/stack_config.h"
#include "op/backend.h"

enum {
    OPT_DIALECT = 256,
    OPT_MODEL,
    OPT_VOCAB,
    OPT_KEY_FILE,
    OPT_TEMPERATURE,
    OPT_SEED,
    OPT_MAX_REQUESTS,
    OPT_MAX_TOKENS,
    OPT_SECONDS,
    OPT_TIMEOUT,
    OPT_DRY_RUN,
    OPT_HTML,
    OPT_REPRO,
    OPT_OUT,
    OPT_JSON
};

typedef struct probe_options {
    const char *url, *model, *key_file;
    ls_report_paths paths;
    ls_dialect dialect;
    int64_t vocab, max_requests, max_tokens, seconds, timeout;
    double temperature; /* 0: found out */
    uint64_t seed;
    bool dry_run;
    char shown[512]; /* url as it may be said */
} probe_options;

typedef struct parse_context {
    probe_options *o;
    ls_error *err;
    ls_status status;
} parse_context;

static const struct argp_option options_known[] = {
    {"dialect", OPT_DIALECT, "NAME", 0, "How to ask: vllm, sglang, llama.cpp; the server is asked when absent", 0},
    {"model", OPT_MODEL, "DIR", 0,
     "A directory with the model's config.json, and its weights where the server is to be held against them", 0},
    {"vocab", OPT_VOCAB, "N", 0, "Prompts are made of ids below N; of the server's own texts when not known", 0},
    {"api-key-file", OPT_KEY_FILE, "FILE", 0, "Its first line is sent as Authorization: Bearer", 0},
    {"temperature", OPT_TEMPERATURE, "X", 0, "Of all trials that do not move it; found out when absent", 0},
    {"seed", OPT_SEED, "N", 0, "Seed of texts and draws (0)", 0},
    {"max-requests", OPT_MAX_REQUESTS, "N", 0, "Send no more (4000)", 0},
    {"max-tokens", OPT_MAX_TOKENS, "N", 0, "Of all prompts and completions together (400000)", 0},
    {"seconds", OPT_SECONDS, "S", 0, "Begin nothing new after so many seconds; 0: no limit (300)", 0},
    {"timeout", OPT_TIMEOUT, "S", 0, "Seconds after which a request is given up (60)", 0},
    {"dry-run", OPT_DRY_RUN, NULL, 0, "Print the plan and ask nothing but who the server is", 0},
    {"html", OPT_HTML, "FILE", 0, "Write the report as one HTML page", 0},
    {"repro", OPT_REPRO, "FILE", 0, "Write the smallest requests that still fail as command lines", 0},
    {"out", OPT_OUT, "FILE", 0, "Where the report goes; standard output when absent", 0},
    {"json", OPT_JSON, NULL, 0, "Write one JSON object instead of the table", 0},
    {0},
};

static ls_status parse_dialect(ls_dialect *out, const char *text, ls_error *err) {
    for (*out = 0; *out < LS_DIALECTS; (*out)++)
        if (strcmp(text, ls_dialect_name(*out)) == 0) return LS_OK;
    return LS_FAIL(err, LS_ERR_ARG, "--dialect: '%s' is not vllm, sglang or llama.cpp", text);
}

static ls_status parse_probe_option(probe_options *o, int key, char *text, ls_error *err) {
    switch (key) {
        case OPT_DIALECT: return parse_dialect(&o->dialect, text, err);
        case OPT_MODEL: o->model = text; break;
        case OPT_VOCAB: return ls_cli_int(&o->vocab, "--vocab", text, 16, INT32_MAX, err);
        case OPT_KEY_FILE: o->key_file = text; break;
        case OPT_TEMPERATURE: return ls_cli_float(&o->temperature, "--temperature", text, 0.1, 10.0, err);
        case OPT_SEED: return ls_cli_seed(&o->seed, "--seed", text, err);
        case OPT_MAX_REQUESTS: return ls_cli_int(&o->max_requests, "--max-requests", text, 1, INT32_MAX, err);
        case OPT_MAX_TOKENS: return ls_cli_int(&o->max_tokens, "--max-tokens", text, 1, (int64_t)1 << 40, err);
        case OPT_SECONDS: return ls_cli_int(&o->seconds, "--seconds", text, 0, 1 << 20, err);
        case OPT_TIMEOUT: return ls_cli_int(&o->timeout, "--timeout", text, 1, 1 << 20, err);
        case OPT_DRY_RUN: o->dry_run = true; break;
        case OPT_HTML: o->paths.html = text; break;
        case OPT_REPRO: o->paths.repro = text; break;
        case OPT_OUT: o->paths.out = text; break;
        case OPT_JSON: o->paths.json = true; break;
        default: break;
    }
    return LS_OK;
}

static error_t on_probe_option(int key, char *text, struct argp_state *state) {
    parse_context *context = state->input;
    if (key == ARGP_KEY_ARG) {
        if (context->o->url != NULL) ls_cli_wrong(state, "unexpected argument '%s'", text);
        context->o->url = text;
        ls_url_redact(context->o->shown, sizeof context->o->shown, text);
        return 0;
    }
    if (key == ARGP_KEY_NO_ARGS) ls_cli_wrong(state, "the server's address is missing: http://HOST:PORT");
    if (key < OPT_DIALECT || key > OPT_JSON) return ARGP_ERR_UNKNOWN;
    if (context->status == LS_OK) context->status = parse_probe_option(context->o, key, text, context->err);
    return 0;
}

static const struct argp parser = {
    options_known,
    on_probe_option,
    "URL",
    "Hold a server against itself: what it records while it decodes, against its values of the same tokens as a "
    "prompt. "
    "Moves what a client can move, measures effects against the server's own rounding, and names the cause whose "
    "pattern "
    "fits.\v"
    "Takes vLLM, SGLang, llama.cpp's server and lockstep serve. A plan of requests and tokens is printed first, on "
    "standard error. The server's prefix cache is emptied where it lets a client do that; nothing else of it is "
    "changed.\n\n"
    "Exit status: 0 if nothing stands out of rounding, 3 if something does, 2 if the probe cannot be done or time was "
    "left for less than half of it, 1 for wrong usage.",
    NULL,
    NULL,
    NULL,
};

static ls_status parse_options(probe_options *o, int argc, char **argv, ls_error *err) {
    parse_context context = {o, err, LS_OK};
    *o = (probe_options){
        .dialect = LS_DIALECTS, .max_requests = 4000, .max_tokens = 400000, .seconds = 300, .timeout = 60};
    ls_cli_parse(&parser, argc, argv, &context);
    return context.status;
}

/* The first line of a file, NULL without one. Released with free(). */
static ls_status read_key(char **out, const char *path, ls_error *err) {
    int64_t n;
    *out = NULL;
    if (path == NULL) return LS_OK;
    LS_TRY(ls_file_read(out, &n, path, 4096, err));
    memmove(*out, *out + ls_utf8_mark(*out, n), (size_t)(n - ls_utf8_mark(*out, n)) + 1);
    (*out)[strcspn(*out, "\r\n")] = '\0';
    return LS_OK;
}

static ls_status set_up(ls_probe_server *server, const probe_options *o, const ls_limits *limits,
                        ls_model_config *config, ls_error *err) {
    char *key = NULL;
    ls_status status;
    config->bos = config->pad = -1;
    if (o->model != NULL) LS_TRY(ls_stack_config_open(config, o->model, err));
    if (o->vocab > 0) config->vocab = (int32_t)o->vocab;
    LS_TRY_DONE(read_key(&key, o->key_file, err));
    server->url = o->shown; /* in what is said; requests go to the whole */
    server->max_requests = o->max_requests;
    server->max_tokens = o->max_tokens;
    server->limits = *limits;
    LS_TRY_DONE(ls_http_open(&server->http, o->url, key, err));
    LS_TRY_DONE(ls_probe_server_ask(server, o->dialect, config, err));
done:
    free(key);
    return status;
}

/* Our own forward of the model in --model, where it has weights and is one that we know; else it is said why there is
 * none, and bounds are those of the type. */
static ls_status open_checkpoint(ls_sweep_trainer **out, ls_device **device, const probe_options *o, ls_error *err) {
    ls_error why;
    *out = NULL;
    LS_TRY(ls_device_open_cpu(device, 1, ls_isa_best(), err));
    if (ls_sweep_trainer_create(out, o->model, *device, &why) != LS_OK)
        fprintf(stderr, "no values of the checkpoint beside the server's: %s\n", why.text);
    return LS_OK;
}

static ls_status run_probe(ls_sweep *sweep, const probe_options *o, ls_door *door, ls_probe_server *server,
                           const ls_model_config *config, ls_sweep_trainer *checkpoint, ls_error *err) {
    const ls_subject subject = ls_subject_server(server);
    ls_sweep_opts opts = {.model = o->shown,
                          .samples = 1,
                          .dtype = LS_F32,
                          .seed = o->seed,
                          .threads = 1,
                          .ids = server->n_pool > 0 ? server->pool : NULL,
                          .n_ids = server->n_pool,
                          .text_ids = server->text_ids,
                          .text_n = server->text_n,
                          .n_texts = server->text_n[0] > 0 ? LS_SERVER_TEXTS : 0,
                          .length_max = server->length_max,
                          .temperature = o->temperature,
                          .checkpoint = checkpoint,
                          .progress = ls_show_trial};
    ls_status status;
    door->subject = &subject;
    LS_TRY_DONE(ls_probe_plan(stderr, &opts, config, door, server, err));
    if (o->dry_run) goto done;
    LS_TRY_DONE(ls_sweep_trainer_create_by(&door->trainer, ls_scorer_server(server), err));
    if (opts.temperature <= 0.0) LS_TRY_DONE(ls_probe_temperature(&opts, config, door, err));
    LS_TRY_DONE(ls_sweep_run_server(sweep, &opts, config, door, err));
    ls_progress_end();
    sweep->opts.ids = sweep->opts.text_ids = NULL; /* they end with the server */
    fprintf(stderr, "sent: %" PRId64 " requests, %" PRId64 " tokens\n", server->n_requests, server->n_tokens);
done:
    ls_sweep_trainer_free(door->trainer);
    return status;
}

int ls_cmd_probe(int argc, char **argv) {
    probe_options o;
    ls_probe_server *server = calloc(1, sizeof *server);
    ls_sweep *sweep = calloc(1, sizeof *sweep);
    ls_model_config config = {0};
    ls_reports reports = {0};
    ls_door door;
    ls_device *device = NULL;
    ls_sweep_trainer *checkpoint = NULL;
    bool different = false;
    ls_error err;
    ls_status status;
    if (sweep == NULL || server == NULL) {
        status = LS_FAIL(&err, LS_ERR_NOMEM, "probe");
        goto done;
    }
    LS_TRY_DONE(parse_options(&o, argc, argv, &err));
    LS_TRY_DONE(ls_reports_open(&reports, &o.paths, &err));
    ls_door_open(&door, (double)o.seconds, (double)o.timeout);
    ls_door_limit(&door);
    LS_TRY_DONE(set_up(server, &o, &door.limits, &config, &err));
    if (o.model != NULL && !o.dry_run) LS_TRY_DONE(open_checkpoint(&checkpoint, &device, &o, &err));
    LS_TRY_DONE(run_probe(sweep, &o, &door, server, &config, checkpoint, &err));
    if (o.dry_run) goto done;
    different = sweep->different;
    LS_TRY_DONE(ls_reports_write(&reports, &o.paths, sweep, &err));
    LS_TRY_DONE(ls_sweep_check_complete(sweep, &err));
done:
    ls_reports_abandon(&reports);
    if (sweep != NULL) ls_sweep_deinit(sweep);
    free(sweep);
    ls_sweep_trainer_free(checkpoint);
    ls_device_close(device);
    if (server != NULL) ls_http_close(server->http);
    free(server);
    if (status != LS_OK) return ls_cli_fail(&err);
    return different ? LS_EXIT_DIFFERENT : LS_EXIT_OK;
}
