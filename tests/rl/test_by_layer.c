/* Runs whose processes have a share of the layers' weights each, weights=by_layer: the digest of one process, on a
 * device too small for the whole model too; what is refused; that nothing stays behind. */
#define _GNU_SOURCE
#include <dirent.h>

#include "model/architectures.h"
#include "model/init.h"
#include "rl/ranks_run.h"

/* Replaces the model of all runs by one with fresh weights. */
static void make_model(const char *config) {
    char path[512];
    ls_model_config c;
    ls_error err;
    FILE *file;
    snprintf(path, sizeof path, "%s/config.json", model_dir);
    file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(config, file) >= 0 && fclose(file) == 0);
    assert_ok(ls_model_config_open(&c, model_dir, &err), err);
    snprintf(path, sizeof path, "%s/model.safetensors", model_dir);
    assert_int_equal(unlink(path), 0);
    assert_ok(ls_model_init(path, &c, 7, 0, 1, &err), err);
}

#define JAMBA(hidden, ffn, layers, experts)                                                                         \
    "{\"architectures\":[\"JambaForCausalLM\"],\"model_type\":\"jamba\",\"dtype\":\"bfloat16\",\"vocab_size\":64,"  \
    "\"bos_token_id\":1,\"eos_token_id\":2,\"pad_token_id\":0,\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-06,"      \
    "\"hidden_size\":" hidden ",\"intermediate_size\":" ffn ",\"num_hidden_layers\":" layers                        \
    ",\"num_experts\":" experts                                                                                     \
    ",\"num_experts_per_tok\":2,\"expert_layer_offset\":1,\"expert_layer_period\":2,\"attn_layer_offset\":2,"       \
    "\"attn_layer_period\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"mamba_d_conv\":4,"               \
    "\"mamba_d_state\":8,\"mamba_dt_rank\":8,\"mamba_expand\":2,\"mamba_conv_bias\":true,\"mamba_proj_bias\":true," \
    "\"tie_word_embeddings\":false,\"max_position_embeddings\":4096}"

/* Attention, Mamba, dense and experts, biases, a head of its own. */
static const char mixed[] = JAMBA("32", "48", "5", "4");
/* Where a layer is small beside the model. */
static const char large[] = JAMBA("128", "512", "16", "2");
/* Layers of one sublayer, a tied head, float32. */
static const char plain[] =
    "{\"architectures\":[\"MambaForCausalLM\"],\"model_type\":\"mamba\",\"dtype\":\"float32\",\"vocab_size\":64,"
    "\"bos_token_id\":1,\"eos_token_id\":2,\"pad_token_id\":0,\"hidden_act\":\"silu\",\"layer_norm_epsilon\":1e-05,"
    "\"hidden_size\":24,\"intermediate_size\":48,\"expand\":2,\"num_hidden_layers\":5,\"state_size\":8,\"conv_kernel\":"
    "4,"
    "\"time_step_rank\":4,\"use_bias\":false,\"use_conv_bias\":true,\"residual_in_fp32\":true,"
    "\"tie_word_embeddings\":true}";

/* Mamba-2, a head of its own. */
static const char plain2[] =
    "{\"architectures\":[\"Mamba2ForCausalLM\"],\"model_type\":\"mamba2\",\"dtype\":\"bfloat16\",\"vocab_size\":64,"
    "\"bos_token_id\":1,\"eos_token_id\":2,\"pad_token_id\":0,\"hidden_size\":24,\"num_heads\":6,\"head_dim\":8,"
    "\"n_groups\":2,\"num_hidden_layers\":5,\"state_size\":8,\"conv_kernel\":4}";

/* The delta rule, attention with output gates, norms above one. */
static const char qwen3_5[] =
    "{\"architectures\":[\"Qwen3_5ForCausalLM\"],\"model_type\":\"qwen3_5_text\",\"dtype\":\"bfloat16\",\"vocab_size\":"
    "64,"
    "\"hidden_size\":24,\"intermediate_size\":32,\"num_hidden_layers\":4,\"num_attention_heads\":2,"
    "\"num_key_value_heads\":1,\"head_dim\":16,\"linear_num_key_heads\":2,\"linear_num_value_heads\":4,"
    "\"linear_key_head_dim\":8,\"linear_value_head_dim\":8,\"bos_token_id\":1,\"eos_token_id\":2,\"pad_token_id\":0}";

