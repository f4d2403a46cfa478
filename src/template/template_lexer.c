/* Tokens of templates. Owns nothing: memory is the arena's. */
#include "template/template_lexer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/unicode.h"

enum { NESTING_MAX = 256, NUMBER_BYTES_MAX = 64 };

typedef struct lexer {
    ls_tpl_run *run;
    const char *s; /* normalized source */
    int64_t n, at;
    bool line_starting; /* the last token ended with a newline, or there was none */
    ls_tpl_token *tokens;
    int64_t n_tokens, cap;
    char open[NESTING_MAX]; /* brackets that wait for their partners */
    int32_t n_open;
} lexer;

static ls_status add_token_of(lexer *l, ls_tpl_token token) {
    LS_TRY(ls_tpl_grow(l->run, (void **)&l->tokens, &l->cap, l->n_tokens + 1, sizeof *l->tokens));
    l->tokens[l->n_tokens++] = token;
    return LS_OK;
}

static bool is_here(const lexer *l, int64_t at, const char *what) {
    const int64_t n = (int64_t)strlen(what);
    return at + n <= l->n && memcmp(l->s + at, what, (size_t)n) == 0;
}

/* Moves on, counting lines. */
static void move_to(lexer *l, int64_t at) {
    for (; l->at < at; l->at++) l->run->line += l->s[l->at] == '\n';
    l->line_starting = at > 0 && l->s[at - 1] == '\n';
}

/* Bytes of a white space character at `at` as Python's regular expressions see it, or 0. */
static int64_t space_at(const char *s, int64_t n, int64_t at) {
    int32_t code;
    int64_t used;
    if (at >= n) return 0;
    used = ls_utf8_decode((const uint8_t *)s + at, n - at, &code);
    return code >= 0 && (ls_code_is_space(code) || (code >= 0x1C && code <= 0x1F)) ? used : 0;
}

static int64_t skip_spaces(const lexer *l, int64_t at) {
    for (int64_t used; (used = space_at(l->s, l->n, at)) > 0;) at += used;
    return at;
}

/* The end of [begin, end) without white space at its end. */
static int64_t strip_end(const lexer *l, int64_t begin, int64_t end) {
    int64_t kept = begin;
    for (int64_t at = begin; at < end;) {
        const int64_t space = space_at(l->s, end, at);
        int32_t code;
        if (space > 0) {
            at += space;
            continue;
        }
        at += ls_utf8_decode((const uint8_t *)l->s + at, end - at, &code);
        kept = at;
    }
    return kept;
}

/* Text in front of a tag, as the tag's first sign and lstrip_blocks leave it. */
static int64_t text_end(const lexer *l, int64_t begin, int64_t end, char sign, bool is_print) {
    int64_t line = end, at;
    if (sign == '-') return strip_end(l, begin, end);
    if (sign == '+' || is_print) return end;
    while (line > begin && l->s[line - 1] != '\n') line--;
    if (line == begin && !l->line_starting) return end;
    for (at = line; at < end;) {
        const int64_t used = space_at(l->s, end, at);
        if (used == 0) return end;
        at += used;
    }
    return line;
}

static ls_status add_text_token(lexer *l, int64_t begin, int64_t end) {
    if (end <= begin) return LS_OK;
    return add_token_of(
        l, (ls_tpl_token){.kind = LS_TPL_DATA, .line = l->run->line, .text = l->s + begin, .bytes = end - begin});
}

/* Where a tag's end ("%}" or "#}") at `at` leads: its sign, what trim_blocks takes. -1: it is none. */
static int64_t tag_end(const lexer *l, int64_t at, const char *end) {
    const char sign = at < l->n ? l->s[at] : '\0';
    if (sign == '-' && is_here(l, at + 1, end)) return skip_spaces(l, at + 3);
    if (sign == '+' && is_here(l, at + 1, end)) return at + 3;
    if (!is_here(l, at, end)) return -1;
    return at + 2 < l->n && l->s[at + 2] == '\n' ? at + 3 : at + 2;
}

/* The sign behind "{%" and such. */
static char sign_at(const lexer *l, int64_t at) {
    return at < l->n && (l->s[at] == '-' || l->s[at] == '+') ? l->s[at] : '\0';
}

static bool is_word(char c) {
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c & 0x80) != 0;
}

