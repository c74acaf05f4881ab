//! Clients of a session: reads requests, answers them when they are done.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::spawn_local;

use super::job::{self, Job};
use super::live::Live;
use super::protocol::{
    Bytes, Code, Explain, Failure, Initialize, Initialized, Kept, LONGEST, List, Notification, Of, Output, Reason, Request,
    Resize, Routes, Signal, Size, Start, Started, Stream, Subscribe, VERSION, Wait, Write,
};
use crate::{explain, output};

/// Lines that wait for a client that does not read.
const WAITING: usize = 64;
/// Requests of one client at a time; more wait in its socket.
const OPEN: usize = 4096;

/// A notification as a line.
pub(crate) fn notification(notification: &Notification) -> String {
    line(Message { jsonrpc: VERSION_OF_RPC, body: notification })
}

/// An answer as a line.
pub(crate) fn answer(id: &Value, outcome: Result<Box<RawValue>, Failure>) -> String {
    let (result, error) = match outcome {
        Ok(result) => (Some(result), None),
        Err(error) => (None, Some(error)),
    };
    line(Message { jsonrpc: VERSION_OF_RPC, body: Answer { id, result, error } })
}

const VERSION_OF_RPC: &str = "2.0";

#[derive(Serialize)]
struct Message<T> {
    jsonrpc: &'static str,
    #[serde(flatten)]
    body: T,
}

#[derive(Serialize)]
struct Answer<'a> {
    id: &'a Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Failure>,
}

fn line(message: impl Serialize) -> String {
    let mut line = serde_json::to_string(&message).unwrap_or_default();
    line.push('\n');
    line
}

/// A client, as its requests know it.
struct Client {
    /// What it is told.
    lines: mpsc::Sender<String>,
    /// Jobs that die with it.
    tied: RefCell<Vec<u32>>,
    gone: Cell<bool>,
}

impl Client {
    /// A job has started that dies with it; it may be gone by now.
    fn tie(&self, live: &Live, job: u32) {
        self.tied.borrow_mut().push(job);
        if self.gone.get() {
            self.leave(live);
        }
    }

    /// A job no longer dies with it.
    fn release(&self, job: u32) {
        self.tied.borrow_mut().retain(|tied| *tied != job);
    }

    fn leave(&self, live: &Live) {
        self.gone.set(true);
        for job in self.tied.take() {
            let _ = live.kill(job);
        }
    }
}

