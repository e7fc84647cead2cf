//! The `farwood` command. Arguments, exit statuses and JSON are its contract with other programs; `farwood help`
//! explains it.
//!
//! A map: [`args`] is what was typed, [`config`] what it means, [`command`] what is done about it. A benchmark is
//! made of [`workload`] (what clients do), [`driver`] (shards and clients that do it) and [`report`] (what came out,
//! for eyes and machines). The other commands work on memory servers that run already ([`connect`], [`session`]), or
//! are one ([`serve`]). Errors are one line on standard error; the exit status is 0, 1 (the run or a check failed), 2
//! (not started) or 128 and the number of the signal that ended it ([`interrupt`]).

#![forbid(unsafe_code)]

mod args;
mod command;
mod config;
mod connect;
mod driver;
mod error;
mod fabric;
mod footprint;
mod index;
mod interrupt;
mod progress;
mod report;
mod serve;
mod session;
mod units;
mod workload;

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use tracing_subscriber::filter::{LevelFilter, ParseError, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::args::{Command, Request};
use crate::error::CliError;

/// The environment variable that chooses the events that are shown.
const LOG: &str = "FARWOOD_LOG";

fn main() -> ExitCode {
    end_on_panic();
    match start_tracing().and_then(|()| run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            note(error.report());
            ExitCode::from(error.exit_code())
        }
    }
}

fn run() -> Result<(), CliError> {
    match args::parse(std::env::args_os())? {
        Request::Run(cli) => match cli.command {
            Command::MemoryServer(args) => command::memory_server::run(args),
            Command::Create(args) => command::create::run(args),
            Command::Drop(args) => command::drop::run(args),
            Command::Load(args) => command::load::run(args),
            Command::Get(args) => command::get::run(args),
            Command::Put(args) => command::put::run(args),
            Command::Remove(args) => command::remove::run(args),
            Command::Scan(args) => command::scan::run(args),
            Command::Check(args) => command::check::run(args),
            Command::Sweep(args) => command::sweep::run(args),
            Command::Stat(args) => command::stat::run(args),
            Command::Bench(args) => command::bench::run(*args),
            Command::Sim { command } => command::sim::run(command),
        },
        // A closed pipe is the reader's choice.
        Request::Print(text) => {
            let _ = text.print();
            Ok(())
        }
    }
}

/// Writes events to standard error from now on, if FARWOOD_LOG asks for them.
fn start_tracing() -> Result<(), CliError> {
    let Some(wanted) = std::env::var_os(LOG).filter(|wanted| !wanted.is_empty()) else { return Ok(()) };
    let wanted = wanted.to_string_lossy();
    let filter = log_filter(&wanted).map_err(|cause| {
        CliError::Usage(format!(
            "{LOG}={wanted}: {cause}; write error, warn, info, debug or trace, or TARGET=LEVEL, with commas between"
        ))
    })?;
    let colours = io::stderr().is_terminal();
    let events = tracing_subscriber::fmt::layer().with_ansi(colours).with_writer(io::stderr);
    tracing_subscriber::registry().with(events).with(filter).init();
    Ok(())
}

/// Parses the filter of events. A lone word that is no level is refused: as the name of an unknown target it would hide
/// all events.
fn log_filter(wanted: &str) -> Result<Targets, String> {
    let is_word = |part: &&str| part.chars().all(|c| c.is_ascii_alphanumeric());
    let unknown = |part: &&str| part.parse::<LevelFilter>().is_err();
    match wanted.split(',').map(str::trim).filter(is_word).find(unknown) {
        Some(word) => Err(format!("{word:?} is no level")),
        None => wanted.parse().map_err(|error: ParseError| error.to_string()),
    }
}

/// Makes a panic end the process, with one line: one on a single shard would leave the others waiting for it.
fn end_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let message = CliError::Run(format!("internal error, please report it: {panic}"));
        note(message.report());
        std::process::exit(i32::from(message.exit_code()));
    }));
}

/// Writes a line for the person at the terminal.
pub(crate) fn note(line: impl Display) {
    // There is nowhere left to complain to.
    let _ = writeln!(io::stderr(), "farwood: {line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_would_show_nothing_is_refused() {
        for wanted in
            ["debug", "off", "warn,farwood_runtime=debug", "farwood_lock", "farwood_lock::held=trace"]
        {
            assert!(log_filter(wanted).is_ok(), "{wanted}");
        }
        for wanted in ["verbose", "info,loud", "farwood_runtime=loud", "a=b=c"] {
            assert!(log_filter(wanted).is_err(), "{wanted}");
        }
    }
}
