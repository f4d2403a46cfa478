/* The audit of machine code: the corpus compiled for two architectures with the first bad values of its PTX, repaired
 * forms without a finding, sums of two registers, guards, calls, hostile text. */
#define _POSIX_C_SOURCE 200809L /* strtok_r */
#include <stdlib.h>

#include "audit/audit.h"
#include "audit/binary.h"
#include "audit/rank.h"
#include "base/file.h"
#include "base/mem.h"
#include "corpus_cases.h"
#include "harness.h"

static const char *const files[] = {"published.sm_80.sass", "newer.sm_80.sass", "published.sm_90.sass",
                                    "newer.sm_90.sass", "triton.sm_90.sass"};

static ls_ranges *read_ranges(const char *text) {
    ls_ranges *ranges;
    ls_error err;
    assert_ok(ls_ranges_create(&ranges, &err), err);
    assert_ok(ls_ranges_parse(ranges, text, (int64_t)strlen(text), "ranges", &err), err);
    return ranges;
}

static ls_ranges *corpus_ranges(void) {
    char path[512], *text;
    int64_t bytes;
    ls_error err;
    snprintf(path, sizeof path, "%s/tests/audit/corpus/corpus.ranges", LS_SOURCE_DIR);
    assert_ok(ls_file_read(&text, &bytes, path, 1000000, &err), err);
    ls_ranges *ranges = read_ranges(text);
    free(text);
    return ranges;
}

/* Whether the finding is that of the case: the same factors in any order, lever and first bad value. The quotient of a
 * division is a value of its own in machine code, and a loop is unrolled there: the values of these differ. */
static bool is_case(const ls_audit_finding *f, size_t c) {
    const bool other = strcmp(cases[c].kernel, "n08_bad") == 0 || strcmp(cases[c].kernel, "t03_bad") == 0;
    char part[128], *rest = part;
    if (strcmp(f->kernel, cases[c].kernel) != 0 || f->is_signed != cases[c].is_signed || f->bits != 32) return false;
    snprintf(part, sizeof part, "%s", cases[c].part);
    for (const char *factor = strtok_r(part, " *", &rest); factor != NULL; factor = strtok_r(NULL, " *", &rest))
        if (strstr(f->expression, factor) == NULL) return false;
    if (other) return true;
    return strncmp(f->lever, cases[c].lever, strlen(cases[c].lever)) == 0 && f->first == cases[c].first;
}

static void test_corpus(void **state) {
    ls_ranges *ranges = corpus_ranges();
    (void)state;
    for (size_t k = 0; k < sizeof files / sizeof files[0]; k++) {
        char path[512];
        ls_audit audit = {0};
        ls_error err;
        snprintf(path, sizeof path, "%s/tests/audit/corpus/%s", LS_SOURCE_DIR, files[k]);
        assert_ok(ls_audit_path(&audit, path, ranges, &err), err);
        assert_int_equal(audit.n_accesses, audit.n_exact + audit.n_wraps + audit.n_unknown);
        for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
            bool found = false;
            const char *const starts = files[k][0] == 'p' ? "c" : files[k][0] == 'n' ? "n" : "t";
            if (cases[c].kernel[0] != starts[0]) continue;
            for (int64_t i = 0; i < audit.n_findings && !found; i++) found = is_case(&audit.findings[i], c);
            if (!found) fail_msg("%s: %s is not found", files[k], cases[c].kernel);
        }
        for (int64_t i = 0; i < audit.n_findings; i++)
            if (strstr(audit.findings[i].kernel, "_fixed") != NULL)
                fail_msg("%s: %s: %s", files[k], audit.findings[i].kernel, audit.findings[i].expression);
        ls_audit_deinit(&audit);
    }
    ls_ranges_free(ranges);
}

/* A kernel (long long p, int n, int s) without .nv.info: its parameters are param0, param0+8 and param0+12. Each line
 * of a body has its own address. */
