/* Bodies of requests, field by field. */
#include "serve/serve_ask.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fnv.h"
#include "base/mem.h"
#include "json/json_node.h"

enum {
    C = LS_ASK_COMPLETION,
    H = LS_ASK_CHAT,
    T = LS_ASK_TOKENS,
    G = LS_ASK_SGLANG,
    S = LS_ASK_SCORE,
    K = LS_ASK_TOKENIZE,
    PARAMS = 32,  /* within sampling_params of /inference/v1/generate */
    GPARAMS = 64, /* within sampling_params of SGLang */
    SAMPLED = C | H | PARAMS | GPARAMS,
    TOP = C | H | T | G | S
};

typedef struct parse {
    ls_ask *ask;
    const ls_ask_limits *limits;
    int64_t chat_top; /* top_logprobs of a chat; -1 unless given */
    bool chat_logprobs;
    bool add_special; /* the tokenizer's own tokens around a text */
    bool has_tools, wants_no_calls;
    bool has_skip_special;
    ls_error *err;
} parse;

typedef ls_status (*taker)(parse *r, const ls_node *node);

/* ---- values ---- */

static ls_status take_number(parse *r, const ls_node *node, double low, double high, double *out) {
    const ls_node_kind kind = ls_node_kind_of(node);
    if (kind != LS_NODE_INT && kind != LS_NODE_REAL)
        return ls_node_fail(node, LS_ERR_FORMAT, r->err, "a number is required");
    *out = ls_node_number(node);
    if (!(*out >= low && *out <= high))
        return ls_node_fail(node, LS_ERR_ARG, r->err, "%g is not in %g..%g", *out, low, high);
    return LS_OK;
}

/* What draws compute with is float32. A value that is 0 there, or has a reciprocal that is none, would ask for
 * something else than it says. */
static ls_status take_float(parse *r, const ls_node *node, double low, double high, float *out) {
    double value = 0;
    LS_TRY(take_number(r, node, low, high, &value));
    if (value != 0 && fabs(value) < (double)FLT_MIN)
        return ls_node_fail(node, LS_ERR_ARG, r->err, "%g is too small for float32", value);
    *out = (float)value;
    return LS_OK;
}

static ls_status copy_text(parse *r, const ls_node *node, char **out) {
    const char *text;
    LS_TRY(ls_node_string(node, &text, r->err));
    free(*out);
    return ls_text_copy(out, text, (int64_t)strlen(text), r->err);
}

/* ---- prompts ---- */

static ls_status new_prompt(parse *r, ls_ask_prompt **out) {
    ls_ask *a = r->ask;
    LS_TRY(
        ls_array_grow((void **)&a->prompts, &a->prompts_cap, a->n_prompts + 1, sizeof *a->prompts, "prompts", r->err));
    *out = &a->prompts[a->n_prompts];
    **out = (ls_ask_prompt){0};
    a->n_prompts++;
    return LS_OK;
}

static ls_status check_prompt(parse *r, const ls_node *node, const ls_ask_prompt *p) {
    const int64_t least = r->ask->kind == LS_ASK_SCORE ? 2 : 1;
    const int64_t room = r->ask->kind == LS_ASK_SCORE ? 0 : 1;
    if (r->ask->kind == LS_ASK_TOKENIZE) return LS_OK; /* whatever a text is */
    if (p->n < least)
        return ls_node_fail(node, LS_ERR_ARG, r->err, "has %lld tokens; %lld are needed", (long long)p->n,
                            (long long)least);
    if (p->n > r->limits->length_max - room)
        return ls_node_fail(node, LS_ERR_CAPACITY, r->err, "%lld tokens; the maximum context length is %lld tokens",
                            (long long)p->n, (long long)r->limits->length_max);
    for (int64_t i = 0; i < p->n; i++)
        if (p->ids[i] < 0 || p->ids[i] >= r->limits->vocab)
            return ls_node_fail(node, LS_ERR_ARG, r->err, "token %lld is %d; the vocabulary is 0..%d", (long long)i,
                                p->ids[i], r->limits->vocab - 1);
    return LS_OK;
}

static ls_status take_ids(parse *r, const ls_node *node) {
    const int64_t n = ls_node_count(node);
    ls_ask_prompt *p;
    if (n > r->limits->length_max)
        return ls_node_fail(node, LS_ERR_CAPACITY, r->err, "%lld tokens; the maximum context length is %lld tokens",
                            (long long)n, (long long)r->limits->length_max);
    LS_TRY(new_prompt(r, &p));
    LS_TRY(ls_array_alloc((void **)&p->ids, n, sizeof *p->ids, "prompt", r->err));
    for (int64_t i = 0; i < n; i++) {
        const ls_node item = ls_node_at(node, i);
        int64_t id;
        LS_TRY(ls_node_int(&item, INT32_MIN, INT32_MAX, &id, r->err));
        p->ids[i] = (int32_t)id;
    }
    p->n = n;
    return check_prompt(r, node, p);
}

