"""Writes attention.safetensors: the values of transformers' own Qwen3.5 attention module in float32.

    pip install torch transformers safetensors numpy
    python make_golden.py

The module runs whole (norms, rotary, eager attention, sigmoid gate). Its projections are set to select
parts of the input, so that the tensors the kernels see are the inputs themselves; selecting is exact.
Inputs are rounded to bf16 and stored so; outputs are float32.
"""

import pathlib

import torch
from safetensors.torch import save_file
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig

# name: (tokens, q heads, kv heads, head size, rotary elements, rows whose outputs are kept)
CASES = {
    "small": (140, 4, 2, 32, 8, [0, 1, 2, 62, 63, 64, 65, 66, 126, 127, 128, 129, 130, 138, 139]),
    "real": (9, 3, 1, 256, 64, list(range(9))),
}


@torch.no_grad()
def case(name, tokens, q_heads, kv_heads, head_dim, rotary, kept):
    q_width, kv_width = q_heads * 2 * head_dim, kv_heads * head_dim
    config = Qwen3_5TextConfig(
        hidden_size=q_width + 2 * kv_width,
        num_attention_heads=q_heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=1e-6,
        max_position_embeddings=4096,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": rotary / head_dim,
            "mrope_section": [rotary // 2 - 2 * (rotary // 6), rotary // 6, rotary // 6],
        },
    )
    config._attn_implementation = "eager"
    attention = qwen.Qwen3_5Attention(config, 0).float().eval()
    part = lambda first, n: torch.eye(n, config.hidden_size).roll(first, 1)
    attention.q_proj.weight.copy_(part(0, q_width))
    attention.k_proj.weight.copy_(part(q_width, kv_width))
    attention.v_proj.weight.copy_(part(q_width + kv_width, kv_width))
    attention.o_proj = torch.nn.Identity()
    round_ = lambda x: x.bfloat16().float()
    attention.q_norm.weight.copy_(round_(torch.randn(head_dim) * 0.3 + 0.6))
    attention.k_norm.weight.copy_(round_(torch.randn(head_dim) * 0.3 + 0.6))

    x = round_(torch.randn(1, tokens, config.hidden_size))
    q_gate, k, v = x[0].split([q_width, kv_width, kv_width], dim=1)
    cos, sin = qwen.Qwen3_5TextRotaryEmbedding(config)(x, torch.arange(tokens)[None])
    heads = lambda y, n: y.reshape(1, tokens, n, -1).transpose(1, 2)
    query = attention.q_norm(heads(q_gate, q_heads)[..., :head_dim])
    query, key = qwen.apply_rotary_pos_emb(query, attention.k_norm(heads(k, kv_heads)), cos, sin)
    mask = torch.full((tokens, tokens), float("-inf")).triu(1)[None, None]
    out, _ = attention(x, (cos, sin), mask)
    rows = lambda y: y[0].transpose(0, 1)[kept].contiguous()
    bf16 = lambda y, *shape: y.reshape(*shape).bfloat16().contiguous()
    return {
        f"{name}/q_gate": bf16(q_gate, tokens, q_heads, 2 * head_dim),
        f"{name}/k": bf16(k, tokens, kv_heads, head_dim),
        f"{name}/v": bf16(v, tokens, kv_heads, head_dim),
        f"{name}/q_norm": bf16(attention.q_norm.weight, head_dim),
        f"{name}/k_norm": bf16(attention.k_norm.weight, head_dim),
        f"{name}/rows": torch.tensor(kept),
        f"{name}/query": rows(query),
        f"{name}/key": rows(key),
        f"{name}/out": out[0].reshape(tokens, q_heads, head_dim)[kept].contiguous(),
    }


def main():
    torch.manual_seed(20)
    tensors = {}
    for name, sizes in CASES.items():
        tensors |= case(name, *sizes)
    save_file(tensors, pathlib.Path(__file__).with_name("attention.safetensors"))


main()
