/* Normalizers; owns the contents and patterns of its steps. */
#include "text/normalize.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/unicode.h"

void ls_norm_step_deinit(ls_norm_step *step) {
    ls_pattern_deinit(&step->pattern);
    ls_charsmap_deinit(&step->charsmap);
    free(step->content);
    memset(step, 0, sizeof *step);
}

static ls_status strip_ends(const ls_norm_step *step, const char *text, int64_t bytes, ls_text *out, bool *at_start,
                            ls_error *err) {
    const uint8_t *data = (const uint8_t *)text;
    int64_t begin = 0, end = bytes;
    int32_t code;
    if (step->left) {
        while (begin < end) {
            const int64_t used = ls_utf8_decode(data + begin, end - begin, &code);
            if (!ls_code_is_space(code)) break;
            begin += used;
            *at_start = false;
        }
    }
    while (step->right && begin < end) {
        int64_t last = end - 1;
        while ((data[last] & 0xC0) == 0x80) last--;
        ls_utf8_decode(data + last, end - last, &code);
        if (!ls_code_is_space(code)) break;
        end = last;
    }
    return ls_text_append(out, text + begin, end - begin, err);
}

/* What SentencePiece's rules of this name take away and what they make a space of. */
static bool is_dropped(int32_t code) {
    return (code >= 0x01 && code <= 0x08) || code == 0x0B || (code >= 0x0E && code <= 0x1F) || code == 0x7F ||
           code == 0x8F || code == 0x9F;
}

static bool is_separator(int32_t code) {
    return code == 0x09 || code == 0x0A || code == 0x0C || code == 0x0D || code == 0x1680 ||
           (code >= 0x200B && code <= 0x200F) || code == 0x2028 || code == 0x2029 || code == 0x2581 || code == 0xFEFF ||
           code == 0xFFFD;
}

static ls_status nmt(const char *text, int64_t bytes, ls_text *out, bool *at_start, ls_error *err) {
    int64_t at = 0;
    while (at < bytes) {
        int32_t code;
        const int64_t used = ls_utf8_decode((const uint8_t *)text + at, bytes - at, &code);
        if (is_separator(code))
            LS_TRY(ls_text_append(out, " ", 1, err));
        else if (!is_dropped(code))
            LS_TRY(ls_text_append(out, text + at, used, err));
        else if (at == 0)
            *at_start = false;
        at += used;
    }
    return LS_OK;
}

static ls_status each_code(ls_norm_kind kind, const char *text, int64_t bytes, ls_text *out, bool *at_start,
                           ls_error *err) {
    int64_t at = 0;
    while (at < bytes) {
        int32_t code;
        const int64_t used = ls_utf8_decode((const uint8_t *)text + at, bytes - at, &code);
        if (kind == LS_NORM_LOWERCASE)
            LS_TRY(ls_code_append_lower(code, out, err));
        else if (!ls_code_is_mark(code))
            LS_TRY(ls_text_append(out, text + at, used, err));
        else if (at == 0)
            *at_start = false;
        at += used;
    }
    return LS_OK;
}

static ls_status run_normal_step(const ls_norm_step *step, const char *text, int64_t bytes, ls_text *out,
                                 bool *at_start, ls_error *err) {
    ls_status status;
    switch (step->kind) {
        case LS_NORM_FORM: return ls_unicode_normalize(text, bytes, step->form, out, err);
        case LS_NORM_PREPEND:
            if (bytes == 0) return LS_OK;
            status = ls_text_append(out, step->content, step->content_bytes, err);
            return status != LS_OK ? status : ls_text_append(out, text, bytes, err);
        case LS_NORM_REPLACE:
            return ls_pattern_replace(&step->pattern, step->content, step->content_bytes, text, bytes, out, err);
        case LS_NORM_NMT: return nmt(text, bytes, out, at_start, err);
        case LS_NORM_STRIP: return strip_ends(step, text, bytes, out, at_start, err);
        case LS_NORM_CHARSMAP: return ls_charsmap_apply(&step->charsmap, text, bytes, out, err);
        case LS_NORM_LOWERCASE:
        case LS_NORM_STRIP_ACCENTS: return each_code(step->kind, text, bytes, out, at_start, err);
    }
    LS_ASSERT(false, "normalizer %d", (int)step->kind);
}

ls_status ls_normalize(const ls_norm_step *steps, int64_t n_steps, const char *text, int64_t bytes, ls_text *out,
                       bool *at_start, ls_error *err) {
    ls_text next = {.bytes_max = ls_text_growth_max(bytes)};
    ls_status status = LS_OK;
    out->bytes = 0;
    out->bytes_max = next.bytes_max;
    LS_TRY_DONE(ls_text_append(out, text, bytes, err));
    for (int64_t i = 0; i < n_steps; i++) {
        ls_text swap;
        next.bytes = 0;
        LS_TRY_DONE(run_normal_step(&steps[i], out->data, out->bytes, &next, at_start, err));
        swap = *out;
        *out = next;
        next = swap;
    }
done:
    ls_text_deinit(&next);
    return status;
}
