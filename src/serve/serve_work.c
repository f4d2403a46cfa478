/* The engine's thread: queue, ticks, publication, swaps. Owns the engine and every group until its holders are gone. */
#define _POSIX_C_SOURCE 200809L
#include "serve/serve_work.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/fpmode.h"
#include "base/mem.h"
#include "base/rng.h"

const double ls_work_buckets[LS_WORK_BUCKETS] = {0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5,
                                                 1,     2.5,   5,    10,   30,   60,  120};

typedef struct swap {
    const ls_model *model, *old;
    uint64_t version;
    bool flush; /* only that */
    bool is_done;
    ls_status status;
    ls_error err;
} swap;

struct ls_worker {
    ls_work_opts opts;
    ls_engine *engine;
    ls_sight_tools *tools;
    pthread_t thread;
    bool has_thread, ends;
    pthread_mutex_t lock;
    pthread_cond_t news;                /* for the engine's thread */
    pthread_cond_t done;                /* for who waits on it: a group, a swap, a drain */
    ls_group *incoming, *last_incoming; /* a queue; groups with `next` */
    ls_group *taken;                    /* all that were, until they are finished; doubly linked */
    ls_completion *live;                /* samples in the engine */
    int64_t n_live, n_queued;           /* samples in the engine; in the queue */
    bool has_cancels;
    ls_pause pause;
    swap *swap;
    uint64_t n_groups;
    ls_work_view view; /* counts; the engine's as of the last tick */
};

void ls_work_lock(ls_worker *w) { pthread_mutex_lock(&w->lock); }
void ls_work_unlock(ls_worker *w) { pthread_mutex_unlock(&w->lock); }

/* ---- groups ---- */

static void sample_deinit(ls_completion *s) {
    ls_sights_deinit(&s->sights);
    ls_sights_deinit(&s->prompt_sights);
    free(s->completion);
    free(s->logprob);
    free(s->prompt_logprob);
    free(s->weights);
}

static void group_free(ls_group *g) {
    if (g == NULL) return;
    for (int64_t i = 0; g->samples != NULL && i < g->n_samples; i++) sample_deinit(&g->samples[i]);
    free(g->samples);
    ls_stop_free(g->stop);
    ls_ask_free(g->ask);
    free(g);
}

/* Ends of a completion that are the request's own: its tokens, its texts. Called by the engine. */
static bool should_stop(void *context, const int32_t *completion, int64_t n) {
    ls_completion *s = context;
    const ls_work_opts *o = &s->group->work->opts;
    const ls_ask *a = s->group->ask;
    const int32_t token = completion[n - 1];
    s->ended_by_id = s->ended_by_eos = true;
    s->stop_id = token;
    for (int64_t i = 0; i < o->n_eos && !a->ignore_eos; i++)
        if (o->eos[i] == token) return true;
    s->ended_by_eos = false;
    for (int64_t i = 0; i < a->n_stop_ids; i++)
        if (a->stop_ids[i] == token) return true;
    s->ended_by_id = false;
    s->stop_id = -1;
    return s->group->stop != NULL && ls_stop_reached(&s->stop_state, completion, n);
}

static void look(void *context, int64_t position, int32_t token, const float *logits, int64_t vocab) {
    ls_completion *s = context;
    ls_group *g = s->group;
    const int64_t n = s->request.n_prompt;
    const bool in_prompt = position < n;
    (void)vocab;
    if (s->look_error.status != LS_OK || (in_prompt && s->prompt_sights.n_rows == 0) ||
        (!in_prompt && s->sights.n_rows == 0))
        return;
    s->look_error.status = ls_sights_look(in_prompt ? &s->prompt_sights : &s->sights, g->work->tools,
                                          in_prompt ? position - 1 : position - n, token, logits, &g->sampling,
                                          in_prompt ? LS_LOGPROB_RAW : g->work->opts.engine.logprob_of, &s->look_error);
}

