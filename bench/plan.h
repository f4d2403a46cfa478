/* How a bench on a GPU chooses what its command line leaves open, as a training run does. */
#ifndef LS_BENCH_PLAN_H
#define LS_BENCH_PLAN_H

#include "failures.h"
#include "train/train_plan.h"

/* The plan for the device; of one without a limit *planned is false. Ends the program where nothing fits. */
static inline ls_train_plan bench_plan(bool *planned, ls_device *device, const ls_train_wish *wish,
                                       ls_train_rehearse rehearse, void *context, bool tells) {
    ls_memory_state memory;
    ls_train_planned made;
    ls_error err;
    need(ls_device_memory(device, &memory, &err), &err);
    *planned = memory.is_limited && device->exec.backend == LS_BACKEND_CUDA;
    if (!*planned) return (ls_train_plan){0};
    need(ls_train_plan_make(&made, ls_card_like(device, memory.total), memory.total, memory.total - memory.free, wish,
                            rehearse, context, &err),
         &err);
    if (tells) ls_train_plan_tell(stdout, &made, ls_card_like(device, memory.total), wish);
    need(ls_device_prepare(device, made.plan.workspace, &err), &err);
    return made.plan;
}

#endif
