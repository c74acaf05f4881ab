//! One job as its session sees it: its streams, what is kept of them, and its end.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use nix::errno::Errno;
use nix::sys::signal::Signal;
use tokio::io::AsyncWriteExt;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Mutex, mpsc, oneshot, watch};

use super::keep::{Kept, whole};
use super::protocol::{Bytes, End, Exit, Listed, Notification, Omitted, State, Stream};
use super::streams::{Sink, Source, write_terminal};

/// Bytes that are read at a time, of a job that says little and of one that says much.
const PIECES: [usize; 2] = [4 * 1024, 64 * 1024];
/// As much as the job itself can have left in a pipe, /proc/sys/fs/pipe-max-size.
const LARGEST_PIPE: usize = 1 << 20;
/// Bytes of a shell's report that are taken over.
const LONGEST_REPORT: usize = 1 << 20;
/// What a job is answered with whose time was up, as timeout(1) has it.
const TIMED_OUT: u8 = 124;

/// How far a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    Running,
    /// Its first process has ended so (wait(2)); output may still have to be taken.
    Exited(i32),
    /// All that it wrote is here.
    Done(i32),
}

/// A job.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) plan: Plan,
    pub(crate) timed_out: Cell<bool>,
    pub(crate) progress: watch::Sender<Progress>,
    pub(crate) stdin: Mutex<Option<Sink>>,
    /// Its terminal, once that is there.
    pub(crate) master: RefCell<Option<Rc<AsyncFd<OwnedFd>>>>,
    kept: [RefCell<Kept>; 2],
    /// Who is told of its output.
    pub(crate) clients: RefCell<Vec<mpsc::Sender<String>>>,
    /// Where the next shell job begins, when this was one.
    pub(crate) cwd: RefCell<Option<String>>,
}

/// What is known of a job before it starts.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) number: u32,
    pub(crate) argv: Vec<String>,
    /// Milliseconds since 1970.
    pub(crate) started: u64,
    pub(crate) background: bool,
    /// Does standard error have a stream of its own?
    pub(crate) split: bool,
    pub(crate) pty: bool,
    pub(crate) timeout: Option<f64>,
    pub(crate) keep: super::protocol::Keep,
}

impl Job {
    pub(crate) fn new(plan: Plan) -> Self {
        let kept = || RefCell::new(Kept::new(plan.keep));
        Self {
            timed_out: Cell::new(false),
            progress: watch::Sender::new(Progress::Running),
            stdin: Mutex::new(None),
            master: RefCell::default(),
            kept: [kept(), kept()],
            clients: RefCell::default(),
            cwd: RefCell::new(None),
            plan,
        }
    }

    /// Has its first process ended?
    pub(crate) fn has_exited(&self) -> bool {
        *self.progress.borrow() != Progress::Running
    }

    /// Waits until its first process has ended.
    pub(crate) async fn exited(&self) -> i32 {
        let mut progress = self.progress.subscribe();
        let progress = progress.wait_for(|progress| *progress != Progress::Running).await;
        match progress.as_deref() {
            Ok(Progress::Exited(status) | Progress::Done(status)) => *status,
            Ok(Progress::Running) | Err(_) => 0,
        }
    }

    /// Waits until all that it wrote is here.
    pub(crate) async fn done(&self) {
        let mut progress = self.progress.subscribe();
        let _ = progress.wait_for(|progress| matches!(progress, Progress::Done(_))).await;
    }

    /// Gives back what only a job that runs needs. What one has left in the background may have the terminal still.
    pub(crate) async fn release(&self) {
        if !self.plan.background {
            *self.stdin.lock().await = None;
            self.master.take();
        }
    }

    pub(crate) fn kept(&self, stream: Stream) -> &RefCell<Kept> {
        &self.kept[usize::from(stream == Stream::Stderr)]
    }

    /// How it ended, or 0 while it runs.
    pub(crate) fn exit(&self) -> Exit {
        let status = match *self.progress.borrow() {
            Progress::Exited(status) | Progress::Done(status) => status,
            Progress::Running => 0,
        };
        let (code, signal) = exit(status);
        let timed_out = self.timed_out.get();
        Exit { status: if timed_out { TIMED_OUT } else { code }, signal: signal.map(str::to_owned), timed_out }
    }

    /// How it ended, and what is kept of its output.
    pub(crate) fn end(&self) -> End {
        let exit = self.exit();
        let (stdout, out) = self.kept(Stream::Stdout).borrow().text();
        let (stderr, err) = self.kept(Stream::Stderr).borrow().text();
        End {
            job: self.plan.number,
            stdout,
            stderr: self.plan.split.then_some(stderr),
            omitted: Omitted { stdout: out, stderr: err },
            note: self.plan.timeout.filter(|_| exit.timed_out).map(|seconds| format!("[Command timed out after {seconds}s]")),
            cwd: self.cwd.borrow().clone(),
            advice: Vec::new(),
            exit,
        }
    }

    pub(crate) fn listed(&self) -> Listed {
        let ended = self.has_exited();
        Listed {
            job: self.plan.number,
            argv: self.plan.argv.clone(),
            state: if ended { State::Ended } else { State::Running },
            pty: self.plan.pty,
            background: self.plan.background,
            started: self.plan.started,
            exit: ended.then(|| self.exit()),
        }
    }