/* Where text begins behind "{% raw %}" at `at`, or -1. */
static int64_t raw_begin(const lexer *l, int64_t at) {
    int64_t i = at + 2;
    if (!is_here(l, at, "{%")) return -1;
    if (sign_at(l, i) != '\0') i++;
    i = skip_spaces(l, i);
    if (!is_here(l, i, "raw")) return -1;
    i = skip_spaces(l, i + 3);
    if (is_here(l, i, "-%}")) return skip_spaces(l, i + 3);
    return is_here(l, i, "%}") ? i + 2 : -1;
}

static ls_status lex_raw(lexer *l, int64_t begin) {
    move_to(l, begin);
    for (int64_t i = begin; i < l->n; i++) {
        int64_t at = i + 2, end;
        const char sign = sign_at(l, at);
        if (!is_here(l, i, "{%")) continue;
        at = skip_spaces(l, at + (sign != '\0'));
        if (!is_here(l, at, "endraw")) continue;
        at = skip_spaces(l, at + 6);
        if ((end = tag_end(l, at, "%}")) < 0) continue;
        LS_TRY(add_text_token(l, begin, text_end(l, begin, i, sign, false)));
        move_to(l, end);
        return LS_OK;
    }
    return ls_tpl_fail(l->run, LS_ERR_FORMAT, "raw: its end is missing");
}

static ls_status lex_comment(lexer *l, int64_t begin) {
    for (int64_t i = begin + 2; i < l->n; i++) {
        const int64_t end = tag_end(l, i, "#}");
        if (end < 0) continue;
        move_to(l, end);
        return LS_OK;
    }
    return ls_tpl_fail(l->run, LS_ERR_FORMAT, "a comment: its end is missing");
}

/* ---- inside a tag ---- */

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* A code of `digits` hexadecimal digits at text, or -1. */
static int32_t hex_code(const char *text, int64_t bytes, int64_t digits) {
    int32_t code = 0;
    if (bytes < digits) return -1;
    for (int64_t i = 0; i < digits; i++) {
        const int digit = hex_digit(text[i]);
        if (digit < 0 || code > 0x10FFFF) return -1;
        code = code * 16 + digit;
    }
    return code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF) ? code : -1;
}

/* One escape behind its backslash, by Python's rules for texts; returns the bytes taken, 0 for what cannot be read. */
static int64_t escape(const char *text, int64_t bytes, int32_t *code, bool *none) {
    static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
    const char *found = text[0] != '\0' ? strchr(from, text[0]) : NULL;
    const int64_t digits = text[0] == 'x' ? 2 : text[0] == 'u' ? 4 : text[0] == 'U' ? 8 : 0;
    *none = text[0] == '\n';
    if (*none) return 1;
    if (found != NULL) {
        *code = to[found - from];
        return 1;
    }
    if (digits > 0) return (*code = hex_code(text + 1, bytes - 1, digits)) < 0 ? 0 : digits + 1;
    if (text[0] >= '0' && text[0] <= '7') {
        int64_t n = 0;
        for (*code = 0; n < 3 && n < bytes && text[n] >= '0' && text[n] <= '7'; n++) *code = *code * 8 + text[n] - '0';
        return n;
    }
    *code = -1; /* an unknown one stays as it is */
    return text[0] == 'N' ? 0 : 1;
}

static ls_status lex_string(lexer *l) {
    const char quote = l->s[l->at];
    int64_t end = l->at + 1;
    ls_tpl_text text = {0};
    while (end < l->n && l->s[end] != quote) end += l->s[end] == '\\' ? 2 : 1;
    if (end >= l->n) return ls_tpl_fail(l->run, LS_ERR_FORMAT, "a text in quotes: its end is missing");
    for (int64_t i = l->at + 1; i < end;) {
        int32_t code;
        int64_t used;
        bool none;
        if (l->s[i] != '\\') {
            LS_TRY(ls_tpl_append(l->run, &text, l->s + i++, 1));
            continue;
        }
        used = escape(l->s + i + 1, end - i - 1, &code, &none);
        if (used == 0)
            return ls_tpl_fail(l->run, LS_ERR_UNSUPPORTED, "the escape \\%c in a text is not supported", l->s[i + 1]);
        if (!none && code >= 0) LS_TRY(ls_tpl_append_code(l->run, &text, code));
        if (!none && code < 0) LS_TRY(ls_tpl_append(l->run, &text, l->s + i, 1));
        i += none || code >= 0 ? used + 1 : 1;
    }
    LS_TRY(add_token_of(l, (ls_tpl_token){.kind = LS_TPL_STRING,
                                          .line = l->run->line,
                                          .text = text.data != NULL ? text.data : "",
                                          .bytes = text.bytes}));
    move_to(l, end + 1);
    return LS_OK;
}