/* What cannot fit, however it is tokenised. */
static ls_status check_length(parse *r, const ls_node *node, int64_t bytes) {
    const int64_t most = ls_tokenizer_bytes_max(r->limits->tokenizer, r->limits->length_max);
    if (bytes <= most) return LS_OK;
    return ls_node_fail(node, LS_ERR_CAPACITY, r->err,
                        "%lld bytes; the maximum context length is %lld tokens, which are %lld bytes at most",
                        (long long)bytes, (long long)r->limits->length_max, (long long)most);
}

static ls_status take_text(parse *r, const ls_node *node) {
    const char *text;
    int64_t bytes;
    ls_ask_prompt *p;
    LS_TRY(ls_node_text(node, &text, &bytes, r->err));
    if (r->limits->tokenizer == NULL)
        return ls_node_fail(node, LS_ERR_UNSUPPORTED, r->err, "the model has no tokenizer: give token ids");
    LS_TRY(check_length(r, node, bytes));
    LS_TRY(new_prompt(r, &p));
    if (ls_tokenizer_encode(r->limits->tokenizer, text, bytes, r->add_special, &p->ids, &p->n, r->err) != LS_OK) {
        ls_node_blame(node, r->err);
        return r->err->status;
    }
    return check_prompt(r, node, p);
}

/* What a prompt may be, a bit each. */
enum { AS_TEXT = 1, AS_IDS = 2 };

static ls_status take_one_prompt(parse *r, const ls_node *node, int as) {
    const ls_node_kind kind = ls_node_kind_of(node);
    if (kind == LS_NODE_TEXT && (as & AS_TEXT)) return take_text(r, node);
    if (kind == LS_NODE_ARRAY && (as & AS_IDS)) return take_ids(r, node);
    return ls_node_fail(node, LS_ERR_FORMAT, r->err, "%s is required",
                        as == AS_TEXT  ? "text"
                        : as == AS_IDS ? "a list of token ids"
                                       : "text or a list of token ids");
}

/* One, or a list of them. */
static ls_status take_prompts(parse *r, const ls_node *node, int as) {
    const int64_t n = ls_node_count(node);
    if (r->ask->n_prompts > 0) return ls_node_fail(node, LS_ERR_ARG, r->err, "a second prompt field");
    if (ls_node_kind_of(node) == LS_NODE_ARRAY && n > 0) {
        const ls_node first = ls_node_at(node, 0);
        r->ask->is_batch = as == AS_TEXT || ls_node_kind_of(&first) != LS_NODE_INT;
    }
    if (!r->ask->is_batch) return take_one_prompt(r, node, as);
    if (n > LS_ASK_PROMPTS_MAX)
        return ls_node_fail(node, LS_ERR_CAPACITY, r->err, "%lld prompts; %d are the most", (long long)n,
                            LS_ASK_PROMPTS_MAX);
    for (int64_t i = 0; i < n; i++) {
        const ls_node item = ls_node_at(node, i);
        LS_TRY(take_one_prompt(r, &item, as));
    }
    return LS_OK;
}

static ls_status take_prompt(parse *r, const ls_node *node) { return take_prompts(r, node, AS_TEXT | AS_IDS); }
static ls_status take_prompt_ids(parse *r, const ls_node *node) { return take_prompts(r, node, AS_IDS); }
static ls_status take_prompt_text(parse *r, const ls_node *node) { return take_prompts(r, node, AS_TEXT); }
/* /tokenize takes one text. */
static ls_status take_one_text(parse *r, const ls_node *node) {
    if (r->ask->n_prompts > 0) return ls_node_fail(node, LS_ERR_ARG, r->err, "a second prompt field");
    return take_one_prompt(r, node, AS_TEXT);
}

