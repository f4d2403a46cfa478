/* Not a test: random load on the engine for as long as one likes, meant for builds with sanitizers. Two drivers, each
 * with engines, a queue of threads and an oracle of its own over the same weights, run schedules of hundreds of
 * operations one after the other. Every result is compared in bits, and every engine must end with all pages and slots
 * back.
 *
 *     soak SECONDS [THREADS [SEED]]     threads of each queue (2), first seed (1)
 *
 * Exits with 1 at the first difference and tells its seed. */
#include <pthread.h>
#include <time.h>

#include "schedules.h"

#define DRIVERS 2
#define OPS 500

typedef struct driver {
    laboratory lab;
    uint64_t seed;
    time_t end;
    counts total;
    bool failed;
    char text[400];
} driver;

static void *drive(void *context) {
    driver *d = context;
    operation ops[OPS];
    schedule s;
    for (; time(NULL) < d->end && !d->failed; d->seed += DRIVERS) {
        draw_schedule(&s, &d->lab, d->seed, ops, OPS);
        d->failed = !run_schedule(&d->lab, &s, &d->total, d->text, sizeof d->text);
        if (d->failed) printf("seed %llu: %s\n", (unsigned long long)d->seed, d->text);
    }
    return NULL;
}

int main(int argc, char **argv) {
    static driver drivers[DRIVERS];
    pthread_t thread[DRIVERS];
    const long seconds = argc > 1 ? strtol(argv[1], NULL, 10) : 0;
    const int32_t threads = argc > 2 ? (int32_t)strtol(argv[2], NULL, 10) : 2;
    const uint64_t seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    bool failed = false;
    if (seconds < 1 || threads < 1) {
        fprintf(stderr, "Usage: soak SECONDS [THREADS [SEED]]\n");
        return 2;
    }
    for (int i = 0; i < DRIVERS; i++) {
        laboratory_open(&drivers[i].lab, threads, i > 0 ? &drivers[0].lab : NULL);
        drivers[i].seed = seed + (uint64_t)i;
        drivers[i].end = time(NULL) + seconds;
        if (pthread_create(&thread[i], NULL, drive, &drivers[i]) != 0) return 2;
    }
    for (int i = 0; i < DRIVERS; i++) {
        pthread_join(thread[i], NULL);
        failed = failed || drivers[i].failed;
        if (i > 0) add_counts(&drivers[0].total, &drivers[i].total);
    }
    print_counts(&drivers[0].total);
    for (int i = DRIVERS - 1; i >= 0; i--) laboratory_close(&drivers[i].lab, i == 0);
    puts(failed ? "FAILED" : "every bit as alone; all pages and slots are back");
    return failed;
}
