/* Choosing among plans: candidates, their costs, and the table. */
#include "train/train_plan.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/tape.h"
#include "op/memory.h"
#include "op/planned.h"

/* Of a card so much stays free: libraries, graphs and proofs of products take some behind the ledger's back. */
#define KEPT_FREE 32
/* Of a forward, at most; on a device without a limit as well, where the leaf is cut into parts then. */
#define ROWS_MAX 8192
/* Sequences of a forward that are always possible. */
#define SPANS_LEAST 64
/* Sequences that the engine decodes at a time, where nothing is said, on a GPU and elsewhere. */
#define BATCH_GPU 512
#define BATCH_CPU 64
/* Of a prefix cache that nothing is said of: a group's samples share their prompt without it. */
#define PREFIX_BYTES ((int64_t)1 << 30)

/* ---- cards ---- */

#define MIB ((int64_t)1 << 20)

/* The H100's and the H200's were measured (docs/lab), the others' follow from their datasheets. */
static const ls_card cards[] = {
    {"h100-80", "NVIDIA H100 80GB", 81089 * MIB, 3.0e12, 520e12, 40e9, true},
    {"h200", "NVIDIA H200", 143156 * MIB, 4.57e12, 560e12, 40e9, true},
    {"b200", "NVIDIA B200", 182000 * MIB, 7.3e12, 1100e12, 40e9, true},
    {"a100-80", "NVIDIA A100 80GB", 81051 * MIB, 1.85e12, 190e12, 20e9, true},
    {"a100-40", "NVIDIA A100 40GB", 40330 * MIB, 1.4e12, 190e12, 20e9, true},
};
#define N_CARDS ((int)(sizeof cards / sizeof cards[0]))

/* Its rates matter to nothing but the order of plans. */
static const ls_card processor = {"cpu", "a processor", 0, 100e9, 1e12, 50e9, false};

const char *ls_card_names(void) { return "h100-80, h200, b200, a100-80 or a100-40"; }

ls_status ls_card_find(const ls_card **out, const char *name, ls_error *err) {
    for (int i = 0; i < N_CARDS; i++)
        if (strcmp(cards[i].name, name) == 0) {
            *out = &cards[i];
            return LS_OK;
        }
    return LS_FAIL(err, LS_ERR_ARG, "'%s' is no card that is known: %s", name, ls_card_names());
}

const ls_card *ls_card_like(const ls_device *device, int64_t bytes) {
    const ls_card *best = &cards[0];
    if (device->exec.backend != LS_BACKEND_CUDA) return &processor;
    for (int i = 1; i < N_CARDS; i++)
        if (llabs(cards[i].bytes - bytes) < llabs(best->bytes - bytes)) best = &cards[i];
    return best;
}

static double gib(int64_t bytes) { return (double)bytes / (double)((int64_t)1 << 30); }

/* ---- costs ---- */

static int64_t parts(int64_t n, int64_t each) { return n > 0 ? (n - 1) / each + 1 : 0; }

/* Seconds that it takes until one is awake and the other sleeps: pools are made and zeroed, ticks recorded again. */
#define WAKE_SECONDS 0.15

/* What a forward takes whole: a sequence, or a group of those that share what they have in common. */
static int64_t unit_rows(const ls_train_wish *w) { return w->group > 0 ? w->group_rows : w->longest; }
/* Tokens that n sequences are computed as. */
static int64_t computed_tokens(const ls_train_wish *w, int64_t n) {
    return parts(n, w->group > 0 ? w->group : 1) * unit_rows(w);
}

/* Seconds of a step that differ between plans, and about what else a step takes: products at the card's rate, a
 * gradient that every forward's backward reads and writes, the update's 30 bytes a parameter, rollouts by their bytes.
 */
