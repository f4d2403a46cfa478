/* Weights over NCCL with the wire: the group is the test's own, in the place of op/nccl.c. It hands bytes over as a GPU
 * does, by a call on the device, and the device is the CPU, or the CPU behind a queue. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/interrupt.h"
#include "fake_store.h"
#include "load/safetensors.h"
#include "op/nccl.h"
#include "serve/serve_transfer.h"

/* ---- the group ---- */

struct ls_nccl {
    ls_device *device;
};

enum { TENSORS = 5 };
static const int64_t sizes[TENSORS] = {3, 700, 1, 9000, 40};

static struct wire {
    ls_nccl group;
    uint8_t *sent; /* all tensors, one after the other */
    int64_t at, n_abandoned, n_closed;
    bool is_silent; /* what was asked for never comes */
} wire;

ls_status ls_nccl_check(const ls_device *device, ls_error *err) {
    (void)device, (void)err;
    return LS_OK;
}
ls_status ls_nccl_id_make(ls_nccl_id *out, ls_error *err) {
    (void)out, (void)err;
    return LS_OK;
}
ls_status ls_nccl_group_open(ls_nccl **out, ls_device *device, const ls_nccl_id *id, int32_t rank, int32_t n_ranks,
                             const ls_nccl_patience *patience, ls_error *err) {
    (void)id, (void)err;
    assert_int_equal(rank, 1);
    assert_int_equal(n_ranks, 2);
    assert_true(patience->seconds > 0 && patience->look != NULL);
    wire.group.device = device;
    *out = &wire.group;
    return LS_OK;
}
ls_status ls_nccl_begin(ls_nccl *g, ls_error *err) {
    (void)g, (void)err;
    return LS_OK;
}
ls_status ls_nccl_send(ls_nccl *g, int32_t peer, const void *memory, int64_t bytes, ls_error *err) {
    (void)g, (void)peer, (void)memory, (void)bytes, (void)err;
    return LS_OK;
}
ls_status ls_nccl_receive(ls_nccl *g, int32_t peer, void *memory, int64_t bytes, ls_error *err) {
    (void)g, (void)peer, (void)memory, (void)bytes, (void)err;
    return LS_OK;
}
ls_status ls_nccl_end(ls_nccl *g, ls_error *err) {
    (void)g, (void)err;
    return LS_OK;
}
ls_status ls_nccl_reached(ls_nccl *g, bool *out, ls_error *err) {
    (void)g, (void)err;
    *out = !wire.is_silent;
    return LS_OK;
}
ls_status ls_nccl_sum(ls_nccl *g, float *memory, int64_t n, ls_error *err) {
    (void)g, (void)memory, (void)n, (void)err;
    return LS_OK;
}
ls_status ls_nccl_take(ls_nccl *g, int32_t root, void *memory, int64_t bytes, ls_error *err) {
    assert_int_equal(root, 0);
    wire.at += bytes;
    return ls_memory_write(g->device, memory, wire.sent + wire.at - bytes, bytes, err);
}
void ls_nccl_abandon(ls_nccl *g) {
    (void)g;
    wire.n_abandoned++;
}
void ls_nccl_group_close(ls_nccl *g) { wire.n_closed += g != NULL; }

/* ---- a transfer ---- */

static ls_node parse(ls_json_doc **doc, const char *text) {
    ls_error err;
    assert_ok(ls_json_doc_open(doc, text, (int64_t)strlen(text), "request", &err), err);
    return ls_json_root(*doc);
}

/* A pickled name of a group, as far as it is read. */
static const uint8_t pickle[132] = {0x80, 0x04, 'C', 128};

static ls_status meet(ls_transfer **out, ls_device *device, fake *store, bool packed, ls_error *err) {
    char text[200];
    ls_json_doc *doc;
    ls_node info;
    ls_status status;
    snprintf(text, sizeof text,
             "{\"master_address\":\"127.0.0.1\",\"master_port\":%lld,\"rank_offset\":1,\"world_size\":2,\"packed\":%s}",
             (long long)store->port, packed ? "true" : "false");
    info = parse(&doc, text);
    status = ls_transfer_open(out, device, &info, err);
    ls_json_doc_free(doc);
    return status;
}

static ls_transfer *met(ls_device *device, bool packed) {
    fake store = {.value = pickle, .bytes = sizeof pickle, .told = sizeof pickle};
    ls_transfer *t;
    ls_error err;
    start(&store);
    assert_ok(meet(&t, device, &store, packed, &err), err);
    pthread_join(store.thread, NULL);
    close(store.listener);
    return t;
}

