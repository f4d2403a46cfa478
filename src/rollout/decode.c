/* Ticks of one token a sequence, which most ticks are. Their forward and their draws are the same calls every time,
 * but for the number of rows: on a device that records, they are recorded once for each number and replayed, so that
 * a tick costs the host a few writes and one call; those with penalties, and those
 * that weigh, have recordings of their own. Numbers are
 * rounded up to few sizes with spans of padding, whose rows are computed and mean nothing. No bit depends on it: a
 * row's bits do not depend on its neighbours. */
#include "rollout/engine_state.h"

/* 1, 2, 4, 8, then multiples of 8 and from 64 on of 64, as far as the batch goes: large products run in tiles of 64. */
static int64_t padded(const ls_engine *e, int64_t n) {
    int64_t size = 1;
    if (n > 64)
        size = (n + 63) / 64 * 64;
    else if (n > 8)
        size = (n + 7) / 8 * 8;
    else
        while (size < n) size *= 2;
    return size < e->batch ? size : e->batch;
}

int64_t ls_decode_sizes(const ls_engine *e) {
    int64_t n = 0;
    if (!e->opts.levers.graphs || !ls_device_records(e->device)) return 0;
    for (int64_t size = 0; size < e->batch; n++) size = padded(e, size + 1);
    return n * (e->opts.penalizes ? 2 : 1) * (e->opts.weighs ? 2 : 1);
}

bool ls_decode_fits(const ls_engine *e) {
    if (!e->opts.levers.graphs || !ls_device_records(e->device) || e->observer != NULL) return false;
    for (int64_t i = 0; i < e->n_spans; i++) {
        const entry *x = e->span_entry[i];
        if (e->spans[i].n_rows != 1 || ls_entry_total(x) - x->n_cached != 1 || x->request->max_tokens == 0)
            return false;
    }
    return true;
}

static ls_status compute(ls_engine *e, int64_t rows, ls_error *err) {
    const ls_forward f = {e->model, e->cache, e->ws, e->tick, e->h, 0, false};
    LS_TRY(ls_model_forward(&f, NULL, NULL, err));
    return ls_commit_draw(e, rows, err);
}

static ls_status record(ls_engine *e, int64_t rows, ls_recording *out, ls_error *err) {
    ls_status status, ended;
    LS_TRY_DONE(ls_device_record(e->device, err));
    status = compute(e, rows, err);
    ended = ls_device_recorded(e->device, out, status == LS_OK ? err : NULL);
    if (status != LS_OK)
        ls_device_forget(e->device, out);
    else
        status = ended;
done:
    return status;
}

/* The first tick of a size runs as it is: what a back end sets up at a first call cannot be recorded. */
static ls_status run_decode(ls_engine *e, int64_t rows, ls_error *err) {
    const int64_t which = rows + (e->batch + 1) * ((e->tick_penalizes ? 1 : 0) + (e->tick_weighs ? 2 : 0));
    ls_recording *recording = &e->recordings[which];
    if (!e->was_run[which]) {
        e->was_run[which] = true;
        return compute(e, rows, err);
    }
    if (!ls_recording_is_valid(e->device, recording)) {
        ls_device_forget(e->device, recording);
        LS_TRY(record(e, rows, recording, err));
    }
    return ls_device_replay(e->device, recording, err);
}

ls_status ls_decode_tick(ls_engine *e, ls_error *err) {
    const int64_t n = e->n_spans, rows = padded(e, n);
    for (int64_t i = n; i < rows; i++) {
        e->tokens[i] = 0;
        e->spans[i] = (ls_span){.row = i, .n_rows = 1, .slot = -1};
    }
    for (int64_t i = 0; i < n; i++) e->drawing[i] = e->span_entry[i];
    for (int64_t i = 0; i < rows; i++) e->last_row[i] = i;
    LS_TRY(ls_batch_write(e->tick, e->tokens, e->spans, rows, e->tables, e->batch * e->pages_max, err));
    LS_TRY(ls_commit_write(e, n, rows, err));
    LS_TRY(run_decode(e, rows, err));
    for (int64_t i = 0; i < n; i++) LS_TRY(ls_commit_span(e, i, err));
    return ls_commit_accept(e, n, err);
}

void ls_decode_forget(ls_engine *e) {
    for (int64_t i = 0; e->recordings != NULL && i < 4 * (e->batch + 1); i++)
        ls_device_forget(e->device, &e->recordings[i]);
}
