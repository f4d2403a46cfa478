/* Reading and applying the rules. Every index that a file gives is checked where it is used. */
#include "text/charsmap.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/unicode.h"

enum { CLUSTER_BYTES_MAX = 6, UNIT_BYTES = 4 };

/* ---- reading ---- */

static int unit_value(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

static ls_status decode_base64(uint8_t *out, int64_t *n, const char *text, int64_t bytes, ls_error *err) {
    uint32_t bits = 0;
    int n_bits = 0;
    *n = 0;
    if (bytes % 4 != 0) return LS_FAIL(err, LS_ERR_FORMAT, "%lld characters are no base64", (long long)bytes);
    while (bytes > 0 && text[bytes - 1] == '=') bytes--;
    for (int64_t i = 0; i < bytes; i++) {
        const int value = unit_value(text[i]);
        if (value < 0) return LS_FAIL(err, LS_ERR_FORMAT, "character %lld is not of base64", (long long)i);
        bits = (bits << 6 | (uint32_t)value) & 0xFFFFFFu;
        n_bits += 6;
        if (n_bits < 8) continue;
        n_bits -= 8;
        out[(*n)++] = (uint8_t)(bits >> n_bits);
    }
    return LS_OK;
}

static uint32_t read_unit(const uint8_t *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

ls_status ls_charsmap_parse(ls_charsmap *out, const char *base64, int64_t bytes, ls_error *err) {
    uint8_t *data = NULL;
    int64_t n = 0, trie;
    ls_status status;
    memset(out, 0, sizeof *out);
    LS_TRY_DONE(ls_array_alloc((void **)&data, bytes + 1, 1, "rules", err));
    LS_TRY_DONE(decode_base64(data, &n, base64, bytes, err));
    trie = n >= UNIT_BYTES ? (int64_t)read_unit(data) : -1;
    if (trie < UNIT_BYTES || trie % UNIT_BYTES != 0 || trie > n - UNIT_BYTES) {
        status = LS_FAIL(err, LS_ERR_FORMAT, "%lld bytes with a trie of %lld", (long long)n, (long long)trie);
        goto done;
    }
    out->n_units = trie / UNIT_BYTES;
    out->text_bytes = n - UNIT_BYTES - trie;
    LS_TRY_DONE(ls_array_alloc((void **)&out->units, out->n_units, sizeof *out->units, "rules", err));
    for (int64_t i = 0; i < out->n_units; i++) out->units[i] = read_unit(data + UNIT_BYTES * (i + 1));
    LS_TRY_DONE(ls_text_copy(&out->text, (const char *)data + UNIT_BYTES + trie, out->text_bytes, err));
    if (!ls_utf8_valid((const uint8_t *)out->text, out->text_bytes))
        status = LS_FAIL(err, LS_ERR_FORMAT, "the replacements are not UTF-8");
done:
    free(data);
    if (status != LS_OK) ls_charsmap_deinit(out);
    return status;
}

void ls_charsmap_deinit(ls_charsmap *map) {
    free(map->units);
    free(map->text);
    memset(map, 0, sizeof *map);
}

/* ---- applying ---- */

/* The distance to a unit's children, as the trie packs it. */
static uint64_t offset_of(uint32_t unit) { return (uint64_t)(unit >> 10) << ((unit & (1u << 9)) >> 6); }

/* The value of the shortest beginning of the key that has a rule, or -1. */
static int64_t find_rule(const ls_charsmap *map, const char *key, int64_t bytes) {
    uint64_t at = offset_of(map->units[0]);
    for (int64_t i = 0; i < bytes && key[i] != '\0'; i++) {
        const uint8_t c = (uint8_t)key[i];
        uint32_t unit;
        at ^= c;
        if (at >= (uint64_t)map->n_units) return -1;
        unit = map->units[at];
        if ((unit & (1u << 31 | 0xFFu)) != c) return -1;
        at ^= offset_of(unit);
        if ((unit >> 8 & 1u) == 0) continue;
        return at < (uint64_t)map->n_units ? (int64_t)(map->units[at] & 0x7FFFFFFFu) : -1;
    }
    return -1;
}

/* *done tells whether there was a rule. */
static ls_status rewrite(const ls_charsmap *map, const char *part, int64_t bytes, bool *done, ls_text *out,
                         ls_error *err) {
    const int64_t rule = find_rule(map, part, bytes);
    *done = rule >= 0;
    if (!*done) return LS_OK;
    if (rule > map->text_bytes)
        return LS_FAIL(err, LS_ERR_FORMAT, "a rule at %lld of %lld bytes of replacements", (long long)rule,
                       (long long)map->text_bytes);
    if ((map->text[rule] & 0xC0) == 0x80)
        return LS_FAIL(err, LS_ERR_FORMAT, "a rule begins within a character of the replacements, at %lld",
                       (long long)rule);
    return ls_text_append(out, map->text + rule, (int64_t)strlen(map->text + rule), err);
}

static ls_status rewrite_cluster(const ls_charsmap *map, const char *text, int64_t bytes, ls_text *out, ls_error *err) {
    bool done = false;
    if (bytes < CLUSTER_BYTES_MAX) LS_TRY(rewrite(map, text, bytes, &done, out, err));
    for (int64_t at = 0; at < bytes && (!done || at > 0);) {
        int32_t code;
        const int64_t used = ls_utf8_decode((const uint8_t *)text + at, bytes - at, &code);
        LS_TRY(rewrite(map, text + at, used, &done, out, err));
        if (!done) LS_TRY(ls_text_append(out, text + at, used, err));
        at += used;
    }
    return LS_OK;
}

ls_status ls_charsmap_apply(const ls_charsmap *map, const char *text, int64_t bytes, ls_text *out, ls_error *err) {
    int64_t begin = 0, at = 0;
    int32_t before = -1, state = 0;
    while (at < bytes) {
        int32_t code;
        const int64_t used = ls_utf8_decode((const uint8_t *)text + at, bytes - at, &code);
        if (before >= 0 && ls_code_is_break(before, code, &state)) {
            LS_TRY(rewrite_cluster(map, text + begin, at - begin, out, err));
            begin = at;
        }
        before = code;
        at += used;
    }
    if (at > begin) LS_TRY(rewrite_cluster(map, text + begin, at - begin, out, err));
    return LS_OK;
}
