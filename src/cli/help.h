/* What leads a newcomer: the first page of the program, and an example for the end of every command's --help. */
#ifndef LS_CLI_HELP_H
#define LS_CLI_HELP_H

#include <stddef.h>
#include <stdio.h>

/* Groups of the first page. */
typedef enum ls_help_group {
    LS_HELP_FIRST,
    LS_HELP_ROLLOUTS,
    LS_HELP_SEARCH,
    LS_HELP_MODELS,
    LS_HELP_TEXT
} ls_help_group;

typedef struct ls_help_command {
    const char *name, *text;
    ls_help_group group;
    const char *example; /* NULL: the first page has none */
} ls_help_command;

void ls_help_print(FILE *file, const ls_help_command *commands, size_t n);
/* Lines of the examples of "check" or "train grpo", each with a line break at its end; NULL: there are none. They run
 * from the root of the source tree. */
const char *ls_help_examples(const char *command);

#endif
