/* Dense products through the device interface: weights of each stored type, rows and depths by ranges that only the
 * device knows, row numbers, and what of these is refused. Shapes, strides and profiles are the matter of check_gemm.
 *  */
#include "elements.h"
#include "op/gemm_backward.h"

/* A packed weight on both sides. */
typedef struct sides_weight {
    ls_gemm_weight side[2];
} sides_weight;

static sides_weight pack(sides *d, const sides_buffer *w, ls_dtype dtype, int64_t n, int64_t k) {
    sides_weight packed;
    for (int s = 0; s < 2; s++)
        if (ls_gemm_pack(d->device[s], &packed.side[s], w->at[s], dtype, n, k, &d->run->err) != LS_OK)
            bk_die(d->run, "pack");
    return packed;
}

static void unpack(sides *d, sides_weight *packed) {
    for (int s = 0; s < 2; s++) ls_gemm_weight_free(d->device[s], &packed->side[s]);
}

static void forward_of_every_type(bk_run *run) {
    const int64_t sizes[][3] = {{1, 1, 1}, {2, 3, 31}, {33, 70, 65}, {130, 129, 100}}; /* m, n, k */
    const ls_dtype types[] = {LS_F32, LS_BF16, LS_F16};
    sides d = sides_open(run);
    for (int64_t i = 0; i < BK_COUNT(sizes) * 3 * VALUE_KINDS; i++) {
        const int64_t *size = sizes[i / 3 / VALUE_KINDS], m = size[0], n = size[1], k = size[2];
        const ls_dtype type = types[i / VALUE_KINDS % 3];
        const value_kind kind = (value_kind)(i % VALUE_KINDS);
        const sides_buffer x = values_put(&d, "x", LS_F32, m * k, kind, (uint64_t)i, 4);
        const sides_buffer w = values_put(&d, "w", type, n * k, kind, (uint64_t)i + 99, 0);
        const sides_buffer bias = values_put(&d, "bias", LS_F32, n, VALUES_PLAIN, 7, 0);
        const sides_buffer y = sides_out(&d, "y", m * n * 4), half = sides_out(&d, "half", m * n * 2);
        sides_weight packed = pack(&d, &w, type, n, k);
        SIDES_CALL(&d, gemm, x.at[s], LS_F32, k, &packed.side[s], NULL, y.at[s], LS_F32, n, m, LS_PROFILE_EXACT, NULL,
                   false);
        SIDES_CALL(&d, gemm, x.at[s], LS_F32, k, &packed.side[s], bias.at[s], half.at[s], LS_BF16, n, m,
                   LS_PROFILE_EXACT, NULL, false);
        sides_same(&d, &y, 4, "%s m %lld n %lld k %lld, %s", ls_dtype_name(type), (long long)m, (long long)n,
                   (long long)k, value_names[kind]);
        sides_same(&d, &half, 2, "%s m %lld n %lld k %lld, %s, bias", ls_dtype_name(type), (long long)m, (long long)n,
                   (long long)k, value_names[kind]);
        unpack(&d, &packed);
        sides_clear_to(&d, 0);
    }
    sides_close(&d);
}

enum { ROWS = 150, WIDE = 70, DEEP = 45, TALL = 2 * ROWS };

static const int64_t ranges[][2] = {{0, ROWS}, {0, 0}, {ROWS, ROWS}, {7, 8}, {16, 64}, {63, 129}, {149, 150}};

static void forward_by_ranges(bk_run *run) {
    sides d = sides_open(run);
    for (int profile = 0; profile < 2; profile++) {
        const ls_dtype type = profile == LS_PROFILE_MMA16 ? LS_BF16 : LS_F32;
        for (int64_t i = 0; i < BK_COUNT(ranges); i++) {
            const sides_buffer x = values_put(&d, "x", type, ROWS * DEEP, VALUES_PLAIN, (uint64_t)i, 0);
            const sides_buffer w = values_put(&d, "w", type, WIDE * DEEP, VALUES_PLAIN, 5, 0);
            const sides_buffer y = sides_out(&d, "y", ROWS * WIDE * 4), range = sides_in(&d, "range", ranges[i], 16);
            sides_weight packed = pack(&d, &w, type, WIDE, DEEP);
            SIDES_CALL(&d, gemm, x.at[s], type, DEEP, &packed.side[s], NULL, y.at[s], LS_F32, WIDE, ROWS,
                       (ls_profile)profile, range.at[s], false);
            sides_same(&d, &y, 4, "%s, rows %lld to %lld", ls_profile_name((ls_profile)profile),
                       (long long)ranges[i][0], (long long)ranges[i][1]);
            unpack(&d, &packed);
            sides_clear_to(&d, 0);
        }
    }
    sides_close(&d);
}

