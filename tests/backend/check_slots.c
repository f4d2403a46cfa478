/* State slots of the scan and of the convolution where 32 bits do not reach: a pool of 69,776 slots of 358,400 or
 * 360,448 bytes, 25 GB; and key and value pages of attention, 18 GB. On a GPU the pool is there in full; on a CPU only
 * what is touched. Then the refusals of both ops with state.
 *
 * The program also is its own negative control: linked to a library whose one accessor of slots wraps at 2^32 elements
 * (LS_PLANT_SLOT_U32 in src/op/span.h) it must fail and say so. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>

#include "op/attention.h"
#include "op/backend.h"
#include "refusal.h"
#include "state_case.h"

/* ---- the pool ---- */

/* A slot is a layer's: the bf16 window [3][5120], then the scan's state [5120][16], then what the stride leaves. */
#define DIM 5120
#define STATES 16
#define TAPS 4
#define SLOTS 69776
#define CONV_BYTES ((TAPS - 1) * DIM * 2)
#define APRON 4096 /* bytes of unlisted neighbours that hold BK_PATTERN */

/* Around the first slots whose offsets pass 2^32 elements, and both ends. */
static const int32_t listed[] = {0, 47662, 47663, 47934, 47935, 69775};
#define LISTED BK_COUNT(listed)

typedef struct big_pool {
    bk_run *run;
    uint8_t *base, *expect; /* expect: the listed slots */
    int64_t words, stride;  /* of a slot in elements of four bytes, and in bytes */
    uint8_t background;     /* of slots that no one has touched */
} big_pool;

static bool pool_open(big_pool *pool, bk_run *run, int64_t words) {
    const int64_t bytes = SLOTS * words * 4;
    *pool = (big_pool){run, NULL, NULL, words, words * 4, BK_PATTERN};
    if (run->cuda) {
        pool->base = bk_try_new(run, "pool", bytes, 0);
    } else {
        void *memory =
            mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory != MAP_FAILED) {
            pool->base = memory;
            (void)madvise(memory, (size_t)bytes, MADV_NOHUGEPAGE);
        }
        pool->background = 0;
    }
    if (pool->base == NULL) {
        bk_skip(run, "%.1f GB for the pool are not to be had here", (double)bytes * 1e-9);
        return false;
    }
    pool->expect = bk_alloc(LISTED * pool->stride);
    memset(pool->expect, POISON, (size_t)(LISTED * pool->stride));
    return true;
}

static void pool_close(big_pool *pool) {
    if (!pool->run->cuda) munmap(pool->base, (size_t)(SLOTS * pool->stride));
    free(pool->expect);
}

static uint8_t *slot_at(const big_pool *pool, int64_t i) { return pool->base + (int64_t)listed[i] * pool->stride; }

/* The listed slots as they should be, between aprons. */
static void slots_restore(const big_pool *pool) {
    uint8_t apron[APRON];
    memset(apron, BK_PATTERN, sizeof apron);
    for (int64_t i = 0; i < LISTED; i++) {
        bk_upload(pool->run, slot_at(pool, i), pool->expect + i * pool->stride, pool->stride);
        if (i > 0 && listed[i - 1] != listed[i] - 1) bk_upload(pool->run, slot_at(pool, i) - APRON, apron, APRON);
        if (i + 1 < LISTED && listed[i + 1] != listed[i] + 1)
            bk_upload(pool->run, slot_at(pool, i) + pool->stride, apron, APRON);
    }
}

/* ---- what went wrong ---- */

/* The first slot whose offset in elements reaches the limit. */
static int32_t first_beyond(int64_t words, int64_t limit) {
    int32_t slot = 0;
    while (slot < SLOTS && slot * words < limit) slot++;
    return slot;
}

/* Reads the pattern of wrong slots as the width of an offset. Slot 0 says nothing: its own offset is right, and wrapped
 * offsets of others land in it. */
