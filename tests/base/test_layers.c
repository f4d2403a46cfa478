/* The shape of the source tree: includes only look downward, libraries stay at one place, files keep house rules. */
#define _GNU_SOURCE
#include <ctype.h>
#include <ftw.h>
#include <stdlib.h>

#include "harness.h"

enum { LINES_MAX = 900, FILES_MAX = 2048, ARGUMENTS_MAX = 8 };

/* A file includes its own folder and folders of a lower level; two folders on one level do not know each other. */
static const struct {
    const char *folder;
    int level;
} layers[] = {
    {"base", 0},  {"num", 1},      {"json", 1},     {"dev", 2},     {"net", 2},   {"measure", 2},
    {"audit", 2}, {"op", 3},       {"load", 3},     {"record", 3},  {"lab", 4},   {"run", 4},
    {"text", 4},  {"model", 4},    {"template", 5}, {"rollout", 6}, {"train", 6}, {"rl", 7},
    {"api", 8},   {"diagnose", 8}, {"serve", 8},    {"cli", 9},
};

/* Headers of other libraries and the folders that may include each: one, but for the three that read JSON in place. */
static const struct {
    const char *header, *folders[3];
} owners[] = {
    {"jansson.h", {"json", "load", "record"}},
    {"pcre2.h", {"text"}},
    {"utf8proc.h", {"text"}},
    {"curl/curl.h", {"net"}},
    {"sqlite3.h", {"run"}},
    {"microhttpd.h", {"serve"}},
    {"argp.h", {"cli"}},
    {"cublasLt.h", {"op"}},
    {"zlib.h", {"record"}},
};

/* Headers, by what their names begin with, that only a few folders know: back ends are reached through op/backend.h,
 * and what an architecture is made of through model/model.h. */
static const struct {
    const char *begins;
    const char *knows[3];
} inner[] = {
    {"op/cpu/", {"op"}},
    {"op/cuda/", {"op"}},
    {"op/gemm_cuda.h", {"op"}},
    {"dev/", {"dev", "op"}},
    {"api/", {"api"}},
    {"model/jamba", {"model"}},
    {"model/mamba", {"model"}},
    {"model/transformer.h", {"model"}},
    {"model/parts.h", {"model"}},
    {"model/architectures.h", {"model", "cli"}},
    {"model/tape_state.h", {"model"}},
};

/* A diagnosis compares enumerators: causes, experiments and failures are rows with words for people. The files of
 * src/diagnose that compare words compare those of others: programs, servers, records. */
static const char *const comparisons[] = {"strcmp", "strncmp", "strcasecmp", "strstr", "strcasestr", "sscanf"};
static const char *const compare_words[] = {"src/diagnose/trial/program_subject.c", "src/diagnose/trial/probe_server.c",
                                            "src/diagnose/compare/compare.c"};

static const char *const banned_folders[] = {"util", "utils", "common"};

typedef struct report {
    int64_t n;
    char text[16384];
} report;

static void __attribute__((format(printf, 2, 3))) complain(report *r, const char *format, ...) {
    const size_t used = strlen(r->text);
    va_list args;
    va_start(args, format);
    vsnprintf(r->text + used, sizeof r->text - used, format, args);
    va_end(args);
    r->n++;
}

/* Level of the folder named by the first n characters, or -1. */
static int level_of(const char *folder, size_t n) {
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++)
        if (strlen(layers[i].folder) == n && memcmp(layers[i].folder, folder, n) == 0) return layers[i].level;
    return -1;
}

/* The folder of "src/FOLDER/...", "" for include/ and for a file that lies in no folder; its length in *n. */
static const char *folder_of(const char *path, size_t *n) {
    const char *folder = strncmp(path, "src/", 4) == 0 ? path + 4 : "";
    const char *slash = strchr(folder, '/');
    *n = slash == NULL ? 0 : (size_t)(slash - folder);
    return *n == 0 ? "" : folder;
}

/* Whether a file of a folder may know what a header of inner[] holds. */
static bool knows(const char *const *folders, const char *folder, size_t n) {
    for (int i = 0; i < 3 && folders[i] != NULL; i++)
        if (strlen(folders[i]) == n && memcmp(folders[i], folder, n) == 0) return true;
    return false;
}

static void check_inner(report *r, const char *path, int64_t line, const char *name, size_t name_n) {
    size_t folder_n;
    const char *folder = folder_of(path, &folder_n);
    for (size_t i = 0; i < sizeof inner / sizeof inner[0]; i++) {
        const size_t n = strlen(inner[i].begins);
        if (name_n >= n && memcmp(name, inner[i].begins, n) == 0 && !knows(inner[i].knows, folder, folder_n))
            complain(r, "%s:%lld: \"%.*s\" is inside; src/%.*s goes by its door\n", path, (long long)line, (int)name_n,
                     name, (int)folder_n, folder);
    }
}

