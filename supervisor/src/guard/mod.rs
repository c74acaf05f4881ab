//! The workspace comes back safe.

#[allow(dead_code, unused_imports)]
pub(crate) mod history;
