//! The surroundings of examples in documentation, so that few lines of theirs are hidden: a shard of a small cluster,
//! an index there, a lock table, a cache, the bytes of a node. A dev-dependency of the crates above the runtime, for
//! their examples and nothing else. Its macros name those crates and it depends on none of them: they are not built
//! twice for their tests.
#![forbid(unsafe_code)]

use std::error::Error;
use std::future::Future;
use std::sync::Arc;

use farwood_runtime::{Cluster, ComputeNode, EmbeddedConfig, NodeConfig, Shard};

/// Any error of an example.
pub type Failure = Box<dyn Error>;

/// Runs an example on the one shard of a compute node, on one memory server of 4 MiB.
///
/// # Panics
/// If the example fails.
pub fn run<R>(example: impl Fn(Arc<ComputeNode>, Shard) -> R + Clone + Send + 'static)
where
    R: Future<Output = Result<(), Failure>> + 'static,
{
    let cluster = Cluster::embedded(EmbeddedConfig::small()).expect("4 MiB are to be had");
    let node = NodeConfig { shards: 1, ..Default::default() };
    let node = ComputeNode::new(cluster, node).expect("one shard is possible");
    let of_shard = Arc::clone(&node);
    let end = node.run(move |shard| {
        let example = example(Arc::clone(&of_shard), shard);
        async move { example.await.expect("examples succeed") }
    });
    end.expect("an executor can be started");
}

/// Runs the lines of an example that use a new Sherman tree, for keys and values of 8 bytes at most.
#[macro_export]
macro_rules! index {
    (|$index:ident| { $($lines:tt)* }) => {
        $crate::run(async |node, shard| {
            use farwood_index::{RangeIndex as _, Sherman};
            let tree = Sherman::create(&node, "example", Default::default(), Default::default());
            let $index = tree.await?.attach(shard);
            $($lines)*
            Ok(())
        })
    };
}

/// Runs the lines of an example that use a lock table on a shard, a node of 64 bytes, and an operation's meter. The
/// table is of the configuration that stands before them, or of the default.
#[macro_export]
macro_rules! locks {
    (|$shard:ident, $locks:ident, $node:ident, $meter:ident| { $($lines:tt)* }) => {
        $crate::locks!(LockConfig::default(), |$shard, $locks, $node, $meter| { $($lines)* })
    };
    ($config:expr, |$shard:ident, $locks:ident, $node:ident, $meter:ident| { $($lines:tt)* }) => {
        $crate::run(async |compute_node, $shard| {
            use farwood_lock::{LockConfig, LockError, LockTable, LockWord, WordCodec};
            use farwood_runtime::{Chain, Meter, NodeContext, RemotePtr, ServerId, Verbs};
            let port = compute_node.allocate_port();
            let $locks = LockTable::attach($shard.clone(), port.port(), $config);
            let ($node, $meter) = (RemotePtr::new(ServerId(0), (4 << 20) - 64), Meter::default());
            $($lines)*
            Ok(())
        })
    };
}

/// Runs the lines of an example that use shared locks on a shard that has a lane, a node of 64 bytes that begins with
/// its lock, and an operation's meter.
#[macro_export]
macro_rules! shared_locks {
    (|$shard:ident, $locks:ident, $node:ident, $meter:ident| { $($lines:tt)* }) => {
        $crate::locks!(|$shard, table, $node, $meter| {
            use farwood_lock::shared::{Lanes, SharedLocks};
            let directory = RemotePtr::new($node.server(), $node.offset() - 512);
            let $locks = SharedLocks::new(&table, Lanes { after: 0, ..Lanes::new(directory, 64) });
            while $locks.lane().is_none() {
                let (meter, buf) = (Meter::default(), $shard.lease(64));
                let alone = $locks.share_and_read(&meter, $node, $node, buf, &[0..64]).await?;
                alone.0.release(&Meter::default(), Chain::new($node.server())).await?;
                $shard.pause(1_000).await;
            }
            $($lines)*
        })
    };
}

/// Runs the lines of an example that use a table of windows on a shard, and an operation's meter.
#[macro_export]
macro_rules! windows {
    (|$shard:ident, $windows:ident, $meter:ident| { $($lines:tt)* }) => {
        $crate::run(async |node, $shard| {
            use farwood_lock::window::{Access, Entered, Outcome, WindowConfig, WindowTable};
            use farwood_runtime::{Meter, NodeContext, Verbs};
            let port = node.allocate_port();
            let $windows = WindowTable::attach($shard.clone(), port.port(), WindowConfig::default());
            let $meter = Meter::default();
            $($lines)*
            Ok(())
        })
    };
}

/// Runs the lines of an example that use a cache of 1 MiB and a reader of it. It knows the root, of level 2, and two
/// nodes of level 1: at 640 for keys below `m`, with leaves at 64 and 128, and at 704 for the others, with one at 192.
#[macro_export]
macro_rules! cache {
    (|$cache:ident, $reader:ident| { $($lines:tt)* }) => {{
        use farwood_cache::{CacheConfig, CachedRoute, NodeCache, NodeImage, Policy, Root};
        use farwood_runtime::RemotePtr;
        let config = CacheConfig { budget_bytes: 1 << 20, policy: Policy::TwoChoices, seed: 1 };
        fn at(bits: u64) -> RemotePtr {
            RemotePtr::from_bits(bits)
        }
        let $cache = NodeCache::new(config);
        $cache.set_root(Root { ptr: at(768), level: 2 });
        let left = [(&b""[..], at(64)), (b"f", at(128))];
        $cache.insert(&NodeImage { address: at(640), level: 1, low: b"", high: Some(b"m"), separators: &left });
        let right = [(&b"m"[..], at(192))];
        $cache.insert(&NodeImage { address: at(704), level: 1, low: b"m", high: None, separators: &right });
        let $reader = $cache.reader();
        $($lines)*
    }};
}

/// Runs the lines of an example that use a cache of 1 MiB and a reader of it. It knows the root, a node at 64 without a
/// prefix, whose one slot leads to a leaf for keys that begin with `a`.
#[macro_export]
macro_rules! radix_cache {
    (|$cache:ident, $reader:ident, $leaf:ident| { $($lines:tt)* }) => {{
        use farwood_cache::Policy;
        use farwood_cache::radix::{RadixCache, RadixConfig, RadixImage, slot};
        let config = RadixConfig { budget_bytes: 1 << 20, policy: Policy::TwoChoices, seed: 1 };
        let $cache = RadixCache::new(config);
        $cache.set_root(1 << slot::CLASS_SHIFT | 64);
        let $leaf = u64::from(b'a') << slot::PARTIAL_SHIFT | slot::LEAF | 1 << slot::CLASS_SHIFT | 128;
        $cache.insert(&RadixImage { node: 64, class: 1, depth: 0, prefix: b"", slots: &[$leaf] });
        let $reader = $cache.reader();
        $($lines)*
    }};
}

/// Runs the lines of an example that use the layout and the image of a leaf. It is for keys from `a` to below `m`, and
/// holds `anna` and `clara`.
#[macro_export]
macro_rules! leaf {
    (|$layout:ident, $image:ident| { $($lines:tt)* }) => {
        $crate::node!(LeafLayout::for_slots(4, 8, 8)?, 0, [(&b"anna"[..], &b"1"[..]), (b"clara", b"3")],
            |$layout, $image| { $($lines)* })
    };
}

/// Runs the lines of an example that use the layout and the image of such a leaf as a hopscotch table, of 8 slots in
/// neighbourhoods of 4, whose replicas have no fences.
#[macro_export]
macro_rules! hop_leaf {
    (|$layout:ident, $image:ident| { $($lines:tt)* }) => {
        $crate::node!(hopscotch::HopLayout::new(hopscotch::Ring { slots: 8, reach: 4 }, 8, 8, false)?, 0,
            [(&b"anna"[..], &b"1"[..]), (b"clara", b"3")],
            |$layout, $image| { use hopscotch::*; $($lines)* })
    };
}

/// Runs the lines of an example that use the layout and the image of such a leaf that is indirect. It holds `anna`, in
/// a block of 64 bytes at 640.
#[macro_export]
macro_rules! indirect_leaf {
    (|$layout:ident, $image:ident| { $($lines:tt)* }) => {
        $crate::node!(hopscotch::HopLayout::indirect(hopscotch::Ring { slots: 8, reach: 4 }, 8, 100, false)?, 0,
            [(&b"anna"[..], &641u64.to_le_bytes()[..])],
            |$layout, $image| { use hopscotch::*; $($lines)* })
    };
}

/// Runs the lines of an example that use the format of blocks, for keys and values of 64 bytes at most, and the address
/// and the image of the one of `anna`.
#[macro_export]
macro_rules! block {
    (|$blocks:ident, $at:ident, $image:ident| { $($lines:tt)* }) => {
        (|| -> Result<(), $crate::Failure> {
            use farwood_index::layout::{BlockFormat, Rejection};
            use farwood_runtime::RemotePtr;
            let $blocks = BlockFormat::new(64, 64)?;
            let mut $image = vec![0; 64];
            $blocks.build(&mut $image, b"anna", b"1");
            let $at = $blocks.pointer(RemotePtr::from_bits(640), 64);
            $($lines)*
            Ok(())
        })().expect("examples succeed")
    };
}

/// Runs the lines of an example that use the layout and the image of an inner node, above that leaf and another.
#[macro_export]
macro_rules! inner {
    (|$layout:ident, $image:ident| { $($lines:tt)* }) => {
        $crate::node!(InnerLayout::for_slots(4, 8)?, 1,
            [(&b"a"[..], RemotePtr::from_bits(64)), (b"f", RemotePtr::from_bits(128))],
            |$layout, $image| { $($lines)* })
    };
}

/// Runs the lines of an example that use the format of a radix tree's leaves, for keys and values of 64 bytes at most,
/// and the image of the one of `anna`.
#[macro_export]
macro_rules! radix_leaf {
    (|$leaves:ident, $image:ident| { $($lines:tt)* }) => {
        (|| -> Result<(), $crate::Failure> {
            use farwood_index::layout::{Rejection, radix::*};
            use farwood_runtime::RemotePtr;
            let $leaves = LeafFormat::new(64, 64)?;
            let mut $image = vec![0; 64];
            $leaves.build(&mut $image, Link::Live(Parent::Root), b"anna", b"1");
            $($lines)*
            Ok(())
        })().expect("examples succeed")
    };
}

/// Runs the lines of an example that use a radix tree's slot, which leads to a leaf for keys that go on with `a`.
#[macro_export]
macro_rules! radix_slot {
    (|$slot:ident| { $($lines:tt)* }) => {{
        use farwood_index::layout::radix::*;
        let $slot = Slot::leaf(Symbol::Byte(b'a'), Child::of(2).expect("an address"), 1);
        $($lines)*
    }};
}

/// Runs the lines of an example that use the image of a radix tree's inner node, whose one slot is for keys that begin
/// with `a`.
#[macro_export]
macro_rules! radix_inner {
    (|$image:ident| { $($lines:tt)* }) => {
        (|| -> Result<(), $crate::Failure> {
            use farwood_index::layout::radix::*;
            let leaf = Slot::leaf(Symbol::Byte(b'a'), Child::of(2).expect("an address"), 1);
            let mut $image = vec![0; 64];
            build_inner(&mut $image, Link::Live(Parent::Root), &Header::new(0, 1, b""), [leaf]);
            $($lines)*
            Ok(())
        })().expect("examples succeed")
    };
}

/// Runs the lines of an example that use the layout and the image of a leaf of ranges. It is for keys from `a` to below
/// `b`, and holds `anna`.
#[macro_export]
macro_rules! range_leaf {
    (|$layout:ident, $image:ident| { $($lines:tt)* }) => {
        (|| -> Result<(), $crate::Failure> {
            use farwood_index::layout::{NodeVersion, SlotOrder};
            use farwood_index::layout::range_leaf::*;
            let $layout = RangeLayout::new(256, 1, 8, 8)?;
            let mut $image = vec![0; $layout.node_bytes()];
            let (version, is_reused) = (NodeVersion::new(7), false);
            let header = RangeHeader { version, next: None, low: b"a", high: Some(b"b"), is_reused };
            $layout.build(&mut $image, &header, [(&b"anna"[..], &b"1"[..])]);
            $($lines)*
            Ok(())
        })().expect("examples succeed")
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! node {
    ($new:expr, $level:literal, $entries:expr, |$layout:ident, $image:ident| { $($lines:tt)* }) => {
        (|| -> Result<(), $crate::Failure> {
            use farwood_index::layout::*;
            use farwood_runtime::RemotePtr;
            let $layout = $new;
            let mut $image = vec![0; $layout.node_bytes()];
            let header = NodeHeader {
                level: $level,
                low: b"a",
                high: Some(b"m"),
                sibling: RemotePtr::from_bits(640),
                incarnation: 1,
                node_version: NodeVersion::new(7),
            };
            $layout.build(&mut $image, &header, $entries);
            $($lines)*
            Ok(())
        })().expect("examples succeed")
    };
}
