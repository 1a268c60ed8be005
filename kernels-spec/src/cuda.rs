//! The crate's only unsafe code: operands become pointers, and one launcher is called.

// Long because no other file of the crate may hold what is here.

use crate::{
    Accept, AcceptArgs, Advance, AdvanceArgs, Argmax, ArgmaxArgs, Carry, CarryArgs, ChainInputs,
    ChainInputsArgs, Counters, DraftInputs, DraftInputsArgs, DrawDraft, DrawDraftArgs, Emit, EmitArgs,
    HiddenProblem, KeepHidden, KeepHiddenArgs, LastRows, LastRowsArgs, Oracle, OracleArgs, Pass,
    PrefillInputs, PrefillInputsArgs, Problem, Propose, ProposeArgs, Rejection, RejectionArgs,
    RejectionProblem, RowsMut, Sample, SampleArgs, SampleProblem, Sampling, Settle, SettleArgs, Slots,
    SpecBackend, Stop, StopArgs, StopProblem, Stops, TakeLast, TakeLastArgs, TargetInputs, TargetInputsArgs,
    problem::Launch,
    sample::SampleParts,
    sealed::Sealed,
    sys::{
        self, ls_rows, ls_spec_argmax_params, ls_spec_draw_draft_params, ls_spec_hidden_params,
        ls_spec_inputs_params, ls_spec_oracle_params, ls_spec_rejection_params, ls_spec_rules,
        ls_spec_sample_params, ls_spec_settle_params, ls_spec_slots,
    },
};
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, SyncOnDrop};
use kernels_core::{Activation, Cuda, Error, Result, Rows, Tensor, TensorMut};
use std::{ptr::null, ptr::null_mut, sync::Arc};

impl Sealed for Cuda {}

type On = Arc<CudaStream>;

/// Pointers of operands by name; what they return records events when dropped, so it lives to the end of the scope.
macro_rules! pointers {
    ($on:ident; $($name:ident = $view:expr;)*) => {
        $(let ($name, _guard) = $view.device_ptr($on);)*
    };
    ($on:ident mut; $($name:ident = $view:expr;)*) => {
        $(let ($name, _guard) = $view.device_ptr_mut($on);)*
    };
}

/// Bounds are 32-bit on the device; what is beyond is no bound there.
fn bound(n: usize) -> i32 {
    const MOST: i32 = i32::MAX - 2;
    i32::try_from(n).unwrap_or(MOST).min(MOST)
}

/// Refuses a plan for the CPU, and says whether launches may overlap.
fn planned(op: &'static str, launch: &Launch) -> Result<i32> {
    match launch.multiprocessors {
        Some(_) => Ok(i32::from(launch.programmatic)),
        None => Err(Error::invalid(op, "device", "the CPU", "plan it for the CUDA device it runs on")),
    }
}

