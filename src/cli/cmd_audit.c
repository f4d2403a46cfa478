/* lockstep audit: index widths of compiled kernels. */
#include <argp.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "audit/audit.h"
#include "audit/binary.h"
#include "audit/by_source.h"
#include "audit/config_names.h"
#include "audit/report.h"
#include "audit/reproduce.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli/commands.h"
#include "cli/progress.h"

enum { FILES_MAX = 4096 };
#define RANGES_BYTES_MAX 16000000

typedef struct audit_options {
    const char *files[FILES_MAX];
    int64_t n_files;
    const char *ranges, *html, *model, *reproduce, *out;
    ls_config_sizes sizes;
    const char *only;
    int64_t arch;
    bool json, unknown, machine;
} audit_options;

enum {
    KEY_BATCH = 256,
    KEY_LENGTH,
    KEY_POOL,
    KEY_FOR,
    KEY_HTML,
    KEY_RANGES,
    KEY_REPRODUCE,
    KEY_UNKNOWN,
    KEY_ARCH,
    KEY_KERNEL,
    KEY_MACHINE
};

static void take_size(int64_t *out, const char *option, const char *text, const struct argp_state *state) {
    ls_error err;
    if (ls_cli_int(out, option, text, 1, INT64_C(1) << 40, &err) != LS_OK) ls_cli_wrong(state, "%s", err.text);
}

