/* One line on standard error while work takes its time: what is done, of how much, and how fast. It is there only where
 * somebody looks, a terminal, and only of work that has taken two seconds. One piece of work has it at a time. What was
 * told last is shown again, with its new rate, while nothing is told. */
#ifndef LS_CLI_PROGRESS_H
#define LS_CLI_PROGRESS_H

#include <stdint.h>

/* what: "scoring"; unit: "sequences". Both must live until the end. */
void ls_progress_begin(const char *what, const char *unit);
/* Whether a line would be seen now. The first call after the two seconds says so, and then one in 0.2 s. */
int ls_progress_is_due(void);
/* more: text behind it, or "". Total 0: not known. Shows nothing where none is due. */
void ls_progress_show(int64_t done, int64_t total, const char *more);
/* Takes the line away again. */
void ls_progress_end(void);

#endif
