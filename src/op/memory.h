/* Words about a device's memory, for those who plan it and say what they planned. The memory itself is in op/backend.h.
 */
#ifndef LS_OP_MEMORY_H
#define LS_OP_MEMORY_H

#include "op/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

double ls_mib(int64_t bytes);
/* What other processes hold of a limited memory, about: what is not free, is not this device's own, and is more than a
 * context takes. 0 where it is not. */
int64_t ls_memory_of_others(const ls_memory_state *state);

/* What this device's memory holds, largest first: "5718.2 MiB of memory: 3812.1 MiB of weights, .." */
void ls_memory_tell(const ls_device *device, char *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
