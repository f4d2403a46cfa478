/* The file of ranges: lines, sections for kernels, names, values that are sums of products of names and numbers. */
#define _GNU_SOURCE /* memmem */
#include "audit/ranges.h"

#include <stdlib.h>
#include <string.h>

#include "base/closest.h"
#include "base/mem.h"
#include "base/utf8.h"

enum { LINE_MAX_BYTES = 4096, ENTRIES_MAX = 65536 };

/* One line: what is said of a subject, or of a name. */
typedef struct entry {
    char *section; /* NULL: every kernel */
    char *name;    /* the name given, or the name spoken of; may be NULL */
    bool is_subject, has_range;
    ls_range_subject subject;
    int32_t index;
    int64_t offset;
    ls_range range;
    const char *file; /* NULL: not from one; borrowed */
    int64_t line;
    bool is_used, has_kernel; /* something was looked for that this line is about; a kernel of its section was there */
} entry;

enum { SEEN_MAX = 32, SEEN_BYTES = 64, LISTED_MAX = 20 };

struct ls_ranges {
    entry *entries;
    int64_t n, cap;
    struct seen *seen; /* what audits have looked for, for people */
};

struct seen {
    char names[SEEN_MAX][SEEN_BYTES]; /* of parameters, the first ones */
    int64_t n_names, n_numbered;      /* parameters that have no name but their number */
};

typedef struct cursor {
    const char *at, *end, *name;
    int64_t line;
    const char *section;
    int32_t section_bytes;
} cursor;

static ls_status fail_range(const cursor *c, ls_error *err, const char *sentence) {
    return LS_FAIL(err, LS_ERR_FORMAT, "%s:%lld: %s", c->name, (long long)c->line, sentence);
}

ls_status ls_ranges_create(ls_ranges **out, ls_error *err) {
    ls_status status;
    LS_TRY(ls_array_alloc((void **)out, 1, sizeof **out, "ranges", err));
    status = ls_array_alloc((void **)&(*out)->seen, 1, sizeof *(*out)->seen, "ranges", err);
    if (status == LS_OK) return LS_OK;
    free(*out);
    *out = NULL;
    return status;
}

void ls_ranges_free(ls_ranges *r) {
    if (r == NULL) return;
    for (int64_t i = 0; i < r->n; i++) free(r->entries[i].section), free(r->entries[i].name);
    free(r->entries);
    free(r->seen);
    free(r);
}

static void skip(cursor *c) {
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\r')) c->at++;
}

static bool take_word(cursor *c, const char *text) {
    const size_t n = strlen(text);
    skip(c);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, text, n) != 0) return false;
    c->at += n;
    return true;
}

