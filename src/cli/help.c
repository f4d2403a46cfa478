/* The first page of the program, and the examples of all commands as one table. */
#include "cli/help.h"

#include <string.h>

typedef struct example {
    const char *command, *lines;
} example;

#define TINY "models/tiny-text"
#define SORT "models/tiny-sort"

/* In an order in which each has what it reads. */
static const example examples[] = {
    {"check", "  lockstep check --model " TINY "\n"},
    {"generate", "  lockstep generate --model " TINY " --samples 4 \\\n"
                 "      --prompts " TINY "/prompts.jsonl --out rollouts.jsonl\n"},
    {"score", "  lockstep score --model " TINY " --rollouts rollouts.jsonl \\\n"
              "      --out scored.jsonl\n"},
    {"compare", "  lockstep compare rollouts.jsonl scored.jsonl\n"},
    {"train plan", "  lockstep train plan grpo --config " SORT "/grpo.json --card h200\n"},
    {"train grpo", "  lockstep train grpo --config " SORT "/grpo.json --set run=sorting \\\n"
                   "      --set steps=6 --set eval_every=0\n"
                   "  lockstep train grpo --keys\n"},
    {"train resume", "  lockstep train resume sorting --set steps=7 --set new_schedule=true\n"},
    {"train replay", "  lockstep train replay stopped/mismatch-1\n"},
    {"train sft",
     "  lockstep task sort-digits --n 300 --format sft --out sorts.jsonl\n"
     "  lockstep train sft --set model=" SORT " --set data=sorts.jsonl \\\n"
     "      --set run=adapting --set lora_rank=4 --set steps=2\n"
     "  lockstep train sft --keys\n"},
    {"report", "  lockstep report sorting --out sorting.html\n"},
    {"merge", "  lockstep merge adapting/checkpoints/step-00000002 --out merged\n"},
    {"serve", "  lockstep serve --model " TINY " --port 8000\n"},
    {"probe", "  lockstep probe http://127.0.0.1:8000 --model " TINY "\n"},
    {"sweep", "  lockstep sweep --model " TINY " --html sweep.html\n"},
    {"correct",
     "  echo '{\"token_ids\":[1,2],\"loss_mask\":[false,true],' \\\n"
     "      '\"inference_logprobs\":[0,-1],\"trainer_logprobs\":[0,-1.5]}' |\n"
     "      lockstep correct --dump - --format prime-rl \\\n"
     "      --correction token-truncate=2\n"},
    {"audit",
     "  lockstep audit tests/audit/corpus/published.ptx \\\n"
     "      --ranges tests/audit/corpus/corpus.ranges\n"},
    {"inspect", "  lockstep inspect " TINY "\n"},
    {"init", "  lockstep init --shape jamba-tiny --tokenizer " TINY " --out fresh\n"},
    {"task",
     "  lockstep task --list\n"
     "  lockstep task arithmetic --n 3 --options digits=2\n"},
    {"chat",
     "  echo '{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}' |\n"
     "      lockstep chat --model " TINY "\n"},
    {"tokenize", "  echo '{\"text\":\"Hello\"}' | lockstep tokenize --model " TINY "\n"},
    {"detokenize", "  echo '{\"ids\":[72,101]}' | lockstep detokenize --model " TINY "\n"},
};

const char *ls_help_examples(const char *command) {
    for (size_t i = 0; i < sizeof examples / sizeof examples[0]; i++)
        if (strcmp(examples[i].command, command) == 0) return examples[i].lines;
    return NULL;
}

static const char *const headings[] = {
    "To begin with:", "Rollouts and their log-probabilities:", "Where bits get lost:", "Models and problems:", "Text:"};

void ls_help_print(FILE *file, const ls_help_command *commands, size_t n) {
    fprintf(file,
            "Usage: lockstep COMMAND [OPTION...]\n\n"
            "A rollout engine and a trainer that agree on every log-probability, bit for bit.\n");
    for (int g = LS_HELP_FIRST; g <= LS_HELP_TEXT; g++) {
        fprintf(file, "\n%s\n", headings[g]);
        for (size_t i = 0; i < n; i++) {
            if (commands[i].group != (ls_help_group)g) continue;
            fprintf(file, "  %-11s %s\n", commands[i].name, commands[i].text);
            if (commands[i].example != NULL) fprintf(file, "              %s\n", commands[i].example);
        }
    }
}
