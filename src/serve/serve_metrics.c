/* Prometheus text. Every measure stands under its own name and, where dashboards of vLLM know one, under that too. */
#include <string.h>

#include "serve/serve_state.h"

typedef struct page {
    FILE *out;
    const char *model;
} page;

static void head(const page *p, const char *name, const char *type, const char *help) {
    fprintf(p->out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* Label values: backslash, quote and line break are written with a backslash. */
static void write_model(const page *p) {
    fputs("{model_name=\"", p->out);
    for (const char *c = p->model; *c != '\0'; c++) {
        if (*c == '"' || *c == '\\') fputc('\\', p->out);
        if (*c == '\n')
            fputs("\\n", p->out);
        else
            fputc(*c, p->out);
    }
    fputc('"', p->out);
}

static void line(const page *p, const char *name, const char *label, double value) {
    fputs(name, p->out);
    write_model(p);
    fprintf(p->out, "%s} %.17g\n", label, value);
}

static void gauge(const page *p, const char *name, const char *alias, double value, const char *help) {
    head(p, name, "gauge", help);
    line(p, name, "", value);
    if (alias == NULL) return;
    head(p, alias, "gauge", help);
    line(p, alias, "", value);
}

static void counter(const page *p, const char *name, const char *alias, double value, const char *help) {
    head(p, name, "counter", help);
    line(p, name, "", value);
    if (alias == NULL) return;
    head(p, alias, "counter", help);
    line(p, alias, "", value);
}

static void histogram_as(const page *p, const char *name, const int64_t bucket[16], double sum, int64_t n,
                         const char *help) {
    char series[96], label[48];
    int64_t below = 0;
    head(p, name, "histogram", help);
    snprintf(series, sizeof series, "%s_bucket", name);
    for (int i = 0; i <= LS_WORK_BUCKETS; i++) {
        below += bucket[i];
        if (i < LS_WORK_BUCKETS)
            snprintf(label, sizeof label, ",le=\"%g\"", ls_work_buckets[i]);
        else
            snprintf(label, sizeof label, ",le=\"+Inf\"");
        line(p, series, label, (double)below);
    }
    snprintf(series, sizeof series, "%s_sum", name);
    line(p, series, "", sum);
    snprintf(series, sizeof series, "%s_count", name);
    line(p, series, "", (double)n);
}

static void histogram(const page *p, const char *name, const char *alias, const int64_t bucket[16], double sum,
                      int64_t n, const char *help) {
    histogram_as(p, name, bucket, sum, n, help);
    histogram_as(p, alias, bucket, sum, n, help);
}

static void finished(const page *p, const char *name, const ls_work_view *v) {
    head(p, name, "counter", "Completions that have ended, by how");
    line(p, name, ",finished_reason=\"stop\"", (double)v->finished_stop);
    line(p, name, ",finished_reason=\"length\"", (double)v->finished_length);
    line(p, name, ",finished_reason=\"abort\"", (double)v->finished_cancel);
    line(p, name, ",finished_reason=\"error\"", (double)v->finished_error);
}

static void http(const page *p, const ls_http_counts *c) {
    gauge(p, "lockstep:connections", NULL, (double)c->connections, "Connections that are open");
    counter(p, "lockstep:http_requests_total", NULL, (double)c->requests, "HTTP requests that have begun");
    head(p, "lockstep:http_refused_total", "counter", "HTTP requests that were refused, by status");
    line(p, "lockstep:http_refused_total", ",status=\"other 4xx\"", (double)c->refused_400);
    line(p, "lockstep:http_refused_total", ",status=\"401\"", (double)c->refused_401);
    line(p, "lockstep:http_refused_total", ",status=\"403\"", (double)c->refused_403);
    line(p, "lockstep:http_refused_total", ",status=\"404\"", (double)c->refused_404);
    line(p, "lockstep:http_refused_total", ",status=\"429\"", (double)c->refused_429);
    counter(p, "lockstep:http_failed_total", NULL, (double)c->failed_500, "HTTP requests that failed here");
    counter(p, "lockstep:clients_gone_total", NULL, (double)c->clients_gone, "Requests whose client went away");
    counter(p, "lockstep:connections_timed_out_total", NULL, (double)c->timed_out, "Connections ended by the clock");
}

int ls_metrics(ls_server *s, const ls_call *c, FILE *out, ls_error *err) {
    const page p = {out, s->about.model};
    ls_work_view v;
    ls_http_counts counts;
    const ls_engine_stats *e = &v.engine;
    (void)c, (void)err;
    ls_work_look(s->work, &v);
    pthread_mutex_lock(&s->count_lock);
    counts = s->counts;
    pthread_mutex_unlock(&s->count_lock);
    gauge(&p, "lockstep:requests_running", "vllm:num_requests_running", (double)v.running,
          "Completions that have a slot");
    gauge(&p, "lockstep:requests_waiting", "vllm:num_requests_waiting", (double)v.waiting, "Completions that wait");
    gauge(&p, "lockstep:slots_used", NULL, (double)e->slots_used, "State slots in use");
    gauge(&p, "lockstep:pages_used", NULL, (double)e->pages_used, "KV pages in use, the prefix cache's included");
    gauge(&p, "lockstep:kv_cache_usage", "vllm:kv_cache_usage_perc",
          v.plan.pages > 0 ? (double)e->pages_used / (double)v.plan.pages : 0, "Share of KV pages in use, of 1");
    gauge(&p, "lockstep:weights_version", NULL, (double)v.version, "Version of the weights");
    gauge(&p, "lockstep:paused", NULL, v.paused, "1 while generation is paused");
    counter(&p, "lockstep:prompt_tokens_total", "vllm:prompt_tokens_total", (double)v.prompt_tokens,
            "Tokens of prompts taken in");
    counter(&p, "lockstep:generation_tokens_total", "vllm:generation_tokens_total", (double)e->tokens, "Tokens drawn");
    counter(&p, "lockstep:prefix_tokens_asked_total", "vllm:prefix_cache_queries_total", (double)e->prefix.tokens_asked,
            "Tokens looked up in the prefix cache");
    counter(&p, "lockstep:prefix_tokens_hit_total", "vllm:prefix_cache_hits_total", (double)e->prefix.tokens_hit,
            "Tokens found there");
    counter(&p, "lockstep:prefix_out_of_window_total", NULL, (double)e->prefix.out_of_window,
            "Look-ups that end where pages in front of a window are gone");
    counter(&p, "lockstep:pages_given_back_total", NULL, (double)e->pages_given_back,
            "KV pages that running sequences gave back in front of a window");
    counter(&p, "lockstep:preemptions_total", "vllm:num_preemptions_total",
            (double)(e->preempted_recompute + e->preempted_swap), "Sequences that gave way");
    counter(&p, "lockstep:drafts_proposed_total", "vllm:spec_decode_num_draft_tokens_total", (double)e->drafts_proposed,
            "Tokens drafted by look-up");
    counter(&p, "lockstep:drafts_accepted_total", "vllm:spec_decode_num_accepted_tokens_total",
            (double)e->drafts_accepted, "Drafts that were the token drawn");
    counter(&p, "lockstep:ticks_total", NULL, (double)e->ticks, "Ticks of the engine");
    counter(&p, "lockstep:requests_total", NULL, (double)v.groups, "Requests taken in");
    finished(&p, "lockstep:completions_total", &v);
    finished(&p, "vllm:request_success_total", &v);
    histogram(&p, "lockstep:first_token_seconds", "vllm:time_to_first_token_seconds", v.first_bucket, v.first_sum,
              v.first_n, "From request to first token");
    histogram(&p, "lockstep:completion_seconds", "vllm:e2e_request_latency_seconds", v.whole_bucket, v.whole_sum,
              v.whole_n, "From request to the end of a completion");
    gauge(&p, "lockstep:held_bytes", NULL, (double)ls_quota_total(&s->quota),
          "Bytes that bodies, requests and answers hold");
    http(&p, &counts);
    return 200;
}
