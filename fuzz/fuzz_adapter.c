/* Any bytes as an adapter_config.json. What is accepted must be in range. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "load/adapter_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    ls_adapter_config config;
    ls_error err;
    if (ls_adapter_config_parse(&config, (const char *)data, (int64_t)n_bytes, "input", &err) != LS_OK) {
        if (config.base != NULL || strstr(err.text, "input") != err.text) abort();
        return 0;
    }
    if (config.rank < 1 || config.rank > 1024 || !isfinite(config.scale)) abort();
    free(config.base);
    return 0;
}
