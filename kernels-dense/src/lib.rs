//! Row-invariant dense operators of a decode step: linear, norms, embedding, MoE.
