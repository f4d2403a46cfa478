/* Blocks, dominators (Cooper, Harvey, Kennedy: "A Simple, Fast Dominance Algorithm") and definitions. Registers with
 * one definition are read as they are; those with several get joins at the frontiers of dominance. */
#include "audit/flow.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* Beyond these a function's jumps are nobody's: a kernel of a hundred thousand instructions needs a thousandth. */
enum { STEPS_MAX = 20000000, JOINS_MAX = 4000000 };

/* What one build needs and drops. */
typedef struct build {
    ls_flow *flow;
    const ls_ptx_function *f;
    const char *name;
    int32_t *slot;       /* [registers]: the register's number among those with several definitions, -1 */
    int32_t *single;     /* [registers]: its only definition, -1 */
    int32_t *several;    /* [n_several]: their registers */
    int32_t *current;    /* [n_several]: the definition that holds on the walk */
    int32_t *phis;       /* [n_blocks]: the first join of a block, -1; chained through `next` */
    int32_t *next;       /* [joins] */
    int32_t *join_value; /* [joins] */
    int64_t n_joins, cap_next, cap_join_value, n_several;
    int32_t *children, *sibling; /* the tree of dominators */
    int32_t *frontier;           /* blocks that stand in a frontier, chained */
    int32_t *frontier_next, *frontier_block;
    int64_t n_frontier, cap_frontier_next, cap_frontier_block, steps;
} build;

int32_t ls_flow_defines(const ls_ptx_function *f, const ls_ptx_instruction *in) {
    static const char *const none[] = {"bar", "nanosleep", "brx",  "setmaxnreg", "st.",     "red.",
                                       "bra", "ret",       "exit", "cp.",        "prefetch"};
    int32_t n = 1;
    if (in->n == 0) return 0;
    const ls_ptx_operand *o = &f->operands[in->first];
    if (o->kind != LS_PTX_REG && o->kind != LS_PTX_SINK) return 0;
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        if (ls_ptx_begins(in->op, none[i])) return 0;
    while (n < in->n && o[n].is_tail) n++;
    return n;
}

static bool is_jump(ls_ptx_name op) { return ls_ptx_is(op, "bra") || ls_ptx_begins(op, "bra."); }
static bool is_table(ls_ptx_name op) { return ls_ptx_begins(op, "brx."); }
static bool is_end(ls_ptx_name op) {
    return ls_ptx_is(op, "ret") || ls_ptx_begins(op, "ret.") || ls_ptx_is(op, "exit") || ls_ptx_is(op, "trap");
}

/* Labels ---------------------------------------------------------------------------------------------------------- */

static int by_label_name(const void *a, const void *b) {
    const ls_ptx_label *x = a, *y = b;
    const int c = ls_ptx_compare(x->name, y->name);
    return c != 0 ? c : (x->scope > y->scope) - (x->scope < y->scope);
}

static ls_status refuse_function(const build *b, int64_t line, ls_error *err, const char *sentence, ls_ptx_name name) {
    const int shown = name.bytes > 80 ? 80 : name.bytes;
    return LS_FAIL(err, LS_ERR_FORMAT, "%s:%lld: %s '%.*s'", b->name, (long long)line, sentence, shown, name.text);
}

/* The label of the innermost scope around the jump. */
static ls_status find_label(const build *b, const ls_ptx_label *sorted, ls_ptx_name name, const ls_ptx_instruction *in,
                            int32_t *at, ls_error *err) {
    const ls_ptx_label *found = NULL;
    for (int32_t scope = in->scope; scope >= 0 && found == NULL; scope = b->f->scopes[scope]) {
        const ls_ptx_label key = {name, 0, scope, 0};
        found = bsearch(&key, sorted, (size_t)b->f->n_labels, sizeof *sorted, by_label_name);
    }
    if (found == NULL) return refuse_function(b, in->line, err, "a jump to a label that is not in its function:", name);
    *at = found->at;
    return LS_OK;
}

/* Blocks ---------------------------------------------------------------------------------------------------------- */

