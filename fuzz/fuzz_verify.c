/* A completion and an answer, split at the first NUL, for every verifier: the schema and the pattern are the input's
 * own. A reward is 0 or 1, or there is none and a reason. */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "rl/verify.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    static ls_verify *verifiers[5];
    const uint8_t *nul = n_bytes > 0 ? memchr(data, 0, n_bytes) : NULL;
    const size_t n = nul == NULL ? n_bytes : (size_t)(nul - data), m = nul == NULL ? 0 : n_bytes - n - 1;
    char *completion = malloc(n + 1), *answer = malloc(m + 1);
    /* Texts are UTF-8 where they come from. */
    if (completion != NULL && answer != NULL && ls_utf8_valid(data, (int64_t)n) &&
        (m == 0 || ls_utf8_valid(nul + 1, (int64_t)m))) {
        if (n > 0) memcpy(completion, data, n);
        if (m > 0) memcpy(answer, nul + 1, m);
        completion[n] = answer[m] = '\0';
        for (int i = 0; i < 5; i++) {
            ls_reward_result r = {0};
            ls_error err;
            if (verifiers[i] == NULL && ls_verify_open(&verifiers[i], (ls_verify_kind)i, NULL, NULL, &err) != LS_OK)
                abort();
            for (int any = 0; any < 2; any++) {
                if (ls_verify_judge(verifiers[i], (ls_reply){completion, (int64_t)n}, (ls_reply){answer, (int64_t)m},
                                    any == 1, &r, &err) != LS_OK)
                    abort();
                if (r.ok ? r.reward < 0 || r.reward > 1 : r.error[0] == '\0') abort();
            }
        }
    }
    free(completion);
    free(answer);
    return 0;
}
