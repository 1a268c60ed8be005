//! Bad input is refused by name and value; violated invariants become faults; nothing panics.

use kernels_attn::{Append, AppendArgs, AppendProblem, Args, Prefill, Problem, Verify, Work, WorkArgs};
use kernels_core::{
    Cpu, DeviceInfo, KvPool, KvPoolMut, Result, Rows, Tensor, TensorMut, rope,
    slots::{Fault, FaultKind},
};

const PROBLEM: Problem = Problem {
    sequences: 3,
    rows: 6,
    max_rows: 3,
    q_heads: 4,
    kv_heads: 2,
    head_dim: 8,
    slots: 3,
    max_pages: 2,
    pages: PAGES,
    page_rows: PAGE_ROWS,
    first_key: 0,
    window: None,
};

const APPEND: AppendProblem = AppendProblem {
    sequences: 3,
    rows: 6,
    q_heads: 4,
    kv_heads: 2,
    head_dim: 8,
    rotary: 4,
    eps: 1e-6,
    slots: 3,
    max_pages: 2,
    page_rows: PAGE_ROWS,
    positions: 7,
};

const PAGES: usize = 6;
const PAGE_ROWS: usize = 4;

fn text<T: std::fmt::Debug>(result: Result<T>) -> String {
    result.unwrap_err().to_string()
}

pub(crate) fn problems() {
    let cpu = DeviceInfo::cpu();
    let verify = |p| text(Verify::plan(p, &cpu));
    let at_least = |name| format!("attn::verify: {name} is 0; it must be at least 1");
    assert_eq!(verify(Problem { sequences: 0, ..PROBLEM }), at_least("sequences"));
    assert_eq!(verify(Problem { rows: 0, ..PROBLEM }), at_least("rows"));
    assert_eq!(verify(Problem { max_rows: 0, ..PROBLEM }), at_least("max_rows"));
    assert_eq!(verify(Problem { q_heads: 0, ..PROBLEM }), at_least("q_heads"));
    assert_eq!(verify(Problem { kv_heads: 0, ..PROBLEM }), at_least("kv_heads"));
    assert_eq!(verify(Problem { head_dim: 0, ..PROBLEM }), at_least("head_dim"));
    assert_eq!(verify(Problem { slots: 0, ..PROBLEM }), at_least("slots"));
    assert_eq!(verify(Problem { max_pages: 0, ..PROBLEM }), at_least("max_pages"));
    assert_eq!(
        verify(Problem { q_heads: 5, ..PROBLEM }),
        "attn::verify: q_heads is 5; it must be a multiple of kv_heads (2)"
    );
    assert_eq!(
        verify(Problem { window: Some(0), ..PROBLEM }),
        "attn::verify: window is 0; a window holds at least the row's own key; use None for no window"
    );
    assert_eq!(
        text(Prefill::plan(Problem { rows: 3_000_000_000, ..PROBLEM }, &cpu)),
        "attn::prefill: rows is 3000000000; row offsets reach 2147483647 at most"
    );
    let append = |p| text(Append::plan(p, &cpu));
    for rotary in [3, 10] {
        assert_eq!(
            append(AppendProblem { rotary, ..APPEND }),
            format!("attn::append: rotary is {rotary}; it must be even and at most head_dim (8)")
        );
    }
    for eps in [-1.0, f32::NAN, f32::INFINITY] {
        assert_eq!(
            append(AppendProblem { eps, ..APPEND }),
            format!("attn::append: eps is {eps}; it must be finite and not negative")
        );
    }
    assert_eq!(
        append(AppendProblem { positions: 0, ..APPEND }),
        "attn::append: positions is 0; it must be at least 1"
    );
    assert_eq!(verify(Problem { page_rows: 0, ..PROBLEM }), at_least("page_rows"));
    let huge = Problem { kv_heads: usize::MAX / 4, q_heads: usize::MAX / 4, ..PROBLEM };
    assert!(verify(huge).starts_with("attn::verify: a list or workspace beyond what is addressable"));
    for device in [DeviceInfo::h200(), DeviceInfo::a100()] {
        let texts = |p: Problem, a: AppendProblem| {
            [
                text(Verify::plan(p, &device)),
                text(Prefill::plan(p, &device)),
                text(Work::plan(p, &device)),
                text(Append::plan(a, &device)),
            ]
        };
        for error in texts(PROBLEM, APPEND) {
            assert!(error.ends_with(": head_dim = 8 on CUDA (128 and 256 are) is not supported"), "{error}");
        }
        #[cfg(not(feature = "cuda"))]
        {
            let fits = Problem { head_dim: 256, page_rows: 16, ..PROBLEM };
            for error in texts(fits, AppendProblem { head_dim: 256, page_rows: 16, ..APPEND }) {
                assert!(error.contains("built without CUDA kernels"), "{error}");
            }
        }
    }
    assert_eq!(Verify::plan(PROBLEM, &cpu).unwrap().problem(), &PROBLEM);
    assert_eq!(Append::plan(APPEND, &cpu).unwrap().problem(), &APPEND);
}