/* The conversation is the body itself: messages, tools, chat_template_kwargs. */
static ls_status take_messages(parse *r, const ls_node *node) {
    ls_template_output text = {0};
    ls_ask_prompt *p;
    ls_node flag;
    bool add_prompt = true;
    ls_status status;
    if (r->ask->n_prompts > 0) return ls_node_fail(node, LS_ERR_ARG, r->err, "a second prompt field");
    if (r->limits->chat == NULL || r->limits->tokenizer == NULL)
        return ls_node_fail(node, LS_ERR_UNSUPPORTED, r->err, "the model has no %s",
                            r->limits->tokenizer == NULL ? "tokenizer" : "chat template");
    if (ls_node_get_some(node->parent, "add_generation_prompt", &flag))
        LS_TRY(ls_node_bool(&flag, &add_prompt, r->err));
    LS_TRY_DONE(ls_chat_render(r->limits->chat, node->parent, add_prompt, &text, r->err));
    LS_TRY_DONE(check_length(r, node, text.bytes));
    LS_TRY_DONE(new_prompt(r, &p));
    LS_TRY_DONE(
        ls_tokenizer_encode(r->limits->tokenizer, text.text, text.bytes, r->add_special, &p->ids, &p->n, r->err));
    status = check_prompt(r, node, p);
done:
    ls_template_output_deinit(&text);
    return status;
}

/* ---- single fields ---- */

static ls_status take_nothing(parse *r, const ls_node *node) {
    (void)r, (void)node;
    return LS_OK;
}

/* What is not built may be asked for with the value that asks for nothing. */
static ls_status refuse_field(parse *r, const ls_node *node) {
    return ls_node_fail(node, LS_ERR_UNSUPPORTED, r->err, "this is not supported");
}
static ls_status only_zero(parse *r, const ls_node *node) {
    const ls_node_kind kind = ls_node_kind_of(node);
    return (kind == LS_NODE_INT || kind == LS_NODE_REAL) && ls_node_number(node) == 0 ? LS_OK : refuse_field(r, node);
}
static ls_status only_one(parse *r, const ls_node *node) {
    const ls_node_kind kind = ls_node_kind_of(node);
    return (kind == LS_NODE_INT || kind == LS_NODE_REAL) && ls_node_number(node) == 1 ? LS_OK : refuse_field(r, node);
}
static ls_status only_false(parse *r, const ls_node *node) {
    bool value;
    LS_TRY(ls_node_bool(node, &value, r->err));
    return value ? refuse_field(r, node) : LS_OK;
}
static ls_status no_echo(parse *r, const ls_node *node) {
    bool value;
    LS_TRY(ls_node_bool(node, &value, r->err));
    if (!value) return LS_OK;
    return ls_node_fail(node, LS_ERR_UNSUPPORTED, r->err,
                        "this is not supported; prompt_logprobs tells a prompt's values");
}
static ls_status only_empty(parse *r, const ls_node *node) {
    const ls_node_kind kind = ls_node_kind_of(node);
    return (kind == LS_NODE_ARRAY || kind == LS_NODE_OBJECT) && ls_node_count(node) == 0 ? LS_OK
                                                                                         : refuse_field(r, node);
}
static ls_status only_text_format(parse *r, const ls_node *node) {
    const char *type;
    ls_node child;
    LS_TRY(ls_node_expect(node, LS_NODE_OBJECT, r->err));
    LS_TRY(ls_node_need(node, "type", &child, r->err));
    LS_TRY(ls_node_string(&child, &type, r->err));
    if (strcmp(type, "text") == 0) return LS_OK;
    return ls_node_fail(&child, LS_ERR_UNSUPPORTED, r->err,
                        "'%.60s' is not supported: draws are not held to a grammar; 'text' is", type);
}
/* "required" and a named function would need draws that are held to a grammar. */
static ls_status take_tool_choice(parse *r, const ls_node *node) {
    const char *text = "";
    if (ls_node_kind_of(node) == LS_NODE_TEXT) LS_TRY(ls_node_string(node, &text, r->err));
    r->wants_no_calls = strcmp(text, "none") == 0;
    if (r->wants_no_calls || strcmp(text, "auto") == 0) return LS_OK;
    return ls_node_fail(node, LS_ERR_UNSUPPORTED, r->err,
                        "'none' and 'auto' are supported; a call cannot be forced on the model");
}
static ls_status take_tools(parse *r, const ls_node *node) {
    LS_TRY(ls_node_expect(node, LS_NODE_ARRAY, r->err));
    r->has_tools = ls_node_count(node) > 0;
    return LS_OK;
}
static ls_status take_parallel_calls(parse *r, const ls_node *node) {
    bool parallel;
    LS_TRY(ls_node_bool(node, &parallel, r->err));
    r->ask->one_call = !parallel;
    return LS_OK;
}

static ls_status take_model(parse *r, const ls_node *node) {
    const char *name;
    LS_TRY(ls_node_string(node, &name, r->err));
    if (r->limits->model == NULL || strcmp(name, r->limits->model) == 0) return LS_OK;
    return ls_node_fail(node, LS_ERR_ARG, r->err, "the model '%.200s' does not exist; this server has '%.200s'", name,
                        r->limits->model);
}
bool ls_ask_wants_other_model(const ls_error *err) {
    static const char begin[] = "request: model: the model '";
    return err->status == LS_ERR_ARG && strncmp(err->text, begin, sizeof begin - 1) == 0;
}

