/* Argument parsing shared by the commands. */
#define _POSIX_C_SOURCE 200809L
#include <argp.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/closest.h"
#include "base/utf8.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/progress.h"

enum { OPT_USAGE = 0x7000 };
#define PROGRAM_PREFIX "lockstep "

/* Ids and paths may hold any bytes; the message stays one line of UTF-8 and reaches no terminal as a command. C1
 * controls are commands to some terminals, too. */
void ls_cli_clean(char *text) {
    const int64_t n = (int64_t)strlen(text);
    for (int64_t i = 0; i < n;) {
        int32_t code;
        const int64_t used = ls_utf8_decode((const uint8_t *)text + i, n - i, &code);
        if (code < 32 || (code >= 127 && code < 160)) memset(text + i, '?', (size_t)used);
        i += used;
    }
}

int ls_cli_fail(const ls_error *err) {
    ls_error shown = *err;
    ls_cli_clean(shown.text);
    ls_progress_end();
    fprintf(stderr, "lockstep: %s\n", shown.text);
    return LS_EXIT_FAILED;
}

void ls_cli_usage(const char *command, const char *format, ...) {
    char sentence[512];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    ls_cli_clean(sentence);
    fprintf(stderr, "%s: %s\nTry `%s --help' for more information.\n", command, sentence, command);
    exit(LS_EXIT_USAGE);
}

void ls_cli_wrong(const struct argp_state *state, const char *format, ...) {
    char sentence[512];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    ls_cli_clean(sentence);
    argp_error(state, "%s", sentence);
}

/* ---- names of options ---- */

static bool is_end(const struct argp_option *o) { return o->name == NULL && o->key == 0 && o->doc == NULL; }

/* The option of this whole name; the library would take any beginning of it that is not ambiguous today. */
static const struct argp_option *long_option(const struct argp_option *options, const char *name, size_t n) {
    for (const struct argp_option *o = options; o != NULL && !is_end(o); o++)
        if (o->name != NULL && strlen(o->name) == n && memcmp(o->name, name, n) == 0) return o;
    return NULL;
}

static const struct argp_option *short_option(const struct argp_option *options, char key) {
    for (const struct argp_option *o = options; o != NULL && !is_end(o); o++)
        if (o->key == (unsigned char)key && o->key < 128) return o;
    return NULL;
}

static bool is_help(const char *name, size_t n) {
    return (n == 4 && memcmp(name, "help", n) == 0) || (n == 5 && memcmp(name, "usage", n) == 0);
}

/* The library's own help has no -h. */
static const struct argp_option help_options[] = {
    {"help", 'h', NULL, 0, "Give this help list", -1},
    {NULL, '?', NULL, OPTION_ALIAS | OPTION_HIDDEN, NULL, -1},
    {"usage", OPT_USAGE, NULL, 0, "Give a short usage message", -1},
    {0},
};

static error_t on_help(int key, char *text, struct argp_state *state) {
    (void)text;
    if (key == 'h' || key == '?') argp_state_help(state, state->out_stream, ARGP_HELP_STD_HELP);
    if (key == OPT_USAGE) argp_state_help(state, state->out_stream, ARGP_HELP_USAGE | ARGP_HELP_EXIT_OK);
    return ARGP_ERR_UNKNOWN;
}

static void refuse_option(const struct argp_option *options, const char *command, const char *name, size_t n) {
    char hint[LS_CLOSEST_HINT_MAX];
    ls_closest closest = {0};
    ls_closest_try(&closest, name, (int64_t)n, "help");
    for (const struct argp_option *o = options; o != NULL && !is_end(o); o++)
        if (o->name != NULL) ls_closest_try(&closest, name, (int64_t)n, o->name);
    ls_cli_usage(command, "--%.*s is no option of this command%s", (int)(n < 100 ? n : 100), name,
                 ls_closest_hint(hint, &closest, "--"));
}

/* Whether the argument takes the next one as its value. */
static bool check_argument(const struct argp_option *options, const char *command, const char *text) {
    if (text[0] != '-' || text[1] == '\0') return false;
    if (text[1] == '-') {
        const char *name = text + 2;
        const size_t n = strcspn(name, "=");
        const struct argp_option *o = long_option(options, name, n);
        if (o == NULL && !is_help(name, n)) refuse_option(options, command, name, n);
        return o != NULL && o->arg != NULL && name[n] == '\0';
    }
    for (const char *c = text + 1; *c != '\0'; c++) {
        const struct argp_option *o = short_option(options, *c);
        if (o == NULL && *c != '?' && *c != 'h') ls_cli_usage(command, "-%c is no option of this command", *c);
        if (o != NULL && o->arg != NULL) return c[1] == '\0';
    }
    return false;
}

/* What stands behind the options, and the examples at the end of it. "" without room, which only costs the text. */
static const char *doc_with_examples(char **out, const struct argp *argp, const char *command) {
    const char *doc = argp->doc != NULL ? argp->doc : "", *examples = NULL;
    size_t n = 0;
    FILE *stream;
    if (strncmp(command, PROGRAM_PREFIX, strlen(PROGRAM_PREFIX)) == 0)
        examples = ls_help_examples(command + strlen(PROGRAM_PREFIX));
    if (examples == NULL || (stream = open_memstream(out, &n)) == NULL) return doc;
    fprintf(stream, "%s%sExamples:\n%s", doc,
            strchr(doc, '\v') == NULL      ? "\v"
            : doc[strlen(doc) - 1] == '\n' ? "\n"
                                           : "\n\n",
            examples);
    return fclose(stream) == 0 ? *out : doc;
}

void ls_cli_parse(const struct argp *argp, int argc, char **argv, void *input) {
    const struct argp help = {help_options, on_help, NULL, NULL, NULL, NULL, NULL};
    const struct argp_child children[] = {{&help, 0, NULL, 0}, {0}};
    struct argp whole = *argp;
    char *doc = NULL;
    int status;
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) i += check_argument(argp->options, argv[0], argv[i]);
    whole.children = children;
    whole.doc = doc_with_examples(&doc, argp, argv[0]);
    argp_err_exit_status = LS_EXIT_USAGE;
    status = argp_parse(&whole, argc, argv, ARGP_NO_HELP, NULL, input);
    free(doc);
    if (status != 0) exit(LS_EXIT_USAGE);
}

ls_status ls_cli_int(int64_t *out, const char *option, const char *text, int64_t low, int64_t high, ls_error *err) {
    char *end;
    long long value;
    errno = 0;
    value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < low || value > high)
        return LS_FAIL(err, LS_ERR_ARG, "%s: '%s' is not an integer in %lld..%lld", option, text, (long long)low,
                       (long long)high);
    *out = value;
    return LS_OK;
}

ls_status ls_cli_seed(uint64_t *out, const char *option, const char *text, ls_error *err) {
    char *end;
    unsigned long long value;
    errno = 0;
    value = strtoull(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || strchr(text, '-') != NULL)
        return LS_FAIL(err, LS_ERR_ARG, "%s: '%s' is not an integer in 0..2^64-1", option, text);
    *out = value;
    return LS_OK;
}

ls_status ls_cli_float(double *out, const char *option, const char *text, double low, double high, ls_error *err) {
    char *end;
    double value;
    errno = 0;
    value = strtod(text, &end);
    if (end == text || *end != '\0' || errno != 0 || !(value >= low && value <= high))
        return LS_FAIL(err, LS_ERR_ARG, "%s: '%s' is not a number in %g..%g", option, text, low, high);
    *out = value;
    return LS_OK;
}
