/* The dialects: how each server is asked to generate and to score, and what its answers say. */
#define _POSIX_C_SOURCE 200809L
#include "diagnose/trial/probe_server.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "diagnose/trial/probe_ask.h"
#include "json/json_node.h"
#include "record/answers.h"

/* A client that goes away does so in the middle of its request, and others begin while it runs. */
#define LEAVE_S 0.03
#define BEHIND_LEAVERS_S 0.06
#define STAGGER_S 0.015
enum { LEAVERS = 2, LOADERS = 16, LOAD_TOKENS = 96, LOAD_NEW = 48, LEAVER_NEW = 64, STOPS = 1024 };

static const char *const texts[LS_SERVER_TEXTS] = {
    "The river runs past the old mill, and nobody has opened its gates for thirty years.",
    "If a train leaves at noon with 48 people and stops twice, how many of them are left in the end?",
    "def area(width, height):\n    return width * height\n\nprint(area(3, 4))",
    "Dear Sir, thank you for your letter of 9 May; the parts will be sent as soon as the weather allows."};
const char *ls_probe_text(int64_t text_i) { return texts[text_i]; }

static const struct {
    const char *name, *owner, *generate;
    ls_answer_format generated, scored;
} dialects[LS_DIALECTS] = {{"vllm", "vllm", "/v1/completions", LS_ANSWER_VLLM, LS_ANSWER_VLLM_PROMPT},
                           {"sglang", "sglang", "/generate", LS_ANSWER_SGLANG, LS_ANSWER_SGLANG_PROMPT},
                           {"llama.cpp", "llamacpp", "/completion", LS_ANSWER_LLAMA_CPP, LS_ANSWER_LLAMA_CPP}};
const char *ls_dialect_name(ls_dialect dialect) { return dialects[dialect].name; }

/* ---- calls ---- */

typedef struct calls {
    ls_http_call *of;
    int64_t n, cap;
} calls;

static void free_calls(calls *c) {
    for (int64_t i = 0; i < c->n; i++) {
        ls_http_call_deinit(&c->of[i]);
        free((char *)(uintptr_t)c->of[i].body);
    }
    free(c->of);
}

static ls_status add_server_call(calls *c, ls_probe_server *s, const ls_probe_ask *a, double start, double leave,
                                 bool is_extra, ls_error *err) {
    char *body = NULL;
    int64_t bytes = 0;
    LS_TRY(ls_array_grow((void **)&c->of, &c->cap, c->n + 1, sizeof *c->of, "requests", err));
    LS_TRY(ls_probe_ask_write(&body, &bytes, s, a, err));
    c->of[c->n++] = (ls_http_call){.path = dialects[s->dialect].generate,
                                   .body = body,
                                   .body_bytes = bytes,
                                   .start = start,
                                   .leave = leave,
                                   .is_extra = is_extra};
    s->n_requests++;
    s->n_tokens += a->n + a->samples * a->n_new;
    return LS_OK;
}

/* Sends, and counts how each ended. */
static ls_status send_calls(ls_probe_server *s, ls_http_call *of, int64_t n, int64_t at_once, const ls_limits *limits,
                            ls_error *err) {
    const ls_status status = ls_http_run(s->http, of, n, at_once, limits->timeout, limits->end, err);
    for (int64_t i = 0; i < n; i++) {
        s->odd.n_requests += !of[i].is_extra && of[i].end != LS_HTTP_NOT_BEGUN;
        if (!of[i].is_extra && of[i].end == LS_HTTP_TIMED_OUT)
            ls_failures_add(&s->odd.failures, LS_FAILURE_TIMED_OUT, "%s%s: no answer after %g s", s->url, of[i].path,
                            limits->timeout);
        if (!of[i].is_extra && of[i].end == LS_HTTP_BROKEN)
            ls_failures_add(&s->odd.failures, LS_FAILURE_DIED, "%s%s: %s", s->url, of[i].path, of[i].why);
    }
    return status;
}

/* Why a request has no outcome. */
static ls_failure failure_of(const ls_http_call *c) {
    switch (c->end) {
        case LS_HTTP_NOT_BEGUN:
        case LS_HTTP_CUT: return LS_FAILURE_NO_TIME;
        case LS_HTTP_TIMED_OUT: return LS_FAILURE_TIMED_OUT;
        case LS_HTTP_LEFT:
        case LS_HTTP_BROKEN: return LS_FAILURE_DIED;
        case LS_HTTP_ANSWERED: break;
    }
    return LS_FAILURE_GAVE_UP;
}

/* What an answer that is no success says. */
static ls_status blame(const ls_probe_server *s, const ls_http_call *c, ls_error *err) {
    if (c->http == 0) return LS_FAIL(err, LS_ERR_DEVICE, "%s%s: %s", s->url, c->path, c->why);
    return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s%s: status %ld: %.120s", s->url, c->path, c->http,
                   c->answer != NULL ? c->answer : "");
}

