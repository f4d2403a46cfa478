/* Models made from a configuration for one test. The file that includes this defines _GNU_SOURCE. */
#ifndef LS_TESTS_FRESH_H
#define LS_TESTS_FRESH_H

#include <stdlib.h>

#include "harness.h"
#include "model/architectures.h"
#include "model/init.h"

/* Mamba alone, bf16 weights, sizes that are no multiple of a step of mma16. */
#define FRESH_MAMBA(tied)                                                                                       \
    "{\"architectures\":[\"MambaForCausalLM\"],\"model_type\":\"mamba\",\"dtype\":\"bfloat16\","                \
    "\"vocab_size\":61,\"hidden_size\":36,\"num_hidden_layers\":2,\"intermediate_size\":50,\"state_size\":5,"   \
    "\"conv_kernel\":3,\"time_step_rank\":7,\"use_bias\":false,\"use_conv_bias\":true,\"hidden_act\":\"silu\"," \
    "\"layer_norm_epsilon\":1e-05,\"residual_in_fp32\":true,\"rescale_prenorm_residual\":false,"                \
    "\"tie_word_embeddings\":" tied ",\"bos_token_id\":1,\"eos_token_id\":2,\"pad_token_id\":0}"

/* A model of this config.json with fresh weights in a directory of its own, which remove_model takes away; directory is
 * a template of mkdtemp. */
static inline void fresh_model(char directory[], const char *config) {
    char path[64];
    ls_model_config c;
    ls_error err;
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/config.json", directory);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(config, file) >= 0);
    assert_int_equal(fclose(file), 0);
    assert_ok(ls_model_config_open(&c, directory, &err), err);
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    assert_ok(ls_model_init(path, &c, 3, 0.0, 1, &err), err);
}

static inline void remove_model(const char *directory) {
    char command[96];
    snprintf(command, sizeof command, "rm -r %s", directory);
    assert_int_equal(system(command), 0);
}

#endif
