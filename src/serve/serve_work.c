/* The engine's thread: queue, ticks, publication, swaps. Owns the engine and every group until its holders are gone. */
#define _POSIX_C_SOURCE 200809L
#include "serve/serve_work.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fpmode.h"
#include "base/mem.h"

const double ls_work_buckets[LS_WORK_BUCKETS] = {0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5,
                                                 1,     2.5,   5,    10,   30,   60,  120};

typedef struct swap {
    const ls_model *model, *old;
    uint64_t version;
    bool is_done;
    ls_status status;
    ls_error err;
} swap;

struct ls_worker {
    ls_work_opts opts;
    ls_engine *engine;
    pthread_t thread;
    bool has_thread, ends;
    pthread_mutex_t lock;
    pthread_cond_t news;      /* for the engine's thread */
    pthread_cond_t done;      /* for who waits on it: a group, a swap */
    ls_group *groups, *last;  /* all that are unfinished, in the order in which they came */
    ls_group *dead;           /* whom nobody holds, to be freed without the lock */
    ls_completion *live;      /* samples in the engine */
    int64_t n_live, n_queued; /* samples in the engine; those that it has not had yet */
    int64_t n_coming;         /* samples of groups that are being made */
    int64_t n_ranked;         /* groups with a priority that is not 0 */
    bool has_cancels;
    ls_pause pause;
    uint64_t paused_at; /* LS_PAUSE_WAIT: groups up to this number go on */
    ls_work_wait *waits;
    swap *swap;
    uint64_t n_groups;
    ls_work_view view; /* counts; the engine's as of the last tick */
};

void ls_work_lock(ls_worker *w) { pthread_mutex_lock(&w->lock); }
void ls_work_unlock(ls_worker *w) { pthread_mutex_unlock(&w->lock); }

/* ---- groups ---- */

static void free_dead(ls_group *dead) {
    while (dead != NULL) {
        ls_group *next = dead->next;
        ls_group_free(dead);
        dead = next;
    }
}

/* With the lock. Whoever holds nothing of it any more must not look at it again. */
static void leave_group_of(ls_worker *w, ls_group *g) {
    if (--g->holders > 0) return;
    g->next = w->dead;
    w->dead = g;
}

/* Unlocks, and frees what is dead. */
static void unlock_and_bury(ls_worker *w) {
    ls_group *dead = w->dead;
    w->dead = NULL;
    ls_work_unlock(w);
    free_dead(dead);
}

static int64_t unfinished(const ls_worker *w) { return w->n_live + w->n_queued + w->n_coming; }

/* Whoever has a key has room for a few, whatever the others have: a sixteenth of the queue, or as many as there are
 * slots. */
static bool has_room(const ls_worker *w, const ls_client *c, int64_t n) {
    const int64_t batch = w->opts.engine.levers.batch, part = w->opts.queue_max / 16;
    return unfinished(w) == 0 || unfinished(w) + n <= batch + w->opts.queue_max ||
           (c->key != NULL && c->unfinished + n <= (part < batch ? part : batch));
}

bool ls_work_has_room(ls_worker *w, const ls_client *client, int64_t n) {
    bool has;
    ls_work_lock(w);
    has = has_room(w, client, n);
    if (!has) w->view.refused_full++;
    ls_work_unlock(w);
    return has;
}

/* A place for n samples, before anything is allocated for them. */
static ls_status reserve_samples(ls_worker *w, ls_client *c, int64_t n, uint64_t *number, bool *is_full,
                                 ls_error *err) {
    ls_status status = LS_OK;
    ls_work_lock(w);
    if (w->view.failed || w->ends) {
        status = w->ends ? LS_FAIL(err, LS_ERR_DEVICE, "the server is stopping")
                         : LS_FAIL(err, LS_ERR_DEVICE, "%s", w->view.failure.text);
    } else if (!has_room(w, c, n)) {
        *is_full = true;
        w->view.refused_full++;
        status = LS_FAIL(err, LS_ERR_CAPACITY, "%lld completions are unfinished, which is all that the server takes",
                         (long long)unfinished(w));
    } else {
        w->n_coming += n;
        c->unfinished += n;
        *number = ++w->n_groups;
    }
    ls_work_unlock(w);
    return status;
}

