//! A state in the layout of other engines and of transformers: `[v_heads, k_dim, v_dim]`, v fastest.

use crate::Problem;
use kernels_core::{Error, Result};

/// Turns one slot's state `[v_heads, v_dim, k_dim]` into `[v_heads, k_dim, v_dim]`.
///
/// The state must hold all committed tokens (see [`Fold`](crate::Fold)). Where no token is folded the
/// state is zero by definition, whatever the memory holds: do not export that, write zeros.
///
/// # Errors
///
/// A length other than [`Problem::state_len`].
///
/// ```
/// # use kernels_gdn::{Problem, export_state, import_state};
/// let problem = Problem {
///     sequences: 1, rows: 1, max_rows: 1, k_heads: 1, v_heads: 1, k_dim: 3, v_dim: 2,
///     slots: 1, journal_rows: 2, flush_after: 0,
/// };
/// let state = [0.0, 1.0, 2.0, 10.0, 11.0, 12.0];
/// let theirs = export_state(&problem, &state)?;
/// assert_eq!(theirs, [0.0, 10.0, 1.0, 11.0, 2.0, 12.0]);
/// assert_eq!(import_state(&problem, &theirs)?, state);
/// # Ok::<(), kernels_core::Error>(())
/// ```
pub fn export_state(problem: &Problem, state: &[f32]) -> Result<Vec<f32>> {
    transpose("gdn::export_state", problem, state, problem.v_dim, problem.k_dim)
}

/// Turns one slot's state from `[v_heads, k_dim, v_dim]` into `[v_heads, v_dim, k_dim]`.
///
/// Write the result into the slot and set its `folded` and committed counts to the tokens it stands for.
///
/// # Errors
///
/// A length other than [`Problem::state_len`].
pub fn import_state(problem: &Problem, values: &[f32]) -> Result<Vec<f32>> {
    transpose("gdn::import_state", problem, values, problem.k_dim, problem.v_dim)
}

fn transpose(op: &'static str, p: &Problem, from: &[f32], rows: usize, columns: usize) -> Result<Vec<f32>> {
    if from.len() != p.state_len() {
        let want = vec![p.v_heads, rows, columns];
        return Err(Error::Shape { op, arg: "state", got: vec![from.len()], want });
    }
    let mut to = vec![0.0; from.len()];
    for head in 0..p.v_heads {
        let base = head * rows * columns;
        for row in 0..rows {
            for column in 0..columns {
                to[base + column * rows + row] = from[base + row * columns + column];
            }
        }
    }
    Ok(to)
}
