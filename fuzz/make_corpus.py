#!/usr/bin/env python3
"""Writes the seed corpora of fuzz_safetensors, fuzz_config, fuzz_records, fuzz_dump, fuzz_answers, fuzz_reward, fuzz_rollout, fuzz_transfer, fuzz_changes, fuzz_task, fuzz_pairs,
fuzz_bundle, fuzz_borders, fuzz_source and fuzz_train_config. Every seed is a few hundred bytes."""
import gzip
import json
import pathlib
import struct

ROOT = pathlib.Path(__file__).resolve().parent / "corpus"


def write(folder, name, data):
    path = ROOT / folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())


def safetensors(header, data=b"", pad=8):
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % pad)
    return struct.pack("<Q", len(text)) + text + data


def tensor(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors_seeds():
    two = {"__metadata__": {"format": "pt"}, "a": tensor("F32", [2, 2], 0, 16), "b": tensor("BF16", [3], 16, 22)}
    seeds = {
        "empty": safetensors({}),
        "two": safetensors(two, bytes(range(22))),
        "scalar": safetensors({"s": tensor("F64", [], 0, 8)}, bytes(8)),
        "zero": safetensors({"z": tensor("I8", [0, 7], 0, 0), "t": tensor("U8", [2], 0, 2)}, bytes(2)),
        "packed": safetensors({"q": tensor("F4", [4], 0, 2), "r": tensor("F6_E2M3", [4], 2, 5)}, bytes(5)),
        "hole": safetensors({"a": tensor("U8", [1], 1, 2)}, bytes(2)),
        "overlap": safetensors({"a": tensor("U8", [2], 0, 2), "b": tensor("U8", [2], 1, 3)}, bytes(3)),
        "overflow": safetensors({"a": tensor("F32", [1 << 62, 8], 0, 4)}, bytes(4)),
        "misaligned": safetensors({"a": tensor("U8", [1], 0, 1), "b": tensor("F32", [1], 1, 5)}, bytes(5)),
        "unpadded": safetensors({"a": tensor("F16", [1], 0, 2)}, bytes(2), pad=1),
        "trailing": safetensors({"a": tensor("U8", [1], 0, 1)}, bytes(3)),
        "huge_header": struct.pack("<Q", 1 << 63) + b"{}      ",
        "deep": safetensors(b'{"a":' * 40 + b"1" + b"}" * 40),
        "duplicate": safetensors(b'{"a":{},"a":{}}'),
    }
    for name, data in seeds.items():
        write("safetensors", name, data)
    # The fuzzer's second reading: first byte the number of data bytes, seven that are replaced, then the JSON.
    text = json.dumps(two).encode()
    write("safetensors", "framed", bytes([22]) + bytes(7) + text + b" " * (-len(text) % 8))


def config_seeds():
    small = {
        "model_type": "jamba", "architectures": ["JambaForCausalLM"], "vocab_size": 512, "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_experts": 4, "num_experts_per_tok": 2, "expert_layer_period": 2, "expert_layer_offset": 1,
        "attn_layer_period": 4, "attn_layer_offset": 1, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2,
        "mamba_dt_rank": "auto", "mamba_conv_bias": True, "mamba_proj_bias": False, "hidden_act": "silu",
        "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "eos_token_id": [2, 511],
        "bos_token_id": 1, "pad_token_id": 0, "max_position_embeddings": 4096, "sliding_window": None,
    }
    mamba = {
        "model_type": "mamba", "architectures": ["MambaForCausalLM"], "vocab_size": 131, "hidden_size": 36,
        "num_hidden_layers": 3, "intermediate_size": 54, "expand": 2, "state_size": 5, "conv_kernel": 3,
        "time_step_rank": "auto", "use_bias": True, "use_conv_bias": False, "hidden_act": "silu",
        "layer_norm_epsilon": 1e-5, "tie_word_embeddings": False, "residual_in_fp32": True,
        "rescale_prenorm_residual": False, "time_step_floor": 1e-4, "torch_dtype": "float32", "eos_token_id": 0,
        "bos_token_id": 0, "pad_token_id": 0, "rms_norm": True, "ssm_cfg": {}, "d_model": 36,
    }
    mamba2 = {
        "model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"], "vocab_size": 131, "hidden_size": 35,
        "num_hidden_layers": 2, "num_heads": 5, "head_dim": 21, "expand": 3, "state_size": 11, "conv_kernel": 3,
        "n_groups": 1, "chunk_size": 8, "time_step_limit": [0.05, 0.9], "use_bias": True, "use_conv_bias": False,
        "hidden_act": "silu", "layer_norm_epsilon": 1e-3, "tie_word_embeddings": False, "residual_in_fp32": True,
        "torch_dtype": "float32", "eos_token_id": 0, "bos_token_id": 0, "pad_token_id": 0,
    }
    nemotron = {
        "model_type": "nemotron_h", "architectures": ["NemotronHForCausalLM"], "vocab_size": 99, "hidden_size": 48,
        "hybrid_override_pattern": "M-M*-", "num_hidden_layers": 5, "intermediate_size": 64, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 12, "mamba_num_heads": 6, "mamba_head_dim": 16, "n_groups": 2,
        "ssm_state_size": 8, "conv_kernel": 4, "time_step_min": 0.001, "mlp_hidden_act": "relu2", "expand": 2,
    }
    granite = {
        "model_type": "granitemoehybrid", "architectures": ["GraniteMoeHybridForCausalLM"], "vocab_size": 99,
        "hidden_size": 48, "intermediate_size": 20, "shared_intermediate_size": 28, "num_hidden_layers": 3,
        "layer_types": ["mamba", "full_attention", "linear_attention"], "num_attention_heads": 3,
        "num_key_value_heads": 1, "num_local_experts": 6, "num_experts_per_tok": 2, "mamba_n_heads": 6,
        "mamba_n_groups": 2, "mamba_d_state": 8, "mamba_d_head": "auto", "embedding_multiplier": 12,
        "residual_multiplier": 0.22, "attention_multiplier": 0.0078125, "logits_scaling": 16,
        "position_embedding_type": "nope",
    }
    qwen3_5 = {
        "model_type": "qwen3_5_text", "architectures": ["Qwen3_5ForCausalLM"], "vocab_size": 99, "hidden_size": 48,
        "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
        "linear_value_head_dim": 12, "linear_conv_kernel_dim": 3, "full_attention_interval": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.5,
                            "mrope_section": [1, 1, 0], "mrope_interleaved": True},
    }
    seeds = {
        "small": small,
        "mamba": mamba,
        "mamba2": mamba2,
        "bamba": {"model_type": "bamba", "vocab_size": 99, "hidden_size": 48, "intermediate_size": 64,
                  "num_hidden_layers": 3, "attn_layer_indices": [1], "num_attention_heads": 3, "num_key_value_heads": 1,
                  "mamba_n_heads": 6, "mamba_n_groups": 2, "mamba_d_state": 8, "mamba_d_head": "auto",
                  "attn_rotary_emb": 8, "partial_rotary_factor": 0.5, "time_step_limit": [0.02, 1.5]},
        "granite": granite,
        "granite_dense": {**granite, "num_local_experts": 0, "position_embedding_type": "rope",
                          "layer_types": ["attention"] * 3, "rope_theta": 500.0, "attention_multiplier": 1},
        "nemotron_h": nemotron,
        "qwen3_5": qwen3_5,
        "qwen3_5_moe": {**{k: v for k, v in qwen3_5.items() if k not in ("intermediate_size", "architectures")},
                        "model_type": "qwen3_5_moe_text", "num_experts": 5, "num_experts_per_tok": 2,
                        "moe_intermediate_size": 24, "shared_expert_intermediate_size": 20},
        "qwen3_5_list": {**qwen3_5, "layer_types": ["full_attention", "linear_attention"] * 2,
                         "mamba_ssm_dtype": "float32", "attn_output_gate": True, "mtp_num_hidden_layers": 1},
        "nemotron_h_list": {**{k: v for k, v in nemotron.items() if k != "hybrid_override_pattern"},
                            "layers_block_type": ["mamba", "mlp", "linear_attention", "attention", "mlp"]},
        "mamba2_defaults": {"model_type": "mamba2", "time_step_limit": [0.0, float("inf")]},
        "mamba2_tagged": {**mamba2, "time_step_limit": [0, {"__float__": "Infinity"}], "n_groups": 5},
        "falcon_mamba": {**{k: v for k, v in mamba.items() if k != "ssm_cfg"}, "model_type": "falcon_mamba",
                         "architectures": ["FalconMambaForCausalLM"], "mixer_rms_eps": 1e-3},
        "falcon_mamba_defaults": {"model_type": "falcon_mamba"},
        "mamba_defaults": {"model_type": "mamba", "intermediate_size": None, "time_step_rank": 7},
        "mamba_large": {**mamba, "hidden_size": 2147483647, "expand": 2147483647, "intermediate_size": None},
        "defaults": {"model_type": "jamba"},
        "layers": {**small, "layers_block_type": ["mamba", "attention", "mamba", "mamba"]},
        "sliding": {**small, "sliding_window": 128},
        "head_dim": {**small, "head_dim": 24, "mamba_dt_rank": 5, "dtype": "float16", "torch_dtype": None},
        "large": {**small, "hidden_size": 2147483647, "num_experts": 2147483647},
        "eos": {"eos_token_id": [2, 519]},
        "other": {"model_type": "gpt_neox"},
        "llama": {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
                  "num_key_value_heads": 2, "attention_bias": True, "rope_theta": 500000.0,
                  "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                   "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}},
        "llama_defaults": {"model_type": "llama"},
        "mistral": {"model_type": "mistral", "sliding_window": None, "hidden_size": 64, "num_attention_heads": 8,
                    "rope_scaling": {"type": "linear", "factor": 2}},
        "mistral_window": {"model_type": "mistral", "sliding_window": 4096, "num_hidden_layers": 2},
        "qwen2_window": {"model_type": "qwen2", "use_sliding_window": True, "num_hidden_layers": 2,
                         "sliding_window": 16, "max_window_layers": 1,
                         "layer_types": ["full_attention", "sliding_attention"]},
        "qwen2": {"model_type": "qwen2", "use_sliding_window": False, "num_hidden_layers": 2, "hidden_size": 64,
                  "layer_types": ["full_attention", "full_attention"]},
        "qwen3": {"model_type": "qwen3", "hidden_size": 60, "num_attention_heads": 3, "num_key_value_heads": 1,
                  "head_dim": 20, "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0,
                                                      "original_max_position_embeddings": 32768}},
        "qwen3_moe": {"model_type": "qwen3_moe", "num_hidden_layers": 2, "num_experts": 4, "num_experts_per_tok": 2,
                      "norm_topk_prob": True, "mlp_only_layers": [], "decoder_sparse_step": 1},
        "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    }
    for name, value in seeds.items():
        write("config", name, json.dumps(value))


