/* The commands and what they share. Each takes its own arguments (argv[0] is "lockstep NAME") and returns the exit
 * code. */
#ifndef LS_CLI_COMMANDS_H
#define LS_CLI_COMMANDS_H

#include "base/status.h"

enum { LS_EXIT_OK = 0, LS_EXIT_USAGE = 1, LS_EXIT_FAILED = 2, LS_EXIT_DIFFERENT = 3, LS_EXIT_STOPPED = 4 };

/* Prints "lockstep: sentence" on standard error; returns LS_EXIT_FAILED. */
int ls_cli_fail(const ls_error *err);

/* Replaces in place what is not UTF-8 and what a terminal could take for a command. */
void ls_cli_clean(char *text);

/* Prints "COMMAND: sentence" and where to find help on standard error; exits with LS_EXIT_USAGE. */
void ls_cli_usage(const char *command, const char *format, ...) __attribute__((noreturn, format(printf, 2, 3)));

struct argp;
struct argp_state;
/* argp_parse for a command's arguments, with names of options written out: an abbreviation would mean another option
 * once there is one more. Exits with LS_EXIT_USAGE where they are wrong. */
void ls_cli_parse(const struct argp *argp, int argc, char **argv, void *input);
/* argp_error whose sentence may quote any bytes. */
void ls_cli_wrong(const struct argp_state *state, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Parses a whole decimal integer in [low, high]; on failure err names the option and the text. */
ls_status ls_cli_int(int64_t *out, const char *option, const char *text, int64_t low, int64_t high, ls_error *err);
ls_status ls_cli_seed(uint64_t *out, const char *option, const char *text, ls_error *err);
ls_status ls_cli_float(double *out, const char *option, const char *text, double low, double high, ls_error *err);

int ls_cmd_generate(int argc, char **argv);
int ls_cmd_score(int argc, char **argv);
int ls_cmd_check(int argc, char **argv);
int ls_cmd_compare(int argc, char **argv);
int ls_cmd_sweep(int argc, char **argv);
int ls_cmd_probe(int argc, char **argv);
int ls_cmd_correct(int argc, char **argv);
int ls_cmd_audit(int argc, char **argv);
int ls_cmd_report(int argc, char **argv);
int ls_cmd_inspect(int argc, char **argv);
int ls_cmd_init(int argc, char **argv);
int ls_cmd_merge(int argc, char **argv);
int ls_cmd_task(int argc, char **argv);
int ls_cmd_train(int argc, char **argv);
int ls_cmd_serve(int argc, char **argv);
int ls_cmd_chat(int argc, char **argv);
int ls_cmd_tokenize(int argc, char **argv);
int ls_cmd_detokenize(int argc, char **argv);

#endif
