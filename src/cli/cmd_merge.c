/* lockstep merge: a whole model from a base and an adapter. */
#define _POSIX_C_SOURCE 200809L
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/durable.h"
#include "base/file.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "load/model_files.h"
#include "model/architectures.h"
#include "model/merge.h"
#include "model/summary.h"

enum { OPT_BASE = 256, OPT_OUT };
enum { PATH_MAX_BYTES = 4096 };

typedef struct merge_options {
    const char *adapter, *base, *out; /* base NULL: the one that the adapter names */
} merge_options;

static error_t parse_merge_option(int key, char *arg, struct argp_state *state) {
    merge_options *o = state->input;
    switch (key) {
        case OPT_BASE: o->base = arg; return 0;
        case OPT_OUT: o->out = arg; return 0;
        case ARGP_KEY_ARG:
            if (o->adapter != NULL) ls_cli_wrong(state, "unexpected argument '%s'", arg);
            o->adapter = arg;
            return 0;
        case ARGP_KEY_END:
            if (o->adapter == NULL) ls_cli_wrong(state, "the directory of the adapter is missing");
            if (o->out == NULL) ls_cli_wrong(state, "--out is missing");
            return 0;
        default: return ARGP_ERR_UNKNOWN;
    }
}

static void show_merged(void *context, const char *directory, int64_t done, int64_t total) {
    (void)context, (void)directory;
    ls_progress_show(done / 1000000, total / 1000000, "");
}

static ls_status fill_directory(const merge_options *o, const char *fresh, const ls_adapter_chain *chain,
                                ls_error *err) {
    char path[PATH_MAX_BYTES];
    ls_model_config read;
    ls_stored_summary summary;
    int64_t n;
    LS_TRY(ls_model_config_open(&read, chain->home, err));
    LS_TRY(ls_model_files_copy(fresh, chain->home, 0, err));
    LS_TRY(ls_path_join(path, sizeof path, fresh, "model.safetensors", err));
    ls_progress_begin("merging", "MB");
    LS_TRY(ls_merging_write(path, chain, &n, show_merged, err));
    ls_progress_end();
    LS_TRY(ls_stored_summarize(&summary, fresh, err));
    LS_TRY(ls_directory_sync(fresh, err));
    printf("%s: %lld matrices of %s merged, weights %016llx\n", o->out, (long long)n, chain->home,
           (unsigned long long)summary.digest);
    return LS_OK;
}

/* The directory is made under another name and gets its own when it is complete. */
static ls_status run_merge(const merge_options *o, ls_error *err) {
    char fresh[PATH_MAX_BYTES];
    ls_adapter_chain chain = {0};
    bool is_made = false;
    ls_status status;
    if (ls_file_exists(o->out)) return LS_FAIL(err, LS_ERR_IO, "%s: exists already", o->out);
    if (snprintf(fresh, sizeof fresh, "%s.new", o->out) >= (int)sizeof fresh)
        return LS_FAIL(err, LS_ERR_ARG, "--out: the path is longer than %d bytes", PATH_MAX_BYTES - 1);
    if (ls_file_exists(fresh)) return LS_FAIL(err, LS_ERR_IO, "%s: exists already", fresh);
    if (o->base != NULL) ls_adapter_base_is(o->adapter, o->base);
    LS_TRY_DONE(ls_adapter_chain_open(&chain, o->adapter, err));
    if (chain.n == 0) { /* no adapter_config.json: the sentence of its reader */
        ls_adapter_config none;
        LS_TRY_DONE(ls_adapter_config_open(&none, o->adapter, err));
    }
    LS_TRY_DONE(ls_directory_make(fresh, err));
    is_made = true;
    LS_TRY_DONE(fill_directory(o, fresh, &chain, err));
    LS_TRY_DONE(ls_path_rename(fresh, o->out, err));
    is_made = false;
done:
    if (is_made) (void)ls_directory_remove(fresh, NULL);
    ls_adapter_chain_deinit(&chain);
    return status;
}

int ls_cmd_merge(int argc, char **argv) {
    static const struct argp_option list[] = {
        {"base", OPT_BASE, "DIR", 0,
         "The model that the adapter is of (base_model_name_or_path of adapter_config.json)", 0},
        {"out", OPT_OUT, "DIR", 0, "The directory to make", 0},
        {0}};
    static const struct argp parser = {
        list, parse_merge_option, "ADAPTER", "Makes a whole model of a base and a LoRA adapter.", NULL, NULL, NULL};
    merge_options o = {0};
    ls_error err;
    ls_cli_parse(&parser, argc, argv, &o);
    return run_merge(&o, &err) == LS_OK ? LS_EXIT_OK : ls_cli_fail(&err);
}
