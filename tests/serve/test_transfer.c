/* Weights over NCCL, all but the wire: the trainer's store is a thread that speaks as torch does, broadcasts come
 * from memory. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "base/durable.h"
#include "fake_store.h"
#include "load/safetensors.h"
#include "serve/serve.h"
#include "serve/serve_transfer.h"
#include "serve/torch_store.h"

/* ---- the store ---- */

static ls_status ask(fake *f, uint8_t **out, int64_t *bytes, ls_error *err) {
    ls_status status;
    start(f);
    status = ls_torch_store_get(out, bytes, "127.0.0.1", f->port, "broadcast_from/0/0", 5, err);
    pthread_join(f->thread, NULL);
    close(f->listener);
    return status;
}

static void test_store(void **state) {
    static const uint8_t value[] = "what the trainer says";
    fake f = {.value = value, .bytes = sizeof value, .told = sizeof value};
    uint8_t *out;
    int64_t bytes;
    ls_error err;
    (void)state;
    assert_ok(ask(&f, &out, &bytes, &err), err);
    assert_int_equal(bytes, sizeof value);
    assert_memory_equal(out, value, sizeof value);
    free(out);
    assert_int_equal(f.magic, 0x3C85F7CE);
    assert_string_equal(f.seen[0], "init/");
    assert_string_equal(f.seen[1], "/broadcast_from/0/0");
    assert_string_equal(f.seen[2], "/broadcast_from/0/0");
    f.told = UINT64_MAX;
    assert_int_equal(ask(&f, &out, &bytes, &err), LS_ERR_IO);
    assert_non_null(strstr(err.text, "too long"));
    f.told = sizeof value + 1;
    assert_int_equal(ask(&f, &out, &bytes, &err), LS_ERR_IO);
    assert_non_null(strstr(err.text, "closed the connection"));
    f.verdict = 1;
    assert_int_equal(ask(&f, &out, &bytes, &err), LS_ERR_IO);
    assert_non_null(strstr(err.text, "gave up the wait"));
    assert_int_equal(ls_torch_store_get(&out, &bytes, "127.0.0.1", f.port, "x", 0.2, &err), LS_ERR_IO);
    assert_null(out);
}

/* As Python 3.11 pickles a ctypes.Structure of 128 bytes, of a class vllm.x.ncclUniqueId. */
static void test_unpickle(void **state) {
    uint8_t pickle[256] = "\x80\x04\x95\xc0\0\0\0\0\0\0\0\x8c\x07_ctypes\x94\x8c\x09_unpickle\x94\x93\x94}\x94";
    const int64_t at = 40;
    ls_nccl_id id;
    ls_error err;
    (void)state;
    assert_int_not_equal(ls_nccl_id_unpickle(&id, pickle, sizeof pickle, &err), LS_OK);
    pickle[at] = 'C';
    pickle[at + 1] = 128;
    for (int i = 0; i < 128; i++) pickle[at + 2 + i] = (uint8_t)(3 * i + 1);
    assert_ok(ls_nccl_id_unpickle(&id, pickle, at + 130, &err), err);
    assert_memory_equal(id.bytes, pickle + at + 2, 128);
    assert_int_not_equal(ls_nccl_id_unpickle(&id, pickle, at + 129, &err), LS_OK);
}

/* ---- announcements ---- */

static ls_status read_plan(ls_transfer_plan **out, const char *text, ls_error *err) {
    ls_json_doc *doc;
    ls_node root;
    ls_status status;
    assert_ok(ls_json_doc_open(&doc, text, (int64_t)strlen(text), "request", err), *err);
    root = ls_json_root(doc);
    status = ls_transfer_plan_read(out, &root, err);
    ls_json_doc_free(doc);
    return status;
}