static ls_transfer_plan *announced(void) {
    char text[1000] = "{\"names\":[", *at = text + strlen(text);
    ls_json_doc *doc;
    ls_transfer_plan *plan;
    ls_node info;
    ls_error err;
    for (int i = 0; i < TENSORS; i++) at += sprintf(at, "%s\"t%d\"", i > 0 ? "," : "", i);
    at += sprintf(at, "],\"dtype_names\":[");
    for (int i = 0; i < TENSORS; i++) at += sprintf(at, "%s\"float32\"", i > 0 ? "," : "");
    at += sprintf(at, "],\"shapes\":[");
    for (int i = 0; i < TENSORS; i++) at += sprintf(at, "%s[%lld]", i > 0 ? "," : "", (long long)sizes[i]);
    sprintf(at, "]}");
    info = parse(&doc, text);
    assert_ok(ls_transfer_plan_read(&plan, &info, &err), err);
    ls_json_doc_free(doc);
    return plan;
}

static void send_random(uint64_t seed) {
    int64_t bytes = 0;
    for (int i = 0; i < TENSORS; i++) bytes += 4 * sizes[i];
    free(wire.sent);
    memset(&wire, 0, sizeof wire);
    wire.sent = malloc((size_t)bytes);
    for (int64_t i = 0; i < bytes; i++) wire.sent[i] = (uint8_t)test_random(&seed);
}

/* Every tensor has the bytes that were sent: they were there when they were written. */
static void arrives(ls_device *device, bool packed) {
    ls_transfer *t;
    ls_transfer_shards *shards;
    ls_transfer_plan *plan = announced();
    const char *directory;
    ls_checkpoint *c;
    int64_t at = 0;
    ls_error err;
    send_random(packed ? 7 : 8);
    t = met(device, packed);
    assert_ok(ls_transfer_shards_create(&shards, &err), err);
    assert_ok(ls_transfer_take(t, plan, shards, &err), err);
    assert_ok(ls_transfer_shards_finish(shards, &directory, &err), err);
    ls_transfer_close(t);
    assert_ok(ls_device_wait(device, &err), err); /* nothing may come later, into memory that is free */
    assert_ok(ls_checkpoint_open(&c, directory, &err), err);
    for (int i = 0; i < TENSORS; i++) {
        char name[24];
        float *read = malloc((size_t)(4 * sizes[i]));
        snprintf(name, sizeof name, "t%d", i);
        assert_ok(ls_tensor_read(read, ls_checkpoint_find(c, name), &err), err);
        if (memcmp(read, wire.sent + at, (size_t)(4 * sizes[i])) != 0) fail_msg("%s is not what was sent", name);
        at += 4 * sizes[i];
        free(read);
    }
    assert_int_equal(wire.n_closed, 1);
    ls_checkpoint_close(c);
    ls_transfer_shards_free(shards);
    ls_transfer_plan_free(plan);
}

static void every_tensor_is_there_before_it_is_written(void **state) {
    ls_device *device;
    ls_error err;
    (void)state;
    for (int deferred = 0; deferred < 2; deferred++) {
        assert_ok((deferred ? ls_device_open_deferred : ls_device_open_cpu)(&device, 1, ls_isa_best(), &err), err);
        arrives(device, false);
        arrives(device, true);
        ls_device_close(device);
    }
}

/* ---- a server that stops ---- */

static void *end_soon(void *context) {
    (void)context;
    usleep(50000);
    ls_interrupt_set(SIGTERM);
    return NULL;
}

/* Neither a store that says nothing nor a trainer that sends nothing keeps it. */
static void a_server_that_stops_waits_for_no_trainer(void **state) {
    fake mute = {.value = pickle};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof address;
    ls_transfer *t;
    ls_transfer_shards *shards;
    ls_transfer_plan *plan = announced();
    ls_device *device;
    pthread_t ender;
    ls_error err;
    (void)state;
    assert_ok(ls_device_open_deferred(&device, 1, ls_isa_best(), &err), err);
    mute.listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(mute.listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(mute.listener, 1), 0);
    assert_int_equal(getsockname(mute.listener, (struct sockaddr *)&address, &n), 0);
    mute.port = ntohs(address.sin_port);
    ls_interrupt_defer(true);
    assert_int_equal(pthread_create(&ender, NULL, end_soon, NULL), 0);
    check_failed(meet(&t, device, &mute, false, &err), &err, "the server is stopping");
    pthread_join(ender, NULL);
    close(mute.listener);
    ls_interrupt_defer(true);
    send_random(9);
    t = met(device, false);
    wire.is_silent = true;
    assert_int_equal(pthread_create(&ender, NULL, end_soon, NULL), 0);
    assert_ok(ls_transfer_shards_create(&shards, &err), err);
    check_failed(ls_transfer_take(t, plan, shards, &err), &err, "the server is stopping");
    assert_int_equal(wire.n_abandoned, 1);
    pthread_join(ender, NULL);
    ls_interrupt_defer(false);
    ls_transfer_close(t);
    ls_transfer_shards_free(shards);
    ls_transfer_plan_free(plan);
    ls_device_close(device);
}

static int release(void **state) {
    (void)state;
    free(wire.sent);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_tensor_is_there_before_it_is_written),
                                       cmocka_unit_test(a_server_that_stops_waits_for_no_trainer)};
    return cmocka_run_group_tests(tests, NULL, release);
}
