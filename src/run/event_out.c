/* Framing and the few protocol-buffer fields: Event{1 wall_time, 2 step, 3 file_version, 5 summary, 7 session_log},
 * Summary{1 value}, Value{1 tag, 2 simple_value}, SessionLog{1 status}. */
#include "run/event_out.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };
enum { SESSION_START = 1, VARINT_MAX = 10, HEAD_MAX = 64 };

uint32_t ls_crc32c(const void *data, int64_t bytes) {
    const uint8_t *at = data;
    uint32_t crc = UINT32_MAX;
    for (int64_t i = 0; i < bytes; i++) {
        crc ^= at[i];
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (UINT32_C(0x82f63b78) & (0u - (crc & 1u)));
    }
    return ~crc;
}

/* Little-endian, whatever the machine. */
static int64_t put_fixed(uint8_t *out, uint64_t x, int bytes) {
    for (int i = 0; i < bytes; i++) out[i] = (uint8_t)(x >> (8 * i));
    return bytes;
}

static int64_t put_varint(uint8_t *out, uint64_t x) {
    int64_t n = 0;
    for (; x >= 128; x >>= 7) out[n++] = (uint8_t)(x | 128);
    out[n++] = (uint8_t)x;
    return n;
}

static int64_t put_key(uint8_t *out, int field, int wire) { return put_varint(out, (uint64_t)(field << 3 | wire)); }

static int64_t put_double(uint8_t *out, int field, double x) {
    const int64_t n = put_key(out, field, WIRE_64);
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return n + put_fixed(out + n, bits, 8);
}

static int64_t put_float(uint8_t *out, int field, float x) {
    const int64_t n = put_key(out, field, WIRE_32);
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return n + put_fixed(out + n, bits, 4);
}

/* The key and length that stand before a field of bytes. */
static int64_t put_length(uint8_t *out, int field, int64_t bytes) {
    const int64_t n = put_key(out, field, WIRE_BYTES);
    return n + put_varint(out + n, (uint64_t)bytes);
}

static void write_checksum(FILE *file, uint32_t crc) {
    const uint32_t masked = (crc >> 15 | crc << 17) + UINT32_C(0xa282ead8);
    uint8_t bytes[4];
    put_fixed(bytes, masked, 4);
    fwrite(bytes, 1, sizeof bytes, file);
}

static void write_record(FILE *file, const uint8_t *data, int64_t bytes) {
    uint8_t length[8];
    put_fixed(length, (uint64_t)bytes, 8);
    fwrite(length, 1, sizeof length, file);
    write_checksum(file, ls_crc32c(length, sizeof length));
    fwrite(data, 1, (size_t)bytes, file);
    write_checksum(file, ls_crc32c(data, bytes));
}

static int64_t put_place(uint8_t *out, double time, int64_t step) {
    int64_t n = put_double(out, 1, time);
    n += put_key(out + n, 2, WIRE_VARINT);
    return n + put_varint(out + n, (uint64_t)step);
}

void ls_event_start(FILE *file, double time, int64_t step) {
    static const char version[] = "brain.Event:2";
    uint8_t event[HEAD_MAX];
    int64_t n = put_double(event, 1, time);
    n += put_length(event + n, 3, sizeof version - 1);
    memcpy(event + n, version, sizeof version - 1);
    write_record(file, event, n + (int64_t)sizeof version - 1);
    n = put_place(event, time, step);
    n += put_length(event + n, 7, 2);
    n += put_key(event + n, 1, WIRE_VARINT);
    n += put_varint(event + n, SESSION_START);
    write_record(file, event, n);
}

ls_status ls_event_scalar(ls_event *event, const char *tag, double value, ls_error *err) {
    const int64_t tag_bytes = (int64_t)strlen(tag);
    uint8_t head[2 * VARINT_MAX], number[VARINT_MAX], *at;
    const int64_t number_bytes = put_float(number, 2, (float)value), head_bytes = put_length(head, 1, tag_bytes);
    const int64_t value_bytes = head_bytes + tag_bytes + number_bytes;
    ls_status status =
        ls_array_grow((void **)&event->bytes, &event->cap, event->n + value_bytes + 2 * VARINT_MAX, 1, "event", err);
    if (status != LS_OK) return status;
    at = event->bytes + event->n;
    at += put_length(at, 1, value_bytes);
    memcpy(at, head, (size_t)head_bytes);
    memcpy(at + head_bytes, tag, (size_t)tag_bytes);
    memcpy(at + head_bytes + tag_bytes, number, (size_t)number_bytes);
    event->n = at + value_bytes - event->bytes;
    return LS_OK;
}

ls_status ls_event_write(FILE *file, ls_event *event, double time, int64_t step, ls_error *err) {
    uint8_t head[HEAD_MAX];
    int64_t n = put_place(head, time, step);
    ls_status status;
    n += put_length(head + n, 5, event->n);
    status = ls_array_grow((void **)&event->bytes, &event->cap, event->n + n, 1, "event", err);
    if (status != LS_OK) return status;
    if (event->n > 0) memmove(event->bytes + n, event->bytes, (size_t)event->n);
    memcpy(event->bytes, head, (size_t)n);
    write_record(file, event->bytes, n + event->n);
    event->n = 0;
    return LS_OK;
}

void ls_event_deinit(ls_event *event) {
    free(event->bytes);
    *event = (ls_event){0};
}
