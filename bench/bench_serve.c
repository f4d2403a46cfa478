/* What the server costs: tokens a second of the engine alone, and of the same requests as concurrent streams over HTTP,
 * in turns, with a client that only reads. The best of the repetitions counts on either side. Bits are compared in the
 * tests; here every stream must have ended well.
 *
 *   bench_serve DIR [threads] [streams] [tokens] [repetitions] [stream ms]
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "model/model.h"
#include "op/choice.h"
#include "rollout/engine.h"
#include "serve/serve.h"

enum { PROMPT = 8, STREAMS_MAX = 1024 };

typedef struct bench {
    const char *directory;
    int64_t threads, streams, tokens, repetitions, stream_ms;
    ls_device *device, *load_device;
    double cpu; /* seconds of the last measure, of all threads, the client's included */
} bench;

static void need(ls_status status, const ls_error *err) {
    if (status == LS_OK) return;
    fprintf(stderr, "bench_serve: %s\n", err->text);
    exit(2);
}

static double cpu_seconds(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static ls_engine_opts engine_opts(const bench *b) {
    ls_engine_opts o = {.dtype = LS_F32, .length_max = PROMPT + b->tokens};
    ls_levers_init(&o.levers);
    o.levers.threads = (int32_t)b->threads;
    o.levers.batch = b->streams;
    o.sampling = (ls_sampling){.temperature = 1.0f, .top_p = 1.0f, .seed = 1};
    return o;
}

static int32_t token_at(int64_t stream, int64_t i, int32_t vocab) {
    return (int32_t)((3 + 17 * i + 5 * stream) % vocab);
}

static double engine_alone(bench *b) {
    const ls_engine_opts opts = engine_opts(b);
    ls_model *model;
    ls_engine *engine;
    ls_request *requests;
    int32_t *tokens;
    float *logprobs;
    ls_error err;
    double start, seconds;
    const int64_t n = b->streams;
    need(ls_model_open(&model, b->device, b->directory, &err), &err);
    need(ls_engine_create(&engine, model, b->device, &opts, &err), &err);
    need(ls_array_alloc((void **)&requests, n, sizeof *requests, "requests", &err), &err);
    need(ls_array_alloc((void **)&tokens, n * (PROMPT + b->tokens), sizeof *tokens, "tokens", &err), &err);
    need(ls_array_alloc((void **)&logprobs, n * b->tokens, sizeof *logprobs, "log-probabilities", &err), &err);
    for (int64_t i = 0; i < n; i++) {
        int32_t *prompt = tokens + i * (PROMPT + b->tokens);
        for (int64_t t = 0; t < PROMPT; t++) prompt[t] = token_at(i, t, model->config.vocab);
        requests[i] = (ls_request){.prompt = prompt,
                                   .n_prompt = PROMPT,
                                   .prompt_i = (uint32_t)i,
                                   .max_tokens = b->tokens,
                                   .completion = prompt + PROMPT,
                                   .logprob = logprobs + i * b->tokens};
    }
    start = ls_clock_seconds();
    b->cpu = cpu_seconds();
    need(ls_engine_run(engine, requests, n, NULL, NULL, &err), &err);
    seconds = ls_clock_seconds() - start;
    b->cpu = cpu_seconds() - b->cpu;
    free(logprobs);
    free(tokens);
    free(requests);
    ls_engine_free(engine);
    ls_model_close(model);
    return (double)(n * b->tokens) / seconds;
}

static int open_stream(const bench *b, const char *url, int64_t i, int32_t vocab) {
    char body[512], text[1024];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int n, fd = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_port = htons((uint16_t)atoi(strrchr(url, ':') + 1));
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        perror("bench_serve: connect");
        exit(2);
    }
    n = snprintf(body, sizeof body,
                 "{\"stream\":true,\"return_token_ids\":true,\"ignore_eos\":true,\"seed\":1,\"max_tokens\":%lld,"
                 "\"prompt\":[",
                 (long long)b->tokens);
    for (int64_t t = 0; t < PROMPT; t++)
        n += snprintf(body + n, sizeof body - (size_t)n, "%d%s", token_at(i, t, vocab), t + 1 < PROMPT ? "," : "]}");
    n = snprintf(text, sizeof text,
                 "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", n,
                 body);
    if (write(fd, text, (size_t)n) != n) exit(2);
    return fd;
}

