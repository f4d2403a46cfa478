/* Encoding and decoding; owns the tokenizer handle. Scratch memory lives for one call, so that calls can run side by
 * side. */
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/tokenizer_parts.h"
#include "text/unicode.h"

#define TEXT_BYTES_MAX ((int64_t)1 << 30) /* symbols of one word are counted in 32 bits */

void ls_tokenizer_free(ls_tokenizer *tokenizer) {
    if (tokenizer == NULL) return;
    for (int64_t i = 0; i < tokenizer->n_texts; i++) free(tokenizer->texts[i]);
    for (int64_t i = 0; i < tokenizer->n_added; i++) {
        free(tokenizer->added[i].content);
        free(tokenizer->added[i].normal);
    }
    for (int64_t i = 0; i < tokenizer->n_norm; i++) ls_norm_step_deinit(&tokenizer->norm[i]);
    for (int64_t i = 0; i < tokenizer->n_pre; i++) ls_pre_step_deinit(&tokenizer->pre[i]);
    for (int64_t i = 0; i < tokenizer->n_dec; i++) ls_dec_step_deinit(&tokenizer->dec[i]);
    free(tokenizer->texts);
    free(tokenizer->tokens);
    ls_pair_map_deinit(&tokenizer->token_of_id);
    free(tokenizer->added);
    ls_token_trie_deinit(&tokenizer->raw);
    ls_token_trie_deinit(&tokenizer->normalized);
    ls_regex_free(tokenizer->word);
    free(tokenizer->norm);
    free(tokenizer->pre);
    ls_bpe_deinit(&tokenizer->bpe);
    ls_unigram_deinit(&tokenizer->unigram);
    free(tokenizer->post);
    free(tokenizer->dec);
    free(tokenizer);
}

int64_t ls_tokenizer_size(const ls_tokenizer *tokenizer) { return tokenizer->size; }

const char *ls_tokenizer_token(const ls_tokenizer *tokenizer, int32_t id, int64_t *bytes) {
    const ls_pair_slot *slot = id < 0 ? NULL : ls_pair_map_find(&tokenizer->token_of_id, (uint64_t)id);
    *bytes = slot == NULL ? 0 : tokenizer->tokens[slot->first].bytes;
    return slot == NULL ? NULL : tokenizer->tokens[slot->first].text;
}

/* ---- how long a text of few tokens can be ---- */

/* A normalizer's step makes a text at most so many times shorter; 0: it may leave out any part of it. A composed
 * character has at most four parts of four bytes, and at least one byte for each. */
static int64_t shrinks(const ls_norm_step *step) {
    switch (step->kind) {
        case LS_NORM_PREPEND: return 1;
        case LS_NORM_REPLACE: return step->pattern.regex == NULL && step->content_bytes >= step->pattern.bytes ? 1 : 0;
        case LS_NORM_FORM: return step->form == LS_FORM_COMPOSE ? 4 : 0;
        case LS_NORM_LOWERCASE:
        case LS_NORM_STRIP:
        case LS_NORM_STRIP_ACCENTS:
        case LS_NORM_NMT:
        case LS_NORM_CHARSMAP: break;
    }
    return 0;
}

/* Whether every character gets a token, or part of one, whatever it is. */
static bool covers_all(const ls_tokenizer *t) {
    bool bytes = false, all = true;
    if (t->has_unigram || t->has_words) return false;
    for (int64_t i = 0; i < t->n_pre; i++) {
        const ls_pre_kind kind = t->pre[i].kind;
        const bool removes = t->pre[i].behavior == LS_SPLIT_REMOVED;
        bytes = bytes || kind == LS_PRE_BYTE_LEVEL;
        if (kind == LS_PRE_WHITESPACE_SPLIT || ((kind == LS_PRE_SPLIT || kind == LS_PRE_PUNCTUATION) && removes))
            return false;
    }
    if (!bytes && t->bpe.byte_fallback)
        for (int i = 0; i < 256; i++) all = all && t->bpe.byte_ids[i] >= 0;
    else if (bytes)
        for (int i = 0; i < 256; i++) all = all && t->bpe.low_ids[ls_byte_to_code((uint8_t)i)] >= 0;
    else
        all = false;
    return all || (t->bpe.unk_token != NULL && t->bpe.unk_id >= 0 && !t->bpe.fuse_unk);
}