static ls_status take_n(parse *r, const ls_node *node) {
    return ls_node_int(node, 1, LS_ASK_SAMPLES_MAX, &r->ask->n, r->err);
}
static ls_status take_max_tokens(parse *r, const ls_node *node) {
    return ls_node_int(node, 0, INT32_MAX, &r->ask->max_tokens, r->err);
}
static ls_status take_temperature(parse *r, const ls_node *node) {
    LS_TRY(take_float(r, node, 0, 1e6, &r->ask->sampling.temperature));
    if (ls_node_number(node) == 0 || ls_node_number(node) >= LS_TEMPERATURE_MIN) return LS_OK;
    return ls_node_fail(node, LS_ERR_ARG, r->err, "%g is not 0 and below %g", ls_node_number(node), LS_TEMPERATURE_MIN);
}
static ls_status take_top_p(parse *r, const ls_node *node) {
    LS_TRY(take_float(r, node, 0, 1, &r->ask->sampling.top_p));
    return r->ask->sampling.top_p > 0 ? LS_OK : ls_node_fail(node, LS_ERR_ARG, r->err, "0 keeps no token");
}
static ls_status take_min_p(parse *r, const ls_node *node) {
    return take_float(r, node, 0, 1, &r->ask->sampling.min_p);
}
static ls_status take_presence(parse *r, const ls_node *node) {
    return take_float(r, node, -1e6, 1e6, &r->ask->penalties.presence);
}
static ls_status take_frequency(parse *r, const ls_node *node) {
    return take_float(r, node, -1e6, 1e6, &r->ask->penalties.frequency);
}
static ls_status take_repetition(parse *r, const ls_node *node) {
    return take_float(r, node, LS_REPETITION_MIN, 1e6, &r->ask->penalties.repetition);
}
static ls_status take_top_k(parse *r, const ls_node *node) {
    int64_t k; /* -1 is all, to others */
    LS_TRY(ls_node_int(node, -1, INT32_MAX, &k, r->err));
    r->ask->sampling.top_k = k < 0 || k == (1 << 30) ? 0 : k;
    return LS_OK;
}
static ls_status take_seed(parse *r, const ls_node *node) {
    int64_t seed;
    LS_TRY(ls_node_int(node, 0, INT64_MAX, &seed, r->err));
    r->ask->sampling.seed = (uint64_t)seed;
    r->ask->has_seed = true;
    return LS_OK;
}
static ls_status take_ignore_eos(parse *r, const ls_node *node) {
    return ls_node_bool(node, &r->ask->ignore_eos, r->err);
}
static ls_status take_keeps_stop(parse *r, const ls_node *node) {
    return ls_node_bool(node, &r->ask->keeps_stop, r->err);
}
static ls_status take_skip_special(parse *r, const ls_node *node) {
    bool skip;
    LS_TRY(ls_node_bool(node, &skip, r->err));
    r->ask->keeps_special = !skip;
    r->has_skip_special = true;
    return LS_OK;
}
static ls_status take_stream(parse *r, const ls_node *node) { return ls_node_bool(node, &r->ask->stream, r->err); }
static ls_status take_return_ids(parse *r, const ls_node *node) {
    return ls_node_bool(node, &r->ask->return_ids, r->err);
}
static ls_status take_ids_as_tokens(parse *r, const ls_node *node) {
    return ls_node_bool(node, &r->ask->ids_as_tokens, r->err);
}
static ls_status take_token_strs(parse *r, const ls_node *node) {
    return ls_node_bool(node, &r->ask->token_strs, r->err);
}
static ls_status take_return_text(parse *r, const ls_node *node) {
    return ls_node_bool(node, &r->ask->return_text, r->err);
}
static ls_status take_priority(parse *r, const ls_node *node) {
    return ls_node_int(node, INT32_MIN, INT32_MAX, &r->ask->priority, r->err);
}
static ls_status take_id(parse *r, const ls_node *node) { return copy_text(r, node, &r->ask->id); }

/* Text that keeps caches apart: never 0. */
static ls_status take_salt(parse *r, const ls_node *node) {
    const char *text;
    int64_t bytes;
    uint64_t hash;
    LS_TRY(ls_node_text(node, &text, &bytes, r->err));
    hash = ls_fnv_mix(LS_FNV_START, text, bytes);
    r->ask->salt = hash == 0 ? 1 : hash;
    return LS_OK;
}

