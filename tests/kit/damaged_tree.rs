//! A tree whose nodes can be damaged behind the index's back and mended again, and what a check must say about it.

use farwood::index::check::{Broken, CheckOptions, CheckReport};
use farwood::index::layout::{NodeHeader, Rejection};
use farwood::runtime::{Chain, Meter, RemotePtr};
use farwood::sherman::Options;
use farwood::{RangeIndex, ShermanIndex, Verbs};

use super::TestShard;

/// Where the header's fields are in an image with keys of 8 bytes: all in line 0, behind its control word.
pub(crate) const LEVEL: usize = 2 + 1;
pub(crate) const SIBLING: usize = 2 + 8;
pub(crate) const HIGH_LEN: usize = 2 + 18;
pub(crate) const LOW: usize = 2 + 20;
pub(crate) const HIGH: usize = 2 + 28;
/// Entry 0 of an inner node: length of the key, key, child.
pub(crate) const SEPARATOR: usize = 2 + 36 + 1;
pub(crate) const CHILD: usize = SEPARATOR + 8;

/// A tree of three levels or more, whose nodes can be damaged and mended.
pub(crate) struct DamagedTree {
    pub(crate) shard: TestShard,
    pub(crate) index: ShermanIndex<TestShard>,
    pub(crate) root_word: RemotePtr,
    /// Addresses from left to right, leaves first.
    pub(crate) levels: Vec<Vec<RemotePtr>>,
}

impl DamagedTree {
    pub(crate) async fn new(shard: TestShard, index: ShermanIndex<TestShard>) -> Self {
        for n in 0..150 {
            index.put(&super::key(super::scatter(n)), &super::key(n)).await.unwrap();
        }
        let root_word = shard.control().open(super::NAME).await.unwrap().root;
        let mut tree = DamagedTree { shard, index, root_word, levels: Vec::new() };
        let word = tree.word(root_word).await;
        let mut nodes = vec![RemotePtr::from_bits(word & !0x3f)];
        let (_, inner) = super::TINY.layouts().unwrap();
        for _ in 0..word & 0x3f {
            let mut below = Vec::new();
            for node in &nodes {
                let image = tree.read(*node, inner.node_bytes()).await;
                let children = inner.view(&image).unwrap().entries().map(|entry| entry.unwrap().1);
                below.extend(children);
            }
            tree.levels.insert(0, std::mem::replace(&mut nodes, below));
        }
        tree.levels.insert(0, nodes);
        assert!(tree.levels.len() >= 3 && tree.levels.iter().rev().skip(1).all(|level| level.len() >= 2));
        tree.is_healthy().await;
        tree
    }

    pub(crate) fn leaf(&self, place: usize) -> RemotePtr {
        self.levels[0][place]
    }

    /// Yields a node above the leaves, not the root.
    pub(crate) fn inner(&self, place: usize) -> RemotePtr {
        self.levels[1][place]
    }

    pub(crate) fn root(&self) -> RemotePtr {
        self.levels.last().unwrap()[0]
    }

    pub(crate) fn bytes(&self, node: RemotePtr) -> usize {
        let (leaf, inner) = super::TINY.layouts().unwrap();
        if self.levels[0].contains(&node) { leaf.node_bytes() } else { inner.node_bytes() }
    }

    pub(crate) async fn read(&self, at: RemotePtr, bytes: usize) -> Vec<u8> {
        self.shard.read(&Meter::default(), at, bytes).await.unwrap().into_buf()[..bytes].to_vec()
    }

    pub(crate) async fn word(&self, at: RemotePtr) -> u64 {
        u64::from_le_bytes(self.read(at, 8).await.try_into().unwrap())
    }

    pub(crate) async fn write(&self, at: RemotePtr, bytes: &[u8]) {
        let mut buf = self.shard.lease(bytes.len());
        buf[..bytes.len()].copy_from_slice(bytes);
        let mut chain = Chain::with_buffer(at.server(), buf);
        chain.write(at, 0..bytes.len());
        self.shard.submit(&Meter::default(), chain).await.unwrap();
    }