static ls_status sample_init(ls_completion *s, ls_group *g, int64_t i, int64_t room, ls_error *err) {
    const ls_ask *a = g->ask;
    const int64_t n = a->n > 0 ? a->n : 1;
    const ls_ask_prompt *p = &a->prompts[i / n];
    const bool sees = a->top > 0 || a->distributions || a->mask || (a->top == 0 && a->kind == LS_ASK_TOKENS);
    ls_request *r = &s->request;
    s->group = g;
    LS_TRY(ls_array_alloc((void **)&s->completion, room, sizeof *s->completion, "completion", err));
    LS_TRY(ls_array_alloc((void **)&s->logprob, room, sizeof *s->logprob, "completion", err));
    LS_TRY(ls_array_alloc((void **)&s->weights, room, sizeof *s->weights, "completion", err));
    if (sees) LS_TRY(ls_sights_init(&s->sights, room, a->top, a->distributions, a->mask, err));
    if (a->prompt_top >= 0) {
        LS_TRY(ls_array_alloc((void **)&s->prompt_logprob, p->n, sizeof(float), "prompt's log-probabilities", err));
        if (a->kind != LS_ASK_SCORE && a->kind != LS_ASK_SGLANG)
            LS_TRY(ls_sights_init(&s->prompt_sights, p->n - 1, a->prompt_top, false, false, err));
    }
    *r = (ls_request){.prompt = p->ids,
                      .n_prompt = p->n,
                      .prompt_i = a->first_prompt + (uint32_t)(i / n),
                      .sample_i = a->first_sample + (uint32_t)(i % n),
                      .owner = g->number,
                      .salt = a->salt,
                      .sampling = &g->sampling,
                      .penalties = ls_penalties_act(&a->penalties) ? &a->penalties : NULL,
                      .max_tokens = room,
                      .priority = a->priority,
                      .stop = should_stop,
                      .stop_context = s,
                      .completion = s->completion,
                      .logprob = s->logprob,
                      .weights = s->weights,
                      .prompt_logprob = s->prompt_logprob,
                      .see = s->sights.n_rows > 0 || s->prompt_sights.n_rows > 0 ? look : NULL,
                      .see_context = s};
    if (g->stop != NULL) ls_stop_begin(&s->stop_state, g->stop);
    return LS_OK;
}

static ls_status group_create(ls_group **out, ls_worker *w, ls_ask *ask, const ls_ask_limits *limits, ls_error *err) {
    ls_group *g = calloc(1, sizeof *g);
    ls_status status;
    *out = NULL;
    if (g == NULL) {
        ls_ask_free(ask);
        return LS_FAIL(err, LS_ERR_NOMEM, "request");
    }
    g->ask = ask;
    g->work = w;
    g->n_samples = ask->n_prompts * (ask->n > 0 ? ask->n : 1);
    g->born_s = ls_clock_seconds();
    g->created = (int64_t)time(NULL);
    ls_work_lock(w);
    g->number = ++w->n_groups;
    ls_work_unlock(w);
    g->sampling = ask->sampling;
    if (!ask->has_seed) {
        const ls_philox draw = ls_philox_draw(w->opts.seed, 7, 0, (uint32_t)(g->number >> 32), (uint32_t)g->number);
        g->sampling.seed = ((uint64_t)draw.word[0] << 32 | draw.word[1]) >> 1; /* one that JSON readers have */
    }
    snprintf(g->name, sizeof g->name, "%s-%016llx%08llx", ask->kind == LS_ASK_CHAT ? "chatcmpl" : "cmpl",
             (unsigned long long)w->opts.seed, (unsigned long long)g->number);
    if (ask->n_stop > 0)
        LS_TRY_DONE(ls_stop_create(&g->stop, w->opts.tokenizer, (const char *const *)ask->stop, ask->n_stop, err));
    LS_TRY_DONE(ls_array_alloc((void **)&g->samples, g->n_samples, sizeof *g->samples, "request", err));
    for (int64_t i = 0; i < g->n_samples; i++)
        LS_TRY_DONE(sample_init(&g->samples[i], g, i, ls_ask_room(ask, limits, i / (ask->n > 0 ? ask->n : 1)), err));
    *out = g;
    g = NULL;
done:
    group_free(g);
    return status;
}

