/* The sweep on a device that has neither threads nor instruction sets of its own and whose memory no other one reaches,
 * as a GPU's: its trials run on the run's device, the two that move these levers are not tried, and nothing differs. */
#include "diagnose/bits/bits_run.h"
#include "harness.h"
#include "op/choice.h"

#define MODEL LS_FIXTURES "/jamba-dense"

enum { PROMPTS = 3, TOKENS = 12, FAR_SLOTS = 40, FAR_WORDS = 4096 };

static void sweep_on(ls_sweep *out, ls_device *device) {
    static int32_t ids[PROMPTS][TOKENS]; /* the sweep keeps its prompts */
    static ls_prompt prompts[PROMPTS];
    uint64_t random = 7;
    ls_sweep_trainer *trainer;
    ls_engine_subject engine = {.device = device, .threads = 2, .isa = ls_isa_best()};
    ls_subject subject;
    const ls_sweep_opts opts = {.model = MODEL,
                                .prompts = prompts,
                                .n_prompts = PROMPTS,
                                .samples = 2,
                                .max_tokens = 4,
                                .dtype = LS_F32,
                                .threads = 2,
                                .isa = ls_isa_best(),
                                .far_slots = FAR_SLOTS,
                                .far_words = FAR_WORDS};
    ls_model *model;
    ls_door door;
    ls_error err;
    assert_ok(ls_sweep_trainer_create(&trainer, MODEL, device, &err), err);
    assert_ok(ls_sweep_trainer_model(trainer, 0, &model, &err), err);
    for (int p = 0; p < PROMPTS; p++) {
        for (int t = 0; t < TOKENS; t++) ids[p][t] = (int32_t)(test_random(&random) % (uint64_t)model->config.vocab);
        prompts[p] = (ls_prompt){ids[p], 3 + 4 * p};
    }
    engine.trainer = trainer;
    subject = ls_subject_engine(&engine);
    door = (ls_door){.subject = &subject, .trainer = trainer};
    assert_ok(ls_sweep_run(out, &opts, &door, &err), err);
    ls_sweep_trainer_free(trainer);
}

static void what_is_the_cpus_is_not_tried(void **state) {
    static ls_sweep deferred, cpu;
    ls_device *device;
    ls_error err;
    (void)state;
    assert_ok(ls_device_open_deferred(&device, 2, ls_isa_best(), &err), err);
    sweep_on(&deferred, device);
    ls_device_close(device);
    assert_ok(ls_device_open_cpu(&device, 2, ls_isa_best(), &err), err);
    sweep_on(&cpu, device);
    ls_device_close(device);
    assert_false(deferred.different);
    assert_false(cpu.different);
    for (int i = 0; i < LS_EXPERIMENTS; i++) {
        const ls_observation *seen = &deferred.seen[i];
        const bool is_of_the_cpu =
            i == LS_TRY_THREADS || (i == LS_TRY_ISA && ls_isa_best() != LS_ISA_GENERIC); /* else it is the run's own */
        if (is_of_the_cpu) {
            assert_int_equal(seen->verdict, LS_UNTRIED);
            assert_non_null(strstr(seen->failures.first, "threads and instruction set are the CPU's"));
            assert_int_equal(cpu.seen[i].verdict, LS_CLEAN);
        } else {
            if (seen->verdict != cpu.seen[i].verdict)
                fail_msg("%s: %s, on the CPU %s: %s", ls_experiment_name((ls_experiment)i),
                         ls_verdict_name(seen->verdict), ls_verdict_name(cpu.seen[i].verdict), seen->failures.first);
        }
    }
    ls_sweep_deinit(&deferred);
    ls_sweep_deinit(&cpu);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_the_cpus_is_not_tried)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