/* Row numbers of a tensor of TALL rows, every other one; for x in any order. */
static sides_buffer rows_put(sides *d, bool ascending) {
    int64_t rows[ROWS];
    for (int64_t i = 0; i < ROWS; i++) rows[i] = ascending ? 2 * i + i % 2 : (i * 77 + 5) % TALL;
    return sides_in(d, "rows", rows, sizeof rows);
}

static void gradients_by_rows_and_ranges(bk_run *run) {
    sides d = sides_open(run);
    for (int64_t i = 0; i < BK_COUNT(ranges) * 4; i++) {
        const bool listed = i % 2 == 1, more = i / 2 % 2 == 1;
        const ls_dtype type = more ? LS_BF16 : LS_F32;
        const sides_buffer dy = values_put(&d, "dy", LS_F32, ROWS * WIDE, VALUES_PLAIN, (uint64_t)i, 0);
        const sides_buffer w = values_put(&d, "w", type, WIDE * DEEP, VALUES_PLAIN, 5, 0);
        const sides_buffer x = values_put(&d, "x", type, TALL * DEEP, VALUES_PLAIN, 6, 0);
        const sides_buffer dx = values_put(&d, "dx", LS_F32, TALL * DEEP, VALUES_PLAIN, 8, 0);
        const sides_buffer dw = values_put(&d, "dw", LS_F32, WIDE * DEEP, VALUES_PLAIN, 9, 0);
        const sides_buffer db = values_put(&d, "dbias", LS_F32, WIDE, VALUES_PLAIN, 10, 0);
        const sides_buffer up = rows_put(&d, true), any = rows_put(&d, false);
        const sides_buffer range = sides_in(&d, "range", ranges[i / 4], 16);
        SIDES_CALL(&d, gemm_backward_input, dy.at[s], WIDE, w.at[s], type, dx.at[s], DEEP, TALL,
                   listed ? up.at[s] : NULL, more, ROWS, WIDE, DEEP, LS_PROFILE_EXACT, range.at[s], NULL, 0);
        SIDES_CALL(&d, gemm_backward_weight, dy.at[s], WIDE, x.at[s], type, DEEP, TALL, listed ? any.at[s] : NULL,
                   dw.at[s], db.at[s], ROWS, WIDE, DEEP, LS_PROFILE_EXACT, NULL, 0, range.at[s], NULL, 0, false, false);
        sides_same(&d, &dx, 4, "case %lld", (long long)i);
        sides_same(&d, &dw, 4, "case %lld", (long long)i);
        sides_same(&d, &db, 4, "case %lld", (long long)i);
        sides_clear_to(&d, 0);
    }
    sides_close(&d);
}

/* As models call them: weights packed for few rows and for many, any NaN allowed, so that on CUDA tiles and cuBLASLt
 * are taken; gradients without a workspace of the caller's. */