def record_seeds():
    rollout = {"id": "q7/3", "prompt_ids": [5, 6], "completion_ids": [7, 8], "logprobs": [-1.25, None],
               "logprob_bits": ["bfa00000", "7fc00001"], "finish": "stop", "seed": 7, "sample": 3, "text": "hi\u0000",
               "meta": {"logprob_of": "raw", "temperature": 0.5, "top_k": 40, "top_p": 1, "min_p": 0, "digest": "ab"}}
    error = {"id": "q7/4", "prompt_ids": [5], "completion_ids": [], "finish": "error",
             "meta": {"weights": 1, "slot": 5, "cache_hit": 0, "preemptions": 2, "error": "NaN",
                      "levers": {"batch": 16, "chunk": "whole", "verify": 0.5}}}
    seeds = {
        "prompts": [{"id": "a", "prompt": "x\ny"}, {"id": "b", "prompt_ids": [1, 2]}],
        "tokens": [{"id": "a", "token_ids": [1, 2, 3]}, {"id": "b", "token_ids": [4]}],
        "rollout": [rollout],
        "levers": [error],
        "score": [{"id": "a", "logprobs": [-1.5, -0.1], "logprob_bits": ["bfc00000", "bdcccccd"]}],
        "bits_only": [{"id": "a", "token_ids": [1, 2], "logprob_bits": [None]}],
        "repeated": [{"id": "a", "prompt": ""}, {"id": "a", "prompt": ""}],
        "large_seed": [{"id": "a", "prompt": "", "seed": "18446744073709551615"}],
        "short": [{"id": "a", "completion_ids": [1], "logprobs": []}],
    }
    for name, lines in seeds.items():
        write("records", name, "".join(json.dumps(line) + "\n" for line in lines))


