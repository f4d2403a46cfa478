/* The training step: no bit of masters and moments depends on microbatch, recomputation, threads or instruction set;
 * the step is its contract; the leaf tree and schedules against float64; failures change nothing. */
#include "base/fnv.h"
#include "num/round.h"
#include "train/training.h"

static const char *const names[] = {"jamba-nobias",     "jamba-odd",   "jamba-moe",          "mamba-odd",
                                    "llama-odd",        "qwen3-small", "falcon-mamba-small", "mamba2-small",
                                    "nemotron-h-small", "bamba-small", "qwen3.5-small",      "qwen3.5-moe-small",
                                    "nemotron-h-moe",   "granite-odd"};

static uint64_t bits_of(const char *name, const ls_trainer_opts *opts, int32_t threads, ls_isa isa, int64_t steps) {
    training t;
    uint64_t bits;
    training_open(&t, fixture_path(name), opts, threads, isa);
    (void)train(&t, 1, steps + 1);
    bits = state_bits(t.state);
    training_close(&t);
    return bits;
}

/* 15 sequences in leaves of 2: seven leaves of two and one of one. */
static void settings_carry_no_bits(void **state) {
    (void)state;
    for (size_t m = 0; m < sizeof names / sizeof names[0]; m++) {
        const int64_t steps = test_looks() ? 2 : m == 2 ? 3 : m == 1 ? 8 : 20;
        ls_trainer_opts first = usual_opts();
        uint64_t bits;
        first.entropy = m == 1;
        first.dtype = m == 1 ? LS_BF16 : LS_F32;
        first.moments = m % 2 == 1 ? LS_BF16 : LS_F32;
        first.seed = 5;
        bits = bits_of(names[m], &first, 1, ls_isa_best(), steps);
        for (int64_t microbatch = 1; microbatch <= 8; microbatch *= 2)
            for (int recompute = 0; recompute < 2; recompute++)
                for (int32_t threads = 1; threads <= 2; threads++)
                    for (ls_isa isa = LS_ISA_GENERIC; isa < LS_ISA_COUNT; isa++) {
                        ls_trainer_opts opts = first;
                        const int n_changes = (microbatch > 1) + recompute + (threads > 1) + (isa != ls_isa_best());
                        const bool all_changes = microbatch == 4 && recompute && threads == 2 && isa == LS_ISA_GENERIC;
                        if (!ls_isa_available(isa)) continue;
                        /* The whole cross for one model and instruction set; else all things at once, and each. */
                        if ((m != 0 || isa != ls_isa_best()) && !all_changes && (test_looks() || n_changes != 1))
                            continue;
                        opts.microbatch = microbatch;
                        opts.recompute = recompute * (microbatch == 2 ? 3 : LS_RECOMPUTE_ALL); /* 3 halves, or all */
                        opts.moments_on_host = threads == 2;
                        if (microbatch == 8) opts.spans_max = 1, opts.leaf_rows_max = 28;
                        if (microbatch == 4) opts.rows_max = 60; /* the tokens cut forwards short */
                        if (microbatch == 2) opts.rows_max = 14, opts.leaf_rows_max = 28; /* a leaf in parts */
                        if (bits_of(names[m], &opts, threads, isa, steps) != bits)
                            fail_msg("%s: microbatch %lld, recompute %d, %d threads, %s: other bits", names[m],
                                     (long long)microbatch, recompute, threads, ls_isa_name(isa));
                    }
    }
}

/* Parts of a leaf that nothing is learnt from, before, between and behind others, and a leaf of nothing else. */
static void parts_may_be_flat(void **state) {
    static const int64_t flat[] = {0, 2, 4, 8, 9, 10, 11, 14};
    ls_trainer_opts opts = usual_opts();
    uint64_t bits[3];
    (void)state;
    opts.leaf = 4;
    for (int i = 0; i < 3; i++) {
        training t;
        batch b;
        ls_train_batch view;
        ls_train_stats stats;
        ls_error err;
        if (i > 0) opts.rows_max = i == 1 ? 30 : 14, opts.leaf_rows_max = 56;
        training_open(&t, fixture_path("jamba-odd"), &opts, 2, ls_isa_best());
        b = batch_make(15, 14, t.model->config.vocab, 77);
        for (size_t k = 0; k < sizeof flat / sizeof flat[0]; k++)
            for (int64_t r = b.offsets[flat[k]]; r < b.offsets[flat[k] + 1]; r++) b.targets[r] = -1;
        view = batch_view(&b);
        for (int step = 0; step < 3; step++) assert_ok(ls_trainer_step(t.trainer, &view, &stats, &err), err);
        bits[i] = state_bits(t.state);
        batch_free(&b);
        training_close(&t);
    }
    assert_true(bits[1] == bits[0] && bits[2] == bits[0]);
}

