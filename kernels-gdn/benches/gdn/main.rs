//! Verify-and-commit at real geometries: time, bytes, TB/s.
//!
//! The state is stored in some rounds and not in others, and more is pending in some than in others. So
//! every time here is the mean over consecutive rounds of the steady state: drafts are accepted at random
//! (see rounds.rs), and call number c of a graph has the counters of round c and, on a GPU, a state, a
//! journal and rows of its own, more in all than the L2 cache holds. A replay of the graph starts again
//! from the same counters; the bytes are counted from them.
//!
//! Ids: `gdn/verify/MODEL/bB/tT` (B sequences of T rows), `gdn/overlapping/..` (each launch may begin before
//! the last one ended), `gdn/flush/../fF` (stored when more than F tokens are pending), `gdn/grid/../gTILE`
//! and `../hTILE` (generic and Hopper kernels), `gdn/prefill/MODEL/nROWS`; `gdn/chain` is in kernels-testkit.
//! Without a GPU the CPU backend is timed on a few shapes.

mod operands;
mod rounds;

use kernels_core::{Cpu, DeviceInfo, slots};
use kernels_gdn::{Prefill, Problem, Verify};
use kernels_testkit::bench::Bench;
use operands::{Operands, Pool};
use rounds::{Rounds, prefill_bytes};

