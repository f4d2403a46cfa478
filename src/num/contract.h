/* The numerical digest: what two sides must share before their bits can be expected to agree. */
#ifndef LS_NUM_CONTRACT_H
#define LS_NUM_CONTRACT_H

/* Version of NUMERICS.md; raised by every change that changes a bit. */
#define LS_NUMERICS_VERSION 2
/* The profile of dense products: one float32 fma chain, k ascending. */
#define LS_NUMERICS_PROFILE "exact"

#endif