static void explain(const big_pool *pool, const bool *wrong, char *why) {
    static const struct {
        int64_t elements;
        const char *name;
    } limits[] = {{(int64_t)1 << 32, "2^32"}, {(int64_t)1 << 31, "2^31"}};
    size_t used = 0;
    for (int64_t i = 0; i < LISTED; i++)
        if (wrong[i]) used += (size_t)snprintf(why + used, WHY_MAX - used, "%s%d", used == 0 ? "" : ", ", listed[i]);
    for (int64_t l = 0; l < BK_COUNT(limits); l++) {
        const int32_t first = first_beyond(pool->words, limits[l].elements);
        bool fits = true;
        for (int64_t i = 1; i < LISTED; i++) fits = fits && wrong[i] == (listed[i] >= first);
        if (!fits) continue;
        snprintf(why + used, WHY_MAX - used,
                 ": slots from %d on, %.1f %% of %d: offsets wrap at %s elements (stride %lld)", first,
                 100.0 * (SLOTS - first) / SLOTS, SLOTS, limits[l].name, (long long)pool->words);
        return;
    }
}

/* Every byte of the listed slots. */
static void slots_check(const big_pool *pool, const char *what) {
    uint8_t *got = bk_alloc(pool->stride);
    bool wrong[LISTED], any = false;
    char why[WHY_MAX];
    for (int64_t i = 0; i < LISTED; i++) {
        bk_download(pool->run, got, slot_at(pool, i), pool->stride);
        wrong[i] = memcmp(got, pool->expect + i * pool->stride, (size_t)pool->stride) != 0;
        any = any || wrong[i];
    }
    free(got);
    if (!any) return;
    explain(pool, wrong, why);
    bk_fail(pool->run, "%s: wrong bytes in slots %s", what, why);
}

/* ---- the other slots ---- */

static bool all_are(const uint8_t *bytes, int64_t n, uint8_t byte) {
    return n == 0 || (bytes[0] == byte && memcmp(bytes, bytes + 1, (size_t)n - 1) == 0);
}

/* Whether the bytes [from, to) of a pool on a GPU are all the same. */
static bool range_is_cuda(const big_pool *pool, int64_t from, int64_t to, uint8_t byte) {
    const int64_t piece = 64 << 20;
    uint8_t *host = bk_alloc(piece);
    bool same = true;
    for (; from < to && same; from += piece) {
        const int64_t n = smaller(piece, to - from);
        bk_download(pool->run, host, pool->base + from, n);
        same = all_are(host, n, byte);
    }
    free(host);
    return same;
}

/* The same on a CPU, where pages that were never touched are not looked at. */
static bool range_is_cpu(const big_pool *pool, int64_t from, int64_t to, uint8_t byte) {
    enum { PAGES = 1 << 16 };
    const int64_t page = sysconf(_SC_PAGESIZE);
    static uint8_t resident[PAGES];
    for (int64_t at = from / page * page; at < to; at += PAGES * page) {
        const int64_t end = smaller(at + PAGES * page, round_up(SLOTS * pool->stride, page));
        if (mincore(pool->base + at, (size_t)(end - at), resident) != 0) return false;
        for (int64_t i = 0; i < (end - at) / page; i++) {
            const int64_t low = at + i * page < from ? from : at + i * page, high = smaller(at + (i + 1) * page, to);
            if ((resident[i] & 1) != 0 && low < high && !all_are(pool->base + low, high - low, byte)) return false;
        }
    }
    return true;
}

static bool range_is(const big_pool *pool, int64_t from, int64_t to, uint8_t byte) {
    return pool->run->cuda ? range_is_cuda(pool, from, to, byte) : range_is_cpu(pool, from, to, byte);
}

/* Between listed slots lie two aprons and slots that nobody asked for. */
static void others_check(const big_pool *pool) {
    for (int64_t i = 0; i + 1 < LISTED; i++) {
        const int64_t from = (listed[i] + 1) * pool->stride, to = listed[i + 1] * pool->stride;
        if (from == to) continue;
        if (!range_is(pool, from, from + APRON, BK_PATTERN) || !range_is(pool, to - APRON, to, BK_PATTERN))
            bk_fail(pool->run, "a neighbour of slot %d or %d was written", listed[i], listed[i + 1]);
        if (!pool->run->small && !range_is(pool, from + APRON, to - APRON, pool->background))
            bk_fail(pool->run, "a slot between %d and %d was written", listed[i], listed[i + 1]);
    }
}

/* ---- cases ---- */

