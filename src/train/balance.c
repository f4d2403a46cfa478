/* The way down the tree. */
#include "train/balance.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

typedef struct sequence {
    int64_t length, number;
} sequence;

static int by_number(const void *a, const void *b) {
    const sequence *x = a, *y = b;
    return (x->number > y->number) - (x->number < y->number);
}

static int by_length(const void *a, const void *b) {
    const sequence *x = a, *y = b;
    return x->length != y->length ? (x->length < y->length) - (x->length > y->length) : by_number(a, b);
}

/* A child of a node: room for so many sequences, and those that it has. */
typedef struct child {
    sequence *list;
    int64_t room, n, tokens;
} child;

/* Whether a has at most as many tokens for its room as b. */
static bool has_no_more(const child *a, const child *b) { return a->tokens * b->room <= b->tokens * a->room; }

static void give(child *c, const sequence *s) {
    c->list[c->n++] = *s;
    c->tokens += s->length;
}

/* A node's sequences, longest first, to its children; to_right has room for half of them. */
static void deal(sequence *list, int64_t n, int64_t leaf, sequence *to_right) {
    child left = {.list = list, .room = leaf}, right = {.list = to_right};
    if (n <= leaf) {
        qsort(list, (size_t)n, sizeof *list, by_number);
        return;
    }
    while (2 * left.room < n) left.room *= 2;
    right.room = n - left.room;
    for (int64_t i = 0; i < n; i++) {
        const bool takes_left = left.n < left.room && (right.n == right.room || has_no_more(&left, &right));
        give(takes_left ? &left : &right, &list[i]);
    }
    memcpy(list + left.room, right.list, (size_t)right.room * sizeof *list);
    deal(list, left.room, leaf, to_right);
    deal(list + left.room, right.room, leaf, to_right);
}

ls_status ls_balance(int64_t *order, const int64_t *lengths, int64_t n, int64_t leaf, ls_error *err) {
    sequence *list = NULL;
    ls_status status;
    LS_ASSERT(n > 0 && leaf > 0, "%lld sequences in leaves of %lld", (long long)n, (long long)leaf);
    LS_TRY_DONE(ls_array_alloc((void **)&list, n, 2 * (int64_t)sizeof *list, "leaves by length", err));
    for (int64_t i = 0; i < n; i++) list[i] = (sequence){lengths[i], i};
    qsort(list, (size_t)n, sizeof *list, by_length);
    deal(list, n, leaf, list + n);
    for (int64_t i = 0; i < n; i++) order[i] = list[i].number;
done:
    free(list);
    return status;
}
