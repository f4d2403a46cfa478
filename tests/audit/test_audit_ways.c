/* What an audit says beside its findings: lines of ranges about nothing, kernels of the source, where its tools are. */
#define _GNU_SOURCE
#include <ftw.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "audit/by_source.h"
#include "audit/kernel_source.h"
#include "audit/tools.h"
#include "harness.h"

static void names_of_the_source(void **state) {
    static const char *const cases[][2] = {
        {"plain_kernel", "plain_kernel"},
        {"_Z4fillPfi", "fill"},
        {"_ZN2at6native11fill_kernelIfEEvPT_", "at::native::fill_kernel"},
        {"_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_",
         "at::native::vectorized_elementwise_kernel"},
        {"_ZN4vllm3moe4gateILb1ELNS_4KindE3EA4_fDv4_jEEvv", "vllm::moe::gate"},
        {"_ZN12_GLOBAL__N_15scaleEPf", "(anonymous)::scale"},
        {"_ZN7cutlass6KernelINS_4gemm6kernel4GemmINS1_11threadblock", "cutlass::Kernel"}, /* cut */
        {"_Z", "_Z"},
        {"_ZN", "_ZN"},
        {"_ZN5ab", "_ZN5ab"},
        {"_ZN99999999999999999999x", "_ZN99999999999999999999x"},
        {"_ZZN3foo3barEvENKUlvE_clEv", "_ZZN3foo3barEvENKUlvE_clEv"},
    };
    char out[LS_KERNEL_SOURCE_MAX];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_string_equal(ls_kernel_source(out, cases[i][0]), cases[i][1]);
}

#define PTX_HEAD ".version 7.0\n.target sm_80\n.address_size 64\n"
/* p[n * blockIdx.x] = 0, of an entry with these names of its parameters. */
#define ENTRY(name, p, n)                                        \
    ".visible .entry " name "(.param .u64 " p ", .param .u32 " n \
    ")\n{\n.reg .b32 %r<8>;\n.reg .b64 %rd<8>;\n"                \
    "ld.param.u64 %rd1, [" p "];\nld.param.u32 %r1, [" n         \
    "];\nmov.u32 %r2, %ctaid.x;\nmul.lo.s32 %r3, %r1, %r2;\n"    \
    "mul.wide.s32 %rd2, %r3, 4;\nadd.s64 %rd3, %rd1, %rd2;\nmov.u32 %r4, 0;\nst.global.u32 [%rd3], %r4;\nret;\n}\n"

/* The text that a function writes. */
static char *audited(const char *ptx, const char *lines, bool sources) {
    ls_audit audit = {0};
    ls_audit_order *order = NULL;
    ls_ranges *ranges;
    ls_error err;
    char *text = NULL;
    size_t n;
    FILE *stream = open_memstream(&text, &n);
    assert_non_null(stream);
    assert_ok(ls_ranges_create(&ranges, &err), err);
    assert_ok(ls_ranges_parse(ranges, lines, (int64_t)strlen(lines), "r", &err), err);
    assert_ok(ls_audit_ptx(&audit, ptx, (int64_t)strlen(ptx), "k.ptx", ranges, &err), err);
    assert_ok(ls_audit_rank(&order, &audit, &err), err);
    if (sources)
        assert_ok(ls_audit_write_sources(stream, &audit, order, &err), err);
    else
        ls_ranges_tell_unused(stream, ranges);
    assert_int_equal(fclose(stream), 0);
    free(order);
    ls_audit_deinit(&audit);
    ls_ranges_free(ranges);
    return text;
}

static void must_say(char *text, const char *expected) {
    if (strcmp(text, expected) != 0) fail_msg("it says '%s', not '%s'", text, expected);
    free(text);
}

static void lines_about_nothing_are_told(void **state) {
    (void)state;
    must_say(
        audited(PTX_HEAD ENTRY("k", "out", "width"), "width: 5\nblockIdx.x: 0..9\nhalf: 4\nothers: 0..half\n", false),
        "");
    must_say(
        audited(PTX_HEAD ENTRY("k", "out", "width"), "widht: 5\nparam 7: 3\nthreadIdx.y: 1\n", false),
        "r:1: 'widht' is nothing that these kernels read; did you mean width?; parameters there are called out, width\n"
        "r:2: param 7 is nothing that these kernels read\nr:3: threadIdx.y is nothing that these kernels read\n");
    must_say(audited(PTX_HEAD ENTRY("k", "k_param_0", "k_param_1"), "width: 5\n", false),
             "r:1: 'width' is nothing that these kernels read; parameters there have numbers and no names: a line "
             "`param N = width` gives number N, from 0, this name, `param N[] = width` what is read through it\n");
    must_say(
        audited(PTX_HEAD ENTRY("k", "k_param_0", "k_param_1"), "param 1 = width\nwidth: 5\n[k]\nparam 1: 4\n", false),
        "");
    must_say(audited(PTX_HEAD ENTRY("k", "out", "width"), "[other]\nwidth: 5\nparam 1: 3\n[more]\nwidth: 4\n", false),
             "ranges of kernels that were not audited: [other], [more]\n");
}

