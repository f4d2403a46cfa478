/* One pass over the text; strings are passed over. Texts that are no JSON may end up as others that are none either. */
#include "json/json_numbers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "json/json_decimal.h"
#include "json/json_out.h"

/* Digits that 64 bits and doubles always have, and that doubles have at most. */
enum { DIGITS_SAFE = 15, DIGITS_MOST = 17 };

static bool is_of_number(char c) { return (c >= '0' && c <= '9') || (c != '\0' && strchr("-+.eE", c) != NULL); }

/* Behind the string that begins at `at`. */
static int64_t string_end(const char *json, int64_t bytes, int64_t at) {
    for (int64_t i = at + 1; i < bytes; i++) {
        if (json[i] == '"') return i + 1;
        if (json[i] == '\\') i++;
    }
    return bytes;
}

static bool fits_int64(const ls_json_decimal *d) {
    static const char least[] = "-9223372036854775808", most[] = "9223372036854775807";
    ls_json_decimal low, high;
    (void)ls_json_decimal_read(&low, least, (int64_t)sizeof least - 1);
    (void)ls_json_decimal_read(&high, most, (int64_t)sizeof most - 1);
    return ls_json_decimal_compare(d, &low) >= 0 && ls_json_decimal_compare(d, &high) <= 0;
}

/* Whether the double next to the number is what it says. */
static bool is_its_double(const ls_json_decimal *d, const char *text, ls_numbers_mode mode) {
    char shortest[LS_DOUBLE_TEXT_MAX];
    ls_json_decimal back;
    const double value = strtod(text, NULL);
    if (isinf(value)) return mode == LS_NUMBERS_PLAIN;
    if (mode == LS_NUMBERS_PLAIN && d->n <= DIGITS_MOST && fpclassify(value) != FP_ZERO) return true;
    ls_double_show(shortest, value);
    (void)ls_json_decimal_read(&back, shortest, (int64_t)strlen(shortest));
    return ls_json_decimal_compare(d, &back) == 0;
}

/* A number, with a NUL behind it, that is more than a few digits. */
static bool is_kept(const ls_json_decimal *d, const char *text, ls_numbers_mode mode) {
    if (strpbrk(text, ".eE") == NULL) return !fits_int64(d);
    return !is_its_double(d, text, mode);
}

/* A text that is gone through. */
typedef struct passage {
    const char *json;
    int64_t bytes;
    ls_numbers_mode mode;
    const char *name;
} passage;

/* Keeps number `index`, json[at..at + bytes), if it must be kept. */
static ls_status look_at_number(ls_kept_numbers *out, const passage *p, int64_t at, int64_t bytes, int64_t index,
                                ls_error *err) {
    const char *json = p->json;
    ls_json_decimal d;
    char *text = NULL;
    int64_t first;
    ls_status status = LS_OK;
    if (!ls_json_decimal_read(&d, json + at, bytes)) return LS_OK; /* the library says what is wrong with it */
    if (d.is_vast)
        return LS_FAIL(err, LS_ERR_FORMAT, "%s: a number has an exponent of more than 15 digits: %.*s", p->name,
                       (int)(bytes < 60 ? bytes : 60), json + at);
    LS_TRY_DONE(ls_text_copy(&text, json + at, bytes, err));
    if (!is_kept(&d, text, p->mode)) goto done;
    if (out->json == NULL) LS_TRY_DONE(ls_text_copy(&out->json, json, p->bytes, err));
    first = at + (json[at] == '-');
    memset(out->json + first, '0', (size_t)(at + bytes - first));
    out->json[first + 1] = '.'; /* 0.000, with at least one digit behind: five characters are the fewest */
    LS_TRY_DONE(ls_array_grow((void **)&out->list, &out->cap, out->n + 1, sizeof *out->list, "numbers", err));
    out->list[out->n++] = (ls_kept_number){index, text};
    text = NULL;
done:
    free(text);
    return status;
}

ls_status ls_kept_numbers_open(ls_kept_numbers *out, const char *json, int64_t bytes, ls_numbers_mode mode,
                               const char *name, ls_error *err) {
    const passage p = {json, bytes, mode, name};
    int64_t index = 0, end;
    ls_status status = LS_OK;
    *out = (ls_kept_numbers){0};
    for (int64_t at = 0; at < bytes && status == LS_OK; at = end) {
        end = at + 1;
        if (json[at] == '"') end = string_end(json, bytes, at);
        if (json[at] != '-' && (json[at] < '0' || json[at] > '9')) continue;
        while (end < bytes && is_of_number(json[end])) end++;
        if (end - at > DIGITS_SAFE || memchr(json + at, 'e', (size_t)(end - at)) != NULL ||
            memchr(json + at, 'E', (size_t)(end - at)) != NULL)
            status = look_at_number(out, &p, at, end - at, index, err);
        index++;
    }
    if (status != LS_OK) ls_kept_numbers_close(out);
    return status;
}

void ls_kept_numbers_close(ls_kept_numbers *numbers) {
    for (int64_t i = 0; i < numbers->n; i++) free(numbers->list[i].text);
    free(numbers->list);
    free(numbers->json);
    *numbers = (ls_kept_numbers){0};
}
