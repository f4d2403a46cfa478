/* Reading answers of rollout servers. Owns the parsed document while it reads. */
#include "record/rollout_json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "json/json_node.h"
#include "num/exp64.h"

/* ---- a completion ---- */

static ls_status need_text(const ls_node *object, const char *key, const char *wanted, const char *hint,
                           ls_error *err) {
    ls_node node;
    const char *text;
    LS_TRY(ls_node_need(object, key, &node, err));
    LS_TRY(ls_node_string(&node, &text, err));
    if (strcmp(text, wanted) == 0) return LS_OK;
    return ls_node_fail(&node, LS_ERR_ARG, err, "%.60s, not %.60s%s", text, wanted, hint);
}

static ls_status need_int(const ls_node *object, const char *key, int64_t wanted, ls_error *err) {
    ls_node node;
    int64_t value;
    LS_TRY(ls_node_need(object, key, &node, err));
    LS_TRY(ls_node_int(&node, 0, INT64_MAX, &value, err));
    if (value == wanted) return LS_OK;
    return ls_node_fail(&node, LS_ERR_ARG, err, "%lld, not %lld", (long long)value, (long long)wanted);
}

/* An array with a value for each token. */
static ls_status need_column(const ls_node *object, const char *key, int64_t n, ls_node *out, ls_error *err) {
    LS_TRY(ls_node_need_kind(object, key, LS_NODE_ARRAY, out, err));
    if (ls_node_count(out) == n) return LS_OK;
    return ls_node_fail(out, LS_ERR_FORMAT, err, "has %lld values for %lld tokens", (long long)ls_node_count(out),
                        (long long)n);
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Eight hexadecimal digits as the float that has these bits: a log-probability, finite and not positive. */
static ls_status read_bits(const ls_node *node, float *out, ls_error *err) {
    const char *text;
    uint32_t bits = 0;
    LS_TRY(ls_node_string(node, &text, err));
    for (int i = 0; i < 8; i++) {
        const int digit = hex_digit(text[i]);
        if (digit < 0) return ls_node_fail(node, LS_ERR_FORMAT, err, "'%.20s' is not the bits of a float", text);
        bits = bits << 4 | (uint32_t)digit;
    }
    if (text[8] != '\0') return ls_node_fail(node, LS_ERR_FORMAT, err, "'%.20s' is not the bits of a float", text);
    memcpy(out, &bits, sizeof *out);
    if (isfinite(*out) && *out <= 0) return LS_OK;
    return ls_node_fail(node, LS_ERR_FORMAT, err, "%s is no log-probability", text);
}

static ls_status read_tokens(ls_rollout_answer *out, const ls_rollout_asked *a, const ls_node *choice, ls_error *err) {
    ls_node ids;
    LS_TRY(ls_node_need_kind(choice, "token_ids", LS_NODE_ARRAY, &ids, err));
    out->n = ls_node_count(&ids);
    if (out->n < 1 || out->n > a->max_tokens)
        return ls_node_fail(&ids, LS_ERR_FORMAT, err, "%lld tokens, where 1 to %lld were asked for", (long long)out->n,
                            (long long)a->max_tokens);
    for (int64_t i = 0; i < out->n; i++) {
        const ls_node item = ls_node_at(&ids, i);
        int64_t id;
        LS_TRY(ls_node_int(&item, 0, a->vocab - 1, &id, err));
        out->tokens[i] = (int32_t)id;
    }
    return LS_OK;
}

static ls_status read_finish(ls_rollout_answer *out, const ls_node *choice, ls_error *err) {
    ls_node node;
    const char *text;
    LS_TRY(ls_node_need(choice, "finish_reason", &node, err));
    LS_TRY(ls_node_string(&node, &text, err));
    out->is_stopped = strcmp(text, "stop") == 0;
    if (out->is_stopped || strcmp(text, "length") == 0) return LS_OK;
    return ls_node_fail(&node, LS_ERR_ARG, err, "the completion ended by %.60s", text);
}

static ls_status read_logprobs(ls_rollout_answer *out, const ls_node *own, ls_error *err) {
    ls_node column;
    LS_TRY(need_column(own, "logprob_bits", out->n, &column, err));
    for (int64_t i = 0; i < out->n; i++) {
        const ls_node item = ls_node_at(&column, i);
        LS_TRY(read_bits(&item, &out->logprobs[i], err));
    }
    return LS_OK;
}

static ls_status check_versions(const ls_rollout_answer *out, const ls_rollout_asked *a, const ls_node *own,
                                ls_error *err) {
    ls_node column;
    LS_TRY(need_column(own, "weights", out->n, &column, err));
    for (int64_t i = 0; i < out->n; i++) {
        const ls_node item = ls_node_at(&column, i);
        int64_t version;
        LS_TRY(ls_node_int(&item, 0, INT64_MAX, &version, err));
        if ((uint64_t)version != a->version)
            return ls_node_fail(&item, LS_ERR_ARG, err,
                                "version %lld, not %llu: the server was started anew, or somebody else updates it",
                                (long long)version, (unsigned long long)a->version);
    }
    return LS_OK;
}

static ls_status read_support(ls_rollout_answer *out, const ls_rollout_asked *a, const ls_node *own, ls_error *err) {
    ls_node kept, mass;
    if (!a->is_weighed) return LS_OK;
    LS_TRY(need_column(own, "kept", out->n, &kept, err));
    LS_TRY(need_column(own, "kept_mass", out->n, &mass, err));
    for (int64_t i = 0; i < out->n; i++) {
        const ls_node one = ls_node_at(&kept, i), its_mass = ls_node_at(&mass, i);
        const ls_node_kind kind = ls_node_kind_of(&its_mass);
        int64_t n;
        LS_TRY(ls_node_int(&one, 1, a->vocab, &n, err));
        if ((kind != LS_NODE_INT && kind != LS_NODE_REAL) || !(ls_node_number(&its_mass) > 0) ||
            ls_node_number(&its_mass) > 1)
            return ls_node_fail(&its_mass, LS_ERR_FORMAT, err, "is no mass");
        out->kept[i] = (int32_t)n;
        out->log_mass[i] = (float)ls_log64(ls_node_number(&its_mass));
    }
    return LS_OK;
}

static ls_status read_way(ls_rollout_answer *out, const ls_node *own, ls_error *err) {
    ls_node node;
    int64_t slot;
    LS_TRY(ls_node_need(own, "slot", &node, err));
    LS_TRY(ls_node_int(&node, -1, INT32_MAX, &slot, err));
    out->slot = (int32_t)slot;
    LS_TRY(ls_node_need(own, "cache_hit", &node, err));
    LS_TRY(ls_node_int(&node, 0, INT64_MAX, &out->hit, err));
    LS_TRY(ls_node_need(own, "preemptions", &node, err));
    return ls_node_int(&node, 0, INT64_MAX, &out->preempted, err);
}

static ls_status read_choice(ls_rollout_answer *out, const ls_rollout_asked *a, const ls_node *choice, ls_error *err) {
    ls_node own;
    LS_TRY(ls_node_expect(choice, LS_NODE_OBJECT, err));
    LS_TRY(read_finish(out, choice, err));
    LS_TRY(read_tokens(out, a, choice, err));
    LS_TRY(ls_node_need_kind(choice, "lockstep", LS_NODE_OBJECT, &own, err));
    LS_TRY(need_text(&own, "numerics", a->numerics, "", err));
    if (a->is_recorded) LS_TRY(need_text(&own, "logprob_of", a->logprob_of, "", err));
    LS_TRY(need_int(&own, "seed", (int64_t)a->seed, err));
    LS_TRY(need_int(&own, "prompt", a->prompt, err));
    LS_TRY(need_int(&own, "sample", a->sample, err));
    LS_TRY(check_versions(out, a, &own, err));
    LS_TRY(read_logprobs(out, &own, err));
    LS_TRY(read_support(out, a, &own, err));
    return read_way(out, &own, err);
}

ls_status ls_rollout_answer_parse(ls_rollout_answer *out, const ls_rollout_asked *asked, const char *text,
                                  int64_t bytes, const char *name, ls_error *err) {
    ls_json_doc *doc = NULL;
    ls_node root, choices, choice;
    ls_status status;
    LS_TRY_DONE(ls_json_doc_open(&doc, text, bytes, name, err));
    root = ls_json_root(doc);
    LS_TRY_DONE(ls_node_need_kind(&root, "choices", LS_NODE_ARRAY, &choices, err));
    if (ls_node_count(&choices) != 1) {
        status =
            ls_node_fail(&choices, LS_ERR_FORMAT, err, "%lld choices, not one", (long long)ls_node_count(&choices));
        goto done;
    }
    choice = ls_node_at(&choices, 0);
    status = read_choice(out, asked, &choice, err);
done:
    ls_json_doc_free(doc);
    return status;
}

/* ---- the server ---- */

static ls_status copy_text(const ls_node *object, const char *key, char *out, size_t room, ls_error *err) {
    ls_node node;
    const char *text;
    LS_TRY(ls_node_need(object, key, &node, err));
    LS_TRY(ls_node_string(&node, &text, err));
    if (strlen(text) >= room) return ls_node_fail(&node, LS_ERR_FORMAT, err, "the text is too long");
    strcpy(out, text);
    return LS_OK;
}

ls_status ls_rollout_server_parse(ls_rollout_server *out, const char *text, int64_t bytes, const char *name,
                                  ls_error *err) {
    ls_json_doc *doc = NULL;
    ls_node root, config, model, node;
    char mode[32] = "";
    ls_status status;
    LS_TRY_DONE(ls_json_doc_open(&doc, text, bytes, name, err));
    root = ls_json_root(doc);
    LS_TRY_DONE(copy_text(&root, "numerics", out->numerics, sizeof out->numerics, err));
    LS_TRY_DONE(ls_node_need_kind(&root, "vllm_config", LS_NODE_OBJECT, &config, err));
    LS_TRY_DONE(ls_node_need_kind(&config, "model_config", LS_NODE_OBJECT, &model, err));
    LS_TRY_DONE(copy_text(&model, "logprobs_mode", mode, sizeof mode, err));
    snprintf(out->logprob_of, sizeof out->logprob_of, "%s", strcmp(mode, "raw_logprobs") == 0 ? "raw" : "processed");
    LS_TRY_DONE(ls_node_need(&model, "max_model_len", &node, err));
    LS_TRY_DONE(ls_node_int(&node, 1, INT64_MAX, &out->length_max, err));
done:
    ls_json_doc_free(doc);
    return status;
}

ls_status ls_rollout_version_parse(uint64_t *out, const char *text, int64_t bytes, const char *name, ls_error *err) {
    ls_json_doc *doc = NULL;
    ls_node root, node;
    int64_t version = 0;
    ls_status status;
    LS_TRY_DONE(ls_json_doc_open(&doc, text, bytes, name, err));
    root = ls_json_root(doc);
    LS_TRY_DONE(ls_node_need(&root, "weight_version", &node, err));
    LS_TRY_DONE(ls_node_int(&node, 0, INT64_MAX, &version, err));
    *out = (uint64_t)version;
done:
    ls_json_doc_free(doc);
    return status;
}

int64_t ls_rollout_refusal(char *out, int64_t room, const char *text, int64_t bytes) {
    ls_json_doc *doc = NULL;
    ls_node root, error, message, number;
    const char *sentence;
    int64_t code = 0;
    out[0] = '\0';
    if (text == NULL || ls_json_doc_open(&doc, text, bytes, "answer", NULL) != LS_OK) return 0;
    root = ls_json_root(doc);
    if (ls_node_get_some(&root, "error", &error) && ls_node_kind_of(&error) == LS_NODE_OBJECT &&
        ls_node_get_some(&error, "message", &message) && ls_node_string(&message, &sentence, NULL) == LS_OK) {
        snprintf(out, (size_t)room, "%s", sentence);
        for (char *c = out; *c != '\0'; c++)
            if ((unsigned char)*c < ' ') *c = ' ';
        if (!ls_node_get_some(&error, "code", &number) || ls_node_int(&number, 0, INT64_MAX, &code, NULL) != LS_OK)
            code = 0;
    }
    ls_json_doc_free(doc);
    return code;
}
