/* Any bytes as the configuration of a run, then each line of them as key=value. What is accepted is in range and reads
 * back from what is written of it. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>

#include "train/sft.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

/* Only of options that something has changed. */
static void check(ls_sft_options *before, const ls_sft_options *o, const ls_config *config) {
    char *text;
    size_t bytes;
    FILE *file;
    ls_json_out json;
    ls_json_doc *doc;
    ls_node root;
    ls_error err;
    if (memcmp(before, o, sizeof *o) == 0) return;
    *before = *o;
    file = open_memstream(&text, &bytes);
    if (file == NULL) return;
    if (o->batch < 1 || o->epochs < 1 || o->train.leaf < 0 || o->train.rank < 0 || o->train.ranks < 1) abort();
    if (!(o->train.rate >= 0 && o->train.clip >= 0)) abort();
    if (ls_device_name_check(o->train.device, &err) == LS_OK && strlen(o->train.device) >= LS_DEVICE_NAME_MAX) abort();
    if (o->train.recompute < 0 || o->train.recompute > 2 || o->train.moments_on < 0 || o->train.moments_on > 2) abort();
    if (o->train.sleep < 0 || o->train.sleep > 2) abort();
    if (o->train.dtype < LS_F32 || o->train.dtype > LS_TRAIN_DTYPE_AUTO) abort();
    if (o->train.profile < LS_PROFILE_EXACT || o->train.profile > LS_TRAIN_PROFILE_AUTO) abort();
    ls_json_init(&json, file);
    ls_json_begin_object(&json, NULL);
    ls_config_write(&json, config);
    ls_json_end_object(&json);
    fclose(file);
    if (ls_json_doc_open(&doc, text, (int64_t)bytes, "written", &err) != LS_OK) abort();
    root = ls_json_root(doc);
    if (ls_config_agree(config, &root, NULL, &err) != LS_OK) abort();
    ls_json_doc_free(doc);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    static ls_sft_options o, before;
    ls_config config;
    ls_error err;
    char *copy = malloc(n_bytes + 1), *line = copy;
    if (copy == NULL) return 0;
    if (n_bytes > 0) memcpy(copy, data, n_bytes);
    copy[n_bytes] = '\0';
    ls_sft_options_init(&o, &config);
    before = o;
    (void)ls_config_parse(&config, copy, (int64_t)n_bytes, "input", &err);
    check(&before, &o, &config);
    for (char *end; line < copy + n_bytes; line = end + 1) {
        end = line + strcspn(line, "\n");
        *end = '\0';
        (void)ls_config_set(&config, line, &err);
    }
    check(&before, &o, &config);
    free(copy);
    return 0;
}
