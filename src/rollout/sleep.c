/* The memory of the pools, given back while nothing runs and taken again. */
#include "rollout/engine_state.h"

bool ls_engine_sleeps(const ls_engine *e) { return e->sleeps; }

/* Swap space on the host is pinned once; else it is a pool like the others. */
static ls_cache *swap_pool(const ls_engine *e) { return e->swap != NULL && !e->swap->on_host ? e->swap : NULL; }

static ls_status release_pools(ls_cache *cache, ls_error *err) {
    return cache == NULL ? LS_OK : ls_cache_release(cache, err);
}

static ls_status restore(ls_cache *cache, ls_error *err) {
    return cache == NULL ? LS_OK : ls_cache_restore(cache, err);
}

ls_status ls_engine_sleep(ls_engine *e, ls_error *err) {
    if (e->sleeps) return LS_OK;
    ls_engine_preempt_all(e);
    if (e->prefix != NULL) ls_prefix_clear(e->prefix);
    LS_TRY(ls_device_wait(e->device, err));
    ls_decode_forget(e); /* they name the pools' addresses */
    e->sleeps = true;
    LS_TRY(release_pools(e->cache, err));
    LS_TRY(release_pools(e->snapshots, err));
    LS_TRY(release_pools(swap_pool(e), err));
    return ls_memory_trim(e->device, err);
}

static ls_status restore_all(ls_engine *e, ls_error *err) {
    LS_TRY(restore(e->cache, err));
    LS_TRY(restore(e->snapshots, err));
    return restore(swap_pool(e), err);
}

ls_status ls_engine_wake(ls_engine *e, ls_error *err) {
    ls_status status;
    if (!e->sleeps) return LS_OK;
    status = restore_all(e, err);
    if (status != LS_OK) { /* what somebody else needs the memory for must not lack what was taken in vain */
        (void)release_pools(e->cache, NULL);
        (void)release_pools(e->snapshots, NULL);
        (void)release_pools(swap_pool(e), NULL);
        ls_error_prefix(err, "the engine sleeps on");
        return status;
    }
    e->sleeps = false;
    ls_engine_poison(e);
    return LS_OK;
}
