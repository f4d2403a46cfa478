/* The prefix cache: named cases, and random calls held to the plain trie of prefix_model.h. */
#include <stdlib.h>

#include "harness.h"
#include "op/attention.h"
#include "rollout/prefix_model.h"

#define TOKENS(...) (const int32_t[]){__VA_ARGS__}, (int64_t)(sizeof((const int32_t[]){__VA_ARGS__}) / 4)

/* A cache with its page pool. Pages are written by the test: each holds the whole prefix up to its last token. */
typedef struct cache {
    ls_ids *pages;
    ls_prefix *prefix;
    int64_t page_tokens;
    int32_t text[MODEL_PAGES][MODEL_LENGTH];
    int64_t n_text[MODEL_PAGES];
    int64_t n_freed;
} cache;

static void page_freed(void *context, int32_t page_i) {
    cache *c = context;
    assert_int_equal(ls_ids_references(c->pages, page_i), 0);
    c->n_text[page_i] = 0;
    c->n_freed++;
}

static void open_cache(cache *c, ls_prefix_opts opts, int64_t n_pages, uint64_t seed) {
    const ls_ids_opts ids = {.n = n_pages, .policy = seed ? LS_POLICY_RANDOM : LS_POLICY_LOWEST, .seed = seed};
    ls_error err;
    memset(c, 0, sizeof *c);
    c->page_tokens = opts.page_tokens;
    assert_ok(ls_ids_create(&c->pages, &ids, "pages", &err), err);
    opts.pages = c->pages;
    opts.page_freed = page_freed;
    opts.context = c;
    assert_ok(ls_prefix_create(&c->prefix, &opts, &err), err);
}

/* Pages of 4 tokens of one byte, snapshots of 10, room for everything. */
static ls_prefix_opts roomy(void) {
    return (ls_prefix_opts){
        .n_snapshots = 8, .snapshot_bytes = 10, .page_tokens = 4, .page_bytes = 1, .tokens_max = 100, .nodes_max = 20};
}

static void close_cache(cache *c) {
    ls_prefix_check(c->prefix);
    ls_prefix_free(c->prefix);
    assert_int_equal(ls_ids_available(c->pages), ls_ids_count(c->pages));
    ls_ids_free(c->pages);
}

static int64_t pages_of(const cache *c, int64_t n) { return (n + c->page_tokens - 1) / c->page_tokens; }

static void write_page(cache *c, int32_t page_i, const int32_t *tokens, int64_t n, int64_t index) {
    const int64_t end = (index + 1) * c->page_tokens;
    c->n_text[page_i] = end < n ? end : n;
    memcpy(c->text[page_i], tokens, (size_t)c->n_text[page_i] * sizeof *tokens);
}

static void check_page(const cache *c, int32_t page_i, const int32_t *tokens, int64_t n, int64_t index) {
    const int64_t end = (index + 1) * c->page_tokens < n ? (index + 1) * c->page_tokens : n;
    assert_true(c->n_text[page_i] >= end && c->n_text[page_i] > index * c->page_tokens);
    assert_memory_equal(c->text[page_i], tokens, (size_t)end * sizeof *tokens);
}

static void release_page(cache *c, int32_t page_i) {
    if (ls_ids_release(c->pages, page_i)) c->n_text[page_i] = 0;
}

/* Publishes tokens with pages of their own, which only the cache holds then. */
static bool put(cache *c, const int32_t *tokens, int64_t n) {
    int32_t pages[MODEL_LENGTH];
    const int32_t snapshot = ls_prefix_take(c->prefix);
    bool published;
    assert_true(snapshot >= 0);
    for (int64_t i = 0; i < pages_of(c, n); i++) {
        pages[i] = ls_ids_acquire(c->pages);
        write_page(c, pages[i], tokens, n, i);
    }
    published = ls_prefix_publish(c->prefix, tokens, n, pages, snapshot);
    for (int64_t i = 0; i < pages_of(c, n); i++) release_page(c, pages[i]);
    ls_prefix_check(c->prefix);
    return published;
}

/* Looks tokens up, checks the pages and gives them back; the hit stays pinned. */
static ls_prefix_hit get_to(cache *c, const int32_t *tokens, int64_t n, int64_t depth_max) {
    int32_t pages[MODEL_LENGTH];
    ls_prefix_hit hit;
    ls_prefix_lookup(c->prefix, tokens, n, depth_max, false, &hit, pages);
    for (int64_t i = 0; i < pages_of(c, hit.n_tokens); i++) {
        check_page(c, pages[i], tokens, hit.n_tokens, i);
        release_page(c, pages[i]);
    }
    assert_int_equal(hit.snapshot >= 0, hit.n_tokens > 0);
    assert_int_equal(hit.node != NULL, hit.n_tokens > 0);
    assert_true(hit.n_matched >= hit.n_tokens);
    ls_prefix_check(c->prefix);
    return hit;
}

static ls_prefix_hit get(cache *c, const int32_t *tokens, int64_t n) { return get_to(c, tokens, n, n); }

static void expect_hit(cache *c, const int32_t *tokens, int64_t n, int64_t n_tokens, int64_t n_matched) {
    const ls_prefix_hit hit = get(c, tokens, n);
    assert_int_equal(hit.n_tokens, n_tokens);
    assert_int_equal(hit.n_matched, n_matched);
    if (hit.node != NULL) ls_prefix_unpin(c->prefix, hit.node);
}

