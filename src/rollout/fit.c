/* The plan against the memory that there is: how many slots, pages and snapshots it holds, and the sentence that says
 * what is too large. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "op/memory.h"
#include "rollout/engine_state.h"

/* Of a GPU, unless the lever says otherwise: the rest is for what libraries and other processes take meanwhile. */
#define FRACTION_OF_A_GPU 0.9

/* Of numbers that are not negative; what does not fit is as much as there can be. */
static int64_t times(int64_t a, int64_t b) {
    int64_t out;
    return ls_mul_i64(a, b, &out) ? out : INT64_MAX;
}

static int64_t plus(int64_t a, int64_t b) {
    int64_t out;
    return ls_add_i64(a, b, &out) ? out : INT64_MAX;
}

/* ---- lines for people ---- */

static void add_part(ls_memory_part *parts, int64_t *n, const char *name, int64_t count, int64_t bytes, bool on_host) {
    if (bytes > 0) parts[(*n)++] = (ls_memory_part){name, count, bytes, on_host};
}

int64_t ls_engine_plan_parts(const ls_engine_plan *p, ls_memory_part out[LS_MEMORY_PARTS_MAX]) {
    const int64_t others = p->before_bytes - p->weight_bytes;
    int64_t n = 0;
    add_part(out, &n, "weights", -1, p->weight_bytes, false);
    add_part(out, &n, "context and others", -1, others, false);
    add_part(out, &n, "state slots", p->slots, p->slot_bytes, false);
    add_part(out, &n, "KV pages", p->pages, p->page_bytes, false);
    add_part(out, &n, "snapshots", p->snapshots, p->snapshot_bytes, false);
    add_part(out, &n, "rows of a forward", p->rows, p->workspace_bytes, false);
    add_part(out, &n, "head", -1, p->head_bytes, false);
    add_part(out, &n, "page tables, tokens", -1, p->tick_bytes, false);
    add_part(out, &n, "workspace of ops", -1, p->ops_bytes, false);
    add_part(out, &n, "recordings", p->recordings, p->recording_bytes, false);
    add_part(out, &n, "swapped sequences", p->swap_slots, p->swap_bytes, p->swap_on_host);
    return n;
}

/* ---- what would be smaller ---- */

/* The option that makes a part about half as large, and what that saves. */
static void describe_saving(char *text, size_t bytes, const ls_engine *e, const ls_memory_part *part) {
    const ls_engine_plan *p = &e->plan;
    const double half = ls_mib(part->bytes / 2);
    text[0] = '\0';
    if (strcmp(part->name, "state slots") == 0 && p->slots > 1)
        snprintf(text, bytes, " (--slots %lld saves %.1f)", (long long)(p->slots / 2), half);
    else if (strcmp(part->name, "KV pages") == 0 && e->opts.levers.pages > 1)
        snprintf(text, bytes, " (--pages %lld saves %.1f)", (long long)(p->pages / 2), half);
    else if (strcmp(part->name, "KV pages") == 0)
        snprintf(text, bytes, " (requests of at most %lld tokens save %.1f)", (long long)(e->opts.length_max / 2),
                 half);
    else if (strcmp(part->name, "snapshots") == 0)
        snprintf(text, bytes, " (--prefix off saves %.1f)", ls_mib(part->bytes));
    else if (strcmp(part->name, "rows of a forward") == 0 && p->rows / 2 >= e->batch)
        snprintf(text, bytes, " (--tick-tokens %lld saves %.1f)", (long long)(p->rows / 2), half);
    else if ((strcmp(part->name, "head") == 0 || strcmp(part->name, "rows of a forward") == 0) && e->batch > 1)
        snprintf(text, bytes, " (--batch %lld saves %.1f)", (long long)(e->batch / 2), half);
    else if (strcmp(part->name, "swapped sequences") == 0)
        snprintf(text, bytes, " (--preempt-by recompute saves %.1f)", ls_mib(part->bytes));
}

/* The engine's largest part that is not listed yet, or NULL. */
static const ls_memory_part *next_largest(const ls_memory_part *parts, int64_t n, uint32_t listed) {
    const ls_memory_part *best = NULL;
    for (int64_t i = 0; i < n; i++) {
        const bool is_engines =
            strcmp(parts[i].name, "weights") != 0 && strcmp(parts[i].name, "context and others") != 0;
        if ((listed >> i & 1) != 0 || parts[i].on_host || !is_engines) continue;
        if (best == NULL || parts[i].bytes > best->bytes) best = &parts[i];
    }
    return best;
}

static void list_largest(char *text, size_t bytes, const ls_engine *e) {
    ls_memory_part parts[LS_MEMORY_PARTS_MAX];
    const int64_t n = ls_engine_plan_parts(&e->plan, parts);
    uint32_t listed = 0;
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < 3 && used < bytes; i++) {
        const ls_memory_part *part = next_largest(parts, n, listed);
        char saving[96];
        if (part == NULL) return;
        listed |= (uint32_t)1 << (part - parts);
        describe_saving(saving, sizeof saving, e, part);
        used += (size_t)snprintf(text + used, bytes - used, "%s%s %.1f%s", i == 0 ? "" : ", ", part->name,
                                 ls_mib(part->bytes), saving);
    }
}

