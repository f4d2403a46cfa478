/* Pre-tokenizers; owns the patterns of its steps. Every step reads one list of pieces and writes another. */
#include "text/pretoken.h"

#include <string.h>

#include "base/utf8.h"
#include "text/unicode.h"

const char ls_byte_level_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* Printable Latin-1 stands for itself; the 68 other bytes take U+0100, U+0101, ... in order. */
static bool byte_is_plain(int32_t byte) {
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

int32_t ls_byte_to_code(uint8_t byte) {
    if (byte_is_plain(byte)) return byte;
    if (byte <= 0x20) return 0x100 + byte;
    if (byte <= 0xA0) return 0x100 + 0x21 + (byte - 0x7F);
    return 0x143;
}

int32_t ls_code_to_byte(int32_t code) {
    if (code >= 0 && code < 0x100) return byte_is_plain(code) ? code : -1;
    if (code < 0 || code > 0x143) return -1;
    if (code <= 0x120) return code - 0x100;
    return code == 0x143 ? 0xAD : code - 0x121 + 0x7F;
}

void ls_pre_step_deinit(ls_pre_step *step) {
    ls_pattern_deinit(&step->pattern);
    memset(step, 0, sizeof *step);
}

typedef struct cutter {
    const ls_pre_step *step;
    ls_regex_search *search;
    ls_spans spans;
    ls_text rewritten; /* a piece with spaces replaced or a prefix added */
    ls_pieces *out;
    ls_error *err;
} cutter;

static ls_status emit(cutter *c, const char *text, int64_t begin, int64_t end, bool at_start) {
    int64_t from = c->out->text.bytes;
    if (begin == end) return LS_OK;
    if (c->step->kind != LS_PRE_BYTE_LEVEL)
        return ls_pieces_append(c->out, text + begin, end - begin, at_start && begin == 0, c->err);
    for (int64_t i = begin; i < end; i++)
        LS_TRY(ls_text_append_code(&c->out->text, ls_byte_to_code((uint8_t)text[i]), c->err));
    return ls_pieces_close(c->out, from, at_start && begin == 0, c->err);
}

/* Joins or drops the spans in c->spans as the behaviour says and emits what is left. */
static ls_status emit_spans(cutter *c, const char *text, ls_split_behavior behavior, bool invert, bool at_start) {
    const ls_spans *spans = &c->spans;
    int64_t i = 0;
    while (i < spans->n) {
        const bool match = spans->items[i].match != invert;
        int64_t last = i;
        bool next_match = last + 1 < spans->n && spans->items[last + 1].match != invert;
        switch (behavior) {
            case LS_SPLIT_REMOVED:
                if (match) {
                    i++;
                    continue;
                }
                break;
            case LS_SPLIT_ISOLATED: break;
            case LS_SPLIT_CONTIGUOUS:
                while (last + 1 < spans->n && (spans->items[last + 1].match != invert) == match) last++;
                break;
            case LS_SPLIT_MERGED_PREVIOUS:
                if (!match && next_match) last++;
                break;
            case LS_SPLIT_MERGED_NEXT:
                if (match && last + 1 < spans->n && !next_match) last++;
                break;
        }
        LS_TRY(emit(c, text, spans->items[i].begin, spans->items[last].end, at_start));
        i = last + 1;
    }
    return LS_OK;
}

static bool starts_with(const ls_text *text, const char *prefix, int64_t bytes) {
    return text->bytes >= bytes && memcmp(text->data, prefix, (size_t)bytes) == 0;
}

static ls_status byte_level(cutter *c, const char *text, int64_t bytes, bool at_start) {
    if (c->step->add_prefix_space && text[0] != ' ') {
        c->rewritten.bytes = 0;
        LS_TRY(ls_text_append(&c->rewritten, " ", 1, c->err));
        LS_TRY(ls_text_append(&c->rewritten, text, bytes, c->err));
        text = c->rewritten.data;
        bytes = c->rewritten.bytes;
    }
    if (!c->step->split) return emit(c, text, 0, bytes, at_start);
    LS_TRY(ls_pattern_spans(&c->step->pattern, c->search, text, bytes, &c->spans, c->err));
    return emit_spans(c, text, LS_SPLIT_ISOLATED, false, at_start);
}

static ls_status metaspace(cutter *c, const char *text, int64_t bytes, bool at_start) {
    static char space[] = " ";
    const ls_pattern blank = {.text = space, .bytes = 1}, *mark = &c->step->pattern;
    ls_text replaced = {.bytes_max = c->out->text.bytes_max};
    ls_status status = LS_OK;
    c->rewritten.bytes = 0;
    LS_TRY_DONE(ls_pattern_replace(&blank, mark->text, mark->bytes, text, bytes, &replaced, c->err));
    if (!starts_with(&replaced, mark->text, mark->bytes) &&
        (c->step->scheme == LS_PREPEND_ALWAYS || (c->step->scheme == LS_PREPEND_FIRST && at_start)))
        LS_TRY_DONE(ls_text_append(&c->rewritten, mark->text, mark->bytes, c->err));
    LS_TRY_DONE(ls_text_append(&c->rewritten, replaced.data, replaced.bytes, c->err));
    if (c->step->split) {
        LS_TRY_DONE(ls_pattern_spans(mark, NULL, c->rewritten.data, c->rewritten.bytes, &c->spans, c->err));
        LS_TRY_DONE(emit_spans(c, c->rewritten.data, LS_SPLIT_MERGED_NEXT, false, at_start));
    } else {
        LS_TRY_DONE(emit(c, c->rewritten.data, 0, c->rewritten.bytes, at_start));
    }
done:
    ls_text_deinit(&replaced);
    return status;
}

static ls_status cut(cutter *c, const char *text, int64_t bytes, bool at_start) {
    const ls_pre_step *step = c->step;
    switch (step->kind) {
        case LS_PRE_BYTE_LEVEL: return byte_level(c, text, bytes, at_start);
        case LS_PRE_METASPACE: return metaspace(c, text, bytes, at_start);
        case LS_PRE_SPLIT: LS_TRY(ls_pattern_spans(&step->pattern, c->search, text, bytes, &c->spans, c->err)); break;
        case LS_PRE_DIGITS: LS_TRY(ls_code_spans(ls_code_is_numeric, text, bytes, &c->spans, c->err)); break;
        case LS_PRE_PUNCTUATION: LS_TRY(ls_code_spans(ls_code_is_punct, text, bytes, &c->spans, c->err)); break;
        case LS_PRE_WHITESPACE_SPLIT: LS_TRY(ls_code_spans(ls_code_is_space, text, bytes, &c->spans, c->err)); break;
    }
    return emit_spans(c, text, step->behavior, step->invert, at_start);
}

static ls_status run_pretoken_step(const ls_pre_step *step, const ls_pieces *in, ls_pieces *out, ls_error *err) {
    cutter c = {.step = step, .out = out, .err = err};
    ls_status status = LS_OK;
    c.rewritten.bytes_max = out->text.bytes_max;
    if (step->pattern.regex != NULL) LS_TRY_DONE(ls_regex_search_create(&c.search, step->pattern.regex, err));
    for (int64_t i = 0; i < in->n; i++) {
        const ls_piece *piece = &in->items[i];
        LS_TRY_DONE(cut(&c, in->text.data + piece->begin, piece->bytes, piece->at_start));
    }
done:
    ls_regex_search_free(c.search);
    ls_spans_deinit(&c.spans);
    ls_text_deinit(&c.rewritten);
    return status;
}

ls_status ls_pretokenize(const ls_pre_step *steps, int64_t n_steps, const char *text, int64_t bytes, bool at_start,
                         ls_pieces *words, ls_error *err) {
    ls_pieces next = {.text.bytes_max = ls_text_growth_max(bytes)};
    ls_status status = LS_OK;
    ls_pieces_clear(words);
    words->text.bytes_max = next.text.bytes_max;
    if (bytes > 0) LS_TRY_DONE(ls_pieces_append(words, text, bytes, at_start, err));
    for (int64_t i = 0; i < n_steps; i++) {
        ls_pieces swap;
        ls_pieces_clear(&next);
        LS_TRY_DONE(run_pretoken_step(&steps[i], words, &next, err));
        swap = *words;
        *words = next;
        next = swap;
    }
done:
    ls_pieces_deinit(&next);
    return status;
}