static bool is_word(char ch) {
    return (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || (ch >= '0' && ch <= '9') || ch == '_';
}

static int32_t word(cursor *c, const char **out) {
    skip(c);
    *out = c->at;
    while (c->at < c->end && is_word(*c->at)) c->at++;
    return (int32_t)(c->at - *out);
}

static ls_status integer(cursor *c, int64_t *out, ls_error *err) {
    const char *begin;
    const int32_t n = word(c, &begin);
    *out = 0;
    for (int32_t i = 0; i < n; i++) {
        if (begin[i] == '_') continue;
        if (begin[i] < '0' || begin[i] > '9') return fail_range(c, err, "not a number");
        if (__builtin_mul_overflow(*out, 10, out) || __builtin_add_overflow(*out, begin[i] - '0', out))
            return fail_range(c, err, "a number passes 64 bits");
    }
    return n > 0 ? LS_OK : fail_range(c, err, "a number is missing");
}

static bool names(const entry *e, const char *name, int32_t bytes) {
    return e->name != NULL && strlen(e->name) == (size_t)bytes && memcmp(e->name, name, (size_t)bytes) == 0;
}

/* What is said of a name: later lines count, and those of the section before those of all kernels. */
static const entry *find_name(const ls_ranges *r, const char *name, int32_t bytes, const char *kernel,
                              int32_t kernel_bytes) {
    const entry *found = NULL;
    for (int64_t i = r->n - 1; i >= 0; i--) {
        entry *e = &r->entries[i];
        if (!e->has_range || !names(e, name, bytes)) continue;
        if (e->section != NULL && memmem(kernel, (size_t)kernel_bytes, e->section, strlen(e->section)) == NULL)
            continue;
        e->is_used = true;
        if (found == NULL || (found->section == NULL && e->section != NULL)) found = e;
    }
    return found;
}

/* A number, or a name that has a range: its largest, or its smallest. */
static ls_status factor(const ls_ranges *r, cursor *c, bool high, int64_t *out, ls_error *err) {
    skip(c);
    if (c->at < c->end && *c->at >= '0' && *c->at <= '9') return integer(c, out, err);
    const char *name;
    const int32_t n = word(c, &name);
    const entry *e = find_name(r, name, n, c->section == NULL ? "" : c->section, c->section_bytes);
    if (n == 0) return fail_range(c, err, "a number or a name is missing");
    if (e == NULL)
        return LS_FAIL(err, LS_ERR_FORMAT, "%s:%lld: nothing says what '%.*s' is", c->name, (long long)c->line,
                       n > 80 ? 80 : n, name);
    const ls_wide value = high ? e->range.high : e->range.low;
    *out = (int64_t)value;
    return LS_OK;
}

/* Products with + and - between them. */
static ls_status value(const ls_ranges *r, cursor *c, bool high, int64_t *out, ls_error *err) {
    int64_t sign = take_word(c, "-") ? -1 : 1;
    *out = 0;
    for (;;) {
        int64_t product, next;
        LS_TRY(factor(r, c, (sign > 0) == high, &product, err));
        while (take_word(c, "*")) {
            LS_TRY(factor(r, c, (sign > 0) == high, &next, err));
            if (__builtin_mul_overflow(product, next, &product)) return fail_range(c, err, "a value passes 64 bits");
        }
        if (__builtin_mul_overflow(product, sign, &product) || __builtin_add_overflow(*out, product, out))
            return fail_range(c, err, "a value passes 64 bits");
        if (take_word(c, "+"))
            sign = 1;
        else if (take_word(c, "-"))
            sign = -1;
        else
            return LS_OK;
    }
}

static ls_status read_range(const ls_ranges *r, cursor *c, entry *e, ls_error *err) {
    int64_t low, high;
    const char *begin = c->at;
    LS_TRY(value(r, c, false, &low, err));
    c->at = begin;
    LS_TRY(value(r, c, true, &high, err));
    if (take_word(c, "..")) LS_TRY(value(r, c, true, &high, err));
    if (high < low) return fail_range(c, err, "a range ends before it begins");
    e->has_range = true;
    e->range = ls_range_of(low, high);
    return LS_OK;
}

/* param 3, param 3+8, param 3[], threadIdx.x and its like; anything else is a name. */
static ls_status read_subject(cursor *c, entry *e, ls_error *err) {
    static const struct {
        const char *name;
        ls_range_subject subject;
    } axes[] = {{"threadIdx", LS_SUBJECT_TID},
                {"blockIdx", LS_SUBJECT_CTAID},
                {"blockDim", LS_SUBJECT_NTID},
                {"gridDim", LS_SUBJECT_NCTAID},
                {"threads", LS_SUBJECT_THREADS}};
    const char *name;
    int64_t number;
    const int32_t n = word(c, &name);
    if (n == 0) return fail_range(c, err, "not a parameter, an axis or a name");
    for (size_t i = 0; i < sizeof axes / sizeof axes[0]; i++) {
        if (strlen(axes[i].name) != (size_t)n || memcmp(axes[i].name, name, (size_t)n) != 0) continue;
        e->is_subject = true;
        e->subject = axes[i].subject;
        if (!take_word(c, ".") || c->at == c->end || *c->at < 'x' || *c->at > 'z')
            return fail_range(c, err, "an axis is x, y or z");
        e->index = *c->at++ - 'x';
        return LS_OK;
    }
    if (n == 5 && memcmp(name, "param", 5) == 0) {
        LS_TRY(integer(c, &number, err));
        if (number > 4095) return fail_range(c, err, "a kernel has at most 4096 parameters");
        e->is_subject = true;
        e->index = (int32_t)number;
        if (take_word(c, "+")) LS_TRY(integer(c, &e->offset, err));
        e->subject = take_word(c, "[]") ? LS_SUBJECT_LOADED : LS_SUBJECT_PARAMETER;
        return LS_OK;
    }
    return ls_text_copy(&e->name, name, n, err);
}

static ls_status add_entry(ls_ranges *r, const entry *e, ls_error *err) {
    if (r->n == ENTRIES_MAX) return LS_FAIL(err, LS_ERR_FORMAT, "more than %d lines of ranges", ENTRIES_MAX);
    LS_TRY(ls_array_grow((void **)&r->entries, &r->cap, r->n + 1, sizeof *r->entries, "ranges", err));
    r->entries[r->n++] = *e;
    return LS_OK;
}

static ls_status read_line(ls_ranges *r, cursor *c, ls_error *err) {
    ls_status status;
    entry e = {0};
    skip(c);
    if (c->at == c->end || *c->at == '#') return LS_OK;
    if (*c->at == '[') {
        const char *close = memchr(c->at, ']', (size_t)(c->end - c->at));
        if (close == NULL) return fail_range(c, err, "a section without its ']'");
        c->section = c->at + 1;
        c->section_bytes = (int32_t)(close - c->section);
        if (c->section_bytes == 1 && *c->section == '*') c->section = NULL;
        c->at = close + 1;
    } else {
        const char *name;
        LS_TRY_DONE(read_subject(c, &e, err));
        if (e.is_subject && take_word(c, "=")) {
            const int32_t n = word(c, &name);
            if (n == 0) {
                status = fail_range(c, err, "a name is missing");
                goto done;
            }
            LS_TRY_DONE(ls_text_copy(&e.name, name, n, err));
        }
        if (take_word(c, ":")) {
            LS_TRY_DONE(read_range(r, c, &e, err));
        } else if (!e.is_subject || e.name == NULL) {
            status = fail_range(c, err, "a ':' and a range are missing");
            goto done;
        }
        if (c->section != NULL) LS_TRY_DONE(ls_text_copy(&e.section, c->section, c->section_bytes, err));
        e.file = c->name;
        e.line = c->line;
        LS_TRY_DONE(add_entry(r, &e, err));
        e = (entry){0};
    }
    skip(c);
    status = c->at == c->end || *c->at == '#' ? LS_OK : fail_range(c, err, "more than a range stands on the line");
done:
    free(e.name);
    free(e.section);
    return status;
}

ls_status ls_ranges_parse(ls_ranges *r, const char *text, int64_t bytes, const char *name, ls_error *err) {
    cursor c = {.name = name, .line = 0};
    for (int64_t at = ls_utf8_mark(text, bytes); at < bytes;) {
        const char *newline = memchr(text + at, '\n', (size_t)(bytes - at));
        const int64_t end = newline == NULL ? bytes : newline - text;
        c.line++;
        if (end - at > LINE_MAX_BYTES) return fail_range(&c, err, "a line is longer than 4096 bytes");
        c.at = text + at;
        c.end = text + end;
        LS_TRY(read_line(r, &c, err));
        at = end + 1;
    }
    return LS_OK;
}

ls_status ls_ranges_name(ls_ranges *r, const char *name, int64_t low, int64_t high, ls_error *err) {
    entry e = {.has_range = true, .range = {low, high}};
    LS_TRY(ls_text_copy(&e.name, name, (int64_t)strlen(name), err));
    const ls_status status = add_entry(r, &e, err);
    if (status != LS_OK) free(e.name);
    return status;
}

static bool applies(const entry *e, const char *kernel, int32_t bytes) {
    return e->section == NULL || memmem(kernel, (size_t)bytes, e->section, strlen(e->section)) != NULL;
}

static void adopt(ls_declared *out, const entry *e) {
    if (e->name != NULL && out->name == NULL) out->name = e->name;
    if (!e->has_range || out->has_range) return;
    out->has_range = true;
    out->range = e->range;
}

static void find_subject(const ls_ranges *r, ls_declared *out, const ls_range_query *q) {
    for (int pass = 0; pass < 2; pass++) /* a section's lines before those of all kernels */
        for (int64_t i = r->n - 1; i >= 0; i--) {
            entry *e = &r->entries[i];
            if (!e->is_subject || e->subject != q->subject || e->index != q->index || e->offset != q->offset ||
                (e->section != NULL) != (pass == 0) || !applies(e, q->kernel, q->kernel_bytes))
                continue;
            e->is_used = true;
            adopt(out, e);
        }
}

static void see_kernel(const ls_ranges *r, const char *kernel, int32_t bytes) {
    for (int64_t i = 0; i < r->n; i++)
        if (!r->entries[i].has_kernel) r->entries[i].has_kernel = applies(&r->entries[i], kernel, bytes);
}

/* Compilers call parameters KERNEL_param_2 or param2 where the source's names are lost. */
static bool is_numbered(const char *name, int32_t n) {
    const int32_t whole = n;
    while (n > 0 && name[n - 1] >= '0' && name[n - 1] <= '9') n--;
    if (n == whole) return false;
    if (n > 0 && name[n - 1] == '_') n--;
    return n >= 5 && memcmp(name + n - 5, "param", 5) == 0;
}

static void see_name(struct seen *s, const char *name, int32_t bytes) {
    if (is_numbered(name, bytes)) {
        s->n_numbered++;
        return;
    }
    if (bytes >= SEEN_BYTES || s->n_names == SEEN_MAX) return;
    for (int64_t i = 0; i < s->n_names; i++)
        if (strlen(s->names[i]) == (size_t)bytes && memcmp(s->names[i], name, (size_t)bytes) == 0) return;
    memcpy(s->names[s->n_names++], name, (size_t)bytes);
}

/* ---- what was about nothing ---- */

static void tell_subject(FILE *file, const entry *e) {
    static const char *const axes[] = {"threadIdx", "blockIdx", "blockDim", "gridDim", "threads"};
    if (!e->is_subject) {
        fprintf(file, "'%.80s'", e->name);
    } else if (e->subject > LS_SUBJECT_LOADED) {
        fprintf(file, "%s.%c", axes[e->subject - LS_SUBJECT_TID], 'x' + (char)e->index);
    } else {
        fprintf(file, "param %d", e->index);
        if (e->offset > 0) fprintf(file, "+%lld", (long long)e->offset);
        if (e->subject == LS_SUBJECT_LOADED) fputs("[]", file);
    }
}

/* How parameters are called where a name was not found. */
static void tell_names(FILE *file, const struct seen *s, const char *name) {
    char hint[LS_CLOSEST_HINT_MAX];
    ls_closest closest = {0};
    for (int64_t i = 0; i < s->n_names; i++) ls_closest_try(&closest, name, (int64_t)strlen(name), s->names[i]);
    fputs(ls_closest_hint(hint, &closest, ""), file);
    if (s->n_names > 0) {
        fprintf(file, "; parameters there are called %s", s->names[0]);
        for (int64_t i = 1; i < s->n_names; i++) fprintf(file, ", %s", s->names[i]);
    } else if (s->n_numbered > 0) {
        fprintf(
            file,
            "; parameters there have numbers and no names: a line `param N = %.80s` gives number N, from 0, this name, "
            "`param N[] = %.80s` what is read through it",
            name, name);
    }
}

/* Sections without a kernel, on one line. */
static void tell_sections(FILE *file, const ls_ranges *r) {
    const char *last = NULL;
    int64_t n = 0;
    for (int64_t i = 0; i < r->n; i++) {
        const entry *e = &r->entries[i];
        if (e->file == NULL || e->section == NULL || e->has_kernel) continue;
        if (last != NULL && strcmp(last, e->section) == 0) continue;
        last = e->section;
        if (n < LISTED_MAX)
            fprintf(file, "%s[%.200s]", n == 0 ? "ranges of kernels that were not audited: " : ", ", last);
        n++;
    }
    if (n > LISTED_MAX) fprintf(file, " and %lld more", (long long)(n - LISTED_MAX));
    if (n > 0) fputc('\n', file);
}

/* Names that no file declared come from a model's configuration; one that is read is enough. */
static void tell_model_unused(FILE *file, const ls_ranges *r) {
    int64_t n = 0;
    for (int64_t i = 0; i < r->n; i++) {
        if (r->entries[i].file != NULL) continue;
        if (r->entries[i].is_used) return;
        n++;
    }
    if (n > 0)
        fputs(
            "--for: no parameter of these kernels has a name of a model's sizes; a file of --ranges gives them by "
            "number, counted from 0 (param 4 = slot_stride)\n",
            file);
}

void ls_ranges_tell_unused(FILE *file, const ls_ranges *r) {
    int64_t reported = 0;
    tell_model_unused(file, r);
    for (int64_t i = 0; i < r->n; i++) {
        const entry *e = &r->entries[i];
        if (e->file == NULL || e->is_used || (e->section != NULL && !e->has_kernel)) continue;
        if ((!e->is_subject && strcmp(e->name, "others") == 0) || reported++ >= LISTED_MAX) continue;
        fprintf(file, "%s:%lld: ", e->file, (long long)e->line);
        tell_subject(file, e);
        fputs(" is nothing that these kernels read", file);
        if (!e->is_subject) tell_names(file, r->seen, e->name);
        fputc('\n', file);
    }
    if (reported > LISTED_MAX) fprintf(file, "%lld more lines are about nothing\n", (long long)(reported - LISTED_MAX));
    tell_sections(file, r);
}

/* ---- what is declared ---- */

ls_declared ls_ranges_find(const ls_ranges *r, const ls_range_query *q) {
    const ls_range_subject subject = q->subject;
    ls_declared out = {0};
    if (r == NULL || r->n == 0) return out;
    if (subject == LS_SUBJECT_THREADS) see_kernel(r, q->kernel, q->kernel_bytes); /* asked for of every kernel */
    if (subject <= LS_SUBJECT_LOADED && q->parameter_name != NULL) see_name(r->seen, q->parameter_name, q->name_bytes);
    find_subject(r, &out, q);
    if (!out.has_range && (subject == LS_SUBJECT_CTAID || subject == LS_SUBJECT_TID)) { /* an id ends below the size */
        ls_range_query of_size = *q;
        ls_declared size = {0};
        of_size.subject = subject == LS_SUBJECT_CTAID ? LS_SUBJECT_NCTAID : LS_SUBJECT_NTID;
        find_subject(r, &size, &of_size);
        if (size.has_range && size.range.high > 0) {
            out.has_range = true;
            out.range = ls_range_of(0, size.range.high - 1);
        }
    }
    if (out.has_range && out.name != NULL) /* its line is about something, too */
        (void)find_name(r, out.name, (int32_t)strlen(out.name), q->kernel, q->kernel_bytes);
    if (out.has_range) return out;
    const entry *others = subject > LS_SUBJECT_LOADED ? NULL : find_name(r, "others", 6, q->kernel, q->kernel_bytes);
    const bool by_name =
        out.name == NULL && q->parameter_name != NULL && subject == LS_SUBJECT_PARAMETER && q->offset == 0;
    const entry *e = NULL;
    if (out.name != NULL) e = find_name(r, out.name, (int32_t)strlen(out.name), q->kernel, q->kernel_bytes);
    if (by_name) e = find_name(r, q->parameter_name, q->name_bytes, q->kernel, q->kernel_bytes);
    if (e == NULL && others != NULL) {
        out.is_other = true;
        out.range = others->range;
    }
    if (e == NULL) return out;
    if (out.name == NULL) out.name = e->name;
    out.has_range = true;
    out.range = e->range;
    return out;
}
