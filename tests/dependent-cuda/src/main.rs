//! A kernel of one's own beside lockstep's: the same values from the CPU and, where there is one, a GPU.

use kernels_core::{Result, bf16};

const OP: &str = "dependent::relu";

/// The specification.
fn relu_cpu(x: &[bf16]) -> Vec<bf16> {
    x.iter().map(|&x| if x > bf16::ZERO { x } else { bf16::ZERO }).collect()
}

#[cfg(all(feature = "cuda", kernels_built))]
mod cuda {
    use super::OP;
    use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};
    use kernels_core::{Cuda, Error, Result, Tensor, TensorMut, bf16};
    use std::{ffi::c_void, sync::Arc};

    unsafe extern "C" {
        // include/dependent.h
        fn dependent_relu_smxx(out: *mut c_void, x: *const c_void, count: i64, stream: *mut c_void) -> i32;
    }

    /// Enqueues `out = max(x, 0)`.
    pub fn relu(
        on: &Arc<CudaStream>,
        mut out: TensorMut<'_, Cuda, bf16, 1>,
        x: Tensor<'_, Cuda, bf16, 1>,
    ) -> Result<()> {
        let count = x.dims[0];
        x.check(OP, "x", [count])?;
        out.check(OP, "out", [count])?;
        on.context().bind_to_thread()?;
        // The guards record events when dropped, so they must outlive the launch.
        let (out_at, _out) = out.data.device_ptr_mut(on);
        let (x_at, _x) = x.data.device_ptr(on);
        for (arg, pointer) in [("out", out_at), ("x", x_at)] {
            if pointer % 16 != 0 {
                return Err(Error::Align { op: OP, arg, want: 16 });
            }
        }
        let stream = on.cu_stream().cast();
        // SAFETY: both operands were bounded and their alignment checked; the stream's context is bound.
        Error::status(OP, unsafe {
            dependent_relu_smxx(out_at as *mut _, x_at as *const _, count as i64, stream)
        })
    }
}

#[cfg(all(feature = "cuda", kernels_built))]
fn relu_cuda(x: &[bf16]) -> Result<Vec<bf16>> {
    use kernels_core::{Backend, Cuda, DeviceInfo, Tensor, TensorMut};
    let (context, _) = DeviceInfo::open(0)?;
    let queue = context.default_stream();
    let (x, mut out) = (Cuda::upload(&queue, x)?, Cuda::zeros(&queue, x.len())?);
    let dims = [Cuda::len(&x)];
    cuda::relu(&queue, TensorMut::of(&mut out, dims), Tensor::of(&x, dims))?;
    Cuda::read(&queue, &out, 0..dims[0])
}

#[cfg(not(all(feature = "cuda", kernels_built)))]
fn relu_cuda(_: &[bf16]) -> Result<Vec<bf16>> {
    Err(kernels_core::Error::NotBuilt { op: OP })
}

fn main() {
    let x: Vec<bf16> = (-4..12).map(|x| bf16::from_f32(x as f32 * 0.5)).collect();
    let want = relu_cpu(&x);
    println!("cpu: {:?}", want.iter().map(|y| y.to_f32()).sum::<f32>());
    match relu_cuda(&x) {
        Ok(got) => println!("cuda: {}", if got == want { "equal" } else { "DIFFERENT" }),
        Err(error) => println!("cuda: {error}"),
    }
}
