//! A `tokenizer.json` of any content: refused in words, or a tokenizer that encodes and decodes without
//! failing and streams what it decodes at once.
#![no_main]

use engine::text::Tokenizer;
use libfuzzer_sys::fuzz_target;
use lockstep_fuzz::is_one_paragraph;
use std::path::Path;

const TEXT: &str = "A line, and <think>\nanother 12.5  na\u{ef}ve \u{1f980}<|im_end|>";

fuzz_target!(|file: &[u8]| {
    let tokenizer = match Tokenizer::parse(file, Path::new("tokenizer.json")) {
        Ok(tokenizer) => tokenizer,
        Err(error) => return is_one_paragraph(&error),
    };
    let ids = match tokenizer.encode(TEXT) {
        Ok(ids) => ids,
        Err(error) => return is_one_paragraph(&error),
    };
    let last = tokenizer.valid_vocab() as u32 - 1;
    for ids in [&ids[..], &[0, last, last.wrapping_add(1), u32::MAX]] {
        for skip_special in [false, true] {
            let mut stream = tokenizer.detokenizer(skip_special);
            let mut text: String = ids.iter().map(|&id| stream.push(id)).collect();
            text += &stream.flush();
            assert_eq!(text, tokenizer.decode(ids, skip_special));
        }
    }
});
