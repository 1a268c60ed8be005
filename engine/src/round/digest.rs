//! What a sequence has become, in a few numbers: two runs that agree on it remember the same.

use super::Core;
use crate::{
    Error, Result,
    cache::{Pool, Recurrent},
    config::LayerKind,
    model::EngineBackend,
};
use kernels_core::{Activation, Element};
use kernels_spec::State;
use serde::{Serialize, Serializer};
use std::fmt;
use xxhash_rust::xxh3::Xxh3;

/// 128 bits that stand for a memory's bytes (XXH3).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hash(pub u128);

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Hash {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

/// The committed state of one sequence: a function of its tokens and of nothing else.
///
/// Where the bytes lie (slot, pages, rows of a ring), how far the journal is folded into the state, what
/// rejected drafts left behind and what the draft head remembers are not part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Digest {
    /// Tokens whose effect is final.
    pub committed: usize,
    /// Their ids, and that of the one after them, which is known and not yet computed.
    pub tokens: Hash,
    /// What each of the target's layers remembers of them.
    pub layers: Vec<LayerDigest>,
}

/// What one layer remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerDigest {
    /// Full attention.
    Attention {
        /// All keys, by position.
        keys: Hash,
        /// All values, by position.
        values: Hash,
    },
    /// Gated Delta Net.
    Recurrent {
        /// The latest conv inputs, as many as the next row needs.
        conv: Hash,
        /// The state after all committed tokens.
        state: Hash,
    },
}

/// The first thing two digests disagree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Difference {
    /// One has committed this many tokens, the other that many.
    Committed(usize, usize),
    /// The token ids.
    Tokens,
    /// A memory of a layer.
    Layer {
        /// Which layer.
        layer: usize,
        /// Which memory of it.
        memory: &'static str,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Difference::Committed(one, other) => write!(f, "committed tokens ({one} and {other})"),
            Difference::Tokens => f.write_str("token ids"),
            Difference::Layer { layer, memory } => write!(f, "the {memory} of layer {layer}"),
        }
    }
}

impl Digest {
    /// What differs first, in the order in which a forward pass would notice; `None` where all is equal.
    pub fn difference(&self, other: &Digest) -> Option<Difference> {
        use LayerDigest::{Attention, Recurrent};
        if self.committed != other.committed {
            return Some(Difference::Committed(self.committed, other.committed));
        }
        if self.tokens != other.tokens {
            return Some(Difference::Tokens);
        }
        let memory = |pair| match pair {
            (Attention { keys: a, .. }, Attention { keys: b, .. }) if a != b => Some("keys"),
            (Attention { values: a, .. }, Attention { values: b, .. }) if a != b => Some("values"),
            (Recurrent { conv: a, .. }, Recurrent { conv: b, .. }) if a != b => Some("conv inputs"),
            (Recurrent { state: a, .. }, Recurrent { state: b, .. }) if a != b => Some("state"),
            (Attention { .. }, Recurrent { .. }) | (Recurrent { .. }, Attention { .. }) => Some("kind"),
            _ => None,
        };
        let layers = self.layers.iter().copied().zip(other.layers.iter().copied()).enumerate();
        let mut layers = layers.filter_map(|(layer, pair)| memory(pair).map(|memory| (layer, memory)));
        let first = layers.next().map(|(layer, memory)| Difference::Layer { layer, memory });
        let layer = self.layers.len().min(other.layers.len());
        first
            .or((self.layers.len() != other.layers.len())
                .then_some(Difference::Layer { layer, memory: "kind" }))
    }
}

fn hash<T: Element>(parts: impl IntoIterator<Item = Vec<T>>) -> Hash {
    let mut all = Xxh3::new();
    parts.into_iter().for_each(|part| all.update(bytemuck::cast_slice(&part)));
    Hash(all.digest128())
}