/* A leaf goes through in parts only where the trainer was made for it. */
static void what_does_not_fit_is_named(void **state) {
    ls_trainer_opts opts = usual_opts();
    training t;
    batch b;
    ls_train_batch view;
    ls_train_stats stats;
    ls_error err;
    (void)state;
    opts.rows_max = 14;
    training_open(&t, fixture_path("jamba-nobias"), &opts, 1, ls_isa_best());
    b = batch_make(15, 14, t.model->config.vocab, 77);
    view = batch_view(&b);
    check_failed(ls_trainer_step(t.trainer, &view, &stats, &err), &err, "a forward holds 14, a leaf of several 0");
    batch_free(&b);
    b = batch_make(15, 40, t.model->config.vocab, 77);
    view = batch_view(&b);
    check_failed(ls_trainer_step(t.trainer, &view, &stats, &err), &err, "tokens; a forward holds 14");
    batch_free(&b);
    training_close(&t);
}

/* What carries bits does: a test that sees no difference would see none. */
static void other_options_have_other_bits(void **state) {
    const ls_trainer_opts usual = usual_opts();
    uint64_t bits = bits_of(names[0], &usual, 1, ls_isa_best(), 3), narrow = 0;
    (void)state;
    for (int i = 0; i < 8; i++) {
        ls_trainer_opts opts = usual;
        if (i == 0) opts.leaf = 1;
        if (i == 1) opts.rate.peak *= 1.0001;
        if (i == 2) opts.max_norm = 0.5;
        if (i == 3) opts.adamw.decay = 0.2;
        if (i == 4) opts.entropy = true;
        if (i == 5) opts.dtype = LS_BF16;
        if (i >= 6) opts.moments = LS_BF16;
        if (i == 7) opts.seed = 1, bits = narrow;
        narrow = bits_of(names[0], &opts, 1, ls_isa_best(), 3);
        assert_false(narrow == bits);
    }
}

/* ---- the leaf tree ---- */

static float tree(const float *leaves, int64_t begin, int64_t end, int64_t n) {
    const int64_t middle = (begin + end) / 2;
    if (end - begin == 1) return leaves[begin];
    if (middle >= n) return tree(leaves, begin, middle, n);
    return ls_add(tree(leaves, begin, middle, n), tree(leaves, middle, end, n));
}

/* Trees of n_min to n_max leaves, of which the device holds so many nodes. */
static void check_trees(int64_t n_min, int64_t n_max, int64_t device_nodes) {
    enum { N = 40, WIDE = 5000 };
    float leaves[N];
    uint64_t seed = 3;
    ls_device *device = test_device(2, ls_isa_best());
    float *values = calloc(WIDE, sizeof *values);
    ls_gradient *g;
    ls_error err;
    assert_non_null(values);
    assert_true(n_max <= N);
    assert_ok(ls_gradient_create(&g, device, WIDE, n_max, device_nodes, &err), err);
    assert_true(ls_gradient_bytes(g) <= device_nodes * WIDE * (int64_t)sizeof(float));
    assert_true((ls_gradient_host_bytes(g) == 0) == (ls_gradient_nodes(n_max) <= device_nodes));
    for (int64_t i = 0; i < N; i++) leaves[i] = test_uniform(&seed, -1.0f, 1.0f);
    for (int64_t n = n_min; n <= n_max; n++) {
        float *root;
        ls_gradient_begin(g);
        for (int64_t i = 0; i < n; i++) {
            float *leaf;
            assert_ok(ls_gradient_leaf(g, true, &leaf, &err), err);
            from_device(device, values, leaf, WIDE * (int64_t)sizeof *values);
            for (int64_t k = 0; k < WIDE; k++) {
                assert_true(values[k] == 0.0f);
                values[k] = leaves[i] * (float)(k + 1);
            }
            assert_ok(ls_memory_write(device, leaf, values, WIDE * (int64_t)sizeof *values, &err), err);
            assert_ok(ls_gradient_fold(g, &err), err);
        }
        assert_ok(ls_gradient_root(g, &root, &err), err);
        from_device(device, values, root, WIDE * (int64_t)sizeof *values);
        for (int64_t k = 0; k < WIDE; k += 999) {
            float scaled[N], want;
            for (int64_t i = 0; i < n; i++) scaled[i] = leaves[i] * (float)(k + 1);
            want = tree(scaled, 0, 64, n);
            assert_same_bits(&values[k], &want, 1);
        }
        for (int64_t ranks = 1; ranks <= 8; ranks++) {
            const int64_t share = ls_gradient_share(n, ranks);
            assert_true((share & (share - 1)) == 0 && share * ranks >= n);
            assert_true(share == 1 || share / 2 * ranks < n);
        }
    }
    ls_gradient_free(g);
    free(values);
    test_device_close(device);
}

