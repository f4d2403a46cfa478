/* Small runs of policy gradients: a scratch directory, a tiny model with a tokenizer of single characters, options that
 * finish in a moment. */
#ifndef LS_TESTS_GRPO_RUN_H
#define LS_TESTS_GRPO_RUN_H

#include <ftw.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "device.h"
#include "rl/grpo.h"

static char scratch[] = "/tmp/lockstep-test-XXXXXX";
static char model_dir[64];

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *walk) {
    (void)st;
    (void)kind;
    (void)walk;
    return remove(path);
}

static inline void remove_tree(const char *path) { (void)nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS); }

static inline const char *run_dir(const char *name) {
    static char path[8][128];
    static int next;
    next = (next + 1) % 8;
    snprintf(path[next], sizeof path[next], "%s/%s", scratch, name);
    return path[next];
}

static inline void copy_file(const char *fixture, const char *name) {
    char from[512], to[512], *text;
    int64_t bytes;
    ls_error err;
    FILE *file;
    snprintf(from, sizeof from, "%s/%s/%s", LS_FIXTURES, fixture, name);
    snprintf(to, sizeof to, "%s/%s", model_dir, name);
    assert_ok(ls_file_read(&text, &bytes, from, 1 << 26, &err), err);
    file = fopen(to, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, (size_t)bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
    free(text);
}

/* 64 tokens: three special ones, then characters. */
static inline void write_tokenizer(void) {
    static const char letters[] = " 0123456789abcdefghijklmnopqrstuvwxyz:=+-*/().,<>?!#%&@_;ABC";
    char path[512];
    FILE *file;
    snprintf(path, sizeof path, "%s/tokenizer.json", model_dir);
    file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "{\"version\":\"1.0\",\"added_tokens\":[");
    for (int i = 0; i < 3; i++)
        fprintf(file,
                "%s{\"id\":%d,\"content\":\"<%d>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                "\"normalized\":false,\"special\":true}",
                i == 0 ? "" : ",", i, i);
    fprintf(file,
            "],\"normalizer\":null,\"pre_tokenizer\":null,\"post_processor\":null,\"decoder\":{\"type\":\"Fuse\"},"
            "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,"
            "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,\"vocab\":{\"<0>\":0,\"<1>\":1,"
            "\"<2>\":2,\"\\n\":3");
    for (int i = 0; i < 60; i++) fprintf(file, ",\"%c\":%d", letters[i], 4 + i);
    fprintf(file, "},\"merges\":[]}}\n");
    assert_int_equal(fclose(file), 0);
}

static inline int scratch_make(void **state) {
    (void)state;
    if (mkdtemp(scratch) == NULL) return 1;
    snprintf(model_dir, sizeof model_dir, "%s/model", scratch);
    if (mkdir(model_dir, 0777) != 0) return 1;
    copy_file("jamba-nobias", "config.json");
    copy_file("jamba-nobias", "generation_config.json");
    copy_file("jamba-nobias", "model.safetensors");
    write_tokenizer();
    return 0;
}

static inline int scratch_remove(void **state) {
    (void)state;
    remove_tree(scratch);
    return 0;
}

/* A run as assignments; each is followed by those of the test. */
typedef struct job {
    ls_grpo_options *o;
    ls_config config;
    ls_grpo_result result;
} job;

static inline void job_set(job *j, const char *assignment) {
    ls_error err;
    assert_ok(ls_config_set(&j->config, assignment, &err), err);
}

/* Five steps of four prompts, whose rewards an untrained model can earn in parts. */
static inline job job_make(const char *run) {
    job j = {.o = calloc(1, sizeof *j.o)};
    assert_non_null(j.o);
    ls_grpo_options_init(j.o, &j.config);
    snprintf(j.o->train.model, sizeof j.o->train.model, "%s", model_dir);
    snprintf(j.o->train.run, sizeof j.o->train.run, "%s", run_dir(run));
    job_set(&j, "task=reverse-text");
    job_set(&j, "task_options=words=1,letters=3");
    job_set(&j, "steps=5");
    job_set(&j, "prompts=4");
    job_set(&j, "samples=4");
    job_set(&j, "max_tokens=6");
    job_set(&j, "length=40");
    job_set(&j, "rate=0.003");
    job_set(&j, "save_every=2");
    job_set(&j, "threads=1");
    return j;
}

static inline void job_free(job *j) { free(j->o); }

static inline ls_status job_run(job *j, ls_error *err) { return ls_grpo_run(j->o, &j->config, NULL, &j->result, err); }

static inline void job_must_run(job *j) {
    ls_error err;
    assert_ok(job_run(j, &err), err);
}

/* Runs with n assignments on top; job and directory go. */
static inline uint64_t job_digest(job j, const char *const *sets, int64_t n) {
    uint64_t digest;
    for (int64_t i = 0; i < n; i++) job_set(&j, sets[i]);
    job_must_run(&j);
    assert_false(j.result.differs);
    digest = j.result.digest;
    remove_tree(j.o->train.run);
    job_free(&j);
    return digest;
}
static inline uint64_t digest_with(const char *const *sets, int64_t n) { return job_digest(job_make("with"), sets, n); }

/* The same by another device, whose memory the host cannot touch: the one of the environment, or the deferred one. */
static inline uint64_t digest_elsewhere(job j, const char *const *sets, int64_t n) {
    uint64_t digest;
    job_set(&j, "profile=exact"); /* by itself a GPU's would be another than the CPU's */
    ls_device_open_by(test_defers() ? test_opener() : ls_device_open_deferred);
    digest = job_digest(j, sets, n);
    ls_device_open_by(ls_device_open_cpu);
    return digest;
}

#endif
