//! Plans of imagined machines.
#![allow(clippy::unwrap_used)]

mod hosts;
mod profiles;
mod properties;
mod rules;
mod view;
mod world;
