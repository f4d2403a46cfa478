/* Memory of a whole engine: what is planned is what is held, a plan follows the device and carries no bits, sleep gives
 * memory back, swap lies on the host, ticks allocate nothing, and every failure is one sentence. A limit stands in for
 * the memory of a GPU (ls_device_limit). */
#include "dev/gpu.h"
#include "engine_case.h"
#include "op/memory.h"

#define N_JOBS 6

static bench odd; /* jamba-odd in bf16: attention, Mamba and experts */

static int open_bench(void **state) {
    (void)state;
    bench_open(&odd, "jamba-odd", LS_BF16);
    return 0;
}

static int close_bench(void **state) {
    (void)state;
    bench_close(&odd);
    return 0;
}

static ls_memory_state memory_now(void) {
    ls_memory_state state;
    ls_error err;
    assert_ok(ls_device_wait(odd.device, &err), err);
    assert_ok(ls_device_memory(odd.device, &state, &err), err);
    return state;
}

/* The device has this much more than it holds now. */
static void leave(int64_t bytes) { ls_device_limit(odd.device, memory_now().used + bytes); }
static void leave_all(void) { ls_device_limit(odd.device, 0); }

static ls_levers levers_of(int64_t batch) {
    ls_levers l = plain_levers(batch);
    l.guards = false; /* they are not planned */
    return l;
}

static void submit_all(ls_engine *e, job *jobs) {
    for (uint32_t i = 0; i < N_JOBS; i++)
        submit(e, (job_init(&jobs[i], odd.prompt[i % 3], 17 + 3 * i, i, 0, 3 + 2 * i % 9), &jobs[i]));
}

static void are_complete(const job *jobs) {
    leave_all(); /* the oracle has its own needs */
    for (int i = 0; i < N_JOBS; i++) is_complete(&odd, &jobs[i]);
}

/* ---- the plan ---- */

/* Parts of the plan, and what the ledger says that was allocated. */
static void what_is_planned_is_held(void **state) {
    (void)state;
    for (int variant = 0; variant < 4; variant++) {
        ls_levers l = levers_of(2 + variant);
        ls_memory_part parts[LS_MEMORY_PARTS_MAX];
        const ls_memory_state before = memory_now();
        const int64_t workspace = odd.device->exec.workspace_bytes;
        int64_t sum = 0, n, held, planned;
        ls_engine_plan plan;
        ls_engine *e;
        if (variant % 2 == 1) l.prefix = LS_PREFIX_ON;
        if (variant >= 2) l.preempt_by = LS_PREEMPT_SWAP;
        if (variant == 3) l.drafts = 2;
        e = engine_of(&odd, &l);
        ls_engine_get_plan(e, &plan);
        held = memory_now().used - before.used + workspace;
        planned = plan.total_bytes - plan.recording_bytes;
        assert_true(held <= planned && held >= planned - 16); /* less: caches that are not there */
        n = ls_engine_plan_parts(&plan, parts);
        assert_true(n > 5 && n <= LS_MEMORY_PARTS_MAX);
        for (int64_t i = 0; i < n; i++) {
            assert_true(parts[i].bytes > 0);
            if (strcmp(parts[i].name, "weights") == 0 || strcmp(parts[i].name, "context and others") == 0) continue;
            if (!parts[i].on_host) sum += parts[i].bytes;
        }
        assert_int_equal(sum, plan.total_bytes);
        engine_end(e);
        assert_int_equal(memory_now().used, before.used + odd.device->exec.workspace_bytes - workspace);
    }
}

/* From hardly enough to plenty: more memory is never fewer sequences at once, each has pages for its longest, the plan
 * stays below, and no bit moves. With drafts each sequence has two slots. */
