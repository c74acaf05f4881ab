//! Where a policy meets a machine.
//!
//! [`probe`] measures the [`host::Host`], [`survey`] looks at the policy's paths, [`compile`] turns policy, host and
//! survey into a [`plan::Plan`] (a pure function), and the backends enforce it. All unsafe code of the project lives
//! in `local/sys/`. This room refuses to know how a policy was written and what people are told.

pub mod closure;
pub mod compile;
pub mod docker;
pub mod explain;
pub mod host;
pub mod limits;
pub mod local;
pub mod plan;
pub mod probe;
pub mod ssh;
pub mod step;
pub mod survey;
pub mod wire;