static bool digit_at(const lexer *l, int64_t at) { return at < l->n && l->s[at] >= '0' && l->s[at] <= '9'; }

/* Digits, with _ between; returns where they end. */
static int64_t skip_digits(const lexer *l, int64_t at) {
    while (digit_at(l, at) || (at < l->n && l->s[at] == '_' && digit_at(l, at + 1))) at++;
    return at;
}

static ls_status lex_number(lexer *l) {
    const int64_t whole = skip_digits(l, l->at);
    int64_t end = whole, n = 0;
    char text[NUMBER_BYTES_MAX];
    ls_tpl_token token = {.line = l->run->line, .text = l->s + l->at};
    if (is_here(l, end, ".") && digit_at(l, end + 1)) end = skip_digits(l, end + 1);
    if (end < l->n && (l->s[end] == 'e' || l->s[end] == 'E')) {
        const int64_t sign = end + 1 < l->n && (l->s[end + 1] == '+' || l->s[end + 1] == '-') ? 1 : 0;
        if (digit_at(l, end + 1 + sign)) end = skip_digits(l, end + 1 + sign);
    }
    token.bytes = end - l->at;
    if (end < l->n && is_word(l->s[end]))
        return ls_tpl_fail(l->run, LS_ERR_UNSUPPORTED, "the number '%.*s' is not supported", (int)(end - l->at + 1),
                           l->s + l->at);
    if (token.bytes >= NUMBER_BYTES_MAX) return ls_tpl_fail(l->run, LS_ERR_UNSUPPORTED, "a number of so many digits");
    for (int64_t i = l->at; i < end; i++)
        if (l->s[i] != '_') text[n++] = l->s[i];
    text[n] = '\0';
    token.kind = end > whole ? LS_TPL_REAL : LS_TPL_INTEGER;
    errno = 0;
    if (token.kind == LS_TPL_REAL)
        token.real = strtod(text, NULL);
    else
        token.integer = strtoll(text, NULL, 10);
    if (token.kind == LS_TPL_INTEGER && errno != 0)
        return ls_tpl_fail(l->run, LS_ERR_UNSUPPORTED, "the integer %s is beyond 64 bits", text);
    if (token.kind == LS_TPL_INTEGER && text[0] == '0' && token.integer != 0)
        return ls_tpl_fail(l->run, LS_ERR_FORMAT, "the number '%s' begins with 0", text);
    LS_TRY(add_token_of(l, token));
    move_to(l, end);
    return LS_OK;
}

static ls_status balance(lexer *l, char c) {
    static const char opens[] = "([{", closes[] = ")]}";
    const char *closing = strchr(closes, c);
    if (strchr(opens, c) != NULL) {
        if (l->n_open == NESTING_MAX) return ls_tpl_fail(l->run, LS_ERR_CAPACITY, "brackets nest too deep");
        l->open[l->n_open++] = c;
    } else if (closing != NULL) {
        if (l->n_open == 0 || l->open[l->n_open - 1] != opens[closing - closes])
            return ls_tpl_fail(l->run, LS_ERR_FORMAT, "'%c' closes nothing", c);
        l->n_open--;
    }
    return LS_OK;
}

static ls_status lex_operator(lexer *l) {
    static const char *const two[] = {"//", "**", "==", "!=", ">=", "<="};
    int64_t n = 1;
    for (size_t i = 0; i < sizeof two / sizeof two[0]; i++)
        if (is_here(l, l->at, two[i])) n = 2;
    if (n == 1 && strchr("+-/*%~[](){}><=.:|,;", l->s[l->at]) == NULL)
        return ls_tpl_fail(l->run, LS_ERR_FORMAT, "unexpected character '%c'", l->s[l->at]);
    if (n == 1) LS_TRY(balance(l, l->s[l->at]));
    LS_TRY(add_token_of(
        l, (ls_tpl_token){.kind = LS_TPL_OPERATOR, .line = l->run->line, .text = l->s + l->at, .bytes = n}));
    move_to(l, l->at + n);
    return LS_OK;
}

/* Where the tag ends if it does here, else -1. */
static int64_t close_at(const lexer *l, bool is_print) {
    if (l->n_open > 0) return -1;
    if (!is_print) return tag_end(l, l->at, "%}");
    if (is_here(l, l->at, "-}}")) return skip_spaces(l, l->at + 3);
    return is_here(l, l->at, "}}") ? l->at + 2 : -1;
}