static void leaves_fold_in_a_tree(void **state) {
    (void)state;
    check_trees(1, 40, 64);
}

/* Whichever nodes wait on the host, and whatever the largest tree is. */
static void nodes_wait_on_the_host(void **state) {
    (void)state;
    assert_int_equal(ls_gradient_nodes(1), 1);
    assert_int_equal(ls_gradient_nodes(2), 2);
    assert_int_equal(ls_gradient_nodes(5),
                     3); /* behind leaf 3 two nodes wait, the fourth leaf's gradient is the third */
    assert_int_equal(ls_gradient_nodes(128), 8);
    assert_int_equal(ls_gradient_nodes(129), 8);
    for (int64_t nodes = 1; nodes <= 4; nodes++)
        for (int64_t n = 1; n <= 17; n++) check_trees(n > 3 ? n - 3 : 1, n, nodes);
}

/* Whichever way a device finds it, and wherever the memory begins and ends. */
static void a_digest_is_fnv_1a(void **state) {
    enum { BYTES = (1 << 18) + 77 };
    static const int64_t sizes[] = {0, 1, 15, 16, 4095, 4097, 65535, 65536, 65537, 131072, BYTES - 5};
    ls_device *device = test_device(1, ls_isa_best());
    uint8_t *host = malloc(BYTES), *memory;
    uint64_t seed = 11;
    ls_error err;
    (void)state;
    assert_non_null(host);
    for (int64_t i = 0; i < BYTES; i++) host[i] = (uint8_t)(test_uniform(&seed, 0.0f, 256.0f));
    assert_ok(ls_memory_alloc(device, (void **)&memory, BYTES, 1, "bytes", &err), err);
    assert_ok(ls_memory_write(device, memory, host, BYTES, &err), err);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int64_t at = 0; at < 4; at++) {
            uint64_t hash = LS_FNV_START + (uint64_t)at;
            const uint64_t want = ls_fnv_mix(hash, host + at, sizes[i]);
            assert_ok(ls_memory_digest(device, &hash, memory + at, sizes[i], &err), err);
            assert_true(hash == want);
        }
    ls_memory_free(device, memory);
    free(host);
    test_device_close(device);
}

/* More parts than a back end looks at in one go (4,096 on a GPU), of the host and of the device, many of them empty. */
static void a_digest_of_parts_is_fnv_1a(void **state) {
    enum { BYTES = 1 << 18, N = 10000 };
    const int64_t n = test_defers() ? N / 50 : N; /* deferred: each part of the device waits */
    ls_device *device = test_device(1, ls_isa_best());
    uint8_t *host = malloc(BYTES), *memory;
    ls_digest_part *parts = calloc(N, sizeof *parts);
    uint64_t hash = LS_FNV_START, want = LS_FNV_START, seed = 12;
    ls_error err;
    (void)state;
    assert_non_null(host);
    assert_non_null(parts);
    for (int64_t i = 0; i < BYTES; i++) host[i] = (uint8_t)(test_uniform(&seed, 0.0f, 256.0f));
    assert_ok(ls_memory_alloc(device, (void **)&memory, BYTES, 1, "bytes", &err), err);
    assert_ok(ls_memory_write(device, memory, host, BYTES, &err), err);
    for (int64_t i = 0; i < n; i++) {
        const int64_t most = i % 1000 == 7 ? BYTES / 2 : i % 3 == 0 ? 1 : 200;
        const int64_t bytes = (int64_t)test_uniform(&seed, 0.0f, (float)most);
        const int64_t at = (int64_t)test_uniform(&seed, 0.0f, (float)(BYTES / 2));
        const bool on_host = test_uniform(&seed, 0.0f, 1.0f) < 0.5f;
        parts[i] = (ls_digest_part){(on_host ? host : memory) + at, bytes, on_host};
        want = ls_fnv_mix(want, host + at, bytes);
    }
    assert_ok(ls_parts_digest(device, &hash, parts, n, &err), err);
    assert_true(hash == want);
    ls_memory_free(device, memory);
    free(parts);
    free(host);
    test_device_close(device);
}

