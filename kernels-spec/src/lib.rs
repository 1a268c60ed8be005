//! The glue of speculative decoding on the device: sampling, acceptance, carry, bookkeeping.
