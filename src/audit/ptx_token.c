/* Tokens of PTX text: white space, names, numbers; errors with file and line. */
#include "audit/ptx_token.h"

#include <string.h>

ls_status ls_ptx_fail_at(const ls_ptx_reader *r, int64_t line, ls_error *err, const char *sentence, ls_ptx_name name) {
    const int shown = name.bytes > 80 ? 80 : name.bytes;
    if (name.text == NULL) return LS_FAIL(err, LS_ERR_FORMAT, "%s:%lld: %s", r->name, (long long)line, sentence);
    char clean[81];
    for (int i = 0; i < shown; i++) clean[i] = name.text[i] >= ' ' && name.text[i] < 127 ? name.text[i] : '?';
    clean[shown] = 0;
    return LS_FAIL(err, LS_ERR_FORMAT, "%s:%lld: %s: '%s'", r->name, (long long)line, sentence, clean);
}

ls_status ls_ptx_fail(const ls_ptx_reader *r, ls_error *err, const char *sentence) {
    return ls_ptx_fail_at(r, r->line, err, sentence, (ls_ptx_name){NULL, 0});
}

/* Passes over white space and comments; false at the end. A NUL counts as white space: dumps of binaries hold some. */
ls_status ls_ptx_skip_space(ls_ptx_reader *r, ls_error *err) {
    while (r->at < r->bytes) {
        const char c = r->text[r->at];
        if (c == '\n') r->line++;
        if (c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == '\0') {
            r->at++;
        } else if (c == '/' && r->at + 1 < r->bytes && r->text[r->at + 1] == '/') {
            while (r->at < r->bytes && r->text[r->at] != '\n') r->at++;
        } else if (c == '/' && r->at + 1 < r->bytes && r->text[r->at + 1] == '*') {
            const int64_t began = r->line;
            for (r->at += 2;; r->at++) {
                if (r->at + 1 >= r->bytes)
                    return ls_ptx_fail_at(r, began, err, "a comment does not end", (ls_ptx_name){NULL, 0});
                if (r->text[r->at] == '\n') r->line++;
                if (r->text[r->at] == '*' && r->text[r->at + 1] == '/') break;
            }
            r->at += 2;
        } else {
            return LS_OK;
        }
    }
    return LS_OK;
}

/* The next character that counts, 0 at the end. */
ls_status ls_ptx_peek(ls_ptx_reader *r, char *c, ls_error *err) {
    LS_TRY(ls_ptx_skip_space(r, err));
    *c = r->at < r->bytes ? r->text[r->at] : '\0';
    return LS_OK;
}

ls_status ls_ptx_expect(ls_ptx_reader *r, char wanted, ls_error *err) {
    char c, sentence[64] = "a 'X' is missing";
    LS_TRY(ls_ptx_peek(r, &c, err));
    if (c != wanted) {
        sentence[3] = wanted;
        return ls_ptx_fail_at(r, r->line, err, sentence, (ls_ptx_name){r->text + r->at, r->at < r->bytes ? 1 : 0});
    }
    r->at++;
    return LS_OK;
}

/* Takes the character if it comes next. */
ls_status ls_ptx_take(ls_ptx_reader *r, char wanted, bool *taken, ls_error *err) {
    char c;
    LS_TRY(ls_ptx_peek(r, &c, err));
    *taken = c == wanted && c != '\0';
    if (*taken) r->at++;
    return LS_OK;
}

/* A name: letters, digits, _ $ % . and ::, which some opcodes hold. */
ls_status ls_ptx_read_name(ls_ptx_reader *r, ls_ptx_name *out, ls_error *err) {
    LS_TRY(ls_ptx_skip_space(r, err));
    const int64_t begin = r->at;
    if (r->at == r->bytes || !ls_ptx_is_letter(r->text[r->at]))
        return ls_ptx_fail_at(r, r->line, err, "a name is missing",
                              (ls_ptx_name){r->text + r->at, r->at < r->bytes ? 1 : 0});
    while (r->at < r->bytes) {
        const char c = r->text[r->at];
        if (ls_ptx_is_letter(c) || ls_ptx_is_digit(c))
            r->at++;
        else if (c == ':' && r->at + 2 < r->bytes && r->text[r->at + 1] == ':' &&
                 (ls_ptx_is_letter(r->text[r->at + 2]) || ls_ptx_is_digit(r->text[r->at + 2])))
            r->at += 2;
        else
            break;
        if (r->at - begin > LS_PTX_NAME_MAX) return ls_ptx_fail(r, err, "a name is longer than 65536 bytes");
    }
    *out = (ls_ptx_name){r->text + begin, (int32_t)(r->at - begin)};
    return LS_OK;
}

/* An integer in base 2, 8, 10 or 16, with U behind it perhaps; a float (0f.., 0d.., 1.5) is kind LS_PTX_FLOAT. */
ls_status ls_ptx_read_number(ls_ptx_reader *r, ls_ptx_operand *out, ls_error *err) {
    bool negative = false;
    uint64_t value = 0, base = 10;
    LS_TRY(ls_ptx_take(r, '-', &negative, err));
    LS_TRY(ls_ptx_skip_space(r, err));
    if (r->at == r->bytes || !ls_ptx_is_digit(r->text[r->at])) return ls_ptx_fail(r, err, "a number is missing");
    out->kind = LS_PTX_INT;
    if (r->text[r->at] == '0' && r->at + 1 < r->bytes) {
        const char c = (char)(r->text[r->at + 1] | 32);
        if (c == 'x' || c == 'b')
            base = c == 'x' ? 16 : 2, r->at += 2;
        else if (c == 'f' || c == 'd')
            out->kind = LS_PTX_FLOAT, base = 16, r->at += 2;
        else if (ls_ptx_is_digit(r->text[r->at + 1]))
            base = 8, r->at++;
    }
    for (int64_t n = 0;; n++, r->at++) {
        const char c = r->at < r->bytes ? r->text[r->at] : '\0';
        const uint64_t digit = ls_ptx_is_digit(c)                   ? (uint64_t)(c - '0')
                               : (c | 32) >= 'a' && (c | 32) <= 'f' ? (uint64_t)((c | 32) - 'a') + 10
                                                                    : 99;
        if (digit >= base) {
            if (n == 0) return ls_ptx_fail(r, err, "a number has no digits");
            break;
        }
        if (out->kind == LS_PTX_INT &&
            (__builtin_mul_overflow(value, base, &value) || __builtin_add_overflow(value, digit, &value)))
            return ls_ptx_fail(r, err, "a number passes 64 bits");
    }
    if (r->at < r->bytes && r->text[r->at] == '.' && base == 10) {
        out->kind = LS_PTX_FLOAT;
        r->at++;
        while (r->at < r->bytes && (ls_ptx_is_digit(r->text[r->at]) || (r->text[r->at] | 32) == 'e')) r->at++;
    }
    if (r->at < r->bytes && r->text[r->at] == 'U') r->at++;
    if (r->at < r->bytes && ls_ptx_is_letter(r->text[r->at]) && r->text[r->at] != '.')
        return ls_ptx_fail(r, err, "a number runs into a name");
    out->value = (int64_t)(negative ? 0 - value : value);
    return LS_OK;
}
