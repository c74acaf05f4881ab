//! The only unsafe code of the project: system calls that no safe crate wraps, one function each.
//!
//! Every function returns `Result<_, Errno>`; none decides anything.

#![allow(unsafe_code)]

pub mod fd;
pub mod mount;
pub mod notify;
pub mod probe;
pub mod process;
pub mod thread;
