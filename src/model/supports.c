/* Supports by rows. Owns them. */
#include "model/supports.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

ls_status ls_supports_create(ls_supports **out, int64_t n_rows, int64_t vocab, ls_error *err) {
    ls_supports *s = NULL;
    ls_status status;
    *out = NULL;
    LS_TRY_DONE(ls_array_alloc((void **)&s, 1, sizeof *s, "supports", err));
    s->n_rows = n_rows;
    s->vocab = vocab;
    s->words = ls_support_words(vocab);
    LS_TRY_DONE(ls_array_alloc((void **)&s->at, n_rows, sizeof *s->at, "supports", err));
    LS_TRY_DONE(ls_array_alloc((void **)&s->kept, n_rows, sizeof *s->kept, "supports", err));
    ls_supports_clear(s);
    *out = s;
    s = NULL;
done:
    ls_supports_free(s);
    return status;
}

void ls_supports_free(ls_supports *s) {
    if (s == NULL) return;
    free(s->at);
    free(s->kept);
    free(s->pool);
    free(s);
}

void ls_supports_clear(ls_supports *s) {
    for (int64_t i = 0; i < s->n_rows; i++) s->at[i] = -1;
    s->used = 0;
}

bool ls_supports_has(const ls_supports *s, int64_t row) {
    LS_ASSERT(row >= 0 && row < s->n_rows, "row %lld of %lld", (long long)row, (long long)s->n_rows);
    return s->at[row] >= 0;
}

static int64_t count_bits(const uint32_t *bits, int64_t words) {
    int64_t n = 0;
    for (int64_t w = 0; w < words; w++) n += __builtin_popcount(bits[w]);
    return n;
}

static void list_ids(uint32_t *ids, const uint32_t *bits, int64_t words) {
    for (int64_t w = 0; w < words; w++)
        for (uint32_t word = bits[w]; word != 0; word &= word - 1) *ids++ = (uint32_t)(32 * w + __builtin_ctz(word));
}

static int64_t numbers_of(const ls_supports *s, int64_t kept) { return kept < s->words ? kept : s->words; }

/* Room for a row of so many entries: its numbers are to be written at *out. */
static ls_status begin_row(ls_supports *s, int64_t row, int64_t kept, uint32_t **out, ls_error *err) {
    const int64_t n = numbers_of(s, kept);
    LS_ASSERT(!ls_supports_has(s, row), "row %lld twice", (long long)row);
    LS_TRY(ls_array_grow((void **)&s->pool, &s->cap, s->used + n, (int64_t)sizeof *s->pool, "supports", err));
    *out = s->pool + s->used;
    s->at[row] = s->used;
    s->kept[row] = kept;
    s->used += n;
    return LS_OK;
}

ls_status ls_supports_put(ls_supports *s, int64_t row, const uint32_t *bits, ls_error *err) {
    const int64_t kept = count_bits(bits, s->words);
    uint32_t *numbers;
    LS_TRY(begin_row(s, row, kept, &numbers, err));
    if (kept < s->words)
        list_ids(numbers, bits, s->words);
    else
        memcpy(numbers, bits, (size_t)s->words * sizeof *bits);
    return LS_OK;
}

ls_support_row ls_supports_row(const ls_supports *s, int64_t row) {
    LS_ASSERT(ls_supports_has(s, row), "row %lld is not known", (long long)row);
    return (ls_support_row){s->kept[row], numbers_of(s, s->kept[row]), s->pool + s->at[row]};
}

static bool is_support(const ls_supports *s, const ls_support_row *of) {
    if (of->kept < 0 || of->kept > s->vocab || of->n != numbers_of(s, of->kept)) return false;
    if (of->kept >= s->words) return count_bits(of->numbers, s->words) == of->kept;
    for (int64_t i = 0; i < of->n; i++)
        if (of->numbers[i] >= s->vocab || (i > 0 && of->numbers[i] <= of->numbers[i - 1])) return false;
    return true;
}

ls_status ls_supports_put_row(ls_supports *s, int64_t row, const ls_support_row *of, ls_error *err) {
    uint32_t *numbers;
    if (!is_support(s, of)) return LS_FAIL(err, LS_ERR_FORMAT, "row %lld: its numbers are no support", (long long)row);
    LS_TRY(begin_row(s, row, of->kept, &numbers, err));
    if (of->n > 0) memcpy(numbers, of->numbers, (size_t)of->n * sizeof *numbers);
    return LS_OK;
}

void ls_supports_get(const ls_supports *s, int64_t row, uint32_t *bits) {
    const uint32_t *from = s->pool + s->at[row];
    LS_ASSERT(ls_supports_has(s, row), "row %lld is not known", (long long)row);
    if (s->kept[row] >= s->words) {
        memcpy(bits, from, (size_t)s->words * sizeof *bits);
        return;
    }
    memset(bits, 0, (size_t)s->words * sizeof *bits);
    for (int64_t i = 0; i < s->kept[row]; i++) bits[from[i] / 32] |= UINT32_C(1) << from[i] % 32;
}
