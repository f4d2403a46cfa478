/* What the log-probability ops refuse, on every back end: arguments that the host can see, and targets, temperatures
 * and offsets that only the device sees. A refused call names op, place and value and writes nothing. */
#include "logprob_case.h"
#include "num/expf.h"

/* An op with good arguments in device memory. */
typedef struct op_call {
    const char *name;
    ls_status (*call)(const ls_exec *exec, const void *args, ls_error *err);
    const void *args;
    int64_t workspace;
    struct {
        void *memory;
        int64_t bytes;
    } outputs[3];
} op_call;

#define CALL_OF(name)                                                                    \
    static ls_status call_##name(const ls_exec *exec, const void *args, ls_error *err) { \
        return ls_op_##name(exec, args, err);                                            \
    }
CALL_OF(logprob)
CALL_OF(logprob_shard)
CALL_OF(logprob_combine)
CALL_OF(logprob_backward)
CALL_OF(sequence_sum)

enum { FORWARD, SHARD, COMBINE, BACKWARD, SUM, OPS };

/* One problem and a good call of every op on it. */
typedef struct calls {
    problem p;
    int64_t *offsets; /* [SEQUENCES + 1] */
    ls_logprob_args forward;
    ls_logprob_shard_args shard;
    ls_logprob_combine_args combine;
    ls_logprob_backward_args backward;
    ls_sequence_sum_args sum;
    op_call ops[OPS];
} calls;
#define SEQUENCES 5

static void calls_make(bk_run *run, calls *c, int64_t rows, int64_t vocab) {
    const int64_t n_leaves = LEAVES_OF(vocab), leaf_bytes = rows * n_leaves * (int64_t)sizeof(ls_logprob_leaf);
    const int64_t bytes = rows * 4;
    row_result *results = bk_alloc(rows * (int64_t)sizeof *results);
    float *lse = bk_alloc(bytes);
    c->p = problem_make(LS_BF16, rows, vocab, true, 301);
    c->offsets = bk_alloc((SEQUENCES + 1) * 8);
    for (int64_t s = 0; s <= SEQUENCES; s++) c->offsets[s] = rows * s / SEQUENCES;
    problem_reference(run, &c->p, results);
    for (int64_t r = 0; r < rows; r++) lse[r] = results[r].lse;
    c->forward = problem_put(run, &c->p, dense);
    c->shard = (ls_logprob_shard_args){.logits = c->forward.logits,
                                       .dtype = c->p.dtype,
                                       .rows = rows,
                                       .vocab = vocab,
                                       .row_stride = vocab,
                                       .total = vocab,
                                       .targets = c->forward.targets,
                                       .ignore_index = IGNORED,
                                       .mask = c->forward.mask,
                                       .temperature = c->forward.temperature,
                                       .leaves = bk_new(run, "leaves", leaf_bytes, 0),
                                       .leaf_stride = n_leaves,
                                       .target_z = bk_new(run, "target_z", bytes, 0)};
    BK_CALL(run, logprob_shard, &c->shard);
    c->combine = (ls_logprob_combine_args){.leaves = c->shard.leaves,
                                           .rows = rows,
                                           .total = vocab,
                                           .leaf_stride = n_leaves,
                                           .target_z = c->shard.target_z,
                                           .targets = c->forward.targets,
                                           .ignore_index = IGNORED,
                                           .mask = c->forward.mask,
                                           .logprob = bk_new(run, "combined logprob", bytes, 0),
                                           .lse = bk_new(run, "combined lse", bytes, 0),
                                           .entropy = bk_new(run, "combined entropy", bytes, 0)};
    c->shard.leaves = bk_new(run, "shard leaves", leaf_bytes, 0);
    c->shard.target_z = bk_new(run, "shard target_z", bytes, 0);
    c->backward = (ls_logprob_backward_args){.logits = c->forward.logits,
                                             .dtype = c->p.dtype,
                                             .rows = rows,
                                             .vocab = vocab,
                                             .row_stride = vocab,
                                             .targets = c->forward.targets,
                                             .ignore_index = IGNORED,
                                             .mask = c->forward.mask,
                                             .temperature = c->forward.temperature,
                                             .lse = bk_put(run, "lse", lse, bytes, 0),
                                             .d_logprob = bk_put(run, "d_logprob", c->p.temperature, bytes, 0),
                                             .d_logits = bk_new(run, "d_logits", rows * row_bytes(&c->p), 0),
                                             .d_stride = vocab};
    c->sum = (ls_sequence_sum_args){.logprob = bk_put(run, "tokens", c->p.temperature, bytes, 0),
                                    .mask = c->forward.mask,
                                    .offsets = bk_put(run, "offsets", c->offsets, (SEQUENCES + 1) * 8, 0),
                                    .n_sequences = SEQUENCES,
                                    .rows = rows,
                                    .out = bk_new(run, "sums", SEQUENCES * 4, 0)};
    c->ops[FORWARD] = (op_call){"logprob",
                                call_logprob,
                                &c->forward,
                                ls_op_logprob_workspace(&c->forward),
                                {{c->forward.logprob, bytes}, {c->forward.lse, bytes}, {c->forward.entropy, bytes}}};
    c->ops[SHARD] = (op_call){"logprob_shard",
                              call_logprob_shard,
                              &c->shard,
                              ls_op_logprob_shard_workspace(&c->shard),
                              {{c->shard.leaves, leaf_bytes}, {c->shard.target_z, bytes}}};
    c->ops[COMBINE] = (op_call){"logprob_combine",
                                call_logprob_combine,
                                &c->combine,
                                ls_op_logprob_combine_workspace(&c->combine),
                                {{c->combine.logprob, bytes}, {c->combine.lse, bytes}, {c->combine.entropy, bytes}}};
    c->ops[BACKWARD] = (op_call){"logprob_backward",
                                 call_logprob_backward,
                                 &c->backward,
                                 ls_op_logprob_backward_workspace(&c->backward),
                                 {{c->backward.d_logits, rows * row_bytes(&c->p)}}};
    c->ops[SUM] = (op_call){"sequence_sum",
                            call_sequence_sum,
                            &c->sum,
                            ls_op_sequence_sum_workspace(&c->sum),
                            {{c->sum.out, SEQUENCES * 4}}};
    free(results);
    free(lse);
}

