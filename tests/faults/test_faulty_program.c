/* The laboratory's program: --inject makes check find differences. The program that is delivered has no such option. */
#define _GNU_SOURCE
#include "faults.h"

static const char sound_program[] = LS_PROGRAM;
#undef LS_PROGRAM
#define LS_PROGRAM program
static const char *program = LS_FAULTY_PROGRAM;

#include "cli/program.h"

static void an_injected_fault_is_found(void **state) {
    static const char *const names[] = {"lag-one", "softplus-naive", "split-k-by-batch", "stale-slot"};
    (void)state;
    RUN_OK("check", "--model", TINY, "--max-tokens", "12");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        RUN("check", "--model", TINY, "--max-tokens", "12", "--inject", names[i]);
        must_exit(3);
    }
    RUN("check", "--model", TINY, "--inject", "gremlin");
    must_refuse("--inject|gremlin");
}

static void the_sound_program_takes_no_fault(void **state) {
    (void)state;
    program = sound_program;
    RUN("check", "--model", TINY, "--inject", "lag-one");
    must_exit(1);
    assert_non_null(strstr(last.err, "inject"));
    program = LS_FAULTY_PROGRAM;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_injected_fault_is_found),
        cmocka_unit_test(the_sound_program_takes_no_fault),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
