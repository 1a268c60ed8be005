//! Weights as E4M3 codes with one scale a row: made out of wider ones, and a head that reads them.

use crate::{
    DenseBackend, HeadProblem, head,
    plan::{self, BUILT, VECTOR},
};
use kernels_core::{Activation, Backend, DeviceInfo, Error, Result, Tensor, TensorMut, bf16};

pub(crate) const QUANTIZE: &str = "dense::quantize";
pub(crate) const HEAD: &str = "dense::fp8_head";

/// Codes of a 16-byte access, and elements of a k16 step.
pub(crate) const CODES: usize = 16;

/// The numbers of a byte: a sign, four bits of exponent with bias 7, three of mantissa.
///
/// Exponent 0 holds zero and the multiples of 2^-9 below 2^-6; the largest number is 448. There is no infinity: 0x7f and
/// 0xff are NaN.
pub mod e4m3 {
    /// The largest number.
    pub const MAX: f32 = 448.0;
    /// The code that is NaN; with the sign it is another one.
    pub const NAN: u8 = 0x7f;

    /// The number of a code, exact.
    pub const fn decode(code: u8) -> f32 {
        number(code as u32)
    }

    /// The code of the nearest number, of two the even code; beyond [`MAX`] it is that of `MAX`. NaN is [`NAN`].
    pub const fn encode(x: f32) -> u8 {
        // Of 2^14 the last bit is 2^-9: adding it rounds to a multiple of that, as subnormal numbers are.
        const UNIT_IS_LEAST: f32 = 16384.0;
        const LEAST_NORMAL: u32 = (127 - 6) << 23;
        const BIASES: u32 = (127 - 7) << 3;
        let (size, sign) = (x.to_bits() & 0x7fff_ffff, (x.to_bits() >> 24) as u8 & 0x80);
        let code = if x.is_nan() {
            return NAN;
        } else if size >= MAX.to_bits() {
            NAN as u32 - 1
        } else if size >= LEAST_NORMAL {
            ((size + 0x7_ffff + ((size >> 20) & 1)) >> 20) - BIASES
        } else {
            (f32::from_bits(size) + UNIT_IS_LEAST).to_bits() - UNIT_IS_LEAST.to_bits()
        };
        sign | code as u8
    }

    /// By code.
    pub(crate) static DECODED: [f32; 256] = {
        let mut all = [0.0; 256];
        let mut code = 0;
        while code < 256 {
            all[code] = number(code as u32);
            code += 1;
        }
        all
    };

    const fn number(code: u32) -> f32 {
        let (sign, size) = (code >> 7 << 31, code & 0x7f);
        let size = match size {
            0x7f => return f32::NAN,
            // Multiples of 2^-9.
            0..8 => (size as f32 / 512.0).to_bits(),
            _ => (size << 20) + (120 << 23),
        };
        f32::from_bits(sign | size)
    }
}

/// The sizes of [`Quantize`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuantizeProblem {
    /// Rows of codes.
    pub rows: usize,
    /// Width of a row.
    pub k: usize,
    /// Rows of a table that [`QuantizeArgs::ids`] choose among; none where its rows are taken one by one.
    pub chosen_from: Option<usize>,
}

impl QuantizeProblem {
    /// Rows of the table.
    pub fn table_rows(&self) -> usize {
        self.chosen_from.unwrap_or(self.rows)
    }
}

/// Operands of [`Quantize`].
#[derive(Debug)]
pub struct QuantizeArgs<'a, B: Backend, A: Activation = bf16> {
    /// `[rows, k]`: codes of [`e4m3`].
    pub weight: TensorMut<'a, B, u8, 2>,
    /// `[rows]`
    pub scales: TensorMut<'a, B, f32, 1>,
    /// `[table_rows, k]`
    pub table: Tensor<'a, B, A, 2>,
    /// `[rows]`: rows of the table; for one outside of it stands a row of zeros. Given where
    /// [`QuantizeProblem::chosen_from`] is, and only there.
    pub ids: Option<Tensor<'a, B, i32, 1>>,
}

