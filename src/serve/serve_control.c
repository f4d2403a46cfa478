/* What operators and trainers do to a server. Pauses, aborts and flushes never wait for each other nor for anything
 * else here: what they wait for is in ls_call.wait. All else is done one at a time, on the control thread. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "json/json_node.h"
#include "json/json_out.h"
#include "model/score.h"
#include "num/round.h"
#include "serve/serve_state.h"

/* ---- small replies ---- */

static int ok(FILE *out, const char *message) {
    ls_json_out json;
    ls_json_init(&json, out);
    ls_json_begin_object(&json, NULL);
    ls_json_bool(&json, "success", true);
    ls_json_string(&json, "status", "ok");
    ls_json_string(&json, "message", message);
    ls_json_end_object(&json);
    return 200;
}

static int refuse_control(ls_error *err, ls_status status, const char *message) {
    LS_FAIL(err, status, "%s", message);
    return 400; /* clients repeat what is answered 5xx */
}

int ls_control_unbuilt(ls_server *s, const ls_call *c, FILE *out, ls_error *err) {
    (void)s, (void)c, (void)out;
    return refuse_control(err, LS_ERR_UNSUPPORTED,
                          "this is not supported: weights come from disk (/update_weights with weight_dir, "
                          "/update_weights_from_disk); there are no adapters, and memory stays");
}

/* The body as an object; an empty one has no members. */
static ls_status open_body(ls_json_doc **doc, ls_node *root, const ls_call *c, ls_error *err) {
    const bool is_empty = c->body_bytes == 0;
    LS_TRY(ls_json_doc_open(doc, is_empty ? "{}" : c->body, is_empty ? 2 : c->body_bytes, "request", err));
    *root = ls_json_root(*doc);
    return LS_OK;
}

/* A text member into room for it; absent and null leave it empty. */
static ls_status text_member(const ls_node *root, const char *key, char *out, size_t room, ls_error *err) {
    ls_node node;
    const char *text;
    out[0] = '\0';
    if (!ls_node_get_some(root, key, &node)) return LS_OK;
    LS_TRY(ls_node_string(&node, &text, err));
    if (strlen(text) >= room) return ls_node_fail(&node, LS_ERR_CAPACITY, err, "the text is too long");
    strcpy(out, text);
    return LS_OK;
}

/* A version: a number, or text. */
static ls_status version_member(const ls_node *root, const char *key, char *out, size_t room, ls_error *err) {
    ls_node node;
    int64_t number;
    out[0] = '\0';
    if (!ls_node_get_some(root, key, &node)) return LS_OK;
    if (ls_node_kind_of(&node) != LS_NODE_INT) return text_member(root, key, out, room, err);
    LS_TRY(ls_node_int(&node, 0, INT64_MAX, &number, err));
    snprintf(out, room, "%lld", (long long)number);
    return LS_OK;
}

