"""Writes dense.safetensors: what transformers' own Qwen3.5 modules give for small random inputs, in float32.

    pip install torch transformers==5.24.0 safetensors
    python make.py

The modules are used as they are; nothing of their arithmetic is written down here.
"""

import torch
from safetensors.torch import save_file
from transformers.models.qwen3_5 import modeling_qwen3_5 as dense
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as moe


class Config:
    """The fields that the modules read."""

    hidden_size = 48
    hidden_act = "silu"
    num_experts = 12
    num_experts_per_tok = 3
    moe_intermediate_size = 20
    shared_expert_intermediate_size = 28
    _experts_implementation = "eager"


ROWS, EPS = 7, 1e-6


def randomise(module, scale):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) * scale)
    return module


@torch.no_grad()
def main():
    torch.manual_seed(20)
    out = {}

    def keep(prefix, **tensors):
        for name, value in tensors.items():
            kept = value.to(torch.int32) if not value.is_floating_point() else value.float()
            out[f"{prefix}.{name}"] = kept.contiguous().clone()

    x = torch.randn(ROWS, Config.hidden_size) * torch.logspace(-3, 1, ROWS)[:, None]
    norm = randomise(dense.Qwen3_5RMSNorm(Config.hidden_size, EPS), 0.3)
    keep("norm", x=x, weight=norm.weight, out=norm(x))

    x, gate = torch.randn(ROWS, 3, 40), torch.randn(ROWS, 3, 40) * 2
    gated = dense.Qwen3_5RMSNormGated(40, EPS)
    gated.weight.copy_(1 + 0.2 * torch.randn(40))
    keep("gated_norm", x=x, gate=gate, weight=gated.weight, out=gated(x, gate))

    x = torch.randn(ROWS, Config.hidden_size)
    mlp = randomise(dense.Qwen3_5MLP(Config, 36), 0.2)
    keep("mlp", x=x, gate=mlp.gate_proj.weight, up=mlp.up_proj.weight, down=mlp.down_proj.weight, out=mlp(x))

    block = randomise(moe.Qwen3_5MoeSparseMoeBlock(Config), 0.2)
    _, _, routes = block.gate(x)
    keep(
        "moe",
        x=x,
        router=block.gate.weight,
        gate_up=block.experts.gate_up_proj,
        down=block.experts.down_proj,
        shared_gate_up=torch.cat([block.shared_expert.gate_proj.weight, block.shared_expert.up_proj.weight]),
        shared_down=block.shared_expert.down_proj.weight,
        shared_gate=block.shared_expert_gate.weight,
        routes=routes,
        out=block(x[None])[0],
    )
    save_file(out, "dense.safetensors")


if __name__ == "__main__":
    main()
