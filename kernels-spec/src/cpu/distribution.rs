//! One row's distribution: penalties, bias, temperature, filters, and draws from what they leave.

use crate::{GREEDY_BELOW, Sampling};
use kernels_core::{
    Cpu,
    argmax::argmax,
    philox::{self, Use, exponential, gumbel, philox4x32_10, uniform},
    ref_math::{exp, vectorised},
};

/// Fixed-point units of weight 1: exact for every weight from 2^-16 on, and what is cut off below is less
/// than 2^-40 of the largest. 2^23 weights of at most 1 fit 64 bits.
const UNIT: f32 = (1u64 << 40) as f32;
const MASKED: f32 = f32::NEG_INFINITY;

/// How one slot draws.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    repetition: f32,
    presence: f32,
    frequency: f32,
    temperature: f32,
    top_k: i32,
    top_p: f32,
    min_p: f32,
    pub(super) seed: u64,
}

impl Rules {
    pub(super) fn of(sampling: &Sampling<'_, Cpu>, slot: usize) -> Rules {
        let at = [slot];
        Rules {
            repetition: sampling.repetition.at(at),
            presence: sampling.presence.at(at),
            frequency: sampling.frequency.at(at),
            temperature: sampling.temperature.at(at),
            top_k: sampling.top_k.at(at),
            top_p: sampling.top_p.at(at),
            min_p: sampling.min_p.at(at),
            seed: u64::from(sampling.seed_hi.at(at)) << 32 | u64::from(sampling.seed_lo.at(at)),
        }
    }

    pub(super) fn penalise(&self) -> bool {
        self.repetition != 1.0 || self.presence != 0.0 || self.frequency != 0.0
    }
}

/// Which ids a prefix holds, and how often its answer part does.
#[derive(Debug, Default)]
pub(super) struct History {
    /// By id: occurrences in the answer, plus `SEEN` if anywhere.
    counts: Vec<u32>,
    /// The ids that are there.
    ids: Vec<u32>,
}

/// Marks an id of the prefix; the bits below count.
const SEEN: u32 = 1 << 31;

impl History {
    pub(super) fn clear(&mut self, valid: usize) {
        for id in self.ids.drain(..) {
            self.counts[id as usize] = 0;
        }
        if self.counts.len() < valid {
            self.counts.resize(valid, 0);
        }
    }

    /// Adds one token. Ids that cannot be chosen are of no interest (a draft may know fewer ids).
    pub(super) fn add(&mut self, id: i32, answer: bool, valid: usize) {
        let Some(index) = usize::try_from(id).ok().filter(|id| *id < valid) else { return };
        if self.counts[index] == 0 {
            self.ids.push(id as u32);
        }
        self.counts[index] = (self.counts[index] | SEEN) + u32::from(answer);
    }
}

/// What is left of a row to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// Everything is masked.
    Nothing,
    /// Greedy: this id.
    One(usize),
    /// The ids with a finite `z`; this one is the likeliest.
    Many(usize),
}

/// One row at a time, in memory that is kept for the next.
#[derive(Debug, Default)]
pub(super) struct Distribution {
    /// `z` by id; minus infinity = not to be chosen.
    z: Vec<f32>,
    /// `e^z`.
    weights: Vec<f32>,
    /// The bits of the logits, ordered as unsigned numbers.
    order: Vec<u32>,
    /// Order and id in one, for selection.
    keys: Vec<u64>,
    /// Probabilities, where they are asked for.
    pub(super) probabilities: Vec<f32>,
}

/// Larger floats have larger numbers; both zeros have one.
#[inline(always)]
fn ordered(x: f32) -> u32 {
    let bits = (x + 0.0).to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}

/// The sum of the weights whose order is at least `least`, in units of 2^-40.
///
/// Of integers, so that it has no order: on a GPU all blocks add to it at once.
pub(super) fn mass(weights: &[f32], order: &[u32], least: u32) -> u64 {
    vectorised(
        #[inline(always)]
        || {
            let mut total = 0;
            for (w, o) in weights.iter().zip(order) {
                total += if *o >= least { units(*w) } else { 0 };
            }
            total
        },
    )
}

/// A weight of at most 1 in units of 2^-40, cut off.
#[inline(always)]
fn units(weight: f32) -> u64 {
    (weight * UNIT) as u64
}

/// The share `top_p < 1` of a mass, rounded up to whole units.
fn share(top_p: f32, mass: u64) -> u64 {
    (f64::from(top_p) * mass as f64).ceil() as u64
}

