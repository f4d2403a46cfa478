/* A read fills the host's memory at a later wait. Where a call between fails, whoever owns that memory must not let
 * it go before: after every failure, at every place, no read is under way into memory that is free or left. The
 * device is the CPU behind a queue; a count around its table tells. */
#include <stdlib.h>

#include "device.h"
#include "model/score.h"
#include "model/tape.h"
#include "op/backend.h"
#include "rollout/engine.h"

enum { TOKENS = 9 };
static const int32_t tokens[TOKENS] = {1, 2, 3, 4, 5, 6, 7, 8, 9};

static const ls_backend_table *own;
static ls_backend_table counting;
static int64_t n_pending, n_reads, fails_at; /* the read of this number fails, and every other one behind it works */

static ls_status read_counted(ls_device *device, void *host, const void *from, int64_t bytes, ls_error *err) {
    if (++n_reads == fails_at) return LS_FAIL(err, LS_ERR_DEVICE, "this read fails");
    n_pending++;
    return own->read(device, host, from, bytes, err);
}

static ls_status wait_counted(ls_device *device, ls_error *err) {
    n_pending = 0;
    return own->wait(device, err);
}

static ls_device *open_counting(void) {
    ls_device *device;
    ls_error err;
    assert_ok(ls_device_open_deferred(&device, 1, ls_isa_best(), &err), err);
    own = device->table;
    counting = *own;
    counting.read = read_counted;
    counting.wait = wait_counted;
    device->table = &counting;
    return device;
}

static ls_model *open_model(ls_device *device) {
    ls_model *model;
    ls_error err;
    assert_ok(ls_model_open(&model, device, LS_FIXTURES "/jamba-nobias", &err), err);
    return model;
}

/* Something that reads: with every read of it failing in turn, its failure leaves none behind. At last none fails. */
typedef ls_status reader(ls_model *model, ls_device *device, ls_error *err);

static void leaves_none(reader *run) {
    ls_device *device = open_counting();
    ls_model *model = open_model(device);
    ls_status status = LS_ERR_DEVICE;
    ls_error err;
    for (fails_at = 1; status != LS_OK; fails_at++) {
        assert_ok(ls_device_wait(device, &err), err);
        n_reads = 0;
        status = run(model, device, &err);
        if (n_pending > 0) fail_msg("read %lld fails: %lld are under way", (long long)fails_at, (long long)n_pending);
        if (status != LS_OK) check_failed(status, &err, "this read fails");
    }
    assert_true(fails_at > 2); /* a case that reads nothing tells nothing */
    ls_model_close(model);
    ls_device_close(device);
}

static ls_status park(ls_model *model, ls_device *device, ls_error *err) {
    (void)device;
    LS_TRY(ls_model_park(model, err));
    return ls_model_unpark(model, err);
}

static ls_status score(ls_model *model, ls_device *device, ls_error *err) {
    const ls_score_opts opts = {.dtype = LS_F32, .batch = 2, .chunk = 4, .page_tokens = 4};
    float logprob[2][TOKENS];
    ls_score_item items[2] = {{.tokens = tokens, .n_tokens = TOKENS, .logprob = logprob[0]},
                              {.tokens = tokens, .n_tokens = TOKENS - 2, .logprob = logprob[1]}};
    return ls_score(model, device, &opts, items, 2, err);
}

static ls_status tape(ls_model *model, ls_device *device, ls_error *err) {
    const ls_tape_opts opts = {LS_F32, TOKENS, 1, 0, 1.0f, 0, NULL, NULL, 0, 0};
    const int64_t offsets[2] = {0, TOKENS};
    ls_parameters *parameters = NULL;
    ls_tape *t = NULL;
    int64_t targets[TOKENS];
    float logprob[TOKENS], entropy[TOKENS];
    ls_status status;
    for (int i = 0; i < TOKENS; i++) targets[i] = i + 1 < TOKENS ? tokens[i + 1] : -1;
    LS_TRY_DONE(ls_parameters_open(&parameters, model, device, LS_FIXTURES "/jamba-nobias", err));
    LS_TRY_DONE(ls_tape_create(&t, parameters, device, &opts, err));
    LS_TRY_DONE(ls_tape_forward(t, tokens, offsets, 1, err));
    status = ls_tape_logprob(t, targets, logprob, entropy, err);
    assert_int_equal(n_pending, 0); /* they would end in memory that ls_tape_logprob has left */
done:
    ls_tape_free(t);
    ls_parameters_free(parameters);
    return status;
}

static ls_status generate(ls_model *model, ls_device *device, ls_error *err) {
    ls_engine_opts opts = {.dtype = LS_F32, .length_max = 2 * TOKENS, .logprob_of = LS_LOGPROB_RAW, .top = 3};
    int32_t completion[TOKENS], top_id[3 * TOKENS];
    float logprob[TOKENS], top[3 * TOKENS];
    ls_request request = {.prompt = tokens,
                          .n_prompt = TOKENS,
                          .max_tokens = 3,
                          .completion = completion,
                          .logprob = logprob,
                          .top_id = top_id,
                          .top_logprob = top};
    ls_engine *e = NULL;
    ls_status status;
    ls_levers_init(&opts.levers);
    opts.levers.batch = 2;
    opts.levers.threads = 1;
    opts.levers.guards = true;
    opts.sampling = (ls_sampling){.temperature = 1.0f, .top_p = 1.0f, .seed = 5};
    LS_TRY_DONE(ls_engine_create(&e, model, device, &opts, err));
    LS_TRY_DONE(ls_engine_submit(e, &request, err));
    while (ls_engine_unfinished(e) > 0) LS_TRY_DONE(ls_engine_tick(e, err));
done:
    ls_engine_free(e);
    return status;
}

static void parking_leaves_none(void **state) { (void)state, leaves_none(park); }
static void scoring_leaves_none(void **state) { (void)state, leaves_none(score); }
static void the_tape_leaves_none(void **state) { (void)state, leaves_none(tape); }
static void the_engine_leaves_none(void **state) { (void)state, leaves_none(generate); }

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(parking_leaves_none), cmocka_unit_test(scoring_leaves_none),
                                       cmocka_unit_test(the_tape_leaves_none),
                                       cmocka_unit_test(the_engine_leaves_none)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
