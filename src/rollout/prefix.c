/* The radix tree behind prefix hits. Owns its nodes, their token ids and one reference to each page of an edge.
 *
 * Tokens and pages of an edge lie in blocks: one for each page that the edge touches, with the page's id and the edge's
 * tokens where they stand in it. A page that straddles two edges has a block in both. An edge of L tokens touches fewer
 * than L / page_tokens + 2 pages, so tokens_max / page_tokens + 2 nodes_max blocks are always enough: what may run out
 * is nodes and tokens.
 *
 * A node is where an entry ends (a snapshot, or what is left of one that lost its snapshot while nothing continued it)
 * or where edges part; any other is merged into its child. The straddling page is then the child's, which holds the
 * same tokens with the same bits.
 *
 * A block without a page (-1) is in front of the windows of all snapshots at and below its node. */
#include "rollout/prefix.h"

#include <stdlib.h>
#include <string.h>

#include "base/inject.h"
#include "base/mem.h"
#include "op/attention.h"

struct ls_prefix_node {
    ls_prefix_node *parent;  /* NULL: one of the two roots */
    ls_prefix_node *child;   /* first of its children */
    ls_prefix_node *sibling; /* next child of the same parent, or next free node */
    int64_t begin, end;      /* depths: its edge holds tokens [begin, end) of the path */
    int64_t block, last;     /* first and last block of the edge */
    int64_t saved;           /* tokens, by publication and hits of its snapshot */
    int64_t used;            /* when it was published or hit last, or made by a split */
    int64_t pins;            /* of itself and everything below */
    int32_t snapshot;        /* -1: none */
    bool live;
};

struct ls_prefix {
    ls_prefix_opts opts;
    ls_prefix_key key;
    bool keyed;          /* a key was set */
    int64_t epoch;       /* counts keys */
    int64_t clock;       /* counts uses */
    ls_prefix_node root; /* of what can be found */
    ls_prefix_node old;  /* of pinned entries of earlier keys */

    ls_prefix_node *nodes; /* [nodes_max]; from n_nodes_touched on never used */
    ls_prefix_node *free_node;
    int64_t n_nodes_touched;
    int64_t n_tokens; /* of all edges */

    int64_t n_blocks_max, n_blocks_touched, n_blocks, free_block;
    int32_t *block_tokens; /* [n_blocks_max][page_tokens] */
    int32_t *block_page;   /* [n_blocks_max] */
    int64_t *block_next;   /* [n_blocks_max], -1 at the end of an edge or of the free list */

    int32_t *free_snapshot; /* stack */
    int64_t n_free_snapshots;
    int64_t *taken; /* [n_snapshots] epoch in which an entry was taken and is being filled; 0: it is not */

    int64_t n_pages, n_pages_freed; /* references that it has; pages that came free by it */
    ls_prefix_stats stats;
};

/* Where a sequence leaves the tree: at depth, on the edge of node or at its end. */
typedef struct ls_prefix_position {
    ls_prefix_node *node;
    int64_t depth;
} ls_prefix_position;

/* Blocks. */

static int32_t *tokens_of(const ls_prefix *prefix, int64_t block) {
    return prefix->block_tokens + block * prefix->opts.page_tokens;
}

static void acquire_page(ls_prefix *prefix, int64_t block, int32_t page_i, bool loose) {
    prefix->block_page[block] = page_i;
    if (page_i < 0) return;
    prefix->n_pages++;
    ls_ids_share(prefix->opts.pages, page_i);
    if (loose) ls_ids_loosen(prefix->opts.pages, page_i);
}

static void release_page(ls_prefix *prefix, int64_t block, bool loose) {
    const int32_t page_i = prefix->block_page[block];
    prefix->block_page[block] = -1;
    if (page_i < 0) return;
    prefix->n_pages--;
    if (loose) ls_ids_tighten(prefix->opts.pages, page_i);
    if (!ls_ids_release(prefix->opts.pages, page_i)) return;
    prefix->n_pages_freed++;
    if (prefix->opts.page_freed != NULL) prefix->opts.page_freed(prefix->opts.context, page_i);
}

/* A block for a page, with a reference of its own: loose, as those of all edges that are not pinned, where it may be
 * evicted. */
static int64_t acquire_block(ls_prefix *prefix, int32_t page_i, bool loose) {
    int64_t block = prefix->free_block;
    if (block >= 0)
        prefix->free_block = prefix->block_next[block];
    else
        block = prefix->n_blocks_touched++;
    LS_ASSERT(block < prefix->n_blocks_max, "more than %lld blocks", (long long)prefix->n_blocks_max);
    acquire_page(prefix, block, page_i, loose);
    prefix->block_next[block] = -1;
    prefix->n_blocks++;
    return block;
}

