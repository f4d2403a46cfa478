/* JSON output. The stream's own error flag carries write failures; ls_output_commit reports them. */
#include "json/json_out.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/utf8.h"

void ls_json_init(ls_json_out *json, FILE *file) {
    memset(json, 0, sizeof *json);
    json->file = file;
}

static void write_text(FILE *file, const char *text, int64_t bytes) {
    int64_t i = 0;
    fputc('"', file);
    while (i < bytes) {
        const unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\') {
            fputc('\\', file);
            fputc(c, file);
            i++;
        } else if (c == '\n') {
            fputs("\\n", file);
            i++;
        } else if (c == '\t') {
            fputs("\\t", file);
            i++;
        } else if (c == '\r') {
            fputs("\\r", file);
            i++;
        } else if (c < 0x20) {
            fprintf(file, "\\u%04x", c);
            i++;
        } else if (c < 0x80) {
            fputc(c, file);
            i++;
        } else {
            int32_t code;
            const int64_t used = ls_utf8_decode((const uint8_t *)text + i, bytes - i, &code);
            if (code < 0) {
                fputs("\xEF\xBF\xBD", file);
            } else {
                fwrite(text + i, 1, (size_t)used, file);
            }
            i += used;
        }
    }
    fputc('"', file);
}

void ls_json_init_visit(ls_json_out *json, ls_json_visit visit, void *context) {
    ls_json_init(json, NULL);
    json->visit = visit;
    json->context = context;
}

/* Comma and key of a value that is to be written; of one that is not, its path. Returns whether it is. */
static bool begin_value(ls_json_out *json, const char *key) {
    const int64_t i = json->depth > 0 ? json->n_items[json->depth - 1]++ : 0;
    if (json->file != NULL) {
        if (i > 0) fputc(',', json->file);
        if (key != NULL) {
            write_text(json->file, key, (int64_t)strlen(key));
            fputc(':', json->file);
        }
    } else if (json->depth > 0) {
        const int32_t above = json->path_bytes[json->depth - 1];
        const size_t room = sizeof json->path - (size_t)above;
        const char *const slash = above > 0 ? "/" : "";
        const int used = key != NULL ? snprintf(json->path + above, room, "%s%s", slash, key)
                                     : snprintf(json->path + above, room, "%s%lld", slash, (long long)i);
        LS_ASSERT(used >= 0 && (size_t)used < room, "%s is too long a path", json->path);
    }
    return json->file != NULL;
}

/* The same for a value that is a number, which is told where it is not to be written. */
static bool begin_number(ls_json_out *json, const char *key, double value) {
    const bool written = begin_value(json, key);
    if (!written) json->visit(json->context, json->path, value);
    return written;
}

static void push_level(ls_json_out *json, const char *key, char open) {
    if (begin_value(json, key)) fputc(open, json->file);
    LS_ASSERT(json->depth < LS_JSON_DEPTH_MAX, "depth %d", json->depth);
    json->path_bytes[json->depth] = (int32_t)strlen(json->path);
    json->n_items[json->depth++] = 0;
}

static void pop(ls_json_out *json, char close) {
    LS_ASSERT(json->depth > 0, "depth %d", json->depth);
    json->depth--;
    json->path[json->depth > 0 ? json->path_bytes[json->depth - 1] : 0] = '\0';
    if (json->file != NULL) fputc(close, json->file);
}

void ls_json_begin_object(ls_json_out *json, const char *key) { push_level(json, key, '{'); }
void ls_json_end_object(ls_json_out *json) { pop(json, '}'); }
void ls_json_begin_array(ls_json_out *json, const char *key) { push_level(json, key, '['); }
void ls_json_end_array(ls_json_out *json) { pop(json, ']'); }

void ls_json_text(ls_json_out *json, const char *key, const char *text, int64_t bytes) {
    if (begin_value(json, key)) write_text(json->file, text, bytes);
}

void ls_json_string(ls_json_out *json, const char *key, const char *text) {
    ls_json_text(json, key, text, (int64_t)strlen(text));
}

void ls_json_string_or_null(ls_json_out *json, const char *key, const char *text) {
    if (text != NULL)
        ls_json_string(json, key, text);
    else
        ls_json_null(json, key);
}

void ls_json_int(ls_json_out *json, const char *key, int64_t value) {
    if (begin_number(json, key, (double)value)) fprintf(json->file, "%lld", (long long)value);
}

void ls_json_uint(ls_json_out *json, const char *key, uint64_t value) {
    if (begin_number(json, key, (double)value)) fprintf(json->file, "%llu", (unsigned long long)value);
}

void ls_json_float(ls_json_out *json, const char *key, float value) {
    if (!begin_number(json, key, (double)value)) return;
    if (isfinite(value))
        fprintf(json->file, "%.9g", (double)value);
    else
        fputs("null", json->file);
}

void ls_double_text(char text[LS_DOUBLE_TEXT_MAX], double value) {
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, LS_DOUBLE_TEXT_MAX, "%.*g", digits, value);
        if (strtod(text, NULL) == value) return;
    }
}

/* Takes from an exponent what says nothing: its plus and leading zeros. */
static void trim_exponent(char *text) {
    char *exponent = strchr(text, 'e'), *digits;
    if (exponent == NULL) return;
    exponent++;
    digits = exponent + 1; /* behind the sign, which printf always writes */
    while (*digits == '0') digits++;
    if (*exponent == '-') exponent++;
    memmove(exponent, digits, strlen(digits) + 1);
}

void ls_double_show(char text[LS_DOUBLE_TEXT_MAX], double value) {
    ls_double_text(text, value);
    trim_exponent(text);
}

void ls_double_round(char text[LS_DOUBLE_TEXT_MAX], double value, int digits) {
    snprintf(text, LS_DOUBLE_TEXT_MAX, "%.*g", digits, value);
    trim_exponent(text);
}

double ls_float_plain(float value) {
    char text[LS_DOUBLE_TEXT_MAX];
    for (int digits = 6; digits < 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value) return strtod(text, NULL);
    }
    return (double)value;
}

void ls_json_double(ls_json_out *json, const char *key, double value) {
    char text[LS_DOUBLE_TEXT_MAX] = "null";
    if (!begin_number(json, key, value)) return;
    if (isfinite(value)) ls_double_show(text, value);
    fputs(text, json->file);
}

void ls_json_bool(ls_json_out *json, const char *key, bool value) {
    if (begin_number(json, key, value ? 1.0 : 0.0)) fputs(value ? "true" : "false", json->file);
}

void ls_json_raw(ls_json_out *json, const char *key, const char *text) {
    if (begin_value(json, key)) fputs(text, json->file);
}

void ls_json_null(ls_json_out *json, const char *key) {
    if (begin_value(json, key)) fputs("null", json->file);
}

void ls_json_newline(ls_json_out *json) {
    if (json->file != NULL) fputc('\n', json->file);
}

ls_status ls_json_save(const char *path, ls_json_fill fill, const void *context, ls_error *err) {
    ls_output *output = NULL;
    ls_json_out json;
    ls_status status;
    LS_TRY(ls_output_open(&output, path, err));
    ls_json_init(&json, ls_output_stream(output));
    LS_TRY_DONE(fill(&json, context, err));
    status = ls_output_commit(output, err);
    output = NULL;
done:
    ls_output_abandon(output);
    return status;
}
