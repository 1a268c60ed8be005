//! Drafts from a table of what comes.

use super::counts::Counts;
use crate::{Oracle, OracleArgs};
use kernels_core::{
    Cpu,
    philox::{Use, bits, uniform},
};

pub(crate) fn oracle(op: &Oracle, mut args: OracleArgs<'_, Cpu>) {
    let p = op.problem();
    for index in 0..p.sequences {
        let Some(c) = Counts::of(&mut args.slots, args.sequences.at([index])) else { continue };
        if c.committed < c.prompt {
            continue;
        }
        let wanted = (args.drafts.at([index]).max(0) as usize).min(p.max_drafts);
        let first = c.committed + 1;
        let count = wanted.min(c.limit.min(c.length_limit).saturating_sub(first));
        let round = args.rounds.at([c.slot]);
        if wanted > 0 {
            args.rounds.set([c.slot], round.wrapping_add(1));
        }
        args.slots.proposed.set([c.slot], count as i32);
        let may_be_right = match &args.pattern {
            Some(pattern) => i64::from(pattern.at([round as usize % pattern.dims[0]])),
            None => i64::MAX,
        };
        let rate = args.rate.at([c.slot]);
        for i in 0..count {
            let position = first + i;
            let known = args.truth.at([c.slot, position]);
            let token = if (0..p.valid as i32).contains(&known) { known as usize } else { 0 };
            let drawn = uniform(bits(p.seed, position as u32, c.slot as u32, Use::Draft));
            let right = (i as i64) < may_be_right && drawn < rate;
            let draft = if right { token } else { (token + 1) % p.valid };
            args.slots.tokens.set([c.slot, position], draft as i32);
        }
    }
}
