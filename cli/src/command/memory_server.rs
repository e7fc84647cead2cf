//! `farwood memory-server`: memory for compute nodes, until a signal comes.

use std::time::Duration;

use crate::args::MemoryServerArgs;
use crate::error::CliError;
use crate::fabric::Place;
use crate::footprint::chunk_bytes_for;
use crate::interrupt::Interrupt;
use crate::note;
use crate::report::output::print;
use crate::serve::{self, Holdings, ServerPlan, Serving};
use crate::units::show_bytes;

/// Shards that a server expects to take chunks at the same time: so many chunks may be taken and mostly unused.
const SHARDS_EXPECTED: u64 = 15;

/// Least `--silence`: compute nodes that have nothing to say send a sign of life every second.
const SILENCE_NS_MIN: u64 = 2_000_000_000;

/// Serves until a signal comes.
///
/// # Errors
/// If the server cannot be started, or a signal comes before it is.
pub(crate) fn run(args: MemoryServerArgs) -> Result<(), CliError> {
    let plan = plan(args)?;
    // Before the server is there: a signal that comes early must not leave half of one behind.
    let interrupt = Interrupt::listen()?;
    let started = serve::start(&plan, &interrupt);
    interrupt.check("the memory server was not started")?;
    let server = started?;
    // Giving much memory back may take longer than a second.
    interrupt.be_patient();
    print(&ready(&plan, &*server))?;
    interrupt.wait();
    note(stopping(&server.holdings()));
    Ok(())
}

fn plan(args: MemoryServerArgs) -> Result<ServerPlan, CliError> {
    let place = Place::parse(&args.fabric, args.listen.as_deref(), args.verbs.into())?;
    if args.silence < SILENCE_NS_MIN {
        return Err(CliError::usage(
            "--silence: compute nodes say something every second, so 2s is the least",
        ));
    }
    if args.end_silent && !matches!(place, Place::Shm(_)) {
        return Err(CliError::usage(
            "--end-silent: only over shm; over verbs a compute node that is given up reaches the memory no more",
        ));
    }
    if args.memory == 0 {
        return Err(CliError::usage("--memory 0: a memory server needs some"));
    }
    Ok(ServerPlan {
        place,
        memory_bytes: args.memory,
        chunk_bytes: chunk_bytes_for(args.memory, SHARDS_EXPECTED),
        huge_pages: args.huge_pages,
        silence: Duration::from_nanos(args.silence),
        end_silent: args.end_silent,
    })
}

/// Renders the one line that says that clients can come.
fn ready(plan: &ServerPlan, server: &dyn Serving) -> String {
    let address = server.address();
    let host = match plan.place {
        Place::Verbs(listen, _) if listen.ip().is_unspecified() => " (HOST: an address of this host)",
        _ => "",
    };
    format!(
        "ready: {address}, {}, chunks of {}; connect with --fabric {address}{host}\n",
        show_bytes(plan.memory_bytes),
        show_bytes(plan.chunk_bytes),
    )
}

/// Renders the line that is said before it stops.
fn stopping(holdings: &Holdings) -> String {
    let Holdings { indexes, used_bytes, compute_nodes } = *holdings;
    if (indexes, used_bytes, compute_nodes) == (0, 0, 0) {
        return "stopping: nothing is lost".to_owned();
    }
    format!(
        "stopping: {indexes} index{} and {} in use are lost; {compute_nodes} compute node{} connected",
        if indexes == 1 { "" } else { "es" },
        show_bytes(used_bytes),
        if compute_nodes == 1 { " is" } else { "s are" },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::VerbsArgs;

    struct Idle;

    impl Serving for Idle {
        fn address(&self) -> String {
            "shm:a".to_owned()
        }

        fn holdings(&self) -> Holdings {
            Holdings::default()
        }
    }

    fn args(fabric: &str, memory: u64) -> MemoryServerArgs {
        MemoryServerArgs {
            fabric: fabric.to_owned(),
            memory,
            listen: None,
            verbs: VerbsArgs::default(),
            huge_pages: false,
            silence: 10_000_000_000,
            end_silent: false,
        }
    }

    #[test]
    fn it_says_how_to_connect() {
        let plan = plan(args("shm:a", 4 << 30)).unwrap();
        assert_eq!(
            ready(&plan, &Idle),
            "ready: shm:a, 4.0 GiB, chunks of 8.0 MiB; connect with --fabric shm:a\n"
        );
        assert!(super::plan(args("shm:a", 0)).is_err() && super::plan(args("embedded", 1 << 30)).is_err());
        let hasty = MemoryServerArgs { silence: 1_999_999_999, ..args("shm:a", 64 << 20) };
        assert!(super::plan(hasty).is_err());
        assert_eq!(super::plan(args("shm:a", 64 << 20)).unwrap().chunk_bytes, 256 << 10);
    }

    #[test]
    fn it_says_what_it_loses() {
        let said =
            |indexes, used_bytes, compute_nodes| stopping(&Holdings { indexes, used_bytes, compute_nodes });
        assert_eq!(
            said(2, 3 << 20, 1),
            "stopping: 2 indexes and 3.0 MiB in use are lost; 1 compute node is connected"
        );
        assert_eq!(said(1, 0, 2), "stopping: 1 index and 0 B in use are lost; 2 compute nodes are connected");
        assert_eq!(said(0, 0, 0), "stopping: nothing is lost");
    }
}
