/* URLs with credentials in them: what may be written down or said, and how what was written down is used again. */
#ifndef LS_BASE_URL_H
#define LS_BASE_URL_H

#include <stddef.h>

#include "base/status.h"

/* The environment variable with "user:password" for URLs whose own was not kept. */
#define LS_URL_VARIABLE "LOCKSTEP_URL_USERINFO"

/* Any text, with REDACTED in the place of user and password of every URL in it, and of what a query gives for names
 * that sound like keys (key, token, secret, password, auth, signature). What does not fit ends early; *out is a text in
 * any case. */
void ls_url_redact(char *out, size_t room, const char *text);
/* A URL whose user and password are REDACTED gets those of LS_URL_VARIABLE; others stay as they are. Where that is not
 * set, or another part is REDACTED, the error says what to do. `name` is the option's. */
ls_status ls_url_complete(char *out, size_t room, const char *url, const char *name, ls_error *err);

#endif
