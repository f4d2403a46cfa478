/* Files. Nothing here knows a format; callers check what the bytes mean. */
#define _GNU_SOURCE
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/durable.h"
#include "base/hub.h"
#include "base/interrupt.h"
#include "base/mem.h"

enum { TRIES = 100 };

struct ls_output {
    FILE *stream;
    char *path; /* NULL for standard output */
    char *temp_path;
};

static ls_status fail_errno(ls_error *err, const char *path, const char *what) {
    const int code = errno;
    char hub[LS_HUB_HINT_MAX] = "";
    if (code == ENOENT && strcmp(what, "open") == 0) (void)ls_hub_hint(hub, path);
    return LS_FAIL(err, LS_ERR_IO, "%s: cannot %s: %s%s", path, what, strerror(code), hub);
}

static ls_status open_regular(int *fd, struct stat *st, const char *path, ls_error *err) {
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* opening a pipe would wait for its writer */
    if (*fd < 0) return fail_errno(err, path, "open");
    if (fstat(*fd, st) != 0) {
        ls_status status = fail_errno(err, path, "stat");
        close(*fd);
        return status;
    }
    if (!S_ISREG(st->st_mode)) {
        close(*fd);
        return LS_FAIL(err, LS_ERR_IO, "%s: not a regular file", path);
    }
    return LS_OK;
}

static ls_file_id id_of(const struct stat *st) {
    const ls_file_id id = {(int64_t)st->st_size, (uint64_t)st->st_ino, (int64_t)st->st_mtim.tv_sec,
                           (int64_t)st->st_mtim.tv_nsec};
    return id;
}

ls_status ls_file_identify(ls_file_id *out, const char *path, ls_error *err) {
    struct stat st;
    int fd;
    const ls_status status = open_regular(&fd, &st, path, err);
    if (status != LS_OK) return status;
    close(fd);
    *out = id_of(&st);
    return LS_OK;
}

ls_status ls_file_check(const ls_file_id *id, const char *path, ls_error *err) {
    struct stat st;
    ls_file_id now;
    if (stat(path, &st) != 0) return fail_errno(err, path, "stat");
    now = id_of(&st);
    if (now.inode != id->inode || now.bytes != id->bytes || now.changed_s != id->changed_s ||
        now.changed_ns != id->changed_ns)
        return LS_FAIL(err, LS_ERR_IO, "%s: changed while it was read", path);
    return LS_OK;
}

static ls_status read_all(int fd, uint8_t *out, const char *path, int64_t at, int64_t bytes, ls_error *err) {
    int64_t done_bytes = 0;
    while (done_bytes < bytes) {
        const ssize_t got = pread(fd, out + done_bytes, (size_t)(bytes - done_bytes), (off_t)(at + done_bytes));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail_errno(err, path, "read");
        if (got == 0)
            return LS_FAIL(err, LS_ERR_IO, "%s: ended after %lld of %lld bytes", path, (long long)(at + done_bytes),
                           (long long)(at + bytes));
        done_bytes += got;
    }
    return LS_OK;
}

ls_status ls_file_read_at(void *out, const char *path, int64_t at, int64_t bytes, ls_error *err) {
    struct stat st;
    int fd;
    ls_status status = open_regular(&fd, &st, path, err);
    if (status != LS_OK) return status;
    status = read_all(fd, out, path, at, bytes, err);
    close(fd);
    return status;
}

ls_status ls_file_read(char **out, int64_t *bytes, const char *path, int64_t bytes_max, ls_error *err) {
    int fd = -1;
    int64_t size;
    struct stat st;
    char *text = NULL;
    ls_status status;
    *out = NULL;
    *bytes = 0;
    if ((status = open_regular(&fd, &st, path, err)) != LS_OK) return status;
    size = (int64_t)st.st_size;
    if (size > bytes_max) {
        status = LS_FAIL(err, LS_ERR_FORMAT, "%s: %lld bytes, the limit is %lld", path, (long long)size,
                         (long long)bytes_max);
        goto done;
    }
    text = malloc((size_t)size + 1);
    if (text == NULL) {
        status = LS_FAIL(err, LS_ERR_NOMEM, "%s: cannot allocate %lld bytes", path, (long long)size);
        goto done;
    }
    if ((status = read_all(fd, (uint8_t *)text, path, 0, size, err)) != LS_OK) goto done;
    text[size] = '\0';
    *out = text;
    *bytes = size;
    text = NULL;
done:
    free(text);
    close(fd);
    return status;
}