/* More bytes than a back end looks at in one go (1 GiB on a GPU), with a border in the middle of equal ones. */
static void a_digest_of_much_is_fnv_1a(void **state) {
    enum { TIMES = 9 };
    const int64_t bytes = ((int64_t)1 << (test_defers() ? 20 : 27)) + 8191; /* deferred: it takes a wait for 4 KB */
    ls_device *device = test_device(1, ls_isa_best());
    const int64_t n = device->table->digest != NULL ? TIMES : 1;
    uint8_t *host = malloc((size_t)bytes), *memory;
    ls_digest_part parts[TIMES];
    uint64_t hash = LS_FNV_START, want = LS_FNV_START, x = 5;
    ls_error err;
    (void)state;
    assert_non_null(host);
    for (int64_t i = 0; i < bytes; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        host[i] = i >> 20 == 127 ? 7 : (uint8_t)x;
    }
    assert_ok(ls_memory_alloc(device, (void **)&memory, bytes, 1, "bytes", &err), err);
    assert_ok(ls_memory_write(device, memory, host, bytes, &err), err);
    for (int64_t i = 0; i < n; i++) {
        parts[i] = (ls_digest_part){memory, bytes, false};
        want = ls_fnv_mix(want, host, bytes);
    }
    assert_ok(ls_parts_digest(device, &hash, parts, n, &err), err);
    assert_true(hash == want);
    ls_memory_free(device, memory);
    free(host);
    test_device_close(device);
}

/* ---- the step as its contract has it, in float64 where it is not a sum ---- */