static ls_status take_stop(parse *r, const ls_node *node) {
    const bool is_list = ls_node_kind_of(node) == LS_NODE_ARRAY;
    const int64_t n = is_list ? ls_node_count(node) : 1;
    int64_t bytes = 0;
    for (int64_t i = 0; i < n; i++) {
        const ls_node item = is_list ? ls_node_at(node, i) : *node;
        const char *text;
        int64_t more;
        if (r->ask->n_stop == LS_ASK_STOPS_MAX)
            return ls_node_fail(node, LS_ERR_CAPACITY, r->err, "more than %d texts", LS_ASK_STOPS_MAX);
        LS_TRY(ls_node_text(&item, &text, &more, r->err));
        if ((bytes += more) > LS_ASK_STOP_BYTES_MAX)
            return ls_node_fail(&item, LS_ERR_CAPACITY, r->err, "the texts have more than %d bytes",
                                LS_ASK_STOP_BYTES_MAX);
        LS_TRY(copy_text(r, &item, &r->ask->stop[r->ask->n_stop]));
        if (r->ask->stop[r->ask->n_stop++][0] == '\0')
            return ls_node_fail(&item, LS_ERR_ARG, r->err, "the text is empty");
    }
    if (n > 0 && r->limits->tokenizer == NULL)
        return ls_node_fail(node, LS_ERR_UNSUPPORTED, r->err, "the model has no tokenizer: give stop_token_ids");
    return LS_OK;
}
static ls_status take_stop_ids(parse *r, const ls_node *node) {
    LS_TRY(ls_node_expect(node, LS_NODE_ARRAY, r->err));
    for (int64_t i = 0; i < ls_node_count(node); i++) {
        const ls_node item = ls_node_at(node, i);
        int64_t id;
        if (i == LS_ASK_STOPS_MAX)
            return ls_node_fail(node, LS_ERR_CAPACITY, r->err, "more than %d tokens", LS_ASK_STOPS_MAX);
        LS_TRY(ls_node_int(&item, 0, r->limits->vocab - 1, &id, r->err));
        r->ask->stop_ids[r->ask->n_stop_ids++] = (int32_t)id;
    }
    return LS_OK;
}

static ls_status take_top(parse *r, const ls_node *node, int64_t *out) {
    return ls_node_int(node, 0, LS_ASK_TOP_MAX, out, r->err);
}
/* A number for completions and tokens, true or false for chats. */
static ls_status take_logprobs(parse *r, const ls_node *node) { return take_top(r, node, &r->ask->top); }
static ls_status take_chat_logprobs(parse *r, const ls_node *node) {
    return ls_node_bool(node, &r->chat_logprobs, r->err);
}
static ls_status take_top_logprobs(parse *r, const ls_node *node) { return take_top(r, node, &r->chat_top); }
static ls_status take_prompt_logprobs(parse *r, const ls_node *node) { return take_top(r, node, &r->ask->prompt_top); }
static ls_status take_return_logprob(parse *r, const ls_node *node) {
    bool wanted;
    LS_TRY(ls_node_bool(node, &wanted, r->err));
    if (wanted && r->ask->top < 0) r->ask->top = 0;
    return LS_OK;
}
static ls_status take_logprob_start(parse *r, const ls_node *node) {
    int64_t start;
    LS_TRY(ls_node_int(node, -1, INT32_MAX, &start, r->err));
    if (start > 0) return refuse_field(r, node);
    if (start == 0 && r->ask->prompt_top < 0) r->ask->prompt_top = 0;
    return LS_OK;
}

static ls_status take_stream_options(parse *r, const ls_node *node) {
    static const char *const keys[] = {"include_usage", "continuous_usage_stats", NULL};
    ls_node child;
    LS_TRY(ls_node_expect(node, LS_NODE_OBJECT, r->err));
    LS_TRY(ls_node_only(node, keys, r->err));
    if (ls_node_get_some(node, "continuous_usage_stats", &child)) LS_TRY(only_false(r, &child));
    return ls_node_get_some(node, "include_usage", &child) ? ls_node_bool(&child, &r->ask->usage_at_end, r->err)
                                                           : LS_OK;
}

static ls_status take_address(parse *r, const ls_node *object, const char *key, uint32_t *out) {
    ls_node child;
    int64_t value;
    if (!ls_node_get_some(object, key, &child)) return LS_OK;
    LS_TRY(ls_node_int(&child, 0, UINT32_MAX, &value, r->err));
    *out = (uint32_t)value;
    return LS_OK;
}

