//! One request's text as it grows, up to a stop string.

use super::source::Speller;

/// Turns tokens into text and ends it before the first stop string.
#[derive(Debug)]
pub(super) struct Reply {
    speller: Speller,
    stops: Vec<String>,
    /// Text not yet handed out because it may be the beginning of a stop string.
    held: String,
    stopped: bool,
}

impl Reply {
    pub(super) fn new(speller: Speller, stops: Vec<String>) -> Self {
        Reply { speller, stops, held: String::new(), stopped: false }
    }

    /// Whether a stop string has come.
    pub(super) fn stopped(&self) -> bool {
        self.stopped
    }

    /// The text that is certain after `tokens`.
    pub(super) fn push(&mut self, tokens: &[u32]) -> String {
        if self.stopped {
            return String::new();
        }
        for &token in tokens {
            self.speller.push_into(token, &mut self.held);
        }
        self.release(false)
    }

    /// The rest, at the end of the tokens.
    pub(super) fn finish(&mut self) -> String {
        if self.stopped {
            return String::new();
        }
        let rest = self.speller.flush();
        self.held.push_str(&rest);
        self.release(true)
    }

    fn release(&mut self, all: bool) -> String {
        if let Some(at) = self.stops.iter().filter_map(|stop| self.held.find(stop)).min() {
            self.stopped = true;
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let keep = if all { 0 } else { self.stops.iter().map(|s| overlap(&self.held, s)).max().unwrap_or(0) };
        let rest = self.held.split_off(self.held.len() - keep);
        std::mem::replace(&mut self.held, rest)
    }
}

/// Bytes at the end of `text` that begin `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    stop.char_indices()
        .map(|(at, c)| at + c.len_utf8())
        .rev()
        .find(|&n| n < stop.len() && text.ends_with(&stop[..n]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::overlap;

    #[test]
    fn holds_back_only_what_may_become_a_stop() {
        assert_eq!(overlap("abc", "cd"), 1);
        assert_eq!(overlap("abc", "bcd"), 2);
        assert_eq!(overlap("abc", "x"), 0);
        assert_eq!(overlap("aaa", "aab"), 2);
        assert_eq!(overlap("né", "éa"), 2);
        assert_eq!(overlap("", "a"), 0);
    }
}