static void append_group(ls_worker *w, ls_group *g) {
    g->previous = w->last;
    if (w->last != NULL)
        w->last->next = g;
    else
        w->groups = g;
    w->last = g;
    w->n_ranked += g->ask->priority != 0;
    w->n_queued += g->n_samples;
    w->view.groups++;
}

ls_status ls_work_submit(ls_group **out, ls_worker *w, ls_client *client, ls_ask *ask, const ls_ask_limits *limits,
                         ls_group_wake wake, bool *is_full, ls_error *err) {
    const int64_t n = ls_ask_samples(ask);
    uint64_t number = 0;
    bool is_own;
    ls_group *g;
    ls_status status;
    *out = NULL;
    *is_full = false;
    if ((status = reserve_samples(w, client, n, &number, is_full, err)) != LS_OK) {
        ls_ask_free(ask);
        return status;
    }
    status = ls_group_create(&g, &w->opts.shop, client, number, ask, limits, &is_own, err);
    *is_full = status == LS_ERR_CAPACITY && !is_own;
    ls_work_lock(w);
    w->n_coming -= n;
    if (status == LS_OK && w->ends) {
        status = LS_FAIL(err, LS_ERR_DEVICE, "the server is stopping");
    } else if (status == LS_OK) {
        g->work = w;
        g->wake = wake;
        g->holders = 2; /* the caller's and the thread's */
        append_group(w, g);
        pthread_cond_signal(&w->news);
        *out = g;
        g = NULL;
    }
    if (status != LS_OK) client->unfinished -= n;
    ls_work_unlock(w);
    ls_group_free(g);
    return status;
}

static void cancel_locked(ls_group *g) {
    if (g->is_finished || g->is_cancelled) return;
    g->is_cancelled = g->work->has_cancels = true;
    pthread_cond_signal(&g->work->news);
}

void ls_group_cancel(ls_group *g) {
    ls_work_lock(g->work);
    cancel_locked(g);
    ls_work_unlock(g->work);
}

void ls_group_release(ls_group *g) {
    ls_worker *w = g->work;
    bool is_last;
    ls_work_lock(w);
    cancel_locked(g);
    g->wake.call = NULL;
    is_last = --g->holders == 0;
    ls_work_unlock(w);
    if (is_last) ls_group_free(g);
}

bool ls_group_wait(ls_group *g) {
    ls_worker *w = g->work;
    bool finished;
    ls_work_lock(w);
    while (!g->is_finished && w->pause == LS_PAUSE_NONE) pthread_cond_wait(&w->done, &w->lock);
    finished = g->is_finished;
    ls_work_unlock(w);
    return finished;
}

/* ---- the thread; all of this with the lock but for the tick ---- */

static void count_time(int64_t bucket[16], double *sum, int64_t *n, double seconds) {
    int i = 0;
    while (i < LS_WORK_BUCKETS && seconds > ls_work_buckets[i]) i++;
    bucket[i]++;
    *sum += seconds;
    ++*n;
}

static void finish_group(ls_worker *w, ls_group *g) {
    if (g->previous != NULL)
        g->previous->next = g->next;
    else
        w->groups = g->next;
    if (g->next != NULL)
        g->next->previous = g->previous;
    else
        w->last = g->previous;
    g->next = g->previous = NULL;
    w->n_ranked -= g->ask->priority != 0;
    g->is_finished = true;
    pthread_cond_broadcast(&w->done);
    if (g->wake.call != NULL) g->wake.call(g->wake.context);
    leave_group_of(w, g);
}

