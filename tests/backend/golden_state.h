/* Recorded hashes (FNV-1a) of results of the ops with state. They change only with LS_NUMERICS_VERSION; the programs
 * that compare them print the hashes that they find. */
#ifndef LS_TESTS_GOLDEN_STATE_H
#define LS_TESTS_GOLDEN_STATE_H

#include <stdint.h>

/* out: rows of tokens. rest: states, or gradients of parameters. */
typedef struct golden {
    uint64_t out, rest;
} golden;

static const golden golden_scan[] = {
    {0x8b870c58b8b3aac3, 0x49e627bd3d213d0f}, {0xea81735b313ffb13, 0xe4a76f9448f2091b},
    {0x3ed1de8e29bdabe9, 0x937f5917bc9a4bcf}, {0x174b0315e378e9f5, 0x62fdd2f73492717c},
    {0x6e4c69125dbd4829, 0x2a8515c7e64f1fd8},
};
static const golden golden_conv1d[] = {
    {0xf5ec4b9b5d6c4360, 0xa7ea9828a85c4f4a},
    {0xf61a7fa3d5bf4ab1, 0xddc9146d441f309f},
    {0x325bfe5709a08c70, 0xae3fd9c4ee7b8688},
    {0xb4e065badff1d418, 0xf794d3d638488bb1},
};

static const golden golden_scan_backward[] = {
    {0xbf7477b3a02c533c, 0xe68bd2b5a25b5cf5}, {0xfbb8b4d756183383, 0xd9a17569a48023d2},
    {0xe3593f2d660e2497, 0xc8aa1326b2f30894}, {0x4fbdb8b056c9fca8, 0xd568f8208a56dacc},
    {0xf2aced290508acea, 0x5e39d74839a7cb33},
};
static const golden golden_conv1d_backward[] = {
    {0x27f6a4ddf341da7f, 0x1c2456763f79c17c},
    {0xd35b03dadb36d572, 0x150aa10acb8375f0},
    {0x53786a80fb9d74cd, 0x526782ca5327f3e7},
    {0x8e20f7c2ddf29f7f, 0xe1c342b877d5e69c},
};

static const golden golden_ssd[] = {{0x1c3cff1740c9eef3, 0xd15d3e542c575eb0}, {0x4dcdf7a6792f1306, 0x2c76950316167089}};
static const golden golden_ssd_backward[] = {{0xa7e3db3dbc7da5ff, 0xf447431d5e12c60b},
                                             {0xfd55cdde850b57a9, 0x8665e36382ba1706}};

static const golden golden_delta[] = {{0x0a2d8906ace4113c, 0xe65e082a12c139fd},
                                      {0x1c8a1815d1375571, 0x698fc458ba6c608a}};
static const golden golden_delta_backward[] = {{0xf04d356c74039188, 0x73e7c6f99a94e620},
                                               {0xee5b06aa5c9ef84a, 0xf871c7f87c7a4cf6}};

#endif