static ls_status call_once(ls_probe_server *s, const char *path, const char *body, ls_http_call *out, ls_error *err) {
    *out = (ls_http_call){.path = path, .body = body, .body_bytes = body != NULL ? (int64_t)strlen(body) : 0};
    s->n_requests++;
    return send_calls(s, out, 1, 1, &s->limits, err);
}

static bool reset_cache(ls_probe_server *s) {
    ls_http_call c;
    ls_error ignored;
    bool done;
    if (s->dialect == LS_DIALECT_LLAMA_CPP) return false;
    if (call_once(s, s->dialect == LS_DIALECT_SGLANG ? "/flush_cache" : "/reset_prefix_cache", "", &c, &ignored) !=
        LS_OK)
        return false;
    done = c.http >= 200 && c.http < 300;
    ls_http_call_deinit(&c);
    return done;
}

/* ---- what answers say ---- */

static bool get_path(const ls_node *root, const char *a, const char *b, ls_node *holder, ls_node *out) {
    if (!ls_node_get_some(root, a, holder)) return false;
    if (b == NULL) {
        *out = *holder;
        return true;
    }
    return ls_node_kind_of(holder) == LS_NODE_OBJECT && ls_node_get_some(holder, b, out);
}

/* How many tokens the prompt had by its own account; -1: it does not say. */
static int64_t reported_prompt(const ls_probe_server *s, const ls_http_call *c) {
    static const char *const where[LS_DIALECTS][2] = {
        {"usage", "prompt_tokens"}, {"meta_info", "prompt_tokens"}, {"tokens_evaluated", NULL}};
    ls_json_doc *doc = NULL;
    ls_node root, holder, node;
    ls_error ignored;
    int64_t n = -1;
    if (c->answer_bytes == 0 || c->answer[0] != '{') return -1;
    if (ls_json_doc_open(&doc, c->answer, c->answer_bytes, c->path, &ignored) != LS_OK) return -1;
    root = ls_json_root(doc);
    if (get_path(&root, where[s->dialect][0], where[s->dialect][1], &holder, &node) &&
        ls_node_int(&node, 0, INT64_MAX, &n, &ignored) != LS_OK)
        n = -1;
    ls_json_doc_free(doc);
    return n;
}

static void compare_prompt(ls_probe_server *s, const int32_t *reported, int64_t n_reported, const int32_t *ids,
                           int64_t n) {
    s->odd.n_answers++;
    if (n_reported > n) {
        s->odd.n_longer++;
        s->odd.longer_by = n_reported - n;
    } else if (n_reported < n) {
        s->odd.n_shorter++;
    } else if (reported != NULL && memcmp(reported, ids, (size_t)n * sizeof *ids) != 0) {
        s->odd.n_other++;
    }
}

static ls_status take_sample(ls_probe_server *s, ls_outcome *c, const ls_record *r, int64_t most, bool is_llama_cpp,
                             ls_error *err) {
    if (r->completion_ids == NULL || r->n_logprobs != r->n_completion)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED,
                       "the answers tell no token ids; this server is too old for return_token_ids or lacks it");
    if (r->n_completion > most)
        return LS_FAIL(err, LS_ERR_FORMAT, "%" PRId64 " tokens came, %" PRId64 " were asked for", r->n_completion,
                       most);
    c->n = r->n_completion;
    c->n_hit = r->cache_hit;
    c->slot = (int32_t)r->slot;
    for (int64_t i = 0; i < c->n && is_llama_cpp; i++)
        if (r->logprob_missing[i]) c->n = i; /* a token within a character has none, which is no fault of a value */
    s->odd.n_values += c->n;
    s->odd.n_missing_first += c->n > 0 && r->logprob_missing[0];
    for (int64_t i = 0; i < c->n; i++) {
        s->odd.n_missing += r->logprob_missing[i];
        c->completion[i] = r->completion_ids[i];
        c->logprob[i] = r->logprob_missing[i] ? (float)NAN : r->logprobs[i];
    }
    return LS_OK;
}

