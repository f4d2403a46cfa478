/* The program: finds the command and hands it its arguments. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/closest.h"
#include "base/fpmode.h"
#include "base/interrupt.h"
#include "base/thread.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/job.h"
#include "cli/progress.h"

/* Models whose loading is worth a line. */
#define LOADING_SHOWN_BYTES 1000000000

typedef struct command {
    ls_help_command help;
    int (*run)(int argc, char **argv);
} command;

static const command commands[] = {
    {{"check", "generate, score and compare: exit 0 only if every bit agrees", LS_HELP_FIRST,
      "lockstep check --model models/tiny-text"},
     ls_cmd_check},
    {{"generate", "prompts in, completions with per-token log-probabilities out", LS_HELP_FIRST,
      "lockstep generate --model models/tiny-text --prompts models/tiny-text/prompts.jsonl"},
     ls_cmd_generate},
    {{"train", "train a model: grpo, by rewards; sft, supervised; resume, plan, replay", LS_HELP_FIRST,
      "lockstep train grpo --config models/tiny-sort/grpo.json --set run=sorting"},
     ls_cmd_train},
    {{"serve", "a model over HTTP, in the dialects of OpenAI, vLLM and SGLang", LS_HELP_FIRST,
      "lockstep serve --model models/tiny-text --port 8000"},
     ls_cmd_serve},
    {{"probe", "a server against itself: its values of decoding and of the same tokens as a prompt", LS_HELP_FIRST,
      "lockstep probe http://127.0.0.1:8000 --model models/tiny-text"},
     ls_cmd_probe},
    {{"score", "recompute the log-probabilities of given sequences with the training forward", LS_HELP_ROLLOUTS, NULL},
     ls_cmd_score},
    {{"compare", "two log-probability records: measures, exact-equal share, worst tokens", LS_HELP_ROLLOUTS, NULL},
     ls_cmd_compare},
    {{"report", "the records of a training run as one HTML page", LS_HELP_ROLLOUTS, NULL}, ls_cmd_report},
    {{"sweep", "move levers one at a time and name the cause of a mismatch", LS_HELP_SEARCH, NULL}, ls_cmd_sweep},
    {{"correct", "what a mismatch correction does to the tokens of another trainer's dump", LS_HELP_SEARCH, NULL},
     ls_cmd_correct},
    {{"audit", "32-bit indices that wrap on their way to an address, in compiled kernels", LS_HELP_SEARCH, NULL},
     ls_cmd_audit},
    {{"inspect", "a checkpoint's configuration, tensors, memory, strides", LS_HELP_MODELS, NULL}, ls_cmd_inspect},
    {{"init", "a model with fresh weights, from a configuration", LS_HELP_MODELS, NULL}, ls_cmd_init},
    {{"merge", "a whole model of a base and a LoRA adapter", LS_HELP_MODELS, NULL}, ls_cmd_merge},
    {{"task", "problems of a task, as prompts or solved", LS_HELP_MODELS, NULL}, ls_cmd_task},
    {{"chat", "conversations to the text that a chat template makes of them", LS_HELP_TEXT, NULL}, ls_cmd_chat},
    {{"tokenize", "lines of text to lines of token ids", LS_HELP_TEXT, NULL}, ls_cmd_tokenize},
    {{"detokenize", "lines of token ids to lines of text", LS_HELP_TEXT, NULL}, ls_cmd_detokenize},
};
#define N_COMMANDS (sizeof commands / sizeof commands[0])

static void print_help(FILE *file) {
    ls_help_command list[N_COMMANDS];
    for (size_t i = 0; i < N_COMMANDS; i++) list[i] = commands[i].help;
    ls_help_print(file, list, N_COMMANDS);
    fprintf(
        file,
        "\nlockstep COMMAND --help, or -h, tells a command's options and ends with an example.\n"
        "Exit codes: 0 success, 1 usage, 2 bad input or a failed operation, 3 bits differ (audit, probe and\n"
        "sweep --suspect: something was found), 4 a signal stopped a training run or a generation, which can go on.\n");
}

/* A standard stream that the caller closed is replaced by one on which every use fails: the next file to be opened
 * would otherwise get its number, and be written to in its place. */
static void prepare_streams(void) {
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd) exit(LS_EXIT_FAILED);
}

static bool is_reported; /* what went wrong with standard output */

/* Nothing may be lost between printf and the file; a command that failed has said so already. */
static int finish_output(int code) {
    errno = 0;
    if ((fflush(stdout) == 0 && !ferror(stdout)) || code == LS_EXIT_FAILED) {
        is_reported = is_reported || code == LS_EXIT_FAILED;
        return code;
    }
    fprintf(stderr, "lockstep: standard output: cannot write: %s\n", strerror(errno != 0 ? errno : EIO));
    is_reported = true;
    return LS_EXIT_FAILED;
}

/* The same for those who call exit, as the parser of options does behind its help. */
static void finish_exit(void) {
    if (!is_reported && finish_output(LS_EXIT_OK) != LS_EXIT_OK) _exit(LS_EXIT_FAILED);
}

static int refuse_command(const char *name) {
    char hint[LS_CLOSEST_HINT_MAX], shown[64];
    ls_closest closest = {0};
    for (size_t i = 0; i < N_COMMANDS; i++)
        ls_closest_try(&closest, name, (int64_t)strlen(name), commands[i].help.name);
    snprintf(shown, sizeof shown, "%s", name);
    ls_cli_clean(shown);
    fprintf(stderr, "lockstep: '%s' is not a command%s\n\n", shown, ls_closest_hint(hint, &closest, ""));
    print_help(stderr);
    return LS_EXIT_USAGE;
}

/* Large weights take their time: their way is shown on a terminal, and what it took is said in any case. */
static void show_loading(void *context, const char *directory, int64_t done, int64_t total) {
    static double start;
    const double now = ls_clock_seconds();
    (void)context, (void)directory;
    if (done == 0) {
        start = now;
        ls_progress_begin("weights", "MB");
    }
    ls_progress_show(done / 1000000, total / 1000000, "");
    if (done < total) return;
    ls_progress_end();
    if (total >= LOADING_SHOWN_BYTES)
        fprintf(stderr, "weights: %.2f GB in %.1f s, %.2f GB/s\n", (double)total * 1e-9, now - start,
                (double)total * 1e-9 / (now > start ? now - start : 1e-9));
}

static int run_command(int argc, char **argv) {
    char name[64];
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(argv[1], commands[i].help.name) != 0) continue;
        snprintf(name, sizeof name, "lockstep %s", commands[i].help.name);
        argv[1] = name;
        return finish_output(commands[i].run(argc - 1, argv + 1));
    }
    return refuse_command(argv[1]);
}

static bool is_help(const char *word) {
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0;
}

int main(int argc, char **argv) {
    char help[] = "--help";
    prepare_streams();
    ls_interrupt_install();
    ls_fpmode_enter(NULL);
    ls_model_watch(show_loading, NULL);
    if (atexit(finish_exit) != 0) return LS_EXIT_FAILED;
    if (argc < 2) {
        print_help(stderr);
        return LS_EXIT_USAGE;
    }
    if (is_help(argv[1]) && argc == 2) {
        print_help(stdout);
        return finish_output(LS_EXIT_OK);
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("lockstep %s\n", LS_VERSION);
        return finish_output(LS_EXIT_OK);
    }
    if (is_help(argv[1])) { /* of a command: the words change their places */
        argv[1] = argv[2];
        argv[2] = help;
    }
    return ls_thread_run_main(run_command, argc, argv);
}
