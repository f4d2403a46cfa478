/* Loading of weights: pieces and threads change nothing of what is loaded, on any device; whoever watches is told all
 * of it; a file that ends meanwhile is an error. */
#define _GNU_SOURCE
#include <unistd.h>

#include "base/file.h"
#include "device.h"
#include "model/params.h"
#include "model/summary.h"

static const char *const names[] = {"jamba-dense",      "jamba-moe",      "jamba-odd",         "jamba-sharded",
                                    "mamba-odd",        "llama-odd",      "qwen3-small",       "falcon-mamba-small",
                                    "mamba2-odd",       "nemotron-h-odd", "qwen3.5-odd",       "qwen3.5-moe-small",
                                    "qwen3-next-small", "nemotron-h-moe", "granite-moe-small", "granite-odd"};
#define N_NAMES ((int)(sizeof names / sizeof names[0]))

static void path_of(char path[512], const char *name) { snprintf(path, 512, "%s/%s", LS_FIXTURES, name); }

static uint64_t mix(uint64_t hash, const void *memory, int64_t bytes) {
    ls_error err;
    assert_ok(ls_memory_digest(test_home(), &hash, memory, bytes, &err), err);
    return hash;
}

typedef struct visited {
    const ls_model *model;
    uint64_t hash;
} visited;

static ls_status visit(void *context, const ls_weight_slot *slot, ls_error *err) {
    visited *v = context;
    const int64_t n = ls_slot_elements(slot);
    (void)err;
    if (slot->kind == LS_SLOT_MATRIX)
        v->hash = mix(v->hash, slot->matrix->panels, slot->matrix->panel_bytes);
    else if (slot->kind == LS_SLOT_EMBED)
        v->hash = mix(v->hash, *slot->embed, n * ls_dtype_bytes(v->model->embed_dtype));
    else
        v->hash = mix(v->hash, *slot->vector, n * (int64_t)sizeof(float));
    return LS_OK;
}

/* Of all that a model opened this way holds on the device. */
static uint64_t open_digest(const char *directory, const ls_model_loading *how) {
    visited v = {NULL, 1};
    ls_model *model;
    ls_error err;
    assert_ok(ls_model_open_with(&model, test_home(), directory, how, &err), err);
    v.model = model;
    assert_ok(ls_model_slots(model, visit, &v, &err), err);
    v.hash = mix(v.hash, model->head.panels, model->head.panel_bytes);
    ls_model_close(model);
    return v.hash;
}

static void pieces_and_threads_change_nothing(void **state) {
    static const ls_model_loading ways[] = {
        {61, 1, false, false}, {4096, 2, false, false}, {3000000, 3, false, false}, {1 << 20, 4, false, true}};
    (void)state;
    for (int i = 0; i < N_NAMES; i++) {
        char path[512];
        uint64_t whole;
        path_of(path, names[i]);
        whole = open_digest(path, NULL);
        for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++)
            if (open_digest(path, &ways[w]) != whole) fail_msg("%s, way %zu", names[i], w);
    }
}

/* A device that is asked for pieces gets every byte once, in order, whatever lies behind it. */
typedef struct counted {
    int64_t at, piece_bytes, n;
    int64_t fails_at; /* -1: never */
} counted;

static ls_status count_bytes(void *context, void *host, int64_t at, int64_t bytes, ls_error *err) {
    counted *c = context;
    assert_true(at == c->at && bytes > 0 && bytes <= c->piece_bytes);
    if (at == c->fails_at) return LS_FAIL(err, LS_ERR_IO, "the source is dry at %lld", (long long)at);
    for (int64_t i = 0; i < bytes; i++) ((uint8_t *)host)[i] = (uint8_t)((at + i) * 31 % 251);
    c->at += bytes;
    c->n++;
    return LS_OK;
}

static void every_byte_arrives(void **state) {
    enum { BYTES = 100001 };
    static uint8_t got[BYTES];
    static const int64_t pieces[] = {7, 4096, BYTES - 1, BYTES, 1 << 20};
    void *memory = to_device(test_home(), NULL, BYTES);
    ls_error err;
    (void)state;
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
        counted c = {.piece_bytes = pieces[i], .fails_at = -1};
        assert_ok(ls_memory_fill(test_home(), memory, 0xEE, BYTES, &err), err);
        assert_ok(ls_memory_load(test_home(), memory, BYTES, pieces[i], count_bytes, &c, &err), err);
        assert_int_equal(c.n, (BYTES + pieces[i] - 1) / pieces[i]);
        from_device(test_home(), got, memory, BYTES);
        for (int64_t k = 0; k < BYTES; k++) assert_int_equal(got[k], k * 31 % 251);
    }
    ls_memory_free(test_home(), memory);
}

