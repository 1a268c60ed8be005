//! Tokens and the launches they travel in.

use kernels_core::{Activation, PAD};
use kernels_gdn::Problem;
use kernels_testkit::{guard, rng::Rng};
use std::ops::Range;

/// The raw inputs of consecutive tokens.
#[derive(Clone, Debug)]
pub struct Stream<A> {
    pub mixed: Vec<A>, // [tokens, q | k | v]: as the convolution leaves them
    pub a: Vec<A>,     // [tokens, v_heads]
    pub b: Vec<A>,     // [tokens, v_heads]
}

/// Elements of a row of [`Stream::mixed`].
pub fn mixed_width(p: &Problem) -> usize {
    2 * p.k_heads * p.k_dim + p.v_heads * p.v_dim
}

impl<A: Activation> Stream<A> {
    pub fn random(p: &Problem, tokens: usize, rng: &mut Rng) -> Self {
        Stream {
            mixed: rng.normals(tokens * mixed_width(p), 1.0),
            a: rng.normals(tokens * p.v_heads, 1.5),
            b: rng.normals(tokens * p.v_heads, 1.5),
        }
    }

    pub fn empty() -> Self {
        Stream { mixed: vec![], a: vec![], b: vec![] }
    }

    /// Inputs that are not to be read.
    fn poison(p: &Problem, rows: usize) -> Self {
        let nan = guard::poison::<A>();
        Stream {
            mixed: vec![nan; rows * mixed_width(p)],
            a: vec![nan; rows * p.v_heads],
            b: vec![nan; rows * p.v_heads],
        }
    }

    pub fn part(&self, p: &Problem, tokens: Range<usize>) -> Self {
        let (width, heads) = (mixed_width(p), p.v_heads);
        Stream {
            mixed: self.mixed[tokens.start * width..tokens.end * width].to_vec(),
            a: self.a[tokens.start * heads..tokens.end * heads].to_vec(),
            b: self.b[tokens.start * heads..tokens.end * heads].to_vec(),
        }
    }

    pub fn append(&mut self, more: &Self) {
        self.mixed.extend_from_slice(&more.mixed);
        self.a.extend_from_slice(&more.a);
        self.b.extend_from_slice(&more.b);
    }

    pub fn tokens(&self, p: &Problem) -> usize {
        self.a.len() / p.v_heads
    }

    /// A token's journal row, put together from its parts.
    pub fn journal_row(&self, p: &Problem, token: usize) -> Vec<A> {
        let mixed = &self.mixed[token * mixed_width(p)..][..mixed_width(p)];
        let part = |x: &[A]| x[token * p.v_heads..][..p.v_heads].to_vec();
        [mixed[p.k_heads * p.k_dim..].to_vec(), part(&self.a), part(&self.b)].concat()
    }
}

/// The rows of a launch.
#[derive(Clone, Debug)]
pub struct Launch<A> {
    pub slots: Vec<i32>,
    pub start: Vec<i32>,
    pub offsets: Vec<i32>,
    pub rows: Stream<A>,
}

impl<A: Activation> Launch<A> {
    pub fn new() -> Self {
        Launch { slots: vec![], start: vec![], offsets: vec![0], rows: Stream::empty() }
    }

    pub fn one(p: &Problem, slot: usize, start: usize, rows: Stream<A>) -> Self {
        let mut launch = Launch::new();
        launch.push(p, slot as i32, start, &rows);
        launch
    }

    pub fn push(&mut self, p: &Problem, slot: i32, start: usize, rows: &Stream<A>) {
        self.rows.append(rows);
        self.slots.push(slot);
        self.start.push(start as i32);
        self.offsets.push(self.count(p) as i32);
    }

    /// A skipped sequence with `rows` rows of NaN.
    pub fn push_padding(&mut self, p: &Problem, rows: usize) {
        self.push(p, PAD, 0, &Stream::poison(p, rows));
    }

    /// Rows of NaN that belong to no sequence.
    pub fn add_unowned(&mut self, p: &Problem, rows: usize) {
        self.rows.append(&Stream::poison(p, rows));
    }

    /// Fills the launch up to fixed sizes, as a captured graph needs them.
    #[cfg(feature = "cuda")]
    pub fn filled(mut self, p: &Problem, sequences: usize, rows: usize) -> Self {
        while self.slots.len() < sequences {
            self.push_padding(p, 0);
        }
        self.add_unowned(p, rows - self.count(p));
        self
    }

    /// Rows, unowned ones included.
    pub fn count(&self, p: &Problem) -> usize {
        self.rows.tokens(p)
    }
}