/* The samples of one request, to `out` and those behind it. */
static ls_status take_server_answer(ls_probe_server *s, ls_outcome *out, const ls_trial *trial, const ls_http_call *c,
                                    ls_error *err) {
    const int64_t samples = trial->levers.samples;
    ls_record *records = NULL;
    int64_t n = 0, reported;
    ls_status status;
    if (c->http >= 400 && c->http < 500) return blame(s, c, err);
    if (c->http < 200 || c->http >= 300) {
        for (int64_t i = 0; i < samples; i++) out[i].failure = failure_of(c);
        return LS_OK;
    }
    LS_TRY_DONE(
        ls_answers_parse_any(&records, &n, c->answer, c->answer_bytes, c->path, dialects[s->dialect].generated, err));
    if (n != samples) {
        status = LS_FAIL(err, LS_ERR_FORMAT, "%s: %" PRId64 " completions for %" PRId64, c->path, n, samples);
        goto done;
    }
    reported = records[0].prompt_ids != NULL ? records[0].n_prompt : reported_prompt(s, c);
    if (reported >= 0) compare_prompt(s, records[0].prompt_ids, reported, out->prompt, out->n_prompt);
    for (int64_t i = 0; i < samples; i++)
        LS_TRY_DONE(take_sample(s, &out[i], &records[i], trial->max_tokens, s->dialect == LS_DIALECT_LLAMA_CPP, err));
done:
    ls_records_free(records, n);
    return status;
}

/* ---- a trial ---- */

static const char *text_of(const ls_probe_server *s, const ls_prompt *p) {
    for (int64_t i = 0, at = 0; i < LS_SERVER_TEXTS; at += s->text_n[i++])
        if (p->n == s->text_n[i] && memcmp(p->ids, s->text_ids + at, (size_t)p->n * sizeof *p->ids) == 0)
            return texts[i];
    return NULL;
}

static ls_status check_budget(const ls_probe_server *s, const ls_trial *trial, const ls_prompt *prompts, int64_t n,
                              ls_failure *why, ls_error *err) {
    const int64_t per =
        s->dialect == LS_DIALECT_LLAMA_CPP ? 1 + trial->levers.samples * trial->max_tokens : 1 + trial->levers.samples;
    int64_t tokens = 0;
    for (int64_t i = 0; i < n; i++) {
        if (s->length_max > 0 && prompts[i].n + trial->max_tokens + 1 > s->length_max)
            return LS_FAIL(err, LS_ERR_UNSUPPORTED, "the server takes %" PRId64 " tokens at most", s->length_max);
        tokens += per * (prompts[i].n + trial->max_tokens);
    }
    *why = LS_FAILURE_NO_ROOM;
    if (s->max_requests > 0 && s->n_requests + per * n * trial->rounds > s->max_requests)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "--max-requests %" PRId64 " leaves no room for it", s->max_requests);
    if (s->max_tokens > 0 && s->n_tokens + tokens * trial->rounds > s->max_tokens)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "--max-tokens %" PRId64 " leaves no room for it", s->max_tokens);
    *why = LS_FAILURE_NONE;
    return LS_OK;
}

/* Other people's requests: their texts are the trial's own, backwards. */
static ls_status add_strangers(calls *c, ls_probe_server *s, const ls_trial *trial, const ls_prompt *prompts, int64_t n,
                               ls_error *err) {
    const bool load = (trial->outside & LS_OUTSIDE_LOAD) != 0, marked = (trial->outside & LS_OUTSIDE_MARKED) != 0;
    const bool leave = (trial->outside & LS_OUTSIDE_LEAVERS) != 0;
    const int64_t n_strangers = load ? LOADERS : LEAVERS * n;
    int32_t ids[LOAD_TOKENS];
    for (int64_t k = 0; k < n_strangers; k++) {
        const ls_prompt *p = &prompts[k % n];
        ls_probe_ask a = {.ids = ids,
                          .n = load                 ? LOAD_TOKENS
                               : p->n < LOAD_TOKENS ? p->n
                                                    : LOAD_TOKENS,
                          .draws = &trial->sampling,
                          .samples = 1,
                          .n_new = load    ? LOAD_NEW
                                   : leave ? LEAVER_NEW
                                           : trial->max_tokens,
                          .marked = marked,
                          .forced = -1,
                          .slot_id = -1};
        for (int64_t i = 0; i < a.n; i++) ids[i] = p->ids[(a.n - 1 - i + k / n) % p->n];
        if (s->dialect == LS_DIALECT_VLLM) a.salt = ++s->n_salts;
        LS_TRY(add_server_call(c, s, &a, 0.0, leave ? LEAVE_S + 0.005 * (double)k : 0.0, true, err));
    }
    return LS_OK;
}

