/* A device that is timed: the same bits, every call counted under its name, and the device as it was afterwards. */
#include "device.h"
#include "op/op_chain.h"
#include "op/timing.h"

/* Of the CPU, or of a GPU where the environment asks for one: there the clock is events. */
static ls_device *open_device(int32_t n_threads) {
    ls_device *device;
    ls_error err;
    if (test_on_gpu())
        assert_ok(ls_device_open_cuda(&device, 0, &err), err);
    else
        assert_ok(ls_device_open_cpu(&device, n_threads, ls_isa_best(), &err), err);
    return device;
}

static int64_t calls_of(const ls_timed_row *rows, int64_t n, const char *name) {
    for (int64_t i = 0; i < n; i++)
        if (strcmp(rows[i].name, name) == 0) return rows[i].calls;
    return 0;
}

static void timed_calls_have_the_same_bits(void **state) {
    ls_device *device = open_device(2);
    ls_timing *timing;
    const ls_timed_row *rows;
    const ls_backend_table *table;
    int64_t n, calls = 0;
    double total = 0.0, sum = 0.0;
    ls_error err;
    (void)state;
    table = device->table;
    assert_ok(ls_timing_begin(&timing, device, &err), err);
    for (uint64_t seed = 1; seed < 4; seed++) {
        chain_results expected, got;
        chain_call(op_devices[ls_isa_best()][0], seed, &expected);
        chain_call(device, seed, &got);
        assert_ok(ls_device_wait(device, &err), err);
        assert_memory_equal(&expected, &got, sizeof got);
    }
    assert_ok(ls_timing_read(timing, &rows, &n, &total, &err), err);
    for (int64_t i = 0; i < n; i++) {
        assert_true(rows[i].calls > 0 && rows[i].ms >= 0.0 && (i == 0 || rows[i].ms <= rows[i - 1].ms));
        sum += rows[i].ms;
        calls += rows[i].calls;
    }
    assert_true(sum > 0.0 && sum <= 1.01 * total); /* events are read to half a microsecond */
    assert_true(calls % 3 == 0);
    assert_true(calls_of(rows, n, "attention_backward") == 3 && calls_of(rows, n, "write") > 0 &&
                calls_of(rows, n, "read") > 0);
    assert_int_equal(calls_of(rows, n, "gemm"), 0); /* by size */
    /* It goes on, and what was read stays until the next reading. */
    assert_ok(ls_timing_read(timing, &rows, &n, &total, &err), err);
    ls_timing_end(timing);
    assert_ptr_equal(device->table, table);
    ls_device_close(device);
}

static void products_are_told_apart_by_size(void **state) {
    static const float w[8 * 4], x[4];
    ls_gemm_weight wide, narrow;
    ls_device *device = open_device(1);
    ls_timing *timing;
    const ls_timed_row *rows;
    float *memory, *in, *out;
    int64_t n;
    double total;
    ls_error err;
    (void)state;
    assert_ok(ls_timing_begin(&timing, device, &err), err);
    memory = to_device(device, w, sizeof w);
    in = to_device(device, x, sizeof x);
    out = to_device(device, NULL, 8 * sizeof(float));
    assert_ok(ls_gemm_pack(device, &wide, memory, LS_F32, 8, 4, &err), err);
    assert_ok(ls_gemm_pack(device, &narrow, memory, LS_F32, 2, 4, &err), err);
    for (int i = 0; i < 5; i++) {
        const ls_gemm_args args = {.x = in,
                                   .x_dtype = LS_F32,
                                   .x_stride = 4,
                                   .weight = i < 3 ? &wide : &narrow,
                                   .m = 1,
                                   .out = out,
                                   .out_dtype = LS_F32,
                                   .out_stride = 8};
        assert_ok(ls_gemm(device, &args, &err), err);
    }
    assert_ok(ls_timing_read(timing, &rows, &n, &total, &err), err);
    assert_int_equal(calls_of(rows, n, "gemm 8 x 4"), 3);
    assert_int_equal(calls_of(rows, n, "gemm 2 x 4"), 2);
    assert_int_equal(calls_of(rows, n, "gemm_repack"), 2);
    ls_timing_end(timing);
    ls_gemm_weight_free(device, &wide);
    ls_gemm_weight_free(device, &narrow);
    ls_memory_free(device, memory);
    ls_memory_free(device, in);
    ls_memory_free(device, out);
    ls_device_close(device);
}

static ls_status no_source(void *context, void *host, int64_t at, int64_t bytes, ls_error *err) {
    (void)context, (void)host, (void)at, (void)bytes;
    return LS_FAIL(err, LS_ERR_IO, "no source");
}

static void failures_pass_and_do_not_count(void **state) {
    ls_device *device = open_device(1), *deferred;
    ls_timing *timing, *second;
    const ls_timed_row *rows;
    void *memory;
    int64_t n;
    double total;
    ls_error err;
    (void)state;
    assert_ok(ls_timing_begin(&timing, device, &err), err);
    check_failed(ls_timing_begin(&second, device, &err), &err, "timed already");
    assert_null(second);
    memory = to_device(device, NULL, 64);
    check_failed(ls_memory_load(device, memory, 64, 64, no_source, NULL, &err), &err, "no source");
    assert_ok(ls_timing_read(timing, &rows, &n, &total, &err), err);
    assert_int_equal(calls_of(rows, n, "load"), 0);
    ls_memory_free(device, memory);
    ls_device_close(device); /* with its timing */
    assert_ok(ls_device_open_deferred(&deferred, 1, ls_isa_best(), &err), err);
    check_failed(ls_timing_begin(&timing, deferred, &err), &err, "not on deferred");
    ls_device_close(deferred);
    ls_timing_end(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(timed_calls_have_the_same_bits),
        cmocka_unit_test(products_are_told_apart_by_size),
        cmocka_unit_test(failures_pass_and_do_not_count),
    };
    return cmocka_run_group_tests(tests, op_open, op_close);
}