static ls_prefix_stats stats_of(const cache *c) {
    ls_prefix_stats stats;
    ls_prefix_get_stats(c->prefix, &stats);
    return stats;
}

/* Named cases. */

static void edges_split_within_a_page(void **state) {
    cache c;
    (void)state;
    open_cache(&c, roomy(), 20, 0);
    assert_true(put(&c, TOKENS(1, 2, 3, 4, 5, 6, 7, 8, 9)));
    assert_int_equal(stats_of(&c).pages, 3);
    assert_true(put(&c, TOKENS(1, 2, 3, 4, 5, 6, 1, 1))); /* leaves within page 1 */
    assert_int_equal(stats_of(&c).nodes, 3);
    /* Above 0 and 1 of the first, below its 1 and 2 and the second's own 1. */
    assert_int_equal(stats_of(&c).pages, 5);
    assert_int_equal(ls_ids_count(c.pages) - ls_ids_available(c.pages), 4);
    expect_hit(&c, TOKENS(1, 2, 3, 4, 5, 6, 7, 8, 9, 9), 9, 9);
    expect_hit(&c, TOKENS(1, 2, 3, 4, 5, 6, 1, 1), 8, 8);
    expect_hit(&c, TOKENS(1, 2, 3, 4, 5, 6, 2), 0, 6);
    assert_true(put(&c, TOKENS(1, 2, 3, 4, 5, 6))); /* the branch itself */
    assert_int_equal(stats_of(&c).nodes, 3);
    expect_hit(&c, TOKENS(1, 2, 3, 4, 5, 6, 2), 6, 6);
    assert_true(put(&c, TOKENS(1, 2, 3, 4, 5))); /* and a cut above it: three edges refer to the first's page 1 */
    assert_int_equal(stats_of(&c).nodes, 4);
    assert_int_equal(stats_of(&c).pages, 6);
    expect_hit(&c, TOKENS(1, 2, 3, 4, 5, 7), 5, 5);
    close_cache(&c);
    assert_int_equal(c.n_freed, 4);
}

static void the_lower_edge_has_the_page_that_straddles(void **state) {
    const int32_t tokens[] = {1, 2, 3, 4, 5, 6};
    int32_t upper[2], lower[2];
    ls_prefix_hit hit;
    cache c;
    (void)state;
    open_cache(&c, roomy(), 20, 0);
    assert_true(put(&c, tokens, 5));
    assert_true(put(&c, tokens, 6));
    ls_prefix_lookup(c.prefix, tokens, 6, 5, true, &hit, upper);
    ls_prefix_unpin(c.prefix, hit.node);
    ls_prefix_lookup(c.prefix, tokens, 6, 6, true, &hit, lower);
    ls_prefix_unpin(c.prefix, hit.node);
    assert_int_equal(upper[0], lower[0]);
    assert_int_not_equal(upper[1], lower[1]);
    for (int i = 0; i < 2; i++) release_page(&c, upper[i]), release_page(&c, lower[i]);
    close_cache(&c);
}

static void hits_end_at_snapshots(void **state) {
    cache c;
    ls_prefix_hit hit;
    const int32_t tokens[] = {1, 2, 3, 4, 5, 6, 7};
    (void)state;
    open_cache(&c, roomy(), 20, 0);
    expect_hit(&c, tokens, 7, 0, 0);
    assert_true(put(&c, tokens, 3));
    assert_true(put(&c, tokens, 6));
    expect_hit(&c, TOKENS(1, 2, 3, 4, 5), 3, 5);    /* matches further than it hits */
    expect_hit(&c, TOKENS(1, 2, 3, 4, 9, 6), 3, 4); /* a branch inside an edge */
    expect_hit(&c, TOKENS(1, 2), 0, 2);
    expect_hit(&c, tokens, 0, 0, 0);
    for (int64_t depth_max = -1; depth_max <= 8; depth_max++) {
        hit = get_to(&c, tokens, 7, depth_max);
        assert_int_equal(hit.n_tokens, depth_max >= 6 ? 6 : depth_max >= 3 ? 3 : 0);
        assert_int_equal(hit.n_matched, 6);
        if (hit.node != NULL) ls_prefix_unpin(c.prefix, hit.node);
    }
    assert_true(ls_prefix_has(c.prefix, tokens, 3));
    assert_true(ls_prefix_has(c.prefix, tokens, 6));
    assert_false(ls_prefix_has(c.prefix, tokens, 4));
    assert_false(ls_prefix_has(c.prefix, tokens, 7));
    assert_false(ls_prefix_has(c.prefix, tokens, 0));
    close_cache(&c);
}

static void statistics_leave_quiet_lookups_out(void **state) {
    cache c;
    ls_prefix_hit hit;
    int32_t page;
    (void)state;
    open_cache(&c, roomy(), 20, 0);
    assert_true(put(&c, TOKENS(1, 2, 3)));
    expect_hit(&c, TOKENS(1, 2, 3, 4), 3, 3);
    expect_hit(&c, TOKENS(2), 0, 0);
    ls_prefix_lookup(c.prefix, TOKENS(1, 2, 3), 3, true, &hit, &page);
    ls_prefix_unpin(c.prefix, hit.node);
    release_page(&c, page);
    assert_int_equal(stats_of(&c).lookups, 2);
    assert_int_equal(stats_of(&c).hits, 1);
    assert_int_equal(stats_of(&c).tokens_asked, 5);
    assert_int_equal(stats_of(&c).tokens_hit, 3);
    assert_int_equal(stats_of(&c).published, 1);
    close_cache(&c);
}

