//! One sequence, divided into launches in different ways.

use super::grids;
use crate::place::{flushing, small};
use crate::stream::{Launch, Stream};
use crate::world::{Kind, World, same};
use kernels_core::{Cuda, bf16};
use kernels_gdn::{Grid, Problem};
use kernels_testkit::{device::Device, rng::Rng, runner::stride};

const SLOT: usize = 4;
const TOKENS: usize = 150;

/// A way of dividing, and where it has come to.
struct Way<'a> {
    kinds: &'a [Kind],
    longest: usize,
    world: World<Cuda, bf16>,
    out: Vec<bf16>,
    longest_seen: usize,
}

impl Way<'_> {
    /// Runs launches of random length up to the token `end`.
    fn go(&mut self, stream: &Stream<bf16>, end: usize, rng: &mut Rng) {
        let p = self.world.problem;
        loop {
            let at = self.world.committed[SLOT] as usize;
            if at == end {
                return;
            }
            let kind = self.kinds[rng.below(self.kinds.len())];
            let longest = if kind == Kind::Verify { self.longest.min(p.max_rows) } else { self.longest };
            let t = (1 + rng.below(longest)).min(end - at);
            let journal = self.world.journal();
            let launch = Launch::one(&p, SLOT, at, stream.part(&p, at..at + t));
            self.out.extend(self.world.run(kind, &launch));
            match kind {
                Kind::Verify => self.world.advance(SLOT, t),
                Kind::Prefill => {
                    same("a prefill journals nothing", &self.world.journal(), &journal).unwrap();
                    self.world.advance_prefilled(SLOT, t);
                }
            }
            self.longest_seen = self.longest_seen.max(t);
        }
    }

    /// The memory of all slots once everything committed is folded; the world itself goes on as it was.
    fn folded(&self) -> Vec<f32> {
        let mut copy = self.world.duplicate();
        copy.fold(&[SLOT as i32]);
        assert_eq!(copy.faults(), vec![0; copy.problem.slots + 1]);
        copy.state()
    }
}

/// T rows, T single rows and prefill in any chunks: outputs, states and journals, on the device alone.
pub fn any_division_of_a_sequence_gives_the_same_bits(device: &Device) {
    for flush_after in [3, 0, 6].into_iter().step_by(stride(3)) {
        let p = flushing(Problem { max_rows: 8, ..small::<Cuda>() }, flush_after);
        let mut rng = Rng::new(70 + flush_after as u64);
        let stream = Stream::random(&p, TOKENS, &mut rng);
        for grid in grids(device) {
            divide(device, p, grid, &stream, &mut rng);
        }
    }
}

fn divide(device: &Device, p: Problem, grid: Grid, stream: &Stream<bf16>, rng: &mut Rng) {
    let way = |kinds, longest| {
        let mut world = World::new(&device.queue, p);
        world.grid = Some(grid);
        Way { kinds, longest, world, out: vec![], longest_seen: 0 }
    };
    let mut singles = way(&[Kind::Verify], 1);
    let mut blocks = way(&[Kind::Verify], 8);
    let mut chunks = way(&[Kind::Prefill], 60);
    let mut mixed = way(&[Kind::Verify, Kind::Verify, Kind::Prefill], 20);
    for end in [p.journal_rows, 70, TOKENS] {
        singles.go(stream, end, rng);
        let state = singles.folded();
        assert_eq!(state.iter().filter(|s| s.is_finite()).count(), p.state_len());
        for (name, other) in [("blocks", &mut blocks), ("chunks", &mut chunks), ("mixed", &mut mixed)] {
            other.go(stream, end, rng);
            let what = format!("{name} up to {end}, F = {}, {grid:?}", p.flush_after);
            same(format!("{what}: outputs"), &other.out, &singles.out).unwrap();
            same(format!("{what}: state"), &other.folded(), &state).unwrap();
        }
        // By now every row of the slot's ring was written, by both.
        let journal = singles.world.journal();
        same(format!("journals at {end}, {grid:?}"), &blocks.world.journal(), &journal).unwrap();
        let written = journal.iter().filter(|x| !x.is_nan()).count();
        assert_eq!(written, p.journal_rows * p.journal_width());
    }
    assert_eq!((singles.longest_seen, blocks.longest_seen), (1, 8));
    assert!(chunks.longest_seen > 16 && mixed.longest_seen > 8);
}