/* The group may be dead behind it. */
static void end_sample(ls_worker *w, ls_completion *s, double now) {
    ls_work_view *v = &w->view;
    s->finish = s->request.finish;
    s->last_s = now;
    s->version = v->version;
    if (s->finish == LS_FINISH_STOP) v->finished_stop++;
    if (s->finish == LS_FINISH_LENGTH) v->finished_length++;
    if (s->finish == LS_FINISH_CANCEL) v->finished_cancel++;
    if (s->finish == LS_FINISH_ERROR) v->finished_error++;
    if (s->finish != LS_FINISH_CANCEL) count_time(v->whole_bucket, &v->whole_sum, &v->whole_n, now - s->group->born_s);
    s->group->client->unfinished--;
    if (++s->group->n_done == s->group->n_samples) finish_group(w, s->group);
}

static void run_sample(ls_worker *w, ls_group *g, double now) {
    ls_completion *s = &g->samples[g->n_taken];
    ls_status status = ls_sample_open(g, g->n_taken, &s->request.error);
    g->n_taken++;
    w->n_queued--;
    if (status == LS_OK) status = ls_engine_submit(w->engine, &s->request, &s->request.error);
    if (status != LS_OK) {
        s->request.finish = LS_FINISH_ERROR;
        end_sample(w, s, now);
        return;
    }
    w->n_live++;
    g->n_running++;
    g->client->running++;
    w->view.prompt_tokens += s->request.n_prompt;
    s->next = w->live;
    w->live = s;
}

static bool is_first(const ls_group *a, const ls_group *b) {
    if (a->ask->priority != b->ask->priority) return a->ask->priority < b->ask->priority;
    if (a->client->running != b->client->running) return a->client->running < b->client->running;
    return a->n_running < b->n_running;
}

/* Whose turn it is; NULL: nobody's. */
static ls_group *next_group(const ls_worker *w) {
    ls_group *best = NULL;
    for (ls_group *g = w->groups; g != NULL; g = g->next) {
        if (w->pause == LS_PAUSE_WAIT && g->number > w->paused_at) continue;
        if (g->n_taken == g->n_samples || g->is_cancelled) continue;
        if (best == NULL || is_first(g, best)) best = g;
        if (w->n_ranked == 0 && best->n_running == 0 && (w->opts.one_client || best->client->running == 0)) break;
    }
    return best;
}

/* A slot is free, or one of the less urgent will give its own: that is the engine's to do. */
static bool has_place(const ls_worker *w, const ls_group *g) {
    const int64_t batch = w->opts.engine.levers.batch;
    if (w->n_live < batch) return true;
    if (w->n_ranked == 0 || w->n_live >= 2 * batch) return false;
    for (const ls_completion *s = w->live; s != NULL; s = s->next)
        if (s->request.priority > g->ask->priority) return true;
    return false;
}

static void feed(ls_worker *w, double now) {
    ls_group *g;
    while (w->n_queued > 0 && (g = next_group(w)) != NULL && has_place(w, g)) run_sample(w, g, now);
}

/* The rest of a group will not run. */
static void end_queued(ls_worker *w, ls_group *g, ls_finish finish, const ls_error *err, double now) {
    const int64_t n = g->n_samples - g->n_taken, first = g->n_taken;
    w->n_queued -= n;
    g->n_taken += n;
    g->holders++; /* until the last of them has ended */
    for (int64_t i = 0; i < n; i++) {
        ls_completion *s = &g->samples[first + i];
        s->request.finish = finish;
        if (err != NULL) s->request.error = *err;
        end_sample(w, s, now);
    }
    leave_group_of(w, g);
}

/* What nobody wants any more, in the engine and in the queue. */
static void take_cancels(ls_worker *w, double now) {
    w->has_cancels = false;
    for (ls_completion *s = w->live; s != NULL; s = s->next)
        if (s->group->is_cancelled && s->request.finish == LS_FINISH_NONE) {
            const ls_status status = ls_engine_cancel(w->engine, &s->request, NULL);
            LS_ASSERT(status == LS_OK, "request %llu lives", (unsigned long long)s->group->number);
        }
    for (ls_group *g = w->groups, *next; g != NULL; g = next) {
        next = g->next; /* which ends of its own only */
        if (g->is_cancelled && g->n_taken < g->n_samples) end_queued(w, g, LS_FINISH_CANCEL, NULL, now);
    }
}

