/* Time of a device's calls, split by kind of call: every op by name, dense products by size as well, and the moves of
 * memory.
 *
 * While a timing is open, the device's table is one that wraps the device's own: each call is made as before, with its
 * bits, between two readings of a clock. On the CPU the clock is the host's. On CUDA it is events in the stream, read
 * at the next wait: device time from the end of what came before to the end of the call, so where the host is slower
 * than the device a call's time holds the wait for its own launch. A sum of small calls is then larger than without a
 * timing. Other back ends are refused: a call of theirs that returns has not run, and they have no events.
 *
 * Meanwhile nothing can be recorded, so every call is made by itself; a recording that was made before is one call,
 * "replay". One timing a device. */
#ifndef LS_OP_TIMING_H
#define LS_OP_TIMING_H

#include "op/backend.h"

#define LS_TIMED_NAME_MAX 48

typedef struct ls_timed_row {
    char name[LS_TIMED_NAME_MAX]; /* "scan", "gemm 10240 x 2560" (outputs x inputs), "read", .. */
    int64_t calls;
    double ms;
} ls_timed_row;

typedef struct ls_timing ls_timing;

/* device must outlive it. */
ls_status ls_timing_begin(ls_timing **out, ls_device *device, ls_error *err);
/* Waits; rows [n] of all calls since begin that did not fail, by time, largest first, are the timing's until its next
 * call; total_ms is the time from begin to here, gaps between calls included. */
ls_status ls_timing_read(ls_timing *timing, const ls_timed_row **rows, int64_t *n, double *total_ms, ls_error *err);
/* The device is as it was. Accepts NULL. */
void ls_timing_end(ls_timing *timing);

#endif