static ls_status make_blocks(build *b, ls_error *err) {
    const ls_ptx_function *f = b->f;
    ls_flow *flow = b->flow;
    ls_status status = LS_OK;
    char *starts = NULL;
    LS_TRY(ls_array_alloc((void **)&starts, f->n_instructions + 1, 1, "starts of blocks", err));
    starts[0] = 1;
    for (int64_t i = 0; i < f->n_labels; i++) starts[f->labels[i].at] = 1;
    for (int64_t i = 0; i < f->n_instructions; i++) {
        const ls_ptx_name op = f->instructions[i].op;
        if (is_jump(op) || is_table(op) || is_end(op)) starts[i + 1] = 1;
    }
    flow->n_blocks = 0;
    for (int64_t i = 0; i <= f->n_instructions; i++) {
        if (i < f->n_instructions && !starts[i]) {
            flow->block_of[i] = (int32_t)flow->n_blocks - 1;
            continue;
        }
        LS_TRY_DONE(ls_array_grow((void **)&flow->blocks, &flow->cap_blocks, flow->n_blocks + 1, sizeof *flow->blocks,
                                  "blocks", err));
        flow->blocks[flow->n_blocks] = (ls_flow_block){(int32_t)i, 0, 0, 0, 0, 0, -1, -1, 0, -1, false, false};
        if (i < f->n_instructions) flow->block_of[i] = (int32_t)flow->n_blocks;
        flow->n_blocks++;
    }
    for (int64_t i = 0; i < flow->n_blocks; i++)
        flow->blocks[i].n =
            (i + 1 < flow->n_blocks ? flow->blocks[i + 1].first : (int32_t)f->n_instructions) - flow->blocks[i].first;
done:
    free(starts);
    return status;
}

static ls_status add_edge(build *b, int32_t to, ls_error *err) {
    ls_flow *flow = b->flow;
    LS_TRY(
        ls_array_grow((void **)&flow->edges, &flow->cap_edges, flow->n_edges + 1, sizeof *flow->edges, "edges", err));
    flow->edges[flow->n_edges++] = to;
    return LS_OK;
}

static int32_t block_at(const build *b, int32_t instruction) {
    return instruction < b->f->n_instructions ? b->flow->block_of[instruction] : (int32_t)b->flow->n_blocks - 1;
}

/* The table of the innermost scope around the jump, NULL for none. */
static const ls_ptx_targets *find_table(const ls_ptx_function *f, ls_ptx_name name, int32_t scope) {
    for (; scope >= 0 && name.text != NULL; scope = f->scopes[scope])
        for (int64_t i = 0; i < f->n_targets; i++)
            if (f->targets[i].scope == scope && ls_ptx_same(f->targets[i].name, name)) return &f->targets[i];
    return NULL;
}

static ls_status add_table(build *b, const ls_ptx_label *sorted, const ls_ptx_instruction *in, ls_error *err) {
    const ls_ptx_function *f = b->f;
    const ls_ptx_name name = f->operands[in->first + in->n - 1].name;
    const ls_ptx_targets *t = find_table(f, name, in->scope);
    if (t == NULL)
        return refuse_function(
            b, in->line, err, "a jump through a table that is not in its function:", name.text == NULL ? in->op : name);
    for (int32_t k = 0; k < t->n; k++) {
        int32_t at;
        LS_TRY(find_label(b, sorted, f->target_names[t->first + k], in, &at, err));
        LS_TRY(add_edge(b, block_at(b, at), err));
    }
    return LS_OK;
}

static ls_status add_successors(build *b, const ls_ptx_label *sorted, int32_t block, ls_error *err) {
    ls_flow_block *k = &b->flow->blocks[block];
    const ls_ptx_instruction *last = k->n > 0 ? &b->f->instructions[k->first + k->n - 1] : NULL;
    bool falls = block + 1 < b->flow->n_blocks;
    k->first_to = (int32_t)b->flow->n_edges;
    if (last != NULL && is_jump(last->op)) {
        int32_t at;
        if (last->n != 1 || b->f->operands[last->first].kind != LS_PTX_SYMBOL)
            return refuse_function(b, last->line, err, "a jump without a label:", last->op);
        LS_TRY(find_label(b, sorted, b->f->operands[last->first].name, last, &at, err));
        LS_TRY(add_edge(b, block_at(b, at), err));
        falls = falls && last->guard >= 0;
    } else if (last != NULL && is_table(last->op)) {
        if (last->n < 2) return refuse_function(b, last->line, err, "a jump without a table:", last->op);
        LS_TRY(add_table(b, sorted, last, err));
        falls = falls && last->guard >= 0;
    } else if (last != NULL && is_end(last->op)) {
        falls = falls && last->guard >= 0;
    }
    if (falls) LS_TRY(add_edge(b, block + 1, err));
    b->flow->blocks[block].n_to = (int32_t)b->flow->n_edges - k->first_to;
    return LS_OK;
}

