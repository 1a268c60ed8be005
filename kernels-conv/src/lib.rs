//! Causal depthwise conv1d over a position-addressed ring, for decode, verification and prefill.
