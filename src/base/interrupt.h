/* How signals end the program. Temporary files that outputs are written under are known here, so that a signal that
 * ends the process takes them along. A training run asks for the signal to wait until its step is done and saved. */
#ifndef LS_BASE_INTERRUPT_H
#define LS_BASE_INTERRUPT_H

#include <stdbool.h>

/* For main: signals that end a process, unless the caller had them ignored or handles them, remove the temporary files
 * and end the process as they always do. SIGPIPE and SIGXFSZ become errors of the write. */
void ls_interrupt_install(void);

/* While deferring, the first signal that asks the process to end (SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2,
 * SIGXCPU) is only remembered; a second one ends the process at once. Without ls_interrupt_install no signal is
 * touched. */
void ls_interrupt_defer(bool on);
int ls_interrupt_pending(void); /* the remembered signal, or 0 */
/* Takes another signal in, as if it had come; for processes that share a run, and tests. */
void ls_interrupt_set(int signal_number);

/* For who waits for somebody outside, and asks some times a second: true where a signal is remembered and for so long
 * since nothing was heard. The wait is then given up with an error, which ls_interrupt_gave_up tells from others. */
#define LS_INTERRUPT_PATIENCE_S 2.0
bool ls_interrupt_is_over(double heard_s, double now_s);
bool ls_interrupt_gave_up(void);

/* The path is borrowed until it is forgotten. Some tens at a time; one more is not remembered. */
void ls_leftover_add(const char *path);
void ls_leftover_forget(const char *path);

#endif
