/* Files: reads of parts, bounded whole reads, line reading, and output that appears under its name only when complete.
 */
#ifndef LS_BASE_FILE_H
#define LS_BASE_FILE_H

#include <stdio.h>

#include "base/status.h"

/* What tells whether a file is still the one it was. */
typedef struct ls_file_id {
    int64_t bytes;
    uint64_t inode;
    int64_t changed_s, changed_ns; /* time of the last change of content */
} ls_file_id;

/* Of a regular file. */
ls_status ls_file_identify(ls_file_id *out, const char *path, ls_error *err);
/* LS_OK when path is still that file, of the same size and time of last change. Others may write to a file while it is
 * read part by part: only this makes the parts content of one time. */
ls_status ls_file_check(const ls_file_id *id, const char *path, ls_error *err);
/* Reads bytes [at, at + bytes); a file that ends before is an error. */
ls_status ls_file_read_at(void *out, const char *path, int64_t at, int64_t bytes, ls_error *err);

/* Whole file as NUL-terminated text (the NUL is not counted in *bytes), released with free(). A file larger than
 * bytes_max is an error that names both sizes. */
ls_status ls_file_read(char **out, int64_t *bytes, const char *path, int64_t bytes_max, ls_error *err);

/* A file for reading line by line. A named pipe is an error, where opening it would wait for ever; descriptors that are
 * open already (/dev/fd/N) are read whatever they are. Released with fclose(). */
ls_status ls_file_stream(FILE **out, const char *path, ls_error *err);

bool ls_file_exists(const char *path);
/* "directory/name" into out [room]; an error where that does not fit. */
ls_status ls_path_join(char *out, int64_t room, const char *directory, const char *name, ls_error *err);

/* Reads the next line, without its newline, into a buffer that *line owns (free() at the end); *bytes is its length.
 * *more is false at the end of the file. A line longer than bytes_max is an error. */
ls_status ls_line_read(FILE *file, char **line, int64_t *cap, int64_t *bytes, int64_t bytes_max, bool *more,
                       ls_error *err);

/* Whether a line has spaces, tabs and carriage returns alone, or nothing. */
bool ls_line_is_blank(const char *line, int64_t bytes);

/* Output that is written to a temporary name beside path and renamed on commit, so that a failure leaves no partial
 * file. Path "-" or NULL is standard output, which cannot be taken back. */
typedef struct ls_output ls_output;

ls_status ls_output_open(ls_output **out, const char *path, ls_error *err);
FILE *ls_output_stream(ls_output *output);
/* Whether it appears under a name when it is complete: it is neither standard output nor a device or pipe. */
bool ls_output_is_file(const ls_output *output);
/* Whether every write so far went well: asked between the parts of a long output, so that it ends when its reader has
 * gone. */
ls_status ls_output_check(ls_output *output, ls_error *err);
/* Flushes, syncs and renames. The handle is released whatever the result. */
ls_status ls_output_commit(ls_output *output, ls_error *err);
/* Removes the temporary file. NULL is accepted. */
void ls_output_abandon(ls_output *output);

#endif