static void check_include(report *r, const char *path, int64_t line, const char *name, size_t name_n, bool quoted) {
    size_t folder_n;
    const char *folder = folder_of(path, &folder_n), *slash = memchr(name, '/', name_n);
    const int own = level_of(folder, folder_n);
    if (slash != NULL && slash - name == 8 && memcmp(name, "lockstep", 8) == 0) return;
    if (!quoted) {
        for (size_t i = 0; i < sizeof owners / sizeof owners[0]; i++) {
            const bool same = strlen(owners[i].header) == name_n && memcmp(owners[i].header, name, name_n) == 0;
            if (same && !knows(owners[i].folders, folder, folder_n))
                complain(r, "%s:%lld: <%s> belongs to src/%s alone\n", path, (long long)line, owners[i].header,
                         owners[i].folders[0]);
        }
        return;
    }
    if (slash == NULL) {
        complain(r, "%s:%lld: \"%.*s\" names no folder\n", path, (long long)line, (int)name_n, name);
        return;
    }
    const size_t target_n = (size_t)(slash - name);
    const int target = level_of(name, target_n);
    const bool itself = target_n == folder_n && memcmp(name, folder, folder_n) == 0;
    if (target < 0)
        complain(r, "%s:%lld: \"%.*s\": its folder has no level\n", path, (long long)line, (int)name_n, name);
    else if (!itself && target >= own)
        complain(r, "%s:%lld: \"%.*s\" (level %d) may not be included from level %d\n", path, (long long)line,
                 (int)name_n, name, target, own);
    else
        check_inner(r, path, line, name, name_n);
}

/* Reports the include on this line, if it has one that breaks a rule. */
static void check_line(report *r, const char *path, int64_t line, const char *text, size_t n) {
    size_t at = 0, start;
    while (at < n && (text[at] == ' ' || text[at] == '\t')) at++;
    if (at == n || text[at++] != '#') return;
    while (at < n && (text[at] == ' ' || text[at] == '\t')) at++;
    if (n - at < 7 || memcmp(text + at, "include", 7) != 0) return;
    at += 7;
    while (at < n && (text[at] == ' ' || text[at] == '\t')) at++;
    if (at == n || (text[at] != '"' && text[at] != '<')) return;
    const bool quoted = text[at] == '"';
    start = ++at;
    while (at < n && text[at] != (quoted ? '"' : '>')) at++;
    check_include(r, path, line, text + start, at - start, quoted);
}

static bool is_of_name(char c) { return isalnum((unsigned char)c) || c == '_'; }

/* Words that are compared where enumerators should be. */
static void check_words(report *r, const char *path, int64_t line, const char *text, size_t n) {
    if (strncmp(path, "src/diagnose/", 13) != 0) return;
    for (size_t i = 0; i < sizeof compare_words / sizeof compare_words[0]; i++)
        if (strcmp(path, compare_words[i]) == 0) return;
    for (size_t k = 0; k < sizeof comparisons / sizeof comparisons[0]; k++) {
        const size_t length = strlen(comparisons[k]);
        for (size_t at = 0; at + length < n; at++)
            if (memcmp(text + at, comparisons[k], length) == 0 && text[at + length] == '(' &&
                (at == 0 || !is_of_name(text[at - 1])))
                complain(r, "%s:%lld: %s: a diagnosis compares enumerators, not words\n", path, (long long)line,
                         comparisons[k]);
    }
}

/* More arguments than that are a struct: who calls cannot see which of them is which. Kernels are exempt: in op/cpu
 * they are functions, which a compiler unfolds. */
static void check_arguments(report *r, const char *path, int64_t line, const char *text) {
    const char *open = strchr(text, '('), *end = strchrnul(text, '\n');
    int64_t depth = 1, n = 1;
    if (strncmp(path, "src/op/cpu/", 11) == 0 || strstr(path, ".cu") != NULL || strstr(path, "_cuda.h") != NULL) return;
    if (!is_of_name(text[0]) || open == NULL || open > end || memchr(text, '=', (size_t)(open - text)) != NULL) return;
    for (open++; *open != '\0' && depth > 0; open++) {
        depth += (*open == '(') - (*open == ')');
        n += depth == 1 && *open == ',';
    }
    if (n > ARGUMENTS_MAX)
        complain(r, "%s:%lld: %lld arguments, more than %d\n", path, (long long)line, (long long)n, ARGUMENTS_MAX);
}

/* ---- names of headers ---- */

