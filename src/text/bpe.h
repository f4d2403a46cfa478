/* The byte-pair-encoding model: a word in, token ids out.
 *
 * A word starts as one symbol per character (an unknown character falls back to its bytes, to the unknown token, or
 * is dropped, as the model says). Then, while any neighbouring pair has a merge, the one of lowest rank, leftmost on a
 * tie, is replaced by its result. */
#ifndef LS_TEXT_BPE_H
#define LS_TEXT_BPE_H

#include "text/token_map.h"
#include "text/token_text.h"

#define LS_BPE_LOW_CODES 512 /* covers the alphabet of byte-level models, U+0000..U+0143 */

typedef struct ls_bpe {
    ls_text_map vocab;
    ls_pair_map merges; /* pair of ids -> rank, id of the result */
    char *unk_token;    /* NULL: unknown characters are dropped */
    int32_t unk_id;     /* -1: unk_token is not in the vocabulary, an error once it is needed */
    char *prefix;       /* put before every character but a word's first when it is looked up; NULL for none */
    char *suffix;       /* put after a word's last character; NULL for none */
    bool fuse_unk, byte_fallback, ignore_merges;
    int32_t byte_ids[256];             /* of <0x00>..<0xFF>, -1 where absent */
    int32_t low_ids[LS_BPE_LOW_CODES]; /* of single-character tokens below U+0200, -1 where absent */
} ls_bpe;

/* Fills byte_ids, low_ids and unk_id once vocab and the fields above are final. */
void ls_bpe_finish(ls_bpe *bpe);
void ls_bpe_deinit(ls_bpe *bpe);

typedef struct ls_ids {
    int32_t *items;
    int64_t n, cap;
} ls_ids;

ls_status ls_ids_append(ls_ids *ids, int32_t id, ls_error *err);

/* Scratch memory of one encoder, kept from word to word. */
typedef struct ls_bpe_scratch {
    struct ls_bpe_symbol *symbols;
    int64_t symbols_n, symbols_cap;
    struct ls_bpe_merge *heap;
    int64_t heap_n, heap_cap;
    ls_text unit; /* a character with its prefix or suffix */
} ls_bpe_scratch;

void ls_bpe_scratch_deinit(ls_bpe_scratch *scratch);

/* Appends the word's ids. The word is valid UTF-8 of fewer than 2^31 bytes. */
ls_status ls_bpe_encode(const ls_bpe *bpe, ls_bpe_scratch *scratch, const char *word, int64_t bytes, ls_ids *ids,
                        ls_error *err);

#endif