static void instantiations_are_one_kernel(void **state) {
    (void)state;
    must_say(
        audited(PTX_HEAD ENTRY("_ZN2at4fillIfEEvPT_i", "p", "n") ENTRY("_ZN2at4fillIiEEvPT_i", "p2", "n2"), "", true),
        "kernels of the source, 1 with findings\n  at::fill: 2 findings in 2 kernels, worst param1 * blockIdx.x\n\n");
    must_say(audited(PTX_HEAD ENTRY("k", "out", "width"), "width: 5\nblockIdx.x: 0..9\n", true), "");
}

/* ---- tools ---- */

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *walk) {
    (void)st, (void)kind, (void)walk;
    return remove(path);
}

static void put_program(const char *folder, const char *name) {
    char line[1024];
    snprintf(line, sizeof line, "mkdir -p %s && printf '#!/bin/sh\\n' > %s/%s && chmod +x %s/%s", folder, folder, name,
             folder, name);
    assert_int_equal(system(line), 0);
}

static void must_find(const char *path, const char *expected) {
    char out[LS_TOOL_MAX];
    ls_error err;
    assert_ok(ls_tool_find(out, "nvdisasm", path, &err), err);
    assert_string_equal(out, expected);
}

static void tools_are_found(void **state) {
    char root[] = "/tmp/lockstep-tools-XXXXXX", a[256], b[256], c[256], file[300], venv[256], out[LS_TOOL_MAX],
         path[4096];
    const char *before = getenv("PATH"), *const site = "lib/python3.11/site-packages/triton/backends/nvidia/bin";
    ls_error err;
    (void)state;
    assert_non_null(mkdtemp(root));
    snprintf(path, sizeof path, "%s", before);
    unsetenv("LOCKSTEP_NVDISASM"), unsetenv("CUDA_HOME"), unsetenv("CUDA_PATH"), unsetenv("VIRTUAL_ENV");
    unsetenv("CONDA_PREFIX");
    snprintf(a, sizeof a, "%s/cuda/bin", root);
    snprintf(b, sizeof b, "%s/venv/%s", root, site);
    snprintf(c, sizeof c, "%s/venv/bin", root);
    snprintf(venv, sizeof venv, "%s/venv", root);
    put_program(a, "nvdisasm");
    put_program(b, "nvdisasm");
    put_program(c, "python3");
    /* a library of that Python */
    snprintf(file, sizeof file, "%s/venv/lib/python3.11/site-packages/lib.so", root);
    assert_int_equal(fclose(fopen(file, "w")), 0);
    snprintf(out, sizeof out, "%s/nvdisasm", b);
    must_find(file, out);
    setenv("VIRTUAL_ENV", venv, 1);
    must_find("k.cubin", out);
    unsetenv("VIRTUAL_ENV");
    setenv("PATH", c, 1); /* a Python there */
    must_find("k.cubin", out);
    setenv("CUDA_HOME", strcat(strcpy(file, root), "/cuda"), 1);
    snprintf(out, sizeof out, "%s/nvdisasm", a);
    must_find("k.cubin", out);
    setenv("PATH", a, 1);
    unsetenv("CUDA_HOME");
    must_find("k.cubin", out);
    setenv("LOCKSTEP_NVDISASM", "/nowhere/nvdisasm", 1);
    assert_int_equal(ls_tool_find(out, "nvdisasm", "k.cubin", &err), LS_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "LOCKSTEP_NVDISASM=/nowhere/nvdisasm"));
    unsetenv("LOCKSTEP_NVDISASM");
    setenv("PATH", path, 1);
    assert_int_equal(nftw(root, remove_entry, 16, FTW_DEPTH | FTW_PHYS), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_of_the_source),
        cmocka_unit_test(lines_about_nothing_are_told),
        cmocka_unit_test(instantiations_are_one_kernel),
        cmocka_unit_test(tools_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
