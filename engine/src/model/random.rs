//! A model that nobody trained: a geometry's weights, drawn on the backend itself.

use super::{Context, EngineBackend, Model, build};
use crate::{
    Result,
    config::Config,
    machine::Machine,
    weights::{self, TensorSpec},
};
use kernels_core::{Activation, TensorMut};
use kernels_dense::{RandomFill, RandomFillArgs, RandomFillProblem};
use std::convert::Infallible;

/// How random weights are scaled. The default keeps activations near those of a trained model: the residual stream
/// grows from 1 to about 2 whatever the depth, logits leave no doubt about the best of them, some states forget in a few
/// tokens and some in hundreds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scales {
    /// Deviation of embeddings; a quarter of it where they are the head as well.
    pub embedding: f32,
    /// Deviation of a linear layer's outputs, for inputs of deviation 1.
    pub linear: f32,
    /// The same where the output is added to the residual stream, times the root of the number of such layers.
    pub residual: f32,
    /// Deviation of a norm's factors from 1.
    pub norm: f32,
    /// Deviation of logits.
    pub logits: f32,
    /// Deviation of a router's logits.
    pub router: f32,
    /// Mean and deviation of the logarithm of a head's rate of decay.
    pub a_log: [f32; 2],
    /// Mean and deviation of a head's bias in front of the softplus that multiplies this rate.
    pub dt_bias: [f32; 2],
}

impl Default for Scales {
    fn default() -> Self {
        Scales {
            embedding: 1.0,
            linear: 1.0,
            residual: 3.0,
            norm: 0.1,
            logits: 3.0,
            router: 1.0,
            a_log: [1.8, 1.0],
            dt_bias: [-4.6, 1.2],
        }
    }
}

/// Builds a model of this configuration out of random weights, with the same bits on every backend.
///
/// Tensor i of [`weights::required_tensors`] is stream i of `seed`, so that a model with and without its draft head has
/// the same target.
///
/// ```
/// use engine::{config::Config, model::{self, Context, Scales}};
/// use kernels_core::{Cpu, DeviceInfo, bf16};
/// let text = r#"{"model_type": "qwen3_5_text", "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2,
///     "num_key_value_heads": 1, "head_dim": 16, "rope_theta": 10000, "linear_num_key_heads": 1,
///     "linear_num_value_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16, "intermediate_size": 64,
///     "vocab_size": 100}"#;
/// let config = Config::parse(text, "config.json".as_ref())?;
/// let context = Context::<Cpu>::new((), DeviceInfo::cpu());
/// let model = model::random::<Cpu, bf16>(&context, config, 7, &Scales::default())?;
/// assert_eq!(model.valid_vocab(), 100);
/// # Ok::<(), engine::Error>(())
/// ```
pub fn random<B: EngineBackend, A: Activation>(
    cx: &Context<B>,
    config: Config,
    seed: u64,
    scales: &Scales,
) -> Result<Model<B, A>> {
    let mut streams = 0..;
    let draw = &mut |spec: &TensorSpec| -> Result<Draw, Infallible> {
        let stream = streams.next().expect("a model has fewer than 2^32 tensors");
        let [mean, std] = law(&config, spec, scales);
        Ok(Draw { len: spec.elements(), stream, mean, std })
    };
    let Ok(draws) = weights::Model::of(&config).try_map(draw);
    let vocab = config.vocab;
    build::from(&Random { cx, seed }, &draws, config, vocab)
}

/// What one tensor is filled with.
struct Draw {
    len: usize,
    stream: u32,
    mean: f32,
    std: f32,
}

struct Random<'c, B: Machine> {
    cx: &'c Context<B>,
    seed: u64,
}

impl<B: EngineBackend> build::Source for Random<'_, B> {
    type Backend = B;
    type Tensor = Draw;

    fn rows<A: Activation>(&self, parts: &[&Draw], zeros: usize) -> Result<B::Memory<A>> {
        let Context { queue, device, .. } = self.cx;
        let drawn: usize = parts.iter().map(|part| part.len).sum();
        let mut memory = B::zeros::<A>(queue, drawn + zeros)?;
        let mut at = 0;
        for &&Draw { len, stream, mean, std } in parts {
            let problem = RandomFillProblem { len, first: 0, seed: self.seed, stream, mean, std };
            let mut all = B::view_mut(&mut memory);
            let out = TensorMut::new(B::slice_mut(&mut all, at..at + len), [len]);
            RandomFill::plan(problem, device)?.run(queue, RandomFillArgs::<B, A> { out })?;
            at += len;
        }
        Ok(memory)
    }
}

