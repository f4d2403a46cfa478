/* Argument parsing shared by the commands. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"

/* Ids and paths may hold control characters; the message stays one line and reaches no terminal as a command. */
int ls_cli_fail(const ls_error *err) {
    fputs("lockstep: ", stderr);
    for (const char *c = err->text; *c != '\0'; c++) fputc((unsigned char)*c < 32 || *c == 127 ? '?' : *c, stderr);
    fputc('\n', stderr);
    return LS_EXIT_FAILED;
}

void ls_cli_usage(const char *command, const char *sentence) {
    fprintf(stderr, "%s: %s\nTry `%s --help' for more information.\n", command, sentence, command);
    exit(LS_EXIT_USAGE);
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