fn table<'g>(slots: &'g mut Slots<'_, Cuda>, on: &'g On) -> (ls_spec_slots, [SyncOnDrop<'g>; 10]) {
    let (tokens, a) = slots.tokens.data.device_ptr_mut(on);
    let (committed, b) = slots.committed.data.device_ptr_mut(on);
    let (folded, c) = slots.folded.data.device_ptr_mut(on);
    let (drafted, d) = slots.drafted.data.device_ptr_mut(on);
    let (proposed, e) = slots.proposed.data.device_ptr_mut(on);
    let (limit, f) = slots.limit.data.device_ptr_mut(on);
    let (length_limit, g) = slots.length_limit.data.device_ptr_mut(on);
    let (prompt, h) = slots.prompt.data.device_ptr_mut(on);
    let (state, i) = slots.state.data.device_ptr_mut(on);
    let (faults, j) = slots.faults.data.device_ptr_mut(on);
    let table = ls_spec_slots {
        tokens: tokens as *mut _,
        committed: committed as *mut _,
        folded: folded as *mut _,
        drafted: drafted as *mut _,
        proposed: proposed as *mut _,
        limit: limit as *mut _,
        length_limit: length_limit as *mut _,
        prompt: prompt as *mut _,
        state: state as *mut _,
        faults: faults as *mut _,
        tokens_stride: slots.tokens.strides[0] as i64,
        slot_count: bound(slots.tokens.dims[0]),
        positions: slots.tokens.dims[1] as i32,
    };
    (table, [a, b, c, d, e, f, g, h, i, j])
}

fn list<'g>(
    rows: &'g Rows<'_, Cuda>,
    faults: *mut u64,
    [row_count, max_rows, slot_count]: [usize; 3],
    on: &'g On,
) -> (ls_rows, [SyncOnDrop<'g>; 3]) {
    let (slots, a) = rows.slots.data.device_ptr(on);
    let (start, b) = rows.start.data.device_ptr(on);
    let (row_offsets, c) = rows.row_offsets.data.device_ptr(on);
    let list = ls_rows {
        slots: slots as *const _,
        start: start as *const _,
        row_offsets: row_offsets as *const _,
        faults,
        sequences: bound(rows.slots.dims[0]),
        row_count: row_count as i32,
        max_rows: bound(max_rows),
        slot_count: bound(slot_count),
    };
    (list, [a, b, c])
}

const NO_ROWS: ls_rows = ls_rows {
    slots: null(),
    start: null(),
    row_offsets: null(),
    faults: null_mut(),
    sequences: 0,
    row_count: 0,
    max_rows: 0,
    slot_count: 0,
};

/// What the operations on row lists have in common.
struct Building<'t, 'a> {
    op: &'static str,
    launch: &'t Launch,
    problem: &'t Problem,
    kind: i32,
    list: RowsMut<'a, Cuda>,
    ids: Option<TensorMut<'a, Cuda, i32, 1>>,
    slots: Slots<'a, Cuda>,
    sequences: Option<Tensor<'a, Cuda, i32, 1>>,
    wanted: Option<Tensor<'a, Cuda, i32, 1>>,
    from: Option<Rows<'a, Cuda>>,
    ring_rows: usize,
}

impl<'t, 'a> Building<'t, 'a> {
    fn new(
        op: &'static str,
        launch: &'t Launch,
        problem: &'t Problem,
        kind: i32,
        list: RowsMut<'a, Cuda>,
        slots: Slots<'a, Cuda>,
    ) -> Self {
        let (ids, sequences, wanted, from) = (None, None, None, None);
        Building { op, launch, problem, kind, list, ids, slots, sequences, wanted, from, ring_rows: 0 }
    }

    fn run(mut self, on: &On) -> Result<()> {
        let programmatic = planned(self.op, self.launch)?;
        on.context().bind_to_thread()?;
        let p = self.problem;
        let (slots, _slots) = table(&mut self.slots, on);
        let bounds = [p.rows, p.max_rows, p.slots];
        let from = self.from.as_ref().map(|from| list(from, slots.faults, bounds, on));
        pointers!(on mut;
            list_slots = self.list.slots.data;
            list_start = self.list.start.data;
            list_offsets = self.list.row_offsets.data;
        );
        let ids = self.ids.as_mut().map(|ids| ids.data.device_ptr_mut(on));
        let sequences = self.sequences.as_ref().map(|list| list.data.device_ptr(on));
        let wanted = self.wanted.as_ref().map(|wanted| wanted.data.device_ptr(on));
        let params = ls_spec_inputs_params {
            slots,
            from: from.as_ref().map_or(NO_ROWS, |from| from.0),
            list_slots: list_slots as *mut _,
            list_start: list_start as *mut _,
            list_offsets: list_offsets as *mut _,
            ids: ids.as_ref().map_or(null_mut(), |ids| ids.0 as *mut _),
            sequences: sequences.as_ref().map_or(null(), |list| list.0 as *const _),
            wanted: wanted.as_ref().map_or(null(), |wanted| wanted.0 as *const _),
            kind: self.kind,
            sequence_count: p.sequences as i32,
            row_count: p.rows as i32,
            max_rows: bound(p.max_rows),
            ring_rows: bound(self.ring_rows),
            programmatic,
        };
        // SAFETY: `run` bounded every operand, the guards outlive the launch, and the stream belongs to the context
        // just bound.
        Error::status(self.op, unsafe { sys::ls_spec_inputs_smxx(&params, on.cu_stream().cast()) })
    }
}

/// What the steps of settling have in common.
struct Settling<'t, 'a> {
    op: &'static str,
    launch: &'t Launch,
    problem: &'t Problem,
    steps: i32,
    slots: Slots<'a, Cuda>,
    rows: Rows<'a, Cuda>,
    accepted: Option<TensorMut<'a, Cuda, i32, 1>>,
    read_accepted: Option<Tensor<'a, Cuda, i32, 1>>,
    choice: Option<Tensor<'a, Cuda, i32, 1>>,
    stops: Option<(Stops<'a, Cuda>, StopProblem)>,
    counters: Option<Counters<'a, Cuda>>,
    emitted: Option<TensorMut<'a, Cuda, i32, 2>>,
    flush_after: usize,
    pass: Pass,
}

impl<'t, 'a> Settling<'t, 'a> {
    fn new(
        op: &'static str,
        launch: &'t Launch,
        problem: &'t Problem,
        steps: i32,
        slots: Slots<'a, Cuda>,
        rows: Rows<'a, Cuda>,
    ) -> Self {
        Settling {
            op,
            launch,
            problem,
            steps,
            slots,
            rows,
            accepted: None,
            read_accepted: None,
            choice: None,
            stops: None,
            counters: None,
            emitted: None,
            flush_after: 0,
            pass: Pass::Decode,
        }
    }

    fn run(mut self, on: &On) -> Result<()> {
        let programmatic = planned(self.op, self.launch)?;
        on.context().bind_to_thread()?;
        let p = self.problem;
        let (slots, _slots) = table(&mut self.slots, on);
        let (rows, _rows) = list(&self.rows, slots.faults, [p.rows, p.max_rows, p.slots], on);
        let accepted = self.accepted.as_mut().map(|a| a.data.device_ptr_mut(on));
        let read = self.read_accepted.as_ref().map(|a| a.data.device_ptr(on));
        let choice = self.choice.as_ref().map(|c| c.data.device_ptr(on));
        let stops =
            self.stops.as_ref().map(|(s, _)| (s.eos.data.device_ptr(on), s.sequences.data.device_ptr(on)));
        let emitted_stride = self.emitted.as_ref().map_or(0, |e| e.strides[0] as i64);
        let emitted = self.emitted.as_mut().map(|e| e.data.device_ptr_mut(on));
        let counter_strides = self
            .counters
            .as_ref()
            .map_or([0; 3], |c| [c.rounds.strides[0], c.verified.strides[0], c.accepted.strides[0]]);
        let counters = self
            .counters
            .as_mut()
            .map(|c| [&mut c.rounds, &mut c.verified, &mut c.accepted].map(|c| c.data.device_ptr_mut(on)));
        let counter = |i: usize| counters.as_ref().map_or(null_mut(), |all| all[i].0 as *mut u64);
        let strides =
            |f: &dyn Fn(&Stops<'_, Cuda>) -> usize| self.stops.as_ref().map_or(0, |s| f(&s.0) as i64);
        let sizes = |f: &dyn Fn(&StopProblem) -> usize| self.stops.as_ref().map_or(0, |s| bound(f(&s.1)));
        let params = ls_spec_settle_params {
            slots,
            rows,
            accepted: match (&accepted, &read) {
                (Some(at), _) => at.0 as *mut i32,
                // Written by no step that goes with it.
                (None, Some(at)) => at.0 as *mut i32,
                (None, None) => null_mut(),
            },
            choice: choice.as_ref().map_or(null(), |at| at.0 as *const i32),
            eos: stops.as_ref().map_or(null(), |at| at.0.0 as *const i32),
            stops: stops.as_ref().map_or(null(), |at| at.1.0 as *const i32),
            count_rounds: counter(0),
            count_verified: counter(1),
            count_accepted: counter(2),
            emitted: emitted.as_ref().map_or(null_mut(), |at| at.0 as *mut i32),
            eos_stride: strides(&|s| s.eos.strides[0]),
            stops_slot_stride: strides(&|s| s.sequences.strides[0]),
            stops_stride: strides(&|s| s.sequences.strides[1]),
            rounds_stride: counter_strides[0] as i64,
            verified_stride: counter_strides[1] as i64,
            accepted_stride: counter_strides[2] as i64,
            emitted_stride,
            steps: self.steps,
            max_eos: sizes(&|p| p.max_eos),
            max_stops: sizes(&|p| p.max_stops),
            max_stop_length: sizes(&|p| p.max_stop_length),
            flush_after: bound(self.flush_after),
            prefill: i32::from(self.pass == Pass::Prefill),
            programmatic,
        };
        // SAFETY: as for the row lists; a step looks at the operands that its operation has given.
        Error::status(self.op, unsafe { sys::ls_spec_settle_smxx(&params, on.cu_stream().cast()) })
    }
}

/// Copies of hidden rows; strides and widths in elements of `A`.
struct Copying<'t, A: Activation> {
    op: &'static str,
    launch: &'t Launch,
    problem: &'t HiddenProblem,
    kind: i32,
    out: (u64, usize),
    ring: (u64, [usize; 2]),
    hidden: (u64, usize),
    committed: u64,
    rows: ls_rows,
    forward: ls_rows,
    activation: std::marker::PhantomData<A>,
}

impl<'t, A: Activation> Copying<'t, A> {
    fn new(
        op: &'static str,
        launch: &'t Launch,
        problem: &'t HiddenProblem,
        kind: i32,
        rows: ls_rows,
    ) -> Self {
        Copying {
            op,
            launch,
            problem,
            kind,
            out: (0, 0),
            ring: (0, [0; 2]),
            hidden: (0, 0),
            committed: 0,
            rows,
            forward: NO_ROWS,
            activation: std::marker::PhantomData,
        }
    }

    fn run(&self, on: &On) -> Result<()> {
        let programmatic = planned(self.op, self.launch)?;
        let size = size_of::<A>();
        let bytes = |elements: usize| (elements * size) as i64;
        let p = self.problem;
        let params = ls_spec_hidden_params {
            out: self.out.0 as *mut _,
            ring: self.ring.0 as *mut _,
            hidden: self.hidden.0 as *const _,
            committed: self.committed as *const _,
            rows: self.rows,
            forward: self.forward,
            out_stride: bytes(self.out.1),
            ring_slot_stride: bytes(self.ring.1[0]),
            ring_stride: bytes(self.ring.1[1]),
            hidden_stride: bytes(self.hidden.1),
            width: bytes(p.width),
            ring_rows: p.ring_rows as i32,
            kind: self.kind,
            unit: 0,
            programmatic,
        };
        let strides = params.out_stride | params.ring_slot_stride | params.ring_stride | params.hidden_stride;
        let all = self.out.0 | self.ring.0 | self.hidden.0 | (strides | params.width) as u64;
        let unit = if all.is_multiple_of(16) { 16 } else { size as i32 };
        let params = ls_spec_hidden_params { unit, ..params };
        on.context().bind_to_thread()?;
        // SAFETY: `run` bounded every operand, the caller's guards outlive the launch, and the stream belongs to the
        // context just bound.
        Error::status(self.op, unsafe { sys::ls_spec_hidden_smxx(&params, on.cu_stream().cast()) })
    }
}

impl SpecBackend for Cuda {
    fn target_inputs(op: &TargetInputs, on: &On, args: TargetInputsArgs<'_, Cuda>) -> Result<()> {
        let TargetInputsArgs { rows, ids, slots, sequences, drafts } = args;
        let new =
            Building::new(TargetInputs::NAME, &op.launch, op.problem(), sys::LS_SPEC_TARGET, rows, slots);
        Building { ids: Some(ids), sequences: Some(sequences), wanted: Some(drafts), ..new }.run(on)
    }

    fn prefill_inputs(op: &PrefillInputs, on: &On, args: PrefillInputsArgs<'_, Cuda>) -> Result<()> {
        let PrefillInputsArgs { rows, ids, slots, sequences, lengths } = args;
        let new =
            Building::new(PrefillInputs::NAME, &op.launch, op.problem(), sys::LS_SPEC_PREFILL, rows, slots);
        Building { ids: Some(ids), sequences: Some(sequences), wanted: Some(lengths), ..new }.run(on)
    }

    fn last_rows(op: &LastRows, on: &On, args: LastRowsArgs<'_, Cuda>) -> Result<()> {
        let LastRowsArgs { last, slots, rows } = args;
        let new = Building::new(LastRows::NAME, &op.launch, op.problem(), sys::LS_SPEC_LAST, last, slots);
        Building { from: Some(rows), ..new }.run(on)
    }

    fn draft_inputs(op: &DraftInputs, on: &On, args: DraftInputsArgs<'_, Cuda>) -> Result<()> {
        let DraftInputsArgs { rows, ids, slots, sequences, forward } = args;
        let p = op.problem();
        let new = Building::new(DraftInputs::NAME, &op.launch, &p.base, sys::LS_SPEC_DRAFT, rows, slots);
        let (ids, sequences, from) = (Some(ids), Some(sequences), Some(forward));
        Building { ids, sequences, from, ring_rows: p.ring_rows, ..new }.run(on)
    }

    fn chain_inputs(op: &ChainInputs, on: &On, args: ChainInputsArgs<'_, Cuda>) -> Result<()> {
        let ChainInputsArgs { rows, ids, slots, sequences } = args;
        let new = Building::new(ChainInputs::NAME, &op.launch, op.problem(), sys::LS_SPEC_CHAIN, rows, slots);
        Building { ids: Some(ids), sequences: Some(sequences), ..new }.run(on)
    }

    fn accept(op: &Accept, on: &On, args: AcceptArgs<'_, Cuda>) -> Result<()> {
        let AcceptArgs { accepted, slots, choice, rows } = args;
        let new = Settling::new(Accept::NAME, &op.launch, op.problem(), sys::LS_SPEC_ACCEPT, slots, rows);
        Settling { accepted: Some(accepted), choice: Some(choice), ..new }.run(on)
    }

    fn stop(op: &Stop, on: &On, args: StopArgs<'_, Cuda>) -> Result<()> {
        let StopArgs { accepted, slots, stops, rows } = args;
        let p = op.problem();
        let new = Settling::new(Stop::NAME, &op.launch, &p.base, sys::LS_SPEC_STOP, slots, rows);
        Settling { accepted: Some(accepted), stops: Some((stops, *p)), ..new }.run(on)
    }

    fn advance(op: &Advance, on: &On, args: AdvanceArgs<'_, Cuda>) -> Result<()> {
        let AdvanceArgs { accepted, slots, counters, rows } = args;
        let p = op.problem();
        let new = Settling::new(Advance::NAME, &op.launch, &p.base, sys::LS_SPEC_ADVANCE, slots, rows);
        let (flush_after, pass) = (p.flush_after, p.pass);
        Settling { accepted: Some(accepted), counters, flush_after, pass, ..new }.run(on)
    }

    fn emit(op: &Emit, on: &On, args: EmitArgs<'_, Cuda>) -> Result<()> {
        let EmitArgs { emitted, accepted, slots, rows } = args;
        let new = Settling::new(Emit::NAME, &op.launch, op.problem(), sys::LS_SPEC_EMIT, slots, rows);
        Settling { emitted: Some(emitted), read_accepted: Some(accepted), ..new }.run(on)
    }

    fn settle(op: &Settle, on: &On, args: SettleArgs<'_, Cuda>) -> Result<()> {
        const ALL: i32 = sys::LS_SPEC_ACCEPT | sys::LS_SPEC_STOP | sys::LS_SPEC_ADVANCE | sys::LS_SPEC_EMIT;
        let SettleArgs { accepted, emitted, slots, choice, stops, counters, rows } = args;
        let p = op.problem();
        let new = Settling::new(Settle::NAME, &op.launch, &p.stop.base, ALL, slots, rows);
        let (accepted, emitted, choice) = (Some(accepted), Some(emitted), Some(choice));
        let stops = Some((stops, p.stop));
        Settling { accepted, emitted, choice, stops, counters, flush_after: p.flush_after, ..new }.run(on)
    }

    fn propose(op: &Propose, on: &On, args: ProposeArgs<'_, Cuda>) -> Result<()> {
        let ProposeArgs { slots, choice, rows } = args;
        let new = Settling::new(Propose::NAME, &op.launch, op.problem(), sys::LS_SPEC_PROPOSE, slots, rows);
        Settling { choice, ..new }.run(on)
    }

    fn oracle(op: &Oracle, on: &On, args: OracleArgs<'_, Cuda>) -> Result<()> {
        let OracleArgs { mut slots, mut rounds, truth, rate, pattern, sequences, drafts } = args;
        let programmatic = planned(Oracle::NAME, &op.launch)?;
        on.context().bind_to_thread()?;
        let p = op.problem();
        let (slots, _slots) = table(&mut slots, on);
        pointers!(on mut; rounds = rounds.data;);
        pointers!(on;
            truth_at = truth.data;
            rate = rate.data;
            sequences = sequences.data;
            drafts = drafts.data;
        );
        let pattern = pattern.as_ref().map(|pattern| pattern.data.device_ptr(on));
        let params = ls_spec_oracle_params {
            slots,
            rounds: rounds as *mut _,
            truth: truth_at as *const _,
            rate: rate as *const _,
            pattern: pattern.as_ref().map_or(null(), |at| at.0 as *const _),
            sequences: sequences as *const _,
            drafts: drafts as *const _,
            truth_stride: truth.strides[0] as i64,
            seed: p.seed,
            sequence_count: p.sequences as i32,
            max_drafts: p.max_drafts as i32,
            valid: p.valid as i32,
            pattern_count: p.pattern.unwrap_or(0) as i32,
            programmatic,
        };
        // SAFETY: as for the row lists.
        Error::status(Oracle::NAME, unsafe { sys::ls_spec_oracle_smxx(&params, on.cu_stream().cast()) })
    }

    fn carry<A: Activation>(op: &Carry, on: &On, args: CarryArgs<'_, Cuda, A>) -> Result<()> {
        let CarryArgs { mut out, mut faults, hidden, ring, forward, rows } = args;
        let p = op.problem();
        pointers!(on mut; out_at = out.data; faults_at = faults.data;);
        pointers!(on; hidden_at = hidden.data; ring_at = ring.data;);
        let (rows, _rows) = list(&rows, faults_at as *mut _, [p.rows, p.rows, p.slots], on);
        let bounds = [p.forward_rows, p.forward_rows, p.slots];
        let (forward, _forward) = list(&forward, faults_at as *mut _, bounds, on);
        Copying::<A> {
            out: (out_at, out.strides[0]),
            ring: (ring_at, [ring.strides[0], ring.strides[1]]),
            hidden: (hidden_at, hidden.strides[0]),
            forward,
            ..Copying::new(Carry::NAME, &op.launch, p, sys::LS_SPEC_CARRY, rows)
        }
        .run(on)
    }

    fn keep_hidden<A: Activation>(op: &KeepHidden, on: &On, args: KeepHiddenArgs<'_, Cuda, A>) -> Result<()> {
        let KeepHiddenArgs { mut ring, mut faults, committed, hidden, rows } = args;
        let p = op.problem();
        pointers!(on mut; ring_at = ring.data; faults_at = faults.data;);
        pointers!(on; hidden_at = hidden.data; committed = committed.data;);
        let (rows, _rows) = list(&rows, faults_at as *mut _, [p.rows, p.rows, p.slots], on);
        Copying::<A> {
            ring: (ring_at, [ring.strides[0], ring.strides[1]]),
            hidden: (hidden_at, hidden.strides[0]),
            committed,
            ..Copying::new(KeepHidden::NAME, &op.launch, p, sys::LS_SPEC_KEEP, rows)
        }
        .run(on)
    }

    fn take_last<A: Activation>(op: &TakeLast, on: &On, args: TakeLastArgs<'_, Cuda, A>) -> Result<()> {
        let TakeLastArgs { mut out, mut faults, hidden, rows } = args;
        let p = op.problem();
        pointers!(on mut; out_at = out.data; faults_at = faults.data;);
        pointers!(on; hidden_at = hidden.data;);
        let (rows, _rows) = list(&rows, faults_at as *mut _, [p.rows, p.rows, p.slots], on);
        Copying::<A> {
            out: (out_at, out.strides[0]),
            hidden: (hidden_at, hidden.strides[0]),
            ..Copying::new(TakeLast::NAME, &op.launch, p, sys::LS_SPEC_TAKE_LAST, rows)
        }
        .run(on)
    }

    fn argmax(op: &Argmax, on: &On, args: ArgmaxArgs<'_, Cuda>) -> Result<()> {
        let ArgmaxArgs { mut choice, logits, workspace } = args;
        let programmatic = planned(Argmax::NAME, &op.launch)?;
        let mut workspace = needed(Argmax::NAME, workspace, op.workspace_bytes())?;
        on.context().bind_to_thread()?;
        pointers!(on mut; choice_at = choice.data; best = workspace.data;);
        pointers!(on; logits_at = logits.data;);
        aligned(Argmax::NAME, best)?;
        let p = op.problem();
        let params = ls_spec_argmax_params {
            choice: choice_at as *mut _,
            logits: logits_at as *const _,
            best: best as *mut _,
            logits_stride: logits.strides[0] as i64,
            rows: p.rows as i32,
            vocab: p.vocab as i32,
            valid: p.valid as i32,
            vectors: op.vectors() as i32,
            programmatic,
        };
        // SAFETY: as for the row lists.
        Error::status(Argmax::NAME, unsafe { sys::ls_spec_argmax_smxx(&params, on.cu_stream().cast()) })
    }

    fn sample(op: &Sample, on: &On, args: SampleArgs<'_, Cuda>) -> Result<()> {
        let SampleArgs { mut choice, mut faults, logits, rows, tokens, prompt, sampling, workspace } = args;
        let programmatic = planned(Sample::NAME, &op.launch)?;
        let mut workspace = needed(Sample::NAME, workspace, op.workspace_bytes())?;
        on.context().bind_to_thread()?;
        let p = op.problem();
        pointers!(on mut; choice = choice.data; faults = faults.data; workspace_at = workspace.data;);
        pointers!(on; logits_at = logits.data; tokens_at = tokens.data; prompt = prompt.data;);
        aligned(Sample::NAME, workspace_at)?;
        let (rows, _rows) = list(&rows, faults as *mut _, [p.rows, p.rows, p.slots], on);
        let (rules, _rules) = rules_of(&sampling, p.max_bias, on);
        let params = ls_spec_sample_params {
            choice: choice as *mut _,
            logits: logits_at as *const _,
            tokens: tokens_at as *const _,
            prompt: prompt as *const _,
            rows,
            rules,
            logits_stride: logits.strides[0] as i64,
            tokens_stride: tokens.strides[0] as i64,
            kind: sys::LS_SPEC_SAMPLE,
            programmatic,
            ..passes(p, &op.parts(), workspace_at)
        };
        // SAFETY: as for the row lists; the parts lie inside the workspace, whose size was checked.
        Error::status(Sample::NAME, unsafe { sys::ls_spec_sample_smxx(&params, on.cu_stream().cast()) })
    }

    fn draw_draft(op: &DrawDraft, on: &On, args: DrawDraftArgs<'_, Cuda>) -> Result<()> {
        let DrawDraftArgs {
            mut choice,
            mut probabilities,
            mut faults,
            logits,
            rows,
            tokens,
            prompt,
            sampling,
            workspace,
        } = args;
        let programmatic = planned(DrawDraft::NAME, &op.launch)?;
        let mut workspace = needed(DrawDraft::NAME, workspace, op.workspace_bytes())?;
        on.context().bind_to_thread()?;
        let RejectionProblem { base: p, ring_rows } = op.problem();
        pointers!(on mut;
            choice = choice.data;
            probabilities_at = probabilities.data;
            faults = faults.data;
            workspace_at = workspace.data;
        );
        pointers!(on; logits_at = logits.data; tokens_at = tokens.data; prompt = prompt.data;);
        aligned(DrawDraft::NAME, workspace_at)?;
        let (rows, _rows) = list(&rows, faults as *mut _, [p.rows, p.rows, p.slots], on);
        let (rules, _rules) = rules_of(&sampling, p.max_bias, on);
        let params = ls_spec_draw_draft_params {
            sample: ls_spec_sample_params {
                choice: choice as *mut _,
                logits: logits_at as *const _,
                tokens: tokens_at as *const _,
                prompt: prompt as *const _,
                rows,
                rules,
                logits_stride: logits.strides[0] as i64,
                tokens_stride: tokens.strides[0] as i64,
                kind: sys::LS_SPEC_DRAW_DRAFT,
                programmatic,
                ..passes(p, &op.parts(), workspace_at)
            },
            probabilities: probabilities_at as *mut _,
            slot_stride: probabilities.strides[0] as i64,
            ring_stride: probabilities.strides[1] as i64,
            ring_rows: bound(*ring_rows),
        };
        // SAFETY: as for `sample`.
        Error::status(DrawDraft::NAME, unsafe {
            sys::ls_spec_draw_draft_smxx(&params, on.cu_stream().cast())
        })
    }

    fn rejection(op: &Rejection, on: &On, args: RejectionArgs<'_, Cuda>) -> Result<()> {
        let RejectionArgs { mut accepted, mut slots, logits, probabilities, rows, sampling, workspace } =
            args;
        let programmatic = planned(Rejection::NAME, &op.launch)?;
        let mut workspace = needed(Rejection::NAME, workspace, op.workspace_bytes())?;
        on.context().bind_to_thread()?;
        let RejectionProblem { base: p, ring_rows } = op.problem();
        let (slots, _slots) = table(&mut slots, on);
        pointers!(on mut; accepted = accepted.data; workspace_at = workspace.data;);
        pointers!(on; logits_at = logits.data; probabilities_at = probabilities.data;);
        aligned(Rejection::NAME, workspace_at)?;
        let (rows, _rows) = list(&rows, slots.faults, [p.rows, ring_rows.saturating_add(1), p.slots], on);
        let (rules, _rules) = rules_of(&sampling, p.max_bias, on);
        let parts = op.parts();
        let params = ls_spec_rejection_params {
            sample: ls_spec_sample_params {
                choice: (workspace_at + parts.choice as u64) as *mut _,
                logits: logits_at as *const _,
                tokens: slots.tokens,
                prompt: slots.prompt,
                rows,
                rules,
                logits_stride: logits.strides[0] as i64,
                tokens_stride: slots.tokens_stride,
                kind: sys::LS_SPEC_REJECTION,
                programmatic,
                ..passes(p, &parts, workspace_at)
            },
            slots,
            accepted: accepted as *mut _,
            probabilities: probabilities_at as *const _,
            raced: (workspace_at + parts.raced as u64) as *mut _,
            slot_stride: probabilities.strides[0] as i64,
            ring_stride: probabilities.strides[1] as i64,
            ring_rows: bound(*ring_rows),
        };
        // SAFETY: as for `sample`.
        Error::status(Rejection::NAME, unsafe { sys::ls_spec_rejection_smxx(&params, on.cu_stream().cast()) })
    }
}

/// The numbers and the parts of a workspace that every look at rows of logits has; the operands are null.
fn passes(p: &SampleProblem, parts: &SampleParts, workspace: u64) -> ls_spec_sample_params {
    let part = |offset: usize| workspace + offset as u64;
    ls_spec_sample_params {
        choice: null_mut(),
        logits: null(),
        tokens: null(),
        prompt: null(),
        rows: NO_ROWS,
        rules: NO_RULES,
        shaped: part(parts.shaped) as *mut _,
        best: part(parts.best) as *mut _,
        drawn: part(parts.drawn) as *mut _,
        found: part(parts.found) as *mut _,
        tasks: part(parts.tasks) as *mut _,
        patch_most: part(parts.patch_most) as *mut _,
        bins: part(parts.bins) as *mut _,
        sums: part(parts.sums) as *mut _,
        candidates: part(parts.candidates) as *mut _,
        candidate_counts: part(parts.candidate_counts) as *mut _,
        kept: part(parts.kept) as *mut _,
        limits: part(parts.limits) as *mut _,
        most: part(parts.most) as *mut _,
        logits_stride: 0,
        tokens_stride: 0,
        shaped_stride: parts.shaped_stride as i64,
        vocab: p.vocab as i32,
        valid: p.valid as i32,
        positions: p.positions as i32,
        vectors: parts.vectors as i32,
        blocks: parts.blocks as i32,
        kind: sys::LS_SPEC_SAMPLE,
        programmatic: 0,
    }
}

fn rules_of<'g>(
    sampling: &'g Sampling<'_, Cuda>,
    max_bias: usize,
    on: &'g On,
) -> (ls_spec_rules, [SyncOnDrop<'g>; 11]) {
    let (repetition, a) = sampling.repetition.data.device_ptr(on);
    let (presence, b) = sampling.presence.data.device_ptr(on);
    let (frequency, c) = sampling.frequency.data.device_ptr(on);
    let (bias_ids, d) = sampling.bias_ids.data.device_ptr(on);
    let (bias_values, e) = sampling.bias_values.data.device_ptr(on);
    let (temperature, f) = sampling.temperature.data.device_ptr(on);
    let (top_k, g) = sampling.top_k.data.device_ptr(on);
    let (top_p, h) = sampling.top_p.data.device_ptr(on);
    let (min_p, i) = sampling.min_p.data.device_ptr(on);
    let (seed_lo, j) = sampling.seed_lo.data.device_ptr(on);
    let (seed_hi, k) = sampling.seed_hi.data.device_ptr(on);
    let rules = ls_spec_rules {
        repetition: repetition as *const _,
        presence: presence as *const _,
        frequency: frequency as *const _,
        bias_ids: bias_ids as *const _,
        bias_values: bias_values as *const _,
        temperature: temperature as *const _,
        top_k: top_k as *const _,
        top_p: top_p as *const _,
        min_p: min_p as *const _,
        seed_lo: seed_lo as *const _,
        seed_hi: seed_hi as *const _,
        bias_ids_stride: sampling.bias_ids.strides[0] as i64,
        bias_values_stride: sampling.bias_values.strides[0] as i64,
        max_bias: bound(max_bias),
    };
    (rules, [a, b, c, d, e, f, g, h, i, j, k])
}

const NO_RULES: ls_spec_rules = ls_spec_rules {
    repetition: null(),
    presence: null(),
    frequency: null(),
    bias_ids: null(),
    bias_values: null(),
    temperature: null(),
    top_k: null(),
    top_p: null(),
    min_p: null(),
    seed_lo: null(),
    seed_hi: null(),
    bias_ids_stride: 0,
    bias_values_stride: 0,
    max_bias: 0,
};

type Workspace<'a> = TensorMut<'a, Cuda, u8, 1>;

fn needed<'a>(op: &'static str, workspace: Option<Workspace<'a>>, bytes: usize) -> Result<Workspace<'a>> {
    workspace.ok_or_else(|| Error::invalid(op, "workspace", "none", format!("this plan needs {bytes} bytes")))
}

fn aligned(op: &'static str, workspace: u64) -> Result<()> {
    if workspace.is_multiple_of(16) { Ok(()) } else { Err(Error::Align { op, arg: "workspace", want: 16 }) }
}
