//! Runs parties on compute nodes whose shards are glommio executors, whatever memory they reach: one thread per node.

use std::io::Write;
use std::sync::{Arc, Once};

use farwood::runtime::Fabric;
use farwood::{ComputeNode, NodeContext, Shard};

use super::cluster::{Main, Seat};

/// Runs `main` for every shard of all `nodes`, which work on the same cluster; results in the order of places.
pub(crate) fn run_nodes<C, T>(
    nodes: Vec<Arc<ComputeNode<C>>>,
    main: &Main<Seat<Shard<C::Device>>, T>,
) -> Vec<T>
where
    C: Fabric,
    T: Send + 'static,
{
    exit_on_panic();
    let threads: Vec<_> = nodes
        .into_iter()
        .enumerate()
        .map(|(number, node)| {
            let main = Arc::clone(main);
            std::thread::spawn(move || {
                let host = Arc::clone(&node);
                node.run(move |shard| {
                    main(Seat { shard, host: Arc::clone(&host) as Arc<dyn NodeContext>, node: number })
                })
                .unwrap()
            })
        })
        .collect();
    threads.into_iter().flat_map(|thread| thread.join().expect("a compute node runs to its end")).collect()
}

/// Ends the test process as soon as a shard panics, with the message on the real stderr: the shard takes its part of
/// the local lock tables with it, and other shards would wait for ever.
pub(crate) fn exit_on_panic() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            before(info);
            if std::thread::current().name().is_some_and(|name| name.starts_with("farwood")) {
                let _ = writeln!(std::io::stderr(), "a shard panicked: {info}");
                std::process::exit(101);
            }
        }));
    });
}
