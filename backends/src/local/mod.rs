//! The backend that enforces a plan on this machine.

pub mod broker;
pub mod sys;
