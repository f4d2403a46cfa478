/* Translation of Oniguruma patterns (Ruby syntax) into PCRE2 patterns; owns nothing.
 *
 * One pass, no syntax tree: what is needed is where the last atom began in the output (for repeats that Ruby reads
 * differently), which groups are open, and whether letter case is being ignored. */
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "text/regex.h"
#include "text/unicode_delta.h"

#define GROUPS_MAX 64
#define REPEAT_MAX 1000

typedef struct group {
    int64_t out_begin; /* where the group starts in the output */
    bool caseless;     /* of the text around the group */
} group;

typedef struct translator {
    const uint8_t *in;
    int64_t bytes, at;
    ls_text *out;
    int64_t atom; /* where the last atom starts in the output; -1: nothing to repeat */
    group groups[GROUPS_MAX];
    int32_t n_groups;
    bool caseless;
    char last_letter; /* the previous atom when it is a letter under (?i:, else 0 */
    ls_error *err;
} translator;

static ls_status refuse_syntax(translator *t, const char *what) {
    return LS_FAIL(t->err, LS_ERR_UNSUPPORTED, "%s at byte %lld of the pattern is not supported", what,
                   (long long)t->at);
}

static ls_status malformed(translator *t, const char *what) {
    return LS_FAIL(t->err, LS_ERR_FORMAT, "%s at byte %lld of the pattern", what, (long long)t->at);
}

static ls_status put_regex(translator *t, const char *text) {
    return ls_text_append(t->out, text, (int64_t)strlen(text), t->err);
}

static ls_status put_code(translator *t, int32_t code) {
    char text[16];
    snprintf(text, sizeof text, "\\x{%X}", (unsigned)code);
    return put_regex(t, text);
}

static ls_status put_range(ls_text *out, int32_t first, int32_t last, ls_error *err) {
    char text[40];
    if (first == last) {
        snprintf(text, sizeof text, "\\x{%X}", (unsigned)first);
    } else {
        snprintf(text, sizeof text, "\\x{%X}-\\x{%X}", (unsigned)first, (unsigned)last);
    }
    return ls_text_append(out, text, (int64_t)strlen(text), err);
}

static bool ahead(const translator *t, const char *text) {
    const int64_t n = (int64_t)strlen(text);
    return t->bytes - t->at >= n && memcmp(t->in + t->at, text, (size_t)n) == 0;
}

static int peek(const translator *t) { return t->at < t->bytes ? t->in[t->at] : -1; }

/* ---- classes ---- */