/* One round over the prompts. */
static ls_status run_round(ls_probe_server *s, const ls_trial *trial, const ls_prompt *prompts, int64_t n,
                           uint64_t shared_salt, ls_outcome *out, ls_error *err) {
    const bool strange = (trial->outside & (LS_OUTSIDE_LEAVERS | LS_OUTSIDE_LOAD | LS_OUTSIDE_MARKED)) != 0;
    const bool staggered = (trial->outside & LS_OUTSIDE_STAGGERED) != 0;
    calls c = {0};
    int64_t first;
    ls_status status;
    if (strange) LS_TRY_DONE(add_strangers(&c, s, trial, prompts, n, err));
    first = c.n;
    for (int64_t i = 0; i < n; i++) {
        ls_probe_ask a = {.ids = prompts[i].ids,
                          .n = prompts[i].n,
                          .draws = &trial->sampling,
                          .samples = trial->levers.samples,
                          .n_new = trial->max_tokens,
                          .forced = -1,
                          .cache = trial->levers.prefix != LS_PREFIX_OFF,
                          .n_stops = (trial->outside & LS_OUTSIDE_STOPS) != 0 ? STOPS : 0,
                          .slot_id = -1};
        if (trial->outside & LS_OUTSIDE_TEXT) {
            a.text = text_of(s, &prompts[i]);
            if (a.text == NULL) {
                status = LS_FAIL(err, LS_ERR_UNSUPPORTED, "only whole texts can be sent");
                goto done;
            }
        }
        if (s->dialect == LS_DIALECT_LLAMA_CPP && trial->levers.slot_base > 0)
            a.slot_id = trial->levers.slot_base % (s->n_slots > 0 ? s->n_slots : 1);
        a.salt = a.cache ? shared_salt : s->dialect == LS_DIALECT_VLLM ? ++s->n_salts : 0;
        if (trial->outside & LS_OUTSIDE_UNSALTED) a.salt = 0;
        LS_TRY_DONE(add_server_call(&c, s, &a,
                                    staggered ? STAGGER_S * (double)i
                                    : strange ? BEHIND_LEAVERS_S
                                              : 0.0,
                                    0.0, false, err));
    }
    LS_TRY_DONE(send_calls(s, c.of, c.n, trial->levers.batch, &trial->limits, err));
    for (int64_t i = 0; i < n; i++)
        LS_TRY_DONE(take_server_answer(s, &out[i * trial->levers.samples], trial, &c.of[first + i], err));
done:
    free_calls(&c);
    return status;
}

static ls_status run_server(void *context, const ls_trial *trial, const ls_prompt *prompts, int64_t n_prompts,
                            ls_outcomes *out, ls_error *err) {
    ls_probe_server *s = context;
    /* What other trials left in the cache is none of this one's; a server of ours caches nothing that has a salt. */
    const bool salts = s->dialect == LS_DIALECT_VLLM && strcmp(s->who, "lockstep") != 0;
    const uint64_t shared_salt = salts ? ++s->n_salts : 0;
    LS_TRY(check_budget(s, trial, prompts, n_prompts, &out->failures.whole, err));
    if (s->can_reset && !salts) (void)reset_cache(s);
    for (int64_t round = 0; round < trial->rounds; round++) {
        if (round > 0 && (trial->outside & LS_OUTSIDE_RESET) && !reset_cache(s))
            return LS_FAIL(err, LS_ERR_UNSUPPORTED, "the cache cannot be emptied");
        LS_TRY(run_round(s, trial, prompts, n_prompts, shared_salt, &out->of[round * n_prompts * trial->levers.samples],
                         err));
    }
    out->promises_nothing = true;
    for (int64_t i = 0; i < out->n; i++) {
        if (out->of[i].failure != LS_FAILURE_NO_TIME) continue;
        out->failures.whole = LS_FAILURE_NO_TIME;
        return LS_FAIL(err, LS_ERR_CAPACITY, "no time was left");
    }
    return LS_OK;
}

/* ---- scores ---- */

/* The values of one sequence from the answer to it as a prompt. False: they are not there. */
static bool take_values(ls_probe_server *s, const ls_scored *one, const ls_http_call *c) {
    ls_record *records = NULL;
    int64_t n = 0, reported, offset;
    bool others = false;
    ls_error ignored;
    if (c->http < 200 || c->http >= 300 ||
        ls_answers_parse(&records, &n, c->answer, c->answer_bytes, c->path, dialects[s->dialect].scored, false,
                         &ignored) != LS_OK)
        return false;
    reported = records[0].n_logprobs + 1;
    offset = reported - one->n; /* aligned at the end */
    compare_prompt(s, NULL, reported, one->tokens, one->n);
    for (int64_t i = 1; i < one->n; i++) {
        const int64_t at = i - 1 + offset, id = records[0].is_tokens ? at + 1 : at;
        s->odd.n_again++;
        s->odd.n_missing_again += at >= 0 && records[0].logprob_missing[at];
        if (at < 0 || records[0].logprob_missing[at]) continue;
        one->values[i - 1] = records[0].logprobs[at];
        others = others || (records[0].completion_ids != NULL && records[0].completion_ids[id] != one->tokens[i]);
    }
    if (others && reported == one->n) s->odd.n_other++;
    if (others) /* of other tokens: nobody knows which */
        for (int64_t i = 0; i + 1 < one->n; i++) one->values[i] = (float)NAN;
    ls_records_free(records, n);
    return !others;
}

