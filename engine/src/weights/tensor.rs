//! A tensor in the mapped file, and its conversion to what a model computes in.

use super::{Checkpoint, Experts};
use crate::{Error, Result};
use half::{bf16, f16};
use kernels_core::{Activation, DType};
use std::path::Path;

/// Elements converted between two progress reports.
const STRIP: usize = 1 << 22;

/// A tensor of a checkpoint: a name, a shape, and bytes that are still in the file.
#[derive(Clone, Copy)]
pub struct TensorRef<'a> {
    pub(super) checkpoint: &'a Checkpoint,
    pub(super) name: &'a str,
    pub(super) dtype: DType,
    pub(super) shape: &'a [usize],
    pub(super) bytes: &'a [u8],
    pub(super) file: &'a Path,
}

impl std::fmt::Debug for TensorRef<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {:?}", self.name, self.dtype, self.shape)
    }
}

impl<'a> TensorRef<'a> {
    /// Its name in the file.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// The file's type: `Bf16`, `F16` or `F32`.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Its shape, outermost first.
    pub fn shape(&self) -> &'a [usize] {
        self.shape
    }

    /// How many elements it has.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Its little-endian bytes in the mapped file, at any alignment. Reading them is not counted as
    /// progress; see [`Checkpoint::advance`].
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The file that holds it.
    pub fn file(&self) -> &'a Path {
        self.file
    }

    /// The values as `A`, if `A` represents every one of them exactly; widening always does.
    pub fn to_vec<A: Activation>(&self) -> Result<Vec<A>> {
        let mut out = vec![A::default(); self.elements()];
        self.read_into(&mut out)?;
        Ok(out)
    }

    /// The values as `A`, rounded to nearest even where `A` is narrower.
    pub fn to_vec_rounded<A: Activation>(&self) -> Vec<A> {
        let mut out = vec![A::default(); self.elements()];
        self.read_rounded(&mut out);
        out
    }

    /// [`to_vec`](Self::to_vec) into the caller's memory, which has exactly as many elements.
    pub fn read_into<A: Activation>(&self, out: &mut [A]) -> Result<()> {
        match self.read(out, true) {
            None => Ok(()),
            Some((index, value)) => Err(Error::Inexact {
                path: self.file.to_owned(),
                name: self.name.to_owned(),
                from: self.dtype,
                to: A::DTYPE,
                index,
                value,
            }),
        }
    }

    /// [`to_vec_rounded`](Self::to_vec_rounded) into the caller's memory, which has exactly as many
    /// elements.
    pub fn read_rounded<A: Activation>(&self, out: &mut [A]) {
        self.read(out, false);
    }

    /// Converts; when asked to, stops at the first value that `A` cannot represent.
    fn read<A: Activation>(&self, out: &mut [A], exact: bool) -> Option<(usize, f32)> {
        assert_eq!(out.len(), self.elements(), "the destination of `{}` has another size", self.name);
        let size = self.bytes.len() / out.len().max(1);
        for (i, (out, bytes)) in out.chunks_mut(STRIP).zip(self.bytes.chunks(STRIP * size.max(1))).enumerate()
        {
            let bad = match self.dtype {
                dtype if dtype == A::DTYPE && cfg!(target_endian = "little") => {
                    bytemuck::cast_slice_mut::<A, u8>(out).copy_from_slice(bytes);
                    None
                }
                DType::Bf16 => convert(bytes, out, exact, |b| bf16::from_le_bytes(b).to_f32()),
                DType::F16 => convert(bytes, out, exact, |b| f16::from_le_bytes(b).to_f32()),
                _ => convert(bytes, out, exact, f32::from_le_bytes),
            };
            if let Some((at, value)) = bad {
                return Some((i * STRIP + at, value));
            }
            self.checkpoint.advance(bytes.len() as u64);
        }
        None
    }
}

fn convert<A: Activation, const N: usize>(
    bytes: &[u8],
    out: &mut [A],
    exact: bool,
    value: impl Fn([u8; N]) -> f32,
) -> Option<(usize, f32)> {
    let (chunks, _) = bytes.as_chunks::<N>();
    for (out, &chunk) in out.iter_mut().zip(chunks) {
        *out = A::from_f32(value(chunk));
    }
    if !exact {
        return None;
    }
    let differs = |(&out, &chunk): (&A, &[u8; N])| {
        let x = value(chunk);
        !(x.is_nan() || out.to_f32().to_bits() == x.to_bits())
    };
    let at = out.iter().zip(chunks).position(differs)?;
    Some((at, value(chunks[at])))
}

impl Experts<TensorRef<'_>> {
    /// Gate and up rows of every expert as one `[experts, 2 * intermediate, hidden]`, however they are
    /// stored; `rounded` as in [`TensorRef::to_vec_rounded`].
    pub fn gate_up<A: Activation>(&self, rounded: bool) -> Result<Vec<A>> {
        match self {
            Experts::Fused { gate_up, .. } => gather(&[*gate_up], rounded),
            Experts::Split(list) => {
                let parts: Vec<_> = list.iter().flat_map(|e| [e.gate_proj, e.up_proj]).collect();
                gather(&parts, rounded)
            }
        }
    }

    /// Down projections of every expert as one `[experts, hidden, intermediate]`.
    pub fn down<A: Activation>(&self, rounded: bool) -> Result<Vec<A>> {
        match self {
            Experts::Fused { down, .. } => gather(&[*down], rounded),
            Experts::Split(list) => {
                let parts: Vec<_> = list.iter().map(|e| e.down_proj).collect();
                gather(&parts, rounded)
            }
        }
    }
}

fn gather<A: Activation>(parts: &[TensorRef<'_>], rounded: bool) -> Result<Vec<A>> {
    let mut out = vec![A::default(); parts.iter().map(TensorRef::elements).sum()];
    let mut rest = out.as_mut_slice();
    for part in parts {
        let (head, tail) = std::mem::take(&mut rest).split_at_mut(part.elements());
        if rounded {
            part.read_rounded(head)
        } else {
            part.read_into(head)?
        }
        rest = tail;
    }
    Ok(out)
}
