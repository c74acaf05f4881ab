//! The workspace comes back safe.

pub(crate) mod history;
