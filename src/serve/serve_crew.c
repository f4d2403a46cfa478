/* Two queues and their threads. The first thread does heavy errands, and light ones where there are none; the others do
 * light ones alone. So neither kind waits for ever. */
#include "serve/serve_crew.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/mem.h"

typedef struct queue {
    ls_errand *first, *last;
} queue;

typedef struct worker {
    struct ls_crew *crew;
    pthread_t thread;
    bool takes_heavy;
} worker;

struct ls_crew {
    pthread_mutex_t lock;
    pthread_cond_t light_news, heavy_news; /* heavy_news: of either kind, for the thread that takes both */
    queue light, heavy;
    worker *workers; /* [n] have threads */
    int64_t n;
    bool ends;
};

static void push_errand(queue *q, ls_errand *errand) {
    errand->next = NULL;
    if (q->last == NULL)
        q->first = errand;
    else
        q->last->next = errand;
    q->last = errand;
}

static ls_errand *pop(queue *q) {
    ls_errand *first = q->first;
    if (first == NULL) return NULL;
    q->first = first->next;
    if (q->first == NULL) q->last = NULL;
    return first;
}

static void *work(void *context) {
    const worker *w = context;
    ls_crew *c = w->crew;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        ls_errand *errand = w->takes_heavy ? pop(&c->heavy) : NULL;
        if (errand == NULL) errand = pop(&c->light);
        if (errand == NULL) {
            if (c->ends) break;
            pthread_cond_wait(w->takes_heavy ? &c->heavy_news : &c->light_news, &c->lock);
            continue;
        }
        pthread_mutex_unlock(&c->lock);
        errand->run(errand->context); /* which may be gone behind this */
        pthread_mutex_lock(&c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

ls_status ls_crew_start(ls_crew **out, int64_t n_threads, ls_error *err) {
    ls_crew *c = calloc(1, sizeof *c);
    ls_status status;
    *out = NULL;
    if (c == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "server");
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->light_news, NULL);
    pthread_cond_init(&c->heavy_news, NULL);
    LS_TRY_DONE(ls_array_alloc((void **)&c->workers, n_threads, sizeof *c->workers, "server", err));
    while (c->n < n_threads) {
        worker *w = &c->workers[c->n];
        *w = (worker){.crew = c, .takes_heavy = c->n == 0};
        if (pthread_create(&w->thread, NULL, work, w) != 0) {
            status = LS_FAIL(err, LS_ERR_NOMEM, "server: cannot start a thread");
            goto done;
        }
        c->n++;
    }
    *out = c;
    c = NULL;
done:
    ls_crew_stop(c);
    return status;
}

void ls_crew_stop(ls_crew *c) {
    if (c == NULL) return;
    pthread_mutex_lock(&c->lock);
    c->ends = true;
    pthread_cond_broadcast(&c->light_news);
    pthread_cond_broadcast(&c->heavy_news);
    pthread_mutex_unlock(&c->lock);
    for (int64_t i = 0; i < c->n; i++) pthread_join(c->workers[i].thread, NULL);
    pthread_cond_destroy(&c->heavy_news);
    pthread_cond_destroy(&c->light_news);
    pthread_mutex_destroy(&c->lock);
    free(c->workers);
    free(c);
}

void ls_crew_add(ls_crew *c, ls_errand *errand, bool is_heavy) {
    pthread_mutex_lock(&c->lock);
    push_errand(is_heavy ? &c->heavy : &c->light, errand);
    if (!is_heavy) pthread_cond_signal(&c->light_news);
    pthread_cond_signal(&c->heavy_news);
    pthread_mutex_unlock(&c->lock);
}
