/* Names of Hugging Face's hub where a path is wanted. Only for the sentences of failures. */
#ifndef LS_BASE_HUB_H
#define LS_BASE_HUB_H

#include <stdbool.h>

enum { LS_HUB_HINT_MAX = 512 };

/* Of a path that is not there and reads as OWNER/NAME, or as a file of a model below it: "; .." with the line that
 * downloads it; else "". */
const char *ls_hub_hint(char out[LS_HUB_HINT_MAX], const char *path);

#endif
