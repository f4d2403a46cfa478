/* The prefix cache of a hybrid model: a radix tree over token ids. An edge owns references to the KV pages of its
 * tokens; a node may own one immutable snapshot of the recurrent state behind its last token. A hit is the deepest node
 * with a snapshot on the path of a prompt; KV beyond it only tells where a branch is.
 *
 * What makes a stale or foreign state impossible:
 *   - tokens are compared id by id on every lookup; no hash decides anything
 *   - the root is keyed by (weights version, numerical digest); another key finds an empty tree and drops the old one
 *   - an entry that was taken under one key is not published under another
 *   - entries are published only from a finished forward, and never written again: whoever continues from a shared
 *     page takes a copy of it first
 *
 * Snapshots live in entries 0..n_snapshots-1 of a store that the caller owns and fills; pages are ids of the caller's
 * pool. An edge holds one reference to every page that its tokens touch: a page that straddles two edges is held by
 * both, each in the version that its publisher had; their common tokens have the same bits in either. References of
 * edges that are not pinned are loose (ids.h), so that the pool knows how many pages eviction would free.
 *
 * With a window, tokens behind a snapshot see the pages of the last ones alone (op/attention.h). A snapshot keeps
 * those, and the cache gives back what no snapshot below needs: an edge may have pages of its end only, or none. So no
 * hit lacks a page, and a place whose pages are gone has no snapshot: it is a miss, and tells where a branch is.
 *
 * Nothing allocates after creation: nodes, token and page arrays come from arenas sized at creation (nodes_max,
 * tokens_max); when one is full, the least valuable leaf goes.
 *
 * Value of an entry: tokens that its hits saved, publication counting as one, for each byte of its snapshot and, of a
 * leaf, of the pages that no edge above it has; 0 without a snapshot. The older last use goes first among equals. */
#ifndef LS_ROLLOUT_PREFIX_H
#define LS_ROLLOUT_PREFIX_H

#include "base/status.h"
#include "rollout/ids.h"

typedef struct ls_prefix ls_prefix;
typedef struct ls_prefix_node ls_prefix_node;

typedef struct ls_prefix_opts {
    int64_t n_snapshots;    /* entries of the snapshot store */
    int64_t snapshot_bytes; /* of one, all layers together */
    int64_t page_tokens;
    int64_t page_bytes; /* of one, all layers together */
    int64_t tokens_max; /* token ids that all edges together may hold */
    int64_t nodes_max;
    int64_t window;                                    /* positions that pages must reach back; 0: all */
    ls_ids *pages;                                     /* the page pool; references are shared and released here */
    void (*page_freed)(void *context, int32_t page_i); /* after the last reference to a page went; or NULL */
    void *context;
} ls_prefix_opts;

/* Weights version and numerical digest of what an entry was computed with. */
typedef struct ls_prefix_key {
    uint64_t weights, digest;
} ls_prefix_key;

/* What a lookup found. */
typedef struct ls_prefix_hit {
    int64_t n_tokens; /* depth of the snapshot; 0: a miss */
    int32_t snapshot; /* entry of the store, -1 for a miss */
    ls_prefix_node *node;
    /* Tokens that the tree shares with the prompt, whatever depth_max, n_tokens or more: a branch point if it ends
     * inside. */
    int64_t n_matched;
} ls_prefix_hit;

typedef struct ls_prefix_stats {
    int64_t lookups, hits, tokens_asked, tokens_hit;
    int64_t published;
    int64_t snapshots_evicted, pages_evicted; /* to make room; pages: that came free by it */
    int64_t out_of_window;                    /* lookups that left the tree where pages in front of a window are gone */
    int64_t nodes, snapshots, pages;          /* held now; pages: references, of which a straddling page has several */
} ls_prefix_stats;

ls_status ls_prefix_create(ls_prefix **out, const ls_prefix_opts *opts, ls_error *err);
/* Releases every page that the tree holds. */
void ls_prefix_free(ls_prefix *prefix);

/* From now on the tree answers for this key ({0, 0} before the first call). A key other than the last one drops every
 * entry that is not pinned, and pinned ones as soon as they are unpinned; none of them can be found any more. */
void ls_prefix_set_key(ls_prefix *prefix, ls_prefix_key key);

/* The deepest snapshot of at most depth_max tokens on the path of tokens [n]. The hit's node is pinned (it, its
 * ancestors, their pages and its snapshot stay) until ls_prefix_unpin; a miss pins nothing. Fills pages [first,
 * ceil(n_tokens / page_tokens)), first being that of ls_attention_begin, each with a reference of its own for the
 * caller, which unpin does not give back. Counts in the statistics unless `quiet`. */
void ls_prefix_lookup(ls_prefix *prefix, const int32_t *tokens, int64_t n, int64_t depth_max, bool quiet,
                      ls_prefix_hit *hit, int32_t *pages);
void ls_prefix_unpin(ls_prefix *prefix, ls_prefix_node *node);
/* The page that holds tokens [page_i * page_tokens, ..) of a pinned node's path, as far as the path goes; -1: it is in
 * front of the window, and gone. */
int32_t ls_prefix_page(const ls_prefix *prefix, const ls_prefix_node *node, int64_t page_i);

/* Whether a snapshot at this exact depth is already there, so that nothing need be published. */
bool ls_prefix_has(const ls_prefix *prefix, const int32_t *tokens, int64_t n);

/* Takes an entry of the snapshot store for the caller to fill, evicting the least valuable snapshot when none is free
 * (its edge stays and tells where a branch is); -1 when all are pinned or being filled. The entry goes into the tree by
 * publish or comes back by return. */
int32_t ls_prefix_take(ls_prefix *prefix);
void ls_prefix_return(ls_prefix *prefix, int32_t snapshot);
/* tokens [n] have been computed and committed: their KV lies in pages [first, ceil(n / page_tokens)), as at lookup, the
 * state behind the last in snapshot. Shares the pages of the window that the tree has not got. Where the node already
 * has a snapshot, an arena stays full or the key has changed since take, the new one is returned to the store; false
 * then. n is at least 1. */
bool ls_prefix_publish(ls_prefix *prefix, const int32_t *tokens, int64_t n, const int32_t *pages, int32_t snapshot);

/* Gives up pages until the pool has at least n free ones: of the leaves that free any, as far as can be told, the least
 * valuable first. False, and nothing given up, where even everything unpinned would not be enough. The snapshot of an
 * inner node stays as long as a leaf below it: it would free no page. */
bool ls_prefix_make_room(ls_prefix *prefix, int64_t n);
/* Gives up what is unpinned and refers to a page, with everything below it, for a holder that wants to write there. */
void ls_prefix_forget_page(ls_prefix *prefix, int32_t page_i);
/* Drops everything that is not pinned; what is can still be found. */
void ls_prefix_clear(ls_prefix *prefix);

void ls_prefix_get_stats(const ls_prefix *prefix, ls_prefix_stats *out);
/* Walks the whole tree and asserts its invariants: edges not empty, siblings differ in their first token, references
 * and counts add up. For tests. */
void ls_prefix_check(const ls_prefix *prefix);

#endif