static ls_status lex_inside(lexer *l, bool is_print) {
    l->n_open = 0;
    for (;;) {
        const int64_t end = close_at(l, is_print);
        if (end >= 0) {
            LS_TRY(add_token_of(
                l, (ls_tpl_token){.kind = is_print ? LS_TPL_PRINT_END : LS_TPL_BLOCK_END, .line = l->run->line}));
            move_to(l, end);
            return LS_OK;
        }
        if (l->at >= l->n) return ls_tpl_fail(l->run, LS_ERR_FORMAT, "a tag: its end is missing");
        if (space_at(l->s, l->n, l->at) > 0) {
            move_to(l, skip_spaces(l, l->at));
        } else if (l->s[l->at] == '"' || l->s[l->at] == '\'') {
            LS_TRY(lex_string(l));
        } else if (digit_at(l, l->at)) {
            LS_TRY(lex_number(l));
        } else if (is_word(l->s[l->at])) {
            int64_t stop = l->at;
            while (stop < l->n && is_word(l->s[stop])) stop++;
            LS_TRY(add_token_of(
                l, (ls_tpl_token){
                       .kind = LS_TPL_NAME, .line = l->run->line, .text = l->s + l->at, .bytes = stop - l->at}));
            move_to(l, stop);
        } else {
            LS_TRY(lex_operator(l));
        }
    }
}

/* ---- outside ---- */

static int64_t next_tag(const lexer *l) {
    for (int64_t i = l->at; i + 1 < l->n; i++)
        if (l->s[i] == '{' && (l->s[i + 1] == '%' || l->s[i + 1] == '{' || l->s[i + 1] == '#')) return i;
    return l->n;
}

static ls_status lex_all(lexer *l) {
    for (;;) {
        const int64_t tag = next_tag(l), begin = l->at;
        const char kind = tag < l->n ? l->s[tag + 1] : '\0', sign = tag < l->n ? sign_at(l, tag + 2) : '\0';
        int64_t raw;
        if (tag == l->n) {
            LS_TRY(add_text_token(l, begin, tag));
            move_to(l, tag);
            return add_token_of(l, (ls_tpl_token){.kind = LS_TPL_END, .line = l->run->line});
        }
        LS_TRY(add_text_token(l, begin, text_end(l, begin, tag, sign, kind == '{')));
        move_to(l, tag);
        if (kind == '#') {
            LS_TRY(lex_comment(l, tag + (sign != '\0')));
        } else if ((raw = raw_begin(l, tag)) >= 0) {
            LS_TRY(lex_raw(l, raw));
        } else {
            LS_TRY(add_token_of(l, (ls_tpl_token){.kind = kind == '{' ? LS_TPL_PRINT_BEGIN : LS_TPL_BLOCK_BEGIN,
                                                  .line = l->run->line}));
            move_to(l, tag + 2 + (sign != '\0'));
            LS_TRY(lex_inside(l, kind == '{'));
        }
    }
}

/* Newlines of all kinds become \n, and one at the end goes. */
static ls_status normalize(ls_tpl_run *run, const char *text, int64_t bytes, const char **out, int64_t *n) {
    char *copy;
    int64_t used = 0;
    LS_TRY(ls_tpl_alloc(run, (void **)&copy, bytes + 1, 1));
    for (int64_t i = 0; i < bytes; i++) {
        copy[used++] = text[i] == '\r' ? '\n' : text[i];
        if (text[i] == '\r' && i + 1 < bytes && text[i + 1] == '\n') i++;
    }
    if (used > 0 && copy[used - 1] == '\n') used--;
    copy[used] = '\0';
    *out = copy;
    *n = used;
    return LS_OK;
}

ls_status ls_tpl_lex(ls_tpl_run *run, const char *text, int64_t bytes, ls_tpl_token **out, int64_t *n) {
    lexer l = {.run = run, .line_starting = true};
    run->line = 1;
    if (!ls_utf8_valid((const uint8_t *)text, bytes)) return ls_tpl_fail(run, LS_ERR_FORMAT, "is not UTF-8");
    LS_TRY(normalize(run, text, bytes, &l.s, &l.n));
    LS_TRY(lex_all(&l));
    *out = l.tokens;
    *n = l.n_tokens;
    return LS_OK;
}
