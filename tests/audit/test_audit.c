/* The audit of index widths: the corpus of published cases with their first bad values, repaired forms without a
 * finding, loops and guards, hostile text, ranges. */
#define _POSIX_C_SOURCE 200809L /* setenv */
#include <stdlib.h>

#include "audit/audit.h"
#include "audit/binary.h"
#include "audit/config_names.h"
#include "base/file.h"
#include "base/mem.h"
#include "corpus_cases.h"
#include "harness.h"

static const char *const corpus[] = {"published.ptx", "newer.ptx", "triton.ptx"};

static void corpus_path(char *out, size_t bytes, const char *name) {
    snprintf(out, bytes, "%s/tests/audit/corpus/%s", LS_SOURCE_DIR, name);
}

static ls_ranges *read_ranges(const char *text) {
    ls_ranges *ranges;
    ls_error err;
    assert_ok(ls_ranges_create(&ranges, &err), err);
    assert_ok(ls_ranges_parse(ranges, text, (int64_t)strlen(text), "ranges", &err), err);
    return ranges;
}

static void audit_corpus(ls_audit *audit) {
    static char paths[3][512];
    char path[512], *text;
    int64_t bytes;
    ls_error err;
    corpus_path(path, sizeof path, "corpus.ranges");
    assert_ok(ls_file_read(&text, &bytes, path, 1000000, &err), err);
    ls_ranges *ranges = read_ranges(text);
    for (int i = 0; i < 3; i++) {
        corpus_path(paths[i], sizeof paths[i], corpus[i]);
        assert_ok(ls_audit_path(audit, paths[i], ranges, &err), err);
    }
    ls_ranges_free(ranges);
    free(text);
}

static void check_case(const ls_audit *audit, size_t c) {
    for (int64_t i = 0; i < audit->n_findings; i++) {
        const ls_audit_finding *f = &audit->findings[i];
        if (strcmp(f->kernel, cases[c].kernel) != 0) continue;
        if (strstr(f->expression, cases[c].part) == NULL) fail_msg("%s: '%s'", f->kernel, f->expression);
        if (f->bits != 32 || f->is_signed != cases[c].is_signed) fail_msg("%s: another width", f->kernel);
        if (strncmp(f->lever, cases[c].lever, strlen(cases[c].lever)) != 0)
            fail_msg("%s: lever %s", f->kernel, f->lever);
        if (f->first != cases[c].first) fail_msg("%s: first bad value %lld", f->kernel, (long long)f->first);
        if (!f->is_declared) fail_msg("%s: a range is missing", f->kernel);
        return;
    }
    fail_msg("%s: not found", cases[c].kernel);
}

static void test_corpus(void **state) {
    ls_audit audit = {0};
    (void)state;
    audit_corpus(&audit);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) check_case(&audit, c);
    for (int64_t i = 0; i < audit.n_findings; i++)
        if (strstr(audit.findings[i].kernel, "_fixed") != NULL)
            fail_msg("%s: %s", audit.findings[i].kernel, audit.findings[i].expression);
    assert_int_equal(audit.n_accesses, audit.n_exact + audit.n_wraps + audit.n_unknown);
    ls_audit_deinit(&audit);
}

/* The figures of the first case: what part of the pool is hit. */
static void test_share(void **state) {
    ls_audit audit = {0};
    (void)state;
    audit_corpus(&audit);
    for (int64_t i = 0; i < audit.n_findings; i++) {
        const ls_audit_finding *f = &audit.findings[i];
        if (strcmp(f->kernel, "c01_bad") != 0) continue;
        assert_true(f->high == INT64_C(69775) * 89600);
        assert_true(f->share > 0.3130 && f->share < 0.3131); /* 21,841 of 69,776 */
        assert_int_equal(f->scale, 4);
    }
    ls_audit_deinit(&audit);
}

#define HEAD ".version 8.0\n.target sm_90\n.address_size 64\n"
#define KERNEL(body)                                                                                \
    HEAD ".visible .entry k(.param .u64 p, .param .u32 n, .param .u32 s)\n{\n.reg .b32 %r<20>;\n"   \
         ".reg .b64 %rd<20>;\n.reg .pred %p<9>;\nld.param.u64 %rd1, [p];\nld.param.u32 %r1, [n];\n" \
         "ld.param.u32 %r2, [s];\n" body "ret;\n}\n"

