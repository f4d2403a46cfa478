/* See the header. The wire owns the group and a piece of device memory for one broadcast. */
#define _GNU_SOURCE
#include "serve/serve_transfer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/durable.h"
#include "base/interrupt.h"
#include "base/mem.h"
#include "json/json_out.h"
#include "op/backend.h"
#include "serve/torch_store.h"

enum { TENSORS_MAX = 1 << 20, RANKS_MAX = 4096 };
#define JOIN_S 300.0
#define SILENCE_S 600.0

/* ---- what is announced ---- */

static const struct {
    const char *name, *type;
    int64_t bytes;
} types[] = {{"bfloat16", "BF16", 2}, {"float16", "F16", 2}, {"float32", "F32", 4}};

static ls_status read_tensor_type(ls_transfer_tensor *t, const ls_node *node, ls_error *err) {
    const char *text;
    LS_TRY(ls_node_string(node, &text, err));
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(text, types[i].name) != 0) continue;
        t->type = types[i].type;
        t->bytes = types[i].bytes;
        return LS_OK;
    }
    return ls_node_fail(node, LS_ERR_UNSUPPORTED, err, "'%.60s' is not supported", text);
}

static ls_status read_shape(ls_transfer_tensor *t, const ls_node *node, ls_error *err) {
    LS_TRY(ls_node_expect(node, LS_NODE_ARRAY, err));
    if (ls_node_count(node) > LS_TRANSFER_DIMS_MAX)
        return ls_node_fail(node, LS_ERR_UNSUPPORTED, err, "more than %d dimensions", LS_TRANSFER_DIMS_MAX);
    t->n_dims = (int32_t)ls_node_count(node);
    for (int32_t i = 0; i < t->n_dims; i++) {
        const ls_node dim = ls_node_at(node, i);
        LS_TRY(ls_node_int(&dim, 1, INT32_MAX, &t->dims[i], err));
        if (!ls_mul_i64(t->bytes, t->dims[i], &t->bytes))
            return ls_node_fail(node, LS_ERR_CAPACITY, err, "the tensor is too large");
    }
    return LS_OK;
}

static ls_status need_list(const ls_node *info, const char *key, int64_t n, ls_node *out, ls_error *err) {
    LS_TRY(ls_node_need_kind(info, key, LS_NODE_ARRAY, out, err));
    if (n < 0 || ls_node_count(out) == n) return LS_OK;
    return ls_node_fail(out, LS_ERR_FORMAT, err, "%lld entries for %lld names", (long long)ls_node_count(out),
                        (long long)n);
}

static ls_status read_tensors(ls_transfer_plan *p, const ls_node *names, const ls_node *dtypes, const ls_node *shapes,
                              ls_error *err) {
    int64_t total = 0;
    for (int64_t i = 0; i < ls_node_count(names); i++) {
        const ls_node name = ls_node_at(names, i), dtype = ls_node_at(dtypes, i), shape = ls_node_at(shapes, i);
        ls_transfer_tensor *t = &p->tensors[i];
        const char *text;
        p->n = i + 1;
        LS_TRY(ls_node_string(&name, &text, err));
        if (text[0] == '\0') return ls_node_fail(&name, LS_ERR_ARG, err, "the name is empty");
        LS_TRY(ls_text_copy(&t->name, text, (int64_t)strlen(text), err));
        LS_TRY(read_tensor_type(t, &dtype, err));
        LS_TRY(read_shape(t, &shape, err));
        if (total > INT64_MAX - t->bytes)
            return ls_node_fail(&shape, LS_ERR_CAPACITY, err, "the tensors together are too large");
        total += t->bytes;
    }
    return LS_OK;
}

ls_status ls_transfer_plan_read(ls_transfer_plan **out, const ls_node *info, ls_error *err) {
    static const char *const keys[] = {"names", "dtype_names", "shapes", "packed", NULL};
    ls_transfer_plan *p = NULL;
    ls_node names, dtypes, shapes, flag;
    ls_status status;
    *out = NULL;
    LS_TRY_DONE(ls_node_only(info, keys, err));
    LS_TRY_DONE(need_list(info, "names", -1, &names, err));
    if (ls_node_count(&names) < 1 || ls_node_count(&names) > TENSORS_MAX) {
        status = ls_node_fail(&names, LS_ERR_ARG, err, "1 to %d names are taken", TENSORS_MAX);
        goto done;
    }
    LS_TRY_DONE(need_list(info, "dtype_names", ls_node_count(&names), &dtypes, err));
    LS_TRY_DONE(need_list(info, "shapes", ls_node_count(&names), &shapes, err));
    LS_TRY_DONE(ls_array_alloc((void **)&p, 1, sizeof *p, "weights", err));
    LS_TRY_DONE(ls_array_alloc((void **)&p->tensors, ls_node_count(&names), sizeof *p->tensors, "weights", err));
    if (ls_node_get_some(info, "packed", &flag)) LS_TRY_DONE(ls_node_bool(&flag, &p->packed, err));
    LS_TRY_DONE(read_tensors(p, &names, &dtypes, &shapes, err));
    *out = p;
    p = NULL;
done:
    ls_transfer_plan_free(p);
    return status;
}