def dump_seeds():
    nan, infinity = float("nan"), float("inf")
    prime = {"schema_version": 1, "step": 3, "env_name": "a \"NaN\" b", "token_ids": [5, 6, 7],
             "loss_mask": [False, True, True], "advantages": [0.5, 0.5, None], "rewards": [1.0, 1.0, 1.0],
             "inference_logprobs": [0.0, -1.25, None], "trainer_logprobs": [0.0, -1.5, -2.0]}
    nemo = {"content": ["x"], "rewards": [0.5], "input_lengths": [3], "token_ids": [[1, 2, 3, 0]],
            "token_loss_mask": [[0, 1, 1, 0]], "sample_loss_mask": [1.0], "advantages": [[0.0, 1.5, 1.5, 0.0]],
            "generation_logprobs": [[0.0, -1.0, nan, 0.0]], "prev_logprobs": [[0.0, -1.0, -infinity, 0.0]], "idx": 0}
    batch = {"rewards": [1, 2], "token_ids": [[1, 2], [3, 4]], "token_loss_mask": [[1, 1], [0, 1]],
             "sample_loss_mask": [1, 0], "generation_logprobs": [[0, -1], [0, -9999]],
             "prev_logprobs": [[0, -3], [0, infinity]]}
    plain = {"input_lengths": 2, "token_ids": [9, 8], "token_loss_mask": [False, True], "sample_loss_mask": True,
             "generation_logprobs": [0, -5], "prev_logprobs": [0, -6]}
    seeds = {"prime": [prime, prime], "nemo": [nemo], "batch": [batch], "plain": [plain, nemo],
             "short": [{**prime, "trainer_logprobs": [-1]}], "empty": [{**plain, "token_ids": []}]}
    for name, lines in seeds.items():
        write("dump", name, "".join(json.dumps(line) + "\n" for line in lines))