/* Whether a path names a descriptor that is open already, as /dev/stdin and a shell's <(..) do. */
static bool is_descriptor(const char *path) {
    return strcmp(path, "/dev/stdin") == 0 || strncmp(path, "/dev/fd/", 8) == 0 || strncmp(path, "/proc/", 6) == 0;
}

ls_status ls_file_stream(FILE **out, const char *path, ls_error *err) {
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ls_status status = LS_OK;
    *out = NULL;
    if (fd < 0) return fail_errno(err, path, "open");
    if (fstat(fd, &st) != 0) {
        status = fail_errno(err, path, "stat");
    } else if (S_ISDIR(st.st_mode)) {
        status = LS_FAIL(err, LS_ERR_IO, "%s: a directory, not a file", path);
    } else if (S_ISFIFO(st.st_mode) && !is_descriptor(path)) {
        status = LS_FAIL(err, LS_ERR_IO, "%s: a named pipe, not a file; - reads standard input", path);
    } else if (fcntl(fd, F_SETFL, 0) != 0 || (*out = fdopen(fd, "r")) == NULL) {
        status = fail_errno(err, path, "open");
    }
    if (status != LS_OK) close(fd);
    return status;
}

bool ls_file_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0;
}

bool ls_line_is_blank(const char *line, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r') return false;
    return true;
}

ls_status ls_path_join(char *out, int64_t room, const char *directory, const char *name, ls_error *err) {
    const int n = snprintf(out, (size_t)room, "%s/%s", directory, name);
    if (n >= 0 && n < room) return LS_OK;
    return LS_FAIL(err, LS_ERR_ARG, "%.200s...: the path is longer than %lld bytes", directory, (long long)room - 1);
}

ls_status ls_line_read(FILE *file, char **line, int64_t *cap, int64_t *bytes, int64_t bytes_max, bool *more,
                       ls_error *err) {
    int64_t n = 0;
    ls_status status;
    *more = false;
    *bytes = 0;
    for (;;) {
        const int c = getc_unlocked(file);
        if (c == EOF) {
            if (ferror(file)) return LS_FAIL(err, LS_ERR_IO, "cannot read: %s", strerror(errno));
            if (n == 0) return LS_OK;
            break;
        }
        if (c == '\n') break;
        if (n >= bytes_max) return LS_FAIL(err, LS_ERR_FORMAT, "line is longer than %lld bytes", (long long)bytes_max);
        if ((status = ls_array_grow((void **)line, cap, n + 2, 1, "line", err)) != LS_OK) return status;
        (*line)[n++] = (char)c;
    }
    if ((status = ls_array_grow((void **)line, cap, n + 1, 1, "line", err)) != LS_OK) return status;
    (*line)[n] = '\0';
    *bytes = n;
    *more = true;
    return LS_OK;
}

/* A pipe that nobody reads is refused: opening it would wait for a reader. */
static ls_status open_in_place(ls_output *output, const char *path, ls_error *err) {
    const int fd = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENXIO) return LS_FAIL(err, LS_ERR_IO, "%s: a pipe or socket that nobody reads", path);
    if (fd < 0) return fail_errno(err, path, "open for writing");
    if (fcntl(fd, F_SETFL, 0) == 0 && (output->stream = fdopen(fd, "w")) != NULL) return LS_OK;
    {
        const ls_status status = fail_errno(err, path, "open for writing");
        close(fd);
        return status;
    }
}

