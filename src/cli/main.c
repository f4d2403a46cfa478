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
#include "cli/job.h"

/* Models whose loading is worth a line. */
#define LOADING_SHOWN_BYTES 1000000000

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
    {"sweep", ls_cmd_sweep, "move levers one at a time and name the cause of a mismatch"},
    {"probe", ls_cmd_probe, "a server against itself: what it records, and its values of the same tokens as a prompt"},
    {"correct", ls_cmd_correct, "what a mismatch correction does to the tokens of another trainer's dump"},
    {"audit", ls_cmd_audit, "32-bit indices that wrap on their way to an address, in compiled kernels"},
    {"report", ls_cmd_report, "the records of a training run as one HTML page"},
    {"inspect", ls_cmd_inspect, "a checkpoint's configuration, tensors, memory, strides"},
    {"init", ls_cmd_init, "a model with fresh weights, from a configuration"},
    {"merge", ls_cmd_merge, "a whole model of a base and a LoRA adapter"},
    {"task", ls_cmd_task, "problems of a task, as prompts or solved"},
    {"train", ls_cmd_train, "train a model: sft, supervised; grpo, by rewards; replay of a mismatch"},
    {"serve", ls_cmd_serve, "a model over HTTP, in the dialects of OpenAI, vLLM and SGLang"},
    {"chat", ls_cmd_chat, "conversations to the text that a chat template makes of them"},
    {"tokenize", ls_cmd_tokenize, "lines of text to lines of token ids"},
    {"detokenize", ls_cmd_detokenize, "lines of token ids to lines of text"},
};
#define N_COMMANDS (sizeof commands / sizeof commands[0])

static void print_help(FILE *file) {
    fprintf(file, "Usage: lockstep COMMAND [OPTION...]\n\n");
    for (size_t i = 0; i < N_COMMANDS; i++) fprintf(file, "  %-11s %s\n", commands[i].name, commands[i].text);
    fprintf(
        file,
        "\nlockstep COMMAND --help tells a command's options.\n"
        "Exit codes: 0 success, 1 usage, 2 bad input or a failed operation, 3 the check ran and bits differ (audit:\n"
        "it found something), 4 a signal stopped a training run or a generation, which\n"
        "can go on.\n");
}

/* A standard stream that the caller closed is replaced by one on which every use fails: the next file to be opened
 * would otherwise get its number, and be written to in its place. */
static void prepare_streams(void) {
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd) exit(LS_EXIT_FAILED);
}

static bool is_told; /* what went wrong with standard output */

/* Nothing may be lost between printf and the file; a command that failed has said so already. */
static int finish(int code) {
    errno = 0;
    if ((fflush(stdout) == 0 && !ferror(stdout)) || code == LS_EXIT_FAILED) {
        is_told = is_told || code == LS_EXIT_FAILED;
        return code;
    }
    fprintf(stderr, "lockstep: standard output: cannot write: %s\n", strerror(errno != 0 ? errno : EIO));
    is_told = true;
    return LS_EXIT_FAILED;
}

/* The same for those who call exit, as the parser of options does behind its help. */
static void finish_exit(void) {
    if (!is_told && finish(LS_EXIT_OK) != LS_EXIT_OK) _exit(LS_EXIT_FAILED);
}

static int refuse_command(const char *name) {
    char hint[LS_CLOSEST_HINT_MAX], shown[64];
    ls_closest closest = {0};
    for (size_t i = 0; i < N_COMMANDS; i++) ls_closest_try(&closest, name, (int64_t)strlen(name), commands[i].name);
    snprintf(shown, sizeof shown, "%s", name);
    ls_cli_clean(shown);
    fprintf(stderr, "lockstep: '%s' is not a command%s\n\n", shown, ls_closest_hint(hint, &closest, ""));
    print_help(stderr);
    return LS_EXIT_USAGE;
}

/* Large weights take their time: their way is shown on a terminal, and what it took is said in any case. */
static void show_loading(void *context, const char *directory, int64_t done, int64_t total) {
    static double start, shown;
    const double now = ls_clock_seconds();
    (void)context, (void)directory;
    if (total < LOADING_SHOWN_BYTES) return;
    if (done == 0) start = shown = now;
    if (done == total)
        fprintf(stderr, "%sweights: %.2f GB in %.1f s, %.2f GB/s\n", isatty(STDERR_FILENO) ? "\r\033[K" : "",
                (double)total * 1e-9, now - start, (double)total * 1e-9 / (now > start ? now - start : 1e-9));
    else if (isatty(STDERR_FILENO) && now - shown > 0.2) {
        fprintf(stderr, "\rweights: %.2f of %.2f GB", (double)done * 1e-9, (double)total * 1e-9);
        shown = now;
    }
}

static int run_command(int argc, char **argv) {
    char name[64];
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(argv[1], commands[i].name) != 0) continue;
        snprintf(name, sizeof name, "lockstep %s", commands[i].name);
        argv[1] = name;
        return finish(commands[i].run(argc - 1, argv + 1));
    }
    return refuse_command(argv[1]);
}

int main(int argc, char **argv) {
    prepare_streams();
    ls_interrupt_install();
    ls_fpmode_enter(NULL);
    ls_model_watch(show_loading, NULL);
    if (atexit(finish_exit) != 0) return LS_EXIT_FAILED;
    if (argc < 2) {
        print_help(stderr);
        return LS_EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return finish(LS_EXIT_OK);
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("lockstep %s\n", LS_VERSION);
        return finish(LS_EXIT_OK);
    }
    return ls_thread_run_main(run_command, argc, argv);
}