enum { NAMES_MAX = 8192, NAME_BYTES = 64 };

/* Types, enumerators, and what the enumerators of a type begin with; each belongs to one header, the last to one
 * folder. */
typedef struct names {
    struct {
        char kind, text[NAME_BYTES];
        const char *path;
    } of[NAMES_MAX];
    int64_t n;
} names;

static bool shares_folder(const char *a, const char *b) {
    size_t n, m;
    const char *x = folder_of(a, &n), *y = folder_of(b, &m);
    return n == m && memcmp(x, y, n) == 0;
}

static void add_name(report *r, names *list, char kind, const char *text, size_t n, const char *path) {
    if (n == 0 || n >= NAME_BYTES || list->n == NAMES_MAX) return;
    for (int64_t i = 0; i < list->n; i++) {
        if (list->of[i].kind != kind || strlen(list->of[i].text) != n || memcmp(list->of[i].text, text, n) != 0)
            continue;
        if (kind == 'p' ? shares_folder(list->of[i].path, path) : strcmp(list->of[i].path, path) == 0) return;
        complain(r, "%s: %.*s is a name of %s\n", path, (int)n, text, list->of[i].path);
        return;
    }
    list->of[list->n].kind = kind;
    list->of[list->n].path = path;
    memcpy(list->of[list->n].text, text, n);
    list->of[list->n++].text[n] = '\0';
}

/* Comments become spaces. */
static void drop_comments(char *text) {
    for (char *at = strstr(text, "/*"); at != NULL; at = strstr(at, "/*")) {
        char *end = strstr(at + 2, "*/");
        if (end == NULL) return;
        for (; at < end + 2; at++)
            if (*at != '\n') *at = ' ';
    }
}

static size_t name_length(const char *text) {
    size_t n = 0;
    while (is_of_name(text[n])) n++;
    return n;
}

/* How much of two names is the same, up to and without a '_'. */
static size_t common(const char *a, size_t n_a, const char *b, size_t n_b) {
    size_t last = 0;
    for (size_t i = 0; i < n_a && i < n_b && a[i] == b[i]; i++)
        if (a[i] == '_') last = i;
    return last;
}

/* From behind the '{' of an enum to its '}'. Numbers of things, as LS_DIALECTS is, have no place among what others
 * begin with. */
static const char *collect_enumerators(report *r, names *list, const char *at, bool is_type, const char *path) {
    const char *first = NULL;
    size_t first_n = 0, prefix = 0;
    bool expected = true;
    for (; *at != '\0' && *at != '}'; at++) {
        const size_t n = name_length(at);
        if (*at == '#') {
            while (at[1] != '\0' && at[1] != '\n') at++;
        } else if (n > 0) {
            if (expected && strncmp(at, "LS_", 3) == 0) {
                add_name(r, list, 'e', at, n, path);
                if (memchr(at + 3, '_', n - 3) != NULL) {
                    prefix = first == NULL ? (size_t)((const char *)memrchr(at, '_', n) - at)
                                           : common(first, prefix + 1, at, n);
                    if (first == NULL) first = at, first_n = n;
                }
            }
            expected = false;
            at += n - 1;
        } else if (*at == ',') {
            expected = true;
        }
    }
    if (is_type && first != NULL && first_n > 0 && prefix > 2) add_name(r, list, 'p', first, prefix, path);
    return at;
}

/* text: a header, whose comments are lost. */
static void collect_names(report *r, names *list, const char *path, char *text) {
    drop_comments(text);
    for (const char *at = text; *at != '\0'; at++) {
        const size_t n = name_length(at);
        if (n == 4 && memcmp(at, "enum", 4) == 0) {
            const char *to = at + 4 + strspn(at + 4, " \n");
            const size_t tag = name_length(to);
            to += tag + strspn(to + tag, " \n");
            at = *to == '{' ? collect_enumerators(r, list, to + 1, tag > 0, path) : to - 1;
        } else if (n > 0) {
            at += n - 1;
        }
        if (*at == '}') {
            const char *name = at + 1 + strspn(at + 1, " \n");
            const size_t length = name_length(name);
            if (strncmp(name, "ls_", 3) == 0 && name[length] == ';') add_name(r, list, 't', name, length, path);
        }
        if (*at == '\0') return;
    }
}

/* Words that had two meanings, or that the field calls otherwise (docs/reference/glossary.md), as parts of identifiers.
 * What a door is, the diagnosis alone says: that of its trials. */
static const char *const retired[] = {"reading", "door",  "joint", "rung",   "rungs",   "ladder",  "sight",
                                      "sights",  "tally", "told",  "settle", "settled", "meet",    "meets",
                                      "come",    "comes", "go",    "goes",   "stands",  "kinship", "everywhere"};