/* Granite: experts of a layer in two tensors, factors of the stream. */
static const char granite[] =
    "{\"architectures\":[\"GraniteMoeHybridForCausalLM\"],\"model_type\":\"granitemoehybrid\",\"dtype\":\"bfloat16\","
    "\"vocab_size\":64,\"hidden_size\":24,\"intermediate_size\":8,\"shared_intermediate_size\":12,"
    "\"num_hidden_layers\":4,\"layer_types\":[\"mamba\",\"attention\",\"mamba\",\"mamba\"],\"num_attention_heads\":2,"
    "\"num_key_value_heads\":1,\"num_local_experts\":4,\"num_experts_per_tok\":2,\"mamba_n_heads\":6,"
    "\"mamba_d_state\":8,\"embedding_multiplier\":12,\"residual_multiplier\":0.22,\"attention_multiplier\":0.1,"
    "\"logits_scaling\":3,\"bos_token_id\":1,\"eos_token_id\":2,\"pad_token_id\":0}";

/* ---- runs, each process of which is a child: this program itself never opens a device, so that it may fork ---- */

/* Rank 0. words NULL: it must come to an end, and its digest is returned; else it must fail with them. */
static uint64_t run_apart(job *j, const char *words) {
    uint64_t digest = 0;
    int ends[2], status;
    pid_t child;
    assert_int_equal(pipe(ends), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        ls_error err = {LS_OK, ""};
        const ls_status ended = job_run(j, &err);
        const bool is_right = words == NULL ? ended == LS_OK : ended != LS_OK && strstr(err.text, words) != NULL;
        if (!is_right) fprintf(stderr, "%s\n", ended == LS_OK ? "it did not fail" : err.text);
        if (write(ends[1], &j->result.digest, sizeof digest) != (ssize_t)sizeof digest) _exit(3);
        _exit(is_right ? 0 : 1);
    }
    assert_int_equal(read(ends[0], &digest, sizeof digest), sizeof digest);
    close(ends[0]);
    close(ends[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    return digest;
}

static job make_job(const char *const *sets, int64_t n) {
    job j = job_make("shared");
    for (int64_t i = 0; i < n; i++) job_set(&j, sets[i]);
    return j;
}

static void drop_job(job *j) {
    remove_tree(j->o->train.run);
    job_free(j);
}

static uint64_t digest_of_one(const char *const *sets, int64_t n) {
    job j = make_job(sets, n);
    const uint64_t digest = run_apart(&j, NULL);
    drop_job(&j);
    return digest;
}

/* The same run by so many processes with weights by layer. */
static void must_equal(uint64_t want, const char *const *sets, int64_t n, int64_t ranks) {
    pid_t children[3];
    job j = make_job(sets, n);
    job_set(&j, "weights=by_layer");
    start_ranks(&j, ranks, want, children);
    assert_int_equal(run_apart(&j, NULL), want);
    end_ranks(ranks, children);
    drop_job(&j);
}

/* All ranks fail, the first one with these words. */
static void must_fail(job *j, int64_t ranks, const char *words) {
    pid_t children[3];
    int status;
    start_ranks(j, ranks, 0, children);
    (void)run_apart(j, words);
    clear_environment();
    for (int64_t r = 1; r < ranks; r++) {
        assert_int_equal(waitpid(children[r], &status, 0), children[r]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 2);
    }
}

/* Leaves in parts, flat leaves, a rank without leaves, recomputation, minibatches, a reference, evaluations,
 * truncation, states that are preempted, and states that are written late. */
static void processes_have_the_bits_of_one(void **state) {
    static const struct {
        const char *model, *sets[7];
    } cases[] = {
        {mixed, {"rows=80", "leaf=3", "recompute=true", "save_every=1", "save_behind=true", NULL}},
        {mixed, {"epochs=2", "minibatches=3", "beta=0.05", "eval_every=2", "eval_n=5", "dtype=bf16", NULL}},
        {mixed, {"leaf=8", "microbatch=1", "engine.preempt-every=3", "engine.preempt-by=alternate", NULL}},
        {plain2, {"minibatches=2", "engine.chunk=2", "engine.state-every=3", NULL}},
        {qwen3_5, {"minibatches=2", "engine.chunk=2", "engine.state-every=3", NULL}},
        {granite, {"minibatches=2", "engine.chunk=2", NULL}},
        {plain, {"top_p=0.9", "top_k=20", "minibatches=2", "engine.chunk=2", NULL}},
    };
    (void)state;
    for (int64_t k = 0; k < COUNT(cases); k++) {
        int64_t n = 0;
        uint64_t want;
        make_model(cases[k].model);
        while (cases[k].sets[n] != NULL) n++;
        want = digest_of_one(cases[k].sets, n);
        for (int64_t ranks = SANITIZED ? 3 : 2; ranks <= 3; ranks++) must_equal(want, cases[k].sets, n, ranks);
    }
}

static void the_profile_mma16_has_too(void **state) {
    static const char *const sets[] = {"dtype=bf16", "profile=mma16", "leaf=2", "moments=bf16"};
    uint64_t want;
    (void)state;
    make_model(JAMBA("32", "48", "4", "1"));
    want = digest_of_one(sets, COUNT(sets));
    must_equal(want, sets, COUNT(sets), 2);
}

/* ---- a model that does not fit ---- */

static int64_t limit;

static ls_status open_limited(ls_device **out, int32_t n_threads, ls_isa isa, ls_error *err) {
    const ls_device_opener opener = test_opener() != NULL ? test_opener() : ls_device_open_cpu;
    const ls_status status = opener(out, n_threads, isa, err);
    if (status == LS_OK) ls_device_limit(*out, limit);
    return status;
}

/* Whether two processes with weights by layer come to an end on devices of `limit` bytes. */
static bool fits_by_layer(const char *const *sets, int64_t n) {
    pid_t children[2];
    int status;
    job j = make_job(sets, n);
    job_set(&j, "weights=by_layer");
    start_ranks(&j, 2, 0, children);
    const pid_t first = fork();
    assert_true(first >= 0);
    if (first == 0) _exit(job_run(&j, NULL) == LS_OK ? 0 : 1);
    assert_int_equal(waitpid(children[1], &status, 0), children[1]);
    assert_int_equal(waitpid(first, &status, 0), first);
    drop_job(&j);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Devices as small as two processes need by layer are too small for those that have all weights. */
static void a_model_that_does_not_fit_is_trained_by_layer(void **state) {
    static const char *const sets[] = {SANITIZED ? "steps=1" : "steps=2",
                                       "rows=120",
                                       "leaf=2",
                                       "recompute=true",
                                       "engine.batch=4",
                                       "engine.prefix=off",
                                       "gradients=1"};
    const int64_t n = COUNT(sets);
    uint64_t want;
    (void)state;
    make_model(large);
    want = digest_of_one(sets, n);
    ls_device_open_by(open_limited);
    limit = INT64_C(84) << 20;
    while (limit < INT64_C(1) << 30 && !fits_by_layer(sets, n)) limit += INT64_C(8) << 20;
    print_message("by layer %lld MiB are enough\n", (long long)(limit >> 20));
    for (int64_t ranks = SANITIZED ? 3 : 2; ranks <= 3; ranks++) {
        job j = make_job(sets, n);
        must_fail(&j, ranks, "the smallest plan needs");
        drop_job(&j);
        must_equal(want, sets, n, ranks);
    }
    ls_device_open_by(test_opener() != NULL ? test_opener() : ls_device_open_cpu);
}

/* ---- ends ---- */

/* Files of this program's memory that have a name. */
static int64_t named_memory(void) {
    DIR *directory = opendir("/dev/shm");
    int64_t n = 0;
    while (directory != NULL && readdir(directory) != NULL) n++;
    if (directory != NULL) closedir(directory);
    return n;
}

/* The others end with its name, the memory is gone with the processes, and the run goes on. */
static void a_killed_rank_leaves_nothing(void **state) {
    static const char *const sets[] = {"steps=10", "weights=by_layer"};
    pid_t children[3], watcher;
    uint64_t want;
    int64_t before;
    int status;
    job j;
    (void)state;
    make_model(mixed);
    want = digest_of_one(sets, 1);
    before = named_memory();
    j = make_job(sets, 2);
    start_ranks(&j, 3, 0, children);
    watcher = watch(j.o->train.run, 3, children[2], SIGKILL);
    (void)run_apart(&j, "rank 2");
    clear_environment();
    assert_int_equal(waitpid(watcher, &status, 0), watcher);
    assert_int_equal(status, 0);
    for (int64_t r = 1; r < 3; r++) assert_int_equal(waitpid(children[r], &status, 0), children[r]);
    assert_int_equal(named_memory(), before);
    j.o->train.resume = true;
    start_ranks(&j, 2, want, children);
    assert_int_equal(run_apart(&j, NULL), want);
    end_ranks(2, children);
    drop_job(&j);
}

/* What rank 0 prints before the run says what is where. */
static bool tells_its_plan(job *j) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    ls_error err = {LS_OK, ""};
    return file != NULL && ls_grpo_run(j->o, &j->config, file, &j->result, &err) == LS_OK && fclose(file) == 0 &&
           strstr(text, "weights by layer: embedding, last norm and head whole, ") != NULL;
}

static void the_plan_says_what_is_where(void **state) {
    static const char *const sets[] = {"steps=1", "weights=by_layer"};
    pid_t children[2];
    int status;
    job j = make_job(sets, 2);
    (void)state;
    make_model(large);
    start_ranks(&j, 2, 0, children);
    const pid_t first = fork();
    assert_true(first >= 0);
    if (first == 0) _exit(tells_its_plan(&j) ? 0 : 1);
    assert_int_equal(waitpid(first, &status, 0), first);
    assert_int_equal(status, 0);
    end_ranks(2, children);
    drop_job(&j);
}

static void one_process_is_refused(void **state) {
    const char *by_layer = "weights=by_layer";
    job j = make_job(&by_layer, 1);
    (void)state;
    (void)run_apart(&j, "weights: by_layer with one process");
    job_free(&j);
}

/* A back end without memory that processes share says so. */
static void other_back_ends_are_refused(void **state) {
    const char *by_layer = "weights=by_layer";
    job j = make_job(&by_layer, 1);
    (void)state;
    ls_device_open_by(ls_device_open_deferred);
    must_fail(&j, 2, "deferred: weights by layer: this back end has no memory that processes share");
    ls_device_open_by(test_opener() != NULL ? test_opener() : ls_device_open_cpu);
    drop_job(&j);
}

/* Memory is another process's only on the machine where it is, and as long as it is there. */
static void names_of_memory_are_looked_at(void **state) {
    ls_shared own, other;
    ls_shared_name name;
    ls_device *device;
    ls_error err;
    char text[4] = "";
    (void)state;
    assert_ok(ls_device_open_cpu(&device, 1, ls_isa_best(), &err), err);
    assert_ok(ls_memory_share(device, &own, 4096, "test", &err), err);
    assert_ok(ls_memory_write(device, own.memory, "abc", 4, &err), err);
    assert_ok(ls_memory_map(device, &other, &own.name, &err), err);
    assert_true(other.memory != own.memory);
    assert_ok(ls_memory_take(device, text, other.memory, 4, &err), err);
    assert_string_equal(text, "abc");
    ls_memory_unmap(device, &other);
    name = own.name;
    name.machine[0] ^= 1;
    check_failed(ls_memory_map(device, &other, &name, &err), &err, "another machine");
    name = own.name;
    name.bytes++;
    check_failed(ls_memory_map(device, &other, &name, &err), &err, "is not its 4097 bytes");
    name = own.name;
    ls_memory_unshare(device, &own);
    check_failed(ls_memory_map(device, &other, &name, &err), &err, "cannot be opened");
    ls_device_close(device);
}

/* Processes that disagree refuse each other. */
static void all_or_none_share(void **state) {
    const char *short_wait = "timeout=20";
    pid_t children[2];
    int status;
    job j = make_job(&short_wait, 1);
    (void)state;
    start_ranks(&j, 2, 0, children);
    job_set(&j, "weights=by_layer");
    (void)run_apart(&j, "rank 1 was started with other options");
    assert_int_equal(waitpid(children[1], &status, 0), children[1]);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 2);
    drop_job(&j);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_have_the_bits_of_one),
        cmocka_unit_test(the_profile_mma16_has_too),
        cmocka_unit_test(a_model_that_does_not_fit_is_trained_by_layer),
        cmocka_unit_test(a_killed_rank_leaves_nothing),
        cmocka_unit_test(the_plan_says_what_is_where),
        cmocka_unit_test(one_process_is_refused),
        cmocka_unit_test(other_back_ends_are_refused),
        cmocka_unit_test(all_or_none_share),
        cmocka_unit_test(names_of_memory_are_looked_at),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
