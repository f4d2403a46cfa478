/* How a cost grows with length, on machines that others use too. */
#ifndef LS_TESTS_COST_H
#define LS_TESTS_COST_H

#include <stdint.h>
#include <time.h>

#define TEST_NO_BOUND 1e30

typedef void test_work(void *context, int64_t n);

/* This thread's processor time, in seconds, of one call. */
static inline double test_seconds_of(test_work *work, void *context, int64_t n) {
    struct timespec from, to;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
    work(context, n);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
    return (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
}

/* Time of 4 n over time of n. A neighbour on the machine only ever adds to a time, so the least of each counts; both
 * lengths take turns, at least five times, and go on until the ratio lies in [low, high] or 25 turns are over. */
static inline double test_growth(test_work *work, void *context, int64_t n, double low, double high) {
    double one = 1e30, four = 1e30, ratio = 0;
    for (int turn = 0; turn < 25 && (turn < 5 || ratio < low || ratio > high); turn++) {
        const double a = test_seconds_of(work, context, n), b = test_seconds_of(work, context, 4 * n);
        one = a < one ? a : one;
        four = b < four ? b : four;
        ratio = four / one;
    }
    return ratio;
}

#endif
