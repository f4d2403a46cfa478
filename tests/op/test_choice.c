/* Names of devices, what opens under them, and the sentence for each reason why there is no GPU. Needs no GPU; what
 * depends on there being one is asked of the machine. */
#include <string.h>

#include "dev/gpu.h"
#include "harness.h"
#include "op/choice.h"

static const char *const good[] = {"auto", "cpu", "cuda", "cuda:0", "cuda:7", "cuda:10", "cuda:9999"};
static const char *const bad[] = {"",
                                  "CPU",
                                  "gpu",
                                  "cpu:0",
                                  "cuda:",
                                  "cuda:-1",
                                  "cuda:01",
                                  "cuda:1 ",
                                  "cuda: 1",
                                  "cuda:0x1",
                                  "cuda:1a",
                                  "cudaa",
                                  " cuda",
                                  "auto:0",
                                  "cuda0",
                                  "cuda:10000",
                                  "cuda:99999999999999999999"};

static bool has_gpu(void) {
    ls_error err;
    return ls_cuda_device_check(0, &err) == LS_OK;
}

static void names_are_exact(void **state) {
    ls_error err;
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) assert_ok(ls_device_name_check(good[i], &err), err);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ls_device *device;
        assert_int_equal(ls_device_name_check(bad[i], &err), LS_ERR_ARG);
        assert_non_null(strstr(err.text, "is none of auto, cpu, cuda and cuda:N"));
        assert_int_equal(ls_device_check(bad[i], &err), LS_ERR_ARG);
        assert_int_equal(ls_device_open_named(&device, bad[i], 1, LS_ISA_GENERIC, &err), LS_ERR_ARG);
        assert_null(device);
    }
}

/* Opens, and returns what is told of it. */
static const char *told_of(const char *name, int32_t threads, int64_t rank, int64_t ranks) {
    static ls_device_choice choice;
    const ls_device_wish wish = {name, threads, LS_ISA_GENERIC, rank, ranks, rank};
    ls_device *device;
    ls_error err;
    assert_ok(ls_device_open_wished(&device, &choice, &wish, &err), err);
    assert_ok(ls_device_name_check(choice.name, &err), err); /* it opens the same one again */
    assert_ok(ls_device_check(choice.name, &err), err);
    ls_device_close(device);
    return choice.text;
}

static void the_cpu_says_what_it_computes_with(void **state) {
    ls_error err;
    (void)state;
    assert_ok(ls_device_check("cpu", &err), err);
    assert_ok(ls_device_check("auto", &err), err);
    assert_string_equal(told_of("cpu", 1, 0, 1), "cpu, generic, 1 thread");
    assert_string_equal(told_of("cpu", 3, 0, 0), "cpu, generic, 3 threads");
    assert_string_equal(told_of("cpu", 2, 1, 4), "cpu, generic, 2 threads; rank 1 of 4");
}

static void auto_is_a_gpu_or_the_cpu(void **state) {
    (void)state;
    if (has_gpu())
        assert_int_equal(strncmp(told_of("auto", 2, 0, 1), "cuda:0, ", 8), 0);
    else
        assert_int_equal(strncmp(told_of("auto", 2, 0, 1), "cpu, generic, 2 threads", 23), 0);
}

/* Where there is none, the same sentence whichever way it is asked for, and it names CUDA. */
static void a_gpu_that_is_not_there_is_refused(void **state) {
    static const char *const names[] = {"cuda", "cuda:0", "cuda:9999"};
    (void)state;
    for (size_t i = has_gpu() ? 2 : 0; i < 3; i++) {
        ls_device *device;
        ls_error asked, opened;
        assert_int_not_equal(ls_device_check(names[i], &asked), LS_OK);
        assert_int_not_equal(ls_device_open_named(&device, names[i], 1, LS_ISA_GENERIC, &opened), LS_OK);
        assert_null(device);
        assert_string_equal(asked.text, opened.text);
        assert_int_equal(strncmp(asked.text, "cuda", 4), 0);
    }
}

