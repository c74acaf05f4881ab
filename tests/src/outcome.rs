//! Running a command to its end, with a time limit, and judging what came out.

use std::io::{Read, Write};
use std::ops::{Deref, DerefMut};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// Seconds that a command may take; a busy machine with two processors needs reserves.
const PATIENCE: Duration = Duration::from_secs(90);

/// What a command did.
#[derive(Debug)]
pub struct Outcome {
    /// How it ended; `None` when it had to be killed because it took too long.
    pub status: Option<ExitStatus>,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
    /// How long it took.
    pub time: Duration,
    what: String,
}

/// A command as one line for a shell.
pub fn shell_line(command: &Command) -> String {
    let quoted = |word: &std::ffi::OsStr| format!("'{}'", word.to_string_lossy().replace('\'', "'\\''"));
    std::iter::once(command.get_program()).chain(command.get_args()).map(quoted).collect::<Vec<_>>().join(" ")
}

/// Runs a command without input.
pub fn run_to_end(command: &mut Command) -> Outcome {
    run_to_end_within(command, PATIENCE)
}

/// Runs a command without input, for at most this long.
pub fn run_to_end_within(command: &mut Command, limit: Duration) -> Outcome {
    command.stdin(Stdio::null());
    collect(command, None, limit)
}

/// Runs a command with this on its standard input.
pub fn run_to_end_with_input(command: &mut Command, input: &[u8]) -> Outcome {
    command.stdin(Stdio::piped());
    collect(command, Some(input.to_vec()), PATIENCE)
}

fn collect(command: &mut Command, input: Option<Vec<u8>>, limit: Duration) -> Outcome {
    let what: String = format!("{command:?}").chars().take(2000).collect();
    let start = Instant::now();
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap_or_else(|error| panic!("cannot start {what}: {error}"));
    let reader = |mut stream: Box<dyn Read + Send>| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = stream.read_to_end(&mut bytes);
            bytes
        })
    };
    let stdout = reader(Box::new(child.stdout.take().expect("piped above")));
    let stderr = reader(Box::new(child.stderr.take().expect("piped above")));
    if let (Some(bytes), Some(mut stdin)) = (input, child.stdin.take()) {
        thread::spawn(move || {
            let _ = stdin.write_all(&bytes);
        });
    }
    let mut pause = Duration::from_millis(1);
    let status = loop {
        if let Some(status) = child.try_wait().expect("our own child") {
            break Some(status);
        }
        if start.elapsed() > limit {
            // Its group: a tracer or a shell would leave its children behind.
            let _ = i32::try_from(child.id()).map(|pid| killpg(Pid::from_raw(pid), Signal::SIGKILL));
            let _ = child.wait();
            break None;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    };
    let time = start.elapsed();
    if status.is_none() {
        // Whoever still holds the pipes would keep the readers waiting.
        return Outcome { status, stdout: Vec::new(), stderr: b"(killed after the time limit)".to_vec(), time, what };
    }
    Outcome { status, stdout: stdout.join().unwrap_or_default(), stderr: stderr.join().unwrap_or_default(), time, what }
}

impl Outcome {
    /// The exit status as a shell reports it: 128+n after a signal, -1 when it took too long.
    pub fn code(&self) -> i32 {
        match self.status {
            None => -1,
            Some(status) => status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
        }
    }

    /// Standard output as text.
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard error as text.
    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// Everything that was printed.
    pub fn all(&self) -> String {
        self.out() + &self.err()
    }

    /// Insists on status 0.
    #[track_caller]
    pub fn ok(&self) -> &Self {
        self.exits(0)
    }

    /// Insists on this status.
    #[track_caller]
    pub fn exits(&self, code: i32) -> &Self {
        assert_eq!(self.code(), code, "exit status\n{}", self.report());
        self
    }

    /// Insists that this was printed to standard output.
    #[track_caller]
    pub fn says(&self, text: &str) -> &Self {
        assert!(self.out().contains(text), "no {text:?} in the output\n{}", self.report());
        self
    }

    /// Insists that this was printed nowhere.
    #[track_caller]
    pub fn never_says(&self, text: &str) -> &Self {
        assert!(!self.all().contains(text), "{text:?} must not come out\n{}", self.report());
        self
    }

    /// Insists on a refusal by us: this status, one clear sentence with our prefix, nothing on standard output, no panic.
    #[track_caller]
    pub fn refused(&self, code: i32) -> &Self {
        self.exits(code);
        self.clear_message();
        assert!(self.stdout.is_empty(), "a refusal writes nothing to standard output\n{}", self.report());
        self
    }

    /// Insists that standard error holds a line of ours and no panic or backtrace.
    #[track_caller]
    pub fn clear_message(&self) -> &Self {
        let err = self.err();
        let line = err.lines().find(|line| line.starts_with("hermes-sandbox:"));
        assert!(line.is_some_and(|line| line.len() > "hermes-sandbox: ".len() + 5), "no clear line\n{}", self.report());
        self.no_panic()
    }

    /// Insists that nothing looks like a crash of ours.
    #[track_caller]
    pub fn no_panic(&self) -> &Self {
        for sign in ["panicked at", "RUST_BACKTRACE", "core dumped", "stack overflow"] {
            assert!(!self.err().contains(sign), "a crash\n{}", self.report());
        }
        self
    }

    /// Command, status and output, for messages.
    pub fn report(&self) -> String {
        let cut = |text: String| if text.len() > 3000 { text.chars().take(3000).collect::<String>() + "..." } else { text };
        format!(
            "command: {}\nstatus: {} after {:?}\nstdout: {}\nstderr: {}",
            self.what,
            self.code(),
            self.time,
            cut(self.out()),
            cut(self.err())
        )
    }
}

/// A command that runs beside the test, and is killed when the test ends first.
#[derive(Debug)]
pub struct Live(Option<Child>);

impl Live {
    /// Starts it, without input, in a process group of its own, so that nothing it does to its group meets the test.
    pub fn start(command: &mut Command) -> Self {
        let child = command.stdin(Stdio::null()).process_group(0).spawn();
        Self(Some(child.unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"))))
    }

    /// Waits for its end, and kills it when that takes too long.
    pub fn end(&mut self) -> ExitStatus {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Some(status) = self.try_wait().expect("our own child") {
                return status;
            }
            thread::sleep(Duration::from_millis(5));
        }
        let _ = self.kill();
        self.wait().expect("our own child")
    }

    /// Waits for its end and takes the little that it wrote into pipes.
    pub fn output(mut self) -> Output {
        self.end();
        self.0.take().expect("until taken").wait_with_output().expect("our own child")
    }
}

impl Deref for Live {
    type Target = Child;

    fn deref(&self) -> &Child {
        self.0.as_ref().expect("until taken")
    }
}

impl DerefMut for Live {
    fn deref_mut(&mut self) -> &mut Child {
        self.0.as_mut().expect("until taken")
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
