/* Threads with a stack of a size of their own. What the system gives by default is the limit of the shell that the
 * process was started in (ulimit -s), which may be far less than the deepest calls take. */
#ifndef LS_BASE_THREAD_H
#define LS_BASE_THREAD_H

#include <pthread.h>

/* As pthread_create, 0 or an errno; nothing of the deepest calls takes half of the stack. */
int ls_thread_start(pthread_t *out, void *(*run)(void *context), void *context);

/* For main, before there is another thread: whoever starts one without saying how large its stack is, libraries
 * included, gets this size; and `run` is called with argc and argv on such a stack, where main's own is smaller.
 * Returns what it returns. */
int ls_thread_run_main(int (*run)(int argc, char **argv), int argc, char **argv);

#endif