/* Nothing more is begun: values are not there for that, and not for the server. */
static ls_status no_time(ls_error *err) { return LS_FAIL(err, LS_ERR_CAPACITY, "no time was left"); }

static ls_status score_whole(ls_probe_server *s, const ls_scored *one, const ls_limits *limits, ls_error *err) {
    bool hangs = false;
    for (int tries = 0; tries < 2 && !hangs; tries++) {
        const ls_probe_ask a = {.ids = one->tokens,
                                .n = one->n,
                                .samples = 1,
                                .n_new = 1,
                                .scores = true,
                                .forced = -1,
                                .salt = s->dialect == LS_DIALECT_VLLM ? ++s->n_salts : 0,
                                .slot_id = -1};
        calls c = {0};
        ls_status status = add_server_call(&c, s, &a, 0.0, 0.0, false, err);
        bool done = false;
        if (status == LS_OK) status = send_calls(s, c.of, 1, 1, limits, err);
        if (status == LS_OK && failure_of(&c.of[0]) == LS_FAILURE_NO_TIME) status = no_time(err);
        hangs = status == LS_OK && c.of[0].end == LS_HTTP_TIMED_OUT; /* it would again */
        if (status == LS_OK && c.of[0].http >= 400 && c.of[0].http < 500) status = blame(s, &c.of[0], err);
        if (status == LS_OK) done = take_values(s, one, &c.of[0]);
        free_calls(&c);
        if (status != LS_OK || done) return status;
    }
    s->odd.n_not_again++;
    return LS_OK;
}

/* Token by token, each as the only one that may follow what is before it. */
static ls_status score_tokens(ls_probe_server *s, const ls_scored *one, const ls_limits *limits, ls_error *err) {
    calls c = {0};
    ls_status status;
    for (int64_t i = one->from; i < one->n; i++) {
        const ls_probe_ask a = {
            .ids = one->tokens, .n = i, .samples = 1, .n_new = 1, .forced = one->tokens[i], .slot_id = -1};
        s->forced[a.forced & (LS_FORCED - 1)] = true;
        LS_TRY_DONE(add_server_call(&c, s, &a, 0.0, 0.0, false, err));
    }
    LS_TRY_DONE(send_calls(s, c.of, c.n, 1, limits, err));
    for (int64_t i = one->from; i < one->n; i++) {
        const ls_http_call *call = &c.of[i - one->from];
        ls_record *records = NULL;
        int64_t n = 0;
        if (failure_of(call) == LS_FAILURE_NO_TIME) {
            status = no_time(err);
            goto done;
        }
        if (call->http >= 400 && call->http < 500) {
            status = blame(s, call, err);
            goto done;
        }
        if (call->http == 200 && ls_answers_parse(&records, &n, call->answer, call->answer_bytes, call->path,
                                                  LS_ANSWER_LLAMA_CPP, false, NULL) == LS_OK) {
            const int64_t reported = reported_prompt(s, call);
            if (reported >= 0) compare_prompt(s, NULL, reported, one->tokens, i);
            if (records[0].n_logprobs == 1 && records[0].completion_ids[0] == one->tokens[i])
                one->values[i - 1] = records[0].logprobs[0];
            else if (records[0].n_completion == 1)
                s->odd.n_unforced++,
                    s->odd.n_forced_before += s->forced[records[0].completion_ids[0] & (LS_FORCED - 1)];
            else
                s->odd.n_other++;
            ls_records_free(records, n);
        } else {
            s->odd.n_not_again++;
        }
    }
done:
    free_calls(&c);
    return status;
}

static ls_status score_by_server(void *context, const ls_trial *trial, const ls_scored *list, int64_t n,
                                 ls_error *err) {
    ls_probe_server *s = context;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t t = 0; t + 1 < list[i].n; t++) list[i].values[t] = (float)NAN;
        LS_TRY(s->dialect == LS_DIALECT_LLAMA_CPP ? score_tokens(s, &list[i], &trial->limits, err)
                                                  : score_whole(s, &list[i], &trial->limits, err));
    }
    return LS_OK;
}

/* ---- the smallest requests ---- */

static void print_curl(FILE *file, const ls_probe_server *s, const ls_probe_ask *a, bool is_last) {
    char *body = NULL;
    int64_t bytes;
    if (ls_probe_ask_write(&body, &bytes, s, a, NULL) != LS_OK) return;
    fprintf(file, "curl -s %s%s -H 'Content-Type: application/json' -d '", s->url, dialects[s->dialect].generate);
    for (const char *at = body; *at != '\0'; at++) { /* what a shell would take for the end of the word */
        if (*at == '\'')
            fputs("'\\''", file);
        else
            fputc(*at, file);
    }
    fprintf(file, "'%s\n", is_last ? "" : " &");
    free(body);
}

