"""Makes gated_delta_rule.safetensors: transformers' own recurrence on small random inputs.

Run with torch (any build, CPU is enough), transformers 5.24.0 and safetensors:

    python make_golden.py gated_delta_rule.safetensors

Gates are formed as Qwen3.5's delta-net layer forms them; the state is in transformers' layout
[v_heads, k_dim, v_dim].
"""

import sys

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers.models.qwen3_5.modeling_qwen3_5 import torch_recurrent_gated_delta_rule


def case(seed, tokens, k_heads, v_heads, k_dim, v_dim, dtype, with_state):
    torch.manual_seed(seed)
    draw = lambda *shape: torch.randn(shape).to(dtype)
    t = {
        "q": draw(tokens, k_heads, k_dim),
        "k": draw(tokens, k_heads, k_dim),
        "v": draw(tokens, v_heads, v_dim),
        "a": draw(tokens, v_heads),
        "b": draw(tokens, v_heads),
        "a_log": torch.empty(v_heads).uniform_(0.05, 8.0).log(),
        "dt_bias": torch.randn(v_heads) - 2.0,
    }
    if with_state:
        t["initial_state"] = torch.randn(v_heads, k_dim, v_dim)
    g = -t["a_log"].float().exp() * F.softplus(t["a"].float() + t["dt_bias"])
    out, state = torch_recurrent_gated_delta_rule(
        # float32 throughout: the one rounding of the output is the reader's to make.
        *(t[name].float()[None] for name in "qkv"),
        g=g[None],
        beta=t["b"].float().sigmoid()[None],
        initial_state=t["initial_state"][None] if with_state else None,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    return t | {"out": out[0].contiguous(), "state": state[0].contiguous()}


cases = {
    "small": case(1, 40, 2, 4, 40, 20, torch.float32, True),
    "qwen": case(2, 12, 1, 2, 128, 128, torch.bfloat16, False),
}
save_file({f"{c}.{n}": x for c, ts in cases.items() for n, x in ts.items()}, sys.argv[1])
