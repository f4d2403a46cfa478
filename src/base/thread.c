/* Stacks that do not depend on the shell. */
#define _GNU_SOURCE
#include "base/thread.h"

#include <stdbool.h>
#include <sys/resource.h>

#define STACK_BYTES ((size_t)8 << 20)

int ls_thread_start(pthread_t *out, void *(*run)(void *context), void *context) {
    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);
    if (error != 0) return error;
    error = pthread_attr_setstacksize(&attributes, STACK_BYTES);
    if (error == 0) error = pthread_create(out, &attributes, run, context);
    pthread_attr_destroy(&attributes);
    return error;
}

typedef struct call {
    int (*run)(int argc, char **argv);
    int argc, code;
    char **argv;
} call;

static void *run_call(void *context) {
    call *c = context;
    c->code = c->run(c->argc, c->argv);
    return NULL;
}

static bool is_small(void) {
    struct rlimit limit;
    return getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < STACK_BYTES;
}

int ls_thread_run_main(int (*run)(int argc, char **argv), int argc, char **argv) {
    call c = {run, argc, 0, argv};
    pthread_attr_t attributes;
    pthread_t thread;
    if (!is_small()) return run(argc, argv);
#ifdef __GLIBC__
    if (pthread_attr_init(&attributes) == 0) {
        if (pthread_attr_setstacksize(&attributes, STACK_BYTES) == 0) (void)pthread_setattr_default_np(&attributes);
        pthread_attr_destroy(&attributes);
    }
#else
    (void)attributes;
#endif
    if (ls_thread_start(&thread, run_call, &c) != 0) return run(argc, argv); /* as far as it goes */
    pthread_join(thread, NULL);
    return c.code;
}