/// Mean and deviation of a tensor's elements.
fn law(config: &Config, spec: &TensorSpec, scales: &Scales) -> [f32; 2] {
    let width = |n: usize| (n as f32).sqrt();
    // Of every matrix the last axis is the one that is summed over, the taps of a convolution included.
    let summed = *spec.shape.last().expect("a tensor has an axis");
    let linear = scales.linear / width(summed);
    let layers = if spec.name.starts_with("mtp.") { 1 } else { config.layers.len() };
    // Small where it is the head as well, so that the layers have the say and not the last token.
    let embedding = if config.tied { scales.embedding / 4.0 } else { scales.embedding };
    let name = spec.name.trim_end_matches(".weight");
    let (owner, last) = name.rsplit_once('.').unwrap_or(("", name));
    match last {
        "embed_tokens" => [0.0, embedding],
        "lm_head" => [0.0, scales.logits / width(config.hidden)],
        "A_log" => scales.a_log,
        "dt_bias" => scales.dt_bias,
        // Not around zero.
        "norm" if owner.ends_with("linear_attn") => [1.0, scales.norm],
        // In front of a head that is also the embedding: factors of either sign, or each token's logit would be the
        // square of its own embedding, and the best one after every token that token itself.
        "norm" if config.tied => [-1.0, scales.logits / embedding / width(config.hidden)],
        last if last.contains("norm") => [0.0, scales.norm],
        "o_proj" | "out_proj" | "down_proj" => [0.0, scales.residual * linear / width(2 * layers)],
        "gate" => [0.0, scales.router / width(summed)],
        _ => [0.0, linear],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Engine, Options, Pace, Request,
        cache::{Caches, Limits},
        config::{FeedForward, Gdn, LayerKind},
        draft::{DraftLength, Plain},
        model::{Kind, Pass, Scratch},
        round::Core,
    };
    use kernels_core::{Cpu, DeviceInfo, Rows, Tensor, bf16};

    const TOKENS: usize = 48;
    const VOCAB: usize = 1000;

    fn context() -> Context<Cpu> {
        Context::new((), DeviceInfo::cpu())
    }

    /// A small model with the heads, the layers and the tie of a large one.
    fn small(layers: usize, hidden: usize, ffn: FeedForward, tied: bool) -> Config {
        Config {
            hidden,
            layers: (1..=layers)
                .map(|i| if i.is_multiple_of(4) { LayerKind::Full } else { LayerKind::Linear })
                .collect(),
            heads: 4,
            kv_heads: 2,
            head_dim: 32,
            rotary_dim: 8,
            gdn: Gdn { k_heads: 2, v_heads: 4, k_dim: 32, v_dim: 32, conv_width: 4 },
            ffn,
            vocab: VOCAB,
            tied,
            max_positions: 4096,
            eos: Vec::new(),
            bos: None,
            pad: None,
            ..Config::preset("qwen3.5-0.8b").expect("a preset")
        }
    }

    fn limits(draft_head: bool) -> Limits {
        Limits {
            slots: 1,
            positions: 256,
            page_rows: 64,
            pages: 5,
            max_drafts: 0,
            flush_after: 2,
            prefill_rows: TOKENS,
            draft_head,
        }
    }

    fn cases() -> [(&'static str, Config); 5] {
        let dense = FeedForward::Dense { intermediate: 192 };
        let moe = FeedForward::Moe { experts: 16, top_k: 4, intermediate: 32, shared_intermediate: 32 };
        [
            ("shallow", small(4, 128, dense, false)),
            ("deep", small(64, 64, dense, false)),
            ("tied", small(24, 128, dense, true)),
            ("deep and tied", small(64, 64, dense, true)),
            ("experts", small(40, 64, moe, false)),
        ]
    }

    fn rms(x: impl Iterator<Item = f32>) -> f64 {
        let (squares, count) = x.fold((0.0, 0), |(s, n), x| (s + f64::from(x).powi(2), n + 1));
        (squares / f64::from(count)).sqrt()
    }

    fn ids() -> Vec<u32> {
        (0..TOKENS as u32).map(|i| i * 7919 % VOCAB as u32).collect()
    }

    fn distinct(mut ids: Vec<u32>) -> usize {
        ids.sort_unstable();
        ids.dedup();
        ids.len()
    }

    fn best(row: &[f32]) -> u32 {
        (0..VOCAB).max_by(|a, b| row[*a].total_cmp(&row[*b])).expect("a vocabulary") as u32
    }

    fn check_logits(name: &str, logits: &[f32]) {
        let std = rms(logits.iter().copied());
        assert!((1.0..10.0).contains(&std), "{name}: logits of {std}");
        let chosen = distinct(logits.chunks(VOCAB).map(best).collect());
        assert!(chosen > TOKENS * 3 / 4, "{name}: {chosen} tokens are the best one in {TOKENS} rows");
    }

    /// The residual stream of a text that is known, and what the model thinks of it.
    #[test]
    fn activations_stay_sane_at_any_depth() {
        for (name, config) in cases() {
            let (layers, width) = (config.layers.len(), config.hidden);
            let model = random::<Cpu, bf16>(&context(), config, 1, &Scales::default()).unwrap();
            let mut core = Core::new(context(), model, limits(false)).unwrap();
            core.open(0, &ids(), &Request::greedy(ids(), 1), 256).unwrap();
            core.lend_pages(0, &[1, 2, 3, 4]).unwrap();
            let mut sizes = Vec::new();
            let mut tap = |_: usize, x: Tensor<'_, Cpu, bf16, 2>| {
                sizes.push(rms((0..x.dims[0]).flat_map(|row| x.row(&[row])).map(|x| x.to_f32())));
            };
            check_logits(name, &core.score(0, TOKENS, Some(&mut tap)).unwrap());
            assert_eq!(sizes.len(), layers + 1);
            assert!(sizes.iter().all(|size| (0.1..100.0).contains(size)), "{name}: {sizes:?}");
            // The layers say more than the embedding, and not the same of every token.
            assert!(sizes[layers] > 1.5 * sizes[0], "{name}: {sizes:?}");
            let hidden: Vec<f32> = core.hidden(TOKENS).unwrap().iter().map(|x| x.to_f32()).collect();
            let mut together = vec![0.0; width];
            for row in hidden.chunks(width) {
                let length = rms(row.iter().copied()) as f32;
                together.iter_mut().zip(row).for_each(|(sum, x)| *sum += x / length / TOKENS as f32);
            }
            // The mean of strangers is as long as one of them over the root of their number: 0.14.
            let alike = rms(together.into_iter());
            assert!(alike < 0.3, "{name}: rows have {alike} in common");
        }
    }

    #[test]
    fn greedy_decoding_goes_on() {
        for (name, config) in cases() {
            let model = random::<Cpu, bf16>(&context(), config, 1, &Scales::default()).unwrap();
            let options = Options { limits: limits(false), drafts: DraftLength::Fixed(0), pace: Pace::Wait };
            let mut engine = Engine::new(context(), model, options, Box::new(Plain)).unwrap();
            engine.submit(Request::greedy(ids()[..8].to_vec(), 96)).unwrap();
            let (tokens, _) = engine.run().unwrap().into_values().next().unwrap();
            let tail = distinct(tokens[48..].to_vec());
            assert!(tail > 24, "{name}: {tail} tokens in the last 48: {tokens:?}");
        }
    }

    /// Rows that were filled up are there, and no id that nobody has can be chosen.
    #[test]
    fn odd_vocabularies_and_heads_decode() {
        let dense = FeedForward::Dense { intermediate: 96 };
        for tied in [false, true] {
            let small = small(4, 64, dense, tied);
            let gdn = Gdn { k_heads: 1, v_heads: 3, ..small.gdn };
            let config = Config { vocab: VOCAB + 1, gdn, ..small };
            let model = random::<Cpu, bf16>(&context(), config, 1, &Scales::default()).unwrap();
            assert_eq!((model.valid_vocab(), model.config().vocab), (VOCAB + 1, VOCAB + 8));
            let mut core = Core::new(context(), model, limits(true)).unwrap();
            core.open(0, &ids(), &Request::greedy(ids(), 1), 256).unwrap();
            core.lend_pages(0, &[1, 2, 3, 4]).unwrap();
            for row in core.score(0, TOKENS, None).unwrap().chunks(VOCAB + 8) {
                assert!(row[..=VOCAB].iter().all(|logit| logit.is_finite()), "tied: {tied}");
                assert!(row[VOCAB + 1..].iter().all(|logit| *logit == f32::NEG_INFINITY), "tied: {tied}");
            }
        }
    }

    /// Rows as they come out of the target: of deviation 1.
    #[test]
    fn the_draft_head_is_sane_too() {
        for (name, config) in cases() {
            let (cx, width) = (context(), config.hidden);
            let model = random::<Cpu, bf16>(&cx, config.clone(), 1, &Scales::default()).unwrap();
            let limits = limits(true);
            let mut caches = Caches::<Cpu, bf16>::new(&(), &config, &limits).unwrap();
            let mut scratch = Scratch::<Cpu, bf16>::new(&(), &config, TOKENS, TOKENS).unwrap();
            caches.shared.page_table.copy_from_slice(&[1, 2, 3, 4]);
            let problem =
                RandomFillProblem { len: TOKENS * width, first: 0, seed: 9, stream: 0, mean: 0.0, std: 1.0 };
            let out = TensorMut::of(&mut scratch.carried, [TOKENS * width]);
            RandomFill::plan(problem, &cx.device).unwrap().run(&(), RandomFillArgs::<Cpu> { out }).unwrap();
            let ids: Vec<i32> = ids().into_iter().map(|id| id as i32).collect();
            let index = Rows::<Cpu> {
                slots: Tensor::new(&[0][..], [1]),
                start: Tensor::new(&[1][..], [1]),
                row_offsets: Tensor::new(&[0, TOKENS as i32][..], [2]),
            };
            let pass = Pass {
                kind: Kind::Prefill,
                rows: TOKENS,
                sequences: 1,
                max_rows: TOKENS,
                index,
                ids: Tensor::of(&ids, [TOKENS]),
            };
            model.draft(&cx, &pass, &mut scratch, &mut caches).unwrap();
            let size = rms(scratch.residual[..TOKENS * width].iter().map(|x| x.to_f32()));
            assert!((0.1..100.0).contains(&size), "{name}: {size}");
            let drafted = Tensor::of(&scratch.drafted, [TOKENS, width]);
            model.logits(&cx, drafted, &mut scratch.logits, &mut scratch.workspaces).unwrap();
            check_logits(name, &scratch.logits);
        }
    }

    /// Tokens after which a state has forgotten half.
    #[test]
    fn states_forget_at_different_rates() {
        let config = small(64, 64, FeedForward::Dense { intermediate: 64 }, false);
        let model = random::<Cpu, bf16>(&context(), config, 1, &Scales::default()).unwrap();
        let mut lives: Vec<f32> = Vec::new();
        for layer in &model.layers {
            if let crate::model::Mixer::Gdn(gdn) = &layer.mixer {
                let rates = gdn.a_log.iter().zip(&gdn.dt_bias).map(|(a, dt)| a.exp() * dt.exp().ln_1p());
                lives.extend(rates.map(|rate| 2.0f32.ln() / rate));
            }
        }
        lives.sort_by(f32::total_cmp);
        let at = |share: f32| lives[(share * lives.len() as f32) as usize];
        assert_eq!(lives.len(), 48 * 4);
        assert!(at(0.1) < 4.0 && at(0.9) > 50.0, "{} to {}", at(0.1), at(0.9));
        assert!((5.0..40.0).contains(&at(0.5)), "{}", at(0.5));
    }

    #[test]
    fn tensors_are_streams_of_their_own() {
        let config = small(8, 64, FeedForward::Dense { intermediate: 64 }, false);
        let make = |config: &Config, seed| {
            random::<Cpu, bf16>(&context(), config.clone(), seed, &Scales::default()).unwrap()
        };
        let (model, again, other) = (make(&config, 1), make(&config, 1), make(&config, 2));
        let headless = make(&Config { mtp_layers: 0, ..config.clone() }, 1);
        let parts = |model: &Model<Cpu, bf16>| {
            let mut parts = vec![model.embed.clone(), model.norm.clone(), model.head.clone().unwrap()];
            for layer in &model.layers {
                parts.extend([layer.input_norm.clone(), layer.post_norm.clone()]);
                if let crate::model::Ffn::Dense { gate_up, down } = &layer.ffn {
                    parts.extend([gate_up[..64 * 64].to_vec(), gate_up[64 * 64..].to_vec(), down.clone()]);
                }
            }
            parts
        };
        let all = parts(&model);
        assert_eq!(all, parts(&again));
        assert_eq!(all, parts(&headless), "the target without its head");
        assert!(model.has_mtp() && !headless.has_mtp());
        for (i, part) in all.iter().enumerate() {
            assert_ne!(*part, parts(&other)[i], "part {i} of two seeds");
            // Signs, as sizes differ: half of them are alike by chance.
            for before in &all[..i] {
                let alike = part.iter().zip(before).filter(|(a, b)| (a.to_f32() < 0.0) == (b.to_f32() < 0.0));
                let (alike, of) = (alike.count() as f64, part.len().min(before.len()) as f64);
                assert!(
                    (alike / of - 0.5).abs() < 3.0 / of.sqrt(),
                    "part {i} is another one: {alike} of {of}"
                );
            }
        }
    }
}
