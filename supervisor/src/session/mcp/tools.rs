//! What tools there are, as clients and models are told.

use std::collections::BTreeSet;
use std::sync::Arc;

use hermes_profiles::McpTool;
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::files::{MOST_EDITED, MOST_LINES, MOST_RAW, MOST_TEXT};
use crate::output;
use crate::session::protocol::Keep;

/// Seconds that a command has when the call names none.
pub(super) const TIMEOUT: f64 = 120.0;

/// Parameters of `exec`.
#[derive(Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Exec {
    /// Command line for bash (sh where there is none). Its directory and exported variables are those of the next command line.
    #[schemars(with = "String")]
    pub(super) command: Option<String>,
    /// Instead of `command`: program and arguments, without a shell.
    #[schemars(with = "Vec<String>")]
    pub(super) argv: Option<Vec<String>>,
    /// Working directory. By default a command line begins where the last one ended, and `argv` where relative paths start.
    #[schemars(with = "String")]
    pub(super) cwd: Option<String>,
    /// Text for its standard input; none by default.
    #[schemars(with = "String")]
    pub(super) stdin: Option<String>,
    /// Seconds after which it is stopped; 120 by default.
    #[schemars(with = "f64")]
    pub(super) timeout: Option<f64>,
}

/// Parameters of `read`.
#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Read {
    /// The file.
    pub(super) path: String,
    /// First line to read, counted from 1 (first byte with `base64`).
    #[serde(default = "first")]
    #[schemars(range(min = 1))]
    pub(super) offset: u64,
    /// Most lines to read (bytes with `base64`).
    #[serde(default)]
    #[schemars(with = "u64", range(min = 1))]
    pub(super) limit: Option<u64>,
    /// Read bytes as base64: for files that are no text.
    #[serde(default)]
    pub(super) base64: bool,
}

fn first() -> u64 {
    1
}

/// Parameters of `write`.
#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Write {
    /// The file. Missing directories are made.
    pub(super) path: String,
    /// All that the file holds then.
    pub(super) content: String,
    /// `content` is base64 of bytes that are no text.
    #[serde(default)]
    pub(super) base64: bool,
}

/// Parameters of `patch`.
#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Patch {
    /// The file.
    pub(super) path: String,
    /// Text to replace, exactly as it stands in the file, white space included. It must be there once.
    pub(super) old: String,
    /// Text that takes its place.
    pub(super) new: String,
    /// Replace it everywhere.
    #[serde(default)]
    pub(super) all: bool,
}

/// The tools on offer. `open`: can a command reach anything outside?
pub(super) fn listed(offered: &BTreeSet<McpTool>, open: bool) -> Vec<Tool> {
    offered.iter().map(|tool| describe(*tool, open)).collect()
}

fn describe(tool: McpTool, open: bool) -> Tool {
    let (title, description, schema, hints) = match tool {
        McpTool::Exec => (
            "Run a command",
            format!(
                "Run a command in the sandbox and wait for its end. Give `command` or `argv`. The answer holds its output and \
                 `[status N]`; of each stream the first {} and the last {} bytes. What it leaves running is killed. \
                 It is stopped after {TIMEOUT} seconds unless `timeout` says otherwise.",
                Keep::default().head,
                Keep::default().tail,
            ),
            schema::<Exec>(),
            ToolAnnotations::new().read_only(false).destructive(true).idempotent(false).open_world(open),
        ),
        McpTool::Read => (
            "Read a file",
            format!(
                "Read a text file: at most {MOST_LINES} lines and {MOST_TEXT} bytes at a time; a note says where to go on. \
                 Other files with `base64`, {MOST_RAW} bytes at a time."
            ),
            schema::<Read>(),
            ToolAnnotations::new().read_only(true).open_world(false),
        ),
        McpTool::Write => (
            "Write a file",
            "Write a whole file; what was in it is replaced. To change a part of a file use `patch`.".to_owned(),
            schema::<Write>(),
            ToolAnnotations::new().read_only(false).destructive(true).idempotent(true).open_world(false),
        ),
        McpTool::Patch => (
            "Change a part of a file",
            format!(
                "Replace text in a UTF-8 file of at most {} MiB. `old` must be in it exactly once: add lines around it until it \
                 is. Nothing is changed when it is not.",
                MOST_EDITED >> 20
            ),
            schema::<Patch>(),
            ToolAnnotations::new().read_only(false).destructive(true).idempotent(false).open_world(false),
        ),
    };
    Tool::new(tool.name(), description, Arc::new(schema)).with_title(title).with_annotations(hints)
}

