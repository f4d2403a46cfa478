/* What an audit is given: a file of PTX, a binary that holds PTX, a folder of Triton's cache. */
#ifndef LS_AUDIT_BINARY_H
#define LS_AUDIT_BINARY_H

#include "audit/audit.h"

/* Adds what is at path, which must live as long as the audit. A folder is searched for files that end in .ptx or .sass.
 * A file that begins as an ELF file or a fat binary goes through cuobjdump of the search path, or the program that
 * LOCKSTEP_CUOBJDUMP names: its PTX, or where it has none (or audit->machine or audit->arch asks for it) its machine
 * code, by way of nvdisasm or what LOCKSTEP_NVDISASM names. Without them, that is an error. */
ls_status ls_audit_path(ls_audit *audit, const char *path, const ls_ranges *ranges, ls_error *err);

#endif
