/* The device interface. Model, cache, engine, tape and trainer compute through a device and know no other way: a
 * device is a back end, which is one table, and what that back end needs to run.
 *
 * Order. Calls on a device run in the order they are made and may return before they have run. What they write, host
 * memory that ls_memory_read fills included, is there after ls_device_wait. An error that a call can only find when it
 * runs (a token outside the vocabulary, a slot outside the pool) is returned by that call or by a later wait.
 *
 * Memory. Every pointer in an argument struct is memory of the device, from ls_memory_alloc or ls_memory_reserve,
 * unless the struct says otherwise; argument structs themselves are read before the call returns. The host looks at
 * device memory through ls_memory_read, ls_memory_write and ls_memory_load alone.
 *
 * An op is a contract in op/NAME.h, a check of what the host can see (ls_NAME_check, made here and nowhere else), and
 * an entry of the table. A back end without an entry refuses the call by name. docs/guide/adding-a-back-end.md tells
 * how to write a table. */
#ifndef LS_OP_BACKEND_H
#define LS_OP_BACKEND_H

#include "base/shared.h"
#include "base/status.h"
#include "dev/workers.h"
#include "op/gemm.h"
#include "op/ledger.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the ops ---- */

/* Ops that need no workspace. */
#define LS_OPS_PLAIN(OP)           \
    OP(gemm)                       \
    OP(gemm_gated)                 \
    OP(gemm_three)                 \
    OP(mamba_step)                 \
    OP(write_held)                 \
    OP(gemm_repack)                \
    OP(gemm_backward_input)        \
    OP(gemm_backward_weight)       \
    OP(gemm_groups)                \
    OP(gemm_groups_backward_input) \
    OP(rmsnorm)                    \
    OP(add_rmsnorm)                \
    OP(rmsnorm_parts)              \
    OP(rmsnorm_backward)           \
    OP(gated_norm)                 \
    OP(gated_norm_backward)        \
    OP(rmsnorm_parts_backward)     \
    OP(embed)                      \
    OP(embed_backward)             \
    OP(residual)                   \
    OP(multiply)                   \
    OP(scale)                      \
    OP(round_rows)                 \
    OP(swiglu)                     \
    OP(swiglu_backward)            \
    OP(swiglu_backward_rounded)    \
    OP(moe_sigmoid_route)          \
    OP(moe_sigmoid_route_backward) \
    OP(regroup)                    \
    OP(relu2)                      \
    OP(relu2_backward)             \
    OP(sigmoid_gate)               \
    OP(sigmoid_gate_backward)      \
    OP(attention)                  \
    OP(attention_heads)            \
    OP(rope_table)                 \
    OP(rope)                       \
    OP(rope_backward)              \
    OP(rope_norm_fold)             \
    OP(moe_route)                  \
    OP(moe_route_backward)         \
    OP(moe_reweigh)                \
    OP(moe_reweigh_backward)       \
    OP(moe_place)                  \
    OP(moe_combine)                \
    OP(moe_combine_backward)       \
    OP(moe_sum)                    \
    OP(moe_gather_backward)        \
    OP(gather)                     \
    OP(process)                    \
    OP(sample)                     \
    OP(support)                    \
    OP(penalize)                   \
    OP(top)                        \
    OP(differs)                    \
    OP(adamw)                      \
    OP(lora_merge)                 \
    OP(lora_backward)              \
    OP(squares)                    \
    OP(weight_cast)                \
    OP(widen)                      \
    OP(decay)                      \
    OP(rates)                      \
    OP(taps)

/* Ops with a function ls_NAME_workspace(args): bytes, the head of LS_WORKSPACE_HEAD included; -1 where they do not fit
 * int64_t. Those of the flat ABI call it ls_op_NAME_workspace. */
#define LS_OPS_WITH_WORKSPACE(OP)   \
    OP(attention_backward)          \
    OP(gemm_groups_backward_weight) \
    OP(logprob)                     \
    OP(logprob_shard)               \
    OP(logprob_combine)             \
    OP(logprob_backward)            \
    OP(sequence_sum)                \
    OP(conv1d)                      \
    OP(conv1d_backward)             \
    OP(scan)                        \
    OP(scan_backward)               \
    OP(ssd)                         \
    OP(ssd_backward)                \
    OP(delta)                       \
    OP(delta_backward)