/* A new file PATH.tmp-xxxxxx with the rights that any new file gets, which the system takes down by the process's mask;
 * -1 and errno where there can be none. */
static int create_beside(char *out, size_t room, const char *path) {
    int fd = -1;
    for (int i = 0; i < TRIES && fd < 0; i++) {
        uint8_t random[3];
        if (getrandom(random, sizeof random, 0) != sizeof random) return -1;
        snprintf(out, room, "%s.tmp-%02x%02x%02x", path, random[0], random[1], random[2]);
        fd = open(out, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd < 0 && errno != EEXIST) return -1;
    }
    return fd;
}

ls_status ls_output_open(ls_output **out, const char *path, ls_error *err) {
    ls_output *output = calloc(1, sizeof *output);
    ls_status status = LS_OK;
    int fd = -1;
    size_t path_bytes;
    struct stat st;
    *out = NULL;
    if (output == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "output record");
    if (path == NULL || strcmp(path, "-") == 0) {
        output->stream = stdout;
        *out = output;
        return LS_OK;
    }
    /* A device or a pipe is written in place: renaming over it would replace it. */
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        if ((status = open_in_place(output, path, err)) != LS_OK) goto done;
        LS_TRY_DONE(ls_text_copy(&output->path, path, (int64_t)strlen(path), err));
        *out = output;
        return LS_OK;
    }
    path_bytes = strlen(path);
    LS_TRY_DONE(ls_text_copy(&output->path, path, (int64_t)path_bytes, err));
    output->temp_path = malloc(path_bytes + 16);
    if (output->temp_path == NULL) {
        status = LS_FAIL(err, LS_ERR_NOMEM, "output path");
        goto done;
    }
    if ((fd = create_beside(output->temp_path, path_bytes + 16, path)) < 0) {
        status = fail_errno(err, path, "create");
        free(output->temp_path);
        output->temp_path = NULL;
        goto done;
    }
    ls_leftover_add(output->temp_path);
    output->stream = fdopen(fd, "w");
    if (output->stream == NULL) {
        status = fail_errno(err, path, "open for writing");
        close(fd);
        goto done;
    }
    *out = output;
    output = NULL;
done:
    ls_output_abandon(output);
    return status;
}

FILE *ls_output_stream(ls_output *output) { return output->stream; }

bool ls_output_is_file(const ls_output *output) { return output->temp_path != NULL; }

ls_status ls_output_check(ls_output *output, ls_error *err) {
    const char *name = output->path != NULL ? output->path : "standard output";
    return ferror(output->stream) == 0 ? LS_OK : fail_errno(err, name, "write");
}

static void output_free(ls_output *output) {
    free(output->temp_path);
    free(output->path);
    free(output);
}

ls_status ls_output_commit(ls_output *output, ls_error *err) {
    const char *name = output->path != NULL ? output->path : "standard output";
    ls_status status = LS_OK;
    const bool failed_before = ferror(output->stream) != 0;
    if (fflush(output->stream) != 0 || failed_before) {
        status = fail_errno(err, name, "write");
        goto done;
    }
    if (output->temp_path == NULL) goto done;
    if (fsync(fileno(output->stream)) != 0) {
        status = fail_errno(err, name, "sync");
        goto done;
    }
    if (rename(output->temp_path, output->path) != 0) {
        status = fail_errno(err, name, "rename to its final name");
        goto done;
    }
    ls_leftover_forget(output->temp_path);
    free(output->temp_path);
    output->temp_path = NULL;
    status = ls_entry_sync(output->path, err);
done:
    if (status != LS_OK) {
        ls_output_abandon(output);
    } else {
        if (output->path != NULL) fclose(output->stream);
        output_free(output);
    }
    return status;
}

void ls_output_abandon(ls_output *output) {
    if (output == NULL) return;
    if (output->stream != NULL && output->path != NULL) fclose(output->stream);
    if (output->temp_path != NULL) {
        unlink(output->temp_path);
        ls_leftover_forget(output->temp_path);
    }
    output_free(output);
}
