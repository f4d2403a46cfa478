/* TensorBoard's event files: records of a length, its checksum, the bytes and their checksum, each record an Event
 * message of protocol buffers. Only what scalars take is written. */
#ifndef LS_RUN_EVENT_OUT_H
#define LS_RUN_EVENT_OUT_H

#include <stdio.h>

#include "base/status.h"

/* CRC-32C (Castagnoli) of the bytes; known: "123456789" gives e3069283. */
uint32_t ls_crc32c(const void *data, int64_t bytes);

/* The file's first events: its version, and the start of a session, at which TensorBoard forgets what an earlier file
 * told of steps from this one on. */
void ls_event_start(FILE *file, double time, int64_t step);

/* The scalars of one step, gathered and then written as one event. */
typedef struct ls_event {
    uint8_t *bytes; /* the summary so far */
    int64_t n, cap;
} ls_event;

ls_status ls_event_scalar(ls_event *event, const char *tag, double value, ls_error *err);
/* Writes what was gathered, which is empty afterwards. */
ls_status ls_event_write(FILE *file, ls_event *event, double time, int64_t step, ls_error *err);
void ls_event_deinit(ls_event *event);

#endif