static void print_repro(void *context, FILE *file, const ls_trial *trial, const ls_prompt *prompts, int64_t n) {
    const ls_probe_server *s = context;
    const bool together = trial->levers.batch > 1;
    for (int64_t i = 0; i < n * trial->rounds; i++) {
        const ls_prompt *p = &prompts[i % n];
        const ls_probe_ask a = {.ids = p->ids,
                                .n = p->n,
                                .draws = &trial->sampling,
                                .samples = trial->levers.samples,
                                .n_new = trial->max_tokens,
                                .forced = -1,
                                .cache = trial->levers.prefix != LS_PREFIX_OFF,
                                .slot_id = -1};
        print_curl(file, s, &a, !together || i + 1 == n * trial->rounds);
    }
    fputs("# then the same tokens as a prompt, and its values beside those that came with them:\n", file);
    if (s->dialect == LS_DIALECT_LLAMA_CPP) {
        fputs("# the prompt and the completion up to a token, n_predict 1, logit_bias [[the token, 10000]]\n", file);
        return;
    }
    {
        const ls_probe_ask a = {
            .ids = prompts[0].ids, .n = prompts[0].n, .samples = 1, .n_new = 1, .scores = true, .forced = -1};
        fputs("# (the completion's ids go behind these)\n", file);
        print_curl(file, s, &a, true);
    }
}

/* ---- ids and texts ---- */

/* How a dialect asks for the ids of a text and for the text of ids; no path: it has neither. */
typedef struct text_words {
    const char *path, *back, *text, *special, *back_text;
} text_words;
static const text_words texts_words[LS_DIALECTS] = {
    [LS_DIALECT_VLLM] = {"/tokenize", "/detokenize", "prompt", "add_special_tokens", "prompt"},
    [LS_DIALECT_LLAMA_CPP] = {"/tokenize", "/detokenize", "content", "add_special", "content"}};

/* Sends an object of a text or of ids; false: there is no such answer. The caller releases both. */
static bool ask_words(ls_probe_server *s, const char *path, const char *text, bool special, const int32_t *ids,
                      int64_t n, ls_http_call *c, ls_json_doc **doc) {
    const text_words *w = &texts_words[s->dialect];
    ls_json_out json;
    ls_error ignored;
    char *body = NULL;
    size_t bytes;
    FILE *stream = open_memstream(&body, &bytes);
    bool answered = false;
    if (stream == NULL) return false;
    ls_json_init(&json, stream);
    ls_json_begin_object(&json, NULL);
    if (s->dialect == LS_DIALECT_VLLM) ls_json_string(&json, "model", s->model);
    if (text != NULL) {
        ls_json_string(&json, w->text, text);
        ls_json_bool(&json, w->special, special);
    } else {
        ls_json_begin_array(&json, "tokens");
        for (int64_t i = 0; i < n; i++) ls_json_int(&json, NULL, ids[i]);
        ls_json_end_array(&json);
    }
    ls_json_end_object(&json);
    answered = fclose(stream) == 0 && call_once(s, path, body, c, &ignored) == LS_OK && c->http == 200 &&
               ls_json_doc_open(doc, c->answer, c->answer_bytes, path, &ignored) == LS_OK;
    free(body);
    return answered;
}

/* The ids that a text becomes in front of the model. */
static int64_t ask_tokenize(ls_probe_server *s, const char *text, bool special, int32_t *ids, int64_t most) {
    ls_http_call c = {0};
    ls_json_doc *doc = NULL;
    ls_node root, list;
    ls_error ignored;
    int64_t n = 0;
    if (!ask_words(s, texts_words[s->dialect].path, text, special, NULL, 0, &c, &doc)) goto done;
    root = ls_json_root(doc);
    if (!ls_node_get_some(&root, "tokens", &list) || ls_node_kind_of(&list) != LS_NODE_ARRAY) goto done;
    for (; n < ls_node_count(&list) && n < most; n++) {
        const ls_node item = ls_node_at(&list, n);
        int64_t id;
        if (ls_node_int(&item, 0, INT32_MAX, &id, &ignored) != LS_OK) break;
        ids[n] = (int32_t)id;
    }
    if (n != ls_node_count(&list)) n = 0;
done:
    ls_json_doc_free(doc);
    ls_http_call_deinit(&c);
    return n;
}

