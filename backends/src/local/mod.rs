//! The local backend: namespaces, Landlock and seccomp.

pub mod seccomp;