/* With the lock. */
static void group_leave(ls_group *g) {
    if (--g->holders == 0) group_free(g);
}

ls_status ls_work_submit(ls_group **out, ls_worker *w, ls_ask *ask, const ls_ask_limits *limits,
                         void (*wake)(void *context), void *wake_context, bool *is_full, ls_error *err) {
    ls_group *g;
    ls_status status;
    *out = NULL;
    *is_full = false;
    LS_TRY(group_create(&g, w, ask, limits, err));
    ls_work_lock(w);
    if (w->view.failed || w->ends) {
        status = w->ends ? LS_FAIL(err, LS_ERR_DEVICE, "the server is stopping")
                         : LS_FAIL(err, LS_ERR_DEVICE, "%s", w->view.failure.text);
        goto done;
    }
    if (w->n_live + w->n_queued > 0 &&
        w->n_live + w->n_queued + g->n_samples > w->opts.engine.levers.batch + w->opts.queue_max) {
        *is_full = true;
        w->view.refused_full++;
        status = LS_FAIL(err, LS_ERR_CAPACITY, "%lld completions are unfinished, which is all that the server takes",
                         (long long)(w->n_live + w->n_queued));
        goto done;
    }
    g->wake = wake;
    g->wake_context = wake_context;
    g->holders = 2; /* the caller's and the thread's */
    if (w->last_incoming == NULL)
        w->incoming = g;
    else
        w->last_incoming->next = g;
    w->last_incoming = g;
    w->n_queued += g->n_samples;
    w->view.groups++;
    pthread_cond_signal(&w->news);
    *out = g;
    g = NULL;
    status = LS_OK;
done:
    ls_work_unlock(w);
    group_free(g);
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
    ls_work_lock(w);
    cancel_locked(g);
    g->wake = NULL;
    group_leave(g);
    ls_work_unlock(w);
}

void ls_group_wait(ls_group *g) {
    ls_work_lock(g->work);
    while (!g->is_finished) pthread_cond_wait(&g->work->done, &g->work->lock);
    ls_work_unlock(g->work);
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
        w->taken = g->next;
    if (g->next != NULL) g->next->previous = g->previous;
    g->is_finished = true;
    pthread_cond_broadcast(&w->done);
    if (g->wake != NULL) g->wake(g->wake_context);
    group_leave(g);
}

/* Returns whether that was the group's last. */
static bool end_sample(ls_worker *w, ls_completion *s, double now) {
    ls_work_view *v = &w->view;
    s->finish = s->request.finish;
    s->last_s = now;
    s->version = v->version;
    if (s->finish == LS_FINISH_STOP) v->finished_stop++;
    if (s->finish == LS_FINISH_LENGTH) v->finished_length++;
    if (s->finish == LS_FINISH_CANCEL) v->finished_cancel++;
    if (s->finish == LS_FINISH_ERROR) v->finished_error++;
    if (s->finish != LS_FINISH_CANCEL) count_time(v->whole_bucket, &v->whole_sum, &v->whole_n, now - s->group->born_s);
    return ++s->group->n_done == s->group->n_samples;
}

static void take_group(ls_worker *w, ls_group *g, double now) {
    g->next = w->taken;
    g->previous = NULL;
    if (w->taken != NULL) w->taken->previous = g;
    w->taken = g;
    for (int64_t i = 0; i < g->n_samples; i++) {
        ls_completion *s = &g->samples[i];
        w->n_queued--;
        if (g->is_cancelled) {
            s->request.finish = LS_FINISH_CANCEL;
        } else if (ls_engine_submit(w->engine, &s->request, &s->request.error) != LS_OK) {
            s->request.finish = LS_FINISH_ERROR;
        } else {
            w->n_live++;
            w->view.prompt_tokens += s->request.n_prompt;
            s->next = w->live;
            w->live = s;
            continue;
        }
        if (end_sample(w, s, now)) finish_group(w, g);
    }
}