static bool is_retired(const char *path, const char *part, size_t n) {
    for (size_t i = 0; i < sizeof retired / sizeof retired[0]; i++) {
        if (strlen(retired[i]) != n || strncasecmp(retired[i], part, n) != 0) continue;
        return n != 4 || strncasecmp(part, "door", 4) != 0 ||
               (strncmp(path, "src/diagnose/", 13) != 0 && strncmp(path, "src/cli/", 8) != 0);
    }
    return false;
}

/* Behind the literal that begins here. */
static const char *skip_literal(const char *at) {
    const char quote = *at++;
    for (; *at != '\0' && *at != '\n' && *at != quote; at++)
        if (*at == '\\' && at[1] != '\0') at++;
    return *at == quote ? at + 1 : at;
}

/* text: a source, whose comments are lost. */
static void check_retired(report *r, const char *path, const char *text) {
    int64_t line = 1;
    while (*text != '\0') {
        const size_t n = name_length(text);
        for (size_t at = 0, end; at < n; at = end + 1) {
            for (end = at; end < n && text[end] != '_'; end++) {
            }
            if (is_retired(path, text + at, end - at))
                complain(r, "%s:%lld: %.*s: '%.*s' has had its day (docs/reference/glossary.md)\n", path,
                         (long long)line, (int)n, text, (int)(end - at), text + at);
        }
        line += *text == '\n';
        text = n > 0 ? text + n : *text == '"' || *text == '\'' ? skip_literal(text) : text + 1;
    }
}

/* A list of more fields than that names them (C++ sources): a stride in its neighbour's field is no error to the
 * compiler. Arrays are lists, too, and have no names. */
enum { FIELDS_MAX = 6 };

/* text: a source, whose comments are lost. */
static void check_fields(report *r, const char *path, const char *text) {
    int64_t line = 1;
    if (strstr(path, ".cu") == NULL && strstr(path, "_cuda.h") == NULL) return;
    for (const char *at = text; *at != '\0'; at++) {
        line += *at == '\n';
        if (at - text < 4 || strncmp(at, "= {", 3) != 0 || at[-2] == ']') continue;
        const char *first = at + 3 + strspn(at + 3, " \n"), *to = first;
        int64_t depth = 1, n = 1;
        for (; *to != '\0' && depth > 0; to += *to == '"' ? skip_literal(to) - to : 1) {
            depth += (*to == '{' || *to == '(') - (*to == '}' || *to == ')');
            n += depth == 1 && *to == ',';
        }
        if (n > FIELDS_MAX && *first != '.')
            complain(r, "%s:%lld: %lld fields without their names, more than %d\n", path, (long long)line, (long long)n,
                     FIELDS_MAX);
    }
}

/* Static functions of one word: in three files they would tell nobody which one it is. Those of kernels are unfolded
 * into their callers. */
enum { STATICS_MAX = 4096, FILES_OF_A_NAME = 2 };

typedef struct statics {
    struct {
        char name[NAME_BYTES];
        const char *path;
    } of[STATICS_MAX];
    int64_t n;
} statics;

static void add_static(report *r, statics *list, const char *name, size_t n, const char *path) {
    int64_t files = 1;
    if (n >= NAME_BYTES || list->n == STATICS_MAX) {
        complain(r, "%s: %.*s: no room for so many names, or for so long a one\n", path, (int)n, name);
        return;
    }
    for (int64_t i = 0; i < list->n; i++) {
        if (strlen(list->of[i].name) != n || memcmp(list->of[i].name, name, n) != 0) continue;
        if (strcmp(list->of[i].path, path) == 0) return;
        files++;
    }
    if (files > FILES_OF_A_NAME)
        complain(r, "%s: static %.*s of %lld files: a noun is missing\n", path, (int)n, name, (long long)files);
    memcpy(list->of[list->n].name, name, n);
    list->of[list->n].name[n] = '\0';
    list->of[list->n++].path = path;
}

/* text: a source, whose comments are lost. */
static void collect_statics(report *r, statics *list, const char *path, const char *text) {
    if (strncmp(path, "src/op/cpu/", 11) == 0 || strstr(path, "/cuda/") != NULL || strstr(path, ".cu") != NULL) return;
    for (const char *at = text; at != NULL; at = strchr(at, '\n')) {
        at += *at == '\n';
        const size_t to = strcspn(at, "(;={\n");
        size_t n = 0;
        if (strncmp(at, "static ", 7) != 0 || at[to] != '(') continue;
        while (is_of_name(at[to - n - 1])) n++;
        if (n > 0 && memchr(at + to - n, '_', n) == NULL) add_static(r, list, at + to - n, n, path);
    }
}