#define HEAD ".target sm_90\n.section .text.k,\"ax\"\n"
static const char start[] =
    HEAD "/*0000*/ LDC.64 R2, c[0x0][0x210] ;\n/*0001*/ LDC R4, c[0x0][0x218] ;\n/*0002*/ LDC R5, c[0x0][0x21c] ;\n";

static int64_t findings_of(const char *text, const char *ranges_text, int64_t *unknown, ls_error *err) {
    ls_ranges *ranges = read_ranges(ranges_text);
    ls_audit audit = {0};
    const ls_status status = ls_audit_sass(&audit, text, (int64_t)strlen(text), "k.sass", ranges, err);
    const int64_t n = status == LS_OK ? audit.n_findings : -1;
    *unknown = audit.n_unknown;
    assert_int_equal(audit.n_accesses, audit.n_exact + audit.n_wraps + audit.n_unknown);
    ls_audit_deinit(&audit);
    ls_ranges_free(ranges);
    return n;
}

static void expect(const char *body, const char *ranges, int64_t n_findings, int64_t n_unknown) {
    char text[4096];
    ls_error err = {.text = ""};
    int64_t unknown = -1;
    snprintf(text, sizeof text, "%s%s/*0fff*/ EXIT ;\n", start, body);
    const int64_t n = findings_of(text, ranges, &unknown, &err);
    if (n != n_findings || unknown != n_unknown)
        fail_msg("%lld findings, %lld unknown: %s\n%s", (long long)n, (long long)unknown, err.text, body);
}

static const char big[] = "param 0+8: 65536\nparam 0+12: 0..65536\n",
                  half[] = "param 0+8: 65536\nparam 0+12: 0..65535\n",
                  small[] = "param 0+8: 65536\nparam 0+12: 0..32767\n";

static void test_sums(void **state) {
    (void)state;
    /* a product of 32 bits, extended by zeros through the carry of a sum */
    const char *zeros =
        "/*0010*/ IMAD R6, R4, R5, RZ ;\n/*0020*/ IADD3 R8, P0, R2, R6, RZ ;\n/*0030*/ IMAD.X R9, RZ, RZ, R3, P0 ;\n"
        "/*0040*/ STG.E desc[UR4][R8.64], R4 ;\n";
    expect(zeros, big, 1, 0);
    expect(zeros, half, 0, 0);
    /* the same, extended by its sign */
    const char *sign =
        "/*0010*/ IMAD R6, R4, R5, RZ ;\n/*0018*/ SHF.R.S32.HI R7, RZ, 0x1f, R6 ;\n"
        "/*0020*/ IADD3 R8, P0, R2, R6, RZ ;\n/*0030*/ IADD3.X R9, R3, R7, RZ, P0, !PT ;\n"
        "/*0040*/ LDG.E R0, [R8.64] ;\n";
    expect(sign, half, 1, 0);
    expect(sign, small, 0, 0);
    const char *lea =
        "/*0010*/ IMAD R6, R4, R5, RZ ;\n/*0020*/ LEA R8, P0, R6, R2, 0x2 ;\n"
        "/*0030*/ LEA.HI.X.SX32 R9, R6, R3, 0x2, P0 ;\n/*0040*/ LDG.E R0, [R8.64+0x10] ;\n";
    expect(lea, half, 1, 0);
    expect(lea, small, 0, 0);
    /* a wide product is whole; its low half taken alone is not */
    const char *whole = "/*0010*/ IMAD.WIDE.U32 R8, R4, R5, R2 ;\n/*0040*/ STG.E.64 desc[UR4][R8.64], R4 ;\n";
    expect(whole, big, 0, 0);
    const char *cut =
        "/*0010*/ IMAD.WIDE.U32 R6, R4, R5, RZ ;\n/*0020*/ IMAD.WIDE.U32 R8, R6, 0x4, R2 ;\n"
        "/*0040*/ STG.E desc[UR4][R8.64], R4 ;\n";
    expect(cut, big, 1, 0);
    /* 64 bits times 32, in parts */
    expect(
        "/*0010*/ IMAD.WIDE.U32 R6, R4, R5, RZ ;\n/*0020*/ IMAD R0, R7, R5, RZ ;\n"
        "/*0028*/ IMAD.WIDE.U32 R10, R6, R5, R2 ;\n/*0030*/ IADD3 R11, R11, R0, RZ ;\n"
        "/*0040*/ STG.E desc[UR4][R10.64], R4 ;\n",
        big, 0, 0);
    /* halves that have nothing to do with each other */
    expect("/*0020*/ IADD3 R8, R2, R4, RZ ;\n/*0030*/ MOV R9, R5 ;\n/*0040*/ STG.E desc[UR4][R8.64], R4 ;\n", big, 0,
           1);
    /* what another thread holds has the range of what all hold */
    const char *shuffled =
        "/*0010*/ SHFL.IDX PT, R6, R5, RZ, 0x1f ;\n/*0018*/ IMAD R6, R4, R6, RZ ;\n"
        "/*0020*/ IMAD.WIDE R8, R6, 0x4, R2 ;\n/*0040*/ STG.E desc[UR4][R8.64], R4 ;\n";
    expect(shuffled, big, 1, 0);
    expect(shuffled, small, 0, 0);
    /* an instruction that nobody knows */
    expect(
        "/*0010*/ IMAD R6, R4, R5, RZ ;\n/*0018*/ WONDER R6, R6, R5 ;\n/*0020*/ IMAD.WIDE R8, R6, 0x4, R2 ;\n"
        "/*0040*/ STG.E desc[UR4][R8.64], R4 ;\n",
        big, 0, 1);
}

