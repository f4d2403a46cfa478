/* The mixture of experts through the device interface: routing, places, the combination and their gradients, on the
 * reference and on the device under test. */
#include <math.h>

#include "num/round.h"
#include "op/moe_backward.h"
#include "op/moe_sigmoid.h"
#include "sides.h"

/* ---- values ---- */

typedef float maker(uint64_t *seed);

static float plain(uint64_t *seed) { return test_uniform(seed, -2.0f, 2.0f); }
static float wide(uint64_t *seed) { return test_uniform(seed, -90.0f, 90.0f); }
/* A few levels only, both zeros among them. */
static float level(uint64_t *seed) {
    static const float levels[] = {-0.0f, 0.0f, 0.5f, -1.0f, 1.0f, 0.5000001f};
    return levels[test_random(seed) % 6];
}
/* What cancels, overflows, is tiny or no number. */
static float special(uint64_t *seed) {
    static const float values[] = {-0.0f,  0.0f,  1e-45f, -1e-39f,   0x1p-126f, 3e38f,
                                   -3e38f, 1e20f, -1e20f, -INFINITY, INFINITY,  NAN};
    const uint64_t choice = test_random(seed) % 40;
    return choice < 12 ? values[choice] : plain(seed);
}
/* The same without infinities and NaN, so that all bits are promised. */
static float bounded(uint64_t *seed) {
    const float x = special(seed);
    return isfinite(x) ? x : 1e-40f;
}

static float *floats(int64_t n, maker *make, uint64_t seed) {
    float *x = bk_alloc(n * 4);
    seed = seed * 2 + 1;
    for (int64_t i = 0; i < n; i++) x[i] = make(&seed);
    return x;
}

static sides_buffer put_floats(sides *d, const char *name, int64_t n, maker *make, uint64_t seed, int64_t offset) {
    float *host = floats(n, make, seed);
    const sides_buffer b = sides_put(d, name, host, n * 4, offset);
    free(host);
    return b;
}

/* Both sides hold the same floats, where NaN is NaN: which one it is, the contract leaves open. */
static void same_floats(sides *d, const sides_buffer *b, const char *what, int64_t i) {
    uint8_t *side[2];
    for (int s = 0; s < 2; s++) {
        side[s] = sides_take(d, b, s);
        for (int64_t at = 0; at < b->bytes; at += 4) {
            float x;
            memcpy(&x, side[s] + BK_GUARD + at, 4);
            x = ls_canonical(x);
            memcpy(side[s] + BK_GUARD + at, &x, 4);
        }
    }
    bk_same(d->run, side[0], side[1], b->bytes + 2 * BK_GUARD, 1, "%s %lld: %s", what, (long long)i, b->name);
    for (int s = 0; s < 2; s++) free(side[s]);
}

/* ---- routing ---- */

typedef struct shape {
    int64_t rows, n, top_k;
} shape;

static const shape shapes[] = {{1, 1, 1},   {3, 2, 1},    {33, 3, 2},   {31, 8, 2},   {2, 16, 16},  {1001, 16, 2},
                               {5, 31, 31}, {7, 33, 5},   {130, 64, 8}, {9, 255, 3},  {3, 1024, 7}, {2, 1024, 1024},
                               {0, 16, 2},  {40, 100, 1}, {6, 160, 6},  {257, 17, 4}, {8192, 16, 2}};