def answer_seeds():
    content = {"content": [{"token": "token_id:7", "logprob": -0.5}, {"id": 8, "token": "}\"", "logprob": -1.25}]}
    plain = {"tokens": ["a", "b"], "token_logprobs": [None, -1.25], "top_logprobs": None}
    asked = [None, {"6": {"logprob": -3, "rank": 1}}, {"7": {"logprob": -0.5}, "1": {"logprob": -2}}]
    both = {"rollout_log_probs": [-0.5, -1.25], "old_log_probs": [-0.75, -1.5], "log_probs": [-1, -2]}
    seeds = {
        "vllm": {"choices": [{"logprobs": plain, "token_ids": [7, 8]}, {"logprobs": content}], "prompt_token_ids": [5]},
        "batch": {"custom_id": "x", "response": {"body": {"choices": [{"logprobs": content}]}}},
        "prompt": {"choices": [{"prompt_logprobs": asked, "prompt_token_ids": [5, 6, 7]}]},
        "prompt_bare": {"choices": [{}], "prompt_logprobs": asked[:2]},
        "sglang": {"meta_info": {"output_token_logprobs": [[-0.5, 7, None]], "cached_tokens": 3,
                                 "input_token_logprobs": [[None, 5, None], [-1, 6, "x"]]}},
        "llama": {"completion_probabilities": [{"id": 7, "logprob": -0.5}], "id_slot": 2},
        "trl": {"prompt_ids": [[5]], "completion_ids": [[7, 8], [9]], "logprobs": [[-0.5, -1], [[-2, -3]]],
                "logprob_token_ids": [[[7], [8]], [[4, 9]]]},
        "verl": {"responses": [7, 8], "response_mask": [1, False], "uid": 4, **both},
        "slime": {"samples": [{"index": 3, "tokens": [5, 7, 8], "response_length": 2, "loss_mask": [1, 1], **both}]},
        "openrlhf": {"sequences": [5, 7, 8], "action_mask": [1, 1], "action_log_probs": [-1, -2], **both},
        "prime": {"schema_version": 1, "token_ids": [5, 6, 7], "loss_mask": [False, True, True], "rewards": [1.0],
                  "advantages": [0.5, 0.5, None], "inference_logprobs": [0.0, -1.25, None],
                  "trainer_logprobs": [0.0, -1.5, -2.0]},
        "nemo": {"rewards": [1, 2], "token_ids": [[1, 2], [3, 4]], "token_loss_mask": [[1, 1], [0, 1]],
                 "sample_loss_mask": [1, 0], "generation_logprobs": [[0, -1], [0, -2]],
                 "prev_logprobs": [[0, -3], [0, -4]]},
    }
    texts = {name: json.dumps(value) for name, value in seeds.items()}
    texts["array"] = "[" + json.dumps(seeds["llama"], indent=1) + ",\n" + texts["llama"] + "]"
    texts["nan"] = texts["llama"].replace("-0.5", "NaN")
    # The first byte says which of the formats: one side (twice its number, and 1 more for the trainer's), or both.
    sides = {"vllm": [0], "batch": [0], "prompt": [2], "prompt_bare": [2], "sglang": [4, 6], "llama": [8], "array": [8],
             "nan": [8], "trl": [10], "verl": [12, 13, 22], "slime": [14, 15, 23], "openrlhf": [16, 17, 24],
             "prime": [18, 19], "nemo": [20, 21]}
    for name, text in texts.items():
        for which in sides[name]:
            write("answers", f"{name}{which}", chr(which) + text)


