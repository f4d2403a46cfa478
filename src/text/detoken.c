/* Decoders; owns the patterns and contents of its steps. Unlike words, token texts may be empty and still count. */
#include "text/detoken.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/pretoken.h"

static const char replacement[] = "\xEF\xBF\xBD";

void ls_dec_step_deinit(ls_dec_step *step) {
    ls_pattern_deinit(&step->pattern);
    free(step->content);
    memset(step, 0, sizeof *step);
}

ls_status ls_byte_level_append(ls_text *raw, const char *text, int64_t bytes, ls_error *err) {
    const int64_t before = raw->bytes;
    for (int64_t k = 0; k < bytes;) {
        int32_t code, byte;
        k += ls_utf8_decode((const uint8_t *)text + k, bytes - k, &code);
        byte = ls_code_to_byte(code);
        if (byte < 0) { /* not spelled in the alphabet: an added token, taken as it is */
            raw->bytes = before;
            return ls_text_append(raw, text, bytes, err);
        }
        LS_TRY(ls_text_append(raw, &(char){(char)byte}, 1, err));
    }
    return LS_OK;
}

static ls_status byte_level(const ls_pieces *in, ls_pieces *out, ls_error *err) {
    ls_text raw = {0};
    int64_t at = 0;
    ls_status status = LS_OK;
    for (int64_t i = 0; i < in->n; i++)
        LS_TRY_DONE(ls_byte_level_append(&raw, in->text.data + in->items[i].begin, in->items[i].bytes, err));
    while (at < raw.bytes) {
        int32_t code;
        const int64_t used = ls_utf8_decode((const uint8_t *)raw.data + at, raw.bytes - at, &code);
        if (code < 0)
            LS_TRY_DONE(ls_text_append(&out->text, replacement, 3, err));
        else
            LS_TRY_DONE(ls_text_append(&out->text, raw.data + at, used, err));
        at += used;
    }
    status = ls_pieces_close(out, 0, false, err);
done:
    ls_text_deinit(&raw);
    return status;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* As in the reference a plus sign may stand for the first digit. */
int ls_token_byte(const char *text, int64_t bytes) {
    int high, low;
    if (bytes != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') return -1;
    high = text[3] == '+' ? 0 : hex_digit(text[3]);
    low = hex_digit(text[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

static ls_status flush_bytes(ls_text *run, ls_pieces *out, ls_error *err) {
    if (run->bytes == 0) return LS_OK;
    if (ls_utf8_valid((const uint8_t *)run->data, run->bytes)) {
        LS_TRY(ls_pieces_append(out, run->data, run->bytes, false, err));
    } else {
        for (int64_t i = 0; i < run->bytes; i++) LS_TRY(ls_pieces_append(out, replacement, 3, false, err));
    }
    run->bytes = 0;
    return LS_OK;
}

static ls_status byte_fallback(const ls_pieces *in, ls_pieces *out, ls_error *err) {
    ls_text run = {0};
    ls_status status = LS_OK;
    for (int64_t i = 0; i < in->n; i++) {
        const char *text = in->text.data + in->items[i].begin;
        const int byte = ls_token_byte(text, in->items[i].bytes);
        if (byte >= 0) {
            LS_TRY_DONE(ls_text_append(&run, &(char){(char)byte}, 1, err));
        } else {
            LS_TRY_DONE(flush_bytes(&run, out, err));
            LS_TRY_DONE(ls_pieces_append(out, text, in->items[i].bytes, false, err));
        }
    }
    status = flush_bytes(&run, out, err);
done:
    ls_text_deinit(&run);
    return status;
}

static ls_status strip_piece(const ls_dec_step *step, const char *text, int64_t bytes, ls_pieces *out, ls_error *err) {
    const int64_t unit = step->pattern.bytes;
    int64_t begin = 0, end = bytes;
    for (int64_t i = 0; i < step->start; i++) {
        if (end - begin < unit || memcmp(text + begin, step->pattern.text, (size_t)unit) != 0) break;
        begin += unit;
    }
    for (int64_t i = 0; i < step->stop; i++) {
        if (end - begin < unit || memcmp(text + end - unit, step->pattern.text, (size_t)unit) != 0) break;
        end -= unit;
    }
    return ls_pieces_append(out, text + begin, end - begin, false, err);
}

static ls_status run_detoken_step(const ls_dec_step *step, const ls_pieces *in, ls_pieces *out, ls_error *err) {
    if (step->kind == LS_DEC_BYTE_LEVEL) return byte_level(in, out, err);
    if (step->kind == LS_DEC_BYTE_FALLBACK) return byte_fallback(in, out, err);
    if (step->kind == LS_DEC_FUSE) return ls_pieces_append(out, in->text.data, in->text.bytes, false, err);
    for (int64_t i = 0; i < in->n; i++) {
        const char *text = in->text.data + in->items[i].begin, *content = step->content;
        const int64_t bytes = in->items[i].bytes, begin = out->text.bytes;
        int64_t content_bytes = step->content_bytes;
        if (step->kind == LS_DEC_STRIP) {
            LS_TRY(strip_piece(step, text, bytes, out, err));
            continue;
        }
        if (step->kind == LS_DEC_METASPACE) {
            content = " ";
            content_bytes = i == 0 && step->drop_first ? 0 : 1;
        } else if (step->kind == LS_DEC_BPE) {
            content = " ";
            content_bytes = i == in->n - 1 ? 0 : 1;
        }
        LS_TRY(ls_pattern_replace(&step->pattern, content, content_bytes, text, bytes, &out->text, err));
        LS_TRY(ls_pieces_close(out, begin, false, err));
    }
    return LS_OK;
}

ls_status ls_detokenize(const ls_dec_step *steps, int64_t n_steps, ls_pieces *tokens, ls_error *err) {
    ls_pieces next = {.text.bytes_max = ls_text_growth_max(tokens->text.bytes)};
    ls_status status = LS_OK;
    tokens->text.bytes_max = next.text.bytes_max;
    for (int64_t i = 0; i < n_steps; i++) {
        ls_pieces swap;
        ls_pieces_clear(&next);
        LS_TRY_DONE(run_detoken_step(&steps[i], tokens, &next, err));
        swap = *tokens;
        *tokens = next;
        next = swap;
    }
done:
    ls_pieces_deinit(&next);
    return status;
}
