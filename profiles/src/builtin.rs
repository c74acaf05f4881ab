//! The profiles that ship.

use crate::error::PolicyError;
use crate::layer::Layer;

/// A profile that ships with the program.
#[derive(Debug)]
pub struct Builtin {
    /// Its name. A profile of the user cannot have it.
    pub name: &'static str,
    /// One sentence.
    pub description: &'static str,
    /// Its TOML.
    pub text: &'static str,
    /// The same, parsed when the program was built.
    layer: &'static [u8],
}

include!(concat!(env!("OUT_DIR"), "/builtin.rs"));

/// All of them, by name.
pub fn all() -> &'static [Builtin] {
    PROFILES
}

/// The one with this name.
pub fn find(name: &str) -> Option<&'static Builtin> {
    PROFILES.binary_search_by(|builtin| builtin.name.cmp(name)).ok().map(|index| &PROFILES[index])
}

impl Builtin {
    pub(crate) fn layer(&self) -> Result<Layer, PolicyError> {
        postcard::from_bytes(self.layer)
            .map_err(|error| PolicyError::new(format!("the built-in profile {} is damaged: {error}; install again", self.name)))
    }
}
