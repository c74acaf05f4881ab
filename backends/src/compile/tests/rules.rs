//! Rules that once went wrong, and what they come to.