    pub(crate) async fn check(&self) -> CheckReport {
        self.index.check(&CheckOptions::default()).await.unwrap()
    }

    pub(crate) async fn is_healthy(&self) {
        let report = self.check().await;
        assert!(report.is_intact() && report.missing_separators.is_empty(), "{:?}", report.violations);
        assert!(report.orphaned.is_empty() && report.torn.is_empty());
    }

    /// Yields the report on the tree while `node` is damaged, and what survey says then.
    pub(crate) async fn damaged(&self, node: RemotePtr, damage: impl FnOnce(&mut [u8])) -> CheckReport {
        let image = self.read(node, self.bytes(node)).await;
        let mut other = image.clone();
        damage(&mut other);
        assert!(image != other, "nothing was damaged");
        self.write(node, &other).await;
        let report = self.check().await;
        assert!(!report.is_intact());
        self.write(node, &image).await;
        self.is_healthy().await;
        report
    }

    /// Damages `node`, and expects that the check blames it alone, for `broken`.
    pub(crate) async fn blames(
        &self,
        node: RemotePtr,
        damage: impl FnOnce(&mut [u8]),
        broken: impl Fn(&Broken) -> bool,
    ) {
        let report = self.damaged(node, damage).await;
        names(&report, node, broken);
        assert!(report.violations.iter().all(|found| found.node == node), "{}", lines(&report));
    }

    /// Damages a leaf by building it anew with other pairs.
    pub(crate) async fn rebuilt(
        &self,
        leaf: RemotePtr,
        change: impl FnOnce(&mut Vec<(Vec<u8>, Vec<u8>)>),
    ) -> CheckReport {
        let (layout, _) = super::TINY.layouts().unwrap();
        self.damaged(leaf, |image| {
            let old = image.to_vec();
            let view = layout.view(&old).unwrap();
            let entries = view.entries().map(Result::unwrap);
            let mut pairs = entries.map(|entry| (entry.key.to_vec(), entry.value.to_vec())).collect();
            change(&mut pairs);
            let (low, high) = (view.header().low(), view.header().high());
            let header = NodeHeader {
                level: 0,
                low: &low,
                high: high.as_deref(),
                sibling: view.header().sibling(),
                incarnation: 0,
                node_version: view.header().node_version().next(),
            };
            layout.build(image, &header, pairs.iter().map(|(key, value)| (&key[..], &value[..])));
        })
        .await
    }
}

pub(crate) fn lines(report: &CheckReport) -> String {
    report.violations.iter().map(|found| format!("{found}\n")).collect()
}

/// Asserts that the report blames `node` for `broken`, on one line that begins with its address.
#[track_caller]
pub(crate) fn names(report: &CheckReport, node: RemotePtr, broken: impl Fn(&Broken) -> bool) {
    let found = report.violations.iter().find(|found| found.node == node && broken(&found.broken));
    let found = found.unwrap_or_else(|| panic!("{node} is not blamed for that, but:\n{}", lines(report)));
    let line = found.to_string();
    assert!(line.contains(&format!(" {node}")) && !line.contains('\n'), "{line}");
}

pub(crate) fn unreadable(broken: &Broken) -> Option<Rejection> {
    match broken {
        Broken::Unreadable { rejection, .. } => Some(*rejection),
        _ => None,
    }
}

pub(crate) fn with_damaged_tree<F: Future<Output = ()> + 'static>(main: fn(DamagedTree) -> F) {
    // Survey reads torn nodes again for as long as this lasts.
    let options = Options { retries_max: 100, ..Options::default() };
    super::with_tree(1, super::TINY, options, move |shard, index| async move {
        main(DamagedTree::new(shard.clone(), index.clone()).await).await;
        super::at_rest(&shard, &index).await;
    });
}
