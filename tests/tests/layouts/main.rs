//! docs/layouts.md against the sources and against what the operations accept.

mod operands;
mod operations;
mod page;
mod sources;
