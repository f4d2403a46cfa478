/* Texts of templates; owns nothing. */
#define _GNU_SOURCE
#include "template/template_string.h"

#include <string.h>

#include "base/utf8.h"
#include "text/token_text.h"
#include "text/unicode.h"

bool ls_tpl_is_space(int32_t code) { return ls_code_is_space(code) || (code >= 0x1C && code <= 0x1F); }

static int64_t code_at(const ls_tpl_value *v, int64_t at, int32_t *code) {
    return ls_utf8_decode((const uint8_t *)v->text + at, v->bytes - at, code);
}

/* The beginning of the code point that ends at `end`. */
static int64_t code_before(const ls_tpl_value *v, int64_t end) {
    do {
        end--;
    } while (end > 0 && ((unsigned char)v->text[end] & 0xC0) == 0x80);
    return end;
}

static bool is_stripped(const ls_tpl_value *v, int64_t at, const ls_tpl_value *chars) {
    int32_t code, other;
    code_at(v, at, &code);
    if (chars == NULL) return ls_tpl_is_space(code);
    for (int64_t i = 0; i < chars->bytes;) {
        i += code_at(chars, i, &other);
        if (other == code) return true;
    }
    return false;
}

ls_tpl_value ls_tpl_strip(const ls_tpl_value *v, const ls_tpl_value *chars, int ends) {
    int64_t begin = 0, end = v->bytes;
    int32_t code;
    while ((ends & LS_TPL_LEFT) != 0 && begin < end && is_stripped(v, begin, chars)) begin += code_at(v, begin, &code);
    while ((ends & LS_TPL_RIGHT) != 0 && end > begin && is_stripped(v, code_before(v, end), chars))
        end = code_before(v, end);
    return ls_tpl_text_of(v->text + begin, end - begin);
}

int64_t ls_tpl_offset(const ls_tpl_value *v, int64_t codes) {
    int64_t at = 0;
    int32_t code;
    for (int64_t i = 0; i < codes && at < v->bytes; i++) at += code_at(v, at, &code);
    return at;
}

static ls_status append_upper(ls_tpl_run *run, ls_tpl_text *out, int32_t code) {
    if (!ls_code_upper_is_simple(code))
        return ls_tpl_fail(run, LS_ERR_UNSUPPORTED, "the upper case of U+%04X is not supported", (unsigned)code);
    return ls_tpl_append_code(run, out, ls_code_to_upper(code));
}

static ls_status append_lower(ls_tpl_run *run, ls_tpl_text *out, int32_t code) {
    if (code == 0x130 || code == 0x3A3)
        return ls_tpl_fail(run, LS_ERR_UNSUPPORTED, "the lower case of U+%04X is not supported", (unsigned)code);
    return ls_tpl_append_code(run, out, ls_code_to_lower(code));
}

static bool begins_word(ls_tpl_case to, int64_t at, int32_t before) {
    if (to == LS_TPL_TO_UPPER) return true;
    if (to == LS_TPL_TO_LOWER) return false;
    if (at == 0) return true;
    if (to == LS_TPL_TO_TITLE) return !ls_code_is_letter(before);
    return to == LS_TPL_TO_WORD_CASE && (ls_tpl_is_space(before) || before == '-' || before == '(' || before == '{' ||
                                         before == '[' || before == '<');
}

ls_status ls_tpl_change_case(ls_tpl_run *run, const ls_tpl_value *v, ls_tpl_case to, ls_tpl_value *out) {
    ls_tpl_text text = {0};
    int32_t code, before = 0;
    for (int64_t at = 0; at < v->bytes;) {
        const bool upper = begins_word(to, at, before);
        at += code_at(v, at, &code);
        LS_TRY(upper ? append_upper(run, &text, code) : append_lower(run, &text, code));
        before = code;
    }
    *out = ls_tpl_built(&text);
    return LS_OK;
}

/* Between all characters, and at both ends. */
static ls_status replace_nothing(ls_tpl_run *run, const ls_tpl_value *v, const ls_tpl_value *to, int64_t count,
                                 ls_tpl_value *out) {
    ls_tpl_text text = {0};
    int32_t code;
    for (int64_t at = 0; at <= v->bytes;) {
        const int64_t used = at < v->bytes ? code_at(v, at, &code) : 0;
        if (count != 0) LS_TRY(ls_tpl_append(run, &text, to->text, to->bytes));
        count -= count > 0;
        LS_TRY(ls_tpl_append(run, &text, v->text + at, used));
        at += used > 0 ? used : 1;
    }
    *out = ls_tpl_built(&text);
    return LS_OK;
}