static void a_source_that_fails_ends_the_load(void **state) {
    counted c = {.piece_bytes = 64, .fails_at = 128};
    void *memory = to_device(test_home(), NULL, 1024);
    ls_error err;
    (void)state;
    check_failed(ls_memory_load(test_home(), memory, 1024, 64, count_bytes, &c, &err), &err, "dry at 128");
    assert_int_equal(c.n, 2);
    c = (counted){.piece_bytes = 1024, .fails_at = -1};
    assert_ok(ls_memory_load(test_home(), memory, 1024, 1024, count_bytes, &c, &err), err);
    assert_ok(ls_device_wait(test_home(), &err), err);
    ls_memory_free(test_home(), memory);
}

typedef struct watched {
    int64_t calls, last, total, begins;
    const char *cut; /* a file to cut short at the first call */
} watched;

static void watch(void *context, const char *directory, int64_t done, int64_t total) {
    watched *w = context;
    (void)directory;
    assert_true(done >= w->last || done == 0);
    w->begins += done == 0;
    if (done == 0 && w->cut != NULL) assert_int_equal(truncate(w->cut, 4096), 0);
    w->last = done;
    w->total = total;
    w->calls++;
}

static void watchers_see_the_end(void **state) {
    char path[512];
    (void)state;
    for (int i = 0; i < N_NAMES; i++) {
        const ls_model_loading how = {512, 1, false, false};
        watched w = {0};
        path_of(path, names[i]);
        ls_model_watch(watch, &w);
        (void)open_digest(path, &how);
        ls_model_watch(NULL, NULL);
        assert_int_equal(w.begins, 1);
        assert_true(w.calls > 10 && w.last == w.total && w.total > 0);
    }
}

static void copy_file(const char *from, const char *to) {
    char *data;
    int64_t bytes;
    FILE *file = fopen(to, "wb");
    ls_error err;
    assert_non_null(file);
    assert_ok(ls_file_read(&data, &bytes, from, INT64_MAX, &err), err);
    assert_int_equal(fwrite(data, 1, (size_t)bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
    free(data);
}

static void a_file_that_is_cut_meanwhile_is_refused(void **state) {
    static const ls_model_loading ways[] = {{0, 1, false, false}, {0, 3, false, false}, {512, 1, false, false}};
    char directory[] = "/tmp/lockstep-loading-XXXXXX", config[64], weights[64];
    watched w = {.cut = weights};
    ls_model *model;
    ls_error err;
    (void)state;
    assert_non_null(mkdtemp(directory));
    snprintf(config, sizeof config, "%s/config.json", directory);
    snprintf(weights, sizeof weights, "%s/model.safetensors", directory);
    copy_file(LS_FIXTURES "/jamba-moe/config.json", config);
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        copy_file(LS_FIXTURES "/jamba-moe/model.safetensors", weights);
        ls_model_watch(watch, &w);
        check_failed(ls_model_open_with(&model, test_home(), directory, &ways[i], &err), &err, "ended after");
        ls_model_watch(NULL, NULL);
        assert_null(model);
        w = (watched){.cut = weights};
    }
    assert_int_equal(unlink(config) + unlink(weights) + rmdir(directory), 0);
}

/* A directory is summed up without a device as its parameters are on one. */
static void a_summary_is_the_digest(void **state) {
    (void)state;
    for (int i = 0; i < N_NAMES; i++) {
        char path[512];
        ls_stored_summary summary;
        ls_parameters *parameters;
        ls_model *model;
        uint64_t digest;
        ls_error err;
        path_of(path, names[i]);
        assert_ok(ls_stored_summarize(&summary, path, &err), err);
        assert_ok(ls_model_open(&model, test_home(), path, &err), err);
        assert_ok(ls_parameters_open(&parameters, model, test_home(), path, &err), err);
        assert_ok(ls_parameters_digest(parameters, &digest, &err), err);
        assert_true(digest == summary.digest && summary.n_parameters == parameters->n_elements);
        ls_parameters_free(parameters);
        ls_model_close(model);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_and_threads_change_nothing),       cmocka_unit_test(every_byte_arrives),
        cmocka_unit_test(a_source_that_fails_ends_the_load),       cmocka_unit_test(watchers_see_the_end),
        cmocka_unit_test(a_file_that_is_cut_meanwhile_is_refused), cmocka_unit_test(a_summary_is_the_digest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