static void release_block(ls_prefix *prefix, int64_t block, bool loose) {
    prefix->block_next[block] = prefix->free_block;
    prefix->free_block = block;
    prefix->n_blocks--;
    release_page(prefix, block, loose);
}

/* The block behind n others. */
static int64_t block_at(const ls_prefix *prefix, int64_t block, int64_t n) {
    while (n-- > 0) block = prefix->block_next[block];
    return block;
}

/* The first page that tokens behind `depth` see. */
static int64_t first_page(const ls_prefix *prefix, int64_t depth) {
    return ls_attention_begin(depth, prefix->opts.window) / prefix->opts.page_tokens;
}

static int64_t pages_before(const ls_prefix *prefix, int64_t depth) {
    return (depth + prefix->opts.page_tokens - 1) / prefix->opts.page_tokens;
}

/* Nodes. */

static ls_prefix_node *acquire_node(ls_prefix *prefix, ls_prefix_node *parent, int64_t begin, int64_t end) {
    ls_prefix_node *node = prefix->free_node;
    if (node != NULL)
        prefix->free_node = node->sibling;
    else
        node = &prefix->nodes[prefix->n_nodes_touched++];
    LS_ASSERT(prefix->stats.nodes < prefix->opts.nodes_max, "more than %lld nodes", (long long)prefix->opts.nodes_max);
    prefix->stats.nodes++;
    *node = (ls_prefix_node){.parent = parent,
                             .begin = begin,
                             .end = end,
                             .block = -1,
                             .last = -1,
                             .snapshot = -1,
                             .used = ++prefix->clock,
                             .live = true};
    return node;
}

static void release_node(ls_prefix *prefix, ls_prefix_node *node) {
    node->live = false;
    node->sibling = prefix->free_node;
    prefix->free_node = node;
    prefix->stats.nodes--;
}

static void free_snapshot(ls_prefix *prefix, int32_t snapshot) {
    prefix->free_snapshot[prefix->n_free_snapshots++] = snapshot;
}

static void drop_snapshot(ls_prefix *prefix, ls_prefix_node *node) {
    free_snapshot(prefix, node->snapshot);
    prefix->stats.snapshots--;
    node->snapshot = -1;
    node->saved = 0;
}

/* Gives up what a node holds, and the node. */
static void drop_node(ls_prefix *prefix, ls_prefix_node *node) {
    for (int64_t block = node->block, next; block >= 0; block = next) {
        next = prefix->block_next[block];
        release_block(prefix, block, node->pins == 0);
    }
    if (node->snapshot >= 0) drop_snapshot(prefix, node);
    prefix->n_tokens -= node->end - node->begin;
    release_node(prefix, node);
}

static int32_t first_token(const ls_prefix *prefix, const ls_prefix_node *node) {
    return tokens_of(prefix, node->block)[node->begin % prefix->opts.page_tokens];
}

/* The link that names node. */
static ls_prefix_node **link_to(ls_prefix_node *node) {
    ls_prefix_node **link = &node->parent->child;
    while (*link != node) link = &(*link)->sibling;
    return link;
}

/* What is pinned cannot be evicted: its references are firm. */
static void add_pins(const ls_prefix *prefix, ls_prefix_node *node, int64_t n) {
    for (; node->parent != NULL; node = node->parent) {
        const bool was_loose = node->pins == 0;
        node->pins += n;
        if (was_loose == (node->pins == 0)) continue;
        for (int64_t block = node->block; block >= 0; block = prefix->block_next[block])
            if (prefix->block_page[block] >= 0)
                (was_loose ? ls_ids_tighten : ls_ids_loosen)(prefix->opts.pages, prefix->block_page[block]);
    }
}

/* Merges a node into its only child when nothing else needs it. */
static void tidy(ls_prefix *prefix, ls_prefix_node *node) {
    const int64_t page_tokens = prefix->opts.page_tokens, straddle = node->end / page_tokens * page_tokens;
    ls_prefix_node *child = node->child;
    int64_t n_kept;
    if (node->parent == NULL || node->snapshot >= 0) return;
    if (child == NULL || child->sibling != NULL || child->pins != node->pins) return;
    n_kept = node->end / page_tokens - node->begin / page_tokens;
    if (straddle < node->end) { /* the child's block takes the tokens over */
        memcpy(tokens_of(prefix, child->block), tokens_of(prefix, node->last),
               (size_t)(node->end - straddle) * sizeof(int32_t));
        release_block(prefix, node->last, node->pins == 0);
    }
    if (n_kept > 0) {
        prefix->block_next[block_at(prefix, node->block, n_kept - 1)] = child->block;
        child->block = node->block;
    }
    child->begin = node->begin;
    child->parent = node->parent;
    child->sibling = node->sibling;
    *link_to(node) = child;
    release_node(prefix, node);
}

