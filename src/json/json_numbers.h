/* Numbers of a JSON text that the JSON library refuses or rounds: whole numbers beyond 64 bits, and numbers with more
 * digits than a double has. In the text that it reads other numbers of the same length stand in for them, so that its
 * errors name the right place; what they were is kept beside. */
#ifndef LS_JSON_JSON_NUMBERS_H
#define LS_JSON_JSON_NUMBERS_H

#include "base/status.h"

typedef enum ls_numbers_mode {
    LS_NUMBERS_PLAIN, /* 17 digits, which every double has, are read as the double; one that is infinite stays and is
                         refused */
    LS_NUMBERS_EXACT  /* no number is rounded, none is too large */
} ls_numbers_mode;

typedef struct ls_kept_number {
    int64_t index; /* among all numbers of the text */
    char *text;
} ls_kept_number;

typedef struct ls_kept_numbers {
    char *json; /* a copy with stand-ins; NULL: the text as it is has no such number */
    ls_kept_number *list;
    int64_t n, cap;
} ls_kept_numbers;

/* Fails where memory is out or, with the number, where an exponent has more than 15 digits. `name` starts errors. */
ls_status ls_kept_numbers_open(ls_kept_numbers *out, const char *json, int64_t bytes, ls_numbers_mode mode,
                               const char *name, ls_error *err);
void ls_kept_numbers_close(ls_kept_numbers *numbers);

#endif