static void follow_the_memory(int64_t drafts) {
    const int64_t each = drafts > 0 ? 2 : 1;
    int64_t slots = 0, total = 0, n_plans = 0, n_refused = 0;
    for (int64_t bytes = 1 << 15; bytes < 1 << 21; bytes = bytes * 17 / 16) {
        ls_levers l = levers_of(4);
        job jobs[N_JOBS];
        ls_engine_plan plan;
        ls_engine *e;
        ls_error err;
        l.prefix = LS_PREFIX_ON;
        l.memory_fraction = 1.0;
        l.drafts = drafts;
        leave(bytes);
        if (engine_try(&e, &odd, &l, &err) != LS_OK) {
            assert_int_equal(n_plans, 0);
            check_failed(err.status, &err, "memory-fraction: the engine needs ");
            n_refused++;
            leave_all();
            continue;
        }
        ls_engine_get_plan(e, &plan);
        assert_true(plan.total_bytes <= bytes + odd.device->exec.workspace_bytes);
        assert_true(plan.slots >= slots && plan.slots % each == 0);
        assert_true(plan.pages >= plan.slots / each * ((LENGTH_MAX + 3) / 4));
        n_plans += plan.total_bytes != total;
        slots = plan.slots;
        total = plan.total_bytes;
        submit_all(e, jobs);
        run_dry(e);
        are_complete(jobs);
        engine_end(e);
    }
    leave_all();
    assert_true(n_refused > 0 && n_plans > 5);
    assert_int_equal(slots, 4 * each);
}

static void a_plan_follows_the_memory_and_carries_no_bits(void **state) {
    (void)state;
    follow_the_memory(0);
    follow_the_memory(3);
}

/* A share of one memory: the smaller, the less is made; what is asked for by number is made. */
static void fractions_and_numbers(void **state) {
    static const double fractions[] = {0.55, 0.7, 0.85, 1.0};
    ls_levers l = levers_of(4);
    ls_engine_plan plan, first;
    ls_engine *e;
    ls_error err;
    int64_t all, total = 0;
    (void)state;
    leave(1 << 26);
    e = engine_of(&odd, &l);
    ls_engine_get_plan(e, &first);
    engine_end(e);
    all = memory_now().used + first.total_bytes - odd.device->exec.workspace_bytes;
    for (size_t i = 0; i < sizeof fractions / sizeof fractions[0]; i++) {
        job jobs[N_JOBS];
        l.memory_fraction = fractions[i];
        ls_device_limit(odd.device, all);
        if (engine_try(&e, &odd, &l, &err) != LS_OK) { /* where most of it is in use already */
            assert_int_equal(total, 0);
            leave_all();
            continue;
        }
        ls_engine_get_plan(e, &plan);
        assert_true(plan.total_bytes >= total);
        assert_true(fractions[i] == 1.0 || plan.total_bytes < first.total_bytes);
        total = plan.total_bytes;
        submit_all(e, jobs);
        run_dry(e);
        are_complete(jobs);
        engine_end(e);
    }
    assert_true(plan.slots == first.slots && plan.pages == first.pages);
    /* Nine tenths would be less; numbers may take all. */
    l.memory_fraction = 0;
    l.slots = first.slots;
    l.pages = first.pages;
    ls_device_limit(odd.device, all);
    e = engine_of(&odd, &l);
    ls_engine_get_plan(e, &plan);
    assert_true(plan.slots == first.slots && plan.pages == first.pages);
    engine_end(e);
    leave_all();
}

static void what_does_not_fit_is_refused_before_anything_is_made(void **state) {
    ls_levers l = levers_of(8);
    const int64_t n = memory_now().n_allocations;
    ls_engine *e;
    ls_error err;
    (void)state;
    leave(20000);
    check_failed(engine_try(&e, &odd, &l, &err), &err, "memory-fraction: the engine needs ");
    check_failed(err.status, &err, "rows of a forward ");
    check_failed(err.status, &err, " saves ");
    assert_int_equal(err.status, LS_ERR_CAPACITY);
    assert_null(e);
    l.pages = 1000000;
    leave(1 << 22);
    check_failed(engine_try(&e, &odd, &l, &err), &err, "KV pages ");
    check_failed(err.status, &err, "(--pages 500000 saves ");
    assert_int_equal(memory_now().n_allocations, n);
    leave_all();
}

/* ---- allocations ---- */

