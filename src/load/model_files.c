/* The table of names. */
#include "load/model_files.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/durable.h"
#include "base/file.h"
#include "load/adapter_chain.h"

#define PATH_MAX_BYTES 4096

const char *const ls_model_files[LS_MODEL_FILES] = {
    "config.json",     "generation_config.json",  "tokenizer.json",    "tokenizer_config.json",
    "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt",      "chat_template.jinja"};

ls_status ls_model_files_copy(const char *to, const char *from, int first, ls_error *err) {
    char path[PATH_MAX_BYTES], *data = NULL, *home = NULL;
    int64_t bytes;
    ls_status status;
    LS_TRY_DONE(ls_adapter_home(&home, from, err));
    for (int i = first; i < LS_MODEL_FILES; i++) {
        LS_TRY_DONE(ls_path_join(path, sizeof path, home, ls_model_files[i], err));
        if (!ls_file_exists(path)) continue;
        free(data);
        data = NULL;
        LS_TRY_DONE(ls_file_read(&data, &bytes, path, LS_MODEL_FILE_BYTES_MAX, err));
        LS_TRY_DONE(ls_path_join(path, sizeof path, to, ls_model_files[i], err));
        LS_TRY_DONE(ls_durable_file(path, data, bytes, err));
    }
done:
    free(data);
    free(home);
    return status;
}
