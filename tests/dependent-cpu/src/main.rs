//! Three tokens of one sequence through a moving sum of two taps, one by one and all at once.

use kernels_conv::{Args, Problem, Verify};
use kernels_core::{Cpu, DeviceInfo, Result, Rows, Tensor, TensorMut};

/// Convolves `x`, whose first token stands at position `start`, and keeps it in `ring`.
fn convolve(x: &[f32], start: i32, ring: &mut [f32]) -> Result<Vec<f32>> {
    let rows = x.len();
    let ring_rows = ring.len();
    let problem = Problem {
        sequences: 1,
        rows,
        max_rows: rows,
        channels: 1,
        width: 2,
        slots: 1,
        ring_rows,
        bias: false,
        silu: false,
    };
    let (mut out, mut faults) = (vec![f32::NAN; rows], [0; 2]);
    Verify::plan(problem, &DeviceInfo::cpu())?.run::<Cpu, f32>(
        &(),
        Args {
            out: TensorMut::new(&mut out[..], [rows, 1]),
            ring: TensorMut::new(ring, [1, ring_rows, 1]),
            faults: TensorMut::new(&mut faults[..], [2]),
            x: Tensor::new(x, [rows, 1]),
            weight: Tensor::new(&[1.0, 1.0][..], [1, 2]),
            bias: None,
            rows: Rows {
                slots: Tensor::new(&[0][..], [1]),
                start: Tensor::new(&[start][..], [1]),
                row_offsets: Tensor::new(&[0, rows as i32][..], [2]),
            },
        },
    )?;
    Ok(out)
}

fn main() -> Result<()> {
    let x = [1.0, 20.0, 300.0];
    let together = convolve(&x, 0, &mut [f32::NAN; 4])?;
    let mut ring = [f32::NAN; 4];
    let mut apart = vec![];
    for (position, token) in x.iter().enumerate() {
        apart.extend(convolve(&[*token], position as i32, &mut ring)?);
    }
    println!("{together:?} {apart:?}");
    Ok(())
}
