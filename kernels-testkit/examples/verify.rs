//! Speculative rounds through one recurrent layer: kernels-conv and kernels-gdn alone, on a stream and in buffers
//! that belong to this program. The outputs of accepted rows are those of plain decoding, byte for byte.
//!
//! ```sh
//! cargo run -p kernels-testkit --features cuda --example verify
//! ```
//!
//! It lives here because no family of kernels depends on another.

use cudarc::driver::CudaStream;
use kernels_core::{Cuda, DeviceInfo, Result, Rows, Tensor, TensorMut, bf16, slots};
use kernels_testkit::rng::Rng;
use std::sync::Arc;

const SEQUENCES: usize = 5; // sequence i lives in slot i
const TOKENS: usize = 200; // of each
const K_HEADS: usize = 4;
const V_HEADS: usize = 12;
const HEAD: usize = 128;
const KEYS: usize = K_HEADS * HEAD;
const CHANNELS: usize = 2 * KEYS + V_HEADS * HEAD; // queries, keys and values
const WIDTH: usize = CHANNELS + 2 * V_HEADS; // with a and b: what a projection gives the layer for a token

/// Feeds every sequence its next token and up to `drafts` more a round; a random number of them is right.
fn decode(
    on: &Arc<CudaStream>,
    tokens: &[bf16],
    drafts: usize,
    flush_after: usize,
) -> Result<Vec<Vec<bf16>>> {
    // Plans are made once, for bounds: how many rows a sequence has in a round is device data.
    let device = DeviceInfo::of(on.context())?;
    let (sequences, slots, max_rows, rows) = (SEQUENCES, SEQUENCES, 1 + drafts, SEQUENCES * (1 + drafts));
    let (ring_rows, journal_rows) =
        (slots::conv_ring_rows(4, max_rows), slots::journal_rows(flush_after, max_rows));
    #[rustfmt::skip]
    let c = kernels_conv::Problem {
        sequences, rows, max_rows, channels: CHANNELS, width: 4, slots, ring_rows, bias: false, silu: true,
    };
    #[rustfmt::skip]
    let g = kernels_gdn::Problem {
        sequences, rows, max_rows, k_heads: K_HEADS, v_heads: V_HEADS, k_dim: HEAD, v_dim: HEAD,
        slots, journal_rows, flush_after,
    };
    let (conv, gdn) = (kernels_conv::Verify::plan(c, &device)?, kernels_gdn::Verify::plan(g, &device)?);

    // NaN instead of zeros, to show it: nothing is read that a sequence has not written.
    let nan = |count: usize| on.clone_htod(&vec![bf16::NAN; count]);
    let mut ring = nan(slots * ring_rows * CHANNELS)?; // position p in row p % ring_rows
    let mut journal = nan(slots * journal_rows * g.journal_width())?; // position p in row p % journal_rows
    let mut state = on.clone_htod(&vec![f32::NAN; slots * g.state_len()])?; // after `folded` tokens
    let mut faults = on.alloc_zeros::<u64>(slots + 1)?;
    let (mut mixed, mut out) = (nan(rows * CHANNELS)?, nan(rows * V_HEADS * HEAD)?);
    let mut rng = Rng::new(7);
    let weight = on.clone_htod(&rng.normals::<bf16>(CHANNELS * 4, 0.5))?;
    let a_log = on.clone_htod(&rng.uniforms::<f32>(V_HEADS, -3.0, 1.0))?;
    let dt_bias = on.clone_htod(&rng.uniforms::<f32>(V_HEADS, -2.0, 1.0))?;
    let order = on.clone_htod(&(0..SEQUENCES as i32).collect::<Vec<_>>())?;

    // An engine keeps these on the device, where a kernel behind the last layer moves them.
    let (mut committed, mut folded) = (vec![0i32; slots], vec![0i32; slots]);
    let mut accepted_rows = vec![Vec::new(); SEQUENCES];
    while committed.iter().any(|at| (*at as usize) < TOKENS) {
        let (mut x, mut offsets, mut accepted) = (vec![], vec![0i32], vec![]);
        for (sequence, at) in committed.iter().map(|at| *at as usize).enumerate() {
            let count = (1 + rng.below(max_rows)).min(TOKENS - at);
            let right = count.min(1 + rng.below(max_rows));
            for i in 0..count {
                // A wrong draft is a token from elsewhere in the sequence.
                let token = if i < right { at + i } else { (at + i + 77) % TOKENS };
                x.extend_from_slice(&tokens[(sequence * TOKENS + token) * WIDTH..][..WIDTH]);
            }
            offsets.push(offsets[sequence] + count as i32);
            accepted.push(right);
        }
        // Rows behind the last sequence's are nobody's: not read, and their outputs are zeros.
        x.resize(rows * WIDTH, bf16::NAN);
        let (x, row_offsets) = (on.clone_htod(&x)?, on.clone_htod(&offsets)?);
        let (start, folded_at) = (on.clone_htod(&committed)?, on.clone_htod(&folded)?);
        let x = Tensor::<Cuda, _, 2>::of(&x, [rows, WIDTH]);
        let list = Rows::<Cuda> {
            slots: Tensor::of(&order, [sequences]),
            start: Tensor::of(&start, [sequences]),
            row_offsets: Tensor::of(&row_offsets, [sequences + 1]),
        };
        // Whatever a rejected draft left in the ring stands at or behind `start`, and this launch writes there first.
        let args = kernels_conv::Args {
            out: TensorMut::of(&mut mixed, [rows, CHANNELS]),
            ring: TensorMut::of(&mut ring, [slots, ring_rows, CHANNELS]),
            faults: TensorMut::of(&mut faults, [slots + 1]),
            x: x.reborrow().columns(0..CHANNELS),
            weight: Tensor::of(&weight, [CHANNELS, 4]),
            bias: None,
            rows: list.reborrow(),
        };
        conv.run::<Cuda, bf16>(on, args)?;
        // Replays the journal from `folded` to `start`, stores the state there if that was more than `flush_after`
        // tokens, and goes on over the new rows in registers: a stored state has seen accepted tokens only.
        let mixed = Tensor::<Cuda, _, 2>::of(&mixed, [rows, CHANNELS]);
        let args = kernels_gdn::Args {
            out: TensorMut::of(&mut out, [rows, V_HEADS, HEAD]),
            state: TensorMut::of(&mut state, [slots, V_HEADS, HEAD, HEAD]),
            journal: TensorMut::of(&mut journal, [slots, journal_rows, g.journal_width()]),
            faults: TensorMut::of(&mut faults, [slots + 1]),
            folded: Tensor::of(&folded_at, [slots]),
            q: mixed.reborrow().columns(0..KEYS).heads(K_HEADS),
            k: mixed.reborrow().columns(KEYS..2 * KEYS).heads(K_HEADS),
            v: mixed.reborrow().columns(2 * KEYS..CHANNELS).heads(V_HEADS),
            a: x.reborrow().columns(CHANNELS..CHANNELS + V_HEADS),
            b: x.reborrow().columns(CHANNELS + V_HEADS..WIDTH),
            a_log: Tensor::of(&a_log, [V_HEADS]),
            dt_bias: Tensor::of(&dt_bias, [V_HEADS]),
            rows: list.reborrow(),
        };
        gdn.run::<Cuda, bf16>(on, args)?;

        let outputs = on.clone_dtoh(&out)?;
        for (slot, right) in
            accepted.into_iter().enumerate().filter(|(slot, _)| offsets[*slot] < offsets[slot + 1])
        {
            let first = offsets[slot] as usize * V_HEADS * HEAD;
            accepted_rows[slot].extend_from_slice(&outputs[first..][..right * V_HEADS * HEAD]);
            // The whole commit. `folded` follows what the launch did, by the same rule of the same numbers.
            if slots::flushes((committed[slot] - folded[slot]) as usize, flush_after) {
                folded[slot] = committed[slot];
            }
            committed[slot] += right as i32;
        }
    }
    assert!(on.clone_dtoh(&faults)?.iter().all(|word| *word == 0), "a fault was recorded");
    Ok(accepted_rows)
}

fn main() -> Result<()> {
    let (context, device) = DeviceInfo::open(0)?;
    let on = context.new_stream()?;
    let tokens = Rng::new(1).normals::<bf16>(SEQUENCES * TOKENS * WIDTH, 1.0);
    let plain = decode(&on, &tokens, 0, 0)?;
    for flush_after in [0, 2, 4] {
        assert!(decode(&on, &tokens, 3, flush_after)? == plain, "accepted rows differ from plain decoding");
    }
    println!("{}: {SEQUENCES} x {TOKENS} tokens with 3 drafts: the bytes of plain decoding", device.name);
    Ok(())
}