static ls_status make_edges(build *b, ls_error *err) {
    ls_flow *flow = b->flow;
    ls_status status = LS_OK;
    ls_ptx_label *sorted = NULL;
    flow->n_edges = 0;
    LS_TRY(ls_array_alloc((void **)&sorted, b->f->n_labels, sizeof *sorted, "labels", err));
    if (b->f->n_labels > 0) memcpy(sorted, b->f->labels, sizeof *sorted * (size_t)b->f->n_labels);
    qsort(sorted, (size_t)b->f->n_labels, sizeof *sorted, by_label_name);
    for (int64_t i = 1; i < b->f->n_labels; i++)
        if (by_label_name(&sorted[i - 1], &sorted[i]) == 0) {
            status = refuse_function(b, sorted[i].line, err, "a label that is there twice:", sorted[i].name);
            goto done;
        }
    for (int32_t i = 0; i < flow->n_blocks; i++) LS_TRY_DONE(add_successors(b, sorted, i, err));
    const int64_t n_to = flow->n_edges;
    LS_TRY_DONE(ls_array_grow((void **)&flow->edges, &flow->cap_edges, 2 * n_to, sizeof *flow->edges, "edges", err));
    for (int64_t i = 0; i < n_to; i++) flow->blocks[flow->edges[i]].n_from++;
    for (int64_t i = 0, at = n_to; i < flow->n_blocks; i++) {
        flow->blocks[i].first_from = (int32_t)at;
        at += flow->blocks[i].n_from;
        flow->blocks[i].n_from = 0;
    }
    for (int32_t i = 0; i < flow->n_blocks; i++)
        for (int32_t k = 0; k < flow->blocks[i].n_to; k++) {
            ls_flow_block *to = &flow->blocks[flow->edges[flow->blocks[i].first_to + k]];
            flow->edges[to->first_from + to->n_from++] = i;
        }
    flow->n_edges = 2 * n_to;
done:
    free(sorted);
    return status;
}

/* Dominators ------------------------------------------------------------------------------------------------------ */

static ls_status make_order(build *b, ls_error *err) {
    ls_flow *flow = b->flow;
    ls_status status = LS_OK;
    int32_t *stack = NULL, *step = NULL;
    int64_t n = 0, at = flow->n_blocks;
    LS_TRY(ls_array_grow((void **)&flow->order, &flow->cap_order, flow->n_blocks, sizeof *flow->order, "order", err));
    LS_TRY_DONE(ls_array_alloc((void **)&stack, flow->n_blocks + 1, sizeof *stack, "stack of blocks", err));
    LS_TRY_DONE(ls_array_alloc((void **)&step, flow->n_blocks, sizeof *step, "steps of blocks", err));
    stack[n++] = 0;
    flow->blocks[0].order = 0;
    while (n > 0) {
        const int32_t block = stack[n - 1];
        const ls_flow_block *k = &flow->blocks[block];
        if (step[block] < k->n_to) {
            const int32_t to = flow->edges[k->first_to + step[block]++];
            if (flow->blocks[to].order < 0) {
                flow->blocks[to].order = 0;
                stack[n++] = to;
            }
        } else {
            flow->order[--at] = block;
            n--;
        }
    }
    flow->n_order = flow->n_blocks - at;
    memmove(flow->order, flow->order + at, sizeof *flow->order * (size_t)flow->n_order);
    for (int32_t i = 0; i < flow->n_order; i++) flow->blocks[flow->order[i]].order = i;
done:
    free(stack);
    free(step);
    return status;
}

static int32_t common_dominator(const ls_flow *flow, int32_t a, int32_t b, int64_t *steps) {
    while (a != b) {
        for (; flow->blocks[a].order > flow->blocks[b].order; ++*steps) a = flow->blocks[a].above;
        for (; flow->blocks[b].order > flow->blocks[a].order; ++*steps) b = flow->blocks[b].above;
    }
    return a;
}

