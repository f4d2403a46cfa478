/* Tables of three inputs and selectors of bytes. Owns nothing. */
#include "audit/bits.h"

static const int32_t columns[] = {0xF0, 0xCC, 0xAA};

static int32_t apply(char how, int32_t a, int32_t b) { return how == '&' ? a & b : how == '|' ? a | b : a ^ b; }

/* A constant of all zeros or ones: what it makes of the table is the same for both of its values. */
static int32_t fold(int32_t table, const bool constant[3], const int64_t values[3]) {
    for (int32_t i = 0; i < 3; i++) {
        const int32_t shift = 4 >> i;
        if (!constant[i] || (values[i] != 0 && values[i] != -1)) continue;
        const int32_t kept = values[i] == 0 ? table & ~columns[i] & 0xFF : table & columns[i];
        table = values[i] == 0 ? kept | kept << shift : kept | kept >> shift;
    }
    return table;
}

/* Two of the inputs, or these and the third. */
static bool find_join(int32_t table, const int32_t column[3], ls_bits_plan *out) {
    static const char ways[] = "&|^";
    for (int32_t pair = 0; pair < 9; pair++) {
        const int32_t x = pair / 3 == 2 ? 1 : 0, y = pair / 3 == 0 ? 1 : 2, z = 3 - x - y;
        const char first = ways[pair % 3];
        const int32_t two = apply(first, column[x], column[y]);
        out->x = x, out->y = y, out->z = z, out->first = first;
        out->n = table == two ? 2 : 0;
        for (int32_t v = 0; v < 3 && out->n == 0; v++) {
            if (table != apply(ways[v], two, column[z])) continue;
            out->n = 3;
            out->second = ways[v];
        }
        if (out->n > 0) return true;
    }
    return false;
}

ls_bits_plan ls_bits_table(int32_t table, const bool constant[3], const int64_t values[3]) {
    ls_bits_plan out = {.inverted = -1};
    table = fold(table, constant, values);
    for (int32_t inverted = -1; inverted < 3; inverted++) {
        int32_t column[3];
        if (inverted >= 0 && !constant[inverted]) continue;
        out.inverted = inverted;
        for (int32_t i = 0; i < 3; i++) column[i] = i == inverted ? ~columns[i] & 0xFF : columns[i];
        for (out.x = 0; out.x < 3; out.x++)
            if (table == column[out.x]) return out.n = 1, out;
        if (find_join(table, column, &out)) return out;
    }
    out.inverted = -1;
    out.is_not = true;
    for (out.x = 0; out.x < 3; out.x++)
        if (table == (~columns[out.x] & 0xFF)) return out.n = 1, out;
    return (ls_bits_plan){.inverted = -1};
}

ls_bits_bytes ls_bits_permute(int64_t selector, bool a_zero, bool b_zero) {
    ls_bits_bytes out = {.known = true};
    int32_t in_place[2] = {0, 0};
    for (int32_t i = 0; i < 4; i++) {
        const int32_t digit = (int32_t)(selector >> (4 * i) & 15);
        if (digit > 7) return (ls_bits_bytes){.known = false};
        if (digit < 4 ? a_zero : b_zero) continue;
        out.bytes = i + 1;
        if (digit % 4 == i && in_place[digit / 4] == i) in_place[digit / 4]++;
    }
    out.from = in_place[1] == out.bytes;
    out.in_place = in_place[out.from] == out.bytes;
    return out;
}
