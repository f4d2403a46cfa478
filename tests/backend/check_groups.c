/* Products of groups of rows through the device interface: forward and both gradients, in both profiles, of groups with
 * no row, one and many, of sequences that end inside of steps; against a reading row by row; and what is refused. */
#include "elements.h"
#include "num/mma16.h"
#include "op/gemm_groups.h"

enum { GROUPS_MAX = 130, SEQUENCES = 5 };

typedef struct group_shape {
    int64_t groups, rows, top_k, n, k; /* rows of the batch, each of which is in top_k groups */
    int64_t pad;                       /* of the strides of rows */
    int64_t offset;                    /* bytes from an aligned address */
} group_shape;

static const group_shape shapes[] = {
    {1, 1, 1, 1, 1, 0, 0},       {3, 7, 2, 8, 16, 0, 0},      {4, 33, 1, 65, 70, 3, 4},    {8, 120, 3, 130, 96, 8, 0},
    {16, 300, 2, 64, 200, 0, 0}, {2, 400, 1, 256, 264, 0, 0}, {130, 260, 4, 40, 72, 8, 0}, {8, 700, 4, 300, 130, 0, 0},
};

/* What a batch's routing leaves: groups' offsets, and the batch's row of each entry. */
typedef struct routing {
    int64_t m;
    int64_t offsets[GROUPS_MAX + 1], sequences[SEQUENCES + 1], *rows;
} routing;

/* Group 1 of several has no row. */
static routing route(group_shape p, uint64_t seed) {
    routing r = {.rows = bk_alloc(p.rows * p.top_k * 8)};
    int64_t per_row[GROUPS_MAX];
    for (int64_t g = 0; g < p.groups; g++) {
        r.offsets[g] = r.m;
        for (int64_t row = 0; row < p.rows && g != 1; row++) {
            for (int64_t k = 0; k < p.top_k; k++) {
                uint64_t own = seed * 7919 + (uint64_t)row * 31 + (uint64_t)k;
                per_row[k] = (int64_t)(test_random(&own) % (uint64_t)p.groups);
            }
            bool chosen = false;
            for (int64_t k = 0; k < p.top_k; k++) chosen = chosen || per_row[k] == g;
            if (chosen) r.rows[r.m++] = row;
        }
    }
    r.offsets[p.groups] = r.m;
    for (int64_t s = 0; s <= SEQUENCES; s++) r.sequences[s] = p.rows * s * s / SEQUENCES / SEQUENCES;
    return r;
}

typedef struct case_of {
    group_shape p;
    routing r;
    ls_profile profile;
    ls_dtype type; /* of operands */
    sides_buffer x, w, dy, offsets, rows, sequences;
} case_of;

static case_of open_case(sides *d, group_shape p, ls_profile profile, value_kind kind, uint64_t seed) {
    case_of c = {
        .p = p, .r = route(p, seed), .profile = profile, .type = profile == LS_PROFILE_MMA16 ? LS_BF16 : LS_F32};
    const int64_t m = c.r.m > 0 ? c.r.m : 1;
    c.x = values_put(d, "x", c.type, m * (p.k + p.pad), kind, seed, p.offset);
    c.w = values_put(d, "w", c.type, p.groups * p.n * p.k, kind, seed + 1, p.offset);
    c.dy = values_put(d, "dy", c.type, m * (p.n + p.pad), kind, seed + 2, p.offset);
    c.offsets = sides_in(d, "offsets", c.r.offsets, (p.groups + 1) * 8);
    c.rows = sides_in(d, "rows", c.r.rows, m * 8);
    c.sequences = sides_in(d, "sequences", c.r.sequences, (SEQUENCES + 1) * 8);
    return c;
}

