/* Threads that share a conversation: one at a time makes steps, each leaves when its part is over, and no step is made
 * that nobody waits for. */
#include <sched.h>

#include "base/relay.h"
#include "harness.h"

enum { PARTS = 8, STEPS = 40 };

typedef struct talk {
    ls_relay relay;
    int64_t n_steps, n_together; /* together: begun while another was made */
    bool is_made;                /* a step */
} talk;

typedef struct part {
    talk *of;
    int64_t ends_at, ended_at; /* steps */
    pthread_t thread;
} part;

static bool is_over(const void *context) {
    const part *p = context;
    return p->of->n_steps >= p->ends_at;
}

/* Gives the lock up meanwhile, as who waits for somebody outside does. */
static void make_step(void *conversation) {
    talk *t = conversation;
    t->n_together += t->is_made;
    t->is_made = true;
    pthread_mutex_unlock(&t->relay.lock);
    (void)sched_yield();
    pthread_mutex_lock(&t->relay.lock);
    t->is_made = false;
    t->n_steps++;
}

static void *take_part(void *context) {
    part *p = context;
    talk *t = p->of;
    pthread_mutex_lock(&t->relay.lock);
    ls_relay_run(&t->relay, make_step, t, is_over, p);
    p->ended_at = t->n_steps;
    pthread_mutex_unlock(&t->relay.lock);
    return NULL;
}

static void one_after_the_other_makes_the_steps(void **state) {
    (void)state;
    for (int round = 0; round < 20; round++) {
        talk t = {0};
        part parts[PARTS];
        ls_relay_init(&t.relay);
        for (int i = 0; i < PARTS; i++) {
            parts[i] = (part){.of = &t, .ends_at = (i * 5 + round) % PARTS * STEPS / PARTS};
            assert_int_equal(pthread_create(&parts[i].thread, NULL, take_part, &parts[i]), 0);
        }
        for (int i = 0; i < PARTS; i++) assert_int_equal(pthread_join(parts[i].thread, NULL), 0);
        for (int i = 0; i < PARTS; i++) assert_true(parts[i].ended_at >= parts[i].ends_at);
        assert_int_equal(t.n_steps, (PARTS - 1) * STEPS / PARTS);
        assert_int_equal(t.n_together, 0);
        assert_false(t.relay.is_held);
        ls_relay_deinit(&t.relay);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_after_the_other_makes_the_steps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
