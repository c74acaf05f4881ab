//! One call of a tool, from its arguments to its end.

use std::future::Future;
use std::rc::Rc;

use hermes_profiles::McpTool;
use rmcp::model::{CallToolResult, ContentBlock, JsonObject};
use tokio::sync::MutexGuard;
use tokio::task::spawn_local;

use super::Front;
use super::text;
use super::tools::{self, Exec};
use crate::session::job::Job;
use crate::session::protocol::{Bytes, Failure, Input, Start, Word};

/// Blocks of text, or why the tool could not do what it should.
pub(super) type Answer = Result<Vec<String>, String>;

/// Tells when nobody waits for a call any more.
pub(super) struct Call {
    over: tokio::sync::watch::Receiver<bool>,
}

impl Call {
    /// `over` is when the client has cancelled the call or has gone.
    pub(super) fn new(over: impl Future<Output = ()> + 'static) -> Self {
        let (tell, told) = tokio::sync::watch::channel(false);
        spawn_local(async move {
            tokio::select! {
                () = over => drop(tell.send(true)),
                () = tell.closed() => {}
            }
        });
        Self { over: told }
    }

    async fn is_over(&self) {
        let _ = self.over.clone().wait_for(|over| *over).await;
    }
}

impl Front {
    pub(super) async fn answer(&self, tool: McpTool, arguments: Option<JsonObject>, call: &Call) -> Answer {
        match tool {
            McpTool::Exec => self.exec(tools::parameters(arguments)?, call).await,
            McpTool::Read => self.read(tools::parameters(arguments)?, call).await,
            McpTool::Write => self.write(tools::parameters(arguments)?, call).await,
            McpTool::Patch => self.patch(tools::parameters(arguments)?, call).await,
        }
    }

    async fn exec(&self, exec: Exec, call: &Call) -> Answer {
        let argv = exec.argv.unwrap_or_default();
        if exec.command.is_some() != argv.is_empty() {
            return Err("wrong arguments: give either `command` or `argv`".into());
        }
        let cwd = self.live.shell_cwd();
        let start = Start {
            argv: argv.into_iter().map(Word::Text).collect(),
            shell: exec.command.map(Word::Text),
            cwd: exec.cwd.map(Word::Text),
            stdin: exec.stdin.map_or(Input::Null, |text| Input::All(Bytes { data: Some(text), base64: None })),
            timeout: Some(exec.timeout.unwrap_or(tools::TIMEOUT)),
            ..Start::default()
        };
        let end = self.run(start, call).await?.end();
        let text = text::ended(&end, &cwd);
        // A status is the command's answer: `grep` and `diff` say "no" with 1. What did not come to its end is an error.
        if end.exit.timed_out { Err(text) } else { Ok(vec![text]) }
    }

    /// Runs a job to its end, or kills it when nobody waits for it any more.
    pub(super) async fn run(&self, start: Start, call: &Call) -> Result<Rc<Job>, String> {
        let job = self.live.start(start, None).await.map_err(|failure| said(&failure))?;
        tokio::select! {
            () = job.done() => {
                self.live.forget(job.plan.number);
                return Ok(job);
            }
            () = call.is_over() => {}
        }
        self.live.kill(job.plan.number).map_err(|failure| said(&failure))?;
        let live = Rc::clone(&self.live);
        spawn_local(async move {
            job.done().await;
            live.forget(job.plan.number);
        });
        Err("cancelled".into())
    }

    /// Waits until no other call changes a file.
    pub(super) async fn alone(&self, call: &Call) -> Result<MutexGuard<'_, ()>, String> {
        tokio::select! {
            alone = self.changes.lock() => Ok(alone),
            () = call.is_over() => Err("cancelled".into()),
        }
    }
}

fn said(failure: &Failure) -> String {
    match failure.data.as_ref().and_then(|data| data.hint.as_ref()) {
        Some(hint) => format!("{}; {hint}", failure.message),
        None => failure.message.clone(),
    }
}

pub(super) fn result(answer: Answer) -> CallToolResult {
    match answer {
        Ok(blocks) => CallToolResult::success(blocks.into_iter().map(ContentBlock::text).collect()),
        Err(why) => CallToolResult::error(vec![ContentBlock::text(why)]),
    }
}
