/* Finds keys by the colon behind them. Texts that are no JSON may end up as others that are none either. */
#include "json/json_nul_keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"

#define ESCAPE "\\u0000"
enum { ESCAPE_BYTES = 6, NONCHARACTERS = 32, FIRST = 0xFDD0 };

/* Behind the string that begins at `at`; n_nul: its escaped NULs. */
static int64_t end_of_string(const char *json, int64_t bytes, int64_t at, int64_t *n_nul) {
    *n_nul = 0;
    for (int64_t i = at + 1; i < bytes; i++) {
        if (json[i] == '"') return i + 1;
        if (json[i] != '\\') continue;
        if (bytes - i >= ESCAPE_BYTES && memcmp(json + i, ESCAPE, ESCAPE_BYTES) == 0) ++*n_nul;
        i++;
    }
    return bytes;
}

static bool is_key(const char *json, int64_t bytes, int64_t end) {
    while (end < bytes && strchr(" \t\r\n", json[end]) != NULL && json[end] != '\0') end++;
    return end < bytes && json[end] == ':';
}

/* Calls of the keys with NULs: counted, and with `to` written there with another escape. */
static int64_t walk(const char *json, int64_t bytes, char *to, const char *escape) {
    int64_t n = 0, n_nul;
    for (int64_t i = 0; i < bytes; i++) {
        int64_t end;
        if (json[i] != '"') continue;
        end = end_of_string(json, bytes, i, &n_nul);
        if (n_nul > 0 && is_key(json, bytes, end)) {
            n++;
            for (int64_t k = i; to != NULL && k + ESCAPE_BYTES <= end; k++) {
                if (json[k] != '\\') continue;
                if (memcmp(json + k, ESCAPE, ESCAPE_BYTES) == 0) memcpy(to + k, escape, ESCAPE_BYTES);
                k++;
            }
        }
        i = end - 1;
    }
    return n;
}

/* Whether the noncharacter stands in the text, as it is or as an escape. */
static bool has_standin(const char *json, int64_t bytes, const char *standin, const char *escape) {
    for (int64_t i = 0; i + 3 <= bytes; i++) {
        if (memcmp(json + i, standin, 3) == 0) return true;
        if (json[i] == '\\' && bytes - i >= ESCAPE_BYTES && strncasecmp(json + i, escape, ESCAPE_BYTES) == 0)
            return true;
    }
    return false;
}

ls_status ls_nul_keys_open(ls_nul_keys *out, const char *json, int64_t bytes, const char *name, ls_error *err) {
    char escape[ESCAPE_BYTES + 1];
    *out = (ls_nul_keys){0};
    if (walk(json, bytes, NULL, NULL) == 0) return LS_OK;
    for (unsigned k = 0; k < NONCHARACTERS; k++) {
        const unsigned code = FIRST + k;
        snprintf(escape, sizeof escape, "\\u%04x", code);
        out->standin[0] = (char)(0xE0 | code >> 12);
        out->standin[1] = (char)(0x80 | (code >> 6 & 0x3F));
        out->standin[2] = (char)(0x80 | (code & 0x3F));
        if (has_standin(json, bytes, out->standin, escape)) continue;
        LS_TRY(ls_array_alloc((void **)&out->text, bytes + 1, 1, "vocabulary", err));
        memcpy(out->text, json, (size_t)bytes);
        (void)walk(json, bytes, out->text, escape);
        return LS_OK;
    }
    return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: a vocabulary with NUL and with every noncharacter U+FDD0..U+FDEF",
                   name);
}

void ls_nul_keys_close(ls_nul_keys *keys) { free(keys->text); }

int64_t ls_nul_keys_restore(const ls_nul_keys *keys, char *key) {
    char *to = key;
    if (keys->text == NULL) return (int64_t)strlen(key);
    for (const char *at = key; *at != '\0';) {
        const bool is_nul = strncmp(at, keys->standin, 3) == 0;
        *to++ = is_nul ? '\0' : *at;
        at += is_nul ? 3 : 1;
    }
    *to = '\0';
    return to - key;
}
