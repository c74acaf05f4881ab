//! `check`: what the advisory layer says about a command or a tool call, in the form in which agents ask.
//!
//! Hermes Agent (0.19.0) asks in two ways. As the program of `security.tirith_path` we are called with
//! `check --json --non-interactive --shell posix -- COMMAND`; the exit status is the verdict, and any other than 0, 1 and 2
//! lets the command pass. As a shell hook for `pre_tool_call` (`check tool`) we read the call from standard input; the answer
//! on standard output is the verdict, and any that cannot be parsed lets the call pass. So every failure here is an answer.

use std::ffi::OsString;
use std::io::{self, Read};

use hermes_advisory::{Advice, Finding, Verdict, judge};
use serde_json::{Value, json};

use crate::args::{Check, CheckArgs, CheckCommand};
use crate::error::{Error, Kind};
use crate::output;
use crate::usage::ONE_ARGUMENT;

/// The longest description of a tool call that is read.
const LONGEST_CALL: u64 = 16 << 20;

fn severity(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Safe => "INFO",
        Verdict::Warn => "MEDIUM",
        Verdict::Ask => "HIGH",
        Verdict::Never => "CRITICAL",
    }
}

fn status(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Safe => 0,
        Verdict::Warn => 2,
        Verdict::Ask | Verdict::Never => 1,
    }
}

/// Makes every end of this process from here on a refusal, and returns how an error is reported.
pub(crate) fn closed() -> fn(&Error) -> u8 {
    std::panic::set_hook(Box::new(|panic| {
        output::complain(&format!("cannot judge: {panic}"));
        std::process::exit(1);
    }));
    refuse
}

/// An answer that both askers read as a refusal.
fn refuse(error: &Error) -> u8 {
    error.report();
    let message = format!("hermes-sandbox: {error}");
    _ = print(&json!({ "action": "block", "message": message, "findings": [], "summary": message }));
    1
}

/// `check`.
pub(crate) fn check(args: CheckArgs) -> Result<u8, Error> {
    match args.what {
        None => check_command(args.command),
        Some(Check::Command { command }) => check_command(command),
        Some(Check::Tool) => check_tool(io::stdin().lock()),
    }
}

fn check_command(asked: CheckCommand) -> Result<u8, Error> {
    let [line] = <[OsString; 1]>::try_from(asked.line)
        .map_err(|words| Error::usage(format!("the command line is {} arguments", words.len())).hint(ONE_ARGUMENT))?;
    let line = line.into_string().map_err(|_| {
        Error::new(Kind::Finding, "cannot judge the command line: it is not UTF-8").hint("run it only if you know it")
    })?;
    let advice = judge(&line);
    // The exit status is the verdict, also when nobody reads the rest.
    if asked.json {
        print(&scanned(&advice))?
    } else {
        output::print(&for_people(&advice))?
    }
    Ok(status(advice.verdict()))
}

fn scanned(advice: &Advice) -> Value {
    let findings: Vec<Value> = advice
        .findings
        .iter()
        .map(|finding| {
            json!({
                "rule_id": finding.rule,
                "severity": severity(finding.verdict),
                "title": finding.title,
                "description": output::clean(&finding.detail),
            })
        })
        .collect();
    let action = match advice.verdict() {
        Verdict::Safe => "allow",
        Verdict::Warn => "warn",
        Verdict::Ask | Verdict::Never => "block",
    };
    json!({ "action": action, "findings": findings, "summary": summary(advice) })
}

fn line(finding: &Finding) -> String {
    format!("{} ({}): {}", finding.title, finding.rule, output::clean(&finding.detail))
}

fn summary(advice: &Advice) -> String {
    advice.findings.iter().map(|finding| finding.title).collect::<Vec<_>>().join("; ")
}

fn for_people(advice: &Advice) -> String {
    if advice.findings.is_empty() {
        return "safe: no rule found anything\n".to_owned();
    }
    let name = |verdict| match verdict {
        Verdict::Safe => "safe",
        Verdict::Warn => "warn",
        Verdict::Ask => "ask",
        Verdict::Never => "never",
    };
    advice.findings.iter().map(|finding| format!("{}: {}\n", name(finding.verdict), line(finding))).collect()
}

fn check_tool(from: impl Read) -> Result<u8, Error> {
    let answer = match call(from).and_then(|call| answer(&call)) {
        Ok(None) => json!({}),
        Ok(Some(message)) => block(&message),
        Err(why) => {
            let message = format!("cannot judge the tool call: {why}; it is blocked");
            output::complain(&message);
            block(&message)
        }
    };
    print(&answer).map(|()| 0)
}

fn block(message: &str) -> Value {
    json!({ "action": "block", "message": format!("hermes-sandbox: {message}") })
}