static void an_entry_is_published_once(void **state) {
    cache c;
    (void)state;
    open_cache(&c, roomy(), 20, 0);
    assert_true(put(&c, TOKENS(1, 2, 3, 4, 5)));
    assert_false(put(&c, TOKENS(1, 2, 3, 4, 5)));
    assert_int_equal(stats_of(&c).snapshots, 1);
    assert_int_equal(stats_of(&c).pages, 2);
    assert_int_equal(ls_ids_available(c.pages), 18);
    for (int i = 0; i < 7; i++) assert_true(ls_prefix_take(c.prefix) >= 0); /* its entry came back */
    close_cache(&c);
}

static void the_least_valuable_goes_first(void **state) {
    cache c;
    (void)state;
    open_cache(&c, roomy(), 8, 0);
    assert_true(put(&c, TOKENS(1, 1, 1, 1, 1, 1, 1, 1))); /* 8 tokens, and 8 more, for 12 bytes */
    expect_hit(&c, TOKENS(1, 1, 1, 1, 1, 1, 1, 1), 8, 8);
    assert_true(put(&c, TOKENS(2, 2, 2, 2, 2, 2, 2, 2))); /* 8 for 12 */
    assert_true(put(&c, TOKENS(3, 3)));                   /* 2 for 11 */
    assert_true(put(&c, TOKENS(4, 4)));                   /* 2 for 11, used last */
    assert_int_equal(ls_ids_available(c.pages), 2);
    assert_true(ls_prefix_make_room(c.prefix, 2));
    assert_int_equal(stats_of(&c).nodes, 4); /* there was room */
    assert_true(ls_prefix_make_room(c.prefix, 3));
    assert_false(ls_prefix_has(c.prefix, TOKENS(3, 3)));
    assert_true(ls_prefix_has(c.prefix, TOKENS(4, 4)));
    assert_true(ls_prefix_make_room(c.prefix, 4));
    assert_false(ls_prefix_has(c.prefix, TOKENS(4, 4)));
    assert_true(ls_prefix_make_room(c.prefix, 5));
    assert_false(ls_prefix_has(c.prefix, TOKENS(2, 2, 2, 2, 2, 2, 2, 2)));
    assert_int_equal(ls_ids_available(c.pages), 6);
    assert_true(ls_prefix_has(c.prefix, TOKENS(1, 1, 1, 1, 1, 1, 1, 1)));
    assert_false(ls_prefix_make_room(c.prefix, 9)); /* more than there are: nothing goes */
    assert_true(ls_prefix_has(c.prefix, TOKENS(1, 1, 1, 1, 1, 1, 1, 1)));
    assert_true(ls_prefix_make_room(c.prefix, 8));
    assert_int_equal(stats_of(&c).nodes, 0);
    assert_int_equal(stats_of(&c).snapshots_evicted, 4);
    assert_int_equal(stats_of(&c).pages_evicted, 6);
    close_cache(&c);
}

/* Pages of [2 2 ..] are held by a sequence as well, which keeps them: the worthless leaf frees nothing and stays. */
static void what_frees_nothing_stays(void **state) {
    int32_t pages[2];
    ls_prefix_hit hit;
    cache c;
    (void)state;
    open_cache(&c, roomy(), 4, 0);
    assert_true(put(&c, TOKENS(2, 2, 2, 2, 2)));
    assert_true(put(&c, TOKENS(1, 1, 1, 1, 1, 1)));
    ls_prefix_lookup(c.prefix, TOKENS(2, 2, 2, 2, 2), 5, true, &hit, pages);
    ls_prefix_unpin(c.prefix, hit.node);
    expect_hit(&c, TOKENS(1, 1, 1, 1, 1, 1), 6, 6);
    expect_hit(&c, TOKENS(1, 1, 1, 1, 1, 1), 6, 6);
    assert_int_equal(ls_ids_reclaimable(c.pages), 2);
    assert_false(ls_prefix_make_room(c.prefix, 3));
    assert_int_equal(stats_of(&c).nodes, 2);
    assert_true(ls_prefix_make_room(c.prefix, 2));
    assert_true(ls_prefix_has(c.prefix, TOKENS(2, 2, 2, 2, 2)));
    assert_int_equal(stats_of(&c).nodes, 1);
    for (int i = 0; i < 2; i++) release_page(&c, pages[i]);
    close_cache(&c);
}

/* A page is forgotten with all that refers to it and is below it, and with nothing else. */
static void a_page_is_forgotten(void **state) {
    int32_t pages[2];
    ls_prefix_hit hit;
    cache c;
    (void)state;
    open_cache(&c, roomy(), 20, 0);
    assert_true(put(&c, TOKENS(1, 2, 3, 4, 5, 6)));
    assert_true(put(&c, TOKENS(1, 2, 3, 4, 5, 6, 7, 8, 9)));
    assert_true(put(&c, TOKENS(1, 2, 3, 4, 9)));
    assert_true(put(&c, TOKENS(2, 2)));
    ls_prefix_lookup(c.prefix, TOKENS(1, 2, 3, 4, 5, 6), 6, true, &hit, pages);
    ls_prefix_forget_page(c.prefix, pages[1]); /* pinned: not now */
    assert_int_equal(ls_ids_references(c.pages, pages[1]), 1 + 1);
    assert_int_equal(stats_of(&c).snapshots, 4);
    ls_prefix_unpin(c.prefix, hit.node);
    ls_prefix_forget_page(c.prefix, pages[1]);
    assert_int_equal(ls_ids_references(c.pages, pages[1]), 1);
    assert_int_equal(stats_of(&c).snapshots, 2);
    expect_hit(&c, TOKENS(1, 2, 3, 4, 5, 6), 0, 4);
    expect_hit(&c, TOKENS(1, 2, 3, 4, 9), 5, 5);
    for (int i = 0; i < 2; i++) release_page(&c, pages[i]);
    close_cache(&c);
}

