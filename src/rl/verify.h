/* Built-in verifiers: rewards of 0 or 1 for a completion, given an answer.
 *
 *   exact   completion and answer are the same bytes, white space around them aside
 *   number  the completion's number is the answer's, as rationals (rl/number.h). A completion's number is the one
 *           behind its last "####", on that line, else what its last \boxed{..} holds, else its last one. An answer,
 *           behind such a mark or as it is, must be one number and nothing else: anything else is refused when the run
 *           begins
 *   choice  the completion's letter is the answer's. A text's letter is the first one that stands alone behind its last
 *           "answer" (of any case), else its last one that stands alone; A to Z, lower case too where the text is
 *           nothing but the letter and punctuation
 *   regex   the completion has the pattern (PCRE2 syntax), and where the pattern has a group that took part, its text
 * is the answer's, white space aside. Without a pattern of the run's, the answer is the pattern json    the completion,
 * or what stands between its first ``` lines, is one JSON value of the schema (text/json_schema.h). Without a schema of
 * the run's, the answer is the schema */
#ifndef LS_RL_VERIFY_H
#define LS_RL_VERIFY_H

#include "rl/reward.h"

typedef enum ls_verify_kind {
    LS_VERIFY_EXACT,
    LS_VERIFY_NUMBER,
    LS_VERIFY_CHOICE,
    LS_VERIFY_REGEX,
    LS_VERIFY_JSON
} ls_verify_kind;

typedef struct ls_verify ls_verify;

/* pattern: of regex, or NULL or "". schema_path: of json, or NULL or "". */
ls_status ls_verify_open(ls_verify **out, ls_verify_kind kind, const char *pattern, const char *schema_path,
                         ls_error *err);
void ls_verify_close(ls_verify *verify); /* accepts NULL */

/* Whether this answer (text NULL: none) can be judged against. any_of: it is the JSON of a list of texts and numbers,
 * any of which is right; of json, whose answers are schemas, no list is taken. */
ls_status ls_verify_check(const ls_verify *verify, ls_reply answer, bool any_of, ls_error *err);
/* out->ok is false where it cannot, or where a pattern gives up on the completion. Only LS_ERR_NOMEM is returned. */
ls_status ls_verify_judge(const ls_verify *verify, ls_reply completion, ls_reply answer, bool any_of,
                          ls_reward_result *out, ls_error *err);

#endif
