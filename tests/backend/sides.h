/* Ops through the device interface, on two devices at once: the reference, which is the CPU, and the device under test:
 * CUDA, or, where a CPU is asked for, the CPU behind a queue. A case makes each buffer on both, makes each call on
 * both, and compares the buffers, bytes around them included, as raw bits:
 *
 *     sides d = sides_open(run);
 *     const sides_buffer x = sides_in(&d, "x", host, bytes), y = sides_out(&d, "y", bytes);
 *     SIDES_CALL(&d, multiply, .x = x.at[s], .y = y.at[s], .n = n);     s is the side: 0 the reference, 1 under test
 *     sides_same(&d, &y, 4, "n %lld", n);                               waits for both
 *     sides_close(&d);
 */
#ifndef LS_TESTS_SIDES_H
#define LS_TESTS_SIDES_H

#include "backend.h"
#include "op/backend.h"

#define SIDES_BUFFERS_MAX 64

/* [guard | bytes | guard] on each side, the guards and what nobody has written being BK_PATTERN. */
typedef struct sides_buffer {
    const char *name;
    void *at[2];
    int64_t bytes;
} sides_buffer;

typedef struct sides {
    bk_run *run;
    ls_device *device[2];
    sides_buffer buffers[SIDES_BUFFERS_MAX];
    int64_t n;
} sides;

static inline sides sides_open(bk_run *run) {
    sides d;
    memset(&d, 0, sizeof d);
    d.run = run;
    if (ls_device_open_cpu(&d.device[0], run->cuda ? 8 : 1, ls_isa_best(), &run->err) != LS_OK)
        bk_die(run, "reference");
    if ((run->cuda ? ls_device_open_cuda(&d.device[1], 0, &run->err)
                   : ls_device_open_deferred(&d.device[1], 2, ls_isa_best(), &run->err)) != LS_OK)
        bk_die(run, "device");
    return d;
}

/* Releases all buffers but the first n. */
static inline void sides_clear_to(sides *d, int64_t n) {
    while (d->n > n) {
        const sides_buffer *b = &d->buffers[--d->n];
        for (int s = 0; s < 2; s++) ls_memory_free(d->device[s], (uint8_t *)b->at[s] - BK_GUARD);
    }
}

static inline void sides_close(sides *d) {
    sides_clear_to(d, 0);
    for (int s = 0; s < 2; s++) ls_device_close(d->device[s]);
}

/* A buffer that starts `offset` bytes after an address aligned to 256; host NULL: all BK_PATTERN. */
static inline sides_buffer sides_put(sides *d, const char *name, const void *host, int64_t bytes, int64_t offset) {
    sides_buffer b = {name, {NULL, NULL}, bytes};
    uint8_t *content = bk_alloc(offset + bytes + 2 * BK_GUARD);
    if (d->n == SIDES_BUFFERS_MAX || offset < 0 || offset >= BK_GUARD) bk_die(d->run, name);
    memset(content, BK_PATTERN, (size_t)(offset + bytes + 2 * BK_GUARD));
    if (host != NULL) memcpy(content + BK_GUARD + offset, host, (size_t)bytes);
    for (int s = 0; s < 2; s++) {
        void *block;
        if (ls_memory_alloc(d->device[s], &block, offset + bytes + 2 * BK_GUARD, 1, name, &d->run->err) != LS_OK ||
            ls_memory_write(d->device[s], block, content, offset + bytes + 2 * BK_GUARD, &d->run->err) != LS_OK)
            bk_die(d->run, name);
        b.at[s] = (uint8_t *)block + BK_GUARD;
    }
    free(content);
    d->buffers[d->n++] = b;
    for (int s = 0; s < 2; s++) b.at[s] = (uint8_t *)b.at[s] + offset;
    return b;
}

static inline sides_buffer sides_in(sides *d, const char *name, const void *host, int64_t bytes) {
    return sides_put(d, name, host, bytes, 0);
}

static inline sides_buffer sides_out(sides *d, const char *name, int64_t bytes) {
    return sides_put(d, name, NULL, bytes, 0);
}