static void a_leaf_without_snapshot_is_worth_least(void **state) {
    ls_prefix_opts opts = roomy();
    int32_t snapshot;
    cache c;
    (void)state;
    opts.n_snapshots = 2;
    open_cache(&c, opts, 20, 0);
    assert_true(put(&c, TOKENS(1, 1, 1, 1)));
    assert_true(put(&c, TOKENS(2, 2)));
    snapshot = ls_prefix_take(c.prefix); /* from 2 2, whose edge stays */
    assert_true(snapshot >= 0);
    assert_int_equal(stats_of(&c).snapshots, 1);
    assert_int_equal(stats_of(&c).nodes, 2);
    expect_hit(&c, TOKENS(2, 2, 2), 0, 2);
    ls_prefix_return(c.prefix, snapshot);
    assert_true(ls_prefix_make_room(c.prefix, 19));
    expect_hit(&c, TOKENS(2, 2, 2), 0, 0);
    expect_hit(&c, TOKENS(1, 1, 1, 1), 4, 4);
    close_cache(&c);
}

static void inner_snapshots_leave_one_edge(void **state) {
    ls_prefix_opts opts = roomy();
    const int32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    int32_t snapshot;
    cache c;
    (void)state;
    opts.n_snapshots = 3;
    open_cache(&c, opts, 20, 0);
    for (int64_t n = 5; n <= 11; n += 3) assert_true(put(&c, tokens, n)); /* cuts within pages 1 and 1 and 2 */
    assert_int_equal(stats_of(&c).pages, 2 + 1 + 1);
    assert_true(put(&c, TOKENS(4, 4, 4, 4, 4, 4, 4, 4, 4, 4))); /* the snapshot of 5 tokens is worth least */
    assert_false(ls_prefix_has(c.prefix, tokens, 5));
    assert_int_equal(stats_of(&c).nodes, 3); /* and no node is left there, nor the first version of page 1 */
    assert_int_equal(stats_of(&c).pages, 2 + 1 + 3);
    assert_int_equal(ls_ids_count(c.pages) - ls_ids_available(c.pages), 6);
    expect_hit(&c, tokens, 11, 11, 11);
    expect_hit(&c, tokens, 9, 8, 9);
    snapshot = ls_prefix_take(c.prefix);
    ls_prefix_return(c.prefix, snapshot);
    close_cache(&c);
}

static void nothing_is_taken_from_a_pin(void **state) {
    ls_prefix_opts opts = roomy();
    ls_prefix_hit hit;
    int32_t snapshot;
    cache c;
    (void)state;
    opts.n_snapshots = 2;
    open_cache(&c, opts, 3, 0);
    assert_true(put(&c, TOKENS(1, 2, 3)));
    assert_true(put(&c, TOKENS(1, 2, 3, 4, 5)));
    hit = get(&c, TOKENS(1, 2, 3, 4, 5));
    assert_int_equal(ls_prefix_take(c.prefix), -1); /* the ancestor's neither */
    assert_false(ls_prefix_make_room(c.prefix, 1));
    ls_prefix_clear(c.prefix);
    assert_int_equal(stats_of(&c).snapshots, 2);
    ls_prefix_unpin(c.prefix, hit.node);
    hit = get(&c, TOKENS(1, 2, 3));
    snapshot = ls_prefix_take(c.prefix); /* the descendant's */
    assert_true(snapshot >= 0 && snapshot != hit.snapshot);
    assert_int_equal(ls_prefix_take(c.prefix), -1); /* pinned, and being filled */
    ls_prefix_return(c.prefix, snapshot);
    assert_true(ls_prefix_make_room(c.prefix, 2));
    expect_hit(&c, TOKENS(1, 2, 3, 4, 5), 3, 3);
    ls_prefix_clear(c.prefix);
    assert_int_equal(stats_of(&c).nodes, 1);
    ls_prefix_unpin(c.prefix, hit.node);
    ls_prefix_clear(c.prefix);
    assert_int_equal(stats_of(&c).nodes, 0);
    close_cache(&c);
}

/* The node that a hit gave stays the node of its depth when edges are cut above it. */
static void pinned_nodes_stay_when_edges_split(void **state) {
    ls_prefix_hit hit;
    cache c;
    (void)state;
    open_cache(&c, roomy(), 20, 0);
    assert_true(put(&c, TOKENS(1, 2, 3, 4, 5, 6)));
    hit = get(&c, TOKENS(1, 2, 3, 4, 5, 6));
    assert_true(put(&c, TOKENS(1, 2, 3)));
    assert_true(put(&c, TOKENS(1, 2, 3, 4, 5, 1)));
    assert_false(ls_prefix_make_room(c.prefix, 20));
    assert_int_equal(stats_of(&c).snapshots, 3);
    assert_true(ls_prefix_make_room(c.prefix, 18)); /* all but the pinned path's two pages */
    assert_int_equal(stats_of(&c).snapshots, 2);
    ls_prefix_unpin(c.prefix, hit.node);
    assert_true(ls_prefix_make_room(c.prefix, 20));
    close_cache(&c);
}

