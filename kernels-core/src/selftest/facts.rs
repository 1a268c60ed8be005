//! What is compared with what.

use super::{Function, Instruction, Pattern, apply, product};
use crate::{
    Activation, Backend, Cuda, Error, Result, Tensor, TensorMut, bf16, device::Arch, f16, philox, ref_math,
};
use cudarc::driver::CudaStream;
use std::{fmt, sync::Arc};

/// One comparison on this chip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// What should equal what.
    pub name: String,
    /// Elements compared, bit by bit.
    pub compared: usize,
    /// How many differ: 0 if the fact holds.
    pub differing: usize,
}

impl Fact {
    /// Whether the contract may stand on it.
    pub fn holds(&self) -> bool {
        self.compared > 0 && self.differing == 0
    }

    fn new(name: String, got: &[u32], want: &[u32]) -> Self {
        assert_eq!(got.len(), want.len(), "both sides of a fact have one shape");
        let differing = got.iter().zip(want).filter(|(g, w)| g != w).count();
        Fact { name, compared: got.len(), differing }
    }
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} of {} elements differ", self.name, self.differing, self.compared)
    }
}

/// Every fact of this page.
pub fn facts(on: &Arc<CudaStream>) -> Result<Vec<Fact>> {
    let mut all = mma_equals_wgmma(on)?;
    all.extend(zero_columns(on)?);
    all.extend(cpu_equals_cuda(on)?);
    Ok(all)
}

const DEPTHS: [usize; 5] = [16, 64, 256, 1024, 4096];
const COLUMNS: [usize; 10] = [8, 16, 24, 32, 48, 64, 96, 128, 192, 256];

/// The instructions this device has.
fn instructions(on: &Arc<CudaStream>) -> Result<Vec<Instruction>> {
    let (major, minor) = on.context().compute_capability()?;
    let wgmma = Arch { major: major as u32, minor: minor as u32 } == Arch::SM90 && cfg!(kernels_sm90);
    let all = COLUMNS.map(|columns| Instruction::Wgmma { columns });
    Ok([Instruction::Mma].into_iter().chain(all.into_iter().filter(|_| wgmma)).collect())
}

/// A multiple of 64 and of the instruction's columns.
fn size(instruction: Instruction) -> usize {
    match instruction {
        Instruction::Wgmma { columns: 24 | 48 | 96 | 192 } => 192,
        _ => 256,
    }
}

/// The accumulators' bits of `a b^T`, both `[size, k]`.
fn bits<A: Activation>(
    on: &Arc<CudaStream>,
    instruction: Instruction,
    [m, n, k]: [usize; 3],
    a: &[A],
    b: &[A],
) -> Result<Vec<u32>> {
    let (a, b) = (Cuda::upload(on, &a[..m * k])?, Cuda::upload(on, &b[..n * k])?);
    // Poisoned, so that an element that is never written cannot pass for a result.
    let mut out = Cuda::upload(on, &vec![f32::from_bits(0x7fe5_0001); m * n])?;
    product::<A>(
        on,
        instruction,
        TensorMut::of(&mut out, [m, n]),
        Tensor::of(&a, [m, k]),
        Tensor::of(&b, [n, k]),
    )?;
    Ok(Cuda::read(on, &out, 0..m * n)?.into_iter().map(f32::to_bits).collect())
}

fn transposed(bits: &[u32], size: usize) -> Vec<u32> {
    (0..size * size).map(|i| bits[i % size * size + i / size]).collect()
}

/// The same k16 steps give the same accumulators: by either instruction, with any number of columns, with
/// the operands exchanged, and in any column.
///
/// Needs compute capability 9.0 for the comparison it is named after; elsewhere it compares mma.sync with
/// itself, transposed and permuted.
pub fn mma_equals_wgmma(on: &Arc<CudaStream>) -> Result<Vec<Fact>> {
    mma_equals_wgmma_of(on, &DEPTHS)
}

/// [`mma_equals_wgmma`] for these k only, multiples of 16: a sanitizer takes minutes for all of them.
#[doc(hidden)]
pub fn mma_equals_wgmma_of(on: &Arc<CudaStream>, depths: &[usize]) -> Result<Vec<Fact>> {
    let mut facts = matrix_facts::<bf16>(on, depths)?;
    facts.extend(matrix_facts::<f16>(on, depths)?);
    Ok(facts)
}

/// What the products of one size are held against.
struct Reference {
    size: usize,
    mma: Vec<u32>,
    sums: Option<Vec<u32>>,
}

