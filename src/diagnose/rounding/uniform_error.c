/* Whether what is wrong with requests alone shows wherever it could, as wrong weights and formulas do. */
#include <math.h>
#include <stdio.h>

#include "base/sort.h"
#include "diagnose/rounding/inquiry.h"

enum { PICKED_MOST = 512 };

/* Middle of the |d| that `pick` picks of requests alone. */
typedef enum picked { SHORT_PROMPTS = 0, LONG_PROMPTS, FIRST_TOKENS_ONLY, LATER_TOKENS_ONLY, ONE_TOKEN_PROMPTS } picked;

static bool is_picked(picked pick, int64_t n_prompt, int64_t i) {
    switch (pick) {
        case SHORT_PROMPTS: return n_prompt <= 9;
        case LONG_PROMPTS: return n_prompt >= 32;
        case FIRST_TOKENS_ONLY: return i == 0;
        case LATER_TOKENS_ONLY: return i > 1;
        default: return n_prompt + i == 1; /* attention has nothing to choose from, and no state is carried */
    }
}

static bool is_solo(picked pick, int r) {
    return (r <= LS_STACK_LENGTHS && r != LS_STACK_AGAIN) || (r == LS_STACK_SINGLE && pick == ONE_TOKEN_PROMPTS);
}

static double middle_of(const ls_foreign *f, picked pick, int64_t *n) {
    double list[PICKED_MOST];
    *n = 0;
    for (int r = LS_STACK_SOLO_A; r <= LS_STACK_SINGLE; r++)
        for (int64_t s = 0; is_solo(pick, r) && s < f->seen[r].outcomes.n; s++) {
            const ls_outcome *c = &f->seen[r].outcomes.of[s];
            for (int64_t i = 0; i < c->n && *n < PICKED_MOST; i++)
                if (is_picked(pick, c->n_prompt, i) && (double)c->scored[i] < LS_SURE_TOKEN)
                    list[(*n)++] = fabs((double)c->scored[i] - (double)c->logprob[i]);
        }
    if (*n == 0) return 0.0;
    ls_sort(list, *n);
    return list[*n / 2];
}

bool ls_foreign_is_uniform(const ls_foreign *f, char *text, size_t bytes) {
    int64_t n_short, n_long, n_first, n_later, n_one;
    const double of_short = middle_of(f, SHORT_PROMPTS, &n_short), of_long = middle_of(f, LONG_PROMPTS, &n_long);
    const double first = middle_of(f, FIRST_TOKENS_ONLY, &n_first), later = middle_of(f, LATER_TOKENS_ONLY, &n_later);
    const double one = middle_of(f, ONE_TOKEN_PROMPTS, &n_one);
    snprintf(text, bytes,
             "median |d| of short prompts %.2g, of long ones %.2g, of first tokens %.2g, of later ones %.2g, of "
             "prompts of one token %.2g",
             of_short, of_long, first, later, one);
    return n_short >= 12 && n_long >= 12 && n_first >= 12 && n_later >= 12 && n_one >= 3 && of_short < 4.0 * of_long &&
           of_long < 4.0 * of_short && first < 2.0 * later && later < 2.0 * first && one > 0.01 * f->floor;
}
