/* Checked system calls. Nothing here knows what it writes. */
#define _DEFAULT_SOURCE
#include "base/durable.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

enum { PATH_BYTES = 4096 };

static ls_status fail_call(ls_error *err, const char *path, const char *what) {
    return LS_FAIL(err, LS_ERR_IO, "%s: cannot %s: %s", path, what, strerror(errno));
}

ls_status ls_durable_create(ls_durable *out, const char *path, ls_error *err) {
    out->path = path;
    out->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return out->fd >= 0 ? LS_OK : fail_call(err, path, "create");
}

ls_status ls_durable_open(ls_durable *out, const char *path, ls_error *err) {
    out->path = path;
    out->fd = open(path, O_WRONLY | O_CLOEXEC);
    return out->fd >= 0 ? LS_OK : fail_call(err, path, "open");
}

static const int64_t most = 1 << 30; /* bytes: the system takes less than 2^31 at once */

ls_status ls_durable_write_at(const ls_durable *file, const void *data, int64_t bytes, int64_t place, ls_error *err) {
    const uint8_t *at = data;
    while (bytes > 0) {
        const ssize_t n = pwrite(file->fd, at, (size_t)(bytes < most ? bytes : most), (off_t)place);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return fail_call(err, file->path, "write");
        at += n;
        place += n;
        bytes -= n;
    }
    return LS_OK;
}

ls_status ls_durable_write(const ls_durable *file, const void *data, int64_t bytes, ls_error *err) {
    const uint8_t *at = data;
    while (bytes > 0) {
        const ssize_t n = write(file->fd, at, (size_t)(bytes < most ? bytes : most));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return fail_call(err, file->path, "write");
        at += n;
        bytes -= n;
    }
    return LS_OK;
}

ls_status ls_durable_close(ls_durable *file, ls_status status, ls_error *err) {
    if (status == LS_OK && fsync(file->fd) != 0) status = fail_call(err, file->path, "sync");
    if (close(file->fd) != 0 && status == LS_OK) status = fail_call(err, file->path, "close");
    file->fd = -1;
    return status;
}

ls_status ls_durable_file(const char *path, const void *data, int64_t bytes, ls_error *err) {
    ls_durable file;
    ls_status status = ls_durable_create(&file, path, err);
    if (status != LS_OK) return status;
    status = ls_durable_write(&file, data, bytes, err);
    return ls_durable_close(&file, status, err);
}

ls_status ls_directory_make(const char *path, ls_error *err) {
    struct stat st;
    if (mkdir(path, 0777) == 0) return LS_OK;
    if (errno == EEXIST && stat(path, &st) == 0 && S_ISDIR(st.st_mode)) return LS_OK;
    return fail_call(err, path, "make this directory");
}

ls_status ls_directory_sync(const char *path, ls_error *err) {
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ls_status status = LS_OK;
    if (fd < 0) return fail_call(err, path, "open");
    if (fsync(fd) != 0) status = fail_call(err, path, "sync");
    close(fd);
    return status;
}

static int compare_names(const void *a, const void *b) {
    const char *const *x = a, *const *y = b;
    return strcmp(*x, *y);
}

void ls_names_free(char **names, int64_t n) {
    for (int64_t i = 0; i < n; i++) free(names[i]);
    free(names);
}

ls_status ls_directory_list(char ***names, int64_t *n, const char *path, ls_error *err) {
    DIR *dir = opendir(path);
    const struct dirent *entry;
    char **list = NULL;
    int64_t count = 0, cap = 0;
    ls_status status = LS_OK;
    *names = NULL;
    *n = 0;
    if (dir == NULL) return fail_call(err, path, "open");
    while ((void)(errno = 0), (entry = readdir(dir)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        LS_TRY_DONE(ls_array_grow((void **)&list, &cap, count + 1, sizeof *list, "names", err));
        LS_TRY_DONE(ls_text_copy(&list[count], entry->d_name, (int64_t)strlen(entry->d_name), err));
        count++;
    }
    if (errno != 0) {
        status = fail_call(err, path, "read");
        goto done;
    }
    if (count > 0) qsort((void *)list, (size_t)count, sizeof *list, compare_names);
    *names = list;
    *n = count;
    list = NULL;
done:
    closedir(dir);
    if (list != NULL) ls_names_free(list, count);
    return status;
}

ls_status ls_directory_remove(const char *path, ls_error *err) {
    char **names, inner[PATH_BYTES];
    int64_t n;
    ls_status status = ls_directory_list(&names, &n, path, err);
    for (int64_t i = 0; status == LS_OK && i < n; i++) {
        if (snprintf(inner, sizeof inner, "%s/%s", path, names[i]) >= (int)sizeof inner)
            status = LS_FAIL(err, LS_ERR_IO, "%s: the path is too long", path);
        else if (unlink(inner) != 0)
            status = fail_call(err, inner, "remove");
    }
    ls_names_free(names, n);
    if (status == LS_OK && rmdir(path) != 0) status = fail_call(err, path, "remove");
    return status;
}

/* The directory that a path's last part lies in. */
static ls_status parent_of(char out[PATH_BYTES], const char *path, ls_error *err) {
    size_t n = strlen(path);
    if (n >= PATH_BYTES) return LS_FAIL(err, LS_ERR_IO, "%.200s: the path is too long", path);
    memcpy(out, path, n + 1);
    while (n > 1 && out[n - 1] == '/') out[--n] = '\0';
    while (n > 0 && out[n - 1] != '/') n--;
    while (n > 1 && out[n - 1] == '/') n--;
    if (n == 0) out[n++] = '.';
    out[n] = '\0';
    return LS_OK;
}

ls_status ls_entry_sync(const char *path, ls_error *err) {
    char parent[PATH_BYTES];
    ls_status status = LS_OK;
    int fd;
    LS_TRY(parent_of(parent, path, err));
    fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 && errno == EACCES) return LS_OK; /* one may write there, and not look */
    if (fd < 0) return fail_call(err, parent, "open");
    if (fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP) status = fail_call(err, parent, "sync");
    close(fd);
    return status;
}

ls_status ls_path_rename(const char *from, const char *to, ls_error *err) {
    char one[PATH_BYTES], other[PATH_BYTES];
    LS_TRY(parent_of(one, from, err));
    LS_TRY(parent_of(other, to, err));
    if (rename(from, to) != 0) return fail_call(err, to, "rename to this name");
    LS_TRY(ls_entry_sync(to, err));
    return strcmp(one, other) == 0 ? LS_OK : ls_entry_sync(from, err);
}

ls_status ls_directory_lock(int *fd, const char *path, ls_error *err) {
    *fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*fd < 0) return fail_call(err, path, "open");
    if (flock(*fd, LOCK_EX | LOCK_NB) != 0) {
        const ls_status status = errno == EWOULDBLOCK
                                     ? LS_FAIL(err, LS_ERR_IO, "%s: another process is at work here", path)
                                     : fail_call(err, path, "lock");
        close(*fd);
        *fd = -1;
        return status;
    }
    return LS_OK;
}

void ls_directory_unlock(int fd) {
    if (fd >= 0) close(fd);
}