/* Writes a second of all streams together: many streams send less often each, and more at a time. */
#define STREAM_WRITES 1500.0

/* Tells what the tick drew and who has ended. */
static void publish_tick(ls_worker *w, double now) {
    ls_completion **place = &w->live;
    const double each = (double)w->n_live / STREAM_WRITES;
    const double pace = each > w->opts.stream_seconds ? each : w->opts.stream_seconds;
    while (*place != NULL) {
        ls_completion *s = *place;
        ls_group *g = s->group;
        if (s->n_public == 0 && s->request.n_completion > 0) {
            s->first_s = now;
            count_time(w->view.first_bucket, &w->view.first_sum, &w->view.first_n, now - g->born_s);
        }
        if (s->n_public != s->request.n_completion && g->ask->stream && g->wake.call != NULL &&
            (s->n_public == 0 || now - g->woken_s >= pace)) {
            g->woken_s = now;
            g->wake.call(g->wake.context);
        }
        s->n_public = s->request.n_completion;
        ls_sample_count(s);
        if (g->excess.status != LS_OK) cancel_locked(g);
        if (s->request.finish == LS_FINISH_NONE) {
            place = &s->next;
            continue;
        }
        *place = s->next;
        w->n_live--;
        g->n_running--;
        g->client->running--;
        end_sample(w, s, now);
    }
    ls_engine_get_stats(w->engine, &w->view.engine);
}

/* Streams are told all that there is before the engine rests. */
static void wake_streams(ls_worker *w) {
    for (ls_group *g = w->groups; g != NULL; g = g->next)
        if (g->ask->stream && g->n_taken > 0 && g->wake.call != NULL) g->wake.call(g->wake.context);
}

static void do_swap(ls_worker *w) {
    swap *s = w->swap;
    w->swap = NULL;
    s->status = ls_engine_set_weights(w->engine, s->model, s->version, &s->err);
    if (s->status == LS_OK) {
        s->old = w->opts.model;
        w->opts.model = s->model;
        w->view.version = s->version;
    }
    s->is_done = true;
    pthread_cond_broadcast(&w->done);
}

/* The engine has failed for good: nobody waits for what will not come. */
static void fail_all(ls_worker *w, double now) {
    for (ls_completion *s = w->live; s != NULL; s = s->next) {
        if (s->request.finish != LS_FINISH_NONE) continue;
        ls_engine_cancel(w->engine, &s->request, NULL);
        s->request.finish = LS_FINISH_ERROR;
        s->request.error = w->view.failure;
    }
    for (ls_group *g = w->groups, *next; g != NULL; g = next) {
        next = g->next;
        if (g->n_taken < g->n_samples) end_queued(w, g, LS_FINISH_ERROR, &w->view.failure, now);
    }
    publish_tick(w, now);
}

/* ---- waits ---- */

static bool is_drained(const ls_worker *w) {
    if (w->n_live > 0 || w->has_cancels) return false;
    for (const ls_group *g = w->groups; w->pause == LS_PAUSE_WAIT && g != NULL; g = g->next)
        if (g->number <= w->paused_at) return false;
    return true;
}

static bool is_over(const ls_worker *w, const ls_work_wait *wait) {
    if (wait->pause == LS_PAUSE_NONE || wait->pause == LS_PAUSE_KEEP || w->pause != wait->pause) return true;
    return is_drained(w);
}

static void end_wait(ls_worker *w, ls_work_wait *wait) {
    if (w->view.failed || w->ends)
        LS_FAIL(&wait->err, LS_ERR_DEVICE, "the engine has ended");
    else if (wait->flush)
        ls_engine_flush(w->engine);
    wait->is_pending = false;
    wait->wake(wait->context);
}