void ls_tokenizer_measure(ls_tokenizer *t) {
    int64_t longest = 4, factor = 1;
    t->bytes_per_token = 0;
    if (!covers_all(t)) return;
    for (int64_t i = 0; i < t->n_norm; i++) {
        const int64_t by = shrinks(&t->norm[i]);
        if (by == 0 || factor > 64) return;
        factor *= by;
    }
    for (int64_t i = 0; i < t->n_added; i++)
        if (t->added[i].lstrip || t->added[i].rstrip) return;
    for (int64_t i = 0; i < t->n_tokens; i++)
        if (t->tokens[i].bytes > longest) longest = t->tokens[i].bytes;
    t->bytes_per_token = longest * factor;
}

int64_t ls_tokenizer_bytes_max(const ls_tokenizer *t, int64_t n_ids) {
    int64_t bytes;
    return t->bytes_per_token > 0 && ls_mul_i64(n_ids, t->bytes_per_token, &bytes) ? bytes : INT64_MAX;
}

/* ---- encoding ---- */

typedef struct encoder {
    const ls_tokenizer *tokenizer;
    ls_text clean, norm;
    ls_added_spans raw_spans, norm_spans;
    ls_pieces words;
    ls_bpe_scratch bpe;
    ls_ids ids;
    ls_error *err;
} encoder;

static ls_status replace_ill_formed(const char *text, int64_t bytes, ls_text *out, ls_error *err) {
    int64_t at = 0, kept = 0;
    while (at < bytes) {
        int32_t code;
        const int64_t used = ls_utf8_decode((const uint8_t *)text + at, bytes - at, &code);
        if (code < 0) {
            LS_TRY(ls_text_append(out, text + kept, at - kept, err));
            LS_TRY(ls_text_append(out, "\xEF\xBF\xBD", 3, err));
            kept = at + used;
        }
        at += used;
    }
    return ls_text_append(out, text + kept, bytes - kept, err);
}

static ls_status encode_word(encoder *e, const char *text, int64_t bytes) {
    const ls_bpe *model = &e->tokenizer->bpe;
    int32_t id = ls_text_map_find(&model->vocab, text, bytes);
    if (id < 0) id = model->unk_id;
    if (id < 0)
        return LS_FAIL(e->err, LS_ERR_FORMAT, "'%.*s' is not in the vocabulary, nor is the unknown token '%s'",
                       (int)(bytes < 60 ? bytes : 60), text, model->unk_token);
    return ls_ids_append(&e->ids, id, e->err);
}

static ls_status encode_words(encoder *e, const char *text, int64_t bytes, bool at_start) {
    const ls_tokenizer *t = e->tokenizer;
    LS_TRY(ls_pretokenize(t->pre, t->n_pre, text, bytes, at_start, &e->words, e->err));
    for (int64_t i = 0; i < e->words.n; i++) {
        const ls_piece *word = &e->words.items[i];
        if (word->bytes > TEXT_BYTES_MAX)
            return LS_FAIL(e->err, LS_ERR_CAPACITY, "a word of %lld bytes, the limit is %lld", (long long)word->bytes,
                           (long long)TEXT_BYTES_MAX);
        if (t->has_unigram) {
            LS_TRY(ls_unigram_encode(&t->unigram, e->words.text.data + word->begin, word->bytes, &e->ids, e->err));
            continue;
        }
        if (t->has_words) {
            LS_TRY(encode_word(e, e->words.text.data + word->begin, word->bytes));
            continue;
        }
        LS_TRY(ls_bpe_encode(&t->bpe, &e->bpe, e->words.text.data + word->begin, word->bytes, &e->ids, e->err));
    }
    return LS_OK;
}

/* Text between added tokens of the raw kind. */
static ls_status encode_part(encoder *e, const char *text, int64_t bytes, bool at_start) {
    const ls_tokenizer *t = e->tokenizer;
    LS_TRY(ls_normalize(t->norm, t->n_norm, text, bytes, &e->norm, &at_start, e->err));
    LS_TRY(ls_added_split(&t->normalized, t->added, t->word, e->norm.data, e->norm.bytes, &e->norm_spans, e->err));
    for (int64_t i = 0; i < e->norm_spans.n; i++) {
        const ls_added_span *span = &e->norm_spans.items[i];
        if (span->id >= 0) {
            LS_TRY(ls_ids_append(&e->ids, span->id, e->err));
        } else {
            LS_TRY(encode_words(e, e->norm.data + span->begin, span->end - span->begin, at_start && span->begin == 0));
        }
    }
    return LS_OK;
}

