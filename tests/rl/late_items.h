/* Items that come while a source of rewards is asked: one is there when the source has the one before, so that a source
 * that waits for all of them waits for ever. */
#ifndef LS_TESTS_LATE_ITEMS_H
#define LS_TESTS_LATE_ITEMS_H

#include <pthread.h>
#include <unistd.h>

#include "harness.h"
#include "rl/reward.h"

enum { LATE_ITEMS = 5 };
static const int64_t late_order[LATE_ITEMS] = {3, 0, 4, 1, 2};

typedef struct late_items {
    ls_feed *feed;
    ls_reward_item *items;
    int64_t (*n_seen)(const void *context); /* items that the source has; NULL: none is waited for */
    const void *context;
    int64_t n, n_complete; /* n: that come */
} late_items;

static inline void *late_put(void *context) {
    late_items *l = context;
    for (int64_t k = 0; k < l->n; k++) {
        while (l->n_seen != NULL && l->n_seen(l->context) < k) usleep(1000);
        ls_feed_put(l->feed, late_order[k]);
    }
    ls_feed_end(l->feed);
    return NULL;
}

/* The completion is the item's number. */
static inline ls_status late_complete(void *context, int64_t i, ls_error *err) {
    static char texts[LATE_ITEMS][8];
    late_items *l = context;
    (void)err;
    l->n_complete++;
    snprintf(texts[i], sizeof texts[i], "%d", (int)i);
    l->items[i].completion = (ls_reply){texts[i], 1};
    return LS_OK;
}

/* Asks about all items, of which l->n come. */
static inline ls_status late_ask(late_items *l, ls_reward *reward, ls_reward_result *results, ls_error *err) {
    const ls_reward_late late = {l->feed, late_complete, l};
    ls_reward_questions q = {.items = l->items,
                             .results = results,
                             .n = LATE_ITEMS,
                             .first_id = ls_reward_number(reward, LATE_ITEMS),
                             .late = &late};
    pthread_t thread;
    ls_status status;
    assert_true(ls_reward_takes_late(reward));
    for (int64_t i = 0; i < LATE_ITEMS; i++) l->items[i] = (ls_reward_item){.problem = "p", .prompt = {"?", 1}};
    l->n_complete = 0;
    ls_feed_begin(l->feed);
    assert_int_equal(pthread_create(&thread, NULL, late_put, l), 0);
    status = ls_reward_ask_about(reward, &q, err);
    assert_int_equal(pthread_join(thread, NULL), 0);
    return status;
}

#endif
