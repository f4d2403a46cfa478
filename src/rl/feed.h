/* Numbers that one thread puts and another takes as they come, each once: which items of an ask are there. Who takes
 * them waits for fd among other things. */
#ifndef LS_RL_FEED_H
#define LS_RL_FEED_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct ls_feed ls_feed;

/* Of at most n numbers between two beginnings. */
ls_status ls_feed_create(ls_feed **out, int64_t n, ls_error *err);
void ls_feed_free(ls_feed *feed); /* accepts NULL */
/* Nothing is there, and more is to come. Nobody may take meanwhile. */
void ls_feed_begin(ls_feed *feed);
void ls_feed_put(ls_feed *feed, int64_t i);
void ls_feed_end(ls_feed *feed); /* nothing more comes */
/* False: nothing is there now. */
bool ls_feed_take(ls_feed *feed, int64_t *i);
/* Nothing is left, and nothing more comes. */
bool ls_feed_is_over(ls_feed *feed);
/* Readable when there may be something new: a number, or the end; until a take has found nothing. */
int ls_feed_fd(const ls_feed *feed);
/* Takes what comes until it is over. */
void ls_feed_wait(ls_feed *feed);

#endif