void ls_transfer_plan_free(ls_transfer_plan *p) {
    if (p == NULL) return;
    for (int64_t i = 0; i < p->n; i++) free(p->tensors[i].name);
    free(p->tensors);
    free(p);
}

int64_t ls_transfer_chunk(const ls_transfer_plan *p, int64_t first, int64_t chunk_bytes, int64_t *end) {
    int64_t bytes = 0, i = first;
    do {
        bytes += p->tensors[i].bytes;
        i++;
    } while (chunk_bytes > 0 && i < p->n && bytes <= chunk_bytes);
    *end = i;
    return bytes;
}

/* ---- to disk ---- */

static void write_entry(ls_json_out *json, const ls_transfer_tensor *t, int64_t at) {
    ls_json_begin_object(json, t->name);
    ls_json_string(json, "dtype", t->type);
    ls_json_begin_array(json, "shape");
    for (int32_t i = 0; i < t->n_dims; i++) ls_json_int(json, NULL, t->dims[i]);
    ls_json_end_array(json);
    ls_json_begin_array(json, "data_offsets");
    ls_json_int(json, NULL, at);
    ls_json_int(json, NULL, at + t->bytes);
    ls_json_end_array(json);
    ls_json_end_object(json);
}

/* Length and text of the header; spaces bring the data to a multiple of 8. */
static ls_status write_header(const ls_transfer_plan *p, FILE *file, const char *path, ls_error *err) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *memory = open_memstream(&text, &bytes);
    ls_json_out json;
    int64_t at = 0;
    uint64_t length;
    ls_status status = LS_OK;
    if (memory == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "header of weights");
    ls_json_init(&json, memory);
    ls_json_begin_object(&json, NULL);
    for (int64_t i = 0; i < p->n; i++) {
        write_entry(&json, &p->tensors[i], at);
        at += p->tensors[i].bytes;
    }
    ls_json_end_object(&json);
    if (fclose(memory) != 0) status = LS_FAIL(err, LS_ERR_NOMEM, "header of weights");
    length = (bytes + 7) / 8 * 8;
    if (status == LS_OK && (fwrite(&length, sizeof length, 1, file) != 1 || fwrite(text, 1, bytes, file) != bytes ||
                            fprintf(file, "%*s", (int)(length - bytes), "") < 0))
        status = LS_FAIL(err, LS_ERR_IO, "%s: %s", path, strerror(errno));
    free(text);
    return status;
}

static int64_t largest_chunk(const ls_transfer_plan *p, int64_t chunk_bytes) {
    int64_t largest = 0;
    for (int64_t i = 0; i < p->n;) {
        const int64_t bytes = ls_transfer_chunk(p, i, chunk_bytes, &i);
        if (bytes > largest) largest = bytes;
    }
    return largest;
}

static ls_status write_data(const ls_transfer_plan *p, FILE *file, const char *path, int64_t chunk_bytes,
                            ls_transfer_receive receive, void *context, ls_error *err) {
    void *host = NULL;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc(&host, largest_chunk(p, chunk_bytes), 1, "weights on their way", err));
    for (int64_t i = 0; i < p->n;) {
        const int64_t bytes = ls_transfer_chunk(p, i, chunk_bytes, &i);
        LS_TRY_DONE(receive(context, host, bytes, err));
        if (fwrite(host, 1, (size_t)bytes, file) != (size_t)bytes) {
            status = LS_FAIL(err, LS_ERR_IO, "%s: %s", path, strerror(errno));
            goto done;
        }
    }
done:
    free(host);
    return status;
}

ls_status ls_transfer_write(const ls_transfer_plan *p, const char *path, int64_t chunk_bytes,
                            ls_transfer_receive receive, void *context, ls_error *err) {
    FILE *file = fopen(path, "wb");
    ls_status status;
    if (file == NULL) return LS_FAIL(err, LS_ERR_IO, "%s: %s", path, strerror(errno));
    status = write_header(p, file, path, err);
    if (status == LS_OK) status = write_data(p, file, path, chunk_bytes, receive, context, err);
    if (fclose(file) != 0 && status == LS_OK) status = LS_FAIL(err, LS_ERR_IO, "%s: %s", path, strerror(errno));
    return status;
}

