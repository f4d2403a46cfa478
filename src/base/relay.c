/* A lock, and who holds the conversation. */
#include "base/relay.h"

void ls_relay_init(ls_relay *r) {
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    r->is_held = false;
}

void ls_relay_deinit(ls_relay *r) {
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
}

void ls_relay_run(ls_relay *r, void (*step)(void *conversation), void *conversation, bool (*is_over)(const void *part),
                  const void *part) {
    while (!is_over(part)) {
        if (r->is_held) {
            pthread_cond_wait(&r->changed, &r->lock);
            continue;
        }
        r->is_held = true;
        while (!is_over(part)) {
            step(conversation);
            pthread_cond_broadcast(&r->changed); /* it may have ended the part of another */
        }
        r->is_held = false;
        pthread_cond_broadcast(&r->changed);
    }
}