/* Audits one kernel; the number of findings, or -1 and what was said. */
static int64_t findings_of(const char *text, const char *ranges_text, int64_t *unknown, ls_error *err) {
    ls_ranges *ranges = read_ranges(ranges_text);
    ls_audit audit = {0};
    const ls_status status = ls_audit_ptx(&audit, text, (int64_t)strlen(text), "k.ptx", ranges, err);
    const int64_t n = status == LS_OK ? audit.n_findings : -1;
    if (unknown != NULL) *unknown = audit.n_unknown;
    ls_audit_deinit(&audit);
    ls_ranges_free(ranges);
    return n;
}

static void expect(const char *text, const char *ranges, int64_t n_findings, int64_t n_unknown) {
    ls_error err = {.text = ""};
    int64_t unknown = -1;
    const int64_t n = findings_of(text, ranges, &unknown, &err);
    if (n != n_findings || unknown != n_unknown)
        fail_msg("%lld findings, %lld unknown: %s\n%s", (long long)n, (long long)unknown, err.text, text);
}

static void test_arithmetic(void **state) {
    (void)state;
    const char *big = "n: 65536\ns: 0..65536\n", *small = "n: 65536\ns: 0..32767\n", *half = "n: 65536\ns: 0..65535\n";
    const char *product = KERNEL(
        "mul.lo.s32 %r3, %r1, %r2;\ncvt.u64.u32 %rd2, %r3;\nadd.s64 %rd3, %rd1, %rd2;\n"
        "st.global.u32 [%rd3], %r1;\n");
    expect(product, big, 1, 0);
    expect(product, half, 0, 0); /* just below 2^32, unsigned */
    const char *wide = KERNEL(
        "mul.lo.s32 %r3, %r1, %r2;\nmul.wide.s32 %rd2, %r3, 4;\nadd.s64 %rd3, %rd1, %rd2;\n"
        "ld.global.u32 %r4, [%rd3];\n");
    expect(wide, half, 1, 0); /* past 2^31, signed */
    expect(wide, small, 0, 0);
    const char *shift = KERNEL(
        "shl.b32 %r3, %r2, 16;\ncvt.s64.s32 %rd2, %r3;\nadd.s64 %rd3, %rd1, %rd2;\n"
        "atom.global.add.u32 %r4, [%rd3], 1;\n");
    expect(shift, half, 1, 0);
    expect(shift, small, 0, 0);
    const char *cut = KERNEL(
        "mul.wide.u32 %rd2, %r1, %r2;\ncvt.u32.u64 %r3, %rd2;\ncvt.u64.u32 %rd4, %r3;\n"
        "add.s64 %rd3, %rd1, %rd4;\nst.u32 [%rd3], %r1;\n");
    expect(cut, big, 1, 0);
    const char *whole = KERNEL("mul.wide.u32 %rd2, %r1, %r2;\nadd.s64 %rd3, %rd1, %rd2;\nst.global.u32 [%rd3], %r1;\n");
    expect(whole, big, 0, 0);
    const char *pair = KERNEL(
        "mad.lo.s32 %r3, %r1, %r2, 0;\nmov.b64 %rd2, {%r3, 0};\nadd.s64 %rd3, %rd1, %rd2;\n"
        "st.global.u32 [%rd3], %r1;\n");
    expect(pair, big, 1, 0);
    const char *mask = KERNEL(
        "mul.wide.u32 %rd2, %r1, %r2;\nand.b64 %rd4, %rd2, 4294967295;\nadd.s64 %rd3, %rd1, %rd4;\n"
        "st.global.u32 [%rd3], %r1;\n");
    expect(mask, big, 1, 0);
}

