/* What the ops of lockstep/ops.h have in common: back ends, where and how a call runs, memory, spans and pools. */
#ifndef LOCKSTEP_OPS_BASE_H
#define LOCKSTEP_OPS_BASE_H

#include "lockstep/lockstep.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- back ends ---- */

typedef enum ls_backend {
    LS_BACKEND_CPU = 0,
    LS_BACKEND_CUDA = 1,
    LS_BACKEND_HIP = 2,
    LS_BACKEND_TRITON = 3,
    LS_BACKEND_COUNT = 4
} ls_backend;

const char *ls_backend_name(ls_backend backend); /* "cpu", "cuda", "hip", "triton"; never NULL */
/* False with a sentence in err when this build, or this machine, cannot run the back end. */
bool ls_backend_available(ls_backend backend, ls_error *err);

/* What the device found wrong before it wrote anything. */
typedef enum ls_fault_code {
    LS_FAULT_NONE = 0,
    LS_FAULT_TARGET,      /* index: row; value: target; limit: vocabulary */
    LS_FAULT_TEMPERATURE, /* index: row; value: bits of the temperature */
    LS_FAULT_SPAN_ROWS,   /* index: span; value: its first row or its count that does not fit; limit: rows */
    LS_FAULT_SPAN_POS,    /* index: span; value: its position; limit: the largest one taken */
    LS_FAULT_SLOT,        /* index: span; value: slot; limit: entries of the pool */
    LS_FAULT_OFFSET,      /* index: sequence; value: its offset that does not fit; limit: rows */
    LS_FAULT_SPAN_ORDER,  /* index: span; value: its first row; limit: the end of the span before it */
    LS_FAULT_TOKEN,       /* index: row; value: token; limit: vocabulary */
    LS_FAULT_ROW,         /* index: entry of a list of rows; value: row; limit: rows */
    LS_FAULT_ROW_ORDER,   /* index: entry of a list of ascending rows; value: row; limit: the row before it */
    LS_FAULT_EXPERT,      /* index: row; value: expert; limit: experts */
    LS_FAULT_TABLE,       /* index: span; value: its first entry of the page tables; limit: entries */
    LS_FAULT_PAGE,        /* index: span; value: page; limit: entries of the pool */
    LS_FAULT_RANGE,       /* index: first row; value: row after the last; limit: rows */
    LS_FAULT_EXPERT_ORDER /* index: row; value: expert; limit: the row's expert before it */
} ls_fault_code;

/* A record in device memory, all zero at first. The check that precedes every call writes the lowest bad index here; a
 * call that finds a fault in its record, its own or an earlier one, writes nothing else. */
typedef struct ls_fault {
    int64_t code, index, value, limit;
} ls_fault;

/* Threads and instruction set of CPU calls. */
typedef struct ls_workers ls_workers;

/* isa: "generic", "avx2", "avx512" or NULL for the best one here. */
ls_status ls_cpu_workers_create(ls_workers **out, int32_t n_threads, const char *isa, ls_error *err);
void ls_cpu_workers_free(ls_workers *workers);

/* Where and how a call runs. */
typedef struct ls_exec {
    ls_backend backend;
    ls_workers *workers; /* CPU only */
    void *stream;        /* CUDA only: a cudaStream_t of the current device; NULL is the default stream */
    /* Scratch of the back end, 256-byte aligned, at least what the op's _workspace function says; its content means
     * nothing before or after. Calls that may run at the same time need one each. */
    void *workspace;
    int64_t workspace_bytes;
    /* CUDA only. A record, one for each stream: nothing waits, ls_fault_take tells later. NULL: each call waits for its
     * check and returns the fault as its status, nothing else having been written; not possible while the stream is
     * captured. */
    ls_fault *fault;
} ls_exec;

/* Waits for the stream, turns a fault in the record into a status that names op-independent cause, index and value, and
 * clears the record. LS_OK when there is none. */
ls_status ls_fault_take(const ls_exec *exec, ls_error *err);

/* ---- memory of a back end, for callers that have no allocator of their own ---- */

ls_status ls_device_alloc(ls_backend backend, void **out, int64_t bytes, ls_error *err);
void ls_device_free(ls_backend backend, void *memory);
/* Copies in the order of the stream and waits for it. */
ls_status ls_device_upload(const ls_exec *exec, void *device, const void *host, int64_t bytes, ls_error *err);
ls_status ls_device_download(const ls_exec *exec, void *host, const void *device, int64_t bytes, ls_error *err);
ls_status ls_device_fill(const ls_exec *exec, void *device, int byte, int64_t bytes, ls_error *err);
ls_status ls_device_synchronize(const ls_exec *exec, ls_error *err);
/* On the CPU a stream is NULL. */
ls_status ls_stream_create(ls_backend backend, void **out, ls_error *err);
void ls_stream_free(ls_backend backend, void *stream);
/* Everything enqueued on the stream between begin and end becomes a graph that launch runs as one. CUDA only. */
ls_status ls_graph_begin(const ls_exec *exec, ls_error *err);
ls_status ls_graph_end(const ls_exec *exec, void **graph, ls_error *err);
ls_status ls_graph_launch(const ls_exec *exec, void *graph, ls_error *err);
void ls_graph_free(void *graph);

/* ---- what ops with state read and write ---- */

/* Rows [row, row + n_rows) are tokens pos, pos + 1, ... of one sequence. A span with pos 0 begins its sequence: no
 * stored state is read, however few rows it has. slot < 0 marks padding: ops with state leave its rows alone. A span
 * without rows changes nothing. No two spans of one call share a slot, a row or a page that they write. */
typedef struct ls_span {
    int64_t row, n_rows;
    int64_t pos;
    int32_t slot;  /* recurrent state */
    int64_t table; /* attention only: where the span's page numbers begin in the tables of the call; page i holds
                      positions [i, i + 1) * page_tokens */
} ls_span;

/* A pooled tensor: entry i starts at base + i * stride. */
typedef struct ls_pool_view {
    uint8_t *base;
    int64_t stride; /* bytes */
    int64_t n_entries;
} ls_pool_view;

#ifdef __cplusplus
}
#endif
#endif
