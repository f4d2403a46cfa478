/* Memory that the host cannot touch: one stretch of reserved addresses, without access except while it is open. A host
 * access in between ends the program with a sentence that names the buffer. It stands in for a GPU's memory in tests
 * (op/deferred.c).
 *
 * The sentence is written by a handler of SIGSEGV; a fault at any other address goes on to the handler that was there
 * before. A system call that is handed such memory fails with EFAULT instead. */
#ifndef LS_DEV_ARENA_H
#define LS_DEV_ARENA_H

#include "base/status.h"

typedef struct ls_arena ls_arena;

/* Ends the sentence with what its owner knows about the buffer [begin, end): called in the handler of a signal, and
 * calls ls_arena_say and ls_arena_say_number alone. */
typedef void ls_arena_witness(const void *owner, const uint8_t *begin, const uint8_t *end);
void ls_arena_say(const char *text);
void ls_arena_say_number(int64_t number);

/* Addresses are reserved, memory is not: 256 GiB where they can be had, else half of it and so on. */
ls_status ls_arena_make(ls_arena **out, ls_arena_witness *witness, const void *owner, ls_error *err);
void ls_arena_free(ls_arena *arena); /* accepts NULL; its memory goes with it */

/* Zeroed memory at a multiple of the system's page, at least 4096 bytes, backed where it is touched. At least a page of
 * nobody lies behind it. `what` names it; bytes may be 0. */
ls_status ls_arena_alloc(ls_arena *arena, void **out, int64_t bytes, const char *what, ls_error *err);
/* Takes back memory that ls_arena_alloc gave, at the next ls_arena_close: an access that is under way may need it. */
void ls_arena_release(ls_arena *arena, void *memory);

ls_status ls_arena_open(ls_arena *arena, ls_error *err);
void ls_arena_close(ls_arena *arena);

/* Puts the handler back where somebody else, such as a test framework, has set one. */
void ls_arena_watch(void);

#endif
