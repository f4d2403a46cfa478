/* Handlers use what POSIX lets a handler use: atomics, unlink, sigaction, raise. */
#define _POSIX_C_SOURCE 200809L
#include "base/interrupt.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

enum { LEFTOVERS_MAX = 64 };

static _Atomic(const char *) leftovers[LEFTOVERS_MAX];
static atomic_bool deferring, gave_up;
static _Atomic double seen_s; /* when the remembered signal was first asked about; 0: not yet */
static atomic_int pending;

/* Signals whose default ends a process, and how: those of the first kind ask it to end, so that a run may wait with
 * it. SIGPIPE and SIGXFSZ are errors of writes; what says that the program is broken is left alone. */
static const int asking[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU};
static const int ending[] = {SIGQUIT, SIGALRM, SIGVTALRM, SIGPROF, SIGPOLL};

static bool asks(int number) {
    for (size_t i = 0; i < sizeof asking / sizeof asking[0]; i++)
        if (asking[i] == number) return true;
    return false;
}

void ls_leftover_add(const char *path) {
    for (int i = 0; i < LEFTOVERS_MAX; i++) {
        const char *none = NULL;
        if (atomic_compare_exchange_strong(&leftovers[i], &none, path)) return;
    }
}

void ls_leftover_forget(const char *path) {
    for (int i = 0; i < LEFTOVERS_MAX; i++) {
        const char *mine = path;
        if (atomic_compare_exchange_strong(&leftovers[i], &mine, NULL)) return;
    }
}

static void on_signal(int number) {
    struct sigaction action;
    int none = 0;
    if (asks(number) && atomic_load(&deferring) && atomic_compare_exchange_strong(&pending, &none, number)) return;
    for (int i = 0; i < LEFTOVERS_MAX; i++) {
        const char *path = atomic_load(&leftovers[i]);
        if (path != NULL) unlink(path);
    }
    memset(&action, 0, sizeof action);
    action.sa_handler = SIG_DFL;
    sigaction(number, &action, NULL);
    raise(number); /* delivered when this handler returns */
}

static void install(const int *numbers, size_t n) {
    struct sigaction action, before;
    memset(&action, 0, sizeof action);
    sigemptyset(&action.sa_mask);
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    for (size_t i = 0; i < n; i++) {
        if (sigaction(numbers[i], NULL, &before) != 0 || before.sa_handler != SIG_DFL) continue;
        sigaction(numbers[i], &action, NULL);
    }
}

void ls_interrupt_install(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    sigemptyset(&action.sa_mask);
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, NULL);
    sigaction(SIGXFSZ, &action, NULL);
    install(asking, sizeof asking / sizeof asking[0]);
    install(ending, sizeof ending / sizeof ending[0]);
}

void ls_interrupt_defer(bool on) {
    atomic_store(&pending, 0);
    atomic_store(&gave_up, false);
    atomic_store(&seen_s, 0.0);
    atomic_store(&deferring, on);
}

int ls_interrupt_pending(void) { return atomic_load(&pending); }

bool ls_interrupt_is_over(double heard_s, double now_s) {
    double none = 0;
    if (atomic_load(&pending) == 0) return false;
    (void)atomic_compare_exchange_strong(&seen_s, &none, now_s);
    if (now_s - heard_s < LS_INTERRUPT_PATIENCE_S || now_s - atomic_load(&seen_s) < LS_INTERRUPT_PATIENCE_S)
        return false;
    atomic_store(&gave_up, true);
    return true;
}

bool ls_interrupt_gave_up(void) { return atomic_load(&gave_up); }

void ls_interrupt_set(int signal_number) {
    int none = 0;
    (void)atomic_compare_exchange_strong(&pending, &none, signal_number);
}
