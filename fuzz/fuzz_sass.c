/* Any bytes as machine code: as they are where they begin with a directive, else behind a head that begins a function.
 * What is accepted must add up. */
#include <stdlib.h>
#include <string.h>

#include "audit/audit.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static const char some_ranges[] = "param 0[] = slot: 0..69775\nparam 0+8: 89600\nblockIdx.y: 0..63\n";
static const char head[] = ".target sm_90\n.section .text.k,\"ax\"\n/*0000*/ LDC.64 R2, c[0x0][0x210] ;\n";

static const ls_ranges *ranges_of_all(void) {
    static ls_ranges *ranges;
    ls_error err;
    if (ranges != NULL) return ranges;
    if (ls_ranges_create(&ranges, &err) != LS_OK) abort();
    if (ls_ranges_parse(ranges, some_ranges, sizeof some_ranges - 1, "ranges", &err) != LS_OK) abort();
    return ranges;
}

static void audit_text(const char *text, int64_t bytes) {
    const ls_ranges *ranges = ranges_of_all();
    ls_audit audit = {0};
    ls_error err;
    if (ls_audit_sass(&audit, text, bytes, "input", ranges, &err) == LS_OK) {
        if (audit.n_exact + audit.n_wraps + audit.n_unknown != audit.n_accesses) abort();
        for (int64_t i = 0; i < audit.n_findings; i++)
            if (audit.findings[i].n_accesses < 1 || audit.findings[i].expression[0] == '\0') abort();
        for (int64_t i = 0; i < audit.n_unknowns; i++)
            if (audit.unknowns[i].reason[0] == '\0') abort();
    } else if (strstr(err.text, "input") != err.text) {
        abort();
    }
    ls_audit_deinit(&audit);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    const size_t head_bytes = n_bytes > 0 && data[0] == '.' ? 0 : sizeof head - 1;
    char *text = malloc(head_bytes + n_bytes > 0 ? head_bytes + n_bytes : 1);
    if (text == NULL) abort();
    memcpy(text, head, head_bytes);
    if (n_bytes > 0) memcpy(text + head_bytes, data, n_bytes);
    audit_text(text, (int64_t)(head_bytes + n_bytes));
    free(text);
    return 0;
}