static ls_status make_dominators(build *b, ls_error *err) {
    ls_flow *flow = b->flow;
    bool changed = true;
    while (changed) {
        changed = false;
        for (int64_t i = 1; i < flow->n_order; i++) {
            ls_flow_block *k = &flow->blocks[flow->order[i]];
            int32_t above = -1;
            for (int32_t e = 0; e < k->n_from; e++) {
                const int32_t from = flow->edges[k->first_from + e];
                if (flow->blocks[from].order < 0 || (from != 0 && flow->blocks[from].above < 0)) continue;
                above = above < 0 ? from : common_dominator(flow, above, from, &b->steps);
            }
            if (b->steps > STEPS_MAX)
                return LS_FAIL(err, LS_ERR_FORMAT, "%s: the jumps of a function are too many", b->name);
            if (above != k->above) k->above = above, changed = true;
        }
    }
    for (int64_t i = 1; i < flow->n_order; i++) {
        ls_flow_block *k = &flow->blocks[flow->order[i]];
        k->depth = flow->blocks[k->above].depth + 1;
    }
    for (int64_t i = 0; i < flow->n_order; i++) {
        ls_flow_block *k = &flow->blocks[flow->order[i]];
        for (int32_t e = 0; e < k->n_from && !k->is_loop; e++)
            if (ls_flow_dominates(flow, flow->order[i], flow->edges[k->first_from + e])) k->is_loop = true;
    }
    return LS_OK;
}

bool ls_flow_dominates(const ls_flow *flow, int32_t a, int32_t b) {
    if (flow->blocks[a].order < 0 || flow->blocks[b].order < 0) return false;
    while (b >= 0 && flow->blocks[b].depth > flow->blocks[a].depth) b = flow->blocks[b].above;
    return a == b;
}

/* Definitions ----------------------------------------------------------------------------------------------------- */

static ls_status add_value(build *b, ls_flow_value value, int32_t *id, ls_error *err) {
    ls_flow *flow = b->flow;
    if (flow->n_values == INT32_MAX / 4)
        return LS_FAIL(err, LS_ERR_FORMAT, "%s: a function has too many values", b->name);
    LS_TRY(ls_array_grow((void **)&flow->values, &flow->cap_values, flow->n_values + 1, sizeof *flow->values, "values",
                         err));
    *id = (int32_t)flow->n_values;
    flow->values[flow->n_values++] = value;
    return LS_OK;
}

static ls_status define_all(build *b, ls_error *err) {
    const ls_ptx_function *f = b->f;
    ls_flow *flow = b->flow;
    for (int64_t i = 0; i < f->n_operands; i++) flow->reads[i] = flow->writes[i] = -1;
    memset(b->slot, -1, sizeof *b->slot * (size_t)f->n_registers);
    memset(b->single, -1, sizeof *b->single * (size_t)f->n_registers);
    for (int32_t i = 0; i < f->n_instructions; i++) {
        const ls_ptx_instruction *in = &f->instructions[i];
        flow->guards[i] = -1;
        for (int32_t k = 0, n = ls_flow_defines(f, in); k < n; k++) {
            const int32_t reg = f->operands[in->first + k].reg;
            if (f->operands[in->first + k].kind != LS_PTX_REG) continue;
            LS_TRY(add_value(b, (ls_flow_value){LS_FLOW_INSTRUCTION, reg, flow->block_of[i], i, k, -1, 0},
                             &flow->writes[in->first + k], err));
            if (b->single[reg] < 0) {
                b->single[reg] = flow->writes[in->first + k];
            } else if (b->slot[reg] < 0) {
                b->slot[reg] = (int32_t)b->n_several;
                b->several[b->n_several++] = reg;
            }
        }
    }
    return LS_OK;
}

static ls_status add_frontier(build *b, int32_t block, int32_t member, ls_error *err) {
    for (int32_t i = b->frontier[block]; i >= 0; i = b->frontier_next[i], b->steps++)
        if (b->frontier_block[i] == member) return LS_OK;
    if (b->n_frontier > JOINS_MAX)
        return LS_FAIL(err, LS_ERR_FORMAT, "%s: the jumps of a function are too many", b->name);
    LS_TRY(ls_array_grow((void **)&b->frontier_next, &b->cap_frontier_next, b->n_frontier + 1, sizeof *b->frontier_next,
                         "frontiers", err));
    LS_TRY(ls_array_grow((void **)&b->frontier_block, &b->cap_frontier_block, b->n_frontier + 1,
                         sizeof *b->frontier_block, "frontiers", err));
    b->frontier_next[b->n_frontier] = b->frontier[block];
    b->frontier_block[b->n_frontier] = member;
    b->frontier[block] = (int32_t)b->n_frontier++;
    return LS_OK;
}

