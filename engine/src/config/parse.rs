//! From JSON to a checked [`Config`].

use super::{Config, FeedForward, Gdn, LayerKind, Sampling, fields::Fields};
use crate::Result;
use serde_json::Value;

/// Upper bounds of single sizes. No published model comes near, and no product of the sizes of one
/// tensor (at most three of them) can overflow 64 bits.
pub(super) mod max {
    pub(crate) const HIDDEN: usize = 1 << 17;
    pub(crate) const INTERMEDIATE: usize = 1 << 20;
    pub(crate) const LAYERS: usize = 1 << 10;
    pub(crate) const HEADS: usize = 1 << 10;
    pub(crate) const HEAD_DIM: usize = 1 << 10;
    pub(crate) const EXPERTS: usize = 1 << 12;
    pub(crate) const CONV_WIDTH: usize = 4;
    pub(crate) const VOCAB: usize = 1 << 22;
    pub(crate) const POSITIONS: usize = 1 << 30;
}

/// Reads the whole of a `config.json`.
pub(super) fn config(root: Fields<'_>) -> Result<Config> {
    let nested = root.object("text_config", "text_config.")?;
    let text = nested.as_ref().unwrap_or(&root);
    let (model_type, moe) = model_type(&root, text)?;
    refuse_unsupported(&root, text)?;

    let hidden = text.size("hidden_size", Some(if moe { 2048 } else { 4096 }), max::HIDDEN)?;
    let layers = layers(text, moe)?;
    let heads = text.size("num_attention_heads", Some(16), max::HEADS)?;
    let kv_heads = text.size("num_key_value_heads", Some(if moe { 2 } else { 4 }), max::HEADS)?;
    if !heads.is_multiple_of(kv_heads) {
        let why = format!("it must divide num_attention_heads, which is {heads}");
        return Err(text.refuse("num_key_value_heads", why, "correct one of the two"));
    }
    let head_dim = text.size("head_dim", Some(256), max::HEAD_DIM)?;
    let (rope_theta, rotary_dim) = rope(text, head_dim)?;
    let vocab = text.size("vocab_size", Some(248_320), max::VOCAB)?;
    let positive = |x: f64| x > 0.0 && x < 1.0 && x as f32 > 0.0;
    let eps = text.number("rms_norm_eps", "a number above 0 and below 1", positive)?.unwrap_or(1e-6) as f32;
    let tied = text.flag("tie_word_embeddings")?.unwrap_or(false)
        || root.flag("tie_word_embeddings")?.unwrap_or(false);
    let mut eos = text.tokens("eos_token_id", vocab)?;
    if eos.is_empty() {
        eos = root.tokens("eos_token_id", vocab)?;
    }
    let one = |name| text.tokens(name, vocab).map(|ids| ids.first().copied());
    Ok(Config {
        model_type,
        hidden,
        layers,
        heads,
        kv_heads,
        head_dim,
        rotary_dim,
        rope_theta,
        gdn: gdn(text)?,
        ffn: feed_forward(text, moe)?,
        vocab,
        eps,
        tied,
        mtp_layers: mtp_layers(text)?,
        max_positions: text.size("max_position_embeddings", Some(32_768), max::POSITIONS)?,
        eos,
        bos: one("bos_token_id")?,
        pad: one("pad_token_id")?,
        sampling: Sampling::default(),
    })
}

/// The text model's type, and whether it has experts.
fn model_type(root: &Fields<'_>, text: &Fields<'_>) -> Result<(String, bool)> {
    let owner = if text.get("model_type").is_some() { text } else { root };
    match owner.text("model_type")? {
        Some(name @ ("qwen3_5" | "qwen3_5_text")) => Ok((name.into(), false)),
        Some(name @ ("qwen3_5_moe" | "qwen3_5_moe_text")) => Ok((name.into(), true)),
        _ => Err(owner.refuse(
            "model_type",
            "the engine runs qwen3_5, qwen3_5_text, qwen3_5_moe and qwen3_5_moe_text",
            "use a Qwen3.5, Qwen3.6 or Qwen3.8 checkpoint",
        )),
    }
}

