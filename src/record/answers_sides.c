/* Both sides of another trainer's dump, as one. */
#include <inttypes.h>
#include <math.h>

#include "base/mem.h"
#include "record/answers.h"

static ls_status join_sides(ls_dump *out, const ls_record *a, const ls_record *b, int64_t n, const char *name,
                            ls_error *err) {
    int64_t total = 0, at = 0;
    for (int64_t s = 0; s < n; s++) total += a[s].n_completion;
    LS_TRY(ls_array_alloc((void **)&out->offsets, n + 1, sizeof *out->offsets, "sequences", err));
    LS_TRY(ls_array_alloc((void **)&out->lines, n, sizeof *out->lines, "sequences", err));
    LS_TRY(ls_array_alloc((void **)&out->rewards, n, sizeof *out->rewards, "sequences", err));
    LS_TRY(ls_array_alloc((void **)&out->token_ids, total + 1, sizeof *out->token_ids, "tokens", err));
    LS_TRY(ls_array_alloc((void **)&out->mask, total + 1, 1, "tokens", err));
    LS_TRY(ls_array_alloc((void **)&out->rollout, total + 1, sizeof *out->rollout, "tokens", err));
    LS_TRY(ls_array_alloc((void **)&out->trainer, total + 1, sizeof *out->trainer, "tokens", err));
    LS_TRY(ls_array_alloc((void **)&out->advantages, total + 1, sizeof *out->advantages, "tokens", err));
    out->n_sequences = n;
    out->n_tokens = total;
    for (int64_t s = 0; s < n; s++) {
        const int64_t skip = a[s].n_completion - a[s].n_logprobs; /* 1 for whole sequences */
        if (a[s].n_logprobs != b[s].n_logprobs)
            return LS_FAIL(err, LS_ERR_FORMAT,
                           "%.200s: line %" PRId64 ": the sides have %" PRId64 " and %" PRId64 " values", name,
                           a[s].line, a[s].n_logprobs, b[s].n_logprobs);
        out->offsets[s] = at;
        out->lines[s] = a[s].line;
        out->rewards[s] = NAN;
        for (int64_t i = 0; i < a[s].n_completion; i++, at++) {
            const int64_t k = i - skip;
            const bool r = k >= 0 && !a[s].logprob_missing[k], t = k >= 0 && !b[s].logprob_missing[k];
            out->token_ids[at] = a[s].completion_ids[i];
            out->rollout[at] = r ? a[s].logprobs[k] : NAN;
            out->trainer[at] = t ? b[s].logprobs[k] : NAN;
            out->advantages[at] = NAN;
            out->mask[at] = r && t;
            out->n_masked += r && t;
            out->zero_rollout += r && t && a[s].logprobs[k] == 0.0f;
            out->zero_trainer += r && t && b[s].logprobs[k] == 0.0f;
        }
    }
    out->offsets[n] = at;
    return LS_OK;
}

ls_status ls_answers_dump(ls_dump *out, const char *text, int64_t bytes, const char *name, ls_answer_format format,
                          ls_error *err) {
    ls_record *a = NULL, *b = NULL;
    int64_t n_a = 0, n_b = 0;
    ls_status status;
    *out = (ls_dump){0};
    if (format < LS_ANSWER_VERL)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%.200s: %s has one side", name, ls_answer_format_names[format]);
    LS_TRY_DONE(ls_answers_parse(&a, &n_a, text, bytes, name, format, false, err));
    LS_TRY_DONE(ls_answers_parse(&b, &n_b, text, bytes, name, format, true, err));
    LS_ASSERT(n_a == n_b, "%lld and %lld sequences", (long long)n_a, (long long)n_b);
    status = join_sides(out, a, b, n_a, name, err);
done:
    ls_records_free(a, n_a);
    ls_records_free(b, n_b);
    if (status != LS_OK) ls_dump_deinit(out);
    return status;
}
