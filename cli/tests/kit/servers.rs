//! Memory servers as processes of their own, and commands that run beside the test.
#![allow(dead_code, clippy::allow_attributes, reason = "every test file uses a part of it")]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::kit::{Ran, farwood, farwood_with_input};

/// A process of the binary that is killed if its test fails.
pub(crate) struct Running(Child);

impl Running {
    /// Starts `farwood` with these words.
    pub(crate) fn start(words: &[&str]) -> Self {
        Self::start_by(&[], words)
    }

    /// Starts `farwood` by the command `launcher`. Signals that end commands are not ignored before, even if the test
    /// is: what a process ignores, as under `nohup`, its children ignore, too.
    pub(crate) fn start_by(launcher: &[&str], words: &[&str]) -> Self {
        let child = Command::new("env")
            .arg("--default-signal=HUP,INT,TERM")
            .args(launcher)
            .arg(env!("CARGO_BIN_EXE_farwood"))
            .args(words)
            .env_remove("FARWOOD_LOG")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        Running(child.expect("the binary starts"))
    }

    /// Takes its standard output; once.
    pub(crate) fn stdout(&mut self) -> BufReader<ChildStdout> {
        BufReader::new(self.0.stdout.take().expect("it was piped, and not taken yet"))
    }

    /// Takes its standard input; dropping it ends the input.
    pub(crate) fn stdin(&mut self) -> std::process::ChildStdin {
        self.0.stdin.take().expect("it was piped, and not taken yet")
    }

    /// Sends it a signal, as `kill -SIGNAL` does.
    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.0.id().to_string();
        let sent = Command::new("kill").args([&format!("-{signal}"), &pid]).status();
        assert!(sent.expect("there is a kill").success(), "kill -{signal} {pid}");
    }

    /// Tells whether it handles Ctrl-C itself by now.
    pub(crate) fn listens_to_signals(&self) -> bool {
        const INTERRUPT: u64 = 1 << (2 - 1);
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).expect("it runs");
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("Linux tells it");
        u64::from_str_radix(caught.trim(), 16).expect("a mask") & INTERRUPT != 0
    }

    /// Tells whether it still runs.
    pub(crate) fn runs(&mut self) -> bool {
        self.0.try_wait().expect("it can be asked").is_none()
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.0.wait().expect("it ends")
    }

    /// Waits for its end. Yields its status and the output that was not read yet.
    pub(crate) fn finish(mut self) -> Ran {
        self.said()
    }

    /// Waits for its end, as `finish` does; once.
    fn said(&mut self) -> Ran {
        drop(self.0.stdin.take());
        let mut errors = self.0.stderr.take().expect("it was piped, and not taken yet");
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            errors.read_to_string(&mut text).expect("text");
            text
        });
        let mut stdout = String::new();
        if let Some(mut out) = self.0.stdout.take() {
            out.read_to_string(&mut stdout).expect("text");
        }
        let code = self.wait().code().unwrap_or(-1);
        Ran { code, stdout, stderr: reader.join().expect("it only reads") }
    }
}

