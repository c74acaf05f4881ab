//! What happens, as JSON lines: one object a line, `v` is the version of the schema, `event` says which it is.
//!
//! A line is written with one `write` to a file opened with O_APPEND, so several sandboxes may share a file.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use hermes_backends::plan::{Lost, Plan, Tier};
use nix::fcntl::OFlag;
use serde::Serialize;

use crate::clock;
use crate::error::Error;
use crate::output;

/// Version of the schema. A field that is added does not change it, one that changes its meaning does.
pub(crate) const VERSION: u32 = 1;

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(crate) enum Event<'a> {
    /// What will be done, before anything is.
    Plan {
        /// SHA-256 of the plan's JSON form, in hex; equal plans have equal hashes.
        hash: String,
        profile: &'a str,
        tier: Tier,
    },
    /// A guarantee that this host cannot give; followed by `end` when it was required.
    Lost {
        #[serde(flatten)]
        lost: &'a Lost,
    },
    /// A guarantee given by weaker means.
    Weakened {
        #[serde(flatten)]
        lost: &'a Lost,
    },
    /// A command was started. Bytes that are not UTF-8 are written as `\xNN`.
    JobStart { job: u32, argv: Vec<String>, cwd: String },
    /// A command ended by itself (`status`) or by a signal.
    JobExit {
        job: u32,
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<u8>,
        #[serde(skip_serializing_if = "Option::is_none")]
        signal: Option<i32>,
    },
    /// A limit stopped something.
    LimitHit { limit: Cow<'a, str> },
    /// A file that the host would run or obey was put aside; `id` is its number in the quarantine.
    PutAside { id: u64, path: String, rule: &'a str, why: &'a str, staged: bool },
    /// A file that the host runs or obeys on purpose (a build, a push) was changed.
    Reported { path: String, rule: &'a str, why: &'a str },
    /// A connection waits for a person's answer.
    ApprovalAsked { id: u64, host: &'a str, port: u16 },
    /// The answer: `allow`, `deny` or `no answer`, which refuses.
    ApprovalDecided { id: u64, host: &'a str, port: u16, decision: &'a str },
    /// So many refusals (and limits reached on the way out), and questions to people, came too fast to be written one by one since the last
    /// event of this kind.
    LeftOut { refusals: u64, questions: u64 },
    /// The sandbox is gone; `status` is the supervisor's own exit status.
    End {
        status: u8,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<&'a str>,
    },
}

impl Event<'_> {
    /// The end of a command; `status` is that of wait(2).
    pub(crate) fn exited(job: u32, status: i32) -> Self {
        let signal = Some(status & 0x7f).filter(|signal| *signal != 0);
        Self::JobExit { job, status: signal.is_none().then_some((status >> 8) as u8), signal }
    }
}

#[derive(Serialize)]
struct Line<'a, E> {
    v: u32,
    /// Milliseconds since 1970.
    time: u64,
    #[serde(flatten)]
    event: &'a E,
}

/// Where events go; nowhere unless asked for.
#[derive(Debug, Default)]
pub(crate) struct Log {
    file: Option<File>,
}

impl Log {
    /// Opens the file of `--json-events` for appending; made with mode 0600. Standard output belongs to the command, and
    /// a FIFO, device or symlink could stall the supervisor or lead somewhere else, so only regular files are taken.
    pub(crate) fn open(path: Option<&Path>) -> Result<Self, Error> {
        let Some(path) = path else { return Ok(Self::default()) };
        let refuse = |why: &str| Error::usage(format!("cannot write events to {}: {why}", output::path(path)));
        if path == Path::new("-") {
            return Err(refuse("standard output belongs to the command").hint("give a file"));
        }
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let file = OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(flags.bits()).open(path).map_err(
            |e| match e.raw_os_error().map(nix::errno::Errno::from_raw) {
                Some(nix::errno::Errno::ELOOP) => refuse("it is a symbolic link"),
                Some(nix::errno::Errno::ENXIO) => refuse("it is not a regular file"),
                _ => refuse(&e.to_string()),
            },
        )?;
        let kind = file.metadata().map_err(|e| refuse(&e.to_string()))?.file_type();
        if kind.is_fifo() || !kind.is_file() {
            return Err(refuse("it is not a regular file"));
        }
        Ok(Self { file: Some(file) })
    }

    /// Writes to whoever reads at the other end.
    pub(crate) fn to(file: File) -> Self {
        Self { file: Some(file) }
    }

