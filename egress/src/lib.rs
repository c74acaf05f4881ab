//! The only way out of a sandbox: DNS, proxy, routes, secrets.
//!
//! This version has no way out yet: the network is `off` (a loopback interface of the sandbox's own) or `host`
//! (unmediated, by explicit choice), and a policy with routes is refused by name.