static ls_status make_frontiers(build *b, ls_error *err) {
    ls_flow *flow = b->flow;
    for (int64_t i = 0; i < flow->n_blocks; i++) b->frontier[i] = -1;
    for (int64_t i = 0; i < flow->n_order; i++) {
        const int32_t block = flow->order[i];
        const ls_flow_block *k = &flow->blocks[block];
        if (k->n_from < 2 && block != 0) continue;
        for (int32_t e = 0; e < k->n_from; e++) {
            int32_t at = flow->edges[k->first_from + e];
            if (flow->blocks[at].order < 0) continue;
            while (at >= 0 && at != k->above) {
                LS_TRY(add_frontier(b, at, block, err));
                at = flow->blocks[at].above;
                if (++b->steps > STEPS_MAX)
                    return LS_FAIL(err, LS_ERR_FORMAT, "%s: the jumps of a function are too many", b->name);
            }
        }
    }
    return LS_OK;
}

/* A join for a register in every block of its definitions' iterated frontier. */
static ls_status place_joins(build *b, ls_error *err) {
    ls_flow *flow = b->flow;
    ls_status status = LS_OK;
    int32_t *work = NULL, *placed = NULL, *listed = NULL, *first = NULL, *chain = NULL;
    const int64_t n_first = flow->n_values;
    LS_TRY_DONE(ls_array_alloc((void **)&work, flow->n_blocks, sizeof *work, "work", err));
    LS_TRY_DONE(ls_array_alloc((void **)&placed, flow->n_blocks, sizeof *placed, "joins of blocks", err));
    LS_TRY_DONE(ls_array_alloc((void **)&listed, flow->n_blocks, sizeof *listed, "listed blocks", err));
    LS_TRY_DONE(ls_array_alloc((void **)&first, b->n_several, sizeof *first, "definitions of registers", err));
    LS_TRY_DONE(ls_array_alloc((void **)&chain, n_first, sizeof *chain, "definitions of registers", err));
    for (int64_t s = 0; s < b->n_several; s++) first[s] = -1;
    for (int32_t v = 0; v < n_first; v++) {
        const int32_t s = b->slot[flow->values[v].reg];
        if (s >= 0) chain[v] = first[s], first[s] = v;
    }
    for (int64_t i = 0; i < flow->n_blocks; i++) b->phis[i] = -1;
    for (int32_t s = 0; s < b->n_several; s++) {
        int64_t n = 0;
        for (int32_t v = first[s]; v >= 0; v = chain[v]) {
            const int32_t block = flow->values[v].block;
            if (flow->blocks[block].order >= 0 && listed[block] != s + 1) listed[block] = s + 1, work[n++] = block;
        }
        while (n > 0) {
            const int32_t block = work[--n];
            for (int32_t i = b->frontier[block]; i >= 0; i = b->frontier_next[i]) {
                const int32_t at = b->frontier_block[i];
                const ls_flow_block *k = &flow->blocks[at];
                int32_t id = -1;
                if (placed[at] == s + 1) continue;
                placed[at] = s + 1;
                if (flow->n_joined + k->n_from > JOINS_MAX) {
                    status = LS_FAIL(err, LS_ERR_FORMAT, "%s: a function has too many joins", b->name);
                    goto done;
                }
                LS_TRY_DONE(add_value(
                    b, (ls_flow_value){LS_FLOW_PHI, b->several[s], at, -1, 0, -1, (int32_t)flow->n_joined}, &id, err));
                LS_TRY_DONE(ls_array_grow((void **)&flow->joined, &flow->cap_joined, flow->n_joined + k->n_from,
                                          sizeof *flow->joined, "joins", err));
                for (int32_t e = 0; e < k->n_from; e++) flow->joined[flow->n_joined + e] = -1;
                flow->n_joined += k->n_from;
                LS_TRY_DONE(
                    ls_array_grow((void **)&b->next, &b->cap_next, b->n_joins + 1, sizeof *b->next, "joins", err));
                LS_TRY_DONE(ls_array_grow((void **)&b->join_value, &b->cap_join_value, b->n_joins + 1,
                                          sizeof *b->join_value, "joins", err));
                b->next[b->n_joins] = b->phis[at];
                b->join_value[b->n_joins] = id;
                b->phis[at] = (int32_t)b->n_joins++;
                if (listed[at] != s + 1) listed[at] = s + 1, work[n++] = at;
            }
        }
    }
done:
    free(work), free(placed), free(listed), free(first), free(chain);
    return status;
}