def reward_seeds():
    seeds = {
        "one": '{"id":"17","reward":0.5}\n', "number": '{"id":17,"reward":-1}', "bare": '{"reward":1e3}',
        "error": '{"id":"17","error":"no\\njudge"}', "nan": '{"id":"\\"NaN","reward":NaN}',
        "infinite": '{"id":3,"reward":-Infinity}', "list": '{"items":[{"id":"1","reward":1},{"id":"2","error":""}]}',
        "list_nan": '{"items":[{"id":1,"reward":NaN},{"id":2}]}', "huge": '{"id":99999999999999999999,"reward":1e999}',
        "prompt": '{"id":"1","prompt":"2+3="}', "observation": '{"id":"2","observation":"\\n5\\n","reward":0.25}',
        "messages": '{"id":"5","messages":[{"role":"tool","content":"5"}],"tools":[{"name":"f"}],"note":"printed\\nx"}',
        "both": '{"id":"6","messages":[{"role":5}],"observation":"x"}', "empty": '{"id":"7","messages":[],"tools":5}',
        "done": '{"items":[{"id":3,"done":true,"reward":1},{"id":4,"done":1,"observation":[]}]}',
    }
    for name, text in seeds.items():
        write("reward", name, text)


def rollout_seeds():
    own = {"numerics": "exact/2/f32", "logprob_of": "processed", "seed": 7, "prompt": 3, "sample": 1, "weights": [5, 5],
           "logprob_bits": ["bb67efe1", "80000000"], "kept": [3, 1], "kept_mass": [0.5, 1], "slot": 0, "cache_hit": 0,
           "preemptions": 0}
    choice = {"finish_reason": "stop", "token_ids": [4, 63], "lockstep": own}
    model = {"logprobs_mode": "raw_logprobs", "max_model_len": 64}
    seeds = {"whole": {"choices": [choice]}, "version": {"choices": [{**choice, "lockstep": {**own, "weights": [5, 6]}}]},
             "bits": {"choices": [{**choice, "lockstep": {**own, "logprob_bits": ["7fc00000", "00000001"]}}]},
             "cut": {"choices": [{**choice, "finish_reason": "abort"}]}, "none": {"choices": []},
             "info": {"numerics": "exact/2/f32", "vllm_config": {"model_config": model}},
             "number": {"weight_version": 5}, "refusal": {"error": {"message": "a\nb"}}}
    for name, value in seeds.items():
        write("rollout", name, json.dumps(value))


