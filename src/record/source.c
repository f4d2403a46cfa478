/* A gzip file is a stream of stdio whose reads unpack another one; why a read failed is kept beside it. */
#define _GNU_SOURCE
#include "record/source.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/other_forms.h"

#define MAGIC 0x1f            /* the first byte of every member, which no text in JSON has; zlib checks the second */
#define GZIP_WINDOW (15 + 16) /* zlib: any window, members of gzip alone */
#define FREE_BYTES ((int64_t)64 << 20)
#define TIMES_MAX 200
enum { CHUNK_BYTES = 1 << 16 };

typedef struct unpacker {
    FILE *packed;
    z_stream z;
    int64_t n_read, n_written; /* bytes in front of z.next_in and z.next_out */
    bool in_member;
    ls_error failure; /* of the read that failed */
    uint8_t chunk[CHUNK_BYTES];
} unpacker;

struct ls_source {
    FILE *file;
    unpacker *gzip; /* NULL where the file is the text */
    FILE *unpacked; /* what comes out of it */
    int64_t line;   /* the last that was read, from 1 */
    char name[];
};

/* ---- unpacking ---- */

static ssize_t fail_unpacking(unpacker *u, ls_status status, const char *why) {
    LS_FAIL(&u->failure, status, "gzip, byte %lld: %s", (long long)u->n_read, why);
    errno = EIO;
    return -1;
}

static ssize_t refuse_packed(unpacker *u, const char *why) { return fail_unpacking(u, LS_ERR_FORMAT, why); }

/* More packed bytes, unless the file is at its end. */
static ssize_t refill(unpacker *u) {
    u->z.next_in = u->chunk;
    u->z.avail_in = (uInt)fread(u->chunk, 1, sizeof u->chunk, u->packed);
    return ferror(u->packed) ? fail_unpacking(u, LS_ERR_IO, strerror(errno)) : (ssize_t)u->z.avail_in;
}

static ssize_t begin_member(unpacker *u) {
    if (u->z.next_in[0] != MAGIC) return refuse_packed(u, "what follows the compressed data is no further member");
    u->in_member = true;
    return inflateReset(&u->z) == Z_OK ? 0 : refuse_packed(u, "cannot begin a member");
}

/* One step into the bytes that z has room for. */
static ssize_t unpack_step(unpacker *u) {
    const uInt in = u->z.avail_in, out = u->z.avail_out;
    const int result = inflate(&u->z, Z_NO_FLUSH);
    u->n_read += in - u->z.avail_in;
    u->n_written += out - u->z.avail_out;
    u->in_member = result != Z_STREAM_END;
    if (result != Z_OK && result != Z_STREAM_END) return refuse_packed(u, u->z.msg != NULL ? u->z.msg : zError(result));
    if (u->n_written > FREE_BYTES && u->n_written / TIMES_MAX > u->n_read)
        return refuse_packed(u, "unpacks to more than 200 times its size");
    return 0;
}

static ssize_t read_unpacked(void *cookie, char *out, size_t bytes) {
    unpacker *u = cookie;
    const size_t room = bytes < CHUNK_BYTES ? bytes : CHUNK_BYTES;
    if (u->failure.status != LS_OK) return -1; /* stdio reads on behind an error */
    u->z.next_out = (Bytef *)out;
    u->z.avail_out = (uInt)room;
    while (u->z.avail_out == room && room > 0) {
        if (u->z.avail_in == 0) {
            const ssize_t got = refill(u);
            if (got < 0) return -1;
            if (got == 0) return u->in_member ? refuse_packed(u, "the file ends within the compressed data") : 0;
        }
        if (!u->in_member && begin_member(u) != 0) return -1;
        if (unpack_step(u) != 0) return -1;
    }
    return (ssize_t)(room - u->z.avail_out);
}

static void unpacker_free(unpacker *u) {
    if (u == NULL) return;
    inflateEnd(&u->z);
    free(u);
}

/* Puts an unpacker between the file and who reads it. */
static ls_status unpack(ls_source *source, ls_error *err) {
    const cookie_io_functions_t functions = {.read = read_unpacked};
    unpacker *u = calloc(1, sizeof *u);
    if (u == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "%s: cannot unpack", source->name);
    source->gzip = u;
    u->packed = source->file;
    if (inflateInit2(&u->z, GZIP_WINDOW) != Z_OK || (source->unpacked = fopencookie(u, "r", functions)) == NULL ||
        setvbuf(source->unpacked, NULL, _IOFBF, CHUNK_BYTES) != 0)
        return LS_FAIL(err, LS_ERR_NOMEM, "%s: cannot unpack", source->name);
    return LS_OK;
}

/* ---- sources ---- */