static int32_t read_register(const build *b, int32_t reg) {
    return b->slot[reg] >= 0 ? b->current[b->slot[reg]] : b->single[reg];
}

/* What was current before a block, to be put back behind its subtree. */
typedef struct saved {
    int32_t slot, value;
} saved;

typedef struct walk {
    saved *saves;
    int64_t n_saves, cap_saves;
} walk;

static ls_status set_current(build *b, walk *w, int32_t reg, int32_t value, ls_error *err) {
    if (b->slot[reg] < 0) return LS_OK;
    LS_TRY(ls_array_grow((void **)&w->saves, &w->cap_saves, w->n_saves + 1, sizeof *w->saves, "renamings", err));
    w->saves[w->n_saves++] = (saved){b->slot[reg], b->current[b->slot[reg]]};
    b->current[b->slot[reg]] = value;
    return LS_OK;
}

static ls_status rename_block(build *b, walk *w, int32_t block, ls_error *err) {
    ls_flow *flow = b->flow;
    const ls_ptx_function *f = b->f;
    const ls_flow_block *k = &flow->blocks[block];
    for (int32_t j = b->phis[block]; j >= 0; j = b->next[j])
        LS_TRY(set_current(b, w, flow->values[b->join_value[j]].reg, b->join_value[j], err));
    for (int32_t i = k->first; i < k->first + k->n; i++) {
        const ls_ptx_instruction *in = &f->instructions[i];
        const int32_t n = ls_flow_defines(f, in);
        if (in->guard >= 0) flow->guards[i] = read_register(b, in->guard);
        for (int32_t o = in->first; o < in->first + in->n; o++)
            if (f->operands[o].reg >= 0) flow->reads[o] = read_register(b, f->operands[o].reg);
        for (int32_t o = in->first; o < in->first + n; o++) {
            const int32_t value = flow->writes[o];
            if (value < 0) continue;
            if (in->guard >= 0 && b->slot[f->operands[o].reg] >= 0) flow->values[value].old = flow->reads[o];
            LS_TRY(set_current(b, w, f->operands[o].reg, value, err));
        }
    }
    for (int32_t t = 0; t < k->n_to; t++) {
        const int32_t to = flow->edges[k->first_to + t];
        const ls_flow_block *target = &flow->blocks[to];
        for (int32_t e = 0; e < target->n_from; e++) {
            if (flow->edges[target->first_from + e] != block) continue;
            for (int32_t j = b->phis[to]; j >= 0; j = b->next[j]) {
                const ls_flow_value *phi = &flow->values[b->join_value[j]];
                flow->joined[phi->first_from + e] = b->current[b->slot[phi->reg]];
            }
        }
    }
    return LS_OK;
}

/* Goes through the tree of dominators, definitions of the way down being current. */
static ls_status rename_all(build *b, ls_error *err) {
    ls_flow *flow = b->flow;
    ls_status status = LS_OK;
    walk w = {0};
    int32_t *stack = NULL;
    int64_t *marks = NULL, n = 0;
    LS_TRY_DONE(ls_array_alloc((void **)&stack, flow->n_blocks + 1, sizeof *stack, "stack of blocks", err));
    LS_TRY_DONE(ls_array_alloc((void **)&marks, flow->n_blocks + 1, sizeof *marks, "stack of blocks", err));
    for (int64_t i = 0; i < flow->n_blocks; i++) b->children[i] = b->sibling[i] = -1;
    for (int64_t i = flow->n_order - 1; i >= 1; i--) {
        const int32_t block = flow->order[i], above = flow->blocks[block].above;
        b->sibling[block] = b->children[above];
        b->children[above] = block;
    }
    for (int64_t i = 0; i < b->n_several; i++) b->current[i] = -1;
    stack[n++] = 0;
    marks[0] = -1;
    while (n > 0) {
        const int32_t block = stack[n - 1];
        if (marks[n - 1] < 0) {
            marks[n - 1] = w.n_saves;
            LS_TRY_DONE(rename_block(b, &w, block, err));
        }
        if (b->children[block] >= 0) {
            const int32_t child = b->children[block];
            b->children[block] = b->sibling[child];
            stack[n] = child;
            marks[n++] = -1;
            continue;
        }
        while (w.n_saves > marks[n - 1]) {
            const saved *s = &w.saves[--w.n_saves];
            b->current[s->slot] = s->value;
        }
        n--;
    }
done:
    free(w.saves), free(stack), free(marks);
    return status;
}