static void cost(ls_train_planned *p, const ls_card *card, const ls_train_wish *w) {
    const ls_train_outlook *o = &p->outlook;
    const double n = (double)o->parameters, tokens = (double)computed_tokens(w, w->sequences);
    const double forward = 2.0 * n * tokens / card->rate;
    const int64_t leaf_rows = computed_tokens(w, w->leaf), leaves = parts(w->sequences, w->leaf);
    const double forwards = (double)(leaves * parts(leaf_rows, p->plan.rows));
    const int64_t again = p->plan.recompute < o->halves ? p->plan.recompute : o->halves;
    p->of_rows = forwards * 8.0 * n / card->bandwidth;
    p->of_recompute = o->halves > 0 ? 0.9 * forward * (double)again / (double)o->halves : 0.0;
    p->of_moments = p->plan.moments_on_host ? (double)o->moment_bytes * (double)o->learnt / card->link : 0.0;
    p->of_gradients = (double)leaves * (double)o->host_gradient_bytes / card->link;
    p->of_sleep = p->plan.sleeps ? 2.0 * WAKE_SECONDS : 0.0;
    p->seconds = 3.3 * forward + p->of_rows + p->of_recompute + p->of_moments + p->of_gradients + p->of_sleep +
                 30.0 * (double)o->learnt / card->bandwidth;
    if (w->has_engine && p->plan.batch > 0) {
        const double batch = (double)(p->plan.batch < w->sequences ? p->plan.batch : w->sequences);
        const double tick = (2.0 * n + batch * (4.0 * (double)o->slot_bytes + 1e5)) / card->bandwidth + 1.2e-3;
        p->seconds += (double)parts(w->sequences, p->plan.batch) * (double)w->new_tokens * tick;
    }
}

/* ---- trying ---- */

/* Who holds what is told of the time when most is held. */
static void look_at_device(void *looker, const ls_device *device) {
    ls_train_planned *p = looker;
    ls_ledger_sum sums[LS_TRAIN_HOLDERS];
    p->used = device->ledger.used_max;
    if (device->ledger.pinned > p->pinned) p->pinned = device->ledger.pinned;
    if (device->ledger.used < p->held) return;
    p->held = device->ledger.used;
    p->n_holders = ls_ledger_largest(&device->ledger, sums, LS_TRAIN_HOLDERS);
    for (int64_t i = 0; i < p->n_holders; i++) {
        snprintf(p->holders[i].what, sizeof p->holders[i].what, "%s", sums[i].what);
        p->holders[i].bytes = sums[i].bytes;
    }
}

/* Looking for the best plan. */
typedef struct search {
    const ls_card *card;
    const ls_train_wish *wish;
    ls_train_rehearse rehearse;
    void *context;
    int64_t total, taken; /* total 0: without a limit, to see what it would need */
    int64_t n_tried, n_fit;
    ls_train_outlook outlook; /* what a rehearsal told, of parameters and halves */
    ls_train_planned best;    /* seconds negative: none */
    ls_train_planned missed;  /* the fastest, if nothing of it were computed again, that does not fit */
} search;

static int64_t kept_free(const search *s) { return s->card->is_gpu ? s->total / KEPT_FREE : 0; }

/* What it would cost; before any plan has fit, nothing is known of the model. */
static void miss(search *s, const ls_train_planned *p) {
    ls_train_planned at = *p;
    at.outlook = s->outlook;
    at.outlook.host_gradient_bytes = 0;
    if (s->n_fit == 0) return;
    cost(&at, s->card, s->wish);
    if (s->missed.seconds < 0 || at.seconds < s->missed.seconds) s->missed = at;
}

/* *fits is false where the card is too small. */
static ls_status try_plan(search *s, ls_train_planned *p, bool *fits, ls_error *err) {
    const ls_planned_opts opts = {s->card->name, s->card->is_gpu, s->total > 0 ? s->total : INT64_MAX / 4,
                                  s->taken + kept_free(s), s->total > 0 ? s->wish->host_bytes : 0};
    ls_device *device = NULL;
    ls_error why = {LS_OK, ""};
    ls_status status;
    *fits = false;
    s->n_tried++;
    LS_TRY_DONE(ls_device_open_planned(&device, &opts, err));
    status = s->rehearse(s->context, device, &p->plan, &p->outlook, look_at_device, p, &why);
    *fits = status == LS_OK;
    if (status == LS_ERR_NOMEM || status == LS_ERR_CAPACITY) {
        status = LS_OK;
    } else if (status != LS_OK && err != NULL) {
        *err = why;
    }
    p->total = s->total;
    p->taken = s->taken + kept_free(s);
    if (!*fits) miss(s, p);
    if (!*fits) goto done;
    s->n_fit++;
    s->outlook = p->outlook;
    cost(p, s->card, s->wish);
    if (s->best.seconds < 0 || p->seconds < s->best.seconds) s->best = *p;
done:
    ls_device_close(device);
    return status;
}

/* The values that are tried of what is open: one where it is not. */
typedef struct values {
    int64_t list[8];
    int64_t n;
} values;

static void put_value(values *v, int64_t value) {
    if (v->n > 0 && v->list[v->n - 1] == value) return;
    v->list[v->n++] = value;
}

