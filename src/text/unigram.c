/* The best cut of a word, by dynamic programming over its bytes. Scratch memory lives for one call. */
#include "text/unigram.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

#define UNKNOWN_PENALTY 10.0

/* The best way to come to a place: the piece that ends there. */
typedef struct ending {
    double score;
    int64_t begin; /* of its last piece; -1: no way leads here */
    int32_t id;
} ending;

ls_status ls_unigram_add(ls_unigram *u, const char *text, int64_t bytes, double score, bool *added, ls_error *err) {
    LS_TRY(ls_array_grow((void **)&u->scores, &u->scores_cap, u->n + 1, sizeof *u->scores, "vocabulary", err));
    LS_TRY(ls_text_map_add(&u->vocab, text, bytes, (int32_t)u->n, added, err));
    if (!*added) return LS_OK;
    LS_TRY(ls_token_trie_add(&u->pieces, text, bytes, (int32_t)u->n, err));
    u->scores[u->n++] = score;
    return LS_OK;
}

void ls_unigram_finish(ls_unigram *u) {
    double low = 0.0;
    for (int64_t i = 0; i < u->n; i++)
        if (i == 0 || u->scores[i] < low) low = u->scores[i];
    u->unknown_score = low - UNKNOWN_PENALTY;
    for (int i = 0; i < 256; i++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", (unsigned)i);
        u->byte_ids[i] = ls_text_map_find(&u->vocab, text, 6);
    }
}

void ls_unigram_deinit(ls_unigram *u) {
    ls_token_trie_deinit(&u->pieces);
    ls_text_map_deinit(&u->vocab);
    free(u->scores);
    memset(u, 0, sizeof *u);
}

static void offer(ending *to, double score, int64_t begin, int32_t id) {
    if (to->begin >= 0 && !(score > to->score)) return;
    *to = (ending){score, begin, id};
}

/* All pieces that begin at word[at], whose character has n bytes. */
static ls_status extend(const ls_unigram *u, ending *ends, const char *word, int64_t bytes, int64_t at, int64_t n,
                        ls_error *err) {
    const double till_here = ends[at].score;
    bool single = false;
    int32_t node = 0;
    for (int64_t i = at; i < bytes && u->pieces.n_nodes > 0; i++) {
        const ls_pair_slot *edge = ls_pair_map_find(&u->pieces.edges, ls_pair_key(node, (uint8_t)word[i]));
        int32_t id;
        if (edge == NULL) break;
        node = edge->first;
        id = u->pieces.tokens[node];
        if (id < 0) continue;
        offer(&ends[i + 1], u->scores[id] + till_here, at, id);
        single = single || i + 1 == at + n;
    }
    if (single) return LS_OK;
    if (u->unk_id < 0) {
        int32_t code;
        ls_utf8_decode((const uint8_t *)word + at, bytes - at, &code);
        return LS_FAIL(err, LS_ERR_FORMAT, "U+%04X needs an unknown token, and the model has no unk_id",
                       (unsigned)code);
    }
    offer(&ends[at + n], u->unknown_score + till_here, at, u->unk_id);
    return LS_OK;
}

/* A piece, or unknown text. */
static ls_status append_piece(const ls_unigram *u, const char *text, int64_t bytes, ls_ids *ids, ls_error *err) {
    const int32_t id = ls_text_map_find(&u->vocab, text, bytes);
    bool all = u->byte_fallback;
    if (id >= 0) return ls_ids_append(ids, id, err);
    for (int64_t i = 0; all && i < bytes; i++) all = u->byte_ids[(uint8_t)text[i]] >= 0;
    if (!all) return ls_ids_append(ids, u->unk_id, err);
    for (int64_t i = 0; i < bytes; i++) LS_TRY(ls_ids_append(ids, u->byte_ids[(uint8_t)text[i]], err));
    return LS_OK;
}

ls_status ls_unigram_encode(const ls_unigram *u, const char *word, int64_t bytes, ls_ids *ids, ls_error *err) {
    ending *ends = NULL;
    int64_t *cuts = NULL, n_cuts = 0;
    bool unknown = false;
    ls_status status;
    if (bytes == 0) return LS_OK;
    LS_TRY_DONE(ls_array_alloc((void **)&ends, bytes + 1, sizeof *ends, "word", err));
    LS_TRY_DONE(ls_array_alloc((void **)&cuts, bytes + 1, sizeof *cuts, "word", err));
    for (int64_t i = 1; i <= bytes; i++) ends[i].begin = -1;
    for (int64_t at = 0; at < bytes;) {
        int32_t code;
        const int64_t n = ls_utf8_decode((const uint8_t *)word + at, bytes - at, &code);
        LS_TRY_DONE(extend(u, ends, word, bytes, at, n, err));
        at += n;
    }
    /* Beginnings from the last piece to the first; of unknown characters in a row, the first one's only. */
    for (int64_t end = bytes; end > 0; end = ends[end].begin) {
        const bool is_unknown = ends[end].id == u->unk_id;
        if (is_unknown && unknown) n_cuts--;
        cuts[n_cuts++] = ends[end].begin;
        unknown = is_unknown;
    }
    for (int64_t i = n_cuts; i-- > 0;) {
        const int64_t begin = cuts[i], end = i > 0 ? cuts[i - 1] : bytes;
        LS_TRY_DONE(append_piece(u, word + begin, end - begin, ids, err));
    }
done:
    free(cuts);
    free(ends);
    return status;
}
