/* The prefix cache as a plain trie with a cell for each token, and nothing compressed, shared or counted ahead: what it
 * holds, what goes first and how often each page is referred to follow from rules of a few lines each.
 *
 * A cell is an end when the cache needs a node there. The tokens between two ends are an edge; within a page an edge
 * has one page id. */
#ifndef LS_TESTS_PREFIX_MODEL_H
#define LS_TESTS_PREFIX_MODEL_H

#include "harness.h"
#include "rollout/prefix.h"

enum { MODEL_LETTERS = 3, MODEL_CELLS = 1024, MODEL_PAGES = 128, MODEL_SNAPSHOTS = 16, MODEL_LENGTH = 28 };

typedef struct model_cell {
    bool live;
    int parent; /* -1: a root, of no token */
    int child[MODEL_LETTERS];
    int depth;
    int32_t page, snapshot;
    int64_t saved, used, pins;
} model_cell;

typedef struct model {
    ls_prefix_opts opts;
    model_cell cell[MODEL_CELLS];
    int root; /* what earlier keys left hangs from others */
    int64_t clock, n_pages;
    int64_t held[MODEL_PAGES]; /* references of the test itself */
    bool taken[MODEL_SNAPSHOTS], stored[MODEL_SNAPSHOTS];
    bool doomed[MODEL_SNAPSHOTS]; /* taken before the key changed */
    ls_prefix_stats stats;
} model;

static int model_new_cell(model *m, int parent) {
    int c = 0;
    while (m->cell[c].live) assert_true(++c < MODEL_CELLS);
    m->cell[c] = (model_cell){.live = true, .parent = parent, .page = -1, .snapshot = -1};
    m->cell[c].depth = parent < 0 ? 0 : m->cell[parent].depth + 1;
    for (int i = 0; i < MODEL_LETTERS; i++) m->cell[c].child[i] = -1;
    return c;
}

static void model_init(model *m, const ls_prefix_opts *opts) {
    memset(m, 0, sizeof *m);
    m->opts = *opts;
    m->n_pages = ls_ids_count(opts->pages);
    assert_true(m->n_pages <= MODEL_PAGES && opts->n_snapshots <= MODEL_SNAPSHOTS);
    m->root = model_new_cell(m, -1);
}

static int model_children(const model *m, int c, int *last) {
    int n = 0;
    for (int i = 0; i < MODEL_LETTERS; i++)
        if (m->cell[c].child[i] >= 0) {
            n++;
            *last = m->cell[c].child[i];
        }
    return n;
}

static bool model_is_end(const model *m, int c) {
    int child = -1;
    if (m->cell[c].parent < 0 || m->cell[c].snapshot >= 0) return true;
    return model_children(m, c, &child) != 1 || m->cell[c].pins != m->cell[child].pins;
}

/* The end above a cell, which is no root. */
static int model_end_above(const model *m, int c) {
    do c = m->cell[c].parent;
    while (!model_is_end(m, c));
    return c;
}

static int model_end_below(const model *m, int c) {
    while (!model_is_end(m, c)) model_children(m, c, &c);
    return c;
}

static int64_t model_page_index(const model *m, int c) { return (m->cell[c].depth - 1) / m->opts.page_tokens; }

/* Where an edge runs on within a page, the lower page is the one. */
static void model_settle(model *m) {
    for (int c = 0; c < MODEL_CELLS; c++)
        if (m->cell[c].live && m->cell[c].parent >= 0 && model_is_end(m, c))
            for (int p = m->cell[c].parent, below = c; !model_is_end(m, p); below = p, p = m->cell[p].parent)
                if (model_page_index(m, p) == model_page_index(m, below)) m->cell[p].page = m->cell[below].page;
}

/* References of the cache: one for each page of each edge, or each that is pinned. */
static void model_references(const model *m, int64_t *count, bool pinned_only) {
    memset(count, 0, MODEL_PAGES * sizeof *count);
    for (int c = 0; c < MODEL_CELLS; c++) {
        if (!m->cell[c].live || m->cell[c].parent < 0 || !model_is_end(m, c)) continue;
        if (pinned_only && m->cell[c].pins == 0) continue;
        for (int p = c, above = model_end_above(m, c); p != above; p = m->cell[p].parent)
            if (p == c || m->cell[p].depth % m->opts.page_tokens == 0) count[m->cell[p].page]++;
    }
}

static int64_t model_available(const model *m) {
    int64_t count[MODEL_PAGES], n = 0;
    model_references(m, count, false);
    for (int64_t i = 0; i < m->n_pages; i++) n += count[i] + m->held[i] == 0;
    return n;
}

