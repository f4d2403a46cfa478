/* Growable text and pieces; owns the buffers behind them. */
#include "text/token_text.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

ls_status ls_text_append(ls_text *text, const char *data, int64_t bytes, ls_error *err) {
    int64_t need;
    ls_status status;
    if (!ls_add_i64(text->bytes, bytes, &need))
        return LS_FAIL(err, LS_ERR_NOMEM, "text of %lld bytes", (long long)bytes);
    if (text->bytes_max > 0 && need > text->bytes_max)
        return LS_FAIL(err, LS_ERR_CAPACITY, "the tokenizer's rules grow the text past %lld bytes",
                       (long long)text->bytes_max);
    if (bytes == 0) return LS_OK;
    if ((status = ls_array_grow((void **)&text->data, &text->cap, need, 1, "text", err)) != LS_OK) return status;
    memcpy(text->data + text->bytes, data, (size_t)bytes);
    text->bytes = need;
    return LS_OK;
}

ls_status ls_text_append_code(ls_text *text, int32_t code, ls_error *err) {
    uint8_t encoded[4];
    const int64_t n = ls_utf8_encode(code, encoded);
    return ls_text_append(text, (const char *)encoded, n, err);
}

void ls_text_deinit(ls_text *text) {
    free(text->data);
    memset(text, 0, sizeof *text);
}

ls_status ls_pieces_append(ls_pieces *pieces, const char *data, int64_t bytes, bool at_start, ls_error *err) {
    const int64_t begin = pieces->text.bytes;
    const ls_status status = ls_text_append(&pieces->text, data, bytes, err);
    return status != LS_OK ? status : ls_pieces_close(pieces, begin, at_start, err);
}

ls_status ls_pieces_close(ls_pieces *pieces, int64_t begin, bool at_start, ls_error *err) {
    const int64_t bytes = pieces->text.bytes - begin;
    ls_status status;
    status = ls_array_grow((void **)&pieces->items, &pieces->cap, pieces->n + 1, sizeof *pieces->items, "pieces", err);
    if (status != LS_OK) return status;
    pieces->items[pieces->n++] = (ls_piece){.begin = begin, .bytes = bytes, .at_start = at_start};
    return LS_OK;
}

void ls_pieces_clear(ls_pieces *pieces) {
    pieces->text.bytes = 0;
    pieces->n = 0;
}

void ls_pieces_deinit(ls_pieces *pieces) {
    ls_text_deinit(&pieces->text);
    free(pieces->items);
    memset(pieces, 0, sizeof *pieces);
}

int64_t ls_text_growth_max(int64_t bytes) {
    int64_t grown;
    return ls_mul_i64(bytes, 64, &grown) && ls_add_i64(grown, 1 << 16, &grown) ? grown : INT64_MAX;
}