/// Everything that would silently change the mathematics.
fn refuse_unsupported(root: &Fields<'_>, text: &Fields<'_>) -> Result<()> {
    for at in [root, text] {
        if at.get("quantization_config").is_some() {
            let why = "quantised weights are not implemented";
            return Err(at.refuse("quantization_config", why, "use the BF16 release of the model"));
        }
    }
    text.only("hidden_act", &["silu"])?;
    text.only("output_gate_type", &["silu", "swish"])?;
    let flags = [
        ("attention_bias", true, "no Qwen3.5 model has biases and the engine adds none"),
        ("attn_output_gate", false, "attention without an output gate is not implemented"),
        ("norm_topk_prob", false, "the weights of the chosen experts are always renormalised"),
        ("mtp_use_dedicated_embeddings", true, "the MTP head shares the model's embedding and output head"),
    ];
    for (name, bad, why) in flags {
        if text.flag(name)? == Some(bad) {
            return Err(text.refuse(name, why, "use a checkpoint of the Qwen3.5 family"));
        }
    }
    Ok(())
}

fn layers(text: &Fields<'_>, moe: bool) -> Result<Vec<LayerKind>> {
    let count = text.size("num_hidden_layers", Some(if moe { 40 } else { 32 }), max::LAYERS)?;
    let interval = text.size("full_attention_interval", Some(4), max::LAYERS)?;
    let remedy = "fetch the release's own config.json";
    match text.get("layer_types") {
        None => Ok((1..=count)
            .map(|i| if i.is_multiple_of(interval) { LayerKind::Full } else { LayerKind::Linear })
            .collect()),
        Some(Value::Array(list)) if list.len() == count => list
            .iter()
            .enumerate()
            .map(|(i, kind)| match kind.as_str() {
                Some("linear_attention") => Ok(LayerKind::Linear),
                Some("full_attention") => Ok(LayerKind::Full),
                _ => {
                    let why =
                        format!("entry {i} is {kind}; layers are \"linear_attention\" or \"full_attention\"");
                    Err(text.refuse("layer_types", why, remedy))
                }
            })
            .collect(),
        Some(_) => {
            let why = format!("it must be a list of num_hidden_layers = {count} names");
            Err(text.refuse("layer_types", why, remedy))
        }
    }
}

/// Base and rotating dimensions. `rope_parameters` wins over the same names beside it.
fn rope(text: &Fields<'_>, head_dim: usize) -> Result<(f64, usize)> {
    let object = text.object("rope_parameters", "rope_parameters.")?;
    let legacy = text.object("rope_scaling", "rope_scaling.")?;
    for at in [object.as_ref(), legacy.as_ref()].into_iter().flatten() {
        for name in ["rope_type", "type"] {
            // "mrope" is how multimodal exports once spelt the default: for text it is ordinary rope.
            if !matches!(at.text(name)?, None | Some("default" | "mrope")) {
                let why = "only rope type \"default\" is implemented";
                return Err(at.refuse(
                    name,
                    why,
                    "remove the context extension and stay within the model's own",
                ));
            }
        }
    }
    let first = |name: &str, want: &str, good: &dyn Fn(f64) -> bool| -> Result<Option<f64>> {
        match &object {
            Some(rope) if rope.get(name).is_some() => rope.number(name, want, good),
            _ => text.number(name, want, good),
        }
    };
    let Some(theta) = first("rope_theta", "a number above 1", &|x| x > 1.0 && x < 1e30)? else {
        let at = object.as_ref().unwrap_or(text);
        return Err(at.refuse(
            "rope_theta",
            "the rotary base has no default",
            "add it; releases have 10000000",
        ));
    };
    let factor = first("partial_rotary_factor", "above 0 and at most 1", &|x| x > 0.0 && x <= 1.0)?;
    let factor = factor.unwrap_or(0.25);
    let rotary = (head_dim as f64 * factor) as usize;
    if rotary == 0 || !rotary.is_multiple_of(2) {
        let at = match &object {
            Some(rope) if rope.get("partial_rotary_factor").is_some() => rope,
            _ => text,
        };
        let why = format!(
            "head_dim {head_dim} times {factor} gives {rotary} rotary dimensions; wanted an even number above 0"
        );
        return Err(at.refuse("partial_rotary_factor", why, "correct it or head_dim"));
    }
    Ok((theta, rotary))
}

