/* Control flow and definitions of one function: blocks, dominators, and for every operand the one definition that it
 * reads, with joins (phi) where several meet. Nothing is computed here. */
#ifndef LS_AUDIT_FLOW_H
#define LS_AUDIT_FLOW_H

#include "audit/ptx.h"

typedef struct ls_flow_block {
    int32_t first, n;           /* instructions */
    int32_t first_from, n_from; /* predecessors, in `edges` */
    int32_t first_to, n_to;     /* successors, in `edges` */
    int32_t above;              /* the immediate dominator, -1 for the entry and for what nothing reaches */
    int32_t order;              /* in reverse postorder, -1 for what nothing reaches */
    int32_t depth;              /* in the tree of dominators */
    int32_t condition;          /* the definition of the predicate that holds on entry, -1 for none */
    bool condition_not;
    bool is_loop; /* some predecessor lies behind it */
} ls_flow_block;

typedef enum ls_flow_kind { LS_FLOW_INSTRUCTION, LS_FLOW_PHI, LS_FLOW_NOTHING } ls_flow_kind;

/* One definition of a register. */
typedef struct ls_flow_value {
    uint8_t kind; /* ls_flow_kind; NOTHING is a register that no definition reaches */
    int32_t reg, block;
    int32_t at;         /* INSTRUCTION: which */
    int32_t part;       /* INSTRUCTION: which of the operands that it defines */
    int32_t old;        /* INSTRUCTION with a guard: what the register held, -1 for nothing */
    int32_t first_from; /* PHI: the definitions that come over the block's predecessors, in `joined` */
} ls_flow_value;

typedef struct ls_flow {
    const ls_ptx_function *function;
    ls_flow_block *blocks;
    int64_t n_blocks, cap_blocks;
    int32_t *edges;
    int64_t n_edges, cap_edges;
    int32_t *order; /* blocks in reverse postorder, n_order of them */
    int64_t n_order, cap_order;
    ls_flow_value *values;
    int64_t n_values, cap_values;
    int32_t *joined;
    int64_t n_joined, cap_joined;
    int32_t *reads;    /* [operands]: the definition that the operand reads, -1 */
    int32_t *writes;   /* [operands]: the definition that the operand is, -1 */
    int32_t *guards;   /* [instructions]: the definition of the guard, -1 */
    int32_t *block_of; /* [instructions] */
    int64_t cap_reads, cap_writes, cap_guards, cap_block_of;
} ls_flow;

/* Which operands of an instruction it defines: the first *n. */
int32_t ls_flow_defines(const ls_ptx_function *function, const ls_ptx_instruction *in);

/* Fills flow, whose arrays are used again from call to call; all zero before the first. `name` starts the errors. */
ls_status ls_flow_build(ls_flow *flow, const ls_ptx_function *function, const char *name, ls_error *err);
void ls_flow_deinit(ls_flow *flow);

/* Whether block a dominates block b. */
bool ls_flow_dominates(const ls_flow *flow, int32_t a, int32_t b);

#endif
