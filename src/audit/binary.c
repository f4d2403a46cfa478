/* From paths to text: files, folders, and binaries by way of cuobjdump and nvdisasm. */
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

#include "audit/sass.h"
#include "audit/tools.h"
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

/* Runs a program in a folder (NULL: here) with its output in an open file. `path` is what it reads. */
static ls_status run_tool(char *const *arguments, const char *folder, FILE *out, const char *path, ls_error *err) {
    posix_spawn_file_actions_t actions;
    pid_t child;
    int code, end;
    if (posix_spawn_file_actions_init(&actions) != 0)
        return LS_FAIL(err, LS_ERR_NOMEM, "%s: no memory for a process", path);
    code = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", 0, 0);
    if (code == 0) code = posix_spawn_file_actions_adddup2(&actions, fileno(out), 1);
    if (code == 0 && folder != NULL) code = posix_spawn_file_actions_addchdir_np(&actions, folder);
    if (code == 0) code = posix_spawn(&child, arguments[0], &actions, NULL, arguments, environ);
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

static char *word(const char *text) { return (char *)(uintptr_t)text; }

static ls_status read_all(FILE *in, char **text, int64_t *bytes, const char *path, ls_error *err) {
    const int64_t n = fseek(in, 0, SEEK_END) == 0 ? (int64_t)ftell(in) : -1;
    if (n < 0 || n > TEXT_BYTES_MAX) return LS_FAIL(err, LS_ERR_FORMAT, "%s: its code is too long to read", path);
    LS_TRY(ls_array_alloc((void **)text, n + 1, 1, "code", err));
    rewind(in);
    if (fread(*text, 1, (size_t)n, in) != (size_t)n)
        return LS_FAIL(err, LS_ERR_IO, "%s: its code cannot be read", path);
    *bytes = n;
    return LS_OK;
}

/* What a program writes about a file. */
static ls_status dump(char *const *arguments, const char *path, char **text, int64_t *bytes, ls_error *err) {
    ls_status status;
    FILE *out = tmpfile();
    if (out == NULL) return LS_FAIL(err, LS_ERR_IO, "%s: no temporary file: %s", path, strerror(errno));
    LS_TRY_DONE(run_tool(arguments, NULL, out, path, err));
    LS_TRY_DONE(read_all(out, text, bytes, path, err));
done:
    fclose(out);
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

/* Machine code ---------------------------------------------------------------------------------------------------- */

/* One cubin, under the name that findings give. */
static ls_status audit_cubin(ls_audit *audit, const char *path, const char *name, const ls_ranges *ranges,
                             ls_error *err) {
    ls_status status;
    char *text = NULL;
    int64_t bytes = 0;
    char tool[LS_TOOL_MAX];
    char *const arguments[] = {tool, word(path), NULL};
    LS_TRY_DONE(ls_tool_find(tool, "nvdisasm", path, err));
    LS_TRY_DONE(dump(arguments, path, &text, &bytes, err));
    LS_TRY_DONE(ls_audit_sass(audit, text, bytes, name, ranges, err));
done:
    free(text);
    return status;
}

/* The architecture in the name that cuobjdump gives a cubin, 0 for none. */
static int64_t arch_of(const char *name) {
    const char *at = NULL;
    for (const char *next = strstr(name, ".sm_"); next != NULL; next = strstr(next + 1, ".sm_")) at = next;
    return at == NULL ? 0 : strtoll(at + 4, NULL, 10);
}

static int is_shown(const struct dirent *entry) { return entry->d_name[0] != '.'; }

/* The architecture that is audited: the one asked for, else the newest up to sm_90, else the oldest. */
static int64_t choose_arch(const ls_audit *audit, struct dirent **entries, int n) {
    int64_t best = 0;
    for (int i = 0; i < n; i++) {
        const int64_t arch = arch_of(entries[i]->d_name);
        const bool fits = arch >= 70 && arch <= 90;
        if (arch == 0) continue;
        if (best == 0 || (fits && (best > 90 || best < 70 || arch > best)) || (!fits && best > 90 && arch < best))
            best = arch;
    }
    return audit->arch > 0 ? audit->arch : best;
}

static ls_status audit_cubins(ls_audit *audit, const char *folder, const char *path, const ls_ranges *ranges,
                              ls_error *err) {
    ls_status status = LS_OK;
    struct dirent **entries = NULL;
    int64_t n_read = 0;
    const int n = scandir(folder, &entries, is_shown, versionsort);
    if (n < 0) return LS_FAIL(err, LS_ERR_IO, "%s: cannot be read: %s", folder, strerror(errno));
    const int64_t arch = choose_arch(audit, entries, n);
    for (int i = 0; i < n; i++) {
        char file[512];
        char *name = NULL;
        const bool fits = status == LS_OK && arch_of(entries[i]->d_name) == arch && strlen(entries[i]->d_name) < 400;
        snprintf(file, sizeof file, "%s/%.400s", folder, entries[i]->d_name);
        if (fits) status = keep_name(audit, path, entries[i]->d_name, &name, err);
        if (fits && status == LS_OK) status = audit_cubin(audit, file, name, ranges, err);
        n_read += fits;
        unlink(file);
        free(entries[i]);
    }
    free(entries);
    if (status == LS_OK && n_read == 0)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: holds neither PTX nor machine code of sm_%lld", path,
                       (long long)arch);
    return status;
}

/* Takes a library apart into cubins in a folder of its own. */
static ls_status audit_machine(ls_audit *audit, const char *path, const ls_ranges *ranges, ls_error *err) {
    ls_status status;
    char folder[64] = "/tmp/lockstep-audit-XXXXXX";
    char *whole = NULL;
    FILE *out = tmpfile();
    if (out == NULL) return LS_FAIL(err, LS_ERR_IO, "%s: no temporary file: %s", path, strerror(errno));
    if (mkdtemp(folder) == NULL) {
        fclose(out);
        return LS_FAIL(err, LS_ERR_IO, "%s: no temporary folder: %s", path, strerror(errno));
    }
    whole = realpath(path, NULL);
    if (whole == NULL) {
        status = LS_FAIL(err, LS_ERR_IO, "%s: cannot be read: %s", path, strerror(errno));
        goto done;
    }
    char which[32] = "all"; /* or files whose names hold this */
    if (audit->arch > 0) snprintf(which, sizeof which, ".sm_%lld.", (long long)audit->arch);
    char tool[LS_TOOL_MAX];
    char *const arguments[] = {tool, word("--extract-elf"), which, whole, NULL};
    LS_TRY_DONE(ls_tool_find(tool, "cuobjdump", path, err));
    LS_TRY_DONE(run_tool(arguments, folder, out, path, err));
    status = audit_cubins(audit, folder, path, ranges, err);
done:
    rmdir(folder);
    free(whole);
    fclose(out);
    return status;
}

/* Whether an ELF file is machine code of a GPU: e_machine 190. */
static ls_status is_cubin(const char *path, bool *is, ls_error *err) {
    unsigned char begin[20];
    FILE *file;
    LS_TRY(ls_file_stream(&file, path, err));
    *is = fread(begin, 1, sizeof begin, file) == sizeof begin && memcmp(begin, "\177ELF", 4) == 0 && begin[18] == 190 &&
          begin[19] == 0;
    fclose(file);
    return LS_OK;
}

/* PTX where the binary has some, machine code otherwise or where it is asked for. */
static ls_status audit_binary(ls_audit *audit, const char *path, const ls_ranges *ranges, ls_error *err) {
    ls_status status;
    char *text = NULL;
    int64_t bytes = 0;
    bool cubin = false;
    LS_TRY(is_cubin(path, &cubin, err));
    if (cubin) return audit_cubin(audit, path, path, ranges, err);
    if (audit->machine || audit->arch > 0) return audit_machine(audit, path, ranges, err);
    char tool[LS_TOOL_MAX];
    char *const arguments[] = {tool, word("--dump-ptx"), word(path), NULL};
    LS_TRY_DONE(ls_tool_find(tool, "cuobjdump", path, err));
    LS_TRY_DONE(dump(arguments, path, &text, &bytes, err));
    if (memmem(text, (size_t)bytes, ".version", 8) == NULL)
        status = audit_machine(audit, path, ranges, err);
    else
        status = ls_audit_ptx(audit, text, bytes, path, ranges, err);
done:
    free(text);
    return status;
}

/* PTX has a line with .version; machine code that nvdisasm writes has none. */
static ls_status audit_text(ls_audit *audit, const char *text, int64_t bytes, const char *path, const ls_ranges *ranges,
                            ls_error *err) {
    if (ls_sass_is(text, bytes)) return ls_audit_sass(audit, text, bytes, path, ranges, err);
    return ls_audit_ptx(audit, text, bytes, path, ranges, err);
}

static ls_status audit_file(ls_audit *audit, const char *path, const ls_ranges *ranges, ls_error *err) {
    ls_status status;
    char *text = NULL;
    int64_t bytes;
    bool binary;
    LS_TRY(is_binary(path, &binary, err));
    if (binary) return audit_binary(audit, path, ranges, err);
    LS_TRY_DONE(ls_file_read(&text, &bytes, path, TEXT_BYTES_MAX, err));
    status = audit_text(audit, text, bytes, path, ranges, err);
done:
    free(text);
    return status;
}

static bool is_audited(const char *name) {
    static const char *const ends[] = {".ptx", ".sass"};
    const size_t n = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (n > strlen(ends[i]) && strcmp(name + n - strlen(ends[i]), ends[i]) == 0) return true;
    return false;
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
        else if (S_ISREG(info.st_mode) && is_audited(name))
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
        if (audit->n_files == before)
            return LS_FAIL(err, LS_ERR_FORMAT, "%s: the folder holds no .ptx and no .sass file", path);
        return LS_OK;
    }
    return audit_file(audit, path, ranges, err);
}