#define LS_OPS(OP)   \
    LS_OPS_PLAIN(OP) \
    LS_OPS_WITH_WORKSPACE(OP)

#define OP(name) struct ls_##name##_args;
LS_OPS(OP)
#undef OP

/* ---- a back end ---- */

typedef struct ls_device ls_device;

/* Puts bytes [at, at + bytes) of something long into host memory. */
typedef ls_status (*ls_memory_source)(void *context, void *host, int64_t at, int64_t bytes, ls_error *err);

/* rows pieces of row_bytes each, strides in bytes. They do not overlap. */
typedef struct ls_copy_args {
    void *to;
    const void *from;
    int64_t to_stride, from_stride, rows, row_bytes;
} ls_copy_args;

/* What a digest goes over next: bytes of the device, or of the host. */
typedef struct ls_digest_part {
    const void *memory;
    int64_t bytes;
    bool on_host;
} ls_digest_part;

/* What a device's memory is and holds, in bytes. */
typedef struct ls_memory_state {
    bool is_limited;     /* an allocation costs what it asks for, of `total`; else the host's memory, where touched */
    int64_t total, free; /* of the device, or of the machine; free: for this process, others' share taken off */
    int64_t kept;        /* of `free`: released, and with the process still; ls_memory_trim gives it to others */
    int64_t used, used_max; /* what allocations on this device hold, and the most so far */
    int64_t pinned;         /* what ls_memory_pin holds of the host's memory */
    int64_t n_allocations;  /* made so far, pinned ones included */
} ls_memory_state;

/* Memory of a device that other processes of the machine map into theirs: what they need to know for that. Bytes that
 * may be sent. */
enum { LS_SHARED_PLACE_BYTES = 64 };
typedef struct ls_shared_name {
    char machine[LS_MACHINE_BYTES];       /* ls_machine_name */
    uint8_t place[LS_SHARED_PLACE_BYTES]; /* the back end's */
    int64_t bytes;
} ls_shared_name;

/* The memory in one of the processes: the one that made it, or one that mapped it. */
typedef struct ls_shared {
    void *memory; /* NULL: there is none */
    int64_t bytes;
    ls_shared_name name;
} ls_shared;

/* block_bytes and gradient_block_bytes of the back ends. */
#define LS_BLOCK_BYTES_CPU ((int64_t)1 << 20)
#define LS_BLOCK_BYTES_CUDA ((int64_t)256 << 20)
#define LS_GRADIENT_BLOCK_BYTES_CUDA ((int64_t)1 << 30)

