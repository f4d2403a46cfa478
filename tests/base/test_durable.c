/* What is renamed lasts: the directory is synced behind it. New files have the rights that the process's mask leaves,
 * and the mask is not touched, since other threads make files meanwhile. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/durable.h"
#include "base/file.h"
#include "harness.h"

static char work[] = "/tmp/lockstep-test-XXXXXX", path[4][600];
static int64_t n_directories, n_masks; /* synced, set */
static bool is_renamed;

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd) {
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    n_directories += S_ISDIR(st.st_mode) && is_renamed;
    return __real_fsync(fd);
}

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to) {
    is_renamed = true;
    return __real_rename(from, to);
}

mode_t __real_umask(mode_t mask);
mode_t __wrap_umask(mode_t mask);
mode_t __wrap_umask(mode_t mask) {
    n_masks++;
    return __real_umask(mask);
}

static void begin(void) {
    n_directories = n_masks = 0;
    is_renamed = false;
}

static void an_output_lasts_with_the_rights_of_the_mask(void **state) {
    static const mode_t masks[] = {0022, 0077, 0};
    const mode_t before = __real_umask(0);
    ls_output *output;
    struct stat st;
    ls_error err;
    (void)state;
    for (int i = 0; i < 3; i++) {
        (void)__real_umask(masks[i]);
        begin();
        assert_ok(ls_output_open(&output, path[0], &err), err);
        fputs("text\n", ls_output_stream(output));
        assert_ok(ls_output_commit(output, &err), err);
        assert_int_equal(stat(path[0], &st), 0);
        assert_int_equal(st.st_mode & 0777, 0666 & ~masks[i]);
        assert_int_equal(n_masks, 0);
        assert_int_equal(n_directories, 1);
        assert_int_equal(unlink(path[0]), 0);
    }
    (void)__real_umask(before);
}

static void renamed_paths_last(void **state) {
    ls_error err;
    (void)state;
    assert_ok(ls_directory_make(path[1], &err), err);
    begin();
    assert_ok(ls_path_rename(path[1], path[2], &err), err);
    assert_int_equal(n_directories, 1);
    assert_ok(ls_directory_make(path[1], &err), err);
    snprintf(path[3], sizeof path[3], "%s/b/inner", work);
    begin();
    assert_ok(ls_path_rename(path[1], path[3], &err), err);
    assert_int_equal(n_directories, 2); /* where it went, and whence */
    check_failed(ls_path_rename(path[1], path[3], &err), &err, "rename to this name");
    assert_int_equal(chdir(work), 0);
    begin();
    assert_ok(ls_path_rename("b/inner", "c//", &err), err); /* a bare name lies in the current directory */
    assert_int_equal(n_directories, 2);
    assert_int_equal(rmdir("c"), 0);
    assert_int_equal(rmdir("b"), 0);
}

static int prepare(void **state) {
    (void)state;
    if (mkdtemp(work) == NULL) return 1;
    snprintf(path[0], sizeof path[0], "%s/out", work);
    snprintf(path[1], sizeof path[1], "%s/a", work);
    snprintf(path[2], sizeof path[2], "%s/b", work);
    return 0;
}

static int end(void **state) {
    (void)state;
    return rmdir(work);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_output_lasts_with_the_rights_of_the_mask),
                                       cmocka_unit_test(renamed_paths_last)};
    return cmocka_run_group_tests(tests, prepare, end);
}