/* The depth of the highest snapshot at a node or below it; INT64_MAX: none. */
static int64_t highest_snapshot(const ls_prefix_node *node) {
    const ls_prefix_node *at = node;
    int64_t depth = INT64_MAX;
    for (;;) {
        const bool found = at->snapshot >= 0;
        if (found && at->end < depth) depth = at->end;
        if (!found && at->child != NULL) {
            at = at->child;
            continue;
        }
        while (at != node && at->sibling == NULL) at = at->parent;
        if (at == node) return depth;
        at = at->sibling;
    }
}

/* Gives up the pages of a node's edge, and of those above, that no snapshot needs any more. */
static void drop_unseen_pages(ls_prefix *prefix, ls_prefix_node *node) {
    for (; prefix->opts.window > 0 && node->parent != NULL; node = node->parent) {
        const int64_t first = first_page(prefix, highest_snapshot(node));
        int64_t page_i = node->begin / prefix->opts.page_tokens;
        for (int64_t block = node->block; block >= 0 && page_i < first; block = prefix->block_next[block], page_i++)
            release_page(prefix, block, node->pins == 0);
    }
}

static void remove_leaf(ls_prefix *prefix, ls_prefix_node *leaf) {
    ls_prefix_node *parent = leaf->parent;
    LS_ASSERT(leaf->child == NULL && leaf->pins == 0, "%lld pins", (long long)leaf->pins);
    *link_to(leaf) = leaf->sibling;
    drop_node(prefix, leaf);
    drop_unseen_pages(prefix, parent);
    tidy(prefix, parent);
}

/* Cuts a node's edge at depth: a new node above takes the tokens before it. Callers keep pointers to pinned nodes, so
 * the node itself stays the lower one. */
static ls_prefix_node *split_edge(ls_prefix *prefix, ls_prefix_node *node, int64_t depth) {
    const int64_t page_tokens = prefix->opts.page_tokens;
    ls_prefix_node *head = acquire_node(prefix, node->parent, node->begin, depth), **link = link_to(node);
    int64_t below;
    head->block = node->block;
    head->last = block_at(prefix, node->block, (depth - 1) / page_tokens - node->begin / page_tokens);
    below = prefix->block_next[head->last];
    prefix->block_next[head->last] = -1;
    if (depth % page_tokens != 0) {
        const int64_t copy = acquire_block(prefix, prefix->block_page[head->last], node->pins == 0);
        memcpy(tokens_of(prefix, copy), tokens_of(prefix, head->last), (size_t)page_tokens * sizeof(int32_t));
        prefix->block_next[copy] = below;
        if (below < 0) node->last = copy;
        below = copy;
    }
    head->pins = node->pins;
    head->child = node;
    head->sibling = node->sibling;
    *link = head;
    node->parent = head;
    node->sibling = NULL;
    node->begin = depth;
    node->block = below;
    return head;
}

/* A new leaf for tokens [parent's end, n). */
static ls_prefix_node *append_leaf(ls_prefix *prefix, ls_prefix_node *parent, const int32_t *tokens, int64_t n,
                                   const int32_t *pages) {
    const int64_t page_tokens = prefix->opts.page_tokens, first = first_page(prefix, n);
    ls_prefix_node *leaf = acquire_node(prefix, parent, parent->end, n);
    for (int64_t from = parent->end, to; from < n; from = to) {
        const int64_t page_i = from / page_tokens;
        const int64_t block = acquire_block(prefix, page_i < first ? -1 : pages[page_i], true);
        to = (page_i + 1) * page_tokens < n ? (page_i + 1) * page_tokens : n;
        memcpy(tokens_of(prefix, block) + from % page_tokens, tokens + from, (size_t)(to - from) * sizeof(int32_t));
        if (leaf->last >= 0)
            prefix->block_next[leaf->last] = block;
        else
            leaf->block = block;
        leaf->last = block;
    }
    leaf->sibling = parent->child;
    parent->child = leaf;
    prefix->n_tokens += n - parent->end;
    return leaf;
}

/* Search. */

static ls_prefix_node *find_child(const ls_prefix *prefix, const ls_prefix_node *node, int32_t token) {
    ls_prefix_node *child = node->child;
    while (child != NULL && first_token(prefix, child) != token) child = child->sibling;
    return child;
}

/* The depth up to which tokens [n] follow a node's edge. */
static int64_t follow(const ls_prefix *prefix, const ls_prefix_node *node, const int32_t *tokens, int64_t n) {
    const int64_t page_tokens = prefix->opts.page_tokens, limit = node->end < n ? node->end : n;
    int64_t depth = node->begin, block = node->block;
    /* The caller has looked at the first token. */
    if (LS_INJECTED(LS_INJECT_PREFIX_CROSS) && node->end <= n) return node->end;
    while (depth < limit) {
        const int32_t *stored = tokens_of(prefix, block);
        const int64_t page = depth / page_tokens * page_tokens;
        const int64_t stop = page + page_tokens < limit ? page + page_tokens : limit;
        for (; depth < stop; depth++)
            if (stored[depth - page] != tokens[depth]) return depth;
        block = prefix->block_next[block];
    }
    return depth;
}

