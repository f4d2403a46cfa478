/* The safetensors reader: what a good file gives, and that every way to break one is refused by name. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness.h"
#include "load/safetensors.h"

typedef struct blob {
    uint8_t *bytes; /* aligned to 64 */
    int64_t n;
} blob;

/* A file of this header, padded with spaces to 8 as writers do, and data bytes 0, 1, 2, ... */
static blob make(const char *header, int64_t data_bytes) {
    blob out;
    const size_t text = strlen(header), padded = (text + 7) / 8 * 8;
    out.n = (int64_t)(8 + padded) + data_bytes;
    out.bytes = aligned_alloc(64, ((size_t)out.n + 127) / 64 * 64);
    assert_non_null(out.bytes);
    memset(out.bytes, ' ', (size_t)out.n);
    for (int i = 0; i < 8; i++) out.bytes[i] = (uint8_t)(padded >> 8 * i);
    memcpy(out.bytes + 8, header, text);
    for (int64_t i = 0; i < data_bytes; i++) out.bytes[8 + (int64_t)padded + i] = (uint8_t)i;
    return out;
}

static void refused(const char *header, int64_t data_bytes, const char *word) {
    blob file = make(header, data_bytes);
    ls_safetensors *out;
    ls_error err;
    check_failed(ls_safetensors_parse(&out, file.bytes, file.n, "the-file", &err), &err, word);
    if (strstr(err.text, "the-file") != err.text) fail_msg("'%s' does not start with the file", err.text);
    assert_null(out);
    free(file.bytes);
}

#define GOOD                                                                                     \
    "{\"__metadata__\":{\"format\":\"pt\"},"                                                     \
    "\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"                         \
    "\"a\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[24,26]},"                          \
    "\"none\":{\"dtype\":\"F64\",\"shape\":[5,0,9223372036854775807],\"data_offsets\":[26,26]}," \
    "\"c\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[26,28]}}"

static void good_file_is_read(void **state) {
    blob file = make(GOOD, 28);
    ls_safetensors *out;
    ls_error err;
    const ls_tensor_view *view;
    uint16_t scalar;
    (void)state;
    assert_ok(ls_safetensors_parse(&out, file.bytes, file.n, "good", &err), err);
    assert_int_equal(ls_safetensors_count(out), 4);
    view = ls_safetensors_find(out, "b");
    assert_ptr_equal(view, ls_safetensors_at(out, 0));
    assert_string_equal(view->name, "b");
    assert_string_equal(view->file, "good");
    assert_int_equal(view->dtype, LS_ST_F32);
    assert_int_equal(view->n_dims, 2);
    assert_int_equal(view->dims[0], 2);
    assert_int_equal(view->dims[1], 3);
    assert_int_equal(view->n_elements, 6);
    assert_int_equal(view->bytes, 24);
    assert_int_equal(((const uint8_t *)view->data)[23], 23);
    view = ls_safetensors_find(out, "a");
    assert_int_equal(view->n_dims, 0);
    assert_int_equal(view->n_elements, 1);
    memcpy(&scalar, view->data, 2);
    assert_int_equal(scalar, 0x1918);
    view = ls_safetensors_find(out, "none");
    assert_int_equal(view->n_elements, 0);
    assert_int_equal(view->bytes, 0);
    assert_non_null(view->data);
    assert_string_equal(ls_safetensors_at(out, 2)->name, "none");
    assert_string_equal(ls_safetensors_at(out, 3)->name, "c");
    assert_null(ls_safetensors_find(out, "__metadata__"));
    assert_null(ls_safetensors_find(out, ""));
    ls_safetensors_close(out);
    free(file.bytes);
}

static void empty_file_of_tensors_is_read(void **state) {
    blob file = make("{\"__metadata__\":null}", 0);
    ls_safetensors *out;
    ls_error err;
    (void)state;
    assert_ok(ls_safetensors_parse(&out, file.bytes, file.n, "good", &err), err);
    assert_int_equal(ls_safetensors_count(out), 0);
    assert_null(ls_safetensors_find(out, "a"));
    ls_safetensors_close(out);
    free(file.bytes);
}