static error_t parse_audit_option(int key, char *arg, struct argp_state *state) {
    audit_options *options = state->input;
    switch (key) {
        case KEY_RANGES: options->ranges = arg; return 0;
        case KEY_HTML: options->html = arg; return 0;
        case KEY_FOR: options->model = arg; return 0;
        case KEY_REPRODUCE: options->reproduce = arg; return 0;
        case KEY_UNKNOWN: options->unknown = true; return 0;
        case KEY_MACHINE: options->machine = true; return 0;
        case KEY_KERNEL: options->only = arg; return 0;
        case KEY_ARCH:
            take_size(&options->arch, "--arch", strncmp(arg, "sm_", 3) == 0 ? arg + 3 : arg, state);
            return 0;
        case 'o': options->out = arg; return 0;
        case 'j': options->json = true; return 0;
        case KEY_BATCH: take_size(&options->sizes.batch, "--batch", arg, state); return 0;
        case KEY_LENGTH: take_size(&options->sizes.length, "--length", arg, state); return 0;
        case KEY_POOL: take_size(&options->sizes.pool, "--pool", arg, state); return 0;
        case ARGP_KEY_ARG:
            if (options->n_files == FILES_MAX) ls_cli_wrong(state, "more than %d files", FILES_MAX);
            options->files[options->n_files++] = arg;
            return 0;
        case ARGP_KEY_END:
            if (options->n_files == 0) ls_cli_wrong(state, "no file is named");
            return 0;
        default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option options_known[] = {
    {"ranges", KEY_RANGES, "FILE", 0, "What values the kernels are given (docs/guide/audit.md)", 0},
    {"for", KEY_FOR, "FILE", 0, "A model's config.json: gives the usual names their ranges, with the three that follow",
     0},
    {"batch", KEY_BATCH, "N", 0, "Sequences at once, for --for (256)", 0},
    {"length", KEY_LENGTH, "N", 0, "Tokens of a sequence, for --for (the model's longest, or 4096)", 0},
    {"pool", KEY_POOL, "N", 0, "Slots or pages that an allocator may hand out, for --for (65536)", 0},
    {"machine", KEY_MACHINE, NULL, 0, "Read the machine code of binaries that hold PTX as well", 0},
    {"arch", KEY_ARCH, "SM", 0, "Read machine code of this architecture (the newest up to sm_90)", 0},
    {"kernel", KEY_KERNEL, "TEXT", 0, "Audit kernels whose names hold TEXT", 0},
    {"json", 'j', NULL, 0, "Write one JSON object instead of the text", 0},
    {"unknown", KEY_UNKNOWN, NULL, 0, "List every access of which nothing is claimed, with its reason", 0},
    {"out", 'o', "FILE", 0, "Write to FILE, which appears only when complete", 0},
    {"html", KEY_HTML, "FILE", 0, "Write a page as well", 0},
    {"reproduce", KEY_REPRODUCE, "FOLDER", 0, "Write a CUDA program for every finding that one can be made of", 0},
    {0},
};

static const struct argp parser = {
    options_known,
    parse_audit_option,
    "FILE...",
    "Find 32-bit indices that wrap on their way to an address, in PTX, cubins, fat binaries, shared libraries and "
    "Triton's "
    "cache folders.\v"
    "Exit status: 0 if nothing was found, 3 if something was, 2 if a file cannot be read, 1 for wrong usage.",
    NULL,
    NULL,
    NULL,
};

static ls_status read_ranges(ls_ranges *ranges, const audit_options *options, ls_error *err) {
    ls_status status = LS_OK;
    char *text = NULL;
    int64_t bytes;
    if (options->model != NULL) LS_TRY(ls_config_names(ranges, options->model, &options->sizes, err));
    if (options->ranges == NULL) return LS_OK;
    LS_TRY_DONE(ls_file_read(&text, &bytes, options->ranges, RANGES_BYTES_MAX, err));
    status = ls_ranges_parse(ranges, text, bytes, options->ranges, err);
done:
    free(text);
    return status;
}

static ls_status write_all(const ls_audit *audit, const audit_options *options, ls_error *err) {
    ls_status status;
    ls_output *output = NULL;
    ls_audit_order *order = NULL;
    LS_TRY_DONE(ls_audit_rank(&order, audit, err));
    LS_TRY_DONE(ls_output_open(&output, options->out, err));
    if (options->json)
        ls_audit_write_json(ls_output_stream(output), audit, order);
    else if (options->ranges == NULL && options->model == NULL)
        LS_TRY_DONE(ls_audit_write_sources(ls_output_stream(output), audit, order, err));
    if (!options->json) ls_audit_write_text(ls_output_stream(output), audit, order, options->unknown);
    status = ls_output_commit(output, err);
    output = NULL;
    if (status != LS_OK || options->html == NULL) goto done;
    LS_TRY_DONE(ls_output_open(&output, options->html, err));
    ls_audit_write_html(ls_output_stream(output), audit, order);
    status = ls_output_commit(output, err);
    output = NULL;
done:
    free(order);
    ls_output_abandon(output);
    return status;
}

static char place[160]; /* of the file that is read, for the line of progress */

static void show_kernels(int64_t n_kernels) { ls_progress_show(n_kernels, 0, place); }

static ls_status audit_files(ls_audit *audit, const audit_options *o, const ls_ranges *ranges, ls_error *err) {
    ls_progress_begin("audited", "kernels");
    for (int64_t i = 0; i < o->n_files; i++) {
        const char *slash = strrchr(o->files[i], '/');
        snprintf(place, sizeof place, "file %" PRId64 " of %" PRId64 ": %.60s", i + 1, o->n_files,
                 slash != NULL && slash[1] != '\0' ? slash + 1 : o->files[i]);
        show_kernels(audit->n_kernels);
        LS_TRY(ls_audit_path(audit, o->files[i], ranges, err));
    }
    ls_progress_end();
    return LS_OK;
}

int ls_cmd_audit(int argc, char **argv) {
    ls_status status;
    audit_options *options = NULL;
    ls_ranges *ranges = NULL;
    ls_audit audit = {0};
    ls_error err;
    LS_TRY_DONE(ls_array_alloc((void **)&options, 1, sizeof *options, "options", &err));
    ls_cli_parse(&parser, argc, argv, options);
    LS_TRY_DONE(ls_ranges_create(&ranges, &err));
    LS_TRY_DONE(read_ranges(ranges, options, &err));
    audit.progress = show_kernels;
    audit.arch = options->arch;
    audit.machine = options->machine;
    audit.only = options->only;
    LS_TRY_DONE(audit_files(&audit, options, ranges, &err));
    ls_ranges_tell_unused(stderr, ranges);
    if (options->only != NULL && audit.n_kernels == 0) {
        status = LS_FAIL(&err, LS_ERR_ARG, "--kernel %s: no kernel of these files has this in its name", options->only);
        goto done;
    }
    LS_TRY_DONE(write_all(&audit, options, &err));
    if (options->reproduce != NULL) LS_TRY_DONE(ls_audit_reproduce(&audit, options->reproduce, stderr, &err));
done:;
    const int64_t n_findings = audit.n_findings;
    ls_audit_deinit(&audit);
    ls_ranges_free(ranges);
    free(options);
    if (status != LS_OK) return ls_cli_fail(&err);
    return n_findings > 0 ? LS_EXIT_DIFFERENT : LS_EXIT_OK;
}