static ls_prefix_position find_position(const ls_prefix *prefix, const int32_t *tokens, int64_t n) {
    /* The place is where the caller will change the tree, if it may. */
    ls_prefix_position position = {(ls_prefix_node *)&prefix->root, 0};
    while (position.depth < n && position.depth == position.node->end) {
        ls_prefix_node *child = find_child(prefix, position.node, tokens[position.depth]);
        if (child == NULL) break;
        position.node = child;
        position.depth = follow(prefix, child, tokens, n);
    }
    return position;
}

/* Eviction. */

/* Pages that go with a leaf, which has a snapshot: the first is not its own where the edge above has it too. */
static int64_t own_pages(const ls_prefix *prefix, const ls_prefix_node *leaf) {
    const int64_t begin = leaf->begin / prefix->opts.page_tokens, first = first_page(prefix, leaf->end);
    const bool shared = first <= begin && leaf->begin % prefix->opts.page_tokens != 0 &&
                        prefix->block_page[leaf->parent->last] == prefix->block_page[leaf->block];
    return pages_before(prefix, leaf->end) - ls_max_i64(begin, first) - shared;
}

/* Tokens saved for each byte that would be free without the entry. */
static double value(const ls_prefix *prefix, const ls_prefix_node *node) {
    double bytes = (double)prefix->opts.snapshot_bytes;
    if (node->snapshot < 0) return 0;
    if (node->child == NULL) bytes += (double)own_pages(prefix, node) * (double)prefix->opts.page_bytes;
    return (double)node->saved / (bytes > 1 ? bytes : 1);
}

typedef enum candidates { SNAPSHOTS, LEAVES, LEAVES_OF_PAGES } candidates;

/* Whether evicting a node is what is asked for. Of a leaf whose last page others hold firmly they hold the pages before
 * it as well, most often: it would free nothing. */
static bool is_candidate(const ls_prefix *prefix, const ls_prefix_node *node, candidates of) {
    if (!node->live || node->pins > 0) return false;
    if (of == SNAPSHOTS) return node->snapshot >= 0;
    if (node->child != NULL || of == LEAVES) return node->child == NULL;
    return prefix->block_page[node->last] >= 0 && ls_ids_firm(prefix->opts.pages, prefix->block_page[node->last]) == 0;
}

/* The least valuable candidate; NULL when there is none. */
static ls_prefix_node *least_valuable(ls_prefix *prefix, candidates of) {
    ls_prefix_node *least = NULL;
    double least_value = 0;
    for (int64_t i = 0; i < prefix->n_nodes_touched; i++) {
        ls_prefix_node *node = &prefix->nodes[i];
        double node_value;
        if (!is_candidate(prefix, node, of)) continue;
        node_value = value(prefix, node);
        if (least == NULL || node_value < least_value || (node_value == least_value && node->used < least->used)) {
            least = node;
            least_value = node_value;
        }
    }
    return least;
}

static void evict(ls_prefix *prefix, ls_prefix_node *leaf) {
    const int64_t n_pages_freed = prefix->n_pages_freed;
    prefix->stats.snapshots_evicted += leaf->snapshot >= 0;
    remove_leaf(prefix, leaf);
    prefix->stats.pages_evicted += prefix->n_pages_freed - n_pages_freed;
}

static bool evict_leaf(ls_prefix *prefix) {
    ls_prefix_node *leaf = least_valuable(prefix, LEAVES);
    if (leaf != NULL) evict(prefix, leaf);
    return leaf != NULL;
}

/* A snapshot goes; the edge stays, and still tells where a branch is. */
static bool evict_snapshot(ls_prefix *prefix) {
    ls_prefix_node *node = least_valuable(prefix, SNAPSHOTS);
    if (node == NULL) return false;
    prefix->stats.snapshots_evicted++;
    drop_snapshot(prefix, node);
    drop_unseen_pages(prefix, node);
    tidy(prefix, node);
    return true;
}

static void drop_children_unpinned(ls_prefix_node *node) {
    for (ls_prefix_node **link = &node->child; *link != NULL;) {
        if ((*link)->pins == 0)
            *link = (*link)->sibling;
        else
            link = &(*link)->sibling;
    }
}

/* Creation. */