static void forward_case(sides *d, const case_of *c, const char *what) {
    static const ls_dtype types[] = {LS_F32, LS_BF16};
    const group_shape p = c->p;
    ls_gemm_weight packed[2][GROUPS_MAX];
    const ls_gemm_weight *list[2][GROUPS_MAX];
    for (int s = 0; s < 2; s++)
        for (int64_t g = 0; g < p.groups; g++) {
            const uint8_t *w = (const uint8_t *)c->w.at[s] + g * p.n * p.k * ls_dtype_bytes(c->type);
            if (ls_gemm_pack(d->device[s], &packed[s][g], w, c->type, p.n, p.k, &d->run->err) != LS_OK)
                bk_die(d->run, "pack");
            list[s][g] = &packed[s][g];
        }
    for (int t = 0; t < 2; t++) {
        const int64_t bytes = ls_dtype_bytes(types[t]);
        const sides_buffer out = sides_put(d, "out", NULL, (c->r.m + 1) * (p.n + p.pad) * bytes, p.offset);
        SIDES_CALL(d, gemm_groups, .x = c->x.at[s], .x_dtype = c->type, .x_stride = p.k + p.pad, .weights = list[s],
                   .n_groups = p.groups, .offsets = c->offsets.at[s], .out = out.at[s], .out_dtype = types[t],
                   .out_stride = p.n + p.pad, .m = c->r.m, .profile = c->profile);
        sides_same(d, &out, bytes, "%s", what);
    }
    for (int s = 0; s < 2; s++)
        for (int64_t g = 0; g < p.groups; g++) ls_gemm_weight_free(d->device[s], &packed[s][g]);
}

static void input_case(sides *d, const case_of *c, const char *what) {
    const group_shape p = c->p;
    const sides_buffer dx = sides_put(d, "dx", NULL, (c->r.m + 1) * (p.k + p.pad) * 4, p.offset);
    const void *list[2][GROUPS_MAX];
    for (int s = 0; s < 2; s++)
        for (int64_t g = 0; g < p.groups; g++)
            list[s][g] = (const uint8_t *)c->w.at[s] + g * p.n * p.k * ls_dtype_bytes(c->type);
    SIDES_CALL(d, gemm_groups_backward_input, .dy = c->dy.at[s], .dy_dtype = c->type, .dy_stride = p.n + p.pad,
               .w = list[s], .w_dtype = c->type, .n_groups = p.groups, .offsets = c->offsets.at[s], .dx = dx.at[s],
               .dx_stride = p.k + p.pad, .m = c->r.m, .n = p.n, .k = p.k, .profile = c->profile);
    sides_compare(d, &dx, 4, true, what);
}

/* dw of one group as op/gemm_groups.h has it, element by element, in the reference's memory. */
static void read_weight(const case_of *c, int64_t g, float *dw) {
    const group_shape p = c->p;
    const int64_t begin = c->r.offsets[g], end = c->r.offsets[g + 1];
    for (int64_t n = 0; n < p.n; n++)
        for (int64_t k = 0; k < p.k; k++) {
            float acc = dw[n * p.k + k];
            uint16_t a[16] = {0}, b[16] = {0};
            int64_t held = 0, sequence = 0;
            for (int64_t i = begin; i < end; i++) {
                const int64_t at_dy = i * (p.n + p.pad) + n, at_x = i * (p.k + p.pad) + k;
                if (c->profile == LS_PROFILE_EXACT) {
                    acc = ls_fma(((const float *)c->dy.at[0])[at_dy], ((const float *)c->x.at[0])[at_x], acc);
                    continue;
                }
                while (c->r.rows[i] >= c->r.sequences[sequence + 1]) sequence++;
                a[held] = ((const uint16_t *)c->dy.at[0])[at_dy];
                b[held++] = ((const uint16_t *)c->x.at[0])[at_x];
                if (held == 16 || i + 1 == end || c->r.rows[i + 1] >= c->r.sequences[sequence + 1]) {
                    acc = ls_from_bits(ls_mma16_step(ls_bits(acc), a, 1, b, 1));
                    memset(a, 0, sizeof a);
                    memset(b, 0, sizeof b);
                    held = 0;
                }
            }
            dw[n * p.k + k] = acc;
        }
}

