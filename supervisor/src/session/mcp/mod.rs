//! An MCP server: one more front of a live sandbox, on standard input and output.
//!
//! The protocol is the SDK's, <https://modelcontextprotocol.io/specification>. Here is what a sandbox offers by it: tools, those of them that
//! the policy names, each of which is a job of the sandbox.

mod call;
mod edit;
mod files;
mod text;
mod tools;
mod wire;

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::{Duration, Instant};

use hermes_backends::plan::NetworkPlan;
use hermes_profiles::McpTool;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CustomRequest, CustomResult, ErrorCode, Implementation, InitializeResult,
    ListToolsResult, PaginatedRequestParams, ServerCapabilities,
};
use rmcp::service::{RequestContext, ServerInitializeError, serve_server};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Mutex, Semaphore, mpsc, watch};
use tokio::task::spawn_local;

use super::live::Live;
use super::server::write_all;
use crate::error::Error;
use crate::output;
use call::Call;
use wire::Lines;

/// Lines that wait for a client that does not read.
const WAITING: usize = 64;
/// Calls at a time. A model makes a few; each has a job's pipes and output.
const OPEN: usize = 64;
/// For answers that are on their way when the client goes.
const LAST: Duration = Duration::from_secs(1);

/// Refuses a policy that leaves nothing to serve.
pub(crate) fn needs_tools(offered: &BTreeSet<McpTool>, profile: &str) -> Result<(), Error> {
    match offered.is_empty() {
        true => Err(Error::usage(format!("the profile {} offers MCP clients no tools", output::clean(profile)))
            .hint("name some in `[mcp] tools`, or choose another profile with --profile")),
        false => Ok(()),
    }
}

/// Serves one client until it goes away or the session ends.
pub(crate) async fn serve(
    live: Rc<Live>,
    reader: impl AsyncRead + Unpin + Send + 'static,
    writer: impl AsyncWrite + Unpin + 'static,
) {
    let (answers, waiting) = mpsc::channel(WAITING);
    let writing = spawn_local(write_all(waiting, writer));
    let (lines, gone) = Lines::new(reader, answers);
    let serving = async {
        match serve_server(Front::new(live, gone.clone()), lines).await {
            Ok(running) => drop(running.waiting().await),
            Err(ServerInitializeError::ConnectionClosed(_)) => {}
            Err(error) => output::complain(&format!("the MCP client cannot be served: {error}")),
        }
    };
    let mut left = gone.clone();
    tokio::select! {
        () = serving => {}
        // The SDK waits longer for calls that hang in their start.
        () = async { let _ = left.wait_for(|gone| *gone).await; tokio::time::sleep(LAST).await; } => {}
    }
    let _ = tokio::time::timeout(LAST, writing).await;
}

/// What a client sees of the sandbox.
struct Front {
    live: Rc<Live>,
    offered: BTreeSet<McpTool>,
    /// Has the client gone?
    gone: watch::Receiver<bool>,
    open: Semaphore,
    /// Held by whoever changes a file.
    changes: Mutex<()>,
}

impl Front {
    fn new(live: Rc<Live>, gone: watch::Receiver<bool>) -> Self {
        let offered = live.prepared.borrow().policy.mcp.tools.clone();
        Self { live, offered, gone, open: Semaphore::new(OPEN), changes: Mutex::new(()) }
    }
}

impl ServerHandler for Front {
    fn get_info(&self) -> InitializeResult {
        let prepared = self.live.prepared.borrow();
        let guarded = self.live.guards.borrow().is_some();
        InitializeResult::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("hermes-sandbox", env!("CARGO_PKG_VERSION")))
            .with_instructions(text::instructions(&prepared.policy, &prepared.plan, guarded))
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let open = self.live.prepared.borrow().plan.network == NetworkPlan::Host;
        Ok(ListToolsResult::with_all_items(tools::listed(&self.offered, open)))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.live.used.set(Instant::now());
        let tool = McpTool::from_name(&request.name).filter(|tool| self.offered.contains(tool));
        let tool = tool.ok_or_else(|| ErrorData::invalid_params(tools::refusal(&request.name, &self.offered), None))?;
        let Ok(_open) = self.open.try_acquire() else {
            return Ok(call::result(Err(format!("more than {OPEN} calls at a time; wait for one of them to end"))).into());
        };
        let mut gone = self.gone.clone();
        let call = Call::new(async move {
            tokio::select! {
                () = context.ct.cancelled() => {}
                _ = gone.wait_for(|gone| *gone) => {}
            }
        });
        Ok(call::result(self.answer(tool, request.arguments, &call).await).into())
    }

    /// What the SDK does not know, or knows with other parameters.
    async fn on_custom_request(&self, request: CustomRequest, _: RequestContext<RoleServer>) -> Result<CustomResult, ErrorData> {
        Err(match request.method.as_str() {
            "tools/call" | "tools/list" => ErrorData::invalid_params(format!("wrong parameters of {}", request.method), None),
            method => {
                ErrorData::new(ErrorCode::METHOD_NOT_FOUND, format!("there is no method `{}`", output::clean(method)), None)
            }
        })
    }
}
