//! Programs in a sandbox of their own.

use std::ffi::OsStr;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::Case;
use crate::args::TierArg;
use crate::confined::{Confined, Tool};

pub(crate) const CASES: &[Case] = &[
    ("a tool reads what it is given and nothing else", reads),
    ("a tool is fed while it is read", is_fed),
    ("a tool that hangs is killed in time", hangs),
    ("a tool that is not there is told", is_missing),
];

fn start(script: &str, directory: &Path, read: &[&Path], tier: TierArg, time: Duration) -> Confined {
    let command = ["sh", "-c", script].map(OsStr::new);
    let read: Vec<_> = read.iter().map(|path| path.to_path_buf()).collect();
    let environment = [("GIVEN", OsStr::new("value"))];
    let deadline = Instant::now() + time;
    Confined::start(&Tool { command: &command, environment: &environment, directory, read: &read, tier: Some(tier), deadline })
        .unwrap()
}

fn reads(tier: TierArg) {
    let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
    for dir in &dirs {
        std::fs::write(dir.path().join("f"), "content ").unwrap();
    }
    let [own, given, other] = dirs.each_ref().map(|dir| dir.path());
    let script = format!(
        "cat f {}/f; cat {}/f; echo x >f; echo x >{}/f; echo \"$GIVEN $HOME\"; echo t >\"$TMPDIR/t\" && cat \"$TMPDIR/t\"; exit 3",
        given.display(),
        other.display(),
        given.display()
    );
    let mut tool = start(&script, own, &[given], tier, Duration::from_secs(20));
    let mut text = String::new();
    tool.read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), tool.status().unwrap()), ("content content value \nt\n", 3));
    for dir in [own, given] {
        assert_eq!(std::fs::read_to_string(dir.join("f")).unwrap(), "content ");
    }
}

fn is_fed(tier: TierArg) {
    let dir = tempfile::tempdir().unwrap();
    let mut tool = start("cat", dir.path(), &[], tier, Duration::from_secs(20));
    // More than both pipes hold.
    let sent = vec![b'x'; 1 << 20];
    tool.feed(&sent);
    let mut got = vec![0; sent.len()];
    tool.read_exact(&mut got).unwrap();
    assert_eq!(got, sent);
    let mut ended = start("exec true", dir.path(), &[], tier, Duration::from_secs(20));
    ended.feed(&sent);
    assert_eq!((ended.read(&mut got).unwrap(), ended.status().unwrap()), (0, 0));
}

fn hangs(tier: TierArg) {
    let dir = tempfile::tempdir().unwrap();
    let began = Instant::now();
    let mut tool = start("echo began; sleep 100 & wait", dir.path(), &[], tier, Duration::from_millis(700));
    let mut text = Vec::new();
    assert_eq!(tool.read_to_end(&mut text).unwrap_err().kind(), std::io::ErrorKind::TimedOut);
    assert!(tool.status().is_err());
    drop(tool);
    assert_eq!(text, b"began\n");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

fn is_missing(tier: TierArg) {
    let dir = tempfile::tempdir().unwrap();
    let command = [OsStr::new("no-such-program")];
    let deadline = Instant::now() + Duration::from_secs(20);
    let tool = Tool { command: &command, environment: &[], directory: dir.path(), read: &[], tier: Some(tier), deadline };
    let mut tool = Confined::start(&tool).unwrap();
    assert_eq!(tool.read(&mut [0; 9]).unwrap(), 0);
    assert!(tool.status().unwrap_err().message.contains("exec"), "{}", tool.status().unwrap_err());
}