/* Those that are over, by the engine's thread between two ticks. */
static void end_waits(ls_worker *w) {
    ls_work_wait **place = &w->waits;
    while (*place != NULL) {
        ls_work_wait *wait = *place;
        if (!is_over(w, wait) && !w->view.failed && !w->ends) {
            place = &wait->next;
            continue;
        }
        *place = wait->next;
        end_wait(w, wait);
    }
}

/* ---- the loop ---- */

static bool may_tick(const ls_worker *w) {
    return w->n_live > 0 && (w->pause == LS_PAUSE_NONE || w->pause == LS_PAUSE_WAIT) && !w->view.failed;
}

static void between_ticks(ls_worker *w) {
    const double now = ls_clock_seconds();
    publish_tick(w, now);
    if (w->view.failed) {
        fail_all(w, now);
        pthread_cond_broadcast(&w->done);
    }
    if (w->has_cancels) {
        take_cancels(w, now);
        publish_tick(w, now);
    }
    if (w->pause == LS_PAUSE_NONE || w->pause == LS_PAUSE_WAIT) feed(w, now);
    if (w->swap != NULL) do_swap(w);
    end_waits(w);
}

static void *drive(void *context) {
    ls_worker *w = context;
    ls_error err;
    ls_fpmode_enter(NULL);
    ls_work_lock(w);
    for (;;) {
        ls_status status;
        between_ticks(w);
        if (!may_tick(w)) {
            if (w->ends && w->groups == NULL) break;
            wake_streams(w);
            if (w->dead != NULL) {
                unlock_and_bury(w);
                ls_work_lock(w);
                continue; /* something may have come */
            }
            if (!w->has_cancels) pthread_cond_wait(&w->news, &w->lock);
            continue;
        }
        unlock_and_bury(w);
        status = ls_engine_tick(w->engine, &err);
        ls_work_lock(w);
        if (status == LS_OK) continue;
        w->view.failed = true;
        w->view.failure = err;
    }
    unlock_and_bury(w);
    return NULL;
}

/* ---- operators ---- */

static void cancel_all(ls_worker *w) {
    for (ls_group *g = w->groups; g != NULL; g = g->next) cancel_locked(g);
}

static void add_wait(ls_worker *w, ls_work_wait *wait, ls_pause how, bool flush) {
    wait->pause = how;
    wait->flush = flush;
    wait->err.status = LS_OK;
    wait->is_pending = true;
    wait->next = w->waits;
    w->waits = wait;
    if (w->ends) end_waits(w); /* the thread may be gone */
    pthread_cond_signal(&w->news);
}

void ls_work_pause(ls_worker *w, ls_pause how, bool flush, ls_work_wait *wait) {
    ls_work_lock(w);
    w->pause = how;
    w->paused_at = w->n_groups;
    if (how == LS_PAUSE_ABORT) cancel_all(w);
    wait->is_pending = false;
    wait->err.status = LS_OK;
    if (how != LS_PAUSE_KEEP || flush) add_wait(w, wait, how, flush);
    pthread_cond_signal(&w->news);
    pthread_cond_broadcast(&w->done);
    ls_work_unlock(w);
}

void ls_work_flush(ls_worker *w, ls_work_wait *wait) {
    ls_work_lock(w);
    add_wait(w, wait, LS_PAUSE_NONE, true);
    ls_work_unlock(w);
}

bool ls_work_is_waiting(ls_worker *w, const ls_work_wait *wait) {
    bool is;
    ls_work_lock(w);
    is = wait->is_pending;
    ls_work_unlock(w);
    return is;
}

void ls_work_forget(ls_worker *w, ls_work_wait *wait) {
    ls_work_wait **place = &w->waits;
    ls_work_lock(w);
    while (*place != NULL && *place != wait) place = &(*place)->next;
    if (*place != NULL) *place = wait->next;
    wait->is_pending = false;
    ls_work_unlock(w);
}