static void another_key_finds_nothing(void **state) {
    const int32_t tokens[] = {1, 2, 3, 4, 5, 6}, page = 0;
    ls_prefix_hit inner, outer;
    int32_t snapshot;
    cache c;
    (void)state;
    open_cache(&c, roomy(), 20, 0);
    ls_prefix_set_key(c.prefix, (ls_prefix_key){1, 5});
    assert_true(put(&c, tokens, 3));
    assert_true(put(&c, tokens, 6));
    assert_true(put(&c, TOKENS(1, 2, 9)));
    ls_prefix_set_key(c.prefix, (ls_prefix_key){1, 5});
    assert_int_equal(stats_of(&c).snapshots, 3); /* the same key changes nothing */
    inner = get(&c, tokens, 3);
    outer = get(&c, tokens, 6);
    snapshot = ls_prefix_take(c.prefix);
    ls_prefix_set_key(c.prefix, (ls_prefix_key){1, 6});
    ls_prefix_check(c.prefix);
    expect_hit(&c, tokens, 6, 0, 0);
    assert_false(ls_prefix_has(c.prefix, tokens, 3));
    assert_int_equal(stats_of(&c).snapshots, 2); /* the pinned ones */
    /* Filled under the old key: not published under the new one. */
    assert_false(ls_prefix_publish(c.prefix, tokens, 4, &page, snapshot));
    assert_true(put(&c, tokens, 6));
    expect_hit(&c, tokens, 6, 6, 6);
    ls_prefix_set_key(c.prefix, (ls_prefix_key){1, 5}); /* back: what was dropped is not found again */
    expect_hit(&c, tokens, 6, 0, 0);
    assert_int_equal(stats_of(&c).nodes, 2);
    ls_prefix_unpin(c.prefix, inner.node);
    ls_prefix_check(c.prefix);
    assert_int_equal(stats_of(&c).nodes, 2); /* still above a pinned one */
    ls_prefix_unpin(c.prefix, outer.node);
    assert_int_equal(stats_of(&c).nodes, 0);
    assert_int_equal(ls_ids_available(c.pages), 20);
    close_cache(&c);
}

static void full_arenas_evict_or_refuse(void **state) {
    ls_prefix_opts opts = roomy();
    ls_prefix_hit hit;
    cache c;
    (void)state;
    opts.nodes_max = 2;
    opts.tokens_max = 10;
    open_cache(&c, opts, 20, 0);
    assert_true(put(&c, TOKENS(1, 2, 3, 4)));
    assert_true(put(&c, TOKENS(2, 2)));
    assert_true(put(&c, TOKENS(3, 3, 3, 3))); /* for want of nodes */
    assert_false(ls_prefix_has(c.prefix, TOKENS(2, 2)));
    assert_true(put(&c, TOKENS(4, 4, 4, 4, 4, 4, 4))); /* for want of tokens */
    assert_int_equal(stats_of(&c).nodes, 1);
    assert_false(put(&c, TOKENS(5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5))); /* can never fit: nothing goes for it */
    assert_false(put(&c, TOKENS(4, 4, 5)));                         /* nor where it would need three nodes */
    assert_int_equal(stats_of(&c).nodes, 1);
    hit = get(&c, TOKENS(4, 4, 4, 4, 4, 4, 4));
    assert_false(put(&c, TOKENS(1, 1, 1, 1)));
    assert_true(put(&c, TOKENS(4, 4, 4, 4, 4, 4, 4, 1, 1, 1)));
    ls_prefix_unpin(c.prefix, hit.node);
    close_cache(&c);
}

/* ---- a window of 1, so that a snapshot needs the pages of its own block ---- */

enum { LONG = 640, LONG_PAGE = 32, LONG_BLOCK = LS_ATTENTION_BLOCK_MMA16 };

static ls_prefix_opts windowed(void) {
    return (ls_prefix_opts){.n_snapshots = 3,
                            .page_tokens = LONG_PAGE,
                            .page_bytes = 1,
                            .tokens_max = 10 * LONG,
                            .nodes_max = 20,
                            .window = 1};
}

/* Tokens that leave the family's path at depth `from`. */
static const int32_t *path(int64_t from) {
    static int32_t tokens[LONG];
    for (int64_t t = 0; t < LONG; t++) tokens[t] = t < from ? 1 : 2;
    return tokens;
}

/* Publishes as a sequence that has given its pages in front of the window back. */
static void put_long(cache *c, const int32_t *tokens, int64_t n) {
    const int64_t first = ls_attention_begin(n, 1) / LONG_PAGE;
    int32_t pages[LONG / LONG_PAGE] = {0};
    for (int64_t i = first; i < pages_of(c, n); i++) pages[i] = ls_ids_acquire(c->pages);
    assert_true(ls_prefix_publish(c->prefix, tokens, n, pages, ls_prefix_take(c->prefix)));
    for (int64_t i = first; i < pages_of(c, n); i++) ls_ids_release(c->pages, pages[i]);
    ls_prefix_check(c->prefix);
}

/* Of the tokens [n] the first `depth` are a hit, with the pages of its block; out: it is counted as out of window. */
static void expect_long(cache *c, const int32_t *tokens, int64_t n, int64_t depth, bool out) {
    const int64_t before = stats_of(c).out_of_window;
    int32_t pages[LONG / LONG_PAGE];
    ls_prefix_hit hit;
    ls_prefix_lookup(c->prefix, tokens, n, n, false, &hit, pages);
    assert_int_equal(hit.n_tokens, depth);
    assert_int_equal(stats_of(c).out_of_window - before, out);
    for (int64_t i = ls_attention_begin(depth, 1) / LONG_PAGE; i < pages_of(c, depth); i++)
        ls_ids_release(c->pages, pages[i]);
    if (hit.node != NULL) ls_prefix_unpin(c->prefix, hit.node);
}