static ls_status check_opts(const ls_prefix_opts *opts, ls_error *err) {
    if (opts->pages == NULL) return LS_FAIL(err, LS_ERR_ARG, "prefix cache: no page pool");
    if (opts->page_tokens < 1)
        return LS_FAIL(err, LS_ERR_ARG, "prefix cache: page_tokens is %lld", (long long)opts->page_tokens);
    if (opts->n_snapshots < 0 || opts->n_snapshots > INT32_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "prefix cache: n_snapshots is %lld", (long long)opts->n_snapshots);
    if (opts->snapshot_bytes < 0 || opts->page_bytes < 0)
        return LS_FAIL(err, LS_ERR_ARG, "prefix cache: snapshot_bytes is %lld and page_bytes %lld",
                       (long long)opts->snapshot_bytes, (long long)opts->page_bytes);
    if (opts->tokens_max < 0 || opts->nodes_max < 0)
        return LS_FAIL(err, LS_ERR_ARG, "prefix cache: tokens_max is %lld and nodes_max %lld",
                       (long long)opts->tokens_max, (long long)opts->nodes_max);
    if (opts->window < 0) return LS_FAIL(err, LS_ERR_ARG, "prefix cache: window is %lld", (long long)opts->window);
    return LS_OK;
}

ls_status ls_prefix_create(ls_prefix **out, const ls_prefix_opts *opts, ls_error *err) {
    const char *what = "prefix cache";
    ls_status status = LS_OK;
    ls_prefix *prefix = NULL;
    int64_t n_tokens;
    *out = NULL;
    LS_TRY_DONE(check_opts(opts, err));
    LS_TRY_DONE(ls_array_alloc((void **)&prefix, 1, (int64_t)sizeof *prefix, what, err));
    prefix->opts = *opts;
    prefix->epoch = 1;
    prefix->free_block = -1;
    prefix->root.snapshot = prefix->old.snapshot = -1;
    if (!ls_mul_i64(opts->nodes_max, 2, &prefix->n_blocks_max) ||
        !ls_add_i64(prefix->n_blocks_max, opts->tokens_max / opts->page_tokens, &prefix->n_blocks_max) ||
        !ls_mul_i64(prefix->n_blocks_max, opts->page_tokens, &n_tokens)) {
        status = LS_FAIL(err, LS_ERR_NOMEM, "prefix cache: %lld nodes and %lld tokens in pages of %lld",
                         (long long)opts->nodes_max, (long long)opts->tokens_max, (long long)opts->page_tokens);
        goto done;
    }
    LS_TRY_DONE(ls_array_alloc((void **)&prefix->nodes, opts->nodes_max, (int64_t)sizeof *prefix->nodes, what, err));
    LS_TRY_DONE(ls_array_alloc((void **)&prefix->block_tokens, n_tokens, (int64_t)sizeof(int32_t), what, err));
    LS_TRY_DONE(
        ls_array_alloc((void **)&prefix->block_page, prefix->n_blocks_max, (int64_t)sizeof(int32_t), what, err));
    LS_TRY_DONE(
        ls_array_alloc((void **)&prefix->block_next, prefix->n_blocks_max, (int64_t)sizeof(int64_t), what, err));
    LS_TRY_DONE(
        ls_array_alloc((void **)&prefix->free_snapshot, opts->n_snapshots, (int64_t)sizeof(int32_t), what, err));
    LS_TRY_DONE(ls_array_alloc((void **)&prefix->taken, opts->n_snapshots, (int64_t)sizeof(int64_t), what, err));
    for (int64_t i = opts->n_snapshots - 1; i >= 0; i--) free_snapshot(prefix, (int32_t)i);
    *out = prefix;
done:
    if (status != LS_OK) ls_prefix_free(prefix);
    return status;
}

void ls_prefix_free(ls_prefix *prefix) {
    if (prefix == NULL) return;
    for (int64_t i = 0; i < prefix->n_nodes_touched; i++)
        if (prefix->nodes[i].live) drop_node(prefix, &prefix->nodes[i]);
    free(prefix->taken);
    free(prefix->free_snapshot);
    free(prefix->block_next);
    free(prefix->block_page);
    free(prefix->block_tokens);
    free(prefix->nodes);
    free(prefix);
}

void ls_prefix_clear(ls_prefix *prefix) {
    /* What is below a node without pins has none either. */
    drop_children_unpinned(&prefix->root);
    for (int64_t i = 0; i < prefix->n_nodes_touched; i++)
        if (prefix->nodes[i].live) drop_children_unpinned(&prefix->nodes[i]);
    for (int64_t i = 0; i < prefix->n_nodes_touched; i++)
        if (prefix->nodes[i].live && prefix->nodes[i].pins == 0) drop_node(prefix, &prefix->nodes[i]);
    for (int64_t i = 0; i < prefix->n_nodes_touched; i++)
        if (prefix->nodes[i].live) tidy(prefix, &prefix->nodes[i]);
}

void ls_prefix_set_key(ls_prefix *prefix, ls_prefix_key key) {
    ls_prefix_node *node, *next;
    if (LS_INJECTED(LS_INJECT_STALE_WEIGHTS_PREFIX) && prefix->keyed) return;
    prefix->keyed = true;
    if (key.weights == prefix->key.weights && key.digest == prefix->key.digest) return;
    prefix->key = key;
    prefix->epoch++;
    ls_prefix_clear(prefix);
    for (node = prefix->root.child; node != NULL; node = next) {
        next = node->sibling;
        node->parent = &prefix->old;
        node->sibling = prefix->old.child;
        prefix->old.child = node;
    }
    prefix->root.child = NULL;
}