static ls_status surround(const encoder *e, ls_ids *out, bool add_special) {
    const ls_tokenizer *t = e->tokenizer;
    for (int64_t i = 0; i < t->n_post; i++) {
        if (t->post[i] == LS_TEMPLATE_TEXT) {
            LS_TRY(
                ls_array_grow((void **)&out->items, &out->cap, out->n + e->ids.n, sizeof *out->items, "ids", e->err));
            if (e->ids.n > 0) memcpy(out->items + out->n, e->ids.items, (size_t)e->ids.n * sizeof *out->items);
            out->n += e->ids.n;
        } else if (add_special) {
            LS_TRY(ls_ids_append(out, t->post[i], e->err));
        }
    }
    return LS_OK;
}

ls_status ls_tokenizer_encode(const ls_tokenizer *tokenizer, const char *text, int64_t bytes, bool add_special,
                              int32_t **ids, int64_t *n_ids, ls_error *err) {
    encoder e = {.tokenizer = tokenizer, .err = err};
    ls_ids result = {0};
    ls_status status = LS_OK;
    if (bytes < 0 || bytes > TEXT_BYTES_MAX)
        return LS_FAIL(err, LS_ERR_CAPACITY, "a text of %lld bytes, the limit is %lld", (long long)bytes,
                       (long long)TEXT_BYTES_MAX);
    LS_TRY_DONE(replace_ill_formed(text, bytes, &e.clean, err));
    LS_TRY_DONE(ls_added_split(&tokenizer->raw, tokenizer->added, tokenizer->word, e.clean.data, e.clean.bytes,
                               &e.raw_spans, err));
    for (int64_t i = 0; i < e.raw_spans.n; i++) {
        const ls_added_span *span = &e.raw_spans.items[i];
        if (span->id >= 0)
            LS_TRY_DONE(ls_ids_append(&e.ids, span->id, err));
        else
            LS_TRY_DONE(encode_part(&e, e.clean.data + span->begin, span->end - span->begin, span->begin == 0));
    }
    if (tokenizer->has_post) {
        LS_TRY_DONE(surround(&e, &result, add_special));
    } else {
        result = e.ids;
        e.ids = (ls_ids){0};
    }
    LS_TRY_DONE(ls_array_grow((void **)&result.items, &result.cap, 1, sizeof *result.items, "ids", err));
    *ids = result.items;
    *n_ids = result.n;
    result.items = NULL;
done:
    free(result.items);
    ls_text_deinit(&e.clean);
    ls_text_deinit(&e.norm);
    free(e.raw_spans.items);
    free(e.norm_spans.items);
    ls_pieces_deinit(&e.words);
    ls_bpe_scratch_deinit(&e.bpe);
    free(e.ids.items);
    return status;
}

static ls_status decode(const ls_tokenizer *tokenizer, const int32_t *ids, int64_t n_ids, bool skip_special,
                        bool skip_unknown, char **text, int64_t *bytes, ls_error *err) {
    ls_pieces tokens = {0};
    ls_status status = LS_OK;
    for (int64_t i = 0; i < n_ids; i++) {
        const ls_pair_slot *slot = ids[i] < 0 ? NULL : ls_pair_map_find(&tokenizer->token_of_id, (uint64_t)ids[i]);
        const ls_token *token;
        if (slot == NULL && skip_unknown && ids[i] >= 0) continue;
        if (slot == NULL) {
            status =
                LS_FAIL(err, LS_ERR_ARG, "token id %d at position %lld is not in the vocabulary (ids are below %lld)",
                        ids[i], (long long)i, (long long)tokenizer->size);
            goto done;
        }
        token = &tokenizer->tokens[slot->first];
        if (skip_special && token->special) continue;
        /* The separator of files without a decoder is part of the token's text: nothing else will touch it. */
        if (!tokenizer->has_decoder && tokens.n > 0) LS_TRY_DONE(ls_pieces_append(&tokens, " ", 1, false, err));
        LS_TRY_DONE(ls_pieces_append(&tokens, token->text, token->bytes, false, err));
    }
    LS_TRY_DONE(ls_detokenize(tokenizer->dec, tokenizer->n_dec, &tokens, err));
    LS_TRY_DONE(ls_text_copy(text, tokens.text.data, tokens.text.bytes, err));
    *bytes = tokens.text.bytes;
done:
    ls_pieces_deinit(&tokens);
    return status;
}

ls_status ls_tokenizer_decode(const ls_tokenizer *tokenizer, const int32_t *ids, int64_t n_ids, bool skip_special,
                              char **text, int64_t *bytes, ls_error *err) {
    return decode(tokenizer, ids, n_ids, skip_special, false, text, bytes, err);
}

ls_status ls_tokenizer_decode_known(const ls_tokenizer *tokenizer, const int32_t *ids, int64_t n_ids, bool skip_special,
                                    char **text, int64_t *bytes, ls_error *err) {
    return decode(tokenizer, ids, n_ids, skip_special, true, text, bytes, err);
}