static int64_t pages_held(const cache *c) { return ls_ids_count(c->pages) - ls_ids_available(c->pages); }

static void a_snapshot_keeps_the_pages_of_its_window(void **state) {
    cache c;
    (void)state;
    open_cache(&c, windowed(), 40, 0);
    put_long(&c, path(LONG), LONG - 40); /* of its block, from 512 on, it has 88 tokens */
    assert_int_equal(pages_held(&c), 3);
    expect_long(&c, path(LONG), LONG, LONG - 40, false);
    expect_long(&c, path(300), LONG, 0, true); /* left where no pages are */
    put_long(&c, path(300), 300);              /* the branch itself: 256 to 300, on the edge that was there */
    assert_int_equal(pages_held(&c), 3 + 2);
    expect_long(&c, path(300), LONG, 300, false);
    expect_long(&c, path(LONG), LONG, LONG - 40, false);
    put_long(&c, path(300), 400); /* 384 to 400, behind the branch */
    assert_int_equal(pages_held(&c), 3 + 2 + 1);
    put_long(&c, path(LONG), LONG_BLOCK); /* behind a whole block: none. It takes the place of the one at 400 */
    assert_int_equal(pages_held(&c), 3 + 2);
    expect_long(&c, path(300), LONG, 300, true);
    assert_true(ls_prefix_make_room(c.prefix, 36)); /* the leaf that has pages goes */
    assert_int_equal(pages_held(&c), 2);
    expect_long(&c, path(LONG), LONG, 300, false);
    expect_long(&c, path(200), LONG, LONG_BLOCK, true);
    expect_long(&c, path(300), LONG, 300, true);
    ls_prefix_check(c.prefix);
    close_cache(&c);
}

/* Random publications and evictions: what is held is what snapshots need, page by page. */
static void nothing_in_front_of_windows_is_held(void **state) {
    uint64_t random = 11;
    cache c;
    (void)state;
    open_cache(&c, windowed(), 60, 3);
    for (int i = 0; i < 2000; i++) {
        const int64_t n = 1 + (int64_t)(test_random(&random) % LONG), from = (int64_t)(test_random(&random) % 8) * 90;
        if (!ls_prefix_has(c.prefix, path(from), n)) put_long(&c, path(from), n);
        if (test_random(&random) % 8 == 0)
            assert_true(ls_prefix_make_room(c.prefix, 50 + (int64_t)(test_random(&random) % 11)));
        ls_prefix_check(c.prefix);
        assert_true(pages_held(&c) <= stats_of(&c).snapshots * LONG_BLOCK / LONG_PAGE);
    }
    close_cache(&c);
}

static void caches_of_nothing_work(void **state) {
    const ls_prefix_opts opts = {.page_tokens = 4};
    ls_prefix_opts few = roomy();
    cache c;
    (void)state;
    open_cache(&c, opts, 1, 0);
    expect_hit(&c, TOKENS(1, 2), 0, 0);
    assert_int_equal(ls_prefix_take(c.prefix), -1);
    close_cache(&c);
    few.nodes_max = 0;
    open_cache(&c, few, 2, 0);
    assert_false(put(&c, TOKENS(1, 2)));
    close_cache(&c);
}

static void options_that_cannot_be_are_named(void **state) {
    const struct {
        ls_prefix_opts opts;
        const char *word;
    } cases[] = {
        {{.page_tokens = 0}, "page_tokens is 0"},
        {{.page_tokens = -3}, "page_tokens is -3"},
        {{.page_tokens = 1, .n_snapshots = -2}, "n_snapshots is -2"},
        {{.page_tokens = 1, .n_snapshots = (int64_t)1 << 31}, "n_snapshots is 2147483648"},
        {{.page_tokens = 1, .tokens_max = -5}, "tokens_max is -5"},
        {{.page_tokens = 1, .nodes_max = -6}, "nodes_max -6"},
        {{.page_tokens = 1, .snapshot_bytes = -7}, "snapshot_bytes is -7"},
        {{.page_tokens = 1, .page_bytes = -8}, "page_bytes -8"},
        {{.page_tokens = 1, .window = -9}, "window is -9"},
        {{.page_tokens = 1, .nodes_max = INT64_MAX}, "9223372036854775807 nodes"},
        {{.page_tokens = INT64_MAX, .nodes_max = 2}, "pages of 9223372036854775807"},
    };
    const ls_ids_opts ids = {.n = 1};
    const ls_prefix_opts no_pool = {.page_tokens = 1};
    ls_prefix *prefix;
    ls_ids *pages;
    ls_error err;
    (void)state;
    assert_ok(ls_ids_create(&pages, &ids, "pages", &err), err);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ls_prefix_opts opts = cases[i].opts;
        opts.pages = pages;
        check_failed(ls_prefix_create(&prefix, &opts, &err), &err, cases[i].word);
        assert_null(prefix);
    }
    check_failed(ls_prefix_create(&prefix, &no_pool, &err), &err, "no page pool");
    ls_ids_free(pages);
    ls_prefix_free(NULL);
}

/* Random calls. */

enum { HELD_MAX = 5, RECENT_MAX = 8 };

