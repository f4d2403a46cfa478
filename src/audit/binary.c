/* From paths to PTX text: files, folders, and binaries by way of cuobjdump. */
#define _GNU_SOURCE
#include "audit/binary.h"

#include <dirent.h>
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

#define TEXT_BYTES_MAX (INT64_C(4) << 30)
enum { DEPTH_MAX = 16 };

extern char **environ;

/* Whether a file begins as an ELF file (a cubin, a library, an object) or a fat binary. */
static ls_status is_binary(const char *path, bool *is, ls_error *err) {
    static const unsigned char fat[] = {0x50, 0xED, 0x55, 0xBA};
    unsigned char begin[4];
    FILE *file;
    LS_TRY(ls_file_stream(&file, path, err));
    *is = fread(begin, 1, sizeof begin, file) == sizeof begin &&
          (memcmp(begin, "\177ELF", sizeof begin) == 0 || memcmp(begin, fat, sizeof begin) == 0);
    fclose(file);
    return LS_OK;
}

static const char *program(void) {
    const char *named = getenv("LOCKSTEP_CUOBJDUMP");
    return named != NULL && named[0] != '\0' ? named : "cuobjdump";
}

/* Runs cuobjdump with its output in an unnamed file. */
static ls_status run_dump(FILE *out, const char *path, ls_error *err) {
    char *const arguments[] = {(char *)(uintptr_t)program(), (char *)(uintptr_t) "--dump-ptx", (char *)(uintptr_t)path,
                               NULL};
    posix_spawn_file_actions_t actions;
    pid_t child;
    int code, end;
    if (posix_spawn_file_actions_init(&actions) != 0)
        return LS_FAIL(err, LS_ERR_NOMEM, "%s: no memory for a process", path);
    code = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", 0, 0);
    if (code == 0) code = posix_spawn_file_actions_adddup2(&actions, fileno(out), 1);
    if (code == 0) code = posix_spawnp(&child, arguments[0], &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (code != 0)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: a binary is read by way of %s, which cannot run: %s", path,
                       arguments[0], strerror(code));
    while (waitpid(child, &end, 0) < 0)
        if (errno != EINTR) return LS_FAIL(err, LS_ERR_IO, "%s: %s is lost: %s", path, arguments[0], strerror(errno));
    if (!WIFEXITED(end) || WEXITSTATUS(end) != 0)
        return LS_FAIL(err, LS_ERR_FORMAT, "%s: %s failed on it", path, arguments[0]);
    return LS_OK;
}

static ls_status read_all(FILE *in, char **text, int64_t *bytes, const char *path, ls_error *err) {
    const int64_t n = fseek(in, 0, SEEK_END) == 0 ? (int64_t)ftell(in) : -1;
    if (n < 0 || n > TEXT_BYTES_MAX) return LS_FAIL(err, LS_ERR_FORMAT, "%s: its PTX is too long to read", path);
    LS_TRY(ls_array_alloc((void **)text, n + 1, 1, "PTX", err));
    rewind(in);
    if (fread(*text, 1, (size_t)n, in) != (size_t)n) return LS_FAIL(err, LS_ERR_IO, "%s: its PTX cannot be read", path);
    *bytes = n;
    return LS_OK;
}

static ls_status audit_binary(ls_audit *audit, const char *path, const ls_ranges *ranges, ls_error *err) {
    ls_status status;
    char *text = NULL;
    int64_t bytes = 0;
    FILE *out = tmpfile();
    if (out == NULL) return LS_FAIL(err, LS_ERR_IO, "%s: no temporary file: %s", path, strerror(errno));
    LS_TRY_DONE(run_dump(out, path, err));
    LS_TRY_DONE(read_all(out, &text, &bytes, path, err));
    if (memmem(text, (size_t)bytes, ".version", 8) == NULL)
        status = LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: holds no PTX; machine code (SASS) alone is not read", path);
    else
        status = ls_audit_ptx(audit, text, bytes, path, ranges, err);
done:
    free(text);
    fclose(out);
    return status;
}

static ls_status audit_file(ls_audit *audit, const char *path, const ls_ranges *ranges, ls_error *err) {
    ls_status status;
    char *text = NULL;
    int64_t bytes;
    bool binary;
    LS_TRY(is_binary(path, &binary, err));
    if (binary) return audit_binary(audit, path, ranges, err);
    LS_TRY_DONE(ls_file_read(&text, &bytes, path, TEXT_BYTES_MAX, err));
    status = ls_audit_ptx(audit, text, bytes, path, ranges, err);
done:
    free(text);
    return status;
}

/* A copy of "folder/name" that the audit owns. */
static ls_status keep_name(ls_audit *audit, const char *folder, const char *name, char **out, ls_error *err) {
    const int64_t bytes = (int64_t)(strlen(folder) + strlen(name)) + 2;
    LS_TRY(ls_array_grow((void **)&audit->names, &audit->cap_names, audit->n_names + 1, sizeof *audit->names, "names",
                         err));
    LS_TRY(ls_array_alloc((void **)out, bytes, 1, "name", err));
    snprintf(*out, (size_t)bytes, "%s/%s", folder, name);
    audit->names[audit->n_names++] = *out;
    return LS_OK;
}

static int is_shown(const struct dirent *entry) { return entry->d_name[0] != '.'; }

static bool ends_in_ptx(const char *name) {
    const size_t n = strlen(name);
    return n > 4 && strcmp(name + n - 4, ".ptx") == 0;
}

static ls_status audit_folder(ls_audit *audit, const char *path, const ls_ranges *ranges, int depth, ls_error *err) {
    ls_status status = LS_OK;
    struct dirent **entries = NULL;
    const int n = scandir(path, &entries, is_shown, alphasort);
    if (n < 0) return LS_FAIL(err, LS_ERR_IO, "%s: cannot be read: %s", path, strerror(errno));
    for (int i = 0; i < n && status == LS_OK; i++) {
        struct stat info;
        char *name = NULL;
        status = keep_name(audit, path, entries[i]->d_name, &name, err);
        if (status != LS_OK || lstat(name, &info) != 0) continue;
        if (S_ISDIR(info.st_mode) && depth < DEPTH_MAX)
            status = audit_folder(audit, name, ranges, depth + 1, err);
        else if (S_ISREG(info.st_mode) && ends_in_ptx(name))
            status = audit_file(audit, name, ranges, err);
    }
    for (int i = 0; i < n; i++) free(entries[i]);
    free(entries);
    return status;
}

ls_status ls_audit_path(ls_audit *audit, const char *path, const ls_ranges *ranges, ls_error *err) {
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        const int64_t before = audit->n_files;
        LS_TRY(audit_folder(audit, path, ranges, 0, err));
        if (audit->n_files == before) return LS_FAIL(err, LS_ERR_FORMAT, "%s: the folder holds no .ptx file", path);
        return LS_OK;
    }
    return audit_file(audit, path, ranges, err);
}