/* ---- an update in parts ---- */

typedef struct placed {
    char *name;
    int64_t shard;
} placed;

struct ls_transfer_shards {
    char directory[LS_TRANSFER_PATH_MAX];
    placed *placed; /* [n] */
    int64_t n, cap, n_shards;
};

ls_status ls_transfer_directory(char out[LS_TRANSFER_PATH_MAX], ls_error *err) {
    const char *place = getenv("TMPDIR");
    ls_status status;
    snprintf(out, LS_TRANSFER_PATH_MAX, "%.400s/lockstep-transfer-XXXXXX",
             place != NULL && place[0] != '\0' ? place : "/tmp");
    if (mkdtemp(out) != NULL) return LS_OK;
    status = LS_FAIL(err, LS_ERR_IO, "%s: %s", out, strerror(errno));
    out[0] = '\0';
    return status;
}

ls_status ls_transfer_shards_create(ls_transfer_shards **out, ls_error *err) {
    ls_status status;
    *out = NULL;
    LS_TRY(ls_array_alloc((void **)out, 1, sizeof **out, "weights", err));
    status = ls_transfer_directory((*out)->directory, err);
    if (status == LS_OK) return LS_OK;
    free(*out);
    *out = NULL;
    return status;
}

void ls_transfer_shards_free(ls_transfer_shards *s) {
    if (s == NULL) return;
    (void)ls_directory_remove(s->directory, NULL);
    for (int64_t i = 0; i < s->n; i++) free(s->placed[i].name);
    free(s->placed);
    free(s);
}

static ls_status place_shards(ls_transfer_shards *s, const ls_transfer_plan *p, ls_error *err) {
    for (int64_t i = 0; i < p->n; i++) {
        const char *name = p->tensors[i].name;
        LS_TRY(ls_array_grow((void **)&s->placed, &s->cap, s->n + 1, sizeof *s->placed, "weights", err));
        LS_TRY(ls_text_copy(&s->placed[s->n].name, name, (int64_t)strlen(name), err));
        s->placed[s->n++].shard = s->n_shards;
    }
    return LS_OK;
}