/* What the matrix units write is any value: as many registers as the shape says, and none behind them. */
static void test_matrices(void **state) {
    static const struct {
        const char *op;
        int64_t n_findings;
    } ops[] = {{"HGMMA.64x16x16.F32.BF16 R16, gdesc[UR8], R16, gsb0", 0},
               {"HGMMA.64x8x16.F32.BF16 R16, gdesc[UR8], R16", 1},
               {"HGMMA.64x16x16.F16 R16, gdesc[UR8], R16", 1},
               {"LDTM.x8 R16, tmem[UR5+0x10]", 0},
               {"LDTM.x4 R16, tmem[UR5]", 1},
               {"LDTM.16dp256bit.x2 R16, tmem[UR5]", 0},
               {"UTCHMMA gdesc[UR16], gdesc[UR18], tmem[UR20], tmem[UR22], idesc[UR23], UP0", 1},
               {"UTMALDG.2D [UR8], [UR4], desc[UR6]", 1}};
    (void)state;
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        char body[512];
        snprintf(body, sizeof body,
                 "/*0010*/ IMAD R20, R4, R5, RZ ;\n/*0018*/ %s ;\n/*0020*/ IMAD.WIDE R8, R20, 0x4, R2 ;\n"
                 "/*0040*/ STG.E desc[UR4][R8.64], R4 ;\n",
                 ops[i].op);
        expect(body, big, ops[i].n_findings, 0);
    }
}