impl Distribution {
    /// Applies everything but the draw.
    pub(super) fn shape<'b>(
        &mut self,
        logits: &[f32],
        rules: &Rules,
        history: Option<&History>,
        bias: impl Iterator<Item = (&'b i32, &'b f32)>,
    ) -> Left {
        self.z.clear();
        self.z.extend(logits.iter().map(|l| if l.is_nan() { MASKED } else { *l }));
        if let Some(history) = history {
            self.penalise(rules, history);
        }
        for (id, value) in bias {
            if let Some(logit) = usize::try_from(*id).ok().and_then(|id| self.z.get_mut(id)) {
                let sum = *logit + value;
                *logit = if sum.is_nan() { MASKED } else { sum };
            }
        }
        let Some(likeliest) = argmax(&self.z).filter(|id| self.z[*id] > MASKED) else {
            return Left::Nothing;
        };
        if rules.temperature.is_nan() || rules.temperature < GREEDY_BELOW {
            return Left::One(likeliest);
        }
        self.temper(self.z[likeliest], rules.temperature);
        self.keep_top_k(rules.top_k);
        self.weigh();
        if rules.top_p < 1.0 {
            self.keep_top_p(rules.top_p);
        }
        if rules.min_p > 0.0 {
            self.keep_min_p(rules.min_p.min(1.0));
        }
        Left::Many(likeliest)
    }

    fn penalise(&mut self, rules: &Rules, history: &History) {
        for &id in &history.ids {
            let Some(logit) = self.z.get_mut(id as usize) else { continue };
            let count = history.counts[id as usize] & !SEEN;
            let mut l = *logit;
            if rules.repetition != 1.0 {
                l = if l > 0.0 { l / rules.repetition } else { l * rules.repetition };
            }
            if count > 0 {
                l = (-rules.frequency).mul_add(count as f32, l - rules.presence);
            }
            *logit = if l.is_nan() { MASKED } else { l };
        }
    }

    /// `z = (l - max) / temperature`, remembering the order of the logits: division may round two of them
    /// together, and the filters must not take them for a tie that greedy would not see.
    fn temper(&mut self, max: f32, temperature: f32) {
        self.order.clear();
        self.order.extend(self.z.iter().map(|l| ordered(*l)));
        if max == f32::INFINITY {
            self.z.iter_mut().for_each(|z| *z = if *z == max { 0.0 } else { MASKED });
        } else {
            self.z.iter_mut().for_each(|z| *z = (*z - max) / temperature);
        }
    }

    fn weigh(&mut self) {
        let (z, weights) = (&self.z, &mut self.weights);
        weights.resize(z.len(), 0.0);
        vectorised(
            #[inline(always)]
            || {
                for (w, z) in weights.iter_mut().zip(z) {
                    *w = exp(*z);
                }
            },
        );
    }

    fn keep_top_k(&mut self, k: i32) {
        let Some(k) = usize::try_from(k).ok().filter(|k| (1..self.z.len()).contains(k)) else { return };
        self.keys.clear();
        let key = |(id, order): (usize, &u32)| u64::from(!order) << 32 | id as u64;
        self.keys.extend(self.order.iter().enumerate().map(key));
        let last = *self.keys.select_nth_unstable(k - 1).1;
        for (id, z) in self.z.iter_mut().enumerate() {
            if u64::from(!self.order[id]) << 32 | id as u64 > last {
                *z = MASKED;
            }
        }
    }

    fn keep_top_p(&mut self, top_p: f32) {
        let wanted = share(top_p, mass(&self.weights, &self.order, 0));
        // The largest threshold that leaves enough. All ids do (top_p < 1), and the likeliest one is kept
        // whatever it weighs.
        let (mut enough, mut top) = (0, self.order.iter().copied().max().unwrap_or(0));
        while enough < top {
            let middle = enough + (top - enough).div_ceil(2);
            if mass(&self.weights, &self.order, middle) >= wanted {
                enough = middle;
            } else {
                top = middle - 1;
            }
        }
        // Among equal logits at the threshold, as few as will do: those of the smallest ids.
        let alive = |id: &usize| self.z[*id] > MASKED && self.order[*id] == enough;
        let ties: Vec<usize> = (0..self.z.len()).filter(alive).collect();
        let mut so_far = enough.checked_add(1).map_or(0, |above| mass(&self.weights, &self.order, above));
        let mut most = 0;
        while most < ties.len() && (most == 0 || so_far < wanted) {
            so_far += units(self.weights[ties[most]]);
            most += 1;
        }
        let last = ties.get(most.saturating_sub(1)).copied();
        for id in 0..self.z.len() {
            let keep = self.order[id] > enough || self.order[id] == enough && Some(id) <= last;
            if !keep {
                (self.z[id], self.weights[id]) = (MASKED, 0.0);
            }
        }
    }

    fn keep_min_p(&mut self, min_p: f32) {
        for (z, weight) in self.z.iter_mut().zip(&mut self.weights) {
            if *weight < min_p {
                (*z, *weight) = (MASKED, 0.0);
            }
        }
    }

    /// The Gumbel-max draw: the largest `z + g`, the smallest id on a tie.
    ///
    /// Most ids are passed over without their two logarithms, which changes nothing: `g <= -ln u` (as
    /// `-ln(1 - u) >= u`), so an id whose `e^z` is below `u e^best` by more than rounding (a
    /// thousandth, where the score's error is below 1e-5) cannot win; and no `g` exceeds 22.9.
    pub(super) fn draw(&self, likeliest: usize, seed: u64, position: u32, what: Use) -> usize {
        let first = gumbel(philox::bits(seed, position, likeliest as u32, what));
        let (mut best, mut choice) = (self.z[likeliest] + first, likeliest);
        let mut floor = exp(best) * 0.999;
        for (block, (z, weights)) in self.z.chunks(4).zip(self.weights.chunks(4)).enumerate() {
            if z.iter().all(|z| *z < best - 23.0) {
                continue;
            }
            let noise = noise(seed, position, block as u32, what);
            for (lane, &z) in z.iter().enumerate() {
                if z < best - 23.0 || weights[lane] < uniform(noise[lane]) * floor {
                    continue;
                }
                let (id, score) = (4 * block + lane, z + gumbel(noise[lane]));
                if score > best || score == best && id < choice {
                    (best, choice) = (score, id);
                    floor = exp(best) * 0.999;
                }
            }
        }
        choice
    }

    /// Writes the probabilities of what is left.
    pub(super) fn normalise(&mut self, left: Left, vocab: usize) {
        self.probabilities.clear();
        self.probabilities.resize(vocab, 0.0);
        match left {
            Left::Nothing => {}
            Left::One(id) => self.probabilities[id] = 1.0,
            Left::Many(_) => {
                let total = (mass(&self.weights, &self.order, 0) as f64 / f64::from(UNIT)) as f32;
                for (p, w) in self.probabilities.iter_mut().zip(&self.weights) {
                    *p = w / total;
                }
            }
        }
    }

    /// A draw from `max(P - Q, 0)`, or from `P` where rounding leaves nothing of that: the largest ratio
    /// of weight to exponential noise, the smallest id on a tie.
    pub(super) fn draw_residual(&self, q: &[f32], seed: u64, position: u32) -> Option<usize> {
        let rest = |id: usize| (self.probabilities[id] - q[id]).max(0.0);
        let whole = |id: usize| self.probabilities[id];
        self.race(rest, seed, position).or_else(|| self.race(whole, seed, position))
    }

    fn race(&self, weight: impl Fn(usize) -> f32, seed: u64, position: u32) -> Option<usize> {
        let mut best: Option<(f32, usize)> = None;
        let valid = self.z.len();
        for block in 0..valid.div_ceil(4) {
            let mut bits = None;
            for id in 4 * block..(4 * block + 4).min(valid) {
                let weight = weight(id);
                if weight > 0.0 {
                    let bits = bits.get_or_insert_with(|| noise(seed, position, block as u32, Use::Residual));
                    let score = weight / exponential(bits[id & 3]);
                    if best.is_none_or(|(most, _)| score > most) {
                        best = Some((score, id));
                    }
                }
            }
        }
        best.map(|(_, id)| id)
    }
}

