/* The paths, dialect by dialect, and what is answered at once. A dialect is rows here: what they ask for is one kind of
 * ls_ask, or one thing that operators do. */
#include <string.h>

#include "json/json_out.h"
#include "serve/serve_state.h"

static int health(ls_server *s, const ls_call *c, FILE *out, ls_error *err) {
    ls_work_view view;
    ls_json_out json;
    (void)c;
    ls_work_look(s->work, &view);
    if (view.failed) {
        LS_FAIL(err, LS_ERR_DEVICE, "%s", view.failure.text);
        return 503;
    }
    ls_json_init(&json, out);
    ls_json_begin_object(&json, NULL);
    ls_json_string(&json, "status", "ok");
    ls_json_end_object(&json);
    return 200;
}

static int models(ls_server *s, const ls_call *c, FILE *out, ls_error *err) {
    ls_json_out json;
    (void)c, (void)err;
    ls_json_init(&json, out);
    ls_json_begin_object(&json, NULL);
    ls_json_string(&json, "object", "list");
    ls_json_begin_array(&json, "data");
    ls_json_begin_object(&json, NULL);
    ls_json_string(&json, "id", s->about.model);
    ls_json_string(&json, "object", "model");
    ls_json_int(&json, "created", s->started);
    ls_json_string(&json, "owned_by", "lockstep");
    ls_json_string(&json, "root", s->opts.model_dir);
    ls_json_null(&json, "parent");
    ls_json_int(&json, "max_model_len", s->limits.length_max);
    ls_json_end_object(&json);
    ls_json_end_array(&json);
    ls_json_end_object(&json);
    return 200;
}

static int one_value(FILE *out, const char *key, int64_t value) {
    ls_json_out json;
    ls_json_init(&json, out);
    ls_json_begin_object(&json, NULL);
    ls_json_int(&json, key, value);
    ls_json_end_object(&json);
    return 200;
}

static int world_size(ls_server *s, const ls_call *c, FILE *out, ls_error *err) {
    (void)s, (void)c, (void)err;
    return one_value(out, "world_size", 1);
}

static int is_paused(ls_server *s, const ls_call *c, FILE *out, ls_error *err) {
    ls_json_out json;
    (void)c, (void)err;
    ls_json_init(&json, out);
    ls_json_begin_object(&json, NULL);
    ls_json_bool(&json, "is_paused", ls_work_is_paused(s->work));
    ls_json_end_object(&json);
    return 200;
}

static int version(ls_server *s, const ls_call *c, FILE *out, ls_error *err) {
    ls_json_out json;
    (void)s, (void)c, (void)err;
    ls_json_init(&json, out);
    ls_json_begin_object(&json, NULL);
    ls_json_string(&json, "version", LS_VERSION);
    ls_json_string(&json, "server", "lockstep");
    ls_json_end_object(&json);
    return 200;
}

static int weight_version(ls_server *s, const ls_call *c, FILE *out, ls_error *err) {
    ls_work_view view;
    ls_json_out json;
    char text[24];
    (void)c, (void)err;
    ls_work_look(s->work, &view);
    snprintf(text, sizeof text, "%llu", (unsigned long long)view.version);
    ls_json_init(&json, out);
    ls_json_begin_object(&json, NULL);
    ls_json_string(&json, "weight_version", text);
    ls_json_end_object(&json);
    return 200;
}

static int loads(ls_server *s, const ls_call *c, FILE *out, ls_error *err) {
    ls_work_view view;
    ls_json_out json;
    (void)c, (void)err;
    ls_work_look(s->work, &view);
    ls_json_init(&json, out);
    ls_json_begin_object(&json, NULL);
    ls_json_begin_array(&json, "loads");
    ls_json_begin_object(&json, NULL);
    ls_json_int(&json, "dp_rank", 0);
    ls_json_int(&json, "num_running_reqs", view.running);
    ls_json_int(&json, "num_waiting_reqs", view.waiting);
    ls_json_int(&json, "num_total_reqs", view.running + view.waiting);
    ls_json_end_object(&json);
    ls_json_end_array(&json);
    ls_json_end_object(&json);
    return 200;
}

/* What clients of both families look for before they begin. */
static int server_info(ls_server *s, const ls_call *c, FILE *out, ls_error *err) {
    ls_work_view view;
    ls_json_out json;
    char text[24];
    (void)c, (void)err;
    ls_work_look(s->work, &view);
    snprintf(text, sizeof text, "%llu", (unsigned long long)view.version);
    ls_json_init(&json, out);
    ls_json_begin_object(&json, NULL);
    ls_json_string(&json, "version", LS_VERSION);
    ls_json_string(&json, "model_path", s->opts.model_dir);
    ls_json_string(&json, "served_model_name", s->about.model);
    ls_json_string(&json, "numerics", s->numerics);
    ls_json_string(&json, "weight_version", text);
    ls_json_bool(&json, "enable_memory_saver", false);
    ls_json_int(&json, "tp_size", 1);
    ls_json_int(&json, "dp_size", 1);
    ls_json_int(&json, "max_total_num_tokens", s->limits.length_max);
    ls_json_begin_object(&json, "vllm_config");
    if (ls_nccl_check(s->load_device, NULL) == LS_OK) {
        ls_json_begin_object(&json, "weight_transfer_config");
        ls_json_string(&json, "backend", "nccl");
        ls_json_end_object(&json);
    } else {
        ls_json_null(&json, "weight_transfer_config");
    }
    ls_json_begin_object(&json, "model_config");
    ls_json_string(&json, "model", s->about.model);
    ls_json_string(&json, "dtype", s->engine.dtype == LS_BF16 ? "torch.bfloat16" : "torch.float32");
    ls_json_string(&json, "logprobs_mode",
                   s->about.logprob_of == LS_LOGPROB_RAW ? "raw_logprobs" : "processed_logprobs");
    ls_json_int(&json, "max_model_len", s->limits.length_max);
    ls_json_end_object(&json);
    ls_json_end_object(&json);
    ls_json_end_object(&json);
    return 200;
}