ls_status ls_text_head(char *text, int64_t *bytes, ls_error *err) {
    const char *is = ls_foreign_lines(text, *bytes);
    if (is != NULL) return LS_FAIL(err, LS_ERR_UNSUPPORTED, "this %s", is);
    if (*bytes < 3 || memcmp(text, "\xef\xbb\xbf", 3) != 0) return LS_OK;
    *bytes -= 3;
    memmove(text, text + 3, (size_t)*bytes + 1);
    return LS_OK;
}

/* Of a file that is open, or none if that failed with `status`. */
static ls_status begin_source(ls_source **out, FILE *file, const char *name, ls_status status, ls_error *err) {
    const size_t bytes = strlen(name) + 1;
    ls_source *source = NULL;
    int first;
    *out = NULL;
    if (status != LS_OK) return status;
    source = calloc(1, sizeof *source + bytes);
    if (source == NULL) {
        if (file != stdin) fclose(file);
        return LS_FAIL(err, LS_ERR_NOMEM, "%s: cannot read", name);
    }
    memcpy(source->name, name, bytes);
    source->file = file;
    first = getc(file);
    if (first != EOF) ungetc(first, file);
    if (first == MAGIC) status = unpack(source, err);
    if (status == LS_OK)
        *out = source;
    else
        ls_source_close(source);
    return status;
}

ls_status ls_source_open(ls_source **out, const char *path, ls_error *err) {
    FILE *file = stdin;
    if (strcmp(path, "-") == 0) return begin_source(out, file, "standard input", LS_OK, err);
    return begin_source(out, file, path, ls_file_stream(&file, path, err), err);
}

ls_status ls_source_open_bytes(ls_source **out, void *data, int64_t bytes, const char *name, ls_error *err) {
    FILE *file = fmemopen(data, bytes > 0 ? (size_t)bytes : 1, "r");
    *out = NULL;
    if (file == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "%s: cannot read from memory: %s", name, strerror(errno));
    return begin_source(out, file, name, LS_OK, err);
}

const char *ls_source_name(const ls_source *source) { return source->name; }

static FILE *text_of(const ls_source *source) { return source->gzip != NULL ? source->unpacked : source->file; }

/* What went wrong in unpacking is known better than by who reads what comes out. */
static ls_status explain_unpacking(const ls_source *source, ls_status status, ls_error *err) {
    if (source->gzip == NULL || source->gzip->failure.status == LS_OK) return status;
    if (err != NULL) *err = source->gzip->failure;
    return source->gzip->failure.status;
}

ls_status ls_source_line(ls_source *source, char **line, int64_t *cap, int64_t *bytes, int64_t bytes_max, bool *more,
                         ls_error *err) {
    ls_status status = ls_line_read(text_of(source), line, cap, bytes, bytes_max, more, err);
    source->line++;
    if (status == LS_OK && source->line == 1 && *more) return ls_text_head(*line, bytes, err);
    if (status == LS_OK) return LS_OK;
    status = explain_unpacking(source, status, err);
    ls_error_prefix(err, "line %lld", (long long)source->line);
    return status;
}

void ls_source_close(ls_source *source) {
    if (source == NULL) return;
    if (source->unpacked != NULL) fclose(source->unpacked);
    unpacker_free(source->gzip);
    if (source->file != stdin) fclose(source->file);
    free(source);
}

static ls_status read_all(ls_source *source, char **text, int64_t *bytes, int64_t bytes_max, ls_error *err) {
    FILE *file = text_of(source);
    int64_t cap = 0, n = 0;
    size_t got = 1;
    for (; got > 0 && n <= bytes_max; n += (int64_t)got) {
        LS_TRY(ls_array_grow((void **)text, &cap, n + CHUNK_BYTES + 1, 1, source->name, err));
        got = fread(*text + n, 1, CHUNK_BYTES, file);
    }
    if (ferror(file))
        return explain_unpacking(source, LS_FAIL(err, LS_ERR_IO, "cannot read: %s", strerror(errno)), err);
    if (n > bytes_max) return LS_FAIL(err, LS_ERR_FORMAT, "more than %lld bytes of text", (long long)bytes_max);
    (*text)[n] = '\0';
    *bytes = n;
    return ls_text_head(*text, bytes, err);
}

ls_status ls_source_read(char **out, int64_t *bytes, const char *path, int64_t bytes_max, ls_error *err) {
    ls_file_id regular;
    ls_source *source = NULL;
    ls_status status;
    *out = NULL;
    *bytes = 0;
    LS_TRY(ls_file_identify(&regular, path, err));
    LS_TRY(ls_source_open(&source, path, err));
    status = read_all(source, out, bytes, bytes_max, err);
    ls_source_close(source);
    if (status == LS_OK) return LS_OK;
    ls_error_prefix(err, "%s", path);
    free(*out);
    *out = NULL;
    return status;
}