static void weight_case(sides *d, const case_of *c, bool zero, const char *what) {
    const group_shape p = c->p;
    const int64_t n = p.groups * p.n * p.k;
    float *expected = bk_alloc(n * 4);
    float *list[2][GROUPS_MAX];
    sides_buffer dw;
    if (zero) {
        memset(expected, 0, (size_t)n * 4);
        dw = sides_in(d, "dw", expected, n * 4);
    } else {
        dw = values_put(d, "dw", LS_F32, n, VALUES_PLAIN, 77, p.offset);
    }
    memcpy(expected, dw.at[0], (size_t)n * 4);
    for (int s = 0; s < 2; s++)
        for (int64_t g = 0; g < p.groups; g++) list[s][g] = (float *)dw.at[s] + g * p.n * p.k;
    SIDES_CALL(d, gemm_groups_backward_weight, .dy = c->dy.at[s], .dy_dtype = c->type, .dy_stride = p.n + p.pad,
               .x = c->x.at[s], .x_dtype = c->type, .x_stride = p.k + p.pad, .dw = list[s], .n_groups = p.groups,
               .offsets = c->offsets.at[s], .rows = c->rows.at[s], .sequences = c->sequences.at[s],
               .n_sequences = SEQUENCES, .m = c->r.m, .n = p.n, .k = p.k, .profile = c->profile, .dw_is_zero = zero);
    sides_compare(d, &dw, 4, true, what);
    if (n * c->r.m / p.groups < 20000000) {
        uint8_t *own = sides_take(d, &dw, 0);
        for (int64_t g = 0; g < p.groups; g++) read_weight(c, g, expected + g * p.n * p.k);
        sides_one_nan((uint8_t *)expected, n);
        sides_one_nan(own + BK_GUARD, n);
        bk_same(d->run, (const uint8_t *)expected, own + BK_GUARD, n, 4, "%s: dw, as it is read", what);
        free(own);
    }
    free(expected);
}

static void groups(bk_run *run) {
    for (int64_t i = 0; i < BK_COUNT(shapes) * 2 * VALUE_KINDS; i++) {
        const group_shape p = shapes[i / 2 / VALUE_KINDS];
        const ls_profile profile = i % 2 == 0 ? LS_PROFILE_EXACT : LS_PROFILE_MMA16;
        const value_kind kind = (value_kind)(i / 2 % VALUE_KINDS);
        char what[160];
        if (!run->cuda && p.rows * p.top_k * p.n * p.k > (kind == VALUES_PLAIN ? 4000000 : 500000)) continue;
        sides d = sides_open(run);
        case_of c = open_case(&d, p, profile, kind, (uint64_t)i);
        snprintf(what, sizeof what, "%s, %lld groups, %lld rows, n %lld, k %lld, %s", ls_profile_name(profile),
                 (long long)p.groups, (long long)c.r.m, (long long)p.n, (long long)p.k, value_names[kind]);
        forward_case(&d, &c, what);
        input_case(&d, &c, what);
        weight_case(&d, &c, false, what);
        weight_case(&d, &c, true, what);
        free(c.r.rows);
        sides_close(&d);
    }
}

