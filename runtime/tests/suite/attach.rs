//! A service with glommio executors of its own attaches shards to them: the node's place is limited, ordinary tasks use
//! it, the executor's timers, files and sockets go on, and a shard without handles goes away.

use std::cell::Cell;
use std::future::Future;
use std::io::Write;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use farwood_runtime::mapped::line::LineMode;
use farwood_runtime::{
    Chain, ClientPool, Cluster, Message, Meter, NodeError, Port, RemotePtr, Shard, ShardId, Verbs,
};
use futures::channel::oneshot;
use futures::future::join_all;
use futures::{AsyncReadExt, AsyncWriteExt};
use glommio::io::BufferedFile;
use glommio::net::{TcpListener, TcpStream};

use crate::kit;

const PORT: Port = Port(0);

async fn add(shard: &Shard, at: RemotePtr) -> u64 {
    let mut chain = Chain::with_buffer(at.server(), shard.lease(64));
    chain.faa(at, 1).read(at, 0..64);
    shard.submit(&Meter::default(), chain).await.unwrap().atomics[0]
}

/// Waits for the other shards before this one ends: a shard that has left answers no messages.
async fn leave(shard: &Shard, left: &AtomicUsize) {
    left.fetch_add(1, Ordering::Release);
    while left.load(Ordering::Acquire) < shard.shards() {
        shard.pause(1_000_000).await;
    }
}

/// Runs operations from ordinary tasks, and sends a message around the shards.
async fn serve(shard: Shard, at: RemotePtr, left: Arc<AtomicUsize>) {
    let (sender, received) = oneshot::channel();
    let sender = Cell::new(Some(sender));
    shard.listen(PORT, Rc::new(move |from, _| sender.take().expect("one comes").send(from).unwrap()));
    let tasks = (0..64).map(|_| {
        let shard = shard.clone();
        glommio::spawn_local(async move {
            for _ in 0..100 {
                add(&shard, at).await;
            }
        })
    });
    join_all(tasks).await;
    let shards = shard.shards() as u16;
    shard.send(ShardId((shard.id().0 + 1) % shards), PORT, Message::default());
    assert_eq!(received.await, Ok(ShardId((shard.id().0 + shards - 1) % shards)));
    assert_eq!(shard.buffers_leased(), 0);
    leave(&shard, &left).await;
}

#[test]
fn a_service_attaches_shards_to_its_own_executors() {
    let _watchdog = kit::Watchdog::new("attach", 60);
    let cluster = kit::cluster(LineMode::Auto);
    let at = kit::area(&cluster, 0);
    let node = kit::node(&cluster, 3, 50);
    let left = Arc::new(AtomicUsize::new(0));
    let executors: Vec<_> = (0..3)
        .map(|_| {
            let (node, left) = (Arc::clone(&node), Arc::clone(&left));
            kit::on_executor(Some(Duration::from_millis(10)), move || async move {
                serve(node.attach().await.unwrap(), at, left).await;
            })
        })
        .collect();
    executors.into_iter().for_each(|executor| executor.join().unwrap());
    let late = kit::on_executor(None, move || async move {
        match node.attach().await {
            Err(error @ NodeError::AllAttached { shards: 3 }) => error.to_string(),
            _ => panic!("a fourth shard of three"),
        }
    });
    assert!(late.join().unwrap().contains("more shards"));
    let counted = kit::node(&cluster, 1, 50).run(move |shard| async move { add(&shard, at).await });
    assert_eq!(counted.unwrap(), [3 * 64 * 100]);
}

#[test]
fn two_shards_share_an_executor() {
    let _watchdog = kit::Watchdog::new("two shards on an executor", 60);
    let cluster = kit::cluster(LineMode::Auto);
    let at = kit::area(&cluster, 0);
    let node = kit::node(&cluster, 2, 50);
    let both = kit::on_executor(Some(Duration::from_millis(10)), move || async move {
        let left = Arc::new(AtomicUsize::new(0));
        let serve = |shard| serve(shard, at, Arc::clone(&left));
        let (first, second) = futures::future::join(node.attach(), node.attach()).await;
        futures::future::join(serve(first.unwrap()), serve(second.unwrap())).await;
    });
    both.join().unwrap();
}

