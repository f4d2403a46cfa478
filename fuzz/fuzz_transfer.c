/* Bytes as what a trainer announces (update_info) and as the pickled name of an NCCL group. The broadcasts of a plan
 * must cover all of its tensors once. */
#include <stdlib.h>
#include <string.h>

#include "serve/serve_transfer.h"
#include "serve/torch_store.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void check(const ls_transfer_plan *p, int64_t chunk_bytes) {
    int64_t covered = 0, total = 0;
    for (int64_t i = 0; i < p->n;) {
        int64_t end;
        const int64_t bytes = ls_transfer_chunk(p, i, chunk_bytes, &end);
        if (bytes < 1 || end <= i || end > p->n) abort();
        covered += bytes;
        i = end;
    }
    for (int64_t i = 0; i < p->n; i++) {
        if (p->tensors[i].bytes < 1 || p->tensors[i].name[0] == '\0') abort();
        total += p->tensors[i].bytes;
    }
    if (covered != total) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    char *copy = malloc(n_bytes > 0 ? n_bytes : 1);
    ls_json_doc *doc = NULL;
    ls_transfer_plan *plan = NULL;
    ls_nccl_id id;
    ls_error err;
    if (copy == NULL) return 0;
    if (n_bytes > 0) memcpy(copy, data, n_bytes);
    (void)ls_nccl_id_unpickle(&id, (const uint8_t *)copy, (int64_t)n_bytes, &err);
    if (ls_json_doc_open(&doc, copy, (int64_t)n_bytes, "input", &err) == LS_OK) {
        const ls_node root = ls_json_root(doc);
        if (ls_transfer_plan_read(&plan, &root, &err) == LS_OK) {
            check(plan, 0);
            check(plan, 64);
            check(plan, LS_TRANSFER_CHUNK_BYTES);
        }
    }
    ls_transfer_plan_free(plan);
    ls_json_doc_free(doc);
    free(copy);
    return 0;
}