typedef struct ls_backend_table {
    const char *title;                /* "cpu", .. */
    bool packs_behind_rows;           /* a packed weight begins with its rows as stored, where the types are equal */
    int64_t block_bytes;              /* of a result that is made and used up block by block: as much as is worth it */
    int64_t gradient_block_bytes;     /* the same where each block reads and writes a sum besides */
    void (*close)(ls_device *device); /* releases what the back end's own open made, `device` included */
    /* What it is, for people: "cpu, avx2, 2 threads". */
    void (*describe)(const ls_device *device, char *text, size_t bytes);
    /* A device with other threads and another instruction set that computes with the memory of `home`. NULL: these are
     * no settings of the back end. */
    ls_status (*open_beside)(ls_device **out, const ls_device *home, int32_t n_threads, ls_isa isa, ls_error *err);
    /* The same with the threads of `home`, for a second thread of the host. NULL: they cannot be shared. */
    ls_status (*open_sharing)(ls_device **out, const ls_device *home, int32_t n_most, ls_error *err);

    /* Zeroed memory, 256-byte aligned; bytes may be 0. `what` names it in errors. */
    ls_status (*alloc)(ls_device *device, void **out, int64_t bytes, const char *what, ls_error *err);
    void (*release)(ls_device *device, void *memory);
    /* Zeroed pools, which may be far larger than what is touched of them. */
    ls_status (*reserve)(ls_device *device, void **out, int64_t bytes, const char *what, ls_error *err);
    void (*unreserve)(ls_device *device, void *memory, int64_t bytes);
    /* Gives a part of a pool back to the system as far as that goes; it is zero there afterwards. */
    ls_status (*drop)(ls_device *device, void *memory, int64_t bytes, ls_error *err);
    /* Memory that is not the device's own, where it has some: the host's, which a copy reaches in the order of calls,
     * and which the host reads behind a wait. Its content is undefined at first. unpin is called when no call needs it
     * any more. */
    ls_status (*pin)(ls_device *device, void **out, int64_t bytes, const char *what, ls_error *err);
    void (*unpin)(ls_device *device, void *memory, int64_t bytes);
    /* Zeroed memory of shared->bytes that other processes can map: fills memory and name.place. NULL, like the other
     * three: the back end has no such memory. unshare is called when no process needs it any more. */
    ls_status (*share)(ls_device *device, ls_shared *shared, const char *what, ls_error *err);
    void (*unshare)(ls_device *device, ls_shared *shared);
    /* That of another process, by shared->name: fills memory. It can be read by copies, in the order of calls. */
    ls_status (*map)(ls_device *device, ls_shared *shared, ls_error *err);
    void (*unmap)(ls_device *device, ls_shared *shared);
    /* Fills is_limited, total, free and kept. */
    ls_status (*memory)(ls_device *device, ls_memory_state *out, ls_error *err);
    /* Gives back to the system what was released and is kept for the next allocation. NULL: nothing is kept. */
    ls_status (*trim)(ls_device *device, ls_error *err);

    ls_status (*write)(ls_device *device, void *to, const void *host, int64_t bytes, ls_error *err);
    /* As ls_memory_load: piece by piece, bytes > 0. */
    ls_status (*load)(ls_device *device, void *to, int64_t bytes, int64_t piece_bytes, ls_memory_source source,
                      void *context, ls_error *err);
    ls_status (*read)(ls_device *device, void *host, const void *from, int64_t bytes, ls_error *err);
    /* *hash mixed with the parts in order (base/fnv.h); waits. NULL: the host reads what it has to and mixes. */
    ls_status (*digest)(ls_device *device, uint64_t *hash, const ls_digest_part *parts, int64_t n, ls_error *err);
    ls_status (*copy)(ls_device *device, const ls_copy_args *args, ls_error *err);
    ls_status (*fill)(ls_device *device, void *to, int byte, int64_t bytes, ls_error *err);
    ls_status (*wait)(ls_device *device, ls_error *err);

    /* Ops, copies and fills called between record and recorded are kept instead of run; replay runs them again, in
     * order, reading the same addresses. A wait, an allocation or a larger workspace is refused in between; so are
     * reads and writes of the host, where the back end cannot keep them. NULL: the back end has none. */
    ls_status (*record)(ls_device *device, ls_error *err);
    ls_status (*recorded)(ls_device *device, void **recording, ls_error *err);
    ls_status (*replay)(ls_device *device, void *recording, ls_error *err);
    void (*forget)(ls_device *device, void *recording);

    /* Whether products of the profile mma16 are what the device is fast at, and it computes them with the profile's
     * bits. NULL: no. */
    bool (*prefers_mma16)(ls_device *device);

    /* The back end's layout of a weight [n][k]: fills everything of *out but data, 64-byte aligned, data_bytes long. */
    ls_status (*pack_plan)(ls_gemm_weight *out, ls_dtype dtype, int64_t n, int64_t k, ls_error *err);

#define OP(name) ls_status (*name)(const ls_exec *exec, const struct ls_##name##_args *args, ls_error *err);
    LS_OPS(OP)
#undef OP
} ls_backend_table;

extern const ls_backend_table ls_backend_table_cpu, ls_backend_table_cuda;

/* NULL where no such back end has been written. */
const ls_backend_table *ls_backend_table_of(ls_backend backend);

/* ---- a device ---- */

struct ls_device {
    const ls_backend_table *table;
    ls_exec exec;     /* what the table's ops take; its workspace grows to what calls need */
    ls_ledger ledger; /* of its memory */
    int64_t limit;    /* bytes that it has for tests; 0: what there is */
};

