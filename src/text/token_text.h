/* Growable text, and a text cut into pieces: what every step of tokenization reads and writes.
 * Each text carries its own limit, so that replacement rules from a hostile file cannot grow it without bound. */
#ifndef LS_TEXT_TOKEN_TEXT_H
#define LS_TEXT_TOKEN_TEXT_H

#include "base/status.h"

typedef struct ls_text {
    char *data; /* released by ls_text_deinit; not NUL-terminated */
    int64_t bytes, cap;
    int64_t bytes_max; /* 0: no limit */
} ls_text;

ls_status ls_text_append(ls_text *text, const char *data, int64_t bytes, ls_error *err);
ls_status ls_text_append_code(ls_text *text, int32_t code, ls_error *err);
void ls_text_deinit(ls_text *text);

typedef struct ls_piece {
    int64_t begin, bytes;
    bool at_start; /* its first byte stems from the first byte of the caller's text */
} ls_piece;

typedef struct ls_pieces {
    ls_text text;
    ls_piece *items;
    int64_t n, cap;
} ls_pieces;

/* Appends a piece with its text. */
ls_status ls_pieces_append(ls_pieces *pieces, const char *data, int64_t bytes, bool at_start, ls_error *err);
/* Adds the piece that covers what was appended to pieces->text since `begin`, be it empty. */
ls_status ls_pieces_close(ls_pieces *pieces, int64_t begin, bool at_start, ls_error *err);
void ls_pieces_clear(ls_pieces *pieces);
void ls_pieces_deinit(ls_pieces *pieces);

/* Room that rewriting rules may use for `bytes` of input: generous for real rules (compatibility decomposition grows
 * text 11 times), finite for hostile ones. */
int64_t ls_text_growth_max(int64_t bytes);

#endif
