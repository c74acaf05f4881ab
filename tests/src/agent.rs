//! The real Hermes Agent, which some tests drive.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use crate::PYTHON;

const VERSION: &str = "hermes-agent==0.19.0";

/// Its site packages, installed once: `HERMES_TEST_AGENT`, or a directory beside the test binary. Else why there are none.
pub fn agent_packages() -> Result<PathBuf, String> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    FOUND.get_or_init(find).clone()
}

fn find() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("HERMES_TEST_AGENT") {
        let path = PathBuf::from(path);
        return if path.join("hermes_cli").is_dir() { Ok(path) } else { Err(format!("{VERSION} is not installed")) };
    }
    let packages = std::env::current_exe().expect("our own path").with_file_name("hermes-agent-0.19.0");
    if packages.join("complete").exists() {
        return Ok(packages);
    }
    let install =
        Command::new(PYTHON).args(["-m", "pip", "install", "-q", "--no-input", "--target"]).arg(&packages).arg(VERSION).output();
    match install {
        Ok(output) if output.status.success() => {
            fs::write(packages.join("complete"), "")
                .map_err(|error| format!("cannot write to {}: {error}", packages.display()))?;
            Ok(packages)
        }
        Ok(output) => Err(format!(
            "pip cannot install {VERSION}: {}",
            String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or("no reason given")
        )),
        Err(error) => Err(format!("no pip: {error}")),
    }
}
