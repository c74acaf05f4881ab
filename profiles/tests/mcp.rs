//! Which tools MCP clients get.
#![allow(clippy::unwrap_used)]

mod support;

use hermes_profiles::{McpTool, Policy, Request, builtin};
use support::*;

const ALL: &[&str] = &["exec", "read", "write", "patch"];

fn tools(policy: &Policy) -> Vec<&'static str> {
    policy.mcp.tools.iter().map(|tool| tool.name()).collect()
}

fn written(text: &str) -> Vec<&'static str> {
    tools(&policy(&request("mine"), &Memory::default().profile("mine", text)))
}

#[test]
fn sources_get_the_tools_that_they_need() {
    let by = |source: &str| {
        let request = Request { source: Some(source.into()), caller: caller(&[]), ..Request::default() };
        tools(&policy(&request, &Memory::default()))
    };
    for source in ["webhook", "email", "sms"] {
        assert_eq!(by(source), ["read"], "{source}");
    }
    for source in ["cli", "cron", "ci", "code"] {
        assert_eq!(by(source), ALL, "{source}");
    }
    assert_eq!(by("command"), ["exec"]);
    assert_eq!(by("mcp"), ["exec", "read"]);
    for profile in builtin::all() {
        let building_block = ["credentials"].contains(&profile.name);
        assert_eq!(tools(&policy(&request(profile.name), &Memory::default())).is_empty(), building_block, "{}", profile.name);
    }
}

#[test]
fn the_last_file_that_names_tools_decides_about_all_of_them() {
    assert_eq!(written("schema = 1\n"), ALL, "as included");
    assert_eq!(written("schema = 1\nincludes = []\n"), [""; 0], "none without a word");
    assert_eq!(written("schema = 1\nincludes = [\"agent\"]\n[mcp]\n"), ALL);
    assert_eq!(
        written("schema = 1\nincludes = [\"agent\"]\n[mcp]\ntools = [\"read\", \"read\"]\n"),
        ["read"],
        "less than included"
    );
    assert_eq!(written("schema = 1\nincludes = [\"agent\"]\n[mcp]\ntools = []\n"), [""; 0], "an empty list");
    assert_eq!(written("schema = 1\nincludes = [\"review\"]\n[mcp]\ntools = [\"exec\"]\n"), ["exec"], "said expressly");
    // `git` includes `base`, which names all; it was applied before `review`, once.
    assert_eq!(written("schema = 1\nincludes = [\"review\", \"git\"]\n"), ["read"], "a diamond");
    assert_eq!(written("schema = 1\nincludes = [\"git\", \"review\"]\n"), ["read"]);
    assert_eq!(written("schema = 1\nincludes = [\"review\", \"command\"]\n"), ["exec"], "the later one");
}

#[test]
fn mistakes_are_named_with_their_line() {
    for (text, says) in [
        ("schema = 1\n[mcp]\ntools = [\n\"read\",\n\"exce\"]\n", "5: tools: unknown value \"exce\"; did you mean \"exec\"?"),
        ("schema = 1\n[mcp]\ntools = [\"shell\"]\n", "3: tools: unknown value \"shell\"; expected exec, read, write, patch"),
        ("schema = 1\n[mcp]\ntool = []\n", "3: unknown key \"tool\" in [mcp]; did you mean \"tools\"?"),
        ("schema = 1\n[mcp]\ntools = \"exec\"\n", "3: tools: expected a list, found string"),
        ("schema = 1\n[mcp]\ntools = [1]\n", "3: tools: expected a string, found integer"),
        ("schema = 1\nmcp = true\n", "2: mcp: expected a table, found boolean"),
    ] {
        let message = error(&request("mine"), &Memory::default().profile("mine", text));
        assert!(message.ends_with(says), "{message}");
    }
    assert_eq!(McpTool::ALL.map(|tool| McpTool::from_name(tool.name())), McpTool::ALL.map(Some));
}