/* From creation on, whatever sizes ticks have. */
static void ticks_allocate_nothing(void **state) {
    (void)state;
    for (int by = LS_PREEMPT_RECOMPUTE; by <= LS_PREEMPT_SWAP; by++) {
        ls_levers l = levers_of(N_JOBS);
        ls_engine *e;
        job jobs[N_JOBS];
        int64_t n;
        l.prefix = LS_PREFIX_ON;
        l.verify = 0.5;
        l.preempt_by = (ls_preempt_by)by;
        l.preempt_every = 3;
        e = engine_of(&odd, &l);
        n = memory_now().n_allocations;
        submit_all(e, jobs);
        run_dry(e);
        assert_int_equal(memory_now().n_allocations, n);
        are_complete(jobs);
        engine_end(e);
    }
}

/* ---- swap ---- */

static void swap_lies_on_the_host_within_its_size(void **state) {
    int64_t all = 0;
    (void)state;
    for (int part = 0; part < 2; part++) {
        ls_levers l = levers_of(4);
        job jobs[N_JOBS];
        ls_engine_plan plan;
        ls_engine_stats stats;
        ls_engine *e;
        ls_error err;
        int64_t used;
        l.preempt_by = LS_PREEMPT_SWAP;
        l.preempt_every = 2;
        if (part == 1) l.swap_bytes = all / 2;
        leave(1 << 26);
        used = memory_now().used - odd.device->exec.workspace_bytes;
        e = engine_of(&odd, &l);
        ls_engine_get_plan(e, &plan);
        assert_true(plan.swap_on_host);
        assert_int_equal(plan.swap_slots, part == 0 ? 4 : 2);
        assert_int_equal(memory_now().pinned, plan.swap_bytes);
        assert_true(memory_now().used - used <= plan.total_bytes);
        all = plan.swap_bytes;
        if (part == 1) assert_true(plan.swap_bytes <= l.swap_bytes);
        submit_all(e, jobs);
        tick(e, 4);
        assert_ok(ls_engine_sleep(e, &err), err); /* it is pinned once */
        assert_int_equal(memory_now().pinned, plan.swap_bytes);
        run_dry(e);
        ls_engine_get_stats(e, &stats);
        assert_true(stats.preempted_swap > 0);
        are_complete(jobs);
        engine_end(e);
        assert_int_equal(memory_now().pinned, 0);
    }
    {
        ls_levers l = levers_of(4);
        ls_engine *e;
        ls_error err;
        l.preempt_by = LS_PREEMPT_SWAP;
        l.swap_bytes = 100;
        check_failed(engine_try(&e, &odd, &l, &err), &err,
                     "swap-memory: 100 bytes do not hold the longest sequence, which takes ");
    }
}

/* ---- sleep ---- */

static void sleep_gives_the_memory_back(void **state) {
    ls_levers l = levers_of(3);
    job jobs[N_JOBS];
    ls_engine_plan plan;
    ls_engine *e;
    ls_error err;
    int64_t awake, pools;
    (void)state;
    l.prefix = LS_PREFIX_ON;
    e = engine_of(&odd, &l);
    ls_engine_get_plan(e, &plan);
    pools = plan.slot_bytes + plan.page_bytes + plan.snapshot_bytes;
    awake = memory_now().used;
    submit_all(e, jobs);
    for (int i = 0; i < 5; i++) {
        tick(e, 6);
        assert_ok(ls_engine_sleep(e, &err), err);
        assert_ok(ls_engine_sleep(e, &err), err);
        assert_true(ls_engine_sleeps(e));
        assert_int_equal(memory_now().used, awake - pools);
        if (i % 2 == 0) assert_ok(ls_engine_wake(e, &err), err);
        if (i % 2 == 0) assert_int_equal(memory_now().used, awake);
    }
    run_dry(e);
    are_complete(jobs);
    engine_end(e);
}

static void requests_come_and_go_while_it_sleeps(void **state) {
    ls_levers l = levers_of(3);
    job jobs[N_JOBS], late;
    ls_engine *e = engine_of(&odd, &l);
    ls_error err;
    (void)state;
    submit_all(e, jobs);
    tick(e, 8);
    assert_ok(ls_engine_sleep(e, &err), err);
    assert_ok(ls_engine_cancel(e, &jobs[4].request, &err), err);
    submit(e, (job_init(&late, odd.prompt[1], 9, 77, 0, 4), &late));
    assert_false(ls_engine_preempt(e, LS_PREEMPT_SWAP));
    assert_ok(ls_engine_set_weights(e, odd.v.model[0], 3, &err), err);
    run_dry(e);
    for (int i = 0; i < N_JOBS; i++)
        if (i != 4) is_complete(&odd, &jobs[i]);
    is_complete(&odd, &late);
    assert_ok(ls_engine_sleep(e, &err), err);
    engine_end(e); /* asleep */
}

