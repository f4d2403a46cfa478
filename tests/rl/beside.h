/* A thread that asks a source of rewards while others do. */
#ifndef LS_TESTS_BESIDE_H
#define LS_TESTS_BESIDE_H

#include <pthread.h>

#include "harness.h"
#include "rl/reward.h"

typedef struct beside {
    ls_reward *reward;
    ls_reward_questions q;
    ls_status status;
    ls_error err;
    pthread_t thread;
} beside;

static inline void *beside_ask(void *context) {
    beside *b = context;
    b->status = ls_reward_ask_about(b->reward, &b->q, &b->err);
    return NULL;
}

/* late: or NULL. Ids follow the order of these calls. */
static inline void beside_begin(beside *b, ls_reward *reward, const ls_reward_item *items, ls_reward_result *results,
                                int64_t n, const ls_reward_late *late) {
    *b = (beside){
        .reward = reward,
        .q = {.items = items, .results = results, .n = n, .first_id = ls_reward_number(reward, n), .late = late}};
    assert_int_equal(pthread_create(&b->thread, NULL, beside_ask, b), 0);
}

static inline ls_status beside_end(const beside *b) {
    assert_int_equal(pthread_join(b->thread, NULL), 0);
    return b->status;
}

#endif
