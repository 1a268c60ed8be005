//! Choosing tokens.

use super::{
    distribution::{Distribution, History, Left, Rules},
    settle::chooses,
};
use crate::{
    Argmax, ArgmaxArgs, DrawDraft, DrawDraftArgs, Problem, Rejection, RejectionArgs, Sample, SampleArgs,
    SampleProblem, Sampling,
};
use kernels_core::{
    Cpu, Rows, Tensor, TensorMut, fault,
    philox::{self, Use, uniform},
    slots::{Bounds, FaultKind, Sequence},
};
use std::cell::RefCell;

#[derive(Debug, Default)]
struct Scratch {
    distribution: Distribution,
    history: History,
}

thread_local! {
    /// Kept between calls: a row of a large vocabulary is megabytes.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

pub(crate) fn argmax(op: &Argmax, mut args: ArgmaxArgs<'_, Cpu>) {
    for row in 0..op.problem().rows {
        let logits = &args.logits.row(&[row])[..op.problem().valid];
        args.choice.set([row], kernels_core::argmax::argmax(logits).map_or(-1, |id| id as i32));
    }
}

/// What choosing for one slot reads.
struct Inputs<'t, 'a> {
    logits: Tensor<'a, Cpu, f32, 2>,
    tokens: &'t [i32],
    prompt: usize,
    sampling: Sampling<'a, Cpu>,
    valid: usize,
}

impl Scratch {
    /// Shapes the distribution of every row of `sequence` in turn, until `each(distribution, what is
    /// left, row, position of the row, rules)` says that it has seen enough.
    fn rows(
        &mut self,
        inputs: &Inputs<'_, '_>,
        slot: usize,
        sequence: &Sequence,
        mut each: impl FnMut(&mut Distribution, Left, usize, usize, &Rules) -> bool,
    ) {
        let Scratch { distribution, history } = self;
        let rules = Rules::of(&inputs.sampling, slot);
        let (bias_ids, bias_values) =
            (inputs.sampling.bias_ids.row(&[slot]), inputs.sampling.bias_values.row(&[slot]));
        let mut known = 0;
        if rules.penalise() {
            history.clear(inputs.valid);
        }
        for (i, row) in sequence.rows.clone().enumerate() {
            let position = sequence.start + i;
            if rules.penalise() {
                for (at, id) in inputs.tokens.iter().enumerate().take(position + 1).skip(known) {
                    history.add(*id, at >= inputs.prompt, inputs.valid);
                }
                known = position + 1;
            }
            let left = distribution.shape(
                &inputs.logits.row(&[row])[..inputs.valid],
                &rules,
                rules.penalise().then_some(&*history),
                bias_ids.iter().zip(bias_values),
            );
            if each(distribution, left, row, position, &rules) {
                break;
            }
        }
    }
}

/// The token a row chooses; -1 where everything is masked.
fn choose(distribution: &Distribution, left: Left, seed: u64, position: u32, what: Use) -> i32 {
    match left {
        Left::Nothing => -1,
        Left::One(id) => id as i32,
        Left::Many(likeliest) => distribution.draw(likeliest, seed, position, what) as i32,
    }
}

/// What [`Sample`] and [`DrawDraft`] have in common.
struct Choosing<'s, 'a> {
    choice: &'s mut TensorMut<'a, Cpu, i32, 1>,
    faults: &'s mut TensorMut<'a, Cpu, u64, 1>,
    logits: Tensor<'a, Cpu, f32, 2>,
    rows: &'s Rows<'a, Cpu>,
    tokens: Tensor<'a, Cpu, i32, 2>,
    prompt: Tensor<'a, Cpu, i32, 1>,
    sampling: Sampling<'a, Cpu>,
}

impl Choosing<'_, '_> {
    /// Chooses in every row; `then(distribution, what is left, slot, the position chosen for)` after each.
    fn run(self, p: &SampleProblem, what: Use, mut then: impl FnMut(&mut Distribution, Left, usize, usize)) {
        let bounds = Bounds { rows: p.rows, slots: p.slots, positions: p.positions };
        for index in 0..p.sequences {
            let sequence = self.rows.sequence(index, bounds, self.faults);
            let Some(slot) = sequence.slot else {
                sequence.rows.for_each(|row| self.choice.set([row], -1));
                continue;
            };
            let inputs = Inputs {
                logits: self.logits.clone(),
                tokens: self.tokens.row(&[slot]),
                prompt: self.prompt.at([slot]).max(0) as usize,
                sampling: self.sampling.clone(),
                valid: p.valid,
            };
            SCRATCH.with_borrow_mut(|scratch| {
                scratch.rows(&inputs, slot, &sequence, |distribution, left, row, position, rules| {
                    let mut noise = position as u32 + 1;
                    if fault::active("spec.noise_by_row") {
                        noise = row as u32;
                    }
                    self.choice.set([row], choose(distribution, left, rules.seed, noise, what));
                    then(distribution, left, slot, position + 1);
                    false
                });
            });
        }
        for row in self.rows.unowned(p.rows) {
            self.choice.set([row], -1);
        }
    }
}

pub(crate) fn sample(op: &Sample, mut args: SampleArgs<'_, Cpu>) {
    let choosing = Choosing {
        choice: &mut args.choice,
        faults: &mut args.faults,
        logits: args.logits,
        rows: &args.rows,
        tokens: args.tokens,
        prompt: args.prompt,
        sampling: args.sampling,
    };
    choosing.run(op.problem(), Use::Draw, |_, _, _, _| {});
}

pub(crate) fn draw_draft(op: &DrawDraft, mut args: DrawDraftArgs<'_, Cpu>) {
    let p = op.problem();
    let choosing = Choosing {
        choice: &mut args.choice,
        faults: &mut args.faults,
        logits: args.logits,
        rows: &args.rows,
        tokens: args.tokens,
        prompt: args.prompt,
        sampling: args.sampling,
    };
    choosing.run(&p.base, Use::Draft, |distribution, left, slot, position| {
        distribution.normalise(left, p.base.vocab);
        let kept = args.probabilities.row_mut(&[slot, position % p.ring_rows]);
        kept.copy_from_slice(&distribution.probabilities);
    });
}

pub(crate) fn rejection(op: &Rejection, mut args: RejectionArgs<'_, Cpu>) {
    let SampleProblem { sequences, rows, slots, positions, .. } = op.problem().base;
    let problem = Problem { sequences, rows, max_rows: op.problem().ring_rows + 1, slots, positions };
    for index in 0..sequences {
        let a = match chooses(&mut args.slots, &problem, &args.rows, index) {
            Some((slot, sequence)) => reject_one(op, &mut args, slot, &sequence),
            None => 0,
        };
        args.accepted.set([index], a as i32);
    }
}

fn reject_one(op: &Rejection, args: &mut RejectionArgs<'_, Cpu>, slot: usize, sequence: &Sequence) -> usize {
    let p = op.problem();
    let inputs = Inputs {
        logits: args.logits.clone(),
        tokens: args.slots.tokens.row(&[slot]),
        prompt: args.slots.prompt.at([slot]).max(0) as usize,
        sampling: args.sampling.clone(),
        valid: p.base.valid,
    };
    let (mut a, mut chosen) = (0, None);
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.rows(&inputs, slot, sequence, |distribution, left, row, position, rules| {
            a += 1;
            let next = position + 1;
            let id = |id: usize| id as i32;
            if left == Left::Nothing {
                return true;
            }
            if row + 1 == sequence.rows.end {
                chosen = Some(choose(distribution, left, rules.seed, next as u32, Use::Draw));
                return true;
            }
            distribution.normalise(left, p.base.vocab);
            let q = args.probabilities.row(&[slot, next % p.ring_rows]);
            let draft = usize::try_from(inputs.tokens[next]).ok().filter(|d| *d < p.base.vocab);
            let u = uniform(philox::bits(rules.seed, next as u32, 0, Use::Accept));
            if draft.is_some_and(|d| u * q[d] < distribution.probabilities[d]) {
                return false;
            }
            chosen = distribution.draw_residual(q, rules.seed, next as u32).map(id);
            true
        });
    });
    match chosen {
        Some(id) => args.slots.tokens.set([slot, sequence.start + a], id),
        None => {
            args.slots.fault(FaultKind::Logits, slot, (sequence.start + a) as i32);
            return 0;
        }
    }
    a
}