/* A prefill from nothing, a prefill that goes on, a decode: each finds the listed slots as they should be. */
static void run_op(big_pool *pool, const problem *p, int64_t offset) {
    static const cut calls[] = {{WHOLE, PACKED, BOUND_EXACT, false, false, 3},
                                {WHOLE, PACKED, BOUND_EXACT, false, true, 1},
                                {WHOLE, PACKED, BOUND_EXACT, false, true, 0}};
    static const char *const names[] = {"prefill", "next chunk", "decode"};
    const ls_pool_view view = {pool->base + offset, pool->stride, SLOTS};
    rig r = rig_in(pool->run, p, &view);
    plan pl = plan_make(p, 1);
    uint8_t *state = bk_alloc(p->state_stride);
    for (int64_t i = 0; i < LISTED; i++) r.slot[i] = listed[i];
    for (int64_t i = 0; i < BK_COUNT(calls); i++) {
        char why[WHY_MAX] = "", what[WHY_MAX];
        snprintf(what, sizeof what, "%s, stride %lld, %s", p->name, (long long)pool->words, names[i]);
        slots_restore(pool);
        if (!drive(&r, &pl, &calls[i], why)) bk_fail(pool->run, "%s: %s", what, why);
        for (int64_t s = 0; s < LISTED; s++) {
            expected_state(pool->run, p, s, pl.done[s], state);
            memcpy(pool->expect + s * pool->stride + offset, state, (size_t)p->state_bytes);
        }
        slots_check(pool, what);
    }
    free(state);
    rig_free(&r);
}

static void slots_of(bk_run *run, int64_t words) {
    static const int64_t length[LISTED] = {6, 5, 4, 8, 7, 4};
    static const conv_shape conv = {DIM, TAPS, X_BF16 | Y_BF16 | STATE_BF16, PLAIN};
    static const scan_shape scan = {DIM, STATES, IN_BF16 | OUT_BF16, PLAIN};
    big_pool pool;
    problem p;
    if (!pool_open(&pool, run, words)) return;
    p = conv_problem(run, &conv, length, LISTED, 1);
    run_op(&pool, &p, 0);
    problem_free(&p);
    p = scan_problem(run, &scan, length, LISTED, 2);
    run_op(&pool, &p, CONV_BYTES);
    problem_free(&p);
    others_check(&pool);
    pool_close(&pool);
}

static void tight_slots(bk_run *run) { slots_of(run, 89600); }
static void padded_slots(bk_run *run) { slots_of(run, 90112); }

/* The explanation is right about every width it can name, and silent where none fits. */
static void explanations(bk_run *run) {
    static const struct {
        int64_t words;
        bool wrong[LISTED];
        const char *text; /* NULL: no width fits */
    } list[] = {
        {89600,
         {true, false, false, false, true, true},
         ": slots from 47935 on, 31.3 % of 69776: offsets wrap at 2^32"},
        {90112, {true, false, true, true, true, true}, ": slots from 47663 on, 31.7 % of 69776: offsets wrap at 2^32"},
        {89600, {false, true, true, true, true, true}, ": slots from 23968 on, 65.7 % of 69776: offsets wrap at 2^31"},
        {89600, {false, false, true, false, true, true}, NULL},
        {90112, {true, false, false, false, false, false}, NULL},
    };
    for (int64_t i = 0; i < BK_COUNT(list); i++) {
        const big_pool pool = {run, NULL, NULL, list[i].words, 4 * list[i].words, 0};
        char why[WHY_MAX];
        explain(&pool, list[i].wrong, why);
        if (strstr(why, list[i].text == NULL ? ": " : list[i].text) == NULL ? list[i].text != NULL
                                                                            : list[i].text == NULL)
            bk_fail(run, "pattern %lld is explained as '%s'", (long long)i, why);
    }
}

/* ---- pages of attention ---- */

#define PAGES 2200001
#define PAGE_TOKENS 16
#define HEAD_DIM 128
#define PAGE_BYTES (2 * HEAD_DIM * PAGE_TOKENS * 2)
#define TOKENS (5 * PAGE_TOKENS)
#define TOKEN_BYTES (HEAD_DIM * 2)

/* The same sequence, as a prompt and its last token once more, in a small pool and in a large one: both give the same
 * outputs and hold the same pages. */