static void routes(bk_run *run) {
    static maker *const makers[] = {plain, level, wide, special};
    for (int64_t i = 0; i < BK_COUNT(shapes) * BK_COUNT(makers); i++) {
        const shape p = shapes[i / BK_COUNT(makers)];
        if (run->small && p.rows * p.n > 2000) continue;
        sides d = sides_open(run);
        const sides_buffer logits =
            put_floats(&d, "logits", p.rows * p.n, makers[i % BK_COUNT(makers)], (uint64_t)i, i % 3 * 4);
        const sides_buffer expert = sides_put(&d, "expert", NULL, p.rows * p.top_k * 4, i % 2 * 4);
        const sides_buffer weight = sides_put(&d, "weight", NULL, p.rows * p.top_k * 4, i % 4 * 4);
        for (int again = 0; again < 2; again++) {
            SIDES_CALL(&d, moe_route, .logits = logits.at[s], .rows = p.rows, .n_experts = p.n, .top_k = p.top_k,
                       .expert = expert.at[s], .weight = weight.at[s]);
            sides_same(&d, &expert, 4, "routing %lld", (long long)i);
            sides_same(&d, &weight, 4, "routing %lld", (long long)i);
            SIDES_CALL(&d, moe_reweigh, .logits = logits.at[s], .rows = p.rows, .n_experts = p.n, .top_k = p.top_k,
                       .expert = expert.at[s], .weight = weight.at[s]);
            same_floats(&d, &weight, "weights of the chosen", i);
        }
        sides_close(&d);
    }
}

/* Choices as a routing makes them: ascending, with the chance that leaves top_k of them. kind 1: the same for all. */
static int32_t *choices(shape p, int kind, uint64_t seed) {
    int32_t *expert = bk_alloc(p.rows * p.top_k * 4);
    seed = seed * 2 + 1;
    for (int64_t r = 0; r < p.rows; r++) {
        int64_t left = p.top_k;
        for (int64_t e = 0; e < p.n && left > 0; e++)
            if (p.n - e == left || (kind == 0 && (int64_t)(test_random(&seed) % (uint64_t)(p.n - e)) < left))
                expert[r * p.top_k + p.top_k - left--] = (int32_t)e;
    }
    return expert;
}

static void routes_backward(bk_run *run) {
    static maker *const makers[] = {plain, wide, special, level};
    for (int64_t i = 0; i < BK_COUNT(shapes) * BK_COUNT(makers); i++) {
        const shape p = shapes[i / BK_COUNT(makers)];
        if (run->small && p.rows * p.n > 2000) continue;
        sides d = sides_open(run);
        maker *make = makers[i % BK_COUNT(makers)];
        int32_t *choice = choices(p, 0, (uint64_t)i);
        const sides_buffer logits = put_floats(&d, "logits", p.rows * p.n, make, (uint64_t)i, i % 3 * 4);
        const sides_buffer d_weight =
            put_floats(&d, "d_weight", p.rows * p.top_k, make == special ? special : bounded, (uint64_t)i + 1, 4);
        const sides_buffer expert = sides_put(&d, "expert", choice, p.rows * p.top_k * 4, i % 2 * 4);
        const sides_buffer dlogits = sides_put(&d, "dlogits", NULL, p.rows * p.n * 4, i % 4 * 4);
        for (int again = 0; again < 2; again++) {
            SIDES_CALL(&d, moe_route_backward, .logits = logits.at[s], .rows = p.rows, .n_experts = p.n,
                       .top_k = p.top_k, .expert = expert.at[s], .d_weight = d_weight.at[s], .dlogits = dlogits.at[s]);
            same_floats(&d, &dlogits, "routing", i);
            SIDES_CALL(&d, moe_reweigh_backward, .logits = logits.at[s], .rows = p.rows, .n_experts = p.n,
                       .top_k = p.top_k, .expert = expert.at[s], .d_weight = d_weight.at[s], .dlogits = dlogits.at[s]);
            same_floats(&d, &dlogits, "weights of the chosen", i);
        }
        free(choice);
        sides_close(&d);
    }
}

/* ---- routing by sigmoids ---- */

/* Groups of a routing over n experts, of which top_k are chosen; and those that stay. */
static void grouped(const shape *p, int64_t *groups, int64_t *top) {
    *groups = p->n % 16 == 0 ? 8 : p->n % 3 == 0 && p->n > 3 ? 3 : 1;
    *top = 1;
    while (*top * (p->n / *groups) < p->top_k) ++*top;
}

