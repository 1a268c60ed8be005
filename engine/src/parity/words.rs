//! Word problems: does the model still get them right, and the same ones?

use super::reference::Known;
use crate::{Error, Request, Result, text::Tokenizer};

/// A problem of the embedded checkpoint's collection.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    pub(super) prompt: String,
    answer: i64,
}

/// Tokens of an answer, at most.
const TOKENS: usize = 64;
/// Of 200 problems at least this many must be right.
const RIGHT_OF_200: usize = 197;

pub(super) fn problems(count: usize) -> Vec<Problem> {
    const PROBLEMS: &str = include_str!("../../../assets/tiny-qwen35-mtp/problems.jsonl");
    let problem = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).expect("each line is an object");
        Problem {
            prompt: line["prompt"].as_str().expect("with a prompt").to_owned(),
            answer: line["answer"].as_i64().expect("and an answer"),
        }
    };
    PROBLEMS.lines().take(count).map(problem).collect()
}

/// Requests that end with the line.
pub(super) fn requests(tokenizer: &Tokenizer, problems: &[Problem]) -> Result<Vec<Request>> {
    let mut stop = Vec::new();
    for end in ["\n", "\n\n", ".\n", ".\n\n", "\n\n\n", ".\n\n\n"] {
        // Only what is one token: a longer end has one of these in it.
        let ids = tokenizer.encode(end)?;
        if ids.len() == 1 && !stop.contains(&ids) {
            stop.push(ids);
        }
    }
    if stop.is_empty() {
        return Err(Error::Tokenizer {
            what: "no token ends a line".into(),
            remedy: "the word problems need one; leave them out with --words 0".into(),
        });
    }
    let request = |problem: &Problem| {
        let prompt = tokenizer.encode(&problem.prompt)?;
        Ok(Request { stop: stop.clone(), ..Request::greedy(prompt, TOKENS) })
    };
    problems.iter().map(request).collect()
}

/// The problems whose answer is right: "The answer is N." before the first newline.
pub(super) fn right<'t>(
    tokenizer: &Tokenizer,
    problems: &[Problem],
    answers: impl Iterator<Item = &'t [u32]>,
) -> usize {
    let right = |(problem, tokens): &(&Problem, &[u32])| {
        answer_of(&tokenizer.decode(tokens, true)) == Some(problem.answer)
    };
    problems.iter().zip(answers).filter(right).count()
}

/// How many must be right.
pub(super) fn required(count: usize) -> usize {
    count * RIGHT_OF_200 / 200
}

pub(super) fn plain_answers(known: &[Known]) -> impl Iterator<Item = &[u32]> {
    known.iter().map(|known| &known.tokens[..])
}

fn answer_of(text: &str) -> Option<i64> {
    let line = text.split('\n').next()?;
    let (_, rest) = line.split_once("The answer is ")?;
    let (number, _) = rest.split_once('.')?;
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_line_is_scored() {
        assert_eq!(answer_of(" 6 * 13 = 78. The answer is 66.\n\nQuestion"), Some(66));
        assert_eq!(answer_of(" The answer is 66"), None);
        assert_eq!(answer_of(" no idea\nThe answer is 66."), None);
        assert_eq!(required(200), 197);
        assert_eq!(problems(usize::MAX).len(), 200);
    }
}