/// Rows as codes and one scale each, so that `scale * decode(code)` is near what they were.
///
/// `scale = max |x| / 448`, at least 2^-126; `code = encode(x / scale)`; both quotients in fp32. A row with something that
/// is not finite gets a scale of NaN, and codes of 0. Both backends give the same bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantize {
    problem: QuantizeProblem,
    /// Whether it was planned for a CUDA device.
    pub(crate) on_cuda: bool,
}

impl Quantize {
    /// Chooses how `device` computes `problem`.
    pub fn plan(problem: QuantizeProblem, device: &DeviceInfo) -> Result<Self> {
        plan::rows(QUANTIZE, problem.rows)?;
        plan::sizes(QUANTIZE, [("k", problem.k)])?;
        if let Some(rows) = problem.chosen_from {
            plan::sizes(QUANTIZE, [("chosen_from", rows)])?;
        }
        codes(QUANTIZE, problem.k, device)?;
        Ok(Quantize { problem, on_cuda: plan::has_kernel(QUANTIZE, device, BUILT)? })
    }

    /// The sizes it was planned for.
    pub fn problem(&self) -> &QuantizeProblem {
        &self.problem
    }

    /// Checks the operands and computes or enqueues.
    pub fn run<B: DenseBackend, A: Activation>(
        &self,
        on: &B::Queue,
        args: QuantizeArgs<'_, B, A>,
    ) -> Result<()> {
        let QuantizeProblem { rows, k, chosen_from } = self.problem;
        args.weight.check(QUANTIZE, "weight", [rows, k])?;
        args.weight.check_disjoint(QUANTIZE, "weight")?;
        args.scales.check(QUANTIZE, "scales", [rows])?;
        args.table.check(QUANTIZE, "table", [self.problem.table_rows(), k])?;
        match (&args.ids, chosen_from) {
            (Some(ids), Some(_)) => ids.check(QUANTIZE, "ids", [rows])?,
            (None, Some(of)) => {
                let want = format!("the table has {of} rows, and somebody must say which are taken");
                return Err(Error::invalid(QUANTIZE, "ids", "none", want));
            }
            (Some(ids), None) => {
                let want = "they go with `chosen_from` in the problem, which says what they choose among";
                return Err(Error::invalid(QUANTIZE, "ids", format!("{:?}", ids.dims), want));
            }
            (None, None) => {}
        }
        B::quantize(self, on, args)
    }
}

/// Operands of [`Fp8Head`].
#[derive(Debug)]
pub struct Fp8HeadArgs<'a, B: Backend, A: Activation = bf16> {
    /// `[rows, vocab]`, fp32 and not rounded. Columns of ids that are not listed stay as they are.
    pub logits: TensorMut<'a, B, f32, 2>,
    /// `[rows, k]`
    pub x: Tensor<'a, B, A, 2>,
    /// `[weight_rows, k]`: codes of [`e4m3`]; rows from `valid` on are not read where all ids are there.
    pub weight: Tensor<'a, B, u8, 2>,
    /// `[weight_rows]`
    pub scales: Tensor<'a, B, f32, 1>,
    /// `[weight_rows]`: as in [`HeadArgs`](crate::HeadArgs).
    pub ids: Option<Tensor<'a, B, i32, 1>>,
}

/// Logits by a weight of one byte an element: `scale * Σ x decode(code)`, the sum and the product in fp32.
///
/// [`Head`](crate::Head) is for what the target says; this is for drafts, which may be wrong. A row's logits are a function
/// of that row all the same. A code that is NaN makes the logits of its id NaN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fp8Head {
    problem: HeadProblem,
    pub(crate) launch: Option<Fp8Launch>,
}

/// A launch on a CUDA device. No output bit depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fp8Launch {
    /// Rows of x that are computed together.
    pub(crate) columns: usize,
    /// Rows of the weight that a block has.
    pub(crate) tile_rows: usize,
    pub(crate) programmatic: bool,
}

const COLUMNS: [usize; 4] = [8, 16, 32, 64];