static int64_t through_text(void *context, const int32_t *ids, int64_t n, bool special, int32_t *out, int64_t most) {
    ls_probe_server *s = context;
    ls_http_call c = {0};
    ls_json_doc *doc = NULL;
    ls_node root, node;
    ls_error ignored;
    const char *text;
    int64_t n_out = 0;
    if (!ask_words(s, texts_words[s->dialect].back, NULL, false, ids, n, &c, &doc)) goto done;
    root = ls_json_root(doc);
    if (ls_node_get_some(&root, texts_words[s->dialect].back_text, &node) &&
        ls_node_string(&node, &text, &ignored) == LS_OK)
        n_out = ask_tokenize(s, text, special, out, most);
done:
    ls_json_doc_free(doc);
    ls_http_call_deinit(&c);
    return n_out;
}

/* ---- who it is ---- */

static uint64_t lever(const char *name) { return (uint64_t)1 << ls_lever_find(name); }

/* Three tenths are left to the trials that tell causes apart and shrink requests. */
static bool is_near_limit(void *context) {
    const ls_probe_server *s = context;
    return (s->max_requests > 0 && 10 * s->n_requests > 7 * s->max_requests) ||
           (s->max_tokens > 0 && 10 * s->n_tokens > 7 * s->max_tokens);
}

ls_subject ls_subject_server(ls_probe_server *s) {
    ls_subject subject = {.context = s, .run = run_server, .is_program = true, .is_server = true};
    subject.obeys = lever("batch") | lever("prefix"); /* a cache that cannot be kept out is on in all trials */
    if (s->dialect != LS_DIALECT_LLAMA_CPP) subject.obeys |= lever("samples") | lever("fork");
    if (s->dialect == LS_DIALECT_LLAMA_CPP && s->n_slots > 1) subject.obeys |= lever("slot-base") | lever("slots");
    subject.is_near_limit = is_near_limit;
    subject.odd = &s->odd;
    subject.scores_by_token = s->dialect == LS_DIALECT_LLAMA_CPP;
    subject.repro = print_repro;
    if (texts_words[s->dialect].path != NULL) subject.through_text = through_text;
    subject.does = LS_OUTSIDE_STAGGERED | LS_OUTSIDE_LEAVERS | LS_OUTSIDE_LOAD | LS_OUTSIDE_MARKED;
    if (s->dialect != LS_DIALECT_LLAMA_CPP) subject.does |= LS_OUTSIDE_STOPS;
    subject.records_processed = s->dialect == LS_DIALECT_SGLANG;
    if (s->dialect == LS_DIALECT_VLLM) subject.does |= LS_OUTSIDE_UNSALTED; /* others know no salts */
    if (s->can_reset) subject.does |= LS_OUTSIDE_RESET;
    if (s->text_n[0] > 0) subject.does |= LS_OUTSIDE_TEXT;
    return subject;
}

ls_scorer ls_scorer_server(ls_probe_server *server) {
    const ls_scorer scorer = {server, score_by_server};
    return scorer;
}

static void copy_text(char *out, size_t bytes, const ls_node *object, const char *key) {
    ls_node node;
    const char *text;
    ls_error ignored;
    if (ls_node_get_some(object, key, &node) && ls_node_string(&node, &text, &ignored) == LS_OK)
        snprintf(out, bytes, "%s", text);
}

static int64_t number_at(const ls_node *object, const char *a, const char *b) {
    ls_node holder, node;
    ls_error ignored;
    int64_t n = 0;
    if (get_path(object, a, b, &holder, &node) && ls_node_int(&node, 1, INT32_MAX, &n, &ignored) != LS_OK) n = 0;
    return n;
}

/* /v1/models: all of them have it, and say who they are. */
static ls_status ask_models(ls_probe_server *s, ls_model_config *config, ls_error *err) {
    ls_http_call c;
    ls_json_doc *doc = NULL;
    ls_node root, data, first;
    ls_status status = call_once(s, "/v1/models", NULL, &c, err);
    if (status == LS_OK && c.http == 0) status = blame(s, &c, err);
    if (status != LS_OK || c.http != 200) goto done;
    if (ls_json_doc_open(&doc, c.answer, c.answer_bytes, "/v1/models", NULL) != LS_OK) goto done;
    root = ls_json_root(doc);
    if (!ls_node_get_some(&root, "data", &data) || ls_node_kind_of(&data) != LS_NODE_ARRAY || ls_node_count(&data) == 0)
        goto done;
    first = ls_node_at(&data, 0);
    if (ls_node_kind_of(&first) != LS_NODE_OBJECT) goto done;
    copy_text(s->model, sizeof s->model, &first, "id");
    copy_text(s->who, sizeof s->who, &first, "owned_by");
    s->length_max = number_at(&first, "max_model_len", NULL);
    if (config->vocab == 0) config->vocab = (int32_t)number_at(&first, "meta", "n_vocab");
done:
    ls_json_doc_free(doc);
    ls_http_call_deinit(&c);
    return status;
}

