/* Choosing the device of a run. A device has a name:
 *   cpu      the CPU
 *   cuda:N   GPU N of this machine, from 0
 *   cuda     the first GPU; of several processes that share a step, number r of its machine takes GPU r modulo
 *            their number
 *   auto     cuda where this build has CUDA and there is a GPU that it can use, else cpu
 * The choice carries no bits. */
#ifndef LS_OP_CHOICE_H
#define LS_OP_CHOICE_H

#include "op/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LS_DEVICE_AUTO "auto"

enum { LS_DEVICE_NAME_MAX = 24, LS_DEVICE_LINE_MAX = 512 };

/* Whether it is a name at all; the sentence quotes it. */
ls_status ls_device_name_check(const char *name, ls_error *err);
/* Whether a device of this name is there. Nothing is opened, and nothing allocated on a GPU. */
ls_status ls_device_check(const char *name, ls_error *err);
/* n_threads and isa are settings of the CPU. */
ls_status ls_device_open_named(ls_device **out, const char *name, int32_t n_threads, ls_isa isa, ls_error *err);

/* What a process wants. */
typedef struct ls_device_wish {
    const char *name;
    int32_t n_threads;
    ls_isa isa;
    int64_t rank, ranks; /* of processes that share a step; ranks 0 is one process */
    int64_t local;       /* number of the process on its machine */
} ls_device_wish;

/* What it got. */
typedef struct ls_device_choice {
    char name[LS_DEVICE_NAME_MAX]; /* opens the same one again: "cpu", "cuda:1" */
    char text[LS_DEVICE_LINE_MAX]; /* for people: "cuda:1, NVIDIA H200, 139 GiB" */
} ls_device_choice;

ls_status ls_device_open_wished(ls_device **out, ls_device_choice *choice, const ls_device_wish *wish, ls_error *err);

/* Where the program has named another opener before its first run, `cpu` and `auto` open what it opens; NULL: none. For
 * tests. */
typedef ls_status (*ls_device_opener)(ls_device **out, int32_t n_threads, ls_isa isa, ls_error *err);
void ls_device_open_by(ls_device_opener opener);
/* The device `cpu`. */
ls_status ls_device_open(ls_device **out, int32_t n_threads, ls_isa isa, ls_error *err);

#ifdef __cplusplus
}
#endif
#endif