static void take_incoming(ls_worker *w, double now) {
    while (w->incoming != NULL) {
        ls_group *g = w->incoming;
        w->incoming = g->next;
        if (w->incoming == NULL) w->last_incoming = NULL;
        take_group(w, g, now);
    }
}

/* What nobody wants any more, in the engine and in the queue. */
static void take_cancels(ls_worker *w) {
    ls_group *kept = NULL, **end = &kept;
    w->has_cancels = false;
    for (ls_completion *s = w->live; s != NULL; s = s->next)
        if (s->group->is_cancelled && s->request.finish == LS_FINISH_NONE) {
            const ls_status status = ls_engine_cancel(w->engine, &s->request, NULL);
            LS_ASSERT(status == LS_OK, "request %llu lives", (unsigned long long)s->group->number);
        }
    /* Queued ones go through take_group, which sees the mark; a paused queue must not keep them. */
    w->last_incoming = NULL;
    for (ls_group *g = w->incoming, *next; g != NULL; g = next) {
        next = g->next;
        g->next = NULL;
        if (g->is_cancelled) {
            take_group(w, g, ls_clock_seconds());
            continue;
        }
        *end = g;
        end = &g->next;
        w->last_incoming = g;
    }
    w->incoming = kept;
}

/* Writes a second of all streams together: many streams send less often each, and more at a time. */
#define STREAM_WRITES 1500.0

/* Tells what the tick drew and who has ended. */
static void publish(ls_worker *w, double now) {
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
        if (s->n_public != s->request.n_completion && g->ask->stream && g->wake != NULL &&
            (s->n_public == 0 || now - g->woken_s >= pace)) {
            g->woken_s = now;
            g->wake(g->wake_context);
        }
        s->n_public = s->request.n_completion;
        if (s->request.finish == LS_FINISH_NONE) {
            place = &s->next;
            continue;
        }
        *place = s->next;
        w->n_live--;
        if (end_sample(w, s, now)) finish_group(w, g);
    }
    ls_engine_get_stats(w->engine, &w->view.engine);
}

/* Streams are told all that there is before the engine rests. */
static void wake_streams(ls_worker *w) {
    for (ls_group *g = w->taken; g != NULL; g = g->next)
        if (g->ask->stream && g->wake != NULL) g->wake(g->wake_context);
}

static void do_swap(ls_worker *w) {
    swap *s = w->swap;
    w->swap = NULL;
    if (s->flush) {
        ls_engine_flush(w->engine);
        s->status = LS_OK;
    } else {
        s->status = ls_engine_set_weights(w->engine, s->model, s->version, &s->err);
        if (s->status == LS_OK) {
            s->old = w->opts.model;
            w->opts.model = s->model;
            w->view.version = s->version;
        }
    }
    s->is_done = true;
    pthread_cond_broadcast(&w->done);
}

/* The engine has failed for good: nobody waits for what will not come. */
static void fail_all(ls_worker *w, const ls_error *err) {
    w->view.failed = true;
    w->view.failure = *err;
    for (ls_completion *s = w->live; s != NULL; s = s->next) {
        if (s->request.finish != LS_FINISH_NONE) continue;
        ls_engine_cancel(w->engine, &s->request, NULL);
        s->request.finish = LS_FINISH_ERROR;
        s->request.error = *err;
    }
    publish(w, ls_clock_seconds());
}

static bool may_tick(const ls_worker *w) {
    return w->n_live > 0 && (w->pause == LS_PAUSE_NONE || w->pause == LS_PAUSE_WAIT) && !w->view.failed;
}

