/* Pools of ids. Owns the reference counts and, by policy, the free ids: a ring (fifo), a bag (random), or a bitmap over
 * the pool's order with summaries above it (lowest, highest), so that every operation takes a fixed number of steps. */
#include "rollout/ids.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"

#define LEVELS_MAX 6 /* 64^6 positions: more than int32_t can name */

struct ls_ids {
    int64_t n, available;
    ls_policy policy;
    uint64_t seed, n_draws;
    int64_t n_reclaimable;
    int32_t *references; /* [n] */
    int32_t *loose;      /* [n] of them */
    /* [n] fifo: ring of free ids from head; random: free ids in its first `available` elements; lowest and highest: id
     * at each position of the pool's order, for good. */
    int32_t *order;
    int64_t head;
    int32_t *position; /* [n] lowest and highest: where order names an id */
    /* Bit p of level 0: the id at position p is free. Bit w of level k + 1: word w of level k is not 0. */
    uint64_t *level[LEVELS_MAX];
    int n_levels;
};

static const char *const policy_names[LS_POLICY_COUNT] = {"fifo", "lowest", "highest", "random"};

const char *ls_policy_name(ls_policy policy) {
    return (unsigned)policy < LS_POLICY_COUNT ? policy_names[policy] : "unknown";
}

bool ls_policy_parse(ls_policy *out, const char *name) {
    for (int i = 0; i < LS_POLICY_COUNT; i++)
        if (strcmp(name, policy_names[i]) == 0) {
            *out = (ls_policy)i;
            return true;
        }
    return false;
}

/* Draw number draw_i of a seed, in [0, bound); bound below 2^31. */
static int64_t draw_below(uint64_t seed, uint64_t draw_i, int64_t bound) {
    const ls_philox random = ls_philox_draw(seed, (uint32_t)draw_i, (uint32_t)(draw_i >> 32), 0, 0);
    const uint64_t low = (uint64_t)random.word[1] * (uint64_t)bound >> 32;
    return (int64_t)(((uint64_t)random.word[0] * (uint64_t)bound + low) >> 32);
}

static bool by_position(const ls_ids *ids) {
    return ids->policy == LS_POLICY_LOWEST || ids->policy == LS_POLICY_HIGHEST;
}

/* The pool's order; id base comes first where nothing is permuted. */
static void fill_order(int32_t *order, const ls_ids_opts *opts) {
    const int64_t n = opts->n;
    for (int64_t p = 0; p < n; p++) order[p] = (int32_t)(p < n - opts->base ? p + opts->base : p + opts->base - n);
    if (opts->permutation == 0) return;
    for (int64_t p = n - 1; p > 0; p--) {
        const int64_t other = draw_below(opts->permutation, (uint64_t)p, p + 1);
        const int32_t id = order[p];
        order[p] = order[other];
        order[other] = id;
    }
}

static void mark_free(ls_ids *ids, int64_t position) {
    for (int k = 0; k < ids->n_levels; k++, position /= 64) ids->level[k][position / 64] |= 1ull << position % 64;
}

static void mark_held(ls_ids *ids, int64_t position) {
    for (int k = 0; k < ids->n_levels; k++, position /= 64) {
        ids->level[k][position / 64] &= ~(1ull << position % 64);
        if (ids->level[k][position / 64] != 0) return;
    }
}

static int64_t free_position(const ls_ids *ids) {
    int64_t position = 0;
    for (int k = ids->n_levels - 1; k >= 0; k--) {
        const uint64_t word = ids->level[k][position];
        position =
            64 * position + (ids->policy == LS_POLICY_LOWEST ? __builtin_ctzll(word) : 63 - __builtin_clzll(word));
    }
    return position;
}

static ls_status create_bitmap(ls_ids *ids, const char *what, ls_error *err) {
    int64_t n_words = ids->n;
    LS_TRY(ls_array_alloc((void **)&ids->position, ids->n, (int64_t)sizeof *ids->position, what, err));
    do {
        n_words = (n_words + 63) / 64;
        LS_TRY(ls_array_alloc((void **)&ids->level[ids->n_levels], n_words, (int64_t)sizeof **ids->level, what, err));
        ids->n_levels++;
    } while (n_words > 1);
    for (int64_t p = 0; p < ids->n; p++) {
        ids->position[ids->order[p]] = (int32_t)p;
        mark_free(ids, p);
    }
    return LS_OK;
}