typedef struct trial {
    cache c;
    model m;
    uint64_t random, weights;
    int64_t n_letters;
    int32_t recent[RECENT_MAX][MODEL_LENGTH];
    int64_t n_recent[RECENT_MAX];
    struct {
        ls_prefix_node *node; /* NULL: free */
        int cell;
    } pin[HELD_MAX];
    struct {
        int64_t n_pages; /* 0: free */
        int32_t page[MODEL_LENGTH];
    } sequence[HELD_MAX]; /* pages that running sequences hold */
    int64_t n_hits, n_published, n_evicted, n_refused;
} trial;

static int64_t below(trial *t, int64_t bound) { return (int64_t)(test_random(&t->random) >> 33) % bound; }

static void hold(trial *t, int32_t page_i) { t->m.held[page_i]++; }

static void let_go(trial *t, int32_t page_i) {
    t->m.held[page_i]--;
    release_page(&t->c, page_i);
}

/* A sequence that often begins like an earlier one. */
static int64_t draw_tokens(trial *t, int32_t *tokens) {
    const int64_t from = below(t, RECENT_MAX), to = below(t, RECENT_MAX), n = 1 + below(t, MODEL_LENGTH - 1);
    const int64_t kept = below(t, 4) == 0 ? 0 : below(t, t->n_recent[from] + 1);
    for (int64_t i = 0; i < n; i++) tokens[i] = i < kept ? t->recent[from][i] : (int32_t)below(t, t->n_letters);
    memcpy(t->recent[to], tokens, (size_t)n * sizeof *tokens);
    t->n_recent[to] = n;
    return n;
}

static void unpin(trial *t, int64_t i) {
    if (t->pin[i].node == NULL) return;
    ls_prefix_unpin(t->c.prefix, t->pin[i].node);
    model_pin(&t->m, t->pin[i].cell, -1);
    model_drop_unpinned(&t->m, true);
    t->pin[i].node = NULL;
}

static void end_sequence(trial *t, int64_t i) {
    for (int64_t k = 0; k < t->sequence[i].n_pages; k++) let_go(t, t->sequence[i].page[k]);
    t->sequence[i].n_pages = 0;
}

/* Looks up, pins in place of an older pin, and fills the pages of the hit, held by the test. */
static int64_t look_up(trial *t, const int32_t *tokens, int64_t n, int32_t *pages) {
    const int64_t depth_max = below(t, 3) > 0 ? n : below(t, n + 2) - 1, slot = below(t, HELD_MAX);
    const bool quiet = below(t, 4) == 0;
    const int cell = model_hit(&t->m, tokens, n, depth_max);
    model_cell *expected = &t->m.cell[cell];
    ls_prefix_hit hit;
    ls_prefix_lookup(t->c.prefix, tokens, n, depth_max, quiet, &hit, pages);
    assert_int_equal(hit.n_tokens, expected->depth);
    assert_int_equal(hit.snapshot, expected->snapshot);
    assert_int_equal(hit.n_matched, t->m.cell[model_find(&t->m, tokens, n)].depth);
    t->m.stats.lookups += !quiet;
    t->m.stats.tokens_asked += quiet ? 0 : n;
    if (cell == t->m.root) {
        assert_null(hit.node);
        return 0;
    }
    t->m.stats.hits += !quiet;
    t->m.stats.tokens_hit += quiet ? 0 : hit.n_tokens;
    expected->saved += hit.n_tokens;
    expected->used = ++t->m.clock;
    model_pin(&t->m, cell, 1);
    for (int64_t i = 0; i < pages_of(&t->c, hit.n_tokens); i++) {
        hold(t, pages[i]);
        check_page(&t->c, pages[i], tokens, hit.n_tokens, i);
    }
    unpin(t, slot);
    t->pin[slot].node = hit.node;
    t->pin[slot].cell = cell;
    if (below(t, 2) == 0) unpin(t, slot);
    t->n_hits++;
    return hit.n_tokens;
}

static int32_t take(trial *t) {
    const int32_t snapshot = ls_prefix_take(t->c.prefix);
    bool full = true;
    for (int64_t i = 0; i < t->m.opts.n_snapshots; i++) full &= t->m.taken[i] || t->m.stored[i];
    if (full) {
        const int least = model_least(&t->m, MODEL_SNAPSHOT);
        if (least >= 0) {
            model_drop_snapshot(&t->m, least);
            model_settle(&t->m);
            t->m.stats.snapshots_evicted++;
            t->n_evicted++;
        }
        assert_int_equal(snapshot >= 0, least >= 0);
    }
    if (snapshot < 0) return snapshot;
    assert_false(t->m.taken[snapshot] || t->m.stored[snapshot]);
    t->m.taken[snapshot] = true;
    return snapshot;
}

static void set_key(trial *t, bool other) {
    t->weights += other;
    ls_prefix_set_key(t->c.prefix, (ls_prefix_key){.weights = t->weights, .digest = 9});
    if (other) model_set_key(&t->m);
}

static bool make_room(trial *t, int64_t n) {
    const bool made = ls_prefix_make_room(t->c.prefix, n);
    assert_int_equal(made, model_make_room(&t->m, n));
    return made;
}

