/* Weights that come as changes (load/changes.h): they become whole weights in a temporary directory, made of those that
 * are served, and are then served like any other. The directory has what it was made of beside the weights, and stays
 * until the next weights are served: they are what the next changes begin with. */
#ifndef LS_SERVE_SERVE_CHANGES_H
#define LS_SERVE_SERVE_CHANGES_H

#include "base/status.h"

typedef struct ls_remade ls_remade;

/* directory: the changes. served: where the weights lie that are served; made: what made them, or NULL. *is_other: the
 * changes begin with other weights, or those that are served can no longer be read. */
ls_status ls_remade_make(ls_remade **out, const char *directory, const char *served, const ls_remade *made,
                         bool *is_other, ls_error *err);
const char *ls_remade_directory(const ls_remade *remade);
/* Removes the directory, where others keep what was in it; what is known of the weights stays. */
void ls_remade_drop_files(ls_remade *remade);
void ls_remade_free(ls_remade *remade); /* with the directory; accepts NULL */

#endif