/// Name, key heads, value heads; all of 128 x 128.
type Model = (&'static str, usize, usize);
const MODELS: [Model; 2] = [("qwen3.5-27b", 16, 48), ("qwen3.5-35b-a3b", 16, 32)];

/// What `gdn/flush` recommends.
const FLUSH_AFTER: usize = 4;

fn problem((_, k_heads, v_heads): Model, sequences: usize, rows: usize, flush_after: usize) -> Problem {
    Problem {
        sequences,
        rows: sequences * rows,
        max_rows: rows,
        k_heads,
        v_heads,
        k_dim: 128,
        v_dim: 128,
        slots: sequences,
        journal_rows: slots::journal_rows(flush_after, rows),
        flush_after,
    }
}

fn main() {
    let mut bench = Bench::from_args();
    #[cfg(feature = "cuda")]
    if bench.device().is_some() {
        return cuda::all(&mut bench);
    }
    let mut pool = Pool::<Cpu>::new(&());
    for model in MODELS {
        for (sequences, rows) in [(1, 1), (1, 4), (8, 1), (8, 4)] {
            let p = problem(model, sequences, rows, FLUSH_AFTER);
            let verify = Verify::plan(p, &DeviceInfo::cpu()).expect("a valid problem");
            let rounds = Rounds::simulate(sequences, rows, FLUSH_AFTER, 64);
            let mut operands = Operands::new(&(), &mut pool, p, 1, &rounds);
            let id = format!("gdn/verify/{}/b{sequences}/t{rows}", model.0);
            let mut call = 0..;
            bench.cpu(&id, rounds.verify_bytes(&p), || {
                let call = call.next().expect("it has no end");
                operands.with(&mut pool, call, |args| verify.run(&(), args).expect(&id));
            });
            assert!(!operands.faulted(&()), "{id}: a round's counters are wrong");
        }
        let p = Problem { journal_rows: 12, ..problem(model, 1, 64, FLUSH_AFTER) };
        let prefill = Prefill::plan(p, &DeviceInfo::cpu()).expect("a valid problem");
        let mut operands = Operands::new(&(), &mut pool, p, 1, &Rounds::settled(1));
        let id = format!("gdn/prefill/{}/n64", model.0);
        bench.cpu(&id, prefill_bytes(&p), || {
            operands.with(&mut pool, 0, |args| prefill.run(&(), args).expect(&id));
        });
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::*;
    use kernels_core::{Backend, Cuda, Result};
    use kernels_gdn::{Args, Grid};
    use kernels_testkit::timing::copies;

    const BATCHES: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

    pub(super) fn all(bench: &mut Bench) {
        let mut pool = Pool::<Cuda>::new(&bench.device().expect("there is one").queue);
        let mut on = On { bench, pool: &mut pool };
        for model in MODELS {
            for rows in [1, 2, 3, 4, 8] {
                for sequences in BATCHES {
                    let p = problem(model, sequences, rows, FLUSH_AFTER);
                    let tail = format!("{}/b{sequences}/t{rows}", model.0);
                    on.verify(&format!("gdn/verify/{tail}"), &on.plan(p));
                }
            }
        }
        let model = MODELS[0];
        for (sequences, rows) in pairs(&[1, 8, 32, 64], &[1, 3, 4]) {
            let op = on.plan(problem(model, sequences, rows, FLUSH_AFTER)).overlapping(true);
            on.verify(&format!("gdn/overlapping/{}/b{sequences}/t{rows}", model.0), &op);
        }
        for (sequences, rows) in pairs(&[1, 8, 32, 64], &[1, 3, 4, 8]) {
            for flush_after in [0, 1, 2, 3, 4, 6, 8] {
                let op = on.plan(problem(model, sequences, rows, flush_after));
                on.verify(&format!("gdn/flush/{}/b{sequences}/t{rows}/f{flush_after}", model.0), &op);
            }
        }
        for (sequences, rows) in pairs(&BATCHES[..7], &[1, 3, 8]) {
            let generic = [16, 32, 64].map(|tile| (format!("g{tile}"), Grid::Generic { tile }));
            for (name, grid) in generic.into_iter().chain([("hopper".into(), Grid::Hopper)]) {
                let p = problem(model, sequences, rows, FLUSH_AFTER);
                // Not every chip and build has the Hopper grid.
                let Ok(op) = Verify::plan_with(p, &on.info(), Some(grid)) else {
                    continue;
                };
                on.verify(&format!("gdn/grid/{}/b{sequences}/t{rows}/{name}", model.0), &op);
            }
        }
        for model in MODELS {
            for rows in [512, 2048, 4096] {
                on.prefill(&format!("gdn/prefill/{}/n{rows}", model.0), model, rows);
            }
        }
    }

    fn pairs(sequences: &[usize], rows: &[usize]) -> Vec<(usize, usize)> {
        sequences.iter().flat_map(|b| rows.iter().map(move |t| (*b, *t))).collect()
    }

    type Queue = <Cuda as Backend>::Queue;

    /// The device, and memory on it.
    struct On<'a> {
        bench: &'a mut Bench,
        pool: &'a mut Pool<Cuda>,
    }

    impl On<'_> {
        fn info(&self) -> DeviceInfo {
            self.bench.device().expect("there is one").info.clone()
        }

        fn plan(&self, p: Problem) -> Verify {
            Verify::plan(p, &self.info()).expect("a valid problem")
        }

        fn verify(&mut self, id: &str, op: &Verify) {
            let p = *op.problem();
            let one = Rounds::settled(p.sequences).verify_bytes(&p) as usize;
            let copies = copies(self.bench.device().expect("there is one"), one);
            // Enough rounds that their mean is that of all rounds.
            let count = copies.max(16).max(256 / p.sequences);
            let rounds = Rounds::simulate(p.sequences, p.max_rows, p.flush_after, count);
            let bytes = rounds.verify_bytes(&p);
            self.run(id, p, count, &rounds, bytes, |queue, args| op.run(queue, args));
        }

        fn prefill(&mut self, id: &str, model: Model, rows: usize) {
            let p = Problem { journal_rows: 12, ..problem(model, 1, rows, FLUSH_AFTER) };
            let op = Prefill::plan(p, &self.info()).expect("a valid problem");
            let bytes = prefill_bytes(&p);
            let copies = copies(self.bench.device().expect("there is one"), bytes as usize);
            self.run(id, p, copies, &Rounds::settled(1), bytes, |queue, args| op.run(queue, args));
        }

        /// Times one launch of a graph of `copies`. Nothing is made before the first call: of an id that
        /// the command line leaves out there is none.
        fn run(
            &mut self,
            id: &str,
            p: Problem,
            copies: usize,
            rounds: &Rounds,
            bytes: u64,
            launch: impl Fn(&Queue, Args<'_, Cuda>) -> Result<()>,
        ) {
            let (queue, pool) = (self.bench.device().expect("there is one").queue.clone(), &mut *self.pool);
            let mut operands = None;
            self.bench.cuda(id, bytes, copies, |call| {
                operands.get_or_insert_with(|| Operands::new(&queue, pool, p, copies, rounds)).with(
                    pool,
                    call,
                    |args| launch(&queue, args),
                )
            });
            let faulted = operands.is_some_and(|operands| operands.faulted(&queue));
            assert!(!faulted, "{id}: a round's counters are wrong");
        }
    }
}
