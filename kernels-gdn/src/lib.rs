//! Gated Delta Net verify-and-commit: recurrent layers under speculative decoding, without snapshots.
