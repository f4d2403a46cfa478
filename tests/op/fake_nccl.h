/* What the library of tests/op/fake_nccl.c does and was asked for. */
#ifndef LS_TESTS_OP_FAKE_NCCL_H
#define LS_TESTS_OP_FAKE_NCCL_H

#include <stdbool.h>

enum { FAKE_NEVER = 1000000000 };

typedef struct fake_nccl {
    int polls;   /* so often a call is in progress; FAKE_NEVER: it never ends */
    bool blocks; /* calls say at once that they are done */
    bool fails;  /* and then there is an error */
    int polls_left, n_inits, n_finals, n_destroyed, n_aborted;
    bool config_is_sound;
    char nvls[16]; /* of the environment, at the first group */
} fake_nccl;

extern fake_nccl fake_nccl_state;

#endif
