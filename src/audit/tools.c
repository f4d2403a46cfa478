/* The search, from what is named to what is usual. */
#define _GNU_SOURCE
#include "audit/tools.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define IN_SITE "triton/backends/nvidia/bin"

static bool is_program(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode) && access(path, X_OK) == 0;
}

/* Whether folder/more/tool is there; folder has `bytes` bytes. */
static bool try_folder(char out[LS_TOOL_MAX], const char *folder, size_t bytes, const char *more, const char *tool) {
    const int n =
        snprintf(out, LS_TOOL_MAX, "%.*s/%s%s", (int)(bytes < LS_TOOL_MAX ? bytes : LS_TOOL_MAX), folder, more, tool);
    return bytes > 0 && n > 0 && n < LS_TOOL_MAX && is_program(out);
}

/* The site-packages folders below the root of an installation of Python. */
static bool try_python(char out[LS_TOOL_MAX], const char *root, size_t bytes, const char *tool) {
    static const char *const folders[] = {"lib/python3*/site-packages", "lib64/python3*/site-packages",
                                          "lib/python3*/dist-packages", "local/lib/python3*/dist-packages"};
    char pattern[LS_TOOL_MAX];
    bool found = false;
    for (size_t i = 0; i < sizeof folders / sizeof folders[0] && !found; i++) {
        glob_t all = {0};
        const int n = snprintf(pattern, sizeof pattern, "%.*s/%s/" IN_SITE "/%s",
                               (int)(bytes < LS_TOOL_MAX ? bytes : LS_TOOL_MAX), root, folders[i], tool);
        if (bytes == 0 || n >= (int)sizeof pattern) continue;
        if (glob(pattern, 0, NULL, &all) == 0)
            for (size_t k = all.gl_pathc; k-- > 0 && !found;) /* the newest Python is the last */
                if (strlen(all.gl_pathv[k]) < LS_TOOL_MAX && is_program(all.gl_pathv[k])) {
                    snprintf(out, LS_TOOL_MAX, "%s", all.gl_pathv[k]);
                    found = true;
                }
        globfree(&all);
    }
    return found;
}

static bool try_variable(char out[LS_TOOL_MAX], const char *variable, bool is_python, const char *tool) {
    const char *root = getenv(variable);
    if (root == NULL || root[0] == '\0') return false;
    return is_python ? try_python(out, root, strlen(root), tool) : try_folder(out, root, strlen(root), "bin/", tool);
}

/* Folders of the search path; or, of each that is a bin, the Python beside it. */
static bool try_search_path(char out[LS_TOOL_MAX], bool is_python, const char *tool) {
    const char *at = getenv("PATH");
    while (at != NULL && *at != '\0') {
        const size_t n = strcspn(at, ":");
        if (!is_python && try_folder(out, at, n, "", tool)) return true;
        if (is_python && n > 4 && memcmp(at + n - 4, "/bin", 4) == 0 && try_python(out, at, n - 4, tool)) return true;
        at += n + (at[n] == ':');
    }
    return false;
}

/* The site-packages folder that the file lies in. */
static bool try_neighbours(char out[LS_TOOL_MAX], const char *path, const char *tool) {
    static const char *const names[] = {"/site-packages/", "/dist-packages/"};
    char *whole = realpath(path, NULL);
    bool found = false;
    for (size_t i = 0; whole != NULL && i < sizeof names / sizeof names[0] && !found; i++) {
        const char *at = strstr(whole, names[i]);
        if (at != NULL) found = try_folder(out, whole, (size_t)(at - whole) + strlen(names[i]) - 1, IN_SITE "/", tool);
    }
    free(whole);
    return found;
}

ls_status ls_tool_find(char out[LS_TOOL_MAX], const char *tool, const char *path, ls_error *err) {
    const char *variable = strcmp(tool, "nvdisasm") == 0 ? "LOCKSTEP_NVDISASM" : "LOCKSTEP_CUOBJDUMP";
    const char *named = getenv(variable);
    if (named != NULL && named[0] != '\0') {
        if (strchr(named, '/') == NULL && try_search_path(out, false, named)) return LS_OK;
        if (snprintf(out, LS_TOOL_MAX, "%s", named) < LS_TOOL_MAX && is_program(out)) return LS_OK;
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: a binary is read by way of %s, which cannot run: %s=%.300s", path,
                       tool, variable, named);
    }
    if (try_search_path(out, false, tool) || try_variable(out, "CUDA_HOME", false, tool) ||
        try_variable(out, "CUDA_PATH", false, tool) || try_neighbours(out, path, tool) ||
        try_variable(out, "VIRTUAL_ENV", true, tool) || try_variable(out, "CONDA_PREFIX", true, tool) ||
        try_search_path(out, true, tool) || try_python(out, "/usr", 4, tool) ||
        try_folder(out, "/usr/local/cuda", 15, "bin/", tool))
        return LS_OK;
    {
        const char *home = getenv("HOME");
        char local[LS_TOOL_MAX];
        if (home != NULL && snprintf(local, sizeof local, "%s/.local", home) < (int)sizeof local &&
            try_python(out, local, strlen(local), tool))
            return LS_OK;
    }
    return LS_FAIL(
        err, LS_ERR_UNSUPPORTED,
        "%s: a binary is read by way of %s, which is neither in the search path, nor below CUDA_HOME, nor in a "
        "site-packages folder of the active environment, or of the python3 in the search path; `pip install triton` "
        "there "
        "brings it, %s=PROGRAM names it",
        path, tool, variable);
}
