//! A `config.json` and, after a NUL, a `generation_config.json` of any content: refused in words, or a
//! geometry whose sizes can be computed with.
#![no_main]

use engine::{
    cache::{Limits, MAX_DRAFTS, MemoryPlan},
    config::{Config, FeedForward},
    request::recommended,
    weights::required_tensors,
};
use libfuzzer_sys::fuzz_target;
use lockstep_fuzz::is_one_paragraph;
use std::path::Path;

fuzz_target!(|text: &str| {
    let (config, generation) = text.split_once('\0').unwrap_or((text, "{}"));
    let mut config = match Config::parse(config, Path::new("config.json")) {
        Ok(config) => config,
        Err(error) => return is_one_paragraph(&error),
    };
    if let Err(error) = config.apply_generation(generation, Path::new("generation_config.json")) {
        is_one_paragraph(&error);
    }
    assert!(config.heads % config.kv_heads == 0 && config.gdn.v_heads % config.gdn.k_heads == 0);
    assert!(config.rotary_dim % 2 == 0 && config.rotary_dim <= config.head_dim);
    if let FeedForward::Moe { experts, top_k, .. } = config.ffn {
        assert!(top_k <= experts);
    }
    assert!(config.eos.iter().all(|&id| (id as usize) < config.vocab));
    let elements: u128 = required_tensors(&config).map(|tensor| tensor.elements() as u128).sum();
    assert!(elements > 0);
    recommended(&config.sampling, 1).check(config.vocab, 0).expect("what is recommended can be used");
    let limits = Limits {
        slots: 8,
        positions: config.max_positions.min(4096),
        page_rows: 64,
        pages: 513,
        max_drafts: MAX_DRAFTS,
        flush_after: 2,
        prefill_rows: 512,
        draft_head: config.mtp_layers > 0,
    };
    assert!(MemoryPlan::of(&config, &limits, 2).total() > 0);
});