/* ---- the opener of tests ---- */

static int n_opened;

static ls_status count_and_open(ls_device **out, int32_t n_threads, ls_isa isa, ls_error *err) {
    n_opened++;
    return ls_device_open_deferred(out, n_threads, isa, err);
}

static void an_opener_takes_the_place_of_the_cpu(void **state) {
    ls_device *device;
    ls_error err;
    (void)state;
    ls_device_open_by(count_and_open);
    assert_string_equal(told_of("cpu", 2, 0, 1), "deferred, generic, 2 threads");
    assert_string_equal(told_of("auto", 2, 0, 1), "deferred, generic, 2 threads");
    assert_ok(ls_device_open(&device, 1, LS_ISA_GENERIC, &err), err);
    ls_device_close(device);
    assert_int_equal(n_opened, 3);
    if (!has_gpu()) assert_int_not_equal(ls_device_open_named(&device, "cuda", 1, LS_ISA_GENERIC, &err), LS_OK);
    assert_int_equal(n_opened, 3);
    ls_device_open_by(NULL);
    assert_string_equal(told_of("cpu", 1, 0, 1), "cpu, generic, 1 thread");
    assert_int_equal(n_opened, 3);
}

/* ---- a device beside another ---- */

static void only_the_cpu_has_other_threads(void **state) {
    ls_device *home, *beside;
    char text[LS_DEVICE_TEXT_MAX];
    ls_error err;
    (void)state;
    assert_ok(ls_device_open_cpu(&home, 1, LS_ISA_GENERIC, &err), err);
    assert_ok(ls_device_open_beside(&beside, home, 2, ls_isa_best(), &err), err);
    ls_device_describe(beside, text, sizeof text);
    assert_non_null(strstr(text, ", 2 threads"));
    ls_device_close(beside);
    ls_device_close(home);
    assert_ok(ls_device_open_cpu(&home, 3, LS_ISA_GENERIC, &err), err);
    assert_ok(ls_device_open_sharing(&beside, home, 2, &err), err);
    ls_device_describe(beside, text, sizeof text);
    assert_string_equal(text, "cpu, generic, 3 threads");
    ls_device_close(beside);
    ls_device_close(home);
    assert_ok(ls_device_open_deferred(&home, 1, LS_ISA_GENERIC, &err), err);
    assert_ok(ls_device_open_beside(&beside, home, 2, LS_ISA_GENERIC, &err), err);
    assert_null(beside);
    assert_ok(ls_device_open_sharing(&beside, home, 2, &err), err);
    assert_null(beside);
    ls_device_close(home);
}

/* ---- why there is no GPU ---- */