/* true, or an object of what is wanted beside the rest. */
static ls_status take_lockstep(parse *r, const ls_node *node) {
    static const char *const keys[] = {"distributions", "mask", "prompt", "sample", NULL};
    ls_node child;
    if (ls_node_kind_of(node) == LS_NODE_BOOL) return ls_node_bool(node, &r->ask->lockstep, r->err);
    LS_TRY(ls_node_expect(node, LS_NODE_OBJECT, r->err));
    LS_TRY(ls_node_only(node, keys, r->err));
    r->ask->lockstep = true;
    if (ls_node_get_some(node, "distributions", &child)) LS_TRY(ls_node_bool(&child, &r->ask->distributions, r->err));
    if (ls_node_get_some(node, "mask", &child)) LS_TRY(ls_node_bool(&child, &r->ask->mask, r->err));
    LS_TRY(take_address(r, node, "prompt", &r->ask->first_prompt));
    return take_address(r, node, "sample", &r->ask->first_sample);
}

static ls_status take_members(parse *r, const ls_node *object, int where);
static ls_status take_params(parse *r, const ls_node *node) {
    LS_TRY(ls_node_expect(node, LS_NODE_OBJECT, r->err));
    return take_members(r, node, r->ask->kind == LS_ASK_SGLANG ? GPARAMS : PARAMS);
}

/* ---- the table ---- */

static const struct {
    const char *key;
    int where;
    taker take;
} fields[] = {
    {"model", C | H | T | S | K, take_model},
    {"prompt", C, take_prompt},
    {"prompt", K, take_one_text},
    {"token_ids", T, take_prompt_ids},
    {"input_ids", G, take_prompt_ids},
    {"text", G, take_prompt_text},
    {"sequences", S, take_prompt_ids},
    {"messages", H | K, take_messages},
    {"tools", H | K, take_tools}, /* of the conversation, and so are these */
    {"documents", H | K, take_nothing},
    {"chat_template_kwargs", H | K, take_nothing},
    {"add_generation_prompt", H | K, take_nothing},
    {"continue_final_message", H | K, only_false},
    {"add_special_tokens", C | H | K, take_nothing}, /* read before all others */
    {"return_token_strs", K, take_token_strs},
    {"tool_choice", H, take_tool_choice},
    {"parallel_tool_calls", H, take_parallel_calls},
    {"sampling_params", T | G, take_params},
    {"n", SAMPLED, take_n},
    {"best_of", C | PARAMS, only_one},
    {"max_tokens", C | H | PARAMS, take_max_tokens},
    {"max_completion_tokens", H, take_max_tokens},
    {"max_new_tokens", GPARAMS, take_max_tokens},
    {"min_tokens", SAMPLED, only_zero},
    {"min_new_tokens", GPARAMS, only_zero},
    {"temperature", SAMPLED, take_temperature},
    {"top_p", SAMPLED, take_top_p},
    {"top_k", SAMPLED, take_top_k},
    {"min_p", SAMPLED, take_min_p},
    {"seed", C | H | PARAMS, take_seed},
    {"sampling_seed", GPARAMS, take_seed},
    {"stop", SAMPLED, take_stop},
    {"stop_token_ids", SAMPLED, take_stop_ids},
    {"ignore_eos", SAMPLED, take_ignore_eos},
    {"include_stop_str_in_output", C | H | PARAMS, take_keeps_stop},
    {"no_stop_trim", GPARAMS, take_keeps_stop},
    {"skip_special_tokens", SAMPLED, take_skip_special},
    {"spaces_between_special_tokens", SAMPLED, take_nothing},
    {"presence_penalty", SAMPLED, take_presence},
    {"frequency_penalty", SAMPLED, take_frequency},
    {"repetition_penalty", SAMPLED, take_repetition},
    {"length_penalty", SAMPLED, only_one},
    {"logit_bias", SAMPLED, only_empty},
    {"bad_words", C | H | PARAMS, only_empty},
    {"use_beam_search", C | H, only_false},
    {"echo", C | H, no_echo},
    {"response_format", C | H, only_text_format},
    {"logprobs", C | PARAMS, take_logprobs},
    {"logprobs", H, take_chat_logprobs},
    {"top_logprobs", H, take_top_logprobs},
    {"prompt_logprobs", C | H | PARAMS, take_prompt_logprobs},
    {"return_logprob", G, take_return_logprob},
    {"top_logprobs_num", G, take_logprobs},
    {"logprob_start_len", G, take_logprob_start},
    {"return_text_in_logprobs", G, take_return_text},
    {"stream", C | H | T | G, take_stream},
    {"stream_options", C | H | T, take_stream_options},
    {"return_token_ids", C | H | T, take_return_ids},
    {"return_tokens_as_token_ids", C | H, take_ids_as_tokens},
    {"output_mode", T, take_nothing},
    {"output_kind", PARAMS, take_nothing},
    {"detokenize", PARAMS, take_nothing},
    {"cache_salt", C | H | T, take_salt},
    {"priority", C | H | T | G, take_priority},
    {"request_id", C | H | T, take_id},
    {"rid", G, take_id},
    {"user", C | H, take_nothing},
    {"metadata", C | H, take_nothing},
    {"store", H, only_false},
    {"lockstep", TOP, take_lockstep},
};

