/* Files: JSON, safetensors, and the configuration. Nothing here computes. */
#ifndef SPEC_READ_H
#define SPEC_READ_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

#include "numbers.h"

static void fail(const char *what, const char *name) {
    fprintf(stderr, "score: %s: %s\n", what, name);
    exit(2);
}

static void *take(size_t n, size_t bytes) {
    void *memory = calloc(n > 0 ? n : 1, bytes);
    if (memory == NULL) fail("out of memory", "calloc");
    return memory;
}

static float *floats(size_t n) { return take(n, sizeof(float)); }

/* ---- JSON: values as a tree ---- */

typedef struct value {
    char kind;  /* '{', '[', '"', '0' for numbers, 't', 'f', 'n' */
    char *text; /* of a string */
    double number;
    char *name; /* of a member */
    struct value *first, *next;
} value;

static const char *skip(const char *s) { return s + strspn(s, " \t\r\n,:"); }

/* Escapes do not occur in names and values that matter here; they are kept as they are. */
static char *parse_text(const char **s) {
    const char *begin = ++*s;
    char *text;
    while (**s != '"') *s += **s == '\\' ? 2 : 1;
    text = take((size_t)(*s - begin) + 1, 1);
    memcpy(text, begin, (size_t)(*s - begin));
    ++*s;
    return text;
}

static value *parse(const char **s) {
    value *v = take(1, sizeof *v), **end = &v->first;
    *s = skip(*s);
    v->kind = **s;
    if (v->kind == '{' || v->kind == '[') {
        for (*s = skip(*s + 1); **s != '}' && **s != ']'; *s = skip(*s)) {
            char *name = v->kind == '{' ? parse_text(s) : NULL;
            *end = parse(s);
            (*end)->name = name;
            end = &(*end)->next;
        }
        ++*s;
    } else if (v->kind == '"') {
        v->text = parse_text(s);
    } else if (v->kind == 't' || v->kind == 'f' || v->kind == 'n') {
        *s += strcspn(*s, ",}] \n");
    } else {
        char *after;
        v->kind = '0';
        v->number = strtod(*s, &after);
        if (after == *s) fail("no JSON", *s);
        *s = after;
    }
    return v;
}

static char *read_file(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    char *data;
    long size;
    if (file == NULL) fail("cannot open", path);
    fseek(file, 0, SEEK_END);
    size = ftell(file);
    rewind(file);
    data = take((size_t)size + 1, 1);
    if (fread(data, 1, (size_t)size, file) != (size_t)size) fail("cannot read", path);
    fclose(file);
    *bytes = (size_t)size;
    return data;
}

/* ---- config.json: fields by their name, or by the names that kinds of models have for them, parted by '|' ---- */

static const value *config;

/* name is not empty. */
static bool is_among(const char *name, const char *names) {
    const size_t n = strlen(name);
    for (const char *at = names; (at = strstr(at, name)) != NULL; at++)
        if ((at == names || at[-1] == '|') && (at[n] == '|' || at[n] == '\0')) return true;
    return false;
}

/* NULL where there is none, or null. */
static const value *field(const value *object, const char *names) {
    for (const value *v = object->first; v != NULL; v = v->next)
        if (is_among(v->name, names) && v->kind != 'n') return v;
    return NULL;
}

/* A number, which may be written as {"__float__": "Infinity"}. */
static double number(const value *v) { return v->kind == '{' ? strtod(v->first->text, NULL) : v->number; }

/* Without a figure for it, NAN, it must be there. */
static double figure(const value *object, const char *names, double otherwise) {
    const value *v = field(object, names);
    if (v == NULL && isnan(otherwise)) fail("no field", names);
    return v != NULL ? number(v) : otherwise;
}

static int64_t count(const char *names, double otherwise) { return (int64_t)figure(config, names, otherwise); }

static bool is_true(const char *names, bool otherwise) {
    const value *v = field(config, names);
    return v != NULL ? v->kind == 't' : otherwise;
}

static bool is_kind(const char *names) { return is_among(field(config, "model_type")->text, names); }

/* ---- tensors ---- */

typedef struct tensor {
    char *name, *type;
    int64_t shape[4], n;
    const unsigned char *data;
} tensor;

static tensor tensors[4096];
static int n_tensors;

/* A safetensors file: eight bytes of length, JSON, data. */
static void read_safetensors(const char *path) {
    size_t bytes;
    char *data = read_file(path, &bytes), *text;
    uint64_t length = 0;
    const char *s;
    for (int i = 7; i >= 0; i--) length = length << 8 | (unsigned char)data[i];
    text = take((size_t)length + 1, 1);
    memcpy(text, data + 8, (size_t)length);
    s = text;
    for (const value *v = parse(&s)->first; v != NULL; v = v->next) {
        tensor *t = &tensors[n_tensors];
        int dim = 0;
        if (strcmp(v->name, "__metadata__") == 0) continue;
        t->name = v->name;
        t->type = field(v, "dtype")->text;
        t->n = 1;
        for (const value *d = field(v, "shape")->first; d != NULL; d = d->next)
            t->n *= t->shape[dim++] = (int64_t)d->number;
        t->data = (unsigned char *)data + 8 + length + (size_t)field(v, "data_offsets")->first->number;
        if (++n_tensors == 4096) fail("too many tensors", path);
    }
}

/* The tensor that has the prefix and then one of these names, parted by '|'; NULL where there is none. */
static const tensor *find(const char *prefix, const char *names) {
    const size_t start = strlen(prefix);
    for (const tensor *t = tensors; t < tensors + n_tensors; t++)
        if (strncmp(t->name, prefix, start) == 0 && is_among(t->name + start, names)) return t;
    return NULL;
}

/* Widened to float32; NULL where there is none. */
static float *vector(const char *prefix, const char *names) {
    const tensor *t = find(prefix, names);
    float *out;
    if (t == NULL) return NULL;
    out = floats((size_t)t->n);
    for (int64_t i = 0; i < t->n; i++) {
        uint32_t word = 0;
        if (strcmp(t->type, "F32") == 0) {
            memcpy(&out[i], t->data + 4 * i, 4);
            continue;
        }
        memcpy(&word, t->data + 2 * i, 2);
        out[i] = strcmp(t->type, "BF16") == 0 ? from_bits(word << 16) : widen_f16((uint16_t)word);
    }
    return out;
}

typedef struct matrix {
    int64_t rows, columns;
    float *w; /* NULL: there is none */
} matrix;

static matrix matrix_of(const char *prefix, const char *names) {
    const tensor *t = find(prefix, names);
    return t == NULL ? (matrix){0} : (matrix){t->shape[0], t->shape[1], vector(prefix, names)};
}

static void read_directory(const char *directory) {
    char path[4096];
    size_t bytes;
    const char *text;
    DIR *entries = opendir(directory);
    if (entries == NULL) fail("cannot open", directory);
    for (const struct dirent *e; (e = readdir(entries)) != NULL;) {
        const char *dot = strrchr(e->d_name, '.');
        if (strncmp(e->d_name, "model", 5) != 0 || dot == NULL || strcmp(dot, ".safetensors") != 0) continue;
        snprintf(path, sizeof path, "%s/%s", directory, e->d_name);
        read_safetensors(path);
    }
    closedir(entries);
    snprintf(path, sizeof path, "%s/config.json", directory);
    text = read_file(path, &bytes);
    config = parse(&text);
}

#endif