static void calls_free(bk_run *run, calls *c) {
    bk_clear(run);
    problem_free(&c->p);
    free(c->offsets);
}

/* ---- outputs ---- */

static void outputs_reset(bk_run *run, const op_call *op) {
    for (int64_t i = 0; i < BK_COUNT(op->outputs); i++)
        if (op->outputs[i].memory != NULL &&
            ls_device_fill(&run->exec, op->outputs[i].memory, BK_PATTERN, op->outputs[i].bytes, &run->err) != LS_OK)
            bk_die(run, "outputs");
}

static void outputs_untouched(bk_run *run, const op_call *op, const char *what) {
    for (int64_t i = 0; i < BK_COUNT(op->outputs); i++)
        if (op->outputs[i].memory != NULL && !bk_untouched(run, op->outputs[i].memory, op->outputs[i].bytes))
            bk_fail(run, "%s: %s: output %lld was written", op->name, what, (long long)i);
}

static uint64_t outputs_hash(bk_run *run, const op_call *op) {
    uint64_t hash = BK_HASH_START;
    for (int64_t i = 0; i < BK_COUNT(op->outputs); i++) {
        uint8_t *host = bk_alloc(op->outputs[i].bytes);
        if (op->outputs[i].memory != NULL) bk_download(run, host, op->outputs[i].memory, op->outputs[i].bytes);
        hash = bk_hash(hash, host, op->outputs[i].bytes);
        free(host);
    }
    return hash;
}

/* ---- what the host can see ---- */

/* Calls the op with `edit` made to a copy `bad` of its good arguments, or to `exec`; the refusal says the op's name and
 * the given words. */
