/* Changes of weights: what they make of the weights that they begin with has the bits of the weights that they lead to,
 * and whatever else they are given is refused by name. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <unistd.h>

#include "base/durable.h"
#include "base/file.h"
#include "harness.h"
#include "load/changes.h"

enum { PATH_BYTES = 300, DIRECTORIES = 5 };

/* Directories of one test: weights before and after, changes, a result, and one to spoil. */
typedef struct place {
    char home[64];
    char base[PATH_BYTES], next[PATH_BYTES], changes[PATH_BYTES], made[PATH_BYTES], other[PATH_BYTES];
} place;

static void open_place(place *p) {
    static const char *const names[DIRECTORIES] = {"base", "next", "changes", "made", "other"};
    char *paths[DIRECTORIES] = {p->base, p->next, p->changes, p->made, p->other};
    ls_error err;
    strcpy(p->home, "/tmp/lockstep-changes-XXXXXX");
    assert_non_null(mkdtemp(p->home));
    for (int i = 0; i < DIRECTORIES; i++) {
        snprintf(paths[i], PATH_BYTES, "%s/%s", p->home, names[i]);
        assert_ok(ls_directory_make(paths[i], &err), err);
    }
}

static void empty_directory(const char *path) {
    ls_error err;
    assert_ok(ls_directory_remove(path, &err), err);
    assert_ok(ls_directory_make(path, &err), err);
}

static void close_place(const place *p) {
    const char *const paths[DIRECTORIES] = {p->base, p->next, p->changes, p->made, p->other};
    for (int i = 0; i < DIRECTORIES; i++) assert_int_equal(ls_directory_remove(paths[i], NULL), LS_OK);
    assert_int_equal(rmdir(p->home), 0);
}

/* Tensors in memory. */
typedef struct weights {
    ls_tensor_out *tensors; /* [n] */
    uint8_t **data;         /* [n], of bytes[i] bytes */
    int64_t *bytes;
    int64_t n;
} weights;

static void read_weights(weights *w, const ls_checkpoint *from) {
    ls_error err;
    w->n = ls_checkpoint_count(from);
    w->tensors = calloc((size_t)w->n, sizeof *w->tensors);
    w->data = calloc((size_t)w->n, sizeof *w->data);
    w->bytes = calloc((size_t)w->n, sizeof *w->bytes);
    for (int64_t i = 0; i < w->n; i++) {
        const ls_tensor_view *view = ls_checkpoint_at(from, i);
        w->bytes[i] = view->bytes;
        w->data[i] = malloc((size_t)view->bytes + 1);
        assert_ok(ls_tensor_read(w->data[i], view, &err), err);
        w->tensors[i] = (ls_tensor_out){view->name, view->dtype, view->n_dims, view->dims, w->data[i]};
    }
}

static void free_weights(weights *w) {
    for (int64_t i = 0; i < w->n; i++) free(w->data[i]);
    free(w->data);
    free(w->bytes);
    free(w->tensors);
}

static void write_weights(const weights *w, const char *directory) {
    char path[PATH_BYTES + 32];
    ls_error err;
    empty_directory(directory);
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    assert_ok(ls_safetensors_write(path, w->tensors, w->n, NULL, NULL, &err), err);
}

/* Changes bits of about `share` of the elements. */
static void change_some(weights *w, double share, uint64_t *random) {
    for (int64_t i = 0; i < w->n; i++) {
        const int64_t size = ls_st_dtype_bytes(w->tensors[i].dtype);
        for (int64_t at = 0; at < w->bytes[i]; at += size)
            if ((double)test_uniform(random, 0, 1) < share)
                w->data[i][at + (int64_t)(test_random(random) % (uint64_t)size)] ^=
                    (uint8_t)(1 + test_random(random) % 255);
    }
}

static int64_t make_changes(const place *p) {
    int64_t bytes;
    ls_error err;
    empty_directory(p->changes);
    assert_ok(ls_changes_between(p->base, p->next, p->changes, &bytes, &err), err);
    return bytes;
}

static ls_status apply_changes(const place *p, const char *base, bool *is_other, ls_error *err) {
    char path[PATH_BYTES + 32];
    ls_changes *changes;
    ls_status status;
    *is_other = false;
    empty_directory(p->made);
    snprintf(path, sizeof path, "%s/model.safetensors", p->made);
    LS_TRY(ls_changes_open(&changes, p->changes, err));
    status = ls_changes_apply(changes, base, NULL, path, is_other, err);
    ls_changes_close(changes);
    return status;
}

