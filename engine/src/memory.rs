//! What running a model takes, known before any of it is allocated.

use crate::{
    Error, Result,
    cache::{Limits, MemoryPlan, product, sum},
    config::{Config, FeedForward, LayerKind, kernel_width},
    model::{DraftRows, scratch},
    request::MAX_BIAS,
    round::launch_sequences,
    weights::required_tensors,
};
use kernels_attn::{Prefill, Problem, Verify, Work};
use kernels_core::{DType, DeviceInfo};
use kernels_dense::{Epilogue, Head, HeadProblem, Linear, LinearProblem, Moe, MoeProblem};
use kernels_spec::{Sample, SampleProblem};
use std::collections::BTreeSet;

/// Bytes of each kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The model.
    pub weights: usize,
    /// A head that drafts alone are chosen by.
    pub draft_head: usize,
    /// What sequences remember.
    pub caches: MemoryPlan,
    /// Activations of a pass, logits apart.
    pub scratch: usize,
    /// Logits of a pass.
    pub logits: usize,
    /// What operations need while they run; none on the CPU.
    pub workspaces: usize,
    /// What the driver keeps of captured rounds, at most: an estimate.
    pub graphs: usize,
}

impl Plan {
    /// What an engine with these limits will hold on `device`, with weights and activations of `element` bytes.
    pub fn of(
        c: &Config,
        limits: &Limits,
        element: usize,
        drafts_by: Option<DraftRows>,
        device: &DeviceInfo,
    ) -> Result<Self> {
        let c = &Config { vocab: kernel_width(c.vocab), ..c.clone() };
        let [scratch, logits] = scratch::bytes(c, limits.pass_rows(), limits.decode_rows(), element);
        let on_gpu = device.arch.is_some();
        Ok(Plan {
            weights: weights(c, element),
            draft_head: drafts_by.map_or(0, |rows| rows.bytes(c, limits.slots, element)),
            caches: MemoryPlan::of(c, limits, element),
            scratch,
            logits,
            workspaces: if on_gpu { workspaces(c, limits, device)? } else { 0 },
            graphs: if on_gpu { graphs(c, limits) } else { 0 },
        })
    }

    /// The parts by name, those that there are none of left out.
    pub fn parts(&self) -> impl Iterator<Item = (&'static str, usize)> {
        let caches = &self.caches;
        let parts = [
            ("weights", self.weights),
            ("head for drafts", self.draft_head),
            ("keys and values", caches.kv),
            ("recurrent states", caches.state),
            ("journals", caches.journal),
            ("conv rings", caches.conv),
            ("hidden rows for the draft", caches.hidden),
            ("tables", caches.tables),
            ("activations", self.scratch),
            ("logits", self.logits),
            ("workspaces", self.workspaces),
            ("graphs, at most", self.graphs),
        ];
        parts.into_iter().filter(|(_, bytes)| *bytes > 0)
    }

    /// Everything together.
    pub fn total(&self) -> usize {
        let models = sum(&[self.weights, self.draft_head]);
        sum(&[models, self.caches.total(), self.scratch, self.logits, self.workspaces, self.graphs])
    }

    /// Refuses what does not fit into `free` bytes, where that is known.
    pub fn check(&self, free: Option<usize>) -> Result<()> {
        let (need, Some(free)) = (self.total(), free) else { return Ok(()) };
        if need <= free {
            return Ok(());
        }
        let remedy = if self.weights > free {
            format!("the weights alone take {}; take a smaller model or a larger device", human(self.weights))
        } else {
            "lower --slots, --context or --pages".to_owned()
        };
        Err(Error::Memory { need, free, remedy })
    }
}

/// A number of bytes as people read it.
pub fn human(bytes: usize) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

fn weights(c: &Config, element: usize) -> usize {
    let tensors = required_tensors(c).map(|tensor| {
        // Kept in fp32 whatever the rest is in.
        let wide =
            ["A_log", "dt_bias", "linear_attn.norm.weight"].iter().any(|end| tensor.name.ends_with(end));
        product(&[tensor.elements(), if wide { 4 } else { element }])
    });
    tensors.fold(0, |all: usize, one| all.saturating_add(one))
}

/// The linear layers of a model: widths of what goes in and comes out, and what becomes of it.
fn linears(c: &Config, draft_head: bool) -> Vec<(usize, usize, Epilogue)> {
    let (hidden, g) = (c.hidden, &c.gdn);
    let (queries, keys) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
    let mut all = vec![
        (hidden, 2 * queries + 2 * keys, Epilogue::Store),
        (queries, hidden, Epilogue::AddTo),
        (hidden, g.projected_width(), Epilogue::Store),
        (g.v_width(), hidden, Epilogue::AddTo),
    ];
    if draft_head {
        all.push((2 * hidden, hidden, Epilogue::Store));
    }
    if let FeedForward::Dense { intermediate } = c.ffn {
        all.extend([(hidden, intermediate, Epilogue::SiluMul), (intermediate, hidden, Epilogue::AddTo)]);
    }
    all
}