ls_status ls_ids_create(ls_ids **out, const ls_ids_opts *opts, const char *what, ls_error *err) {
    ls_status status = LS_OK;
    ls_ids *ids = NULL;
    *out = NULL;
    if (opts->n < 1 || opts->n > INT32_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "%s: a pool of %lld ids; it must have 1 to %d", what, (long long)opts->n,
                       INT32_MAX);
    if ((unsigned)opts->policy >= LS_POLICY_COUNT)
        return LS_FAIL(err, LS_ERR_ARG, "%s: policy %d is none of the %d", what, (int)opts->policy, LS_POLICY_COUNT);
    if (opts->base < 0 || opts->base >= opts->n)
        return LS_FAIL(err, LS_ERR_ARG, "%s: base %lld is not an id of 0 to %lld", what, (long long)opts->base,
                       (long long)opts->n - 1);
    LS_TRY_DONE(ls_array_alloc((void **)&ids, 1, (int64_t)sizeof *ids, what, err));
    ids->n = ids->available = opts->n;
    ids->policy = opts->policy;
    ids->seed = opts->seed;
    LS_TRY_DONE(ls_array_alloc((void **)&ids->references, ids->n, (int64_t)sizeof *ids->references, what, err));
    LS_TRY_DONE(ls_array_alloc((void **)&ids->loose, ids->n, (int64_t)sizeof *ids->loose, what, err));
    LS_TRY_DONE(ls_array_alloc((void **)&ids->order, ids->n, (int64_t)sizeof *ids->order, what, err));
    fill_order(ids->order, opts);
    if (by_position(ids)) LS_TRY_DONE(create_bitmap(ids, what, err));
    *out = ids;
done:
    if (status != LS_OK) ls_ids_free(ids);
    return status;
}

void ls_ids_free(ls_ids *ids) {
    if (ids == NULL) return;
    for (int k = 0; k < LEVELS_MAX; k++) free(ids->level[k]);
    free(ids->position);
    free(ids->order);
    free(ids->loose);
    free(ids->references);
    free(ids);
}

static int32_t take_free(ls_ids *ids) {
    int32_t id;
    int64_t at;
    if (by_position(ids)) {
        at = free_position(ids);
        mark_held(ids, at);
        return ids->order[at];
    }
    if (ids->policy == LS_POLICY_FIFO) {
        id = ids->order[ids->head];
        ids->head = ids->head + 1 < ids->n ? ids->head + 1 : 0;
        return id;
    }
    at = draw_below(ids->seed, ids->n_draws++, ids->available);
    id = ids->order[at];
    ids->order[at] = ids->order[ids->available - 1];
    return id;
}

static void give_back(ls_ids *ids, int32_t id) {
    if (by_position(ids))
        mark_free(ids, ids->position[id]);
    else if (ids->policy == LS_POLICY_FIFO)
        ids->order[(ids->head + ids->available) % ids->n] = id;
    else
        ids->order[ids->available] = id;
}

int32_t ls_ids_acquire(ls_ids *ids) {
    int32_t id;
    if (ids->available == 0) return -1;
    id = take_free(ids);
    ids->available--;
    LS_ASSERT(ids->references[id] == 0, "free id %d has %d references", id, ids->references[id]);
    ids->references[id] = 1;
    return id;
}

void ls_ids_share(ls_ids *ids, int32_t id) {
    const int32_t references = ls_ids_references(ids, id);
    LS_ASSERT(references > 0 && references < INT32_MAX, "share of id %d, which has %d references", id, references);
    ids->n_reclaimable -= references == ids->loose[id];
    ids->references[id]++;
}

bool ls_ids_release(ls_ids *ids, int32_t id) {
    LS_ASSERT(ls_ids_firm(ids, id) > 0, "release of id %d, which %s", id,
              ids->references[id] == 0 ? "is free" : "has loose references only");
    if (--ids->references[id] > 0) {
        ids->n_reclaimable += ids->references[id] == ids->loose[id];
        return false;
    }
    give_back(ids, id);
    ids->available++;
    return true;
}

void ls_ids_loosen(ls_ids *ids, int32_t id) {
    LS_ASSERT(ls_ids_firm(ids, id) > 0, "id %d has no reference to loosen", id);
    ids->loose[id]++;
    ids->n_reclaimable += ids->references[id] == ids->loose[id];
}

void ls_ids_tighten(ls_ids *ids, int32_t id) {
    LS_ASSERT(ls_ids_references(ids, id) > 0 && ids->loose[id] > 0, "id %d has no loose reference", id);
    ids->n_reclaimable -= ids->references[id] == ids->loose[id];
    ids->loose[id]--;
}

int32_t ls_ids_references(const ls_ids *ids, int32_t id) {
    LS_ASSERT(id >= 0 && id < ids->n, "id %d of a pool of %lld", id, (long long)ids->n);
    return ids->references[id];
}

int32_t ls_ids_firm(const ls_ids *ids, int32_t id) { return ls_ids_references(ids, id) - ids->loose[id]; }

int64_t ls_ids_available(const ls_ids *ids) { return ids->available; }

int64_t ls_ids_reclaimable(const ls_ids *ids) { return ids->n_reclaimable; }

int64_t ls_ids_count(const ls_ids *ids) { return ids->n; }