typedef struct page_pool {
    ls_pool_view view;
    int32_t table[TOKENS / PAGE_TOKENS];
    uint8_t out[2][TOKENS * TOKEN_BYTES]; /* of the prompt, of the last token */
    uint8_t pages[TOKENS / PAGE_TOKENS][PAGE_BYTES];
} page_pool;

static bool pages_run(bk_run *run, ls_device *device, page_pool *pool, uint8_t *memory) {
    ls_span spans[2] = {{0, TOKENS, 0, 0, 0}, {TOKENS - 1, 1, TOKENS - 1, 0, 0}};
    uint8_t *const out = memory, *const q = out + sizeof pool->out[0], *const at = q + sizeof pool->out[0];
    bool done = ls_memory_write(device, at, spans, sizeof spans, &run->err) == LS_OK &&
                ls_memory_write(device, at + sizeof spans, pool->table, sizeof pool->table, &run->err) == LS_OK;
    for (int64_t i = 0; i < 2 && done; i++) {
        const ls_attention_args args = {q,
                                        q,
                                        q,
                                        out,
                                        LS_BF16,
                                        HEAD_DIM,
                                        HEAD_DIM,
                                        HEAD_DIM,
                                        1,
                                        1,
                                        HEAD_DIM,
                                        0.1f,
                                        PAGE_TOKENS,
                                        pool->view,
                                        (const ls_span *)(void *)at + i,
                                        1,
                                        (const int32_t *)(void *)(at + sizeof spans),
                                        TOKENS / PAGE_TOKENS,
                                        TOKENS,
                                        false,
                                        0,
                                        LS_PROFILE_EXACT,
                                        NULL,
                                        0};
        done = ls_memory_fill(device, out, BK_PATTERN, sizeof pool->out[0], &run->err) == LS_OK &&
               ls_attention(device, &args, &run->err) == LS_OK &&
               ls_memory_take(device, pool->out[i], out, sizeof pool->out[0], &run->err) == LS_OK;
    }
    for (int64_t i = 0; i < TOKENS / PAGE_TOKENS && done; i++)
        done = ls_memory_take(device, pool->pages[i], pool->view.base + pool->table[i] * (int64_t)PAGE_BYTES,
                              PAGE_BYTES, &run->err) == LS_OK;
    return done;
}

static void attention_pages(bk_run *run) {
    static page_pool few = {.table = {0, 1, 2, 3, 4}};
    static page_pool large = {.table = {2097151, 2097152, 5, 2097153, PAGES - 1}};
    static uint16_t tokens[TOKENS * HEAD_DIM];
    ls_device *device;
    void *pool[2] = {NULL, NULL}, *memory = NULL;
    uint64_t seed = 1;
    for (int64_t i = 0; i < TOKENS * HEAD_DIM; i++) tokens[i] = ls_f32_to_bf16(test_uniform(&seed, -1.0f, 1.0f));
    if ((run->cuda ? ls_device_open_cuda(&device, 0, &run->err)
                   : ls_device_open_cpu(&device, 2, ls_isa_best(), &run->err)) != LS_OK)
        bk_die(run, "device");
    if (ls_memory_reserve(device, &pool[0], PAGES, PAGE_BYTES, "pages", &run->err) != LS_OK) {
        bk_skip(run, "%.1f GB for pages are not to be had here", PAGES * (double)PAGE_BYTES * 1e-9);
    } else {
        few.view.n_entries = TOKENS / PAGE_TOKENS;
        large.view.n_entries = PAGES;
        few.view.stride = large.view.stride = PAGE_BYTES;
        if (ls_memory_alloc(device, &pool[1], few.view.n_entries, PAGE_BYTES, "pages", &run->err) != LS_OK ||
            ls_memory_alloc(device, &memory, 2 * sizeof tokens + 4096, 1, "operands", &run->err) != LS_OK ||
            ls_memory_write(device, (uint8_t *)memory + sizeof tokens, tokens, sizeof tokens, &run->err) != LS_OK)
            bk_die(run, "memory");
        large.view.base = pool[0];
        few.view.base = pool[1];
        if (!pages_run(run, device, &few, memory) || !pages_run(run, device, &large, memory)) bk_die(run, "attention");
        for (int64_t i = 0; i < TOKENS / PAGE_TOKENS; i++)
            if (memcmp(few.pages[i], large.pages[i], PAGE_BYTES) != 0)
                bk_fail(run, "attention: wrong bytes in page %d of %d", large.table[i], PAGES);
        for (int64_t i = 0; i < 2; i++)
            bk_same(run, few.out[i], large.out[i], TOKENS * HEAD_DIM, 2, "attention: %s",
                    i == 0 ? "prompt" : "last token");
    }
    ls_memory_free(device, memory);
    ls_memory_free(device, pool[1]);
    if (pool[0] != NULL) ls_memory_unreserve(device, pool[0], PAGES * (int64_t)PAGE_BYTES);
    ls_device_close(device);
}