/* The tensors of two directories, byte by byte. */
static void check_same(const char *a, const char *b) {
    ls_checkpoint *x, *y;
    ls_error err;
    assert_ok(ls_checkpoint_open(&x, a, &err), err);
    assert_ok(ls_checkpoint_open(&y, b, &err), err);
    assert_int_equal(ls_checkpoint_count(x), ls_checkpoint_count(y));
    for (int64_t i = 0; i < ls_checkpoint_count(x); i++) {
        const ls_tensor_view *u = ls_checkpoint_at(x, i), *v = ls_checkpoint_find(y, u->name);
        uint8_t *p = malloc((size_t)u->bytes + 1), *q = malloc((size_t)u->bytes + 1);
        if (v == NULL || !ls_tensor_is_alike(u, v)) fail_msg("%s is not the same tensor", u->name);
        assert_ok(ls_tensor_read(p, u, &err), err);
        assert_ok(ls_tensor_read(q, v, &err), err);
        if (memcmp(p, q, (size_t)u->bytes) != 0) fail_msg("%s has other bytes", u->name);
        free(p);
        free(q);
    }
    ls_checkpoint_close(x);
    ls_checkpoint_close(y);
}

static void round_trip(const place *p) {
    bool is_other;
    ls_error err;
    assert_ok(apply_changes(p, p->base, &is_other, &err), err);
    check_same(p->made, p->next);
}

static int64_t size_of(const weights *w) {
    int64_t bytes = 0;
    for (int64_t i = 0; i < w->n; i++) bytes += w->bytes[i];
    return bytes;
}

/* Weights of real models: two types, one and several files, Mamba, attention and the delta rule. */
static void models_are_made(void **state) {
    static const char *const models[] = {"mamba2-small",   "mamba-odd",     "llama-odd",
                                         "nemotron-h-odd", "jamba-sharded", "qwen3.5-odd"};
    uint64_t random = 5;
    place p;
    (void)state;
    open_place(&p);
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        char path[PATH_BYTES];
        ls_checkpoint *model;
        ls_error err;
        weights w = {0};
        int64_t bytes;
        snprintf(path, sizeof path, "%s/%s", LS_FIXTURES, models[m]);
        assert_ok(ls_checkpoint_open(&model, path, &err), err);
        read_weights(&w, model);
        write_weights(&w, p.base);
        write_weights(&w, p.next);
        assert_true(make_changes(&p) > 0); /* none changed */
        round_trip(&p);
        change_some(&w, 0.02, &random);
        write_weights(&w, p.next);
        bytes = make_changes(&p);
        if (bytes <= 0 || bytes > size_of(&w) / 20 + 400 * w.n) fail_msg("%s: %lld bytes", models[m], (long long)bytes);
        round_trip(&p);
        change_some(&w, 1, &random);
        write_weights(&w, p.next);
        assert_int_equal(make_changes(&p), 0); /* no smaller than the weights: nothing is written */
        assert_int_equal(rmdir(p.changes), 0);
        assert_ok(ls_directory_make(p.changes, &err), err);
        free_weights(&w);
        ls_checkpoint_close(model);
    }
    close_place(&p);
}

/* ---- a model of its own ---- */

enum { ELEMENTS = 5000, ROWS = 50, FAR = 4000 };

/* Tensors of every size of element, one without elements, a scalar. */
static void make_own(weights *w) {
    static const int64_t flat[] = {ELEMENTS}, matrix[] = {ROWS, ELEMENTS / ROWS}, none[] = {0, 7};
    static const ls_tensor_out tensors[] = {{"a", LS_ST_F32, 1, flat, NULL},   {"b", LS_ST_BF16, 2, matrix, NULL},
                                            {"c", LS_ST_F16, 1, flat, NULL},   {"d", LS_ST_I8, 1, flat, NULL},
                                            {"e", LS_ST_F64, 1, flat, NULL},   {"none", LS_ST_F32, 2, none, NULL},
                                            {"one", LS_ST_BF16, 0, NULL, NULL}};
    uint64_t random = 11;
    *w = (weights){.n = sizeof tensors / sizeof tensors[0]};
    w->tensors = malloc(sizeof tensors);
    memcpy(w->tensors, tensors, sizeof tensors);
    w->data = calloc((size_t)w->n, sizeof *w->data);
    w->bytes = calloc((size_t)w->n, sizeof *w->bytes);
    for (int64_t i = 0; i < w->n; i++) {
        const int64_t n = tensors[i].n_dims == 0 ? 1 : strcmp(tensors[i].name, "none") == 0 ? 0 : ELEMENTS;
        w->bytes[i] = n * ls_st_dtype_bytes(tensors[i].dtype);
        w->data[i] = malloc((size_t)w->bytes[i] + 1);
        for (int64_t k = 0; k < w->bytes[i]; k++) w->data[i][k] = (uint8_t)test_random(&random);
        w->tensors[i].data = w->data[i];
    }
}

