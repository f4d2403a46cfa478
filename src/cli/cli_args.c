/* Argument parsing shared by the commands. */
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
        if (o == NULL && *c != '?') ls_cli_usage(command, "-%c is no option of this command", *c);
        if (o != NULL && o->arg != NULL) return c[1] == '\0';
    }
    return false;
}

void ls_cli_parse(const struct argp *argp, int argc, char **argv, void *input) {
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) i += check_argument(argp->options, argv[0], argv[i]);
    argp_err_exit_status = LS_EXIT_USAGE;
    if (argp_parse(argp, argc, argv, 0, NULL, input) != 0) exit(LS_EXIT_USAGE);
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
