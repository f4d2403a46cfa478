/* TensorBoard's event files: checksums of known value, and files taken apart again by a reader of the test's own. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdlib.h>

#include "harness.h"
#include "run/event_out.h"

/* From the standard's definition, bit by bit over the message as a polynomial: not the reflected form of the writer. */
static uint32_t crc_of(const uint8_t *data, size_t n) {
    uint32_t crc = UINT32_MAX, out = 0;
    for (size_t i = 0; i < n; i++)
        for (int bit = 0; bit < 8; bit++) {
            const uint32_t in = (uint32_t)(data[i] >> bit) & 1u, top = crc >> 31;
            crc = (crc << 1) ^ (in != top ? UINT32_C(0x1edc6f41) : 0u);
        }
    for (int bit = 0; bit < 32; bit++) out |= ((crc >> bit) & 1u) << (31 - bit);
    return ~out;
}

static uint64_t fixed(const uint8_t *at, int bytes) {
    uint64_t x = 0;
    for (int i = 0; i < bytes; i++) x |= (uint64_t)at[i] << (8 * i);
    return x;
}

static void checksum_is(const uint8_t *at, const uint8_t *data, size_t n) {
    const uint32_t crc = crc_of(data, n);
    assert_int_equal(fixed(at, 4), (uint32_t)((crc >> 15 | crc << 17) + UINT32_C(0xa282ead8)));
}

typedef struct reader {
    const uint8_t *at, *end;
} reader;

static uint64_t varint(reader *r) {
    uint64_t x = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        assert_true(r->at < r->end);
        x |= (uint64_t)(*r->at & 127) << shift;
        if (*r->at++ < 128) return x;
    }
    fail_msg("a number without an end");
    return 0;
}

/* A field's number; its content in *data, or its value in *number. */
static int field(reader *r, reader *data, uint64_t *number) {
    const uint64_t key = varint(r);
    const int wire = (int)(key & 7);
    size_t bytes = wire == 1 ? 8 : 4;
    if (wire == 0) {
        *number = varint(r);
        return (int)(key >> 3);
    }
    assert_true(wire == 1 || wire == 2 || wire == 5);
    if (wire == 2) bytes = (size_t)varint(r);
    assert_true(bytes <= (size_t)(r->end - r->at));
    *data = (reader){r->at, r->at + bytes};
    if (wire != 2) *number = fixed(r->at, (int)bytes);
    r->at += bytes;
    return (int)(key >> 3);
}

typedef struct scalar {
    char tag[256];
    float value;
} scalar;

typedef struct event {
    double time;
    int64_t step;
    char version[32];
    int session, n;
    scalar scalars[16];
} event;

static void read_value(scalar *out, reader r) {
    while (r.at < r.end) {
        reader data = {0};
        uint64_t number = 0;
        const int id = field(&r, &data, &number);
        const uint32_t bits = (uint32_t)number;
        if (id == 1) snprintf(out->tag, sizeof out->tag, "%.*s", (int)(data.end - data.at), (const char *)data.at);
        if (id == 2) memcpy(&out->value, &bits, sizeof bits);
        assert_true(id == 1 || id == 2);
    }
}

static event read_event(reader *file) {
    event e = {.step = -1};
    reader r, data = {0}, inner;
    uint64_t number = 0;
    size_t bytes;
    assert_true(file->end - file->at >= 16);
    bytes = (size_t)fixed(file->at, 8);
    checksum_is(file->at + 8, file->at, 8);
    assert_true((size_t)(file->end - file->at) >= 16 + bytes);
    checksum_is(file->at + 12 + bytes, file->at + 12, bytes);
    r = (reader){file->at + 12, file->at + 12 + bytes};
    file->at += 16 + bytes;
    while (r.at < r.end) {
        switch (field(&r, &data, &number)) {
            case 1: memcpy(&e.time, &number, sizeof number); break;
            case 2: e.step = (int64_t)number; break;
            case 3:
                snprintf(e.version, sizeof e.version, "%.*s", (int)(data.end - data.at), (const char *)data.at);
                break;
            case 5:
                while (data.at < data.end) {
                    assert_int_equal(field(&data, &inner, &number), 1);
                    read_value(&e.scalars[e.n++], inner);
                }
                break;
            case 7:
                assert_int_equal(field(&data, &inner, &number), 1);
                e.session = (int)number;
                break;
            default: fail_msg("a field that was not written");
        }
    }
    return e;
}