static void a_step_is_its_contract(void **state) {
    ls_trainer_opts opts = usual_opts();
    batch b;
    training t;
    ls_tape *tape;
    ls_parameters *p;
    const ls_tape_opts tape_opts = {LS_F32, 4096, 15, LS_RECOMPUTE_ALL, 1.0f, 0, NULL, NULL, 0, 0};
    ls_train_stats stats;
    ls_train_batch view;
    ls_gradient *g;
    float *root, *there, *before, *after, *d, scale;
    int64_t bytes;
    double squares = 0, norm, worst = 0;
    ls_error err;
    (void)state;
    opts.rate = (ls_rate){LS_RATE_CONSTANT, 1e-2, 0, 0, 0};
    training_open(&t, fixture_path("jamba-nobias"), &opts, 1, ls_isa_best());
    p = t.state->parameters;
    bytes = p->n_elements * (int64_t)sizeof(float);
    b = batch_make(15, 14, t.model->config.vocab, 5);
    view = batch_view(&b);
    before = calloc((size_t)p->n_elements, sizeof *before);
    d = calloc((size_t)b.offsets[b.n], sizeof *d);
    after = calloc((size_t)p->n_elements, sizeof *after);
    root = calloc((size_t)p->n_elements, sizeof *root);
    from_device(t.device, before, p->masters, bytes);
    for (int64_t r = 0; r < b.offsets[b.n]; r++) d[r] = -1.0f;
    assert_ok(ls_tape_create(&tape, p, t.device, &tape_opts, &err), err);
    assert_ok(ls_gradient_create(&g, t.device, p->n_elements, 8, 64, &err), err);
    assert_ok(ls_tape_forward(tape, b.tokens, b.offsets, b.n, &err), err);
    for (int64_t i = 0; i < 8; i++) {
        assert_ok(ls_gradient_leaf(g, true, &there, &err), err);
        const ls_leaf_part part = {.begin = 2 * i,
                                   .end = i == 7 ? 15 : 2 * i + 2,
                                   .targets = b.targets,
                                   .d_logprob = d,
                                   .is_first = true,
                                   .is_last = true};
        assert_ok(ls_tape_backward(tape, &part, there, &err), err);
        assert_ok(ls_gradient_fold(g, &err), err);
    }
    assert_ok(ls_gradient_root(g, &there, &err), err);
    from_device(t.device, root, there, bytes);
    for (int64_t i = 0; i < p->n_elements; i++) squares += (double)root[i] * (double)root[i];
    norm = sqrt(squares) / (double)b.count;
    scale = (float)(norm > 1.0 ? 1.0 / norm / (double)b.count : 1.0 / (double)b.count);
    assert_ok(ls_trainer_step(t.trainer, &view, &stats, &err), err);
    from_device(t.device, after, p->masters, bytes);
    assert_true(fabs(stats.norm - norm) < 1e-5 * norm);
    assert_true(stats.clipped == (norm > 1.0));
    assert_int_equal(stats.step, 1);
    for (int64_t i = 0; i < p->n; i++) {
        const ls_parameter *q = &p->list[i];
        const bool vector = strstr(q->slot.name, "norm") != NULL || strstr(q->slot.name, "bias") != NULL ||
                            strstr(q->slot.name, "A_log") != NULL || strstr(q->slot.name, ".D") != NULL;
        assert_true(ls_trainer_decays(q->slot.kind) == !vector);
        for (int64_t k = 0; k < q->n_elements; k++) {
            /* At step 1 the corrected moments are the gradient and its square. */
            const double w = (double)before[q->offset + k], gr = (double)root[q->offset + k] * (double)scale;
            const double want = w - 1e-2 * (gr / (fabs(gr) + 1e-8) + (vector ? 0.0 : 0.1) * w);
            /* Where the gradient is of the size of eps its own rounding shows. */
            if (fabs(gr) > 1e-5 || gr == 0) worst = fmax(worst, fabs((double)after[q->offset + k] - want));
        }
    }
    print_message("norm %.4f, largest difference from float64 after one step %.2g\n", norm, worst);
    assert_true(worst < 2e-6);
    free(before);
    free(after);
    free(root);
    free(d);
    ls_gradient_free(g);
    ls_tape_free(tape);
    batch_free(&b);
    training_close(&t);
}

static void rates_follow_their_formulas(void **state) {
    const double pi = acos(-1.0);
    (void)state;
    for (int kind = 0; kind < LS_RATE_COUNT; kind++)
        for (int64_t warmup = 0; warmup <= 10; warmup += 5) {
            const ls_rate r = {(ls_rate_kind)kind, 3e-4, 3e-5, warmup, 1010};
            ls_error err;
            double before = 1;
            assert_ok(ls_rate_check(&r, &err), err);
            for (int64_t step = 1; step <= 1100; step++) {
                const double x = fmin(1.0, (double)(step - warmup) / (double)(1010 - warmup));
                const double c = kind == LS_RATE_COSINE ? 0.5 + 0.5 * cos(pi * x) : 1.0 - x;
                double want = kind == LS_RATE_CONSTANT ? 3e-4 : 3e-5 + (3e-4 - 3e-5) * c;
                const double got = ls_rate_at(&r, step);
                if (step < warmup) want = 3e-4 * (double)step / (double)warmup;
                assert_true(fabs(got - want) < 1e-18);
                if (step == warmup) assert_true(got == 3e-4);
                if (step >= 1010 && kind != LS_RATE_CONSTANT) assert_true(got == 3e-5);
                if (step > warmup) {
                    assert_true(got <= before);
                    before = got;
                }
            }
        }
    {
        const ls_rate bad[] = {{LS_RATE_CONSTANT, -1, 0, 0, 0},       {LS_RATE_CONSTANT, (double)NAN, 0, 0, 0},
                               {LS_RATE_COSINE, 1, 2, 0, 10},         {LS_RATE_COSINE, 1, 0, 10, 10},
                               {LS_RATE_CONSTANT, INFINITY, 0, 0, 0}, {LS_RATE_LINEAR, 1, 0, -1, 10}};
        ls_error err;
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
            check_failed(ls_rate_check(&bad[i], &err), &err, "learning rate");
    }
}

/* ---- learning, and not ---- */

