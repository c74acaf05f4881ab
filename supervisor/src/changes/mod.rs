//! Changes that wait for a decision: layers of copy-on-write workspaces, and checkpoints to go back to.
//!
//! This room owns what lies in the state directory of a tree as `layers`, `checkpoints` and `journal`, and every write to a
//! workspace that does not come from a sandbox. It refuses to know how an overlay is mounted, and what a policy says.
//!
//! A layer belongs to whoever holds the lock on its directory; everything else happens under the lock of the tree. Nothing
//! of a layer is trusted: a job wrote it. Nothing of the workspace is trusted: a job may be writing it.

mod apply;
mod checkpoint;
mod command;
mod decide;
mod diff;
mod everywhere;
mod fault;
mod guarded;
mod journal;
mod layer;
mod node;
mod order;
mod prune;
mod report;
mod repository;
mod run;
mod scan;
mod stage;
#[cfg(test)]
mod tests;

pub(crate) use command::changes;
pub(crate) use layer::probe;
pub(crate) use report::{moment, word};
pub(crate) use run::{Overlaid, checkpoint, needs_checkpoint, obstacle, overlay, settle};