static void test_guards(void **state) {
    (void)state;
    const char *all = "n: 65536\ns: 0..65536\n";
    /* the same product behind a guard that keeps s below 1000 */
    expect(KERNEL("setp.ge.s32 %p1, %r2, 1000;\n@%p1 bra end;\nmul.lo.s32 %r3, %r1, %r2;\ncvt.s64.s32 %rd2, %r3;\n"
                  "add.s64 %rd3, %rd1, %rd2;\nst.global.u32 [%rd3], %r1;\nend:\n"),
           all, 0, 0);
    /* a guard behind which ways meet again holds no longer */
    expect(KERNEL("setp.ge.s32 %p1, %r2, 1000;\n@%p1 bra end;\nmov.u32 %r5, 1;\nend:\nmul.lo.s32 %r3, %r1, %r2;\n"
                  "cvt.s64.s32 %rd2, %r3;\nadd.s64 %rd3, %rd1, %rd2;\nst.global.u32 [%rd3], %r1;\n"),
           all, 1, 0);
    /* either of two values: the larger counts */
    expect(KERNEL("mul.lo.s32 %r3, %r1, %r2;\nsetp.eq.s32 %p1, %r2, 7;\nselp.b32 %r4, %r3, 0, %p1;\n"
                  "cvt.s64.s32 %rd2, %r4;\nadd.s64 %rd3, %rd1, %rd2;\nst.global.u32 [%rd3], %r1;\n"),
           all, 1, 0);
    /* a rest is small, whatever it is the rest of */
    expect(KERNEL("rem.u32 %r3, %r2, 8;\nmul.lo.s32 %r4, %r3, %r1;\ncvt.s64.s32 %rd2, %r4;\nadd.s64 %rd3, %rd1, %rd2;\n"
                  "st.global.u32 [%rd3], %r1;\n"),
           all, 0, 0);
    /* a difference that may be negative, taken without a sign, is not called fine */
    expect(
        KERNEL(
            "sub.s32 %r3, %r2, %r1;\ncvt.u64.u32 %rd2, %r3;\nadd.s64 %rd3, %rd1, %rd2;\nst.global.u32 [%rd3], %r1;\n"),
        all, 0, 1);
    /* what comes from an instruction that is not understood and is multiplied is unknown */
    expect(KERNEL("prmt.b32 %r3, %r2, %r1, 0x3201;\nmul.lo.s32 %r4, %r3, %r1;\ncvt.u64.u32 %rd2, %r4;\n"
                  "add.s64 %rd3, %rd1, %rd2;\nst.global.u32 [%rd3], %r1;\n"),
           all, 0, 1);
    /* bytes in their place, a byte with zeros above, tables of bits */
#define MADE(op)                                                                            \
    KERNEL(op                                                                               \
           "mul.lo.s32 %r4, %r3, %r1;\ncvt.u64.u32 %rd2, %r4;\nadd.s64 %rd3, %rd1, %rd2;\n" \
           "st.global.u32 [%rd3], %r1;\n")
    expect(MADE("prmt.b32 %r3, %r2, %r1, 0x3210;\n"), all, 1, 0);
    expect(MADE("prmt.b32 %r3, %r2, 0, 0x4440;\n"), all, 0, 0);
    expect(MADE("lop3.b32 %r3, %r2, 255, 0, 0xc0;\n"), all, 0, 0);
    expect(MADE("lop3.b32 %r3, %r2, -256, 0, 0xc0;\n"), all, 1, 0);
    expect(MADE("lop3.b32 %r3, %r2, 255, 7, 0xf8;\n"), "n: 4096\ns: 0..65536\n", 0, 0);
#undef MADE
}