/* null says nothing, anywhere. */
static ls_status take_members(parse *r, const ls_node *object, int where) {
    void *iterator = NULL;
    ls_node child;
    while (ls_node_next(object, &iterator, &child)) {
        size_t i = 0;
        if (ls_node_kind_of(&child) == LS_NODE_NULL) continue;
        while (i < sizeof fields / sizeof fields[0] &&
               ((fields[i].where & where) == 0 || strcmp(fields[i].key, child.key) != 0))
            i++;
        if (i == sizeof fields / sizeof fields[0])
            return ls_node_fail(&child, LS_ERR_UNSUPPORTED, r->err, "this field is not supported");
        LS_TRY(fields[i].take(r, &child));
    }
    return LS_OK;
}

static void set_defaults(ls_ask *a, ls_ask_kind kind) {
    a->kind = kind;
    a->n = kind == LS_ASK_SCORE ? 0 : 1;
    a->max_tokens = kind == LS_ASK_COMPLETION ? 16 : kind == LS_ASK_SGLANG ? 128 : -1;
    if (kind & (LS_ASK_SCORE | LS_ASK_TOKENIZE)) a->max_tokens = 0;
    a->sampling = (ls_sampling){.temperature = 1.0f, .top_p = 1.0f};
    a->penalties.repetition = 1.0f;
    a->top = a->prompt_top = -1;
    if (kind == LS_ASK_SCORE) a->prompt_top = 0;
    a->return_text = true;
}

/* What the prompt depends on, wherever it stands in the body. As with vLLM a chat's template writes its special tokens
 * itself, and all other texts get the tokenizer's. */
static ls_status look_ahead(parse *r, const ls_node *root) {
    const int kinds = C | H | K;
    ls_node node;
    r->add_special = r->ask->kind != LS_ASK_CHAT && !ls_node_get_some(root, "messages", &node);
    if (((int)r->ask->kind & kinds) != 0 && ls_node_get_some(root, "add_special_tokens", &node))
        return ls_node_bool(&node, &r->add_special, r->err);
    return LS_OK;
}

/* What one field cannot know. */
static ls_status finish_ask(parse *r) {
    static const char *const missing[] = {
        [LS_ASK_COMPLETION] = "prompt", [LS_ASK_CHAT] = "messages",   [LS_ASK_TOKENS] = "token_ids",
        [LS_ASK_SGLANG] = "input_ids",  [LS_ASK_SCORE] = "sequences", [LS_ASK_TOKENIZE] = "prompt"};
    ls_ask *a = r->ask;
    if (a->n_prompts == 0) return LS_FAIL(r->err, LS_ERR_FORMAT, "request: '%s' is missing", missing[a->kind]);
    if (a->kind == LS_ASK_TOKENS && a->n_prompts > 1)
        return LS_FAIL(r->err, LS_ERR_ARG, "request: token_ids: one sequence is required");
    if (r->chat_logprobs) a->top = r->chat_top > 0 ? r->chat_top : 0;
    if (!r->chat_logprobs && r->chat_top > 0)
        return LS_FAIL(r->err, LS_ERR_ARG, "request: top_logprobs: logprobs is not true");
    if (a->n_prompts * (a->n > 0 ? a->n : 1) > LS_ASK_SAMPLES_MAX)
        return LS_FAIL(r->err, LS_ERR_CAPACITY, "request: n: %lld prompts with %lld completions each; %d are the most",
                       (long long)a->n_prompts, (long long)a->n, LS_ASK_SAMPLES_MAX);
    if (a->n_prompts - 1 > (int64_t)(UINT32_MAX - a->first_prompt) ||
        a->n - 1 > (int64_t)(UINT32_MAX - a->first_sample))
        return LS_FAIL(r->err, LS_ERR_ARG, "request: lockstep: prompt %lu and sample %lu leave no numbers for the rest",
                       (unsigned long)a->first_prompt, (unsigned long)a->first_sample);
    if (a->mask && (a->sampling.top_k < 1 || a->sampling.top_k > LS_ASK_MASK_MAX))
        return LS_FAIL(r->err, LS_ERR_UNSUPPORTED, "request: lockstep.mask: needs a top_k in 1..%d", LS_ASK_MASK_MAX);
    if (ls_penalties_act(&a->penalties) && (a->mask || a->distributions || r->limits->processed))
        return LS_FAIL(r->err, LS_ERR_UNSUPPORTED, "request: penalties: not with %s",
                       a->mask            ? "lockstep.mask"
                       : a->distributions ? "lockstep.distributions"
                                          : "a server of processed log-probabilities");
    if (a->max_tokens == 0 && a->n > 1)
        return LS_FAIL(r->err, LS_ERR_ARG, "request: n: %lld completions of no token", (long long)a->n);
    if (a->stream && a->kind == LS_ASK_SCORE)
        return LS_FAIL(r->err, LS_ERR_UNSUPPORTED, "request: stream: scores are not streamed");
    if (r->has_tools && !r->wants_no_calls) a->calls = r->limits->calls;
    if (a->calls != LS_CALLS_NONE && !r->has_skip_special) a->keeps_special = true; /* what begins a call may be one */
    for (int64_t i = 0; i < a->n_prompts && a->max_tokens > 0; i++)
        if (a->max_tokens > r->limits->length_max - a->prompts[i].n)
            return LS_FAIL(
                r->err, LS_ERR_CAPACITY,
                "request: max_tokens: %lld tokens of prompt and %lld of completion are more than the maximum "
                "context length of %lld tokens",
                (long long)a->prompts[i].n, (long long)a->max_tokens, (long long)r->limits->length_max);
    return ls_sampling_check(&a->sampling, r->err);
}