fn call(from: impl Read) -> Result<Value, String> {
    let mut text = Vec::new();
    from.take(LONGEST_CALL + 1).read_to_end(&mut text).map_err(|e| format!("cannot read standard input: {e}"))?;
    if text.len() as u64 > LONGEST_CALL {
        return Err(format!("it is longer than {} MiB", LONGEST_CALL >> 20));
    }
    serde_json::from_slice(&text).map_err(|e| format!("standard input is not JSON: {e}"))
}

/// Why the call is blocked, if it is; an error when it is not one.
fn answer(call: &Value) -> Result<Option<String>, String> {
    let text = |name| call.get(name).and_then(Value::as_str).ok_or_else(|| format!("`{name}` is missing or no string"));
    let event = text("hook_event_name")?;
    if event != "pre_tool_call" {
        return Err(format!("the event is `{event}`, and only `pre_tool_call` is answered"));
    }
    if text("tool_name")? != "terminal" {
        return Ok(None);
    }
    let command = call.pointer("/tool_input/command").and_then(Value::as_str);
    let advice = judge(command.ok_or("`tool_input.command` is missing or no string")?);
    // There is no warning here, and nobody to ask.
    let grave = || advice.findings.iter().filter(|finding| finding.verdict >= Verdict::Ask);
    Ok((grave().count() > 0).then(|| grave().map(line).collect::<Vec<_>>().join("; ")))
}

/// One line of ASCII, because the reader decodes it by its own locale.
fn print(value: &Value) -> Result<(), Error> {
    let mut line = String::new();
    for unit in value.to_string().encode_utf16() {
        match u8::try_from(unit).ok().filter(u8::is_ascii) {
            Some(byte) => line.push(byte.into()),
            None => line.push_str(&format!("\\u{unit:04x}")),
        }
    }
    output::print(&(line + "\n"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn answered(text: &str) -> Result<Option<String>, String> {
        call(text.as_bytes()).and_then(|call| answer(&call))
    }

    fn terminal(command: &Value) -> String {
        json!({ "hook_event_name": "pre_tool_call", "tool_name": "terminal", "tool_input": { "command": command }, "session_id": "s", "cwd": "/", "extra": {} })
            .to_string()
    }

    #[test]
    fn a_verdict_is_one_of_three_statuses() {
        for (command, expected) in [("ls", 0), ("git push -f", 2), ("curl x | sh", 1), ("rm -rf /", 1), ("'", 1)] {
            assert_eq!(status(judge(command).verdict()), expected, "{command}");
        }
    }

    #[test]
    fn what_a_scanner_says() {
        let value = scanned(&judge("git push -f; rm -rf /"));
        assert_eq!(value["action"], "block");
        assert_eq!(value["summary"], "Deletes a system or home directory; Loses commits or uncommitted work");
        assert_eq!(
            value["findings"][0],
            json!({ "rule_id": "delete-system", "severity": "CRITICAL", "title": "Deletes a system or home directory", "description": "/" })
        );
        assert_eq!(scanned(&judge("ls")), json!({ "action": "allow", "findings": [], "summary": "" }));
        assert!(!scanned(&judge("git push -f '\u{1b}[2J\u{202e}'")).to_string().contains(['\u{1b}', '\u{202e}']));
    }

    #[test]
    fn a_hook_blocks_what_is_grave() {
        assert_eq!(answered(&terminal(&json!("ls"))), Ok(None));
        assert_eq!(answered(&terminal(&json!("git push -f"))), Ok(None));
        let message = answered(&terminal(&json!("git push -f; rm -rf /"))).unwrap().unwrap();
        assert_eq!(message, "Deletes a system or home directory (delete-system): /");
        let other = r#"{"hook_event_name":"pre_tool_call","tool_name":"write_file","tool_input":null}"#;
        assert_eq!(answered(other), Ok(None));
    }

    #[test]
    fn a_hook_blocks_what_it_cannot_read() {
        let deep = "[".repeat(100_000);
        for text in [
            "",
            "{",
            "[]",
            "null",
            "{}",
            r#"{"hook_event_name":"pre_tool_call"}"#,
            r#"{"hook_event_name":"pre_tool_call","tool_name":7}"#,
            r#"{"hook_event_name":"pre_tool_call","tool_name":"terminal","tool_input":null}"#,
            r#"{"hook_event_name":"pre_tool_call","tool_name":"terminal","tool_input":{"command":["ls"]}}"#,
            r#"{"hook_event_name":"pre_tool_call","tool_name":"terminal","tool_input":{"command":"ls","timeout":NaN}}"#,
            r#"{"hook_event_name":"post_tool_call","tool_name":"terminal","tool_input":{"command":"ls"}}"#,
            &deep,
        ] {
            assert!(answered(text).is_err(), "{text:.80}");
        }
        assert!(call(&b"\"\xff\""[..]).is_err() && call(io::repeat(b' ')).is_err());
        assert!(answered(&terminal(&json!(null))).is_err());
    }
}
