//! `farwood sweep`: what a killed process had comes back while another one works on.

use std::io::Write;

use crate::for_each_kind;
use crate::kit::{assert_failed, assert_ok, lines};
use crate::servers::Server;
use crate::shm_check::AfterKill;

#[test]
fn memory_of_a_killed_client_comes_back_while_another_one_works() {
    for_each_kind(sweep_after_a_kill);
}

fn sweep_after_a_kill(kind: &str) {
    let AfterKill { server, other, mut input } = AfterKill::new(kind);
    let swept = server.farwood("sweep", &["t"]);
    assert_ok(&swept);
    let given_back = swept.stdout.lines().find_map(|line| line.strip_prefix("given back   "));
    assert!(given_back.is_some_and(|said| !said.starts_with("0 B")), "{kind}: {}", swept.stdout);
    let again = server.farwood("sweep", &["t"]);
    assert!(again.stdout.contains("given back   0 B"), "{kind}: {}", again.stdout);
    input.write_all(&lines(2100..3000)).expect("it reads");
    drop(input);
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