static void test_plan(void **state) {
    static const char *const wrong[][2] = {
        {"{\"dtype_names\":[],\"shapes\":[]}", "'names' is missing"},
        {"{\"names\":[],\"dtype_names\":[],\"shapes\":[]}", "1 to "},
        {"{\"names\":[\"a\"],\"dtype_names\":[],\"shapes\":[[1]]}", "0 entries for 1 names"},
        {"{\"names\":[\"a\"],\"dtype_names\":[\"int8\"],\"shapes\":[[1]]}", "'int8' is not supported"},
        {"{\"names\":[\"a\"],\"dtype_names\":[\"float32\"],\"shapes\":[[0]]}", "shapes[0][0]"},
        {"{\"names\":[\"a\"],\"dtype_names\":[\"float32\"],\"shapes\":[[2147483647,2147483647,2147483647]]}", "large"},
        {"{\"names\":[\"\"],\"dtype_names\":[\"float32\"],\"shapes\":[[1]]}", "empty"},
        {"{\"names\":[\"a\"],\"dtype_names\":[\"float32\"],\"shapes\":[[1,1,1,1,1,1,1,1,1]]}", "dimensions"},
        {"{\"names\":[\"a\"],\"dtype_names\":[\"float32\"],\"shapes\":[[1]],\"x\":1}", "x"}};
    ls_transfer_plan *p;
    ls_error err;
    int64_t end;
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_not_equal(read_plan(&p, wrong[i][0], &err), LS_OK);
        assert_null(p);
        if (strstr(err.text, wrong[i][1]) == NULL) fail_msg("%s: %s", wrong[i][0], err.text);
    }
    assert_ok(read_plan(&p,
                        "{\"names\":[\"a\",\"b\",\"c\",\"d\"],\"dtype_names\":[\"bfloat16\",\"float32\",\"float16\","
                        "\"float32\"],\"shapes\":[[10],[5,2],[],[3]],\"packed\":true}",
                        &err),
              err);
    assert_true(p->packed);
    /* 20, 40, 2 and 12 bytes: each alone, or closed by the one that exceeds the size, not by one that reaches it. */
    assert_int_equal(ls_transfer_chunk(p, 0, 0, &end), 20);
    assert_int_equal(end, 1);
    assert_int_equal(ls_transfer_chunk(p, 0, 19, &end), 20);
    assert_int_equal(end, 1);
    assert_int_equal(ls_transfer_chunk(p, 0, 20, &end), 60);
    assert_int_equal(end, 2);
    assert_int_equal(ls_transfer_chunk(p, 0, 60, &end), 62);
    assert_int_equal(end, 3);
    assert_int_equal(ls_transfer_chunk(p, 0, LS_TRANSFER_CHUNK_BYTES, &end), 74);
    assert_int_equal(end, 4);
    ls_transfer_plan_free(p);
}

/* ---- a whole model ---- */

/* The trainer: tensors of a checkpoint, one after the other. */
typedef struct trainer {
    const ls_checkpoint *checkpoint;
    int64_t next, n_broadcasts;
} trainer;

static ls_status broadcast(void *context, void *host, int64_t bytes, ls_error *err) {
    trainer *t = context;
    for (int64_t at = 0; at < bytes;) {
        const ls_tensor_view *view = ls_checkpoint_at(t->checkpoint, t->next++);
        LS_TRY(ls_tensor_read((char *)host + at, view, err));
        at += view->bytes;
    }
    t->n_broadcasts++;
    return LS_OK;
}

static ls_status broken(void *context, void *host, int64_t bytes, ls_error *err) {
    (void)context, (void)host, (void)bytes;
    return LS_FAIL(err, LS_ERR_IO, "the trainer is gone");
}

static ls_transfer_plan *announce(const ls_checkpoint *c, int64_t begin, int64_t end) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    ls_transfer_plan *plan;
    ls_error err;
    fprintf(file, "{\"names\":[");
    for (int64_t i = begin; i < end; i++) fprintf(file, "%s\"%s\"", i > begin ? "," : "", ls_checkpoint_at(c, i)->name);
    fprintf(file, "],\"dtype_names\":[");
    for (int64_t i = begin; i < end; i++)
        fprintf(file, "%s\"%s\"", i > begin ? "," : "",
                ls_checkpoint_at(c, i)->dtype == LS_ST_BF16 ? "bfloat16" : "float32");
    fprintf(file, "],\"shapes\":[");
    for (int64_t i = begin; i < end; i++) {
        const ls_tensor_view *view = ls_checkpoint_at(c, i);
        fprintf(file, "%s[", i > begin ? "," : "");
        for (int32_t d = 0; d < view->n_dims; d++) fprintf(file, "%s%lld", d > 0 ? "," : "", (long long)view->dims[d]);
        fprintf(file, "]");
    }
    fprintf(file, "]}");
    assert_int_equal(fclose(file), 0);
    assert_ok(read_plan(&plan, text, &err), err);
    free(text);
    return plan;
}