fn matrix_facts<A: Activation>(on: &Arc<CudaStream>, depths: &[usize]) -> Result<Vec<Fact>> {
    let mut facts = Vec::new();
    let instructions = instructions(on)?;
    for &k in depths {
        for pattern in std::iter::once(Pattern::Integers).chain(Pattern::HOSTILE) {
            let (a, b) = (pattern.operand::<A>(k as u64, 256, k), pattern.operand::<A>(!k as u64, 256, k));
            let tag = format!("{} {pattern:?} k={k}", A::DTYPE);
            let references: Vec<Reference> = [192, 256]
                .into_iter()
                .map(|size| {
                    let mma = bits(on, Instruction::Mma, [size, size, k], &a, &b)?;
                    let sums = (pattern == Pattern::Integers).then(|| exact(size, k, &a, &b));
                    Ok(Reference { size, mma, sums })
                })
                .collect::<Result<_>>()?;
            for &instruction in &instructions {
                let s = size(instruction);
                let reference = references.iter().find(|r| r.size == s).expect("both sizes are there");
                let want = &reference.mma;
                let name = format!("{tag}: {instruction:?}");
                let got = bits(on, instruction, [s, s, k], &a, &b)?;
                facts.push(Fact::new(format!("{name} = Mma"), &got, want));
                let exchanged = transposed(&bits(on, instruction, [s, s, k], &b, &a)?, s);
                facts.push(Fact::new(format!("{name}, operands exchanged = Mma"), &exchanged, want));
                let elsewhere = permuted_columns(on, instruction, s, k, &a, &b)?;
                facts.push(Fact::new(format!("{name}, columns permuted = Mma"), &elsewhere, want));
                if let Some(sums) = &reference.sums {
                    facts.push(Fact::new(format!("{name} = exact sum"), &got, sums));
                }
            }
        }
    }
    Ok(facts)
}

/// The product with B's rows in another order, its columns put back.
fn permuted_columns<A: Activation>(
    on: &Arc<CudaStream>,
    instruction: Instruction,
    s: usize,
    k: usize,
    a: &[A],
    b: &[A],
) -> Result<Vec<u32>> {
    // 5 and 192, 5 and 256 have no common factor, so this visits every column.
    let from = |column: usize| (5 * column + 3) % s;
    let shuffled: Vec<A> = (0..s).flat_map(|c| &b[from(c) * k..][..k]).copied().collect();
    let got = bits(on, instruction, [s, s, k], a, &shuffled)?;
    let mut back = vec![0; s * s];
    for row in 0..s {
        for column in 0..s {
            back[row * s + from(column)] = got[row * s + column];
        }
    }
    Ok(back)
}

/// Sums of whole numbers below 2^24 are exact in any order.
fn exact<A: Activation>(s: usize, k: usize, a: &[A], b: &[A]) -> Vec<u32> {
    let whole = |x: &[A]| x[..s * k].iter().map(|x| x.to_f32() as i32).collect::<Vec<_>>();
    let (a, b) = (whole(a), whole(b));
    let dot = |i: usize, j: usize| -> i32 { (0..k).map(|x| a[i * k + x] * b[j * k + x]).sum() };
    (0..s * s).map(|i| (dot(i / s, i % s) as f32).to_bits()).collect()
}

/// A key that is masked (P = 0) changes nothing, whatever finite V it meets: with K = keys, `a` = P and
/// `b` = V^T. And whole k16 steps of zeros at the end equal a shorter K.
pub fn zero_columns(on: &Arc<CudaStream>) -> Result<Vec<Fact>> {
    let mut facts = zero_facts::<bf16>(on)?;
    facts.extend(zero_facts::<f16>(on)?);
    Ok(facts)
}

