/* The list of shapes. */
#include "model/shapes.h"

#include <stddef.h>
#include <string.h>

#include "base/status.h"

#define JAMBA(layers, period, offset, vocab, hidden, ffn, heads, rank) \
    JAMBA_MOE(layers, period, offset, vocab, hidden, ffn, heads, 1, rank, 1, 1, true)

#define JAMBA_MOE(layers, period, offset, vocab, hidden, ffn, heads, kv_heads, rank, experts, picks, tied) \
    "{\n"                                                                                                  \
    "  \"architectures\": [\"JambaForCausalLM\"],\n"                                                       \
    "  \"attention_dropout\": 0.0,\n"                                                                      \
    "  \"attn_layer_offset\": " #offset                                                                    \
    ",\n"                                                                                                  \
    "  \"attn_layer_period\": " #period                                                                    \
    ",\n"                                                                                                  \
    "  \"bos_token_id\": 1,\n  \"dtype\": \"bfloat16\",\n"                                                 \
    "  \"eos_token_id\": 2,\n  \"expert_layer_offset\": 1,\n"                                              \
    "  \"expert_layer_period\": 2,\n  \"hidden_act\": \"silu\",\n"                                         \
    "  \"hidden_size\": " #hidden                                                                          \
    ",\n"                                                                                                  \
    "  \"initializer_range\": 0.02,\n  \"intermediate_size\": " #ffn                                       \
    ",\n"                                                                                                  \
    "  \"mamba_conv_bias\": true,\n  \"mamba_d_conv\": 4,\n"                                               \
    "  \"mamba_d_state\": 16,\n  \"mamba_dt_rank\": " #rank                                                \
    ",\n"                                                                                                  \
    "  \"mamba_expand\": 2,\n  \"mamba_proj_bias\": false,\n"                                              \
    "  \"max_position_embeddings\": 262144,\n  \"model_type\": \"jamba\",\n"                               \
    "  \"num_attention_heads\": " #heads                                                                   \
    ",\n"                                                                                                  \
    "  \"num_experts\": " #experts ",\n  \"num_experts_per_tok\": " #picks                                 \
    ",\n"                                                                                                  \
    "  \"num_hidden_layers\": " #layers                                                                    \
    ",\n"                                                                                                  \
    "  \"num_key_value_heads\": " #kv_heads                                                                \
    ",\n  \"output_router_logits\": false,\n"                                                              \
    "  \"pad_token_id\": 0,\n  \"rms_norm_eps\": 1e-06,\n"                                                 \
    "  \"router_aux_loss_coef\": 0.001,\n  \"tie_word_embeddings\": " #tied                                \
    ",\n"                                                                                                  \
    "  \"use_cache\": true,\n  \"use_mamba_kernels\": false,\n"                                            \
    "  \"vocab_size\": " #vocab "\n}\n"

#define MAMBA(layers, hidden, inner, rank)                             \
    "{\n"                                                              \
    "  \"architectures\": [\"MambaForCausalLM\"],\n"                   \
    "  \"bos_token_id\": 0,\n  \"conv_kernel\": 4,\n"                  \
    "  \"dtype\": \"bfloat16\",\n  \"eos_token_id\": 0,\n"             \
    "  \"expand\": 2,\n  \"hidden_act\": \"silu\",\n"                  \
    "  \"hidden_size\": " #hidden                                      \
    ",\n"                                                              \
    "  \"initializer_range\": 0.1,\n  \"intermediate_size\": " #inner  \
    ",\n"                                                              \
    "  \"layer_norm_epsilon\": 1e-05,\n  \"model_type\": \"mamba\",\n" \
    "  \"num_hidden_layers\": " #layers                                \
    ",\n"                                                              \
    "  \"pad_token_id\": 0,\n  \"rescale_prenorm_residual\": false,\n" \
    "  \"residual_in_fp32\": true,\n  \"state_size\": 16,\n"           \
    "  \"tie_word_embeddings\": true,\n  \"time_step_rank\": " #rank   \
    ",\n"                                                              \
    "  \"use_bias\": false,\n  \"use_cache\": true,\n"                 \
    "  \"use_conv_bias\": true,\n  \"vocab_size\": 50280\n}\n"