impl Running {
    /// Ends it if it runs; yields whether a signal ended it.
    fn end(&mut self) -> bool {
        // It may have ended.
        let _ = self.0.kill();
        self.0.wait().is_ok_and(|status| status.code().is_none())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// Waits long enough for a process to be at work; tests do not depend on how far it came.
pub(crate) fn pause() {
    #[expect(clippy::disallowed_methods, reason = "no shard runs in this process")]
    std::thread::sleep(std::time::Duration::from_millis(300));
}

/// A memory server that is ready.
pub(crate) struct Server {
    process: Running,
    /// Address that clients write behind `--fabric`.
    pub(crate) fabric: String,
    /// The line that it said when it was ready.
    pub(crate) ready: String,
    /// True if what it leaves behind when it is killed is removed with it.
    tidy: bool,
}

impl Drop for Server {
    fn drop(&mut self) {
        let killed = self.process.end();
        if let Some(name) = self.fabric.strip_prefix("shm:").filter(|_| self.tidy && killed) {
            for file in [format!("farwood-{name}"), format!("farwood.{name}.sock")] {
                // A server that ended by itself has removed them.
                let _ = std::fs::remove_file(std::path::Path::new("/dev/shm").join(file));
            }
        }
    }
}

impl Server {
    /// Starts a server with a name of its own and that much memory.
    pub(crate) fn start(memory: &str) -> Self {
        Self::start_at(&Self::new_name(), memory)
    }

    fn new_name() -> String {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        format!("shm:test-{}-{number}", std::process::id())
    }

    /// Starts a server at that address.
    pub(crate) fn start_at(fabric: &str, memory: &str) -> Self {
        Self::start_with(fabric, &["--fabric", fabric, "--memory", memory])
    }

    /// Starts a server that gives up compute nodes which say nothing for that long.
    pub(crate) fn start_impatient(memory: &str, silence: &str) -> Self {
        let fabric = Self::new_name();
        Self::start_with(&fabric, &["--fabric", &fabric, "--memory", memory, "--silence", silence])
    }

    /// Starts one that ends their processes, too.
    pub(crate) fn start_deadly(memory: &str, silence: &str) -> Self {
        let fabric = Self::new_name();
        let words = ["--fabric", &fabric, "--memory", memory, "--silence", silence, "--end-silent"];
        Self::start_with(&fabric, &words)
    }

    /// Starts a server on the fabric verbs, at that port of this host.
    pub(crate) fn start_verbs(port: u16, memory: &str) -> Self {
        let listen = format!("127.0.0.1:{port}");
        let words = ["--fabric", "verbs", "--memory", memory, "--listen", &listen];
        Self::start_with(&format!("verbs:{listen}"), &words)
    }

    fn start_with(fabric: &str, words: &[&str]) -> Self {
        Self::ready(fabric, Running::start(&[&["memory-server"], words].concat()))
    }

    /// Waits until a server that was started there says that it is ready.
    pub(crate) fn ready(fabric: &str, mut process: Running) -> Self {
        let mut ready = String::new();
        process.stdout().read_line(&mut ready).expect("text");
        if ready.is_empty() {
            panic!("the memory server did not start: {}", process.said().stderr);
        }
        Server { process, fabric: fabric.to_owned(), ready, tidy: true }
    }

    /// Runs `farwood COMMAND --fabric ... REST` on it.
    pub(crate) fn farwood(&self, command: &str, rest: &[&str]) -> Ran {
        farwood(&self.words(command, rest))
    }

    /// Runs `farwood COMMAND --fabric ... REST` on it with `input` on standard input.
    pub(crate) fn farwood_with_input(&self, command: &str, rest: &[&str], input: &[u8]) -> Ran {
        farwood_with_input(&self.words(command, rest), input)
    }

    /// Starts `farwood COMMAND --fabric ... REST` on it, beside the test.
    pub(crate) fn beside(&self, command: &str, rest: &[&str]) -> Running {
        Running::start(&self.words(command, rest))
    }

    fn words<'w>(&'w self, command: &'w str, rest: &[&'w str]) -> Vec<&'w str> {
        [command, "--fabric", &self.fabric].into_iter().chain(rest.iter().copied()).collect()
    }

    /// Asks it to stop. Yields how it ended.
    pub(crate) fn stop(self) -> Ran {
        self.stop_by("INT")
    }

    /// Asks it to stop by that signal. Yields how it ended.
    pub(crate) fn stop_by(mut self, signal: &str) -> Ran {
        self.signal(signal);
        self.process.said()
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: &str) {
        self.process.signal(signal);
    }

    /// Kills it; what it leaves behind stays. Yields its name.
    pub(crate) fn kill(mut self) -> String {
        self.process.signal("KILL");
        self.process.wait();
        self.tidy = false;
        self.fabric.clone()
    }
}