/* Two registers that are one number of 64 bits: a wide sum is exact, a product of 32 bits below zero is not. */
static void test_carries(void **state) {
    (void)state;
    const char *big = "n: 65536\ns: 0..65536\n";
#define ENDS "add.s64 %rd3, %rd1, %rd9;\nst.global.u32 [%rd3], %r1;\n"
    /* n * s + n by halves: the parts of the product, then a sum with its carry */
    expect(KERNEL("mul.lo.u32 %r3, %r1, %r2;\nmul.hi.u32 %r4, %r1, %r2;\nadd.cc.u32 %r5, %r3, %r1;\n"
                  "addc.u32 %r6, %r4, 0;\nmov.b64 %rd9, {%r5, %r6};\n" ENDS),
           big, 0, 0);
    /* the low half alone, with zero above it, has wrapped before the sum */
    expect(KERNEL("mul.lo.u32 %r3, %r1, %r2;\nadd.cc.u32 %r5, %r1, %r3;\naddc.u32 %r6, 0, 0;\n"
                  "mov.b64 %rd9, {%r5, %r6};\n" ENDS),
           big, 1, 0);
    expect(KERNEL("mad.lo.cc.u32 %r5, %r1, %r2, %r1;\nmadc.hi.u32 %r6, %r1, %r2, 0;\n"
                  "mov.b64 %rd9, {%r5, %r6};\n" ENDS),
           big, 0, 0);
    /* the halves of a wide product, cut apart in either way; the summands cross */
    expect(KERNEL("mul.wide.u32 %rd2, %r1, %r2;\nmov.b64 {%r3, %r4}, %rd2;\nadd.cc.u32 %r5, %r3, %r1;\n"
                  "addc.u32 %r6, 0, %r4;\nmov.b64 %rd9, {%r5, %r6};\n" ENDS),
           big, 0, 0);
    expect(KERNEL("mul.wide.u32 %rd2, %r1, %r2;\ncvt.u32.u64 %r3, %rd2;\nshr.u64 %rd4, %rd2, 32;\n"
                  "cvt.u32.u64 %r4, %rd4;\nsub.cc.u32 %r5, %r3, %r1;\nsubc.u32 %r6, %r4, 0;\n"
                  "mov.b64 %rd9, {%r5, %r6};\n" ENDS),
           big, 0, 0);
    /* a sign above a product of 32 bits */
    expect(KERNEL("mul.lo.s32 %r3, %r1, %r2;\nshr.s32 %r4, %r3, 31;\nadd.cc.u32 %r5, %r3, 1;\n"
                  "addc.u32 %r6, %r4, 0;\nmov.b64 %rd9, {%r5, %r6};\n" ENDS),
           big, 1, 0);
    /* another carry in between: the upper half is not that of the lower one */
    expect(KERNEL("add.cc.u32 %r3, %r1, %r2;\nadd.cc.u32 %r4, %r1, %r1;\naddc.u32 %r5, 0, 0;\n"
                  "mov.b64 %rd2, {%r3, %r5};\ncvt.u32.u64 %r7, %rd2;\nmul.lo.s32 %r8, %r7, %r1;\ncvt.u64.u32 %rd9, "
                  "%r8;\n" ENDS),
           big, 0, 1);
#undef ENDS
}

/* n * s in a function that is called, twice in each other, with an early return; recursion is refused by name. */
static void test_calls(void **state) {
    static const char product[] = HEAD
        ".func (.param .b64 out) inner(.param .b32 a, .param .b32 b)\n{\n.reg .b32 %r<9>;\n.reg .b64 %rd<9>;\n"
        ".reg .pred %p<2>;\nld.param.u32 %r1, [a];\nld.param.u32 %r2, [b];\nsetp.gt.s32 %p1, %r1, 9;\n@%p1 bra more;\n"
        "mov.u64 %rd1, 7;\nst.param.b64 [out+0], %rd1;\nret;\nmore:\nmul.lo.s32 %r3, %r1, %r2;\n"
        "cvt.s64.s32 %rd2, %r3;\nst.param.b64 [out+0], %rd2;\nret;\n}\n"
        ".func (.param .b64 out) outer(.param .b32 a, .param .b32 b)\n{\n.reg .b32 %r<9>;\n.reg .b64 %rd<9>;\n"
        "{\n.param .b32 param0;\nld.param.u32 %r1, [b];\nst.param.b32 [param0+0], %r1;\n.param .b32 param1;\n"
        "ld.param.u32 %r2, [a];\nst.param.b32 [param1+0], %r2;\n.param .b64 retval0;\n"
        "call.uni (retval0), inner, (param0, param1);\nld.param.b64 %rd1, [retval0+0];\n}\n"
        "ld.param.u32 %r3, [a];\nst.param.b64 [out+0], %rd1;\nret;\n}\n"
        ".entry k(.param .u64 p, .param .u32 n, .param .u32 s)\n{\n.reg .b32 %r<9>;\n.reg .b64 %rd<9>;\n"
        "ld.param.u64 %rd1, [p];\nld.param.u32 %r1, [n];\nld.param.u32 %r2, [s];\n{\n.param .b32 param0;\n"
        "st.param.b32 [param0+0], %r1;\n.param .b32 param1;\nst.param.b32 [param1+0], %r2;\n.param .b64 retval0;\n"
        "call.uni (retval0), outer, (param0, param1);\nld.param.b64 %rd2, [retval0+0];\n}\n"
        "add.s64 %rd3, %rd1, %rd2;\nst.global.u32 [%rd3], %r1;\nret;\n}\n";
    static const char recursive[] = HEAD
        ".func again(.param .b32 a)\n{\n.reg .b32 %r<9>;\nld.param.u32 %r1, [a];\n{\n.param .b32 param0;\n"
        "st.param.b32 [param0+0], %r1;\ncall.uni again, (param0);\n}\nret;\n}\n"
        ".entry k(.param .u64 p)\n{\n.reg .b32 %r<9>;\n.reg .b64 %rd<9>;\nld.param.u64 %rd1, [p];\n{\n"
        ".param .b32 param0;\nst.param.b32 [param0+0], 3;\ncall.uni again, (param0);\n}\n"
        "st.global.u32 [%rd1], 4;\nret;\n}\n";
    ls_audit audit = {0};
    ls_error err;
    (void)state;
    expect(product, "param 1: 65536\nparam 2: 0..65536\n", 1, 0);
    expect(product, "param 1: 65536\nparam 2: 0..32767\n", 0, 0);
    assert_ok(ls_audit_ptx(&audit, recursive, sizeof recursive - 1, "k.ptx", NULL, &err), err);
    assert_int_equal(audit.n_unknown, 1);
    assert_string_equal(audit.unknowns[0].reason, "it calls again, which calls itself");
    assert_int_equal(audit.n_kernels, 1);
    ls_audit_deinit(&audit);
}

