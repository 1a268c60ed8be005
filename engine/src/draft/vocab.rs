//! Which ids a draft may be, where that is a part of the vocabulary.

use crate::{Error, Result};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::Path,
};

/// The ids that drafts are chosen from, each in a row of a trimmed head.
///
/// It can only cost acceptance: a token that is not listed is never drafted, and the target emits it all the same.
/// A list that learns follows what is emitted: ids that come and are not listed take the rows of those that have not
/// come for the longest time.
#[derive(Clone, Debug)]
pub struct DraftVocab {
    /// By row.
    ids: Vec<u32>,
    rows: HashMap<u32, usize>,
    learned: Option<Learned>,
}

/// What was seen of the stream of tokens.
#[derive(Clone, Debug)]
struct Learned {
    /// Rows from here on are kept.
    kept_from: usize,
    /// Tokens seen.
    time: u64,
    /// By row: when its id was seen last; 0 = never.
    seen: Vec<u64>,
    /// Ids without a row: when they were seen last.
    missing: BTreeMap<u32, u64>,
}

impl DraftVocab {
    /// The ids below `count`, which are the most frequent ones, as BPE merges are learned in that order; and `always`.
    /// Ids are below `valid`.
    pub fn first(count: usize, always: &[u32], valid: usize) -> Result<Self> {
        if count == 0 {
            return Err(Error::limit("draft_vocab", count, "give at least 1 id"));
        }
        let count = count.min(valid) as u32;
        let beyond = always.iter().copied().filter(|id| *id >= count && (*id as usize) < valid);
        let beyond: BTreeSet<u32> = beyond.collect();
        Self::listed((0..count).chain(beyond).collect(), valid)
    }

    /// These ids, each once.
    pub fn listed(ids: Vec<u32>, valid: usize) -> Result<Self> {
        if ids.is_empty() {
            return Err(Error::limit("draft_vocab", "an empty list", "name at least one id"));
        }
        if let Some(id) = ids.iter().find(|id| **id as usize >= valid) {
            let remedy = format!("ids are below {valid}; was the list made for another tokenizer?");
            return Err(Error::limit("draft_vocab", id, remedy));
        }
        let rows: HashMap<u32, usize> = ids.iter().enumerate().map(|(row, id)| (*id, row)).collect();
        if rows.len() < ids.len() {
            let (_, twice) = ids.iter().enumerate().find(|(row, id)| rows[id] != *row).expect("one is");
            return Err(Error::limit("draft_vocab", format!("{twice} twice"), "name each id once"));
        }
        Ok(DraftVocab { ids, rows, learned: None })
    }

