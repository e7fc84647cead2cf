//! Tells whether a process is stopped, as Linux shows it in `/proc`. Knows nothing of what it was doing.

/// Tells whether process `id` is stopped by a signal or a debugger. False for one that runs, waits or is unknown, and
/// for one whose control group is frozen, which the kernel does not tell apart from one that waits.
pub(super) fn is_stopped(id: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{id}/stat")).is_ok_and(|stat| says_stopped(&stat))
}

/// Reads the state in `/proc/PID/stat`: the field behind the program's name, which may contain anything.
fn says_stopped(stat: &str) -> bool {
    stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with(['T', 't']))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    use super::*;

    #[test]
    fn the_state_is_behind_the_last_parenthesis() {
        assert!(says_stopped("17 (cat) T 1 17 17 0"));
        assert!(says_stopped("17 (cat) t 1 17 17 0"), "by a debugger");
        assert!(says_stopped("17 (a) S b) T 1 17 17 0"), "a name with a state in it");
        for other in ["17 (cat) S 1 17", "17 (cat) R 1 17", "17 (a) T b) S 1 17", "17 (cat) Z", "", ") "] {
            assert!(!says_stopped(other), "{other}");
        }
    }

    #[test]
    fn a_process_is_stopped_from_sigstop_to_sigcont() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let id = child.id();
        let send = |signal| kill(Pid::from_raw(id as i32), signal).unwrap();
        let turns = |stopped: bool| {
            while is_stopped(id) != stopped {
                std::thread::yield_now();
            }
        };
        assert!(!is_stopped(std::process::id()));
        send(Signal::SIGSTOP);
        turns(true);
        send(Signal::SIGCONT);
        turns(false);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!is_stopped(id), "it is gone");
    }
}