fn schema<T: JsonSchema>() -> JsonObject {
    let mut schema = schemars::schema_for!(T);
    for noise in ["$schema", "title", "description"] {
        schema.remove(noise);
    }
    for property in schema.get_mut("properties").and_then(Value::as_object_mut).into_iter().flat_map(JsonObject::values_mut) {
        if let Some(property) = property.as_object_mut() {
            // `null` is no value of theirs, and formats of Rust mean nothing to others.
            property.retain(|key, value| key != "format" && !(key == "default" && value.is_null()));
        }
    }
    schema.as_object().cloned().unwrap_or_default()
}

/// The parameters of a call. What is wrong with them is for the model to read and to put right.
pub(super) fn parameters<T: DeserializeOwned>(arguments: Option<JsonObject>) -> Result<T, String> {
    let arguments = Value::Object(arguments.unwrap_or_default());
    serde_json::from_value(arguments).map_err(|e| format!("wrong arguments: {}", output::clean(&e.to_string())))
}

/// Why a name is no tool here.
pub(super) fn refusal(name: &str, offered: &BTreeSet<McpTool>) -> String {
    let names: Vec<_> = offered.iter().map(|tool| tool.name()).collect();
    let names = names.join(", ");
    match McpTool::from_name(name) {
        Some(_) => format!("the policy does not offer the tool `{name}`; it offers {names}"),
        None => format!("there is no tool `{}`; there are {names}", output::clean(name)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tools_are_described_by_what_they_take() {
        let all = listed(&McpTool::ALL.into(), false);
        let names: Vec<_> = all.iter().map(|tool| tool.name.as_ref()).collect();
        assert_eq!(names, ["exec", "read", "write", "patch"]);
        let text = serde_json::to_value(&all).unwrap();
        assert_eq!(text[0]["inputSchema"]["properties"]["timeout"]["type"], "number", "{text:#}");
        assert_eq!(text[0]["inputSchema"].get("required"), None);
        assert_eq!(text[1]["inputSchema"]["properties"]["limit"].as_object().unwrap().len(), 3, "{text:#}");
        assert_eq!(text[1]["inputSchema"]["properties"]["offset"]["default"], 1);
        assert_eq!(text[1]["inputSchema"]["required"], json!(["path"]));
        assert_eq!(text[3]["inputSchema"]["required"], json!(["path", "old", "new"]));
        for tool in text.as_array().unwrap() {
            assert_eq!(tool["inputSchema"]["type"], "object");
            assert_eq!(tool["inputSchema"]["additionalProperties"], false);
            assert_eq!(tool["annotations"]["readOnlyHint"], tool["name"] == "read");
            assert_eq!(tool["annotations"]["openWorldHint"], false);
        }
        assert_eq!(serde_json::to_value(listed(&McpTool::ALL.into(), true)).unwrap()[0]["annotations"]["openWorldHint"], true);
    }

    #[test]
    fn wrong_arguments_are_named() {
        let parse = |value: Value| parameters::<Read>(value.as_object().cloned());
        let read = parse(json!({"path": "a", "limit": 5})).unwrap();
        assert_eq!(read, Read { path: "a".into(), offset: 1, limit: Some(5), base64: false });
        for (arguments, says) in [
            (json!({}), "missing field `path`"),
            (json!({"path": 1}), "invalid type: integer `1`, expected a string"),
            (json!({"path": "a", "lines": 1}), "unknown field `lines`, expected one of `path`, `offset`, `limit`, `base64`"),
            (json!({"path": "a", "offset": -1}), "invalid value: integer `-1`"),
        ] {
            let error = parse(arguments).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
        assert_eq!(parameters::<Exec>(None).unwrap(), Exec::default());
    }

    #[test]
    fn a_tool_that_is_not_offered_is_refused_by_name() {
        let offered = [McpTool::Read].into();
        assert_eq!(refusal("exec", &offered), "the policy does not offer the tool `exec`; it offers read");
        assert_eq!(refusal("run\x1b", &offered), "there is no tool `run\\x1b`; there are read");
    }
}
