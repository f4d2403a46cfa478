/* Character data and normalization forms from utf8proc, corrected to the reference; the only file that includes
 * utf8proc. Owns nothing between calls. */
#include "text/unicode.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/unicode_delta.h"

#define DECOMPOSED_MAX 32 /* the longest decomposition has 18 code points */

static bool in_ranges(const ls_code_range *ranges, int64_t n, int32_t code) {
    int64_t low = 0, high = n;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (code > ranges[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return low < n && code >= ranges[low].first;
}

bool ls_code_is_space(int32_t code) {
    return (code >= 0x9 && code <= 0xD) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
           (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
           code == 0x3000;
}

bool ls_code_is_numeric(int32_t code) {
    const utf8proc_category_t category = utf8proc_category(code);
    return (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO) ||
           in_ranges(ls_numeric_more, ls_numeric_more_n, code);
}

bool ls_code_is_punct(int32_t code) {
    const utf8proc_category_t category = utf8proc_category(code);
    if (in_ranges(ls_punct_more, ls_punct_more_n, code)) return true;
    return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO &&
           !in_ranges(ls_punct_less, ls_punct_less_n, code);
}

bool ls_code_is_mark(int32_t code) {
    const utf8proc_category_t category = utf8proc_category(code);
    if (in_ranges(ls_mark_more, ls_mark_more_n, code)) return true;
    return category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME &&
           !in_ranges(ls_mark_less, ls_mark_less_n, code);
}

bool ls_code_is_break(int32_t before, int32_t code, int32_t *state) {
    utf8proc_int32_t kept = *state;
    const bool breaks = utf8proc_grapheme_break_stateful(before, code, &kept);
    *state = kept;
    return breaks;
}

bool ls_code_is_printable(int32_t code) {
    switch (utf8proc_category(code)) {
        case UTF8PROC_CATEGORY_CN:
        case UTF8PROC_CATEGORY_CC:
        case UTF8PROC_CATEGORY_CF:
        case UTF8PROC_CATEGORY_CS:
        case UTF8PROC_CATEGORY_CO:
        case UTF8PROC_CATEGORY_ZL:
        case UTF8PROC_CATEGORY_ZP: return false;
        case UTF8PROC_CATEGORY_ZS: return code == ' ';
        default: return true;
    }
}

int32_t ls_code_to_upper(int32_t code) { return utf8proc_toupper(code); }

int32_t ls_code_to_lower(int32_t code) { return utf8proc_tolower(code); }

/* SpecialCasing.txt: what becomes several characters, as ranges that hold all of it. */
bool ls_code_upper_is_simple(int32_t code) {
    static const ls_code_range several[] = {{0xDF, 0xDF},     {0x149, 0x149},  {0x1F0, 0x1F0},   {0x390, 0x390},
                                            {0x3B0, 0x3B0},   {0x587, 0x587},  {0x1E96, 0x1E9A}, {0x1F50, 0x1F56},
                                            {0x1F80, 0x1FFC}, {0xFB00, 0xFB17}};
    return !in_ranges(several, (int64_t)(sizeof several / sizeof several[0]), code);
}

bool ls_code_is_letter(int32_t code) {
    const utf8proc_category_t category = utf8proc_category(code);
    return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool ls_code_is_upper(int32_t code) { return utf8proc_category(code) == UTF8PROC_CATEGORY_LU; }

bool ls_code_is_lower(int32_t code) { return utf8proc_category(code) == UTF8PROC_CATEGORY_LL; }

bool ls_code_is_digit(int32_t code) { return utf8proc_category(code) == UTF8PROC_CATEGORY_ND; }

ls_status ls_code_append_lower(int32_t code, ls_text *out, ls_error *err) {
    if (code == 0x130) return ls_text_append(out, "i\xCC\x87", 3, err); /* the one mapping to two code points */
    for (int64_t i = 0; i < ls_lower_more_n; i++)
        if (code >= ls_lower_more[i].first && code <= ls_lower_more[i].last)
            return ls_text_append_code(out, code + ls_lower_more[i].delta, err);
    return ls_text_append_code(out, utf8proc_tolower(code), err);
}

static int32_t combining_class(int32_t code) {
    if (code < 0x300 || in_ranges(ls_norm_inert, ls_norm_inert_n, code)) return 0;
    return utf8proc_get_property(code)->combining_class;
}

typedef struct marked {
    int32_t code, combining;
    int64_t order;
} marked;

static int compare_marks(const void *a, const void *b) {
    const marked *x = a, *y = b;
    if (x->combining != y->combining) return x->combining < y->combining ? -1 : 1;
    return x->order < y->order ? -1 : x->order > y->order;
}

/* Puts each run of marks into canonical order. A sort of our own, since utf8proc's takes quadratic time. */
static ls_status order_marks(int32_t *codes, int64_t n, ls_error *err) {
    marked *run = NULL;
    int64_t cap = 0;
    ls_status status = LS_OK;
    for (int64_t i = 0; i < n;) {
        int64_t end = i;
        bool sorted = true;
        int32_t previous = 0;
        for (; end < n; end++) {
            const int32_t combining = combining_class(codes[end]);
            if (combining == 0) break;
            sorted = sorted && combining >= previous;
            previous = combining;
        }
        if (!sorted) {
            LS_TRY_DONE(ls_array_grow((void **)&run, &cap, end - i, sizeof *run, "run of marks", err));
            for (int64_t k = i; k < end; k++)
                run[k - i] = (marked){.code = codes[k], .combining = combining_class(codes[k]), .order = k};
            qsort(run, (size_t)(end - i), sizeof *run, compare_marks);
            for (int64_t k = i; k < end; k++) codes[k] = run[k - i].code;
        }
        i = end + 1;
    }
done:
    free(run);
    return status;
}

ls_status ls_unicode_normalize(const char *text, int64_t bytes, int form, ls_text *out, ls_error *err) {
    const utf8proc_option_t flags =
        UTF8PROC_DECOMPOSE | ((form & LS_FORM_COMPAT) != 0 ? UTF8PROC_COMPAT : (utf8proc_option_t)0);
    int32_t *codes = NULL;
    int64_t n = 0, cap = 0, at = 0;
    ls_status status = LS_OK;
    while (at < bytes && (uint8_t)text[at] < 0x80) at++;
    if (at == bytes) return ls_text_append(out, text, bytes, err); /* ASCII is its own every form */
    at = 0;
    while (at < bytes) {
        utf8proc_int32_t parts[DECOMPOSED_MAX];
        int32_t code;
        utf8proc_ssize_t n_parts = 1;
        int boundary = 0;
        at += ls_utf8_decode((const uint8_t *)text + at, bytes - at, &code);
        parts[0] = code;
        if (code >= 0x80 && !in_ranges(ls_norm_inert, ls_norm_inert_n, code))
            n_parts = utf8proc_decompose_char(code, parts, DECOMPOSED_MAX, flags, &boundary);
        LS_ASSERT(n_parts >= 1 && n_parts <= DECOMPOSED_MAX, "U+%04X: %lld", (unsigned)code, (long long)n_parts);
        LS_TRY_DONE(ls_array_grow((void **)&codes, &cap, n + n_parts, sizeof *codes, "code points", err));
        memcpy(codes + n, parts, (size_t)n_parts * sizeof *codes);
        n += n_parts;
    }
    LS_TRY_DONE(order_marks(codes, n, err));
    for (int64_t i = 0; i < n;) {
        int64_t end = i, length;
        /* An inert code point composes with nothing, so it parts the text. */
        while (end < n && !(codes[end] >= 0x300 && in_ranges(ls_norm_inert, ls_norm_inert_n, codes[end]))) end++;
        length = end - i;
        if ((form & LS_FORM_COMPOSE) != 0 && length > 1) {
            length = utf8proc_normalize_utf32(codes + i, length, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
            LS_ASSERT(length >= 0, "%lld", (long long)length);
        }
        for (int64_t k = i; k < i + length; k++) LS_TRY_DONE(ls_text_append_code(out, codes[k], err));
        if (end < n) LS_TRY_DONE(ls_text_append_code(out, codes[end], err));
        i = end + 1;
    }
done:
    free(codes);
    return status;
}