static void sigmoid_routes(bk_run *run) {
    static maker *const makers[] = {plain, level, wide, special};
    for (int64_t i = 0; i < BK_COUNT(shapes) * BK_COUNT(makers); i++) {
        const shape p = shapes[i / BK_COUNT(makers)];
        const bool normalised = i % 3 != 0;
        maker *const make = makers[i % BK_COUNT(makers)];
        int64_t groups, top;
        if (run->small && p.rows * p.n > 2000) continue;
        grouped(&p, &groups, &top);
        sides d = sides_open(run);
        const sides_buffer logits = put_floats(&d, "logits", p.rows * p.n, make, (uint64_t)i, i % 3 * 4);
        const sides_buffer bias = put_floats(&d, "bias", p.n, make == level ? level : bounded, (uint64_t)i + 1, 4);
        const sides_buffer d_weight = put_floats(&d, "d_weight", p.rows * p.top_k, bounded, (uint64_t)i + 2, 0);
        const sides_buffer expert = sides_put(&d, "expert", NULL, p.rows * p.top_k * 4, i % 2 * 4);
        const sides_buffer weight = sides_put(&d, "weight", NULL, p.rows * p.top_k * 4, i % 4 * 4);
        const sides_buffer dlogits = sides_put(&d, "dlogits", NULL, p.rows * p.n * 4, i % 4 * 4);
        for (int again = 0; again < 2; again++) {
            SIDES_CALL(&d, moe_sigmoid_route, .logits = logits.at[s], .bias = bias.at[s], .rows = p.rows,
                       .n_experts = p.n, .top_k = p.top_k, .n_groups = groups, .top_groups = top,
                       .normalised = normalised, .scale = 2.5f, .expert = expert.at[s], .weight = weight.at[s]);
            sides_same(&d, &expert, 4, "routing by sigmoids %lld", (long long)i);
            same_floats(&d, &weight, "routing by sigmoids", i);
            SIDES_CALL(&d, moe_sigmoid_route_backward, .logits = logits.at[s], .rows = p.rows, .n_experts = p.n,
                       .top_k = p.top_k, .expert = expert.at[s], .d_weight = d_weight.at[s], .normalised = normalised,
                       .scale = 2.5f, .dlogits = dlogits.at[s]);
            same_floats(&d, &dlogits, "routing by sigmoids", i);
        }
        sides_close(&d);
    }
}

/* ---- places ---- */

typedef struct places {
    sides_buffer expert, pick, row, place, offsets;
} places;

static places put_places(sides *d, shape p, const int32_t *choice) {
    const int64_t n = p.rows * p.top_k;
    const places b = {sides_put(d, "expert", choice, n * 4, 4), sides_put(d, "pick", NULL, n * 8, 8),
                      sides_out(d, "row", n * 8), sides_put(d, "place", NULL, n * 8, 8),
                      sides_put(d, "offsets", NULL, (p.n + 1) * 8, 8)};
    return b;
}

static void same_places(sides *d, const places *b, int64_t i) {
    const sides_buffer *const all[] = {&b->expert, &b->pick, &b->row, &b->place, &b->offsets};
    for (int64_t k = 0; k < BK_COUNT(all); k++) sides_same(d, all[k], k == 0 ? 4 : 8, "places %lld", (long long)i);
}

#define PLACES(p, b)                                                                                              \
    .expert = (b).expert.at[s], .rows = (p).rows, .n_experts = (p).n, .top_k = (p).top_k, .pick = (b).pick.at[s], \
    .row = (b).row.at[s], .place = (b).place.at[s], .offsets = (b).offsets.at[s]

static void picks_are_placed(bk_run *run) {
    for (int64_t i = 0; i < 2 * BK_COUNT(shapes) + 2; i++) {
        const shape large = {bk_size(run, 100, 5000, 100003), i % 2 == 0 ? 1024 : 16, 3};
        const shape p = i < 2 * BK_COUNT(shapes) ? shapes[i / 2] : large;
        if (run->small && p.rows * p.n > 2000 && i < 2 * BK_COUNT(shapes)) continue;
        sides d = sides_open(run);
        int32_t *choice = choices(p, (int)(i % 2), (uint64_t)i);
        const places b = put_places(&d, p, choice);
        for (int again = 0; again < 2; again++) {
            SIDES_CALL(&d, moe_place, PLACES(p, b));
            same_places(&d, &b, i);
        }
        free(choice);
        sides_close(&d);
    }
}