static void products_of_models_in_mma16(bk_run *run) {
    const int64_t rows[] = {1, 7, 8, 40, 64, 65, 128, 192}, sizes[][2] = {{640, 320}, {48, 640}, {1024, 136}};
    sides d = sides_open(run);
    for (int64_t i = 0; i < BK_COUNT(rows) * BK_COUNT(sizes); i++) {
        const int64_t m = rows[i / BK_COUNT(sizes)], n = sizes[i % BK_COUNT(sizes)][0],
                      k = sizes[i % BK_COUNT(sizes)][1];
        const int64_t sequences[] = {0, m / 3, m / 2, m};
        const sides_buffer x = values_put(&d, "x", LS_BF16, m * k, VALUES_PLAIN, (uint64_t)i, 0);
        const sides_buffer w = values_put(&d, "w", LS_BF16, n * k, VALUES_PLAIN, 5, 0);
        const sides_buffer dy = values_put(&d, "dy", LS_F32, m * n, VALUES_PLAIN, 6, 0);
        const sides_buffer y = sides_out(&d, "y", m * n * 4), half = sides_out(&d, "half", m * n * 2);
        const sides_buffer dx = values_put(&d, "dx", LS_F32, m * k, VALUES_PLAIN, 8, 0);
        const sides_buffer dw = values_put(&d, "dw", LS_F32, n * k, VALUES_PLAIN, 9, 0);
        const sides_buffer offsets = sides_in(&d, "sequences", sequences, sizeof sequences);
        sides_weight packed = pack(&d, &w, LS_BF16, n, k);
        SIDES_CALL(&d, gemm, x.at[s], LS_BF16, k, &packed.side[s], NULL, y.at[s], LS_F32, n, m, LS_PROFILE_MMA16, NULL,
                   true);
        SIDES_CALL(&d, gemm, x.at[s], LS_BF16, k, &packed.side[s], NULL, half.at[s], LS_BF16, n, m, LS_PROFILE_MMA16,
                   NULL, true);
        SIDES_CALL(&d, gemm_backward_input, dy.at[s], n, w.at[s], LS_BF16, dx.at[s], k, m, NULL, i % 2 == 1, m, n, k,
                   LS_PROFILE_MMA16, NULL, NULL, 0);
        SIDES_CALL(&d, gemm_backward_weight, dy.at[s], n, x.at[s], LS_BF16, k, m, NULL, dw.at[s], NULL, m, n, k,
                   LS_PROFILE_MMA16, offsets.at[s], 3, NULL, NULL, 0, false, false);
        sides_same(&d, &y, 4, "m %lld n %lld k %lld", (long long)m, (long long)n, (long long)k);
        sides_same(&d, &half, 2, "m %lld n %lld k %lld, bf16", (long long)m, (long long)n, (long long)k);
        sides_same(&d, &dx, 4, "m %lld n %lld k %lld", (long long)m, (long long)n, (long long)k);
        sides_same(&d, &dw, 4, "m %lld n %lld k %lld", (long long)m, (long long)n, (long long)k);
        unpack(&d, &packed);
        sides_clear_to(&d, 0);
    }
    sides_close(&d);
}

/* Two products through the gate, against three calls on the CPU and its own implementation elsewhere. */
static void gated_products(bk_run *run) {
    const int64_t rows[] = {1, 7, 33, 64, 65, 100, 128, 192};
    const int64_t sizes[][2] = {{640, 320}, {48, 640}, {1029, 136}, {8192, 64}, {8192, 200}, {4300, 136}, {9000, 72}};
    sides d = sides_open(run);
    for (int64_t i = 0; i < BK_COUNT(rows) * BK_COUNT(sizes) * 3; i++) {
        const int64_t m = rows[i / 3 / BK_COUNT(sizes)], n = sizes[i / 3 % BK_COUNT(sizes)][0],
                      k = sizes[i / 3 % BK_COUNT(sizes)][1];
        const ls_dtype type = i % 3 == 0 ? LS_F32 : LS_BF16, to = i % 3 == 2 ? LS_F32 : type;
        const ls_profile profile = i % 3 == 0 ? LS_PROFILE_EXACT : LS_PROFILE_MMA16;
        if (run->small && m * n > 65536) continue;
        const sides_buffer x = values_put(&d, "x", type, m * k, VALUES_PLAIN, (uint64_t)i, 0);
        const sides_buffer gate = values_put(&d, "gate", type, n * k, VALUES_PLAIN, 5, 0);
        const sides_buffer up = values_put(&d, "up", type, n * k, VALUES_PLAIN, 6, 0);
        const sides_buffer first = sides_out(&d, "gate out", m * n * 4), second = sides_out(&d, "up out", m * n * 4);
        const sides_buffer y = sides_out(&d, "y", m * n * ls_dtype_bytes(to));
        sides_weight of_gate = pack(&d, &gate, type, n, k), of_up = pack(&d, &up, type, n, k);
        SIDES_CALL(&d, gemm_gated,
                   {x.at[s], type, k, &of_gate.side[s], NULL, first.at[s], LS_F32, n, m, profile, NULL, true},
                   &of_up.side[s], second.at[s], y.at[s], to);
        sides_same(&d, &y, ls_dtype_bytes(to), "m %lld n %lld k %lld, %s", (long long)m, (long long)n, (long long)k,
                   ls_dtype_name(to));
        unpack(&d, &of_gate);
        unpack(&d, &of_up);
        sides_clear_to(&d, 0);
    }
    sides_close(&d);
}