/// The largest plans of each operation; those of one workspace share it.
fn workspaces(c: &Config, limits: &Limits, device: &DeviceInfo) -> Result<usize> {
    let (rows, hidden) = (limits.pass_rows(), c.hidden);
    let mut dense = 0;
    if let FeedForward::Moe { experts, top_k, intermediate, shared_intermediate } = c.ffn {
        let weights = DType::Bf16;
        let problem = MoeProblem { rows, hidden, experts, top_k, intermediate, shared_intermediate, weights };
        dense = Moe::plan(problem, device)?.workspace_bytes();
    }
    for (k, n, epilogue) in linears(c, limits.draft_head) {
        dense = dense.max(Linear::plan(LinearProblem { rows, k, n, epilogue }, device)?.workspace_bytes());
    }
    let rows = limits.decode_rows();
    let head = HeadProblem { rows, k: hidden, vocab: c.vocab, valid: c.vocab, listed: None };
    dense = dense.max(Head::plan(head, device)?.workspace_bytes());

    let sample = SampleProblem {
        sequences: limits.slots,
        rows,
        vocab: c.vocab,
        valid: c.vocab,
        slots: limits.slots,
        positions: limits.positions,
        max_bias: MAX_BIAS,
    };
    let mut other = Sample::plan(sample, device)?.workspace_bytes();
    let mut work = 0;
    if c.count(LayerKind::Full) > 0 || limits.draft_head {
        let attention = |rows, max_rows| Problem {
            sequences: limits.slots,
            rows,
            max_rows,
            q_heads: c.heads,
            kv_heads: c.kv_heads,
            head_dim: c.head_dim,
            slots: limits.slots,
            max_pages: limits.pages_for(limits.positions),
            pages: limits.pages,
            page_rows: limits.page_rows,
            first_key: 0,
            window: None,
        };
        let decode = attention(rows, limits.max_rows());
        other = other.max(Verify::plan(decode, device)?.workspace_bytes());
        work = 4 * Work::plan(decode, device)?.len();
        let prefill = attention(limits.pass_rows(), limits.pass_rows());
        other = other.max(Prefill::plan(prefill, device)?.workspace_bytes());
    }
    Ok(sum(&[dense, other, work]))
}

/// A round is recorded once for each number of drafts and each number of sequences that launches have, its draft chain as
/// well. Launches of a layer and what one takes are on the safe side.
fn graphs(c: &Config, limits: &Limits) -> usize {
    const LAUNCHES_OF_A_LAYER: usize = 14;
    const LAUNCHES_AROUND: usize = 40;
    const BYTES_OF_A_LAUNCH: usize = 8 << 10;
    let launches = c.layers.len() * LAUNCHES_OF_A_LAYER + LAUNCHES_AROUND;
    let sizes: BTreeSet<usize> = (1..=limits.slots).map(|n| launch_sequences(n, limits.slots)).collect();
    product(&[launches, BYTES_OF_A_LAUNCH, sizes.len(), limits.max_rows()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    fn limits() -> Limits {
        Limits {
            slots: 8,
            positions: 4096,
            page_rows: 64,
            pages: 513,
            max_drafts: 2,
            flush_after: 2,
            prefill_rows: 512,
            draft_head: true,
        }
    }

    #[test]
    fn bytes_for_people() {
        assert_eq!(human(0), "0 B");
        assert_eq!(human(1023), "1023 B");
        assert_eq!(human(1536), "1.5 KiB");
        assert_eq!(human(151 << 20), "151.0 MiB");
    }

    #[test]
    fn everything_is_counted_once() {
        let config = Config::preset("27b").expect("a preset");
        let plan = Plan::of(&config, &limits(), 2, None, &DeviceInfo::cpu()).unwrap();
        assert_eq!((plan.workspaces, plan.graphs), (0, 0));
        assert_eq!(plan.parts().map(|(_, bytes)| bytes).sum::<usize>(), plan.total());
        // 27.3 billion parameters, and 3 * 8 rows of logits.
        assert!((54_000_000_000..56_000_000_000).contains(&plan.weights), "{}", plan.weights);
        assert_eq!(plan.logits, 24 * 248_320 * 4);
        // The states of 48 layers of 48 heads, 17 pools.
        assert_eq!(plan.caches.state, 8 * 48 * 48 * 128 * 128 * 4);
        assert_eq!(plan.caches.kv, 17 * 513 * 2 * 4 * 64 * 256 * 2);
    }

    #[test]
    fn heads_for_drafts_are_in_it() {
        let config = Config::preset("27b").expect("a preset");
        let head = |listed, fp8| {
            let rows = Some(DraftRows { listed, fp8 });
            let plan = Plan::of(&config, &limits(), 2, rows, &DeviceInfo::cpu()).unwrap();
            assert_eq!(plan.parts().map(|(_, bytes)| bytes).sum::<usize>(), plan.total());
            plan.draft_head
        };
        // Ids, and for each of the eight slots a row of logits.
        let beside = |rows: usize| 4 * rows + 8 * 248_320 * 4;
        assert_eq!(head(None, true), 248_320 * (5120 + 4));
        assert_eq!(head(Some(32_770), false), 32_776 * 2 * 5120 + beside(32_776));
        assert_eq!(head(Some(32_768), true), 32_768 * (5120 + 4) + beside(32_768));
    }

    #[test]
    fn projections_have_widths_that_kernels_take() {
        let config = Config::preset("4b").expect("a preset");
        let gdn = config::Gdn { k_heads: 1, v_heads: 3, ..config.gdn };
        for (k, n, _) in linears(&Config { gdn, ..config }, true) {
            assert!(k % 8 == 0 && n % 8 == 0, "{k} to {n}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_its_numbers() {
        let config = Config::preset("9b").expect("a preset");
        let plan = Plan::of(&config, &limits(), 2, None, &DeviceInfo::cpu()).unwrap();
        plan.check(None).unwrap();
        plan.check(Some(plan.total())).unwrap();
        let text = plan.check(Some(plan.total() - 1)).unwrap_err().to_string();
        let total = human(plan.total());
        let want = format!("needs {total}, the device has {total} free: lower --slots, --context or --pages");
        assert_eq!(text, want);
        let text = plan.check(Some(8 << 30)).unwrap_err().to_string();
        assert!(text.contains("the device has 8.0 GiB free: the weights alone take"), "{text}");
    }
}