/* A sum that is cut between sequences has the bits of one call. */
static void sums_are_cut_between_sequences(bk_run *run) {
    const group_shape p = {3, 90, 2, 24, 40, 0, 0};
    sides d = sides_open(run);
    case_of c = open_case(&d, p, LS_PROFILE_MMA16, VALUES_PLAIN, 5);
    const int64_t n = p.groups * p.n * p.k;
    const sides_buffer whole = values_put(&d, "whole", LS_F32, n, VALUES_PLAIN, 3, 0);
    const sides_buffer parts = values_put(&d, "parts", LS_F32, n, VALUES_PLAIN, 3, 0);
    for (int64_t cut = 0; cut < 2; cut++)
        for (int64_t begin = 0; begin < (cut ? SEQUENCES : 1); begin++) {
            /* Rows of the sequences [begin, end), in the order of their groups. */
            const int64_t end = cut ? begin + 1 : SEQUENCES, last = c.r.sequences[end];
            const int64_t sequences[] = {0, last};
            int64_t offsets[4] = {0}, m = 0, pick[200], rows[200];
            for (int64_t g = 0; g < p.groups; g++) {
                for (int64_t i = c.r.offsets[g]; i < c.r.offsets[g + 1]; i++)
                    if (c.r.rows[i] >= c.r.sequences[begin] && c.r.rows[i] < last) {
                        pick[m] = i;
                        rows[m++] = c.r.rows[i];
                    }
                offsets[g + 1] = m;
            }
            if (m == 0) continue;
            const sides_buffer dy = sides_out(&d, "dy", m * p.n * 2), x = sides_out(&d, "x", m * p.k * 2);
            for (int s = 0; s < 2; s++) {
                uint8_t *all_dy = sides_take(&d, &c.dy, s), *all_x = sides_take(&d, &c.x, s);
                for (int64_t i = 0; i < m; i++)
                    if (ls_memory_write(d.device[s], (uint8_t *)dy.at[s] + i * p.n * 2,
                                        all_dy + BK_GUARD + pick[i] * p.n * 2, p.n * 2, &run->err) ||
                        ls_memory_write(d.device[s], (uint8_t *)x.at[s] + i * p.k * 2,
                                        all_x + BK_GUARD + pick[i] * p.k * 2, p.k * 2, &run->err))
                        bk_die(run, "picks");
                free(all_dy);
                free(all_x);
            }
            const sides_buffer o = sides_in(&d, "offsets", offsets, sizeof offsets),
                               r = sides_in(&d, "rows", rows, m * 8);
            const sides_buffer q = cut ? sides_in(&d, "sequences", sequences, 16) : c.sequences;
            const sides_buffer *to = cut ? &parts : &whole;
            float *list[2][3];
            for (int s = 0; s < 2; s++)
                for (int64_t g = 0; g < p.groups; g++) list[s][g] = (float *)to->at[s] + g * p.n * p.k;
            SIDES_CALL(&d, gemm_groups_backward_weight, .dy = dy.at[s], .dy_dtype = LS_BF16, .dy_stride = p.n,
                       .x = x.at[s], .x_dtype = LS_BF16, .x_stride = p.k, .dw = list[s], .n_groups = p.groups,
                       .offsets = o.at[s], .rows = r.at[s], .sequences = q.at[s], .n_sequences = cut ? 1 : SEQUENCES,
                       .m = m, .n = p.n, .k = p.k, .profile = LS_PROFILE_MMA16);
        }
    for (int s = 0; s < 2; s++) {
        uint8_t *one = sides_take(&d, &whole, s), *other = sides_take(&d, &parts, s);
        bk_same(run, one, other, n + 2 * BK_GUARD / 4, 4, "side %d: whole and in parts", s);
        free(one);
        free(other);
    }
    free(c.r.rows);
    sides_close(&d);
}

