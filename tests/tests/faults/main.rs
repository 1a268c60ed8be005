//! Faults that users of other engines have reported, each as a scenario that this one must survive. Which
//! report is shown by which test: docs/reported-faults.md. In a test's comment `a` is the accept length, 1
//! to k + 1; the reports count accepted drafts, 0 to k.

mod book;
mod carry;
mod chunk;
mod count;
mod drafters;
mod econ;
mod global_state;
mod metric;
mod mixed;
mod pad;
mod page;
mod parity;
mod rollback;
mod rules;
mod seed;
mod shape;
mod slot_life;
mod stop;