/* Signs of zero, payloads of NaN, first, last and far elements. */
static void bits_are_kept(void **state) {
    static const uint32_t zero = 0, minus_zero = 0x80000000, nan = 0x7FC00000, payload = 0x7FC00001,
                          signalling = 0xFF800001;
    const uint16_t nan16 = 0x7FC0, payload16 = 0xFFC5;
    weights w;
    place p;
    (void)state;
    open_place(&p);
    make_own(&w);
    memcpy(w.data[0], &zero, 4);
    memcpy(w.data[0] + 4, &nan, 4);
    memcpy(w.data[0] + 8, &nan, 4);
    memcpy(w.data[1] + 2 * (ELEMENTS - 1), &nan16, 2);
    write_weights(&w, p.base);
    memcpy(w.data[0], &minus_zero, 4);
    memcpy(w.data[0] + 4, &payload, 4);
    memcpy(w.data[0] + 8, &signalling, 4);
    memcpy(w.data[1] + 2 * (ELEMENTS - 1), &payload16, 2);
    w.data[3][FAR] ^= 1;     /* fifteen gaps of 255 and one of 175 */
    w.data[4][8 * 255] ^= 1; /* behind one gap of 255 */
    w.data[4][8 * 510] ^= 1; /* behind 254 elements */
    w.data[6][1] ^= 0x80;    /* the scalar */
    write_weights(&w, p.next);
    assert_true(make_changes(&p) > 0);
    round_trip(&p);
    free_weights(&w);
    close_place(&p);
}

/* Pieces: a tensor above LS_FETCH_BYTES, with changes on both sides of where pieces meet. */
static void pieces_meet(void **state) {
    const int64_t n = LS_FETCH_BYTES / 2 + 3;
    const int64_t places[] = {0, 1, n - 5, n - 4, n - 3, n - 2, n - 1};
    uint16_t *values = calloc((size_t)n, sizeof *values);
    const ls_tensor_out tensor = {"big", LS_ST_BF16, 1, &n, values};
    uint8_t *data = (uint8_t *)values;
    int64_t bytes = 2 * n;
    weights w = {(ls_tensor_out[]){tensor}, &data, &bytes, 1};
    place p;
    (void)state;
    open_place(&p);
    write_weights(&w, p.base);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) values[places[i]] = (uint16_t)(i + 1);
    write_weights(&w, p.next);
    bytes = make_changes(&p);
    assert_true(bytes > n / 256 && bytes < n / 255 + 1000);
    round_trip(&p);
    free(values);
    close_place(&p);
}

/* Changes upon changes, with the digests of those before. */
static void chains_hold(void **state) {
    char path[PATH_BYTES + 32];
    uint64_t random = 3;
    ls_changes *first, *second;
    int64_t bytes;
    bool is_other;
    ls_error err;
    weights w;
    place p;
    (void)state;
    open_place(&p);
    make_own(&w);
    write_weights(&w, p.base);
    change_some(&w, 0.05, &random);
    write_weights(&w, p.next);
    assert_true(make_changes(&p) > 0);
    assert_ok(ls_changes_open(&first, p.changes, &err), err);
    assert_int_equal(ls_changes_count(first), w.n);
    change_some(&w, 0.05, &random);
    write_weights(&w, p.other);
    empty_directory(p.changes);
    assert_ok(ls_changes_between(p.next, p.other, p.changes, &bytes, &err), err);
    assert_true(bytes > 0);
    assert_ok(ls_changes_open(&second, p.changes, &err), err);
    snprintf(path, sizeof path, "%s/model.safetensors", p.made);
    assert_ok(ls_changes_apply(second, p.next, first, path, &is_other, &err), err);
    check_same(p.made, p.other);
    /* Weights that are no longer what the digests say, as a file that was written over. */
    empty_directory(p.made);
    check_failed(ls_changes_apply(second, p.base, first, path, &is_other, &err), &err, "with the changes, not");
    assert_false(is_other);
    ls_changes_close(first);
    ls_changes_close(second);
    free_weights(&w);
    close_place(&p);
}