/* Rows from the most that are worth it down to one sequence, or group. */
static values rows_tried(const ls_train_wish *w) {
    static const int64_t eighths[] = {8, 6, 5, 4, 3, 2, 1};
    const int64_t leaf = computed_tokens(w, w->leaf), least = unit_rows(w);
    const int64_t most = leaf < ROWS_MAX ? leaf : ROWS_MAX;
    values v = {{0}, 0};
    if (w->rows > 0) {
        put_value(&v, w->rows);
        return v;
    }
    for (int i = 0; i < (int)(sizeof eighths / sizeof eighths[0]); i++)
        put_value(&v, most / 8 * eighths[i] > least ? most / 8 * eighths[i] : least);
    put_value(&v, least);
    return v;
}

static values batches_tried(const ls_card *card, const ls_train_wish *w) {
    values v = {{0}, 0};
    if (w->batch > 0 || !w->has_engine || !card->is_gpu) {
        put_value(&v, w->batch > 0 ? w->batch : BATCH_CPU);
        return v;
    }
    for (int64_t batch = BATCH_GPU; batch >= BATCH_CPU; batch /= 2)
        put_value(&v, batch < w->sequences ? batch : w->sequences);
    return v;
}

static values both(int32_t wish) {
    values v = {{0}, 0};
    if (wish != 1) put_value(&v, 0);
    if (wish != 0) put_value(&v, 1);
    return v;
}

static ls_status refuse_plan(const search *s, const ls_train_planned *least, ls_error *err) {
    char holders[400] = "";
    size_t used = 0;
    for (int64_t i = 0; i < least->n_holders && i < 5 && used < sizeof holders; i++)
        used += (size_t)snprintf(holders + used, sizeof holders - used, "%s%s %.2f", i > 0 ? ", " : "",
                                 least->holders[i].what, gib(least->holders[i].bytes));
    return LS_FAIL(err, LS_ERR_CAPACITY,
                   "memory: the smallest plan needs %.2f GiB of the %.2f of %s, %.2f of them taken or kept free; "
                   "in GiB: %s",
                   gib(least->used), gib(s->total), s->card->title, gib(s->taken + kept_free(s)), holders);
}

static int64_t prefix_of(const ls_card *card, const ls_train_wish *w) {
    return card->is_gpu && w->has_engine && w->batch == 0 ? PREFIX_BYTES : 0;
}

/* Each has a state in the forward's cache. Few of them are as long as the longest, and a leaf may be cut anywhere, but
 * in groups. Of a group there are as many trunks as sequences, at most. */
static int64_t spans_of(const ls_train_wish *w, int64_t rows) {
    const int64_t most = w->group > 0 ? 2 * w->group * parts(rows, w->group_rows) : 4 * parts(rows, w->longest);
    return most > SPANS_LEAST ? most : SPANS_LEAST;
}

/* Whether a plan could be the best if nothing were computed again and no gradient waited on the host. */
static bool is_worth_a_try(const search *s, const ls_train_planned *p) {
    ls_train_planned at = *p;
    at.outlook = s->outlook;
    at.outlook.host_gradient_bytes = 0;
    at.plan.recompute = 0;
    cost(&at, s->card, s->wish);
    return s->best.seconds < 0 || at.seconds < s->best.seconds;
}

/* How closely the fewest halves are looked for that must be computed again, in parts of all. */
#define HALVES_PARTS 16

/* With as little computed again as it takes; more of it never takes more memory. */
static ls_status try_halves(search *s, const ls_train_planned *of, ls_error *err) {
    const int64_t wish = s->wish->recompute;
    ls_train_planned at = *of;
    int64_t below = 0, most;
    bool fits;
    at.plan.recompute = wish < 0 ? 0 : wish;
    LS_TRY(try_plan(s, &at, &fits, err));
    if (fits || wish >= 0) return LS_OK;
    at = *of;
    at.plan.recompute = LS_RECOMPUTE_ALL;
    LS_TRY(try_plan(s, &at, &fits, err));
    if (!fits) return LS_OK;
    most = s->outlook.halves;
    for (int64_t step = (most - 1) / HALVES_PARTS + 1; most - below > step;) {
        at = *of;
        at.plan.recompute = below + (most - below) / 2;
        LS_TRY(try_plan(s, &at, &fits, err));
        if (fits) most = at.plan.recompute;
        if (!fits) below = at.plan.recompute;
    }
    return LS_OK;
}