fn gdn(text: &Fields<'_>) -> Result<Gdn> {
    let gdn = Gdn {
        k_heads: text.size("linear_num_key_heads", Some(16), max::HEADS)?,
        v_heads: text.size("linear_num_value_heads", Some(32), max::HEADS)?,
        k_dim: text.size("linear_key_head_dim", Some(128), max::HEAD_DIM)?,
        v_dim: text.size("linear_value_head_dim", Some(128), max::HEAD_DIM)?,
        conv_width: text.size("linear_conv_kernel_dim", Some(4), max::CONV_WIDTH)?,
    };
    if gdn.conv_width == 1 {
        let why = "a convolution of one tap keeps no state; widths 2, 3 and 4 are implemented";
        return Err(text.refuse("linear_conv_kernel_dim", why, "use a checkpoint of the Qwen3.5 family"));
    }
    if !gdn.v_heads.is_multiple_of(gdn.k_heads) {
        let why = format!("it must be a multiple of linear_num_key_heads, which is {}", gdn.k_heads);
        return Err(text.refuse("linear_num_value_heads", why, "correct one of the two"));
    }
    Ok(gdn)
}

fn feed_forward(text: &Fields<'_>, moe: bool) -> Result<FeedForward> {
    if !moe {
        let intermediate = text.size("intermediate_size", Some(12_288), max::INTERMEDIATE)?;
        return Ok(FeedForward::Dense { intermediate });
    }
    let experts = text.size("num_experts", Some(256), max::EXPERTS)?;
    let top_k = text.size("num_experts_per_tok", Some(8), max::EXPERTS)?;
    if top_k > experts {
        let why = format!("a token cannot visit more than num_experts, which is {experts}");
        return Err(text.refuse("num_experts_per_tok", why, "correct one of the two"));
    }
    Ok(FeedForward::Moe {
        experts,
        top_k,
        intermediate: text.size("moe_intermediate_size", Some(512), max::INTERMEDIATE)?,
        shared_intermediate: text.size("shared_expert_intermediate_size", Some(512), max::INTERMEDIATE)?,
    })
}

fn mtp_layers(text: &Fields<'_>) -> Result<usize> {
    let layers = text.count("mtp_num_hidden_layers", 0, max::LAYERS)?;
    if layers > 1 {
        let why =
            "a head of one layer, applied repeatedly, is what is implemented and what every release has";
        return Err(text.refuse("mtp_num_hidden_layers", why, "set it to 0 to run without speculation"));
    }
    Ok(layers)
}

/// Reads a `generation_config.json` into `config`.
pub(super) fn generation(config: &mut Config, root: Fields<'_>) -> Result<()> {
    let eos = root.tokens("eos_token_id", config.vocab)?;
    if !eos.is_empty() {
        config.eos = eos;
    }
    config.bos = root.tokens("bos_token_id", config.vocab)?.first().copied().or(config.bos);
    config.pad = root.tokens("pad_token_id", config.vocab)?.first().copied().or(config.pad);
    let f32s = |name, want, good: fn(f64) -> bool| -> Result<Option<f32>> {
        Ok(root.number(name, want, good)?.map(|x| x as f32))
    };
    // 0 is how these files spell "off" for top_k.
    let top_k = root.count("top_k", 0, usize::MAX)?;
    config.sampling = Sampling {
        sample: root.flag("do_sample")?.unwrap_or(false),
        temperature: f32s("temperature", "0 or more, at most 100", |x| (0.0..=100.0).contains(&x))?,
        top_k: (top_k > 0).then_some(top_k),
        top_p: f32s("top_p", "above 0 and at most 1", |x| x > 0.0 && x <= 1.0)?,
        min_p: f32s("min_p", "from 0 to 1", |x| (0.0..=1.0).contains(&x))?,
        presence_penalty: f32s("presence_penalty", "from -2 to 2", |x| (-2.0..=2.0).contains(&x))?,
        repetition_penalty: f32s("repetition_penalty", "above 0, at most 100", |x| x > 0.0 && x <= 100.0)?,
    };
    Ok(())
}