/// The random bits of ids `4 block ..`, as [`philox::bits`] gives them one by one.
fn noise(seed: u64, position: u32, block: u32, what: Use) -> [u32; 4] {
    philox4x32_10([block, position, what as u32, 0], [seed as u32, (seed >> 32) as u32])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_that_of_the_core() {
        for id in [0u32, 1, 6, 4095, 248_319] {
            for what in [Use::Draw, Use::Draft, Use::Accept, Use::Residual] {
                let seed = 0x1234_5678_9abc_def0;
                let want = philox::bits(seed, 77, id, what);
                assert_eq!(noise(seed, 77, id / 4, what)[id as usize % 4], want);
            }
        }
    }

    #[test]
    fn order_is_that_of_the_floats() {
        let values = [MASKED, f32::MIN, -1.0, -1e-45, 0.0, 1e-45, 1.0, f32::MAX, f32::INFINITY];
        for pair in values.windows(2) {
            assert!(ordered(pair[0]) < ordered(pair[1]), "{pair:?}");
        }
        assert_eq!(ordered(0.0), ordered(-0.0));
    }

    #[test]
    fn mass_has_no_order() {
        // Whole units each: small weights are not swallowed by large ones.
        let mut weights = vec![0.0; 3000];
        (weights[7], weights[2999]) = (1.0, 1.0);
        weights[100..1124].fill(2.0f32.powi(-40));
        weights[2000] = 1.9 * 2.0f32.powi(-41);
        let mut order = vec![1; weights.len()];
        assert_eq!(mass(&weights, &order, 1), (2 << 40) + 1024);
        order[7] = 2;
        assert_eq!(mass(&weights, &order, 2), 1 << 40);
        assert_eq!(mass(&weights, &order, 3), 0);
        assert_eq!(mass(&[], &[], 0), 0);
    }

    #[test]
    fn shares_are_rounded_up() {
        assert_eq!([share(0.5, 7), share(0.5, 8), share(0.0, 9), share(-1.0, 9)], [4, 4, 0, 0]);
        let below_one = 1.0 - f32::EPSILON / 2.0;
        for total in [1u64, 1 << 40, (1 << 63) - 1, 1 << 63] {
            assert!(share(below_one, total) <= total);
        }
    }
}
