//! A file of requests of any content: refused in words, or requests whose every field is accepted or
//! refused in words.
#![no_main]

use engine::{
    Request,
    jsonl::{self, Prompt},
};
use libfuzzer_sys::fuzz_target;
use lockstep_fuzz::is_one_paragraph;
use std::path::Path;

fuzz_target!(|text: &str| {
    let lines = match jsonl::parse(text, Path::new("requests.jsonl")) {
        Ok(lines) => lines,
        Err(error) => return is_one_paragraph(&error),
    };
    assert_eq!(lines.len(), text.lines().filter(|line| !line.trim().is_empty()).count());
    for line in lines {
        if let Prompt::Text(prompt) = &line.prompt {
            assert!(prompt.len() <= text.len());
        }
        let mut request = Request::greedy(vec![0], 16);
        line.apply(&mut request);
        if let Err(error) = request.sampling.check(4096, engine::request::MAX_BIAS) {
            is_one_paragraph(&error.into());
        }
    }
});
