/* Memory of this machine. */
#ifndef LS_BASE_HOST_MEMORY_H
#define LS_BASE_HOST_MEMORY_H

#include <stdint.h>

/* Bytes that processes can still take without pushing others out: MemAvailable of /proc/meminfo, or the free pages
 * where there is no such file. */
int64_t ls_host_memory_available(void);

#endif
