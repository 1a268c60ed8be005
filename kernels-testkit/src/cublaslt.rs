//! Linear layers by cublasLt, the peer of ours: with its own choice for each number of rows, or with one algorithm
//! pinned to the weight, so that a row may keep its bits.

use crate::{device::Device, first_difference::FirstDifference, timing::Timer};
use cudarc::{
    cublaslt::{
        result,
        sys::{self, cublasLtMatmulAlgoConfigAttributes_t as Config, cublasStatus_t},
    },
    driver::{CudaSlice, CudaStream, CudaView, DevicePtr, DevicePtrMut},
};
use kernels_core::{Backend, Cuda, bf16};
use std::{
    error::Error,
    ffi::c_void,
    fmt,
    mem::MaybeUninit,
    ops::Range,
    sync::{Arc, OnceLock},
    time::Duration,
};

/// What the library may use for a free choice, as its authors recommend for Hopper.
const WORKSPACE: usize = 32 << 20;
/// What an algorithm may need at the most rows, that takes k in parts and adds up what it stored.
const PINNED_WORKSPACE: usize = 2 << 30;
/// How much of the library's ranking is tried: more where nothing keeps rows.
const CANDIDATES: [usize; 2] = [8, 64];
/// Rows for which it is asked for its ranking.
const RANKED_AT: [usize; 3] = [1, 16, 64];
/// Rows that a candidate must take, and keep the bits of, before it is pinned.
const TRIED: [usize; 7] = [2, 3, 8, 17, 64, 130, MOST_TRIED];
const MOST_TRIED: usize = 256;
/// Rows that it must take besides.
const TAKEN: [usize; 4] = [1, 257, 1024, 4096];

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// `out = x Wᵀ` in bf16 with fp32 sums, W `[n, k]`.
pub struct CublasLt {
    queue: Arc<CudaStream>,
    handle: sys::cublasLtHandle_t,
    workspace: CudaSlice<u8>,
    n: usize,
    k: usize,
    pinned: Option<sys::cublasLtMatmulAlgo_t>,
}

/// Operands of [`CublasLt`], of any number of rows.
#[derive(Debug)]
pub struct Operands<'a> {
    /// `[rows, k]`
    pub x: &'a CudaSlice<bf16>,
    /// `[n, k]`
    pub weight: CudaView<'a, bf16>,
    /// `[rows, n]`
    pub out: &'a mut CudaSlice<bf16>,
}

impl CublasLt {
    /// Whether the library is where the loader looks. Asked once: to find out is to load half a gigabyte.
    pub fn is_there() -> bool {
        static THERE: OnceLock<bool> = OnceLock::new();
        // SAFETY: it loads the library, whose initialisers have no requirements.
        *THERE.get_or_init(|| unsafe { sys::is_culib_present() })
    }

    /// The library's first choice, for every number of rows anew: a row's bits may depend on it.
    pub fn free(device: &Device, [n, k]: [usize; 2]) -> Result<Self> {
        if !Self::is_there() {
            return Err("libcublasLt is not on the loader's path: it comes with the CUDA toolkit, \
                        put its folder into LD_LIBRARY_PATH"
                .into());
        }
        let workspace = Cuda::zeros(&device.queue, WORKSPACE)?;
        let handle = result::create_handle()?;
        Ok(CublasLt { queue: device.queue.clone(), handle, workspace, n, k, pinned: None })
    }

    /// One algorithm for every number of rows: of those that the library ranks first for few rows and for many, and
    /// that keep the bits of a row in all the numbers tried, the one that takes the least time for one row and for 64.
    /// The operands have 256 rows at least; `out` is overwritten.
    pub fn pinned(device: &Device, [n, k]: [usize; 2], operands: &mut Operands<'_>) -> Result<Self> {
        let mut library = Self::free(device, [n, k])?;
        let differences = FirstDifference::new(device)?;
        let mut timer = Timer::new(device)?;
        let mut alone = Cuda::zeros(&device.queue, MOST_TRIED * n)?;
        let mut tried = 0;
        for ranked in CANDIDATES {
            let candidates = library.candidates(ranked)?;
            let most = candidates.iter().map(|candidate| candidate.workspace).max().unwrap_or(0);
            library.workspace = Cuda::zeros(&device.queue, most.max(WORKSPACE))?;
            tried = candidates.len();
            let mut best = None;
            for Candidate { algorithm, .. } in candidates {
                library.pinned = Some(algorithm);
                if !library.keeps_rows(&differences, operands, &mut alone)? {
                    continue;
                }
                let mut time = Duration::ZERO;
                for rows in [1, 64] {
                    time += library.least_of_five(&mut timer, operands, rows)?;
                }
                if best.is_none_or(|(least, _)| time < least) {
                    best = Some((time, algorithm));
                }
            }
            if let Some((_, algorithm)) = best {
                library.pinned = Some(algorithm);
                return Ok(library);
            }
        }
        Err(format!("cublasLt: none of {tried} algorithms keeps the rows of {n} x {k}").into())
    }

