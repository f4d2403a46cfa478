/* `lockstep chat`: conversations as the text that a model's chat template makes of them. Owns nothing that outlives the
 * command. */
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "cli/commands.h"
#include "json/json_out.h"
#include "record/source.h"
#include "template/chat.h"

#define LINE_BYTES_MAX ((int64_t)1 << 28)

typedef struct options {
    const char *model, *template, *out;
    bool no_prompt, learnt, ids;
} options;

enum { OPT_MODEL = 'm', OPT_OUT = 'o', OPT_TEMPLATE = 256, OPT_NO_PROMPT, OPT_LEARNT, OPT_IDS };

static error_t parse_chat_option(int key, char *arg, struct argp_state *state) {
    options *o = state->input;
    switch (key) {
        case OPT_MODEL: o->model = arg; return 0;
        case OPT_OUT: o->out = arg; return 0;
        case OPT_TEMPLATE: o->template = arg; return 0;
        case OPT_NO_PROMPT: o->no_prompt = true; return 0;
        case OPT_LEARNT: o->learnt = true; return 0;
        case OPT_IDS: o->ids = true; return 0;
        case ARGP_KEY_ARG: ls_cli_wrong(state, "unexpected argument '%s'", arg); return 0;
        case ARGP_KEY_END:
            if (o->model == NULL) ls_cli_wrong(state, "--model is required");
            return 0;
        default: return ARGP_ERR_UNKNOWN;
    }
}

static void write_spans(ls_json_out *json, const ls_template_output *r) {
    ls_json_begin_array(json, "learnt");
    for (int64_t i = 0; i < r->n_spans; i++)
        ls_json_text(json, NULL, r->text + r->spans[i].begin, r->spans[i].end - r->spans[i].begin);
    ls_json_end_array(json);
}

static ls_status write_chat_ids(ls_json_out *json, const ls_tokenizer *tokenizer, const options *o,
                                const ls_template_output *r, ls_error *err) {
    int32_t *ids;
    uint8_t *learnt;
    int64_t n;
    LS_TRY(ls_chat_encode(tokenizer, r, &ids, &learnt, &n, err));
    ls_json_begin_array(json, "ids");
    for (int64_t i = 0; i < n; i++) ls_json_int(json, NULL, ids[i]);
    ls_json_end_array(json);
    if (o->learnt) {
        ls_json_begin_array(json, "mask");
        for (int64_t i = 0; i < n; i++) ls_json_int(json, NULL, learnt[i]);
        ls_json_end_array(json);
    }
    free(ids);
    free(learnt);
    return LS_OK;
}

static ls_status render_line(const ls_chat *chat, const ls_tokenizer *tokenizer, const options *o, const char *line,
                             int64_t bytes, int64_t number, FILE *stream, ls_error *err) {
    ls_template_output r = {0};
    ls_json_out json;
    char place[64];
    ls_status status;
    snprintf(place, sizeof place, "standard input: line %lld", (long long)number);
    status = o->learnt ? ls_chat_render_learnt(chat, line, bytes, place, &r, err)
                       : ls_chat_render_text(chat, line, bytes, place, !o->no_prompt, &r, err);
    if (status != LS_OK) {
        if (strncmp(err->text, place, strlen(place)) != 0) ls_error_prefix(err, "%s", place);
        goto done;
    }
    ls_json_init(&json, stream);
    ls_json_begin_object(&json, NULL);
    ls_json_text(&json, "text", r.text, r.bytes);
    if (o->learnt) write_spans(&json, &r);
    if (o->ids) LS_TRY_DONE(write_chat_ids(&json, tokenizer, o, &r, err));
    ls_json_end_object(&json);
    ls_json_newline(&json);
done:
    ls_template_output_deinit(&r);
    return status;
}

static int run_chat(const options *o) {
    ls_chat *chat = NULL;
    ls_tokenizer *tokenizer = NULL;
    ls_output *output = NULL;
    ls_source *source = NULL;
    char *line = NULL;
    int64_t cap = 0;
    bool more = true;
    ls_error err = {0};
    ls_status status;
    LS_TRY_DONE(ls_chat_open(&chat, o->model, o->template, &err));
    if (o->ids) LS_TRY_DONE(ls_tokenizer_open(&tokenizer, o->model, &err));
    LS_TRY_DONE(ls_output_open(&output, o->out, &err));
    LS_TRY_DONE(ls_source_open(&source, "-", &err));
    for (int64_t number = 1; more; number++) {
        int64_t bytes;
        status = ls_source_line(source, &line, &cap, &bytes, LINE_BYTES_MAX, &more, &err);
        if (status != LS_OK) {
            ls_error_prefix(&err, "standard input");
            goto done;
        }
        if (!more) break;
        if (ls_line_is_blank(line, bytes)) continue;
        LS_TRY_DONE(ls_output_check(output, &err));
        LS_TRY_DONE(render_line(chat, tokenizer, o, line, bytes, number, ls_output_stream(output), &err));
    }
    status = ls_output_commit(output, &err);
    output = NULL;
done:
    ls_output_abandon(output);
    ls_source_close(source);
    free(line);
    ls_tokenizer_free(tokenizer);
    ls_chat_free(chat);
    return status == LS_OK ? LS_EXIT_OK : ls_cli_fail(&err);
}

int ls_cmd_chat(int argc, char **argv) {
    static const struct argp_option list[] = {
        {"model", OPT_MODEL, "DIR", 0, "Directory with chat_template.jinja or tokenizer_config.json", 0},
        {"template", OPT_TEMPLATE, "FILE", 0, "Take this template instead; DIR gives the special tokens", 0},
        {"no-generation-prompt", OPT_NO_PROMPT, NULL, 0, "Leave out what begins the answer", 0},
        {"learnt", OPT_LEARNT, NULL, 0, "The whole conversation, and what supervised training learns of it", 0},
        {"ids", OPT_IDS, NULL, 0, "Write token ids as well", 0},
        {"out", OPT_OUT, "FILE", 0, "Write to FILE, which appears when it is complete (default: standard output)", 0},
        {0}};
    static const struct argp parser = {
        list,
        parse_chat_option,
        NULL,
        "Reads lines {\"messages\": [..]}, which may have \"tools\", \"documents\" and \"chat_template_kwargs\", from "
        "standard input and writes lines {\"text\": STRING}: what the model's chat template makes of them. The first "
        "line that is not valid ends the command.",
        NULL,
        NULL,
        NULL};
    options o = {0};
    ls_cli_parse(&parser, argc, argv, &o);
    return run_chat(&o);
}