static void every_dtype_has_its_size(void **state) {
    (void)state;
    for (int i = 0; i < LS_ST_DTYPES; i++) {
        char header[200];
        const int bits = ls_st_dtype_bits((ls_st_dtype)i);
        blob file;
        ls_safetensors *out;
        ls_error err;
        snprintf(header, sizeof header, "{\"t\":{\"dtype\":\"%s\",\"shape\":[8],\"data_offsets\":[0,%d]}}",
                 ls_st_dtype_name((ls_st_dtype)i), bits);
        file = make(header, bits);
        assert_ok(ls_safetensors_parse(&out, file.bytes, file.n, "dtype", &err), err);
        assert_int_equal(ls_safetensors_at(out, 0)->dtype, i);
        assert_int_equal(ls_st_dtype_bytes((ls_st_dtype)i), bits < 8 ? 0 : bits / 8);
        ls_safetensors_close(out);
        free(file.bytes);
    }
    assert_string_equal(ls_st_dtype_name(LS_ST_DTYPES), "unknown");
    refused("{\"t\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 1, "3 elements of F4");
}

#define ONE(dtype, shape, offsets) "{\"t\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static void broken_headers_are_refused(void **state) {
    (void)state;
    refused("[]", 0, "'{'");
    refused(" {}", 0, "'{'");
    refused("{", 0, "JSON");
    refused("{} {}", 0, "JSON");
    refused("{\"t\":1}", 0, "tensor 't': 1, expected an object");
    refused("{\"a\":{},\"a\":{}}", 0, "duplicate");
    refused("{\"__metadata__\":{\"x\":1}}", 0, "__metadata__: 'x': 1");
    refused("{\"__metadata__\":[]}", 0, "__metadata__");
    refused(ONE("\"F33\"", "[1]", "[0,4]"), 4, "dtype: \"F33\"");
    refused(ONE("\"f32\"", "[1]", "[0,4]"), 4, "dtype: \"f32\"");
    refused(ONE("4", "[1]", "[0,4]"), 4, "dtype: 4");
    refused("{\"t\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype is missing");
    refused("{\"t\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "shape: missing");
    refused("{\"t\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "data_offsets: missing");
    refused("{\"t\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4],\"strides\":[1]}}", 4, "4 members");
    refused(ONE("\"F32\"", "[-1]", "[0,4]"), 4, "dimension 0 is -1");
    refused(ONE("\"F32\"", "[1,1.0]", "[0,4]"), 4, "dimension 1 is 1");
    refused(ONE("\"F32\"", "[true]", "[0,4]"), 4, "dimension 0 is true");
    refused(ONE("\"F32\"", "{}", "[0,4]"), 4, "shape: an object");
    refused(ONE("\"F32\"", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, "9 dimensions");
    refused(ONE("\"F32\"", "[9223372036854775808]", "[0,4]"), 4, "too big integer");
    refused(ONE("\"F32\"", "[4294967296,4294967296]", "[0,0]"), 0, "element count overflows 64 bits");
    refused(ONE("\"U8\"", "[9223372036854775807,2]", "[0,0]"), 0, "element count overflows 64 bits");
    refused(ONE("\"F32\"", "[2305843009213693953]", "[0,4]"), 4, "size of 2305843009213693953 elements of F32");
    refused(ONE("\"F32\"", "[1]", "[0,4,8]"), 4, "a list of 3 items");
    refused(ONE("\"F32\"", "[1]", "[-4,0]"), 4, "-4");
    refused(ONE("\"F32\"", "[1]", "[0,4.0]"), 4, "expected a non-negative integer");
    refused(ONE("\"F32\"", "[1]", "[4,0]"), 4, "[4, 0]");
    refused(ONE("\"F32\"", "[1]", "[0,8]"), 4, "[0, 8] is no range of the 4 data bytes");
    refused(ONE("\"F32\"", "[1]", "[9223372036854775803,9223372036854775807]"), 4, "no range");
    refused(ONE("\"F32\"", "[2]", "[0,4]"), 4, "2 elements of F32 need 8");
    refused("{\"a\\u0000b\":{}}", 0, "JSON");
    refused("{\"\xFF\":{}}", 0, "JSON");
}

static void tiling_is_checked(void **state) {
    (void)state;
    refused(ONE("\"U8\"", "[4]", "[0,4]"), 5, "1 data bytes after the last tensor");
    refused(ONE("\"U8\"", "[4]", "[1,5]"), 5, "data bytes 0 to 1");
    refused("{}", 3, "3 data bytes");
    refused(
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
        "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[3,7]}}",
        7, "tensor 'b': starts at data byte 3 inside 'a'");
    refused(
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
        "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
        4, "inside 'a'");
    refused(
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
        "\"b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[2,2]}}",
        4, "inside 'a'");
    refused(
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
        "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[6,10]}}",
        10, "data bytes 4 to 6");
}

static void misaligned_data_is_refused(void **state) {
    (void)state;
    refused(
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
        "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[2,6]}}",
        6, "tensor 'b': data_offsets: data starts at byte 2");
}

static void header_lengths_are_checked(void **state) {
    const uint64_t lengths[] = {1ull << 63, UINT64_MAX, INT64_MAX, LS_ST_HEADER_MAX + 1ull, LS_ST_HEADER_MAX, 9, 0};
    const char *words[] = {"header length 9223372036854775808", "limit", "limit", "100000001", "only 8 bytes",
                           "header length 9, but only 8 bytes", "'{'"};
    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        blob file = make("{}      ", 0);
        ls_safetensors *out;
        ls_error err;
        for (int j = 0; j < 8; j++) file.bytes[j] = (uint8_t)(lengths[i] >> 8 * j);
        check_failed(ls_safetensors_parse(&out, file.bytes, file.n, "file", &err), &err, words[i]);
        free(file.bytes);
    }
}

/* Each prefix lies at the end of its own allocation, so that a sanitizer sees any read past it. */
static void every_truncation_is_refused(void **state) {
    blob file = make(GOOD, 28);
    (void)state;
    for (int64_t n = 0; n < file.n; n++) {
        uint8_t *copy = malloc((size_t)n + 1);
        ls_safetensors *out;
        ls_error err;
        assert_non_null(copy);
        copy = realloc(copy, (size_t)(n > 0 ? n : 1));
        memcpy(copy, file.bytes, (size_t)n);
        check_failed(ls_safetensors_parse(&out, copy, n, "cut", &err), &err, "cut");
        free(copy);
    }
    free(file.bytes);
}

static void deep_nesting_is_refused(void **state) {
    const int64_t depth = 5000;
    char *header = malloc((size_t)depth * 6 + 8);
    (void)state;
    assert_non_null(header);
    header[0] = '\0';
    for (int64_t i = 0; i < depth; i++) memcpy(header + i * 5, "{\"a\":", 6);
    refused(header, 0, "maximum parsing depth");
    free(header);
}

static void write_file(const char *dir, const char *name, const void *bytes, int64_t n) {
    char path[300];
    FILE *file;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, (size_t)n, file), n);
    assert_int_equal(fclose(file), 0);
}

