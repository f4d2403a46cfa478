/* What the source calls a kernel: its qualified name without the arguments of templates and of the function. */
#ifndef LS_AUDIT_KERNEL_SOURCE_H
#define LS_AUDIT_KERNEL_SOURCE_H

enum { LS_KERNEL_SOURCE_MAX = 512 };

/* Of a name as C++'s common ABI mangles it: "at::native::fill_kernel" of _ZN2at6native11fill_kernelIfEEvPT_. Any other
 * name, and what is not understood, is itself. */
const char *ls_kernel_source(char out[LS_KERNEL_SOURCE_MAX], const char *kernel);

#endif