/* isa: LS_ISA_*. */
ls_status ls_device_open_cpu(ls_device **out, int32_t n_threads, ls_isa isa, ls_error *err);
/* The CPU behind a queue, for tests: calls return at once and run at the next wait; until then what they write cannot
 * be seen, and the host cannot touch device memory at all (op/deferred.c). */
ls_status ls_device_open_deferred(ls_device **out, int32_t n_threads, ls_isa isa, ls_error *err);
/* GPU `ordinal` of this machine. Pools of ls_memory_reserve cost what they hold. */
ls_status ls_device_open_cuda(ls_device **out, int32_t ordinal, ls_error *err);
/* Opening a device by its name is in op/choice.h. */

/* What it is, for people: "cpu, avx2, 2 threads", "cuda:0, NVIDIA H200, 139 GiB". */
enum { LS_DEVICE_TEXT_MAX = 192 };
void ls_device_describe(const ls_device *device, char *text, size_t bytes);
/* The device of an experiment with threads and instruction set, which computes with the memory of `home`: *out, to be
 * closed before home. Where home has no such settings *out is NULL: home itself is the one. */
ls_status ls_device_open_beside(ls_device **out, ls_device *home, int32_t n_threads, ls_isa isa, ls_error *err);
/* The device of a second thread of the host, which computes with the memory and the threads of `home`: at most n_most
 * of them while home works (base/parallel.h). One at a time, to be closed before home. *out is NULL where threads are
 * no setting of home. */
ls_status ls_device_open_sharing(ls_device **out, ls_device *home, int32_t n_most, ls_error *err);
/* Waits first; accepts NULL. Memory that was not released goes with it. */
void ls_device_close(ls_device *device);
ls_status ls_device_wait(ls_device *device, ls_error *err);
/* True of GPUs that compute the profile mma16 in their tensor cores. May wait for the device. */
bool ls_device_prefers_mma16(ls_device *device);
/* Makes the workspace at least this large now, so that calls that need no more allocate nothing. */
ls_status ls_device_prepare(ls_device *device, int64_t workspace_bytes, ls_error *err);

/* count elements of elem_bytes, zero; the size is checked. ls_memory_free accepts NULL. */
ls_status ls_memory_alloc(ls_device *device, void **out, int64_t count, int64_t elem_bytes, const char *what,
                          ls_error *err);
void ls_memory_free(ls_device *device, void *memory);
/* Host memory that ls_memory_copy reaches like the device's, in the order of calls: for what is to leave the device's
 * memory. The host may read it once the device has been waited for, until the next call that writes there. Pointers of
 * op arguments point there only where the op's header says that they may. Undefined at first; ls_memory_unpin waits and
 * accepts NULL. */
ls_status ls_memory_pin(ls_device *device, void **out, int64_t count, int64_t elem_bytes, const char *what,
                        ls_error *err);
void ls_memory_unpin(ls_device *device, void *memory, int64_t bytes);
/* Memory that other processes of this machine map: its name is what they need. Who writes and who reads it agree among
 * each other; a write is there for others when the device has been waited for. A back end without it refuses by name.
 * ls_memory_unshare and ls_memory_unmap wait, and accept one that is zeroed. */
ls_status ls_memory_share(ls_device *device, ls_shared *out, int64_t bytes, const char *what, ls_error *err);
void ls_memory_unshare(ls_device *device, ls_shared *shared);
/* That of another process, for copies to read. It is no memory of this device: nothing is counted. */
ls_status ls_memory_map(ls_device *device, ls_shared *out, const ls_shared_name *name, ls_error *err);
void ls_memory_unmap(ls_device *device, ls_shared *shared);
/* How much memory there is, is free and is held. */
ls_status ls_device_memory(ls_device *device, ls_memory_state *out, ls_error *err);
/* Gives what was freed back to the system, as far as a back end keeps it. Waits. */
ls_status ls_memory_trim(ls_device *device, ls_error *err);
/* From here on the device is one of this many bytes: allocations beyond them fail as on a device that has no more.
 * For tests. 0: no such limit. */
