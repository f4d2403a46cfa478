/* A library that takes the GPU away from the process that it is loaded into, as a kernel that fails does: a while after
 * the process has begun to use it, a kernel that ends in a trap runs in its context, where every later call then fails.
 * The while is LOSE_GPU_MS milliseconds. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const char trap[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry lose() { trap; ret; }\n";

/* The driver's calls, by name: their header belongs to the toolkit, which this file does not need. */
typedef struct driver {
    int (*init)(unsigned);
    int (*state)(int device, unsigned *flags, int *active);
    int (*retain)(void **context, int device);
    int (*enter)(void *context);
    int (*load)(void **module, const void *image);
    int (*find)(void **function, void *module, const char *name);
    int (*launch)(void *function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *stream,
                  void **arguments, void **extra);
    int (*make_stream)(void **stream, unsigned flags);
} driver;

static int open_driver(driver *d) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    const struct {
        const char *name;
        void *at;
    } calls[] = {{"cuInit", &d->init},
                 {"cuDevicePrimaryCtxGetState", &d->state},
                 {"cuDevicePrimaryCtxRetain", &d->retain},
                 {"cuCtxSetCurrent", &d->enter},
                 {"cuModuleLoadData", &d->load},
                 {"cuModuleGetFunction", &d->find},
                 {"cuLaunchKernel", &d->launch},
                 {"cuStreamCreate", &d->make_stream}};
    if (library == NULL) return 1;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
        if ((*(void **)calls[i].at = dlsym(library, calls[i].name)) == NULL) return 1;
    return d->init(0);
}

static void sleep_ms(long ms) {
    const struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

static void *lose(void *after) {
    void *context, *module, *function, *stream;
    unsigned flags;
    int active = 0, failed;
    driver d;
    if (open_driver(&d) != 0) return NULL;
    while (!active && d.state(0, &flags, &active) == 0) sleep_ms(1);
    failed = d.retain(&context, 0) != 0 || d.enter(context) != 0 || d.load(&module, trap) != 0 ||
             d.find(&function, module, "lose") != 0 || d.make_stream(&stream, 1) != 0;
    sleep_ms(atol(after));
    if (failed || d.launch(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL) != 0)
        fprintf(stderr, "lose_gpu: the kernel could not be started\n");
    return NULL;
}

__attribute__((constructor)) static void start(void) {
    char *after = getenv("LOSE_GPU_MS");
    pthread_t thread;
    if (after != NULL && pthread_create(&thread, NULL, lose, after) == 0) pthread_detach(thread);
}