static void other_tensors_have_no_changes(void **state) {
    static const int64_t longer[] = {ELEMENTS + 1};
    ls_tensor_out own;
    int64_t bytes;
    ls_error err;
    weights w;
    place p;
    (void)state;
    open_place(&p);
    make_own(&w);
    write_weights(&w, p.base);
    own = w.tensors[0];
    w.tensors[0].name = "A";
    write_weights(&w, p.next);
    check_failed(ls_changes_between(p.base, p.next, p.changes, &bytes, &err), &err, "tensor 'A' is not among those");
    w.tensors[0] = own;
    w.data[0] = realloc(w.data[0], (size_t)w.bytes[0] + 4);
    memset(w.data[0] + w.bytes[0], 0, 4);
    w.tensors[0].data = w.data[0];
    w.tensors[0].dims = longer;
    write_weights(&w, p.next);
    check_failed(ls_changes_between(p.base, p.next, p.changes, &bytes, &err), &err, "tensor 'a' has another type");
    w.tensors[0] = own;
    w.tensors[0].data = w.data[0];
    w.n--;
    write_weights(&w, p.next);
    check_failed(ls_changes_between(p.base, p.next, p.changes, &bytes, &err), &err, "6 tensors, compared with 7");
    w.n++;
    free_weights(&w);
    close_place(&p);
}

/* ---- faults ---- */

/* Changes of elements 7 of a, 300 and the last of b, and 0 of e. */
static void make_faulty(place *p, weights *w) {
    open_place(p);
    make_own(w);
    write_weights(w, p->base);
    w->data[0][4 * 7] ^= 1;
    w->data[1][2 * 300] ^= 1;
    w->data[1][2 * (ELEMENTS - 1)] ^= 1;
    w->data[4][0] ^= 1;
    write_weights(w, p->next);
    assert_true(make_changes(p) > 0);
}

static void refused(const place *p, const char *base, bool other, const char *word) {
    bool is_other;
    ls_error err;
    check_failed(apply_changes(p, base, &is_other, &err), &err, word);
    if (strstr(err.text, p->changes) != err.text) fail_msg("'%s' does not begin with the directory", err.text);
    if (is_other != other) fail_msg("%s: is_other is %d", err.text, is_other);
}

/* A part of changes.safetensors under its own or another name, with n elements of this type; n -1: without it. */
typedef struct spoiled {
    const char *part, *name, *word;
    ls_st_dtype dtype;
    const uint8_t *data;
    int64_t n;
} spoiled;

static void spoil_part(const place *p, const spoiled *s) {
    char path[PATH_BYTES + 32];
    ls_tensor_out parts[8];
    uint8_t *data[8];
    ls_safetensors *file;
    int64_t n = 0;
    bool is_found = false;
    ls_error err;
    snprintf(path, sizeof path, "%s/changes.safetensors", p->changes);
    assert_ok(ls_safetensors_open(&file, path, &err), err);
    assert_in_range(ls_safetensors_count(file), 1, 8);
    for (int64_t i = 0; i < ls_safetensors_count(file); i++) {
        const ls_tensor_view *view = ls_safetensors_at(file, i);
        const bool is_it = strcmp(view->name, s->part) == 0;
        is_found = is_found || is_it;
        data[i] = malloc((size_t)view->bytes + 1);
        assert_ok(ls_tensor_read(data[i], view, &err), err);
        if (is_it && s->n >= 0) parts[n++] = (ls_tensor_out){s->name, s->dtype, 1, &s->n, s->data};
        if (!is_it) parts[n++] = (ls_tensor_out){view->name, view->dtype, view->n_dims, view->dims, data[i]};
    }
    assert_true(is_found);
    assert_int_equal(unlink(path), 0);
    assert_ok(ls_safetensors_write(path, parts, n, NULL, NULL, &err), err);
    for (int64_t i = 0; i < ls_safetensors_count(file); i++) free(data[i]);
    ls_safetensors_close(file);
}

