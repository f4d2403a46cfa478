/* Threads that each wait for a part of the same conversation. One of them holds it, a step at a time, for all; when its
 * own part is over another one does. So it needs no thread of its own.
 *
 * All state of the conversation is under the lock. A step gives the lock up where it waits for somebody outside, so
 * that others can begin parts meanwhile. */
#ifndef LS_BASE_RELAY_H
#define LS_BASE_RELAY_H

#include <pthread.h>
#include <stdbool.h>

typedef struct ls_relay {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_held; /* by a thread that makes steps */
} ls_relay;

void ls_relay_init(ls_relay *relay);
void ls_relay_deinit(ls_relay *relay);
/* Under the lock; returns under it when part is over. step(conversation) may end any part. */
void ls_relay_run(ls_relay *relay, void (*step)(void *conversation), void *conversation,
                  bool (*is_over)(const void *part), const void *part);

#endif