/* Pages that were free if nothing were cached but what is pinned. */
static int64_t model_reclaimable(const model *m) {
    int64_t firm[MODEL_PAGES], n = 0;
    model_references(m, firm, true);
    for (int64_t i = 0; i < m->n_pages; i++) n += firm[i] + m->held[i] == 0;
    return n;
}

static void model_drop_snapshot(model *m, int c) {
    m->stored[m->cell[c].snapshot] = false;
    m->cell[c].snapshot = -1;
}

static void model_drop_cell(model *m, int c) {
    if (m->cell[c].snapshot >= 0) model_drop_snapshot(m, c);
    for (int i = 0; i < MODEL_LETTERS; i++)
        if (m->cell[m->cell[c].parent].child[i] == c) m->cell[m->cell[c].parent].child[i] = -1;
    m->cell[c].live = false;
}

static void model_drop_unpinned(model *m, bool old_only) {
    for (int c = 0; c < MODEL_CELLS; c++) {
        int root = c;
        if (!m->cell[c].live || m->cell[c].parent < 0 || m->cell[c].pins > 0) continue;
        while (m->cell[root].parent >= 0) root = m->cell[root].parent;
        if (!old_only || root != m->root) m->cell[c].page = -2; /* later: the way to the root must last */
    }
    for (int depth = MODEL_LENGTH; depth > 0; depth--)
        for (int c = 0; c < MODEL_CELLS; c++)
            if (m->cell[c].live && m->cell[c].depth == depth && m->cell[c].page == -2) model_drop_cell(m, c);
    for (int c = 0, child; c < MODEL_CELLS; c++)
        if (m->cell[c].live && m->cell[c].parent < 0 && c != m->root && model_children(m, c, &child) == 0)
            m->cell[c].live = false;
    model_settle(m);
}

static int64_t model_bytes(const model *m, int c) {
    int64_t bytes = m->opts.snapshot_bytes, first, n;
    int child, above = model_end_above(m, c), top = c;
    if (model_children(m, c, &child) == 0) {
        while (m->cell[top].parent != above) top = m->cell[top].parent;
        first = model_page_index(m, top);
        n = model_page_index(m, c) - first + 1;
        if (m->cell[above].depth > 0 && model_page_index(m, above) == first && m->cell[above].page == m->cell[top].page)
            n--;
        bytes += n * m->opts.page_bytes;
    }
    return bytes > 1 ? bytes : 1;
}

typedef enum model_candidates { MODEL_SNAPSHOT, MODEL_LEAF, MODEL_LEAF_OF_PAGES } model_candidates;

static int model_least(const model *m, model_candidates of) {
    int64_t firm[MODEL_PAGES];
    int least = -1, child;
    model_references(m, firm, true);
    for (int c = 0; c < MODEL_CELLS; c++) {
        const model_cell *a = &m->cell[c];
        int64_t order;
        if (!a->live || a->parent < 0 || a->pins > 0) continue;
        if (of == MODEL_SNAPSHOT ? a->snapshot < 0 : model_children(m, c, &child) > 0) continue;
        if (of == MODEL_LEAF_OF_PAGES && firm[a->page] + m->held[a->page] > 0) continue;
        if (least >= 0) {
            const model_cell *b = &m->cell[least];
            order = (a->snapshot < 0 ? 0 : a->saved) * model_bytes(m, least) -
                    (b->snapshot < 0 ? 0 : b->saved) * model_bytes(m, c);
            if (order > 0 || (order == 0 && a->used > b->used)) continue;
        }
        least = c;
    }
    return least;
}

static void model_evict(model *m, int leaf) {
    const int64_t available = model_available(m);
    m->stats.snapshots_evicted += m->cell[leaf].snapshot >= 0;
    for (int c = leaf, above = model_end_above(m, leaf); c != above;) {
        const int parent = m->cell[c].parent;
        model_drop_cell(m, c);
        c = parent;
    }
    model_settle(m);
    m->stats.pages_evicted += model_available(m) - available;
}

static bool model_evict_leaf(model *m) {
    const int leaf = model_least(m, MODEL_LEAF);
    if (leaf >= 0) model_evict(m, leaf);
    return leaf >= 0;
}

static bool model_make_room(model *m, int64_t n) {
    if (model_reclaimable(m) < n) return false;
    while (model_available(m) < n) {
        const int leaf = model_least(m, MODEL_LEAF_OF_PAGES);
        model_evict(m, leaf >= 0 ? leaf : model_least(m, MODEL_LEAF));
    }
    return true;
}