/* One where the card is a processor's: its memory is the host's, and pools cost what is touched of them. */
static values sleeps_tried(const ls_card *card, const ls_train_wish *w) {
    return both(!w->has_engine || (w->sleeps < 0 && !card->is_gpu) ? 0 : w->sleeps);
}

/* All gradients that a step needs on the device, or what fits of them. */
static values gradients_tried(const ls_train_wish *w) {
    values v = {{0}, 0};
    if (w->gradients > 0) {
        put_value(&v, w->gradients);
        return v;
    }
    put_value(&v, LS_GRADIENTS_ALL);
    put_value(&v, 0);
    return v;
}

/* What is tried of everything that is open. */
typedef struct ranges {
    values rows, batches, moments, sleeps, gradients;
} ranges;

static ranges ranges_of(const search *s) {
    const ls_train_wish *w = s->wish;
    return (ranges){rows_tried(w), batches_tried(s->card, w), both(w->moments_on_host), sleeps_tried(s->card, w),
                    gradients_tried(w)};
}

/* The last of each. */
static ls_train_planned smallest_of(const search *s, const ranges *r) {
    const int64_t rows = r->rows.list[r->rows.n - 1];
    return (ls_train_planned){.plan = {.rows = rows,
                                       .spans = spans_of(s->wish, rows),
                                       .moments_on_host = r->moments.list[r->moments.n - 1] != 0,
                                       .sleeps = r->sleeps.list[r->sleeps.n - 1] != 0,
                                       .recompute = s->wish->recompute < 0 ? LS_RECOMPUTE_ALL : s->wish->recompute,
                                       .gradients = r->gradients.list[r->gradients.n - 1],
                                       .batch = r->batches.list[r->batches.n - 1],
                                       .prefix_bytes = prefix_of(s->card, s->wish)}};
}

static search search_for(const ls_card *card, int64_t total, int64_t taken, const ls_train_wish *wish,
                         ls_train_rehearse rehearse, void *context) {
    return (search){.card = card,
                    .wish = wish,
                    .rehearse = rehearse,
                    .context = context,
                    .total = total,
                    .taken = taken,
                    .best = {.seconds = -1},
                    .missed = {.seconds = -1}};
}

bool ls_train_plan_fits(const ls_card *card, int64_t total, int64_t taken, const ls_train_wish *wish,
                        ls_train_rehearse rehearse, void *context) {
    search s = search_for(card, total, taken, wish, rehearse, context);
    const ranges r = ranges_of(&s);
    ls_train_planned least = smallest_of(&s, &r);
    bool fits;
    return try_plan(&s, &least, &fits, NULL) == LS_OK && fits;
}

ls_status ls_train_plan_make(ls_train_planned *out, const ls_card *card, int64_t total, int64_t taken,
                             const ls_train_wish *w, ls_train_rehearse rehearse, void *context, ls_error *err) {
    search s = search_for(card, total, taken, w, rehearse, context);
    const ranges all = ranges_of(&s);
    const values rows = all.rows, batches = all.batches, moments = all.moments, sleeps = all.sleeps,
                 gradients = all.gradients;
    const int64_t n = sleeps.n * batches.n * moments.n * gradients.n * rows.n;
    ls_train_planned least = smallest_of(&s, &all);
    bool fits;
    LS_TRY(try_plan(&s, &least, &fits, err));
    if (!fits) {
        ls_train_planned without = {.plan = least.plan};
        s.total = 0;
        if (w->gradients == 0) without.plan.gradients = 1;
        LS_TRY(try_plan(&s, &without, &fits, err));
        s.total = total;
        return refuse_plan(&s, &without, err);
    }
    for (int64_t i = 0; i < n; i++) { /* rows change fastest, who sleeps slowest */
        const int64_t r = i % rows.n, g = i / rows.n % gradients.n, m = i / rows.n / gradients.n % moments.n;
        const int64_t b = i / rows.n / gradients.n / moments.n % batches.n;
        const int64_t t = i / rows.n / gradients.n / moments.n / batches.n;
        const ls_train_planned p = {.plan = {.rows = rows.list[r],
                                             .spans = spans_of(w, rows.list[r]),
                                             .moments_on_host = moments.list[m] != 0,
                                             .sleeps = sleeps.list[t] != 0,
                                             .gradients = gradients.list[g],
                                             .batch = batches.list[b],
                                             .prefix_bytes = prefix_of(card, w)}};
        if (is_worth_a_try(&s, &p)) LS_TRY(try_halves(&s, &p, err));
    }
    if (s.missed.seconds >= 0 && s.missed.seconds < s.best.seconds) {
        ls_train_planned *missed = &s.missed;
        search without = search_for(card, 0, taken, w, rehearse, context);
        missed->plan.gradients = w->gradients > 0 ? w->gradients : LS_GRADIENTS_ALL;
        LS_TRY(try_plan(&without, missed, &fits, err));
        s.best.missed = missed->plan;
        s.best.missed_used = missed->used;
        s.best.missed_seconds = missed->seconds;
    }
    *out = s.best;
    out->n_tried = s.n_tried;
    out->n_fit = s.n_fit;
    return LS_OK;
}