fn zero_facts<A: Activation>(on: &Arc<CudaStream>) -> Result<Vec<Fact>> {
    let mut facts = Vec::new();
    let zero = A::from_f32(0.0);
    for k in [64, 256, 1024] {
        let valid = k / 2 + 5;
        let masked = |x: &[A], below: usize| -> Vec<A> {
            x.iter().enumerate().map(|(i, x)| if i % k < below { *x } else { zero }).collect()
        };
        let shorter = |x: &[A], to: usize| -> Vec<A> {
            x.chunks_exact(k).flat_map(|row| &row[..to]).copied().collect()
        };
        for pattern in [Pattern::Wide, Pattern::Cancellation, Pattern::Denormals] {
            let p: Vec<A> = masked(&pattern.operand::<A>(5, 256, k), valid);
            let v = pattern.operand::<A>(6, 256, k);
            let (clean, to) = (masked(&v, valid), valid.next_multiple_of(16));
            for instruction in instructions(on)? {
                let s = size(instruction);
                let name = format!("{} {pattern:?} k={k}: {instruction:?}", A::DTYPE);
                let want = bits(on, instruction, [s, s, k], &p, &clean)?;
                let got = bits(on, instruction, [s, s, k], &p, &v)?;
                facts.push(Fact::new(format!("{name}, P = 0 against finite V = V absent"), &got, &want));
                let short = bits(on, instruction, [s, s, to], &shorter(&p, to), &shorter(&clean, to))?;
                facts.push(Fact::new(format!("{name}, zero steps = no steps"), &want, &short));
            }
        }
    }
    Ok(facts)
}

/// The scalar functions and the noise of the device headers equal the CPU's, NaN payloads aside.
pub fn cpu_equals_cuda(on: &Arc<CudaStream>) -> Result<Vec<Fact>> {
    // A prime step through all bit patterns, and every bf16 value.
    let mut words: Vec<u32> = (0..=u32::MAX).step_by(4099).collect();
    words.extend((0..=0xffffu32).map(|high| high << 16));
    let float = |f: fn(f32) -> f32| move |_: usize, x: u32| canonical(f(f32::from_bits(x)));
    let noise =
        |i: usize, x: u32| philox::bits(u64::from(!x) << 32 | u64::from(x), 7, i as u32, philox::Use::Draw);
    let one_to_two: Vec<u32> = (1.0f32.to_bits()..=2.0f32.to_bits()).collect();
    Ok(vec![
        scalar(on, Function::Reciprocal, &one_to_two, float(|x| 1.0 / x))?,
        scalar(on, Function::Exp, &words, float(ref_math::exp))?,
        scalar(on, Function::Sigmoid, &words, float(ref_math::sigmoid))?,
        scalar(on, Function::Silu, &words, float(ref_math::silu))?,
        scalar(on, Function::Softplus, &words, float(ref_math::softplus))?,
        scalar(on, Function::Rsqrt, &words, float(ref_math::rsqrt))?,
        scalar(on, Function::PhiloxBits, &words, noise)?,
        scalar(on, Function::PhiloxUniform, &words, |_, x| canonical(philox::uniform(x)))?,
        scalar(on, Function::Exponential, &words, |_, x| canonical(philox::exponential(x)))?,
        scalar(on, Function::Gumbel, &words, |_, x| canonical(philox::gumbel(x)))?,
    ])
}

/// The bits, one pattern for all NaN.
fn canonical(x: f32) -> u32 {
    if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }
}

fn scalar(
    on: &Arc<CudaStream>,
    function: Function,
    words: &[u32],
    cpu: impl Fn(usize, u32) -> u32,
) -> Result<Fact> {
    let x = Cuda::upload(on, words)?;
    let mut out = Cuda::upload(on, &vec![0x7fe5_0001; words.len()])?;
    apply(on, function, Cuda::view_mut(&mut out), Cuda::view(&x))?;
    let raw = Cuda::read(on, &out, 0..words.len())?;
    let float = function != Function::PhiloxBits;
    let got: Vec<u32> =
        raw.into_iter().map(|x| if float { canonical(f32::from_bits(x)) } else { x }).collect();
    let want: Vec<u32> = words.iter().enumerate().map(|(i, &x)| cpu(i, x)).collect();
    Ok(Fact::new(format!("{function:?} on the device = on the CPU"), &got, &want))
}

/// What a zero of P makes of an infinite or NaN V: the accumulator's bits, by each instruction.
///
/// Not a fact to stand on, but the reason why a masked key's V must be finite.
pub fn zero_times_infinity(on: &Arc<CudaStream>) -> Result<Vec<(Instruction, u32)>> {
    let k = 16;
    let p = vec![bf16::ZERO; 256 * k];
    let v = vec![bf16::INFINITY; 256 * k];
    let one = |i| {
        let s = size(i);
        let all = bits(on, i, [s, s, k], &p, &v)?;
        all.first().map(|first| (i, *first)).ok_or(Error::NotBuilt { op: "selftest::zero_times_infinity" })
    };
    instructions(on)?.into_iter().map(one).collect()
}
