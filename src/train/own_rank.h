/* Which of several processes this one is, as whoever started it says in the environment:
 *
 *   torchrun  RANK, WORLD_SIZE, LOCAL_RANK; MASTER_ADDR and MASTER_PORT
 *   mpirun    OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_RANK (Open MPI)
 *   srun      SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID; the first host of SLURM_STEP_NODELIST and a port made
 *             of SLURM_JOB_ID and SLURM_STEP_ID, unless MASTER_ADDR and MASTER_PORT say otherwise
 *
 * A launcher is there where its rank or its number of processes is; one without the other is an error that names the
 * missing one. Two launchers that disagree, and a launcher that disagrees with the options, are refused by name. Where
 * two agree the first of the list above counts. A Slurm batch script, which is no step, has no SLURM_STEP_NUM_TASKS and
 * is no launcher. */
#ifndef LS_TRAIN_OWN_RANK_H
#define LS_TRAIN_OWN_RANK_H

#include "base/status.h"

enum { LS_RANK_ADDRESS_MAX = 1024 };

typedef enum ls_launcher {
    LS_LAUNCHER_AUTO, /* whichever is there, or none */
    LS_LAUNCHER_NONE,
    LS_LAUNCHER_TORCHRUN,
    LS_LAUNCHER_MPIRUN,
    LS_LAUNCHER_SRUN
} ls_launcher;

extern const char *const ls_launcher_names[]; /* ends with NULL */

typedef struct ls_own_rank {
    int64_t rank, ranks, local;        /* local: number on its machine */
    char address[LS_RANK_ADDRESS_MAX]; /* HOST:PORT of rank 0; "" where nobody says */
    ls_launcher launcher;              /* who said so; NONE: the options */
} ls_own_rank;

/* The value of a variable of the environment, or NULL. */
typedef const char *(*ls_own_rank_variable)(void *context, const char *name);

/* *own: what the options say; ranks 1: nothing. It becomes what the environment says, where it says anything. */
ls_status ls_own_rank_read(ls_own_rank *own, ls_launcher launcher, int64_t ranks_max, ls_own_rank_variable variable,
                           void *context, ls_error *err);
/* The same with this process's environment. */
ls_status ls_own_rank_find(ls_own_rank *own, ls_launcher launcher, int64_t ranks_max, ls_error *err);

#endif
