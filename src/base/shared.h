/* Memory of the host that several processes of one machine have together. It has no name that could outlive its
 * processes: who knows the process and its number there maps it while that process has it, and the last process that
 * ends takes it along, however it ends. */
#ifndef LS_BASE_SHARED_H
#define LS_BASE_SHARED_H

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_shared_region {
    void *memory;
    int64_t bytes;
    int32_t process, number; /* of the process that made it, and its descriptor there */
} ls_shared_region;

/* Zeroed memory of this process, at least one byte; `what` stands in errors. */
ls_status ls_shared_region_make(ls_shared_region *out, int64_t bytes, const char *what, ls_error *err);
/* The same memory in another process, to be read: process, number and bytes as its maker has them. */
ls_status ls_shared_region_map(ls_shared_region *out, int32_t process, int32_t number, int64_t bytes, ls_error *err);
/* Of either. Accepts one without memory. */
void ls_shared_region_drop(ls_shared_region *region);

/* Which machine this is, since it was started: equal in all processes of one, and in no two. */
enum { LS_MACHINE_BYTES = 40 };
ls_status ls_machine_name(char out[LS_MACHINE_BYTES], ls_error *err);

#ifdef __cplusplus
}
#endif
#endif
