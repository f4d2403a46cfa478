/* lockstep compare A B: reads two record files, measures them against each other, prints the table or JSON. */
#include <argp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/mem.h"
#include "cli/commands.h"
#include "diagnose/compare/compare.h"
#include "record/answers.h"

typedef struct compare_options {
    const char *a, *b, *out, *html;
    int64_t worst;
    int format_a, format_b; /* ls_answer_format; -1: records */
    bool json, by_order;
} compare_options;

enum { OPTION_HTML = 256, OPTION_FORMAT, OPTION_FORMAT_A, OPTION_FORMAT_B, OPTION_BY_ORDER };

static int take_format(struct argp_state *state, const char *option, const char *name) {
    const int format = ls_name_find(ls_answer_format_names, name);
    if (format < 0 && strcmp(name, "records") != 0)
        ls_cli_wrong(state, "%s: '%s' is not records or one of %s", option, name, LS_ANSWER_FORMATS);
    return format;
}

static error_t parse_compare_option(int key, char *arg, struct argp_state *state) {
    compare_options *options = state->input;
    ls_error err;
    switch (key) {
        case 'j': options->json = true; return 0;
        case 'o': options->out = arg; return 0;
        case OPTION_FORMAT: options->format_a = options->format_b = take_format(state, "--format", arg); return 0;
        case OPTION_FORMAT_A: options->format_a = take_format(state, "--format-a", arg); return 0;
        case OPTION_FORMAT_B: options->format_b = take_format(state, "--format-b", arg); return 0;
        case OPTION_BY_ORDER: options->by_order = true; return 0;
        case OPTION_HTML: options->html = arg; return 0;
        case 'n':
            if (ls_cli_int(&options->worst, "--worst", arg, 0, LS_WORST_MAX, &err) != LS_OK)
                ls_cli_wrong(state, "%s", err.text);
            return 0;
        case ARGP_KEY_ARG:
            if (state->arg_num == 0) {
                options->a = arg;
            } else if (state->arg_num == 1) {
                options->b = arg;
            } else {
                ls_cli_wrong(state, "one file too many: %s", arg);
            }
            return 0;
        case ARGP_KEY_END:
            if (state->arg_num < 2) ls_cli_wrong(state, "two record files are needed, %u given", state->arg_num);
            if (strcmp(options->a, "-") == 0 && strcmp(options->b, "-") == 0)
                ls_cli_wrong(state, "only one of the two files can be standard input");
            return 0;
        default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option options_known[] = {
    {"json", 'j', NULL, 0, "Write one JSON object instead of the table", 0},
    {"worst", 'n', "N", 0, "List the N tokens that differ most (0 to 1000; 10 unless given)", 0},
    {"out", 'o', "FILE", 0, "Write to FILE, which appears only when complete", 0},
    {"format", OPTION_FORMAT, "NAME", 0, "What both files are: records (default), " LS_ANSWER_FORMATS, 0},
    {"format-a", OPTION_FORMAT_A, "NAME", 0, "What A is; of a dump with both sides it is the rollout's", 0},
    {"format-b", OPTION_FORMAT_B, "NAME", 0, "What B is; of a dump with both sides it is the trainer's", 0},
    {"by-order", OPTION_BY_ORDER, NULL, 0, "Match sequences by their order in the files, not by id", 0},
    {"html", OPTION_HTML, "FILE", 0, "Write a page with causes, measures and a chart to FILE", 0},
    {0},
};

static const struct argp parser = {
    options_known,
    parse_compare_option,
    "A B",
    "Compare the log-probabilities of two record files, A from the rollout and B from the trainer.\v"
    "Sequences are matched by id and checked by token id, never by text. Where one file has entries for whole "
    "sequences and the other for completions only, the ends are aligned. Sequences that one file alone has are counted "
    "and not compared. A file may be '-' for standard input.\n\n"
    "Exit status: 0 if every log-probability has the same bits, 3 if some differ or are on one side only, "
    "2 if the files cannot be read or do not match, 1 for wrong usage.",
    NULL,
    NULL,
    NULL,
};

/* All records that name their numerics name the same; results of different numerics are never called equal. */
static bool same_numerics(const ls_record *a, int64_t n_a, const ls_record *b, int64_t n_b) {
    const char *first = NULL;
    for (int64_t i = 0; i < n_a + n_b; i++) {
        const char *digest = i < n_a ? a[i].digest : b[i - n_a].digest;
        if (digest == NULL) continue;
        if (first == NULL) first = digest;
        if (strcmp(first, digest) == 0) continue;
        {
            ls_error note;
            ls_error_set(&note, LS_ERR_ARG, "records of different numerics: %.100s and %.100s", first, digest);
            (void)ls_cli_fail(&note);
        }
        return false;
    }
    return true;
}

static ls_status read_side(ls_record **out, int64_t *n, const char *path, int format, bool of_trainer, bool by_order,
                           ls_error *err) {
    struct stat about;
    if (strcmp(path, "-") != 0 && stat(path, &about) == 0 && S_ISDIR(about.st_mode))
        return LS_FAIL(err, LS_ERR_ARG,
                       "%s: a directory, where a file of records is needed; runs of train are set beside each other by "
                       "lockstep report RUN RUN",
                       path);
    if (format >= 0) return ls_answers_read(out, n, path, (ls_answer_format)format, of_trainer, by_order, err);
    return (by_order ? ls_records_read_by_order : ls_records_read)(out, n, path, LS_RECORD_LOGPROB, err);
}

int ls_cmd_compare(int argc, char **argv) {
    ls_status status;
    compare_options options = {.worst = 10, .format_a = -1, .format_b = -1};
    ls_record *a = NULL, *b = NULL;
    int64_t n_a = 0, n_b = 0;
    ls_comparison comparison = {0};
    ls_output *output = NULL, *page = NULL;
    ls_error err;
    bool same = false;
    ls_cli_parse(&parser, argc, argv, &options);
    LS_TRY_DONE(read_side(&a, &n_a, options.a, options.format_a, false, options.by_order, &err));
    LS_TRY_DONE(read_side(&b, &n_b, options.b, options.format_b, true, options.by_order, &err));
    LS_TRY_DONE(ls_compare(&comparison, &(ls_compared){a, n_a, options.a}, &(ls_compared){b, n_b, options.b},
                           options.worst, &err));
    same = same_numerics(a, n_a, b, n_b) && ls_comparison_same(&comparison);
    LS_TRY_DONE(ls_output_open(&output, options.out, &err));
    if (options.json) {
        ls_json_out json;
        ls_json_init(&json, ls_output_stream(output));
        ls_comparison_write(&json, &comparison, options.a, options.b);
    } else {
        ls_comparison_print(ls_output_stream(output), &comparison, options.a, options.b);
    }
    LS_TRY_DONE(ls_output_commit(output, &err));
    if (options.html == NULL) goto done;
    LS_TRY_DONE(ls_output_open(&page, options.html, &err));
    ls_comparison_html(ls_output_stream(page), &comparison, options.a, options.b);
    status = ls_output_commit(page, &err);
done:
    ls_comparison_deinit(&comparison);
    ls_records_free(a, n_a);
    ls_records_free(b, n_b);
    if (status != LS_OK) return ls_cli_fail(&err);
    return same ? LS_EXIT_OK : LS_EXIT_DIFFERENT;
}