ls_status ls_tpl_replace(ls_tpl_run *run, const ls_tpl_value *v, const ls_tpl_value *from, const ls_tpl_value *to,
                         int64_t count, ls_tpl_value *out) {
    ls_tpl_text text = {0};
    int64_t at = 0;
    if (from->bytes == 0) return replace_nothing(run, v, to, count, out);
    while (count != 0) {
        const char *found = memmem(v->text + at, (size_t)(v->bytes - at), from->text, (size_t)from->bytes);
        if (found == NULL) break;
        LS_TRY(ls_tpl_step(run, 1));
        LS_TRY(ls_tpl_append(run, &text, v->text + at, found - v->text - at));
        LS_TRY(ls_tpl_append(run, &text, to->text, to->bytes));
        at = found - v->text + from->bytes;
        count -= count > 0;
    }
    LS_TRY(ls_tpl_append(run, &text, v->text + at, v->bytes - at));
    *out = ls_tpl_built(&text);
    return LS_OK;
}

static bool ends_line(int32_t code) {
    return (code >= 0xA && code <= 0xD) || (code >= 0x1C && code <= 0x1E) || code == 0x85 || code == 0x2028 ||
           code == 0x2029;
}

ls_status ls_tpl_split_lines(ls_tpl_run *run, const ls_tpl_value *v, ls_tpl_value *out) {
    int64_t begin = 0;
    LS_TRY(ls_tpl_make_list(run, LS_TPL_FORM_LIST, out));
    for (int64_t at = 0; at < v->bytes;) {
        int32_t code;
        const int64_t used = code_at(v, at, &code);
        if (ends_line(code)) {
            LS_TRY(ls_tpl_push(run, out, ls_tpl_text_of(v->text + begin, at - begin)));
            begin = at + used;
            if (code == '\r' && begin < v->bytes && v->text[begin] == '\n') begin++;
            at = begin;
        } else {
            at += used;
        }
    }
    return begin < v->bytes ? ls_tpl_push(run, out, ls_tpl_text_of(v->text + begin, v->bytes - begin)) : LS_OK;
}

static void reverse(ls_tpl_value *list) {
    ls_tpl_list *l = list->list;
    for (int64_t i = 0; i < l->n / 2; i++) {
        const ls_tpl_value kept = l->items[i];
        l->items[i] = l->items[l->n - 1 - i];
        l->items[l->n - 1 - i] = kept;
    }
}

/* Where the separator is found last in the first `end` bytes, or -1. */
static int64_t find_last(const ls_tpl_value *v, int64_t end, const ls_tpl_value *separator) {
    for (int64_t at = end - separator->bytes; at >= 0; at--)
        if (memcmp(v->text + at, separator->text, (size_t)separator->bytes) == 0) return at;
    return -1;
}

static ls_status split_right(ls_tpl_run *run, const ls_tpl_value *v, const ls_tpl_value *separator, int64_t count,
                             ls_tpl_value *out) {
    int64_t end = v->bytes, at;
    while (count != 0 && (at = find_last(v, end, separator)) >= 0) {
        LS_TRY(ls_tpl_push(run, out, ls_tpl_text_of(v->text + at + separator->bytes, end - at - separator->bytes)));
        end = at;
        count -= count > 0;
    }
    LS_TRY(ls_tpl_push(run, out, ls_tpl_text_of(v->text, end)));
    reverse(out);
    return LS_OK;
}

static ls_status split_spaces(ls_tpl_run *run, const ls_tpl_value *v, int64_t count, ls_tpl_value *out) {
    ls_tpl_value rest = ls_tpl_strip(v, NULL, LS_TPL_LEFT);
    while (rest.bytes > 0) {
        int64_t end = 0, used;
        int32_t code;
        if (count == 0) return ls_tpl_push(run, out, rest);
        for (; end < rest.bytes; end += used) {
            used = code_at(&rest, end, &code);
            if (ls_tpl_is_space(code)) break;
        }
        LS_TRY(ls_tpl_push(run, out, ls_tpl_text_of(rest.text, end)));
        rest = ls_tpl_text_of(rest.text + end, rest.bytes - end);
        rest = ls_tpl_strip(&rest, NULL, LS_TPL_LEFT);
        count -= count > 0;
    }
    return LS_OK;
}

ls_status ls_tpl_split(ls_tpl_run *run, const ls_tpl_value *v, const ls_tpl_value *separator, int64_t count,
                       bool from_right, ls_tpl_value *out) {
    int64_t at = 0;
    LS_TRY(ls_tpl_make_list(run, LS_TPL_FORM_LIST, out));
    if (separator == NULL && from_right && count >= 0)
        return ls_tpl_fail(run, LS_ERR_UNSUPPORTED, "rsplit at white space a number of times is not supported");
    if (separator == NULL) return split_spaces(run, v, count, out);
    if (separator->bytes == 0) return ls_tpl_fail(run, LS_ERR_ARG, "split: the separator is empty");
    if (from_right) return split_right(run, v, separator, count, out);
    while (count != 0) {
        const char *found = memmem(v->text + at, (size_t)(v->bytes - at), separator->text, (size_t)separator->bytes);
        if (found == NULL) break;
        LS_TRY(ls_tpl_push(run, out, ls_tpl_text_of(v->text + at, found - v->text - at)));
        at = found - v->text + separator->bytes;
        count -= count > 0;
    }
    return ls_tpl_push(run, out, ls_tpl_text_of(v->text + at, v->bytes - at));
}