    /// Takes its output to the end and tells its clients of it. `drained` is told when all is here that the job wrote before its
    /// end; what it has left in the background is listened to further.
    pub(crate) async fn take_output(self: Rc<Self>, source: Source, stream: Stream, drained: oneshot::Sender<()>) {
        let (mut drained, mut carry, mut rest) = (Some(drained), Vec::new(), 0);
        let mut buffer = vec![0; PIECES[0]];
        loop {
            let piece = tokio::select! {
                biased;
                piece = source.read(&mut buffer) => piece,
                _ = self.exited(), if drained.is_some() => match source.read_rest(&mut buffer).await {
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                        self.tell(stream, &mut carry, true).await;
                        drained.take();
                        if self.plan.background { continue } else { return }
                    }
                    piece => piece,
                },
            };
            match piece {
                Ok(n @ 1..) => {
                    self.kept(stream).borrow_mut().push(&buffer[..n]);
                    carry.extend_from_slice(&buffer[..n]);
                    self.tell(stream, &mut carry, false).await;
                    rest += if self.has_exited() { n } else { 0 };
                    // More than a pipe holds is of what it left.
                    drained.take_if(|_| rest > LARGEST_PIPE);
                    if n == buffer.len() {
                        buffer.resize(PIECES[1], 0);
                    }
                }
                // EIO: the last process that had the terminal open has closed it.
                Ok(_) | Err(_) => {
                    self.tell(stream, &mut carry, true).await;
                    return;
                }
            }
        }
    }

    /// Takes what comes until its first process has ended, as far as it is not too much.
    pub(crate) async fn collect(self: Rc<Self>, source: Source) -> Vec<u8> {
        let (mut all, mut buffer, mut rest) = (Vec::new(), vec![0; PIECES[0]], 0);
        loop {
            let piece = tokio::select! {
                biased;
                piece = source.read(&mut buffer) => piece,
                _ = self.exited() => source.read_rest(&mut buffer).await,
            };
            rest += piece.as_ref().map_or(0, |n| if self.has_exited() { *n } else { 0 });
            match piece {
                // More than a pipe holds is of who has not ended.
                Ok(1..) if rest > LARGEST_PIPE => return Vec::new(),
                Ok(n @ 1..) if all.len() <= LONGEST_REPORT => all.extend_from_slice(&buffer[..n]),
                Ok(1..) => {}
                Ok(_) | Err(_) => return if all.len() <= LONGEST_REPORT { all } else { Vec::new() },
            }
        }
    }

    /// Sends what is whole of `carry`, or all of it.
    async fn tell(&self, stream: Stream, carry: &mut Vec<u8>, all: bool) {
        let clients = self.clients.borrow().clone();
        if clients.is_empty() {
            return carry.clear();
        }
        let rest = carry.split_off(if all { carry.len() } else { whole(carry) });
        let piece = std::mem::replace(carry, rest);
        if !piece.is_empty() {
            let output = Notification::Output { job: self.plan.number, stream, bytes: Bytes::of(piece) };
            let line = super::server::notification(&output);
            for client in clients {
                // Waits when the client does not read: then the job does, too.
                if client.send(line.clone()).await.is_err() {
                    self.clients.borrow_mut().retain(|known| !known.is_closed());
                }
            }
        }
    }

    /// Writes to its standard input.
    ///
    /// # Errors
    /// It reads no more, or never did.
    pub(crate) async fn write(&self, bytes: &[u8], eof: bool) -> io::Result<()> {
        let mut stdin = self.stdin.lock().await;
        let written = match stdin.as_mut() {
            None if bytes.is_empty() => Ok(()),
            None => Err(io::ErrorKind::BrokenPipe.into()),
            Some(Sink::Pipe(pipe)) => pipe.write_all(bytes).await,
            Some(Sink::Terminal(master)) => write_terminal(master, bytes).await,
        };
        if eof {
            match stdin.as_ref() {
                // The key that ends the input of a terminal, termios(3).
                Some(Sink::Terminal(master)) => write_terminal(master, b"\x04").await?,
                _ => *stdin = None,
            }
        }
        written
    }
}

/// Exit status and the name of a signal from what wait(2) says.
fn exit(status: i32) -> (u8, Option<&'static str>) {
    match status & 0x7f {
        0 => ((status >> 8) as u8, None),
        signal => {
            let name = Signal::try_from(signal).ok().map(Signal::as_str).and_then(|name| name.strip_prefix("SIG"));
            (128 + signal as u8, name.or(Some("?")))
        }
    }
}

/// A signal by its name, with or without SIG.
pub(crate) fn signal(name: &str) -> Result<Signal, Errno> {
    let name = name.to_ascii_uppercase();
    format!("SIG{}", name.strip_prefix("SIG").unwrap_or(&name)).parse()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_and_signals_have_their_usual_numbers_and_names() {
        assert_eq!(
            [exit(0), exit(7 << 8), exit(2), exit(9 | 0x80)],
            [(0, None), (7, None), (130, Some("INT")), (137, Some("KILL"))]
        );
        assert_eq!([signal("TERM"), signal("sigint")], [Ok(Signal::SIGTERM), Ok(Signal::SIGINT)]);
        assert!(signal("NOTHING").is_err());
    }
}