/// Serves one client until it goes away or the session ends.
pub(crate) async fn serve(live: Rc<Live>, reader: impl AsyncRead + Unpin, writer: impl AsyncWrite + Unpin + 'static) {
    let (lines, waiting) = mpsc::channel(WAITING);
    let writing = spawn_local(write_all(waiting, writer));
    let mut reader = BufReader::new(reader);
    let open = Arc::new(Semaphore::new(OPEN));
    let client = Rc::new(Client { lines: lines.clone(), tied: RefCell::default(), gone: Cell::new(false) });
    let (mut line, mut introduced) = (Vec::new(), false);
    loop {
        line.clear();
        let mut limited = (&mut reader).take(LONGEST as u64 + 1);
        let length = tokio::select! {
            length = limited.read_until(b'\n', &mut line) => length,
            _ = live.is_over() => break,
        };
        match length {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        let whole = line.ends_with(b"\n");
        let request = if whole || line.len() <= LONGEST { parse(&line) } else { Err(too_long()) };
        let request = match request {
            Ok(request) => request,
            Err(failure) => {
                let fatal = failure.code == Code::Parse as i32;
                let _ = lines.send(answer(&Value::Null, Err(failure))).await;
                if fatal { break } else { continue }
            }
        };
        if !introduced {
            let outcome = introduce(&live, &request);
            introduced = outcome.is_ok();
            let _ = lines.send(answer(&request.id, outcome)).await;
            continue;
        }
        // Who only looks keeps nothing alive.
        if request.method != "list" {
            live.used.set(Instant::now());
        }
        let Ok(permit) = Arc::clone(&open).acquire_owned().await else { break };
        let (live, client) = (Rc::clone(&live), Rc::clone(&client));
        spawn_local(async move {
            let outcome = obey(&live, &request.method, request.params.as_deref(), &client).await;
            // What is long is put into words when there is a place for it: many that wait must not be long already.
            if let Ok(place) = client.lines.reserve().await {
                place.send(answer(&request.id, outcome.and_then(Reply::in_words)));
            }
            drop(permit);
        });
    }
    client.leave(&live);
    drop(client);
    if let Some(reason) = *live.over.borrow() {
        let _ = lines.send(notification(&Notification::Closing { reason })).await;
    }
    drop(lines);
    if live.over.borrow().is_some() {
        // Answers that are on their way; a client that does not read waits for nothing.
        let _ = tokio::time::timeout(Duration::from_secs(1), writing).await;
    }
}

pub(crate) async fn write_all(mut lines: mpsc::Receiver<String>, mut writer: impl AsyncWrite + Unpin) {
    while let Some(line) = lines.recv().await {
        if writer.write_all(line.as_bytes()).await.is_err() || lines.is_empty() && writer.flush().await.is_err() {
            return;
        }
    }
}

fn too_long() -> Failure {
    Failure::new(Code::Parse, format!("a line is longer than {LONGEST} bytes"))
}

fn parse(line: &[u8]) -> Result<Request, Failure> {
    let request: Request = serde_json::from_slice(line).map_err(|e| match e.is_data() {
        true => Failure::new(Code::Request, format!("not a request: {e}")),
        false => Failure::new(Code::Parse, format!("not JSON: {e}")),
    })?;
    let named = request.id.is_string() || request.id.is_number();
    match request.jsonrpc == VERSION_OF_RPC && named {
        true => Ok(request),
        false => Err(Failure::new(Code::Request, "not a request: `jsonrpc` must be \"2.0\" and `id` a number or a string")),
    }
}

fn introduce(live: &Live, request: &Request) -> Result<Box<RawValue>, Failure> {
    if request.method != "initialize" {
        return Err(Failure::new(Code::Version, "the first request must be `initialize`"));
    }
    let Initialize { protocol } = parameters(request.params.as_deref())?;
    if protocol != VERSION {
        let refused = format!("version {protocol} of the protocol is not spoken here");
        return Err(Failure::new(Code::Version, refused).hint(format!("use version {VERSION}")));
    }
    let plan = &live.prepared.borrow().plan;
    result(&Initialized {
        protocol,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        session: live.name.clone(),
        workspace: output::path(&live.prepared.borrow().policy.workspace),
        tier: serde_json::to_value(plan.tier).ok().and_then(|tier| Some(tier.as_str()?.to_owned())).unwrap_or_default(),
        lost: plan.lost.iter().map(|lost| lost.guarantee.name().to_owned()).collect(),
    })
}

pub(crate) fn parameters<T: DeserializeOwned>(params: Option<&RawValue>) -> Result<T, Failure> {
    let text = params.map_or("{}", RawValue::get);
    serde_json::from_str(text).map_err(|e| Failure::new(Code::Parameters, format!("wrong parameters: {e}")))
}

fn short(value: &impl Serialize) -> Result<Reply, Failure> {
    result(value).map(Reply::Short)
}

pub(crate) fn result(value: &impl Serialize) -> Result<Box<RawValue>, Failure> {
    to_raw_value(value).map_err(|e| Failure::new(Code::Ended, format!("cannot express the answer as JSON: {e}")))
}

/// What a request is answered with.
enum Reply {
    Short(Box<RawValue>),
    /// The end of a job, and what is kept of it.
    End(Rc<Job>),
    Jobs(Vec<Rc<Job>>),
    Kept(Rc<Job>, Stream),
}

impl Reply {
    fn in_words(self) -> Result<Box<RawValue>, Failure> {
        match self {
            Self::Short(text) => Ok(text),
            Self::End(job) => result(&job.end()),
            Self::Jobs(jobs) => result(&List { jobs: jobs.iter().map(|job| job.listed()).collect() }),
            Self::Kept(job, stream) => {
                let kept = job.kept(stream).borrow();
                result(&Kept { bytes: Bytes::of(kept.bytes()), dropped: kept.dropped() })
            }
        }
    }
}

async fn obey(live: &Rc<Live>, method: &str, params: Option<&RawValue>, client: &Client) -> Result<Reply, Failure> {
    let (lines, nothing) = (&client.lines, short(&json!({})));
    match method {
        "start" | "exec" => {
            let start: Start = parameters(params)?;
            let (told, tied) = (start.stream.then(|| lines.clone()), start.tied);
            let job = live.start(start, told).await?;
            if tied {
                client.tie(live, job.plan.number);
            }
            if method == "start" {
                return short(&Started { job: job.plan.number });
            }
            job.done().await;
            Ok(Reply::End(job))
        }
        "wait" => {
            let Wait { job, timeout } = parameters(params)?;
            let job = live.job(job)?;
            let timeout = timeout.map(Duration::try_from_secs_f64).transpose();
            let timeout = timeout.map_err(|e| Failure::new(Code::Parameters, format!("`timeout`: {e}")))?;
            match timeout {
                Some(timeout) if tokio::time::timeout(timeout, job.done()).await.is_err() => {
                    Err(Failure::new(Code::Job, format!("job {} still runs", job.plan.number)))
                }
                Some(_) => Ok(Reply::End(job)),
                None => {
                    job.done().await;
                    Ok(Reply::End(job))
                }
            }
        }
        "write" => {
            let Write { job, data, base64, eof } = parameters(params)?;
            let bytes = Bytes { data, base64 }.bytes()?;
            let job = live.job(job)?;
            let closed = |e: std::io::Error| Failure::new(Code::Job, format!("job {} takes no input: {e}", job.plan.number));
            tokio::select! {
                written = job.write(&bytes, eof) => written.map_err(closed)?,
                // What it has left may have the other end, and never read.
                _ = job.exited() => return Err(closed(std::io::ErrorKind::BrokenPipe.into())),
            }
            nothing
        }
        "resize" => {
            let Resize { job, rows, columns } = parameters(params)?;
            live.resize(&*live.job(job)?, Size { rows, columns }).and(nothing)
        }
        "signal" => {
            let Signal { job, signal, group } = parameters(params)?;
            let number = job::signal(&signal)
                .map_err(|_| Failure::new(Code::Parameters, format!("there is no signal `{}`", output::clean(&signal))))?;
            if live.job(job)?.has_exited() {
                return Err(Failure::new(Code::Job, format!("job {job} has ended")));
            }
            live.signal(job, number, group).and(nothing)
        }
        "kill" => {
            let Of { job } = parameters(params)?;
            live.job(job)?;
            live.kill(job).and(nothing)
        }
        "release" => {
            let Of { job } = parameters(params)?;
            client.release(job);
            nothing
        }
        "attach" => {
            let Of { job } = parameters(params)?;
            let job = live.job(job)?;
            let mut clients = job.clients.borrow_mut();
            clients.retain(|known| !known.same_channel(lines));
            clients.push(lines.clone());
            let kept = job.kept(Stream::Stdout).borrow();
            // Now: what comes later is told.
            short(&Kept { bytes: Bytes::of(kept.bytes()), dropped: kept.dropped() })
        }
        "output" => {
            let Output { job, stream } = parameters(params)?;
            Ok(Reply::Kept(live.job(job)?, stream))
        }
        "list" => Ok(Reply::Jobs(live.jobs())),
        "subscribe" => {
            let Subscribe { jobs } = parameters(params)?;
            let mut subscribers = live.subscribers.borrow_mut();
            subscribers.retain(|known| !known.same_channel(lines));
            subscribers.extend(jobs.then(|| lines.clone()));
            nothing
        }
        "explain" => {
            let Explain { what, subject } = parameters(params)?;
            let answer = explain::about(what, &subject, &mut live.prepared.borrow_mut());
            short(&answer.map_err(|error| Failure::new(Code::Parameters, error.message))?)
        }
        "routes" => short(&live.routes()?),
        "set-routes" => {
            let asked: Routes = parameters(params)?;
            short(&live.set_spoken_routes(asked).await?)
        }
        "stop" => {
            live.stop(Reason::Stopped);
            nothing
        }
        "initialize" => Err(Failure::new(Code::Request, "`initialize` was there already")),
        other => Err(Failure::new(Code::Method, format!("there is no method `{}`", output::clean(other)))),
    }
}
