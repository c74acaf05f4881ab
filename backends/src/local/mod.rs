//! Enforcement on this machine.

pub mod sys;