static void every_reason_has_its_sentence(void **state) {
    static const struct {
        ls_gpus gpus;
        int32_t ordinal;
        ls_status status;
        bool is_none;
        const char *says;
    } cases[] = {
        {{.is_built = false}, 0, LS_ERR_UNSUPPORTED, true, "cuda: this build has no CUDA back end"},
        {{true, false, 0, 13000, 0, ""}, 0, LS_ERR_UNSUPPORTED, true, "cuda: this machine has no NVIDIA driver"},
        {{true, true, 11040, 13000, 0, ""},
         0,
         LS_ERR_UNSUPPORTED,
         false,
         "cuda: the driver is too old: it is for CUDA 11.4, this build for 13.0"},
        {{true, false, 13000, 13000, 0, "system not yet initialized"},
         0,
         LS_ERR_UNSUPPORTED,
         false,
         "cuda: the GPUs cannot be counted: system not yet initialized"},
        {{true, false, 13000, 12080, 0, ""}, 0, LS_ERR_UNSUPPORTED, true, "cuda: the driver finds no GPU"},
        {{true, false, 13000, 13000, 1, ""}, 1, LS_ERR_ARG, false, "cuda:1: there is 1 GPU, cuda:0"},
        {{true, false, 13000, 13000, 4, ""}, 7, LS_ERR_ARG, false, "cuda:7: there are 4 GPUs, cuda:0 to cuda:3"},
        {{true, false, 13000, 13000, 4, ""}, -1, LS_ERR_ARG, false, "cuda:-1: there are 4 GPUs, cuda:0 to cuda:3"},
        {{true, false, 13000, 13000, 4, ""}, 3, LS_OK, false, ""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ls_error err = {LS_OK, ""};
        assert_int_equal(ls_gpus_check(&cases[i].gpus, cases[i].ordinal, &err), cases[i].status);
        assert_string_equal(err.text, cases[i].says);
        assert_int_equal(ls_gpus_is_none(&cases[i].gpus), cases[i].is_none);
    }
}

static void a_gpu_of_the_wrong_kind_is_named(void **state) {
    const ls_gpu old = {"Tesla V100", INT64_C(16) << 30, 7, 0}, new = {"NVIDIA H200", INT64_C(139) << 30, 9, 0};
    ls_error err;
    (void)state;
    assert_ok(ls_gpu_check(&new, 0, &err), err);
    assert_int_equal(ls_gpu_check(&old, 2, &err), LS_ERR_UNSUPPORTED);
    assert_string_equal(err.text, "cuda:2: Tesla V100 has compute capability 7.0, 8.0 is needed");
    assert_int_equal(ls_gpu_no_code(&new, 1, "80-real,86", "no kernel image", &err), LS_ERR_UNSUPPORTED);
    assert_string_equal(err.text,
                        "cuda:1: this build has no code for NVIDIA H200, compute capability 9.0 (sm_90): it was built "
                        "for LS_CUDA_ARCHITECTURES=80-real,86: no kernel image");
}

/* What a failed call means, by the number that CUDA gives it. */
static void failures_of_calls_are_sentences(void **state) {
    static const struct {
        int32_t code;
        ls_status status;
        const char *sentence;
    } cases[] = {
        {LS_CUDA_NO_MEMORY, LS_ERR_NOMEM, "cuda: KV pages: why"},
        {LS_CUDA_OLD_DRIVER, LS_ERR_UNSUPPORTED, "cuda: KV pages: the driver is too old for this build: why"},
        {LS_CUDA_TAKEN, LS_ERR_DEVICE,
         "cuda: KV pages: why: another process has the GPU for itself (nvidia-smi -q -d COMPUTE)"},
        {LS_CUDA_NO_CODE, LS_ERR_UNSUPPORTED,
         "cuda: KV pages: this build has no code for this GPU (LS_CUDA_ARCHITECTURES): why"},
        {LS_CUDA_ILLEGAL_ADDRESS, LS_ERR_DEVICE,
         "cuda: the GPU is lost to this process, found at KV pages: why (error 700); start the process again"},
        {LS_CUDA_LAUNCH_FAILURE, LS_ERR_DEVICE,
         "cuda: the GPU is lost to this process, found at KV pages: why (error 719); start the process again"},
        {LS_CUDA_ECC, LS_ERR_DEVICE,
         "cuda: the GPU is lost to this process, found at KV pages: why (error 214); start the process again; its "
         "memory has a defect, see nvidia-smi -q -d ECC"},
        {1, LS_ERR_DEVICE, "cuda: KV pages: why"},
    };
    ls_error err;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(ls_gpu_failed(cases[i].code, "KV pages", "why", &err), cases[i].status);
        assert_string_equal(err.text, cases[i].sentence);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_exact),
        cmocka_unit_test(the_cpu_says_what_it_computes_with),
        cmocka_unit_test(auto_is_a_gpu_or_the_cpu),
        cmocka_unit_test(failures_of_calls_are_sentences),
        cmocka_unit_test(a_gpu_that_is_not_there_is_refused),
        cmocka_unit_test(an_opener_takes_the_place_of_the_cpu),
        cmocka_unit_test(only_the_cpu_has_other_threads),
        cmocka_unit_test(every_reason_has_its_sentence),
        cmocka_unit_test(a_gpu_of_the_wrong_kind_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