/* The lowest bad pick is named, nothing is written, and the device works. */
static void bad_picks_are_named(bk_run *run) {
    static const shape p = {700, 6, 2};
    static const int32_t bad[] = {-1, 6, INT32_MIN, INT32_MAX};
    for (int64_t i = 0; i < BK_COUNT(bad); i++) {
        const int64_t at = i * 420 + 3;
        char row[40], value[40];
        const char *words[] = {"moe_place", row, value, "is not in 0..5"};
        sides d = sides_open(run);
        int32_t *choice = choices(p, 0, 3);
        const int32_t good = choice[at];
        choice[at] = bad[i];
        choice[p.rows * p.top_k - 1] = 77;
        snprintf(row, sizeof row, "row %lld", (long long)(at / 2));
        snprintf(value, sizeof value, "expert %d", bad[i]);
        const places b = put_places(&d, p, choice);
        SIDES_REFUSED(&d, "a bad expert", words, moe_place, PLACES(p, b));
        same_places(&d, &b, i);
        choice[at] = good;
        choice[p.rows * p.top_k - 1] = 5;
        for (int s = 0; s < 2; s++)
            if (ls_memory_write(d.device[s], b.expert.at[s], choice, p.rows * p.top_k * 4, &run->err) != LS_OK)
                bk_fail(run, "write: %s", run->err.text);
        SIDES_CALL(&d, moe_place, PLACES(p, b));
        same_places(&d, &b, i);
        free(choice);
        sides_close(&d);
    }
}

/* An expert that does not exist, and one that does not ascend. */
static void bad_choices_are_named(bk_run *run) {
    static const shape p = {500, 6, 2};
    static const struct {
        int32_t first, second;
        int64_t row;
        const char *words[3];
    } bad[] = {{-1, 2, 0, {"row 0", "expert -1", "is not in 0..5"}},
               {1, 6, 499, {"row 499", "expert 6", "is not in"}},
               {3, 3, 77, {"row 77", "expert 3", "moe_route_backward"}},
               {4, 1, 300, {"row 300", "expert 1", "moe_route_backward"}}};
    for (int64_t i = 0; i < BK_COUNT(bad); i++) {
        sides d = sides_open(run);
        int32_t *choice = choices(p, 0, 3);
        choice[2 * bad[i].row] = bad[i].first;
        choice[2 * bad[i].row + 1] = bad[i].second;
        const sides_buffer logits = put_floats(&d, "logits", p.rows * p.n, plain, 1, 0);
        const sides_buffer d_weight = put_floats(&d, "d_weight", p.rows * p.top_k, plain, 2, 0);
        const sides_buffer expert = sides_in(&d, "expert", choice, p.rows * p.top_k * 4);
        const sides_buffer dlogits = sides_out(&d, "dlogits", p.rows * p.n * 4);
        SIDES_REFUSED(&d, "a bad choice", bad[i].words, moe_route_backward, .logits = logits.at[s], .rows = p.rows,
                      .n_experts = p.n, .top_k = p.top_k, .expert = expert.at[s], .d_weight = d_weight.at[s],
                      .dlogits = dlogits.at[s]);
        sides_same(&d, &dlogits, 4, "bad choice %lld", (long long)i);
        SIDES_CALL(&d, moe_route_backward, .logits = logits.at[s], .rows = bad[i].row, .n_experts = p.n,
                   .top_k = p.top_k, .expert = expert.at[s], .d_weight = d_weight.at[s], .dlogits = dlogits.at[s]);
        same_floats(&d, &dlogits, "rows before the bad choice", i);
        free(choice);
        sides_close(&d);
    }
}

/* ---- combination ---- */

static const int64_t dims[] = {1, 2, 3, 4, 7, 8, 31, 33, 64, 255, 256, 257, 600, 1000, 1024, 1028, 2560, 4099};