ls_train_plan ls_train_plan_plain(const ls_train_wish *w, int64_t forward_rows) {
    int64_t rows = w->rows;
    if (rows == 0) rows = forward_rows < 2 * ROWS_MAX ? forward_rows : 2 * ROWS_MAX;
    if (w->rows == 0 && rows < unit_rows(w)) rows = unit_rows(w);
    return (ls_train_plan){.rows = rows,
                           .spans = spans_of(w, rows),
                           .moments_on_host = w->moments_on_host == 1,
                           .recompute = w->recompute > 0 ? w->recompute : 0,
                           .sleeps = w->has_engine && w->sleeps == 1,
                           .batch = w->batch > 0 ? w->batch : BATCH_CPU};
}

/* ---- the table ---- */

static void tell_choice(FILE *file, const char *name, const char *value, double seconds) {
    if (seconds >= 0.0005)
        fprintf(file, "  %-30s %-12s %8.2f s a step\n", name, value, seconds);
    else
        fprintf(file, "  %-30s %s\n", name, value);
}

static void name_recompute(char *text, size_t bytes, int64_t recompute, int64_t halves) {
    snprintf(text, bytes, "%s", recompute == 0 ? "false" : "true");
    if (recompute > 0 && recompute < halves)
        snprintf(text, bytes, "%lld of %lld", (long long)recompute, (long long)halves);
}

void ls_train_plan_tell(FILE *file, const ls_train_planned *p, const ls_card *card, const ls_train_wish *w) {
    char text[48];
    int64_t reported = 0;
    fprintf(file, "plan for %s, %.1f GiB\n", card->title, gib(p->total));
    for (int64_t i = 0; i < p->n_holders; i++) {
        fprintf(file, "  %-30s %8.2f GiB\n", p->holders[i].what, gib(p->holders[i].bytes));
        reported += p->holders[i].bytes;
    }
    if (p->used > reported) fprintf(file, "  %-30s %8.2f GiB\n", "all else", gib(p->used - reported));
    fprintf(file, "  %-30s %8.2f GiB\n", "context, libraries, kept free", gib(p->taken));
    fprintf(file, "  %-30s %8.2f GiB\n", "left", gib(p->total - p->taken - p->used));
    if (p->pinned > 0) fprintf(file, "  %-30s %8.2f GiB\n", "pinned memory of the host", gib(p->pinned));
    snprintf(text, sizeof text, "%lld", (long long)p->plan.rows);
    tell_choice(file, "rows", text, p->of_rows);
    tell_choice(file, "moments_on", p->plan.moments_on_host ? "host" : "device", p->of_moments);
    name_recompute(text, sizeof text, p->plan.recompute, p->outlook.halves);
    tell_choice(file, "recompute", text, p->of_recompute);
    if (w->has_engine) tell_choice(file, "sleep", p->plan.sleeps ? "true" : "false", p->of_sleep);
    if (p->outlook.host_gradient_bytes > 0) tell_choice(file, "gradients on the host", "", p->of_gradients);
    if (w->has_engine) {
        snprintf(text, sizeof text, "%lld", (long long)p->plan.batch);
        tell_choice(file, "engine.batch", text, 0.0);
    }
    name_recompute(text, sizeof text, p->missed.recompute, p->outlook.halves);
    if (p->missed_used > 0)
        fprintf(file,
                "  does not fit: rows %lld, moments_on %s, recompute %s, sleep %s: %.2f GiB, %.2f s a step less\n",
                (long long)p->missed.rows, p->missed.moments_on_host ? "host" : "device", text,
                p->missed.sleeps ? "true" : "false", gib(p->missed_used), p->seconds - p->missed_seconds);
    fprintf(file, "  %lld of %lld plans fit; about %.1f s a step at full length\n", (long long)p->n_fit,
            (long long)p->n_tried, p->seconds);
}
