//! Skips: printed, and written to the file that `HERMES_TEST_SKIPS` names, so that the runner can count them.

use std::io::Write;
use std::path::PathBuf;

/// Ends the test as skipped, with the reason.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)*) => {{
        $crate::record_skip(&format!($($reason)*));
        return;
    }};
}

/// Ends the test as skipped unless all these programs are installed.
#[macro_export]
macro_rules! need {
    ($($name:expr),+ $(,)?) => {
        $(if $crate::program($name).is_none() { $crate::skip!("{} is not installed", $name); })+
    };
}

/// Notes that the current test is skipped.
pub fn record_skip(reason: &str) {
    let thread = std::thread::current();
    let file = std::env::args().next().unwrap_or_default();
    let file = file.rsplit('/').next().unwrap_or_default().split('-').next().unwrap_or_default().to_owned();
    let line = format!("{file}::{}: {reason}\n", thread.name().unwrap_or("?"));
    eprint!("SKIPPED {line}");
    if let Some(path) = std::env::var_os("HERMES_TEST_SKIPS")
        && let Ok(mut file) = std::fs::OpenOptions::new().append(true).create(true).open(path)
    {
        // One write, so that lines of parallel tests do not mix.
        let _ = file.write_all(line.as_bytes());
    }
}

/// Where a program is installed, by the system directories first.
pub fn program(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|path| path.exists());
    }
    let path = std::env::var("PATH").unwrap_or_default();
    ["/usr/bin", "/bin", "/usr/sbin", "/sbin", "/usr/local/bin"]
        .into_iter()
        .chain(path.split(':'))
        .map(|dir| PathBuf::from(dir).join(name))
        .find(|path| path.is_file() && nix::unistd::access(path, nix::unistd::AccessFlags::X_OK).is_ok())
}

/// Do the tests run as root?
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}