static void bad_lists_are_named(bk_run *run) {
    const group_shape p = {2, 6, 2, 8, 8, 0, 0};
    sides d = sides_open(run);
    case_of c = open_case(&d, p, LS_PROFILE_MMA16, VALUES_PLAIN, 9);
    const int64_t m = 6, sequences[] = {0, 2, 4, 6}, descending[] = {0, 4, 2, 6}, offsets[] = {0, 4, 6};
    const int64_t past[] = {0, 4, 7}, back[] = {0, 4, 3}, rows[] = {0, 1, 2, 5, 0, 3}, same[] = {0, 1, 1, 5, 0, 3};
    const int64_t outside[] = {0, 1, 2, 6, 0, 3};
    const char *const range[] = {"gemm_groups", "rows 4 to 7 of 6"}, *const turns[] = {"gemm_groups",
                                                                                       "rows 4 to 3 of 6"};
    const char *const row[] = {"gemm_groups_backward_weight", "entry 3: row 6 is not in 0..5"};
    const char *const order[] = {"gemm_groups_backward_weight", "entry 2: row 1 after row 1"};
    const char *const sequence[] = {"gemm_groups_backward_weight"};
    const sides_buffer dx = sides_out(&d, "dx", m * p.k * 4), dw = sides_out(&d, "dw", p.groups * p.n * p.k * 4);
    const sides_buffer good = sides_in(&d, "offsets", offsets, sizeof offsets);
    const sides_buffer too_far = sides_in(&d, "offsets", past, sizeof past), turned = sides_in(&d, "offsets", back, 24);
    const sides_buffer q = sides_in(&d, "sequences", sequences, sizeof sequences);
    const sides_buffer bad_q = sides_in(&d, "sequences", descending, sizeof descending);
    const sides_buffer r = sides_in(&d, "rows", rows, sizeof rows), twice = sides_in(&d, "rows", same, sizeof same);
    const sides_buffer out_of_all = sides_in(&d, "rows", outside, sizeof outside);
    const void *w[2][2];
    float *list[2][2];
    for (int s = 0; s < 2; s++)
        for (int64_t g = 0; g < 2; g++) {
            w[s][g] = (const uint16_t *)c.w.at[s] + g * p.n * p.k;
            list[s][g] = (float *)dw.at[s] + g * p.n * p.k;
        }
#define INPUT(o)                                                                                           \
    .dy = c.dy.at[s], .dy_dtype = LS_BF16, .dy_stride = p.n, .w = w[s], .w_dtype = LS_BF16, .n_groups = 2, \
    .offsets = (o).at[s], .dx = dx.at[s], .dx_stride = p.k, .m = m, .n = p.n, .k = p.k, .profile = LS_PROFILE_MMA16
#define WEIGHT(o, of, seq)                                                                                        \
    .dy = c.dy.at[s], .dy_dtype = LS_BF16, .dy_stride = p.n, .x = c.x.at[s], .x_dtype = LS_BF16, .x_stride = p.k, \
    .dw = list[s], .n_groups = 2, .offsets = (o).at[s], .rows = (of).at[s], .sequences = (seq).at[s],             \
    .n_sequences = 3, .m = m, .n = p.n, .k = p.k, .profile = LS_PROFILE_MMA16
    SIDES_REFUSED(&d, "offsets past all rows", range, gemm_groups_backward_input, INPUT(too_far));
    SIDES_REFUSED(&d, "offsets that turn back", turns, gemm_groups_backward_input, INPUT(turned));
    SIDES_REFUSED(&d, "a row outside", row, gemm_groups_backward_weight, WEIGHT(good, out_of_all, q));
    SIDES_REFUSED(&d, "a row twice", order, gemm_groups_backward_weight, WEIGHT(good, twice, q));
    SIDES_REFUSED(&d, "sequences that turn back", sequence, gemm_groups_backward_weight, WEIGHT(good, r, bad_q));
    sides_same(&d, &dx, 4, "after refusals");
    sides_same(&d, &dw, 4, "after refusals");
    free(c.r.rows);
    sides_close(&d);
}

int main(int argc, char **argv) {
    static const bk_case cases[] = {
        {"groups", groups, BK_ANYWHERE},
        {"sums are cut between sequences", sums_are_cut_between_sequences, BK_ANYWHERE},
        {"bad lists are named", bad_lists_are_named, BK_ANYWHERE},
    };
    return bk_main(argc, argv, cases, BK_COUNT(cases));
}