/* Everything that one file alone can break. path is relative to the root of the source tree. */
static void check_text(report *r, const char *path, const char *text) {
    size_t folder_n;
    const char *folder = folder_of(path, &folder_n), *at = text;
    int64_t line = 0;
    if (strncmp(path, "src/", 4) == 0) {
        for (size_t i = 0; i < sizeof banned_folders / sizeof banned_folders[0]; i++) {
            char part[32];
            snprintf(part, sizeof part, "/%s/", banned_folders[i]);
            if (strstr(path, part) != NULL)
                complain(r, "%s: a folder called %s says nothing\n", path, banned_folders[i]);
        }
        if (level_of(folder, folder_n) < 0) complain(r, "%s:1: its folder has no level\n", path);
    }
    while (*at == ' ' || *at == '\n') at++;
    if (strncmp(at, "/*", 2) != 0 && strncmp(at, "//", 2) != 0)
        complain(r, "%s:1: the file does not open with a comment on its role\n", path);
    for (at = text; *at != '\0';) {
        const char *end = strchrnul(at, '\n');
        check_line(r, path, ++line, at, (size_t)(end - at));
        check_words(r, path, line, at, (size_t)(end - at));
        if (strncmp(path, "src/", 4) == 0) check_arguments(r, path, line, at);
        at = *end == '\n' ? end + 1 : end;
    }
    if (line > LINES_MAX) complain(r, "%s:%lld: more than %d lines\n", path, (long long)line, LINES_MAX);
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

/* Two files of src/ with one name, whatever their folders. */
static void check_unique(report *r, const char *const *paths, int64_t n_paths) {
    for (int64_t i = 0; i < n_paths; i++)
        for (int64_t k = i + 1; k < n_paths; k++)
            if (strncmp(paths[i], "src/", 4) == 0 && strncmp(paths[k], "src/", 4) == 0 &&
                strcmp(base_name(paths[i]), base_name(paths[k])) == 0)
                complain(r, "%s and %s share a name\n", paths[i], paths[k]);
}

/* nftw has no argument for its visitor. */
static char *found[FILES_MAX];
static int64_t n_found;

static int visit(const char *path, const struct stat *status, int kind, struct FTW *place) {
    const char *dot = strrchr(path, '.');
    (void)status;
    (void)place;
    if (kind != FTW_F || dot == NULL) return 0;
    if (strcmp(dot, ".c") != 0 && strcmp(dot, ".h") != 0 && strcmp(dot, ".cu") != 0 && strcmp(dot, ".cuh") != 0)
        return 0;
    if (n_found == FILES_MAX) return 1;
    found[n_found] = strdup(path + strlen(LS_SOURCE_DIR) + 1);
    return found[n_found++] == NULL;
}

static char *read_all(const char *path) {
    char full[4096], *text;
    FILE *file;
    long bytes;
    snprintf(full, sizeof full, "%s/%s", LS_SOURCE_DIR, path);
    file = fopen(full, "rb");
    if (file == NULL) fail_msg("cannot open %s", full);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    bytes = ftell(file);
    assert_true(bytes >= 0);
    rewind(file);
    text = malloc((size_t)bytes + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)bytes, file), (size_t)bytes);
    text[bytes] = '\0';
    fclose(file);
    return text;
}

static int collect(void **state) {
    (void)state;
    return nftw(LS_SOURCE_DIR "/src", visit, 16, FTW_PHYS) != 0 ||
           nftw(LS_SOURCE_DIR "/include", visit, 16, FTW_PHYS) != 0;
}

static int release(void **state) {
    (void)state;
    while (n_found > 0) free(found[--n_found]);
    return 0;
}

static void the_tree_keeps_the_rules(void **state) {
    names *list = calloc(1, sizeof *list);
    statics *functions = calloc(1, sizeof *functions);
    report r = {0};
    (void)state;
    assert_true(n_found > 10 && list != NULL && functions != NULL);
    for (int64_t i = 0; i < n_found; i++) {
        char *text = read_all(found[i]);
        check_text(&r, found[i], text);
        if (found[i][strlen(found[i]) - 1] == 'h') collect_names(&r, list, found[i], text);
        drop_comments(text);
        check_retired(&r, found[i], text);
        check_fields(&r, found[i], text);
        collect_statics(&r, functions, found[i], text);
        free(text);
    }
    assert_true(list->n > 500 && list->n < NAMES_MAX && functions->n > 100);
    free(list);
    free(functions);
    check_unique(&r, (const char *const *)found, n_found);
    if (r.n != 0) fail_msg("%lld violations:\n%s", (long long)r.n, r.text);
}

