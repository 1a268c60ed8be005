//! The published geometries, for random weights and memory plans without a checkpoint at hand.

use super::{Config, FeedForward, Gdn, LayerKind, Sampling};

struct Geometry {
    name: &'static str,
    hidden: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    v_heads: usize,
    ffn: FeedForward,
    tied: bool,
}

const fn dense(intermediate: usize) -> FeedForward {
    FeedForward::Dense { intermediate }
}

const fn moe(experts: usize, top_k: usize, intermediate: usize) -> FeedForward {
    FeedForward::Moe { experts, top_k, intermediate, shared_intermediate: intermediate }
}

/// What a name may leave out.
const FAMILY: &str = "qwen3.5-";

#[rustfmt::skip]
const GEOMETRIES: [Geometry; 8] = [
    Geometry { name: "qwen3.5-0.8b", hidden: 1024, layers: 24, heads: 8, kv_heads: 2, v_heads: 16, ffn: dense(3584), tied: true },
    Geometry { name: "qwen3.5-2b", hidden: 2048, layers: 24, heads: 8, kv_heads: 2, v_heads: 16, ffn: dense(6144), tied: true },
    Geometry { name: "qwen3.5-4b", hidden: 2560, layers: 32, heads: 16, kv_heads: 4, v_heads: 32, ffn: dense(9216), tied: true },
    Geometry { name: "qwen3.5-9b", hidden: 4096, layers: 32, heads: 16, kv_heads: 4, v_heads: 32, ffn: dense(12_288), tied: false },
    Geometry { name: "qwen3.5-27b", hidden: 5120, layers: 64, heads: 24, kv_heads: 4, v_heads: 48, ffn: dense(17_408), tied: false },
    Geometry { name: "qwen3.5-35b-a3b", hidden: 2048, layers: 40, heads: 16, kv_heads: 2, v_heads: 32, ffn: moe(256, 8, 512), tied: false },
    Geometry { name: "qwen3.5-122b-a10b", hidden: 3072, layers: 48, heads: 32, kv_heads: 2, v_heads: 64, ffn: moe(256, 8, 1024), tied: false },
    Geometry { name: "qwen3.5-397b-a17b", hidden: 4096, layers: 60, heads: 32, kv_heads: 2, v_heads: 64, ffn: moe(512, 10, 1024), tied: false },
];

/// The names [`Config::preset`] knows.
pub const PRESETS: [&str; GEOMETRIES.len()] = {
    let mut names = [""; GEOMETRIES.len()];
    let mut i = 0;
    while i < names.len() {
        names[i] = GEOMETRIES[i].name;
        i += 1;
    }
    names
};

pub(super) fn preset(name: &str) -> Option<Config> {
    let short = |g: &Geometry| g.name.strip_prefix(FAMILY).is_some_and(|s| s.eq_ignore_ascii_case(name));
    let g = GEOMETRIES.iter().find(|g| g.name.eq_ignore_ascii_case(name) || short(g))?;
    let moe = matches!(g.ffn, FeedForward::Moe { .. });
    Some(Config {
        model_type: if moe { "qwen3_5_moe_text" } else { "qwen3_5_text" }.into(),
        hidden: g.hidden,
        layers: (1..=g.layers)
            .map(|i| if i.is_multiple_of(4) { LayerKind::Full } else { LayerKind::Linear })
            .collect(),
        heads: g.heads,
        kv_heads: g.kv_heads,
        head_dim: 256,
        rotary_dim: 64,
        rope_theta: 1e7,
        gdn: Gdn { k_heads: 16, v_heads: g.v_heads, k_dim: 128, v_dim: 128, conv_width: 4 },
        ffn: g.ffn,
        vocab: 248_320,
        eps: 1e-6,
        tied: g.tied,
        mtp_layers: 1,
        max_positions: 262_144,
        eos: vec![248_046, 248_044],
        bos: Some(248_044),
        pad: Some(248_044),
        sampling: Sampling {
            sample: true,
            temperature: Some(1.0),
            top_k: Some(20),
            top_p: Some(0.95),
            ..Sampling::default()
        },
    })
}
