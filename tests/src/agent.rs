//! Real programs of others that some tests drive: Hermes Agent, and the MCP client that most hosts in Python use.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use crate::PYTHON;

/// Its site packages, installed once: `HERMES_TEST_AGENT`, or a directory beside the test binary. Else why there are none.
pub fn agent_packages() -> Result<PathBuf, String> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    FOUND.get_or_init(|| find("HERMES_TEST_AGENT", "hermes-agent==0.19.0", "hermes_cli")).clone()
}

/// The same of the MCP client: `HERMES_TEST_MCP`, or installed once.
pub fn mcp_packages() -> Result<PathBuf, String> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    FOUND.get_or_init(|| find("HERMES_TEST_MCP", "mcp==2.3.0", "mcp")).clone()
}

/// Clients of HTTP that are not Python's own: requests, httpx and aiohttp. `HERMES_TEST_HTTP`, or installed once.
pub fn http_packages() -> Result<PathBuf, String> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    FOUND.get_or_init(|| find("HERMES_TEST_HTTP", "requests==2.34.2 httpx[http2]==0.28.1 aiohttp==3.14.5", "aiohttp")).clone()
}

/// Packages that a variable names, else those that are installed beside the test binary. `module` tells whether they are there.
fn find(variable: &str, version: &str, module: &str) -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os(variable) {
        let path = PathBuf::from(path);
        return if path.join(module).is_dir() { Ok(path) } else { Err(format!("{version} is not installed")) };
    }
    let packages = std::env::current_exe().expect("our own path").with_file_name(version.replace("==", "-").replace(' ', "-"));
    if packages.join("complete").exists() {
        return Ok(packages);
    }
    let mut install = Command::new(PYTHON);
    install.args(["-m", "pip", "install", "-q", "--no-input", "--target"]).arg(&packages).args(version.split(' '));
    match install.output() {
        Ok(output) if output.status.success() => {
            fs::write(packages.join("complete"), "")
                .map_err(|error| format!("cannot write to {}: {error}", packages.display()))?;
            Ok(packages)
        }
        Ok(output) => Err(format!(
            "pip cannot install {version}: {}",
            String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or("no reason given")
        )),
        Err(error) => Err(format!("no pip: {error}")),
    }
}