#define REFUSE(run, op, edit, ...)                                                                            \
    do {                                                                                                      \
        ls_##op##_args bad = *(const ls_##op##_args *)call->args;                                             \
        const char *const words[] = {call->name, __VA_ARGS__};                                                \
        ls_exec exec;                                                                                         \
        bk_before_call((run), call->workspace);                                                               \
        exec = (run)->exec;                                                                                   \
        edit;                                                                                                 \
        bk_call_refused((run), #op ": " #edit, ls_op_##op(&exec, &bad, &(run)->err), words, BK_COUNT(words)); \
        outputs_untouched((run), call, #edit);                                                                \
    } while (0)

/* An address that is not a multiple of its element. */
#define ASKEW(pointer) ((pointer) = (void *)((uintptr_t)(pointer) + 1))

static void refused_forward(bk_run *run, const op_call *call) {
    REFUSE(run, logprob, bad.dtype = (ls_dtype)7, "type 7");
    REFUSE(run, logprob, bad.rows = -1, "rows", "-1");
    REFUSE(run, logprob, bad.vocab = 0, "vocab", "0");
    REFUSE(run, logprob, bad.vocab = -5, "vocab", "-5");
    REFUSE(run, logprob, bad.row_stride = bad.vocab = LS_LOGPROB_VOCAB_MAX + 1, "vocab", "1000001");
    REFUSE(run, logprob, bad.row_stride = bad.vocab - 1, "stride", "2099");
    REFUSE(run, logprob, bad.row_stride = -1, "stride", "-1");
    REFUSE(run, logprob, bad.row_stride = INT64_MAX / 4, "2305843009213693951");
    REFUSE(run, logprob, bad.logits = NULL, "logits", "null");
    REFUSE(run, logprob, bad.targets = NULL, "targets", "null");
    REFUSE(run, logprob, bad.logprob = NULL, "logprob", "null");
}

static void refused_shard(bk_run *run, const op_call *call) {
    REFUSE(run, logprob_shard, bad.dtype = (ls_dtype)3, "type 3");
    REFUSE(run, logprob_shard, bad.rows = -1, "rows", "-1");
    REFUSE(run, logprob_shard, bad.vocab = 0, "vocab", "0");
    REFUSE(run, logprob_shard, bad.vocab = bad.row_stride = 2101, "vocab", "2101");
    REFUSE(run, logprob_shard, bad.total = LS_LOGPROB_VOCAB_MAX + 1, "total", "1000001");
    REFUSE(run, logprob_shard, bad.first = -LS_LOGPROB_LEAF, "first", "-2048");
    REFUSE(run, logprob_shard, bad.first = 100, "first", "100");
    REFUSE(run, logprob_shard, bad.first = 4096, "first", "4096");
    REFUSE(run, logprob_shard, bad.vocab = 1000, "vocab", "1000");
    REFUSE(run, logprob_shard, bad.row_stride = bad.vocab - 1, "stride", "2099");
    REFUSE(run, logprob_shard, bad.leaf_stride = 1, "leaves", "stride 1");
    REFUSE(run, logprob_shard, bad.logits = NULL, "logits", "null");
    REFUSE(run, logprob_shard, bad.targets = NULL, "targets", "null");
    REFUSE(run, logprob_shard, bad.leaves = NULL, "leaves", "null");
    REFUSE(run, logprob_shard, bad.target_z = NULL, "target_z", "null");
}

static void refused_combine(bk_run *run, const op_call *call) {
    REFUSE(run, logprob_combine, bad.rows = -1, "rows", "-1");
    REFUSE(run, logprob_combine, bad.total = 0, "total", "0");
    REFUSE(run, logprob_combine, bad.total = LS_LOGPROB_VOCAB_MAX + 1, "total", "1000001");
    REFUSE(run, logprob_combine, bad.leaf_stride = 1, "leaves", "stride 1");
    REFUSE(run, logprob_combine, bad.leaves = NULL, "leaves", "null");
    REFUSE(run, logprob_combine, bad.target_z = NULL, "target_z", "null");
    REFUSE(run, logprob_combine, bad.targets = NULL, "targets", "null");
    REFUSE(run, logprob_combine, bad.logprob = NULL, "logprob", "null");
}

static void refused_backward(bk_run *run, const op_call *call) {
    REFUSE(run, logprob_backward, bad.dtype = (ls_dtype)7, "type 7");
    REFUSE(run, logprob_backward, bad.rows = -1, "rows", "-1");
    REFUSE(run, logprob_backward, bad.vocab = 0, "vocab", "0");
    REFUSE(run, logprob_backward, bad.row_stride = bad.vocab - 1, "stride", "2099");
    REFUSE(run, logprob_backward, bad.d_stride = bad.vocab - 1, "stride", "2099");
    REFUSE(run, logprob_backward, bad.d_logits = (void *)(uintptr_t)bad.logits; bad.d_stride++, "d_stride", "2101");
    REFUSE(run, logprob_backward, bad.d_entropy = bad.lse, "entropy", "null");
    REFUSE(run, logprob_backward, bad.logits = NULL, "logits", "null");
    REFUSE(run, logprob_backward, bad.targets = NULL, "targets", "null");
    REFUSE(run, logprob_backward, bad.lse = NULL, "lse", "null");
    REFUSE(run, logprob_backward, bad.d_logits = NULL, "d_logits", "null");
}

static void refused_sum(bk_run *run, const op_call *call) {
    REFUSE(run, sequence_sum, bad.rows = -1, "rows", "-1");
    REFUSE(run, sequence_sum, bad.n_sequences = -1, "sequences", "-1");
    REFUSE(run, sequence_sum, bad.offsets = NULL; bad.length = 5, "length 5", "rows");
    REFUSE(run, sequence_sum, bad.offsets = NULL; bad.length = -1, "length -1");
    REFUSE(run, sequence_sum, bad.offsets = NULL; bad.length = INT64_MAX, "length 9223372036854775807");
    REFUSE(run, sequence_sum, bad.logprob = NULL, "logprob", "null");
    REFUSE(run, sequence_sum, bad.out = NULL, "out", "null");
}

static void bad_arguments(bk_run *run) {
    calls c;
    calls_make(run, &c, 20, 2100);
    refused_forward(run, &c.ops[FORWARD]);
    refused_shard(run, &c.ops[SHARD]);
    refused_combine(run, &c.ops[COMBINE]);
    refused_backward(run, &c.ops[BACKWARD]);
    refused_sum(run, &c.ops[SUM]);
    calls_free(run, &c);
}

/* A device reads a wide element at its own alignment only. */
static void misaligned_pointers(bk_run *run) {
    calls c;
    const op_call *call;
    calls_make(run, &c, 20, 2100);
    call = &c.ops[FORWARD];
    REFUSE(run, logprob, ASKEW(bad.logits), "logits", "align");
    REFUSE(run, logprob, ASKEW(bad.targets), "targets", "align");
    REFUSE(run, logprob, ASKEW(bad.temperature), "temperature", "align");
    REFUSE(run, logprob, ASKEW(bad.logprob), "logprob", "align");
    REFUSE(run, logprob, ASKEW(bad.lse), "lse", "align");
    REFUSE(run, logprob, ASKEW(bad.entropy), "entropy", "align");
    call = &c.ops[SHARD];
    REFUSE(run, logprob_shard, ASKEW(bad.logits), "logits", "align");
    REFUSE(run, logprob_shard, ASKEW(bad.leaves), "leaves", "align");
    REFUSE(run, logprob_shard, ASKEW(bad.target_z), "target_z", "align");
    call = &c.ops[COMBINE];
    REFUSE(run, logprob_combine, ASKEW(bad.leaves), "leaves", "align");
    REFUSE(run, logprob_combine, ASKEW(bad.target_z), "target_z", "align");
    REFUSE(run, logprob_combine, ASKEW(bad.lse), "lse", "align");
    call = &c.ops[BACKWARD];
    REFUSE(run, logprob_backward, ASKEW(bad.logits), "logits", "align");
    REFUSE(run, logprob_backward, ASKEW(bad.d_logits), "d_logits", "align");
    REFUSE(run, logprob_backward, ASKEW(bad.lse), "lse", "align");
    REFUSE(run, logprob_backward, ASKEW(bad.d_logprob), "d_logprob", "align");
    call = &c.ops[SUM];
    REFUSE(run, sequence_sum, ASKEW(bad.logprob), "logprob", "align");
    REFUSE(run, sequence_sum, ASKEW(bad.offsets), "offsets", "align");
    REFUSE(run, sequence_sum, ASKEW(bad.out), "out", "align");
    calls_free(run, &c);
}

/* Memory of the host in place of the device's. */
static void host_pointers(bk_run *run) {
    void *host = bk_alloc(1 << 20);
    calls c;
    const op_call *call;
    calls_make(run, &c, 20, 2100);
    call = &c.ops[FORWARD];
    REFUSE(run, logprob, bad.logits = host, "logits");
    REFUSE(run, logprob, bad.targets = host, "targets");
    REFUSE(run, logprob, bad.mask = host, "mask");
    REFUSE(run, logprob, bad.temperature = host, "temperature");
    REFUSE(run, logprob, bad.logprob = host, "logprob");
    REFUSE(run, logprob, bad.lse = host, "lse");
    REFUSE(run, logprob, bad.entropy = host, "entropy");
    REFUSE(run, logprob, exec.workspace = host, "workspace");
    REFUSE(run, logprob, exec.fault = host, "record");
    call = &c.ops[SHARD];
    REFUSE(run, logprob_shard, bad.logits = host, "logits");
    REFUSE(run, logprob_shard, bad.leaves = host, "leaves");
    call = &c.ops[COMBINE];
    REFUSE(run, logprob_combine, bad.leaves = host, "leaves");
    REFUSE(run, logprob_combine, bad.target_z = host, "target_z");
    call = &c.ops[BACKWARD];
    REFUSE(run, logprob_backward, bad.logits = host, "logits");
    REFUSE(run, logprob_backward, bad.d_logits = host, "d_logits");
    REFUSE(run, logprob_backward, bad.d_logprob = host, "d_logprob");
    call = &c.ops[SUM];
    REFUSE(run, sequence_sum, bad.logprob = host, "logprob");
    REFUSE(run, sequence_sum, bad.offsets = host, "offsets");
    calls_free(run, &c);
    free(host);
}

static void bad_workspaces(bk_run *run) {
    calls c;
    calls_make(run, &c, 20, 2100);
    for (int i = 0; i < OPS; i++) {
        const op_call *call = &c.ops[i];
        const char *const words[] = {call->name, "workspace"};
        bk_before_call(run, call->workspace);
        for (int how = 0; how < 3; how++) {
            ls_exec exec = run->exec;
            if (how == 0) exec.workspace_bytes--;
            if (how == 1) exec.workspace = NULL;
            if (how == 2) exec.workspace = (uint8_t *)exec.workspace + 8;
            bk_call_refused(run,
                            how == 0   ? "too small"
                            : how == 1 ? "null"
                                       : "misaligned",
                            call->call(&exec, call->args, &run->err), words, BK_COUNT(words));
            outputs_untouched(run, call, "bad workspace");
        }
    }
    calls_free(run, &c);
}

/* ---- what only the device sees ---- */

/* A device array with something bad in it. */
typedef struct fault {
    const void *device;
    const void *bad, *good;
    int64_t bytes;
    const char *words[3]; /* what the refusal says, besides the op */
} fault;

static void fault_put(bk_run *run, const fault *f, bool bad) {
    bk_upload(run, (void *)(uintptr_t)f->device, bad ? f->bad : f->good, f->bytes);
}

/* Without a record the call waits and says what is wrong. */
static void fault_at_once(bk_run *run, const op_call *op, const fault *f) {
    bk_before_call(run, op->workspace);
    outputs_reset(run, op);
    fault_put(run, f, true);
    bk_call_refused(run, op->name, op->call(&run->exec, op->args, &run->err), f->words, BK_COUNT(f->words));
    outputs_untouched(run, op, f->words[1]);
    fault_put(run, f, false);
}

/* With a record the call returns, and it and whatever follows it write nothing until the fault is taken. */
static void fault_by_record(bk_run *run, const op_call *op, const fault *f, ls_exec *exec, uint64_t good_hash) {
    outputs_reset(run, op);
    fault_put(run, f, true);
    bk_call_done(run, op->name, op->call(exec, op->args, &run->err));
    if (ls_device_synchronize(exec, &run->err) != LS_OK) bk_die(run, op->name);
    outputs_untouched(run, op, f->words[1]);
    fault_put(run, f, false);
    bk_call_done(run, op->name, op->call(exec, op->args, &run->err));
    if (ls_device_synchronize(exec, &run->err) != LS_OK) bk_die(run, op->name);
    outputs_untouched(run, op, "a call after a fault");
    bk_call_refused(run, op->name, ls_fault_take(exec, &run->err), f->words, BK_COUNT(f->words));
    if (ls_fault_take(exec, &run->err) != LS_OK)
        bk_fail(run, "%s: a fault is taken twice: %s", op->name, run->err.text);
    bk_call_done(run, op->name, op->call(exec, op->args, &run->err));
    if (ls_fault_take(exec, &run->err) != LS_OK) bk_fail(run, "%s: a good call: %s", op->name, run->err.text);
    if (outputs_hash(run, op) != good_hash)
        bk_fail(run, "%s: a call after a fault was taken has other results", op->name);
}

static void fault_check(bk_run *run, const op_call *op, const fault *f) {
    uint64_t good_hash;
    bk_before_call(run, op->workspace);
    outputs_reset(run, op);
    bk_call_done(run, op->name, op->call(&run->exec, op->args, &run->err));
    good_hash = outputs_hash(run, op);
    fault_at_once(run, op, f);
    bk_before_call(run, op->workspace);
    bk_call_done(run, op->name, op->call(&run->exec, op->args, &run->err));
    if (outputs_hash(run, op) != good_hash) bk_fail(run, "%s: a call after a fault has other results", op->name);
    if (run->cuda) {
        const int64_t n_arrays = run->n_arrays;
        ls_exec exec = bk_async_exec(run, op->workspace);
        fault_by_record(run, op, f, &exec, good_hash);
        ls_stream_free(exec.backend, exec.stream);
        bk_clear_to(run, n_arrays);
    }
}

/* Row `lowest` is bad, and the last row too: the lowest is named. */
static void target_check(bk_run *run, const calls *c, int64_t lowest, int64_t target) {
    const int64_t rows = c->p.rows, bytes = rows * 8;
    int64_t *bad = bk_alloc(bytes);
    char row[32], value[32];
    memcpy(bad, c->p.targets, (size_t)bytes);
    bad[rows - 1] = -7;
    bad[lowest] = target;
    snprintf(row, sizeof row, "row %lld:", (long long)lowest);
    snprintf(value, sizeof value, "target %lld ", (long long)target);
    for (int i = FORWARD; i <= BACKWARD; i++)
        fault_check(run, &c->ops[i], &(fault){c->forward.targets, bad, c->p.targets, bytes, {row, value, "0.."}});
    free(bad);
}

static void temperature_check(bk_run *run, const calls *c, int64_t lowest, float temperature) {
    const int64_t rows = c->p.rows, bytes = rows * 4;
    float *bad = bk_alloc(bytes);
    char row[32], value[32];
    memcpy(bad, c->p.temperature, (size_t)bytes);
    bad[rows - 1] = -0.5f;
    bad[lowest] = temperature;
    snprintf(row, sizeof row, "row %lld:", (long long)lowest);
    snprintf(value, sizeof value, "temperature %g ", (double)temperature);
    for (int i = FORWARD; i <= BACKWARD; i++)
        if (i != COMBINE)
            fault_check(run, &c->ops[i],
                        &(fault){c->forward.temperature, bad, c->p.temperature, bytes, {row, value, ""}});
    free(bad);
}

static void bad_targets_and_temperatures(bk_run *run) {
    /* The low half of one of the targets is a good one. */
    const int64_t targets[] = {-1, 2100, 2100 + 1, -99, (int64_t)1 << 32, INT64_MIN, INT64_MAX};
    const float temperatures[] = {0.0f, -0.0f, -1.0f, NAN, INFINITY, -INFINITY};
    calls c;
    calls_make(run, &c, 20, 2100);
    for (int64_t i = 0; i < BK_COUNT(targets); i++) target_check(run, &c, i, targets[i]);
    for (int64_t i = 0; i < BK_COUNT(temperatures); i++) temperature_check(run, &c, 3 * i, temperatures[i]);
    calls_free(run, &c);
}

/* Where more than one block of threads looks for the lowest bad row. */
static void bad_rows_among_many(bk_run *run) {
    const int64_t row_counts[] = {600, bk_size(run, 3000, 70000, 70000)};
    for (int64_t i = 0; i < BK_COUNT(row_counts); i++) {
        const int64_t rows = row_counts[i];
        calls c;
        calls_make(run, &c, rows, 9);
        target_check(run, &c, 0, 9);
        target_check(run, &c, rows / 3, -1);
        target_check(run, &c, rows - 1, 100);
        temperature_check(run, &c, 257, 0.0f);
        temperature_check(run, &c, rows - 2, -2.0f);
        calls_free(run, &c);
    }
}

/* A bad offset ends the sequence before it; the first one begins sequence 0. */
static void bad_offsets(bk_run *run) {
    static const struct {
        int64_t at, value;
        const char *sequence, *text;
    } bad[] = {{0, -1, "sequence 0:", "offset -1 "},
               {0, 601, "sequence 0:", "offset 601 "},
               {2, -5, "sequence 1:", "offset -5 "},
               {3, 10, "sequence 2:", "offset 10 "},
               {4, 601, "sequence 3:", "offset 601 "},
               {5, 601, "sequence 4:", "offset 601 "},
               {1, INT64_MAX, "sequence 0:", "offset 9223372036854775807 "}};
    calls c;
    calls_make(run, &c, 600, 9);
    for (int64_t i = 0; i < BK_COUNT(bad); i++) {
        int64_t offsets[SEQUENCES + 1];
        memcpy(offsets, c.offsets, sizeof offsets);
        offsets[bad[i].at] = bad[i].value;
        fault_check(run, &c.ops[SUM],
                    &(fault){c.sum.offsets,
                             offsets,
                             c.offsets,
                             (int64_t)sizeof offsets,
                             {bad[i].sequence, bad[i].text, "600 rows"}});
    }
    calls_free(run, &c);
}

/* A captured call cannot wait for its checks. */
static void capture_without_a_record(bk_run *run) {
    calls c;
    calls_make(run, &c, 20, 2100);
    for (int i = 0; i < OPS; i++) {
        const char *const words[] = {c.ops[i].name, "captured", "record"};
        void *graph = NULL;
        ls_status status;
        ls_error err;
        bk_before_call(run, c.ops[i].workspace);
        if (ls_graph_begin(&run->exec, &run->err) != LS_OK) bk_die(run, "capture");
        status = c.ops[i].call(&run->exec, c.ops[i].args, &err);
        if (ls_graph_end(&run->exec, &graph, &run->err) != LS_OK) bk_die(run, "capture");
        run->err = err;
        bk_call_refused(run, "capture", status, words, BK_COUNT(words));
        outputs_untouched(run, &c.ops[i], "capture");
        ls_graph_free(graph);
    }
    calls_free(run, &c);
}

/* A fault found by a replayed graph waits in its record like any other. */
static void a_fault_in_a_graph(bk_run *run) {
    const char *const words[] = {"row 5:", "target 5000 "};
    calls c;
    calls_make(run, &c, 20, 2100);
    for (int i = FORWARD; i <= BACKWARD; i++) {
        const op_call *op = &c.ops[i];
        const int64_t bad = 5000, n_arrays = run->n_arrays;
        ls_exec exec = bk_async_exec(run, op->workspace);
        void *graph = NULL;
        uint8_t *target = (uint8_t *)(uintptr_t)c.forward.targets + 5 * 8;
        uint64_t good_hash;
        if (ls_graph_begin(&exec, &run->err) != LS_OK) bk_die(run, "capture");
        if (op->call(&exec, op->args, &run->err) != LS_OK) bk_fail(run, "%s: %s", op->name, run->err.text);
        if (ls_graph_end(&exec, &graph, &run->err) != LS_OK) bk_die(run, "capture");
        bk_call_done(run, "graph", ls_graph_launch(&exec, graph, &run->err));
        bk_call_done(run, "graph", ls_fault_take(&exec, &run->err));
        good_hash = outputs_hash(run, op);
        outputs_reset(run, op);
        bk_upload(run, target, &bad, 8);
        bk_call_done(run, "graph", ls_graph_launch(&exec, graph, &run->err));
        bk_call_refused(run, op->name, ls_fault_take(&exec, &run->err), words, BK_COUNT(words));
        outputs_untouched(run, op, "a graph with a fault");
        bk_upload(run, target, &c.p.targets[5], 8);
        bk_call_done(run, "graph", ls_graph_launch(&exec, graph, &run->err));
        bk_call_done(run, "graph", ls_fault_take(&exec, &run->err));
        if (outputs_hash(run, op) != good_hash) bk_fail(run, "%s: the graph has other results after a fault", op->name);
        ls_graph_free(graph);
        ls_stream_free(exec.backend, exec.stream);
        bk_clear_to(run, n_arrays);
    }
    calls_free(run, &c);
}

int main(int argc, char **argv) {
    static const bk_case cases[] = {
        {"bad_arguments", bad_arguments, BK_ANYWHERE},
        {"misaligned_pointers", misaligned_pointers, BK_CUDA_ONLY},
        {"host_pointers", host_pointers, BK_CUDA_ONLY},
        {"bad_workspaces", bad_workspaces, BK_CUDA_ONLY},
        {"bad_targets_and_temperatures", bad_targets_and_temperatures, BK_ANYWHERE},
        {"bad_rows_among_many", bad_rows_among_many, BK_ANYWHERE},
        {"bad_offsets", bad_offsets, BK_ANYWHERE},
        {"capture_without_a_record", capture_without_a_record, BK_CUDA_ONLY},
        {"a_fault_in_a_graph", a_fault_in_a_graph, BK_CUDA_ONLY},
    };
    return bk_main(argc, argv, cases, BK_COUNT(cases));
}
