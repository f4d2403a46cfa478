/* How well each cause agrees with what was seen. */
#include "diagnose/bits/bits_run.h"

static ls_verdict expected(const ls_bits_pattern *pattern, uint64_t bit) {
    if (pattern->large & bit) return LS_LARGE;
    if (pattern->small & bit) return LS_SMALL;
    if (pattern->moved & bit) return LS_MOVED;
    if ((pattern->any | (uint64_t)1 << LS_TRY_GIVEN) & bit) return LS_UNTRIED;
    return LS_CLEAN;
}

/* Whether values are recorded one late: so is then every one behind the first of every completion. */
static bool is_late(const ls_observation *o) {
    return o->verdict == LS_LARGE && o->lag_tokens > 0 && o->lag_equal == o->lag_tokens;
}

static bool has_sign(const ls_bits_pattern *pattern, const ls_observation *seen) {
    switch (pattern->sign) {
        case LS_SIGN_NONE: return true;
        case LS_SIGN_LATE: return is_late(&seen[LS_TRY_SOLO]) && is_late(&seen[LS_TRY_BATCH]);
        case LS_SIGN_UNREPEATABLE: return seen[LS_TRY_AGAIN].n_changed > 0;
    }
    return false;
}

static double share_of(int64_t part, int64_t whole) { return whole > 0 ? (double)part / (double)whole : 0.0; }

static ls_ranked judge_cause(ls_cause cause, const ls_observation *seen) {
    const ls_bits_pattern *pattern = &ls_cause_of(cause)->bits;
    int64_t met[2] = {0, 0}, asked[2] = {0, 0}; /* clean ones, others */
    ls_ranked r = {.cause = cause};
    for (int i = 0; i < LS_EXPERIMENTS; i++) {
        const uint64_t bit = (uint64_t)1 << i;
        const ls_verdict want = expected(pattern, bit);
        const int kind = want != LS_CLEAN;
        if (want == LS_UNTRIED || seen[i].verdict == LS_UNTRIED) continue;
        asked[kind]++;
        if (seen[i].verdict == want) {
            met[kind]++;
            r.met |= bit;
        } else {
            r.missed |= bit;
        }
    }
    if (pattern->sign != LS_SIGN_NONE) {
        asked[1]++;
        met[1] += has_sign(pattern, seen);
    }
    r.fits = met[1] == asked[1] && met[0] == asked[0] && met[1] > 0;
    /* A cause that expects nothing clean is judged by differences alone. */
    r.score =
        asked[0] > 0 ? 0.5 * share_of(met[0], asked[0]) + 0.5 * share_of(met[1], asked[1]) : share_of(met[1], asked[1]);
    if (met[1] == 0 || !has_sign(pattern, seen)) r.score = 0.0;
    return r;
}

static bool better(const ls_ranked *a, const ls_ranked *b) {
    if (a->fits != b->fits) return a->fits;
    if (a->score != b->score) return a->score > b->score;
    /* Of two that agree as well, the one that says more. */
    return __builtin_popcountll(a->met) > __builtin_popcountll(b->met);
}

int64_t ls_causes_rank(ls_ranked out[LS_CAUSES], const ls_observation seen[LS_EXPERIMENTS]) {
    int64_t n = 0;
    for (int c = LS_CAUSE_NONE + 1; c < LS_CAUSES; c++) {
        ls_ranked r;
        int64_t at = n;
        if (!ls_cause_is_of_bits((ls_cause)c)) continue;
        r = judge_cause((ls_cause)c, seen);
        for (; at > 0 && better(&r, &out[at - 1]); at--) out[at] = out[at - 1];
        out[at] = r;
        n++;
    }
    return n;
}
