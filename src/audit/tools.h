/* Where cuobjdump and nvdisasm are. */
#ifndef LS_AUDIT_TOOLS_H
#define LS_AUDIT_TOOLS_H

#include "base/status.h"

enum { LS_TOOL_MAX = 4096 };

/* "cuobjdump" or "nvdisasm": what LOCKSTEP_CUOBJDUMP or LOCKSTEP_NVDISASM names; else the first that is in the search
 * path, below CUDA_HOME or CUDA_PATH, in a site-packages folder of Python, where pip's triton has both, or in
 * /usr/local/cuda. `path` is the file that needs it: a library of a site-packages folder is told by it. */
ls_status ls_tool_find(char out[LS_TOOL_MAX], const char *tool, const char *path, ls_error *err);

#endif
