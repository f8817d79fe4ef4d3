"""What is known of the `config.json` of the public decoders that conf names, with layers and RoPE's theta."""

from typing import Any

Known = tuple[dict[str, Any], int, float | None]

_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "model_type": "llama",
    "pad_token_id": 0,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.33.1",
    "use_cache": True,
    "vocab_size": 32000,
}


def _llama(hidden: int, layers: int, heads: int, wide: int, positions: int, **more: Any) -> Known:
    shape = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
    sizes = {"intermediate_size": wide, "max_position_embeddings": positions}
    raw = {**_LLAMA, **shape, **sizes, **more}
    return raw, layers, float(raw.get("rope_theta") or 10_000.0)


_THIRD = {"vocab_size": 128256, "rope_theta": 500000.0, "num_key_value_heads": 8, "torch_dtype": "bfloat16"}
_THIRD |= {"bos_token_id": 128000, "eos_token_id": 128001}
_STRETCH = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}


def _opt(hidden: int, layers: int, heads: int, **more: Any) -> Known:
    raw = {
        "_name_or_path": f"facebook/opt-{hidden}",
        "_remove_final_layer_norm": False,
        "activation_dropout": 0.0,
        "activation_function": "relu",
        "architectures": ["OPTForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": 2,
        "do_layer_norm_before": True,
        "dropout": 0.1,
        "eos_token_id": 2,
        "ffn_dim": 4 * hidden,
        "hidden_size": hidden,
        "init_std": 0.02,
        "layerdrop": 0.0,
        "max_position_embeddings": 2048,
        "model_type": "opt",
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "pad_token_id": 1,
        "prefix": "</s>",
        "torch_dtype": "float16",
        "use_cache": True,
        "vocab_size": 50272,
        "word_embed_proj_dim": hidden,
    }
    return raw | more, layers, None


def _gpt2(hidden: int, layers: int, heads: int) -> Known:
    raw = {
        "activation_function": "gelu_new",
        "architectures": ["GPT2LMHeadModel"],
        "attn_pdrop": 0.1,
        "bos_token_id": 50256,
        "embd_pdrop": 0.1,
        "eos_token_id": 50256,
        "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05,
        "model_type": "gpt2",
        "n_ctx": 1024,
        "n_embd": hidden,
        "n_head": heads,
        "n_layer": layers,
        "n_positions": 1024,
        "resid_pdrop": 0.1,
        "summary_activation": None,
        "summary_first_dropout": 0.1,
        "summary_proj_to_labels": True,
        "summary_type": "cls_index",
        "summary_use_proj": True,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
        "vocab_size": 50257,
    }
    return raw, layers, None


def _qwen(kind: str, hidden: int, layers: int, heads: tuple[int, int], wide: int, **more: Any) -> Known:
    raw = {
        "architectures": ["Qwen2ForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 0.02,
        "intermediate_size": wide,
        "max_position_embeddings": 32768,
        "max_window_layers": layers,
        "model_type": kind,
        "num_attention_heads": heads[0],
        "num_hidden_layers": layers,
        "num_key_value_heads": heads[1],
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": 32768,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.44.0",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": 151936,
    }
    return raw | more, layers, 1_000_000.0


_THREE = {"attention_bias": False, "head_dim": 128, "max_position_embeddings": 40960, "rope_scaling": None}
_THREE |= {"sliding_window": None, "architectures": ["Qwen3ForCausalLM"]}


def _eagle(hidden: int, heads: tuple[int, int], wide: int, vocab: int, **more: Any) -> Known:
    known, _, _ = _llama(hidden, 1, heads[0], wide, 40960, num_key_value_heads=heads[1], vocab_size=vocab)
    theta = float(more.get("rope_theta") or 10_000.0)
    return {**known, "draft_vocab_size": 32000, **more}, 1, theta


_ANGEL = {
    "architectures": ["Eagle3LlamaForCausalLM"],
    "head_dim": 128,
    "rope_theta": 1000000,
    "rope_scaling": None,
}
_ANGEL |= {
    "max_window_layers": 36,
    "sliding_window": None,
    "use_sliding_window": False,
    "target_hidden_size": 4096,
}

PUBLIC: dict[str, Known] = {
    "huggyllama/llama-7b": _llama(4096, 32, 32, 11008, 2048, max_sequence_length=2048, rms_norm_eps=1e-6),
    "huggyllama/llama-13b": _llama(5120, 40, 40, 13824, 2048, max_sequence_length=2048, rms_norm_eps=1e-6),
    "huggyllama/llama-30b": _llama(6656, 60, 52, 17920, 2048, max_sequence_length=2048, rms_norm_eps=1e-6),
    "huggyllama/llama-65b": _llama(8192, 80, 64, 22016, 2048, max_sequence_length=2048, rms_norm_eps=1e-5),
    "meta-llama/Llama-2-7b-chat-hf": _llama(4096, 32, 32, 11008, 4096, num_key_value_heads=32),
    "meta-llama/Llama-2-13b-chat-hf": _llama(5120, 40, 40, 13824, 4096, num_key_value_heads=40),
    "meta-llama/Meta-Llama-3-8B": _llama(4096, 32, 32, 14336, 8192, **_THIRD),
    "meta-llama/Meta-Llama-3-8B-Instruct": _llama(4096, 32, 32, 14336, 8192, **_THIRD),
    "meta-llama/Llama-3.1-8B-Instruct": _llama(
        4096,
        32,
        32,
        14336,
        131072,
        **_THIRD | {"rope_scaling": _STRETCH, "mlp_bias": False, "eos_token_id": [128001, 128008, 128009]},
    ),
    "lmsys/vicuna-7b-v1.5": _llama(4096, 32, 32, 11008, 4096, num_key_value_heads=32),
    "lmsys/vicuna-13b-v1.5": _llama(5120, 40, 40, 13824, 4096, num_key_value_heads=40),
    "lmsys/vicuna-7b-v1.3": _llama(4096, 32, 32, 11008, 2048, rms_norm_eps=1e-6),
    "double7/vicuna-68m": _llama(768, 2, 12, 3072, 2048, rms_norm_eps=1e-6),
    "lmsys/vicuna-33b-v1.3": _llama(6656, 60, 52, 17920, 2048, max_sequence_length=2048, rms_norm_eps=1e-6),
    "pankajmathur/orca_mini_3b": _llama(3200, 26, 32, 8640, 2048, rms_norm_eps=1e-6),
    "HuggingFaceTB/SmolLM2-135M-Instruct": _llama(
        576,
        30,
        9,
        1536,
        8192,
        num_key_value_heads=3,
        rope_theta=100000,
        rope_interleaved=False,
        is_llama_config=True,
        tie_word_embeddings=True,
        vocab_size=49152,
        **{"transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}},
    ),
    "mistralai/Mistral-7B-Instruct-v0.2": _llama(
        4096,
        32,
        32,
        14336,
        32768,
        model_type="mistral",
        num_key_value_heads=8,
        rope_theta=1000000.0,
        sliding_window=None,
    ),
    "facebook/opt-125m": _opt(768, 12, 12),
    "facebook/opt-350m": _opt(1024, 24, 16, do_layer_norm_before=False, word_embed_proj_dim=512),
    "facebook/opt-1.3b": _opt(2048, 24, 32),
    "facebook/opt-2.7b": _opt(2560, 32, 32),
    "facebook/opt-6.7b": _opt(4096, 32, 32),
    "openai-community/gpt2": _gpt2(768, 12, 12),
    "openai-community/gpt2-large": _gpt2(1280, 36, 20),
    "microsoft/phi-2": (
        {
            "_name_or_path": "microsoft/phi-2",
            "architectures": ["PhiForCausalLM"],
            "attention_dropout": 0.0,
            "bos_token_id": 50256,
            "embd_pdrop": 0.0,
            "eos_token_id": 50256,
            "hidden_act": "gelu_new",
            "hidden_size": 2560,
            "initializer_range": 0.02,
            "intermediate_size": 10240,
            "layer_norm_eps": 1e-05,
            "max_position_embeddings": 2048,
            "model_type": "phi",
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 32,
            "partial_rotary_factor": 0.4,
            "qk_layernorm": False,
            "resid_pdrop": 0.1,
            "rope_scaling": None,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "vocab_size": 51200,
        },
        32,
        10_000.0,
    ),
    "google/gemma-2b-it": (
        {
            "architectures": ["GemmaForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": 2,
            "eos_token_id": 1,
            "head_dim": 256,
            "hidden_act": "gelu",
            "hidden_activation": None,
            "hidden_size": 2048,
            "initializer_range": 0.02,
            "intermediate_size": 16384,
            "max_position_embeddings": 8192,
            "model_type": "gemma",
            "num_attention_heads": 8,
            "num_hidden_layers": 18,
            "num_key_value_heads": 1,
            "pad_token_id": 0,
            "rms_norm_eps": 1e-06,
            "rope_scaling": None,
            "rope_theta": 10000.0,
            "use_cache": True,
            "vocab_size": 256000,
        },
        18,
        10_000.0,
    ),
    "google/gemma-3-270m": (
        {
            "_sliding_window_pattern": 6,
            "architectures": ["Gemma3ForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "attn_logit_softcapping": None,
            "bos_token_id": 2,
            "eos_token_id": 1,
            "final_logit_softcapping": None,
            "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": 640,
            "initializer_range": 0.02,
            "intermediate_size": 2048,
            "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3,
            "max_position_embeddings": 32768,
            "model_type": "gemma3_text",
            "num_attention_heads": 4,
            "num_hidden_layers": 18,
            "num_key_value_heads": 1,
            "pad_token_id": 0,
            "query_pre_attn_scalar": 256,
            "rms_norm_eps": 1e-06,
            "rope_local_base_freq": 10000.0,
            "rope_scaling": None,
            "rope_theta": 1000000.0,
            "sliding_window": 512,
            "use_bidirectional_attention": False,
            "use_cache": True,
            "vocab_size": 262144,
        },
        18,
        1_000_000.0,
    ),
    "Qwen/Qwen1.5-0.5B-Chat": _qwen("qwen2", 1024, 24, (16, 16), 2816),
    "Qwen/Qwen1.5-1.8B-Chat": _qwen("qwen2", 2048, 24, (16, 16), 5504, tie_word_embeddings=False),
    "Qwen/Qwen2.5-Coder-0.5B-Instruct": _qwen("qwen2", 896, 24, (14, 2), 4864),
    "Qwen/Qwen2.5-Coder-1.5B-Instruct": _qwen("qwen2", 1536, 28, (12, 2), 8960),
    "Qwen/Qwen3-0.6B": _qwen("qwen3", 1024, 28, (16, 8), 3072, **_THREE),
    "Qwen/Qwen3-4B": _qwen("qwen3", 2560, 36, (32, 8), 9728, **_THREE),
    "Qwen/Qwen3-8B": _qwen("qwen3", 4096, 36, (32, 8), 12288, **_THREE | {"tie_word_embeddings": False}),
    "Qwen/Qwen3-14B": _qwen("qwen3", 5120, 40, (40, 8), 17408, **_THREE | {"tie_word_embeddings": False}),
    "AngelSlim/Qwen3-4B_eagle3": _eagle(2560, (32, 8), 9728, 151936, **_ANGEL | {"target_hidden_size": 2560}),
    "AngelSlim/Qwen3-8B_eagle3": _eagle(4096, (32, 8), 12288, 151936, **_ANGEL),
    "AngelSlim/Qwen3-14B_eagle3": _eagle(
        5120, (40, 8), 17408, 151936, **_ANGEL | {"target_hidden_size": 5120}
    ),
    "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B": _eagle(4096, (32, 8), 14336, 128256),
}
