/* Changes of weights for a server, of two directories. */
#include "api/api_state.h"
#include "base/durable.h"
#include "load/changes.h"

static ls_status make_changes(const char *base, const char *next, const char *directory, int64_t *bytes,
                              ls_error *err) {
    if (base == NULL || next == NULL || directory == NULL || bytes == NULL)
        return LS_FAIL(err, LS_ERR_ARG, "changes: base, next, directory or bytes is NULL");
    LS_TRY(ls_directory_make(directory, err));
    LS_TRY(ls_changes_between(base, next, directory, bytes, err));
    return ls_directory_sync(directory, err);
}

ls_status lockstep_changes_write(const char *base, const char *next, const char *directory, int64_t *bytes,
                                 ls_error *err) {
    LS_API_RETURN(make_changes(base, next, directory, bytes, err));
}