/* n of all rows, each once, in an order of their own; `all` is no multiple of 7. */
static int64_t *distinct_rows(int64_t n, int64_t all) {
    int64_t *rows = bk_alloc(n * 8);
    for (int64_t i = 0; i < n; i++) rows[i] = (i * 7 + 3) % all;
    return rows;
}

/* Two experts' ranges, one after the other, then all of them at once. */
static void combines(bk_run *run) {
    static maker *const makers[] = {plain, bounded, special};
    static const int64_t counts[] = {1, 3, 20, 61};
    for (int64_t i = 0; i < BK_COUNT(dims) * 6; i++) {
        const int64_t dim = dims[i / 6], n = i == 0 ? 0 : counts[i % BK_COUNT(counts)], all = 71;
        const int64_t ends[] = {0, n / 3, n / 3, n};
        if (run->small && dim > 300) continue;
        sides d = sides_open(run);
        maker *make = makers[i % 3];
        int64_t *host_rows = distinct_rows(n, all);
        const sides_buffer y = put_floats(&d, "y", n * dim, make, (uint64_t)i, i % 2 * 4);
        const sides_buffer weight = put_floats(&d, "weight", n, make, (uint64_t)i + 1, 4);
        const sides_buffer acc = put_floats(&d, "acc", all * dim, make, (uint64_t)i + 2, i / 2 % 2 * 8);
        const sides_buffer rows = sides_put(&d, "rows", host_rows, n * 8, 8);
        const sides_buffer range = sides_in(&d, "range", ends, (int64_t)sizeof ends);
        for (int e = 0; e < 4; e++) {
            SIDES_CALL(&d, moe_combine, .y = y.at[s], .rows = rows.at[s], .weight = weight.at[s], .acc = acc.at[s],
                       .n = n, .dim = dim, .range = e < 3 ? (const int64_t *)range.at[s] + e : NULL);
            same_floats(&d, &acc, "combination", i * 4 + e);
        }
        free(host_rows);
        sides_close(&d);
    }
}

/* As many rows as blocks must take in turn. */
static void combines_many(bk_run *run) {
    const int64_t n = bk_size(run, 71, 3000, 20011), dim = bk_size(run, 33, 260, 1030);
    const int64_t ends[] = {1, n - 1};
    for (int unaligned = 0; unaligned < 2; unaligned++) {
        sides d = sides_open(run);
        int64_t *host_rows = distinct_rows(n, n);
        const sides_buffer y = put_floats(&d, "y", n * dim, plain, 1, unaligned * 4);
        const sides_buffer weight = put_floats(&d, "weight", n, plain, 2, 0);
        const sides_buffer acc = put_floats(&d, "acc", n * dim, plain, 3, 0);
        const sides_buffer rows = sides_in(&d, "rows", host_rows, n * 8);
        const sides_buffer range = sides_in(&d, "range", ends, (int64_t)sizeof ends);
        SIDES_CALL(&d, moe_combine, .y = y.at[s], .rows = rows.at[s], .weight = weight.at[s], .acc = acc.at[s], .n = n,
                   .dim = dim, .range = range.at[s]);
        sides_same(&d, &acc, 4, "many rows");
        free(host_rows);
        sides_close(&d);
    }
}