impl Fp8Head {
    /// Chooses how `device` computes `problem`.
    pub fn plan(problem: HeadProblem, device: &DeviceInfo) -> Result<Self> {
        head::sizes(HEAD, &problem)?;
        let weight_rows = problem.weight_rows();
        codes(HEAD, problem.k, device)?;
        plan::vectors(HEAD, weight_rows, device)?;
        let launch = plan::has_kernel(HEAD, device, BUILT)?.then(|| Fp8Launch::choose(&problem, device));
        Ok(Fp8Head { problem, launch })
    }

    /// Lets the CUDA kernel begin, and load codes, while the one before it on the stream still runs: for a weight that
    /// is not what that one writes.
    pub fn overlapping(mut self, on: bool) -> Self {
        if let Some(launch) = &mut self.launch {
            launch.programmatic = on;
        }
        self
    }

    /// Blocks of 64 or 128 rows of the weight, for tests.
    #[doc(hidden)]
    pub fn with_tile_rows(mut self, tile_rows: usize) -> Self {
        if let Some(launch) = &mut self.launch {
            launch.tile_rows = if tile_rows < 128 { 64 } else { 128 };
        }
        self
    }

    /// The sizes it was planned for.
    pub fn problem(&self) -> &HeadProblem {
        &self.problem
    }

    /// Checks the operands and computes or enqueues.
    pub fn run<B: DenseBackend, A: Activation>(
        &self,
        on: &B::Queue,
        args: Fp8HeadArgs<'_, B, A>,
    ) -> Result<()> {
        let HeadProblem { rows, k, vocab, .. } = self.problem;
        let weight_rows = self.problem.weight_rows();
        args.logits.check(HEAD, "logits", [rows, vocab])?;
        args.logits.check_disjoint(HEAD, "logits")?;
        args.x.check(HEAD, "x", [rows, k])?;
        args.weight.check(HEAD, "weight", [weight_rows, k])?;
        args.scales.check(HEAD, "scales", [weight_rows])?;
        head::ids(HEAD, &self.problem, args.ids.as_ref())?;
        B::fp8_head(self, on, args)
    }
}

impl Fp8Launch {
    fn choose(problem: &HeadProblem, device: &DeviceInfo) -> Self {
        let most = COLUMNS[COLUMNS.len() - 1];
        let columns = COLUMNS.into_iter().find(|c| *c >= problem.rows).unwrap_or(most);
        // Smaller blocks where larger ones would leave multiprocessors without any.
        let large = problem.weight_rows().div_ceil(128) >= device.multiprocessors;
        Fp8Launch { columns, tile_rows: if large { 128 } else { 64 }, programmatic: false }
    }
}

/// Rows of whole vectors of codes, where the device is a GPU.
fn codes(op: &'static str, k: usize, device: &DeviceInfo) -> Result<()> {
    if device.arch.is_some() && !k.is_multiple_of(CODES) {
        let what = format!("a width of {k} on CUDA (multiples of {CODES} are)");
        return Err(Error::Unsupported { op, what });
    }
    Ok(())
}

const _: () = assert!(CODES.is_multiple_of(VECTOR), "rows of codes are rows of vectors of bf16");

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(rows: usize, weight_rows: usize) -> (usize, usize) {
        let problem = HeadProblem { rows, k: 16, vocab: weight_rows, valid: 1, listed: None };
        let chosen = Fp8Launch::choose(&problem, &DeviceInfo::h200());
        (chosen.columns, chosen.tile_rows)
    }

    #[test]
    fn rows_choose_columns_and_weights_their_tiles() {
        for (rows, columns) in [(0, 8), (1, 8), (8, 8), (9, 16), (17, 32), (33, 64), (64, 64), (65, 64)] {
            assert_eq!(launch(rows, 32_768), (columns, 128), "{rows} rows");
        }
        for (weight_rows, tile_rows) in
            [(8, 64), (131 * 128, 64), (131 * 128 + 8, 128), (32_768, 128), (248_320, 128)]
        {
            assert_eq!(launch(1, weight_rows), (8, tile_rows), "{weight_rows} rows of the weight");
        }
    }
}