impl<B: EngineBackend, A: Activation> Core<B, A> {
    /// The committed state of the sequence in `slot`. Nothing is changed: what is pending in the journals
    /// is folded in copies. It copies all that the slot remembers, so it is for tests and tools.
    pub fn digest(&self, slot: usize) -> Result<Digest> {
        if slot >= self.limits.slots {
            return Err(Error::limit("slot", slot, format!("there are {}", self.limits.slots)));
        }
        let (on, shared) = (&self.cx.queue, &self.caches.shared);
        let word = |memory: &B::Memory<i32>| Ok::<_, Error>(B::read(on, memory, slot..slot + 1)?[0]);
        let table = &shared.table;
        if State::of(word(&table.state)?).is_none_or(|state| state == State::Empty) {
            return Err(Error::limit("slot", slot, "nobody lives there; name one that holds a sequence"));
        }
        let (folded, committed) = (word(&table.folded)?, word(&table.committed)?);
        let positions = self.limits.positions;
        let count = usize::try_from(committed).ok().filter(|n| *n < positions).ok_or_else(|| {
            Error::limit("slot", slot, format!("it is broken: {committed} tokens are committed"))
        })?;
        let first = slot * positions;
        let ids = B::read(on, &table.tokens, first..first + count + 1)?;
        let first = slot * shared.max_pages;
        let pages = B::read(on, &shared.page_table, first..first + self.limits.pages_for(count))?;
        let (mut pools, mut recurrent) = (self.caches.pools.iter(), self.caches.recurrent.iter());
        let layer = |(layer, kind): (usize, &LayerKind)| match kind {
            LayerKind::Full => {
                let pool = pools.next().expect("one pool for each attention layer");
                let [keys, values] = [0, 1].map(|kv| self.rows_of_pages(pool, &pages, kv, count).map(hash));
                Ok(LayerDigest::Attention { keys: keys?, values: values? })
            }
            LayerKind::Linear => {
                let memory = recurrent.next().expect("one recurrent memory for each GDN layer");
                let state = self.model.folded_state(&self.cx, layer, memory, slot, [folded, committed])?;
                Ok(LayerDigest::Recurrent {
                    conv: hash(self.conv_rows(memory, slot, count)?),
                    state: hash([state]),
                })
            }
        };
        let layers = self.model.config().layers.iter().enumerate().map(layer).collect::<Result<_>>()?;
        Ok(Digest { committed: count, tokens: hash([ids]), layers })
    }

    /// The first `count` keys (`kv` 0) or values (1) of a sequence, head by head.
    fn rows_of_pages(
        &self,
        pool: &Pool<B, A>,
        pages: &[i32],
        kv: usize,
        count: usize,
    ) -> Result<Vec<Vec<A>>> {
        let page_rows = self.limits.page_rows;
        let mut parts = Vec::new();
        for head in 0..self.model.config().kv_heads {
            for (i, page) in pages.iter().enumerate() {
                let rows = page_rows.min(count - i * page_rows);
                parts.push(pool.read(&self.cx.queue, *page as usize, kv, head, rows)?);
            }
        }
        Ok(parts)
    }

    /// The conv inputs that the row at `committed` would look back on, oldest first.
    fn conv_rows(&self, memory: &Recurrent<B, A>, slot: usize, committed: usize) -> Result<Vec<Vec<A>>> {
        let g = &self.model.config().gdn;
        let channels = g.conv_channels();
        let oldest = committed.saturating_sub(g.conv_width - 1);
        let row = |position: usize| {
            let at = (slot * memory.ring_rows + position % memory.ring_rows) * channels;
            Ok(B::read(&self.cx.queue, &memory.ring, at..at + channels)?)
        };
        (oldest..committed).map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest() -> Digest {
        let layers = vec![
            LayerDigest::Recurrent { conv: Hash(1), state: Hash(2) },
            LayerDigest::Attention { keys: Hash(3), values: Hash(4) },
        ];
        Digest { committed: 5, tokens: Hash(6), layers }
    }

    #[test]
    fn the_first_difference_names_layer_and_memory() {
        let same = digest();
        assert_eq!(same.difference(&digest()), None);
        let mut other = digest();
        other.layers[1] = LayerDigest::Attention { keys: Hash(3), values: Hash(5) };
        assert_eq!(same.difference(&other).unwrap().to_string(), "the values of layer 1");
        other.layers[0] = LayerDigest::Recurrent { conv: Hash(1), state: Hash(0) };
        assert_eq!(same.difference(&other).unwrap().to_string(), "the state of layer 0");
        other.tokens = Hash(0);
        assert_eq!(same.difference(&other), Some(Difference::Tokens));
        other.committed = 4;
        assert_eq!(same.difference(&other), Some(Difference::Committed(5, 4)));
        let mut shorter = digest();
        shorter.layers.pop();
        assert_eq!(same.difference(&shorter), Some(Difference::Layer { layer: 1, memory: "kind" }));
    }

    #[test]
    fn hashes_see_every_byte_and_the_order() {
        assert_eq!(hash([vec![1, 2], vec![3]]), hash([vec![1, 2, 3]]));
        assert_ne!(hash([vec![1, 2, 3]]), hash([vec![1, 3, 2]]));
        assert_ne!(hash([vec![0.0f32]]), hash([vec![-0.0f32]]), "bits, not values");
    }
}