static int model_find(const model *m, const int32_t *tokens, int64_t n) {
    int c = m->root;
    for (int64_t i = 0; i < n && m->cell[c].child[tokens[i]] >= 0; i++) c = m->cell[c].child[tokens[i]];
    return c;
}

/* The cell of the deepest snapshot, or the root. */
static int model_hit(const model *m, const int32_t *tokens, int64_t n, int64_t depth_max) {
    int c = model_find(m, tokens, n < depth_max ? n : depth_max);
    while (c != m->root && m->cell[c].snapshot < 0) c = m->cell[c].parent;
    return c;
}

static void model_pin(model *m, int c, int64_t n) {
    for (; m->cell[c].parent >= 0; c = m->cell[c].parent) m->cell[c].pins += n;
}

static void model_count(const model *m, int64_t *nodes, int64_t *tokens) {
    *nodes = *tokens = 0;
    for (int c = 0; c < MODEL_CELLS; c++) {
        if (!m->cell[c].live || m->cell[c].parent < 0) continue;
        *nodes += model_is_end(m, c);
        *tokens += 1;
    }
}

/* True when the entry came in. */
static bool model_publish(model *m, const int32_t *tokens, int64_t n, const int32_t *pages, int32_t snapshot) {
    int c = model_find(m, tokens, n);
    const int end = model_end_below(m, c);
    const int64_t rest = n - m->cell[c].depth, need = (end != c) + (rest > 0);
    int64_t n_nodes, n_tokens;
    const bool doomed = m->doomed[snapshot];
    m->taken[snapshot] = m->doomed[snapshot] = false;
    if (doomed) return false;
    if (need > 0) {
        bool fits = need <= m->opts.nodes_max && n <= m->opts.tokens_max;
        if (!fits) return false;
        model_pin(m, end, 1);
        do {
            model_count(m, &n_nodes, &n_tokens);
            fits = n_nodes + need <= m->opts.nodes_max && n_tokens + rest <= m->opts.tokens_max;
        } while (!fits && model_evict_leaf(m));
        model_pin(m, end, -1);
        if (!fits) {
            model_settle(m);
            return false;
        }
    }
    if (end != c) m->cell[c].used = ++m->clock;
    while (m->cell[c].depth < n) {
        const int next = model_new_cell(m, c);
        m->cell[c].child[tokens[m->cell[c].depth]] = next;
        c = next;
        m->cell[c].page = pages[model_page_index(m, c)];
    }
    if (m->cell[c].snapshot >= 0) return false;
    m->cell[c].snapshot = snapshot;
    m->cell[c].saved = n;
    m->cell[c].used = ++m->clock;
    m->stored[snapshot] = true;
    m->stats.published++;
    model_settle(m);
    return true;
}

static void model_set_key(model *m) {
    for (int i = 0; i < MODEL_SNAPSHOTS; i++) m->doomed[i] = m->taken[i];
    m->root = model_new_cell(m, -1);
    model_drop_unpinned(m, true);
}

/* Everything that can be seen from outside. */
static void model_compare(const model *m, const ls_prefix *prefix) {
    int64_t count[MODEL_PAGES], firm[MODEL_PAGES], nodes, tokens, pages = 0, snapshots = 0;
    ls_prefix_stats stats;
    ls_prefix_check(prefix);
    ls_prefix_get_stats(prefix, &stats);
    model_references(m, count, false);
    model_references(m, firm, true);
    for (int64_t i = 0; i < m->n_pages; i++) {
        assert_int_equal(ls_ids_references(m->opts.pages, (int32_t)i), count[i] + m->held[i]);
        assert_int_equal(ls_ids_firm(m->opts.pages, (int32_t)i), firm[i] + m->held[i]);
        pages += count[i];
    }
    for (int i = 0; i < MODEL_SNAPSHOTS; i++) snapshots += m->stored[i];
    model_count(m, &nodes, &tokens);
    assert_int_equal(stats.nodes, nodes);
    assert_int_equal(stats.pages, pages);
    assert_int_equal(stats.snapshots, snapshots);
    assert_int_equal(stats.published, m->stats.published);
    assert_int_equal(stats.snapshots_evicted, m->stats.snapshots_evicted);
    assert_int_equal(stats.pages_evicted, m->stats.pages_evicted);
    assert_int_equal(stats.lookups, m->stats.lookups);
    assert_int_equal(stats.hits, m->stats.hits);
    assert_int_equal(stats.tokens_asked, m->stats.tokens_asked);
    assert_int_equal(stats.tokens_hit, m->stats.tokens_hit);
}

#endif
