/* Recorded hashes (FNV-1a) of results of the ops with state. They change only with LS_NUMERICS_VERSION; the programs that
 * compare them print the hashes that they find. */
#ifndef LS_TESTS_GOLDEN_STATE_H
#define LS_TESTS_GOLDEN_STATE_H

#include <stdint.h>

typedef struct golden {
    uint64_t out, state;
} golden;

static const golden golden_scan[] = {
    {0x8b870c58b8b3aac3, 0x49e627bd3d213d0f},
    {0xea81735b313ffb13, 0xe4a76f9448f2091b},
    {0x3ed1de8e29bdabe9, 0x937f5917bc9a4bcf},
    {0x345e58326e962c44, 0x7d25a174a0128671},
};
static const golden golden_conv1d[] = {
    {0xf5ec4b9b5d6c4360, 0xa7ea9828a85c4f4a},
    {0xf61a7fa3d5bf4ab1, 0xddc9146d441f309f},
    {0x325bfe5709a08c70, 0xae3fd9c4ee7b8688},
    {0xb4e065badff1d418, 0xf794d3d638488bb1},
};

#endif