static void checksums_have_their_known_values(void **state) {
    uint8_t data[32];
    (void)state;
    assert_int_equal(ls_crc32c("", 0), 0);
    assert_int_equal(ls_crc32c("123456789", 9), UINT32_C(0xe3069283));
    memset(data, 0, sizeof data);
    assert_int_equal(ls_crc32c(data, 32), UINT32_C(0x8a9136aa)); /* RFC 3720, B.4 */
    memset(data, 255, sizeof data);
    assert_int_equal(ls_crc32c(data, 32), UINT32_C(0x62a8ab43));
    for (int i = 0; i < 32; i++) data[i] = (uint8_t)i;
    assert_int_equal(ls_crc32c(data, 32), UINT32_C(0x46dd794e));
    for (int i = 0; i < 32; i++) data[i] = (uint8_t)(31 - i);
    assert_int_equal(ls_crc32c(data, 32), UINT32_C(0x113fdb5c));
    for (int i = 0; i < 32; i++) assert_int_equal(ls_crc32c(data, i), crc_of(data, (size_t)i));
}

static void files_are_what_was_put_in(void **state) {
    static const uint8_t known[12] = {0x18, 0, 0, 0, 0, 0, 0, 0, 0xa3, 0x7f, 0x4b, 0x22}; /* how all such files begin */
    char *data = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&data, &bytes);
    ls_event scalars = {0};
    ls_error err;
    reader r;
    event e;
    (void)state;
    assert_non_null(file);
    ls_event_start(file, 1700000000.25, 3);
    assert_ok(ls_event_scalar(&scalars, "reward/mean", 0.5, &err), err);
    assert_ok(ls_event_scalar(&scalars, "na\xC3\xAFve", (double)NAN, &err), err);
    assert_ok(ls_event_scalar(&scalars, "big", 1e300, &err), err);
    assert_ok(ls_event_write(file, &scalars, 1700000001.5, (int64_t)1 << 40, &err), err);
    assert_int_equal(scalars.n, 0);
    assert_ok(ls_event_write(file, &scalars, 1.0, 0, &err), err);
    for (int i = 0; i < 9; i++) {
        char tag[256];
        memset(tag, 'a' + i, 200);
        tag[200] = '\0';
        assert_ok(ls_event_scalar(&scalars, tag, -i, &err), err);
    }
    assert_ok(ls_event_write(file, &scalars, 2.0, 7, &err), err);
    ls_event_deinit(&scalars);
    assert_int_equal(fclose(file), 0);

    r = (reader){(const uint8_t *)data, (const uint8_t *)data + bytes};
    assert_memory_equal(data, known, sizeof known);
    e = read_event(&r);
    assert_string_equal(e.version, "brain.Event:2");
    assert_true(e.time == 1700000000.25);
    e = read_event(&r);
    assert_int_equal(e.session, 1);
    assert_int_equal(e.step, 3);
    e = read_event(&r);
    assert_true(e.time == 1700000001.5);
    assert_int_equal(e.step, (int64_t)1 << 40);
    assert_int_equal(e.n, 3);
    assert_string_equal(e.scalars[0].tag, "reward/mean");
    assert_true(e.scalars[0].value == 0.5f);
    assert_string_equal(e.scalars[1].tag, "na\xC3\xAFve");
    assert_true(isnan(e.scalars[1].value));
    assert_true(isinf(e.scalars[2].value));
    e = read_event(&r);
    assert_int_equal(e.step, 0);
    assert_int_equal(e.n, 0);
    e = read_event(&r);
    assert_int_equal(e.n, 9);
    for (int i = 0; i < 9; i++) {
        assert_int_equal(strlen(e.scalars[i].tag), 200);
        assert_int_equal(e.scalars[i].tag[199], 'a' + i);
        assert_true(e.scalars[i].value == (float)-i);
    }
    assert_ptr_equal(r.at, r.end);
    free(data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checksums_have_their_known_values),
        cmocka_unit_test(files_are_what_was_put_in),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