def transfer_seeds():
    info = {"names": ["a", "b.weight"], "dtype_names": ["bfloat16", "float32"], "shapes": [[2, 3], []], "packed": True}
    seeds = {"info": info, "fewer": {**info, "shapes": [[1]]}, "type": {**info, "dtype_names": ["int8", "float16"]},
             "large": {**info, "shapes": [[2147483647] * 3, [1]]}, "deep": {**info, "shapes": [[1] * 9, [0]]}}
    for name, value in seeds.items():
        write("transfer", name, json.dumps(value))
    write("transfer", "pickle", b"\x80\x04\x8c\x07_ctypes\x94C\x80" + bytes(range(128)) + b"\x94.")


def changes_seeds():
    digests = {"base": "0123456789abcdef", "digest": "fedcba9876543210"}
    listed = {"a": {"dtype": "BF16", "shape": [2, 300], **digests}, "b": {"dtype": "F32", "shape": [], **digests}}
    same = {"a": {**listed["a"], "digest": digests["base"]}}
    parts = {"values.b": tensor("F32", [1], 0, 4), "values.a": tensor("BF16", [2], 4, 8), "gaps.a": tensor("U8", [3], 8, 11),
             "gaps.b": tensor("U8", [1], 11, 12)}
    data = bytes(8) + b"\x05\xff\x02\x00"
    far = bytes(8) + b"\xff\xff\xfe\x00"
    seeds = {"two": (listed, parts, data), "none": (same, {}, b""), "missing": (listed, {}, b""), "far": (listed, parts, far),
             "large": ({"a": {**same["a"], "shape": [1 << 32, 1 << 32]}}, {}, b""), "empty": ({}, {}, b"")}
    for name, (tensors, header, bytes_) in seeds.items():
        text = json.dumps({"format": 1, "tensors": tensors}).encode()
        write("changes", name, text + b"\0" + safetensors(header, bytes_))


def task_seeds():
    seeds = {
        "sum": "\x0053", "reverse": "\x00k lqf iwida", "digits": "\x000 2 2 5 7 9",
        "words": "\x03Well.\n \t53\r\n\n",
        "expression": "\x00( 3+2 )*(1-0)/5", "large": "\x003037000500*3037000500",
        "lowest": "\x00(0-4611686018427387904)/3",
        "nested": "\x00" + "(" * 64 + "3" + ")" * 64, "guesses": "\x0050\n25\n12\n18\n21\n19\n",
        "options": "style=words", "option": "digits=3,ops=mul",
    }
    for name, text in seeds.items():
        write("task", name, text)


def pair_seeds():
    seeds = {
        "texts": [{"prompt": "a", "completion": "b\u0000c", "id": 1}, {"prompt": "\u00e9", "completion": " "}],
        "ids": [{"prompt_ids": [1, 2], "completion_ids": [3], "prompt": None}],
        "both": [{"prompt": "a", "completion_ids": [3]}],
        "empty": [{"prompt_ids": [], "completion_ids": [3]}],
    }
    for name, lines in seeds.items():
        write("pairs", name, "".join(json.dumps(line) + "\n" for line in lines))


def train_config_seeds():
    seeds = {
        "usual": {"model": "m", "run": "r", "data": "d", "seed": "18446744073709551615", "dtype": "bf16",
                  "profile": "mma16", "moments": "bf16", "batch": 8, "steps": 10, "rate": 1e-3, "warmup": 2,
                  "resume": True},
        "unknown": {"batches": 8},
        "ranges": {"batch": 0, "rate": 1e300, "rank": 3, "seed": 4},
        "device": {"device": "cuda:1", "rank": 1, "ranks": 2},
        "types": {"resume": "yes", "rate": "1", "steps": 1.5},
    }
    for name, value in seeds.items():
        write("train_config", name, json.dumps(value))