static void parts_are_checked(void **state) {
    static const uint8_t values[16] = {1, 2, 3, 4, 5, 6, 7, 8}, seven[] = {7},
                         open[] = {7, 255}, /* element 7, and a gap that nothing follows */
        three[] = {0, 0, 0}, far[21] = {255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255,
                                        255, 255, 255, 255, 255, 255, 255, 255, 154, 0};
    static uint8_t many[ELEMENTS + 1];
    const spoiled cases[] = {
        {"gaps.b", "gaps.x", "'gaps.x' is of no tensor", LS_ST_U8, seven, 1},
        {"gaps.b", "b", "'b' is of no tensor", LS_ST_U8, seven, 1},
        {"gaps.b", "gaps.c", "tensor 'b': its gaps are missing", LS_ST_U8, seven, 1},
        {"gaps.b", NULL, "tensor 'b': its gaps are missing", LS_ST_U8, NULL, -1},
        {"values.b", NULL, "tensor 'b': its values are missing", LS_ST_U8, NULL, -1},
        {"gaps.b", "gaps.b", "gaps.b: it is not a list of U8", LS_ST_I8, seven, 1},
        {"gaps.b", "gaps.b", "gaps.b: it is not a list of U8", LS_ST_U8, seven, 0},
        {"values.b", "values.b", "values.b: it is not a list of BF16", LS_ST_F16, values, 2},
        {"values.b", "values.b", "values.b: 1 values for 2 changes", LS_ST_BF16, values, 1},
        {"values.b", "values.b", "values.b: 3 values for 2 changes", LS_ST_BF16, values, 3},
        {"gaps.a", "gaps.a", "values.a: 1 values for 3 changes", LS_ST_U8, three, 3},
        {"gaps.a", "gaps.a", "gaps.a: no change follows the last gap", LS_ST_U8, open, 2},
        {"gaps.b", "gaps.b", "gaps.b: gap 20 leads to element 5000 of 5000", LS_ST_U8, far, 21},
        {"gaps.a", "gaps.a", "gaps.a: 5001 gaps for 5000 elements", LS_ST_U8, many, ELEMENTS + 1},
        /* Well-formed, and something else than was sent: only the digest tells. */
        {"gaps.a", "gaps.a", "tensor 'a' has digest", LS_ST_U8, values, 1},
        {"values.b", "values.b", "tensor 'b' has digest", LS_ST_BF16, values, 2},
    };
    weights w;
    place p;
    (void)state;
    make_faulty(&p, &w);
    round_trip(&p);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        make_changes(&p);
        spoil_part(&p, &cases[i]);
        refused(&p, p.base, false, cases[i].word);
    }
    free_weights(&w);
    close_place(&p);
}

/* The fault that this is for: a tensor that changed is not among the changes. */
static void missing_tensor_is_named(void **state) {
    const spoiled gaps = {.part = "gaps.b", .n = -1}, values = {.part = "values.b", .n = -1};
    weights w;
    place p;
    (void)state;
    make_faulty(&p, &w);
    spoil_part(&p, &gaps);
    spoil_part(&p, &values);
    refused(&p, p.base, false, "tensor 'b' is to change, and its changes are missing");
    free_weights(&w);
    close_place(&p);
}

/* And this one: changes upon weights that are not those that they begin with. */
static void stale_weights_are_named(void **state) {
    char nowhere[PATH_BYTES + 16];
    weights w;
    place p;
    (void)state;
    make_faulty(&p, &w);
    refused(&p, p.next, true, "the changes of tensor 'a' begin with digest");
    w.data[2][5] ^= 1; /* of a tensor that does not change */
    write_weights(&w, p.other);
    refused(&p, p.other, true, "the changes of tensor 'a' begin with digest");
    w.data[0][4 * 7] ^= 1;
    w.data[1][2 * 300] ^= 1;
    w.data[1][2 * (ELEMENTS - 1)] ^= 1;
    w.data[4][0] ^= 1;
    write_weights(&w, p.other);
    refused(&p, p.other, true, "the changes of tensor 'c' begin with digest");
    w.data[2][5] ^= 1;
    w.n--;
    write_weights(&w, p.other);
    refused(&p, p.other, true, "tensor 'one' is not among the weights that are there");
    w.n++;
    snprintf(nowhere, sizeof nowhere, "%s/nowhere", p.home);
    refused(&p, nowhere, true, "holds neither model.safetensors");
    free_weights(&w);
    close_place(&p);
}

/* ---- the list ---- */

static const char one_list[] =
    "{\"format\":1,\"tensors\":{\"x\":{\"dtype\":\"BF16\",\"shape\":[2,3],"
    "\"base\":\"0123456789abcdef\",\"digest\":\"0123456789abcdef\"}}}";

