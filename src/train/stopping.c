/* One byte of every process, shared. */
#include "train/stopping.h"

#include "base/interrupt.h"

ls_status ls_stop_asked(bool *out, ls_comm *comm, ls_error *err) {
    uint8_t asked[LS_RANKS_MAX] = {0};
    int64_t begins[LS_RANKS_MAX + 1];
    ls_status status;
    *out = ls_interrupt_pending() != 0;
    if (comm == NULL) return LS_OK;
    for (int32_t r = 0; r <= ls_comm_ranks(comm); r++) begins[r] = r;
    asked[ls_comm_rank(comm)] = *out;
    status = ls_comm_share(comm, asked, begins, "whether to stop", err);
    for (int32_t r = 0; r < ls_comm_ranks(comm); r++) *out = *out || asked[r] != 0;
    return status;
}

void ls_stop_tell(FILE *file, int64_t step, const char *run) {
    if (file == NULL) return;
    if (step == 0) {
        fprintf(file, "stopped before the first step by signal %d; nothing has been learnt, and nothing is saved\n",
                ls_interrupt_pending());
        return;
    }
    fprintf(file, "stopped behind step %lld by signal %d; go on with: lockstep train resume %s\n", (long long)step,
            ls_interrupt_pending(), run);
}

void ls_stop_tell_done(FILE *file, int64_t step, int64_t steps) {
    fprintf(file, "step %lld of %lld is done; set steps to go further\n", (long long)step, (long long)steps);
}