/* What a request does: a hit, pages for the rest, a copy of the last shared page, a forward, a publication. */
static void run_request(trial *t) {
    int32_t tokens[MODEL_LENGTH], pages[MODEL_LENGTH], snapshot;
    const int64_t n = draw_tokens(t, tokens), n_pages = pages_of(&t->c, n), slot = below(t, HELD_MAX);
    int64_t n_hit = look_up(t, tokens, n, pages), n_shared = n_hit / t->c.page_tokens;
    bool fits;
    assert_int_equal(ls_prefix_has(t->c.prefix, tokens, n), t->m.cell[model_hit(&t->m, tokens, n, n)].depth == n);
    for (int64_t i = n_shared; i < pages_of(&t->c, n_hit); i++) let_go(t, pages[i]);
    end_sequence(t, slot);
    fits = make_room(t, n_pages - n_shared);
    for (int64_t i = n_shared; fits && i < n_pages; i++) {
        pages[i] = ls_ids_acquire(t->c.pages);
        hold(t, pages[i]);
        write_page(&t->c, pages[i], tokens, n, i);
    }
    t->sequence[slot].n_pages = fits ? n_pages : n_shared;
    memcpy(t->sequence[slot].page, pages, (size_t)t->sequence[slot].n_pages * sizeof *pages);
    if (fits && (snapshot = take(t)) >= 0) {
        if (below(t, 40) == 0) set_key(t, true);
        if (below(t, 20) == 0) {
            ls_prefix_return(t->c.prefix, snapshot);
            t->m.taken[snapshot] = t->m.doomed[snapshot] = false;
        } else {
            const bool published = ls_prefix_publish(t->c.prefix, tokens, n, pages, snapshot);
            assert_int_equal(published, model_publish(&t->m, tokens, n, pages, snapshot));
            t->n_published += published;
            t->n_refused += !published;
        }
    }
    if (below(t, 2) == 0) end_sequence(t, slot);
}

static void step(trial *t) {
    switch (below(t, 16)) {
        case 0: unpin(t, below(t, HELD_MAX)); break;
        case 1: end_sequence(t, below(t, HELD_MAX)); break;
        case 2:
            if (below(t, 4) == 0) make_room(t, below(t, t->m.n_pages + 2));
            break;
        case 3:
            if (below(t, 8) > 0) break;
            ls_prefix_clear(t->c.prefix);
            model_drop_unpinned(&t->m, false);
            break;
        case 4: set_key(t, below(t, 6) == 0); break;
        default: run_request(t);
    }
}

static void random_calls_follow_the_model(void **state) {
    static const int64_t page_tokens[] = {1, 2, 3, 4, 8, 16};
    static trial t;
    int64_t n_hits = 0, n_published = 0, n_evicted = 0, n_refused = 0, n_pages_evicted = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= 120; seed++) {
        ls_prefix_opts opts;
        int64_t n_pages;
        memset(&t, 0, sizeof t);
        t.random = seed * 0x9E3779B97F4A7C15ull;
        t.n_letters = 2 + below(&t, MODEL_LETTERS - 1);
        opts = (ls_prefix_opts){.n_snapshots = 1 + below(&t, MODEL_SNAPSHOTS),
                                .snapshot_bytes = below(&t, 3) * 20,
                                .page_tokens = page_tokens[below(&t, 6)],
                                .page_bytes = below(&t, 4) * 7,
                                .tokens_max = 10 + below(&t, 200),
                                .nodes_max = 1 + below(&t, 30)};
        n_pages = MODEL_LENGTH + below(&t, MODEL_PAGES - MODEL_LENGTH);
        open_cache(&t.c, opts, n_pages, seed);
        opts.pages = t.c.pages;
        model_init(&t.m, &opts);
        set_key(&t, false);
        for (int i = 0; i < 300; i++) {
            step(&t);
            model_compare(&t.m, t.c.prefix);
        }
        for (int64_t i = 0; i < HELD_MAX; i++) {
            if (seed % 2 == 0) unpin(&t, i); /* free takes pinned entries back, too */
            end_sequence(&t, i);
        }
        model_compare(&t.m, t.c.prefix);
        n_hits += t.n_hits;
        n_published += t.n_published;
        n_evicted += t.n_evicted;
        n_refused += t.n_refused;
        n_pages_evicted += t.m.stats.pages_evicted;
        close_cache(&t.c);
    }
    /* The calls did what they are for. */
    assert_true(n_hits > 3000 && n_published > 3000 && n_evicted > 1000 && n_refused > 300 && n_pages_evicted > 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(edges_split_within_a_page),
        cmocka_unit_test(the_lower_edge_has_the_page_that_straddles),
        cmocka_unit_test(hits_end_at_snapshots),
        cmocka_unit_test(statistics_leave_quiet_lookups_out),
        cmocka_unit_test(an_entry_is_published_once),
        cmocka_unit_test(the_least_valuable_goes_first),
        cmocka_unit_test(what_frees_nothing_stays),
        cmocka_unit_test(a_page_is_forgotten),
        cmocka_unit_test(a_leaf_without_snapshot_is_worth_least),
        cmocka_unit_test(inner_snapshots_leave_one_edge),
        cmocka_unit_test(nothing_is_taken_from_a_pin),
        cmocka_unit_test(pinned_nodes_stay_when_edges_split),
        cmocka_unit_test(another_key_finds_nothing),
        cmocka_unit_test(full_arenas_evict_or_refuse),
        cmocka_unit_test(a_snapshot_keeps_the_pages_of_its_window),
        cmocka_unit_test(nothing_in_front_of_windows_is_held),
        cmocka_unit_test(caches_of_nothing_work),
        cmocka_unit_test(options_that_cannot_be_are_named),
        cmocka_unit_test(random_calls_follow_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
