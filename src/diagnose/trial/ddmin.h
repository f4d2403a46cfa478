/* Delta debugging (Zeller & Hildebrandt 2002, "Simplifying and isolating failure-inducing input"): shrinks a list of
 * items that shows a failure to one from which no single item can be left out. */
#ifndef LS_DIAGNOSE_TRIAL_DDMIN_H
#define LS_DIAGNOSE_TRIAL_DDMIN_H

#include "base/status.h"

/* *fails: whether these items alone, in this order, show the failure. An error ends the search. */
typedef ls_status (*ls_ddmin_test)(void *context, const int64_t *items, int64_t n, bool *fails, ls_error *err);

/* items [*n] is known to fail and is shrunk in place, order kept. Stops early, with what it has, after tests_max tests;
 * *n_tests counts them (may be NULL). On an error items are the smallest list known to fail. */
ls_status ls_ddmin(int64_t *items, int64_t *n, ls_ddmin_test test, void *context, int64_t tests_max, int64_t *n_tests,
                   ls_error *err);

/* The same for a number: the smallest value in [low, high] that fails, where high is known to fail and failing is
 * monotone between them. */
typedef ls_status (*ls_bisect_test)(void *context, int64_t value, bool *fails, ls_error *err);
ls_status ls_bisect(int64_t *out, int64_t low, int64_t high, ls_bisect_test test, void *context, ls_error *err);

#endif
