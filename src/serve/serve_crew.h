/* Threads for what takes long and is not the engine's: bodies that become requests, results that become replies. They
 * keep such work off the threads that read connections. Heavy work is done by one thread at a time, so that no number
 * of clients can have all of them busy with it, nor as much of its memory at once. */
#ifndef LS_SERVE_CREW_H
#define LS_SERVE_CREW_H

#include "base/status.h"

typedef struct ls_crew ls_crew;

/* The caller's, from ls_crew_add until run has returned. */
typedef struct ls_errand {
    void (*run)(void *context);
    void *context;
    struct ls_errand *next;
} ls_errand;

/* n_threads: 2 or more. */
ls_status ls_crew_start(ls_crew **out, int64_t n_threads, ls_error *err);
/* Does what is there, and ends the threads. */
void ls_crew_stop(ls_crew *crew); /* accepts NULL */
void ls_crew_add(ls_crew *crew, ls_errand *errand, bool is_heavy);

#endif