static void bad_ranges_are_named(bk_run *run) {
    enum { N = 40, DIM = 24 };
    static const struct {
        int64_t range[2], n;
        const char *words[2];
    } bad[] = {
        {{3, 41}, N, {"moe_combine", "rows 3 to 41 of 40"}}, {{-1, 4}, N, {"moe_combine", "rows -1 to 4 of 40"}},
        {{7, 6}, N, {"moe_combine", "rows 7 to 6 of 40"}},   {{41, 41}, N, {"moe_combine", "rows 41 to 41 of 40"}},
        {{0, 1}, 0, {"moe_combine", "rows 0 to 1 of 0"}},    {{INT64_MIN, INT64_MAX}, N, {"moe_combine", "of 40"}}};
    for (int64_t i = 0; i < BK_COUNT(bad); i++) {
        sides d = sides_open(run);
        int64_t *host_rows = distinct_rows(N, N + 1);
        const sides_buffer y = put_floats(&d, "y", N * DIM, plain, 1, 0);
        const sides_buffer weight = put_floats(&d, "weight", N, plain, 2, 0);
        const sides_buffer acc = put_floats(&d, "acc", (N + 1) * DIM, plain, 3, 0);
        const sides_buffer rows = sides_in(&d, "rows", host_rows, N * 8);
        const sides_buffer range = sides_in(&d, "range", bad[i].range, (int64_t)sizeof bad[i].range);
#define COMBINE(which, count) \
    .y = y.at[s], .rows = rows.at[s], .weight = weight.at[s], .acc = acc.at[s], .n = (count), .dim = DIM, .range = which
        SIDES_REFUSED(&d, "a bad range", bad[i].words, moe_combine, COMBINE(range.at[s], bad[i].n));
        sides_same(&d, &acc, 4, "bad range %lld", (long long)i);
        SIDES_CALL(&d, moe_combine, COMBINE(NULL, N));
        sides_same(&d, &acc, 4, "after a bad range %lld", (long long)i);
#undef COMBINE
        free(host_rows);
        sides_close(&d);
    }
}

/* dy of its own, and in the place of y. */
static void combines_backward(bk_run *run) {
    static maker *const makers[] = {plain, bounded, special};
    static const int64_t counts[] = {1, 3, 20, 61};
    for (int64_t i = 0; i < BK_COUNT(dims) * 6; i++) {
        const int64_t dim = dims[i / 6], n = i == 0 ? 0 : counts[i % BK_COUNT(counts)], all = 23;
        if (run->small && dim > 300) continue;
        sides d = sides_open(run);
        maker *make = makers[i % 3];
        int64_t *host_rows = distinct_rows(n, all);
        const sides_buffer y = put_floats(&d, "y", n * dim, make, (uint64_t)i, i % 2 * 4);
        const sides_buffer weight = put_floats(&d, "weight", n, make, (uint64_t)i + 1, 4);
        const sides_buffer dacc = put_floats(&d, "dacc", all * dim, make, (uint64_t)i + 2, i / 2 % 2 * 16);
        const sides_buffer rows = sides_put(&d, "rows", host_rows, n * 8, 8);
        const sides_buffer dy = sides_put(&d, "dy", NULL, n * dim * 4, i / 4 % 2 * 4);
        const sides_buffer dweight = sides_put(&d, "dweight", NULL, n * 4, 4);
        for (int in_place = 0; in_place < 2; in_place++) {
            SIDES_CALL(&d, moe_combine_backward, .y = y.at[s], .rows = rows.at[s], .weight = weight.at[s],
                       .dacc = dacc.at[s], .dy = in_place ? y.at[s] : dy.at[s], .dweight = dweight.at[s], .n = n,
                       .dim = dim, .acc_rows = all);
            same_floats(&d, &dy, "combination", i);
            same_floats(&d, &y, "combination", i);
            same_floats(&d, &dweight, "combination", i);
        }
        free(host_rows);
        sides_close(&d);
    }
}