/* A block with one way in, behind a conditional jump or end, knows how the condition fell. */
static void make_conditions(build *b) {
    ls_flow *flow = b->flow;
    for (int64_t i = 1; i < flow->n_order; i++) {
        const int32_t block = flow->order[i];
        ls_flow_block *k = &flow->blocks[block];
        if (k->n_from != 1) continue;
        const ls_flow_block *from = &flow->blocks[flow->edges[k->first_from]];
        if (from->n == 0) continue;
        const int32_t last = from->first + from->n - 1;
        const ls_ptx_instruction *in = &b->f->instructions[last];
        const bool jumps = is_jump(in->op) && from->n_to == 2;
        if (in->guard < 0 || !(jumps || is_end(in->op))) continue;
        const bool taken = jumps && flow->edges[from->first_to] == block;
        k->condition = flow->guards[last];
        k->condition_not = in->guard_not == taken;
    }
}

static ls_status prepare_flow(build *b, ls_error *err) {
    const ls_ptx_function *f = b->f;
    ls_flow *flow = b->flow;
    flow->n_values = flow->n_joined = flow->n_order = 0;
    LS_TRY(
        ls_array_grow((void **)&flow->reads, &flow->cap_reads, f->n_operands + 1, sizeof *flow->reads, "reads", err));
    LS_TRY(ls_array_grow((void **)&flow->writes, &flow->cap_writes, f->n_operands + 1, sizeof *flow->writes, "writes",
                         err));
    LS_TRY(ls_array_grow((void **)&flow->guards, &flow->cap_guards, f->n_instructions + 1, sizeof *flow->guards,
                         "guards", err));
    LS_TRY(ls_array_grow((void **)&flow->block_of, &flow->cap_block_of, f->n_instructions + 1, sizeof *flow->block_of,
                         "blocks of instructions", err));
    LS_TRY(ls_array_alloc((void **)&b->slot, f->n_registers, sizeof *b->slot, "registers", err));
    LS_TRY(ls_array_alloc((void **)&b->single, f->n_registers, sizeof *b->single, "registers", err));
    LS_TRY(ls_array_alloc((void **)&b->several, f->n_registers, sizeof *b->several, "registers", err));
    return ls_array_alloc((void **)&b->current, f->n_registers, sizeof *b->current, "registers", err);
}

static ls_status prepare_blocks(build *b, ls_error *err) {
    const int64_t n = b->flow->n_blocks;
    LS_TRY(ls_array_alloc((void **)&b->phis, n, sizeof *b->phis, "joins", err));
    LS_TRY(ls_array_alloc((void **)&b->children, n, sizeof *b->children, "children", err));
    LS_TRY(ls_array_alloc((void **)&b->sibling, n, sizeof *b->sibling, "siblings", err));
    return ls_array_alloc((void **)&b->frontier, n, sizeof *b->frontier, "frontiers", err);
}

ls_status ls_flow_build(ls_flow *flow, const ls_ptx_function *function, const char *name, ls_error *err) {
    ls_status status = LS_OK;
    build b = {.flow = flow, .f = function, .name = name};
    flow->function = function;
    LS_TRY_DONE(prepare_flow(&b, err));
    LS_TRY_DONE(make_blocks(&b, err));
    LS_TRY_DONE(make_edges(&b, err));
    LS_TRY_DONE(prepare_blocks(&b, err));
    LS_TRY_DONE(make_order(&b, err));
    LS_TRY_DONE(make_dominators(&b, err));
    LS_TRY_DONE(define_all(&b, err));
    LS_TRY_DONE(make_frontiers(&b, err));
    LS_TRY_DONE(place_joins(&b, err));
    LS_TRY_DONE(rename_all(&b, err));
    make_conditions(&b);
done:
    free(b.slot), free(b.single), free(b.several), free(b.current), free(b.phis), free(b.next), free(b.join_value);
    free(b.children), free(b.sibling), free(b.frontier), free(b.frontier_next), free(b.frontier_block);
    return status;
}

void ls_flow_deinit(ls_flow *flow) {
    free(flow->blocks), free(flow->edges), free(flow->order), free(flow->values), free(flow->joined);
    free(flow->reads), free(flow->writes), free(flow->guards), free(flow->block_of);
    *flow = (ls_flow){0};
}
