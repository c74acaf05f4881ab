//! All unsafe code of the project: thin wrappers of system calls that no library offers.

pub mod notify;