int64_t ls_ask_room(const ls_ask *a, const ls_ask_limits *limits, int64_t prompt_i) {
    return a->max_tokens >= 0 ? a->max_tokens : limits->length_max - a->prompts[prompt_i].n;
}

ls_status ls_ask_parse(ls_ask **out, ls_ask_kind kind, const ls_ask_limits *limits, const char *json, int64_t bytes,
                       ls_error *err) {
    ls_json_doc *doc = NULL;
    parse r = {.limits = limits, .chat_top = -1, .err = err};
    ls_node root;
    ls_status status;
    *out = NULL;
    LS_TRY_DONE(ls_array_alloc((void **)&r.ask, 1, sizeof *r.ask, "request", err));
    set_defaults(r.ask, kind);
    LS_TRY_DONE(ls_json_doc_open(&doc, json, bytes, "request", err));
    root = ls_json_root(doc);
    LS_TRY_DONE(look_ahead(&r, &root));
    LS_TRY_DONE(take_members(&r, &root, (int)kind));
    LS_TRY_DONE(finish_ask(&r));
    *out = r.ask;
    r.ask = NULL;
done:
    ls_json_doc_free(doc);
    ls_ask_free(r.ask);
    return status;
}

void ls_ask_free(ls_ask *a) {
    if (a == NULL) return;
    for (int64_t i = 0; i < a->n_prompts; i++) free(a->prompts[i].ids);
    for (int64_t i = 0; i < LS_ASK_STOPS_MAX; i++) free(a->stop[i]);
    free(a->prompts);
    free(a->id);
    free(a);
}

ls_status ls_ask_parse_ids(int32_t **ids, int64_t *n, const ls_ask_limits *limits, const char *json, int64_t bytes,
                           ls_error *err) {
    static const char *const keys[] = {"model", "tokens", NULL};
    ls_json_doc *doc = NULL;
    parse r = {.limits = limits, .err = err};
    ls_node root, node;
    ls_status status;
    *ids = NULL;
    *n = 0;
    LS_TRY_DONE(ls_json_doc_open(&doc, json, bytes, "request", err));
    root = ls_json_root(doc);
    LS_TRY_DONE(ls_node_only(&root, keys, err));
    if (ls_node_get_some(&root, "model", &node)) LS_TRY_DONE(take_model(&r, &node));
    LS_TRY_DONE(ls_node_need_kind(&root, "tokens", LS_NODE_ARRAY, &node, err));
    LS_TRY_DONE(ls_array_alloc((void **)ids, ls_node_count(&node), sizeof **ids, "tokens", err));
    for (; *n < ls_node_count(&node); ++*n) {
        const ls_node item = ls_node_at(&node, *n);
        int64_t id;
        LS_TRY_DONE(ls_node_int(&item, 0, limits->vocab - 1, &id, err));
        (*ids)[*n] = (int32_t)id;
    }
done:
    ls_json_doc_free(doc);
    if (status != LS_OK) {
        free(*ids);
        *ids = NULL;
    }
    return status;
}
