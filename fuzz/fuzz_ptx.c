/* Any bytes as PTX text, audited with some ranges; and any bytes as a file of ranges. What is accepted must add up. */
#include <stdlib.h>
#include <string.h>

#include "audit/audit.h"
#include "audit/kernel_source.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static const char some_ranges[] = "param 0[] = slot: 0..69775\nparam 2 = stride: 89600\nblockIdx.y: 0..63\n";

static void audit_bytes(const uint8_t *data, size_t n_bytes) {
    ls_ranges *ranges;
    ls_audit audit = {0};
    ls_error err;
    if (ls_ranges_create(&ranges, &err) != LS_OK) abort();
    if (ls_ranges_parse(ranges, some_ranges, sizeof some_ranges - 1, "ranges", &err) != LS_OK) abort();
    if (ls_audit_ptx(&audit, (const char *)data, (int64_t)n_bytes, "input", ranges, &err) == LS_OK) {
        if (audit.n_exact + audit.n_wraps + audit.n_unknown != audit.n_accesses) abort();
        for (int64_t i = 0; i < audit.n_findings; i++)
            if (audit.findings[i].n_accesses < 1 || audit.findings[i].expression[0] == '\0') abort();
    } else if (strstr(err.text, "input") != err.text) {
        abort();
    }
    ls_audit_deinit(&audit);
    ls_ranges_free(ranges);
}

/* As a mangled name. */
static void read_name(const uint8_t *data, size_t n_bytes) {
    char name[1024] = "_ZN", out[LS_KERNEL_SOURCE_MAX];
    const size_t n = n_bytes < sizeof name - 4 ? n_bytes : sizeof name - 4;
    if (n > 0) memcpy(name + 3, data, n);
    if (strlen(ls_kernel_source(out, name)) >= sizeof out || strlen(ls_kernel_source(out, name + 3)) >= sizeof out)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    ls_ranges *ranges;
    ls_error err;
    audit_bytes(data, n_bytes);
    read_name(data, n_bytes);
    if (ls_ranges_create(&ranges, &err) != LS_OK) abort();
    if (ls_ranges_parse(ranges, (const char *)data, (int64_t)n_bytes, "input", &err) != LS_OK &&
        strstr(err.text, "input") != err.text)
        abort();
    ls_ranges_free(ranges);
    return 0;
}