    /// The ids of a file: a JSON array, or one id a line.
    pub fn read(path: &Path, valid: usize) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::Io {
            path: path.to_owned(),
            source,
            remedy: "name a file with token ids, as a JSON array or one a line, or give a number of ids"
                .into(),
        })?;
        let refuse = |what: String| Error::Malformed {
            path: path.to_owned(),
            what,
            remedy: "it holds token ids of this checkpoint, as a JSON array or one a line, each once".into(),
        };
        let ids: Vec<u32> = if text.trim_start().starts_with('[') {
            serde_json::from_str(&text).map_err(|e| refuse(format!("is no JSON array of token ids: {e}")))?
        } else {
            let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
            let id = |(number, line): (usize, &str)| {
                let wrong = |_| refuse(format!("has no token id in line {}: `{}`", number + 1, line.trim()));
                line.trim().parse().map_err(wrong)
            };
            lines.map(id).collect::<Result<_>>()?
        };
        Self::listed(ids, valid).map_err(|e| refuse(format!("is refused: {e}")))
    }

    /// From now on it follows what is [observed](Self::observe); `always` stay.
    pub fn learning(mut self, always: &[u32]) -> Self {
        let always: BTreeSet<u32> = always.iter().copied().collect();
        // In two parts, with the order inside of each.
        self.ids.sort_by_key(|id| always.contains(id));
        self.rows = self.ids.iter().enumerate().map(|(row, id)| (*id, row)).collect();
        let kept_from = self.ids.iter().take_while(|id| !always.contains(id)).count();
        let seen = vec![0; self.ids.len()];
        self.learned = Some(Learned { kept_from, time: 0, seen, missing: BTreeMap::new() });
        self
    }

    /// Whether it changes.
    pub fn learns(&self) -> bool {
        self.learned.is_some()
    }

    /// By row of the head.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Whether a draft may be `id`.
    pub fn contains(&self, id: u32) -> bool {
        self.rows.contains_key(&id)
    }

    /// Counts tokens that were emitted, or stand in a prompt. The list stays as it is until it is
    /// [renewed](crate::round::Core::refresh_draft_vocab).
    pub fn observe(&mut self, tokens: &[u32]) {
        let Some(learned) = &mut self.learned else { return };
        for id in tokens {
            learned.time += 1;
            match self.rows.get(id) {
                Some(row) => learned.seen[*row] = learned.time,
                None => {
                    learned.missing.insert(*id, learned.time);
                }
            }
        }
    }

    /// Gives rows to the ids that were seen and have none, the latest first, and returns how many got one.
    pub(crate) fn renew(&mut self) -> usize {
        let Some(learned) = &mut self.learned else { return 0 };
        let mut missing: Vec<(u64, u32)> =
            std::mem::take(&mut learned.missing).into_iter().map(|(id, time)| (time, id)).collect();
        missing.sort_unstable_by(|a, b| b.cmp(a));
        // What was seen longest ago, and of what never was, the rarest.
        let mut rows: Vec<usize> = (0..learned.kept_from).collect();
        rows.sort_unstable_by_key(|row| (learned.seen[*row], std::cmp::Reverse(self.ids[*row])));
        let mut renewed = 0;
        for ((time, id), row) in missing.into_iter().zip(rows) {
            if learned.seen[row] >= time {
                break;
            }
            self.rows.remove(&self.ids[row]);
            self.rows.insert(id, row);
            (self.ids[row], learned.seen[row]) = (id, time);
            renewed += 1;
        }
        renewed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_ids_and_those_that_are_always_there() {
        let list = |count, always: &[u32]| DraftVocab::first(count, always, 10).unwrap().ids;
        assert_eq!(list(3, &[9, 1, 8, 12, 9]), [0, 1, 2, 8, 9]);
        assert_eq!(list(1, &[]), [0]);
        assert_eq!(list(99, &[4]), (0..10).collect::<Vec<_>>());
        let refused = DraftVocab::first(0, &[1], 10).unwrap_err().to_string();
        assert!(refused.contains("`draft_vocab` is 0"), "{refused}");
    }

    #[test]
    fn files_hold_an_array_or_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ids");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            DraftVocab::read(&path, 10).map(|list| list.ids).map_err(|e| e.to_string())
        };
        assert_eq!(read("[3, 1,\n 9]\n"), Ok(vec![3, 1, 9]));
        assert_eq!(read("3\n 1 \n\n9"), Ok(vec![3, 1, 9]));
        for (text, words) in [
            ("", "an empty list"),
            ("[]", "an empty list"),
            ("3\nx", "no token id in line 2: `x`"),
            ("-1", "no token id in line 1: `-1`"),
            ("[1.5]", "no JSON array of token ids"),
            ("[1", "no JSON array of token ids"),
            ("4\n10", "ids are below 10"),
            ("[4, 5, 4]", "4 twice"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(words) && error.contains("ids"), "{text:?}: {error}");
        }
        let error = DraftVocab::read(&folder.path().join("none"), 10).unwrap_err().to_string();
        assert!(error.contains("none: cannot be read"), "{error}");
    }

    #[test]
    fn what_comes_takes_the_place_of_what_does_not() {
        let mut list = DraftVocab::first(4, &[8, 9], 10).unwrap().learning(&[9, 0]);
        // 0 stays, as 9 does; 8 is one like the others.
        assert_eq!(list.ids, [1, 2, 3, 8, 0, 9]);
        list.observe(&[2, 2, 9]);
        assert_eq!(list.renew(), 0);
        list.observe(&[5, 2]);
        assert!(!list.contains(5), "not yet");
        assert_eq!((list.renew(), &list.ids[..]), (1, &[1, 2, 3, 5, 0, 9][..]), "the rarest that never came");
        assert!(list.contains(5) && !list.contains(8));
        // The latest come first; what was seen after them stays.
        list.observe(&[6, 4, 7, 8, 5, 2]);
        assert_eq!((list.renew(), &list.ids[..]), (2, &[7, 2, 8, 5, 0, 9][..]));
        assert_eq!(list.renew(), 0, "what found no place has to come again");
        list.observe(&[4]);
        assert_eq!((list.renew(), &list.ids[..]), (1, &[4, 2, 8, 5, 0, 9][..]));
        for (row, id) in list.ids.iter().enumerate() {
            assert_eq!(list.rows[id], row);
        }
        assert_eq!(list.rows.len(), list.ids.len());
    }

    #[test]
    fn a_list_that_does_not_learn_stays() {
        let mut list = DraftVocab::first(2, &[], 10).unwrap();
        list.observe(&[7, 7]);
        assert_eq!((list.renew(), list.learns(), &list.ids[..]), (0, false, &[0, 1][..]));
    }
}
