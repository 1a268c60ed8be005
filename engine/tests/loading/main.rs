//! Loading checkpoints: the ones in assets/ whole, and broken copies of them with the error each deserves.

mod broken;
mod checkpoints;
mod configs;
mod heads;
mod support;
mod text;