/* What is kept in local memory at a constant place is what was put there; with a computed address it is not. */
static void test_local_memory(void **state) {
    (void)state;
    const char *big = "n: 65536\ns: 0..65536\n";
#define DEPOT ".local .align 16 .b8 depot[32];\n.reg .b64 %SP;\n.reg .b64 %SPL;\nmov.u64 %SPL, depot;\n"
#define ENDS                                                                                       \
    "mul.lo.s32 %r8, %r7, %r1;\ncvt.u64.u32 %rd9, %r8;\nadd.s64 %rd3, %rd1, %rd9;\nst.global.u32 " \
    "[%rd3], %r1;\n"
    expect(
        KERNEL(DEPOT "add.u64 %rd4, %SPL, 8;\nst.local.v2.u32 [%rd4], {%r1, %r2};\nld.local.u32 %r7, [%rd4+4];\n" ENDS),
        big, 1, 0);
    expect(KERNEL(DEPOT "cvta.local.u64 %SP, %SPL;\nst.u32 [%SP+4], %r2;\nst.u32 [%SP], 5;\nld.u32 %r7, [%SP];\n" ENDS),
           big, 0, 0);
    expect(KERNEL(DEPOT
                  "st.local.u32 [%SPL], %r2;\nand.b32 %r4, %r2, 4;\ncvt.u64.u32 %rd5, %r4;\nadd.s64 %rd6, %SPL, %rd5;\n"
                  "st.local.u32 [%rd6], 5;\nld.local.u32 %r7, [%SPL];\n" ENDS),
           big, 1, 0);
    expect(KERNEL(DEPOT "st.local.u64 [%SPL], %rd1;\nst.local.u32 [%SPL+4], 1;\nld.local.u32 %r7, [%SPL+4];\n" ENDS),
           big, 1, 0);
#undef ENDS
#undef DEPOT
    /* two registers of 32 bits that are joined as compilers do it */
#define JOINED(how)                                                                                          \
    KERNEL(                                                                                                  \
        "mul.lo.u32 %r3, %r1, %r2;\nmul.hi.u32 %r4, %r1, %r2;\nadd.cc.u32 %r5, %r3, 1;\naddc.u32 %r6, %r4, " \
        "0;\ncvt.u64.u32 %rd5, %r6;\ncvt.u64.u32 %rd6, %r5;\n" how                                           \
        "add.s64 %rd3, %rd1, %rd9;\nst.global.u32 [%rd3], %r1;\n")
    expect(JOINED("bfi.b64 %rd9, %rd5, %rd6, 32, 32;\n"), big, 0, 0);
    expect(JOINED("shl.b64 %rd7, %rd5, 32;\nor.b64 %rd9, %rd6, %rd7;\n"), big, 0, 0);
#undef JOINED
}

