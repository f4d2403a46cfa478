/* Groups of NCCL without a GPU: the library is the test's own, and so are the places in the stream. No wait has no end,
 * what is left while a move is under way is aborted, and the user's environment stays. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake_nccl.h"
#include "harness.h"
#include "op/nccl.h"

static bool is_reached = true; /* the place in the stream */

ls_status __wrap_ls_cuda_event_create(void **out, bool timed, ls_error *err);
ls_status __wrap_ls_cuda_event_create(void **out, bool timed, ls_error *err) {
    (void)timed, (void)err;
    *out = &is_reached;
    return LS_OK;
}
void __wrap_ls_cuda_event_free(void *event);
void __wrap_ls_cuda_event_free(void *event) { (void)event; }
ls_status __wrap_ls_cuda_event_record(const ls_exec *exec, void *event, ls_error *err);
ls_status __wrap_ls_cuda_event_record(const ls_exec *exec, void *event, ls_error *err) {
    (void)exec, (void)event, (void)err;
    return LS_OK;
}
ls_status __wrap_ls_cuda_event_reached(void *event, bool *out, ls_error *err);
ls_status __wrap_ls_cuda_event_reached(void *event, bool *out, ls_error *err) {
    (void)event, (void)err;
    *out = is_reached;
    return LS_OK;
}

static fake_nccl *fake;
static ls_device *device;
static ls_nccl_id id;
static const ls_nccl_patience patient = {20, NULL, NULL}, impatient = {0.1, NULL, NULL};

static void becomes(int polls) {
    memset(fake, 0, sizeof *fake);
    fake->polls = polls;
    is_reached = true;
}

static ls_nccl *opened(const ls_nccl_patience *patience) {
    ls_nccl *g;
    ls_error err;
    assert_ok(ls_nccl_group_open(&g, device, &id, 1, 2, patience, &err), err);
    return g;
}

static void a_group_is_opened_and_left(void **state) {
    bool reached = false;
    float x[2];
    ls_nccl *g;
    ls_error err;
    (void)state;
    for (int blocks = 0; blocks < 2; blocks++) {
        becomes(blocks ? 0 : 5);
        fake->blocks = blocks;
        g = opened(&patient);
        assert_true(fake->config_is_sound);
        assert_string_equal(fake->nvls, "0");
        assert_ok(ls_nccl_take(g, 0, x, sizeof x, &err), err);
        assert_ok(ls_nccl_sum(g, x, 2, &err), err);
        assert_ok(ls_nccl_begin(g, &err), err);
        assert_ok(ls_nccl_send(g, 0, x, sizeof x, &err), err);
        assert_ok(ls_nccl_receive(g, 0, x, sizeof x, &err), err);
        assert_ok(ls_nccl_end(g, &err), err);
        assert_int_equal(fake->polls_left, 0); /* it is on the stream when the call returns */
        assert_ok(ls_nccl_reached(g, &reached, &err), err);
        assert_true(reached);
        ls_nccl_group_close(g);
        assert_int_equal(fake->n_finals, 1);
        assert_int_equal(fake->n_destroyed, 1);
        assert_int_equal(fake->n_aborted, 0);
    }
}

static void a_meeting_to_which_nobody_comes_ends(void **state) {
    ls_nccl *g;
    ls_error err;
    (void)state;
    becomes(FAKE_NEVER);
    check_failed(ls_nccl_group_open(&g, device, &id, 1, 2, &impatient, &err), &err, "meeting did not end within 0.1 s");
    assert_null(g);
    assert_int_equal(fake->n_aborted, 1);
    assert_int_equal(fake->n_destroyed, 0);
    becomes(3);
    fake->fails = true;
    check_failed(ls_nccl_group_open(&g, device, &id, 1, 2, &patient, &err), &err, "meeting: system error: as told");
    assert_int_equal(fake->n_aborted, 1);
}

static ls_status look(void *context, const char *what, ls_error *err) {
    ++*(int *)context;
    return LS_FAIL(err, LS_ERR_IO, "%s: rank 0 is gone", what);
}

static void who_looks_ends_a_meeting(void **state) {
    int n = 0;
    const ls_nccl_patience looking = {20, look, &n};
    ls_nccl *g;
    ls_error err;
    (void)state;
    becomes(FAKE_NEVER);
    check_failed(ls_nccl_group_open(&g, device, &id, 1, 2, &looking, &err), &err, "meeting: rank 0 is gone");
    assert_int_equal(n, 1);
    assert_int_equal(fake->n_aborted, 1);
}

static void what_is_left_under_way_is_aborted(void **state) {
    float x[2];
    ls_nccl *g;
    ls_error err;
    (void)state;
    becomes(1); /* on the stream, and never over there */
    g = opened(&patient);
    assert_ok(ls_nccl_sum(g, x, 2, &err), err);
    is_reached = false;
    ls_nccl_group_close(g);
    assert_int_equal(fake->n_finals + fake->n_destroyed, 0);
    assert_int_equal(fake->n_aborted, 1);
    becomes(1); /* not even on the stream */
    g = opened(&impatient);
    fake->polls = FAKE_NEVER;
    check_failed(ls_nccl_take(g, 0, x, sizeof x, &err), &err, "a broadcast did not end within 0.1 s");
    is_reached = false;
    ls_nccl_group_close(g);
    assert_int_equal(fake->n_finals + fake->n_destroyed, 0);
    assert_int_equal(fake->n_aborted, 1);
    becomes(1); /* the others do not leave */
    g = opened(&impatient);
    fake->polls = FAKE_NEVER;
    ls_nccl_group_close(g);
    assert_int_equal(fake->n_finals, 1);
    assert_int_equal(fake->n_destroyed, 0);
    assert_int_equal(fake->n_aborted, 1);
    becomes(1); /* given up before */
    g = opened(&patient);
    ls_nccl_abandon(g);
    check_failed(ls_nccl_sum(g, x, 2, &err), &err, "given up");
    ls_nccl_group_close(g);
    assert_int_equal(fake->n_aborted, 1);
}

/* In a process of its own: the environment is asked for once. */
static void what_the_user_says_of_multicast_stays(void **state) {
    int status;
    const pid_t child = fork();
    (void)state;
    if (child == 0) {
        (void)setenv("NCCL_NVLS_ENABLE", "1", 1);
        becomes(0);
        ls_nccl_group_close(opened(&patient));
        _exit(strcmp(fake->nvls, "1") == 0 ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static int prepare(void **state) {
    void *handle = dlopen(LS_FAKE_NCCL, RTLD_NOW);
    ls_error err;
    (void)state;
    assert_non_null(handle);
    fake = dlsym(handle, "fake_nccl_state");
    assert_non_null(fake);
    (void)setenv("LOCKSTEP_NCCL", LS_FAKE_NCCL, 1);
    (void)unsetenv("NCCL_NVLS_ENABLE");
    assert_ok(ls_device_open_cpu(&device, 1, LS_ISA_GENERIC, &err), err);
    return 0;
}

static int end(void **state) {
    (void)state;
    ls_device_close(device);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_user_says_of_multicast_stays), /* first: the library is not asked for yet */
        cmocka_unit_test(a_group_is_opened_and_left),
        cmocka_unit_test(a_meeting_to_which_nobody_comes_ends),
        cmocka_unit_test(who_looks_ends_a_meeting),
        cmocka_unit_test(what_is_left_under_way_is_aborted),
    };
    return cmocka_run_group_tests(tests, prepare, end);
}
