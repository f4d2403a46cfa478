/* Any text as what a model wrote where tools were offered. Calls have a name and a JSON object; what a stream may tell
 * of every beginning is a beginning of the content. The first byte says which format. */
#include <stdlib.h>
#include <string.h>

#include "json/json_node.h"
#include "text/tool_calls.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void check_call(const ls_tool_call *call) {
    ls_json_doc *doc;
    if (call->name[0] == '\0') abort();
    if (ls_json_doc_open(&doc, call->arguments, (int64_t)strlen(call->arguments), "arguments", NULL) != LS_OK) abort();
    ls_json_doc_free(doc);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    ls_call_format format;
    ls_tool_calls calls;
    ls_error err;
    char *text;
    int64_t n, told = 0;
    if (n_bytes < 1 || (text = malloc(n_bytes)) == NULL) return 0;
    n = (int64_t)n_bytes - 1;
    format = (ls_call_format)(data[0] % 5);
    memcpy(text, data + 1, (size_t)n);
    if (ls_tool_calls_find(&calls, format, text, n, &err) != LS_OK) abort();
    for (int64_t i = 0; i < calls.n; i++) check_call(&calls.items[i]);
    if (calls.n == 0 && (calls.content_bytes != n || memcmp(calls.content, text, (size_t)n) != 0)) abort();
    for (int64_t i = 0; i <= n; i++) {
        bool begins;
        const int64_t settled = ls_tool_calls_final(format, text, i, true, &begins);
        if (settled < told || settled > i || settled > calls.content_bytes) abort();
        if (settled > 0 && memcmp(calls.content, text, (size_t)settled) != 0) abort();
        told = settled;
        if (begins) break; /* nothing more is told before the end */
    }
    ls_tool_calls_deinit(&calls);
    free(text);
    return 0;
}
