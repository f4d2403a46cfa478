/* lockstep init: a model directory with fresh weights, from a configuration or the name of a shape, and the tokenizer
 * of another. */
#define _POSIX_C_SOURCE 200809L
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/durable.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "cli/commands.h"
#include "load/model_files.h"
#include "model/architectures.h"
#include "model/init.h"
#include "model/shapes.h"
#include "model/summary.h"
#include "op/choice.h"
#include "text/tokenizer.h"

enum { OPT_CONFIG = 256, OPT_SHAPE, OPT_TOKENIZER, OPT_SEED, OPT_DEVIATION, OPT_THREADS, OPT_EMPTY, OPT_OUT };
enum { PATH_MAX_BYTES = 4096 };

typedef struct init_options {
    const char *config, *tokenizer, *out; /* config: the file, or the name of a shape */
    const ls_shape *shape;                /* NULL with a file */
    uint64_t seed;
    double deviation;
    int64_t threads; /* 0: the processors */
    bool empty;
    ls_status status;
    ls_error err;
} init_options;

static void list_shapes(char *text, size_t bytes, const char *between) {
    size_t used = 0;
    text[0] = '\0';
    for (int64_t i = 0; i < ls_shape_count() && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", i > 0 ? between : "", ls_shape_at(i)->name);
}

static ls_status find_shape(init_options *o, const char *name) {
    char names[256];
    o->config = name;
    o->shape = ls_shape_find(name);
    if (o->shape != NULL) return LS_OK;
    list_shapes(names, sizeof names, ", ");
    return LS_FAIL(&o->err, LS_ERR_ARG, "--shape: '%.64s' is none of %s", name, names);
}

static error_t parse_init_option(int key, char *arg, struct argp_state *state) {
    init_options *o = state->input;
    switch (key) {
        case OPT_CONFIG:
            if (o->config != NULL) ls_cli_wrong(state, "--config: the configuration has been named already");
            o->config = arg;
            return 0;
        case OPT_SHAPE:
            if (o->config != NULL) ls_cli_wrong(state, "--shape: the configuration has been named already");
            if (o->status == LS_OK) o->status = find_shape(o, arg);
            return 0;
        case OPT_TOKENIZER: o->tokenizer = arg; return 0;
        case OPT_OUT: o->out = arg; return 0;
        case OPT_EMPTY: o->empty = true; return 0;
        case OPT_SEED:
            if (o->status == LS_OK) o->status = ls_cli_seed(&o->seed, "--seed", arg, &o->err);
            return 0;
        case OPT_DEVIATION:
            if (o->status == LS_OK) o->status = ls_cli_float(&o->deviation, "--deviation", arg, 0, 1e3, &o->err);
            return 0;
        case OPT_THREADS:
            if (o->status == LS_OK) o->status = ls_cli_int(&o->threads, "--threads", arg, 1, LS_THREADS_MAX, &o->err);
            return 0;
        case ARGP_KEY_ARG: ls_cli_wrong(state, "unexpected argument '%s'", arg); return 0;
        case ARGP_KEY_END:
            if (o->config == NULL) ls_cli_wrong(state, "--config or --shape is missing");
            if (o->out == NULL) ls_cli_wrong(state, "--out is missing");
            return 0;
        default: return ARGP_ERR_UNKNOWN;
    }
}

static ls_status check_tokenizer(const init_options *o, const ls_model_config *config, ls_error *err) {
    ls_tokenizer *tokenizer = NULL;
    ls_status status;
    LS_TRY_DONE(ls_tokenizer_open(&tokenizer, o->tokenizer, err));
    if (ls_tokenizer_size(tokenizer) > config->vocab)
        status = LS_FAIL(err, LS_ERR_FORMAT, "%s: vocab_size: %d; the tokenizer of %s has ids up to %lld", o->config,
                         config->vocab, o->tokenizer, (long long)ls_tokenizer_size(tokenizer) - 1);
done:
    ls_tokenizer_free(tokenizer);
    return status;
}

static ls_status fill_directory(const init_options *o, const char *directory, const ls_model_config *config,
                                const char *text, int64_t bytes, ls_error *err) {
    char path[PATH_MAX_BYTES];
    LS_TRY(ls_path_join(path, sizeof path, directory, ls_model_files[0], err));
    LS_TRY(ls_durable_file(path, text, bytes, err));
    if (o->tokenizer != NULL) LS_TRY(ls_model_files_copy(directory, o->tokenizer, 1, err));
    LS_TRY(ls_path_join(path, sizeof path, directory, "model.safetensors", err));
    if (o->empty)
        LS_TRY(ls_model_init_empty(path, config, err));
    else
        LS_TRY(ls_model_init(path, config, o->seed, o->deviation, o->threads > 0 ? (int32_t)o->threads : ls_cpu_count(),
                             err));
    return ls_directory_sync(directory, err);
}

/* Reads the directory as any reader does and says what it is; zeros are not read. */
static ls_status report(const char *directory, const char *name, ls_dtype dtype, bool empty, ls_error *err) {
    ls_stored_summary summary;
    if (empty) {
        printf("%s: all weights 0, %s, for plans\n", name, ls_dtype_name(dtype));
        return LS_OK;
    }
    LS_TRY(ls_stored_summarize(&summary, directory, err));
    printf("%s: %lld parameters, %s, weights %016llx\n", name, (long long)summary.n_parameters, ls_dtype_name(dtype),
           (unsigned long long)summary.digest);
    return LS_OK;
}

static ls_status read_init_config(const init_options *o, char **text, int64_t *bytes, ls_error *err) {
    if (o->shape == NULL) return ls_file_read(text, bytes, o->config, LS_MODEL_FILE_BYTES_MAX, err);
    *bytes = (int64_t)strlen(o->shape->config);
    return ls_text_copy(text, o->shape->config, *bytes, err);
}

/* The directory is made under another name and gets its own when it is complete. */
static ls_status run_init(const init_options *o, ls_error *err) {
    char fresh[PATH_MAX_BYTES], *text = NULL;
    int64_t bytes;
    bool is_made = false;
    ls_model_config config;
    ls_status status;
    if (ls_file_exists(o->out)) return LS_FAIL(err, LS_ERR_IO, "%s: exists already", o->out);
    if (snprintf(fresh, sizeof fresh, "%s.new", o->out) >= (int)sizeof fresh)
        return LS_FAIL(err, LS_ERR_ARG, "--out: the path is longer than %d bytes", PATH_MAX_BYTES - 1);
    LS_TRY_DONE(read_init_config(o, &text, &bytes, err));
    LS_TRY_DONE(ls_model_config_parse(&config, text, bytes, o->config, err));
    if (o->tokenizer != NULL) LS_TRY_DONE(check_tokenizer(o, &config, err));
    if (ls_file_exists(fresh)) {
        status = LS_FAIL(err, LS_ERR_IO, "%s: exists already", fresh);
        goto done;
    }
    LS_TRY_DONE(ls_directory_make(fresh, err));
    is_made = true;
    LS_TRY_DONE(fill_directory(o, fresh, &config, text, bytes, err));
    LS_TRY_DONE(report(fresh, o->out, config.stored_dtype, o->empty, err));
    LS_TRY_DONE(ls_path_rename(fresh, o->out, err));
    is_made = false;
done:
    if (is_made) (void)ls_directory_remove(fresh, NULL);
    free(text);
    return status;
}

/* What --help says above and, behind the vertical tab, below the options. */
static void describe_init(char *text, size_t bytes) {
    size_t used = (size_t)snprintf(text, bytes, "Makes a model with fresh weights.\vShapes:\n");
    for (int64_t i = 0; i < ls_shape_count() && used < bytes; i++)
        used +=
            (size_t)snprintf(text + used, bytes - used, "  %-27s %s\n", ls_shape_at(i)->name, ls_shape_at(i)->about);
    LS_ASSERT(used < bytes, "%zu bytes of shapes", used);
}

int ls_cmd_init(int argc, char **argv) {
    static const struct argp_option list[] = {
        {"config", OPT_CONFIG, "FILE", 0, "The config.json to make weights for; its dtype is the type they get", 0},
        {"shape", OPT_SHAPE, "NAME", 0, "Instead: the configuration of a published model, in bf16 (listed below)", 0},
        {"tokenizer", OPT_TOKENIZER, "DIR", 0,
         "Copy the files of this model that are neither configuration nor weights", 0},
        {"seed", OPT_SEED, "N", 0, "Seed of the weights (0)", 0},
        {"deviation", OPT_DEVIATION, "X", 0,
         "Standard deviation of matrices and embedding (0: 1/sqrt of what a sum runs over)", 0},
        {"empty", OPT_EMPTY, NULL, 0,
         "All weights 0, in a file with a hole that takes no room: of a model that is to be planned for, not run", 0},
        {"threads", OPT_THREADS, "N", 0, "Threads that draw (the processors); no bit depends on it", 0},
        {"out", OPT_OUT, "DIR", 0, "The directory to make", 0},
        {0}};
    char text[8192];
    const struct argp parser = {list, parse_init_option, NULL, text, NULL, NULL, NULL};
    init_options o = {0};
    describe_init(text, sizeof text);
    ls_cli_parse(&parser, argc, argv, &o);
    if (o.status != LS_OK) return ls_cli_fail(&o.err);
    return run_init(&o, &o.err) == LS_OK ? LS_EXIT_OK : ls_cli_fail(&o.err);
}
