/* Arbitrary bytes as a tokenizer.json; when it is one, the bytes after its last newline are encoded and decoded. */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ls_tokenizer *tokenizer;
    ls_error err;
    int64_t json_bytes = (int64_t)size, text_bytes;
    if (size > 16384) return 0;
    while (json_bytes > 0 && data[json_bytes - 1] != '\n') json_bytes--;
    text_bytes = (int64_t)size - json_bytes;
    if (text_bytes > 256) text_bytes = 256;
    if (ls_tokenizer_parse(&tokenizer, (const char *)data, json_bytes, "input", &err) != LS_OK) {
        if (tokenizer != NULL || err.text[0] == '\0') abort();
        return 0;
    }
    for (int special = 0; special < 2; special++) {
        int32_t *ids = NULL;
        int64_t n_ids = 0, n = 0;
        char *text = NULL;
        if (ls_tokenizer_encode(tokenizer, (const char *)data + json_bytes, text_bytes, special != 0, &ids, &n_ids,
                                &err) != LS_OK)
            continue;
        for (int64_t i = 0; i < n_ids; i++)
            if (ids[i] < 0 || ids[i] >= ls_tokenizer_size(tokenizer)) abort();
        if (ls_tokenizer_decode(tokenizer, ids, n_ids, special != 0, &text, &n, &err) == LS_OK) {
            if (!ls_utf8_valid((const uint8_t *)text, n)) abort();
            free(text);
        }
        free(ids);
    }
    ls_tokenizer_free(tokenizer);
    return 0;
}