static void test_guards(void **state) {
    (void)state;
    /* the product stands in front of the guard that keeps it small */
    expect(
        "/*0010*/ IMAD R6, R4, R5, RZ ;\n/*0018*/ ISETP.GE.AND P0, PT, R5, 0x3e8, PT ;\n"
        "/*0020*/ IMAD.WIDE R8, R6, 0x4, R2 ;\n/*0030*/ @P0 EXIT ;\n/*0040*/ STG.E desc[UR4][R8.64], R4 ;\n",
        big, 0, 0);
    expect(
        "/*0010*/ IMAD R6, R4, R5, RZ ;\n/*0018*/ ISETP.GE.AND P0, PT, R5, 0x3e8, PT ;\n"
        "/*0020*/ IMAD.WIDE R8, R6, 0x4, R2 ;\n/*0030*/ @!P0 STG.E desc[UR4][R8.64], R4 ;\n",
        big, 0, 0);
    expect(
        "/*0010*/ IMAD R6, R4, R5, RZ ;\n/*0018*/ ISETP.GE.AND P0, PT, R5, 0x3e8, PT ;\n"
        "/*0020*/ IMAD.WIDE R8, R6, 0x4, R2 ;\n/*0030*/ @P0 STG.E desc[UR4][R8.64], R4 ;\n",
        big, 1, 0);
    /* what one way in sets and the other does not */
    expect(
        "/*0010*/ IMAD R6, R4, R5, RZ ;\n/*0018*/ ISETP.GE.AND P0, PT, R5, 0x3e8, PT ;\n/*001a*/ @P0 MOV R6, RZ ;\n"
        "/*0020*/ IMAD.WIDE R8, R6, 0x4, R2 ;\n/*0030*/ STG.E desc[UR4][R8.64], R4 ;\n",
        big, 1, 0);
    /* pairs that meet behind a jump */
    expect(
        "/*0010*/ ISETP.GE.AND P0, PT, R5, 0x3e8, PT ;\n/*0018*/ IMAD R6, R4, R5, RZ ;\n/*0020*/ @P0 BRA 0x40 ;\n"
        "/*0030*/ IMAD.WIDE R2, R6, 0x4, R2 ;\n/*0040*/ STG.E desc[UR4][R2.64], R4 ;\n",
        "param 0+8: 8388608\nparam 0+12: 0..65536\n", 1, 0);
    /* a loop whose pointer moves */
    expect(
        "/*0010*/ MOV R6, RZ ;\n/*0020*/ IADD3 R2, P0, R2, R4, RZ ;\n/*0030*/ IADD3.X R3, RZ, R3, RZ, P0, !PT ;\n"
        "/*0040*/ STG.E desc[UR4][R2.64], R4 ;\n/*0050*/ IADD3 R6, R6, 0x1, RZ ;\n"
        "/*0060*/ ISETP.GE.AND P0, PT, R6, R5, PT ;\n/*0070*/ @!P0 BRA 0x20 ;\n",
        big, 0, 0);
}

static void test_calls(void **state) {
    (void)state;
    /* what a function that is called writes is any value; its own accesses are unknown */
    expect(
        "/*0010*/ IMAD R6, R4, R5, RZ ;\n/*0018*/ CALL.REL.NOINC 0x100 ;\n/*0020*/ IMAD.WIDE R8, R6, 0x4, R2 ;\n"
        "/*0030*/ STG.E desc[UR4][R8.64], R4 ;\n/*0040*/ EXIT ;\n/*0100*/ MOV R6, 0x1 ;\n"
        "/*0110*/ STG.E desc[UR4][R2.64], R4 ;\n/*0120*/ RET.REL.NODEC R20 0x0 ;\n",
        big, 0, 1);
    /* a jump through a register */
    expect("/*0030*/ STG.E desc[UR4][R2.64], R4 ;\n/*0040*/ BRX R6 -0x40 ;\n", big, 0, 1);
    expect("/*0030*/ STG.E desc[UR4][R2.64], R4 ;\n/*0040*/ BRX R6 BRANCH_TARGETS ;\n", big, 0, 1);
    expect(
        "/*0030*/ STG.E desc[UR4][R2.64], R4 ;\n"
        "/*0040*/ BRX R6 -0x40 (*\"BRANCH_TARGETS .L_x_1,.L_x_2\"*) ;\n.L_x_1:\n/*0050*/ MOV R6, R7 ;\n.L_x_2:\n",
        big, 0, 0);
}

