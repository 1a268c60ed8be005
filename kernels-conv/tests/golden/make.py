"""Golden values for the conv tests, by SciPy: lfilter for the convolution, expit for SiLU, both in float64.

    pip install numpy scipy safetensors
    python make.py        # writes conv.safetensors beside this file

Inputs are exact in bfloat16. Every channel is filtered on its own; lfilter's coefficient 0 meets the current
input, so the taps (oldest first) are reversed for it.
"""

import pathlib

import numpy as np
from safetensors.numpy import save_file
from scipy.signal import lfilter
from scipy.special import expit


def bf16(values):
    """Cuts to the top 16 bits of float32: exact in bfloat16."""
    bits = np.asarray(values, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return bits.view(np.float32)


def main():
    rng = np.random.default_rng(20260101)
    rows, channels, tensors = 19, 24, {}
    for width in (2, 3, 4):
        x = bf16(rng.normal(0, 1.5, (rows, channels)))
        weight = bf16(rng.normal(0, 0.6, (channels, width)))
        bias = bf16(rng.normal(0, 0.5, channels))
        plain = np.stack(
            [lfilter(weight[c, ::-1].astype(np.float64), [1.0], x[:, c].astype(np.float64)) for c in range(channels)],
            axis=1,
        )
        shifted = plain + bias.astype(np.float64)
        for name, tensor in {
            "x": x,
            "weight": weight,
            "bias": bias,
            "out.silu": plain * expit(plain),
            "out.bias_silu": shifted * expit(shifted),
            "out.bias": shifted,
        }.items():
            tensors[f"w{width}.{name}"] = tensor.astype(np.float32)
    save_file(tensors, pathlib.Path(__file__).with_name("conv.safetensors"))


if __name__ == "__main__":
    main()