/* Lookup. */

/* Fills the pages of a node's path. Of a page that straddles edges the lowest has the latest version. */
static void share_pages(ls_prefix *prefix, const ls_prefix_node *node, int32_t *pages) {
    const int64_t from = first_page(prefix, node->end);
    int64_t n = pages_before(prefix, node->end); /* pages [n..] are filled */
    for (; node->parent != NULL && n > from; node = node->parent) {
        const int64_t first = node->begin / prefix->opts.page_tokens;
        int64_t block = block_at(prefix, node->block, ls_max_i64(from - first, 0));
        for (int64_t i = ls_max_i64(first, from); i < n; i++, block = prefix->block_next[block]) {
            pages[i] = prefix->block_page[block];
            ls_ids_share(prefix->opts.pages, pages[i]);
        }
        n = first < n ? first : n;
    }
}

/* Whether the last of `known` tokens on a node's path, behind the snapshot at depth `from`, has no page. */
static bool is_out_of_window(const ls_prefix *prefix, const ls_prefix_node *node, int64_t known, int64_t from) {
    return known > from && ls_prefix_page(prefix, node, (known - 1) / prefix->opts.page_tokens) < 0;
}

void ls_prefix_lookup(ls_prefix *prefix, const int32_t *tokens, int64_t n, int64_t depth_max, bool quiet,
                      ls_prefix_hit *hit, int32_t *pages) {
    const ls_prefix_position position = find_position(prefix, tokens, n);
    const int64_t known = ls_min_i64(position.depth, depth_max);
    ls_prefix_node *node = position.node;
    while (node->parent != NULL && (node->snapshot < 0 || node->end > position.depth || node->end > depth_max))
        node = node->parent;
    *hit = (ls_prefix_hit){.snapshot = -1, .n_matched = position.depth};
    if (!quiet) {
        prefix->stats.lookups++;
        prefix->stats.tokens_asked += n;
        prefix->stats.out_of_window += is_out_of_window(prefix, position.node, known, node->end);
    }
    if (node->parent == NULL) return;
    *hit =
        (ls_prefix_hit){.n_tokens = node->end, .snapshot = node->snapshot, .node = node, .n_matched = position.depth};
    node->saved += node->end;
    node->used = ++prefix->clock;
    add_pins(prefix, node, 1);
    share_pages(prefix, node, pages);
    if (!quiet) {
        prefix->stats.hits++;
        prefix->stats.tokens_hit += node->end;
    }
}

void ls_prefix_unpin(ls_prefix *prefix, ls_prefix_node *node) {
    const ls_prefix_node *root = node;
    bool last = false;
    LS_ASSERT(node->live && node->pins > 0 && node->snapshot >= 0, "unpin of a node that no hit gave");
    add_pins(prefix, node, -1);
    while (root->parent != NULL) root = root->parent;
    if (root != &prefix->old) return;
    while (node->parent != NULL && node->pins == 0 && !last) {
        ls_prefix_node *parent = node->parent;
        last = parent->pins > 0; /* removing the leaf may merge such a parent away */
        remove_leaf(prefix, node);
        node = parent;
    }
}

int32_t ls_prefix_page(const ls_prefix *prefix, const ls_prefix_node *node, int64_t page_i) {
    const int64_t each = prefix->opts.page_tokens;
    LS_ASSERT(page_i >= 0 && page_i * each < node->end, "page %lld of a path of %lld tokens", (long long)page_i,
              (long long)node->end);
    while (node->begin / each > page_i) node = node->parent;
    return prefix->block_page[block_at(prefix, node->block, page_i - node->begin / each)];
}

bool ls_prefix_has(const ls_prefix *prefix, const int32_t *tokens, int64_t n) {
    const ls_prefix_position position = find_position(prefix, tokens, n);
    return position.depth == n && position.node->end == n && position.node->snapshot >= 0;
}

/* Publication. */

int32_t ls_prefix_take(ls_prefix *prefix) {
    int32_t snapshot;
    if (prefix->n_free_snapshots == 0 && !evict_snapshot(prefix)) return -1;
    snapshot = prefix->free_snapshot[--prefix->n_free_snapshots];
    prefix->taken[snapshot] = prefix->epoch;
    return snapshot;
}

static void check_taken(const ls_prefix *prefix, int32_t snapshot) {
    LS_ASSERT(snapshot >= 0 && snapshot < prefix->opts.n_snapshots && prefix->taken[snapshot] != 0,
              "snapshot %d is not being filled", snapshot);
}

