//! Drafters that do what a broken or hostile one would.

use engine::{
    draft::{Drafter, Made, Mtp},
    round::{Core, DraftJob},
};
use kernels_core::{Activation, Cpu};
use kernels_testkit::rng::Rng;
use std::{cell::RefCell, collections::BTreeMap, rc::Rc};

/// The head runs, and another drafter writes over what it proposes.
#[derive(Debug)]
pub(crate) struct Overruled<A: Activation> {
    pub(crate) head: Box<dyn Drafter<Cpu, A>>,
    pub(crate) by: Box<dyn Drafter<Cpu, A>>,
}

impl<A: Activation> Drafter<Cpu, A> for Overruled<A> {
    fn name(&self) -> &'static str {
        "overruled"
    }

    fn needs_head(&self) -> bool {
        self.head.needs_head()
    }

    fn observe(&mut self, core: &mut Core<Cpu, A>, jobs: &[DraftJob]) -> engine::Result<Vec<Made>> {
        let made = self.head.observe(core, jobs)?;
        self.by.observe(core, jobs)?;
        Ok(made)
    }
}

/// Proposes ids from a list, at random.
#[derive(Debug)]
pub(crate) struct Among {
    pub(crate) ids: Vec<u32>,
    pub(crate) rng: Rng,
}

impl<A: Activation> Drafter<Cpu, A> for Among {
    fn name(&self) -> &'static str {
        "among"
    }

    fn observe(&mut self, core: &mut Core<Cpu, A>, jobs: &[DraftJob]) -> engine::Result<Vec<Made>> {
        for job in jobs.iter().filter(|job| job.drafts > 0) {
            let drafts: Vec<u32> =
                (0..job.drafts).map(|_| self.ids[self.rng.below(self.ids.len())]).collect();
            core.write_drafts(job, &drafts)?;
        }
        Ok(jobs.iter().map(|job| Made { proposed: job.drafts, refreshed: false }).collect())
    }
}

/// The head's first draft behind each token that plain decoding emits, by (request, position of the last
/// known token): what it would say if the text were given to it.
pub(crate) type Said = Rc<RefCell<BTreeMap<(u64, usize), u32>>>;

/// Lets the head draft one token, notes it, and takes it back.
#[derive(Debug, Default)]
pub(crate) struct TeacherForced {
    pub(crate) said: Said,
}

impl<A: Activation> Drafter<Cpu, A> for TeacherForced {
    fn name(&self) -> &'static str {
        "teacher-forced"
    }

    fn needs_head(&self) -> bool {
        true
    }

    fn observe(&mut self, core: &mut Core<Cpu, A>, jobs: &[DraftJob]) -> engine::Result<Vec<Made>> {
        let mut made = Mtp.observe(core, jobs)?;
        for (job, made) in jobs.iter().zip(&mut made).filter(|(job, _)| job.drafts > 0) {
            let table = &core.caches().shared.table;
            if table.proposed[job.slot] > 0 {
                let token = table.tokens[job.slot * table.positions + job.committed + 1] as u32;
                self.said.borrow_mut().insert((job.request.0, job.committed), token);
            }
            core.write_drafts(job, &[])?;
            made.proposed = 0;
        }
        Ok(made)
    }
}
