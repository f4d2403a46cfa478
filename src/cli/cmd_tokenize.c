/* `lockstep tokenize` and `lockstep detokenize`: JSON lines on standard input, JSON lines out. Owns nothing that
 * outlives the command. */
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "cli/commands.h"
#include "json/json_out.h"
#include "record/source.h"
#include "record/text_lines.h"
#include "text/tokenizer.h"

#define LINE_BYTES_MAX ((int64_t)1 << 30)

typedef struct options {
    const char *model, *out;
    bool special; /* tokenize: put special tokens around; detokenize: keep them in the text */
} options;

enum { OPT_MODEL = 'm', OPT_OUT = 'o', OPT_NO_SPECIAL = 256, OPT_SKIP_SPECIAL, OPT_KEEP_SPECIAL };

static error_t parse_tokenize_option(int key, char *arg, struct argp_state *state) {
    options *o = state->input;
    switch (key) {
        case OPT_MODEL: o->model = arg; return 0;
        case OPT_OUT: o->out = arg; return 0;
        case OPT_NO_SPECIAL:
        case OPT_SKIP_SPECIAL: o->special = false; return 0;
        case OPT_KEEP_SPECIAL: o->special = true; return 0;
        case ARGP_KEY_ARG: ls_cli_wrong(state, "unexpected argument '%s'", arg); return 0;
        case ARGP_KEY_END:
            if (o->model == NULL) ls_cli_wrong(state, "--model is required");
            return 0;
        default: return ARGP_ERR_UNKNOWN;
    }
}

static void write_id(FILE *stream, const char *id) {
    if (id != NULL) fprintf(stream, ",\"id\":%s", id);
}

static ls_status tokenize_line(const ls_tokenizer *tokenizer, const options *o, const char *line, int64_t bytes,
                               int64_t line_number, FILE *stream, ls_error *err) {
    ls_text_line in = {0};
    int32_t *ids = NULL;
    int64_t n = 0;
    ls_status status;
    LS_TRY_DONE(ls_text_line_parse(&in, line, bytes, "standard input", line_number, err));
    status = ls_tokenizer_encode(tokenizer, in.text, in.bytes, o->special, &ids, &n, err);
    if (status != LS_OK) {
        ls_error_prefix(err, "standard input: line %lld", (long long)line_number);
        goto done;
    }
    /* The id is JSON already, which the writer of values cannot carry; the line is simple enough without it. */
    fputs("{\"ids\":[", stream);
    for (int64_t i = 0; i < n; i++) fprintf(stream, i == 0 ? "%d" : ",%d", ids[i]);
    fputc(']', stream);
    write_id(stream, in.id);
    fputs("}\n", stream);
done:
    free(ids);
    ls_text_line_deinit(&in);
    return status;
}

static ls_status detokenize_line(const ls_tokenizer *tokenizer, const options *o, const char *line, int64_t bytes,
                                 int64_t line_number, FILE *stream, ls_error *err) {
    ls_ids_line in = {0};
    ls_json_out json;
    char *text = NULL;
    int64_t text_bytes = 0;
    ls_status status;
    LS_TRY_DONE(ls_ids_line_parse(&in, line, bytes, "standard input", line_number, err));
    status = ls_tokenizer_decode(tokenizer, in.ids, in.n, !o->special, &text, &text_bytes, err);
    if (status != LS_OK) {
        ls_error_prefix(err, "standard input: line %lld", (long long)line_number);
        goto done;
    }
    fputs("{\"text\":", stream);
    ls_json_init(&json, stream);
    ls_json_text(&json, NULL, text, text_bytes);
    write_id(stream, in.id);
    fputs("}\n", stream);
done:
    free(text);
    ls_ids_line_deinit(&in);
    return status;
}

typedef ls_status (*line_work)(const ls_tokenizer *tokenizer, const options *o, const char *line, int64_t bytes,
                               int64_t line_number, FILE *stream, ls_error *err);

static int run_lines(const options *o, line_work work) {
    ls_tokenizer *tokenizer = NULL;
    ls_output *output = NULL;
    ls_source *source = NULL;
    char *line = NULL;
    int64_t cap = 0, line_number = 0;
    ls_error err = {0};
    ls_status status;
    LS_TRY_DONE(ls_tokenizer_open(&tokenizer, o->model, &err));
    LS_TRY_DONE(ls_output_open(&output, o->out, &err));
    LS_TRY_DONE(ls_source_open(&source, "-", &err));
    for (;;) {
        int64_t bytes;
        bool more;
        line_number++;
        status = ls_source_line(source, &line, &cap, &bytes, LINE_BYTES_MAX, &more, &err);
        if (status != LS_OK) {
            ls_error_prefix(&err, "standard input");
            goto done;
        }
        if (!more) break;
        if (ls_line_is_blank(line, bytes)) continue;
        LS_TRY_DONE(ls_output_check(output, &err));
        LS_TRY_DONE(work(tokenizer, o, line, bytes, line_number, ls_output_stream(output), &err));
    }
    status = ls_output_commit(output, &err);
    output = NULL;
done:
    ls_output_abandon(output);
    ls_source_close(source);
    free(line);
    ls_tokenizer_free(tokenizer);
    return status == LS_OK ? LS_EXIT_OK : ls_cli_fail(&err);
}

int ls_cmd_tokenize(int argc, char **argv) {
    static const struct argp_option list[] = {
        {"model", OPT_MODEL, "DIR", 0, "Directory that holds tokenizer.json", 0},
        {"no-special", OPT_NO_SPECIAL, NULL, 0, "Leave out the tokens that the file puts around a text", 0},
        {"out", OPT_OUT, "FILE", 0, "Write to FILE, which appears when it is complete (default: standard output)", 0},
        {0}};
    static const struct argp parser = {
        list,
        parse_tokenize_option,
        NULL,
        "Reads lines {\"text\": STRING} from standard input and writes lines {\"ids\": [..]}. A member \"id\" is "
        "copied to the output. Blank lines are passed over; the first that is not valid ends the command.",
        NULL,
        NULL,
        NULL};
    options o = {.special = true};
    ls_cli_parse(&parser, argc, argv, &o);
    return run_lines(&o, tokenize_line);
}

int ls_cmd_detokenize(int argc, char **argv) {
    static const struct argp_option list[] = {
        {"model", OPT_MODEL, "DIR", 0, "Directory that holds tokenizer.json", 0},
        {"skip-special", OPT_SKIP_SPECIAL, NULL, 0, "Leave special tokens out of the text (the default)", 0},
        {"keep-special", OPT_KEEP_SPECIAL, NULL, 0, "Write special tokens as text", 0},
        {"out", OPT_OUT, "FILE", 0, "Write to FILE, which appears when it is complete (default: standard output)", 0},
        {0}};
    static const struct argp parser = {
        list,
        parse_tokenize_option,
        NULL,
        "Reads lines {\"ids\": [..]} from standard input and writes lines {\"text\": STRING}. A member \"id\" is "
        "copied to the output. Blank lines are passed over; the first that is not valid ends the command.",
        NULL,
        NULL,
        NULL};
    options o = {.special = false};
    ls_cli_parse(&parser, argc, argv, &o);
    return run_lines(&o, detokenize_line);
}
