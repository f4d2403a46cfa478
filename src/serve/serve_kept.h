/* Weights that --state names, kept beside its file: STATE.weights/VERSION, a directory of links to the files that were
 * served, or of copies where the file system is another one. It stays when the trainer removes its own directory. What
 * the files were stands in the state file: one that was written over in place is found out at the next start. */
#ifndef LS_SERVE_SERVE_KEPT_H
#define LS_SERVE_SERVE_KEPT_H

#include "json/json_node.h"
#include "json/json_out.h"

/* Keeps the weights of `directory` as this version; it is complete when it has its name. *out, released with free(). */
ls_status ls_kept_make(char **out, const char *state_file, const char *directory, uint64_t version, ls_error *err);
/* Keeps what else makes a directory's weights a model in another directory: all of its files that a model is opened
 * from, but for the weights. */
ls_status ls_kept_others(const char *kept, const char *directory, ls_error *err);
/* Names, sizes and times of a kept directory's files, as an array of an open object, and whether they are still those.
 */
ls_status ls_kept_write(ls_json_out *json, const char *key, const char *path, ls_error *err);
ls_status ls_kept_check(const ls_node *files, const char *path, ls_error *err);
/* Removes all other kept versions. */
void ls_kept_leave(const char *state_file, const char *path);

#endif