/* Mamba-2, as a converted file has it. */
#define MAMBA2(layers, hidden, heads, vocab)                                                          \
    "{\n"                                                                                             \
    "  \"architectures\": [\"Mamba2ForCausalLM\"],\n"                                                 \
    "  \"bos_token_id\": 0,\n  \"chunk_size\": 256,\n  \"conv_kernel\": 4,\n"                         \
    "  \"dtype\": \"bfloat16\",\n  \"eos_token_id\": 0,\n"                                            \
    "  \"expand\": 2,\n  \"head_dim\": 64,\n  \"hidden_act\": \"silu\",\n"                            \
    "  \"hidden_size\": " #hidden                                                                     \
    ",\n  \"initializer_range\": 0.1,\n"                                                              \
    "  \"layer_norm_epsilon\": 1e-05,\n  \"model_type\": \"mamba2\",\n  \"n_groups\": 1,\n"           \
    "  \"num_heads\": " #heads ",\n  \"num_hidden_layers\": " #layers                                 \
    ",\n"                                                                                             \
    "  \"pad_token_id\": 0,\n  \"rescale_prenorm_residual\": false,\n  \"residual_in_fp32\": true,\n" \
    "  \"state_size\": 128,\n  \"tie_word_embeddings\": true,\n  \"use_bias\": false,\n"              \
    "  \"use_cache\": true,\n  \"use_conv_bias\": true,\n  \"vocab_size\": " #vocab "\n}\n"

/* Nemotron-H: M Mamba-2, * attention, - feed-forward, E mixture; `more` has the fields that not all have alike. */
#define NEMOTRON_H_OF(pattern, layers, hidden, heads, kv_heads, ssd_heads, ssd_head_dim, positions, more) \
    "{\n"                                                                                                 \
    "  \"architectures\": [\"NemotronHForCausalLM\"],\n  \"attention_bias\": false,\n"                    \
    "  \"bos_token_id\": 1,\n  \"chunk_size\": 128,\n  \"conv_kernel\": 4,\n  \"dtype\": \"bfloat16\",\n" \
    "  \"eos_token_id\": 2,\n  \"expand\": 2,\n  \"head_dim\": 128,\n  \"hidden_size\": " #hidden         \
    ",\n  \"hybrid_override_pattern\": \"" pattern                                                        \
    "\",\n  \"initializer_range\": 0.02,\n"                                                               \
    "  \"layer_norm_epsilon\": 1e-05,\n"                                                                  \
    "  \"mamba_head_dim\": " #ssd_head_dim                                                                \
    ",\n  \"mamba_hidden_act\": \"silu\",\n"                                                              \
    "  \"mamba_num_heads\": " #ssd_heads                                                                  \
    ",\n  \"mamba_proj_bias\": false,\n  \"max_position_embeddings\": " #positions                        \
    ",\n  \"mlp_bias\": false,\n  \"mlp_hidden_act\": \"relu2\",\n"                                       \
    "  \"model_type\": \"nemotron_h\",\n" more "  \"n_groups\": 8,\n  \"num_attention_heads\": " #heads   \
    ",\n  \"num_hidden_layers\": " #layers ",\n  \"num_key_value_heads\": " #kv_heads                     \
    ",\n  \"pad_token_id\": 0,\n"                                                                         \
    "  \"rescale_prenorm_residual\": true,\n  \"residual_in_fp32\": false,\n"                             \
    "  \"ssm_state_size\": 128,\n  \"tie_word_embeddings\": false,\n  \"time_step_floor\": 0.0001,\n"     \
    "  \"time_step_max\": 0.1,\n  \"time_step_min\": 0.001,\n  \"use_bias\": false,\n"                    \
    "  \"use_cache\": true,\n  \"use_conv_bias\": true,\n  \"vocab_size\": 131072\n}\n"

