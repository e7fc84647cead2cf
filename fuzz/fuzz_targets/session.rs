//! Sessions of the control service under libfuzzer. Knows only the public API of the session.
//!
//! The input is a script: each byte of a pair says which of three sessions gets how many of the next bytes. One begins
//! with nothing, one with the greeting, one has joined. Beside them a steady client must go on undisturbed, and no more
//! may be handed out than there is.
//!
//! ```text
//! +u8-----+u8-----+--length bytes--+u8-----+ ..
//! | who   | length| to that session| who   |
//! +-------+-------+----------------+-------+
//! ```

#![no_main]

use std::sync::Arc;

use farwood_runtime::control::frame;
use farwood_runtime::control::greeting::greeting;
use farwood_runtime::control::wire::{Offer, Request};
use farwood_runtime::mapped::line::LineMode;
use farwood_runtime::mapped::region::Region;
use farwood_runtime::service::{ServiceCore, Session};
use farwood_runtime::{MemoryServer, Served, ServerParts};
use libfuzzer_sys::fuzz_target;

const INSTANCE: u128 = 1;
const CHUNK_BYTES: u64 = 4096;
const CHUNKS: u64 = 8;

fuzz_target!(|script: &[u8]| {
    let core = core();
    let mut steady = Session::new(&core);
    assert!(feed(&mut steady, &joining("steady")));
    let mut sessions = [Session::new(&core), Session::new(&core), Session::new(&core)];
    feed(&mut sessions[1], &greeting());
    feed(&mut sessions[2], &joining("fuzz"));
    let mut left = script;
    while let [who, length, rest @ ..] = left {
        let (bytes, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        left = rest;
        let session = &mut sessions[usize::from(*who) % 3];
        if !feed(session, bytes) {
            *session = Session::new(&core);
        }
    }
    let usage = core.usage();
    assert!(usage.chunk_bytes <= usage.capacity_bytes);
    drop(sessions);
    let mut ping = Vec::new();
    frame::put(&(2u32, Request::Ping), &mut ping);
    assert!(feed(&mut steady, &ping));
    assert_eq!(core.nodes().len(), 1);
});

/// Sends bytes to a session; tells whether the conversation goes on.
fn feed(session: &mut Session, bytes: &[u8]) -> bool {
    let mut out = Vec::new();
    let mut received = session.receive(bytes, &mut out);
    while received.is_ok() && session.pending() {
        out.clear();
        received = session.receive(&[], &mut out);
    }
    received.is_ok()
}

fn joining(name: &str) -> Vec<u8> {
    let mut bytes = greeting().to_vec();
    frame::put(&(0u32, Request::Hello), &mut bytes);
    let join = Request::Join { members: vec![INSTANCE], position: 0, home: 0, name: name.into() };
    frame::put(&(1u32, join), &mut bytes);
    bytes
}

fn core() -> Arc<ServiceCore> {
    let parts = ServerParts { locks: 1, device_bytes: 0, chunk_bytes: CHUNK_BYTES };
    // 17 pages of header and root words, one of locks.
    let region = Region::anonymous(18 * 4096 + CHUNKS * CHUNK_BYTES, LineMode::Auto);
    let memory = MemoryServer::new(Arc::new(region.expect("a few pages")), parts).expect("the parts fit");
    let offer = Offer::Shm { path: String::new() };
    Arc::new(ServiceCore::new(Served { memory, instance: INSTANCE, offer, responder: None }))
}
