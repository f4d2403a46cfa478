/* A device on paper: it computes nothing and holds nothing, and counts what would be held.
 *
 * Everything that is made on a device can be made on this one as well: its ledger then says what each part of it takes,
 * by the code that will ask for it, and an allocation that its memory would not hold fails as on the device itself.
 * Layouts of weights and sizes of workspaces are those of the back end that it stands for. What a read brings is zero;
 * an address is none of the host's, and who touches it dies. */
#ifndef LS_OP_PLANNED_H
#define LS_OP_PLANNED_H

#include "op/backend.h"

typedef struct ls_planned_opts {
    const char *title;  /* in sentences, "h100-80"; borrowed as long as the device lives */
    bool is_gpu;        /* it stands for the CUDA back end, else for the CPU's */
    int64_t total;      /* bytes of its memory; 0, of the CPU's alone: as much as is asked for */
    int64_t taken;      /* of them, by what the process takes beside its allocations: context, code, libraries */
    int64_t pinned_max; /* bytes of the host's memory that may be pinned; 0: as many as are asked for */
} ls_planned_opts;

ls_status ls_device_open_planned(ls_device **out, const ls_planned_opts *opts, ls_error *err);

#endif