/* ---- refusals ---- */

/* A call of four sequences that is right, on a small pool. */
typedef struct small_call {
    rig rig;
    batch batch;
    operands operands;
    plan begun; /* no sequence has: the pool is poison */
} small_call;

/* chunk: WHOLE, or 1 for the decode kernel. */
static void small_call_make(small_call *c, bk_run *run, const problem *p, int64_t chunk) {
    const cut how = {chunk, PACKED, BOUND_EXACT, false, false, 0};
    plan pl = plan_make(p, 1);
    pl.fixed = true;
    memset(c, 0, sizeof *c);
    c->rig = rig_make(run, p);
    c->begun = plan_make(p, 1);
    c->batch = batch_make(p);
    if (!plan_next(&pl, p, &how, c->rig.slot, c->rig.idle_slot, &c->batch)) bk_die(run, "no call");
    c->operands = rig_prepare(&c->rig, &c->rig.image, &c->batch, &how, 1);
}

static void small_call_free(small_call *c) {
    bk_run *run = c->rig.run;
    free(c->batch.source);
    rig_free(&c->rig);
    bk_clear(run);
}

static bool small_call_untouched(void *context, char *why) {
    small_call *c = context;
    image before = c->rig.image;
    before.expect = before.host;
    return image_check(c->rig.run, &before, &c->batch, why) && rig_check_pool(&c->rig, &c->begun, why);
}

/* Spans that are wrong in device memory, in place of span 1; each in a call of its own. */
static void check_spans(refusal *r, small_call *c) {
    const int64_t rows = c->operands.rows, entries = c->rig.pool.n_entries, most = c->operands.span_rows_max;
    ls_span *spans = (ls_span *)(void *)(c->rig.image.host + c->rig.image.sections[0].at);
    const ls_span good[2] = {spans[1], spans[2]};
    const int64_t row = good[0].row;
    const struct {
        ls_span span;
        const char *name; /* of the value; a row and a count are not told apart */
        int64_t value;
    } list[] = {
        {{row, 1, 0, (int32_t)entries, 0}, "slot ", entries},
        {{row, 1, 3, INT32_MAX, 0}, "slot ", INT32_MAX},
        {{row, 1, -1, 1, 0}, "position ", -1},
        {{row, 1, INT64_MIN, 1, 0}, "position ", INT64_MIN},
        {{-1, 1, 0, 1, 0}, "", -1},
        {{-1, 1, 0, -1, 0}, "", -1},
        {{row, -2, 0, 1, 0}, "", -2},
        {{rows, 1, 0, 1, 0}, "", rows},
        {{INT64_MAX, 1, 0, 1, 0}, "", INT64_MAX},
        {{row, INT64_MAX, 0, 1, 0}, "", INT64_MAX},
        {{row, most + 1, 0, 1, 0}, "", most + 1},
    };
    for (int64_t i = 0; i < BK_COUNT(list); i++) {
        char value[60];
        const char *words[] = {"span 1", value};
        snprintf(value, sizeof value, "%s%lld", list[i].name, (long long)list[i].value);
        spans[1] = list[i].span;
        /* A later span that is wrong too: the lowest one is named. */
        if (i % 2 == 1) spans[2].slot = (int32_t)entries;
        image_upload(r->run, &c->rig.image);
        check_fault(r, c->rig.record, words);
        memcpy(spans + 1, good, sizeof good);
    }
    image_upload(r->run, &c->rig.image);
}