/* Somebody else has taken the memory: the engine sleeps on, and goes on when it is free again. */
static void a_wake_without_room_leaves_it_asleep(void **state) {
    ls_levers l = levers_of(3);
    job jobs[N_JOBS];
    ls_engine *e = engine_of(&odd, &l);
    ls_error err;
    int64_t used;
    (void)state;
    submit_all(e, jobs);
    tick(e, 6);
    assert_ok(ls_engine_sleep(e, &err), err);
    used = memory_now().used;
    leave(3000);
    check_failed(ls_engine_wake(e, &err), &err, "the engine sleeps on: ");
    check_failed(err.status, &err, "out of memory");
    check_failed(ls_engine_tick(e, &err), &err, "the engine sleeps on: ");
    assert_true(ls_engine_sleeps(e));
    assert_int_equal(memory_now().used, used);
    leave_all();
    run_dry(e);
    are_complete(jobs);
    engine_end(e);
}

/* The weights leave the device while the engine sleeps, and come back with the same bits. */
static void weights_are_parked_on_the_host(void **state) {
    ls_model *model = odd.v.model[0];
    ls_levers l = levers_of(3);
    job jobs[N_JOBS];
    ls_engine *e = engine_of(&odd, &l);
    ls_memory_state home, parked;
    ls_error err;
    void *between;
    (void)state;
    submit_all(e, jobs);
    for (int i = 0; i < 3; i++) {
        tick(e, 5);
        assert_ok(ls_engine_sleep(e, &err), err);
        assert_ok(ls_device_memory(model->device, &home, &err), err);
        assert_ok(ls_model_park(model, &err), err);
        assert_ok(ls_model_park(model, &err), err);
        assert_ok(ls_device_memory(model->device, &parked, &err), err);
        assert_true(model->device_bytes > 0);
        assert_int_equal(home.used - parked.used, model->device_bytes);
        check_failed(ls_engine_tick(e, &err), &err, "the weights are parked on the host");
        /* They come back to other addresses. */
        assert_ok(ls_memory_alloc(model->device, &between, 1, 4000 + 999 * i, "test", &err), err);
        if (i == 1) {
            ls_device_limit(model->device, parked.used + 4000 + 999 * i + model->device_bytes / 2);
            check_failed(ls_model_unpark(model, &err), &err,
                         ": out of memory"); /* of weights or, where there are such, tiles */
            assert_true(model->parked != NULL);
            ls_device_limit(model->device, 0);
        }
        assert_ok(ls_model_unpark(model, &err), err);
        assert_ok(ls_model_unpark(model, &err), err);
        ls_memory_free(model->device, between);
        assert_ok(ls_device_wait(model->device, &err), err);
        assert_ok(ls_device_memory(model->device, &parked, &err), err);
        assert_int_equal(home.used, parked.used);
    }
    run_dry(e);
    are_complete(jobs);
    engine_end(e);
}

/* ---- failures ---- */

static void out_of_memory_says_what_for_and_what_there_is(void **state) {
    ls_error err;
    void *memory, *other;
    (void)state;
    assert_ok(ls_memory_alloc(odd.device, &other, 3, 1 << 20, "gradient", &err), err);
    leave(1 << 20);
    check_failed(ls_memory_reserve(odd.device, &memory, 5, 1 << 20, "KV pages", &err), &err,
                 ": KV pages: out of memory: 5242880 bytes (5.0 MiB) are asked for, 1.0 of ");
    assert_int_equal(err.status, LS_ERR_NOMEM);
    assert_null(memory);
    check_failed(err.status, &err, " MiB are free; this process holds ");
    check_failed(err.status, &err, "MiB of gradient");
    check_failed(err.status, &err, "; smaller with --pages, --batch or --max-length");
    leave_all();
    ls_memory_free(odd.device, other);
}

