/* The memory of templates; owns its blocks. */
#include "template/template_arena.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

enum { BLOCK_BYTES = 1 << 14, ALIGN_BYTES = 16 };

struct ls_tpl_block {
    struct ls_tpl_block *next;
    int64_t used, cap;
};

#define HEADER_BYTES ((int64_t)((sizeof(struct ls_tpl_block) + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES))

static ls_status add_block(ls_tpl_run *run, int64_t bytes) {
    ls_tpl_arena *arena = run->arena;
    const int64_t cap = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
    struct ls_tpl_block *block;
    int64_t total;
    if (!ls_add_i64(arena->bytes, cap, &total) || total > arena->bytes_max)
        return ls_tpl_fail(run, LS_ERR_CAPACITY, "the template needs more than %lld bytes of memory",
                           (long long)arena->bytes_max);
    block = calloc(1, (size_t)(HEADER_BYTES + cap));
    if (block == NULL) return ls_tpl_fail(run, LS_ERR_NOMEM, "cannot allocate %lld bytes", (long long)cap);
    block->next = arena->blocks;
    block->cap = cap;
    arena->blocks = block;
    arena->bytes = total;
    return LS_OK;
}

ls_status ls_tpl_alloc(ls_tpl_run *run, void **out, int64_t count, int64_t elem_bytes) {
    int64_t bytes;
    struct ls_tpl_block *block = run->arena->blocks;
    *out = NULL;
    if (!ls_mul_i64(count, elem_bytes, &bytes) || bytes > INT64_MAX / 4)
        return ls_tpl_fail(run, LS_ERR_CAPACITY, "%lld values of %lld bytes do not fit", (long long)count,
                           (long long)elem_bytes);
    bytes = (bytes + ALIGN_BYTES) / ALIGN_BYTES * ALIGN_BYTES; /* one byte more at least: never two at one place */
    if (block == NULL || block->cap - block->used < bytes) {
        LS_TRY(add_block(run, bytes));
        block = run->arena->blocks;
    }
    *out = (char *)block + HEADER_BYTES + block->used;
    block->used += bytes;
    return LS_OK;
}

void ls_tpl_arena_deinit(ls_tpl_arena *arena) {
    while (arena->blocks != NULL) {
        struct ls_tpl_block *next = arena->blocks->next;
        free(arena->blocks);
        arena->blocks = next;
    }
    arena->bytes = 0;
}

ls_status ls_tpl_grow(ls_tpl_run *run, void **array, int64_t *cap, int64_t need, int64_t elem_bytes) {
    int64_t next = *cap < 8 ? 8 : *cap;
    void *grown;
    if (need <= *cap) return LS_OK;
    while (next < need)
        if (!ls_mul_i64(next, 2, &next)) return ls_tpl_fail(run, LS_ERR_CAPACITY, "%lld values", (long long)need);
    LS_TRY(ls_tpl_alloc(run, &grown, next, elem_bytes));
    if (*cap > 0) memcpy(grown, *array, (size_t)(*cap * elem_bytes));
    *array = grown;
    *cap = next;
    return LS_OK;
}

ls_status ls_tpl_fail(ls_tpl_run *run, ls_status status, const char *format, ...) {
    char sentence[400];
    va_list ap;
    va_start(ap, format);
    vsnprintf(sentence, sizeof sentence, format, ap);
    va_end(ap);
    return LS_FAIL(run->err, status, "%.200s: line %d: %s", run->name, run->line, sentence);
}

ls_status ls_tpl_step(ls_tpl_run *run, int64_t steps) {
    run->steps += steps;
    if (run->steps <= run->steps_max) return LS_OK;
    return ls_tpl_fail(run, LS_ERR_CAPACITY, "the template takes more than %lld steps", (long long)run->steps_max);
}

ls_status ls_tpl_append(ls_tpl_run *run, ls_tpl_text *text, const char *data, int64_t bytes) {
    int64_t need;
    if (bytes == 0) return LS_OK;
    if (!ls_add_i64(text->bytes, bytes, &need))
        return ls_tpl_fail(run, LS_ERR_CAPACITY, "a text of %lld bytes", (long long)bytes);
    LS_TRY(ls_tpl_step(run, bytes / 64));
    LS_TRY(ls_tpl_grow(run, (void **)&text->data, &text->cap, need, 1));
    memcpy(text->data + text->bytes, data, (size_t)bytes);
    text->bytes = need;
    return LS_OK;
}

ls_status ls_tpl_append_string(ls_tpl_run *run, ls_tpl_text *text, const char *string) {
    return ls_tpl_append(run, text, string, (int64_t)strlen(string));
}

ls_status ls_tpl_append_code(ls_tpl_run *run, ls_tpl_text *text, int32_t code) {
    uint8_t encoded[4];
    const int64_t n = ls_utf8_encode(code, encoded);
    return ls_tpl_append(run, text, (const char *)encoded, n);
}