ls_status ls_transfer_shards_add(ls_transfer_shards *s, const ls_transfer_plan *p, int64_t chunk_bytes,
                                 ls_transfer_receive receive, void *context, ls_error *err) {
    char path[LS_TRANSFER_PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/model-%05lld.safetensors", s->directory, (long long)++s->n_shards);
    LS_TRY(ls_transfer_write(p, path, chunk_bytes, receive, context, err));
    return place_shards(s, p, err);
}

ls_status ls_transfer_shards_finish(ls_transfer_shards *s, const char **directory, ls_error *err) {
    char path[LS_TRANSFER_PATH_MAX + 64], file[64];
    FILE *out;
    ls_json_out json;
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", s->directory);
    if ((out = fopen(path, "w")) == NULL) return LS_FAIL(err, LS_ERR_IO, "%s: %s", path, strerror(errno));
    ls_json_init(&json, out);
    ls_json_begin_object(&json, NULL);
    ls_json_begin_object(&json, "weight_map");
    for (int64_t i = 0; i < s->n; i++) {
        snprintf(file, sizeof file, "model-%05lld.safetensors", (long long)s->placed[i].shard);
        ls_json_string(&json, s->placed[i].name, file);
    }
    ls_json_end_object(&json);
    ls_json_end_object(&json);
    *directory = s->directory;
    return fclose(out) == 0 ? LS_OK : LS_FAIL(err, LS_ERR_IO, "%s: %s", path, strerror(errno));
}

/* ---- the wire ---- */

struct ls_transfer {
    ls_device *device;
    ls_nccl *group;
    bool packed; /* init_info says so */
    void *memory;
    int64_t bytes; /* of memory */
};

static ls_status grow_memory(ls_transfer *t, int64_t bytes, ls_error *err) {
    if (bytes <= t->bytes) return LS_OK;
    ls_memory_free(t->device, t->memory);
    t->memory = NULL;
    t->bytes = 0;
    LS_TRY(ls_memory_alloc(t->device, &t->memory, bytes, 1, "weights on their way", err));
    t->bytes = bytes;
    return LS_OK;
}

/* A server that stops waits for no trainer. */
static ls_status look_for_stop(void *context, const char *what, ls_error *err) {
    (void)context;
    return ls_interrupt_pending() == 0 ? LS_OK : LS_FAIL(err, LS_ERR_IO, "NCCL: %s: the server is stopping", what);
}

static ls_status await_device(ls_transfer *t, ls_error *err) {
    const double until = ls_clock_seconds() + SILENCE_S;
    bool reached = false;
    for (;;) {
        LS_TRY(ls_nccl_reached(t->group, &reached, err));
        if (reached) return LS_OK;
        LS_TRY(look_for_stop(NULL, "a broadcast", err));
        if (ls_clock_seconds() > until)
            return LS_FAIL(err, LS_ERR_IO, "the trainer sends nothing for %g s over NCCL", SILENCE_S);
        usleep(200);
    }
}

static ls_status receive(void *context, void *host, int64_t bytes, ls_error *err) {
    ls_transfer *t = context;
    LS_TRY(grow_memory(t, bytes, err));
    LS_TRY(ls_nccl_take(t->group, 0, t->memory, bytes, err));
    LS_TRY(await_device(t, err));
    return ls_memory_take(t->device, host, t->memory, bytes, err);
}

/* The group's name from the trainer's store, the group, and the sum of one number that the trainer begins with. */
static ls_status join_group(ls_transfer *t, const char *host, int64_t port, int64_t rank, int64_t n_ranks,
                            ls_error *err) {
    const ls_nccl_patience patience = {JOIN_S, look_for_stop, NULL};
    uint8_t *pickle = NULL;
    int64_t bytes;
    ls_nccl_id id;
    ls_status status;
    LS_TRY_DONE(ls_torch_store_get(&pickle, &bytes, host, port, "broadcast_from/0/0", JOIN_S, err));
    LS_TRY_DONE(ls_nccl_id_unpickle(&id, pickle, bytes, err));
    LS_TRY_DONE(ls_nccl_group_open(&t->group, t->device, &id, (int32_t)rank, (int32_t)n_ranks, &patience, err));
    LS_TRY_DONE(grow_memory(t, (int64_t)sizeof(float), err));
    LS_TRY_DONE(ls_memory_fill(t->device, t->memory, 0, (int64_t)sizeof(float), err));
    LS_TRY_DONE(ls_nccl_sum(t->group, t->memory, 1, err));
    status = await_device(t, err);
done:
    free(pickle);
    return status;
}

ls_status ls_transfer_open(ls_transfer **out, ls_device *device, const ls_node *info, ls_error *err) {
    static const char *const keys[] = {"master_address", "master_port", "rank_offset", "world_size", "packed", NULL};
    ls_transfer *t = NULL;
    ls_node node;
    const char *host;
    int64_t port, rank, n_ranks;
    ls_status status;
    *out = NULL;
    LS_TRY_DONE(ls_node_only(info, keys, err));
    LS_TRY_DONE(ls_node_need(info, "master_address", &node, err));
    LS_TRY_DONE(ls_node_string(&node, &host, err));
    LS_TRY_DONE(ls_node_need(info, "master_port", &node, err));
    LS_TRY_DONE(ls_node_int(&node, 1, 65535, &port, err));
    LS_TRY_DONE(ls_node_need(info, "world_size", &node, err));
    LS_TRY_DONE(ls_node_int(&node, 2, RANKS_MAX, &n_ranks, err));
    LS_TRY_DONE(ls_node_need(info, "rank_offset", &node, err));
    LS_TRY_DONE(ls_node_int(&node, 1, n_ranks - 1, &rank, err));
    LS_TRY_DONE(ls_nccl_check(device, err)); /* before the trainer waits */
    LS_TRY_DONE(ls_array_alloc((void **)&t, 1, sizeof *t, "weights over NCCL", err));
    t->device = device;
    if (ls_node_get_some(info, "packed", &node)) LS_TRY_DONE(ls_node_bool(&node, &t->packed, err));
    LS_TRY_DONE(join_group(t, host, port, rank, n_ranks, err));
    *out = t;
    t = NULL;
done:
    ls_transfer_close(t);
    return status;
}

void ls_transfer_close(ls_transfer *t) {
    if (t == NULL) return;
    ls_nccl_group_close(t->group);
    if (t->memory != NULL) ls_memory_free(t->device, t->memory);
    free(t);
}

ls_status ls_transfer_take(ls_transfer *t, const ls_transfer_plan *p, ls_transfer_shards *shards, ls_error *err) {
    const int64_t chunk_bytes = t->packed || p->packed ? LS_TRANSFER_CHUNK_BYTES : 0;
    const ls_status status = ls_transfer_shards_add(shards, p, chunk_bytes, receive, t, err);
    if (status != LS_OK) ls_nccl_abandon(t->group);
    return status;
}
