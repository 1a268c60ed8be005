//! Covering arrays: few rows in which every pair of values of two columns stands together.

use std::collections::BTreeSet;

/// Tries for each row; more make the array a little shorter.
const TRIES: usize = 60;

/// Rows of one value per column, `0..sizes[column]`, that have every pair of values of every two columns.
///
/// Greedy: each row starts from a pair that no row has yet, fills the other columns in a drawn order with
/// what brings the most new pairs, and the best of some tries is taken.
pub(super) fn pairs(sizes: &[usize], seed: u64) -> Vec<Vec<usize>> {
    let mut draw = Draw(seed);
    let mut missing = BTreeSet::new();
    for a in 0..sizes.len() {
        for b in a + 1..sizes.len() {
            missing.extend((0..sizes[a]).flat_map(|x| (0..sizes[b]).map(move |y| (a, x, b, y))));
        }
    }
    let mut rows = Vec::new();
    while !missing.is_empty() {
        let tries = (0..TRIES).map(|_| attempt(sizes, &missing, &mut draw));
        let (_, best) = tries.max_by_key(|(new, _)| *new).expect("there is at least one try");
        missing.retain(|(a, x, b, y)| best[*a] != *x || best[*b] != *y);
        rows.push(best);
    }
    rows
}

type Pair = (usize, usize, usize, usize);

/// One row, and how many missing pairs it has.
fn attempt(sizes: &[usize], missing: &BTreeSet<Pair>, draw: &mut Draw) -> (usize, Vec<usize>) {
    let at = draw.below(missing.len());
    let &(a, x, b, y) = missing.iter().nth(at).expect("drawn below the length");
    let mut row = vec![None; sizes.len()];
    (row[a], row[b]) = (Some(x), Some(y));
    let mut new = 1;
    let mut open: Vec<usize> = (0..sizes.len()).filter(|column| row[*column].is_none()).collect();
    while !open.is_empty() {
        let column = open.swap_remove(draw.below(open.len()));
        // Among equals the first in a drawn rotation, so that tries differ.
        let first = draw.below(sizes[column]);
        let values = (0..sizes[column]).map(|i| (first + i) % sizes[column]);
        let gain = |value: usize| {
            let others = row.iter().enumerate().filter_map(|(other, set)| set.map(|set| (other, set)));
            let pair = |(other, set)| {
                if other < column { (other, set, column, value) } else { (column, value, other, set) }
            };
            others.map(pair).filter(|pair| missing.contains(pair)).count()
        };
        let (value, gained) =
            values.map(|v| (v, gain(v))).rev().max_by_key(|(_, gain)| *gain).expect("no column is empty");
        row[column] = Some(value);
        new += gained;
    }
    (new, row.into_iter().map(|value| value.expect("every column was filled")).collect())
}

/// A small generator (SplitMix64): the rows must be the same everywhere and for ever.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}