/* What the trainer's name says of the version's number; 0: nothing. */
static uint64_t number_of(const char *text) {
    char *end;
    const unsigned long long value = strtoull(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && *end == '\0' && value < UINT64_C(1) << 62 ? value : 0;
}

/* ---- pauses, requests, caches ---- */

static int pause_as(ls_server *s, const ls_call *c, const char *mode, bool flush, FILE *out, ls_error *err) {
    ls_pause how;
    if (strcmp(mode, "abort") == 0)
        how = LS_PAUSE_ABORT;
    else if (strcmp(mode, "wait") == 0)
        how = LS_PAUSE_WAIT;
    else if (strcmp(mode, "keep") == 0 || strcmp(mode, "in_place") == 0 || strcmp(mode, "retract") == 0)
        how = LS_PAUSE_KEEP;
    else
        return refuse_control(err, LS_ERR_ARG, "mode: abort, wait or keep is required");
    ls_work_pause(s->work, how, flush, c->wait);
    return ok(out, "paused");
}

int ls_control_pause(ls_server *s, const ls_call *c, FILE *out, ls_error *err) {
    const bool flush = c->clear_cache == NULL || strcasecmp(c->clear_cache, "false") != 0;
    return pause_as(s, c, c->mode != NULL ? c->mode : "abort", flush, out, err);
}

int ls_control_pause_sglang(ls_server *s, const ls_call *c, FILE *out, ls_error *err) {
    ls_json_doc *doc = NULL;
    ls_node root;
    char mode[16] = "";
    ls_status status = open_body(&doc, &root, c, err);
    if (status == LS_OK) status = text_member(&root, "mode", mode, sizeof mode, err);
    ls_json_doc_free(doc);
    return status == LS_OK ? pause_as(s, c, mode[0] != '\0' ? mode : "abort", false, out, err) : ls_reply_status(err);
}

int ls_control_resume(ls_server *s, const ls_call *c, FILE *out, ls_error *err) {
    (void)c, (void)err;
    ls_work_resume(s->work);
    return ok(out, "resumed");
}

static int aborted(FILE *out, int64_t n) {
    char text[64];
    snprintf(text, sizeof text, "%lld requests aborted", (long long)n);
    return ok(out, text);
}

int ls_control_abort(ls_server *s, const ls_call *c, FILE *out, ls_error *err) {
    ls_json_doc *doc = NULL;
    ls_node root, list;
    int64_t n = 0;
    const char *name;
    ls_status status;
    LS_TRY_DONE(open_body(&doc, &root, c, err));
    LS_TRY_DONE(ls_node_need_kind(&root, "request_ids", LS_NODE_ARRAY, &list, err));
    for (int64_t i = 0; i < ls_node_count(&list); i++) {
        const ls_node item = ls_node_at(&list, i);
        LS_TRY_DONE(ls_node_string(&item, &name, err));
        if (name[0] != '\0') n += ls_work_abort(s->work, name);
    }
done:
    ls_json_doc_free(doc);
    return status == LS_OK ? aborted(out, n) : ls_reply_status(err);
}

int ls_control_abort_sglang(ls_server *s, const ls_call *c, FILE *out, ls_error *err) {
    ls_json_doc *doc = NULL;
    ls_node root, node;
    char name[256] = "";
    bool all = false;
    ls_status status;
    LS_TRY_DONE(open_body(&doc, &root, c, err));
    LS_TRY_DONE(text_member(&root, "rid", name, sizeof name, err));
    if (ls_node_get_some(&root, "abort_all", &node)) LS_TRY_DONE(ls_node_bool(&node, &all, err));
done:
    ls_json_doc_free(doc);
    if (status != LS_OK) return ls_reply_status(err);
    return aborted(out, all || name[0] != '\0' ? ls_work_abort(s->work, all ? "" : name) : 0);
}

int ls_control_flush(ls_server *s, const ls_call *c, FILE *out, ls_error *err) {
    (void)err;
    ls_work_flush(s->work, c->wait);
    return ok(out, "the prefix cache is empty");
}

/* ---- weights ---- */

/* Who sent changes that begin with other weights may send whole ones. */
static int load_weights(ls_server *s, ls_opened *opened, const char *directory, ls_error *err) {
    if (ls_weights_load(s, opened, directory, err) == LS_OK) return 200;
    return opened->is_other ? 409 : ls_reply_status(err);
}

/* Loads and serves. */
static int update_model(ls_server *s, const char *directory, const char *name, FILE *out, ls_error *err) {
    ls_opened opened;
    int http;
    ls_work_view view;
    ls_json_out json;
    if (directory[0] == '\0') return refuse_control(err, LS_ERR_ARG, "the directory of the weights is missing");
    if ((http = load_weights(s, &opened, directory, err)) != 200) return http;
    if (ls_weights_serve(s, &opened, number_of(name), err) != LS_OK) return ls_reply_status(err);
    snprintf(s->version_name, sizeof s->version_name, "%.100s", name);
    ls_work_look(s->work, &view);
    ls_json_init(&json, out);
    ls_json_begin_object(&json, NULL);
    ls_json_bool(&json, "success", true);
    ls_json_string(&json, "status", "ok");
    ls_json_string(&json, "message", "the weights are served");
    ls_json_uint(&json, "weight_version", view.version);
    ls_json_end_object(&json);
    return 200;
}

/* A trainer that broadcasts its weights, as rank 0; one that was met before is let go. */
int ls_control_init_transfer(ls_server *s, const ls_call *c, FILE *out, ls_error *err) {
    ls_json_doc *doc = NULL;
    ls_node root, info;
    ls_status status;
    if (s->opts.state_file != NULL)
        return refuse_control(err, LS_ERR_UNSUPPORTED, "--state: weights over NCCL would be gone at the next start");
    if ((status = ls_nccl_check(s->load_device, err)) != LS_OK) {
        ls_error_prefix(err, "weights over NCCL are not supported here");
        return 400;
    }
    LS_TRY_DONE(open_body(&doc, &root, c, err));
    LS_TRY_DONE(ls_node_need_kind(&root, "init_info", LS_NODE_OBJECT, &info, err));
    ls_transfer_close(s->transfer);
    s->transfer = NULL;
    status = ls_transfer_open(&s->transfer, s->load_device, &info, err);
done:
    ls_json_doc_free(doc);
    if (status == LS_OK) return ok(out, "the trainer is met");
    return status == LS_ERR_IO ? 400 : ls_reply_status(err); /* clients repeat what is answered 5xx */
}

/* Tensors that a trainer announces and then broadcasts. */
static int take_broadcast(ls_server *s, const ls_node *info, FILE *out, ls_error *err) {
    ls_transfer_plan *plan = NULL;
    ls_status status = LS_OK;
    LS_TRY_DONE(ls_transfer_plan_read(&plan, info, err));
    if (s->shards == NULL) LS_TRY_DONE(ls_transfer_shards_create(&s->shards, err));
    if ((status = ls_transfer_take(s->transfer, plan, s->shards, err)) != LS_OK) {
        ls_transfer_close(s->transfer);
        s->transfer = NULL;
    }
done:
    ls_transfer_plan_free(plan);
    return status == LS_OK ? ok(out, "the tensors are here") : ls_reply_status(err);
}

/* What a trainer has broadcast since the start of the update, as weights from disk. They stay there as long as they are
 * served, for the checker. */
static ls_status serve_broadcast(ls_server *s, const char *name, ls_error *err) {
    const char *directory;
    ls_opened opened;
    ls_status status;
    LS_TRY_DONE(ls_transfer_shards_finish(s->shards, &directory, err));
    LS_TRY_DONE(ls_weights_load(s, &opened, directory, err));
    LS_TRY_DONE(ls_weights_serve(s, &opened, number_of(name), err));
    ls_transfer_shards_free(s->served_shards);
    s->served_shards = s->shards;
    s->shards = NULL;
done:
    ls_transfer_shards_free(s->shards);
    s->shards = NULL;
    return status;
}

int ls_control_start_update(ls_server *s, const ls_call *c, FILE *out, ls_error *err) {
    (void)c;
    if (s->is_updating) return refuse_control(err, LS_ERR_ARG, "an update has been started and is not finished");
    s->is_updating = true;
    ls_transfer_shards_free(s->shards);
    s->shards = NULL;
    return ok(out, "the update is started");
}

/* Opens now what /finish_weight_update will serve. */
static int stage(ls_server *s, const char *directory, FILE *out, ls_error *err) {
    ls_opened opened;
    const int http = load_weights(s, &opened, directory, err);
    if (http != 200) return http;
    ls_opened_free(&s->staged);
    s->staged = opened;
    return ok(out, "the weights are loaded");
}

/* prime-rl: {"weight_dir"}. vLLM: {"update_info": {..}}, whose weights come over NCCL, or here from "weight_dir". */
int ls_control_update(ls_server *s, const ls_call *c, FILE *out, ls_error *err) {
    ls_json_doc *doc = NULL;
    ls_node root, info = {0}, names;
    char directory[LS_SERVE_PATH_MAX], name[100];
    bool is_staged = false, is_broadcast = false;
    int http = 0;
    ls_status status;
    LS_TRY_DONE(open_body(&doc, &root, c, err));
    LS_TRY_DONE(version_member(&root, "weight_version", name, sizeof name, err));
    if (ls_node_get_some(&root, "update_info", &info)) {
        LS_TRY_DONE(ls_node_expect(&info, LS_NODE_OBJECT, err));
        if (ls_node_get_some(&info, "names", &names)) is_broadcast = true;
        if (is_broadcast && s->transfer == NULL)
            http = refuse_control(err, LS_ERR_UNSUPPORTED,
                                  "update_info.names: no trainer was met over NCCL (/init_weight_transfer_engine); "
                                  "update_info.weight_dir does without");
        else
            LS_TRY_DONE(text_member(&info, "weight_dir", directory, sizeof directory, err));
        is_staged = true;
    } else {
        LS_TRY_DONE(text_member(&root, "weight_dir", directory, sizeof directory, err));
    }
    if (http == 0 && is_staged && !s->is_updating)
        http = refuse_control(err, LS_ERR_ARG, "update_info: /start_weight_update comes first");
    if (http == 0 && is_broadcast) http = take_broadcast(s, &info, out, err);
    if (http == 0 && directory[0] == '\0')
        http = refuse_control(err, LS_ERR_UNSUPPORTED, "weight_dir: is missing; weights come from disk only");
    if (http == 0) http = is_staged ? stage(s, directory, out, err) : update_model(s, directory, name, out, err);
done:
    ls_json_doc_free(doc);
    return status == LS_OK ? http : ls_reply_status(err);
}

int ls_control_finish_update(ls_server *s, const ls_call *c, FILE *out, ls_error *err) {
    ls_json_doc *doc = NULL;
    ls_node root;
    char name[100];
    ls_opened opened = s->staged;
    const bool is_broadcast = s->shards != NULL, is_updated = is_broadcast || s->staged.model != NULL;
    ls_status status;
    if (!s->is_updating) return refuse_control(err, LS_ERR_ARG, "no update has been started");
    LS_TRY_DONE(open_body(&doc, &root, c, err));
    LS_TRY_DONE(version_member(&root, "weight_version", name, sizeof name, err));
    s->is_updating = false;
    s->staged = (ls_opened){0};
    if (is_broadcast && (status = serve_broadcast(s, name, err)) != LS_OK) {
        ls_opened_free(&opened);
        goto done;
    }
    if (opened.model != NULL) LS_TRY_DONE(ls_weights_serve(s, &opened, number_of(name), err));
    if (name[0] != '\0') snprintf(s->version_name, sizeof s->version_name, "%s", name);
done:
    ls_json_doc_free(doc);
    return status == LS_OK ? ok(out, is_updated ? "the weights are served" : "the weights are as they were")
                           : ls_reply_status(err);
}

int ls_control_name_version(ls_server *s, const ls_call *c, FILE *out, ls_error *err) {
    ls_json_doc *doc = NULL;
    ls_node root;
    char name[100] = "";
    ls_status status = open_body(&doc, &root, c, err);
    if (status == LS_OK) status = version_member(&root, "new_version", name, sizeof name, err);
    ls_json_doc_free(doc);
    if (status != LS_OK) return ls_reply_status(err);
    snprintf(s->version_name, sizeof s->version_name, "%s", name);
    return ok(out, "the version has this name");
}

int ls_control_update_sglang(ls_server *s, const ls_call *c, FILE *out, ls_error *err) {
    static const char *const keys[] = {"model_path",           "load_format", "weight_version",    "abort_all_requests",
                                       "flush_cache",          "is_async",    "torch_empty_cache", "keep_pause",
                                       "recapture_cuda_graph", "token_step",  "manifest",          NULL};
    ls_json_doc *doc = NULL;
    ls_node root, node;
    char directory[LS_SERVE_PATH_MAX] = "", name[100] = "", format[32] = "";
    bool aborts = false;
    ls_status status;
    LS_TRY_DONE(open_body(&doc, &root, c, err));
    LS_TRY_DONE(ls_node_only(&root, keys, err));
    LS_TRY_DONE(text_member(&root, "model_path", directory, sizeof directory, err));
    LS_TRY_DONE(text_member(&root, "load_format", format, sizeof format, err));
    LS_TRY_DONE(version_member(&root, "weight_version", name, sizeof name, err));
    if (ls_node_get_some(&root, "abort_all_requests", &node)) LS_TRY_DONE(ls_node_bool(&node, &aborts, err));
    if (format[0] != '\0' && strcmp(format, "auto") != 0 && strcmp(format, "safetensors") != 0)
        status = LS_FAIL(err, LS_ERR_UNSUPPORTED, "load_format: '%s' is not supported; it is safetensors", format);
done:
    ls_json_doc_free(doc);
    if (status != LS_OK) return ls_reply_status(err);
    if (aborts) ls_work_abort(s->work, "");
    return update_model(s, directory, name, out, err);
}

int ls_control_weight_info(ls_server *s, const ls_call *c, FILE *out, ls_error *err) {
    ls_work_view view;
    ls_json_out json;
    (void)c, (void)err;
    ls_work_look(s->work, &view);
    ls_json_init(&json, out);
    ls_json_begin_object(&json, NULL);
    ls_json_uint(&json, "version", view.version);
    ls_json_string(&json, "weight_version", s->version_name);
    ls_json_string(&json, "path", s->path);
    ls_json_string(&json, "numerics", s->numerics);
    ls_json_bool(&json, "is_updating", s->is_updating);
    ls_json_end_object(&json);
    return 200;
}

/* The digest of the tensors as they lie on disk, which is what was opened: reading them again. */
int ls_control_weight_checker(ls_server *s, const ls_call *c, FILE *out, ls_error *err) {
    ls_json_doc *doc = NULL;
    ls_node root;
    ls_stored_summary summary;
    char action[32] = "", baseline[32] = "", digest[32];
    ls_json_out json;
    ls_status status;
    LS_TRY_DONE(open_body(&doc, &root, c, err));
    LS_TRY_DONE(text_member(&root, "action", action, sizeof action, err));
    LS_TRY_DONE(text_member(&root, "baseline", baseline, sizeof baseline, err));
    if (strcmp(action, "checksum") != 0 && strcmp(action, "compare") != 0)
        status = LS_FAIL(err, LS_ERR_UNSUPPORTED, "action: '%s' is not supported; checksum and compare are", action);
    if (status == LS_OK) status = ls_weights_summarize(s, &summary, err);
done:
    ls_json_doc_free(doc);
    if (status != LS_OK) return ls_reply_status(err);
    snprintf(digest, sizeof digest, "%016llx", (unsigned long long)summary.digest);
    ls_json_init(&json, out);
    ls_json_begin_object(&json, NULL);
    ls_json_bool(&json, "success", true);
    ls_json_string(&json, "checksum", digest);
    ls_json_int(&json, "parameters", summary.n_parameters);
    if (baseline[0] != '\0') ls_json_bool(&json, "equal", strcmp(baseline, digest) == 0);
    ls_json_end_object(&json);
    return 200;
}

/* ---- the check ---- */

enum { CHECK_PROMPTS = 8, CHECK_TOKENS = 32 };

/* Prompts of random tokens, as lockstep check makes them up. */
static ls_status check_ask(ls_server *s, ls_ask **out, uint64_t seed, ls_error *err) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    int64_t room = s->limits.length_max / 2;
    uint64_t x = seed;
    ls_json_out json;
    ls_status status;
    if (file == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "check");
    if (room > CHECK_TOKENS) room = CHECK_TOKENS;
    ls_json_init(&json, file);
    ls_json_begin_object(&json, NULL);
    ls_json_begin_array(&json, "prompt");
    for (int i = 0; i < CHECK_PROMPTS; i++) {
        ls_json_begin_array(&json, NULL);
        for (int64_t t = 0; t < 1 + (3 * i) % room; t++) {
            x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            ls_json_int(&json, NULL, (int64_t)(x >> 33) % s->limits.vocab);
        }
        ls_json_end_array(&json);
    }
    ls_json_end_array(&json);
    ls_json_int(&json, "n", 2);
    ls_json_int(&json, "max_tokens", room);
    ls_json_int(&json, "prompt_logprobs", 0);
    ls_json_end_object(&json);
    status = fclose(file) == 0 ? ls_ask_parse(out, LS_ASK_COMPLETION, &s->limits, text, (int64_t)bytes, err)
                               : LS_FAIL(err, LS_ERR_NOMEM, "check");
    free(text);
    return status;
}

