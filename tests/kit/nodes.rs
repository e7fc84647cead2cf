//! Runs parties on compute nodes whose shards are glommio executors, whatever memory they reach: one thread per node.

use std::future::Future;
use std::io::Write;
use std::sync::{Arc, Once};

use farwood::IndexSpec;
use farwood::runtime::Fabric;
use farwood::{ComputeNode, NodeContext, Shard};

use super::party::{Common, Parties, Party, Probed, Seat};

/// A compute node that starts an executor per shard.
pub(crate) trait Node: NodeContext + Send + Sync + 'static {
    /// Its shards.
    type V: Probed;
    /// Runs `main` on every shard and waits for all; results in the order of the shards.
    fn run_all<F, R, T>(self: &Arc<Self>, main: F) -> Vec<T>
    where
        F: Fn(Self::V) -> R + Clone + Send + 'static,
        R: Future<Output = T> + 'static,
        T: Send + 'static;
}

impl<C: Fabric> Node for ComputeNode<C> {
    type V = Shard<C::Device>;

    fn run_all<F, R, T>(self: &Arc<Self>, main: F) -> Vec<T>
    where
        F: Fn(Self::V) -> R + Clone + Send + 'static,
        R: Future<Output = T> + 'static,
        T: Send + 'static,
    {
        self.run(main).unwrap()
    }
}

/// Runs `main` for every shard of all `nodes`, which work on the same cluster; results in the order of places.
pub(crate) fn run_nodes<N, F, R, T>(nodes: Vec<Arc<N>>, main: F) -> Vec<T>
where
    N: Node,
    F: Fn(Seat<N::V>) -> R + Clone + Send + 'static,
    R: Future<Output = T> + 'static,
    T: Send + 'static,
{
    exit_on_panic();
    let threads: Vec<_> = nodes
        .into_iter()
        .enumerate()
        .map(|(number, node)| {
            let main = main.clone();
            std::thread::spawn(move || {
                let host = Arc::clone(&node);
                node.run_all(move |shard| {
                    main(Seat { shard, host: Arc::clone(&host) as Arc<dyn NodeContext>, node: number })
                })
            })
        })
        .collect();
    threads.into_iter().flat_map(|thread| thread.join().expect("a compute node runs to its end")).collect()
}

/// Runs `main` for every party on a fresh index.
pub(crate) fn run_parties<N, F, R, T>(
    nodes: Vec<Arc<N>>,
    parties: Parties,
    recipe: IndexSpec,
    main: F,
) -> Vec<T>
where
    N: Node,
    F: Fn(Party<N::V>) -> R + Clone + Send + 'static,
    R: Future<Output = T> + 'static,
    T: Send + 'static,
{
    let common = Common::new(parties);
    run_nodes(nodes, move |seat| {
        let (main, common) = (main.clone(), Arc::clone(&common));
        async move { main(Party::enter(seat, recipe, common).await).await }
    })
}

/// A shard that panics takes its part of the local lock tables with it, so that other shards would wait for
/// ever: end the test process at once instead, with the message on the real stderr.
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
