/* The program: finds the command and hands it its arguments. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"

typedef struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *text;
} command;

static const command commands[] = {
    {"generate", ls_cmd_generate, "prompts in, completions with per-token log-probabilities out"},
    {"score", ls_cmd_score, "recompute the log-probabilities of given sequences with the training forward"},
    {"check", ls_cmd_check, "generate, score and compare: exit 0 only if every bit agrees"},
    {"compare", ls_cmd_compare, "two log-probability records: measures, exact-equal share, worst tokens"},
    {"inspect", ls_cmd_inspect, "a checkpoint's configuration, tensors, memory, strides"},
    {"tokenize", ls_cmd_tokenize, "lines of text to lines of token ids"},
    {"detokenize", ls_cmd_detokenize, "lines of token ids to lines of text"},
};
#define N_COMMANDS (sizeof commands / sizeof commands[0])

static void print_help(FILE *file) {
    fprintf(file, "Usage: lockstep COMMAND [OPTION...]\n\n");
    for (size_t i = 0; i < N_COMMANDS; i++) fprintf(file, "  %-11s %s\n", commands[i].name, commands[i].text);
    fprintf(file, "\nlockstep COMMAND --help tells a command's options.\n"
                  "Exit codes: 0 success, 1 usage, 2 bad input or a failed operation, 3 the check ran and bits differ.\n");
}

int main(int argc, char **argv) {
    char name[64];
    if (argc < 2) {
        print_help(stderr);
        return LS_EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return LS_EXIT_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("lockstep %s\n", LS_VERSION);
        return LS_EXIT_OK;
    }
    for (size_t i = 0; i < N_COMMANDS; i++) {
        int status;
        if (strcmp(argv[1], commands[i].name) != 0) continue;
        snprintf(name, sizeof name, "lockstep %s", commands[i].name);
        argv[1] = name;
        status = commands[i].run(argc - 1, argv + 1);
        if (fflush(stdout) != 0 || ferror(stdout)) {
            fprintf(stderr, "lockstep: standard output: cannot write\n");
            return LS_EXIT_FAILED;
        }
        return status;
    }
    fprintf(stderr, "lockstep: '%s' is not a command\n\n", argv[1]);
    print_help(stderr);
    return LS_EXIT_USAGE;
}