static void good_lines_pass(void **state) {
    static const struct {
        const char *path, *line;
    } cases[] = {
        {"src/op/x.c", "#include \"op/gemm.h\""},
        {"src/op/x.c", "#include \"num/sum.h\""},
        {"src/op/x.c", "#include \"lockstep/lockstep.h\""},
        {"src/base/x.c", "#include <lockstep/lockstep.h>"},
        {"src/base/x.c", "#include <sys/mman.h>"},
        {"src/load/x.c", "#include <jansson.h>"},
        {"src/net/x.c", "#include <curl/curl.h>"},
        {"src/run/x.c", "#include <sqlite3.h>"},
        {"src/cli/x.c", "  #  include \"diagnose/check.h\" /* far down */"},
        {"src/diagnose/x.c", "#include \"train/trainer.h\""},
        {"src/diagnose/x.c", "#include \"measure/mismatch.h\""},
        {"src/base/x.c", "// #include \"cli/commands.h\""},
        {"include/lockstep/x.h", "#include <stdint.h>"},
        {"include/lockstep/x.h", "#include \"lockstep/lockstep.h\""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        report r = {0};
        check_line(&r, cases[i].path, 1, cases[i].line, strlen(cases[i].line));
        if (r.n != 0) fail_msg("%s", r.text);
    }
}

/* The checker must see what it is there for: file, line and include in its words. */
static void bad_lines_are_reported(void **state) {
    static const struct {
        const char *path, *line, *says;
    } cases[] = {
        {"src/base/x.c", "#include \"num/sum.h\"", "src/base/x.c:7: \"num/sum.h\" (level 1)"},
        {"src/load/x.c", "#include \"op/gemm.h\"", "src/load/x.c:7: \"op/gemm.h\""},
        {"src/op/x.c", "#include \"load/json.h\"", "src/op/x.c:7: \"load/json.h\""},
        {"src/rollout/x.h", "#include \"train/trainer.h\"", "\"train/trainer.h\" (level 6)"},
        {"src/train/x.c", "#include \"rollout/engine.h\"", "\"rollout/engine.h\" (level 6)"},
        {"src/rl/x.c", "#include \"diagnose/compare/compare.h\"", "\"diagnose/compare/compare.h\""},
        {"src/model/x.c", "#include \"text/tokenizer.h\"", "\"text/tokenizer.h\""},
        {"src/diagnose/x.c", "#include \"cli/job.h\"", "\"cli/job.h\""},
        {"src/rollout/x.c", "#include \"op/cpu/kernels.h\"", "src/rollout goes by its door"},
        {"src/model/x.c", "#include \"op/cuda/cuda_ops.h\"", "src/model goes by its door"},
        {"src/train/x.c", "#include \"dev/workers.h\"", "\"dev/workers.h\" is inside"},
        {"src/rl/x.c", "#include \"model/jamba.h\"", "src/rl goes by its door"},
        {"src/diagnose/x.c", "#include \"model/parts.h\"", "\"model/parts.h\" is inside"},
        {"src/model/x.c", "\t#\tinclude\t\"cli/commands.h\"", "\"cli/commands.h\""},
        {"src/op/x.cu", "#include \"gemm.h\"", "names no folder"},
        {"src/op/x.c", "#include \"base2/status.h\"", "has no level"},
        {"src/cli/x.c", "#include <jansson.h>", "src/cli/x.c:7: <jansson.h> belongs to src/json"},
        {"src/base/x.c", "#include <utf8proc.h>", "<utf8proc.h> belongs to src/text"},
        {"src/train/x.c", "#include <sqlite3.h>", "<sqlite3.h> belongs to src/run"},
        {"src/train/x.c", "#include \"rollout/engine.h\"", "\"rollout/engine.h\" (level 6)"},
        {"src/model/x.c", "#include <pcre2.h>", "<pcre2.h> belongs to src/text"},
        {"src/cli/x.c", "#include <curl/curl.h>", "<curl/curl.h> belongs to src/net"},
        {"src/load/x.c", "#include <argp.h>", "<argp.h> belongs to src/cli"},
        {"include/lockstep/x.h", "#include <jansson.h>", "belongs to src/json"},
        {"include/lockstep/x.h", "#include \"base/status.h\"", "\"base/status.h\""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        report r = {0};
        check_line(&r, cases[i].path, 7, cases[i].line, strlen(cases[i].line));
        if (r.n != 1 || strstr(r.text, cases[i].says) == NULL)
            fail_msg("%s with %s: %lld reports: '%s'", cases[i].path, cases[i].line, (long long)r.n, r.text);
    }
}

static void bad_files_are_reported(void **state) {
    static const char *const twins[] = {"src/op/scan.h", "include/lockstep/scan.h", "src/model/scan.h"};
    char *lines = malloc(LINES_MAX + 8);
    report r = {0};
    (void)state;
    assert_non_null(lines);
    memset(lines, '\n', LINES_MAX + 7);
    lines[LINES_MAX + 7] = '\0';
    memcpy(lines, "/**/", 4);
    check_text(&r, "src/op/long.c", lines);
    assert_int_equal(r.n, 1);
    assert_non_null(strstr(r.text, "more than 900 lines"));
    lines[4 + LINES_MAX] = '\0';
    r = (report){0};
    check_text(&r, "src/op/long_enough.c", lines);
    assert_int_equal(r.n, 0);
    free(lines);

    r = (report){0};
    check_text(&r, "src/op/bare.c", "#include <stdint.h>\n");
    assert_int_equal(r.n, 1);
    assert_non_null(strstr(r.text, "src/op/bare.c:1: the file does not open with a comment"));

    r = (report){0};
    check_text(&r, "src/util/x.c", "/* x */\n");
    assert_int_equal(r.n, 2);
    assert_non_null(strstr(r.text, "a folder called util"));

    r = (report){0};
    check_text(&r, "src/x.c", "/* x */\n");
    assert_int_equal(r.n, 1);

    r = (report){0};
    check_text(&r, "src/op/late.c", "/* x */\n\n#include \"model/model.h\"");
    assert_int_equal(r.n, 1);
    assert_non_null(strstr(r.text, "src/op/late.c:3: \"model/model.h\""));

    r = (report){0};
    check_text(&r, "src/model/many.c",
               "/* x */\nstatic void nine(int a, int b, int c, int d, int e,\n                 int f, int g, int h, "
               "int i) {\n");
    assert_int_equal(r.n, 1);
    assert_non_null(strstr(r.text, "src/model/many.c:2: 9 arguments, more than 8"));

    r = (report){0};
    check_text(&r, "src/model/eight.c",
               "/* x */\nvoid eight(int a, int b, int c, void (*d)(int e, int f, int g),\n"
               "           int e, int f, int g, int h);\nint x[] = {CALL(1, 2, 3, 4, 5, 6, 7, 8, 9)};\n");
    assert_int_equal(r.n, 0);

    r = (report){0};
    check_unique(&r, twins, 3);
    assert_int_equal(r.n, 1);
    assert_non_null(strstr(r.text, "src/op/scan.h and src/model/scan.h"));
}

static void compared_words_are_reported(void **state) {
    static const struct {
        const char *path, *line;
        int64_t n;
    } cases[] = {
        {"src/diagnose/rounding/x.c", "    if (strcmp(f->cause, \"page size matters\") == 0) return;", 1},
        {"src/diagnose/x.c", "    n += strstr(note, \": no end after\") != NULL;", 1},
        {"src/diagnose/report/x.h", "    sscanf(text, \"%d\", &n); strncmp(a, b, 3);", 2},
        {"src/diagnose/trial/x.c", "    strcmp(name, other);", 1},
        {"src/diagnose/trial/program_subject.c", "    strcmp(record->finish, \"error\");", 0},
        {"src/cli/x.c", "    strcmp(text, \"f32\");", 0},
        {"src/diagnose/x.c", "    ls_strcmp(a, b);", 0},
        {"src/diagnose/x.c", "    cause == LS_CAUSE_PAGE_SIZE;", 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        report r = {0};
        check_words(&r, cases[i].path, 7, cases[i].line, strlen(cases[i].line));
        if (r.n != cases[i].n) fail_msg("%s: %lld reports: '%s'", cases[i].line, (long long)r.n, r.text);
    }
}

static void shared_names_are_reported(void **state) {
    static const struct {
        const char *one, *path, *two, *says; /* says NULL: nothing */
    } cases[] = {
        {"typedef struct ls_span {\n    int n;\n} ls_span;", "src/text/b.h", "typedef struct { int n; } ls_span;",
         "src/text/b.h: ls_span is a name of src/op/a.h"},
        {"typedef enum ls_a { LS_POLICY_FIFO, LS_POLICY_LAST } ls_a;", "src/rl/b.h",
         "typedef enum ls_b {\n    LS_POLICY_PPO, /* x */\n    LS_POLICY_GSPO,\n    LS_POLICIES\n} ls_b;",
         "src/rl/b.h: LS_POLICY is a name of src/op/a.h"},
        {"typedef enum ls_a { LS_X_ONE } ls_a;", "src/rl/b.h", "enum { LS_X_ONE = 3 };", "LS_X_ONE is a name of"},
        {"typedef enum ls_a { LS_X_ONE, LS_X_TWO } ls_a;", "src/op/b.h", "typedef enum ls_b { LS_X_OTHER } ls_b;",
         NULL},
        {"typedef enum ls_a { LS_X_ONE, LS_X_TWO } ls_a;", "src/rl/b.h", "typedef enum ls_b { LS_Y_ONE, LS_XS } ls_b;",
         NULL},
        {"/* } ls_span; */ typedef enum ls_verdict { LS_CLEAN, LS_MOVED } ls_verdict;", "src/rl/b.h",
         "/* LS_CLEAN */\n#define LS_ROW(name) LS_X_##name,\ntypedef struct ls_span ls_span;", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        names *list = calloc(1, sizeof *list);
        char *one = strdup(cases[i].one), *two = strdup(cases[i].two);
        report r = {0};
        assert_true(list != NULL && one != NULL && two != NULL);
        collect_names(&r, list, "src/op/a.h", one);
        collect_names(&r, list, cases[i].path, two);
        if (r.n != (cases[i].says != NULL) || (r.n > 0 && strstr(r.text, cases[i].says) == NULL))
            fail_msg("%s and %s: '%s'", cases[i].one, cases[i].two, r.text);
        free(one);
        free(two);
        free(list);
    }
}

static void retired_words_are_reported(void **state) {
    static const struct {
        const char *path, *text;
        int64_t n;
    } cases[] = {
        {"src/op/x.c", "int64_t n_rungs = reading;", 2},
        {"src/rl/x.c", "static void ls_Tally_free(void);", 1},
        {"src/op/x.c", "ls_door d;", 1},
        {"src/diagnose/trial/x.c", "ls_door d = ls_door_open(1);", 0},
        {"src/op/x.c", "puts(\"a reading of \\\" the door\"); c = '\"'; sent = 1;", 0},
        {"src/op/x.c", "category = readings_of = trundle = goal;", 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        report r = {0};
        check_retired(&r, cases[i].path, cases[i].text);
        if (r.n != cases[i].n) fail_msg("%s: %lld reports: '%s'", cases[i].text, (long long)r.n, r.text);
    }
}

static void unnamed_fields_are_reported(void **state) {
    static const struct {
        const char *path, *text;
        int64_t n;
    } cases[] = {
        {"src/op/cuda/x.cu", "int;\nproduct p = {a, b, {1, 2}, f(c, d), e, 0,\n 0};", 1},
        {"src/op/cuda/x_cuda.h", "product p = {1, 2, 3, 4, 5, 6, \"}\"};", 1},
        {"src/op/cuda/x.cu", "product p = {.a = 1, .b = 2, .c = 3, .d = 4, .e = 5, .f = 6, .g = 7};", 0},
        {"src/op/cuda/x.cu", "product p = {1, {2, 3, 4}, f(5, 6, 7, 8), 9}; int x[7] = {1, 2, 3, 4, 5, 6, 7};", 0},
        {"src/op/x.c", "product p = {1, 2, 3, 4, 5, 6, 7};", 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        report r = {0};
        check_fields(&r, cases[i].path, cases[i].text);
        if (r.n != cases[i].n) fail_msg("%s: %lld reports: '%s'", cases[i].text, (long long)r.n, r.text);
    }
}

static void bare_verbs_are_reported(void **state) {
    static const char *const paths[] = {"src/rl/a.c", "src/rl/b.c", "src/model/c.c", "src/op/cpu/d.c"};
    static const char text[] =
        "static int take(int a) {\n    return a;\n}\nstatic int take_node(void);\n"
        "static const int most = 3;\nstatic int take(int b);\n";
    statics *functions = calloc(1, sizeof *functions);
    report r = {0};
    (void)state;
    assert_non_null(functions);
    for (int i = 0; i < 4; i++) {
        collect_statics(&r, functions, paths[i], text);
        assert_int_equal(r.n, i >= 2);
    }
    assert_non_null(strstr(r.text, "src/model/c.c: static take of 3 files"));
    free(functions);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_tree_keeps_the_rules),    cmocka_unit_test(good_lines_pass),
        cmocka_unit_test(bad_lines_are_reported),      cmocka_unit_test(bad_files_are_reported),
        cmocka_unit_test(compared_words_are_reported), cmocka_unit_test(shared_names_are_reported),
        cmocka_unit_test(retired_words_are_reported),  cmocka_unit_test(unnamed_fields_are_reported),
        cmocka_unit_test(bare_verbs_are_reported),
    };
    return cmocka_run_group_tests(tests, collect, release);
}
