/* Sockets with deadlines: what processes that share a run stand on. Everything here waits no longer than it is told. */
#ifndef LS_NET_WIRE_H
#define LS_NET_WIRE_H

#include "base/status.h"

#define LS_WIRE_HOST_MAX 64 /* of an address in numbers */

typedef enum ls_wire_outcome { LS_WIRE_MOVED, LS_WIRE_SILENT, LS_WIRE_LOST } ls_wire_outcome;

/* Waits until fd is ready for `events` of poll(). */
ls_wire_outcome ls_wire_wait(int fd, short events, double seconds);
/* All bytes; seconds: without one that moves. */
ls_wire_outcome ls_wire_send(int fd, const void *data, int64_t bytes, double seconds);
ls_wire_outcome ls_wire_receive(int fd, void *data, int64_t bytes, double seconds);
/* Sends at once, does not wait for full packets, keeps the connection alive. */
void ls_wire_tune(int fd);

/* HOST:PORT; an IPv6 host stands in brackets. */
ls_status ls_wire_listen(int *out, const char *address, int backlog, ls_error *err);
/* Of no certain address, at a port that is free: *port. */
ls_status ls_wire_listen_anywhere(int *out, int32_t *port, int backlog, ls_error *err);
/* Tries until the deadline, a time of ls_clock_seconds; LS_ERR_IO: nobody answered, LS_ERR_ARG: no address. */
ls_status ls_wire_connect(int *out, const char *address, double deadline, ls_error *err);
/* The host at the other end, in numbers; whether it is this machine's own loopback. */
void ls_wire_peer(int fd, char host[LS_WIRE_HOST_MAX], bool *is_loopback);
/* HOST:PORT of a host in numbers. */
void ls_wire_join(char *out, size_t bytes, const char *host, int32_t port);

#endif