/* The same call on both sides; s stands for the side in the arguments. */
#define SIDES_CALL(d, name, ...)                                                             \
    do {                                                                                     \
        for (int s = 0; s < 2; s++)                                                          \
            if (ls_##name((d)->device[s], &(ls_##name##_args){__VA_ARGS__}, &(d)->run->err)) \
                bk_fail((d)->run, #name ": side %d: %s", s, (d)->run->err.text);             \
    } while (0)

/* Waits for a side; what its calls found wrong. */
static inline ls_status sides_wait(sides *d, int side) { return ls_device_wait(d->device[side], &d->run->err); }

/* The host's copy of a side's bytes, guards included; the caller frees it. */
static inline uint8_t *sides_take(sides *d, const sides_buffer *b, int side) {
    uint8_t *copy = bk_alloc(b->bytes + 2 * BK_GUARD);
    const uint8_t *from = (const uint8_t *)b->at[side] - BK_GUARD;
    if (ls_memory_take(d->device[side], copy, from, b->bytes + 2 * BK_GUARD, &d->run->err) != LS_OK)
        bk_die(d->run, b->name);
    return copy;
}

/* Every NaN of n float32 becomes the same one. */
static inline void sides_one_nan(uint8_t *values, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, values + 4 * i, sizeof bits);
        if ((bits & 0x7FFFFFFFu) > 0x7F800000u) bits = 0x7FC00000u;
        memcpy(values + 4 * i, &bits, sizeof bits);
    }
}

/* Fails unless both sides hold the same elements of elem_bytes and whole guards. any_nan: elements are float32, of
 * which a NaN is as good as another. */
static inline bool sides_compare(sides *d, const sides_buffer *b, int64_t elem_bytes, bool any_nan, const char *what) {
    uint8_t *side[2];
    bool same, guarded = true;
    for (int s = 0; s < 2; s++) {
        side[s] = sides_take(d, b, s);
        for (int64_t i = 0; i < BK_GUARD; i++)
            guarded = guarded && side[s][i] == BK_PATTERN && side[s][BK_GUARD + b->bytes + i] == BK_PATTERN;
        if (any_nan) sides_one_nan(side[s] + BK_GUARD, b->bytes / 4);
    }
    if (!guarded) bk_fail(d->run, "%s: bytes around %s were written", what, b->name);
    same = bk_same(d->run, side[0] + BK_GUARD, side[1] + BK_GUARD, b->bytes / elem_bytes, elem_bytes, "%s: %s", what,
                   b->name);
    for (int s = 0; s < 2; s++) free(side[s]);
    return same && guarded;
}

/* The same in raw bits. */
static inline bool __attribute__((format(printf, 4, 5)))
sides_same(sides *d, const sides_buffer *b, int64_t elem_bytes, const char *format, ...) {
    char what[192];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return sides_compare(d, b, elem_bytes, false, what);
}

/* A call that its own status or the next wait must refuse, in a sentence that holds every one of the words; the device
 * must work afterwards. */
static inline void sides_refused(sides *d, const char *what, int side, ls_status status, const char *const *words,
                                 int64_t n) {
    if (status == LS_OK) status = sides_wait(d, side);
    if (status == LS_OK) bk_fail(d->run, "%s: side %d did not refuse the call", what, side);
    for (int64_t i = 0; i < n && status != LS_OK; i++)
        if (strstr(d->run->err.text, words[i]) == NULL)
            bk_fail(d->run, "%s: side %d: '%s' does not say '%s'", what, side, d->run->err.text, words[i]);
    if (sides_wait(d, side) != LS_OK) bk_fail(d->run, "%s: side %d: %s", what, side, d->run->err.text);
}

/* words: an array of strings. */
#define SIDES_REFUSED(d, what, words, name, ...)                                                                       \
    do {                                                                                                               \
        for (int s = 0; s < 2; s++)                                                                                    \
            sides_refused((d), (what), s, ls_##name((d)->device[s], &(ls_##name##_args){__VA_ARGS__}, &(d)->run->err), \
                          (words), BK_COUNT(words));                                                                   \
    } while (0)

#endif
