/* Leaves by length against a textbook dealer that keeps lists of its own, and what they are for: every node of the leaf
 * tree has nearly its share of the tokens. */
#include <stdlib.h>

#include "base/rng.h"
#include "harness.h"
#include "train/balance.h"
#include "train/gradient.h"

#define MOST 200

static ls_error err;

static int64_t random_below(uint32_t i, uint32_t kind, int64_t n) {
    const ls_philox draw = ls_philox_draw(3, i, kind, 0, 0);
    return (int64_t)(draw.word[0] % (uint64_t)n);
}

static void order_of(int64_t *order, const int64_t *lengths, int64_t n, int64_t leaf) {
    assert_ok(ls_balance(order, lengths, n, leaf, &err), err);
}

/* ---- the textbook ---- */

/* The longest of the sequences that are still there, the first of equals; removes it. */
static int64_t take_longest(const int64_t *lengths, bool *there, int64_t n) {
    int64_t best = -1;
    for (int64_t i = 0; i < n; i++)
        if (there[i] && (best < 0 || lengths[i] > lengths[best])) best = i;
    there[best] = false;
    return best;
}

/* Places [first, first + room) of a node that has the sequences of a set. */
static void deal(int64_t *order, const int64_t *lengths, bool *there, int64_t n, int64_t first, int64_t room,
                 int64_t leaf) {
    bool in_left[MOST] = {false}, in_right[MOST] = {false};
    int64_t left = leaf, n_left = 0, n_right = 0;
    double tokens_left = 0, tokens_right = 0; /* exact: they are small */
    if (room <= leaf) {
        for (int64_t i = 0; i < n; i++)
            if (there[i]) order[first++] = i;
        return;
    }
    while (2 * left < room) left = 2 * left;
    for (int64_t k = 0; k < room; k++) {
        const int64_t i = take_longest(lengths, there, n);
        bool goes_left = tokens_left * (double)(room - left) <= tokens_right * (double)left;
        if (n_left == left) goes_left = false;
        if (n_right == room - left) goes_left = true;
        if (goes_left) {
            in_left[i] = true;
            n_left++;
            tokens_left += (double)lengths[i];
        } else {
            in_right[i] = true;
            n_right++;
            tokens_right += (double)lengths[i];
        }
    }
    deal(order, lengths, in_left, n, first, left, leaf);
    deal(order, lengths, in_right, n, first + left, room - left, leaf);
}

static void it_deals_as_the_textbook(void **state) {
    int64_t order[MOST], want[MOST], lengths[MOST];
    (void)state;
    for (uint32_t trial = 0; trial < 600; trial++) {
        const int64_t n = 1 + random_below(trial, 1, MOST), leaf = 1 + random_below(trial, 2, 12);
        const int64_t most = 1 + random_below(trial, 3, trial % 3 == 0 ? 4 : 5000); /* equal ones, and zeros, too */
        bool there[MOST];
        for (int64_t i = 0; i < n; i++) {
            lengths[i] = random_below(trial, 1000 + (uint32_t)i, most);
            there[i] = true;
        }
        order_of(order, lengths, n, leaf);
        deal(want, lengths, there, n, 0, n, leaf);
        for (int64_t k = 0; k < n; k++)
            if (order[k] != want[k])
                fail_msg("trial %u: place %lld has %lld, expected %lld", trial, (long long)k, (long long)order[k],
                         (long long)want[k]);
    }
}

static void a_leaf_is_by_number(void **state) {
    static const int64_t lengths[] = {5, 9, 1, 7, 3};
    int64_t order[5];
    (void)state;
    for (int64_t leaf = 5; leaf < 8; leaf++) {
        order_of(order, lengths, 5, leaf);
        for (int64_t k = 0; k < 5; k++) assert_int_equal(order[k], k);
    }
    order_of(order, lengths, 5, 2); /* 9, 7, 5, 3, 1 to four places and one: 9 | 7, 5, 3, 1 would be full too early */
    assert_true(order[4] == 3);     /* the second longest is the first that the right side gets */
}

/* ---- what it is for ---- */

/* The most tokens of any of `ranks` processes, beside their mean. */
static double worst(const int64_t *order, const int64_t *lengths, int64_t n, int64_t leaf, int64_t ranks) {
    const int64_t n_leaves = (n - 1) / leaf + 1, share = ls_gradient_share(n_leaves, ranks) * leaf;
    double most = 0, all = 0;
    for (int64_t r = 0; r < ranks; r++) {
        double tokens = 0;
        for (int64_t k = r * share; k < n && k < (r + 1) * share; k++)
            tokens += (double)lengths[order == NULL ? k : order[k]];
        most = tokens > most ? tokens : most;
        all += tokens;
    }
    return most * (double)ranks / all;
}

/* Groups of 16 whose lengths are alike, as the samples of a problem are. */
static void processes_have_as_much_to_do(void **state) {
    enum { GROUPS = 64, SAMPLES = 16, N = GROUPS * SAMPLES };
    static int64_t order[N], lengths[N];
    (void)state;
    for (uint32_t g = 0; g < GROUPS; g++) {
        const int64_t typical = 64 + random_below(g, 5, 4096);
        for (uint32_t k = 0; k < SAMPLES; k++)
            lengths[g * SAMPLES + k] = 32 + typical - random_below(g, 100 + k, typical / 4);
    }
    for (int64_t leaf = 1; leaf <= 32; leaf *= 2) {
        order_of(order, lengths, N, leaf);
        for (int64_t ranks = 1; ranks <= 32; ranks *= 2) {
            const double by_number = worst(NULL, lengths, N, leaf, ranks),
                         by_length = worst(order, lengths, N, leaf, ranks);
            if (ranks == 8 && leaf == 8)
                print_message(
                    "8 processes, leaves of 8: the most tokens %.3f times the mean by number, %.4f by length\n",
                    by_number, by_length);
            if (ranks >= 8) assert_true(by_number > 1.1);
            if (by_length > 1.002) fail_msg("leaf %lld, %lld ranks: %g", (long long)leaf, (long long)ranks, by_length);
        }
    }
}

/* The batch's last leaf is short, and the tree lacks a part: still nobody has more than a longest sequence too much. */
static void odd_batches_are_dealt(void **state) {
    static int64_t order[1000], lengths[1000];
    (void)state;
    for (int64_t i = 0; i < 1000; i++) lengths[i] = 1 + random_below((uint32_t)i, 9, 900);
    for (int64_t n = 900; n < 1000; n += 7)
        for (int64_t leaf = 1; leaf < 9; leaf += 3) {
            int64_t room = leaf, left = 0, right = 0;
            bool seen[1000] = {false};
            order_of(order, lengths, n, leaf);
            while (2 * room < n) room *= 2;
            for (int64_t k = 0; k < n; k++) {
                assert_false(seen[order[k]]);
                seen[order[k]] = true;
                if (k < room)
                    left += lengths[order[k]];
                else
                    right += lengths[order[k]];
            }
            const double difference = (double)left / (double)room - (double)right / (double)(n - room);
            if (difference * (double)(n - room) > 900 || difference * (double)(n - room) < -900)
                fail_msg("%lld in leaves of %lld: %g tokens a place apart", (long long)n, (long long)leaf, difference);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_deals_as_the_textbook),
        cmocka_unit_test(a_leaf_is_by_number),
        cmocka_unit_test(processes_have_as_much_to_do),
        cmocka_unit_test(odd_batches_are_dealt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