typedef struct check_counts {
    int64_t sequences, generated, scored, differing_tokens, differing_prompt_tokens, other_versions;
} check_counts;

static int64_t differing(const float *a, const float *b, int64_t n) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) count += ls_bits(a[i]) != ls_bits(b[i]) || a[i] != a[i]; /* no NaN agrees */
    return count;
}

/* One sample against the training forward, which runs on a device of its own beside the engine. */
static ls_status compare_sample(ls_server *s, const ls_completion *x, check_counts *t, ls_error *err) {
    const ls_request *r = &x->request;
    const int64_t n = r->n_prompt + r->n_completion;
    const ls_score_opts opts = {.dtype = s->engine.dtype, .batch = 1, .page_tokens = 16};
    ls_score_item item = {.n_tokens = n, .of = s->about.logprob_of, .sampling = x->group->sampling};
    int32_t *tokens = NULL;
    float *scored = NULL;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&tokens, n, sizeof *tokens, "check", err));
    LS_TRY_DONE(ls_array_alloc((void **)&scored, n, sizeof *scored, "check", err));
    memcpy(tokens, r->prompt, (size_t)r->n_prompt * sizeof *tokens);
    memcpy(tokens + r->n_prompt, r->completion, (size_t)r->n_completion * sizeof *tokens);
    item.tokens = tokens;
    item.logprob = scored;
    LS_TRY_DONE(ls_score(s->model, s->load_device, &opts, &item, 1, err));
    t->sequences++;
    t->generated += r->n_completion;
    t->scored += n - 1;
    t->differing_tokens += differing(x->logprob, scored + r->n_prompt - 1, r->n_completion);
    if (s->about.logprob_of == LS_LOGPROB_RAW)
        t->differing_prompt_tokens += differing(x->prompt_logprob, scored, r->n_prompt - 1);
