/* Runs the program as a user would and keeps what it said. All files live in one scratch directory that goes at the
 * end. */
#ifndef LS_TESTS_PROGRAM_H
#define LS_TESTS_PROGRAM_H

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <jansson.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

#define TINY LS_SOURCE_DIR "/models/tiny-text"
#define PATH_BYTES 512

static char scratch[] = "/tmp/lockstep-test-XXXXXX";

/* A path in the scratch directory; the same pointer for the same name, good until the program ends. */
static inline const char *at(const char *name) {
    static char paths[256][PATH_BYTES];
    static int n;
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    for (int i = 0; i < n; i++)
        if (strcmp(paths[i], path) == 0) return paths[i];
    assert_true(n < 256);
    memcpy(paths[n], path, sizeof path);
    return paths[n++];
}

static inline int scratch_make(void **state) {
    (void)state;
    return mkdtemp(scratch) == NULL || mkdir(at("out"), 0777) != 0;
}

static inline int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *walk) {
    (void)st;
    (void)kind;
    (void)walk;
    return remove(path);
}

static inline int scratch_remove(void **state) {
    (void)state;
    return nftw(scratch, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static inline void file_write(const char *path, const void *data, size_t bytes) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static inline void text_write(const char *path, const char *text) { file_write(path, text, strlen(text)); }

/* The file's bytes with a NUL after them; the caller frees them. */
static inline char *file_read(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    struct stat st;
    char *data;
    if (file == NULL) fail_msg("%s: cannot open", path);
    assert_int_equal(fstat(fileno(file), &st), 0);
    data = malloc((size_t)st.st_size + 1);
    assert_non_null(data);
    *bytes = fread(data, 1, (size_t)st.st_size, file);
    assert_int_equal(*bytes, st.st_size);
    data[*bytes] = '\0';
    fclose(file);
    return data;
}

static inline int64_t count_entries(const char *directory) {
    DIR *dir = opendir(directory);
    int64_t n = -2; /* . and .. */
    assert_non_null(dir);
    while (readdir(dir) != NULL) n++;
    closedir(dir);
    return n;
}

#define OUTPUT_BYTES (1 << 20)

typedef struct run_result {
    int code; /* exit code, or 1000 + the signal that ended it */
    char out[OUTPUT_BYTES], err[OUTPUT_BYTES];
} run_result;

static run_result last; /* of the latest run */

static inline void read_back(char *text, const char *path) {
    size_t bytes;
    char *data = file_read(path, &bytes);
    assert_true(bytes < OUTPUT_BYTES);
    memcpy(text, data, bytes + 1);
    free(data);
}

/* Runs lockstep with args (NULL-terminated, without the program's name). out_fd -1 captures standard output. */
static inline void run_args(const char *stdin_path, int out_fd, const char *const *args) {
    char out_path[PATH_BYTES], err_path[PATH_BYTES];
    const char *argv[40] = {LS_PROGRAM};
    int status, n = 1;
    pid_t child;
    while (args[n - 1] != NULL && n < 39) {
        argv[n] = args[n - 1];
        n++;
    }
    snprintf(out_path, sizeof out_path, "%s/stdout", scratch);
    snprintf(err_path, sizeof err_path, "%s/stderr", scratch);
    fflush(NULL);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const int in = open(stdin_path != NULL ? stdin_path : "/dev/null", O_RDONLY);
        const int out = out_fd >= 0 ? out_fd : open(out_path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
        const int err = open(err_path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
        union {
            const char **in;
            char *const *out;
        } passed = {argv};
        if (dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0) _exit(126);
        if (in > 2) close(in);
        if (out > 2) close(out);
        if (err > 2) close(err);
        execv(LS_PROGRAM, passed.out);
        _exit(127);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    last.code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    last.out[0] = '\0';
    if (out_fd < 0) read_back(last.out, out_path);
    read_back(last.err, err_path);
}

#define RUN(...) run_args(NULL, -1, (const char *const[]){__VA_ARGS__, NULL})
#define RUN_IN(stdin_path, ...) run_args((stdin_path), -1, (const char *const[]){__VA_ARGS__, NULL})
#define RUN_TO(fd, ...) run_args(NULL, (fd), (const char *const[]){__VA_ARGS__, NULL})

static inline void must_exit(int code) {
    if (last.code != code) fail_msg("exit code %d, expected %d; it said: %.2000s", last.code, code, last.err);
}

/* One run that must succeed. */
#define RUN_OK(...)       \
    do {                  \
        RUN(__VA_ARGS__); \
        must_exit(0);     \
    } while (0)

/* What a command had begun says first which device it is: that line is there, and is taken off. */
static inline void must_tell_device(void) {
    const char *end = strchr(last.err, '\n');
    if (strncmp(last.err, "device: ", 8) != 0 || end == NULL) fail_msg("no device is told: %.2000s", last.err);
    memmove(last.err, end + 1, strlen(end + 1) + 1);
}

/* Exit code 2 and one line on standard error that starts with the program's name and has all the words (separated by
 * '|'). */
static inline void must_refuse(const char *words) {
    char list[512], *word, *rest = list;
    must_exit(2);
    if (strncmp(last.err, "lockstep: ", 10) != 0)
        fail_msg("the message does not start with 'lockstep: ': %.2000s", last.err);
    if (strchr(last.err, '\n') == NULL || strchr(last.err, '\n')[1] != '\0')
        fail_msg("not one line: %.2000s", last.err);
    snprintf(list, sizeof list, "%s", words);
    while ((word = strsep(&rest, "|")) != NULL)
        if (strstr(last.err, word) == NULL) fail_msg("the message does not mention '%s': %.2000s", word, last.err);
}

/* The same, and nothing appeared in the output directory. */
static inline void must_refuse_without_output(const char *words) {
    must_refuse(words);
    if (count_entries(at("out")) != 0) fail_msg("a refused run left a file in the output directory (%s)", words);
}

/* The i-th line of a JSONL file; the caller releases it. */
static inline json_t *line_read(const char *path, int64_t i) {
    size_t bytes;
    char *text = file_read(path, &bytes), *line = text, *end;
    json_t *value = NULL;
    for (; (end = strchr(line, '\n')) != NULL; line = end + 1, i--)
        if (i == 0) {
            *end = '\0';
            value = json_loads(line, 0, NULL);
            break;
        }
    free(text);
    if (value == NULL) fail_msg("%s: no JSON in the line that was asked for", path);
    return value;
}

static inline int64_t count_lines(const char *path) {
    size_t bytes;
    char *text = file_read(path, &bytes);
    int64_t n = 0;
    for (size_t i = 0; i < bytes; i++) n += text[i] == '\n';
    assert_true(bytes == 0 || text[bytes - 1] == '\n');
    free(text);
    return n;
}

static inline void must_be_same_file(const char *a, const char *b) {
    size_t a_bytes, b_bytes;
    char *a_data = file_read(a, &a_bytes), *b_data = file_read(b, &b_bytes);
    const bool same = a_bytes == b_bytes && memcmp(a_data, b_data, a_bytes) == 0;
    free(a_data);
    free(b_data);
    if (!same) fail_msg("%s and %s differ", a, b);
}

/* The i-th record without what tells how it came about, on which no result depends. */
static inline json_t *result_read(const char *path, int64_t i) {
    static const char *const how[] = {"levers", "slot", "cache_hit", "preemptions"};
    json_t *record = line_read(path, i), *meta = json_object_get(record, "meta");
    for (int k = 0; k < 4; k++) assert_int_equal(json_object_del(meta, how[k]), 0);
    return record;
}

static inline void must_be_same_results(const char *a, const char *b) {
    assert_int_equal(count_lines(a), count_lines(b));
    for (int64_t i = 0; i < count_lines(a); i++) {
        json_t *x = result_read(a, i), *y = result_read(b, i);
        if (!json_equal(x, y)) fail_msg("%s and %s: record %lld differs", a, b, (long long)i);
        json_decref(x);
        json_decref(y);
    }
}

/* A member that must be there. */
static inline json_t *member(const json_t *object, const char *name) {
    json_t *value = json_object_get(object, name);
    if (value == NULL) fail_msg("no member '%s'", name);
    return value;
}

static inline int64_t int_member(const json_t *object, const char *name) {
    const json_t *value = member(object, name);
    if (!json_is_integer(value)) fail_msg("'%s' is no integer", name);
    return json_integer_value(value);
}

static inline const char *text_member(const json_t *object, const char *name) {
    const json_t *value = member(object, name);
    if (!json_is_string(value)) fail_msg("'%s' is no string", name);
    return json_string_value(value);
}

#endif