static void write_shard(const char *dir, const char *name, const char *tensor_a, const char *tensor_b) {
    char header[400];
    blob file;
    snprintf(header, sizeof header,
             "{\"%s\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
             "\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]}}",
             tensor_a, tensor_b);
    file = make(header, 3);
    write_file(dir, name, file.bytes, file.n);
    free(file.bytes);
}

static void write_index(const char *dir, const char *json) {
    write_file(dir, "model.safetensors.index.json", json, (int64_t)strlen(json));
}

static void other_formats_are_named(void **state) {
    static const struct {
        const char *file, *text;
        size_t bytes;
        const char *says;
    } cases[] = {
        {"model.safetensors", "PK\x03\x04\0\0\0\0\0\0\0\0", 12, "is a zip archive, torch.save's"},
        {"model.safetensors", "\x80\x02}q\0X\1\0\0\0aq", 12, "holds pickled tensors"},
        {"model.safetensors", "GGUF\3\0\0\0\0\0\0\0", 12, "is GGUF"},
        {"model.safetensors", "version https://git-lfs.github.com/spec/v1\n", 43, "`git lfs pull`"},
        {"model.safetensors", "  <!doctype HTML>", 17, "is an HTML page"},
        {"model.safetensors", "\1\0\0\0\0\0\0\0\0", 9, "does not start with '{'"},
        {"pytorch_model.bin", "", 0, "pickled weights alone; convert them: python3"},
        {"pytorch_model-00001-of-00002.bin", "", 0, "pickled weights alone; convert them: python3"},
        {"model-00001-of-00002.safetensors", "", 0, "shards without model.safetensors.index.json"},
        {"diffusion.safetensors", "", 0, "safetensors of another name"},
        {"readme", "", 0, "neither model.safetensors nor"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char dir[] = "/tmp/ls-test-XXXXXX", path[100], command[100];
        ls_checkpoint *checkpoint;
        ls_error err;
        FILE *file;
        assert_non_null(mkdtemp(dir));
        snprintf(path, sizeof path, "%s/%s", dir, cases[i].file);
        assert_non_null(file = fopen(path, "wb"));
        assert_int_equal(fwrite(cases[i].text, 1, cases[i].bytes, file), cases[i].bytes);
        assert_int_equal(fclose(file), 0);
        check_failed(ls_checkpoint_open(&checkpoint, dir, &err), &err, cases[i].says);
        snprintf(command, sizeof command, "rm -r %s", dir);
        assert_int_equal(system(command), 0);
    }
}

/* Wrappers of torch go, experts of one tensor come one by one, each with its own bytes; those of Granite stay. */
static void names_are_those_of_models(void **state) {
    static const char header[] =
        "{\"module._orig_mod.l.0._fsdp_wrapped_module.mamba.w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}"
        ","
        "\"model.language_model.x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[19,20]},"
        "\"l.module.experts.gate_up_proj\":{\"dtype\":\"U8\",\"shape\":[2,2,3],\"data_offsets\":[1,13]},"
        "\"_checkpoint_wrapped_module.l.f.experts.down_proj\":{\"dtype\":\"U8\",\"shape\":[2,3,1],"
        "\"data_offsets\":[13,19]},"
        "\"l.block_sparse_moe.experts.gate_up_proj\":{\"dtype\":\"U8\",\"shape\":[1,2,1],\"data_offsets\":[20,22]},"
        "\"l.block_sparse_moe._fsdp_wrapped_module.experts.down_proj\":{\"dtype\":\"U8\",\"shape\":[1,1,1],"
        "\"data_offsets\":[22,23]},"
        "\"l.block_sparse_moe.router.weight\":{\"dtype\":\"U8\",\"shape\":[1,1],\"data_offsets\":[23,24]}}";
    static const char *const mixture[] = {"l.block_sparse_moe.input_linear.weight",
                                          "l.block_sparse_moe.output_linear.weight",
                                          "l.block_sparse_moe.router.layer.weight"};
    static const struct {
        const char *name;
        int64_t rows, columns;
        uint8_t first;
    } parts[] = {{"l.module.experts.0.gate_proj.weight", 1, 3, 1}, {"l.module.experts.0.up_proj.weight", 1, 3, 4},
                 {"l.module.experts.1.gate_proj.weight", 1, 3, 7}, {"l.module.experts.1.up_proj.weight", 1, 3, 10},
                 {"l.f.experts.0.down_proj.weight", 3, 1, 13},     {"l.f.experts.1.down_proj.weight", 3, 1, 16}};
    char dir[] = "/tmp/ls-test-XXXXXX", path[100], command[100];
    const uint64_t length = sizeof header - 1;
    ls_checkpoint *c;
    ls_error err;
    FILE *file;
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_non_null(file = fopen(path, "wb"));
    for (int i = 0; i < 8; i++) fputc((int)(length >> 8 * i & 255), file);
    fputs(header, file);
    for (int i = 0; i < 24; i++) fputc(i, file);
    assert_int_equal(fclose(file), 0);
    assert_ok(ls_checkpoint_open(&c, dir, &err), err);
    assert_int_equal(ls_checkpoint_count(c), 11);
    for (int i = 0; i < 3; i++) assert_non_null(ls_checkpoint_find(c, mixture[i]));
    assert_int_equal(ls_checkpoint_find(c, mixture[0])->n_dims, 3);
    assert_non_null(ls_checkpoint_find(c, "model.x"));
    assert_non_null(ls_checkpoint_find(c, "l.0.mamba.w"));
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        const ls_tensor_view *view = ls_checkpoint_find(c, parts[i].name);
        uint8_t bytes[3];
        if (view == NULL) fail_msg("%s is not there", parts[i].name);
        assert_true(view->n_dims == 2 && view->dims[0] == parts[i].rows && view->dims[1] == parts[i].columns);
        assert_int_equal(view->bytes, 3);
        assert_ok(ls_tensor_read(bytes, view, &err), err);
        for (int k = 0; k < 3; k++) assert_int_equal(bytes[k], parts[i].first + k);
    }
    ls_checkpoint_close(c);
    write_shard(dir, "model.safetensors", "a", "module.a");
    check_failed(ls_checkpoint_open(&c, dir, &err), &err, "two tensors are 'a' without wrappers");
    snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
}