    /// Takes a line as another process of ours made it; what is no line of events is left out.
    pub(crate) fn take_line(&mut self, line: &[u8]) -> Result<(), Error> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let one = line.strip_suffix(b"\n").is_some_and(|line| !line.contains(&b'\n'));
        if !one || serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(line).is_err() {
            output::complain("an event from the other machine is none, and was left out");
            return Ok(());
        }
        file.write_all(line).map_err(|e| Error::setup(format!("cannot write an event: {e}")))
    }

    /// Is anybody interested? Saves building events for nobody.
    pub(crate) fn wanted(&self) -> bool {
        self.file.is_some()
    }

    /// Another hand on the same file, for another thread: every line is one write.
    pub(crate) fn another(&self) -> Result<Self, Error> {
        let copy = self.file.as_ref().map(File::try_clone).transpose();
        Ok(Self { file: copy.map_err(|e| Error::setup(format!("cannot copy the descriptor of the events: {e}")))? })
    }

    /// Writes one event. Before the start an error must stop it; later it can only be told.
    pub(crate) fn write(&mut self, event: &impl Serialize) -> Result<(), Error> {
        let Some(file) = &mut self.file else { return Ok(()) };
        file.write_all(&line(event, clock::milliseconds())?).map_err(|e| Error::setup(format!("cannot write an event: {e}")))
    }

    /// Writes the plan and what it loses: the events that come before anything is done.
    pub(crate) fn announce(&mut self, plan: &Plan) -> Result<(), Error> {
        if !self.wanted() {
            return Ok(());
        }
        self.write(&Event::Plan { hash: fingerprint(plan)?, profile: &plan.profile, tier: plan.tier })?;
        plan.lost.iter().try_for_each(|lost| self.write(&Event::Lost { lost }))?;
        plan.weakened.iter().try_for_each(|lost| self.write(&Event::Weakened { lost }))
    }
}

fn line(event: &impl Serialize, time: u64) -> Result<Vec<u8>, Error> {
    let mut line = serde_json::to_vec(&Line { v: VERSION, time, event })
        .map_err(|e| Error::setup(format!("cannot express an event as JSON: {e}")))?;
    line.push(b'\n');
    Ok(line)
}

/// SHA-256 of the plan's JSON form, in hex.
pub(crate) fn fingerprint(plan: &Plan) -> Result<String, Error> {
    let json = serde_json::to_vec(plan).map_err(|e| Error::setup(format!("cannot express the plan as JSON: {e}")))?;
    Ok(hermes_profiles::trust::hash(&json))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use hermes_profiles::Guarantee;
    use std::os::unix::fs::{MetadataExt, symlink};

    fn text(event: &Event<'_>) -> String {
        String::from_utf8(line(event, 7).unwrap()).unwrap()
    }

    #[test]
    fn one_object_a_line() {
        let lost = Lost {
            guarantee: Guarantee::MemoryLimited,
            required: false,
            reason: "no control group".into(),
            remedy: "log in".into(),
        };
        assert_eq!(
            text(&Event::Lost { lost: &lost }),
            "{\"v\":1,\"time\":7,\"event\":\"lost\",\"guarantee\":\"memory-limited\",\"required\":false,\
             \"reason\":\"no control group\",\"remedy\":\"log in\"}\n"
        );
        assert_eq!(text(&Event::exited(1, 9)), "{\"v\":1,\"time\":7,\"event\":\"job-exit\",\"job\":1,\"signal\":9}\n");
        let odd = Event::JobStart { job: 1, argv: vec!["a\nb\x1b".into()], cwd: "/".into() };
        assert_eq!(text(&odd).lines().count(), 1);
        assert!(!text(&odd).contains('\x1b'));
    }

    #[test]
    fn only_regular_files_are_written_and_they_grow() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events");
        for _ in 0..2 {
            Log::open(Some(&path)).unwrap().write(&Event::End { status: 0, error: None }).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 2);
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);

        let (link, fifo) = (dir.path().join("link"), dir.path().join("fifo"));
        symlink(&path, &link).unwrap();
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR | nix::sys::stat::Mode::S_IWUSR).unwrap();
        for (bad, why) in [
            (link.as_path(), "symbolic link"),
            (&fifo, "not a regular file"),
            (dir.path(), "directory"),
            (Path::new("-"), "belongs to the command"),
            (Path::new("/dev/null"), "not a regular file"),
        ] {
            let error = Log::open(Some(bad)).unwrap_err();
            assert!(error.message.contains(why), "{error}");
        }
        assert!(!Log::open(None).unwrap().wanted());
    }
}