void ls_prefix_return(ls_prefix *prefix, int32_t snapshot) {
    check_taken(prefix, snapshot);
    prefix->taken[snapshot] = 0;
    free_snapshot(prefix, snapshot);
}

/* Evicts until there is room for so many nodes and tokens at a place, which stays. */
static bool reserve_nodes(ls_prefix *prefix, ls_prefix_position position, int64_t n_nodes, int64_t n_tokens) {
    const int64_t nodes = prefix->opts.nodes_max - n_nodes, tokens = prefix->opts.tokens_max - n_tokens;
    bool fits;
    if (nodes < 0 || tokens < position.depth) return false; /* not even alone */
    add_pins(prefix, position.node, 1);
    do fits = prefix->stats.nodes <= nodes && prefix->n_tokens <= tokens;
    while (!fits && evict_leaf(prefix));
    add_pins(prefix, position.node, -1);
    if (!fits) tidy(prefix, position.node);
    return fits;
}

/* The pages of a node's window that its path lacks. Of a page that straddles edges the lowest gets it. */
static void fill_pages(ls_prefix *prefix, ls_prefix_node *node, const int32_t *pages) {
    const int64_t from = first_page(prefix, node->end);
    int64_t n = pages_before(prefix, node->end); /* pages [n..] are there */
    for (; prefix->opts.window > 0 && node->parent != NULL && n > from; node = node->parent) {
        const int64_t first = node->begin / prefix->opts.page_tokens;
        int64_t block = block_at(prefix, node->block, ls_max_i64(from - first, 0));
        for (int64_t i = ls_max_i64(first, from); i < n; i++, block = prefix->block_next[block])
            if (prefix->block_page[block] < 0) acquire_page(prefix, block, pages[i], node->pins == 0);
        n = first < n ? first : n;
    }
}

/* The node at the end of tokens [n], made where there was none; NULL without room. */
static ls_prefix_node *node_of(ls_prefix *prefix, const int32_t *tokens, int64_t n, const int32_t *pages) {
    const ls_prefix_position position = find_position(prefix, tokens, n);
    const bool inside = position.depth < position.node->end, more = position.depth < n;
    ls_prefix_node *node = position.node;
    if (!inside && !more) return node;
    if (!reserve_nodes(prefix, position, inside + more, n - position.depth)) return NULL;
    if (inside) {
        node = split_edge(prefix, node, position.depth);
        tidy(prefix, position.node); /* where room was made below it */
    }
    if (more) node = append_leaf(prefix, node, tokens, n, pages);
    return node;
}

bool ls_prefix_publish(ls_prefix *prefix, const int32_t *tokens, int64_t n, const int32_t *pages, int32_t snapshot) {
    ls_prefix_node *node = NULL;
    check_taken(prefix, snapshot);
    LS_ASSERT(n > 0, "publication of %lld tokens", (long long)n);
    if (prefix->taken[snapshot] == prefix->epoch) node = node_of(prefix, tokens, n, pages);
    if (node == NULL || node->snapshot >= 0) {
        ls_prefix_return(prefix, snapshot);
        return false;
    }
    prefix->taken[snapshot] = 0;
    prefix->stats.published++;
    prefix->stats.snapshots++;
    node->snapshot = snapshot;
    node->saved = n;
    node->used = ++prefix->clock;
    fill_pages(prefix, node, pages);
    tidy(prefix, node->parent); /* an entry without snapshot that is now continued */
    return true;
}

bool ls_prefix_make_room(ls_prefix *prefix, int64_t n) {
    const ls_ids *pages = prefix->opts.pages;
    if (ls_ids_available(pages) + ls_ids_reclaimable(pages) < n) return false;
    while (ls_ids_available(pages) < n) {
        ls_prefix_node *leaf = least_valuable(prefix, LEAVES_OF_PAGES);
        if (leaf == NULL) leaf = least_valuable(prefix, LEAVES); /* it hides one that does free pages */
        evict(prefix, leaf);
    }
    return true;
}

/* A node that is not pinned and whose edge has the page; NULL: none. */
static ls_prefix_node *holder_of(ls_prefix *prefix, int32_t page_i) {
    for (int64_t i = 0; i < prefix->n_nodes_touched; i++) {
        ls_prefix_node *node = &prefix->nodes[i];
        if (!node->live || node->pins > 0) continue;
        for (int64_t block = node->block; block >= 0; block = prefix->block_next[block])
            if (prefix->block_page[block] == page_i) return node;
    }
    return NULL;
}

void ls_prefix_forget_page(ls_prefix *prefix, int32_t page_i) {
    ls_prefix_node *node;
    while ((node = holder_of(prefix, page_i)) != NULL) {
        while (node->child != NULL) node = node->child;
        evict(prefix, node);
    }
}

/* Inspection. */

void ls_prefix_get_stats(const ls_prefix *prefix, ls_prefix_stats *out) {
    *out = prefix->stats;
    out->pages = prefix->n_pages;
}