void ls_work_resume(ls_worker *w) {
    ls_work_lock(w);
    w->pause = LS_PAUSE_NONE;
    pthread_cond_signal(&w->news);
    ls_work_unlock(w);
}

bool ls_work_is_paused(ls_worker *w) {
    bool paused;
    ls_work_lock(w);
    paused = w->pause != LS_PAUSE_NONE;
    ls_work_unlock(w);
    return paused;
}

int64_t ls_work_abort(ls_worker *w, const char *name) {
    int64_t n = 0;
    ls_work_lock(w);
    for (ls_group *g = w->groups; g != NULL; g = g->next) {
        if (name[0] != '\0' && strcmp(g->name, name) != 0 && (g->ask->id == NULL || strcmp(g->ask->id, name) != 0))
            continue;
        n += !g->is_cancelled;
        cancel_locked(g);
    }
    ls_work_unlock(w);
    return n;
}

ls_status ls_work_swap(ls_worker *w, const ls_model *model, uint64_t version, const ls_model **old, ls_error *err) {
    swap s = {.model = model, .version = version};
    ls_work_lock(w);
    w->swap = &s;
    pthread_cond_signal(&w->news);
    while (!s.is_done && !w->view.failed && !w->ends) pthread_cond_wait(&w->done, &w->lock);
    if (!s.is_done) {
        w->swap = NULL;
        s.status = LS_FAIL(&s.err, LS_ERR_DEVICE, "the engine has ended");
    }
    ls_work_unlock(w);
    if (s.status != LS_OK && err != NULL) *err = s.err;
    *old = s.old;
    return s.status;
}

void ls_work_look(ls_worker *w, ls_work_view *out) {
    ls_work_lock(w);
    *out = w->view;
    out->running = w->view.engine.slots_used < w->n_live ? w->view.engine.slots_used : w->n_live;
    out->waiting = w->n_live - out->running + w->n_queued;
    out->paused = w->pause != LS_PAUSE_NONE;
    ls_work_unlock(w);
}

/* ---- beginning and end ---- */

ls_status ls_work_create(ls_worker **out, const ls_work_opts *opts, ls_error *err) {
    ls_worker *w = calloc(1, sizeof *w);
    ls_status status;
    *out = NULL;
    if (w == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "server");
    w->opts = *opts;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->news, NULL);
    pthread_cond_init(&w->done, NULL);
    w->view.version = opts->version;
    LS_TRY_DONE(ls_logit_tools_create(&w->opts.shop.tools, opts->model->config.vocab, err));
    LS_TRY_DONE(ls_engine_create(&w->engine, opts->model, opts->device, &opts->engine, err));
    ls_engine_get_plan(w->engine, &w->view.plan);
    if (pthread_create(&w->thread, NULL, drive, w) != 0) {
        status = LS_FAIL(err, LS_ERR_NOMEM, "server: cannot start a thread");
        goto done;
    }
    w->has_thread = true;
    *out = w;
    w = NULL;
done:
    ls_work_free(w);
    return status;
}

void ls_work_end(ls_worker *w) {
    ls_work_lock(w);
    w->ends = true;
    w->pause = LS_PAUSE_NONE;
    cancel_all(w);
    end_waits(w);
    pthread_cond_signal(&w->news);
    pthread_cond_broadcast(&w->done);
    ls_work_unlock(w);
}

void ls_work_free(ls_worker *w) {
    if (w == NULL) return;
    if (w->has_thread) {
        ls_work_end(w);
        pthread_join(w->thread, NULL);
        if (!w->view.failed) ls_engine_check_idle(w->engine);
    }
    free_dead(w->dead);
    ls_engine_free(w->engine);
    ls_logit_tools_free(w->opts.shop.tools);
    pthread_cond_destroy(&w->done);
    pthread_cond_destroy(&w->news);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
