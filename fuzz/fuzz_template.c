/* Any bytes as a template and, behind the first NUL, as a conversation for it. What is accepted renders within its
 * limits, to spans that lie within the text in order, or fails with a sentence that names the template. */
#include <stdlib.h>
#include <string.h>

#include "template/template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void check(const ls_template_output *out) {
    if (out->text[out->bytes] != '\0') abort();
    for (int64_t i = 0; i < out->n_spans; i++)
        if (out->spans[i].begin > out->spans[i].end || out->spans[i].end > out->bytes) abort();
}

static void render(const ls_template *t, const char *json, int64_t bytes) {
    static const ls_template_limits limits = {20000, 1 << 22, 1 << 16};
    ls_template_variable variables[4] = {{.name = "messages", .kind = LS_TEMPLATE_NODE, .is_messages = true},
                                         {.name = "add_generation_prompt", .kind = LS_TEMPLATE_BOOL, .truth = true},
                                         {.name = "bos_token", .kind = LS_TEMPLATE_TEXT, .text = "<s>"},
                                         {.name = "root", .kind = LS_TEMPLATE_NODE}};
    ls_template_output out;
    ls_json_doc *doc = NULL;
    ls_node root, messages;
    ls_error err = {0};
    if (ls_json_doc_open(&doc, json, bytes, "input", NULL) != LS_OK &&
        ls_json_doc_open(&doc, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", 44, "input", NULL) != LS_OK)
        abort();
    root = ls_json_root(doc);
    if (!ls_node_get(&root, "messages", &messages)) messages = root;
    variables[0].node = &messages;
    variables[3].node = &root;
    if (ls_template_render(t, variables, 4, 0, &limits, &out, &err) == LS_OK) {
        check(&out);
        ls_template_output_deinit(&out);
    } else if (strncmp(err.text, "input: line ", 12) != 0) {
        abort();
    }
    ls_json_doc_free(doc);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    const uint8_t *nul = n_bytes > 0 ? memchr(data, 0, n_bytes) : NULL;
    const size_t n = nul == NULL ? n_bytes : (size_t)(nul - data), m = nul == NULL ? 0 : n_bytes - n - 1;
    char *copy = malloc(n + 1); /* of the exact size, so that a read past the end is seen */
    ls_template *t;
    ls_error err = {0};
    if (copy == NULL) return 0;
    if (n > 0) memcpy(copy, data, n);
    if (ls_template_parse(&t, copy, (int64_t)n, "input", &err) == LS_OK) {
        render(t, m > 0 ? (const char *)nul + 1 : "", (int64_t)m);
        ls_template_free(t);
    } else if (strncmp(err.text, "input: ", 7) != 0) {
        abort();
    }
    free(copy);
    return 0;
}