static void compare(const ls_checkpoint *a, const char *directory) {
    ls_checkpoint *b;
    ls_error err;
    assert_ok(ls_checkpoint_open(&b, directory, &err), err);
    assert_int_equal(ls_checkpoint_count(a), ls_checkpoint_count(b));
    for (int64_t i = 0; i < ls_checkpoint_count(a); i++) {
        const ls_tensor_view *x = ls_checkpoint_at(a, i), *y = ls_checkpoint_find(b, x->name);
        void *p = malloc((size_t)x->bytes), *q = malloc((size_t)x->bytes);
        assert_non_null(y);
        assert_int_equal(x->dtype, y->dtype);
        assert_int_equal(x->n_dims, y->n_dims);
        assert_memory_equal(x->dims, y->dims, (size_t)x->n_dims * sizeof *x->dims);
        assert_ok(ls_tensor_read(p, x, &err), err);
        assert_ok(ls_tensor_read(q, y, &err), err);
        assert_memory_equal(p, q, (size_t)x->bytes);
        free(p);
        free(q);
    }
    ls_checkpoint_close(b);
}

/* In one part or in several, packed or tensor by tensor, it is the checkpoint again, and a model. */
static void test_model(void **state) {
    static const int64_t chunks[] = {0, 5000, LS_TRANSFER_CHUNK_BYTES};
    const char *fixture = LS_FIXTURES "/jamba-bf16";
    ls_checkpoint *c;
    ls_error err;
    (void)state;
    assert_ok(ls_checkpoint_open(&c, fixture, &err), err);
    for (int k = 0; k < 3; k++) {
        const int64_t n = ls_checkpoint_count(c), cut = k == 1 ? n / 3 : n;
        trainer t = {c, 0, 0};
        ls_transfer_shards *shards;
        ls_transfer_plan *first = announce(c, 0, cut), *rest = cut < n ? announce(c, cut, n) : NULL;
        ls_device *device;
        ls_model *model;
        const char *directory;
        assert_ok(ls_transfer_shards_create(&shards, &err), err);
        assert_ok(ls_transfer_shards_add(shards, first, chunks[k], broadcast, &t, &err), err);
        if (rest != NULL) assert_ok(ls_transfer_shards_add(shards, rest, chunks[k], broadcast, &t, &err), err);
        assert_int_equal(t.next, n);
        if (k == 0) assert_int_equal(t.n_broadcasts, n);
        if (k == 2) assert_int_equal(t.n_broadcasts, 1);
        assert_ok(ls_transfer_shards_finish(shards, &directory, &err), err);
        compare(c, directory);
        assert_ok(ls_device_open_cpu(&device, 1, LS_ISA_GENERIC, &err), err);
        assert_ok(ls_serve_open_weights(&model, device, directory, fixture, &err), err);
        ls_model_close(model);
        ls_device_close(device);
        ls_transfer_shards_free(shards);
        ls_transfer_plan_free(first);
        ls_transfer_plan_free(rest);
    }
    ls_checkpoint_close(c);
}

static void test_failures(void **state) {
    const char *info = "{\"master_address\":\"127.0.0.1\",\"master_port\":1,\"rank_offset\":1,\"world_size\":2}";
    ls_transfer_shards *shards;
    ls_transfer_plan *plan;
    ls_transfer *transfer;
    ls_device *device;
    ls_json_doc *doc;
    ls_node root;
    ls_error err;
    (void)state;
    assert_ok(read_plan(&plan, "{\"names\":[\"a\"],\"dtype_names\":[\"float32\"],\"shapes\":[[2]]}", &err), err);
    assert_ok(ls_transfer_shards_create(&shards, &err), err);
    assert_int_equal(ls_transfer_shards_add(shards, plan, 0, broken, NULL, &err), LS_ERR_IO);
    assert_string_equal(err.text, "the trainer is gone");
    ls_transfer_shards_free(shards);
    ls_transfer_plan_free(plan);
    assert_ok(ls_device_open_cpu(&device, 1, LS_ISA_GENERIC, &err), err);
    assert_ok(ls_json_doc_open(&doc, info, (int64_t)strlen(info), "request", &err), err);
    root = ls_json_root(doc);
    assert_int_equal(ls_transfer_open(&transfer, device, &root, &err), LS_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "GPUs"));
    ls_json_doc_free(doc);
    ls_device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_store), cmocka_unit_test(test_unpickle),
                                       cmocka_unit_test(test_plan), cmocka_unit_test(test_model),
                                       cmocka_unit_test(test_failures)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