/* limit: in words, what the plan may take. */
static ls_status refuse_plan_of(const ls_engine *e, int64_t need, int64_t there, const char *limit,
                                const ls_memory_state *memory, ls_error *err) {
    char largest[400], others[80] = "";
    list_largest(largest, sizeof largest, e);
    if (ls_memory_of_others(memory) > 0)
        snprintf(others, sizeof others, ", about %.1f of it by other processes", ls_mib(ls_memory_of_others(memory)));
    return LS_FAIL(err, LS_ERR_CAPACITY,
                   "memory-fraction: the engine needs %.1f MiB and can have %.1f: %s, %.1f in use%s; in MiB: %s",
                   ls_mib(need), ls_mib(there > 0 ? there : 0), limit,
                   ls_mib(memory->is_limited ? memory->total - memory->free : memory->used), others, largest);
}

/* ---- the budget ---- */

typedef struct budget {
    ls_memory_state memory;
    bool is_bounded;
    int64_t bytes; /* for the engine; may be below 0 */
    char limit[64];
} budget;

static ls_status budget_of(budget *b, const ls_engine *e, ls_error *err) {
    const ls_levers *l = &e->opts.levers;
    double fraction = l->memory_fraction;
    int64_t in_use;
    memset(b, 0, sizeof *b);
    LS_TRY(ls_device_memory(e->device, &b->memory, err));
    b->is_bounded = fraction > 0 || b->memory.is_limited;
    if (!b->is_bounded) return LS_OK;
    /* What was asked for by number may take all that is free. */
    if (fraction == 0) fraction = (l->slots > 0 && l->pages > 0) || l->memory_bytes > 0 ? 1.0 : FRACTION_OF_A_GPU;
    in_use = b->memory.is_limited ? b->memory.total - b->memory.free : b->memory.used;
    in_use -= e->device->exec.workspace_bytes; /* which is a part of the plan */
    b->bytes = (int64_t)(fraction * (double)b->memory.total) - in_use;
    snprintf(b->limit, sizeof b->limit, "%g of %.1f MiB", fraction, ls_mib(b->memory.total));
    return LS_OK;
}

static int64_t swap_on_device(const ls_engine *e, const ls_plan_units *u) {
    if (e->plan.swap_on_host) return 0;
    return times(e->plan.swap_slots, plus(u->snapshot, times(e->pages_held, u->page)));
}

static int64_t need_of(const ls_engine *e, const ls_plan_units *u) {
    const ls_engine_plan *p = &e->plan;
    const int64_t pools = plus(times(p->slots, u->slot), times(p->pages, u->page));
    return plus(plus(pools, times(p->snapshots, u->snapshot)), plus(u->fixed, swap_on_device(e, u)));
}

/* How many more of something fit into what is left, at most `wanted`. */
static int64_t more_of(int64_t *left, int64_t each, int64_t wanted, int64_t part_of_left) {
    const int64_t n = each == 0 ? wanted : ls_min_i64(wanted, *left / part_of_left / each);
    *left -= n * each;
    return n;
}

ls_status ls_plan_fit(ls_engine *e, const ls_plan_units *u, ls_error *err) {
    const ls_levers *l = &e->opts.levers;
    ls_engine_plan *p = &e->plan;
    const ls_engine_plan wanted = *p;
    const bool has_pages = u->page > 0 && l->pages == 0, has_snapshots = p->snapshots > 1 && l->prefix_bytes == 0;
    const int64_t slots_each = ls_engine_slots_each(e, u->slot > 0);
    budget b;
    int64_t left, n;
    LS_TRY(budget_of(&b, e, err));
    if (!b.is_bounded || need_of(e, u) <= b.bytes) return LS_OK;
    /* The least: one sequence of the longest kind. */
    if (l->slots == 0) p->slots = slots_each;
    if (has_pages) p->pages = ls_min_i64(e->pages_held, wanted.pages);
    if (has_snapshots) p->snapshots = 1;
    if (need_of(e, u) > b.bytes) {
        p->slot_bytes = times(p->slots, u->slot);
        p->page_bytes = times(p->pages, u->page);
        p->snapshot_bytes = times(p->snapshots, u->snapshot);
        p->swap_bytes = swap_on_device(e, u);
        return refuse_plan_of(e, need_of(e, u), b.bytes, b.limit, &b.memory, err);
    }
    /* Then as many sequences as fit at their longest; what is left is for the prefix cache. */
    left = b.bytes - need_of(e, u);
    if (l->slots == 0) {
        n = more_of(&left, plus(times(slots_each, u->slot), has_pages ? times(e->pages_held, u->page) : 0),
                    wanted.slots / slots_each - 1, 1);
        p->slots += slots_each * n;
        if (has_pages) p->pages += n * e->pages_held;
    }
    if (has_snapshots) p->snapshots += more_of(&left, u->snapshot, wanted.snapshots - 1, has_pages ? 2 : 1);
    if (has_pages) p->pages += more_of(&left, u->page, wanted.pages - p->pages, 1);
    return LS_OK;
}

ls_status ls_plan_check(const ls_engine *e, ls_error *err) {
    budget b;
    LS_TRY(budget_of(&b, e, err));
    if (!b.is_bounded || e->plan.total_bytes <= b.bytes) return LS_OK;
    return refuse_plan_of(e, e->plan.total_bytes, b.bytes, b.limit, &b.memory, err);
}
