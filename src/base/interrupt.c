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
static atomic_bool deferring;
static atomic_int pending;

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
    if (atomic_load(&deferring) && atomic_compare_exchange_strong(&pending, &none, number)) return;
    for (int i = 0; i < LEFTOVERS_MAX; i++) {
        const char *path = atomic_load(&leftovers[i]);
        if (path != NULL) unlink(path);
    }
    memset(&action, 0, sizeof action);
    action.sa_handler = SIG_DFL;
    sigaction(number, &action, NULL);
    raise(number); /* delivered when this handler returns */
}

void ls_interrupt_install(void) {
    static const int ending[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action, before;
    memset(&action, 0, sizeof action);
    sigemptyset(&action.sa_mask);
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, NULL);
    sigaction(SIGXFSZ, &action, NULL);
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    for (size_t i = 0; i < sizeof ending / sizeof ending[0]; i++) {
        if (sigaction(ending[i], NULL, &before) != 0 || before.sa_handler == SIG_IGN) continue;
        sigaction(ending[i], &action, NULL);
    }
}

void ls_interrupt_defer(bool on) {
    atomic_store(&pending, 0);
    atomic_store(&deferring, on);
}

int ls_interrupt_pending(void) { return atomic_load(&pending); }

void ls_interrupt_set(int signal_number) {
    int none = 0;
    (void)atomic_compare_exchange_strong(&pending, &none, signal_number);
}