static ls_status any_scan(const ls_exec *exec, const void *args, ls_error *err) { return ls_op_scan(exec, args, err); }
static ls_status any_conv1d(const ls_exec *exec, const void *args, ls_error *err) {
    return ls_op_conv1d(exec, args, err);
}

static refusal refusal_of(small_call *c, const char *op, any_op call, const void *args, size_t args_bytes) {
    const refusal r = {.run = c->rig.run,
                       .op = op,
                       .call = call,
                       .args = args,
                       .args_bytes = args_bytes,
                       .workspace_bytes = c->rig.p->workspace(c->rig.p, &c->operands),
                       .untouched = small_call_untouched,
                       .context = c};
    return r;
}

/* What is the same for both ops; after all refusals the sequences run. */
static void check_faults(refusal *r, small_call *c) {
    plan pl = plan_make(c->rig.p, 1);
    if (r->run->cuda) check_workspace(r);
    check_spans(r, c);
    drive_check(&c->rig, &pl, &cuts[0]);
}

static const int64_t short_lengths[] = {5, 7, 2, 3};

static void scan_refusals(bk_run *run) {
    static const spoil list[] = {
        NOT_NULL(ls_scan_args, u),
        NOT_NULL(ls_scan_args, dt_raw),
        NOT_NULL(ls_scan_args, b),
        NOT_NULL(ls_scan_args, cc),
        NOT_NULL(ls_scan_args, out),
        NOT_NULL(ls_scan_args, a2),
        {{"state", "null"}, offsetof(ls_scan_args, state.base), WORD, 0},
        {{"spans", "scan"}, offsetof(ls_scan_args, spans), WORD, 0},
        {{"u", "GPU"}, offsetof(ls_scan_args, u), HOST, 0},
        {{"state", "GPU"}, offsetof(ls_scan_args, state.base), HOST, 0},
        {{"f16", "scan"}, offsetof(ls_scan_args, in_dtype), TYPE, LS_F16},
        {{"f16", "scan"}, offsetof(ls_scan_args, out_dtype), TYPE, LS_F16},
        {{"u", "stride 32"}, offsetof(ls_scan_args, u_stride), WORD, 32},
        {{"dt_raw", "stride 32"}, offsetof(ls_scan_args, dt_stride), WORD, 32},
        {{"b", "stride 4"}, offsetof(ls_scan_args, b_stride), WORD, 4},
        {{"cc", "stride 4"}, offsetof(ls_scan_args, c_stride), WORD, 4},
        {{"z", "stride 32"}, offsetof(ls_scan_args, z_stride), WORD, 32},
        {{"out", "stride 32"}, offsetof(ls_scan_args, out_stride), WORD, 32},
        {{"u", "stride -33"}, offsetof(ls_scan_args, u_stride), WORD, -33},
        FITS(ls_scan_args, "u", u_stride),
        FITS(ls_scan_args, "dt_raw", dt_stride),
        FITS(ls_scan_args, "b", b_stride),
        FITS(ls_scan_args, "cc", c_stride),
        FITS(ls_scan_args, "z", z_stride),
        FITS(ls_scan_args, "out", out_stride),
        FITS(ls_scan_args, "rows", rows),
        FITS(ls_scan_args, "state", state.stride),
        FITS(ls_scan_args, "state", state.n_entries),
        {{"state", "16"}, offsetof(ls_scan_args, state.base), SHIFT, 4},
        {{"state", "stride of 664"}, offsetof(ls_scan_args, state.stride), WORD, 664},
        {{"state", "stride of 656"}, offsetof(ls_scan_args, state.stride), WORD, 656},
        {{"rows", "-1"}, offsetof(ls_scan_args, rows), WORD, -1},
        {{"dim", "0"}, offsetof(ls_scan_args, dim), WORD, 0},
        {{"states", "0"}, offsetof(ls_scan_args, n_states), WORD, 0},
        {{"states", "257"}, offsetof(ls_scan_args, n_states), WORD, 257},
        {{"spans", "-1"}, offsetof(ls_scan_args, n_spans), WORD, -1},
        {{"span", "-1"}, offsetof(ls_scan_args, span_rows_max), WORD, -1},
    };
    static const scan_shape shape = {33, 5, 0, PLAIN};
    problem p = scan_problem(run, &shape, short_lengths, BK_COUNT(short_lengths), 1);
    for (int64_t chunk = 0; chunk < 2; chunk++) {
        small_call c;
        small_call_make(&c, run, &p, chunk);
        const ls_scan_args args = scan_args(&p, &c.operands);
        refusal r = refusal_of(&c, "scan", any_scan, &args, sizeof args);
        check_spoils(&r, list, BK_COUNT(list));
        check_faults(&r, &c);
        small_call_free(&c);
    }
    problem_free(&p);
}