/* Changes of x alone, without any; one text of the list is another one. */
static ls_status parse_list(const char *from, const char *to, ls_error *err) {
    static const union {
        uint64_t aligned;
        char bytes[16];
    } data = {.bytes = "\x08\0\0\0\0\0\0\0{}      "};
    char text[400];
    ls_changes *out;
    const char *at = strstr(one_list, from);
    ls_status status;
    assert_non_null(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - one_list), one_list, to, at + strlen(from));
    status = ls_changes_parse(&out, text, (int64_t)strlen(text), (const uint8_t *)data.bytes, 16, "list", err);
    ls_changes_close(out);
    return status;
}

static void lists_are_checked(void **state) {
    static const char *const cases[][3] = {
        {"\"format\":1,", "", "'format' is missing"},
        {"\"format\":1", "\"format\":2", "format: "},
        {"\"format\":1", "\"format\":1,\"more\":1", "more"},
        {"\"BF16\"", "\"BF17\"", "tensors.x.dtype: 'BF17' is not supported"},
        {"\"BF16\"", "\"F4\"", "tensors.x.dtype: 'F4' is not supported"},
        {"[2,3]", "[2,-3]", "tensors.x.shape[1]: "},
        {"[2,3]", "[2,3,1,1,1,1,1,1,1]", "more than 8 dimensions"},
        {"[2,3]", "[4294967296,4294967296]", "the tensor is too large"},
        {"[2,3]", "[4294967296,1073741824]", "the tensor is too large"},
        {"[2,3]", "6", "tensors.x.shape: "},
        {"\"digest\":\"0123456789abcdef\"", "\"digest\":\"0123456789ABCDEF\"", "it is not 16 hexadecimal digits"},
        {"\"digest\":\"0123456789abcdef\"", "\"digest\":\"123456789abcdef\"", "it is not 16 hexadecimal digits"},
        {"\"digest\":\"0123456789abcdef\"", "\"digest\":\"1123456789abcdef\"", "its changes are missing"},
        {",\"digest\":\"0123456789abcdef\"", "", "digest"},
        {"\"dtype\"", "\"type\"", "type"},
    };
    ls_error err;
    (void)state;
    assert_ok(parse_list("x", "y", &err), err);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check_failed(parse_list(cases[i][0], cases[i][1], &err), &err, cases[i][2]);
        if (strncmp(err.text, "list: ", 6) != 0) fail_msg("'%s' does not begin with its name", err.text);
    }
}

/* Files that are missing, cut short, or beside whole weights. */
static void files_are_checked(void **state) {
    char path[PATH_BYTES + 32], whole[PATH_BYTES + 32];
    weights w;
    place p;
    ls_file_id id;
    ls_error err;
    (void)state;
    make_faulty(&p, &w);
    snprintf(path, sizeof path, "%s/changes.safetensors", p.changes);
    assert_ok(ls_file_identify(&id, path, &err), err);
    assert_int_equal(truncate(path, id.bytes - 1), 0);
    refused(&p, p.base, false, "is no range of the");
    assert_int_equal(unlink(path), 0);
    assert_true(ls_changes_are_in(p.changes));
    refused(&p, p.base, false, "changes.safetensors: ");
    make_changes(&p);
    snprintf(path, sizeof path, "%s/changes.json", p.changes);
    assert_ok(ls_file_identify(&id, path, &err), err);
    assert_int_equal(truncate(path, id.bytes / 2), 0);
    refused(&p, p.base, false, "changes.json: ");
    assert_int_equal(unlink(path), 0);
    assert_true(ls_changes_are_in(p.changes));
    refused(&p, p.base, false, "changes.json: ");
    make_changes(&p);
    snprintf(path, sizeof path, "%s/model.safetensors", p.base);
    snprintf(whole, sizeof whole, "%s/model.safetensors", p.changes);
    assert_int_equal(link(path, whole), 0);
    refused(&p, p.base, false, "has model.safetensors beside changes");
    assert_false(ls_changes_are_in(p.base));
    free_weights(&w);
    close_place(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_are_made),
        cmocka_unit_test(bits_are_kept),
        cmocka_unit_test(pieces_meet),
        cmocka_unit_test(chains_hold),
        cmocka_unit_test(other_tensors_have_no_changes),
        cmocka_unit_test(parts_are_checked),
        cmocka_unit_test(missing_tensor_is_named),
        cmocka_unit_test(stale_weights_are_named),
        cmocka_unit_test(lists_are_checked),
        cmocka_unit_test(files_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
