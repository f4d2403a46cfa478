/* The one reading and check of sizes of Mamba-2 mixers. */
#include "model/mamba2_sizes.h"

#include <math.h>
#include <stdio.h>

#include "load/config_fields.h"
#include "op/ssd.h"

#define COUNT(array) ((int64_t)(sizeof(array) / sizeof(array)[0]))

ls_status ls_mamba2_read_head_dim(int64_t *out, const struct json_t *config, int64_t n_heads, int64_t inner,
                                  ls_error *err) {
    if (inner % n_heads != 0)
        return LS_FAIL(err, LS_ERR_FORMAT, "mamba_n_heads: %lld does not divide mamba_expand x hidden_size %lld",
                       (long long)n_heads, (long long)inner);
    LS_TRY(ls_field_read_auto(out, config, "mamba_d_head", inner / n_heads, err));
    if (*out * n_heads != inner)
        return LS_FAIL(err, LS_ERR_FORMAT, "mamba_n_heads x mamba_d_head: %lld is not mamba_expand x hidden_size %lld",
                       (long long)(*out * n_heads), (long long)inner);
    return LS_OK;
}

static ls_status check_tensors(const ls_mamba2_sizes *s, int64_t inner, int64_t conv, ls_error *err) {
    const ls_field_product products[] = {
        {"rows of in_proj x hidden_size", {inner + conv + s->n_heads, s->hidden, 1, 1}},
        {"states of a slot", {inner, s->n_states, 1, 1}},
        {"channels of the convolution x its kernel", {conv, s->d_conv, 1, 1}},
    };
    return ls_field_check_products(products, COUNT(products), err);
}

ls_status ls_mamba2_check_sizes(const ls_mamba2_sizes *s, ls_error *err) {
    char inner_name[120], states_name[120];
    const ls_field_product products[] = {{inner_name, {s->n_heads, s->head_dim, 1, 1}},
                                         {states_name, {s->n_groups, s->n_states, 1, 1}}};
    const ls_ssd_shape shape = {.n_heads = s->n_heads,
                                .head_dim = s->head_dim,
                                .n_groups = s->n_groups,
                                .n_states = s->n_states,
                                .dt_max = INFINITY};
    snprintf(inner_name, sizeof inner_name, "%s x %s", s->heads_name, s->head_dim_name);
    snprintf(states_name, sizeof states_name, "n_groups x %s", s->states_name);
    LS_TRY(ls_field_check_products(products, COUNT(products), err));
    {
        const int64_t inner = s->n_heads * s->head_dim, states = s->n_groups * s->n_states;
        const ls_field_rows parts[] = {{inner_name, inner}, {states_name, states}};
        const ls_field_rows rows[] = {{"rows of in_proj", 2 * inner + 2 * states + s->n_heads}};
        LS_TRY(ls_field_check_rows(parts, COUNT(parts), err));
        LS_TRY(ls_field_check_rows(rows, COUNT(rows), err));
        LS_TRY(ls_ssd_check_shape("Mamba-2", &shape, err));
        return check_tensors(s, inner, inner + 2 * states, err);
    }
}
