/* The known name that somebody probably meant. */
#ifndef LS_BASE_CLOSEST_H
#define LS_BASE_CLOSEST_H

#include <stdint.h>

/* Begins as {0}; the name is borrowed. */
typedef struct ls_closest {
    const char *name; /* NULL: none is near */
    int64_t distance;
} ls_closest;

/* Takes the name if it is nearer to text[0..bytes) than those before: fewest letters inserted, left out, exchanged or
 * swapped with a neighbour, a third of the letters at most (and at least one). */
void ls_closest_try(ls_closest *closest, const char *text, int64_t bytes, const char *name);

#define LS_CLOSEST_HINT_MAX 96
/* "; did you mean PREFIXname?", or nothing. Returns out. */
const char *ls_closest_hint(char out[LS_CLOSEST_HINT_MAX], const ls_closest *closest, const char *prefix);

#endif