/* White_Space; hexadecimal digits. Ascending, so that a complement can be written down. */
static const ls_code_range space_ranges[] = {{0x9, 0xD},       {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},
                                             {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
                                             {0x205F, 0x205F}, {0x3000, 0x3000}};
static const ls_code_range hex_ranges[] = {{'0', '9'}, {'A', 'F'}, {'a', 'f'}};
#define COUNT(array) ((int64_t)(sizeof(array) / sizeof(array)[0]))

static ls_status put_ranges(translator *t, const ls_code_range *ranges, int64_t n, bool complement) {
    int32_t from = 0;
    ls_status status = LS_OK;
    for (int64_t i = 0; i < n; i++) {
        if (!complement) {
            LS_TRY_DONE(put_range(t->out, ranges[i].first, ranges[i].last, t->err));
        } else {
            if (ranges[i].first > from) LS_TRY_DONE(put_range(t->out, from, ranges[i].first - 1, t->err));
            from = ranges[i].last + 1;
        }
    }
    if (complement) status = put_range(t->out, from, 0x10FFFF, t->err);
done:
    return status;
}

/* Newly assigned code points whose category starts with `category`. */
static ls_status put_new(ls_text *out, const char *category, ls_error *err) {
    for (int64_t i = 0; i < ls_new_codes_n; i++)
        if (strncmp(ls_new_codes[i].category, category, strlen(category)) == 0)
            LS_TRY(put_range(out, ls_new_codes[i].first, ls_new_codes[i].last, err));
    return LS_OK;
}

static ls_status put_word(ls_text *out, ls_error *err) {
    static const char known[] = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
    LS_TRY(ls_text_append(out, known, (int64_t)sizeof known - 1, err));
    LS_TRY(put_new(out, "L", err));
    LS_TRY(put_new(out, "M", err));
    return put_new(out, "Nd", err);
}

ls_status ls_regex_append_plain_word(ls_text *out, ls_error *err) {
    LS_TRY(put_word(out, err));
    LS_TRY(put_range(out, 0x200C, 0x200D, err)); /* the joiners count as word characters there */
    return LS_OK;
}

/* Names as the reference compares them: without case, spaces, '-' and '_'. */
static const char *const categories[][2] = {{"l", "L"},   {"letter", "L"},
                                            {"lu", "Lu"}, {"uppercaseletter", "Lu"},
                                            {"ll", "Ll"}, {"lowercaseletter", "Ll"},
                                            {"lt", "Lt"}, {"titlecaseletter", "Lt"},
                                            {"lm", "Lm"}, {"modifierletter", "Lm"},
                                            {"lo", "Lo"}, {"otherletter", "Lo"},
                                            {"m", "M"},   {"mark", "M"},
                                            {"mn", "Mn"}, {"nonspacingmark", "Mn"},
                                            {"mc", "Mc"}, {"spacingmark", "Mc"},
                                            {"me", "Me"}, {"enclosingmark", "Me"},
                                            {"n", "N"},   {"number", "N"},
                                            {"nd", "Nd"}, {"decimalnumber", "Nd"},
                                            {"nl", "Nl"}, {"letternumber", "Nl"},
                                            {"no", "No"}, {"othernumber", "No"},
                                            {"p", "P"},   {"punctuation", "P"},
                                            {"pc", "Pc"}, {"connectorpunctuation", "Pc"},
                                            {"pd", "Pd"}, {"dashpunctuation", "Pd"},
                                            {"ps", "Ps"}, {"openpunctuation", "Ps"},
                                            {"pe", "Pe"}, {"closepunctuation", "Pe"},
                                            {"pi", "Pi"}, {"initialpunctuation", "Pi"},
                                            {"pf", "Pf"}, {"finalpunctuation", "Pf"},
                                            {"po", "Po"}, {"otherpunctuation", "Po"},
                                            {"s", "S"},   {"symbol", "S"},
                                            {"sm", "Sm"}, {"mathsymbol", "Sm"},
                                            {"sc", "Sc"}, {"currencysymbol", "Sc"},
                                            {"sk", "Sk"}, {"modifiersymbol", "Sk"},
                                            {"so", "So"}, {"othersymbol", "So"},
                                            {"z", "Z"},   {"separator", "Z"},
                                            {"zs", "Zs"}, {"spaceseparator", "Zs"},
                                            {"zl", "Zl"}, {"lineseparator", "Zl"},
                                            {"zp", "Zp"}, {"paragraphseparator", "Zp"},
                                            {"cc", "Cc"}, {"control", "Cc"},
                                            {"cf", "Cf"}, {"format", "Cf"},
                                            {"co", "Co"}, {"privateuse", "Co"}};
static const char *const scripts[] = {"Han",      "Hiragana", "Katakana", "Hangul", "Latin",     "Greek",
                                      "Cyrillic", "Arabic",   "Hebrew",   "Thai",   "Devanagari"};

static ls_status put_property(translator *t, const char *name) {
    char text[24];
    for (int64_t i = 0; i < COUNT(categories); i++) {
        if (strcmp(categories[i][0], name) != 0) continue;
        snprintf(text, sizeof text, "\\p{%s}", categories[i][1]);
        LS_TRY(put_regex(t, text));
        return put_new(t->out, categories[i][1], t->err);
    }
    for (int64_t i = 0; i < COUNT(scripts); i++) {
        char folded[16];
        size_t n = strlen(scripts[i]);
        memcpy(folded, scripts[i], n + 1);
        folded[0] = (char)(folded[0] - 'A' + 'a');
        if (strcmp(folded, name) != 0) continue;
        /* sc: the script itself, where PCRE2's bare name would mean its extensions */
        snprintf(text, sizeof text, "\\p{sc:%s}", scripts[i]);
        LS_TRY(put_regex(t, text));
        for (int64_t k = 0; k < ls_new_codes_n; k++)
            if (ls_new_codes[k].script != NULL && strcmp(ls_new_codes[k].script, scripts[i]) == 0)
                LS_TRY(put_range(t->out, ls_new_codes[k].first, ls_new_codes[k].last, t->err));
        return LS_OK;
    }
    return LS_FAIL(t->err, LS_ERR_UNSUPPORTED,
                   "the character property '%s' at byte %lld of the pattern is not supported", name, (long long)t->at);
}

/* Reads {NAME} or {^NAME}; t->at is after the p. */
static ls_status read_property(translator *t, char *name, size_t size, bool *negated) {
    size_t n = 0;
    if (peek(t) != '{') return refuse_syntax(t, "\\p without braces");
    t->at++;
    if (peek(t) == '^') {
        *negated = !*negated;
        t->at++;
    }
    for (;; t->at++) {
        const int c = peek(t);
        if (c < 0) return malformed(t, "unclosed \\p{");
        if (c == '}') break;
        if (c == ' ' || c == '_' || c == '-') continue;
        if (c >= 0x80 || n + 1 >= size) return refuse_syntax(t, "a character property name like this");
        name[n++] = (char)(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
    }
    name[n] = '\0';
    t->at++;
    return LS_OK;
}

/* If the escape whose letter is at t->at names a class, writes it (with brackets when it stands alone) and sets
 * *done. */
static ls_status class_escape(translator *t, bool inside, bool *done) {
    const int letter = peek(t);
    bool negated = letter == 'S' || letter == 'D' || letter == 'H' || letter == 'W' || letter == 'P';
    char name[40] = "";
    *done = letter > 0 && strchr("sSdDhHwWpP", letter) != NULL;
    if (!*done) return LS_OK;
    if (t->caseless && strchr("sSdD", letter) == NULL)
        return refuse_syntax(t, "a character class escape with letters while letter case is ignored");
    t->at++;
    if (letter == 'p' || letter == 'P') LS_TRY(read_property(t, name, sizeof name, &negated));
    if (inside && negated && strchr("SH", letter) == NULL)
        return refuse_syntax(t, "a negated \\W, \\D or \\P{..} inside a class");
    if (!inside) LS_TRY(put_regex(t, negated ? "[^" : "["));
    switch (letter) {
        case 's':
        case 'S': LS_TRY(put_ranges(t, space_ranges, COUNT(space_ranges), inside && negated)); break;
        case 'h':
        case 'H': LS_TRY(put_ranges(t, hex_ranges, COUNT(hex_ranges), inside && negated)); break;
        case 'd':
        case 'D': LS_TRY(put_property(t, "nd")); break;
        case 'w':
        case 'W':
            LS_TRY(put_word(t->out, t->err));
            LS_TRY(put_regex(t, "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}")); /* word characters by the reference's table */
            break;
        default: LS_TRY(put_property(t, name)); break;
    }
    if (!inside) LS_TRY(put_regex(t, "]"));
    return LS_OK;
}

static int hex_value(int c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

static ls_status read_hex(translator *t, int digits_min, int digits_max, int32_t *code) {
    int n = 0;
    *code = 0;
    while (n < digits_max && hex_value(peek(t)) >= 0) {
        *code = *code * 16 + hex_value(peek(t));
        t->at++;
        n++;
    }
    return n < digits_min ? malformed(t, "too few hexadecimal digits") : LS_OK;
}

/* A character written as an escape; t->at is on the letter after the backslash. */
static ls_status char_escape(translator *t, int32_t *code) {
    const int letter = peek(t);
    if (letter < 0) return malformed(t, "a backslash ends the pattern");
    if (letter >= 0x80) {
        t->at += ls_utf8_decode(t->in + t->at, t->bytes - t->at, code);
        return LS_OK;
    }
    t->at++;
    switch (letter) {
        case 'n': *code = '\n'; return LS_OK;
        case 'r': *code = '\r'; return LS_OK;
        case 't': *code = '\t'; return LS_OK;
        case 'f': *code = '\f'; return LS_OK;
        case 'v': *code = 0x0B; return LS_OK;
        case 'a': *code = 0x07; return LS_OK;
        case 'e': *code = 0x1B; return LS_OK;
        case 'u': LS_TRY(read_hex(t, 4, 4, code)); break;
        case 'x':
            if (peek(t) == '{') {
                t->at++;
                LS_TRY(read_hex(t, 1, 7, code));
                if (peek(t) != '}') return malformed(t, "\\x{..} is not closed");
                t->at++;
            } else {
                LS_TRY(read_hex(t, 2, 2, code));
                if (*code >= 0x80) return refuse_syntax(t, "\\x80..\\xFF, a raw byte,");
            }
            break;
        default:
            if ((letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'z') ||
                (letter >= 'A' && letter <= 'Z')) {
                char what[24];
                snprintf(what, sizeof what, "the escape \\%c", letter);
                return refuse_syntax(t, what);
            }
            *code = letter;
            return LS_OK;
    }
    if (*code > 0x10FFFF || (*code >= 0xD800 && *code <= 0xDFFF)) return malformed(t, "a code that is no character");
    return LS_OK;
}

/* One character of a class, or an escape that is a class itself (*done). */
static ls_status class_char(translator *t, int32_t *code, bool *done) {
    *done = false;
    if (ahead(t, "&&")) return refuse_syntax(t, "class intersection &&");
    if (peek(t) == '[') return refuse_syntax(t, ahead(t, "[:") ? "a POSIX class" : "a class inside a class");
    if (peek(t) == '\\') {
        t->at++;
        LS_TRY(class_escape(t, true, done));
        if (!*done) LS_TRY(char_escape(t, code));
    } else {
        t->at += ls_utf8_decode(t->in + t->at, t->bytes - t->at, code);
    }
    if (!*done && t->caseless && *code >= 0x80)
        return refuse_syntax(t, "a non-ASCII character while letter case is ignored");
    return LS_OK;
}

/* t->at is after the opening bracket. */
static ls_status class_body(translator *t) {
    bool empty = true, done;
    if (peek(t) == '^') {
        if (t->caseless) return refuse_syntax(t, "a negated class while letter case is ignored");
        t->at++;
        LS_TRY(put_regex(t, "[^"));
    } else {
        LS_TRY(put_regex(t, "["));
    }
    if (peek(t) == ']') return refuse_syntax(t, "an unescaped ] at the beginning of a class");
    for (;; empty = false) {
        int32_t first, last;
        if (peek(t) < 0) return malformed(t, "unclosed [");
        if (peek(t) == ']') break;
        if (peek(t) == '-' && !empty && !ahead(t, "-]"))
            return refuse_syntax(t, "an unescaped - after a range or a class");
        LS_TRY(class_char(t, &first, &done));
        if (done) continue;
        last = first;
        if (peek(t) == '-' && !ahead(t, "-]")) {
            t->at++;
            if (peek(t) < 0) return malformed(t, "unclosed [");
            LS_TRY(class_char(t, &last, &done));
            if (done) return malformed(t, "a class as the end of a range");
            if (last < first) return malformed(t, "a range that runs backwards");
        }
        LS_TRY(put_range(t->out, first, last, t->err));
    }
    t->at++;
    return put_regex(t, "]");
}

/* ---- atoms, groups, repeats ---- */

static ls_status literal(translator *t, int32_t code) {
    static const char *const folding[] = {"ss", "ff", "fi", "fl", "st"};
    const bool letter = (code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z');
    char low = 0;
    if (t->caseless && code >= 0x80) return refuse_syntax(t, "a non-ASCII character while letter case is ignored");
    if (t->caseless && letter) {
        low = (char)(code | 0x20);
        for (int64_t i = 0; i < COUNT(folding); i++)
            if (t->last_letter == folding[i][0] && low == folding[i][1])
                return refuse_syntax(t, "a pair of letters that case folding treats as one");
    }
    t->atom = t->out->bytes;
    t->last_letter = low;
    return put_code(t, code);
}

static ls_status escape(translator *t) {
    static const char boundary_in[] = "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}";
    const int64_t atom = t->out->bytes;
    int32_t code;
    bool done;
    const int letter = peek(t);
    if (letter == 'b' || letter == 'B') {
        /* A boundary by the reference's word class: the two sides differ, or agree. */
        static const char *const parts[2][5] = {{"(?:(?<=[", "])(?![", "])|(?<![", "])(?=[", "]))"},
                                                {"(?:(?<=[", "])(?=[", "])|(?<![", "])(?![", "]))"}};
        t->at++;
        for (int i = 0; i < 5; i++) {
            LS_TRY(put_regex(t, parts[letter == 'B'][i]));
            if (i == 4) break;
            LS_TRY(put_word(t->out, t->err));
            LS_TRY(put_regex(t, boundary_in));
        }
        t->atom = -1;
        t->last_letter = 0;
        return LS_OK;
    }
    if (letter == 'A' || letter == 'z' || letter == 'Z') {
        const char text[3] = {'\\', (char)letter, '\0'};
        t->at++;
        t->atom = -1;
        t->last_letter = 0;
        return put_regex(t, text);
    }
    if (letter == 'R') {
        t->at++;
        t->atom = atom;
        t->last_letter = 0;
        return put_regex(t, "(?>\\R)");
    }
    LS_TRY(class_escape(t, false, &done));
    if (done) {
        t->atom = atom;
        t->last_letter = 0;
        return LS_OK;
    }
    LS_TRY(char_escape(t, &code));
    return literal(t, code);
}

static ls_status open_group(translator *t) {
    static const char *const same[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    const char *write = NULL;
    bool caseless = t->caseless;
    if (t->n_groups >= GROUPS_MAX) return refuse_syntax(t, "nesting this deep");
    for (int64_t i = 0; i < COUNT(same); i++)
        if (ahead(t, same[i])) write = same[i];
    if (write != NULL) {
        t->at += (int64_t)strlen(write);
    } else if (ahead(t, "(?i:")) {
        t->at += 4;
        caseless = true;
        write = "(?i:";
    } else if (ahead(t, "(?-i:")) {
        t->at += 5;
        caseless = false;
        write = "(?-i:";
    } else if (ahead(t, "(?") || ahead(t, "(*")) {
        return refuse_syntax(t, "a group of this kind");
    } else {
        t->at++; /* a capture, which nothing here refers to */
        write = "(?:";
    }
    t->groups[t->n_groups++] = (group){.out_begin = t->out->bytes, .caseless = t->caseless};
    t->caseless = caseless;
    t->atom = -1;
    t->last_letter = 0;
    return put_regex(t, write);
}

static ls_status close_group(translator *t) {
    const group *g;
    if (t->n_groups == 0) return malformed(t, "an unopened )");
    g = &t->groups[--t->n_groups];
    t->at++;
    t->atom = g->out_begin;
    t->caseless = g->caseless;
    t->last_letter = 0;
    return put_regex(t, ")");
}

/* {n}, {n,}, {n,m}, {,m} at t->at: *low, *high (-1: open) and the length, which is 0 for a literal brace. */
static int64_t interval(const translator *t, int32_t *low, int32_t *high) {
    int64_t at = t->at + 1;
    bool has_low = false, has_high = false, comma = false;
    *low = *high = 0;
    for (; at < t->bytes; at++) {
        const int c = t->in[at];
        int32_t *number = comma ? high : low;
        if (c >= '0' && c <= '9') {
            if (*number <= REPEAT_MAX) *number = *number * 10 + (c - '0');
            if (comma)
                has_high = true;
            else
                has_low = true;
        } else if (c == ',' && !comma) {
            comma = true;
        } else {
            break;
        }
    }
    if (at >= t->bytes || t->in[at] != '}' || !(has_low || has_high)) return 0;
    if (!comma)
        *high = *low;
    else if (!has_high)
        *high = -1;
    return at + 1 - t->at;
}

static ls_status wrap_atom(translator *t) {
    static const char open[] = "(?:";
    ls_status status = ls_text_append(t->out, open, 3, t->err);
    if (status != LS_OK) return status;
    memmove(t->out->data + t->atom + 3, t->out->data + t->atom, (size_t)(t->out->bytes - t->atom - 3));
    memcpy(t->out->data + t->atom, open, 3);
    return put_regex(t, ")");
}

static ls_status repeat(translator *t) {
    const int c = peek(t);
    char text[40];
    bool fixed = false;
    if (t->atom < 0) return refuse_syntax(t, "a repeat with nothing to repeat");
    if (t->caseless && t->last_letter != 0 && strchr("sf", t->last_letter) != NULL && c != '?')
        return refuse_syntax(t, "a repeated letter that case folding may join");
    if (c == '{') {
        int32_t low, high;
        t->at += interval(t, &low, &high);
        if (low > REPEAT_MAX || high > REPEAT_MAX || (high >= 0 && low > high))
            return refuse_syntax(t, "an interval like this");
        fixed = low == high;
        if (high < 0)
            snprintf(text, sizeof text, "{%d,}", low);
        else
            snprintf(text, sizeof text, "{%d,%d}", low, high);
        LS_TRY(put_regex(t, text));
        if (peek(t) == '+') { /* Ruby: one or more of the interval, not a possessive interval */
            LS_TRY(wrap_atom(t));
            LS_TRY(put_regex(t, "+"));
            t->at++;
        } else if (peek(t) == '?') {
            if (fixed) return refuse_syntax(t, "{n}? (an optional interval)");
            LS_TRY(put_regex(t, "?"));
            t->at++;
        }
    } else {
        const char one[2] = {(char)c, '\0'};
        t->at++;
        LS_TRY(put_regex(t, one));
        if (peek(t) == '?' || peek(t) == '+') {
            const char suffix[2] = {(char)peek(t), '\0'};
            LS_TRY(put_regex(t, suffix));
            t->at++;
        }
    }
    {
        int32_t low, high;
        const int next = peek(t);
        if (next == '*' || next == '+' || next == '?' || (next == '{' && interval(t, &low, &high) > 0))
            return refuse_syntax(t, "a repeat of a repeat");
    }
    t->atom = -1;
    t->last_letter = 0;
    return LS_OK;
}

static ls_status translate_step(translator *t) {
    const int c = peek(t);
    int32_t code, low, high;
    switch (c) {
        case '\\': t->at++; return escape(t);
        case '(': return open_group(t);
        case ')': return close_group(t);
        case '[':
            t->at++;
            t->atom = t->out->bytes;
            t->last_letter = 0;
            return class_body(t);
        case '|':
            t->at++;
            t->atom = -1;
            t->last_letter = 0;
            return put_regex(t, "|");
        case '.':
            t->at++;
            t->atom = t->out->bytes;
            t->last_letter = 0;
            return put_regex(t, "[^\\x{A}]");
        case '^':
        case '$': /* always at any line in Ruby syntax */
            t->at++;
            t->atom = -1;
            t->last_letter = 0;
            return put_regex(t, c == '^' ? "(?m:^)" : "(?m:$)");
        case '*':
        case '+':
        case '?': return repeat(t);
        case '{':
            if (interval(t, &low, &high) > 0) return repeat(t);
            break;
        default: break;
    }
    t->at += ls_utf8_decode(t->in + t->at, t->bytes - t->at, &code);
    return literal(t, code);
}

ls_status ls_regex_translate(ls_text *out, const char *pattern, int64_t bytes, ls_error *err) {
    translator t = {.in = (const uint8_t *)pattern, .bytes = bytes, .out = out, .atom = -1, .err = err};
    ls_status status = LS_OK;
    if (ahead(&t, "(?i)")) { /* only here does it reach equally far in both dialects */
        t.at = 4;
        t.caseless = true;
        LS_TRY_DONE(put_regex(&t, "(?i)"));
    }
    while (t.at < t.bytes) LS_TRY_DONE(translate_step(&t));
    if (t.n_groups > 0) status = malformed(&t, "an unclosed (");
done:
    return status;
}