/* Three products side by side in the rows of one out, as queries, keys and values are: narrow ones in as many blocks as
 * the first, in fewer, in more, and too wide. */
static void threes_of_products(bk_run *run) {
    const int64_t rows[] = {1, 7, 64, 65, 128, 192, 256};
    const int64_t sizes[][3] = {{2048, 1024, 320}, {96, 48, 640},    {1032, 1032, 136}, {1536, 512, 200},
                                {4300, 4300, 136}, {4096, 1000, 72}, {5120, 128, 136},  {8192, 1024, 128},
                                {64, 512, 64},     {2056, 264, 1096}};
    sides d = sides_open(run);
    for (int64_t i = 0; i < BK_COUNT(rows) * BK_COUNT(sizes) * 3; i++) {
        const int64_t *size = sizes[i / 3 % BK_COUNT(sizes)];
        const int64_t m = rows[i / 3 / BK_COUNT(sizes)], n = size[0], narrow = size[1], k = size[2];
        const ls_dtype type = i % 3 == 0 ? LS_F32 : LS_BF16, to = i % 3 == 2 ? LS_F32 : type;
        const ls_profile profile = i % 3 == 0 ? LS_PROFILE_EXACT : LS_PROFILE_MMA16;
        const int64_t elem = ls_dtype_bytes(to), stride = n + 2 * narrow;
        if ((run->small || !run->cuda) && m * n > 65536) continue;
        const sides_buffer x = values_put(&d, "x", type, m * k, VALUES_PLAIN, (uint64_t)i, 0);
        const sides_buffer one = values_put(&d, "weight", type, n * k, VALUES_PLAIN, 5, 0);
        const sides_buffer two = values_put(&d, "second", type, narrow * k, VALUES_PLAIN, 6, 0);
        const sides_buffer three = values_put(&d, "third", type, narrow * k, VALUES_PLAIN, 7, 0);
        const sides_buffer out = sides_out(&d, "out", m * stride * elem);
        sides_weight of_one = pack(&d, &one, type, n, k), of_two = pack(&d, &two, type, narrow, k),
                     of_three = pack(&d, &three, type, narrow, k);
        SIDES_CALL(&d, gemm_three,
                   {x.at[s], type, k, &of_one.side[s], NULL, out.at[s], to, stride, m, profile, NULL, true},
                   {&of_two.side[s], &of_three.side[s]},
                   {(uint8_t *)out.at[s] + n * elem, (uint8_t *)out.at[s] + (n + narrow) * elem}, stride);
        sides_same(&d, &out, elem, "m %lld n %lld and %lld k %lld, %s", (long long)m, (long long)n, (long long)narrow,
                   (long long)k, ls_dtype_name(to));
        unpack(&d, &of_one);
        unpack(&d, &of_two);
        unpack(&d, &of_three);
        sides_clear_to(&d, 0);
    }
    sides_close(&d);
}