#define MAP_GOOD \
    "\"w.0\":\"s-1.safetensors\",\"w.1\":\"s-1.safetensors\",\"w.2\":\"s-2.safetensors\",\"w.3\":\"s-2.safetensors\""

static void shards_are_read_and_checked(void **state) {
    char dir[] = "/tmp/ls-test-XXXXXX", command[100];
    static const struct {
        const char *index, *word;
    } bad[] = {
        {"{\"weight_map\":{" MAP_GOOD ",\"w.4\":\"s-2.safetensors\"}}", "tensor 'w.4' is not in its shard"},
        {"{\"weight_map\":{\"w.0\":\"s-1.safetensors\"}}", "tensor 'w.1' is absent from the weight_map"},
        {"{\"weight_map\":{\"w.0\":\"s-2.safetensors\",\"w.1\":\"s-1.safetensors\",\"w.2\":\"s-2.safetensors\","
         "\"w.3\":\"s-2.safetensors\"}}",
         "tensor 'w.0' belongs in 's-2.safetensors'"},
        {"{\"weight_map\":{" MAP_GOOD ",\"w.4\":\"s-3.safetensors\"}}", "s-3.safetensors: cannot open"},
        {"{\"weight_map\":{\"w.0\":\"../s-1.safetensors\"}}", "not a plain file name"},
        {"{\"weight_map\":{\"w.0\":\"/etc/passwd\"}}", "not a plain file name"},
        {"{\"weight_map\":{\"w.0\":\"..\"}}", "not a plain file name"},
        {"{\"weight_map\":{\"w.0\":\"\"}}", "not a plain file name"},
        {"{\"weight_map\":{\"w.0\":1}}", "'w.0': 1, expected a file name"},
        {"{\"weight_map\":{\"w.0\":\"a\",\"w.0\":\"b\"}}", "duplicate"},
        {"{\"weight_map\":{}}", "weight_map: an object of 0 members"},
        {"{\"weight_map\":[]}", "weight_map: a list"},
        {"{}", "weight_map: missing"},
        {"[", "JSON"},
        {"", "empty"},
    };
    ls_checkpoint *out;
    ls_error err;
    (void)state;
    assert_non_null(mkdtemp(dir));
    check_failed(ls_checkpoint_open(&out, dir, &err), &err, "neither model.safetensors nor");
    write_shard(dir, "s-1.safetensors", "w.1", "w.0");
    write_shard(dir, "s-2.safetensors", "w.2", "w.3");
    write_index(dir, "{\"metadata\":{\"total_size\":6},\"weight_map\":{" MAP_GOOD "}}");
    assert_ok(ls_checkpoint_open(&out, dir, &err), err);
    assert_int_equal(ls_checkpoint_count(out), 4);
    assert_string_equal(ls_checkpoint_at(out, 0)->name, "w.1");
    assert_string_equal(ls_checkpoint_at(out, 3)->name, "w.3");
    for (int i = 0; i < 4; i++) {
        char name[8];
        snprintf(name, sizeof name, "w.%c", (char)('0' + i));
        assert_string_equal(ls_checkpoint_find(out, name)->name, name);
    }
    assert_null(ls_checkpoint_find(out, "w.4"));
    assert_non_null(strstr(ls_checkpoint_find(out, "w.3")->file, "s-2.safetensors"));
    ls_checkpoint_close(out);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        write_index(dir, bad[i].index);
        check_failed(ls_checkpoint_open(&out, dir, &err), &err, bad[i].word);
        assert_null(out);
    }
    write_index(dir, "{\"weight_map\":{" MAP_GOOD "}}");
    write_shard(dir, "s-2.safetensors", "w.0", "w.3"); /* w.0 twice, w.2 nowhere */
    check_failed(ls_checkpoint_open(&out, dir, &err), &err, "tensor 'w.0' belongs in 's-1.safetensors'");
    /* The single file wins over an index, even a broken one. */
    write_shard(dir, "model.safetensors", "x", "y");
    assert_ok(ls_checkpoint_open(&out, dir, &err), err);
    assert_int_equal(ls_checkpoint_count(out), 2);
    assert_non_null(ls_checkpoint_find(out, "y"));
    ls_checkpoint_close(out);
    snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
}