#define NEMOTRON_H(pattern, layers, hidden, ffn, heads, ssd_head_dim, positions)   \
    NEMOTRON_H_OF(pattern, layers, hidden, heads, 8, 128, ssd_head_dim, positions, \
                  "  \"intermediate_size\": " #ffn ",\n")

/* 128 experts, of which 6 are chosen, and one that all rows have. */
#define NEMOTRON_3_NANO(pattern, layers)                                                                    \
    NEMOTRON_H_OF(pattern, layers, 2688, 32, 2, 64, 64, 262144,                                             \
                  "  \"intermediate_size\": 1856,\n  \"moe_intermediate_size\": 1856,\n"                    \
                  "  \"moe_shared_expert_intermediate_size\": 3712,\n  \"n_group\": 1,\n"                   \
                  "  \"n_routed_experts\": 128,\n  \"n_shared_experts\": 1,\n  \"norm_topk_prob\": true,\n" \
                  "  \"num_experts_per_tok\": 6,\n  \"routed_scaling_factor\": 2.5,\n  \"topk_group\": 1,\n")

static const char bamba_9b[] =
    "{\n  \"architectures\": [\"BambaForCausalLM\"],\n  \"attention_bias\": false,\n  \"attention_dropout\": 0.0,\n"
    "  \"attn_layer_indices\": [9, 18, 27],\n  \"attn_rotary_emb\": 64,\n  \"bos_token_id\": 128000,\n"
    "  \"dtype\": \"bfloat16\",\n  \"eos_token_id\": 128001,\n  \"hidden_act\": \"silu\",\n  \"hidden_size\": 4096,\n"
    "  \"initializer_range\": 0.02,\n  \"intermediate_size\": 14336,\n  \"mamba_chunk_size\": 256,\n"
    "  \"mamba_conv_bias\": true,\n  \"mamba_d_conv\": 4,\n  \"mamba_d_head\": 64,\n  \"mamba_d_state\": 128,\n"
    "  \"mamba_expand\": 2,\n  \"mamba_n_groups\": 1,\n  \"mamba_n_heads\": 128,\n  \"mamba_proj_bias\": false,\n"
    "  \"max_position_embeddings\": 4096,\n  \"mlp_bias\": false,\n  \"model_type\": \"bamba\",\n"
    "  \"num_attention_heads\": 32,\n  \"num_hidden_layers\": 32,\n  \"num_key_value_heads\": 8,\n"
    "  \"num_logits_to_keep\": 1,\n  \"pad_token_id\": 0,\n  \"rms_norm_eps\": 1e-05,\n  \"rope_theta\": 10000.0,\n"
    "  \"tie_word_embeddings\": false,\n  \"use_cache\": true,\n  \"vocab_size\": 128256\n}\n";

/* Granite 4: 72 experts in every layer, of which 10 are chosen, and one that all rows have; no positions. */
#define GRANITE_MAMBA "\"mamba\", \"mamba\", \"mamba\", \"mamba\", \"mamba\""
#define GRANITE_TEN GRANITE_MAMBA ",\n    \"attention\", \"mamba\", \"mamba\", \"mamba\", \"mamba\""
#define GRANITE_4_H_SMALL(layers, kinds)                                                                        \
    "{\n"                                                                                                       \
    "  \"architectures\": [\"GraniteMoeHybridForCausalLM\"],\n  \"attention_bias\": false,\n"                   \
    "  \"attention_dropout\": 0.0,\n  \"attention_multiplier\": 0.0078125,\n  \"bos_token_id\": 100257,\n"      \
    "  \"dtype\": \"bfloat16\",\n  \"embedding_multiplier\": 12,\n  \"eos_token_id\": 100257,\n"                \
    "  \"hidden_act\": \"silu\",\n  \"hidden_size\": 4096,\n  \"initializer_range\": 0.1,\n"                    \
    "  \"intermediate_size\": 768,\n  \"layer_types\": [" kinds                                                 \
    "],\n  \"logits_scaling\": 16,\n  \"mamba_chunk_size\": 256,\n  \"mamba_conv_bias\": true,\n"               \
    "  \"mamba_d_conv\": 4,\n  \"mamba_d_head\": 64,\n  \"mamba_d_state\": 128,\n  \"mamba_expand\": 2,\n"      \
    "  \"mamba_n_groups\": 1,\n  \"mamba_n_heads\": 128,\n  \"mamba_proj_bias\": false,\n"                      \
    "  \"max_position_embeddings\": 131072,\n  \"model_type\": \"granitemoehybrid\",\n"                         \
    "  \"num_attention_heads\": 32,\n  \"num_experts_per_tok\": 10,\n  \"num_hidden_layers\": " #layers         \
    ",\n  \"num_key_value_heads\": 8,\n  \"num_local_experts\": 72,\n  \"output_router_logits\": false,\n"      \
    "  \"pad_token_id\": 100256,\n  \"position_embedding_type\": \"nope\",\n  \"residual_multiplier\": 0.22,\n" \
    "  \"rms_norm_eps\": 1e-05,\n  \"rope_theta\": 10000,\n  \"router_aux_loss_coef\": 0.0,\n"                  \
    "  \"shared_intermediate_size\": 1536,\n  \"tie_word_embeddings\": true,\n  \"use_cache\": true,\n"         \
    "  \"vocab_size\": 100352\n}\n"

/* Qwen3: norms of heads of 128. */
#define QWEN3(layers, hidden, ffn, heads, tied)                                                       \
    "{\n"                                                                                             \
    "  \"architectures\": [\"Qwen3ForCausalLM\"],\n"                                                  \
    "  \"attention_bias\": false,\n  \"bos_token_id\": 151643,\n"                                     \
    "  \"dtype\": \"bfloat16\",\n  \"eos_token_id\": 151645,\n"                                       \
    "  \"head_dim\": 128,\n  \"hidden_act\": \"silu\",\n"                                             \
    "  \"hidden_size\": " #hidden ",\n  \"initializer_range\": 0.02,\n  \"intermediate_size\": " #ffn \
    ",\n  \"max_position_embeddings\": 40960,\n  \"model_type\": \"qwen3\",\n"                        \
    "  \"num_attention_heads\": " #heads ",\n  \"num_hidden_layers\": " #layers                       \
    ",\n  \"num_key_value_heads\": 8,\n  \"pad_token_id\": 151643,\n  \"rms_norm_eps\": 1e-06,\n"     \
    "  \"rope_theta\": 1000000,\n  \"tie_word_embeddings\": " #tied                                   \
    ",\n  \"use_sliding_window\": false,\n  \"vocab_size\": 151936\n}\n"

/* FalconMamba: norms of dt, B and C without weights; the file's `expand` is not the one that counts. */
#define FALCON_MAMBA(layers, hidden, inner, rank)                            \
    "{\n"                                                                    \
    "  \"architectures\": [\"FalconMambaForCausalLM\"],\n"                   \
    "  \"bos_token_id\": 0,\n  \"conv_kernel\": 4,\n"                        \
    "  \"dtype\": \"bfloat16\",\n  \"eos_token_id\": 11,\n"                  \
    "  \"expand\": 16,\n  \"hidden_act\": \"silu\",\n"                       \
    "  \"hidden_size\": " #hidden                                            \
    ",\n"                                                                    \
    "  \"initializer_range\": 0.1,\n  \"intermediate_size\": " #inner        \
    ",\n"                                                                    \
    "  \"layer_norm_epsilon\": 1e-05,\n  \"mixer_rms_eps\": 1e-06,\n"        \
    "  \"model_type\": \"falcon_mamba\",\n  \"num_hidden_layers\": " #layers \
    ",\n"                                                                    \
    "  \"pad_token_id\": 11,\n  \"rescale_prenorm_residual\": false,\n"      \
    "  \"residual_in_fp32\": true,\n  \"state_size\": 16,\n"                 \
    "  \"tie_word_embeddings\": false,\n  \"time_step_rank\": " #rank        \
    ",\n"                                                                    \
    "  \"use_bias\": false,\n  \"use_cache\": true,\n"                       \
    "  \"use_conv_bias\": true,\n  \"vocab_size\": 65024\n}\n"

/* Qwen3-MoE: 128 experts in every layer, of which 8 are chosen. */
#define QWEN3_MOE(layers)                                                                      \
    "{\n"                                                                                      \
    "  \"architectures\": [\"Qwen3MoeForCausalLM\"],\n"                                        \
    "  \"attention_bias\": false,\n  \"bos_token_id\": 151643,\n"                              \
    "  \"decoder_sparse_step\": 1,\n  \"dtype\": \"bfloat16\",\n  \"eos_token_id\": 151645,\n" \
    "  \"head_dim\": 128,\n  \"hidden_act\": \"silu\",\n  \"hidden_size\": 2048,\n"            \
    "  \"initializer_range\": 0.02,\n  \"intermediate_size\": 6144,\n"                         \
    "  \"max_position_embeddings\": 40960,\n  \"mlp_only_layers\": [],\n"                      \
    "  \"model_type\": \"qwen3_moe\",\n  \"moe_intermediate_size\": 768,\n"                    \
    "  \"norm_topk_prob\": true,\n  \"num_attention_heads\": 32,\n  \"num_experts\": 128,\n"   \
    "  \"num_experts_per_tok\": 8,\n  \"num_hidden_layers\": " #layers                         \
    ",\n  \"num_key_value_heads\": 4,\n  \"output_router_logits\": false,\n"                   \
    "  \"pad_token_id\": 151643,\n  \"rms_norm_eps\": 1e-06,\n  \"rope_theta\": 1000000,\n"    \
    "  \"router_aux_loss_coef\": 0.001,\n  \"tie_word_embeddings\": false,\n"                  \
    "  \"use_sliding_window\": false,\n  \"vocab_size\": 151936\n}\n"

/* What dense Qwen3.5 and the one with experts have alike, behind the fields of a kind. */
#define QWEN_DELTA(layers, hidden, heads, kv_heads, value_heads, theta, tied, vocab)                         \
    "  \"attention_bias\": false,\n  \"attention_dropout\": 0.0,\n  \"dtype\": \"bfloat16\",\n"              \
    "  \"full_attention_interval\": 4,\n  \"head_dim\": 256,\n  \"hidden_act\": \"silu\",\n"                 \
    "  \"hidden_size\": " #hidden                                                                            \
    ",\n  \"initializer_range\": 0.02,\n  \"linear_conv_kernel_dim\": 4,\n  \"linear_key_head_dim\": 128,\n" \
    "  \"linear_num_key_heads\": 16,\n  \"linear_num_value_heads\": " #value_heads                           \
    ",\n  \"linear_value_head_dim\": 128,\n  \"max_position_embeddings\": 262144,\n"                         \
    "  \"num_attention_heads\": " #heads ",\n  \"num_hidden_layers\": " #layers                              \
    ",\n  \"num_key_value_heads\": " #kv_heads                                                               \
    ",\n  \"rms_norm_eps\": 1e-06,\n  \"rope_parameters\": {\"partial_rotary_factor\": 0.25,\n"              \
    "    \"rope_theta\": " #theta ", \"rope_type\": \"default\"},\n  \"tie_word_embeddings\": " tied         \
    ",\n  \"use_cache\": true,\n  \"vocab_size\": " #vocab "\n}\n"

/* Qwen3.5, the language model. */
#define QWEN3_5(layers, hidden, ffn, heads, kv_heads, value_heads, tied)                        \
    "{\n"                                                                                       \
    "  \"architectures\": [\"Qwen3_5ForCausalLM\"],\n  \"attn_output_gate\": true,\n"           \
    "  \"eos_token_id\": 248044,\n  \"intermediate_size\": " #ffn                               \
    ",\n  \"mamba_ssm_dtype\": \"float32\",\n  \"model_type\": \"qwen3_5_text\",\n" QWEN_DELTA( \
        layers, hidden, heads, kv_heads, value_heads, 10000000, tied, 248320)

/* The same with 256 experts in every layer, of which 8 are chosen, and one that all rows have. */
#define QWEN3_5_MOE(layers)                                                                                 \
    "{\n"                                                                                                   \
    "  \"architectures\": [\"Qwen3_5MoeForCausalLM\"],\n  \"attn_output_gate\": true,\n"                    \
    "  \"eos_token_id\": 248044,\n  \"mamba_ssm_dtype\": \"float32\",\n"                                    \
    "  \"model_type\": \"qwen3_5_moe_text\",\n  \"moe_intermediate_size\": 512,\n  \"num_experts\": 256,\n" \
    "  \"num_experts_per_tok\": 8,\n  \"shared_expert_intermediate_size\": 512,\n" QWEN_DELTA(              \
        layers, 2048, 16, 2, 32, 10000000, "false", 248320)

/* Qwen3-Next: 512 experts in every layer, of which 10 are chosen, and one that all rows have. */
#define QWEN3_NEXT(layers)                                                                         \
    "{\n"                                                                                          \
    "  \"architectures\": [\"Qwen3NextForCausalLM\"],\n  \"decoder_sparse_step\": 1,\n"            \
    "  \"eos_token_id\": 151645,\n  \"mlp_only_layers\": [],\n  \"model_type\": \"qwen3_next\",\n" \
    "  \"moe_intermediate_size\": 512,\n  \"norm_topk_prob\": true,\n  \"num_experts\": 512,\n"    \
    "  \"num_experts_per_tok\": 10,\n  \"shared_expert_intermediate_size\": 512,\n" QWEN_DELTA(    \
        layers, 2048, 16, 2, 32, 10000000, "false", 151936)

/* Llama 3.1 and 3.2: frequencies scaled by `factor`. */
#define LLAMA3(layers, hidden, ffn, heads, head_dim, factor, tied)                                      \
    "{\n"                                                                                               \
    "  \"architectures\": [\"LlamaForCausalLM\"],\n"                                                    \
    "  \"attention_bias\": false,\n  \"bos_token_id\": 128000,\n"                                       \
    "  \"dtype\": \"bfloat16\",\n  \"eos_token_id\": 128001,\n"                                         \
    "  \"head_dim\": " #head_dim ",\n  \"hidden_act\": \"silu\",\n  \"hidden_size\": " #hidden          \
    ",\n  \"initializer_range\": 0.02,\n  \"intermediate_size\": " #ffn                                 \
    ",\n  \"max_position_embeddings\": 131072,\n  \"mlp_bias\": false,\n  \"model_type\": \"llama\",\n" \
    "  \"num_attention_heads\": " #heads ",\n  \"num_hidden_layers\": " #layers                         \
    ",\n  \"num_key_value_heads\": 8,\n  \"rms_norm_eps\": 1e-05,\n"                                    \
    "  \"rope_scaling\": {\"factor\": " #factor                                                         \
    ", \"high_freq_factor\": 4.0, \"low_freq_factor\": 1.0,\n"                                          \
    "    \"original_max_position_embeddings\": 8192, \"rope_type\": \"llama3\"},\n"                     \
    "  \"rope_theta\": 500000.0,\n  \"tie_word_embeddings\": " #tied ",\n  \"vocab_size\": 128256\n}\n"

static const ls_shape shapes[] = {
    {"jamba-3b", "AI21's Jamba Reasoning 3B: 28 layers, attention in 7 and 21",
     JAMBA(28, 14, 7, 65536, 2560, 8192, 20, 160)},
    {"jamba-3b-cut", "4 layers of jamba-3b, attention in 2", JAMBA(4, 4, 2, 65536, 2560, 8192, 20, 160)},
    {"jamba-mini",
     "AI21's Jamba Mini: 32 layers, attention in every eighth, 16 experts in every second, 52 billion parameters",
     JAMBA_MOE(32, 8, 4, 65536, 4096, 14336, 32, 8, 256, 16, 2, false)},
    {"jamba-mini-cut", "4 layers of jamba-mini, attention in 2, 4 experts in 1 and 3",
     JAMBA_MOE(4, 4, 2, 65536, 4096, 14336, 32, 8, 256, 4, 2, false)},
    {"jamba-tiny", "4 layers, 64 wide, for trials on a CPU", JAMBA(4, 4, 2, 512, 64, 128, 4, 4)},
    {"mamba-130m", "state-spaces/mamba-130m-hf: 24 layers, 768 wide", MAMBA(24, 768, 1536, 48)},
    {"llama-3.1-8b", "Meta's Llama 3.1 8B: 32 layers, 4,096 wide", LLAMA3(32, 4096, 14336, 32, 128, 8.0, false)},
    {"llama-3.2-1b", "Meta's Llama 3.2 1B: 16 layers, 2,048 wide", LLAMA3(16, 2048, 8192, 32, 64, 32.0, true)},
    {"qwen3-0.6b", "Alibaba's Qwen3 0.6B: 28 layers, 1,024 wide", QWEN3(28, 1024, 3072, 16, true)},
    {"qwen3-4b", "Alibaba's Qwen3 4B: 36 layers, 2,560 wide", QWEN3(36, 2560, 9728, 32, true)},
    {"qwen3-8b", "Alibaba's Qwen3 8B: 36 layers, 4,096 wide", QWEN3(36, 4096, 12288, 32, false)},
    {"qwen3-30b-a3b", "Alibaba's Qwen3 30B-A3B: 48 layers of 128 experts, 31 billion parameters", QWEN3_MOE(48)},
    {"qwen3-30b-a3b-cut", "4 layers of qwen3-30b-a3b", QWEN3_MOE(4)},
    {"qwen3.5-4b", "Alibaba's Qwen3.5 4B, its language model: 32 layers, attention in every fourth, 2,560 wide",
     QWEN3_5(32, 2560, 9216, 16, 4, 32, "true")},
    {"qwen3.5-27b", "Alibaba's Qwen3.5 27B, its language model: 64 layers, attention in every fourth, 5,120 wide",
     QWEN3_5(64, 5120, 17408, 24, 4, 48, "false")},
    {"qwen3.5-35b-a3b", "Alibaba's Qwen3.5 35B-A3B, its language model: 40 layers of 256 experts and a shared one",
     QWEN3_5_MOE(40)},
    {"qwen3.5-35b-a3b-cut", "4 layers of qwen3.5-35b-a3b, attention in the last", QWEN3_5_MOE(4)},
    {"qwen3-next-80b-a3b", "Alibaba's Qwen3-Next 80B-A3B: 48 layers of 512 experts and a shared one", QWEN3_NEXT(48)},
    {"qwen3-next-80b-a3b-cut", "4 layers of qwen3-next-80b-a3b, attention in the last", QWEN3_NEXT(4)},
    {"falcon-mamba-7b", "TII's Falcon Mamba 7B: 64 layers, 4,096 wide", FALCON_MAMBA(64, 4096, 8192, 256)},
    {"bamba-9b", "IBM's Bamba 9B: 32 layers of Mamba-2, but attention in 9, 18 and 27", bamba_9b},
    {"granite-4-h-small",
     "IBM's Granite 4.0 H-Small: 40 layers of 72 experts and a shared one, attention in 5, 15, 25 and 35",
     GRANITE_4_H_SMALL(40, GRANITE_TEN ",\n    " GRANITE_TEN ",\n    " GRANITE_TEN ",\n    " GRANITE_TEN)},
    {"granite-4-h-small-cut", "4 layers of granite-4-h-small, attention in 2",
     GRANITE_4_H_SMALL(4, "\"mamba\", \"mamba\", \"attention\", \"mamba\"")},
    {"nemotron-h-8b", "NVIDIA's Nemotron-H 8B: 52 layers of one sublayer, 24 of them Mamba-2 and 4 attention",
     NEMOTRON_H("M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-", 52, 4096, 21504, 32, 64, 8192)},
    {"nemotron-nano-9b-v2",
     "NVIDIA's Nemotron Nano 9B v2: 56 layers of one sublayer, 27 of them Mamba-2 and 4 attention",
     NEMOTRON_H("M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-", 56, 4480, 15680, 40, 80, 131072)},
    {"nemotron-nano-9b-v2-cut", "7 layers of nemotron-nano-9b-v2, attention in 5",
     NEMOTRON_H("M-M-M*-", 7, 4480, 15680, 40, 80, 131072)},
    {"nemotron-3-nano-30b-a3b",
     "NVIDIA's Nemotron 3 Nano 30B-A3B: 52 layers of one half, 23 of them Mamba-2, 6 attention, 23 of 128 experts",
     NEMOTRON_3_NANO("MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", 52)},
    {"nemotron-3-nano-30b-a3b-cut", "5 layers of nemotron-3-nano-30b-a3b", NEMOTRON_3_NANO("MEM*E", 5)},
    {"mamba2-2.7b", "state-spaces/mamba2-2.7b: Mamba-2, 64 layers, 2,560 wide", MAMBA2(64, 2560, 80, 50288)},
    {"mamba-2.8b", "state-spaces/mamba-2.8b-hf: 64 layers, 2,560 wide", MAMBA(64, 2560, 5120, 160)},
};

int64_t ls_shape_count(void) { return (int64_t)(sizeof shapes / sizeof shapes[0]); }

const ls_shape *ls_shape_at(int64_t shape_i) {
    LS_ASSERT(shape_i >= 0 && shape_i < ls_shape_count(), "shape %lld", (long long)shape_i);
    return &shapes[shape_i];
}

const ls_shape *ls_shape_find(const char *name) {
    for (int64_t i = 0; i < ls_shape_count(); i++)
        if (strcmp(shapes[i].name, name) == 0) return &shapes[i];
    return NULL;
}