#define ASK(path, kind) \
    { path, true, false, LS_ROUTE_ASK, kind, NULL, false, NULL }
#define NOW(path, handler, open) \
    { path, false, true, LS_ROUTE_NOW, (ls_ask_kind)0, handler, open, NULL }
#define TEXT(path, handler) \
    { path, true, false, LS_ROUTE_TEXT, (ls_ask_kind)0, handler, false, NULL }
#define DO(path, handler) \
    { path, true, false, LS_ROUTE_CONTROL, (ls_ask_kind)0, handler, false, NULL }
#define DO_EITHER(path, handler) \
    { path, true, true, LS_ROUTE_CONTROL, (ls_ask_kind)0, handler, false, NULL }
#define STEER(path, handler) \
    { path, true, false, LS_ROUTE_STEER, (ls_ask_kind)0, handler, false, NULL }
#define STEER_EITHER(path, handler) \
    { path, true, true, LS_ROUTE_STEER, (ls_ask_kind)0, handler, false, NULL }
#define SEE(path, handler) \
    { path, false, true, LS_ROUTE_CONTROL, (ls_ask_kind)0, handler, false, NULL }

const ls_route ls_routes[] = {
    /* OpenAI */
    NOW("/health", health, true),
    NOW("/liveness", health, true),
    NOW("/ping", health, true),
    NOW("/v1/models", models, false),
    ASK("/v1/completions", LS_ASK_COMPLETION),
    ASK("/v1/chat/completions", LS_ASK_CHAT),
    {"/metrics", false, true, LS_ROUTE_NOW, (ls_ask_kind)0, ls_metrics, false, "text/plain; version=0.0.4"},
    NOW("/openapi.json", ls_openapi, false),
    NOW("/version", version, false),
    TEXT("/tokenize", ls_text_tokenize), /* vLLM's form */
    TEXT("/detokenize", ls_text_detokenize),
    /* Lockstep */
    ASK("/v1/score", LS_ASK_SCORE),
    DO_EITHER("/lockstep/check", ls_control_check),
    /* vLLM: tokens, weights, pauses */
    ASK("/inference/v1/generate", LS_ASK_TOKENS),
    STEER("/pause", ls_control_pause),
    STEER("/resume", ls_control_resume),
    NOW("/is_paused", is_paused, false),
    STEER("/abort_requests", ls_control_abort),
    STEER("/reset_prefix_cache", ls_control_flush),
    DO("/start_weight_update", ls_control_start_update),
    DO("/update_weights", ls_control_update), /* and prime-rl */
    DO("/finish_weight_update", ls_control_finish_update),
    DO("/update_weight_version", ls_control_name_version),
    SEE("/weight_info", ls_control_weight_info),
    DO("/weight_checker", ls_control_weight_checker),
    NOW("/get_world_size", world_size, false),
    DO("/init_weight_transfer_engine", ls_control_init_transfer),
    DO("/init_broadcaster", ls_control_unbuilt),
    DO("/load_lora_adapter", ls_control_unbuilt),
    DO("/collective_rpc", ls_control_unbuilt),
    DO("/sleep", ls_control_unbuilt),
    DO("/wake_up", ls_control_unbuilt),
    /* SGLang */
    ASK("/generate", LS_ASK_SGLANG),
    NOW("/health_generate", health, true),
    NOW("/server_info", server_info, false),
    NOW("/get_server_info", server_info, false),
    NOW("/get_weight_version", weight_version, false),
    NOW("/v1/loads", loads, false),
    STEER_EITHER("/flush_cache", ls_control_flush),
    STEER("/pause_generation", ls_control_pause_sglang),
    STEER("/continue_generation", ls_control_resume),
    STEER("/abort_request", ls_control_abort_sglang),
    DO("/update_weights_from_disk", ls_control_update_sglang),
    DO("/weights_checker", ls_control_weight_checker),
    DO("/update_weights_from_distributed", ls_control_unbuilt),
    DO("/update_weights_from_tensor", ls_control_unbuilt),
    DO("/init_weights_update_group", ls_control_unbuilt),
    DO("/release_memory_occupation", ls_control_unbuilt),
    DO("/resume_memory_occupation", ls_control_unbuilt),
};
const int64_t ls_n_routes = sizeof ls_routes / sizeof ls_routes[0];
