/* The version within the numerical digest, which is what two sides must share before their bits can be expected to
 * agree (ls_numerics_text). */
#ifndef LS_NUM_CONTRACT_H
#define LS_NUM_CONTRACT_H

/* Version of NUMERICS.md; raised by every change that changes a bit. */
#define LS_NUMERICS_VERSION 4
/* The version that last changed a bit of the profile exact: digests of exact have this one. */
#define LS_NUMERICS_VERSION_EXACT 2
#endif
