/* UTF-8 decoding and encoding. */
#include "base/utf8.h"

#include <string.h>

int64_t ls_utf8_decode(const uint8_t *text, int64_t bytes, int32_t *code) {
    const uint8_t b0 = text[0];
    int64_t need, i;
    uint8_t low = 0x80, high = 0xBF; /* bounds of the second byte */
    int32_t value;
    *code = -1;
    if (b0 < 0x80) {
        *code = b0;
        return 1;
    }
    if (b0 >= 0xC2 && b0 <= 0xDF) {
        need = 1;
        value = b0 & 0x1F;
    } else if (b0 >= 0xE0 && b0 <= 0xEF) {
        need = 2;
        value = b0 & 0x0F;
        if (b0 == 0xE0) low = 0xA0;
        if (b0 == 0xED) high = 0x9F;
    } else if (b0 >= 0xF0 && b0 <= 0xF4) {
        need = 3;
        value = b0 & 0x07;
        if (b0 == 0xF0) low = 0x90;
        if (b0 == 0xF4) high = 0x8F;
    } else {
        return 1;
    }
    for (i = 1; i <= need; i++) {
        if (i >= bytes || text[i] < low || text[i] > high) return i;
        value = value << 6 | (text[i] & 0x3F);
        low = 0x80;
        high = 0xBF;
    }
    *code = value;
    return need + 1;
}

int64_t ls_utf8_encode(int32_t code, uint8_t *out) {
    const uint32_t c = (uint32_t)code;
    if (c < 0x80) {
        out[0] = (uint8_t)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (uint8_t)(0xC0 | c >> 6);
        out[1] = (uint8_t)(0x80 | (c & 0x3F));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (uint8_t)(0xE0 | c >> 12);
        out[1] = (uint8_t)(0x80 | (c >> 6 & 0x3F));
        out[2] = (uint8_t)(0x80 | (c & 0x3F));
        return 3;
    }
    out[0] = (uint8_t)(0xF0 | c >> 18);
    out[1] = (uint8_t)(0x80 | (c >> 12 & 0x3F));
    out[2] = (uint8_t)(0x80 | (c >> 6 & 0x3F));
    out[3] = (uint8_t)(0x80 | (c & 0x3F));
    return 4;
}

bool ls_utf8_valid(const uint8_t *text, int64_t bytes) {
    int64_t i = 0;
    while (i < bytes) {
        int32_t code;
        i += ls_utf8_decode(text + i, bytes - i, &code);
        if (code < 0) return false;
    }
    return true;
}

int64_t ls_utf8_mark(const char *text, int64_t bytes) {
    return bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}