static void faults_are_found(bk_run *run) {
    const int64_t none[] = {5, ROWS + 1}, whole[] = {0, ROWS};
    const char *const of_range[] = {"rows 5 to 151 of 150"}, *const of_row[] = {"3"}, *const of_order[] = {"ascend"};
    int64_t beyond[ROWS], falling[ROWS];
    sides d = sides_open(run);
    const sides_buffer x = values_put(&d, "x", LS_F32, ROWS * DEEP, VALUES_PLAIN, 1, 0);
    const sides_buffer w = values_put(&d, "w", LS_F32, WIDE * DEEP, VALUES_PLAIN, 5, 0);
    const sides_buffer dy = values_put(&d, "dy", LS_F32, ROWS * WIDE, VALUES_PLAIN, 2, 0);
    const sides_buffer y = sides_out(&d, "y", ROWS * WIDE * 4), dx = sides_out(&d, "dx", TALL * DEEP * 4);
    const sides_buffer dw = sides_out(&d, "dw", WIDE * DEEP * 4);
    const sides_buffer bad = sides_in(&d, "range", none, sizeof none), good = sides_in(&d, "all", whole, sizeof whole);
    sides_weight packed = pack(&d, &w, LS_F32, WIDE, DEEP);
    for (int64_t i = 0; i < ROWS; i++) beyond[i] = i == 3 ? ROWS : 0, falling[i] = i == 9 ? 3 : i;
    const sides_buffer outside = sides_in(&d, "outside", beyond, sizeof beyond);
    const sides_buffer order = sides_in(&d, "order", falling, sizeof falling);
    SIDES_REFUSED(&d, "gemm range", of_range, gemm, x.at[s], LS_F32, DEEP, &packed.side[s], NULL, y.at[s], LS_F32, WIDE,
                  ROWS, LS_PROFILE_EXACT, bad.at[s], false);
    SIDES_REFUSED(&d, "dx range", of_range, gemm_backward_input, dy.at[s], WIDE, w.at[s], LS_F32, dx.at[s], DEEP, TALL,
                  NULL, false, ROWS, WIDE, DEEP, LS_PROFILE_EXACT, bad.at[s], NULL, 0);
    SIDES_REFUSED(&d, "dx order", of_order, gemm_backward_input, dy.at[s], WIDE, w.at[s], LS_F32, dx.at[s], DEEP, TALL,
                  order.at[s], false, ROWS, WIDE, DEEP, LS_PROFILE_EXACT, good.at[s], NULL, 0);
    SIDES_REFUSED(&d, "x rows", of_row, gemm_backward_weight, dy.at[s], WIDE, x.at[s], LS_F32, DEEP, ROWS,
                  outside.at[s], dw.at[s], NULL, ROWS, WIDE, DEEP, LS_PROFILE_EXACT, NULL, 0, NULL, NULL, 0, false,
                  false);
    SIDES_REFUSED(&d, "dw range", of_range, gemm_backward_weight, dy.at[s], WIDE, x.at[s], LS_F32, DEEP, ROWS, NULL,
                  dw.at[s], NULL, ROWS, WIDE, DEEP, LS_PROFILE_EXACT, NULL, 0, bad.at[s], NULL, 0, false, false);
    sides_same(&d, &y, 4, "after faults");
    sides_same(&d, &dx, 4, "after faults");
    sides_same(&d, &dw, 4, "after faults");
    SIDES_CALL(&d, gemm, x.at[s], LS_F32, DEEP, &packed.side[s], NULL, y.at[s], LS_F32, WIDE, ROWS, LS_PROFILE_EXACT,
               good.at[s], false);
    sides_same(&d, &y, 4, "afterwards");
    unpack(&d, &packed);
    sides_close(&d);
}

int main(int argc, char **argv) {
    static const bk_case cases[] = {{"forward of every type", forward_of_every_type, BK_ANYWHERE},
                                    {"forward by ranges", forward_by_ranges, BK_ANYWHERE},
                                    {"gradients by rows and ranges", gradients_by_rows_and_ranges, BK_ANYWHERE},
                                    {"products of models in mma16", products_of_models_in_mma16, BK_ANYWHERE},
                                    {"gated products", gated_products, BK_ANYWHERE},
                                    {"three products", threes_of_products, BK_ANYWHERE},
                                    {"faults are found", faults_are_found, BK_ANYWHERE}};
    return bk_main(argc, argv, cases, BK_COUNT(cases));
}
