/* Memory of an engine, as planned and as its device holds it: awake, asleep, its weights parked, awake again. */
#ifndef LS_BENCH_MODEL_MEMORY_H
#define LS_BENCH_MODEL_MEMORY_H

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "json/json_out.h"
#include "op/memory.h"
#include "rollout/engine.h"

#define DIFFERENCE_MAX 0.02 /* of what was planned */

typedef struct memory_bench {
    ls_device *device;
    ls_model *model;
    int64_t begin_bytes; /* held when the device was opened: its context, and others */
    bool json;
} memory_bench;

/* Lets the engine work; what it draws is the caller's. */
typedef void (*memory_work)(void *context, ls_engine *engine);

/* Bytes of the device that anybody holds; of one that is not limited, what this program has allocated. */
static inline int64_t held_bytes(ls_device *device) {
    ls_memory_state state;
    ls_error err;
    LS_ASSERT(ls_memory_trim(device, &err) == LS_OK, "%s", err.text);
    LS_ASSERT(ls_device_memory(device, &state, &err) == LS_OK, "%s", err.text);
    return state.is_limited ? state.total - state.free + state.kept : state.used;
}

static inline int64_t allocations_of(ls_device *device) {
    ls_memory_state state;
    ls_error err;
    LS_ASSERT(ls_device_memory(device, &state, &err) == LS_OK, "%s", err.text);
    return state.n_allocations;
}

/* A line of the table; count -1: none. */
static inline void print_bytes(const memory_bench *b, const char *what, int64_t count, int64_t bytes,
                               const char *more) {
    ls_json_out json;
    char number[24] = "";
    if (count >= 0) snprintf(number, sizeof number, "%lld", (long long)count);
    if (!b->json) {
        printf("%-8s %-26s %12s %16lld %12.1f MiB%s\n", "memory", what, number, (long long)bytes, ls_mib(bytes), more);
        return;
    }
    ls_json_init(&json, stdout);
    ls_json_begin_object(&json, NULL);
    ls_json_string(&json, "section", "memory");
    ls_json_string(&json, "what", what);
    if (count >= 0) ls_json_int(&json, "count", count);
    ls_json_int(&json, "bytes", bytes);
    ls_json_end_object(&json);
    ls_json_newline(&json);
}

/* What is held now beside what was planned for it; true where they are near. */
static inline bool compare_bytes(const memory_bench *b, const char *when, int64_t planned, int64_t all_planned) {
    const int64_t now_held = held_bytes(b->device);
    const double difference = (double)(now_held - planned) / (double)all_planned;
    const bool is_near = fabs(difference) <= DIFFERENCE_MAX;
    char what[64], more[64];
    snprintf(what, sizeof what, "planned, %s", when);
    print_bytes(b, what, -1, planned, "");
    snprintf(what, sizeof what, "held, %s", when);
    snprintf(more, sizeof more, ", %+.2f %% of all that is planned%s", 100.0 * difference, is_near ? "" : ": too far");
    print_bytes(b, what, -1, now_held, more);
    if (!is_near)
        fprintf(stderr, "memory, %s: %lld bytes are held, %lld planned: more than %g %% of a difference\n", when,
                (long long)now_held, (long long)planned, 100.0 * DIFFERENCE_MAX);
    return is_near;
}

static inline void print_memory_plan(const memory_bench *b, const ls_engine_plan *plan) {
    ls_memory_part parts[LS_MEMORY_PARTS_MAX];
    const int64_t n = ls_engine_plan_parts(plan, parts);
    print_bytes(b, "context, at the start", -1, b->begin_bytes, "");
    for (int64_t i = 0; i < n; i++)
        if (strcmp(parts[i].name, "context and others") != 0)
            print_bytes(b, parts[i].name, parts[i].count, parts[i].bytes, parts[i].on_host ? ", on the host" : "");
}

static inline bool allocates_nothing(const memory_bench *b, int64_t made) {
    const int64_t later = allocations_of(b->device) - made;
    print_bytes(b, "allocations after the start", later, 0, "");
    if (later > 0) fprintf(stderr, "memory: %lld allocations after the start\n", (long long)later);
    return later == 0;
}

/* work runs once after the start and once after the sleep. The engine is fresh. */
static inline bool memory_is_as_planned(const memory_bench *b, ls_engine *engine, memory_work work, void *context) {
    const int64_t made = allocations_of(b->device);
    int64_t planned, pools;
    ls_engine_plan plan;
    ls_error err;
    bool holds;
    ls_engine_get_plan(engine, &plan);
    print_memory_plan(b, &plan);
    planned = b->begin_bytes + plan.weight_bytes + plan.total_bytes;
    pools = plan.slot_bytes + plan.page_bytes + plan.snapshot_bytes;
    work(context, engine);
    holds = allocates_nothing(b, made);
    holds = compare_bytes(b, "awake", planned, planned) && holds;
    LS_ASSERT(ls_engine_sleep(engine, &err) == LS_OK, "%s", err.text);
    holds = compare_bytes(b, "asleep", planned - pools, planned) && holds;
    LS_ASSERT(ls_model_park(b->model, &err) == LS_OK, "%s", err.text);
    holds = compare_bytes(b, "weights parked", planned - pools - plan.weight_bytes, planned) && holds;
    LS_ASSERT(ls_model_unpark(b->model, &err) == LS_OK, "%s", err.text);
    LS_ASSERT(ls_engine_wake(engine, &err) == LS_OK, "%s", err.text);
    work(context, engine);
    return compare_bytes(b, "awake again", planned, planned) && holds;
}

#endif
