/* lockstep correct: what a mismatch correction would do to the tokens of another trainer's dump. */
#include <argp.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "cli/commands.h"
#include "measure/mismatch.h"
#include "record/answers.h"
#include "record/source.h"
#include "rl/correction.h"

#define FORMATS "prime-rl, nemo-rl, verl, slime or openrlhf"
#define DUMP_BYTES_MAX ((int64_t)1 << 32)

typedef struct correct_options {
    const char *dump, *out, *list;
    int format; /* -1 until it is given */
    bool json;
    ls_correction correction;
} correct_options;

static error_t parse_correct_option(int key, char *arg, struct argp_state *state) {
    correct_options *options = state->input;
    ls_error err;
    switch (key) {
        case 'd': options->dump = arg; return 0;
        case 'o': options->out = arg; return 0;
        case 'j': options->json = true; return 0;
        case 'f':
            options->format = ls_name_find(ls_answer_format_names, arg);
            if (options->format < LS_ANSWER_VERL) ls_cli_wrong(state, "--format: '%s' is not " FORMATS, arg);
            return 0;
        case 'c':
            options->list = arg;
            if (ls_correction_parse(&options->correction, arg, &err) != LS_OK) ls_cli_wrong(state, "%s", err.text);
            return 0;
        case ARGP_KEY_ARG: ls_cli_wrong(state, "unexpected argument '%s'", arg); return 0;
        case ARGP_KEY_END:
            if (options->dump == NULL) ls_cli_wrong(state, "--dump is missing; it names the dump");
            if (options->format < 0) ls_cli_wrong(state, "--format is missing: " FORMATS);
            if (options->list == NULL)
                ls_cli_wrong(state, "--correction is missing; 'none' measures the mismatch alone");
            return 0;
        default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option options_known[] = {
    {"dump", 'd', "FILE", 0, "JSON Lines that another trainer wrote; - is standard input", 0},
    {"format", 'f', "NAME", 0,
     "prime-rl (token exports), nemo-rl (train_data_step*.jsonl), verl, slime or openrlhf (batches as JSON)", 0},
    {"correction", 'c', "LIST", 0,
     "Steps NAME=BOUND or NAME=LOW:HIGH, separated by commas, or none: one of token-truncate, token-mask, "
     "sequence-truncate, sequence-mask; any of token-reject, sequence-reject, geometric-reject, token-k2, token-k3, "
     "sum-k2, sum-k3, mean-k2, mean-k3, max-k2, max-k3, veto, error-reject",
     0},
    {"json", 'j', NULL, 0, "Write one JSON object instead of the table", 0},
    {"out", 'o', "FILE", 0, "Write to FILE, which appears only when complete", 0},
    {0},
};

static const struct argp parser = {
    options_known,
    parse_correct_option,
    NULL,
    "Measure what a correction of the rollout-trainer mismatch does to a step's tokens.\v"
    "Example: --correction token-truncate=2,geometric-reject=0.99:1.01,veto=1e-4\n\n"
    "Exit status: 0 if it was measured, 2 if the dump cannot be read, 1 for wrong usage.",
    NULL,
    NULL,
    NULL,
};

typedef struct measured {
    ls_correction_metrics correction;
    ls_mismatch mismatch;
} measured;

static void write_json(FILE *file, const correct_options *options, const ls_dump *dump, const measured *m) {
    ls_json_out json;
    ls_json_init(&json, file);
    ls_json_begin_object(&json, NULL);
    ls_json_string(&json, "dump", options->dump);
    ls_json_string(&json, "format", ls_answer_format_names[options->format]);
    ls_json_int(&json, "sequences", dump->n_sequences);
    ls_json_int(&json, "tokens", dump->n_tokens);
    ls_json_int(&json, "tokens_counted", dump->n_masked);
    ls_json_int(&json, "zero_rollout", dump->zero_rollout);
    ls_json_int(&json, "zero_trainer", dump->zero_trainer);
    ls_json_begin_object(&json, "correction");
    ls_json_string(&json, "list", options->list);
    ls_correction_write(&json, &m->correction, &options->correction);
    ls_json_begin_object(&json, "aliases");
    ls_correction_write_aliases(&json, &m->correction, &options->correction);
    ls_json_end_object(&json);
    ls_json_end_object(&json);
    ls_json_begin_object(&json, "mismatch");
    ls_mismatch_write(&json, &m->mismatch);
    ls_json_begin_object(&json, "aliases");
    ls_mismatch_write_aliases(&json, &m->mismatch);
    ls_json_end_object(&json);
    ls_json_end_object(&json);
    ls_json_end_object(&json);
    ls_json_newline(&json);
}

static void write_table(FILE *file, const correct_options *options, const ls_dump *dump, const measured *m) {
    fprintf(file, "%s (%s): %lld sequences, %lld tokens, %lld of them counted\n", options->dump,
            ls_answer_format_names[options->format], (long long)dump->n_sequences, (long long)dump->n_tokens,
            (long long)dump->n_masked);
    if (dump->zero_rollout + dump->zero_trainer > 0)
        fprintf(file, "exactly 0: %lld of the rollout, %lld of the trainer\n", (long long)dump->zero_rollout,
                (long long)dump->zero_trainer);
    fprintf(file,
            "\nmismatch, d = t - r\n  %-30s %14.7g\n  %-30s %14.7g\n  %-30s %14.7g\n  %-30s %14.7g\n  %-30s %14.7g\n",
            "mean of abs d", m->mismatch.abs_mean, "mean of d", m->mismatch.signed_mean, "k3", m->mismatch.k3,
            "mean of exp(abs d)", m->mismatch.mult_error, "largest of a sequence", m->mismatch.sequence_mult_max);
    fprintf(file, "\ncorrection %s\n", options->list);
    ls_correction_print(file, &m->correction, &options->correction);
}

static ls_status read_dump(ls_dump *out, const correct_options *o, ls_error *err) {
    char *text = NULL;
    int64_t bytes;
    ls_status status;
    if (o->format == LS_ANSWER_PRIME_RL) return ls_dump_read(out, o->dump, LS_DUMP_PRIME_RL, err);
    if (o->format == LS_ANSWER_NEMO_RL) return ls_dump_read(out, o->dump, LS_DUMP_NEMO_RL, err);
    LS_TRY(ls_source_read(&text, &bytes, o->dump, DUMP_BYTES_MAX, err));
    status = ls_answers_dump(out, text, bytes, o->dump, (ls_answer_format)o->format, err);
    free(text);
    return status;
}

int ls_cmd_correct(int argc, char **argv) {
    ls_status status;
    correct_options options = {.format = -1};
    ls_dump dump = {0};
    ls_tokens tokens;
    measured m;
    float *weights = NULL;
    ls_output *output = NULL;
    ls_error err;
    ls_cli_parse(&parser, argc, argv, &options);
    LS_TRY_DONE(read_dump(&dump, &options, &err));
    LS_TRY_DONE(ls_array_alloc((void **)&weights, dump.n_tokens, sizeof *weights, "weights", &err));
    tokens = (ls_tokens){dump.n_sequences, dump.offsets, dump.mask};
    LS_TRY_DONE(ls_correction_apply(weights, NULL, &m.correction, &tokens, dump.rollout, dump.trainer,
                                    &options.correction, &err));
    LS_TRY_DONE(ls_mismatch_of(&m.mismatch, &tokens, dump.rollout, dump.trainer, &err));
    LS_TRY_DONE(ls_output_open(&output, options.out, &err));
    (options.json ? write_json : write_table)(ls_output_stream(output), &options, &dump, &m);
    status = ls_output_commit(output, &err);
done:
    ls_dump_deinit(&dump);
    free(weights);
    return status == LS_OK ? LS_EXIT_OK : ls_cli_fail(&err);
}