static void check_node(const ls_prefix *prefix, const ls_prefix_node *node) {
    const int64_t page_tokens = prefix->opts.page_tokens;
    const ls_prefix_node *child, *other;
    int64_t n_pins = 0, n_children = 0, n_blocks = 0, last = -1;
    for (child = node->child; child != NULL; child = child->sibling) {
        n_children++;
        n_pins += child->pins;
        LS_ASSERT(child->live && child->parent == node, "child %lld", (long long)n_children);
        LS_ASSERT(child->begin == node->end && child->begin < child->end, "child's edge is %lld..%lld",
                  (long long)child->begin, (long long)child->end);
        for (other = child->sibling; other != NULL && node != &prefix->old; other = other->sibling)
            LS_ASSERT(first_token(prefix, child) != first_token(prefix, other), "two children begin alike");
    }
    if (node->parent == NULL) return;
    LS_ASSERT(node->snapshot >= 0 ? n_pins <= node->pins : n_pins == node->pins, "%lld pins, %lld below",
              (long long)node->pins, (long long)n_pins);
    LS_ASSERT(node->snapshot >= 0 || n_children != 1, "a node of no use at %lld", (long long)node->end);
    for (int64_t block = node->block; block >= 0; block = prefix->block_next[block]) {
        if (prefix->block_page[block] >= 0)
            LS_ASSERT(ls_ids_references(prefix->opts.pages, prefix->block_page[block]) > 0, "page %d is free",
                      prefix->block_page[block]);
        n_blocks++;
        last = block;
    }
    LS_ASSERT(last == node->last && n_blocks == pages_before(prefix, node->end) - node->begin / page_tokens,
              "edge %lld..%lld has %lld blocks", (long long)node->begin, (long long)node->end, (long long)n_blocks);
}

/* The pages that a hit of the node shares are there. */
static void check_window(const ls_prefix *prefix, const ls_prefix_node *node) {
    const int64_t n = node->snapshot < 0 ? 0 : pages_before(prefix, node->end);
    for (int64_t i = first_page(prefix, node->end); i < n; i++)
        LS_ASSERT(ls_prefix_page(prefix, node, i) >= 0, "page %lld of the snapshot at %lld is gone", (long long)i,
                  (long long)node->end);
}

/* Every live node is the child of a live node or a root, one level nearer to it each time, and so in a tree. */
void ls_prefix_check(const ls_prefix *prefix) {
    int64_t n_nodes = 0, n_tokens = 0, n_blocks = 0, n_snapshots = 0, n_taken = 0, n_free = 0;
    check_node(prefix, &prefix->root);
    check_node(prefix, &prefix->old);
    for (int64_t i = 0; i < prefix->n_nodes_touched; i++) {
        ls_prefix_node *node = &prefix->nodes[i];
        const ls_prefix_node *root = node;
        if (!node->live) continue;
        check_node(prefix, node);
        check_window(prefix, node);
        LS_ASSERT(*link_to(node) == node, "node %lld", (long long)i);
        while (root->parent != NULL) root = root->parent;
        LS_ASSERT(root == &prefix->root || (root == &prefix->old && node->pins > 0), "node %lld is kept by nothing",
                  (long long)i);
        if (node->snapshot >= 0) LS_ASSERT(prefix->taken[node->snapshot] == 0, "snapshot %d is taken", node->snapshot);
        n_nodes++;
        n_tokens += node->end - node->begin;
        n_blocks += pages_before(prefix, node->end) - node->begin / prefix->opts.page_tokens;
        n_snapshots += node->snapshot >= 0;
    }
    for (int64_t i = 0; i < prefix->opts.n_snapshots; i++) n_taken += prefix->taken[i] != 0;
    for (int64_t block = prefix->free_block; block >= 0; block = prefix->block_next[block]) n_free++;
    LS_ASSERT(n_nodes == prefix->stats.nodes && n_nodes <= prefix->opts.nodes_max, "%lld nodes, %lld counted",
              (long long)n_nodes, (long long)prefix->stats.nodes);
    LS_ASSERT(n_tokens == prefix->n_tokens && n_tokens <= prefix->opts.tokens_max, "%lld tokens, %lld counted",
              (long long)n_tokens, (long long)prefix->n_tokens);
    LS_ASSERT(n_blocks == prefix->n_blocks && n_blocks + n_free == prefix->n_blocks_touched,
              "%lld blocks, %lld counted", (long long)n_blocks, (long long)prefix->n_blocks);
    LS_ASSERT(n_snapshots == prefix->stats.snapshots &&
                  n_snapshots + n_taken + prefix->n_free_snapshots == prefix->opts.n_snapshots,
              "%lld snapshots, %lld being filled, %lld free", (long long)n_snapshots, (long long)n_taken,
              (long long)prefix->n_free_snapshots);
}