/* Reads all streams to their ends; returns bytes. */
static int64_t read_all(int poller, int *fds, int64_t n) {
    static char buffer[1 << 16], last[STREAMS_MAX][64];
    struct epoll_event events[64];
    int64_t left = n, bytes = 0;
    while (left > 0) {
        const int ready = epoll_wait(poller, events, 64, -1);
        for (int k = 0; k < ready; k++) {
            const uint64_t i = events[k].data.u64;
            const ssize_t got = read(fds[i], buffer, sizeof buffer);
            if (got > 0) {
                const size_t tail = (size_t)got < sizeof last[i] - 1 ? (size_t)got : sizeof last[i] - 1;
                memcpy(last[i], buffer + got - (ssize_t)tail, tail);
                last[i][tail] = '\0';
                bytes += got;
                continue;
            }
            if (strstr(last[i], "0\r\n\r\n") == NULL) {
                fprintf(stderr, "bench_serve: stream %lld did not end well: %s\n", (long long)i, last[i]);
                exit(3);
            }
            close(fds[i]);
            left--;
        }
    }
    return bytes;
}

static double through_server(bench *b, int64_t *bytes) {
    static int fds[STREAMS_MAX];
    ls_serve_engine engine = {.device = b->device, .load_device = b->load_device, .opts = engine_opts(b)};
    ls_serve_opts opts;
    ls_server *server;
    const int poller = epoll_create1(0);
    ls_error err;
    double start, seconds;
    int32_t vocab;
    ls_serve_opts_init(&opts);
    opts.model_dir = b->directory;
    opts.port = 0;
    opts.stream_ms = b->stream_ms;
    need(ls_model_open(&engine.model, b->load_device, b->directory, &err), &err);
    vocab = engine.model->config.vocab;
    need(ls_server_start(&server, &opts, &engine, &err), &err);
    start = ls_clock_seconds();
    b->cpu = cpu_seconds();
    for (int64_t i = 0; i < b->streams; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)i};
        fds[i] = open_stream(b, ls_server_url(server), i, vocab);
        if (epoll_ctl(poller, EPOLL_CTL_ADD, fds[i], &event) != 0) exit(2);
    }
    *bytes = read_all(poller, fds, b->streams);
    seconds = ls_clock_seconds() - start;
    b->cpu = cpu_seconds() - b->cpu;
    ls_server_stop(server);
    close(poller);
    return (double)(b->streams * b->tokens) / seconds;
}

static int64_t number(int argc, char **argv, int i, int64_t otherwise) { return argc > i ? atoll(argv[i]) : otherwise; }

int main(int argc, char **argv) {
    bench b = {.directory = argc > 1 ? argv[1] : "models/tiny-text",
               .threads = number(argc, argv, 2, 1),
               .streams = number(argc, argv, 3, 256),
               .tokens = number(argc, argv, 4, 512),
               .repetitions = number(argc, argv, 5, 5),
               .stream_ms = number(argc, argv, 6, 20)};
    double alone = 0, served = 0, cpu_alone = 0, cpu_served = 0;
    int64_t bytes = 0;
    ls_error err;
    if (b.streams < 1 || b.streams > STREAMS_MAX) return 1;
    need(ls_device_open_named(&b.device, "cpu", (int32_t)b.threads, ls_isa_best(), &err), &err);
    need(ls_device_open_named(&b.load_device, "cpu", 1, ls_isa_best(), &err), &err);
    for (int64_t r = 0; r < b.repetitions; r++) {
        const double a = engine_alone(&b);
        if (a > alone) cpu_alone = b.cpu;
        alone = a > alone ? a : alone;
        const double s = through_server(&b, &bytes);
        if (s > served) cpu_served = b.cpu;
        served = s > served ? s : served;
    }
    printf("%lld streams of %lld tokens, %lld engine threads, a write each %lld ms at most\n", (long long)b.streams,
           (long long)b.tokens, (long long)b.threads, (long long)b.stream_ms);
    printf("engine alone    %8.0f tokens/s   %.2f s of CPU\n", alone, cpu_alone);
    printf("through HTTP    %8.0f tokens/s   %.2f s of CPU, client included; %.1f MB\n", served, cpu_served,
           (double)bytes * 1e-6);
    printf("cost            %8.1f %%\n", 100.0 * (1.0 - served / alone));
    ls_device_close(b.load_device);
    ls_device_close(b.device);
    return 0;
}