static void *drive(void *context) {
    ls_worker *w = context;
    ls_error err;
    ls_fpmode_enter(NULL);
    ls_work_lock(w);
    while (!w->ends || w->n_live > 0 || w->incoming != NULL) {
        ls_status status;
        if (w->has_cancels) take_cancels(w);
        if (w->pause == LS_PAUSE_NONE) take_incoming(w, ls_clock_seconds());
        publish(w, ls_clock_seconds());
        if (w->swap != NULL) do_swap(w);
        if (!may_tick(w)) {
            if (w->ends && w->n_live == 0 && w->incoming == NULL) break;
            wake_streams(w);
            pthread_cond_broadcast(&w->done);
            pthread_cond_wait(&w->news, &w->lock);
            continue;
        }
        ls_work_unlock(w);
        status = ls_engine_tick(w->engine, &err);
        ls_work_lock(w);
        if (status != LS_OK) fail_all(w, &err);
    }
    ls_work_unlock(w);
    return NULL;
}

/* ---- operators ---- */

void ls_work_pause(ls_worker *w, ls_pause how) {
    ls_work_lock(w);
    w->pause = how;
    if (how == LS_PAUSE_ABORT) {
        for (ls_group *g = w->taken; g != NULL; g = g->next) g->is_cancelled = true;
        for (ls_group *g = w->incoming; g != NULL; g = g->next) g->is_cancelled = true;
        w->has_cancels = true;
    }
    pthread_cond_signal(&w->news);
    while (how != LS_PAUSE_KEEP && w->pause == how && (w->n_live > 0 || w->has_cancels) && !w->view.failed && !w->ends)
        pthread_cond_wait(&w->done, &w->lock);
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

static int64_t abort_in(ls_group *list, const char *name) {
    int64_t n = 0;
    for (ls_group *g = list; g != NULL; g = g->next) {
        if (name[0] != '\0' && strcmp(g->name, name) != 0 && (g->ask->id == NULL || strcmp(g->ask->id, name) != 0))
            continue;
        if (!g->is_cancelled) n++;
        cancel_locked(g);
    }
    return n;
}

int64_t ls_work_abort(ls_worker *w, const char *name) {
    int64_t n;
    ls_work_lock(w);
    n = abort_in(w->taken, name) + abort_in(w->incoming, name);
    ls_work_unlock(w);
    return n;
}

static ls_status run_swap(ls_worker *w, swap *s, ls_error *err) {
    ls_work_lock(w);
    w->swap = s;
    pthread_cond_signal(&w->news);
    while (!s->is_done && !w->view.failed && !w->ends) pthread_cond_wait(&w->done, &w->lock);
    if (!s->is_done) {
        w->swap = NULL;
        s->status = LS_FAIL(&s->err, LS_ERR_DEVICE, "the engine has ended");
    }
    ls_work_unlock(w);
    if (s->status != LS_OK && err != NULL) *err = s->err;
    return s->status;
}

ls_status ls_work_swap(ls_worker *w, const ls_model *model, uint64_t version, const ls_model **old, ls_error *err) {
    swap s = {.model = model, .version = version};
    LS_TRY(run_swap(w, &s, err));
    *old = s.old;
    return LS_OK;
}

ls_status ls_work_flush(ls_worker *w, ls_error *err) {
    swap s = {.flush = true};
    return run_swap(w, &s, err);
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
    pthread_condattr_t attributes;
    ls_status status;
    *out = NULL;
    if (w == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "server");
    w->opts = *opts;
    pthread_condattr_init(&attributes);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->news, &attributes);
    pthread_cond_init(&w->done, &attributes);
    pthread_condattr_destroy(&attributes);
    w->view.version = opts->version;
    LS_TRY_DONE(ls_sight_tools_create(&w->tools, opts->model->config.vocab, err));
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

void ls_work_free(ls_worker *w) {
    if (w == NULL) return;
    if (w->has_thread) {
        ls_work_abort(w, "");
        ls_work_lock(w);
        w->ends = true;
        w->pause = LS_PAUSE_NONE;
        pthread_cond_signal(&w->news);
        pthread_cond_broadcast(&w->done);
        ls_work_unlock(w);
        pthread_join(w->thread, NULL);
        if (!w->view.failed) ls_engine_check_idle(w->engine);
    }
    ls_engine_free(w->engine);
    ls_sight_tools_free(w->tools);
    pthread_cond_destroy(&w->done);
    pthread_cond_destroy(&w->news);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
