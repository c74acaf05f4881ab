//! Heuristics over text that prevent accidents and are never the boundary.
//!
//! This version gives no advice yet; `--advise note` and `--advise ask` are refused by name.
