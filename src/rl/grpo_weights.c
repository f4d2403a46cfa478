/* Weights on their way to who draws with them: what arrived is used when every tensor has the digest that it was sent
 * with. */
#include "base/fnv.h"
#include "rl/grpo_state.h"

static ls_status digest_of(uint64_t *out, const ls_parameters *weights, int64_t i, ls_error *err) {
    const ls_parameter *p = &weights->list[i];
    *out = LS_FNV_START;
    return ls_memory_digest(weights->device, out, ls_parameter_value(p), p->n_elements * ls_dtype_bytes(p->dtype), err);
}

ls_status ls_grpo_weights_digests(const ls_parameters *weights, uint64_t *digests, ls_error *err) {
    for (int64_t i = 0; i < weights->n; i++) LS_TRY(digest_of(&digests[i], weights, i, err));
    return LS_OK;
}

ls_status ls_grpo_weights_arrive(ls_parameters *weights, const uint64_t *sent, ls_error *err) {
    for (int64_t i = 0; i < weights->n; i++) {
        uint64_t arrived;
        LS_TRY(digest_of(&arrived, weights, i, err));
        if (arrived != sent[i])
            return LS_FAIL(err, LS_ERR_DEVICE, "lag: %s of digest %016llx arrived as %016llx",
                           weights->list[i].slot.name, (unsigned long long)sent[i], (unsigned long long)arrived);
    }
    return ls_parameters_store(weights, err);
}
