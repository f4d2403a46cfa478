/* The demonstration's run, cut short: the digest over rewards, tokens, log-probability bits and weights of its first
 * steps is one number, on any machine and with any setting that carries no bit. */
#define _GNU_SOURCE
#include "program.h"

#define SORT LS_SOURCE_DIR "/models/tiny-sort"
#define DIGEST "46647649b67056ad"

static void run_short(const char *name, const char *setting) {
    char run[PATH_BYTES + 8] = "run=";
    memcpy(run + 4, at(name), PATH_BYTES);
    RUN_OK("train", "grpo", "--config", SORT "/grpo.json", "--set", "model=" SORT, "--set", run, "--set", "steps=6",
           "--set", "eval_every=0", "--set", setting);
}

static void must_say(const char *words) {
    if (strstr(last.out, words) == NULL && strstr(last.err, words) == NULL)
        fail_msg("no '%s' in: %s%s", words, last.out, last.err);
}

static void the_curve_has_one_digest(void **state) {
    static const char *const settings[] = {"threads=2", "threads=1", "engine.preempt-every=3"};
    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        char name[16];
        snprintf(name, sizeof name, "run-%d", (int)i);
        run_short(name, settings[i]);
        must_say("digest " DIGEST);
        must_say("step 6/6");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_curve_has_one_digest)};
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