/* What may happen to a file between its opening and the last look at it; a tensor that is cut off is an error. */
static void nothing(const char *path) { (void)path; }
static void append(const char *path) {
    FILE *file = fopen(path, "ab");
    assert_non_null(file);
    fputc('x', file);
    assert_int_equal(fclose(file), 0);
}
static void cut(const char *path) { assert_int_equal(truncate(path, 40), 0); }
static void touch(const char *path) {
    const struct timespec times[2] = {{1000000000, 5}, {1000000000, 6}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}
static void delete (const char *path) { assert_int_equal(unlink(path), 0); }
/* Another file of the same bytes, size and time under the same name. */
static void replace(const char *path) {
    char command[200];
    snprintf(command, sizeof command, "cp -p %s %s.new && mv %s.new %s", path, path, path, path);
    assert_int_equal(system(command), 0);
}

static void files_that_change_are_noticed(void **state) {
    static const struct {
        void (*change)(const char *path);
        const char *word;
    } cases[] = {{nothing, NULL},          {append, "changed while"},  {cut, "changed while"},
                 {touch, "changed while"}, {replace, "changed while"}, {delete, "cannot stat"}};
    char dir[] = "/tmp/ls-test-XXXXXX", path[64], command[100];
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/s-2.safetensors", dir);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ls_checkpoint *checkpoint;
        const ls_tensor_view *view;
        uint8_t bytes[1];
        ls_error err;
        write_shard(dir, "s-1.safetensors", "w.1", "w.0");
        write_shard(dir, "s-2.safetensors", "w.2", "w.3");
        write_index(dir, "{\"weight_map\":{" MAP_GOOD "}}");
        assert_ok(ls_checkpoint_open(&checkpoint, dir, &err), err);
        view = ls_checkpoint_find(checkpoint, "w.3");
        cases[i].change(path);
        if (cases[i].change == cut) check_failed(ls_tensor_read(bytes, view, &err), &err, "2.safetensors: ended after");
        if (cases[i].word == NULL) {
            assert_ok(ls_checkpoint_check(checkpoint, &err), err);
            assert_string_equal(view->name, "w.3");
            assert_null(view->data);
            assert_ok(ls_tensor_read(bytes, view, &err), err);
            assert_int_equal(bytes[0], 2);
        } else {
            check_failed(ls_checkpoint_check(checkpoint, &err), &err, cases[i].word);
            assert_true(strstr(err.text, path) == err.text);
        }
        ls_checkpoint_close(checkpoint);
    }
    snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
}

static void missing_and_empty_files_are_refused(void **state) {
    char dir[] = "/tmp/ls-test-XXXXXX", path[64];
    ls_safetensors *out;
    ls_error err;
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/empty", dir);
    check_failed(ls_safetensors_open(&out, path, &err), &err, path);
    write_file(dir, "empty", "", 0);
    check_failed(ls_safetensors_open(&out, path, &err), &err, "0 bytes");
    check_failed(ls_safetensors_open(&out, dir, &err), &err, "not a regular file");
    unlink(path);
    assert_int_equal(rmdir(dir), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_file_is_read),
        cmocka_unit_test(empty_file_of_tensors_is_read),
        cmocka_unit_test(every_dtype_has_its_size),
        cmocka_unit_test(broken_headers_are_refused),
        cmocka_unit_test(tiling_is_checked),
        cmocka_unit_test(misaligned_data_is_refused),
        cmocka_unit_test(header_lengths_are_checked),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(other_formats_are_named),
        cmocka_unit_test(names_are_those_of_models),
        cmocka_unit_test(shards_are_read_and_checked),
        cmocka_unit_test(files_that_change_are_noticed),
        cmocka_unit_test(missing_and_empty_files_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