void ls_device_limit(ls_device *device, int64_t bytes);
ls_status ls_memory_reserve(ls_device *device, void **out, int64_t count, int64_t elem_bytes, const char *what,
                            ls_error *err);
void ls_memory_unreserve(ls_device *device, void *memory, int64_t bytes);
ls_status ls_memory_drop(ls_device *device, void *memory, int64_t bytes, ls_error *err);
/* The host's side may be reused at once after write; after read it is filled when the device has been waited for. */
ls_status ls_memory_write(ls_device *device, void *to, const void *host, int64_t bytes, ls_error *err);
ls_status ls_memory_read(ls_device *device, void *host, const void *from, int64_t bytes, ls_error *err);
/* Writes what `source` brings, which is asked for pieces of at most piece_bytes, in order. Its host memory is the back
 * end's: memory that the device reaches, or the destination itself. Where the source fails, so does the call, and the
 * destination is undefined. No more than two pieces are on the host at a time. */
ls_status ls_memory_load(ls_device *device, void *to, int64_t bytes, int64_t piece_bytes, ls_memory_source source,
                         void *context, ls_error *err);
/* Reads and waits. */
ls_status ls_memory_take(ls_device *device, void *host, const void *from, int64_t bytes, ls_error *err);
ls_status ls_memory_copy(ls_device *device, void *to, const void *from, int64_t bytes, ls_error *err);
ls_status ls_memory_copy_rows(ls_device *device, const ls_copy_args *args, ls_error *err);
ls_status ls_memory_fill(ls_device *device, void *to, int byte, int64_t bytes, ls_error *err);

/* Packs w [n][k], rows contiguous, device memory, into a new weight. w may be released once the device has been waited
 * for. */
ls_status ls_gemm_pack(ls_device *device, ls_gemm_weight *out, const void *w, ls_dtype dtype, int64_t n, int64_t k,
                       ls_error *err);
/* The same without the copy that products of few rows read, where the back end has one (op/gemm.h): ls_gemm_set_tiles
 * tells where it lies, and ls_gemm_repack fills it then. */
ls_status ls_gemm_pack_rows(ls_device *device, ls_gemm_weight *out, const void *w, ls_dtype dtype, int64_t n, int64_t k,
                            ls_error *err);
/* Bytes of that copy, 0 where there is none. */
ls_status ls_gemm_tiles_bytes(ls_device *device, const ls_gemm_weight *w, int64_t *bytes, ls_error *err);
/* tiles: aligned to 256 bytes, device memory; NULL: products do without. */
void ls_gemm_set_tiles(ls_gemm_weight *w, void *tiles);
/* What a product reads of a weight, whose layout may hold it more than once. */
static inline int64_t ls_gemm_read_bytes(const ls_gemm_weight *w) { return w->n * w->k * ls_dtype_bytes(w->dtype); }
/* Accepts a zeroed weight; leaves *w zeroed. */
void ls_gemm_weight_free(ls_device *device, ls_gemm_weight *w);

/* What a device was called to do, to be done again. */
typedef struct ls_recording {
    void *calls;     /* the back end's; NULL: nothing is recorded */
    void *workspace; /* the device's while it was recorded */
} ls_recording;

bool ls_device_records(const ls_device *device);
ls_status ls_device_record(ls_device *device, ls_error *err);
/* Ends what ls_device_record began, also after a call that failed. *out is empty where this fails. */
ls_status ls_device_recorded(ls_device *device, ls_recording *out, ls_error *err);
/* False where nothing is recorded, or the workspace has moved since. The memory that calls name is the caller's care.
 */
bool ls_recording_is_valid(const ls_device *device, const ls_recording *recording);
/* In the order of calls, like a call; the recording must stand. */
ls_status ls_device_replay(ls_device *device, const ls_recording *recording, ls_error *err);
/* Waits; accepts an empty recording; leaves it empty. */
void ls_device_forget(ls_device *device, ls_recording *recording);

/* One function for each op: the check, then the table. */
#define OP(name) ls_status ls_##name(ls_device *device, const struct ls_##name##_args *args, ls_error *err);
LS_OPS(OP)
#undef OP

#ifdef __cplusplus
}
#endif
#endif