static void the_loss_falls(void **state) {
    (void)state;
    for (size_t m = 0; m < 2 * sizeof names / sizeof names[0]; m += test_looks() ? 5 : 1) {
        const char *name = names[m / 2];
        ls_trainer_opts opts = usual_opts();
        double first = 0, loss = 0;
        training t;
        batch b;
        ls_train_batch view;
        opts.rate = (ls_rate){LS_RATE_CONSTANT, 1e-2, 0, 5, 0};
        opts.microbatch = 4;
        opts.moments = m % 2 == 1 ? LS_BF16 : LS_F32;
        training_open(&t, fixture_path(name), &opts, 2, ls_isa_best());
        b = batch_make(4, 14, t.model->config.vocab, 9);
        view = batch_view(&b);
        for (int i = 0; i < 30; i++) {
            ls_train_stats stats;
            ls_error err;
            assert_ok(ls_trainer_step(t.trainer, &view, &stats, &err), err);
            loss = stats.totals[0] / (double)b.count;
            if (i == 0) first = loss;
        }
        print_message("%s, moments in %s: loss %.3f, after 30 steps %.3f\n", name, ls_dtype_name(opts.moments), first,
                      loss);
        assert_true(loss < 0.2 * first);
        batch_free(&b);
        training_close(&t);
    }
}

typedef struct spoiler {
    int64_t sequence;
    float gradient;
    double loss;
    bool fails;
} spoiler;

static ls_status spoiled_loss(void *context, const ls_train_rows *rows, ls_error *err) {
    const spoiler *s = context;
    const int64_t i = s->sequence - rows->sequence;
    const ls_status status = plain_loss(NULL, rows, err);
    if (i < 0 || i >= rows->n_sequences) return status;
    rows->d_logprob[rows->offsets[i]] = s->gradient;
    rows->metrics[i] = s->loss;
    return s->fails ? LS_FAIL(err, LS_ERR_ARG, "no such reward") : LS_OK;
}

/* A step that its caller drives part by part; without the update nothing of it stays. */
static void a_step_in_its_parts(void **state) {
    const ls_trainer_opts opts = usual_opts();
    uint64_t bits[2], before;
    (void)state;
    for (int parts = 0; parts < 2; parts++) {
        batch b;
        ls_train_batch view;
        ls_train_stats stats;
        ls_train_rows rows;
        training t;
        ls_error err;
        training_open(&t, fixture_path("jamba-nobias"), &opts, 1, ls_isa_best());
        (void)train(&t, 1, 3);
        b = batch_make(15, 14, t.model->config.vocab, 3);
        view = batch_view(&b);
        before = state_bits(t.state);
        if (parts == 0) assert_ok(ls_trainer_step(t.trainer, &view, &stats, &err), err);
        for (int try = 0; parts == 1 && try < 2; try++) { /* the first of them is dropped */
            int64_t n = 0;
            assert_ok(ls_trainer_begin(t.trainer, &view, &err), err);
            while (ls_trainer_has_more(t.trainer)) {
                assert_ok(ls_trainer_forward(t.trainer, &rows, &err), err);
                assert_int_equal(rows.sequence, n);
                n += rows.n_sequences;
                if (try == 0 && n > 8) continue; /* no backward */
                assert_ok(plain_loss(NULL, &rows, &err), err);
                assert_ok(ls_trainer_backward(t.trainer, &err), err);
            }
            assert_int_equal(n, 15);
            assert_true(state_bits(t.state) == before);
            if (try == 1) assert_ok(ls_trainer_update(t.trainer, &stats, &err), err);
        }
        assert_int_equal(stats.step, 3);
        bits[parts] = state_bits(t.state);
        batch_free(&b);
        training_close(&t);
    }
    assert_true(bits[0] == bits[1] && bits[0] != before);
}

