//! A client of a program that speaks JSON-RPC 2.0 on its standard streams, one message a line.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

/// The program, and its streams; killed when it is dropped.
pub struct Rpc {
    /// The program.
    pub child: Child,
    /// `None` when it was closed.
    pub input: Option<ChildStdin>,
    /// What it says.
    pub output: BufReader<ChildStdout>,
    last: u64,
}

impl Rpc {
    /// Starts it; standard error is as `command` has it.
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program");
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().expect("piped")));
        Self { child, input, output, last: 0 }
    }

    /// Writes to it.
    pub fn send(&mut self, text: impl AsRef<[u8]>) {
        self.input.as_mut().expect("open").write_all(text.as_ref()).expect("it reads");
    }

    /// Sends a request and returns its id.
    pub fn request(&mut self, method: &str, params: Value) -> u64 {
        self.last += 1;
        self.send(format!("{}\n", json!({"jsonrpc": "2.0", "id": self.last, "method": method, "params": params})));
        self.last
    }

    /// The next message.
    #[track_caller]
    pub fn line(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        assert!(!line.is_empty(), "the server has ended");
        serde_json::from_str(&line).expect("JSON")
    }

    /// The answer to a request, whatever else comes before.
    #[track_caller]
    pub fn answer(&mut self, id: u64) -> Value {
        loop {
            let line = self.line();
            if line["id"] == id {
                return line;
            }
        }
    }

    /// The result of a request that succeeds.
    #[track_caller]
    pub fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.request(method, params);
        let answer = self.answer(id);
        assert!(answer.get("error").is_none(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// The error of a request that fails.
    #[track_caller]
    pub fn refused(&mut self, method: &str, params: Value) -> Value {
        let id = self.request(method, params);
        self.answer(id)["error"].clone()
    }
}

impl Drop for Rpc {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
