/* The text of a file that may be compressed by gzip, which its first bytes tell and not its name.
 *
 * Compressed text is unpacked as it is read. Members stand one behind another, as gzip allows, and each must agree with
 * its checksum and its length. Refused, with the byte of the file, are data that are damaged or end early, bytes behind
 * the last member, and text that is more than 64 MiB and 200 times as long as what it was unpacked from: records
 * become some ten times as long, what is made to fill a memory a thousand times. */
#ifndef LS_RECORD_SOURCE_H
#define LS_RECORD_SOURCE_H

#include "base/status.h"

typedef struct ls_source ls_source;

/* A file ("-" is standard input), or bytes in memory, which are called name and have to stay. */
ls_status ls_source_open(ls_source **out, const char *path, ls_error *err);
ls_status ls_source_open_bytes(ls_source **out, void *data, int64_t bytes, const char *name, ls_error *err);
/* What errors call it. */
const char *ls_source_name(const ls_source *source);
/* The next line; as ls_line_read (base/file.h). Errors begin with the line. */
ls_status ls_source_line(ls_source *source, char **line, int64_t *cap, int64_t *bytes, int64_t bytes_max, bool *more,
                         ls_error *err);
/* NULL is accepted. */
void ls_source_close(ls_source *source);

/* All of a regular file as NUL-terminated text (the NUL is not counted in *bytes), released with free(). Text that is
 * longer than bytes_max is an error. */
ls_status ls_source_read(char **out, int64_t *bytes, const char *path, int64_t bytes_max, ls_error *err);

/* Of the first bytes of a file of text, behind which there is a NUL: a mark of the order of bytes, which Windows
 * writes in front of UTF-8, is taken away; a format that holds no text (Parquet, zip, pickle, other compression, ..) is
 * refused by its name and with the way out of it. */
ls_status ls_text_head(char *text, int64_t *bytes, ls_error *err);

#endif