pub(crate) fn keys_of_a_position() {
    let keys = |first_key, window, position| Problem { first_key, window, ..PROBLEM }.keys(position);
    assert_eq!(keys(0, None, 0), 0..1);
    assert_eq!(keys(0, None, 99), 0..100);
    assert_eq!(keys(1, None, 99), 1..100);
    assert!(keys(1, None, 0).is_empty());
    assert!(keys(7, Some(3), 2).is_empty());
    assert_eq!(keys(0, Some(1), 99), 99..100);
    assert_eq!(keys(0, Some(3), 99), 97..100);
    assert_eq!(keys(0, Some(3), 1), 0..2);
    assert_eq!(keys(98, Some(3), 99), 98..100);
}

/// All operands of both operations, right at first.
struct Operands {
    out: Vec<f32>,
    faults: Vec<u64>,
    q: Vec<f32>,
    kv: Vec<f32>,
    norm: Vec<f32>,
    rope: Vec<f32>,
    pool: Vec<f32>,
    table: Vec<i32>,
    slots: Vec<i32>,
    start: Vec<i32>,
    offsets: Vec<i32>,
}

impl Operands {
    fn new() -> Self {
        Operands {
            out: vec![f32::NAN; 6 * 4 * 8],
            faults: vec![0; 4],
            q: vec![1.0; 6 * 4 * 8],
            kv: vec![1.0; 6 * 2 * 8],
            norm: vec![0.0; 8],
            rope: rope::table(1e4, 4, 7),
            pool: vec![1.0; PAGES * 2 * 2 * PAGE_ROWS * 8],
            table: vec![0, 1, 2, 3, 4, 5],
            slots: vec![2, 0, 1],
            start: vec![0, 3, 4],
            offsets: vec![0, 2, 4, 6],
        }
    }

