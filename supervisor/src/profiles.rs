//! `profiles`: list, show, check, trust.

use crate::args::Profiles;
use crate::error::Error;

/// Answers and returns the exit status.
pub(crate) fn profiles(_action: Profiles) -> Result<u8, Error> {
    Err(Error::setup("not built in yet"))
}
