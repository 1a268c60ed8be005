//! Operands made from the page's tables, right or wrong in one place.

use crate::page::{Row, Table, value};
use kernels_core::{
    Activation, Cpu, Element, Error, KvPool, KvPoolMut, Result, Rows, Tensor, TensorMut, tensor::packed,
};
use kernels_spec::{Counters, RowsMut, Sampling, Slots, Stops};
use std::{cell::RefCell, collections::BTreeMap};

/// What is wrong with one operand.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// One index more along an axis.
    Longer(usize),
    /// A buffer that ends one element too early.
    Short,
    /// A last axis with gaps.
    Scattered,
    /// An outer axis whose indices all share their elements.
    Shared,
    /// An outer axis with a gap before each next index.
    Gap,
}

/// One launch's operands: zeros in the shapes of the page, so that every list is empty or padding.
pub(crate) struct Operands<'p> {
    page: &'p BTreeMap<String, Table>,
    table: &'p Table,
    sizes: &'p [(&'p str, usize)],
    /// The path of the operand that is wrong, such as `rows.slots`.
    wrong: Option<(&'p str, Fault)>,
    /// What was asked for: path and row.
    asked: RefCell<Vec<(String, &'p Row)>>,
}

impl<'p> Operands<'p> {
    fn find(&self, path: &str) -> &'p Row {
        let (list, name) = path.rsplit_once('.').map_or((None, path), |(list, name)| (Some(list), name));
        let table = match list {
            None => self.table,
            Some(list) => {
                let ty = self.table.rows.iter().find(|row| row.name == list).map(|row| row.ty.as_str());
                let ty = ty.unwrap_or_else(|| panic!("{} has no `{list}`", self.table.name));
                let krate = ["kernels_core", "kernels_spec"].map(|krate| format!("{krate}::{ty}"));
                krate
                    .iter()
                    .find_map(|name| self.page.get(name))
                    .unwrap_or_else(|| panic!("no table of {ty}"))
            }
        };
        let row = table.rows.iter().find(|row| row.name == name);
        row.unwrap_or_else(|| panic!("{} has no `{name}`", table.name))
    }

    /// Memory, dimensions and strides of an operand.
    fn make<T: Element, const R: usize>(&self, path: &str, out: bool) -> (Vec<T>, [usize; R], [usize; R]) {
        let row = self.find(path);
        assert_eq!(row.out, out, "{}.{path}: in or out", self.table.name);
        let ty = match row.ty.as_str() {
            "A" => "bf16",
            "W" => "f32",
            other => other,
        };
        assert_eq!(ty, T::DTYPE.to_string(), "{}.{path}: its type", self.table.name);
        assert_eq!(row.shape.len(), R, "{}.{path}: its axes", self.table.name);
        self.asked.borrow_mut().push((path.to_owned(), row));
        let mut dims: [usize; R] = std::array::from_fn(|axis| value(&row.shape[axis], self.sizes));
        let fault = self.wrong.filter(|(wrong, _)| *wrong == path).map(|(_, fault)| fault);
        if let Some(Fault::Longer(axis)) = fault {
            dims[axis] += 1;
        }
        let mut strides = packed(dims);
        let mut len = dims.iter().product::<usize>();
        match fault {
            Some(Fault::Short) => len -= 1,
            Some(Fault::Scattered) => {
                strides = strides.map(|stride| 2 * stride);
                len *= 2;
            }
            Some(Fault::Shared) => strides[0] = 0,
            Some(Fault::Gap) => {
                strides[0] += 8;
                len += 8 * dims[0];
            }
            _ => {}
        }
        (vec![T::default(); len], dims, strides)
    }

    /// An operand to read. The memory is never given back: it is small, and lives as long as any borrow.
    pub(crate) fn read<T: Element, const R: usize>(&self, path: &str) -> Tensor<'static, Cpu, T, R> {
        let (memory, dims, strides) = self.make::<T, R>(path, false);
        Tensor::new(&*memory.leak(), dims).with_strides(strides)
    }

    /// An operand to write.
    pub(crate) fn write<T: Element, const R: usize>(&self, path: &str) -> TensorMut<'static, Cpu, T, R> {
        let (memory, dims, strides) = self.make::<T, R>(path, true);
        TensorMut::new(memory.leak(), dims).with_strides(strides)
    }

    pub(crate) fn faults(&self) -> TensorMut<'static, Cpu, u64, 1> {
        self.write("faults")
    }

    pub(crate) fn rows(&self, name: &str) -> Rows<'static, Cpu> {
        let at = |field: &str| format!("{name}.{field}");
        Rows {
            slots: self.read(&at("slots")),
            start: self.read(&at("start")),
            row_offsets: self.read(&at("row_offsets")),
        }
    }

    pub(crate) fn rows_mut(&self, name: &str) -> RowsMut<'static, Cpu> {
        let at = |field: &str| format!("{name}.{field}");
        RowsMut {
            slots: self.write(&at("slots")),
            start: self.write(&at("start")),
            row_offsets: self.write(&at("row_offsets")),
        }
    }

    pub(crate) fn slots(&self) -> Slots<'static, Cpu> {
        Slots {
            tokens: self.write("slots.tokens"),
            committed: self.write("slots.committed"),
            folded: self.write("slots.folded"),
            drafted: self.write("slots.drafted"),
            proposed: self.write("slots.proposed"),
            limit: self.write("slots.limit"),
            length_limit: self.write("slots.length_limit"),
            prompt: self.write("slots.prompt"),
            state: self.write("slots.state"),
            faults: self.write("slots.faults"),
        }
    }

    pub(crate) fn sampling(&self) -> Sampling<'static, Cpu> {
        Sampling {
            repetition: self.read("sampling.repetition"),
            presence: self.read("sampling.presence"),
            frequency: self.read("sampling.frequency"),
            bias_ids: self.read("sampling.bias_ids"),
            bias_values: self.read("sampling.bias_values"),
            temperature: self.read("sampling.temperature"),
            top_k: self.read("sampling.top_k"),
            top_p: self.read("sampling.top_p"),
            min_p: self.read("sampling.min_p"),
            seed_lo: self.read("sampling.seed_lo"),
            seed_hi: self.read("sampling.seed_hi"),
        }
    }

    pub(crate) fn stops(&self) -> Stops<'static, Cpu> {
        Stops { eos: self.read("stops.eos"), sequences: self.read("stops.sequences") }
    }

    pub(crate) fn counters(&self) -> Counters<'static, Cpu> {
        Counters {
            rounds: self.write("counters.rounds"),
            verified: self.write("counters.verified"),
            accepted: self.write("counters.accepted"),
        }
    }

    /// The sizes of the one buffer of a pool, in the order of the page.
    fn pool_sizes(&self) -> [usize; 5] {
        let row = &self.page["kernels_core::KvPool"].rows[0];
        std::array::from_fn(|axis| value(&row.shape[axis], self.sizes))
    }

    pub(crate) fn pool<A: Activation>(&self) -> KvPool<'static, Cpu, A> {
        let [pages, two, heads, rows, dim] = self.pool_sizes();
        let memory = vec![A::default(); pages * two * heads * rows * dim];
        KvPool::packed(&*memory.leak(), pages, heads, rows, dim)
    }

    pub(crate) fn pool_mut<A: Activation>(&self) -> KvPoolMut<'static, Cpu, A> {
        let [pages, two, heads, rows, dim] = self.pool_sizes();
        let memory = vec![A::default(); pages * two * heads * rows * dim];
        KvPoolMut::packed(memory.leak(), pages, heads, rows, dim)
    }
}