done:
    free(scored);
    free(tokens);
    return status;
}

static int tell_check(ls_server *s, const check_counts *t, uint64_t version, FILE *out) {
    ls_json_out json;
    ls_json_init(&json, out);
    ls_json_begin_object(&json, NULL);
    ls_json_bool(&json, "ok", t->differing_tokens == 0 && t->differing_prompt_tokens == 0);
    ls_json_int(&json, "sequences", t->sequences);
    ls_json_int(&json, "generated_tokens", t->generated);
    ls_json_int(&json, "scored_tokens", t->scored);
    ls_json_int(&json, "differing_tokens", t->differing_tokens);
    ls_json_int(&json, "differing_prompt_tokens", t->differing_prompt_tokens);
    ls_json_string(&json, "numerics", s->numerics);
    ls_json_uint(&json, "weights", version);
    ls_json_end_object(&json);
    return 200;
}

int ls_control_check(ls_server *s, const ls_call *c, FILE *out, ls_error *err) {
    ls_ask *ask;
    ls_group *g;
    ls_work_view view;
    check_counts t = {0};
    bool is_full;
    ls_status status = LS_OK;
    (void)c;
    ls_work_look(s->work, &view);
    if (view.paused) return refuse_control(err, LS_ERR_ARG, "generation is paused");
    if (check_ask(s, &ask, 1 + (uint64_t)view.groups, err) != LS_OK) return ls_reply_status(err);
    if (ls_work_submit(&g, s->work, &s->anonymous, ask, &s->limits, (ls_group_wake){NULL, NULL}, &is_full, err) !=
        LS_OK)
        return is_full ? 429 : ls_reply_status(err);
    if (!ls_group_wait(g)) { /* what comes next may be an update, which must not wait for this */
        ls_group_release(g);
        return refuse_control(err, LS_ERR_ARG, "generation was paused");
    }
    status = ls_reply_check(g, err);
    for (int64_t i = 0; i < g->n_samples && status == LS_OK; i++)
        if (g->samples[i].finish != LS_FINISH_CANCEL) status = compare_sample(s, &g->samples[i], &t, err);
    ls_group_release(g);
    return status == LS_OK ? tell_check(s, &t, view.version, out) : ls_reply_status(err);
}