    fn verify(&mut self, change: impl FnOnce(&mut Args<'_, Cpu, f32>)) -> Result<()> {
        let mut args = Args::<Cpu, f32> {
            out: TensorMut::new(&mut self.out[..], [6, 4, 8]),
            faults: TensorMut::new(&mut self.faults[..], [4]),
            q: Tensor::new(&self.q[..], [6, 4, 8]),
            gate: Some(Tensor::new(&self.q[..], [6, 4, 8])),
            pool: KvPool::packed(&self.pool[..], PAGES, 2, PAGE_ROWS, 8),
            page_table: Tensor::new(&self.table[..], [3, 2]),
            rows: Rows {
                slots: Tensor::new(&self.slots[..], [3]),
                start: Tensor::new(&self.start[..], [3]),
                row_offsets: Tensor::new(&self.offsets[..], [4]),
            },
            work: None,
            workspace: None,
        };
        change(&mut args);
        Verify::plan(PROBLEM, &DeviceInfo::cpu())?.run(&(), args)
    }

    fn append(&mut self, change: impl FnOnce(&mut AppendArgs<'_, Cpu, f32>)) -> Result<()> {
        let mut args = AppendArgs::<Cpu, f32> {
            q_out: TensorMut::new(&mut self.out[..], [6, 4, 8]),
            pool: KvPoolMut::packed(&mut self.pool[..], PAGES, 2, PAGE_ROWS, 8),
            faults: TensorMut::new(&mut self.faults[..], [4]),
            q: Tensor::new(&self.q[..], [6, 4, 8]),
            k: Tensor::new(&self.kv[..], [6, 2, 8]),
            v: Tensor::new(&self.kv[..], [6, 2, 8]),
            q_norm: Tensor::new(&self.norm[..], [8]),
            k_norm: Tensor::new(&self.norm[..], [8]),
            rope: Tensor::new(&self.rope[..], [7, 4]),
            page_table: Tensor::new(&self.table[..], [3, 2]),
            rows: Rows {
                slots: Tensor::new(&self.slots[..], [3]),
                start: Tensor::new(&self.start[..], [3]),
                row_offsets: Tensor::new(&self.offsets[..], [4]),
            },
        };
        change(&mut args);
        Append::plan(APPEND, &DeviceInfo::cpu())?.run(&(), args)
    }
}

pub(crate) fn operands_of_verify() {
    let refused = |change: &dyn Fn(&mut Args<'_, Cpu, f32>)| {
        let mut operands = Operands::new();
        let error = text(operands.verify(change));
        assert!(operands.out.iter().all(|x| x.is_nan()), "written although refused: {error}");
        error
    };
    let shape =
        |arg, got: &str, want: &str| format!("attn::verify: `{arg}` has shape {got}, expected {want}");
    assert_eq!(refused(&|a| a.out.dims[0] = 5), shape("out", "[5, 4, 8]", "[6, 4, 8]"));
    assert_eq!(refused(&|a| a.q.dims[1] = 2), shape("q", "[6, 2, 8]", "[6, 4, 8]"));
    assert_eq!(refused(&|a| a.gate.as_mut().unwrap().dims[2] = 4), shape("gate", "[6, 4, 4]", "[6, 4, 8]"));
    assert_eq!(refused(&|a| a.faults.dims[0] = 3), shape("faults", "[3]", "[4]"));
    assert_eq!(refused(&|a| a.pool.kv_heads = 4), shape("pool", "[4, 8]", "[2, 8]"));
    assert_eq!(refused(&|a| a.page_table.dims[1] = 3), shape("page_table", "[3, 3]", "[3, 2]"));
    assert_eq!(refused(&|a| a.rows.start.dims[0] = 2), shape("rows.start", "[2]", "[3]"));
    assert_eq!(
        refused(&|a| a.pool.pages = 7),
        "attn::verify: `pool` needs 896 elements, its buffer holds 768"
    );
    assert_eq!(
        refused(&|a| a.pool.page_rows = 0),
        "attn::verify: page_rows is 0; a page holds at least one row"
    );
    assert_eq!(
        refused(&|a| a.q.strides = [64, 8, 1]),
        "attn::verify: `q` needs 352 elements, its buffer holds 192"
    );
    assert_eq!(
        refused(&|a| a.q.strides = [32, 1, 8]),
        "attn::verify: `q` has strides [32, 1, 8]; the last axis must be contiguous"
    );
    assert_eq!(
        refused(&|a| a.out.strides = [8, 8, 1]),
        "attn::verify: `out` has strides [8, 8, 1]; an outer stride must span the inner axes, or rows overlap"
    );
    assert_eq!(refused(&|a| a.pool.pages = 5), "attn::verify: pages is 5; it was planned for 6");
    assert_eq!(refused(&|a| a.pool.page_rows = 2), "attn::verify: page_rows is 2; it was planned for 4");
    // Header, sequences, and an item for each head of three sequences and of nobody.
    let want = 8 + 4 * 3 + 12 * 4 * 2;
    fn list<'a>(n: usize) -> Option<Tensor<'a, Cpu, i32, 1>> {
        Some(Tensor::new(&*vec![0; n].leak(), [n]))
    }
    fn bytes<'a>(n: usize) -> Option<TensorMut<'a, Cpu, u8, 1>> {
        Some(TensorMut::new(vec![0; n].leak(), [n]))
    }
    assert_eq!(refused(&|a| a.work = list(9)), shape("work", "[9]", &format!("[{want}]")));
    assert_eq!(refused(&|a| a.workspace = bytes(2)), shape("workspace", "[2]", "[0]"));
    Operands::new().verify(|a| (a.work, a.workspace) = (list(want), bytes(0))).unwrap();
    Operands::new().verify(|_| ()).unwrap();
}

/// A list finds the faults that a verification finds.
pub(crate) fn faults_of_a_list() {
    type Change = fn(&mut Operands);
    let changes: [Change; 7] = [
        |_| (),
        |o| o.slots[1] = 3,
        |o| o.slots[1] = -1,
        |o| o.start[1] = 7,
        |o| o.table[1] = 6,
        |o| o.table[0] = -1,
        |o| o.offsets = vec![0, 2, 6, 6],
    ];
    for (i, change) in changes.into_iter().enumerate() {
        let mut operands = Operands::new();
        change(&mut operands);
        operands.verify(|_| ()).unwrap();
        let mut faults = [0; 4];
        let op = Work::plan(PROBLEM, &DeviceInfo::cpu()).unwrap();
        let mut work = vec![-7; op.len()];
        let args = WorkArgs::<Cpu> {
            work: TensorMut::new(&mut work[..], [op.len()]),
            faults: TensorMut::new(&mut faults[..], [4]),
            page_table: Tensor::new(&operands.table[..], [3, 2]),
            rows: Rows {
                slots: Tensor::new(&operands.slots[..], [3]),
                start: Tensor::new(&operands.start[..], [3]),
                row_offsets: Tensor::new(&operands.offsets[..], [4]),
            },
        };
        op.run(&(), args).unwrap();
        assert_eq!(faults[..], operands.faults[..], "case {i}");
        // The second sequence has zeros where something is wrong with it, if it has rows at all.
        let items: Vec<&[i32]> = work[8 + 4 * 3..][..12 * work[0] as usize].chunks(12).collect();
        let slots: Vec<i32> = items.iter().filter(|item| item[0] == 1).map(|item| item[6]).collect();
        assert_eq!(slots, [if i > 0 { -1 } else { 0 }; 2], "case {i}");
    }
}

pub(crate) fn operands_of_append() {
    let refused = |change: &dyn Fn(&mut AppendArgs<'_, Cpu, f32>)| {
        let mut operands = Operands::new();
        let error = text(operands.append(change));
        assert!(operands.out.iter().all(|x| x.is_nan()), "written although refused: {error}");
        error
    };
    let shape =
        |arg, got: &str, want: &str| format!("attn::append: `{arg}` has shape {got}, expected {want}");
    assert_eq!(refused(&|a| a.q_out.dims[0] = 5), shape("q_out", "[5, 4, 8]", "[6, 4, 8]"));
    assert_eq!(refused(&|a| a.k.dims[1] = 4), shape("k", "[6, 4, 8]", "[6, 2, 8]"));
    assert_eq!(refused(&|a| a.v.dims[0] = 1), shape("v", "[1, 2, 8]", "[6, 2, 8]"));
    assert_eq!(refused(&|a| a.q_norm.dims[0] = 4), shape("q_norm", "[4]", "[8]"));
    assert_eq!(refused(&|a| a.k_norm.dims[0] = 9), shape("k_norm", "[9]", "[8]"));
    assert_eq!(refused(&|a| a.rope.dims = [7, 8]), shape("rope", "[7, 8]", "[7, 4]"));
    type Change = fn(&mut AppendArgs<'_, Cpu, f32>);
    let overlapping: [Change; 2] = [|a| a.pool.strides.row = 4, |a| a.pool.strides.head = 0];
    for change in overlapping {
        let error = refused(&change);
        assert!(error.contains("`pool`") && error.contains("must not overlap"), "{error}");
    }
    Operands::new().append(|_| ()).unwrap();
}

/// What one bad number does: a fault in its slot's word, zeros for its rows, and nothing to its neighbours.
pub(crate) fn faults() {
    type Change = fn(&mut Operands);
    let row = 4 * 8;
    let mut good = Operands::new();
    good.verify(|_| ()).unwrap();
    assert!(good.out.iter().all(|x| x.is_finite() && *x != 0.0));
    // What, the word, the fault, and the rows that become zeros.
    let cases: [(Change, usize, FaultKind, i32, std::ops::Range<usize>); 8] = [
        (|o| o.slots[1] = 3, 3, FaultKind::Slot, 3, 2..4),
        (|o| o.start[1] = -1, 0, FaultKind::Position, -1, 2..4),
        (|o| o.start[1] = 7, 0, FaultKind::Position, 7, 2..4),
        (|o| o.start[1] = i32::MAX, 0, FaultKind::Position, i32::MAX, 2..4),
        (|o| o.table[1] = 6, 0, FaultKind::Page, 6, 2..4),
        (|o| o.table[0] = -1, 0, FaultKind::Page, -1, 2..4),
        (|o| o.table[0] = i32::MIN, 0, FaultKind::Page, i32::MIN, 2..4),
        (|o| o.offsets = vec![0, 2, 6, 6], 0, FaultKind::RowOffsets, 4, 2..6),
    ];
    for (i, (change, word, kind, value, zeros)) in cases.into_iter().enumerate() {
        let mut operands = Operands::new();
        change(&mut operands);
        operands.verify(|_| ()).unwrap();
        let fault = Fault::decode(operands.faults[word]).unwrap_or_else(|| panic!("case {i}"));
        assert_eq!((fault.kind, fault.value), (kind, value), "case {i}");
        assert_eq!(operands.faults.iter().filter(|word| **word != 0).count(), 1, "case {i}");
        for r in 0..6 {
            let got = &operands.out[r * row..(r + 1) * row];
            if zeros.contains(&r) {
                assert!(got.iter().all(|x| x.to_bits() == 0), "case {i}: row {r}");
            } else {
                assert_eq!(got, &good.out[r * row..(r + 1) * row], "case {i}: row {r}");
            }
        }
    }
}

pub(crate) fn faults_of_append() {
    type Change = fn(&mut Operands);
    // Position 7 has a page, but no row in the rope table.
    let cases: [(Change, FaultKind, i32); 4] = [
        (|o| o.start[1] = 6, FaultKind::Position, 6),
        (|o| o.start[1] = -3, FaultKind::Position, -3),
        (|o| o.table[1] = 6, FaultKind::Page, 6),
        (|o| o.table[0] = -1, FaultKind::Page, -1),
    ];
    for (i, (change, kind, value)) in cases.into_iter().enumerate() {
        let mut operands = Operands::new();
        operands.pool.fill(f32::NAN);
        change(&mut operands);
        operands.append(|_| ()).unwrap();
        let fault = Fault::decode(operands.faults[0]).unwrap_or_else(|| panic!("case {i}"));
        assert_eq!((fault.kind, fault.slot, fault.value), (kind, 0, value), "case {i}");
        assert!(operands.out[2 * 32..4 * 32].iter().all(|x| x.to_bits() == 0), "case {i}");
        // Four rows of the other two sequences, keys and values, two heads of 8; nothing of slot 0.
        let written = operands.pool.iter().filter(|x| !x.is_nan()).count();
        assert_eq!(written, 4 * 2 * 2 * 8, "case {i}");
        let slot_0 = &operands.pool[..2 * 2 * 2 * PAGE_ROWS * 8];
        assert!(slot_0.iter().all(|x| x.is_nan()), "case {i}: a skipped sequence wrote");
    }
}