static ls_status choose_dialect(ls_probe_server *s, ls_dialect dialect, ls_error *err) {
    s->dialect = dialect;
    if (dialect < LS_DIALECTS) return LS_OK;
    if (strcmp(s->who, "lockstep") == 0) s->dialect = LS_DIALECT_VLLM;
    for (int i = 0; i < LS_DIALECTS; i++)
        if (strcmp(s->who, dialects[i].owner) == 0) s->dialect = (ls_dialect)i;
    if (s->dialect < LS_DIALECTS) return LS_OK;
    return LS_FAIL(
        err, LS_ERR_UNSUPPORTED,
        "%s: /v1/models does not say that it is vllm, sglang, llamacpp or lockstep, but '%s'; --dialect says "
        "how to ask it",
        s->url, s->who);
}

static void ask_props(ls_probe_server *s) {
    ls_http_call c;
    ls_json_doc *doc = NULL;
    ls_error ignored;
    if (call_once(s, "/props", NULL, &c, &ignored) == LS_OK && c.http == 200 &&
        ls_json_doc_open(&doc, c.answer, c.answer_bytes, "/props", &ignored) == LS_OK) {
        const ls_node root = ls_json_root(doc);
        s->n_slots = number_at(&root, "total_slots", NULL);
        s->length_max = number_at(&root, "default_generation_settings", "n_ctx");
    }
    ls_json_doc_free(doc);
    ls_http_call_deinit(&c);
}

/* The ids of a text as a prompt; 0: it takes none. */
static int64_t ask_text(ls_probe_server *s, const char *text, int32_t *ids, int64_t most) {
    ls_probe_ask a = {.text = text, .n = 1, .samples = 1, .n_new = 1, .scores = true, .forced = -1, .slot_id = -1};
    calls c = {0};
    ls_record *records = NULL;
    int64_t n = 0, n_ids = 0;
    ls_error ignored;
    if (s->dialect != LS_DIALECT_LLAMA_CPP && add_server_call(&c, s, &a, 0.0, 0.0, false, &ignored) == LS_OK &&
        send_calls(s, c.of, 1, 1, &s->limits, &ignored) == LS_OK && c.of[0].http == 200 &&
        ls_answers_parse(&records, &n, c.of[0].answer, c.of[0].answer_bytes, "text", dialects[s->dialect].scored, false,
                         &ignored) == LS_OK &&
        records[0].is_tokens && records[0].n_completion <= most) {
        n_ids = records[0].n_completion;
        memcpy(ids, records[0].completion_ids, (size_t)n_ids * sizeof *ids);
    }
    ls_records_free(records, n);
    free_calls(&c);
    return n_ids;
}

static void ask_texts(ls_probe_server *s) {
    int64_t at = 0;
    for (int64_t i = 0; i < LS_SERVER_TEXTS; i++) {
        s->text_n[i] = s->dialect == LS_DIALECT_LLAMA_CPP
                           ? ask_tokenize(s, texts[i], true, s->text_ids + at, LS_SERVER_IDS - at)
                           : ask_text(s, texts[i], s->text_ids + at, LS_SERVER_IDS - at);
        if (s->text_n[i] < 2) {
            s->text_n[0] = 0; /* all or none */
            return;
        }
        at += s->text_n[i];
    }
}

/* What the texts are made of, each once, without what stands in front of all of them. */
static void make_pool(ls_probe_server *s) {
    const bool common = s->text_ids[0] == s->text_ids[s->text_n[0]];
    s->n_pool = 0;
    for (int64_t t = 0, at = 0; t < LS_SERVER_TEXTS; at += s->text_n[t++])
        for (int64_t i = common; i < s->text_n[t]; i++) {
            bool known = false;
            for (int64_t k = 0; k < s->n_pool && !known; k++) known = s->pool[k] == s->text_ids[at + i];
            if (!known) s->pool[s->n_pool++] = s->text_ids[at + i];
        }
}

ls_status ls_probe_server_ask(ls_probe_server *s, ls_dialect dialect, ls_model_config *config, ls_error *err) {
    LS_TRY(ask_models(s, config, err));
    LS_TRY(choose_dialect(s, dialect, err));
    if (s->dialect == LS_DIALECT_LLAMA_CPP) ask_props(s);
    s->can_reset = reset_cache(s);
    ask_texts(s);
    if (config->vocab > 0) return LS_OK;
    if (s->text_n[0] > 0) make_pool(s);
    if (s->n_pool < 16)
        return LS_FAIL(
            err, LS_ERR_UNSUPPORTED,
            "%s: it takes no text and does not tell its vocabulary: --vocab N says how many ids there are, or "
            "--model DIR has a config.json that does",
            s->url);
    return LS_OK;
}