    /// Whether rows together are rows alone, in the numbers tried.
    fn keeps_rows(
        &self,
        differences: &FirstDifference,
        operands: &mut Operands<'_>,
        alone: &mut CudaSlice<bf16>,
    ) -> Result<bool> {
        let Operands { x, weight, .. } = operands;
        let mut one_by_one = Operands { x, weight: weight.slice(..), out: alone };
        (0..MOST_TRIED).try_for_each(|row| self.run(&mut one_by_one, row..row + 1))?;
        for rows in TRIED {
            self.run(operands, 0..rows)?;
            let len = rows * self.n;
            if differences.of(operands.out.slice(..len), alone.slice(..len))?.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn least_of_five(
        &self,
        timer: &mut Timer<'_>,
        operands: &mut Operands<'_>,
        rows: usize,
    ) -> Result<Duration> {
        let mut least = Duration::MAX;
        for _ in 0..5 {
            let mut done = Ok(());
            let time = timer.cold(|| {
                done = self.run(operands, 0..rows);
                Ok(())
            })?;
            done?;
            least = least.min(time);
        }
        Ok(least)
    }

    /// Enqueues the product of these rows.
    pub fn run(&self, operands: &mut Operands<'_>, rows: Range<usize>) -> Result<()> {
        let product = Product::new([rows.len(), self.n, self.k])?;
        let algorithm = match &self.pinned {
            Some(pinned) => *pinned,
            None => product.ranking(self.handle, 1)?[0],
        };
        let x = operands.x.slice(rows.start * self.k..rows.end * self.k);
        let weight = operands.weight.slice(..self.n * self.k);
        let mut out = operands.out.slice_mut(rows.start * self.n..rows.end * self.n);
        let (x_at, _x) = x.device_ptr(&self.queue);
        let (weight_at, _weight) = weight.device_ptr(&self.queue);
        let (out_at, _out) = out.device_ptr_mut(&self.queue);
        let (workspace_at, _workspace) = self.workspace.device_ptr(&self.queue);
        let (one, zero) = (1.0f32, 0.0f32);
        // SAFETY: the descriptors live as long as `product`, and the slices have the sizes that they name; the two
        // factors are read before the call returns.
        let done = unsafe {
            result::matmul(
                self.handle,
                product.operation,
                (&raw const one).cast(),
                (&raw const zero).cast(),
                weight_at as *const c_void,
                product.weight,
                x_at as *const c_void,
                product.x,
                out_at as *const c_void,
                product.out,
                out_at as *mut c_void,
                product.out,
                &algorithm,
                workspace_at as *mut c_void,
                self.workspace.len(),
                self.queue.cu_stream().cast(),
            )
        };
        done.map_err(|e| format!("cublasLt: {} x {} on {} rows: {e}", self.n, self.k, rows.len()).into())
    }

    /// What the library ranks first at some numbers of rows, as it is and with k in one part, without what does not
    /// take all numbers.
    fn candidates(&self, ranked: usize) -> Result<Vec<Candidate>> {
        let mut found: Vec<Candidate> = Vec::new();
        for rows in RANKED_AT {
            for first in Product::new([rows, self.n, self.k])?.ranking(self.handle, ranked)? {
                for algorithm in [Some(first), in_one_part(first)].into_iter().flatten() {
                    if found.iter().all(|other| other.algorithm.data != algorithm.data) {
                        found.push(Candidate { algorithm, workspace: 0 });
                    }
                }
            }
        }
        for rows in TRIED.into_iter().chain(TAKEN) {
            let product = Product::new([rows, self.n, self.k])?;
            found.retain_mut(|candidate| {
                let need = product.workspace(self.handle, &candidate.algorithm);
                candidate.workspace = candidate.workspace.max(need.unwrap_or(0));
                need.is_some_and(|need| need <= PINNED_WORKSPACE)
            });
        }
        Ok(found)
    }
}

/// An algorithm, and the most that it needs.
struct Candidate {
    algorithm: sys::cublasLtMatmulAlgo_t,
    workspace: usize,
}

/// The same without cutting k, if there is such a one.
fn in_one_part(mut algorithm: sys::cublasLtMatmulAlgo_t) -> Option<sys::cublasLtMatmulAlgo_t> {
    let parts =
        [(Config::CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 1u32), (Config::CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 0)];
    let set = |(attribute, value): (Config, u32)| {
        // SAFETY: these attributes have four bytes, which are read before the call returns.
        let status = unsafe {
            sys::cublasLtMatmulAlgoConfigSetAttribute(&mut algorithm, attribute, (&raw const value).cast(), 4)
        };
        status == cublasStatus_t::CUBLAS_STATUS_SUCCESS
    };
    parts.into_iter().all(set).then_some(algorithm)
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        // SAFETY: the handle is ours alone. One that stays open harms nobody.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

/// The pinned algorithm, by the numbers that the library has for its parts.
impl fmt::Display for CublasLt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(pinned) = &self.pinned else { return write!(f, "a free choice") };
        let get = |attribute: Config| {
            let (mut value, mut written) = (0u32, 0);
            // SAFETY: each of these attributes has four bytes.
            let status = unsafe {
                let at = (&raw mut value).cast();
                sys::cublasLtMatmulAlgoConfigGetAttribute(pinned, attribute, at, 4, &mut written)
            };
            if status == cublasStatus_t::CUBLAS_STATUS_SUCCESS { value.to_string() } else { "?".into() }
        };
        let (id, tile) = (get(Config::CUBLASLT_ALGO_CONFIG_ID), get(Config::CUBLASLT_ALGO_CONFIG_TILE_ID));
        let stages = get(Config::CUBLASLT_ALGO_CONFIG_STAGES_ID);
        let split = get(Config::CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
        write!(f, "algorithm {id}, tile {tile}, stages {stages}, k in {split}")
    }
}

/// The descriptors of one product. By columns, as the library has it: out = weightᵀ x, where out is n by rows.
struct Product {
    operation: sys::cublasLtMatmulDesc_t,
    weight: sys::cublasLtMatrixLayout_t,
    x: sys::cublasLtMatrixLayout_t,
    out: sys::cublasLtMatrixLayout_t,
}

impl Product {
    fn new([rows, n, k]: [usize; 3]) -> Result<Self> {
        let layout = |height: usize, width: usize| {
            let kind = sys::cudaDataType::CUDA_R_16BF;
            result::create_matrix_layout(kind, height as u64, width as u64, height as i64)
        };
        let (compute, scale) = (sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, sys::cudaDataType::CUDA_R_32F);
        let product = Product {
            operation: result::create_matmul_desc(compute, scale)?,
            weight: layout(k, n)?,
            x: layout(k, rows)?,
            out: layout(n, rows)?,
        };
        let transposed = 1i32;
        // SAFETY: the attribute has four bytes, which are read before the call returns.
        unsafe {
            let attribute = sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA;
            let value = (&raw const transposed).cast();
            result::set_matmul_desc_attribute(product.operation, attribute, value, 4)?;
        }
        Ok(product)
    }

    /// The library's ranking, best first, with the workspace that there is.
    fn ranking(&self, handle: sys::cublasLtHandle_t, most: usize) -> Result<Vec<sys::cublasLtMatmulAlgo_t>> {
        let (preference, workspace) = (result::create_matmul_pref()?, WORKSPACE as u64);
        let mut results = vec![MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::uninit(); most];
        let mut count = 0;
        // SAFETY: all descriptors are alive; the attribute has eight bytes; `count` results are initialised.
        let status = unsafe {
            let attribute =
                sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
            let bytes = (&raw const workspace).cast();
            let set = result::set_matmul_pref_attribute(preference, attribute, bytes, 8);
            let status = set.map_or_else(
                |e| e.0,
                |()| {
                    sys::cublasLtMatmulAlgoGetHeuristic(
                        handle,
                        self.operation,
                        self.weight,
                        self.x,
                        self.out,
                        self.out,
                        preference,
                        most as i32,
                        results.as_mut_ptr().cast(),
                        &mut count,
                    )
                },
            );
            let _ = result::destroy_matmul_pref(preference);
            status
        };
        status.result().map_err(|e| format!("cublasLt: its ranking: {e}"))?;
        let found = results.into_iter().take(count as usize);
        // SAFETY: as above.
        let found = found.map(|r| unsafe { r.assume_init() });
        let found: Vec<_> =
            found.filter(|r| r.state == cublasStatus_t::CUBLAS_STATUS_SUCCESS).map(|r| r.algo).collect();
        if found.is_empty() { Err("cublasLt: its ranking is empty".into()) } else { Ok(found) }
    }

    /// What the algorithm needs here; `None` where it cannot be used.
    fn workspace(
        &self,
        handle: sys::cublasLtHandle_t,
        algorithm: &sys::cublasLtMatmulAlgo_t,
    ) -> Option<usize> {
        let mut checked = MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::uninit();
        // SAFETY: all descriptors are alive; the result is read only where the library says that it wrote it.
        unsafe {
            let status = sys::cublasLtMatmulAlgoCheck(
                handle,
                self.operation,
                self.weight,
                self.x,
                self.out,
                self.out,
                algorithm,
                checked.as_mut_ptr(),
            );
            (status == cublasStatus_t::CUBLAS_STATUS_SUCCESS).then(|| checked.assume_init().workspaceSize)
        }
    }
}

impl Drop for Product {
    fn drop(&mut self) {
        // SAFETY: the descriptors are ours alone.
        unsafe {
            let _ = result::destroy_matmul_desc(self.operation);
            for layout in [self.weight, self.x, self.out] {
                let _ = result::destroy_matrix_layout(layout);
            }
        }
    }
}