def bundle_seeds():
    levers = {"samples": "2", "threads": "1", "isa": "generic"}
    whole = {"format": 2, "step": 3, "numerics": "exact/2/f32", "dtype": "f32", "profile": "exact", "temperature": 1.0,
             "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": "7", "weights": "00000000deadbeef", "first_prompt": 4,
             "samples": 2, "length": 16, "slots": 9, "tokens": 2, "differing": 1, "differing_sequences": 1,
             "first": {"sequence": 0, "row": 1, "id": "a/0", "rollout": -0.5}, "levers": {}}
    rollout = {"id": "b/0", "prompt_ids": [5], "completion_ids": [7, 8], "logprobs": [-0.5, None], "seed": 7, "sample": 1,
               "meta": {"slot": 3, "cache_hit": 1, "preemptions": 2}}
    trainer = {**rollout, "logprobs": [-1.5, None]}
    first = {**whole, "first": {"sequence": 0, "row": 0}}
    seeds = {
        "whole": [whole],
        "levers": [{**whole, "levers": levers}],
        "old": [{k: v for k, v in {**whole, "format": 1, "dtype": "bf16"}.items() if k not in ("profile", "top_k", "top_p", "min_p")}],
        "mma16": [{**whole, "profile": "mma16", "top_k": 4, "top_p": 0.5, "min_p": 0.1, "temperature": 0.7}],
        "records": [first, rollout, trainer],
        "sides": [first, rollout],
        "row": [{**whole, "first": {"sequence": 0, "row": 2}}],
        "infinite": [{**whole, "temperature": 1e300}],
        "long": [{**whole, "length": 4}],
        "number": [{**whole, "weights": "-1", "seed": "18446744073709551616"}],
    }
    for name, parts in seeds.items():
        write("bundle", name, "\n---\n".join(json.dumps(part) for part in parts))


def border_seeds():
    def line(step, borders, **more):
        return json.dumps({"format": 1, "step": step, **more, "borders": borders}, separators=(",", ":")) + "\n"

    digest = {"digest": "0123456789abcdef"}
    first = line(1, [[[5, 0]], [[6, 0]]], **digest)
    seeds = {
        "one": first,
        "by-hand": line(1, [[[5, 0]], [[6, 0]]]) + line(2, [[[5, 0], [7, 1]], [[6, 1]]]),
        "four": first
        + line(2, [[[5, 0], [7, 1]], [[6, 0]]], **digest)
        + line(3, [[[5, 0], [7, 1], [39, 2]], [[6, 2]]], **digest)
        + line(4, [[[5, 1]], [[6, 1], [8, 3]]], **digest),
        "cut": first + first[:20],
        "old": line(4, [[[5, 0]], [[6, 1]]]),
        "empty": line(1, [[], [[6, 0]]]),
    }
    for name, data in seeds.items():
        write("borders", name, data)


def source_seeds():
    plain = b'{"id":"a","completion_ids":[1,2],"logprobs":[-0.5,-1.25]}\n' * 3
    packed = gzip.compress(plain, mtime=0)
    seeds = {
        "plain": plain,
        "packed": packed,
        "stored": gzip.compress(plain, compresslevel=0, mtime=0),
        "members": gzip.compress(plain[:70], mtime=0) + gzip.compress(b"", mtime=0) + gzip.compress(plain[70:], mtime=0),
        "named": packed[:3] + b"\x1e" + packed[4:10] + b"\x02\0xy" + b"name\0" + b"comment\0" + b"\0\0" + packed[10:],
        "truncated": packed[:-9],
        "checksum": packed[:-8] + b"\0" + packed[-7:],
        "behind": packed + b"{}",
        "long": gzip.compress(b" " * 100000, mtime=0),
    }
    for name, data in seeds.items():
        write("source", name, data)


if __name__ == "__main__":
    bundle_seeds()
    border_seeds()
    source_seeds()
    safetensors_seeds()
    config_seeds()
    record_seeds()
    dump_seeds()
    answer_seeds()
    reward_seeds()
    rollout_seeds()
    transfer_seeds()
    changes_seeds()
    task_seeds()
    pair_seeds()
    train_config_seeds()