/* The lever lets the engine sleep and wakes it: where that fails nobody else will, and whoever has requests there, or
 * brings new ones, is told. */
static void a_wake_that_fails_is_told_to_all(void **state) {
    ls_levers l = levers_of(3);
    job jobs[N_JOBS], late;
    ls_engine *e;
    ls_error err;
    ls_status status;
    int n = 0;
    (void)state;
    l.sleep_every = 2;
    e = engine_of(&odd, &l);
    submit_all(e, jobs);
    ls_device_limit(odd.device, memory_now().used - 1);
    do status = ls_engine_tick(e, &err);
    while (status == LS_OK && n++ < 1000);
    check_failed(status, &err, "the engine sleeps on");
    leave_all();
    job_init(&late, odd.prompt[0], 9, N_JOBS, 0, 3);
    check_failed(ls_engine_submit(e, &late.request, &err), &err, "the engine sleeps on");
    check_failed(ls_engine_tick(e, &err), &err, "the engine sleeps on");
    ls_engine_free(e);
}

/* What is in use and is not this process's: more than a context takes is another process. */
static void other_processes_are_told(void **state) {
    const int64_t gib = (int64_t)1 << 30;
    ls_memory_state s = {.is_limited = true, .total = 140 * gib, .free = 130 * gib, .used = 9 * gib};
    (void)state;
    assert_int_equal(ls_memory_of_others(&s), 0); /* a context */
    s.free = 80 * gib;
    assert_int_equal(ls_memory_of_others(&s), 51 * gib - 1536 * ((int64_t)1 << 20));
    s.is_limited = false;
    assert_int_equal(ls_memory_of_others(&s), 0);
}

/* A device that is lost: every wait fails from here on. */
static const ls_backend_table *sound;
static ls_backend_table lost;

static ls_status lost_wait(ls_device *device, ls_error *err) {
    ls_error drained;
    (void)sound->wait(device, &drained);
    return ls_gpu_failed(LS_CUDA_ILLEGAL_ADDRESS, "synchronize", "an illegal memory access was encountered", err);
}

static void a_lost_device_ends_the_engine_with_one_sentence(void **state) {
    ls_levers l = levers_of(3);
    job jobs[N_JOBS];
    ls_engine *e = engine_of(&odd, &l);
    ls_error err;
    ls_status status;
    int n = 0;
    (void)state;
    submit_all(e, jobs);
    tick(e, 3);
    sound = odd.device->table;
    lost = *sound;
    lost.wait = lost_wait;
    odd.device->table = &lost;
    do status = ls_engine_tick(e, &err);
    while (status == LS_OK && n++ < 1000);
    check_failed(status, &err, "the GPU is lost to this process, found at synchronize: an illegal memory access");
    check_failed(status, &err, "start the process again");
    assert_int_equal(status, LS_ERR_DEVICE);
    err.text[0] = '\0';
    check_failed(ls_engine_tick(e, &err), &err, "the GPU is lost"); /* for good */
    check_failed(ls_engine_sleep(e, &err), &err, "the GPU is lost");
    ls_engine_free(e);
    odd.device->table = sound;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_planned_is_held),
        cmocka_unit_test(a_plan_follows_the_memory_and_carries_no_bits),
        cmocka_unit_test(fractions_and_numbers),
        cmocka_unit_test(what_does_not_fit_is_refused_before_anything_is_made),
        cmocka_unit_test(ticks_allocate_nothing),
        cmocka_unit_test(swap_lies_on_the_host_within_its_size),
        cmocka_unit_test(sleep_gives_the_memory_back),
        cmocka_unit_test(a_wake_that_fails_is_told_to_all),
        cmocka_unit_test(requests_come_and_go_while_it_sleeps),
        cmocka_unit_test(a_wake_without_room_leaves_it_asleep),
        cmocka_unit_test(weights_are_parked_on_the_host),
        cmocka_unit_test(out_of_memory_says_what_for_and_what_there_is),
        cmocka_unit_test(other_processes_are_told),
        cmocka_unit_test(a_lost_device_ends_the_engine_with_one_sentence),
    };
    return cmocka_run_group_tests(tests, open_bench, close_bench);
}
