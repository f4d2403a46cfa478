/* Files and directories that survive a crash: every write is checked and synced to the device before anything counts on
 * it, and a directory's own entries are synced as well. A thing that must appear whole is made under another name and
 * renamed. Errors name the path. */
#ifndef LS_BASE_DURABLE_H
#define LS_BASE_DURABLE_H

#include "base/status.h"

/* A file under construction. path is borrowed. */
typedef struct ls_durable {
    int fd;
    const char *path;
} ls_durable;

/* The file must not exist yet. */
ls_status ls_durable_create(ls_durable *out, const char *path, ls_error *err);
ls_status ls_durable_write(const ls_durable *file, const void *data, int64_t bytes, ls_error *err);
/* One that somebody created, to write into places of it. */
ls_status ls_durable_open(ls_durable *out, const char *path, ls_error *err);
ls_status ls_durable_write_at(const ls_durable *file, const void *data, int64_t bytes, int64_t place, ls_error *err);
/* Syncs where status is LS_OK, and closes whatever status is; returns the first failure. */
ls_status ls_durable_close(ls_durable *file, ls_status status, ls_error *err);
/* All three at once. */
ls_status ls_durable_file(const char *path, const void *data, int64_t bytes, ls_error *err);

/* LS_OK also where the directory is there already. Its parent must exist. */
ls_status ls_directory_make(const char *path, ls_error *err);
/* Makes what was created, renamed and removed in the directory lasting. */
ls_status ls_directory_sync(const char *path, ls_error *err);
/* Removes a directory that holds files only, and these. */
ls_status ls_directory_remove(const char *path, ls_error *err);
/* Names in the directory, without . and .., in byte order; each is released with free(), and so is the list. */
ls_status ls_directory_list(char ***names, int64_t *n, const char *path, ls_error *err);
void ls_names_free(char **names, int64_t n);

/* Makes the entry of a file or directory in the one above it lasting, where that one can be asked. */
ls_status ls_entry_sync(const char *path, ls_error *err);
/* The new name lasts when this returns, and the old one is gone for good. */
ls_status ls_path_rename(const char *from, const char *to, ls_error *err);

/* Opens the directory and keeps others that do the same out until *fd is closed. */
ls_status ls_directory_lock(int *fd, const char *path, ls_error *err);
void ls_directory_unlock(int fd); /* accepts -1 */

#endif