static void test_hostile(void **state) {
    static const struct {
        const char *text, *said;
    } wrong[] = {{HEAD "/*0000*/ MOV R1, R2\n", "without its ';'"},
                 {HEAD "/*0000*/ MOV R1, R2 ;\n/*0000*/ EXIT ;\n", "do not rise"},
                 {HEAD "/*0000*/ @R1 MOV R1, R2 ;\n", "not a predicate"},
                 {HEAD "/*0000*/ MOV R1, [R2 ;\n", "not an operand"},
                 {HEAD "/*0000*/ BRA `(.L_x_9) ;\n", "not in its function"},
                 {HEAD ".L_1:\n.L_1:\n/*0000*/ EXIT ;\n", "there twice"},
                 {".target sm_52\n", "older than sm_70"}};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        ls_error err = {.text = ""};
        int64_t unknown;
        if (findings_of(wrong[i].text, "", &unknown, &err) >= 0 || strstr(err.text, wrong[i].said) == NULL)
            fail_msg("'%s' for %s", err.text, wrong[i].text);
    }
    for (size_t bytes = 0; bytes < sizeof start; bytes++) { /* cut off anywhere: a result or an error, no more */
        char text[sizeof start];
        ls_error err = {.text = ""};
        int64_t unknown;
        memcpy(text, start, bytes);
        text[bytes] = '\0';
        if (findings_of(text, "", &unknown, &err) < 0 && strstr(err.text, "k.sass") != err.text)
            fail_msg("%s", err.text);
    }
}

/* A line of a megabyte, and a function of one long chain of sums. */
static void test_monsters(void **state) {
    enum { BYTES = 4000000 };
    char *text;
    ls_error err = {.text = ""};
    int64_t unknown, at = 0;
    (void)state;
    assert_ok(ls_array_alloc((void **)&text, BYTES, 1, "text", &err), err);
    memset(text, 'R', 1000000);
    assert_int_equal(findings_of(text, "", &unknown, &err), -1);
    assert_non_null(strstr(err.text, "longer than 65536"));
    at += snprintf(text, BYTES, "%s", start);
    for (int64_t i = 0; i < 20000; i++)
        at += snprintf(text + at, (size_t)(BYTES - at),
                       "/*%06llx*/ IADD3 R2, P0, R2, R4, RZ ;\n/*%06llx*/ IADD3.X R3, RZ, R3, RZ, P0, !PT ;\n",
                       (long long)(16 + 2 * i), (long long)(17 + 2 * i));
    snprintf(text + at, (size_t)(BYTES - at), "/*0ffff0*/ STG.E desc[UR4][R2.64], R4 ;\n/*0ffff8*/ EXIT ;\n");
    assert_int_equal(findings_of(text, "", &unknown, &err), 0);
    free(text);
}

/* Declared ranges first, then parameters with the smaller even value, grids alone last. */
static void test_rank(void **state) {
    static ls_audit_finding f[4];
    ls_audit audit = {.findings = f, .n_findings = 4};
    ls_audit_order *order;
    ls_error err;
    (void)state;
    for (int i = 0; i < 4; i++) {
        f[i] = (ls_audit_finding){.bits = 32, .is_signed = true, .n_symbols = 2, .n_terms = 1, .share = 0.5};
        f[i].terms[0] = (ls_audit_term){.factor = 1, .n = 2, .symbols = {0, 1}};
        snprintf(f[i].kernel, sizeof f[i].kernel, "k%d", i / 2);
        for (int k = 0; k < 2; k++) {
            f[i].symbols[k].high = 2147483647;
            snprintf(f[i].symbols[k].name, sizeof f[i].symbols[k].name, "%s", i == 0 ? "blockIdx.x" : "param1");
        }
    }
    f[1].terms[0].factor = 4;
    f[3].is_declared = true;
    assert_int_equal(ls_audit_even(&f[1]), 23171); /* 4 * 23170^2 is just below 2^31 */
    assert_int_equal(ls_audit_even(&f[2]), 46341);
    assert_ok(ls_audit_rank(&order, &audit, &err), err);
    static const int64_t expected[] = {3, 1, 2, 0}, counts[] = {2, 2, 0, 0};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(order[i].finding, expected[i]);
        assert_int_equal(order[i].of_kernel, counts[i]);
    }
    free(order);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_corpus),   cmocka_unit_test(test_sums),  cmocka_unit_test(test_matrices),
        cmocka_unit_test(test_guards),   cmocka_unit_test(test_calls), cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_monsters), cmocka_unit_test(test_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