static void bad_rows_are_named(bk_run *run) {
    enum { N = 1300, DIM = 8, ALL = 9 };
    static const struct {
        int64_t at, row;
        const char *words[3];
    } bad[] = {{0, 9, {"row 9", "entry 0", "is not in 0..8"}},
               {1299, -1, {"row -1", "entry 1299", "is not in 0..8"}},
               {600, INT64_MAX, {"row 9223372036854775807", "entry 600", "is not in 0..8"}}};
    for (int64_t i = 0; i < BK_COUNT(bad); i++) {
        sides d = sides_open(run);
        int64_t *host_rows = distinct_rows(N, ALL);
        const sides_buffer y = put_floats(&d, "y", N * DIM, plain, 1, 0);
        const sides_buffer weight = put_floats(&d, "weight", N, plain, 2, 0);
        const sides_buffer dacc = put_floats(&d, "dacc", ALL * DIM, plain, 3, 0);
        const sides_buffer dweight = sides_out(&d, "dweight", N * 4);
        host_rows[bad[i].at] = bad[i].row;
        host_rows[N - 1] = bad[i].at == N - 1 ? bad[i].row : -5;
        const sides_buffer rows = sides_in(&d, "rows", host_rows, N * 8);
        SIDES_REFUSED(&d, "a bad row", bad[i].words, moe_combine_backward, .y = y.at[s], .rows = rows.at[s],
                      .weight = weight.at[s], .dacc = dacc.at[s], .dy = y.at[s], .dweight = dweight.at[s], .n = N,
                      .dim = DIM, .acc_rows = ALL);
        sides_same(&d, &y, 4, "bad row %lld", (long long)i);
        sides_same(&d, &dweight, 4, "bad row %lld", (long long)i);
        SIDES_CALL(&d, moe_combine_backward, .y = y.at[s], .rows = (int64_t *)rows.at[s] + 1, .weight = weight.at[s],
                   .dacc = dacc.at[s], .dy = y.at[s], .dweight = dweight.at[s], .n = 500, .dim = DIM, .acc_rows = ALL);
        sides_same(&d, &y, 4, "after a bad row %lld", (long long)i);
        free(host_rows);
        sides_close(&d);
    }
}

/* A layer as the model calls it, with places and ranges that only the device knows. */
static void layer(bk_run *run) {
    const shape p = {bk_size(run, 9, 200, 3000), 16, 2};
    const int64_t picks = p.rows * p.top_k, dim = 96;
    sides d = sides_open(run);
    float *zeros = bk_alloc(p.rows * dim * 4);
    memset(zeros, 0, (size_t)(p.rows * dim * 4));
    const sides_buffer logits = put_floats(&d, "logits", p.rows * p.n, plain, 1, 0);
    const sides_buffer y = put_floats(&d, "y", picks * dim, plain, 2, 0);
    const sides_buffer weight = sides_out(&d, "weight", picks * 4);
    const sides_buffer acc = sides_in(&d, "acc", zeros, p.rows * dim * 4);
    const places b = put_places(&d, p, NULL);
    SIDES_CALL(&d, moe_route, .logits = logits.at[s], .rows = p.rows, .n_experts = p.n, .top_k = p.top_k,
               .expert = b.expert.at[s], .weight = weight.at[s]);
    SIDES_CALL(&d, moe_place, PLACES(p, b));
    for (int64_t e = 0; e < p.n; e++)
        SIDES_CALL(&d, moe_combine, .y = y.at[s], .rows = b.row.at[s], .weight = weight.at[s], .acc = acc.at[s],
                   .n = picks, .dim = dim, .range = (const int64_t *)b.offsets.at[s] + e);
    same_places(&d, &b, 0);
    sides_same(&d, &acc, 4, "layer");
    free(zeros);
    sides_close(&d);
}

int main(int argc, char **argv) {
    static const bk_case cases[] = {
        {"routes", routes, BK_ANYWHERE},
        {"routes backward", routes_backward, BK_ANYWHERE},
        {"sigmoid routes", sigmoid_routes, BK_ANYWHERE},
        {"picks are placed", picks_are_placed, BK_ANYWHERE},
        {"bad picks are named", bad_picks_are_named, BK_ANYWHERE},
        {"bad choices are named", bad_choices_are_named, BK_ANYWHERE},
        {"combines", combines, BK_ANYWHERE},
        {"combines many", combines_many, BK_ANYWHERE},
        {"bad ranges are named", bad_ranges_are_named, BK_ANYWHERE},
        {"combines backward", combines_backward, BK_ANYWHERE},
        {"bad rows are named", bad_rows_are_named, BK_ANYWHERE},
        {"layer", layer, BK_ANYWHERE},
    };
    return bk_main(argc, argv, cases, BK_COUNT(cases));
}
