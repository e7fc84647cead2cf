//! `farwood sweep`: what a killed process had comes back while another one works on.

use std::io::Write;

use crate::for_each_kind;
use crate::kit::{assert_failed, assert_ok, lines};
use crate::servers::{self, Server};

#[test]
fn memory_of_a_killed_client_comes_back_while_another_one_works() {
    for_each_kind(sweep_after_a_kill);
}

fn sweep_after_a_kill(kind: &str) {
    let server = Server::start("16MiB");
    assert_ok(&server.farwood("create", &["t", "--index", kind]));
    let pairs = || server.farwood("scan", &["t"]).stdout.lines().count();
    let [mut killed, mut other] = [0, 1].map(|_| server.beside("load", &["t"]));
    let [mut input, mut other_input] = [killed.stdin(), other.stdin()];
    input.write_all(&lines(0..2000)).expect("it reads");
    other_input.write_all(&lines(2000..2100)).expect("it reads");
    while pairs() < 2100 {
        assert!(killed.runs() && other.runs());
    }
    killed.signal("KILL");
    killed.wait();
    let nodes = || server.farwood("stat", &[]).stdout.matches("\nnode  ").count();
    while nodes() > 2 {
        servers::pause();
    }
    let swept = server.farwood("sweep", &["t"]);
    assert_ok(&swept);
    let given_back = swept.stdout.lines().find_map(|line| line.strip_prefix("given back   "));
    assert!(given_back.is_some_and(|said| !said.starts_with("0 B")), "{kind}: {}", swept.stdout);
    let again = server.farwood("sweep", &["t"]);
    assert!(again.stdout.contains("given back   0 B"), "{kind}: {}", again.stdout);
    other_input.write_all(&lines(2100..3000)).expect("it reads");
    drop(other_input);
    assert_ok(&other.finish());
    let checked = server.farwood("check", &["t"]);
    assert_ok(&checked);
    assert!(checked.stdout.starts_with("keys         3000\n"), "{kind}: {}", checked.stdout);
    assert!(server.farwood("scan", &["t"]).stdout.as_bytes() == lines(0..3000), "{kind}");
}

#[test]
fn an_index_that_is_not_there_is_not_swept() {
    let server = Server::start("16MiB");
    assert_failed(&server.farwood("sweep", &["t"]), 1, "no index named \"t\"");
}
