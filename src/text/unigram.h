/* The unigram model: a word in, token ids out.
 *
 * A word is cut into pieces of the vocabulary so that the sum of their scores is largest. Sums run in binary64 from the
 * word's beginning to its end; of two cuts of one sum the one whose last piece begins first is kept. A character that
 * no piece of its own length covers may be unknown, at the lowest score of the vocabulary less 10. Unknown characters
 * that follow each other are one text; what is unknown falls back to its bytes where the model says so and all of them
 * are there, else it is the unknown token. */
#ifndef LS_TEXT_UNIGRAM_H
#define LS_TEXT_UNIGRAM_H

#include "text/added_tokens.h"
#include "text/bpe.h"

typedef struct ls_unigram {
    ls_token_trie pieces; /* index: id */
    ls_text_map vocab;    /* text to id, borrowed texts */
    double *scores;       /* [n] */
    int64_t n, scores_cap;
    double unknown_score;
    int32_t unk_id; /* -1: none, an error once it is needed */
    bool byte_fallback;
    int32_t byte_ids[256]; /* of <0x00>..<0xFF>, -1 where absent */
} ls_unigram;

/* The piece of id n; its text must outlive the model. *added is false when the text is already there. */
ls_status ls_unigram_add(ls_unigram *unigram, const char *text, int64_t bytes, double score, bool *added,
                         ls_error *err);
/* Fills unknown_score and byte_ids once all pieces are there. */
void ls_unigram_finish(ls_unigram *unigram);
void ls_unigram_deinit(ls_unigram *unigram);

/* Appends the word's ids. The word is valid UTF-8. */
ls_status ls_unigram_encode(const ls_unigram *unigram, const char *word, int64_t bytes, ls_ids *ids, ls_error *err);

#endif