static void test_loops(void **state) {
    (void)state;
    const char *counted = KERNEL(
        "mov.u32 %r3, 0;\nmov.u32 %r4, 0;\nagain:\ncvt.s64.s32 %rd2, %r4;\nadd.s64 %rd3, %rd1, %rd2;\n"
        "st.global.u32 [%rd3], %r1;\nadd.s32 %r4, %r4, %r2;\nadd.s32 %r3, %r3, 1;\nsetp.lt.s32 %p1, %r3, %r1;\n"
        "@%p1 bra again;\n");
    expect(counted, "n: 1..65536\ns: 65536\n", 1, 0);
    expect(counted, "n: 1..32767\ns: 65536\n", 0, 0);
    const char *unequal = KERNEL(
        "mov.u32 %r3, 0;\nmov.u32 %r4, 0;\nagain:\ncvt.s64.s32 %rd2, %r4;\nadd.s64 %rd3, %rd1, %rd2;\n"
        "st.global.u32 [%rd3], %r1;\nadd.s32 %r4, %r4, %r2;\nadd.s32 %r3, %r3, 1;\nsetp.ne.s32 %p1, %r3, %r1;\n"
        "@%p1 bra again;\n");
    expect(unequal, "n: 1..65536\ns: 65536\n", 1, 0);
    expect(unequal, "n: 1..32767\ns: 65536\n", 0, 0);
    /* a loop whose end is not seen bounds nothing */
    expect(
        KERNEL(
            "mov.u32 %r4, 0;\nagain:\ncvt.s64.s32 %rd2, %r4;\nadd.s64 %rd3, %rd1, %rd2;\nld.global.u32 %r5, [%rd3];\n"
            "add.s32 %r4, %r4, %r2;\nsetp.ne.s32 %p1, %r5, 0;\n@%p1 bra again;\n"),
        "n: 1\ns: 65536\n", 0, 1);
}

static void refused(const char *text, const char *word) {
    ls_error err = {.text = ""};
    if (findings_of(text, "", NULL, &err) >= 0) fail_msg("accepted: %.80s", text);
    if (strstr(err.text, word) == NULL || strstr(err.text, "k.ptx") == NULL)
        fail_msg("'%s' lacks '%s'", err.text, word);
}

static void test_hostile(void **state) {
    (void)state;
    refused("", "no PTX");
    refused("no ptx at all\n", "no PTX");
    refused(HEAD ".entry k() { ld.param.u32 %r1, [p]; }", "not declared");
    refused(HEAD ".entry k() { bra nowhere; }", "nowhere");
    refused(HEAD ".entry k() { a: a: ret; }", "twice");
    refused(HEAD ".entry k() { /* never ends", "comment");
    refused(HEAD ".entry k() { .reg .b32 %r<99999999999999999999>; ret; }", "64 bits");
    refused(HEAD ".entry k() { .reg .what %r<2>; ret; }", "not a type");
    refused(HEAD ".entry k() { @%r1 bra x; }", "not declared");
    refused(HEAD ".entry k() { } }", "k.ptx");
    refused(HEAD ".entry k() { mov.u32", "k.ptx");
    refused(HEAD ".address_size 16\n", "address size");
    refused(HEAD ".address_size 32\n.entry k() { ret; }", "32 bits");
}

/* Functions that call the next one twice each: a few lines that would unfold to 2^40. */
static void test_calls_without_end(void **state) {
    enum { DEEP = 40 };
    static char text[DEEP * 80 + 400];
    ls_audit audit = {0};
    ls_error err;
    (void)state;
    int n = snprintf(text, sizeof text, HEAD);
    for (int i = 0; i < DEEP; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, ".func f%d() { call f%d; call f%d; ret; }\n", i, i + 1, i + 1);
    n += snprintf(text + n, sizeof text - (size_t)n,
                  ".func f%d() { ret; }\n.entry k() { .reg .b64 %%rd<2>; call f0; st.global.u32 [%%rd1], 1; }\n", DEEP);
    assert_ok(ls_audit_ptx(&audit, text, n, "k.ptx", NULL, &err), err);
    assert_true(audit.n_unknown == 1 && strstr(audit.unknowns[0].reason, "unfold to too many") != NULL);
    ls_audit_deinit(&audit);
}