/// Runs `service` on an executor with a shard of its own, then waits until nothing of the shard is left, while the
/// executor goes on.
fn is_gone_after<R>(what: &str, service: impl FnOnce(Shard, RemotePtr) -> R + Send + 'static)
where
    R: Future<Output = ()> + 'static,
{
    let cluster = kit::cluster(LineMode::Auto);
    let at = kit::area(&cluster, 0);
    let node = kit::node(&cluster, 1, 50);
    let handles = Arc::strong_count(&cluster);
    let held = Arc::clone(&cluster);
    let left = kit::on_executor(Some(Duration::from_millis(10)), move || async move {
        let shard = node.attach().await.unwrap();
        assert!(Arc::strong_count(&held) > handles + 1, "a shard holds its cluster");
        service(shard, at).await;
        for _ in 0..100 {
            glommio::timer::sleep(Duration::from_millis(20)).await;
            if Arc::strong_count(&held) == handles + 1 {
                return 0;
            }
        }
        Arc::strong_count(&held) - handles - 1
    });
    assert_eq!(left.join().unwrap(), 0, "the shard is still there: {what}");
}

#[test]
fn a_shard_without_handles_ends() {
    let _watchdog = kit::Watchdog::new("the end of a shard", 60);
    is_gone_after("unused", |shard, _| async move { drop(shard) });
    is_gone_after("at work, then parked", |shard, at| async move {
        add(&shard, at).await;
        glommio::timer::sleep(Duration::from_millis(50)).await;
        drop(shard);
    });
    is_gone_after("with clients that end later", |shard, at| async move {
        let own = shard.clone();
        drop(shard.spawn(async move {
            own.pause(20_000_000).await;
            add(&own, at).await;
        }));
    });
    is_gone_after("with chains that no task awaits", |shard, at| async move {
        for _ in 0..100 {
            let mut chain = Chain::with_buffer(at.server(), shard.lease(64));
            chain.faa(at, 1);
            drop(shard.submit(&Meter::default(), chain));
        }
    });
    is_gone_after("a pause is the last", |shard, _| async move {
        let pause = shard.pause(30_000_000);
        drop(shard);
        pause.await;
        glommio::timer::sleep(Duration::from_millis(20)).await;
    });
    is_gone_after("a pause is dropped while the poller sleeps", |shard, _| async move {
        let pause = shard.pause(3_600_000_000_000);
        drop(shard);
        glommio::timer::sleep(Duration::from_millis(20)).await;
        drop(pause);
    });
    is_gone_after("a submission is dropped while the poller sleeps", |shard, at| async move {
        let mut chain = Chain::new(at.server());
        chain.faa(at, 1);
        let submission = shard.submit(&Meter::default(), chain);
        drop(shard);
        glommio::timer::sleep(Duration::from_millis(20)).await;
        drop(submission);
    });
}

/// A client runs to its end even if neither it nor any task holds a handle to its shard.
#[test]
fn a_client_outlives_the_handles() {
    let _watchdog = kit::Watchdog::new("a client without handles", 60);
    let cluster = kit::cluster(LineMode::Auto);
    let node = kit::node(&cluster, 1, 50);
    let result = kit::on_executor(Some(Duration::from_millis(10)), move || async move {
        let shard = node.attach().await.unwrap();
        let (sender, receiver) = oneshot::channel();
        let client = shard.spawn(async move { receiver.await.unwrap() });
        drop(shard);
        glommio::timer::sleep(Duration::from_millis(20)).await;
        sender.send(5).unwrap();
        client.await
    });
    assert_eq!(result.join().unwrap(), 5);
}

/// `run` takes down all that it started: afterwards nothing holds the cluster, so its memory goes back.
#[test]
fn a_node_that_has_run_frees_its_cluster() {
    let _watchdog = kit::Watchdog::new("the end of a node", 60);
    for parked in [false, true] {
        let cluster = kit::cluster(LineMode::Auto);
        let at = kit::area(&cluster, 0);
        let node = kit::node(&cluster, 2, 50);
        node.run(move |shard| async move {
            let own = shard.clone();
            shard.spawn(async move { add(&own, at).await }).await;
            // A handler holds the shard, and the shard its handler.
            let own = shard.clone();
            shard.listen(PORT, Rc::new(move |from, message| own.send(from, PORT, message)));
            if parked {
                glommio::timer::sleep(Duration::from_millis(50)).await;
            }
        })
        .unwrap();
        drop(node);
        assert_eq!(Arc::strong_count(&cluster), 1, "shards that {}", if parked { "parked" } else { "ran" });
    }
}

/// Shards that are done first serve the others until these are done as well.
#[test]
fn a_shard_serves_the_others_until_all_are_done() {
    let _watchdog = kit::Watchdog::new("a shard that is done first", 60);
    let cluster = kit::cluster(LineMode::Auto);
    let answered = kit::node(&cluster, 2, 50).run(|shard| async move {
        let (own, answers) = (shard.clone(), Rc::new(Cell::new(0)));
        let counting = Rc::clone(&answers);
        shard.listen(
            PORT,
            Rc::new(move |from, message| match message.0[0] {
                0 => own.send(from, PORT, Message([1, 0, 0])),
                _ => counting.set(counting.get() + 1),
            }),
        );
        if shard.id().0 == 0 {
            return 0;
        }
        shard.pause(50_000_000).await;
        for _ in 0..100 {
            shard.send(ShardId(0), PORT, Message::default());
        }
        for _ in 0..1000 {
            shard.pause(1_000_000).await;
            if answers.get() == 100 {
                break;
            }
        }
        answers.get()
    });
    assert_eq!(answered.unwrap(), [0, 100]);
}

/// Messages to a shard whose executor has ended do no harm.
#[test]
fn messages_to_the_dead_are_harmless() {
    let _watchdog = kit::Watchdog::new("messages to the dead", 60);
    for parked in [false, true] {
        let cluster = kit::cluster(LineMode::Auto);
        let node = kit::node(&cluster, 2, 20);
        let also = Arc::clone(&node);
        let (sender, is_dead) = oneshot::channel();
        let first = kit::on_executor(Some(Duration::from_millis(10)), move || async move {
            let shard = also.attach().await.unwrap();
            if parked {
                // Is dropped with the executor, while the poller sleeps.
                glommio::timer::sleep(Duration::from_millis(50)).await;
                std::mem::forget(shard);
            }
        });
        let second = kit::on_executor(Some(Duration::from_millis(10)), move || async move {
            let shard = node.attach().await.unwrap();
            is_dead.await.unwrap();
            for n in 0..3000 {
                shard.send(ShardId(1 - shard.id().0), PORT, Message([n, 0, 0]));
            }
            shard.pause(20_000_000).await;
        });
        first.join().unwrap();
        sender.send(()).unwrap();
        second.join().unwrap();
    }
}

/// With 64 clients in a loop the poller is never idle: the executor's own timers, files and sockets are served because
/// it steps aside, also where the preemption timer never fires. Prints how late a timer is.
#[test]
fn timers_files_and_sockets_go_on_beside_a_busy_shard() {
    let _watchdog = kit::Watchdog::new("a busy shard", 120);
    for timer in [Duration::from_millis(10), Duration::from_secs(3600)] {
        let cluster = kit::cluster(LineMode::Auto);
        let delays = busy_executor(&cluster, timer);
        let delays = delays.join().unwrap();
        let ms = |ns: u64| ns as f64 / 1e6;
        println!(
            "preemption timer {timer:?}: a sleep of 1 ms took {:.2} ms (median), {:.2} ms (longest of {})",
            ms(delays[delays.len() / 2]),
            ms(delays[delays.len() - 1]),
            delays.len()
        );
        assert!(delays[0] >= 1_000_000, "{delays:?}");
    }
}

fn busy_executor(cluster: &Arc<Cluster>, timer: Duration) -> JoinHandle<Vec<u64>> {
    let at = kit::area(cluster, 0);
    let node = kit::node(cluster, 1, 50);
    kit::on_executor(Some(timer), move || async move {
        let shard = node.attach().await.unwrap();
        let stop = Rc::new(Cell::new(false));
        let clients: Vec<_> = (0..64)
            .map(|_| {
                let (own, stop) = (shard.clone(), Rc::clone(&stop));
                shard.spawn(async move {
                    let mut done = 0u64;
                    while !stop.get() {
                        add(&own, at).await;
                        done += 1;
                    }
                    done
                })
            })
            .collect();
        let mut delays = Vec::new();
        for _ in 0..30 {
            let before = shard.now();
            glommio::timer::sleep(Duration::from_millis(1)).await;
            delays.push(shard.now() - before);
        }
        delays.sort_unstable();
        file_round_trip().await;
        socket_round_trip().await;
        stop.set(true);
        let mut done = 0;
        for client in clients {
            let own = client.await;
            assert!(own > 0, "a client starved");
            done += own;
        }
        assert_eq!(add(&shard, at).await, done);
        delays
    })
}

async fn file_round_trip() {
    let path = std::env::temp_dir().join(format!("farwood-attach-{}", std::process::id()));
    std::fs::File::create(&path).unwrap().write_all(b"beside the poller").unwrap();
    let file = BufferedFile::open(&path).await.unwrap();
    let read = file.read_at(7, 3).await.unwrap();
    assert_eq!(&read[..], b"the");
    file.close().await.unwrap();
    std::fs::remove_file(&path).unwrap();
}

async fn socket_round_trip() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = glommio::spawn_local(async move {
        let mut stream = listener.accept().await.unwrap();
        let mut bytes = [0; 4];
        stream.read_exact(&mut bytes).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
    });
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"ping").await.unwrap();
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes).await.unwrap();
    assert_eq!(&bytes, b"ping");
    server.await;
}