/// Runs an operation on the operands that the page describes, and then with each of them wrong in every way:
/// what the page rules out must be refused by name, what it allows must run.
pub(crate) fn check(
    page: &BTreeMap<String, Table>,
    name: &str,
    sizes: &[(&str, usize)],
    run: &dyn Fn(&Operands<'_>) -> Result<()>,
) {
    let table = &page[name];
    let operands = |wrong| Operands { page, table, sizes, wrong, asked: RefCell::default() };
    let right = operands(None);
    run(&right).unwrap_or_else(|e| panic!("{name} as the page says: {e}"));
    let asked = right.asked.into_inner();
    for row in table.rows.iter().filter(|row| !row.ty.starts_with("KvPool")) {
        let is = |path: &String| path.split('.').next() == Some(&row.name);
        assert!(asked.iter().any(|(path, _)| is(path)), "{name}: the test leaves `{}` out", row.name);
    }
    for (path, row) in &asked {
        let axes = row.shape.len();
        let mut faults: Vec<Fault> = (0..axes).map(Fault::Longer).collect();
        faults.extend([Fault::Short, Fault::Scattered]);
        if axes > 1 {
            faults.extend([Fault::Shared, Fault::Gap]);
        }
        // Where nothing is there, nothing can be missing.
        if axes == 1 && value(&row.shape[0], sizes) == 0 {
            faults.truncate(axes);
        }
        for fault in faults {
            // One index along an axis has no neighbour to share with or to be apart from.
            let single = value(&row.shape[0], sizes) == 1;
            let allowed = match (fault, row.strides.as_str()) {
                (Fault::Shared, "any") | (Fault::Gap, "any" | "apart") => true,
                (Fault::Shared | Fault::Gap, _) => single,
                _ => false,
            };
            let result = run(&operands(Some((path, fault))));
            if allowed {
                result.unwrap_or_else(|e| panic!("{name}: `{path}`, {fault:?}, is allowed: {e}"));
                continue;
            }
            let error = result.expect_err(&format!("{name}: `{path}`, {fault:?}, was accepted"));
            let (arg, fits) = match (&error, fault) {
                (Error::Shape { arg, .. }, Fault::Longer(_)) => (arg, true),
                (Error::Bounds { arg, .. }, Fault::Short) => (arg, true),
                (Error::Stride { arg, .. }, _) => (arg, true),
                _ => (&"", false),
            };
            let named = arg == path || path.rsplit('.').next() == arg.rsplit('.').next();
            assert!(fits && named, "{name}: `{path}`, {fault:?}: {error}");
        }
    }
}