static void a_failed_step_changes_nothing(void **state) {
    static const struct {
        spoiler s;
        const char *says;
    } cases[] = {{{7, NAN, 1, false}, "step 3: the gradient of model.embed_tokens.weight is nan at element "},
                 {{14, INFINITY, 1, false}, "step 3: the gradient of model.embed_tokens.weight is "},
                 {{0, 1, (double)NAN, false}, "step 3: the loss of sequence 0 is nan"},
                 {{3, NAN, (double)INFINITY, false}, "step 3: the loss of sequence 3 is inf; the gradient of model."},
                 {{3, 3e30f, 1, false}, "exceed float32"},
                 {{3, 1, 1, true}, "step 3: no such reward"}};
    ls_trainer_opts opts = usual_opts();
    spoiler s = {-1, 0, 0, false};
    uint64_t bits, digest;
    training t;
    batch b;
    ls_train_batch view;
    ls_train_stats stats;
    ls_error err;
    (void)state;
    opts.loss = spoiled_loss;
    opts.context = &s;
    training_open(&t, fixture_path("jamba-nobias"), &opts, 1, ls_isa_best());
    (void)train(&t, 1, 3);
    bits = state_bits(t.state);
    digest = weight_digest(t.state->parameters);
    b = batch_make(15, 14, t.model->config.vocab, 3);
    view = batch_view(&b);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        s = cases[i].s;
        check_failed(ls_trainer_step(t.trainer, &view, &stats, &err), &err, cases[i].says);
        assert_true(state_bits(t.state) == bits && weight_digest(t.state->parameters) == digest);
        assert_int_equal(t.state->step, 2);
    }
    s.sequence = -1;
    for (int i = 0; i < 5; i++) {
        static const char *const says[] = {"16 sequences", "token 1073741824", "sequence 4 is rows", "mean over",
                                           "target"};
        const int64_t kept_offset = b.offsets[5], kept_target = b.targets[0];
        const int32_t kept_token = b.tokens[0];
        view = batch_view(&b);
        if (i == 0) view.n = 16;
        if (i == 1) b.tokens[0] = 1 << 30;
        if (i == 2) b.offsets[5] = b.offsets[4];
        if (i == 3) view.count = 0;
        if (i == 4) b.targets[0] = 1 << 30;
        check_failed(ls_trainer_step(t.trainer, &view, &stats, &err), &err, says[i]);
        assert_true(state_bits(t.state) == bits);
        b.offsets[5] = kept_offset;
        b.targets[0] = kept_target;
        b.tokens[0] = kept_token;
    }
    /* And the next one is what it would have been. */
    (void)train(&t, 3, 5);
    bits = state_bits(t.state);
    training_close(&t);
    training_open(&t, fixture_path("jamba-nobias"), &opts, 1, ls_isa_best());
    (void)train(&t, 1, 5);
    assert_true(state_bits(t.state) == bits);
    training_close(&t);
    batch_free(&b);
}

static void impossible_options_are_refused(void **state) {
    static const char *const says[] = {"leaves of 0", "largest norm", "beta1", "learning rate",
                                       "temperature", "0 metrics",    "eps",   "moments of type f16"};
    (void)state;
    for (int i = 0; i < 8; i++) {
        ls_trainer_opts opts = usual_opts();
        ls_trainer *trainer;
        ls_model *model;
        ls_device *device;
        ls_error err;
        if (i == 0) opts.leaf = 0;
        if (i == 1) opts.max_norm = 0;
        if (i == 2) opts.adamw.beta1 = 1;
        if (i == 3) opts.rate.floor = 1;
        if (i == 4) opts.temperature = 0;
        if (i == 5) opts.n_metrics = 0;
        if (i == 6) opts.adamw.eps = 0;
        if (i == 7) opts.moments = LS_F16;
        device = test_device(1, ls_isa_best());
        assert_ok(ls_model_open(&model, device, fixture_path("jamba-nobias"), &err), err);
        check_failed(ls_trainer_create(&trainer, model, fixture_path("jamba-nobias"), device, &opts, &err), &err,
                     says[i]);
        assert_null(trainer);
        ls_model_close(model);
        test_device_close(device);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(leaves_fold_in_a_tree),
        cmocka_unit_test(nodes_wait_on_the_host),
        cmocka_unit_test(a_digest_is_fnv_1a),
        cmocka_unit_test(a_digest_of_parts_is_fnv_1a),
        cmocka_unit_test(a_digest_of_much_is_fnv_1a),
        cmocka_unit_test(rates_follow_their_formulas),
        cmocka_unit_test(a_step_is_its_contract),
        cmocka_unit_test(settings_carry_no_bits),
        cmocka_unit_test(parts_may_be_flat),
        cmocka_unit_test(what_does_not_fit_is_named),
        cmocka_unit_test(other_options_have_other_bits),
        cmocka_unit_test(the_loss_falls),
        cmocka_unit_test(a_step_in_its_parts),
        cmocka_unit_test(a_failed_step_changes_nothing),
        cmocka_unit_test(impossible_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