static void conv1d_refusals(bk_run *run) {
    static const spoil list[] = {
        NOT_NULL(ls_conv1d_args, x),
        NOT_NULL(ls_conv1d_args, w),
        NOT_NULL(ls_conv1d_args, y),
        {{"state", "null"}, offsetof(ls_conv1d_args, state.base), WORD, 0},
        {{"spans", "conv1d"}, offsetof(ls_conv1d_args, spans), WORD, 0},
        {{"x", "GPU"}, offsetof(ls_conv1d_args, x), HOST, 0},
        {{"state", "GPU"}, offsetof(ls_conv1d_args, state.base), HOST, 0},
        {{"x f16", "conv1d"}, offsetof(ls_conv1d_args, x_dtype), TYPE, LS_F16},
        {{"y f16", "conv1d"}, offsetof(ls_conv1d_args, y_dtype), TYPE, LS_F16},
        {{"state f16", "conv1d"}, offsetof(ls_conv1d_args, state_dtype), TYPE, LS_F16},
        {{"x", "stride 32"}, offsetof(ls_conv1d_args, x_stride), WORD, 32},
        {{"y", "stride 32"}, offsetof(ls_conv1d_args, y_stride), WORD, 32},
        FITS(ls_conv1d_args, "x", x_stride),
        FITS(ls_conv1d_args, "y", y_stride),
        FITS(ls_conv1d_args, "rows", rows),
        FITS(ls_conv1d_args, "state", state.stride),
        FITS(ls_conv1d_args, "state", state.n_entries),
        {{"state", "aligned"}, offsetof(ls_conv1d_args, state.base), SHIFT, 1},
        {{"state", "stride of 199"}, offsetof(ls_conv1d_args, state.stride), WORD, 199},
        {{"state", "stride of 196"}, offsetof(ls_conv1d_args, state.stride), WORD, 196},
        {{"rows", "-1"}, offsetof(ls_conv1d_args, rows), WORD, -1},
        {{"dim", "0"}, offsetof(ls_conv1d_args, dim), WORD, 0},
        {{"width", "0"}, offsetof(ls_conv1d_args, d_conv), WORD, 0},
        {{"width", "17"}, offsetof(ls_conv1d_args, d_conv), WORD, 17},
        {{"spans", "-1"}, offsetof(ls_conv1d_args, n_spans), WORD, -1},
        {{"span", "-1"}, offsetof(ls_conv1d_args, span_rows_max), WORD, -1},
    };
    static const conv_shape shape = {33, 4, STATE_BF16, PLAIN};
    problem p = conv_problem(run, &shape, short_lengths, BK_COUNT(short_lengths), 1);
    for (int64_t chunk = 0; chunk < 2; chunk++) {
        small_call c;
        small_call_make(&c, run, &p, chunk);
        const ls_conv1d_args args = conv_args(&p, &c.operands);
        refusal r = refusal_of(&c, "conv1d", any_conv1d, &args, sizeof args);
        check_spoils(&r, list, BK_COUNT(list));
        check_faults(&r, &c);
        small_call_free(&c);
    }
    problem_free(&p);
}

int main(int argc, char **argv) {
    static const bk_case cases[] = {
        {"slots of 89,600 elements", tight_slots, BK_ANYWHERE},
        {"slots of 90,112 elements", padded_slots, BK_ANYWHERE},
        {"explanations", explanations, BK_CPU_ONLY},
        {"pages of attention", attention_pages, BK_ANYWHERE},
        {"scan refusals", scan_refusals, BK_ANYWHERE},
        {"conv1d refusals", conv1d_refusals, BK_ANYWHERE},
    };
    return bk_main(argc, argv, cases, BK_COUNT(cases));
}