static void test_truncated(void **state) {
    char path[512], *text;
    int64_t bytes;
    ls_error err;
    (void)state;
    corpus_path(path, sizeof path, "triton.ptx");
    assert_ok(ls_file_read(&text, &bytes, path, 1000000, &err), err);
    for (int64_t n = 0; n < bytes; n += 29) {
        ls_audit audit = {0};
        if (ls_audit_ptx(&audit, text, n, "cut", NULL, &err) != LS_OK && strstr(err.text, "cut") != err.text)
            fail_msg("%s", err.text);
        ls_audit_deinit(&audit);
    }
    free(text);
}

/* Megabytes in one line, scopes in scopes, a name without end: refused or read, in memory that is bounded. */
static void test_monsters(void **state) {
    enum { BYTES = 1000000 };
    static const char *const parts[] = {"{", "mov.u32 %r1,%r1;", "a", "/", "[", "(", "1", "@", ".reg .b32 %q<9>;", ","};
    char *text = malloc(BYTES + 256);
    assert_non_null(text);
    (void)state;
    for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++) {
        ls_error err = {.text = ""};
        size_t n = (size_t)sprintf(text, HEAD ".entry k() { .reg .b32 %%r<9>; ");
        while (n < BYTES) n += (size_t)sprintf(text + n, "%s", parts[p]);
        if (findings_of(text, "", NULL, &err) >= 0) fail_msg("a text that does not end is accepted: %s", parts[p]);
    }
    free(text);
}

static ls_declared find_range(const ls_ranges *ranges, const char *kernel, ls_range_subject subject, int32_t index,
                              int64_t offset) {
    const ls_range_query query = {.kernel = kernel,
                                  .kernel_bytes = (int32_t)strlen(kernel),
                                  .subject = subject,
                                  .index = index,
                                  .offset = offset};
    return ls_ranges_find(ranges, &query);
}

static void test_ranges(void **state) {
    static const struct {
        const char *text, *word;
    } wrong[] = {{"param x: 3\n", "not a number"},
                 {"a: 5..3\n", "before it begins"},
                 {"a: b * 2\n", "'b'"},
                 {"blockIdx.w: 3\n", "axis"},
                 {"param 5000: 1\n", "4096"},
                 {"[k\n", "']'"},
                 {"a: 3 4\n", "more than a range"},
                 {"a: 99999999999999999999\n", "64 bits"},
                 {"a\n", "':'"},
                 {"param 3 = : 4\n", "name"}};
    ls_ranges *ranges;
    ls_declared found;
    ls_error err;
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_ok(ls_ranges_create(&ranges, &err), err);
        check_failed(ls_ranges_parse(ranges, wrong[i].text, (int64_t)strlen(wrong[i].text), "r", &err), &err,
                     wrong[i].word);
        ls_ranges_free(ranges);
    }
    ranges =
        read_ranges("d: 10\nslot: 0..d*7-1 # comment\n[kern]\nparam 2+8[] = slot\ngridDim.x: 5\n[*]\nparam 1: 1_000\n");
    found = find_range(ranges, "my_kernel", LS_SUBJECT_LOADED, 2, 8);
    assert_true(found.has_range && found.range.high == 69 && found.range.low == 0);
    assert_string_equal(found.name, "slot");
    found = find_range(ranges, "other", LS_SUBJECT_LOADED, 2, 8);
    assert_false(found.has_range);
    found = find_range(ranges, "my_kernel", LS_SUBJECT_CTAID, 0, 0);
    assert_true(found.has_range && found.range.high == 4);
    found = find_range(ranges, "x", LS_SUBJECT_PARAMETER, 1, 0);
    assert_true(found.range.high == 1000);
    ls_ranges_free(ranges);
}

