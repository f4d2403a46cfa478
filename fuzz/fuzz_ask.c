/* Any bytes as the body of a request, of every kind. What is accepted must keep to the limits and name no token outside
 * the vocabulary; what is refused must say why. The first byte says which kind. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "serve/serve_ask.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

enum { VOCAB = 20, LENGTH_MAX = 64 };

/* Letters, and nothing else. */
static const char tokenizer_json[] =
    "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[],\"normalizer\":null,"
    "\"pre_tokenizer\":null,\"post_processor\":null,\"decoder\":null,\"model\":{\"type\":\"BPE\",\"dropout\":null,"
    "\"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":false,"
    "\"byte_fallback\":false,\"ignore_merges\":false,\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"d\":3,\"e\":4,\"ab\":5},"
    "\"merges\":[\"a b\"]}}";

/* A template that goes over content and over tool calls. */
static ls_chat *open_chat(void) {
    static const char text[] =
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content or [] %}"
        "{{ p.text }}{% endfor %}{% endif %}{% for c in m.tool_calls or [] %}{{ c | tojson }}{% endfor %}{% endfor %}";
    char path[] = "/tmp/lockstep-fuzz-XXXXXX";
    const int fd = mkstemp(path);
    ls_chat *chat;
    ls_error err;
    if (fd < 0 || write(fd, text, sizeof text - 1) != (ssize_t)sizeof text - 1 || close(fd) != 0 ||
        ls_chat_open(&chat, "/nowhere", path, &err) != LS_OK)
        abort();
    unlink(path);
    return chat;
}

static void check_ids(const ls_ask_prompt *p, const ls_ask_limits *limits) {
    for (int64_t i = 0; i < p->n; i++)
        if (p->ids[i] < 0 || p->ids[i] >= limits->vocab) abort();
}

static void check(const ls_ask *a, const ls_ask_limits *limits) {
    const int64_t n = a->n > 0 ? a->n : 1;
    if (a->kind == LS_ASK_TOKENIZE) {
        if (a->n_prompts != 1) abort();
        check_ids(&a->prompts[0], limits);
        return;
    }
    if (a->penalties.repetition <= 0 || !isfinite(1 / a->penalties.repetition)) abort();
    if (a->n_prompts < 1 || a->n_prompts > LS_ASK_PROMPTS_MAX || a->n_prompts * n > LS_ASK_SAMPLES_MAX) abort();
    if (a->top > LS_ASK_TOP_MAX || a->prompt_top > LS_ASK_TOP_MAX || a->top < -1 || a->prompt_top < -1) abort();
    if (a->n_stop > LS_ASK_STOPS_MAX || a->n_stop_ids > LS_ASK_STOPS_MAX) abort();
    if (ls_sampling_check(&a->sampling, NULL) != LS_OK || !isfinite(a->sampling.temperature)) abort();
    for (int64_t p = 0; p < a->n_prompts; p++) {
        const int64_t room = ls_ask_room(a, limits, p);
        if (a->prompts[p].n < 1 || room < 0 || a->prompts[p].n + room > limits->length_max) abort();
        check_ids(&a->prompts[p], limits);
    }
    for (int64_t i = 0; i < a->n_stop; i++)
        if (a->stop[i] == NULL || a->stop[i][0] == '\0') abort();
    for (int64_t i = 0; i < a->n_stop_ids; i++)
        if (a->stop_ids[i] < 0 || a->stop_ids[i] >= limits->vocab) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    static const ls_ask_kind kinds[] = {LS_ASK_COMPLETION, LS_ASK_CHAT,  LS_ASK_TOKENS,
                                        LS_ASK_SGLANG,     LS_ASK_SCORE, LS_ASK_TOKENIZE};
    static ls_tokenizer *tokenizer;
    static ls_chat *chat;
    ls_ask_limits limits = {.model = "m", .vocab = VOCAB, .length_max = LENGTH_MAX};
    char *copy;
    ls_ask *ask;
    ls_error err;
    if (n_bytes < 1) return 0;
    if (tokenizer == NULL &&
        ls_tokenizer_parse(&tokenizer, tokenizer_json, sizeof tokenizer_json - 1, "letters", &err) != LS_OK)
        abort();
    if (chat == NULL) chat = open_chat();
    limits.tokenizer = data[0] & 8 ? NULL : tokenizer;
    limits.chat = data[0] & 16 ? NULL : chat;
    limits.calls = LS_CALLS_HERMES;
    copy = malloc(n_bytes);
    if (copy == NULL) return 0;
    memcpy(copy, data + 1, n_bytes - 1);
    err.text[0] = '\0';
    if ((data[0] & 7) == 7) {
        ls_ask_prompt p;
        if (ls_ask_parse_ids(&p.ids, &p.n, &limits, copy, (int64_t)n_bytes - 1, &err) == LS_OK)
            check_ids(&p, &limits);
        else if (p.ids != NULL || err.text[0] == '\0')
            abort();
        free(p.ids);
    } else if (ls_ask_parse(&ask, kinds[(data[0] & 7) % 6], &limits, copy, (int64_t)n_bytes - 1, &err) == LS_OK) {
        check(ask, &limits);
        ls_ask_free(ask);
    } else if (ask != NULL || err.text[0] == '\0') {
        abort();
    }
    free(copy);
    return 0;
}