static void test_config_names(void **state) {
    const ls_config_sizes sizes = {.batch = 8, .length = 1000, .pool = 69776};
    char path[512];
    ls_ranges *ranges;
    ls_declared found;
    ls_error err;
    (void)state;
    snprintf(path, sizeof path, "%s/jamba-nobias/config.json", LS_FIXTURES);
    assert_ok(ls_ranges_create(&ranges, &err), err);
    assert_ok(ls_config_names(ranges, path, &sizes, &err), err);
    static const char lines[] = "param 0[] = slot\nparam 1 = tokens\nparam 2 = state_stride\n";
    assert_ok(ls_ranges_parse(ranges, lines, sizeof lines - 1, "r", &err), err);
    found = find_range(ranges, "k", LS_SUBJECT_LOADED, 0, 0);
    assert_true(found.has_range && found.range.high == 69775);
    found = find_range(ranges, "k", LS_SUBJECT_PARAMETER, 1, 0);
    assert_true(found.range.low == 8000 && found.range.high == 8000);
    found = find_range(ranges, "k", LS_SUBJECT_PARAMETER, 2, 0);
    assert_true(found.has_range);
    ls_ranges_free(ranges);
}

/* The convolution of Mamba-2 runs over B and C as well, that of the delta rule over q and k, and a slot has a scale of
 * each head. */
static void test_config_names_of_mamba2(void **state) {
    static const struct {
        const char *fixture;
        int64_t inner, states, channels, taps, heads;
    } shapes[] = {{"mamba2-odd", 105, 11, 127, 2, 5},
                  {"nemotron-h-small", 60, 12, 132, 3, 6},
                  {"bamba-small", 96, 10, 136, 3, 6},
                  {"qwen3.5-odd", 42, 5, 62, 2, 6},
                  {"granite-odd", 36, 5, 66, 2, 6}};
    static const char lines[] = "param 0 = state_stride\nparam 1 = conv_stride\nparam 2 = slot_stride\n";
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const int64_t inner = shapes[i].inner * shapes[i].states, window = shapes[i].channels * shapes[i].taps;
        const int64_t want[] = {inner, window, inner + shapes[i].heads + window / 2};
        const ls_config_sizes sizes = {0};
        char path[512];
        ls_ranges *ranges;
        ls_declared found;
        ls_error err;
        snprintf(path, sizeof path, "%s/%s/config.json", LS_FIXTURES, shapes[i].fixture);
        assert_ok(ls_ranges_create(&ranges, &err), err);
        assert_ok(ls_config_names(ranges, path, &sizes, &err), err);
        assert_ok(ls_ranges_parse(ranges, lines, sizeof lines - 1, "r", &err), err);
        for (int32_t k = 0; k < 3; k++) {
            found = find_range(ranges, "k", LS_SUBJECT_PARAMETER, k, 0);
            assert_true(found.has_range && found.range.low == want[k] && found.range.high == want[k]);
        }
        ls_ranges_free(ranges);
    }
}

/* A folder, as Triton's cache is one, and a binary without a program to open it. */
static void test_paths(void **state) {
    char path[512];
    ls_audit audit = {0};
    ls_error err;
    (void)state;
    snprintf(path, sizeof path, "%s/tests/audit", LS_SOURCE_DIR);
    assert_ok(ls_audit_path(&audit, path, NULL, &err), err);
    assert_int_equal(audit.n_files, 8);
    ls_audit_deinit(&audit);
    setenv("LOCKSTEP_CUOBJDUMP", "/nowhere/cuobjdump", 1);
    check_failed(ls_audit_path(&audit, LS_PROGRAM, NULL, &err), &err, "/nowhere/cuobjdump");
    snprintf(path, sizeof path, "%s/tests/docs", LS_SOURCE_DIR);
    check_failed(ls_audit_path(&audit, path, NULL, &err), &err, "no .ptx");
    ls_audit_deinit(&audit);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_corpus),
        cmocka_unit_test(test_share),
        cmocka_unit_test(test_arithmetic),
        cmocka_unit_test(test_guards),
        cmocka_unit_test(test_carries),
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_calls_without_end),
        cmocka_unit_test(test_local_memory),
        cmocka_unit_test(test_loops),
        cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_monsters),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_config_names),
        cmocka_unit_test(test_config_names_of_mamba2),
        cmocka_unit_test(test_paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
